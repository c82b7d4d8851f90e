// SPDX-License-Identifier: Apache-2.0
//
// What one step of the engine works on, and what comes back. A step is ragged: each request has any
// number of new tokens, one for an answer that goes on, many for a chunk of a prompt, and all of
// them go through the layers together. A batch is a snapshot: the scheduler may change its requests
// while the step runs (overlap scheduling), so lengths and sampling parameters are copied in. Token
// ids are not in it: they live in the engine's token pool, indexed like the page table, where the
// sampler writes the next token without the host in between.
#ifndef MSGL_CORE_BATCH_H
#define MSGL_CORE_BATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "core/sampling_params.h"

#define MSGL_MAX_TREE 64 // new tokens of a request in a step with trees
#define MSGL_MAX_DRAFTS (MSGL_MAX_TREE - 1)
#define MSGL_MAX_STEP_DRAFTS 256 // of all requests of a step
#define MSGL_MAX_PROPOSALS 16    // drafts that a draft model makes for a request in a step

// core/req_extra.h, which C++ cannot include: its reference count is an atomic of C11.
typedef struct msgl_req_extra msgl_req_extra;

// A request's part in a step: a chunk of its prompt, or one more token of its answer.
typedef enum msgl_phase { MSGL_PREFILL, MSGL_DECODE } msgl_phase;

typedef struct msgl_state_save {
    int32_t len, checkpoint;
} msgl_state_save;

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
    // Where the model keeps states (kvcache/layout.h): the checkpoint that the row's state begins
    // with, -1: it goes on from the step before, or from zero where cached_len is 0; and where to
    // keep a copy of it, the state behind token saves[i].len of the request. Steps run in order, so
    // a later one may load what this one saves. With drafts the row gets the state behind the last
    // of them: if not all are accepted, the next step loads what this one has saved behind the last
    // accepted one.
    int32_t load_state;
    int32_t num_saves;
    // [num_saves], len ascending in (cached_len, device_len]; the scheduler's, as extra is
    const msgl_state_save *saves;
    int32_t adapter; // 1 + the slot of the one that its rows have (load_adapter below); 0: none
    bool sample; // choose a token from the last row and write it to the token pool at device_len
    // Guesses at the tokens behind the one at cached_len, which the last num_drafts rows are of:
    // device_len = cached_len + 1 + num_drafts. Tokens are chosen from all of these rows, and the
    // answer gets them up to and with the first that is not the draft behind its row: of drafts 5,
    // 6, 7 and choices 5, 6, 8, 9 it gets 5, 6, 8, and goes on at cached_len + 3. K and V of rows
    // behind are those of no token; later steps write over them. The scheduler's, as extra is.
    int32_t num_drafts;
    const int32_t *drafts; // [num_drafts]
    // NULL: each draft follows the one before it. Or [num_drafts]: drafts form trees, and this is
    // the row that each follows, 0 being the first of the request's rows in the step, always one
    // before its own: with 0, 0, 1 drafts 0 and 1 are guesses at the same token, and draft 2 is one
    // at what comes behind draft 0. A row then is at the position behind that of the row that it
    // follows, but has its K and V where it is itself, behind the rows before it; when it is known
    // which rows are the answer's, theirs move together. The answer gets the choices of the rows on
    // the path that its choices take. Of a draft model's own steps also -1: rows that follow none,
    // and then all rows are drafts and none is verified. For requests alone whose choices read
    // neither masks nor tokens, in steps without chunks, of an engine that was made for trees.
    const int16_t *draft_parents;
    // With a draft model: how many drafts of what comes behind this step's tokens it shall make, up
    // to MSGL_MAX_PROPOSALS one behind the other, where `sample` is set; and in a tree how many in
    // all, up to MSGL_MAX_DRAFTS, 0: no tree. Its page table row has pages for so many positions
    // behind device_len as there are drafts, or rows of msgl__propose_rows.
    int32_t propose, propose_nodes;
    msgl_sampling_params sampling;
    const msgl_req_extra *extra; // or NULL; the scheduler's, until the step's result is handled
    // NULL, or [1 + num_drafts, mask_words]: the token to choose from a row is one of those whose
    // bits are set, as if the others' logits were -inf before anything else. The scheduler's, as
    // extra is; read by submit.
    const uint32_t *mask;
    // With mirostat: its state to begin with, where the row has none of this request yet; else NaN.
    float mu;
} msgl_batch_req;

