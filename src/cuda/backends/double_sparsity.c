// SPDX-License-Identifier: Apache-2.0
//
// double_sparsity on GPUs: triton, and own kernels (cuda/attn/double_sparsity.h) for answers
// of long requests. The device decides which those are, so that captured graphs follow the lengths:
// a graph has the launches of both, and blocks without work end at once. Graphs for short requests
// alone have triton's only.
#include "cuda/backends/double_sparsity.h"

#include "attention/double_sparsity/channels.h"
#include "attention/double_sparsity/double_sparsity.h"
#include "attention/paged.h"
#include "core/mem.h"
#include "cuda/attn/double_sparsity.h"
#include "cuda/attn/double_sparsity/cut.h"
#include "cuda/backends/call.h"
#include "cuda/backends/triton.h"

typedef struct sparse_backend {
    msgl_attn_backend base;
    msgl_attn_config cfg;
    msgl_attn_backend *dense; // triton
    int32_t least;            // keys of a sparse request
    int32_t round;            // requests whose candidates there is room for
    char *memory;             // of all that follows
    size_t memory_bytes;
    uint16_t *channels; // as in msgl_attn_sparse
    uint32_t *orders;   // [round, num_q_heads, room] of candidates
    int32_t *tokens;    // the same
    size_t room;
    int32_t *done; // [round, num_q_heads]
} sparse_backend;

static void sparse_destroy(msgl_attn_backend *base)
{
    sparse_backend *b = (sparse_backend *)base;
    if (b == NULL) return;
    if (b->dense != NULL) b->dense->desc->destroy(b->dense);
    if (b->memory != NULL) b->cfg.dev->ops->free(b->cfg.dev, b->memory, b->memory_bytes);
    msgl__free(b);
}

static size_t channels_bytes(const msgl_attn_sparse *s)
{
    const size_t heads = (size_t)s->dims.num_layers * (size_t)s->dims.num_kv_heads;
    return heads * (size_t)s->heavy_channels * sizeof *s->channels;
}

// Gives all arrays their places from *at on; with at counting from NULL, measures them.
static void carve(sparse_backend *b, char **at)
{
    const msgl_attn_config *cfg = &b->cfg;
    const size_t rows = (size_t)b->round * (size_t)cfg->num_q_heads;
    b->channels = msgl__attn_carve(at, channels_bytes(cfg->sparse));
    b->orders = msgl__attn_carve(at, rows * b->room * sizeof *b->orders);
    b->tokens = msgl__attn_carve(at, rows * b->room * sizeof *b->tokens);
    b->done = msgl__attn_carve(at, rows * sizeof *b->done);
}

static int take_memory(sparse_backend *b, msgl_err *err)
{
    const msgl_device_ops *ops = b->cfg.dev->ops;
    char *at = NULL;
    carve(b, &at);
    b->memory_bytes = (size_t)(uintptr_t)at;
    b->memory = ops->alloc(b->cfg.dev, b->memory_bytes);
    if (b->memory == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM, "double_sparsity: no memory for %zu bytes",
                             b->memory_bytes);
    }
    at = b->memory;
    carve(b, &at);
    ops->copy_in(b->cfg.dev, b->channels, b->cfg.sparse->channels, channels_bytes(b->cfg.sparse));
    return 0;
}

static int sparse_create(const msgl_attn_desc *desc, const msgl_attn_config *cfg,
                         msgl_attn_backend **out, msgl_err *err)
{
    sparse_backend *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "double_sparsity: out of memory");
    const msgl_attn_sparse *s = cfg->sparse;
    b->base.desc = desc;
    b->cfg = *cfg;
    b->least = s->heavy_tokens > s->threshold ? s->heavy_tokens : s->threshold;
    b->room = (size_t)msgl__sparse_room(cfg->num_q_heads / cfg->num_kv_heads, cfg->max_seq_len,
                                        s->heavy_tokens);
    b->round = msgl__sparse_round(cfg, b->room * (sizeof *b->orders + sizeof *b->tokens));
    int rc = msgl__attn_triton_cuda.create(&msgl__attn_triton_cuda, cfg, &b->dense, err);
    if (rc == 0) rc = take_memory(b, err);
    if (rc != 0) {
        sparse_destroy(&b->base);
        return rc;
    }
    *out = &b->base;
    return 0;
}

