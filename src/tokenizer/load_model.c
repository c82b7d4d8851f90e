// SPDX-License-Identifier: Apache-2.0
//
// The model of tokenizer.json: BPE and WordPiece here, Unigram in load_unigram.c.
#include <string.h>

#include "tokenizer/build.h"
#include "tokenizer/load.h"
#include "tokenizer/wordpiece.h"

static const msgl_model_names names = {.vocab = "model.vocab", .merges = "model.merges"};

static int check_flags(const json_t *j, msgl_bpe *bpe, msgl_err *err)
{
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

static int load_vocab(msgl_bpe *bpe, const msgl_jspan *r, msgl_err *err)
{
    vocab_size size;
    int rc = measure_vocab(r, &size, err);
    if (rc != 0) return rc;
    rc = msgl__model_vocab(bpe, (size_t)size.top + 1, size.count, size.bytes, err);
    if (rc != 0) return rc;
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
            rc = msgl__model_token(bpe, &names, msgl__strbuf_str(&key), key.len, (int32_t)id, err);
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
    return msgl__merge_split(both, split);
}

static int load_merges(msgl_bpe *bpe, const msgl_jspan *r, msgl_err *err)
{
    msgl_jscan s = msgl__jscan(r);
    if (!msgl__jscan_take(&s, '[')) {
        return msgl__err_set(err, MSGL_EFORMAT, "model.merges: expected an array");
    }
    const size_t n = msgl__jscan_count(r);
    int rc = msgl__model_merges(bpe, &names, n, err);
    if (rc != 0) return rc;
    msgl_strbuf both;
    msgl__strbuf_init(&both, MSGL_TOK_MAX_FILE);
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
            rc = msgl__model_merge(bpe, &names, &both, split, i, err);
        }
        if (rc == 0 && i + 1 < n && !msgl__jscan_take(&s, ',')) {
            rc = malformed(&s, "model.merges", err);
        }
    }
    if (rc == 0 && !msgl__jscan_take(&s, ']')) rc = malformed(&s, "model.merges", err);
    msgl__strbuf_free(&both);
    return rc;
}

static int load_wordpiece(msgl_tokenizer *t, const json_t *j, const msgl_jspan *vocab,
                          msgl_err *err)
{
    enum { MAX_CHARS = 100, MOST_CHARS = 10000 };
    msgl_tok_str unk = {0}, prefix = {0};
    int64_t max_chars = 0;
    t->model = MSGL_MODEL_WORDPIECE;
    int rc = load_vocab(&t->bpe, vocab, err);
    if (rc == 0) rc = msgl__j_string(j, "model", "unk_token", 0, &unk, err);
    if (rc == 0) rc = msgl__j_string(j, "model", "continuing_subword_prefix", 0, &prefix, err);
    if (rc == 0) {
        rc = msgl__j_int(j, "model", "max_input_chars_per_word", 1, MOST_CHARS, MAX_CHARS,
                         &max_chars, err);
    }
    t->wordpiece.max_chars = (size_t)max_chars;
    if (rc == 0) t->wordpiece.unk = msgl__strset_get(&t->bpe.vocab, unk.p, unk.n);
    if (rc == 0 && t->wordpiece.unk < 0) {
        rc = msgl__err_set(err, MSGL_EFORMAT, "model.unk_token: not in model.vocab");
    }
    if (rc == 0) rc = msgl__wordpiece_build(t, &prefix, err);
    msgl__free(unk.p);
    msgl__free(prefix.p);
    return rc;
}

int msgl__load_model(msgl_tokenizer *t, const json_t *j, const msgl_jspan *vocab,
                     const msgl_jspan *merges, msgl_err *err)
{
    msgl_bpe *bpe = &t->bpe;
    int rc = msgl__j_expect(j, "model", JSON_OBJECT, "an object", err);
    if (rc != 0) return rc;
    const json_t *given = msgl__j_get(j, "type");
    const char *type = given == NULL           ? "BPE"
                       : json_is_string(given) ? json_string_value(given)
                                               : "?";
    if (strcmp(type, "WordPiece") == 0) return load_wordpiece(t, j, vocab, err);
    if (strcmp(type, "Unigram") == 0) return msgl__load_unigram(t, j, vocab, err);
    if (strcmp(type, "BPE") != 0) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "model: type \"%.40s\" is not supported; known: BPE WordPiece Unigram",
                             type);
    }
    rc = check_flags(j, bpe, err);
    if (rc == 0) rc = load_vocab(bpe, vocab, err);
    if (rc == 0) rc = load_merges(bpe, merges, err);
    if (rc != 0) return rc;
    msgl_tok_str unk;
    rc = msgl__j_string(j, "model", "unk_token", 1, &unk, err);
    if (rc != 0) return rc;
    rc = msgl__model_finish(t, &unk, err);
    msgl__free(unk.p);
    return rc;
}
