// SPDX-License-Identifier: Apache-2.0
//
// What a kernel's T names, for attention over a pool of K and V.
#ifndef MSGL_CUDA_ATTN_POOL_TYPES_CUH
#define MSGL_CUDA_ATTN_POOL_TYPES_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// Activations, what K and V are multiplied as, and the bytes of their elements in the pool. E4M3
// becomes f16, which has its values: one conversion for two.
template <typename T> struct msgl_pool_types {
    typedef T act;
    typedef T product;
    static const int BYTES = 2;
};
struct msgl_pool_e4m3 { // beside bf16 activations
};
template <> struct msgl_pool_types<msgl_pool_e4m3> {
    typedef __nv_bfloat16 act;
    typedef __half product;
    static const int BYTES = 1;
};

#endif
