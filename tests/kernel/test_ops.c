// SPDX-License-Identifier: Apache-2.0
//
// norm, act, moe and latent rope against formulas in f64; sample and logprobs against the exact
// softmax (chi-square over many draws, exact survivors of top-k, top-p and min-p). Every level that
// the machine has is tested, and all levels of the first four must agree to the bit (vec.h promises
// it).
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

// dst += scale * norm(src), in the order of additions and within rounding of f64.
static void check_add_norm(struct fixture *f, const msgl_kernels *k, const float *before,
                           const float *src, const float *weight, int rows, int dim)
{
    static float out[37 * 3000];
    memcpy(out, before, (size_t)rows * (size_t)dim * sizeof *out);
    k->norm.add(&f->exec, out, src, weight, 1e-6f, 0.5f, rows, dim);
    for (int r = 0; r < rows; r++) {
        double squares = 0;
        for (int i = 0; i < dim; i++)
            squares += (double)src[r * dim + i] * (double)src[r * dim + i];
        const double inv = 0.5 / sqrt(squares / dim + 1e-6);
        for (int i = 0; i < dim; i++) {
            const double norm = (double)src[r * dim + i] * inv * (double)weight[i];
            const double want = (double)before[r * dim + i] + norm;
            assert_true(fabs((double)out[r * dim + i] - want) <=
                        1e-6 * (fabs(norm) + fabs((double)before[r * dim + i])) + 1e-30);
        }
    }
}

static void test_rms_norm(void **state)
{
    struct fixture *f = *state;
    const int dims[] = {1, 5, 16, 64, 100, 1024, 3000};
    enum { ROWS = 37, MAX = 3000 };
    static float in[ROWS * MAX], delta[ROWS * MAX], weight[MAX], out[ROWS * MAX], first[ROWS * MAX],
        sum[ROWS * MAX];
    for (size_t d = 0; d < MSGL_COUNT(dims); d++) {
        const int dim = dims[d];
        const size_t n = (size_t)ROWS * (size_t)dim;
        fill(f, in, n, 3);
        fill(f, delta, n, 3);
        fill(f, weight, (size_t)dim, 2);
        FOR_LEVELS(f, k)
        {
            memcpy(sum, in, n * sizeof *in);
            k->norm.add(&f->exec, sum, delta, NULL, 0, 1, ROWS, dim);
            for (size_t i = 0; i < n; i++) assert_true(sum[i] == in[i] + delta[i]);
            k->norm.scale(&f->exec, sum, 0.25f, n);
            for (size_t i = 0; i < n; i++) assert_true(sum[i] == 0.25f * (in[i] + delta[i]));
            check_add_norm(f, k, in, delta, weight, ROWS, dim);
            k->norm.rms_norm(&f->exec, in, (size_t)dim, weight, 1e-6f, out, (size_t)dim, ROWS, dim);
            for (int r = 0; r < ROWS; r++) {
                const float *row = in + r * dim;
                double squares = 0;
                for (int i = 0; i < dim; i++) squares += (double)row[i] * (double)row[i];
                for (int i = 0; i < dim; i++) {
                    const double want =
                        (double)row[i] / sqrt(squares / dim + 1e-6) * (double)weight[i];
                    // f32 sum of squares, one division, two products: a few ulp
                    assert_true(fabs((double)out[r * dim + i] - want) <= 1e-6 * fabs(want) + 1e-12);
                }
            }
            if (k == f->kernels) memcpy(first, out, n * sizeof *out);
            assert_memory_equal(first, out, n * sizeof *out);
        }
    }
}

// A row that two ranks share, cut anywhere: each rank's sum of squares, and its part normed by
// both.
static void test_shared_norm(void **state)
{
    struct fixture *f = *state;
    enum { ROWS = 9, MAX = 1100, LD = MAX + 3 };
    static const int dims[] = {2, 17, 64, 300, MAX};
    static float in[ROWS * LD], out[ROWS * LD], weight[MAX], first[ROWS * LD];
    for (size_t d = 0; d < MSGL_COUNT(dims); d++) {
        const int dim = dims[d], cut = dim / 3 + 1, parts[2] = {cut, dim - cut};
        fill(f, in, MSGL_COUNT(in), 3);
        fill(f, weight, (size_t)dim, 2);
        FOR_LEVELS(f, k)
        {
            float sums[ROWS * 3], both[ROWS * 2];
            for (int i = 0; i < ROWS * 3; i++) sums[i] = -1;
            memcpy(out, in, sizeof in);
            for (int p = 0; p < 2; p++) {
                k->norm.sum_squares(&f->exec, in + p * cut, LD, ROWS, parts[p], sums + p, 3);
            }
            for (int r = 0; r < ROWS; r++) {
                double exact[2] = {0, 0};
                for (int i = 0; i < dim; i++) {
                    exact[i >= cut] += (double)in[r * LD + i] * (double)in[r * LD + i];
                }
                for (int p = 0; p < 2; p++) {
                    assert_true(fabs((double)sums[r * 3 + p] - exact[p]) <= 1e-6 * exact[p]);
                }
                assert_true(sums[r * 3 + 2] == -1); // nobody's
                both[r * 2] = both[r * 2 + 1] = (float)(exact[0] + exact[1]);
            }
            for (int p = 0; p < 2; p++) {
                k->norm.norm_by_sums(&f->exec, out + p * cut, LD, weight + p * cut, 1e-6f, both + p,
                                     2, dim, ROWS, parts[p]);
            }
            for (int r = 0; r < ROWS; r++) {
                const float *row = in + r * LD;
                double squares = 0;
                for (int i = 0; i < dim; i++) squares += (double)row[i] * (double)row[i];
                for (int i = 0; i < dim; i++) {
                    const double want =
                        (double)row[i] / sqrt(squares / dim + 1e-6) * (double)weight[i];
                    assert_true(fabs((double)out[r * LD + i] - want) <= 1e-6 * fabs(want) + 1e-12);
                }
                // Beside the row nothing is written.
                assert_memory_equal(out + r * LD + dim, row + dim, sizeof *in * (size_t)(LD - dim));
            }
            if (k == f->kernels) memcpy(first, out, sizeof out);
            assert_memory_equal(first, out, sizeof out);
        }
    }
}

