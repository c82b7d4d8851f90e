// SPDX-License-Identifier: Apache-2.0
//
// triton: SGLang's Triton backend on the CPU, written to be read (docs/internals/triton.md). Pages
// are flattened to token slots. An answer is attended in two stages. Stage 1 cuts each request's
// keys into a few splits (attention/triton/splits.h) and attends to each alone, so that one
// long request has work for every thread: task (request, block of heads, split) leaves a normalised
// sum of V and the logarithm of its weight. Stage 2 merges a head's splits by these.
//
// Chunks, and answers in a step that has both, are attended block of queries by block of queries
// through the same list of slots, by the paged kernel that all CPU backends share.
//
// The batch decides the splits, so results depend on it in the last bits, unless `deterministic`.
//
// Tolerance against exact attention (tests/attention/world.c) as of fi.
#include "attention/triton/triton.h"

#include <math.h>
#include <string.h>

#include "attention/triton/softmax.h"
#include "attention/triton/splits.h"
#include "core/mem.h"

typedef struct triton_backend {
    msgl_attn_backend base;
    msgl_attn_config cfg;
    msgl_attn_workspace ws; // of chunks
    int32_t windows[MSGL_ATTN_MAX_VARIANTS], num_windows;
    void *memory; // of all that follows
    size_t memory_bytes;
    float *attn_logits, *attn_lse; // see msgl_triton_stage
    float *tiles;                  // [threads, 2, TILE, head_dim] K, then V unless it is in K
    msgl_triton_metadata *sets;    // [max_in_flight]
} triton_backend;

// One layer's answers.
typedef struct triton_call {
    const triton_backend *b;
    const msgl_triton_metadata *md;
    const msgl_attn_layer *layer;
    const msgl_seqs *seqs;
    const int32_t *num_kv_splits; // of the layer's window
    const float *q;
    size_t ld;
    float *out;
} triton_call;

static void triton_destroy(msgl_attn_backend *base)
{
    triton_backend *b = (triton_backend *)base;
    if (b == NULL) return;
    msgl__attn_workspace_destroy(&b->ws);
    msgl__pages_free(b->memory, b->memory_bytes);
    msgl__free(b->sets);
    msgl__free(b);
}

// Gives all arrays their places from *at on; with at counting from NULL, measures them.
static void carve(triton_backend *b, char **at)
{
    const msgl_attn_config *cfg = &b->cfg;
    const size_t running = (size_t)cfg->max_running, v_dim = (size_t)cfg->pool->spec.v_dim;
    const size_t splits = running * (size_t)cfg->num_q_heads * MSGL_TRITON_MAX_SPLITS;
    const size_t tile = 2 * MSGL_TRITON_TILE * (size_t)cfg->head_dim;
    b->attn_logits = msgl__attn_carve(at, splits * v_dim * sizeof(float));
    b->attn_lse = msgl__attn_carve(at, splits * sizeof(float));
    b->tiles = msgl__attn_carve(at, (size_t)cfg->num_threads * tile * sizeof(float));
    for (int32_t i = 0; i < cfg->max_in_flight; i++) {
        msgl_triton_metadata *md = &b->sets[i];
        md->kv_indptr = msgl__attn_carve(at, (running + 1) * 4);
        md->kv_indices = msgl__attn_carve(at, running * (size_t)cfg->max_seq_len * 4);
        md->num_kv_splits = msgl__attn_carve(at, (size_t)b->num_windows * running * 4);
        md->plan.works = msgl__attn_carve(at, (size_t)b->ws.max_works * sizeof(msgl_attn_work));
        md->plan.groups = msgl__attn_carve(at, (size_t)b->ws.max_groups * sizeof(msgl_attn_group));
    }
}

static int take_memory(triton_backend *b, msgl_err *err)
{
    char *at = NULL;
    b->sets = msgl__calloc((size_t)b->cfg.max_in_flight, sizeof *b->sets);
    if (b->sets == NULL) return msgl__err_set(err, MSGL_ENOMEM, "triton: out of memory");
    carve(b, &at);
    b->memory_bytes = (size_t)(uintptr_t)at;
    b->memory = msgl__pages_alloc(b->memory_bytes);
    if (b->memory == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM, "triton: no memory for %zu bytes", b->memory_bytes);
    }
    at = b->memory;
    carve(b, &at);
    return 0;
}

