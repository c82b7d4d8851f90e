// SPDX-License-Identifier: Apache-2.0
//
// The tokenizer against what `tokenizers` answered (tests/vectors/tokenizer), the scanners against
// PCRE2, and the promises of tokenizer.h: untrusted spans, limits, streaming, threads, memory.
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "tokenizer/load.h"
#include "tokenizer/regex.h"
#include "tokenizer/scan.h"
#include "tokenizer/unicode.h"
#include "tokenizer/vectors.h"
#include "tokenizer/workspace.h"
#include "utils/hash.h"
#include "utils/random.h"
#include "utils/utf8.h"

static msgl_ids encode(const msgl_tokenizer *t, const char *text, size_t len,
                       const msgl_encode_opts *opts)
{
    msgl_err err;
    msgl_ids ids = {0};
    char *exact = malloc(len > 0 ? len : 1); // so that a sanitizer sees any read past the end
    assert_non_null(exact);
    memcpy(exact, text, len);
    if (msgl__tokenizer_encode(t, exact, len, opts, &ids, &err) != 0) fail_msg("%s", err.text);
    free(exact);
    return ids;
}

static void check_ids(const msgl_ids *got, const json_t *want, const char *name, size_t index)
{
    msgl_ids ids = {0};
    vector_ids(want, &ids);
    int same = got->len == ids.len;
    for (size_t i = 0; same && i < ids.len; i++) same = got->data[i] == ids.data[i];
    msgl__ids_free(&ids);
    if (!same) fail_msg("%s: ids of case %zu differ", name, index);
}

static void check_text(const msgl_strbuf *got, const json_t *want, const char *name, size_t index)
{
    if (got->len != json_string_length(want) ||
        memcmp(msgl__strbuf_str(got), json_string_value(want), got->len) != 0) {
        fail_msg("%s: text of case %zu is \"%s\", not \"%s\"", name, index, msgl__strbuf_str(got),
                 json_string_value(want));
    }
}

// decode() and the streaming detokenizer give the wanted text, and no piece of the stream starts or
// ends inside a character.
static void check_decode(const msgl_tokenizer *t, const msgl_ids *ids, int skip, const json_t *want,
                         const char *name, size_t index)
{
    msgl_err err;
    msgl_strbuf whole, stream;
    msgl__strbuf_init(&whole, SIZE_MAX / 2);
    msgl__strbuf_init(&stream, SIZE_MAX / 2);
    if (msgl__tokenizer_decode(t, ids->data, ids->len, skip, &whole, &err) != 0) {
        fail_msg("%s", err.text);
    }
    check_text(&whole, want, name, index);
    msgl_detok *d = msgl__detok_create(t, skip);
    assert_non_null(d);
    for (size_t i = 0; i < ids->len; i++) {
        const size_t at = stream.len;
        assert_int_equal(msgl__detok_push(d, ids->data[i], &stream), 0);
        const size_t n = stream.len - at;
        assert_int_equal(msgl__utf8_valid(msgl__strbuf_str(&stream) + at, n), n);
    }
    assert_int_equal(msgl__detok_finish(d, &stream), 0);
    check_text(&stream, want, name, index);
    msgl__detok_destroy(d);
    msgl__strbuf_free(&whole);
    msgl__strbuf_free(&stream);
}

static const json_t *member(const json_t *c, const char *key, const char *otherwise)
{
    const json_t *j = json_object_get(c, key);
    return j != NULL ? j : json_object_get(c, otherwise);
}

static void check_encode_cases(const msgl_tokenizer *t, const char *name)
{
    json_t *cases = vector_cases(name);
    const json_t *list = json_object_get(cases, "encode");
    assert_true(json_array_size(list) > 150);
    for (int pass = 0; pass < 2; pass++) { // the second pass answers from the caches
        for (size_t i = 0; i < json_array_size(list); i++) {
            const json_t *c = json_array_get(list, i), *text = json_object_get(c, "text");
            const char *p = json_string_value(text);
            const size_t n = json_string_length(text);
            const msgl_encode_opts with = {.add_special = 1};
            msgl_ids ids = encode(t, p, n, NULL), special = encode(t, p, n, &with);
            check_ids(&ids, json_object_get(c, "ids"), name, i);
            check_ids(&special, member(c, "special", "ids"), name, i);
            check_decode(t, &special, 0, json_object_get(c, "decoded"), name, i);
            check_decode(t, &special, 1, member(c, "skipped", "decoded"), name, i);
            msgl__ids_free(&ids);
            msgl__ids_free(&special);
        }
    }
    json_decref(cases);
}