// v rotated by the pair's angle, whose cosines and sines are in cos_sin [2 half].
static double rotated(const float *v, const float *cos_sin, int half, int i)
{
    const int pair = i % half;
    const double other = i < half ? -(double)v[i + half] : (double)v[i - half];
    return (double)v[i] * (double)cos_sin[pair] + other * (double)cos_sin[half + pair];
}

static void test_latent_rope(void **state)
{
    struct fixture *f = *state;
    enum { TOKENS = 9, HEADS = 3, RANK = 48, HALF = 20, ROW = RANK + 2 * HALF };
    enum { Q = 16 + 2 * HALF, OUT = 32 + 2 * HALF, LD = ROW + 5 };
    static float latent[TOKENS * LD], q[TOKENS * HEADS * Q], table[TOKENS * 2 * HALF];
    static float weight[RANK], normed[TOKENS * RANK], pool[TOKENS * ROW], first[TOKENS * ROW];
    static float out[TOKENS * HEADS * OUT];
    int32_t slots[TOKENS];
    for (int t = 0; t < TOKENS; t++) slots[t] = (t * 4 + 1) % TOKENS;
    fill(f, latent, MSGL_COUNT(latent), 2);
    fill(f, q, MSGL_COUNT(q), 2);
    fill(f, table, MSGL_COUNT(table), 1);
    fill(f, weight, RANK, 1);
    FOR_LEVELS(f, k)
    {
        fill(f, out, MSGL_COUNT(out), 1);
        const float untouched = out[OUT];
        const msgl_latent_rope_call call = {.tokens = TOKENS,
                                            .num_heads = HEADS,
                                            .rank = RANK,
                                            .half = HALF,
                                            .latent = latent,
                                            .ld_latent = LD,
                                            .weight = weight,
                                            .eps = 1e-5f,
                                            .cos_sin = table,
                                            .q = q + 16,
                                            .ld_q = (size_t)HEADS * Q,
                                            .head_q = Q,
                                            .out = out + 32,
                                            .ld_out = (size_t)HEADS * OUT,
                                            .head_out = OUT,
                                            .dtype = MSGL_F32,
                                            .pool = pool,
                                            .slots = slots};
        k->rope.latent_rope_store(&f->exec, &call);
        k->norm.rms_norm(&f->exec, latent, LD, weight, 1e-5f, normed, RANK, TOKENS, RANK);
        for (int t = 0; t < TOKENS; t++) {
            const float *got = pool + slots[t] * ROW, *angles = table + t * 2 * HALF;
            assert_memory_equal(got, normed + t * RANK, RANK * sizeof *got);
            for (int i = 0; i < 2 * HALF; i++) {
                const double key = rotated(latent + t * LD + RANK, angles, HALF, i);
                assert_true(fabs((double)got[RANK + i] - key) < 1e-6);
                for (int h = 0; h < HEADS; h++) {
                    const double want = rotated(q + (t * HEADS + h) * Q + 16, angles, HALF, i);
                    const float to = out[(t * HEADS + h) * OUT + 32 + i];
                    assert_true(fabs((double)to - want) < 1e-6);
                }
            }
        }
        assert_true(out[OUT] == untouched); // what a product puts in front stays
        if (k == f->kernels) memcpy(first, pool, sizeof pool);
        assert_memory_equal(first, pool, sizeof pool);
    }
}

