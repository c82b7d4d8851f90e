// SPDX-License-Identifier: Apache-2.0
//
// Products of some dozens of rows with weights of a few megabytes, on Hopper: the decode steps of
// small models. At this size a product takes a few microseconds, which are latencies: of the
// launch, of the first bytes, of the way from the L2. So one kernel does all of a call, its weights
// are on their way before the kernel in front ends, and where the outputs are too few to fill the
// GPU, the blocks of a cluster split k and send each other their sums.
//
// The norm in front of a product costs nothing here: the kernel that finishes the residual stream
// has left x * weight and the squares of its columns (msgl_norm_stats), and what is left is a
// factor per row of the result. docs/internals/gemm.md has the figures.
#include "cuda/gemm/mid_sm90.h"

#include "cuda/device.cuh"
#include "cuda/gemm/fused_norm_sm90.cuh"
#include "cuda/gemm/mid_eights.cuh"
#include "cuda/gemm/turns.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/tensor_map.cuh"

enum {
    ROWS = 64, // of in
    PAD = 8,   // floats behind a row of sums: a quad's pairs of four rows fall on 32 banks
};

template <int COLUMNS> struct mid_shape {
    static constexpr int IN_BYTES = ROWS * ROW_BYTES, STAGE_BYTES = IN_BYTES + COLUMNS * ROW_BYTES;
    static constexpr int PITCH = COLUMNS + PAD;
    static constexpr int SUMS_BYTES = ROWS * PITCH * 4;
    // Barriers, a factor per row, alignment.
    static constexpr int SMALL_BYTES = FUSED_MAX_STAGES * 16 + 16 + ROWS * 4 + 1024;
};

// Loads of one block: rows of in, then those of W.
template <int COLUMNS, bool GATED> struct mid_loader {
    typedef mid_shape<COLUMNS> shape;
    static constexpr int STAGE_BYTES = shape::STAGE_BYTES;
    const CUtensorMap *map_in, *map_w;
    int row_in, row_w, row_up; // row_up: of the up rows, behind as many gate rows

    __device__ __forceinline__ mid_loader(const fused_args &g, const fused_place &p,
                                          const CUtensorMap *in, const CUtensorMap *w)
    {
        map_in = in, map_w = w;
        row_in = p.token, row_w = p.output, row_up = g.n + p.output;
    }

    __device__ __forceinline__ void weights(uint32_t stage, int s, uint32_t done) const
    {
        const uint32_t to = stage + shape::IN_BYTES;
        msgl__tensor_load(to, map_w, s * BK, row_w, done);
        if (GATED) {
            msgl__tensor_load(to + COLUMNS / 2 * ROW_BYTES, map_w, s * BK, row_up, done);
        }
    }

    __device__ __forceinline__ void in(uint32_t stage, int s, uint32_t done) const
    {
        msgl__tensor_load(stage, map_in, s * BK, row_in, done);
    }
};

// A factor per row from the squares that the kernel in front has left.
static __device__ __forceinline__ void row_scales(const fused_args &g, const fused_place &p,
                                                  uint32_t scales)
{
    enum { BATCH = 16 };
#pragma unroll 1
    for (int r = threadIdx.x % 32; r < ROWS; r += 32) {
        float sum = 0;
        if (r < p.rows) {
            const float *from = g.sums + p.token + r;
#pragma unroll 1
            for (int first = 0; first < g.num_tiles; first += BATCH) {
                float v[BATCH];
#pragma unroll
                for (int i = 0; i < BATCH; i++) {
                    v[i] =
                        first + i < g.num_tiles ? __ldcg(from + (size_t)(first + i) * g.m) : 0.0f;
                }
#pragma unroll
                for (int i = 0; i < BATCH; i++) sum += v[i];
            }
        }
        const float scale = rsqrtf(sum / (float)g.k + g.eps);
        msgl__write_shared(scales + (uint32_t)r * 4, scale);
    }
}

