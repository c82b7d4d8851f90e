// SPDX-License-Identifier: Apache-2.0
//
// From the files of a model folder to a tokenizer.
#include "tokenizer/load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/added.h"
#include "tokenizer/charsmap.h"
#include "tokenizer/unigram.h"
#include "tokenizer/wordpiece.h"
#include "tokenizer/load_gguf.h"
#include "tokenizer/load_tiktoken.h"
#include "utils/file.h"
#include "utils/json.h"

// ---- added tokens ----

static int load_flags(const json_t *j, const char *where, msgl_added *a, msgl_err *err)
{
    int rc = msgl__j_bool(j, where, "special", 0, &a->special, err);
    if (rc == 0) rc = msgl__j_bool(j, where, "single_word", 0, &a->single_word, err);
    if (rc == 0) rc = msgl__j_bool(j, where, "lstrip", 0, &a->lstrip, err);
    if (rc == 0) rc = msgl__j_bool(j, where, "rstrip", 0, &a->rstrip, err);
    if (rc == 0) rc = msgl__j_bool(j, where, "normalized", !a->special, &a->normalized, err);
    if (rc == 0) rc = msgl__j_string(j, where, "content", 0, &a->content, err);
    if (rc == 0 && a->content.n > MSGL_TOK_MAX_ADDED_LEN) {
        rc = msgl__err_set(err, MSGL_ELIMIT, "%s.content: %zu bytes; at most %d", where,
                           a->content.n, MSGL_TOK_MAX_ADDED_LEN);
    }
    return rc;
}

static void added_free(msgl_added *a)
{
    msgl__free(a->content.p);
    msgl__free(a->normed.p);
}

// Added contents by text, to find doubles while loading.
typedef struct added_list {
    msgl_tokenizer *t;
    msgl_strset by_content; // ids: index into t->added
    int32_t next;           // id of the next one that is new
} added_list;

// Ids begin behind as many as the vocabulary has tokens, whatever ids these have.
static int32_t first_new_id(const msgl_strset *vocab)
{
    int32_t n = 0;
    for (size_t i = 0; i < vocab->num_ids; i++) n += vocab->len[i] != MSGL_STRSET_NONE;
    return n;
}

// Takes over *a, and gives it an id as `tokenizers` does: that of the vocabulary's token of this
// content, else the next new one; the files' ids say nothing but an order. A content that is there
// already: a later entry of the same file replaces it, one of the second file (`only_new`) is
// dropped.
static int add_added(added_list *l, msgl_added *a, const char *where, int only_new, msgl_err *err)
{
    msgl_tokenizer *t = l->t;
    const int32_t in_vocab = msgl__strset_get(&t->bpe.vocab, a->content.p, a->content.n);
    const int32_t known = msgl__strset_get(&l->by_content, a->content.p, a->content.n);
    if (a->content.n == 0 || (known >= 0 && only_new)) {
        added_free(a);
        return 0;
    }
    if (known >= 0) {
        a->id = t->added[known].id;
        added_free(&t->added[known]);
        t->added[known] = *a;
        return 0;
    }
    size_t n;
    a->id = in_vocab >= 0 ? in_vocab : l->next++;
    if (in_vocab < 0 && msgl__strset_at(&t->bpe.vocab, a->id, &n) != NULL) {
        added_free(a);
        return msgl__err_set(err, MSGL_EFORMAT,
                             "%s: its id, %d, belongs to another token of model.vocab, whose ids "
                             "are not 0 to one less than their number",
                             where, (int)a->id);
    }
    const int rc =
        msgl__strset_add(&l->by_content, a->content.p, a->content.n, (int32_t)t->num_added);
    if (rc != 0) {
        added_free(a);
        return msgl__err_set(err, rc, "%s: %s", where, msgl__status_text(rc));
    }
    t->added[t->num_added++] = *a;
    return 0;
}

