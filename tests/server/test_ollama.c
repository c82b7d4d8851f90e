// SPDX-License-Identifier: Apache-2.0
//
// Ollama's /api/chat and /api/generate with a scripted engine: the prompts that bodies become,
// answers and lines to the byte, what is refused. tests/e2e/ollama_client.py has the official
// client.
#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "core/req_extra.h"
#include "api/job.h"
#include "api/ollama/endpoints.h"
#include "server/fixture.h"

#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{"              \
    "\"type\":\"object\",\"properties\":{}}}}]"
#define CALL "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>"
#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

static void open_server(server_fixture *s)
{
    msgl_front_config cfg = msgl__front_config_default();
    cfg.stop_timeout_ms = 2000;
    cfg.tool_parser = "hermes";
    cfg.reasoning_parser = "qwen3";
    server_open(s, &cfg, true);
}

// Sends {fields}; *m is what the engine gets, whose prompt is `prompt` unless that is NULL.
static int send_request(server_fixture *s, const char *path, const char *fields, const char *prompt,
                        msgl_msg *m)
{
    char body[2048];
    const int fd = client_open(s);
    (void)snprintf(body, sizeof body, "{%s}", fields);
    client_post(fd, path, body);
    *m = engine_expect(s, MSGL_MSG_REQUEST);
    if (prompt != NULL) expect_prompt(&m->u.request, prompt);
    return fd;
}

// Times are replaced: "2026-11-27T16:40:00Z" by #, what ends in _duration by 0.
static void hide(char *body)
{
    char *to = body;
    for (const char *at = body; *at != '\0';) {
        const bool made = to - body >= 14 && memcmp(to - 14, "\"created_at\":\"", 14) == 0;
        const bool took = to - body >= 11 && memcmp(to - 11, "_duration\":", 11) == 0;
        size_t n = 0;
        while (made && at[n] != '"') n++;
        while (took && isdigit((unsigned char)at[n])) n++;
        if (n > 0) *to++ = made ? '#' : '0';
        at += n;
        if (n == 0) *to++ = *at++;
    }
    *to = '\0';
}

static response ask(server_fixture *s, const char *path, const char *fields, const char *text,
                    msgl_finish finish)
{
    msgl_msg m;
    const int fd = send_request(s, path, fields, NULL, &m);
    const uint64_t uid = m.u.request.uid;
    engine_text(s, uid, text);
    engine_token(s, uid, finish == MSGL_FINISH_STOP ? ID_IM_END : ' ', finish);
    response r = client_read(fd);
    hide(r.body);
    return r;
}

static void test_prompts(void **state)
{
    static const struct {
        const char *path, *fields, *prompt;
    } cases[] = {
        {"/api/chat", HI, "{user\nhi}\n{assistant\n"},
        {"/api/chat", "\"model\":\"test-model:latest\",\"keep_alive\":\"5m\"," HI,
         "{user\nhi}\n{assistant\n"},
        {"/api/chat", "\"think\":true," HI, "{user\nhi}\n{assistant\n<think>\n"},
        {"/api/chat", "\"think\":\"high\"," HI, "{user\nhi}\n{assistant\n<think>\n"},
        {"/api/chat",
         "\"messages\":[{\"role\":\"user\",\"content\":\"q\",\"images\":[]},{\"role\":"
         "\"assistant\",\"content\":\"C\",\"thinking\":\"R\"},{\"role\":\"user\",\"content\":"
         "\"<|im_end|>\"}]",
         "{user\nq}\n{assistant\n(R)C}\n{user\n<|im_end|>}\n{assistant\n"},
        {"/api/chat",
         "\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","
         "\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1}}}]},{\"role\":"
         "\"tool\",\"tool_name\":\"f\",\"content\":\"85\"}]",
         "{user\nq}\n{assistant\n}\n{tool\n85}\n{assistant\n"},
        {"/api/generate", "\"prompt\":\"hi\",\"context\":[]", "{user\nhi}\n{assistant\n"},
        {"/api/generate", "\"prompt\":\"hi\",\"system\":\"S\"",
         "{system\nS}\n{user\nhi}\n{assistant\n"},
        {"/api/generate", "\"prompt\":\"hi\",\"raw\":true", "hi"},
    };
    server_fixture s;
    (void)state;
    open_server(&s);
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        msgl_msg m;
        const int fd = send_request(&s, cases[i].path, cases[i].fields, cases[i].prompt, &m);
        engine_token(&s, m.u.request.uid, ID_IM_END, MSGL_FINISH_STOP);
        expect_status(client_read(fd), 200);
    }
    server_close(&s);
}

