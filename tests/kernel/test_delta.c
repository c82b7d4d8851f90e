// SPDX-License-Identifier: Apache-2.0
//
// Family delta against the recurrence and its chunked (WY) form in f64 and against transformers'
// Qwen3-Next; cuts of a prompt, checkpoints saved and begun with, and padding. What a token gets
// must be the same to the bit however it was cut, whatever else is in the step, on any number of
// threads and at any ISA level.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "states_fixture.h"

struct layer {
    int k_heads, v_heads, k_dim, v_dim;
    bool kda; // a decay a channel of k, a sigmoid as gate
    float *conv, *a_log, *dt_bias, *norm;
    char *states;
    size_t stride;
};

struct request {
    int len;
    float *qkv, *z, *a, *b;
};

static int channels(const struct layer *l)
{
    return 2 * l->k_heads * l->k_dim + l->v_heads * l->v_dim;
}
static size_t matrix(const struct layer *l) // elements
{
    return (size_t)(l->v_heads * l->k_dim * l->v_dim);
}

// Decays of a token.
static int decays(const struct layer *l)
{
    return l->kda ? l->v_heads * l->k_dim : l->v_heads;
}

static size_t sized(int a, int b)
{
    return (size_t)a * (size_t)b;
}

// In the order of tools/make_delta_vectors.py.
static struct layer layer_of(uint64_t *rng, int k_heads, int v_heads, int k_dim, int v_dim,
                             bool kda)
{
    struct layer l = {
        .k_heads = k_heads, .v_heads = v_heads, .k_dim = k_dim, .v_dim = v_dim, .kda = kda};
    l.conv = uniform(rng, -1, 1, sized(channels(&l), 4));
    l.a_log = uniform(rng, -4, 2.75f, (size_t)v_heads);
    l.dt_bias = uniform(rng, -6, 1, (size_t)decays(&l));
    l.norm = uniform(rng, 0.5f, 1.5f, (size_t)v_dim);
    l.stride = (matrix(&l) + sized(channels(&l), 4) + 5) * sizeof(float);
    l.states = states_new(l.stride);
    return l;
}

static struct layer layer_new(uint64_t *rng, int k_heads, int v_heads, int k_dim, int v_dim)
{
    return layer_of(rng, k_heads, v_heads, k_dim, v_dim, false);
}

static void layer_free(struct layer *l)
{
    free(l->conv), free(l->a_log), free(l->dt_bias), free(l->norm), free(l->states);
}

static struct request request_new(uint64_t *rng, const struct layer *l, int len)
{
    struct request r = {.len = len};
    r.qkv = uniform(rng, -2, 2, sized(len, channels(l)));
    r.z = uniform(rng, -3, 3, sized(len, l->v_heads * l->v_dim));
    r.a = uniform(rng, -2, 2, sized(len, decays(l)));
    r.b = uniform(rng, -3, 3, sized(len, l->v_heads));
    return r;
}

static void request_free(struct request *r)
{
    free(r->qkv), free(r->z), free(r->a), free(r->b);
}

static const float *state_of(const struct layer *l, int state)
{
    return (const float *)(l->states + (size_t)state * l->stride);
}

static void copy_rows(float *to, size_t ld, const float *from, int columns, int rows)
{
    for (int t = 0; t < rows; t++) {
        memcpy(to + (size_t)t * ld, from + sized(t, columns), (size_t)columns * sizeof *to);
    }
}

