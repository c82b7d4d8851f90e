// SPDX-License-Identifier: Apache-2.0
//
// Grouped products of experts of codes (codes_row.h): what is read from memory is the codes, and
// operands of products are made of them in registers, as codes_sm90.cu does for one weight. It
// needs nothing of Hopper.
//
// A tile is 128 rows of W, the rows of the tensor cores' product, times up to 8, 16 or 32 rows of
// an expert, its columns, so that every code is read once where experts have few rows each. Blocks
// are persistent and two or three stand on a multiprocessor; a block's copies run ahead through a
// ring of stages of 128 bytes of a row, which is never empty between tiles. A warp has 32 rows of
// W, so that what it reads of the activations serves many codes, and half of a stage's columns; the
// halves' sums meet in shared memory. Gate, biases and the order of the results are done in
// registers.
//
// Nothing is rounded but sums: codes are integers or floats that bf16 and f16 have, and a group's
// sum in f32 is multiplied by its scale in f32. docs/decisions/053 has the figures.
#include <type_traits>

#include "cuda/device.cuh"
#include "cuda/gemm/experts_codes.cuh"
#include "cuda/gemm/grouped.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/gate.cuh"
#include "cuda/ops/vec8.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/shared.cuh"

enum {
    WARPS = 8, // four for a tile's rows, twice: each four have half of a stage's columns
    THREADS = WARPS * 32,
    HALF_THREADS = THREADS / 2,
    ROWS = 128,      // of W in a tile
    ROW_BYTES = 128, // of a row's codes in a stage
    CHUNKS = ROW_BYTES / 16,
    AT_ONCE = THREADS / CHUNKS, // rows of a tile that all threads copy at once
    W_BYTES = ROWS * ROW_BYTES,
    PART = 32, // columns that a thread takes at a time
    MAX_STAGES = 8,
    // Rows of an expert on average. Beyond them it is faster to expand once than to read codes
    // again for every 32 rows.
    MOST_AVERAGE = 128,
};

typedef struct coded_args {
    msgl_grouped_args g; // w is not used
    codes_matrix m;
    const float *bias; // [num_experts, n], or NULL
    bool gated;
    expert_gate gate; // where it is gated
} coded_args;

// A kernel's form. SPAN: columns that share a scale, or that are scaled together; SIZE: bytes of a
// scale.
template <int BITS_, int SPAN_, codes_values VALUES_, int SIZE_, bool ZEROS_> struct coded_form {
    static constexpr int BITS = BITS_, SPAN = SPAN_, SIZE = SIZE_;
    static constexpr codes_values VALUES = VALUES_;
    static constexpr bool ZEROS = ZEROS_;                                   // there are zero points
    static constexpr int STEP = ROW_BYTES * 8 / BITS, GROUPS = STEP / SPAN; // columns of a stage
    static constexpr int PARTS = STEP / PART / 2;                           // of a warp
    static constexpr int WORDS = BITS == 8 ? 2 : 1; // of a thread's codes of a part
    // Rows of in: what they have of a stage, so far apart that eight rows' equal pieces are in
    // different banks; and how many all threads copy at once.
    static constexpr int IN_BYTES = STEP * 2, IN_PITCH = IN_BYTES + 16, IN_CHUNKS = IN_BYTES / 16;
    static constexpr int IN_AT_ONCE = THREADS / IN_CHUNKS;
};

// A stage: codes, then activations, scales and zero points. N: rows of in.
template <typename FORM, int N> struct coded_shape {
    static constexpr int IN_AT = W_BYTES, SCALES_AT = IN_AT + N * FORM::IN_PITCH;
    // Of a multiprocessor, and what each may have of its shared memory.
    static constexpr int BLOCKS = N == 8 ? 3 : 2, BLOCK_BYTES = (N == 8 ? 73 : 111) << 10;
    // Sums of the second half's warps.
    static constexpr int SUMS_BYTES = N * ROWS * 4;
    static constexpr int ELEMENTS = FORM::GROUPS * ROWS;
    static constexpr int ZEROS_AT = SCALES_AT + ELEMENTS * FORM::SIZE;
    static constexpr int BYTES = ZEROS_AT + (FORM::ZEROS ? ELEMENTS : 0);
    static constexpr int FIT = (BLOCK_BYTES - SUMS_BYTES) / BYTES;
    static constexpr int STAGES = FIT < MAX_STAGES ? FIT : MAX_STAGES;
    static constexpr int IN_ROWS = (N + FORM::IN_AT_ONCE - 1) / FORM::IN_AT_ONCE; // of a thread
};