// MSGL_FUSED_PLAIN and MSGL_FUSED_GATED: a thread's two rows, from its registers.
template <int COLUMNS, bool GATED>
static __device__ __forceinline__ void store_direct(const fused_args &g, const fused_place &p,
                                                    const fused_shared &at,
                                                    const float (&acc)[COLUMNS / 2])
{
    constexpr int EIGHTS = (GATED ? COLUMNS / 2 : COLUMNS) / 8;
    const int lane = threadIdx.x % 32, row = (int)threadIdx.x / 32 * 16 + lane / 4;
    const int column = p.output + lane % 4 * 2;
    const float scales[2] = {fused_load_scale(g.sums != NULL, at.scales, row),
                             fused_load_scale(g.sums != NULL, at.scales, row + 8)};
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

// MSGL_FUSED_COLLECT: all sums of this block, over the stages.
template <int COLUMNS>
static __device__ __forceinline__ void collect(const fused_shared &at,
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

// MSGL_FUSED_COLLECT, when all sums are there. What is there before they are is loaded before.
template <int COLUMNS> struct mid_finisher : fused_finisher<COLUMNS> {
    typedef mid_shape<COLUMNS> shape;
    typedef fused_finisher<COLUMNS> base;
    using base::column, base::row, base::valid, base::FOURS, base::STEP;
    static constexpr int AHEAD = 4; // rows of a thread whose old values are loaded ahead
    uint2 old[AHEAD];
    __nv_bfloat16 *out;

    __device__ __forceinline__ mid_finisher(const fused_args &g, const fused_place &p) : base(g, p)
    {
        out = g.out + (size_t)(p.token + p.split * g.split_rows + row) * g.ld_out + column;
    }

    __device__ __forceinline__ uint2 load_old(const fused_args &g, const fused_place &p,
                                              int i) const
    {
        if (!g.accumulate || !valid || row + i * STEP >= p.own) return make_uint2(0, 0);
        return __ldcg((const uint2 *)(out + (size_t)(i * STEP) * g.ld_out));
    }

    __device__ __forceinline__ void load(const fused_args &g, const fused_place &p)
    {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) old[i] = load_old(g, p, i);
    }

    __device__ __forceinline__ uint2 loaded(const fused_args &g, const fused_place &p, int i) const
    {
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            if (i == j) return old[j];
        }
        return load_old(g, p, i);
    }

    // All partials of a sum, here first.
    __device__ __forceinline__ void add_splits(const fused_args &g, uint32_t own, uint32_t partials,
                                               float v[4]) const
    {
        float4 a[FUSED_MAX_SPLITS];
        a[0] = msgl__read_shared<float4>(own);
#pragma unroll
        for (int i = 1; i < FUSED_MAX_SPLITS; i++) {
            a[i] = make_float4(0, 0, 0, 0);
            if (i < g.splits) a[i] = msgl__read_shared<float4>(partials);
            partials += (uint32_t)(g.split_rows * shape::PITCH * 4);
        }
        v[0] = a[0].x, v[1] = a[0].y, v[2] = a[0].z, v[3] = a[0].w;
#pragma unroll
        for (int i = 1; i < FUSED_MAX_SPLITS; i++) {
            v[0] += a[i].x, v[1] += a[i].y, v[2] += a[i].z, v[3] += a[i].w;
        }
    }

    __device__ __forceinline__ void run(const fused_args &g, const fused_place &p,
                                        const fused_shared &at) const
    {
        const int c = column - p.output, warp = (int)(threadIdx.x & ~31u) / FOURS;
        const int first = p.split * g.split_rows; // row of the tile
        uint32_t offset = (uint32_t)((row * shape::PITCH + c) * 4);
        const uint32_t own = at.stages + (uint32_t)(first * shape::PITCH * 4);
        __nv_bfloat16 *to = out;
        // A warp goes on as long as one of its rows is there: all lanes take part in the sums of
        // leave_norm_stats.
#pragma unroll 1
        for (int i = 0; warp + i * STEP < p.own; i++) {
            const int r = row + i * STEP;
            const bool there = valid && r < p.own;
            uint2 stored = make_uint2(0, 0);
            if (there) {
                const uint2 was = loaded(g, p, i);
                float v[4], before[4];
                add_splits(g, own + offset, at.partials + offset, v);
                fused_unpack_four(was, before);
                base::add(v, fused_load_scale(g.sums != NULL, at.scales, first + r), before);
                stored = fused_pack_four(v);
                *(uint2 *)to = stored;
            }
            if (g.next != NULL)
                base::leave_norm_stats(g, p, (size_t)(p.output / COLUMNS), p.token + first + r,
                                       stored, there);
            offset += STEP * shape::PITCH * 4;
            to += (size_t)STEP * g.ld_out;
        }
    }

    // This rank's partials to the other one, and in place of their first sums.
    __device__ __forceinline__ void send(const fused_args &g, const fused_place &p,
                                         const fused_shared &at, const msgl_peer_slot &slot) const
    {
        const int first = p.split * g.split_rows;
        uint32_t offset = (uint32_t)((row * shape::PITCH + column - p.output) * 4);
        const uint32_t own = at.stages + (uint32_t)(first * shape::PITCH * 4);
#pragma unroll 1
        for (int r = row; valid && r < p.own; r += STEP) {
            float v[4];
            add_splits(g, own + offset, at.partials + offset, v);
            const uint2 sent =
                base::partial(v, fused_load_scale(g.sums != NULL, at.scales, first + r));
            msgl__peer_push(slot.theirs + base::place(g, p.token + first + r), sent);
            msgl__write_shared(own + offset, sent);
            offset += STEP * shape::PITCH * 4;
        }
    }

    // Behind it: what the other one has sent is added too. AHEAD rows at a time, whose ways to the
    // L2 overlap.
    __device__ __forceinline__ void receive(const fused_args &g, const fused_place &p,
                                            const fused_shared &at,
                                            const msgl_peer_slot &slot) const
    {
        const int first = p.split * g.split_rows, warp = (int)(threadIdx.x & ~31u) / FOURS;
        const uint32_t own =
            at.stages + (uint32_t)(((first + row) * shape::PITCH + column - p.output) * 4);
#pragma unroll 1
        for (int done = 0; warp + done * STEP < p.own; done += AHEAD) {
            uint2 theirs[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                const int r = row + (done + i) * STEP;
                if (!valid || r >= p.own) continue;
                msgl__peer_look(slot.own + base::place(g, p.token + first + r), &theirs[i]);
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                const int r = row + (done + i) * STEP;
                if (warp + (done + i) * STEP >= p.own) break;
                const bool there = valid && r < p.own;
                uint2 stored = make_uint2(0, 0);
                if (there) {
                    msgl__peer_take(slot.own + base::place(g, p.token + first + r), g.sum.over,
                                    &theirs[i]);
                    const uint32_t from = own + (uint32_t)((done + i) * STEP * shape::PITCH * 4);
                    float v[4], other[4], before[4];
                    fused_unpack_four(msgl__read_shared<uint2>(from), v);
                    fused_unpack_four(theirs[i], other);
                    fused_unpack_four(done == 0 ? old[i] : load_old(g, p, done + i), before);
#pragma unroll
                    for (int j = 0; j < 4; j++) v[j] = v[j] + other[j] + before[j];
                    stored = fused_pack_four(v);
                    *(uint2 *)(out + (size_t)((done + i) * STEP) * g.ld_out) = stored;
                }
                if (g.next != NULL) {
                    base::leave_norm_stats(g, p, (size_t)(p.output / COLUMNS), p.token + first + r,
                                           stored, there);
                }
            }
        }
    }
};