static int load_added_array(added_list *l, const json_t *j, msgl_err *err)
{
    int rc = 0;
    for (size_t i = 0; i < json_array_size(j) && rc == 0; i++) {
        char where[MSGL_WHERE_SIZE];
        snprintf(where, sizeof(where), "added_tokens[%zu]", i);
        const json_t *entry = json_array_get(j, i);
        msgl_added a = {0};
        int64_t id = 0;
        rc = msgl__j_expect(entry, where, JSON_OBJECT, "an object", err);
        if (rc == 0) {
            rc = msgl__j_int(entry, where, "id", 0, MSGL_TOK_MAX_ID - 1, MSGL_J_REQUIRED, &id, err);
        }
        if (rc == 0) rc = load_flags(entry, where, &a, err);
        if (rc != 0) {
            added_free(&a);
            break;
        }
        rc = add_added(l, &a, where, 0, err);
    }
    return rc;
}

// An entry of added_tokens_decoder: {"151643": {"content": ...}, ...}.
typedef struct added_entry {
    int64_t id;
    const char *key;
    const json_t *value;
} added_entry;

static int by_id(const void *a, const void *b)
{
    const int64_t x = ((const added_entry *)a)->id, y = ((const added_entry *)b)->id;
    return x < y ? -1 : x > y;
}

static int read_key(const char *key, int64_t *id, msgl_err *err)
{
    *id = key[0] == '\0' ? -1 : 0;
    for (const char *c = key; *c != '\0' && *id >= 0; c++) {
        *id = *c < '0' || *c > '9' ? -1 : *id * 10 + (*c - '0');
        if (*id >= MSGL_TOK_MAX_ID) *id = -1;
    }
    if (*id >= 0) return 0;
    return msgl__err_set(err, MSGL_EFORMAT,
                         "tokenizer_config.json: added_tokens_decoder.%.20s: the key must be an id "
                         "from 0 to %d",
                         key, MSGL_TOK_MAX_ID - 1);
}

static int add_entry(added_list *l, const added_entry *e, msgl_err *err)
{
    char where[MSGL_WHERE_SIZE];
    snprintf(where, sizeof(where), "tokenizer_config.json: added_tokens_decoder.%.20s", e->key);
    msgl_added a = {0};
    int rc = msgl__j_expect(e->value, where, JSON_OBJECT, "an object", err);
    if (rc == 0) rc = load_flags(e->value, where, &a, err);
    if (rc == 0) return add_added(l, &a, where, 1, err);
    added_free(&a);
    return rc;
}

// added_tokens_decoder of tokenizer_config.json, in the order of its ids.
static int load_added_object(added_list *l, json_t *j, msgl_err *err)
{
    const char *key;
    json_t *value;
    size_t n = 0;
    int rc = 0;
    added_entry *entries = msgl__calloc(json_object_size(j), sizeof *entries);
    if (entries == NULL) return msgl__j_enomem(err);
    json_object_foreach(j, key, value)
    {
        added_entry *e = &entries[n++];
        *e = (added_entry){.key = key, .value = value};
        rc = read_key(key, &e->id, err);
        if (rc != 0) break;
    }
    if (rc == 0) qsort(entries, n, sizeof *entries, by_id);
    for (size_t i = 0; i < n && rc == 0; i++) rc = add_entry(l, &entries[i], err);
    msgl__free(entries);
    return rc;
}

// Contents of added tokens as the normalizer leaves them.
static int normalize_added(msgl_tokenizer *t, msgl_err *err)
{
    msgl_tok_ws *ws = msgl__ws_take(t);
    if (ws == NULL) return msgl__j_enomem(err);
    int rc = 0;
    for (size_t i = 0; i < t->num_added && rc == 0; i++) {
        msgl_added *a = &t->added[i];
        if (!a->normalized) continue;
        if (a->special) t->has_normed_special = 1;
        if (!a->special) t->has_normed_plain = 1;
        msgl_text text = {a->content.p, NULL, a->content.n};
        ws->use_tags = 0;
        ws->in_use = NULL;
        ws->zero = 0;
        ws->buf_limit = msgl__ws_buf_limit(text.n);
        rc = msgl__normalize(t, ws, &text);
        if (rc != 0 || (text.n == a->content.n && memcmp(text.p, a->content.p, text.n) == 0))
            continue;
        a->normed.p = msgl__malloc(text.n + 1);
        if (a->normed.p == NULL) {
            rc = MSGL_ENOMEM;
            break;
        }
        memcpy(a->normed.p, text.p, text.n);
        a->normed.p[text.n] = '\0';
        a->normed.n = text.n;
    }
    msgl__ws_give(t, ws);
    return rc == 0 ? 0 : msgl__err_set(err, rc, "added_tokens: %s", msgl__status_text(rc));
}

