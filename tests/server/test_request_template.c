// SPDX-License-Identifier: Apache-2.0
//
// Templates that requests bring: refused unless the operator allows them, what jinja2 made of them
// (tests/vectors/chat_template) where it does, small budgets, which bytes may become tokens, and
// the forms of calls and thoughts that they teach.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "server/fixture.h"
#include "api/job.h"
#include "utils/file.h"
#include "api/vllm/endpoints.h"

#define VECTORS MSGL_SOURCE_DIR "/tests/vectors/chat_template/"
#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

static void open_trusting(server_fixture *s, const char *tools)
{
    msgl_front_config cfg = msgl__front_config_default();
    cfg.stop_timeout_ms = 2000;
    cfg.trust_template = true;
    cfg.tool_parser = tools;
    server_open(s, &cfg, true);
}

// Every form that makes a prompt of messages, and one that does not.
static const char *const bodies[][2] = {
    {"/v1/chat/completions", HI},
    {"/apply-template", HI},
    {"/tokenize", HI},
    {"/v1/messages", "\"max_tokens\":1," HI},
    {"/v1/messages/count_tokens", HI},
    {"/v1/responses", "\"input\":\"hi\""},
};

static void test_refused(void **state)
{
    (void)state;
    server_fixture s;
    char body[256];
    server_open(&s, NULL, true);
    for (size_t i = 0; i < MSGL_COUNT(bodies); i++) {
        (void)snprintf(body, sizeof body, "{%s,\"chat_template\":\"{{ 1 }}\"}", bodies[i][1]);
        response r = client_request(&s, "POST", bodies[i][0], body);
        if (r.status != 400 || strstr(r.body, "--trust-request-chat-template") == NULL) {
            fail_msg("%s: %d %s", bodies[i][0], r.status, r.body);
        }
        response_free(&r);
    }
    response r = client_request(&s, "POST", "/v1/completions",
                                "{\"prompt\":\"x\",\"chat_template\":\"{{ 1 }}\"}");
    expect_error(&r, 400, "unsupported_parameter");
    r = client_request(&s, "POST", "/apply-template", "{" HI ",\"chat_template\":null}");
    expect_status(r, 200);
    engine_expect_nothing(&s);
    server_close(&s);
}

static void test_taken(void **state)
{
    static const struct {
        const char *path, *body;
        int status;
        const char *has;
    } cases[] = {
        {"/apply-template", HI ",\"chat_template\":\"<{{ messages[0].content }}>\"", 200,
         "{\"prompt\":\"<hi>\"}"},
        {"/apply-template", HI ",\"chat_template\":\"{{ x }}\",\"chat_template_kwargs\":{\"x\":7}",
         200, "{\"prompt\":\"7\"}"},
        {"/v1/messages/count_tokens", HI ",\"chat_template\":\"{{ 'abc' }}\"", 200,
         "{\"input_tokens\":3}"},
        // What the template says is tokens, what the messages say is not.
        {"/tokenize",
         "\"messages\":[{\"role\":\"user\",\"content\":\"<|im_end|>\"}],\"chat_template\":"
         "\"<|im_start|>{{ messages[0].content }}{{ '<|im_end|>' }}\"",
         200, "{\"tokens\":[256,60,124,105,109,95,101,110,100,124,62,257],"},
        {"/tokenize",
         HI ",\"chat_template\":\"{{ x }}\",\"chat_template_kwargs\":{\"x\":\"<|im_end|>\"}", 200,
         "{\"tokens\":[60,124,"},
        {"/apply-template", HI ",\"chat_template\":5", 400, "must be a string"},
        {"/apply-template", HI ",\"chat_template\":\"\"", 400, "1 to 65536"},
        {"/apply-template", HI ",\"chat_template\":\"tool_use\"", 400, "{{ or {%"},
        {"/apply-template", HI ",\"chat_template\":\"/etc/passwd\"", 400, "{{ or {%"},
        {"/apply-template", HI ",\"chat_template\":\"{% if %}\"", 400, "line 1: expected"},
        {"/apply-template", HI ",\"chat_template\":\"\\n{% include '/etc/passwd' %}\"", 400,
         "line 2: the tag 'include' is not supported"},
        {"/apply-template", HI ",\"chat_template\":\"{{ raise_exception('not so') }}\"", 400,
         "not so"},
        {"/apply-template", HI ",\"chat_template\":\"{{ raise_exception('') }}\"", 400,
         "says nothing"},
        {"/apply-template", HI ",\"chat_template\":\"{{ 1 | nosuch }}\"", 400, "nosuch"},
        {"/v1/chat/completions", HI ",\"chat_template\":\"{{ '' }}\"", 400, "no tokens"},
    };
    (void)state;
    server_fixture s;
    char body[512];
    open_trusting(&s, NULL);
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        (void)snprintf(body, sizeof body, "{%s}", cases[i].body);
        response r = client_request(&s, "POST", cases[i].path, body);
        if (r.status != cases[i].status || strstr(r.body, cases[i].has) == NULL) {
            fail_msg("%s: %d %s", body, r.status, r.body);
        }
        response_free(&r);
    }
    engine_expect_nothing(&s);
    expect_alive(&s);
    server_close(&s);
}

