// SPDX-License-Identifier: Apache-2.0
//
// What the kernels for few assignments of experts of codes (experts_codes.cu) do in a step: 128
// bytes of each of eight rows of W by a warp, in two halves of 64 bytes, which are the upper and
// the lower rows of the tensor cores' products.
//
// A warp has a ring in shared memory. A thread takes 16 bytes of each half of a row: 32 columns of
// 4 bits (16 of 8) of one group, whatever the columns of the product that it takes them for:
// activations are read to match. Column 2 t of a product has activations for the codes of thread t
// of a quad in the first half, and zeros beside them, column 2 t + 1 those in the second. So each
// thread gets the sums of its own columns, whose scales it knows, and nobody passes anything on
// before a row is at its end.
#ifndef MSGL_CUDA_GEMM_FEW_CODES_CUH
#define MSGL_CUDA_GEMM_FEW_CODES_CUH

#include "cuda/gemm/codes_bits.cuh"
#include "cuda/gemm/experts_codes.cuh"
#include "cuda/ops/vec8.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/shared.cuh"

enum {
    FEW_WARPS = 16,
    FEW_THREADS = FEW_WARPS * 32,
    FEW_ROWS = 8,         // of W, of a step
    FEW_STEP_BYTES = 128, // of a row's codes
    FEW_CODES_BYTES = FEW_ROWS * FEW_STEP_BYTES,
    FEW_GAP = 32,            // bytes behind a half's activations, which keep banks apart
    FEW_NOTHING_BYTES = 128, // in which there are 64 of zeros, in other banks than activations
};

// A kernel's form. SIZE: bytes of a scale; ZEROS: there are zero points.
template <int BITS_, codes_values VALUES_, int SIZE_, bool ZEROS_> struct few_form {
    static constexpr int BITS = BITS_, SIZE = SIZE_;
    static constexpr codes_values VALUES = VALUES_;
    static constexpr bool ZEROS = ZEROS_, INTEGERS = VALUES_ == CODES_INTEGERS;
    static constexpr int COLUMNS = FEW_STEP_BYTES * 8 / BITS, HALF = COLUMNS / 2; // of a step
    static constexpr int HALF_BYTES = HALF * 2 + FEW_GAP;                         // of activations
    // Of a step of all warps in their rings: codes as [warp][row][byte], scales as [warp]
    // [thread of a quad][half][row], zero points likewise.
    static constexpr int SCALES = FEW_WARPS * FEW_CODES_BYTES;
    static constexpr int ZERO_POINTS = SCALES + FEW_WARPS * 64 * SIZE;
    static constexpr int SLOT_BYTES = ZERO_POINTS + (ZEROS ? FEW_WARPS * 64 : 0);
};

// n over a divisor, whose inverse is 2^32 over it, rounded up, or 0 if it is 1: of products of both
// below 2^32.
static __host__ __device__ __forceinline__ uint32_t few_inverse(int divisor)
{
    return divisor == 1 ? 0
                        : (uint32_t)(((1ull << 32) + (uint32_t)divisor - 1) / (uint32_t)divisor);
}
static __device__ __forceinline__ int few_quotient(int n, uint32_t inverse)
{
    const int q = (int)((uint64_t)(uint32_t)n * inverse >> 32);
    return inverse == 0 ? n : q;
}

// --- a warp's ring ------------------------------------------------------------------------------

// Where a thread's parts of the rings' first slot are, from its beginning.
struct few_lane {
    uint32_t to, from; // what it copies of a step's first four rows; what it takes of a first half
    uint32_t place;    // of the scale of what it takes: how many are in front

    // Rows of 128 bytes: odd ones have their halves changed, so that two rows' are in all banks.
    __device__ __forceinline__ few_lane(void)
    {
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane % 4;
        to = warp * FEW_CODES_BYTES + lane / 8 * 128 + (lane % 8 * 16 ^ lane / 8 % 2 * 64);
        from = warp * FEW_CODES_BYTES + lane / 4 * 128 + (quad * 16 ^ lane / 4 % 2 * 64);
        place = warp * 64 + quad * 16 + lane / 4;
        // The compiler would make them of threadIdx in every step; what a shuffle brings it keeps.
        to = __shfl_sync(MSGL_FULL_MASK, to, (int)lane);
        from = __shfl_sync(MSGL_FULL_MASK, from, (int)lane);
        place = __shfl_sync(MSGL_FULL_MASK, place, (int)lane);
    }
};

// A matrix in words of four bytes, as addresses are made of.
typedef struct few_words {
    const uint8_t *w;          // the first expert
    uint32_t stride, row;      // from an expert to the next one; of a row's codes
    uint32_t scales, zeros;    // from an expert's codes to its scales and zero points
    uint32_t next, next_zeros; // from a span's scales to the next one's, and of zero points
    uint32_t used;             // bytes of a row's codes, without what fills them up
    int32_t shift, last;       // column c has scale c >> shift; the last column
} few_words;