const char *msgl__tok_text(const msgl_tokenizer *t, int32_t id, size_t *n)
{
    const int32_t k = t->added_of[id];
    if (k < 0) return msgl__strset_at(&t->bpe.vocab, id, n);
    const msgl_tok_str *s =
        t->added[k].normed.p != NULL ? &t->added[k].normed : &t->added[k].content;
    *n = s->n;
    return s->p;
}

// Runs of blanks, as some tokenizers have them: they may stand in any text.
static int is_blank(const msgl_tok_str *s)
{
    for (size_t i = 0; i < s->n; i++) {
        if (memchr(" \t\n\r", s->p[i], 4) != NULL) continue;
        if (s->n - i < 3 || memcmp(s->p + i, "\xe2\x96\x81", 3) != 0) return 0;
        i += 2; // SentencePiece's space
    }
    return 1;
}

// Everything that is looked up by id. `tokenizers` leaves a token out of a decoded text when its
// text, after the normalizer, is the content of a special token: the same rule here.
static int index_ids(added_list *l, msgl_err *err)
{
    msgl_tokenizer *t = l->t;
    t->vocab_size = (int32_t)t->bpe.vocab.num_ids;
    for (size_t i = 0; i < t->num_added; i++) {
        if (t->added[i].id >= t->vocab_size) t->vocab_size = t->added[i].id + 1;
    }
    const size_t n = (size_t)t->vocab_size;
    t->added_of = msgl__malloc(n * sizeof(*t->added_of));
    t->special = msgl__calloc(n, 1);
    t->control = msgl__calloc(n, 1);
    t->skip = msgl__calloc(n, 1);
    if (t->added_of == NULL || t->special == NULL || t->control == NULL || t->skip == NULL) {
        return msgl__j_enomem(err);
    }
    memset(t->added_of, 0xff, n * sizeof(*t->added_of));
    for (size_t i = 0; i < t->num_added; i++) {
        msgl_added *a = &t->added[i];
        t->added_of[a->id] = (int32_t)i;
        t->special[a->id] = a->special != 0;
        a->blank = !a->special && is_blank(&a->content);
        t->control[a->id] = !a->blank;
    }
    for (int32_t id = 0; id < t->vocab_size; id++) {
        size_t len;
        const char *p = msgl__tok_text(t, id, &len);
        const int32_t k = p == NULL ? -1 : msgl__strset_get(&l->by_content, p, len);
        t->skip[id] = k >= 0 && t->added[k].special;
    }
    return 0;
}

int msgl__load_added(msgl_tokenizer *t, const json_t *j, const json_t *config, msgl_err *err)
{
    json_t *more = msgl__j_get(config, "added_tokens_decoder");
    int rc = j == NULL ? 0 : msgl__j_expect(j, "added_tokens", JSON_ARRAY, "an array", err);
    if (rc == 0 && more != NULL) {
        rc = msgl__j_expect(more, "tokenizer_config.json: added_tokens_decoder", JSON_OBJECT,
                            "an object", err);
    }
    if (rc != 0) return rc;
    const size_t n = json_array_size(j) + json_object_size(more);
    if (n > MSGL_TOK_MAX_ADDED) {
        return msgl__err_set(err, MSGL_ELIMIT, "added_tokens: %zu of them; at most %d", n,
                             MSGL_TOK_MAX_ADDED);
    }
    added_list l = {.t = t, .next = first_new_id(&t->bpe.vocab)};
    t->added = msgl__calloc(n, sizeof(*t->added));
    if (t->added == NULL || msgl__strset_init(&l.by_content, n, n, 64 * n) != 0) {
        return msgl__j_enomem(err);
    }
    rc = load_added_array(&l, j, err);
    if (rc == 0 && more != NULL) rc = load_added_object(&l, more, err);
    if (rc == 0) rc = normalize_added(t, err);
    if (rc == 0) rc = index_ids(&l, err);
    msgl__strset_free(&l.by_content);
    if (rc != 0) return rc;
    if (msgl__matcher_build(&t->raw, t->added, t->num_added, 0) != 0 ||
        msgl__matcher_build(&t->normed, t->added, t->num_added, 1) != 0) {
        return msgl__j_enomem(err);
    }
    return 0;
}

// ---- the whole ----

