// SPDX-License-Identifier: Apache-2.0
//
// Family index against f64: what is stored of index keys and queries, and which keys a token
// chooses, over pages in any order, at every ISA level, whatever else is in the step and on any
// number of threads; ties, and scores that are no numbers.
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

enum { HEADS = 5, DIM = 40, HALF = 8, PAGE = 16, ROWS = 3, STRIDE = 96, KEYS = STRIDE * PAGE };

// Three requests of up to KEYS keys whose pages lie apart.
typedef struct fixture {
    msgl_pool *one, *two;
    uint64_t rng;
    int32_t pages[ROWS * STRIDE];
    float *keys; // [ROWS, KEYS, DIM] as they are in the pool
    float *pool; // [ROWS * KEYS, DIM]
} fixture;

static float *uniform(uint64_t *rng, size_t n)
{
    float *p = malloc(n * sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = 2 * msgl__random_unit(rng) - 1;
    return p;
}

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    msgl_err err;
    if (msgl__pool_create(1, &f->one, &err) != 0 || msgl__pool_create(2, &f->two, &err) != 0)
        return -1;
    // Page p of row r is number (p * ROWS + r) * 5 mod their number, which 5 does not divide.
    for (int r = 0; r < ROWS; r++) {
        for (int p = 0; p < STRIDE; p++) {
            f->pages[r * STRIDE + p] = (p * ROWS + r) * 5 % (ROWS * STRIDE);
        }
    }
    f->keys = uniform(&f->rng, (size_t)ROWS * KEYS * DIM);
    f->pool = calloc((size_t)ROWS * KEYS * DIM, sizeof *f->pool);
    for (int r = 0; r < ROWS; r++) {
        for (int p = 0; p < KEYS; p++) {
            const int slot = f->pages[r * STRIDE + p / PAGE] * PAGE + p % PAGE;
            memcpy(f->pool + (size_t)slot * DIM, f->keys + ((size_t)r * KEYS + (size_t)p) * DIM,
                   DIM * sizeof *f->pool);
        }
    }
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    msgl__pool_destroy(f->one);
    msgl__pool_destroy(f->two);
    free(f->keys), free(f->pool), free(f);
    return 0;
}

// A step of ROWS requests with so many new tokens behind so many others.
typedef struct step {
    int32_t cu[ROWS + 1], lens[ROWS], rows[ROWS];
    msgl_seqs seqs;
    float *q, *weights;
} step;

static step step_new(fixture *f, const int32_t *before, const int32_t *added)
{
    step s = {.rows = {0, 1, 2}};
    for (int r = 0; r < ROWS; r++) {
        s.cu[r + 1] = s.cu[r] + added[r];
        s.lens[r] = before[r] + added[r];
    }
    s.seqs.size = ROWS;
    s.seqs.num_tokens = s.cu[ROWS];
    s.q = uniform(&f->rng, (size_t)s.cu[ROWS] * HEADS * DIM);
    s.weights = uniform(&f->rng, (size_t)s.cu[ROWS] * HEADS);
    return s;
}

static double score(const fixture *f, const step *s, int row, int token, int key)
{
    const float *k = f->keys + ((size_t)row * KEYS + (size_t)key) * DIM;
    double sum = 0;
    for (int h = 0; h < HEADS; h++) {
        double dot = 0;
        for (int d = 0; d < DIM; d++) {
            dot += (double)s->q[((size_t)token * HEADS + (size_t)h) * DIM + (size_t)d] * k[d];
        }
        sum += (double)s->weights[(size_t)token * HEADS + (size_t)h] * (dot > 0 ? dot : 0);
    }
    return sum;
}

typedef struct choice {
    int32_t *slots, *counts;
} choice;

static choice choose(const fixture *f, step *s, const msgl_kernels *k, msgl_pool *pool,
                     const void *keys, msgl_dtype dtype, int32_t top_k)
{
    msgl_exec x = {.pool = pool};
    const size_t tokens = (size_t)s->seqs.num_tokens;
    choice c = {.slots = calloc(tokens * (size_t)top_k, sizeof *c.slots),
                .counts = calloc(tokens, sizeof *c.counts)};
    float *scores = malloc(sizeof *scores * MSGL_INDEX_ROWS * KEYS);
    s->seqs.cu_seqlens_q = s->cu;
    s->seqs.seqlens_k = s->lens;
    s->seqs.table_rows = s->rows;
    const msgl_index_choose_call call = {.seqs = &s->seqs,
                                         .heads = HEADS,
                                         .dim = DIM,
                                         .top_k = top_k,
                                         .q = s->q,
                                         .ld_q = HEADS * DIM,
                                         .weights = s->weights,
                                         .dtype = dtype,
                                         .pool = keys,
                                         .pages = f->pages,
                                         .page_stride = STRIDE,
                                         .page_size = PAGE,
                                         .scores = scores,
                                         .max_keys = KEYS,
                                         .slots = c.slots,
                                         .counts = c.counts};
    k->index.choose(&x, &call);
    free(scores);
    return c;
}

