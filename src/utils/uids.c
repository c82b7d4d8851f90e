// SPDX-License-Identifier: Apache-2.0
#include "utils/uids.h"

#include "core/err.h"
#include "core/mem.h"

enum { FIRST_BITS = 6 };

// Multiplicative hashing by 2^64 over the golden ratio (Knuth, The Art of Computer Programming,
// volume 3, section 6.4): uids that count up spread over all buckets.
static msgl_uid **bucket(const msgl_uids *t, uint64_t uid)
{
    return &t->buckets[(uid * 0x9e3779b97f4a7c15u) >> (64 - t->bits)];
}

static void link_in(msgl_uids *t, msgl_uid *u)
{
    msgl_uid **first = bucket(t, u->id);
    u->next = *first;
    *first = u;
}

int msgl__uids_init(msgl_uids *t)
{
    *t = (msgl_uids){.bits = FIRST_BITS};
    t->buckets = msgl__calloc((size_t)1 << FIRST_BITS, sizeof *t->buckets);
    return t->buckets == NULL ? MSGL_ENOMEM : 0;
}

void msgl__uids_free(msgl_uids *t)
{
    msgl__free(t->buckets);
    *t = (msgl_uids){0};
}

static void grow(msgl_uids *t)
{
    msgl_uids larger = {.bits = t->bits + 1, .count = t->count};
    larger.buckets = msgl__calloc((size_t)1 << larger.bits, sizeof *larger.buckets);
    if (larger.buckets == NULL) return;
    for (size_t i = 0; i < (size_t)1 << t->bits; i++) {
        for (msgl_uid *u = t->buckets[i], *next; u != NULL; u = next) {
            next = u->next;
            link_in(&larger, u);
        }
    }
    msgl__free(t->buckets);
    *t = larger;
}

void msgl__uids_put(msgl_uids *t, msgl_uid *u)
{
    if (t->count >> t->bits > 0) grow(t);
    link_in(t, u);
    t->count++;
}

msgl_uid *msgl__uids_find(const msgl_uids *t, uint64_t uid)
{
    msgl_uid *u = *bucket(t, uid);
    while (u != NULL && u->id != uid) u = u->next;
    return u;
}

void msgl__uids_remove(msgl_uids *t, msgl_uid *u)
{
    msgl_uid **link = bucket(t, u->id);
    while (*link != u) link = &(*link)->next;
    *link = u->next;
    t->count--;
}