static int triton_create(const msgl_attn_desc *desc, const msgl_attn_config *cfg,
                         msgl_attn_backend **out, msgl_err *err)
{
    int rc = msgl__attn_config_check(desc, cfg, err);
    if (rc != 0) return rc;
    if ((int64_t)cfg->max_running * cfg->max_seq_len > INT32_MAX) {
        return msgl__err_set(err, MSGL_ELIMIT,
                             "triton: %d requests of %d tokens exceed its 32-bit index",
                             (int)cfg->max_running, (int)cfg->max_seq_len);
    }
    triton_backend *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "triton: out of memory");
    b->base.desc = desc;
    b->cfg = *cfg;
    b->num_windows = msgl__attn_windows(&cfg->variants, b->windows);
    msgl__attn_workspace_limits(cfg, &b->ws);
    rc = msgl__attn_workspace_create(cfg, &b->ws, err);
    if (rc == 0) rc = take_memory(b, err);
    if (rc != 0) {
        triton_destroy(&b->base);
        return rc;
    }
    *out = &b->base;
    return 0;
}

// How many splits each request's keys are cut into, for one window.
static void count_splits(const triton_backend *b, const msgl_seqs *seqs, int32_t window,
                         int32_t *num_kv_splits)
{
    const msgl_attn_config *cfg = &b->cfg;
    int32_t min = INT32_MAX, max = 1;
    for (int32_t i = 0; i < seqs->size; i++) {
        const int32_t seen = msgl__triton_seen(seqs->seqlens_k[i], window);
        min = seen < min ? seen : min;
        max = seen > max ? seen : max;
    }
    const msgl_triton_chunks chunks =
        msgl__triton_chunks(seqs->size, min, max, cfg->num_q_heads,
                            cfg->num_q_heads / cfg->num_kv_heads, cfg->num_threads);
    for (int32_t i = 0; i < seqs->size; i++) {
        const int32_t seen = msgl__triton_seen(seqs->seqlens_k[i], window);
        num_kv_splits[i] = cfg->deterministic ? msgl__triton_fixed_splits(seen)
                                              : msgl__triton_num_splits(chunks, seen);
    }
}

static int triton_prepare(msgl_attn_backend *base, const msgl_seqs *seqs)
{
    triton_backend *b = (triton_backend *)base;
    msgl_triton_metadata *md = &b->sets[seqs->step_slot];
    msgl__attn_list_slots(b->cfg.page_table, seqs, md->kv_indptr, md->kv_indices);
    if (seqs->phase == MSGL_PREFILL) {
        msgl__attn_plan_tiles(&b->cfg, &b->ws, seqs->size, seqs->cu_seqlens_q, seqs->seqlens_k,
                              NULL, &md->plan);
        return 0;
    }
    for (int32_t w = 0; w < b->num_windows; w++) {
        count_splits(b, seqs, b->windows[w], md->num_kv_splits + (size_t)w * b->cfg.max_running);
    }
    return 0;
}

