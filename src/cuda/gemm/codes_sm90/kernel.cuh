// SPDX-License-Identifier: Apache-2.0
//
// The kernel of codes_sm90.cu, which says what it does. A file of this folder instantiates it for
// the forms of a number of bits.
#ifndef MSGL_CUDA_GEMM_CODES_SM90_KERNEL_CUH
#define MSGL_CUDA_GEMM_CODES_SM90_KERNEL_CUH

#include "cuda/device.cuh"
#include "cuda/gemm/codes_sm90/few.cuh"
#include "cuda/gemm/codes_sm90/many.cuh"
#include "cuda/gemm/codes_sm90/prepare.cuh"
#include "cuda/gemm/codes_sm90/results.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/tma.cuh"

// --- loading ------------------------------------------------------------------------------------

// This block in its cluster.
template <int CLUSTER> static __device__ __forceinline__ int rank_of(void)
{
    return CLUSTER == 1 ? 0 : (int)msgl__cluster_rank();
}

// The activations of stage s of a tile; of a cluster each block loads 64 columns for both.
template <typename FORM, int N>
static __device__ __forceinline__ void load_in(const codes_tensors &maps, uint32_t stage, int s,
                                               int token, uint32_t done)
{
    typedef codes_shape<FORM, N> shape;
    const uint32_t to = stage + shape::IN_AT;
    if constexpr (shape::CLUSTER == 1) {
        msgl__tensor_load(to, &maps.in, 0, token, s * shape::STEPS * 2, done);
    } else {
        static_assert(shape::CLUSTER == 2 && shape::STEPS == 1, "64 columns of a block");
        const int rank = rank_of<shape::CLUSTER>();
        msgl__tensor_load_multicast(to + (uint32_t)(rank * shape::HALF_BYTES), &maps.in,
                                    s * CODES_STEP + rank * BK, token, done, 3);
    }
}

// The codes and scales of stage s of a tile's rows.
template <typename FORM, int N>
static __device__ __forceinline__ void load_codes(const codes_args &g, const codes_tensors &maps,
                                                  uint32_t stage, int row_tile, int s,
                                                  uint32_t done)
{
    typedef codes_shape<FORM, N> shape;
    constexpr int STEPS = shape::STEPS;
    const int pair = row_tile * (CODES_ROWS / 16); // of eights
    const int row = g.gated ? row_tile * (CODES_ROWS / 2) : row_tile * CODES_ROWS;
    msgl__mbarrier_expect(done, g.stage_bytes);
    msgl__tensor_load(stage, &maps.low, 0, 0, 0, pair, s * STEPS, done);
    if constexpr (FORM::HIGH > 0) {
        msgl__tensor_load(stage + shape::HIGH_AT, &maps.high, 0, 0, 0, pair, s * STEPS, done);
    }
#pragma unroll
    for (int i = 0; i < FORM::ARRAYS; i++) {
        const int element = FORM::count_of(i) == 1 ? s * STEPS >> (FORM::TWO ? 1 : g.shift)
                                                   : s * STEPS * FORM::GROUPS;
        if (FORM::KIND == CODES_ONE && i == 1 && !g.zeros) continue;
        msgl__tensor_load(stage + shape::SCALES_AT + FORM::array_at(i, shape::SCALES_ROWS),
                          &maps.scales[i], FORM::size_of(i) == 4 ? row * g.wide : row, 0, element,
                          done);
    }
}

