// SPDX-License-Identifier: Apache-2.0
//
// Which experts of codes have kernels, and the kernels for a step of a few rows, where hardly two
// of them share an expert (as experts.cu for plain weights): gate and up, then down and the
// combination.
//
// A tile is 16 rows of W, the rows of the tensor cores' product, for one assignment of a token to
// an expert. Its columns are cut into steps of 64 bytes of a row, which the warps of a block take
// in turns: a thread copies 16 bytes of each of its two rows into a ring of its own in shared
// memory, so that many are on their way and nobody waits for another warp, and makes operands of
// them. There is one barrier, in front of the sums of a tile's warps. Both kernels' blocks stand on
// a multiprocessor together, so that the second one's first codes come while the first one ends.
//
// With one token seven of a product's eight columns are idle. Where a step's columns differ in
// scale four are used: column t has the activations of the codes of thread t of a quad and zeros
// beside them, so that a step's four sums are those of 32 columns (16 of codes of 8 bits) each.
#include "cuda/gemm/experts_codes.cuh"

#include <type_traits>

#include "cuda/device.cuh"
#include "cuda/gemm/grouped.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/gate.cuh"
#include "cuda/ops/vec8.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/shared.cuh"

enum {
    WARPS = 16,
    THREADS = WARPS * 32,
    TILE = 16,       // rows of W
    STEP_BYTES = 64, // of a row's codes
    // Of a warp's step in its ring: both rows of all threads, then the words that their scales and
    // zero points are in.
    CODES_BYTES = 2 * 32 * 16,
    SLOT_BYTES = CODES_BYTES + 4 * 32 * 4,
    UP_SLOTS = 4,
    DOWN_SLOTS = 3,
    TILE_SUMS = TILE * WARPS + 8, // of a tile, and a gap that keeps tiles' banks apart
    MAX_TILES = THREADS / 8,      // of a block
    NOTHING_BYTES = 64,           // of zeros
    MAX_SHARED = 226 << 10,
};

typedef struct few_args {
    codes_matrix up, down;
    int32_t rows, top_k, hidden, inter;
    const int32_t *ids, *source;
    const float *weights;
    const void *in;
    void *act; // [rows * top_k, inter]
    void *out;
    bool accumulate, clamped;
    const float *up_bias, *down_bias;
} few_args;

// A kernel's form. SIZE: bytes of a scale; ZEROS: there are zero points; WIDE: all columns of a
// step share a scale, or have it on the operand.
template <int BITS_, codes_values VALUES_, int SIZE_, bool ZEROS_, bool WIDE_> struct few_form {
    static constexpr int BITS = BITS_, SIZE = SIZE_;
    static constexpr codes_values VALUES = VALUES_;
    static constexpr bool ZEROS = ZEROS_, WIDE = WIDE_;
    static constexpr int COLUMNS = STEP_BYTES * 8 / BITS; // of a step
};

// --- a warp's ring ------------------------------------------------------------------------------

static __host__ __device__ __forceinline__ int steps_of(const codes_matrix &m)
{
    return (int)(m.used + STEP_BYTES - 1) / STEP_BYTES;
}

// A thread of a warp: lane / 4 is its row of a tile, and the eighth one behind that its second;
// lane % 4 the 16 bytes of a step that it has of them.
template <typename FORM> struct few_lane {
    static constexpr uint32_t NOTHING = ~0u;
    int quad, row, shift;  // shift: of a scale in its word
    uint32_t codes, words; // in the warp's first slot: this thread's 16 bytes and its word
    uint32_t place;        // of its 16 bytes in a tile's first step
    uint32_t in;           // of its activations in a step of them; NOTHING: they are zeros

    __device__ __forceinline__ few_lane(const codes_matrix &m, uint32_t rings, int slots)
    {
        const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
        const uint32_t ring = rings + (uint32_t)(warp * slots * SLOT_BYTES);
        quad = lane % 4;
        row = lane / 4;
        shift = FORM::SIZE == 4 ? 0 : FORM::SIZE == 2 ? row % 2 * 16 : row % 4 * 8;
        codes = ring + (uint32_t)lane * 16;
        words = ring + CODES_BYTES + (uint32_t)lane * 4;
        place = (uint32_t)row * m.row + (uint32_t)quad * 16;
        // Of 8 bits pieces 2 (quad % 2) and the next one of 32 columns.
        const int at = FORM::BITS == 4 ? 64 * quad : 64 * (quad / 2) + 8 * (quad % 2);
        in = row == (FORM::WIDE ? 0 : quad) ? (uint32_t)at : NOTHING;
    }
};

