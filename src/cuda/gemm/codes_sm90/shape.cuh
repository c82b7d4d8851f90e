// SPDX-License-Identifier: Apache-2.0
//
// What the kernel of codes_sm90.cu is made of: its tiles, what of a stage lies where, and what a
// thread reads of it.
#ifndef MSGL_CUDA_GEMM_CODES_SM90_SHAPE_CUH
#define MSGL_CUDA_GEMM_CODES_SM90_SHAPE_CUH

#include "cuda/gemm/codes_sm90/call.cuh"
#include "cuda/gemm/codes_sm90/raw.cuh"
#include "cuda/gemm/stage.cuh"
#include "cuda/gemm/turns.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/mma.cuh"

enum {
    CODES_GROUPS = 2, // warpgroups that multiply, 64 rows of W each
    CODES_WORKERS = CODES_GROUPS * GROUP,
    CODES_WARPS = CODES_WORKERS / 32,
    CODES_MAX_STAGES = 8,
};

template <typename FORM, int N> struct codes_shape {
    static constexpr int STEPS = codes_stage_steps(N, FORM::BITS); // of a stage
    // What a step has of a stage: tiles of the codes' planes, 64 columns of the activations.
    static constexpr int LOW_BYTES = CODES_ROWS * FORM::LOW_BYTES;
    static constexpr int HIGH_BYTES = CODES_ROWS * FORM::HIGH_BYTES;
    static constexpr int HALF_BYTES = N * ROW_BYTES;
    static constexpr int HIGH_AT = STEPS * LOW_BYTES, IN_AT = HIGH_AT + STEPS * HIGH_BYTES;
    static constexpr int SCALES_AT = IN_AT + STEPS * 2 * HALF_BYTES;
    static constexpr int SCALES_ROWS = STEPS * CODES_ROWS; // an element of each step
    static constexpr int SCALES_BYTES = FORM::array_at(FORM::ARRAYS, SCALES_ROWS);
    static constexpr bool BY_WARP = N <= CODES_FEW;
    // Beside the warpgroups that multiply there is one more: a warp of it loads, some make
    // activations ready (prepare.cuh), and the rest compute the rows' factors.
    static constexpr int PREPARERS = FORM::OFFSET || (BY_WARP && raw_integers<FORM>()) ? 2 : 0;
    static constexpr int REST = 3 - PREPARERS, THREADS = CODES_WORKERS + GROUP;
    // The sums of each group's activations: [STEPS * GROUPS, N] floats.
    static constexpr int SUMS_AT = SCALES_AT + SCALES_BYTES;
    static constexpr int SUMS_BYTES = PREPARERS > 0 ? STEPS *FORM::GROUPS *N * 4 : 0;
    static constexpr int STAGE_BYTES = (SUMS_AT + SUMS_BYTES + 1023) / 1024 * 1024;
    // What a warpgroup hands over to itself in rows of out at a time.
    static constexpr int CHUNK = N < 16 ? N : 16, PITCH = 64 + 4;
    static constexpr int CHUNK_BYTES = CHUNK * PITCH * 4;
    // A factor for each row of in, beside.
    static constexpr int FACTORS_BYTES = (BY_WARP ? (int)CODES_FEW : (int)MSGL_CODES_SM90_ROWS) * 4;
    static constexpr int SMALL_BYTES =
        CODES_GROUPS * CHUNK_BYTES + FACTORS_BYTES + CODES_MAX_STAGES * 24 + 1024; // and alignment
    // Blocks of a multiprocessor that work, and that have room: of few rows the next kernel's load
    // theirs while these finish.
    static constexpr int PER_SM = 1;
    static constexpr int BLOCKS = BY_WARP ? 2 : 1;
    // Of a thread of the two warpgroups that multiply, and of the third one, which gives some away.
    static constexpr int REGISTERS = BLOCKS == 1 ? 224 : N == 8 ? 88 : 96;
    static constexpr int LOADER_REGISTERS = BLOCKS == 1 ? 56 : N == 8 ? 64 : 48;
    static constexpr int ROOM = BLOCKS == 2 ? (int)MSGL_TURN_SMALL : 226 << 10; // turns.cuh
    static constexpr int FIT = (ROOM - SMALL_BYTES) / STAGE_BYTES;
    static constexpr int STAGES = FIT < CODES_MAX_STAGES ? FIT : CODES_MAX_STAGES;
    static constexpr int SHARED_BYTES = STAGES * STAGE_BYTES + SMALL_BYTES;
    static constexpr int SUMS = N / 2; // of a thread
    // Blocks of a cluster have tiles of rows next to each other. Each loads a part of the
    // activations for all, which the L2 would not bring often enough.
    static constexpr int CLUSTER = BY_WARP ? 1 : 2;
};

