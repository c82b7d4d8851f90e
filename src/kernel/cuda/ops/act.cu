// SPDX-License-Identifier: Apache-2.0
//
// Family act: out = silu(gate) * up, the gate of the feed-forward block (Shazeer 2020, SwiGLU).
#include "kernel/cuda/device.cuh"
#include "kernel/cuda/launch.cuh"
#include "kernel/cuda/ops/ops.h"
#include "kernel/cuda/ops/vec8.cuh"

#define MAX_GRID_Y 65535

static __device__ __forceinline__ float silu(float g)
{
    return __fdividef(g, 1.0f + __expf(-g)); // -g above 88: division by infinity, which gives 0
}

template <typename T>
static __global__ void silu_kernel(const T *gate_up, T *out, int rows, int dim)
{
    msgl__pdl_trigger();
    const int at = (int)(blockIdx.x * blockDim.x + threadIdx.x) * 8;
    msgl__pdl_wait();
    if (at >= dim) return;
    for (int r = (int)blockIdx.y; r < rows; r += (int)gridDim.y) {
        const T *gate = gate_up + (size_t)r * 2 * (size_t)dim + at;
        T *dst = out + (size_t)r * (size_t)dim + at;
        float g[8], u[8];
        load8(gate, g);
        load8(gate + dim, u);
#pragma unroll
        for (int j = 0; j < 8; j++) g[j] = silu(g[j]) * u[j];
        store8(dst, g);
    }
}

template <typename T>
static __global__ void silu_any_kernel(const T *gate_up, T *out, int rows, int dim)
{
    msgl__pdl_trigger();
    const int at = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    msgl__pdl_wait();
    if (at >= dim) return;
    for (int r = (int)blockIdx.y; r < rows; r += (int)gridDim.y) {
        const T *gate = gate_up + (size_t)r * 2 * (size_t)dim + at;
        out[(size_t)r * (size_t)dim + at] = from_f32<T>(silu(to_f32(gate[0])) * to_f32(gate[dim]));
    }
}

template <typename T>
static void silu_typed(msgl_exec *x, const void *gate_up, void *out, int rows, int dim)
{
    const bool vector = dim % 8 == 0 && aligned16(gate_up) && aligned16(out);
    const unsigned items = (unsigned)(vector ? dim / 8 : dim);
    const unsigned threads =
        items <= 64 || (size_t)items * (size_t)rows < (size_t)msgl__cuda_device(x)->sm_count * 256
            ? 64
            : 128;
    const dim3 grid((items + threads - 1) / threads, rows < MAX_GRID_Y ? rows : MAX_GRID_Y);
    MSGL_CUDA_TRY(x,
                  msgl__launch(vector ? silu_kernel<T> : silu_any_kernel<T>, grid, dim3(threads), 0,
                               msgl__cuda_stream(x), (const T *)gate_up, (T *)out, rows, dim));
}

extern "C" void msgl__cuda_silu_mul(msgl_exec *x, const void *gate_up, void *out, int rows, int dim)
{
    if (rows > 0) MSGL_BY_DTYPE(x->act, silu_typed, x, gate_up, out, rows, dim);
}
