// SPDX-License-Identifier: Apache-2.0
//
// What a step begins with, in its order: attention makes its lists of pages from the device's page
// table, so it may begin only after the slots of the new tokens are there.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernel/device.h"
#include "layers/embedding.h"

static int clock, taken_at, begun_at[2], num_begun;

static void take_tokens(msgl_device *d, const int32_t *pool, const int32_t *index, int32_t n,
                        int32_t *ids, int32_t *table, const int32_t *slots)
{
    (void)d, (void)pool, (void)index, (void)n, (void)ids, (void)table, (void)slots;
    taken_at = ++clock;
}

static void gather(msgl_exec *x, const msgl_weight *w, const int32_t *ids, int rows, void *out)
{
    (void)x, (void)w, (void)ids, (void)rows, (void)out;
}

static bool embed(msgl_exec *x, const msgl_embed_call *c)
{
    (void)x, (void)c;
    taken_at = ++clock;
    return true;
}

static void begin(msgl_attn_backend *b, msgl_exec *x, const msgl_seqs *seqs)
{
    (void)b, (void)x, (void)seqs;
    begun_at[num_begun++] = ++clock;
}

static void check(bool fused)
{
    static const msgl_attn_desc desc = {.begin = begin};
    static const msgl_device_ops ops = {.take_tokens = take_tokens};
    msgl_attn_backend backend = {.desc = &desc};
    msgl_device device = {.ops = &ops};
    msgl_exec exec = {.device = &device};
    msgl_kernels kernels = {.gemm = {.embed = fused ? embed : NULL}};
    const msgl_attn attn = {.prefill = &backend, .decode = &backend};
    const msgl_seqs seqs[] = {{.phase = MSGL_DECODE}, {.phase = MSGL_PREFILL}};
    msgl_forward f = {.x = &exec,
                      .k = &kernels,
                      .attn = &attn,
                      .num_tokens = 3,
                      .seqs = seqs,
                      .num_seqs = 2,
                      .ropes = {{.num_segments = fused ? 1 : 0}},
                      .num_ropes = 1};
    float *const cos_sin[MSGL_MAX_ROPES] = {0};
    static const msgl_wformat format = {.gather = gather};
    const msgl_weight w = {.format = &format};
    clock = taken_at = num_begun = 0;
    msgl__embed(&f, &w, 1, NULL, cos_sin);
    assert_int_equal(taken_at, 1);
    assert_int_equal(num_begun, 2);
    assert_true(begun_at[0] > taken_at && begun_at[1] > begun_at[0]);
}

static void test_order(void **state)
{
    (void)state;
    check(false);
    check(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
