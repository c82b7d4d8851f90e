// SPDX-License-Identifier: Apache-2.0
//
// Thoughts, forms and calls, one behind the other, on a vocabulary of all bytes, whose id is the
// byte and one, some longer tokens, and three that have no bytes but a name.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "grammar/constrain.h"
#include "grammar/stages.h"

enum { EOS = 0, THINK = 257, CLOSE, CALL, LONG, JOINED, TO_CALL, NUM };
static const char *const names[] = {"[THINK]", "[/THINK]", "[CALL]"};
static const char *const longer[] = {"ink>\n\n", "nk>x", "<tool"};

static msgl_grammar_vocab *vocab(void)
{
    static char bytes[256];
    msgl_grammar_token tokens[NUM] = {{0}}, texts[3];
    const int32_t eos = EOS, ids[3] = {THINK, CLOSE, CALL};
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        tokens[1 + i] = (msgl_grammar_token){&bytes[i], 1};
    }
    for (int i = 0; i < 3; i++) {
        tokens[LONG + i] = (msgl_grammar_token){longer[i], strlen(longer[i])};
        texts[i] = (msgl_grammar_token){names[i], strlen(names[i])};
    }
    msgl_grammar_vocab *v;
    msgl_err err;
    assert_int_equal(msgl__grammar_vocab_create(tokens, NUM, &eos, 1, &v, &err), 0);
    assert_int_equal(msgl__grammar_vocab_show(v, ids, texts, 3), 0);
    return v;
}

static msgl_grammar *grammar(msgl_grammar_kind kind, const char *text)
{
    msgl_grammar *g = NULL;
    msgl_err err = {0};
    if (text != NULL && msgl__grammar_compile(kind, text, NULL, &g, &err) != 0) {
        fail_msg("%s", err.text);
    }
    return g;
}

// regex NULL: the answer is free behind the stages.
static msgl_staged *open_staged(const char *stages, const char *regex)
{
    msgl_stages *s;
    msgl_err err = {0};
    if (msgl__stages_parse(stages, &s, &err) != 0) fail_msg("%s", err.text);
    msgl_grammar_vocab *v = vocab();
    msgl_grammar *answer = grammar(MSGL_GRAMMAR_REGEX, regex);
    msgl_grammar *calls = grammar(MSGL_GRAMMAR_LARK, msgl__stages_calls(s));
    msgl_staged *x = msgl__staged_create(s, answer, calls, v);
    assert_non_null(x);
    msgl__grammar_unref(answer);
    msgl__grammar_unref(calls);
    msgl__grammar_vocab_unref(v);
    return x;
}

static bool allows(msgl_staged *x, int32_t token)
{
    uint32_t bits[(NUM + 31) / 32];
    assert_int_equal(msgl__staged_fill_mask(x, bits), 0);
    return bits[token >> 5] >> (token & 31) & 1;
}

static int num_allowed(msgl_staged *x)
{
    int n = 0;
    for (int32_t i = 0; i < NUM; i++) n += allows(x, i);
    return n;
}

static void take(msgl_staged *x, int32_t token)
{
    if (!allows(x, token)) fail_msg("token %d is not allowed", token);
    assert_int_equal(msgl__staged_accept(x, token), 0);
}

static void say(msgl_staged *x, const char *text)
{
    for (; *text != '\0'; text++) take(x, 1 + (unsigned char)*text);
}

static bool may_say(msgl_staged *x, char c)
{
    return allows(x, 1 + (unsigned char)c);
}

#define THINKS "\"open\":[\"<think>\"],\"close\":[\"</think>\"]"

static void test_opened(void **state)
{
    (void)state;
    msgl_staged *x = open_staged("{\"thinking\":true," THINKS "}", "ab?");
    assert_false(allows(x, EOS)); // the form has to come
    assert_int_equal(num_allowed(x), NUM - 1);
    say(x, "b </thin k></think>");
    // White space, once, and the form.
    assert_true(may_say(x, '\n') && may_say(x, 'a'));
    assert_false(may_say(x, 'b') || allows(x, EOS));
    say(x, "\n");
    assert_false(may_say(x, '\n'));
    say(x, "a");
    assert_true(allows(x, EOS));
    say(x, "b");
    assert_true(msgl__staged_is_finished(x));
    msgl__staged_destroy(x);
    // A token that has the end of the mark and more: white space may be that, and nothing else.
    x = open_staged("{\"thinking\":true," THINKS "}", "ab?");
    say(x, "x</th");
    take(x, LONG);
    say(x, "a");
    msgl__staged_destroy(x);
    x = open_staged("{\"thinking\":true," THINKS "}", "ab?");
    assert_true(allows(x, JOINED));
    say(x, "x</thi");
    assert_false(allows(x, JOINED));
    msgl__staged_destroy(x);
}

