// SPDX-License-Identifier: Apache-2.0
//
// fi: FlashInfer's interface on the CPU. The kernel sees pages of 1: all requests' slots in one
// ragged list. plan() cuts the batch into a balanced split-KV list, once per batch, at the first
// forward; partial results are merged by log-sum-exp in base 2. The batch decides the cuts, so
// results depend on it in the last bits, unless `deterministic` (no cuts).
//
// On a GPU the number of workers is SM count times occupancy; here it is threads times
// WORKERS_PER_THREAD.
//
// Tolerance against exact attention (tests/attention/world.c), over the largest |v|: bf16 KV 4e-3
// (levels from AVX-512-BF16 on round q and probabilities to bf16), f16 and f32 2e-6.
#include "attention/fi/fi.h"

#include <string.h>

#include "attention/fi/tensor_cores.h"
#include "core/mem.h"

enum {
    WORKERS_PER_THREAD = 16, // so that a slow core leaves work to the others
    TASKS_PER_THREAD = 4,    // at least, when tasks take several heads
};

typedef struct fi_backend {
    msgl_attn_backend base;
    msgl_attn_config cfg;
    msgl_attn_workspace ws;
    msgl_fi_plan_limits limits;
    void *memory; // metadata of all slots
    size_t memory_bytes;
    msgl_fi_metadata *slots; // [num_slots]
    void *graph_memory;      // NULL before init_capture
    size_t graph_bytes;
    msgl_fi_metadata graph;
    int32_t graph_max_bs, graph_max_len;
} fi_backend;

// Takes the arrays of one metadata set from *at; with at counting from NULL, measures them.
static void carve(const fi_backend *b, int32_t max_bs, int32_t max_len, int32_t max_tokens,
                  uintptr_t *at, msgl_fi_metadata *md)
{
    const size_t works = (size_t)b->limits.max_works, bs = (size_t)max_bs;
    const struct {
        void **to;
        size_t size;
    } arrays[] = {
        {(void **)&md->qo_indptr, (bs + 1) * 4},
        {(void **)&md->kv_indptr, (bs + 1) * 4},
        {(void **)&md->last_page_len, bs * 4},
        {(void **)&md->kv_len, bs * 4},
        {(void **)&md->plan.request_indices, works * 4},
        {(void **)&md->plan.qo_tile_indices, works * 4},
        {(void **)&md->plan.kv_tile_indices, works * 4},
        {(void **)&md->plan.block_valid_mask, works},
        {(void **)&md->plan.o_indptr, (bs + 1) * 4},
        {(void **)&md->plan.merge_indptr, ((size_t)max_tokens + 1) * 4},
        {(void **)&md->works, works * sizeof *md->works},
        {(void **)&md->groups, works * sizeof *md->groups},
        {(void **)&md->indices, bs * (size_t)max_len * 4},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        *arrays[i].to = (void *)*at;
        *at += (arrays[i].size + 63) & ~(size_t)63;
    }
}

static size_t set_bytes(const fi_backend *b, int32_t max_bs, int32_t max_len, int32_t max_tokens)
{
    msgl_fi_metadata unused;
    uintptr_t at = 0;
    carve(b, max_bs, max_len, max_tokens, &at, &unused);
    return (size_t)at;
}

static void fi_destroy(msgl_attn_backend *base)
{
    fi_backend *b = (fi_backend *)base;
    if (b == NULL) return;
    msgl__attn_workspace_destroy(&b->ws);
    msgl__pages_free(b->memory, b->memory_bytes);
    msgl__pages_free(b->graph_memory, b->graph_bytes);
    msgl__free(b->slots);
    msgl__free(b);
}

