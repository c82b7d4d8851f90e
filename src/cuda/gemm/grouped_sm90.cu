// SPDX-License-Identifier: Apache-2.0
//
// Grouped product of a mixture of experts on Hopper: out^T = W in^T, rows of W as the rows of a
// warpgroup's product and an expert's rows of `in` as its columns, so that a tile is as wide as the
// expert has rows and every weight is read once for up to N of them. Blocks are persistent; one
// group of warps loads, the others multiply 64 rows of W each. What is done to the sums (silu of
// gate and up, whose rows alternate by eight in a tile) is done in registers; matrix stores that
// transpose make rows of out of them.
//
// Three sizes of tiles by the rows per expert. The two for few rows gather rows of `in` by index
// with ordinary asynchronous copies, and their blocks stand two on a multiprocessor: the kernel
// behind this one loads its first weights beside it. For many rows a cluster of two blocks shares
// the rows of `in`, each loading half of them for both. An element's sum runs over k in one order
// in all of them. docs/internals/gemm.md has the figures.
#include "cuda/gemm/grouped_sm90.cuh"

#include <string.h>

#include "cuda/device.cuh"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/grouped_tile_sm90.cuh"
#include "cuda/gemm/stage.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/tensor_map.cuh"

enum {
    GATHERING = GROUP - 32,
    BOX_ROWS = 32, // of `in` per tensor copy
    CHUNK = 16,    // columns that go to out at a time
    CHUNK_BYTES = CHUNK * GROUP_ROWS * 2,
};

// GROUPS multiplying warpgroups, up to N rows of in, STAGES of the ring, blocks of a cluster.
template <int GROUPS_, int N_, int STAGES_, int CLUSTER_> struct sizes {
    enum {
        GROUPS = GROUPS_,
        N = N_,
        STAGES = STAGES_,
        CLUSTER = CLUSTER_,
        DENSE = CLUSTER_ > 1,
        THREADS = (GROUPS_ + 1) * GROUP,
        ROWS = GROUPS_ * GROUP_ROWS, // of W per tile
        W_BYTES = ROWS * ROW_BYTES,
        STAGE_BYTES = W_BYTES + N_ * ROW_BYTES,
        OUT_BYTES = GROUPS_ * 2 * CHUNK_BYTES,
        TO_BYTES = GROUPS_ * 2 * N_ * 4,
        SHARED_BYTES = 1024 + STAGES_ * STAGE_BYTES + OUT_BYTES + TO_BYTES + 2 * STAGES_ * 8,
    };
};
typedef sizes<1, 32, 8, 1> few;
typedef sizes<2, 64, 4, 1> some;
typedef sizes<2, 256, 4, 2> many;

// Rows of in that are loaded for a tile.
static __device__ __forceinline__ int loaded_of(int rows)
{
    return (rows + 63) & ~63;
}

// That are multiplied. An expert's rows are cut into equal row tiles, most of which end within the
// last 64: in steps of 16 there (what that gains: docs/internals/gemm.md).
static __device__ __forceinline__ int columns_of(int rows)
{
    return rows > 192 ? (rows + 15) & ~15 : (rows + 63) & ~63;
}

// --- loading ------------------------------------------------------------------------------------

// One thread: weights, and of DENSE this block's half of the rows of in, for both blocks.
template <typename S, bool GATED>
static __device__ __forceinline__ void
load_tensors(const msgl_grouped_args &g, ring r, const int32_t *first, int32_t start,
             const CUtensorMap *map_w, const CUtensorMap *map_in, uint32_t rank)
{
    const int32_t tiles = first[g.num_experts] * g.column_tiles, steps = (g.k + BK - 1) / BK;
    // Gated: a pair of eights, gate and up, is one step of the map.
    constexpr int EIGHTS = S::ROWS / (GATED ? 16 : 8);
    int32_t low = start, high = start + 1;
#pragma unroll 1
    for (int32_t i = blockIdx.x / S::CLUSTER; i < tiles; i += gridDim.x / S::CLUSTER) {
        const span s = find_span(g, first, i, low, high);
        low = s.expert, high = g.num_experts; // of the next one
        const int eight = (s.tile * S::CLUSTER + (int)rank) * EIGHTS;
        const int columns = S::DENSE ? loaded_of(s.rows) : 0;
#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            const uint32_t at = r.stages + (uint32_t)(r.slot * S::STAGE_BYTES);
            const uint32_t done = r.full + (uint32_t)r.slot * 8;
            msgl__mbarrier_wait(r.empty + (uint32_t)r.slot * 8, r.phase ^ 1);
            msgl__mbarrier_expect(done, (uint32_t)(S::W_BYTES + columns * ROW_BYTES));
            msgl__tensor_load(at, map_w, step * BK, 0, 0, eight, s.expert, done);
#pragma unroll 1
            for (int row = 0; row < columns / 2; row += BOX_ROWS) {
                const int mine = (int)rank * (columns / 2) + row;
                msgl__tensor_load_multicast(at + (uint32_t)(S::W_BYTES + mine * ROW_BYTES), map_in,
                                            step * BK, s.row + mine, done, (1 << S::CLUSTER) - 1);
            }
            next_slot<S::STAGES>(r);
        }
    }
}

