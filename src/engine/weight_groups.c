// SPDX-License-Identifier: Apache-2.0
#include "engine/weight_groups.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/dtype.h"
#include "core/mem.h"
#include "distributed/torch_store.h"
#include "utils/clock.h"
#include "utils/heartbeat.h"
#include "utils/thread.h"

enum {
    MAX_GROUPS = 8,
    LOOK_MS = 50,
    MEET_MS = 60000,          // until the group's store answers
    JOIN_MS = 10 * 60 * 1000, // until the group's other ranks are there
};

// Where a group's thread is.
typedef enum stage { MEETING, JOINING, READY, FAILED } stage;

typedef enum demand { NOTHING, ASKED, TAKEN } demand;

typedef struct group {
    const msgl_group_ops *ops;
    int ordinal;
    char *nccl; // owned
    char name[MSGL_MAX_GROUP_NAME + 1], host[MSGL_MAX_GROUP_HOST + 1];
    int port, rank, size;
    atomic_int owners; // the engine and the thread; the last one frees it
    atomic_bool stop;
    _Atomic(stage) stage;
    msgl_err err; // with FAILED
    // What the engine asks for: ASKED by it, TAKEN by the thread, and NOTHING again when it is
    // there.
    const msgl_weight_part *parts;
    uint64_t num;
    void *to;
    _Atomic(demand) demand;
} group;

struct msgl_weight_groups {
    const msgl_group_ops *ops;
    int ordinal;
    const char *nccl;
    group *all[MAX_GROUPS];
};

static void release(group *g)
{
    if (atomic_fetch_sub(&g->owners, 1) > 1) return;
    msgl__free(g->nccl);
    msgl__free(g);
}

// The NCCL id that rank 0 has left in the store: torch's ProcessGroupNCCL under the number of its
// first communicator, its successor (nccl2) under the group's name. Prefixes are those of the
// store, of who made the group, and of torch, which has the name again, and the device.
static int find_id(group *g, int fd, char id[MSGL_GROUP_ID_BYTES])
{
    char keys[2][2 * MSGL_MAX_GROUP_NAME + MSGL_MAX_GROUP_NAME + 64];
    (void)snprintf(keys[0], sizeof keys[0], "/%s/%s//cuda//0", g->name, g->name);
    (void)snprintf(keys[1], sizeof keys[1], "/%s/%s//cuda//%s/nccl_storekey_0", g->name, g->name,
                   g->name);
    while (!atomic_load(&g->stop)) {
        for (int i = 0; i < 2; i++) {
            const int rc = msgl__torch_store_get(fd, keys[i], id, MSGL_GROUP_ID_BYTES, &g->err);
            if (rc != 0) return rc < 0 ? rc : 0;
        }
        (void)poll(NULL, 0, LOOK_MS);
    }
    return msgl__err_set(&g->err, MSGL_EABORTED, "left meanwhile");
}

static int receive_parts(const group *g, void *joined, msgl_err *err)
{
    char *to = g->to;
    int code = 0;
    for (uint64_t i = 0; i < g->num && code == 0; i++) {
        const msgl_dtype dtype = (msgl_dtype)g->parts[i].dtype;
        const size_t count = (size_t)g->parts[i].count;
        if (count > 0) code = g->ops->receive(joined, dtype, count, to, err);
        to += count * msgl__dtype_size(dtype);
    }
    return code;
}

static void *run(void *arg)
{
    group *g = arg;
    char id[MSGL_GROUP_ID_BYTES];
    void *joined = NULL;
    int fd = -1;
    int code = msgl__torch_store_open(g->host, g->port, MEET_MS, &g->stop, &fd, &g->err);
    if (code == 0) atomic_store(&g->stage, JOINING);
    if (code == 0) code = find_id(g, fd, id);
    if (fd >= 0) close(fd);
    if (code == 0) {
        code = g->ops->join(g->ordinal, id, g->rank, g->size, g->nccl, &joined, &g->err);
    }
    if (code == 0) atomic_store(&g->stage, READY);
    while (code == 0 && !atomic_load(&g->stop)) {
        demand asked = ASKED;
        if (!atomic_compare_exchange_strong(&g->demand, &asked, TAKEN)) {
            (void)poll(NULL, 0, 1);
            continue;
        }
        code = receive_parts(g, joined, &g->err);
        if (code == 0) atomic_store(&g->demand, NOTHING);
    }
    if (code != 0) atomic_store(&g->stage, FAILED);
    if (joined != NULL) g->ops->leave(joined);
    release(g);
    return NULL;
}

msgl_weight_groups *msgl__weight_groups_create(const msgl_group_ops *ops, int ordinal,
                                               const char *nccl)
{
    msgl_weight_groups *g = msgl__calloc(1, sizeof *g);
    if (g != NULL) *g = (msgl_weight_groups){.ops = ops, .ordinal = ordinal, .nccl = nccl};
    return g;
}

