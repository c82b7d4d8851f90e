// SPDX-License-Identifier: Apache-2.0
//
// What an answer with calls may be: bodies of chats, and texts that their grammars have and have
// not.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "grammar/constrain.h"
#include "grammar/fixture.h"
#include "api/api.h"
#include "api/openai/endpoints.h"

#define FUNCTION(name, more) "{\"type\":\"function\",\"function\":{\"name\":\"" name "\"" more "}}"
#define OBJECT(members) ",\"parameters\":{\"type\":\"object\",\"properties\":{" members "}}"
#define INTEGER "{\"type\":\"integer\"}"
#define STRICT ",\"strict\":true"
#define F FUNCTION("f", OBJECT("\"a\":" INTEGER))
#define G FUNCTION("g", OBJECT("\"b\":{\"type\":\"object\",\"properties\":{\"c\":" INTEGER "}}"))
#define F_STRICT FUNCTION("f", OBJECT("\"a\":" INTEGER) STRICT)
#define NAMED "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}"
#define AUTO "\"auto\""
#define REQUIRED "\"required\""
#define ONE ",\"parallel_tool_calls\":false"
#define END "}\n</tool_call>"
#define CALL_F "f\", \"arguments\": {\"a\": 1}" END
#define CALL_G "g\", \"arguments\":{\"b\":{\"c\":2}}" END
#define NEXT "\n<tool_call>\n{\"name\": \""

typedef struct answer_case {
    const char *form, *tools, *choice, *more;
    const char *yes[5], *no[6];
} answer_case;

static const answer_case ANSWERS[] = {
    // The model goes on behind the name and ... "arguments":, with or without a blank.
    {"hermes",
     F "," G,
     NAMED,
     "",
     {"{\"a\": 1}" END, " {\"a\":1}" END, "\n{}\n" END},
     {"{\"a\": \"x\"}" END, "  {\"a\":1}" END, "{\"z\": 1}" END, "{}" END NEXT CALL_F, "{}", ""}},
    {"hermes",
     F "," G,
     REQUIRED,
     "",
     {CALL_F, CALL_G, CALL_F NEXT CALL_G NEXT CALL_F},
     {"h\", \"arguments\": {}" END, "g\", \"arguments\": {\"a\": 1}" END,
      "g\", \"arguments\": {\"b\": {\"d\": 1}}" END, CALL_F "\n" CALL_G, CALL_F " and more"}},
    {"hermes", F "," G, REQUIRED, ONE, {CALL_F, CALL_G}, {CALL_F NEXT CALL_G}},
    // The only tool is named in the prompt; further calls may follow.
    {"hermes", F, REQUIRED, "", {" {}" END, "{}" END NEXT CALL_F}, {CALL_F}},
    // Text, and what begins a call goes on with one; the tool that is not strict is held to JSON.
    {"hermes",
     F_STRICT "," G,
     AUTO,
     "",
     {"", "a < b <tool <<tool_cal", "Hm. <tool_call>\n{\"name\": \"" CALL_F,
      "<<tool_call>\n{\"name\": \"g\", \"arguments\": {\"z\": []}" END NEXT CALL_F "\nSo."},
     {"<tool_call>", "<tool_call>x", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"z\": 1}" END,
      "<tool_call>\n{\"name\": \"h\", \"arguments\": {}" END}},
    {"hermes",
     F_STRICT,
     AUTO,
     ONE,
     {"x", "<tool_call>\n{\"name\": \"" CALL_F "."},
     {"<tool_call>\n{\"name\": \"" CALL_F NEXT CALL_F}},
    // No schema, one of no object, and one of which nothing is supported: any object.
    {"hermes", FUNCTION("f", ""), NAMED, "", {"{\"z\": [1]}" END}, {"[]" END}},
    {"hermes", FUNCTION("f", ",\"parameters\":{}"), NAMED, "", {"{\"z\": [1]}" END}, {"1" END}},
    {"hermes",
     FUNCTION("f", ",\"parameters\":{\"type\":\"object\",\"dependentSchemas\":{\"a\":{}}}"),
     NAMED,
     "",
     {"{\"z\": [1]}" END},
     {"1" END}},
    // What is supported of a schema is kept, and members of any part of an allOf are members.
    {"hermes",
     FUNCTION("f", ",\"parameters\":{\"type\":\"object\",\"dependentSchemas\":{\"a\":{}},"
                   "\"properties\":{\"a\":{\"type\":\"integer\"}},"
                   "\"allOf\":[{\"properties\":{\"b\":{\"type\":\"null\"}}}]}"),
     NAMED,
     "",
     {"{\"a\": 1, \"b\": null}" END},
     {"{\"a\": \"x\"}" END, "{\"z\": 1}" END}},
    {"llama3",
     F "," G,
     REQUIRED,
     "",
     {"f\", \"parameters\": {\"a\": 1}}",
      "f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\":{}}"},
     {"f\", \"parameters\": {\"a\": 1}", "f\", \"parameters\": {\"z\": 1}}"}},
    // A list, whose end comes behind the last call.
    {"hunyuan_a13b",
     F "," G,
     REQUIRED,
     "",
     {"f\", \"arguments\": {\"a\": 1}}]",
      "f\", \"arguments\":{}}, {\"name\": \"g\", \"arguments\": {\"b\":{\"c\":2}}}]"},
     {"f\", \"arguments\": {\"a\": 1}}", "f\", \"arguments\": {\"z\": 1}}]",
      "h\", \"arguments\": {}}]"}},
    {"granite",
     F "," G,
     NAMED,
     ONE,
     {" {\"a\": 1}}]"},
     {"{\"a\": \"x\"}}]", "{}}, {\"name\": \"f\", \"arguments\": {}}]"}},
    // The name is the object's key.
    {"apertus",
     F "," G,
     REQUIRED,
     "",
     {"f\": {\"a\": 1}}]", "g\": {}}, {\"f\": {}}]"},
     {"f\": {\"z\": 1}}]", "f\": {}}, {\"name\": {}}]", "f\": {}}"}},
    {"longcat",
     F_STRICT,
     AUTO,
     ONE,
     {"x",
      "<longcat_tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</longcat_tool_call>"},
     {"<longcat_tool_call>x"}},
    // The answer ends with the arguments.
    {"cohere_command4", F "," G, NAMED, ONE, {"{\"a\": 1}", " {}"}, {"{\"a\": 1}}", "{\"z\": 1}"}},
    {"deepseek_v31", F "," G, NAMED, "", {"{\"a\": 1}"}, {"{\"a\": 1}}", "{\"z\": 1}"}},
    {"gpt-oss", F_STRICT, REQUIRED, "", {"{\"a\": 1}"}, {"{\"z\": 1}"}},
    // A name that JSON writes in another way.
    {"hermes",
     FUNCTION("q\\\"\\\\", "") "," F,
     REQUIRED,
     "",
     {"q\\\"\\\\\", \"arguments\": {}" END},
     {"q\"\", \"arguments\": {}" END}},
};