static __host__ __device__ __forceinline__ int half_rows(const coded_args &a)
{
    return a.gated ? a.m.n / 2 : a.m.n;
}

// Where 16-byte chunk `chunk` of row r lies: eight rows permute their chunks so that equal ones are
// in different banks.
static __device__ __forceinline__ uint32_t chunk_at(int r, int chunk)
{
    return (uint32_t)(r * ROW_BYTES + ((chunk ^ r % CHUNKS) << 4));
}

// --- loading ------------------------------------------------------------------------------------

// 16 bytes of a stage's scales or zero points that thread `thread` copies: SIZE bytes an element,
// those of a group of all rows of a tile, gated first those of the gate's, next to each other.
template <int SIZE> struct elements {
    int thread, group, row; // row: of the tile's first half or all; group beyond the last: none
    int up;                 // elements from that row's to the up row's, or 0

    __device__ __forceinline__ elements(const coded_args &a, int thread) : thread(thread)
    {
        constexpr int PIECES = SIZE * (ROWS / 16);
        const int at = thread % PIECES * (16 / SIZE), half = a.gated ? ROWS / 2 : ROWS;
        group = thread / PIECES;
        row = at % half;
        up = at >= half ? a.m.n / 2 : 0;
    }
};

// What a block loads next: a stage of a tile. Gated, a tile has eight rows of the gate, the up rows
// of the same outputs, the next eight of the gate ...
template <typename T, typename FORM, int N> struct cursor {
    typedef coded_shape<FORM, N> shape;
    const elements<FORM::SIZE> scales;
    const elements<1> zeros; // by other warps
    int index, step;
    msgl_tile tile;
    int32_t in_row[shape::IN_ROWS]; // this thread's rows of in; -1: none
    const uint8_t *expert;          // its codes
    const uint8_t *w;               // this thread's first row of W and chunk
    int rows;                       // how many rows, AT_ONCE apart in the tile, it copies

    __device__ __forceinline__ cursor(const coded_args &a)
        : scales(a, (int)threadIdx.x), zeros(a, THREADS - 1 - (int)threadIdx.x),
          index((int)blockIdx.x), step(0)
    {
    }

    __device__ __forceinline__ int first_row(const coded_args &a) const
    {
        return tile.column * (a.gated ? ROWS / 2 : ROWS);
    }

    __device__ __forceinline__ void find(const coded_args &a, const int32_t *first_tile, int tiles)
    {
        if (index >= tiles) return;
        tile = msgl__find_tile<N>(a.g, first_tile, index);
        const int r = (int)threadIdx.x / CHUNKS, chunk = (int)threadIdx.x % CHUNKS;
        const bool up = a.gated && r / 8 % 2 == 1;
        const int row = first_row(a) + (a.gated ? r / 16 * 8 + r % 8 : r);
        const int skip = a.gated ? AT_ONCE / 2 : AT_ONCE;
        rows = (half_rows(a) - row + skip - 1) / skip;
        expert = a.m.w + (size_t)tile.expert * a.m.stride;
        w = expert + chunk * 16 + (size_t)(row + (up ? half_rows(a) : 0)) * a.m.row;
#pragma unroll
        for (int i = 0; i < shape::IN_ROWS; i++) {
            const int at = (int)threadIdx.x / FORM::IN_CHUNKS + FORM::IN_AT_ONCE * i,
                      in = tile.row + at;
            const bool there = at < N && in < tile.end;
            in_row[i] = there ? in : -1;
            if (there && a.g.from != NULL) in_row[i] = __ldcg(a.g.from + in) / a.g.from_per;
        }
    }

    __device__ __forceinline__ void next(const coded_args &a, const int32_t *first_tile, int tiles,
                                         int steps)
    {
        w += ROW_BYTES;
        if (++step < steps) return;
        step = 0;
        index += (int)gridDim.x;
        find(a, first_tile, tiles);
    }

    template <int SIZE>
    __device__ __forceinline__ void load_elements(const coded_args &a, const elements<SIZE> &e,
                                                  uint32_t to, size_t from) const
    {
        const int column = step * FORM::STEP + e.group * FORM::SPAN, row = first_row(a) + e.row;
        if (e.group >= FORM::GROUPS) return;
        const uint32_t element = codes_element(a.m, column, row + e.up);
        msgl__copy_async_16(to + (uint32_t)e.thread * 16, expert + from + element * SIZE,
                            column < a.m.k && row < half_rows(a));
    }

    __device__ __forceinline__ void load_w(const coded_args &a, uint32_t stage) const
    {
        constexpr int COPIES = ROWS / AT_ONCE;
        const int r = (int)threadIdx.x / CHUNKS, chunk = (int)threadIdx.x % CHUNKS;
        const bool inside = (uint32_t)(step * ROW_BYTES + chunk * 16) < a.m.used;
        const uint32_t skip = (uint32_t)(a.gated ? AT_ONCE / 2 : AT_ONCE) * a.m.row;
        const uint32_t to = stage + chunk_at(r, chunk);
        const int there = inside ? rows : 0;
        if (there >= COPIES) { // mostly
#pragma unroll
            for (int i = 0; i < COPIES; i++) {
                msgl__copy_async_16_line(to + i * AT_ONCE * ROW_BYTES, w + i * skip, true);
            }
        } else {
#pragma unroll
            for (int i = 0; i < COPIES; i++) {
                msgl__copy_async_16_line(to + i * AT_ONCE * ROW_BYTES, w + i * skip, i < there);
            }
        }
        load_elements(a, scales, stage + shape::SCALES_AT, a.m.scales);
        if constexpr (FORM::ZEROS) load_elements(a, zeros, stage + shape::ZEROS_AT, a.m.zeros);
    }

    __device__ __forceinline__ void load_in(const coded_args &a, uint32_t stage) const
    {
        const int chunk = (int)threadIdx.x % FORM::IN_CHUNKS, k = step * FORM::STEP + chunk * 8;
        const uint32_t to = stage + shape::IN_AT + (uint32_t)chunk * 16;
#pragma unroll
        for (int i = 0; i < shape::IN_ROWS; i++) {
            if (in_row[i] < 0) continue;
            const int at = (int)threadIdx.x / FORM::IN_CHUNKS + FORM::IN_AT_ONCE * i;
            msgl__copy_async_16(to + (uint32_t)(at * FORM::IN_PITCH),
                                (const T *)a.g.in + (size_t)in_row[i] * a.g.ld_in + k, k < a.m.k);
        }
    }
};

