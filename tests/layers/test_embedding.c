// SPDX-License-Identifier: Apache-2.0
//
// What a step begins with, in its order: attention makes its lists of pages from the device's page
// table, so it may begin only after the pages of the new tokens are there.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernel/device.h"
#include "layers/embedding.h"

static int clock, taken_at, num_taken, begun_at[4], num_begun;

static void take_tokens(msgl_device *d, const msgl_step_tokens *tokens, int32_t *ids)
{
    (void)d, (void)ids;
    taken_at = ++clock;
    num_taken += tokens->num_tables;
}

static void gather(msgl_exec *x, const msgl_weight *w, const int32_t *ids, int rows, void *out)
{
    (void)x, (void)w, (void)ids, (void)rows, (void)out;
}

static bool embed(msgl_exec *x, const msgl_embed_call *c)
{
    (void)x;
    taken_at = ++clock;
    num_taken += c->tokens.num_tables;
    return true;
}

static void begin(msgl_attn_backend *b, msgl_exec *x, const msgl_seqs *seqs)
{
    (void)b, (void)x, (void)seqs;
    begun_at[num_begun++] = ++clock;
}

static void check(bool fused, int32_t num_tables)
{
    static const msgl_attn_desc desc = {.begin = begin};
    static const msgl_device_ops ops = {.take_tokens = take_tokens};
    msgl_attn_backend backend = {.desc = &desc};
    msgl_device d = {.ops = &ops};
    msgl_exec exec = {.device = &d};
    msgl_kernels kernels = {.gemm = {.embed = fused ? embed : NULL}};
    const msgl_cache_group groups[] = {{.attn = {.prefill = &backend, .decode = &backend}},
                                       {.pool = {.spec = {.kind = MSGL_CACHE_STATE}}},
                                       {.attn = {.prefill = &backend, .decode = &backend}}};
    const msgl_seqs seqs[] = {{.phase = MSGL_DECODE}, {.phase = MSGL_PREFILL}};
    msgl_comm alone;
    msgl__comm_self_init(&alone);
    msgl_forward f = {.x = &exec,
                      .k = &kernels,
                      .comm = &alone,
                      .groups = groups,
                      .num_groups = 3,
                      .tokens = {.count = 3, .num_tables = num_tables},
                      .num_tokens = 3,
                      .seqs = seqs,
                      .num_seqs = 2,
                      .ropes = {{.num_segments = fused ? 1 : 0}},
                      .num_ropes = 1};
    float *const cos_sin[MSGL_MAX_ROPES] = {0};
    static const msgl_wformat format = {.gather = gather};
    const msgl_weight w = {.format = &format};
    clock = taken_at = num_taken = num_begun = 0;
    msgl__embed(&f, &w, 1, false, NULL, cos_sin);
    assert_int_equal(num_taken, num_tables);
    assert_int_equal(taken_at, 1);
    assert_int_equal(num_begun, 4); // two groups that attend, two sequences
    for (int i = 0; i < 4; i++) assert_int_equal(begun_at[i], taken_at + 1 + i);
}

static void test_order(void **state)
{
    (void)state;
    for (int32_t tables = 1; tables <= 2; tables++) {
        check(false, tables);
        check(true, tables);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
