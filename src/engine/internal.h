// SPDX-License-Identifier: Apache-2.0
//
// The engine's parts, shared by its files: engine.c builds and owns, step.c turns a batch into
// staged host data (scheduler's thread) and then into work (device's queue), sample.c handles
// logits.
#ifndef MSGL_ENGINE_INTERNAL_H
#define MSGL_ENGINE_INTERNAL_H

#include <pthread.h>

#include "attention/double_sparsity/channels.h"
#include "attention/dual_chunk/pattern.h"
#include "core/req_extra.h"
#include "device/devices.h"
#include "engine/engine.h"
#include "engine/plan.h"
#include "engine/weight_groups.h"
#include "engine/ranks.h"
#include "kernel/device.h"
#include "models/arch.h"
#include "models/digest.h"

#define MSGL_ENGINE_STEP_SLOTS 2

typedef struct msgl_draft_model msgl_draft_model; // draft_model.c
typedef struct msgl_engine_lora msgl_engine_lora; // lora.c

#define MSGL_MAX_SIZES 136 // of graphs: up to 1,024 requests in steps of 8
#define MSGL_MAX_GRAPHS (MSGL_MAX_SIZES + 8)
#define MSGL_MAX_VERIFY_GRAPHS 24

// What the host writes for the device before a step. Arrays per token have room for the step's
// tokens; see staging.c for their places.
typedef struct msgl_engine_io {
    size_t bytes;
    float *inv_freq;
    msgl_sample_replay *replay;     // what the graph samples
    msgl_sample_row *sample_rows;   // [num_samples]
    int32_t *sample_index;          // [num_samples] place in the token pool of the chosen token
    int32_t *positions;             // [num_tokens]
    int32_t *prompt_lens;           // [num_tokens], or NULL: as in msgl_forward
    int32_t *token_types;           // [num_tokens], or NULL: as in msgl_forward
    int32_t *pool_from;             // [num_tokens], or NULL: as in msgl_forward
    int32_t *pages[MSGL_MAX_SPANS]; // in each span with pages, those that the new tokens are in
    int32_t *id_index;              // [num_tokens] places of the input ids in the token pool
    int32_t *rows;                  // [num_rows] tokens of the step that get logits, ascending
    int32_t *record_index;          // [num_records] place in the token pool of the row's target
    int32_t *first;                 // [max_running] as in msgl_step_tokens; of chunks only
    void *seqs[2];                  // lengths and table rows of the step's, as core/seqs.h has them
    void *states[2];                // of their requests, as states.c has them
    uint64_t *tree;                 // [num_tokens] as in msgl_seqs; of steps with trees only
    // Where adapters are computed by tiles: of tokens, and of rows with logits.
    int32_t *lora_order[2];        // [num_tokens]
    msgl_lora_tile *lora_tiles[2]; // [msgl__engine_lora_tiles_room of num_tokens]
    int32_t *lora_slots[2];        // [num_tokens] a row's slot, -1: none
} msgl_engine_io;

// Of tokens and their K and V to where the accepted paths of trees want them, of num_reqs requests.
// Written when a step has ended, and read by the device before the next one.
typedef struct msgl_engine_moves {
    int32_t num_reqs;
    int32_t *tokens, *places; // [max_samples], [max_running]: the tokens of each, one behind the
                              // other, one more than its moves; where they go in the token pool
    // A block, which the device has, too: from and to in each table's span, as in
    // msgl_kv_move_call.
    int32_t *cu;                                        // [max_running + 1]
    int32_t *from[MSGL_MAX_SPANS], *to[MSGL_MAX_SPANS]; // [max_drafts]
} msgl_engine_moves;

// What attention makes of a request's rows of drafts.
typedef enum msgl_draft_rows {
    MSGL_ROWS_CHUNK,  // a chunk: on a CPU, where that has the bits of answers; and with states
    MSGL_ROWS_SPLIT,  // answers of their own, with the kernels, graphs and bits of these
    MSGL_ROWS_PACKED, // one sequence, by a kernel that reads K and V once for all its rows
} msgl_draft_rows;

typedef struct msgl_decode_graph {
    int32_t size;        // tokens, dummies included
    bool verifies;       // a step with drafts: packed rows, of up to `size` requests
    int32_t max_seq_len; // of any of them
    msgl_graph *graph;
    msgl_logits logits; // of `size` rows: where the graph leaves them
    // The same step with what adapters add, captured when a step first wants it (NULL until then):
    // to the layers that some adapter has changed so far.
    msgl_graph *with_adapters;
    msgl_logits with_adapters_logits;
} msgl_decode_graph;

