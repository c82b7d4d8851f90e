// SPDX-License-Identifier: Apache-2.0
//
// Hyper-connections (kernel/hyper.h) against the CPU's kernels of the same numbers, within a
// rounding; and a row's results to the bit, alone and with others. cuda_hyper [--seed N] [--quick].
#include <vector>

#include "tests/cuda/ops_check.cuh"

extern "C" {
#include "tests/cuda/compress_cpu.h"
}

struct hyper_case {
    msgl_dtype dtype;
    int rows, streams, dim, iterations;
};

// A row of NaN behind them, which is not the kernels'.
struct hyper_arrays {
    array in, fn, base, scale, mix, out, result;
    msgl_hyper host, device;
};

static hyper_arrays arrays_new(const hyper_case &t, bool head, uint64_t *seed)
{
    const size_t rows = (size_t)t.rows + 1, width = (size_t)t.streams * t.dim;
    const int32_t mixed = msgl__hyper_mix(t.streams), outputs = t.streams + (head ? 0 : mixed);
    const float spread = 1 / sqrtf((float)width);
    hyper_arrays a = {};
    a.in = array_new(t.dtype, rows * width, 2, seed);
    a.fn = array_new(MSGL_F32, outputs * width, 2 * spread, seed);
    a.base = array_new(MSGL_F32, outputs, 1, seed);
    a.scale = array_new(MSGL_F32, 3, 1, seed);
    a.mix = array_new(MSGL_F32, rows * mixed, 0, seed);
    a.out = array_new(t.dtype, rows * t.dim, 0, seed);
    a.result = array_new(t.dtype, rows * t.dim, 0, seed);
    a.host.streams = t.streams, a.host.dim = t.dim, a.host.iterations = t.iterations;
    a.host.eps = 1e-6f, a.host.norm_eps = 1e-5f;
    a.device = a.host;
    a.host.fn = a.fn.host, a.host.base = a.base.host, a.host.scale = a.scale.host;
    a.device.fn = (const float *)a.fn.dev, a.device.base = (const float *)a.base.dev;
    a.device.scale = (const float *)a.scale.dev;
    return a;
}

static void arrays_free(hyper_arrays *a)
{
    array_free(&a->in), array_free(&a->fn), array_free(&a->base), array_free(&a->scale);
    array_free(&a->mix), array_free(&a->out), array_free(&a->result);
}

static void check_status(int code)
{
    if (code != 0) printf("the CPU's kernel failed\n"), exit(1);
}

// [rows, width], and NaN in the row behind them.
static void expect_all(family *f, const array &got, const std::vector<float> &want, int rows,
                       int width, double error, const char *what)
{
    for (int i = 0; i < rows * width; i++) {
        expect_near(f, got.host[i], want[i], (fabs(want[i]) + 1) * error, what);
    }
    for (size_t i = (size_t)rows * width; i < got.n; i++) {
        expect(f, isnan(got.host[i]), "the row behind them is as it was");
    }
}

static bool same_bits(const array &a, size_t from, const array &b, size_t n)
{
    return memcmp(a.host + from, b.host, n * sizeof(float)) == 0;
}

// Every row once more, as the only one of a call.
static void check_alone(bench_exec *e, family *f, const hyper_case &t, const hyper_arrays &a,
                        bool head, uint64_t *seed)
{
    const size_t width = (size_t)t.streams * t.dim, size = msgl__dtype_size(t.dtype);
    const size_t mixed = (size_t)msgl__hyper_mix(t.streams);
    array mix = array_new(MSGL_F32, mixed, 0, seed), out = array_new(t.dtype, t.dim, 0, seed);
    array result = array_new(t.dtype, t.dim, 0, seed);
    for (int r = 0; r < t.rows; r++) {
        const void *in = (const char *)a.in.dev + r * width * size;
        if (head) {
            msgl__cuda_hyper_head(&e->x, &a.device, in, 1, out.dev);
        } else {
            msgl__cuda_hyper_open(&e->x, &a.device, in, 1, (float *)mix.dev, out.dev, result.dev);
        }
        exec_sync(e);
        array_download(&out), array_download(&mix);
        expect(f, same_bits(a.out, (size_t)r * t.dim, out, t.dim), "a row alone has its bits");
        if (!head) expect(f, same_bits(a.mix, r * mixed, mix, mixed), "and its mix");
    }
    array_free(&mix), array_free(&out), array_free(&result);
}

