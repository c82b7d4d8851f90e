// SPDX-License-Identifier: Apache-2.0
//
// Double sparsity in the engine: channels from a calibration, and labels that are where K is,
// whoever computed it: prompts whole and in chunks, pages that another request filled, pages of any
// size, answers beside chunks. On GPUs in bfloat16 and, for the same bits, deterministic.
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
#include "engine/harness.h"
#include "models/folder.h"

#ifndef TEST_DEVICE
#define TEST_DEVICE "cpu"
#define TEST_DTYPE "float32"
#define TEST_RANKS
#define OTHER_KERNEL 1e-4 // its log-probabilities differ by less
#else
#define TEST_DTYPE "bfloat16"
#define OTHER_KERNEL 0.1
#endif
#define MODEL MSGL_SOURCE_DIR "/tests/vectors/models/qwen3"

enum { LEN = 100, TOKENS = 24 }; // of the request; that a head attends to

static char channels[] = "/tmp/msgl_channels_XXXXXX";

static msgl_options config(int32_t page_size)
{
    msgl_options c = harness_config(MODEL, TEST_DTYPE);
    c.device = TEST_DEVICE;
    c.deterministic = strcmp(TEST_DEVICE, "cpu") != 0;
    c.attention = "double_sparsity";
    c.ds_channel_config_path = channels;
    c.ds_heavy_channel_num = 8;
    c.ds_heavy_token_num = TOKENS;
    c.ds_sparse_decode_threshold = 0;
    c.page_size = page_size;
    c.num_pages = 2048 / page_size + 1;
    c.threads = 2;
    return c;
}

static void fill_ids(int32_t *ids, int32_t vocab)
{
    for (int32_t i = 0; i < LEN; i++) ids[i] = (i * 7919 + i / 3) % vocab;
}

// The request's tokens in a row whose pages were set; a GPU's table gets these with them.
static void write_row(harness *h, int32_t row)
{
    int32_t ids[LEN];
    fill_ids(ids, h->info->vocab_size);
    harness_tokens(h, row, ids, LEN);
}

static void open_with_row(harness *h, const msgl_options *c)
{
    harness_open(h, c);
    for (int32_t row = 0; row < 3; row++) {
        harness_pages(h, row, 128);
        write_row(h, row);
    }
}

// Tokens [from, to) of a row; what follows is given, not chosen.
static msgl_batch_req tokens_of(int32_t row, int32_t from, int32_t to)
{
    msgl_batch_req r = harness_req(row, from, to);
    r.sample = false;
    return r;
}

static void chunk(harness *h, int32_t row, int32_t from, int32_t to)
{
    msgl_batch_req r = tokens_of(row, from, to);
    harness_step(h, MSGL_PREFILL, &r, 1);
}

// Log-probabilities behind the last token of a row, computed as an answer; freed by the caller.
static float *answer(harness *h, int32_t row)
{
    msgl_batch_req r = tokens_of(row, LEN - 1, LEN);
    harness_step(h, MSGL_DECODE, &r, 1);
    const size_t bytes = (size_t)h->info->vocab_size * sizeof(float);
    float *out = malloc(bytes);
    memcpy(out, harness_row(h, 0), bytes);
    return out;
}

static double distance(const harness *h, const float *a, const float *b)
{
    double worst = 0;
    for (int32_t i = 0; i < h->info->vocab_size; i++) {
        const double d = fabs((double)a[i] - (double)b[i]);
        worst = d > worst || isnan(d) ? d : worst;
    }
    return worst;
}

static void calibrate_for(const char *model)
{
    msgl_options c = config(1);
    c.model_dir = model;
    c.device = "cpu";
    c.deterministic = 0;
    c.ds_calibrate = 1;
    c.ds_channel_config_path = NULL;
    harness h;
    msgl_err err = {0};
    open_with_row(&h, &c);
    chunk(&h, 0, 0, 60);
    chunk(&h, 0, 60, LEN);
    if (msgl__engine_write_channels(h.e, channels, &err) != 0) fail_msg("%s", err.text);
    harness_close(&h);
}

static int calibrate(void **state)
{
    (void)state;
    const int fd = mkstemp(channels);
    assert_true(fd >= 0);
    close(fd);
    calibrate_for(MODEL);
    return 0;
}

