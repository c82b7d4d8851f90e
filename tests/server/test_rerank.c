// SPDX-License-Identifier: Apache-2.0
//
// /v1/rerank and /v1/score with a scripted engine: answers to the byte, and what is refused.
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
#include "core/req_extra.h"
#include "server/fixture.h"

#define RERANK "/v1/rerank"
#define SCORE "/v1/score"

enum { SIZE = 2, MOST = 4 };

static void open_pooling(server_fixture *s)
{
    server_open(s, NULL, false);
    s->pooled_size = SIZE;
    engine_say_ready(s);
}

// The vector of a prompt: by its first letter.
static const float *values_of(int32_t letter)
{
    static const float values[][SIZE] = {{2, 0}, {3, 4}, {0, 1}, {-5, 0}, {0, 0}};
    return values[letter - 'a'];
}

static void engine_pool(server_fixture *s, const char *prompt)
{
    const msgl_msg m = engine_expect(s, MSGL_MSG_REQUEST);
    const msgl_msg_request *q = &m.u.request;
    expect_prompt(q, prompt);
    assert_null(q->extra);
    engine_send_event(s, &(msgl_token_event){.uid = q->uid,
                                             .finish = MSGL_FINISH_STOP,
                                             .prompt_tokens = q->num_ids,
                                             .cached_tokens = 1,
                                             .num_values = SIZE,
                                             .values = values_of(q->ids[0])});
}

#define USAGE(prompt, cached)                                                                      \
    "],\"usage\":{\"prompt_tokens\":" #prompt ",\"completion_tokens\":0,\"total_tokens\":" #prompt \
    ",\"prompt_tokens_details\":{\"cached_tokens\":" #cached "}}}"
#define RESULT(index, value) "{\"index\":" #index ",\"relevance_score\":" value "}"
#define TEXT(index, value, text)                                                                   \
    "{\"index\":" #index ",\"relevance_score\":" value ",\"document\":{\"text\":\"" text "\"}}"
#define PAIR(index, value) "{\"index\":" #index ",\"object\":\"score\",\"score\":" value "}"

static const struct {
    const char *path, *body, *prompts[MOST + 1], *answer;
} answers[] = {
    {RERANK,
     "{\"query\":\"aq\",\"documents\":[\"c\",\"d\",{\"text\":\"bx\"},\"c\"],\"user\":\"u\"}",
     {"c", "d", "bx", "c", "aq"},
     RESULT(2, "0.6") "," RESULT(0, "0") "," RESULT(3, "0") "," RESULT(1, "-1") USAGE(7, 5)},
    {"/rerank",
     "{\"query\":\"a\",\"documents\":[\"c\",{\"text\":\"b\\n\",\"id\":7}],\"top_n\":1,"
     "\"return_documents\":true,\"model\":\"test-model\"}",
     {"c", "b\n", "a"},
     TEXT(1, "0.6", "b\\n") USAGE(4, 3)},
    {"/v2/rerank",
     "{\"query\":\"b\",\"documents\":[\"e\",\"b\"],\"top_n\":9}", // "e": a vector of no length
     {"e", "b", "b"},
     RESULT(1, "1") "," RESULT(0, "0") USAGE(3, 3)},
    {SCORE, "{\"text_1\":\"a\",\"text_2\":\"b\"}", {"b", "a"}, PAIR(0, "0.6") USAGE(2, 2)},
    {"/score",
     "{\"text_1\":[\"b\"],\"text_2\":[\"a\",\"c\"]}",
     {"a", "c", "b"},
     PAIR(0, "0.6") "," PAIR(1, "0.8") USAGE(3, 3)},
    {SCORE,
     "{\"text_1\":[\"b\",\"d\"],\"text_2\":[\"c\",\"a\"]}",
     {"c", "a", "b", "d"},
     PAIR(0, "0.8") "," PAIR(1, "-1") USAGE(4, 4)},
};

