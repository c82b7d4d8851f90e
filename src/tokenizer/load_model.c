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

static int malformed(const msgl_jscan *s, const char *where, msgl_err *err)
{
    return msgl__err_set(err, MSGL_EFORMAT, "%s: malformed JSON at byte %zu", where, s->i);
}

static int bad_id(const char *key, size_t n, msgl_err *err)
{
    return msgl__err_set(err, MSGL_EFORMAT,
                         "model.vocab: \"%.*s\" needs an integer id from 0 to %d",
                         (int)(n < 40 ? n : 40), key, MSGL_TOK_MAX_ID - 1);
}

// What the first pass over the vocabulary finds.
typedef struct vocab_size {
    int64_t top; // largest id
    size_t count, bytes;
} vocab_size;

static int measure_vocab(const msgl_jspan *r, vocab_size *size, msgl_err *err)
{
    msgl_jscan s = msgl__jscan(r);
    *size = (vocab_size){.top = -1, .bytes = 1};
    if (!msgl__jscan_take(&s, '{')) {
        return msgl__err_set(err, MSGL_EFORMAT, "model.vocab: expected an object of token: id");
    }
    while (msgl__jscan_peek(&s) == '"') {
        size_t raw;
        int64_t id = -1;
        if (!msgl__jscan_skip_string(&s, &raw)) return malformed(&s, "model.vocab", err);
        const char *key = s.text + s.i - 1 - raw;
        if (!msgl__jscan_take(&s, ':')) return malformed(&s, "model.vocab", err);
        if (!msgl__jscan_int(&s, &id) || id < 0 || id >= MSGL_TOK_MAX_ID) {
            return bad_id(key, raw, err);
        }
        if (id > size->top) size->top = id;
        size->count++;
        size->bytes += raw;
        if (!msgl__jscan_take(&s, ',')) break;
        if (msgl__jscan_peek(&s) != '"') return malformed(&s, "model.vocab", err);
    }
    if (!msgl__jscan_take(&s, '}')) return malformed(&s, "model.vocab", err);
    if (size->count == 0) return msgl__err_set(err, MSGL_EFORMAT, "model.vocab: empty");
    if ((int64_t)size->count <= size->top + 1) return 0;
    return msgl__err_set(err, MSGL_EFORMAT,
                         "model.vocab: %zu tokens with ids up to %lld, so that some share one",
                         size->count, (long long)size->top);
}

static int add_token(msgl_bpe *bpe, const msgl_strbuf *key, int32_t id, msgl_err *err)
{
    const char *other;
    size_t n;
    if ((other = msgl__strset_at(&bpe->vocab, id, &n)) != NULL) {
        return msgl__err_set(err, MSGL_EFORMAT, "model.vocab: id %d is both \"%.*s\" and \"%.40s\"",
                             (int)id, (int)(n < 40 ? n : 40), other, msgl__strbuf_str(key));
    }
    const int rc = msgl__strset_add(&bpe->vocab, msgl__strbuf_str(key), key->len, id);
    if (rc == MSGL_EINVAL) {
        return msgl__err_set(err, MSGL_EFORMAT, "model.vocab: \"%.40s\" occurs twice",
                             msgl__strbuf_str(key));
    }
    return rc == 0 ? 0 : msgl__err_set(err, rc, "model.vocab: %s", msgl__status_text(rc));
}

static int load_vocab(msgl_bpe *bpe, const msgl_jspan *r, msgl_err *err)
{
    vocab_size size;
    int rc = measure_vocab(r, &size, err);
    if (rc != 0) return rc;
    if (msgl__strset_init(&bpe->vocab, (size_t)size.top + 1, size.count, size.bytes) != 0) {
        return msgl__j_enomem(err);
    }
    msgl_jscan s = msgl__jscan(r);
    msgl_strbuf key;
    msgl__strbuf_init(&key, MSGL_TOK_MAX_FILE);
    (void)msgl__jscan_take(&s, '{');
    for (size_t i = 0; i < size.count && rc == 0; i++) {
        int64_t id = 0;
        msgl__strbuf_clear(&key);
        const int got = msgl__jscan_string(&s, &key);
        if (got < 0) {
            rc = msgl__j_enomem(err);
        } else if (got == 0) {
            rc = malformed(&s, "model.vocab", err);
        } else { // the first pass has seen the rest
            (void)msgl__jscan_take(&s, ':');
            (void)msgl__jscan_int(&s, &id);
            (void)msgl__jscan_take(&s, ',');
            rc = add_token(bpe, &key, (int32_t)id, err);
        }
    }
    msgl__strbuf_free(&key);
    return rc;
}