static void test_size(void **state)
{
    (void)state;
    enum { MOST = MSGL_REQUEST_TEMPLATE_MAX };
    static char body[MOST + 200];
    server_fixture s;
    open_trusting(&s, NULL);
    for (int more = 0; more < 2; more++) {
        const int n = snprintf(body, sizeof body, "{" HI ",\"chat_template\":\"{{ 1 }}");
        memset(body + n, 'a', (size_t)(MOST - 7 + more));
        strcpy(body + n + MOST - 7 + more, "\"}");
        response r = client_request(&s, "POST", "/apply-template", body);
        if (more == 0) {
            expect_status(r, 200);
        } else {
            expect_error(&r, 400, "invalid_value");
        }
    }
    server_close(&s);
}

// What would take long, or much memory, ends by a budget that depends on nothing but the request.
static void test_bombs(void **state)
{
    static const struct {
        const char *source, *why;
    } cases[] = {
        {"{% for i in range(10**9) %}{% endfor %}", "Range too big"},
        {"{{ 'a'*10**10 }}", "a text of more than"},
        {"{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", "steps"},
        {"{% set x='a'*900000 %}{% for i in range(1000) %}{% set y=x|upper %}{% endfor %}",
         "steps"},
        {"{% set a=range(90000)|list %}{% for i in range(9999) %}{% set y=a|sum %}{% endfor %}",
         "steps"},
        {"{% set x=' '*900000 %}{% for i in range(9999) %}{% set y=x|int %}{% endfor %}", "steps"},
        {"{% set x='a'*900000 %}{% for i in range(9999) %}{% set y='ab' in x %}{% endfor %}",
         "steps"},
        {"{% for i in range(99999) %}{% set y=1e300|round(2) %}{% endfor %}", "steps"},
        {"{% for i in range(99999) %}{% set y='%.300f' % 1e300 %}{% endfor %}", "steps"},
        {"{% for i in range(99999) %}{% set y='a'*1000000 %}{% endfor %}", "memory"},
        {"{% macro f(n) %}{{ f(n+1) }}{% endmacro %}{{ f(0) }}", "levels deep"},
        {"{% for i in range(99999) %}{{ 'a'*1000 }}{% endfor %}", "more than"},
    };
    (void)state;
    server_fixture s;
    char body[512];
    open_trusting(&s, NULL);
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        (void)snprintf(body, sizeof body, "{" HI ",\"chat_template\":\"%s\"}", cases[i].source);
        response r = client_request(&s, "POST", "/v1/chat/completions", body);
        if (r.status != 400 || strstr(r.body, cases[i].why) == NULL ||
            strstr(r.body, "\"param\":\"chat_template\"") == NULL) {
            fail_msg("%s: %d %s", cases[i].source, r.status, r.body);
        }
        response_free(&r);
    }
    engine_expect_nothing(&s);
    expect_alive(&s);
    server_close(&s);
}

// --- against jinja2 ---

// A vector's conversation and options as a request. NULL: the API does not take it as it is.
static json_t *request_of(const json_t *all, const json_t *c, const char *source, size_t len)
{
    const char *talk = json_string_value(json_object_get(c, "conversation")), *key;
    const json_t *opts = json_object_get(json_object_get(all, "options"),
                                         json_string_value(json_object_get(c, "options")));
    json_t *messages = json_object_get(json_object_get(all, "conversations"), talk), *m, *value;
    size_t i;
    json_array_foreach(messages, i, m)
    {
        // Other contents become texts; texts of arguments are parsed.
        if (!json_is_string(json_object_get(m, "content"))) return NULL;
    }
    if (i == 0 || strcmp(talk, "text_arguments") == 0 || strcmp(talk, "unknown_role") == 0) {
        return NULL;
    }
    json_t *o = json_pack("{s:O,s:s%,s:b}", "messages", messages, "chat_template", source, len,
                          "add_generation_prompt", 0);
    json_t *kwargs = json_object();
    assert_non_null(o);
    json_object_foreach((json_t *)opts, key, value)
    {
        const bool field = strcmp(key, "tools") == 0 || strcmp(key, "add_generation_prompt") == 0;
        json_object_set(field ? o : kwargs, key, value);
    }
    json_object_set_new(o, "chat_template_kwargs", kwargs);
    return o;
}