// A step; returns its rows of results, [tokens, v_heads, v_dim], to be freed. Rows of the call lie
// apart with NaN between them.
static float *run(struct fixture *f, const struct layer *l, const struct part *parts, int n)
{
    struct parts p;
    const msgl_states io = parts_lay(&p, parts, n, l->states, l->stride);
    const int wide = l->v_heads * l->v_dim, rows = p.cu[n];
    const size_t ld = (size_t)(channels(l) + wide + decays(l) + l->v_heads + 3),
                 ld_out = (size_t)wide + 3;
    float *in = malloc((size_t)rows * ld * sizeof *in), *out = malloc((size_t)rows * ld_out * 4);
    memset(in, 0xff, (size_t)rows * ld * sizeof *in);
    memset(out, 0xff, (size_t)rows * ld_out * sizeof *out);
    float *z = in + channels(l), *a = z + wide, *b = a + decays(l);
    for (int i = 0; i < n; i++) {
        const struct part *part = &parts[i];
        const struct request *r = part->r;
        if (r == NULL) continue;
        const size_t at = (size_t)p.cu[i] * ld;
        const int begin = part->begin, count = part->end - begin;
        copy_rows(in + at, ld, r->qkv + sized(begin, channels(l)), channels(l), count);
        copy_rows(z + at, ld, r->z + sized(begin, wide), wide, count);
        copy_rows(a + at, ld, r->a + sized(begin, decays(l)), decays(l), count);
        copy_rows(b + at, ld, r->b + sized(begin, l->v_heads), l->v_heads, count);
    }
    const msgl_delta_call call = {.io = io,
                                  .k_heads = l->k_heads,
                                  .v_heads = l->v_heads,
                                  .k_dim = l->k_dim,
                                  .v_dim = l->v_dim,
                                  .qkv = in,
                                  .ld_qkv = ld,
                                  .z = z,
                                  .ld_z = ld,
                                  .a = a,
                                  .b = b,
                                  .ld_a = ld,
                                  .ld_b = ld,
                                  .by_channel = l->kda,
                                  .sigmoid_gate = l->kda,
                                  .out = out,
                                  .ld_out = ld_out,
                                  .conv = l->conv,
                                  .a_log = l->a_log,
                                  .dt_bias = l->dt_bias,
                                  .norm = l->norm,
                                  .norm_eps = 1e-6f};
    assert_int_equal(f->k->delta.scratch_size(&call), 0);
    f->k->delta.run(&f->exec, &call);
    assert_int_equal(f->exec.status, 0);
    float *got = malloc(sized(rows, wide) * sizeof *got);
    for (int t = 0; t < rows; t++) {
        memcpy(got + sized(t, wide), out + (size_t)t * ld_out, (size_t)wide * sizeof *got);
        for (size_t i = (size_t)wide; i < ld_out; i++)
            assert_true(isnan(out[(size_t)t * ld_out + i]));
    }
    free(in), free(out);
    return got;
}

// A token of one head in f64.
struct exact {
    double q[256], k[256], v[256], g[256], beta; // g: of each channel of k
};

static void exact_mix(const struct layer *l, const struct request *r, int t, int channel, int dim,
                      double scale, double *y)
{
    double sum = 0;
    for (int i = 0; i < dim; i++) {
        const int c = channel + i;
        double x = 0;
        for (int tap = 0; tap < 4; tap++) {
            if (t - 3 + tap < 0) continue;
            x += (double)l->conv[c * 4 + tap] *
                 (double)r->qkv[sized(t - 3 + tap, channels(l)) + (size_t)c];
        }
        y[i] = x / (1 + exp(-x));
        sum += y[i] * y[i];
    }
    for (int i = 0; scale > 0 && i < dim; i++) y[i] *= scale / sqrt(sum + 1e-6);
}

static void exact_token(const struct layer *l, const struct request *r, int t, int head,
                        struct exact *e)
{
    const int k_head = head / (l->v_heads / l->k_heads), keys = l->k_heads * l->k_dim;
    exact_mix(l, r, t, k_head * l->k_dim, l->k_dim, 1 / sqrt((double)l->k_dim), e->q);
    exact_mix(l, r, t, keys + k_head * l->k_dim, l->k_dim, 1, e->k);
    exact_mix(l, r, t, 2 * keys + head * l->v_dim, l->v_dim, 0, e->v);
    for (int d = 0; d < l->k_dim; d++) {
        const int at = l->kda ? head * l->k_dim + d : head;
        const double a = (double)r->a[sized(t, decays(l)) + (size_t)at] + (double)l->dt_bias[at];
        e->g[d] = -exp((double)l->a_log[head]) * log1p(exp(a));
    }
    e->beta = 1 / (1 + exp(-(double)r->b[sized(t, l->v_heads) + (size_t)head]));
}

