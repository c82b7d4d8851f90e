// SPDX-License-Identifier: Apache-2.0
//
// Products of up to 256 rows with weights of a few megabytes, on Hopper: out^T = W in^T. The rows
// of W are the 64 rows of a warpgroup's product, and half of the rows of `in`, or all, its columns:
// the wider a product, the less of the shared memory's bandwidth goes into reading W, and at these
// sizes that bandwidth, which what arrives from the L2 needs too, is the limit.
//
// One warp loads, a warpgroup multiplies, and what stands behind the product is done to its
// sums: gate (gate and up rows alternate by eight in a tile, so that a thread has both), bias,
// addition to the residual stream, and what the norm behind needs (msgl_norm_feed). Where the
// outputs are too few to fill the GPU, the blocks of a cluster split k; each finishes some rows of
// `in` and gets the others' sums of these by bulk copies. Weights are on their way before the
// kernel in front ends. docs/internals/gemm.md has the figures.
#include "kernel/cuda/gemm/tall_sm90.h"

#include "kernel/cuda/device.cuh"
#include "kernel/cuda/gemm/epilogue.cuh"
#include "kernel/cuda/gemm/fed.cuh"
#include "kernel/cuda/launch.cuh"
#include "kernel/cuda/ptx/barrier.cuh"
#include "kernel/cuda/ptx/cluster.cuh"
#include "kernel/cuda/ptx/mma.cuh"
#include "kernel/cuda/ptx/shared.cuh"
#include "kernel/cuda/ptx/tma.cuh"
#include "kernel/cuda/ptx/wgmma.cuh"
#include "kernel/cuda/tensor_map.cuh"

enum {
    BK = 64,
    ROW_BYTES = BK * 2,
    GROUP = 128, // threads of a warpgroup
    WARPS = GROUP / 32,
    THREADS = GROUP + 64, // a warp that loads, a warp that adds up the squares
    MAX_STAGES = 8,
    MAX_SPLITS = 8,
    ROWS = 64, // of W
    W_BYTES = ROWS * ROW_BYTES,
    PITCH = ROWS + 4, // floats of a row of sums: a quad's four pairs of rows fall on 32 banks
    MAX_COLUMNS = 128,
    BATCH = 6, // rows of in that a thread finishes at a time: all of them, mostly
    LIMIT = 227 << 10,
};

// Whatever a block would have to divide for is computed before the launch.
typedef struct tall_args {
    int32_t m, n, k; // n: outputs, which is half of W's rows when gated
    int32_t stages, splits;
    int32_t steps, longer; // steps of k of a part; of the first `longer` parts one more
    int32_t share;         // rows of `in` that each part finishes
    int32_t height;        // rows of `in` of a tile, in eights
    const float *bias;
    const float *sums; // [parts, m] of the norm in front, or NULL
    int32_t parts;
    float eps;
    bool accumulate;
    __nv_bfloat16 *out;
    size_t ld_out;
    const float *next; // weight of the norm behind, or NULL
    __nv_bfloat16 *scaled;
    float *squares;
} tall_args;

template <int COLUMNS> struct tall_shape {
    static constexpr int STAGE_BYTES = W_BYTES + COLUMNS * ROW_BYTES;
    static constexpr int SCALES = (COLUMNS + 31) / 32; // of a lane
    // Barriers, a factor per row of in, alignment.
    static constexpr int SMALL_BYTES = MAX_STAGES * 16 + 16 + SCALES * 128 + 1024;
};

// Where this block is: blocks of a cluster differ in their part of k.
typedef struct tall_place {
    int part;
    int output, token; // its first output, its first row of in
    int rows, own;     // rows of in of this tile, rows that this block finishes
    int first, num;    // steps of k
} tall_place;

// Addresses in shared memory.
typedef struct tall_shared {
    uint32_t stages; // then this block's own sums, and those that others have sent
    uint32_t parts;  // others' sums of the rows that this one finishes
    uint32_t full, empty, landed, scales;
} tall_shared;

template <int COLUMNS, int OUTPUTS>
static __device__ __forceinline__ tall_place find_place(const tall_args &g)
{
    tall_place p;
    p.part = (int)blockIdx.x;
    p.output = (int)blockIdx.y * OUTPUTS;
    p.token = (int)blockIdx.z * COLUMNS;
    p.rows = msgl__clamp_to(g.m - p.token, COLUMNS);
    p.own = msgl__clamp_to(p.rows - p.part * g.share, g.share);
    p.first = p.part * g.steps + (p.part < g.longer ? p.part : g.longer);
    p.num = g.steps + (p.part < g.longer);
    return p;
}

