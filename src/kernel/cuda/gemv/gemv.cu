// SPDX-License-Identifier: Apache-2.0
//
// Which calls the small-batch kernels take, and with which queue.
#include "kernel/cuda/gemv/gemv.h"

#include "kernel/cuda/device.cuh"
#include "kernel/cuda/gemv/kernel.cuh"

template <typename T, int COLUMNS, int TILES, int DEPTH, bool STREAM>
static bool launch(msgl_exec *x, const gemv_params *p)
{
    const msgl_cuda_device *d = msgl__cuda_device(x);
    if (STREAM && p->norm != NULL) return false;
    const size_t shared = gemv_shared<COLUMNS, TILES, DEPTH, STREAM>(p->m, p->k);
    void (*const kernel)(gemv_params, int) = gemv_kernel<T, COLUMNS, TILES, DEPTH, STREAM>;
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared) !=
        cudaSuccess) {
        cudaGetLastError(); // more than this GPU has
        return false;
    }
    int warps_per_row = GEMV_WARPS;
    while (warps_per_row > 1 && GEMV_WARPS / warps_per_row < p->m) warps_per_row /= 2;
    const int tile = p->gated ? 8 : 16;
    const int half_tiles = (p->n + tile / 2 - 1) / (tile / 2);
    const int blocks = half_tiles < d->sm_count ? half_tiles : d->sm_count;
    MSGL_CUDA_TRY(x, msgl__launch(kernel, dim3(blocks), dim3(GEMV_THREADS), shared, d->stream, *p,
                                  warps_per_row));
    return true;
}

template <typename T> static bool choose(msgl_exec *x, const gemv_params *p)
{
    const size_t act = (size_t)p->m * gemv_act_pitch(p->k);
    const bool stream = act > 96 << 10;
    if (p->m > 8) {
        return stream ? launch<T, 16, 3, 2, true>(x, p) : launch<T, 16, 1, 4, false>(x, p);
    }
    if (stream) return launch<T, 8, 3, 2, true>(x, p);
    return act <= 24 << 10 ? launch<T, 8, 1, 5, false>(x, p) : launch<T, 8, 1, 4, false>(x, p);
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
    return w->dtype == MSGL_F16 ? choose<__half>(x, &p) : choose<__nv_bfloat16>(x, &p);
}
