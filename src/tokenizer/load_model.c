// SPDX-License-Identifier: Apache-2.0
//
// The BPE model of tokenizer.json: vocabulary, merges, flags; and what is worked out from them
// once.
#include <string.h>

#include "tokenizer/bpe.h"
#include "tokenizer/load.h"

static const char mark[] = "\xe2\x96\x81"; // U+2581

static int check_flags(const json_t *j, msgl_bpe *bpe, msgl_err *err)
{
    const json_t *type = msgl__j_get(j, "type");
    if (type != NULL && (!json_is_string(type) || strcmp(json_string_value(type), "BPE") != 0)) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "model: type \"%.40s\" is not supported; known: BPE",
                             json_is_string(type) ? json_string_value(type) : "?");
    }
    const json_t *dropout = msgl__j_get(j, "dropout");
    if (dropout != NULL && (!json_is_number(dropout) || json_number_value(dropout) != 0.0)) {
        return msgl__err_set(
            err, MSGL_EUNSUPPORTED,
            "model.dropout: only null or 0 is supported, as ids must be repeatable");
    }
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < MSGL_COUNT(affixes); i++) {
        const json_t *affix = msgl__j_get(j, affixes[i]);
        if (affix != NULL && (!json_is_string(affix) || json_string_length(affix) > 0)) {
            return msgl__err_set(err, MSGL_EUNSUPPORTED, "model.%s: only null or \"\" is supported",
                                 affixes[i]);
        }
    }
    int rc = msgl__j_bool(j, "model", "fuse_unk", 0, &bpe->fuse_unk, err);
    if (rc == 0) rc = msgl__j_bool(j, "model", "byte_fallback", 0, &bpe->byte_fallback, err);
    if (rc == 0) rc = msgl__j_bool(j, "model", "ignore_merges", 0, &bpe->ignore_merges, err);
    return rc;
}

static int add_token(msgl_bpe *bpe, const char *key, int32_t id, msgl_err *err)
{
    const char *other;
    size_t n;
    if ((other = msgl__strset_at(&bpe->vocab, id, &n)) != NULL) {
        return msgl__err_set(err, MSGL_EFORMAT, "model.vocab: id %d is both \"%.*s\" and \"%.40s\"",
                             (int)id, (int)(n < 40 ? n : 40), other, key);
    }
    const int rc = msgl__strset_add(&bpe->vocab, key, strlen(key), id);
    return rc == 0 ? 0 : msgl__err_set(err, rc, "model.vocab: %s", msgl__status_text(rc));
}

static int load_vocab(msgl_bpe *bpe, json_t *vocab, msgl_err *err)
{
    int rc = msgl__j_expect(vocab, "model.vocab", JSON_OBJECT, "an object of token: id", err);
    if (rc != 0) return rc;
    int64_t top = -1;
    size_t bytes = 1;
    const char *key;
    json_t *value;
    json_object_foreach(vocab, key, value)
    {
        const int64_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id >= MSGL_TOK_MAX_ID) {
            return msgl__err_set(err, MSGL_EFORMAT,
                                 "model.vocab: \"%.40s\" needs an integer id from 0 to %d", key,
                                 MSGL_TOK_MAX_ID - 1);
        }
        if (id > top) top = id;
        bytes += strlen(key);
    }
    if (top < 0) return msgl__err_set(err, MSGL_EFORMAT, "model.vocab: empty");
    if (msgl__strset_init(&bpe->vocab, (size_t)top + 1, json_object_size(vocab), bytes) != 0) {
        return msgl__j_enomem(err);
    }
    json_object_foreach(vocab, key, value)
    {
        rc = add_token(bpe, key, (int32_t)json_integer_value(value), err);
        if (rc != 0) return rc;
    }
    return 0;
}

// The two sides of a merge: "a b" or ["a", "b"].
static int merge_sides(const json_t *j, size_t i, msgl_tok_str side[2], msgl_err *err)
{
    side[0].n = side[1].n = 0;
    if (json_is_string(j)) {
        char *p = (char *)json_string_value(j);
        char *space = memchr(p, ' ', json_string_length(j));
        if (space != NULL) {
            side[0] = (msgl_tok_str){p, (size_t)(space - p)};
            side[1] = (msgl_tok_str){space + 1, json_string_length(j) - side[0].n - 1};
            if (memchr(side[1].p, ' ', side[1].n) != NULL) side[1].n = 0;
        }
    } else if (json_is_array(j) && json_array_size(j) == 2) {
        for (size_t k = 0; k < 2; k++) {
            const json_t *s = json_array_get(j, k);
            if (json_is_string(s)) {
                side[k] = (msgl_tok_str){(char *)json_string_value(s), json_string_length(s)};
            }
        }
    }
    if (side[0].n > 0 && side[1].n > 0) return 0;
    return msgl__err_set(err, MSGL_EFORMAT,
                         "model.merges[%zu]: expected \"left right\" or [\"left\", \"right\"]", i);
}

