// SPDX-License-Identifier: Apache-2.0
//
// llama-server's /completion, /infill, /props and /slots with a scripted engine: answers and events
// to the byte, prompts of a gap by a tokenizer that has the tokens of one, what is refused.
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
#include "api/job.h"
#include "api/llama_server/endpoints.h"
#include "server/fixture.h"

// Sends {fields}; *m is what the engine gets.
static int send_request(server_fixture *s, const char *fields, msgl_msg *m)
{
    char body[2048];
    const int fd = client_open(s);
    (void)snprintf(body, sizeof body, "{%s}", fields);
    client_post(fd, "/completion", body);
    *m = engine_expect(s, MSGL_MSG_REQUEST);
    return fd;
}

// What was measured is replaced by 0: numbers behind _ms": and _per_second":, and the seed's.
static void hide(char *body)
{
    static const char *const names[] = {"_ms\":", "_second\":", "\"seed\":"};
    char *to = body;
    for (const char *at = body; *at != '\0';) {
        bool number = false;
        for (size_t i = 0; i < MSGL_COUNT(names); i++) {
            const size_t n = strlen(names[i]);
            number |= (size_t)(to - body) >= n && memcmp(to - n, names[i], n) == 0;
        }
        size_t n = 0;
        while (number && (isdigit((unsigned char)at[n]) || at[n] == '.' || at[n] == '-')) n++;
        if (n > 0) *to++ = '0';
        at += n;
        if (n == 0) *to++ = *at++;
    }
    *to = '\0';
}

#define SETTINGS(n, stop)                                                                          \
    ",\"model\":\"test-model\",\"generation_settings\":{\"n_predict\":" n ",\"max_tokens\":" n     \
    ",\"seed\":0,\"temperature\":1,\"top_k\":0,\"top_p\":1,\"min_p\":0,\"repeat_penalty\":1,"      \
    "\"presence_penalty\":0,\"frequency_penalty\":0,\"ignore_eos\":false,\"n_probs\":0},"          \
    "\"prompt\":\"hi\",\"truncated\":false,\"stop_type\":" stop ",\"tokens_cached\":2"
#define TIMINGS(n)                                                                                 \
    ",\"timings\":{\"cache_n\":2,\"prompt_n\":0,\"prompt_ms\":0,\"prompt_per_token_ms\":0,"        \
    "\"prompt_per_second\":0,\"predicted_n\":" n ",\"predicted_ms\":0,\"predicted_per_token_ms\""  \
    ":0,\"predicted_per_second\":0}"
#define PIECE(text, ids, stop, n)                                                                  \
    "{\"index\":0,\"content\":\"" text "\",\"tokens\":[" ids "],\"id_slot\":-1,\"stop\":" stop     \
    ",\"tokens_predicted\":" n ",\"tokens_evaluated\":2"

static void test_answers(void **state)
{
    static const struct {
        const char *fields, *text;
        int32_t last;
        msgl_finish finish;
        const char *want;
    } cases[] = {
        {"\"prompt\":\"hi\"", "ab", ID_EOS, MSGL_FINISH_STOP,
         PIECE("ab", "", "true", "3") SETTINGS("-1", "\"eos\",\"stopping_word\":\"\"")
             TIMINGS("3") "}"},
        {"\"prompt\":[104,105],\"n_predict\":3,\"return_tokens\":true,\"cache_prompt\":true,"
         "\"id_slot\":0,\"seed\":-1,\"grammar\":\"\",\"mirostat\":0,\"typical_p\":1.0,"
         "\"samplers\":[\"top_k\"],\"dry_multiplier\":0.0,\"repeat_last_n\":64",
         "ab", 'c', MSGL_FINISH_LENGTH,
         PIECE("abc", "97,98,99", "true", "3") SETTINGS("3", "\"limit\",\"stopping_word\":\"\"")
             TIMINGS("3") "}"},
        {"\"prompt\":\"hi\",\"stream\":true", "a", ID_EOS, MSGL_FINISH_STOP,
         "data: " PIECE("a", "97", "false", "1") "}\n\ndata: " PIECE("", "258", "true", "2")
             SETTINGS("-1", "\"eos\",\"stopping_word\":\"\"") TIMINGS("2") "}\n\n"},
        // Last, as the engine hears that the answer is over.
        {"\"prompt\":\"hi\",\"stop\":[\"x\",\"b\"]", "ab", 'c', MSGL_FINISH_LENGTH,
         PIECE("a", "", "true", "2") SETTINGS("-1", "\"word\",\"stopping_word\":\"b\"")
             TIMINGS("2") "}"},
    };
    server_fixture s;
    (void)state;
    server_open(&s, NULL, true);
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        msgl_msg m;
        const int fd = send_request(&s, cases[i].fields, &m);
        engine_text(&s, m.u.request.uid, cases[i].text);
        engine_token(&s, m.u.request.uid, cases[i].last, cases[i].finish);
        response r = client_read(fd);
        hide(r.body);
        if (r.status != 200 || strcmp(r.body, cases[i].want) != 0) {
            fail_msg("%zu: %d\n%s\nnot\n%s", i, r.status, r.body, cases[i].want);
        }
        response_free(&r);
    }
    server_close(&s);
}