// What a step leaves of its rows' hidden states, for a draft head.
typedef enum msgl_hidden_kind {
    MSGL_HIDDEN_NONE,
    MSGL_HIDDEN_FINAL,    // behind the final norm
    MSGL_HIDDEN_RESIDUAL, // the stream behind the last layer
    MSGL_HIDDEN_LAYERS,   // the stream behind some layers
} msgl_hidden_kind;

typedef struct msgl_engine_hidden {
    msgl_hidden_kind kind;
    int32_t num, dim, rows; // planes [rows, dim] of them
    // Of a target: its steps compute all rows to the end, for states behind the final norm. Rank 0
    // leaves them, and all others compute as many rows, since they add them up together.
    bool all_rows;
    int32_t layers[MSGL_MAX_AUX_STATES];
    // [num, rows, dim] of the step in a slot; a head's steps leave theirs in one place, behind each
    // other, as the rows of a tree read those of several.
    void *out[MSGL_ENGINE_STEP_SLOTS];
    // Of a target with several heads: of each running request's last tokens so many states are
    // kept, [max_running, past, dim] behind the last slot's. That of position p is the p % past-th.
    int32_t past;
    void *graph; // [num, max_seqs, dim] where a captured step leaves them
    // Of a head: [max_step_tokens, dim] what its step reads, and EAGLE-3's of the target before
    // their product; rows to gather; [vocab_size] the target's ids of its own, or NULL.
    void *in, *raw;
    int32_t *index, *draft_ids;
} msgl_engine_hidden;

// A state that is kept: from row `row` of a slot to row `to` of the same.
typedef struct msgl_hidden_keep {
    int32_t row, to;
} msgl_hidden_keep;

// Where a head's step finds the states of its tokens: whose, of which step slot and, [num_tokens],
// in which rows; and where it leaves its own.
typedef struct msgl_hidden_source {
    const struct msgl_engine *of;
    int32_t slot;
    const int32_t *rows;
    int32_t to_row;                // where those that the step leaves begin
    const msgl_hidden_keep *keeps; // [num_keeps] what is kept of the source behind the step
    int32_t num_keeps;
} msgl_hidden_source;

// What a request wants beside each of its records.
typedef struct msgl_engine_values {
    int32_t own;                // values, the listed tokens' and the hidden state's; 0: nothing
    int32_t first_record;       // of its records
    int32_t listed, num_listed; // where its tokens begin in `listed`
    int32_t hidden;             // its first row of row_hidden; -1: it wants none
} msgl_engine_values;

// One step. All but `dev` is host memory; the io, results and records are pinned on a GPU.
typedef struct msgl_engine_step {
    msgl_batch batch; // a copy: the caller's may change while the step runs
    msgl_batch_req *reqs;
    // The batch with rows of drafts as answers of their own, [max_seqs] split_reqs, unless drafts
    // are chunks: to all that is not attention; and to it with MSGL_ROWS_SPLIT.
    msgl_batch split;
    msgl_batch_req *split_reqs;
    void *host;             // the block that io's arrays are in
    msgl_engine_io io, dev; // the same layout, here and on the device
    msgl_seqs seqs[2];      // answers, then chunks; or all at once
    msgl_seq_states states[2];
    int32_t num_seqs;
    msgl_decode_graph *graph; // that runs it; NULL: launched kernel by kernel
    msgl_rope_segment *segments;
    msgl_step_rope ropes[MSGL_MAX_ROPES];
    int32_t num_rows, num_samples, num_records;
    int32_t *row_sample; // [num_rows] which of the sampled rows it is, -1: not sampled
    int32_t *row_record; // [num_rows] which of the records it is, -1: none wanted
    int32_t *sample_req; // [num_samples] request in the batch, ascending
    int32_t *drafts;     // [num_drafts] of its requests, one behind the other
    int16_t *parents;    // [num_drafts] the same
    int32_t num_drafts;
    bool packed;    // it has drafts, whose rows are packed (msgl_draft_rows)
    bool has_words; // rows see what their words of io.tree say: packed ones, and those of trees
    // When it has ended: [num_samples] the request's row that each token was chosen from; and what
    // the accepted paths of trees leave to do, which the device reads behind the step.
    int32_t *chosen_row;
    msgl_engine_moves moves;
    struct msgl_lora_step *lora; // rows that have adapters; NULL: none has
    const msgl_engine *from;     // of a head: whose states it reads, and of which slot
    int32_t from_slot, to_row;
    int32_t *from_index;     // [num_tokens, states a row] places in its planes
    msgl_hidden_keep *keeps; // [num_keeps]
    int32_t num_keeps;
    int32_t *sample_mask; // [num_samples] which of the masks it has, -1: none
    uint32_t *masks;      // [num_masks, words], as the scheduler made them
    int32_t num_masks;
    int32_t *sample_chain;     // [num_samples] which of the chains it has, -1: none
    msgl_sample_chain *chains; // [num_chains]
    int32_t num_chains;
    bool any_random, any_filter, any_adjust; // of the sampled rows
    bool whole_rows;                         // somebody looks at them
    msgl_token_logprobs *records;
    // What requests want beside their records (row_values.c): [size] of each request what it wants;
    // [max_running * MSGL_MAX_LISTED] the tokens, one request's behind the other's.
    msgl_engine_values *values;
    int32_t *listed, *cu_row_values;    // the latter as the result has it
    int32_t num_row_values, num_hidden; // values; rows of hidden states
    msgl_embed_run *embed_runs; // [max_running] rows that enter the first layer as they are given
    int32_t num_embed_runs;
    void *embeds; // [MSGL_EMBED_ROWS, hidden_size] theirs, as activations
    // Results
    float *row_values; // [num_row_values], by the kernel, and of hidden states when it has ended
    void *row_hidden;  // [num_hidden, hidden_size] as activations are
    void *hidden;      // [max_running, pooled_size] of an engine that pools, as activations are
    float *pooled;     // the same, as the result has them; of MSGL_POOL_SCORE there are these alone
    // [max_step_tokens, most values of a token] and [max_running + 1], with heads of tokens
    float *token_values;
    size_t *cu_token_values;
    int32_t *sampled; // [2, max_samples] tokens of the samples, then their status, by the kernel
    float *mu;        // [max_samples] of the samples with chains, by the kernel
    int32_t *cu_tokens, *status; // [batch.size + 1], [batch.size]
    int failure;                 // 0, or what broke the step
    uint64_t submit_ns, compute_ns;
    bool in_flight;
} msgl_engine_step;

