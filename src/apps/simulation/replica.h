// SPDX-License-Identifier: Apache-2.0
//
// One server of a simulation: the scheduler as the engine process runs it, with its page table and
// prefix cache, and behind it a runner whose steps take what a table says of a clock that nobody
// waits for. Answers are those that the trace says.
#ifndef MSGL_APPS_SIMULATION_REPLICA_H
#define MSGL_APPS_SIMULATION_REPLICA_H

#include <stdbool.h>
#include <stdint.h>

#include "kvcache/kvcache.h"
#include "scheduler/scheduler.h"
#include "apps/simulation/step_table.h"
#include "apps/simulation/trace.h"

// What all replicas of a simulation have in common.
typedef struct msgl_sim_replica_kind {
    const msgl_options *options; // num_pages, max_seq_len and what else the scheduler reads
    const msgl_trace *trace;
    const msgl_step_table *steps;
    msgl_step_result result; // of the step that was waited for last
    int32_t *tokens, *cu_tokens, *status;
    int32_t *ids; // of the prompt that is sent
} msgl_sim_replica_kind;

// MSGL_ENOMEM. What is pointed to stays with the caller.
int msgl__sim_replica_kind_init(msgl_sim_replica_kind *k, const msgl_options *o,
                                const msgl_trace *trace, const msgl_step_table *steps,
                                msgl_err *err);
void msgl__sim_replica_kind_free(msgl_sim_replica_kind *k); // zero-initialised allowed

// A request, by its line of the trace, got a token, its last one if `ended`.
typedef struct msgl_sim_replica_event {
    int32_t line, cached_tokens;
    bool ended;
} msgl_sim_replica_event;

typedef struct msgl_sim_replica {
    msgl_sim_replica_kind *kind;
    msgl_scheduler *scheduler;
    msgl_page_table table;
    uint64_t now_ns;    // of the scheduler's thread
    uint64_t device_ns; // when all submitted steps will have run
    uint64_t busy_ns;   // that steps took
    int64_t warm_steps; // not counted there
    const msgl_batch *batches[2];
    uint64_t ends_ns[2], took_ns[2]; // of these
    msgl_sim_replica_event *events;  // of the last step, at now_ns
    int32_t num_events;
    msgl_err *refused; // of the request that is being sent, if it is
} msgl_sim_replica;

int msgl__sim_replica_init(msgl_sim_replica *r, msgl_sim_replica_kind *k, msgl_err *err);
void msgl__sim_replica_free(msgl_sim_replica *r); // zero-initialised allowed

// A line's request arrives at now_ns. An error: the scheduler refused it.
int msgl__sim_replica_send(msgl_sim_replica *r, int32_t line, msgl_err *err);
// Before anything arrives: a prompt as long as that line's, and a short answer, of which no trace
// is left but what the scheduler has learned of its steps. Its own prefix stays cached.
int msgl__sim_replica_warm_up(msgl_sim_replica *r, int32_t line);
bool msgl__sim_replica_has_work(const msgl_sim_replica *r);
// One step of the scheduler. now_ns is when it ends, events what came of it.
int msgl__sim_replica_step(msgl_sim_replica *r);

#endif
