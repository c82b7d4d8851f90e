// SPDX-License-Identifier: Apache-2.0
//
// The kernel of codes_sm90.cu, which says what it does. A file of this folder instantiates it for
// the forms of a number of bits.
#ifndef MSGL_CUDA_GEMM_CODES_SM90_KERNEL_CUH
#define MSGL_CUDA_GEMM_CODES_SM90_KERNEL_CUH

#include "cuda/device.cuh"
#include "cuda/gemm/codes_sm90/call.cuh"
#include "cuda/gemm/codes_sm90/form.cuh"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/stage.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/global.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/wgmma.cuh"

enum {
    CODES_GROUPS = 2, // warpgroups that multiply, 64 rows of W each
    CODES_WORKERS = CODES_GROUPS * GROUP,
    CODES_WARPS = CODES_WORKERS / 32,
    CODES_MAX_STAGES = 8,
};

template <typename FORM, int N> struct codes_shape {
    static constexpr int STEPS = codes_stage_steps(N); // of a stage
    // What a step has of a stage: tiles of the codes' planes, 64 columns of the activations.
    static constexpr int LOW_BYTES = CODES_ROWS * FORM::LOW_BYTES;
    static constexpr int HIGH_BYTES = CODES_ROWS * FORM::HIGH_BYTES;
    static constexpr int HALF_BYTES = N * ROW_BYTES;
    static constexpr int HIGH_AT = STEPS * LOW_BYTES, IN_AT = HIGH_AT + STEPS * HIGH_BYTES;
    static constexpr int SCALES_AT = IN_AT + STEPS * 2 * HALF_BYTES;
    static constexpr int SCALES_ROWS = STEPS * CODES_ROWS; // an element of each step
    static constexpr int SCALES_BYTES = FORM::array_at(FORM::ARRAYS, SCALES_ROWS);
    static constexpr int STAGE_BYTES = (SCALES_AT + SCALES_BYTES + 1023) / 1024 * 1024;
    // What a warpgroup hands over to itself in rows of out at a time.
    static constexpr int CHUNK = N < 16 ? N : 16, PITCH = 64 + 4;
    static constexpr int CHUNK_BYTES = CHUNK * PITCH * 4;
    static constexpr int SMALL_BYTES = CODES_GROUPS * CHUNK_BYTES + MSGL_CODES_SM90_ROWS * 4 +
                                       CODES_MAX_STAGES * 16 + 1024; // and alignment
    // Blocks of a multiprocessor: of few rows what waits most is each warp for itself.
    static constexpr int BLOCKS = N <= 8 ? 3 : N <= 32 ? 2 : 1;
    // A block alone has a whole warpgroup that loads, whose registers the others take.
    static constexpr bool TAKES = BLOCKS == 1;
    static constexpr int THREADS = CODES_WORKERS + (TAKES ? GROUP : 32);
    static constexpr int FIT = ((227 << 10) / BLOCKS - 1024 - SMALL_BYTES) / STAGE_BYTES;
    static constexpr int STAGES = FIT < CODES_MAX_STAGES ? FIT : CODES_MAX_STAGES;
    static constexpr int SHARED_BYTES = STAGES * STAGE_BYTES + SMALL_BYTES;
    static constexpr int SUMS = N / 2; // of a thread
    static constexpr bool BY_WARP = N <= 32;
    // Blocks of a cluster have tiles of rows next to each other. Each loads a part of the
    // activations for all, which the L2 would not bring often enough.
    static constexpr int CLUSTER = N <= 32 ? 1 : 2;
};

// --- where ---------------------------------------------------------------------------------------

// Row r of a tile of rows. Of a gated product the tile has eight rows of the gate, the up rows of
// the same outputs, the next eight of the gate ...: of n 1024 rows 8 to 23 of tile 1 are rows 576
// to 583 and 72 to 79 of W.
static __device__ __forceinline__ int row_of(const codes_args &g, int row_tile, int r)
{
    if (!g.gated) return row_tile * CODES_ROWS + r;
    return row_tile * (CODES_ROWS / 2) + r / 16 * 8 + r % 8 + (r / 8 % 2) * (g.n / 2);
}

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
                                                ring r, const line_segment &all)
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

// --- multiplying --------------------------------------------------------------------------------