template <int COLUMNS> struct mid_end {
    typedef mid_finisher<COLUMNS> finisher;
};
template <> struct mid_end<80> {
    typedef eights_finisher<80, mid_shape<80>::PITCH> finisher;
};

template <int COLUMNS, msgl_fused_epilogue END>
__global__ void __launch_bounds__(FUSED_THREADS, 2)
    mid_sm90(const __grid_constant__ fused_args g, const __grid_constant__ CUtensorMap map_in,
             const __grid_constant__ CUtensorMap map_w)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef mid_shape<COLUMNS> shape;
    constexpr bool GATED = END == MSGL_FUSED_GATED;
    constexpr int OUTPUTS = GATED ? COLUMNS / 2 : COLUMNS;
    extern __shared__ unsigned char unaligned[];
    const fused_place p = fused_find_place<ROWS, OUTPUTS>(g);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    fused_shared at = fused_lay_out(unaligned, ROWS * 4);
    const uint32_t ring = (uint32_t)(g.stages * shape::STAGE_BYTES);
    at.partials = at.stages + (ring > shape::SUMS_BYTES ? ring : shape::SUMS_BYTES);
    msgl__pdl_trigger();
    if (warp == FUSED_WARPS) {
        const int ahead = p.num < g.stages ? p.num : g.stages;
        const mid_loader<COLUMNS, GATED> loader(g, p, &map_in, &map_w);
        if (lane == 0) {
            msgl__tensor_prefetch(&map_w);
            msgl__tensor_prefetch(&map_in);
            fused_init(g, p, at, shape::PITCH);
        }
        __syncwarp();
        msgl__cluster_meet();
        if (lane == 0) fused_load_ahead(loader, at, p.first, ahead);
        msgl__pdl_wait();
        if (lane == 0) fused_load_rest(loader, at, p.first, p.first + p.num, ahead, g.stages);
        __syncwarp();
    } else if (warp > FUSED_WARPS) {
        msgl__cluster_meet();
        msgl__pdl_wait();
        if (g.sums != NULL) row_scales(g, p, at.scales);
        msgl__named_barrier_arrive(1, GROUP + 32);
    } else {
        float acc[COLUMNS / 2];
        typename mid_end<COLUMNS>::finisher finisher(g, p);
        msgl__cluster_meet(); // the barriers are ready, here and in the other blocks
        msgl__pdl_wait();
        msgl_peer_slot slot = {};
        if (END == MSGL_FUSED_COLLECT && g.summed) slot = msgl__peer_open(g.sum);
        if (END == MSGL_FUSED_COLLECT) finisher.load(g, p);
        fused_multiply<shape::STAGE_BYTES, 0, shape::IN_BYTES, false>(g, p, at, acc);
        if (END == MSGL_FUSED_COLLECT) {
            msgl__named_barrier_sync(2, GROUP); // the stages become the sums' place
            collect<COLUMNS>(at, acc);
            msgl__fence_async_proxy();
        }
        msgl__named_barrier_sync(1, GROUP + 32);
        if (END == MSGL_FUSED_COLLECT) {
            if (warp == 0) fused_send<shape::PITCH>(g, p, at);
            if (g.splits > 1) msgl__mbarrier_wait(at.landed, 0);
            if (g.summed) {
                finisher.send(g, p, at, slot);
                if (threadIdx.x == 0) {
                    msgl__peer_count(g.sum.count, g.sum.ticket, slot.call,
                                     gridDim.x * gridDim.y * gridDim.z);
                }
                finisher.receive(g, p, at, slot);
            } else {
                finisher.run(g, p, at);
            }
        } else {
            store_direct<COLUMNS, GATED>(g, p, at, acc);
        }
    }
    msgl__cluster_meet(); // nobody has anything more to tell this block