// The device's memory that steps share, as they run one after the other.
typedef struct msgl_engine_dev {
    void *base;                           // the block that the steps' dev arrays are in
    int32_t *ids;                         // [max_step_tokens]
    msgl_token_logprobs *records;         // [max_step_tokens]
    int32_t *token_pool;                  // [max_running + 1, token_stride]
    int32_t *page_tables[MSGL_MAX_SPANS]; // [max_running + 1, token_stride / page_size]; NULL on
                                          // the CPU
    int32_t *slots[MSGL_MAX_SPANS];       // [max_step_tokens] of a step's tokens
    float *saved;                         // as the token pool: see msgl_sample_call
    msgl_bias *bias;                      // [max_running + 1, MSGL_MAX_LOGIT_BIAS]
    float *bias_saved;                    // the same shape
    uint32_t *masks;                      // [max_samples, words] of a step
    msgl_engine_moves moves;              // the block of the steps'
    msgl_sample_chain *chains;            // [max_samples] of a step
    float *mu;                            // [max_running + 1]: see msgl_sample_call
    uint32_t *breakers;                   // [max_running + 1, words], the same
    void
        *normed; // [NORMED_ROWS, hidden_size] hidden states on their way to the host (row_values.c)
} msgl_engine_dev;

// Ids on their way into the token pool and pages into the device's page table of a span (the ids
// with those of span 0), or pairs into the device's bias, or words into its breakers, in host
// memory that stays until they are copied.
#define MSGL_ENGINE_WRITES 64
#define MSGL_WRITE_IDS 1024
// Of an engine: of its steps, of writes, of moves behind steps, and of what its slots of adapters
// have.
#define MSGL_ENGINE_LORA_EVENT (2 * MSGL_ENGINE_STEP_SLOTS + MSGL_ENGINE_WRITES)
#define MSGL_ENGINE_EVENTS (MSGL_ENGINE_LORA_EVENT + 1)
typedef struct msgl_token_write {
    int32_t place, count, span, num_pages;
    union {
        struct {
            int32_t ids[MSGL_WRITE_IDS], pages[MSGL_WRITE_IDS];
        };
        msgl_bias bias[MSGL_MAX_LOGIT_BIAS];
        uint32_t words[MSGL_WRITE_IDS];
    };
} msgl_token_write;

// What admin.c has of the weights and their memory.
typedef struct msgl_engine_weights {
    char *dir;                // of the checkpoint that they are of; owned
    bool dummy;               // instead they are random
    bool changed;             // since then by tensors of no checkpoint
    msgl_model_digest digest; // of dir when it was read
    void *region;             // of e->model; bytes of it:
    size_t bytes;
    void **backup; // [num_backup] pieces of host memory with them while they are released
    size_t num_backup;
    pthread_t dropper; // gives these back, if `dropping`
    bool dropping;
    int32_t released;                  // MSGL_MEMORY_ bits
    char unusable[MSGL_ERR_TEXT_SIZE]; // why the weights are none; "": they are
    uint64_t *wanted; // [num_wanted] of weights that are to come: hashes of their tensors' names
    size_t num_wanted;
} msgl_engine_weights;

