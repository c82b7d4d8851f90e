// SPDX-License-Identifier: Apache-2.0
//
// Tool calls and reasoning of chats, with a scripted engine: whole answers, deltas that add up to
// them, and what a request can choose.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "core/mem.h"
#include "server/fixture.h"

#define TOOL(name)                                                                                 \
    "{\"type\":\"function\",\"function\":{\"name\":\"" name                                        \
    "\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}}"
#define TOOLS "\"tools\":[" TOOL("f") "," TOOL("g<|im_end|>") "]"

static void open_with(server_fixture *s, const char *tools, const char *reasoning)
{
    msgl_front_config cfg = msgl__front_config_default();
    cfg.stop_timeout_ms = 2000;
    cfg.tool_parser = tools;
    cfg.reasoning_parser = reasoning;
    server_open(s, &cfg, true);
}

// An answer's message, from a whole one or added up from deltas, and its choice's end.
typedef struct answer {
    msgl_strbuf content, reasoning;
    int calls;
    char ids[4][64], names[4][64];
    msgl_strbuf arguments[4];
    char finish[32];
} answer;

static void answer_init(answer *a)
{
    *a = (answer){0};
    msgl__strbuf_init(&a->content, 1 << 20);
    msgl__strbuf_init(&a->reasoning, 1 << 20);
    for (int i = 0; i < 4; i++) msgl__strbuf_init(&a->arguments[i], 1 << 20);
}

static void answer_free(answer *a)
{
    msgl__strbuf_free(&a->content);
    msgl__strbuf_free(&a->reasoning);
    for (int i = 0; i < 4; i++) msgl__strbuf_free(&a->arguments[i]);
}

static void add_string(msgl_strbuf *b, const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    if (json_is_string(v)) msgl__strbuf_add(b, json_string_value(v), json_string_length(v));
}

static void add_call(answer *a, const json_t *call, size_t index)
{
    const json_t *f = json_object_get(call, "function");
    const char *name = json_string_value(json_object_get(f, "name"));
    assert_true(index < 4);
    if (name != NULL) { // with the first of its deltas, and no other
        assert_int_equal(a->calls++, index);
        assert_string_equal(json_string_value(json_object_get(call, "type")), "function");
        (void)snprintf(a->names[index], 64, "%s", name);
        (void)snprintf(a->ids[index], 64, "%s", json_string_value(json_object_get(call, "id")));
    } else {
        assert_null(json_object_get(call, "id"));
    }
    assert_true(index < (size_t)a->calls);
    add_string(&a->arguments[index], f, "arguments");
}

static void add_choice(answer *a, const json_t *choice, const char *part)
{
    const json_t *m = json_object_get(choice, part), *call;
    const json_t *finish = json_object_get(choice, "finish_reason");
    size_t i;
    add_string(&a->content, m, "content");
    add_string(&a->reasoning, m, "reasoning_content");
    json_array_foreach(json_object_get(m, "tool_calls"), i, call)
    {
        const json_t *index = json_object_get(call, "index");
        assert_int_equal(json_is_integer(index), strcmp(part, "delta") == 0);
        add_call(a, call, json_is_integer(index) ? (size_t)json_integer_value(index) : i);
    }
    if (json_is_string(finish)) {
        (void)snprintf(a->finish, sizeof a->finish, "%s", json_string_value(finish));
    }
}

static void add_events(answer *a, const char *body)
{
    for (const char *line = body; (line = strstr(line, "data: ")) != NULL;) {
        line += strlen("data: ");
        if (strncmp(line, "[DONE]", 6) == 0) return;
        json_t *j = json_loads(line, JSON_DISABLE_EOF_CHECK, NULL);
        assert_non_null(j);
        add_choice(a, json_array_get(json_object_get(j, "choices"), 0), "delta");
        json_decref(j);
    }
    fail_msg("no end: %s", body);
}

