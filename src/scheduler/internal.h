// SPDX-License-Identifier: Apache-2.0
//
// The scheduler's state, shared by its files. Everything here belongs to one thread.
//
// Every decision is a function of the calls made (add, abort, flush, in their order), of the step
// results (tokens, status, compute_ns), and of when the masks of answers with a grammar are there.
// Rank 0 alone decides; the other ranks get its batches.
#ifndef MSGL_SCHEDULER_INTERNAL_H
#define MSGL_SCHEDULER_INTERNAL_H

#include "drafts/costs.h"
#include "drafts/depth.h"
#include "drafts/drafter.h"
#include "grammar/constrain.h"
#include "scheduler/pace.h"
#include "scheduler/scheduler.h"
#include "scheduler/step_times.h"
#include "scheduler/token_masks.h"
#include "utils/uids.h"

typedef enum msgl_req_state {
    MSGL_REQ_GRAMMAR, // it is in grammar_queue until its grammar is compiled, and owns nothing
    MSGL_REQ_WAITING, // it is in `waiting`, and owns nothing
    MSGL_REQ_PREFILL, // it is in `running`, with a row and pages; its prompt is not all submitted
    MSGL_REQ_DECODE,  // its prompt is submitted, its first token sampled or on its way
    MSGL_REQ_LEAVING, // it goes back to `waiting` when no step in flight uses its row and pages
    MSGL_REQ_DONE,    // it has ended, and keeps row and pages while a step in flight uses them
} msgl_req_state;

// A client of the server; the struct exists while it has requests.
typedef struct msgl_client {
    msgl_uid id; // the first member: `clients` finds the struct by it
    int32_t requests, rows;
    int32_t pages; // promised; scratch of table.c
    // The value of `chunks` when a chunk of its prompts was last in a step; 0: never.
    uint64_t served;
} msgl_client;

typedef struct msgl_req {
    msgl_uid uid;                 // first, in `uids`; not while DONE
    msgl_client *client;          //
    uint64_t salt;                // of what it shares, its adapter's number included
    uint64_t adapter;             // 0: none; msgl_msg_request
    char *adapter_path;           // where it is read from; or NULL
    int32_t adapter_slot;         // 1 + its slot, while it has a row; else 0
    struct msgl_req *prev, *next; // in `grammar_queue`, `waiting` or `running`
    uint64_t arrival;             // the smaller, the older
    msgl_sampling_params sampling;
    msgl_req_extra *extra;       // a reference, or NULL
    msgl_constraint *constraint; // or NULL: the answer may be anything
    msgl_token_masks *masks;     // or NULL, as with a constraint
    msgl_req_state state;
    bool keep_kv;       // its K and V may go to the prefix cache at the end
    bool private_kv;    // they never do, nor is anything of it there: its ids say not what it is
    int32_t row_values; // beside each of its rows of log-probabilities
    int32_t prompt_len; //
    int32_t max_len;    // prompt_len + max_tokens
    int32_t num_ids;    // tokens that the host knows: prompt and handled results
    int32_t fill_len;   // tokens known when it got its row: they are computed in chunks
    int32_t echoed;     // prompt tokens whose log-probabilities were submitted, if wanted
    // Tokens whose K and V are in the pool once all submitted steps are done; of drafts in flight
    // none are.
    int32_t device_len;
    int32_t inflight;  // submitted steps with this request whose results are not handled
    int32_t row;       // of the page table; -1: none
    int32_t reserved;  // pages that it was promised, cache_handle.num_pages among them; it may
                       // outgrow them
    int32_t begin_len; // tokens that the row found in the prefix cache
    int32_t cached_tokens;
    float mu; // mirostat's state behind the last token that the host knows
    msgl_draft_state draft;
    msgl_draft *ahead;   // with a constraint: the drafts that it makes masks for; or NULL
    int32_t most_drafts; // that it may have in a step; 0: it drafts nothing
    // Of the step being built: which of `offers` is its own, -1: none, and how many of it are taken
    // at most.
    int32_t offer, num_drafts;
    int32_t draft_match, draft_ahead; // of its drafts in flight: the match, and the guess at the
                                      // token before them, -1: it was known
    int32_t drafted, accepted;        // drafts so far, and those that are in its answer
    // With a draft model: what it says comes behind the tokens that the host knows.
    int32_t num_proposed, proposed[MSGL_MAX_DRAFTS];
    int16_t proposed_parents[MSGL_MAX_DRAFTS]; // as msgl_step_result has them
    float proposed_shares[MSGL_MAX_DRAFTS];
    msgl_depth depth;    // and how many of it are wanted
    int32_t draft_state; // the state that its next step begins with, where not all drafts of the
                         // last one were accepted; -1: its row's
    msgl_cache_handle cache_handle; // rows, pages and prefix, while it has a row
    int32_t ids[];                  // [max_len]
} msgl_req;

