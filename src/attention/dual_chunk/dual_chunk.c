// SPDX-License-Identifier: Apache-2.0
//
// dual_chunk_flash_attn: dual chunk attention on the CPU (docs/internals/dual-chunk.md). The paged
// kernel takes the three queries of a row in turn, each for its range of keys, so one call and one
// online softmax do what the original merges from three, and results are independent of the batch
// as fa's are. Requests whose prompts are sparse get no items of the kernel's list, and are
// attended to one by one.
//
// Tolerance against exact attention, or exact attention to the keys that are seen, as of fa.
#include "attention/dual_chunk/dual_chunk.h"

#include "attention/dual_chunk/sparse_prompt.h"
#include "attention/table.h"
#include "core/mem.h"

typedef struct dual_backend {
    msgl_attn_backend base;
    msgl_attn_config cfg;
    msgl_attn_backend *table;
    msgl_sparse_room room; // none without a pattern
} dual_backend;

static size_t plan_ints(const msgl_attn_config *cfg)
{
    return (size_t)cfg->max_running + 1;
}

// A list without rows of sparse prompts.
static void plan(const msgl_attn_config *cfg, const msgl_attn_workspace *w, int32_t bs,
                 const int32_t *cu_seqlens_q, const int32_t *seqlens_k, int32_t *ints,
                 msgl_attn_plan *p)
{
    ints[0] = 0;
    for (int32_t i = 0; i < bs; i++) {
        const int32_t rows = cu_seqlens_q[i + 1] - cu_seqlens_q[i];
        const bool sparse = msgl__sparse_prompt(cfg->pattern, rows, seqlens_k[i]);
        ints[i + 1] = ints[i] + (sparse ? 0 : rows);
    }
    msgl__attn_plan_tiles(cfg, w, bs, ints, seqlens_k, NULL, p);
}

static const msgl_table_rule RULE = {.limits = msgl__attn_workspace_limits,
                                     .ints = plan_ints,
                                     .plan = plan,
                                     .partial_kind = MSGL_ATTN_PARTIAL_TILE};

static void destroy(msgl_attn_backend *base)
{
    dual_backend *b = (dual_backend *)base;
    if (b == NULL) return;
    msgl__table_destroy(b->table);
    msgl__sparse_room_destroy(&b->room);
    msgl__free(b);
}

static int create(const msgl_attn_desc *desc, const msgl_attn_config *cfg, msgl_attn_backend **out,
                  msgl_err *err)
{
    dual_backend *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", desc->name);
    b->base.desc = desc;
    b->cfg = *cfg;
    int rc = msgl__table_create_by(&RULE, desc, cfg, &b->table, err);
    if (rc == 0 && cfg->pattern != NULL) rc = msgl__sparse_room_create(cfg, &b->room, err);
    if (rc != 0) {
        destroy(&b->base);
        return rc;
    }
    *out = &b->base;
    return 0;
}

static int prepare(msgl_attn_backend *base, const msgl_seqs *seqs)
{
    return msgl__table_prepare(((dual_backend *)base)->table, seqs);
}

static void forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                    const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    const dual_backend *b = (const dual_backend *)base;
    msgl__table_forward(b->table, x, layer, seqs, in, out);
    for (int32_t i = 0; i < seqs->size; i++) {
        const int32_t rows = seqs->cu_seqlens_q[i + 1] - seqs->cu_seqlens_q[i];
        if (!msgl__sparse_prompt(b->cfg.pattern, rows, seqs->seqlens_k[i])) continue;
        msgl__sparse_prompt_attend(&b->cfg, &b->room, x, layer, seqs, i, in, out);
    }
}

const msgl_attn_desc msgl__attn_dual_chunk = {
    .name = "dual_chunk_flash_attn",
    .aliases = {NULL},
    .summary = "dual chunk attention of Qwen2.5-1M: three queries a token, by the distance of keys",
    .page_rule = MSGL_PAGE_ANY,
    .kv_dtypes = 1u << MSGL_F32 | 1u << MSGL_F16 | 1u << MSGL_BF16,
    .dual_chunk = true,
    .ragged = true,
    .create = create,
    .destroy = destroy,
    .prepare = prepare,
    .forward = forward,
};