static void check_decode_cases(const msgl_tokenizer *t, const char *name)
{
    json_t *cases = vector_cases(name);
    const json_t *list = json_object_get(cases, "decode");
    assert_true(json_array_size(list) > 100);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i);
        msgl_ids ids = {0};
        vector_ids(json_object_get(c, "ids"), &ids);
        check_decode(t, &ids, 0, json_object_get(c, "decoded"), name, i);
        check_decode(t, &ids, 1, member(c, "skipped", "decoded"), name, i);
        msgl__ids_free(&ids);
    }
    json_decref(cases);
}

static void test_encode_vectors(void **state)
{
    (void)state;
    for (size_t v = 0; v < NUM_VECTORS; v++) {
        msgl_tokenizer *t = vector_tokenizer(vector_names[v]);
        check_encode_cases(t, vector_names[v]);
        msgl__tokenizer_free(t);
    }
}

static void test_decode_vectors(void **state)
{
    (void)state;
    for (size_t v = 0; v < NUM_VECTORS; v++) {
        msgl_tokenizer *t = vector_tokenizer(vector_names[v]);
        check_decode_cases(t, vector_names[v]);
        msgl__tokenizer_free(t);
    }
}

// The same tokenizers from the metadata of GGUF files, one for each pipeline that these can name.
static void test_gguf_vectors(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt2", "llama3", "qwen2", "smollm", "spm", "tekken"};
    for (size_t v = 0; v < MSGL_COUNT(names); v++) {
        char path[512];
        msgl_err err;
        msgl_tokenizer *t = NULL, *json = vector_tokenizer(names[v]);
        snprintf(path, sizeof path, MSGL_SOURCE_DIR "/tests/vectors/gguf/tokenizers/%s.gguf",
                 names[v]);
        if (msgl__tokenizer_load(path, &t, &err) != 0) fail_msg("%s", err.text);
        assert_int_equal(msgl__tokenizer_vocab_size(t), msgl__tokenizer_vocab_size(json));
        for (int32_t id = 0; id < msgl__tokenizer_vocab_size(t); id++) {
            assert_int_equal(msgl__tokenizer_is_special(t, id),
                             msgl__tokenizer_is_special(json, id));
        }
        check_encode_cases(t, names[v]);
        check_decode_cases(t, names[v]);
        msgl__tokenizer_free(t);
        msgl__tokenizer_free(json);
    }
}

// ---- scanners ----

static uint64_t rng_state = 1;

static uint32_t rnd(uint32_t below)
{
    return (uint32_t)msgl__random_below(&rng_state, below);
}

// Text that crosses the borders of the patterns' alternatives.
static size_t nasty_text(char *out, size_t max_chars)
{
    static const uint32_t usual[] = {' ',    ' ',     '\n',   '\r',   '\t',   '\'',    's',  'S',
                                     't',    'r',     'e',    'l',    'v',    'd',     'm',  '1',
                                     '2',    '9',     '!',    '.',    '-',    'a',     'Z',  0xe9,
                                     0x17f,  0xa0,    0x2003, 0x3000, 0x85,   0x301,   0xb2, 0x661,
                                     0x4e2d, 0x1f600, 0x200d, 0x180e, 0x2028, 0x10400, 0,    0xb};
    const size_t chars = rnd((uint32_t)max_chars) + 1;
    size_t n = 0;
    for (size_t i = 0; i < chars; i++) {
        uint32_t cp = usual[rnd(sizeof(usual) / sizeof(usual[0]))];
        if (rnd(6) == 0) {
            do {
                cp = rnd(rnd(2) ? 0x110000 : 0x3000);
            } while (cp >= 0xd800 && cp < 0xe000);
        }
        n += msgl__utf8_put(cp, out + n);
    }
    return n;
}

