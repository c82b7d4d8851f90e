// SPDX-License-Identifier: Apache-2.0
//
// Products of up to 256 rows with weights of a few megabytes, on Hopper: out^T = W in^T. The rows
// of W are the 64 rows of a warpgroup's product, and half of the rows of `in`, or all, its columns:
// the wider a product, the less of the shared memory's bandwidth goes into reading W, and at these
// sizes that bandwidth, which what arrives from the L2 needs too, is the limit.
//
// One warp loads, a warpgroup multiplies, and what stands behind the product is done to its
// sums: gate (gate and up rows alternate by eight in a tile, so that a thread has both), bias,
// addition to the residual stream, and what the norm behind needs (msgl_norm_stats). Where the
// outputs are too few to fill the GPU, the blocks of a cluster split k; each finishes some rows of
// `in` and gets the others' sums of these by bulk copies. Weights are on their way before the
// kernel in front ends. docs/internals/gemm.md has the figures.
#include "cuda/gemm/tall_sm90.h"

#include "cuda/device.cuh"
#include "cuda/gemm/fused_norm_sm90.cuh"
#include "cuda/gemm/turns.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/tensor_map.cuh"

enum {
    ROWS = 64, // of W
    W_BYTES = ROWS * ROW_BYTES,
    PITCH = ROWS + 4, // floats of a row of sums: a quad's four pairs of rows fall on 32 banks
    MAX_COLUMNS = 128,
    BATCH = 6, // rows of in that a thread finishes at a time: all of them, mostly
    LIMIT = 227 << 10,
};

struct tall_args : fused_args {
    int32_t height; // rows of `in` of a tile, in eights
};

template <int COLUMNS> struct tall_shape {
    static constexpr int STAGE_BYTES = W_BYTES + COLUMNS * ROW_BYTES;
    static constexpr int SCALES = (COLUMNS + 31) / 32; // of a lane
    // Barriers, a factor per row of in, alignment.
    static constexpr int SMALL_BYTES = FUSED_MAX_STAGES * 16 + 16 + SCALES * 128 + 1024;
};

// Loads of one block: rows of W, then those of in.
template <int COLUMNS, bool GATED> struct tall_loader {
    static constexpr int STAGE_BYTES = tall_shape<COLUMNS>::STAGE_BYTES;
    const fused_place &p;
    const CUtensorMap *map_in, *map_w;

    __device__ __forceinline__ void weights(uint32_t stage, int s, uint32_t done) const
    {
        if (GATED) {
            msgl__tensor_load(stage, map_w, s * BK, 0, 0, p.output / 8, done);
        } else {
            msgl__tensor_load(stage, map_w, s * BK, p.output, done);
        }
    }

    __device__ __forceinline__ void in(uint32_t stage, int s, uint32_t done) const
    {
        msgl__tensor_load(stage + W_BYTES, map_in, s * BK, p.token, done);
    }
};