static int parse(const answer_case *c, msgl_gen_request *r, msgl_api_error *e)
{
    msgl_api_config cfg = {.model_name = "m",
                           .model_path = "m",
                           .vocab_size = 1000,
                           .tool_form = msgl__tool_form(c->form, NULL)};
    char body[1200];
    cfg.defaults = msgl__sampling_params_default();
    (void)snprintf(body, sizeof body,
                   "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[%s],"
                   "\"tool_choice\":%s%s}",
                   c->tools, c->choice, c->more);
    return msgl__api_parse(&msgl__endpoint_chat, body, strlen(body), &cfg, NULL, r, e);
}

static void test_answers(void **state)
{
    (void)state;
    msgl_grammar_vocab *v = fixture_vocab(500, 4);
    uint64_t rng = 3;
    for (size_t i = 0; i < MSGL_COUNT(ANSWERS); i++) {
        const answer_case *c = &ANSWERS[i];
        msgl_gen_request r;
        msgl_api_error e = {0};
        msgl_grammar *g;
        msgl_err err = {0};
        if (parse(c, &r, &e) != 0) fail_msg("%zu: %s", i, e.message);
        assert_non_null(r.extra);
        assert_int_equal(r.extra->grammar_kind, MSGL_GRAMMAR_LARK);
        assert_int_equal(r.chat.text_first, strcmp(c->choice, AUTO) == 0);
        msgl_grammar_limits limits;
        msgl__grammar_limits_init(&limits);
        limits.lenient = true; // as the engine reads it
        if (msgl__grammar_compile(r.extra->grammar_kind, r.extra->grammar, &limits, &g, &err) !=
            0) {
            fail_msg("%zu: %s", i, err.text);
        }
        for (size_t k = 0; k < MSGL_COUNT(c->yes) && c->yes[k] != NULL; k++) {
            if (!fixture_accepts(g, v, c->yes[k], strlen(c->yes[k]))) {
                fail_msg("%zu refuses %s: %s", i, c->yes[k], r.extra->grammar);
            }
        }
        for (size_t k = 0; k < MSGL_COUNT(c->no) && c->no[k] != NULL; k++) {
            if (fixture_accepts(g, v, c->no[k], strlen(c->no[k]))) {
                fail_msg("%zu accepts %s: %s", i, c->no[k], r.extra->grammar);
            }
        }
        msgl_matcher *m = msgl__matcher_create(g, v);
        fixture_random_way(m, v, 20, &rng);
        msgl__matcher_destroy(m);
        msgl__grammar_unref(g);
        msgl__gen_request_free(&r);
    }
    msgl__grammar_vocab_unref(v);
}