// The four rotations of a token, with and without a factor, against their definition; and what the
// fused call makes of them.
static void check_dual_rope(struct fixture *f, bool scaled_keys)
{
    enum { TOKENS = 9, Q = 3, KV = 2, DIM = 80, HALF = 32, LD = (Q + 2 * KV) * DIM + 3 };
    enum { SET = 2 * HALF, TABLE = MSGL_DUAL_SETS * SET, QUERIES = MSGL_DUAL_QUERIES * Q * DIM };
    static float in[TOKENS * LD], got[TOKENS * LD], table[TOKENS * TABLE];
    static float queries[TOKENS * QUERIES], first[TOKENS * QUERIES];
    static float k_pool[TOKENS * KV * DIM], v_pool[TOKENS * KV * DIM];
    const msgl_dual_chunk dual = {
        .len = 24, .size = 32, .original = 50, .scaled_keys = scaled_keys};
    int32_t positions[TOKENS], prompt_lens[TOKENS], slots[TOKENS];
    float inv_freq[HALF];
    for (int i = 0; i < HALF; i++) inv_freq[i] = powf(100.0f, -(float)i / (float)HALF);
    for (int t = 0; t < TOKENS; t++) {
        positions[t] = t * 11;
        prompt_lens[t] = t % 2 == 0 ? 50 : 200; // tokens 6 and 8 are of answers
        slots[t] = (t * 4 + 1) % TOKENS;
    }
    fill(f, in, MSGL_COUNT(in), 2);
    FOR_LEVELS(f, k)
    {
        const msgl_dual_table_call angles = {.positions = positions,
                                             .prompt_lens = prompt_lens,
                                             .tokens = TOKENS,
                                             .inv_freq = inv_freq,
                                             .half = HALF,
                                             .scale = 1,
                                             .dual = dual,
                                             .cos_sin = table};
        const msgl_dual_rope_call call = {.rope = {.qkv = got,
                                                   .ld = LD,
                                                   .tokens = TOKENS,
                                                   .num_q_heads = Q,
                                                   .num_kv_heads = KV,
                                                   .head_dim = DIM,
                                                   .cos_sin = table,
                                                   .half = HALF,
                                                   .kv_dtype = MSGL_F32,
                                                   .k_pool = k_pool,
                                                   .v_pool = v_pool,
                                                   .slots = slots},
                                          .queries = queries};
        memcpy(got, in, sizeof in);
        k->rope.dual_table(&f->exec, &angles);
        k->rope.dual_rope_store(&f->exec, &call);
        for (int t = 0; t < TOKENS; t++) {
            const int own = positions[t] % 24;
            const int at[MSGL_DUAL_SETS] = {own, own, own < 8 ? own + 24 : 32, 32};
            const bool answer = t == 6 || t == 8;
            const double n = answer ? positions[t] + 1 : prompt_lens[t];
            const double factor = 1 + 0.1 * log(n / 50);
            for (int s = 0; s < MSGL_DUAL_SETS; s++) {
                const double key = scaled_keys && !answer ? factor : 1;
                const double scale = s == 0 ? key : scaled_keys ? factor : factor * factor;
                for (int i = 0; i < HALF; i++) {
                    const double angle = (double)((float)at[s] * inv_freq[i]);
                    const float *row = table + t * TABLE + s * SET;
                    assert_true(fabs((double)row[i] - scale * cos(angle)) < 1e-6);
                    assert_true(fabs((double)row[HALF + i] - scale * sin(angle)) < 1e-6);
                }
            }
            const float *row = in + t * LD, *v = row + (Q + KV) * DIM;
            for (int i = 0; i < (Q + KV) * DIM; i++) {
                const float *head = row + i / DIM * DIM;
                const int d = i % DIM;
                for (int q = 0; q < MSGL_DUAL_QUERIES; q++) {
                    const float *set = table + t * TABLE + (i < Q * DIM ? q + 1 : 0) * SET;
                    const double want = d < SET ? rotated(head, set, HALF, d) : (double)head[d];
                    const float to = i < Q * DIM ? queries[t * QUERIES + q * Q * DIM + i]
                                                 : k_pool[slots[t] * KV * DIM + i - Q * DIM];
                    assert_true(fabs((double)to - want) < 4e-6);
                }
            }
            assert_memory_equal(v_pool + slots[t] * KV * DIM, v, KV * DIM * sizeof *v);
        }
        if (k == f->kernels) memcpy(first, queries, sizeof queries);
        assert_memory_equal(first, queries, sizeof queries);
    }
}

static void test_dual_rope(void **state)
{
    check_dual_rope(*state, false);
    check_dual_rope(*state, true);
}

static void test_gate(void **state)
{
    struct fixture *f = *state;
    enum { ROWS = 50, DIM = 397 };
    static float in[ROWS * 2 * DIM], out[ROWS * DIM], first[ROWS * DIM];
    fill(f, in, MSGL_COUNT(in), 30);
    in[0] = 200; // exp overflows one way and underflows the other
    in[1] = -200;
    FOR_LEVELS(f, k)
    {
        k->act.gate(&f->exec, MSGL_SILU, in, out, ROWS, DIM);
        for (int r = 0; r < ROWS; r++) {
            for (int i = 0; i < DIM; i++) {
                const double g = (double)in[r * 2 * DIM + i], u = (double)in[r * 2 * DIM + DIM + i];
                const double want = g / (1 + exp(-g)) * u;
                assert_true(fabs((double)out[r * DIM + i] - want) <= 6e-7 * fabs(want) + 1e-30);
            }
        }
        if (k == f->kernels) memcpy(first, out, sizeof out);
        assert_memory_equal(first, out, sizeof out);
    }
    fill(f, in, MSGL_COUNT(in), 6); // a tanh in f64 is no oracle far out, where it is 1 - 1e-16
    in[0] = 200;
    in[1] = -200;
    FOR_LEVELS(f, k)
    {
        k->act.gate(&f->exec, MSGL_GELU_TANH, in, out, ROWS, DIM);
        for (int r = 0; r < ROWS; r++) {
            for (int i = 0; i < DIM; i++) {
                const double g = (double)in[r * 2 * DIM + i], u = (double)in[r * 2 * DIM + DIM + i];
                const double inner = sqrt(2 / 3.14159265358979323846) * (g + 0.044715 * g * g * g);
                const double want = g / (1 + exp(-2 * inner)) * u;
                // Five roundings of the exponent 2 inner, each relative to it.
                const double tolerance = (6e-7 + 6e-7 * fabs(inner)) * fabs(want) + 1e-30;
                assert_true(fabs((double)out[r * DIM + i] - want) <= tolerance);
            }
        }
        if (k == f->kernels) memcpy(first, out, sizeof out);
        assert_memory_equal(first, out, sizeof out);
    }
    fill(f, in, MSGL_COUNT(in), 12); // half of them beyond the limit
    in[1] = -200;
    in[2] = NAN;
    FOR_LEVELS(f, k)
    {
        k->act.gate(&f->exec, MSGL_SWIGLU_CLAMPED, in, out, ROWS, DIM);
        for (int r = 0; r < ROWS; r++) {
            for (int i = 0; i < DIM; i++) {
                const double given = (double)in[r * 2 * DIM + i],
                             u = (double)in[r * 2 * DIM + DIM + i];
                const double g = given > 7 ? 7 : given, up = u > 7 ? 7 : u < -7 ? -7 : u;
                const double want = g / (1 + exp(-1.702 * g)) * (up + 1);
                const double tolerance = (6e-7 + 3e-7 * fabs(g)) * fabs(want) + 1e-6;
                const double got = (double)out[r * DIM + i];
                assert_true(isnan(given) ? isnan(got) : fabs(got - want) <= tolerance);
            }
        }
        if (k == f->kernels) memcpy(first, out, sizeof out);
        assert_memory_equal(first, out, sizeof out);
    }
}

