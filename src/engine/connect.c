// SPDX-License-Identifier: Apache-2.0
//
// How a rank finds the others: what it has to tell them at first goes by way of rank 0. On the CPU
// the communicator is of the memory of their host, of MPI or of TCP; on GPUs it is one of their
// own.
#include "engine/internal.h"

// Whose ranks exchange, and what went wrong.
typedef struct meeting {
    const msgl_engine *e;
    msgl_err why;
} meeting;

static bool exchange(void *ctx, const void *own, size_t bytes, void *all)
{
    meeting *m = ctx;
    return msgl__ranks_exchange(&m->e->place, own, bytes, all, &m->why) == 0;
}

static msgl_device_ranks ranks_of(meeting *m, const char *nccl, bool no_peers)
{
    return (msgl_device_ranks){.rank = m->e->place.rank,
                               .size = m->e->place.size,
                               .exchange = exchange,
                               .ctx = m,
                               .nccl = nccl,
                               .no_peers = no_peers};
}

// What a rank said that could not go on counts more than that the others noticed.
static int explain(int code, const meeting *m, msgl_err *err)
{
    if (code == 0 || m->why.code == 0) return code;
    return msgl__err_set(err, m->why.code, "%s", m->why.text);
}

static void abort_calls(void *ctx)
{
    msgl_comm *c = ctx;
    c->ops->abort(c);
}

static int connect_devices(msgl_engine *e, const msgl_options *o, msgl_err *err)
{
    meeting m = {.e = e};
    const msgl_device_ranks ranks = ranks_of(&m, o->nccl_path, o->disable_custom_all_reduce != 0);
    char note[128] = "";
    msgl_comm *comm;
    const int code = e->plugin->communicator(e->device, &ranks, &comm, note, sizeof note, err);
    if (code != 0) return explain(code, &m, err);
    e->comm = comm;
    msgl__group_on_blame(e->member, abort_calls, comm);
    msgl__engine_print(o, note);
    return 0;
}

static int connect_hosts(const msgl_engine *e, msgl_comm **out, msgl_err *err)
{
    const msgl_rank_place *p = &e->place;
    if (p->mpi != NULL) return msgl__comm_mpi_create(e->member, p->mpi, out, err);
    if (p->linked) {
        int fds[MSGL_GROUP_MAX_SIZE];
        msgl__ranks_data(p, fds);
        return msgl__comm_tcp_create(e->member, fds, out, err);
    }
    return msgl__comm_shm_create(e->member, out, err);
}

int msgl__engine_connect(msgl_engine *e, const msgl_options *o, struct msgl_heartbeat *heartbeat,
                         msgl_err *err)
{
    msgl__comm_self_init(&e->alone);
    e->comm = &e->alone;
    if (e->place.size <= 1) return 0;
    int code = msgl__group_join(e->place.group, e->place.rank, &e->member, err);
    if (code != 0) return code;
    msgl__ranks_watch(&e->place, e->member);
    msgl__group_beat(e->member, heartbeat);
    if (e->plugin->communicator != NULL) return connect_devices(e, o, err);
    msgl_comm *comm;
    code = connect_hosts(e, &comm, err);
    if (code == 0) e->comm = comm;
    return code;
}

int msgl__engine_share_choices(msgl_engine *e, msgl_err *err)
{
    if (e->plugin->share_choices == NULL) return 0;
    meeting m = {.e = e};
    const msgl_device_ranks ranks = ranks_of(&m, "none", false);
    return explain(e->plugin->share_choices(e->device, &ranks, err), &m, err);
}

void msgl__engine_disconnect(msgl_engine *e)
{
    msgl_comm *const comm = e->comm;
    const bool on_host = e->plugin == NULL || e->plugin->communicator == NULL;
    if (on_host && comm != NULL) comm->ops->destroy(comm);
    msgl__group_leave(e->member);
    msgl__ranks_stop(&e->place);
    // Behind the ends of the others: they may have read what this rank shows them.
    if (!on_host && comm != NULL) comm->ops->destroy(comm);
}
