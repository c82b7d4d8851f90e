// SPDX-License-Identifier: Apache-2.0
//
// dual_chunk_flash_attn on GPUs. Prompts have kernels that take a row's queries in turn: on Hopper
// fa's, by a plan, else one of their own. To fa's decode kernel an answer is three requests, one
// for each range of its keys, whose tables begin with the range and whose queries lie one behind
// the other as they do anyway; their results are merged by log-sum-exp. Lengths and beginnings of
// the ranges are made on the device once a step, so a captured graph only needs new lengths. A
// step, or graph, whose requests are all within their first chunk calls the decode kernel as fa
// does.
#include "cuda/backends/dual_chunk.h"

#include "attention/dual_chunk/pattern.h"
#include "attention/paged.h"
#include "core/mem.h"
#include "core/round.h"
#include "cuda/attn/decode.h"
#include "cuda/attn/dual.h"
#include "cuda/attn/dual_sparse.h"
#include "cuda/backends/call.h"
#include "cuda/backends/plan_prefill.h"

typedef struct dual_backend {
    msgl_attn_backend base;
    msgl_attn_config cfg;
    char *memory; // of all that follows
    size_t memory_bytes;
    void *workspace;         // of the decode kernel
    msgl_dual_ranges ranges; // of a step's answers
    float *lse;              // what a layer's ranges leave
    void *results;
    // With a pattern: its counts [layers, num_q_heads, 2] and rotations, and a piece's workspace.
    int32_t *counts;
    float *rotations;
    void *sparse;
    // Of prompts, where their kernel takes plans: those, and the bytes of each [max_in_flight].
    msgl_cuda_plans plans;
    size_t *used;
} dual_backend;

static size_t counts_bytes(const msgl_dual_pattern *p)
{
    return (size_t)p->num_layers * (size_t)p->num_q_heads * 2 * sizeof(int32_t);
}

static void dual_destroy(msgl_attn_backend *base)
{
    dual_backend *b = (dual_backend *)base;
    if (b == NULL) return;
    if (b->memory != NULL) b->cfg.dev->ops->free(b->cfg.dev, b->memory, b->memory_bytes);
    msgl__cuda_plans_destroy(&b->plans);
    msgl__free(b->used);
    msgl__free(b);
}

// Gives all arrays their places from *at on; with at counting from NULL, measures them.
static void carve(dual_backend *b, char **at)
{
    const msgl_attn_config *cfg = &b->cfg;
    const int32_t ranges = cfg->max_running * MSGL_DUAL_QUERIES;
    const size_t rows = (size_t)ranges * (size_t)cfg->num_q_heads;
    const size_t elem = msgl__dtype_size(cfg->pool->spec.dtype);
    b->workspace =
        msgl__attn_carve(at, msgl__fa_decode_workspace(cfg->num_q_heads, cfg->num_kv_heads,
                                                       cfg->head_dim, ranges, cfg->deterministic));
    b->ranges.seqlens_k = msgl__attn_carve(at, (size_t)ranges * 4);
    b->ranges.firsts = msgl__attn_carve(at, (size_t)ranges * 4);
    b->lse = msgl__attn_carve(at, rows * sizeof *b->lse);
    b->results = msgl__attn_carve(at, rows * (size_t)cfg->head_dim * elem);
    if (cfg->pattern == NULL) return;
    b->counts = msgl__attn_carve(at, counts_bytes(cfg->pattern));
    b->rotations = msgl__attn_carve(at, 4 * (size_t)cfg->pattern->half * sizeof *b->rotations);
    b->sparse = msgl__attn_carve(
        at, msgl__cuda_dual_sparse_workspace(cfg->num_q_heads, cfg->head_dim, cfg->max_seq_len));
}

// The pattern to the device.
static int copy_pattern(const dual_backend *b, msgl_err *err)
{
    const msgl_dual_pattern *p = b->cfg.pattern;
    const msgl_device_ops *ops = b->cfg.dev->ops;
    const size_t n = (size_t)p->num_layers * (size_t)p->num_q_heads;
    int32_t *counts = msgl__calloc(n, 2 * sizeof *counts);
    if (counts == NULL) return msgl__err_set(err, MSGL_ENOMEM, "sparse prompts: out of memory");
    for (size_t i = 0; i < n; i++) {
        counts[2 * i] = msgl__dual_columns(&p->heads[i]);
        counts[2 * i + 1] = p->heads[i].distances;
    }
    ops->copy_in(b->cfg.dev, b->counts, counts, counts_bytes(p));
    ops->copy_in(b->cfg.dev, b->rotations, p->rotations,
                 4 * (size_t)p->half * sizeof *b->rotations);
    msgl__free(counts);
    return 0;
}

static bool plans(const dual_backend *b)
{
    return msgl__dual_plans(b->cfg.dev->capability, b->cfg.head_dim);
}

