// SPDX-License-Identifier: Apache-2.0
//
// double_sparsity on the CPU (docs/internals/double-sparsity.md): triton, and for long requests'
// answers an attention to few tokens. Scores of all tokens come from labels, a few channels of each
// K that lie together; every query head then attends exactly to the tokens with its largest scores,
// of equal ones to the first.
//
// Labels are written by forward, whatever the phase, so they are wherever K is: in pages that the
// prefix cache shares, and in those of chunks. Whether an answer is sparse depends on its request's
// length alone, not on the batch.
//
// Tolerance against exact attention to the exactly chosen tokens as of triton.
#include "attention/double_sparsity/double_sparsity.h"

#include <math.h>
#include <string.h>

#include "attention/double_sparsity/channels.h"
#include "attention/largest.h"
#include "attention/triton/softmax.h"
#include "attention/triton/triton.h"
#include "core/mem.h"

enum {
    SCORE_BYTES = 64 << 20, // of scores at once, if that holds one request's
    SCORE_KEYS = 1024,      // that one task scores
};

typedef struct sparse_backend {
    msgl_attn_backend base;
    msgl_attn_config cfg;
    msgl_attn_backend *dense[2]; // triton, by phase: a step may have both
    int32_t round;               // requests whose scores there is room for
    void *memory;                // of all that follows
    size_t memory_bytes;
    float *scores;   // [round, num_q_heads, max_seq_len]
    int32_t *tokens; // [threads, heavy_tokens] chosen ones of a head
    float *tiles;    // [threads, 2, TILE, head_dim] K and V, or labels
    int32_t *sparse; // [max_in_flight, max_running + 1]
} sparse_backend;

// One layer.
typedef struct sparse_call {
    const sparse_backend *b;
    const msgl_attn_layer *layer;
    const msgl_seqs *seqs;
    const msgl_triton_metadata *md;
    const float *q;
    size_t ld;
    float *out;
    const int32_t *sparse; // the round's requests
    int32_t score_tasks;   // a request and KV head
} sparse_call;

int32_t msgl__sparse_round(const msgl_attn_config *cfg, size_t head_bytes)
{
    const size_t n = SCORE_BYTES / ((size_t)cfg->num_q_heads * head_bytes);
    return n < 1 ? 1 : n < (size_t)cfg->max_running ? (int32_t)n : cfg->max_running;
}

int msgl__sparse_supports(const msgl_attn_needs *needs, msgl_err *err)
{
    if (needs->sparse != NULL) return 0;
    return msgl__err_set(err, MSGL_EUNSUPPORTED,
                         "attention backend double_sparsity: which channels are heavy? "
                         "`minisgl calibrate --model DIR --text FILE -o CHANNELS` finds out, then "
                         "--ds-channel-config-path CHANNELS");
}

static void sparse_destroy(msgl_attn_backend *base)
{
    sparse_backend *b = (sparse_backend *)base;
    if (b == NULL) return;
    for (int i = 0; i < 2; i++) {
        if (b->dense[i] != NULL) b->dense[i]->desc->destroy(b->dense[i]);
    }
    msgl__pages_free(b->memory, b->memory_bytes);
    msgl__free(b);
}

// Gives all arrays their places from *at on; with at counting from NULL, measures them.
static void carve(sparse_backend *b, char **at)
{
    const msgl_attn_config *cfg = &b->cfg;
    const size_t threads = (size_t)cfg->num_threads, dim = (size_t)cfg->head_dim;
    b->scores = msgl__attn_carve(at, (size_t)b->round * (size_t)cfg->num_q_heads *
                                         (size_t)cfg->max_seq_len * sizeof *b->scores);
    b->tokens = msgl__attn_carve(at, threads * (size_t)cfg->sparse->heavy_tokens * 4);
    b->tiles = msgl__attn_carve(at, threads * 2 * MSGL_TRITON_TILE * dim * sizeof *b->tiles);
    b->sparse =
        msgl__attn_carve(at, (size_t)cfg->max_in_flight * ((size_t)cfg->max_running + 1) * 4);
}

