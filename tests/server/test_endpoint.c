// SPDX-License-Identifier: Apache-2.0
//
// Endpoints are descriptors: every one of the server's is complete, and one that the server does
// not know is served through its descriptor alone. This program's table has four rows more than the
// server's, one for each way to end that those do not show: in a worker (from a prompt, from a
// chat), as plain text of the engine's counters, and as a stream in a form of its own.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "api/endpoint.h"
#include "api/fields.h"
#include "server/fixture.h"
#include "api/json.h"
#include "program/endpoints.h"

// --- four endpoints, as their files would have them ---

static const msgl_field_row prompt_rows[] = {
    {.name = "model", .type = MSGL_FIELD_STRING}, {.name = "prompt", .type = MSGL_FIELD_ANY}, {0}};
static const msgl_fields prompt_fields = {.read = prompt_rows};
static const msgl_fields *const prompt_objects[] = {&prompt_fields, NULL};

static int parse_prompt(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                        msgl_api_error *e)
{
    const int rc =
        msgl__check_fields(o, &prompt_fields, cfg, cfg->unknown_fields, &out->unknown, e);
    return rc == 0 ? msgl__parse_prompts(json_object_get(o, "prompt"), "prompt", cfg, out, e) : rc;
}

static int put_ids(const msgl_job *j, const msgl_tokenizer *t, msgl_strbuf *out)
{
    (void)t;
    int rc = msgl__strbuf_addc(out, '[');
    for (int i = 0; i < j->req.num_prompts && rc == 0; i++) {
        rc = msgl__strbuf_adds(out, i == 0 ? "[" : ",[");
        for (size_t k = 0; k < j->ids[i].len && rc == 0; k++) {
            rc = msgl__strbuf_addf(out, "%s%d", k == 0 ? "" : ",", j->ids[i].data[k]);
        }
        if (rc == 0) rc = msgl__strbuf_addc(out, ']');
    }
    return rc == 0 ? msgl__strbuf_addc(out, ']') : rc;
}

