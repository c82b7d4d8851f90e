// SPDX-License-Identifier: Apache-2.0
#include "http/budget.h"

#include <stdint.h>

#include "core/err.h"

// Trimming takes time, so that it waits for many bytes, or for some and a while.
enum { TRIM_BYTES = 32 << 20, SMALL_TRIM_BYTES = 1 << 20, SMALL_TRIM_SECONDS = 30 };

void msgl__budget_init(msgl_budget *b, size_t limit)
{
    b->limit = limit;
    atomic_init(&b->used, 0);
    atomic_init(&b->returned, 0);
    b->seconds = 0;
}

size_t msgl__budget_request_limit(const msgl_budget *b)
{
    return b->limit / 4;
}

static size_t limit_of(const msgl_budget *b, msgl_budget_use use)
{
    return b->limit / 4 * (2 + (size_t)use);
}

int msgl__budget_fits(const msgl_budget *b, msgl_budget_use use, size_t bytes)
{
    if (b == NULL) return 0;
    if (bytes > msgl__budget_request_limit(b)) return MSGL_ELIMIT;
    const size_t used = atomic_load_explicit(&b->used, memory_order_relaxed);
    const size_t limit = limit_of(b, use);
    return used <= limit && bytes <= limit - used ? 0 : MSGL_EBUSY;
}

const char *msgl__budget_refusal(int rc)
{
    return rc == MSGL_ELIMIT ? "The request needs more memory than one request may hold."
                             : "The server's memory for requests is in use; try again later.";
}

static void give_back(msgl_claim *c, size_t bytes)
{
    atomic_fetch_sub_explicit(&c->budget->used, bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->budget->returned, bytes, memory_order_relaxed);
    c->bytes -= bytes;
}

int msgl__claim_set(msgl_claim *c, msgl_budget_use use, size_t bytes)
{
    msgl_budget *b = c->budget;
    if (b == NULL) return 0;
    if (bytes <= c->bytes) {
        give_back(c, c->bytes - bytes);
        return 0;
    }
    if (bytes > msgl__budget_request_limit(b)) return MSGL_ELIMIT;
    const size_t more = bytes - c->bytes, limit = limit_of(b, use);
    size_t used = atomic_load_explicit(&b->used, memory_order_relaxed);
    do {
        if (used > limit || more > limit - used) return MSGL_EBUSY;
    } while (!atomic_compare_exchange_weak_explicit(&b->used, &used, used + more,
                                                    memory_order_relaxed, memory_order_relaxed));
    c->bytes = bytes;
    return 0;
}

int msgl__claim_add(msgl_claim *c, msgl_budget_use use, size_t more)
{
    return msgl__claim_set(c, use, more > SIZE_MAX - c->bytes ? SIZE_MAX : c->bytes + more);
}

void msgl__claim_sub(msgl_claim *c, size_t less)
{
    msgl__claim_count(c, less < c->bytes ? c->bytes - less : 0);
}

void msgl__claim_count(msgl_claim *c, size_t bytes)
{
    if (c->budget == NULL) return;
    if (bytes <= c->bytes) {
        give_back(c, c->bytes - bytes);
        return;
    }
    atomic_fetch_add_explicit(&c->budget->used, bytes - c->bytes, memory_order_relaxed);
    c->bytes = bytes;
}

void msgl__claim_free(msgl_claim *c)
{
    msgl__claim_count(c, 0);
}

static bool trim_from(msgl_budget *b, size_t bytes)
{
    size_t n = atomic_load_explicit(&b->returned, memory_order_relaxed);
    return n >= bytes && atomic_compare_exchange_strong_explicit(
                             &b->returned, &n, 0, memory_order_relaxed, memory_order_relaxed);
}

bool msgl__budget_trim_due(msgl_budget *b)
{
    return trim_from(b, TRIM_BYTES);
}

bool msgl__budget_trim_second(msgl_budget *b)
{
    const bool small = ++b->seconds >= SMALL_TRIM_SECONDS;
    if (small) b->seconds = 0;
    return trim_from(b, small ? SMALL_TRIM_BYTES : TRIM_BYTES);
}
