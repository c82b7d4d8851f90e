// SPDX-License-Identifier: Apache-2.0
//
// What happens next: a binary heap of (time, number), the smallest first; among equal times the
// smaller number, so that the order never depends on how the heap came about.
#ifndef MSGL_APPS_SIMULATION_EVENT_HEAP_H
#define MSGL_APPS_SIMULATION_EVENT_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "core/mem.h"

typedef struct msgl_heap_event {
    uint64_t at;
    int32_t what;
} msgl_heap_event;

typedef struct msgl_event_heap {
    msgl_heap_event *events; // events[0]: the next
    size_t count;
} msgl_event_heap;

// Room for so many events at a time. MSGL_ENOMEM.
static inline int msgl__event_heap_init(msgl_event_heap *h, size_t room)
{
    *h = (msgl_event_heap){.events = msgl__reallocarray(NULL, room, sizeof *h->events)};
    return h->events != NULL ? 0 : MSGL_ENOMEM;
}

static inline void msgl__event_heap_free(msgl_event_heap *h)
{
    msgl__free(h->events);
    *h = (msgl_event_heap){0};
}

static inline bool msgl__heap_event_before(const msgl_heap_event *a, const msgl_heap_event *b)
{
    return a->at != b->at ? a->at < b->at : a->what < b->what;
}

static inline void msgl__event_heap_push(msgl_event_heap *h, uint64_t at, int32_t what)
{
    const msgl_heap_event e = {.at = at, .what = what};
    size_t i = h->count++;
    for (; i > 0 && msgl__heap_event_before(&e, &h->events[(i - 1) / 2]); i = (i - 1) / 2) {
        h->events[i] = h->events[(i - 1) / 2];
    }
    h->events[i] = e;
}

// The next event; there is one.
static inline msgl_heap_event msgl__event_heap_pop(msgl_event_heap *h)
{
    const msgl_heap_event next = h->events[0], e = h->events[--h->count];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= h->count) break;
        if (child + 1 < h->count &&
            msgl__heap_event_before(&h->events[child + 1], &h->events[child])) {
            child++;
        }
        if (!msgl__heap_event_before(&h->events[child], &e)) break;
        h->events[i] = h->events[child];
        i = child;
    }
    h->events[i] = e;
    return next;
}

#endif
