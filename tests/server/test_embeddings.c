// SPDX-License-Identifier: Apache-2.0
//
// /v1/embeddings with a scripted engine that pools: answers to the byte, what is refused, and who
// is refused by which kind of model.
#include <math.h>
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
#include "server/fixture.h"
#include "utils/random.h"

#define PATH "/v1/embeddings"

enum { SIZE = 4, MANY = 3000 };

static void open_pooling(server_fixture *s)
{
    server_open(s, NULL, false);
    s->pooled_size = SIZE;
    engine_say_ready(s);
}

// The next request becomes these values.
static void engine_pool(server_fixture *s, const char *prompt, const float *values, int32_t n)
{
    const msgl_msg m = engine_expect(s, MSGL_MSG_REQUEST);
    const msgl_msg_request *q = &m.u.request;
    if (prompt != NULL) expect_prompt(q, prompt);
    assert_int_equal(q->sampling.logprobs, -1);
    assert_int_equal(q->sampling.prompt_logprobs, -1);
    assert_null(q->extra);
    engine_send_event(s, &(msgl_token_event){.uid = q->uid,
                                             .finish = MSGL_FINISH_STOP,
                                             .prompt_tokens = q->num_ids,
                                             .cached_tokens = 1,
                                             .num_values = n,
                                             .values = values});
}

#define USAGE(prompt, cached)                                                                      \
    "],\"model\":\"test-model\",\"usage\":{\"prompt_tokens\":" #prompt ",\"completion_tokens\":0," \
    "\"total_tokens\":" #prompt ",\"prompt_tokens_details\":{\"cached_tokens\":" #cached "}}}"
#define VECTOR(index, values)                                                                      \
    "{\"object\":\"embedding\",\"index\":" #index ",\"embedding\":" values "}"
#define LIST "{\"object\":\"list\",\"data\":["

static const struct {
    const char *body, *prompts[2], *answer;
} answers[] = {
    {"{\"input\":\"ab\",\"model\":\"test-model\",\"user\":\"u\"}",
     {"ab"},
     LIST VECTOR(0, "[6.00000024e-1,0,-8.00000012e-1,0]") USAGE(2, 1)},
    {"{\"input\":[\"ab\",\"c\"],\"encoding_format\":\"float\"}",
     {"ab", "c"},
     LIST VECTOR(0, "[6.00000024e-1,0,-8.00000012e-1,0]") "," VECTOR(1, "[0,0,0,1]") USAGE(3, 2)},
    {"{\"input\":[97,98],\"dimensions\":1}", {"ab"}, LIST VECTOR(0, "[1]") USAGE(2, 1)},
    {"{\"input\":[[97],[98,99]],\"encoding_format\":\"base64\",\"dimensions\":2}",
     {"a", "bc"},
     LIST VECTOR(0, "\"AACAPwAAAAA=\"") "," VECTOR(1, "\"AAAAAAAAAAA=\"") USAGE(3, 2)},
};

static void test_answers(void **state)
{
    (void)state;
    static const float values[2][SIZE] = {{3, 0, -4, 0}, {0, 0, 0, 2}};
    server_fixture s;
    open_pooling(&s);
    for (size_t i = 0; i < MSGL_COUNT(answers); i++) {
        const int fd = client_open(&s);
        client_post(fd, PATH, answers[i].body);
        for (int k = 0; k < 2 && answers[i].prompts[k] != NULL; k++) {
            engine_pool(&s, answers[i].prompts[k], values[k], SIZE);
        }
        response r = client_read(fd);
        if (r.status != 200 || strcmp(r.body, answers[i].answer) != 0) {
            fail_msg("%s: %d %s", answers[i].body, r.status, r.body);
        }
        response_free(&r);
        close(fd);
    }
    response r = client_request(&s, "GET", "/get_model_info", NULL);
    assert_non_null(strstr(r.body, "\"is_generation\":false"));
    response_free(&r);
    server_close(&s);
}

static uint32_t sextet(char c)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    return (uint32_t)(strchr(letters, c) - letters);
}