// Asks with these fields, has the engine answer `text`, and reads what came. prompt: what the
// prompt has to end in; NULL: anything.
static answer ask(server_fixture *s, const char *fields, bool stream, const char *text,
                  msgl_finish finish, const char *prompt)
{
    char body[2048];
    const int fd = client_open(s);
    (void)snprintf(body, sizeof body,
                   "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"stream\":%s%s%s}",
                   stream ? "true" : "false", fields[0] == '\0' ? "" : ",", fields);
    client_post(fd, "/v1/chat/completions", body);
    const msgl_msg m = engine_expect(s, MSGL_MSG_REQUEST);
    const msgl_msg_request *q = &m.u.request;
    const int32_t n = prompt == NULL ? 0 : (int32_t)strlen(prompt);
    assert_true(q->num_ids > n);
    for (int32_t i = 0; i < n; i++) {
        // Bytes, none of which is part of a special token.
        assert_int_equal(q->ids[q->num_ids - n + i], (unsigned char)prompt[i]);
    }
    const uint64_t uid = q->uid;
    engine_text(s, uid, text);
    engine_token(s, uid, finish == MSGL_FINISH_STOP ? ID_IM_END : ' ', finish);
    response r = client_read(fd);
    if (r.status != 200) fail_msg("%s: %s", body, r.body);
    answer a;
    answer_init(&a);
    if (stream) {
        add_events(&a, r.body);
    } else {
        json_t *j = json_loadb(r.body, r.len, 0, NULL);
        assert_non_null(j);
        const json_t *choice = json_array_get(json_object_get(j, "choices"), 0);
        const json_t *content = json_object_get(json_object_get(choice, "message"), "content");
        add_choice(&a, choice, "message");
        assert_int_equal(json_is_null(content), a.calls > 0 && a.content.len == 0);
        json_decref(j);
    }
    response_free(&r);
    close(fd);
    return a;
}

static void expect(const answer *a, const char *content, const char *reasoning, const char *finish)
{
    assert_string_equal(msgl__strbuf_str(&a->content), content);
    assert_string_equal(msgl__strbuf_str(&a->reasoning), reasoning);
    assert_string_equal(a->finish, finish);
}

static void expect_call(const answer *a, int i, const char *name, const char *arguments)
{
    assert_true(i < a->calls);
    assert_string_equal(a->names[i], name);
    assert_string_equal(msgl__strbuf_str(&a->arguments[i]), arguments);
    for (int k = 0; k < i; k++) assert_string_not_equal(a->ids[i], a->ids[k]);
}

#define CALL_F                                                                                     \
    "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"\xc3\xa9\\n\"}}\n</tool_call>"
#define CALL_X "<tool_call>\n{\"name\": \"x\", \"arguments\": {}}\n</tool_call>"

static void test_calls(void **state)
{
    (void)state;
    server_fixture s;
    open_with(&s, "hermes", "qwen3");
    for (int stream = 0; stream < 2; stream++) {
        answer a = ask(&s, TOOLS, stream, "<think>\nHm.\n</think>\n\nOk.\n" CALL_F "\n" CALL_X,
                       MSGL_FINISH_STOP, "assistant\n");
        expect(&a, "Ok.", "Hm.", "tool_calls");
        assert_int_equal(a.calls, 2);
        expect_call(&a, 0, "f", "{\"s\": \"\xc3\xa9\\n\"}");
        expect_call(&a, 1, "x", "{}");
        assert_int_equal(strlen(a.ids[0]), 5 + 24);
        assert_memory_equal(a.ids[0], "call_", 5);
        answer_free(&a);
        // One call, and none.
        a = ask(&s, TOOLS ",\"parallel_tool_calls\":false", stream, CALL_F CALL_X, MSGL_FINISH_STOP,
                NULL);
        expect(&a, "", "", "tool_calls");
        assert_int_equal(a.calls, 1);
        expect_call(&a, 0, "f", "{\"s\": \"\xc3\xa9\\n\"}");
        answer_free(&a);
        a = ask(&s, TOOLS ",\"tool_choice\":\"none\"", stream, CALL_X, MSGL_FINISH_STOP, NULL);
        expect(&a, CALL_X, "", "stop");
        answer_free(&a);
        a = ask(&s, "\"tools\":[]", stream, CALL_X, MSGL_FINISH_STOP, NULL);
        expect(&a, CALL_X, "", "stop");
        answer_free(&a);
        // Not calls, and one that is cut.
        a = ask(&s, TOOLS, stream, "<tool_call>{\"nam\": 5}</tool_call>", MSGL_FINISH_STOP, NULL);
        expect(&a, "<tool_call>{\"nam\": 5}</tool_call>", "", "stop");
        assert_int_equal(a.calls, 0);
        answer_free(&a);
        a = ask(&s, TOOLS, stream,
                "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\":", MSGL_FINISH_LENGTH, NULL);
        expect(&a, "", "", "length");
        expect_call(&a, 0, "f", "{\"a\": ");
        answer_free(&a);
        a = ask(&s, TOOLS ",\"stop\":\"END\"", stream, "Ok " CALL_X "END", MSGL_FINISH_NONE, NULL);
        expect(&a, "Ok", "", "tool_calls");
        expect_call(&a, 0, "x", "{}");
        engine_expect(&s, MSGL_MSG_ABORT);
        answer_free(&a);
    }
    server_close(&s);
}

