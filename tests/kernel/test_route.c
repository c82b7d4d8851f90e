// SPDX-License-Identifier: Apache-2.0
//
// The choice of experts: every kind of router against f64, and those of DeepSeek V2 and V3 and of
// GLM against what transformers' modules choose (tests/vectors/routing).
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "core/attributes.h"
#include "kernel/kernel.h"
#include "kernel/route_oracle.h"
#include "utils/random.h"

enum { ROWS = 9, EXPERTS = 256, TOP_K = 8, SCRATCH = 1 << 16 };

typedef struct fixture {
    msgl_kernels k;
    msgl_arena scratch;
    msgl_exec x;
    uint64_t rng;
    int unclear; // rows that rounding could decide
    float logits[ROWS * EXPERTS], correction[EXPERTS], weights[ROWS * TOP_K];
    int32_t ids[ROWS * TOP_K];
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    msgl__kernels_init_cpu(&f->k, MSGL_CPU_REF);
    msgl__arena_init(&f->scratch, msgl__pages_alloc(SCRATCH), SCRATCH);
    f->x = (msgl_exec){.act = MSGL_F32, .scratch = &f->scratch};
    f->rng = 5;
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    msgl__pages_free(f->scratch.base, SCRATCH);
    free(f);
    return 0;
}

static float random_value(fixture *f, float scale)
{
    return (2 * msgl__random_unit(&f->rng) - 1) * scale;
}

// ties: every second group is the one before it again, every second expert too; the first row has
// nothing but equal logits.
static void fill(fixture *f, int experts, int groups, bool ties)
{
    const int size = groups > 1 ? experts / groups : experts;
    for (int e = 0; e < experts; e++) {
        const int from = e / size % 2 != 0 ? e - size : e % size % 2 != 0 ? e - 1 : e;
        f->correction[e] = ties && from < e ? f->correction[from] : random_value(f, 0.5f);
        for (int r = 0; r < ROWS; r++) {
            float *l = f->logits + r * experts;
            l[e] = ties && from < e ? l[from] : ties && r == 0 ? 1 : random_value(f, 3);
        }
    }
}

static void compare(fixture *f, const msgl_router *how, int experts)
{
    f->x.status = 0;
    f->k.moe.route(&f->x, how, f->logits, ROWS, experts, f->ids, f->weights);
    assert_int_equal(f->x.status, 0);
    assert_int_equal(f->scratch.used, 0);
    for (int r = 0; r < ROWS; r++) {
        int32_t ids[TOP_K];
        double weights[TOP_K];
        const float *l = f->logits + r * experts;
        if (!route_oracle(how, how->correction, l, experts, ids, weights)) {
            f->unclear++;
            continue;
        }
        for (int c = 0; c < how->top_k; c++) {
            assert_int_equal(f->ids[r * how->top_k + c], ids[c]);
            const double got = (double)f->weights[r * how->top_k + c];
            assert_true(fabs(got - weights[c]) <= 2e-6 * weights[c]);
        }
    }
}

static void test_formula(void **state)
{
    fixture *f = *state;
    static const struct {
        int experts, num_groups, top_groups, top_k;
    } shapes[] = {{1, 0, 0, 1},  {8, 0, 0, 8},   {64, 1, 1, 6},   {12, 4, 2, 4},
                  {9, 3, 1, 2},  {64, 32, 5, 8}, {160, 8, 3, 6},  {256, 8, 4, 8},
                  {40, 4, 4, 8}, {34, 2, 1, 7},  {200, 20, 7, 8}, {66, 22, 3, 8}};
    for (size_t s = 0; s < MSGL_COUNT(shapes); s++) {
        for (int bits = 0; bits < 32; bits++) {
            const bool ties = (bits & 1) != 0;
            const msgl_router how = {.top_k = shapes[s].top_k,
                                     .scoring =
                                         (bits & 2) != 0 ? MSGL_SCORE_SIGMOID : MSGL_SCORE_SOFTMAX,
                                     .norm_topk = (bits & 4) != 0,
                                     .scale = (bits & 4) != 0 ? 2.5f : 1,
                                     .correction = (bits & 8) != 0 ? f->correction : NULL,
                                     .num_groups = shapes[s].num_groups,
                                     .top_groups = shapes[s].top_groups,
                                     .group_pairs = (bits & 16) != 0};
            fill(f, shapes[s].experts, shapes[s].num_groups, ties);
            compare(f, &how, shapes[s].experts);
        }
    }
    assert_in_range(f->unclear, 0, 12 * 32 * ROWS / 100);
}