// --- multiplying --------------------------------------------------------------------------------

// Where a thread finds what it needs: rows lane / 4 + 8 i of its warp's 32, of its half of a
// stage's columns.
template <typename FORM> struct coded_lane {
    uint32_t codes, in; // of the half's part 0; codes but for the chunk
    int swizzle, element, next_half, next_sixteen;

    __device__ __forceinline__ coded_lane(bool gated)
    {
        const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32 % 4;
        const int row = warp * 32 + lane / 4, half = (int)threadIdx.x / HALF_THREADS;
        codes = (uint32_t)(row * ROW_BYTES);
        // Chunks of the second half differ from the first's in the highest bit.
        swizzle = (row % CHUNKS) ^ (half * CHUNKS / 2);
        in = (uint32_t)(lane % 8 * FORM::IN_PITCH + lane / 8 * 16 + half * FORM::IN_BYTES / 2);
        // Elements lie as the rows do in W: gated first those of the gate's.
        element = (gated ? warp * 16 + lane / 4 : row) + half * (FORM::GROUPS / 2) * ROWS;
        next_half = gated ? ROWS / 2 : 8;
        next_sixteen = gated ? 8 : 16;
    }

    // Of the thread's row 16 mt + 8 h.
    __device__ __forceinline__ int element_of(int mt, int h) const
    {
        return element + mt * next_sixteen + h * next_half;
    }
};