// The prompt has opened nothing: the answer may begin with thoughts or with the form.
static void test_not_opened(void **state)
{
    (void)state;
    msgl_staged *x = open_staged("{" THINKS "}", "ab?|<a>");
    assert_int_equal(num_allowed(x), 2);
    say(x, "ab");
    assert_true(msgl__staged_is_finished(x));
    msgl__staged_destroy(x);
    x = open_staged("{" THINKS "}", "ab?|<a>");
    say(x, "<");
    assert_int_equal(num_allowed(x), 2); // a of the form, t of the mark
    say(x, "a>");
    assert_true(msgl__staged_is_finished(x));
    msgl__staged_destroy(x);
    x = open_staged("{" THINKS "}", "ab?|<a>");
    say(x, "<think><think></think>\n");
    assert_true(may_say(x, '<')); // and thoughts come once
    say(x, "<");
    assert_int_equal(num_allowed(x), 1);
    say(x, "a>");
    msgl__staged_destroy(x);
    // Marks that are special tokens.
    x = open_staged("{\"open\":[\"[THINK]\"],\"close\":[\"[/THINK]\"]}", "ab?");
    assert_true(allows(x, THINK) && !allows(x, CLOSE));
    take(x, THINK);
    say(x, "hm");
    take(x, CLOSE);
    say(x, "a");
    assert_true(allows(x, EOS));
    msgl__staged_destroy(x);
}

static void test_budget(void **state)
{
    (void)state;
    // In tokens: "!" and "?" end the thoughts, then the form comes at once.
    static const char three[] = "{\"thinking\":true," THINKS ",\"budget\":3,\"end\":[34,64]}";
    msgl_staged *x = open_staged(three, "ab?");
    say(x, "xyz");
    assert_int_equal(num_allowed(x), 1);
    say(x, "!?");
    assert_false(may_say(x, '\n'));
    say(x, "ab");
    assert_true(msgl__staged_is_finished(x));
    msgl__staged_destroy(x);
    // Thoughts that end before are not ended again; a mark may not have more than that either.
    x = open_staged("{\"thinking\":true," THINKS ",\"budget\":20,\"end\":[34]}", NULL);
    assert_true(allows(x, EOS)); // without a form an answer may end anywhere
    say(x, "x</think>");
    assert_true(msgl__staged_is_free(x));
    msgl__staged_destroy(x);
    // Without a form all is free behind it. None at all.
    x = open_staged("{\"thinking\":true," THINKS ",\"budget\":0,\"end\":[34]}", NULL);
    assert_int_equal(num_allowed(x), 1);
    say(x, "!");
    assert_true(msgl__staged_is_free(x));
    msgl__staged_destroy(x);
    x = open_staged("{" THINKS ",\"budget\":1,\"end\":[34]}", NULL);
    assert_int_equal(num_allowed(x), NUM);
    say(x, "<think>x");
    assert_int_equal(num_allowed(x), 1);
    say(x, "!");
    assert_true(msgl__staged_is_free(x));
    msgl__staged_destroy(x);
    x = open_staged("{" THINKS ",\"budget\":1,\"end\":[34]}", NULL);
    say(x, "<th!");
    assert_true(msgl__staged_is_free(x));
    msgl__staged_destroy(x);
}

static void test_calls(void **state)
{
    (void)state;
    static const char either[] = "{\"calls\":[\"<tool>\",\"[CALL]\"]}";
    msgl_staged *x = open_staged(either, "<a>|b");
    assert_true(allows(x, CALL) && allows(x, 1 + '<') && allows(x, 1 + 'b') && allows(x, TO_CALL));
    take(x, CALL);
    assert_true(msgl__staged_is_free(x));
    msgl__staged_destroy(x);
    x = open_staged(either, "<a>|b");
    take(x, TO_CALL); // "<tool"
    assert_int_equal(num_allowed(x), 1);
    say(x, ">");
    assert_true(msgl__staged_is_free(x));
    msgl__staged_destroy(x);
    x = open_staged(either, "<a>|b");
    say(x, "<a>");
    assert_true(msgl__staged_is_finished(x));
    msgl__staged_destroy(x);
    // Held to a grammar of their own, behind thoughts, too.
    x = open_staged("{\"thinking\":true," THINKS
                    ",\"calls\":[\"<tool>\"],\"grammar\":\"start: \\\"f\\\"\\n\"}",
                    "b");
    say(x, "hm</think>\n<tool>");
    assert_int_equal(num_allowed(x), 1);
    say(x, "f");
    assert_true(msgl__staged_is_finished(x));
    msgl__staged_destroy(x);
    // In thoughts, where they lead away from them.
    x = open_staged("{\"thinking\":true,\"close\":[\"final:\"],\"away\":[\"to=\"]}", "b");
    say(x, "hm to=");
    assert_true(msgl__staged_is_free(x));
    msgl__staged_destroy(x);
}

