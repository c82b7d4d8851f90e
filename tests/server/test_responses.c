// SPDX-License-Identifier: Apache-2.0
//
// /v1/responses with a scripted engine: the prompts that items become, answers and streams to the
// byte, what is refused, and failures. tests/e2e/openai_client.py has the official client.
#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/req_extra.h"
#include "server/fixture.h"

#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}]"
#define SPACE                                                                                      \
    "\"tools\":[{\"type\":\"namespace\",\"name\":\"mcp__x\",\"tools\":[{\"type\":\"function\","    \
    "\"name\":\"js\"}]}]"
#define CALL "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>"
#define HI "\"input\":\"hi\""
#define USER "{\"role\":\"user\",\"content\":\"q\"}"

static void open_server(server_fixture *s)
{
    msgl_front_config cfg = msgl__front_config_default();
    cfg.stop_timeout_ms = 2000;
    cfg.tool_parser = "hermes";
    cfg.reasoning_parser = "qwen3";
    cfg.trust_template = true;
    server_open(s, &cfg, true);
}

// An event of the engine with a token for each byte of `text`.
static void engine_piece(server_fixture *s, uint64_t uid, const char *text, msgl_finish finish)
{
    int32_t ids[256];
    int32_t n = 0;
    for (; text[n] != '\0'; n++) ids[n] = (unsigned char)text[n];
    if (finish == MSGL_FINISH_STOP) ids[n++] = ID_IM_END;
    const msgl_token_event e = {.uid = uid,
                                .tokens = ids,
                                .num_tokens = n,
                                .finish = finish,
                                .prompt_tokens = 3,
                                .cached_tokens = 2};
    engine_send_event(s, &e);
}

// Sends the request; *uid is what the engine gets. prompt: NULL, or what it has to be given.
static int send_request(server_fixture *s, const char *fields, const char *prompt, uint64_t *uid)
{
    char body[4096];
    const int fd = client_open(s);
    (void)snprintf(body, sizeof body, "{%s}", fields);
    client_post(fd, "/v1/responses", body);
    const msgl_msg m = engine_expect(s, MSGL_MSG_REQUEST);
    const msgl_msg_request *q = &m.u.request;
    if (prompt != NULL) expect_prompt(q, prompt);
    *uid = q->uid;
    return fd;
}

// A request's answer: the engine says these pieces (a NULL behind them), then ends.
static response ask(server_fixture *s, const char *fields, const char *prompt,
                    const char *const *pieces, msgl_finish finish)
{
    uint64_t uid;
    const int fd = send_request(s, fields, prompt, &uid);
    for (; pieces[0] != NULL; pieces++) {
        engine_piece(s, uid, pieces[0], pieces[1] == NULL ? finish : MSGL_FINISH_NONE);
    }
    return client_read(fd);
}

// What differs from run to run is replaced: ids by *, the time by 0.
static void hide(char *body)
{
    static const char created[] = "\"created_at\":";
    char *to = body;
    for (const char *at = body; *at != '\0';) {
        size_t n = 0;
        const bool call = to - body >= 5 && memcmp(to - 5, "call_", 5) == 0;
        const bool id = to > body && (to[-1] == '-' || to[-1] == '_');
        while ((call ? isalnum((unsigned char)at[n]) : isxdigit((unsigned char)at[n])) != 0) n++;
        if (id && n == 24) {
            *to++ = '*';
            at += n;
        } else if (strncmp(at, created, sizeof created - 1) == 0) {
            at += sizeof created - 1;
            while (isdigit((unsigned char)*at)) at++;
            to += sprintf(to, "%s", "\"created_at\":0");
        } else {
            *to++ = *at++;
        }
    }
    *to = '\0';
}

static void expect_text(const char *got, const char *want)
{
    size_t same = 0;
    while (want[same] != '\0' && got[same] == want[same]) same++;
    if (strcmp(got, want) != 0) {
        fail_msg("from byte %zu: %.300s\nnot\n%.300s", same, got + same, want + same);
    }
}

static void expect_body(response *r, const char *want)
{
    hide(r->body);
    expect_text(r->body, want);
    response_free(r);
}