static void test_scanners_equal_pcre2(void **state)
{
    (void)state;
    msgl_unicode *u = calloc(1, sizeof(*u));
    msgl_regex_ws *ws = msgl__regex_ws_create();
    assert_non_null(u);
    assert_non_null(ws);
    msgl__uni_build(u);
    for (enum msgl_scan scan = MSGL_SCAN_GPT2; scan <= MSGL_SCAN_LLAMA3; scan++) {
        msgl_err err;
        msgl_regex *re = NULL;
        const char *pattern = msgl__scan_pattern(scan);
        assert_int_equal(msgl__scan_known(pattern, strlen(pattern)), scan);
        assert_int_equal(msgl__scan_known(pattern, strlen(pattern) - 1), MSGL_SCAN_NONE);
        if (msgl__regex_compile(u, pattern, strlen(pattern), &re, &err) != 0)
            fail_msg("%s", err.text);
        for (int round = 0; round < 10000; round++) {
            char text[4 * 40];
            const size_t n = nasty_text(text, 40);
            msgl_regex_iter it = {0};
            for (size_t pos = 0; pos < n;) {
                size_t start, end;
                assert_int_equal(msgl__regex_next(re, ws, text, n, &it, &start, &end), 1);
                assert_int_equal(start, pos);
                pos = msgl__scan_next(scan, u, text, n, pos);
                assert_int_equal(pos, end);
            }
        }
        msgl__regex_free(re);
    }
    msgl__regex_ws_free(ws);
    free(u);
}

// Patterns of every construct cut texts as Oniguruma, the engine of `tokenizers`, cuts them.
static void test_patterns(void **state)
{
    (void)state;
    msgl_unicode *u = calloc(1, sizeof(*u));
    msgl_regex_ws *ws = msgl__regex_ws_create();
    json_t *list = json_load_file(MSGL_SOURCE_DIR "/tests/vectors/tokenizer/patterns.json",
                                  JSON_ALLOW_NUL, NULL);
    assert_non_null(u);
    assert_non_null(ws);
    assert_true(json_array_size(list) > 30);
    msgl__uni_build(u);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i), *cuts = json_object_get(entry, "cuts");
        const char *pattern = json_string_value(json_object_get(entry, "pattern"));
        msgl_regex *re = NULL;
        msgl_err err;
        if (msgl__regex_compile(u, pattern, strlen(pattern), &re, &err) != 0)
            fail_msg("%s", err.text);
        for (size_t k = 0; k < json_array_size(cuts); k++) {
            const json_t *cut = json_array_get(cuts, k), *text = json_object_get(cut, "text");
            const json_t *pieces = json_object_get(cut, "pieces");
            const size_t len = json_string_length(text);
            msgl_regex_iter it = {0};
            size_t n = 0, at = 0, start = 0, end = 0;
            int more = 1;
            while (at < len) { // a match, or the text up to the next one
                while (more && (start < at || end <= at)) {
                    more =
                        msgl__regex_next(re, ws, json_string_value(text), len, &it, &start, &end);
                    assert_true(more >= 0);
                    if (more && start > at) break;
                }
                const size_t stop = !more ? len : start > at ? start : end;
                if (stop == at) continue;
                const json_int_t want = json_integer_value(json_array_get(pieces, n++));
                if (want != (json_int_t)(stop - at))
                    fail_msg("%s: text %zu, piece %zu", pattern, k, n);
                at = stop;
            }
            assert_int_equal(n, json_array_size(pieces));
        }
        msgl__regex_free(re);
    }
    json_decref(list);
    msgl__regex_ws_free(ws);
    free(u);
}

// ---- normalizers ----

