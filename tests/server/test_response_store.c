// SPDX-License-Identifier: Apache-2.0
//
// Stored responses: whose they are, how many, how long; and /v1/responses with them.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "api/job.h"
#include "api/openai/endpoints.h"
#include "api/openai/response_store.h"
#include "server/fixture.h"

// --- the store ---

static msgl_response_store *open_store(int count, size_t bytes, msgl_budget *budget)
{
    const msgl_response_limits limits = {count, bytes, 60};
    msgl_response_store *s = NULL;
    assert_int_equal(msgl__response_store_create(&limits, budget, &s), 0);
    return s;
}

static int put(msgl_response_store *s, uint64_t own, const char *id, int64_t now, size_t bytes)
{
    static char body[1 << 16];
    msgl_strbuf items;
    msgl__strbuf_init(&items, 1000);
    assert_int_equal(msgl__strbuf_add(&items, "{}", 3), 0); // and its NUL
    const int rc = msgl__response_store_put(s, own, id, now, &items, body, bytes);
    msgl__strbuf_free(&items);
    return rc;
}

static bool has(msgl_response_store *s, uint64_t own, const char *id, int64_t now)
{
    msgl_strbuf items, body;
    msgl__strbuf_init(&items, 1 << 20);
    msgl__strbuf_init(&body, 1 << 20);
    const int rc = msgl__response_store_get(s, own, id, now, &items, &body);
    assert_true(rc == 0 ? items.len == 3 && body.len > 0 : rc == MSGL_ENOENT && body.len == 0);
    msgl__strbuf_free(&items);
    msgl__strbuf_free(&body);
    return rc == 0;
}

static void test_owners(void **state)
{
    (void)state;
    msgl_budget budget;
    msgl__budget_init(&budget, 1 << 20);
    msgl_response_store *s = open_store(10, 1 << 18, &budget);
    assert_int_equal(put(s, 1, "a", 0, 100), 0);
    assert_int_equal(put(s, 2, "b", 0, 100), 0);
    assert_true(has(s, 1, "a", 0) && has(s, 2, "b", 0));
    assert_false(has(s, 2, "a", 0));
    assert_int_equal(msgl__response_store_remove(s, 2, "a"), MSGL_ENOENT);
    assert_true(has(s, 1, "a", 0));
    assert_true(atomic_load(&budget.used) > 200);
    assert_int_equal(msgl__response_store_remove(s, 1, "a"), 0);
    assert_int_equal(msgl__response_store_remove(s, 1, "a"), MSGL_ENOENT);
    assert_false(has(s, 1, "a", 0));
    // More than a quarter of the room is not taken.
    assert_int_equal(put(s, 1, "c", 0, 1 << 16), MSGL_ELIMIT);
    msgl__response_store_free(s);
    assert_int_equal(atomic_load(&budget.used), 0);
}

// Who has the most makes room: others keep what they have.
static void test_bounds(void **state)
{
    (void)state;
    msgl_response_store *s = open_store(4, 10000, NULL);
    char id[16];
    assert_int_equal(put(s, 1, "mine", 0, 50), 0);
    for (int i = 0; i < 20; i++) {
        (void)snprintf(id, sizeof id, "n%d", i);
        assert_int_equal(put(s, 2, id, 1, 100), 0);
    }
    assert_true(has(s, 1, "mine", 1));
    assert_true(has(s, 2, "n19", 1) && has(s, 2, "n18", 1) && has(s, 2, "n17", 1));
    assert_false(has(s, 2, "n16", 1));
    // In bytes, too.
    for (int i = 0; i < 8; i++) {
        (void)snprintf(id, sizeof id, "m%d", i);
        assert_int_equal(put(s, 2, id, 1, 2400), 0);
    }
    assert_true(has(s, 1, "mine", 1) && has(s, 2, "m7", 1) && !has(s, 2, "m3", 1));
    // And in time: what is a minute old.
    assert_true(has(s, 1, "mine", 60));
    msgl__response_store_expire(s, 61);
    assert_false(has(s, 1, "mine", 0));
    assert_true(has(s, 2, "m7", 61));
    assert_false(has(s, 2, "m7", 62));
    msgl__response_store_free(s);
}

