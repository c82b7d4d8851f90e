// SPDX-License-Identifier: Apache-2.0
//
// Families compress and hyper against f64: keys of windows over pages in any order, with one series
// and with two; streams that a block opens and closes. The same bits at every ISA level, on any
// number of threads and however a request is cut.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernel/kernel.h"
#include "utils/random.h"

enum { DIM = 64, HALF = 8, PAGE = 16, ROWS = 2, STRIDE = 20, SLOTS = ROWS * STRIDE * PAGE };

typedef struct fixture {
    msgl_pool *one, *two;
    uint64_t rng;
    int32_t pages[ROWS * STRIDE];
    float inv_freq[HALF];
} fixture;

static float *uniform(uint64_t *rng, size_t n)
{
    float *p = malloc(n * sizeof *p);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) p[i] = 2 * msgl__random_unit(rng) - 1;
    return p;
}

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    msgl_err err;
    if (msgl__pool_create(1, &f->one, &err) != 0 || msgl__pool_create(2, &f->two, &err) != 0)
        return -1;
    for (int i = 0; i < ROWS * STRIDE; i++) f->pages[i] = i * 7 % (ROWS * STRIDE);
    for (int i = 0; i < HALF; i++) f->inv_freq[i] = powf(100, -(float)i / HALF);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    msgl__pool_destroy(f->one);
    msgl__pool_destroy(f->two);
    free(f);
    return 0;
}

static int32_t slot_of(const fixture *f, int row, int p)
{
    return f->pages[row * STRIDE + p / PAGE] * PAGE + p % PAGE;
}

// What keys are made of: two requests of so many tokens.
typedef struct windows {
    int rate, series, ld;
    int32_t end[ROWS];
    float *rows, *bias, *weight; // rows [SLOTS, ld]
} windows;

static windows windows_new(fixture *f, int rate, int series)
{
    windows w = {.rate = rate, .series = series, .ld = 5 + 2 * series * DIM, .end = {301, 40}};
    w.rows = uniform(&f->rng, (size_t)SLOTS * (size_t)w.ld);
    w.bias = uniform(&f->rng, (size_t)(rate * series * DIM));
    w.weight = uniform(&f->rng, DIM);
    for (size_t i = 0; i < (size_t)SLOTS * (size_t)w.ld; i++) w.rows[i] *= 4;
    return w;
}

static void windows_free(windows *w)
{
    free(w->rows), free(w->bias), free(w->weight);
}

// The keys of the windows that end in [from[r], to[r]) of the requests, into pool [SLOTS, DIM].
static void make(const fixture *f, const windows *w, const msgl_kernels *k, msgl_pool *threads,
                 const int32_t *from, const int32_t *to, float *pool)
{
    const int32_t rows[ROWS] = {0, 1};
    int32_t cu[ROWS + 1] = {0}, slots[SLOTS];
    for (int r = 0; r < ROWS; r++) {
        cu[r + 1] = cu[r] + to[r] - from[r];
        for (int p = from[r]; p < to[r]; p++) slots[cu[r] + p - from[r]] = slot_of(f, r, p);
    }
    const msgl_seqs seqs = {.size = ROWS,
                            .num_tokens = cu[ROWS],
                            .cu_seqlens_q = cu,
                            .seqlens_k = to,
                            .table_rows = rows};
    const msgl_compress_call call = {.seqs = &seqs,
                                     .rate = w->rate,
                                     .dim = DIM,
                                     .half = HALF,
                                     .two_series = w->series == 2,
                                     .rows_dtype = MSGL_F32,
                                     .rows = w->rows,
                                     .ld_rows = (size_t)w->ld,
                                     .at = 5,
                                     .pages = f->pages,
                                     .page_stride = STRIDE,
                                     .page_size = PAGE,
                                     .bias = w->bias,
                                     .weight = w->weight,
                                     .eps = 1e-6f,
                                     .inv_freq = f->inv_freq,
                                     .scale = 1,
                                     .dtype = MSGL_F32,
                                     .pool = pool,
                                     .slots = slots};
    msgl_exec x = {.pool = threads};
    k->compress.make(&x, &call);
}

// Adds the terms of the tokens [begin, begin + rate) in one series.
static void add_terms(const fixture *f, const windows *w, int row, int begin, int series, int d,
                      double *sum, double *shares)
{
    for (int j = 0; j < w->rate; j++) {
        const float *raw = w->rows + (size_t)slot_of(f, row, begin + j) * (size_t)w->ld + 5;
        const double value = (double)raw[series * DIM + d];
        const double gate = (double)raw[(w->series + series) * DIM + d] +
                            (double)w->bias[(j * w->series + series) * DIM + d];
        *sum += exp(gate) * value;
        *shares += exp(gate);
    }
}

