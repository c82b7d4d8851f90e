// SPDX-License-Identifier: Apache-2.0
//
// Normalizers, pre-tokenizers and decoders of tokenizer.json.
#include <string.h>

#include "tokenizer/charsmap.h"
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

static int new_norm(msgl_tokenizer *t, enum msgl_norm_type type, const char *where, msgl_err *err)
{
    const int rc = new_step((void **)&t->norms, &t->num_norms, sizeof(*t->norms), where, err);
    if (rc == 0) t->norms[t->num_norms - 1].type = type;
    return rc;
}

// The parts of BertNormalizer that are on, in its order. Accents go with case unless it says so.
static int load_bert_norm(msgl_tokenizer *t, const json_t *j, const char *where, msgl_err *err)
{
    int clean, ideographs, lower, strip;
    int rc = msgl__j_bool(j, where, "clean_text", MSGL_J_REQUIRED, &clean, err);
    if (rc == 0) {
        rc = msgl__j_bool(j, where, "handle_chinese_chars", MSGL_J_REQUIRED, &ideographs, err);
    }
    if (rc == 0) rc = msgl__j_bool(j, where, "lowercase", MSGL_J_REQUIRED, &lower, err);
    if (rc == 0) rc = msgl__j_bool(j, where, "strip_accents", lower, &strip, err);
    if (rc == 0 && clean) rc = new_norm(t, MSGL_NORM_CLEAN, where, err);
    if (rc == 0 && ideographs) rc = new_norm(t, MSGL_NORM_IDEOGRAPHS, where, err);
    if (rc == 0 && strip) rc = new_norm(t, MSGL_NORM_NFD, where, err);
    if (rc == 0 && strip) rc = new_norm(t, MSGL_NORM_MARKS, where, err);
    return rc == 0 && lower ? new_norm(t, MSGL_NORM_LOWERCASE, where, err) : rc;
}

static int load_charsmap(msgl_tokenizer *t, const json_t *j, const char *where, msgl_err *err)
{
    msgl_tok_str map;
    int rc = msgl__j_string(j, where, "precompiled_charsmap", 0, &map, err);
    if (rc == 0) rc = new_norm(t, MSGL_NORM_CHARSMAP, where, err);
    if (rc == 0) {
        rc = msgl__charsmap_load(map.p, map.n, where, &t->norms[t->num_norms - 1].charsmap, err);
    }
    msgl__free(map.p);
    return rc;
}

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
    if (strcmp(type, "BertNormalizer") == 0) return load_bert_norm(t, j, where, err);
    if (strcmp(type, "Precompiled") == 0) return load_charsmap(t, j, where, err);
    size_t k = 0;
    while (k < MSGL_COUNT(names) && strcmp(names[k].name, type) != 0) k++;
    if (k == MSGL_COUNT(names)) {
        return unknown_type(where, type,
                            "NFC NFD NFKC NFKD Lowercase Strip Replace Prepend ByteLevel "
                            "BertNormalizer Precompiled Sequence",
                            err);
    }
    int rc = new_norm(t, names[k].type, where, err);
    if (rc != 0) return rc;
    msgl_norm *n = &t->norms[t->num_norms - 1];
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

// Words, then each punctuation mark by itself.
static int load_bert_pretok(msgl_tokenizer *t, const char *where, msgl_err *err)
{
    static const msgl_pretok steps[] = {
        {.type = MSGL_PRETOK_WHITESPACE_SPLIT, .behavior = MSGL_SPLIT_REMOVED},
        {.type = MSGL_PRETOK_PUNCTUATION, .behavior = MSGL_SPLIT_ISOLATED}};
    int rc = 0;
    for (size_t i = 0; i < MSGL_COUNT(steps) && rc == 0; i++) {
        rc = new_step((void **)&t->pretoks, &t->num_pretoks, sizeof(*t->pretoks), where, err);
        if (rc == 0) t->pretoks[t->num_pretoks - 1] = steps[i];
    }
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
    if (strcmp(type, "BertPreTokenizer") == 0) return load_bert_pretok(t, where, err);
    size_t k = 0;
    while (k < MSGL_COUNT(names) && strcmp(names[k], type) != 0) k++;
    if (k == MSGL_COUNT(names)) {
        return unknown_type(where, type,
                            "Split ByteLevel Digits Punctuation Metaspace Whitespace "
                            "WhitespaceSplit BertPreTokenizer Sequence",
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
        [MSGL_DEC_WORDPIECE] = "WordPiece",
    };
    size_t k = 0;
    while (k < MSGL_COUNT(names) && strcmp(names[k], type) != 0) k++;
    if (k == MSGL_COUNT(names)) {
        return unknown_type(
            where, type, "ByteLevel ByteFallback Replace Fuse Strip Metaspace WordPiece Sequence",
            err);
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
    } else if (d->type == MSGL_DEC_WORDPIECE) {
        rc = msgl__j_string(j, where, "prefix", 0, &d->content, err);
        if (rc == 0) rc = msgl__j_bool(j, where, "cleanup", MSGL_J_REQUIRED, &d->cleanup, err);
    }
    return rc;
}

int msgl__load_decoder(msgl_tokenizer *t, const json_t *j, msgl_err *err)
{
    t->has_decoder = j != NULL && !json_is_null(j);
    return msgl__load_steps(t, j, "decoder", "decoders", load_dec, err);
}