// DeepSeek-V4's: the gate at most 10, up in [-10, 10].
static void test_silu_clamped(void **state)
{
    struct fixture *f = *state;
    enum { ROWS = 20, DIM = 73 };
    static float in[ROWS * 2 * DIM], out[ROWS * DIM], first[ROWS * DIM];
    fill(f, in, MSGL_COUNT(in), 15);
    in[2] = NAN;
    FOR_LEVELS(f, k)
    {
        k->act.gate(&f->exec, MSGL_SILU_CLAMPED, in, out, ROWS, DIM);
        for (int i = 0; i < ROWS * DIM; i++) {
            const float *row = in + i / DIM * 2 * DIM;
            const double given = (double)row[i % DIM], up = (double)row[DIM + i % DIM];
            const double g = fmin(given, 10), u = fmax(fmin(up, 10), -10);
            const double want = g / (1 + exp(-g)) * u, got = (double)out[i];
            const double tolerance = (6e-7 + 3e-7 * fabs(g)) * fabs(want) + 1e-6;
            assert_true(isnan(given) ? isnan(got) : fabs(got - want) <= tolerance);
        }
        if (k == f->kernels) memcpy(first, out, sizeof out);
        assert_memory_equal(first, out, sizeof out);
    }
}

static void test_times_sigmoid(void **state)
{
    struct fixture *f = *state;
    enum { ROWS = 50, DIM = 397, LD = 411 };
    static float gate[ROWS * LD], in[ROWS * DIM], out[ROWS * DIM + 1], first[ROWS * DIM];
    fill(f, gate, MSGL_COUNT(gate), 30);
    fill(f, in, MSGL_COUNT(in), 5);
    gate[0] = 200;
    gate[1] = -200;
    FOR_LEVELS(f, k)
    {
        memcpy(out, in, sizeof in);
        out[ROWS * DIM] = 7;
        k->act.times_sigmoid(&f->exec, gate, LD, out, ROWS, DIM);
        for (int r = 0; r < ROWS; r++) {
            for (int i = 0; i < DIM; i++) {
                const double want = (double)in[r * DIM + i] / (1 + exp(-(double)gate[r * LD + i]));
                assert_true(fabs((double)out[r * DIM + i] - want) <= 6e-7 * fabs(want) + 1e-30);
            }
        }
        assert_true(out[ROWS * DIM] == 7);
        if (k == f->kernels) memcpy(first, out, sizeof first);
        assert_memory_equal(first, out, sizeof first);
    }
}

static void test_temper(void **state)
{
    struct fixture *f = *state;
    enum { ROWS = 60, DIM = 397, LD = 411 };
    static float in[ROWS * LD], out[ROWS * LD], first[ROWS * LD];
    int32_t positions[ROWS];
    fill(f, in, MSGL_COUNT(in), 5);
    for (int r = 0; r < ROWS; r++) positions[r] = r < 40 ? r : 1000 * r + 15;
    for (int from = 0; from < 2; from++) {
        const msgl_temper how = {.every = 16, .scale = 0.3f, .first = (float)from};
        FOR_LEVELS(f, k)
        {
            memcpy(out, in, sizeof in);
            k->act.temper(&f->exec, &how, positions, out, LD, ROWS, DIM);
            for (int i = 0; i < ROWS * LD; i++) {
                const double steps = floor((positions[i / LD] + from) / 16.0);
                const double by = i % LD < DIM ? 1 + (double)how.scale * log(1 + steps) : 1;
                const double want = (double)in[i] * by;
                assert_true(fabs((double)out[i] - want) <= 4e-7 * fabs(want));
            }
            if (k == f->kernels) memcpy(first, out, sizeof out);
            assert_memory_equal(first, out, sizeof out);
        }
    }
}

static void test_weigh_input(void **state)
{
    struct fixture *f = *state;
    enum { ROWS = 21, DIM = 300 };
    static float in[ROWS * DIM], out[ROWS * DIM];
    float before[ROWS], weights[ROWS];
    fill(f, in, MSGL_COUNT(in), 3);
    fill(f, before, ROWS, 1);
    FOR_LEVELS(f, k)
    {
        memcpy(out, in, sizeof out);
        memcpy(weights, before, sizeof weights);
        k->moe.weigh_input(&f->exec, out, weights, ROWS, DIM);
        for (int i = 0; i < ROWS * DIM; i++) assert_true(out[i] == in[i] * before[i / DIM]);
        for (int r = 0; r < ROWS; r++) assert_true(weights[r] == 1);
    }
}