// Which experts a layer's tokens go to.
typedef struct msgl_expert_count {
    msgl_expert_hits *hits; // by phase; NULL: nobody counts
    msgl_phase phase;       // of the step that runs
    const msgl_moe_experts *layer;
    bool *hit;        // [experts] of the layer
    int32_t *offsets; // [experts + 1] host memory, for the device's
    msgl_moe_watch watch;
} msgl_expert_count;

typedef struct msgl_block { // memory to give back
    void *p;
    size_t bytes;
    bool host;
} msgl_block;

typedef void (*msgl_logits_fn)(void *ctx, const int32_t *rows, int32_t num_rows, int32_t vocab,
                               const float *logits);

struct msgl_engine {
    msgl_engine_info info;
    int32_t score_ids[2]; // with MSGL_POOL_SCORE: [info.pooled_size]
    msgl_runner runner;
    msgl_kernels kernels;
    msgl_pool *threads;
    msgl_pool *loaders; // of weights, for a device that computes; NULL: threads, or they are done
    msgl_rank_place place; // of several ranks; else size 0
    msgl_group_member *member;
    msgl_comm alone, *comm; // alone, or of several ranks
    char rank_fault[64];
    // Of a draft model: the engine that it makes drafts for. It computes on that one's device and
    // threads, in its queue, and keeps K and V in the pages of its span 0.
    const msgl_engine *parent;
    msgl_draft_model *draft; // NULL: none
    msgl_engine_lora *lora;  // NULL: it takes no adapters
    int32_t first_event;     // of the device's, those that it uses
    int32_t shift;           // of a head: a row's token is so many behind its state
    msgl_model ends; // of a head beside several ranks: what it shares with their model, whole
    msgl_engine_hidden hidden;
    msgl_device *device;
    const msgl_plugin *plugin;      // of the device's kind
    int ordinal;                    // of the device
    int sharing;                    // ranks on the device
    msgl_device_props device_props; // as it was before anything of it was taken
    bool deterministic;
    bool returns_hidden; // requests may want hidden states
    int32_t graph_max_bs;
    msgl_model model;
    msgl_dtype kv_dtype;
    msgl_cache_specs specs; // of the model; and of each of its groups:
    msgl_cache_group groups[MSGL_MAX_GROUPS];
    msgl_attn_choice attn_choices[MSGL_MAX_GROUPS]; // none for states
    bool apart;                                     // answers and chunks, for attention
    msgl_prompts prompts;                           // over latent caches
    msgl_attn_sparse sparse;   // double sparsity's; heavy_channels 0: nothing says which channels
    msgl_dual_pattern pattern; // of sparse prompts; no heads: all are dense
    msgl_page_table page_tables[MSGL_MAX_SPANS]; // of the first num_tables spans
    int32_t num_tables;
    msgl_exec exec;
    msgl_arena arena, scratch;
    int32_t max_step_tokens, max_running;
    int32_t max_drafts, max_samples; // of a step: of all its requests; chosen tokens
    msgl_draft_rows draft_rows;
    int32_t max_seqs; // of a step as layers see it: max_running, and the drafts if they are split
    int32_t topk;     // drafts at a token of a tree at most; 1: there are no trees
    int32_t token_stride; // of the token pool: whole pages, more tokens than max_seq_len
    int32_t logits_rows;  // at a time: bounds their memory, while lm_head is read once per block
    uint64_t done_ns;     // when the last step was seen to end
    msgl_engine_step steps[MSGL_ENGINE_STEP_SLOTS];
    msgl_decode_graph graphs[MSGL_MAX_GRAPHS]; // ascending
    int32_t num_graphs;
    msgl_decode_graph verify_graphs[MSGL_MAX_VERIFY_GRAPHS]; // of steps with drafts, the same
    int32_t num_verify_graphs;
    msgl_engine_dev dev;
    msgl_token_write *writes; // [MSGL_ENGINE_WRITES], used in turn
    uint32_t next_write;
    msgl_block blocks[64];
    int32_t num_blocks;
    msgl_logits_fn on_logits;
    void *on_logits_ctx;
    float *seen_logits; // host copy for the above; NULL where kernels write host memory
    bool whole_rows; // of the next step somebody looks at whole rows: the above, here or on rank 0
    msgl_expert_count experts;
    msgl_engine_weights weights;
    msgl_weight_groups *groups_of_trainers; // NULL: none was joined yet
    char *nccl_path;                        // msgl_options.nccl_path, owned
    struct msgl_heartbeat *heartbeat;       // told of long work between steps; NULL: nobody looks
};