static int find_token(const msgl_bpe *bpe, const msgl_tok_str *s, size_t i, int32_t *id,
                      msgl_err *err)
{
    *id = msgl__strset_get(&bpe->vocab, s->p, s->n);
    if (*id >= 0) return 0;
    return msgl__err_set(err, MSGL_EFORMAT,
                         "model.merges[%zu]: token \"%.*s\" is not in model.vocab", i,
                         (int)(s->n < 60 ? s->n : 60), s->p);
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

static int load_merges(msgl_bpe *bpe, const json_t *merges, msgl_err *err)
{
    int rc = msgl__j_expect(merges, "model.merges", JSON_ARRAY, "an array", err);
    if (rc != 0) return rc;
    const size_t n = json_array_size(merges);
    bpe->merge_bits = 4;
    while (((size_t)1 << bpe->merge_bits) < n + n / 2) bpe->merge_bits++;
    const size_t slots = (size_t)1 << bpe->merge_bits;
    bpe->merges = msgl__malloc(slots * sizeof(*bpe->merges));
    msgl_strset *v = &bpe->vocab;
    char *joined = msgl__malloc(v->pool_len + 1); // no merged token is longer than the vocabulary
    if (bpe->merges == NULL || joined == NULL) {
        msgl__free(joined);
        return msgl__j_enomem(err);
    }
    memset(bpe->merges, 0xff, slots * sizeof(*bpe->merges));
    bpe->word_split = msgl__strset_get(v, mark, 3) >= 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        const json_t *j = json_array_get(merges, i);
        if (json_is_string(j) && strncmp(json_string_value(j), "#version", 8) == 0) continue;
        msgl_tok_str side[2], both;
        int32_t left, right, id;
        rc = merge_sides(j, i, side, err);
        if (rc == 0) rc = find_token(bpe, &side[0], i, &left, err);
        if (rc == 0) rc = find_token(bpe, &side[1], i, &right, err);
        if (rc != 0) break;
        both = (msgl_tok_str){joined, side[0].n + side[1].n};
        if (both.n > v->pool_len) {
            rc = msgl__err_set(err, MSGL_EFORMAT,
                               "model.merges[%zu]: the merged token is not in model.vocab", i);
            break;
        }
        memcpy(joined, side[0].p, side[0].n);
        memcpy(joined + side[0].n, side[1].p, side[1].n);
        rc = find_token(bpe, &both, i, &id, err);
        if (rc == 0) put_merge(bpe, msgl__merge_key(left, right), (uint32_t)i, id);
        if (side[1].n >= 3 && memcmp(side[1].p, mark, 3) == 0 && !ends_with_mark(&side[0])) {
            bpe->word_split = 0;
        }
    }
    msgl__free(joined);
    return rc;
}

// The vocabulary by raw bytes: tokens whose characters all belong to the byte-level alphabet.
static int build_bytes(msgl_bpe *bpe, msgl_err *err)
{
    msgl_strset *v = &bpe->vocab;
    if (msgl__strset_init(&bpe->bytes, v->num_ids, v->num_ids, v->pool_len + 1) != 0) {
        return msgl__j_enomem(err);
    }
    char *raw = msgl__malloc(v->pool_len + 1);
    if (raw == NULL) return msgl__j_enomem(err);
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

static int build_symbols(msgl_bpe *bpe, const json_t *j, msgl_err *err)
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
    msgl_tok_str unk;
    const int rc = msgl__j_string(j, "model", "unk_token", 1, &unk, err);
    if (rc != 0) return rc;
    if (unk.p == NULL) {
        // What is no token vanishes, and the words around it can join.
        if (!all_bytes) bpe->word_split = 0;
        return 0;
    }
    bpe->unk = msgl__strset_get(&bpe->vocab, unk.p, unk.n);
    if (ends_with_mark(&unk)) bpe->word_split = 0;
    msgl__free(unk.p);
    // With a symbol for every byte nothing is ever unknown, and files name any token here.
    if (bpe->unk >= 0 || (bpe->byte_mode && complete)) return 0;
    return msgl__err_set(err, MSGL_EFORMAT, "model.unk_token: not in model.vocab");
}

int msgl__load_model(msgl_tokenizer *t, const json_t *j, msgl_err *err)
{
    msgl_bpe *bpe = &t->bpe;
    int rc = msgl__j_expect(j, "model", JSON_OBJECT, "an object", err);
    if (rc == 0) rc = check_flags(j, bpe, err);
    if (rc == 0) rc = load_vocab(bpe, msgl__j_get(j, "vocab"), err);
    if (rc == 0) rc = load_merges(bpe, msgl__j_get(j, "merges"), err);
    if (rc != 0) return rc;
    bpe->byte_mode =
        t->num_pretoks > 0 && t->pretoks[t->num_pretoks - 1].type == MSGL_PRETOK_BYTE_LEVEL;
    if (bpe->byte_mode) {
        bpe->word_split = 0;
        rc = build_bytes(bpe, err);
    }
    if (rc == 0) rc = build_symbols(bpe, j, err);
    if (rc != 0) return rc;
    bpe->whole = msgl__calloc(bpe->vocab.num_ids, sizeof(*bpe->whole));
    return bpe->whole != NULL ? 0 : msgl__j_enomem(err);
}