// Where a step of a stage lies.
template <typename FORM, int N> struct codes_place {
    uint32_t low, high, in, scales;
    int step; // of the stage

    __device__ __forceinline__ codes_place(uint32_t stage, int i)
    {
        typedef codes_shape<FORM, N> shape;
        low = stage + (uint32_t)(i * shape::LOW_BYTES);
        high = stage + (uint32_t)(shape::HIGH_AT + i * shape::HIGH_BYTES);
        in = stage + (uint32_t)(shape::IN_AT + i * 2 * shape::HALF_BYTES);
        scales = stage + shape::SCALES_AT;
        step = i;
    }
};

// Where a thread finds there what it needs of its two rows of the tile: a row of its warp's 16 and
// the eighth behind it.
template <typename FORM, int N> struct codes_lane {
    uint32_t low[CODES_PARTS], high[CODES_PARTS]; // its pieces of the first row
    uint32_t in[2];                               // rows of in, as msgl__load_matrix_4 wants them
    int scales[2];                                // the rows' places among scales

    __device__ __forceinline__ codes_lane(bool gated)
    {
        typedef codes_shape<FORM, N> shape;
        const int lane = threadIdx.x % 32, row = (int)threadIdx.x / 32 * 16 + lane / 4;
        const uint32_t low_row = (uint32_t)(row * FORM::LOW_BYTES);
        const uint32_t high_row = (uint32_t)(row * FORM::HIGH_BYTES);
#pragma unroll
        for (int p = 0; p < CODES_PARTS; p++) {
            low[p] = low_row + piece_at<FORM::LOW>(swizzle_of<FORM::LOW_BYTES>(row), p, lane % 4);
            high[p] = 0;
            if constexpr (FORM::HIGH > 0) {
                high[p] =
                    high_row + piece_at<FORM::HIGH>(swizzle_of<FORM::HIGH_BYTES>(row), p, lane % 4);
            }
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int chunk = (4 * i + lane / 8) ^ lane % 8;
            in[i] = (uint32_t)(lane % 8 * ROW_BYTES + chunk * 16);
        }
        // Scales lie as the rows do in W: of a gated tile first those of the gate's 64.
        scales[0] = gated ? row / 16 * 8 + row % 8 : row;
        scales[1] = scales[0] + (gated ? CODES_ROWS / 2 : 8);
        keep();
    }

    // The compiler would compute these again for every step rather than keep them.
    __device__ __forceinline__ void keep(void)
    {
#pragma unroll
        for (int p = 0; p < CODES_PARTS; p++) {
            asm volatile("" : "+r"(low[p]));
            if constexpr (FORM::HIGH > 0) asm volatile("" : "+r"(high[p]));
        }
        asm volatile("" : "+r"(scales[0]), "+r"(scales[1]));
        if constexpr (codes_shape<FORM, N>::BY_WARP) asm volatile("" : "+r"(in[0]), "+r"(in[1]));
    }
};

// What a thread has of a step's codes and scales.
template <typename FORM, int N> struct codes_operand {
    uint32_t low[2][CODES_PARTS][FORM::WORDS], high[2][CODES_PARTS];
    codes_scales<FORM> scales[2];

    __device__ __forceinline__ void load_part(const codes_lane<FORM, N> &lane,
                                              const codes_place<FORM, N> &at, int p)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            high[i][p] = 0;
            load_piece<FORM::LOW>(at.low + lane.low[p] + i * 8 * FORM::LOW_BYTES, low[i][p]);
            if constexpr (FORM::HIGH > 0) {
                load_piece<FORM::HIGH>(at.high + lane.high[p] + i * 8 * FORM::HIGH_BYTES,
                                       &high[i][p]);
            }
        }
    }

    __device__ __forceinline__ void load_scales(const codes_args &g, const msgl_codes_row &l,
                                                const codes_lane<FORM, N> &lane,
                                                const codes_place<FORM, N> &at)
    {
        constexpr int STEPS = codes_shape<FORM, N>::STEPS;
        scales[0].template load<STEPS>(l, g.shift, at.scales, at.step, lane.scales[0]);
        scales[1].template load<STEPS>(l, g.shift, at.scales, at.step, lane.scales[1]);
    }

    // Of 16 columns, number `step` of the step's eight.
    template <typename T>
    __device__ __forceinline__ void make(const uint32_t (&zero)[2], int step,
                                         uint32_t (&a)[4]) const
    {
        const int p = step / 2, q = step % 2 * 2;
        a[0] = pair<T, FORM>(low[0][p], high[0][p], q, zero[0]);
        a[1] = pair<T, FORM>(low[1][p], high[1][p], q, zero[1]);
        a[2] = pair<T, FORM>(low[0][p], high[0][p], q + 1, zero[0]);
        a[3] = pair<T, FORM>(low[1][p], high[1][p], q + 1, zero[1]);
    }

    // A group's sums to the tile's.
    __device__ __forceinline__ void scale(const codes_args &g, const msgl_codes_row &l, int group,
                                          const float (&sum)[N / 2],
                                          const float (&in_sum)[FORM::OFFSET ? N / 2 : 1],
                                          float (&acc)[N / 2]) const
    {
        const float scale[2] = {group_scale<FORM>(l, g.factor, scales[0], group),
                                group_scale<FORM>(l, g.factor, scales[1], group)};
        float offset[2] = {};
        if constexpr (FORM::OFFSET) {
            offset[0] = group_offset<FORM>(l, scales[0], group, scale[0]);
            offset[1] = group_offset<FORM>(l, scales[1], group, scale[1]);
        }
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            acc[i] = fmaf(scale[i / 2 % 2], sum[i], acc[i]);
            if constexpr (FORM::OFFSET) acc[i] = fmaf(offset[i / 2 % 2], in_sum[i], acc[i]);
        }
    }
};