template <bool GATED>
static __device__ __forceinline__ void load_weights(const tall_place &p, uint32_t stage, int s,
                                                    const CUtensorMap *map, uint32_t done)
{
    if (GATED) {
        msgl__tensor_load(stage, map, s * BK, 0, 0, p.output / 8, done);
    } else {
        msgl__tensor_load(stage, map, s * BK, p.output, done);
    }
}

// The loading lane's work: weights of as many steps as there are stages before the kernel in front
// has ended, the rest behind it.
template <typename SHAPE, bool GATED>
static __device__ __forceinline__ void load_ahead(const tall_place &p, const tall_shared &at,
                                                  int ahead, const CUtensorMap *map_w)
{
    uint32_t stage = at.stages, done = at.full;
#pragma unroll 1
    for (int s = p.first; s < p.first + ahead; s++) {
        msgl__mbarrier_expect(done, SHAPE::STAGE_BYTES);
        load_weights<GATED>(p, stage, s, map_w, done);
        stage += SHAPE::STAGE_BYTES;
        done += 8;
    }
}

template <typename SHAPE, bool GATED>
static __device__ __forceinline__ void
load_rest(const tall_args &g, const tall_place &p, const tall_shared &at, int ahead,
          const CUtensorMap *map_in, const CUtensorMap *map_w)
{
    uint32_t stage = at.stages, done = at.full, phase = 1;
    int slot = 0;
#pragma unroll 1
    for (int s = p.first; s < p.first + p.num; s++) {
        if (s >= p.first + ahead) { // else its weights are on their way
            msgl__mbarrier_wait(done + MAX_STAGES * 8, phase);
            msgl__mbarrier_expect(done, SHAPE::STAGE_BYTES);
            load_weights<GATED>(p, stage, s, map_w, done);
        }
        msgl__tensor_load(stage + W_BYTES, map_in, s * BK, p.token, done);
        stage += SHAPE::STAGE_BYTES;
        done += 8;
        if (++slot == g.stages) {
            slot = 0;
            stage = at.stages;
            done = at.full;
            phase ^= 1;
        }
    }
}

// A factor per row of in from the squares that the kernel in front has left. One warp.
template <int COLUMNS>
static __device__ __forceinline__ void row_scales(const tall_args &g, const tall_place &p,
                                                  uint32_t scales)
{
    constexpr int NUM = tall_shape<COLUMNS>::SCALES,
                  BATCH = 32 / NUM; // rows of a lane, parts at a time
    const int lane = threadIdx.x % 32;
    float sum[NUM] = {};
#pragma unroll 1
    for (int first = 0; first < g.parts; first += BATCH) {
        float v[BATCH][NUM];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const float *from = g.sums + (size_t)(first + i) * g.m + p.token;
#pragma unroll
            for (int j = 0; j < NUM; j++) {
                const int r = 32 * j + lane;
                v[i][j] = first + i < g.parts && r < p.rows ? __ldcg(from + r) : 0.0f;
            }
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
#pragma unroll
            for (int j = 0; j < NUM; j++) sum[j] += v[i][j];
        }
    }
#pragma unroll
    for (int j = 0; j < NUM; j++) {
        const float scale = rsqrtf(sum[j] / (float)g.k + g.eps);
        msgl__write_shared(scales + (uint32_t)(32 * j + lane) * 4, scale);
    }
}

// --- sums straight to out -----------------------------------------------------------------------
//
// A thread holds, of its warp's rows of W lane / 4 and lane / 4 + 8, rows of in 8 j + 2 (lane % 4)
// and the next one: acc[4 j] and acc[4 j + 1] of the first, acc[4 j + 2] and acc[4 j + 3] of the
// second. Transposing stores to shared memory make rows of out of them, in chunks of eight outputs.

template <int CHUNKS>
static __device__ __forceinline__ uint32_t chunk_at(uint32_t rows, int token, int chunk)
{
    const int swizzle = CHUNKS == 8 ? token : token / 2;
    return rows + (uint32_t)(token * CHUNKS + (chunk ^ (swizzle % CHUNKS))) * 16;
}