static int put_detail(const msgl_api_error *e, msgl_strbuf *out)
{
    int rc = msgl__strbuf_adds(out, "{\"detail\":");
    if (rc == 0) rc = msgl__json_put_str(out, e->message, strlen(e->message));
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

static const msgl_endpoint ids = {.path = "/test/ids",
                                  .method = MSGL_HTTP_POST,
                                  .put_error = put_detail,
                                  .parse = parse_prompt,
                                  .objects = prompt_objects,
                                  .prompt = MSGL_PROMPT_TEXT,
                                  .prompt_field = "prompt",
                                  .put_job = put_ids};

static const msgl_field_row question_rows[] = {{.name = "question", .type = MSGL_FIELD_STRING},
                                               {0}};
static const msgl_fields question_fields = {.read = question_rows};
static const msgl_fields *const question_objects[] = {&question_fields, NULL};

static int parse_question(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                          msgl_api_error *e)
{
    const char *text = NULL;
    int rc = msgl__check_fields(o, &question_fields, cfg, cfg->unknown_fields, &out->unknown, e);
    if (rc == 0) rc = msgl__field_str(o, "question", &text, e);
    if (rc < 0) return rc;
    out->num_prompts = 1;
    out->chat.vars = json_pack("{s:[{s:s,s:s}],s:b}", "messages", "role", "user", "content",
                               text == NULL ? "" : text, "add_generation_prompt", 1);
    return out->chat.vars != NULL ? 0 : msgl__api_fail(e, 500, NULL, NULL, "Out of memory.");
}

static const msgl_endpoint chat_ids = {.path = "/test/chat",
                                       .method = MSGL_HTTP_POST,
                                       .type = "text/plain",
                                       .parse = parse_question,
                                       .objects = question_objects,
                                       .prompt = MSGL_PROMPT_CHAT,
                                       .prompt_field = "question",
                                       .put_job = put_ids};

static int put_counters(const msgl_front *f, const msgl_replica_stats *all, msgl_strbuf *out)
{
    const msgl_msg_stats *s = &all[0].stats; // of the only one
    (void)f;
    return msgl__strbuf_addf(out, "running %d\nwaiting %d\n", s->running, s->waiting);
}

static const msgl_endpoint counters = {.path = "/test/counters",
                                       .method = MSGL_HTTP_GET,
                                       .type = "text/plain; version=0.0.4",
                                       .ask = MSGL_MSG_GET_STATS,
                                       .put_stats = put_counters};

static int parse_shout(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                       msgl_api_error *e)
{
    const int rc = msgl__parse_sampling(o, cfg, out, e);
    return rc == 0 ? msgl__parse_prompts(json_object_get(o, "prompt"), "prompt", cfg, out, e) : rc;
}

static int shout_begin(const msgl_reply *r, msgl_strbuf *out)
{
    return msgl__strbuf_addf(out, "%.5s ", r->id);
}

static int shout_choice(const msgl_reply *r, int index, msgl_sequence *s, msgl_strbuf *out)
{
    (void)r;
    return msgl__strbuf_addf(out, "%d=%s! ", index, msgl__strbuf_str(&s->text));
}

static int shout_end(const msgl_reply *r, int64_t cached, int64_t completion, msgl_strbuf *out)
{
    return msgl__strbuf_addf(out, "%d/%d/%d", (int)r->prompt_tokens, (int)cached, (int)completion);
}

static int shout_chunk(const msgl_reply *r, int index, msgl_sequence *s, bool silent,
                       msgl_strbuf *out)
{
    (void)r;
    const int rc = msgl__strbuf_addf(out, "event: %s\ndata: %d=%s\n\n",
                                     s->finish != NULL ? s->finish
                                     : silent          ? "token"
                                                       : "text",
                                     index, msgl__strbuf_str(&s->text));
    msgl__strbuf_clear(&s->text);
    return rc;
}

static int shout_stream_end(const msgl_reply *r, int64_t cached, int64_t completion,
                            msgl_strbuf *out)
{
    (void)cached;
    return msgl__strbuf_addf(out, "event: end\ndata: %.5s %d\n\n", r->id, (int)completion);
}

static int shout_stream_error(const msgl_reply *r, const msgl_api_error *e, msgl_strbuf *out)
{
    return msgl__strbuf_addf(out, "event: oh\ndata: %.5s %s\n\n", r->id, e->message);
}

static const msgl_endpoint shout = {.path = "/test/shout",
                                    .method = MSGL_HTTP_POST,
                                    .type = "text/plain",
                                    .put_error = put_detail,
                                    .parse = parse_shout,
                                    .objects = prompt_objects,
                                    .prompt = MSGL_PROMPT_TEXT,
                                    .prompt_field = "prompt",
                                    .id_prefix = "loud",
                                    .put_begin = shout_begin,
                                    .put_choice = shout_choice,
                                    .put_end = shout_end,
                                    .put_chunk = shout_chunk,
                                    .put_stream_end = shout_stream_end,
                                    .put_stream_error = shout_stream_error};

// --- a front with these beside the program's ---

static const msgl_endpoint *const own[] = {&ids, &chat_ids, &counters, &shout};
enum { MAX_ROWS = 128, NUM_OWN = sizeof own / sizeof own[0] };

static msgl_front_config config_with_own(void)
{
    static const msgl_endpoint *table[MAX_ROWS];
    int n = 0;
    for (; msgl__endpoints[n] != NULL; n++) table[n] = msgl__endpoints[n];
    assert_true(n + NUM_OWN < MAX_ROWS);
    for (int i = 0; i < NUM_OWN; i++) table[n + i] = own[i];
    table[n + NUM_OWN] = NULL;
    msgl_front_config cfg = msgl__front_config_default();
    cfg.endpoints = table;
    return cfg;
}

static void open_with_own(server_fixture *s)
{
    const msgl_front_config cfg = config_with_own();
    server_open(s, &cfg, true);
}

// --- tests ---

static bool covers(const msgl_endpoint *a, const msgl_endpoint *b) // every path of b is one of a
{
    if (!a->prefix) return !b->prefix && strcmp(a->path, b->path) == 0;
    const size_t n = strlen(a->path);
    return strncmp(a->path, b->path, n) == 0 && (b->prefix || strlen(b->path) > n);
}

static void test_complete(void **state)
{
    (void)state;
    const msgl_endpoint *const *table = config_with_own().endpoints;
    for (int i = 0; table[i] != NULL; i++) {
        const msgl_endpoint *ep = table[i];
        if (ep->path == NULL || ep->path[0] != '/') fail_msg("row %d", i);
        const int methods = MSGL_HTTP_GET | MSGL_HTTP_POST | MSGL_HTTP_DELETE;
        assert_true(ep->method != 0 && (ep->method & ~methods) == 0);
        assert_true(ep->take != NULL || (ep->method & (ep->method - 1)) == 0); // else one
        for (int k = 0; k < i; k++) assert_false(covers(table[k], ep)); // it would never be asked
        assert_int_equal((ep->put_now != NULL) + (ep->put_stats != NULL) + (ep->parse != NULL) +
                             (ep->take != NULL),
                         1);
        if (ep->put_stats != NULL) {
            assert_true(ep->ask == MSGL_MSG_GET_STATS || ep->ask == MSGL_MSG_FLUSH ||
                        ep->ask == MSGL_MSG_GET_TREE);
        }
        const bool ours = strncmp(ep->path, "/test", 5) != 0; // of the server, in docs/http.md
        assert_int_equal(ours,
                         ep->help != NULL && ep->examples != NULL && ep->examples[0].help != NULL);
        const bool job = ep->parse != NULL, engine = msgl__endpoint_has_engine(ep);
        assert_true(ep->take != NULL || job == (ep->objects != NULL && ep->objects[0] != NULL));
        assert_int_equal(job, ep->prompt_field != NULL);
        if (job) assert_int_equal(ep->method, MSGL_HTTP_POST);
        assert_true(job || ep->put_job == NULL);
        assert_int_equal(engine, ep->id_prefix != NULL);
        const bool streams =
            ep->put_chunk != NULL && ep->put_stream_end != NULL && ep->put_stream_error != NULL;
        const bool all = ep->put_begin != NULL && ep->put_choice != NULL && ep->put_end != NULL &&
                         streams != ep->pooled,
                   together = ep->put_all != NULL && ep->pooled && !streams;
        const bool any = ep->put_begin != NULL || ep->put_choice != NULL || ep->put_end != NULL ||
                         ep->put_chunk != NULL || ep->put_stream_end != NULL ||
                         ep->put_stream_error != NULL || ep->logprobs != NULL;
        assert_int_equal(engine, all != together);
        assert_int_equal(engine && !together, any);
    }
}

static void expect_body(response r, int status, const char *type, const char *body)
{
    char buf[256];
    if (r.status != status || strcmp(r.body, body) != 0) {
        fail_msg("%d %.300s instead of %d %s", r.status, r.body, status, body);
    }
    assert_string_equal(header_of(&r, "Content-Type", buf), type);
    response_free(&r);
}

// What /get_server_info says of the front.
static int info(server_fixture *s, const char *name)
{
    const int fd = client_open(s);
    client_send(fd, "GET /get_server_info HTTP/1.1\r\nHost: x\r\n\r\n");
    (void)engine_expect(s, MSGL_MSG_GET_STATS);
    const msgl_msg stats = {.type = MSGL_MSG_STATS};
    assert_int_equal(msgl__channel_send(s->engine, &stats), 0);
    response r = client_read(fd);
    json_t *j = json_loadb(r.body, r.len, 0, NULL);
    const json_t *v = json_object_get(j, name);
    assert_true(json_is_integer(v));
    const int value = (int)json_integer_value(v);
    json_decref(j);
    response_free(&r);
    close(fd);
    return value;
}

static void test_ends_in_worker(void **state)
{
    (void)state;
    static const char json[] = "application/json";
    server_fixture s;
    const msgl_front_config cfg = config_with_own();
    server_open(&s, &cfg, false);
    const char *hi = "{\"prompt\":[\"hi\",\"<|im_end|>a\"]}";
    response r = client_request(&s, "POST", "/test/ids", hi);
    assert_int_equal(r.status, 503);
    assert_memory_equal(r.body, "{\"detail\":", 10);
    response_free(&r);
    engine_say_ready(&s);
    const int before = info(&s, "request_memory");
    for (int i = 0; i < 3; i++) {
        expect_body(client_request(&s, "POST", "/test/ids", hi), 200, json, "[[104,105],[257,97]]");
        expect_body(client_request(&s, "POST", "/test/ids", "{\"prompt\":[7,8]}"), 200, json,
                    "[[7,8]]");
        expect_body(client_request(&s, "POST", "/test/chat", "{\"question\":\"<|im_end|>\"}"), 200,
                    "text/plain",
                    "[[256,117,115,101,114,10,60,124,105,109,95,101,110,100,124,62,257,10,256,97,"
                    "115,115,105,115,116,97,110,116,10]]");
    }
    // Errors have the endpoint's form, wherever they come from.
    expect_body(client_request(&s, "POST", "/test/ids", "{}"), 400, json,
                "{\"detail\":\"'prompt' is missing.\"}");
    expect_body(client_request(&s, "POST", "/test/ids", "{\"promt\":\"x\"}"), 400, json,
                "{\"detail\":\"'promt' is not a field of this request; did you mean 'prompt'?\"}");
    expect_body(client_request(&s, "GET", "/test/ids", NULL), 405, json,
                "{\"detail\":\"'/test/ids' takes POST.\"}");
    r = client_request(&s, "POST", "/test/chat", "{\"question\":1}");
    expect_error(&r, 400, NULL);
    // A name of one endpoint is no typing error of another.
    r = client_request(&s, "POST", "/test/ids", "{\"prompt\":\"x\",\"question\":1}");
    expect_status(r, 200);
    // More than the context has is no error where no answer has to fit behind it.
    const size_t n = CONTEXT + 100;
    char *body = malloc(n + 20);
    assert_non_null(body);
    (void)snprintf(body, 20, "{\"prompt\":\"");
    memset(body + 11, 'a', n);
    memcpy(body + 11 + n, "\"}", 3);
    r = client_request(&s, "POST", "/test/ids", body);
    assert_int_equal(r.status, 200);
    assert_int_equal(r.len, 3 * n + 3); // "97," each, in two pairs of brackets
    response_free(&r);
    r = client_request(&s, "POST", "/v1/completions", body);
    expect_error(&r, 400, "context_length_exceeded");
    free(body);
    // Nothing of it reached the engine, and nothing is left.
    engine_expect_nothing(&s);
    assert_int_equal(info(&s, "requests_open"), 0);
    assert_int_equal(info(&s, "requests_waiting"), 0);
    assert_int_equal(info(&s, "request_memory"), before);
    expect_alive(&s);
    server_close(&s);
}

static void test_worker_out_of_memory(void **state)
{
    (void)state;
    text_fixture t;
    text_open(&t);
    bool reached_end = false;
    for (uint64_t nth = 1; !reached_end; nth++) {
        assert_true(nth < 1000);
        msgl_job *j = msgl__calloc(1, sizeof *j);
        assert_non_null(j);
        j->ep = &ids;
        j->config = (msgl_api_config){.model_name = "m", .model_path = "/m", .vocab_size = VOCAB};
        j->max_seq_len = CONTEXT;
        msgl__strbuf_init(&j->body, 1000);
        assert_int_equal(msgl__strbuf_adds(&j->body, "{\"prompt\":[\"a\",\"b\"]}"), 0);
        msgl__mem_fail_from(nth);
        msgl__job_run(j, t.tokenizer, t.templates);
        msgl__mem_fail_from(0);
        reached_end = j->rc == 0;
        if (j->rc != 0) {
            assert_int_equal(j->error.status, 500);
        } else {
            assert_string_equal(j->answer.data, "[[97],[98]]");
        }
        msgl__job_free(j);
    }
    text_close(&t);
}

// An answer that does not fit into what one request may hold.
static void test_worker_over_budget(void **state)
{
    (void)state;
    server_fixture s;
    msgl_front_config cfg = config_with_own();
    cfg.max_request_memory = 256 << 10;
    server_open(&s, &cfg, true);
    // The prompt and its ids fit, but not with "122," for each of them.
    char body[5000 + 20] = "{\"prompt\":\"";
    memset(body + 11, 'z', 5000);
    memcpy(body + 11 + 5000, "\"}", 3);
    response r = client_request(&s, "POST", "/test/ids", body);
    assert_int_equal(r.status, 413);
    response_free(&r);
    expect_alive(&s);
    server_close(&s);
}

static void test_stats_as_text(void **state)
{
    (void)state;
    server_fixture s;
    open_with_own(&s);
    const int fd = client_open(&s);
    client_send(fd, "GET /test/counters HTTP/1.1\r\nHost: x\r\n\r\n");
    (void)engine_expect(&s, MSGL_MSG_GET_STATS);
    msgl_msg stats = {.type = MSGL_MSG_STATS};
    stats.u.stats.running = 3;
    assert_int_equal(msgl__channel_send(s.engine, &stats), 0);
    expect_body(client_read(fd), 200, "text/plain; version=0.0.4", "running 3\nwaiting 0\n");
    close(fd);
    server_close(&s);
}

static void test_own_form(void **state)
{
    (void)state;
    server_fixture s;
    open_with_own(&s);
    int fd = client_open(&s);
    client_post(fd, "/test/shout", "{\"prompt\":\"abc\",\"max_tokens\":9}");
    uint64_t uid = engine_expect(&s, MSGL_MSG_REQUEST).u.request.uid;
    engine_text(&s, uid, "he");
    engine_token(&s, uid, 'y', MSGL_FINISH_LENGTH);
    expect_body(client_read(fd), 200, "text/plain", "loud- 0=hey! 3/2/3");

    client_post(fd, "/test/shout", "{\"prompt\":\"abc\",\"stream\":true}");
    uid = engine_expect(&s, MSGL_MSG_REQUEST).u.request.uid;
    engine_token(&s, uid, 'x', MSGL_FINISH_NONE);
    engine_token(&s, uid, 'y', MSGL_FINISH_LENGTH);
    expect_body(
        client_read(fd), 200, "text/event-stream",
        "event: token\ndata: 0=x\n\nevent: length\ndata: 0=y\n\nevent: end\ndata: loud- 2\n\n");

    client_post(fd, "/test/shout", "{\"prompt\":\"abc\",\"stream\":true}");
    uid = engine_expect(&s, MSGL_MSG_REQUEST).u.request.uid;
    engine_token(&s, uid, 'x', MSGL_FINISH_NONE);
    const msgl_token_event bad = {
        .uid = uid, .finish = MSGL_FINISH_ERROR, .status = MSGL_ENUMERIC, .text = "NaN"};
    engine_send_event(&s, &bad);
    expect_body(client_read(fd), 200, "text/event-stream",
                "event: token\ndata: 0=x\n\nevent: oh\ndata: loud- NaN\n\n");
    close(fd);

    fd = client_open(&s);
    client_post(fd, "/test/shout", "{\"prompt\":\"abc\"}");
    const msgl_token_event worse = {.uid = engine_expect(&s, MSGL_MSG_REQUEST).u.request.uid,
                                    .finish = MSGL_FINISH_ERROR,
                                    .status = MSGL_ENUMERIC,
                                    .text = "NaN"};
    engine_send_event(&s, &worse);
    expect_body(client_read(fd), 500, "application/json", "{\"detail\":\"NaN\"}");
    close(fd);
    expect_status(client_request(&s, "POST", "/test", "{}"), 404);
    // A prefix needs something behind; without it this is another's path with a slash.
    response r = client_request(&s, "GET", "/v1/models/", NULL);
    assert_non_null(strstr(r.body, "\"object\":\"list\""));
    expect_status(r, 200);
    r = client_request(&s, "GET", "/openai/models/test-model", NULL);
    assert_non_null(strstr(r.body, "\"id\":\"test-model\""));
    expect_status(r, 200);
    r = client_request(&s, "POST", "/v1/chat/completion", "{}");
    assert_non_null(strstr(r.body, "There is nothing at '/v1/chat/completion'; did you mean "
                                   "'/v1/chat/completions'?"));
    expect_error(&r, 404, NULL);
    server_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_complete),
        cmocka_unit_test(test_ends_in_worker),
        cmocka_unit_test(test_worker_out_of_memory),
        cmocka_unit_test(test_worker_over_budget),
        cmocka_unit_test(test_stats_as_text),
        cmocka_unit_test(test_own_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