static void test_answers(void **state)
{
    (void)state;
    server_fixture s;
    open_pooling(&s);
    for (size_t i = 0; i < MSGL_COUNT(answers); i++) {
        const int fd = client_open(&s);
        client_post(fd, answers[i].path, answers[i].body);
        for (int k = 0; k <= MOST && answers[i].prompts[k] != NULL; k++) {
            engine_pool(&s, answers[i].prompts[k]);
        }
        response r = client_read(fd);
        const bool scores = strstr(answers[i].path, "score") != NULL;
        const char *list = r.body == NULL ? NULL : strstr(r.body, scores ? "data\":[" : "ults\":[");
        if (r.status != 200 || strcmp(list + 7, answers[i].answer) != 0) {
            fail_msg("%s: %d %s", answers[i].body, r.status, r.body);
        }
        assert_non_null(strstr(r.body, "\"object\":\"list\""));
        assert_non_null(strstr(r.body, "\"model\":\"test-model\""));
        assert_int_equal(
            strncmp(r.body, scores ? "{\"id\":\"score-" : "{\"id\":\"rerank-", scores ? 13 : 14),
            0);
        response_free(&r);
        close(fd);
    }
    server_close(&s);
}

static const struct {
    const char *path, *body, *code, *text;
} bad[] = {
    {RERANK, "{\"documents\":[\"a\"]}", "missing_required_parameter", "'query'"},
    {RERANK, "{\"query\":\"a\"}", "missing_required_parameter", "'documents'"},
    {RERANK, "{\"query\":\"\",\"documents\":[\"a\"]}", "invalid_value", "'query' is empty"},
    {RERANK, "{\"query\":[\"a\"],\"documents\":[\"a\"]}", "invalid_type", "'query'"},
    {RERANK, "{\"query\":\"a\",\"documents\":[]}", "invalid_value", "allowed: 1 to 1023"},
    {RERANK, "{\"query\":\"a\",\"documents\":\"a\"}", "invalid_type", "'documents'"},
    {RERANK, "{\"query\":\"a\",\"documents\":[\"a\",\"\"]}", "invalid_value",
     "'documents[1]' is empty"},
    {RERANK, "{\"query\":\"a\",\"documents\":[7]}", "invalid_type", "'documents[0]'"},
    {RERANK, "{\"query\":\"a\",\"documents\":[{\"title\":\"a\"}]}", "invalid_type",
     "an object whose 'text' is one"},
    {RERANK, "{\"query\":\"a\",\"documents\":[\"a\"],\"top_n\":0}", "invalid_value", "'top_n'"},
    {RERANK, "{\"query\":\"a\",\"documents\":[\"a\"],\"top_m\":1}", "unknown_parameter", "'top_n'"},
    {RERANK, "{\"query\":\"a\",\"documents\":[\"a\"],\"max_tokens_per_doc\":9}",
     "unsupported_parameter", "'max_tokens_per_doc'"},
    {RERANK, "{\"query\":\"a\",\"documents\":[\"a\"],\"instruct\":\"b\"}", "unsupported_parameter",
     "write it in front of the query"},
    {SCORE, "{\"text_1\":\"a\"}", "missing_required_parameter", "'text_2'"},
    {SCORE, "{\"text_1\":[\"a\",\"b\"],\"text_2\":[\"a\",\"b\",\"c\"]}", "invalid_value",
     "'text_1' has 2 texts and 'text_2' has 3"},
    {SCORE, "{\"text_1\":[\"a\",7],\"text_2\":[\"a\",\"b\"]}", "invalid_type", "'text_1[1]'"},
    {SCORE, "{\"text_1\":{\"text\":\"a\"},\"text_2\":\"a\"}", "invalid_type", "'text_1'"},
};

static void test_refused(void **state)
{
    (void)state;
    server_fixture s;
    open_pooling(&s);
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        response r = client_request(&s, "POST", bad[i].path, bad[i].body);
        if (strstr(r.body, bad[i].text) == NULL) fail_msg("%s: %s", bad[i].body, r.body);
        expect_error(&r, 400, bad[i].code);
    }
    engine_expect_nothing(&s);
    server_close(&s);
    server_open(&s, NULL, true);
    response r = client_request(&s, "POST", RERANK, answers[0].body);
    assert_int_equal(r.status, 400);
    assert_non_null(strstr(r.body, "'/v1/rerank' needs a model that makes embeddings"));
    response_free(&r);
    expect_alive(&s);
    server_close(&s);
}

