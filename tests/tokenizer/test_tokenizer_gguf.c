// SPDX-License-Identifier: Apache-2.0
//
// Tokenizers in GGUF files beside the vectors of test_tokenizer.c: what the metadata may leave out,
// which tokens a text can become, and that every bad value gives one error with file and key.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "tokenizer/gguf_pre.h"
#include "tokenizer/load_gguf.h"
#include "utils/gguf_writer.h"

enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER = 4, UNUSED = 5, BYTE = 6 };
#define MARK "\xe2\x96\x81"
#define GGML(key) "tokenizer.ggml." key

static int load(gguf_writer *w, msgl_tokenizer **t, msgl_err *err)
{
    const gguf_bytes b = gguf_finish(w);
    msgl_gguf g;
    int code = msgl__gguf_parse(b.p, b.n, "f.gguf", &g, err);
    if (code == 0) code = msgl__tokenizer_from_gguf(&g, t, err);
    msgl__gguf_close(&g);
    free(b.p);
    return code;
}

static msgl_tokenizer *load_good(gguf_writer *w)
{
    msgl_tokenizer *t = NULL;
    msgl_err err = {0};
    if (load(w, &t, &err) != 0) fail_msg("%s", err.text);
    return t;
}

static void refuse(gguf_writer *w, int code, const char *text)
{
    msgl_tokenizer *t = NULL;
    msgl_err err = {0};
    const int got = load(w, &t, &err);
    if (got != code || strcmp(err.text, text) != 0) {
        fail_msg("%d \"%s\", not %d \"%s\"", got, err.text, code, text);
    }
    assert_null(t);
}

// The ids of a text, checked against a list that ends in -1.
static void check(const msgl_tokenizer *t, const char *text, const msgl_encode_opts *opts,
                  const int32_t *want)
{
    msgl_ids ids = {0};
    msgl_err err = {0};
    if (msgl__tokenizer_encode(t, text, strlen(text), opts, &ids, &err) != 0) {
        fail_msg("%s", err.text);
    }
    size_t n = 0;
    while (want[n] >= 0) n++;
    if (ids.len != n) fail_msg("\"%s\": %zu ids, not %zu", text, ids.len, n);
    for (size_t i = 0; i < n; i++) {
        if (ids.data[i] != want[i]) fail_msg("\"%s\": id %zu is %d", text, i, ids.data[i]);
    }
    msgl__ids_free(&ids);
}
#define CHECK(t, text, opts, ...) check(t, text, opts, (const int32_t[]){__VA_ARGS__, -1})

static const char *const BYTE_TOKENS[] = {"a", "b", "ab", "<s>", "", "[PAD5]", "<u>", "[PAD7]"};
static const int32_t BYTE_TYPES[] = {NORMAL, NORMAL, NORMAL, CONTROL, NORMAL, UNUSED, USER, UNUSED};
enum { NUM_BYTE = MSGL_COUNT(BYTE_TOKENS) };

static void put_byte_level(gguf_writer *w, const char *pre)
{
    static const char *const merges[] = {"a b"};
    gguf_put_string(w, GGML("model"), "gpt2");
    if (pre != NULL) gguf_put_string(w, GGML("pre"), pre);
    gguf_put_strings(w, GGML("tokens"), BYTE_TOKENS, NUM_BYTE);
    gguf_put_array(w, GGML("token_type"), MSGL_GGUF_I32, BYTE_TYPES, NUM_BYTE);
    gguf_put_strings(w, GGML("merges"), merges, 1);
}

// Tokens that show where a text is split: digits, and words with what stands beside them.
static void put_splits(gguf_writer *w, const char *pre)
{
    static const char *const merges[] = {"1 2", "12 3", "123 4", "a '", "a' s", "' s", "a ."};
    static const char *const tokens[] = {"1", "2", "3",  "4",   "12", "123", "1234", "a",
                                         "'", "s", "a'", "a's", "'s", ".",   "a."};
    gguf_put_string(w, GGML("model"), "gpt2");
    if (pre != NULL) gguf_put_string(w, GGML("pre"), pre);
    gguf_put_strings(w, GGML("tokens"), tokens, MSGL_COUNT(tokens));
    gguf_put_strings(w, GGML("merges"), merges, MSGL_COUNT(merges));
}

