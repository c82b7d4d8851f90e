// SPDX-License-Identifier: Apache-2.0
//
// Family sample on a GPU: llama.cpp's further samplers choose the tokens that the CPU's kernel
// chooses (which tests/kernel/test_chain.c has checked), and leave the same state of mirostat.
#include <math.h>
#include <string.h>

#include "cuda/device.cuh"
#include "cuda/ops/ops.h"
#include "tests/cuda/cuda_check.cuh"
#include "tests/cuda/family.cuh"

extern "C" {
#include "tests/cuda/chain_cpu.h"
}

enum { BIAS_ROOM = 16, KINDS = 12 };

static uint64_t g_seed;

static int below(int n)
{
    return (int)(splitmix64(&g_seed) % (uint64_t)n);
}

static float unit()
{
    return (float)below(1 << 20) * 0x1p-20f;
}

static float normal()
{
    float sum = -6;
    for (int i = 0; i < 12; i++) sum += unit();
    return sum;
}

// A call's memory: on the host; the device has copies of it.
struct inputs {
    int rows, vocab, stride, words;
    float *logits, *saved, *bias_saved, *mu, *mu_out;
    int32_t *pool, *index, *tokens, *status;
    msgl_sample_row *row;
    msgl_sample_chain *chain;
    msgl_bias *bias;
    uint32_t *breakers;
};

template <typename T> static T *zeros(size_t n)
{
    return (T *)calloc(n > 0 ? n : 1, sizeof(T));
}

// Logits of a kind: many ties, masked ones, all alike, a peak, a bad one, or none of that.
static void fill_logits(float *l, int vocab, int kind)
{
    for (int i = 0; i < vocab; i++) {
        const float v = 2.5f * normal();
        l[i] = kind % 3 == 1 ? 0.5f * roundf(v) : v;
        if (kind % 5 == 2 && i % 3 == 0) l[i] = -INFINITY;
        if (kind % 11 == 10) l[i] = -2;
    }
    if (kind % 7 == 3) l[vocab / 2] = 14;
    if (kind % 17 == 16) l[vocab / 3] = kind % 2 ? NAN : INFINITY;
}

static void fill_filters(msgl_sample_row *p, msgl_sample_chain *c, int kind)
{
    p->temperature = kind % 13 == 12 ? 0 : 0.6f + 0.3f * (float)(kind % 4);
    p->top_k = kind % 3 == 2 ? 1 + below(300) : 0;
    p->top_p = kind % 5 == 4 ? 0.85f : 1;
    p->min_p = kind % 4 == 3 ? 0.02f : 0;
    c->typical_p = kind % 2 ? 0.3f + 0.6f * unit() : 1;
    c->xtc_probability = kind % 3 == 0 ? 0.5f : kind % 7 == 1 ? 1 : 0;
    c->xtc_threshold = kind % 6 == 0 ? 0.02f : kind % 12 == 3 ? 0 : 0.1f;
    c->top_n_sigma = kind % 4 == 1 ? 1.5f : -1;
    c->dynatemp_range = kind % 5 == 0 ? 0.4f : 0;
    c->dynatemp_exponent = 1.5f;
    c->mirostat = kind % KINDS >= 10 ? 2 : 0;
    c->mirostat_tau = 1 + 4 * unit();
    c->mirostat_eta = 0.3f;
}

static void fill_row(inputs *n, int r, int kind)
{
    msgl_sample_row *p = &n->row[r];
    msgl_sample_chain *c = &n->chain[r];
    fill_logits(n->logits + (size_t)r * n->vocab, n->vocab, kind);
    fill_filters(p, c, kind);
    p->seed = splitmix64(&g_seed), p->tokens = c->tokens = r * n->stride;
    p->position = r == 0 ? n->stride - 1 : 1 + below(n->stride - 1);
    p->prompt_len = 1 + below(p->position);
    // Of few tokens, with repeats of what has been.
    for (int i = 0; i < n->stride; i++) {
        const int back = 1 + below(12);
        const bool again = i >= back && below(4) > 0;
        n->pool[p->tokens + i] =
            again ? n->pool[p->tokens + i - back] : below(n->vocab < 9 ? n->vocab : 9);
    }
    if (kind % 9 == 8) {
        for (int i = 0; i < n->stride; i++) n->pool[p->tokens + i] = 1;
    }
    p->adjusts = kind % 2 == 0;
    p->repetition = kind % 4 == 0 ? 1.3f : 1, p->frequency = kind % 6 == 2 ? 0.2f : 0;
    p->presence = kind % 8 == 0 ? 0.5f : 0;
    p->bias = r * BIAS_ROOM, p->num_bias = p->adjusts && n->vocab >= BIAS_ROOM ? BIAS_ROOM : 0;
    for (int i = 0; i < p->num_bias; i++) n->bias[p->bias + i] = msgl_bias{i, normal()};
    c->dry_multiplier = kind % 2 || kind % 8 == 6 ? 0.4f : 0;
    c->dry_base = kind % 5 == 1 ? 1 : 1.2f + unit();
    c->dry_allowed_length = below(4), c->dry_last_n = kind % 7 == 5 ? 20 : -1;
    c->table_idx = n->rows - 1 - r;
    c->breaks = kind % 3 != 0;
    n->breakers[(size_t)c->table_idx * n->words] = c->breaks ? 1u << 5 : ~0u;
    c->mu = kind % 2 ? NAN : 2 * c->mirostat_tau;
    n->mu[c->table_idx] = 4 * unit();
    n->index[r] = p->tokens + p->position;
}

