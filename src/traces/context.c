// SPDX-License-Identifier: Apache-2.0
#include "traces/context.h"

#include <string.h>
#include <sys/random.h>

#include "core/hex.h"
#include "utils/clock.h"

// 2 * n digits, of which letters are small. Whether they are that, and not all zero unless that is
// allowed.
static bool read_hex(const char *text, uint8_t *out, size_t n, bool zero)
{
    unsigned any = zero;
    for (size_t i = 0; i < 2 * n; i++) {
        const int v = msgl__hex_digit(text[i]);
        if (v < 0 || (text[i] >= 'A' && text[i] <= 'F')) return false;
        out[i / 2] = (uint8_t)(i % 2 == 0 ? v << 4 : out[i / 2] | v);
        any |= (unsigned)v;
    }
    return any != 0;
}

bool msgl__trace_context_read(const char *text, size_t len, msgl_trace_context *out)
{
    // VERSION-TRACE_ID-PARENT_ID-FLAGS; later versions may have more behind a dash.
    enum { TRACE_AT = 3, SPAN_AT = 36, FLAGS_AT = 53, LEN = 55 };
    msgl_trace_context c;
    uint8_t version, flags;
    if (len < LEN || !read_hex(text, &version, 1, true) || version == 0xff) return false;
    if (version == 0 ? len != LEN : len > LEN && text[LEN] != '-') return false;
    if (text[TRACE_AT - 1] != '-' || text[SPAN_AT - 1] != '-' || text[FLAGS_AT - 1] != '-') {
        return false;
    }
    if (!read_hex(text + TRACE_AT, c.trace_id, sizeof c.trace_id, false) ||
        !read_hex(text + SPAN_AT, c.span_id, sizeof c.span_id, false) ||
        !read_hex(text + FLAGS_AT, &flags, 1, true)) {
        return false;
    }
    c.sampled = (flags & 1) != 0;
    *out = c;
    return true;
}

void msgl__trace_id_make(uint8_t *id, size_t n)
{
    static uint64_t last;
    if (getrandom(id, n, GRND_NONBLOCK) == (ssize_t)n) {
        for (size_t i = 0; i < n; i++) {
            if (id[i] != 0) return;
        }
    }
    // Early in a machine's boot; another one is at least another.
    const uint64_t fill[2] = {++last, msgl__now_ns()};
    memcpy(id, fill, n < sizeof fill ? n : sizeof fill);
}