static void choice_free(choice *c)
{
    free(c->slots), free(c->counts);
}

// The chosen keys are in order, and none that was left out is better than one of them by more than
// rounding.
static void check_token(const fixture *f, const step *s, int row, int token, int n,
                        const int32_t *slots, int count)
{
    double worst = INFINITY, best = -INFINITY;
    int at = 0;
    for (int p = 0; p < n; p++) {
        const int slot = f->pages[row * STRIDE + p / PAGE] * PAGE + p % PAGE;
        const double v = score(f, s, row, token, p);
        if (at < count && slots[at] == slot) {
            worst = v < worst ? v : worst;
            at++;
        } else {
            best = v > best ? v : best;
        }
    }
    assert_int_equal(at, count);
    assert_true(best <= worst + 1e-4);
}

static void test_chooses(void **state)
{
    fixture *f = *state;
    static const int32_t before[] = {1500, 0, 90}, added[] = {1, 70, 37};
    const int32_t top_k = 96;
    step s = step_new(f, before, added);
    for (int level = 0; level <= msgl__cpu_level_detect(); level++) {
        msgl_kernels k;
        msgl__kernels_init_cpu(&k, (msgl_cpu_level)level);
        choice one = choose(f, &s, &k, f->one, f->pool, MSGL_F32, top_k);
        choice two = choose(f, &s, &k, f->two, f->pool, MSGL_F32, top_k);
        const size_t tokens = (size_t)s.seqs.num_tokens;
        assert_memory_equal(one.counts, two.counts, tokens * sizeof *one.counts);
        assert_memory_equal(one.slots, two.slots, tokens * (size_t)top_k * sizeof *one.slots);
        for (int r = 0; r < ROWS; r++) {
            for (int t = s.cu[r]; t < s.cu[r + 1]; t++) {
                const int n = before[r] + t - s.cu[r] + 1, want = n < top_k ? n : top_k;
                assert_int_equal(one.counts[t], want);
                check_token(f, &s, r, t, n, one.slots + (size_t)t * (size_t)top_k, want);
            }
        }
        choice_free(&one), choice_free(&two);
    }
    free(s.q), free(s.weights);
}

// What a token chooses alone it chooses in a chunk.
static void test_cuts(void **state)
{
    fixture *f = *state;
    static const int32_t before[] = {700, 300, 0}, added[] = {40, 9, 100};
    const int32_t top_k = 64;
    msgl_kernels k;
    msgl__kernels_init_cpu(&k, msgl__cpu_level_detect());
    step s = step_new(f, before, added);
    choice all = choose(f, &s, &k, f->two, f->pool, MSGL_F32, top_k);
    for (int t = 0; t < s.cu[ROWS]; t++) {
        int r = 0;
        while (s.cu[r + 1] <= t) r++;
        step own = {.cu = {0, 1}, .lens = {before[r] + t - s.cu[r] + 1}, .rows = {r}};
        own.seqs.size = own.seqs.num_tokens = 1;
        own.q = s.q + (size_t)t * HEADS * DIM;
        own.weights = s.weights + (size_t)t * HEADS;
        choice alone = choose(f, &own, &k, f->one, f->pool, MSGL_F32, top_k);
        assert_int_equal(alone.counts[0], all.counts[t]);
        assert_memory_equal(alone.slots, all.slots + (size_t)t * (size_t)top_k,
                            (size_t)alone.counts[0] * sizeof *alone.slots);
        choice_free(&alone);
    }
    choice_free(&all);
    free(s.q), free(s.weights);
}

// Pools of two bytes an element choose by the keys as these have them.
static void test_half(void **state)
{
    fixture *f = *state;
    static const int32_t before[] = {400, 0, 10}, added[] = {2, 1, 150};
    static const msgl_dtype dtypes[] = {MSGL_BF16, MSGL_F16};
    const int32_t top_k = 48;
    const size_t n = (size_t)ROWS * KEYS * DIM;
    msgl_kernels k;
    msgl__kernels_init_cpu(&k, msgl__cpu_level_detect());
    step s = step_new(f, before, added);
    for (int d = 0; d < 2; d++) {
        uint16_t *half = malloc(n * sizeof *half);
        float *wide = malloc(n * sizeof *wide);
        for (size_t i = 0; i < n; i++) {
            msgl__store_f32(half, dtypes[d], i, f->pool[i]);
            wide[i] = msgl__load_f32(half, dtypes[d], i);
        }
        choice narrow = choose(f, &s, &k, f->two, half, dtypes[d], top_k);
        choice same = choose(f, &s, &k, f->two, wide, MSGL_F32, top_k);
        const size_t tokens = (size_t)s.seqs.num_tokens;
        assert_memory_equal(narrow.slots, same.slots, tokens * (size_t)top_k * sizeof *same.slots);
        choice_free(&narrow), choice_free(&same);
        free(half), free(wide);
    }
    free(s.q), free(s.weights);
}

