// SPDX-License-Identifier: Apache-2.0
//
// Family index, blocks by the means of their keys, against f64: which keys a token attends to, over
// pages in any order and more blocks than a task has; what the pool holds, whatever the cuts; the
// same bits at every ISA level and on any number of threads. Families streams and ngrams against
// their formulas.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/dtype.h"
#include "kernel/kernel.h"
#include "utils/random.h"

enum {
    HEADS = 3,
    KV_HEADS = 2,
    DIM = 40,
    HALF = 8,
    SIZE = 3, // of blocks
    TOP_K = 5,
    LIST = TOP_K * SIZE + SIZE - 1,
    PAGE = 16,
    ROWS = 2,
    STRIDE = 120,
    KEYS = STRIDE * PAGE, // 1920 tokens: 640 blocks
};

typedef struct fixture {
    msgl_pool *one, *two;
    uint64_t rng;
    int32_t pages[ROWS * STRIDE];
    float inv_freq[HALF], q_weight[DIM], k_weight[DIM];
    float *qk; // [ROWS, KEYS, (HEADS + 1) * DIM]
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
    for (int i = 0; i < DIM; i++) f->q_weight[i] = 1, f->k_weight[i] = 1 + 0.01f * (float)i;
    f->qk = uniform(&f->rng, (size_t)ROWS * KEYS * (HEADS + 1) * DIM);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    msgl__pool_destroy(f->one);
    msgl__pool_destroy(f->two);
    free(f->qk), free(f);
    return 0;
}

// Positions [from[r], to[r]) of the two requests, as one step.
typedef struct step {
    int32_t cu[ROWS + 1], lens[ROWS], rows[ROWS];
    msgl_seqs seqs;
    float *qk, *cos_sin;
} step;

static void step_new(const fixture *f, const int32_t *from, const int32_t *to, step *s)
{
    *s = (step){.rows = {0, 1}};
    for (int r = 0; r < ROWS; r++) {
        s->cu[r + 1] = s->cu[r] + to[r] - from[r];
        s->lens[r] = to[r];
    }
    const size_t row = (HEADS + 1) * DIM, tokens = (size_t)s->cu[ROWS];
    s->qk = malloc(tokens * row * sizeof *s->qk);
    s->cos_sin = malloc(tokens * 2 * HALF * sizeof *s->cos_sin);
    for (int r = 0; r < ROWS; r++) {
        for (int p = from[r]; p < to[r]; p++) {
            const size_t t = (size_t)(s->cu[r] + p - from[r]);
            memcpy(s->qk + t * row, f->qk + ((size_t)r * KEYS + (size_t)p) * row,
                   row * sizeof *s->qk);
            for (int i = 0; i < HALF; i++) {
                s->cos_sin[t * 2 * HALF + (size_t)i] = cosf((float)p * f->inv_freq[i]);
                s->cos_sin[t * 2 * HALF + HALF + (size_t)i] = sinf((float)p * f->inv_freq[i]);
            }
        }
    }
    s->seqs = (msgl_seqs){.size = ROWS,
                          .num_tokens = (int32_t)tokens,
                          .cu_seqlens_q = s->cu,
                          .seqlens_k = s->lens,
                          .table_rows = s->rows};
}

static void step_free(step *s)
{
    free(s->qk), free(s->cos_sin);
}

static void store(const fixture *f, step *s, const msgl_kernels *k, msgl_pool *threads,
                  msgl_dtype dtype, void *pool)
{
    msgl_exec x = {.pool = threads};
    const msgl_index_means_store_call call = {.seqs = &s->seqs,
                                              .heads = HEADS,
                                              .dim = DIM,
                                              .half = HALF,
                                              .size = SIZE,
                                              .q = s->qk,
                                              .k = s->qk + HEADS * DIM,
                                              .ld = (HEADS + 1) * DIM,
                                              .q_weight = f->q_weight,
                                              .k_weight = f->k_weight,
                                              .eps = 1e-6f,
                                              .cos_sin = s->cos_sin,
                                              .inv_freq = f->inv_freq,
                                              .scale = 1,
                                              .dtype = dtype,
                                              .pool = pool,
                                              .pages = f->pages,
                                              .page_stride = STRIDE,
                                              .page_size = PAGE};
    k->index.store_means(&x, &call);
}

