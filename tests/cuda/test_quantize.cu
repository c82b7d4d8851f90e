// SPDX-License-Identifier: Apache-2.0
//
// What is quantised while loading (int8, q4): rows that are looked up are, to the bit, what the
// format's rule leaves of them, of any dtype and length, whatever pieces they came in; nothing is
// written beside them. Products are test_codes.cu's. cuda_quantize [--seed N] [--quick].
#include "cuda/gemm/quantize.h"
#include "tests/cuda/codes_case.cuh"

struct quantized {
    msgl_weight w;
    array rows; // [n, k], what the format holds
};

// Rows in two pieces, the last one first, and of long rows the columns in two.
static quantized quantized_new(bench_exec *e, family *f, const msgl_wformat *format, int n, int k,
                               msgl_dtype from, uint64_t *seed)
{
    array src = array_new(from, (size_t)n * k, 2 / sqrtf((float)k), seed);
    if (n > 3 && k > 3) { // groups without values, with tiny ones, and of one size
        for (int i = 0; i < k; i++) src.host[k + i] = 0;
        for (int i = 0; i < k; i++) src.host[2 * (size_t)k + i] = i % 2 ? 1e-38f : -1e-39f;
        for (int i = 0; i < k; i++) src.host[3 * (size_t)k + i] = i % 3 == 1 ? 0.5f : -0.5f;
    }
    array_upload(&src);
    array_download(&src);
    msgl_codes_row l;
    expect(f, msgl__codes_row_of(format->blocks, msgl__codes_row_places(format, k), &l), "a row");
    const size_t bytes = msgl__codes_rows_bytes(&l, (size_t)n), guard = 64;
    const size_t size = msgl__dtype_size(from), half = k > 128 ? 64 : (size_t)k;
    quantized out = {{format, n, k, NULL}, src};
    CUDA_OK(cudaMalloc(&out.w.data, bytes + guard));
    poison(out.w.data, bytes + guard);
    for (int first = n / 3, end = n; end > 0; end = first, first = 0) {
        const char *const rows = (const char *)src.dev + (size_t)first * k * size;
        const size_t num = (size_t)(end - first);
        if (num == 1 && half < (size_t)k) {
            msgl__cuda_quantize(&e->x, &out.w, (size_t)first, 1, half, (size_t)k - half,
                                rows + half * size, from);
            msgl__cuda_quantize(&e->x, &out.w, (size_t)first, 1, 0, half, rows, from);
        } else {
            msgl__cuda_quantize(&e->x, &out.w, (size_t)first, num, 0, (size_t)k, rows, from);
        }
    }
    exec_sync(e);
    std::vector<uint8_t> behind(guard);
    CUDA_OK(cudaMemcpy(behind.data(), (char *)out.w.data + bytes, guard, cudaMemcpyDeviceToHost));
    for (uint8_t v : behind) expect(f, v == 0xff, "nothing is written behind the weight");
    for (int r = 0; r < n; r++) round_row(format, out.rows.host + (size_t)r * k, k);
    return out;
}

static void quantized_free(quantized *q)
{
    CUDA_OK(cudaFree(q->w.data));
    array_free(&q->rows);
}

static void check_rows(bench_exec *e, family *f, const msgl_wformat *format, int n, int k,
                       msgl_dtype from, msgl_dtype act, uint64_t *seed)
{
    enum { ROWS = 40 };
    quantized q = quantized_new(e, f, format, n, k, from, seed);
    int32_t ids[ROWS];
    for (int i = 0; i < ROWS; i++) ids[i] = (int32_t)(rng_next(seed) % (uint64_t)n);
    int32_t *dev = ints_upload(ids, ROWS);
    array out = array_new(act, (size_t)ROWS * k, 0, seed);
    e->x.act = act;
    msgl__cuda_codes_gather(&e->x, &q.w, dev, ROWS, out.dev);
    exec_sync(e);
    array_download(&out);
    long differ = 0;
    for (size_t i = 0; i < out.n; i++) {
        differ += out.host[i] != rounded(q.rows.host[(size_t)ids[i / k] * k + i % k], act);
    }
    char what[100];
    snprintf(what, sizeof what, "%s, n %d, k %d, dtypes %d and %d: %ld values differ", format->name,
             n, k, (int)from, (int)act, differ);
    expect(f, differ == 0, what);
    CUDA_OK(cudaFree(dev));
    array_free(&out);
    quantized_free(&q);
}

// An infinity or a NaN makes its group NaN, and no other.
static void check_not_finite(bench_exec *e, family *f, const msgl_wformat *format, uint64_t *seed)
{
    const int k = 200, n = 3, span = format->blocks->codes->span;
    const int bad[] = {70, k + 199, 2 * k + 3}; // of each row
    array src = array_new(MSGL_F32, (size_t)n * k, 1, seed),
          out = array_new(MSGL_F32, src.n, 0, seed);
    for (int r = 0; r < n; r++) src.host[bad[r]] = r == 1 ? NAN : r == 0 ? INFINITY : -INFINITY;
    array_upload(&src);
    msgl_weight w = {format, n, k, NULL};
    CUDA_OK(cudaMalloc(&w.data, 4096));
    msgl__cuda_quantize(&e->x, &w, 0, n, 0, k, src.dev, MSGL_F32);
    const int32_t ids[] = {0, 1, 2};
    int32_t *dev = ints_upload(ids, 3);
    e->x.act = MSGL_F32;
    msgl__cuda_codes_gather(&e->x, &w, dev, 3, out.dev);
    exec_sync(e);
    array_download(&out);
    for (int i = 0; i < n * k; i++) {
        const bool nan = i % k / span == bad[i / k] % k / span;
        expect(f, isnan(out.host[i]) == nan, "a group with a value that is not finite is NaN");
    }
    CUDA_OK(cudaFree(dev));
    CUDA_OK(cudaFree(w.data));
    array_free(&src);
    array_free(&out);
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);
    uint64_t seed = o.seed;
    static bench_exec e;
    exec_open(&e, 1 << 20);
    static const int SHAPES[][2] = {{1, 1},      {5, 8},    {37, 64},  {20, 96},
                                    {100, 1016}, {64, 300}, {33, 2048}};
    int failed = 0;
    for (const msgl_blocks *b : {&msgl__int8_blocks, &msgl__blocks_q4_0}) {
        const msgl_wformat format = format_of_codes(b);
        family f = {b->name};
        for (int i = 0; i < 7 * 9; i++) {
            check_rows(&e, &f, &format, SHAPES[i / 9][0], SHAPES[i / 9][1], (msgl_dtype)(i % 3),
                       (msgl_dtype)(i / 3 % 3), &seed);
        }
        check_not_finite(&e, &f, &format, &seed);
        failed |= family_end(&f);
    }
    return failed;
}
