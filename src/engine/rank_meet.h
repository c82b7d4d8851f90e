// SPDX-License-Identifier: Apache-2.0
//
// How rank 0 meets ranks that it shares no memory with: each connects to where it listens
// (distributed/hosts.h) and gets its options. Used by jobs of MPI (rank_job.c) and by hosts that
// minisgl was started on one by one (rank_nodes.c).
#ifndef MSGL_ENGINE_RANK_MEET_H
#define MSGL_ENGINE_RANK_MEET_H

#include "engine/rank_wire.h"
#include "engine/ranks.h"

// What msgl__ranks_start does, with the group made, where o->mpi and where o->nnodes > 1. After a
// failure *out is still to be ended with msgl__ranks_stop.
int msgl__job_start(const msgl_options *o, msgl_rank_place *out, msgl_err *err);
int msgl__nodes_start(const msgl_options *o, msgl_rank_place *out, msgl_err *err);
// What msgl__engine_follow does there.
int msgl__job_follow(const msgl_options *o, msgl_err *err);
int msgl__nodes_follow(const msgl_options *o, msgl_err *err);

// Rank 0 waits, at most timeout_ms, for all others at the listening socket fd, with connections for
// data or without, and gives them o but for what each rank has of its own.
int msgl__meet_others(msgl_rank_place *place, int fd, uint64_t token, bool data, int timeout_ms,
                      const msgl_options *o, msgl_err *err);
// The other side, to its end: connects to `address`, takes rank 0's options in place of o's, and
// does what rank 0 says. place: whose it is, with rank 0's descriptors -1; place->ready afterwards
// says whether it came so far. 0: rank 0 ended on purpose; MSGL_ECLOSED: it ended, or was told why
// this rank cannot follow; MSGL_EPEER: it, or another rank, is gone, or it cannot be reached.
int msgl__meet_rank_0(msgl_rank_place *place, const char *address, uint64_t token, bool data,
                      int timeout_ms, const msgl_options *o, msgl_err *err);
// Rank 0 tells the others, if all follow, that this is the end, and closes the connections.
void msgl__meet_leave(msgl_rank_place *place);

// What a forked rank keeps of its parent: descriptors below first_closed. Keyboard and supervisor
// speak to the parent, which ends its ranks; by_main: that its end is theirs, as its main thread
// forked.
void msgl__ranks_detach(bool by_main, unsigned first_closed);
// Ends processes that have not ended after so long each; 0: has ended.
void msgl__ranks_reap(const pid_t *pids, int32_t count, int milliseconds);

#endif
