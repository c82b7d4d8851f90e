// SPDX-License-Identifier: Apache-2.0
//
// The small-batch products against sums in f64. Bounds on the error are derived per output from the
// roundings that the kernel makes: activations behind a norm and the result to the activations'
// dtype, sums in f32.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

#include <cuda_fp16.h>

#include "cuda/device.cuh"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/gemv.h"
#include "cuda/launch.cuh"
#include "tests/cuda/cuda_check.cuh"

// tests/cuda/gemv_plain.cu
extern "C" bool msgl__cuda_gemv_plain(msgl_exec *x, const msgl_linear_call *c);

void msgl__cuda_fault(msgl_device *d, cudaError_t code, const char *what, const char *file,
                      int line)
{
    (void)d;
    fprintf(stderr, "%s (%s:%d): %s\n", what, file, line, cudaGetErrorString(code));
    exit(1);
}

static int failures, checks;
static double worst; // error in units of its bound

static uint64_t rng_state;

static uint32_t rng(void)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33);
}
static float uniform(void) // (-1, 1)
{
    return ((float)(rng() & 0xffffff) + 0.5f) / 8388608.0f - 1;
}
static int pick(const int *from, int count)
{
    return from[rng() % (uint32_t)count];
}

static uint16_t to_half(float v, msgl_dtype t)
{
    if (t == MSGL_BF16) return msgl__f32_to_bf16(v);
    const __half h = __float2half_rn(v);
    uint16_t u;
    memcpy(&u, &h, 2);
    return u;
}
static float from_half(uint16_t u, msgl_dtype t)
{
    if (t == MSGL_BF16) return msgl__bf16_to_f32(u);
    __half h;
    memcpy(&h, &u, 2);
    return __half2float(h);
}

template <typename V> static V *upload(const std::vector<V> &v)
{
    V *p;
    CUDA_OK(cudaMalloc(&p, v.size() * sizeof(V) + 64));
    device_write(p, v.data(), v.size() * sizeof(V));
    return p;
}

typedef struct world {
    msgl_cuda_device device;
    msgl_exec exec;
} world;

static void open_world(world *w, msgl_dtype act)
{
    memset(w, 0, sizeof *w);
    cudaDeviceProp prop;
    CUDA_OK(cudaGetDeviceProperties(&prop, 0));
    w->device.sm_count = prop.multiProcessorCount;
    w->device.base.capability = prop.major * 10 + prop.minor;
    CUDA_OK(cudaStreamCreateWithFlags(&w->device.stream, cudaStreamNonBlocking));
    w->exec.device = &w->device.base;
    w->exec.act = act;
}

typedef struct shape {
    int m, n, k; // n: rows of W
    bool norm, bias, gated, accumulate, f32_out;
} shape;