static void put_json_strings(gguf_writer *w, const char *key, const json_t *list)
{
    const size_t n = json_array_size(list);
    const char **texts = calloc(n + 1, sizeof *texts);
    assert_non_null(texts);
    for (size_t i = 0; i < n; i++) texts[i] = json_string_value(json_array_get(list, i));
    gguf_put_strings(w, key, texts, n);
    free(texts);
}

// Pipelines cut as llama.cpp's patterns do in `tokenizers` (tools/make_pre_vectors.py).
static void test_pre_tokenizers(void **state)
{
    (void)state;
    json_t *root =
        json_load_file(MSGL_SOURCE_DIR "/tests/vectors/tokenizer/gguf_pre.json", 0, NULL);
    const json_t *texts = json_object_get(root, "texts"), *all = json_object_get(root, "ids");
    int compared = 0;
    assert_non_null(root);
    for (int i = 0; msgl__gguf_pre_at(i) != NULL; i++) {
        const char *name = msgl__gguf_pre_at(i)->name;
        const json_t *want = json_object_get(all, name);
        if (want == NULL) fail_msg("%s: no vector", name);
        gguf_writer w = {0};
        gguf_put_string(&w, GGML("model"), "gpt2");
        gguf_put_string(&w, GGML("pre"), name);
        put_json_strings(&w, GGML("tokens"), json_object_get(root, "tokens"));
        put_json_strings(&w, GGML("merges"), json_object_get(root, "merges"));
        msgl_tokenizer *t = load_good(&w);
        for (size_t k = 0; k < json_array_size(texts); k++, compared++) {
            const char *text = json_string_value(json_array_get(texts, k));
            const json_t *list = json_array_get(want, k);
            const msgl_encode_opts opts = {0};
            msgl_ids ids = {0};
            msgl_err err = {0};
            assert_int_equal(msgl__tokenizer_encode(t, text, strlen(text), &opts, &ids, &err), 0);
            bool same = ids.len == json_array_size(list);
            for (size_t j = 0; j < ids.len && same; j++) {
                same = ids.data[j] == json_integer_value(json_array_get(list, j));
            }
            if (!same) fail_msg("%s: text %zu", name, k);
            msgl__ids_free(&ids);
        }
        msgl__tokenizer_free(t);
    }
    assert_true(compared > 500);
    json_decref(root);
}

// Every pipeline that llama.cpp has a name for, and the file that has none, which has its default.
static void test_pipelines(void **state)
{
    (void)state;
    gguf_writer w = {0};
    for (int i = 0; msgl__gguf_pre_at(i) != NULL; i++) {
        put_splits(&w, msgl__gguf_pre_at(i)->name);
        msgl_tokenizer *t = load_good(&w);
        CHECK(t, "a", NULL, 7);
        msgl__tokenizer_free(t);
    }
    static const char *const whole[] = {"gpt-2", "deepseek-llm"};
    static const char *const threes[] = {NULL,   "default", "llama-bpe",
                                         "glm4", "gpt-4o",  "deepseek-v3"};
    static const char *const ones[] = {"qwen2",     "qwen35",         "smollm",
                                       "starcoder", "deepseek-coder", "bailingmoe"};
    for (size_t i = 0; i < MSGL_COUNT(whole); i++) {
        put_splits(&w, whole[i]);
        msgl_tokenizer *t = load_good(&w);
        CHECK(t, "1234", NULL, 6);
        msgl__tokenizer_free(t);
    }
    for (size_t i = 0; i < MSGL_COUNT(threes); i++) {
        put_splits(&w, threes[i]);
        msgl_tokenizer *t = load_good(&w);
        CHECK(t, "1234", NULL, 5, 3);
        msgl__tokenizer_free(t);
    }
    for (size_t i = 0; i < MSGL_COUNT(ones); i++) {
        put_splits(&w, ones[i]);
        msgl_tokenizer *t = load_good(&w);
        CHECK(t, "1234", NULL, 0, 1, 2, 3);
        msgl__tokenizer_free(t);
    }
    put_splits(&w, "gpt-4o"); // a contraction stays with its word
    msgl_tokenizer *t = load_good(&w);
    CHECK(t, "a's", NULL, 11);
    msgl__tokenizer_free(t);
    put_splits(&w, "llama4");
    t = load_good(&w);
    CHECK(t, "a'sa.", NULL, 11, 7, 13);
    msgl__tokenizer_free(t);
    put_splits(&w, "tekken");
    t = load_good(&w);
    CHECK(t, "a's", NULL, 7, 12);
    msgl__tokenizer_free(t);
    put_splits(&w, "deepseek-v3");
    t = load_good(&w);
    CHECK(t, "a's", NULL, 7, 12);
    msgl__tokenizer_free(t);
}