// One warp's work, which one of its lanes does: where all lanes go the same way addresses are in
// uniform registers. The codes and scales of the first stages do not wait for the kernel in front.
template <typename FORM, int N>
static __device__ __forceinline__ void load_all(const codes_args &g, const codes_tensors &maps,
                                                codes_ring r, const line_segment &all)
{
    typedef codes_shape<FORM, N> shape;
    constexpr int CLUSTER = shape::CLUSTER;
    const bool leads = threadIdx.x % 32 == 0;
    int tile = all.begin / g.line.stages, s = all.begin - tile * g.line.stages;
    int row_tile = tile / g.column_tiles, column_tile = tile - row_tile * g.column_tiles;
    row_tile = row_tile * CLUSTER + rank_of<CLUSTER>();
    const int first =
        g.line.stages - s < all.end - all.begin ? g.line.stages - s : all.end - all.begin;
    const int ahead = first < shape::STAGES ? first : shape::STAGES;
#pragma unroll 1
    for (int i = 0; i < ahead; i++) {
        if (leads) {
            load_codes<FORM, N>(g, maps, r.stages + i * shape::STAGE_BYTES, row_tile, s + i,
                                r.full + i * 8);
        }
    }
    msgl__pdl_wait();
#pragma unroll 1
    for (int at = all.begin; at < all.end; at++) {
        const uint32_t stage = r.stages + (uint32_t)(r.slot * shape::STAGE_BYTES);
        const uint32_t done = r.full + r.slot * 8;
        const bool begun = at < all.begin + ahead;
        if (!begun) msgl__mbarrier_wait(r.empty + r.slot * 8, r.phase ^ 1);
        if (leads) {
            if (!begun) load_codes<FORM, N>(g, maps, stage, row_tile, s, done);
            load_in<FORM, N>(maps, stage, s, column_tile * N, done);
        }
        __syncwarp();
        next_slot<shape::STAGES>(r);
        if (++s < g.line.stages) continue;
        s = 0;
        if (++column_tile < g.column_tiles) continue;
        column_tile = 0;
        row_tile += CLUSTER;
    }
}

// --- the kernel ---------------------------------------------------------------------------------

template <typename T, typename FORM, int N>
static __device__ __forceinline__ void multiply_all(const codes_args &g, const msgl_codes_row &l,
                                                    codes_ring r, const line_segment &all,
                                                    uint32_t sums, float *factors)
{
    typedef codes_shape<FORM, N> shape;
    constexpr int CLUSTER = shape::CLUSTER;
    const int rank = rank_of<CLUSTER>();
    int tile = all.begin / g.line.stages, s = all.begin - tile * g.line.stages, begin = all.begin;
    const codes_lane<FORM, N> own(g.gated);
    bool factors_ready = false;
    msgl__pdl_wait();
    while (begin < all.end) {
        const int row_tile = tile / g.column_tiles * CLUSTER + rank;
        const int token = tile % g.column_tiles * N;
        const int n = all.end - begin < g.line.stages - s ? all.end - begin : g.line.stages - s;
        float acc[shape::SUMS] = {};
        if constexpr (shape::BY_WARP) {
            if (FORM::KIND == CODES_ONE && g.zeros) {
                multiply_few<T, FORM, N, true>(acc, g, l, own, r, n);
            } else {
                multiply_few<T, FORM, N, false>(acc, g, l, own, r, n);
            }
        } else {
            multiply_group<T, FORM, N>(acc, g, l, own, r, n);
        }
        if (s > 0) {
            line_leave<CODES_WORKERS>(g.line, acc, all.index * CLUSTER + rank);
        } else {
            const uint32_t chunk = sums + (uint32_t)(threadIdx.x / GROUP * shape::CHUNK_BYTES);
            const auto finish = [&](const auto &with) {
                line_add<CODES_WORKERS, CLUSTER>(g.line, acc, all, rank, g.line.stages - n);
                if (!factors_ready) msgl__named_barrier_sync(1, CODES_WORKERS + 32 * shape::REST);
                factors_ready = true;
                store_tile<T, N, shape::PITCH>(g, with, acc, row_tile, token, chunk, factors);
            };
            if (g.gated) {
                finish(codes_finish<N, 32>(g, row_tile, token));
            } else {
                finish(codes_finish<N, 64>(g, row_tile, token));
            }
        }
        begin += n;
        tile++;
        s = 0;
    }
    if (!factors_ready) msgl__named_barrier_sync(1, CODES_WORKERS + 32 * shape::REST);
}