// A step of a tile, which has arrived at `stage`: acc += W in^T over its columns. By the products
// of each warp for itself, whose sums nobody has to wait for.
template <typename T, typename FORM, int N>
static __device__ __forceinline__ void
multiply_warp(float (&acc)[N / 2], const codes_args &g, const msgl_codes_row &l,
              const codes_lane<FORM, N> &lane, const codes_place<FORM, N> &at)
{
    typedef codes_shape<FORM, N> shape;
    constexpr int PER_GROUP = FORM::SPAN / 16; // products of 16 columns
    // A product waits for the one in front that adds to the same sums.
    constexpr int CHAINS = FORM::OFFSET || PER_GROUP < 4 || N > 16 ? 1 : PER_GROUP / 2;
    const uint32_t ones = msgl__pack_two(1.0f, 1.0f, T());
    const uint32_t all_ones[4] = {ones, ones, ones, ones};
    codes_operand<FORM, N> w;
    float sum[CHAINS][N / 2], in_sum[FORM::OFFSET ? N / 2 : 1];
    uint32_t zero[2], b[N / 8][4]; // b: of two products
#pragma unroll
    for (int p = 0; p < CODES_PARTS; p++) w.load_part(lane, at, p);
    w.load_scales(g, l, lane, at);
#pragma unroll
    for (int step = 0; step < CODES_STEP / 16; step++) {
        const int group = step / PER_GROUP, chain = step / 2 % CHAINS;
        if (step % 2 == 0) {
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                msgl__load_matrix_4(
                    at.in + lane.in[step / 2 % 2] +
                        (uint32_t)(step / 4 * shape::HALF_BYTES + j * 8 * ROW_BYTES),
                    b[j]);
            }
        }
        if (step % PER_GROUP == 0) {
            zero[0] = group_zero<T, FORM>(l, w.scales[0], group);
            zero[1] = group_zero<T, FORM>(l, w.scales[1], group);
#pragma unroll
            for (int i = 0; i < CHAINS * N / 2; i++) {
                sum[i / (N / 2)][i % (N / 2)] = 0;
                if constexpr (FORM::OFFSET) in_sum[i] = 0;
            }
        }
        uint32_t a[4];
        w.template make<T>(zero, step, a);
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const uint32_t b0 = b[j][step % 2 * 2], b1 = b[j][step % 2 * 2 + 1];
            msgl__mma(sum[chain] + 4 * j, a, b0, b1, T());
            if constexpr (FORM::OFFSET) msgl__mma(in_sum + 4 * j, all_ones, b0, b1, T());
        }
        if ((step + 1) % PER_GROUP > 0) continue;
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
#pragma unroll
            for (int c = 1; c < CHAINS; c++) sum[0][i] += sum[c][i];
        }
        w.scale(g, l, group, sum[0], in_sum, acc);
    }
}

