// SPDX-License-Identifier: Apache-2.0
//
// The kernel of fp8_sm90.cu, which says what it does. A file of this folder instantiates it for
// some numbers of tokens.
#ifndef MSGL_CUDA_GEMM_FP8_SM90_KERNEL_CUH
#define MSGL_CUDA_GEMM_FP8_SM90_KERNEL_CUH

#include "cuda/device.cuh"
#include "cuda/gemm/codes_pair.cuh"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/fp8_rows.cuh"
#include "cuda/gemm/fp8_sm90/call.cuh"
#include "cuda/gemm/stage.cuh"
#include "cuda/gemm/turns.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/global.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/wgmma.cuh"

enum {
    FP8_WORKERS = FP8_GROUPS * GROUP,
    FP8_WARPS = FP8_WORKERS / 32,
    FP8_MAX_STAGES = 8,
};

// N: tokens of a tile; SLABS: of a warpgroup.
template <int N_, int SLABS_> struct fp8_shape {
    static constexpr int N = N_, SLABS = SLABS_;
    static constexpr int ROWS = FP8_GROUPS * SLABS * FP8_SLAB; // of W
    static constexpr int W_BYTES = ROWS * FP8_STEP, IN_BYTES = N * FP8_STEP;
    static constexpr int STAGE_BYTES = W_BYTES + IN_BYTES;
    // Scales of a stage: f32 or 16 bits of W's rows, f32 of the tokens.
    static constexpr int IN_SCALES_AT = ROWS * 4;
    static constexpr int SCALES_BYTES = IN_SCALES_AT + (N * 4 + 127) / 128 * 128;
    // A block of the kernel behind stands beside this one's (turns.cuh).
    static constexpr bool SHARES = N * SLABS <= 64;
    static constexpr int BUDGET = SHARES ? MSGL_TURN_SMALL : 227 << 10;
    static constexpr int SMALL_BYTES = N * 4 + FP8_MAX_STAGES * 16 + 1024; // and alignment
    static constexpr int FIT = (BUDGET - SMALL_BYTES) / (STAGE_BYTES + SCALES_BYTES);
    static constexpr int STAGES = FIT < FP8_MAX_STAGES ? FIT : FP8_MAX_STAGES;
    static constexpr int SHARED_BYTES = STAGES * (STAGE_BYTES + SCALES_BYTES) + SMALL_BYTES;
    // A block alone has a whole warpgroup that loads, whose registers the others take.
    static constexpr int THREADS = FP8_WORKERS + (SHARES ? 64 : GROUP);
    static constexpr int HELPERS =
        (THREADS - FP8_WORKERS) / 32 - 1; // warps beside that which loads
    static constexpr int SUMS = N / 2;    // of a thread and slab
    static_assert(STAGES >= 2, "stages");
};

// --- where ---------------------------------------------------------------------------------------

// A place on the line of all tiles' stages.
struct fp8_place {
    int tile, stage;

    __device__ __forceinline__ fp8_place(const fp8_args &g, int at)
    {
        tile = at / g.line.stages;
        stage = at - tile * g.line.stages;
    }
    __device__ __forceinline__ void next(const fp8_args &g)
    {
        if (++stage < g.line.stages) return;
        stage = 0;
        tile++;
    }
};

// --- loading ------------------------------------------------------------------------------------

// Rows of W of a tile: eights, of which a gated product takes one of the gates and one of the ups
// in turns.
template <typename SHAPE>
static __device__ __forceinline__ void load_w(const fp8_args &g, const fp8_tensors &maps,
                                              const scaled_ring &r, int slot, const fp8_place &p,
                                              uint64_t policy)
{
    constexpr int PAIRS = SHAPE::ROWS / 16;
    const uint32_t stage = r.stages + (uint32_t)(slot * SHAPE::STAGE_BYTES);
    const uint32_t done = r.full + (uint32_t)slot * 8;
    msgl__mbarrier_expect(done, g.stage_bytes);
    msgl__tensor_load_by(policy, stage, &maps.w, p.stage * FP8_STEP, 0, 0, p.tile * PAIRS, done);
    if (g.row_scales != NULL) return;
    const int row = p.tile * (g.gated ? SHAPE::ROWS / 2 : SHAPE::ROWS);
    msgl__tensor_load(r.scales + (uint32_t)(slot * SHAPE::SCALES_BYTES), &maps.w_scales, row, 0,
                      p.stage, done);
}

