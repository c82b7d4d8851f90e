// SPDX-License-Identifier: Apache-2.0
//
// /v1/messages with a scripted engine: the prompts that conversations become, answers and streams
// to the byte, and errors in Anthropic's form. tests/e2e/anthropic_client.py has the official
// client.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "server/fixture.h"

#define TOOLS                                                                                      \
    "\"tools\":[{\"name\":\"f\",\"input_schema\":{\"type\":\"object\",\"properties\":{}}}]"
#define TOOLS_AND(more)                                                                            \
    "\"tools\":[{\"name\":\"f\",\"input_schema\":{\"type\":\"object\",\"properties\":{}}}," more "]"
#define CALL "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>"

static void open_server(server_fixture *s)
{
    msgl_front_config cfg = msgl__front_config_default();
    cfg.stop_timeout_ms = 2000;
    cfg.tool_parser = "hermes";
    cfg.reasoning_parser = "qwen3";
    server_open(s, &cfg, true);
}

// A request's answer: the engine says `text`, then ends. prompt: NULL, or what it has to be given.
static response ask(server_fixture *s, const char *fields, const char *prompt, const char *text,
                    msgl_finish finish)
{
    char body[2048];
    const int fd = client_open(s);
    (void)snprintf(body, sizeof body, "{\"max_tokens\":99,%s}", fields);
    client_post(fd, "/v1/messages", body);
    const msgl_msg m = engine_expect(s, MSGL_MSG_REQUEST);
    const msgl_msg_request *q = &m.u.request;
    if (prompt != NULL) expect_prompt(q, prompt);
    assert_int_equal(q->sampling.max_tokens, 99);
    const uint64_t uid = q->uid;
    engine_text(s, uid, text);
    engine_token(s, uid, finish == MSGL_FINISH_STOP ? ID_IM_END : ' ', finish);
    return client_read(fd);
}

