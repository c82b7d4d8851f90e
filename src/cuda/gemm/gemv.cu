// SPDX-License-Identifier: Apache-2.0
//
// Which calls the small-batch kernels take, and with which queue.
#include "cuda/gemm/gemv.h"

#include "cuda/device.cuh"
#include "cuda/gemm/gemv/kernel.cuh"
#include "cuda/gemm/gemv/resident.cuh"
#include "cuda/gemm/turns.cuh"

// One for each multiprocessor, unless that leaves less than half a tile each.
static int blocks_of(const msgl_cuda_device *d, const gemv_params *p)
{
    const int least = p->gated ? 4 : 8, most = (p->n + least - 1) / least;
    return most < d->sm_count ? most : d->sm_count;
}

// How many share one row of activations when they bring them to shared memory.
static int warps_of_row(int m)
{
    int warps = GEMV_WARPS;
    while (warps > 1 && GEMV_WARPS / warps < m) warps /= 2;
    return warps;
}

// Shared memory of a kernel. false: this GPU has less.
template <auto KERNEL> static bool take_shared(size_t bytes)
{
    if (msgl__allow_shared<KERNEL>(bytes, true) == cudaSuccess) return true;
    cudaGetLastError();
    return false;
}

template <typename T, int COLUMNS, int TILES, int HALVES, int DEPTH, bool STREAM>
static bool launch(msgl_exec *x, const gemv_params *p, size_t least = 0)
{
    const msgl_cuda_device *d = msgl__cuda_device(x);
    const int blocks = blocks_of(d, p), held = p->summed ? (p->n + blocks - 1) / blocks : 0;
    size_t shared = gemv_shared<COLUMNS, TILES, HALVES, DEPTH, STREAM>(p->m, p->k, held);
    if (shared < least) shared = least;
    constexpr auto kernel = gemv_kernel<T, COLUMNS, TILES, HALVES, DEPTH, STREAM>;
    if (!take_shared<kernel>(shared)) return false;
    int warps_per_row = warps_of_row(p->m);
    const bool many = p->m > 4 && p->m <= 8 && p->k >= 8 * GEMV_THREADS;
    if (many && p->norm != NULL && gemv_type<T>::wide) warps_per_row = 0;
    MSGL_CUDA_TRY(x, msgl__launch(kernel, dim3(blocks), dim3(GEMV_THREADS), shared, d->stream, *p,
                                  warps_per_row));
    return true;
}

// Two blocks, this kernel's and the next one's, should fit on one multiprocessor (113 KB each); two
// of one kernel that has much to load should not, since another multiprocessor would have none.
template <typename T, int COLUMNS> static bool choose(msgl_exec *x, const gemv_params *p)
{
    enum { LONG_K = 4096, NARROW_DEPTH = COLUMNS == 8 ? 4 : 3 };
    const msgl_cuda_device *d = msgl__cuda_device(x);
    const int blocks = blocks_of(d, p), outputs = (p->n + blocks - 1) / blocks;
    const size_t act = (size_t)p->m * gemv_act_pitch(p->k);
    if (p->norm == NULL && p->k >= LONG_K) {
        return (outputs > 32 && launch<T, COLUMNS, 3, 2, 2, true>(x, p)) ||
               (outputs <= 16 && !p->gated && launch<T, COLUMNS, 1, 2, NARROW_DEPTH, true>(x, p)) ||
               launch<T, COLUMNS, 2, 2, 2, true>(x, p);
    }
    if (!p->gated && outputs <= 8) {
        return launch<T, COLUMNS, 1, 1, 6, false>(x, p) || launch<T, COLUMNS, 1, 1, 3, false>(x, p);
    }
    // Without a norm it is o: two of its blocks on one multiprocessor leave the next product's no
    // room there, which go two on another one, and so on down the chain. (One answer of 14B on two
    // ranks: 4.7 ms a step; 4.2 with this and with sums that start beside products, peer.cu.)
    const size_t alone = p->norm == NULL ? MSGL_TURN_LARGE : 0;
    // With 16 columns a queue of two is slower than norm and library.
    const size_t least = p->much && act > 12 << 10 ? MSGL_TURN_LARGE : 0;
    return (!p->much && act <= 6000 && launch<T, COLUMNS, 1, 2, 6, false>(x, p, alone)) ||
           (least == 0 && act <= 24 << 10 && launch<T, COLUMNS, 1, 2, 5, false>(x, p)) ||
           launch<T, COLUMNS, 1, 2, 4, false>(x, p, least) ||
           (COLUMNS == 8 && launch<T, COLUMNS, 1, 2, 2, false>(x, p));
}