// {: im_start, }: im_end.
static void test_prompts(void **state)
{
    static const struct {
        const char *fields, *prompt;
    } cases[] = {
        {HI, "{user\nhi}\n{assistant\n"},
        {"\"instructions\":\"be brief\"," HI, "{system\nbe brief}\n{user\nhi}\n{assistant\n"},
        {"\"input\":[{\"type\":\"message\",\"role\":\"developer\",\"content\":[{\"type\":"
         "\"input_text\",\"text\":\"a\"},{\"type\":\"input_text\",\"text\":\"b\"}]}," USER "]",
         "{system\na\nb}\n{user\nq}\n{assistant\n"},
        // What the model made in one turn is one message.
        {"\"input\":[" USER ",{\"type\":\"reasoning\",\"id\":\"r\",\"summary\":[],\"content\":[{"
         "\"type\":\"reasoning_text\",\"text\":\"R\"}],\"encrypted_content\":\"x\"},{\"type\":"
         "\"message\",\"id\":\"m\",\"status\":\"completed\",\"role\":\"assistant\",\"content\":[{"
         "\"type\":\"output_text\",\"text\":\"C\",\"annotations\":[]}]}," USER "]",
         "{user\nq}\n{assistant\n(R)C}\n{user\nq}\n{assistant\n"},
        {"\"input\":[" USER ",{\"type\":\"reasoning\",\"summary\":[{\"type\":\"summary_text\","
         "\"text\":\"S\"}]},{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\","
         "\"arguments\":\"{}\"},{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":"
         "\"85\"}]",
         "{user\nq}\n{assistant\n(S)}\n{tool\n85}\n{assistant\n"},
        {"\"input\":[{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":[{\"type\":"
         "\"input_text\",\"text\":\"8\"},{\"type\":\"input_text\",\"text\":\"5\"}]}]",
         "{tool\n8\n5}\n{assistant\n"},
        // Two answers are two messages.
        {"\"input\":[" USER ",{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":\"assistant\","
         "\"content\":\"b\"},{\"type\":\"reasoning\",\"summary\":[],\"content\":[]}]",
         "{user\nq}\n{assistant\na}\n{assistant\nb}\n{assistant\n}\n{assistant\n"},
        {"\"chat_template_kwargs\":{\"enable_thinking\":true}," HI,
         "{user\nhi}\n{assistant\n<think>\n"},
        {"\"reasoning\":{\"effort\":\"none\",\"summary\":\"auto\"}," HI,
         "{user\nhi}\n{assistant\n"},
        // What the server does not run, in the history and among the tools.
        {"\"input\":[" USER ",{\"type\":\"web_search_call\",\"id\":\"w\",\"status\":\"completed\","
         "\"action\":{\"type\":\"search\",\"query\":\"k\"}},{\"type\":\"message\",\"role\":"
         "\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"C\"}]},{\"type\":"
         "\"item_reference\",\"id\":\"m\"},{\"type\":\"image_generation_call\",\"id\":\"g\","
         "\"result\":"
         "\"iVBOR\"}," USER "]",
         "{user\nq}\n{assistant\n[web_search_call] {\"id\":\"w\",\"action\":{\"type\":\"search\","
         "\"query\":\"k\"}}\nC}\n{assistant\n[image_generation_call] {\"id\":\"g\"}}\n{user\nq}\n"
         "{assistant\n"},
        {"\"tools\":[{\"type\":\"web_search\"},{\"type\":\"local_shell\"},{\"type\":\"tool_"
         "search\","
         "\"execution\":\"client\",\"parameters\":{}}]," HI,
         "{user\nhi}\n{assistant\n"},
        // As Codex CLI sends it: instructions and a developer's message, tools of all kinds, and
        // what it did with them.
        {"\"instructions\":\"I\",\"store\":false,\"include\":[\"reasoning.encrypted_content\"],"
         "\"prompt_cache_key\":\"k\",\"client_metadata\":{\"x\":\"y\"},\"tool_choice\":\"auto\","
         "\"parallel_tool_calls\":false,\"reasoning\":{\"effort\":\"medium\",\"summary\":\"auto\"},"
         "\"text\":{\"verbosity\":\"medium\"},\"tools\":[{\"type\":\"function\",\"name\":\"shell\","
         "\"strict\":false,\"parameters\":{\"type\":\"object\",\"properties\":{}}},{\"type\":"
         "\"custom\","
         "\"name\":\"apply_patch\",\"format\":{\"type\":\"grammar\",\"syntax\":\"lark\","
         "\"definition\":"
         "\"start: /.+/s\"}},{\"type\":\"web_search\",\"external_web_access\":false},{\"type\":"
         "\"namespace\",\"name\":\"mcp__x\",\"description\":\"d\",\"tools\":[{\"type\":"
         "\"function\","
         "\"name\":\"js\",\"strict\":false,\"defer_loading\":true,\"parameters\":{\"type\":"
         "\"object\"}}"
         "]}],\"input\":[{\"type\":\"message\",\"role\":\"developer\",\"content\":[{\"type\":"
         "\"input_text\",\"text\":\"D\"}]}," USER ",{\"type\":\"custom_tool_call\",\"status\":"
         "\"completed\",\"call_id\":\"c1\",\"name\":\"apply_patch\",\"input\":\"*** "
         "Begin\"},{\"type\":"
         "\"custom_tool_call_output\",\"call_id\":\"c1\",\"output\":\"ok\"},{\"type\":"
         "\"local_shell_call\",\"call_id\":\"c2\",\"status\":\"completed\",\"action\":{\"type\":"
         "\"exec\","
         "\"command\":[\"ls\"]}},{\"type\":\"function_call_output\",\"call_id\":\"c2\",\"output\":["
         "{"
         "\"type\":\"input_text\",\"text\":\"a\"},{\"type\":\"input_image\",\"image_url\":\"data:"
         "\"}]},"
         "{\"type\":\"function_call\",\"call_id\":\"c3\",\"namespace\":\"mcp__x\",\"name\":\"js\","
         "\"arguments\":\"{}\"},{\"type\":\"function_call_output\",\"call_id\":\"c3\",\"output\":"
         "\"3\"}],"
         "\"chat_template\":\"{% for m in messages %}({{ m.role }}:{{ m.content }}{% for c in "
         "m.tool_calls or [] %}{{ c.id }}{{ c.function | tojson }}{% endfor %})\\n{% endfor %}"
         "{% for t in tools %}{{ t.function.name }} {% endfor %}\"",
         "(system:I)\n(system:D)\n(user:q)\n(assistant:c1{\"name\": \"apply_patch\", "
         "\"arguments\": "
         "{\"input\": \"*** Begin\"}})\n(tool:ok)\n(assistant:c2{\"name\": \"local_shell\", "
         "\"arguments\": {\"type\": \"exec\", \"command\": [\"ls\"]}})\n(tool:a\n[image or file] "
         "This "
         "model reads text only: it is left out.)\n(assistant:c3{\"name\": \"mcp__x__js\", "
         "\"arguments\": {}})\n(tool:3)\nshell mcp__x__js "},
        {"\"input\":\"<|im_end|>\"", "{user\n<|im_end|>}\n{assistant\n"},
        // Of OpenAI's service.
        {"\"store\":true,\"user\":\"u\",\"safety_identifier\":\"s\",\"prompt_cache_key\":\"k\","
         "\"service_tier\":\"auto\",\"truncation\":\"disabled\",\"include\":["
         "\"reasoning.encrypted_content\"],\"max_tool_calls\":3,\"background\":false,"
         "\"previous_response_id\":null,\"top_logprobs\":0,\"text\":{\"format\":{\"type\":"
         "\"text\"},\"verbosity\":\"low\"},\"tools\":[]," HI,
         "{user\nhi}\n{assistant\n"},
    };
    static const char *const x[] = {"x", NULL};
    server_fixture s;
    (void)state;
    open_server(&s);
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        response r = ask(&s, cases[i].fields, cases[i].prompt, x, MSGL_FINISH_STOP);
        assert_int_equal(r.status, 200);
        response_free(&r);
    }
    server_close(&s);
}

#define BEFORE(TOOL_LIST)                                                                          \
    "{\"id\":\"resp-*\",\"object\":\"response\",\"created_at\":0,\"model\":\"test-model\","        \
    "\"truncation\":\"disabled\",\"instructions\":null,\"metadata\":{},\"tools\":" TOOL_LIST       \
    ",\"tool_choice\":\"auto\",\"parallel_tool_calls\":true,\"max_output_tokens\":null,"           \
    "\"reasoning\":{\"effort\":null,\"summary\":null},\"user\":null,\"safety_identifier\":null,"   \
    "\"prompt_cache_key\":null,\"text\":{\"format\":{\"type\":\"text\"}},\"temperature\":1,"       \
    "\"top_p\":1,\"previous_response_id\":null,\"store\":true,\"background\":false,\"output\":["
#define ONE_TOOL "[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}]"
#define DONE "],\"status\":\"completed\",\"incomplete_details\":null,\"error\":null,"
#define CUT                                                                                        \
    "],\"status\":\"incomplete\",\"incomplete_details\":{\"reason\":\"max_output_tokens\"},"       \
    "\"error\":null,"
#define USAGE(IN, OUT, THOUGHT, ALL)                                                               \
    "\"usage\":{\"input_tokens\":" #IN ",\"input_tokens_details\":{\"cached_tokens\":2,"           \
    "\"cache_write_tokens\":0},\"output_tokens\":" #OUT ",\"output_tokens_details\":{"             \
    "\"reasoning_tokens\":" #THOUGHT "},\"total_tokens\":" #ALL "}}"
#define PART(T) "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":\"" T "\"}"
#define MESSAGE(N, T, STATUS)                                                                      \
    "{\"id\":\"msg_*_" #N "\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[" PART(     \
        T) "],\"status\":\"" STATUS "\"}"