// n_probs: each token's with ids; several prompts: an array.
static void test_more(void **state)
{
    server_fixture s;
    msgl_msg m;
    (void)state;
    server_open(&s, NULL, true);
    int fd = send_request(&s, "\"prompt\":\"hi\",\"n_probs\":1,\"n_predict\":0,\"seed\":-5", &m);
    assert_int_equal(m.u.request.sampling.logprobs, 1);
    assert_int_equal(m.u.request.sampling.max_tokens, 1);
    engine_token(&s, m.u.request.uid, 'x', MSGL_FINISH_LENGTH);
    response r = client_read(fd);
    assert_non_null(strstr(r.body, "\"content\":\"\""));
    assert_non_null(strstr(r.body, "\"seed\":-5,")); // as it can be sent again
    response_free(&r);
    fd = send_request(&s, "\"prompt\":\"hi\",\"n_probs\":1", &m);
    const int32_t ids[] = {'x'};
    const msgl_token_logprobs row = {.position = 2,
                                     .token = 'x',
                                     .logprob = -1,
                                     .num_top = 1,
                                     .top_ids = {'y'},
                                     .top_logprobs = {-0.5F}};
    const msgl_token_event e = {.uid = m.u.request.uid,
                                .tokens = ids,
                                .num_tokens = 1,
                                .finish = MSGL_FINISH_LENGTH,
                                .prompt_tokens = 2,
                                .num_logprobs = 1,
                                .logprobs = &row};
    engine_send_event(&s, &e);
    r = client_read(fd);
    assert_non_null(strstr(r.body,
                           "\"completion_probabilities\":[{\"id\":120,\"token\":\"x\",\"logprob\":"
                           "-1,\"bytes\":[120],\"top_logprobs\":[{\"id\":121,\"token\":\"y\","
                           "\"logprob\":-0.5,\"bytes\":[121]}]}]"));
    response_free(&r);
    // Drafts: n_max has a meaning here, the other fields have none.
    static const struct {
        const char *fields;
        int32_t most;
    } drafts[] = {
        {"\"speculative.n_max\":3,\"speculative.n_min\":1,\"speculative.p_min\":0.75", 3},
        {"\"speculative.n_max\":0", 0},
        {"\"speculative.n_max\":1000", MSGL_MAX_DRAFTS},
        {"\"speculative.n_max\":2,\"speculative\":false", 2},
        {"\"speculative.n_min\":5", -1},
    };
    for (size_t i = 0; i < MSGL_COUNT(drafts); i++) {
        char fields[160];
        (void)snprintf(fields, sizeof fields, "\"prompt\":\"hi\",%s", drafts[i].fields);
        fd = send_request(&s, fields, &m);
        assert_int_equal(m.u.request.sampling.speculative, drafts[i].most);
        engine_token(&s, m.u.request.uid, ID_EOS, MSGL_FINISH_STOP);
        r = client_read(fd);
        response_free(&r);
    }
    fd = send_request(&s, "\"prompt\":[\"a\",\"b\"]", &m);
    engine_token(&s, m.u.request.uid, ID_EOS, MSGL_FINISH_STOP);
    m = engine_expect(&s, MSGL_MSG_REQUEST);
    engine_token(&s, m.u.request.uid, ID_EOS, MSGL_FINISH_STOP);
    r = client_read(fd);
    json_t *o = json_loads(r.body, 0, NULL);
    if (json_array_size(o) != 2) fail_msg("%s", r.body);
    json_decref(o);
    response_free(&r);
    server_close(&s);
}

