// SPDX-License-Identifier: Apache-2.0
//
// GBNF and Lark grammars: texts that are in them and not, masks, and one line for what is wrong.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "grammar/fixture.h"

typedef int (*compile_fn)(const char *, size_t, const msgl_grammar_limits *, msgl_grammar **,
                          msgl_err *);

typedef struct grammar_case {
    const char *text;
    const char *yes[6], *no[6];
} grammar_case;

static const grammar_case GBNF[] = {
    {"root ::= \"a\" | \"bc\" # comment\n", {"a", "bc"}, {"", "b", "abc"}},
    {"root ::= item (\",\" ws item)*\nitem ::= [a-z]+ | [0-9]{2,3}\nws ::= [ \\t]?\n",
     {"ab,cd", "12", "12, x,345"},
     {"", "1", "ab,", "1234"}},
    {"root ::= expr\nexpr ::= expr \"+\" term | term\nterm ::= \"x\" | \"(\" expr \")\"",
     {"x", "x+x+x", "(x+(x))"},
     {"", "+x", "(x", "x+"}},
    {"root ::=\n  \"\\\"\" (\n    [^\"\\\\] |\n    \"\\\\\" [\"n]\n  )* \"\\\"\"\n",
     {"\"\"", "\"é\\n\\\"\""},
     {"\"", "\"\\x\"", "x"}},
    {"root ::= a-b\n  | .\na-b ::= \"\\x41\\u00e9\" \"z\"{2,}\n",
     {"Aézz", "q", "日"},
     {"Aéz", "qq"}},
    {"root ::= \"(\" root \")\" | \"\"", {"", "()", "(((())))"}, {"(", "())", "()()"}},
};

static const grammar_case LARK[] = {
    {"start: \"a\" | \"b\"i\n", {"a", "b", "B"}, {"A", ""}},
    {"start: pair (\",\" pair)*\npair: NAME \"=\" value\n?value: INT -> num\n     | "
     "ESCAPED_STRING\n"
     "NAME: /[a-z]+/i\n%import common.INT\n%import common.ESCAPED_STRING\n%ignore \" \"\n",
     {"a=1", "a = 1 , Bc=\"x\\\"y\"", " q=007 "},
     {"a=", "=1", "a=1,", "a1=1"}},
    {"start: expr\nexpr: expr (\"+\"|\"-\") term | term\nterm: NUMBER | \"(\" expr \")\"\n"
     "%import common (NUMBER, WS)\n%ignore WS\n",
     {"1", "1+2-3.5e2", "( 1 +\n2 )"},
     {"", "1+", "(1"}},
    {"start: [\"x\"] A~2 B~1..3 \"a\"..\"c\"\nA.2: \"q\" // priority\nB: DIGIT+\n%import "
     "common.DIGIT\n",
     {"qq1a", "xqq12b", "qq1234c"},
     {"q1a", "qqa", "qq1d"}},
    {"start: \"f(\" arguments \")\" | %json {\"const\": \"}\\\"\"}\narguments: %json {\n \"type\": "
     "\"object\", \"properties\": {\"a\": {\"type\": \"integer\"}}, \"additionalProperties\": "
     "false\n}\n",
     {"f({\"a\": 1})", "f({})", "\"}\\\"\""},
     {"f({\"b\": 1})", "f(1)", "{}"}},
    {"!start: _X? /b.c/s\n_X: \"_\" \n", {"b\nc", "_bxc"}, {"bc", "__bxc"}},
};

