// SPDX-License-Identifier: Apache-2.0
//
// The engine's parts, shared by its files: engine.c builds and owns, step.c turns a batch into
// staged host data (scheduler's thread) and then into work (device's queue), sample.c handles
// logits.
#ifndef MSGL_ENGINE_INTERNAL_H
#define MSGL_ENGINE_INTERNAL_H

#include "kernel/device.h"
#include "engine/engine.h"
#include "engine/plan.h"
#include "models/arch.h"

#define MSGL_ENGINE_SLOTS 2

// Rows of logits at a time: bounds their memory, while lm_head, read once per block, stays cheap
// beside the products.
#define MSGL_LOGITS_ROWS 64

// Data of one step. "Host" arrays are staging: written by the scheduler's thread before the work is
// queued, read by the work's copies; or the reverse for results.
typedef struct msgl_engine_step {
    msgl_batch batch; // a copy: the caller's may change while the step runs
    msgl_batch_req *reqs;
    int32_t *positions, *out_loc; // [num_tokens]
    int32_t *id_index;            // [num_tokens] places of the input ids in the token pool
    float *inv_freq;
    msgl_rope_segment *segments;
    int32_t num_segments;
    // Rows that get logits, ascending.
    int32_t num_rows;
    int32_t *rows;       // [num_rows] token of the step
    int32_t *row_sample; // [num_rows] which of the sampled rows it is, -1: not sampled
    int32_t *row_record; // [num_rows] which of the records it is, -1: no log-probability wanted
    int32_t num_samples;
    msgl_sample_row *sample_rows; // [num_samples]
    int32_t *sample_index;        // [num_samples] place in the token pool of the chosen token
    int32_t *sample_req;          // [num_samples] request in the batch
    int32_t num_records;
    int32_t *record_index; // [num_records] place in the token pool of the row's target
    msgl_token_logprobs *records;
    // Results
    int32_t *sampled, *sample_status; // [num_samples]
    int32_t *tokens, *status;         // [batch.size]
    int failure;                      // 0, or what broke the step
    uint64_t compute_ns;
    bool in_flight;
} msgl_engine_step;

// The same on the device; one set, as steps run one after the other.
typedef struct msgl_engine_dev {
    int32_t *positions, *out_loc, *id_index, *ids; // [max_step_tokens]
    int32_t *rows;                                 // [max_step_tokens]
    float *inv_freq;
    msgl_sample_row *sample_rows;                    // [max_running]
    int32_t *sample_index, *sampled, *sample_status; // [max_running]
    int32_t *record_index;                           // [max_step_tokens]
    msgl_token_logprobs *records;                    // [max_step_tokens]
    int32_t *token_pool;                             // [max_running + 1, stride]
} msgl_engine_dev;

// Ids on their way into the token pool, in host memory that stays until they are copied.
#define MSGL_ENGINE_WRITES 64
#define MSGL_WRITE_IDS 1024
typedef struct msgl_token_write {
    int32_t place, count;
    int32_t ids[MSGL_WRITE_IDS];
} msgl_token_write;

typedef struct msgl_block { // memory to give back
    void *p;
    size_t bytes;
    bool host;
} msgl_block;

typedef void (*msgl_logits_fn)(void *ctx, const int32_t *rows, int32_t num_rows, int32_t vocab,
                               const float *logits);

struct msgl_engine {
    msgl_engine_info info;
    msgl_runner runner;
    msgl_kernels kernels;
    msgl_pool *pool;
    msgl_comm comm;
    msgl_device *device;
    msgl_model model;
    msgl_kv_pool kv;
    msgl_page_table page_table;
    msgl_attn_choice attn_choice;
    msgl_attn_backend *attn;
    msgl_exec exec;
    msgl_arena arena, scratch;
    int32_t max_step_tokens, max_running;
    int32_t token_stride; // of the token pool
    float rope_scale;
    msgl_engine_step steps[MSGL_ENGINE_SLOTS];
    msgl_engine_dev dev;
    msgl_token_write *writes; // [MSGL_ENGINE_WRITES], used in turn
    uint32_t next_write;
    msgl_block blocks[64];
    int32_t num_blocks;
    msgl_logits_fn on_logits;
    void *on_logits_ctx;
};

// step.c
int msgl__engine_write_tokens(void *engine, int32_t table_idx, int32_t pos, const int32_t *ids,
                              int32_t n);
int msgl__engine_submit(void *engine, msgl_batch *b);
int msgl__engine_wait(void *engine, int32_t slot, msgl_step_result *out);
// Bytes of the step arena that sample.c takes for this many rows.
size_t msgl__logits_bytes(const msgl_model *m, int32_t max_rows);

// sample.c: logits of the step's rows in blocks, tokens, log-probabilities. On the device's queue.
void msgl__sample_step(msgl_engine *e, msgl_engine_step *s, msgl_forward *f, const void *hidden);

// For tests and tools: called on the device's queue with every block of logits before it is
// sampled; rows are tokens of the step. NULL: off.
void msgl__engine_observe_logits(msgl_engine *e, msgl_logits_fn fn, void *ctx);

#endif
