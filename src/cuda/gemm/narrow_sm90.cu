// SPDX-License-Identifier: Apache-2.0
//
// Products of up to 64 rows with weights of a few megabytes, on Hopper: out^T = W in^T, so that the
// weights' rows fill the 64 of a warpgroup's product and m is its other side. One block makes 64 or
// 128 rows of W times all m rows of in over one split of k; the blocks of a cluster share the
// outputs and split k, and send each other the sums of the rows that the other one finishes. What
// comes before (RMS norm) and behind (bias, silu, residual) is done on the way. At this size the
// time between kernels counts: the weights are on their way before the kernel in front ends.
//
// RMS norm: the norm's weight goes into `in` in shared memory, before the product; the row's scale
// needs the whole row and is applied to the sums. docs/internals/gemm.md has the figures.
#include "cuda/gemm/narrow_sm90.h"

#include "cuda/device.cuh"
#include "cuda/gemm/epilogue.cuh"
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
    MAX_STAGES = 8,
    MAX_SPLITS = 8,
    MAX_ROWS = 64, // m
    PAD = 4,       // floats behind a row of sums: keep banks apart; the first is the sum of squares
};

typedef struct narrow_args {
    int32_t m, n, k; // n: outputs, which is half of W's rows when gated
    int32_t stages;
    const float *bias, *norm;
    float eps;
    bool gated, accumulate, f32_out;
    void *out;
    size_t ld_out;
} narrow_args;

template <int GROUPS, int N> struct narrow_shape {
    static constexpr int ROWS = GROUPS * 64; // of W
    static constexpr int W_BYTES = ROWS * ROW_BYTES, STAGE_BYTES = W_BYTES + N * ROW_BYTES;
    static constexpr int PITCH = ROWS + PAD, SUMS_BYTES = N * PITCH * 4;
    static constexpr int THREADS = GROUPS * GROUP + 32;
    static constexpr int SMALL_BYTES =
        MAX_STAGES * 16 + N * 4 + 1024; // barriers, squares, alignment
};

// Addresses in shared memory.
typedef struct narrow_places {
    uint32_t stages;   // then the sums
    uint32_t partials; // other blocks' sums of the rows that this one finishes, in the order of k
    uint32_t full, empty, landed;
} narrow_places;

// One warp's first part: barriers, and the weights of as many steps as there are stages. Of W's
// tile, the second half of the rows follows the first, or is the up rows of the same outputs.
template <typename SHAPE>
static __device__ __forceinline__ void narrow_begin(const narrow_args &g, const CUtensorMap *map_w,
                                                    const narrow_places &at, int row0, int row1,
                                                    int first, int ahead)
{
    for (int i = 0; i < g.stages; i++) {
        msgl__mbarrier_init(at.full + i * 8, 1);
        msgl__mbarrier_init(at.empty + i * 8, SHAPE::THREADS / 32 - 1); // warps that multiply
    }
    msgl__mbarrier_init(at.landed, 1);
    msgl__mbarrier_init_done();
    msgl__fence_async_proxy();
    for (int i = 0; i < ahead; i++) {
        const uint32_t to = at.stages + (uint32_t)(i * SHAPE::STAGE_BYTES), done = at.full + i * 8;
        msgl__mbarrier_expect(done, SHAPE::STAGE_BYTES);
        msgl__tensor_load(to, map_w, (first + i) * BK, row0, done);
        msgl__tensor_load(to + SHAPE::W_BYTES / 2, map_w, (first + i) * BK, row1, done);
    }
}

// Its second part: the activations of these steps, which the kernel in front may have made, and
// all of the steps behind them.
template <typename SHAPE>
static __device__ __forceinline__ void
narrow_load(const narrow_args &g, const CUtensorMap *map_in, const CUtensorMap *map_w,
            const narrow_places &at, int row0, int row1, int first, int last, int ahead)
{
    for (int i = 0; i < ahead; i++) {
        msgl__tensor_load(at.stages + (uint32_t)(i * SHAPE::STAGE_BYTES + SHAPE::W_BYTES), map_in,
                          (first + i) * BK, 0, at.full + i * 8);
    }
    int slot = 0;
    uint32_t phase = 0;
    for (int s = first + ahead; s < last; s++) {
        const uint32_t to = at.stages + (uint32_t)(slot * SHAPE::STAGE_BYTES);
        const uint32_t done = at.full + slot * 8;
        msgl__mbarrier_wait(at.empty + slot * 8, phase);
        msgl__mbarrier_expect(done, SHAPE::STAGE_BYTES);
        msgl__tensor_load(to, map_w, s * BK, row0, done);
        msgl__tensor_load(to + SHAPE::W_BYTES / 2, map_w, s * BK, row1, done);
        msgl__tensor_load(to + SHAPE::W_BYTES, map_in, s * BK, 0, done);
        if (++slot == g.stages) {
            slot = 0;
            phase ^= 1;
        }
    }
}