// What a warp does next: step `step` of tile `tile` of the block, which is tile j of the `per` of
// an assignment. Warps have the steps of all tiles in turns.
struct few_item {
    int tile, place, j, step;

    __device__ __forceinline__ few_item(int first, int per, int steps)
    {
        tile = 0;
        place = first / per;
        j = first - place * per;
        step = (int)threadIdx.x / 32;
        settle(steps, per);
    }

    __device__ __forceinline__ void settle(int steps, int per)
    {
#pragma unroll 1
        while (step >= steps) step -= steps, tile++, j++;
#pragma unroll 1
        while (j >= per) j -= per, place++;
    }

    __device__ __forceinline__ void next(int steps, int per)
    {
        step += WARPS;
        settle(steps, per);
    }
};

// Asks for a step of rows first to first + 7 of an expert and of those `apart` behind them.
template <typename FORM>
static __device__ __forceinline__ void ask(const codes_matrix &m, const few_lane<FORM> &lane,
                                           int32_t expert, int first, int apart, int step,
                                           uint32_t slot)
{
    const uint8_t *const w = m.w + (size_t)expert * m.stride;
    const uint32_t byte = (uint32_t)(step * STEP_BYTES + lane.quad * 16);
    const bool there = byte < m.used;
    const int column = there ? (int)(byte * 8 / FORM::BITS) : m.k - 1;
    const uint32_t element = codes_element(m, column, first + lane.row);
    const uint8_t *const codes = w + ((uint32_t)first * m.row + (uint32_t)(step * STEP_BYTES));
    msgl__copy_async_16(lane.codes + slot, codes + lane.place, there);
    msgl__copy_async_16(lane.codes + slot + 512, codes + (lane.place + (uint32_t)apart * m.row),
                        there);
    const uint8_t *const scale = w + m.scales + (element * FORM::SIZE & ~3u);
    msgl__copy_async_4(lane.words + slot, scale);
    msgl__copy_async_4(lane.words + slot + 128, scale + (uint32_t)(apart * FORM::SIZE));
    if constexpr (FORM::ZEROS) {
        const uint8_t *const zero = w + m.zeros + (element & ~3u);
        msgl__copy_async_4(lane.words + slot + 256, zero);
        msgl__copy_async_4(lane.words + slot + 384, zero + apart);
    }
}

// Activations of this thread in product (p, h) of a step: in one column all threads' of the first
// quad, or, WIDE false, those of its own columns and zeros beside them. at: the row's step in
// shared memory; nothing: 64 bytes of zeros there.
template <typename FORM> struct few_in {
    uint4 v[4];

    __device__ __forceinline__ few_in(uint32_t at, uint32_t nothing, const few_lane<FORM> &lane)
    {
        const uint32_t from = lane.in == lane.NOTHING ? nothing : at + lane.in;
#pragma unroll
        for (int q = 0; q < 4; q++) {
            if constexpr (FORM::BITS == 4) {
                v[q] = msgl__read_shared<uint4>(from + (uint32_t)(16 * q));
            } else {
                const uint2 two = msgl__read_shared<uint2>(from + (uint32_t)(16 * q));
                v[q].x = two.x, v[q].y = two.y;
            }
        }
    }

    __device__ __forceinline__ uint32_t word(const int q, const int p) const
    {
        return p == 0 ? v[q].x : p == 1 ? v[q].y : p == 2 ? v[q].z : v[q].w;
    }
};

