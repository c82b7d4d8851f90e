// SPDX-License-Identifier: Apache-2.0
//
// Gated products of 65 to 256 rows with large weights on Hopper, as in decode steps of many
// requests:
//
//   out[m, n/2] = silu(in G^T) * (in U^T), W = [G; U]
//
// The weights' rows are the rows of the tensor cores' product and all of the activations its
// columns, so that work grows with m, W is read once, and silu is done to the sums.
//
// A tile is 256 rows of W, 128 for each of the two blocks of a cluster, times all m columns; a
// block's are 64 rows of G and the same ones of U, taking turns by eight, so that the thread that
// has the sum of a gate has its up's too. Each block loads half of the activations for both. The
// tiles' steps of k lie on a line (line.cuh). docs/internals/gemm.md has the figures.
#include "cuda/gemm/stream_sm90.h"

#include "cuda/device.cuh"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/line.cuh"
#include "cuda/gemm/stage.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/tensor_map.cuh"

enum {
    ROWS = 128,         // of W in a block
    OUTPUTS = ROWS / 4, // of a warpgroup
    CLUSTER = 2,
    WORKERS = 2 * GROUP,
    THREADS = WORKERS + GROUP,
    WARPS = WORKERS / 32,
    W_BYTES = ROWS * ROW_BYTES,
    MAX_COLUMNS = 256,
    MAX_SHARED = 227 << 10,
    MAX_STAGES = 8,
};

template <int N> struct stream_shape {
    static constexpr int IN_BYTES = N * ROW_BYTES, STAGE_BYTES = W_BYTES + IN_BYTES;
    static constexpr int SMALL_BYTES = MAX_STAGES * 16 + 1024; // barriers, alignment
    static constexpr int FIT = (MAX_SHARED - SMALL_BYTES) / STAGE_BYTES;
    static constexpr int STAGES = FIT < MAX_STAGES ? FIT : MAX_STAGES;
    static constexpr int SHARED_BYTES = STAGES * STAGE_BYTES + SMALL_BYTES;
    static constexpr int SUMS = N / 2; // of a thread
};

// --- loading ------------------------------------------------------------------------------------

struct loader {
    const CUtensorMap *in, *w;
    int rank;
};

// This block's 128 rows of W at step s.
static __device__ __forceinline__ void load_w(const loader &l, uint32_t to, int tile, int s,
                                              uint32_t done)
{
    const int block = tile * CLUSTER + l.rank;
    msgl__tensor_load(to, l.w, s * BK, 0, 0, block * (ROWS / 16), done);
}

// This block's half of the activations at step s, for both blocks.
template <int N>
static __device__ __forceinline__ void load_in(const loader &l, uint32_t stage, int s,
                                               uint32_t done)
{
    constexpr int HALF = N / CLUSTER;
    const uint32_t to = stage + W_BYTES + (uint32_t)(l.rank * HALF * ROW_BYTES);
    msgl__tensor_load_multicast(to, l.in, s * BK, l.rank * HALF, done, (1 << CLUSTER) - 1);
}

// All of one thread's work. The weights of the first steps do not wait for the kernel in front.
template <int N>
static __device__ __forceinline__ void load_all(const gemm_line &line, const loader &l, ring r,
                                                int begin, int end)
{
    typedef stream_shape<N> shape;
    int tile = begin / line.stages, s = begin - tile * line.stages;
    int n = end - begin < line.stages - s ? end - begin : line.stages - s;
    const int ahead = n < shape::STAGES ? n : shape::STAGES;
#pragma unroll 1
    for (int i = 0; i < ahead; i++) {
        msgl__mbarrier_expect(r.full + i * 8, shape::STAGE_BYTES);
        load_w(l, r.stages + i * shape::STAGE_BYTES, tile, s + i, r.full + i * 8);
    }
    msgl__pdl_wait();
    int begun = ahead;
    while (begin < end) {
        const bool is_head = s == 0;
#pragma unroll 1
        for (int i = 0; i < n; i++, s++) {
            const uint32_t stage = r.stages + (uint32_t)(r.slot * shape::STAGE_BYTES);
            const uint32_t done = r.full + r.slot * 8;
            if (begun > 0) {
                begun--;
            } else {
                msgl__mbarrier_wait(r.empty + r.slot * 8, r.phase ^ 1);
                msgl__mbarrier_expect(done, shape::STAGE_BYTES);
                load_w(l, stage, tile, s, done);
            }
            load_in<N>(l, stage, s, done);
            next_slot<shape::STAGES>(r);
        }
        // Room for the results of either warpgroup.
#pragma unroll 1
        for (int i = 0; is_head && i < 2; i++) {
            msgl__mbarrier_wait(r.empty + r.slot * 8, r.phase ^ 1);
            msgl__mbarrier_arrive(r.full + r.slot * 8);
            next_slot<shape::STAGES>(r);
        }
        begin += n;
        tile++;
        s = 0;
        n = end - begin < line.stages ? end - begin : line.stages;
    }
}

