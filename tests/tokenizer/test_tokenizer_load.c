// SPDX-License-Identifier: Apache-2.0
//
// Hostile and odd tokenizer.json files: each gives one clear error that names the place.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tokenizer/load.h"
#include "tokenizer/load_tiktoken.h"
#include "tokenizer/vectors.h"

#define MODEL(vocab, merges)                                                                       \
    "\"model\":{\"type\":\"BPE\",\"vocab\":" vocab ",\"merges\":" merges "}"
#define AB MODEL("{\"a\":0,\"b\":1,\"ab\":2}", "[\"a b\"]")

static int parse(const char *json, const char *config, msgl_tokenizer **t, msgl_err *err)
{
    *t = NULL;
    return msgl__tokenizer_parse(json, strlen(json), config, config == NULL ? 0 : strlen(config), t,
                                 err);
}

// Fails with `code`, and the text names `what`.
static void refuse(const char *json, int code, const char *what)
{
    msgl_tokenizer *t;
    msgl_err err = {0};
    const int rc = parse(json, NULL, &t, &err);
    assert_null(t);
    if (rc != code || strstr(err.text, what) == NULL) {
        fail_msg("%.200s gives %d \"%s\", not %d \"%s\"", json, rc, err.text, code, what);
    }
    assert_null(strchr(err.text, '\n'));
}

static void test_json(void **state)
{
    (void)state;
    refuse("", MSGL_EFORMAT, "line 1");
    refuse("{\"a\":", MSGL_EFORMAT, "tokenizer.json: line 1");
    refuse("[]", MSGL_EFORMAT, "expected an object, found an array");
    refuse("{}", MSGL_EFORMAT, "model: expected an object, found nothing");
    refuse("{\"version\":\"2.0\"," AB "}", MSGL_EUNSUPPORTED, "version");
    refuse("{\"model\":{},\"model\":{}}", MSGL_EFORMAT, "duplicate");
    char *deep = malloc(200003);
    memset(deep, '[', 100000);
    memset(deep + 100000, ']', 100000);
    deep[200000] = '\0';
    refuse(deep, MSGL_EFORMAT, "depth");
    free(deep);
}