// The lists [KV_HEADS, tokens, LIST] of up to MSGL_INDEX_ROWS tokens from `first` on.
static void choose(const fixture *f, const step *s, const msgl_kernels *k, msgl_pool *threads,
                   msgl_dtype dtype, const void *pool, int first, int tokens, int32_t *keys,
                   int32_t *counts)
{
    msgl_exec x = {.pool = threads};
    float *scores = malloc(sizeof *scores * MSGL_INDEX_ROWS * (KEYS / SIZE));
    const msgl_index_blocks_call call = {.seqs = &s->seqs,
                                         .first = first,
                                         .tokens = tokens,
                                         .heads = KV_HEADS,
                                         .dim = DIM,
                                         .queries = HEADS,
                                         .size = SIZE,
                                         .top_k = TOP_K,
                                         .q = s->qk,
                                         .ld_q = (HEADS + 1) * DIM,
                                         .dtype = dtype,
                                         .pool = pool,
                                         .pages = f->pages,
                                         .page_stride = STRIDE,
                                         .page_size = PAGE,
                                         .scores = scores,
                                         .max_blocks = KEYS / SIZE,
                                         .keys = keys,
                                         .counts = counts};
    k->index.choose_means(&x, &call);
    free(scores);
}

// v / rms(v) * weight, rotated as position p.
static void exact_norm_rotate(const fixture *f, const double *in, const float *weight, int p,
                              double *out)
{
    double squares = 0;
    for (int d = 0; d < DIM; d++) squares += in[d] * in[d];
    for (int d = 0; d < DIM; d++) {
        out[d] = in[d] / sqrt(squares / DIM + 1e-6) * (double)weight[d];
    }
    for (int i = 0; i < HALF; i++) {
        const double angle = p * (double)f->inv_freq[i], a = out[i], b = out[HALF + i];
        out[i] = a * cos(angle) - b * sin(angle);
        out[HALF + i] = b * cos(angle) + a * sin(angle);
    }
}

static const float *raw_of(const fixture *f, int row, int p, int head)
{
    return f->qk + (((size_t)row * KEYS + (size_t)p) * (HEADS + 1) + (size_t)head) * DIM;
}

static double score(const fixture *f, int row, int p, int block)
{
    double mean[DIM] = {0}, key[DIM], sum = 0;
    for (int i = 0; i < SIZE; i++) {
        for (int d = 0; d < DIM; d++) {
            mean[d] += (double)raw_of(f, row, block * SIZE + i, HEADS)[d] / SIZE;
        }
    }
    exact_norm_rotate(f, mean, f->k_weight, block * SIZE, key);
    for (int h = 0; h < HEADS; h++) {
        double q[DIM], raw[DIM], dot = 0;
        for (int d = 0; d < DIM; d++) raw[d] = (double)raw_of(f, row, p, h)[d];
        exact_norm_rotate(f, raw, f->q_weight, p, q);
        for (int d = 0; d < DIM; d++) dot += q[d] * key[d];
        sum += dot > 0 ? dot : 0;
    }
    return sum;
}

static int32_t place(const fixture *f, int row, int p, int head)
{
    const int32_t slot = f->pages[row * STRIDE + p / PAGE] * PAGE + p % PAGE;
    return slot * KV_HEADS + head;
}

// The list of the token at position p: whole blocks in order, none left out that is better than one
// of them by more than rounding, and all positions behind the last whole block.
static void check_list(const fixture *f, int row, int p, int head, const int32_t *keys, int count)
{
    const int blocks = (p + 1) / SIZE, chosen = blocks < TOP_K ? blocks : TOP_K;
    double worst = INFINITY, best = -INFINITY;
    int at = 0;
    for (int b = 0; b < blocks; b++) {
        const double v = blocks > TOP_K ? score(f, row, p, b) : 0;
        if (at < count && keys[at] == place(f, row, b * SIZE, head)) {
            for (int i = 0; i < SIZE; i++) {
                assert_int_equal(keys[at++], place(f, row, b * SIZE + i, head));
            }
            worst = v < worst ? v : worst;
        } else {
            best = v > best ? v : best;
        }
    }
    assert_int_equal(at, chosen * SIZE);
    for (int i = blocks * SIZE; i <= p; i++) assert_int_equal(keys[at++], place(f, row, i, head));
    assert_int_equal(at, count);
    assert_true(best <= worst + 1e-4);
}