template <typename SHAPE>
static __device__ __forceinline__ void load_in(const fp8_tensors &maps, const scaled_ring &r,
                                               const fp8_place &p)
{
    const uint32_t stage = r.stages + (uint32_t)(r.slot * SHAPE::STAGE_BYTES + SHAPE::W_BYTES);
    const uint32_t scales =
        r.scales + (uint32_t)(r.slot * SHAPE::SCALES_BYTES + SHAPE::IN_SCALES_AT);
    const uint32_t done = r.full + (uint32_t)r.slot * 8;
    msgl__tensor_load(stage, &maps.in, p.stage * FP8_STEP, 0, done);
    msgl__tensor_load(scales, &maps.in_scales, 0, p.stage, done);
}

// One warp's work, which one of its lanes does. W's part of the first stages does not wait for the
// kernel in front.
template <typename SHAPE>
static __device__ __forceinline__ void load_all(const fp8_args &g, const fp8_tensors &maps,
                                                scaled_ring r, int begin, int end)
{
    const bool leads = threadIdx.x % 32 == 0;
    const uint64_t policy = msgl__read_once();
    const int ahead = end - begin < SHAPE::STAGES ? end - begin : SHAPE::STAGES;
    fp8_place p(g, begin), early = p;
#pragma unroll 1
    for (int i = 0; i < ahead; i++, early.next(g)) {
        if (leads) load_w<SHAPE>(g, maps, r, i, early, policy);
    }
    msgl__pdl_wait();
#pragma unroll 1
    for (int at = begin; at < end; at++, p.next(g)) {
        const bool begun = at < begin + ahead;
        if (!begun) msgl__mbarrier_wait(r.empty + r.slot * 8, r.phase ^ 1);
        if (leads) {
            if (!begun) load_w<SHAPE>(g, maps, r, r.slot, p, policy);
            load_in<SHAPE>(maps, r, p);
        }
        __syncwarp();
        next_slot<SHAPE::STAGES>(r);
    }
}

// --- multiplying --------------------------------------------------------------------------------

// The scale of row `row` of a tile, where a stage has them: of a gated product first the gates'.
template <typename SHAPE>
static __device__ __forceinline__ float scale_of(const fp8_args &g, uint32_t scales, int row)
{
    if (g.row_scales != NULL) return 1;
    if (g.gated) row = row / 16 * 8 + row % 8 + row / 8 % 2 * (SHAPE::ROWS / 2);
    return codes_number(g.number, g.number == MSGL_NUMBER_F32
                                      ? msgl__read_shared<uint32_t>(scales + (uint32_t)row * 4)
                                      : msgl__read_shared<uint16_t>(scales + (uint32_t)row * 2));
}

