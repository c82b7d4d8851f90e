// SPDX-License-Identifier: Apache-2.0
//
// From token events to shown text: against a naive oracle for stop strings over random texts, in
// every way of cutting them into tokens that bytes allow, one or several tokens an event;
// log-probabilities stay in step; SSE framing reads back as what was written.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/mem.h"
#include "http/client.h"
#include "server/fixture.h"
#include "api/reply.h"
#include "utils/random.h"
#include "api/openai/endpoints.h"

static const msgl_ids prompt = {.data = (int32_t[]){1, 2, 3}, .len = 3, .cap = 3};

// One event with the answer's tokens from `index` on.
static void feed_all(msgl_sequence *s, int index, const int32_t *tokens, int n, msgl_finish finish)
{
    msgl_token_logprobs rows[8];
    assert_true(n <= 8);
    for (int i = 0; i < n; i++) {
        rows[i] =
            (msgl_token_logprobs){.position = 3 + index + i, .token = tokens[i], .logprob = -1};
    }
    const msgl_token_event e = {.uid = 1,
                                .tokens = tokens,
                                .num_tokens = n,
                                .finish = finish,
                                .num_logprobs = s->want_logprobs ? n : 0,
                                .logprobs = rows};
    assert_int_equal(msgl__sequence_event(s, &e), 0);
}

static void feed(msgl_sequence *s, int index, int32_t token, msgl_finish finish)
{
    feed_all(s, index, &token, 1, finish);
}

// Where the text is cut: the first moment at which a stop string is complete, and then before the
// earliest of those complete that do not begin before `from`. len when there is none. *taken: how
// much of the text that needs.
static size_t oracle_cut(const char *text, size_t len, const char *const *stops, int count,
                         size_t from, size_t *taken)
{
    *taken = len;
    for (size_t k = 1; k <= len; k++) {
        size_t cut = len + 1;
        for (int i = 0; i < count; i++) {
            const size_t n = strlen(stops[i]);
            if (n + from <= k && memcmp(text + k - n, stops[i], n) == 0 && k - n < cut) cut = k - n;
        }
        if (cut <= len) {
            *taken = k;
            return cut;
        }
    }
    return len;
}

static void test_stop_strings(void **state)
{
    (void)state;
    text_fixture t;
    text_open(&t);
    uint64_t seed = 12345;
    int cuts = 0;
    for (int round = 0; round < 3000; round++) {
        char text[40], stop_text[4][6];
        const size_t len = msgl__random_below(&seed, 39);
        for (size_t i = 0; i < len; i++) text[i] = (char)('a' + msgl__random_below(&seed, 3));
        msgl_gen_request req = {.ep = &msgl__endpoint_chat, .skip_special = true, .n = 1};
        req.sampling.logprobs = round % 2 ? 0 : -1;
        req.num_stops = (int)msgl__random_below(&seed, 4);
        for (int i = 0; i < req.num_stops; i++) {
            const size_t n = 1 + msgl__random_below(&seed, 5);
            for (size_t k = 0; k < n; k++)
                stop_text[i][k] = (char)('a' + msgl__random_below(&seed, 3));
            stop_text[i][n] = '\0';
            req.stops[i] = stop_text[i];
        }
        size_t taken;
        const int least = round % 4 == 1 ? (int)msgl__random_below(&seed, 20) : 0; // tokens, bytes
        req.sampling.min_tokens = least;
        const size_t before = oracle_cut(text, len, (const char *const *)req.stops, req.num_stops,
                                         (size_t)least, &taken);
        req.keep_stop = round % 7 == 3;
        const size_t cut = req.keep_stop ? taken : before; // one byte a token: it ends there
        msgl_sequence s;
        assert_int_equal(msgl__sequence_init(&s, &req, 0, &prompt, t.tokenizer), 0);
        msgl_strbuf shown;
        msgl__strbuf_init(&shown, 1000);
        int entries = 0;
        const size_t width = 1 + (size_t)round % 5;
        bool ended = false;
        for (size_t i = 0; i < len && s.finish == NULL; i += width) {
            int32_t tokens[8];
            int n = 0;
            while (n < (int)width && i + (size_t)n < len) tokens[n] = text[i + (size_t)n], n++;
            // The end of the answer may come with its last tokens, or alone.
            ended = i + width >= len && round % 3 == 0;
            if (ended) tokens[n++] = ID_EOS;
            feed_all(&s, (int)i, tokens, n, ended ? MSGL_FINISH_STOP : MSGL_FINISH_NONE);
            // What is shown is never more than the cut text, and never taken back.
            msgl__strbuf_add(&shown, msgl__strbuf_str(&s.text), s.text.len);
            msgl__strbuf_clear(&s.text);
            assert_true(shown.len <= cut);
            assert_memory_equal(msgl__strbuf_str(&shown), text, shown.len);
            entries = s.logprobs.count;
            assert_int_equal(entries, s.want_logprobs ? (int)shown.len : 0);
        }
        if (s.finish != NULL) {
            cuts += !ended;
            assert_string_equal(s.finish, "stop");
        } else {
            feed(&s, (int)len, ID_EOS, MSGL_FINISH_STOP);
            msgl__strbuf_add(&shown, msgl__strbuf_str(&s.text), s.text.len);
            assert_string_equal(s.finish, "stop");
        }
        assert_int_equal(s.completion_tokens,
                         taken + (before == len)); // with the one that ended it
        assert_int_equal(shown.len, cut);
        assert_memory_equal(msgl__strbuf_str(&shown), text, cut);
        assert_int_equal(s.logprobs.count, s.want_logprobs ? (int)cut : 0);
        static const char entry[] = "{\"token\":\"";
        const char *at = msgl__strbuf_str(&s.logprobs.parts[0]);
        for (size_t i = 0; s.want_logprobs && i < cut; i++) {
            at = strstr(at, entry);
            assert_non_null(at);
            at += sizeof entry - 1;
            assert_int_equal(*at, text[i]);
        }
        msgl__strbuf_free(&shown);
        msgl__sequence_free(&s);
    }
    assert_true(cuts > 500);
    text_close(&t);
}