static int sparse_prepare(msgl_attn_backend *base, const msgl_seqs *seqs)
{
    msgl_attn_backend *dense = ((const sparse_backend *)base)->dense;
    return dense->desc->prepare(dense, seqs);
}

static void sparse_copy_in(msgl_attn_backend *base, msgl_exec *x, const msgl_seqs *seqs)
{
    msgl_attn_backend *dense = ((const sparse_backend *)base)->dense;
    dense->desc->copy_in(dense, x, seqs);
}

static void sparse_begin(msgl_attn_backend *base, msgl_exec *x, const msgl_seqs *seqs)
{
    const sparse_backend *b = (const sparse_backend *)base;
    b->dense->desc->begin(b->dense, x, seqs);
    if (seqs->phase == MSGL_PREFILL) return;
    msgl_sparse_call c = {.dense.attn = {.batch = seqs->size, .seqlens_k = seqs->dev_seqlens_k},
                          .num_kv_splits = msgl__triton_cuda_splits(b->dense),
                          .least = b->least};
    const int code = msgl__cuda_sparse_begin(&c, msgl__cuda_device_stream(x->device));
    msgl__cuda_attn_result(x, "double_sparsity", code);
}

static void sparse_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                           const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    const sparse_backend *b = (const sparse_backend *)base;
    const msgl_attn_config *cfg = &b->cfg;
    void *stream = msgl__cuda_device_stream(x->device);
    const size_t channels = (size_t)layer->layer * (size_t)cfg->num_kv_heads;
    const size_t n = (size_t)cfg->sparse->heavy_channels;
    msgl_sparse_call c = {.labels = msgl__kv_labels(cfg->pool, layer->layer),
                          .channels = b->channels + channels * n,
                          .heavy_channels = cfg->sparse->heavy_channels,
                          .heavy_tokens = cfg->sparse->heavy_tokens,
                          .least = b->least,
                          .round = b->round,
                          .orders = b->orders,
                          .tokens = b->tokens,
                          .room = b->room,
                          .done = b->done};
    msgl__triton_cuda_call(b->dense, layer, seqs, in, out, &c.dense);
    b->dense->desc->forward(b->dense, x, layer, seqs, in, out);
    const bool sparse = seqs->phase == MSGL_DECODE && seqs->max_seqlen_k >= b->least;
    const int code =
        sparse ? msgl__cuda_sparse_decode(&c, stream) : msgl__cuda_sparse_labels(&c, stream);
    msgl__cuda_attn_result(x, "double_sparsity", code);
}

static int32_t sparse_short_seq_len(const msgl_attn_backend *base, int32_t size)
{
    (void)size;
    return ((const sparse_backend *)base)->least - 1;
}

static int sparse_supports(const msgl_attn_needs *needs, msgl_err *err)
{
    const int rc = msgl__cuda_supports(needs, err);
    return rc == 0 ? msgl__sparse_supports(needs, err) : rc;
}

const msgl_attn_desc msgl__attn_sparse_cuda = {
    .name = "double_sparsity",
    .aliases = {NULL},
    .summary = "triton; long requests' answers to a few tokens a head, chosen by a few channels",
    .min_capability = 80,
    .page_rule = MSGL_PAGE_FLATTENED,
    .kv_dtypes = 1u << MSGL_F16 | 1u << MSGL_BF16,
    .softcap = true,
    .labels = true,
    .graph = true,
    .supports = sparse_supports,
    .create = sparse_create,
    .destroy = sparse_destroy,
    .prepare = sparse_prepare,
    .copy_in = sparse_copy_in,
    .begin = sparse_begin,
    .forward = sparse_forward,
    .short_seq_len = sparse_short_seq_len,
};