// The other warps of the loading group: rows of in by index.
template <typename T, typename S>
static __device__ __forceinline__ void gather_rows(const msgl_grouped_args &g, ring r,
                                                   const int32_t *first, int32_t start)
{
    enum { PER = GATHERING / 8, PASSES = (S::N + PER - 1) / PER };
    const int32_t tiles = first[g.num_experts] * g.column_tiles, steps = (g.k + BK - 1) / BK;
    const int t = (int)threadIdx.x - 32, c = t % 8;
    int32_t low = start, high = start + 1;
#pragma unroll 1
    for (int32_t i = blockIdx.x; i < tiles; i += gridDim.x) {
        const span s = find_span(g, first, i, low, high);
        low = s.expert, high = g.num_experts; // of the next one
        const T *row[PASSES];
#pragma unroll
        for (int p = 0; p < PASSES; p++) {
            const int at = t / 8 + p * PER;
            int32_t from = s.row + (at < s.rows ? at : 0);
            if (g.from != NULL) from = quotient(__ldcg(g.from + from), g.from_per);
            row[p] = (const T *)g.in + (size_t)from * g.ld_in + c * 8;
        }
#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            const uint32_t to =
                r.stages + (uint32_t)(r.slot * S::STAGE_BYTES + S::W_BYTES); // of in
            msgl__mbarrier_wait(r.empty + (uint32_t)r.slot * 8, r.phase ^ 1);
            const bool there = step * BK + c * 8 < g.k;
#pragma unroll
            for (int p = 0; p < PASSES; p++) {
                const int at = t / 8 + p * PER;
                if (at >= s.rows) break;
                msgl__copy_async_16(to + (uint32_t)(at * ROW_BYTES + ((c ^ (at % 8)) << 4)),
                                    there ? row[p] + step * BK : (const T *)g.in, there);
            }
            msgl__copy_async_arrive(r.full + (uint32_t)r.slot * 8);
            next_slot<S::STAGES>(r);
        }
    }
}

// --- multiplying --------------------------------------------------------------------------------
//
// A thread of warp w of a group holds, of rows 16 w + lane / 4 and the eighth one behind, columns
// 8 j + 2 (lane % 4) and the next one of every j: acc[4 j], acc[4 j + 1] of the first row,
// acc[4 j + 2], acc[4 j + 3] of the second.

// Columns [CHUNK c, CHUNK c + CHUNK) to a buffer: a row of it is a column, with 32 (gated) or 64
// features, whose pieces of 16 bytes are swizzled.
template <typename T, bool GATED, int SUMS>
static __device__ __forceinline__ void fill_chunk(const float (&acc)[SUMS], int c, uint32_t buffer)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const float *v = acc + c * (CHUNK / 2);
    const int column = lane % CHUNK; // whose address this lane gives
    if (GATED) {
        uint32_t two[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            two[j] = msgl__pack_two(msgl__silu(v[4 * j]) * v[4 * j + 2],
                                    msgl__silu(v[4 * j + 1]) * v[4 * j + 3], T());
        }
        const int piece = warp ^ (column / 2 % 4);
        msgl__store_matrix_2_transposed(buffer + (uint32_t)(column * 64 + piece * 16), two[0],
                                        two[1]);
    } else {
        const int piece = (2 * warp + lane / 16) ^ (column % 8);
        msgl__store_matrix_4_transposed(
            buffer + (uint32_t)(column * 128 + piece * 16), msgl__pack_two(v[0], v[1], T()),
            msgl__pack_two(v[4], v[5], T()), msgl__pack_two(v[2], v[3], T()),
            msgl__pack_two(v[6], v[7], T()));
    }
}