static int set_limits(fi_backend *b, msgl_err *err)
{
    const msgl_attn_config *cfg = &b->cfg;
    b->limits = (msgl_fi_plan_limits){.group = cfg->num_q_heads / cfg->num_kv_heads,
                                      .num_kv_heads = cfg->num_kv_heads,
                                      .head_dim = cfg->head_dim,
                                      .max_grid = cfg->num_threads * WORKERS_PER_THREAD,
                                      .fixed_chunk = cfg->deterministic ? cfg->max_seq_len : 0};
    const int64_t works = msgl__fi_max_works(&b->limits, cfg->max_running, cfg->max_step_tokens);
    if (works > INT32_MAX / 64) {
        return msgl__err_set(err, MSGL_ELIMIT, "fi: %d tokens per step are too many",
                             (int)cfg->max_step_tokens);
    }
    b->limits.max_works = (int32_t)works;
    // Only a split list writes parts, and it has at most this many items.
    const int32_t split = b->limits.max_grid / cfg->num_kv_heads;
    b->ws = (msgl_attn_workspace){.max_works = (int32_t)works,
                                  .max_groups = (int32_t)works,
                                  .max_parts = split > 1 ? split : 1,
                                  .part_rows = MSGL_FI_MAX_Q_TILE};
    return 0;
}

// The variable is read for its errors only, so that a script's mistake shows on every machine.
static int fi_supports(const msgl_attn_needs *needs, msgl_err *err)
{
    (void)needs;
    bool unused;
    return msgl__fi_tensor_cores(&unused, err);
}

static const char *fi_remark(void)
{
    return msgl__fi_tensor_cores_set() ? "FLASHINFER_USE_TENSOR_CORES has no effect on the CPU"
                                       : NULL;
}

static int fi_create(const msgl_attn_config *cfg, msgl_attn_backend **out, msgl_err *err)
{
    int rc = msgl__attn_config_check(cfg, err);
    if (rc != 0) return rc;
    if ((int64_t)cfg->max_running * cfg->max_seq_len > INT32_MAX) {
        return msgl__err_set(err, MSGL_ELIMIT,
                             "fi: %d requests of %d tokens exceed its 32-bit index",
                             (int)cfg->max_running, (int)cfg->max_seq_len);
    }
    fi_backend *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "fi: out of memory");
    b->base.desc = &msgl__attn_fi;
    b->cfg = *cfg;
    rc = set_limits(b, err);
    if (rc == 0) rc = msgl__attn_workspace_create(cfg, &b->ws, err);
    if (rc != 0) goto fail;
    const size_t set = set_bytes(b, cfg->max_running, cfg->max_seq_len, cfg->max_step_tokens);
    b->memory_bytes = set * (size_t)cfg->num_slots;
    b->slots = msgl__calloc((size_t)cfg->num_slots, sizeof *b->slots);
    b->memory = msgl__pages_alloc(b->memory_bytes);
    if (b->slots == NULL || b->memory == NULL) {
        rc = msgl__err_set(err, MSGL_ENOMEM, "fi: no memory for %zu bytes", b->memory_bytes);
        goto fail;
    }
    for (int32_t i = 0; i < cfg->num_slots; i++) {
        uintptr_t at = (uintptr_t)b->memory + (size_t)i * set;
        carve(b, cfg->max_running, cfg->max_seq_len, cfg->max_step_tokens, &at, &b->slots[i]);
    }
    *out = &b->base;
    return 0;
fail:
    fi_destroy(&b->base);
    return rc;
}

static void add_request(const fi_backend *b, msgl_fi_metadata *md, int32_t i, int32_t table_idx,
                        int32_t q_len, int32_t kv_len)
{
    md->qo_indptr[i + 1] = md->qo_indptr[i] + q_len;
    md->kv_indptr[i + 1] = md->kv_indptr[i] + kv_len;
    md->kv_len[i] = kv_len;
    md->last_page_len[i] = 1;
    memcpy(md->indices + md->kv_indptr[i], msgl__page_table_row(b->cfg.page_table, table_idx),
           (size_t)kv_len * sizeof(int32_t));
}

static int fi_prepare_metadata(msgl_attn_backend *base, msgl_batch *batch)
{
    fi_backend *b = (fi_backend *)base;
    msgl_fi_metadata *md = &b->slots[batch->slot];
    md->bs = batch->size;
    md->graph = md->planned = false;
    md->qo_indptr[0] = md->kv_indptr[0] = 0;
    for (int32_t i = 0; i < md->bs; i++) {
        const msgl_batch_req *r = &batch->reqs[i];
        add_request(b, md, i, r->table_idx, msgl__extend_len(r), r->device_len);
    }
    batch->attn_metadata = md;
    return 0;
}

