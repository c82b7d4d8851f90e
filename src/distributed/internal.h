// SPDX-License-Identifier: Apache-2.0
//
// What lies in the memory that ranks share, and how the watch judges.
#ifndef MSGL_DISTRIBUTED_INTERNAL_H
#define MSGL_DISTRIBUTED_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/attributes.h"
#include "distributed/group.h"

_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "counters that processes share");

// A rank takes part in the group from new to joined to left, and never back.
enum { MSGL_RANK_NEW, MSGL_RANK_JOINED, MSGL_RANK_LEFT };

// What a rank says about the communicator's call that it is in.
typedef struct msgl_rank_call {
    uint64_t count; // elements, or bytes
    uint32_t op, root;
} msgl_rank_call;

typedef struct msgl_rank_line {
    // Written by the watch and rarely.
    MSGL_ALIGNED(64) atomic_uint state; // MSGL_RANK_*
    atomic_uint beats;
    // Barriers that the rank has arrived at: a futex for those who wait for it. In its line are the
    // calls that it belongs to, of odd and even barriers: a rank arrives at barrier k + 2 only when
    // all have left barrier k, so that what was said for k is read before it is written over.
    MSGL_ALIGNED(64) atomic_uint arrived;
    atomic_uint waiters; // ranks that are, or are about to be, in the futex
    atomic_int cpu;      // where it arrived
    msgl_rank_call calls[2];
} msgl_rank_line;

struct msgl_group {
    int size;
    size_t bytes;      // of the mapping
    atomic_uint blame; // 0, or 1 + the rank to blame
    msgl_rank_line ranks[MSGL_GROUP_MAX_SIZE];
    // Behind it, at the next page: MSGL_GROUP_SLOTS slots of each rank, one after another.
};

// Data that a rank shows to the others: two slots, so that the next piece is written while others
// still read this one.
#define MSGL_GROUP_SLOT_BYTES ((size_t)256 << 10)
enum { MSGL_GROUP_SLOTS = 2 };

void *msgl__group_slot(msgl_group *g, int rank, unsigned slot);

#define MSGL_WATCH_TICK_NS 100000000u   // between two looks
#define MSGL_WATCH_STILL_NS 1500000000u // a counter that stands still for so long is to blame
#define MSGL_WATCH_LATE_NS 500000000u   // a tick that took longer says nothing about others

// What one rank's watch has seen of the others.
typedef struct msgl_watch {
    uint64_t last;                       // when it looked, ns; 0: never
    uint64_t since[MSGL_GROUP_MAX_SIZE]; // when each counter was first seen as it is now
    uint32_t seen[MSGL_GROUP_MAX_SIZE];
} msgl_watch;

// One look of `rank` at time `now` (monotonic ns, not 0): beats, and blames a joined rank whose
// counter has stood still for MSGL_WATCH_STILL_NS. After a pause of its own of more than
// MSGL_WATCH_LATE_NS (the machine was suspended, or is overloaded: all counters stand still
// together) time counts from now on.
void msgl__watch_look(msgl_watch *w, msgl_group *g, int rank, uint64_t now);

#endif