#define THOUGHT_PART(T) "{\"type\":\"reasoning_text\",\"text\":\"" T "\"}"
#define THOUGHTS(N, T, STATUS)                                                                     \
    "{\"id\":\"rs_*_" #N "\",\"type\":\"reasoning\",\"summary\":[],\"content\":[" THOUGHT_PART(    \
        T) "],\"status\":\"" STATUS "\"}"
#define CALLED(N, ARGUMENTS, STATUS)                                                               \
    "{\"id\":\"fc_*_" #N "\",\"type\":\"function_call\",\"call_id\":\"call_*\",\"name\":\"f\","    \
    "\"arguments\":\"" ARGUMENTS "\",\"status\":\"" STATUS "\"}"

static void test_whole(void **state)
{
    static const struct {
        const char *fields, *text;
        msgl_finish finish;
        const char *want;
    } cases[] = {
        {HI, "Hello", MSGL_FINISH_STOP,
         BEFORE("[]") MESSAGE(0, "Hello", "completed") DONE USAGE(21, 6, 0, 27)},
        {HI, "Hello", MSGL_FINISH_LENGTH,
         BEFORE("[]") MESSAGE(0, "Hello", "incomplete") CUT USAGE(21, 5, 0, 26)},
        {HI, "", MSGL_FINISH_STOP, BEFORE("[]") DONE USAGE(21, 1, 0, 22)},
        {HI, "<think>Rea\"son</think>C", MSGL_FINISH_STOP,
         BEFORE("[]") THOUGHTS(0, "Rea\\\"son", "completed") "," MESSAGE(1, "C", "completed")
             DONE USAGE(21, 24, 14, 45)},
        {HI, "<think>Reason", MSGL_FINISH_LENGTH,
         BEFORE("[]") THOUGHTS(0, "Reason", "incomplete") CUT USAGE(21, 13, 6, 34)},
        {HI "," TOOLS, "Now " CALL CALL, MSGL_FINISH_STOP,
         BEFORE(ONE_TOOL) MESSAGE(0, "Now", "completed") "," CALLED(
             1, "{\\\"a\\\": 1}", "completed") "," CALLED(2, "{\\\"a\\\": 1}", "completed")
             DONE USAGE(21, 127, 0, 148)},
        // A call that is whole is, whatever ended the answer.
        {HI "," TOOLS, CALL, MSGL_FINISH_LENGTH,
         BEFORE(ONE_TOOL) CALLED(0, "{\\\"a\\\": 1}", "completed") CUT USAGE(21, 61, 0, 82)},
        {HI "," TOOLS, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1",
         MSGL_FINISH_LENGTH,
         BEFORE(ONE_TOOL) CALLED(0, "{\\\"a\\\": 1", "incomplete") CUT USAGE(21, 46, 0, 67)},
        // Only what is last was cut.
        {HI "," TOOLS, "Now " CALL " And", MSGL_FINISH_LENGTH,
         BEFORE(ONE_TOOL) MESSAGE(0, "Now", "completed") "," CALLED(
             1, "{\\\"a\\\": 1}", "completed") "," MESSAGE(2, "And", "incomplete")
             CUT USAGE(21, 69, 0, 90)},
        // A function of a namespace, which chats do not have.
        {HI "," SPACE, "<tool_call>\n{\"name\": \"mcp__x__js\", \"arguments\": {}}\n</tool_call>",
         MSGL_FINISH_STOP,
         BEFORE("[{\"type\":\"namespace\",\"name\":\"mcp__x\",\"tools\":[{\"type\":\"function\","
                "\"name\":\"js\"}]}]") "{\"id\":\"fc_*_0\",\"type\":\"function_call\",\"call_id\":"
                                       "\"call_*\",\"name\":\"js\",\"namespace\":\"mcp__x\","
                                       "\"arguments\":\"{}\",\"status\":"
                                       "\"completed\"}" DONE USAGE(21, 65, 0, 86)},
    };
    server_fixture s;
    (void)state;
    open_server(&s);
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        const char *const pieces[] = {cases[i].text, NULL};
        response r = ask(&s, cases[i].fields, NULL, pieces, cases[i].finish);
        assert_int_equal(r.status, 200);
        expect_body(&r, cases[i].want);
    }
    server_close(&s);
}