static void test_model(void **state)
{
    (void)state;
    refuse("{\"model\":{\"type\":\"WordLevel\",\"vocab\":{}}}", MSGL_EUNSUPPORTED,
           "known: BPE WordPiece Unigram");
    refuse("{" MODEL("{}", "[]") "}", MSGL_EFORMAT, "model.vocab: empty");
    refuse("{" MODEL("[\"a\"]", "[]") "}", MSGL_EFORMAT, "model.vocab: expected an object");
    refuse("{" MODEL("{\"a\":-1}", "[]") "}", MSGL_EFORMAT, "\"a\" needs an integer id");
    refuse("{" MODEL("{\"a\":\"0\"}", "[]") "}", MSGL_EFORMAT, "\"a\" needs an integer id");
    refuse("{" MODEL("{\"a\":0.5}", "[]") "}", MSGL_EFORMAT, "\"a\" needs an integer id");
    refuse("{" MODEL("{\"a\":1000000000}", "[]") "}", MSGL_EFORMAT, "\"a\" needs an integer id");
    refuse("{" MODEL("{\"a\":0,\"b\":0,\"c\":2}", "[]") "}", MSGL_EFORMAT,
           "id 0 is both \"a\" and \"b\"");
    refuse("{" MODEL("{\"a\":0,\"b\":0}", "[]") "}", MSGL_EFORMAT, "2 tokens with ids up to 0");
    refuse("{" MODEL("{\"a\":0,\"a\":1}", "[]") "}", MSGL_EFORMAT, "\"a\" occurs twice");
    refuse("{" MODEL("{\"a\":0,\"\\u0061\":1}", "[]") "}", MSGL_EFORMAT, "\"a\" occurs twice");
    refuse("{" MODEL("{\"a\":0,}", "[]") "}", MSGL_EFORMAT, "model.vocab: malformed JSON at byte");
    refuse("{" MODEL("{\"a\" 0}", "[]") "}", MSGL_EFORMAT, "model.vocab: malformed JSON at byte");
    refuse("{" MODEL("{\"a\":0 \"b\":1}", "[]") "}", MSGL_EFORMAT, "model.vocab: malformed");
    refuse("{" MODEL("{\"\\ud800\":0}", "[]") "}", MSGL_EFORMAT, "model.vocab: malformed");
    refuse("{" MODEL("{\"\\x\":0}", "[]") "}", MSGL_EFORMAT, "model.vocab: malformed");
    refuse("{" MODEL("{\"a\tb\":0}", "[]") "}", MSGL_EFORMAT, "model.vocab: malformed");
    refuse("{" MODEL("{\"a\":01}", "[]") "}", MSGL_EFORMAT, "\"a\" needs an integer id");
    refuse("{" MODEL("{\"a\":1e2}", "[]") "}", MSGL_EFORMAT, "\"a\" needs an integer id");
    refuse("{" MODEL("{\"a\":99999999999999999999}", "[]") "}", MSGL_EFORMAT,
           "needs an integer id");
    refuse("{" MODEL("{\"\xff\":0}", "[]") "}", MSGL_EFORMAT, "not valid UTF-8 at byte");
    refuse("{\"model\":{\"vocab\":{\"a\":0},\"vocab\":{\"a\":0},\"merges\":[]}}", MSGL_EFORMAT,
           "duplicate");
    refuse("{\"model\":{\"merges\":[]}}", MSGL_EFORMAT, "model.vocab: expected an object");
    refuse("{\"model\":{\"vocab\":{\"a\":0}}}", MSGL_EFORMAT, "model.merges: expected an array");
    refuse("{" MODEL("{\"a\":0,\"aa\":1}", "[\"a a\" \"a a\"]") "}", MSGL_EFORMAT,
           "model.merges: malformed");
    refuse("{" MODEL("{\"a\":0}", "[\"a b\"]") "}", MSGL_EFORMAT, "merges[0]: token \"b\"");
    refuse("{" MODEL("{\"a\":0,\"b\":1}", "[[\"a\",\"b\"]]") "}", MSGL_EFORMAT, "token \"ab\"");
    refuse("{" MODEL("{\"a\":0}", "[\"aa\"]") "}", MSGL_EFORMAT,
           "merges[0]: expected \"left right\"");
    refuse("{" MODEL("{\"a\":0}", "[\"a a a\"]") "}", MSGL_EFORMAT, "merges[0]: expected");
    refuse("{" MODEL("{\"a\":0}", "[\"a \"]") "}", MSGL_EFORMAT, "merges[0]: expected");
    refuse("{" MODEL("{\"a\":0}", "[[\"a\"]]") "}", MSGL_EFORMAT, "merges[0]: expected");
    refuse("{" MODEL("{\"a\":0}", "[[\"a\",1]]") "}", MSGL_EFORMAT, "merges[0]: expected");
    refuse("{" MODEL("{\"a\":0}", "[7]") "}", MSGL_EFORMAT, "merges[0]: expected");
    refuse("{" MODEL("{\"a\":0}", "{}") "}", MSGL_EFORMAT, "model.merges: expected an array");
    refuse("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}}", MSGL_EUNSUPPORTED,
           "dropout");
    refuse("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"x\"}}", MSGL_EFORMAT,
           "unk_token");
    refuse("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":5}}", MSGL_EFORMAT,
           "unk_token: expected a string");
    refuse("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"fuse_unk\":\"no\"}}", MSGL_EFORMAT,
           "model.fuse_unk: expected true or false");
    refuse("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"end_of_word_suffix\":\"</w>\"}}",
           MSGL_EUNSUPPORTED, "end_of_word_suffix");
}

// More than the limits on numbers and sizes let through.
static void test_too_many(void **state)
{
    (void)state;
    const size_t n = (1 << 22) + 1;
    char *json = malloc(n * 9 + 200);
    assert_non_null(json);
    size_t len = (size_t)sprintf(json, "{\"model\":{\"vocab\":{\"a\":0,\"aa\":1},\"merges\":[");
    for (size_t i = 0; i < n; i++) len += (size_t)sprintf(json + len, "%s\"a a\"", i ? "," : "");
    sprintf(json + len, "]}}");
    refuse(json, MSGL_ELIMIT, "model.merges: 4194305 of them; at most 4194304");
    len = (size_t)sprintf(json, "{%s,\"padding\":[", AB);
    for (size_t i = 0; len < ((size_t)33 << 20); i++) len += (size_t)sprintf(json + len, "0,");
    sprintf(json + len, "0]}");
    refuse(json, MSGL_EFORMAT, "besides vocabulary and merges; at most");
    free(json);
}