static __device__ __forceinline__ uint32_t word_of(const uint4 v, const int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Whether scales are on the operand: bf16 has the products of e2m1 with powers of two.
template <typename T, codes_values VALUES>
static constexpr bool SCALED = VALUES == CODES_E2M1 &&std::is_same<T, __nv_bfloat16>::value;

// Pair q of piece p of a thread's 16 bytes. by: what makes the value of a moved e2m1, or an
// integer's zero point (codes_pair.cuh).
template <typename T, typename FORM>
static __device__ __forceinline__ uint32_t few_pair(const uint4 codes, const int p, const int q,
                                                    uint32_t by)
{
    const uint32_t word = word_of(codes, FORM::BITS == 4 ? p : 2 * p + q / 2);
    if constexpr (SCALED<T, FORM::VALUES>) return codes_e2m1<T>(word, q, by);
    if constexpr (FORM::VALUES == CODES_E2M1) return codes_e2m1<T>(word, q);
    if constexpr (FORM::VALUES == CODES_E4M3) return codes_e4m3<T>(word, q % 2);
    if constexpr (FORM::BITS == 4) return codes_four<T>(word, q, by);
    return codes_eight<T>(word, q % 2, by);
}

template <typename FORM>
static __device__ __forceinline__ float few_scale(const codes_matrix &m, uint32_t bits)
{
    if constexpr (FORM::SIZE == 1) return codes_e8m0(bits & 0xff);
    if constexpr (FORM::SIZE == 4) return msgl__codes_row_float(bits);
    const float f16 = msgl__codes_row_half(bits & 0xffff), bf16 = msgl__codes_row_float(bits << 16);
    return m.number == MSGL_NUMBER_F16 ? f16 : bf16;
}

// A step that has arrived in `slot`: the products of both rows with the activations at `in`,
// scaled, in the first thread of each quad.
template <typename T, typename FORM>
static __device__ __forceinline__ float2 multiply(const codes_matrix &m, const few_lane<FORM> &lane,
                                                  uint32_t slot, uint32_t in, uint32_t nothing)
{
    constexpr int PIECES = FORM::BITS == 4 ? 4 : 2;
    constexpr bool ON_OPERAND = SCALED<T, FORM::VALUES>;
    const uint4 codes[2] = {msgl__read_shared<uint4>(lane.codes + slot),
                            msgl__read_shared<uint4>(lane.codes + slot + 512)};
    const few_in<FORM> x(in, nothing, lane);
    float scale[2] = {};
    uint32_t by[2] = {};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t word = lane.words + slot + (uint32_t)i * 128;
        const uint32_t bits = msgl__read_shared<uint32_t>(word) >> lane.shift;
        if constexpr (ON_OPERAND) {
            by[i] = codes_e8m0_scale(bits & 0xff);
        } else {
            scale[i] = few_scale<FORM>(m, bits);
        }
        if constexpr (FORM::VALUES == CODES_INTEGERS) {
            int zero = m.zero;
            if constexpr (FORM::ZEROS) {
                zero += (int8_t)(msgl__read_shared<uint32_t>(word + 256) >> lane.row % 4 * 8);
            }
            by[i] = codes_zero<T, FORM::BITS>(zero);
        }
    }
    float sum[2][4] = {}; // two, as a product waits for the one that it adds to
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t a[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                a[i] = few_pair<T, FORM>(codes[i % 2], p, 2 * h + i / 2, by[i % 2]);
            }
            msgl__mma(sum[h], a, x.word(2 * h, p), x.word(2 * h + 1, p), T());
        }
    }
    if constexpr (ON_OPERAND) {
        return make_float2(sum[0][0] + sum[1][0], sum[0][2] + sum[1][2]);
    } else if constexpr (FORM::WIDE) {
        return make_float2((sum[0][0] + sum[1][0]) * scale[0], (sum[0][2] + sum[1][2]) * scale[1]);
    } else {
        // Threads 0 and 1 of a quad have the sums of the columns of two threads each, 2 and 3
        // zeros.
        const int from = ((int)threadIdx.x & 28) + lane.quad * 2 % 4;
        float all[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float a = __shfl_sync(MSGL_FULL_MASK, scale[i], from);
            const float b = __shfl_sync(MSGL_FULL_MASK, scale[i], from + 1);
            all[i] =
                (sum[0][2 * i] + sum[1][2 * i]) * a + (sum[0][2 * i + 1] + sum[1][2 * i + 1]) * b;
            all[i] += __shfl_xor_sync(MSGL_FULL_MASK, all[i], 1);
        }
        return make_float2(all[0], all[1]);
    }
}