template <typename FORM> static few_words few_words_of(const codes_matrix &m)
{
    return {m.w,
            (uint32_t)(m.stride / 4),
            m.row / 4,
            (uint32_t)(m.scales / 4),
            (uint32_t)(m.zeros / 4),
            (uint32_t)(m.n * FORM::SIZE / 4),
            (uint32_t)(m.n / 4),
            m.used,
            m.shift,
            m.k - 1};
}

// What a thread asks for of eight rows. Places are in words of four bytes from the first expert. Of
// scales `LANES` threads copy those of a half for a thread of a quad, four or 16 bytes each.
template <typename FORM> struct few_rows {
    static constexpr int LANES = FORM::SIZE == 2 ? 4 : 2;
    uint32_t codes, scales, zeros; // of the next step; of column 0
    int column, ends;              // of its scales in step 0; steps in which it has codes

    // Rows `first` of the first expert and the seven behind it; then the same of another one.
    __device__ __forceinline__ void begin(const few_words &m, int first, int step)
    {
        const int lane = (int)threadIdx.x % 32, quad = lane / (2 * LANES);
        const int row = first + lane % LANES * (FEW_ROWS / LANES);
        codes = (uint32_t)(first + lane / 8) * m.row +
                (uint32_t)(step * FEW_STEP_BYTES / 4 + lane % 8 * 4);
        scales = m.scales + (uint32_t)(row * FORM::SIZE) / 4;
        zeros = m.zeros + (uint32_t)row / 4;
        column = (FORM::BITS == 4 ? quad : quad / 2) * 32 + lane / LANES % 2 * FORM::HALF;
        ends = (int)(m.used + FEW_STEP_BYTES - 1 - (uint32_t)(lane % 8 * 16)) / FEW_STEP_BYTES;
    }

    __device__ __forceinline__ void of(const few_words &m, int32_t expert)
    {
        const uint32_t w = (uint32_t)expert * m.stride;
        codes += w, scales += w, zeros += w;
    }

    // Asks for the next step, number `step` of the rows', which comes to the slot at `slot`.
    __device__ __forceinline__ void ask(const few_words &m, const few_lane &lane, int step,
                                        uint32_t slot)
    {
        const uint32_t id = threadIdx.x % 32;
        const bool there = step < ends;
        msgl__copy_async_16(slot + lane.to, m.w + (size_t)codes * 4, there);
        msgl__copy_async_16(slot + lane.to + 4 * 128, m.w + (size_t)(codes + 4 * m.row) * 4, there);
        codes += FEW_STEP_BYTES / 4;
        const uint32_t span = (uint32_t)(min(step * FORM::COLUMNS + column, m.last) >> m.shift);
        if (id < 8 * LANES) {
            const uint32_t from = scales + span * m.next;
            // Of threads that copy.
            const uint32_t number = FORM::SIZE == 2 ? threadIdx.x : threadIdx.x / 32 * 16 + id;
            if constexpr (FORM::SIZE == 4) {
                msgl__copy_async_16(slot + FORM::SCALES + number * 16, m.w + (size_t)from * 4,
                                    true);
            } else {
                msgl__copy_async_4(slot + FORM::SCALES + number * 4, m.w + (size_t)from * 4);
            }
        }
        if constexpr (FORM::ZEROS) {
            static_assert(LANES == 4, "two threads' zero points are a copy");
            const uint32_t from = zeros + span * m.next_zeros;
            if (id % 2 == 0) {
                msgl__copy_async_4(slot + FORM::ZERO_POINTS + threadIdx.x * 2,
                                   m.w + (size_t)from * 4);
            }
        }
    }
};

// --- activations --------------------------------------------------------------------------------

