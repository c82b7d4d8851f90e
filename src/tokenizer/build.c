// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/build.h"

#include <stdio.h>
#include <string.h>

#include "tokenizer/bpe.h"
#include "utils/file.h"

static const char mark[] = "\xe2\x96\x81"; // U+2581

// A token's text as messages show it: its start, on one line.
typedef struct shown {
    char text[44];
} shown;

static const char *show(const char *p, size_t n, shown *buf)
{
    shown cut;
    snprintf(cut.text, sizeof cut.text, "%.*s", (int)(n < 40 ? n : 40), p);
    return msgl__printable(cut.text, buf->text, sizeof buf->text);
}

static int no_memory(msgl_err *err)
{
    return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
}

int msgl__model_vocab(msgl_bpe *bpe, size_t num_ids, size_t count, size_t bytes, msgl_err *err)
{
    return msgl__strset_init(&bpe->vocab, num_ids, count, bytes) == 0 ? 0 : no_memory(err);
}

int msgl__model_token(msgl_bpe *bpe, const msgl_model_names *names, const char *p, size_t len,
                      int32_t id, msgl_err *err)
{
    const char *other;
    size_t n;
    shown a, b;
    if ((other = msgl__strset_at(&bpe->vocab, id, &n)) != NULL) {
        return msgl__err_set(err, MSGL_EFORMAT, "%s: id %d is both \"%s\" and \"%s\"", names->vocab,
                             (int)id, show(other, n, &a), show(p, len, &b));
    }
    const int rc = msgl__strset_add(&bpe->vocab, p, len, id);
    if (rc == MSGL_EINVAL) {
        return msgl__err_set(err, MSGL_EFORMAT, "%s: \"%s\" occurs twice", names->vocab,
                             show(p, len, &a));
    }
    return rc == 0 ? 0 : msgl__err_set(err, rc, "%s: %s", names->vocab, msgl__status_text(rc));
}

int msgl__model_merges(msgl_bpe *bpe, const msgl_model_names *names, size_t n, msgl_err *err)
{
    if (n > MSGL_TOK_MAX_MERGES) {
        return msgl__err_set(err, MSGL_ELIMIT, "%s: %zu of them; at most %zu", names->merges, n,
                             MSGL_TOK_MAX_MERGES);
    }
    bpe->merge_bits = 4;
    while (((size_t)1 << bpe->merge_bits) < n + n / 2) bpe->merge_bits++;
    const size_t slots = (size_t)1 << bpe->merge_bits;
    bpe->merges = msgl__malloc(slots * sizeof(*bpe->merges));
    if (bpe->merges == NULL) return no_memory(err);
    memset(bpe->merges, 0xff, slots * sizeof(*bpe->merges));
    bpe->word_split = msgl__strset_get(&bpe->vocab, mark, 3) >= 0;
    return 0;
}

int msgl__merge_split(msgl_strbuf *both, size_t *split)
{
    const char *p = msgl__strbuf_str(both), *space = memchr(p, ' ', both->len);
    if (space == NULL || space == p || space + 1 == p + both->len) return 0;
    *split = (size_t)(space - p);
    if (memchr(space + 1, ' ', both->len - *split - 1) != NULL) return 0;
    memmove(both->data + *split, space + 1, both->len - *split); // with the final NUL
    both->len--;
    return 1;
}

static int find_token(const msgl_bpe *bpe, const msgl_model_names *names, const msgl_tok_str *s,
                      size_t i, int32_t *id, msgl_err *err)
{
    *id = msgl__strset_get(&bpe->vocab, s->p, s->n);
    if (*id >= 0) return 0;
    shown a;
    return msgl__err_set(err, MSGL_EFORMAT, "%s[%zu]: token \"%s\" is not in %s", names->merges, i,
                         show(s->p, s->n, &a), names->vocab);
}

// A pair that occurs twice counts with its later rank, as in `tokenizers`.
static void put_merge(msgl_bpe *bpe, uint64_t key, uint32_t rank, int32_t id)
{
    const size_t mask = ((size_t)1 << bpe->merge_bits) - 1;
    size_t i = msgl__merge_slot(key, bpe->merge_bits);
    while (bpe->merges[i].key != UINT64_MAX && bpe->merges[i].key != key) i = (i + 1) & mask;
    bpe->merges[i] = (msgl_merge){key, rank, id};
}

static int ends_with_mark(const msgl_tok_str *s)
{
    return s->n >= 3 && memcmp(s->p + s->n - 3, mark, 3) == 0;
}