// The same by products of warpgroups, for more rows of in.
template <typename T, typename FORM, int N>
static __device__ __forceinline__ void
multiply_group(float (&acc)[N / 2], const codes_args &g, const msgl_codes_row &l,
               const codes_lane<FORM, N> &lane, const codes_place<FORM, N> &at)
{
    typedef codes_shape<FORM, N> shape;
    // Products of 16 columns of a group, and of those that are started together, whose operands are
    // made while the ones in front of them run.
    constexpr int PER_GROUP = FORM::SPAN / 16, BATCH = PER_GROUP < 4 ? PER_GROUP : 4;
    constexpr int BATCHES = CODES_STEP / 16 / BATCH;
    const uint32_t ones = msgl__pack_two(1.0f, 1.0f, T());
    const uint32_t all_ones[4] = {ones, ones, ones, ones};
    codes_operand<FORM, N> w;
    float sum[N / 2], in_sum[FORM::OFFSET ? N / 2 : 1];
    uint32_t a[2][BATCH][4];
    const auto make = [&](int batch) {
        const int first = batch * BATCH, group = first / PER_GROUP;
        const uint32_t zero[2] = {group_zero<T, FORM>(l, w.scales[0], group),
                                  group_zero<T, FORM>(l, w.scales[1], group)};
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if ((first + i) % 2 == 0) w.load_part(lane, at, (first + i) / 2);
            w.template make<T>(zero, first + i, a[batch % 2][i]);
        }
    };
    w.load_scales(g, l, lane, at);
    make(0);
#pragma unroll
    for (int batch = 0; batch < BATCHES; batch++) {
        msgl__wgmma_fence();
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int step = batch * BATCH + i;
            const uint64_t b =
                msgl__wgmma_operand(at.in + (uint32_t)(step / 4 * shape::HALF_BYTES)) +
                2 * (step % 4);
            msgl__wgmma_registers<false>(sum, a[batch % 2][i], b, step % PER_GROUP > 0, T());
            if constexpr (FORM::OFFSET) {
                msgl__wgmma_registers<false>(in_sum, all_ones, b, step % PER_GROUP > 0, T());
            }
        }
        msgl__wgmma_commit();
        if (batch + 1 < BATCHES) make(batch + 1);
        if ((batch + 1) * BATCH % PER_GROUP > 0) continue;
        msgl__wgmma_wait<0>(sum);
        if constexpr (FORM::OFFSET) msgl__wgmma_wait<0>(in_sum);
        w.scale(g, l, batch * BATCH / PER_GROUP, sum, in_sum, acc);
    }
}

// --- results ------------------------------------------------------------------------------------

// A factor per row of in, 1 without a norm, from the squares that the kernel in front has left.
static __device__ __forceinline__ void row_factors(const codes_args &g, float *factors)
{
    const int lane = threadIdx.x % 32;
#pragma unroll 2
    for (int t = threadIdx.x / 32; t < g.m; t += CODES_WARPS) { // those of no row are not used
        float sum = 0;
        if (g.in_squares != NULL) {
#pragma unroll 4
            for (int i = lane; i < g.in_tiles; i += 32) {
                sum += __ldcg(g.in_squares + (size_t)i * g.m + t);
            }
        }
        for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
        if (lane == 0) factors[t] = g.in_squares == NULL ? 1 : rsqrtf(sum / (float)g.k + g.eps);
    }
}

// Four outputs of row t from their sums: added to what is there, stored, and left for the norm
// behind. All lanes. FOURS: threads of a row.
template <typename T, int FOURS>
static __device__ __forceinline__ void store_four(const codes_args &g, int t, int column, float4 v)
{
    const bool there = t < g.m && column < g.columns;
    const size_t at = (size_t)t * g.ld_out + column;
    if (g.f32_out) {
        if (there) *(float4 *)((float *)g.out + at) = v;
        return;
    }
    uint2 *const out = (uint2 *)((T *)g.out + at);
    if (g.accumulate && there) {
        const uint2 old = *out;
        const float2 a = msgl__unpack_two(old.x, T()), b = msgl__unpack_two(old.y, T());
        v.x += a.x, v.y += a.y, v.z += b.x, v.w += b.y;
    }
    const uint2 stored = make_uint2(msgl__pack_two(v.x, v.y, T()), msgl__pack_two(v.z, v.w, T()));
    if (there) *out = stored;
    if (g.next == NULL) return;
    const float2 a = msgl__unpack_two(stored.x, T()), b = msgl__unpack_two(stored.y, T());
    float square = there ? a.x * a.x + a.y * a.y + (b.x * b.x + b.y * b.y) : 0;
    if (there) {
        const float4 w = __ldg((const float4 *)(g.next + column));
        *(uint2 *)((T *)g.scaled + (size_t)t * g.columns + column) = make_uint2(
            msgl__pack_two(a.x * w.x, a.y * w.y, T()), msgl__pack_two(b.x * w.z, b.y * w.w, T()));
    }
#pragma unroll
    for (int d = 1; d < FOURS; d *= 2) square += __shfl_xor_sync(0xffffffffu, square, d);
    if (there && column % (4 * FOURS) == 0) {
        g.squares[(size_t)(column / (4 * FOURS)) * g.m + t] = square;
    }
}

