// SPDX-License-Identifier: Apache-2.0
//
// What `minisgl bench attn` times, on a fake GPU: caches of E4M3 hold numbers and are read with
// their scale; each call of linear attention has states that its neighbours have not. And on the
// CPU: every backend of K and V runs, those with queries or caches of their own too.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "attention/bench_calls.h"
#include "attention/bench_delta.h"
#include "attention/fake_gpu.h"
#include "core/attributes.h"
#include "kernel/kernel.h"

enum { MAX_RUNS = 16, SCRATCH = 4096 };

static const double CALL_MS = 0.5, GRAPH_MS = 64;

// The last calls of linear attention.
static struct {
    int count;
    msgl_delta_call calls[MAX_RUNS];
    size_t scratch;
    bool supported;
} delta;

static void copy_in(msgl_device *d, void *dst, const void *src, size_t bytes)
{
    (void)d;
    assert_true(fake_gpu_contains(dst, bytes));
    memcpy(dst, src, bytes);
}

static void fill_normal(msgl_device *d, void *p, msgl_dtype dtype, size_t n, uint64_t seed,
                        float deviation)
{
    (void)d, (void)seed, (void)deviation;
    assert_int_not_equal(dtype, MSGL_E4M3);
    assert_true(fake_gpu_contains(p, n * msgl__dtype_size(dtype)));
}

static void record(msgl_device *d, int32_t event)
{
    (void)d, (void)event;
}
static int wait_for(msgl_device *d, int32_t event)
{
    (void)d, (void)event;
    return 0;
}

// Work that launches a graph takes another time than work that launches kernels.
static bool launched;

static double time_ms(msgl_device *d, msgl_work_fn fn, void *ctx, int64_t arg)
{
    (void)d;
    launched = false;
    fn(ctx, arg);
    return launched ? GRAPH_MS : CALL_MS;
}

static void graph_begin(msgl_device *d)
{
    (void)d;
    delta.count = FAKE_GPU.num_calls = 0;
}
static msgl_graph *graph_end(msgl_device *d, msgl_err *err)
{
    (void)err;
    return (msgl_graph *)d;
}
static void graph_launch(msgl_device *d, msgl_graph *g)
{
    (void)d, (void)g;
    launched = true;
}
static void graph_destroy(msgl_device *d, msgl_graph *g)
{
    (void)d, (void)g;
}

static void delta_run(msgl_exec *x, const msgl_delta_call *c)
{
    delta.calls[delta.count++ % MAX_RUNS] = *c;
    delta.scratch = x->scratch->size;
    assert_int_equal(x->act, MSGL_BF16);
}
static bool delta_supports(int32_t capability, msgl_dtype act, const msgl_delta_call *dims)
{
    (void)act, (void)dims;
    return delta.supported && capability == 90;
}
static size_t delta_scratch(const msgl_delta_call *c)
{
    return c->io.seqs->num_tokens == 0 ? 0 : SCRATCH;
}

static msgl_device_ops ops;
static msgl_kernels kernels;

static msgl_attn_bench_env open_gpu(void)
{
    fake_gpu_reset(90);
    ops = *FAKE_GPU.base.ops;
    ops.copy_in = copy_in, ops.fill_normal = fill_normal, ops.time_ms = time_ms;
    ops.record = record, ops.wait = wait_for;
    ops.graph_begin = graph_begin, ops.graph_end = graph_end;
    ops.graph_launch = graph_launch, ops.graph_destroy = graph_destroy;
    FAKE_GPU.base.ops = &ops;
    delta.count = 0, delta.supported = true;
    kernels.delta = (msgl_delta_kernels){delta_run, delta_supports, delta_scratch};
    return (msgl_attn_bench_env){
        .backends = &msgl__attn_cuda, .kernels = &kernels, .device = &FAKE_GPU.base};
}

static void test_codes(void **state)
{
    (void)state;
    enum { N = (1 << 20) + 77, BEHIND = 64 };
    open_gpu();
    msgl_err err = {0};
    uint8_t *p = msgl__bench_take(&FAKE_GPU.base, N + BEHIND);
    assert_int_equal(msgl__bench_fill(&FAKE_GPU.base, p, MSGL_E4M3, N, 1, &err), 0);
    int nans = 0, zeros = 0;
    for (size_t i = 0; i < N; i++) {
        nans += (p[i] & 0x7f) == 0x7f;
        zeros += p[i] == 0;
    }
    assert_int_equal(nans, 0);
    assert_true(zeros < N / 100);
    for (size_t i = N; i < N + BEHIND; i++) assert_int_equal(p[i], 0);
    msgl__bench_give(&FAKE_GPU.base, p, N + BEHIND);
    fake_gpu_check();
}

