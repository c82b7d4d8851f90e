// SPDX-License-Identifier: Apache-2.0
//
// The encode pipeline and the small questions about ids. Loading is in load*.c, the way back in
// decode.c.
#include "tokenizer/tokenizer.h"

#include <string.h>

#include "tokenizer/added.h"
#include "tokenizer/bpe.h"
#include "tokenizer/unigram.h"
#include "tokenizer/wordpiece.h"
#include "tokenizer/workspace.h"

int msgl__ids_push(msgl_ids *v, int32_t id)
{
    if (v->len == v->cap &&
        msgl__tok_grow((void **)&v->data, &v->cap, v->len + 1, sizeof(*v->data)) != 0) {
        return MSGL_ENOMEM;
    }
    v->data[v->len++] = id;
    return 0;
}

void msgl__ids_free(msgl_ids *v)
{
    msgl__free(v->data);
    *v = (msgl_ids){0};
}

static int encode_piece(const msgl_tokenizer *t, msgl_tok_ws *ws, const char *p, size_t n,
                        msgl_ids *out)
{
    switch (t->model) {
    case MSGL_MODEL_WORDPIECE: return msgl__wordpiece_encode(t, ws, p, n, out);
    case MSGL_MODEL_UNIGRAM: return msgl__unigram_encode(t, ws, p, n, out);
    case MSGL_MODEL_BPE:
    default: return msgl__bpe_encode(&t->bpe, ws, p, n, out);
    }
}

// Text without added tokens: pieces, then ids.
static int encode_plain(const msgl_tokenizer *t, msgl_tok_ws *ws, msgl_text text, msgl_ids *out)
{
    if (text.n == 0) return 0;
    int list;
    int rc = msgl__pre_tokenize(t, ws, &text, &list);
    for (size_t i = 0; i < ws->num_pieces[list] && rc == 0; i++) {
        const msgl_tok_piece *piece = &ws->pieces[list][i];
        rc = encode_piece(t, ws, text.p + piece->off, piece->len, out);
    }
    return rc;
}

// The bit of the text's tags that says where tokens of this kind may not lie.
static void paint(unsigned char *tags, size_t n, const msgl_trust *trust, int which)
{
    const size_t end = trust->base + n;
    for (size_t i = 0; i < trust->n[which]; i++) {
        const msgl_text_span *s = &trust->spans[which][i];
        const size_t to = s->end < end ? s->end : end;
        for (size_t k = s->start > trust->base ? s->start : trust->base; k < to; k++) {
            tags[k - trust->base] |= (unsigned char)(1 << which);
        }
    }
}

// Text between the tokens that match the raw text: normalized, then cut at the tokens that match
// normalized text. `text` starts at original offset trust->base.
static int encode_chunk(const msgl_tokenizer *t, msgl_tok_ws *ws, msgl_text text,
                        const msgl_trust *trust, msgl_ids *out)
{
    const size_t first = text.n > 0 ? msgl__utf8_len((unsigned char)text.p[0]) : 0;
    ws->zero = trust->base == 0 ? first : 0;
    ws->in_use = NULL;
    if (ws->use_tags) {
        // The tags start as a copy of the text with the spans painted in.
        msgl_tok_buf *b = msgl__ws_other(ws, &text);
        int rc = msgl__buf_put(ws, b, text.p, text.n, 0);
        if (rc != 0) return rc;
        paint(b->tags, text.n, trust, 0);
        paint(b->tags, text.n, trust, 1);
        text = msgl__buf_text(ws, b);
    }
    int rc = msgl__normalize(t, ws, &text);
    if (rc != 0) return rc;
    for (int i = 0; i < 3; i++) {
        if (text.p == ws->buf[i].data) ws->in_use = &ws->buf[i];
    }
    msgl_match_iter it = {0};
    msgl_stretch s;
    const size_t zero = ws->zero;
    while (rc == 0 && msgl__matcher_next(&t->normed, t->uni, &text, trust, &it, &s)) {
        if (s.start >= s.end) continue;
        if (s.id >= 0) {
            rc = msgl__ws_push(ws, out, s.id);
            continue;
        }
        const msgl_text part = {text.p + s.start, text.tags == NULL ? NULL : text.tags + s.start,
                                s.end - s.start};
        ws->zero = zero > s.start ? zero - s.start : 0;
        rc = encode_plain(t, ws, part, out);
    }
    return rc;
}