// One product with fresh random data; every output is compared.
static void check_product(msgl_dtype t, shape s)
{
    world wd;
    open_world(&wd, t);
    const int out_n = s.gated ? s.n / 2 : s.n;
    const size_t ld_in = (size_t)s.k + 8 * (rng() % 3), ld_out = (size_t)out_n + rng() % 5;
    const float deviation = 2 / sqrtf((float)s.k);
    std::vector<uint16_t> w((size_t)s.n * s.k), in(s.m * ld_in), out(s.m * ld_out + 16);
    std::vector<float> norm(s.k), bias(s.n), out32(s.m * ld_out + 16);
    for (auto &v : w) v = to_half(uniform() * deviation, t);
    for (auto &v : in) v = 0x7fff; // NaN between rows
    for (int r = 0; r < s.m; r++) {
        const float size = s.norm ? powf(10, 2 * uniform()) : 1;
        for (int i = 0; i < s.k; i++) in[r * ld_in + i] = to_half(size * uniform(), t);
    }
    for (auto &v : norm) v = 1 + 0.5f * uniform();
    for (auto &v : bias) v = uniform();
    for (auto &v : out) v = s.accumulate ? to_half(uniform(), t) : 0x7fff;
    for (auto &v : out32) v = NAN;
    uint16_t *dw = upload(w), *din = upload(in), *dout = upload(out);
    float *dnorm = upload(norm), *dbias = upload(bias), *dout32 = upload(out32);

    msgl_weight weight = {&msgl__cuda_formats[t], s.n, s.k, dw};
    msgl_linear_call c = {};
    c.w = &weight;
    c.bias = s.bias ? dbias : NULL;
    c.in = din;
    c.ld_in = ld_in;
    c.m = s.m;
    c.norm = s.norm ? dnorm : NULL;
    c.norm_eps = 1e-6f;
    c.gated = s.gated;
    c.accumulate = s.accumulate;
    c.f32_out = s.f32_out;
    c.out = s.f32_out ? (void *)dout32 : (void *)dout;
    c.ld_out = ld_out;
    const bool taken = msgl__cuda_gemv(&wd.exec, &c);
    CUDA_OK(cudaStreamSynchronize(wd.device.stream));
    std::vector<uint16_t> got(out.size());
    std::vector<float> got32(out32.size());
    CUDA_OK(cudaMemcpy(got.data(), dout, got.size() * 2, cudaMemcpyDeviceToHost));
    CUDA_OK(cudaMemcpy(got32.data(), dout32, got32.size() * 4, cudaMemcpyDeviceToHost));
    cudaFree(dw), cudaFree(din), cudaFree(dout), cudaFree(dnorm), cudaFree(dbias), cudaFree(dout32);
    cudaStreamDestroy(wd.device.stream);
    checks++;
    if (!taken) {
        if (s.m <= 8 || (s.m <= 16 && s.k <= 2048)) {
            failures++;
            printf("not taken: m=%d n=%d k=%d\n", s.m, s.n, s.k);
        }
        return;
    }

    const double half_unit = t == MSGL_BF16 ? 1.0 / 256 : 1.0 / 2048; // of one rounding
    std::vector<double> x(s.k);
    int bad = 0;
    for (int r = 0; r < s.m; r++) {
        double square = 0;
        for (int i = 0; i < s.k; i++) {
            x[i] = from_half(in[r * ld_in + i], t);
            square += x[i] * x[i];
        }
        const double scale = s.norm ? 1 / sqrt(square / s.k + 1e-6) : 1;
        for (int i = 0; i < s.k; i++) x[i] *= s.norm ? scale * norm[i] : 1;
        for (int o = 0; o < out_n; o++) {
            double sum[2] = {}, slack[2] = {};
            for (int h = 0; h < (s.gated ? 2 : 1); h++) {
                const uint16_t *row = &w[(size_t)(o + h * out_n) * s.k];
                double size = 0;
                for (int i = 0; i < s.k; i++) {
                    const double v = from_half(row[i], t) * x[i];
                    sum[h] += v;
                    size += fabs(v);
                }
                slack[h] = size * (s.norm ? half_unit : 0) + size * 4e-6 + 1e-7;
                // Values behind the norm may be subnormal in f16.
                if (s.norm && t == MSGL_F16) slack[h] += s.k * deviation * 6e-8;
                if (s.bias) sum[h] += bias[o + h * out_n];
            }
            double want = sum[0], bound = slack[0];
            if (s.gated) {
                const double act = sum[0] / (1 + exp(-sum[0]));
                want = act * sum[1];
                bound = 1.1 * slack[0] * fabs(sum[1]) + (fabs(act) + 1.1 * slack[0]) * slack[1] +
                        1e-6 * fabs(want);
            }
            if (s.accumulate) want += from_half(out[r * ld_out + o], t);
            if (!s.f32_out) bound += half_unit * (fabs(want) + bound) + 1e-7;
            const double have =
                s.f32_out ? got32[r * ld_out + o] : from_half(got[r * ld_out + o], t);
            const double error = fabs(have - want) / bound;
            if (!(error <= 1)) {
                if (bad++ == 0) {
                    printf("%s m=%d n=%d k=%d norm=%d bias=%d gated=%d acc=%d f32=%d: row %d "
                           "output %d is %g, not %g +- %g\n",
                           msgl__dtype_size(t) == 2 && t == MSGL_BF16 ? "bf16" : "f16", s.m, s.n,
                           s.k, s.norm, s.bias, s.gated, s.accumulate, s.f32_out, r, o, have, want,
                           bound);
                }
            } else if (error > worst) {
                worst = error;
            }
        }
        for (size_t o = out_n; o < ld_out; o++) { // between rows: untouched
            if (got[r * ld_out + o] != out[r * ld_out + o] || !isnan(got32[r * ld_out + o])) bad++;
        }
    }
    for (size_t i = s.m * ld_out; i < out.size(); i++) {
        if (got[i] != out[i] || !isnan(got32[i])) bad++;
    }
    if (bad > 0) {
        failures++;
        printf("  %d wrong\n", bad);
    }
}

