// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CUDA_OWNER_CUH
#define MSGL_CUDA_OWNER_CUH

#include <stdint.h>

// Whose row `row` is, of n owners whose rows begin at begins[0, n), ascending: of rows from 0, 2, 2
// and 5 on row 3 is owner 2's; owner 1 has none.
static __device__ __forceinline__ int msgl__owner_of(const int32_t *begins, int n, int row)
{
    int low = 0, high = n;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (begins[middle] <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

#endif
