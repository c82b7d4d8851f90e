// SPDX-License-Identifier: Apache-2.0
//
// The threads that run jobs (api/job.h) beside the event loop. A worker keeps nothing between jobs.
#ifndef MSGL_FRONT_WORKERS_H
#define MSGL_FRONT_WORKERS_H

#include "api/job.h"

typedef struct msgl_workers msgl_workers;

// budget: of the jobs' claims; a thread gives free heap back to the system when it says so. NULL:
// none.
// n >= 1 threads for jobs of any size, taken in turns by client (front/job_turns.h), one more that
// takes small bodies only, so that these do not wait behind megabytes, and one that compiles what
// answers have to be: a job that gets there is begun again in its turn of that thread. done_fd: an
// eventfd that is written to whenever a job is finished.
int msgl__workers_create(int n, const msgl_tokenizer *tokenizer,
                         const msgl_chat_templates *templates, msgl_budget *budget, int done_fd,
                         msgl_workers **out, msgl_err *err);
// Waits for the jobs being worked on; frees those not taken.
void msgl__workers_destroy(msgl_workers *w);
// Takes j, whose `client` is set.
void msgl__workers_submit(msgl_workers *w, msgl_job *j);
msgl_job *msgl__workers_take(msgl_workers *w); // a finished job, now the caller's, or NULL
// Has a thread give free heap back to the system, off the event loop.
void msgl__workers_trim(msgl_workers *w);

#endif