// Requests of a step whose tokens are neighbours, as attention and every other mixer over sequences
// takes them. The engine computes this once per step and owns the arrays; those of the device have
// the same content at addresses that captured graphs keep (on the CPU they are the host's).
typedef struct msgl_seqs {
    msgl_phase phase;            // prefill: also when a mixer takes chunks and answers together
    int32_t size;                // requests, those that only pad a captured graph included
    int32_t first_token;         // row of the step at which they begin
    int32_t num_tokens;          // rows
    int32_t max_seqlen_q;        // most new tokens and most keys of a request; of a graph: of any
    int32_t max_seqlen_k;        // batch that it may be launched for
    const int32_t *cu_seqlens_q; // [size + 1] first row of each request, from 0
    const int32_t *seqlens_k;    // [size] keys, the new tokens' included
    const int32_t *table_rows;   // [size] row of page table and token pool
    const int32_t *dev_cu_seqlens_q, *dev_seqlens_k, *dev_table_rows;
    // NULL: a new token sees those before it. Or [num_tokens]: the new tokens of a request form
    // trees (drafts to be verified), and bit j of its row i is set where new token j is i or an
    // ancestor of i, j <= i < MSGL_MAX_TREE. A token's result is that of its path alone: all keys
    // before the new tokens, then its ancestors, then itself, at successive positions.
    const uint64_t *tree, *dev_tree;
    int32_t step_slot; // msgl_batch.step_slot of the step
    bool related;      // some may be rows of one request, which see each other's keys
    bool graph;        // for a captured graph: no launch may depend on the lengths
} msgl_seqs;

typedef struct msgl_batch {
    int32_t size;         // requests
    int32_t num_decode;   // the first so many are answers with one new token each; then come those
                          // with drafts, then chunks
    int32_t num_tokens;   // sum of extend_len
    int32_t mask_words;   // of each request's mask: ceil(vocab_size / 32)
    msgl_batch_req *reqs; // [size]
    // The staging set of this step, in a ring of max_in_flight sets: with two, steps 0, 1, 2, 3 use
    // slots 0, 1, 0, 1.
    int32_t step_slot;
} msgl_batch;

static inline int32_t msgl__extend_len(const msgl_batch_req *r)
{
    return r->device_len - r->cached_len;
}

// Of a request with a tree of drafts: the row behind row `row` that is a draft of `token`, -1: none
// is. With token -1 any draft.
static inline int32_t msgl__draft_behind(const msgl_batch_req *r, int32_t row, int32_t token)
{
    for (int32_t i = row; i < r->num_drafts; i++) {
        if (r->draft_parents[i] == row && (token < 0 || r->drafts[i] == token)) return 1 + i;
    }
    return -1;
}

// Deepest tree that is drawn topk wide, so that its last pass has no more rows than a word bits.
static inline int32_t msgl__propose_depth(int32_t topk)
{
    const int32_t most = MSGL_MAX_TREE / topk + 1;
    return most < MSGL_MAX_PROPOSALS ? most : MSGL_MAX_PROPOSALS;
}

// Positions behind the known token that are written while a tree of `depth` is drawn, topk wide,
// and verified with `nodes` drafts: the last pass computes the topk likeliest of each depth before.
static inline int32_t msgl__propose_rows(int32_t depth, int32_t topk, int32_t nodes)
{
    const int32_t drawn = (depth - 1) * topk;
    return drawn > nodes ? drawn : nodes;
}

// What an engine makes of requests.
typedef enum msgl_pooling {
    MSGL_POOL_NONE,     // tokens
    MSGL_POOL_EMBED,    // the hidden state of a prompt's last token, behind the final norm; of
                        // encoders what msgl_pool_mode says
    MSGL_POOL_SCORE,    // two tokens' logits behind a prompt
    MSGL_POOL_CLASSIFY, // a logit for each label of the model's own head
} msgl_pooling;

// Which of a text's hidden states its vector is made of.
typedef enum msgl_pool_mode {
    MSGL_POOL_LAST,
    MSGL_POOL_FIRST, // CLS
    MSGL_POOL_MEAN,
} msgl_pool_mode;

// What a request wants of a text, in an engine that embeds.
typedef enum msgl_token_task {
    MSGL_TASK_TEXT,    // its vector
    MSGL_TASK_VECTORS, // a vector of each token
    MSGL_TASK_WEIGHTS, // a weight of each token
} msgl_token_task;

// Log-probabilities for one token of one request (natural log, of the softmax of the raw logits).
typedef struct msgl_token_logprobs {
    int32_t req;      // index in the batch
    int32_t position; // of the token that this row predicted
    int32_t token;    // the prompt's token at that position, or the sampled one
    float logprob;
    int32_t rank; // of the token by the logits, 1: the first (ties: the lowest id is); 0: none
    int32_t num_top;
    int32_t top_ids[MSGL_MAX_LOGPROBS]; // most likely first
    float top_logprobs[MSGL_MAX_LOGPROBS];
    double log_sum; // of the exponentials of the row's logits: logprob = logit - log_sum
} msgl_token_logprobs;

