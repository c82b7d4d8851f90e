// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/load_gguf.h"

#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "tokenizer/build.h"
#include "tokenizer/gguf_pre.h"
#include "tokenizer/load.h"
#include "utils/log.h"

#define TOKENS "tokenizer.ggml.tokens"
#define MARK "\xe2\x96\x81" // U+2581

// tokenizer.ggml.token_type
enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6 };

static const msgl_model_names names = {.vocab = TOKENS, .merges = "tokenizer.ggml.merges"};

typedef struct source {
    const msgl_gguf *g;
    json_t *meta;                                   // small values
    const msgl_gguf_value *tokens, *types, *scores; // the last two may be NULL
    int pieces;                                     // SentencePiece's, not GPT-2's bytes
    int scored;                                     // merges follow from scores
    int add_bos;                                    // unless the file says
    msgl_err *err;
} source;

static int type_of(const source *s, size_t id)
{
    return s->types != NULL ? msgl__gguf_i32(s->types, id) : NORMAL;
}

static int read_bool(const source *s, const char *key, int missing, int *out)
{
    return msgl__j_bool(s->meta, "metadata", key, missing, out, s->err);
}

// The lists, all as long as that of the tokens.
static int read_lists(source *s)
{
    int rc = msgl__gguf_array(s->g, TOKENS, MSGL_GGUF_STRING, &s->tokens, s->err);
    if (rc == 0) {
        rc = msgl__gguf_array(s->g, "tokenizer.ggml.token_type", MSGL_GGUF_I32, &s->types, s->err);
    }
    if (rc == 0) {
        rc = msgl__gguf_array(s->g, "tokenizer.ggml.scores", MSGL_GGUF_F32, &s->scores, s->err);
    }
    if (rc != 0) return rc;
    const size_t n = s->tokens != NULL ? s->tokens->count : 0;
    if (n == 0 || n > MSGL_TOK_MAX_ID) {
        return msgl__err_set(s->err, n == 0 ? MSGL_EFORMAT : MSGL_ELIMIT,
                             TOKENS ": found %zu, allowed 1 to %d", n, MSGL_TOK_MAX_ID);
    }
    const msgl_gguf_value *const lists[] = {s->types, s->scores};
    for (size_t i = 0; i < MSGL_COUNT(lists); i++) {
        if (lists[i] == NULL || lists[i]->count == n) continue;
        return msgl__err_set(s->err, MSGL_EFORMAT,
                             "%.*s: found %zu, allowed one for each of %zu "
                             "tokens",
                             (int)lists[i]->key.n, lists[i]->key.p, lists[i]->count, n);
    }
    return 0;
}

// ---- pipeline ----

// Calls a loader of load.h with a component that is freed behind it.
typedef int load_section(msgl_tokenizer *t, const json_t *j, msgl_err *err);

static int load_section_of(msgl_tokenizer *t, load_section *load, json_t *j, msgl_err *err)
{
    const int rc = j == NULL ? msgl__j_enomem(err) : load(t, j, err);
    json_decref(j);
    return rc;
}

static int add_split(json_t *steps, const char *pattern)
{
    return json_array_append_new(steps,
                                 json_pack("{s:s,s:{s:s},s:s,s:b}", "type", "Split", "pattern",
                                           "Regex", pattern, "behavior", "Isolated", "invert", 0));
}

static json_t *pre_tokenizer(const msgl_gguf_pre *p)
{
    json_t *steps = json_array();
    const bool own = p->scan == MSGL_SCAN_NONE && p->patterns[0] == NULL;
    int bad = 0;
    if (p->digits) {
        bad |= json_array_append_new(
            steps, json_pack("{s:s,s:b}", "type", "Digits", "individual_digits", 1));
    }
    if (p->scan != MSGL_SCAN_NONE) bad |= add_split(steps, msgl__scan_pattern(p->scan));
    for (int i = 0; i < MSGL_GGUF_MAX_PATTERNS && p->patterns[i] != NULL; i++) {
        bad |= add_split(steps, p->patterns[i]);
    }
    bad |= json_array_append_new(steps, json_pack("{s:s,s:b,s:b}", "type", "ByteLevel",
                                                  "add_prefix_space", 0, "use_regex", (int)own));
    if (!bad) return json_pack("{s:s,s:o}", "type", "Sequence", "pretokenizers", steps);
    json_decref(steps);
    return NULL;
}