static void pattern_free(msgl_tok_pattern *p)
{
    msgl__free(p->text.p);
    msgl__regex_free(p->regex);
}

void msgl__tokenizer_free(msgl_tokenizer *t)
{
    if (t == NULL) return;
    for (size_t i = 0; i < t->num_norms; i++) {
        pattern_free(&t->norms[i].pattern);
        msgl__free(t->norms[i].content.p);
        msgl__charsmap_free(t->norms[i].charsmap);
    }
    for (size_t i = 0; i < t->num_pretoks; i++) pattern_free(&t->pretoks[i].pattern);
    for (size_t i = 0; i < t->num_decs; i++) {
        pattern_free(&t->decs[i].pattern);
        msgl__free(t->decs[i].content.p);
    }
    for (size_t i = 0; i < t->num_added; i++) added_free(&t->added[i]);
    msgl__matcher_free(&t->raw);
    msgl__matcher_free(&t->normed);
    msgl__strset_free(&t->bpe.vocab);
    msgl__strset_free(&t->bpe.bytes);
    while (t->free != NULL) {
        msgl_tok_ws *ws = t->free;
        t->free = ws->next;
        msgl__ws_free(ws);
    }
    msgl__free(t->bpe.merges);
    msgl__free(t->bpe.whole);
    msgl__free(t->norms);
    msgl__free(t->pretoks);
    msgl__free(t->decs);
    msgl__free(t->added);
    msgl__free(t->added_of);
    msgl__free(t->special);
    msgl__free(t->control);
    msgl__free(t->skip);
    msgl__free(t->post);
    msgl__free(t->post_pair);
    msgl__wordpiece_free(&t->wordpiece);
    msgl__unigram_free(&t->unigram);
    msgl__free(t->uni);
    pthread_mutex_destroy(&t->lock);
    msgl__free(t);
}

// The two large values of the file, which are not in the JSON tree.
typedef struct model_text {
    msgl_jspan vocab, merges;
} model_text;

static int load_sections(msgl_tokenizer *t, const json_t *root, const model_text *m,
                         const json_t *config, msgl_err *err)
{
    int rc = msgl__j_expect(root, "root", JSON_OBJECT, "an object", err);
    if (rc != 0) return rc;
    const json_t *version = msgl__j_get(root, "version");
    if (version != NULL &&
        (!json_is_string(version) || strcmp(json_string_value(version), "1.0") != 0)) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED, "version: only \"1.0\" is supported");
    }
    rc = msgl__load_normalizer(t, msgl__j_get(root, "normalizer"), err);
    if (rc == 0) rc = msgl__load_pre_tokenizer(t, msgl__j_get(root, "pre_tokenizer"), err);
    if (rc == 0) {
        rc = msgl__load_model(t, msgl__j_get(root, "model"), &m->vocab, &m->merges, err);
    }
    if (rc == 0) rc = msgl__load_added(t, msgl__j_get(root, "added_tokens"), config, err);
    if (rc == 0) rc = msgl__load_post_processor(t, msgl__j_get(root, "post_processor"), err);
    if (rc == 0) rc = msgl__load_decoder(t, msgl__j_get(root, "decoder"), err);
    return rc;
}

int msgl__tokenizer_create(msgl_tokenizer **out, msgl_err *err)
{
    msgl_tokenizer *t = *out = msgl__calloc(1, sizeof(*t));
    if (t == NULL) return msgl__j_enomem(err);
    pthread_mutex_init(&t->lock, NULL);
    t->uni = msgl__calloc(1, sizeof(*t->uni));
    if (t->uni == NULL) return msgl__j_enomem(err);
    msgl__uni_build(t->uni);
    return 0;
}

static int parse_json(const char *text, size_t len, const char *name, size_t flags, json_t **out,
                      msgl_err *err)
{
    if (len > MSGL_TOK_MAX_TREE) {
        return msgl__err_set(err, MSGL_EFORMAT,
                             "%s: %zu bytes besides vocabulary and merges; at most %zu", name, len,
                             MSGL_TOK_MAX_TREE);
    }
    return msgl__json_parse(name, text, len, JSON_ALLOW_NUL | flags, out, err);
}

