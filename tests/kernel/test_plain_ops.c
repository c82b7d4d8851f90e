// SPDX-License-Identifier: Apache-2.0
//
// LayerNorm and the activations without a gate against formulas in f64, at every level that the
// machine has; all levels must agree to the bit (vec.h promises it).
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ops_fixture.h"

// Values around `offset`: where it is large next to their spread, sums of squares would cancel.
static void check_layer_norm(struct fixture *f, int dim, float offset, bool biased)
{
    enum { ROWS = 21, MAX = 3000, PAD = 3 };
    static float in[ROWS * (MAX + PAD)], out[ROWS * (MAX + PAD)], first[ROWS * (MAX + PAD)];
    static float weight[MAX], bias[MAX];
    const size_t ld = (size_t)dim + PAD, n = ROWS * ld;
    fill(f, in, n, 3);
    for (size_t i = 0; i < n; i++) in[i] += offset;
    fill(f, weight, (size_t)dim, 2);
    fill(f, bias, (size_t)dim, 2);
    FOR_LEVELS(f, k)
    {
        for (size_t i = 0; i < n; i++) out[i] = 77;
        k->norm.layer_norm(&f->exec, in, ld, weight, biased ? bias : NULL, 1e-5f, out, ld, ROWS,
                           dim);
        for (size_t r = 0; r < ROWS; r++) {
            const float *row = in + r * ld;
            double mean = 0, squares = 0;
            for (int i = 0; i < dim; i++) mean += (double)row[i] / dim;
            for (int i = 0; i < dim; i++) squares += ((double)row[i] - mean) * (row[i] - mean);
            const double inv = 1 / sqrt(squares / dim + 1e-5);
            // The mean is rounded to f32 and comes from a sum of dim values.
            const double of_mean = 3e-7 * fabs((double)offset) * inv;
            for (int i = 0; i < dim; i++) {
                const double w = (double)weight[i], added = biased ? (double)bias[i] : 0;
                const double want = ((double)row[i] - mean) * inv * w + added;
                const double tolerance = 2e-6 * (fabs(want) + fabs(added) + 1) + of_mean * fabs(w);
                assert_true(fabs((double)out[r * ld + (size_t)i] - want) <= tolerance);
            }
            for (size_t i = (size_t)dim; i < ld; i++) assert_true(out[r * ld + i] == 77);
        }
        if (k == f->kernels) memcpy(first, out, n * sizeof *out);
        assert_memory_equal(first, out, n * sizeof *out);
        memcpy(out, in, n * sizeof *out); // in place, and a row alone
        k->norm.layer_norm(&f->exec, out + ld, ld, weight, biased ? bias : NULL, 1e-5f, out + ld,
                           ld, 1, dim);
        assert_memory_equal(first + ld, out + ld, (size_t)dim * sizeof *out);
    }
}

static void test_layer_norm(void **state)
{
    const int dims[] = {1, 5, 16, 47, 64, 1024, 3000};
    for (size_t d = 0; d < MSGL_COUNT(dims); d++) {
        check_layer_norm(*state, dims[d], 0, true);
        check_layer_norm(*state, dims[d], 0, false);
        check_layer_norm(*state, dims[d], 1000, true);
    }
}

// Each head with weights of its own, whatever stands behind the heads of a row.
static void test_layer_norm_heads(void **state)
{
    struct fixture *f = *state;
    enum { ROWS = 70, HEADS = 5, DIM = 47, LD = HEADS * DIM + 9 };
    static float in[ROWS * LD], out[ROWS * LD], first[ROWS * LD], weight[HEADS * DIM];
    fill(f, in, MSGL_COUNT(in), 3);
    fill(f, weight, MSGL_COUNT(weight), 2);
    FOR_LEVELS(f, k)
    {
        memcpy(out, in, sizeof out);
        k->norm.layer_norm_heads(&f->exec, out, LD, weight, 1e-5f, ROWS, HEADS, DIM);
        for (int r = 0; r < ROWS; r++) {
            for (int h = 0; h < HEADS; h++) {
                const float *row = in + r * LD + h * DIM;
                float want[DIM];
                k->norm.layer_norm(&f->exec, row, DIM, weight + h * DIM, NULL, 1e-5f, want, DIM, 1,
                                   DIM);
                assert_memory_equal(want, out + r * LD + h * DIM, sizeof want);
            }
            const size_t behind = (size_t)r * LD + HEADS * DIM;
            assert_memory_equal(in + behind, out + behind, 9 * sizeof *out);
        }
        if (k == f->kernels) memcpy(first, out, sizeof out);
        assert_memory_equal(first, out, sizeof out);
    }
}