// Characters are shown whole; what never becomes one is U+FFFD at the end.
static void test_utf8(void **state)
{
    (void)state;
    text_fixture t;
    text_open(&t);
    const msgl_gen_request req = {
        .ep = &msgl__endpoint_chat, .skip_special = true, .n = 1, .sampling.logprobs = -1};
    msgl_sequence s;
    assert_int_equal(msgl__sequence_init(&s, &req, 0, &prompt, t.tokenizer), 0);
    static const unsigned char bytes[] = {0xf0, 0x9f, 0x98, 0x80, 'a', 0xe2, 0x82};
    static const size_t shown[] = {0, 0, 0, 4, 5, 5, 5};
    for (int i = 0; i < 7; i++) {
        feed(&s, i, bytes[i], i == 6 ? MSGL_FINISH_LENGTH : MSGL_FINISH_NONE);
        if (i < 6) assert_int_equal(s.text.len, shown[i]);
    }
    assert_string_equal(s.text.data, "\xf0\x9f\x98\x80"
                                     "a\xef\xbf\xbd");
    assert_string_equal(s.finish, "length");
    assert_int_equal(s.completion_tokens, 7);
    msgl__sequence_free(&s);
    text_close(&t);
}

// Nothing but the prompt is asked for: the one token that the engine makes is not shown.
static void test_no_output(void **state)
{
    (void)state;
    text_fixture t;
    text_open(&t);
    msgl_prompt p = {.text = "\x01\x02\x03", .len = 3};
    const msgl_gen_request req = {.ep = &msgl__endpoint_completion,
                                  .echo = true,
                                  .no_output = true,
                                  .skip_special = true,
                                  .n = 1,
                                  .prompts = &p,
                                  .num_prompts = 1,
                                  .sampling.logprobs = -1};
    msgl_sequence s;
    assert_int_equal(msgl__sequence_init(&s, &req, 0, &prompt, t.tokenizer), 0);
    feed(&s, 0, 'z', MSGL_FINISH_LENGTH);
    assert_string_equal(s.text.data, "\x01\x02\x03");
    assert_string_equal(s.finish, "length");
    assert_int_equal(s.completion_tokens, 0);
    msgl__sequence_free(&s);
    text_close(&t);
}

static int keep_event(void *ctx, const char *data, size_t len)
{
    return msgl__strbuf_add(ctx, data, len);
}