// engine.c: memory that lives as long as the engine, zeroed; NULL sets *code, and is what there is
// when *code is set already. A line for o->log.
void *msgl__engine_take(msgl_engine *e, size_t count, size_t size, bool host, int *code,
                        msgl_err *err);
void msgl__engine_print(const msgl_options *o, const char *line);

// engine.c: msgl__engine_create for one rank of several, which o->tp_size is not read for.
int msgl__engine_create_rank(const msgl_options *o, const msgl_rank_place *place, msgl_engine **out,
                             msgl_err *err);

// What a draft model is to its target.
typedef struct msgl_draft_role {
    bool head;      // it is given hidden states
    bool in_target; // it is in the target's files
    // Of several heads there: for how many tokens further ahead it is than the first one, which has
    // what they share; NULL: this is the first.
    int32_t ahead;
    const msgl_engine *first;
} msgl_draft_role;

// engine.c, of a draft model, in the order of the calls: an engine with all that is known without
// memory, whose options are o; its sizes into the plan of e, whose groups are p->specs' first; its
// share of the plan; memory, weights and graphs. On failure the caller destroys it.
int msgl__engine_open_draft(const msgl_engine *e, const msgl_options *o,
                            const msgl_draft_role *role, msgl_engine **out, msgl_err *err);
int msgl__engine_add_sizes(const msgl_engine *draft, msgl_memory_plan *p, msgl_err *err);
void msgl__engine_take_plan(msgl_engine *draft, const msgl_memory_plan *p, int32_t first_group);
int msgl__engine_start_draft(msgl_engine *draft, const msgl_options *o, msgl_err *err);

// draft_model.c. open: what o names, or none where it names none; with auto it is decided here
// whether there is one, and said; plan: its sizes into *p, with the target's folder; planned: its
// share; start: memory, weights and graphs. follow: step s of the target has ended, with result
// *out; computes what there is of the step, and adds drafts to *out for those that want some.
int msgl__draft_model_open(msgl_engine *e, const msgl_options *o, msgl_err *err);
int msgl__draft_model_plan(const msgl_draft_model *d, const char *target, msgl_memory_plan *p,
                           msgl_err *err);
void msgl__draft_model_planned(msgl_draft_model *d, const msgl_memory_plan *p);
int msgl__draft_model_start(msgl_draft_model *d, msgl_err *err);
void msgl__draft_model_destroy(msgl_draft_model *d); // NULL is allowed
// Its engines: one, or of several heads each one's. most: drafts that it makes one behind the
// other.
msgl_engine *msgl__draft_model_engine(const msgl_draft_model *d, int32_t i);
int32_t msgl__draft_model_engines(const msgl_draft_model *d);
int32_t msgl__draft_model_most(const msgl_draft_model *d);
int msgl__draft_model_follow(msgl_draft_model *d, const msgl_engine_step *s, msgl_step_result *out);

// hidden.c. of_target, of_head: what e leaves, for a head of this config. bytes, create: of device
// memory. all_rows: whether steps have to compute all rows to the end.
void msgl__hidden_of_target(msgl_engine *e, const msgl_model_config *head);
void msgl__hidden_of_head(msgl_engine *e);
bool msgl__hidden_all_rows(const msgl_engine *e);
// The row that the kept state of a request's token at a position is, seen from this slot.
int32_t msgl__hidden_kept(const msgl_engine *e, int32_t slot, int32_t table_idx, int32_t position);
int32_t msgl__hidden_rows(const msgl_engine *e); // that there is room for in one place
size_t msgl__hidden_bytes(const msgl_engine *e);
int msgl__hidden_create(msgl_engine *e, msgl_err *err);
// Copies the ids of an EAGLE-3 head's drafts to the device.
int msgl__hidden_load_ids(msgl_engine *e, msgl_err *err);
// from NULL: the step is of no head.
void msgl__hidden_stage(msgl_engine_step *s, const msgl_hidden_source *from);
// On the device's queue: gathers what a head's step reads; sets f's part; leaves the states of
// `rows` rows, whose residual this is; copies what a graph has left; ids of drafts in the token
// pool become the target's.
void msgl__hidden_take(msgl_engine *e, const msgl_engine_step *s);
void msgl__hidden_capture(const msgl_engine *e, const msgl_engine_step *s, bool graph,
                          msgl_forward *f);
