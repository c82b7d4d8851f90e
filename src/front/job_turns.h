// SPDX-License-Identifier: Apache-2.0
//
// Whose job the worker threads take next (docs/decisions/044). Clients take turns by what their
// jobs have cost: each has a clock that goes on by the CPU time of its jobs when they end, and the
// one that is furthest behind is next (start-time fair queueing). A client that comes back begins
// where the others are, not at what it did not use. Among those without a job that runs, first:
// nobody gets a second thread while somebody waits for the first. Each client's own jobs go in
// their order.
//
// A lane is a kind of job that some threads take and others do not; a client's clock is one for
// all. Nothing here locks or reads a clock.
#ifndef MSGL_FRONT_JOB_TURNS_H
#define MSGL_FRONT_JOB_TURNS_H

#include <stdbool.h>
#include <stdint.h>

#include "api/job.h"

typedef enum msgl_job_lane {
    MSGL_LANE_SHORT, // small bodies
    MSGL_LANE_LONG,  // others
    MSGL_LANE_FORMS, // what the answer has to be is compiled
    MSGL_LANES,
} msgl_job_lane;

enum { MSGL_TURN_BUCKETS = 256, MSGL_TURN_IDLE = 1024 };

typedef struct msgl_job_list {
    msgl_job *first, *last;
} msgl_job_list;

// A client that has jobs, or costs that others may not have caught up with.
typedef struct msgl_turn_client {
    struct msgl_turn_client *next;           // of its bucket
    struct msgl_turn_client *before, *after; // of all clients, those served last at the end
    uint64_t id;                             // msgl_job's client
    uint64_t clock;                          // ns of CPU time
    int waiting, running;                    // jobs
    msgl_job_list jobs[MSGL_LANES];
} msgl_turn_client;

typedef struct msgl_job_turns {
    msgl_turn_client *buckets[MSGL_TURN_BUCKETS];
    msgl_turn_client all; // the ring's head, and whoever no memory was left for
    uint64_t now;         // the clock of the client that was served last; never goes back
    int waiting, running; // jobs of all
    int idle;             // clients without any
} msgl_job_turns;

void msgl__job_turns_init(msgl_job_turns *t);
// Frees the jobs that wait.
void msgl__job_turns_free(msgl_job_turns *t);
// Puts the job behind its client's others of the lane.
void msgl__job_turns_push(msgl_job_turns *t, msgl_job *j, msgl_job_lane lane);
// The next job of the lanes whose bits (1 << lane) are set, which runs from then on; NULL: none.
msgl_job *msgl__job_turns_pop(msgl_job_turns *t, unsigned lanes);
// The job has run for so many ns of CPU time. It may be pushed again then.
void msgl__job_turns_done(msgl_job_turns *t, msgl_job *j, uint64_t ns);

#endif
