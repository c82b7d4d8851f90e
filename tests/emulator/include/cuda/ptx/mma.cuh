// SPDX-License-Identifier: Apache-2.0
//
// Instead of src/cuda/ptx/mma.cuh: which lane and register has which element of a matrix is
// what the PTX ISA says ("Matrix Fragments for mma.m16n8k16", "ldmatrix", "movmatrix").
#ifndef MSGL_KERNEL_CUDA_PTX_MMA_CUH
#define MSGL_KERNEL_CUDA_PTX_MMA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/ptx/shared.cuh"

static inline float emulator_half(uint32_t two, int i, __nv_bfloat16)
{
    return msgl__bf16_to_f32((uint16_t)(two >> 16 * i));
}

static inline float emulator_half(uint32_t two, int i, __half)
{
    return msgl__f16_to_f32((uint16_t)(two >> 16 * i));
}

// Row r and column k of A are in lane r % 8 * 4 + k % 8 / 2, register r / 8 + k / 8 * 2, half k %
// 2; row k and column n of B in lane n * 4 + k % 8 / 2, register k / 8, half k % 2; D as A's first
// columns.
template <typename T>
static inline void msgl__mma(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, T type)
{
    const uint32_t halves[6] = {a[0], a[1], a[2], a[3], b0, b1};
    uint32_t mine[12]; // as f32, which lanes then need not convert for each other
    for (int i = 0; i < 12; i++) {
        mine[i] = __float_as_uint(emulator_half(halves[i / 2], i % 2, type));
    }
    const auto all = emulator_exchange("mma", mine, 12);
    const int lane = (int)threadIdx.x % 32;
    for (int i = 0; i < 4; i++) {
        const int r = lane / 4 + i / 2 * 8, n = lane % 4 * 2 + i % 2;
        for (int k = 0; k < 16; k++) {
            const uint32_t *x = all[r % 8 * 4 + k % 8 / 2], *y = all[n * 4 + k % 8 / 2];
            d[i] += __uint_as_float(x[(r / 8 + k / 8 * 2) * 2 + k % 2]) *
                    __uint_as_float(y[(4 + k / 8) * 2 + k % 2]);
        }
    }
}

static inline uint32_t msgl__pack_two(float lo, float hi, __nv_bfloat16)
{
    return msgl__f32_to_bf16(lo) | (uint32_t)msgl__f32_to_bf16(hi) << 16;
}

static inline uint32_t msgl__pack_two(float lo, float hi, __half)
{
    return msgl__f32_to_f16(lo) | (uint32_t)msgl__f32_to_f16(hi) << 16;
}

template <typename T> static inline float2 msgl__unpack_two(uint32_t v, T type)
{
    return make_float2(emulator_half(v, 0, type), emulator_half(v, 1, type));
}

// Lane 8 m + i has the address of row i of matrix m; lane l gets elements 2 (l % 4) and the next
// one of row l / 4, or of that column.
static inline void emulator_load_matrix_4(uint32_t address, bool transposed, uint32_t r[4])
{
    if (address % 16 != 0) emulator_fail("ldmatrix is not aligned", __FILE__);
    const auto all = emulator_exchange("ldmatrix", &address, 1);
    const int lane = (int)threadIdx.x % 32;
    for (int m = 0; m < 4; m++) {
        r[m] = 0;
        for (int i = 0; i < 2; i++) {
            const int a = lane / 4, b = lane % 4 * 2 + i;
            const int row = transposed ? b : a, column = transposed ? a : b;
            uint16_t v;
            memcpy(&v, emulator_shared(all[m * 8 + row][0]) + column * 2, 2);
            r[m] |= (uint32_t)v << 16 * i;
        }
    }
}

static inline void msgl__load_matrix_4(uint32_t address, uint32_t r[4])
{
    emulator_load_matrix_4(address, false, r);
}

static inline void msgl__load_matrix_4_transposed(uint32_t address, uint32_t r[4])
{
    emulator_load_matrix_4(address, true, r);
}

static inline uint32_t msgl__transpose_8(uint32_t v)
{
    const auto all = emulator_exchange("movmatrix", &v, 1);
    const int lane = (int)threadIdx.x % 32;
    uint32_t r = 0;
    for (int i = 0; i < 2; i++) {
        const int row = lane % 4 * 2 + i, column = lane / 4;
        r |= (all[row * 4 + column / 2][0] >> column % 2 * 16 & 0xffffu) << 16 * i;
    }
    return r;
}

#endif