// A factor per row of in from the squares that the kernel in front has left. One warp.
template <int COLUMNS>
static __device__ __forceinline__ void row_scales(const tall_args &g, const fused_place &p,
                                                  uint32_t scales)
{
    constexpr int NUM = tall_shape<COLUMNS>::SCALES,
                  BATCH = 32 / NUM; // rows of a lane, tiles of norm_stats at a time
    const int lane = threadIdx.x % 32;
    float sum[NUM] = {};
#pragma unroll 1
    for (int first = 0; first < g.num_tiles; first += BATCH) {
        float v[BATCH][NUM];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const float *from = g.sums + (size_t)(first + i) * g.m + p.token;
#pragma unroll
            for (int j = 0; j < NUM; j++) {
                const int r = 32 * j + lane;
                v[i][j] = first + i < g.num_tiles && r < p.rows ? __ldcg(from + r) : 0.0f;
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
static __device__ __forceinline__ void store_direct(const tall_args &g, const fused_place &p,
                                                    const fused_shared &at,
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
static __device__ __forceinline__ void collect(const fused_place &p, const fused_shared &at,
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

// Finishes BATCH rows of in at a time, whose latencies then overlap. What is there before the sums
// are is loaded before.
struct tall_finisher : fused_finisher<ROWS> {
    uint2 old[BATCH];
    __nv_bfloat16 *out;

    __device__ __forceinline__ tall_finisher(const tall_args &g, const fused_place &p)
        : fused_finisher<ROWS>(g, p)
    {
        out = g.out + (size_t)(p.token + p.split * g.split_rows) * g.ld_out + column;
    }

    // Of the rows from r on.
    __device__ __forceinline__ void load(const tall_args &g, const fused_place &p, int r)
    {
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            old[i] = make_uint2(0, 0);
            if (g.accumulate && valid && r + i * STEP < p.own) {
                old[i] = __ldcg((const uint2 *)(out + (size_t)(r + i * STEP) * g.ld_out));
            }
        }
    }

    // Sums over the splits of k, this block's first.
    __device__ __forceinline__ void add_splits(const tall_args &g, const fused_place &p,
                                               const fused_shared &at, int r,
                                               float (&v)[BATCH][4]) const
    {
        uint32_t offset[BATCH], from = at.stages + (uint32_t)(p.split * g.split_rows * PITCH * 4);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int there = r + i * STEP < p.own ? r + i * STEP : 0;
            offset[i] = (uint32_t)((there * PITCH + column - p.output) * 4);
            v[i][0] = v[i][1] = v[i][2] = v[i][3] = 0;
        }
#pragma unroll 1
        for (int split = 0; split < g.splits; split++) {
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const float4 a = msgl__read_shared<float4>(from + offset[i]);
                v[i][0] += a.x, v[i][1] += a.y, v[i][2] += a.z, v[i][3] += a.w;
            }
            from = at.partials + (uint32_t)(split * g.split_rows * PITCH * 4);
        }
    }

    __device__ __forceinline__ void run(const tall_args &g, const fused_place &p,
                                        const fused_shared &at)
    {
        const int first = p.split * g.split_rows, of_warp = (int)(threadIdx.x & ~31u) / FOURS;
        // A warp goes on as long as one of its rows is there: all lanes take part in the sums of
        // leave_norm_stats.
#pragma unroll 1
        for (int done = 0; of_warp + done < p.own; done += BATCH * STEP) {
            float v[BATCH][4];
            uint2 stored[BATCH];
            if (done > 0) load(g, p, row + done);
            add_splits(g, p, at, row + done, v);
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const int r = row + done + i * STEP;
                const float scale =
                    fused_load_scale(g.sums != NULL, at.scales, first + (r < p.own ? r : 0));
                float before[4];
                fused_unpack_four(old[i], before);
                add(v[i], scale, before);
                stored[i] = valid ? fused_pack_four(v[i]) : make_uint2(0, 0);
                if (valid && r < p.own) *(uint2 *)(out + (size_t)r * g.ld_out) = stored[i];
            }
            if (g.next == NULL) continue;
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const int r = row + done + i * STEP;
                leave_norm_stats(g, p, blockIdx.y, p.token + first + r, stored[i],
                                 valid && r < p.own);
            }
        }
    }
};