static void check(compile_fn compile, const grammar_case *c, size_t n)
{
    msgl_grammar_vocab *v = fixture_vocab(500, 4);
    uint64_t rng = 5;
    for (size_t i = 0; i < n; i++) {
        msgl_grammar *g = NULL;
        msgl_err err = {0};
        if (compile(c[i].text, strlen(c[i].text), NULL, &g, &err) != 0) {
            fail_msg("%s: %s", c[i].text, err.text);
        }
        for (size_t k = 0; k < 6; k++) {
            const char *yes = c[i].yes[k], *no = c[i].no[k];
            if (yes != NULL && !fixture_accepts(g, v, yes, strlen(yes))) {
                fail_msg("%s refuses %s", c[i].text, yes);
            }
            if (no != NULL && fixture_accepts(g, v, no, strlen(no))) {
                fail_msg("%s accepts %s", c[i].text, no);
            }
        }
        for (int way = 0; way < 3; way++) {
            msgl_matcher *m = msgl__matcher_create(g, v);
            fixture_random_way(m, v, 20, &rng);
            msgl__matcher_destroy(m);
        }
        msgl__grammar_unref(g);
    }
    msgl__grammar_vocab_unref(v);
}

static void test_gbnf(void **state)
{
    (void)state;
    check(msgl__grammar_gbnf, GBNF, MSGL_COUNT(GBNF));
}

static void test_lark(void **state)
{
    (void)state;
    check(msgl__grammar_lark, LARK, MSGL_COUNT(LARK));
}

typedef struct error_case {
    compile_fn compile;
    const char *text;
    int rc;
    const char *says;
} error_case;

