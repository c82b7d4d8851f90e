// SPDX-License-Identifier: Apache-2.0
//
// Timing one attention shape on one backend, without a model; `minisgl bench attn` prints it.
#ifndef MSGL_ATTENTION_BENCH_H
#define MSGL_ATTENTION_BENCH_H

#include "attention/attention.h"
#include "kernel/device.h"

typedef struct msgl_attn_bench_shape {
    msgl_phase phase;
    int32_t batch;      // requests, all alike
    int32_t cached_len; // tokens in the cache before the step
    int32_t extend_len; // new tokens; 1 for decode
    int32_t num_q_heads, num_kv_heads, head_dim, page_size;
    int32_t v_dim; // 0: K and V of head_dim; else a latent vector a token, whose beginning is V
    msgl_dtype kv_dtype;
    int32_t window; // -1: off
    float softcap;  // 0: off
    bool shuffled;  // pages in random order rather than ascending
} msgl_attn_bench_shape;

// Where it runs: on the CPU with threads, else on a device.
typedef struct msgl_attn_bench_env {
    const msgl_attn_set *backends; // of the device
    const msgl_kernels *kernels;
    msgl_pool *threads;
    msgl_device *device; // NULL: the CPU
} msgl_attn_bench_env;

typedef struct msgl_attn_bench_result {
    double prepare_ms; // prepare_metadata, once per step (median)
    double forward_ms; // one layer (median)
    double graph_ms;   // the same inside a captured graph (GPU, decode); 0: not measured
    double bytes;      // K and V that one layer reads at least, each once
    double flops;      // multiply-adds of visible (query, key) pairs, 2 operations each
} msgl_attn_bench_result;

// Runs for about `seconds`, going through as many layers as fill 512 MiB so that the caches do not
// help. Errors: those of the backend's selection and creation, MSGL_EINVAL, MSGL_ENOMEM,
// MSGL_EDEVICE.
int msgl__attn_bench(const msgl_attn_desc *backend, const msgl_attn_bench_shape *shape,
                     const msgl_attn_bench_env *env, double seconds, msgl_attn_bench_result *out,
                     msgl_err *err);

#endif
