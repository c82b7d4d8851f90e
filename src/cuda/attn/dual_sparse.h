// SPDX-License-Identifier: Apache-2.0
//
// Sparse prompts of dual chunk attention on a GPU (docs/internals/dual-chunk.md): of a head, rows
// see a few columns and a few distances, which the last rows of a piece choose.
#ifndef MSGL_CUDA_ATTN_DUAL_SPARSE_H
#define MSGL_CUDA_ATTN_DUAL_SPARSE_H

#include "cuda/attn/call.h"
#include "kernel/dual_chunk.h"

#ifdef __cplusplus
extern "C" {
#endif

// Rows [row, row + end - begin) of the step, at positions [begin, end) of one chunk of request req.
typedef struct msgl_sparse_piece {
    int32_t req, row, begin, end;
    int32_t dual_len;
    int32_t last; // rows that choose; no fewer than there are: all keys are seen
    const int32_t
        *counts; // [num_q_heads, 2] columns and distances to choose, at least one of these
    // [2, 2 half] cosines and sines, of pairs i and half + i, that rotate queries for keys of the
    // chunk before and for earlier ones.
    const float *rotations;
    int32_t half;
    // Of msgl__cuda_dual_sparse_workspace bytes, aligned to 256. Begins with what was chosen, as
    // bits: [num_q_heads, 2, words] of columns and of distances, in words of 32 for `end` keys.
    void *workspace;
} msgl_sparse_piece;

// For requests of up to max_seq_len keys.
size_t msgl__cuda_dual_sparse_workspace(int32_t num_q_heads, int32_t head_dim, int32_t max_seq_len);
// Queues the attention of one piece, bf16 and f16, head_dim a multiple of 8 up to 256; returns a
// cudaError_t. c: of the whole step.
int msgl__cuda_dual_sparse_prompt(const msgl_cuda_attn_call *c, const msgl_sparse_piece *p,
                                  void *stream);

#ifdef __cplusplus
}
#endif

#endif
