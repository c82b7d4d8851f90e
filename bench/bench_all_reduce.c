// SPDX-License-Identifier: Apache-2.0
//
// How long an all_reduce of ranks on this host takes, beside a memcpy of as many bytes.
//   bench_all_reduce [RANKS [SECONDS [free]]]
//   mpirun --bind-to none -np RANKS bench_all_reduce [RANKS [SECONDS [free]]]
// The first is over shared memory, the second over MPI.
// RANKS processes (default 2), each bound to a processor where there are as many, unless `free`,
// sum f32 for about SECONDS (default 0.5) a size. The table has rank 0's median of 20 rounds and
// its best one, us a call; GB/s are bytes of the buffer by the median.
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/mem.h"
#include "distributed/communicator.h"
#include "distributed/mpi/plugin.h"
#include "kernel/exec.h"
#include "utils/clock.h"

enum { ROUNDS = 20 };

static const size_t SIZES[] = {64, 4096, 16384, 65536, 262144, 1 << 20, 16 << 20};

typedef struct job {
    msgl_comm *comm; // NULL: memcpy
    msgl_exec *x;
    float *buf, *other;
} job;

static void call(const job *j, size_t bytes)
{
    if (j->comm != NULL)
        j->comm->ops->all_reduce(j->comm, j->x, MSGL_F32, j->buf, bytes / sizeof(float));
    else
        memcpy(j->other, j->buf, bytes);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// us a call, median and best. All ranks have to make the same number of calls: it comes from the
// size alone.
static void measure(const job *j, size_t bytes, double seconds, double *median, double *best)
{
    const double guess = 2e-6 + (double)bytes / 3e9;
    int calls = (int)(seconds / ROUNDS / guess);
    if (calls < 1) calls = 1;
    double us[ROUNDS];
    call(j, bytes);
    for (int r = 0; r < ROUNDS; r++) {
        if (j->comm != NULL) j->comm->ops->all_reduce(j->comm, j->x, MSGL_F32, j->buf, 0);
        const uint64_t from = msgl__now_ns();
        for (int i = 0; i < calls; i++) call(j, bytes);
        us[r] = (double)(msgl__now_ns() - from) / 1e3 / calls;
    }
    qsort(us, ROUNDS, sizeof us[0], by_value);
    *median = us[ROUNDS / 2];
    *best = us[0];
}

static void bind_to(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) perror("sched_setaffinity");
}

// api: of an MPI job's processes; NULL: over the group's memory.
static int run_rank(msgl_group *g, const msgl_mpi_api *api, int rank, double seconds, int bound)
{
    if (bound) bind_to(rank);
    msgl_err err;
    msgl_group_member *m = NULL;
    msgl_exec x = {.act = MSGL_F32};
    job reduce = {.x = &x};
    const size_t most = SIZES[sizeof SIZES / sizeof SIZES[0] - 1];
    reduce.buf = msgl__pages_alloc(most);
    reduce.other = msgl__pages_alloc(most);
    if (reduce.buf == NULL || reduce.other == NULL) return 1;
    memset(reduce.other, 1, most);
    memset(reduce.buf, 0, most); // sums of zeros stay finite
    if (msgl__group_join(g, rank, &m, &err) != 0 ||
        (api != NULL ? msgl__comm_mpi_create(m, api, &reduce.comm, &err)
                     : msgl__comm_shm_create(m, &reduce.comm, &err)) != 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    job copy = reduce;
    copy.comm = NULL;
    const msgl_comm_ops *ops = reduce.comm->ops;
    for (size_t i = 0; i < sizeof SIZES / sizeof SIZES[0]; i++) {
        double median, best, copied, least;
        measure(&reduce, SIZES[i], seconds, &median, &best);
        if (rank == 0) {
            measure(&copy, SIZES[i], seconds / 4, &copied, &least);
            const double gb = (double)SIZES[i] / 1e3;
            printf("%9zu B  all_reduce %9.2f us (best %9.2f) %6.2f GB/s   memcpy %9.2f us %6.2f "
                   "GB/s\n",
                   SIZES[i], median, best, gb / median, copied, gb / copied);
            fflush(stdout);
        }
        ops->all_reduce(reduce.comm, &x, MSGL_F32, reduce.buf, 0);
    }
    const int status = x.status;
    ops->destroy(reduce.comm);
    msgl__group_leave(m);
    return status != 0;
}

// One rank of a job that mpirun has started.
static int run_mpi(double seconds, int free_ranks)
{
    msgl_err err;
    msgl_mpi_job world;
    msgl_group *g;
    const msgl_mpi_api *api = msgl__mpi_open(&err);
    if (api == NULL || api->init(&world, &err) != 0 ||
        msgl__group_create(world.size, &g, &err) != 0) {
        fprintf(stderr, "%s\n", err.text);
        return 2;
    }
    const int bound = !free_ranks && world.size <= sysconf(_SC_NPROCESSORS_ONLN);
    const int failed = run_rank(g, api, world.rank, seconds, bound);
    msgl__group_destroy(g);
    if (!failed) api->finish();
    return failed;
}

int main(int argc, char **argv)
{
    const int ranks = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 2;
    const double seconds = argc > 2 ? strtod(argv[2], NULL) : 0.5;
    const int bound = argc < 4 && ranks <= sysconf(_SC_NPROCESSORS_ONLN);
    if (getenv("OMPI_COMM_WORLD_RANK") != NULL) return run_mpi(seconds, argc > 3);
    msgl_err err;
    msgl_group *g;
    if (msgl__group_create(ranks, &g, &err) != 0) {
        fprintf(stderr, "%s\nusage: bench_all_reduce [RANKS [SECONDS [free]]]\n", err.text);
        return 2;
    }
    for (int r = 1; r < ranks; r++) {
        const pid_t pid = fork();
        if (pid == 0) _exit(run_rank(g, NULL, r, seconds, bound));
        if (pid < 0) {
            perror("fork");
            return 1;
        }
    }
    int failed = run_rank(g, NULL, 0, seconds, bound), status;
    while (wait(&status) > 0) failed |= status != 0;
    msgl__group_destroy(g);
    return failed;
}