static void test_added(void **state)
{
    (void)state;
    refuse("{\"added_tokens\":{}," AB "}", MSGL_EFORMAT, "added_tokens: expected an array");
    refuse("{\"added_tokens\":[1]," AB "}", MSGL_EFORMAT, "added_tokens[0]: expected an object");
    refuse("{\"added_tokens\":[{\"id\":-3,\"content\":\"x\"}]," AB "}", MSGL_EFORMAT,
           "added_tokens[0].id: -3 is outside 0 to");
    refuse("{\"added_tokens\":[{\"id\":4294967296,\"content\":\"x\"}]," AB "}", MSGL_EFORMAT,
           "outside");
    refuse("{\"added_tokens\":[{\"content\":\"x\"}]," AB "}", MSGL_EFORMAT, "added_tokens[0].id");
    refuse("{\"added_tokens\":[{\"id\":3}]," AB "}", MSGL_EFORMAT, "added_tokens[0].content");
    refuse("{\"added_tokens\":[{\"id\":3,\"content\":\"x\",\"special\":1}]," AB "}", MSGL_EFORMAT,
           "added_tokens[0].special: expected true or false, found an integer");
    refuse("{\"added_tokens\":[{\"id\":4,\"content\":\"x\"}]," MODEL("{\"a\":0,\"b\":2}", "[]") "}",
           MSGL_EFORMAT, "added_tokens[0]: its id, 2, belongs to another token of model.vocab");
    // 10^7 added tokens, or as many as the limit on files lets through.
    const size_t n = 250000, each = 48;
    char *many = malloc(n * each + 200);
    assert_non_null(many);
    size_t len = (size_t)sprintf(many, "{%s,\"added_tokens\":[", AB);
    for (size_t i = 0; i < n; i++) {
        len += (size_t)sprintf(many + len, "%s{\"id\":%zu,\"content\":\"%zu\"}", i ? "," : "",
                               i + 3, i);
    }
    sprintf(many + len, "]}");
    refuse(many, MSGL_ELIMIT, "250000 of them; at most");
    free(many);
    char *longer = malloc(4000);
    len = (size_t)sprintf(longer, "{%s,\"added_tokens\":[{\"id\":3,\"content\":\"", AB);
    memset(longer + len, 'x', 2000);
    sprintf(longer + len + 2000, "\"}]}");
    refuse(longer, MSGL_ELIMIT, "2000 bytes; at most");
    free(longer);
}

// What `tokenizers` takes and this does not, each by its name.
static void test_unsupported(void **state)
{
    (void)state;
    static const char *const patterns[][2] = {
        {"[[:alpha:]]+", "a class inside a class is not supported, at byte 1: \"[:alpha:]]+\""},
        {"[\\\\p{L}&&[^b]]", "an intersection of classes is not supported, at byte 6: \"&&[^b]]\""},
        {"\\\\X", "this escape is not supported, at byte 0: \"\\X\""},
        {"a\\\\R", "this escape is not supported, at byte 1: \"\\R\""},
    };
    char json[512];
    for (size_t i = 0; i < MSGL_COUNT(patterns); i++) {
        snprintf(
            json, sizeof json,
            "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},\"behavior\":"
            "\"Isolated\",\"invert\":false}," AB "}",
            patterns[i][0]);
        refuse(json, MSGL_EUNSUPPORTED, patterns[i][1]);
    }
    static const char *const parts[][2] = {
        {"pre_tokenizer", "FixedLength"},
        {"post_processor", "SpanProcessing"},
    };
    for (size_t i = 0; i < MSGL_COUNT(parts); i++) {
        char says[96];
        snprintf(json, sizeof json, "{\"%s\":{\"type\":\"%s\"}," AB "}", parts[i][0], parts[i][1]);
        snprintf(says, sizeof says, "%s: type \"%s\" is not supported; known: ", parts[i][0],
                 parts[i][1]);
        refuse(json, MSGL_EUNSUPPORTED, says);
    }
    refuse("{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":0}}}", MSGL_EUNSUPPORTED,
           "model: type \"WordLevel\" is not supported; known: BPE WordPiece Unigram");
    refuse("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"continuing_subword_prefix\":\"##\"}}",
           MSGL_EUNSUPPORTED, "model.continuing_subword_prefix");
}

