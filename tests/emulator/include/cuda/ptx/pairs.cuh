// SPDX-License-Identifier: Apache-2.0
//
// Instead of src/cuda/ptx/pairs.cuh.
#ifndef MSGL_KERNEL_CUDA_PTX_PAIRS_CUH
#define MSGL_KERNEL_CUDA_PTX_PAIRS_CUH

#include "cuda/ptx/mma.cuh"

template <uint32_t MASK> static inline uint32_t msgl__mask_or(uint32_t a, uint32_t b)
{
    return (a & MASK) | b;
}

template <uint32_t MASK> static inline uint32_t msgl__mask_xor(uint32_t a, uint32_t b)
{
    return (a & MASK) ^ b;
}

template <typename T> static inline uint32_t msgl__subtract_two(uint32_t a, uint32_t b, T type)
{
    return msgl__pack_two(emulator_half(a, 0, type) - emulator_half(b, 0, type),
                          emulator_half(a, 1, type) - emulator_half(b, 1, type), type);
}

template <typename T> static inline uint32_t msgl__multiply_two(uint32_t a, uint32_t b, T type)
{
    return msgl__pack_two(emulator_half(a, 0, type) * emulator_half(b, 0, type),
                          emulator_half(a, 1, type) * emulator_half(b, 1, type), type);
}

#endif