static int sparse_create(const msgl_attn_desc *desc, const msgl_attn_config *cfg,
                         msgl_attn_backend **out, msgl_err *err)
{
    sparse_backend *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "double_sparsity: out of memory");
    b->base.desc = desc;
    b->cfg = *cfg;
    int rc = 0;
    for (int i = 0; i < 2 && rc == 0; i++) {
        rc = msgl__attn_triton.create(&msgl__attn_triton, cfg, &b->dense[i], err);
    }
    if (rc == 0) {
        char *at = NULL;
        b->round = msgl__sparse_round(cfg, (size_t)cfg->max_seq_len * sizeof *b->scores);
        carve(b, &at);
        b->memory_bytes = (size_t)(uintptr_t)at;
        at = b->memory = msgl__pages_alloc(b->memory_bytes);
        if (b->memory != NULL) {
            carve(b, &at);
            *out = &b->base;
            return 0;
        }
        rc = msgl__err_set(err, MSGL_ENOMEM, "double_sparsity: no memory for %zu bytes",
                           b->memory_bytes);
    }
    sparse_destroy(&b->base);
    return rc;
}

// Which answers of the step are sparse: their number, then the index of each.
static int32_t *sparse_of(const sparse_backend *b, const msgl_seqs *seqs)
{
    return b->sparse + (size_t)seqs->step_slot * ((size_t)b->cfg.max_running + 1);
}

static int sparse_prepare(msgl_attn_backend *base, const msgl_seqs *seqs)
{
    const sparse_backend *b = (const sparse_backend *)base;
    msgl_attn_backend *dense = b->dense[seqs->phase];
    const int rc = dense->desc->prepare(dense, seqs);
    if (seqs->phase == MSGL_PREFILL) return rc;
    int32_t *list = sparse_of(b, seqs), n = 0;
    int32_t *splits = msgl__triton_stage(dense, seqs->step_slot).md->num_kv_splits;
    for (int32_t i = 0; i < seqs->size; i++) {
        if (!msgl__attn_is_sparse(b->cfg.sparse, seqs->seqlens_k[i])) continue;
        list[++n] = i;
        splits[i] = 0; // triton leaves it out
    }
    list[0] = n;
    return rc;
}

// Calls fn for every new token of a KV head, with its row and slot.
typedef void (*token_fn)(const sparse_call *c, int head, int32_t row, int32_t slot, float *room);

static void each_token(const sparse_call *c, int head, token_fn fn, float *room)
{
    for (int32_t i = 0; i < c->seqs->size; i++) {
        const int32_t table_row = c->seqs->table_rows[i];
        const int32_t end = c->seqs->cu_seqlens_q[i + 1], len = c->seqs->seqlens_k[i];
        for (int32_t t = c->seqs->cu_seqlens_q[i]; t < end; t++) {
            fn(c, head, t, msgl__page_table_slot(c->b->cfg.page_table, table_row, len - (end - t)),
               room);
        }
    }
}

// Puts the label of a token beside its K.
static void write_label(const sparse_call *c, int head, int32_t row, int32_t slot, float *room)
{
    (void)row;
    (void)room;
    const msgl_attn_config *cfg = &c->b->cfg;
    const msgl_kv_pool *pool = cfg->pool;
    const size_t n = (size_t)cfg->sparse->heavy_channels, size = msgl__dtype_size(pool->spec.dtype);
    const size_t at = (size_t)slot * (size_t)cfg->num_kv_heads + (size_t)head;
    const char *k = (char *)msgl__kv_k(pool, c->layer->layer) + at * (size_t)cfg->head_dim * size;
    char *label = (char *)msgl__kv_labels(pool, c->layer->layer) + at * n * size;
    const uint16_t *channels = msgl__attn_channels(cfg->sparse, c->layer->layer) + (size_t)head * n;
    for (size_t j = 0; j < n; j++) memcpy(label + j * size, k + channels[j] * size, size);
}

