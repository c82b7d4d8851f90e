// SPDX-License-Identifier: Apache-2.0
//
// Layers of the families with states that take tokens one after the other (conv, ssm, and delta for
// any heads) and what they should make of a request, in f64 on the host.
#ifndef MSGL_TESTS_CUDA_STATES_CASE_CUH
#define MSGL_TESTS_CUDA_STATES_CASE_CUH

#include <algorithm>
#include <vector>

#include "cuda/delta/delta.h"
#include "cuda/states/states.h"
#include "tests/cuda/ops_check.cuh"

enum { NUM_STATES = 16, STATE_GAP = 64 }; // STATE_GAP: bytes between states

struct state_layer {
    enum { CONV, SSM, DELTA } kind;
    msgl_conv_call conv; // what a step does not change; pointers to host memory
    msgl_ssm_call ssm;
    msgl_delta_call delta;
    int in, out;           // columns of a token's inputs, all of them, and of its result
    size_t matrix, stride; // elements of f32 that a state begins with; bytes from one to the next
    int ring, rows;        // columns and rows of the inputs behind them, of activations
    std::vector<array> params;
    char *states;

    const float *param(size_t n, double low, double high, uint64_t *seed)
    {
        array a = array_new(MSGL_F32, n, 1, seed);
        for (size_t i = 0; i < n; i++) a.host[i] = (float)(low + (high - low) * rng_uniform(seed));
        array_upload(&a);
        params.push_back(a);
        return a.host;
    }
    // Where a vector of params is on the device.
    const float *dev(const float *host) const
    {
        for (const array &a : params) {
            if (a.host == host) return (const float *)a.dev;
        }
        return NULL;
    }
};

static inline void layer_states(state_layer *l, msgl_dtype act)
{
    const size_t ring = (size_t)l->ring * l->rows * msgl__dtype_size(act);
    l->stride = l->matrix * sizeof(float) + ring + STATE_GAP;
    CUDA_OK(cudaMalloc((void **)&l->states, l->stride * NUM_STATES));
    CUDA_OK(cudaMemset(l->states, 0xff, l->stride * NUM_STATES));
}

static inline void layer_free(state_layer *l)
{
    for (array &a : l->params) array_free(&a);
    CUDA_OK(cudaFree(l->states));
}

// gates: with before and behind, in front of and behind the inputs of a row, and without silu.
static inline state_layer conv_layer(msgl_dtype act, int channels, int taps, int skip, bool gates,
                                     bool bias, uint64_t *seed)
{
    state_layer l = {};
    l.kind = state_layer::CONV;
    l.in = (gates ? 3 : 1) * channels, l.out = l.ring = channels;
    l.rows = msgl__conv_rows(taps, skip);
    l.conv.channels = channels, l.conv.taps = taps, l.conv.skip = skip, l.conv.silu = !gates;
    l.conv.weight = l.param((size_t)channels * taps, -1, 1, seed);
    if (bias) l.conv.bias = l.param((size_t)channels, -1, 1, seed);
    layer_states(&l, act);
    return l;
}

static inline state_layer ssm_layer(msgl_dtype act, int heads, int groups, int dim, int state,
                                    msgl_ssm_norm norm, int norm_groups, uint64_t *seed)
{
    state_layer l = {};
    const int wide = heads * dim;
    l.kind = state_layer::SSM;
    l.in = 2 * wide + 2 * groups * state + heads, l.out = wide;
    l.matrix = (size_t)wide * state;
    msgl_ssm_call &c = l.ssm;
    c.heads = heads, c.groups = groups, c.head_dim = dim, c.state_dim = state;
    c.a_log = l.param((size_t)heads, -4, 2.75, seed);
    c.d = l.param((size_t)heads, -2, 2, seed);
    c.dt_bias = l.param((size_t)heads, -6, 1, seed);
    c.norm_weight = l.param((size_t)wide, 0.5, 1.5, seed);
    c.dt_min = 0.01f, c.dt_max = 2, c.dt_scale = 0.75f, c.z_scale = 1.25f;
    c.norm = norm, c.norm_groups = norm_groups, c.norm_eps = 1e-5f;
    layer_states(&l, act);
    return l;
}

