// SPDX-License-Identifier: Apache-2.0
//
// The public C API, on the shipped model: many requests at once equal one at a time, aborts from
// inside and outside callbacks, submissions from callbacks, stop strings, prefix hits, every kind
// of refusal.
#include <minisgl/minisgl.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "llm/llm.h"

static msgl_llm *llm;

struct got {
    char text[8192];
    size_t len;
    int pieces, tokens, finish, status, cached, prompt, prompt_logprobs;
    double logprob_sum;
    int abort_at;     // return 1 at this piece; 0: never
    struct got *then; // submit a request into this from the last piece
    uint64_t abort_other;
};

static const char *const PROMPTS[] = {"The sun",   "One day a fox",    "minisgl is",
                                      "12 + 34 =", "Once upon a time", "A"};
enum { NUM_PROMPTS = 6 };

static void submit(const char *text, const msgl_params *p, struct got *g, uint64_t *id);

static int on_piece(void *ctx, const msgl_piece *p)
{
    struct got *g = ctx;
    assert_int_equal(g->finish, MSGL_NOT_FINISHED); // nothing after the last piece
    assert_true(g->len + p->text_len < sizeof g->text);
    memcpy(g->text + g->len, p->text, p->text_len);
    g->len += p->text_len;
    g->text[g->len] = '\0';
    g->pieces++;
    g->tokens = p->generated_tokens;
    g->finish = p->finish;
    g->status = p->status;
    g->cached = p->cached_tokens;
    g->prompt = p->prompt_tokens;
    for (int i = 0; i < p->num_logprobs; i++) {
        assert_true(p->logprobs[i].logprob <= 0);
        g->logprob_sum += (double)p->logprobs[i].logprob;
        if (p->logprobs[i].position < p->prompt_tokens) g->prompt_logprobs++;
    }
    if (g->abort_other != 0) {
        assert_int_equal(msgl_abort(llm, g->abort_other), 0);
        g->abort_other = 0;
    }
    if (p->finish != MSGL_NOT_FINISHED && g->then != NULL) submit("Two", NULL, g->then, NULL);
    return g->pieces == g->abort_at;
}

static void submit(const char *text, const msgl_params *p, struct got *g, uint64_t *id)
{
    msgl_err err;
    if (msgl_submit_text(llm, text, strlen(text), p, on_piece, g, id, &err) != 0) {
        fail_msg("%s", err.text);
    }
}

static void run(void)
{
    msgl_err err;
    if (msgl_run(llm, &err) != 0) fail_msg("%s", err.text);
}

static msgl_params greedy(int max_tokens)
{
    msgl_params p;
    msgl_params_init(llm, &p);
    p.temperature = 0;
    p.max_tokens = max_tokens;
    p.ignore_eos = 1;
    p.logprobs = 0;
    return p;
}

static int setup(void **state)
{
    (void)state;
    msgl_err err;
    msgl_options o;
    msgl_options_init(&o);
    o.model_dir = MSGL_SOURCE_DIR "/models/demo";
    o.num_pages = 8192;
    o.max_running = 64;
    if (msgl_open(&o, &llm, &err) != 0) fail_msg("%s", err.text);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    msgl_close(llm);
    return 0;
}

// The same prompts alone and 32 at a time, greedy and sampled: same text, same log-probabilities.
static void test_batch_equals_alone(void **state)
{
    (void)state;
    static struct got alone[NUM_PROMPTS], together[32];
    for (int sampled = 0; sampled < 2; sampled++) {
        memset(alone, 0, sizeof alone);
        memset(together, 0, sizeof together);
        msgl_params p = greedy(24);
        p.temperature = sampled ? 0.8f : 0;
        p.has_seed = 1;
        p.seed = 11;
        for (int i = 0; i < NUM_PROMPTS; i++) {
            msgl_flush_cache(llm);
            submit(PROMPTS[i], &p, &alone[i], NULL);
            run();
            assert_int_equal(alone[i].finish, MSGL_LENGTH);
            assert_int_equal(alone[i].tokens, 24);
        }
        for (int i = 0; i < 32; i++) submit(PROMPTS[i % NUM_PROMPTS], &p, &together[i], NULL);
        run();
        for (int i = 0; i < 32; i++) {
            assert_string_equal(together[i].text, alone[i % NUM_PROMPTS].text);
            assert_true(together[i].logprob_sum == alone[i % NUM_PROMPTS].logprob_sum);
        }
    }
}

