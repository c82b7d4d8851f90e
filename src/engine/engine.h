// SPDX-License-Identifier: Apache-2.0
//
// One rank's engine: model weights, KV pool, attention backend, and a queue of steps that run in
// order on the engine's own thread (CPU) or stream (GPU). The scheduler fills batches and page
// table rows; the engine turns them into logits and sampled tokens.
#ifndef MSGL_ENGINE_ENGINE_H
#define MSGL_ENGINE_ENGINE_H

#include <stdbool.h>

#include "core/admin.h"
#include "core/batch.h"
#include "core/dtype.h"
#include "core/err.h"
#include "kvcache/kvcache.h"
#include "kvcache/layout.h"

struct msgl_heartbeat; // utils/heartbeat.h

typedef struct msgl_engine msgl_engine;

typedef struct msgl_engine_info {
    int32_t vocab_size, max_seq_len, max_running, max_prefill_tokens;
    int32_t num_pages, page_size; // of cache's span 0
    int32_t num_experts;          // of a layer that has some; 0: no layer has
    int32_t num_eos;
    int32_t eos_ids[8];
    char attention[96]; // what was chosen
    char device[128];   // one line: CPU level, threads
    char architecture[64];
    msgl_dtype dtype;
    msgl_cache_layout cache;
    size_t span_bytes[MSGL_MAX_SPANS]; // of a page, or of a state, of each, in all layers
    size_t weight_bytes, kv_bytes, workspace_bytes; // kv: of all groups
    // Of weight_bytes, those of an embedding that is not the head too: no product reads it.
    size_t embed_bytes;
    msgl_sampling_params sampling; // of a request that says nothing about it
    // Requests must not share prefixes: dynamic NTK rotates keys by the prompt's length.
    bool no_prefix_sharing;
    msgl_pooling pooling;
    int32_t pooled_size; // values of a request; 0: the engine does not pool
    int32_t
        token_vector_size; // values of each of its tokens (MSGL_TASK_VECTORS); 0: there are none
    bool token_weights;    // there is one of each token (MSGL_TASK_WEIGHTS)
} msgl_engine_info;

// Loads and allocates everything. On failure *err is one line that names the file, tensor, field or
// flag. o->log receives the memory plan and warnings before anything is allocated; heartbeat: told
// that the engine is alive, or NULL.
int msgl__engine_create(const msgl_options *o, struct msgl_heartbeat *heartbeat, msgl_engine **out,
                        msgl_err *err);
// msgl_follow (minisgl.h).
int msgl__engine_follow(const msgl_options *o, msgl_err *err);
void msgl__engine_destroy(msgl_engine *e); // after all steps have been waited for
const msgl_engine_info *msgl__engine_info(const msgl_engine *e);
// One for each span of info->cache that has pages; the last of a model with states is empty.
msgl_page_table *msgl__engine_page_tables(msgl_engine *e);
// With o->ds_calibrate, after all steps have been waited for: writes double sparsity's channels.
int msgl__engine_write_channels(const msgl_engine *e, const char *path, msgl_err *err);
// The interface that the scheduler drives (valid as long as the engine).
const msgl_runner *msgl__engine_runner(msgl_engine *e);
msgl_admin_calls msgl__engine_admin_calls(msgl_engine *e); // likewise

// Different experts that a layer's tokens went to, added up over layers and steps, and the bytes of
// the weights of the others.
typedef struct msgl_expert_hits {
    int64_t experts, layers, steps;
    double unread_bytes;
} msgl_expert_hits;

// For benchmarks: an adapter of random values to a slot of an engine of one rank with
// msgl_options.enable_lora, of this rank; of q, k, v and o alone, or of all linear layers.
// MSGL_EINVAL, MSGL_ELIMIT, MSGL_EUNSUPPORTED, MSGL_ENOMEM.
int msgl__engine_dummy_adapter(msgl_engine *e, int32_t slot, int32_t rank, bool attention,
                               msgl_err *err);

// For benchmarks, while no step runs: counts from here on, steps of answers alone into
// hits[MSGL_DECODE], others into hits[MSGL_PREFILL]; NULL: no more. A step that is counted runs
// without a graph and waits for the device in every layer. 0, or MSGL_ENOMEM.
int msgl__engine_count_experts(msgl_engine *e, msgl_expert_hits *hits, msgl_err *err);

#endif
