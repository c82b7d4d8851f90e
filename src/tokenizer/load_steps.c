// SPDX-License-Identifier: Apache-2.0
//
// Normalizers, pre-tokenizers, post-processors and decoders of tokenizer.json.
#include <string.h>

#include "tokenizer/load.h"

static int unknown_type(const char *where, const char *type, const char *known, msgl_err *err)
{
    return msgl__err_set(err, MSGL_EUNSUPPORTED, "%s: type \"%.40s\" is not supported; known: %s",
                         where, type, known);
}

// A zeroed element at the end of a list of at most MSGL_TOK_MAX_STEPS.
static int new_step(void **list, size_t *n, size_t size, const char *where, msgl_err *err)
{
    if (*n >= MSGL_TOK_MAX_STEPS) {
        return msgl__err_set(err, MSGL_ELIMIT, "%s: more than %d steps", where, MSGL_TOK_MAX_STEPS);
    }
    if (*list == NULL) *list = msgl__calloc(MSGL_TOK_MAX_STEPS, size);
    if (*list == NULL) return msgl__j_enomem(err);
    *n += 1;
    return 0;
}

// ---- normalizer ----

static int load_norm(msgl_tokenizer *t, const json_t *j, const char *where, const char *type,
                     msgl_err *err)
{
    static const struct {
        const char *name;
        enum msgl_norm_type type;
    } names[] = {
        {"NFC", MSGL_NORM_NFC},
        {"NFD", MSGL_NORM_NFD},
        {"NFKC", MSGL_NORM_NFKC},
        {"NFKD", MSGL_NORM_NFKD},
        {"Lowercase", MSGL_NORM_LOWERCASE},
        {"Strip", MSGL_NORM_STRIP},
        {"Replace", MSGL_NORM_REPLACE},
        {"Prepend", MSGL_NORM_PREPEND},
        {"ByteLevel", MSGL_NORM_BYTE_LEVEL},
    };
    size_t k = 0;
    while (k < MSGL_COUNT(names) && strcmp(names[k].name, type) != 0) k++;
    if (k == MSGL_COUNT(names)) {
        return unknown_type(where, type,
                            "NFC NFD NFKC NFKD Lowercase Strip Replace Prepend ByteLevel "
                            "Sequence",
                            err);
    }
    int rc = new_step((void **)&t->norms, &t->num_norms, sizeof(*t->norms), where, err);
    if (rc != 0) return rc;
    msgl_norm *n = &t->norms[t->num_norms - 1];
    n->type = names[k].type;
    if (n->type == MSGL_NORM_STRIP) {
        rc = msgl__j_bool(j, where, "strip_left", MSGL_J_REQUIRED, &n->left, err);
        if (rc == 0) rc = msgl__j_bool(j, where, "strip_right", MSGL_J_REQUIRED, &n->right, err);
    } else if (n->type == MSGL_NORM_REPLACE) {
        rc = msgl__load_pattern(t, j, where, "pattern", &n->pattern, err);
        if (rc == 0) rc = msgl__j_string(j, where, "content", 0, &n->content, err);
    } else if (n->type == MSGL_NORM_PREPEND) {
        rc = msgl__j_string(j, where, "prepend", 0, &n->content, err);
    }
    // A rewrite may grow a text; what it may grow it by has to stay sane.
    if (rc == 0 && n->content.n > 64) {
        rc = msgl__err_set(err, MSGL_ELIMIT, "%s: text of %zu bytes; at most 64", where,
                           n->content.n);
    }
    return rc;
}

int msgl__load_normalizer(msgl_tokenizer *t, const json_t *j, msgl_err *err)
{
    return msgl__load_steps(t, j, "normalizer", "normalizers", load_norm, err);
}

// ---- pre-tokenizer ----

