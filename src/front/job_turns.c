// SPDX-License-Identifier: Apache-2.0
#include "front/job_turns.h"

#include <string.h>

#include "core/mem.h"

void msgl__job_turns_init(msgl_job_turns *t)
{
    memset(t, 0, sizeof *t);
    t->all.before = t->all.after = &t->all;
}

static msgl_turn_client **bucket(msgl_job_turns *t, uint64_t id)
{
    return &t->buckets[id % MSGL_TURN_BUCKETS];
}

// NULL: it is not known.
static msgl_turn_client *find(msgl_job_turns *t, uint64_t id)
{
    msgl_turn_client *c = *bucket(t, id);
    while (c != NULL && c->id != id) c = c->next;
    return c;
}

static void to_end(msgl_job_turns *t, msgl_turn_client *c)
{
    if (c == &t->all) return;
    if (c->before != NULL) {
        c->before->after = c->after;
        c->after->before = c->before;
    }
    c->before = t->all.before;
    c->after = &t->all;
    t->all.before->after = c;
    t->all.before = c;
}

static void forget(msgl_job_turns *t, msgl_turn_client *c)
{
    msgl_turn_client **at = bucket(t, c->id);
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    c->before->after = c->after;
    c->after->before = c->before;
    msgl__free(c);
}

static msgl_turn_client *join(msgl_job_turns *t, uint64_t id)
{
    msgl_turn_client *c = find(t, id);
    if (c == NULL) {
        c = msgl__calloc(1, sizeof *c);
        if (c == NULL) return &t->all;
        c->id = id;
        c->next = *bucket(t, id);
        *bucket(t, id) = c;
        to_end(t, c);
    } else if (c->waiting + c->running == 0) {
        t->idle--;
    }
    return c;
}

void msgl__job_turns_push(msgl_job_turns *t, msgl_job *j, msgl_job_lane lane)
{
    msgl_turn_client *c = join(t, j->client);
    if (c->waiting + c->running == 0 && c->clock < t->now) c->clock = t->now;
    msgl_job_list *l = &c->jobs[lane];
    j->turn = c;
    j->next = NULL;
    if (l->first == NULL) {
        l->first = j;
    } else {
        l->last->next = j;
    }
    l->last = j;
    c->waiting++;
    t->waiting++;
}

// The oldest job of the lanes that c has; NULL: none. *lane: where.
static const msgl_job *oldest(const msgl_turn_client *c, unsigned lanes, int *lane)
{
    const msgl_job *found = NULL;
    for (int k = 0; k < MSGL_LANES; k++) {
        const msgl_job *j = c->jobs[k].first;
        if ((lanes & 1U << k) == 0 || j == NULL || (found != NULL && found->order < j->order)) {
            continue;
        }
        found = j;
        *lane = k;
    }
    return found;
}

// Whether a's turn is before b's.
static bool before(const msgl_turn_client *a, const msgl_turn_client *b)
{
    if ((a->running == 0) != (b->running == 0)) return a->running == 0;
    return a->clock < b->clock;
}

msgl_job *msgl__job_turns_pop(msgl_job_turns *t, unsigned lanes)
{
    msgl_turn_client *best = NULL, *c = &t->all;
    int lane = 0, of;
    if (t->waiting == 0) return NULL;
    do {
        if (c->waiting > 0 && oldest(c, lanes, &of) != NULL && (best == NULL || before(c, best))) {
            best = c;
            lane = of;
        }
        c = c->after;
    } while (c != &t->all);
    if (best == NULL) return NULL;
    msgl_job *j = best->jobs[lane].first;
    best->jobs[lane].first = j->next;
    j->next = NULL;
    best->waiting--;
    best->running++;
    t->waiting--;
    t->running++;
    if (best->clock > t->now) t->now = best->clock;
    to_end(t, best);
    return j;
}

// Forgets the clients without jobs whose clocks the others' have passed, or all of them.
static void sweep(msgl_job_turns *t, bool all)
{
    for (msgl_turn_client *c = t->all.after, *after; c != &t->all; c = after) {
        after = c->after;
        if (c->waiting + c->running > 0 || (!all && c->clock > t->now)) continue;
        t->idle--;
        forget(t, c);
    }
}

void msgl__job_turns_done(msgl_job_turns *t, msgl_job *j, uint64_t ns)
{
    msgl_turn_client *c = j->turn;
    j->turn = NULL;
    c->clock += ns;
    c->running--;
    t->running--;
    if (c != &t->all && c->waiting + c->running == 0) t->idle++;
    const bool none = t->waiting + t->running == 0;
    if (none) t->now = t->all.clock = 0;
    if (none || t->idle > MSGL_TURN_IDLE) sweep(t, none);
    if (t->idle > MSGL_TURN_IDLE) sweep(t, true);
}

void msgl__job_turns_free(msgl_job_turns *t)
{
    msgl_turn_client *c = &t->all;
    do {
        for (int k = 0; k < MSGL_LANES; k++) {
            for (msgl_job *j; (j = c->jobs[k].first) != NULL;) {
                c->jobs[k].first = j->next;
                msgl__job_free(j);
            }
        }
        c = c->after;
    } while (c != &t->all);
    while (t->all.after != &t->all) forget(t, t->all.after);
}
