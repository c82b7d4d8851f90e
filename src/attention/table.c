// SPDX-License-Identifier: Apache-2.0
#include "attention/table.h"

#include <string.h>

#include "core/mem.h"

typedef struct msgl_table_backend {
    msgl_attn_backend base;
    msgl_attn_config cfg;
    msgl_attn_workspace ws;
    void *tables; // metadata of all slots
    size_t tables_bytes;
    msgl_table_metadata *slots; // [num_slots]
    void *graph_tables;         // metadata of captured graphs, NULL before init_capture
    size_t graph_bytes;
    msgl_table_metadata graph;
    int32_t graph_max_bs;
} msgl_table_backend;

static int32_t pages_of(const msgl_table_backend *b, int32_t len)
{
    return (int32_t)(((int64_t)len + b->cfg.page_size - 1) / b->cfg.page_size);
}

// Bytes of one metadata set for up to max_bs requests of max_seq_len keys; 0 on overflow.
static size_t metadata_bytes(const msgl_table_backend *b, int32_t max_bs, int32_t max_seq_len)
{
    size_t table;
    if (msgl__size_mul((size_t)max_bs * 4, (size_t)pages_of(b, max_seq_len), &table) != 0) return 0;
    const size_t seqlens = 3 * (((size_t)max_bs + 1) * 4 + 64);
    const size_t works = (size_t)b->ws.max_works * sizeof(msgl_attn_work);
    const size_t groups = (size_t)b->ws.max_groups * sizeof(msgl_attn_group);
    size_t n;
    if (msgl__size_add(table, seqlens + works + groups + 256, &n) != 0) return 0;
    return (n + 63) & ~(size_t)63;
}

static void metadata_carve(const msgl_table_backend *b, int32_t max_bs, int32_t max_seq_len,
                           char *at, msgl_table_metadata *md)
{
    const size_t n = ((size_t)max_bs + 1) * 4;
    md->table_width = pages_of(b, max_seq_len);
    md->cu_seqlens_q = msgl__attn_carve(&at, n);
    md->cu_seqlens_k = msgl__attn_carve(&at, n);
    md->cache_seqlens = msgl__attn_carve(&at, n);
    md->plan.works = msgl__attn_carve(&at, (size_t)b->ws.max_works * sizeof(msgl_attn_work));
    md->plan.groups = msgl__attn_carve(&at, (size_t)b->ws.max_groups * sizeof(msgl_attn_group));
    md->page_table = msgl__attn_carve(&at, (size_t)max_bs * (size_t)md->table_width * 4);
}

void msgl__table_destroy(msgl_attn_backend *base)
{
    msgl_table_backend *b = (msgl_table_backend *)base;
    if (b == NULL) return;
    msgl__attn_workspace_destroy(&b->ws);
    msgl__pages_free(b->tables, b->tables_bytes);
    msgl__pages_free(b->graph_tables, b->graph_bytes);
    msgl__free(b->slots);
    msgl__free(b);
}

int msgl__table_create(const msgl_attn_desc *desc, const msgl_attn_config *cfg,
                       msgl_attn_backend **out, msgl_err *err)
{
    int rc = msgl__attn_config_check(cfg, err);
    if (rc != 0) return rc;
    msgl_table_backend *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", desc->name);
    b->base.desc = desc;
    b->cfg = *cfg;
    msgl__attn_workspace_limits(cfg, &b->ws);
    rc = msgl__attn_workspace_create(cfg, &b->ws, err);
    if (rc != 0) goto fail;
    const size_t set = metadata_bytes(b, cfg->max_running, cfg->max_seq_len);
    if (set == 0 || msgl__size_mul(set, (size_t)cfg->num_slots, &b->tables_bytes) != 0) {
        rc = msgl__err_set(err, MSGL_ELIMIT, "%s: page tables too large", desc->name);
        goto fail;
    }
    b->slots = msgl__calloc((size_t)cfg->num_slots, sizeof *b->slots);
    b->tables = msgl__pages_alloc(b->tables_bytes);
    if (b->slots == NULL || b->tables == NULL) {
        rc = msgl__err_set(err, MSGL_ENOMEM, "%s: no memory for %zu bytes", desc->name,
                           b->tables_bytes);
        goto fail;
    }
    for (int32_t i = 0; i < cfg->num_slots; i++) {
        metadata_carve(b, cfg->max_running, cfg->max_seq_len, (char *)b->tables + (size_t)i * set,
                       &b->slots[i]);
    }
    *out = &b->base;
    return 0;
fail:
    msgl__table_destroy(&b->base);
    return rc;
}

