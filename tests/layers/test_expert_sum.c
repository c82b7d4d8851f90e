// SPDX-License-Identifier: Apache-2.0
//
// Sums over ranks with experts of their own, its ranks as threads: the bits of a loop over the
// ranks, whichever way they are made, for tokens that go to few and to many ranks, and in the
// memory that is asked for.
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "layers/expert_sum.h"
#include "utils/random.h"

enum { MAX_RANKS = 4, HIDDEN = 40, MOST = 70, TOP_K = 2, EXPERTS = 12 };

// Where tokens go.
typedef enum routing { SPREAD, ONE_RANK, TWO_RANKS, EQUAL, ROUTINGS } routing;

static const int32_t ROWS[] = {1, 2, 5, 33, MOST};

typedef struct problem {
    int ranks;
    int32_t rows;
    int32_t ids[MOST * TOP_K];
    float parts[MAX_RANKS][MOST * HIDDEN], sums[MOST * HIDDEN];
    bool sparse; // a row for each rank, and at most half of the parts' rows are not zeros
} problem;

typedef struct rank {
    const problem *p;
    msgl_group *group;
    int index, status;
    bool exchanged;
    float out[MOST * HIDDEN];
    pthread_t thread;
} rank;

static int32_t choose(routing how, int32_t row, int choice, uint64_t *random)
{
    switch (how) {
    case SPREAD: return (int32_t)(msgl__random(random) % EXPERTS);
    case ONE_RANK: return choice;
    case TWO_RANKS: return row % 3 == 0 ? EXPERTS - 1 - choice : choice;
    default: return row % (EXPERTS / TOP_K) * TOP_K + choice; // each expert as often
    }
}

static void make(problem *p, int ranks, int32_t rows, routing how)
{
    uint64_t random = 5 + (uint64_t)rows;
    const int own = EXPERTS / ranks;
    int with = 0;
    memset(p, 0, sizeof *p);
    p->ranks = ranks;
    p->rows = rows;
    for (int32_t r = 0; r < rows; r++) {
        bool has[MAX_RANKS] = {false};
        for (int c = 0; c < TOP_K; c++) {
            const int32_t id = choose(how, r, c, &random);
            p->ids[r * TOP_K + c] = id;
            has[id / own] = true;
        }
        for (int s = 0; s < ranks; s++) {
            with += has[s];
            for (int i = r * HIDDEN; i < (r + 1) * HIDDEN; i++) {
                const float unit = 2 * msgl__random_unit(&random) - 1;
                if (has[s]) p->parts[s][i] = unit * (float)(1u << (i % 14));
                p->sums[i] = s == 0 ? p->parts[s][i] : p->sums[i] + p->parts[s][i];
            }
        }
    }
    p->sparse = rows >= ranks && 2 * with <= rows * ranks;
}

static void *run_rank(void *arg)
{
    rank *r = arg;
    const problem *p = r->p;
    msgl_group_member *member;
    msgl_comm *comm;
    msgl_exec x = {.act = MSGL_F32};
    msgl_arena arena;
    const msgl_weight down = {.n = HIDDEN};
    const msgl_moe_experts e = {.num_experts = EXPERTS,
                                .first = r->index * (EXPERTS / p->ranks),
                                .own = EXPERTS / p->ranks,
                                .router = {.top_k = TOP_K},
                                .down = &down};
    const size_t bytes = msgl__expert_sum_bytes(&e, p->rows);
    char *base = msgl__pages_alloc(bytes + 64);
    msgl__arena_init(&arena, base, bytes);
    r->status = msgl__group_join(r->group, r->index, &member, NULL);
    if (r->status == 0) r->status = msgl__comm_shm_create(member, &comm, NULL);
    if (r->status != 0) return NULL;
    msgl_forward f = {.x = &x, .comm = comm, .arena = &arena};
    float *part = msgl__malloc(sizeof p->sums);
    memcpy(part, p->parts[r->index], sizeof p->sums);
    const bool may = msgl__experts_exchange(&e);
    const float *sum = may ? msgl__expert_sum(&f, &e, p->ids, part, p->rows) : NULL;
    r->exchanged = sum != NULL;
    r->status = x.status;
    if (sum != NULL) memcpy(r->out, sum, (size_t)p->rows * HIDDEN * sizeof *sum);
    msgl__free(part);
    msgl__pages_free(base, bytes + 64);
    comm->ops->destroy(comm);
    msgl__group_leave(member);
    return NULL;
}

static void check(const problem *p)
{
    static rank ranks[MAX_RANKS];
    msgl_group *g;
    assert_int_equal(msgl__group_create(p->ranks, &g, NULL), 0);
    for (int i = 0; i < p->ranks; i++) {
        ranks[i] = (rank){.p = p, .group = g, .index = i};
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    }
    for (int i = 0; i < p->ranks; i++) pthread_join(ranks[i].thread, NULL);
    for (int i = 0; i < p->ranks; i++) {
        assert_int_equal(ranks[i].status, 0);
        assert_int_equal(ranks[i].exchanged, p->ranks > 2 && p->sparse);
        if (!ranks[i].exchanged) continue;
        for (int j = 0; j < p->rows * HIDDEN; j++) assert_true(ranks[i].out[j] == p->sums[j]);
    }
    assert_int_equal(msgl__group_blamed(g), -1);
    msgl__group_destroy(g);
}

static void test_sums(void **state)
{
    (void)state;
    static problem p;
    int exchanged = 0, reduced = 0;
    for (int ranks = 2; ranks <= MAX_RANKS; ranks++) {
        for (size_t i = 0; i < MSGL_COUNT(ROWS); i++) {
            for (routing how = 0; how < ROUTINGS; how++) {
                make(&p, ranks, ROWS[i], how);
                check(&p);
                exchanged += ranks > 2 && p.sparse;
                reduced += ranks > 2 && !p.sparse;
            }
        }
    }
    assert_true(exchanged > 10 && reduced > 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sums)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