template <typename FORM>
static __device__ __forceinline__ void load_piece(uint32_t stage, const coded_lane<FORM> &lane,
                                                  int p, int row, uint32_t (&to)[FORM::WORDS])
{
    const int t = (int)threadIdx.x % 4;
    // Rows that are 8 apart have the same swizzle.
    const uint32_t at = stage + lane.codes + (uint32_t)(row * ROW_BYTES);
    if constexpr (FORM::BITS == 8) {
        const uint2 v = msgl__read_shared<uint2>(
            at + (uint32_t)(((2 * p + t / 2) ^ lane.swizzle) << 4) + (uint32_t)(t % 2 * 8));
        to[0] = v.x, to[1] = v.y;
    } else {
        to[0] = msgl__read_shared<uint32_t>(at + (uint32_t)((p ^ lane.swizzle) << 4) +
                                            (uint32_t)(t * 4));
    }
}

// Whether scales are on the operand: bf16 has the products of e2m1 with powers of two.
template <typename T, typename FORM>
static constexpr bool SCALED_OPERAND =
    FORM::VALUES == CODES_E2M1 &&std::is_same<T, __nv_bfloat16>::value;

// by: what makes the value of a moved e2m1, or an integer's zero point (codes_pair.cuh).
template <typename T, typename FORM>
static __device__ __forceinline__ uint32_t coded_pair(const uint32_t (&piece)[FORM::WORDS],
                                                      const int q, uint32_t by)
{
    const uint32_t word = piece[FORM::BITS == 8 ? q / 2 : 0];
    if constexpr (SCALED_OPERAND<T, FORM>) return codes_e2m1<T>(word, q, by);
    if constexpr (FORM::VALUES == CODES_E2M1) return codes_e2m1<T>(word, q);
    if constexpr (FORM::VALUES == CODES_E4M3) return codes_e4m3<T>(word, q % 2);
    if constexpr (FORM::BITS == 4) return codes_four<T>(word, q, by);
    return codes_eight<T>(word, q % 2, by);
}

template <typename FORM>
static __device__ __forceinline__ float scale_at(const coded_args &a, uint32_t scales, int element)
{
    const uint32_t at = scales + (uint32_t)(element * FORM::SIZE);
    if constexpr (FORM::VALUES == CODES_E2M1) return codes_e8m0(msgl__read_shared<uint8_t>(at));
    if constexpr (FORM::SIZE == 4) return msgl__read_shared<float>(at);
    const uint32_t bits = msgl__read_shared<uint16_t>(at);
    const float f16 = msgl__codes_row_half(bits), bf16 = msgl__codes_row_float(bits << 16);
    return a.m.number == MSGL_NUMBER_F16 ? f16 : bf16;
}

// A stage that has arrived: acc += W in^T over the half's columns, for the tile's first 8 J rows of
// in.
template <typename T, typename FORM, int N, int J>
static __device__ __forceinline__ void multiply(const coded_args &a, const coded_lane<FORM> &lane,
                                                uint32_t stage, float (&acc)[2][N / 8][4])
{
    typedef coded_shape<FORM, N> shape;
    constexpr int PER_GROUP = FORM::SPAN / PART < FORM::PARTS ? FORM::SPAN / PART : FORM::PARTS;
    constexpr bool SCALED = SCALED_OPERAND<T, FORM>;
    float sum[2][SCALED ? 1 : J][4];
    uint32_t by[2][2] = {};
#pragma unroll
    for (int p = 0; p < FORM::PARTS; p++) {
        const int group = p / PER_GROUP;
        const uint32_t scales = stage + shape::SCALES_AT + (uint32_t)(group * ROWS * FORM::SIZE);
        uint32_t piece[2][2][FORM::WORDS], b[J][4];
#pragma unroll
        for (int i = 0; i < 4; i++) load_piece(stage, lane, p, 8 * i, piece[i / 2][i % 2]);
#pragma unroll
        for (int j = 0; j < J; j++) {
            msgl__load_matrix_4(stage + shape::IN_AT + lane.in +
                                    (uint32_t)(j * 8 * FORM::IN_PITCH + p * PART * 2),
                                b[j]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int element = lane.element_of(i / 2, i % 2);
            if (p % PER_GROUP > 0) break;
            if constexpr (SCALED) {
                by[i / 2][i % 2] =
                    codes_e8m0_scale(msgl__read_shared<uint8_t>(scales + (uint32_t)element));
            } else if constexpr (FORM::ZEROS) {
                const uint32_t zeros = stage + shape::ZEROS_AT + (uint32_t)(group * ROWS);
                const int zero = (int8_t)msgl__read_shared<uint8_t>(zeros + (uint32_t)element);
                by[i / 2][i % 2] = codes_zero<T, FORM::BITS>(a.m.zero + zero);
            } else if constexpr (FORM::VALUES == CODES_INTEGERS) {
                by[i / 2][i % 2] = codes_zero<T, FORM::BITS>(a.m.zero);
            }
        }
        if constexpr (!SCALED) {
            if (p % PER_GROUP == 0) {
#pragma unroll
                for (int i = 0; i < 8 * J; i++) sum[i / (4 * J)][i / 4 % J][i % 4] = 0;
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int mt = 0; mt < 2; mt++) {
                uint32_t w[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    w[i] = coded_pair<T, FORM>(piece[mt][i % 2], 2 * half + i / 2, by[mt][i % 2]);
                }
#pragma unroll
                for (int j = 0; j < J; j++) {
                    msgl__mma(SCALED ? acc[mt][j] : sum[mt][SCALED ? 0 : j], w, b[j][2 * half],
                              b[j][2 * half + 1], T());
                }
            }
        }
        if constexpr (!SCALED) {
            if ((p + 1) % PER_GROUP > 0) continue;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int mt = i / 2, h = i % 2;
                const float scale = scale_at<FORM>(a, scales, lane.element_of(mt, h));
#pragma unroll
                for (int j = 0; j < J; j++) {
                    float *const to = acc[mt][j] + 2 * h;
                    to[0] = fmaf(scale, sum[mt][j][2 * h], to[0]);
                    to[1] = fmaf(scale, sum[mt][j][2 * h + 1], to[1]);
                }
            }
        }
    }
}