static __global__ void plain_copy(const uint16_t *in, uint16_t *out, int count)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = in[i];
}

static __global__ void early_copy(const uint16_t *in, uint16_t *out, int count)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = in[i];
}

enum { LAYERS = 12 };

typedef struct chain {
    int hidden, inner, m;
    uint16_t *w[LAYERS][3]; // square, gate and up, down
    uint16_t *start, *x, *y, *z;
    float *norm;
} chain;

typedef bool (*gemv_fn)(msgl_exec *x, const msgl_linear_call *c);

// Layers whose kernels all depend on each other, some launched early and some not.
static void queue_chain(msgl_exec *x, const chain *c, gemv_fn gemv, bool early)
{
    const int h = c->hidden, count = c->m * h, blocks = (count + 255) / 256;
    cudaStream_t stream = msgl__cuda_stream(x);
    CUDA_OK(cudaMemcpyAsync(c->x, c->start, count * 2, cudaMemcpyDeviceToDevice, stream));
    for (int l = 0; l < LAYERS; l++) {
        const msgl_weight w[3] = {{&msgl__cuda_formats[x->act], h, h, c->w[l][0]},
                                  {&msgl__cuda_formats[x->act], 2 * c->inner, h, c->w[l][1]},
                                  {&msgl__cuda_formats[x->act], h, c->inner, c->w[l][2]}};
        msgl_linear_call a = {};
        a.w = &w[0], a.in = c->x, a.ld_in = h, a.m = c->m, a.norm = c->norm, a.norm_eps = 1e-6f;
        a.out = c->y, a.ld_out = h;
        if (!gemv(x, &a)) failures++;
        if (l % 3 == 0) {
            plain_copy<<<blocks, 256, 0, stream>>>(c->y, c->z, count);
        } else if (early) {
            CUDA_OK(msgl__launch(early_copy, dim3(blocks), dim3(256), 0, stream,
                                 (const uint16_t *)c->y, c->z, count));
        } else {
            early_copy<<<blocks, 256, 0, stream>>>(c->y, c->z, count);
        }
        msgl_linear_call b = {};
        b.w = &w[1], b.in = c->z, b.ld_in = h, b.m = c->m, b.gated = true;
        b.out = c->y, b.ld_out = c->inner;
        if (!gemv(x, &b)) failures++;
        msgl_linear_call d = {};
        d.w = &w[2], d.in = c->y, d.ld_in = c->inner, d.m = c->m, d.accumulate = true;
        d.out = c->x, d.ld_out = h;
        if (!gemv(x, &d)) failures++;
    }
}

