// SPDX-License-Identifier: Apache-2.0
//
// Timing a layer of linear attention (kernel/delta.h) between its products, or Mamba-2's recurrence
// (kernel/ssm.h), without a model; `minisgl bench attn` prints it.
#ifndef MSGL_ATTENTION_BENCH_DELTA_H
#define MSGL_ATTENTION_BENCH_DELTA_H

#include "attention/bench.h"

typedef enum msgl_delta_bench_rule {
    MSGL_BENCH_GATED_DELTA,
    MSGL_BENCH_KIMI_DELTA, // by_channel and sigmoid_gate
    MSGL_BENCH_MAMBA,      // v_heads of v_dim, k_heads groups, states of k_dim
} msgl_delta_bench_rule;

typedef struct msgl_delta_bench_shape {
    msgl_phase phase;
    int32_t batch;  // requests, all alike; of prompts from their beginning
    int32_t tokens; // new ones of each; 1 for decode
    int32_t k_heads, v_heads, k_dim, v_dim;
    msgl_delta_bench_rule rule;
} msgl_delta_bench_shape;

// As msgl__attn_bench, by successive calls on states of their own; activations are bf16 on GPUs.
// out: prepare_ms is 0; bytes are those of the states' matrices, read (answers) and written; flops
// those of the recurrence, 6 k_dim v_dim a token and v head, though chunks and decays by channel
// take more of them.
// Errors: MSGL_EINVAL, MSGL_ENOMEM, MSGL_EDEVICE, MSGL_EUNSUPPORTED without a kernel here.
int msgl__delta_bench(const msgl_delta_bench_shape *shape, const msgl_attn_bench_env *env,
                      double seconds, msgl_attn_bench_result *out, msgl_err *err);

#endif