// Page numbers of one request from its row of slots: every page_size-th entry / page_size.
static void fill_pages(const msgl_table_backend *b, int32_t table_idx, int32_t len, int32_t columns,
                       int32_t *to)
{
    const int32_t *slots = msgl__page_table_row(b->cfg.page_table, table_idx);
    const int32_t size = b->cfg.page_size, n = pages_of(b, len);
    if (size == 1) {
        memcpy(to, slots, (size_t)n * sizeof *to);
    } else {
        for (int32_t i = 0; i < n; i++) to[i] = slots[(size_t)i * (size_t)size] / size;
    }
    for (int32_t i = n; i < columns; i++) to[i] = -1;
}

int msgl__table_prepare_metadata(msgl_attn_backend *base, msgl_batch *batch)
{
    msgl_table_backend *b = (msgl_table_backend *)base;
    msgl_table_metadata *md = &b->slots[batch->slot];
    md->bs = batch->size;
    msgl__attn_seqlens(batch, md->cu_seqlens_q, md->cu_seqlens_k, md->cache_seqlens,
                       &md->max_seqlen_q, &md->max_seqlen_k);
    const int32_t columns = pages_of(b, md->max_seqlen_k);
    for (int32_t i = 0; i < md->bs; i++) {
        fill_pages(b, batch->reqs[i].table_idx, md->cache_seqlens[i], columns,
                   md->page_table + (size_t)i * (size_t)md->table_width);
    }
    msgl__attn_plan_tiles(&b->cfg, &b->ws, md->bs, md->cu_seqlens_q, md->cache_seqlens, &md->plan);
    batch->attn_metadata = md;
    return 0;
}

void msgl__table_attend(const msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                        const msgl_batch *batch, const void *q, size_t ld, float bmm1_scale,
                        float bmm2_scale, void *out)
{
    const msgl_table_backend *b = (const msgl_table_backend *)base;
    const msgl_table_metadata *md = batch->attn_metadata;
    const msgl_attn_kernels *k = &b->cfg.kernels->attn;
    msgl_attn_call c;
    msgl__attn_call_init(&b->cfg, &b->ws, layer, q, ld, out, &c);
    c.scale = bmm1_scale;
    c.out_scale = bmm2_scale;
    c.pages = md->page_table;
    c.page_stride = (size_t)md->table_width;
    c.page_size = b->cfg.page_size;
    c.cu_seqlens_q = md->cu_seqlens_q;
    c.seqlens_k = md->cache_seqlens;
    c.works = md->plan.works;
    c.groups = md->plan.groups;
    c.num_works = md->plan.num_works;
    c.heads_per_task = md->plan.heads_per_task;
    c.part_kind = MSGL_ATTN_PART_TILE;
    k->paged(k, x, &c);
}

void msgl__table_last_indices(const msgl_attn_backend *base, const msgl_batch *batch, int32_t *out)
{
    (void)base;
    const msgl_table_metadata *md = batch->attn_metadata;
    for (int32_t i = 0; i < batch->size; i++) out[i] = md->cu_seqlens_q[i + 1] - 1;
}