// out = norm(o) * weight * silu(z), or sigmoid(z), of a row's head.
static void exact_gate(const struct layer *l, const struct request *r, int t, int head,
                       const double *o, double *out)
{
    double sum = 0;
    for (int c = 0; c < l->v_dim; c++) sum += o[c] * o[c];
    for (int c = 0; c < l->v_dim; c++) {
        const double z =
            (double)r->z[sized(t, l->v_heads * l->v_dim) + (size_t)(head * l->v_dim + c)];
        out[c] = o[c] / sqrt(sum / l->v_dim + 1e-6) * (double)l->norm[c] * (l->kda ? 1 : z) /
                 (1 + exp(-z));
    }
}

// The recurrence; out [len, v_heads, v_dim], and S behind len in `s`.
static void exact_recur(const struct layer *l, const struct request *r, int head, double *out,
                        double *s)
{
    const int kd = l->k_dim, vd = l->v_dim;
    static struct exact e;
    double u[256], o[256];
    memset(s, 0, sized(kd, vd) * sizeof *s);
    for (int t = 0; t < r->len; t++) {
        exact_token(l, r, t, head, &e);
        for (int c = 0; c < vd; c++) {
            double had = 0;
            for (int d = 0; d < kd; d++) had += (s[d * vd + c] *= exp(e.g[d])) * e.k[d];
            u[c] = e.beta * (e.v[c] - had);
            o[c] = 0;
            for (int d = 0; d < kd; d++) o[c] += (s[d * vd + c] += e.k[d] * u[c]) * e.q[d];
        }
        exact_gate(l, r, t, head, o, out + sized(t, l->v_heads * vd) + (size_t)(head * vd));
    }
}

// The same in chunks of 64: U = (I + A)^-1 beta (V - e^G K S), O = e^G Q S + P U, and S.
static void exact_chunks(const struct layer *l, const struct request *r, int head, double *out,
                         double *s)
{
    enum { ROWS = 64 };
    const int kd = l->k_dim, vd = l->v_dim;
    static struct exact e[ROWS];
    static double u[ROWS][256], sum[ROWS];
    double o[256];
    memset(s, 0, sized(kd, vd) * sizeof *s);
    for (int base = 0; base < r->len; base += ROWS) {
        const int rows = r->len - base < ROWS ? r->len - base : ROWS;
        for (int i = 0; i < rows; i++) {
            exact_token(l, r, base + i, head, &e[i]);
            sum[i] = e[i].g[0] + (i > 0 ? sum[i - 1] : 0);
        }
        for (int i = 0; i < rows; i++) {
            for (int c = 0; c < vd; c++) {
                double had = 0;
                for (int d = 0; d < kd; d++) had += exp(sum[i]) * e[i].k[d] * s[d * vd + c];
                u[i][c] = e[i].beta * (e[i].v[c] - had);
                o[c] = 0;
                for (int d = 0; d < kd; d++) o[c] += exp(sum[i]) * e[i].q[d] * s[d * vd + c];
            }
            for (int j = 0; j <= i; j++) {
                double kk = 0, qk = 0;
                for (int d = 0; d < kd; d++) {
                    kk += e[i].k[d] * e[j].k[d];
                    qk += e[i].q[d] * e[j].k[d];
                }
                const double decay = exp(sum[i] - sum[j]);
                for (int c = 0; j < i && c < vd; c++) u[i][c] -= e[i].beta * decay * kk * u[j][c];
                for (int c = 0; c < vd; c++) o[c] += decay * qk * u[j][c];
            }
            exact_gate(l, r, base + i, head, o,
                       out + sized(base + i, l->v_heads * vd) + (size_t)(head * vd));
        }
        for (int d = 0; d < kd; d++) {
            for (int c = 0; c < vd; c++) {
                double v = exp(sum[rows - 1]) * s[d * vd + c];
                for (int i = 0; i < rows; i++) {
                    v += exp(sum[rows - 1] - sum[i]) * e[i].k[d] * u[i][c];
                }
                s[d * vd + c] = v;
            }
        }
    }
}

