// SPDX-License-Identifier: Apache-2.0
//
// Norm, rotation and store of q, K and V against formulas in f64: norms before and behind the
// rotation, and values that are cut. All levels agree to the bit.
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

// What a head's norm and rotation are of, beside its elements.
typedef struct head_rope {
    const float *weight, *inv_freq;
    int dim, half, position;
    bool behind; // the norm is
    double clip;
} head_rope;

static void norm_head(const head_rope *r, double *v)
{
    double squares = 0;
    for (int i = 0; i < r->dim; i++) squares += v[i] * v[i];
    for (int i = 0; i < r->dim; i++) v[i] *= (double)r->weight[i] / sqrt(squares / r->dim + 1e-5);
}

// By angles whose cosines and sines are times 1.5.
static void expected_head(const head_rope *r, const float *x, double *v)
{
    for (int i = 0; i < r->dim; i++) v[i] = fmin(fmax((double)x[i], -r->clip), r->clip);
    if (!r->behind) norm_head(r, v);
    for (int i = 0; i < r->half; i++) {
        const double angle = (double)((float)r->position * r->inv_freq[i]);
        const double a = v[i], b = v[i + r->half];
        v[i] = 1.5 * (a * cos(angle) - b * sin(angle));
        v[i + r->half] = 1.5 * (b * cos(angle) + a * sin(angle));
    }
    if (r->behind) norm_head(r, v);
}

static void test_rope(void **state)
{
    struct fixture *f = *state;
    enum { TOKENS = 9, Q = 3, KV = 2, MAXD = 128, LD = (Q + 2 * KV) * MAXD };
    // The last two with the norm behind the rotation, the last one clipped too.
    const int dims[] = {64, 80, 128, 80, 128}, halves[] = {32, 40, 32, 40, 32};
    const float clips[] = {0, 0, 0, 0, 0.75f};
    static float in[TOKENS * LD], got[TOKENS * LD], first[TOKENS * LD], table[TOKENS * MAXD];
    float inv_freq[MAXD], qw[MAXD], kw[MAXD];
    static float k_pool[TOKENS * KV * MAXD], v_pool[TOKENS * KV * MAXD];
    int32_t positions[TOKENS], slots[TOKENS];
    for (int t = 0; t < TOKENS; t++) slots[t] = (t * 4 + 1) % TOKENS;
    for (size_t c = 0; c < MSGL_COUNT(dims); c++) {
        const int dim = dims[c], half = halves[c];
        for (int i = 0; i < half; i++) inv_freq[i] = powf(10000.0f, -(float)i / (float)half);
        for (int t = 0; t < TOKENS; t++) positions[t] = t * 411;
        fill(f, in, MSGL_COUNT(in), 2);
        fill(f, qw, MAXD, 1);
        fill(f, kw, MAXD, 1);
        FOR_LEVELS(f, k)
        {
            memcpy(got, in, sizeof in);
            k->rope.table(&f->exec, positions, TOKENS, inv_freq, half, 1.5f, table);
            const msgl_rope_call call = {.qkv = got,
                                         .ld = LD,
                                         .tokens = TOKENS,
                                         .num_q_heads = Q,
                                         .num_kv_heads = KV,
                                         .head_dim = dim,
                                         .q_weight = qw,
                                         .k_weight = kw,
                                         .eps = 1e-5f,
                                         .norm_behind = c > 2,
                                         .clip = clips[c],
                                         .cos_sin = table,
                                         .half = half,
                                         .kv_dtype = MSGL_F32,
                                         .k_pool = k_pool,
                                         .v_pool = v_pool,
                                         .slots = slots};
            const double clip = clips[c] > 0 ? (double)clips[c] : INFINITY;
            k->rope.qk_norm_rope_store(&f->exec, &call);
            for (int t = 0; t < TOKENS; t++) { // rotated keys, and values as they are behind
                const size_t row = (size_t)(KV * dim);
                const float *keys = got + t * LD + Q * dim;
                assert_memory_equal(k_pool + (size_t)slots[t] * row, keys, row * sizeof *keys);
                assert_memory_equal(v_pool + (size_t)slots[t] * row, keys + row,
                                    row * sizeof *keys);
            }
            for (int t = 0; t < TOKENS; t++) {
                for (int h = 0; h < Q + 2 * KV; h++) {
                    const float *x = in + t * LD + h * dim, *y = got + t * LD + h * dim;
                    for (int i = 0; i < dim && h >= Q + KV; i++) {
                        assert_true((double)y[i] == fmin(fmax((double)x[i], -clip), clip));
                    }
                    if (h >= Q + KV) continue;
                    const head_rope how = {h < Q ? qw : kw, inv_freq, dim, half,
                                           positions[t],    c > 2,    clip};
                    double want[MAXD];
                    expected_head(&how, x, want);
                    // terms up to 1.5 * |normed| <= 20, f32 cos and sin: 20 * 2^-22
                    for (int i = 0; i < dim; i++) assert_true(fabs((double)y[i] - want[i]) < 5e-6);
                }
            }
            if (k == f->kernels) memcpy(first, got, sizeof got);
            assert_memory_equal(first, got, sizeof got);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rope)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