// 8 rows of W by 8 j of in and on.
static __device__ __forceinline__ uint32_t plain_pair(const float *acc, float2 scale, float bias)
{
    return msgl__pack_two(acc[0] * scale.x + bias, acc[1] * scale.y + bias, __nv_bfloat16());
}

static __device__ __forceinline__ uint32_t gated_pair(const float *acc, float2 scale, float bias,
                                                      float bias_up)
{
    const float a = acc[0] * scale.x + bias, b = acc[1] * scale.y + bias;
    return msgl__pack_two(msgl__silu(a) * (acc[2] * scale.x + bias_up),
                          msgl__silu(b) * (acc[3] * scale.y + bias_up), __nv_bfloat16());
}

template <int COLUMNS, bool GATED>
static __device__ __forceinline__ void store_direct(const tall_args &g, const tall_place &p,
                                                    const tall_shared &at,
                                                    const float (&acc)[COLUMNS / 2])
{
    constexpr int CHUNKS = GATED ? 4 : 8; // of the tile's outputs
    constexpr int STEP = GROUP / CHUNKS, EIGHTS = GATED ? 4 : 2;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t rows = at.stages, scales = at.scales + (uint32_t)(lane % 4 * 2 * 4);
    const int row = p.output + warp * (GATED ? 8 : 16) + lane / 4;
    const int second = GATED ? row + g.n : row + 8;
    float bias[2] = {};
    if (g.bias != NULL) {
        if (row < g.n) bias[0] = __ldg(g.bias + row);
        if (GATED ? row < g.n : second < g.n) bias[1] = __ldg(g.bias + second);
    }
#pragma unroll
    for (int first = 0; first < COLUMNS / 8; first += EIGHTS) {
        if (8 * first >= p.rows) break;
        float2 scale[EIGHTS];
        uint32_t v[4];
#pragma unroll
        for (int i = 0; i < EIGHTS; i++) {
            scale[i] = make_float2(1, 1);
            if (g.sums != NULL) scale[i] = msgl__read_shared<float2>(scales + 32 * (first + i));
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int j = first + (GATED ? i : i / 2), e = j - first;
            if (8 * j >= COLUMNS) {
                v[i] = 0;
            } else if (GATED) {
                v[i] = gated_pair(&acc[4 * j % (COLUMNS / 2)], scale[e], bias[0], bias[1]);
            } else {
                v[i] = plain_pair(&acc[4 * j % (COLUMNS / 2) + i % 2 * 2], scale[e], bias[i % 2]);
            }
        }
        const int token = 8 * first + (GATED ? lane : lane / 16 * 8 + lane % 8);
        const int chunk = GATED ? warp : warp * 2 + lane / 8 % 2;
        msgl__store_matrix_4_transposed(chunk_at<CHUNKS>(rows, token, chunk), v[0], v[1], v[2],
                                        v[3]);
    }
    msgl__named_barrier_sync(2, GROUP);
    const int chunk = threadIdx.x % CHUNKS, column = p.output + chunk * 8;
    if (column >= g.n) return;
    int token = (int)threadIdx.x / CHUNKS;
    __nv_bfloat16 *to = g.out + (size_t)(p.token + token) * g.ld_out + column;
#pragma unroll 4
    for (; token < p.rows; token += STEP) {
        *(uint4 *)to = msgl__read_shared<uint4>(chunk_at<CHUNKS>(rows, token, chunk));
        to += STEP * g.ld_out;
    }
}

// --- sums through shared memory -----------------------------------------------------------------

// All sums of this block, over the stages: rows of in, each with the tile's outputs.
template <int COLUMNS>
static __device__ __forceinline__ void collect(const tall_place &p, const tall_shared &at,
                                               const float (&acc)[COLUMNS / 2])
{
    const int lane = threadIdx.x % 32, row = (int)threadIdx.x / 32 * 16 + lane / 4;
    const uint32_t to = at.stages + (uint32_t)((lane % 4 * 2 * PITCH + row) * 4);
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j++) {
        if (8 * j >= p.rows) break;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            msgl__write_shared(to + (uint32_t)(((8 * j + i % 2) * PITCH + i / 2 * 8) * 4),
                               acc[4 * j + i]);
        }
    }
}

