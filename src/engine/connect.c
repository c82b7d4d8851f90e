// SPDX-License-Identifier: Apache-2.0
//
// How a rank finds the others: through the memory of their host at first, on GPUs with that into a
// communicator of their own.
#include "engine/internal.h"

static bool exchange(void *ctx, const void *own, size_t bytes, void *all)
{
    const msgl_engine *e = ctx;
    msgl_exec x = {0};
    e->host->ops->all_gather(e->host, &x, own, bytes / sizeof(float), all); // as it is
    return x.status == 0;
}

static msgl_cuda_ranks ranks_of(msgl_engine *e, const char *nccl)
{
    return (msgl_cuda_ranks){
        .rank = e->place.rank, .size = e->place.size, .exchange = exchange, .ctx = e, .nccl = nccl};
}

static void abort_calls(void *ctx)
{
    msgl_comm *c = ctx;
    c->ops->abort(c);
}

static int connect_gpus(msgl_engine *e, const msgl_options *o, msgl_err *err)
{
    const msgl_cuda_ranks ranks = ranks_of(e, o->nccl_path);
    char note[128] = "";
    msgl_comm *of_gpus;
    const int code = e->cuda->comm(e->device, &ranks, &of_gpus, note, sizeof note, err);
    if (code != 0) return code;
    e->comm = of_gpus;
    msgl__group_on_blame(e->member, abort_calls, of_gpus);
    msgl__engine_print(o, note);
    return 0;
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
    code = e->place.mpi != NULL ? msgl__comm_mpi_create(e->member, e->place.mpi, &e->host, err)
                                : msgl__comm_shm_create(e->member, &e->host, err);
    if (code == 0) e->comm = e->host;
    if (code == 0 && e->cuda != NULL) code = connect_gpus(e, o, err);
    return code;
}

int msgl__engine_share_choices(msgl_engine *e, msgl_err *err)
{
    const msgl_cuda_ranks ranks = ranks_of(e, "none");
    return e->cuda->share_choices(e->device, &ranks, err);
}

void msgl__engine_disconnect(msgl_engine *e)
{
    msgl_comm *const of_gpus = e->comm != e->host ? e->comm : NULL;
    if (e->host != NULL) e->host->ops->destroy(e->host);
    msgl__group_leave(e->member);
    msgl__ranks_stop(&e->place);
    // Behind the ends of the others: they may have read what this rank shows them.
    if (of_gpus != NULL) of_gpus->ops->destroy(of_gpus);
}
