// SPDX-License-Identifier: Apache-2.0
//
// Families conv and ssm against their formulas in f64; cuts of a prompt, states saved and begun
// with, and padding. What a token gets must be the same to the bit however it was cut, whatever
// else is in the step, on any number of threads and at any ISA level.
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

enum { GAP = 3 };

// A layer of either family: `call` is what a step does not change.
struct layer {
    bool is_ssm;
    msgl_conv_call conv;
    msgl_ssm_call ssm;
    int in, out; // columns of a token's inputs, all of them, and of its result
    float *weights[4];
    char *states;
    size_t stride, bytes; // from a state to the next; of one
};

struct request {
    int len;
    float *in; // [len, layer.in]
};

static void make_states(struct layer *l)
{
    l->stride = l->bytes + 5 * sizeof(float);
    l->states = states_new(l->stride);
}

// gates: with before and behind, in front of and behind the inputs of a row.
static struct layer conv_new(uint64_t *rng, int channels, int taps, int skip, bool gates, bool bias)
{
    struct layer l = {.in = (gates ? 3 : 1) * channels, .out = channels};
    l.weights[0] = uniform(rng, -1, 1, (size_t)(channels * taps));
    l.weights[1] = uniform(rng, -1, 1, (size_t)channels);
    l.conv = (msgl_conv_call){.channels = channels,
                              .taps = taps,
                              .skip = skip,
                              .weight = l.weights[0],
                              .bias = bias ? l.weights[1] : NULL,
                              .silu = !gates};
    l.bytes = msgl__conv_state_bytes(channels, msgl__conv_rows(taps, skip), MSGL_F32);
    make_states(&l);
    return l;
}

static struct layer ssm_new(uint64_t *rng, int heads, int groups, int dim, int state,
                            msgl_ssm_norm norm, int norm_groups)
{
    const int wide = heads * dim;
    const size_t n = (size_t)heads;
    struct layer l = {.is_ssm = true, .in = 2 * wide + 2 * groups * state + heads, .out = wide};
    l.weights[0] = uniform(rng, -4, 2.75f, n);
    l.weights[1] = uniform(rng, -2, 2, n);
    l.weights[2] = uniform(rng, -6, 1, n);
    l.weights[3] = uniform(rng, 0.5f, 1.5f, (size_t)wide);
    l.ssm = (msgl_ssm_call){.heads = heads,
                            .groups = groups,
                            .head_dim = dim,
                            .state_dim = state,
                            .a_log = l.weights[0],
                            .d = l.weights[1],
                            .dt_bias = l.weights[2],
                            .dt_min = 0.01f,
                            .dt_max = 2,
                            .dt_scale = 0.75f,
                            .z_scale = 1.25f,
                            .norm = norm,
                            .norm_weight = l.weights[3],
                            .norm_eps = 1e-5f,
                            .norm_groups = norm_groups};
    l.bytes = msgl__ssm_state_bytes(heads, dim, state);
    make_states(&l);
    return l;
}

static void layer_free(struct layer *l)
{
    for (int i = 0; i < 4; i++) free(l->weights[i]);
    free(l->states);
}

static struct request request_new(uint64_t *rng, const struct layer *l, int len)
{
    return (struct request){.len = len, .in = uniform(rng, -2, 2, (size_t)(len * l->in))};
}

static const char *state_of(const struct layer *l, int state)
{
    return l->states + (size_t)state * l->stride;
}

static void call(struct fixture *f, const struct layer *l, const msgl_states *io, const float *in,
                 size_t ld, float *out, size_t ld_out)
{
    if (!l->is_ssm) {
        msgl_conv_call c = l->conv;
        const bool gates = l->in > c.channels;
        c.io = *io, c.ld_in = ld, c.out = out, c.ld_out = ld_out;
        c.in = in + (gates ? c.channels : 0);
        if (gates) c.before = in, c.behind = in + 2 * c.channels;
        f->k->conv.run(&f->exec, &c);
        return;
    }
    msgl_ssm_call c = l->ssm;
    c.io = *io, c.ld_x = c.ld_z = ld, c.out = out, c.ld_out = ld_out;
    c.z = in, c.x = in + l->out, c.b = in + 2 * l->out;
    c.c = in + 2 * l->out + c.groups * c.state_dim;
    c.dt = in + 2 * l->out + 2 * c.groups * c.state_dim;
    f->k->ssm.run(&f->exec, &c);
}