// A finished tile. Sums go through shared memory, some rows of out at a time, so that a row's
// columns are next to each other.
template <typename T, int N, int PITCH, int CHUNK, int COLUMNS>
static __device__ __forceinline__ void store_tile(const codes_args &g, const float (&acc)[N / 2],
                                                  int row_tile, int token, uint32_t sums,
                                                  const float *factors)
{
    constexpr int FOURS = COLUMNS / 4;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, group = threadIdx.x / GROUP;
    const int first = (row_tile * CODES_GROUPS + group) * COLUMNS, worker = threadIdx.x % GROUP;
    const int own = warp * (COLUMNS / 4) + lane / 4; // column of this thread's first row
    float bias[2] = {};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = row_of(g, row_tile, (int)threadIdx.x / 32 * 16 + lane / 4 + i * 8);
        if (g.bias != NULL && row < g.n) bias[i] = __ldg(g.bias + row);
    }
#pragma unroll
    for (int c = 0; c < N / CHUNK; c++) {
#pragma unroll
        for (int i = 0; i < CHUNK / 4; i++) { // pairs of sums, of both rows
            const int t = i / 2 * 8 + lane % 4 * 2 + i % 2, j = c * (CHUNK / 2) + i / 2 * 4 + i % 2;
            const float factor = factors[token + c * CHUNK + t];
            const float a = acc[j] * factor + bias[0], b = acc[j + 2] * factor + bias[1];
            const uint32_t to = sums + (uint32_t)(t * PITCH + own) * 4;
            if (COLUMNS == 32) {
                msgl__write_shared(to, msgl__silu(a) * b);
            } else {
                msgl__write_shared(to, a);
                msgl__write_shared(to + 32, b);
            }
        }
        msgl__named_barrier_sync(2 + group, GROUP);
#pragma unroll
        for (int t = worker / FOURS;
             t < (CHUNK + GROUP / FOURS - 1) / (GROUP / FOURS) * (GROUP / FOURS);
             t += GROUP / FOURS) {
            const int column = worker % FOURS * 4;
            const float4 v = msgl__read_shared<float4>(
                sums + (uint32_t)((t < CHUNK ? t : 0) * PITCH + column) * 4);
            const int row = t < CHUNK ? token + c * CHUNK + t : g.m;
            store_four<T, FOURS>(g, row, first + column, v);
        }
        msgl__named_barrier_sync(2 + group, GROUP);
    }
}

// --- the kernel ---------------------------------------------------------------------------------

template <typename T, typename FORM, int N>
static __device__ __forceinline__ void multiply_all(const codes_args &g, const msgl_codes_row &l,
                                                    ring r, const line_segment &all, uint32_t sums,
                                                    float *factors)
{
    typedef codes_shape<FORM, N> shape;
    constexpr int CLUSTER = shape::CLUSTER;
    const int rank = rank_of<CLUSTER>(), lane = threadIdx.x % 32;
    int tile = all.begin / g.line.stages, s = all.begin - tile * g.line.stages, begin = all.begin;
    const codes_lane<FORM, N> own(g.gated);
    msgl__pdl_wait();
    row_factors(g, factors);
    msgl__named_barrier_sync(1, CODES_WORKERS);
    while (begin < all.end) {
        const int row_tile = tile / g.column_tiles * CLUSTER + rank;
        const int token = tile % g.column_tiles * N;
        const int n = all.end - begin < g.line.stages - s ? all.end - begin : g.line.stages - s;
        float acc[shape::SUMS] = {};
#pragma unroll 1
        for (int i = s; i < s + n; i++) {
            msgl__mbarrier_wait(r.full + r.slot * 8, r.phase);
            const uint32_t stage = r.stages + (uint32_t)(r.slot * shape::STAGE_BYTES);
#pragma unroll 1
            for (int step = 0; step < shape::STEPS; step++) {
                const codes_place<FORM, N> at(stage, step);
                if constexpr (shape::BY_WARP) {
                    multiply_warp<T, FORM, N>(acc, g, l, own, at);
                } else {
                    multiply_group<T, FORM, N>(acc, g, l, own, at);
                }
            }
            __syncwarp();
            if (CLUSTER == 1 && lane == 0) msgl__mbarrier_arrive(r.empty + r.slot * 8);
            if (CLUSTER > 1 && lane < CLUSTER) {
                msgl__mbarrier_arrive_at(r.empty + r.slot * 8, (uint32_t)lane);
            }
            next_slot<shape::STAGES>(r);
        }
        if (s > 0) {
            line_leave<CODES_WORKERS>(g.line, acc, all.index * CLUSTER + rank);
        } else {
            line_add<CODES_WORKERS, CLUSTER>(g.line, acc, all, rank, g.line.stages - n);
            const uint32_t chunk = sums + (uint32_t)(threadIdx.x / GROUP * shape::CHUNK_BYTES);
            if (g.gated) {
                store_tile<T, N, shape::PITCH, shape::CHUNK, 32>(g, acc, row_tile, token, chunk,
                                                                 factors);
            } else {
                store_tile<T, N, shape::PITCH, shape::CHUNK, 64>(g, acc, row_tile, token, chunk,
                                                                 factors);
            }
        }
        begin += n;
        tile++;
        s = 0;
    }
}