// What each normalizer makes of every code point, alone and between combining marks, in one hash:
// the same whatever Unicode version the installed utf8proc has.
static void test_normalizers_all_code_points(void **state)
{
    (void)state;
    json_t *hashes =
        json_load_file(MSGL_SOURCE_DIR "/tests/vectors/tokenizer/unicode.json", 0, NULL);
    const char *name;
    json_t *want;
    assert_int_equal(json_object_size(hashes), 5);
    json_object_foreach(hashes, name, want)
    {
        char json[256], hex[20];
        msgl_tokenizer *t = NULL;
        snprintf(json, sizeof(json),
                 "{\"normalizer\":{\"type\":\"%s\"},\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}",
                 name);
        assert_int_equal(msgl__tokenizer_parse(json, strlen(json), NULL, 0, &t, NULL), 0);
        msgl_tok_ws *ws = msgl__ws_take(t);
        assert_non_null(ws);
        uint64_t h = MSGL_HASH_START;
        for (uint32_t c = 1; c < 0x110000; c++) {
            if ((c >= 0x33500 && (c < 0xe0000 || c >= 0xe0200)) || (c >= 0xd800 && c < 0xe000))
                continue;
            char in[32], ch[4];
            const size_t n = msgl__utf8_put(c, ch);
            const int len = snprintf(in, sizeof(in), "%.*s a%.*s\xcd\x85\xcc\xb4%.*s", (int)n, ch,
                                     (int)n, ch, (int)n, ch);
            msgl_text text = {in, NULL, (size_t)len};
            ws->buf_limit = 10000;
            assert_int_equal(msgl__normalize(t, ws, &text), 0);
            h = msgl__hash(h, text.p, text.n);
        }
        snprintf(hex, sizeof(hex), "%016llx", (unsigned long long)h);
        if (strcmp(hex, json_string_value(want)) != 0) fail_msg("%s differs", name);
        msgl__ws_give(t, ws);
        msgl__tokenizer_free(t);
    }
    json_decref(hashes);
}

// ---- UTF-8 ----

static void test_invalid_utf8(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t len, at;
    } bad[] = {
        {"abc\xff", 4, 3},
        {"\x80", 1, 0},
        {"a\xc0\xaf", 3, 1},
        {"\xe0\x80\x80", 3, 0},
        {"\xed\xa0\x80", 3, 0},
        {"12345678\xf4\x90\x80\x80", 12, 8},
        {"\xf0\x8f\xbf\xbf", 4, 0},
        {"\xc3\xa9\xe2\x98", 4, 2},
        {"\xf8\x88\x80\x80\x80", 5, 0},
        {"0123456789abcdef\xc3", 17, 16},
    };
    msgl_tokenizer *t = vector_tokenizer("qwen2");
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        msgl_err err;
        msgl_ids ids = {0};
        char want[32];
        assert_int_equal(msgl__ids_push(&ids, 7), 0);
        assert_int_equal(msgl__tokenizer_encode(t, bad[i].text, bad[i].len, NULL, &ids, &err),
                         MSGL_EFORMAT);
        snprintf(want, sizeof(want), "at byte %zu", bad[i].at);
        assert_non_null(strstr(err.text, want));
        assert_int_equal(ids.len, 1);
        msgl__ids_free(&ids);
    }
    msgl__tokenizer_free(t);
}

static void test_byte_alphabet(void **state)
{
    (void)state;
    for (unsigned b = 0; b < 256; b++) {
        assert_int_equal(msgl__char_byte(msgl__byte_char((unsigned char)b)), b);
    }
}

// ---- untrusted text ----

static int has_id(const msgl_ids *ids, int32_t id)
{
    for (size_t i = 0; i < ids->len; i++) {
        if (ids->data[i] == id) return 1;
    }
    return 0;
}