// --- multiplying --------------------------------------------------------------------------------

// Both blocks' loaders may fill this slot as far as this warp is concerned.
static __device__ __forceinline__ void release(const ring &r, int slot)
{
    const int lane = threadIdx.x % 32;
    if (lane < CLUSTER) msgl__mbarrier_arrive_at(r.empty + slot * 8, (uint32_t)lane);
}

template <typename T, int N>
static __device__ __forceinline__ void multiply(float (&acc)[N / 2], ring &r, int group, int n)
{
    typedef stream_shape<N> shape;
    int last = 0;
#pragma unroll 1
    for (int s = 0; s < n; s++) {
        const uint32_t stage = r.stages + (uint32_t)(r.slot * shape::STAGE_BYTES);
        msgl__mbarrier_wait(r.full + r.slot * 8, r.phase);
        multiply_stage(acc, msgl__wgmma_operand(stage + (uint32_t)(group * (W_BYTES / 2))),
                       msgl__wgmma_operand(stage + W_BYTES), s > 0, T());
        msgl__wgmma_wait<1>();
        if (s > 0) release(r, last);
        last = r.slot;
        next_slot<shape::STAGES>(r);
    }
    msgl__wgmma_wait<0>();
    release(r, last);
}

// --- results ------------------------------------------------------------------------------------
//
// A thread holds, of the gate in its warp's row lane / 4 of W and the up in the row 8 further on,
// columns (rows of out) 8 j + 2 (lane % 4) and the next one: acc[4 j] and acc[4 j + 1] are gates,
// the next two their ups. Matrices of 8 x 8 are transposed on the way to shared memory, where rows
// of 32 outputs lie as a tensor copy wants them: swizzled by 64 bytes.

template <typename T, int N>
static __device__ __forceinline__ void fill(const float (&acc)[N / 2], uint32_t to)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, t = lane % 16;
    to += (uint32_t)(t * 64 + (warp ^ t / 2 % 4) * 16);
#pragma unroll
    for (int i = 0; i < N / 16; i++, to += 16 * 64) {
        const float *v = acc + 8 * i;
        const uint32_t a = msgl__pack_two(msgl__silu(v[0]) * v[2], msgl__silu(v[1]) * v[3], T());
        const uint32_t b = msgl__pack_two(msgl__silu(v[4]) * v[6], msgl__silu(v[5]) * v[7], T());
        msgl__store_matrix_2_transposed(to, a, b);
    }
}

// A finished tile: each warpgroup's results go through a stage of their own.
template <typename T, int N>
static __device__ __forceinline__ void store(const float (&acc)[N / 2], ring &r,
                                             const CUtensorMap *map, int block, int group)
{
    typedef stream_shape<N> shape;
#pragma unroll 1
    for (int i = 0; i < 2; i++) {
        msgl__mbarrier_wait(r.full + r.slot * 8, r.phase);
        if (i == group) {
            const uint32_t to = r.stages + (uint32_t)(r.slot * shape::STAGE_BYTES);
            fill<T, N>(acc, to);
            msgl__fence_async_proxy();
            msgl__named_barrier_sync(1 + group, GROUP);
            if (threadIdx.x % GROUP == 0) {
                msgl__tensor_store(map, to, (block * 2 + group) * OUTPUTS, 0);
                msgl__tensor_store_commit();
                msgl__tensor_store_read<0>();
            }
            __syncwarp();
        }
        release(r, r.slot);
        next_slot<shape::STAGES>(r);
    }
}

// --- the kernel ---------------------------------------------------------------------------------

template <typename T, int N>
__global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(CLUSTER, 1, 1)
    stream_sm90(const __grid_constant__ gemm_line line, const __grid_constant__ CUtensorMap map_in,
                const __grid_constant__ CUtensorMap map_w,
                const __grid_constant__ CUtensorMap map_out)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef stream_shape<N> shape;
    extern __shared__ unsigned char unaligned[];
    ring r;
    r.stages = (msgl__shared_address(unaligned) + 1023) & ~1023u;
    r.full = r.stages + shape::STAGES * shape::STAGE_BYTES;
    r.empty = r.full + MAX_STAGES * 8;
    r.slot = 0;
    r.phase = 0;
    const int rank = (int)msgl__cluster_rank(), warp = threadIdx.x / 32;
    const line_segment all = line_segment_of<CLUSTER>(line);
    int begin = all.begin;
    const int end = all.end;
    if (threadIdx.x == WORKERS) {
        msgl__tensor_prefetch(&map_w);
        msgl__tensor_prefetch(&map_in);
        msgl__tensor_prefetch(&map_out);
        for (int i = 0; i < shape::STAGES; i++) {
            msgl__mbarrier_init(r.full + i * 8, 1);
            msgl__mbarrier_init(r.empty + i * 8, CLUSTER * WARPS);
        }
        msgl__mbarrier_init_done();
        msgl__fence_async_proxy();
    }
    __syncwarp();
    msgl__cluster_meet(); // the barriers are ready, here and in the other block
    msgl__pdl_trigger();
    if (warp >= WARPS) {
        msgl__registers_down<40>();
        if (threadIdx.x == WORKERS) {
            const loader l = {&map_in, &map_w, rank};
            load_all<N>(line, l, r, begin, end);
        }
        __syncwarp();
    } else {
        msgl__registers_up<232>();
        const int group = warp / 4;
        int tile = begin / line.stages, s = begin - tile * line.stages;
        msgl__pdl_wait();
        while (begin < end) {
            float acc[shape::SUMS];
            const int n = end - begin < line.stages - s ? end - begin : line.stages - s;
            multiply<T, N>(acc, r, group, n);
            if (s > 0) {
                line_leave<WORKERS>(line, acc, all.index * CLUSTER + rank);
            } else {
                line_add<WORKERS, CLUSTER>(line, acc, all, rank, line.stages - n);
                store<T, N>(acc, r, &map_out, tile * CLUSTER + rank, group);
            }
            begin += n;
            tile++;
            s = 0;
        }
        if (threadIdx.x % GROUP == 0) msgl__tensor_store_wait();
    }
    __syncwarp();
    msgl__cluster_sync(); // the other block may still write and arrive here