// Of equal scores the earlier positions win; a score that is no number loses to all others.
static void test_ties(void **state)
{
    fixture *f = *state;
    static const int32_t before[] = {199, 0, 0}, added[] = {1, 1, 1};
    const int32_t top_k = 150;
    msgl_kernels k;
    msgl__kernels_init_cpu(&k, msgl__cpu_level_detect());
    step s = step_new(f, before, added);
    memset(s.weights, 0, sizeof *s.weights * (size_t)s.cu[ROWS] * HEADS);
    choice tied = choose(f, &s, &k, f->two, f->pool, MSGL_F32, top_k);
    for (int p = 0; p < top_k; p++) {
        assert_int_equal(tied.slots[p], f->pages[p / PAGE] * PAGE + p % PAGE);
    }
    choice_free(&tied);
    float *broken = malloc(sizeof *broken * (size_t)ROWS * KEYS * DIM);
    memcpy(broken, f->pool, sizeof *broken * (size_t)ROWS * KEYS * DIM);
    const int bad = f->pages[3] * PAGE + 2; // of position 50
    broken[(size_t)bad * DIM] = NAN;
    for (int h = 0; h < HEADS; h++) s.weights[h] = -1; // a product of 0 would be the best
    for (int h = 0; h < HEADS; h++) s.q[h * DIM] = 1;
    choice rest = choose(f, &s, &k, f->two, broken, MSGL_F32, top_k);
    for (int i = 0; i < top_k; i++) assert_int_not_equal(rest.slots[i], bad);
    choice_free(&rest);
    free(broken), free(s.q), free(s.weights);
}

enum { OF_BLOCKS = 2, SIZE = 10, BLOCKS_K = 6, LOCAL = 2, LIST = SIZE * BLOCKS_K };

// Of up to MSGL_INDEX_ROWS tokens of a step from `first` on, whose queries are the first OF_BLOCKS
// of each.
static choice choose_blocks(const fixture *f, step *s, const msgl_kernels *k, msgl_pool *pool,
                            int32_t first, int32_t tokens)
{
    msgl_exec x = {.pool = pool};
    const size_t lists = OF_BLOCKS * (size_t)tokens;
    choice c = {.slots = calloc(lists * LIST, sizeof *c.slots),
                .counts = calloc(lists, sizeof *c.counts)};
    const int32_t max_blocks = KEYS / SIZE + 1;
    float *scores = malloc(sizeof *scores * MSGL_INDEX_ROWS * OF_BLOCKS * (size_t)max_blocks);
    s->seqs.cu_seqlens_q = s->cu;
    s->seqs.seqlens_k = s->lens;
    s->seqs.table_rows = s->rows;
    const msgl_index_blocks_call call = {.seqs = &s->seqs,
                                         .first = first,
                                         .tokens = tokens,
                                         .heads = OF_BLOCKS,
                                         .dim = DIM,
                                         .size = SIZE,
                                         .top_k = BLOCKS_K,
                                         .local = LOCAL,
                                         .q = s->q,
                                         .ld_q = HEADS * DIM,
                                         .dtype = MSGL_F32,
                                         .pool = f->pool,
                                         .pages = f->pages,
                                         .page_stride = STRIDE,
                                         .page_size = PAGE,
                                         .scores = scores,
                                         .max_blocks = max_blocks,
                                         .keys = c.slots,
                                         .counts = c.counts};
    k->index.choose_blocks(&x, &call);
    free(scores);
    return c;
}

// Of head h's token, whose last key is n - 1, the best product with a key of block b.
static double block_score(const fixture *f, const step *s, int row, int token, int h, int b, int n)
{
    double best = -INFINITY;
    for (int p = b * SIZE; p < (b + 1) * SIZE && p < n; p++) {
        const float *k = f->keys + ((size_t)row * KEYS + (size_t)p) * DIM;
        double dot = 0;
        for (int d = 0; d < DIM; d++) {
            dot += (double)s->q[((size_t)token * HEADS + (size_t)h) * DIM + (size_t)d] * k[d];
        }
        best = dot > best ? dot : best;
    }
    return best;
}

