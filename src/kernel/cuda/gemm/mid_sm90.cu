// SPDX-License-Identifier: Apache-2.0
//
// Products of some dozens of rows with weights of a few megabytes, on Hopper: the decode steps of
// small models. At this size a product takes a few microseconds, which are latencies: of the
// launch, of the first bytes, of the way from the L2. So one kernel does all of a call, its weights
// are on their way before the kernel in front ends, and where the outputs are too few to fill the
// GPU, the blocks of a cluster split k and send each other their sums.
//
// The norm in front of a product costs nothing here: the kernel that finishes the residual stream
// has left x * weight and the squares of its columns (msgl_norm_feed), and what is left is a factor
// per row of the result. docs/internals/gemm.md has the figures.
#include "kernel/cuda/gemm/mid_sm90.h"

#include "kernel/cuda/device.cuh"
#include "kernel/cuda/gemm/epilogue.cuh"
#include "kernel/cuda/gemm/fed.cuh"
#include "kernel/cuda/launch.cuh"
#include "kernel/cuda/ptx/barrier.cuh"
#include "kernel/cuda/ptx/cluster.cuh"
#include "kernel/cuda/ptx/shared.cuh"
#include "kernel/cuda/ptx/tma.cuh"
#include "kernel/cuda/ptx/wgmma.cuh"
#include "kernel/cuda/tensor_map.cuh"

enum {
    BK = 64,
    ROW_BYTES = BK * 2,
    ROWS = 64,            // of in
    GROUP = 128,          // threads of a warpgroup
    THREADS = GROUP + 64, // a warp that loads, a warp that adds up the squares
    MAX_STAGES = 8,
    MAX_CLUSTER = 8,
    PAD = 8,   // floats behind a row of sums: a quad's pairs of four rows fall on 32 banks
    AHEAD = 4, // groups of four outputs of a thread whose old values are loaded ahead
};

// Whatever a block would have to divide for is computed before the launch: code that runs once
// comes from memory, so that a few hundred instructions more are felt.
typedef struct mid_args {
    int32_t m, n, k; // n: outputs, which is half of W's rows when gated
    int32_t stages, splits;
    int32_t steps, longer; // steps of k of a part; of the first `longer` parts one more
    int32_t share;         // rows of a tile that each part finishes
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
} mid_args;

template <int COLUMNS> struct mid_shape {
    static constexpr int IN_BYTES = ROWS * ROW_BYTES, STAGE_BYTES = IN_BYTES + COLUMNS * ROW_BYTES;
    static constexpr int PITCH = COLUMNS + PAD;
    static constexpr int SUMS_BYTES = ROWS * PITCH * 4;
    // Barriers, a factor per row, alignment.
    static constexpr int SMALL_BYTES = MAX_STAGES * 16 + 16 + ROWS * 4 + 1024;
};

// Where this block is: blocks of a cluster differ in their part of k.
typedef struct mid_place {
    int part;
    int column, token; // its first output, its first row
    int rows, own;     // rows of this tile, rows that this block finishes
    int first, num;    // steps of k
} mid_place;

// Addresses in shared memory.
typedef struct mid_shared {
    uint32_t stages; // then this block's own sums
    uint32_t parts;  // other blocks' sums of the rows that this one finishes
    uint32_t full, empty, landed, scales;
} mid_shared;

template <int OUTPUTS> static __device__ __forceinline__ mid_place find_place(const mid_args &g)
{
    mid_place p;
    p.part = (int)blockIdx.x;
    p.column = (int)blockIdx.y * OUTPUTS;
    p.token = (int)blockIdx.z * ROWS;
    p.rows = msgl__clamp_to(g.m - p.token, ROWS);
    p.own = msgl__clamp_to(p.rows - p.part * g.share, g.share);
    p.first = p.part * g.steps + (p.part < g.longer ? p.part : g.longer);
    p.num = g.steps + (p.part < g.longer);
    return p;
}