static void check_open(bench_exec *e, family *f, const hyper_case &t, bool head, uint64_t *seed)
{
    const int mixed = msgl__hyper_mix(t.streams);
    const double error = dtype_error(t.dtype) * 1.01 + 4e-5;
    e->x.act = t.dtype;
    hyper_arrays a = arrays_new(t, head, seed);
    std::vector<float> mix((size_t)t.rows * mixed), out((size_t)t.rows * t.dim), result(out.size());
    check_status(hyper_on_cpu(&a.host, a.in.host, t.rows, head ? NULL : mix.data(), out.data(),
                              result.data()));
    if (head) {
        msgl__cuda_hyper_head(&e->x, &a.device, a.in.dev, t.rows, a.out.dev);
    } else {
        msgl__cuda_hyper_open(&e->x, &a.device, a.in.dev, t.rows, (float *)a.mix.dev, a.out.dev,
                              a.result.dev);
    }
    exec_sync(e);
    array_download(&a.out), array_download(&a.mix), array_download(&a.result);
    expect_all(f, a.out, out, t.rows, t.dim, error, head ? "the head's mixture" : "a mixture");
    if (!head) {
        expect_all(f, a.mix, mix, t.rows, mixed, 1e-4, "post and comb");
        expect_all(f, a.result, result, t.rows, t.dim, 1e-30, "zeros");
    }
    check_alone(e, f, t, a, head, seed);
    arrays_free(&a);
}

static void check_close(bench_exec *e, family *f, const hyper_case &t, uint64_t *seed)
{
    const int width = t.streams * t.dim, mixed = msgl__hyper_mix(t.streams);
    e->x.act = t.dtype;
    hyper_arrays a = arrays_new(t, false, seed);
    array block = array_new(t.dtype, (size_t)t.rows * t.dim, 2, seed);
    array mix = array_new(MSGL_F32, (size_t)t.rows * mixed, 0.5f, seed);
    for (size_t i = (size_t)t.rows * width; i < a.in.n; i++) a.in.host[i] = NAN;
    array_upload(&a.in);
    std::vector<float> want(a.in.host, a.in.host + a.in.n);
    check_status(hyper_close_on_cpu(&a.host, mix.host, block.host, t.rows, want.data()));
    msgl__cuda_hyper_close(&e->x, &a.device, (const float *)mix.dev, block.dev, t.rows, a.in.dev);
    exec_sync(e);
    array_download(&a.in);
    expect_all(f, a.in, want, t.rows, width, dtype_error(t.dtype) * 1.01 + 1e-5, "streams");
    array_free(&block), array_free(&mix);
    arrays_free(&a);
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);
    uint64_t seed = o.seed;
    static bench_exec e;
    exec_open(&e, 1 << 20);
    family open = {"hyper open"}, head = {"hyper head"}, close = {"hyper close"};
    for (msgl_dtype dtype : {MSGL_F32, MSGL_F16, MSGL_BF16}) {
        const hyper_case cases[] = {
            {dtype, 3, 4, 32, 20},   // in 16 bits without room for sums
            {dtype, 11, 4, 520, 20}, // more rows than a block has, a part of a tile
            {dtype, 4, 4, 1100, 1},  // by single elements
            {dtype, 9, 3, 45, 3},    // odd rows
            {dtype, 5, 1, 24, 2},    // one stream
            {dtype, 9, 16, 640, 4},  // pieces of several tiles, more outputs than warps make
            {dtype, 2, 6, 88, 20},   // streams that a thread has one by one
            {dtype, o.quick ? 2 : 300, 4, 4096, 20},
        };
        for (const hyper_case &t : cases) {
            check_open(&e, &open, t, false, &seed);
            check_open(&e, &head, t, true, &seed);
            check_close(&e, &close, t, &seed);
        }
    }
    const int failed = family_end(&open) | family_end(&head);
    return family_end(&close) | failed;
}