static int load_byte_level(const source *s, const msgl_gguf_pre *p, msgl_tokenizer *t)
{
    int rc = 0;
    t->bpe.ignore_merges = p->ignore_merges;
    if (p->nfc) {
        rc = load_section_of(t, msgl__load_normalizer, json_pack("{s:s}", "type", "NFC"), s->err);
    }
    if (rc == 0) rc = load_section_of(t, msgl__load_pre_tokenizer, pre_tokenizer(p), s->err);
    if (rc != 0) return rc;
    return load_section_of(t, msgl__load_decoder, json_pack("{s:s}", "type", "ByteLevel"), s->err);
}

// Spaces become marks, with one before the text as the file says, or else if `prefixes`; bytes
// stand for what is no piece.
static int load_sentence_piece(const source *s, int prefixes, msgl_tokenizer *t)
{
    int prefix, rc = read_bool(s, "tokenizer.ggml.add_space_prefix", prefixes, &prefix);
    if (rc != 0) return rc;
    t->bpe.byte_fallback = t->bpe.fuse_unk = 1;
    json_t *replace = json_pack("{s:s,s:{s:s},s:s}", "type", "Replace", "pattern", "String", " ",
                                "content", MARK);
    json_t *norm = json_pack("{s:s,s:[{s:s,s:s},o]}", "type", "Sequence", "normalizers", "type",
                             "Prepend", "prepend", MARK, replace);
    if (norm != NULL && !prefix) (void)json_array_remove(json_object_get(norm, "normalizers"), 0);
    json_t *dec = json_pack("{s:s,s:[{s:s,s:{s:s},s:s},{s:s},{s:s},{s:s,s:s,s:i,s:i}]}", "type",
                            "Sequence", "decoders", "type", "Replace", "pattern", "String", MARK,
                            "content", " ", "type", "ByteFallback", "type", "Fuse", "type", "Strip",
                            "content", " ", "start", prefix, "stop", 0);
    rc = load_section_of(t, msgl__load_normalizer, norm, s->err);
    if (rc != 0) {
        json_decref(dec);
        return rc;
    }
    return load_section_of(t, msgl__load_decoder, dec, s->err);
}

static int unknown(const source *s, const char *key, const json_t *found, const char *known)
{
    return msgl__err_set(s->err, MSGL_EUNSUPPORTED, "%s: \"%.40s\" is not supported; known: %s",
                         key, json_is_string(found) ? json_string_value(found) : "", known);
}

// Once in a process, however many of its threads read the file.
static void say_default(const char *file)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    const msgl_log log = msgl__log_default();
    if (atomic_flag_test_and_set(&said)) return;
    msgl__log(
        &log, MSGL_LOG_WARN,
        "%s: tokenizer.ggml.pre: missing, as in files from before May 2024; llama.cpp's default "
        "is taken, which may split text otherwise than the model's own tokenizer",
        file);
}

static int load_pipeline(source *s, msgl_tokenizer *t)
{
    const json_t *model = json_object_get(s->meta, "tokenizer.ggml.model");
    const json_t *name = json_object_get(s->meta, "tokenizer.ggml.pre");
    const char *kind = json_is_string(model) ? json_string_value(model) : "";
    s->scored = strcmp(kind, "llama") == 0;
    s->pieces = s->scored || strcmp(kind, "gemma4") == 0; // which has merges of its own
    s->add_bos = s->pieces;
    if (s->pieces) return load_sentence_piece(s, s->scored, t);
    if (strcmp(kind, "gpt2") != 0) {
        return unknown(s, "tokenizer.ggml.model", model, "gpt2, llama, gemma4");
    }
    const char *pre = json_is_string(name) ? json_string_value(name) : "";
    if (pre[0] == '\0') say_default(s->g->file);
    const msgl_gguf_pre *p = msgl__gguf_pre_find(pre[0] != '\0' ? pre : "default");
    if (p == NULL) {
        return msgl__err_set(s->err, MSGL_EUNSUPPORTED,
                             "tokenizer.ggml.pre: \"%.40s\" is not a pre-tokenizer that is known",
                             pre);
    }
    s->add_bos = p->add_bos;
    return load_byte_level(s, p, t);
}

// ---- model ----

