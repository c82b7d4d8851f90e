// SPDX-License-Identifier: Apache-2.0
//
// What a word that must not be said is spelled by, and which tokens end what DRY compares, with the
// demo model's tokenizer.
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "text/bad_words.h"
#include "text/dry_breakers.h"

static msgl_tokenizer *tok;

static int setup(void **state)
{
    (void)state;
    msgl_err err;
    if (msgl__tokenizer_load(MSGL_SOURCE_DIR "/models/demo", &tok, &err) != 0) {
        fail_msg("%s", err.text);
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    msgl__tokenizer_free(tok);
    return 0;
}

static void expect_text(const msgl_ids *v, size_t at, const char *text)
{
    msgl_strbuf b;
    msgl__strbuf_init(&b, 1000);
    const size_t n = (size_t)v->data[at];
    assert_int_equal(msgl__tokenizer_decode(tok, v->data + at + 1, n, 0, &b, NULL), 0);
    assert_string_equal(msgl__strbuf_str(&b), text);
    msgl__strbuf_free(&b);
}

static void test_spellings(void **state)
{
    (void)state;
    msgl_ids v = {0};
    // One token each way, and they differ: both. Blanks before do not matter.
    assert_int_equal(msgl__bad_word_add(tok, " \tthe", 5, &v, NULL), 0);
    assert_int_equal(v.len, 4);
    assert_int_equal(v.data[0], 1);
    expect_text(&v, 0, "the");
    expect_text(&v, 2, " the");
    // Behind a space it has one token more: the space is a token of its own.
    v.len = 0;
    assert_int_equal(msgl__bad_word_add(tok, "\xe6\xbc\xa2", 3, &v, NULL), 0);
    assert_int_equal(v.data[0], v.len - 1);
    expect_text(&v, 0, "\xe6\xbc\xa2");
    msgl__ids_free(&v);
}

// A tokenizer that puts a space before every text that has none: both spellings are one.
static void test_one_spelling(void **state)
{
    (void)state;
    static const char json[] =
        "{\"added_tokens\":[],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
        "\"add_prefix_space\":true,\"use_regex\":true},\"post_processor\":null,\"decoder\":{"
        "\"type\":"
        "\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"Ġ\":0,\"a\":1,\"b\":2},"
        "\"merges\":[]}}";
    char dir[] = "/tmp/minisgl-words-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(json, f) >= 0);
    assert_int_equal(fclose(f), 0);
    msgl_tokenizer *t;
    msgl_err err = {0};
    if (msgl__tokenizer_load(dir, &t, &err) != 0) fail_msg("%s", err.text);
    msgl_ids v = {0};
    assert_int_equal(msgl__bad_word_add(t, "ab", 2, &v, NULL), 0);
    assert_int_equal(v.len, 1 + 3);
    for (int i = 0; i < 3; i++) assert_int_equal(v.data[1 + i], i);
    msgl__ids_free(&v);
    msgl__tokenizer_free(t);
    assert_int_equal(remove(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

static void test_refused(void **state)
{
    (void)state;
    char long_word[300];
    memset(long_word, 'a', sizeof long_word);
    long_word[299] = '\0';
    const char *const bad[] = {"", "  ", long_word, "\xff"};
    for (size_t i = 0; i < 4; i++) {
        msgl_ids v = {0};
        msgl_err err;
        assert_true(msgl__bad_word_add(tok, bad[i], strlen(bad[i]), &v, &err) < 0);
        assert_true(err.text[0] != '\0');
        msgl__ids_free(&v);
    }
}

// All tokens whose text has one of the strings in it, each once and no other.
static void test_breakers(void **state)
{
    (void)state;
    const char *const texts[] = {":", "th"}, *const usual[] = {"\n", ":", "\"", "*"};
    for (int kind = 0; kind < 2; kind++) {
        const char *const *all = kind == 0 ? texts : usual;
        const int n = kind == 0 ? 2 : 4;
        msgl_ids v = {0};
        int at;
        assert_int_equal(msgl__dry_breakers(tok, kind == 0 ? texts : NULL, n, &v, &at, NULL), 0);
        size_t next = 0;
        for (int32_t id = 0; id < msgl__tokenizer_vocab_size(tok); id++) {
            char text[256] = "";
            const int len = msgl__tokenizer_token_bytes(tok, id, text, sizeof text - 1);
            bool has = false;
            for (int i = 0; i < n && len > 0; i++) has |= strstr(text, all[i]) != NULL;
            if (!has) continue;
            assert_true(next < v.len);
            assert_int_equal(v.data[next++], id);
        }
        assert_int_equal(next, v.len);
        assert_true(next > 0);
        msgl__ids_free(&v);
    }
}

// A text that only several tokens spell breaks at the last of them, and at nothing else of it.
static void test_long_breakers(void **state)
{
    (void)state;
    const char *const texts[] = {"not in any token of it", "nor is this one, of it"};
    msgl_ids v = {0}, spelled = {0};
    int at = -1;
    assert_int_equal(
        msgl__tokenizer_encode(tok, "anot in any token of it", 23, NULL, &spelled, NULL), 0);
    assert_true(spelled.len > 2);
    assert_int_equal(msgl__dry_breakers(tok, texts, 2, &v, &at, NULL), 0);
    assert_int_equal(v.len, 1); // both end in the same
    assert_int_equal(v.data[0], spelled.data[spelled.len - 1]);
    msgl__ids_free(&v);
    msgl__ids_free(&spelled);
}

static void test_refused_breakers(void **state)
{
    (void)state;
    static const char *const empty[] = {":", ""}, *const broken[] = {"\xffnowhere"};
    msgl_ids v = {0};
    msgl_err err;
    int at = -1;
    assert_int_equal(msgl__dry_breakers(tok, empty, 2, &v, &at, &err), MSGL_EINVAL);
    assert_int_equal(at, 1);
    assert_non_null(strstr(err.text, "allowed: 1 to 40"));
    assert_int_equal(msgl__dry_breakers(tok, broken, 1, &v, &at, &err), MSGL_EFORMAT);
    assert_int_equal(msgl__dry_breakers(tok, empty, 65, &v, &at, &err), MSGL_EINVAL);
    v.len = 0; // none
    assert_int_equal(msgl__dry_breakers(tok, empty, 0, &v, &at, &err), 0);
    assert_int_equal(v.len, 0);
    msgl__ids_free(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spellings),     cmocka_unit_test(test_one_spelling),
        cmocka_unit_test(test_refused),       cmocka_unit_test(test_breakers),
        cmocka_unit_test(test_long_breakers), cmocka_unit_test(test_refused_breakers)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