// Loads of one block.
template <int COLUMNS, bool GATED> struct mid_loader {
    typedef mid_shape<COLUMNS> shape;
    const CUtensorMap *map_in, *map_w;
    int row_in, row_w, row_up; // row_up: of the up rows, behind as many gate rows

    __device__ __forceinline__ mid_loader(const mid_args &g, const mid_place &p,
                                          const CUtensorMap *in, const CUtensorMap *w)
    {
        map_in = in, map_w = w;
        row_in = p.token, row_w = p.column, row_up = g.n + p.column;
    }

    __device__ __forceinline__ void weights(uint32_t stage, int s, uint32_t done) const
    {
        const uint32_t to = stage + shape::IN_BYTES;
        msgl__tensor_load(to, map_w, s * BK, row_w, done);
        if (GATED) {
            msgl__tensor_load(to + COLUMNS / 2 * ROW_BYTES, map_w, s * BK, row_up, done);
        }
    }

    // Before the kernel in front has ended: weights of the first steps, one for every stage.
    __device__ __forceinline__ void begin(const mid_shared &at, int first, int ahead) const
    {
        uint32_t stage = at.stages, done = at.full;
#pragma unroll 1
        for (int s = first; s < first + ahead; s++) {
            msgl__mbarrier_expect(done, shape::STAGE_BYTES);
            weights(stage, s, done);
            stage += shape::STAGE_BYTES;
            done += 8;
        }
    }

    __device__ __forceinline__ void run(const mid_shared &at, int first, int last, int ahead,
                                        int stages) const
    {
        uint32_t stage = at.stages, done = at.full, phase = 1;
        int slot = 0;
#pragma unroll 1
        for (int s = first; s < last; s++) {
            if (s >= first + ahead) { // else its weights are on their way
                msgl__mbarrier_wait(done + MAX_STAGES * 8, phase);
                msgl__mbarrier_expect(done, shape::STAGE_BYTES);
                weights(stage, s, done);
            }
            msgl__tensor_load(stage, map_in, s * BK, row_in, done);
            stage += shape::STAGE_BYTES;
            done += 8;
            if (++slot == stages) {
                slot = 0;
                stage = at.stages;
                done = at.full;
                phase ^= 1;
            }
        }
    }
};

// A factor per row from the squares that the kernel in front has left.
static __device__ __forceinline__ void row_scales(const mid_args &g, const mid_place &p,
                                                  uint32_t scales)
{
    enum { BATCH = 16 };
#pragma unroll 1
    for (int r = threadIdx.x % 32; r < ROWS; r += 32) {
        float sum = 0;
        if (r < p.rows) {
            const float *from = g.sums + p.token + r;
#pragma unroll 1
            for (int first = 0; first < g.parts; first += BATCH) {
                float v[BATCH];
#pragma unroll
                for (int i = 0; i < BATCH; i++) {
                    v[i] = first + i < g.parts ? __ldcg(from + (size_t)(first + i) * g.m) : 0.0f;
                }
#pragma unroll
                for (int i = 0; i < BATCH; i++) sum += v[i];
            }
        }
        const float scale = rsqrtf(sum / (float)g.k + g.eps);
        msgl__write_shared(scales + (uint32_t)r * 4, scale);
    }
}

// MSGL_FED_PLAIN and MSGL_FED_GATED: a thread's two rows, from its registers.
template <int COLUMNS, bool GATED>
static __device__ __forceinline__ void store_direct(const mid_args &g, const mid_place &p,
                                                    const mid_shared &at,
                                                    const float (&acc)[COLUMNS / 2])
{
    constexpr int EIGHTS = (GATED ? COLUMNS / 2 : COLUMNS) / 8;
    const int lane = threadIdx.x % 32, row = (int)threadIdx.x / 32 * 16 + lane / 4;
    const int column = p.column + lane % 4 * 2;
    const float scales[2] = {msgl__load_scale(g.sums != NULL, at.scales, row),
                             msgl__load_scale(g.sums != NULL, at.scales, row + 8)};
    __nv_bfloat16 *const out = g.out + (size_t)(p.token + row) * g.ld_out + column;
#pragma unroll
    for (int j = 0; j < EIGHTS; j++) {
        if (column + j * 8 >= g.n) break;
        float2 bias = make_float2(0, 0), bias_up = bias;
        if (g.bias != NULL) {
            bias = __ldg((const float2 *)(g.bias + column + j * 8));
            if (GATED) bias_up = __ldg((const float2 *)(g.bias + g.n + column + j * 8));
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = 4 * j + 2 * half, up = 4 * EIGHTS + i;
            float a = acc[i] * scales[half] + bias.x, b = acc[i + 1] * scales[half] + bias.y;
            if (GATED) {
                a = msgl__silu(a) * (acc[up % (COLUMNS / 2)] * scales[half] + bias_up.x);
                b = msgl__silu(b) * (acc[(up + 1) % (COLUMNS / 2)] * scales[half] + bias_up.y);
            }
            if (row + half * 8 < p.rows) {
                msgl__store_pair(out + (size_t)(half * 8) * g.ld_out + j * 8, a, b);
            }
        }
    }
}