// A stage, which has arrived: its sums, times both scales, are added to the tile's in f32.
template <typename SHAPE>
static __device__ __forceinline__ void multiply(float (&acc)[SHAPE::SLABS][SHAPE::SUMS],
                                                const fp8_args &g, const scaled_ring &r, int first)
{
    const uint32_t stage = r.stages + (uint32_t)(r.slot * SHAPE::STAGE_BYTES);
    const uint32_t scales = r.scales + (uint32_t)(r.slot * SHAPE::SCALES_BYTES);
    const uint32_t in_scales = scales + SHAPE::IN_SCALES_AT + threadIdx.x % 4 * 8;
    const uint64_t b = msgl__wgmma_operand(stage + SHAPE::W_BYTES);
    const int group = (int)threadIdx.x / GROUP;
#pragma unroll
    for (int s = 0; s < SHAPE::SLABS; s++) {
        const uint64_t a = msgl__wgmma_operand(
            stage + (uint32_t)((group * SHAPE::SLABS + s) * FP8_SLAB * FP8_STEP));
        float sum[SHAPE::SUMS];
        msgl__wgmma_fence();
#pragma unroll
        for (int i = 0; i < FP8_STEP / 32; i++) msgl__wgmma_e4m3(sum, a + 2 * i, b + 2 * i, i > 0);
        msgl__wgmma_commit();
        const float upper = scale_of<SHAPE>(g, scales, first + s * FP8_SLAB);
        const float lower = scale_of<SHAPE>(g, scales, first + s * FP8_SLAB + 8);
        msgl__wgmma_wait<0>(sum);
#pragma unroll
        for (int j = 0; j < SHAPE::SUMS / 4; j++) {
            const float2 in = msgl__read_shared<float2>(in_scales + (uint32_t)j * 32);
            acc[s][4 * j] = fmaf(sum[4 * j] * in.x, upper, acc[s][4 * j]);
            acc[s][4 * j + 1] = fmaf(sum[4 * j + 1] * in.y, upper, acc[s][4 * j + 1]);
            acc[s][4 * j + 2] = fmaf(sum[4 * j + 2] * in.x, lower, acc[s][4 * j + 2]);
            acc[s][4 * j + 3] = fmaf(sum[4 * j + 3] * in.y, lower, acc[s][4 * j + 3]);
        }
    }
}

// --- sums of pieces of a tile -------------------------------------------------------------------
//
// A piece is what one segment has of a tile. A segment's first piece may begin inside of its tile;
// all others begin with their tile's first stage, and all but the last of those are whole tiles.
// All blocks with a piece of a tile finish it together, each some tokens, when all pieces are
// there; none waits for others before it has left all of its own.

// [token][row of the tile] of a piece.
template <typename SHAPE>
static __device__ __forceinline__ float *piece_of(const fp8_args &g, int segment, bool begins)
{
    return g.line.sums + (size_t)(2 * segment + begins) * (SHAPE::N * SHAPE::ROWS);
}

// Warps that have left their sums of a tile, and warps that have seen all; zero between kernels.
static __device__ __forceinline__ int32_t *counts_of(const fp8_args &g, int tile)
{
    return g.line.flags + 2 * tile;
}

// first: the thread's first row of the tile; tokens: that the tile has.
template <typename SHAPE>
static __device__ __forceinline__ void
leave_sums(const fp8_args &g, const float (&acc)[SHAPE::SLABS][SHAPE::SUMS], const fp8_place &p,
           int segment, int first, int tokens)
{
    const int lane = threadIdx.x % 32;
    float *const to =
        piece_of<SHAPE>(g, segment, p.stage == 0) + lane % 4 * 2 * SHAPE::ROWS + first;
#pragma unroll
    for (int j = 0; j < SHAPE::N / 8; j++) {
        if (8 * j >= tokens) break;
#pragma unroll
        for (int i = 0; i < SHAPE::SLABS * 4; i++) {
            const int row = i / 4 * FP8_SLAB + i / 2 % 2 * 8;
            __stcg(to + (8 * j + i % 2) * SHAPE::ROWS + row, acc[i / 4][4 * j + i % 4]);
        }
    }
    __syncwarp();
    if (lane == 0) msgl__count_release(counts_of(g, p.tile));
}

// Until `warps` warps have left their sums.
static __device__ __forceinline__ void wait_for_sums(const fp8_args &g, int tile, int warps)
{
    if (threadIdx.x % 32 == 0) {
        while (msgl__load_acquire(counts_of(g, tile)) != warps) {
        }
    }
    __syncwarp();
}