static void check_key(const fixture *f, const windows *w, int row, int window, const float *key)
{
    const int begin = window * w->rate;
    double e[DIM], squares = 0;
    for (int d = 0; d < DIM; d++) {
        double sum = 0, shares = 0;
        if (w->series == 2 && window > 0) {
            add_terms(f, w, row, begin - w->rate, 0, d, &sum, &shares);
        }
        add_terms(f, w, row, begin, w->series - 1, d, &sum, &shares);
        e[d] = sum / shares;
        squares += e[d] * e[d];
    }
    for (int d = 0; d < DIM; d++) e[d] *= (double)w->weight[d] / sqrt(squares / DIM + 1e-6);
    for (int i = 0; i < HALF; i++) {
        double *pair = e + DIM - 2 * HALF + 2 * i;
        const double angle = begin * (double)f->inv_freq[i], a = pair[0], b = pair[1];
        pair[0] = a * cos(angle) - b * sin(angle);
        pair[1] = b * cos(angle) + a * sin(angle);
    }
    for (int d = 0; d < DIM; d++) assert_true(fabs(e[d] - (double)key[d]) < 2e-5);
}

static void check_windows(fixture *f, int rate, int series)
{
    static const int32_t zero[ROWS], middle[ROWS] = {150, 7};
    const size_t bytes = (size_t)SLOTS * DIM * sizeof(float);
    windows w = windows_new(f, rate, series);
    float *first = calloc(1, bytes), *pool = malloc(bytes);
    assert_true(first != NULL && pool != NULL);
    for (int level = 0; level <= msgl__cpu_level_detect(); level++) {
        msgl_kernels k;
        msgl__kernels_init_cpu(&k, (msgl_cpu_level)level);
        if (level == 0) make(f, &w, &k, f->one, zero, w.end, first);
        memset(pool, 0, bytes);
        make(f, &w, &k, f->two, zero, w.end, pool);
        assert_memory_equal(pool, first, bytes);
        memset(pool, 0, bytes);
        make(f, &w, &k, f->two, zero, middle, pool);
        make(f, &w, &k, f->one, middle, w.end, pool);
        assert_memory_equal(pool, first, bytes);
    }
    for (int r = 0; r < ROWS; r++) {
        for (int p = 0; p < w.end[r]; p++) {
            const float *key = first + (size_t)slot_of(f, r, p) * DIM;
            if ((p + 1) % rate == 0) {
                check_key(f, &w, r, p / rate, key);
            } else {
                for (int d = 0; d < DIM; d++) assert_true(key[d] == 0);
            }
        }
    }
    windows_free(&w);
    free(first), free(pool);
}

static void test_compress(void **state)
{
    check_windows(*state, 4, 2);
    check_windows(*state, 5, 1);
    check_windows(*state, 1, 2);
}

enum { STREAMS = 3, WIDTH = 45, MIX = STREAMS + STREAMS * STREAMS, TOKENS = 60 };

typedef struct streams {
    msgl_hyper h;
    float *in, *block, *fn, *base, scale[3]; // in [TOKENS, STREAMS, WIDTH], block [TOKENS, WIDTH]
} streams;

// Post and comb of row r, and what the block reads.
static void exact_open(const streams *s, int r, double *mix, double *out)
{
    enum { N = STREAMS, FLAT = STREAMS * WIDTH };
    const float *x = s->in + (size_t)r * FLAT;
    double h[N + MIX], *comb = mix + N, squares = 0;
    for (int i = 0; i < FLAT; i++) squares += (double)x[i] * (double)x[i];
    for (int o = 0; o < N + MIX; o++) {
        h[o] = 0;
        for (int i = 0; i < FLAT; i++) h[o] += (double)s->fn[o * FLAT + i] * (double)x[i];
        const int part = o < N ? 0 : o < 2 * N ? 1 : 2;
        h[o] = h[o] / sqrt(squares / FLAT + 1e-6) * (double)s->scale[part] + (double)s->base[o];
    }
    for (int i = 0; i < N; i++) mix[i] = 2 / (1 + exp(-h[N + i]));
    for (int i = 0; i < N; i++) {
        double sum = 0;
        for (int j = 0; j < N; j++) sum += exp(h[2 * N + i * N + j]);
        for (int j = 0; j < N; j++) comb[i * N + j] = exp(h[2 * N + i * N + j]) / sum + 1e-6;
    }
    for (int pass = 0; pass < 2 * s->h.iterations - 1; pass++) {
        const int by = pass % 2 == 0 ? N : 1, others = pass % 2 == 0 ? 1 : N; // columns first
        for (int i = 0; i < N; i++) {
            double sum = 1e-6;
            for (int j = 0; j < N; j++) sum += comb[i * others + j * by];
            for (int j = 0; j < N; j++) comb[i * others + j * by] /= sum;
        }
    }
    for (int d = 0; d < WIDTH; d++) {
        out[d] = 0;
        for (int i = 0; i < N; i++) {
            out[d] += (1 / (1 + exp(-h[i])) + 1e-6) * (double)x[i * WIDTH + d];
        }
    }
}

