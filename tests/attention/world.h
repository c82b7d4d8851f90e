// SPDX-License-Identifier: Apache-2.0
//
// A small world for attention tests: a pool whose pages are handed out in random order, a page
// table, requests with random q, K and V, and the exact answer in f64. Every slot that no request
// owns or that lies behind its window, the other layer, the rest of the table and what is beside q
// in qkv are poison (NaN, -1).
//
// With a GPU the same data is copied to it before every step, and the result back; activations have
// the pool's dtype there (bf16 beside E4M3), and q is rounded to it.
#ifndef MSGL_TESTS_ATTENTION_WORLD_H
#define MSGL_TESTS_ATTENTION_WORLD_H

#include "attention/attention.h"
#include "attention/double_sparsity/channels.h"
#include "attention/dual_chunk/pattern.h"
#include "kernel/plugin.h"

#define MAX_REQS 40

typedef struct world_spec {
    const msgl_attn_desc *desc;     // or
    const msgl_attn_choice *choice; // a pair
    msgl_cpu_level level;
    msgl_dtype dtype;
    int group, num_kv_heads, head_dim, page_size;
    int v_dim;    // not 0: a latent cache with one K head, the first v_dim elements of which are V
    bool v_apart; // then of V in an array of its own, of as many heads as K
    int max_running, max_seq_len, max_step_tokens;
    int most_new; // only the last so many tokens of a request are ever asked for; 0: any may be
    int threads;
    int samples; // positions of a request that world_error compares, about so many; 0: 24
    float softcap;
    int window;   // -1: off
    int chunk;    // of local attention; 0: off
    int dual_len; // of dual chunk attention: tokens have three queries; 0: off
    // Of sparse prompts with them, which world_error does not know; outlives the world.
    const msgl_dual_pattern *pattern;
    // Double sparsity, of random channels; 0: off. q and K are then quarters, so that scores by
    // label are exact in f32, and often equal.
    int heavy_channels, heavy_tokens, threshold;
    bool sinks;
    bool deterministic, apart;
    bool tree; // new tokens form random trees; at most MSGL_MAX_TREE of a request in a step
    uint32_t masks, scores; // of random mods, with the window and the soft cap; masks 0: no mods
    uint64_t seed;
    msgl_device *dev;          // of a GPU, which outlives the world; NULL: the CPU
    const msgl_plugin *plugin; // whose kernels and backends are used with dev
} world_spec;

// A world's memory on a GPU.
typedef struct world_device {
    msgl_kv_pool pool;
    int32_t *table;
    char *lengths; // two blocks of core/seqs.h
    void *q, *out; // [rows, ld], [rows, out_ld] of exec.act
    float *sinks;  // NULL: none
    void *scratch;
    void *mods; // the tables of world.mods
    uint64_t *tree;
    size_t rows, table_bytes, q_bytes, out_bytes;
    void *staging; // host
    msgl_arena arena;
} world_device;

typedef struct world_req {
    int len;
    // [len, heads, dim], K and V rounded to the pool's dtype and times its scales; V not if latent.
    float *q, *k, *v;
    void *stored[3]; // K, V and labels as the pool holds them
} world_req;

typedef struct world {
    world_spec spec;
    uint64_t rng;
    msgl_kernels kernels;
    msgl_kv_pool pool;
    msgl_page_table table;
    msgl_exec exec;
    msgl_attn_config cfg;
    msgl_attn_layer layer;
    msgl_attn_mods mods; // the layer's, in memory of the device; its tables here:
    char *tables;
    int32_t *documents, *prefixes;
    float *slopes, *bias;
    float *sinks; // [query heads] of the layer, on the host; NULL: none
    msgl_attn_sparse sparse;
    msgl_attn attn;
    msgl_attn_backend *backend; // attn's, where one serves both phases
    world_req reqs[MAX_REQS];
    int *free_pages, num_free;
    size_t ld, q_width, out_ld; // q_width: of q in a row of ld
    float *qkv, *out;           // of the last step
    uint64_t *tree;             // [tokens] or NULL, of the last step
    msgl_batch batch;           // of the last step
    msgl_batch_req batch_reqs[MAX_REQS];
    msgl_seqs seqs[2];
    int num_seqs;
    char *lengths; // what seqs points to: two blocks
    int next_step_slot;
    int graph_size; // of the next world_prepare: for a captured graph of so many requests; 0: none
    world_device gpu;
} world;

typedef struct step_req {
    int req, cached, device;
} step_req;

uint64_t world_random(world *w);
int world_int(world *w, int lo, int hi); // in [lo, hi]
// Whether the tests run in full (MINISGL_TESTS=full, as .ci/nightly has it), and not the part of
// each that fits into the minutes of a commit.
bool world_full(void);

// A small world for tests to change: bfloat16, 2 KV heads of 64 and twice as many query heads,
// pages of 16, no window; on the CPU, with the highest kernels here.
world_spec world_base(const msgl_attn_desc *desc, int max_running, int max_seq_len,
                      int max_step_tokens);
// What layers of its models keep: of a backend for latent caches alone these, pages that it takes.
void world_suit(world_spec *s);
// Whether its backend can have such a world: 0, or MSGL_EUNSUPPORTED with the reason.
int world_supports(const world_spec *s, msgl_err *err);
// Mods with every function now and then, and the window and soft cap of s; some let nothing
// through.
void world_random_mods(world *rng, world_spec *s);
void world_open(world *w, const world_spec *spec);
void world_close(world *w);
// A request of `len` tokens in table row `row`, with pages and poison-free data of its own.
void world_request(world *w, int row, int len);
// Gives the request's pages back and poisons them.
void world_release(world *w, int row);
// Runs prefill (any lengths) or decode (one token each). Results are in w->out, rows in request
// order.
void world_step(world *w, msgl_phase phase, const step_req *reqs, int n);
// The first num_decode requests are answers, one token each.
void world_mixed(world *w, int num_decode, const step_req *reqs, int n);
// The same in two halves, with the batch in w->batch between them.
void world_prepare(world *w, msgl_phase phase, const step_req *reqs, int n);
// Decode of dummy requests only, for a capture.
void world_prepare_dummies(world *w, int n);
void world_forward(world *w);
// What world_forward does, in three parts: inputs to the device, the backend, the output back.
void world_upload(world *w);
void world_attend(world *w);
void world_download(world *w);
// Largest |out - exact| of the last step, over the largest |v| of the batch; fails on NaN. Of long
// requests a sample of the positions is compared, the first and the last included.
double world_error(const world *w, const step_req *reqs, int n);
msgl_dtype world_act(const world *w);                          // of activations on a GPU
double world_tolerance(const char *backend, msgl_dtype dtype); // on the CPU
double world_tolerance_gpu(const world_spec *spec);

#endif
