// SPDX-License-Identifier: Apache-2.0
//
// The triton backend: on the CPU here, on GPUs in triton_cuda.c.
#ifndef MSGL_ATTENTION_TRITON_TRITON_H
#define MSGL_ATTENTION_TRITON_TRITON_H

#include "attention/paged.h"

// What prepare makes for one step, with the original's names.
typedef struct msgl_triton_metadata {
    int32_t *kv_indptr;     // [size + 1] where each request's slots begin
    int32_t *kv_indices;    // [kv_indptr[size]] slots of all requests' tokens, pages of 1
    int32_t *num_kv_splits; // answers: [different windows, max_running]
    msgl_attn_plan plan;    // chunks: blocks of queries
} msgl_triton_metadata;

// For tests: the metadata of the step in step_slot, and what stage 1 of the last answers left.
// Splits that have no key are not written.
typedef struct msgl_triton_stage {
    const msgl_triton_metadata *md;
    const float *attn_logits; // [size, num_q_heads, MSGL_TRITON_MAX_SPLITS, v_dim] normalised
    const float *attn_lse;    // [size, num_q_heads, MSGL_TRITON_MAX_SPLITS] natural logarithm
} msgl_triton_stage;

msgl_triton_stage msgl__triton_stage(const msgl_attn_backend *base, int32_t step_slot);

extern const msgl_attn_desc msgl__attn_triton;

#endif