// MSGL_FED_COLLECT: all sums of this block, over the stages.
template <int COLUMNS>
static __device__ __forceinline__ void collect(const mid_shared &at,
                                               const float (&acc)[COLUMNS / 2])
{
    typedef mid_shape<COLUMNS> shape;
    const int lane = threadIdx.x % 32, row = (int)threadIdx.x / 32 * 16 + lane / 4;
    const uint32_t to = at.stages + (uint32_t)((row * shape::PITCH + lane % 4 * 2) * 4);
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i += 2) {
        const int j = i / 4, half = i / 2 % 2;
        msgl__write_shared(to + (uint32_t)((half * 8 * shape::PITCH + j * 8) * 4),
                           make_float2(acc[i], acc[i + 1]));
    }
}

// To every other block of the cluster with this tile: the rows that it finishes. One warp.
template <int PITCH>
static __device__ __forceinline__ void send(const mid_args &g, const mid_place &p,
                                            const mid_shared &at)
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

// What a thread needs to finish four columns of every STEP-th row: all of it there before the sums
// are.
template <int COLUMNS> struct mid_finisher {
    typedef mid_shape<COLUMNS> shape;
    static constexpr int FOURS = COLUMNS / 4, STEP = GROUP / FOURS;
    int row, column; // the first of its rows, within those that this block finishes
    bool valid;      // column
    float4 bias, weight;
    uint2 old[AHEAD];
    __nv_bfloat16 *out;

    // Of weights only.
    __device__ __forceinline__ mid_finisher(const mid_args &g, const mid_place &p)
    {
        row = (int)threadIdx.x / FOURS;
        column = p.column + (int)threadIdx.x % FOURS * 4;
        valid = column < g.n;
        bias = weight = make_float4(0, 0, 0, 0);
        if (valid && g.bias != NULL) bias = __ldg((const float4 *)(g.bias + column));
        if (valid && g.next != NULL) weight = __ldg((const float4 *)(g.next + column));
        out = g.out + (size_t)(p.token + p.part * g.share + row) * g.ld_out + column;
    }

    __device__ __forceinline__ uint2 load_old(const mid_args &g, const mid_place &p, int i) const
    {
        if (!g.accumulate || !valid || row + i * STEP >= p.own) return make_uint2(0, 0);
        return __ldcg((const uint2 *)(out + (size_t)(i * STEP) * g.ld_out));
    }

    __device__ __forceinline__ void load(const mid_args &g, const mid_place &p)
    {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) old[i] = load_old(g, p, i);
    }

    // All parts of a sum, here first.
    __device__ __forceinline__ void add_parts(const mid_args &g, uint32_t own, uint32_t parts,
                                              float v[4]) const
    {
        float4 a[MAX_CLUSTER];
        a[0] = msgl__read_shared<float4>(own);
#pragma unroll
        for (int i = 1; i < MAX_CLUSTER; i++) {
            a[i] = make_float4(0, 0, 0, 0);
            if (i < g.splits) a[i] = msgl__read_shared<float4>(parts);
            parts += (uint32_t)(g.share * shape::PITCH * 4);
        }
        v[0] = a[0].x, v[1] = a[0].y, v[2] = a[0].z, v[3] = a[0].w;
#pragma unroll
        for (int i = 1; i < MAX_CLUSTER; i++) {
            v[0] += a[i].x, v[1] += a[i].y, v[2] += a[i].z, v[3] += a[i].w;
        }
    }

    // What the norm behind needs of four values of x, as they are stored. All lanes.
    __device__ __forceinline__ void feed(const mid_args &g, const mid_place &p, int t, uint2 stored,
                                         bool there) const
    {
        float x[4];
        msgl__unpack_four(stored, x);
        float square = x[0] * x[0] + x[1] * x[1] + (x[2] * x[2] + x[3] * x[3]);
        x[0] *= weight.x, x[1] *= weight.y, x[2] *= weight.z, x[3] *= weight.w;
        if (there) *(uint2 *)(g.scaled + (size_t)t * g.n + column) = msgl__pack_four(x);
#pragma unroll
        for (int d = 1; d < FOURS; d *= 2) square += __shfl_xor_sync(0xffffffffu, square, d);
        if (there && column == p.column) {
            g.squares[(size_t)(p.column / COLUMNS) * g.m + t] = square;
        }
    }

    __device__ __forceinline__ void run(const mid_args &g, const mid_place &p,
                                        const mid_shared &at) const
    {
        const int c = column - p.column, warp = (int)(threadIdx.x & ~31u) / FOURS;
        const int first = p.part * g.share; // row of the tile
        uint32_t offset = (uint32_t)((row * shape::PITCH + c) * 4);
        const uint32_t own = at.stages + (uint32_t)(first * shape::PITCH * 4);
        __nv_bfloat16 *to = out;
        // A warp goes on as long as one of its rows is there: all lanes take part in feed's sums.
#pragma unroll 1
        for (int i = 0; warp + i * STEP < p.own; i++) {
            const int r = row + i * STEP;
            const bool there = valid && r < p.own;
            uint2 stored = make_uint2(0, 0);
            if (there) {
                const uint2 was = i == 0   ? old[0]
                                  : i == 1 ? old[1]
                                  : i == 2 ? old[2]
                                  : i == 3 ? old[3]
                                           : load_old(g, p, i);
                float v[4], before[4];
                add_parts(g, own + offset, at.parts + offset, v);
                msgl__unpack_four(was, before);
                const float scale = msgl__load_scale(g.sums != NULL, at.scales, first + r);
                v[0] = v[0] * scale + bias.x + before[0];
                v[1] = v[1] * scale + bias.y + before[1];
                v[2] = v[2] * scale + bias.z + before[2];
                v[3] = v[3] * scale + bias.w + before[3];
                stored = msgl__pack_four(v);
                *(uint2 *)to = stored;
            }
            if (g.next != NULL) feed(g, p, p.token + first + r, stored, there);
            offset += STEP * shape::PITCH * 4;
            to += (size_t)STEP * g.ld_out;
        }
    }
};