// Every special token, placed so that one byte, some or all of it are untrusted, at every offset:
// recognised exactly when all bytes are trusted; and the text still decodes to itself.
static void test_untrusted_spans(void **state)
{
    (void)state;
    static const struct {
        const char *vector, *token;
    } specials[] = {{"qwen2", "<|im_start|>"}, {"llama3", "<|eot_id|>"}, {"gpt2", "<|endoftext|>"},
                    {"llama2", "</s>"},        {"mistral", "[INST]"},    {"flags", "<S>"},
                    {"tekken", "<s>"}};
    for (size_t k = 0; k < sizeof(specials) / sizeof(specials[0]); k++) {
        msgl_tokenizer *t = vector_tokenizer(specials[k].vector);
        const int32_t id = msgl__tokenizer_id(t, specials[k].token);
        assert_true(id >= 0 && msgl__tokenizer_is_special(t, id));
        char text[64];
        // Llama 2's tokens go through the normalizer, which puts a space before them: the space
        // that stands there in the text is one of the token's bytes.
        const size_t spaced = strcmp(specials[k].vector, "llama2") == 0;
        const size_t n = strlen(specials[k].token) + spaced, start = 3 - spaced;
        snprintf(text, sizeof(text), "ab %s cd", specials[k].token);
        const size_t len = strlen(text);
        for (size_t from = 0; from < len; from++) {
            for (size_t to = from; to <= len; to++) {
                const msgl_text_span span = {from, to};
                const msgl_encode_opts opts = {.untrusted = &span, .num_untrusted = 1};
                const int hit = from < to && from < start + n && to > start;
                msgl_ids ids = encode(t, text, len, &opts);
                if (has_id(&ids, id) == hit) {
                    fail_msg("%s: \"%s\" with [%zu, %zu) untrusted", specials[k].vector, text, from,
                             to);
                }
                msgl__ids_free(&ids);
            }
        }
        msgl__tokenizer_free(t);
    }
}

// A non-special added token in untrusted text is found; one that a special token would have hidden
// is found too.
static void test_untrusted_added(void **state)
{
    (void)state;
    msgl_tokenizer *t = vector_tokenizer("qwen2");
    const int32_t call = msgl__tokenizer_id(t, "<tool_call>");
    assert_true(call >= 0 && !msgl__tokenizer_is_special(t, call));
    const char *text = "x<tool_call>y";
    const msgl_text_span all = {0, strlen(text)};
    const msgl_encode_opts opts = {.untrusted = &all, .num_untrusted = 1};
    msgl_ids ids = encode(t, text, strlen(text), &opts);
    assert_true(has_id(&ids, call));
    msgl__ids_free(&ids);
    msgl_err err;
    const msgl_text_span twisted[2] = {{5, 8}, {2, 3}}, outside = {3, 99};
    const msgl_encode_opts bad1 = {.untrusted = twisted, .num_untrusted = 2};
    const msgl_encode_opts bad2 = {.untrusted = &outside, .num_untrusted = 1};
    assert_int_equal(msgl__tokenizer_encode(t, text, strlen(text), &bad1, &ids, &err), MSGL_EINVAL);
    assert_int_equal(msgl__tokenizer_encode(t, text, strlen(text), &bad2, &ids, &err), MSGL_EINVAL);
    msgl__tokenizer_free(t);
}

// In foreign text it is not found, however little of it is foreign, nor by what the vocabulary has;
// runs of blanks are.
static void test_foreign(void **state)
{
    (void)state;
    msgl_tokenizer *t = vector_tokenizer("qwen2");
    const int32_t call = msgl__tokenizer_id(t, "<tool_call>");
    const char *text = "x<tool_call>y<tool_call>";
    const size_t n = strlen(text);
    for (size_t from = 0; from < 13; from++) {
        const msgl_text_span span = {from, from + 1}, all = {0, n};
        const msgl_encode_opts opts = {
            .untrusted = &all, .num_untrusted = 1, .foreign = &span, .num_foreign = 1};
        msgl_ids ids = encode(t, text, n, &opts);
        int found = 0;
        for (size_t i = 0; i < ids.len; i++) found += ids.data[i] == call;
        assert_int_equal(found, from == 0 || from == 12 ? 2 : 1);
        msgl_strbuf back;
        msgl__strbuf_init(&back, 1 << 16);
        assert_int_equal(msgl__tokenizer_decode(t, ids.data, ids.len, 0, &back, NULL), 0);
        assert_string_equal(msgl__strbuf_str(&back), text);
        msgl__strbuf_free(&back);
        msgl__ids_free(&ids);
    }
    msgl_err err;
    const msgl_text_span outside = {3, 99};
    const msgl_encode_opts bad = {.foreign = &outside, .num_foreign = 1};
    msgl_ids none = {0};
    assert_int_equal(msgl__tokenizer_encode(t, text, n, &bad, &none, &err), MSGL_EINVAL);
    assert_non_null(strstr(err.text, "foreign span 0"));
    msgl__tokenizer_free(t);
}

