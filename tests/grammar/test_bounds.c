// SPDX-License-Identifier: Apache-2.0
//
// What a client may ask for on purpose: deep, wide, exponential, without end. Everything is
// answered by a grammar or one line that names the limit, and no allocation that fails does harm.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "grammar/fixture.h"
#include "utils/strbuf.h"

static void repeat(msgl_strbuf *b, const char *s, int n)
{
    for (int i = 0; i < n; i++) assert_int_equal(msgl__strbuf_adds(b, s), 0);
}

typedef int (*compile_fn)(const char *, size_t, const msgl_grammar_limits *, msgl_grammar **,
                          msgl_err *);

// Compiles; a failure has to be of the limit named (NULL: any limit or success).
static msgl_grammar *hostile(compile_fn compile, msgl_strbuf *b, const char *limit)
{
    msgl_grammar *g = NULL;
    msgl_err err = {0};
    const int rc = compile(b->data, b->len, NULL, &g, &err);
    if (limit == NULL) {
        if (rc != 0) fail_msg("%.60s: %s", b->data, err.text);
    } else if (rc == 0 || strstr(err.text, limit) == NULL) {
        fail_msg("%.60s: %d '%s', expected %s", b->data, rc, err.text, limit);
    }
    msgl__strbuf_clear(b);
    return g;
}

static void test_hostile_texts(void **state)
{
    (void)state;
    msgl_strbuf b;
    msgl__strbuf_init(&b, (size_t)4 << 20);
    repeat(&b, "(", 60000);
    hostile(msgl__grammar_regex, &b, "limit: depth");
    msgl__strbuf_adds(&b, "root ::= ");
    repeat(&b, "(", 60000);
    hostile(msgl__grammar_gbnf, &b, "limit: depth");
    repeat(&b, "{\"items\":", 3000);
    msgl__strbuf_adds(&b, "1");
    repeat(&b, "}", 3000);
    hostile(msgl__grammar_json_schema, &b, "json_schema");
    repeat(&b, "{\"items\":", 1000);
    msgl__strbuf_adds(&b, "true");
    repeat(&b, "}", 1000);
    hostile(msgl__grammar_json_schema, &b, "limit: depth");
    repeat(&b, "a", (1 << 20) + 1);
    hostile(msgl__grammar_regex, &b, "limit: input");
    msgl__strbuf_adds(&b, ".{1,65535}{1,65535}");
    hostile(msgl__grammar_regex, &b, "double repetition");
    // Copies of copies where the length counts too, so that nothing else can.
    msgl__strbuf_adds(
        &b, "{\"type\":\"string\",\"maxLength\":9,\"pattern\":\"((((a{900}){900}){900}){900})\"}");
    hostile(msgl__grammar_json_schema, &b, "limit: ");
    // Ten references to ten references ...: rules, not copies.
    msgl__strbuf_adds(&b, "{\"$ref\":\"#/$defs/d0\",\"$defs\":{");
    for (int i = 0; i < 30; i++) {
        msgl__strbuf_addf(&b, "\"d%d\":{\"type\":\"array\",\"prefixItems\":[", i);
        for (int k = 0; k < 10; k++)
            msgl__strbuf_addf(&b, "%s{\"$ref\":\"#/$defs/d%d\"}", k ? "," : "", i + 1);
        msgl__strbuf_adds(&b, "]},");
    }
    msgl__strbuf_adds(&b, "\"d30\":{\"type\":\"null\"}}}");
    msgl__grammar_unref(hostile(msgl__grammar_json_schema, &b, NULL));
    // The same through allOf: each part counts once, whatever the number of ways to it.
    msgl__strbuf_adds(&b, "{\"$ref\":\"#/$defs/d0\",\"$defs\":{");
    for (int i = 0; i < 30; i++) {
        msgl__strbuf_addf(
            &b, "\"d%d\":{\"allOf\":[{\"$ref\":\"#/$defs/d%d\"},{\"$ref\":\"#/$defs/d%d\"}]},", i,
            i + 1, i + 1);
    }
    msgl__strbuf_adds(&b, "\"d30\":{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"string\"}]}}}");
    msgl__grammar_unref(hostile(msgl__grammar_json_schema, &b, NULL));
    // Every level has a keyword of its own, so that no two sums of allOf are the same.
    msgl__strbuf_adds(&b, "{\"$ref\":\"#/$defs/d0\",\"$defs\":{");
    for (int i = 0; i < 3000; i++) {
        msgl__strbuf_addf(&b,
                          "\"d%d\":{\"allOf\":[{\"$ref\":\"#/$defs/d%d\"}],\"properties\":"
                          "{\"p%d\":{\"$ref\":\"#/$defs/d%d\"}}},",
                          i, (i + 1) % 3000, i, (i * 7 + 3) % 3000);
    }
    msgl__strbuf_adds(&b, "\"x\":{}}}");
    hostile(msgl__grammar_json_schema, &b, "limit: ");
    // Objects whose members are those of 200 others each: 200^2 sums of 200 members.
    msgl__strbuf_adds(&b, "{\"$defs\":{\"a\":{\"properties\":{\"m0\":{}");
    for (int i = 1; i < 400; i++) msgl__strbuf_addf(&b, ",\"m%d\":{\"minLength\":%d}", i, i);
    msgl__strbuf_adds(&b, "}}},\"properties\":{\"x\":{}");
    for (int i = 0; i < 3000; i++) {
        msgl__strbuf_addf(&b, ",\"q%d\":{\"$ref\":\"#/$defs/a\",\"minLength\":%d}", i, i % 9);
    }
    msgl__strbuf_adds(&b, "}}");
    hostile(msgl__grammar_json_schema, &b, "limit: ");
    // A chain of rules that each only name the next.
    msgl__strbuf_adds(&b, "root ::= r0\n");
    for (int i = 0; i < 5000; i++) msgl__strbuf_addf(&b, "r%d ::= r%d\n", i, i + 1);
    msgl__strbuf_adds(&b, "r5000 ::= \"x\"\n");
    msgl_grammar *g = hostile(msgl__grammar_gbnf, &b, NULL);
    msgl_grammar_vocab *v = fixture_vocab(0, 1);
    assert_true(fixture_accepts(g, v, "x", 1));
    msgl__grammar_vocab_unref(v);
    msgl__grammar_unref(g);
    msgl__strbuf_free(&b);
}