// Stage 1: a block of up to 16 heads of one KV head, one split of one request's keys.
static void stage1(void *arg, int task, int worker)
{
    const triton_call *c = arg;
    const msgl_attn_config *cfg = &c->b->cfg;
    const msgl_kv_pool *pool = cfg->pool;
    const int group = cfg->num_q_heads / cfg->num_kv_heads, dim = cfg->head_dim;
    const int blocks = msgl__ceil_div(group, MSGL_TRITON_HEADS), v_dim = pool->spec.v_dim;
    const int split = task % MSGL_TRITON_MAX_SPLITS, pair = task / MSGL_TRITON_MAX_SPLITS;
    const int block = pair % blocks, kv_head = pair / blocks % cfg->num_kv_heads;
    const int req = pair / blocks / cfg->num_kv_heads;
    const int32_t len = c->seqs->seqlens_k[req];
    const msgl_triton_range keys = msgl__triton_range(len, msgl__triton_seen(len, c->layer->window),
                                                      c->num_kv_splits[req], split);
    if (keys.begin == keys.end) return;

    const int first = kv_head * group + block * MSGL_TRITON_HEADS;
    const int left = group - block * MSGL_TRITON_HEADS;
    const int heads = left < MSGL_TRITON_HEADS ? left : MSGL_TRITON_HEADS;
    const bool latent = pool->spec.kind == MSGL_CACHE_LATENT;
    const int32_t *slots = c->md->kv_indices + c->md->kv_indptr[req];
    const void *k_pool = msgl__kv_k(pool, c->layer->layer);
    const void *v_pool = msgl__kv_v(pool, c->layer->layer);
    float *k = c->b->tiles + 2 * (size_t)worker * MSGL_TRITON_TILE * (size_t)dim;
    float *v = latent ? k : k + (size_t)MSGL_TRITON_TILE * (size_t)dim;
    msgl_softmax state[MSGL_TRITON_HEADS];
    for (int h = 0; h < heads; h++) {
        const size_t at = ((size_t)req * (size_t)cfg->num_q_heads + (size_t)(first + h)) *
                              MSGL_TRITON_MAX_SPLITS +
                          (size_t)split;
        state[h] = (msgl_softmax){.dim = dim,
                                  .v_dim = v_dim,
                                  .scale = c->layer->scale,
                                  .softcap = c->layer->softcap,
                                  .m = -INFINITY,
                                  .acc = c->b->attn_logits + at * (size_t)v_dim};
        memset(state[h].acc, 0, (size_t)v_dim * sizeof(float));
    }
    for (int32_t key = keys.begin; key < keys.end; key += MSGL_TRITON_TILE) {
        const int n = msgl__triton_min(keys.end - key, MSGL_TRITON_TILE);
        for (int j = 0; j < n; j++) {
            const size_t head =
                (size_t)slots[key + j] * (size_t)cfg->num_kv_heads + (size_t)kv_head;
            msgl__to_f32(k_pool, pool->spec.dtype, head * (size_t)dim, dim,
                         k + (size_t)j * (size_t)dim);
            if (latent) continue;
            msgl__to_f32(v_pool, pool->spec.dtype, head * (size_t)v_dim, v_dim,
                         v + (size_t)j * (size_t)dim);
        }
        for (int h = 0; h < heads; h++) {
            const float *q = c->q + (size_t)req * c->ld + (size_t)(first + h) * (size_t)dim;
            msgl__softmax_tile(&state[h], q, k, v, n);
        }
    }
    for (int h = 0; h < heads; h++) {
        for (int d = 0; d < v_dim; d++) state[h].acc[d] /= state[h].l;
        const size_t row = (size_t)req * (size_t)cfg->num_q_heads + (size_t)(first + h);
        c->b->attn_lse[row * MSGL_TRITON_MAX_SPLITS + (size_t)split] =
            state[h].m + logf(state[h].l);
    }
}

// Stage 2: the splits of one head of one request, weighed by exp(lse), to its result. The sink is
// one more weight without a value; it belongs here, where it counts once.
static void stage2(void *arg, int row, int worker)
{
    (void)worker;
    const triton_call *c = arg;
    const msgl_attn_config *cfg = &c->b->cfg;
    const int v_dim = cfg->pool->spec.v_dim, req = row / cfg->num_q_heads;
    const int32_t len = c->seqs->seqlens_k[req], seen = msgl__triton_seen(len, c->layer->window);
    const float *lse = c->b->attn_lse + (size_t)row * MSGL_TRITON_MAX_SPLITS;
    const float *partial = c->b->attn_logits + (size_t)row * MSGL_TRITON_MAX_SPLITS * (size_t)v_dim;
    float *out = c->out + (size_t)row * (size_t)v_dim;
    const float sink =
        c->layer->sinks != NULL ? c->layer->sinks[row % cfg->num_q_heads] : -INFINITY;
    if (c->num_kv_splits[req] == 0) return;
    float weight[MSGL_TRITON_MAX_SPLITS], m = sink, sum;
    int n = 0; // splits that have keys: the first so many
    while (n < MSGL_TRITON_MAX_SPLITS) {
        const msgl_triton_range r = msgl__triton_range(len, seen, c->num_kv_splits[req], n);
        if (r.begin == r.end) break;
        m = lse[n] > m || isnan(lse[n]) ? lse[n] : m;
        n++;
    }
    sum = expf(sink - m);
    for (int i = 0; i < n; i++) {
        weight[i] = expf(lse[i] - m);
        sum += weight[i];
    }
    memset(out, 0, (size_t)v_dim * sizeof *out);
    for (int i = 0; i < n; i++) {
        msgl__scale_add(out, 1, weight[i] / sum, partial + (size_t)i * (size_t)v_dim, v_dim);
    }
}