static __device__ __forceinline__ uint32_t few_word(const uint4 v, const int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Where few_pairs has pair q of a piece.
template <typename FORM> static __host__ __device__ constexpr int few_order(int q)
{
    return FORM::BITS == 4 && FORM::INTEGERS ? q % 2 * 2 + q / 2 : q;
}

// Rows of activations in shared memory, whole steps each, times what products of codes want: of 32
// columns those that piece 0 of codes has, in its order, then piece 1's and so on. Behind them
// zeros, and the sums of each 32 columns (half of them where two threads have those), over what
// sums of codes are multiplied by.
template <typename FORM> struct few_inputs {
    uint32_t rows, nothing, sums;
    int pitch, eights; // bytes of a row; how many eight columns it has

    __device__ __forceinline__ few_inputs(uint32_t at, int num, int steps)
        : rows(at), pitch(steps * 2 * FORM::HALF_BYTES), eights(steps * FORM::COLUMNS / 8)
    {
        nothing = at + ((uint32_t)(num * pitch) + 127) / 128 * 128 + 16;
        sums = nothing + FEW_NOTHING_BYTES - 16;
        if (threadIdx.x < 16) msgl__write_shared(nothing + threadIdx.x * 4, 0.0f);
    }

    static size_t bytes(int num, int steps)
    {
        const size_t pitch = (size_t)steps * 2 * FORM::HALF_BYTES;
        return ((size_t)num * pitch + 127) / 128 * 128 + FEW_NOTHING_BYTES +
               (size_t)num * (size_t)steps * (FORM::COLUMNS / 32) * 4;
    }
};

// Eight columns of rows of activations on their way to shared memory, two times for each thread.
// All threads call these.
template <typename T, typename FORM> struct few_pieces {
    const T *from[2]; // NULL: zeros, or nothing
    uint4 v[2];

    // Number `first` + threadIdx.x of all rows', and FEW_THREADS further on. inverse: of x.eights.
    __device__ __forceinline__ void find(const few_inputs<FORM> &x, uint32_t inverse, const T *in,
                                         int rows, int k, int first)
    {
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const int i = first + p * FEW_THREADS + (int)threadIdx.x;
            const int row = few_quotient(i, inverse), at = (i - row * x.eights) * 8;
            from[p] = row < rows && at < k ? in + (size_t)row * (size_t)k + at : NULL;
        }
    }

    __device__ __forceinline__ void read(void)
    {
#pragma unroll
        for (int p = 0; p < 2; p++) {
            v[p] = from[p] != NULL ? __ldcg((const uint4 *)from[p]) : make_uint4(0, 0, 0, 0);
        }
    }

    __device__ __forceinline__ void keep(const few_inputs<FORM> &x, uint32_t inverse, int rows,
                                         int first)
    {
        constexpr float BOTH = codes_bits<T>::BOTH / (FORM::BITS == 8 ? 2 : 1);
        const int all = rows * x.eights;
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const int i = first + p * FEW_THREADS + (int)threadIdx.x;
            if (i - (int)threadIdx.x % 32 >= all) break;
            if constexpr (FORM::INTEGERS) {
                float u[8], sum = 0;
                unpack8(v[p], u, T());
#pragma unroll
                for (int j = 0; j < 8; j++) sum += u[j];
                sum += __shfl_xor_sync(MSGL_FULL_MASK, sum, 1);
                sum += __shfl_xor_sync(MSGL_FULL_MASK, sum, 2);
                if (i < all && i % 4 == 0) msgl__write_shared(x.sums + (uint32_t)i, sum * BOTH);
            }
            if (i >= all) break;
            const int row = few_quotient(i, inverse), eight = i - row * x.eights;
            const uint32_t to = x.rows + (uint32_t)(row * x.pitch) +
                                (uint32_t)(eight / (FORM::HALF / 8) * FEW_GAP + eight / 4 * 64 +
                                           few_order<FORM>(eight % 4) * 4);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                uint32_t word = few_word(v[p], j);
                if constexpr (codes_bits<T>::SCALED) {
                    word = msgl__multiply_two(word, codes_bits<T>::IN_PAIR, T());
                }
                msgl__write_shared(to + (uint32_t)(16 * j), __uint_as_float(word));
            }
        }
    }

    // All of them, the first of which are on their way.
    __device__ __forceinline__ void keep_all(const few_inputs<FORM> &x, uint32_t inverse,
                                             const T *in, int rows, int k)
    {
#pragma unroll 1
        for (int first = 0;;) {
            keep(x, inverse, rows, first);
            first += 2 * FEW_THREADS;
            if (first >= rows * x.eights) break;
            find(x, inverse, in, rows, k, first);
            read();
        }
    }
};

// Where a thread reads the activations of its next step, and the sums of its columns.
template <typename FORM> struct few_place {
    uint32_t in, by; // bytes to the next step's, 0 where it reads zeros
    uint32_t sums;

    __device__ __forceinline__ few_place(const few_inputs<FORM> &x, int row, int step)
    {
        const int lane = (int)threadIdx.x % 32, quad = lane % 4, column = lane / 4;
        // Of 8 bits pieces 2 (quad % 2) and the next one of 32 columns.
        const int at = column % 2 * FORM::HALF_BYTES + (FORM::BITS == 4 ? 64 * quad : 32 * quad);
        const int group = FORM::BITS == 4 ? quad : quad / 2;
        const bool some = quad == column / 2;
        by = some ? 2 * FORM::HALF_BYTES : 0;
        in = some ? x.rows + (uint32_t)(row * x.pitch + step * 2 * FORM::HALF_BYTES + at)
                  : x.nothing;
        sums = x.sums + (uint32_t)(row * x.eights + step * (FORM::COLUMNS / 8) + group * 4);
    }

    __device__ __forceinline__ void next(void)
    {
        in += by;
        sums += FORM::COLUMNS / 8;
    }
};