template <int COLUMNS, msgl_fused_epilogue END>
__global__ void __launch_bounds__(FUSED_THREADS, 2)
    tall_sm90(const __grid_constant__ tall_args g, const __grid_constant__ CUtensorMap map_in,
              const __grid_constant__ CUtensorMap map_w)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef tall_shape<COLUMNS> shape;
    constexpr bool GATED = END == MSGL_FUSED_GATED, COLLECT = END == MSGL_FUSED_COLLECT;
    constexpr int OUTPUTS = GATED ? ROWS / 2 : ROWS;
    extern __shared__ unsigned char unaligned[];
    const fused_place p = fused_find_place<COLUMNS, OUTPUTS>(g);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool splits = COLLECT && g.splits > 1;
    fused_shared at = fused_lay_out(unaligned, shape::SCALES * 128);
    at.partials = at.stages + (uint32_t)(g.height * PITCH * 4);
    msgl__pdl_trigger();
    const int ahead = p.num < g.stages ? p.num : g.stages;
    const tall_loader<COLUMNS, GATED> loader = {p, &map_in, &map_w};
    if (warp == FUSED_WARPS && lane == 0) {
        msgl__tensor_prefetch(&map_w);
        msgl__tensor_prefetch(&map_in);
        fused_init(g, p, at, PITCH);
        fused_load_ahead(loader, at, p.first, ahead);
    }
    __syncthreads();
    if (warp == FUSED_WARPS) {
        msgl__pdl_wait();
        if (lane == 0) fused_load_rest(loader, at, p.first, p.first + p.num, ahead, g.stages);
        __syncwarp();
        if (splits) msgl__cluster_meet();
    } else if (warp > FUSED_WARPS) {
        msgl__pdl_wait();
        if (g.sums != NULL) row_scales<COLUMNS>(g, p, at.scales);
        msgl__named_barrier_arrive(1, GROUP + 32);
        if (splits) msgl__cluster_meet();
    } else {
        float acc[COLUMNS / 2];
        tall_finisher finisher(g, p);
        msgl__pdl_wait();
        if (COLLECT) finisher.load(g, p, finisher.row);
        fused_multiply<shape::STAGE_BYTES, 0, W_BYTES, true>(g, p, at, acc);
        msgl__named_barrier_sync(1, GROUP + 32); // the stages become the sums' place
        if (COLLECT) {
            // What others send may land where this block's stages were, from when all are here.
            if (splits) msgl__cluster_arrive();
            collect<COLUMNS>(p, at, acc);
            msgl__fence_async_proxy();
            if (splits) msgl__cluster_wait();
            msgl__named_barrier_sync(2, GROUP);
            if (splits && warp == 0) fused_send<PITCH>(g, p, at);
            if (splits) msgl__mbarrier_wait(at.landed, 0);
            finisher.run(g, p, at);
        } else {
            store_direct<COLUMNS, GATED>(g, p, at, acc);
        }
    }
    if (splits) msgl__cluster_meet(); // what this block has sent has arrived
#endif
}

template <int COLUMNS, msgl_fused_epilogue END>
static bool launch(msgl_exec *x, tall_args g, const CUtensorMap maps[2], const msgl_tall_plan *plan)
{
    typedef tall_shape<COLUMNS> shape;
    constexpr int OUTPUTS = END == MSGL_FUSED_GATED ? ROWS / 2 : ROWS;
    fused_split_k(&g, COLUMNS);
    g.height = ((g.m < COLUMNS ? g.m : COLUMNS) + 7) / 8 * 8;
    const int sums = (g.height + (g.splits - 1) * g.split_rows) * PITCH * 4;
    g.stages = fused_count_stages(&g, plan->shared - shape::SMALL_BYTES, shape::STAGE_BYTES);
    int bytes = g.stages * shape::STAGE_BYTES;
    if (END == MSGL_FUSED_COLLECT && bytes < sums) bytes = sums;
    bytes += shape::SMALL_BYTES;
    if (bytes < plan->least) bytes = plan->least;
    if (bytes > LIMIT) return false;
    constexpr auto kernel = tall_sm90<COLUMNS, END>;
    MSGL_CUDA_TRY(x, msgl__allow_shared<kernel>((size_t)bytes, true));
    const dim3 grid((unsigned)g.splits, ((unsigned)g.n + OUTPUTS - 1) / OUTPUTS,
                    ((unsigned)g.m + COLUMNS - 1) / COLUMNS);
    const cudaStream_t stream = msgl__cuda_stream(x);
    MSGL_CUDA_TRY(x, g.splits > 1
                         ? msgl__launch_clusters(kernel, dim3(grid.x), grid, dim3(FUSED_THREADS),
                                                 (size_t)bytes, stream, g, maps[0], maps[1])
                         : msgl__launch(kernel, grid, dim3(FUSED_THREADS), (size_t)bytes, stream, g,
                                        maps[0], maps[1]));
    return true;
}

