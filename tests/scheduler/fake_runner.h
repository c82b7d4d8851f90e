// SPDX-License-Identifier: Apache-2.0
//
// An engine without a model. Its "K and V" of a token is a hash chain over everything before it,
// kept in a pool that it reaches only through the page table; the next token is a hash over what
// it reads there for the whole context. A wrong, stale or prematurely reused slot changes tokens.
// fake_generate computes the same tokens from the ids alone: the oracle. Spans with windows hold
// the same as the first, as far as a window reaches, and a state is the chain behind the last
// token.
//
// Steps run as late as allowed (inside wait), or on a thread of their own. The contract of
// msgl_runner is checked on the way; the first violation is kept in `fault`.
#ifndef MSGL_TESTS_SCHEDULER_FAKE_RUNNER_H
#define MSGL_TESTS_SCHEDULER_FAKE_RUNNER_H

#include <pthread.h>

#include "core/batch.h"
#include "core/req_extra.h"
#include "kvcache/kvcache.h"
#include "kvcache/layout.h"
#include "message/message.h"

typedef struct fake_kv {
    int32_t token, position;
    uint64_t chain;
} fake_kv;

enum { FAKE_STEP_SLOTS = 2, FAKE_TOPK = 3 }; // drafts at a token of a tree
enum { FAKE_ADAPTERS = 4 };

typedef struct fake_step {
    bool in_flight, done;
    msgl_batch batch;
    msgl_batch_req *reqs;
    int32_t *rows; // [max_running, stride] the page table as it was at submit
    int32_t *tokens, *cu_tokens, *status;
    msgl_token_logprobs *logprobs;
    int32_t num_logprobs;
    uint64_t *before; // [max_running] chain that each request continues
} fake_step;

typedef struct fake_runner {
    msgl_runner runner;
    msgl_cache_layout layout;
    msgl_page_table tables[MSGL_MAX_SPANS], table; // table: the first of them
    int32_t num_pages, page_size, vocab_size, max_logprobs;
    fake_kv *kvs[MSGL_MAX_SPANS];           // [num_pages * page_size]
    fake_kv *kv;                            // the first of them
    uint64_t *states;                       // [max_running] chain behind the row's last token
    uint64_t *checkpoints, *checkpoint_use; // [num_units]
    int32_t *token_pool;                    // [max_running + 1, row_tokens]
    int32_t row_tokens;
    int32_t *num_proposals, *proposals; // of the last step
    int16_t *proposal_parents;
    uint64_t moved; // rows of trees that had to move
    float *proposal_shares;
    int32_t *row_bias;                  // [max_running] first token of the row's logit_bias
    uint64_t *last_use[MSGL_MAX_SPANS]; // [slots] number of the last step that read or wrote it
    fake_step steps[FAKE_STEP_SLOTS];
    uint64_t num_steps; // submitted; step k uses number k + 1
    uint64_t step_number[FAKE_STEP_SLOTS];
    // What a test may set:
    // compute_ns of a step: fixed part of one with answers and of one without, and per prompt token
    uint64_t prefill_ns, prefill_token_ns, decode_ns;
    uint64_t noise;                                  // != 0: state of a generator for jitter
    uint64_t nan_uid;                                // this request's logits are NaN
    int32_t nan_from;                                // from this device_len on
    uint64_t guesses;                                // state of the draft model's generator
    bool expects_cuts;                               // chunks are cut where runner.cut says
    int fail_submit_at, fail_wait_at, fail_write_at; // 1 = the next call; 0 never
    int32_t max_step_adapters;
    int adapter_polls;       // questions after an adapter that is being read, before it is there
    uint64_t adapter_digest; // of every folder that is read
    // What it may look at:
    int num_loads; // of adapters, begun
    uint64_t
        adapters[FAKE_ADAPTERS];  // what the slots have: the number that the path is; 0: nothing
    int loading_slot, polls_left; // -1: none is being read
    uint64_t loading_adapter;     // 0: its path is no number
    char fault[200];
    uint64_t adapter_of[64]; // by uid, 0: none, what the steps' slots have to have
    int32_t answers[1 << 12], chunk_tokens[1 << 12]; // of the steps submitted
    uint64_t prefill_tokens, drafts;
    uint64_t clock_ns; // sum of the compute_ns of the steps waited for
    // Thread
    bool threaded, stop;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t num_run; // steps run by the thread
} fake_runner;

msgl_cache_layout fake_layout(int32_t num_pages, int32_t page_size); // one span
void fake_init(fake_runner *f, int32_t max_running, int32_t max_seq_len,
               const msgl_cache_layout *layout, int32_t vocab_size, bool threaded);
void fake_free(fake_runner *f);

// The tokens that a request must get, and why it ends; out has room for max_tokens.
int32_t fake_generate(const int32_t *ids, int32_t num_ids, const msgl_sampling_params *p,
                      int32_t max_seq_len, int32_t vocab_size, int32_t eos, int32_t *out,
                      msgl_finish *finish);
// Log-probability that the runner reports for the token at `position`, given all before it.
float fake_logprob(const int32_t *ids, int32_t position);

#endif