// All of this group's sums to out. places: where its columns go, -1: nowhere.
template <typename T, bool GATED, int N>
static __device__ __forceinline__ void store(const msgl_grouped_args &g, const float (&acc)[N / 2],
                                             int rows, int feature, const int32_t *places,
                                             uint32_t buffers)
{
    enum { PIECES = GATED ? 4 : 8 };
    const int group = threadIdx.x / GROUP, t = threadIdx.x % GROUP;
    const int column = t / PIECES, piece = t % PIECES, at = feature + piece * 8;
    const bool mine = column < CHUNK && at < (GATED ? g.n / 2 : g.n);
    const int swizzled = GATED ? piece ^ (column / 2 % 4) : piece ^ (column % 8);
#pragma unroll
    for (int c = 0; c < N / CHUNK; c++) {
        if (c * CHUNK >= rows) break;
        const uint32_t buffer = buffers + (uint32_t)(c % 2 * CHUNK_BYTES);
        fill_chunk<T, GATED, N / 2>(acc, c, buffer);
        msgl__named_barrier_sync(group, GROUP);
        const int32_t to = mine ? places[c * CHUNK + column] : -1;
        if (to >= 0) {
            *(uint4 *)((T *)g.out + (size_t)to * g.ld_out + at) =
                msgl__read_shared<uint4>(buffer + (uint32_t)(column * PIECES * 16 + swizzled * 16));
        }
    }
}

// BK of k for COLUMNS columns.
template <typename T, int COLUMNS, int SUMS>
static __device__ __forceinline__ void multiply_step(float (&acc)[SUMS], uint64_t a, uint64_t b,
                                                     bool add)
{
    if constexpr (2 * SUMS >= COLUMNS) {
        multiply_stage(*(float(*)[COLUMNS / 2]) acc, a, b, add, T());
    }
}

// One tile.
template <typename T, typename S, bool GATED>
static __device__ __forceinline__ void multiply(const msgl_grouped_args &g, ring &r, int rows,
                                                int feature, const int32_t *places,
                                                uint32_t buffers)
{
    const int lane = threadIdx.x % 32, steps = (g.k + BK - 1) / BK;
    const int columns = S::DENSE ? columns_of(rows) : S::N;
    const uint32_t mine = (uint32_t)(threadIdx.x / GROUP - 1) * (GROUP_ROWS * ROW_BYTES);
    float acc[S::N / 2];
    int last = 0;
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        msgl__mbarrier_wait(r.full + (uint32_t)r.slot * 8, r.phase);
        if (!S::DENSE) msgl__fence_async_proxy(); // rows came by ordinary copies
        const uint32_t at = r.stages + (uint32_t)(r.slot * S::STAGE_BYTES);
        const uint64_t a = msgl__wgmma_operand(at + mine);
        const uint64_t b = msgl__wgmma_operand(at + S::W_BYTES);
        // Here and not around the loop: with more than two loops the compiler spills the sums.
        if (columns == S::N) {
            multiply_step<T, S::N>(acc, a, b, step > 0);
        } else if (columns == 240) {
            multiply_step<T, 240>(acc, a, b, step > 0);
        } else if (columns == 224) {
            multiply_step<T, 224>(acc, a, b, step > 0);
        } else if (columns == 208) {
            multiply_step<T, 208>(acc, a, b, step > 0);
        } else if (columns == 192) {
            multiply_step<T, 192>(acc, a, b, step > 0);
        } else if (columns == 128) {
            multiply_step<T, 128>(acc, a, b, step > 0);
        } else {
            multiply_step<T, 64>(acc, a, b, step > 0);
        }
        msgl__wgmma_wait<1>();
        if (step > 0 && lane < S::CLUSTER) {
            msgl__mbarrier_arrive_at(r.empty + (uint32_t)last * 8, (uint32_t)lane);
        }
        last = r.slot;
        next_slot<S::STAGES>(r);
    }
    msgl__wgmma_wait<0>();
    if (lane < S::CLUSTER) msgl__mbarrier_arrive_at(r.empty + (uint32_t)last * 8, (uint32_t)lane);
    store<T, GATED, S::N>(g, acc, rows, feature, places, buffers);
}