// A thread has of its row lane / 4 of a warp's 16, and of the eighth behind it, the sums of rows of
// in 8 j + 2 (lane % 4) and the next one.
template <typename T, int N>
static __device__ __forceinline__ void store(const coded_args &a, const msgl_tile &t,
                                             const float (&acc)[2][N / 8][4])
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32 % 4;
    const int limit = half_rows(a);
    const float *const bias = a.bias != NULL ? a.bias + (size_t)t.expert * (size_t)a.m.n : NULL;
    float added[2][2] = {};
    int feature[2][2];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int mt = i / 2, h = i % 2;
        const int row = a.gated ? t.column * (ROWS / 2) + (warp * 2 + mt) * 8 + lane / 4
                                : t.column * ROWS + warp * 32 + mt * 16 + h * 8 + lane / 4;
        feature[mt][h] = row;
        if (bias != NULL && row < limit) added[mt][h] = bias[a.gated && h == 1 ? limit + row : row];
    }
#pragma unroll
    for (int i = 0; i < N / 4; i++) { // of both rows' sums
        const int j = i / 2, c = i % 2, row = t.row + 8 * j + lane % 4 * 2 + c;
        if (row >= t.end) continue;
        T *const out = (T *)a.g.out + (size_t)(a.g.to != NULL ? a.g.to[row] : row) * a.g.ld_out;
#pragma unroll
        for (int mt = 0; mt < 2; mt++) {
            const float v = acc[mt][j][c] * a.m.factor + added[mt][0];
            const float u = acc[mt][j][2 + c] * a.m.factor + added[mt][1];
            if (a.gated) {
                const float gate = gated_expert(a.gate, v, u);
                if (feature[mt][0] < limit) out[feature[mt][0]] = from_f32<T>(gate);
            } else {
                if (feature[mt][0] < limit) out[feature[mt][0]] = from_f32<T>(v);
                if (feature[mt][1] < limit) out[feature[mt][1]] = from_f32<T>(u);
            }
        }
    }
}

// Adds the second half's sums to the first's; a barrier must follow before the next tile's.
template <int N>
static __device__ __forceinline__ void add_halves(float *sums, float (&acc)[2][N / 8][4])
{
    float *const own = sums + threadIdx.x % HALF_THREADS;
    const bool second = threadIdx.x >= HALF_THREADS;
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (second) own[i * HALF_THREADS] = acc[i / (N / 2)][i / 4 % (N / 8)][i % 4];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (!second) acc[i / (N / 2)][i / 4 % (N / 8)][i % 4] += own[i * HALF_THREADS];
    }
}

