// SPDX-License-Identifier: Apache-2.0
//
// Metadata of the fi backend: what FlashInfer's paged kernels take.
#ifndef MSGL_ATTENTION_FI_FI_H
#define MSGL_ATTENTION_FI_FI_H

#include "attention/fi/plan.h"
#include "attention/paged.h"

typedef struct msgl_fi_metadata {
    int32_t bs;             // requests, padding included
    int32_t *qo_indptr;     // [bs + 1]
    int32_t *kv_indptr;     // [bs + 1]
    int32_t *indices;       // [kv_indptr[bs]] slots of all requests' tokens: pages of 1
    int32_t *last_page_len; // [bs] all 1
    int32_t *kv_len;        // [bs]
    bool graph;             // in fixed buffers, list padded
    bool planned;           // by the first forward of the batch
    msgl_fi_plan plan;
    msgl_attn_work *works;   // the plan's list for the kernel
    msgl_attn_group *groups; // query tiles with more than one chunk
    int32_t heads_per_task;
} msgl_fi_metadata;

extern const msgl_attn_desc msgl__attn_fi;

#endif
