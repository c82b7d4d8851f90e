// SPDX-License-Identifier: Apache-2.0
#include "api/sequence.h"

#include <string.h>

#include "core/mem.h"
#include "api/endpoint.h"

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
    msgl__text_begin_behind(&s->answer, msgl__strbuf_str(&s->text), s->text.len);
    // A text is shown as it came, with what it spells of special tokens.
    if (p->text != NULL) s->in_text = p;
    const bool skip = p->text == NULL && s->req->skip_special;
    if (rc == 0 && s->want_logprobs) rc = msgl__text_init(&s->echoed, s->tokenizer, skip, NULL, 0);
    return rc;
}

// What reads the answer, and what it needs to see: it begins with what the prompt was prefilled
// with.
static int parser_init(msgl_sequence *s)
{
    const msgl_parser_config *cfg = &s->req->chat.split;
    if (cfg->tools == NULL && cfg->reasoning == NULL) return 0;
    int rc = msgl__parser_create(cfg, &s->parser);
    if (rc == 0 && s->req->skip_special) {
        rc = msgl__text_keep_special(&s->answer, s->tokenizer, msgl__tool_form_tokens(cfg->tools),
                                     msgl__reasoning_form_tokens(cfg->reasoning));
    }
    const msgl_strbuf *prefill = &s->req->chat.prefill;
    if (rc == 0) rc = msgl__parser_feed(s->parser, prefill->data, prefill->len, &s->parts);
    return rc;
}

int msgl__sequence_init(msgl_sequence *s, const msgl_gen_request *req, int prompt_index,
                        const msgl_ids *prompt, const msgl_tokenizer *tokenizer)
{
    *s = (msgl_sequence){.req = req, .prompt = prompt, .tokenizer = tokenizer};
    const msgl_logprobs_form *form = req->form != NULL ? req->form : req->ep->logprobs;
    const msgl_logprobs_form *of_prompt =
        req->prompt_form != NULL ? req->prompt_form : &msgl__logprobs_prompt;
    s->want_logprobs = form != NULL && req->sampling.logprobs >= 0;
    msgl__strbuf_init(&s->text, TEXT_MAX);
    msgl__strbuf_init(&s->echo_piece, TEXT_MAX);
    msgl__strbuf_init(&s->block_text, TEXT_MAX);
    msgl__strbuf_init(&s->blocks_shown, SIZE_MAX / 2); // TEXT_MAX and what escapes make of it
    msgl__parts_init(&s->parts, TEXT_MAX);
    msgl__logprobs_init(&s->logprobs, form);
    msgl__logprobs_init(&s->prompt_entries, form);
    msgl__logprobs_init(&s->prompt_logprobs, of_prompt);
    msgl__row_texts_init(&s->rows, msgl__prompt_extra(req, prompt_index), req->hidden_size,
                         form == &msgl__logprobs_sglang_text);
    int rc = msgl__text_init(&s->answer, tokenizer, req->skip_special,
                             (const char *const *)req->stops, req->num_stops);
    msgl__text_stop_behind(&s->answer, req->sampling.min_tokens);
    if (req->keep_stop) msgl__text_keep_stop(&s->answer);
    if (rc == 0) rc = parser_init(s);
    if (rc == 0 && req->echo) rc = echo_init(s, &req->prompts[prompt_index]);
    if (rc != 0) msgl__sequence_free(s);
    return rc;
}

void msgl__sequence_free(msgl_sequence *s)
{
    msgl__text_free(&s->answer);
    msgl__text_free(&s->echoed);
    msgl__parser_free(s->parser);
    msgl__parts_free(&s->parts);
    msgl__strbuf_free(&s->text);
    msgl__strbuf_free(&s->echo_piece);
    msgl__strbuf_free(&s->block_text);
    msgl__strbuf_free(&s->blocks_shown);
    msgl__logprobs_free(&s->logprobs);
    msgl__logprobs_free(&s->prompt_entries);
    msgl__logprobs_free(&s->prompt_logprobs);
    msgl__row_texts_free(&s->rows);
    msgl__ids_free(&s->ids);
    msgl__free(s->pending);
    msgl__free(s->values);
    *s = (msgl_sequence){0};
}

// Whether a special token of the prompt is spelled in its text where the tokens before it end; one
// that is not was added (BOS), and has no place there.
static bool is_spelled(const msgl_sequence *s, int32_t id)
{
    char name[256];
    const msgl_prompt *p = s->in_text;
    const size_t at = s->echoed.made;
    if (p == NULL || msgl__tokenizer_is_special(s->tokenizer, id) == 0) return true;
    const int n = msgl__tokenizer_token_bytes(s->tokenizer, id, name, sizeof name);
    return n > 0 && n <= (int)sizeof name && at <= p->len && p->len - at >= (size_t)n &&
           memcmp(p->text + at, name, (size_t)n) == 0;
}