static void test_refused(void **state)
{
    static const struct {
        const char *path, *body;
        int status;
        const char *says;
    } cases[] = {
        {"/completion", "{}", 400, "'prompt'"},
        {"/completion", "{\"prompt\":{\"prompt_string\":\"x\"}}", 400, "'prompt'"},
        {"/completion", "{\"prompt\":\"x\",\"n_predict\":-3}", 400, "'n_predict'"},
        {"/completion", "{\"prompt\":\"x\",\"mirostat\":1}", 400, "'mirostat'"},
        {"/completion", "{\"prompt\":\"x\",\"dry_multiplier\":-0.8}", 400, "'dry_multiplier'"},
        {"/completion", "{\"prompt\":\"x\",\"response_fields\":[\"content\"]}", 400,
         "'response_fields'"},
        {"/completion", "{\"prompt\":\"x\",\"n_predct\":3}", 400, "'n_predict'"},
        {"/completion", "{\"prompt\":\"x\",\"speculative.n_max\":-1}", 400, "'speculative.n_max'"},
        {"/completion", "{\"prompt\":\"x\",\"model\":\"other\"}", 404, "'other'"},
        {"/infill", "{\"input_prefix\":7}", 400, "'input_prefix'"},
        {"/infill", "{\"input_extra\":{}}", 400, "'input_extra'"},
        {"/infill", "{\"input_extra\":[{\"text\":\"x\"}]}", 400, "'input_extra[0]'"},
        {"/infill", "{\"input_prefix\":\"a\",\"input_suffix\":\"b\"}", 501,
         "<|fim_prefix|>, <|fim_suffix|> and <|fim_middle|>"},
    };
    server_fixture s;
    (void)state;
    server_open(&s, NULL, true);
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        response r = client_request(&s, "POST", cases[i].path, cases[i].body);
        json_t *o = json_loads(r.body, 0, NULL);
        const json_t *e = json_object_get(o, "error");
        const char *text = json_string_value(json_object_get(e, "message"));
        if (r.status != cases[i].status || text == NULL || strstr(text, cases[i].says) == NULL ||
            json_integer_value(json_object_get(e, "code")) != r.status) {
            fail_msg("%zu: %d %s", i, r.status, r.body);
        }
        json_decref(o);
        response_free(&r);
    }
    engine_expect_nothing(&s);
    server_close(&s);
}

// --- prompts of a gap ---

enum { PRE = VOCAB, SUF, MID, REPO, FILE_SEP };