// To every other block of the cluster: the rows that it finishes. One warp.
static __device__ __forceinline__ void send(const tall_args &g, const tall_place &p,
                                            const tall_shared &at)
{
    const int to = threadIdx.x % 32;
    if (to >= g.splits || to == p.part) return;
    const uint32_t row = PITCH * 4, all = (uint32_t)g.share * row;
    const uint32_t bytes = (uint32_t)msgl__clamp_to(p.rows - to * g.share, g.share) * row;
    const uint32_t slot = (uint32_t)(p.part < to ? p.part : p.part - 1);
    if (bytes == 0) return;
    msgl__cluster_copy(msgl__cluster_address(at.parts + slot * all, (uint32_t)to),
                       at.stages + (uint32_t)to * all, bytes,
                       msgl__cluster_address(at.landed, (uint32_t)to));
}

// What a thread needs to finish four outputs of every STEP-th row of in, BATCH rows at a time,
// whose latencies then overlap. What is there before the sums are is loaded before.
struct tall_finisher {
    static constexpr int FOURS = ROWS / 4, STEP = GROUP / FOURS;
    int row, column; // the first of its rows, within those that this block finishes
    bool valid;      // column
    float4 bias, weight;
    uint2 old[BATCH];
    __nv_bfloat16 *out;

    // Of weights only.
    __device__ __forceinline__ tall_finisher(const tall_args &g, const tall_place &p)
    {
        row = (int)threadIdx.x / FOURS;
        column = p.output + (int)threadIdx.x % FOURS * 4;
        valid = column < g.n;
        bias = weight = make_float4(0, 0, 0, 0);
        if (valid && g.bias != NULL) bias = __ldg((const float4 *)(g.bias + column));
        if (valid && g.next != NULL) weight = __ldg((const float4 *)(g.next + column));
        out = g.out + (size_t)(p.token + p.part * g.share) * g.ld_out + column;
    }

    // Of the rows from r on.
    __device__ __forceinline__ void load(const tall_args &g, const tall_place &p, int r)
    {
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            old[i] = make_uint2(0, 0);
            if (g.accumulate && valid && r + i * STEP < p.own) {
                old[i] = __ldcg((const uint2 *)(out + (size_t)(r + i * STEP) * g.ld_out));
            }
        }
    }

    // Sums over the parts of k, this block's first.
    __device__ __forceinline__ void add_parts(const tall_args &g, const tall_place &p,
                                              const tall_shared &at, int r,
                                              float (&v)[BATCH][4]) const
    {
        uint32_t offset[BATCH], from = at.stages + (uint32_t)(p.part * g.share * PITCH * 4);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int there = r + i * STEP < p.own ? r + i * STEP : 0;
            offset[i] = (uint32_t)((there * PITCH + column - p.output) * 4);
            v[i][0] = v[i][1] = v[i][2] = v[i][3] = 0;
        }
#pragma unroll 1
        for (int part = 0; part < g.splits; part++) {
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const float4 a = msgl__read_shared<float4>(from + offset[i]);
                v[i][0] += a.x, v[i][1] += a.y, v[i][2] += a.z, v[i][3] += a.w;
            }
            from = at.parts + (uint32_t)(part * g.share * PITCH * 4);
        }
    }

    // What the norm behind needs of four values of x, as they are stored. All lanes.
    __device__ __forceinline__ void feed(const tall_args &g, const tall_place &p, int t,
                                         uint2 stored, bool there) const
    {
        float x[4];
        msgl__unpack_four(stored, x);
        float square = x[0] * x[0] + x[1] * x[1] + (x[2] * x[2] + x[3] * x[3]);
        x[0] *= weight.x, x[1] *= weight.y, x[2] *= weight.z, x[3] *= weight.w;
        if (there) *(uint2 *)(g.scaled + (size_t)t * g.n + column) = msgl__pack_four(x);
#pragma unroll
        for (int d = 1; d < FOURS; d *= 2) square += __shfl_xor_sync(0xffffffffu, square, d);
        if (there && column == p.output) g.squares[(size_t)blockIdx.y * g.m + t] = square;
    }

    __device__ __forceinline__ void run(const tall_args &g, const tall_place &p,
                                        const tall_shared &at)
    {
        const int first = p.part * g.share, of_warp = (int)(threadIdx.x & ~31u) / FOURS;
        // A warp goes on as long as one of its rows is there: all lanes take part in feed's sums.
#pragma unroll 1
        for (int done = 0; of_warp + done < p.own; done += BATCH * STEP) {
            float v[BATCH][4];
            uint2 stored[BATCH];
            if (done > 0) load(g, p, row + done);
            add_parts(g, p, at, row + done, v);
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const int r = row + done + i * STEP;
                const float scale =
                    msgl__load_scale(g.sums != NULL, at.scales, first + (r < p.own ? r : 0));
                float before[4];
                msgl__unpack_four(old[i], before);
                v[i][0] = v[i][0] * scale + bias.x + before[0];
                v[i][1] = v[i][1] * scale + bias.y + before[1];
                v[i][2] = v[i][2] * scale + bias.z + before[2];
                v[i][3] = v[i][3] * scale + bias.w + before[3];
                stored[i] = valid ? msgl__pack_four(v[i]) : make_uint2(0, 0);
                if (valid && r < p.own) *(uint2 *)(out + (size_t)r * g.ld_out) = stored[i];
            }
            if (g.next == NULL) continue;
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const int r = row + done + i * STEP;
                feed(g, p, p.token + first + r, stored[i], valid && r < p.own);
            }
        }
    }
};