// The norm's weights of this thread's 8 columns of the 64 from k0.
static __device__ __forceinline__ void load_norm(const narrow_args &g, int k0, float w[8])
{
    const int k = k0 + (int)(threadIdx.x % 8) * 8;
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
        const float4 v =
            k < g.k ? __ldg((const float4 *)(g.norm + k + i)) : make_float4(0, 0, 0, 0);
        w[i] = v.x, w[i + 1] = v.y, w[i + 2] = v.z, w[i + 3] = v.w;
    }
}

// in *= norm weight, in place, for the 64 columns of a step; squares += in^2. A thread has 8
// columns of every 16 * GROUPS-th row.
template <typename T, int GROUPS, int N>
static __device__ __forceinline__ void narrow_norm(uint32_t in, const float w[8],
                                                   float squares[N / (16 * GROUPS)])
{
    const int chunk = threadIdx.x % 8;
#pragma unroll
    for (int i = 0; i < N / (16 * GROUPS); i++) {
        const int row = threadIdx.x / 8 + i * 16 * GROUPS;
        const uint32_t at = in + (uint32_t)(row * ROW_BYTES + ((chunk ^ (row % 8)) << 4));
        const uint4 four = msgl__read_shared<uint4>(at);
        uint32_t v[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int p = 0; p < 4; p++) {
            const float2 f = msgl__unpack_two(v[p], T());
            squares[i] += f.x * f.x + f.y * f.y;
            v[p] = msgl__pack_two(f.x * w[2 * p], f.y * w[2 * p + 1], T());
        }
        msgl__write_shared(at, make_uint4(v[0], v[1], v[2], v[3]));
    }
}

// Four outputs of a row from its sums over the splits of k, which are `pitch` bytes apart.
template <typename T, typename SHAPE, bool NORM>
static __device__ __forceinline__ void narrow_finish(const narrow_args &g, uint32_t row, int c,
                                                     uint32_t pitch, int splits, int t, int column,
                                                     uint2 old)
{
    float v[4] = {}, u[4] = {}, square = 0;
    for (int p = 0; p < splits; p++) {
        const float4 a = msgl__read_shared<float4>(row + (uint32_t)c * 4);
        v[0] += a.x, v[1] += a.y, v[2] += a.z, v[3] += a.w;
        if (g.gated) {
            const float4 b = msgl__read_shared<float4>(row + (uint32_t)(c + SHAPE::ROWS / 2) * 4);
            u[0] += b.x, u[1] += b.y, u[2] += b.z, u[3] += b.w;
        }
        if (NORM) square += msgl__read_shared<float4>(row + SHAPE::ROWS * 4).x;
        row += pitch;
    }
    const float scale = NORM ? rsqrtf(square / (float)g.k + g.eps) : 1.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i] *= scale;
        if (g.bias != NULL) v[i] += __ldg(g.bias + column + i);
        if (g.gated) {
            u[i] *= scale;
            if (g.bias != NULL) u[i] += __ldg(g.bias + g.n + column + i);
            v[i] = msgl__silu(v[i]) * u[i];
        }
    }
    const size_t at = (size_t)t * g.ld_out + column;
    if (g.f32_out) {
        *(float4 *)((float *)g.out + at) = make_float4(v[0], v[1], v[2], v[3]);
        return;
    }
    if (g.accumulate) {
        const float2 a = msgl__unpack_two(old.x, T()), b = msgl__unpack_two(old.y, T());
        v[0] += a.x, v[1] += a.y, v[2] += b.x, v[3] += b.y;
    }
    *(uint2 *)((T *)g.out + at) =
        make_uint2(msgl__pack_two(v[0], v[1], T()), msgl__pack_two(v[2], v[3], T()));
}

