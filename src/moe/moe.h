// SPDX-License-Identifier: Apache-2.0
//
// Expert computation of a mixture-of-experts layer: given the router's logits, pick experts per
// token, compute them, and combine. Implementations are descriptors in registry.c, chosen by
// --moe-backend.
#ifndef MSGL_MOE_MOE_H
#define MSGL_MOE_MOE_H

#include "kernel/kernel.h"

typedef struct msgl_moe_experts {
    int32_t num_experts, top_k;
    bool norm_topk;             // weights of the chosen experts sum to 1
    const msgl_weight *gate_up; // [num_experts] of [2 intermediate, hidden]
    const msgl_weight *down;    // [num_experts] of [hidden, intermediate]
} msgl_moe_experts;

typedef struct msgl_moe_desc {
    const char *name;
    const char *summary; // one line for --help
    // Step arena bytes for `rows` rows with activations of act.
    size_t (*workspace)(const msgl_moe_experts *e, msgl_dtype act, int32_t rows);
    // in [rows, hidden], logits [rows, num_experts] -> out [rows, hidden], set or (accumulate)
    // added to. A row's result depends on that row only. Failures go to x->status.
    void (*forward)(msgl_exec *x, const msgl_kernels *k, msgl_arena *arena,
                    const msgl_moe_experts *e, const void *in, const float *logits, int32_t rows,
                    bool accumulate, void *out);
} msgl_moe_desc;

// registry.c: by name, or "auto" (the first). MSGL_EINVAL lists the names.
int msgl__moe_select(const char *name, const msgl_moe_desc **out, msgl_err *err);

#endif
