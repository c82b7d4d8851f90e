// SPDX-License-Identifier: Apache-2.0
#include "server/sequence.h"

#include <string.h>

#include "core/mem.h"
#include "utils/utf8.h"

enum { TEXT_MAX = 1 << 28 };

struct msgl_pending {
    msgl_token_logprobs row;
    size_t end;    // bytes of generated text up to and with this token
    size_t offset; // characters before it
};

static int echo_init(msgl_sequence *s, const msgl_prompt *p)
{
    msgl_err err;
    int rc = p->text != NULL ? msgl__strbuf_add(&s->text, p->text, p->len)
                             : msgl__tokenizer_decode(s->tokenizer, s->prompt->data, s->prompt->len,
                                                      s->req->skip_special, &s->text, &err);
    s->chars = msgl__utf8_count(msgl__strbuf_str(&s->text), s->text.len);
    if (rc == 0 && s->want_logprobs) {
        s->prompt_detok = msgl__detok_create(s->tokenizer, s->req->skip_special);
        if (s->prompt_detok == NULL) rc = MSGL_ENOMEM;
    }
    return rc;
}

int msgl__sequence_init(msgl_sequence *s, const msgl_gen_request *req, int prompt_index,
                        const msgl_ids *prompt, const msgl_tokenizer *tokenizer)
{
    *s = (msgl_sequence){.req = req, .prompt = prompt, .tokenizer = tokenizer};
    s->want_logprobs = req->sampling.logprobs >= 0;
    msgl__strbuf_init(&s->text, TEXT_MAX);
    msgl__strbuf_init(&s->piece, TEXT_MAX);
    msgl__logprobs_init(&s->logprobs, req->kind);
    msgl__logprobs_init(&s->prompt_entries, req->kind);
    int rc = msgl__stop_init(&s->stop, (const char *const *)req->stops, req->num_stops);
    s->detok = msgl__detok_create(tokenizer, req->skip_special);
    if (rc == 0 && s->detok == NULL) rc = MSGL_ENOMEM;
    if (rc == 0 && req->echo) rc = echo_init(s, &req->prompts[prompt_index]);
    if (rc != 0) msgl__sequence_free(s);
    return rc;
}

void msgl__sequence_free(msgl_sequence *s)
{
    if (s->detok != NULL) msgl__detok_destroy(s->detok);
    if (s->prompt_detok != NULL) msgl__detok_destroy(s->prompt_detok);
    msgl__stop_free(&s->stop);
    msgl__strbuf_free(&s->text);
    msgl__strbuf_free(&s->piece);
    msgl__logprobs_free(&s->logprobs);
    msgl__logprobs_free(&s->prompt_entries);
    msgl__free(s->pending);
    *s = (msgl_sequence){0};
}

// Entries of the echoed prompt: the first token has no prediction, the others come as rows in the
// order of positions.
static int prompt_row(msgl_sequence *s, const msgl_token_logprobs *row)
{
    const int32_t position = row == NULL ? 0 : row->position;
    if (!s->req->echo || s->prompt_detok == NULL || position != s->prompt_rows ||
        (size_t)position >= s->prompt->len) {
        return 0;
    }
    const int32_t id = s->prompt->data[position];
    int rc = msgl__logprobs_add(&s->logprobs, s->tokenizer, row, id, s->prompt_chars);
    if (rc == 0 && s->keep_prompt) {
        rc = msgl__logprobs_add(&s->prompt_entries, s->tokenizer, row, id, s->prompt_chars);
    }
    if (rc != 0) return rc;
    s->prompt_rows++;
    msgl__strbuf_clear(&s->piece);
    rc = msgl__detok_push(s->prompt_detok, id, &s->piece);
    s->prompt_chars += msgl__utf8_count(msgl__strbuf_str(&s->piece), s->piece.len);
    return rc == MSGL_EINVAL ? 0 : rc; // an id without text
}

bool msgl__sequence_prompt_done(const msgl_sequence *s)
{
    return s->prompt_detok == NULL || (size_t)s->prompt_rows >= s->prompt->len;
}

int msgl__sequence_share_prompt(msgl_sequence *s, const msgl_sequence *first)
{
    s->prompt_rows = first->prompt_rows;
    s->prompt_chars = first->prompt_chars;
    return msgl__logprobs_append(&s->logprobs, &first->prompt_entries);
}

size_t msgl__sequence_bytes(const msgl_sequence *s)
{
    return s->text.cap + s->piece.cap + s->stop.held.cap + msgl__logprobs_bytes(&s->logprobs) +
           msgl__logprobs_bytes(&s->prompt_entries) + (size_t)s->cap_pending * sizeof *s->pending;
}