// By as few products as the tile's rows take: J of eight rows each.
template <typename T, typename FORM, int N>
static __device__ __forceinline__ void multiply_rows(const coded_args &a,
                                                     const coded_lane<FORM> &lane, uint32_t stage,
                                                     int rows, float (&acc)[2][N / 8][4])
{
    if (N > 16 && rows > 16) {
        multiply<T, FORM, N, N / 8>(a, lane, stage, acc);
    } else if (N > 8 && rows > 8) {
        multiply<T, FORM, N, (N > 8 ? 2 : 1)>(a, lane, stage, acc);
    } else {
        multiply<T, FORM, N, 1>(a, lane, stage, acc);
    }
}

template <typename T, typename FORM, int N>
static __global__ void __launch_bounds__(THREADS, (coded_shape<FORM, N>::BLOCKS))
    grouped_codes(const __grid_constant__ coded_args a)
{
    typedef coded_shape<FORM, N> shape;
    constexpr int STAGES = shape::STAGES;
    extern __shared__ __align__(128) unsigned char coded_shared[];
    const uint32_t stages = msgl__shared_address(coded_shared);
    float *const sums = (float *)(coded_shared + STAGES * (uint32_t)shape::BYTES);
    int32_t *const first = (int32_t *)((char *)sums + shape::SUMS_BYTES);
    if (!a.g.inputs_ready) msgl__pdl_wait();
    msgl__count_tiles<N>(a.g, first);
    const int tiles = first[a.g.num_experts] * a.g.column_tiles,
              steps = (a.m.k + FORM::STEP - 1) / FORM::STEP;
    const coded_lane<FORM> lane(a.gated);
    cursor<T, FORM, N> load(a), begin(a);
    load.find(a, first, tiles);
    begin.find(a, first, tiles);
    // Codes do not wait for the kernel in front.
#pragma unroll 1
    for (int s = 0; s < STAGES - 1; s++) {
        if (load.index < tiles) load.load_w(a, stages + (uint32_t)s * (uint32_t)shape::BYTES);
        if (load.index < tiles) load.next(a, first, tiles, steps);
    }
    msgl__pdl_wait();
    msgl__pdl_trigger(); // behind the wait: see msgl_grouped_call.inputs_ready
#pragma unroll 1
    for (int s = 0; s < STAGES - 1; s++) {
        if (begin.index < tiles) begin.load_in(a, stages + (uint32_t)s * (uint32_t)shape::BYTES);
        if (begin.index < tiles) begin.next(a, first, tiles, steps);
        msgl__copy_async_commit();
    }
    int slot = 0;
#pragma unroll 1
    for (int index = (int)blockIdx.x; index < tiles; index += (int)gridDim.x) {
        const msgl_tile t = msgl__find_tile<N>(a.g, first, index);
        float acc[2][N / 8][4] = {};
#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            msgl__copy_async_wait<STAGES - 2>();
            __syncthreads(); // the stage has arrived, and all have left the one that is loaded now
            if (load.index < tiles) {
                const int free = slot == 0 ? STAGES - 1 : slot - 1;
                load.load_w(a, stages + (uint32_t)free * (uint32_t)shape::BYTES);
                load.load_in(a, stages + (uint32_t)free * (uint32_t)shape::BYTES);
                load.next(a, first, tiles, steps);
            }
            msgl__copy_async_commit();
            multiply_rows<T, FORM, N>(a, lane, stages + (uint32_t)slot * (uint32_t)shape::BYTES,
                                      t.end - t.row, acc);
            slot = slot + 1 == STAGES ? 0 : slot + 1;
        }
        add_halves<N>(sums, acc);
        if (threadIdx.x < HALF_THREADS) store<T, N>(a, t, acc);
    }
    msgl__copy_async_wait<0>();
}

// --- host ---------------------------------------------------------------------------------------