template <int COLUMNS>
static bool launch_end(msgl_exec *x, const tall_args &g, const CUtensorMap maps[2],
                       msgl_fused_epilogue end, const msgl_tall_plan *plan)
{
    switch (end) {
    case MSGL_FUSED_PLAIN: return launch<COLUMNS, MSGL_FUSED_PLAIN>(x, g, maps, plan);
    case MSGL_FUSED_GATED: return launch<COLUMNS, MSGL_FUSED_GATED>(x, g, maps, plan);
    default: return launch<COLUMNS, MSGL_FUSED_COLLECT>(x, g, maps, plan);
    }
}

static bool launch_shape(msgl_exec *x, const tall_args &g, const CUtensorMap maps[2],
                         msgl_fused_epilogue end, const msgl_tall_plan *plan)
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
        SMALL = 100 << 10,
        LARGE = 122 << 10,
        ALL = 226 << 10,
    };
    const msgl_weight *w = c->w;
    const int tiles = (w->n + ROWS - 1) / ROWS;
    if (tiles > d->sm_count) return false;
    const bool collects = c->accumulate || c->next_norm != NULL;
    // Rows of in by two tiles, unless these are too many for one round and one is enough.
    const bool halves = collects || 2 * tiles <= d->sm_count || c->m > MAX_COLUMNS;
    const int columns = (halves ? (c->m + 1) / 2 + 15 : c->m + 15) / 16 * 16;
    plan->columns = columns < MIN_COLUMNS ? MIN_COLUMNS : columns;
    const int blocks = tiles * ((c->m + plan->columns - 1) / plan->columns);
    plan->splits = 1;
    plan->shared = collects ? LARGE : blocks <= d->sm_count ? ALL : SMALL;
    plan->least = collects ? MSGL_TURN_LARGE : 0;
    if (!collects) return true;
    plan->splits = fused_choose_splits(d, blocks, fused_steps(w->k));
    return plan->splits > 1;
}

bool msgl__cuda_tall_sm90_can(const msgl_exec *x, const msgl_linear_call *c)
{
    msgl_tall_plan plan;
    return msgl__fused_can_do(x, c) && make_plan(msgl__cuda_device(x), c, &plan);
}

bool msgl__cuda_tall_sm90(msgl_exec *x, const msgl_linear_call *c, const msgl_tall_plan *plan)
{
    const msgl_weight *w = c->w;
    msgl_tall_plan own;
    if (!msgl__fused_can_do(x, c)) return false;
    if (plan == NULL && !make_plan(msgl__cuda_device(x), c, &own)) return false;
    if (plan == NULL) plan = &own;
    const msgl_fused_epilogue end = msgl__fused_epilogue_of(c, plan->splits);
    if (!fused_can_split(c, plan->splits)) return false;
    tall_args g = {};
    const void *in = fused_fill_args(c, plan->splits, &g);
    CUtensorMap maps[2];
    if (!msgl__tensor_map(&maps[0], w->format->dtype, in, c->m, w->k, c->ld_in, plan->columns) ||
        !(c->gated ? msgl__tensor_map_pairs(&maps[1], w->format->dtype, w->data, w->n, w->k, ROWS)
                   : msgl__tensor_map(&maps[1], w->format->dtype, w->data, w->n, w->k, (size_t)w->k,
                                      ROWS))) {
        return false;
    }
    if (!launch_shape(x, g, maps, end, plan)) return false;
    if (msgl__leaves_norm_stats(c)) msgl__note_norm_stats(c, (g.n + ROWS - 1) / ROWS);
    return true;
}