static void test_components(void **state)
{
    (void)state;
    refuse("{\"normalizer\":{\"type\":\"StripAccents\"}," AB "}", MSGL_EUNSUPPORTED,
           "normalizer: type \"StripAccents\" is not supported; known: NFC");
    refuse("{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":"
           "\"X\"}]}," AB "}",
           MSGL_EUNSUPPORTED, "normalizer.normalizers[1]: type \"X\"");
    refuse("{\"normalizer\":{\"type\":\"Sequence\"}," AB "}", MSGL_EFORMAT,
           "normalizer.normalizers");
    refuse("{\"normalizer\":[]," AB "}", MSGL_EFORMAT, "normalizer: expected an object");
    refuse("{\"normalizer\":{}," AB "}", MSGL_EFORMAT, "normalizer.type: expected a string");
    refuse(
        "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"x\"}," AB
        "}",
        MSGL_EFORMAT, "pattern.String: empty");
    refuse("{\"normalizer\":{\"type\":\"Replace\",\"pattern\":\"x\",\"content\":\"x\"}," AB "}",
           MSGL_EFORMAT, "normalizer.pattern: expected");
    refuse("{\"normalizer\":{\"type\":\"Strip\",\"strip_left\":true}," AB "}", MSGL_EFORMAT,
           "strip_right");
    refuse("{\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}," AB "}", MSGL_EUNSUPPORTED,
           "pre_tokenizer: type \"UnicodeScripts\"");
    refuse("{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a(\"},"
           "\"behavior\":\"Isolated\",\"invert\":false}," AB "}",
           MSGL_EFORMAT, "pre_tokenizer.pattern: regular expression: missing closing parenthesis");
    refuse("{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a)\\\\1\"},"
           "\"behavior\":\"Isolated\",\"invert\":false}," AB "}",
           MSGL_EUNSUPPORTED, "this escape is not supported");
    refuse("{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},"
           "\"behavior\":\"Sideways\",\"invert\":false}," AB "}",
           MSGL_EFORMAT, "behavior: expected Removed");
    refuse("{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"ab\"}," AB "}",
           MSGL_EFORMAT, "replacement: expected a string of one character");
    refuse("{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"add_prefix_space\":"
           "false,"
           "\"prepend_scheme\":\"first\"}," AB "}",
           MSGL_EFORMAT, "contradicts");
    refuse("{\"decoder\":{\"type\":\"CTC\"}," AB "}", MSGL_EUNSUPPORTED, "decoder: type \"CTC\"");
    refuse("{\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"start\":-1,\"stop\":0}," AB "}",
           MSGL_EFORMAT, "decoder.start: -1 is outside");
    refuse("{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
           "{\"id\":\"<s>\"}}],\"special_tokens\":{}}," AB "}",
           MSGL_EFORMAT, "no ids for \"<s>\"");
    refuse("{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
           "{\"id\":\"<s>\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[3]}}}," AB "}",
           MSGL_EFORMAT, "not in the vocabulary (0 to 2)");
    refuse("{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":"
           "{\"id\":\"B\"}}]}," AB "}",
           MSGL_EFORMAT, "post_processor.single: expected");
}

// A nest of Sequences, and more steps than any tokenizer has.
static void test_many_steps(void **state)
{
    (void)state;
    char *json = malloc(1 << 16);
    size_t len = (size_t)sprintf(json, "{%s,\"normalizer\":", AB);
    for (int i = 0; i < 300; i++) {
        len += (size_t)sprintf(json + len, "{\"type\":\"Sequence\",\"normalizers\":[");
    }
    len += (size_t)sprintf(json + len, "{\"type\":\"NFC\"}");
    for (int i = 0; i < 300; i++) len += (size_t)sprintf(json + len, "]}");
    sprintf(json + len, "}");
    refuse(json, MSGL_ELIMIT, "Sequence");
    len = (size_t)sprintf(json, "{%s,\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[", AB);
    for (int i = 0; i < 100; i++)
        len += (size_t)sprintf(json + len, "%s{\"type\":\"NFC\"}", i ? "," : "");
    sprintf(json + len, "]}}");
    refuse(json, MSGL_ELIMIT, "steps");
    free(json);
}

static msgl_tokenizer *accept(const char *json, const char *config)
{
    msgl_tokenizer *t;
    msgl_err err = {0};
    if (parse(json, config, &t, &err) != 0) fail_msg("%s", err.text);
    return t;
}

static void expect_ids(const msgl_tokenizer *t, const char *text, size_t n, const int32_t *want)
{
    msgl_ids ids = {0};
    assert_int_equal(msgl__tokenizer_encode(t, text, strlen(text), NULL, &ids, NULL), 0);
    assert_int_equal(ids.len, n);
    if (n > 0) assert_memory_equal(ids.data, want, n * sizeof(*want));
    msgl__ids_free(&ids);
}