static int check_token(const source *s, size_t id, msgl_gguf_str text)
{
    const size_t valid = msgl__utf8_valid(text.p, text.n);
    if (valid == text.n) return 0;
    return msgl__err_set(s->err, MSGL_EFORMAT, TOKENS "[%zu]: not valid UTF-8 at byte %zu", id,
                         valid);
}

// Ids without a token: those that only fill the vocabulary up.
static int is_token(const source *s, size_t id, msgl_gguf_str text)
{
    return text.n > 0 && type_of(s, id) != UNUSED;
}

static int load_vocab(const source *s, msgl_bpe *bpe)
{
    size_t at = 0, bytes = 1, count = 0, ids = 0;
    int rc = 0;
    for (size_t id = 0; id < s->tokens->count && rc == 0; id++) {
        const msgl_gguf_str text = msgl__gguf_next(s->tokens, &at);
        if (!is_token(s, id, text)) continue;
        rc = check_token(s, id, text);
        bytes += text.n;
        count++;
        ids = id + 1;
    }
    if (rc == 0 && count == 0) {
        rc = msgl__err_set(s->err, MSGL_EFORMAT, TOKENS ": all of them are empty or unused");
    }
    if (rc == 0 && bytes > MSGL_TOK_MAX_FILE) {
        rc = msgl__err_set(s->err, MSGL_ELIMIT, TOKENS ": %zu bytes; at most %zu", bytes,
                           MSGL_TOK_MAX_FILE);
    }
    if (rc == 0) rc = msgl__model_vocab(bpe, ids, count, bytes, s->err);
    at = 0;
    for (size_t id = 0; id < ids && rc == 0; id++) {
        const msgl_gguf_str text = msgl__gguf_next(s->tokens, &at);
        if (!is_token(s, id, text)) continue;
        rc = msgl__model_token(bpe, &names, text.p, text.n, (int32_t)id, s->err);
    }
    return rc;
}

static int load_merges(const source *s, msgl_bpe *bpe)
{
    const msgl_gguf_value *v;
    int rc = msgl__gguf_array(s->g, names.merges, MSGL_GGUF_STRING, &v, s->err);
    const size_t n = v != NULL ? v->count : 0;
    if (rc == 0) rc = msgl__model_merges(bpe, &names, n, s->err);
    msgl_strbuf both;
    msgl__strbuf_init(&both, MSGL_TOK_MAX_FILE);
    for (size_t i = 0, at = 0; i < n && rc == 0; i++) {
        const msgl_gguf_str line = msgl__gguf_next(v, &at);
        size_t split;
        msgl__strbuf_clear(&both);
        if (msgl__strbuf_add(&both, line.p, line.n) != 0) {
            rc = msgl__j_enomem(s->err);
        } else if (!msgl__merge_split(&both, &split)) {
            rc = msgl__err_set(s->err, MSGL_EFORMAT, "%s[%zu]: expected \"left right\"",
                               names.merges, i);
        } else {
            rc = msgl__model_merge(bpe, &names, &both, split, i, s->err);
        }
    }
    msgl__strbuf_free(&both);
    return rc;
}

// Merges that follow from scores; only ordinary pieces are merged.
static int load_scores(const source *s, msgl_bpe *bpe)
{
    if (s->scores == NULL) {
        return msgl__err_set(s->err, MSGL_EFORMAT,
                             "tokenizer.ggml.scores: missing, tokenizer.ggml.model llama needs it");
    }
    const size_t n = bpe->vocab.num_ids;
    float *scores = msgl__malloc(n * sizeof(*scores));
    if (scores == NULL) return msgl__j_enomem(s->err);
    int rc = 0;
    for (size_t id = 0; id < n && rc == 0; id++) {
        const float score = msgl__gguf_f32(s->scores, id);
        size_t len;
        const int piece =
            type_of(s, id) == NORMAL && msgl__strset_at(&bpe->vocab, (int32_t)id, &len) != NULL;
        scores[id] = piece ? score : NAN;
        if (!isnan(score)) continue;
        rc = msgl__err_set(s->err, MSGL_EFORMAT,
                           "tokenizer.ggml.scores[%zu]: found nan, allowed numbers", id);
    }
    if (rc == 0) rc = msgl__score_merges(bpe, scores, false, TOKENS, s->err);
    msgl__free(scores);
    return rc;
}