template <typename T, typename FORM, int N>
static bool launch(msgl_exec *x, coded_args a, int32_t rows)
{
    typedef coded_shape<FORM, N> shape;
    if (SCALED_OPERAND<T, FORM>) a.m.factor *= (float)(1 << CODES_E8M0_BIAS);
    const msgl_cuda_device *d = msgl__cuda_device(x);
    const int per = a.gated ? ROWS / 2 : ROWS, columns = half_rows(a);
    a.g.column_tiles = (columns + per - 1) / per;
    // Every expert may have a tile that is not full.
    int64_t tiles = rows / N + (rows < a.g.num_experts ? rows : a.g.num_experts);
    tiles *= a.g.column_tiles;
    const int64_t most = (int64_t)shape::BLOCKS * d->sm_count;
    const dim3 grid((unsigned)(tiles < most ? tiles : most));
    const size_t bytes = (size_t)(shape::STAGES * shape::BYTES + shape::SUMS_BYTES) +
                         msgl__tiles_bytes(a.g.num_experts);
    constexpr auto kernel = grouped_codes<T, FORM, N>;
    MSGL_CUDA_TRY(x, msgl__allow_shared<kernel>(bytes, true));
    MSGL_CUDA_TRY(x, msgl__launch(kernel, grid, dim3(THREADS), bytes, d->stream, a));
    return true;
}

// Widths by the average number of rows per expert that has some.
template <typename T, typename FORM>
static bool launch_width(msgl_exec *x, const coded_args &a, int32_t rows)
{
    const int32_t average = rows / a.g.num_experts;
    if (average <= 4) return launch<T, FORM, 8>(x, a, rows);
    if (average <= 8) return launch<T, FORM, 16>(x, a, rows);
    return launch<T, FORM, 32>(x, a, rows);
}

template <typename T, int SPAN>
static bool launch_four(msgl_exec *x, const coded_args &a, int32_t rows)
{
    return a.m.has_zeros
               ? launch_width<T, coded_form<4, SPAN, CODES_INTEGERS, 2, true>>(x, a, rows)
               : launch_width<T, coded_form<4, SPAN, CODES_INTEGERS, 2, false>>(x, a, rows);
}

template <typename T, codes_values VALUES>
static bool launch_eight(msgl_exec *x, const coded_args &a, int32_t rows)
{
    return a.m.number == MSGL_NUMBER_F32
               ? launch_width<T, coded_form<8, 128, VALUES, 4, false>>(x, a, rows)
               : launch_width<T, coded_form<8, 128, VALUES, 2, false>>(x, a, rows);
}

template <typename T> static bool launch_form(msgl_exec *x, const coded_args &a, int32_t rows)
{
    const int shift = a.m.shift;
    if (a.m.values == CODES_E2M1) {
        return launch_width<T, coded_form<4, 32, CODES_E2M1, 1, false>>(x, a, rows);
    }
    if (a.m.bits == 4) {
        return shift >= 7   ? launch_four<T, 128>(x, a, rows)
               : shift == 6 ? launch_four<T, 64>(x, a, rows)
                            : launch_four<T, 32>(x, a, rows);
    }
    if (shift < 7) {
        return a.m.values == CODES_INTEGERS && a.m.number != MSGL_NUMBER_F32 &&
               launch_width<T, coded_form<8, 32, CODES_INTEGERS, 2, false>>(x, a, rows);
    }
    return a.m.values == CODES_E4M3 ? launch_eight<T, CODES_E4M3>(x, a, rows)
                                    : launch_eight<T, CODES_INTEGERS>(x, a, rows);
}

bool msgl__cuda_grouped_codes(msgl_exec *x, const msgl_grouped_call *c)
{
    coded_args a = {};
    if (x->act == MSGL_F32 || msgl__cuda_device(x)->deterministic ||
        c->num_experts > MSGL_MOST_EXPERTS || c->rows / c->num_experts > MOST_AVERAGE ||
        (c->gated && (is_gelu(c->activation) || c->experts[0].n % 32 != 0)) ||
        ((uintptr_t)c->in | c->ld_in * 2) % 16 != 0 ||
        !msgl__codes_matrix_of(c->experts, c->num_experts, &a.m)) {
        return false;
    }
    a.g.n = a.m.n;
    a.g.k = a.m.k;
    a.g.num_experts = c->num_experts;
    a.g.offsets = c->offsets;
    a.g.in = c->in;
    a.g.ld_in = c->ld_in;
    a.g.from = c->from;
    a.g.from_per = c->from_per;
    a.g.out = c->out;
    a.g.ld_out = c->ld_out;
    a.g.to = c->to;
    a.g.inputs_ready = c->inputs_ready;
    a.bias = c->bias;
    a.gated = c->gated;
    a.gate = expert_gate_of(c->activation);
    return x->act == MSGL_F16 ? launch_form<__half>(x, a, c->rows)
                              : launch_form<__nv_bfloat16>(x, a, c->rows);
}