template <typename T, typename FORM, int N>
__global__ void __launch_bounds__((codes_shape<FORM, N>::THREADS), (codes_shape<FORM, N>::BLOCKS))
    codes_sm90(const __grid_constant__ codes_args g, const __grid_constant__ msgl_codes_row l,
               const __grid_constant__ codes_tensors maps)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef codes_shape<FORM, N> shape;
    extern __shared__ unsigned char unaligned[];
    codes_ring r;
    r.stages = (msgl__shared_address(unaligned) + 1023) & ~1023u;
    asm volatile("" : "+r"(r.stages)); // as in codes_lane
    r.full = r.stages + shape::STAGES * shape::STAGE_BYTES;
    r.empty = r.full + CODES_MAX_STAGES * 8;
    r.ready = r.empty + CODES_MAX_STAGES * 8;
    r.slot = 0;
    r.phase = 0;
    const uint32_t factors_at = r.ready + CODES_MAX_STAGES * 8;
    const uint32_t sums = factors_at + shape::FACTORS_BYTES;
    float *const factors = (float *)(unaligned + (factors_at - msgl__shared_address(unaligned)));
    const line_segment all = line_segment_of<shape::CLUSTER>(g.line);
    if (threadIdx.x == CODES_WORKERS) {
        for (int i = 0; i < shape::STAGES; i++) {
            msgl__mbarrier_init(r.full + i * 8, 1);
            msgl__mbarrier_init(r.empty + i * 8, CODES_WARPS * shape::CLUSTER);
            msgl__mbarrier_init(r.ready + i * 8, 1);
        }
        msgl__mbarrier_init_done();
        msgl__fence_async_proxy();
    }
    __syncthreads();
    if constexpr (shape::CLUSTER > 1) msgl__cluster_meet(); // the others' barriers are ready too
    msgl__pdl_trigger();
    if (threadIdx.x >= CODES_WORKERS) {
        msgl__registers_down<shape::LOADER_REGISTERS>();
        const int warp = (int)(threadIdx.x - CODES_WORKERS) / 32;
        const int rest = warp - 1 - shape::PREPARERS;
        if (warp == 0) {
            load_all<FORM, N>(g, maps, r, all);
        } else if (rest >= 0) {
            msgl__pdl_wait();
            row_factors(g, few_factor<T, FORM, N>(g), factors, rest, shape::REST);
            msgl__named_barrier_arrive(1, CODES_WORKERS + 32 * shape::REST);
        } else if constexpr (shape::PREPARERS > 0) {
            prepare_all<T, FORM, N>(g, l, r, all, warp - 1);
        }
    } else {
        msgl__registers_up<shape::REGISTERS>();
        multiply_all<T, FORM, N>(g, l, r, all, sums, factors);
    }
    __syncwarp();
    if constexpr (shape::CLUSTER > 1) msgl__cluster_sync(); // others may still write here
#endif
}

template <typename T, typename FORM, int N>
static bool codes_launch(msgl_exec *x, codes_launch_args a)
{
    typedef codes_shape<FORM, N> shape;
    constexpr auto kernel = codes_sm90<T, FORM, N>;
    a.g.stage_bytes += (uint32_t)shape::SCALES_AT; // to those of the scales
    const int segments = msgl__codes_sm90_cut(x, &a, shape::PER_SM, shape::CLUSTER, CODES_WARPS);
    if (segments == 0) return false;
    const dim3 cluster(shape::CLUSTER), grid((unsigned)(segments * shape::CLUSTER));
    const bool large = shape::BLOCKS == 2 && a.g.accumulate;
    const size_t bytes = large ? (size_t)MSGL_TURN_LARGE : (size_t)shape::SHARED_BYTES;
    const cudaStream_t stream = msgl__cuda_stream(x);
    MSGL_CUDA_TRY(x, msgl__allow_shared<kernel>(bytes, true));
    if (shape::CLUSTER == 1) {
        MSGL_CUDA_TRY(
            x, msgl__launch(kernel, grid, dim3(shape::THREADS), bytes, stream, a.g, a.l, a.maps));
    } else {
        MSGL_CUDA_TRY(x, msgl__launch_clusters(kernel, cluster, grid, dim3(shape::THREADS), bytes,
                                               stream, a.g, a.l, a.maps));
    }
    return true;
}

template <typename FORM> static bool codes_launch_form(msgl_exec *x, const codes_launch_args &a)
{
    const bool half = x->act == MSGL_F16;
    switch (a.tokens) {
    case 8:
        return half ? codes_launch<__half, FORM, 8>(x, a)
                    : codes_launch<__nv_bfloat16, FORM, 8>(x, a);
    case 16:
        return half ? codes_launch<__half, FORM, 16>(x, a)
                    : codes_launch<__nv_bfloat16, FORM, 16>(x, a);
    case 64:
        return half ? codes_launch<__half, FORM, 64>(x, a)
                    : codes_launch<__nv_bfloat16, FORM, 64>(x, a);
    case 128:
        return half ? codes_launch<__half, FORM, 128>(x, a)
                    : codes_launch<__nv_bfloat16, FORM, 128>(x, a);
    }
    return false;
}

#endif
