// SPDX-License-Identifier: Apache-2.0
//
// Ranks that mpirun or srun has started, on one host or several. MPI carries the data (distributed/
// mpi.c), and at the start where rank 0 listens. What rank 0 says, and the beats of the watches, go
// over TCP (distributed/hosts.h): waiting in MPI takes a whole processor, and what tells that a
// rank has failed must not depend on calls that its failure holds up.
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/mem.h"
#include "core/settings.h"
#include "distributed/communicator.h"
#include "distributed/hosts.h"
#include "distributed/mpi/plugin.h"
#include "engine/engine.h"
#include "engine/rank_wire.h"
#include "engine/ranks.h"
#include "utils/clock.h"
#include "utils/hash.h"

enum {
    MEET_MS = 60000, // for connections between processes that all run
    HOST_NAME = 256,
};

// What MPI tells all from rank 0.
typedef struct job_call {
    int32_t code; // not 0: rank 0 cannot start, and says so itself
    int32_t unused;
    uint64_t token;
    char address[MSGL_HOSTS_ADDRESS];
} job_call;

// Of the program: two that differ in what they send have different ones, most likely.
static uint64_t build_mark(void)
{
    const size_t sizes[] = {sizeof(msgl_batch), sizeof(msgl_batch_req), sizeof(msgl_rank_plan),
                            sizeof(msgl_wire_tokens), sizeof(msgl_wire_extra)};
    uint64_t h = msgl__hash(MSGL_HASH_START, sizes, sizeof sizes);
    for (int i = 0; i < msgl__engine_settings.count; i++) {
        const char *field = msgl__engine_settings.rows[i].field;
        h = msgl__hash(h, field, strlen(field) + 1);
    }
    return h;
}

// Opens MPI, and checks that the job is what whoever started it says.
static int open_job(const msgl_options *o, msgl_mpi_job *job, msgl_rank_place *out, msgl_err *err)
{
    const msgl_mpi_api *api = msgl__mpi_open(err);
    if (api == NULL) return err != NULL ? err->code : MSGL_EUNSUPPORTED;
    const int code = api->init(job, err);
    if (code != 0) return code;
    *out = (msgl_rank_place){.rank = job->rank,
                             .size = job->size,
                             .local = job->local,
                             .fd = -1,
                             .beats = -1,
                             .mpi = api};
    if (job->size == o->tp_size) return 0;
    if (job->size == 1) api->finish(); // nobody to wait for
    return msgl__err_set(err, MSGL_EINVAL,
                         "--tp-size %d: %s, which minisgl-mpi.so is built with, knows of %d "
                         "process%s; allowed: all started by its own mpirun, or by srun",
                         o->tp_size, api->library, job->size, job->size == 1 ? "" : "es");
}

// --- options -----------------------------------------------------------------------------------

// What each rank has of its own: paths, hardware.
static bool is_own(const msgl_setting *s)
{
    static const char *const own[] = {"model_dir", "device", "threads", "cpu_level"};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        if (strcmp(s->field, own[i]) == 0) return true;
    }
    return false;
}

static void put_options(msgl_wire *w, const msgl_options *o)
{
    msgl__wire_begin(w, MSGL_WIRE_OPTIONS);
    for (int i = 0; i < msgl__engine_settings.count; i++) {
        const msgl_setting *s = &msgl__engine_settings.rows[i];
        if (is_own(s)) continue;
        if (s->type == MSGL_SETTING_TEXT) {
            const char *text = msgl__setting_text(s, o);
            const uint64_t bytes = text != NULL ? strlen(text) + 1 : 0;
            msgl__wire_put(w, &bytes, sizeof bytes);
            msgl__wire_put(w, text, bytes);
        } else {
            const double v = msgl__setting_number(s, o);
            msgl__wire_put(w, &v, sizeof v);
        }
    }
}

// Texts stay in the message.
static bool take_options(msgl_wire *w, msgl_options *o)
{
    for (int i = 0; i < msgl__engine_settings.count; i++) {
        const msgl_setting *s = &msgl__engine_settings.rows[i];
        uint64_t bytes;
        double v;
        if (is_own(s)) continue;
        if (s->type != MSGL_SETTING_TEXT) {
            if (!msgl__wire_get(w, &v, sizeof v)) return false;
            msgl__setting_put(s, v, o);
            continue;
        }
        if (!msgl__wire_get(w, &bytes, sizeof bytes)) return false;
        const char *text = bytes > 0 ? msgl__wire_take(w, bytes) : NULL;
        if (bytes > 0 && (text == NULL || text[bytes - 1] != '\0')) return false;
        msgl__setting_put_text(s, text, o);
    }
    return true;
}

// --- rank 0 ------------------------------------------------------------------------------------

