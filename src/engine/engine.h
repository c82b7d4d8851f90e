// SPDX-License-Identifier: Apache-2.0
//
// One rank's engine: model weights, KV pool, attention backend, and a queue of steps that run in
// order on the engine's own thread (CPU) or stream (GPU). The scheduler fills batches and page
// table rows; the engine turns them into logits and sampled tokens.
#ifndef MSGL_ENGINE_ENGINE_H
#define MSGL_ENGINE_ENGINE_H

#include <stdbool.h>

#include "core/batch.h"
#include "core/dtype.h"
#include "core/err.h"
#include "kvcache/kvcache.h"

typedef struct msgl_engine msgl_engine;

typedef struct msgl_engine_config {
    const char *model_dir;
    const char *device;    // "auto", "cpu", "cuda", "cuda:N"
    const char *dtype;     // "auto", "bfloat16", "float16", "float32"
    const char *attention; // "auto", NAME, "PREFILL,DECODE"
    const char *moe;       // "auto", "grouped"
    bool dummy_weight;
    int32_t num_threads; // 0: physical cores
    int32_t max_running; // --max-running-requests
    int32_t max_seq_len; // --max-seq-len-override; 0: the model's
    int32_t max_prefill_tokens;
    int32_t page_size;
    int32_t num_pages;     // 0: from memory_ratio
    double memory_ratio;   // share of the memory free after loading that the KV pool may take; 0:
                           // 0.9 of a GPU's, 0.4 of the host's
    int32_t graph_max_bs;  // largest captured decode batch on a GPU; 0: none, -1: by its memory
    bool deterministic;    // a request's tokens do not depend on the rest of the batch (GPU; the
                           // CPU always computes so)
    bool naive_cache;      // --cache-type naive
    const char *cpu_level; // NULL: detect
    struct msgl_heartbeat *heartbeat; // NULL: nobody looks
    msgl_progress_fn progress;
    void *progress_ctx;
    // Receives the memory plan and warnings, one line a call, before anything is allocated.
    void (*print)(void *ctx, const char *line);
    void *print_ctx;
} msgl_engine_config;

typedef struct msgl_engine_info {
    int32_t vocab_size, max_seq_len, max_running, num_pages, page_size, max_prefill_tokens;
    int32_t num_eos;
    int32_t eos_ids[8];
    char attention[32]; // what was chosen
    char device[128];   // one line: CPU level, threads
    char architecture[64];
    msgl_dtype dtype;
    size_t weight_bytes, kv_bytes, workspace_bytes;
    msgl_sampling_params sampling; // of a request that says nothing about it
    // The scheduler has to use the naive cache: asked for, or because requests must not share
    // prefixes (dynamic NTK rotates keys by the prompt's length).
    bool no_prefix_sharing;
} msgl_engine_info;

// Loads and allocates everything. On failure *err is one line that names the file, tensor, field or
// flag.
int msgl__engine_create(const msgl_engine_config *cfg, msgl_engine **out, msgl_err *err);
void msgl__engine_destroy(msgl_engine *e); // after all steps have been waited for
const msgl_engine_info *msgl__engine_info(const msgl_engine *e);
msgl_page_table *msgl__engine_page_table(msgl_engine *e);
// The interface that the scheduler drives (valid as long as the engine).
const msgl_runner *msgl__engine_runner(msgl_engine *e);

#endif