// kimi: decays of each channel, and sigmoid gates, which `sigmoid` asks for alone.
static inline state_layer delta_layer_any(msgl_dtype act, int k_heads, int v_heads, int k, int v,
                                          bool kimi, bool sigmoid, uint64_t *seed)
{
    state_layer l = {};
    msgl_delta_call &c = l.delta;
    l.kind = state_layer::DELTA;
    c.k_heads = k_heads, c.v_heads = v_heads, c.k_dim = k, c.v_dim = v;
    c.by_channel = kimi, c.sigmoid_gate = kimi || sigmoid;
    const int channels = msgl__delta_channels(&c), decays = v_heads * (kimi ? k : 1);
    l.in = channels + v_heads * v + decays + v_heads, l.out = v_heads * v;
    l.matrix = msgl__delta_matrix_bytes(&c) / sizeof(float), l.ring = channels;
    l.rows = MSGL_DELTA_TAPS;
    c.conv = l.param((size_t)channels * MSGL_DELTA_TAPS, -0.5, 0.5, seed);
    c.a_log = l.param((size_t)v_heads, -4, 2.75, seed);
    c.dt_bias = l.param((size_t)decays, -6, 1, seed);
    c.norm = l.param((size_t)v, 0.5, 1.5, seed);
    c.norm_eps = 1e-6f;
    layer_states(&l, act);
    return l;
}

// A request's inputs, as activations hold them, and what should become of them.
struct state_request {
    int len;
    std::vector<float> in;                   // [len, layer.in]
    std::vector<double> out;                 // [len, layer.out]
    std::vector<std::vector<double>> states; // [len + 1] matrices behind so many tokens
    std::vector<std::vector<float>> ring;    // [len] inputs that a state keeps
};

static inline double silu_f64(double x)
{
    return x / (1 + exp(-x));
}

static inline float rounded(msgl_dtype act, double v)
{
    unsigned char raw[4];
    msgl__store_f32(raw, act, 0, (float)v);
    return msgl__load_f32(raw, act, 0);
}

// The convolution of columns [0, ring) of r->ring behind token t, with silu if asked for.
static inline double convolved(const state_request &r, int t, int channel, const float *weight,
                               int taps, int skip, double bias, bool silu)
{
    double y = bias;
    for (int tap = 0; tap < taps; tap++) {
        const int from = t - (taps - 1 - tap) * (skip + 1);
        if (from >= 0) y += (double)weight[channel * taps + tap] * r.ring[(size_t)from][channel];
    }
    return silu ? silu_f64(y) : y;
}

static inline void exact_conv(const state_layer &l, msgl_dtype act, state_request *r)
{
    const msgl_conv_call &c = l.conv;
    const int n = c.channels;
    const bool gates = l.in > n;
    for (int t = 0; t < r->len; t++) {
        const float *in = &r->in[(size_t)t * l.in];
        for (int i = 0; i < n; i++) {
            r->ring[t][i] = gates ? rounded(act, (double)in[i] * in[n + i]) : in[i];
        }
        for (int i = 0; i < n; i++) {
            const double y = convolved(*r, t, i, c.weight, c.taps, c.skip,
                                       c.bias != NULL ? (double)c.bias[i] : 0, c.silu);
            r->out[(size_t)t * n + i] = gates ? y * (double)in[2 * n + i] : y;
        }
    }
}

static inline void exact_ssm_head(const state_layer &l, state_request *r, int head)
{
    const msgl_ssm_call &c = l.ssm;
    const int dim = c.head_dim, wide = l.out, n = c.state_dim;
    const int group = head / (c.heads / c.groups);
    std::vector<double> s((size_t)dim * n, 0);
    for (int t = 0; t < r->len; t++) {
        const float *in = &r->in[(size_t)t * l.in], *x = in + wide + head * dim;
        const float *b = in + 2 * wide + group * n, *cc = b + c.groups * n;
        const double raw = in[2 * wide + 2 * c.groups * n + head];
        double dt = log1p(exp(raw * c.dt_scale + c.dt_bias[head]));
        dt = fmin(fmax(dt, (double)c.dt_min), (double)c.dt_max);
        const double decay = exp(-dt * exp((double)c.a_log[head]));
        for (int p = 0; p < dim; p++) {
            double y = (double)c.d[head] * x[p];
            for (int i = 0; i < n; i++) {
                double &at = s[(size_t)i * dim + p];
                at = at * decay + dt * x[p] * b[i];
                y += at * cc[i];
            }
            r->out[(size_t)t * wide + head * dim + p] = y;
        }
        std::copy(s.begin(), s.end(), r->states[t + 1].begin() + (ptrdiff_t)(head * dim * n));
    }
}