template <typename T, typename FORM, int N>
__global__ void __launch_bounds__((codes_shape<FORM, N>::THREADS), (codes_shape<FORM, N>::BLOCKS))
    codes_sm90(const __grid_constant__ codes_args g, const __grid_constant__ msgl_codes_row l,
               const __grid_constant__ codes_tensors maps)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef codes_shape<FORM, N> shape;
    extern __shared__ unsigned char unaligned[];
    ring r;
    r.stages = (msgl__shared_address(unaligned) + 1023) & ~1023u;
    asm volatile("" : "+r"(r.stages)); // as in codes_lane
    r.full = r.stages + shape::STAGES * shape::STAGE_BYTES;
    r.empty = r.full + CODES_MAX_STAGES * 8;
    r.slot = 0;
    r.phase = 0;
    const uint32_t factors = r.empty + CODES_MAX_STAGES * 8;
    const uint32_t sums = factors + MSGL_CODES_SM90_ROWS * 4;
    const line_segment all = line_segment_of<shape::CLUSTER>(g.line);
    if (threadIdx.x == CODES_WORKERS) {
        for (int i = 0; i < shape::STAGES; i++) {
            msgl__mbarrier_init(r.full + i * 8, 1);
            msgl__mbarrier_init(r.empty + i * 8, CODES_WARPS * shape::CLUSTER);
        }
        msgl__mbarrier_init_done();
        msgl__fence_async_proxy();
    }
    __syncthreads();
    if constexpr (shape::CLUSTER > 1) msgl__cluster_meet(); // the others' barriers are ready too
    msgl__pdl_trigger();
    if (threadIdx.x >= CODES_WORKERS) {
        if constexpr (shape::TAKES) msgl__registers_down<56>();
        if (threadIdx.x < CODES_WORKERS + 32) load_all<FORM, N>(g, maps, r, all);
    } else {
        if constexpr (shape::TAKES) msgl__registers_up<224>();
        multiply_all<T, FORM, N>(
            g, l, r, all, sums, (float *)(unaligned + (factors - msgl__shared_address(unaligned))));
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
    const int segments = msgl__codes_sm90_cut(x, &a, shape::BLOCKS, shape::CLUSTER, CODES_WARPS);
    if (segments == 0) return false;
    const dim3 cluster(shape::CLUSTER), grid((unsigned)(segments * shape::CLUSTER));
    const size_t bytes = (size_t)shape::SHARED_BYTES;
    const cudaStream_t stream = msgl__cuda_stream(x);
    MSGL_CUDA_TRY(x, msgl__allow_shared<kernel>(bytes));
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
    case 32:
        return half ? codes_launch<__half, FORM, 32>(x, a)
                    : codes_launch<__nv_bfloat16, FORM, 32>(x, a);
    case 64:
        return half ? codes_launch<__half, FORM, 64>(x, a)
                    : codes_launch<__nv_bfloat16, FORM, 64>(x, a);
    case 128:
        if constexpr (!FORM::OFFSET) {
            return half ? codes_launch<__half, FORM, 128>(x, a)
                        : codes_launch<__nv_bfloat16, FORM, 128>(x, a);
        }
    }
    return false;
}

#endif