static int pending_add(msgl_sequence *s, const msgl_token_logprobs *row, size_t offset)
{
    if (s->num_pending == s->cap_pending) {
        const int cap = s->cap_pending == 0 ? 8 : 2 * s->cap_pending;
        struct msgl_pending *p = msgl__reallocarray(s->pending, (size_t)cap, sizeof *p);
        if (p == NULL) return MSGL_ENOMEM;
        s->pending = p;
        s->cap_pending = cap;
    }
    s->pending[s->num_pending++] =
        (struct msgl_pending){.row = *row, .end = s->detok_bytes, .offset = offset};
    return 0;
}

// Moves entries whose text is shown to s->logprobs; at the end also those without text of their own
// before the cut.
static int pending_release(msgl_sequence *s)
{
    int done = 0, rc = 0;
    while (done < s->num_pending && rc == 0 && s->pending[done].end <= s->shown_bytes) {
        const struct msgl_pending *p = &s->pending[done++];
        rc = msgl__logprobs_add(&s->logprobs, s->tokenizer, &p->row, p->row.token, p->offset);
    }
    s->num_pending -= done;
    if (s->num_pending == 0 || done == 0) return rc;
    memmove(s->pending, s->pending + done, (size_t)s->num_pending * sizeof *s->pending);
    return rc;
}

// What the detokenizer put into s->piece goes through the stop strings into s->text.
static int release_piece(msgl_sequence *s)
{
    const size_t before = s->text.len;
    bool matched = false;
    const int rc =
        msgl__stop_push(&s->stop, msgl__strbuf_str(&s->piece), s->piece.len, &s->text, &matched);
    s->shown_bytes += s->text.len - before;
    if (matched) s->finish = "stop";
    return rc;
}

static int token_in(msgl_sequence *s, int32_t id, const msgl_token_logprobs *row)
{
    msgl__strbuf_clear(&s->piece);
    int rc = msgl__detok_push(s->detok, id, &s->piece);
    if (rc == MSGL_EINVAL) rc = 0; // an id that has no text (padding of the vocabulary)
    if (rc != 0) return rc;
    const size_t offset = s->chars;
    s->detok_bytes += s->piece.len;
    s->chars += msgl__utf8_count(msgl__strbuf_str(&s->piece), s->piece.len);
    if (s->want_logprobs && row != NULL) rc = pending_add(s, row, offset);
    return rc == 0 ? release_piece(s) : rc;
}

static int finish(msgl_sequence *s, const char *reason)
{
    msgl__strbuf_clear(&s->piece);
    int rc = msgl__detok_finish(s->detok, &s->piece);
    s->detok_bytes += s->piece.len;
    if (rc == 0) rc = release_piece(s);
    if (rc == 0 && s->finish == NULL) {
        const size_t before = s->text.len;
        rc = msgl__stop_finish(&s->stop, &s->text);
        s->shown_bytes += s->text.len - before;
        s->finish = reason;
    }
    return rc;
}

int msgl__sequence_event(msgl_sequence *s, const msgl_token_event *e)
{
    if (s->finish != NULL) return 0;
    int rc = 0;
    if (!s->started) rc = prompt_row(s, NULL);
    s->started = true;
    s->cached_tokens = e->cached_tokens;
    int32_t i = 0; // then the rows of e->tokens, if they have any
    for (; i < e->num_logprobs && (size_t)e->logprobs[i].position < s->prompt->len && rc == 0;
         i++) {
        rc = prompt_row(s, &e->logprobs[i]);
    }
    if (rc != 0) return rc;
    if (s->req->no_output) {
        if (e->num_tokens > 0 || e->finish != MSGL_FINISH_NONE) s->finish = "length";
        return 0;
    }
    for (int32_t t = 0; t < e->num_tokens && s->finish == NULL && rc == 0; t++) {
        s->completion_tokens++;
        // The token that ended it (EOS, a stop id) is counted and not shown.
        const bool shown = e->finish != MSGL_FINISH_STOP || t + 1 < e->num_tokens;
        const msgl_token_logprobs *row = i < e->num_logprobs ? &e->logprobs[i++] : NULL;
        if (shown) rc = token_in(s, e->tokens[t], row);
    }
    if (rc == 0 && s->finish == NULL && e->finish != MSGL_FINISH_NONE) {
        rc = finish(s, e->finish == MSGL_FINISH_LENGTH ? "length" : "stop");
    }
    return rc == 0 ? pending_release(s) : rc;
}
