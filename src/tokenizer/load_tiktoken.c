// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/load_tiktoken.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/attributes.h"
#include "tokenizer/build.h"
#include "tokenizer/load.h"
#include "tokenizer/load_gguf.h"
#include "utils/base64.h"
#include "utils/json.h"

#define FILE_NAME "tiktoken.model"
#define CONFIG "tokenizer_config.json"
#define CLASS "TikTokenTokenizer"

// Ids behind the ranks that are special tokens (MoonshotAI's tokenization_kimi.py, which has two
// more that its models have no rows for).
enum { SPECIALS = 256, MAX_TOKEN = 255 };

static const msgl_model_names names = {.vocab = FILE_NAME, .merges = FILE_NAME};

// MoonshotAI's pattern. It says "a letter, but no Han" as an intersection, [...&&[^\p{Han}]], which
// is a look-ahead here.
#define NO_HAN(letters) "(?:(?!\\p{Han})[" letters "])"
#define UPPER NO_HAN("\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}")
#define LOWER NO_HAN("\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}")
#define SUFFIX "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
const char msgl__kimi_pattern[] = "[\\p{Han}]+|"
                                  "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" SUFFIX "|"
                                  "[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" SUFFIX "|"
                                  "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
                                  "\\s+(?!\\S)|\\s+";

// ---- tokens ----

// The lines of the file that are not empty, "BASE64 RANK", one after the other.
typedef struct lines {
    const char *p, *end;
    const char *line;
    size_t n, number; // of the line, from 1
} lines;

static bool next_line(lines *l)
{
    while (l->p < l->end) {
        const char *stop = memchr(l->p, '\n', (size_t)(l->end - l->p));
        if (stop == NULL) stop = l->end;
        l->line = l->p;
        l->n = (size_t)(stop - l->p);
        l->p = stop < l->end ? stop + 1 : stop;
        l->number++;
        if (l->n > 0 && l->line[l->n - 1] == '\r') l->n--;
        if (l->n > 0) return true;
    }
    return false;
}

// p[0, n) of base64, with padding, as bytes; how many, 0: it is none, or of more than MAX_TOKEN
// bytes.
static size_t decode(const char *p, size_t n, uint8_t out[MAX_TOKEN])
{
    if (n % 4 != 0 || n / 4 * 3 > MAX_TOKEN) return 0;
    const size_t len = msgl__base64_decode(p, n, out);
    return len == SIZE_MAX ? 0 : len;
}

static int bad_line(const lines *l, msgl_err *err)
{
    return msgl__err_set(err, MSGL_EFORMAT,
                         FILE_NAME ": line %zu: expected up to %d bytes in base64, a space and a "
                                   "rank from 0 to one less than the number of lines",
                         l->number, MAX_TOKEN);
}

// Adds the token of a line, by the characters that stand for its bytes.
static int add_token(msgl_bpe *bpe, const lines *l, msgl_err *err)
{
    uint8_t bytes[MAX_TOKEN];
    char text[2 * MAX_TOKEN + 4];
    const char *space = memchr(l->line, ' ', l->n), *end = l->line + l->n;
    const size_t n = space == NULL ? 0 : decode(l->line, (size_t)(space - l->line), bytes);
    size_t rank = 0, len = 0;
    const char *c = space == NULL ? end : space + 1;
    if (n == 0 || c == end) return bad_line(l, err);
    for (; c < end; c++) {
        if (*c < '0' || *c > '9') return bad_line(l, err);
        rank = rank * 10 + (size_t)(*c - '0');
        if (rank >= bpe->vocab.num_ids) return bad_line(l, err);
    }
    for (size_t i = 0; i < n; i++) len += msgl__utf8_put(msgl__byte_char(bytes[i]), text + len);
    return msgl__model_token(bpe, &names, text, len, (int32_t)rank, err);
}

static int load_vocab(const char *ranks, size_t len, msgl_bpe *bpe, msgl_err *err)
{
    size_t count = 0;
    for (lines l = {.p = ranks, .end = ranks + len}; next_line(&l);) count++;
    if (count == 0 || count > MSGL_TOK_MAX_ID - SPECIALS) {
        return msgl__err_set(err, count == 0 ? MSGL_EFORMAT : MSGL_ELIMIT,
                             FILE_NAME ": %zu tokens; allowed 1 to %d", count,
                             MSGL_TOK_MAX_ID - SPECIALS);
    }
    int rc = msgl__model_vocab(bpe, count, count, 2 * len, err);
    for (lines l = {.p = ranks, .end = ranks + len}; rc == 0 && next_line(&l);) {
        rc = add_token(bpe, &l, err);
    }
    for (int b = 0; b < 256 && rc == 0; b++) {
        char text[4];
        if (msgl__strset_get(&bpe->vocab, text,
                             msgl__utf8_put(msgl__byte_char((uint8_t)b), text)) >= 0) {
            continue;
        }
        rc = msgl__err_set(err, MSGL_EFORMAT, FILE_NAME ": byte 0x%02x is no token", (unsigned)b);
    }
    return rc;
}

// Of neighbours those are joined whose token has the lowest rank, the leftmost first, whatever the
// two are.
static int load_merges(msgl_bpe *bpe, msgl_err *err)
{
    const size_t n = bpe->vocab.num_ids;
    float *scores = msgl__reallocarray(NULL, n, sizeof(*scores));
    if (scores == NULL) return msgl__j_enomem(err);
    for (size_t id = 0; id < n; id++) scores[id] = -(float)id; // exact, below 2^24
    const int rc = msgl__score_merges(bpe, scores, true, FILE_NAME, err);
    msgl__free(scores);
    return rc;
}