// With nothing trusted, no text gives a special token, and the ids still decode to the same text.
static void test_untrusted_never_special(void **state)
{
    (void)state;
    for (size_t v = 0; v < NUM_VECTORS; v++) {
        msgl_tokenizer *t = vector_tokenizer(vector_names[v]);
        json_t *cases = vector_cases(vector_names[v]);
        const json_t *list = json_object_get(cases, "encode");
        const int32_t unk = msgl__tokenizer_id(t, "<unk>"), bert = msgl__tokenizer_id(t, "[UNK]");
        for (size_t i = 0; i < json_array_size(list); i++) {
            const json_t *text = json_object_get(json_array_get(list, i), "text");
            const msgl_text_span all = {0, json_string_length(text)};
            const msgl_encode_opts opts = {.untrusted = &all, .num_untrusted = 1};
            msgl_ids ids = encode(t, json_string_value(text), json_string_length(text), &opts);
            for (size_t k = 0; k < ids.len; k++) {
                if (ids.data[k] == unk || ids.data[k] == bert)
                    continue; // also what unknown characters become
                assert_false(msgl__tokenizer_is_special(t, ids.data[k]));
            }
            msgl__ids_free(&ids);
        }
        json_decref(cases);
        msgl__tokenizer_free(t);
    }
}

// ---- limits ----

static void test_max_ids(void **state)
{
    (void)state;
    msgl_tokenizer *t = vector_tokenizer("llama3");
    const char *text = "one two three <|eot_id|> four";
    msgl_encode_opts opts = {.add_special = 1};
    msgl_ids all = encode(t, text, strlen(text), &opts);
    for (size_t max = 1; max < all.len + 2; max++) {
        msgl_err err;
        msgl_ids ids = {0};
        assert_int_equal(msgl__ids_push(&ids, 5), 0);
        opts.max_ids = max;
        const int rc = msgl__tokenizer_encode(t, text, strlen(text), &opts, &ids, &err);
        assert_int_equal(rc, max < all.len ? MSGL_ELIMIT : 0);
        assert_int_equal(ids.len, max < all.len ? 1 : all.len + 1);
        msgl__ids_free(&ids);
    }
    msgl__ids_free(&all);
    msgl__tokenizer_free(t);
}

// Long runs are one piece; the ids are those of the definition, and it does not take for ever.
static void test_long_runs(void **state)
{
    (void)state;
    static const char *const units[] = {"a", " ", "\n", "=", "\xc3\xa9", "ab", "\xe2\x98\x83", "1"};
    for (size_t v = 0; v < NUM_VECTORS; v++) {
        msgl_tokenizer *t = vector_tokenizer(vector_names[v]);
        for (size_t k = 0; k < sizeof(units) / sizeof(units[0]); k++) {
            const size_t n = strlen(units[k]), len = 400000 / n * n;
            char *text = malloc(len);
            assert_non_null(text);
            for (size_t i = 0; i < len; i += n) memcpy(text + i, units[k], n);
            msgl_ids ids = encode(t, text, len, NULL);
            msgl_strbuf out;
            msgl__strbuf_init(&out, SIZE_MAX / 2);
            assert_int_equal(msgl__tokenizer_decode(t, ids.data, ids.len, 0, &out, NULL), 0);
            if (v == 0 || v == 1 || v == 2 || v == 5) { // byte-level without a changing normalizer
                assert_int_equal(out.len, len);
                assert_memory_equal(out.data, text, len);
            }
            msgl__strbuf_free(&out);
            msgl__ids_free(&ids);
            free(text);
        }
        msgl__tokenizer_free(t);
    }
}

// ---- ids ----

