// SPDX-License-Identifier: Apache-2.0
//
// Metadata of the fi backend: what FlashInfer's paged kernels take.
#ifndef MSGL_ATTENTION_FI_FI_H
#define MSGL_ATTENTION_FI_FI_H

#include "attention/fi/plan.h"
#include "attention/paged.h"

typedef struct msgl_fi_metadata {
    int32_t *kv_indptr;     // [size + 1]
    int32_t *indices;       // [kv_indptr[size]] slots of all requests' tokens: pages of 1
    int32_t *last_page_len; // [size] all 1
    msgl_fi_plan plan;      // over all keys; of a step in two, over those of prefixes
    // flashinfer: the step's new tokens are planned among themselves, prefixes in plan.
    bool in_two;
    msgl_fi_plan fresh;
    int32_t *prefix_indptr;  // [size + 1]
    msgl_attn_work *works;   // the plans' lists for the kernel
    msgl_attn_group *groups; // query tiles with more than one chunk
    int32_t num_works, heads_per_task;
} msgl_fi_metadata;

// What prepare made for the step in step_slot, for tests.
msgl_fi_metadata *msgl__fi_metadata(msgl_attn_backend *base, int32_t step_slot);

extern const msgl_attn_desc msgl__attn_fi, msgl__attn_flashinfer;

#endif