static void test_large_enum(void **state)
{
    (void)state;
    msgl_strbuf b;
    msgl__strbuf_init(&b, (size_t)4 << 20);
    msgl__strbuf_adds(&b, "{\"enum\":[");
    for (int i = 0; i < 20000; i++)
        msgl__strbuf_addf(&b, "%s\"word %d of many\"", i ? "," : "", i * 7919);
    msgl__strbuf_adds(&b, "]}");
    msgl_grammar *g = hostile(msgl__grammar_json_schema, &b, NULL);
    msgl_grammar_vocab *v = fixture_vocab(300, 1);
    const char *const yes = "\"word 7919 of many\"", *const no = "\"word 7920 of many\"";
    assert_true(fixture_accepts(g, v, yes, strlen(yes)));
    assert_false(fixture_accepts(g, v, no, strlen(no)));
    uint64_t rng = 1;
    msgl_matcher *m = msgl__matcher_create(g, v);
    fixture_random_way(m, v, 30, &rng);
    msgl__matcher_destroy(m);
    msgl__grammar_vocab_unref(v);
    msgl__grammar_unref(g);
    msgl__strbuf_free(&b);
}

// A list of n values, each of which `fmt` makes of its number.
__attribute__((format(printf, 3, 0))) static void list(msgl_strbuf *b, int n, const char *fmt)
{
    for (int i = 0; i < n; i++) {
        if (i > 0) repeat(b, ",", 1);
        assert_int_equal(msgl__strbuf_addf(b, fmt, i), 0);
    }
}