static void check_chain(int hidden, int inner, int m)
{
    world wd;
    open_world(&wd, MSGL_BF16);
    chain c = {};
    c.hidden = hidden, c.inner = inner, c.m = m;
    const int rows[3] = {hidden, 2 * inner, hidden}, ks[3] = {hidden, hidden, inner};
    for (int l = 0; l < LAYERS; l++) {
        for (int i = 0; i < 3; i++) {
            std::vector<uint16_t> w((size_t)rows[i] * ks[i]);
            for (auto &v : w) v = msgl__f32_to_bf16(uniform() * 1.5f / sqrtf((float)ks[i]));
            c.w[l][i] = upload(w);
        }
    }
    const int wide = m * (hidden > inner ? hidden : inner);
    std::vector<uint16_t> start(wide);
    for (auto &v : start) v = msgl__f32_to_bf16(uniform());
    std::vector<float> norm(hidden);
    for (auto &v : norm) v = 1 + uniform() / 2;
    c.start = upload(start), c.x = upload(start), c.y = upload(start), c.z = upload(start);
    c.norm = upload(norm);
    const int count = m * hidden;
    std::vector<uint16_t> want(count), got(count);
    queue_chain(&wd.exec, &c, msgl__cuda_gemv_plain, false);
    CUDA_OK(cudaStreamSynchronize(wd.device.stream));
    CUDA_OK(cudaMemcpy(want.data(), c.x, count * 2, cudaMemcpyDeviceToHost));
    const cudaGraphExec_t exec =
        cuda_capture(wd.device.stream, [&] { queue_chain(&wd.exec, &c, msgl__cuda_gemv, true); });
    for (int round = 0; round < 12; round++) {
        if (round < 4) {
            queue_chain(&wd.exec, &c, msgl__cuda_gemv, true);
        } else {
            CUDA_OK(cudaGraphLaunch(exec, wd.device.stream));
        }
        CUDA_OK(cudaStreamSynchronize(wd.device.stream));
        CUDA_OK(cudaMemcpy(got.data(), c.x, count * 2, cudaMemcpyDeviceToHost));
        checks++;
        if (memcmp(got.data(), want.data(), count * 2) != 0) {
            failures++;
            printf("chain %d/%d m=%d round %d: differs from the one in order\n", hidden, inner, m,
                   round);
        }
    }
    for (uint16_t v : want) {
        if (!isfinite(msgl__bf16_to_f32(v))) {
            failures++;
            printf("chain: not finite\n");
            break;
        }
    }
    CUDA_OK(cudaGraphExecDestroy(exec));
    for (int l = 0; l < LAYERS; l++) {
        for (int i = 0; i < 3; i++) cudaFree(c.w[l][i]);
    }
    cudaFree(c.start), cudaFree(c.x), cudaFree(c.y), cudaFree(c.z), cudaFree(c.norm);
    cudaStreamDestroy(wd.device.stream);
}

// A row's bits are the same for every m of the same kernel.
static void check_rows_alone(int n, int k)
{
    world wd;
    open_world(&wd, MSGL_BF16);
    const int most = 8;
    std::vector<uint16_t> w((size_t)n * k), in((size_t)most * k), out((size_t)most * n);
    for (auto &v : w) v = msgl__f32_to_bf16(uniform() / 16);
    for (auto &v : in) v = msgl__f32_to_bf16(uniform());
    uint16_t *dw = upload(w), *din = upload(in), *dout = upload(out);
    std::vector<uint16_t> all(out.size()), one(n);
    const msgl_weight weight = {&msgl__cuda_formats[MSGL_W_BF16], n, k, dw};
    msgl_linear_call c = {};
    c.w = &weight, c.in = din, c.ld_in = k, c.m = most, c.out = dout, c.ld_out = n;
    msgl__cuda_gemv(&wd.exec, &c);
    CUDA_OK(cudaStreamSynchronize(wd.device.stream));
    CUDA_OK(cudaMemcpy(all.data(), dout, all.size() * 2, cudaMemcpyDeviceToHost));
    for (int r = 0; r < most; r++) {
        c.m = 1, c.in = din + (size_t)r * k;
        msgl__cuda_gemv(&wd.exec, &c);
        CUDA_OK(cudaStreamSynchronize(wd.device.stream));
        CUDA_OK(cudaMemcpy(one.data(), dout, n * 2, cudaMemcpyDeviceToHost));
        checks++;
        if (memcmp(one.data(), &all[(size_t)r * n], n * 2) != 0) {
            failures++;
            printf("n=%d k=%d: row %d differs alone\n", n, k, r);
        }
    }
    cudaFree(dw), cudaFree(din), cudaFree(dout);
    cudaStreamDestroy(wd.device.stream);
}

