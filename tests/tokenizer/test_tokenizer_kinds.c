// SPDX-License-Identifier: Apache-2.0
//
// WordPiece and Unigram tokenizers: what stands around two texts against what `tokenizers`
// answered, files that are wrong, text that may not become a special token, long texts.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "tokenizer/load.h"
#include "tokenizer/vectors.h"

static void test_pairs(void **state)
{
    static const char *const names[] = {"bert", "bert_cased", "roberta", "xlmr"};
    (void)state;
    for (size_t v = 0; v < MSGL_COUNT(names); v++) {
        msgl_tokenizer *t = vector_tokenizer(names[v]);
        json_t *cases = vector_cases(names[v]);
        const json_t *list = json_object_get(cases, "pairs");
        assert_true(json_array_size(list) >= 4);
        for (size_t i = 0; i < json_array_size(list); i++) {
            const json_t *c = json_array_get(list, i), *types = json_object_get(c, "types");
            const char *a = json_string_value(json_object_get(c, "a"));
            const char *b = json_string_value(json_object_get(c, "b"));
            const msgl_encode_opts opts = {.max_ids = json_array_size(types)},
                                   less = {.max_ids = 1};
            msgl_ids ids = {0}, want = {0};
            msgl_err err;
            size_t from = 0;
            assert_int_equal(msgl__tokenizer_encode_pair(t, a, strlen(a), b, strlen(b), &opts, &ids,
                                                         &from, &err),
                             0);
            vector_ids(json_object_get(c, "ids"), &want);
            assert_int_equal(ids.len, want.len);
            assert_memory_equal(ids.data, want.data, want.len * sizeof *want.data);
            for (size_t k = 0; k < want.len; k++) {
                assert_int_equal(k >= from, json_integer_value(json_array_get(types, k)));
            }
            assert_int_equal(msgl__tokenizer_encode_pair(t, a, strlen(a), b, strlen(b), &less, &ids,
                                                         &from, &err),
                             MSGL_ELIMIT);
            assert_int_equal(ids.len, want.len); // as before
            msgl__ids_free(&ids);
            msgl__ids_free(&want);
        }
        json_decref(cases);
        msgl__tokenizer_free(t);
    }
    msgl_tokenizer *t = vector_tokenizer("gpt2");
    const msgl_encode_opts opts = {0};
    msgl_ids ids = {0};
    msgl_err err;
    size_t from = 0;
    // Nothing stands around two texts: as `tokenizers` has it, one is behind the other.
    assert_int_equal(msgl__tokenizer_encode_pair(t, "a", 1, "b", 1, &opts, &ids, &from, &err), 0);
    assert_int_equal(ids.len, 2);
    assert_int_equal(ids.data[0], 64);
    assert_int_equal(ids.data[1], 65);
    assert_int_equal(from, 1);
    msgl__ids_free(&ids);
    msgl__tokenizer_free(t);
}

static void refuse(const char *json, int code, const char *what)
{
    msgl_tokenizer *t = NULL;
    msgl_err err = {0};
    const int rc = msgl__tokenizer_parse(json, strlen(json), NULL, 0, &t, &err);
    if (rc != code || strstr(err.text, what) == NULL) {
        fail_msg("%.200s gives %d \"%s\", not %d \"%s\"", json, rc, err.text, code, what);
    }
}

#define WORDS(more, vocab) "{\"model\":{\"type\":\"WordPiece\"," more "\"vocab\":" vocab "}}"
#define UNK "\"unk_token\":\"u\",\"continuing_subword_prefix\":\"##\","
#define PIECES(more, vocab) "{\"model\":{\"type\":\"Unigram\"," more "\"vocab\":" vocab "}}"
#define BASE(rest) "{" rest ",\"model\":{\"type\":\"WordPiece\"," UNK "\"vocab\":{\"u\":0}}}"