// Adds a token's |q| and |k| to the sums of a calibration.
static void add_sums(const sparse_call *c, int head, int32_t row, int32_t slot, float *room)
{
    const msgl_attn_config *cfg = &c->b->cfg;
    const msgl_kv_pool *pool = cfg->pool;
    const size_t dim = (size_t)cfg->head_dim, heads = (size_t)cfg->num_kv_heads;
    const size_t group_dim = (size_t)cfg->num_q_heads / heads * dim;
    const size_t at = (size_t)c->layer->layer * heads + (size_t)head;
    double *sum_k = cfg->sparse->sums.k + at * dim, *sum_q = cfg->sparse->sums.q + at * group_dim;
    const float *q = c->q + (size_t)row * c->ld + (size_t)head * group_dim;
    msgl__to_f32(msgl__kv_k(pool, c->layer->layer), pool->spec.dtype,
                 ((size_t)slot * heads + (size_t)head) * dim, (int)dim, room);
    for (size_t j = 0; j < dim; j++) sum_k[j] += (double)fabsf(room[j]);
    for (size_t j = 0; j < group_dim; j++) sum_q[j] += (double)fabsf(q[j]);
}

// Task: KV head.
static void see_tokens(void *arg, int head, int worker)
{
    const sparse_call *c = arg;
    const bool calibrates = c->b->cfg.sparse->channels == NULL;
    float *room = c->b->tiles + (size_t)worker * 2 * MSGL_TRITON_TILE * (size_t)c->b->cfg.head_dim;
    each_token(c, head, calibrates ? add_sums : write_label, room);
}

static float *scores_of(const sparse_call *c, int32_t index, int head)
{
    const msgl_attn_config *cfg = &c->b->cfg;
    const size_t row = (size_t)index * (size_t)cfg->num_q_heads + (size_t)head;
    return c->b->scores + row * (size_t)cfg->max_seq_len;
}

// Approximate scores: <q, k> over the label's channels. Scale and soft cap would not change their
// order. Task: request of the round, KV head, SCORE_KEYS keys.
static void score(void *arg, int task, int worker)
{
    const sparse_call *c = arg;
    const msgl_attn_config *cfg = &c->b->cfg;
    const msgl_kv_pool *pool = cfg->pool;
    const int n = cfg->sparse->heavy_channels, group = cfg->num_q_heads / cfg->num_kv_heads;
    const int part = task % c->score_tasks, pair = task / c->score_tasks;
    const int head = pair % cfg->num_kv_heads, index = pair / cfg->num_kv_heads;
    const int32_t req = c->sparse[index], len = c->seqs->seqlens_k[req];
    const int32_t begin = part * SCORE_KEYS;
    const int32_t end = len - begin < SCORE_KEYS ? len : begin + SCORE_KEYS;
    const int32_t *slots = c->md->kv_indices + c->md->kv_indptr[req];
    const void *labels = msgl__kv_labels(pool, c->layer->layer);
    const uint16_t *channels =
        msgl__attn_channels(cfg->sparse, c->layer->layer) + (size_t)head * (size_t)n;
    float q[MSGL_ATTN_MAX_DIM];
    float *tile = c->b->tiles + (size_t)worker * 2 * MSGL_TRITON_TILE * (size_t)cfg->head_dim;
    for (int32_t key = begin; key < end; key += MSGL_TRITON_TILE) {
        const int keys = end - key < MSGL_TRITON_TILE ? end - key : MSGL_TRITON_TILE;
        for (int j = 0; j < keys; j++) {
            const size_t at = (size_t)slots[key + j] * (size_t)cfg->num_kv_heads + (size_t)head;
            msgl__to_f32(labels, pool->spec.dtype, at * (size_t)n, n, tile + j * n);
        }
        for (int h = head * group; h < (head + 1) * group; h++) {
            const float *from = c->q + (size_t)req * c->ld + (size_t)h * (size_t)cfg->head_dim;
            for (int j = 0; j < n; j++) q[j] = from[channels[j]];
            float *to = scores_of(c, index, h) + key;
            for (int j = 0; j < keys; j++) to[j] = msgl__dot(q, tile + j * n, n);
        }
    }
}