// What has to come behind the thoughts, or without them.
static void test_opening(void **state)
{
    (void)state;
    static const char both[] = "{" THINKS ",\"opening\":[41,259],\"behind\":[42,259]}";
    msgl_staged *x = open_staged(both, NULL);
    assert_int_equal(num_allowed(x), 2); // "(" and "<"
    say(x, "(");
    take(x, CALL);
    assert_true(msgl__staged_is_free(x));
    msgl__staged_destroy(x);
    x = open_staged(both, "a");
    say(x, "<think>hm</think>\n)");
    assert_int_equal(num_allowed(x), 1);
    take(x, CALL);
    say(x, "a");
    assert_true(msgl__staged_is_finished(x));
    msgl__staged_destroy(x);
    x = open_staged("{\"thinking\":true," THINKS ",\"opening\":[41]}", "a");
    assert_false(allows(x, EOS));
    say(x, "</think>(a");
    assert_true(msgl__staged_is_finished(x));
    msgl__staged_destroy(x);
    // Only that.
    x = open_staged("{\"opening\":[41]}", "a");
    say(x, "(a");
    msgl__staged_destroy(x);
    // What is not allowed is refused.
    x = open_staged("{\"opening\":[41]}", "a");
    assert_int_equal(msgl__staged_accept(x, 1 + 'a'), MSGL_EINVAL);
    msgl__staged_destroy(x);
    x = open_staged("{\"calls\":[\"<tool>\"]}", "a");
    assert_int_equal(msgl__staged_accept(x, 1 + 'b'), MSGL_EINVAL);
    msgl__staged_destroy(x);
}

static void test_told_wrong(void **state)
{
    (void)state;
    static const char *const bad[] = {"x",
                                      "{\"open\":5}",
                                      "{\"close\":[\"\"]}",
                                      "{\"end\":[-1]}",
                                      "{\"opening\":[\"a\"]}",
                                      "{\"budget\":-2}"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        msgl_stages *s;
        msgl_err err = {0};
        assert_int_equal(msgl__stages_parse(bad[i], &s, &err), MSGL_EFORMAT);
        assert_null(s);
        assert_int_not_equal(err.text[0], '\0');
    }
}

// Every allocation fails once, and nothing is lost.
static void test_no_memory(void **state)
{
    (void)state;
    static const char text[] = "{\"thinking\":true," THINKS ",\"calls\":[\"<tool>\"]}";
    bool done = false;
    for (int64_t nth = 1; !done; nth++) {
        msgl_grammar_vocab *v = vocab();
        msgl_grammar *g = grammar(MSGL_GRAMMAR_REGEX, "ab");
        msgl_stages *s = NULL;
        msgl_staged *x = NULL;
        msgl_err err;
        uint32_t bits[(NUM + 31) / 32];
        msgl__mem_fail_from(nth);
        int rc = msgl__stages_parse(text, &s, &err);
        if (rc == 0) x = msgl__staged_create(s, g, NULL, v);
        if (rc == 0 && x == NULL) rc = MSGL_ENOMEM;
        for (const char *p = "x</think><tool>"; rc == 0 && *p != '\0'; p++) {
            rc = msgl__staged_fill_mask(x, bits);
            if (rc == 0) rc = msgl__staged_accept(x, 1 + (unsigned char)*p);
        }
        msgl__mem_fail_from(0);
        assert_true(rc == 0 || rc == MSGL_ENOMEM || rc == MSGL_EFORMAT);
        done = rc == 0;
        msgl__staged_destroy(x);
        msgl__grammar_unref(g);
        msgl__grammar_vocab_unref(v);
        assert_true(nth < 10000);
    }
}

// Masks behind drafts are those that there are when these have come, up to one that may not come or
// ends the answer; and the answer is where it was.
static void test_look(void **state)
{
    (void)state;
    enum { WORDS = (NUM + 31) / 32 };
    static const struct {
        const char *drafts;
        int32_t masks;
    } cases[] = {{"abab", 4}, {"abax", 3}, {"x", 0}, {"ababcd", 5}, {"", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        msgl_staged *x = open_staged("", "(ab)+cd"), *y = open_staged("", "(ab)+cd");
        int32_t drafts[8];
        uint32_t bits[8 * WORDS], now[WORDS];
        const int32_t n = (int32_t)strlen(cases[i].drafts);
        say(x, "ab");
        say(y, "ab");
        for (int32_t k = 0; k < n; k++) drafts[k] = 1 + (unsigned char)cases[i].drafts[k];
        assert_int_equal(msgl__staged_look(x, drafts, n, bits), cases[i].masks);
        for (int32_t k = 0; k < cases[i].masks; k++) {
            take(y, drafts[k]);
            assert_int_equal(msgl__staged_fill_mask(y, now), 0);
            assert_memory_equal(bits + k * WORDS, now, sizeof now);
        }
        assert_true(may_say(x, 'a') && may_say(x, 'c') && !may_say(x, 'b'));
        say(x, "abcd");
        assert_true(msgl__staged_is_finished(x));
        msgl__staged_destroy(x);
        msgl__staged_destroy(y);
    }
    // None within thoughts.
    msgl_staged *x = open_staged("{\"thinking\":true," THINKS "}", "ab?");
    const int32_t draft = 1 + 'a';
    uint32_t bits[WORDS];
    assert_int_equal(msgl__staged_look(x, &draft, 1, bits), 0);
    msgl__staged_destroy(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opened),  cmocka_unit_test(test_not_opened),
        cmocka_unit_test(test_budget),  cmocka_unit_test(test_calls),
        cmocka_unit_test(test_opening), cmocka_unit_test(test_told_wrong),
        cmocka_unit_test(test_look),    cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