static void test_token_bytes(void **state)
{
    (void)state;
    for (size_t v = 0; v < 6; v++) { // the pipelines of real models
        msgl_tokenizer *t = vector_tokenizer(vector_names[v]);
        const char *text = "Hello w\xc3\xb6rld \xe2\x98\x83\xf0\x9f\x98\x80 don't  stop 12";
        msgl_ids ids = encode(t, text, strlen(text), NULL);
        char joined[256];
        size_t n = 0;
        for (size_t i = 0; i < ids.len; i++) {
            char buf[64];
            const int len = msgl__tokenizer_token_bytes(t, ids.data[i], buf, sizeof(buf));
            assert_true(len > 0 && len <= (int)sizeof(buf));
            assert_int_equal(msgl__tokenizer_token_bytes(t, ids.data[i], NULL, 0), len);
            memcpy(joined + n, buf, (size_t)len);
            n += (size_t)len;
        }
        const size_t lead = joined[0] == ' '; // SentencePiece's first space
        assert_int_equal(n - lead, strlen(text));
        assert_memory_equal(joined + lead, text, n - lead);
        assert_int_equal(msgl__tokenizer_token_bytes(t, -1, NULL, 0), -1);
        const int size = msgl__tokenizer_vocab_size(t);
        assert_int_equal(msgl__tokenizer_token_bytes(t, size, NULL, 0), -1);
        msgl__ids_free(&ids);
        msgl__tokenizer_free(t);
    }
}

static void test_ids_out_of_range(void **state)
{
    (void)state;
    msgl_tokenizer *t = vector_tokenizer("llama2");
    const int size = msgl__tokenizer_vocab_size(t);
    const int32_t bad[] = {-1, INT32_MIN, size, INT32_MAX};
    msgl_strbuf out;
    msgl_err err;
    msgl__strbuf_init(&out, 1000);
    assert_int_equal(msgl__strbuf_adds(&out, "before"), 0);
    msgl_detok *d = msgl__detok_create(t, 0);
    for (size_t i = 0; i < 4; i++) {
        const int32_t ids[2] = {5, bad[i]};
        assert_int_equal(msgl__tokenizer_decode(t, ids, 2, 0, &out, &err), MSGL_EINVAL);
        assert_int_equal(msgl__detok_push(d, bad[i], &out), MSGL_EINVAL);
        assert_false(msgl__tokenizer_is_special(t, bad[i]));
    }
    assert_string_equal(msgl__strbuf_str(&out), "before");
    assert_int_equal(msgl__tokenizer_id(t, "<s>"), 1);
    assert_int_equal(msgl__tokenizer_id(t, "no such token"), -1);
    msgl__detok_destroy(d);
    msgl__strbuf_free(&out);
    msgl__tokenizer_free(t);
}

// ---- threads and memory ----

typedef struct shared {
    const msgl_tokenizer *t;
    const json_t *list;
} shared;

// Returns the number of wrong answers.
static void *encode_all(void *arg)
{
    const shared *s = arg;
    size_t wrong = 0;
    for (size_t i = 0; i < json_array_size(s->list); i++) {
        const json_t *c = json_array_get(s->list, i), *text = json_object_get(c, "text");
        const json_t *want = json_object_get(c, "ids");
        msgl_ids ids = {0};
        if (msgl__tokenizer_encode(s->t, json_string_value(text), json_string_length(text), NULL,
                                   &ids, NULL) != 0 ||
            ids.len != json_array_size(want)) {
            wrong++;
        }
        for (size_t k = 0; k < ids.len; k++) {
            wrong += ids.data[k] != json_integer_value(json_array_get(want, k));
        }
        msgl__ids_free(&ids);
    }
    return (void *)(uintptr_t)wrong;
}

static void test_threads(void **state)
{
    (void)state;
    for (size_t v = 0; v < NUM_VECTORS; v++) {
        msgl_tokenizer *t = vector_tokenizer(vector_names[v]);
        json_t *cases = vector_cases(vector_names[v]);
        shared s = {t, json_object_get(cases, "encode")};
        pthread_t threads[4];
        for (int i = 0; i < 4; i++) {
            assert_int_equal(pthread_create(&threads[i], NULL, encode_all, &s), 0);
        }
        for (int i = 0; i < 4; i++) {
            void *wrong = NULL;
            pthread_join(threads[i], &wrong);
            assert_null(wrong);
        }
        json_decref(cases);
        msgl__tokenizer_free(t);
    }
}