void msgl__hidden_leave(const msgl_engine *e, const msgl_engine_step *s, bool graph,
                        msgl_forward *f, const void *residual, int32_t rows);
void msgl__hidden_behind_graph(const msgl_engine *e, const msgl_engine_step *s);
void msgl__hidden_map(msgl_engine *e, const msgl_engine_step *s);

// connect.c: the ranks' communicator; their devices' choices of kernels, which rank 0 makes.
int msgl__engine_connect(msgl_engine *e, const msgl_options *o, struct msgl_heartbeat *heartbeat,
                         msgl_err *err);
int msgl__engine_share_choices(msgl_engine *e, msgl_err *err);
void msgl__engine_disconnect(msgl_engine *e);

// groups.c: what the model's groups of layers keep, and who attends over it. choose: specs, spans
// (info.cache, without their sizes), page size and backends, from sizes only; create_memory: pools
// and page tables, when groups[].pool and info.cache have their sizes; create_attention: behind the
// workspace. destroy gives back what no block of the engine is.
int msgl__groups_choose(msgl_engine *e, const msgl_options *o, int32_t max_seq_len, msgl_err *err);
int msgl__groups_create_memory(msgl_engine *e, msgl_err *err);
int msgl__groups_create_attention(msgl_engine *e, msgl_err *err);
void msgl__groups_destroy(msgl_engine *e);
// sparse.c: reads e->sparse, or makes it for a calibration, where the options say so. attention: of
// o, with what --enable-double-sparsity makes of it.
int msgl__sparse_open(msgl_engine *e, const msgl_options *o, msgl_err *err);
int msgl__sparse_spec(const msgl_options *o, const char **attention, msgl_err *err);
// Reads e->pattern, where the model has one and requests of up to max_seq_len tokens, the device
// and the options let it be used.
int msgl__sparse_prompts_open(msgl_engine *e, const msgl_options *o, int32_t max_seq_len,
                              msgl_err *err);
// What was chosen, as text.
void msgl__groups_describe(const msgl_engine *e, char *text, size_t size);

// staging.c: sizes of the steps' memory, handing it out, and the arrays for one step.
size_t msgl__staging_host_bytes(const msgl_engine *e);
size_t msgl__staging_device_bytes(const msgl_engine *e);
void msgl__staging_place(msgl_engine *e, void *host, void *device);
void msgl__step_bind(const msgl_engine *e, msgl_engine_step *s, int32_t num_tokens);
// The bytes of s->io that s's sequences read.
size_t msgl__step_io_bytes(const msgl_engine_step *s);

// states.c: where the states of a step's requests begin, go on and are kept. bytes: of one block of
// msgl_engine_io.states, 0 for models without states. valid: whether what a batch says about them
// is possible. fill: requests [first, first + s->seqs[i].size) of s->batch, those behind its end
// padding, as s->states[i].
size_t msgl__states_bytes(const msgl_engine *e);
int32_t msgl__states_cut(const msgl_engine *e); // msgl_runner.cut
bool msgl__states_valid(const msgl_engine *e, const msgl_batch *b);
void msgl__states_fill(const msgl_engine *e, msgl_engine_step *s, int32_t i, int32_t first);

// The place in the token pool of position `position` of a row.
static inline int32_t msgl__token_place(const msgl_engine *e, int32_t table_idx, int32_t position)
{
    return table_idx * e->token_stride + position;
}

// writes.c, of msgl_runner. drain: waits for writes, and for moves behind steps, which nobody else
// does where no step comes behind them.
int msgl__engine_write_tokens(void *engine, int32_t table_idx, int32_t pos, const int32_t *ids,
                              int32_t n);
int msgl__engine_write_extra(void *engine, int32_t table_idx, const msgl_req_extra *extra);
void msgl__engine_drain(msgl_engine *e);

// Of a rank: how something went that all do.
typedef struct msgl_verdict {
    msgl_err err;
    int32_t fits; // a second copy of the weights
    msgl_model_digest files;
} msgl_verdict;

// admin.c. agree: all ranks call it, and their verdicts become one: the first failure, and what is
// so on all of them; its code.
int msgl__engine_agree(const msgl_engine *e, msgl_verdict *own, msgl_err *err);
// The same, of msgl_admin_calls. opened: the weights of o->model_dir have been loaded into
// `region`.
int msgl__engine_admin(void *engine, const msgl_admin *a, msgl_err *err);
void msgl__engine_admin_state(void *engine, msgl_admin_state *out);
int msgl__engine_weights_opened(msgl_engine *e, const msgl_options *o, void *region, size_t bytes,
                                msgl_err *err);