static void test_aborts_and_submissions_in_callbacks(void **state)
{
    (void)state;
    struct got a = {.abort_at = 3}, b = {0}, c = {0}, d = {0}, e = {0};
    msgl_params p = greedy(30);
    uint64_t ids[5];
    submit("The sun", &p, &a, &ids[0]); // ends itself at its third piece
    submit("One day", &p, &b, &ids[1]); // aborts c, then starts d
    submit("A fox", &p, &c, &ids[2]);
    submit("Never", &p, &e, &ids[4]); // aborted before its first step
    b.abort_other = ids[2];
    b.then = &d;
    assert_int_equal(msgl_abort(llm, ids[4]), 0);
    assert_int_equal(msgl_abort(llm, ids[4]), MSGL_ENOENT);
    run();
    assert_int_equal(a.pieces, 3);
    assert_int_equal(a.finish, MSGL_NOT_FINISHED);
    assert_int_equal(b.finish, MSGL_LENGTH);
    assert_true(c.pieces <= 1 && c.finish == MSGL_NOT_FINISHED);
    assert_int_equal(e.pieces, 0);
    assert_true(d.finish == MSGL_STOP || d.finish == MSGL_LENGTH);
    for (int i = 0; i < 3; i++) assert_int_equal(msgl_abort(llm, ids[i]), MSGL_ENOENT);
}

// Cutting at a stop string leaves exactly the text before it.
static void test_stop_strings(void **state)
{
    (void)state;
    struct got whole = {0}, cut = {0};
    msgl_params p = greedy(40);
    submit("Once upon a time", &p, &whole, NULL);
    run();
    char stop[8];
    snprintf(stop, sizeof stop, "%.5s", whole.text + whole.len / 2);
    const char *const stops[] = {"never in this text", stop};
    p.stop = stops;
    p.num_stop = 2;
    submit("Once upon a time", &p, &cut, NULL);
    run();
    const char *at = strstr(whole.text, stop);
    assert_non_null(at);
    assert_int_equal(cut.finish, MSGL_STOP);
    assert_int_equal(cut.len, at - whole.text);
    assert_memory_equal(cut.text, whole.text, cut.len);
}

static void test_prefix_and_prompt_logprobs(void **state)
{
    (void)state;
    struct got first = {0}, second = {0}, scored = {0};
    const char *text = "Once upon a time there was a fox who lived in a green valley by the river.";
    msgl_params p = greedy(8);
    msgl_flush_cache(llm);
    submit(text, &p, &first, NULL);
    run();
    submit(text, &p, &second, NULL);
    run();
    assert_int_equal(first.cached, 0);
    assert_int_equal(second.cached, second.prompt - 1);
    assert_string_equal(first.text, second.text);
    assert_true(first.logprob_sum == second.logprob_sum);
    p.prompt_logprobs = 0;
    submit(text, &p, &scored, NULL);
    run();
    assert_int_equal(scored.prompt_logprobs, scored.prompt - 1);
    assert_string_equal(scored.text, first.text);
}