// Numbers of all sizes are, as JSON, the floats that base64 has.
static void test_numbers(void **state)
{
    (void)state;
    static float values[MANY];
    static unsigned char bytes[MANY * sizeof(float)];
    uint64_t random = 7;
    for (uint32_t i = 0; i < MANY; i++) {
        const double size = pow(10, -(double)(i % 44));
        values[i] = (float)(size * ((double)msgl__random_unit(&random) - 0.5));
    }
    values[0] = 1;
    server_fixture s;
    open_pooling(&s);
    response r[2];
    for (int i = 0; i < 2; i++) {
        const int fd = client_open(&s);
        client_post(fd, PATH,
                    i == 0 ? "{\"input\":\"a\"}"
                           : "{\"input\":\"a\",\"encoding_format\":\"base64\"}");
        engine_pool(&s, "a", values, MANY);
        r[i] = client_read(fd);
        assert_int_equal(r[i].status, 200);
        close(fd);
    }
    const char *text = strstr(r[1].body, "\"embedding\":\"") + strlen("\"embedding\":\"");
    for (size_t i = 0; i < sizeof bytes; i += 3, text += 4) {
        const uint32_t three =
            sextet(text[0]) << 18 | sextet(text[1]) << 12 | sextet(text[2]) << 6 | sextet(text[3]);
        for (int k = 0; k < 3; k++) bytes[i + (size_t)k] = (unsigned char)(three >> (16 - 8 * k));
    }
    assert_int_equal(*text, '"');
    char *at = strstr(r[0].body, "\"embedding\":[") + strlen("\"embedding\":[");
    for (int i = 0; i < MANY; i++) {
        float want;
        memcpy(&want, bytes + (size_t)i * sizeof want, sizeof want);
        const float got = strtof(at, &at);
        if (got != want) fail_msg("number %d is %.9g, not %.9g", i, (double)got, (double)want);
        assert_int_equal(*at++, i + 1 < MANY ? ',' : ']');
    }
    for (int i = 0; i < 2; i++) response_free(&r[i]);
    server_close(&s);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *body, *code;
    } bad[] = {
        {"{}", "missing_required_parameter"},
        {"{\"input\":\"\"}", "invalid_value"},
        {"{\"input\":[]}", "invalid_value"},
        {"{\"input\":[\"a\",1]}", "invalid_type"},
        {"{\"input\":[259]}", "invalid_value"},
        {"{\"input\":{}}", "invalid_type"},
        {"{\"input\":\"a\",\"dimensions\":0}", "invalid_value"},
        {"{\"input\":\"a\",\"dimensions\":5}", "invalid_value"},
        {"{\"input\":\"a\",\"dimensions\":\"4\"}", "invalid_type"},
        {"{\"input\":\"a\",\"encoding_format\":\"hex\"}", "invalid_value"},
        {"{\"input\":\"a\",\"encoding_format\":1}", "invalid_type"},
        {"{\"input\":\"a\",\"dimension\":4}", "unknown_parameter"},
        {"{\"input\":\"a\",\"truncate_prompt_tokens\":4}", "unsupported_parameter"},
    };
    server_fixture s;
    open_pooling(&s);
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        response r = client_request(&s, "POST", PATH, bad[i].body);
        expect_error(&r, 400, bad[i].code);
    }
    response r = client_request(&s, "POST", "/v1/completions", "{\"prompt\":\"a\"}");
    assert_int_equal(r.status, 400);
    assert_non_null(strstr(r.body, "'/v1/completions' needs a model that answers"));
    response_free(&r);
    engine_expect_nothing(&s);
    server_close(&s);
    server_open(&s, NULL, true);
    r = client_request(&s, "POST", PATH, "{\"input\":\"a\"}");
    assert_int_equal(r.status, 400);
    assert_non_null(strstr(r.body, "--is-embedding"));
    response_free(&r);
    expect_alive(&s);
    server_close(&s);
}

// As long as the context is allowed, as nothing comes behind it.
static void test_longest(void **state)
{
    (void)state;
    static const float values[SIZE] = {1, 0, 0, 0};
    static char body[CONTEXT + 32];
    server_fixture s;
    open_pooling(&s);
    for (int over = 0; over < 2; over++) {
        char *at = body + sprintf(body, "{\"input\":\"");
        memset(at, 'a', CONTEXT + (size_t)over);
        strcpy(at + CONTEXT + over, "\"}");
        const int fd = client_open(&s);
        client_post(fd, PATH, body);
        if (over == 0) engine_pool(&s, NULL, values, SIZE);
        response r = client_read(fd);
        if (over == 0) {
            expect_status(r, 200);
        } else {
            expect_error(&r, 400, "context_length_exceeded");
        }
        close(fd);
    }
    server_close(&s);
}

// A vector that is not there is no answer.
static void test_aborted(void **state)
{
    (void)state;
    server_fixture s;
    open_pooling(&s);
    const int fd = client_open(&s);
    client_post(fd, PATH, "{\"input\":[\"a\",\"b\"]}");
    (void)engine_expect(&s, MSGL_MSG_REQUEST);
    (void)engine_expect(&s, MSGL_MSG_REQUEST);
    response r = client_request(&s, "POST", "/abort_request", "{\"abort_all\":true}");
    assert_string_equal(r.body, "{\"aborted\":1}");
    response_free(&r);
    (void)engine_expect(&s, MSGL_MSG_ABORT);
    (void)engine_expect(&s, MSGL_MSG_ABORT);
    r = client_read(fd);
    expect_error(&r, 400, "aborted");
    close(fd);
    server_close(&s);
}

// Every prompt of a client that leaves is ended.
static void test_left(void **state)
{
    (void)state;
    server_fixture s;
    open_pooling(&s);
    const int fd = client_open(&s);
    client_post(fd, PATH, "{\"input\":[\"a\",\"b\"]}");
    uint64_t uids[2];
    for (int i = 0; i < 2; i++) uids[i] = engine_expect(&s, MSGL_MSG_REQUEST).u.request.uid;
    close(fd);
    for (int i = 0; i < 2; i++) {
        const uint64_t uid = engine_expect(&s, MSGL_MSG_ABORT).u.abort_uid;
        assert_true(uid == uids[0] || uid == uids[1]);
    }
    server_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers), cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_longest),
        cmocka_unit_test(test_aborted), cmocka_unit_test(test_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
