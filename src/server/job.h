// SPDX-License-Identifier: Apache-2.0
//
// What happens to a request off the event loop, on a few worker threads: body -> struct -> text ->
// token ids, and from there the engine's tokens or, of endpoints that need none, the answer. A
// worker keeps nothing between jobs and touches nothing but its job, so one bad request costs only
// itself.
#ifndef MSGL_SERVER_JOB_H
#define MSGL_SERVER_JOB_H

#include <stdatomic.h>

#include "server/api.h"
#include "template/chat_template.h"
#include "tokenizer/tokenizer.h"

typedef struct msgl_job {
    struct msgl_job *next;
    uint64_t order;         // of submission
    void *owner;            // the submitter's
    atomic_bool cancelled;  // the client left: skip the work
    msgl_api_kind kind;     //
    msgl_strbuf body;       //
    size_t body_len;        // also when it is freed
    msgl_api_config config; // its strings are borrowed
    int32_t max_seq_len;
    msgl_claim claim; // body, tree, ids; when done: what the answer keeps
    // Result: rc 0 with req and ids, or with the answer if the endpoint ends here (put_job); or
    // negative with error.
    int rc;
    msgl_gen_request req; // settled
    msgl_ids *ids;        // [req.num_prompts]
    msgl_strbuf rendered; // of MSGL_PROMPT_RENDERED
    msgl_strbuf answer;
    msgl_api_error error;
} msgl_job;

void msgl__job_free(msgl_job *j); // NULL allowed

// Does the job's work in the calling thread. templates NULL: the model has no chat template.
void msgl__job_run(msgl_job *j, const msgl_tokenizer *tokenizer,
                   const msgl_chat_templates *templates);

typedef struct msgl_workers msgl_workers;

// budget: of the jobs' claims; a thread gives free heap back to the system when it says so. NULL:
// none.
// n >= 1 threads for jobs of any size, in the order of submission, and one more that takes short
// ones only, so that these do not wait behind megabytes. done_fd: an eventfd that is written to
// whenever a job is finished.
int msgl__workers_create(int n, const msgl_tokenizer *tokenizer,
                         const msgl_chat_templates *templates, msgl_budget *budget, int done_fd,
                         msgl_workers **out, msgl_err *err);
// Waits for the jobs being worked on; frees those not taken.
void msgl__workers_destroy(msgl_workers *w);
void msgl__workers_submit(msgl_workers *w, msgl_job *j); // takes j
msgl_job *msgl__workers_take(msgl_workers *w); // a finished job, now the caller's, or NULL
// Has a thread give free heap back to the system, off the event loop.
void msgl__workers_trim(msgl_workers *w);

#endif