// Too many texts, and one that is too long.
static void test_limits(void **state)
{
    (void)state;
    enum { N = 513 };
    static char body[N * 16 + 64], longer[CONTEXT + 128];
    char *at = body + sprintf(body, "{\"text_1\":[\"a\"");
    for (int i = 1; i < N; i++) at += sprintf(at, ",\"a\"");
    at += sprintf(at, "],\"text_2\":[\"a\"");
    for (int i = 1; i < N; i++) at += sprintf(at, ",\"a\"");
    strcpy(at, "]}");
    server_fixture s;
    open_pooling(&s);
    response r = client_request(&s, "POST", SCORE, body);
    assert_non_null(strstr(r.body, "have 1026 texts; allowed: at most 1024"));
    expect_error(&r, 400, "invalid_value");
    at = longer + sprintf(longer, "{\"query\":\"a\",\"documents\":[\"a\",\"");
    memset(at, 'a', CONTEXT + 1);
    strcpy(at + CONTEXT + 1, "\"]}");
    r = client_request(&s, "POST", RERANK, longer);
    assert_non_null(strstr(r.body, "\"param\":\"documents[1]\""));
    expect_error(&r, 400, "context_length_exceeded");
    engine_expect_nothing(&s);
    server_close(&s);
}

static void test_aborted(void **state)
{
    (void)state;
    server_fixture s;
    open_pooling(&s);
    const int fd = client_open(&s);
    client_post(fd, RERANK, "{\"query\":\"a\",\"documents\":[\"b\"],\"return_documents\":true}");
    for (int i = 0; i < 2; i++) (void)engine_expect(&s, MSGL_MSG_REQUEST);
    response r = client_request(&s, "POST", "/abort_request", "{\"abort_all\":true}");
    assert_string_equal(r.body, "{\"aborted\":1}");
    response_free(&r);
    for (int i = 0; i < 2; i++) (void)engine_expect(&s, MSGL_MSG_ABORT);
    r = client_read(fd);
    expect_error(&r, 400, "aborted");
    close(fd);
    server_close(&s);
}

#define QWEN(instruct, query, document)                                                            \
    "{system\nJudge whether the Document meets the requirements based on the Query and the "       \
    "Instruct "                                                                                    \
    "provided. Note that the answer can only be \"yes\" or \"no\".}\n{user\n<Instruct>: " instruct \
    "\n<Query>: " query "\n<Document>: " document "}\n{assistant\n<think>\n\n</think>\n\n"
#define USUAL "Given a web search query, retrieve relevant passages that answer the query"

// A reranker's prompt is a query and a document; its values are the logits of yes and no.
static void test_pairs(void **state)
{
    (void)state;
    static const struct {
        const char *path, *body, *prompts[2], *list;
    } pairs[] = {
        {RERANK,
         "{\"query\":\"a\",\"documents\":[\"x\",\"y\"],\"return_documents\":true}",
         {QWEN(USUAL, "a", "x"), QWEN(USUAL, "a", "y")},
         "ults\":[" TEXT(1, "0.880797078", "y") "," TEXT(0, "0.119202922", "x") "],"},
        {SCORE,
         "{\"text_1\":[\"a\",\"b\"],\"text_2\":[\"x\",\"y\"],\"instruct\":\"Is it so?\"}",
         {QWEN("Is it so?", "a", "x"), QWEN("Is it so?", "b", "y")},
         "data\":[" PAIR(0, "0.119202922") "," PAIR(1, "0.880797078") "],"},
    };
    static const float values[2][SIZE] = {{-1, 1}, {3, 1}};
    server_fixture s;
    server_open(&s, NULL, false);
    s.pooled_size = SIZE;
    s.reranks = true;
    engine_say_ready(&s);
    for (size_t i = 0; i < MSGL_COUNT(pairs); i++) {
        const int fd = client_open(&s);
        client_post(fd, pairs[i].path, pairs[i].body);
        for (int k = 0; k < 2; k++) {
            const msgl_msg m = engine_expect(&s, MSGL_MSG_REQUEST);
            expect_prompt(&m.u.request, pairs[i].prompts[k]);
            engine_send_event(&s, &(msgl_token_event){.uid = m.u.request.uid,
                                                      .finish = MSGL_FINISH_STOP,
                                                      .prompt_tokens = m.u.request.num_ids,
                                                      .num_values = SIZE,
                                                      .values = values[k]});
        }
        response r = client_read(fd);
        if (r.status != 200 || strstr(r.body, pairs[i].list) == NULL) {
            fail_msg("%s: %d %s", pairs[i].body, r.status, r.body);
        }
        response_free(&r);
        close(fd);
    }
    response r = client_request(&s, "POST", "/v1/embeddings", "{\"input\":\"a\"}");
    assert_non_null(strstr(r.body, "this server ranks documents, at /v1/rerank"));
    response_free(&r);
    r = client_request(&s, "POST", "/v1/completions", "{\"prompt\":\"a\"}");
    assert_non_null(strstr(r.body, "this server ranks documents, at /v1/rerank"));
    response_free(&r);
    server_close(&s);
}