// What the answer repeats of its request, and what the engine is asked for.
static void test_request(void **state)
{
    static const char schema[] = "{\"type\":\"json_schema\",\"name\":\"n\",\"schema\":{\"type\":"
                                 "\"object\"},\"strict\":true}";
    char fields[1024];
    server_fixture s;
    (void)state;
    open_server(&s);
    (void)snprintf(fields, sizeof fields,
                   "\"instructions\":\"a\\\"b\",\"metadata\":{\"k\":\"v\"},\"temperature\":0.7,"
                   "\"top_p\":0.25,\"max_output_tokens\":7,\"parallel_tool_calls\":false,"
                   "\"reasoning\":{\"effort\":\"low\"},\"user\":\"u\",\"text\":{\"format\":%s,"
                   "\"verbosity\":\"low\"},\"tool_choice\":\"none\"," HI,
                   schema);
    const int fd = client_open(&s);
    char body[2048];
    (void)snprintf(body, sizeof body, "{%s}", fields);
    client_post(fd, "/v1/responses", body);
    const msgl_msg m = engine_expect(&s, MSGL_MSG_REQUEST);
    assert_int_equal(m.u.request.sampling.max_tokens, 7);
    assert_true(m.u.request.sampling.temperature == 0.7F && m.u.request.sampling.top_p == 0.25F);
    assert_non_null(m.u.request.extra);
    assert_int_equal(m.u.request.extra->grammar_kind, MSGL_GRAMMAR_JSON_SCHEMA);
    engine_piece(&s, m.u.request.uid, "{}", MSGL_FINISH_STOP);
    response r = client_read(fd);
    static const char *const parts[] = {
        "\"instructions\":\"a\\\"b\",\"metadata\":{\"k\":\"v\"}",
        "\"tool_choice\":\"none\",\"parallel_tool_calls\":false,\"max_output_tokens\":7,"
        "\"reasoning\":{\"effort\":\"low\"},\"user\":\"u\"",
        "\"verbosity\":\"low\"},\"temperature\":0.7,\"top_p\":0.25,",
        schema,
    };
    for (size_t i = 0; i < MSGL_COUNT(parts); i++) {
        if (strstr(r.body, parts[i]) == NULL) fail_msg("no %s in %s", parts[i], r.body);
    }
    response_free(&r);
    server_close(&s);
}