static void test_no_memory(void **state)
{
    (void)state;
    msgl_budget budget;
    msgl__budget_init(&budget, 4000);
    msgl_response_store *s = open_store(100, 1 << 20, &budget);
    // A request may hold a quarter of the budget.
    assert_int_equal(put(s, 1, "a", 0, 2000), MSGL_ELIMIT);
    for (int i = 0; i < 3; i++) assert_int_equal(put(s, 1, "a", 0, 800), 0);
    assert_int_equal(put(s, 1, "b", 0, 800), MSGL_EBUSY);
    msgl__response_store_free(s);
    assert_int_equal(atomic_load(&budget.used), 0);
    bool done = false;
    for (uint64_t nth = 1; !done; nth++) {
        msgl__mem_fail_from(nth);
        const msgl_response_limits limits = {10, 1 << 20, 60};
        int rc = msgl__response_store_create(&limits, NULL, &s);
        msgl__mem_fail_from(0);
        if (rc == 0) {
            msgl__mem_fail_from(nth);
            msgl_strbuf none = {0};
            rc = msgl__response_store_put(s, 1, "a", 0, &none, "x", 1);
            msgl__mem_fail_from(0);
            done = rc == 0;
            assert_int_equal(has(s, 1, "b", 0), 0);
            msgl__response_store_free(s);
        }
        assert_true(rc == 0 || rc == MSGL_ENOMEM);
    }
}

// A request that goes on from a stored response, without memory from each allocation on.
static void test_going_on_without_memory(void **state)
{
    static const char answer[] =
        "{\"output\":[{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":"
        "\"output_text\",\"text\":\"A\"}]}]}";
    static const char asked[] = "{\"role\":\"user\",\"content\":\"q\"}";
    msgl_response_store *s = open_store(10, 1 << 20, NULL);
    msgl_strbuf items;
    text_fixture t;
    (void)state;
    text_open(&t);
    msgl__strbuf_init(&items, 1000);
    assert_int_equal(msgl__strbuf_add(&items, asked, sizeof asked), 0);
    const int64_t now = (int64_t)time(NULL);
    assert_int_equal(
        msgl__response_store_put(s, 7, "resp-1", now, &items, answer, sizeof answer - 1), 0);
    msgl__strbuf_free(&items);
    bool done = false;
    for (uint64_t nth = 1; !done; nth++) {
        assert_true(nth < 5000);
        msgl_job *j = msgl__calloc(1, sizeof *j);
        assert_non_null(j);
        j->ep = &msgl__endpoint_responses;
        j->config = (msgl_api_config){.model_name = "m",
                                      .model_path = "/m",
                                      .vocab_size = VOCAB,
                                      .responses = s,
                                      .client = 7};
        j->max_seq_len = CONTEXT;
        msgl__strbuf_init(&j->body, 1000);
        assert_int_equal(
            msgl__strbuf_adds(&j->body, "{\"previous_response_id\":\"resp-1\",\"input\":\"b\"}"),
            0);
        msgl__mem_fail_from(nth);
        (void)msgl__job_run(j, t.tokenizer, t.templates);
        msgl__mem_fail_from(0);
        done = j->rc == 0;
        if (!done && j->error.status != 500) fail_msg("%s", j->error.message);
        // What was asked, what was answered, what is asked.
        if (done) {
            int kept = 0;
            for (size_t i = 0; i < j->req.kept.len; i++) kept += j->req.kept.data[i] == '\0';
            assert_int_equal(kept, 3);
        }
        msgl__job_free(j);
    }
    text_close(&t);
    msgl__response_store_free(s);
}

// --- the server ---

#define HI "\"input\":\"hi\""

// Asks with {fields} from 127.0.0.FROM; the engine says `text`. prompt: what it has to be given.
static response ask(server_fixture *s, int from, const char *fields, const char *prompt,
                    const char *text)
{
    char body[1024];
    const int fd = client_open_from(s, from);
    (void)snprintf(body, sizeof body, "{%s}", fields);
    client_post(fd, "/v1/responses", body);
    const msgl_msg m = engine_expect(s, MSGL_MSG_REQUEST);
    if (prompt != NULL) expect_prompt(&m.u.request, prompt);
    const uint64_t uid = m.u.request.uid;
    engine_text(s, uid, text);
    engine_token(s, uid, ID_IM_END, MSGL_FINISH_STOP);
    response r = client_read(fd);
    close(fd);
    assert_int_equal(r.status, 200);
    return r;
}