static void test_means(void **state)
{
    fixture *f = *state;
    static const int32_t zero[ROWS], before[] = {1800, 0}, end[] = {1830, 40};
    const size_t slots = (size_t)ROWS * KEYS, bytes = slots * DIM * sizeof(float);
    float *first = NULL;
    for (int level = 0; level <= msgl__cpu_level_detect(); level++) {
        msgl_kernels k;
        step all, last;
        float *pool = calloc(1, bytes), *cut = calloc(1, bytes);
        msgl__kernels_init_cpu(&k, (msgl_cpu_level)level);
        step_new(f, zero, end, &all);
        store(f, &all, &k, f->two, MSGL_F32, pool);
        step_free(&all);
        step_new(f, zero, before, &all); // the same in two steps
        store(f, &all, &k, f->one, MSGL_F32, cut);
        step_free(&all);
        step_new(f, before, end, &last);
        store(f, &last, &k, f->one, MSGL_F32, cut);
        assert_memory_equal(pool, cut, bytes);
        if (first == NULL) {
            first = pool;
        } else {
            assert_memory_equal(pool, first, bytes);
        }
        const int tokens = last.seqs.num_tokens;
        for (int t = 0; t < tokens; t += MSGL_INDEX_ROWS) {
            const int n = tokens - t < MSGL_INDEX_ROWS ? tokens - t : MSGL_INDEX_ROWS;
            int32_t keys[2][KV_HEADS * MSGL_INDEX_ROWS * LIST] = {{0}};
            int32_t counts[2][KV_HEADS * MSGL_INDEX_ROWS];
            choose(f, &last, &k, f->two, MSGL_F32, pool, t, n, keys[0], counts[0]);
            choose(f, &last, &k, f->one, MSGL_F32, pool, t, n, keys[1], counts[1]);
            assert_memory_equal(keys[0], keys[1], sizeof keys[0]);
            for (int h = 0; h < KV_HEADS; h++) {
                for (int i = 0; i < n; i++) {
                    const int row = t + i >= last.cu[1], at = h * n + i;
                    const int p = before[row] + t + i - last.cu[row];
                    check_list(f, row, p, h, keys[0] + (size_t)at * LIST, counts[0][at]);
                }
            }
        }
        step_free(&last);
        free(cut);
        if (pool != first) free(pool);
    }
    free(first);
}

