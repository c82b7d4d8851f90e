// SPDX-License-Identifier: Apache-2.0
#include "text/stream.h"

#include <string.h>

#include "core/err.h"
#include "utils/utf8.h"

int msgl__text_init(msgl_text_stream *s, const msgl_tokenizer *t, bool skip_special,
                    const char *const *stops, int num_stops)
{
    *s = (msgl_text_stream){0};
    const int rc = msgl__stop_init(&s->stop, stops, num_stops);
    if (rc != 0 || t == NULL) return rc;
    s->detok = msgl__detok_create(t, skip_special);
    return s->detok == NULL ? MSGL_ENOMEM : 0;
}

// Whether the tokenizer has one of these as a special token.
static bool any_special(const msgl_tokenizer *t, const char *const *list)
{
    for (; list != NULL && *list != NULL; list++) {
        const int32_t id = msgl__tokenizer_id(t, *list);
        if (id >= 0 && msgl__tokenizer_is_special(t, id)) return true;
    }
    return false;
}

int msgl__text_keep_special(msgl_text_stream *s, const msgl_tokenizer *t, const char *const *a,
                            const char *const *b)
{
    if (t == NULL || (!any_special(t, a) && !any_special(t, b))) return 0;
    msgl_detok *all = msgl__detok_create(t, 0);
    if (all == NULL) return MSGL_ENOMEM;
    msgl__detok_destroy(s->detok);
    s->detok = all;
    s->keeps_of = t;
    s->keep[0] = a;
    s->keep[1] = b;
    return 0;
}

// Whether it is a special token that is not kept.
static bool is_left_out(const msgl_text_stream *s, int32_t id)
{
    char text[64];
    if (s->keeps_of == NULL || id < 0 || id >= msgl__tokenizer_vocab_size(s->keeps_of) ||
        !msgl__tokenizer_is_special(s->keeps_of, id)) {
        return false;
    }
    const int n = msgl__tokenizer_token_bytes(s->keeps_of, id, text, sizeof text);
    for (int i = 0; i < 2 && n >= 0 && n < (int)sizeof text; i++) {
        for (const char *const *k = s->keep[i]; k != NULL && *k != NULL; k++) {
            if (strlen(*k) == (size_t)n && memcmp(*k, text, (size_t)n) == 0) return false;
        }
    }
    return true;
}

void msgl__text_free(msgl_text_stream *s)
{
    msgl__detok_destroy(s->detok);
    msgl__stop_free(&s->stop);
    *s = (msgl_text_stream){0};
}

void msgl__text_stop_behind(msgl_text_stream *s, int32_t tokens)
{
    s->unstopped = tokens;
}

void msgl__text_keep_stop(msgl_text_stream *s)
{
    s->stop.keep = true;
}

void msgl__text_begin_behind(msgl_text_stream *s, const char *text, size_t len)
{
    s->chars = msgl__utf8_count(text, len);
}

size_t msgl__text_bytes(const msgl_text_stream *s)
{
    return s->stop.pending.cap;
}

// What the detokenizer has put behind the first `before` pending bytes is counted, and all of it
// goes on to *out as far as it may be shown.
static int pass(msgl_text_stream *s, size_t before, bool checked, msgl_strbuf *out)
{
    const size_t n = s->stop.pending.len - before, shown = out->len;
    s->made += n;
    s->chars += msgl__utf8_count(msgl__strbuf_str(&s->stop.pending) + before, n);
    const int rc =
        checked ? msgl__stop_release(&s->stop, out, &s->stopped) : msgl__stop_finish(&s->stop, out);
    s->shown += out->len - shown;
    return rc;
}

int msgl__text_token(msgl_text_stream *s, int32_t id, msgl_strbuf *out)
{
    const bool checked = s->unstopped <= 0;
    if (!checked) s->unstopped--;
    if (s->detok == NULL || s->stopped || is_left_out(s, id)) return 0;
    const size_t before = s->stop.pending.len;
    const int rc = msgl__detok_push(s->detok, id, &s->stop.pending);
    return rc != 0 && rc != MSGL_EINVAL ? rc : pass(s, before, checked, out);
}

// The answer ends without a stop string: nothing has to be held back any more.
static int end(msgl_text_stream *s, msgl_strbuf *out)
{
    if (s->detok == NULL || s->stopped) return 0;
    const size_t before = s->stop.pending.len;
    int rc = msgl__detok_finish(s->detok, &s->stop.pending);
    if (rc == 0) rc = pass(s, before, s->unstopped <= 0, out);
    if (rc != 0) return rc;
    const size_t shown = out->len;
    rc = msgl__stop_finish(&s->stop, out);
    s->shown += out->len - shown;
    return rc;
}

int msgl__text_event(msgl_text_stream *s, const msgl_token_event *e, int32_t t, msgl_strbuf *out)
{
    const int rc = msgl__text_has(e, t) ? msgl__text_token(s, e->tokens[t], out) : 0;
    const bool ends = e->finish != MSGL_FINISH_NONE && t + 1 >= e->num_tokens;
    return rc == 0 && ends ? end(s, out) : rc;
}