static void test_reasoning(void **state)
{
    (void)state;
    static const char thinks[] = "\"chat_template_kwargs\":{\"enable_thinking\":true}";
    server_fixture s;
    open_with(&s, "none", "deepseek-r1");
    for (int stream = 0; stream < 2; stream++) {
        char fields[256];
        answer a =
            ask(&s, thinks, stream, "I think. </think>\n\nYes.", MSGL_FINISH_STOP, "<think>\n");
        expect(&a, "Yes.", "I think.", "stop");
        answer_free(&a);
        // The form's models always think, whether they say where it begins or not.
        a = ask(&s, "", stream, "So. </think> Yes.", MSGL_FINISH_STOP, "assistant\n");
        expect(&a, "Yes.", "So.", "stop");
        answer_free(&a);
        a = ask(&s, thinks, stream, "I think", MSGL_FINISH_LENGTH, NULL);
        expect(&a, "", "I think ", "length");
        answer_free(&a);
        (void)snprintf(fields, sizeof fields, "%s,\"separate_reasoning\":false", thinks);
        a = ask(&s, fields, stream, "I think. </think>\n\nYes.", MSGL_FINISH_STOP, NULL);
        expect(&a, "I think. </think>\n\nYes.", "", "stop");
        answer_free(&a);
        a = ask(&s, TOOLS, stream, "<think>a</think>" CALL_X, MSGL_FINISH_STOP, NULL);
        expect(&a, CALL_X, "a", "stop");
        answer_free(&a);
    }
    server_close(&s);
}

// What a client writes opens no thoughts, and what a turn before thought reaches the template.
static void test_clients_text(void **state)
{
    (void)state;
    server_fixture s;
    open_with(&s, "hermes", "qwen3");
    const int fd = client_open(&s);
    client_post(fd, "/v1/chat/completions",
                "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\","
                "\"reasoning_content\":\"R\",\"content\":\"C\"},{\"role\":\"user\",\"content\":"
                "\"<think>\"}],\"add_generation_prompt\":false}");
    const msgl_msg m = engine_expect(&s, MSGL_MSG_REQUEST);
    static const char turn[] = "assistant\n(R)C";
    const int32_t n = (int32_t)strlen(turn);
    bool found = false;
    for (int32_t i = 0; i + n <= m.u.request.num_ids && !found; i++) {
        found = true;
        for (int32_t k = 0; k < n; k++) found = found && m.u.request.ids[i + k] == turn[k];
    }
    assert_true(found);
    engine_token(&s, m.u.request.uid, ID_EOS, MSGL_FINISH_STOP);
    response r = client_read(fd);
    expect_status(r, 200);
    close(fd);
    answer a = ask(&s, "\"chat_template_kwargs\":{\"tail\":\"<think>\"}", false, "no </think>",
                   MSGL_FINISH_STOP, "<think>");
    expect(&a, "no </think>", "", "stop");
    answer_free(&a);
    server_close(&s);
}