void msgl__engine_weights_free(msgl_engine *e);

// step.c
int msgl__engine_submit(void *engine, msgl_batch *b);
// The same of a head; what `from` has is read at once.
int msgl__engine_submit_head(msgl_engine *e, msgl_batch *b, const msgl_hidden_source *from);
int msgl__engine_wait(void *engine, int32_t step_slot, msgl_step_result *out);
const char *msgl__engine_fault(void *engine);
// Dummy tokens in the places [from, to) of a decode step.
void msgl__step_pad(const msgl_engine *e, msgl_engine_step *s, int32_t from, int32_t to);
// The step's sequences, and what attention prepares for them; for a graph with its limits. 0, or a
// failure of the attention backend.
int msgl__step_seqs(msgl_engine *e, msgl_engine_step *s, const msgl_decode_graph *graph);
// On the device's queue: the staging; and what is captured, everything from ids to the logits of
// all tokens and the tokens chosen from them, for the first io.replay->num_rows rows.
void msgl__step_copy_in(msgl_engine *e, const msgl_engine_step *s);
bool msgl__step_forward(msgl_engine *e, msgl_engine_step *s, msgl_logits *out);

// graph.c: captures decode steps of up to max_size requests where the device and the attention
// backend can; the smallest captured one that holds `size` tokens of requests of lengths up to
// `seq_len`, or NULL; verifies: with drafts.
int msgl__graphs_capture(msgl_engine *e, int32_t max_size, msgl_err *err);
msgl_decode_graph *msgl__graphs_find(msgl_engine *e, bool verifies, int32_t size, int32_t seq_len);
// Captures g's step with adapters over the staging set of a step that is not in flight, which is to
// be staged anew.
int msgl__graph_capture_adapters(msgl_engine *e, int32_t step_slot, msgl_decode_graph *g,
                                 msgl_err *err);
void msgl__graphs_drop_adapters(msgl_engine *e); // all that were captured with adapters
void msgl__graphs_destroy(msgl_engine *e);

// Words of a request's mask; bytes of the scratch for masked copies of logits.
int32_t msgl__mask_words(const msgl_engine *e);
size_t msgl__masked_bytes(const msgl_engine *e);
// On the device's queue: what only steps with masks or chains have.
void msgl__step_copy_masks(msgl_engine *e, const msgl_engine_step *s);

// sample.c, on the device's queue. Bytes of the step arena that logits take; logits of n of the
// step's rows that get some, hidden being row 0; logits of all rows of a step in blocks, then what
// sample_block does: tokens, unless the graph has chosen them, and log-probabilities of rows
// [first, end). msgl__sample_in_graph is captured and samples the first io.replay->num_rows rows.
size_t msgl__logits_bytes(const msgl_engine *e);
void msgl__logits_block(const msgl_engine *e, msgl_forward *f, const void *hidden, int32_t first,
                        int32_t n, const msgl_logits *l);
void msgl__sample_step(msgl_engine *e, msgl_engine_step *s, msgl_forward *f, const void *hidden);
void msgl__sample_block(msgl_engine *e, msgl_engine_step *s, int32_t first, int32_t end,
                        const msgl_logits *l);
void msgl__sample_in_graph(msgl_engine *e, const msgl_engine_step *s, int32_t rows,
                           const msgl_logits *l);

// lora.c. open: of a model that is open and not loaded yet, where the options say so. scratch,
// arena: bytes of a step. load, loaded: msgl_runner.load_adapter and adapter_loaded. has: whether a
// request of a batch may have it. stage: which rows have which. What they do with drafts is the
// target's matter alone.
int msgl__engine_lora_open(msgl_engine *e, const msgl_options *o, msgl_err *err);
void msgl__engine_lora_close(msgl_engine *e);
size_t msgl__engine_lora_scratch(const msgl_engine *e);
size_t msgl__engine_lora_arena(const msgl_engine *e);
int32_t msgl__engine_adapters(const msgl_engine *e); // slots
int msgl__engine_load_adapter(void *engine, int32_t slot, const char *path, msgl_err *err);
int msgl__engine_adapter_loaded(void *engine, int wait_ms, uint64_t *digest, msgl_err *err);
bool msgl__engine_has_adapter(const msgl_engine *e, int32_t adapter);
void msgl__engine_lora_stage(msgl_engine *e, msgl_engine_step *s);
int32_t msgl__engine_lora_tiles_room(const msgl_engine *e, int32_t rows);
bool msgl__engine_lora_captures(const msgl_engine *e, const msgl_engine_step *s);
void msgl__engine_lora_tiles(msgl_engine *e, msgl_engine_step *s);
void msgl__engine_lora_capture(msgl_engine *e, int32_t step_slot, msgl_engine_step *s,
                               int32_t size);

