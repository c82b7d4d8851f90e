// SPDX-License-Identifier: Apache-2.0
//
// double_sparsity: what it computes is test_conformance.c's. Here: requests whose scores are made
// in rounds, the length from which answers are sparse, that what is chosen by all channels is what
// matters, how a GPU cuts keys, and the file of channels, right and wrong.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "attention/double_sparsity/double_sparsity.h"
#include "attention/world.h"
#include "core/attributes.h"
#include "cuda/attn/double_sparsity/cut.h"

static world_spec spec_of(int heavy_channels, int heavy_tokens, int threshold)
{
    world_spec s = world_base(&msgl__attn_sparse, 8, 3000, 64);
    s.heavy_channels = heavy_channels;
    s.heavy_tokens = heavy_tokens;
    s.threshold = threshold;
    return s;
}

// One answer each, of requests 0 to n - 1 at the end of their tokens.
static void answer(world *w, int n)
{
    step_req reqs[8];
    for (int i = 0; i < n; i++) {
        reqs[i] = (step_req){.req = i, .cached = w->reqs[i].len - 1, .device = w->reqs[i].len};
    }
    world_step(w, MSGL_DECODE, reqs, n);
    const double error = world_error(w, reqs, n);
    if (error > 2e-6) fail_msg("error %g", error);
}

// Long requests beside short ones, with dense answers first, last and between.
static void test_mixed_lengths(void **state)
{
    (void)state;
    static const int lens[][8] = {{3000, 5, 1100, 1025, 90, 2048, 100, 1024},
                                  {1, 99, 100, 101, 1999, 2000, 2001, 64}};
    for (int i = 0; i < 4; i++) {
        world_spec s = spec_of(32, i < 2 ? 100 : 30, i == 1 ? 2000 : 0);
        s.page_size = i == 3 ? 7 : 16;
        s.threads = 1 + i;
        s.deterministic = i == 2;
        world w;
        world_open(&w, &s);
        for (int r = 0; r < 8; r++) world_request(&w, r, lens[i % 2][r]);
        for (int n = 8; n > 0; n -= 3) answer(&w, n);
        world_close(&w);
    }
}

// Whether an answer is sparse depends on its own length: its bits do not on the batch when they
// are.
static void test_alone(void **state)
{
    (void)state;
    world_spec s = spec_of(16, 64, 500);
    world w;
    world_open(&w, &s);
    static const int lens[] = {700, 30, 500, 2500};
    float alone[4][256];
    for (int r = 0; r < 4; r++) world_request(&w, r, lens[r]);
    assert_true(w.out_ld == 256);
    for (int r = 0; r < 4; r++) {
        const step_req one = {.req = r, .cached = lens[r] - 1, .device = lens[r]};
        world_step(&w, MSGL_DECODE, &one, 1);
        memcpy(alone[r], w.out, sizeof alone[r]);
    }
    answer(&w, 4);
    for (int r = 0; r < 4; r++) {
        if (lens[r] < 500) continue;
        assert_memory_equal(alone[r], w.out + (size_t)r * w.out_ld, sizeof alone[r]);
    }
    world_close(&w);
}

// More requests than there is room for the scores of.
static void test_rounds(void **state)
{
    (void)state;
    const msgl_attn_config cfg = {.num_q_heads = 32, .max_seq_len = 1 << 17, .max_running = 256};
    assert_int_equal(msgl__sparse_round(&cfg, (size_t)cfg.max_seq_len * 4), 4);
    world_spec s = spec_of(8, 40, 0);
    s.group = 16;
    s.max_seq_len = 1 << 18;
    s.max_running = 3;
    s.page_size = 64;
    s.num_kv_heads = 1;
    s.head_dim = 16;
    world w;
    world_open(&w, &s);
    assert_int_equal(msgl__sparse_round(&w.cfg, (size_t)w.cfg.max_seq_len * 4), 3);
    world_close(&w);
    s.group = 64;
    world_open(&w, &s);
    assert_int_equal(msgl__sparse_round(&w.cfg, (size_t)w.cfg.max_seq_len * 4), 1);
    for (int r = 0; r < 3; r++) world_request(&w, r, 300 + r);
    answer(&w, 3);
    world_close(&w);
}

// ---- the file ----

static const msgl_channel_dims DIMS = {
    .num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 16};

static int load(const char *text, int32_t channels, msgl_attn_sparse *s, msgl_err *err)
{
    char path[] = "/tmp/msgl_channels_XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (int)strlen(text));
    close(fd);
    *s = (msgl_attn_sparse){.dims = DIMS, .heavy_channels = channels};
    const int rc = msgl__attn_channels_load(path, "qk", s, err);
    if (rc != 0 && rc != MSGL_EINVAL) { // the message names the file
        if (strstr(err->text, strrchr(path, '/') + 1) == NULL) fail_msg("%s", err->text);
    }
    unlink(path);
    return rc;
}