// One warpgroup's 64 rows over this block's part of k.
template <int COLUMNS>
static __device__ __forceinline__ void multiply(const mid_args &g, const mid_place &p,
                                                const mid_shared &at, float (&acc)[COLUMNS / 2])
{
    typedef mid_shape<COLUMNS> shape;
    int slot = 0, before = 0;
    uint32_t phase = 0;
#pragma unroll 1
    for (int s = 0; s < p.num; s++) {
        const uint32_t from = at.stages + (uint32_t)(slot * shape::STAGE_BYTES);
        msgl__mbarrier_wait(at.full + slot * 8, phase);
        const uint64_t a = msgl__wgmma_operand(from);
        const uint64_t b = msgl__wgmma_operand(from + shape::IN_BYTES);
        msgl__wgmma_fence();
#pragma unroll
        for (int i = 0; i < BK / 16; i++) {
            msgl__wgmma(acc, a + 2 * i, b + 2 * i, s > 0 || i > 0, __nv_bfloat16());
        }
        msgl__wgmma_commit();
        msgl__wgmma_wait<1>();
        // Nobody waits for room behind the last steps.
        if (s > 0 && s - 1 + g.stages < p.num && threadIdx.x % 32 == 0) {
            msgl__mbarrier_arrive(at.empty + before * 8);
        }
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
    mid_sm90(const __grid_constant__ mid_args g, const __grid_constant__ CUtensorMap map_in,
             const __grid_constant__ CUtensorMap map_w)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef mid_shape<COLUMNS> shape;
    constexpr bool GATED = END == MSGL_FED_GATED;
    constexpr int OUTPUTS = GATED ? COLUMNS / 2 : COLUMNS;
    extern __shared__ unsigned char unaligned[];
    const mid_place p = find_place<OUTPUTS>(g);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    mid_shared at;
    at.full = (msgl__shared_address(unaligned) + 15) & ~15u;
    at.empty = at.full + MAX_STAGES * 8;
    at.landed = at.empty + MAX_STAGES * 8;
    at.scales = at.landed + 16;
    at.stages = (at.scales + ROWS * 4 + 1023) & ~1023u;
    const uint32_t ring = (uint32_t)(g.stages * shape::STAGE_BYTES);
    at.parts = at.stages + (ring > shape::SUMS_BYTES ? ring : shape::SUMS_BYTES);
    msgl__pdl_trigger();
    if (warp == GROUP / 32) {
        const int ahead = p.num < g.stages ? p.num : g.stages;
        const mid_loader<COLUMNS, GATED> loader(g, p, &map_in, &map_w);
        if (lane == 0) {
            msgl__tensor_prefetch(&map_w);
            msgl__tensor_prefetch(&map_in);
#pragma unroll 1
            for (int i = 0; i < g.stages; i++) {
                msgl__mbarrier_init(at.full + i * 8, 1);
                msgl__mbarrier_init(at.empty + i * 8, GROUP / 32);
            }
            msgl__mbarrier_init(at.landed, 1);
            msgl__mbarrier_init_done();
            msgl__fence_async_proxy();
            msgl__mbarrier_expect(at.landed, (uint32_t)((g.splits - 1) * p.own * shape::PITCH * 4));
        }
        __syncwarp();
        msgl__cluster_meet();
        if (lane == 0) loader.begin(at, p.first, ahead);
        msgl__pdl_wait();
        if (lane == 0) loader.run(at, p.first, p.first + p.num, ahead, g.stages);
        __syncwarp();
    } else if (warp > GROUP / 32) {
        msgl__cluster_meet();
        msgl__pdl_wait();
        if (g.sums != NULL) row_scales(g, p, at.scales);
        msgl__named_barrier_arrive(1, GROUP + 32);
    } else {
        float acc[COLUMNS / 2];
        mid_finisher<COLUMNS> finisher(g, p);
        msgl__cluster_meet(); // the barriers are ready, here and in the other blocks
        msgl__pdl_wait();
        if (END == MSGL_FED_COLLECT) finisher.load(g, p);
        multiply<COLUMNS>(g, p, at, acc);
        if (END == MSGL_FED_COLLECT) {
            msgl__named_barrier_sync(2, GROUP); // the stages become the sums' place
            collect<COLUMNS>(at, acc);
            msgl__fence_async_proxy();
        }
        msgl__named_barrier_sync(1, GROUP + 32);
        if (END == MSGL_FED_COLLECT) {
            if (warp == 0) send<shape::PITCH>(g, p, at);
            if (g.splits > 1) msgl__mbarrier_wait(at.landed, 0);
            finisher.run(g, p, at);
        } else {
            store_direct<COLUMNS, GATED>(g, p, at, acc);
        }
    }
    msgl__cluster_meet(); // nobody has anything more to tell this block
#endif
}

template <int COLUMNS, msgl_fed_end END>
static void launch(msgl_exec *x, mid_args g, const CUtensorMap maps[2], const msgl_mid_plan *plan)
{
    typedef mid_shape<COLUMNS> shape;
    constexpr int OUTPUTS = END == MSGL_FED_GATED ? COLUMNS / 2 : COLUMNS;
    const int steps = (g.k + BK - 1) / BK, needed = (steps + g.splits - 1) / g.splits;
    const int rows = g.m < ROWS ? g.m : ROWS;
    g.steps = steps / g.splits;
    g.longer = steps % g.splits;
    g.share = (rows + g.splits - 1) / g.splits;
    const int fixed = shape::SMALL_BYTES + (g.splits - 1) * g.share * shape::PITCH * 4;
    const int sums = END == MSGL_FED_COLLECT ? shape::SUMS_BYTES : 0;
    g.stages = (plan->shared - fixed) / shape::STAGE_BYTES;
    if (g.stages > MAX_STAGES) g.stages = MAX_STAGES;
    if (g.stages > needed) g.stages = needed;
    if (g.stages < 1) g.stages = 1;
    const int ring = g.stages * shape::STAGE_BYTES;
    int bytes = fixed + (ring > sums ? ring : sums);
    if (bytes < plan->least) bytes = plan->least;
    constexpr auto kernel = mid_sm90<COLUMNS, END>;
    MSGL_CUDA_TRY(x, msgl__allow_shared<kernel>((size_t)bytes, true));
    const dim3 grid((unsigned)g.splits, ((unsigned)g.n + OUTPUTS - 1) / OUTPUTS,
                    ((unsigned)g.m + ROWS - 1) / ROWS);
    MSGL_CUDA_TRY(x, msgl__launch_clusters(kernel, dim3(grid.x), grid, dim3(THREADS), (size_t)bytes,
                                           msgl__cuda_stream(x), g, maps[0], maps[1]));
}

static bool launch_columns(msgl_exec *x, const mid_args &g, const CUtensorMap maps[2],
                           msgl_fed_end end, const msgl_mid_plan *plan)
{
    switch (plan->columns * 4 + end) {
    case 32 * 4 + MSGL_FED_PLAIN: launch<32, MSGL_FED_PLAIN>(x, g, maps, plan); break;
    case 64 * 4 + MSGL_FED_PLAIN: launch<64, MSGL_FED_PLAIN>(x, g, maps, plan); break;
    case 48 * 4 + MSGL_FED_GATED: launch<48, MSGL_FED_GATED>(x, g, maps, plan); break;
    case 64 * 4 + MSGL_FED_GATED: launch<64, MSGL_FED_GATED>(x, g, maps, plan); break;
    case 96 * 4 + MSGL_FED_GATED: launch<96, MSGL_FED_GATED>(x, g, maps, plan); break;
    case 32 * 4 + MSGL_FED_COLLECT: launch<32, MSGL_FED_COLLECT>(x, g, maps, plan); break;
    case 64 * 4 + MSGL_FED_COLLECT: launch<64, MSGL_FED_COLLECT>(x, g, maps, plan); break;
    default: return false;
    }
    return true;
}

// What was fastest at Qwen3-0.6B's shapes; false where the outputs are too many for one round.
//
// A block has an SM to itself, and the next kernel's block fits beside it: of the kernels of a
// layer every second one takes more than half of the shared memory. All blocks at once: those of a
// cluster lie in one part of the GPU, of which each has a few SMs left over.
static bool make_plan(const msgl_cuda_device *d, const msgl_linear_call *c, msgl_mid_plan *plan)
{
    enum {
        STEPS = 4, // of k, at least, of a part
        SMALL = 100 << 10,
        HALF = 116 << 10,
        LARGE = 122 << 10,
    };
    static const int GATED[] = {48, 64, 96}, PLAIN[] = {32, 64}, SPLITS[] = {6, 4, 3, 2};
    const msgl_weight *w = c->w;
    const bool collects = c->accumulate || c->next_norm != NULL;
    *plan = {64, 1, collects ? LARGE : SMALL, collects ? HALF : 0};
    if (collects) {
        const int tiles = (w->n + 63) / 64, steps = (w->k + BK - 1) / BK;
        for (int splits : SPLITS) {
            if (plan->splits == 1 && steps >= splits * STEPS &&
                tiles * splits <= d->sm_count * 10 / 11) {
                plan->splits = splits;
            }
        }
        return tiles <= d->sm_count;
    }
    const int *const columns = c->gated ? GATED : PLAIN, num = c->gated ? 3 : 2;
    for (int i = 0; i < num; i++) {
        plan->columns = columns[i];
        if ((w->n + columns[i] - 1) / columns[i] <= d->sm_count) return true;
    }
    return false;
}

bool msgl__cuda_mid_sm90_can(const msgl_exec *x, const msgl_linear_call *c)
{
    msgl_mid_plan plan;
    return msgl__fed_can_do(x, c) && make_plan(msgl__cuda_device(x), c, &plan);
}

bool msgl__cuda_mid_sm90(msgl_exec *x, const msgl_linear_call *c, const msgl_mid_plan *plan)
{
    const msgl_weight *w = c->w;
    msgl_mid_plan own;
    if (!msgl__fed_can_do(x, c)) return false;
    if (plan == NULL && !make_plan(msgl__cuda_device(x), c, &own)) return false;
    if (plan == NULL) plan = &own;
    const msgl_fed_end end = msgl__fed_end_of(c, plan->splits);
    if ((c->gated && plan->splits > 1) || plan->splits > (w->k + BK - 1) / BK ||
        plan->splits > MAX_CLUSTER) {
        return false;
    }
    mid_args g = {};
    const void *in = msgl__fed_args(c, &g);
    g.splits = plan->splits;
    CUtensorMap maps[2];
    if (!msgl__tensor_map(&maps[0], w->format->dtype, in, c->m, w->k, c->ld_in, ROWS) ||
        !msgl__tensor_map(&maps[1], w->format->dtype, w->data, w->n, w->k, (size_t)w->k,
                          plan->columns / (c->gated ? 2 : 1))) {
        return false;
    }
    const bool done = launch_columns(x, g, maps, end, plan);
    if (done && msgl__feeds(c)) msgl__note_feed(c, (g.n + plan->columns - 1) / plan->columns);
    return done;
}