typedef struct msgl_req_list {
    msgl_req *head, *tail;
    int32_t count;
} msgl_req_list;

// A step that was submitted, or is being built. The ring of them is msgl_scheduler.inflight.
typedef struct msgl_inflight_step {
    msgl_batch batch;
    msgl_req **owners; // [batch.size]
    // [max_saves] the saves of the batch's requests, request after request, those of checkpoints
    // and those behind drafts: with 2 of request 0 and
    // 1 of request 1, request 1's is saves[2].
    msgl_state_save *saves;
    int32_t num_saves;
    // With a drafter: [num_drafts] those of the batch's requests, and masks for their rows, made
    // when the first request needs some.
    int32_t *drafts;
    int16_t *draft_parents;
    uint32_t *draft_masks;
    int32_t num_drafts, num_drafting;   // and how many requests have some
    bool has_trees;                     // then there are no chunks
    int32_t num_proposing;              // requests that want some of the draft model
    int32_t num_row_values, num_embeds; // beside rows of log-probabilities; rows of input_embeds
    uint64_t expected_ns;               // time that the step is expected to take; 0: unknown
} msgl_inflight_step;

// One of the engine's slots.
typedef struct msgl_adapter_slot {
    uint64_t id;      // of the adapter that is there; 0: none
    uint64_t loading; // not 0: of the one that is being read in its place; nobody can have id then
    uint64_t digest;  // of its files when it was read
    uint64_t used;    // the larger, the more recently
    int32_t users;    // requests with rows
    bool dropped;     // it goes with the last request that has come with it
} msgl_adapter_slot;

// A load that was asked for by itself.
typedef struct msgl_adapter_load {
    struct msgl_adapter_load *next;
    uint64_t id;
    bool ended;
    msgl_err err; // code 0: it is in memory
    char path[];
} msgl_adapter_load;

// Numbers of adapters that were taken away last: of them none is read again.
enum { MSGL_MAX_DROPPED_ADAPTERS = 256 };

enum { MSGL_MAX_IN_FLIGHT = 2 };

struct msgl_scheduler {
    msgl_options options; // the texts in it are not read after creation
    msgl_scheduler_config cfg;
    msgl_runner runner;
    msgl_emit_fn emit;
    void *emit_ctx;
    msgl_cache *cache;
    msgl_req_list grammar_queue, waiting, running;
    msgl_constrainer *constrainer; // NULL: no request had a grammar yet
    msgl_uids uids, clients;
    uint64_t chunks;    // of prompts, so far
    msgl_req *cursor;   // of a walk over `running` that requests may leave meanwhile: the next one
    int32_t *free_rows; // stack
    int32_t num_free_rows;
    int32_t reserved;   // pages promised to running requests that they do not have yet
    int32_t answer_len; // expected of an answer, in 1/16 tokens: of those seen, smoothed
    uint64_t arrivals;
    bool stuck;            // the next of the queue did not fit, and no pages have come back since
    bool stuck_in_windows; // but for want of these pages of windows, which come back by sliding
    int32_t lacks[MSGL_MAX_SPANS];
    msgl_inflight_step inflight[MSGL_MAX_IN_FLIGHT];
    // inflight is a ring of `depth` step slots: with depth 2, next_step_slot 0 and num_in_flight 1,
    // the oldest step is in slot 1.
    int32_t depth, num_in_flight, next_step_slot;
    msgl_token_event *events; // [max_running]
    msgl_pace pace;
    msgl_step_times times;
    bool drafting;         // else answers go on by one token a step
    msgl_drafter *drafter; // that matches tokens; NULL: drafts are a draft model's
    msgl_step_costs costs; // of steps with answers alone
    msgl_draft *offers;    // [max_running] of the step being built
    msgl_depths depths;    // of a draft model
    bool trees_allowed;    // in the step being built
    msgl_depth_ask *asks;  // [max_running] likewise
    uint64_t drafted_at[MSGL_DRAFT_POSITIONS], accepted_at[MSGL_DRAFT_POSITIONS];
    int32_t *free_draft_states; // stack
    int32_t num_free_draft_states;
    int broken;       // the engine's failure; nothing runs any more
    bool paused;      // no step is started
    uint64_t weights; // counts what was forgotten: prefixes of other weights are not shared
    msgl_adapter_slot *adapters; // [num_adapters]
    int32_t num_adapters;
    uint64_t adapter_uses;
    msgl_adapter_slot *loading;       // the one that is being filled, or NULL
    msgl_adapter_load *adapter_loads; // the oldest first
    msgl_adapter_load *told;          // the last one that msgl__scheduler_adapter_done has told of
    uint64_t dropped_adapters[MSGL_MAX_DROPPED_ADAPTERS]; // a ring
    uint64_t num_dropped;
    // The oldest request that waits for others to leave its adapter room, by its arrival
    // (UINT64_MAX: none does), and how many younger ones with other adapters have begun meanwhile.
    uint64_t blocked_arrival, blocked_adapter;
    int32_t passed;
    uint8_t *marks; // [units of the largest span], for the check
    msgl_msg_stats stats;
    msgl_durations step_ns;
};

