// SPDX-License-Identifier: Apache-2.0
//
// What the products of *_sm90.cu share: their tiles come through a ring of stages in shared memory,
// of 64 columns of k (128 bytes of a row, swizzled by as many), with two mbarriers each: full and
// empty.
#ifndef MSGL_CUDA_GEMM_STAGE_CUH
#define MSGL_CUDA_GEMM_STAGE_CUH

#include "cuda/ptx/wgmma.cuh"

enum {
    BK = 64,
    ROW_BYTES = BK * 2,
    GROUP = 128, // threads of a warpgroup
};

// A ring, as both sides walk through it.
struct ring {
    uint32_t stages, full, empty; // addresses in shared memory
    int slot;
    uint32_t phase;
};

// One whose stages have scales.
struct scaled_ring : ring {
    uint32_t scales; // of the stages: an address in shared memory
};

template <int STAGES> static __device__ __forceinline__ void next_slot(ring &r)
{
    if (++r.slot == STAGES) {
        r.slot = 0;
        r.phase ^= 1;
    }
}

// acc = (add ? acc : 0) + A B^T over a stage, as one group; a, b: its operands
// (msgl__wgmma_operand).
template <typename T, int SUMS>
static __device__ __forceinline__ void multiply_stage(float (&acc)[SUMS], uint64_t a, uint64_t b,
                                                      bool add, T)
{
    msgl__wgmma_fence();
#pragma unroll
    for (int i = 0; i < BK / 16; i++) { // 32 bytes on in every row
        msgl__wgmma(acc, a + 2 * i, b + 2 * i, add || i > 0, T());
    }
    msgl__wgmma_commit();
}

#endif