// Where to listen: what --dist-init-addr says, else where processes of this host alone can reach
// it, else at the host's name.
static int listen_for(const msgl_options *o, const msgl_mpi_job *job, int *fd, char *address,
                      msgl_err *err)
{
    char at[HOST_NAME + 8] = "127.0.0.1:0", name[HOST_NAME] = "";
    if (o->dist_init_addr != NULL && o->dist_init_addr[0] != '\0') {
        return msgl__hosts_listen(o->dist_init_addr, fd, address, err);
    }
    if (job->local < job->size) {
        if (gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') name[0] = '?';
        snprintf(at, sizeof at, "%s:0", name);
    }
    const int code = msgl__hosts_listen(at, fd, address, err);
    const bool loopback = strncmp(address, "127.", 4) == 0 || strncmp(address, "[::1]", 5) == 0;
    if (job->local == job->size || (code == 0 && !loopback)) return code;
    if (code == 0) close(*fd);
    *fd = -1;
    return msgl__err_set(err, MSGL_EINVAL,
                         "the other hosts cannot reach this one by its name %.60s; "
                         "--dist-init-addr HOST:PORT says where to listen (port 0: any)",
                         name);
}

static int meet_others(msgl_rank_place *place, int fd, uint64_t token, msgl_err *err)
{
    msgl_ranks *r = place->others;
    msgl_hosts_link links[MSGL_GROUP_MAX_SIZE];
    const msgl_hosts_job job = {.size = place->size, .token = token, .build = build_mark()};
    const int code = msgl__hosts_accept(fd, &job, MEET_MS, links, err);
    for (int32_t i = 1; i < place->size; i++) {
        r->fds[i - 1] = links[i].way;
        r->beats[i - 1] = links[i].beats;
    }
    r->count = place->size - 1;
    return code;
}

int msgl__job_start(const msgl_options *o, msgl_rank_place *out, msgl_err *err)
{
    msgl_mpi_job job;
    job_call call = {0};
    int fd = -1;
    int code = open_job(o, &job, out, err);
    if (code != 0) return code;
    if (job.rank != 0) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "rank %d of an MPI job does not open a model: it "
                             "follows rank 0",
                             job.rank);
    }
    out->others = msgl__calloc(1, sizeof *out->others);
    if (out->others == NULL) return msgl__err_set(err, MSGL_ENOMEM, "ranks: out of memory");
    code = msgl__group_create(job.size, &out->group, err);
    out->others->group = out->group;
    if (code == 0) code = listen_for(o, &job, &fd, call.address, err);
    if (code == 0 && getrandom(&call.token, sizeof call.token, 0) != sizeof call.token) {
        call.token = msgl__now_ns();
    }
    call.code = code;
    msgl_err unused;
    const int shared = out->mpi->share(&call, sizeof call, code == 0 ? err : &unused);
    if (code == 0) code = shared;
    if (code == 0) code = meet_others(out, fd, call.token, err);
    if (fd >= 0) close(fd);
    msgl_ranks *r = out->others;
    put_options(&r->message, o);
    for (int32_t i = 0; i < r->count && code == 0; i++) {
        if (msgl__wire_send(&r->message, r->fds[i], r->group) == 0) continue;
        code = msgl__err_set(err, MSGL_EPEER, "rank %d of %d ended unexpectedly", (int)(i + 1),
                             job.size);
    }
    return code;
}

void msgl__job_leave(msgl_rank_place *place)
{
    msgl_ranks *r = place->others;
    bool all = r != NULL && place->ready && msgl__group_blamed(place->group) < 0;
    if (all) msgl__wire_begin(&r->message, MSGL_WIRE_END);
    for (int32_t i = 0; r != NULL && i < r->count; i++) {
        if (all) all = msgl__wire_send(&r->message, r->fds[i], r->group) == 0;
        if (r->fds[i] >= 0) close(r->fds[i]);
        if (r->beats[i] >= 0) close(r->beats[i]);
    }
    // Waits for all, so only if all come; else the end of the processes is MPI's end.
    if (all) place->mpi->finish();
}

// --- the others --------------------------------------------------------------------------------

// Connects to where rank 0 listens, and takes its options. MSGL_ECLOSED: rank 0 says why it cannot.
static int meet_rank_0(msgl_rank_place *place, msgl_wire *w, msgl_options *o, msgl_err *err)
{
    job_call call;
    msgl_hosts_link link;
    int code = place->mpi->share(&call, sizeof call, err);
    if (code == 0 && call.code != 0) code = msgl__err_set(err, MSGL_ECLOSED, "rank 0 failed");
    if (code != 0) return code;
    call.address[sizeof call.address - 1] = '\0';
    const msgl_hosts_job job = {
        .size = place->size, .rank = place->rank, .token = call.token, .build = build_mark()};
    code = msgl__hosts_connect(call.address, &job, MEET_MS, &link, err);
    if (code != 0) return code;
    place->fd = link.way;
    place->beats = link.beats;
    const int kind = msgl__wire_receive(w, link.way);
    if (kind == MSGL_WIRE_OPTIONS && take_options(w, o)) return 0;
    return msgl__err_set(err, MSGL_ECLOSED, "rank 0 ended");
}

// Who tells of a failure: rank 0, and only if it cannot, the first of the others.
static int report(const msgl_rank_place *place, int code, msgl_err *err)
{
    if (code == 0) return 0;
    if (place->rank == 1 && msgl__group_blamed(place->group) == 0) {
        return msgl__err_set(err, MSGL_EPEER, "rank 0 of %d failed", (int)place->size);
    }
    return msgl__err_set(err, MSGL_ECLOSED, "rank 0 says why");
}

int msgl__engine_follow(const msgl_options *o, msgl_err *err)
{
    msgl_rank_place place = {.fd = -1, .beats = -1};
    msgl_mpi_job job;
    msgl_options options = *o;
    msgl_wire w = {0};
    int code = open_job(o, &job, &place, err);
    // Of what is wrong with the job itself rank 0 speaks.
    if (code != 0) return place.size > 0 ? MSGL_ECLOSED : code;
    if (place.rank == 0) {
        return msgl__err_set(err, MSGL_EINVAL, "rank 0 of an MPI job has nobody to follow");
    }
    code = msgl__group_create(place.size, &place.group, err);
    if (code == 0) code = meet_rank_0(&place, &w, &options, err);
    if (code == 0) code = report(&place, msgl__ranks_follow(&options, &place), err);
    if (code == 0) place.mpi->finish();
    if (place.fd >= 0) close(place.fd);
    if (place.beats >= 0) close(place.beats);
    msgl__group_destroy(place.group);
    msgl__wire_free(&w);
    return code;
}
