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

#include "distributed/communicator.h"
#include "distributed/hosts.h"
#include "distributed/mpi/plugin.h"
#include "engine/rank_meet.h"
#include "utils/clock.h"

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

// Opens MPI, and checks that the job is what whoever started it says.
static int open_job(const msgl_options *o, msgl_mpi_job *job, msgl_rank_place *out, msgl_err *err)
{
    const msgl_mpi_api *api = msgl__mpi_open(err);
    if (api == NULL) return err != NULL ? err->code : MSGL_EUNSUPPORTED;
    const int code = api->init(job, err);
    if (code != 0) return code;
    out->rank = job->rank;
    out->size = job->size;
    out->local = job->local;
    out->local_rank = job->local_rank;
    out->mpi = api;
    if (job->size == o->tp_size) return 0;
    if (job->size == 1) api->finish(); // nobody to wait for
    return msgl__err_set(err, MSGL_EINVAL,
                         "--tp-size %d: %s, which minisgl-mpi.so is built with, knows of %d "
                         "process%s; allowed: all started by its own mpirun, or by srun",
                         o->tp_size, api->library, job->size, job->size == 1 ? "" : "es");
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
    code = listen_for(o, &job, &fd, call.address, err);
    if (code == 0 && getrandom(&call.token, sizeof call.token, 0) != sizeof call.token) {
        call.token = msgl__now_ns();
    }
    call.code = code;
    msgl_err unused;
    const int shared = out->mpi->broadcast(&call, sizeof call, code == 0 ? err : &unused);
    if (code == 0) code = shared;
    if (code == 0) code = msgl__meet_others(out, fd, call.token, false, MEET_MS, o, err);
    if (fd >= 0) close(fd);
    return code;
}

// --- the others --------------------------------------------------------------------------------

// Follows rank 0, which listens where MPI says. Of a failure rank 0 tells, and only if it cannot,
// the first of the others.
static int follow_job(msgl_rank_place *place, const msgl_options *o, msgl_err *err)
{
    job_call call;
    int code = place->mpi->broadcast(&call, sizeof call, err);
    if (code != 0) return code;
    if (call.code != 0) return msgl__err_set(err, MSGL_ECLOSED, "rank 0 failed");
    call.address[sizeof call.address - 1] = '\0';
    code = msgl__meet_rank_0(place, call.address, call.token, false, MEET_MS, o, err);
    const bool mine = place->rank == 1 && place->blamed == 0;
    if (code != MSGL_EPEER || !place->ready || mine) return code;
    return msgl__err_set(err, MSGL_ECLOSED, "rank 0 says why");
}

int msgl__job_follow(const msgl_options *o, msgl_err *err)
{
    msgl_rank_place place = {.fd = -1, .beats = -1, .data = -1};
    msgl_mpi_job job;
    int code = open_job(o, &job, &place, err);
    // Of what is wrong with the job itself rank 0 speaks.
    if (code != 0) return place.size > 0 ? MSGL_ECLOSED : code;
    if (place.rank == 0) {
        return msgl__err_set(err, MSGL_EINVAL, "rank 0 of an MPI job has nobody to follow");
    }
    code = follow_job(&place, o, err);
    if (code == 0) place.mpi->finish();
    return code;
}
