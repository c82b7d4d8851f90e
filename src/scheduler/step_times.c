// SPDX-License-Identifier: Apache-2.0
#include "scheduler/step_times.h"

static double pairs_of(const msgl_batch *b)
{
    double sum = 0;
    for (int32_t i = 0; i < b->size; i++) {
        const msgl_batch_req *q = &b->reqs[i];
        sum += (double)msgl__extend_len(q) * (double)q->device_len;
    }
    return sum;
}

void msgl__step_observe(msgl_step_times *t, const msgl_batch *b, uint64_t compute_ns)
{
    int size = 0;
    while (size + 1 < MSGL_STEP_SIZES && b->num_tokens >> (size + 1) > 0) size++;
    t->seen[size].tokens = (double)b->num_tokens;
    t->seen[size].pairs = pairs_of(b);
    t->seen[size].ns = compute_ns > 0 ? (double)compute_ns : 1;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

uint64_t msgl__step_expect(const msgl_step_times *t, const msgl_batch *b)
{
    const double tokens = (double)b->num_tokens, pairs = pairs_of(b);
    double least = 0;
    for (int i = 0; i < MSGL_STEP_SIZES; i++) {
        if (t->seen[i].ns <= 0) continue;
        const double growth = larger(tokens / t->seen[i].tokens, pairs / t->seen[i].pairs);
        const double bound = t->seen[i].ns * larger(1, growth);
        if (least <= 0 || bound < least) least = bound;
    }
    return least < 1e18 ? (uint64_t)least : (uint64_t)1e18;
}