// Comparing values and names with each other is work, too: the cost of these schemas grows with the
// square of their length, and one of 800 kB took 18 s before every comparison was counted.
static void test_comparisons(void **state)
{
    (void)state;
    msgl_strbuf b;
    msgl__strbuf_init(&b, (size_t)4 << 20);
    // At each listed number both alternatives are looked at, and the list is 3,000 values long.
    repeat(&b, "{\"oneOf\":[{\"enum\":[", 1);
    list(&b, 3000, "%d");
    repeat(&b, "]},{\"type\":\"integer\"}]}", 1);
    hostile(msgl__grammar_json_schema, &b, "limit: work");
    repeat(&b, "{\"oneOf\":[{\"type\":\"integer\",\"enum\":[", 1);
    list(&b, 3000, "%d");
    repeat(&b, "]},{\"type\":\"integer\"}]}", 1);
    hostile(msgl__grammar_json_schema, &b, "limit: work");
    // Each of 8,000 properties is looked for in 8,000 names that are required.
    repeat(&b, "{\"oneOf\":[{\"type\":\"object\",\"properties\":{", 1);
    list(&b, 8000, "\"k%d\":{}");
    repeat(&b, "},\"required\":[", 1);
    list(&b, 8000, "\"k%d\"");
    repeat(&b, "]},{\"type\":\"object\"}]}", 1);
    hostile(msgl__grammar_json_schema, &b, "limit: work");
    // 300 references look for an anchor past 50,000 values.
    repeat(&b, "{\"examples\":[],\"default\":{", 1);
    list(&b, 50000, "\"%d\":1");
    repeat(&b, "},\"$defs\":{\"a\":{\"$anchor\":\"x\",\"type\":\"null\"}},\"properties\":{", 1);
    list(&b, 300, "\"k%d\":{\"$ref\":\"#x\"}");
    repeat(&b, "}}", 1);
    hostile(msgl__grammar_json_schema, &b, "limit: work");
    msgl__strbuf_free(&b);
}

// Of alternatives without end some are left out, and the answer goes on as long as there is one.
static void test_explosion(void **state)
{
    (void)state;
    static const char *const PATTERNS[] = {"(a?){1,9000}b",
                                           "(a+)+b",
                                           "(a|a)*b",
                                           "(a|aa){1,9000}b",
                                           "(a*)*b",
                                           "(.*a){1,400}b",
                                           "((a{1,90}){1,90}){1,90}b",
                                           "(a|b)*a(a|b){300}"};
    msgl_grammar_vocab *v = fixture_vocab(300, 1);
    uint32_t *bits = msgl__calloc((size_t)msgl__grammar_vocab_size(v) / 32 + 1, sizeof *bits);
    for (size_t i = 0; i < MSGL_COUNT(PATTERNS); i++) {
        msgl_grammar *g = NULL;
        msgl_err err = {0};
        assert_int_equal(msgl__grammar_regex(PATTERNS[i], strlen(PATTERNS[i]), NULL, &g, &err), 0);
        msgl_matcher *m = msgl__matcher_create(g, v);
        int rc = 0;
        for (int k = 0; k < 200 && rc == 0; k++) {
            if (k % 100 == 0) rc = msgl__matcher_fill_mask(m, bits);
            if (rc == 0) rc = msgl__matcher_accept_bytes(m, "a", 1);
        }
        if (rc != 0) fail_msg("%s: %d", PATTERNS[i], rc);
        msgl__matcher_destroy(m);
        msgl__grammar_unref(g);
    }
    // The same by rules that call themselves, 3^n ways to read n letters.
    static const char RULES[] = "root ::= root root root | \"a\"";
    msgl_grammar *g = NULL;
    msgl_err err = {0};
    assert_int_equal(msgl__grammar_gbnf(RULES, strlen(RULES), NULL, &g, &err), 0);
    msgl_matcher *m = msgl__matcher_create(g, v);
    for (int k = 0; k < 101; k++) {
        if (k % 25 == 0) assert_int_equal(msgl__matcher_fill_mask(m, bits), 0);
        assert_int_equal(msgl__matcher_accept_bytes(m, "a", 1), 0);
    }
    msgl__matcher_destroy(m);
    msgl__grammar_unref(g);
    msgl__free(bits);
    msgl__grammar_vocab_unref(v);
}