#endif
}

template <int COLUMNS, msgl_fused_epilogue END>
static void launch(msgl_exec *x, fused_args g, const CUtensorMap maps[2], const msgl_mid_plan *plan)
{
    typedef mid_shape<COLUMNS> shape;
    constexpr int OUTPUTS = END == MSGL_FUSED_GATED ? COLUMNS / 2 : COLUMNS;
    fused_split_k(&g, ROWS);
    const int fixed = shape::SMALL_BYTES + (g.splits - 1) * g.split_rows * shape::PITCH * 4;
    const int sums = END == MSGL_FUSED_COLLECT ? shape::SUMS_BYTES : 0;
    g.stages = fused_count_stages(&g, plan->shared - fixed, shape::STAGE_BYTES);
    const int ring = g.stages * shape::STAGE_BYTES;
    int bytes = fixed + (ring > sums ? ring : sums);
    if (bytes < plan->least) bytes = plan->least;
    constexpr auto kernel = mid_sm90<COLUMNS, END>;
    MSGL_CUDA_TRY(x, msgl__allow_shared<kernel>((size_t)bytes, true));
    const dim3 grid((unsigned)g.splits, ((unsigned)g.n + OUTPUTS - 1) / OUTPUTS,
                    ((unsigned)g.m + ROWS - 1) / ROWS);
    MSGL_CUDA_TRY(x,
                  msgl__launch_clusters(kernel, dim3(grid.x), grid, dim3(FUSED_THREADS),
                                        (size_t)bytes, msgl__cuda_stream(x), g, maps[0], maps[1]));
}