// ---- the rest ----

static json_t *pre_tokenizer(void)
{
    return json_pack("{s:s,s:[{s:s,s:{s:s},s:s,s:b},{s:s,s:b,s:b}]}", "type", "Sequence",
                     "pretokenizers", "type", "Split", "pattern", "Regex", msgl__kimi_pattern,
                     "behavior", "Isolated", "invert", 0, "type", "ByteLevel", "add_prefix_space",
                     0, "use_regex", 0);
}

static int load_pipeline(msgl_tokenizer *t, msgl_err *err)
{
    json_t *pre = pre_tokenizer(), *dec = json_pack("{s:s}", "type", "ByteLevel");
    int rc = pre == NULL || dec == NULL ? msgl__j_enomem(err) : 0;
    if (rc == 0) rc = msgl__load_pre_tokenizer(t, pre, err);
    if (rc == 0) rc = msgl__load_decoder(t, dec, err);
    json_decref(pre);
    json_decref(dec);
    return rc;
}

// The special token with this id: as tokenizer_config.json has it, or reserved.
static json_t *special_token(const json_t *decoder, int32_t id)
{
    char text[48];
    snprintf(text, sizeof text, "%d", (int)id);
    const json_t *entry = msgl__j_get(decoder, text);
    if (entry == NULL) {
        snprintf(text, sizeof text, "<|reserved_token_%d|>", (int)id);
        return json_pack("{s:i,s:s,s:b,s:b}", "id", (int)id, "content", text, "special", 1,
                         "normalized", 0);
    }
    const json_t *content = msgl__j_get(entry, "content"), *special = msgl__j_get(entry, "special");
    return json_pack("{s:i,s:O?,s:O?,s:b}", "id", (int)id, "content", content, "special", special,
                     "normalized", 0);
}

static int load_specials(msgl_tokenizer *t, const json_t *config, msgl_err *err)
{
    const json_t *decoder = msgl__j_get(config, "added_tokens_decoder");
    const int32_t first = (int32_t)t->bpe.vocab.num_ids;
    json_t *list = json_array();
    bool bad = list == NULL;
    for (int32_t i = 0; i < SPECIALS; i++) {
        bad = json_array_append_new(list, special_token(decoder, first + i)) != 0 || bad;
    }
    int rc = bad ? msgl__j_enomem(err) : msgl__load_added(t, list, NULL, err);
    json_decref(list);
    if (rc != 0) return rc;
    bool own = t->num_added == SPECIALS;
    for (size_t i = 0; i < t->num_added; i++) own = own && t->added[i].id == first + (int32_t)i;
    if (own) return 0;
    return msgl__err_set(err, MSGL_EFORMAT,
                         CONFIG ": added_tokens_decoder: contents of ids %d to %d have to differ, "
                                "also from the tokens of " FILE_NAME,
                         (int)first, (int)first + SPECIALS - 1);
}

static int read_config(const char *text, size_t len, json_t **out, msgl_err *err)
{
    if (text == NULL) {
        return msgl__err_set(err, MSGL_EFORMAT, FILE_NAME ": needs " CONFIG " beside it");
    }
    if (len > MSGL_TOK_MAX_TREE) {
        return msgl__err_set(err, MSGL_ELIMIT, CONFIG ": %zu bytes; at most %zu", len,
                             MSGL_TOK_MAX_TREE);
    }
    int rc = msgl__json_parse(CONFIG, text, len, JSON_ALLOW_NUL, out, err);
    if (rc == 0) rc = msgl__j_expect(*out, CONFIG, JSON_OBJECT, "an object", err);
    if (rc != 0) return rc;
    const json_t *name = msgl__j_get(*out, "tokenizer_class");
    const char *found = json_is_string(name) ? json_string_value(name) : "";
    if (strcmp(found, CLASS) == 0) return 0;
    return msgl__err_set(
        err, MSGL_EUNSUPPORTED,
        CONFIG ": tokenizer_class: found \"%.60s\", allowed \"" CLASS "\" with " FILE_NAME, found);
}

int msgl__tokenizer_from_tiktoken(const char *ranks, size_t len, const char *config,
                                  size_t config_len, msgl_tokenizer **out, msgl_err *err)
{
    static const msgl_tok_str no_unknown = {0};
    json_t *conf = NULL;
    msgl_tokenizer *t = NULL;
    *out = NULL;
    int rc = read_config(config, config_len, &conf, err);
    if (rc == 0) rc = msgl__tokenizer_create(&t, err);
    if (rc == 0) rc = load_pipeline(t, err);
    if (rc == 0) rc = load_vocab(ranks, len, &t->bpe, err);
    if (rc == 0) rc = load_merges(&t->bpe, err);
    if (rc == 0) {
        t->bpe.ignore_merges = 1; // a piece that is a token is that token
        rc = msgl__model_finish(t, &no_unknown, err);
    }
    if (rc == 0) rc = load_specials(t, conf, err);
    if (rc == 0) rc = msgl__load_post_processor(t, NULL, err);
    json_decref(conf);
    if (rc != 0) {
        msgl__tokenizer_free(t);
        return rc;
    }
    *out = t;
    return 0;
}