// An event's type and what it has behind its sequence number; type NULL: a comment.
typedef struct event {
    const char *type, *rest;
} event;

// The stream's events from number `first` on, and none behind them.
static void expect_events(response *r, const char *from, int first, const event *want, size_t n)
{
    msgl_strbuf all;
    msgl__strbuf_init(&all, 1 << 20);
    for (size_t i = 0; i < n; i++) {
        const char *type = want[i].type;
        assert_int_equal(type == NULL
                             ? msgl__strbuf_adds(&all, ": \n\n")
                             : msgl__strbuf_addf(&all,
                                                 "event: %s\ndata: {\"type\":\"%s\",\"sequence_"
                                                 "number\":%d,%s}\n\n",
                                                 type, type, first++, want[i].rest),
                         0);
    }
    hide(r->body);
    const char *at = from == NULL ? r->body : strstr(r->body, from);
    assert_non_null(at);
    expect_text(at, msgl__strbuf_str(&all));
    msgl__strbuf_free(&all);
    response_free(r);
}

#define RUNS                                                                                       \
    "],\"status\":\"in_progress\",\"incomplete_details\":null,\"error\":null,\"usage\":null}"
#define IN_THOUGHTS "\"item_id\":\"rs_*_0\",\"output_index\":0,\"content_index\":0,"
#define IN_MESSAGE0                                                                                \
    "\"item_id\":\"msg_*_0\",\"output_index\":0,\"content_index\":0,\"logprobs\":[],"
#define IN_MESSAGE1                                                                                \
    "\"item_id\":\"msg_*_1\",\"output_index\":1,\"content_index\":0,\"logprobs\":[],"
#define PART_OF0 "\"item_id\":\"msg_*_0\",\"output_index\":0,\"content_index\":0,\"part\":"
#define PART_OF1 "\"item_id\":\"msg_*_1\",\"output_index\":1,\"content_index\":0,\"part\":"
#define ITEM0 "\"output_index\":0,\"item\":"
#define ITEM1 "\"output_index\":1,\"item\":"
#define ITEM2 "\"output_index\":2,\"item\":"
#define IN_CALL "\"item_id\":\"fc_*_2\",\"output_index\":2,"

static void test_stream(void **state)
{
    static const char *const pieces[] = {"<think>R", "e</think>Hi", CALL, NULL};
    static const event want[] = {
        {"response.created", "\"response\":" BEFORE(ONE_TOOL) RUNS},
        {"response.in_progress", "\"response\":" BEFORE(ONE_TOOL) RUNS},
        {"response.output_item.added",
         ITEM0 "{\"id\":\"rs_*_0\",\"type\":\"reasoning\",\"summary\":[],\"content\":[],"
               "\"status\":\"in_progress\"}"},
        {"response.content_part.added", IN_THOUGHTS "\"part\":" THOUGHT_PART("")},
        {"response.reasoning_text.delta", IN_THOUGHTS "\"delta\":\"R\""},
        {"response.reasoning_text.delta", IN_THOUGHTS "\"delta\":\"e\""},
        {"response.reasoning_text.done", IN_THOUGHTS "\"text\":\"Re\""},
        {"response.content_part.done", IN_THOUGHTS "\"part\":" THOUGHT_PART("Re")},
        {"response.output_item.done", ITEM0 THOUGHTS(0, "Re", "completed")},
        {"response.output_item.added",
         ITEM1 "{\"id\":\"msg_*_1\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[],"
               "\"status\":\"in_progress\"}"},
        {"response.content_part.added", PART_OF1 PART("")},
        {"response.output_text.delta", IN_MESSAGE1 "\"delta\":\"Hi\""},
        {"response.output_text.done", IN_MESSAGE1 "\"text\":\"Hi\""},
        {"response.content_part.done", PART_OF1 PART("Hi")},
        {"response.output_item.done", ITEM1 MESSAGE(1, "Hi", "completed")},
        {"response.output_item.added",
         ITEM2 "{\"id\":\"fc_*_2\",\"type\":\"function_call\",\"call_id\":\"call_*\",\"name\":"
               "\"f\",\"arguments\":\"\",\"status\":\"in_progress\"}"},
        {"response.function_call_arguments.delta", IN_CALL "\"delta\":\"{\\\"a\\\": 1}\""},
        {"response.function_call_arguments.done", IN_CALL "\"arguments\":\"{\\\"a\\\": 1}\""},
        {"response.output_item.done", ITEM2 CALLED(2, "{\\\"a\\\": 1}", "completed")},
        {"response.completed",
         "\"response\":" BEFORE(ONE_TOOL) THOUGHTS(0, "Re", "completed") "," MESSAGE(
             1, "Hi", "completed") "," CALLED(2, "{\\\"a\\\": 1}", "completed")
             DONE USAGE(21, 81, 9, 102)},
    };
    server_fixture s;
    (void)state;
    open_server(&s);
    response r = ask(&s, HI "," TOOLS ",\"stream\":true", NULL, pieces, MSGL_FINISH_STOP);
    assert_int_equal(r.status, 200);
    expect_events(&r, NULL, 0, want, MSGL_COUNT(want));
    server_close(&s);
}