// To shared memory at `to`, all threads: `rows` rows of k activations, each followed by zeros up to
// `padded`.
template <typename T>
static __device__ __forceinline__ void keep_rows(uint32_t to, const T *in, int rows, int k,
                                                 int padded)
{
    const int eights = padded / 8;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < rows * eights; i += THREADS) {
        const int row = i / eights, at = (i - row * eights) * 8;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (at < k) v = __ldcg((const uint4 *)(in + (size_t)row * (size_t)k + at));
        msgl__write_shared(to + (uint32_t)i * 16, v);
    }
}

static __device__ __forceinline__ void clear_sums(uint32_t sums, int tiles)
{
    for (int i = (int)threadIdx.x; i < tiles * TILE_SUMS; i += THREADS) {
        msgl__write_shared(sums + (uint32_t)i * 4, 0.0f);
    }
}

// --- gate and up --------------------------------------------------------------------------------
//
// Tile j of an assignment has rows 8 j to 8 j + 7 of its expert's gate and the same ones of up.

template <typename T, typename FORM>
static __global__ void __launch_bounds__(THREADS, 2) few_up(const __grid_constant__ few_args g)
{
    extern __shared__ __align__(16) unsigned char few_shared[];
    const uint32_t rings = msgl__shared_address(few_shared);
    const uint32_t sums = rings + WARPS * UP_SLOTS * SLOT_BYTES;
    const codes_matrix &m = g.up;
    const int steps = steps_of(m), padded = steps * FORM::COLUMNS;
    const int lane_id = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int n = g.rows * g.top_k, per = g.inter / 8, all = n * per;
    const int share = all / (int)gridDim.x, longer = all - share * (int)gridDim.x;
    const int begin = (int)blockIdx.x * share + min((int)blockIdx.x, longer);
    const int tiles = share + ((int)blockIdx.x < longer);
    const uint32_t in = sums + (uint32_t)(tiles * TILE_SUMS * 4);
    const uint32_t nothing = in + (uint32_t)(g.rows * padded) * 2;
    const few_lane<FORM> lane(m, rings, UP_SLOTS);
    few_item asked(begin, per, steps), used = asked;
    clear_sums(sums, tiles);
    if (threadIdx.x < NOTHING_BYTES / 4) msgl__write_shared(nothing + threadIdx.x * 4, 0.0f);
    msgl__pdl_wait();
    msgl__pdl_trigger(); // not before: the kernel behind knows then what was chosen
    const int32_t source = lane_id < n ? __ldcg(g.source + lane_id) : 0;
    const int32_t id = lane_id < n ? __ldcg(g.ids + lane_id) : 0;
    const int32_t expert = __shfl_sync(MSGL_FULL_MASK, id, source & 31), row = source / g.top_k;
    const auto ask_next = [&](uint32_t slot) {
        const int32_t of = __shfl_sync(MSGL_FULL_MASK, expert, asked.place & 31);
        if (asked.tile < tiles) {
            ask<FORM>(m, lane, of, 8 * asked.j, g.inter, asked.step, slot);
        }
        msgl__copy_async_commit();
        asked.next(steps, per);
    };
#pragma unroll 1
    for (int i = 0; i < UP_SLOTS - 1; i++) ask_next((uint32_t)(i * SLOT_BYTES));
    // Who finishes which output, and where it goes.
    const int tile = (int)threadIdx.x / 8, place = (begin + tile) / per;
    const int output = (begin + tile - place * per) * 8 + (int)threadIdx.x % 8;
    const int32_t to = __shfl_sync(MSGL_FULL_MASK, source, place & 31);
    const int32_t of = __shfl_sync(MSGL_FULL_MASK, expert, place & 31);
    float gate = 0, up = 0;
    if (g.up_bias != NULL && tile < tiles) {
        const float *bias = g.up_bias + (size_t)of * (size_t)m.n + output;
        gate = bias[0], up = bias[g.inter];
    }
    keep_rows<T>(in, (const T *)g.in, g.rows, g.hidden, padded);
    __syncthreads();
    uint32_t slot = 0;
#pragma unroll 1
    while (used.tile < tiles) {
        ask_next(slot == 0 ? (UP_SLOTS - 1) * SLOT_BYTES : slot - SLOT_BYTES);
        const int of_row = __shfl_sync(MSGL_FULL_MASK, row, used.place & 31);
        const uint32_t x = in + (uint32_t)(of_row * padded + used.step * FORM::COLUMNS) * 2;
        msgl__copy_async_wait<UP_SLOTS - 1>();
        const float2 v = multiply<T, FORM>(m, lane, slot, x, nothing);
        if (lane.quad == 0) {
            const uint32_t at =
                sums + (uint32_t)(used.tile * TILE_SUMS + warp * TILE + lane.row) * 4;
            msgl__write_shared(at, msgl__read_shared<float>(at) + v.x);
            msgl__write_shared(at + 32, msgl__read_shared<float>(at + 32) + v.y);
        }
        used.next(steps, per);
        slot = slot == (UP_SLOTS - 1) * SLOT_BYTES ? 0 : slot + SLOT_BYTES;
    }
    msgl__copy_async_wait<0>();
    __syncthreads();
    if (tile >= tiles) return;
    const uint32_t at = sums + (uint32_t)(tile * TILE_SUMS + (int)threadIdx.x % 8) * 4;
    float gate_sum = 0, up_sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        gate_sum += msgl__read_shared<float>(at + (uint32_t)(w * TILE * 4));
        up_sum += msgl__read_shared<float>(at + (uint32_t)(w * TILE * 4 + 32));
    }
    gate = fmaf(gate_sum, m.factor, gate), up = fmaf(up_sum, m.factor, up);
    const float v = g.clamped ? gated<MSGL_SWIGLU_CLAMPED>(gate, up) : gated<MSGL_SILU>(gate, up);
    ((T *)g.act)[(size_t)to * (size_t)g.inter + output] = from_f32<T>(v);
}