static void test_wrong_files(void **state)
{
    (void)state;
    refuse(WORDS(UNK, "[]"), MSGL_EFORMAT, "model.vocab: expected an object");
    refuse(WORDS(UNK, "{\"a\":0}"), MSGL_EFORMAT, "model.unk_token: not in model.vocab");
    refuse(WORDS("", "{\"a\":0}"), MSGL_EFORMAT, "model.unk_token");
    refuse(WORDS("\"unk_token\":\"a\",", "{\"a\":0}"), MSGL_EFORMAT, "continuing_subword_prefix");
    refuse(WORDS(UNK "\"max_input_chars_per_word\":0,", "{\"u\":0}"), MSGL_EFORMAT,
           "0 is outside 1 to 10000");
    refuse(WORDS(UNK "\"max_input_chars_per_word\":1000000000,", "{\"u\":0}"), MSGL_EFORMAT,
           "is outside 1 to 10000");
    refuse(WORDS(UNK, "{\"u\":0,\"b\":4194304}"), MSGL_EFORMAT, "needs an integer id");
    refuse(PIECES("\"unk_id\":0,", "{}"), MSGL_EFORMAT, "model.vocab: expected an array");
    refuse(PIECES("\"unk_id\":0,", "[]"), MSGL_EFORMAT, "model.vocab: expected an array");
    refuse(PIECES("\"unk_id\":0,", "[[\"a\"]]"), MSGL_EFORMAT, "model.vocab[0]: expected");
    refuse(PIECES("\"unk_id\":0,", "[[\"a\",0],[\"b\",1e999]]"), MSGL_EFORMAT, "model.vocab[1]");
    refuse(PIECES("\"unk_id\":0,", "[[\"a\",\"0\"]]"), MSGL_EFORMAT, "model.vocab[0]");
    refuse(PIECES("\"unk_id\":0,", "[[\"a\",0],[\"a\",0]]"), MSGL_EFORMAT, "\"a\" occurs twice");
    refuse(PIECES("\"unk_id\":1,", "[[\"a\",0]]"), MSGL_EFORMAT,
           "model.unk_id: 1 is outside 0 to 0");
    refuse(PIECES("\"unk_id\":null,", "[[\"a\",0]]"), MSGL_EFORMAT, "model.unk_id");
    refuse(BASE("\"normalizer\":{\"type\":\"BertNormalizer\"}"), MSGL_EFORMAT, "clean_text");
    refuse(BASE("\"normalizer\":{\"type\":\"Precompiled\"}"), MSGL_EFORMAT, "precompiled_charsmap");
    refuse(BASE("\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"\"}"),
           MSGL_EFORMAT, "expected base64");
    refuse(BASE("\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"A?==\"}"),
           MSGL_EFORMAT, "expected base64");
    // A trie of 1 GB in a text of 8 bytes; one that is all of the text; text without its NUL.
    refuse(BASE("\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":"
                "\"AAAAQAAAAAA=\"}"),
           MSGL_EFORMAT, "expected base64");
    refuse(BASE("\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":"
                "\"BAAAAAAAAAA=\"}"),
           MSGL_EFORMAT, "expected base64");
    refuse(BASE("\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":"
                "\"BAAAAAAAAABh\"}"),
           MSGL_EFORMAT, "expected base64");
    refuse(BASE("\"post_processor\":{\"type\":\"BertProcessing\",\"sep\":[\"a\",0]}"), MSGL_EFORMAT,
           "post_processor.cls: expected [token, id]");
    refuse(BASE("\"post_processor\":{\"type\":\"RobertaProcessing\",\"sep\":[\"a\",9],\"cls\":["
                "\"a\",0]}"),
           MSGL_EFORMAT, "post_processor.sep: expected [token, id]");
    refuse(BASE("\"decoder\":{\"type\":\"WordPiece\",\"cleanup\":true}"), MSGL_EFORMAT, "prefix");
}