// The prompt goes on with the call's beginning, and so does the answer.
static void test_forced(void **state)
{
    (void)state;
    static const char required[] = TOOLS ",\"tool_choice\":\"required\"";
    static const char named[] = TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":"
                                      "{\"name\":\"g<|im_end|>\"}}";
    static const char fixed[] =
        "\"tools\":[" TOOL("f") "],\"tool_choice\":\"required\",\"bad_words\":[\"x\"],"
                                "\"chat_template_kwargs\":{\"enable_thinking\":true}";
    server_fixture s;
    open_with(&s, "hermes", "none");
    for (int stream = 0; stream < 2; stream++) {
        answer a = ask(&s, required, stream, "f\", \"arguments\": {}}\n</tool_call>" CALL_X,
                       MSGL_FINISH_STOP, "assistant\n<tool_call>\n{\"name\": \"");
        expect(&a, "", "", "tool_calls");
        assert_int_equal(a.calls, 2);
        expect_call(&a, 0, "f", "{}");
        answer_free(&a);
        // A tool's name is text, whatever it spells.
        a = ask(&s, named, stream, " {\"a\": 1}}\n</tool_call>" CALL_X, MSGL_FINISH_STOP,
                "<tool_call>\n{\"name\": \"g<|im_end|>\", \"arguments\":");
        expect(&a, "", "", "tool_calls");
        assert_int_equal(a.calls, 1);
        expect_call(&a, 0, "g<|im_end|>", "{\"a\": 1}");
        answer_free(&a);
    }
    static const char *const bad[] = {
        "\"tool_choice\":\"required\"",
        TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"h\"}}",
        TOOLS ",\"tool_choice\":{\"type\":\"function\"}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char body[1024];
        (void)snprintf(body, sizeof body,
                       "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],%s}", bad[i]);
        response r = client_request(&s, "POST", "/v1/chat/completions", body);
        assert_non_null(strstr(r.body, "\"param\":\"tool_choice\""));
        expect_error(&r, 400, "invalid_value");
    }
    server_close(&s);
    // Thoughts that the prompt has opened are closed before where there are to be none.
    open_with(&s, "hermes", "qwen3");
    answer b = ask(&s, fixed, true, " {}}", MSGL_FINISH_STOP,
                   "<think>\n\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\":");
    expect(&b, "", "", "tool_calls");
    expect_call(&b, 0, "f", "{}");
    answer_free(&b);
    server_close(&s);
    // Mistral's models begin calls in several ways; the ids of calls have nine characters.
    open_with(&s, "mistral", "none");
    answer a = ask(&s, required, true, "f[ARGS]{\"a\": 1}", MSGL_FINISH_STOP, "[TOOL_CALLS]");
    expect_call(&a, 0, "f", "{\"a\": 1}");
    assert_int_equal(strlen(a.ids[0]), 9);
    answer_free(&a);
    char body[1024];
    (void)snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],%s}",
                   named);
    response r = client_request(&s, "POST", "/v1/chat/completions", body);
    expect_error(&r, 400, "unsupported_parameter");
    server_close(&s);
}

#define FORM "\"response_format\":{\"type\":\"json_object\"}"
#define KWARGS(members) "\"chat_template_kwargs\":{" members "}"
#define THINK_MARKS "\"open\":[\"<think>\"],\"close\":[\"</think>\"]"
#define THINK_OPENED "\"thinking\":true,\"close\":[\"</think>\"]"

// The prompt's end, and what the engine is told of the answer: the grammar and the stages. In what
// is wanted "@TEXT@" stands for the ids of a text.
static void expect_stages(server_fixture *s, const char *path, const char *fields,
                          const char *prompt, msgl_grammar_kind kind, const char *want)
{
    char body[2048], text[2048];
    size_t n = 0;
    for (const char *p = want; *p != '\0'; p++) {
        if (*p != '@') {
            text[n++] = *p;
            continue;
        }
        for (p++; *p != '@'; p++) {
            n += (size_t)snprintf(text + n, sizeof text - n, "%d%s", (unsigned char)*p,
                                  p[1] == '@' ? "" : ",");
        }
    }
    text[n] = '\0';
    const int fd = client_open(s);
    (void)snprintf(body, sizeof body,
                   "{\"max_tokens\":100,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],%s}",
                   fields);
    client_post(fd, path, body);
    const msgl_msg m = engine_expect(s, MSGL_MSG_REQUEST);
    const msgl_msg_request *q = &m.u.request;
    const int32_t len = (int32_t)strlen(prompt);
    for (int32_t i = 0; i < len; i++) {
        if (q->ids[q->num_ids - len + i] != (unsigned char)prompt[i]) fail_msg("%s: prompt", body);
    }
    const msgl_req_extra_parts x = msgl__req_extra_parts_of(q->extra);
    const char *stages = x.stages == NULL ? "" : x.stages;
    json_t *got = json_loads(stages, 0, NULL), *wanted = json_loads(text, 0, NULL);
    json_t *calls = json_object_get(got, "grammar");
    if (calls != NULL && strstr(json_string_value(calls), "start: call") != NULL) {
        json_object_set_new(got, "grammar", json_string("CALLS"));
    }
    assert_int_equal(x.grammar_kind, kind);
    if (text[0] == '\0' ? stages[0] != '\0' : wanted == NULL || !json_equal(got, wanted)) {
        fail_msg("%s:\n%s\nnot\n%s", body, stages, text);
    }
    json_decref(got);
    json_decref(wanted);
    engine_token(s, q->uid, ID_EOS, MSGL_FINISH_STOP);
    expect_status(client_read(fd), 200);
    close(fd);
}