// The plan as work items: part and item have the same number, and the chunks of a query tile are
// neighbours.
static void list_works(const fi_backend *b, msgl_fi_metadata *md)
{
    const msgl_fi_plan *p = &md->plan;
    int32_t group = -1;
    for (int32_t n = 0; n < p->padded_works; n++) {
        msgl_attn_work *w = &md->works[n];
        *w = (msgl_attn_work){.part = -1};
        if (!p->block_valid_mask[n]) continue; // no rows: skipped
        const int32_t i = p->request_indices[n], chunk = p->kv_tile_indices[n];
        const int32_t rows = (md->qo_indptr[i + 1] - md->qo_indptr[i]) * b->limits.group;
        const int32_t left = md->kv_len[i] - chunk * p->kv_chunk_size;
        w->req = i;
        w->row = p->qo_tile_indices[n] * p->q_tile;
        w->rows = rows - w->row < p->q_tile ? rows - w->row : p->q_tile;
        w->kv_begin = chunk * p->kv_chunk_size;
        w->kv_end = w->kv_begin + (left < p->kv_chunk_size ? left : p->kv_chunk_size);
        if (md->kv_len[i] <= p->kv_chunk_size) continue; // the only chunk writes the output
        if (chunk == 0) {
            md->groups[++group] =
                (msgl_attn_group){.req = i, .row = w->row, .rows = w->rows, .part = n};
        }
        md->groups[group].num_parts++;
        md->groups[group].num_works++;
        w->part = n;
        w->group = group;
    }
}

// Once per batch, at the first layer: the metadata was made on the scheduler's thread, which plans
// nothing.
static int make_plan(const fi_backend *b, msgl_fi_metadata *md)
{
    msgl_fi_plan_limits l = b->limits;
    l.graph = md->graph;
    const int rc = msgl__fi_plan(&l, md->bs, md->qo_indptr, md->kv_indptr, &md->plan);
    if (rc != 0) return rc;
    list_works(b, md);
    // Few rows: tasks of several KV heads, which read K and V in the order of memory, as long as
    // every thread gets some.
    int32_t rows = 0;
    for (int32_t n = 0; n < md->plan.num_works; n++) {
        if (md->works[n].rows > rows) rows = md->works[n].rows;
    }
    const int64_t tasks = (int64_t)TASKS_PER_THREAD * b->cfg.num_threads;
    md->heads_per_task = msgl__attn_heads_per_task(
        (int32_t)(md->plan.num_works * (int64_t)b->cfg.num_kv_heads / tasks), b->cfg.num_kv_heads,
        rows, b->cfg.head_dim);
    md->planned = true;
    return 0;
}

static void fi_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                       const msgl_batch *batch, const void *q, size_t ld, void *out)
{
    fi_backend *b = (fi_backend *)base;
    msgl_fi_metadata *md = batch->attn_metadata;
    if (!md->planned) {
        const int rc = make_plan(b, md);
        if (rc != 0) {
            if (x->status == 0) x->status = rc;
            return;
        }
    }
    msgl_attn_call c;
    msgl__attn_call_init(&b->cfg, &b->ws, layer, q, ld, out, &c);
    c.pages = md->indices;
    c.page_indptr = md->kv_indptr;
    c.page_size = 1;
    c.cu_seqlens_q = md->qo_indptr;
    c.seqlens_k = md->kv_len;
    c.works = md->works;
    c.groups = md->groups;
    c.num_works = md->plan.padded_works;
    c.heads_per_task = md->heads_per_task;
    c.part_kind = MSGL_ATTN_PART_LSE2;
    const msgl_attn_kernels *k = &b->cfg.kernels->attn;
    k->paged(k, x, &c);
}

static void fi_last_indices(const msgl_attn_backend *base, const msgl_batch *batch, int32_t *out)
{
    (void)base;
    const msgl_fi_metadata *md = batch->attn_metadata;
    for (int32_t i = 0; i < batch->size; i++) out[i] = md->qo_indptr[i + 1] - 1;
}