static void test_long_piece(void **state)
{
    (void)state;
    char json[2048], piece[MSGL_TOK_MAX_ADDED_LEN + 2];
    memset(piece, 'x', sizeof piece - 1);
    piece[sizeof piece - 1] = '\0';
    snprintf(json, sizeof json, PIECES("\"unk_id\":0,", "[[\"%s\",0]]"), piece);
    refuse(json, MSGL_ELIMIT, "model.vocab[0]: 513 bytes; at most 512");
}

// Units of a trie that lead out of it, in circles, or to texts that are not there.
static void test_hostile_charsmaps(void **state)
{
    (void)state;
    static const char *const maps[] = {
        "BAAAAP////8A", // its only unit leads far away
        "BAAAAAABAAAA", // a leaf at the root
        "CAAAAGEFAABhBQAAAA==",
        "CAAAAAAEAIBhAQAAAA==",
    };
    for (size_t i = 0; i < MSGL_COUNT(maps); i++) {
        char json[512];
        msgl_tokenizer *t = NULL;
        msgl_ids ids = {0};
        msgl_err err = {0};
        snprintf(json, sizeof json,
                 BASE("\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"%s\"}"),
                 maps[i]);
        const int rc = msgl__tokenizer_parse(json, strlen(json), NULL, 0, &t, &err);
        if (rc != 0) fail_msg("%s: %s", maps[i], err.text);
        const char text[] = "aaab\x01 \xc3\xa9";
        assert_int_equal(msgl__tokenizer_encode(t, text, sizeof text - 1, NULL, &ids, &err), 0);
        msgl__ids_free(&ids);
        msgl__tokenizer_free(t);
    }
}

// A special token that is spelled in a client's text is not that token.
static void test_untrusted(void **state)
{
    static const struct {
        const char *name, *token;
    } specials[] = {{"bert", "[SEP]"}, {"xlmr", "</s>"}, {"unigram_bytes", "</s>"}};
    (void)state;
    for (size_t i = 0; i < MSGL_COUNT(specials); i++) {
        msgl_tokenizer *t = vector_tokenizer(specials[i].name);
        const int32_t id = msgl__tokenizer_id(t, specials[i].token);
        assert_true(id >= 0);
        const size_t n = strlen(specials[i].token);
        const msgl_text_span all = {0, n};
        const msgl_encode_opts opts = {.untrusted = &all, .num_untrusted = 1};
        msgl_ids ids = {0}, trusted = {0};
        msgl_err err;
        assert_int_equal(msgl__tokenizer_encode(t, specials[i].token, n, NULL, &trusted, &err), 0);
        assert_int_equal(trusted.len, 1);
        assert_int_equal(trusted.data[0], id);
        assert_int_equal(msgl__tokenizer_encode(t, specials[i].token, n, &opts, &ids, &err), 0);
        assert_true(ids.len > 0);
        for (size_t k = 0; k < ids.len; k++) assert_int_not_equal(ids.data[k], id);
        msgl__ids_free(&ids);
        msgl__ids_free(&trusted);
        msgl__tokenizer_free(t);
    }
}

// A megabyte of one letter, in one word: WordPiece gives up, Unigram takes time in proportion.
static void test_long_texts(void **state)
{
    enum { LONG = 1 << 20 };
    static const char *const names[] = {"bert", "xlmr", "unigram_bytes"};
    (void)state;
    char *text = malloc(LONG);
    assert_non_null(text);
    memset(text, 'a', LONG);
    for (size_t i = 0; i < MSGL_COUNT(names); i++) {
        msgl_tokenizer *t = vector_tokenizer(names[i]);
        msgl_ids ids = {0};
        msgl_err err;
        assert_int_equal(msgl__tokenizer_encode(t, text, LONG, NULL, &ids, &err), 0);
        assert_true(i == 0 ? ids.len == 1 : ids.len > LONG / 20);
        msgl__ids_free(&ids);
        msgl__tokenizer_free(t);
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pairs),      cmocka_unit_test(test_wrong_files),
        cmocka_unit_test(test_long_piece), cmocka_unit_test(test_hostile_charsmaps),
        cmocka_unit_test(test_untrusted),  cmocka_unit_test(test_long_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