// An entry of the echoed prompt.
static int echo_row(msgl_sequence *s, const msgl_token_logprobs *row, int32_t id)
{
    int rc = msgl__logprobs_add(&s->logprobs, s->tokenizer, row, id, s->echoed.chars);
    if (rc == 0 && s->keep_prompt) {
        rc = msgl__logprobs_add(&s->prompt_entries, s->tokenizer, row, id, s->echoed.chars);
    }
    if (rc != 0) return rc;
    if (!is_spelled(s, id)) return 0;
    msgl__strbuf_clear(&s->echo_piece);
    return msgl__text_token(&s->echoed, id, &s->echo_piece);
}

// What a row has beyond `most` tokens was asked for by another field.
static const msgl_token_logprobs *up_to(const msgl_token_logprobs *row, int32_t most,
                                        msgl_token_logprobs *cut)
{
    if (row == NULL || row->num_top <= most) return row;
    *cut = *row;
    cut->num_top = most;
    return cut;
}

static bool wants_prompt(const msgl_sequence *s)
{
    return s->echoed.detok != NULL || s->req->with_prompt_logprobs || s->req->hidden;
}

// Entries of the prompt: the first token has no prediction, the others come as rows in the order of
// positions.
static int prompt_row(msgl_sequence *s, const msgl_token_logprobs *row, const float *values)
{
    const int32_t position = row == NULL ? 0 : row->position;
    if (!wants_prompt(s) || position != s->prompt_rows || (size_t)position >= s->prompt->len) {
        return 0;
    }
    const int32_t id = s->prompt->data[position];
    msgl_token_logprobs cut;
    int rc = 0;
    if (s->echoed.detok != NULL) {
        rc = echo_row(s, up_to(row, s->req->sampling.logprobs, &cut), id);
    }
    if (rc == 0 && s->req->with_prompt_logprobs && position >= s->req->prompt_from) {
        if (position == s->req->prompt_from) row = NULL;
        rc = msgl__row_texts_listed(&s->rows, s->tokenizer, row == NULL ? NULL : values, true);
        row = up_to(row, s->req->prompt_logprobs, &cut);
        if (rc == 0) rc = msgl__logprobs_add(&s->prompt_logprobs, s->tokenizer, row, id, 0);
    }
    if (rc == 0 && position > 0) {
        rc = msgl__row_texts_hidden(&s->rows, values, position, s->prompt->len);
    }
    if (rc == 0) s->prompt_rows++;
    return rc;
}

bool msgl__sequence_prompt_done(const msgl_sequence *s)
{
    return !wants_prompt(s) || (size_t)s->prompt_rows >= s->prompt->len;
}

int msgl__sequence_share_prompt(msgl_sequence *s, const msgl_sequence *first)
{
    s->prompt_rows = first->prompt_rows;
    int rc = msgl__row_texts_share(&s->rows, &first->rows);
    if (rc != 0) return rc;
    rc = s->req->ep->prompt_logprobs_once
             ? 0
             : msgl__logprobs_append(&s->prompt_logprobs, &first->prompt_logprobs);
    return rc == 0 ? msgl__logprobs_append(&s->logprobs, &first->prompt_entries) : rc;
}

size_t msgl__sequence_bytes(const msgl_sequence *s)
{
    const size_t parser = s->parser == NULL ? 0 : msgl__parser_bytes(s->parser);
    return parser + msgl__parts_bytes(&s->parts) + s->text.cap + s->echo_piece.cap +
           s->block_text.cap + s->blocks_shown.cap + msgl__text_bytes(&s->answer) +
           msgl__text_bytes(&s->echoed) + msgl__logprobs_bytes(&s->logprobs) +
           msgl__logprobs_bytes(&s->prompt_entries) + msgl__logprobs_bytes(&s->prompt_logprobs) +
           msgl__row_texts_bytes(&s->rows) + (size_t)s->cap_pending * sizeof *s->pending +
           s->ids.cap * sizeof *s->ids.data + (size_t)s->num_values * sizeof *s->values;
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
        (struct msgl_pending){.row = *row, .end = s->answer.made, .offset = offset};
    return 0;
}

// Moves entries whose text is shown to s->logprobs; at the end also those without text of their own
// before the cut.
static int pending_release(msgl_sequence *s)
{
    int done = 0, rc = 0;
    while (done < s->num_pending && rc == 0 && s->pending[done].end <= s->answer.shown) {
        const struct msgl_pending *p = &s->pending[done++];
        rc = msgl__logprobs_add(&s->logprobs, s->tokenizer, &p->row, p->row.token, p->offset);
    }
    s->num_pending -= done;
    if (s->num_pending == 0 || done == 0) return rc;
    memmove(s->pending, s->pending + done, (size_t)s->num_pending * sizeof *s->pending);
    return rc;
}