// Whole blocks in order, the last of them up to the token; the last LOCAL ones among them; and none
// that was left out is better than one of the others by more than rounding.
static void check_blocks(const fixture *f, const step *s, int row, int token, int h, int n,
                         const int32_t *keys, int count)
{
    const int blocks = (n + SIZE - 1) / SIZE;
    double worst = INFINITY, best = -INFINITY;
    int at = 0, chosen = 0;
    for (int b = 0; b < blocks; b++) {
        const double v = block_score(f, s, row, token, h, b, n);
        const int first = f->pages[row * STRIDE + b * SIZE / PAGE] * PAGE + b * SIZE % PAGE;
        if (at == count || keys[at] != first * OF_BLOCKS + h) {
            assert_true(b < blocks - LOCAL);
            best = v > best ? v : best;
            continue;
        }
        for (int p = b * SIZE; p < (b + 1) * SIZE && p < n; p++, at++) {
            const int slot = f->pages[row * STRIDE + p / PAGE] * PAGE + p % PAGE;
            assert_int_equal(keys[at], slot * OF_BLOCKS + h);
        }
        if (b < blocks - LOCAL) worst = v < worst ? v : worst;
        chosen++;
    }
    assert_int_equal(at, count);
    assert_int_equal(chosen, blocks < BLOCKS_K ? blocks : BLOCKS_K);
    assert_true(best <= worst + 1e-4);
}

// At every level, on any number of threads; and alone a token chooses what it chooses in a chunk.
static void test_blocks(void **state)
{
    fixture *f = *state;
    static const int32_t before[] = {1500, 0, 90}, added[] = {1, 70, 37};
    step s = step_new(f, before, added);
    for (int level = 0; level <= msgl__cpu_level_detect(); level++) {
        msgl_kernels k;
        msgl__kernels_init_cpu(&k, (msgl_cpu_level)level);
        for (int32_t first = 0; first < s.cu[ROWS]; first += MSGL_INDEX_ROWS) {
            const int32_t left = s.cu[ROWS] - first,
                          n = left < MSGL_INDEX_ROWS ? left : MSGL_INDEX_ROWS;
            choice one = choose_blocks(f, &s, &k, f->one, first, n);
            choice two = choose_blocks(f, &s, &k, f->two, first, n);
            const size_t lists = OF_BLOCKS * (size_t)n;
            assert_memory_equal(one.counts, two.counts, lists * sizeof *one.counts);
            assert_memory_equal(one.slots, two.slots, lists * LIST * sizeof *one.slots);
            for (int32_t t = first; t < first + n; t++) {
                int r = 0;
                while (s.cu[r + 1] <= t) r++;
                const int keys = before[r] + t - s.cu[r] + 1;
                choice alone = choose_blocks(f, &s, &k, f->one, t, 1);
                for (int h = 0; h < OF_BLOCKS; h++) {
                    const size_t at = (size_t)h * (size_t)n + (size_t)(t - first);
                    check_blocks(f, &s, r, t, h, keys, one.slots + at * LIST, one.counts[at]);
                    assert_int_equal(alone.counts[h], one.counts[at]);
                    assert_memory_equal(alone.slots + (size_t)h * LIST, one.slots + at * LIST,
                                        (size_t)one.counts[at] * sizeof *one.slots);
                }
                choice_free(&alone);
            }
            choice_free(&one), choice_free(&two);
        }
    }
    free(s.q), free(s.weights);
}

static double rotated(const double *in, const float *cos_sin, int i)
{
    if (i >= 2 * HALF) return in[i];
    const double c = cos_sin[i % HALF], n = cos_sin[HALF + i % HALF];
    return i < HALF ? in[i] * c - in[i + HALF] * n : in[i] * c + in[i - HALF] * n;
}