// The last of these warps clears the counts for the kernel behind.
static __device__ __forceinline__ void leave_tile(const fp8_args &g, int tile, int warps)
{
    int32_t *const counts = counts_of(g, tile);
    if (threadIdx.x % 32 == 0 && msgl__count_relaxed(counts + 1) == warps - 1) {
        counts[0] = counts[1] = 0;
    }
}

// --- results ------------------------------------------------------------------------------------

// A factor for each token of a tile, 1 without a norm, from the squares that the kernel in front
// has left, by `warps` warps, of which this is number `warp`.
static __device__ __forceinline__ void token_factors(const fp8_args &g, uint32_t to, int tokens,
                                                     int warp, int warps)
{
    const int lane = threadIdx.x % 32, most = msgl__clamp_to(g.m, tokens);
    if (g.in_squares == NULL) {
        for (int t = lane; t < most; t += 32) msgl__write_shared(to + (uint32_t)t * 4, 1.0f);
        return;
    }
    // Lanes have tokens next to each other, of as many tiles at a time as a warp has room for.
    const int wide = most <= 1    ? 1
                     : most <= 2  ? 2
                     : most <= 4  ? 4
                     : most <= 8  ? 8
                     : most <= 16 ? 16
                                  : 32;
    for (int base = warp * wide; base < most; base += warps * wide) {
        const int t = base + lane % wide;
        float sum = 0;
#pragma unroll 16
        for (int i = lane / wide; i < g.in_tiles; i += 32 / wide) {
            if (t < most) sum += __ldcg(g.in_squares + (size_t)i * g.m + t);
        }
        for (int d = wide; d < 32; d *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
        if (t < most && lane < wide) {
            msgl__write_shared(to + (uint32_t)t * 4, rsqrtf(sum / (float)g.k + g.eps));
        }
    }
}

// Of 128 columns of row t of out, from `column` on, a lane has columns c, c + 1, c + 8 and c + 9,
// which are four bytes of coded rows (fp8_pack).
static __device__ __forceinline__ int fp8_lane_column(void)
{
    const int lane = threadIdx.x % 32;
    return lane / 8 * 32 + lane % 2 * 16 + lane % 8 / 2 * 2;
}

static __device__ __forceinline__ uint32_t pack_two(bool half, float a, float b)
{
    return half ? msgl__pack_two(a, b, __half()) : msgl__pack_two(a, b, __nv_bfloat16());
}

static __device__ __forceinline__ float2 unpack_two(bool half, uint32_t v)
{
    return half ? msgl__unpack_two(v, __half()) : msgl__unpack_two(v, __nv_bfloat16());
}

// What a lane multiplies and adds of its columns, whose rows of W are `row` and so many behind:
// scales of rows, the bias.
struct fp8_terms {
    float scale[4], bias[4];

    __device__ __forceinline__ void load(const fp8_args &g, int row)
    {
        const uint8_t *const s = g.row_scales;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = row + i / 2 * 8 + i % 2;
            scale[i] = 1, bias[i] = 0;
            if (r >= g.n) continue;
            if (s != NULL) {
                scale[i] = codes_number(g.number, g.number == MSGL_NUMBER_F32
                                                      ? __ldg((const uint32_t *)s + r)
                                                      : __ldg((const uint16_t *)s + r));
            }
            if (g.bias != NULL) bias[i] = __ldg(g.bias + r);
        }
    }
};

// Where a lane's columns of row t of out are.
static __device__ __forceinline__ char *place_of(const fp8_args &g, int t, int column)
{
    return (char *)g.out + ((size_t)t * g.ld_out + column) * (g.f32_out ? 4 : 2);
}