void msgl__model_pair(msgl_bpe *bpe, const msgl_tok_str *left, const msgl_tok_str *right,
                      int32_t left_id, int32_t right_id, uint32_t rank, int32_t id)
{
    put_merge(bpe, msgl__merge_key(left_id, right_id), rank, id);
    if (right->n >= 3 && memcmp(right->p, mark, 3) == 0 && !ends_with_mark(left)) {
        bpe->word_split = 0;
    }
}

int msgl__model_merge(msgl_bpe *bpe, const msgl_model_names *names, const msgl_strbuf *both,
                      size_t split, size_t i, msgl_err *err)
{
    msgl_tok_str left = {both->data, split}, right = {both->data + split, both->len - split};
    const msgl_tok_str all = {both->data, both->len};
    int32_t left_id, right_id, id;
    int rc = find_token(bpe, names, &left, i, &left_id, err);
    if (rc == 0) rc = find_token(bpe, names, &right, i, &right_id, err);
    if (rc == 0) rc = find_token(bpe, names, &all, i, &id, err);
    if (rc != 0) return rc;
    msgl__model_pair(bpe, &left, &right, left_id, right_id, (uint32_t)i, id);
    return 0;
}

// The vocabulary by raw bytes: tokens whose characters all belong to the byte-level alphabet.
static int build_bytes(msgl_bpe *bpe, msgl_err *err)
{
    msgl_strset *v = &bpe->vocab;
    if (msgl__strset_init(&bpe->bytes, v->num_ids, v->num_ids, v->pool_len + 1) != 0) {
        return no_memory(err);
    }
    char *raw = msgl__malloc(v->pool_len + 1);
    if (raw == NULL) return no_memory(err);
    int rc = 0;
    for (size_t id = 0; id < v->num_ids && rc == 0; id++) {
        size_t n = 0, len = 0, i = 0;
        const char *p = msgl__strset_at(v, (int32_t)id, &n);
        int b = 0;
        while (p != NULL && i < n && (b = msgl__char_byte(msgl__utf8_next(p, &i))) >= 0) {
            raw[len++] = (char)b;
        }
        if (b >= 0 && len > 0) {
            rc = msgl__strset_add(&bpe->bytes, raw, len, (int32_t)id);
        }
    }
    msgl__free(raw);
    return rc == 0 ? 0 : msgl__err_set(err, rc, "model.vocab: %s", msgl__status_text(rc));
}

static int build_symbols(msgl_bpe *bpe, const msgl_tok_str *unk, msgl_err *err)
{
    int complete = 1, all_bytes = bpe->byte_fallback;
    for (unsigned b = 0; b < 256; b++) {
        char bytes[8];
        size_t n = msgl__utf8_put(bpe->byte_mode ? msgl__byte_char((unsigned char)b) : b, bytes);
        bpe->symbol[b] = msgl__strset_get(&bpe->vocab, bytes, n);
        complete = complete && bpe->symbol[b] >= 0;
        n = (size_t)snprintf(bytes, sizeof(bytes), "<0x%02X>", b);
        bpe->fallback[b] = msgl__strset_get(&bpe->vocab, bytes, n);
        all_bytes = all_bytes && bpe->fallback[b] >= 0;
    }
    bpe->unk = -1;
    if (unk->p == NULL) {
        // What is no token vanishes, and the words around it can join.
        if (!all_bytes) bpe->word_split = 0;
        return 0;
    }
    bpe->unk = msgl__strset_get(&bpe->vocab, unk->p, unk->n);
    if (ends_with_mark(unk)) bpe->word_split = 0;
    // With a symbol for every byte nothing is ever unknown, and files name any token here.
    if (bpe->unk >= 0 || (bpe->byte_mode && complete)) return 0;
    return msgl__err_set(err, MSGL_EFORMAT, "model.unk_token: not in model.vocab");
}

int msgl__model_finish(msgl_tokenizer *t, const msgl_tok_str *unk, msgl_err *err)
{
    msgl_bpe *bpe = &t->bpe;
    int rc = 0;
    bpe->byte_mode =
        t->num_pretoks > 0 && t->pretoks[t->num_pretoks - 1].type == MSGL_PRETOK_BYTE_LEVEL;
    if (bpe->byte_mode) {
        bpe->word_split = 0;
        rc = build_bytes(bpe, err);
    }
    if (rc == 0) rc = build_symbols(bpe, unk, err);
    if (rc != 0) return rc;
    bpe->whole = msgl__calloc(bpe->vocab.num_ids, sizeof(*bpe->whole));
    return bpe->whole != NULL ? 0 : no_memory(err);
}