// Cut by max_output_tokens; a token that completes no text (the first byte of two) is a comment.
static void test_stream_cut(void **state)
{
    static const char *const pieces[] = {"H", "\xc3", "\xa4", "!", NULL};
    static const event want[] = {
        {"response.created", "\"response\":" BEFORE("[]") RUNS},
        {"response.in_progress", "\"response\":" BEFORE("[]") RUNS},
        {"response.output_item.added",
         ITEM0 "{\"id\":\"msg_*_0\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[],"
               "\"status\":\"in_progress\"}"},
        {"response.content_part.added", PART_OF0 PART("")},
        {"response.output_text.delta", IN_MESSAGE0 "\"delta\":\"H\""},
        {NULL, NULL},
        {"response.output_text.delta", IN_MESSAGE0 "\"delta\":\"\xc3\xa4\""},
        {"response.output_text.delta", IN_MESSAGE0 "\"delta\":\"!\""},
        {"response.output_text.done", IN_MESSAGE0 "\"text\":\"H\xc3\xa4!\""},
        {"response.content_part.done", PART_OF0 PART("H\xc3\xa4!")},
        {"response.output_item.done", ITEM0 MESSAGE(0, "H\xc3\xa4!", "incomplete")},
        {"response.incomplete", "\"response\":" BEFORE("[]") MESSAGE(0, "H\xc3\xa4!", "incomplete")
                                    CUT USAGE(21, 4, 0, 25)},
    };
    server_fixture s;
    (void)state;
    open_server(&s);
    response r = ask(&s, HI ",\"stream\":true", NULL, pieces, MSGL_FINISH_LENGTH);
    assert_int_equal(r.status, 200);
    expect_events(&r, NULL, 0, want, MSGL_COUNT(want));
    server_close(&s);
}

// The engine fails behind some text: the items that are complete stay.
static void test_stream_fails(void **state)
{
    static const event want[] = {
        {"error", "\"code\":null,\"message\":\"NaN\",\"param\":null"},
        {"response.failed",
         "\"response\":" BEFORE("[]") THOUGHTS(
             0, "R",
             "completed") "],\"status\":\"failed\",\"incomplete_details\":null,\"error\":{\"code\":"
                          "\"server_error\",\"message\":\"NaN\"},\"usage\":null}"},
    };
    msgl_token_event bad = {.finish = MSGL_FINISH_ERROR, .status = MSGL_ENUMERIC, .text = "NaN"};
    server_fixture s;
    (void)state;
    open_server(&s);
    int fd = send_request(&s, HI ",\"stream\":true", NULL, &bad.uid);
    engine_piece(&s, bad.uid, "<think>R</think>C", MSGL_FINISH_NONE);
    engine_send_event(&s, &bad);
    response r = client_read(fd);
    assert_non_null(strstr(r.body, "\"delta\":\"C\""));
    expect_events(&r, "event: error\n", 11, want, MSGL_COUNT(want));
    // Before any text: an error as everywhere.
    fd = send_request(&s, HI ",\"stream\":true", NULL, &bad.uid);
    engine_send_event(&s, &bad);
    r = client_read(fd);
    expect_error(&r, 500, NULL);
    server_close(&s);
}