// What the kernels leave: of the head, of open, and of close.
typedef struct results {
    float head[TOKENS * WIDTH], read[TOKENS * WIDTH], zeros[TOKENS * WIDTH], mix[TOKENS * MIX];
    float closed[TOKENS * STREAMS * WIDTH];
} results;

static void run(const streams *s, const msgl_kernels *k, msgl_pool *threads, results *r)
{
    msgl_exec x = {.pool = threads};
    memset(r, 1, sizeof *r);
    memcpy(r->closed, s->in, sizeof r->closed);
    k->hyper.head(&x, &s->h, s->in, TOKENS, r->head);
    k->hyper.open(&x, &s->h, s->in, TOKENS, r->mix, r->read, r->zeros);
    k->hyper.close(&x, &s->h, r->mix, s->block, TOKENS, r->closed);
}

static void check_results(const streams *s, const results *got)
{
    for (int r = 0; r < TOKENS; r++) {
        double mix[MIX], read[WIDTH];
        const float *x = s->in + (size_t)r * STREAMS * WIDTH;
        exact_open(s, r, mix, read);
        for (int i = 0; i < MIX; i++) {
            assert_true(fabs(mix[i] - (double)got->mix[r * MIX + i]) < 1e-5);
        }
        for (int d = 0; d < WIDTH; d++) {
            assert_true(fabs(read[d] - (double)got->read[r * WIDTH + d]) < 1e-5);
            assert_true(got->head[r * WIDTH + d] == got->read[r * WIDTH + d]);
            assert_true(got->zeros[r * WIDTH + d] == 0);
            for (int i = 0; i < STREAMS; i++) {
                double want = mix[i] * (double)s->block[r * WIDTH + d];
                for (int j = 0; j < STREAMS; j++) {
                    want += mix[STREAMS + j * STREAMS + i] * (double)x[j * WIDTH + d];
                }
                const size_t at = ((size_t)r * STREAMS + (size_t)i) * WIDTH + (size_t)d;
                assert_true(fabs(want - (double)got->closed[at]) < 1e-5);
            }
        }
    }
}

static void test_hyper(void **state)
{
    fixture *f = *state;
    streams s = {.in = uniform(&f->rng, TOKENS * STREAMS * WIDTH),
                 .block = uniform(&f->rng, TOKENS * WIDTH),
                 .fn = uniform(&f->rng, (STREAMS + MIX) * STREAMS * WIDTH),
                 .base = uniform(&f->rng, STREAMS + MIX),
                 .scale = {0.5f, 0.25f, 0.125f}};
    s.h = (msgl_hyper){.streams = STREAMS,
                       .dim = WIDTH,
                       .iterations = 4,
                       .eps = 1e-6f,
                       .norm_eps = 1e-6f,
                       .fn = s.fn,
                       .base = s.base,
                       .scale = s.scale};
    results *first = malloc(sizeof *first), *got = malloc(sizeof *got);
    assert_true(first != NULL && got != NULL);
    for (int level = 0; level <= msgl__cpu_level_detect(); level++) {
        msgl_kernels k;
        msgl__kernels_init_cpu(&k, (msgl_cpu_level)level);
        if (level == 0) run(&s, &k, f->one, first);
        run(&s, &k, f->two, got);
        assert_memory_equal(got, first, sizeof *got);
    }
    check_results(&s, first);
    free(first), free(got);
    free(s.in), free(s.block), free(s.fn), free(s.base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_compress),
                                       cmocka_unit_test(test_hyper)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
