// SPDX-License-Identifier: Apache-2.0
//
// What one step of the engine works on, and what comes back. A batch is a snapshot: the scheduler
// may change its requests while the step runs (overlap scheduling), so lengths and sampling
// parameters are copied in. Token ids are not in it: they live in the engine's token pool, indexed
// like the page table, where the sampler writes the next token without the host in between.
#ifndef MSGL_CORE_BATCH_H
#define MSGL_CORE_BATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "core/sampling_params.h"

typedef enum msgl_phase { MSGL_PREFILL, MSGL_DECODE } msgl_phase;

typedef struct msgl_batch_req {
    uint64_t uid;
    int32_t table_idx;  // row of page table and token pool
    int32_t cached_len; // tokens whose K and V are already in the pool
    int32_t device_len; // after this step; extend_len = device_len - cached_len >= 1
    int32_t prompt_len;
    // Rows [logits_from, extend_len) of this request's extend_len rows get logits: extend_len - 1
    // is the usual case, extend_len none (a chunk that is not the last), smaller with
    // prompt_logprobs.
    int32_t logits_from;
    bool sample; // choose a token from the last row and write it to the token pool at device_len
    msgl_sampling_params sampling;
} msgl_batch_req;

typedef struct msgl_batch {
    msgl_phase phase;     // decode: extend_len is 1 for all
    int32_t size;         // requests
    int32_t padded_size;  // >= size; rows beyond size are dummy requests (captured graphs)
    int32_t num_tokens;   // sum of extend_len
    msgl_batch_req *reqs; // [size]
    // What a graph is captured for: no request of a replay is longer (device_len).
    int32_t max_seq_len;
    // Filled by the engine before prepare_metadata, in request order, host memory:
    int32_t *positions;  // [num_tokens] position of each token in its sequence
    int32_t *out_loc;    // [num_tokens] slot in the KV pool that the token's K and V go to
    void *attn_metadata; // the attention backend's, valid for this step
    int32_t slot;        // which of the engine's staging sets this batch uses (a ring)
} msgl_batch;

static inline int32_t msgl__extend_len(const msgl_batch_req *r)
{
    return r->device_len - r->cached_len;
}

// Log-probabilities for one token of one request (natural log, of the softmax of the raw logits).
typedef struct msgl_token_logprobs {
    int32_t req;      // index in the batch
    int32_t position; // of the token that this row predicted
    int32_t token;    // the prompt's token at that position, or the sampled one
    float logprob;
    int32_t num_top;
    int32_t top_ids[MSGL_MAX_LOGPROBS]; // most likely first
    float top_logprobs[MSGL_MAX_LOGPROBS];
} msgl_token_logprobs;

// Result of a step, in memory of the engine, valid until its slot is used again.
typedef struct msgl_step_result {
    int32_t size;
    const int32_t *tokens; // [size] sampled token, -1 where the request did not sample
    const int32_t *status; // [size] 0, or MSGL_ENUMERIC: the logits were NaN, no token
    int32_t num_logprobs;
    const msgl_token_logprobs *logprobs; // in request order, positions ascending
    uint64_t compute_ns;
} msgl_step_result;

// How the scheduler drives an engine; tests put a model-free one behind it. All calls come from the
// scheduler's thread. Work is done in the order submitted.
typedef struct msgl_runner {
    void *ctx;
    int32_t num_slots; // steps that may be in flight at once (2 for overlap)
    // Puts ids[0, n) at positions [pos, pos + n) of row table_idx in the token pool, after the
    // steps already submitted. ids may be reused when the call returns.
    int (*write_tokens)(void *ctx, int32_t table_idx, int32_t pos, const int32_t *ids, int32_t n);
    // Starts a step; returns at once. The page table's rows must already hold the slots of all
    // positions < device_len. b->slot chooses the staging set; it must not be in flight.
    int (*submit)(void *ctx, msgl_batch *b);
    // Blocks until the step in `slot` is done. A negative status means that the engine is broken.
    int (*wait)(void *ctx, int32_t slot, msgl_step_result *out);
    // What broke the engine, or NULL when only the status is known. Optional.
    const char *(*fault)(void *ctx);
} msgl_runner;

#endif