// Result of a step, in memory of the engine, valid until its step slot is used again.
typedef struct msgl_step_result {
    int32_t size;
    // Chosen tokens: those of request i are [cu_tokens[i], cu_tokens[i + 1]); none for a chunk that
    // is not its prompt's last; with drafts those that are accepted and the one behind them.
    const int32_t *tokens, *cu_tokens;
    // NULL, or of each chosen token: mirostat's state behind it; of requests without, nothing of
    // use.
    const float *mu;
    const int32_t *status; // [size] 0, or MSGL_ENUMERIC: the logits were NaN, no token
    // NULL, or of an engine that pools, in the tokens' place: [cu_tokens[size], pooled_size], all
    // finite where the status is 0.
    const float *pooled;
    // The same, or NULL, of requests for values of each token (msgl_req_extra.token_task): those of
    // request i are [cu_token_values[i], cu_token_values[i + 1]), row by row.
    const float *token_values;
    const size_t *cu_token_values;
    int32_t num_logprobs;
    const msgl_token_logprobs *logprobs; // in request order, positions ascending
    // NULL, or what is beside the rows of log-probabilities: of each row of request i, one behind
    // the other from row_values[cu_row_values[i]] on, its msgl__req_extra_row_values.
    const float *row_values;
    const int32_t *cu_row_values; // [size]
    uint64_t compute_ns;
    // With a draft model: [size] how many drafts it has of request i, at proposals[i *
    // MSGL_MAX_DRAFTS], and how long it took to make them, beside compute_ns. NULL: nobody wanted
    // some. Of a tree they are descending by the probability that the model gives them and all that
    // they follow; proposal_parents are their draft_parents, and proposal_shares the part that each
    // has of the probability that its siblings in the tree have together; of a chain the row before
    // and 1.
    const int32_t *num_proposals, *proposals;
    const int16_t *proposal_parents;
    const float *proposal_shares;
    uint64_t propose_ns;
} msgl_step_result;

// Rows of a step that enter the first layer as requests give them (msgl_req_extra.embeds).
#define MSGL_EMBED_ROWS 256

// How the scheduler drives an engine; tests put a model-free one behind it. All calls come from the
// scheduler's thread. Work is done in the order submitted.
typedef struct msgl_runner {
    void *ctx;
    int32_t max_in_flight; // steps that may be in step_slot at once (2 for overlap)
    // Tokens that the products of a large step take at a time: steps of a multiple are the cheapest
    // ones; 0: any.
    int32_t tile;
    // Where it is not 0: results do not depend on how prompts are cut into steps, if that is done
    // at multiples of so many tokens of a request.
    int32_t cut;
    // Every token of a prompt sees every other: a step has all of it or none, and it may be longer
    // than a step's tokens usually are.
    bool whole_prompts;
    int32_t max_drafts;   // in a step, of all its requests; 0: it takes none
    int32_t max_propose;  // of a request in a step; 0: there is no draft model
    int32_t max_adapters; // slots
    // Values beside rows of log-probabilities (msgl__req_extra_row_values) that a step brings at
    // most: as many as max_running rows have, and some more for chunks.
    int32_t max_row_values;
    int32_t hidden_size; // of hidden states among them; 0: requests cannot have any
    int32_t embed_size;  // of rows that requests give in place of the embedding's; 0: it takes none
    // Puts ids[0, n) at positions [pos, pos + n) of row table_idx in the token pool, after the
    // steps already submitted. ids may be reused when the call returns.
    int (*write_tokens)(void *ctx, int32_t table_idx, int32_t pos, const int32_t *ids, int32_t n);
    // Puts a request's variable part where steps of row table_idx find it, after the steps already
    // submitted. *extra may go when the call returns.
    int (*write_extra)(void *ctx, int32_t table_idx, const msgl_req_extra *extra);
    // Begins to read an adapter's folder, which is for a slot, [0, max_adapters), or with path NULL
    // empties the slot; then no step in flight may have it. One at a time: MSGL_EBUSY. NULL: the
    // engine takes none.
    int (*load_adapter)(void *ctx, int32_t slot, const char *path, msgl_err *err);
    // What has come of it, for which steps go on meanwhile. 1: it is in its slot, which no step in
    // flight may have had, and *digest is that of its files: another one where the folder has
    // changed since it was last read; 0: it is still being read, though wait_ms milliseconds have
    // passed (negative: as long as it takes); negative: one line about the folder, and the slot is
    // as it was.
    int (*adapter_loaded)(void *ctx, int wait_ms, uint64_t *digest, msgl_err *err);
    // Starts a step; returns at once. The page table's rows must already hold the pages of all
    // positions < device_len. b->step_slot, in [0, max_in_flight), must not be in flight.
    int (*submit)(void *ctx, msgl_batch *b);
    // Blocks until the step in step_slot is done. A negative status means that the engine is
    // broken.
    int (*wait)(void *ctx, int32_t step_slot, msgl_step_result *out);
    // What broke the engine, or NULL when only the status is known. Optional.
    const char *(*fault)(void *ctx);
} msgl_runner;

// Reads an adapter, or with path NULL empties the slot, and waits for that.
static inline int msgl__runner_load_adapter(const msgl_runner *r, int32_t slot, const char *path,
                                            msgl_err *err)
{
    const int rc = r->load_adapter(r->ctx, slot, path, err);
    if (rc != 0 || path == NULL) return rc;
    uint64_t digest;
    const int loaded = r->adapter_loaded(r->ctx, -1, &digest, err);
    return loaded > 0 ? 0 : loaded;
}

#endif