// --- down ---------------------------------------------------------------------------------------
//
// Block (j, row) makes outputs 16 j to 16 j + 15 of a row: steps of all its experts, one behind the
// other.

template <typename T, typename FORM>
static __global__ void __launch_bounds__(THREADS, 2) few_down(const __grid_constant__ few_args g)
{
    extern __shared__ __align__(16) unsigned char few_shared[];
    const uint32_t rings = msgl__shared_address(few_shared);
    const uint32_t sums = rings + WARPS * DOWN_SLOTS * SLOT_BYTES, in = sums + TILE_SUMS * 4;
    const codes_matrix &m = g.down;
    const int steps = steps_of(m), padded = steps * FORM::COLUMNS;
    const int lane_id = (int)threadIdx.x % 32, row = (int)blockIdx.y;
    const few_lane<FORM> lane(m, rings, DOWN_SLOTS);
    const uint32_t nothing = in + (uint32_t)(g.top_k * padded) * 2;
    const int first = (int)blockIdx.x * TILE;
    msgl__pdl_trigger();
    if (threadIdx.x < NOTHING_BYTES / 4) msgl__write_shared(nothing + threadIdx.x * 4, 0.0f);
    // Lane c's is choice c of the row: its expert and what that one counts.
    int32_t expert = 0;
    float weight = 0;
    if (lane_id < g.top_k) {
        expert = __ldcg(g.ids + row * g.top_k + lane_id);
        weight = __ldcg(g.weights + row * g.top_k + lane_id);
    }
    few_item asked(0, 1, steps), used = asked; // of which a place is a choice
    const auto ask_next = [&](uint32_t slot) {
        const int32_t of = __shfl_sync(MSGL_FULL_MASK, expert, asked.place & 31);
        if (asked.place < g.top_k) ask<FORM>(m, lane, of, first, 8, asked.step, slot);
        msgl__copy_async_commit();
        asked.next(steps, 1);
    };
#pragma unroll 1
    for (int i = 0; i < DOWN_SLOTS; i++) ask_next((uint32_t)(i * SLOT_BYTES));
    msgl__pdl_wait();
    const T *act = (const T *)g.act + (size_t)row * (size_t)g.top_k * (size_t)g.inter;
    T *const out = (T *)g.out + (size_t)row * (size_t)g.hidden + blockIdx.x * TILE;
    const int output = (int)threadIdx.x / WARPS; // of threads that finish one
    const bool finishes = threadIdx.x < TILE * WARPS && threadIdx.x % WARPS == 0;
    float old = g.accumulate && finishes ? to_f32(out[output]) : 0;
#pragma unroll 1
    for (int c = 0; g.down_bias != NULL && c < g.top_k; c++) {
        const float by = __shfl_sync(MSGL_FULL_MASK, weight, c);
        const int32_t of = __shfl_sync(MSGL_FULL_MASK, expert, c);
        if (!finishes) continue;
        old += by * g.down_bias[(size_t)of * (size_t)m.n + blockIdx.x * TILE + output];
    }
    keep_rows<T>(in, act, g.top_k, g.inter, padded);
    __syncthreads();
    uint32_t slot = 0;
    float2 sum = make_float2(0, 0);
#pragma unroll 1
    while (used.place < g.top_k) {
        const uint32_t x = in + (uint32_t)(used.place * padded + used.step * FORM::COLUMNS) * 2;
        const float by = __shfl_sync(MSGL_FULL_MASK, weight, used.place & 31);
        msgl__copy_async_wait<DOWN_SLOTS - 1>();
        const float2 v = multiply<T, FORM>(m, lane, slot, x, nothing);
        sum.x = fmaf(v.x, by, sum.x), sum.y = fmaf(v.y, by, sum.y);
        used.next(steps, 1);
        ask_next(slot);
        slot = slot == (DOWN_SLOTS - 1) * SLOT_BYTES ? 0 : slot + SLOT_BYTES;
    }
    msgl__copy_async_wait<0>();
    if (lane.quad == 0) {
        const uint32_t at = sums + (uint32_t)((int)threadIdx.x / 32 * TILE + lane.row) * 4;
        msgl__write_shared(at, sum.x);
        msgl__write_shared(at + 32, sum.y);
    }
    __syncthreads();
    if (threadIdx.x >= TILE * WARPS) return;
    const float v = group_sum(
        msgl__read_shared<float>(sums + (uint32_t)((int)threadIdx.x % WARPS * TILE + output) * 4),
        WARPS);
    if (finishes) out[output] = from_f32<T>(fmaf(v, m.factor, old));
}