static void test_byte_level(void **state)
{
    (void)state;
    static const msgl_encode_opts special = {.add_special = 1};
    gguf_writer w = {0};
    put_byte_level(&w, "gpt-2");
    msgl_tokenizer *t = load_good(&w);
    assert_int_equal(msgl__tokenizer_vocab_size(t), 7); // unused ones at the end are no tokens
    assert_int_equal(msgl__tokenizer_id(t, "[PAD5]"), -1);
    assert_true(msgl__tokenizer_is_special(t, 3));
    assert_false(msgl__tokenizer_is_special(t, 6));
    CHECK(t, "ab<s>b<u>", &special, 2, 3, 1, 6);
    const msgl_text_span all = {0, 9};
    const msgl_encode_opts untrusted = {.untrusted = &all, .num_untrusted = 1};
    CHECK(t, "ab<s>b<u>", &untrusted, 2, 1, 6); // "<" and the like are not in this vocabulary
    msgl__tokenizer_free(t);

    // A pipeline may add BOS unless the file says otherwise.
    static const char *const pres[] = {"gpt-2", "llama-bpe", "llama3", "llama-v3", "tekken"};
    for (size_t i = 0; i < MSGL_COUNT(pres); i++) {
        put_byte_level(&w, pres[i]);
        gguf_put_int(&w, GGML("bos_token_id"), MSGL_GGUF_U32, 3);
        t = load_good(&w);
        if (i == 0) CHECK(t, "ab", &special, 2);
        if (i > 0) CHECK(t, "ab", &special, 3, 2);
        CHECK(t, "ab", NULL, 2);
        msgl__tokenizer_free(t);
    }
    put_byte_level(&w, "llama-bpe");
    gguf_put_int(&w, GGML("bos_token_id"), MSGL_GGUF_U32, 3);
    gguf_put_int(&w, GGML("eos_token_id"), MSGL_GGUF_I32, 6);
    gguf_put_int(&w, GGML("add_bos_token"), MSGL_GGUF_BOOL, 0);
    gguf_put_int(&w, GGML("add_eos_token"), MSGL_GGUF_BOOL, 1);
    t = load_good(&w);
    CHECK(t, "ab", &special, 2, 6);
    msgl__tokenizer_free(t);
}

// Of the score of a piece with id i: pieces in the order of merging, as in Llama 2.
static void put_pieces(gguf_writer *w, const char *const *texts, const int32_t *types, size_t n)
{
    float scores[64];
    for (size_t i = 0; i < n; i++) scores[i] = -(float)i;
    gguf_put_string(w, GGML("model"), "llama");
    gguf_put_strings(w, GGML("tokens"), texts, n);
    gguf_put_array(w, GGML("token_type"), MSGL_GGUF_I32, types, n);
    gguf_put_array(w, GGML("scores"), MSGL_GGUF_F32, scores, n);
}