// The rows [row0, row0 + rows) of this tile of outputs, whose sums are at `sums`.
template <typename T, typename SHAPE, bool NORM>
static __device__ __forceinline__ void narrow_rows(const narrow_args &g, uint32_t sums,
                                                   uint32_t pitch, int splits, uint32_t landed,
                                                   int row0, int rows, int tile)
{
    enum { BATCH = 4 }; // values to be added to that are on their way at a time
    constexpr int WORKERS = SHAPE::THREADS - 32;
    const int columns = g.gated ? SHAPE::ROWS / 2 : SHAPE::ROWS, fours = columns / 4;
    for (int first = (int)threadIdx.x; first < rows * fours; first += BATCH * WORKERS) {
        uint2 old[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int item = first + i * WORKERS, column = tile * columns + item % fours * 4;
            old[i] = make_uint2(0, 0);
            if (g.accumulate && item < rows * fours && column < g.n) {
                old[i] = *(const uint2 *)((const T *)g.out +
                                          (size_t)(row0 + item / fours) * g.ld_out + column);
            }
        }
        if (splits > 1) msgl__mbarrier_wait(landed, 0);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int item = first + i * WORKERS, c = item % fours * 4, r = item / fours;
            const int column = tile * columns + c;
            if (item < rows * fours && column < g.n) {
                narrow_finish<T, SHAPE, NORM>(g, sums + (uint32_t)(r * SHAPE::PITCH * 4), c, pitch,
                                              splits, row0 + r, column, old[i]);
            }
        }
    }
}

template <typename T, int GROUPS, int N, bool NORM>
__global__ void __launch_bounds__(GROUPS *GROUP + 32, 1)
    narrow_sm90(const __grid_constant__ narrow_args g, const __grid_constant__ CUtensorMap map_in,
                const __grid_constant__ CUtensorMap map_w)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef narrow_shape<GROUPS, N> shape;
    extern __shared__ unsigned char unaligned[];
    const uint32_t ring = (uint32_t)(g.stages * shape::STAGE_BYTES);
    const int rank = (int)msgl__cluster_rank(), splits = (int)msgl__cluster_size();
    const int tile = (int)blockIdx.x / splits, steps = (g.k + BK - 1) / BK;
    const int first = steps * rank / splits, last = steps * (rank + 1) / splits;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = warp / 4;
    const int rows = g.m, split_rows = (rows + splits - 1) / splits;  // that a block finishes
    const uint32_t pitch = (uint32_t)(split_rows * shape::PITCH * 4); // of one split
    narrow_places at;
    at.stages = (msgl__shared_address(unaligned) + 1023) & ~1023u;
    at.full = at.stages + (ring > shape::SUMS_BYTES ? ring : shape::SUMS_BYTES);
    at.empty = at.full + MAX_STAGES * 8;
    at.landed = at.empty + MAX_STAGES * 8;
    at.partials = at.landed + 16;
    msgl__pdl_trigger();
    if (group == GROUPS) {
        constexpr int HALF = shape::ROWS / 2;
        const int row0 = g.gated ? tile * HALF : tile * shape::ROWS;
        const int row1 = g.gated ? g.n + row0 : row0 + HALF;
        const int ahead = last - first < g.stages ? last - first : g.stages;
        if (lane == 0) {
            narrow_begin<shape>(g, &map_w, at, row0, row1, first, ahead);
            msgl__tensor_prefetch(&map_in);
        }
        __syncwarp();
        msgl__cluster_meet();
        msgl__pdl_wait();
        if (lane == 0) {
            narrow_load<shape>(g, &map_in, &map_w, at, row0, row1, first, last, ahead);
        }
        __syncwarp();
    } else {
        float acc[N / 2], square[N / (16 * GROUPS)] = {};
        int slot = 0, before = 0;
        uint32_t phase = 0;
        float weights[8]; // of the norm, for the next step
        if (NORM) load_norm(g, first * BK, weights);
        msgl__cluster_meet(); // the barriers are ready, here and in the other blocks
        msgl__pdl_wait();
        for (int s = first; s < last; s++) {
            const uint32_t from = at.stages + (uint32_t)(slot * shape::STAGE_BYTES);
            msgl__mbarrier_wait(at.full + slot * 8, phase);
            if (NORM) {
                narrow_norm<T, GROUPS, N>(from + shape::W_BYTES, weights, square);
                msgl__fence_async_proxy();
                msgl__named_barrier_sync(1, GROUPS * GROUP);
            }
            if (NORM) load_norm(g, (s + 1) * BK, weights);
            const uint64_t a = msgl__wgmma_operand(from + (uint32_t)(group * 64 * ROW_BYTES));
            const uint64_t b = msgl__wgmma_operand(from + shape::W_BYTES);
            // Not by multiply_stage, through which the compiler unrolls the loop more often.
            msgl__wgmma_fence();
#pragma unroll
            for (int i = 0; i < BK / 16; i++) {
                msgl__wgmma(acc, a + 2 * i, b + 2 * i, s > first || i > 0, T());
            }
            msgl__wgmma_commit();
            msgl__wgmma_wait<1>();
            if (s > first && lane == 0) msgl__mbarrier_arrive(at.empty + before * 8);
            before = slot;
            if (++slot == g.stages) {
                slot = 0;
                phase ^= 1;
            }
        }
        msgl__wgmma_wait<0>();
        msgl__named_barrier_sync(1, GROUPS * GROUP); // the stages become the sums' place
        const uint32_t mine = at.stages + (uint32_t)(group * 64 + warp % 4 * 16 + lane / 4) * 4 +
                              (uint32_t)(lane % 4 * 2 * shape::PITCH) * 4;
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const int t = i / 4 * 8 + i % 2, row = i % 4 / 2 * 8;
            msgl__write_shared(mine + (uint32_t)(t * shape::PITCH + row) * 4, acc[i]);
        }
        if (NORM) {
#pragma unroll
            for (int i = 0; i < N / (16 * GROUPS); i++) {
                for (int d = 1; d < 8; d *= 2) {
                    square[i] += __shfl_xor_sync(0xffffffffu, square[i], d);
                }
                const int t = threadIdx.x / 8 + i * 16 * GROUPS;
                if (threadIdx.x % 8 == 0) {
                    msgl__write_shared(at.stages + (uint32_t)(t * shape::PITCH + shape::ROWS) * 4,
                                       square[i]);
                }
            }
        }
        msgl__fence_async_proxy();
        msgl__named_barrier_sync(1, GROUPS * GROUP);
        int own = rows - rank * split_rows; // rows that this block finishes
        own = own < 0 ? 0 : own < split_rows ? own : split_rows;
        if (splits > 1 && warp == 0 && lane < splits) { // to block `lane`, its rows
            int theirs = rows - lane * split_rows;
            theirs = theirs < 0 ? 0 : theirs < split_rows ? theirs : split_rows;
            const uint32_t bytes = (uint32_t)(theirs * shape::PITCH * 4);
            if (lane == rank) msgl__mbarrier_expect(at.landed, (uint32_t)splits * bytes);
            if (bytes > 0) {
                msgl__cluster_copy(
                    msgl__cluster_address(at.partials + (uint32_t)rank * pitch, (uint32_t)lane),
                    at.stages + (uint32_t)lane * pitch, bytes,
                    msgl__cluster_address(at.landed, (uint32_t)lane));
            }
        }
        narrow_rows<T, shape, NORM>(g, splits > 1 ? at.partials : at.stages, pitch, splits,
                                    at.landed, rank * split_rows, own, tile);
    }
    msgl__cluster_meet(); // what this block has sent has arrived