static void test_sse_round_trip(void **state)
{
    (void)state;
    static const char *const texts[][2] = {
        {"a", "a"},       {" a b ", " a b "}, {"\n", "\n"},     {"\n\n", "\n\n"},
        {"a\nb", "a\nb"}, {"a\r\nb", "a\nb"}, {"a\rb", "a\nb"}, {"data: x", "data: x"},
        {"", ""},         {":x", ":x"},       {"x\n", "x\n"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        msgl_strbuf wire, got;
        msgl__strbuf_init(&wire, 1000);
        msgl__strbuf_init(&got, 1000);
        assert_int_equal(msgl__sse_put(&wire, texts[i][0], strlen(texts[i][0])), 0);
        msgl_sse_reader r;
        msgl__sse_reader_init(&r, keep_event, &got);
        assert_int_equal(msgl__sse_reader_feed(&r, wire.data, wire.len), 0);
        assert_string_equal(msgl__strbuf_str(&got), texts[i][1]);
        msgl__sse_reader_free(&r);
        msgl__strbuf_free(&wire);
        msgl__strbuf_free(&got);
    }
}

// Every allocation of a sequence's life may fail: a status, no leak, no crash.
static void test_out_of_memory(void **state)
{
    (void)state;
    text_fixture t;
    text_open(&t);
    msgl_gen_request req = {
        .ep = &msgl__endpoint_chat, .skip_special = true, .n = 1, .stops = {"ab"}, .num_stops = 1};
    bool reached_end = false;
    for (uint64_t nth = 1; !reached_end; nth++) {
        assert_true(nth < 1000);
        msgl_sequence s = {0};
        msgl__mem_fail_from(nth);
        int rc = msgl__sequence_init(&s, &req, 0, &prompt, t.tokenizer);
        for (int i = 0; i < 20 && rc == 0; i++) {
            const msgl_token_logprobs row = {.position = 3 + i, .token = 'a', .logprob = -1};
            const msgl_token_event e = {.uid = 1,
                                        .tokens = (const int32_t[]){'a'},
                                        .num_tokens = 1,
                                        .num_logprobs = 1,
                                        .logprobs = &row};
            rc = msgl__sequence_event(&s, &e);
        }
        msgl__mem_fail_from(0);
        assert_true(rc == 0 || rc == MSGL_ENOMEM);
        reached_end = rc == 0;
        msgl__sequence_free(&s);
    }
    text_close(&t);
}

static msgl_job *new_job(const msgl_endpoint *ep, const char *body)
{
    msgl_job *j = msgl__calloc(1, sizeof *j);
    assert_non_null(j);
    j->ep = ep;
    j->config = (msgl_api_config){.model_name = "m",
                                  .model_path = "/m",
                                  .defaults = msgl__sampling_params_default(),
                                  .vocab_size = VOCAB};
    j->max_seq_len = CONTEXT;
    msgl__strbuf_init(&j->body, 1 << 20);
    assert_int_equal(msgl__strbuf_adds(&j->body, body), 0);
    return j;
}

// The same for all that happens before the engine: parsing, rendering, encoding.
static void test_job_out_of_memory(void **state)
{
    (void)state;
    text_fixture t;
    text_open(&t);
    static const struct {
        const msgl_endpoint *ep;
        const char *body;
    } jobs[] = {
        {&msgl__endpoint_chat, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\","
                               "\"text\":\"hi\"}]}],\"stop\":[\"x\"]}"},
        {&msgl__endpoint_completion, "{\"prompt\":[\"a\",\"b\"],\"n\":2}"},
        {&msgl__endpoint_completion, "{\"prompt\":[[1,2],[3]]}"},
    };
    for (size_t k = 0; k < sizeof jobs / sizeof jobs[0]; k++) {
        bool reached_end = false;
        for (uint64_t nth = 1; !reached_end; nth++) {
            assert_true(nth < 10000);
            msgl_job *j = new_job(jobs[k].ep, jobs[k].body);
            msgl__mem_fail_from(nth);
            msgl__job_run(j, t.tokenizer, t.templates);
            msgl__mem_fail_from(0);
            reached_end = j->rc == 0;
            if (j->rc != 0) assert_true(j->error.status >= 400 && j->error.message[0] != '\0');
            msgl__job_free(j);
        }
    }
    text_close(&t);
}

static void *cancel_soon(void *job)
{
    usleep(20000);
    atomic_store(&((msgl_job *)job)->cancelled, true);
    return NULL;
}

// A worker does not finish the rendering of a slow template for a client that has left.
static void test_job_cancelled(void **state)
{
    (void)state;
    text_fixture t;
    text_open(&t);
    msgl__chat_templates_free(t.templates);
    char dir[] = "/tmp/msgl-test-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/chat_template.jinja", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("{% for i in range(10**5) %}{% for j in range(10**5) %}{% endfor %}{% endfor %}", f);
    fclose(f);
    msgl_err err = {0};
    if (msgl__chat_templates_load(dir, &t.templates, &err) != 0) fail_msg("%s", err.text);
    unlink(path);
    rmdir(dir);
    msgl_job *j =
        new_job(&msgl__endpoint_chat, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}");
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, cancel_soon, j), 0);
    msgl__job_run(j, t.tokenizer, t.templates);
    // Not by the end of its budget; on a busy machine it may not even have begun.
    if (j->rc != MSGL_EABORTED && strstr(j->error.message, "cancelled") == NULL) {
        fail_msg("%d %s", j->rc, j->error.message);
    }
    pthread_join(thread, NULL);
    msgl__job_free(j);
    text_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stop_strings),  cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_no_output),     cmocka_unit_test(test_sse_round_trip),
        cmocka_unit_test(test_out_of_memory), cmocka_unit_test(test_job_out_of_memory),
        cmocka_unit_test(test_job_cancelled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