// The first id in an answer, or in a stream's first event.
static void id_of(const response *r, char id[64])
{
    const char *at = strstr(r->body, "\"id\":\"resp-");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "\"id\":\"%60[^\"]", id), 1);
}

static response call(const server_fixture *s, int from, const char *key, const char *method,
                     const char *id, const char *rest)
{
    char head[512];
    const int fd = client_open_from(s, from);
    (void)snprintf(head, sizeof head,
                   "%s /v1/responses/%s%s HTTP/1.1\r\nHost: x\r\nX-Api-Key: %s\r\n\r\n", method, id,
                   rest, key);
    client_send(fd, head);
    response r = client_read(fd);
    close(fd);
    return r;
}

static void expect_gone(const server_fixture *s, int from, const char *id)
{
    static const char *const methods[] = {"GET", "DELETE"};
    for (size_t i = 0; i < MSGL_COUNT(methods); i++) {
        response r = call(s, from, "", methods[i], id, "");
        assert_non_null(strstr(r.body, "You have no response"));
        expect_error(&r, 404, NULL);
    }
}

static void test_stored(void **state)
{
    server_fixture s;
    char id[64], second[64], fields[256];
    (void)state;
    server_open(&s, NULL, true);
    response r = ask(&s, 1, HI, "{user\nhi}\n{assistant\n", "Hello");
    id_of(&r, id);
    response got = call(&s, 1, "", "GET", id, "");
    assert_int_equal(got.status, 200);
    assert_string_equal(got.body, r.body);
    response_free(&got);
    response_free(&r);
    // It goes on, in a stream, which is kept as its last event has it.
    (void)snprintf(fields, sizeof fields,
                   "\"stream\":true,\"instructions\":\"S\",\"previous_response_id\":\"%s\","
                   "\"input\":[{\"role\":\"user\",\"content\":\"more\"}]",
                   id);
    r = ask(&s, 1, fields,
            "{system\nS}\n{user\nhi}\n{assistant\nHello}\n{user\nmore}\n{assistant\n", "B");
    id_of(&r, second);
    got = call(&s, 1, "", "GET", second, "");
    assert_non_null(strstr(r.body, got.body));
    assert_non_null(strstr(got.body, "\"status\":\"completed\""));
    assert_non_null(strstr(got.body, id)); // its previous_response_id
    response_free(&got);
    response_free(&r);
    // What it was asked: the newest first.
    static const char *const orders[][2] = {{"/input_items", "more"},
                                            {"/input_items?order=asc", "\"hi\""}};
    for (size_t i = 0; i < MSGL_COUNT(orders); i++) {
        r = call(&s, 1, "", "GET", second, orders[i][0]);
        json_t *o = json_loads(r.body, 0, NULL);
        const json_t *data = json_object_get(o, "data");
        char *first = json_dumps(json_array_get(data, 0), 0);
        assert_int_equal(json_array_size(data), 3);
        assert_non_null(strstr(first, orders[i][1]));
        msgl__free(first);
        json_decref(o);
        response_free(&r);
    }
    // Others have no part in it.
    expect_gone(&s, 2, id);
    (void)snprintf(fields, sizeof fields, "{\"previous_response_id\":\"%s\"," HI "}", id);
    const int fd = client_open_from(&s, 2);
    client_post(fd, "/v1/responses", fields);
    r = client_read(fd);
    close(fd);
    expect_error(&r, 400, "previous_response_not_found");
    // Without the first one the second stays what it is.
    r = call(&s, 1, "", "DELETE", id, "");
    assert_non_null(strstr(r.body, "\"deleted\":true"));
    expect_status(r, 200);
    expect_gone(&s, 1, id);
    (void)snprintf(fields, sizeof fields, "\"previous_response_id\":\"%s\",\"input\":\"c\"",
                   second);
    r = ask(&s, 1, fields,
            "{user\nhi}\n{assistant\nHello}\n{user\nmore}\n{assistant\nB}\n{user\nc}\n{assistant\n",
            "C");
    response_free(&r);
    // What is not to be stored is not, and says so.
    r = ask(&s, 1, "\"store\":false," HI, NULL, "x");
    assert_non_null(strstr(r.body, "\"store\":false"));
    id_of(&r, id);
    response_free(&r);
    expect_gone(&s, 1, id);
    static const char *const paths[] = {"/output", "/input_items/x"};
    for (size_t i = 0; i < MSGL_COUNT(paths); i++) {
        r = call(&s, 1, "", "GET", second, paths[i]);
        expect_error(&r, 404, NULL);
    }
    r = call(&s, 1, "", "GET", second, "?stream=true");
    expect_error(&r, 400, "unsupported_parameter");
    server_close(&s);
}

