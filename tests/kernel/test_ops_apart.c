// SPDX-License-Identifier: Apache-2.0
//
// K and V of different dimensions, norms of V, and gates that lie elsewhere than what they gate, at
// every level that the machine has.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "ops_fixture.h"

// V of other dimensions than K, normed on its way to the pool; and queries alone, which leave the
// pools and what stands behind them as they are.
static void test_rope_apart(void **state)
{
    struct fixture *f = *state;
    enum { TOKENS = 5, Q = 4, KV = 2, DIM = 24, V = 40, HALF = 4, LD = Q * DIM + KV * (DIM + V) };
    static float in[TOKENS * LD], got[TOKENS * LD], table[TOKENS * 2 * HALF];
    static float k_pool[TOKENS * KV * DIM], v_pool[TOKENS * KV * V];
    static float whole[TOKENS * LD], first[TOKENS * KV * V];
    float qw[DIM], kw[DIM], vw[V];
    const int32_t slots[TOKENS] = {3, 0, 4, 1, 2};
    fill(f, in, MSGL_COUNT(in), 2);
    fill(f, table, MSGL_COUNT(table), 1);
    fill(f, qw, DIM, 1);
    fill(f, kw, DIM, 1);
    fill(f, vw, V, 1);
    FOR_LEVELS(f, k)
    {
        msgl_rope_call call = {.qkv = got,
                               .ld = LD,
                               .tokens = TOKENS,
                               .num_q_heads = Q,
                               .num_kv_heads = KV,
                               .head_dim = DIM,
                               .v_dim = V,
                               .q_weight = qw,
                               .k_weight = kw,
                               .v_weight = vw,
                               .eps = 1e-5f,
                               .cos_sin = table,
                               .half = HALF,
                               .kv_dtype = MSGL_F32,
                               .k_pool = k_pool,
                               .v_pool = v_pool,
                               .slots = slots};
        memcpy(got, in, sizeof in);
        k->rope.qk_norm_rope_store(&f->exec, &call);
        for (int t = 0; t < TOKENS; t++) {
            const float *key = got + t * LD + Q * DIM;
            assert_memory_equal(k_pool + slots[t] * KV * DIM, key, KV * DIM * sizeof *key);
            for (int h = 0; h < KV; h++) {
                const float *v = in + t * LD + Q * DIM + KV * DIM + h * V;
                const float *stored = v_pool + (slots[t] * KV + h) * V;
                double squares = 0;
                for (int i = 0; i < V; i++) squares += (double)v[i] * (double)v[i];
                for (int i = 0; i < V; i++) {
                    const double want = (double)v[i] / sqrt(squares / V + 1e-5) * (double)vw[i];
                    assert_true(fabs((double)stored[i] - want) <= 1e-6 * fabs(want) + 1e-12);
                }
            }
        }
        if (k == f->kernels) memcpy(first, v_pool, sizeof first);
        assert_memory_equal(v_pool, first, sizeof first);
        memcpy(whole, got, sizeof whole);
        memcpy(got, in, sizeof in);
        memset(k_pool, 0xff, sizeof k_pool);
        memset(v_pool, 0xff, sizeof v_pool);
        call.num_kv_heads = 0;
        k->rope.qk_norm_rope_store(&f->exec, &call);
        for (int t = 0; t < TOKENS; t++) {
            const size_t row = (size_t)t * LD, rest = row + Q * DIM;
            assert_memory_equal(got + row, whole + row, Q * DIM * sizeof *got);
            assert_memory_equal(got + rest, in + rest, (LD - Q * DIM) * sizeof *got);
        }
        for (size_t i = 0; i < MSGL_COUNT(k_pool); i++) assert_true(isnan(k_pool[i]));
        for (size_t i = 0; i < MSGL_COUNT(v_pool); i++) assert_true(isnan(v_pool[i]));
    }
}

// As gate, which has both beside each other.
static void test_gate_by(void **state)
{
    struct fixture *f = *state;
    enum { ROWS = 9, DIM = 45, LD = 3 * DIM };
    static float by[ROWS * LD], p[ROWS * DIM + 1], both[ROWS * 2 * DIM], want[ROWS * DIM];
    fill(f, by, MSGL_COUNT(by), 3);
    fill(f, both, MSGL_COUNT(both), 5);
    for (int r = 0; r < ROWS; r++) {
        memcpy(both + r * 2 * DIM + DIM, by + r * LD + DIM, DIM * sizeof *by);
    }
    FOR_LEVELS(f, k)
    {
        for (int a = MSGL_SILU; a <= MSGL_GELU_TANH; a++) {
            for (int r = 0; r < ROWS; r++) {
                memcpy(p + r * DIM, both + r * 2 * DIM, DIM * sizeof *p);
            }
            p[ROWS * DIM] = 7;
            k->act.gate_by(&f->exec, (msgl_activation)a, by + DIM, LD, p, ROWS, DIM);
            k->act.gate(&f->exec, (msgl_activation)a, both, want, ROWS, DIM);
            assert_memory_equal(p, want, sizeof want);
            assert_true(p[ROWS * DIM] == 7);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rope_apart),
        cmocka_unit_test(test_gate_by),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
