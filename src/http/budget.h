// SPDX-License-Identifier: Apache-2.0
//
// One limit in bytes on what requests hold in the front: bodies that are arriving, parsed trees,
// prompts that wait, answers, and bytes that are not sent yet. What a request is about to take is
// claimed first, so that it can be refused while the memory is still free.
//
// Three uses, each with a higher limit than the one before: bodies alone cannot take what parsing
// needs, and requests that are coming in cannot take what the answers under way grow into.
#ifndef MSGL_HTTP_BUDGET_H
#define MSGL_HTTP_BUDGET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct msgl_budget {
    size_t limit; // bytes
    atomic_size_t used;
    atomic_size_t returned; // bytes given back since the heap was last trimmed
    int seconds;            // msgl__budget_trim_second's
} msgl_budget;

typedef enum msgl_budget_use {
    MSGL_BUDGET_BODY,   // up to half of the limit
    MSGL_BUDGET_PROMPT, // up to three quarters: trees, ids, whatever a request needs to start
    MSGL_BUDGET_ANSWER, // all of it
} msgl_budget_use;

// What one request, or one connection's buffers, hold of it. Used by one thread at a time.
typedef struct msgl_claim {
    msgl_budget *budget; // NULL: nothing is counted or refused
    size_t bytes;
} msgl_claim;

void msgl__budget_init(msgl_budget *b, size_t limit);
// The most bytes that one request may claim: a quarter of the limit.
size_t msgl__budget_request_limit(const msgl_budget *b);
// Whether a request could claim `bytes` more now: 0; MSGL_ELIMIT: never, as they are more than one
// request may claim; MSGL_EBUSY: not now. With a limit of 1024 MiB, of which bodies have used 400,
// a body of 200 MiB is MSGL_EBUSY (its use ends at 512) and one of 300 is MSGL_ELIMIT (256). budget
// NULL: 0.
int msgl__budget_fits(const msgl_budget *b, msgl_budget_use use, size_t bytes);

// A sentence for the client that says which of these two errors rc is.
const char *msgl__budget_refusal(int rc);

// Changes the claim to `bytes` in all. Less always succeeds; more fails as msgl__budget_fits does,
// and leaves the claim as it was.
int msgl__claim_set(msgl_claim *c, msgl_budget_use use, size_t bytes);
int msgl__claim_add(msgl_claim *c, msgl_budget_use use, size_t more);
void msgl__claim_sub(msgl_claim *c, size_t less);
// Changes the claim to what is taken already, such as unsent bytes: it is counted, and never
// refused.
void msgl__claim_count(msgl_claim *c, size_t bytes);
void msgl__claim_free(msgl_claim *c);

// True once after every 32 MiB that were given back: time to trim the heap.
bool msgl__budget_trim_due(msgl_budget *b);
// For one thread, once a second: the same, and true every 30 s if 1 MiB was given back.
bool msgl__budget_trim_second(msgl_budget *b);

#endif