static int load_behavior(const json_t *j, const char *where, int optional, enum msgl_behavior *out,
                         msgl_err *err)
{
    static const char *const names[] = {
        [MSGL_SPLIT_REMOVED] = "Removed",
        [MSGL_SPLIT_ISOLATED] = "Isolated",
        [MSGL_SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [MSGL_SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
        [MSGL_SPLIT_CONTIGUOUS] = "Contiguous",
    };
    const json_t *b = msgl__j_get(j, "behavior");
    *out = MSGL_SPLIT_ISOLATED;
    if (b == NULL && optional) return 0;
    for (size_t i = 0; json_is_string(b) && i < MSGL_COUNT(names); i++) {
        if (strcmp(names[i], json_string_value(b)) == 0) {
            *out = (enum msgl_behavior)i;
            return 0;
        }
    }
    return msgl__err_set(err, MSGL_EFORMAT,
                         "%s.behavior: expected Removed, Isolated, MergedWithPrevious, "
                         "MergedWithNext or Contiguous",
                         where);
}

// Metaspace in both spellings: add_prefix_space of old files, prepend_scheme of newer ones.
static int load_metaspace(const json_t *j, const char *where, uint32_t *replacement,
                          enum msgl_prepend *prepend, msgl_err *err)
{
    int prefix, rc = msgl__j_char(j, where, "replacement", replacement, err);
    if (rc == 0) rc = msgl__j_bool(j, where, "add_prefix_space", 1, &prefix, err);
    if (rc != 0) return rc;
    const json_t *scheme = msgl__j_get(j, "prepend_scheme");
    *prepend = prefix ? MSGL_PREPEND_ALWAYS : MSGL_PREPEND_NEVER;
    if (scheme == NULL) return 0;
    const char *s = json_is_string(scheme) ? json_string_value(scheme) : "";
    if (strcmp(s, "always") == 0) {
        *prepend = MSGL_PREPEND_ALWAYS;
    } else if (strcmp(s, "first") == 0) {
        *prepend = MSGL_PREPEND_FIRST;
    } else if (strcmp(s, "never") == 0) {
        *prepend = MSGL_PREPEND_NEVER;
    } else {
        return msgl__err_set(err, MSGL_EFORMAT,
                             "%s.prepend_scheme: expected \"always\", \"first\" or \"never\"",
                             where);
    }
    if (!prefix && *prepend != MSGL_PREPEND_NEVER) {
        return msgl__err_set(err, MSGL_EFORMAT,
                             "%s: add_prefix_space false contradicts prepend_scheme \"%s\"", where,
                             s);
    }
    return 0;
}

static int load_byte_level(const json_t *j, const char *where, msgl_pretok *p, msgl_err *err)
{
    int rc = msgl__j_bool(j, where, "add_prefix_space", MSGL_J_REQUIRED, &p->add_prefix_space, err);
    if (rc == 0) rc = msgl__j_bool(j, where, "use_regex", 1, &p->use_regex, err);
    p->behavior = MSGL_SPLIT_ISOLATED;
    p->pattern.scan = MSGL_SCAN_GPT2;
    return rc;
}

static int load_pretok(msgl_tokenizer *t, const json_t *j, const char *where, const char *type,
                       msgl_err *err)
{
    static const char *const names[] = {
        [MSGL_PRETOK_SPLIT] = "Split",
        [MSGL_PRETOK_BYTE_LEVEL] = "ByteLevel",
        [MSGL_PRETOK_DIGITS] = "Digits",
        [MSGL_PRETOK_PUNCTUATION] = "Punctuation",
        [MSGL_PRETOK_METASPACE] = "Metaspace",
        [MSGL_PRETOK_WHITESPACE] = "Whitespace",
        [MSGL_PRETOK_WHITESPACE_SPLIT] = "WhitespaceSplit",
    };
    size_t k = 0;
    while (k < MSGL_COUNT(names) && strcmp(names[k], type) != 0) k++;
    if (k == MSGL_COUNT(names)) {
        return unknown_type(where, type,
                            "Split ByteLevel Digits Punctuation Metaspace Whitespace "
                            "WhitespaceSplit Sequence",
                            err);
    }
    int rc = new_step((void **)&t->pretoks, &t->num_pretoks, sizeof(*t->pretoks), where, err);
    if (rc != 0) return rc;
    msgl_pretok *p = &t->pretoks[t->num_pretoks - 1];
    int each = 0;
    p->type = (enum msgl_pretok_type)k;
    switch (p->type) {
    case MSGL_PRETOK_SPLIT:
        rc = msgl__load_pattern(t, j, where, "pattern", &p->pattern, err);
        if (rc == 0) rc = load_behavior(j, where, 0, &p->behavior, err);
        if (rc == 0) rc = msgl__j_bool(j, where, "invert", MSGL_J_REQUIRED, &p->invert, err);
        break;
    case MSGL_PRETOK_BYTE_LEVEL: rc = load_byte_level(j, where, p, err); break;
    case MSGL_PRETOK_DIGITS:
        rc = msgl__j_bool(j, where, "individual_digits", MSGL_J_REQUIRED, &each, err);
        p->behavior = each ? MSGL_SPLIT_ISOLATED : MSGL_SPLIT_CONTIGUOUS;
        break;
    case MSGL_PRETOK_PUNCTUATION: rc = load_behavior(j, where, 1, &p->behavior, err); break;
    case MSGL_PRETOK_METASPACE:
        rc = load_metaspace(j, where, &p->replacement, &p->prepend, err);
        if (rc == 0) rc = msgl__j_bool(j, where, "split", 1, &p->split, err);
        break;
    case MSGL_PRETOK_WHITESPACE: break;
    case MSGL_PRETOK_WHITESPACE_SPLIT: p->behavior = MSGL_SPLIT_REMOVED; break;
    }
    return rc;
}

int msgl__load_pre_tokenizer(msgl_tokenizer *t, const json_t *j, msgl_err *err)
{
    return msgl__load_steps(t, j, "pre_tokenizer", "pretokenizers", load_pretok, err);
}

// ---- decoder ----

static int load_dec(msgl_tokenizer *t, const json_t *j, const char *where, const char *type,
                    msgl_err *err)
{
    static const char *const names[] = {
        [MSGL_DEC_BYTE_LEVEL] = "ByteLevel", [MSGL_DEC_BYTE_FALLBACK] = "ByteFallback",
        [MSGL_DEC_REPLACE] = "Replace",      [MSGL_DEC_FUSE] = "Fuse",
        [MSGL_DEC_STRIP] = "Strip",          [MSGL_DEC_METASPACE] = "Metaspace",
    };
    size_t k = 0;
    while (k < MSGL_COUNT(names) && strcmp(names[k], type) != 0) k++;
    if (k == MSGL_COUNT(names)) {
        return unknown_type(where, type,
                            "ByteLevel ByteFallback Replace Fuse Strip Metaspace Sequence", err);
    }
    int rc = new_step((void **)&t->decs, &t->num_decs, sizeof(*t->decs), where, err);
    if (rc != 0) return rc;
    msgl_dec *d = &t->decs[t->num_decs - 1];
    d->type = (enum msgl_dec_type)k;
    if (d->type == MSGL_DEC_REPLACE) {
        rc = msgl__load_pattern(t, j, where, "pattern", &d->pattern, err);
        if (rc == 0) rc = msgl__j_string(j, where, "content", 0, &d->content, err);
    } else if (d->type == MSGL_DEC_STRIP) {
        int64_t start = 0, stop = 0;
        rc = msgl__j_char(j, where, "content", &d->ch, err);
        if (rc == 0) rc = msgl__j_int(j, where, "start", 0, 1 << 16, MSGL_J_REQUIRED, &start, err);
        if (rc == 0) rc = msgl__j_int(j, where, "stop", 0, 1 << 16, MSGL_J_REQUIRED, &stop, err);
        d->start = (size_t)start;
        d->stop = (size_t)stop;
    } else if (d->type == MSGL_DEC_METASPACE) {
        rc = load_metaspace(j, where, &d->ch, &d->prepend, err);
    }
    return rc;
}

int msgl__load_decoder(msgl_tokenizer *t, const json_t *j, msgl_err *err)
{
    t->has_decoder = j != NULL && !json_is_null(j);
    return msgl__load_steps(t, j, "decoder", "decoders", load_dec, err);
}

// ---- post-processor ----

#define MAX_POST 1024

static int post_add(msgl_ids *list, int32_t id, const char *where, msgl_err *err)
{
    if (list->len >= MAX_POST) {
        return msgl__err_set(err, MSGL_ELIMIT, "%s: a template of more than %d ids", where,
                             MAX_POST);
    }
    return msgl__ids_push(list, id) == 0 ? 0 : msgl__j_enomem(err);
}

static int post_special(const msgl_tokenizer *t, const json_t *j, const char *name,
                        const char *where, msgl_ids *list, msgl_err *err)
{
    const json_t *ids =
        json_object_get(json_object_get(json_object_get(j, "special_tokens"), name), "ids");
    if (!json_is_array(ids)) {
        return msgl__err_set(err, MSGL_EFORMAT, "%s.special_tokens: no ids for \"%.40s\"", where,
                             name);
    }
    int rc = 0;
    for (size_t i = 0; i < json_array_size(ids) && rc == 0; i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= t->vocab_size) {
            return msgl__err_set(err, MSGL_EFORMAT,
                                 "%s.special_tokens: an id of \"%.40s\" is not in the vocabulary "
                                 "(0 to %d)",
                                 where, name, (int)t->vocab_size - 1);
        }
        rc = post_add(list, (int32_t)json_integer_value(id), where, err);
    }
    return rc;
}

// One piece of a template: {"Sequence": {"id": "A"}} or {"SpecialToken": {"id": name}}.
static int post_piece(const msgl_tokenizer *t, const json_t *j, const json_t *piece,
                      const char *where, msgl_ids *list, msgl_err *err)
{
    const json_t *seq = json_object_get(piece, "Sequence");
    const json_t *special = json_object_get(piece, "SpecialToken");
    const json_t *id = json_object_get(seq != NULL ? seq : special, "id");
    if (!json_is_string(id) || (seq != NULL && strcmp(json_string_value(id), "A") != 0)) {
        return msgl__err_set(err, MSGL_EFORMAT,
                             "%s.single: expected {\"Sequence\": {\"id\": \"A\"}} or "
                             "{\"SpecialToken\": {\"id\": name}}",
                             where);
    }
    if (seq == NULL) return post_special(t, j, json_string_value(id), where, list, err);
    int rc = 0;
    for (size_t i = 0; i < t->num_post && rc == 0; i++) rc = post_add(list, t->post[i], where, err);
    return rc;
}

static int load_post(msgl_tokenizer *t, const json_t *j, const char *where, const char *type,
                     msgl_err *err)
{
    if (strcmp(type, "ByteLevel") == 0) return 0; // it moves offsets only
    if (strcmp(type, "TemplateProcessing") != 0) {
        return unknown_type(where, type, "TemplateProcessing ByteLevel Sequence", err);
    }
    const json_t *single = msgl__j_get(j, "single");
    char path[MSGL_WHERE_SIZE];
    snprintf(path, sizeof(path), "%s.single", where);
    int rc = msgl__j_expect(single, path, JSON_ARRAY, "an array", err);
    msgl_ids list = {0};
    for (size_t i = 0; rc == 0 && i < json_array_size(single); i++) {
        rc = post_piece(t, j, json_array_get(single, i), where, &list, err);
    }
    if (rc != 0) {
        msgl__ids_free(&list);
        return rc;
    }
    msgl__free(t->post);
    t->post = list.data;
    t->num_post = list.len;
    return 0;
}

int msgl__load_post_processor(msgl_tokenizer *t, const json_t *j, msgl_err *err)
{
    t->post = msgl__malloc(sizeof(*t->post));
    if (t->post == NULL) return msgl__j_enomem(err);
    t->post[0] = MSGL_POST_SEQUENCE;
    t->num_post = 1;
    return msgl__load_steps(t, j, "post_processor", "processors", load_post, err);
}