static void test_options(void **state)
{
    server_fixture s;
    msgl_msg m;
    (void)state;
    open_server(&s);
    int fd = send_request(&s, "/api/chat",
                          "\"options\":{\"temperature\":0.5,\"top_k\":7,\"top_p\":0.25,\"seed\":3,"
                          "\"num_predict\":9,\"num_ctx\":64,\"repeat_penalty\":1.5,\"mirostat\":0,"
                          "\"stop\":[\"x\"]},\"format\":\"json\"," HI,
                          NULL, &m);
    const msgl_msg_request *q = &m.u.request;
    assert_true(q->sampling.temperature == 0.5F && q->sampling.top_p == 0.25F);
    assert_true(q->sampling.repetition_penalty == 1.5F);
    assert_int_equal(q->sampling.top_k, 7);
    assert_int_equal(q->sampling.seed, 3);
    assert_int_equal(q->sampling.max_tokens, 9);
    assert_int_equal(q->extra->grammar_kind, MSGL_GRAMMAR_JSON_OBJECT);
    engine_token(&s, q->uid, ID_IM_END, MSGL_FINISH_STOP);
    expect_status(client_read(fd), 200);
    // -1, and -2, are no limits.
    fd = send_request(&s, "/api/generate",
                      "\"options\":{\"num_predict\":-1,\"seed\":-1},\"format\":{\"type\":"
                      "\"integer\"},\"prompt\":\"hi\"",
                      NULL, &m);
    assert_int_equal(q->sampling.max_tokens, CONTEXT - q->num_ids);
    assert_int_equal(q->extra->grammar_kind, MSGL_GRAMMAR_JSON_SCHEMA);
    assert_string_equal(q->extra->grammar, "{\"type\":\"integer\"}");
    engine_token(&s, q->uid, ID_IM_END, MSGL_FINISH_STOP);
    expect_status(client_read(fd), 200);
    server_close(&s);
}

#define HEAD "{\"model\":\"test-model\",\"created_at\":\"#\","
#define MESSAGE(content_) HEAD "\"message\":{\"role\":\"assistant\",\"content\":\"" content_ "\""
#define DONE(why, prompt, n)                                                                       \
    ",\"done\":true,\"done_reason\":\"" why "\",\"total_duration\":0,\"load_duration\":0,"         \
    "\"prompt_eval_count\":" prompt ",\"prompt_eval_duration\":0,\"eval_count\":" n                \
    ",\"eval_duration\":0}"
#define GO_ON ",\"done\":false}\n"

