// SPDX-License-Identifier: Apache-2.0
//
// Plug-ins without kernels, so that a machine without a GPU can test what is chosen, made, planned
// and copied. They say to have the kernels that the real ones have; what they were told to run is
// kept for the test, which finds it under the symbol "stub".
#ifndef MSGL_TESTS_ATTENTION_STUBS_STUB_H
#define MSGL_TESTS_ATTENTION_STUBS_STUB_H

#include "cuda/fi/api.h"
#include "cuda/trtllm/api.h"

enum { STUB_PLAN_BYTES = 4096, STUB_MAX_RUNS = 64 };

// A plan: all of the staging memory, this at its start and its number everywhere behind.
typedef struct stub_plan {
    int32_t number;
    int32_t kernel, window, batch;
} stub_plan;

typedef struct stub_fi {
    msgl_fi_api api;   // what msgl_fi_plugin returns
    uint32_t kernels;  // that there are, a bit mask of 1u << msgl_fi_kernel
    int32_t num_plans; // made so far
    int32_t num_runs;
    msgl_fi_run_call runs[STUB_MAX_RUNS];
    int32_t num_rows, num_merges;
    msgl_fi_rows_call rows;   // the last one
    msgl_fi_merge_call merge; // the last one
} stub_fi;

typedef struct stub_trtllm {
    msgl_trtllm_api api; // what msgl_trtllm_plugin returns
} stub_trtllm;

// src/cuda/fi: CMakeLists.txt and plugin_has.
static inline bool stub_fi_has(const msgl_fi_shape *s, msgl_fi_kernel kernel, int32_t capability)
{
    const int32_t group = s->num_q_heads / s->num_kv_heads;
    if (s->dtype == MSGL_E4M3) {
        return kernel == MSGL_FI_TENSOR_CORES && (s->head_dim == 64 || s->head_dim == 128);
    }
    if (s->dtype != MSGL_BF16 && s->dtype != MSGL_F16) return false;
    if (kernel == MSGL_FI_LATENT || kernel == MSGL_FI_LATENT_HOPPER) {
        const bool wgmma = capability == 90 && s->dtype == MSGL_BF16;
        return s->head_dim == 576 && s->v_dim == 512 && (wgmma || kernel == MSGL_FI_LATENT);
    }
    if (kernel == MSGL_FI_HOPPER || kernel == MSGL_FI_RAGGED_HOPPER ||
        kernel == MSGL_FI_PREFIX_HOPPER) {
        return capability == 90 && s->dtype == MSGL_BF16 &&
               (s->head_dim == 64 || s->head_dim == 128);
    }
    if (kernel == MSGL_FI_CUDA_CORES && group > 4 && group != 8) return false;
    return s->head_dim == 64 || s->head_dim == 128 || s->head_dim == 256;
}

// src/cuda/trtllm: CMakeLists.txt and find.
static inline int32_t stub_xqa_page(const msgl_xqa_shape *s)
{
    const int32_t group = s->num_q_heads / s->num_kv_heads;
    if (s->dtype != MSGL_BF16 && s->dtype != MSGL_F16 && s->dtype != MSGL_E4M3) return 0;
    const bool wide =
        s->head_dim == 256 && s->dtype != MSGL_E4M3 && (group <= 2 || group == 4 || group == 8);
    const bool usual = (s->head_dim == 64 || s->head_dim == 128) && (group <= 8 || group == 16);
    if (!wide && !usual) return 0;
    return usual && s->dtype != MSGL_F16 && s->page_size % 64 == 0 ? 64
           : s->page_size % 16 == 0                                ? 16
                                                                   : 0;
}

#endif