static void test_e4m3(void **state)
{
    (void)state;
    const msgl_attn_bench_env env = open_gpu();
    msgl_attn_bench_shape s = {.phase = MSGL_DECODE,
                               .batch = 64,
                               .cached_len = 2047,
                               .extend_len = 1,
                               .num_q_heads = 8,
                               .num_kv_heads = 2,
                               .head_dim = 128,
                               .page_size = 16,
                               .kv_dtype = MSGL_E4M3,
                               .window = -1};
    msgl_attn_bench_result r;
    msgl_err err = {0};
    const msgl_attn_desc *fa = msgl__attn_find(&msgl__attn_cuda, "fa");
    if (msgl__attn_bench(fa, &s, &env, 0.001, &r, &err) != 0) fail_msg("%s", err.text);
    assert_true(FAKE_GPU.num_calls > 0 && FAKE_GPU.calls[0].e4m3);
    assert_true(fabsf(FAKE_GPU.calls[0].scale * sqrtf(128) - 1) < 1e-6f);
    assert_true(r.bytes == 64.0 * 2048 * 2 * 2 * 128); // requests, keys, KV heads, K and V, dim
    assert_true(r.forward_ms == CALL_MS && r.graph_ms == GRAPH_MS / FAKE_GPU.num_calls);
    s.kv_dtype = MSGL_BF16;
    if (msgl__attn_bench(fa, &s, &env, 0.001, &r, &err) != 0) fail_msg("%s", err.text);
    assert_false(FAKE_GPU.calls[0].e4m3);
    assert_true(r.bytes == 2 * 64.0 * 2048 * 2 * 2 * 128);
    fake_gpu_check();
}

// What a backend's own forward is called with, looked at on the way.
static struct {
    const msgl_attn_desc *of;
    int calls;
    size_t ld;
} seen;

static void look(msgl_attn_backend *b, msgl_exec *x, const msgl_attn_layer *layer,
                 const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    seen.calls++;
    seen.ld = in->ld;
    seen.of->forward(b, x, layer, seqs, in, out);
    assert_int_equal(x->status, 0);
}

static void test_every_backend(void **state)
{
    (void)state;
    msgl_kernels k;
    msgl_pool *pool = NULL;
    msgl_err err = {0};
    assert_int_equal(msgl__pool_create(1, &pool, &err), 0);
    msgl__kernels_init_cpu(&k, MSGL_CPU_REF);
    const msgl_attn_bench_env env = {.backends = &msgl__attn_cpu, .kernels = &k, .threads = pool};
    int ran = 0;
    const msgl_attn_desc *const *all = msgl__attn_cpu.all;
    for (int i = 0; all[i / 2] != NULL; i++) {
        const bool decode = i % 2 != 0;
        msgl_attn_bench_shape s = {.phase = decode ? MSGL_DECODE : MSGL_PREFILL,
                                   .batch = 2,
                                   .cached_len = decode ? 4100 : 30, // answers are sparse
                                   .extend_len = decode ? 1 : 9,
                                   .num_q_heads = 4,
                                   .num_kv_heads = 2,
                                   .head_dim = 32,
                                   .page_size = 16,
                                   .kv_dtype = MSGL_F16,
                                   .window = -1,
                                   .shuffled = true};
        msgl_attn_desc d = *all[i / 2];
        if (d.page_override > 0) s.page_size = d.page_override;
        seen.of = all[i / 2];
        seen.calls = 0;
        d.forward = look;
        msgl_attn_bench_result r;
        const int rc = msgl__attn_bench(&d, &s, &env, 0.0001, &r, &err);
        const bool others = (decode ? d.decode_by : d.prefill_by) != NULL;
        const bool latent = d.caches != 0 && (d.caches & 1u << MSGL_CACHE_KV) == 0;
        if (others || latent) {
            assert_int_equal(rc, MSGL_EUNSUPPORTED);
            continue;
        }
        if (rc != 0) fail_msg("%s: %s", d.name, err.text);
        assert_true(seen.calls > 0 && r.forward_ms > 0);
        assert_int_equal(seen.ld, (d.dual_chunk ? 3 : 1) * 4 * 32);
        ran++;
    }
    assert_int_equal(ran, 2 * 10 + 1); // fa4 has prompts alone
    msgl__pool_destroy(pool);
}