static int forget(void **state)
{
    (void)state;
    return unlink(channels);
}

// However the tokens came into the pool, the answer is the same, and is not what all tokens give.
static void test_same_answer(void **state)
{
    (void)state;
    float *first = NULL, *behind_first = NULL;
    static const int32_t sizes[] = {1, 16, 7};
    for (size_t i = 0; i < MSGL_COUNT(sizes); i++) {
        harness h;
        const msgl_options c = config(sizes[i]);
        open_with_row(&h, &c);
        assert_int_equal(h.e->specs.all[0].label_dim, 8);
        chunk(&h, 0, 0, LEN - 1); // whole
        float *all[4] = {answer(&h, 0)};
        chunk(&h, 1, 0, 33); // in chunks
        chunk(&h, 1, 33, 90);
        chunk(&h, 1, 90, LEN - 1);
        all[1] = answer(&h, 1);
        for (int32_t at = 90; at < LEN - 1; at++) { // the last tokens as sparse answers
            msgl_batch_req r = tokens_of(1, at, at + 1);
            harness_step(&h, MSGL_DECODE, &r, 1);
        }
        float *behind = answer(&h, 1);
        if (i == 0) behind_first = behind;
        assert_true(distance(&h, behind_first, behind) < 1e-4);
        if (i > 0) free(behind);
        // Row 2 has the first pages of row 0, as from the prefix cache, and a chunk for the rest.
        int32_t *rows[2];
        for (int r = 0; r < 2; r++) rows[r] = msgl__page_table_row(h.e->page_tables, 2 * r);
        const int32_t shared = 56 - 56 % sizes[i];
        memcpy(rows[1], rows[0], (size_t)(shared / sizes[i]) * sizeof *rows[0]);
        write_row(&h, 2);
        chunk(&h, 2, shared, LEN - 1);
        all[2] = answer(&h, 2);
        // An answer beside a chunk.
        harness_pages(&h, 1, 128);
        write_row(&h, 1);
        msgl_batch_req both[2] = {tokens_of(0, LEN - 1, LEN), tokens_of(1, 0, 50)};
        harness_mixed(&h, 1, both, 2);
        all[3] = malloc((size_t)h.info->vocab_size * sizeof(float));
        memcpy(all[3], harness_row(&h, 0), (size_t)h.info->vocab_size * sizeof(float));
        for (int k = 0; k < 4; k++) {
            if (first == NULL) first = all[0];
            if (distance(&h, first, all[k]) > 1e-4) {
                fail_msg("pages of %d, case %d: %g", sizes[i], k, distance(&h, first, all[k]));
            }
            if (all[k] != first) free(all[k]);
        }
        harness_close(&h);
    }
    harness h;
    msgl_options c = config(1);
    c.attention = "triton";
    c.ds_channel_config_path = NULL;
    open_with_row(&h, &c);
    assert_int_equal(h.e->specs.all[0].label_dim, 0);
    chunk(&h, 0, 0, LEN - 1);
    float *dense = answer(&h, 0);
    assert_true(distance(&h, first, dense) > 10 * OTHER_KERNEL);
    harness_close(&h);
    // All tokens chosen, and a request that is too short: triton's answer.
    static const int tokens[][2] = {{LEN, 0}, {LEN + 1, 0}, {TOKENS, LEN + 1}, {LEN - 1, LEN}};
    for (size_t i = 0; i < MSGL_COUNT(tokens); i++) {
        c = config(16);
        c.attention = i % 2 == 0 ? "triton" : "auto";
        c.double_sparsity = 1;
        c.ds_heavy_token_num = tokens[i][0];
        c.ds_sparse_decode_threshold = tokens[i][1];
        open_with_row(&h, &c);
        chunk(&h, 0, 0, LEN - 1);
        float *got = answer(&h, 0);
        const double d = distance(&h, got, dense);
        if (i < 3 ? d > OTHER_KERNEL : d == 0) fail_msg("case %zu: %g", i, d);
        free(got);
        harness_close(&h);
    }
    free(dense);
    free(first);
    free(behind_first);
}

#ifdef TEST_RANKS
#define MODELS MSGL_SOURCE_DIR "/tests/vectors/models/"