template <typename T, typename S, bool GATED>
static __device__ __forceinline__ void multiply_all(const msgl_grouped_args &g, ring r,
                                                    const int32_t *first, int32_t start,
                                                    int32_t *places, uint32_t out, uint32_t rank)
{
    const int32_t tiles = first[g.num_experts] * g.column_tiles;
    const int group = threadIdx.x / GROUP - 1;
    const uint32_t buffers = out + (uint32_t)(group * 2 * CHUNK_BYTES);
    constexpr int FEATURES = GROUP_ROWS / (GATED ? 2 : 1); // of a group
    bool odd = false;
    int32_t low = start, high = start + 1;
#pragma unroll 1
    for (int32_t i = blockIdx.x / S::CLUSTER; i < tiles; i += gridDim.x / S::CLUSTER) {
        const span s = find_span(g, first, i, low, high);
        low = s.expert, high = g.num_experts; // of the next one
        const int tile = s.tile * S::CLUSTER + (int)rank;
        const int feature = (tile * S::GROUPS + group) * FEATURES;
        // Two of them, as others may still read those of the tile before.
        int32_t *to = places + (2 * group + odd) * S::N;
        odd = !odd;
#pragma unroll 1
        for (int c = threadIdx.x % GROUP; c < S::N; c += GROUP) {
            int32_t row = c < s.rows ? s.row + c : -1;
            if (row >= 0 && g.to != NULL) row = __ldcg(g.to + row);
            to[c] = row;
        }
        multiply<T, S, GATED>(g, r, s.rows, feature, to, buffers);
    }
}

template <typename T, typename S, bool GATED>
__global__ void __launch_bounds__(S::THREADS, S::DENSE ? 1 : 2)
    grouped_sm90(const msgl_grouped_args g, const __grid_constant__ CUtensorMap map_w,
                 const __grid_constant__ CUtensorMap map_in)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ unsigned char unaligned[];
    const uint32_t stages = (msgl__shared_address(unaligned) + 1023) & ~1023u;
    const uint32_t out = stages + S::STAGES * S::STAGE_BYTES;
    unsigned char *behind = unaligned + (out - msgl__shared_address(unaligned)) + S::OUT_BYTES;
    int32_t *places = (int32_t *)behind, *first = places + S::TO_BYTES / 4 + 4 * S::STAGES;
    ring r = {stages, out + S::OUT_BYTES + S::TO_BYTES, 0, 0, 0};
    r.empty = r.full + S::STAGES * 8;
    const uint32_t rank = S::DENSE ? msgl__cluster_rank() : 0;
    if (threadIdx.x == 0) {
#pragma unroll 1
        for (int i = 0; i < S::STAGES; i++) {
            msgl__mbarrier_init(r.full + i * 8, S::DENSE ? 1 : 1 + GATHERING);
            msgl__mbarrier_init(r.empty + i * 8, S::CLUSTER * S::GROUPS * GROUP / 32);
        }
        msgl__mbarrier_init_done();
        msgl__tensor_prefetch(&map_w);
    }
    if (!g.inputs_ready) msgl__pdl_wait();
    msgl__count_tiles<S::N>(g, first); // ends with a barrier
    const int32_t start = find_expert(g, first, (int32_t)blockIdx.x / S::CLUSTER);
    if (S::DENSE) msgl__cluster_meet();

    if (threadIdx.x < GROUP) {
        if (S::DENSE) msgl__registers_down<40>();
        if (threadIdx.x < 32) {
            if (S::DENSE) msgl__pdl_wait();
            if (threadIdx.x == 0) load_tensors<S, GATED>(g, r, first, start, &map_w, &map_in, rank);
            __syncwarp();
        } else if (!S::DENSE) {
            msgl__pdl_wait();
            gather_rows<T, S>(g, r, first, start);
        }
    } else {
        if (S::DENSE) msgl__registers_up<232>();
        // The kernel behind may read what was there before the one in front began (inputs_ready).
        msgl__pdl_wait();
        msgl__pdl_trigger();
        multiply_all<T, S, GATED>(g, r, first, start, places, out, rank);
    }
    if (S::DENSE) msgl__cluster_sync(); // the other block may still write and arrive here
