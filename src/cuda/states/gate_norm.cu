// SPDX-License-Identifier: Apache-2.0
//
// Gate and norm of a recurrence's results: a block has a part of a row that is normed by itself.
// z begins anywhere (a row of a fused product may have any length), so elements are read one by
// one, neighbours by neighbours.
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/rms.cuh"
#include "cuda/owner.cuh"
#include "cuda/states/args.cuh"
#include "cuda/states/states.h"

struct gate_norm_args {
    states_args io;
    msgl_cuda_gate_norm c;
    int each;  // elements of a part
    bool rows; // a request has other than one row
};

static __device__ __forceinline__ float gate_of(const msgl_cuda_gate_norm &c, float z)
{
    return c.sigmoid ? sigmoid_f32(z * c.z_scale) : silu_f32(z * c.z_scale);
}

// Grid: rows, parts.
template <typename T, int THREADS>
static __global__ void __launch_bounds__(THREADS)
    gate_norm_kernel(const __grid_constant__ gate_norm_args p)
{
    __shared__ float warps[32];
    msgl__pdl_trigger();
    const msgl_cuda_gate_norm &c = p.c;
    const int row = p.io.cu_seqlens_q[0] + (int)blockIdx.x, first = (int)blockIdx.y * p.each;
    const int r = p.rows ? msgl__owner_of(p.io.cu_seqlens_q, p.io.size, row) : (int)blockIdx.x;
    msgl__pdl_wait();
    if (p.io.to[r] < 0) return; // all of the block
    T *const y = (T *)c.y + (size_t)row * c.ld_y + first;
    const T *const z = (const T *)c.z + (size_t)row * c.ld_z + first;
    float by = 1;
    if (c.norm != MSGL_SSM_NORM_NONE) {
        float sum = 0;
        for (int i = (int)threadIdx.x; i < p.each; i += THREADS) {
            float v = to_f32(y[i]);
            if (c.norm == MSGL_SSM_NORM_GATED) v *= gate_of(c, to_f32(z[i]));
            sum = fmaf(v, v, sum);
        }
        by = 1.0f / sqrtf(block_sum(sum, warps) / (float)p.each + c.eps);
    }
    for (int i = (int)threadIdx.x; i < p.each; i += THREADS) {
        const float w =
            c.norm != MSGL_SSM_NORM_NONE ? by * c.weight[c.same_weight ? i : first + i] : 1;
        y[i] = from_f32<T>(to_f32(y[i]) * gate_of(c, to_f32(z[i])) * w);
    }
}

template <typename T> static void launch(msgl_exec *x, const gate_norm_args *p, int tokens)
{
    const int threads = p->each >= 2048 ? 256 : p->each >= 512 ? 128 : 32;
    void (*const kernel)(gate_norm_args) = threads == 256   ? gate_norm_kernel<T, 256>
                                           : threads == 128 ? gate_norm_kernel<T, 128>
                                                            : gate_norm_kernel<T, 32>;
    const dim3 grid((unsigned)tokens, (unsigned)p->c.groups);
    MSGL_CUDA_TRY(x,
                  msgl__launch(kernel, grid, dim3((unsigned)threads), 0, msgl__cuda_stream(x), *p));
}

extern "C" void msgl__cuda_gate_norm_rows(msgl_exec *x, const msgl_states *io,
                                          const msgl_cuda_gate_norm *c)
{
    gate_norm_args p = {};
    p.io = states_args_of(io);
    p.c = *c;
    p.each = c->dim / c->groups;
    p.rows = io->seqs->phase != MSGL_DECODE;
    MSGL_BY_DTYPE(x->act, launch, x, &p, io->seqs->num_tokens);
}