#endif
}

// --- host ---------------------------------------------------------------------------------------

template <typename T, int N>
static void launch(msgl_exec *x, const gemm_line &line, const CUtensorMap maps[3], int segments)
{
    constexpr auto kernel = stream_sm90<T, N>;
    const int bytes = stream_shape<N>::SHARED_BYTES;
    MSGL_CUDA_TRY(x, msgl__allow_shared<kernel>((size_t)bytes));
    MSGL_CUDA_TRY(x, msgl__launch(kernel, dim3((unsigned)(segments * CLUSTER)), dim3(THREADS),
                                  (size_t)bytes, msgl__cuda_stream(x), line, maps[0], maps[1],
                                  maps[2]));
}

template <typename T>
static void launch_columns(msgl_exec *x, const gemm_line &line, const CUtensorMap maps[3],
                           int segments, int columns)
{
    switch (columns) {
    case 128: launch<T, 128>(x, line, maps, segments); break;
    case 160: launch<T, 160>(x, line, maps, segments); break;
    case 192: launch<T, 192>(x, line, maps, segments); break;
    case 256: launch<T, 256>(x, line, maps, segments); break;
    }
}

bool msgl__cuda_stream_sm90_can(const msgl_exec *x, const msgl_linear_call *c)
{
    const msgl_weight *w = c->w;
    const uintptr_t bits = (uintptr_t)c->in | (uintptr_t)c->out | (uintptr_t)w->data;
    return x->device->capability == 90 && w->format->dtype != MSGL_F32 &&
           w->format->dtype == x->act && c->gated && !c->f32_out && c->bias == NULL &&
           c->norm == NULL && c->m > 0 && c->m <= MAX_COLUMNS && bits % 16 == 0 && w->k % 8 == 0 &&
           w->n % 16 == 0 && c->ld_in % 8 == 0 && c->ld_out % 8 == 0;
}

static bool map_out(CUtensorMap *map, const msgl_linear_call *c, int columns)
{
    const cuuint64_t dims[2] = {(cuuint64_t)c->w->n / 2, (cuuint64_t)c->m};
    const cuuint64_t strides[1] = {c->ld_out * 2};
    const cuuint32_t box[2] = {OUTPUTS, (cuuint32_t)columns};
    return msgl__tensor_map_encode(map, c->w->format->dtype, c->out, 2, dims, strides, box,
                                   CU_TENSOR_MAP_SWIZZLE_64B);
}

bool msgl__cuda_stream_sm90(msgl_exec *x, const msgl_linear_call *c)
{
    const msgl_cuda_device *d = msgl__cuda_device(x);
    const msgl_weight *w = c->w;
    if (!msgl__cuda_stream_sm90_can(x, c)) return false;
    const int columns = c->m <= 128 ? 128 : c->m <= 160 ? 160 : c->m <= 192 ? 192 : 256;
    const int per_tile = CLUSTER * ROWS, tiles = (w->n + per_tile - 1) / per_tile;
    gemm_line line = {};
    const int segments = line_cut(d, &line, tiles, (w->k + BK - 1) / BK, d->sm_count / CLUSTER, 1,
                                  (size_t)CLUSTER * ROWS * (size_t)columns, CLUSTER * WARPS, false);
    if (segments == 0) return false;
    CUtensorMap maps[3];
    if (!msgl__tensor_map(&maps[0], w->format->dtype, c->in, c->m, w->k, c->ld_in,
                          columns / CLUSTER) ||
        !msgl__tensor_map_pairs(&maps[1], w->format->dtype, w->data, w->n, w->k, ROWS) ||
        !map_out(&maps[2], c, columns)) {
        return false;
    }
    w->format->dtype == MSGL_F16 ? launch_columns<__half>(x, line, maps, segments, columns)
                                 : launch_columns<__nv_bfloat16>(x, line, maps, segments, columns);
    return true;
}