// Token t of an event, and the end if it comes with it. row: its log-probability, or NULL; values:
// what is beside it.
static int token_in(msgl_sequence *s, const msgl_token_event *e, int32_t t,
                    const msgl_token_logprobs *row, const float *values)
{
    const size_t offset = s->answer.chars;
    int rc = msgl__text_event(&s->answer, e, t, &s->text);
    if (rc == 0 && s->want_logprobs && row != NULL) {
        if (s->req->every_logprob) {
            rc = msgl__logprobs_add(&s->logprobs, s->tokenizer, row, row->token, offset);
            if (rc == 0) rc = msgl__row_texts_listed(&s->rows, s->tokenizer, values, false);
        } else if (msgl__text_has(e, t)) {
            rc = pending_add(s, row, offset);
        }
    }
    if (rc == 0 && row != NULL) {
        rc = msgl__row_texts_hidden(&s->rows, values, row->position, s->prompt->len);
    }
    if (t < e->num_tokens) s->completion_tokens++; // also one that is not shown
    if (rc == 0 && t < e->num_tokens && s->req->return_ids) {
        rc = msgl__ids_push(&s->ids, e->tokens[t]);
    }
    if (s->answer.stopped) {
        s->finish = "stop";
    } else if (t + 1 >= e->num_tokens && e->finish != MSGL_FINISH_NONE) {
        s->finish = e->finish == MSGL_FINISH_LENGTH  ? "length"
                    : e->finish == MSGL_FINISH_ABORT ? "abort"
                                                     : "stop";
    }
    return rc;
}

// New text goes to the parts.
static int split(msgl_sequence *s)
{
    int rc = msgl__parser_feed(s->parser, s->text.data, s->text.len, &s->parts);
    msgl__strbuf_clear(&s->text);
    if (rc != 0 || s->finish == NULL) return rc;
    rc = msgl__parser_finish(s->parser, &s->parts);
    const bool stopped = strcmp(s->finish, "stop") == 0;
    if (stopped && msgl__parser_calls(s->parser) > 0) s->finish = "tool_calls";
    return rc;
}

// The text of one token to the parts.
static int split_token(msgl_sequence *s, bool counts)
{
    const int rc = split(s);
    if (counts && msgl__parser_thinking(s->parser)) s->reasoning_tokens++;
    return rc;
}

static int keep_values(msgl_sequence *s, const msgl_token_event *e)
{
    const size_t n = (size_t)e->num_values;
    s->values = msgl__reallocarray(NULL, n, sizeof *s->values);
    if (s->values == NULL) return MSGL_ENOMEM;
    memcpy(s->values, e->values, n * sizeof *s->values);
    s->num_values = e->num_values;
    return 0;
}

int msgl__sequence_event(msgl_sequence *s, const msgl_token_event *e)
{
    if (s->finish != NULL) return 0;
    const int32_t own = e->num_logprobs > 0 ? e->num_values / e->num_logprobs : 0; // beside a row
    const bool keeps =
        own == 0 || s->req->ep->lists; // of one row, the values of the tokens it lists
    int rc = e->num_values > 0 && keeps && s->values == NULL ? keep_values(s, e) : 0;
    if (rc != 0) return rc;
    if (!s->started) rc = prompt_row(s, NULL, NULL);
    s->started = true;
    s->cached_tokens = e->cached_tokens;
    s->drafted = e->drafted;
    s->accepted = e->accepted;
    int32_t i = 0; // then the rows of e->tokens, if they have any
    for (; i < e->num_logprobs && (size_t)e->logprobs[i].position < s->prompt->len && rc == 0;
         i++) {
        rc = prompt_row(s, &e->logprobs[i], own == 0 ? NULL : e->values + (size_t)i * (size_t)own);
    }
    if (rc != 0) return rc;
    if (s->req->no_output) {
        if (e->num_tokens > 0 || e->finish != MSGL_FINISH_NONE) {
            s->finish = e->finish == MSGL_FINISH_ABORT ? "abort" : "length";
        }
        return 0;
    }
    for (int32_t t = 0; (t == 0 || t < e->num_tokens) && s->finish == NULL && rc == 0; t++) {
        const bool has_row = t < e->num_tokens && i < e->num_logprobs;
        rc = token_in(s, e, t, has_row ? &e->logprobs[i] : NULL,
                      has_row && own > 0 ? e->values + (size_t)i * (size_t)own : NULL);
        i += has_row;
        if (rc == 0 && s->parser != NULL) rc = split_token(s, t < e->num_tokens);
    }
    return rc == 0 ? pending_release(s) : rc;
}