// {: im_start, }: im_end.
static void test_prompts(void **state)
{
    static const struct {
        const char *fields, *prompt;
    } cases[] = {
        {"\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]", "{user\nhi}\n{assistant\n"},
        {"\"system\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}],"
         "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"hi\","
         "\"cache_control\":{\"type\":\"ephemeral\"}}]}]",
         "{system\na\nb}\n{user\nhi}\n{assistant\n"},
        {"\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":["
         "{\"type\":\"thinking\",\"thinking\":\"R\",\"signature\":\"\"},"
         "{\"type\":\"redacted_thinking\",\"data\":\"x\"},{\"type\":\"text\",\"text\":\"C\"}]},"
         "{\"role\":\"user\",\"content\":\"q2\"}]",
         "{user\nq}\n{assistant\n(R)C}\n{user\nq2}\n{assistant\n"},
        {"\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":["
         "{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"f\",\"input\":{}}]},{\"role\":\"user\","
         "\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t\",\"content\":\"85\"},"
         "{\"type\":\"text\",\"text\":\"and\"}]}]",
         "{user\nq}\n{assistant\n}\n{tool\n85}\n{user\nand}\n{assistant\n"},
        {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":"
         "\"t\"}]}]",
         "{tool\n}\n{assistant\n"},
        {"\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024},"
         "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]",
         "{user\nhi}\n{assistant\n<think>\n"},
        // System messages behind the user's, and Claude Code's line that differs each time.
        {"\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: cch=1;\"},"
         "{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}],\"messages\":["
         "{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"system\",\"content\":\"c\"},"
         "{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"d\"}]}]",
         "{system\na\nb\n\nc\n\nd}\n{user\nhi}\n{assistant\n"},
        // What only Anthropic's servers run.
        {TOOLS_AND(
             "{\"type\":\"web_search_20250305\",\"name\":\"web_search\",\"max_uses\":8},"
             "{\"type\":\"bash_20250124\",\"name\":\"bash\"}") ","
                                                               "\"messages\":[{\"role\":\"user\","
                                                               "\"content\":\"q\"},{\"role\":"
                                                               "\"assistant\",\"content\":["
                                                               "{\"type\":\"server_tool_use\","
                                                               "\"id\":\"s1\",\"name\":\"web_"
                                                               "search\",\"input\":{\"query\":"
                                                               "\"k\"}},{\"type\":\"web_search_"
                                                               "tool_result\",\"tool_use_id\":"
                                                               "\"s1\",\"content\":[{\"type\":"
                                                               "\"web_search_result\",\"url\":"
                                                               "\"u\",\"encrypted_content\":\"zz\"}"
                                                               "],\"cache_control\":{}},"
                                                               "{\"type\":\"text\",\"text\":\"y\"}]"
                                                               "},{\"role\":\"user\",\"content\":"
                                                               "\"r\"}]",
         "{user\nq}\n{assistant\n[server_tool_use] "
         "{\"id\":\"s1\",\"name\":\"web_search\",\"input\":"
         "{\"query\":\"k\"}}\n[web_search_tool_result] "
         "{\"tool_use_id\":\"s1\",\"content\":[{\"type\":"
         "\"web_search_result\",\"url\":\"u\"}]}\ny}\n{user\nr}\n{assistant\n"},
        {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":"
         "\"t\","
         "\"content\":[{\"type\":\"tool_reference\",\"tool_name\":\"f\"},{\"type\":\"image\","
         "\"source\":{}}]}]}]",
         "{tool\n[tool_reference] {\"tool_name\":\"f\"}\n[image] This model reads text only: the "
         "picture is left out.}\n{assistant\n"},
        {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"document\",\"title\":\"T\","
         "\"source\":{\"type\":\"text\",\"media_type\":\"text/plain\",\"data\":\"D\"}},{\"type\":"
         "\"document\",\"source\":{\"type\":\"content\",\"content\":[{\"type\":\"text\",\"text\":"
         "\"E\"}]}},{\"type\":\"text\",\"text\":\"?\"}]}]",
         "{user\nT\nD\nE\n?}\n{assistant\n"},
        {"\"messages\":[{\"role\":\"user\",\"content\":\"<|im_end|>\"}]",
         "{user\n<|im_end|>}\n{assistant\n"},
    };
    server_fixture s;
    (void)state;
    open_server(&s);
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        response r = ask(&s, cases[i].fields, cases[i].prompt, "x", MSGL_FINISH_STOP);
        assert_int_equal(r.status, 200);
        response_free(&r);
    }
    server_close(&s);
}

// From behind the id, which differs.
static void expect_behind_id(const response *r, const char *want)
{
    const char *id = strstr(r->body, "\"id\":\"msg-");
    assert_non_null(id);
    const char *rest = strchr(id + 6, '"') + 1;
    if (strcmp(rest, want) != 0) fail_msg("%s\nnot\n%s", rest, want);
}

// A call's id is the answer's: a fixed text in its place.
static void hide_call_ids(response *r)
{
    for (char *at = r->body; (at = strstr(at, "\"call_")) != NULL; at += 6) {
        for (char *c = at + 6; *c != '"'; c++) *c = '*';
    }
}

#define HEAD ",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"test-model\",\"content\":["
#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define ID24 "call_************************"

static void test_whole(void **state)
{
    static const struct {
        const char *fields, *text;
        msgl_finish finish;
        const char *want;
    } cases[] = {
        {HI, "Hello", MSGL_FINISH_STOP,
         HEAD "{\"type\":\"text\",\"text\":\"Hello\"}],\"stop_reason\":\"end_turn\","
              "\"stop_sequence\":null,"},
        {HI, "Hello", MSGL_FINISH_LENGTH,
         HEAD "{\"type\":\"text\",\"text\":\"Hello \"}],\"stop_reason\":\"max_tokens\","
              "\"stop_sequence\":null,"},
        {HI, "<think>R</think>C", MSGL_FINISH_STOP,
         HEAD "{\"type\":\"thinking\",\"signature\":\"\",\"thinking\":\"R\"},{\"type\":\"text\","
              "\"text\":\"C\"}],\"stop_reason\":\"end_turn\",\"stop_sequence\":null,"},
        {HI "," TOOLS, "Now " CALL, MSGL_FINISH_STOP,
         HEAD "{\"type\":\"text\",\"text\":\"Now\"},{\"type\":\"tool_use\",\"id\":\"" ID24
              "\",\"name\":\"f\",\"input\":{\"a\": 1}}],\"stop_reason\":\"tool_use\","
              "\"stop_sequence\":null,"},
        {HI "," TOOLS, "<tool_call>{\"name\": \"f\"}</tool_call>", MSGL_FINISH_STOP,
         HEAD
         "{\"type\":\"tool_use\",\"id\":\"" ID24
         "\",\"name\":\"f\",\"input\":{}}],\"stop_reason\":\"tool_use\",\"stop_sequence\":null,"},
        {HI, "", MSGL_FINISH_STOP, HEAD "],\"stop_reason\":\"end_turn\",\"stop_sequence\":null,"},
        // Last, as the engine hears that the answer is over.
        {HI ",\"stop_sequences\":[\"zz\",\"lo\"]", "Hello", MSGL_FINISH_STOP,
         HEAD "{\"type\":\"text\",\"text\":\"Hel\"}],\"stop_reason\":\"stop_sequence\","
              "\"stop_sequence\":\"lo\","},
    };
    server_fixture s;
    (void)state;
    open_server(&s);
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        response r = ask(&s, cases[i].fields, NULL, cases[i].text, cases[i].finish);
        assert_int_equal(r.status, 200);
        hide_call_ids(&r);
        char *usage = strstr(r.body, "\"usage\":{\"input_tokens\":");
        assert_non_null(usage);
        // 21 tokens, of which the engine had two.
        assert_ptr_equal(strstr(usage, "{\"input_tokens\":19,\"output_tokens\":"), usage + 8);
        assert_non_null(strstr(usage, ",\"cache_read_input_tokens\":2,"
                                      "\"cache_creation_input_tokens\":0}}"));
        *usage = '\0';
        expect_behind_id(&r, cases[i].want);
        response_free(&r);
    }
    server_close(&s);
}

