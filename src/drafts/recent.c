// SPDX-License-Identifier: Apache-2.0
#include "drafts/recent.h"

#include <string.h>

#include "core/mem.h"

enum { ORDER = 2, MAX_FOUND = 32 };

bool msgl__recent_create(msgl_recent *out)
{
    *out = (msgl_recent){0};
    out->ids = msgl__reallocarray(NULL, MSGL_RECENT_TOKENS, sizeof *out->ids);
    out->answers = msgl__reallocarray(NULL, MSGL_RECENT_ANSWERS, sizeof *out->answers);
    if (out->ids != NULL && out->answers != NULL &&
        msgl__repeats_create(ORDER, MSGL_RECENT_TOKENS, &out->repeats)) {
        return true;
    }
    msgl__recent_destroy(out);
    return false;
}

void msgl__recent_destroy(msgl_recent *r)
{
    msgl__repeats_destroy(&r->repeats);
    msgl__free(r->answers);
    msgl__free(r->ids);
    *r = (msgl_recent){0};
}

// The index has positions, so that leaving out the older half means making it anew: once in as many
// tokens as it then has.
static void forget_half(msgl_recent *r)
{
    int32_t first = r->num_answers / 2;
    while (first < r->num_answers && r->answers[first].begin < r->len / 2) first++;
    const int32_t from = first < r->num_answers ? r->answers[first].begin : r->len;
    r->len -= from;
    memmove(r->ids, r->ids + from, (size_t)r->len * sizeof *r->ids);
    r->num_answers -= first;
    memmove(r->answers, r->answers + first, (size_t)r->num_answers * sizeof *r->answers);
    for (int32_t i = 0; i < r->num_answers; i++) r->answers[i].begin -= from;
    msgl__repeats_clear(&r->repeats);
    msgl__repeats_extend(&r->repeats, r->ids, r->len);
}

void msgl__recent_add(msgl_recent *r, uint64_t salt, const int32_t *ids, int32_t n)
{
    const int32_t most = MSGL_RECENT_TOKENS / 2 - 1; // of one answer, its last ones
    if (n > most) {
        ids += n - most;
        n = most;
    }
    if (n < 1) return;
    if (r->num_answers == MSGL_RECENT_ANSWERS || n + 1 > MSGL_RECENT_TOKENS - r->len) {
        forget_half(r);
    }
    r->answers[r->num_answers++] = (msgl_recent_answer){.salt = salt, .begin = r->len};
    memcpy(r->ids + r->len, ids, (size_t)n * sizeof *ids);
    r->ids[r->len + n] = -1;
    r->len += n + 1;
    msgl__repeats_extend(&r->repeats, r->ids, r->len);
}

static uint64_t salt_at(const msgl_recent *r, int32_t position)
{
    int32_t from = 0, to = r->num_answers - 1; // the last that begins at or before it
    while (from < to) {
        const int32_t middle = from + (to - from + 1) / 2;
        if (r->answers[middle].begin <= position) {
            from = middle;
        } else {
            to = middle - 1;
        }
    }
    return r->answers[from].salt;
}

int32_t msgl__recent_find(const msgl_recent *r, uint64_t salt, const int32_t *ids, int32_t n,
                          int32_t max_match, msgl_repeat *out, int32_t most)
{
    msgl_repeat all[MAX_FOUND];
    const int32_t found =
        msgl__repeats_find(&r->repeats, r->ids, ids, n, max_match, all, MAX_FOUND);
    int32_t kept = 0;
    for (int32_t i = 0; i < found && kept < most; i++) {
        if (salt_at(r, (int32_t)(all[i].next - r->ids)) == salt) out[kept++] = all[i];
    }
    return kept;
}