// Stores two outputs, added to what was there; they become what is stored.
static __device__ __forceinline__ void store_two(const fp8_args &g, char *out, bool there,
                                                 uint32_t before, float &a, float &b)
{
    if (g.f32_out) {
        if (there) *(float2 *)out = make_float2(a, b);
        return;
    }
    const float2 old = unpack_two(g.half_out, before);
    const uint32_t stored = pack_two(g.half_out, a + old.x, b + old.y);
    if (there) *(uint32_t *)out = stored;
    const float2 two = unpack_two(g.half_out, stored);
    a = two.x, b = two.y;
}

// Coded rows of 128 columns of row t, by a warp. next: the lane's weights of the norm behind.
static __device__ __forceinline__ void store_codes(const fp8_args &g, int t, int first, float4 next,
                                                   float (&v)[4])
{
    const int lane = threadIdx.x % 32;
    const size_t group = (size_t)first / MSGL_FP8_GROUP;
    float largest = 0, square = 0, by;
#pragma unroll
    for (int i = 0; i < 4; i++) square += v[i] * v[i];
    v[0] *= next.x, v[1] *= next.y, v[2] *= next.z, v[3] *= next.w;
#pragma unroll
    for (int i = 0; i < 4; i++) largest = fp8_larger(largest, v[i]);
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        largest = fp8_larger(largest, __shfl_xor_sync(0xffffffffu, largest, d));
        square += __shfl_xor_sync(0xffffffffu, square, d);
    }
    const float scale = fp8_scale(largest, &by);
    *(uint32_t *)(g.codes + (size_t)t * g.columns + first + 4 * lane) =
        fp8_pack(v[0] * by, v[1] * by, v[2] * by, v[3] * by);
    if (lane != 0) return;
    g.scales[group * g.pitch + t] = scale;
    if (g.leaves == FP8_NORM_STATS) g.squares[group * g.m + t] = square;
}

// This block's share of a tile. A warp has 128 columns, the same ones, of some tokens, and loads
// all that a few of these need at a time: a load takes about a microsecond.
template <typename SHAPE>
static __device__ __forceinline__ void finish_tile(const fp8_args &g, int tile, int segment,
                                                   uint32_t factors)
{
    constexpr int ROWS = SHAPE::ROWS, SOME = SHAPE::N <= 8 ? 1 : SHAPE::SHARES ? 2 : 4;
    const int from = line_segment_at(g.line, tile * g.line.stages),
              to = line_segment_at(g.line, (tile + 1) * g.line.stages - 1);
    const int pieces = to - from + 1, warps = pieces * FP8_WARPS;
    const int columns = g.gated ? ROWS / 2 : ROWS, groups = columns / 128;
    const int number = (segment - from) * FP8_WARPS + (int)threadIdx.x / 32;
    const int group = number % groups, own = fp8_lane_column();
    const int first = tile * columns + group * 128, column = first + own, step = warps / groups;
    const int tokens = first < g.columns ? msgl__clamp_to(g.m, SHAPE::N) : 0;
    // Of a gated tile eights of gates and ups take turns.
    const int row = group * 128 + (g.gated ? own / 8 * 16 + own % 8 : own);
    const int eighth = g.gated ? 16 : 8;
    const bool has_terms = g.row_scales != NULL || g.bias != NULL;
    fp8_terms terms = {}, up_terms = {};
    float4 next = make_float4(1, 1, 1, 1);
    if (has_terms) terms.load(g, column);
    if (has_terms && g.gated) up_terms.load(g, column + g.n / 2);
    if (g.leaves == FP8_NORM_STATS && tokens > 0) {
        const float2 a = __ldg((const float2 *)(g.next + column));
        const float2 b = __ldg((const float2 *)(g.next + column + 8));
        next = make_float4(a.x, a.y, b.x, b.y);
    }
    wait_for_sums(g, tile, warps);
#pragma unroll 1
    for (int t = number / groups; t < tokens; t += SOME * step) {
        float v[SOME][4] = {}, up[SOME][4] = {};
        uint32_t before[SOME][2] = {};
#pragma unroll
        for (int u = 0; u < SOME; u++) {
            if (!g.accumulate || t + u * step >= tokens) continue;
            const uint32_t *out = (const uint32_t *)place_of(g, t + u * step, column);
            if (column < g.columns) before[u][0] = __ldcg(out);
            if (column + 8 < g.columns) before[u][1] = __ldcg(out + 4);
        }
#pragma unroll 2
        for (int i = 0; i < pieces; i++) {
            const float *const sums = piece_of<SHAPE>(g, from + i, i == 0) + row;
#pragma unroll
            for (int u = 0; u < SOME; u++) {
                const float *const at = sums + (t + u * step) * ROWS;
                if (t + u * step >= tokens) continue;
                const float2 a = __ldcg((const float2 *)at);
                const float2 b = __ldcg((const float2 *)(at + eighth));
                v[u][0] += a.x, v[u][1] += a.y, v[u][2] += b.x, v[u][3] += b.y;
                if (!g.gated) continue;
                const float2 c = __ldcg((const float2 *)(at + 8));
                const float2 d = __ldcg((const float2 *)(at + eighth + 8));
                up[u][0] += c.x, up[u][1] += c.y, up[u][2] += d.x, up[u][3] += d.y;
            }
        }
#pragma unroll
        for (int u = 0; u < SOME; u++) {
            const int token = t + u * step;
            if (token >= tokens) break;
            const float factor = msgl__read_shared<float>(factors + (uint32_t)token * 4);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                v[u][i] *= factor, up[u][i] *= factor;
                if (has_terms) v[u][i] = fmaf(v[u][i], terms.scale[i], terms.bias[i]);
                if (has_terms) up[u][i] = fmaf(up[u][i], up_terms.scale[i], up_terms.bias[i]);
                if (g.gated) v[u][i] = msgl__silu(v[u][i]) * up[u][i];
            }
            if (g.leaves != FP8_ROWS) {
                char *const out = place_of(g, token, column);
                store_two(g, out, column < g.columns, before[u][0], v[u][0], v[u][1]);
                store_two(g, out + (g.f32_out ? 32 : 16), column + 8 < g.columns, before[u][1],
                          v[u][2], v[u][3]);
            }
            if (g.leaves != FP8_VALUES) store_codes(g, token, first, next, v[u]);
        }
    }
    leave_tile(g, tile, warps);
}