// Forms as large as honest clients send them: each answer comes to its end, whichever of the
// alternatives it is; what has too many at one place is refused when it is compiled.
static void test_large_forms(void **state)
{
    (void)state;
    msgl_strbuf b;
    msgl__strbuf_init(&b, (size_t)4 << 20);
    msgl_grammar_vocab *v = fixture_vocab(300, 1);
    msgl__strbuf_adds(&b, "{\"oneOf\":[");
    for (int i = 0; i < 3000; i++) {
        msgl__strbuf_addf(&b,
                          "%s{\"type\":\"object\",\"properties\":{\"k\":{\"const\":%d},\"v\":{"
                          "\"type\":\"integer\"}},\"required\":[\"k\"]}",
                          i ? "," : "", i);
    }
    msgl__strbuf_adds(&b, "]}");
    msgl_grammar *one = hostile(msgl__grammar_json_schema, &b, NULL);
    msgl__strbuf_adds(&b, "{\"properties\":{\"k\":{\"type\":\"integer\"}");
    for (int i = 0; i < 5000; i++) msgl__strbuf_addf(&b, ",\"k%d\":{\"type\":\"integer\"}", i);
    msgl__strbuf_adds(&b, "}}");
    msgl_grammar *optional = hostile(msgl__grammar_json_schema, &b, NULL);
    for (int i = 0; i < 50000; i++)
        msgl__strbuf_addf(&b, "%sw%06d", i ? "|" : "", (int)(i * 7919LL % 1000003));
    msgl_grammar *words = hostile(msgl__grammar_regex, &b, NULL);
    const struct {
        msgl_grammar *g;
        const char *yes[3], *no;
    } CASES[] = {
        {one, {"{\"k\":0}", "{\"k\":2999,\"v\":-7}", "{\n  \"k\": 1234\n}"}, "{\"k\":3000}"},
        {optional, {"{}", "{\"k\":1,\"k0\":2,\"k4999\":3}", "{\"k17\": 5}"}, "{\"k1\":1,\"k0\":2}"},
        {words, {"w000000", "w007919", "w997794"}, "w000001"},
    };
    for (size_t i = 0; i < MSGL_COUNT(CASES); i++) {
        for (int k = 0; k < 3; k++) {
            if (!fixture_accepts(CASES[i].g, v, CASES[i].yes[k], strlen(CASES[i].yes[k]))) {
                fail_msg("%s", CASES[i].yes[k]);
            }
        }
        if (fixture_accepts(CASES[i].g, v, CASES[i].no, strlen(CASES[i].no))) fail_msg("%zu", i);
        uint64_t rng = i + 1;
        msgl_matcher *m = msgl__matcher_create(CASES[i].g, v);
        assert_true(fixture_random_way(m, v, 5, &rng) > 0);
        msgl__matcher_destroy(m);
        msgl__grammar_unref(CASES[i].g);
    }
    // 20,000 words that each go on in a way of their own, behind one letter that they share.
    for (int i = 0; i < 20000; i++)
        msgl__strbuf_addf(&b, "%s[a-z]%c?%d", i ? "|" : "", 'A' + i % 26, i);
    hostile(msgl__grammar_regex, &b, "limit: alternatives");
    msgl__grammar_vocab_unref(v);
    msgl__strbuf_free(&b);
}

// What goes deeper than the limit of the stack is not in the mask, so that an answer closes again.
static void test_stack_depth(void **state)
{
    (void)state;
    static const char NEST[] = "root ::= \"(\" root \")\" | \"\"";
    msgl_grammar_limits limits;
    msgl__grammar_limits_init(&limits);
    limits.stack_depth = 20;
    msgl_grammar *g = NULL;
    msgl_err err;
    assert_int_equal(msgl__grammar_gbnf(NEST, strlen(NEST), &limits, &g, &err), 0);
    msgl_grammar_vocab *v = fixture_vocab(100, 1);
    msgl_matcher *m = msgl__matcher_create(g, v);
    int depth = 0;
    while (depth < 100 && msgl__matcher_accept_bytes(m, "(", 1) == 0) depth++;
    assert_in_range(depth, 19, 21);
    assert_int_equal(fixture_check_mask(m, v), 1);
    while (depth-- > 0) assert_int_equal(msgl__matcher_accept_bytes(m, ")", 1), 0);
    assert_true(msgl__matcher_is_finished(m));
    msgl__matcher_destroy(m);
    msgl__grammar_unref(g);
    msgl__grammar_vocab_unref(v);
}

