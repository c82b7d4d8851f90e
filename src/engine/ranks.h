// SPDX-License-Identifier: Apache-2.0
//
// A model that several processes share, each with an engine of its own (a rank). Rank 0 is the
// process that makes the engine: it forks the others, or mpirun has started them (rank_job.c), or
// minisgl on other hosts (rank_nodes.c). It sends each of them what the scheduler tells it, before
// it does that itself. They do the same steps on their parts of the weights, meet in the
// communicator (distributed/group.h) and choose the same tokens, so nothing comes back but a
// failure. Rank 0 decides everything that depends on time or free memory.
#ifndef MSGL_ENGINE_RANKS_H
#define MSGL_ENGINE_RANKS_H

#include <stdbool.h>
#include <sys/types.h>

#include "core/batch.h"
#include "core/err.h"
#include "distributed/group.h"
#include "engine/engine.h"
#include "kvcache/kvcache.h"
#include "models/digest.h"

typedef struct msgl_ranks msgl_ranks;

// Of an engine that is one rank of several: who it is, and for rank 0 the way to the others.
typedef struct msgl_rank_place {
    int32_t rank, size;
    int32_t local, local_rank; // ranks of this host, and which of them this is
    bool forked;               // the process is ours, not a caller of the API
    msgl_group *group;
    msgl_ranks *others; // of rank 0
    int fd;             // of the others: to rank 0
    // The ranks have met over TCP (rank_meet.h), and each has a group's memory of its own. Then of
    // the others: the connection of the watches, and the one for data (-1: none).
    bool linked;
    int beats, data;
    const struct msgl_mpi_api *mpi; // of an MPI job's process
    bool ready;                     // of rank 0: the others follow; of the others: this one does
    int32_t blamed;                 // of the others behind their end: who failed, or -1
} msgl_rank_place;

// What rank 0's memory plan has decided for all.
typedef struct msgl_rank_plan {
    int32_t num_units[MSGL_MAX_SPANS], draft_states; // of each span; of that of states
    int32_t max_seq_len;
    int32_t all_rows;        // steps compute all rows to the end, as msgl__hidden_all_rows
    size_t available;        // bytes for each
    msgl_model_digest files; // that all have to have
} msgl_rank_plan;

// Starts or finds the others. Forks ranks [1, o->tp_size), which make their engines with options of
// their own and follow until rank 0 is gone; they never return from here. To be called before the
// process has threads that hold locks. *out is the caller's, until msgl__ranks_stop. Where o->mpi,
// the others are the job's other processes (MSGL_EINVAL: it is of another size, or this is not its
// first process), and with o->nnodes those of the other hosts too: they come in msgl__engine_follow
// (engine.h).
int msgl__ranks_start(const msgl_options *o, msgl_rank_place *out, msgl_err *err);
// Ends the others and gives back what start took; place->size 0 or 1: nothing.
void msgl__ranks_stop(msgl_rank_place *place);

// The others say how much memory they can take; on rank 0 *available becomes the least of all, and
// *whose who has it. Errors of ranks that failed before, with their number.
int msgl__ranks_least_memory(const msgl_rank_place *place, size_t *available, int32_t *whose,
                             msgl_err *err);
// Rank 0 tells the others; they wait for it.
int msgl__ranks_tell_plan(const msgl_rank_place *place, const msgl_rank_plan *plan, msgl_err *err);
int msgl__ranks_hear_plan(const msgl_rank_place *place, msgl_rank_plan *plan, msgl_err *err);
// Rank 0 waits until all others can follow; the first failure, with its rank, is *err.
int msgl__ranks_wait_ready(msgl_rank_place *place, msgl_err *err);

// all [size, bytes]: everybody's `own`, by rank. All ranks call it as often, in the same order,
// before they are ready or for what rank 0 has told the others to do. Errors as
// msgl__ranks_least_memory's.
int msgl__ranks_exchange(const msgl_rank_place *place, const void *own, size_t bytes, void *all,
                         msgl_err *err);

// On rank 0, when calls end because another rank has failed: what that one says of it takes *err's
// place, if it says something within a moment. The code of *err.
int msgl__ranks_explain(const msgl_rank_place *place, msgl_err *err);

// The process of another rank, asked for on rank 0.
pid_t msgl__ranks_process(const msgl_rank_place *place, int32_t rank);

// This rank's watch looks at the ways to the others, which close when they end.
void msgl__ranks_watch(const msgl_rank_place *place, msgl_group_member *member);

// fds [size]: the connections for data of ranks that have met over TCP, as msgl__comm_tcp_create
// takes them.
void msgl__ranks_data(const msgl_rank_place *place, int *fds);

// What the runner's functions of the same names do, sent to all others with the pages that their
// page tables (num_tables of them) need. 0, or MSGL_EPEER: one of them is gone.
int msgl__ranks_write_tokens(msgl_ranks *r, const msgl_page_table *tables, int32_t num_tables,
                             int32_t table_idx, int32_t pos, const int32_t *ids, int32_t n);
int msgl__ranks_write_extra(msgl_ranks *r, int32_t table_idx, const msgl_req_extra *extra);
int msgl__ranks_admin(msgl_ranks *r, const msgl_admin *a);
int msgl__ranks_load_adapter(msgl_ranks *r, int32_t slot, const char *path); // NULL: empty it
int msgl__ranks_adapter_loaded(msgl_ranks *r);
// whole_rows: the step's logits are looked at, and all ranks have to join theirs.
int msgl__ranks_submit(msgl_ranks *r, const msgl_page_table *tables, int32_t num_tables,
                       const msgl_batch *b, bool whole_rows);

#endif