// --- the kernel ---------------------------------------------------------------------------------

template <typename SHAPE>
static __device__ __forceinline__ void multiply_all(const fp8_args &g, scaled_ring r, int segment,
                                                    int begin, int end, uint32_t factors)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first = warp / 4 * SHAPE::SLABS * FP8_SLAB + warp % 4 * 16 + lane / 4;
    fp8_place p(g, begin);
    int before = -1, behind = -1; // tiles with pieces of other segments: of those in front, behind
    bool ready = false;           // the factors
    msgl__pdl_wait();
#pragma unroll 1
    for (;;) {
        int tile = -1; // to be finished
        if (begin < end) {
            const int n =
                end - begin < g.line.stages - p.stage ? end - begin : g.line.stages - p.stage;
            float acc[SHAPE::SLABS][SHAPE::SUMS] = {};
#pragma unroll 1
            for (int i = 0; i < n; i++) {
                msgl__mbarrier_wait(r.full + r.slot * 8, r.phase);
                multiply<SHAPE>(acc, g, r, first);
                __syncwarp();
                if (lane == 0) msgl__mbarrier_arrive(r.empty + r.slot * 8);
                next_slot<SHAPE::STAGES>(r);
            }
            // The whole tile in front has the same place, which other warps may still read.
            if (p.stage == 0) msgl__named_barrier_sync(2, FP8_WORKERS);
            leave_sums<SHAPE>(g, acc, p, segment, first, g.m);
            if (n == g.line.stages) {
                tile = p.tile;
            } else if (p.stage > 0) {
                before = p.tile;
            } else {
                behind = p.tile;
            }
            begin += n;
            p.stage = 0;
            p.tile++;
        } else {
            tile = before >= 0 ? before : behind;
            (before >= 0 ? before : behind) = -1;
            if (tile < 0) break;
        }
        if (tile < 0) continue;
        if (!ready) msgl__named_barrier_sync(1, FP8_WORKERS + SHAPE::HELPERS * 32);
        ready = true;
        finish_tile<SHAPE>(g, tile, segment, factors);
    }
}