// Rewrites that would multiply a text without end stop at a limit.
static void test_exploding_rewrite(void **state)
{
    (void)state;
    char *json = malloc(1 << 14);
    size_t len =
        (size_t)sprintf(json, "{%s,\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[", AB);
    for (int i = 0; i < 12; i++) {
        len += (size_t)sprintf(json + len,
                               "%s{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},"
                               "\"content\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}",
                               i ? "," : "");
    }
    sprintf(json + len, "]}}");
    msgl_tokenizer *t = accept(json, NULL);
    msgl_ids ids = {0};
    msgl_err err;
    assert_int_equal(msgl__tokenizer_encode(t, "aaaa", 4, NULL, &ids, &err), MSGL_ELIMIT);
    assert_non_null(strstr(err.text, "too much memory"));
    msgl__tokenizer_free(t);
    free(json);
}

// A pattern that backtracks without end gives an error, not a hang.
static void test_exploding_pattern(void **state)
{
    (void)state;
    msgl_tokenizer *t = accept("{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":"
                               "\"(a+)+$\"},\"behavior\":\"Isolated\",\"invert\":false}," AB "}",
                               NULL);
    char text[65];
    memset(text, 'a', 64);
    text[63] = 'b';
    text[64] = '\0';
    msgl_ids ids = {0};
    msgl_err err;
    assert_int_equal(msgl__tokenizer_encode(t, text, 64, NULL, &ids, &err), MSGL_ELIMIT);
    msgl__tokenizer_free(t);
}

static void test_odd_but_good(void **state)
{
    (void)state;
    // Sparse ids, an empty token, a merge that is listed twice (the later rank counts), no type.
    msgl_tokenizer *t =
        accept("{\"model\":{\"vocab\":{\"a\":5,\"b\":9,\"c\":2,\"ab\":100,\"bc\":3,\"\":7},"
               "\"merges\":[\"#version: 0.2\",\"a b\",[\"b\",\"c\"],\"a b\"]}}",
               NULL);
    assert_int_equal(msgl__tokenizer_vocab_size(t), 101);
    expect_ids(t, "abc", 2, (const int32_t[]){5, 3});
    expect_ids(t, "ab", 1, (const int32_t[]){100});
    expect_ids(t, "azb", 1, (const int32_t[]){100}); // no unknown token: z is dropped
    expect_ids(t, "", 0, NULL);
    // A name that only an escape makes "vocab" is not looked for.
    refuse("{\"model\":{\"voc\\u0061b\":{\"a\":0},\"merges\":[]}}", MSGL_EFORMAT, "model.vocab");
    msgl_strbuf out;
    msgl__strbuf_init(&out, 100);
    const int32_t ids[] = {5, 50, 9}; // nothing has id 50
    assert_int_equal(msgl__tokenizer_decode(t, ids, 3, 0, &out, NULL), 0);
    assert_string_equal(msgl__strbuf_str(&out), "a b"); // no decoder: joined with spaces
    msgl__strbuf_free(&out);
    msgl__tokenizer_free(t);
}

// Strings of the vocabulary in every escape that JSON has, and a NUL.
static void test_escapes(void **state)
{
    (void)state;
    msgl_tokenizer *t = accept(
        "{\"model\" : { \"merges\" : [ [ \"\\u0061\" , \"\\/\" ] ] ,\n \"vocab\" : { \"a\" : 0 ,"
        "\"\\/\":1,\"a/\":2,\"\\\"\":3,\"\\\\\":4,\"\\b\\f\":5,\"\\n\":6,\"\\r\":7,\"\\t\":8,"
        "\"\\u00e9\":9,\"\\ud83d\\ude00\":10,\"\\u0000\":11 } } }",
        NULL);
    expect_ids(t, "a/\"\\\n\r\t\xc3\xa9\xf0\x9f\x98\x80", 8,
               (const int32_t[]){2, 3, 4, 6, 7, 8, 9, 10});
    msgl_ids ids = {0};
    assert_int_equal(msgl__tokenizer_encode(t, "a\0a", 3, NULL, &ids, NULL), 0);
    assert_int_equal(ids.len, 3);
    assert_int_equal(ids.data[1], 11);
    msgl__ids_free(&ids);
    msgl__tokenizer_free(t);
}

#define ADDED(id, content) "{\"id\":" #id ",\"content\":\"" content "\",\"normalized\":false}"

