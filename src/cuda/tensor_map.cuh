// SPDX-License-Identifier: Apache-2.0
//
// Tensor maps (ptx/tma.cuh loads by them) of row-major matrices of 16-bit elements, for tiles of 64
// columns (128 bytes), of E4M3 and of f32.
#ifndef MSGL_CUDA_TENSOR_MAP_CUH
#define MSGL_CUDA_TENSOR_MAP_CUH

#include <cuda.h>
#include <cuda_runtime.h>

#include "cuda/device.cuh"

typedef CUresult (*msgl_tensor_encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                          const cuuint64_t *, const cuuint64_t *,
                                          const cuuint32_t *, const cuuint32_t *,
                                          CUtensorMapInterleave, CUtensorMapSwizzle,
                                          CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// The driver's entry, or NULL.
static inline msgl_tensor_encode_fn msgl__tensor_encode_entry(void)
{
    void *entry = NULL;
    cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault,
                                         &found) == cudaSuccess) {
        return (msgl_tensor_encode_fn)entry;
    }
    (void)cudaGetLastError();
    return NULL;
}

// False when the driver cannot, or p or a stride (bytes) are not multiples of 16. What is outside
// reads as zero and is not written.
static inline bool msgl__tensor_map_encode(CUtensorMap *map, msgl_dtype type, const void *p,
                                           int rank, const cuuint64_t *dims,
                                           const cuuint64_t *strides, const cuuint32_t *box,
                                           CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B)
{
    static const msgl_tensor_encode_fn encode = msgl__tensor_encode_entry();
    if (encode == NULL) return false;
    const cuuint32_t one[5] = {1, 1, 1, 1, 1};
    const CUtensorMapDataType t = type == MSGL_F16    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                  : type == MSGL_E4M3 ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                  : type == MSGL_F32  ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                                      : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    return encode(map, t, (cuuint32_t)rank, (void *)p, dims, strides, box, one,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// Boxes of box_rows x 64 elements, swizzled by 128 bytes; ld: elements.
static inline bool msgl__tensor_map(CUtensorMap *map, msgl_dtype type, const void *p, int rows,
                                    int columns, size_t ld, int box_rows)
{
    const cuuint64_t dims[2] = {(cuuint64_t)columns, (cuuint64_t)rows}, strides[1] = {ld * 2};
    const cuuint32_t box[2] = {64, (cuuint32_t)box_rows};
    return msgl__tensor_map_encode(map, type, p, 2, dims, strides, box);
}

// Of a dense matrix of two halves, each a multiple of eight rows: boxes of eight rows of the first
// half, the same eight of the second, the next eight of the first ..., box_rows in all. Pair i of
// eights is loaded from (column, 0, 0, i) on.
static inline bool msgl__tensor_map_pairs(CUtensorMap *map, msgl_dtype type, const void *p,
                                          int rows, int columns, int box_rows)
{
    const cuuint64_t row = (cuuint64_t)columns * 2, half = (cuuint64_t)rows / 2;
    const cuuint64_t dims[4] = {(cuuint64_t)columns, 8, 2, half / 8};
    const cuuint64_t strides[3] = {row, half * row, 8 * row};
    const cuuint32_t box[4] = {64, 8, 2, (cuuint32_t)box_rows / 16};
    return msgl__tensor_map_encode(map, type, p, 4, dims, strides, box);
}

#endif