static void test_sentence_piece(void **state)
{
    (void)state;
    static const msgl_encode_opts special = {.add_special = 1};
    static const char *const texts[] = {"<unk>",
                                        "<s>",
                                        "<0xC3>",
                                        "<0xA9>",
                                        "bc",
                                        MARK "a",
                                        "a"
                                        "bc",
                                        "ab",
                                        "<s",
                                        "a",
                                        "b",
                                        "c",
                                        MARK,
                                        "<",
                                        "s",
                                        ">"};
    static const int32_t types[] = {UNKNOWN, CONTROL, BYTE,   BYTE,   NORMAL, NORMAL,
                                    NORMAL,  NORMAL,  NORMAL, NORMAL, NORMAL, NORMAL,
                                    NORMAL,  NORMAL,  NORMAL, NORMAL};
    gguf_writer w = {0};
    put_pieces(&w, texts, types, MSGL_COUNT(texts));
    gguf_put_int(&w, GGML("bos_token_id"), MSGL_GGUF_U32, 1);
    msgl_tokenizer *t = load_good(&w);
    CHECK(t, "abc", &special, 1, 5, 4); // "bc" is joined first, then "_a"
    CHECK(t, "babc", NULL, 12, 10, 6);
    CHECK(t, "\xc3\xa9", NULL, 12, 2, 3); // bytes
    CHECK(t, "\xc3\xa8", NULL, 12, 0);    // a byte is missing
    CHECK(t, "b<s>", NULL, 12, 10, 1);
    // No merge makes a token that is not an ordinary piece: "<s" and ">" stay apart.
    const msgl_text_span all = {0, 4};
    const msgl_encode_opts untrusted = {.untrusted = &all, .num_untrusted = 1};
    CHECK(t, "b<s>", &untrusted, 12, 10, 8, 15);
    msgl__tokenizer_free(t);

    put_pieces(&w, texts, types, MSGL_COUNT(texts));
    gguf_put_int(&w, GGML("add_space_prefix"), MSGL_GGUF_BOOL, 0);
    t = load_good(&w);
    CHECK(t, "ab a", &special, 7, 5);
    msgl_strbuf out;
    msgl__strbuf_init(&out, 100);
    static const int32_t ids[] = {5, 7};
    assert_int_equal(msgl__tokenizer_decode(t, ids, 2, 0, &out, NULL), 0);
    assert_string_equal(msgl__strbuf_str(&out), " aab"); // a space was not put there
    msgl__strbuf_free(&out);
    msgl__tokenizer_free(t);
}

// Gemma 4's: SentencePiece's pieces, no mark before the text, and merges in place of scores.
static void test_pieces_with_merges(void **state)
{
    (void)state;
    static const msgl_encode_opts special = {.add_special = 1};
    static const char *const texts[] = {"<unk>", "<bos>", "<0xC3>", "<0xA9>", "a",       "b",
                                        "c",     MARK,    "bc",     "ab",     MARK "ab", "<turn>"};
    static const char *const merges[] = {"b c", "a b", MARK " ab"};
    static const int32_t types[] = {UNKNOWN, CONTROL, BYTE,   BYTE,   NORMAL, NORMAL,
                                    NORMAL,  NORMAL,  NORMAL, NORMAL, NORMAL, USER};
    static const float scores[MSGL_COUNT(texts)] = {0};
    gguf_writer w = {0};
    gguf_put_string(&w, GGML("model"), "gemma4");
    gguf_put_strings(&w, GGML("tokens"), texts, MSGL_COUNT(texts));
    gguf_put_array(&w, GGML("token_type"), MSGL_GGUF_I32, types, MSGL_COUNT(texts));
    gguf_put_array(&w, GGML("scores"), MSGL_GGUF_F32, scores, MSGL_COUNT(texts));
    gguf_put_strings(&w, GGML("merges"), merges, MSGL_COUNT(merges));
    gguf_put_int(&w, GGML("bos_token_id"), MSGL_GGUF_U32, 1);
    msgl_tokenizer *t = load_good(&w);
    CHECK(t, "ab ab", &special, 1, 9, 10);
    CHECK(t, "abc", NULL, 4, 8); // "b c" is first of the merges
    CHECK(t, "a\xc3\xa9", NULL, 4, 2, 3);
    CHECK(t, "a<turn>a", NULL, 4, 11, 4);
    msgl_strbuf out;
    msgl__strbuf_init(&out, 100);
    static const int32_t ids[] = {10, 2, 3, 8};
    assert_int_equal(msgl__tokenizer_decode(t, ids, 4, 0, &out, NULL), 0);
    assert_string_equal(msgl__strbuf_str(&out), " ab\xc3\xa9"
                                                "bc");
    msgl__strbuf_free(&out);
    msgl__tokenizer_free(t);
}