// --- host ---------------------------------------------------------------------------------------

static bool form_of(const msgl_codes_row *l, codes_matrix *m)
{
    const bool plain = l->offset == MSGL_OFFSET_NONE;
    m->bits = l->bits;
    m->values = l->e4m3 ? CODES_E4M3 : msgl__codes_row_is_e2m1(l) ? CODES_E2M1 : CODES_INTEGERS;
    m->factor = msgl__codes_row_factor(l);
    m->zero = l->zero;
    m->has_zeros = l->offset == MSGL_OFFSET_ZERO;
    m->number = l->number;
    m->shift = 31;
    for (int i = 5; i < 31 && l->span != l->k; i++) {
        if (l->span == 1 << i) m->shift = i;
    }
    const bool exponents = l->number == MSGL_NUMBER_E8M0 || l->number == MSGL_NUMBER_E8M0_HALF;
    const bool wide =
        l->number == MSGL_NUMBER_F32; // of which only 8 bits and long spans have kernels
    return l->scaling == MSGL_SCALING_ONE && exponents == (m->values == CODES_E2M1) &&
           l->number != MSGL_NUMBER_E4M3 && (plain || (m->has_zeros && l->bits == 4)) &&
           (l->bits == 4 || l->bits == 8) && (l->span == l->k || m->shift < 31) &&
           (m->values == CODES_E4M3 ? m->shift >= 7 : true) &&
           (!wide || (l->bits == 8 && m->shift >= 7)) &&
           (m->values != CODES_INTEGERS ? plain : !l->looked_up);
}

