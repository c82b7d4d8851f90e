// SPDX-License-Identifier: Apache-2.0
//
// Experts whose weights are codes (codes_row.h), as kernels multiply them without writing values
// anywhere: what they need to know, and which forms there are. docs/decisions/053.
#ifndef MSGL_CUDA_GEMM_EXPERTS_CODES_CUH
#define MSGL_CUDA_GEMM_EXPERTS_CODES_CUH

#include "cuda/gemm/codes_pair.cuh"
#include "kernel/calls.h"
#include "kernel/exec.h"

// One kind of matrix of all experts, [n, k] each.
typedef struct codes_matrix {
    const uint8_t *w;     // the first expert's codes, aligned to 16 bytes
    size_t stride;        // bytes from one expert's to the next one's
    size_t scales, zeros; // bytes from an expert's codes to its scales and zero points
    int32_t n, k;
    uint32_t row, used; // bytes of a row's codes, and without what fills them up
    int32_t shift;      // column c has scale c >> shift
    int32_t zero;       // of all codes, besides zero points
    bool has_zeros;
    msgl_number number; // of scales
    float factor;       // of all scales
    int32_t bits;
    codes_values values;
} codes_matrix;

// Whether there are kernels for these experts: of one form and at equal distances.
bool msgl__codes_matrix_of(const msgl_weight *experts, int32_t num, codes_matrix *out);

// msgl_experts_call of codes, which the caller has found to be one of few assignments. False:
// nothing is queued.
bool msgl__cuda_experts_codes(msgl_exec *x, const msgl_experts_call *c);
// msgl_grouped_call of codes, all of it. False: nothing is queued.
bool msgl__cuda_grouped_codes(msgl_exec *x, const msgl_grouped_call *c);

// The scale's number of column `column` of row `row`: its place among the expert's scales in bytes,
// and that of its zero point.
static __device__ __forceinline__ uint32_t codes_element(const codes_matrix &m, int column, int row)
{
    return (uint32_t)(column >> m.shift) * (uint32_t)m.n + (uint32_t)row;
}

#endif