// Nothing asks for schemas, or they cannot be kept to.
static void test_unconstrained(void **state)
{
    (void)state;
    static const answer_case cases[] = {
        {"hermes", F "," G, AUTO, "", {0}, {0}},
        {"hermes", F_STRICT, "\"none\"", "", {0}, {0}},
        {"llama3", F_STRICT, AUTO, "", {0}, {0}},       // calls have no mark of their own
        {"qwen3_coder", F_STRICT, NAMED, "", {0}, {0}}, // arguments are no JSON
        {"mistral", F_STRICT, REQUIRED, "", {0}, {0}},  // calls begin in several ways
        {"deepseek_v31", F, REQUIRED, "", {0}, {0}},    // another call may follow
        {"gpt-oss", F "," G, REQUIRED, ONE, {0}, {0}},  // the name is the model's
        {"hermes", F, NAMED, ",\"bad_words\":[\"x\"]", {0}, {0}},
        {"hermes", F, NAMED, ",\"min_tokens\":3", {0}, {0}},
        {"hermes", F, NAMED, ",\"allowed_token_ids\":[3]", {0}, {0}},
    };
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        msgl_gen_request r;
        msgl_api_error e = {0};
        if (parse(&cases[i], &r, &e) != 0) fail_msg("%zu: %s", i, e.message);
        if (r.extra != NULL && r.extra->grammar_kind != MSGL_GRAMMAR_NONE) fail_msg("case %zu", i);
        assert_false(r.chat.text_first);
        msgl__gen_request_free(&r);
    }
}

// What `strict` promises is kept, or refused.
static void test_refused(void **state)
{
    (void)state;
    static const struct {
        answer_case c;
        const char *says;
    } cases[] = {
        {{"hermes",
          G "," FUNCTION("f", ",\"parameters\":{\"type\":\"object\",\"not\":{}}" STRICT),
          AUTO,
          "",
          {0},
          {0}},
         "'tools' with \"strict\": true: json_schema: \"not\" at \"tool_1\": this keyword is not "
         "supported."},
        {{"hermes", FUNCTION("f", ",\"strict\":1"), AUTO, "", {0}, {0}},
         "'tools[0].function.strict' is an integer; it must be a boolean."},
        {{"hermes", FUNCTION("f", ",\"parameters\":5"), NAMED, "", {0}, {0}},
         "'tools[0].function.parameters' is an integer; it must be an object."},
        {{"hermes",
          FUNCTION("f", ",\"parameters\":{\"type\":\"nope\"}" STRICT),
          NAMED,
          "",
          {0},
          {0}},
         "'tools[0].function.parameters' with \"strict\": true must have \"type\": \"object\"."},
        {{"hermes",
          FUNCTION("f", ",\"parameters\":{\"properties\":{}}" STRICT),
          AUTO,
          "",
          {0},
          {0}},
         "'tools[0].function.parameters' with \"strict\": true must have \"type\": \"object\"."},
    };
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        msgl_gen_request r;
        msgl_api_error e = {0};
        assert_int_not_equal(parse(&cases[i].c, &r, &e), 0);
        assert_int_equal(e.status, 400);
        assert_string_equal(e.param, "tools");
        assert_string_equal(e.message, cases[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_unconstrained),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