template <typename SHAPE>
__global__ void __launch_bounds__(SHAPE::THREADS, (SHAPE::SHARES ? 2 : 1))
    fp8_sm90(const __grid_constant__ fp8_args g, const __grid_constant__ fp8_tensors maps)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ unsigned char unaligned[];
    scaled_ring r;
    r.stages = (msgl__shared_address(unaligned) + 1023) & ~1023u;
    r.scales = r.stages + SHAPE::STAGES * SHAPE::STAGE_BYTES;
    r.full = r.scales + SHAPE::STAGES * SHAPE::SCALES_BYTES;
    r.empty = r.full + FP8_MAX_STAGES * 8;
    r.slot = 0;
    r.phase = 0;
    const uint32_t factors = r.empty + FP8_MAX_STAGES * 8;
    const line_segment all = line_segment_of<1>(g.line);
    if (threadIdx.x == FP8_WORKERS) {
        msgl__tensor_prefetch(&maps.w);
        msgl__tensor_prefetch(&maps.in);
        msgl__tensor_prefetch(&maps.in_scales);
        if (g.row_scales == NULL) msgl__tensor_prefetch(&maps.w_scales);
        for (int i = 0; i < SHAPE::STAGES; i++) {
            msgl__mbarrier_init(r.full + i * 8, 1);
            msgl__mbarrier_init(r.empty + i * 8, FP8_WARPS);
        }
        msgl__mbarrier_init_done();
        msgl__fence_async_proxy();
    }
    __syncthreads();
    msgl__pdl_trigger();
    if (threadIdx.x >= FP8_WORKERS) {
        if constexpr (!SHAPE::SHARES) msgl__registers_down<40>();
        if (threadIdx.x < FP8_WORKERS + 32) {
            load_all<SHAPE>(g, maps, r, all.begin, all.end);
        } else {
            msgl__pdl_wait();
            token_factors(g, factors, SHAPE::N, (int)(threadIdx.x - FP8_WORKERS) / 32 - 1,
                          SHAPE::HELPERS);
            msgl__named_barrier_sync(1, FP8_WORKERS + SHAPE::HELPERS * 32);
        }
    } else {
        if constexpr (!SHAPE::SHARES) msgl__registers_up<232>();
        multiply_all<SHAPE>(g, r, all.index, all.begin, all.end, factors);
    }
#endif
}

template <typename SHAPE> static bool fp8_launch(msgl_exec *x, fp8_launch_args a)
{
    constexpr auto kernel = fp8_sm90<SHAPE>;
    a.g.stage_bytes = SHAPE::STAGE_BYTES + SHAPE::N * 4;
    if (a.g.row_scales == NULL) {
        a.g.stage_bytes += SHAPE::ROWS * (a.g.number == MSGL_NUMBER_F32 ? 4u : 2u);
    }
    const int segments = msgl__fp8_sm90_cut(x, &a);
    if (segments == 0) return false;
    const bool large = SHAPE::SHARES && a.g.accumulate;
    const size_t bytes = large ? (size_t)MSGL_TURN_LARGE : (size_t)SHAPE::SHARED_BYTES;
    MSGL_CUDA_TRY(x, msgl__allow_shared<kernel>(bytes, true));
    MSGL_CUDA_TRY(x, msgl__launch(kernel, dim3((unsigned)segments), dim3(SHAPE::THREADS), bytes,
                                  msgl__cuda_stream(x), a.g, a.maps));
    return true;
}

#endif