// The two sides of a merge, "a b" or ["a", "b"], decoded one behind the other into *both. `split`
// is the length of the first. 1; 0: not a merge; MSGL_ENOMEM, MSGL_ELIMIT.
static int merge_sides(msgl_jscan *s, msgl_strbuf *both, size_t *split)
{
    msgl__strbuf_clear(both);
    if (msgl__jscan_take(s, '[')) {
        int rc = msgl__jscan_string(s, both);
        if (rc != 1 || !msgl__jscan_take(s, ',')) return rc < 0 ? rc : 0;
        *split = both->len;
        rc = msgl__jscan_string(s, both);
        if (rc != 1 || !msgl__jscan_take(s, ']')) return rc < 0 ? rc : 0;
        return *split > 0 && both->len > *split;
    }
    const int rc = msgl__jscan_string(s, both);
    if (rc != 1) return rc;
    const char *p = msgl__strbuf_str(both), *space = memchr(p, ' ', both->len);
    if (space == NULL || space == p || space + 1 == p + both->len) return 0;
    *split = (size_t)(space - p);
    if (memchr(space + 1, ' ', both->len - *split - 1) != NULL) return 0;
    memmove(both->data + *split, space + 1, both->len - *split); // with the final NUL
    both->len--;
    return 1;
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

static int add_merge(msgl_bpe *bpe, const msgl_strbuf *both, size_t split, size_t i, msgl_err *err)
{
    msgl_tok_str left = {both->data, split}, right = {both->data + split, both->len - split};
    const msgl_tok_str all = {both->data, both->len};
    int32_t left_id, right_id, id;
    int rc = find_token(bpe, &left, i, &left_id, err);
    if (rc == 0) rc = find_token(bpe, &right, i, &right_id, err);
    if (rc == 0) rc = find_token(bpe, &all, i, &id, err);
    if (rc != 0) return rc;
    put_merge(bpe, msgl__merge_key(left_id, right_id), (uint32_t)i, id);
    if (right.n >= 3 && memcmp(right.p, mark, 3) == 0 && !ends_with_mark(&left))
        bpe->word_split = 0;
    return 0;
}

static int load_merges(msgl_bpe *bpe, const msgl_jspan *r, msgl_err *err)
{
    msgl_jscan s = msgl__jscan(r);
    if (!msgl__jscan_take(&s, '[')) {
        return msgl__err_set(err, MSGL_EFORMAT, "model.merges: expected an array");
    }
    const size_t n = msgl__jscan_count(r);
    if (n > MSGL_TOK_MAX_MERGES) {
        return msgl__err_set(err, MSGL_ELIMIT, "model.merges: %zu of them; at most %zu", n,
                             MSGL_TOK_MAX_MERGES);
    }
    bpe->merge_bits = 4;
    while (((size_t)1 << bpe->merge_bits) < n + n / 2) bpe->merge_bits++;
    const size_t slots = (size_t)1 << bpe->merge_bits;
    bpe->merges = msgl__malloc(slots * sizeof(*bpe->merges));
    if (bpe->merges == NULL) return msgl__j_enomem(err);
    memset(bpe->merges, 0xff, slots * sizeof(*bpe->merges));
    bpe->word_split = msgl__strset_get(&bpe->vocab, mark, 3) >= 0;
    msgl_strbuf both;
    msgl__strbuf_init(&both, MSGL_TOK_MAX_FILE);
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        size_t split = 0;
        const int line = msgl__jscan_peek(&s) == '"', got = merge_sides(&s, &both, &split);
        if (got < 0) {
            rc = msgl__j_enomem(err);
        } else if (line && (got == 0 || split >= 8) && both.len >= 8 &&
                   memcmp(both.data, "#version", 8) == 0) {
            // the first line of a merges.txt
        } else if (got == 0) {
            rc = msgl__err_set(
                err, MSGL_EFORMAT,
                "model.merges[%zu]: expected \"left right\" or [\"left\", \"right\"]", i);
        } else {
            rc = add_merge(bpe, &both, split, i, err);
        }
        if (rc == 0 && i + 1 < n && !msgl__jscan_take(&s, ',')) {
            rc = malformed(&s, "model.merges", err);
        }
    }
    if (rc == 0 && !msgl__jscan_take(&s, ']')) rc = malformed(&s, "model.merges", err);
    msgl__strbuf_free(&both);
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

int msgl__load_model(msgl_tokenizer *t, const json_t *j, const msgl_jspan *vocab,
                     const msgl_jspan *merges, msgl_err *err)
{
    msgl_bpe *bpe = &t->bpe;
    int rc = msgl__j_expect(j, "model", JSON_OBJECT, "an object", err);
    if (rc == 0) rc = check_flags(j, bpe, err);
    if (rc == 0) rc = load_vocab(bpe, vocab, err);
    if (rc == 0) rc = load_merges(bpe, merges, err);
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