typedef void (*exact_fn)(const struct layer *, const struct request *, int, double *, double *);

// Results of a whole request and the state behind it against f64, by the norm of a head.
static void check(const struct layer *l, const struct request *r, const float *got, int state,
                  exact_fn exact, double allowed)
{
    const int wide = l->v_heads * l->v_dim;
    const size_t size = sized(l->k_dim, l->v_dim);
    double *out = malloc(sized(r->len, wide) * sizeof *out), *s = malloc(size * sizeof *s);
    for (int h = 0; h < l->v_heads; h++) {
        double diff = 0, norm = 0;
        exact(l, r, h, out, s);
        for (size_t i = 0; i < size; i++) {
            const double d = (double)state_of(l, state)[(size_t)h * size + i] - s[i];
            diff += d * d, norm += s[i] * s[i];
        }
        assert_true(sqrt(diff) <= allowed * sqrt(norm));
    }
    for (int t = 0; t < r->len; t++) {
        for (int h = 0; h < l->v_heads; h++) {
            double diff = 0, norm = 0;
            for (int c = 0; c < l->v_dim; c++) {
                const size_t at = sized(t, wide) + (size_t)(h * l->v_dim + c);
                diff += ((double)got[at] - out[at]) * ((double)got[at] - out[at]);
                norm += out[at] * out[at];
            }
            assert_true(sqrt(diff) <= allowed * sqrt(norm) + 1e-12);
        }
    }
    free(out), free(s);
}

static void transformers_agrees(void **state)
{
    struct fixture *f = *state;
    uint64_t rng = 1;
    struct layer l = layer_new(&rng, 2, 4, 16, 32);
    struct request r = request_new(&rng, &l, 70);
    const size_t rows = 70 * 4 * 32, all = rows + matrix(&l);
    float *want = malloc(all * sizeof *want);
    FILE *file = fopen(MSGL_SOURCE_DIR "/tests/vectors/delta/qwen3_next.f32", "rb");
    assert_non_null(file);
    assert_int_equal(fread(want, sizeof *want, all, file), all);
    fclose(file);
    float *got = run(f, &l, &(struct part){&r, 0, 70, -1, 0, 0, {{0}}}, 1);
    for (size_t i = 0; i < rows; i++) assert_true(fabsf(got[i] - want[i]) <= 2e-4f);
    for (size_t i = rows; i < all; i++)
        assert_true(fabsf(state_of(&l, 0)[i - rows] - want[i]) <= 2e-5f);
    free(want), free(got), request_free(&r), layer_free(&l);
}

static void recurrence_and_chunks_agree(void **state)
{
    struct fixture *f = *state;
    static const int SHAPES[][5] = {
        {1, 1, 16, 16, 1}, {2, 2, 16, 48, 65}, {1, 3, 80, 16, 130}, {2, 4, 128, 128, 150}};
    for (size_t i = 0; i < MSGL_COUNT(SHAPES); i++) {
        const int *s = SHAPES[i];
        struct layer l = layer_new(&f->rng, s[0], s[1], s[2], s[3]);
        struct request r = request_new(&f->rng, &l, s[4]);
        const size_t n = sized(r.len, channels(&l));
        for (size_t j = 0; i == 1 && j < n; j++) r.qkv[j] *= 0.003f; // the epsilons count
        float *got = run(f, &l, &(struct part){&r, 0, s[4], -1, 3, 0, {{0}}}, 1);
        check(&l, &r, got, 3, exact_recur, 1e-4);
        check(&l, &r, got, 3, exact_chunks, 1e-3);
        free(got), request_free(&r), layer_free(&l);
    }
}

static void recurrence_by_channel_agrees(void **state)
{
    struct fixture *f = *state;
    static const int SHAPES[][4] = {{1, 16, 16, 1}, {2, 48, 80, 65}, {3, 128, 128, 150}};
    for (size_t i = 0; i < MSGL_COUNT(SHAPES); i++) {
        const int *s = SHAPES[i];
        struct layer l = layer_of(&f->rng, s[0], s[0], s[1], s[2], true);
        struct request r = request_new(&f->rng, &l, s[3]);
        float *got = run(f, &l, &(struct part){&r, 0, s[3], -1, 3, 0, {{0}}}, 1);
        check(&l, &r, got, 3, exact_recur, 1e-4);
        free(got), request_free(&r), layer_free(&l);
    }
}