static const error_case ERRORS[] = {
    {msgl__grammar_gbnf, "root ::= a\n", MSGL_EFORMAT, "rule a is used, but not defined"},
    {msgl__grammar_gbnf, "a ::= \"x\"", MSGL_EFORMAT, "no rule named root"},
    {msgl__grammar_gbnf, "root ::= a \"x\"\na ::= root | \"y\"", MSGL_EUNSUPPORTED,
     "left recursion"},
    {msgl__grammar_gbnf, "root ::= \"x\" root", MSGL_EINVAL, "no text satisfies it"},
    {msgl__grammar_gbnf, "root ::= \"x", MSGL_EFORMAT, "line 1 column 12"},
    {msgl__grammar_gbnf, "root ::= [a", MSGL_EFORMAT, "class"},
    {msgl__grammar_gbnf, "root ::= \"x\"{200000}", MSGL_ELIMIT, "limit: count"},
    {msgl__grammar_gbnf, "root ::= (\"x\"", MSGL_EFORMAT, "group"},
    {msgl__grammar_gbnf, "root ::= \"x\"\nroot ::= \"y\"", MSGL_EFORMAT, "defined already"},
    {msgl__grammar_lark, "start: a{\"x\"}\na: \"x\"", MSGL_EUNSUPPORTED, "template"},
    {msgl__grammar_lark, "start: \"x\"\n%declare Y\n", MSGL_EUNSUPPORTED, "directive"},
    {msgl__grammar_lark, "start: %json 1", MSGL_EFORMAT, "%json without a schema"},
    {msgl__grammar_lark, "start: %json {\"a\": {}", MSGL_EFORMAT, "%json without a schema"},
    {msgl__grammar_lark, "start: %json {\"type\": 1}", MSGL_EFORMAT, "\"type\" at \"start\""},
    {msgl__grammar_lark, "start: %json {1}", MSGL_EFORMAT, "json_schema: line 1"},
    {msgl__grammar_lark, "start: /a(?=b)/", MSGL_EUNSUPPORTED, "look-around"},
    {msgl__grammar_lark, "%import python.X\nstart: X", MSGL_EUNSUPPORTED, "common"},
    {msgl__grammar_regex, "a(?=b)", MSGL_EUNSUPPORTED, "look-around"},
    {msgl__grammar_regex, "(a)\\1", MSGL_EUNSUPPORTED, "\\1 is not supported at character 4"},
    {msgl__grammar_regex, "\\p{Greek}", MSGL_EUNSUPPORTED, "general categories"},
    {msgl__grammar_regex, "\\p{L", MSGL_EFORMAT, "malformed"},
    {msgl__grammar_regex, "a\\p", MSGL_EUNSUPPORTED, "general categories"},
    {msgl__grammar_regex, "\\bword", MSGL_EUNSUPPORTED, "\\b is not supported"},
    {msgl__grammar_regex, "[", MSGL_EFORMAT, "class"},
    {msgl__grammar_regex, "*a", MSGL_EFORMAT, "repetition of nothing"},
    {msgl__grammar_regex, "(?<=x)a", MSGL_EUNSUPPORTED, "look-around"},
    {msgl__grammar_regex, "a)", MSGL_EFORMAT, "without its group"},
    {msgl__grammar_regex, "a{3,2}", MSGL_EFORMAT, "repetition"},
    {msgl__grammar_regex, "a^b", MSGL_EUNSUPPORTED, "^ inside"},
    {msgl__grammar_regex, "\xff", MSGL_EFORMAT, "UTF-8"},
    {msgl__grammar_json_schema, "{\"type\": \"nope\"}", MSGL_EFORMAT, "\"type\" at \"\""},
    {msgl__grammar_json_schema, "{\"properties\": {\"a\": {\"if\": true}}}", MSGL_EUNSUPPORTED,
     "\"if\" at \"/properties/a\""},
    {msgl__grammar_json_schema, "{\"items\": {\"not\": {}}}", MSGL_EUNSUPPORTED,
     "\"not\" at \"/items\""},
    {msgl__grammar_json_schema, "{\"pattern\": 5}", MSGL_EFORMAT, "pattern"},
    {msgl__grammar_json_schema, "{\"pattern\": \"a\\\\1\"}", MSGL_EUNSUPPORTED,
     "\\1 is not supported"},
    {msgl__grammar_json_schema, "{\"$ref\": \"#/nowhere\"}", MSGL_EFORMAT, "leads nowhere"},
    {msgl__grammar_json_schema, "{\"$ref\": \"#\"}", MSGL_ELIMIT, "limit: references"},
    {msgl__grammar_json_schema, "{\"$ref\": \"http://x/y\"}", MSGL_EUNSUPPORTED,
     "inside the schema"},
    {msgl__grammar_json_schema, "{\"enum\": []}", MSGL_EFORMAT, "enum"},
    {msgl__grammar_json_schema, "{\"type\": \"string\", \"enum\": [1]}", MSGL_EINVAL, "no text"},
    {msgl__grammar_json_schema, "{\"allOf\": [{\"type\": \"string\"}, {\"type\": \"null\"}]}",
     MSGL_EINVAL, "no text"},
    {msgl__grammar_json_schema, "{\"pattern\": \"^(abc)*$\", \"minLength\": 4, \"maxLength\": 5}",
     MSGL_EINVAL, "no text"},
    {msgl__grammar_json_schema, "{\"pattern\": \"^a{3}$\", \"maxLength\": 2}", MSGL_EINVAL,
     "no text"},
    {msgl__grammar_json_schema, "{\"minLength\": -1}", MSGL_EFORMAT, "minLength"},
    {msgl__grammar_json_schema, "[]", MSGL_EFORMAT, "object or a boolean"},
    {msgl__grammar_json_schema, "{", MSGL_EFORMAT, "json_schema"},
    {msgl__grammar_json_schema, "false", MSGL_EINVAL, "no text"},
    {msgl__grammar_json_schema,
     "{\"properties\": {\"a\": {\"$ref\": \"#\"}}, \"required\": [\"a\"]}", MSGL_EINVAL, "no text"},
};

static void test_errors(void **state)
{
    (void)state;
    for (size_t i = 0; i < MSGL_COUNT(ERRORS); i++) {
        const error_case *c = &ERRORS[i];
        msgl_grammar *g = NULL;
        msgl_err err = {0};
        const int rc = c->compile(c->text, strlen(c->text), NULL, &g, &err);
        if (rc != c->rc || err.code != rc || strstr(err.text, c->says) == NULL) {
            fail_msg("%s: %d '%s', expected %d '%s'", c->text, rc, rc != 0 ? err.text : "", c->rc,
                     c->says);
        }
        assert_null(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gbnf),
        cmocka_unit_test(test_lark),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