// --- a step --------------------------------------------------------------------------------------

// Where a step of a stage lies.
template <typename FORM, int N> struct codes_place {
    uint32_t low, high, in, scales, sums;
    int step; // of the stage

    __device__ __forceinline__ codes_place(uint32_t stage, int i)
    {
        typedef codes_shape<FORM, N> shape;
        low = stage + (uint32_t)(i * shape::LOW_BYTES);
        high = stage + (uint32_t)(shape::HIGH_AT + i * shape::HIGH_BYTES);
        in = stage + (uint32_t)(shape::IN_AT + i * 2 * shape::HALF_BYTES);
        scales = stage + shape::SCALES_AT;
        sums = stage + (uint32_t)(shape::SUMS_AT + i * FORM::GROUPS * N * 4);
        step = i;
    }
};

// Where a thread finds there what it needs of its two rows of the tile: a row of its warp's 16 and
// the eighth behind it.
template <typename FORM, int N> struct codes_lane {
    uint32_t low[CODES_PARTS], high[CODES_PARTS]; // its pieces of the first row
    uint32_t in[2];                               // rows of in, as msgl__load_matrix_4 wants them
    int scales[2];                                // the rows' places among scales
    uint32_t sums;                                // its columns among sums of activations

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
            const int chunk = (4 * i + raw_order<FORM>(lane / 8)) ^ lane % 8;
            in[i] = (uint32_t)(lane % 8 * ROW_BYTES + chunk * 16);
        }
        // Scales lie as the rows do in W: of a gated tile first those of the gate's 64.
        scales[0] = gated ? row / 16 * 8 + row % 8 : row;
        scales[1] = scales[0] + (gated ? CODES_ROWS / 2 : 8);
        sums = (uint32_t)(lane % 4 * 2) * 4;
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
        if constexpr (codes_shape<FORM, N>::BY_WARP) {
            asm volatile("" : "+r"(in[0]), "+r"(in[1]), "+r"(sums));
        }
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

    // ZEROS: with zero points of one level, if the form has them.
    template <bool ZEROS>
    __device__ __forceinline__ void load_scales(const codes_args &g, const msgl_codes_row &l,
                                                const codes_lane<FORM, N> &lane,
                                                const codes_place<FORM, N> &at)
    {
        constexpr int STEPS = codes_shape<FORM, N>::STEPS;
        scales[0].template load<STEPS, ZEROS>(l, g.shift, at.scales, at.step, lane.scales[0]);
        scales[1].template load<STEPS, ZEROS>(l, g.shift, at.scales, at.step, lane.scales[1]);
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
                                          const codes_lane<FORM, N> &lane,
                                          const codes_place<FORM, N> &at, const float (&sum)[N / 2],
                                          float (&acc)[N / 2]) const
    {
        const float scale[2] = {group_scale<FORM>(l, g.factor, scales[0], group),
                                group_scale<FORM>(l, g.factor, scales[1], group)};
#pragma unroll
        for (int i = 0; i < N / 2; i++) acc[i] = fmaf(scale[i / 2 % 2], sum[i], acc[i]);
        if constexpr (FORM::OFFSET) {
            const float offset[2] = {group_offset<FORM>(l, scales[0], group, scale[0]),
                                     group_offset<FORM>(l, scales[1], group, scale[1])};
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                const float2 in = msgl__read_shared<float2>(at.sums + lane.sums +
                                                            (uint32_t)((group * N + j * 8) * 4));
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    acc[4 * j + 2 * i] = fmaf(offset[i], in.x, acc[4 * j + 2 * i]);
                    acc[4 * j + 2 * i + 1] = fmaf(offset[i], in.y, acc[4 * j + 2 * i + 1]);
                }
            }
        }
    }
};

// With a third barrier for what activations need (prepare.cuh): ready.
struct codes_ring : ring {
    uint32_t ready;
};

// The loaders of all blocks may fill this slot as far as this warp is concerned.
template <int CLUSTER> static __device__ __forceinline__ void release(const ring &r, int slot)
{
    const int lane = threadIdx.x % 32;
    if (CLUSTER == 1 && lane == 0) msgl__mbarrier_arrive(r.empty + slot * 8);
    if (CLUSTER > 1 && lane < CLUSTER) {
        msgl__mbarrier_arrive_at(r.empty + slot * 8, (uint32_t)lane);
    }
}

#endif