// Chooses a head's tokens and attends to them. Task: request of the round, query head.
static void attend(void *arg, int task, int worker)
{
    const sparse_call *c = arg;
    const msgl_attn_config *cfg = &c->b->cfg;
    const msgl_kv_pool *pool = cfg->pool;
    const int head = task % cfg->num_q_heads, index = task / cfg->num_q_heads;
    const int dim = cfg->head_dim, kv_head = head / (cfg->num_q_heads / cfg->num_kv_heads);
    const int32_t req = c->sparse[index], n = cfg->sparse->heavy_tokens;
    const int32_t *slots = c->md->kv_indices + c->md->kv_indptr[req];
    const void *k_pool = msgl__kv_k(pool, c->layer->layer);
    const void *v_pool = msgl__kv_v(pool, c->layer->layer);
    int32_t *tokens = c->b->tokens + (size_t)worker * (size_t)n;
    float *k = c->b->tiles + (size_t)worker * 2 * MSGL_TRITON_TILE * (size_t)dim;
    float *v = k + (size_t)MSGL_TRITON_TILE * (size_t)dim;
    const float *q = c->q + (size_t)req * c->ld + (size_t)head * (size_t)dim;
    const size_t row = (size_t)req * (size_t)cfg->num_q_heads + (size_t)head;
    msgl_softmax s = {.dim = dim,
                      .v_dim = dim,
                      .scale = c->layer->scale,
                      .softcap = c->layer->softcap,
                      .m = -INFINITY,
                      .acc = c->out + row * (size_t)dim};
    msgl__attn_largest(scores_of(c, index, head), c->seqs->seqlens_k[req], n, tokens);
    memset(s.acc, 0, (size_t)dim * sizeof *s.acc);
    for (int32_t at = 0; at < n; at += MSGL_TRITON_TILE) {
        const int keys = n - at < MSGL_TRITON_TILE ? n - at : MSGL_TRITON_TILE;
        for (int j = 0; j < keys; j++) {
            const size_t from =
                ((size_t)slots[tokens[at + j]] * (size_t)cfg->num_kv_heads + (size_t)kv_head) *
                (size_t)dim;
            msgl__to_f32(k_pool, pool->spec.dtype, from, dim, k + (size_t)j * (size_t)dim);
            msgl__to_f32(v_pool, pool->spec.dtype, from, dim, v + (size_t)j * (size_t)dim);
        }
        msgl__softmax_tile(&s, q, k, v, keys);
    }
    for (int d = 0; d < dim; d++) s.acc[d] /= s.l;
}

static void sparse_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                           const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    const sparse_backend *b = (const sparse_backend *)base;
    const msgl_attn_config *cfg = &b->cfg;
    msgl_attn_backend *dense = b->dense[seqs->phase];
    sparse_call c = {.b = b,
                     .layer = layer,
                     .seqs = seqs,
                     .md = msgl__triton_stage(dense, seqs->step_slot).md,
                     .q = in->q,
                     .ld = in->ld,
                     .out = out,
                     .score_tasks = msgl__ceil_div(seqs->max_seqlen_k, SCORE_KEYS)};
    msgl__pool_run(x->pool, cfg->num_kv_heads, see_tokens, &c);
    const int32_t *list = sparse_of(b, seqs);
    const int32_t n = seqs->phase == MSGL_DECODE ? *list++ : 0;
    if (n < seqs->size) dense->desc->forward(dense, x, layer, seqs, in, out);
    for (int32_t i = 0; i < n; i += b->round) {
        const int32_t size = n - i < b->round ? n - i : b->round;
        c.sparse = list + i;
        msgl__pool_run(x->pool, size * cfg->num_kv_heads * c.score_tasks, score, &c);
        msgl__pool_run(x->pool, size * cfg->num_q_heads, attend, &c);
    }
}

const msgl_attn_desc msgl__attn_sparse = {
    .name = "double_sparsity",
    .aliases = {NULL},
    .summary = "triton; long requests' answers to a few tokens a head, chosen by a few channels",
    .page_rule = MSGL_PAGE_FLATTENED,
    .kv_dtypes = 1u << MSGL_F32 | 1u << MSGL_F16 | 1u << MSGL_BF16,
    .softcap = true,
    .labels = true,
    .supports = msgl__sparse_supports,
    .create = sparse_create,
    .destroy = sparse_destroy,
    .prepare = sparse_prepare,
    .forward = sparse_forward,
};