// Several experts near the best one, none but it, and rows of equal and of negative logits.
static void test_sparsemixer(void **state)
{
    fixture *f = *state;
    const int before = f->unclear;
    for (int experts = 2; experts <= 200; experts += 33) {
        for (int ties = 0; ties < 2; ties++) {
            const msgl_router how = {.top_k = 2,
                                     .scoring = MSGL_SCORE_SPARSEMIXER,
                                     .scale = 1,
                                     .spread = ties != 0 ? 0.02f : 0.6f};
            fill(f, experts, 0, ties != 0);
            for (int e = 0; e < experts; e++) f->logits[experts + e] = -3 - 0.01f * (float)e;
            compare(f, &how, experts);
        }
    }
    assert_in_range(f->unclear - before, 0, 3);
}

// Scores that are all 0 in f32 have weights all the same, and none is NaN.
static void test_no_score(void **state)
{
    fixture *f = *state;
    const msgl_router how = {
        .top_k = 2, .scoring = MSGL_SCORE_SIGMOID, .norm_topk = true, .scale = 2.5f};
    for (int i = 0; i < ROWS * 4; i++) f->logits[i] = -200;
    f->k.moe.route(&f->x, &how, f->logits, ROWS, 4, f->ids, f->weights);
    for (int i = 0; i < ROWS * 2; i++) assert_true(f->weights[i] == 0 && f->ids[i] == i % 2);
}

static void test_memory(void **state)
{
    fixture *f = *state;
    const msgl_router how = {.top_k = 2, .scale = 1, .correction = f->correction};
    f->scratch.size = 64;
    f->k.moe.route(&f->x, &how, f->logits, ROWS, EXPERTS, f->ids, f->weights);
    f->scratch.size = SCRATCH;
    assert_int_equal(f->x.status, MSGL_EINTERNAL);
}

static void read_floats(const json_t *list, float *out, size_t n)
{
    assert_int_equal(json_array_size(list), n);
    for (size_t i = 0; i < n; i++) out[i] = (float)json_number_value(json_array_get(list, i));
}

static int integer(const json_t *o, const char *key)
{
    return (int)json_integer_value(json_object_get(o, key));
}

static void check_row(fixture *f, const msgl_router *how, int experts, const json_t *row)
{
    const json_t *ids = json_object_get(row, "ids"), *weights = json_object_get(row, "weights");
    const json_t *logits = json_object_get(row, "logits");
    read_floats(logits, f->logits, (size_t)experts);
    f->k.moe.route(&f->x, how, f->logits, 1, experts, f->ids, f->weights);
    assert_int_equal(json_array_size(ids), how->top_k);
    for (int i = 0; i < how->top_k; i++) { // its order is no promise
        const int id = (int)json_integer_value(json_array_get(ids, (size_t)i));
        const double want = json_number_value(json_array_get(weights, (size_t)i));
        int c = 0;
        while (c < how->top_k && f->ids[c] != id) c++;
        assert_in_range(c, 0, how->top_k - 1);
        assert_true(fabs((double)f->weights[c] - want) <= 1e-6 * want);
    }
}

static void test_transformers(void **state)
{
    fixture *f = *state;
    json_t *all = json_load_file(MSGL_SOURCE_DIR "/tests/vectors/routing/routers.json", 0, NULL);
    assert_int_equal(json_array_size(all), 4);
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *one = json_array_get(all, i), *rows = json_object_get(one, "rows");
        const json_t *correction = json_object_get(one, "correction");
        const int experts = integer(one, "experts");
        const bool sigmoid = json_is_true(json_object_get(one, "sigmoid"));
        if (sigmoid) read_floats(correction, f->correction, (size_t)experts);
        const msgl_router how = {.top_k = integer(one, "top_k"),
                                 .scoring = sigmoid ? MSGL_SCORE_SIGMOID : MSGL_SCORE_SOFTMAX,
                                 .norm_topk = json_is_true(json_object_get(one, "norm_topk")),
                                 .scale = (float)json_number_value(json_object_get(one, "scale")),
                                 .correction = sigmoid ? f->correction : NULL,
                                 .num_groups = integer(one, "num_groups"),
                                 .top_groups = integer(one, "top_groups"),
                                 .group_pairs = json_is_true(json_object_get(one, "group_pairs"))};
        assert_int_equal(json_array_size(rows), 3);
        for (size_t r = 0; r < 3; r++) check_row(f, &how, experts, json_array_get(rows, r));
    }
    json_decref(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formula),      cmocka_unit_test(test_sparsemixer),
        cmocka_unit_test(test_no_score),     cmocka_unit_test(test_memory),
        cmocka_unit_test(test_transformers),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