// An event's line without what differs from run to run; "": there are no more.
static void next_event(const char **at, char line[512])
{
    const char *begin = strstr(*at, "data: {\"type\":\"");
    line[0] = '\0';
    if (begin == NULL) return;
    const char *end = strstr(begin, "\n\n");
    (void)snprintf(line, 512, "%.*s", (int)(end - begin - 6), begin + 6);
    *at = end;
}

static void test_stream(void **state)
{
    static const char *const want[] = {
        "{\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"thinking\","
        "\"thinking\":\"\",\"signature\":\"\"}}",
        "thinking_delta:R",
        "{\"type\":\"content_block_stop\",\"index\":0}",
        "{\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"text\","
        "\"text\":\"\"}}",
        "text_delta:C",
        "{\"type\":\"content_block_stop\",\"index\":1}",
        "{\"type\":\"content_block_start\",\"index\":2,\"content_block\":{\"type\":\"tool_use\","
        "\"id\":\"" ID24 "\",\"name\":\"f\",\"input\":{}}}",
        "input_json_delta:{\\\"a\\\": 1}",
        "{\"type\":\"content_block_stop\",\"index\":2}",
        "{\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"tool_use\",\"stop_sequence\":"
        "null}",
        "{\"type\":\"message_stop\"}",
    };
    server_fixture s;
    (void)state;
    open_server(&s);
    response r =
        ask(&s, HI "," TOOLS ",\"stream\":true", NULL, "<think>R</think>C" CALL, MSGL_FINISH_STOP);
    hide_call_ids(&r);
    const char *at = r.body;
    char line[512];
    next_event(&at, line);
    assert_non_null(strstr(line, "{\"type\":\"message_start\",\"message\":{\"id\":\"msg-"));
    next_event(&at, line);
    for (size_t i = 0; i < MSGL_COUNT(want); i++) {
        while (strcmp(line, "{\"type\":\"ping\"}") == 0) next_event(&at, line);
        const char *text = strchr(want[i], ':') + 1;
        if (want[i][0] == '{') {
            assert_memory_equal(line, want[i], strlen(want[i]));
            next_event(&at, line);
            continue;
        }
        // Deltas, however many: their texts are this one.
        for (size_t n = 0; n < strlen(text);) {
            assert_non_null(strstr(line, "\"delta\":{\"type\":\""));
            const char *piece = strrchr(line, ':') + 2;
            if (strstr(line, "partial_json") != NULL) piece = strstr(line, "json\":\"") + 7;
            const size_t len = strlen(piece) - 3; // "}}
            assert_memory_equal(piece, text + n, len);
            n += len;
            next_event(&at, line);
            while (strcmp(line, "{\"type\":\"ping\"}") == 0) next_event(&at, line);
        }
    }
    assert_string_equal(line, "");
    response_free(&r);
    server_close(&s);
}

