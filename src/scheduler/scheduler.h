// SPDX-License-Identifier: Apache-2.0
//
// Continuous batching: takes requests, decides what each step computes (chunked prefill or decode),
// owns the page table, the pages and the prefix cache, and turns step results into token events.
// Everything here runs on one thread. It drives the engine only through msgl_runner, so the tests
// put a model-free runner behind it.
#ifndef MSGL_SCHEDULER_SCHEDULER_H
#define MSGL_SCHEDULER_SCHEDULER_H

#include "core/batch.h"
#include "core/err.h"
#include "grammar/grammar.h"
#include "kvcache/cache.h"
#include "kvcache/kvcache.h"
#include "kvcache/layout.h"
#include "message/message.h"

// What is not a setting, but what the engine has decided.
typedef struct msgl_scheduler_config {
    int32_t max_seq_len; // prompt + generated
    msgl_cache_layout cache;
    int32_t vocab_size;
    bool no_prefix_sharing; // the naive cache, whatever is asked for
    // Values that the engine makes of a request when its prompt is computed, which ends it; 0: it
    // makes tokens.
    int32_t pooled_size;
    bool token_vectors, token_weights; // which of msgl_token_task there are beside
    int32_t num_eos;
    int32_t eos_ids[8];
    // Where answers with a grammar find their tokenizer, read when the first of them comes;
    // borrowed until the scheduler is destroyed. NULL: they are refused, unless there is a
    // vocabulary (tests).
    const char *model_dir;
    msgl_grammar_vocab *grammar_vocab;
    msgl_page_table *tables;          // [cache.num_spans], borrowed; the scheduler writes them
    msgl_admin_calls admin;           // of the engine
    struct msgl_heartbeat *heartbeat; // of msgl__scheduler_serve; NULL: nobody looks
} msgl_scheduler_config;

typedef struct msgl_scheduler msgl_scheduler;

// Events of a step are handed out in one call; the pointers are valid during it.
typedef void (*msgl_emit_fn)(void *ctx, const msgl_msg_tokens *tokens);

// o: what the engine was created with; its texts may go when the call returns.
int msgl__scheduler_create(const msgl_options *o, const msgl_scheduler_config *cfg,
                           const msgl_runner *runner, msgl_emit_fn emit, void *emit_ctx,
                           msgl_scheduler **out, msgl_err *err);
void msgl__scheduler_destroy(msgl_scheduler *s);

// Queues a request (ids are copied). What can never run (prompt + max_tokens beyond max_seq_len or
// the pool, bad ids or parameters, a uid in flight) is answered at once by an error event.
// max_tokens is cut to what max_seq_len leaves when the prompt itself fits.
void msgl__scheduler_add(msgl_scheduler *s, const msgl_msg_request *r);
// Ends a request in whatever phase; its pages are free after at most one more step. Unknown:
// ignored.
void msgl__scheduler_abort(msgl_scheduler *s, uint64_t uid);
void msgl__scheduler_abort_all(msgl_scheduler *s);
// Begins to read the adapter of this number into memory, where it gives way when others are wanted;
// what is there already stays. 0: msgl__scheduler_adapter_done will say what has come of it;
// MSGL_EUNSUPPORTED, MSGL_ENOMEM.
int msgl__scheduler_load_adapter(msgl_scheduler *s, uint64_t id, const char *path, msgl_err *err);
// The next such load that has ended, in *out until the next call; its status: 0, MSGL_EBUSY: all
// that are in memory are in use, or why it cannot be read. False: none has.
bool msgl__scheduler_adapter_done(msgl_scheduler *s, msgl_msg_adapter_done *out);
// It leaves memory when the last request that has come with it ends. None that comes later can have
// it, and none for which it would have to be read again.
void msgl__scheduler_drop_adapter(msgl_scheduler *s, uint64_t id);
// Evicts all unlocked cached pages.
void msgl__scheduler_flush(msgl_scheduler *s);
// While it is paused: none but adapters that are being read.
bool msgl__scheduler_has_work(const msgl_scheduler *s);
// admin.c. No request shares what was computed up to now, and what runs leaves nothing to share.
void msgl__scheduler_forget(msgl_scheduler *s);
// Waits for the steps in flight, and starts none until `continue`. 0, or the engine's failure.
int msgl__scheduler_pause(msgl_scheduler *s, msgl_pause_mode mode);
void msgl__scheduler_continue(msgl_scheduler *s);
// What the engine's admin call does, between steps; behind an update with a->flush as `forget`.
// MSGL_EINVAL: requests are in memory that is to go.
int msgl__scheduler_admin(msgl_scheduler *s, const msgl_admin_calls *engine, const msgl_admin *a,
                          msgl_err *err);
// One turn: choose and start a step, then handle the results of the one before it (overlap) or of
// this one. Returns 0 or the engine's failure, after which every request has had an error event.
int msgl__scheduler_step(msgl_scheduler *s);
// The prefix cache's shape; runs: [MSGL_MAX_TREE_RUNS], which out->runs points to.
void msgl__scheduler_tree(const msgl_scheduler *s, msgl_tree_run *runs, msgl_msg_tree *out);
void msgl__scheduler_stats(const msgl_scheduler *s, msgl_msg_stats *out);
// The same and more, all but what the process takes.
void msgl__scheduler_report(const msgl_scheduler *s, msgl_msg_report *out);
// free + cached + used = total pages, lock counts, page table rows: 0 or MSGL_EINTERNAL.
int msgl__scheduler_check(const msgl_scheduler *s, msgl_err *err);

// io.c: serves a channel until EXIT or the peer is gone and none follows it (both return 0): sends
// `ready` when nothing can fail any more before requests are taken, receives, steps, sends tokens
// and stats. Requests of a peer that is gone are aborted; the next one (msgl__channel_renew) gets
// `ready` when the last step for them has ended. Steps in flight have ended when it returns. An
// engine failure is reported by a FATAL message and returned; so is a malformed stream.
int msgl__scheduler_serve(const msgl_options *o, const msgl_scheduler_config *cfg,
                          const msgl_runner *runner, const msgl_msg_ready *ready,
                          msgl_channel *channel, msgl_err *err);

#endif