// Ids as `tokenizers` 0.23.3 gives them: that of the vocabulary's token, else the next one behind
// the vocabulary's 3 tokens, in the order of the list. The list's own ids make no difference.
static void test_added_ids(void **state)
{
    (void)state;
    static const struct {
        const char *added;
        int32_t x, y, vocab_size;
    } cases[] = {
        {ADDED(3, "<x>") "," ADDED(4, "<y>"), 3, 4, 5},
        {ADDED(4, "<x>") "," ADDED(3, "<y>"), 3, 4, 5},
        {ADDED(300, "<x>") "," ADDED(7, "<y>"), 3, 4, 5},
        {ADDED(1, "<x>") "," ADDED(0, "<y>"), 3, 4, 5}, // other tokens' ids
        {ADDED(3, "<x>") "," ADDED(3, "<y>"), 3, 4, 5},
        {ADDED(3, "<x>") "," ADDED(4, "<x>") "," ADDED(5, "<y>"), 3, 4, 5},
        {ADDED(9, "b") "," ADDED(4, "<x>") "," ADDED(2, "ab") "," ADDED(5, "<y>"), 3, 4, 5},
        {ADDED(3, "") "," ADDED(4, "<x>") "," ADDED(5, "<y>"), 3, 4, 5},
    };
    char json[1024];
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        snprintf(json, sizeof json, "{\"added_tokens\":[%s],%s}", cases[i].added, AB);
        msgl_tokenizer *t = accept(json, NULL);
        assert_int_equal(msgl__tokenizer_id(t, "<x>"), cases[i].x);
        assert_int_equal(msgl__tokenizer_id(t, "<y>"), cases[i].y);
        assert_int_equal(msgl__tokenizer_id(t, "b"), 1);
        assert_int_equal(msgl__tokenizer_vocab_size(t), cases[i].vocab_size);
        expect_ids(t, "a<y>ab<x>b", 5, (const int32_t[]){0, cases[i].y, 2, cases[i].x, 1});
        msgl__tokenizer_free(t);
    }
    // Of tokenizer_config.json in the order of its ids, behind those of tokenizer.json.
    msgl_tokenizer *t = accept("{\"added_tokens\":[" ADDED(8, "<z>") "]," AB "}",
                               "{\"added_tokens_decoder\":{\"9\":{\"content\":\"<x>\"},"
                               "\"10\":{\"content\":\"<w>\"},\"7\":{\"content\":\"<y>\"},"
                               "\"8\":{\"content\":\"<z>\"}}}");
    static const char *const order[] = {"<z>", "<y>", "<x>", "<w>"};
    for (int i = 0; i < 4; i++) assert_int_equal(msgl__tokenizer_id(t, order[i]), 3 + i);
    msgl__tokenizer_free(t);
}

// The lines of tiktoken.model for the 256 bytes, in their order, and `more`.
static char *ranks_with(const char *more)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *text = malloc(256 * 16 + strlen(more) + 1), *at = text;
    assert_non_null(text);
    for (int b = 0; b < 256; b++) {
        at += sprintf(at, "%c%c== %d\n", digits[b >> 2], digits[(b & 3) << 4], b);
    }
    memcpy(at, more, strlen(more) + 1);
    return text;
}

#define KIMI "{\"tokenizer_class\":\"TikTokenTokenizer\"}"
#define KIMI_WITH(added)                                                                           \
    "{\"tokenizer_class\":\"TikTokenTokenizer\",\"added_tokens_decoder\":{" added "}}"

static int parse_ranks(const char *ranks, const char *config, msgl_tokenizer **t, msgl_err *err)
{
    *err = (msgl_err){0};
    const size_t len = config != NULL ? strlen(config) : 0;
    return msgl__tokenizer_from_tiktoken(ranks, strlen(ranks), config, len, t, err);
}