// A step; returns its rows of results, [tokens, out], to be freed. Rows of the call lie apart with
// NaN between them.
static float *run(struct fixture *f, const struct layer *l, const struct part *parts, int n)
{
    struct parts p;
    const msgl_states io = parts_lay(&p, parts, n, l->states, l->stride);
    const size_t rows = (size_t)p.cu[n], ld = (size_t)(l->in + GAP),
                 ld_out = (size_t)(l->out + GAP);
    float *in = malloc(rows * ld * sizeof *in), *out = malloc(rows * ld_out * sizeof *out);
    memset(in, 0xff, rows * ld * sizeof *in);
    memset(out, 0xff, rows * ld_out * sizeof *out);
    for (int i = 0; i < n; i++) {
        const struct part *part = &parts[i];
        for (int t = part->begin; part->r != NULL && t < part->end; t++) {
            memcpy(in + (size_t)(p.cu[i] + t - part->begin) * ld, part->r->in + t * l->in,
                   (size_t)l->in * sizeof *in);
        }
    }
    call(f, l, &io, in, ld, out, ld_out);
    float *got = malloc(rows * (size_t)l->out * sizeof *got);
    for (size_t t = 0; t < rows; t++) {
        memcpy(got + t * (size_t)l->out, out + t * ld_out, (size_t)l->out * sizeof *got);
        for (size_t i = (size_t)l->out; i < ld_out; i++) assert_true(isnan(out[t * ld_out + i]));
    }
    free(in), free(out);
    return got;
}

static double silu(double x)
{
    return x / (1 + exp(-x));
}

// out [len, out]
static void exact_conv(const struct layer *l, const struct request *r, double *out)
{
    const msgl_conv_call *c = &l->conv;
    const bool gates = l->in > c->channels;
    const int n = c->channels;
    for (int t = 0; t < r->len; t++) {
        for (int ch = 0; ch < n; ch++) {
            double y = c->bias != NULL ? (double)c->bias[ch] : 0;
            for (int tap = 0; tap < c->taps; tap++) {
                const int from = t - (c->taps - 1 - tap) * (c->skip + 1);
                if (from < 0) continue;
                const float *in = r->in + from * l->in;
                const double x = gates ? (double)in[ch] * (double)in[n + ch] : (double)in[ch];
                y += (double)c->weight[ch * c->taps + tap] * x;
            }
            if (c->silu) y = silu(y);
            out[t * n + ch] = gates ? y * (double)r->in[t * l->in + 2 * n + ch] : y;
        }
    }
}

// y of one head, [len, out] at its columns, and S behind the last token.
static void exact_head(const struct layer *l, const struct request *r, int head, double *out,
                       double *s)
{
    const msgl_ssm_call *c = &l->ssm;
    const int dim = c->head_dim, wide = l->out, n = c->state_dim;
    const int group = head / (c->heads / c->groups);
    memset(s, 0, (size_t)(dim * n) * sizeof *s);
    for (int t = 0; t < r->len; t++) {
        const float *in = r->in + t * l->in, *x = in + wide + head * dim;
        const float *b = in + 2 * wide + group * n, *cc = b + c->groups * n;
        const double raw = (double)in[2 * wide + 2 * c->groups * n + head];
        double dt = log1p(exp(raw * (double)c->dt_scale + (double)c->dt_bias[head]));
        dt = fmin(fmax(dt, (double)c->dt_min), (double)c->dt_max);
        const double decay = exp(-dt * exp((double)c->a_log[head]));
        for (int p = 0; p < dim; p++) {
            double y = (double)c->d[head] * (double)x[p];
            for (int i = 0; i < n; i++) {
                double *at = s + i * dim + p;
                *at = *at * decay + dt * (double)x[p] * (double)b[i];
                y += *at * (double)cc[i];
            }
            out[t * wide + head * dim + p] = y;
        }
    }
}