// pool.c. choose: of a model whose config is read, whether the engine pools and to how many values;
// MSGL_EINVAL, or what the folder's files have. Of engines that pool: bytes of the step arena; on
// the device's queue: from the residual of the step's rows, each a prompt's last, to s->hidden;
// when the step has ended: what its result has.
int msgl__pool_choose(msgl_engine *e, const msgl_options *o, msgl_err *err);
size_t msgl__pool_bytes(const msgl_engine *e);
size_t msgl__token_values(const msgl_engine *e); // of one token, at most
void msgl__pool_step(msgl_engine *e, msgl_engine_step *s, msgl_forward *f, const void *hidden);
void msgl__pool_result(const msgl_engine *e, msgl_engine_step *s);

// row_values.c: what requests have beside their rows of log-probabilities, and rows that they give
// in place of the embedding's. most: values of a step; normed_bytes: of e->dev.normed. valid: what
// a batch says of both is possible. stage: behind the step's rows. listed, on the device's queue:
// records [at, to), of rows of logits from `logits` on. hidden: of all rows, `residual`. result:
// when the step has ended.
int32_t msgl__row_values_most(const msgl_engine *e);
size_t msgl__row_values_normed_bytes(const msgl_engine *e);
bool msgl__row_values_valid(const msgl_engine *e, const msgl_batch *b);
void msgl__row_values_stage(const msgl_engine *e, msgl_engine_step *s);
void msgl__row_values_listed(msgl_engine *e, const msgl_engine_step *s, int32_t at, int32_t to,
                             const float *logits);
void msgl__row_values_hidden(msgl_engine *e, const msgl_engine_step *s, msgl_forward *f,
                             const void *residual);
void msgl__row_values_result(const msgl_engine *e, msgl_engine_step *s);

// drafts.c: whether steps take drafts, and how many (e->max_drafts); MSGL_EUNSUPPORTED where the
// options ask for what the model or its attention cannot do. When a step with drafts has ended:
// what its result has of the tokens that were chosen.
int msgl__drafts_choose(msgl_engine *e, const msgl_options *o, msgl_err *err);
// valid: whether r's drafts are possible in b. stage: takes over those of s->batch and makes the
// batch that layers see. copy_in: runs on the device's queue and writes them to the token pool.
// as_attended: the batch whose requests attention sees, which has a request for each row where
// rows are computed as answers.
bool msgl__drafts_valid(const msgl_engine *e, const msgl_batch *b, const msgl_batch_req *r);
void msgl__drafts_stage(const msgl_engine *e, msgl_engine_step *s);
void msgl__drafts_copy_in(msgl_engine *e, const msgl_engine_step *s);
const msgl_batch *msgl__as_attended(const msgl_engine *e, const msgl_engine_step *s);
void msgl__accept_drafts(msgl_engine *e, msgl_engine_step *s);

// trees.c, of steps with trees. valid: r's parents, and what else a tree's request has to be.
// stage: the words of all tokens of answers and drafts. accepted: of the rows of a
// tree, which one each of the answer's tokens was chosen from, into rows; how many. moved: request
// i's tokens were chosen from other rows than its first ones. move: queues what that leaves to do,
// of all such requests. place: the block of a step's moves, from `base` on; its bytes.
bool msgl__tree_valid(const msgl_engine *e, const msgl_batch *b, const msgl_batch_req *r);
void msgl__trees_stage(msgl_engine_step *s, const msgl_batch *b);
int32_t msgl__tree_accepted(const msgl_batch_req *r, const int32_t *tokens, const int32_t *status,
                            int32_t *rows);
void msgl__tree_moved(msgl_engine *e, msgl_engine_step *s, int32_t i);
void msgl__trees_move(msgl_engine *e, msgl_engine_step *s);
void msgl__trees_wait(msgl_engine *e, int32_t step_slot); // until that is done
size_t msgl__moves_place(const msgl_engine *e, void *base, msgl_engine_moves *out);

// expert_hits.c: who a step's layers tell what they chose, or NULL; at the step's start, on the
// device's queue.
const msgl_moe_watch *msgl__expert_watch(msgl_engine *e, const msgl_batch *b);

// For tests and tools: called on the device's queue with every block of logits before it is
// sampled; rows are tokens of the step. NULL: off. 0, or MSGL_ENOMEM, MSGL_ELIMIT: a GPU's logits
// are copied to the host for it.
int msgl__engine_observe_logits(msgl_engine *e, msgl_logits_fn fn, void *ctx);

#endif