static void leave(group **at)
{
    if (*at == NULL) return;
    atomic_store(&(*at)->stop, true);
    release(*at);
    *at = NULL;
}

void msgl__weight_groups_destroy(msgl_weight_groups *g)
{
    for (int i = 0; g != NULL && i < MAX_GROUPS; i++) leave(&g->all[i]);
    msgl__free(g);
}

// The group of this name, or with NULL a free place; NULL: there is none.
static group **find(msgl_weight_groups *g, const char *name)
{
    for (int i = 0; i < MAX_GROUPS; i++) {
        const group *one = g->all[i];
        if (name == NULL ? one == NULL : one != NULL && strcmp(one->name, name) == 0) {
            return &g->all[i];
        }
    }
    return NULL;
}

static group *make(const msgl_weight_groups *g, const msgl_admin *a, int rank)
{
    group *made = msgl__calloc(1, sizeof *made);
    if (made == NULL) return NULL;
    made->ops = g->ops;
    made->ordinal = g->ordinal;
    made->nccl = msgl__strdup(g->nccl);
    made->port = a->port;
    made->rank = a->rank + rank;
    made->size = a->size;
    (void)snprintf(made->name, sizeof made->name, "%s", a->group);
    (void)snprintf(made->host, sizeof made->host, "%s", a->host);
    atomic_init(&made->owners, 2);
    return made;
}

static bool start(group *g)
{
    pthread_t thread;
    if (msgl__thread_start(&thread, run, g) != 0) return false;
    (void)pthread_detach(thread);
    return true;
}

int msgl__weight_groups_join(msgl_weight_groups *g, const msgl_admin *a, int rank,
                             struct msgl_heartbeat *h, msgl_err *err)
{
    group **at = find(g, NULL);
    if (find(g, a->group) != NULL) {
        return msgl__err_set(err, MSGL_EINVAL, "a group \"%.100s\" is joined already", a->group);
    }
    if (at == NULL) {
        return msgl__err_set(err, MSGL_EINVAL, "%d groups are joined; allowed: at most as many",
                             MAX_GROUPS);
    }
    if (a->rank + rank >= a->size) {
        return msgl__err_set(err, MSGL_EINVAL, "rank %d of a group of %d; allowed: 0 to %d",
                             a->rank + rank, a->size, a->size - 1);
    }
    *at = make(g, a, rank);
    if (*at == NULL || (*at)->nccl == NULL || !start(*at)) {
        if (*at != NULL) msgl__free((*at)->nccl);
        msgl__free(*at);
        *at = NULL;
        return msgl__err_set(err, MSGL_ENOMEM, "no memory for a group");
    }
    while (atomic_load(&(*at)->stage) == MEETING) {
        msgl__beat(h, MSGL_BEAT_SCHEDULER);
        (void)poll(NULL, 0, 2);
    }
    if (atomic_load(&(*at)->stage) != FAILED) return 0;
    *err = (*at)->err;
    leave(at);
    return err->code;
}

int msgl__weight_groups_leave(msgl_weight_groups *g, const char *name, msgl_err *err)
{
    group **at = find(g, name);
    if (at == NULL) return msgl__err_set(err, MSGL_EINVAL, "no group \"%.100s\" is joined", name);
    leave(at);
    return 0;
}

int msgl__weight_groups_receive(msgl_weight_groups *g, const char *name,
                                const msgl_weight_part *parts, uint64_t num, void *to,
                                struct msgl_heartbeat *h, msgl_err *err)
{
    group **at = find(g, name);
    if (at == NULL) return msgl__err_set(err, MSGL_EINVAL, "no group \"%.100s\" is joined", name);
    group *one = *at;
    const uint64_t end = msgl__now_ns() + (uint64_t)JOIN_MS * 1000000;
    one->parts = parts;
    one->num = num;
    one->to = to;
    atomic_store(&one->demand, ASKED);
    while (atomic_load(&one->demand) != NOTHING && atomic_load(&one->stage) != FAILED) {
        // Once its thread has taken it, that writes to `to` until the trainer is done or gone.
        demand asked = ASKED;
        if (msgl__now_ns() > end && atomic_compare_exchange_strong(&one->demand, &asked, NOTHING)) {
            (void)msgl__err_set(err, MSGL_EIO, "the group \"%.100s\" is not whole", name);
            leave(at);
            return err->code;
        }
        msgl__beat(h, MSGL_BEAT_SCHEDULER);
        (void)poll(NULL, 0, 1);
    }
    if (atomic_load(&one->demand) == NOTHING) return 0;
    *err = one->err;
    leave(at);
    return err->code;
}