static void check_refusals(void)
{
    world wd;
    open_world(&wd, MSGL_BF16);
    const msgl_weight weight = {&msgl__cuda_formats[MSGL_W_BF16], 64, 64, (void *)4096};
    msgl_linear_call c = {};
    c.w = &weight, c.in = (void *)4096, c.ld_in = 64, c.m = 17, c.out = (void *)4096, c.ld_out = 64;
    checks += 4;
    if (msgl__cuda_gemv(&wd.exec, &c)) failures++, printf("17 rows taken\n");
    c.m = 1, c.in = (void *)4104;
    if (msgl__cuda_gemv(&wd.exec, &c)) failures++, printf("unaligned rows taken\n");
    c.in = (void *)4096, wd.exec.act = MSGL_F32;
    if (msgl__cuda_gemv(&wd.exec, &c)) failures++, printf("f32 taken\n");
    wd.exec.act = MSGL_BF16, wd.device.deterministic = true;
    if (msgl__cuda_gemv(&wd.exec, &c)) failures++, printf("taken though deterministic\n");
    cudaStreamDestroy(wd.device.stream);
}

static shape random_shape(bool quick)
{
    static const int ks[] = {8,   16,  40,   64,   72,   128,  136,  504,  512,
                             520, 896, 1024, 1032, 1536, 2048, 3072, 4104, 5120};
    static const int ns[] = {2,   4,   8,   10,  16,   30,   64,   130,  256,
                             264, 510, 514, 768, 1024, 1056, 1058, 2112, 2500};
    shape s = {};
    s.m = 1 + (int)(rng() % 16);
    s.k = pick(ks, quick ? 12 : 18);
    s.n = pick(ns, quick ? 10 : 18);
    s.norm = rng() % 2;
    s.bias = rng() % 2;
    const int kind = (int)(rng() % 4);
    s.gated = kind == 0, s.accumulate = kind == 1, s.f32_out = kind == 2;
    if (!s.gated && rng() % 2) s.n -= 1;
    return s;
}

int main(int argc, char **argv)
{
    bool quick = false;
    rng_state = 1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) quick = true;
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) rng_state = strtoull(argv[++i], 0, 10);
    }
    rng();
    for (int i = 0; i < (quick ? 24 : 240); i++) {
        check_product(i % 4 == 3 ? MSGL_F16 : MSGL_BF16, random_shape(quick));
    }
    for (int m = 1; m <= 8; m += quick ? 7 : 1) { // weights that fit into shared memory at once
        check_product(MSGL_BF16, {m, 4096, 1024, true});
        check_product(MSGL_BF16, {m, 6144, 1024, true, false, true});
        check_product(MSGL_BF16, {m, 1024, 2048, false, false, false, true});
        check_product(MSGL_BF16, {m, 1023, 3072, false, true, false, true});
        check_product(MSGL_BF16, {m, 1152, 896, true, true});
        check_product(MSGL_BF16, {m, 4226, 896, true, true, true});
        check_product(MSGL_BF16, {m, 1535, 1536, true, false, false, true});
        check_product(MSGL_BF16, {m, 130, 2048, true, true, true});
    }
    for (int m = quick ? 8 : 1; m <= 16; m += quick ? 8 : 1) { // long rows, few outputs a block
        check_product(m % 3 ? MSGL_BF16 : MSGL_F16, {m, 2048, 4096, false, m > 9, false, m < 9});
    }
    if (!quick) {
        for (int m = 1; m <= 16; m++) {
            check_product(MSGL_BF16, {m, 200, 3072, m % 2 == 0, false, m % 3 == 0, m % 3 == 1});
        }
        for (int m = 1; m <= 8; m++) { // longer than shared memory holds
            check_product(MSGL_BF16, {m, 300, 17408, false, m % 2 == 0, false, m % 3 != 0});
            check_product(m % 2 ? MSGL_BF16 : MSGL_F16, {m, 1400, 5120, true, false, m % 3 != 0});
            check_product(MSGL_BF16, {m, 5121, 4104, false, false, m == 8, m < 4});
        }
        check_product(MSGL_BF16, {3, 151937, 64, true, false, false, false, true});
    }
    check_rows_alone(quick ? 100 : 1000, quick ? 256 : 2048);
    check_chain(256, 384, 1);
    if (!quick) {
        check_chain(1024, 3072, 1);
        check_chain(1024, 3072, 8);
        check_chain(1024, 3072, 16);
        check_chain(2048, 1000, 3);
    }
    check_refusals();
    CUDA_OK(cudaDeviceSynchronize());
    printf("gemv: %d checks, worst error %.2f of its bound, %d failures\n", checks, worst,
           failures);
    return failures > 0;
}