typedef struct stages_case {
    const char *fields, *prompt;
    msgl_grammar_kind kind;
    const char *want;
} stages_case;

static void expect_all_stages(server_fixture *s, const stages_case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        expect_stages(s, "/v1/chat/completions", cases[i].fields, cases[i].prompt, cases[i].kind,
                      cases[i].want);
    }
}

// Thoughts are free, and what the answer has to be comes behind them.
static void test_stages(void **state)
{
    (void)state;
    static const stages_case cases[] = {
        {FORM, "assistant\n", MSGL_GRAMMAR_JSON_OBJECT, "{" THINK_MARKS "}"},
        {FORM "," KWARGS("\"enable_thinking\":true"), "<think>\n", MSGL_GRAMMAR_JSON_OBJECT,
         "{" THINK_OPENED "}"},
        {FORM ",\"enable_thinking\":true", "<think>\n", MSGL_GRAMMAR_JSON_OBJECT,
         "{" THINK_OPENED "}"},
        // No thoughts: asked for, also of a template that opens them all the same.
        {FORM ",\"enable_thinking\":false", "assistant\n", MSGL_GRAMMAR_JSON_OBJECT, ""},
        {FORM "," KWARGS("\"thinking\":false,\"enable_thinking\":true"), "<think>\n\n</think>\n\n",
         MSGL_GRAMMAR_JSON_OBJECT, ""},
        {KWARGS("\"thinking\":false,\"enable_thinking\":true"), "<think>\n\n</think>\n\n",
         MSGL_GRAMMAR_NONE, ""},
        // A form that has the thoughts in it; none at all.
        {"\"guided_choice\":[\"<think>x</think>y\"]", "assistant\n", MSGL_GRAMMAR_CHOICE, ""},
        {"\"top_k\":3", "assistant\n", MSGL_GRAMMAR_NONE, ""},
        // Thoughts of so many tokens.
        {"\"thinking_token_budget\":3", "assistant\n", MSGL_GRAMMAR_NONE,
         "{" THINK_MARKS ",\"budget\":3,\"end\":[@\n</think>\n\n@]}"},
        {FORM ",\"reasoning_budget\":0", "assistant\n", MSGL_GRAMMAR_JSON_OBJECT,
         "{" THINK_MARKS ",\"budget\":0,\"end\":[@\n</think>\n\n@]}"},
        {"\"reasoning_budget\":-1", "assistant\n", MSGL_GRAMMAR_NONE, ""},
        {"\"thinking_token_budget\":100", "assistant\n", MSGL_GRAMMAR_NONE, ""},
        {"\"thinking_token_budget\":3,\"enable_thinking\":false", "assistant\n", MSGL_GRAMMAR_NONE,
         ""},
        // A call that is asked for comes behind them, and is held to its schema.
        {TOOLS ",\"tool_choice\":\"required\"", "assistant\n", MSGL_GRAMMAR_LARK,
         "{" THINK_MARKS ",\"opening\":[@<tool_call>\n{\"name\": \"@]}"},
        {TOOLS ",\"tool_choice\":{\"type\":\"function\",\"name\":\"g<|im_end|>\"}", "assistant\n",
         MSGL_GRAMMAR_LARK,
         "{" THINK_MARKS
         ",\"opening\":[@<tool_call>\n{\"name\": \"g<|im_end|>\", \"arguments\":@]}"},
        {TOOLS "," FORM ",\"tool_choice\":\"any\"," KWARGS("\"enable_thinking\":true"), "<think>\n",
         MSGL_GRAMMAR_LARK, "{" THINK_OPENED ",\"opening\":[@<tool_call>\n{\"name\": \"@]}"},
        // Calls in place of the form.
        {TOOLS "," FORM, "assistant\n", MSGL_GRAMMAR_JSON_OBJECT,
         "{" THINK_MARKS
         ",\"calls\":[\"<tool_call>\\n{\\\"name\\\": \\\"\"],\"grammar\":\"CALLS\"}"},
        {TOOLS ",\"guided_choice\":[\"x\"]", "assistant\n", MSGL_GRAMMAR_CHOICE,
         "{" THINK_MARKS "}"},
        {TOOLS "," FORM ",\"tool_choice\":\"none\"", "assistant\n", MSGL_GRAMMAR_JSON_OBJECT,
         "{" THINK_MARKS "}"},
    };
    server_fixture s;
    open_with(&s, "hermes", "qwen3");
    expect_all_stages(&s, cases, sizeof cases / sizeof cases[0]);
    expect_stages(
        &s, "/v1/messages",
        "\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":2},\"output_config\":{\"format\":"
        "{\"type\":\"json_schema\",\"schema\":{}}}",
        "<think>\n", MSGL_GRAMMAR_JSON_SCHEMA,
        "{" THINK_OPENED ",\"budget\":2,\"end\":[@\n</think>\n\n@]}");
    expect_stages(&s, "/v1/messages", "\"thinking\":{\"type\":\"disabled\"}", "assistant\n",
                  MSGL_GRAMMAR_NONE, "");
    static const char *const bad[][2] = {
        {"\"thinking_token_budget\":-1", "thinking_token_budget"},
        {"\"reasoning_budget\":-2", "reasoning_budget"},
        {"\"thinking_token_budget\":3,\"min_tokens\":2", "thinking_token_budget"},
        {"\"reasoning_budget\":3,\"bad_words\":[\"x\"]", "reasoning_budget"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char body[512];
        (void)snprintf(body, sizeof body,
                       "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],%s}", bad[i][0]);
        response r = client_request(&s, "POST", "/v1/chat/completions", body);
        if (r.status != 400 || strstr(r.body, bad[i][1]) == NULL) fail_msg("%s: %s", body, r.body);
        response_free(&r);
    }
    server_close(&s);
}