// By turns (turns.cuh).
template <int K, bool NORM> static bool launch_resident(msgl_exec *x, gemv_params *p)
{
    enum { FEW = 32 << 10 };
    const msgl_cuda_device *d = msgl__cuda_device(x);
    const int blocks = d->sm_count, outputs = (p->n + blocks - 1) / blocks;
    size_t shared = gemv_resident_shared<K>(p->gated, outputs);
    if (outputs > GEMV_RESIDENT_OUTPUTS || shared > MSGL_TURN_SMALL) return false;
    if (p->accumulate) shared = MSGL_TURN_LARGE;
    p->each = p->n / blocks, p->extra = p->n % blocks;
    // While these few rows are on their way, the next kernel's weights may be too. Behind a product
    // that is neither gated nor added comes attention, which has tables and old keys to read first.
    p->early = p->accumulate ? (size_t)p->m * K * 2 <= FEW : !p->gated;
    constexpr auto kernel = gemv_resident<K, NORM>;
    if (!take_shared<kernel>(shared)) return false;
    MSGL_CUDA_TRY(x, msgl__launch(kernel, dim3(blocks), dim3(GEMV_THREADS), shared, d->stream, *p));
    return true;
}

template <int K> static bool by_norm(msgl_exec *x, gemv_params *p)
{
    return p->norm != NULL ? launch_resident<K, true>(x, p) : launch_resident<K, false>(x, p);
}

// All weights in shared memory at once, on GPUs with a copy engine and room for two blocks. The
// lengths of rows are those of models with fewer than two billion parameters.
static bool resident(msgl_exec *x, gemv_params *p)
{
    if (p->m > GEMV_RESIDENT_COLUMNS || p->f32_out) return false;
    if (msgl__cuda_device(x)->base.capability != 90) return false;
    switch (p->k) {
    case 896: return by_norm<896>(x, p);
    case 1024: return by_norm<1024>(x, p);
    case 1536: return by_norm<1536>(x, p);
    case 2048: return by_norm<2048>(x, p);
    case 3072: return by_norm<3072>(x, p);
    default: return false;
    }
}

template <typename T> static bool by_rows(msgl_exec *x, const gemv_params *p)
{
    return p->m <= 8 ? choose<T, 8>(x, p) : choose<T, 16>(x, p);
}

bool msgl__cuda_gemv_can(const msgl_exec *x, const msgl_linear_call *c)
{
    const msgl_weight *w = c->w;
    const uintptr_t bits = (uintptr_t)c->in | (uintptr_t)w->data | (uintptr_t)c->norm;
    return !msgl__cuda_device(x)->deterministic && c->m >= 1 && c->m <= GEMV_MAX_ROWS &&
           w->format->dtype == x->act && w->format->dtype != MSGL_F32 && w->k % 8 == 0 &&
           c->ld_in % 8 == 0 && bits % 16 == 0;
}

bool msgl__cuda_gemv(msgl_exec *x, const msgl_linear_call *c)
{
    const msgl_cuda_device *d = msgl__cuda_device(x);
    const msgl_weight *w = c->w;
    if (!msgl__cuda_gemv_can(x, c)) return false;
    gemv_params p = {};
    p.w = (const char *)w->data;
    p.bias = c->bias;
    p.norm = c->norm;
    p.in = (const char *)c->in;
    p.out = (char *)c->out;
    p.ld_in = c->ld_in;
    p.ld_out = c->ld_out;
    p.eps = c->norm_eps;
    p.m = c->m;
    p.n = c->gated ? w->n / 2 : w->n;
    p.k = w->k;
    p.gated = c->gated;
    p.accumulate = c->accumulate;
    p.f32_out = c->f32_out;
    p.summed = c->sum != NULL;
    if (p.summed) p.sum = *c->sum;
    if (w->format->dtype == MSGL_BF16 && resident(x, &p)) return true;
    p.much = (size_t)w->n * w->k * 2 / (size_t)d->sm_count > 200 << 10;
    p.early = p.much;
    return w->format->dtype == MSGL_F16 ? by_rows<__half>(x, &p) : by_rows<__nv_bfloat16>(x, &p);
}