// The tile's sums over this block's part of k.
template <int COLUMNS>
static __device__ __forceinline__ void multiply(const tall_args &g, const tall_place &p,
                                                const tall_shared &at, float (&acc)[COLUMNS / 2])
{
    typedef tall_shape<COLUMNS> shape;
    int slot = 0, before = 0;
    uint32_t phase = 0;
#pragma unroll 1
    for (int s = 0; s < p.num; s++) {
        const uint32_t from = at.stages + (uint32_t)(slot * shape::STAGE_BYTES);
        msgl__mbarrier_wait(at.full + slot * 8, phase);
        const uint64_t a = msgl__wgmma_operand(from);
        const uint64_t b = msgl__wgmma_operand(from + W_BYTES);
        msgl__wgmma_fence();
#pragma unroll
        for (int i = 0; i < BK / 16; i++) {
            msgl__wgmma(acc, a + 2 * i, b + 2 * i, s > 0 || i > 0, __nv_bfloat16());
        }
        msgl__wgmma_commit();
        msgl__wgmma_wait<1>();
        if (s > 0 && threadIdx.x % 32 == 0) msgl__mbarrier_arrive(at.empty + before * 8);
        before = slot;
        if (++slot == g.stages) {
            slot = 0;
            phase ^= 1;
        }
    }
    msgl__wgmma_wait<0>();
}

template <int COLUMNS, msgl_fed_end END>
__global__ void __launch_bounds__(THREADS, 2)
    tall_sm90(const __grid_constant__ tall_args g, const __grid_constant__ CUtensorMap map_in,
              const __grid_constant__ CUtensorMap map_w)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef tall_shape<COLUMNS> shape;
    constexpr bool GATED = END == MSGL_FED_GATED, COLLECT = END == MSGL_FED_COLLECT;
    constexpr int OUTPUTS = GATED ? ROWS / 2 : ROWS;
    extern __shared__ unsigned char unaligned[];
    const tall_place p = find_place<COLUMNS, OUTPUTS>(g);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool split = COLLECT && g.splits > 1;
    tall_shared at;
    at.full = (msgl__shared_address(unaligned) + 15) & ~15u;
    at.empty = at.full + MAX_STAGES * 8;
    at.landed = at.empty + MAX_STAGES * 8;
    at.scales = at.landed + 16;
    at.stages = (at.scales + shape::SCALES * 128 + 1023) & ~1023u;
    at.parts = at.stages + (uint32_t)(g.height * PITCH * 4);
    msgl__pdl_trigger();
    const int ahead = p.num < g.stages ? p.num : g.stages;
    if (warp == WARPS && lane == 0) {
        msgl__tensor_prefetch(&map_w);
        msgl__tensor_prefetch(&map_in);
#pragma unroll 1
        for (int i = 0; i < g.stages; i++) {
            msgl__mbarrier_init(at.full + i * 8, 1);
            msgl__mbarrier_init(at.empty + i * 8, WARPS);
        }
        msgl__mbarrier_init(at.landed, 1);
        msgl__mbarrier_init_done();
        msgl__fence_async_proxy();
        msgl__mbarrier_expect(at.landed, (uint32_t)((g.splits - 1) * p.own * PITCH * 4));
        load_ahead<shape, GATED>(p, at, ahead, &map_w);
    }
    __syncthreads();
    if (warp == WARPS) {
        msgl__pdl_wait();
        if (lane == 0) load_rest<shape, GATED>(g, p, at, ahead, &map_in, &map_w);
        __syncwarp();
        if (split) msgl__cluster_meet();
    } else if (warp > WARPS) {
        msgl__pdl_wait();
        if (g.sums != NULL) row_scales<COLUMNS>(g, p, at.scales);
        msgl__named_barrier_arrive(1, GROUP + 32);
        if (split) msgl__cluster_meet();
    } else {
        float acc[COLUMNS / 2];
        tall_finisher finisher(g, p);
        msgl__pdl_wait();
        if (COLLECT) finisher.load(g, p, finisher.row);
        multiply<COLUMNS>(g, p, at, acc);
        msgl__named_barrier_sync(1, GROUP + 32); // the stages become the sums' place
        if (COLLECT) {
            // What others send may land where this block's stages were, from when all are here.
            if (split) msgl__cluster_arrive();
            collect<COLUMNS>(p, at, acc);
            msgl__fence_async_proxy();
            if (split) msgl__cluster_wait();
            msgl__named_barrier_sync(2, GROUP);
            if (split && warp == 0) send(g, p, at);
            if (split) msgl__mbarrier_wait(at.landed, 0);
            finisher.run(g, p, at);
        } else {
            store_direct<COLUMNS, GATED>(g, p, at, acc);
        }
    }
    if (split) msgl__cluster_meet(); // what this block has sent has arrived