// The token for what is no piece, when the file has one.
static msgl_tok_str unknown_token(const source *s, const msgl_bpe *bpe)
{
    msgl_tok_str unk = {0};
    for (size_t id = 0; id < bpe->vocab.num_ids && s->pieces && unk.p == NULL; id++) {
        if (type_of(s, id) != UNKNOWN) continue;
        unk.p = (char *)msgl__strset_at(&bpe->vocab, (int32_t)id, &unk.n);
    }
    return unk;
}

static int load_model(const source *s, msgl_tokenizer *t)
{
    msgl_bpe *bpe = &t->bpe;
    int rc = load_vocab(s, bpe);
    if (rc == 0) rc = s->scored ? load_scores(s, bpe) : load_merges(s, bpe);
    if (rc != 0) return rc;
    const msgl_tok_str unk = unknown_token(s, bpe);
    return msgl__model_finish(t, &unk, s->err);
}

// ---- added tokens, and those around a text ----

static int load_added(const source *s, msgl_tokenizer *t)
{
    json_t *list = json_array();
    int bad = list == NULL;
    for (size_t id = 0; id < t->bpe.vocab.num_ids; id++) {
        size_t n;
        const int type = type_of(s, id);
        const char *p = msgl__strset_at(&t->bpe.vocab, (int32_t)id, &n);
        if (p == NULL || (type != CONTROL && type != UNKNOWN && type != USER_DEFINED)) continue;
        bad |= json_array_append_new(list,
                                     json_pack("{s:i,s:s%,s:b,s:b}", "id", (int)id, "content", p, n,
                                               "special", type != USER_DEFINED, "normalized", 0));
    }
    const int rc = bad ? msgl__j_enomem(s->err) : msgl__load_added(t, list, NULL, s->err);
    json_decref(list);
    return rc;
}

// The token that `add_key` wants beside the text; -1: none.
static int read_edge(const source *s, const msgl_tokenizer *t, const char *add_key, int missing,
                     const char *id_key, int64_t *id)
{
    int add, rc = read_bool(s, add_key, missing, &add);
    if (rc == 0) {
        rc = msgl__j_int(s->meta, "metadata", id_key, 0, t->vocab_size - 1, -1, id, s->err);
    }
    if (rc != 0) return rc;
    if (add && *id < 0 && json_object_get(s->meta, add_key) != NULL) {
        return msgl__err_set(s->err, MSGL_EFORMAT, "%s: missing, %s is true", id_key, add_key);
    }
    if (!add) *id = -1;
    return 0;
}

static int load_edges(const source *s, msgl_tokenizer *t)
{
    int64_t bos = -1, eos = -1;
    int rc = read_edge(s, t, "tokenizer.ggml.add_bos_token", s->add_bos,
                       "tokenizer.ggml.bos_token_id", &bos);
    if (rc == 0) {
        rc =
            read_edge(s, t, "tokenizer.ggml.add_eos_token", 0, "tokenizer.ggml.eos_token_id", &eos);
    }
    if (rc != 0) return rc;
    t->post = msgl__malloc(3 * sizeof(*t->post));
    if (t->post == NULL) return msgl__j_enomem(s->err);
    if (bos >= 0) t->post[t->num_post++] = (int32_t)bos;
    t->post[t->num_post++] = MSGL_POST_SEQUENCE;
    if (eos >= 0) t->post[t->num_post++] = (int32_t)eos;
    return 0;
}

int msgl__tokenizer_from_gguf(const msgl_gguf *g, msgl_tokenizer **out, msgl_err *err)
{
    source s = {.g = g, .err = err};
    msgl_tokenizer *t = NULL;
    *out = NULL;
    int rc = msgl__gguf_metadata(g, &s.meta, err);
    if (rc != 0) return rc;
    rc = msgl__tokenizer_create(&t, err);
    if (rc == 0) rc = read_lists(&s);
    if (rc == 0) rc = load_pipeline(&s, t);
    if (rc == 0) rc = load_model(&s, t);
    if (rc == 0) rc = load_added(&s, t);
    if (rc == 0) rc = load_edges(&s, t);
    json_decref(s.meta);
    if (rc != 0) {
        msgl__tokenizer_free(t);
        return msgl__err_prefix(err, rc, "%s", g->file);
    }
    *out = t;
    return 0;
}