// scheduler.c: waits for the oldest step in flight and handles it: 0, or the engine's failure,
// which all requests have been told.
int msgl__sched_finish_step(msgl_scheduler *s);
// admin.c: the same for all of them.
int msgl__sched_settle(msgl_scheduler *s);
// scheduler.c: frees what the finished request r holds, then r itself.
void msgl__sched_retire(msgl_scheduler *s, msgl_req *r);

// requests.c
void msgl__req_push(msgl_req_list *l, msgl_req *r);
void msgl__req_push_by_age(msgl_req_list *l, msgl_req *r);
void msgl__req_unlink(msgl_req_list *l, msgl_req *r);
void msgl__req_free(msgl_scheduler *s, msgl_req *r);
// The one of `waiting` that is next: the oldest of the client with the fewest rows, of those that
// do not wait for their adapters. NULL: there is none.
msgl_req *msgl__sched_next(const msgl_scheduler *s);
void msgl__sched_emit_error(msgl_scheduler *s, uint64_t uid, int32_t prompt_len, int status,
                            const char *text);

void msgl__sched_emit_end(msgl_scheduler *s, uint64_t uid, int32_t prompt_len, msgl_finish finish,
                          int status, const char *text);

// draft.c. create: as the options and the engine have it; MSGL_EINVAL, MSGL_ENOMEM. open: for a
// request that has come.
int msgl__sched_drafter_create(msgl_scheduler *s, msgl_err *err);
void msgl__sched_drafter_destroy(msgl_scheduler *s);
void msgl__sched_draft_open(const msgl_scheduler *s, msgl_req *r);
void msgl__sched_draft_close(msgl_req *r);
// The answer of r, which has a constraint, goes on by `num` tokens.
void msgl__sched_go_on(msgl_scheduler *s, msgl_req *r, const int32_t *tokens, int32_t num);
// Whether no step can be built before those in flight have ended: what comes behind drafts is not
// known, nor what a draft model will say.
bool msgl__sched_drafts_in_flight(const msgl_scheduler *s);
// Sets num_drafts of all requests for the step that is being built.
void msgl__sched_plan_drafts(msgl_scheduler *s);
// Gives b, r's part in the step, its drafts and their masks, as far as there are pages for them.
// False: it has none.
bool msgl__sched_take_drafts(msgl_scheduler *s, msgl_inflight_step *step, msgl_req *r,
                             msgl_batch_req *b);
// b, with drafts, has brought num_tokens >= 1.
void msgl__sched_drafts_verified(msgl_scheduler *s, const msgl_batch_req *b, msgl_req *r,
                                 const int32_t *tokens, int32_t num_tokens);

// propose.c, with a draft model. propose: how many drafts it shall make of each request of the step
// that has been built, for the next one. passes: how long that took. proposed: what it has made of
// request i, whose tokens are known. offer: what of that r's next step can have.
void msgl__sched_propose(msgl_scheduler *s, msgl_inflight_step *step);
void msgl__sched_passes(msgl_scheduler *s, const msgl_inflight_step *step,
                        const msgl_step_result *res);
void msgl__sched_proposed(msgl_req *r, const msgl_step_result *res, int32_t i);
// Up to `most` one behind the other. trees_allowed: none of the step being built has chunks.
bool msgl__sched_trees_allowed(const msgl_scheduler *s);
void msgl__sched_offer_proposed(const msgl_scheduler *s, const msgl_req *r, int32_t most,
                                msgl_draft *offer);
// How many drafts of b a step has tried one behind the other, of which `accepted` were right.
int32_t msgl__sched_depth_tried(const msgl_batch_req *b, const int32_t *tokens, int32_t accepted);