// Text to ids and back, and the ids are what a text request runs on.
static void test_tokenize(void **state)
{
    (void)state;
    msgl_err err = {0};
    const char *text = "Once upon a time, 12 + 34 = 46.\n \xc3\xa9 \xf0\x9f\x99\x82";
    int32_t *ids = NULL;
    size_t n = 0, len = 0;
    char *back = NULL;
    assert_int_equal(msgl_tokenize(llm, text, strlen(text), 0, &ids, &n, &err), 0);
    assert_true(n > 10 && n < strlen(text));
    assert_int_equal(msgl_detokenize(llm, ids, n, 1, &back, &len, &err), 0);
    assert_int_equal(len, strlen(text));
    assert_string_equal(back, text);
    msgl_free(back);
    assert_int_equal(msgl_detokenize(llm, ids, 2, 1, &back, &len, &err), 0);
    assert_true(len > 0 && len < strlen(text) && strlen(back) == len);
    assert_int_equal(memcmp(text, back, len), 0);
    msgl_free(back);
    msgl_free(ids);

    static struct got by_text, by_ids;
    const msgl_params p = greedy(8);
    assert_int_equal(msgl_tokenize(llm, text, strlen(text), 1, &ids, &n, &err), 0);
    submit(text, &p, &by_text, NULL);
    assert_int_equal(msgl_submit_ids(llm, ids, n, &p, on_piece, &by_ids, NULL, &err), 0);
    run();
    assert_int_equal(by_text.prompt, n);
    assert_int_equal(by_ids.prompt, n);
    assert_string_equal(by_ids.text, by_text.text);
    // The ids of <|im_end|>, which is special, and <think>, which is not.
    const int32_t added[] = {6137, 6138, 6137};
    static const char *const shown[] = {"<|im_end|><think><|im_end|>", "<think>"};
    for (int skip = 0; skip < 2; skip++) {
        assert_int_equal(msgl_detokenize(llm, added, 3, skip, &back, &len, &err), 0);
        assert_string_equal(back, shown[skip]);
        assert_int_equal(len, strlen(shown[skip]));
        msgl_free(back);
    }
    ids[0] = -1;
    assert_true(msgl_detokenize(llm, ids, n, 1, &back, &len, &err) < 0);
    assert_null(back);
    msgl_free(ids);
}

// Without a seed every request draws its own; with one it repeats itself.
static void test_seeds(void **state)
{
    (void)state;
    static struct got g[6];
    memset(g, 0, sizeof g);
    msgl_params p = greedy(32);
    p.temperature = 3; // flat enough that equal answers mean equal seeds
    for (int i = 0; i < 6; i++) {
        p.has_seed = i >= 4;
        p.seed = i >= 4 ? 7 : 0;
        submit("The sun", &p, &g[i], NULL);
        if (i % 2 == 1) run(); // two at a time
    }
    for (int i = 0; i < 5; i++) {
        for (int k = 0; k < i; k++) assert_string_not_equal(g[i].text, g[k].text);
    }
    assert_string_equal(g[4].text, g[5].text);
}

// Minus one is off, as in other servers, and so is 0.
static void test_top_k(void **state)
{
    (void)state;
    static struct got g[3];
    memset(g, 0, sizeof g);
    const int top_k[] = {0, -1, 1};
    msgl_params p = greedy(32);
    p.temperature = 1.5f;
    p.top_p = 1;
    p.min_p = 0;
    p.has_seed = 1;
    for (int i = 0; i < 3; i++) {
        p.top_k = top_k[i];
        submit("The sun", &p, &g[i], NULL);
    }
    run();
    assert_string_equal(g[1].text, g[0].text);
    assert_string_not_equal(g[2].text, g[0].text);
}

static void expect_refusal(const char *text, size_t len, const msgl_params *p, const char *words)
{
    msgl_err err;
    struct got g = {0};
    const int rc = msgl_submit_text(llm, text, len, p, on_piece, &g, NULL, &err);
    assert_true(rc < 0);
    assert_int_equal(rc, err.code);
    if (strstr(err.text, words) == NULL) fail_msg("\"%s\" lacks \"%s\"", err.text, words);
}