// SGLang's form: of an engine that answers one token is asked for, and the labels' values that come
// beside its row of log-probabilities are the scores, in the order of the request.
static void test_tokens(void **state)
{
    (void)state;
    static const struct {
        const char *body, *prompts[2], *list;
    } scores[] = {
        {"{\"query\":\"ab\",\"items\":[\"x\",\"yz\"],\"label_token_ids\":[7,5]}",
         {"abx", "abyz"},
         "scores\":[[0.367879441,0.135335283],[0.135335283,0.367879441]" USAGE(7, 2)},
        {"{\"query\":\"ab\",\"items\":[\"x\",\"yz\"],\"label_token_ids\":[7,5],"
         "\"item_first\":true,\"apply_softmax\":true}",
         {"xab", "yzab"},
         "scores\":[[0.731058579,0.268941421],[0.268941421,0.731058579]" USAGE(7, 2)},
        {"{\"query\":[97],\"items\":[[98],[99,100]],\"label_token_ids\":[7,5]}",
         {"ab", "acd"},
         "scores\":[[0.367879441,0.135335283],[0.135335283,0.367879441]" USAGE(5, 2)},
    };
    static const float values[2][SIZE] = {{-1, -2}, {-2, -1}};
    server_fixture s;
    server_open(&s, NULL, true);
    for (size_t i = 0; i < MSGL_COUNT(scores); i++) {
        const int fd = client_open(&s);
        client_post(fd, SCORE, scores[i].body);
        for (int k = 0; k < 2; k++) {
            const msgl_msg m = engine_expect(&s, MSGL_MSG_REQUEST);
            const msgl_msg_request *q = &m.u.request;
            expect_prompt(q, scores[i].prompts[k]);
            assert_int_equal(q->sampling.logprobs, 0);
            assert_int_equal(q->sampling.prompt_logprobs, -1);
            assert_int_equal(q->sampling.max_tokens, 1);
            assert_true(q->extra != NULL && q->extra->num_listed == 2 && !q->extra->hidden);
            assert_true(q->extra->listed[0] == 7 && q->extra->listed[1] == 5);
            const msgl_token_logprobs row = {.position = q->num_ids, .token = 'n', .logprob = -3};
            engine_send_event(&s, &(msgl_token_event){.uid = q->uid,
                                                      .tokens = &row.token,
                                                      .num_tokens = 1,
                                                      .finish = MSGL_FINISH_LENGTH,
                                                      .prompt_tokens = q->num_ids,
                                                      .cached_tokens = 1,
                                                      .num_logprobs = 1,
                                                      .logprobs = &row,
                                                      .num_values = SIZE,
                                                      .values = values[k]});
        }
        response r = client_read(fd);
        if (r.status != 200 || strstr(r.body, scores[i].list) == NULL) {
            fail_msg("%s: %d %s", scores[i].body, r.status, r.body);
        }
        assert_non_null(strstr(r.body, "\"object\":\"scoring\""));
        response_free(&r);
        close(fd);
    }
    response r = client_request(&s, "POST", SCORE, "{\"text_1\":\"a\",\"text_2\":\"b\"}");
    assert_non_null(strstr(r.body, "it scores by 'label_token_ids'"));
    expect_error(&r, 400, "missing_required_parameter");
    engine_expect_nothing(&s);
    server_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_limits),  cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_aborted), cmocka_unit_test(test_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