static bool launch_columns(msgl_exec *x, const fused_args &g, const CUtensorMap maps[2],
                           msgl_fused_epilogue end, const msgl_mid_plan *plan)
{
    switch (plan->columns * 4 + end) {
    case 32 * 4 + MSGL_FUSED_PLAIN: launch<32, MSGL_FUSED_PLAIN>(x, g, maps, plan); break;
    case 64 * 4 + MSGL_FUSED_PLAIN: launch<64, MSGL_FUSED_PLAIN>(x, g, maps, plan); break;
    case 48 * 4 + MSGL_FUSED_GATED: launch<48, MSGL_FUSED_GATED>(x, g, maps, plan); break;
    case 64 * 4 + MSGL_FUSED_GATED: launch<64, MSGL_FUSED_GATED>(x, g, maps, plan); break;
    case 96 * 4 + MSGL_FUSED_GATED: launch<96, MSGL_FUSED_GATED>(x, g, maps, plan); break;
    case 144 * 4 + MSGL_FUSED_GATED: launch<144, MSGL_FUSED_GATED>(x, g, maps, plan); break;
    case 208 * 4 + MSGL_FUSED_GATED: launch<208, MSGL_FUSED_GATED>(x, g, maps, plan); break;
    case 32 * 4 + MSGL_FUSED_COLLECT: launch<32, MSGL_FUSED_COLLECT>(x, g, maps, plan); break;
    case 64 * 4 + MSGL_FUSED_COLLECT: launch<64, MSGL_FUSED_COLLECT>(x, g, maps, plan); break;
    case 80 * 4 + MSGL_FUSED_COLLECT: launch<80, MSGL_FUSED_COLLECT>(x, g, maps, plan); break;
    default: return false;
    }
    return true;
}

// What was fastest at Qwen3-0.6B's shapes, and for large weights at those of half of 14B; false
// where the outputs are too many for one round.
//
// A block has an SM to itself, and the next kernel's block fits beside it: of the kernels of a
// layer every second one takes more than half of the shared memory. Large weights need more on
// their way than half of it holds (a step of 64 answers of 14B on two ranks 5.03 ms, with half for
// o and down or for gate_up 5.2, for both 5.25).
static bool make_plan(const msgl_cuda_device *d, const msgl_linear_call *c, msgl_mid_plan *plan)
{
    enum {
        SMALL = 100 << 10,
        LARGE = 122 << 10,
        ALL = 200 << 10,
        LARGE_WEIGHT = 16 << 20,
    };
    static const int GATED[] = {48, 64, 96, 144, 208}, PLAIN[] = {32, 64};
    const msgl_weight *w = c->w;
    const bool collects = c->accumulate || c->next_norm != NULL;
    *plan = {64, 1, collects ? LARGE : SMALL, collects ? MSGL_TURN_LARGE : 0};
    if (collects) {
        const bool large = msgl__weight_bytes(w) > LARGE_WEIGHT;
        const int columns = large ? 80 : 64, tiles = (w->n + columns - 1) / columns;
        plan->columns = columns;
        plan->shared = large ? ALL : LARGE;
        plan->splits = !large                     ? fused_choose_splits(d, tiles, fused_steps(w->k))
                       : 2 * tiles <= d->sm_count ? 2
                                                  : 1;
        return tiles <= d->sm_count;
    }
    const int *const columns = c->gated ? GATED : PLAIN;
    const size_t num = c->gated ? sizeof GATED / sizeof *GATED : sizeof PLAIN / sizeof *PLAIN;
    for (size_t i = 0; i < num; i++) {
        plan->columns = columns[i];
        if (columns[i] > 96) plan->shared = ALL;
        if ((w->n + columns[i] - 1) / columns[i] <= d->sm_count) return true;
    }
    return false;
}

bool msgl__cuda_mid_sm90_can(const msgl_exec *x, const msgl_linear_call *c)
{
    msgl_mid_plan plan;
    return msgl__fused_can_do(x, c) && make_plan(msgl__cuda_device(x), c, &plan);
}

bool msgl__cuda_mid_sm90(msgl_exec *x, const msgl_linear_call *c, const msgl_mid_plan *plan)
{
    const msgl_weight *w = c->w;
    msgl_mid_plan own;
    if (!msgl__fused_can_do(x, c)) return false;
    if (plan == NULL && !make_plan(msgl__cuda_device(x), c, &own)) return false;
    if (plan == NULL) plan = &own;
    const msgl_fused_epilogue end = msgl__fused_epilogue_of(c, plan->splits);
    if (!fused_can_split(c, plan->splits)) return false;
    fused_args g = {};
    const void *in = fused_fill_args(c, plan->splits, &g);
    CUtensorMap maps[2];
    if (!msgl__tensor_map(&maps[0], w->format->dtype, in, c->m, w->k, c->ld_in, ROWS) ||
        !msgl__tensor_map(&maps[1], w->format->dtype, w->data, w->n, w->k, (size_t)w->k,
                          plan->columns / (c->gated ? 2 : 1))) {
        return false;
    }
    const bool done = launch_columns(x, g, maps, end, plan);
    if (done && msgl__leaves_norm_stats(c))
        msgl__note_norm_stats(c, (g.n + plan->columns - 1) / plan->columns);
    return done;
}