static void test_errors(void **state)
{
    static const struct {
        const char *param, *fields;
    } bad[] = {
        {"input", "\"stream\":false"},
        {"input", "\"input\":[]"},
        {"input", "\"input\":5"},
        {"input[0]", "\"input\":[5]"},
        {"input", "\"input\":[{\"type\":\"item_reference\",\"id\":\"x\"}]"},
        {"input[0]", "\"input\":[{\"type\":\"web_serch_call\"}]"},
        {"input[0]", "\"input\":[{\"type\":5}]"},
        {"input[0].role", "\"input\":[{\"role\":\"tool\",\"content\":\"\"}]"},
        {"input[0].role", "\"input\":[{}]"},
        {"input[1].content", "\"input\":[" USER ",{\"role\":\"user\"}]"},
        {"input[0].content[0]",
         "\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}]"},
        {"input[0].content[1]",
         "\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"\"},"
         "{\"type\":\"input_text\"}]}]"},
        {"input[0]", "\"input\":[{\"type\":\"reasoning\",\"content\":\"x\"}]"},
        {"input[0].content[0]", "\"input\":[{\"type\":\"reasoning\",\"content\":[\"x\"]}]"},
        {"input[0]", "\"input\":[{\"type\":\"function_call\",\"name\":\"f\",\"call_id\":\"c\"}]"},
        {"input[0]", "\"input\":[{\"type\":\"function_call_output\",\"output\":\"x\"}]"},
        {"input[0].output", "\"input\":[{\"type\":\"function_call_output\",\"call_id\":\"c\"}]"},
        {"instructions", "\"instructions\":[]," HI},
        {"max_output_tokens", "\"max_output_tokens\":0," HI},
        {"max_output_token", "\"max_output_token\":5," HI},
        {"previous_response_id", "\"previous_response_id\":\"resp_1\"," HI},
        {"conversation", "\"conversation\":{\"id\":\"c\"}," HI},
        {"prompt", "\"prompt\":{\"id\":\"p\"}," HI},
        {"background", "\"background\":true," HI},
        {"truncation", "\"truncation\":\"auto_\"," HI},
        {"top_logprobs", "\"top_logprobs\":2," HI},
        {"include", "\"include\":[\"message.output_text.logprobs\"]," HI},
        {"include", "\"include\":[1]," HI},
        {"metadata", "\"metadata\":[]," HI},
        {"metadata", "\"metadata\":{\"a\":1}," HI},
        {"tools", "\"tools\":{}," HI},
        {"tools[0].tools[1]",
         "\"tools\":[{\"type\":\"namespace\",\"name\":\"s\",\"tools\":[{\"type\":\"custom\"},{"
         "\"type\":\"function\"}]}]," HI},
        {"tools[0]", "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]," HI},
        {"tools[0]", "\"tools\":[5]," HI},
        {"tool_choice", "\"tool_choice\":\"any\"," HI},
        {"tool_choice", "\"tool_choice\":{\"type\":\"web_search\"}," HI},
        {"tool_choice", "\"tool_choice\":{\"type\":\"function\",\"name\":\"g\"}," TOOLS "," HI},
        {"tool_choice", "\"tool_choice\":\"required\"," HI},
        {"text", "\"text\":5," HI},
        {"text.format", "\"text\":{\"format\":{\"type\":\"grammar\"}}," HI},
        {"text.format.schema", "\"text\":{\"format\":{\"type\":\"json_schema\"}}," HI},
        {"text.format", "\"text\":{\"format\":{\"type\":\"json_schema\",\"schema\":{\"type\":"
                        "\"no\"}}}," HI},
        {"response_format", "\"response_format\":{\"type\":\"json_object\"}," HI},
        {"reasoning", "\"reasoning\":true," HI},
        {"reasoning.effort", "\"reasoning\":{\"effort\":5}," HI},
        {"efort", "\"reasoning\":{\"efort\":\"low\"}," HI},
        {"chat_template_kwargs",
         "\"reasoning\":{\"effort\":\"none\"},\"chat_template_kwargs\":5," HI},
        {"temperature", "\"temperature\":-1," HI},
        {"n", "\"n\":2," HI},
    };
    server_fixture s;
    (void)state;
    open_server(&s);
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        char body[512], param[80];
        (void)snprintf(body, sizeof body, "{%s}", bad[i].fields);
        (void)snprintf(param, sizeof param, "\"type\":\"invalid_request_error\",\"param\":\"%s\"",
                       bad[i].param);
        response r = client_request(&s, "POST", "/v1/responses", body);
        print_message("%s\n", r.body);
        assert_int_equal(r.status, 400);
        if (strstr(r.body, param) == NULL) fail_msg("not %s", param);
        assert_non_null(strstr(r.body, "{\"error\":{\"message\":\"'"));
        assert_null(strstr(r.body, "response_format.json_schema"));
        response_free(&r);
    }
    expect_alive(&s);
    server_close(&s);
}

static void test_input_tokens(void **state)
{
    server_fixture s;
    (void)state;
    open_server(&s);
    response r = client_request(&s, "POST", "/v1/responses/input_tokens", "{" HI "}");
    assert_string_equal(r.body, "{\"object\":\"response.input_tokens\",\"input_tokens\":21}");
    expect_status(r, 200);
    r = client_request(&s, "POST", "/v1/responses/input_tokens", "{\"input\":5}");
    expect_status(r, 400);
    server_close(&s);
}