static void check_vector(const json_t *want, json_t *request, const text_fixture *t)
{
    char *body = json_dumps(request, JSON_COMPACT);
    const json_t *text = json_object_get(want, "text"), *error = json_object_get(want, "error");
    msgl_job *j = msgl__calloc(1, sizeof *j);
    assert_non_null(body);
    assert_non_null(j);
    j->ep = &msgl__endpoint_apply_template;
    j->config = (msgl_api_config){.model_name = "m", .model_path = "m", .trust_template = true};
    j->max_seq_len = CONTEXT;
    msgl__strbuf_init(&j->body, 1 << 20);
    assert_int_equal(msgl__strbuf_adds(&j->body, body), 0);
    msgl__job_run(j, t->tokenizer, t->templates);
    if (text != NULL) {
        if (j->rc != 0) fail_msg("%s: %s", body, j->error.message);
        json_t *got = json_loadb(j->answer.data, j->answer.len, 0, NULL);
        if (!json_equal(json_object_get(got, "prompt"), text)) {
            fail_msg("%s: %s", body, msgl__strbuf_str(&j->answer));
        }
        json_decref(got);
    } else if (j->rc == 0) {
        // A template that raises for the messages as they are gets them in another form.
        assert_true(j->req.notes.len > 0);
    } else {
        assert_int_equal(j->error.status, 400);
        assert_string_equal(j->error.param, "chat_template");
        if (json_is_string(error)) {
            assert_non_null(strstr(j->error.message, json_string_value(error)));
        }
    }
    msgl__job_free(j);
    free(body);
}

static void test_vectors(void **state)
{
    (void)state;
    text_fixture t;
    char dir[] = "/tmp/msgl-test-XXXXXX", path[256];
    json_error_t why;
    json_t *all = json_load_file(VECTORS "cases.json", JSON_ALLOW_NUL, &why), *c;
    size_t i, taken = 0;
    if (all == NULL) fail_msg("cases.json: %s", why.text);
    text_open(&t);
    msgl__chat_templates_free(t.templates);
    // A model that has special tokens and no template.
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    assert_int_equal(json_dump_file(json_object_get(all, "tokens"), path, 0), 0);
    assert_int_equal(msgl__chat_templates_load(dir, &t.templates, NULL), MSGL_ENOENT);
    assert_int_equal(msgl__chat_templates_load_own(dir, "", &t.templates, NULL), 0);
    unlink(path);
    rmdir(dir);
    json_array_foreach(json_object_get(all, "cases"), i, c)
    {
        char *source;
        size_t len;
        (void)snprintf(path, sizeof path, VECTORS "%s",
                       json_string_value(json_object_get(c, "file")));
        assert_int_equal(msgl__file_read(path, 1 << 20, &source, &len, NULL), 0);
        json_t *o = strstr(source, "strftime_now") == NULL ? request_of(all, c, source, len) : NULL;
        if (o != NULL) check_vector(c, o, &t);
        taken += o != NULL;
        json_decref(o);
        msgl__free(source);
    }
    assert_true(taken > 150);
    text_close(&t);
    json_decref(all);
}

// --- forms of answers ---

#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":"     \
    "\"object\",\"properties\":{}}}}]"
#define TEACHES "\"chat_template\":\"{% if tools %}<tool_call>, <think>{% endif %}{{ 1 }}\""

// Asks, has the engine answer `text`, and expects `has` in what comes.
static void answer(server_fixture *s, const char *fields, const char *text, const char *has)
{
    char body[1024];
    const int fd = client_open(s);
    (void)snprintf(body, sizeof body, "{" HI ",%s}", fields);
    client_post(fd, "/v1/chat/completions", body);
    const msgl_msg m = engine_expect(s, MSGL_MSG_REQUEST);
    engine_text(s, m.u.request.uid, text);
    engine_token(s, m.u.request.uid, ID_IM_END, MSGL_FINISH_STOP);
    response r = client_read(fd);
    if (r.status != 200 || strstr(r.body, has) == NULL) fail_msg("%s: %s", body, r.body);
    response_free(&r);
    close(fd);
}

static void test_forms(void **state)
{
    (void)state;
    static const char call[] = "<think>a</think><tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n"
                               "</tool_call>";
    server_fixture s;
    open_trusting(&s, NULL);
    // The model's own template teaches neither.
    answer(&s, TOOLS, call, "\"content\":\"<think>a</think><tool_call>");
    answer(&s, TOOLS "," TEACHES, call, "\"tool_calls\":[{");
    answer(&s, TOOLS "," TEACHES, call, "\"reasoning_content\":\"a\"");
    // Up to the closing tag, a token a character here: 7 of <think>, and the thought.
    answer(&s, TOOLS "," TEACHES, call, "\"completion_tokens_details\":{\"reasoning_tokens\":8}}");
    answer(&s, TOOLS "," TEACHES, "no thought",
           "\"completion_tokens_details\":{\"reasoning_tokens\":0}}");
    answer(&s, TOOLS, call, "\"content\":\"<think>a</think><tool_call>");
    server_close(&s);
    // What the operator says stays.
    open_trusting(&s, "none");
    answer(&s, TOOLS "," TEACHES, call, "\"content\":\"<tool_call>");
    answer(&s, TOOLS "," TEACHES, call, "\"reasoning_content\":\"a\"");
    server_close(&s);
    open_trusting(&s, "hermes");
    answer(&s, TOOLS ",\"chat_template\":\"{{ 1 }}\"", call, "\"tool_calls\":[{");
    server_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused), cmocka_unit_test(test_taken),
        cmocka_unit_test(test_size),    cmocka_unit_test(test_bombs),
        cmocka_unit_test(test_vectors), cmocka_unit_test(test_forms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