// --- products -----------------------------------------------------------------------------------

// The pairs of piece p of a thread's 16 bytes, in the order in which products take them: two for
// the first one, and two for the second, of 16 times the size if ints of 4 bits.
template <typename T, typename FORM>
static __device__ __forceinline__ void few_pairs(const uint4 codes, const int p, uint32_t pair[4])
{
    const uint32_t word = few_word(codes, FORM::BITS == 4 ? p : 2 * p);
    const uint32_t next = FORM::BITS == 4 ? 0 : few_word(codes, 2 * p + 1);
    if constexpr (FORM::VALUES == CODES_E2M1) {
        codes_bits_e2m1<T>(word, pair);
    } else if constexpr (FORM::VALUES == CODES_E4M3) {
#pragma unroll
        for (int q = 0; q < 4; q++) pair[q] = codes_e4m3_moved<T>(q < 2 ? word : next, q % 2);
    } else if constexpr (FORM::BITS == 4) {
        codes_bits_four(word, pair, pair + 2);
    } else {
        pair[0] = word & 0xff * CODES_ONES, pair[1] = word >> 8 & 0xff * CODES_ONES;
        pair[2] = next & 0xff * CODES_ONES, pair[3] = next >> 8 & 0xff * CODES_ONES;
    }
}

template <typename FORM>
static __device__ __forceinline__ float few_scale(const codes_matrix &m, uint32_t at)
{
    if constexpr (FORM::SIZE == 4) return msgl__read_shared<float>(at);
    const uint32_t bits = msgl__read_shared<uint16_t>(at);
    return m.number == MSGL_NUMBER_F16 ? msgl__codes_row_half(bits)
                                       : msgl__codes_row_float(bits << 16);
}

// Adds a step that has arrived in the slot at `slot`, this thread's columns of its row. zero_point:
// m.zero.
template <typename T, typename FORM>
static __device__ __forceinline__ void few_add(const codes_matrix &m, float zero_point,
                                               const few_lane &lane, uint32_t slot,
                                               const few_place<FORM> &place, float *sum)
{
    constexpr int PIECES = FORM::BITS == 4 ? 4 : 2;
    uint4 x[PIECES];
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        x[p] = msgl__read_shared<uint4>(place.in + (uint32_t)(16 * p));
    }
    const uint4 codes[2] = {msgl__read_shared<uint4>(slot + lane.from),
                            msgl__read_shared<uint4>((slot + lane.from) ^ 64)};
    float d[2][4] = {}; // two, as a product waits for the one that it adds to
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        uint32_t pair[2][4];
        few_pairs<T, FORM>(codes[0], p, pair[0]);
        few_pairs<T, FORM>(codes[1], p, pair[1]);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t a[4] = {pair[0][2 * h], pair[1][2 * h], pair[0][2 * h + 1],
                                   pair[1][2 * h + 1]};
            msgl__mma(d[h], a, few_word(x[p], 2 * h), few_word(x[p], 2 * h + 1), T());
        }
    }
    constexpr float UPPER = FORM::BITS == 4 && FORM::INTEGERS ? 0.0625f : 1;
    float v[2] = {fmaf(d[1][0], UPPER, d[0][0]), fmaf(d[1][3], UPPER, d[0][3])};
    const uint32_t scales = slot + FORM::SCALES + lane.place * FORM::SIZE;
    const uint32_t zeros = slot + FORM::ZERO_POINTS + lane.place;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t at = scales + (uint32_t)(i * FEW_ROWS * FORM::SIZE);
        float scale;
        if constexpr (FORM::VALUES == CODES_E2M1) {
            scale = codes_e8m0_times<codes_bits<T>::E2M1>(msgl__read_shared<uint8_t>(at));
        } else {
            scale = few_scale<FORM>(m, at);
        }
        if constexpr (FORM::INTEGERS) {
            float zero = zero_point;
            if constexpr (FORM::ZEROS) {
                zero += (float)(int8_t)msgl__read_shared<uint8_t>(zeros + (uint32_t)(i * FEW_ROWS));
            }
            const uint32_t in = place.sums + (uint32_t)(i * FORM::HALF / 8);
            v[i] = fmaf(-zero, msgl__read_shared<float>(in), v[i]);
        }
        *sum = fmaf(v[i], scale, *sum);
    }
}

// What all sums are multiplied by at the end.
template <typename T, typename FORM>
static __device__ __forceinline__ float few_factor(const codes_matrix &m)
{
    constexpr int POWER = CODES_BITS_POWER<T, FORM::VALUES>;
    if (FORM::VALUES == CODES_E2M1) return m.factor; // the scales have the rest
    return m.factor * msgl__codes_row_float((127 + POWER) << 23);
}

#endif