int msgl__table_init_capture(msgl_attn_backend *base, int32_t max_seq_len,
                             const int32_t *batch_sizes, int32_t num_sizes, msgl_err *err)
{
    msgl_table_backend *b = (msgl_table_backend *)base;
    int32_t max_bs = 0;
    for (int32_t i = 0; i < num_sizes; i++) {
        if (batch_sizes[i] > max_bs) max_bs = batch_sizes[i];
    }
    if (b->graph_tables != NULL || max_bs < 1 || max_bs > b->cfg.max_running || max_seq_len < 1 ||
        max_seq_len > b->cfg.max_seq_len) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "%s: capture of batch size %d and length %d is not within %d and %d",
                             base->desc->name, (int)max_bs, (int)max_seq_len,
                             (int)b->cfg.max_running, (int)b->cfg.max_seq_len);
    }
    b->graph_bytes = metadata_bytes(b, max_bs, max_seq_len);
    b->graph_tables = b->graph_bytes != 0 ? msgl__pages_alloc(b->graph_bytes) : NULL;
    if (b->graph_tables == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM, "%s: no memory for %zu bytes", base->desc->name,
                             b->graph_bytes);
    }
    metadata_carve(b, max_bs, max_seq_len, b->graph_tables, &b->graph);
    b->graph_max_bs = max_bs;
    return 0;
}

// A padding request: one key, in the dummy page.
static void fill_dummy(msgl_table_backend *b, int32_t i)
{
    msgl_table_metadata *g = &b->graph;
    g->cache_seqlens[i] = 1;
    g->cu_seqlens_q[i + 1] = i + 1;
    g->cu_seqlens_k[i + 1] = g->cu_seqlens_k[i] + 1;
    fill_pages(b, b->cfg.page_table->max_running, 1, 1,
               g->page_table + (size_t)i * (size_t)g->table_width);
}

int msgl__table_prepare_for_capture(msgl_attn_backend *base, msgl_batch *batch)
{
    msgl_table_backend *b = (msgl_table_backend *)base;
    msgl_table_metadata *g = &b->graph;
    if (batch->padded_size > b->graph_max_bs) return MSGL_ELIMIT;
    g->bs = batch->padded_size;
    g->max_seqlen_q = 1;
    g->max_seqlen_k = b->cfg.max_seq_len; // a capture must hold for the longest replay
    g->cu_seqlens_q[0] = g->cu_seqlens_k[0] = 0;
    for (int32_t i = 0; i < g->bs; i++) fill_dummy(b, i);
    msgl__attn_plan_tiles(&b->cfg, &b->ws, g->bs, g->cu_seqlens_q, g->cache_seqlens, &g->plan);
    batch->attn_metadata = g;
    return 0;
}

int msgl__table_prepare_for_replay(msgl_attn_backend *base, msgl_batch *batch)
{
    msgl_table_backend *b = (msgl_table_backend *)base;
    const msgl_table_metadata *md = batch->attn_metadata;
    msgl_table_metadata *g = &b->graph;
    const int32_t columns = pages_of(b, md->max_seqlen_k);
    if (batch->padded_size > b->graph_max_bs || columns > g->table_width) return MSGL_ELIMIT;
    g->bs = batch->padded_size;
    const size_t n = (size_t)md->bs * sizeof(int32_t);
    memcpy(g->cache_seqlens, md->cache_seqlens, n);
    memcpy(g->cu_seqlens_q, md->cu_seqlens_q, n + sizeof(int32_t));
    memcpy(g->cu_seqlens_k, md->cu_seqlens_k, n + sizeof(int32_t));
    for (int32_t i = 0; i < md->bs; i++) {
        memcpy(g->page_table + (size_t)i * (size_t)g->table_width,
               md->page_table + (size_t)i * (size_t)md->table_width,
               (size_t)columns * sizeof(int32_t));
    }
    for (int32_t i = md->bs; i < g->bs; i++) fill_dummy(b, i);
    msgl__attn_plan_tiles(&b->cfg, &b->ws, g->bs, g->cu_seqlens_q, g->cache_seqlens, &g->plan);
    batch->attn_metadata = g;
    return 0;
}