// draft_states.c: of models that keep states, those behind drafts. create: MSGL_ENOMEM.
int msgl__sched_draft_states_create(msgl_scheduler *s, msgl_err *err);
// Of other models both know no bounds. What a step's drafts may be in all, and those of r's next
// part in a step.
int32_t msgl__sched_draft_states_left(const msgl_scheduler *s);
int32_t msgl__sched_draft_room(const msgl_scheduler *s, const msgl_req *r);
// b, the part of a request in the step, has drafts: where the states behind its rows are kept.
void msgl__sched_save_drafts(msgl_scheduler *s, msgl_inflight_step *step, msgl_batch_req *b);
// b, r's part in a step that has ended, has brought num_tokens.
void msgl__sched_saved_drafts(msgl_scheduler *s, const msgl_batch_req *b, msgl_req *r,
                              int32_t num_tokens);
// r has no next step in its row.
void msgl__sched_drop_draft_state(msgl_scheduler *s, msgl_req *r);
int msgl__sched_check_draft_states(const msgl_scheduler *s, msgl_err *err);

// batch.c: whether r is an answer that the step being built can bring a token.
bool msgl__sched_goes_on(const msgl_req *r);

// constrain.c: opens r's constraint, if it has a grammar; whether there is what r's next token can
// be chosen by; and what has come of the grammars meanwhile.
int msgl__sched_constrain(msgl_scheduler *s, msgl_req *r, msgl_err *err);
bool msgl__sched_may_choose(const msgl_req *r);
void msgl__sched_constraints(msgl_scheduler *s);

// adapters.c. create: MSGL_ENOMEM. salt: of what requests with this adapter share. digest: of the
// one in memory with this number; 0: there is none.
int msgl__sched_adapters_create(msgl_scheduler *s, msgl_err *err);
void msgl__sched_adapters_destroy(msgl_scheduler *s);
uint64_t msgl__sched_salt(uint64_t salt, uint64_t adapter);
uint64_t msgl__sched_adapter_digest(const msgl_scheduler *s, uint64_t adapter);
// Before a step: what has come of the load that is under way, for up to wait_ms milliseconds
// (negative: until it has ended), and which is next. Requests whose adapter cannot be read end.
void msgl__sched_adapters(msgl_scheduler *s, int wait_ms);
// Whether some load was begun, or asked for, and has not ended.
bool msgl__sched_loads_adapters(const msgl_scheduler *s);
// Whether r, which waits, has to wait for its adapter: it is being read, or others use too many.
// take: it does not, and has it from now on.
bool msgl__sched_waits_for_adapter(const msgl_scheduler *s, const msgl_req *r);
void msgl__sched_take_adapter(msgl_scheduler *s, msgl_req *r);
void msgl__sched_give_adapter(msgl_scheduler *s, msgl_req *r);
// Empties the slots of adapters that were taken away and that no request has or waits for.
void msgl__sched_sweep_adapters(msgl_scheduler *s);

// table.c: rows, pages, and what requests share.
int32_t msgl__sched_pages_for(const msgl_scheduler *s, int32_t len);
bool msgl__sched_admit(msgl_scheduler *s, msgl_req *r);
// r, which is next, was not admitted: has a client that has more than its share give way. True: try
// again now; else it may work out once the steps in flight are done.
bool msgl__sched_give_way(msgl_scheduler *s, const msgl_req *r);
// False: no page is left, and some request is on its way out.
bool msgl__sched_grow(msgl_scheduler *s, msgl_req *r, int32_t device_len);
// Whether there are pages for these without taking any from another request.
bool msgl__sched_has_room(const msgl_scheduler *s, const msgl_req *r, int32_t device_len);
// What running requests have no use for any more once the steps before this one have run.
void msgl__sched_slide(msgl_scheduler *s);
void msgl__sched_free_row(msgl_scheduler *s, msgl_req *r);
// A request that no step in flight uses any more goes back to its place in the queue.
void msgl__sched_leave(msgl_scheduler *s, msgl_req *r);
// An answer has got `tokens` long; of one that has ended this was all.
void msgl__sched_seen_answer(msgl_scheduler *s, int32_t tokens, bool ended);

// batch.c: fills step->batch with what the next step computes: how many requests, or a failure of
// the engine.
int msgl__sched_build(msgl_scheduler *s, msgl_inflight_step *step);

// results.c: r's answer is whole; the results of the oldest step in flight become events. Fails if
// the result makes no sense.
void msgl__sched_ended(msgl_scheduler *s, const msgl_req *r);
int msgl__sched_handle(msgl_scheduler *s, msgl_inflight_step *step, const msgl_step_result *res);

#endif