// A long answer's tables are made anew again and again and stay small; rolling back reaches over
// it.
static void test_long_answer(void **state)
{
    (void)state;
    msgl_grammar_limits limits;
    msgl__grammar_limits_init(&limits);
    limits.matcher_bytes = 200000;
    static const char SCHEMA[] = "{\"type\":\"array\",\"maxItems\":100000,\"items\":{\"type\":"
                                 "\"string\",\"maxLength\":60000}}";
    msgl_grammar *g = NULL;
    msgl_err err;
    assert_int_equal(msgl__grammar_json_schema(SCHEMA, strlen(SCHEMA), &limits, &g, &err), 0);
    msgl_grammar_vocab *v = fixture_vocab(300, 1);
    msgl_matcher *m = msgl__matcher_create(g, v);
    assert_int_equal(msgl__matcher_accept_bytes(m, "[\"", 2), 0);
    for (int i = 0; i < 60000; i++) assert_int_equal(msgl__matcher_accept_bytes(m, "x", 1), 0);
    assert_true(msgl__matcher_bytes(m) < 1000000);
    assert_int_equal(msgl__matcher_accept_bytes(m, "x", 1), MSGL_EINVAL);
    fixture_check_mask(m, v);
    assert_int_equal(msgl__matcher_rollback(m, 10), 0);
    for (int i = 0; i < 10; i++) assert_int_equal(msgl__matcher_accept_bytes(m, "x", 1), 0);
    assert_int_equal(msgl__matcher_accept_bytes(m, "\"]", 2), 0);
    assert_true(msgl__matcher_is_finished(m));
    assert_int_equal(msgl__matcher_accept(m, FIXTURE_EOS), 0);
    assert_int_equal(fixture_check_mask(m, v), 1);
    assert_int_equal(msgl__matcher_rollback(m, 2), 0);
    assert_false(msgl__matcher_may_end(m));
    msgl__matcher_destroy(m);
    msgl__grammar_unref(g);
    msgl__grammar_vocab_unref(v);
}

static void test_forced(void **state)
{
    (void)state;
    static const char SCHEMA[] =
        "{\"type\":\"object\",\"properties\":{\"name\":{\"const\":\"ab\"}},"
        "\"required\":[\"name\"],\"additionalProperties\":false}";
    msgl_grammar *g = NULL;
    msgl_err err;
    char buf[64];
    assert_int_equal(msgl__grammar_json_schema(SCHEMA, strlen(SCHEMA), NULL, &g, &err), 0);
    msgl_grammar_vocab *v = fixture_vocab(0, 1);
    msgl_matcher *m = msgl__matcher_create(g, v);
    assert_int_equal(msgl__matcher_forced(m, buf, sizeof buf),
                     1); // white space may follow the brace
    assert_int_equal(msgl__matcher_accept_bytes(m, "{\"", 2), 0);
    const size_t n = msgl__matcher_forced(m, buf, sizeof buf);
    assert_int_equal(n, 6);
    assert_memory_equal(buf, "name\":", 6);
    msgl__matcher_destroy(m);
    msgl__grammar_unref(g);
    msgl__grammar_vocab_unref(v);
}