static void test_answers(void **state)
{
    static const struct {
        const char *path, *fields, *text;
        msgl_finish finish;
        const char *want;
    } cases[] = {
        {"/api/chat", "\"stream\":false," HI, "Hello", MSGL_FINISH_STOP,
         MESSAGE("Hello") "}" DONE("stop", "21", "6")},
        {"/api/chat", "\"stream\":false," HI, "Hello", MSGL_FINISH_LENGTH,
         MESSAGE("Hello ") "}" DONE("length", "21", "6")},
        {"/api/chat", "\"stream\":false," HI, "<think>R</think>C", MSGL_FINISH_STOP,
         MESSAGE("C") ",\"thinking\":\"R\"}" DONE("stop", "21", "18")},
        {"/api/chat", "\"stream\":false," HI "," TOOLS, "Now " CALL CALL, MSGL_FINISH_STOP,
         MESSAGE("Now") ",\"tool_calls\":[{\"function\":{\"index\":0,\"name\":\"f\",\"arguments\":{"
                        "\"a\": 1}}},{\"function\":{\"index\":1,\"name\":\"f\",\"arguments\":{"
                        "\"a\": 1}}}]}" DONE("stop", "21", "127")},
        {"/api/generate", "\"stream\":false,\"prompt\":\"hi\"", "Hello", MSGL_FINISH_STOP,
         HEAD "\"response\":\"Hello\"" DONE("stop", "21", "6")},
        {"/api/generate", "\"prompt\":\"hi\",\"raw\":true", "He", MSGL_FINISH_STOP,
         HEAD "\"response\":\"H\"" GO_ON HEAD "\"response\":\"e\"" GO_ON HEAD
              "\"response\":\"\"" DONE("stop", "2", "3") "\n"},
        {"/api/chat", HI, "He", MSGL_FINISH_STOP,
         MESSAGE("H") "}" GO_ON MESSAGE("e") "}" GO_ON MESSAGE("") "}" DONE("stop", "21",
                                                                            "3") "\n"},
    };
    server_fixture s;
    (void)state;
    open_server(&s);
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        response r = ask(&s, cases[i].path, cases[i].fields, cases[i].text, cases[i].finish);
        char type[256];
        const bool lines = strstr(cases[i].fields, "\"stream\":false") == NULL;
        assert_string_equal(header_of(&r, "Content-Type", type),
                            lines ? "application/x-ndjson" : "application/json");
        if (r.status != 200 || strcmp(r.body, cases[i].want) != 0) {
            fail_msg("%zu: %d\n%s\nnot\n%s", i, r.status, r.body, cases[i].want);
        }
        response_free(&r);
    }
    server_close(&s);
}

// A stream's pieces are what the whole answer is of; a call comes when it is complete.
static void test_lines_of_a_call(void **state)
{
    server_fixture s;
    (void)state;
    open_server(&s);
    response r =
        ask(&s, "/api/chat", HI "," TOOLS, "<think>R</think>A " CALL CALL, MSGL_FINISH_STOP);
    assert_int_equal(r.status, 200);
    int calls = 0, n = 0;
    char text[16] = "", thoughts[16] = "";
    for (char *line = r.body, *end; (end = strchr(line, '\n')) != NULL; line = end + 1, n++) {
        *end = '\0';
        json_t *o = json_loads(line, 0, NULL);
        assert_non_null(o);
        const json_t *m = json_object_get(o, "message");
        const json_t *all = json_object_get(m, "tool_calls");
        const char *thought = json_string_value(json_object_get(m, "thinking"));
        strcat(text, json_string_value(json_object_get(m, "content")));
        if (thought != NULL) strcat(thoughts, thought);
        for (size_t i = 0; i < json_array_size(all); i++, calls++) {
            const json_t *f = json_object_get(json_array_get(all, i), "function");
            assert_string_equal(json_string_value(json_object_get(f, "name")), "f");
            assert_int_equal(json_integer_value(json_object_get(f, "index")), calls);
            const json_t *args = json_object_get(f, "arguments");
            assert_int_equal(json_integer_value(json_object_get(args, "a")), 1);
        }
        assert_int_equal(json_is_true(json_object_get(o, "done")), end[1] == '\0');
        json_decref(o);
    }
    assert_int_equal(calls, 2);
    assert_true(n > 4);
    assert_string_equal(text, "A");
    assert_string_equal(thoughts, "R");
    response_free(&r);
    server_close(&s);
}

static void test_nothing_asked(void **state)
{
    static const char *const cases[][3] = {
        {"/api/generate", "{}", HEAD "\"response\":\"\",\"done\":true,\"done_reason\":\"load\"}"},
        {"/api/generate", "{\"prompt\":\"\",\"keep_alive\":0}",
         HEAD "\"response\":\"\",\"done\":true,\"done_reason\":\"load\"}"},
        {"/api/chat", "{\"messages\":[]}", MESSAGE("") "},\"done\":true,\"done_reason\":\"load\"}"},
    };
    server_fixture s;
    (void)state;
    open_server(&s);
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        response r = client_request(&s, "POST", cases[i][0], cases[i][1]);
        hide(r.body);
        assert_int_equal(r.status, 200);
        assert_string_equal(r.body, cases[i][2]);
        response_free(&r);
    }
    engine_expect_nothing(&s);
    expect_alive(&s);
    server_close(&s);
}

