// SPDX-License-Identifier: Apache-2.0
//
// How the recurrences of ssm.cu and delta/any.cu hold a state. A block has 64 columns of a head's S
// of a request; a warp has 16 of them, all rows, in registers from the first token to the last:
// columns do not need each other, so that a state is read once and written once for each place
// where it is kept. Four lanes have a row, four columns each; thread t of a warp has the rows
// t / 4 + 8 i: lane 9 rows 2, 10, 18, ...
//
// Values of rows (b and c; q and k) are laid out in shared memory by the threads that read them,
// the rows of t / 4 behind each other with four elements between groups, so that eight groups'
// reads of 16 bytes meet no bank twice.
#ifndef MSGL_CUDA_STATES_RECUR_CUH
#define MSGL_CUDA_STATES_RECUR_CUH

#include "cuda/states/args.cuh"

enum {
    RECUR_THREADS = 128,
    RECUR_WARPS = RECUR_THREADS / 32,
    RECUR_COLUMNS = 64, // of a block
    RECUR_GROUPS = 8,   // rows that a warp has side by side
};

// ROWS of a thread: of S up to 8 ROWS.
template <int ROWS> struct recur_shape {
    static const int STRIDE = ROWS + 4;              // of a group's values
    static const int MOST = RECUR_GROUPS * ROWS;     // rows
    static const int SPREAD = RECUR_GROUPS * STRIDE; // elements that they take
    // Where the value of row d is.
    static __device__ __forceinline__ int at(int d)
    {
        return d % RECUR_GROUPS * STRIDE + d / RECUR_GROUPS;
    }
};

// What a thread works on.
struct recur_thread {
    int head, part;    // part: 64 columns of a head
    int group, column; // column: of the head's
    bool active;       // its warp's columns are there
    __device__ __forceinline__ recur_thread(int parts, int columns)
    {
        const int lane = (int)threadIdx.x % 32;
        head = (int)blockIdx.x / parts, part = (int)blockIdx.x % parts;
        group = lane / 4;
        const int first = part * RECUR_COLUMNS + (int)threadIdx.x / 32 * 16;
        column = first + lane % 4 * 4;
        active = first < columns;
    }
    // The first of its columns, of the block's.
    __device__ __forceinline__ int own() const
    {
        return column - part * RECUR_COLUMNS;
    }
    // Of its columns the one whose results it has: groups 0 and 1 the first, 2 and 3 the second.
    __device__ __forceinline__ int apart() const
    {
        return group / 2;
    }
};

// A thread's part of S, [rows, ld]; rows that are not there are zeros.
template <int ROWS> struct recur_state {
    float4 rows[ROWS];

    // matrix NULL: zeros.
    __device__ __forceinline__ void load(const float *matrix, const recur_thread &me, int height,
                                         int ld)
    {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int row = me.group + RECUR_GROUPS * i;
            rows[i] = matrix != NULL && row < height
                          ? *(const float4 *)(matrix + (size_t)row * ld + me.column)
                          : make_float4(0, 0, 0, 0);
        }
    }
    __device__ __forceinline__ void store(float *matrix, const recur_thread &me, int height,
                                          int ld) const
    {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int row = me.group + RECUR_GROUPS * i;
            if (row < height) *(float4 *)(matrix + (size_t)row * ld + me.column) = rows[i];
        }
    }
};

// Sum over all rows, in every thread of a column.
static __device__ __forceinline__ float4 sum_rows(float4 v)
{
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
        v.x += __shfl_xor_sync(MSGL_FULL_MASK, v.x, step);
        v.y += __shfl_xor_sync(MSGL_FULL_MASK, v.y, step);
        v.z += __shfl_xor_sync(MSGL_FULL_MASK, v.z, step);
        v.w += __shfl_xor_sync(MSGL_FULL_MASK, v.w, step);
    }
    return v;
}

// The same of one of the four columns, which is recur_thread::apart(): every step halves what is
// left to be added, so that it takes a third of the exchanges.
static __device__ __forceinline__ float sum_rows_apart(float4 v, const recur_thread &me)
{
    const bool high = (me.group & 4) != 0, odd = (me.group & 2) != 0;
    const float a = __shfl_xor_sync(MSGL_FULL_MASK, high ? v.x : v.z, 16) + (high ? v.z : v.x);
    const float b = __shfl_xor_sync(MSGL_FULL_MASK, high ? v.y : v.w, 16) + (high ? v.w : v.y);
    const float c = __shfl_xor_sync(MSGL_FULL_MASK, odd ? a : b, 8) + (odd ? b : a);
    return __shfl_xor_sync(MSGL_FULL_MASK, c, 4) + c;
}

// The thread's of the warp's 16 elements of a row of results; row: the head's first element.
template <typename T>
static __device__ __forceinline__ void store_result(T *row, const recur_thread &me, float v)
{
    if (me.group % 2 == 0) row[me.column + me.apart()] = from_f32<T>(v);
}

// Zeros for a request that is padding.
template <typename T>
static __device__ __forceinline__ void clear_results(T *out, size_t ld, const states_request &q,
                                                     const recur_thread &me)
{
    for (int t = 0; me.active && t < q.tokens; t++) {
        store_result(out + (size_t)(q.row + t) * ld, me, 0.f);
    }
}

#endif