// Kimi's file: tests/vectors/tokenizer/kimi has what it gives; here what it may be.
static void test_tiktoken(void **state)
{
    (void)state;
    msgl_tokenizer *t;
    msgl_err err;
    char *text = ranks_with("\r\nYWI= 256\r\n\nYWJj 257"); // ab, abc
    assert_int_equal(parse_ranks(text, KIMI_WITH("\"259\":{\"content\":\"<x>\"}"), &t, &err), 0);
    assert_int_equal(msgl__tokenizer_vocab_size(t), 258 + 256);
    assert_int_equal(msgl__tokenizer_id(t, "<|reserved_token_258|>"), 258);
    assert_int_equal(msgl__tokenizer_id(t, "<x>"), 259);
    assert_int_equal(msgl__tokenizer_id(t, "<|reserved_token_513|>"), 513);
    assert_int_equal(msgl__tokenizer_id(t, "<|reserved_token_514|>"), -1);
    expect_ids(t, "abcab<x>a", 4, (const int32_t[]){257, 256, 259, 'a'});
    msgl__tokenizer_free(t);
    free(text);
    static const struct {
        const char *more, *config, *says;
    } bad[] = {
        {"YWI= 257", KIMI, "tiktoken.model: line 257: expected up to 255 bytes in base64"},
        {"YWI= -1", KIMI, "line 257"},
        {"YWI= ", KIMI, "line 257"},
        {"YWI=", KIMI, "line 257"},
        {"YWI 256", KIMI, "line 257"},
        {"YW=I 256", KIMI, "line 257"},
        {"==== 256", KIMI, "line 257"},
        {" 256", KIMI, "line 257"},
        {"YWI= 2 6", KIMI, "line 257"},
        {"YWI= 18446744073709551872", KIMI, "line 257"},
        {"YWI= 97", KIMI, "id 97 is both \"a\" and \"ab\""},
        {"YQ== 256", KIMI, "\"a\" occurs twice"},
        {"", NULL, "needs tokenizer_config.json beside it"},
        {"", "{}", "tokenizer_class: found \"\", allowed \"TikTokenTokenizer\""},
        {"", "{\"tokenizer_class\":\"QWenTokenizer\"}", "found \"QWenTokenizer\""},
        {"", "[]", "tokenizer_config.json"},
        {"", KIMI_WITH("\"256\":7"), "added_tokens[0].content"},
        {"", KIMI_WITH("\"257\":{\"content\":\"a\"}"), "contents of ids 256 to 511 have to differ"},
        {"", KIMI_WITH("\"257\":{\"content\":\"<|reserved_token_256|>\"}"), "have to differ"},
    };
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        text = ranks_with(bad[i].more);
        assert_true(parse_ranks(text, bad[i].config, &t, &err) < 0);
        assert_null(t);
        if (strstr(err.text, bad[i].says) == NULL) fail_msg("%zu: %s", i, err.text);
        free(text);
    }
    text = ranks_with("YWI= 256");
    int rc = MSGL_ENOMEM;
    for (uint64_t nth = 1; rc != 0; nth += 1 + nth / 3) { // most allocations are the pattern's
        msgl__mem_fail_from(nth);
        rc = parse_ranks(text, KIMI, &t, &err);
        msgl__mem_fail_from(0);
        assert_true(rc == 0 || rc == MSGL_ENOMEM);
    }
    msgl__tokenizer_free(t);
    free(text);
    assert_int_equal(parse_ranks("", KIMI, &t, &err), MSGL_EFORMAT);
    assert_int_equal(parse_ranks("YQ== 0\n", KIMI, &t, &err), MSGL_EFORMAT);
    assert_non_null(strstr(err.text, "tiktoken.model: byte 0x00 is no token"));
}

// tokenizer_config.json adds tokens that tokenizer.json does not have and leaves the others alone.
static void test_config_tokens(void **state)
{
    (void)state;
    const char *json =
        "{\"added_tokens\":[{\"id\":3,\"content\":\"<x>\",\"special\":true}]," AB "}";
    const char *config = "{\"added_tokens_decoder\":{\"3\":{\"content\":\"<x>\",\"special\":false},"
                         "\"4\":{\"content\":\"<y>\",\"special\":true,\"normalized\":false}}}";
    msgl_tokenizer *t = accept(json, config);
    assert_int_equal(msgl__tokenizer_id(t, "<y>"), 4);
    assert_true(msgl__tokenizer_is_special(t, 3));
    assert_true(msgl__tokenizer_is_special(t, 4));
    expect_ids(t, "a<y>ab<x>", 4, (const int32_t[]){0, 4, 2, 3});
    msgl__tokenizer_free(t);
    msgl_err err;
    assert_int_equal(
        parse(json, "{\"added_tokens_decoder\":{\"x\":{\"content\":\"<y>\"}}}", &t, &err),
        MSGL_EFORMAT);
    assert_non_null(strstr(err.text, "tokenizer_config.json: added_tokens_decoder.x"));
    assert_int_equal(parse(json, "{\"added_tokens_decoder\":[]}", &t, &err), MSGL_EFORMAT);
    assert_int_equal(parse(json, "{", &t, &err), MSGL_EFORMAT);
}