// Of pieces with the same score the longest first half wins, as in transformers.
static void test_equal_scores(void **state)
{
    (void)state;
    static const char *const texts[] = {"<unk>", "aaa", "aa", "a", MARK};
    static const int32_t types[] = {UNKNOWN, NORMAL, NORMAL, NORMAL, NORMAL};
    static const float scores[] = {0, -1, -1, -2, -3};
    gguf_writer w = {0};
    gguf_put_string(&w, GGML("model"), "llama");
    gguf_put_strings(&w, GGML("tokens"), texts, MSGL_COUNT(texts));
    gguf_put_array(&w, GGML("token_type"), MSGL_GGUF_I32, types, MSGL_COUNT(texts));
    gguf_put_array(&w, GGML("scores"), MSGL_GGUF_F32, scores, MSGL_COUNT(texts));
    msgl_tokenizer *t = load_good(&w);
    CHECK(t, "aaaa", NULL, 4, 1, 3); // aa a a -> aaa a: "aa a" is ahead of "a aa" and of "a a"
    CHECK(t, "aaaaa", NULL, 4, 1, 2);
    msgl__tokenizer_free(t);
}

static void test_bad_lists(void **state)
{
    (void)state;
    gguf_writer w = {0};
    static const float nan_score[] = {NAN}, fine[] = {0};
    static const int32_t one[] = {NORMAL}, none[] = {UNUSED};
    const char *text = "a";
    refuse(&w, MSGL_EFORMAT, "f.gguf: tokenizer.ggml.tokens: found 0, allowed 1 to 4194304");
    gguf_put_string(&w, GGML("tokens"), "a");
    refuse(&w, MSGL_EFORMAT,
           "f.gguf: tokenizer.ggml.tokens: found a value of strings, allowed a list of strings");
    gguf_put_strings(&w, GGML("tokens"), &text, 1);
    gguf_put_array(&w, GGML("token_type"), MSGL_GGUF_F32, fine, 1);
    refuse(&w, MSGL_EFORMAT,
           "f.gguf: tokenizer.ggml.token_type: found a list of f32, allowed a list of i32");
    gguf_put_strings(&w, GGML("tokens"), &text, 1);
    gguf_put_array(&w, GGML("token_type"), MSGL_GGUF_I32, BYTE_TYPES, 2);
    refuse(&w, MSGL_EFORMAT,
           "f.gguf: tokenizer.ggml.token_type: found 2, allowed one for each of 1 tokens");

    gguf_put_string(&w, GGML("model"), "llama");
    gguf_put_strings(&w, GGML("tokens"), &text, 1);
    refuse(&w, MSGL_EFORMAT,
           "f.gguf: tokenizer.ggml.scores: missing, tokenizer.ggml.model llama needs it");
    gguf_put_string(&w, GGML("model"), "llama");
    gguf_put_strings(&w, GGML("tokens"), &text, 1);
    gguf_put_array(&w, GGML("scores"), MSGL_GGUF_I32, one, 1); // would be read as floats
    refuse(&w, MSGL_EFORMAT,
           "f.gguf: tokenizer.ggml.scores: found a list of i32, allowed a list of f32");
    gguf_put_string(&w, GGML("model"), "llama");
    gguf_put_strings(&w, GGML("tokens"), &text, 1);
    gguf_put_array(&w, GGML("scores"), MSGL_GGUF_F32, nan_score, 1);
    refuse(&w, MSGL_EFORMAT, "f.gguf: tokenizer.ggml.scores[0]: found nan, allowed numbers");
    gguf_put_string(&w, GGML("model"), "llama");
    gguf_put_strings(&w, GGML("tokens"), &text, 1);
    gguf_put_array(&w, GGML("scores"), MSGL_GGUF_F32, fine, 1);
    gguf_put_array(&w, GGML("token_type"), MSGL_GGUF_I32, none, 1);
    refuse(&w, MSGL_EFORMAT, "f.gguf: tokenizer.ggml.tokens: all of them are empty or unused");
    char large[514];
    memset(large, 'a', 513);
    large[513] = '\0';
    text = large;
    put_pieces(&w, &text, one, 1);
    refuse(&w, MSGL_ELIMIT, "f.gguf: tokenizer.ggml.tokens[0]: 513 bytes; at most 512");
    text = "a\xff";
    put_pieces(&w, &text, one, 1);
    refuse(&w, MSGL_EFORMAT, "f.gguf: tokenizer.ggml.tokens[0]: not valid UTF-8 at byte 1");
    static const char *const twice[] = {"a\n", "a\n"};
    put_pieces(&w, twice, BYTE_TYPES, 2);
    refuse(&w, MSGL_EFORMAT, "f.gguf: tokenizer.ggml.tokens: \"a?\" occurs twice");

    static const char *const merges[][2] = {
        {"ab", "f.gguf: tokenizer.ggml.merges[0]: expected \"left right\""},
        {"a b c", "f.gguf: tokenizer.ggml.merges[0]: expected \"left right\""},
        {" b", "f.gguf: tokenizer.ggml.merges[0]: expected \"left right\""},
        {"a c", "f.gguf: tokenizer.ggml.merges[0]: token \"c\" is not in tokenizer.ggml.tokens"},
        {"b a", "f.gguf: tokenizer.ggml.merges[0]: token \"ba\" is not in tokenizer.ggml.tokens"},
    };
    for (size_t i = 0; i < MSGL_COUNT(merges); i++) {
        gguf_put_string(&w, GGML("model"), "gpt2");
        gguf_put_string(&w, GGML("pre"), "qwen2");
        gguf_put_strings(&w, GGML("tokens"), BYTE_TOKENS, 3);
        gguf_put_strings(&w, GGML("merges"), &merges[i][0], 1);
        refuse(&w, MSGL_EFORMAT, merges[i][1]);
    }
}

