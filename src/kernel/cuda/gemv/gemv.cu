// SPDX-License-Identifier: Apache-2.0
//
// Which calls the small-batch kernels take, and with which queue.
#include "kernel/cuda/gemv/gemv.h"

#include "kernel/cuda/device.cuh"
#include "kernel/cuda/gemv/kernel.cuh"

// One for each multiprocessor, unless that leaves less than half a tile each.
static int blocks_of(const msgl_cuda_device *d, const gemv_params *p)
{
    const int least = p->gated ? 4 : 8, most = (p->n + least - 1) / least;
    return most < d->sm_count ? most : d->sm_count;
}

template <typename T, int COLUMNS, int TILES, int HALVES, int DEPTH, bool STREAM>
static bool launch(msgl_exec *x, const gemv_params *p)
{
    const msgl_cuda_device *d = msgl__cuda_device(x);
    const size_t shared = gemv_shared<COLUMNS, TILES, HALVES, DEPTH, STREAM>(p->m, p->k);
    void (*const kernel)(gemv_params, int) = gemv_kernel<T, COLUMNS, TILES, HALVES, DEPTH, STREAM>;
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared) !=
        cudaSuccess) {
        cudaGetLastError(); // more than this GPU has
        return false;
    }
    int warps_per_row = GEMV_WARPS;
    while (warps_per_row > 1 && GEMV_WARPS / warps_per_row < p->m) warps_per_row /= 2;
    const bool many = p->m > 4 && p->m <= 8 && p->k >= 8 * GEMV_THREADS;
    if (many && p->norm != NULL && gemv_type<T>::wide) warps_per_row = 0;
    MSGL_CUDA_TRY(x, msgl__launch(kernel, dim3(blocks_of(d, p)), dim3(GEMV_THREADS), shared,
                                  d->stream, *p, warps_per_row));
    return true;
}

// The queue is as deep as lets two blocks, this kernel's and the next one's, share a multiprocessor
// (113 KB each), unless one kernel has so much to load that the other hardly matters.
template <typename T, int COLUMNS> static bool choose(msgl_exec *x, const gemv_params *p)
{
    enum { LONG_K = 4096 }; // several queues' worth of steps per pass
    const msgl_cuda_device *d = msgl__cuda_device(x);
    const int blocks = blocks_of(d, p), outputs = (p->n + blocks - 1) / blocks;
    const size_t act = (size_t)p->m * gemv_act_pitch(p->k);
    if (p->norm == NULL && p->k >= LONG_K) {
        return (outputs > 32 && launch<T, COLUMNS, 3, 2, 2, true>(x, p)) ||
               launch<T, COLUMNS, 2, 2, 2, true>(x, p);
    }
    if (!p->gated && outputs <= 8) {
        return launch<T, COLUMNS, 1, 1, 6, false>(x, p) || launch<T, COLUMNS, 1, 1, 3, false>(x, p);
    }
    return (act <= 6000 && launch<T, COLUMNS, 1, 2, 6, false>(x, p)) ||
           (act <= 24 << 10 && launch<T, COLUMNS, 1, 2, 5, false>(x, p)) ||
           launch<T, COLUMNS, 1, 2, 4, false>(x, p) || launch<T, COLUMNS, 1, 2, 2, false>(x, p);
}

template <typename T> static bool by_rows(msgl_exec *x, const gemv_params *p)
{
    return p->m <= 8 ? choose<T, 8>(x, p) : choose<T, 16>(x, p);
}

bool msgl__cuda_gemv(msgl_exec *x, const msgl_linear_call *c)
{
    const msgl_cuda_device *d = msgl__cuda_device(x);
    const msgl_weight *w = c->w;
    if (d->deterministic || c->m < 1 || c->m > GEMV_MAX_ROWS) return false;
    if (w->dtype != x->act || w->dtype == MSGL_F32 || w->k % 8 != 0) return false;
    if (c->ld_in % 8 != 0 || ((uintptr_t)c->in | (uintptr_t)w->data) % 16 != 0) return false;
    if (c->norm != NULL && (uintptr_t)c->norm % 16 != 0) return false;
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
    return w->dtype == MSGL_F16 ? by_rows<__half>(x, &p) : by_rows<__nv_bfloat16>(x, &p);
}