#define UP "[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]"
#define DOWN "[15,14,13,12,11,10,9,8,7,6,5,4,3,2,1,0]"
#define LAYER(l, rows) "\"model.layers." #l ".self_attn.qk_proj\": " rows

static void test_load(void **state)
{
    (void)state;
    msgl_attn_sparse s;
    msgl_err err = {0};
    // A row a KV head, then one a query head: their ranks are added, the lowest channel first.
    const char *text = "{" LAYER(0, "[" UP "," DOWN "]") "," LAYER(
        1, "[" UP "," UP "," UP "," DOWN "]") ", \"model.layers.0.self_attn.q_proj\": 7}";
    if (load(text, 8, &s, &err) != 0) fail_msg("%s", err.text);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(s.channels[i], i);
        assert_int_equal(s.channels[8 + i], 15 - i);
        assert_int_equal(s.channels[16 + i], i);
        assert_int_equal(s.channels[24 + i], i);
    }
    msgl__attn_sparse_free(&s);
}

static void test_bad_files(void **state)
{
    (void)state;
    static const struct {
        const char *text, *why;
        int32_t channels;
        int code;
    } bad[] = {
        {"[]", "expected a JSON object", 8, MSGL_EFORMAT},
        {"{\"a\": ", "line 1 column", 8, MSGL_EFORMAT},
        {"{}", "no \"model.layers.0.self_attn.qk_proj\"; the model has 2 layers", 8, MSGL_EFORMAT},
        {"{" LAYER(0, "[" UP "," UP "]") "}", "no \"model.layers.1.self_attn.qk_proj\"", 8,
         MSGL_EFORMAT},
        {"{" LAYER(0, "[" UP "," UP "]") "," LAYER(1, "[" UP "," UP "]") "," LAYER(2, "[]") "}",
         "has \"model.layers.2.self_attn.qk_proj\"; the model has 2 layers", 8, MSGL_EFORMAT},
        {"{" LAYER(0, "[" UP "," UP "," UP "]") "}",
         "has 3 rows; allowed: 2 (KV heads) or 4 (query heads)", 8, MSGL_EFORMAT},
        {"{" LAYER(0, "7") "}", "has 0 rows", 8, MSGL_EFORMAT},
        {"{" LAYER(0, "[" UP ", 7]") "}", "row 1 of model.layers.0.self_attn.qk_proj is no list", 8,
         MSGL_EFORMAT},
        {"{" LAYER(0, "[" UP ",[1,2,3]]") "}", "is no list of 8 (--ds-heavy-channel-num) to 16", 8,
         MSGL_EFORMAT},
        {"{" LAYER(0, "[" UP ",[0,1,2,3,4,5,6,16]]") "}",
         "entry 7 in row 1 of model.layers.0.self_attn.qk_proj; allowed: different channels from 0 "
         "to 15",
         8, MSGL_EFORMAT},
        {"{" LAYER(0, "[" UP ",[0,1,2,3,4,5,6,-1]]") "}", "entry 7 in row 1", 8, MSGL_EFORMAT},
        {"{" LAYER(0, "[" UP ",[0,1,2,3,4,5,6,6]]") "}", "entry 7 in row 1", 8, MSGL_EFORMAT},
        {"{" LAYER(0, "[" UP ",[0,1,2,3,4,5,6,1.5]]") "}", "entry 7 in row 1", 8, MSGL_EFORMAT},
        {"{}", "--ds-heavy-channel-num 12; allowed: multiples of 8 up to 16", 12, MSGL_EINVAL},
        {"{}", "--ds-heavy-channel-num 24; allowed: multiples of 8 up to 16", 24, MSGL_EINVAL},
    };
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        msgl_attn_sparse s;
        msgl_err err = {0};
        assert_int_equal(load(bad[i].text, bad[i].channels, &s, &err), bad[i].code);
        if (strstr(err.text, bad[i].why) == NULL) fail_msg("%s: %s", bad[i].why, err.text);
        msgl__attn_sparse_free(&s);
    }
    msgl_attn_sparse s = {.dims = DIMS, .heavy_channels = 8};
    msgl_err err = {0};
    assert_int_equal(msgl__attn_channels_load("/nowhere/channels.json", "qk", &s, &err),
                     MSGL_ENOENT);
    assert_non_null(strstr(err.text, "channels.json"));
}