// Forms whose calls a name begins, whose models always think, or whose answers have parts.
static void test_other_stages(void **state)
{
    (void)state;
    static const stages_case by_name[] = {
        {TOOLS "," FORM, "assistant\n", MSGL_GRAMMAR_JSON_OBJECT,
         "{\"calls\":[\"{\\\"name\\\": \\\"f\\\"\",\"{\\\"name\\\": \\\"g<|im_end|>\\\"\"]}"},
    };
    static const stages_case marked[] = {
        {TOOLS "," FORM, "assistant\n", MSGL_GRAMMAR_JSON_OBJECT,
         "{\"thinking\":true,\"close\":[\"</think>\"],\"calls\":[\"<tool_call>\",\"<function=\"]}"},
        {FORM ",\"enable_thinking\":false", "assistant\n", MSGL_GRAMMAR_JSON_OBJECT, ""},
    };
#define FINALS                                                                                     \
    "\"thinking\":true,\"close\":[\"<|channel|>final<|message|>\",\"<|channel|>final "             \
    "<|constrain|>json<"                                                                           \
    "|message|>\",\"<|channel|>final<|constrain|>json<|message|>\"]"
    static const stages_case parts[] = {
        {FORM, "assistant\n", MSGL_GRAMMAR_JSON_OBJECT, "{" FINALS "}"},
        {FORM "," TOOLS, "assistant\n", MSGL_GRAMMAR_JSON_OBJECT,
         "{" FINALS ",\"away\":[\"<|channel|>commentary to=\",\"<|start|>assistant to=\"]}"},
        {"\"thinking_token_budget\":1", "assistant\n", MSGL_GRAMMAR_NONE,
         "{" FINALS
         ",\"budget\":1,\"end\":[@<|end|><|start|>assistant<|channel|>final<|message|>@]}"},
        {TOOLS ",\"tool_choice\":\"required\"", "assistant\n", MSGL_GRAMMAR_NONE,
         "{\"open\":[\"<|channel|>analysis\"],\"close\":[\"<|end|>\"],\"opening\":[@<|channel|>"
         "commentary "
         "to=functions.@],\"behind\":[@<|start|>assistant<|channel|>commentary to=functions.@]}"},
    };
    server_fixture s;
    open_with(&s, "llama3", "none");
    expect_all_stages(&s, by_name, 1);
    server_close(&s);
    open_with(&s, "qwen3_coder", "deepseek_r1");
    expect_all_stages(&s, marked, 2);
    server_close(&s);
    open_with(&s, "gpt-oss", "gpt-oss");
    expect_all_stages(&s, parts, 4);
    server_close(&s);
}