static int take_plans(dual_backend *b, msgl_err *err)
{
    const msgl_attn_config *cfg = &b->cfg;
    if (!plans(b)) return 0;
    // A request has as many ends of chunks as fit, and one more.
    const int32_t pieces = 2 * cfg->max_running + cfg->max_step_tokens / cfg->dual_len;
    const int code =
        msgl__cuda_plans_create(cfg, "dual_chunk_flash_attn",
                                msgl__fa_plan_prefill_size(cfg->num_q_heads, cfg->num_kv_heads,
                                                           pieces, cfg->max_step_tokens),
                                &b->plans, err);
    if (code != 0) return code;
    b->used = msgl__calloc((size_t)cfg->max_in_flight, sizeof *b->used);
    return b->used != NULL
               ? 0
               : msgl__err_set(err, MSGL_ENOMEM, "dual_chunk_flash_attn: out of memory");
}

static int dual_create(const msgl_attn_desc *desc, const msgl_attn_config *cfg,
                       msgl_attn_backend **out, msgl_err *err)
{
    const int code = msgl__attn_config_check(desc, cfg, err);
    if (code != 0) return code;
    if ((cfg->max_running + INT64_C(1)) * (int64_t)cfg->device_table_stride > INT32_MAX) {
        return msgl__err_set(err, MSGL_ELIMIT,
                             "dual_chunk_flash_attn: %d requests of %d tokens exceed its 32-bit "
                             "index",
                             (int)cfg->max_running, (int)cfg->max_seq_len);
    }
    dual_backend *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "dual_chunk_flash_attn: out of memory");
    b->base.desc = desc;
    b->cfg = *cfg;
    b->plans.dev = cfg->dev;
    char *at = NULL;
    carve(b, &at);
    b->memory_bytes = (size_t)(uintptr_t)at;
    b->memory = cfg->dev->ops->alloc(cfg->dev, b->memory_bytes);
    if (b->memory == NULL) {
        msgl__err_set(err, MSGL_ENOMEM, "dual_chunk_flash_attn: no memory for %zu bytes",
                      b->memory_bytes);
        dual_destroy(&b->base);
        return MSGL_ENOMEM;
    }
    at = b->memory;
    carve(b, &at);
    int rest = cfg->pattern != NULL ? copy_pattern(b, err) : 0;
    if (rest == 0) rest = take_plans(b, err);
    if (rest != 0) {
        dual_destroy(&b->base);
        return rest;
    }
    *out = &b->base;
    return 0;
}

static int dual_supports(const msgl_attn_needs *needs, msgl_err *err)
{
    const int code = msgl__cuda_supports(needs, err);
    if (code != 0) return code;
    if (msgl__fa_decode_fits(needs->kv_dtype, needs->head_dim)) return 0;
    return msgl__err_set(err, MSGL_EUNSUPPORTED,
                         "attention backend dual_chunk_flash_attn: no kernel for head_dim %d in %s",
                         (int)needs->head_dim, msgl__dtype_name(needs->kv_dtype));
}

// Whether a request of these answers may have keys beyond its own chunk.
static bool has_ranges(const dual_backend *b, const msgl_seqs *seqs)
{
    return seqs->phase == MSGL_DECODE && seqs->max_seqlen_k > b->cfg.dual_len;
}

// Requests whose prompts follow piece by piece.
static msgl_dual_sparse left_out(const dual_backend *b)
{
    const msgl_dual_pattern *p = b->cfg.pattern;
    if (p == NULL) return (msgl_dual_sparse){INT32_MAX, INT32_MAX};
    return (msgl_dual_sparse){p->prompts.last, p->prompts.threshold};
}

static int dual_prepare(msgl_attn_backend *base, const msgl_seqs *seqs)
{
    dual_backend *b = (dual_backend *)base;
    const msgl_attn_config *cfg = &b->cfg;
    if (!plans(b) || seqs->phase == MSGL_DECODE) return 0;
    const msgl_dual_sparse sparse = left_out(b);
    const msgl_fa_prefill_batch p = {.num_q_heads = cfg->num_q_heads,
                                     .num_kv_heads = cfg->num_kv_heads,
                                     .head_dim = cfg->head_dim,
                                     .elem_size = (int32_t)msgl__dtype_size(cfg->pool->spec.dtype),
                                     .window = -1,
                                     .l2_bytes = msgl__cuda_device_l2_bytes(cfg->dev),
                                     .batch = seqs->size,
                                     .cu_seqlens_q = seqs->cu_seqlens_q,
                                     .seqlens_k = seqs->seqlens_k,
                                     .table_rows = seqs->table_rows,
                                     .dual_len = cfg->dual_len,
                                     .left_out = &sparse};
    b->used[seqs->step_slot] =
        msgl__fa_plan_prefill(&p, msgl__cuda_plan(&b->plans, seqs->step_slot));
    return 0;
}

static void dual_copy_in(msgl_attn_backend *base, msgl_exec *x, const msgl_seqs *seqs)
{
    const dual_backend *b = (const dual_backend *)base;
    (void)x;
    if (!plans(b) || seqs->phase == MSGL_DECODE) return;
    msgl__cuda_plans_copy(&b->plans, seqs->step_slot, 0, b->used[seqs->step_slot]);
}