static void extend(const triton_backend *b, msgl_exec *x, const msgl_attn_layer *layer,
                   const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    const msgl_triton_metadata *md = &b->sets[seqs->step_slot];
    msgl_attn_call c;
    msgl__attn_call_init(&b->cfg, &b->ws, layer, seqs, in, out, &c);
    c.pages = md->kv_indices;
    c.page_indptr = md->kv_indptr;
    c.page_size = 1;
    c.works = md->plan.works;
    c.groups = md->plan.groups;
    c.num_works = md->plan.num_works;
    c.heads_per_task = md->plan.heads_per_task;
    c.partial_kind = MSGL_ATTN_PARTIAL_TILE;
    const msgl_attn_kernels *k = &b->cfg.kernels->attn;
    k->paged(k, x, &c);
}

static void triton_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                           const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    const triton_backend *b = (const triton_backend *)base;
    const msgl_attn_config *cfg = &b->cfg;
    if (seqs->phase == MSGL_PREFILL) {
        extend(b, x, layer, seqs, in, out);
        return;
    }
    int32_t w = 0;
    while (w < b->num_windows && b->windows[w] != layer->window) w++;
    if (w == b->num_windows) { // a layer that the configuration does not list
        if (x->status == 0) x->status = MSGL_EINVAL;
        return;
    }
    const msgl_triton_metadata *md = &b->sets[seqs->step_slot];
    triton_call c = {.b = b,
                     .md = md,
                     .layer = layer,
                     .seqs = seqs,
                     .num_kv_splits = md->num_kv_splits + (size_t)w * (size_t)cfg->max_running,
                     .q = in->q,
                     .ld = in->ld,
                     .out = out};
    const int group = cfg->num_q_heads / cfg->num_kv_heads;
    const int blocks = msgl__ceil_div(group, MSGL_TRITON_HEADS) * cfg->num_kv_heads;
    msgl__pool_run(x->pool, seqs->size * blocks * MSGL_TRITON_MAX_SPLITS, stage1, &c);
    msgl__pool_run(x->pool, seqs->size * cfg->num_q_heads, stage2, &c);
}

msgl_triton_stage msgl__triton_stage(const msgl_attn_backend *base, int32_t step_slot)
{
    const triton_backend *b = (const triton_backend *)base;
    return (msgl_triton_stage){&b->sets[step_slot], b->attn_logits, b->attn_lse};
}

const msgl_attn_desc msgl__attn_triton = {
    .name = "triton",
    .aliases = {NULL},
    .summary = "SGLang's two stages: splits of the keys, then their merge; written to be read",
    .page_rule = MSGL_PAGE_FLATTENED,
    .caches = 1u << MSGL_CACHE_KV | 1u << MSGL_CACHE_LATENT,
    .max_dim = MSGL_ATTN_MAX_DIM,
    .own_v_dim = true,
    .kv_dtypes = 1u << MSGL_F32 | 1u << MSGL_F16 | 1u << MSGL_BF16,
    .sliding_window = true,
    .softcap = true,
    .sinks = true,
    .tree = true,
    .ragged = true,
    .create = triton_create,
    .destroy = triton_destroy,
    .prepare = triton_prepare,
    .forward = triton_forward,
};