// Ids that the model gives its calls are the client's, in all three forms of answers.
static void test_own_ids(void **state)
{
    (void)state;
    static const char call[] =
        "<|tool_call_begin|>functions.f:7<|tool_call_argument_begin|>{\"s\": 1}"
        "<|tool_call_end|>";
    static const char *const asked[][3] = {
        {"/v1/messages",
         "{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{"
         "\"name\":\"f\","
         "\"input_schema\":{\"type\":\"object\"}}]",
         "\"id\":\"functions.f:7\",\"name\":\"f\""},
        {"/v1/responses",
         "{\"input\":\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{"
         "\"type\":\"object\"}}]",
         "\"call_id\":\"functions.f:7\",\"name\":\"f\""},
    };
    server_fixture s;
    open_with(&s, "kimi_k2", "none");
    for (int stream = 0; stream < 2; stream++) {
        answer a = ask(&s, TOOLS, stream, call, MSGL_FINISH_STOP, NULL);
        expect(&a, "", "", "tool_calls");
        expect_call(&a, 0, "f", "{\"s\": 1}");
        assert_string_equal(a.ids[0], "functions.f:7");
        answer_free(&a);
        for (size_t i = 0; i < 2; i++) {
            char body[1024];
            const int fd = client_open(&s);
            (void)snprintf(body, sizeof body, "%s,\"stream\":%s}", asked[i][1],
                           stream ? "true" : "false");
            client_post(fd, asked[i][0], body);
            const uint64_t uid = engine_expect(&s, MSGL_MSG_REQUEST).u.request.uid;
            engine_text(&s, uid, call);
            engine_token(&s, uid, ID_IM_END, MSGL_FINISH_STOP);
            response r = client_read(fd);
            if (strstr(r.body, asked[i][2]) == NULL) fail_msg("%s", r.body);
            response_free(&r);
            close(fd);
        }
    }
    server_close(&s);
}

// Several choices have their own calls, with ids of their own, and log-probabilities come along.
static void test_choices(void **state)
{
    (void)state;
    server_fixture s;
    open_with(&s, "hermes", "none");
    const int fd = client_open(&s);
    client_post(fd, "/v1/chat/completions",
                "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"n\":2," TOOLS "}");
    const uint64_t first = engine_expect(&s, MSGL_MSG_REQUEST).u.request.uid;
    const uint64_t second = engine_expect(&s, MSGL_MSG_REQUEST).u.request.uid;
    engine_text(&s, second, CALL_F);
    engine_text(&s, first, CALL_X);
    engine_token(&s, second, ID_EOS, MSGL_FINISH_STOP);
    engine_token(&s, first, ID_EOS, MSGL_FINISH_STOP);
    response r = client_read(fd);
    json_t *j = json_loadb(r.body, r.len, 0, NULL);
    answer a[2];
    for (size_t i = 0; i < 2; i++) {
        answer_init(&a[i]);
        add_choice(&a[i], json_array_get(json_object_get(j, "choices"), i), "message");
        expect(&a[i], "", "", "tool_calls");
    }
    assert_string_equal(a[0].names[0], "x");
    assert_string_equal(a[1].names[0], "f");
    assert_string_not_equal(a[0].ids[0], a[1].ids[0]);
    for (size_t i = 0; i < 2; i++) answer_free(&a[i]);
    json_decref(j);
    response_free(&r);
    close(fd);
    server_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls),        cmocka_unit_test(test_reasoning),
        cmocka_unit_test(test_clients_text), cmocka_unit_test(test_forced),
        cmocka_unit_test(test_stages),       cmocka_unit_test(test_other_stages),
        cmocka_unit_test(test_own_ids),      cmocka_unit_test(test_choices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