static int fi_init_capture(msgl_attn_backend *base, int32_t max_seq_len, const int32_t *batch_sizes,
                           int32_t num_sizes, msgl_err *err)
{
    fi_backend *b = (fi_backend *)base;
    int32_t max_bs = 0;
    for (int32_t i = 0; i < num_sizes; i++) {
        if (batch_sizes[i] > max_bs) max_bs = batch_sizes[i];
    }
    if (b->graph_memory != NULL || max_bs < 1 || max_bs > b->cfg.max_running || max_seq_len < 1 ||
        max_seq_len > b->cfg.max_seq_len) {
        return msgl__err_set(
            err, MSGL_EINVAL, "fi: capture of batch size %d and length %d is not within %d and %d",
            (int)max_bs, (int)max_seq_len, (int)b->cfg.max_running, (int)b->cfg.max_seq_len);
    }
    b->graph_bytes = set_bytes(b, max_bs, max_seq_len, max_bs);
    b->graph_memory = msgl__pages_alloc(b->graph_bytes);
    if (b->graph_memory == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM, "fi: no memory for %zu bytes", b->graph_bytes);
    }
    uintptr_t at = (uintptr_t)b->graph_memory;
    carve(b, max_bs, max_seq_len, max_bs, &at, &b->graph);
    b->graph.graph = true;
    b->graph_max_bs = max_bs;
    b->graph_max_len = max_seq_len;
    return 0;
}

static int fi_prepare_for_capture(msgl_attn_backend *base, msgl_batch *batch)
{
    fi_backend *b = (fi_backend *)base;
    msgl_fi_metadata *g = &b->graph;
    if (batch->padded_size > b->graph_max_bs) return MSGL_ELIMIT;
    g->bs = batch->padded_size;
    g->qo_indptr[0] = g->kv_indptr[0] = 0;
    for (int32_t i = 0; i < g->bs; i++) add_request(b, g, i, b->cfg.page_table->max_running, 1, 1);
    batch->attn_metadata = g;
    return make_plan(b, g);
}

// The grid is fixed at capture; a replay plans again into the same buffers.
static int fi_prepare_for_replay(msgl_attn_backend *base, msgl_batch *batch)
{
    fi_backend *b = (fi_backend *)base;
    const msgl_fi_metadata *md = batch->attn_metadata;
    msgl_fi_metadata *g = &b->graph;
    if (batch->padded_size > b->graph_max_bs) return MSGL_ELIMIT;
    g->bs = batch->padded_size;
    g->qo_indptr[0] = g->kv_indptr[0] = 0;
    for (int32_t i = 0; i < g->bs; i++) {
        const bool real = i < md->bs;
        if (real && md->kv_len[i] > b->graph_max_len) return MSGL_ELIMIT;
        const int32_t row = real ? batch->reqs[i].table_idx : b->cfg.page_table->max_running;
        add_request(b, g, i, row, 1, real ? md->kv_len[i] : 1);
    }
    batch->attn_metadata = g;
    return make_plan(b, g);
}

const msgl_attn_desc msgl__attn_fi = {
    .name = "fi",
    .aliases = {"flashinfer", NULL},
    .summary = "FlashInfer: ragged token indices, balanced split-KV plan per batch",
    .devices = 1u << MSGL_DEVICE_CPU,
    .page_rule = MSGL_PAGE_FLATTENED,
    .kv_dtypes = 1u << MSGL_F32 | 1u << MSGL_F16 | 1u << MSGL_BF16,
    .sliding_window = true,
    .softcap = true,
    .graph = true,
    .supports = fi_supports,
    .remark = fi_remark,
    .create = fi_create,
    .destroy = fi_destroy,
    .prepare_metadata = fi_prepare_metadata,
    .forward = fi_forward,
    .last_indices = fi_last_indices,
    .init_capture = fi_init_capture,
    .prepare_for_capture = fi_prepare_for_capture,
    .prepare_for_replay = fi_prepare_for_replay,
};