static void test_errors(void **state)
{
    static const char *const bad[] = {
        "{}",
        "{\"max_tokens\":1}",
        "{\"max_tokens\":0," HI "}",
        "{\"max_tokens\":1,\"messages\":[{\"role\":\"tool\",\"content\":\"\"}]}",
        "{\"max_tokens\":1,\"messages\":[{\"role\":\"system\",\"content\":5}]}",
        "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"txt\"}]}]}",
        "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"document\","
        "\"source\":{\"type\":\"base64\",\"data\":\"\"}}]}]}",
        "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\"}]}",
        "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]}",
        "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}",
        "{\"max_tokens\":1,\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":"
        "\"tool_use\",\"id\":1}]}]}",
        "{\"max_tokens\":1,\"system\":5," HI "}",
        "{\"max_tokens\":1,\"tools\":[{\"name\":\"f\"}]," HI "}",
        "{\"max_tokens\":1,\"tool_choice\":\"auto\"," HI "}",
        "{\"max_tokens\":1,\"tool_choice\":{\"type\":\"tool\",\"name\":\"f\"}," HI "}",
        "{\"max_tokens\":1,\"thinking\":true," HI "}",
        "{\"max_tokens\":1,\"stop_sequences\":\"x\"," HI "}",
        "{\"max_tokens\":1,\"output_config\":{\"format\":{\"type\":\"xml\"}}," HI "}",
        "{\"max_tokens\":1,\"n\":2," HI "}",
        "{\"max_tokens\":1,\"max_token\":2," HI "}",
    };
    server_fixture s;
    (void)state;
    open_server(&s);
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        response r = client_request(&s, "POST", "/v1/messages", bad[i]);
        print_message("%s\n", r.body);
        assert_int_equal(r.status, 400);
        assert_non_null(strstr(r.body, "{\"type\":\"error\",\"error\":{\"type\":"
                                       "\"invalid_request_error\",\"message\":\"'"));
        response_free(&r);
    }
    response r = client_request(&s, "POST", "/v1/messages/count_tokens", "{" HI "}");
    assert_string_equal(r.body, "{\"input_tokens\":21}");
    response_free(&r);
    expect_alive(&s);
    server_close(&s);
}

// What a chat reads and this API does not changes nothing, as the log says: the prompt, the
// answer's length, and no log-probabilities, for which its answers have no place.
static void test_fields_of_chats(void **state)
{
    static const char *const others[] = {
        "\"logprobs\":true,\"top_logprobs\":3",     "\"truncate_prompt_tokens\":3",
        "\"add_generation_prompt\":false",          "\"max_completion_tokens\":2",
        "\"stream_options\":{\"include_usage\":1}", "\"reasoning_effort\":7",
    };
    server_fixture s;
    (void)state;
    open_server(&s);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        char fields[256];
        (void)snprintf(fields, sizeof fields, "%s," HI, others[i]);
        response r = ask(&s, fields, "{user\nhi}\n{assistant\n", "Hello", MSGL_FINISH_STOP);
        if (r.status != 200 || strstr(r.body, "Hello") == NULL) fail_msg("%s: %s", fields, r.body);
        response_free(&r);
    }
    server_close(&s);
}

// Blocks, as many as a body has room for, are joined once.
static void test_many_blocks(void **state)
{
    enum { BLOCKS = 40000 };
    static const char head[] = "{\"messages\":[{\"role\":\"assistant\",\"content\":[";
    static const char pair[] = "{\"type\":\"thinking\",\"thinking\":\"R\"},"
                               "{\"type\":\"text\",\"text\":\"x\"},";
    server_fixture s;
    msgl_strbuf body;
    (void)state;
    open_server(&s);
    msgl__strbuf_init(&body, 64 << 20);
    assert_int_equal(msgl__strbuf_adds(&body, head), 0);
    for (int i = 0; i < BLOCKS; i++) assert_int_equal(msgl__strbuf_adds(&body, pair), 0);
    body.len--; // the last comma
    assert_int_equal(msgl__strbuf_adds(&body, "]}]}"), 0);
    response r = client_request(&s, "POST", "/v1/messages/count_tokens", msgl__strbuf_str(&body));
    print_message("%s\n", r.body);
    // More than the context has, by far: counting ends. What counts is that it was all read.
    assert_int_equal(r.status, 400);
    assert_non_null(strstr(r.body, "maximum context length"));
    response_free(&r);
    msgl__strbuf_free(&body);
    expect_alive(&s);
    server_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts),     cmocka_unit_test(test_whole),
        cmocka_unit_test(test_stream),      cmocka_unit_test(test_errors),
        cmocka_unit_test(test_many_blocks), cmocka_unit_test(test_fields_of_chats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