static void test_stores(void **state)
{
    fixture *f = *state;
    enum { TOKENS = 7 };
    static const int32_t slots[TOKENS] = {5, 90, 3, 77, 8, 41, 0};
    float *q = uniform(&f->rng, TOKENS * HEADS * DIM), *k = uniform(&f->rng, TOKENS * DIM);
    float *weight = uniform(&f->rng, DIM), *bias = uniform(&f->rng, DIM);
    float *angles = uniform(&f->rng, TOKENS * 2 * HALF);
    for (int level = 0; level <= msgl__cpu_level_detect(); level++) {
        float queries[TOKENS * HEADS * DIM], pool[128 * DIM] = {0};
        memcpy(queries, q, sizeof queries);
        msgl_kernels kernels;
        msgl_exec x = {.pool = f->two};
        msgl__kernels_init_cpu(&kernels, (msgl_cpu_level)level);
        const msgl_index_store_call c = {.tokens = TOKENS,
                                         .heads = HEADS,
                                         .dim = DIM,
                                         .half = HALF,
                                         .q = queries,
                                         .ld_q = HEADS * DIM,
                                         .k = k,
                                         .ld_k = DIM,
                                         .k_weight = weight,
                                         .k_bias = bias,
                                         .eps = MSGL_INDEX_EPS,
                                         .cos_sin = angles,
                                         .dtype = MSGL_F32,
                                         .pool = pool,
                                         .slots = slots};
        kernels.index.store(&x, &c);
        for (int t = 0; t < TOKENS; t++) {
            double normed[DIM], mean = 0, squares = 0, head[DIM];
            const float *cos_sin = angles + t * 2 * HALF;
            for (int i = 0; i < DIM; i++) mean += (double)k[t * DIM + i] / DIM;
            for (int i = 0; i < DIM; i++) squares += pow((double)k[t * DIM + i] - mean, 2) / DIM;
            for (int i = 0; i < DIM; i++) {
                normed[i] = ((double)k[t * DIM + i] - mean) / sqrt(squares + 1e-6) * weight[i];
                normed[i] += bias[i];
            }
            for (int i = 0; i < DIM; i++) {
                const double stored = pool[slots[t] * DIM + i];
                assert_true(fabs(stored - rotated(normed, cos_sin, i)) < 1e-5);
            }
            for (int h = 0; h < HEADS; h++) {
                const size_t at = (size_t)(t * HEADS + h) * DIM;
                for (int i = 0; i < DIM; i++) head[i] = q[at + (size_t)i];
                for (int i = 0; i < DIM; i++) {
                    const double is = queries[at + (size_t)i];
                    assert_true(fabs(is - rotated(head, cos_sin, i)) < 1e-5);
                }
            }
        }
    }
    free(q), free(k), free(weight), free(bias), free(angles);
}

// Without a bias keys have an RMS norm, and queries one of their own.
static void test_stores_normed(void **state)
{
    fixture *f = *state;
    enum { TOKENS = 3 };
    static const int32_t slots[TOKENS] = {9, 2, 30};
    float *qk = uniform(&f->rng, TOKENS * (HEADS + 1) * DIM), *weight = uniform(&f->rng, 2 * DIM);
    float *angles = uniform(&f->rng, TOKENS * 2 * HALF);
    const size_t ld = (HEADS + 1) * DIM;
    for (int level = 0; level <= msgl__cpu_level_detect(); level++) {
        float rows[TOKENS * (HEADS + 1) * DIM], pool[64 * DIM] = {0};
        memcpy(rows, qk, sizeof rows);
        msgl_kernels kernels;
        msgl_exec x = {.pool = f->two};
        msgl__kernels_init_cpu(&kernels, (msgl_cpu_level)level);
        const msgl_index_store_call c = {.tokens = TOKENS,
                                         .heads = HEADS,
                                         .dim = DIM,
                                         .half = HALF,
                                         .q = rows,
                                         .ld_q = ld,
                                         .k = rows + HEADS * DIM,
                                         .ld_k = ld,
                                         .k_weight = weight,
                                         .q_weight = weight + DIM,
                                         .eps = 1e-6f,
                                         .cos_sin = angles,
                                         .dtype = MSGL_F32,
                                         .pool = pool,
                                         .slots = slots};
        kernels.index.store(&x, &c);
        for (int t = 0; t < TOKENS; t++) {
            for (int h = 0; h <= HEADS; h++) {
                const float *in = qk + (size_t)t * ld + h * DIM;
                const float *is =
                    h < HEADS ? rows + (size_t)t * ld + h * DIM : pool + slots[t] * DIM;
                const float *w = h < HEADS ? weight + DIM : weight;
                double squares = 0, normed[DIM];
                for (int i = 0; i < DIM; i++) squares += (double)in[i] * in[i] / DIM;
                for (int i = 0; i < DIM; i++) normed[i] = in[i] / sqrt(squares + 1e-6) * w[i];
                for (int i = 0; i < DIM; i++) {
                    const double want = rotated(normed, angles + t * 2 * HALF, i);
                    assert_true(fabs((double)is[i] - want) < 1e-5);
                }
            }
        }
    }
    free(qk), free(weight), free(angles);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_chooses, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cuts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_half, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ties, setup, teardown),
        cmocka_unit_test_setup_teardown(test_blocks, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stores, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stores_normed, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