// In f64; alpha_p, alpha_n, beta, eps.
static double pointwise(msgl_pointwise f, const float *params, double x)
{
    const double root = sqrt(2 / 3.14159265358979323846);
    switch (f) {
    case MSGL_POINTWISE_SILU: return x / (1 + exp(-x));
    case MSGL_POINTWISE_GELU: return x / 2 * erfc(-x / sqrt(2));
    case MSGL_POINTWISE_GELU_TANH: return x / (1 + exp(-2 * root * (x + 0.044715 * x * x * x)));
    case MSGL_POINTWISE_RELU2: return x > 0 ? x * x : 0;
    case MSGL_POINTWISE_TANH: return tanh(x);
    case MSGL_POINTWISE_XIELU: break;
    }
    const double beta = (double)params[2], eps = (double)params[3];
    if (x > 0) return log1p(exp((double)params[0])) * x * x + beta * x;
    return (beta + log1p(exp((double)params[1]))) * (expm1(x < eps ? x : eps) - x) + beta * x;
}

static void check_apply(struct fixture *f, msgl_pointwise fn, const float *params)
{
    enum { N = 40000 + 7 }; // enough for several tasks, and a partial vector
    static float in[N], out[N], first[N];
    fill(f, in, N, 8);
    for (int i = 0; i < N / 2; i++) in[i] /= 50; // near 0, where differences cancel
    in[0] = 0;
    in[1] = -5e-7f; // above xIELU's eps
    in[2] = -60;
    in[3] = 60;
    in[N - 1] = NAN;
    FOR_LEVELS(f, k)
    {
        memcpy(out, in, sizeof out);
        k->act.apply(&f->exec, fn, params, out, N);
        for (int i = 0; i < N - 1; i++) {
            const double x = (double)in[i], want = pointwise(fn, params, x);
            // A sigmoid's exponent is rounded relative to itself; Phi has 1.5e-7 (vec.h), and
            // xIELU's two parts cancel below 0. A tanh is a difference from 1.
            const double relative = 1e-6 + 1e-6 * fabs(x);
            const double absolute = fn == MSGL_POINTWISE_TANH ? 2e-7 : 1.6e-7 * fabs(x) + 1e-20;
            assert_true(fabs((double)out[i] - want) <= relative * fabs(want) + absolute);
        }
        assert_true(isnan(out[N - 1]));
        if (k == f->kernels) memcpy(first, out, sizeof out);
        assert_memory_equal(first, out, sizeof out);
        float one = in[9];
        k->act.apply(&f->exec, fn, params, &one, 1);
        assert_true(one == first[9]);
    }
}

static void test_apply(void **state)
{
    const float params[] = {0.3f, -0.2f, 0.5f, -1e-6f}, large[] = {25, 30, 0.25f, -1e-3f};
    check_apply(*state, MSGL_POINTWISE_SILU, NULL);
    check_apply(*state, MSGL_POINTWISE_GELU, NULL);
    check_apply(*state, MSGL_POINTWISE_GELU_TANH, NULL);
    check_apply(*state, MSGL_POINTWISE_RELU2, NULL);
    check_apply(*state, MSGL_POINTWISE_TANH, NULL);
    check_apply(*state, MSGL_POINTWISE_XIELU, params);
    check_apply(*state, MSGL_POINTWISE_XIELU, large);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layer_norm),
        cmocka_unit_test(test_layer_norm_heads),
        cmocka_unit_test(test_apply),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