// What the context has no room for is left out at its begin, if the client says so.
static void test_truncation(void **state)
{
    static char body[CONTEXT + 200];
    static const char *const forms[] = {"disabled", "auto"};
    server_fixture s;
    (void)state;
    open_server(&s);
    for (int i = 0; i < 2; i++) {
        const int n = snprintf(body, sizeof body, "{\"truncation\":\"%s\",\"input\":\"", forms[i]);
        memset(body + n, 'a', CONTEXT);
        strcpy(body + n + CONTEXT, "\"}");
        const int fd = client_open(&s);
        client_post(fd, "/v1/responses", body);
        if (i == 1) {
            const msgl_msg m = engine_expect(&s, MSGL_MSG_REQUEST);
            assert_int_equal(m.u.request.num_ids, CONTEXT - 1);
            engine_piece(&s, m.u.request.uid, "x", MSGL_FINISH_STOP);
        }
        response r = client_read(fd);
        assert_int_equal(r.status, i == 0 ? 400 : 200);
        assert_true(i == 0 || strstr(r.body, "\"truncation\":\"auto\"") != NULL);
        response_free(&r);
    }
    server_close(&s);
}

// Fields of a chat that this API does not have change nothing.
static void test_other_names(void **state)
{
    static const char *const x[] = {"x", NULL};
    server_fixture s;
    (void)state;
    open_server(&s);
    response r =
        ask(&s, "\"messages\":[{\"role\":\"user\",\"content\":\"no\"}],\"max_tokens\":1," HI,
            "{user\nhi}\n{assistant\n", x, MSGL_FINISH_STOP);
    assert_int_equal(r.status, 200);
    response_free(&r);
    server_close(&s);
}

// Items and parts, as many as a body has room for, are looked at once.
static void test_many(void **state)
{
    enum { ITEMS = 40000 };
    static const struct {
        const char *head, *each, *tail, *want;
    } cases[] = {
        {"{\"input\":[{\"role\":\"user\",\"content\":[",
         "{\"type\":\"input_text\",\"text\":\"x\"},", "]}]}", "maximum context length"},
        {"{\"input\":[",
         "{\"type\":\"reasoning\",\"summary\":[{\"type\":\"summary_text\",\"text\":\"R\"}]},", "]}",
         "maximum context length"},
        {"{\"input\":[",
         "{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"},",
         "]}", NULL},
        {"{\"input\":[", USER ",", "]}", "conversation of 40000 messages"},
    };
    server_fixture s;
    (void)state;
    open_server(&s);
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        msgl_strbuf body;
        msgl__strbuf_init(&body, 64 << 20);
        assert_int_equal(msgl__strbuf_adds(&body, cases[i].head), 0);
        for (int k = 0; k < ITEMS; k++) {
            assert_int_equal(msgl__strbuf_adds(&body, cases[i].each), 0);
        }
        body.len--; // the last comma
        assert_int_equal(msgl__strbuf_adds(&body, cases[i].tail), 0);
        if (cases[i].want == NULL) { // the fixture's template does not print calls
            const int fd = client_open(&s);
            client_post(fd, "/v1/responses", msgl__strbuf_str(&body));
            engine_token(&s, engine_expect(&s, MSGL_MSG_REQUEST).u.request.uid, ID_IM_END,
                         MSGL_FINISH_STOP);
            expect_status(client_read(fd), 200);
        } else {
            response r = client_request(&s, "POST", "/v1/responses", msgl__strbuf_str(&body));
            print_message("%s\n", r.body);
            assert_int_equal(r.status, 400);
            assert_non_null(strstr(r.body, cases[i].want));
            response_free(&r);
        }
        msgl__strbuf_free(&body);
    }
    expect_alive(&s);
    server_close(&s);
}

// Instructions and tools that are very long are not repeated.
static void test_long_fields(void **state)
{
    enum { LONG = 300000 };
    server_fixture s;
    msgl_strbuf body;
    (void)state;
    open_server(&s);
    msgl__strbuf_init(&body, 64 << 20);
    (void)msgl__strbuf_adds(&body, "{\"stream\":true," HI ",\"tool_choice\":\"none\",\"tools\":[{"
                                   "\"type\":\"function\",\"name\":\"f\",\"description\":\"");
    for (int i = 0; i < LONG; i++) (void)msgl__strbuf_addc(&body, 'x');
    assert_int_equal(msgl__strbuf_adds(&body, "\"}]}"), 0);
    const int fd = client_open(&s);
    client_post(fd, "/v1/responses", msgl__strbuf_str(&body));
    engine_piece(&s, engine_expect(&s, MSGL_MSG_REQUEST).u.request.uid, "x", MSGL_FINISH_STOP);
    response r = client_read(fd);
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body, "\"tools\":[],"));
    assert_non_null(strstr(r.body, "event: response.completed\n"));
    response_free(&r);
    msgl__strbuf_free(&body);
    server_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts),      cmocka_unit_test(test_whole),
        cmocka_unit_test(test_request),      cmocka_unit_test(test_stream),
        cmocka_unit_test(test_stream_cut),   cmocka_unit_test(test_stream_fails),
        cmocka_unit_test(test_errors),       cmocka_unit_test(test_other_names),
        cmocka_unit_test(test_input_tokens), cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_many),         cmocka_unit_test(test_long_fields),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
