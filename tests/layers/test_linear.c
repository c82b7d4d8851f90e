// SPDX-License-Identifier: Apache-2.0
//
// Linear layers shared by two ranks, each a thread with its half of the weights: both get what one
// rank with all of them gets. Values are small integers, so that every sum is exact in f32.
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "layers/linear.h"
#include "utils/random.h"

enum { RANKS = 2, MAX_ROWS = 5, K = 64, N = 48, ARENA = 1 << 20 };

// A communicator over memory that both threads see.
typedef struct shared {
    pthread_barrier_t barrier;
    float *parts[RANKS];
} shared;

typedef struct fake_comm {
    msgl_comm base;
    shared *all;
    int num_reduces;
} fake_comm;

static void all_reduce(msgl_comm *base, struct msgl_exec *x, msgl_dtype dtype, void *buf, size_t n)
{
    (void)x;
    assert_int_equal(dtype, MSGL_F32);
    fake_comm *c = (fake_comm *)base;
    c->num_reduces++;
    float *sum = calloc(n, sizeof *sum);
    c->all->parts[base->rank] = buf;
    pthread_barrier_wait(&c->all->barrier);
    for (int r = 0; r < RANKS; r++) {
        for (size_t i = 0; i < n; i++) sum[i] += c->all->parts[r][i];
    }
    pthread_barrier_wait(&c->all->barrier);
    memcpy(buf, sum, n * sizeof *sum);
    free(sum);
}

static const msgl_comm_ops OPS = {.name = "fake", .all_reduce = all_reduce};

// What every rank has in full.
typedef struct problem {
    int rows;
    bool row_parallel, bias;
    float w[N * K], b[N], in[MAX_ROWS * K], residual[MAX_ROWS * N];
} problem;

typedef struct rank {
    const problem *p;
    fake_comm comm;
    float out[MAX_ROWS * N]; // the residual stream behind the layer
    int status;
    size_t arena_left;
} rank;

// The rank's share: of a row-parallel layer half of the inputs, of another one half of the outputs.
static void *run_rank(void *arg)
{
    rank *r = arg;
    const problem *p = r->p;
    const int share = r->comm.base.size, at = r->comm.base.rank;
    const int k = p->row_parallel ? K / share : K, n = p->row_parallel ? N : N / share;
    const int first_k = p->row_parallel ? at * k : 0, first_n = p->row_parallel ? 0 : at * n;
    msgl_kernels kernels;
    msgl__kernels_init_cpu(&kernels, MSGL_CPU_REF);
    msgl_err err = {0};
    msgl_arena arena, scratch;
    msgl__arena_init(&arena, msgl__pages_alloc(ARENA), ARENA);
    msgl__arena_init(&scratch, msgl__pages_alloc(ARENA), ARENA);
    msgl_exec x = {.act = MSGL_F32, .scratch = &scratch};
    r->status = msgl__pool_create(1, &x.pool, &err);
    if (r->status != 0) return NULL;
    float bias[N], in[MAX_ROWS * K];
    memcpy(bias, p->b + first_n, (size_t)n * sizeof *bias);
    for (int i = 0; i < p->rows; i++) {
        memcpy(in + i * k, p->in + i * K + first_k, (size_t)k * sizeof *in);
        memcpy(r->out + i * n, p->residual + i * N + first_n, (size_t)n * sizeof *in);
    }
    msgl_linear l = {.w = {.format = &kernels.gemm.formats[MSGL_W_F32], .n = n, .k = k},
                     .bias = p->bias ? bias : NULL,
                     .row_parallel = p->row_parallel};
    const size_t bytes = msgl__weight_bytes(&l.w);
    l.w.data = msgl__pages_alloc(bytes);
    l.w.format->pack(&x, &l.w, 0, n, p->w + first_n * K + first_k, MSGL_F32, K);
    msgl_forward f = {.x = &x, .k = &kernels, .comm = &r->comm.base, .arena = &arena};
    const msgl_join join = {.scale = 1};
    msgl__linear_add(&f, &l, in, r->out, &join, p->rows, NULL);
    r->status = x.status;
    r->arena_left = arena.used;
    msgl__pages_free(l.w.data, bytes);
    msgl__pages_free(scratch.base, ARENA);
    msgl__pages_free(arena.base, ARENA);
    msgl__pool_destroy(x.pool);
    return NULL;
}

static float small(uint64_t *rng) // an integer in [-4, 4]
{
    return (float)((int)msgl__random_below(rng, 9) - 4);
}

static void make(problem *p, int rows, bool row_parallel, bool bias)
{
    uint64_t rng = 42;
    *p = (problem){.rows = rows, .row_parallel = row_parallel, .bias = bias};
    for (int i = 0; i < N * K; i++) p->w[i] = small(&rng);
    for (int i = 0; i < N; i++) p->b[i] = 100 + (float)i;
    for (int i = 0; i < rows * K; i++) p->in[i] = small(&rng);
    for (int i = 0; i < rows * N; i++) p->residual[i] = small(&rng);
}

static float expected(const problem *p, int row, int col)
{
    float sum = p->residual[row * N + col] + (p->bias ? p->b[col] : 0);
    for (int k = 0; k < K; k++) sum += p->in[row * K + k] * p->w[col * K + k];
    return sum;
}

static void run_all(const problem *p, rank *ranks, int count)
{
    shared all;
    pthread_t threads[RANKS];
    assert_int_equal(pthread_barrier_init(&all.barrier, NULL, (unsigned)count), 0);
    for (int i = 0; i < count; i++) {
        ranks[i] = (rank){.p = p, .comm = {.base = {&OPS, i, count}, .all = &all}};
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &ranks[i]), 0);
    }
    for (int i = 0; i < count; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(ranks[i].status, 0);
        assert_int_equal(ranks[i].arena_left, 0);
    }
    pthread_barrier_destroy(&all.barrier);
}

// Each rank has a part of every sum; the sum of the parts, with one bias, reaches both.
static void test_row_parallel(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        problem p;
        rank ranks[RANKS];
        make(&p, i % 2 == 0 ? 1 : MAX_ROWS, true, i / 2 % 2 != 0);
        const int count = i / 4 + 1;
        run_all(&p, ranks, count);
        for (int r = 0; r < count; r++) {
            assert_int_equal(ranks[r].comm.num_reduces, count - 1);
            for (int row = 0; row < p.rows; row++) {
                for (int col = 0; col < N; col++) {
                    assert_float_equal(ranks[r].out[row * N + col], expected(&p, row, col), 0);
                }
            }
        }
    }
}

// Each rank has some of the outputs, whole, and its own part of the bias; nothing is exchanged.
static void test_column_parallel(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        problem p;
        rank ranks[RANKS];
        make(&p, i % 2 == 0 ? 1 : MAX_ROWS, false, i / 2 != 0);
        run_all(&p, ranks, RANKS);
        for (int r = 0; r < RANKS; r++) {
            const int n = N / RANKS;
            assert_int_equal(ranks[r].comm.num_reduces, 0);
            for (int row = 0; row < p.rows; row++) {
                for (int col = 0; col < n; col++) {
                    const float want = expected(&p, row, r * n + col);
                    assert_float_equal(ranks[r].out[row * n + col], want, 0);
                }
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_parallel),
        cmocka_unit_test(test_column_parallel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