#endif
}

template <int COLUMNS, msgl_fed_end END>
static bool launch(msgl_exec *x, tall_args g, const CUtensorMap maps[2], const msgl_tall_plan *plan)
{
    typedef tall_shape<COLUMNS> shape;
    constexpr int OUTPUTS = END == MSGL_FED_GATED ? ROWS / 2 : ROWS;
    const int steps = (g.k + BK - 1) / BK, needed = (steps + g.splits - 1) / g.splits;
    const int rows = g.m < COLUMNS ? g.m : COLUMNS;
    g.steps = steps / g.splits;
    g.longer = steps % g.splits;
    g.share = (rows + g.splits - 1) / g.splits;
    g.height = (rows + 7) / 8 * 8;
    const int sums = (g.height + (g.splits - 1) * g.share) * PITCH * 4;
    g.stages = (plan->shared - shape::SMALL_BYTES) / shape::STAGE_BYTES;
    if (g.stages > MAX_STAGES) g.stages = MAX_STAGES;
    if (g.stages > needed) g.stages = needed;
    if (g.stages < 1) g.stages = 1;
    int bytes = g.stages * shape::STAGE_BYTES;
    if (END == MSGL_FED_COLLECT && bytes < sums) bytes = sums;
    bytes += shape::SMALL_BYTES;
    if (bytes < plan->least) bytes = plan->least;
    if (bytes > LIMIT) return false;
    constexpr auto kernel = tall_sm90<COLUMNS, END>;
    MSGL_CUDA_TRY(x, msgl__allow_shared<kernel>((size_t)bytes, true));
    const dim3 grid((unsigned)g.splits, ((unsigned)g.n + OUTPUTS - 1) / OUTPUTS,
                    ((unsigned)g.m + COLUMNS - 1) / COLUMNS);
    const cudaStream_t stream = msgl__cuda_stream(x);
    MSGL_CUDA_TRY(x, g.splits > 1
                         ? msgl__launch_clusters(kernel, dim3(grid.x), grid, dim3(THREADS),
                                                 (size_t)bytes, stream, g, maps[0], maps[1])
                         : msgl__launch(kernel, grid, dim3(THREADS), (size_t)bytes, stream, g,
                                        maps[0], maps[1]));
    return true;
}

template <int COLUMNS>
static bool launch_end(msgl_exec *x, const tall_args &g, const CUtensorMap maps[2],
                       msgl_fed_end end, const msgl_tall_plan *plan)
{
    switch (end) {
    case MSGL_FED_PLAIN: return launch<COLUMNS, MSGL_FED_PLAIN>(x, g, maps, plan);
    case MSGL_FED_GATED: return launch<COLUMNS, MSGL_FED_GATED>(x, g, maps, plan);
    default: return launch<COLUMNS, MSGL_FED_COLLECT>(x, g, maps, plan);
    }
}

