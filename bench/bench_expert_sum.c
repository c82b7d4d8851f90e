// SPDX-License-Identifier: Apache-2.0
//
// How long ranks on this host take to add up what their experts say, beside an all_reduce of as
// many bytes.
//   bench_expert_sum [RANKS [HIDDEN]]
// RANKS processes (default 4) have EXPERTS / RANKS experts each, and tokens choose at random. The
// table has rank 0's median of 31 calls, us, and how many of the ranks' rows are not zeros.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "layers/expert_sum.h"
#include "utils/clock.h"
#include "utils/random.h"

enum { EXPERTS = 64, CALLS = 31, MOST_ROWS = 512, MOST_K = 8, ARENA = 64 << 20 };

static const int32_t ROWS[] = {1, 8, 64, MOST_ROWS}, TOP_K[] = {1, 2, 4, MOST_K};

typedef struct job {
    msgl_forward f;
    msgl_moe_experts experts;
    msgl_weight down;
    int32_t ids[MOST_ROWS * MOST_K];
    float *part;
} job;

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Of so many rows; ids NULL: an all_reduce.
static double measure(job *j, int32_t rows, const int32_t *ids)
{
    double us[CALLS];
    msgl_comm *c = j->f.comm;
    memset(j->part, 0, (size_t)rows * (size_t)j->down.n * sizeof *j->part);
    for (int i = 0; i < CALLS; i++) {
        c->ops->all_reduce(c, j->f.x, MSGL_F32, j->part, 0); // meets
        const uint64_t from = msgl__now_ns();
        if (ids == NULL || msgl__expert_sum(&j->f, &j->experts, ids, j->part, rows) == NULL) {
            const size_t n = (size_t)rows * (size_t)j->down.n;
            c->ops->all_reduce(c, j->f.x, MSGL_F32, j->part, n);
        }
        us[i] = (double)(msgl__now_ns() - from) / 1e3;
        msgl__arena_reset(j->f.arena);
    }
    qsort(us, CALLS, sizeof us[0], by_value);
    return us[CALLS / 2];
}

// The same on all ranks. Returns which share of the ranks' rows has experts.
static double choose(job *j, int32_t rows, int32_t top_k)
{
    uint64_t random = 1;
    int64_t with = 0;
    for (int32_t r = 0; r < rows; r++) {
        uint64_t ranks = 0;
        for (int32_t i = r * top_k; i < (r + 1) * top_k; i++) {
            j->ids[i] = (int32_t)(msgl__random(&random) % EXPERTS);
            ranks |= (uint64_t)1 << (j->ids[i] / j->experts.own);
        }
        with += __builtin_popcountll(ranks);
    }
    return (double)with / rows / j->f.comm->size;
}

static int run_rank(msgl_group *g, int rank, int32_t hidden)
{
    static job j;
    msgl_err err;
    msgl_group_member *m = NULL;
    msgl_exec x = {.act = MSGL_F32};
    msgl_arena arena;
    msgl__arena_init(&arena, msgl__pages_alloc(ARENA), ARENA);
    j.part = msgl__pages_alloc((size_t)MOST_ROWS * (size_t)hidden * sizeof *j.part);
    if (arena.base == NULL || j.part == NULL) return 1;
    if (msgl__group_join(g, rank, &m, &err) != 0 ||
        msgl__comm_shm_create(m, &j.f.comm, &err) != 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    msgl_comm *c = j.f.comm;
    j.f.x = &x;
    j.f.arena = &arena;
    j.down = (msgl_weight){.n = hidden};
    j.experts = (msgl_moe_experts){.num_experts = EXPERTS,
                                   .first = rank * (EXPERTS / c->size),
                                   .own = EXPERTS / c->size,
                                   .down = &j.down};
    for (size_t r = 0; r < MSGL_COUNT(ROWS); r++) {
        const double reduce = measure(&j, ROWS[r], NULL);
        for (size_t k = 0; k < MSGL_COUNT(TOP_K); k++) {
            j.experts.router.top_k = TOP_K[k];
            const double with = choose(&j, ROWS[r], TOP_K[k]);
            const double sum = measure(&j, ROWS[r], j.ids);
            if (rank != 0) continue;
            printf("%4d rows, top %d, %3.0f %% with experts: %9.1f us, all_reduce %9.1f us\n",
                   (int)ROWS[r], (int)TOP_K[k], 100 * with, sum, reduce);
            fflush(stdout);
        }
    }
    c->ops->destroy(c);
    msgl__group_leave(m);
    return x.status != 0;
}

int main(int argc, char **argv)
{
    const int ranks = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 4;
    const int hidden = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 2048;
    msgl_err err;
    msgl_group *g;
    if (ranks < 2 || EXPERTS % ranks != 0 || hidden < 1 || hidden > 4096 ||
        msgl__group_create(ranks, &g, &err) != 0) {
        fprintf(stderr,
                "usage: bench_expert_sum [RANKS [HIDDEN]]; RANKS divides %d, HIDDEN is in "
                "1..4096\n",
                EXPERTS);
        return 2;
    }
    for (int r = 1; r < ranks; r++) {
        const pid_t pid = fork();
        if (pid == 0) _exit(run_rank(g, r, hidden));
        if (pid < 0) {
            perror("fork");
            return 1;
        }
    }
    int failed = run_rank(g, 0, hidden), status;
    while (wait(&status) > 0) failed |= status != 0;
    msgl__group_destroy(g);
    return failed;
}