static void test_cap(void **state)
{
    struct fixture *f = *state;
    enum { N = 3003 };
    static float in[N], out[N], first[N];
    fill(f, in, N, 90);
    in[0] = 1e30f;
    in[1] = -1e30f;
    in[2] = NAN;
    for (int capped = 0; capped < 2; capped++) {
        const double cap = capped ? 30 : 0, by = 0.5;
        FOR_LEVELS(f, k)
        {
            memcpy(out, in, sizeof in);
            k->act.cap(&f->exec, out, N, (float)by, (float)cap);
            assert_true(isnan(out[2])); // for the sampler to see
            for (int i = 0; i < N; i++) {
                if (i == 2) continue;
                const double l = (double)in[i] * by, want = capped ? cap * tanh(l / cap) : l;
                assert_true(fabs((double)out[i] - want) <= 3e-7 * fmax(fabs(want), cap));
            }
            if (k == f->kernels) memcpy(first, out, sizeof out);
            assert_memory_equal(first, out, sizeof out);
        }
    }
}

static void test_add_shared(void **state)
{
    struct fixture *f = *state;
    enum { ROWS = 21, DIM = 300 };
    static float in[ROWS * DIM], before[ROWS * DIM], out[ROWS * DIM], gate[ROWS];
    fill(f, in, MSGL_COUNT(in), 3);
    fill(f, before, MSGL_COUNT(before), 3);
    fill(f, gate, ROWS, 5);
    FOR_LEVELS(f, k)
    {
        memcpy(out, before, sizeof out);
        k->moe.add_shared(&f->exec, in, NULL, ROWS, DIM, out);
        for (int i = 0; i < ROWS * DIM; i++) assert_true(out[i] == before[i] + in[i]);
        memcpy(out, before, sizeof out);
        k->moe.add_shared(&f->exec, in, gate, ROWS, DIM, out);
        for (int i = 0; i < ROWS * DIM; i++) {
            const double by = 1 / (1 + exp(-(double)gate[i / DIM]));
            const double want = (double)before[i] + by * (double)in[i];
            assert_true(fabs((double)out[i] - want) <= 1e-6);
        }
    }
}

enum { TOKENS = 40, EXPERTS = 8, CHOICES = 3, WIDTH = 300 };

// Of experts [2, 5) alone: what the others say is not read.
static void check_own(struct fixture *f, const int32_t *ids, const int32_t *source,
                      const int32_t *offsets, const float *weights, const float *in)
{
    enum { FIRST = 2, OWN = 3 };
    static float own[TOKENS * CHOICES], sorted[TOKENS * CHOICES * WIDTH], out[TOKENS * WIDTH];
    const msgl_moe_kernels *m = &f->kernels[0].moe;
    memcpy(own, weights, sizeof own);
    m->keep_own(&f->exec, ids, TOKENS * CHOICES, FIRST, OWN, own);
    m->gather(&f->exec, in, source, TOKENS, CHOICES, WIDTH, sorted);
    for (int j = 0; j < TOKENS * CHOICES; j++) {
        if (j >= offsets[FIRST] && j < offsets[FIRST + OWN]) continue;
        for (int i = 0; i < WIDTH; i++) sorted[j * WIDTH + i] = NAN;
    }
    m->combine(&f->exec, sorted, source, own, TOKENS, CHOICES, WIDTH, false, out);
    for (int r = 0; r < TOKENS; r++) {
        double sum = 0;
        for (int c = r * CHOICES; c < r * CHOICES + CHOICES; c++) {
            if (ids[c] >= FIRST && ids[c] < FIRST + OWN) sum += (double)weights[c];
        }
        for (int i = r * WIDTH; i < r * WIDTH + WIDTH; i++) {
            assert_true(fabs((double)out[i] - sum * (double)in[i]) < 1e-5);
        }
    }
}

static void test_moe(void **state)
{
    struct fixture *f = *state;
    enum { ROWS = TOKENS, E = EXPERTS, K = CHOICES, DIM = WIDTH };
    static float logits[ROWS * E], weights[ROWS * K], in[ROWS * DIM], sorted[ROWS * K * DIM],
        out[ROWS * DIM], added[ROWS * DIM];
    int32_t ids[ROWS * K], offsets[E + 1], source[ROWS * K];
    fill(f, logits, MSGL_COUNT(logits), 4);
    fill(f, in, MSGL_COUNT(in), 1);
    logits[0] = logits[1] = logits[2] = logits[3] = 9; // a tie: lowest indices first
    const msgl_moe_kernels *m = &f->kernels[0].moe;
    for (int norm = 0; norm < 2; norm++) {
        const msgl_router how = {.top_k = K, .norm_topk = norm != 0, .scale = 1};
        m->route(&f->exec, &how, logits, ROWS, E, ids, weights);
        assert_int_equal(ids[0], 0);
        assert_int_equal(ids[1], 1);
        assert_int_equal(ids[2], 2);
        m->sort(&f->exec, ids, ROWS, K, E, offsets, source);
        assert_int_equal(offsets[0], 0);
        assert_int_equal(offsets[E], ROWS * K);
        for (int e = 0; e < E; e++) {
            for (int j = offsets[e]; j < offsets[e + 1]; j++) {
                assert_int_equal(ids[source[j]], e);
                assert_true(j == offsets[e] || source[j] > source[j - 1]);
            }
        }
        m->gather(&f->exec, in, source, ROWS, K, DIM, sorted);
        m->combine(&f->exec, sorted, source, weights, ROWS, K, DIM, false, out);
        memcpy(added, in, sizeof added);
        m->combine(&f->exec, sorted, source, weights, ROWS, K, DIM, true, added);
        for (int i = 0; i < ROWS * DIM; i++) assert_true(added[i] == in[i] + out[i]);
        for (int j = 0; j < ROWS * K; j++) { // the same in the order of the choices
            memcpy(sorted + (size_t)j * DIM, in + (size_t)(j / K) * DIM, DIM * sizeof *in);
        }
        m->combine(&f->exec, sorted, NULL, weights, ROWS, K, DIM, false, added);
        assert_memory_equal(added, out, sizeof out);
        check_own(f, ids, source, offsets, weights, in);
        float scaled[ROWS * K], by[E];
        memcpy(scaled, weights, sizeof scaled);
        for (int e = 0; e < E; e++) by[e] = (float)e - 2.5f;
        m->scale_choices(&f->exec, ids, ROWS * K, by, scaled);
        for (int i = 0; i < ROWS * K; i++) assert_true(scaled[i] == weights[i] * by[ids[i]]);
        for (int r = 0; r < ROWS; r++) {
            double sum = 0, all = 0, kept = 0;
            for (int e = 0; e < E; e++) all += exp((double)logits[r * E + e]);
            for (int c = 0; c < K; c++) {
                const double p = exp((double)logits[r * E + ids[r * K + c]]) / all;
                kept += p;
                sum += (double)weights[r * K + c];
                int larger = 0; // exactly c experts may come before choice c
                for (int e = 0; e < E; e++) {
                    larger += logits[r * E + e] > logits[r * E + ids[r * K + c]];
                }
                assert_true(larger <= c);
                if (!norm) assert_true(fabs((double)weights[r * K + c] - p) < 1e-6);
            }
            assert_true(fabs(sum - (norm ? 1 : kept)) < 1e-6);
            for (int i = 0; i < DIM; i++) { // experts are the identity here
                assert_true(fabs((double)out[r * DIM + i] - sum * (double)in[r * DIM + i]) < 1e-5);
            }
        }
    }
}

