// SPDX-License-Identifier: Apache-2.0
//
// The ranks of one tensor-parallel model: memory that those of one host share, and the watch that
// frees everybody when one of them dies or stops.
//
// The memory is an anonymous mapping, made before the ranks are forked: it has no name that a
// killed process could leave behind. Each rank joins with a member of its own, whose small thread
// beats the rank's counter and looks at those of the others, whatever the rank itself computes
// meanwhile: a long step holds no beat up, the end of the process and SIGSTOP do. The first rank
// found standing still is to blame, once for all; the group is then over, and its ranks are to be
// started anew with another group.
#ifndef MSGL_DISTRIBUTED_GROUP_H
#define MSGL_DISTRIBUTED_GROUP_H

#include "core/err.h"

struct msgl_heartbeat; // utils/heartbeat.h

typedef struct msgl_group msgl_group;               // shared by all ranks
typedef struct msgl_group_member msgl_group_member; // one rank's own

#define MSGL_GROUP_MIN_SIZE 2
#define MSGL_GROUP_MAX_SIZE 64

// Memory for `size` ranks, shared with the processes that are forked from here on. Zeroed; pages
// are taken when they are used first. On success *out is the caller's, until destroy.
// MSGL_EINVAL: size is not in [MSGL_GROUP_MIN_SIZE, MSGL_GROUP_MAX_SIZE]. MSGL_ENOMEM.
int msgl__group_create(int size, msgl_group **out, msgl_err *err);
// Ends this process's mapping, after its members have left; the others keep theirs. NULL allowed.
void msgl__group_destroy(msgl_group *g);
int msgl__group_size(const msgl_group *g);

// The caller is `rank` from here on, and starts its watch. Called once for each rank, in its own
// process (in tests: thread) and after its last fork, as threads do not survive one. A rank that
// never joins is not judged, as starting may take long: who reaps it blames it. On success *out is
// the caller's, until leave. g must outlive it.
// MSGL_EINVAL: no such rank. MSGL_EBUSY: it has joined before. MSGL_ENOMEM, MSGL_EINTERNAL (no
// thread): the rank can join again.
int msgl__group_join(msgl_group *g, int rank, msgl_group_member **out, msgl_err *err);
// The rank ends on purpose: nobody blames it. Stops the watch and frees m. NULL allowed. Ranks that
// still wait for it in a communicator's call fail there.
void msgl__group_leave(msgl_group_member *m);
int msgl__group_rank(const msgl_group_member *m);
msgl_group *msgl__group_of(const msgl_group_member *m);

// Also blames `rank` within 0.1 s of the end of a stream socket that only its process has the other
// end of: that is how an end is seen that was none on purpose, long before its beats are missed. fd
// stays the caller's and open until m leaves. Once for each rank.
void msgl__group_watch(msgl_group_member *m, int rank, int fd);

// Calls fn(ctx) once, from the watch's thread, when somebody is to blame. Not after m has left.
void msgl__group_on_blame(msgl_group_member *m, void (*fn)(void *ctx), void *ctx);

// For ranks of other hosts, where each has a group of its own: `beats` is a stream socket between
// the watches of this rank and of `rank`, which nobody else uses, and each sees the other's beats
// (this call sends the first), its leaving, its end and whom it blames. `way`, another socket to
// it, is shut down when somebody is to blame, so that nobody waits there. Both stay the caller's
// and open until m leaves.
void msgl__group_link(msgl_group_member *m, int rank, int beats, int way);

// Each look of m's watch also counts h->alive up, which is 0 again when m has left: somebody
// outside of the group sees by it that the process stands still. The first count is this call's. h
// outlives m. Once; NULL: nobody looks.
void msgl__group_beat(msgl_group_member *m, struct msgl_heartbeat *h);

// Says that `rank` failed: by whoever reaps it, or who knows it otherwise. Any process that has the
// mapping may. Without effect if somebody is to blame already or the rank has left.
void msgl__group_blame(msgl_group *g, int rank);
// The rank to blame, or -1.
int msgl__group_blamed(const msgl_group *g);

#endif