static void exact_gate(const struct layer *l, const struct request *r, double *out)
{
    const msgl_ssm_call *c = &l->ssm;
    const int each = l->out / c->norm_groups;
    for (int t = 0; t < r->len; t++) {
        double *y = out + t * l->out;
        const float *z = r->in + t * l->in;
        for (int first = 0; first < l->out; first += each) {
            double sum = 0;
            for (int i = first; i < first + each; i++) {
                const double gate = silu((double)z[i] * (double)c->z_scale);
                if (c->norm != MSGL_SSM_NORM_FIRST) y[i] *= gate;
                sum += y[i] * y[i];
            }
            if (c->norm == MSGL_SSM_NORM_NONE) continue;
            for (int i = first; i < first + each; i++) {
                y[i] *= (double)c->norm_weight[i] / sqrt(sum / each + (double)c->norm_eps);
                if (c->norm == MSGL_SSM_NORM_FIRST) y[i] *= silu((double)z[i] * (double)c->z_scale);
            }
        }
    }
}

static void check_close(const double *want, const float *got, int n, double allowed)
{
    double diff = 0, norm = 0;
    for (int i = 0; i < n; i++) {
        diff += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        norm += want[i] * want[i];
    }
    assert_true(sqrt(diff) <= allowed * sqrt(norm)); // no NaN either
}

// Results of a whole request and the state behind it, in `state`, against f64.
static void check(const struct layer *l, const struct request *r, const float *got, int state)
{
    double *out = malloc((size_t)(r->len * l->out) * sizeof *out);
    if (l->is_ssm) {
        const int size = l->ssm.head_dim * l->ssm.state_dim;
        double *s = malloc((size_t)size * sizeof *s);
        for (int head = 0; head < l->ssm.heads; head++) {
            exact_head(l, r, head, out, s);
            check_close(s, (const float *)state_of(l, state) + head * size, size, 1e-5);
        }
        exact_gate(l, r, out);
        free(s);
    } else {
        exact_conv(l, r, out);
    }
    for (int t = 0; t < r->len; t++) check_close(out + t * l->out, got + t * l->out, l->out, 2e-5);
    free(out);
}

static void check_layer(struct fixture *f, struct layer l, int len)
{
    struct request r = request_new(&f->rng, &l, len);
    float *got = run(f, &l, &(struct part){&r, 0, len, -1, 3, 0, {{0}}}, 1);
    check(&l, &r, got, 3);
    free(got), free(r.in), layer_free(&l);
}

static void conv_is_its_formula(void **state)
{
    struct fixture *f = *state;
    check_layer(f, conv_new(&f->rng, 16, 2, 0, true, false), 1);
    check_layer(f, conv_new(&f->rng, 48, 3, 0, true, false), 20);
    check_layer(f, conv_new(&f->rng, 272, 3, 0, true, true), 9);
    check_layer(f, conv_new(&f->rng, 528, 4, 0, false, true), 33);
    check_layer(f, conv_new(&f->rng, 32, 4, 0, false, false), 5);
    check_layer(f, conv_new(&f->rng, 48, 4, 2, false, false), 40);
    check_layer(f, conv_new(&f->rng, 16, 2, 7, true, true), 30);
}

static void ssm_is_its_formula(void **state)
{
    struct fixture *f = *state;
    check_layer(f, ssm_new(&f->rng, 1, 1, 16, 16, MSGL_SSM_NORM_GATED, 1), 1);
    check_layer(f, ssm_new(&f->rng, 4, 2, 16, 12, MSGL_SSM_NORM_NONE, 1), 70);
    check_layer(f, ssm_new(&f->rng, 6, 3, 80, 32, MSGL_SSM_NORM_FIRST, 3), 40);
    check_layer(f, ssm_new(&f->rng, 4, 1, 64, 128, MSGL_SSM_NORM_GATED, 2), 150);
}