// One compilation, one mask and some tokens with the nth allocation failing: a status, and no leak.
static int one_life(compile_fn compile, const char *text, const char *answer, msgl_grammar_vocab *v)
{
    msgl_grammar *g = NULL;
    msgl_err err = {0};
    int rc = compile(text, strlen(text), NULL, &g, &err);
    if (rc != 0) {
        assert_null(g);
        assert_int_equal(rc, err.code);
        return rc;
    }
    uint32_t *bits = msgl__calloc((size_t)msgl__grammar_vocab_size(v) / 32 + 1, sizeof *bits);
    msgl_matcher *m = bits != NULL ? msgl__matcher_create(g, v) : NULL;
    if (m == NULL) rc = MSGL_ENOMEM;
    for (; rc == 0 && *answer != '\0'; answer++) {
        rc = msgl__matcher_fill_mask(m, bits);
        if (rc == 0) rc = msgl__matcher_accept_bytes(m, answer, 1);
    }
    msgl__matcher_destroy(m);
    msgl__grammar_unref(g);
    msgl__free(bits);
    return rc;
}

static void test_failing_allocations(void **state)
{
    (void)state;
    static const struct {
        compile_fn compile;
        const char *text, *answer;
    } LIVES[] = {
        {msgl__grammar_json_schema,
         "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^[a-z]{1,9}"
         "$\"},"
         "\"b\":{\"type\":\"number\",\"minimum\":0.5},\"c\":{\"enum\":[1,\"x\",null]},\"d\":{\"$"
         "ref\":\"#\"}}}",
         "{\"a\":\"xy\",\"b\":1.5,\"c\":1}"},
        {msgl__grammar_json_schema,
         "{\"allOf\":[{\"type\":[\"object\",\"null\"]},{\"properties\":{\"a\":{\"format\":\"date\"}"
         "}},"
         "{\"patternProperties\":{\"^x\":{}},\"additionalProperties\":false}]}",
         "{\"x1\":true}"},
        {msgl__grammar_json_schema,
         "{\"oneOf\":[{\"type\":\"integer\",\"maximum\":18446744073709551615},{\"type\":\"number\","
         "\"minimum\":3},{\"const\":7},{\"properties\":{\"k\":{\"enum\":[\"a\",\"b\"],\"pattern\":"
         "\"a\"}}},{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[1,2]}}]}",
         "[2,1]"},
        {msgl__grammar_json_schema,
         "{\"$ref\":\"#/$defs/a\",\"properties\":{\"m\":{\"type\":\"number\",\"multipleOf\":0.25}},"
         "\"$defs\":{\"a\":{\"allOf\":[{\"properties\":{\"s\":{\"pattern\":\"^\\\\p{Zs}{1,7}\","
         "\"maxLength\":9}}},{\"properties\":{\"s\":{}}}]}}}",
         "{\"m\":1.75,\"s\":\" 1\"}"},
        {msgl__grammar_gbnf,
         "root ::= a (\",\" a)*\na ::= [a-z]{2,40} | a \"!\" | \"(\" root \")\"", "ab!,(cd,ef)"},
        {msgl__grammar_lark, "start: A+\nA: \"x\"i | /[0-9]+/\n%ignore \" \"\n", "x 12"},
        {msgl__grammar_regex, "(foo|b[^r]{1,50}){2}", "foobaa"},
    };
    msgl_grammar_vocab *v = fixture_vocab(50, 1);
    for (size_t i = 0; i < MSGL_COUNT(LIVES); i++) {
        int failed = 0;
        for (uint64_t nth = 1;; nth += 1 + nth / 100) { // the later ones are much alike
            msgl__mem_fail_from(nth);
            const int rc = one_life(LIVES[i].compile, LIVES[i].text, LIVES[i].answer, v);
            msgl__mem_fail_from(0);
            if (rc == 0) break;
            if (rc != MSGL_ENOMEM) fail_msg("life %zu allocation %d: %d", i, (int)nth, rc);
            failed++;
        }
        assert_true(failed > 10);
    }
    msgl__grammar_vocab_unref(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hostile_texts), cmocka_unit_test(test_large_enum),
        cmocka_unit_test(test_explosion),     cmocka_unit_test(test_large_forms),
        cmocka_unit_test(test_stack_depth),   cmocka_unit_test(test_long_answer),
        cmocka_unit_test(test_forced),        cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_comparisons),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