static const msgl_delta_bench_shape ANSWERS = {
    .phase = MSGL_DECODE, .batch = 64, .tokens = 1, 16, 32, 128, 128};

static void test_answers(void **state)
{
    (void)state;
    const msgl_attn_bench_env env = open_gpu();
    msgl_attn_bench_result r;
    msgl_err err = {0};
    if (msgl__delta_bench(&ANSWERS, &env, 0.001, &r, &err) != 0) fail_msg("%s", err.text);
    assert_true(r.prepare_ms == 0 && r.forward_ms == CALL_MS);
    assert_true(delta.count >= 4 && r.graph_ms == GRAPH_MS / delta.count);
    assert_true(r.bytes == 2 * 64.0 * 32 * 128 * 128 * 4 && r.flops == 6 * 64.0 * 32 * 128 * 128);
    assert_int_equal(delta.scratch, SCRATCH);
    delta.supported = false;
    assert_int_equal(msgl__delta_bench(&ANSWERS, &env, 0.001, &r, &err), MSGL_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "no kernel for heads of 128 and 128"));
    fake_gpu_check();
}

// Looks at a call while its memory is there.
static void check_call(msgl_exec *x, const msgl_delta_call *c)
{
    const msgl_seqs *s = c->io.seqs;
    const bool answers = s->phase == MSGL_DECODE;
    const size_t row = c->ld_qkv * 2, tokens = (size_t)s->num_tokens;
    delta_run(x, c);
    assert_true(fake_gpu_contains(c->qkv, tokens * row) && row % 16 == 0);
    assert_true((const char *)c->z == (const char *)c->qkv + (size_t)msgl__delta_channels(c) * 2);
    assert_true(fake_gpu_contains((const char *)c->a + (tokens - 1) * row, 32 * 2));
    assert_true(fake_gpu_contains(c->out, tokens * c->ld_out * 2));
    assert_true(fake_gpu_contains(s->dev_seqlens_k, sizeof(int32_t)));
    assert_true(c->io.stride % 128 == 0 && c->io.stride >= msgl__delta_state_bytes(c, MSGL_BF16));
    for (int32_t i = 0; i < s->size; i++) {
        const size_t at = (size_t)c->io.at.to[i] * c->io.stride;
        assert_true(fake_gpu_contains((char *)c->io.base + at, c->io.stride));
        assert_int_equal(c->io.at.from[i], answers ? c->io.at.to[i] : -1);
        assert_int_equal(c->io.at.dev_from[i], c->io.at.from[i]);
        assert_int_equal(c->io.at.dev_to[i], c->io.at.to[i]);
        if (delta.count < 2) continue;
        const int32_t first = delta.calls[(delta.count - 2) % MAX_RUNS].io.at.to[0];
        assert_true(c->io.at.to[i] < first || c->io.at.to[i] >= first + s->size);
    }
}

static void test_calls(void **state)
{
    (void)state;
    const msgl_attn_bench_env env = open_gpu();
    const msgl_delta_bench_shape prompts = {
        .phase = MSGL_PREFILL, .batch = 4, .tokens = 100, 16, 32, 128, 128};
    msgl_attn_bench_result r;
    msgl_err err = {0};
    kernels.delta.run = check_call;
    if (msgl__delta_bench(&ANSWERS, &env, 0.001, &r, &err) != 0) fail_msg("%s", err.text);
    delta.count = 0;
    if (msgl__delta_bench(&prompts, &env, 0.001, &r, &err) != 0) fail_msg("%s", err.text);
    assert_true(delta.count > 0 && r.graph_ms == 0);
    assert_true(r.bytes == 4.0 * 32 * 128 * 128 * 4 && r.flops == 6 * 400.0 * 32 * 128 * 128);
    fake_gpu_check();
}

static int num_mamba;

