// SPDX-License-Identifier: Apache-2.0
//
// Routers for tests of what chooses experts.
#ifndef MSGL_TESTS_CUDA_ROUTER_CASE_CUH
#define MSGL_TESTS_CUDA_ROUTER_CASE_CUH

#include "tests/cuda/ops_check.cuh"
#include "tests/kernel/route_oracle.h"

// Kinds of routers, by bits: KINDS of them, and as many by sqrt softplus.
enum { NORMED = 1, SIGMOID = 2, CORRECTED = 4, PAIRS = 8, KINDS = 16, SOFTPLUS = 16 };

static inline msgl_router router_of(int top_k, int kind, int num_groups, int top_groups,
                                    float *correction)
{
    msgl_router how = {};
    how.top_k = top_k;
    how.scoring = (kind & SOFTPLUS) != 0  ? MSGL_SCORE_SQRT_SOFTPLUS
                  : (kind & SIGMOID) != 0 ? MSGL_SCORE_SIGMOID
                                          : MSGL_SCORE_SOFTMAX;
    how.norm_topk = (kind & NORMED) != 0;
    how.scale = (kind & SIGMOID) != 0 ? 2.5f : 1;
    how.correction = (kind & CORRECTED) != 0 ? correction : NULL;
    how.num_groups = num_groups, how.top_groups = top_groups;
    how.group_pairs = (kind & PAIRS) != 0;
    return how;
}

#endif