// Every allocation of a load, an encode and a decode fails once; each time the error comes back and
// nothing leaks (a sanitizer build sees to that).
static void test_failing_allocations(void **state)
{
    (void)state;
    static const char *const names[] = {"flags", "llama2", "pieces"};
    static const char text[] =
        "ab <S> cd ef\xcc\x81  [x] <LR> -x- 12 \xe2\x98\x83 verylongwordwithoutspaces"
        "verylongwordwithoutspacesverylongwordwithoutspaces";
    for (size_t k = 0; k < MSGL_COUNT(names); k++) {
        char dir[512];
        snprintf(dir, sizeof(dir), "%s/tests/vectors/tokenizer/%s", MSGL_SOURCE_DIR, names[k]);
        int rc = MSGL_ENOMEM;
        for (uint64_t nth = 1; rc != 0; nth++) {
            msgl_tokenizer *t = NULL;
            msgl_ids ids = {0};
            msgl_strbuf out;
            const msgl_text_span span = {3, 5};
            const msgl_encode_opts opts = {
                .add_special = 1, .untrusted = &span, .num_untrusted = 1};
            msgl__strbuf_init(&out, 10000);
            msgl__mem_fail_from(nth);
            rc = msgl__tokenizer_load(dir, &t, NULL);
            if (rc == 0) rc = msgl__tokenizer_encode(t, text, sizeof(text) - 1, &opts, &ids, NULL);
            if (rc == 0) rc = msgl__tokenizer_decode(t, ids.data, ids.len, 0, &out, NULL);
            msgl__mem_fail_from(0);
            assert_true(rc == 0 || rc == MSGL_ENOMEM);
            msgl__strbuf_free(&out);
            msgl__ids_free(&ids);
            msgl__tokenizer_free(t);
        }
    }
}

// A warm tokenizer and a warm stream take no heap memory.
static void test_no_allocations_when_warm(void **state)
{
    (void)state;
    msgl_tokenizer *t = vector_tokenizer("qwen2");
    const char *text = "The quick brown fox doesn't jump. \xe4\xbb\x8a\xe5\xa4\xa9 <|im_end|>\n";
    msgl_ids ids = encode(t, text, strlen(text), NULL);
    msgl_strbuf out;
    msgl__strbuf_init(&out, 1 << 20);
    assert_int_equal(msgl__strbuf_reserve(&out, 1 << 16), 0);
    msgl_detok *d = msgl__detok_create(t, 0);
    uint64_t before = 0;
    for (int round = 0; round < 10; round++) {
        if (round == 2) before = msgl__mem_allocs();
        const size_t n = ids.len;
        for (size_t i = 0; i < n; i++) assert_int_equal(msgl__detok_push(d, ids.data[i], &out), 0);
        ids.len = 0;
        assert_int_equal(msgl__tokenizer_encode(t, text, strlen(text), NULL, &ids, NULL), 0);
    }
    assert_int_equal(msgl__mem_allocs(), before);
    msgl__detok_destroy(d);
    msgl__strbuf_free(&out);
    msgl__ids_free(&ids);
    msgl__tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode_vectors),
        cmocka_unit_test(test_decode_vectors),
        cmocka_unit_test(test_gguf_vectors),
        cmocka_unit_test(test_scanners_equal_pcre2),
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_normalizers_all_code_points),
        cmocka_unit_test(test_invalid_utf8),
        cmocka_unit_test(test_byte_alphabet),
        cmocka_unit_test(test_untrusted_spans),
        cmocka_unit_test(test_untrusted_added),
        cmocka_unit_test(test_foreign),
        cmocka_unit_test(test_untrusted_never_special),
        cmocka_unit_test(test_max_ids),
        cmocka_unit_test(test_long_runs),
        cmocka_unit_test(test_token_bytes),
        cmocka_unit_test(test_ids_out_of_range),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_no_allocations_when_warm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