bool msgl__codes_matrix_of(const msgl_weight *experts, int32_t num, codes_matrix *m)
{
    const msgl_weight *w = &experts[0];
    const char *const base = (const char *)w->data;
    msgl_codes_row l;
    *m = {};
    if (w->num_parts > 0 || w->format->id != MSGL_W_CODES || w->format->order != NULL ||
        !msgl__codes_row_of(w->format->blocks, w->k, &l) || !form_of(&l, m)) {
        return false;
    }
    const ptrdiff_t stride = num > 1 ? (const char *)experts[1].data - base : 0;
    for (int32_t e = 1; e < num; e++) {
        const msgl_weight *one = &experts[e];
        if (one->num_parts > 0 || one->format->id != MSGL_W_CODES || one->format->order != NULL ||
            one->format->blocks->codes != w->format->blocks->codes ||
            (const char *)one->data != base + e * stride) {
            return false;
        }
    }
    m->w = (const uint8_t *)base;
    m->stride = (size_t)stride;
    m->n = w->n;
    m->k = w->k;
    m->row = l.codes;
    m->used = (uint32_t)l.k / 8 * (uint32_t)l.bits;
    m->scales = (size_t)w->n * l.codes;
    m->zeros = m->scales + (size_t)w->n * l.dmin;
    return stride >= 0 && (uintptr_t)base % 16 == 0 && stride % 16 == 0 && w->n % 16 == 0 &&
           w->k % 32 == 0;
}

template <typename T, typename FORM> static bool launch(msgl_exec *x, few_args g)
{
    const msgl_cuda_device *d = msgl__cuda_device(x);
    const size_t up_padded = (size_t)steps_of(g.up) * (size_t)FORM::COLUMNS;
    const size_t down_padded = (size_t)steps_of(g.down) * (size_t)FORM::COLUMNS;
    const int all = g.rows * g.top_k * (g.inter / 8);
    const int tiles = (all + d->sm_count - 1) / d->sm_count;
    const size_t up_bytes = (size_t)WARPS * UP_SLOTS * SLOT_BYTES + (size_t)tiles * TILE_SUMS * 4 +
                            (size_t)g.rows * up_padded * 2 + NOTHING_BYTES;
    const size_t down_bytes = (size_t)WARPS * DOWN_SLOTS * SLOT_BYTES + TILE_SUMS * 4 +
                              (size_t)g.top_k * down_padded * 2 + NOTHING_BYTES;
    constexpr auto up = few_up<T, FORM>, down = few_down<T, FORM>;
    if (tiles > MAX_TILES || up_bytes > MAX_SHARED || down_bytes > MAX_SHARED) return false;
    if (SCALED<T, FORM::VALUES>) {
        g.up.factor *= (float)(1 << CODES_E8M0_BIAS);
        g.down.factor *= (float)(1 << CODES_E8M0_BIAS);
    }
    const dim3 blocks((unsigned)(all < d->sm_count ? all : d->sm_count));
    const dim3 outputs((unsigned)(g.hidden / TILE), (unsigned)g.rows);
    MSGL_CUDA_TRY(x, msgl__allow_shared<up>(up_bytes, true));
    MSGL_CUDA_TRY(x, msgl__launch(up, blocks, dim3(THREADS), up_bytes, d->stream, g));
    MSGL_CUDA_TRY(x, msgl__allow_shared<down>(down_bytes, true));
    MSGL_CUDA_TRY(x, msgl__launch(down, outputs, dim3(THREADS), down_bytes, d->stream, g));
    return true;
}

