// SPDX-License-Identifier: Apache-2.0
//
// A request's log-probabilities are the same bits whatever else runs and however its work is cut:
// alone, in a batch of 32, over a cached prefix, decoded, in other chunks, with other page sizes
// and thread counts. With fa, at every CPU level that this machine has.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "engine/harness.h"

enum { TOKENS = 64, OTHERS = 31, PATH = 512 };

typedef struct fixture {
    harness h;
    int32_t ids[TOKENS];
    float *want; // [TOKENS, vocab], one prefill alone
    size_t row_bytes;
} fixture;

static void open_fixture(fixture *f, const char *model, const char *level, int32_t page_size,
                         int32_t threads)
{
    char dir[PATH], prompt[PATH];
    snprintf(dir, sizeof dir, MSGL_SOURCE_DIR "/tests/vectors/models/%s", model);
    snprintf(prompt, sizeof prompt, MSGL_SOURCE_DIR "/tests/vectors/models/%s/prompt.json", model);
    assert_int_equal(load_ids(prompt, "ids", f->ids, TOKENS), TOKENS);
    msgl_engine_config cfg = harness_config(dir, "auto");
    cfg.cpu_level = level;
    cfg.page_size = page_size;
    cfg.num_threads = threads;
    cfg.num_pages = 8192 / page_size + 1;
    harness_open(&f->h, &cfg);
    f->row_bytes = (size_t)f->h.info->vocab_size * sizeof(float);
}

// Prefills row `row` in chunks of `chunk` tokens, appending to out [TOKENS, vocab].
static void prefill_chunks(fixture *f, int32_t row, int32_t from, int32_t chunk, float *out)
{
    for (int32_t at = from; at < TOKENS; at += chunk) {
        const int32_t end = at + chunk < TOKENS ? at + chunk : TOKENS;
        msgl_batch_req r = harness_req(row, at, end);
        r.prompt_len = TOKENS;
        r.sample = end == TOKENS;
        harness_step(&f->h, MSGL_PREFILL, &r, 1);
        memcpy((char *)out + (size_t)at * f->row_bytes, harness_row(&f->h, 0),
               (size_t)(end - at) * f->row_bytes);
    }
}

static void start(fixture *f, int32_t row)
{
    harness_pages(&f->h, row, TOKENS + 1);
    harness_tokens(&f->h, row, f->ids, TOKENS);
}

static void expect_rows(const fixture *f, const float *got, int32_t from, int32_t to,
                        const char *what, int32_t n)
{
    for (int32_t t = from; t < to; t++) {
        const size_t at = (size_t)t * f->row_bytes;
        if (memcmp((const char *)f->want + at, (const char *)got + at, f->row_bytes) != 0) {
            fail_msg("%s, %s: %s %d: other bits at position %d", f->h.info->architecture,
                     f->h.info->device, what, n, t);
        }
    }
}

static void check_chunks(fixture *f, float *got)
{
    const int32_t chunks[] = {1, 7, 16, 33};
    for (size_t i = 0; i < MSGL_COUNT(chunks); i++) {
        start(f, 1);
        prefill_chunks(f, 1, 0, chunks[i], got);
        expect_rows(f, got, 0, TOKENS, "chunks of", chunks[i]);
    }
}

// Decode steps (phase decode, one token each) leave the same K and V and logits as a prefill; and a
// prefill over a prefix whose K and V came from decode steps, as after a cache hit on generated
// text, continues with the same bits.
static void check_decode(fixture *f, float *got)
{
    start(f, 2);
    prefill_chunks(f, 2, 0, TOKENS, got);
    start(f, 2);
    msgl_batch_req r = harness_req(2, 0, 20);
    r.prompt_len = TOKENS; // as if all of it were the prompt: dynamic NTK depends on its length
    harness_step(&f->h, MSGL_PREFILL, &r, 1);
    harness_tokens(&f->h, 2, f->ids, TOKENS); // the sampled token is not the one to go on with
    for (int32_t t = 20; t < 40; t++) {
        r = harness_req(2, t, t + 1);
        r.prompt_len = TOKENS;
        r.sample = false;
        harness_step(&f->h, MSGL_DECODE, &r, 1);
        memcpy((char *)got + (size_t)t * f->row_bytes, harness_row(&f->h, 0), f->row_bytes);
    }
    expect_rows(f, got, 20, 40, "decode from", 20);
    prefill_chunks(f, 2, 40, TOKENS, got);
    expect_rows(f, got, 40, TOKENS, "prefill over decoded prefix of", 40);
}

