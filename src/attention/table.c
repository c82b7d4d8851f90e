// SPDX-License-Identifier: Apache-2.0
#include "attention/table.h"

#include <string.h>

#include "core/mem.h"
#include "core/round.h"

typedef struct msgl_table_backend {
    msgl_attn_backend base;
    const msgl_table_rule *rule;
    msgl_attn_config cfg;
    msgl_attn_workspace ws;
    void *tables; // metadata of all sets
    size_t tables_bytes;
    msgl_table_metadata *sets; // [max_in_flight]
} msgl_table_backend;

static const msgl_table_rule TILES = {.limits = msgl__attn_workspace_limits,
                                      .plan = msgl__attn_plan_tiles,
                                      .partial_kind = MSGL_ATTN_PARTIAL_TILE};

static size_t ints_bytes(const msgl_table_backend *b)
{
    return b->rule->ints != NULL ? b->rule->ints(&b->cfg) * sizeof(int32_t) : 0;
}

static int32_t pages_of(const msgl_table_backend *b, int32_t len)
{
    return msgl__ceil_div(len, b->cfg.page_size);
}

// Bytes of one metadata set for up to max_bs requests of max_seq_len keys; 0 on overflow.
static size_t metadata_bytes(const msgl_table_backend *b, int32_t max_bs, int32_t max_seq_len)
{
    size_t table;
    if (msgl__size_mul((size_t)max_bs * 4, (size_t)pages_of(b, max_seq_len), &table) != 0) return 0;
    const size_t works = (size_t)b->ws.max_works * sizeof(msgl_attn_work);
    const size_t groups = (size_t)b->ws.max_groups * sizeof(msgl_attn_group);
    size_t n;
    if (msgl__size_add(table, works + groups + ints_bytes(b) + 256, &n) != 0) return 0;
    return msgl__round_up(n, 64);
}

static void metadata_carve(const msgl_table_backend *b, int32_t max_bs, int32_t max_seq_len,
                           char *at, msgl_table_metadata *md)
{
    md->table_width = pages_of(b, max_seq_len);
    md->plan.works = msgl__attn_carve(&at, (size_t)b->ws.max_works * sizeof(msgl_attn_work));
    md->plan.groups = msgl__attn_carve(&at, (size_t)b->ws.max_groups * sizeof(msgl_attn_group));
    md->ints = msgl__attn_carve(&at, ints_bytes(b));
    md->page_table = msgl__attn_carve(&at, (size_t)max_bs * (size_t)md->table_width * 4);
}

void msgl__table_destroy(msgl_attn_backend *base)
{
    msgl_table_backend *b = (msgl_table_backend *)base;
    if (b == NULL) return;
    msgl__attn_workspace_destroy(&b->ws);
    msgl__pages_free(b->tables, b->tables_bytes);
    msgl__free(b->sets);
    msgl__free(b);
}

int msgl__table_create_by(const msgl_table_rule *rule, const msgl_attn_desc *desc,
                          const msgl_attn_config *cfg, msgl_attn_backend **out, msgl_err *err)
{
    int rc = msgl__attn_config_check(desc, cfg, err);
    if (rc != 0) return rc;
    msgl_table_backend *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", desc->name);
    b->base.desc = desc;
    b->rule = rule;
    b->cfg = *cfg;
    rule->limits(cfg, &b->ws);
    rc = msgl__attn_workspace_create(cfg, &b->ws, err);
    if (rc != 0) goto fail;
    const size_t set = metadata_bytes(b, cfg->max_running, cfg->max_seq_len);
    if (set == 0 || msgl__size_mul(set, (size_t)cfg->max_in_flight, &b->tables_bytes) != 0) {
        rc = msgl__err_set(err, MSGL_ELIMIT, "%s: page tables too large", desc->name);
        goto fail;
    }
    b->sets = msgl__calloc((size_t)cfg->max_in_flight, sizeof *b->sets);
    b->tables = msgl__pages_alloc(b->tables_bytes);
    if (b->sets == NULL || b->tables == NULL) {
        rc = msgl__err_set(err, MSGL_ENOMEM, "%s: no memory for %zu bytes", desc->name,
                           b->tables_bytes);
        goto fail;
    }
    for (int32_t i = 0; i < cfg->max_in_flight; i++) {
        metadata_carve(b, cfg->max_running, cfg->max_seq_len, (char *)b->tables + (size_t)i * set,
                       &b->sets[i]);
    }
    *out = &b->base;
    return 0;
fail:
    msgl__table_destroy(&b->base);
    return rc;
}

int msgl__table_create(const msgl_attn_desc *desc, const msgl_attn_config *cfg,
                       msgl_attn_backend **out, msgl_err *err)
{
    return msgl__table_create_by(&TILES, desc, cfg, out, err);
}

// Page numbers of one request.
static void fill_pages(const msgl_table_backend *b, int32_t table_idx, int32_t len, int32_t columns,
                       int32_t *to)
{
    const int32_t n = pages_of(b, len);
    memcpy(to, msgl__page_table_row(b->cfg.page_table, table_idx), (size_t)n * sizeof *to);
    for (int32_t i = n; i < columns; i++) to[i] = -1;
}

int msgl__table_prepare(msgl_attn_backend *base, const msgl_seqs *seqs)
{
    msgl_table_backend *b = (msgl_table_backend *)base;
    msgl_table_metadata *md = &b->sets[seqs->step_slot];
    const int32_t columns = pages_of(b, seqs->max_seqlen_k);
    for (int32_t i = 0; i < seqs->size; i++) {
        fill_pages(b, seqs->table_rows[i], seqs->seqlens_k[i], columns,
                   md->page_table + (size_t)i * (size_t)md->table_width);
    }
    b->rule->plan(&b->cfg, &b->ws, seqs->size, seqs->cu_seqlens_q, seqs->seqlens_k, md->ints,
                  &md->plan);
    return 0;
}

void msgl__table_attend(const msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                        const msgl_seqs *seqs, const msgl_attn_input *in, float bmm1_scale,
                        float bmm2_scale, void *out)
{
    const msgl_table_backend *b = (const msgl_table_backend *)base;
    const msgl_table_metadata *md = &b->sets[seqs->step_slot];
    const msgl_attn_kernels *k = &b->cfg.kernels->attn;
    msgl_attn_call c;
    msgl__attn_call_init(&b->cfg, &b->ws, layer, seqs, in, out, &c);
    c.scale = bmm1_scale * msgl__attn_k_scale(b->cfg.pool, layer);
    c.out_scale = bmm2_scale * msgl__attn_v_scale(b->cfg.pool, layer);
    c.pages = md->page_table;
    c.page_stride = (size_t)md->table_width;
    c.page_size = b->cfg.page_size;
    c.works = md->plan.works;
    c.groups = md->plan.groups;
    c.num_works = md->plan.num_works;
    c.heads_per_task = md->plan.heads_per_task;
    c.partial_kind = b->rule->partial_kind;
    k->paged(k, x, &c);
}

void msgl__table_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                         const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    msgl__table_attend(base, x, layer, seqs, in, layer->scale, 1, out);
}

const msgl_table_metadata *msgl__table_metadata(const msgl_attn_backend *base, int32_t step_slot)
{
    return &((const msgl_table_backend *)base)->sets[step_slot];
}