static void check_cuts(struct fixture *f, const struct layer *l, const struct request *r,
                       const struct request *other, const float *want)
{
    static const int CUTS[] = {0, 1, 3, 4, 64, 65, 66, 129, 150};
    const size_t row = (size_t)l->out * sizeof(float);
    for (size_t i = 0; i + 1 < MSGL_COUNT(CUTS); i++) {
        const int begin = CUTS[i], end = CUTS[i + 1];
        const struct part parts[] = {
            {other, 0, 7 + (int)i, -1, 6, 0, {{0}}},
            {NULL, 4, 6, -1, -1, 0, {{0}}},
            // A save that needs inputs from before the step, which the live state then overwrites.
            {r, begin, end, begin == 0 ? -1 : 5, 5, begin == 66, {{67, 7}}},
            {other, 0, 40, -1, 8, 0, {{0}}}};
        float *got = run(f, l, parts, 4);
        for (int j = 0; j < 2 * l->out; j++) assert_true(got[(7 + (int)i) * l->out + j] == 0);
        assert_memory_equal(got + (9 + (int)i) * l->out, want + begin * l->out,
                            (size_t)(end - begin) * row);
        free(got);
    }
}

// Whole; in pieces beside other requests; from saved states; at all levels; by one thread.
static void check_bits(struct fixture *f, struct layer l)
{
    enum { LEN = 150 };
    struct request r = request_new(&f->rng, &l, LEN), other = request_new(&f->rng, &l, 40);
    const size_t row = (size_t)l.out * sizeof(float);
    // Saves in 1, 2 and 3: two of them one behind the other, and the end.
    const struct part whole = {&r, 0, LEN, -1, 0, 3, {{2, 1}, {64, 2}, {LEN, 3}}};
    float *want = run(f, &l, &whole, 1);
    check(&l, &r, want, 0);
    for (int level = 0; level <= f->top; level++) {
        f->k = &f->kernels[level];
        f->exec.pool = level % 2 == 0 ? f->one : f->two;
        float *got = run(f, &l, &(struct part){&r, 0, LEN, -1, 4, 0, {{0}}}, 1);
        assert_memory_equal(got, want, LEN * row);
        free(got);
    }
    f->k = &f->kernels[f->top];
    f->exec.pool = f->two;
    check_cuts(f, &l, &r, &other, want);
    // What a state holds of a convolution beside the inputs that are still read is nobody's.
    static const int KEPT[][2] = {{2, 1}, {64, 2}, {67, 7}}; // token, state
    for (size_t i = 0; i < MSGL_COUNT(KEPT); i++) {
        const int begin = KEPT[i][0];
        const struct part part = {&r, begin, LEN, KEPT[i][1], 9, 0, {{0}}};
        for (int twice = 0; twice < 2; twice++) { // it is still there
            float *got = run(f, &l, &part, 1);
            assert_memory_equal(got, want + begin * l.out, (size_t)(LEN - begin) * row);
            free(got);
        }
    }
    if (l.is_ssm) {
        assert_memory_equal(state_of(&l, 0), state_of(&l, 3), l.bytes);
        assert_memory_equal(state_of(&l, 5), state_of(&l, 0), l.bytes);
        assert_memory_equal(state_of(&l, 9), state_of(&l, 0), l.bytes);
    }
    free(want), free(r.in), free(other.in), layer_free(&l);
}

static void bits_do_not_depend_on_the_step(void **state)
{
    struct fixture *f = *state;
    check_bits(f, conv_new(&f->rng, 272, 3, 0, true, false));
    check_bits(f, conv_new(&f->rng, 48, 4, 0, false, true));
    check_bits(f, conv_new(&f->rng, 272, 4, 2, false, false));
    check_bits(f, conv_new(&f->rng, 16, 4, 7, false, true));
    check_bits(f, ssm_new(&f->rng, 4, 2, 80, 24, MSGL_SSM_NORM_GATED, 2));
    check_bits(f, ssm_new(&f->rng, 3, 1, 16, 16, MSGL_SSM_NORM_FIRST, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conv_is_its_formula),
        cmocka_unit_test(ssm_is_its_formula),
        cmocka_unit_test(bits_do_not_depend_on_the_step),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