#endif
}

template <typename T, int GROUPS, int N, bool NORM>
static void launch(msgl_exec *x, narrow_args g, const CUtensorMap maps[2], int splits)
{
    typedef narrow_shape<GROUPS, N> shape;
    enum {
        LIMIT = 227 << 10,
        HALF_LIMIT = 112 << 10
    }; // of a block; of one of two on a multiprocessor
    const int columns = g.gated ? shape::ROWS / 2 : shape::ROWS;
    const int tiles = (g.n + columns - 1) / columns, steps = (g.k + BK - 1) / BK;
    const int needed = (steps + splits - 1) / splits;
    const int split_rows = (g.m + splits - 1) / splits;
    const int fixed =
        shape::SMALL_BYTES + 16 + (splits > 1 ? splits * split_rows * shape::PITCH * 4 : 0);
    const int room = (HALF_LIMIT - fixed) / shape::STAGE_BYTES;
    const bool shared = room >= 2 && fixed + shape::SUMS_BYTES <= HALF_LIMIT;
    g.stages = shared ? room : (LIMIT - fixed) / shape::STAGE_BYTES;
    if (g.stages > MAX_STAGES) g.stages = MAX_STAGES;
    if (g.stages > needed) g.stages = needed;
    int bytes = g.stages * shape::STAGE_BYTES;
    if (bytes < shape::SUMS_BYTES) bytes = shape::SUMS_BYTES;
    bytes += fixed;
    constexpr auto kernel = narrow_sm90<T, GROUPS, N, NORM>;
    MSGL_CUDA_TRY(x, msgl__allow_shared<kernel>((size_t)bytes));
    const dim3 grid((unsigned)(tiles * splits));
    MSGL_CUDA_TRY(x,
                  msgl__launch_clusters(kernel, dim3((unsigned)splits), grid, dim3(shape::THREADS),
                                        (size_t)bytes, msgl__cuda_stream(x), g, maps[0], maps[1]));
}