static bool launch_shape(msgl_exec *x, const tall_args &g, const CUtensorMap maps[2],
                         msgl_fed_end end, const msgl_tall_plan *plan)
{
    switch (plan->columns) {
    case 48: return launch_end<48>(x, g, maps, end, plan);
    case 64: return launch_end<64>(x, g, maps, end, plan);
    case 80: return launch_end<80>(x, g, maps, end, plan);
    case 96: return launch_end<96>(x, g, maps, end, plan);
    case 112: return launch_end<112>(x, g, maps, end, plan);
    case 128: return launch_end<128>(x, g, maps, end, plan);
    default: return false;
    }
}

// What was fastest at Qwen3-0.6B's shapes; false where the outputs are too many for one round, or
// the sums too short to be split though the outputs are few.
//
// All blocks at once: of clusters of three 43 fit. A kernel that adds to its output takes more than
// half of the shared memory, so that it stands beside its neighbours but not twice on one
// multiprocessor; the others take all of it where each block has a multiprocessor to itself.
static bool make_plan(const msgl_cuda_device *d, const msgl_linear_call *c, msgl_tall_plan *plan)
{
    enum {
        MIN_COLUMNS = 48,
        STEPS = 4, // of k, at least, of a part
        SMALL = 100 << 10,
        HALF = 116 << 10,
        LARGE = 122 << 10,
        ALL = 226 << 10,
    };
    static const int SPLITS[] = {6, 4, 3, 2};
    const msgl_weight *w = c->w;
    const int tiles = (w->n + ROWS - 1) / ROWS, steps = (w->k + BK - 1) / BK;
    if (tiles > d->sm_count) return false;
    const bool collects = c->accumulate || c->next_norm != NULL;
    // Rows of in by two tiles, unless these are too many for one round and one is enough.
    const bool halves = collects || 2 * tiles <= d->sm_count || c->m > MAX_COLUMNS;
    const int columns = (halves ? (c->m + 1) / 2 + 15 : c->m + 15) / 16 * 16;
    plan->columns = columns < MIN_COLUMNS ? MIN_COLUMNS : columns;
    const int blocks = tiles * ((c->m + plan->columns - 1) / plan->columns);
    plan->splits = 1;
    plan->shared = collects ? LARGE : blocks <= d->sm_count ? ALL : SMALL;
    plan->least = collects ? HALF : 0;
    if (!collects) return true;
    for (int splits : SPLITS) {
        if (plan->splits == 1 && steps >= splits * STEPS &&
            blocks * splits <= d->sm_count * 10 / 11) {
            plan->splits = splits;
        }
    }
    return plan->splits > 1;
}

bool msgl__cuda_tall_sm90_can(const msgl_exec *x, const msgl_linear_call *c)
{
    msgl_tall_plan plan;
    return msgl__fed_can_do(x, c) && make_plan(msgl__cuda_device(x), c, &plan);
}

bool msgl__cuda_tall_sm90(msgl_exec *x, const msgl_linear_call *c, const msgl_tall_plan *plan)
{
    const msgl_weight *w = c->w;
    msgl_tall_plan own;
    if (!msgl__fed_can_do(x, c)) return false;
    if (plan == NULL && !make_plan(msgl__cuda_device(x), c, &own)) return false;
    if (plan == NULL) plan = &own;
    const msgl_fed_end end = msgl__fed_end_of(c, plan->splits);
    if ((c->gated && plan->splits > 1) || plan->splits > MAX_SPLITS ||
        plan->splits > (w->k + BK - 1) / BK) {
        return false;
    }
    tall_args g = {};
    const void *in = msgl__fed_args(c, &g);
    g.splits = plan->splits;
    CUtensorMap maps[2];
    if (!msgl__tensor_map(&maps[0], w->format->dtype, in, c->m, w->k, c->ld_in, plan->columns) ||
        !(c->gated ? msgl__tensor_map_pairs(&maps[1], w->format->dtype, w->data, w->n, w->k, ROWS)
                   : msgl__tensor_map(&maps[1], w->format->dtype, w->data, w->n, w->k, (size_t)w->k,
                                      ROWS))) {
        return false;
    }
    if (!launch_shape(x, g, maps, end, plan)) return false;
    if (msgl__feeds(c)) msgl__note_feed(c, (g.n + ROWS - 1) / ROWS);
    return true;
}