// What a calibration writes is what is read: the channels by the product of the sums, with those of
// a KV head's query heads added.
static void test_write(void **state)
{
    (void)state;
    char path[] = "/tmp/msgl_channels_XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    msgl_attn_sparse s = {.dims = DIMS, .heavy_channels = 8};
    msgl_err err = {0};
    assert_int_equal(msgl__attn_sums_create(&s, &err), 0);
    for (int i = 0; i < 2 * 4 * 16; i++) s.sums.q[i] = i % 16 == 5 ? 3 : 1;  // channel 5 of q
    for (int i = 0; i < 2 * 2 * 16; i++) s.sums.k[i] = i % 16 == 9 ? 10 : 1; // and 9 of k
    s.sums.k[16 + 5] = 5;                                                    // of layer 0, head 1
    s.sums.q[2 * 16 + 2] = 2.5;                                              // query head 2, of it
    assert_int_equal(msgl__attn_channels_write(path, &s, &err), 0);
    static const struct {
        const char *type;
        uint16_t first[2][4]; // of layer 0's heads
    } expected[] = {{"q", {{5, 0, 1, 2}, {5, 2, 0, 1}}},
                    {"k", {{9, 0, 1, 2}, {9, 5, 0, 1}}},
                    {"qk", {{9, 5, 0, 1}, {5, 9, 2, 0}}}};
    for (size_t i = 0; i < MSGL_COUNT(expected); i++) {
        msgl_attn_sparse got = {.dims = DIMS, .heavy_channels = 8};
        if (msgl__attn_channels_load(path, expected[i].type, &got, &err) != 0) {
            fail_msg("%s", err.text);
        }
        for (int h = 0; h < 2; h++) {
            assert_memory_equal(got.channels + h * 8, expected[i].first[h], 8);
        }
        msgl__attn_sparse_free(&got);
    }
    msgl__attn_sparse_free(&s);
    unlink(path);
}

// A request of len keys, of those of which the longest has max_len, in `splits`: every key is in
// one split, whose scores have room, and so have the candidates, which are enough.
static void check_cut(int32_t group, int32_t max_len, int32_t splits, int32_t len, int32_t tokens)
{
    const msgl_sparse_cut c = msgl__sparse_cut(len, splits, tokens);
    int32_t keys = 0, candidates = 0;
    assert_int_equal(c.each % 32, 0);
    assert_true(c.each <= msgl__sparse_most_each(max_len, splits));
    for (int32_t i = 0; i < splits; i++) {
        const int32_t begin = i * c.each < len ? i * c.each : len;
        const int32_t count = len - begin < c.each ? len - begin : c.each;
        const int32_t kept = count < tokens ? count : tokens;
        if (count > 0) assert_int_equal(candidates, i * c.kept);
        assert_int_equal(begin, keys);
        keys += count;
        candidates += kept;
    }
    assert_int_equal(keys, len);
    assert_int_equal(candidates, msgl__sparse_candidates(c, len));
    assert_true(candidates >= (len < tokens ? len : tokens));
    assert_true(candidates <= msgl__sparse_room(group, max_len, tokens));
}

static void test_cut(void **state)
{
    (void)state;
    static const int32_t groups[] = {1, 2, 3, 4, 5, 7, 8, 9, 20}, tokens[] = {1, 33, 256, 65536},
                         max_lens[] = {1, 500, 513, 8192, 40000, 131072};
    static const int64_t blocks[] = {1, 8, 40, 100000};
    for (size_t at = 0; at < MSGL_COUNT(groups) * MSGL_COUNT(max_lens); at++) {
        const int32_t group = groups[at % MSGL_COUNT(groups)];
        const int32_t max_len = max_lens[at / MSGL_COUNT(groups)];
        const int32_t most = msgl__sparse_most_keys(group), rows = msgl__sparse_rows(group);
        assert_true(most > MSGL_SPARSE_LEAST_KEYS);
        assert_true(rows * (msgl__sparse_pitch(most) * 4 + MSGL_SPARSE_COUNT_BYTES) <=
                    MSGL_SPARSE_BYTES);
        for (size_t i = 0; i < MSGL_COUNT(blocks); i++) {
            const int32_t splits = msgl__sparse_splits(group, max_len, blocks[i], 132);
            assert_true(msgl__sparse_most_each(max_len, splits) <= most);
            for (int32_t len = 1; len <= max_len; len += 1 + len / 5) {
                for (size_t t = 0; t < MSGL_COUNT(tokens); t++) {
                    check_cut(group, max_len, splits, len, tokens[t]);
                }
            }
            for (size_t t = 0; t < MSGL_COUNT(tokens); t++) {
                check_cut(group, max_len, splits, max_len, tokens[t]);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mixed_lengths), cmocka_unit_test(test_alone),
        cmocka_unit_test(test_rounds),        cmocka_unit_test(test_load),
        cmocka_unit_test(test_bad_files),     cmocka_unit_test(test_write),
        cmocka_unit_test(test_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