template <typename T, int GROUPS, bool NORM>
static void launch_rows(msgl_exec *x, const narrow_args &g, const CUtensorMap maps[2], int splits)
{
    if (g.m <= 32) {
        launch<T, GROUPS, 32, NORM>(x, g, maps, splits);
    } else {
        launch<T, GROUPS, MAX_ROWS, NORM>(x, g, maps, splits);
    }
}

// What was fastest, of all plans, at Qwen3-0.6B's shapes.
static msgl_narrow_plan make_plan(const msgl_cuda_device *d, const msgl_linear_call *c)
{
    const int steps = (c->w->k + BK - 1) / BK, tiles = (c->w->n + 63) / 64;
    msgl_narrow_plan plan = {1, 4};
    if (c->norm != NULL) { // every block norms its split of in
        if (c->m <= 16 || 4 * tiles > 2 * d->sm_count) plan.groups = 2;
    } else {
        plan.splits = d->sm_count / tiles;
        if (c->m <= 32 && plan.splits > steps / 6) plan.splits = steps / 6;
    }
    if (plan.splits > MAX_SPLITS) plan.splits = MAX_SPLITS;
    if (plan.splits > steps) plan.splits = steps;
    if (plan.splits < 1) plan.splits = 1;
    return plan;
}

bool msgl__cuda_narrow_sm90_can(const msgl_exec *x, const msgl_linear_call *c)
{
    const msgl_weight *w = c->w;
    const uintptr_t bits =
        (uintptr_t)c->in | (uintptr_t)c->out | (uintptr_t)w->data | (uintptr_t)c->norm;
    // in * weight would leave f16's range where the normalised value does not.
    return x->device->capability == 90 && w->format->dtype != MSGL_F32 && c->m >= 1 &&
           c->m <= MAX_ROWS && bits % 16 == 0 && w->k % 8 == 0 && w->n % (c->gated ? 16 : 8) == 0 &&
           c->ld_in % 8 == 0 && c->ld_out % 8 == 0 &&
           (c->norm == NULL || w->format->dtype == MSGL_BF16);
}

bool msgl__cuda_narrow_sm90(msgl_exec *x, const msgl_linear_call *c, const msgl_narrow_plan *plan)
{
    const msgl_weight *w = c->w;
    if (!msgl__cuda_narrow_sm90_can(x, c)) return false;
    const msgl_narrow_plan own = make_plan(msgl__cuda_device(x), c);
    if (plan == NULL) plan = &own;
    if (plan->groups == 2 && c->norm == NULL) return false;
    narrow_args g = {};
    g.m = c->m;
    g.n = c->gated ? w->n / 2 : w->n;
    g.k = w->k;
    g.bias = c->bias;
    g.norm = c->norm;
    g.eps = c->norm_eps;
    g.gated = c->gated;
    g.accumulate = c->accumulate;
    g.f32_out = c->f32_out;
    g.out = c->out;
    g.ld_out = c->ld_out;
    const int box = c->m <= 32 ? 32 : MAX_ROWS;
    CUtensorMap maps[2];
    if (!msgl__tensor_map(&maps[0], w->format->dtype, c->in, c->m, w->k, c->ld_in, box) ||
        !msgl__tensor_map(&maps[1], w->format->dtype, w->data, w->n, w->k, (size_t)w->k,
                          plan->groups * 32)) {
        return false;
    }
    const int splits = plan->splits;
    if (w->format->dtype == MSGL_F16) {
        launch_rows<__half, 1, false>(x, g, maps, splits);
    } else if (c->norm == NULL) {
        launch_rows<__nv_bfloat16, 1, false>(x, g, maps, splits);
    } else if (plan->groups == 1) {
        launch_rows<__nv_bfloat16, 1, true>(x, g, maps, splits);
    } else {
        launch_rows<__nv_bfloat16, 2, true>(x, g, maps, splits);
    }
    return true;
}