// The model without its window, which no request of this test is as long as.
static void make_without_window(folder *f, const char *model)
{
    char from[256], to[256];
    folder_make(f);
    snprintf(from, sizeof from, MODELS "%s/config.json", model);
    json_t *config = json_load_file(from, 0, NULL);
    assert_non_null(config);
    set_field(config, "sliding_window", "null");
    folder_write_json(f, "config.json", config);
    json_decref(config);
    snprintf(from, sizeof from, MODELS "%s/model.safetensors", model);
    folder_path(f, "model.safetensors", to, sizeof to);
    assert_int_equal(symlink(from, to), 0);
}

// Opens h for so many ranks; the answer, which chooses tokens unless it is dense.
static float *shared_answer(harness *h, const char *model, int ranks, bool dense)
{
    msgl_options c = config(1);
    c.model_dir = model;
    c.tp_size = ranks;
    if (dense) c.ds_heavy_token_num = LEN;
    open_with_row(h, &c);
    assert_int_equal(h->e->specs.all[0].label_dim, 8);
    chunk(h, 0, 0, LEN - 1);
    return answer(h, 0);
}

// Ranks know the channels of their KV heads: one of several, or one that several ranks keep.
static void test_ranks(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        int ranks;
    } shared[] = {{"qwen3", 2},
                  {"phi3_longrope_short", 2},
                  {"phi3_longrope_long", 2},
                  {"phi3_longrope_long", 4}};
    for (size_t i = 0; i < MSGL_COUNT(shared); i++) {
        harness h;
        folder f;
        make_without_window(&f, shared[i].model);
        calibrate_for(f.dir);
        float *dense = shared_answer(&h, f.dir, 1, true);
        harness_close(&h);
        float *several = shared_answer(&h, f.dir, shared[i].ranks, false);
        harness_close(&h);
        float *one = shared_answer(&h, f.dir, 1, false);
        assert_true(distance(&h, one, several) < 1e-4);
        assert_true(distance(&h, one, dense) > 1e-3); // it matters which tokens
        harness_close(&h);
        free(one);
        free(dense);
        free(several);
        folder_remove(&f);
    }
    calibrate_for(MODEL);
}
#endif

static void expect_error(const msgl_options *c, const char *what)
{
    harness h;
    msgl_err err = {0};
    assert_int_not_equal(harness_try_open(&h, c, &err), 0);
    if (strstr(err.text, what) == NULL) fail_msg("%s", err.text);
}

static void test_errors(void **state)
{
    (void)state;
    msgl_options c = config(1);
    c.ds_channel_config_path = NULL;
    expect_error(&c, "`minisgl calibrate --model DIR --text FILE -o CHANNELS` finds out");
    c = config(1);
    c.ds_channel_config_path = "/nowhere/channels.json";
    expect_error(&c, "/nowhere/channels.json");
    c = config(1);
    c.attention = "fa";
    expect_error(&c, "--ds-channel-config-path: not with --attn fa; allowed: double_sparsity");
    c.double_sparsity = 1;
    expect_error(&c, "--enable-double-sparsity: not with --attn fa; allowed: triton, "
                     "double_sparsity");
    c = config(1);
    c.model_dir = MSGL_SOURCE_DIR "/tests/vectors/models/gemma2";
    expect_error(&c, "not all layers of this model keep K and V of all tokens");
    c = config(1);
    c.kv_cache_dtype = "fp8_e4m3";
    expect_error(&c, "attention backend double_sparsity: no kernel for a KV cache of fp8_e4m3");
#ifdef TEST_RANKS
    c = config(1);
    c.ds_channel_config_path = NULL;
    c.ds_calibrate = 1;
    c.tp_size = 2;
    expect_error(&c, "calibrating: not with --tp-size 2; allowed: 1");
#endif
    c = config(1);
    c.ds_heavy_channel_num = 12;
    expect_error(&c, "--ds-heavy-channel-num 12; allowed: multiples of 8 up to");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_answer),
#ifdef TEST_RANKS
        cmocka_unit_test(test_ranks),
#endif
        cmocka_unit_test(test_errors),
    };
    if (!harness_has_device(TEST_DEVICE)) return 77;
    return cmocka_run_group_tests(tests, calibrate, forget);
}