// ---- sampling ----

static double softmax(const float *l, int n, double temperature, double *p)
{
    double max = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++) max = fmax(max, (double)l[i] / temperature);
    for (int i = 0; i < n; i++) sum += p[i] = exp((double)l[i] / temperature - max);
    for (int i = 0; i < n; i++) p[i] /= sum;
    return max + log(sum);
}

// The distribution that the filters should leave, by definition: sort, cut, renormalise.
static void filtered(const float *l, int n, const msgl_sample_row *r, double *p)
{
    softmax(l, n, (double)r->temperature, p);
    int *order = calloc((size_t)n, sizeof *order);
    for (int i = 0; i < n; i++) { // insertion sort by (p desc, id asc)
        int at = i;
        while (at > 0 && l[i] > l[order[at - 1]]) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = i;
    }
    const int k = r->top_k > 0 && r->top_k < n ? r->top_k : n;
    double mass = 0, kept = 0;
    for (int i = 0; i < k; i++) mass += p[order[i]];
    int last = 0;
    const double largest = p[order[0]];
    for (int i = 0; i < k; i++) {
        if (i > 0 && p[order[i]] < (double)r->min_p * largest) break;
        kept += p[order[i]];
        last = i;
        if (r->top_p < 1 && kept >= (double)r->top_p * mass) break;
    }
    for (int i = 0; i < n; i++) {
        if (i > last) p[order[i]] = 0;
    }
    for (int i = 0; i <= last; i++) p[order[i]] /= kept;
    free(order);
}

static void draw(struct fixture *f, const msgl_kernels *k, float *logits, int vocab, int num_rows,
                 const msgl_sample_row *rows, int32_t *tokens, int32_t *status)
{
    int32_t pool[200], index[100];
    for (int i = 0; i < num_rows; i++) index[i] = 2 * (num_rows - 1 - i);
    const msgl_sample_call c = {.logits = logits,
                                .ld = (size_t)vocab,
                                .num_rows = num_rows,
                                .vocab = vocab,
                                .rows = rows,
                                .any_random = true,
                                .any_filter = true,
                                .tokens = tokens,
                                .status = status,
                                .pool = pool,
                                .pool_index = index};
    k->sample.sample(&f->exec, &c);
    for (int i = 0; i < num_rows; i++) {
        assert_int_equal(pool[index[i]], tokens[i] < 0 ? 0 : tokens[i]);
    }
}

static const msgl_sample_row CASES[] = {
    {.temperature = 1, .top_p = 1},
    {.temperature = 0.5f, .top_p = 1},
    {.temperature = 2, .top_p = 1, .top_k = 5},
    {.temperature = 1, .top_p = 0.7f},
    {.temperature = 1.3f, .top_p = 0.9f, .top_k = 40},
    {.temperature = 1, .top_p = 1, .min_p = 0.1f},
    {.temperature = 3, .top_p = 0.95f, .top_k = 150, .min_p = 0.05f},
    {.temperature = 1, .top_p = 1e-6f},
};