static void test_refused(void **state)
{
    static const struct {
        const char *method, *path, *body;
        int status;
        const char *says;
    } cases[] = {
        {"POST", "/api/chat", "{\"model\":\"other\"," HI "}", 404, "The model 'other'"},
        {"POST", "/api/chat", "{\"model\":\"test-model:8b\"," HI "}", 404, "'test-model:8b'"},
        {"POST", "/api/chat", "{\"messages\":7}", 400, "'messages'"},
        {"POST", "/api/chat", "{\"messages\":[7]}", 400, "'messages[0]'"},
        {"POST", "/api/chat", "{\"messages\":[{\"role\":\"user\",\"content\":[]}]}", 400,
         "'messages[0].content'"},
        {"POST", "/api/chat", "{\"messages\":[{\"role\":\"owner\",\"content\":\"x\"}]}", 400,
         "messages[0].role"},
        {"POST", "/api/chat",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"images\":[\"aa\"]}]}", 400,
         "'messages[0].images'"},
        {"POST", "/api/chat",
         "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]}", 400,
         "'messages[0].tool_calls'"},
        {"POST", "/api/chat", "{\"think\":3," HI "}", 400, "'think'"},
        {"POST", "/api/chat", "{\"format\":\"xml\"," HI "}", 400, "'format'"},
        {"POST", "/api/chat", "{\"options\":[]," HI "}", 400, "'options'"},
        {"POST", "/api/chat", "{\"options\":{\"mirostat\":1}," HI "}", 400, "'mirostat'"},
        {"POST", "/api/chat", "{\"options\":{\"num_predct\":1}," HI "}", 400, "'num_predict'"},
        {"POST", "/api/chat", "{\"options\":{\"n\":2}," HI "}", 400, "'n'"},
        {"POST", "/api/chat", "{\"top_logprobs\":99," HI "}", 400, "'top_logprobs'"},
        {"POST", "/api/generate", "{\"prompt\":7}", 400, "'prompt'"},
        {"POST", "/api/generate", "{\"prompt\":\"x\",\"template\":\"{{ .Prompt }}\"}", 400,
         "'template'"},
        {"POST", "/api/generate", "{\"prompt\":\"x\",\"context\":[1]}", 400, "'context'"},
        {"POST", "/api/generate", "{\"prompt\":\"x\",\"suffix\":\"y\"}", 501, "<|fim_prefix|>"},
        {"POST", "/api/embed", "{\"input\":\"x\"}", 400, "embeddings"},
        {"POST", "/api/show", "{\"name\":\"other\"}", 404, "'other'"},
        {"POST", "/api/pull", "{\"model\":\"x\"}", 501, "minisgl serve"},
        {"POST", "/api/push", "{\"model\":\"x\"}", 501, "/api/push"},
        {"POST", "/api/create", "{\"model\":\"x\"}", 501, "minisgl serve"},
        {"POST", "/api/copy", "{}", 501, "--served-model-name"},
        {"DELETE", "/api/delete", NULL, 501, "/api/delete"},
        {"GET", "/api/chat", NULL, 405, "takes POST"},
    };
    server_fixture s;
    (void)state;
    open_server(&s);
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        response r = client_request(&s, cases[i].method, cases[i].path, cases[i].body);
        json_t *o = json_loads(r.body, 0, NULL);
        const char *text = json_string_value(json_object_get(o, "error"));
        if (r.status != cases[i].status || text == NULL || strstr(text, cases[i].says) == NULL ||
            json_object_size(o) != 1) {
            fail_msg("%zu: %d %s", i, r.status, r.body);
        }
        json_decref(o);
        response_free(&r);
    }
    engine_expect_nothing(&s);
    server_close(&s);
}

