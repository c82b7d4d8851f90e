// SPDX-License-Identifier: Apache-2.0
//
// What happens to a request off the event loop (front/workers.h): body -> struct -> text -> token
// ids, and from there the engine's tokens or, of endpoints that need none, the answer. A job
// touches nothing but itself, so one bad request costs only itself.
#ifndef MSGL_API_JOB_H
#define MSGL_API_JOB_H

#include <stdatomic.h>

#include "api/api.h"
#include "template/chat_template.h"
#include "tokenizer/tokenizer.h"

// Places in a prompt's tokens, as msgl_req_extra has them.
typedef struct msgl_prompt_marks {
    int32_t pair_from, pool_from;
} msgl_prompt_marks;

typedef struct msgl_job {
    struct msgl_job *next;
    uint64_t order;                // of submission
    uint64_t client;               // whose it is: a number for each client
    struct msgl_turn_client *turn; // the queue's (front/job_turns.h), while it is there
    void *owner;                   // the submitter's
    atomic_bool cancelled;         // the client left: skip the work
    const msgl_endpoint *ep;       //
    msgl_strbuf body;              //
    size_t body_len;               // also when it is freed
    msgl_api_config config;        // its strings are borrowed
    int32_t max_seq_len;
    msgl_claim claim; // body, tree, ids; when done: what the answer keeps
    // Result: rc 0 with req and ids, or with the answer if the endpoint ends here (put_job); or
    // negative with error.
    int rc;
    msgl_gen_request req;     // detached
    msgl_ids *ids;            // [req.num_prompts]
    msgl_prompt_marks *marks; // [req.num_prompts], or NULL: they are 0
    msgl_strbuf rendered;     // of MSGL_PROMPT_RENDERED
    msgl_strbuf answer;
    msgl_api_error error;
} msgl_job;

void msgl__job_free(msgl_job *j); // NULL allowed

// Does the job's work in the calling thread. templates NULL: the model has no chat template.
// False: there is a form to compile, which config.defer_forms leaves to another call without it.
bool msgl__job_run(msgl_job *j, const msgl_tokenizer *tokenizer,
                   const msgl_chat_templates *templates);

#endif
