// SPDX-License-Identifier: Apache-2.0
#include "text/stop.h"

#include <stdint.h>
#include <string.h>

#include "core/err.h"

int msgl__stop_init(msgl_stop *s, const char *const *strings, int count)
{
    *s = (msgl_stop){.strings = strings, .count = count};
    msgl__strbuf_init(&s->pending, SIZE_MAX / 2);
    size_t all = 0;
    if (count < 0 || count > MSGL_MAX_STOPS) return MSGL_EINVAL;
    for (int i = 0; i < count; i++) {
        const size_t n = strnlen(strings[i], MSGL_MAX_STOP_BYTES + 1);
        if (n == 0 || n > MSGL_MAX_STOP_BYTES) return MSGL_EINVAL;
        all += n;
    }
    return all <= MSGL_MAX_STOPS_BYTES ? 0 : MSGL_EINVAL;
}

void msgl__stop_free(msgl_stop *s)
{
    msgl__strbuf_free(&s->pending);
}

// Length of the longest end of text[0, len) that begins a stop string without completing it.
static size_t open_suffix(const msgl_stop *s, const char *text, size_t len)
{
    size_t longest = 0;
    for (int i = 0; i < s->count; i++) {
        size_t n = strlen(s->strings[i]) - 1;
        if (n > len) n = len;
        while (n > longest && memcmp(text + len - n, s->strings[i], n) != 0) n--;
        if (n > longest) longest = n;
    }
    return longest;
}

int msgl__stop_release(msgl_stop *s, msgl_strbuf *out, bool *matched)
{
    *matched = false;
    const char *all = msgl__strbuf_str(&s->pending), *first = NULL;
    for (int i = 0; i < s->count; i++) {
        const char *hit = memmem(all, s->pending.len, s->strings[i], strlen(s->strings[i]));
        if (hit != NULL && (first == NULL || hit < first)) first = hit, s->which = i;
    }
    const size_t kept = first != NULL && s->keep ? strlen(s->strings[s->which]) : 0;
    const size_t release = first != NULL ? (size_t)(first - all) + kept
                                         : s->pending.len - open_suffix(s, all, s->pending.len);
    const int rc = msgl__strbuf_add(out, all, release);
    if (rc != 0) return rc;
    if (first != NULL) {
        *matched = true;
        msgl__strbuf_clear(&s->pending);
    } else if (release > 0) {
        memmove(s->pending.data, s->pending.data + release, s->pending.len - release + 1);
        s->pending.len -= release;
    }
    return 0;
}

int msgl__stop_finish(msgl_stop *s, msgl_strbuf *out)
{
    const int rc = msgl__strbuf_add(out, msgl__strbuf_str(&s->pending), s->pending.len);
    msgl__strbuf_clear(&s->pending);
    return rc;
}
