// SPDX-License-Identifier: Apache-2.0
//
// Rows that are copied by index, a warp a row.
#ifndef MSGL_CUDA_OPS_COPY_ROW_CUH
#define MSGL_CUDA_OPS_COPY_ROW_CUH

enum { MSGL_COPYING_WARPS = 8 }; // of a block

// `units` Units, of which each lane has four on their way at a time. All lanes of a warp.
template <typename Unit>
static __device__ __forceinline__ void msgl__copy_row(const Unit *from, Unit *to, int units)
{
    enum { AT_ONCE = 4 };
    for (int i = (int)threadIdx.x % 32; i < units; i += 32 * AT_ONCE) {
        Unit v[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (i + 32 * j < units) v[j] = __ldcg(from + i + 32 * j);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (i + 32 * j < units) to[i + 32 * j] = v[j];
        }
    }
}

#endif