// Chi-square of 20,000 draws per case against the exact distribution. Cells expected fewer than 5
// times are pooled. Bound: mean + 5 standard deviations of the chi-square (dof + 5 sqrt(2 dof)):
// with fixed seeds the outcome is the same on every run.
static void test_distribution(void **state)
{
    struct fixture *f = *state;
    enum { VOCAB = 300, DRAWS = 20000, AT_ONCE = 100 };
    float logits[VOCAB];
    static float rows[AT_ONCE * VOCAB];
    for (int i = 0; i < VOCAB; i++) logits[i] = rnd(f, 4);
    for (int i = 0; i < AT_ONCE; i++) memcpy(rows + i * VOCAB, logits, sizeof logits);
    FOR_LEVELS(f, k)
    {
        for (size_t c = 0; c < MSGL_COUNT(CASES); c++) {
            double p[VOCAB];
            int count[VOCAB] = {0};
            filtered(logits, VOCAB, &CASES[c], p);
            for (int d = 0; d < DRAWS; d += AT_ONCE) {
                msgl_sample_row r[AT_ONCE];
                int32_t tokens[AT_ONCE], status[AT_ONCE];
                for (int i = 0; i < AT_ONCE; i++) {
                    r[i] = CASES[c];
                    r[i].seed = (uint64_t)(d + i) / 50; // seeds and positions both vary
                    r[i].position = (d + i) % 50;
                }
                draw(f, k, rows, VOCAB, AT_ONCE, r, tokens, status);
                for (int i = 0; i < AT_ONCE; i++) {
                    assert_int_equal(status[i], 0);
                    assert_in_range(tokens[i], 0, VOCAB - 1);
                    assert_true(p[tokens[i]] > 0); // a token that the filters drop never comes
                    count[tokens[i]]++;
                }
            }
            double chi = 0, pooled = 0, pooled_count = 0;
            int dof = -1;
            for (int i = 0; i < VOCAB; i++) {
                const double want = p[i] * DRAWS;
                if (want < 5) {
                    pooled += want;
                    pooled_count += count[i];
                    continue;
                }
                chi += (count[i] - want) * (count[i] - want) / want;
                dof++;
            }
            if (pooled >= 5) {
                chi += (pooled_count - pooled) * (pooled_count - pooled) / pooled;
                dof++;
            }
            assert_true(chi <= dof + 5 * sqrt(2.0 * (dof > 0 ? dof : 1)));
        }
    }
}

static void test_sampling_edges(void **state)
{
    struct fixture *f = *state;
    enum { VOCAB = 1000 };
    float l[VOCAB];
    FOR_LEVELS(f, k)
    {
        int32_t token, status;
        msgl_sample_row r = {.temperature = 0, .top_p = 1};
        for (int i = 0; i < VOCAB; i++) l[i] = -(float)((i * 7) % VOCAB);
        l[900] = l[17] = 3;
        draw(f, k, l, VOCAB, 1, &r, &token, &status);
        assert_int_equal(token, 17); // a tie: the lowest id
        const float extremes[] = {1e-30f, 1e30f};
        for (int i = 0; i < 2; i++) {
            r.temperature = extremes[i];
            draw(f, k, l, VOCAB, 1, &r, &token, &status);
            assert_int_equal(status, 0);
            assert_in_range(token, 0, VOCAB - 1);
        }
        r = (msgl_sample_row){.temperature = 1, .top_p = 0.5f, .top_k = 7};
        for (int i = 0; i < VOCAB; i++) l[i] = -INFINITY; // all but one masked
        l[VOCAB - 1] = -5;
        draw(f, k, l, VOCAB, 1, &r, &token, &status);
        assert_int_equal(token, VOCAB - 1);
        const float bads[] = {NAN, INFINITY};
        for (int b = 0; b < 3; b++) {
            l[VOCAB - 1] = -5;
            l[b == 1 ? 999 : 37] = b < 2 ? bads[b] : -INFINITY;
            if (b == 2) l[VOCAB - 1] = -INFINITY; // nothing left at all
            token = 5;
            draw(f, k, l, VOCAB, 1, &r, &token, &status);
            assert_int_equal(status, MSGL_ENUMERIC);
            assert_int_equal(token, -1);
            for (int i = 0; i < VOCAB; i++) l[i] = -INFINITY;
        }
    }
}

// Which tokens 300 draws bring of these logits, as bits.
static uint32_t drawn(struct fixture *f, const msgl_kernels *k, const float *logits, int vocab,
                      const msgl_sample_row *row)
{
    enum { DRAWS = 300 };
    float l[32];
    uint32_t bits = 0;
    assert_in_range(vocab, 1, 32);
    memcpy(l, logits, (size_t)vocab * sizeof *l);
    for (int i = 0; i < DRAWS; i++) {
        int32_t token, status;
        msgl_sample_row r = *row;
        r.seed = 7;
        r.position = i;
        draw(f, k, l, vocab, 1, &r, &token, &status);
        assert_int_equal(status, 0);
        assert_in_range(token, 0, vocab - 1);
        bits |= 1u << token;
    }
    return bits;
}

// A nucleus whose mass is exactly top_p has no token more, and a token whose share of the largest
// is exactly min_p stays: of four equal logits each has a quarter, and all the share 1.
static void test_ties_at_filters(void **state)
{
    struct fixture *f = *state;
    static const struct {
        float logits[6];
        int vocab;
        msgl_sample_row row;
        uint32_t bits;
    } cases[] = {
        {{2, 2, 2, 2}, 4, {.temperature = 1, .top_p = 0.25f}, 1},
        {{2, 2, 2, 2}, 4, {.temperature = 1, .top_p = 0.5f}, 3},
        {{2, 2, 2, 2}, 4, {.temperature = 1, .top_p = 0.75f}, 7},
        {{2, 2, 2, 2}, 4, {.temperature = 1, .top_p = 0.51f}, 7},
        {{2, 2, 2, 2}, 4, {.temperature = 1, .top_p = 0.49f}, 3},
        {{-9, 2, 2, 2, 2, 1}, 6, {.temperature = 1, .top_p = 0.5f, .top_k = 4}, 6},
        {{2, 2, 2, 1, 2, 0}, 6, {.temperature = 1, .top_p = 1, .min_p = 1}, 23},
        {{2, 2, 2, 1, 2, 0}, 6, {.temperature = 1, .top_p = 1, .min_p = 1, .top_k = 5}, 23},
        {{2, 2, 2, 1, 2, 0}, 6, {.temperature = 1, .top_p = 0.999f, .min_p = 1}, 23},
    };
    FOR_LEVELS(f, k)
    {
        for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
            assert_int_equal(drawn(f, k, cases[i].logits, cases[i].vocab, &cases[i].row),
                             cases[i].bits);
        }
    }
}