static int encode_text(const msgl_tokenizer *t, msgl_tok_ws *ws, const char *text, size_t len,
                       const msgl_encode_opts *opts, msgl_ids *out)
{
    const msgl_text whole = {text, NULL, len};
    msgl_trust trust = {.spans = {opts->untrusted, opts->foreign},
                        .n = {opts->num_untrusted, opts->num_foreign}};
    msgl_match_iter it = {0};
    msgl_stretch s;
    int rc = 0;
    while (rc == 0 && msgl__matcher_next(&t->raw, t->uni, &whole, &trust, &it, &s)) {
        if (s.start >= s.end) continue;
        if (s.id >= 0) {
            rc = msgl__ws_push(ws, out, s.id);
        } else {
            msgl_trust part = trust;
            part.base = s.start;
            const msgl_text chunk = {text + s.start, NULL, s.end - s.start};
            rc = encode_chunk(t, ws, chunk, &part, out);
        }
    }
    return rc;
}

// The post-processor's template around the ids of the text, which stand at out[start, end).
static int post_process(const msgl_tokenizer *t, const msgl_tok_ws *ws, int add_special,
                        size_t start, msgl_ids *out)
{
    size_t before = 0, sequences = 0;
    for (size_t i = 0; i < t->num_post; i++) {
        if (t->post[i] == MSGL_POST_SEQUENCE) {
            sequences++;
        } else if (sequences == 0 && add_special) {
            before++;
        }
    }
    if (sequences == 1 && before == 0 && (!add_special || t->num_post == 1)) return 0;
    const size_t n = out->len - start;
    int32_t *ids = msgl__malloc(n * sizeof(*ids));
    if (ids == NULL) return MSGL_ENOMEM;
    if (n > 0) memcpy(ids, out->data + start, n * sizeof(*ids));
    out->len = start;
    int rc = 0;
    for (size_t i = 0; i < t->num_post && rc == 0; i++) {
        if (t->post[i] != MSGL_POST_SEQUENCE) {
            if (add_special) rc = msgl__ws_push(ws, out, t->post[i]);
            continue;
        }
        for (size_t k = 0; k < n && rc == 0; k++) rc = msgl__ws_push(ws, out, ids[k]);
    }
    msgl__free(ids);
    return rc;
}

static int check_spans(const char *name, const msgl_text_span *spans, size_t n, size_t len,
                       msgl_err *err)
{
    for (size_t i = 0; i < n; i++) {
        const msgl_text_span *s = &spans[i];
        if (s->start > s->end || s->end > len || (i > 0 && s->start < s[-1].end)) {
            return msgl__err_set(
                err, MSGL_EINVAL,
                "%s span %zu [%zu, %zu) is out of order or outside the text of %zu bytes", name, i,
                s->start, s->end, len);
        }
    }
    return 0;
}

static int check_input(const char *text, size_t len, const msgl_encode_opts *opts, msgl_err *err)
{
    if (len > MSGL_TOK_MAX_TEXT) {
        return msgl__err_set(err, MSGL_ELIMIT, "text of %zu bytes; at most %zu", len,
                             MSGL_TOK_MAX_TEXT);
    }
    const size_t valid = msgl__utf8_valid(text, len);
    if (valid != len) {
        return msgl__err_set(err, MSGL_EFORMAT, "text is not valid UTF-8 at byte %zu", valid);
    }
    const int rc = check_spans("untrusted", opts->untrusted, opts->num_untrusted, len, err);
    return rc != 0 ? rc : check_spans("foreign", opts->foreign, opts->num_foreign, len, err);
}

