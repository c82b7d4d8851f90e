// SPDX-License-Identifier: Apache-2.0
//
// A layer of the gated delta rule on a device, for test and benchmark: weights, states, and calls
// over pieces of requests.
#ifndef MSGL_TESTS_CUDA_DELTA_CASE_CUH
#define MSGL_TESTS_CUDA_DELTA_CASE_CUH

#include <vector>

#include "cuda/delta/delta.h"
#include "tests/cuda/ops_check.cuh"

enum { DELTA_DIM = 128 };

struct delta_layer {
    int k_heads, v_heads;
    bool sigmoid; // gates that are not silu
    array conv, a_log, dt_bias, norm;
    char *states;
    size_t stride; // bytes
    int num_states;
    int channels() const
    {
        return (2 * k_heads + v_heads) * DELTA_DIM;
    }
    size_t matrix() const // elements
    {
        return (size_t)v_heads * DELTA_DIM * DELTA_DIM;
    }
};

// Decays from none to all within a token; sigmoid gates of an odd number of v heads; states of NaN,
// `gap` bytes between them.
static inline delta_layer delta_layer_new(int k_heads, int v_heads, int num_states, size_t gap,
                                          uint64_t *seed)
{
    delta_layer l = {k_heads, v_heads, v_heads % 2 == 1};
    const size_t channels = (size_t)l.channels();
    l.conv = array_new(MSGL_F32, channels * 4, 0.5f, seed);
    l.a_log = array_new(MSGL_F32, (size_t)v_heads, 1, seed);
    l.dt_bias = array_new(MSGL_F32, (size_t)v_heads, 1, seed);
    l.norm = array_new(MSGL_F32, DELTA_DIM, 1, seed);
    for (int h = 0; h < v_heads; h++) {
        l.a_log.host[h] = logf(0.01f + 16 * (float)rng_uniform(seed));
        l.dt_bias.host[h] = -8 + 9 * (float)rng_uniform(seed);
    }
    for (int i = 0; i < DELTA_DIM; i++) l.norm.host[i] = 1 + 0.1f * l.norm.host[i];
    array_upload(&l.a_log);
    array_upload(&l.dt_bias);
    array_upload(&l.norm);
    l.num_states = num_states;
    l.stride = l.matrix() * 4 + channels * 4 * 2 + gap;
    CUDA_OK(cudaMalloc((void **)&l.states, l.stride * (size_t)num_states));
    CUDA_OK(cudaMemset(l.states, 0xff, l.stride * (size_t)num_states));
    return l;
}

static inline void delta_layer_free(delta_layer *l)
{
    array_free(&l->conv), array_free(&l->a_log), array_free(&l->dt_bias), array_free(&l->norm);
    CUDA_OK(cudaFree(l->states));
}

// Tokens [begin, end) of a request.
struct delta_piece {
    int begin, end, from, to;
    std::vector<msgl_kept_state> saves;
};

// Arrays of a call over pieces, on host and device; call.qkv and the rows beside it are the
// caller's to set.
struct delta_step {
    std::vector<int32_t> host; // cu_seqlens_q, seqlens_k, from, to, save_start; then saves
    int32_t *dev;
    msgl_seqs seqs;
    msgl_delta_call call;
};

static inline void delta_step_fill(delta_step *s, const delta_layer &l,
                                   const std::vector<delta_piece> &pieces, msgl_phase phase)
{
    const size_t n = pieces.size();
    s->host.assign(5 * (n + 1), 0);
    for (size_t r = 0; r < n; r++) {
        const delta_piece &p = pieces[r];
        s->host[r + 1] = s->host[r] + p.end - p.begin;
        s->host[(n + 1) + r] = p.end;
        s->host[2 * (n + 1) + r] = p.from, s->host[3 * (n + 1) + r] = p.to;
        s->host[4 * (n + 1) + r + 1] = s->host[4 * (n + 1) + r] + (int32_t)p.saves.size();
    }
    for (const delta_piece &p : pieces) {
        for (const msgl_kept_state &v : p.saves) {
            s->host.push_back(v.len), s->host.push_back(v.state);
        }
    }
    const int32_t *h = s->host.data();
    s->seqs = msgl_seqs{};
    s->seqs.phase = phase, s->seqs.size = (int32_t)n, s->seqs.num_tokens = h[n];
    s->seqs.cu_seqlens_q = h, s->seqs.seqlens_k = h + n + 1;
    const int32_t *d = s->dev;
    s->seqs.dev_cu_seqlens_q = d, s->seqs.dev_seqlens_k = d + n + 1;
    msgl_delta_call &c = s->call;
    c = msgl_delta_call{};
    c.io.seqs = &s->seqs;
    c.k_heads = l.k_heads, c.v_heads = l.v_heads, c.k_dim = c.v_dim = DELTA_DIM;
    c.sigmoid_gate = l.sigmoid;
    c.conv = (float *)l.conv.dev, c.a_log = (float *)l.a_log.dev;
    c.dt_bias = (float *)l.dt_bias.dev, c.norm = (float *)l.norm.dev, c.norm_eps = 1e-6f;
    c.io.base = l.states, c.io.stride = l.stride;
    c.io.at.from = h + 2 * (n + 1), c.io.at.to = h + 3 * (n + 1),
    c.io.at.save_start = h + 4 * (n + 1);
    c.io.at.saves = (const msgl_kept_state *)(h + 5 * (n + 1));
    c.io.at.dev_from = d + 2 * (n + 1), c.io.at.dev_to = d + 3 * (n + 1),
    c.io.at.dev_save_start = d + 4 * (n + 1);
    c.io.at.dev_saves = (const msgl_kept_state *)(d + 5 * (n + 1));
}

static inline void delta_step_upload(delta_step *s)
{
    device_write(s->dev, s->host.data(), s->host.size() * sizeof(int32_t));
}

#endif
