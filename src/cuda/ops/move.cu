// SPDX-License-Identifier: Apache-2.0
//
// K and V of tokens to other slots of a pool.
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/ops.h"
#include "cuda/ops/vec8.cuh"

enum { MOVE_THREADS = 128 };

// A thread walks the moves of a request for a Unit of its own of K's and V's columns in one layer;
// blockIdx: part of the columns, layer, request. What a move reads no earlier one has written, so
// that several may be on their way.
template <typename Unit>
static __global__ void __launch_bounds__(MOVE_THREADS)
    move_kernel(const __grid_constant__ msgl_kv_move_call c)
{
    enum { AT_ONCE = 4 };
    const size_t k_units = c.k_bytes / sizeof(Unit), v_units = c.v_bytes / sizeof(Unit);
    const size_t column = (size_t)blockIdx.x * MOVE_THREADS + threadIdx.x;
    msgl__pdl_trigger();
    msgl__pdl_wait();
    if (column >= k_units + v_units) return;
    const bool of_k = column < k_units;
    const size_t units = of_k ? k_units : v_units;
    Unit *const p = (Unit *)(of_k ? c.k : c.v) + blockIdx.y * c.slots * units +
                    (of_k ? column : column - k_units);
    const int end = __ldcg(c.cu_moves + blockIdx.z + 1);
    for (int i = __ldcg(c.cu_moves + blockIdx.z); i < end; i += AT_ONCE) {
        Unit v[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (i + j < end) v[j] = __ldcg(p + (size_t)__ldcg(c.from + i + j) * units);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (i + j < end) p[(size_t)__ldcg(c.to + i + j) * units] = v[j];
        }
    }
}

template <typename Unit> static void move_units(msgl_exec *x, const msgl_kv_move_call *c)
{
    const size_t units = (c->k_bytes + c->v_bytes) / sizeof(Unit);
    const dim3 grid((unsigned)((units + MOVE_THREADS - 1) / MOVE_THREADS), (unsigned)c->num_layers,
                    (unsigned)c->num_reqs);
    MSGL_CUDA_TRY(
        x, msgl__launch(move_kernel<Unit>, grid, dim3(MOVE_THREADS), 0, msgl__cuda_stream(x), *c));
}

extern "C" void msgl__cuda_move_kv(msgl_exec *x, const msgl_kv_move_call *c)
{
    if (c->num_reqs <= 0 || c->num_layers <= 0) return;
    const bool whole =
        c->k_bytes % 16 == 0 && c->v_bytes % 16 == 0 && aligned16(c->k) && aligned16(c->v);
    if (whole) {
        move_units<uint4>(x, c);
    } else {
        move_units<uint8_t>(x, c);
    }
}