// Who asks for a stored response again and again and reads none of it gets no more of the memory
// that requests may hold than any other request.
static void test_unread(void **state)
{
    enum { ASKERS = 100, TEXT = 3000000 };
    msgl_front_config cfg = msgl__front_config_default();
    server_fixture s;
    int fds[ASKERS], refused = 0;
    char id[64], line[160];
    msgl_strbuf body;
    (void)state;
    cfg.stop_timeout_ms = 2000;
    cfg.max_request_memory = (size_t)256 << 20;
    server_open(&s, &cfg, true);
    msgl__strbuf_init(&body, 4 << 20);
    assert_int_equal(msgl__strbuf_adds(&body, "{\"input\":[{\"type\":\"item_reference\",\"id\":\""),
                     0);
    for (int i = 0; i < TEXT; i++) assert_int_equal(msgl__strbuf_addc(&body, 'x'), 0);
    assert_int_equal(msgl__strbuf_adds(&body, "\"},{\"role\":\"user\",\"content\":\"hi\"}]}"), 0);
    const int fd = client_open(&s);
    client_post(fd, "/v1/responses", msgl__strbuf_str(&body));
    const msgl_msg m = engine_expect(&s, MSGL_MSG_REQUEST);
    engine_token(&s, m.u.request.uid, ID_IM_END, MSGL_FINISH_STOP);
    response r = client_read(fd);
    close(fd);
    id_of(&r, id);
    response_free(&r);
    msgl__strbuf_free(&body);
    (void)snprintf(line, sizeof line,
                   "GET /v1/responses/%s/input_items HTTP/1.1\r\nHost: x\r\n\r\n", id);
    for (int i = 0; i < ASKERS; i++) {
        fds[i] = client_open(&s);
        client_send(fds[i], line);
    }
    expect_alive(&s);
    for (int i = 0; i < ASKERS; i++) {
        r = client_read(fds[i]);
        refused += r.status == 429;
        if (r.status != 200 && r.status != 429) fail_msg("%d %.200s", r.status, r.body);
        response_free(&r);
        close(fds[i]);
    }
    assert_in_range(refused, 1, ASKERS - 1);
    r = call(&s, 1, "", "GET", id, "");
    expect_status(r, 200);
    server_close(&s);
}

// Where keys are asked for, a response is its key's, wherever the key's owner asks from.
static void test_keys(void **state)
{
    static const char *const keys[] = {"key-one", "key-two"};
    msgl_front_config cfg = msgl__front_config_default();
    server_fixture s;
    char id[64], head[256];
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(msgl__keys_add(&cfg.guard.keys, keys[i], strlen(keys[i]), NULL), 0);
    }
    cfg.stop_timeout_ms = 2000;
    server_open(&s, &cfg, true);
    const int fd = client_open(&s);
    (void)snprintf(head, sizeof head,
                   "POST /v1/responses HTTP/1.1\r\nHost: x\r\nX-Api-Key: %s\r\nContent-Type: "
                   "application/json\r\nContent-Length: 14\r\n\r\n{" HI "}",
                   keys[0]);
    client_send(fd, head);
    const msgl_msg m = engine_expect(&s, MSGL_MSG_REQUEST);
    engine_token(&s, m.u.request.uid, ID_IM_END, MSGL_FINISH_STOP);
    response r = client_read(fd);
    close(fd);
    id_of(&r, id);
    response_free(&r);
    r = call(&s, 1, keys[1], "GET", id, "");
    expect_error(&r, 404, NULL);
    expect_status(call(&s, 2, keys[0], "GET", id, ""), 200);
    r = call(&s, 1, "another", "GET", id, "");
    expect_error(&r, 401, NULL);
    server_close(&s);
    msgl__keys_free(&cfg.guard.keys);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_owners),    cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_no_memory), cmocka_unit_test(test_going_on_without_memory),
        cmocka_unit_test(test_stored),    cmocka_unit_test(test_unread),
        cmocka_unit_test(test_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
