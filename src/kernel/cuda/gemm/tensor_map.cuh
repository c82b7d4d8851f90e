// SPDX-License-Identifier: Apache-2.0
//
// Tensor maps of row-major matrices of 16-bit elements, for tiles of 64 columns (128 bytes).
#ifndef MSGL_KERNEL_CUDA_GEMM_TENSOR_MAP_CUH
#define MSGL_KERNEL_CUDA_GEMM_TENSOR_MAP_CUH

#include <cuda.h>
#include <cuda_runtime.h>

#include "kernel/cuda/device.cuh"

// Boxes of box_rows x 64 elements, swizzled by 128 bytes; what is outside reads as zero. False when
// the driver cannot, or p or ld (elements) are not multiples of 16 bytes.
static inline bool msgl__tensor_map(CUtensorMap *map, msgl_dtype type, const void *p, int rows,
                                    int columns, size_t ld, int box_rows)
{
    typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                  const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                  const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                  CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    void *entry = NULL;
    cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault,
                                         &found) != cudaSuccess ||
        entry == NULL) {
        (void)cudaGetLastError();
        return false;
    }
    const cuuint64_t dims[2] = {(cuuint64_t)columns, (cuuint64_t)rows}, strides[1] = {ld * 2};
    const cuuint32_t box[2] = {64, (cuuint32_t)box_rows}, one[2] = {1, 1};
    const CUtensorMapDataType t =
        type == MSGL_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    return ((encode_fn)entry)(map, t, 2, (void *)p, dims, strides, box, one,
                              CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

#endif