// The request amid 31 others of other lengths and cached lengths.
static void check_batch(fixture *f, float *got)
{
    msgl_batch_req reqs[OTHERS + 1];
    int32_t first = 0;
    for (int32_t i = 0; i <= OTHERS; i++) {
        start(f, i);
        const int32_t len = i == 17 ? TOKENS : 1 + (i * 37) % TOKENS;
        const int32_t cached = i % 3 == 1 && i != 17 ? len / 2 : 0;
        if (cached > 0) {
            msgl_batch_req r = harness_req(i, 0, cached);
            harness_step(&f->h, MSGL_PREFILL, &r, 1);
            harness_tokens(&f->h, i, f->ids, TOKENS);
        }
        reqs[i] = harness_req(i, cached, len);
        if (i < 17) first += len - cached;
    }
    harness_step(&f->h, MSGL_PREFILL, reqs, OTHERS + 1);
    memcpy(got, harness_row(&f->h, first), TOKENS * f->row_bytes);
    expect_rows(f, got, 0, TOKENS, "prefill batch of", OTHERS + 1);

    // Decode: all at other lengths; the request's next token, forced to be the prompt's.
    for (int32_t i = 0; i <= OTHERS; i++) {
        harness_tokens(&f->h, i, f->ids, TOKENS);
        const int32_t len = i == 17 ? TOKENS : 1 + (i * 37) % TOKENS;
        reqs[i] = harness_req(i, len - 1, len);
    }
    harness_step(&f->h, MSGL_DECODE, reqs, OTHERS + 1);
    memcpy((char *)got + (TOKENS - 1) * f->row_bytes, harness_row(&f->h, 17), f->row_bytes);
    expect_rows(f, got, TOKENS - 1, TOKENS, "decode batch of", OTHERS + 1);
}

static void check_model(const char *model, const char *level)
{
    fixture base;
    open_fixture(&base, model, level, 1, 1);
    float *want = malloc(TOKENS * base.row_bytes), *got = malloc(TOKENS * base.row_bytes);
    assert_true(want != NULL && got != NULL);
    base.want = want;
    start(&base, 0);
    prefill_chunks(&base, 0, 0, TOKENS, want);
    check_chunks(&base, got);
    check_decode(&base, got);
    check_batch(&base, got);
    harness_close(&base.h);

    const int32_t variants[][2] = {{16, 1}, {64, 1}, {1, 2}, {16, 2}}; // page size, threads
    for (size_t i = 0; i < MSGL_COUNT(variants); i++) {
        fixture f;
        open_fixture(&f, model, level, variants[i][0], variants[i][1]);
        f.want = want;
        start(&f, 0);
        prefill_chunks(&f, 0, 0, TOKENS, got);
        expect_rows(&f, got, 0, TOKENS, "page size", variants[i][0]);
        check_decode(&f, got);
        check_batch(&f, got);
        harness_close(&f.h);
    }
    free(want);
    free(got);
}

static void test_bit_equal(void **state)
{
    (void)state;
    const char *const models[] = {"qwen3",           "qwen2_gqa7",         "mistral_swa",
                                  "qwen3_moe_mixed", "llama_rope_dynamic", "llama_f16",
                                  "qwen3_f32"};
    for (int l = 0; l <= (int)msgl__cpu_level_detect(); l++) {
        for (size_t i = 0; i < MSGL_COUNT(models); i++) {
            check_model(models[i], msgl__cpu_level_name((msgl_cpu_level)l));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bit_equal)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