static void dual_begin(msgl_attn_backend *base, msgl_exec *x, const msgl_seqs *seqs)
{
    const dual_backend *b = (const dual_backend *)base;
    if (!has_ranges(b, seqs)) return;
    const msgl_cuda_attn_call c = {.batch = seqs->size,
                                   .seqlens_k = seqs->dev_seqlens_k,
                                   .table_rows = seqs->dev_table_rows,
                                   .table_stride = b->cfg.device_table_stride};
    msgl__cuda_attn_result(x, "dual_chunk_flash_attn",
                           msgl__cuda_dual_ranges(&c, b->cfg.dual_len, &b->ranges,
                                                  msgl__cuda_device_stream(x->device)));
}

static int decode_ranges(const dual_backend *b, const msgl_cuda_attn_call *c, void *stream)
{
    const int32_t len = b->cfg.dual_len, earlier = c->max_seqlen_k - len;
    msgl_cuda_attn_call ranges = *c, merge = *c;
    ranges.ld_q = ranges.ld_out = (size_t)c->num_q_heads * (size_t)c->head_dim;
    ranges.out = b->results;
    ranges.lse = merge.lse = b->lse;
    ranges.batch = ranges.total_q = c->batch * MSGL_DUAL_QUERIES;
    ranges.seqlens_k = b->ranges.seqlens_k;
    ranges.table_rows = b->ranges.firsts;
    ranges.table_stride = 1;
    ranges.max_seqlen_k = earlier > len ? earlier : len;
    const int code = msgl__cuda_fa_decode(&ranges, stream);
    return code != 0 ? code : msgl__cuda_dual_merge(&merge, len, b->results, stream);
}

// Chunks of prompts: by one kernel, but for sparse ones, which follow piece by piece.
static int prefill(const dual_backend *b, const msgl_cuda_attn_call *c,
                   const msgl_attn_layer *layer, const msgl_seqs *seqs, void *stream)
{
    const msgl_dual_pattern *p = b->cfg.pattern;
    int code = msgl__cuda_dual_prefill(c, b->cfg.dual_len, left_out(b), stream);
    for (int32_t i = 0; i < seqs->size && code == 0; i++) {
        const int32_t rows = seqs->cu_seqlens_q[i + 1] - seqs->cu_seqlens_q[i];
        const int32_t len = seqs->seqlens_k[i], dual_len = b->cfg.dual_len;
        if (!msgl__sparse_prompt(p, rows, len)) continue;
        msgl_sparse_piece piece = {.req = i,
                                   .row = seqs->cu_seqlens_q[i],
                                   .dual_len = dual_len,
                                   .last = p->prompts.last,
                                   .counts = b->counts +
                                             (size_t)layer->layer * (size_t)p->num_q_heads * 2,
                                   .rotations = b->rotations,
                                   .half = p->half,
                                   .workspace = b->sparse};
        for (int32_t at = len - rows; at < len && code == 0; at = piece.end) {
            const int32_t chunk_end = (at / dual_len + 1) * dual_len;
            piece.begin = at;
            piece.end = chunk_end < len ? chunk_end : len;
            code = msgl__cuda_dual_sparse_prompt(c, &piece, stream);
            piece.row += piece.end - at;
        }
    }
    return code;
}

static void dual_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                         const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    const dual_backend *b = (const dual_backend *)base;
    const msgl_attn_config *cfg = &b->cfg;
    void *stream = msgl__cuda_device_stream(x->device);
    if (!msgl__cuda_attn_dtype(x, cfg)) return;
    msgl_cuda_attn_call c;
    msgl__cuda_attn_call(cfg, layer, seqs, in, out, &c);
    if (in->ld != MSGL_DUAL_QUERIES * c.ld_out) { // queries as the contract has them
        if (x->status == 0) x->status = MSGL_EINVAL;
        return;
    }
    c.workspace = b->workspace;
    c.plan = b->plans.device;   // or NULL
    c.first = c.second = false; // the merge reads what the decode kernel writes
    const int code = seqs->phase != MSGL_DECODE ? prefill(b, &c, layer, seqs, stream)
                     : has_ranges(b, seqs)      ? decode_ranges(b, &c, stream)
                                                : msgl__cuda_fa_decode(&c, stream);
    msgl__cuda_attn_result(x, "dual_chunk_flash_attn", code);
}

// Requests within their first chunk need neither ranges nor merge.
static int32_t dual_short_seq_len(const msgl_attn_backend *base, int32_t size)
{
    (void)size;
    return ((const dual_backend *)base)->cfg.dual_len;
}

const msgl_attn_desc msgl__attn_dual_chunk_cuda = {
    .name = "dual_chunk_flash_attn",
    .aliases = {NULL},
    .summary =
        "dual chunk attention of Qwen2.5-1M: fa's kernels, whose queries differ by ranges of keys",
    .min_capability = 80,
    .page_rule = MSGL_PAGE_ANY,
    .kv_dtypes = 1u << MSGL_F16 | 1u << MSGL_BF16,
    .dual_chunk = true,
    .graph = true,
    .supports = dual_supports,
    .create = dual_create,
    .destroy = dual_destroy,
    .prepare = dual_prepare,
    .copy_in = dual_copy_in,
    .begin = dual_begin,
    .forward = dual_forward,
    .short_seq_len = dual_short_seq_len,
};