// What transformers saves by default, and other numbers of Python that nobody reads.
static void test_odd_numbers(void **state)
{
    (void)state;
    const char *json =
        "{\"truncation\":{\"max_length\":1000000000000000019884624838656,\"x\":[NaN,-Infinity]},"
        "\"added_tokens\":[{\"id\":3,\"content\":\"<NaN>\",\"special\":true,\"y\":1e999}]," AB "}";
    const char *config = "{\"model_max_length\":1000000000000000019884624838656,\"x\":Infinity}";
    msgl_tokenizer *t = accept(json, config);
    expect_ids(t, "a<NaN>ab", 3, (const int32_t[]){0, 3, 2});
    msgl__tokenizer_free(t);
    refuse("{\"added_tokens\":[{\"id\":1000000000000000019884624838656,\"content\":\"x\"}]," AB "}",
           MSGL_EFORMAT, "added_tokens[0].id: expected an integer from 0 to");
    refuse("{\"added_tokens\":[{\"id\":3,\"content\":NaN}]," AB "}", MSGL_EFORMAT,
           "added_tokens[0].content: expected a string, found a real number");
    refuse("{" MODEL("{\"a\":NaN}", "[]") "}", MSGL_EFORMAT, "\"a\" needs an integer id from 0");
    refuse("{" MODEL("{\"a\":100000000000000000000}", "[]") "}", MSGL_EFORMAT,
           "\"a\" needs an integer id from 0");
}

static void test_fifo(void **state)
{
    (void)state;
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json"};
    for (size_t i = 0; i < MSGL_COUNT(files); i++) {
        char dir[] = "/tmp/minisgl-test-XXXXXX", path[64];
        assert_non_null(mkdtemp(dir));
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        assert_int_equal(mkfifo(path, 0600), 0);
        msgl_tokenizer *t;
        msgl_err err = {0};
        alarm(60); // an open that waits for a writer ends the test
        assert_int_equal(msgl__tokenizer_load(dir, &t, &err), MSGL_EIO);
        alarm(0);
        assert_non_null(strstr(err.text, files[i]));
        unlink(path);
        rmdir(dir);
    }
}

// Cutting a real file anywhere, or breaking any one byte of it, never does worse than an error.
static void test_broken_files(void **state)
{
    (void)state;
    char path[512];
    snprintf(path, sizeof(path), "%s/tests/vectors/tokenizer/flags/tokenizer.json",
             MSGL_SOURCE_DIR);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    static char good[1 << 16], bad[1 << 16];
    const size_t n = fread(good, 1, sizeof(good), f);
    fclose(f);
    assert_true(n > 1000 && n < sizeof(good));
    for (size_t i = 0; i < n; i += 7) {
        msgl_tokenizer *t = NULL;
        msgl_err err = {0};
        if (msgl__tokenizer_parse(good, i, NULL, 0, &t, &err) == 0) msgl__tokenizer_free(t);
        memcpy(bad, good, n);
        bad[i] = "0x\"}],:{[-\x80"[i % 11];
        t = NULL;
        if (msgl__tokenizer_parse(bad, n, NULL, 0, &t, &err) != 0) {
            assert_true(err.text[0] != '\0');
            continue;
        }
        msgl_ids ids = {0};
        (void)msgl__tokenizer_encode(t, "ab <S>  WORD x\xc3\xa9", 16, NULL, &ids, &err);
        msgl__ids_free(&ids);
        msgl__tokenizer_free(t);
    }
}

static void test_missing_folder(void **state)
{
    (void)state;
    msgl_tokenizer *t;
    msgl_err err;
    assert_int_equal(msgl__tokenizer_load("/nonexistent", &t, &err), MSGL_ENOENT);
    assert_non_null(strstr(err.text, "/nonexistent/tokenizer.json"));
    assert_null(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_model),
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_added),
        cmocka_unit_test(test_added_ids),
        cmocka_unit_test(test_tiktoken),
        cmocka_unit_test(test_components),
        cmocka_unit_test(test_unsupported),
        cmocka_unit_test(test_many_steps),
        cmocka_unit_test(test_exploding_rewrite),
        cmocka_unit_test(test_exploding_pattern),
        cmocka_unit_test(test_odd_but_good),
        cmocka_unit_test(test_escapes),
        cmocka_unit_test(test_config_tokens),
        cmocka_unit_test(test_odd_numbers),
        cmocka_unit_test(test_fifo),
        cmocka_unit_test(test_broken_files),
        cmocka_unit_test(test_missing_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