static void test_refusals(void **state)
{
    (void)state;
    msgl_params p = greedy(4);
    static char big[1 << 16];
    memset(big, 'a', sizeof big - 1);
    for (size_t i = 1; i < sizeof big; i += 2) big[i] = ' ';
    expect_refusal("", 0, &p, "empty");
    expect_refusal(big, sizeof big - 1, &p, "tokens");
    expect_refusal("bad \xff byte", 10, &p, "UTF-8");
    p.temperature = NAN;
    expect_refusal("x", 1, &p, "temperature");
    p = greedy(-1);
    expect_refusal("x", 1, &p, "max_tokens");
    p = greedy(4);
    p.top_p = 0;
    expect_refusal("x", 1, &p, "top_p");
    p = greedy(4);
    p.top_k = -2;
    expect_refusal("x", 1, &p, "top_k is \"-2\"; allowed: a whole number from -1 to 2147483647");
    p = greedy(4);
    p.logprobs = 21;
    expect_refusal("x", 1, &p, "logprobs");
    const char *const empty[] = {""};
    p = greedy(4);
    p.stop = empty;
    p.num_stop = 1;
    expect_refusal("x", 1, &p, "stop");
    const int32_t far[] = {1 << 30};
    p = greedy(4);
    p.stop_token_ids = far;
    p.num_stop_token_ids = 1;
    expect_refusal("x", 1, &p, "stop_token_ids");
    p = greedy(4);
    p.repetition_penalty = 0;
    expect_refusal("x", 1, &p, "repetition_penalty");
    p = greedy(4);
    p.frequency_penalty = NAN;
    expect_refusal("x", 1, &p, "frequency_penalty");
    p = greedy(4);
    p.logit_bias = &(msgl_bias){6144, 1};
    p.num_logit_bias = 1;
    expect_refusal("x", 1, &p, "logit_bias names token 6144; allowed: 0 to 6143");
    p.num_logit_bias = -1;
    expect_refusal("x", 1, &p, "logit_bias");
    msgl_err err;
    struct got g = {0};
    assert_int_equal(msgl_submit_ids(llm, far, 1, NULL, on_piece, &g, NULL, &err), MSGL_EINVAL);
    assert_true(msgl_submit_chat(llm, "{\"messages\": 5}", NULL, on_piece, &g, NULL, &err) < 0);
    assert_true(msgl_submit_chat(llm, "[", NULL, on_piece, &g, NULL, &err) < 0);
    run(); // nothing was queued
    assert_int_equal(g.pieces, 0);
    msgl_llm *none;
    msgl_options o;
    msgl_options_init(&o);
    assert_int_equal(msgl_open(&o, &none, &err), MSGL_EINVAL);
    o.model_dir = MSGL_SOURCE_DIR "/models/demo";
    o.cache_type = "lru";
    assert_int_equal(msgl_open(&o, &none, &err), MSGL_EINVAL);
}

// An event of several tokens, as drafts will bring them, becomes one piece a token.
static void test_events_of_many_tokens(void **state)
{
    (void)state;
    static const int32_t tokens[] = {11, 12, 13};
    msgl_token_logprobs rows[5];
    for (int i = 0; i < 5; i++) rows[i] = (msgl_token_logprobs){.position = 3 + i};
    msgl_token_event e = {.uid = 9,
                          .tokens = tokens,
                          .num_tokens = 3,
                          .finish = MSGL_FINISH_STOP,
                          .prompt_tokens = 5,
                          .num_logprobs = 5, // two of the prompt
                          .logprobs = rows};
    static const int32_t counts[] = {3, 1, 1};
    const msgl_token_logprobs *next = rows;
    for (int32_t t = 0; t < 3; t++) {
        const msgl_token_event one = msgl__token_event_at(&e, t);
        assert_int_equal(one.uid, 9);
        assert_int_equal(one.num_tokens, 1);
        assert_int_equal(*one.tokens, tokens[t]);
        assert_int_equal(one.finish, t == 2 ? MSGL_FINISH_STOP : MSGL_FINISH_NONE);
        assert_int_equal(one.num_logprobs, counts[t]);
        assert_ptr_equal(one.logprobs, next);
        next += one.num_logprobs;
    }
    e.num_logprobs = 2; // echo alone: none of the answer
    assert_int_equal(msgl__token_event_at(&e, 0).num_logprobs, 2);
    assert_int_equal(msgl__token_event_at(&e, 1).num_logprobs, 0);
    assert_int_equal(msgl__token_event_at(&e, 2).num_logprobs, 0);
    e.num_logprobs = 0;
    e.logprobs = NULL;
    assert_int_equal(msgl__token_event_at(&e, 2).num_logprobs, 0);
    e.num_logprobs = 2; // a prompt chunk
    e.logprobs = rows;
    e.num_tokens = 0;
    e.finish = MSGL_FINISH_NONE;
    assert_int_equal(msgl__token_event_at(&e, 0).num_tokens, 0);
    assert_int_equal(msgl__token_event_at(&e, 0).num_logprobs, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch_equals_alone),
        cmocka_unit_test(test_aborts_and_submissions_in_callbacks),
        cmocka_unit_test(test_stop_strings),
        cmocka_unit_test(test_prefix_and_prompt_logprobs),
        cmocka_unit_test(test_tokenize),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_top_k),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_events_of_many_tokens),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