static void test_bad_values(void **state)
{
    (void)state;
    gguf_writer w = {0};
    put_byte_level(&w, "superbpe");
    refuse(&w, MSGL_EUNSUPPORTED,
           "f.gguf: tokenizer.ggml.pre: \"superbpe\" is not a pre-tokenizer that is known");
    gguf_put_string(&w, GGML("model"), "bert");
    gguf_put_strings(&w, GGML("tokens"), BYTE_TOKENS, 3);
    refuse(&w, MSGL_EUNSUPPORTED,
           "f.gguf: tokenizer.ggml.model: \"bert\" is not supported; known: gpt2, llama, "
           "gemma4");
    put_byte_level(&w, "gpt-2");
    gguf_put_int(&w, GGML("add_bos_token"), MSGL_GGUF_BOOL, 1);
    refuse(&w, MSGL_EFORMAT,
           "f.gguf: tokenizer.ggml.bos_token_id: missing, tokenizer.ggml.add_bos_token is true");
    put_byte_level(&w, "gpt-2");
    gguf_put_int(&w, GGML("add_bos_token"), MSGL_GGUF_U32, 1);
    refuse(&w, MSGL_EFORMAT,
           "f.gguf: metadata.tokenizer.ggml.add_bos_token: expected true or false, found an "
           "integer");
    put_byte_level(&w, "gpt-2");
    gguf_put_int(&w, GGML("bos_token_id"), MSGL_GGUF_U32, 7);
    refuse(&w, MSGL_EFORMAT, "f.gguf: metadata.tokenizer.ggml.bos_token_id: 7 is outside 0 to 6");
}

// Every allocation of a load fails once; each time the error comes back and nothing leaks (a
// sanitizer build sees to that).
static void test_out_of_memory(void **state)
{
    (void)state;
    static const char *const files[] = {"spm", "tekken"};
    for (size_t i = 0; i < MSGL_COUNT(files); i++) {
        char path[512];
        int code = MSGL_ENOMEM;
        snprintf(path, sizeof path, MSGL_SOURCE_DIR "/tests/vectors/gguf/tokenizers/%s.gguf",
                 files[i]);
        for (uint64_t nth = 1; code != 0 && nth < 10000; nth += nth < 100 ? 1 : 3) {
            msgl_tokenizer *t = NULL;
            msgl__mem_fail_from(nth);
            code = msgl__tokenizer_load(path, &t, NULL);
            msgl__mem_fail_from(0);
            assert_true(code == 0 || code == MSGL_ENOMEM);
            msgl__tokenizer_free(t);
        }
        assert_int_equal(code, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_byte_level),         cmocka_unit_test(test_pre_tokenizers),
        cmocka_unit_test(test_pipelines),          cmocka_unit_test(test_sentence_piece),
        cmocka_unit_test(test_pieces_with_merges), cmocka_unit_test(test_equal_scores),
        cmocka_unit_test(test_bad_lists),          cmocka_unit_test(test_bad_values),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
