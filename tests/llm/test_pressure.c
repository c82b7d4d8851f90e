// SPDX-License-Identifier: Apache-2.0
//
// Models whose layers keep more of a request than K and V (states, index keys, n-grams that go on
// with the tokens before): a request's answer is the same to the bit alone and under pressure, in
// small chunks, beside others, behind cached prefixes, and when pages run out and it is sent back.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "minisgl/minisgl.h"
#include "models/folder.h"

// Checkpoints of states are 512 tokens apart: requests have more.
enum { REQUESTS = 10, ANSWER = 200, TEXT = 700 };

typedef struct answer {
    char text[2048];
    size_t len;
    int finish, cached;
    double logprobs;
} answer;

static int on_piece(void *ctx, const msgl_piece *p)
{
    answer *a = ctx;
    assert_true(a->len + p->text_len < sizeof a->text);
    memcpy(a->text + a->len, p->text, p->text_len);
    a->len += p->text_len;
    a->finish = p->finish;
    a->cached = p->cached_tokens;
    for (int i = 0; i < p->num_logprobs; i++) a->logprobs += (double)p->logprobs[i].logprob;
    return 0;
}

// A model of the vectors whose config.json allows for longer texts.
static void make_folder(folder *f, const char *name)
{
    static const char *const FILES[] = {"model.safetensors", "tokenizer.json",
                                        "tokenizer_config.json", "generation_config.json"};
    char from[256], to[256];
    folder_make(f);
    for (size_t i = 0; i < sizeof FILES / sizeof FILES[0]; i++) {
        snprintf(from, sizeof from, MSGL_SOURCE_DIR "/tests/vectors/models/%s/%s", name, FILES[i]);
        folder_path(f, FILES[i], to, sizeof to);
        assert_int_equal(symlink(from, to), 0);
    }
    snprintf(from, sizeof from, MSGL_SOURCE_DIR "/tests/vectors/models/%s/config.json", name);
    json_t *c = json_load_file(from, 0, NULL);
    set_field(c, "max_position_embeddings", "2048");
    folder_write_json(f, "config.json", c);
    json_decref(c);
}

static msgl_llm *open_model(const folder *f, int pages, int chunk, int page_size)
{
    msgl_llm *llm;
    msgl_err err;
    msgl_options o;
    msgl_options_init(&o);
    o.model_dir = f->dir;
    o.dtype = "float32";
    o.num_pages = pages;
    o.page_size = page_size;
    o.max_prefill_tokens = chunk;
    o.max_running = REQUESTS;
    if (msgl_open(&o, &llm, &err) != 0) fail_msg("%s", err.text);
    return llm;
}

static void run(msgl_llm *llm)
{
    msgl_err err;
    if (msgl_run(llm, &err) != 0) fail_msg("%s", err.text);
}

// Short answers: those behind them are promised little, and outgrow it.
static void lower_promises(msgl_llm *llm)
{
    static answer a;
    msgl_params p;
    msgl_err err;
    msgl_params_init(llm, &p);
    p.max_tokens = 1;
    for (int i = 0; i < 200; i++) {
        a = (answer){0};
        if (msgl_submit_text(llm, "short", 5, &p, on_piece, &a, NULL, &err) != 0) {
            fail_msg("%s", err.text);
        }
        run(llm);
    }
}

// Of every two requests one goes on behind the other's text; those of three pairs begin alike.
static void submit(msgl_llm *llm, int i, answer *a)
{
    char text[TEXT];
    msgl_params p;
    msgl_err err;
    size_t len = 0;
    const size_t most = i % 2 == 0 ? 560 : 640;
    for (int k = 0; len < most; k++) {
        len += (size_t)snprintf(text + len, sizeof text - len, "%d and %d, ", k * k, i / 2 % 3);
    }
    msgl_params_init(llm, &p);
    p.temperature = 0;
    p.max_tokens = ANSWER;
    p.ignore_eos = 1;
    p.logprobs = 0;
    *a = (answer){0};
    if (msgl_submit_text(llm, text, len, &p, on_piece, a, NULL, &err) != 0) {
        fail_msg("%s", err.text);
    }
}

static void expect(const answer *a, const answer *want, int i)
{
    assert_int_equal(a->finish, MSGL_LENGTH);
    if (a->len != want->len || memcmp(a->text, want->text, a->len) != 0 ||
        a->logprobs != want->logprobs) {
        fail_msg("request %d: another answer", i);
    }
}

static void check(const char *name)
{
    static answer alone[REQUESTS], together[REQUESTS];
    // Room for two requests that are done, or three that begin.
    static const int SHAPES[][3] = {{1600, 70, 1}, {100, 333, 16}};
    folder f;
    make_folder(&f, name);
    msgl_llm *llm = open_model(&f, 4096, 512, 1);
    for (int i = 0; i < REQUESTS; i++) {
        msgl_flush_cache(llm);
        submit(llm, i, &alone[i]);
        run(llm);
        expect(&alone[i], &alone[i], i);
        assert_int_equal(alone[i].cached, 0);
    }
    msgl_close(llm);
    for (size_t s = 0; s < sizeof SHAPES / sizeof SHAPES[0]; s++) {
        llm = open_model(&f, SHAPES[s][0], SHAPES[s][1], SHAPES[s][2]);
        int cached = 0;
        lower_promises(llm);
        for (int round = 0; round < 2; round++) {
            for (int i = 0; i < REQUESTS; i++) submit(llm, i, &together[i]);
            run(llm);
            for (int i = 0; i < REQUESTS; i++) {
                expect(&together[i], &alone[i], i);
                cached += together[i].cached > 0;
            }
        }
        print_message("%s: %d of %d requests behind cached tokens\n", name, cached, 2 * REQUESTS);
        assert_true(cached > 0);
        msgl_close(llm);
    }
    folder_remove(&f);
}

static void test_pressure(void **state)
{
    (void)state;
    check("qwen3_next");
    check("minimax_m3");
    check("qwen4_exp");
    check("qwen4_exp_ngrams");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pressure)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