int msgl__tokenizer_encode(const msgl_tokenizer *t, const char *text, size_t len,
                           const msgl_encode_opts *opts, msgl_ids *out, msgl_err *err)
{
    static const msgl_encode_opts none = {0};
    if (opts == NULL) opts = &none;
    int rc = check_input(text, len, opts, err);
    if (rc != 0) return rc;
    msgl_tok_ws *ws = msgl__ws_take(t);
    if (ws == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    const size_t start = out->len;
    ws->guard = opts->num_foreign > 0 ? t->control : opts->num_untrusted > 0 ? t->special : NULL;
    ws->use_tags = t->num_norms > 0 && ((opts->num_untrusted > 0 && t->has_normed_special) ||
                                        (opts->num_foreign > 0 && t->has_normed_plain));
    ws->id_limit =
        opts->max_ids > 0 && opts->max_ids < SIZE_MAX - start ? start + opts->max_ids : SIZE_MAX;
    ws->buf_limit = msgl__ws_buf_limit(len);
    rc = encode_text(t, ws, text, len, opts, out);
    if (rc == 0) rc = post_process(t, ws, opts->add_special, start, out);
    if (rc == MSGL_ELIMIT && out->len >= ws->id_limit) {
        rc = msgl__err_set(err, rc, "text of %zu bytes makes more than %zu tokens", len,
                           opts->max_ids);
    } else if (rc == MSGL_ELIMIT) {
        rc = msgl__err_set(err, rc,
                           "the tokenizer's rules need too many steps or too much memory on "
                           "this text");
    } else if (rc != 0) {
        rc = msgl__err_set(err, rc, "%s", msgl__status_text(rc));
    }
    if (rc != 0) out->len = start;
    msgl__ws_give(t, ws);
    return rc;
}

// The template of pairs around ids[0, first) and ids[first, n) into *out.
static int join_pair(const msgl_tokenizer *t, const msgl_ids *ids, size_t first, size_t max_ids,
                     msgl_ids *out, size_t *pair_from, msgl_err *err)
{
    const size_t start = out->len;
    int rc = 0;
    for (size_t i = 0; i < t->num_post_pair && rc == 0; i++) {
        if (i == t->pair_from) *pair_from = out->len - start;
        const int32_t id = t->post_pair[i];
        const size_t begin = id == MSGL_POST_SECOND ? first : 0;
        const size_t end = id == MSGL_POST_SECOND ? ids->len : first;
        if (id >= 0) rc = msgl__ids_push(out, id);
        for (size_t k = begin; id < 0 && k < end && rc == 0; k++) {
            rc = msgl__ids_push(out, ids->data[k]);
        }
        if (rc == 0 && max_ids > 0 && out->len - start > max_ids) rc = MSGL_ELIMIT;
    }
    if (t->pair_from >= t->num_post_pair) *pair_from = out->len - start;
    if (rc == 0) return 0;
    out->len = start;
    if (rc != MSGL_ELIMIT) return msgl__err_set(err, rc, "%s", msgl__status_text(rc));
    return msgl__err_set(err, rc, "the two texts make more than %zu tokens", max_ids);
}

int msgl__tokenizer_encode_pair(const msgl_tokenizer *t, const char *a, size_t a_len, const char *b,
                                size_t b_len, const msgl_encode_opts *opts, msgl_ids *out,
                                size_t *pair_from, msgl_err *err)
{
    const msgl_text_span first_text = {0, a_len}, second_text = {0, b_len};
    msgl_encode_opts plain = {
        .untrusted = &first_text, .num_untrusted = 1, .max_ids = opts->max_ids};
    msgl_ids ids = {0};
    if (t->post_pair == NULL) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "tokenizer.json has no post-processor for a pair of texts");
    }
    int rc = msgl__tokenizer_encode(t, a, a_len, &plain, &ids, err);
    const size_t first = ids.len;
    plain.untrusted = &second_text;
    if (rc == 0) rc = msgl__tokenizer_encode(t, b, b_len, &plain, &ids, err);
    if (rc == 0) rc = join_pair(t, &ids, first, opts->max_ids, out, pair_from, err);
    msgl__ids_free(&ids);
    return rc;
}

int msgl__tokenizer_vocab_size(const msgl_tokenizer *t)
{
    return t->vocab_size;
}

int32_t msgl__tokenizer_id(const msgl_tokenizer *t, const char *content)
{
    const size_t n = strlen(content);
    for (size_t i = 0; i < t->num_added; i++) {
        const msgl_tok_str *s = &t->added[i].content;
        if (s->n == n && memcmp(s->p, content, n) == 0) return t->added[i].id;
    }
    return msgl__strset_get(&t->bpe.vocab, content, n);
}

int msgl__tokenizer_is_special(const msgl_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->vocab_size && t->special[id];
}