template <typename T, codes_values VALUES, int BITS, int SIZE, bool ZEROS>
static bool launch_span(msgl_exec *x, const few_args &g)
{
    constexpr int COLUMNS = STEP_BYTES * 8 / BITS;
    const bool wide = 1ll << g.up.shift >= COLUMNS && 1ll << g.down.shift >= COLUMNS;
    if constexpr (SCALED<T, VALUES> || VALUES == CODES_E4M3 || SIZE == 4) {
        return launch<T, few_form<BITS, VALUES, SIZE, ZEROS, true>>(x, g);
    } else {
        return wide ? launch<T, few_form<BITS, VALUES, SIZE, ZEROS, true>>(x, g)
                    : launch<T, few_form<BITS, VALUES, SIZE, ZEROS, false>>(x, g);
    }
}

template <typename T, codes_values VALUES> static bool launch_eight(msgl_exec *x, const few_args &g)
{
    return g.up.number == MSGL_NUMBER_F32 ? launch_span<T, VALUES, 8, 4, false>(x, g)
                                          : launch_span<T, VALUES, 8, 2, false>(x, g);
}

template <typename T> static bool launch_form(msgl_exec *x, const few_args &g)
{
    if (g.up.values == CODES_E2M1) return launch_span<T, CODES_E2M1, 4, 1, false>(x, g);
    if (g.up.values == CODES_E4M3) return launch_eight<T, CODES_E4M3>(x, g);
    if (g.up.bits == 8) return launch_eight<T, CODES_INTEGERS>(x, g);
    return g.up.has_zeros ? launch_span<T, CODES_INTEGERS, 4, 2, true>(x, g)
                          : launch_span<T, CODES_INTEGERS, 4, 2, false>(x, g);
}

bool msgl__cuda_experts_codes(msgl_exec *x, const msgl_experts_call *c)
{
    few_args g = {};
    if (!msgl__codes_matrix_of(c->gate_up, c->num_experts, &g.up) ||
        !msgl__codes_matrix_of(c->down, c->num_experts, &g.down) || g.up.bits != g.down.bits ||
        g.up.values != g.down.values || g.up.has_zeros != g.down.has_zeros ||
        g.up.number != g.down.number) {
        return false;
    }
    g.rows = c->rows;
    g.top_k = c->top_k;
    g.hidden = g.down.n;
    g.inter = g.down.k;
    g.ids = c->ids;
    g.source = c->source;
    g.weights = c->weights;
    g.in = c->in;
    g.act = c->act;
    g.out = c->out;
    g.accumulate = c->accumulate;
    g.clamped = c->activation == MSGL_SWIGLU_CLAMPED;
    g.up_bias = c->gate_up_bias;
    g.down_bias = c->down_bias;
    const uintptr_t bits = (uintptr_t)g.in | (uintptr_t)g.act;
    if (c->shared_up != NULL || c->activation == MSGL_GELU_TANH || bits % 16 != 0) return false;
    return x->act == MSGL_F16 ? launch_form<__half>(x, g) : launch_form<__nv_bfloat16>(x, g);
}