static inputs inputs_new(int rows, int vocab, int stride)
{
    inputs n = {rows, vocab, stride, (vocab + 31) / 32};
    const size_t places = (size_t)rows * stride;
    n.logits = zeros<float>((size_t)rows * vocab), n.saved = zeros<float>(places);
    n.bias_saved = zeros<float>((size_t)rows * BIAS_ROOM);
    n.mu = zeros<float>(rows), n.mu_out = zeros<float>(rows);
    n.pool = zeros<int32_t>(places), n.index = zeros<int32_t>(rows);
    n.tokens = zeros<int32_t>(rows), n.status = zeros<int32_t>(rows);
    n.row = zeros<msgl_sample_row>(rows), n.chain = zeros<msgl_sample_chain>(rows);
    n.bias = zeros<msgl_bias>((size_t)rows * BIAS_ROOM);
    n.breakers = zeros<uint32_t>((size_t)rows * n.words);
    for (int r = 0; r < rows; r++) fill_row(&n, r, r);
    return n;
}

static void inputs_free(inputs *n)
{
    void *const all[] = {n->logits,  n->saved,  n->bias_saved, n->mu,  n->mu_out, n->pool, //
                         n->index,   n->tokens, n->status,     n->row, n->chain,  n->bias, //
                         n->breakers};
    for (void *p : all) free(p);
}

static msgl_sample_call call_of(const inputs *n)
{
    msgl_sample_call c = {};
    c.logits = n->logits, c.ld = (size_t)n->vocab, c.num_rows = n->rows, c.vocab = n->vocab;
    c.rows = n->row, c.tokens = n->tokens, c.status = n->status;
    c.pool = n->pool, c.pool_index = n->index, c.bias = n->bias;
    c.bias_saved = n->bias_saved, c.saved = n->saved;
    c.chains = n->chain, c.mu = n->mu, c.mu_out = n->mu_out, c.breakers = n->breakers;
    return c;
}

static void check(msgl_exec *gpu, family *f, int rows, int vocab, int stride)
{
    inputs n = inputs_new(rows, vocab, stride), d = n;
    const size_t places = (size_t)rows * stride;
    d.logits = (float *)device_copy(n.logits, sizeof(float) * rows * vocab);
    d.saved = (float *)device_copy(n.saved, sizeof(float) * places);
    d.mu = (float *)device_copy(n.mu, sizeof(float) * rows);
    d.mu_out = (float *)device_copy(n.mu_out, sizeof(float) * rows);
    d.pool = (int32_t *)device_copy(n.pool, sizeof(int32_t) * places);
    d.index = (int32_t *)device_copy(n.index, sizeof(int32_t) * rows);
    d.tokens = (int32_t *)device_copy(n.tokens, sizeof(int32_t) * rows);
    d.status = (int32_t *)device_copy(n.status, sizeof(int32_t) * rows);
    d.row = (msgl_sample_row *)device_copy(n.row, sizeof *n.row * rows);
    d.chain = (msgl_sample_chain *)device_copy(n.chain, sizeof *n.chain * rows);
    d.bias = (msgl_bias *)device_copy(n.bias, sizeof *n.bias * rows * BIAS_ROOM);
    d.breakers = (uint32_t *)device_copy(n.breakers, sizeof(uint32_t) * rows * n.words);
    d.bias_saved = NULL;
    const msgl_sample_call on_cpu = call_of(&n), on_gpu = call_of(&d);
    msgl__cuda_chain(gpu, &on_gpu);
    CUDA_OK(cudaStreamSynchronize(msgl__cuda_stream(gpu)));
    expect(f, chain_on_cpu(&on_cpu) == 0 && gpu->status == 0, "the calls");
    int32_t *got = zeros<int32_t>(2 * (size_t)rows), *pool = zeros<int32_t>(places);
    float *mu = zeros<float>(2 * (size_t)rows);
    CUDA_OK(cudaMemcpy(got, d.tokens, sizeof *got * rows, cudaMemcpyDeviceToHost));
    CUDA_OK(cudaMemcpy(got + rows, d.status, sizeof *got * rows, cudaMemcpyDeviceToHost));
    CUDA_OK(cudaMemcpy(mu, d.mu_out, sizeof *mu * rows, cudaMemcpyDeviceToHost));
    CUDA_OK(cudaMemcpy(mu + rows, d.mu, sizeof *mu * rows, cudaMemcpyDeviceToHost));
    CUDA_OK(cudaMemcpy(pool, d.pool, sizeof *pool * places, cudaMemcpyDeviceToHost));
    for (int r = 0; r < rows; r++) {
        expect(f, got[r] == n.tokens[r], "a token");
        expect(f, got[rows + r] == n.status[r], "a status");
        expect_near(f, mu[r], n.mu_out[r], 1e-5, "mirostat's state");
        expect(f, mu[rows + n.chain[r].table_idx] == mu[r], "the state that is kept");
    }
    expect(f, memcmp(pool, n.pool, sizeof *pool * places) == 0, "the token pool");
    void *const all[] = {d.logits, d.saved,  d.mu,  d.mu_out, d.pool, d.index,
                         d.tokens, d.status, d.row, d.chain,  d.bias, d.breakers};
    for (void *p : all) cudaFree(p);
    free(got), free(mu), free(pool), inputs_free(&n);
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);
    g_seed = o.seed;
    static msgl_cuda_device device;
    CUDA_OK(cudaStreamCreate(&device.stream));
    msgl_exec gpu = {};
    gpu.device = &device.base;
    family f = {"chain"};
    check(&gpu, &f, 2 * KINDS, 7, 20);
    check(&gpu, &f, 60, 301, 90);
    check(&gpu, &f, 24, 1003, 700);
    if (!o.quick) {
        check(&gpu, &f, 300, 1003, 300);
        check(&gpu, &f, 120, 32000, 3000);
        check(&gpu, &f, 36, 151936, 30000);
    }
    return family_end(&f);
}