// The same of Mamba-2's.
static void check_mamba(msgl_exec *x, const msgl_ssm_call *c)
{
    const msgl_seqs *s = c->io.seqs;
    const size_t row = c->ld_x * 2, rows = (size_t)s->num_tokens * row;
    const char *const z = c->z;
    assert_int_equal(x->act, MSGL_BF16);
    assert_true(c->heads == 128 && c->groups == 1 && c->head_dim == 64 && c->state_dim == 128);
    assert_true(fake_gpu_contains(z, rows) && c->ld_z == c->ld_x);
    assert_true((const char *)c->x == z + 128 * 64 * 2 &&
                (const char *)c->b == z + 2 * 128 * 64 * 2);
    assert_true((const char *)c->dt + 128 * 2 <= z + row);
    assert_true(fake_gpu_contains(c->out, (size_t)s->num_tokens * c->ld_out * 2));
    assert_true(fake_gpu_contains(c->norm_weight, (128 * 64 + 3 * 128) * sizeof(float)));
    assert_true(c->io.stride >= msgl__ssm_state_bytes(128, 64, 128));
    for (int32_t i = 0; i < s->size; i++) {
        const size_t at = (size_t)c->io.at.to[i] * c->io.stride;
        assert_true(fake_gpu_contains((char *)c->io.base + at, c->io.stride));
    }
    num_mamba++;
}

static void test_mamba(void **state)
{
    (void)state;
    const msgl_attn_bench_env env = open_gpu();
    const msgl_delta_bench_shape answers = {
        .phase = MSGL_DECODE, .batch = 4, .tokens = 1, 1, 128, 128, 64, MSGL_BENCH_MAMBA};
    msgl_attn_bench_result r;
    msgl_err err = {0};
    kernels.ssm = (msgl_ssm_kernels){.run = check_mamba, .max_state_dim = 128};
    num_mamba = 0;
    if (msgl__delta_bench(&answers, &env, 0.001, &r, &err) != 0) fail_msg("%s", err.text);
    assert_true(num_mamba > 0 && delta.count == 0 && r.graph_ms > 0);
    assert_true(r.bytes == 2 * 4.0 * 128 * 64 * 128 * 4 && r.flops == 6 * 4.0 * 128 * 64 * 128);
    kernels.ssm.max_state_dim = 64;
    assert_int_equal(msgl__delta_bench(&answers, &env, 0.001, &r, &err), MSGL_EUNSUPPORTED);
    kernels.ssm.run = NULL;
    assert_int_equal(msgl__delta_bench(&answers, &env, 0.001, &r, &err), MSGL_EUNSUPPORTED);
    fake_gpu_check();
}

static void check_kimi(msgl_exec *x, const msgl_delta_call *c)
{
    const size_t row = c->ld_a * 2;
    delta_run(x, c);
    assert_true(c->by_channel && c->sigmoid_gate);
    // A decay for each channel of the keys, behind the rest of a row.
    assert_true((const char *)c->a + 32 * 128 * 2 <= (const char *)c->qkv + row);
    assert_true(fake_gpu_contains(c->a_log, (32 + 32 * 128) * sizeof(float)));
    assert_true(c->dt_bias == c->a_log + 32);
}

static void test_kimi(void **state)
{
    (void)state;
    const msgl_attn_bench_env env = open_gpu();
    msgl_delta_bench_shape answers = ANSWERS;
    answers.k_heads = 32, answers.rule = MSGL_BENCH_KIMI_DELTA;
    msgl_attn_bench_result r;
    msgl_err err = {0};
    kernels.delta.run = check_kimi;
    if (msgl__delta_bench(&answers, &env, 0.001, &r, &err) != 0) fail_msg("%s", err.text);
    assert_true(delta.count > 0);
    fake_gpu_check();
}

static void test_shapes(void **state)
{
    (void)state;
    const msgl_attn_bench_env env = open_gpu();
    msgl_attn_bench_result r;
    msgl_err err = {0};
    msgl_delta_bench_shape wrong[] = {ANSWERS, ANSWERS, ANSWERS, ANSWERS};
    wrong[0].batch = 0, wrong[1].tokens = 2, wrong[2].k_heads = 5, wrong[3].v_dim = 272;
    for (size_t i = 0; i < MSGL_COUNT(wrong); i++) {
        assert_int_equal(msgl__delta_bench(&wrong[i], &env, 0.001, &r, &err), MSGL_EINVAL);
        assert_non_null(strstr(err.text, "impossible shape of linear attention"));
    }
    assert_int_equal(delta.count, 0);
    fake_gpu_check();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codes),   cmocka_unit_test(test_e4m3),
        cmocka_unit_test(test_answers), cmocka_unit_test(test_calls),
        cmocka_unit_test(test_mamba),   cmocka_unit_test(test_kimi),
        cmocka_unit_test(test_shapes),  cmocka_unit_test(test_every_backend),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