static void test_logprobs(void **state)
{
    struct fixture *f = *state;
    enum { VOCAB = 5001, ROWS = 3 };
    static float l[ROWS * VOCAB];
    static double p[VOCAB];
    fill(f, l, MSGL_COUNT(l), 9);
    l[4000] = l[123]; // ties may stand in the top list too
    FOR_LEVELS(f, k)
    {
        msgl_token_logprobs out[ROWS] = {{.token = 4000, .num_top = 20},
                                         {.token = 5000, .num_top = 0},
                                         {.token = 0, .num_top = 1}};
        k->sample.logprobs(&f->exec, l, VOCAB, ROWS, VOCAB, out);
        for (int r = 0; r < ROWS; r++) {
            const float *row = l + r * VOCAB;
            const double lse = softmax(row, VOCAB, 1, p);
            assert_true(fabs((double)out[r].logprob - ((double)row[out[r].token] - lse)) < 1e-5);
            int better = 0;
            for (int j = 0; j < VOCAB; j++) {
                const int own = out[r].token;
                better += row[j] > row[own] || (row[j] == row[own] && j < own);
            }
            assert_int_equal(out[r].rank, better + 1);
            for (int i = 0; i < out[r].num_top; i++) {
                const int id = out[r].top_ids[i];
                int before = 0;
                for (int j = 0; j < VOCAB; j++) {
                    before += row[j] > row[id] || (row[j] == row[id] && j < id);
                }
                assert_int_equal(before, i);
                assert_true(fabs((double)out[r].top_logprobs[i] - ((double)row[id] - lse)) < 1e-5);
            }
        }
    }
}

// Any tokens' log-probabilities, in any order and twice, have the bits that those of the record
// have; places between rows stay as they are, and a NaN row gives NaN.
static void test_listed(void **state)
{
    struct fixture *f = *state;
    enum { VOCAB = 5001, LD = 5007, ROWS = 3, N = 6, OUT_LD = 8 };
    static float l[ROWS * LD];
    const int32_t ids[N] = {5000, 0, 17, 4000, 17, 1};
    fill(f, l, MSGL_COUNT(l), 11);
    l[2 * LD + 9] = NAN;
    FOR_LEVELS(f, k)
    {
        msgl_token_logprobs records[ROWS] = {{.token = 4000, .num_top = 20}, {.token = 17}, {0}};
        float out[ROWS * OUT_LD];
        for (int i = 0; i < ROWS * OUT_LD; i++) out[i] = 5;
        k->sample.logprobs(&f->exec, l, LD, ROWS, VOCAB, records);
        k->sample.listed(&f->exec, l, LD, records, ROWS, ids, N, out, OUT_LD);
        assert_memory_equal(&out[3], &records[0].logprob, sizeof(float));
        for (int i = 0; i < records[0].num_top; i++) { // one by one
            float one;
            k->sample.listed(&f->exec, l, LD, records, 1, &records[0].top_ids[i], 1, &one, 1);
            assert_memory_equal(&one, &records[0].top_logprobs[i], sizeof one);
        }
        assert_memory_equal(&out[OUT_LD + 2], &records[1].logprob, sizeof(float));
        assert_memory_equal(&out[OUT_LD + 4], &records[1].logprob, sizeof(float));
        for (int i = 0; i < ROWS * OUT_LD; i++) {
            if (i % OUT_LD >= N) assert_true(out[i] == 5);
            if (i >= 2 * OUT_LD && i % OUT_LD < N) assert_true(isnan(out[i]));
        }
    }
}

// Bits decide, of each row its own; nothing is written beyond the last token, and -inf and NaN
// pass.
static void test_mask(void **state)
{
    struct fixture *f = *state;
    enum { VOCAB = 1003, LD = 1010, ROWS = 3, WORDS = (VOCAB + 31) / 32 };
    static float l[ROWS * LD], out[ROWS * VOCAB + 1];
    uint32_t masks[ROWS * WORDS];
    fill(f, l, MSGL_COUNT(l), 3);
    l[7] = -INFINITY;
    l[LD + 8] = NAN;
    for (size_t i = 0; i < MSGL_COUNT(masks); i++) masks[i] = (uint32_t)i * 2654435761u;
    masks[0] |= 1u << 7;
    masks[WORDS] |= 1u << 8;
    FOR_LEVELS(f, k)
    {
        for (size_t i = 0; i < MSGL_COUNT(out); i++) out[i] = 5;
        k->sample.mask(&f->exec, l, LD, masks, ROWS, VOCAB, out);
        for (int i = 0; i < ROWS * VOCAB; i++) {
            const int r = i / VOCAB, t = i % VOCAB;
            const bool in = masks[r * WORDS + t / 32] >> t % 32 & 1;
            const float want = in ? l[r * LD + t] : -INFINITY;
            assert_memory_equal(&out[i], &want, sizeof want);
        }
        assert_true(out[ROWS * VOCAB] == 5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rms_norm),
        cmocka_unit_test(test_shared_norm),
        cmocka_unit_test(test_latent_rope),
        cmocka_unit_test(test_gate),
        cmocka_unit_test(test_silu_clamped),
        cmocka_unit_test(test_times_sigmoid),
        cmocka_unit_test(test_moe),
        cmocka_unit_test(test_temper),
        cmocka_unit_test(test_weigh_input),
        cmocka_unit_test(test_cap),
        cmocka_unit_test(test_add_shared),
        cmocka_unit_test(test_distribution),
        cmocka_unit_test(test_sampling_edges),
        cmocka_unit_test(test_dual_rope),
        cmocka_unit_test(test_ties_at_filters),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_listed),
        cmocka_unit_test(test_mask),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