static inline void exact_ssm(const state_layer &l, state_request *r)
{
    const msgl_ssm_call &c = l.ssm;
    const int groups = c.norm == MSGL_SSM_NORM_NONE ? 1 : c.norm_groups, each = l.out / groups;
    for (int h = 0; h < c.heads; h++) exact_ssm_head(l, r, h);
    for (int t = 0; t < r->len; t++) {
        const float *z = &r->in[(size_t)t * l.in];
        double *y = &r->out[(size_t)t * l.out];
        for (int first = 0; first < l.out; first += each) {
            double sum = 0;
            for (int i = first; i < first + each; i++) {
                const double gate = silu_f64((double)z[i] * c.z_scale);
                if (c.norm != MSGL_SSM_NORM_FIRST) y[i] *= gate;
                sum += y[i] * y[i];
            }
            const double by = 1 / sqrt(sum / each + c.norm_eps);
            for (int i = first; i < first + each && c.norm != MSGL_SSM_NORM_NONE; i++) {
                y[i] *= by * c.norm_weight[i];
                if (c.norm == MSGL_SSM_NORM_FIRST) y[i] *= silu_f64((double)z[i] * c.z_scale);
            }
        }
    }
}

static inline void unit_f64(std::vector<double> *v, double scale)
{
    double sum = 0;
    for (double x : *v) sum += x * x;
    for (double &x : *v) x *= scale / sqrt(sum + 1e-6);
}

static inline void exact_delta_head(const state_layer &l, state_request *r, int head)
{
    const msgl_delta_call &c = l.delta;
    const int dk = c.k_dim, dv = c.v_dim, keys = c.k_heads * dk, channels = l.ring;
    const int k_head = head / (c.v_heads / c.k_heads);
    std::vector<double> s((size_t)dk * dv, 0), q(dk), k(dk), v(dv), o(dv);
    for (int t = 0; t < r->len; t++) {
        const float *in = &r->in[(size_t)t * l.in], *z = in + channels + head * dv;
        const float *a = in + channels + c.v_heads * dv, *b = &in[l.in - c.v_heads];
        const auto mixed = [&](std::vector<double> *to, int first) {
            for (size_t i = 0; i < to->size(); i++)
                (*to)[i] = convolved(*r, t, first + (int)i, c.conv, MSGL_DELTA_TAPS, 0, 0, true);
        };
        mixed(&q, k_head * dk), mixed(&k, keys + k_head * dk), mixed(&v, 2 * keys + head * dv);
        unit_f64(&q, 1 / sqrt((double)dk)), unit_f64(&k, 1);
        const double beta = 1 / (1 + exp(-(double)b[head]));
        std::vector<double> u(dv, 0);
        for (int d = 0; d < dk; d++) {
            const int at = c.by_channel ? head * dk + d : head;
            const double decay =
                exp(-exp((double)c.a_log[head]) * log1p(exp((double)a[at] + c.dt_bias[at])));
            for (int j = 0; j < dv; j++) u[j] += (s[(size_t)d * dv + j] *= decay) * k[d];
        }
        double sum = 0;
        for (int j = 0; j < dv; j++) u[j] = beta * (v[j] - u[j]), o[j] = 0;
        for (int d = 0; d < dk; d++) {
            for (int j = 0; j < dv; j++) o[j] += (s[(size_t)d * dv + j] += k[d] * u[j]) * q[d];
        }
        for (int j = 0; j < dv; j++) sum += o[j] * o[j];
        for (int j = 0; j < dv; j++) {
            const double gate = 1 / (1 + exp(-(double)z[j]));
            r->out[(size_t)t * l.out + head * dv + j] = o[j] / sqrt(sum / dv + c.norm_eps) *
                                                        c.norm[j] *
                                                        (c.sigmoid_gate ? gate : z[j] * gate);
        }
        std::copy(s.begin(), s.end(), r->states[t + 1].begin() + (ptrdiff_t)(head * dk * dv));
    }
}

static inline state_request state_request_new(const state_layer &l, msgl_dtype act, int len,
                                              uint64_t *seed)
{
    state_request r;
    r.len = len;
    r.in.resize((size_t)len * l.in);
    for (float &v : r.in) v = rounded(act, rng_normal(seed));
    r.out.assign((size_t)len * l.out, 0);
    r.states.assign((size_t)len + 1, std::vector<double>(l.matrix));
    r.ring.assign((size_t)len, std::vector<float>(l.ring));
    if (l.kind == state_layer::CONV) {
        exact_conv(l, act, &r);
    } else if (l.kind == state_layer::SSM) {
        exact_ssm(l, &r);
    } else {
        for (int t = 0; t < len; t++)
            std::copy_n(&r.in[(size_t)t * l.in], l.ring, r.ring[t].begin());
        for (int h = 0; h < l.delta.v_heads; h++) exact_delta_head(l, &r, h);
    }
    return r;
}

#endif