// The fixture's tokenizer with Qwen's five tokens behind its own.
static msgl_tokenizer *fill_tokenizer(void)
{
    static const char *const tokens[] = {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>",
                                         "<|repo_name|>", "<|file_sep|>"};
    char dir[] = "/tmp/msgl-test-XXXXXX", path[64];
    msgl_tokenizer *t = NULL;
    msgl_err err = {0};
    text_write_dir(dir);
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    json_t *o = json_load_file(path, 0, NULL);
    assert_non_null(o);
    for (size_t i = 0; i < MSGL_COUNT(tokens); i++) {
        json_t *token =
            json_pack("{s:i,s:s,s:b,s:b,s:b,s:b,s:b}", "id", (int)(VOCAB + i), "content", tokens[i],
                      "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 0);
        assert_int_equal(json_array_append_new(json_object_get(o, "added_tokens"), token), 0);
    }
    assert_int_equal(json_dump_file(o, path, 0), 0);
    json_decref(o);
    if (msgl__tokenizer_load(dir, &t, &err) != 0) fail_msg("%s", err.text);
    text_remove_dir(dir);
    return t;
}

static void test_infill(void **state)
{
    static const struct {
        const char *body;
        int32_t want[80]; // a 0 behind them
    } cases[] = {
        {"{\"input_prefix\":\"a\",\"input_suffix\":\"b\"}", {PRE, 'a', SUF, 'b', MID}},
        {"{\"input_prefix\":\"a\",\"input_suffix\":\"b\",\"prompt\":\"c\"}",
         {PRE, 'a', SUF, 'b', MID, 'c'}},
        {"{\"input_suffix\":\"b\"}", {PRE, SUF, 'b', MID}},
        {"{}", {PRE, SUF, MID}},
        // What the client writes is text, whatever it spells.
        {"{\"input_prefix\":\"<|fim_middle|>\"}",
         {PRE, '<', '|', 'f', 'i', 'm', '_', 'm', 'i', 'd', 'd', 'l', 'e', '|', '>', SUF, MID}},
        {"{\"input_prefix\":\"a\",\"input_extra\":[{\"filename\":\"f\",\"text\":\"t\"}]}",
         {REPO, 'r', 'e',  'p',      'o', 's', 'i', 't', 'o',  'r', 'y', '\n', FILE_SEP, 'f',
          '\n', 't', '\n', FILE_SEP, 'f', 'i', 'l', 'e', '\n', PRE, 'a', SUF,  MID}},
    };
    msgl_tokenizer *t = fill_tokenizer();
    (void)state;
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        // Also without memory, from each allocation on: an error that is the server's.
        bool done = false;
        for (uint64_t nth = 0; !done; nth++) {
            msgl_job *j = msgl__calloc(1, sizeof *j);
            assert_non_null(j);
            j->ep = &msgl__endpoint_llama_infill;
            j->config = (msgl_api_config){
                .model_name = "m", .model_path = "/m", .vocab_size = FILE_SEP + 1};
            j->max_seq_len = CONTEXT;
            msgl__strbuf_init(&j->body, 1000);
            assert_int_equal(msgl__strbuf_adds(&j->body, cases[i].body), 0);
            if (nth > 0) msgl__mem_fail_from(nth);
            msgl__job_run(j, t, NULL);
            msgl__mem_fail_from(0);
            done = nth > 0 && j->rc == 0;
            if (j->rc != 0) {
                if (nth == 0) fail_msg("%zu: %s", i, j->error.message);
                assert_int_equal(j->error.status, 500);
            } else {
                size_t n = 0;
                while (cases[i].want[n] != 0) n++;
                assert_int_equal(j->ids[0].len, n);
                assert_memory_equal(j->ids[0].data, cases[i].want, n * sizeof(int32_t));
            }
            msgl__job_free(j);
        }
    }
    msgl__tokenizer_free(t);
}

static void test_server(void **state)
{
    server_fixture s;
    (void)state;
    server_open(&s, NULL, true);
    response r = client_request(&s, "GET", "/props", NULL);
    json_t *o = json_loads(r.body, 0, NULL);
    const json_t *settings = json_object_get(o, "default_generation_settings");
    assert_int_equal(json_integer_value(json_object_get(settings, "n_ctx")), CONTEXT);
    assert_int_equal(json_integer_value(json_object_get(o, "total_slots")), 256);
    assert_non_null(strstr(json_string_value(json_object_get(o, "chat_template")), "messages"));
    assert_string_equal(json_string_value(json_object_get(o, "model_path")), "test-model");
    json_decref(o);
    response_free(&r);
    const int fd = client_open(&s);
    client_send(fd, "GET /slots HTTP/1.1\r\nHost: x\r\n\r\n");
    (void)engine_expect(&s, MSGL_MSG_GET_STATS);
    msgl_msg stats = {.type = MSGL_MSG_STATS};
    stats.u.stats.running = 3;
    assert_int_equal(msgl__channel_send(s.engine, &stats), 0);
    r = client_read(fd);
    o = json_loads(r.body, 0, NULL);
    int busy = 0;
    for (size_t i = 0; i < json_array_size(o); i++) {
        busy += json_is_true(json_object_get(json_array_get(o, i), "is_processing"));
    }
    assert_int_equal(json_array_size(o), 256);
    assert_int_equal(busy, 3);
    json_decref(o);
    response_free(&r);
    server_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers), cmocka_unit_test(test_more),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_infill),
        cmocka_unit_test(test_server),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