#endif
}

// --- host ---------------------------------------------------------------------------------------

bool msgl__cuda_grouped_sm90_takes(const msgl_exec *x, const msgl_grouped_args *g, bool gated,
                                   msgl_dtype dtype)
{
    const uintptr_t bits = (uintptr_t)g->w | (uintptr_t)g->in | (uintptr_t)g->out;
    return x->device->capability == 90 && dtype != MSGL_F32 && g->stride % 8 == 0 &&
           g->stride > 0 && bits % 16 == 0 && g->k % 8 == 0 && g->n % (gated ? 16 : 8) == 0 &&
           g->ld_in % 8 == 0 && g->ld_out % 8 == 0 && g->num_experts <= MSGL_MOST_EXPERTS;
}

bool msgl__cuda_grouped_sm90_dense(const msgl_grouped_args *g, int32_t rows)
{
    enum { SOME = 48 }; // rows per expert
    return rows / g->num_experts > SOME;
}

template <typename T, typename S, bool GATED>
static void launch(msgl_exec *x, msgl_grouped_args g, int32_t rows, msgl_dtype dtype)
{
    const msgl_cuda_device *d = msgl__cuda_device(x);
    constexpr int FEATURES = S::ROWS * S::CLUSTER / (GATED ? 2 : 1);
    const size_t bytes = S::SHARED_BYTES + msgl__tiles_bytes(g.num_experts);
    g.column_tiles = ((GATED ? g.n / 2 : g.n) + FEATURES - 1) / FEATURES;
    CUtensorMap maps[2];
    memset(maps, 0, sizeof maps);
    if (!map_eights(&maps[0], dtype, g.w, &g, g.stride * 2, GATED, S::ROWS) ||
        (S::DENSE && !msgl__tensor_map(&maps[1], dtype, g.in, rows, g.k, g.ld_in, BOX_ROWS))) {
        x->status = MSGL_EDEVICE;
        return;
    }
    // Every expert may have a tile that is not full.
    int64_t tiles = rows / S::N + (rows < g.num_experts ? rows : g.num_experts);
    tiles *= g.column_tiles;
    const int64_t most = d->sm_count * (S::DENSE ? 1 : 2) / S::CLUSTER;
    const dim3 grid((unsigned)((tiles < most ? tiles : most) * S::CLUSTER));
    constexpr auto kernel = grouped_sm90<T, S, GATED>;
    MSGL_CUDA_TRY(x, msgl__allow_shared<kernel>(bytes, true));
    if (S::CLUSTER == 1) {
        MSGL_CUDA_TRY(
            x, msgl__launch(kernel, grid, dim3(S::THREADS), bytes, d->stream, g, maps[0], maps[1]));
    } else {
        MSGL_CUDA_TRY(x, msgl__launch_clusters(kernel, dim3(S::CLUSTER), grid, dim3(S::THREADS),
                                               bytes, d->stream, g, maps[0], maps[1]));
    }
}

template <typename T, bool GATED>
static void launch_size(msgl_exec *x, const msgl_grouped_args *g, int32_t rows, msgl_dtype dtype)
{
    // Where tiles of `some` would be few, as a step of few requests has them, smaller ones are
    // spread more evenly.
    const int64_t experts = rows < g->num_experts ? rows : g->num_experts;
    const int64_t tiles = experts * ((g->n + some::ROWS - 1) / some::ROWS);
    if (msgl__cuda_grouped_sm90_dense(g, rows)) {
        launch<T, many, GATED>(x, *g, rows, dtype);
    } else if (tiles < 4 * (int64_t)msgl__cuda_device(x)->sm_count) {
        launch<T, few, GATED>(x, *g, rows, dtype);
    } else {
        launch<T, some, GATED>(x, *g, rows, dtype);
    }
}

void msgl__cuda_grouped_sm90(msgl_exec *x, const msgl_grouped_args *g, int32_t rows, bool gated,
                             msgl_dtype dtype)
{
    if (dtype == MSGL_F16) {
        gated ? launch_size<__half, true>(x, g, rows, dtype)
              : launch_size<__half, false>(x, g, rows, dtype);
    } else {
        gated ? launch_size<__nv_bfloat16, true>(x, g, rows, dtype)
              : launch_size<__nv_bfloat16, false>(x, g, rows, dtype);
    }
}