// The tree of tokenizer.json without the two large values.
static int parse_root(const char *json, size_t len, model_text *m, json_t **root, msgl_err *err)
{
    const size_t valid = msgl__utf8_valid(json, len);
    if (valid != len) {
        return msgl__err_set(err, MSGL_EFORMAT, "tokenizer.json: not valid UTF-8 at byte %zu",
                             valid);
    }
    msgl_strbuf rest;
    msgl__strbuf_init(&rest, len + 16);
    int rc = msgl__jscan_split(json, len, &m->vocab, &m->merges, &rest);
    if (rc != 0) {
        rc = msgl__j_enomem(err);
    } else {
        rc = parse_json(msgl__strbuf_str(&rest), rest.len, "tokenizer.json", JSON_REJECT_DUPLICATES,
                        root, err);
    }
    msgl__strbuf_free(&rest);
    return rc;
}

int msgl__tokenizer_parse(const char *json, size_t len, const char *config, size_t config_len,
                          msgl_tokenizer **out, msgl_err *err)
{
    model_text m;
    json_t *root = NULL, *conf = NULL;
    int rc = parse_root(json, len, &m, &root, err);
    if (rc == 0 && config != NULL) {
        rc = parse_json(config, config_len, "tokenizer_config.json", 0, &conf, err);
    }
    msgl_tokenizer *t = NULL;
    if (rc == 0) rc = msgl__tokenizer_create(&t, err);
    if (rc == 0) {
        rc = load_sections(t, root, &m, conf, err);
        if (rc != 0) rc = msgl__err_prefix(err, rc, "tokenizer.json");
    }
    json_decref(root);
    json_decref(conf);
    if (rc != 0) {
        msgl__tokenizer_free(t);
        return rc;
    }
    *out = t;
    return 0;
}

static int load_gguf(const char *path, msgl_tokenizer **out, msgl_err *err)
{
    msgl_gguf g;
    int rc = msgl__gguf_open(path, &g, err);
    if (rc == 0) rc = msgl__tokenizer_from_gguf(&g, out, err);
    msgl__gguf_close(&g);
    return rc;
}

// Of a folder without tokenizer.json, which is what is missing when there is no tiktoken.model
// either.
static int load_tiktoken(const char *dir, const char *config, size_t config_len,
                         msgl_tokenizer **out, msgl_err *err)
{
    char path[4096];
    char *ranks = NULL;
    size_t len = 0;
    msgl_err own;
    snprintf(path, sizeof(path), "%s/tiktoken.model", dir);
    int rc = msgl__file_read(path, MSGL_TOK_MAX_FILE, &ranks, &len, &own);
    if (rc == MSGL_ENOENT) return rc;
    if (rc != 0) {
        if (err != NULL) *err = own;
        return rc;
    }
    rc = msgl__tokenizer_from_tiktoken(ranks, len, config, config_len, out, err);
    msgl__free(ranks);
    return rc == 0 ? 0 : msgl__err_prefix(err, rc, "%s", dir);
}

int msgl__tokenizer_load(const char *dir, msgl_tokenizer **out, msgl_err *err)
{
    char path[4096];
    char *json = NULL, *config = NULL;
    size_t len = 0, config_len = 0;
    *out = NULL;
    const int gguf = msgl__gguf_find(dir, path, sizeof(path), err);
    if (gguf != 0) return gguf < 0 ? gguf : load_gguf(path, out, err);
    if ((size_t)snprintf(path, sizeof(path), "%s/tokenizer_config.json", dir) >= sizeof(path)) {
        return msgl__err_set(err, MSGL_EINVAL, "model folder: path of more than %zu bytes",
                             sizeof(path));
    }
    int rc = msgl__file_read(path, MSGL_TOK_MAX_FILE, &config, &config_len, err);
    if (rc == 0 || rc == MSGL_ENOENT) { // the second file is optional
        snprintf(path, sizeof(path), "%s/tokenizer.json", dir);
        rc = msgl__file_read(path, MSGL_TOK_MAX_FILE, &json, &len, err);
    }
    if (rc == 0) {
        rc = msgl__tokenizer_parse(json, len, config, config_len, out, err);
        if (rc != 0) rc = msgl__err_prefix(err, rc, "%s", dir);
    } else if (rc == MSGL_ENOENT) {
        rc = load_tiktoken(dir, config, config_len, out, err);
    }
    msgl__free(json);
    msgl__free(config);
    return rc;
}
