// SPDX-License-Identifier: Apache-2.0
//
// The Unigram model of tokenizer.json: tokens with their scores, in the order of ids.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/build.h"
#include "tokenizer/load.h"
#include "tokenizer/unigram.h"

static const msgl_model_names names = {.vocab = "model.vocab"};

static int malformed(size_t i, msgl_err *err)
{
    return msgl__err_set(err, MSGL_EFORMAT, "model.vocab[%zu]: expected [token, score]", i);
}

// A JSON number.
static bool take_number(msgl_jscan *s, double *out)
{
    char text[48], *end;
    size_t n = 0;
    (void)msgl__jscan_peek(s);
    while (s->i < s->end && n + 1 < sizeof text &&
           strchr("+-.0123456789eE", s->text[s->i]) != NULL) {
        text[n++] = s->text[s->i++];
    }
    text[n] = '\0';
    *out = strtod(text, &end);
    return n > 0 && *end == '\0' && isfinite(*out);
}

// [token, score]. 1; 0: malformed; MSGL_ENOMEM, MSGL_ELIMIT.
static int take_entry(msgl_jscan *s, msgl_strbuf *token, double *score)
{
    msgl__strbuf_clear(token);
    if (!msgl__jscan_take(s, '[')) return 0;
    const int rc = msgl__jscan_string(s, token);
    if (rc != 1) return rc;
    return msgl__jscan_take(s, ',') && take_number(s, score) && msgl__jscan_take(s, ']');
}

static int load_vocab(msgl_tokenizer *t, const msgl_jspan *r, msgl_err *err)
{
    msgl_jscan s = msgl__jscan(r);
    const size_t n = msgl__jscan_count(r);
    if (!msgl__jscan_take(&s, '[') || n == 0) {
        return msgl__err_set(err, MSGL_EFORMAT, "model.vocab: expected an array of [token, score]");
    }
    if (n > MSGL_TOK_MAX_ID) {
        return msgl__err_set(err, MSGL_ELIMIT, "model.vocab: %zu tokens; at most %d", n,
                             MSGL_TOK_MAX_ID);
    }
    int rc = msgl__model_vocab(&t->bpe, n, n, r->end - r->start, err);
    if (rc == 0) t->unigram.scores = msgl__calloc(n, sizeof *t->unigram.scores);
    if (rc == 0 && t->unigram.scores == NULL) rc = msgl__j_enomem(err);
    msgl_strbuf token;
    msgl__strbuf_init(&token, MSGL_TOK_MAX_FILE);
    for (size_t i = 0; i < n && rc == 0; i++) {
        const int got = take_entry(&s, &token, &t->unigram.scores[i]);
        if (got != 1) {
            rc = got < 0 ? msgl__j_enomem(err) : malformed(i, err);
        } else {
            rc = msgl__model_token(&t->bpe, &names, msgl__strbuf_str(&token), token.len, (int32_t)i,
                                   err);
        }
        if (rc == 0 && !msgl__jscan_take(&s, i + 1 < n ? ',' : ']')) rc = malformed(i, err);
    }
    msgl__strbuf_free(&token);
    return rc;
}

int msgl__load_unigram(msgl_tokenizer *t, const json_t *j, const msgl_jspan *vocab, msgl_err *err)
{
    int64_t unk = 0;
    t->model = MSGL_MODEL_UNIGRAM;
    int rc = load_vocab(t, vocab, err);
    if (rc == 0) {
        const int64_t last = (int64_t)t->bpe.vocab.num_ids - 1;
        rc = msgl__j_int(j, "model", "unk_id", 0, last, MSGL_J_REQUIRED, &unk, err);
    }
    t->unigram.unk = (int32_t)unk;
    if (rc == 0) rc = msgl__j_bool(j, "model", "byte_fallback", 0, &t->unigram.byte_fallback, err);
    return rc == 0 ? msgl__unigram_build(t, err) : rc;
}