// An engine that fails behind the first line ends the stream with a line that says so.
static void test_stream_error(void **state)
{
    server_fixture s;
    msgl_msg m;
    (void)state;
    open_server(&s);
    const int fd = send_request(&s, "/api/chat", HI, NULL, &m);
    engine_token(&s, m.u.request.uid, 'x', MSGL_FINISH_NONE);
    msgl_strbuf seen;
    msgl__strbuf_init(&seen, 1 << 20);
    client_read_until(fd, &seen, "\"done\":false}\n");
    const msgl_token_event e = {.uid = m.u.request.uid,
                                .finish = MSGL_FINISH_ERROR,
                                .status = MSGL_EINTERNAL,
                                .text = "it broke"};
    engine_send_event(&s, &e);
    client_read_until(fd, &seen, "{\"error\":\"it broke\"}\n");
    msgl__strbuf_free(&seen);
    server_close(&s);
}

// Without memory, from each allocation on: an error that is the server's, or the request as it is.
static void test_no_memory(void **state)
{
    static const struct {
        const msgl_endpoint *ep;
        const char *body;
    } cases[] = {
        {&msgl__endpoint_ollama_chat, "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{"
                                      "\"role\":\"assistant\",\"thinking\":"
                                      "\"t\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
                                      "\"arguments\":{}}}]},{\"role\":\"tool\","
                                      "\"tool_name\":\"f\",\"content\":\"1\"}],\"think\":\"high\","
                                      "\"options\":{\"num_predict\":3,"
                                      "\"stop\":[\"x\"]}," TOOLS "}"},
        {&msgl__endpoint_ollama_generate,
         "{\"prompt\":\"a\",\"system\":\"b\",\"format\":\"json\",\"think\":false}"},
        {&msgl__endpoint_ollama_generate, "{}"},
        {&msgl__endpoint_ollama_show, "{\"name\":\"m\"}"},
    };
    text_fixture t;
    (void)state;
    text_open(&t);
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        bool done = false;
        for (uint64_t nth = 1; !done; nth++) {
            assert_true(nth < 5000);
            msgl_job *j = msgl__calloc(1, sizeof *j);
            assert_non_null(j);
            j->ep = cases[i].ep;
            j->config = (msgl_api_config){.model_name = "m",
                                          .model_path = "/m",
                                          .vocab_size = VOCAB,
                                          .tool_form = msgl__tool_form("hermes", NULL)};
            j->max_seq_len = CONTEXT;
            msgl__strbuf_init(&j->body, 1000);
            assert_int_equal(msgl__strbuf_adds(&j->body, cases[i].body), 0);
            msgl__mem_fail_from(nth);
            (void)msgl__job_run(j, t.tokenizer, t.templates);
            msgl__mem_fail_from(0);
            done = j->rc == 0;
            if (!done && j->error.status != 500) fail_msg("%zu: %s", i, j->error.message);
            msgl__job_free(j);
        }
    }
    text_close(&t);
}

static void test_lists(void **state)
{
    server_fixture s;
    (void)state;
    open_server(&s);
    static const char *const paths[] = {"/api/tags", "/api/ps"};
    for (size_t i = 0; i < MSGL_COUNT(paths); i++) {
        response r = client_request(&s, "GET", paths[i], NULL);
        json_t *o = json_loads(r.body, 0, NULL);
        const json_t *m = json_array_get(json_object_get(o, "models"), 0);
        assert_string_equal(json_string_value(json_object_get(m, "name")), "test-model:latest");
        assert_int_equal(json_string_length(json_object_get(m, "digest")), 64);
        json_decref(o);
        response_free(&r);
    }
    response r = client_request(&s, "POST", "/api/show", "{\"name\":\"test-model\"}");
    json_t *o = json_loads(r.body, 0, NULL);
    json_t *can = json_pack("[s,s,s]", "completion", "tools", "thinking");
    assert_true(json_equal(json_object_get(o, "capabilities"), can));
    const json_t *info = json_object_get(o, "model_info");
    assert_int_equal(json_integer_value(json_object_get(info, "minisgl.context_length")), CONTEXT);
    assert_non_null(strstr(json_string_value(json_object_get(o, "template")), "messages"));
    json_decref(can);
    json_decref(o);
    response_free(&r);
    server_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts),       cmocka_unit_test(test_options),
        cmocka_unit_test(test_answers),       cmocka_unit_test(test_lines_of_a_call),
        cmocka_unit_test(test_nothing_asked), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_stream_error),  cmocka_unit_test(test_lists),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