// Whole; in pieces beside other requests; from checkpoints; at all levels; by one thread.
static void check_bits(struct fixture *f, bool kda)
{
    enum { LEN = 150 };
    struct layer l = layer_of(&f->rng, kda ? 4 : 2, 4, 32, 80, kda);
    struct request r = request_new(&f->rng, &l, LEN), other = request_new(&f->rng, &l, 40);
    const int wide = l.v_heads * l.v_dim;
    const size_t bytes = matrix(&l) * sizeof(float), row = (size_t)wide * sizeof(float);
    // Saves in 1, 2 and 3: two of them one behind the other, and the end.
    const struct part whole = {&r, 0, LEN, -1, 0, 3, {{2, 1}, {64, 2}, {LEN, 3}}};
    float *want = run(f, &l, &whole, 1);
    check(&l, &r, want, 0, exact_recur, 1e-4);
    assert_memory_equal(state_of(&l, 0), state_of(&l, 3), bytes);
    for (int level = 0; level <= f->top; level++) {
        f->k = &f->kernels[level];
        f->exec.pool = level % 2 == 0 ? f->one : f->two;
        float *got = run(f, &l, &(struct part){&r, 0, LEN, -1, 4, 0, {{0}}}, 1);
        assert_memory_equal(got, want, LEN * row);
        assert_memory_equal(state_of(&l, 4), state_of(&l, 0), bytes);
        free(got);
    }
    f->k = &f->kernels[f->top];
    f->exec.pool = f->two;
    static const int CUTS[] = {0, 1, 3, 4, 64, 65, 66, 129, LEN};
    for (size_t i = 0; i + 1 < MSGL_COUNT(CUTS); i++) {
        const int begin = CUTS[i], end = CUTS[i + 1];
        const struct part parts[] = {
            {&other, 0, 7 + (int)i, -1, 6, 0, {{0}}},
            {NULL, 4, 6, -1, -1, 0, {{0}}},
            // A save that needs inputs from before the step, which the live state then overwrites.
            {&r, begin, end, begin == 0 ? -1 : 5, 5, begin == 66, {{67, 7}}},
            {&other, 0, 40, -1, 8, 0, {{0}}}};
        float *got = run(f, &l, parts, 4);
        for (int j = 0; j < 2 * wide; j++) assert_true(got[(7 + (int)i) * wide + j] == 0);
        assert_memory_equal(got + (9 + (int)i) * wide, want + begin * wide,
                            (size_t)(end - begin) * row);
        free(got);
    }
    assert_memory_equal(state_of(&l, 5), state_of(&l, 0), bytes);
    static const int CHECKPOINTS[][2] = {{2, 1}, {64, 2}, {67, 7}}; // token, state
    for (size_t i = 0; i < MSGL_COUNT(CHECKPOINTS); i++) {
        const int begin = CHECKPOINTS[i][0];
        const struct part part = {&r, begin, LEN, CHECKPOINTS[i][1], 9, 0, {{0}}};
        for (int twice = 0; twice < 2; twice++) { // it is still there
            float *got = run(f, &l, &part, 1);
            assert_memory_equal(got, want + begin * wide, (size_t)(LEN - begin) * row);
            assert_memory_equal(state_of(&l, 9), state_of(&l, 0), bytes);
            free(got);
        }
    }
    free(want), request_free(&r), request_free(&other), layer_free(&l);
}

static void bits_do_not_depend_on_the_step(void **state)
{
    check_bits(*state, false);
    check_bits(*state, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transformers_agrees),
        cmocka_unit_test(recurrence_and_chunks_agree),
        cmocka_unit_test(recurrence_by_channel_agrees),
        cmocka_unit_test(bits_do_not_depend_on_the_step),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