// A key of bf16 is made of what the pool has, not of what the step has in f32.
static void test_half(void **state)
{
    fixture *f = *state;
    static const int32_t zero[ROWS], middle[] = {100, 31}, end[] = {130, 50};
    const size_t bytes = (size_t)ROWS * KEYS * DIM * 2;
    uint16_t *whole = calloc(1, bytes), *cut = calloc(1, bytes);
    msgl_kernels k;
    step s;
    msgl__kernels_init_cpu(&k, msgl__cpu_level_detect());
    step_new(f, zero, end, &s);
    store(f, &s, &k, f->two, MSGL_BF16, whole);
    step_free(&s);
    step_new(f, zero, middle, &s);
    store(f, &s, &k, f->two, MSGL_BF16, cut);
    step_free(&s);
    step_new(f, middle, end, &s);
    store(f, &s, &k, f->two, MSGL_BF16, cut);
    step_free(&s);
    assert_memory_equal(whole, cut, bytes);
    free(whole), free(cut);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void test_streams(void **state)
{
    fixture *f = *state;
    enum { NUM = 3, WIDE = 37, R = 5, LD = 9 };
    float *in = uniform(&f->rng, R * NUM * WIDE), *gates = uniform(&f->rng, R * NUM * WIDE);
    float *narrow = uniform(&f->rng, R * LD);
    for (int level = 0; level <= msgl__cpu_level_detect(); level++) {
        msgl_kernels k;
        msgl_exec x = {.pool = f->two};
        float out[R * WIDE], spread[R * NUM * WIDE], squashed[R * LD];
        msgl__kernels_init_cpu(&k, (msgl_cpu_level)level);
        k.streams.mix(&x, gates, in, R, NUM, WIDE, out);
        for (int i = 0; i < R * WIDE; i++) {
            double want = 0;
            for (int s = 0; s < NUM; s++) {
                const int at = (i / WIDE * NUM + s) * WIDE + i % WIDE;
                want += sigmoid((double)gates[at]) * (double)in[at] / NUM;
            }
            assert_true(fabs(want - (double)out[i]) < 1e-6);
        }
        k.streams.spread(&x, out, R, NUM, WIDE, spread);
        k.streams.inject(&x, narrow, LD, out, R, NUM, WIDE, spread);
        for (int i = 0; i < R * NUM * WIDE; i++) {
            const int r = i / (NUM * WIDE), s = i / WIDE % NUM;
            const double v = (double)out[r * WIDE + i % WIDE];
            const double want = v + 2 * sigmoid((double)narrow[r * LD + s] / NUM) * v;
            assert_true(fabs(want - (double)spread[i]) < 1e-6);
        }
        memcpy(squashed, narrow, sizeof squashed);
        k.streams.squash(&x, squashed, LD, R, NUM, LD - 2);
        for (int i = 0; i < R * LD; i++) {
            const double v = (double)narrow[i] / NUM;
            const double want = i % LD < LD - 2 ? v * sigmoid(v) : (double)narrow[i];
            assert_true(fabs(want - (double)squashed[i]) < 1e-6);
        }
        k.streams.clear(&x, out, R, WIDE);
        for (int i = 0; i < R * WIDE; i++) assert_true(out[i] == 0);
    }
    free(in), free(gates), free(narrow);
}

// Row 2's ids lie at 20; token 9 ends n-grams.
static void test_ngram_ids(void **state)
{
    fixture *f = *state;
    static const int32_t POOL[] = {1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0,
                                   0, 0, 0, 0, 0, 0, 7, 8, 9, 9, 4, 5, 6};
    static const int32_t INDEX[] = {0, 20, 21, 22, 23, 24, 25, 26};
    static const int32_t POSITIONS[] = {0, 0, 1, 2, 3, 4, 5, 6};
    static const int32_t BEFORE[][3] = {{1, 9, 9}, {7, 9, 9}, {8, 7, 9}, {9, 8, 7},
                                        {9, 9, 9}, {4, 9, 9}, {5, 4, 9}, {6, 5, 4}};
    const msgl_ngram_hash h = {.size = 3,
                               .heads = 2,
                               .end = 9,
                               .factors = {1001, 70001, 900001},
                               .moduli = {7, 11, 13, 17},
                               .offsets = {0, 7, 18, 31}};
    const msgl_step_tokens tokens = {.count = 8, .pool = POOL, .index = INDEX};
    int32_t ids[8 * 4];
    msgl_kernels k;
    msgl_exec x = {.pool = f->two};
    msgl__kernels_init_cpu(&k, msgl__cpu_level_detect());
    k.ngrams.ids(&x, &h, &tokens, POSITIONS, ids);
    for (int t = 0; t < 8; t++) {
        uint64_t hash = (uint64_t)BEFORE[t][0] * h.factors[0];
        for (int order = 0; order < 2; order++) {
            hash ^= (uint64_t)BEFORE[t][order + 1] * h.factors[order + 1];
            for (int head = 2 * order; head < 2 * order + 2; head++) {
                const uint64_t want = hash % (uint64_t)h.moduli[head];
                assert_int_equal(ids[4 * t + head], h.offsets[head] + (int32_t)want);
            }
        }
    }
}

static void test_ngram_gate(void **state)
{
    fixture *f = *state;
    enum { NUM = 2, WIDE = 21, R = 4, LD = NUM * WIDE + WIDE };
    float *kv = uniform(&f->rng, R * LD), *queries = uniform(&f->rng, R * NUM * WIDE);
    float out[R * NUM * WIDE];
    memset(queries, 0, WIDE * sizeof *queries); // a product of 0 has no sign
    const msgl_ngram_gate_call call = {.rows = R,
                                       .num = NUM,
                                       .dim = WIDE,
                                       .keys = kv,
                                       .values = kv + NUM * WIDE,
                                       .ld = LD,
                                       .queries = queries,
                                       .out = out};
    for (int level = 0; level <= msgl__cpu_level_detect(); level++) {
        msgl_kernels k;
        msgl_exec x = {.pool = f->two};
        msgl__kernels_init_cpu(&k, (msgl_cpu_level)level);
        k.ngrams.gate(&x, &call);
        for (int i = 0; i < R * NUM; i++) {
            double dot = 0;
            for (int d = 0; d < WIDE; d++) {
                dot +=
                    (double)kv[i / NUM * LD + i % NUM * WIDE + d] * (double)queries[i * WIDE + d];
            }
            dot /= sqrt(WIDE);
            const double root = sqrt(fmax(fabs(dot), 1e-6)) * ((dot > 0) - (dot < 0));
            for (int d = 0; d < WIDE; d++) {
                const double want = sigmoid(root) * (double)kv[i / NUM * LD + NUM * WIDE + d];
                assert_true(fabs(want - (double)out[i * WIDE + d]) < 1e-6);
            }
        }
    }
    free(kv), free(queries);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_means), cmocka_unit_test(test_half), cmocka_unit_test(test_streams),
        cmocka_unit_test(test_ngram_ids), cmocka_unit_test(test_ngram_gate)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
