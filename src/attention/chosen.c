// SPDX-License-Identifier: Apache-2.0
#include "attention/chosen.h"

#include "attention/fa/fa.h"
#include "attention/paged.h"
#include "core/mem.h"

enum { ROWS = 64 }; // tokens of a call

struct msgl_attn_chosen {
    msgl_attn_config cfg; // of a call
    const msgl_page_table *page_table;
    int32_t top_k, max_keys;
    msgl_attn_workspace ws;
    msgl_attn_work *works;
    msgl_attn_group *groups;
    float *scores;                  // [MSGL_INDEX_ROWS, max_keys]
    int32_t cu_seqlens_q[ROWS + 1]; // 0, 1, 2, ...
};

void msgl__chosen_destroy(msgl_attn_chosen *c)
{
    if (c == NULL) return;
    msgl__attn_workspace_destroy(&c->ws);
    msgl__free(c->works);
    msgl__free(c->groups);
    msgl__free(c->scores);
    msgl__free(c);
}

int msgl__chosen_create(const msgl_attn_config *cfg, int32_t top_k, msgl_attn_chosen **out,
                        msgl_err *err)
{
    msgl_attn_chosen *c = msgl__calloc(1, sizeof *c);
    if (c == NULL) return msgl__err_set(err, MSGL_ENOMEM, "chosen keys: out of memory");
    c->cfg = *cfg;
    c->cfg.page_size = 1;
    c->cfg.max_running = c->cfg.max_step_tokens = ROWS;
    c->cfg.max_seq_len = top_k;
    c->page_table = cfg->page_table;
    c->top_k = top_k;
    c->max_keys = cfg->max_seq_len;
    for (int32_t i = 0; i <= ROWS; i++) c->cu_seqlens_q[i] = i;
    int rc = msgl__attn_config_check(&msgl__attn_fa, &c->cfg, err);
    if (rc != 0) goto fail;
    msgl__attn_workspace_limits(&c->cfg, &c->ws);
    rc = msgl__attn_workspace_create(&c->cfg, &c->ws, err);
    if (rc != 0) goto fail;
    c->works = msgl__calloc((size_t)c->ws.max_works, sizeof *c->works);
    c->groups = msgl__calloc((size_t)c->ws.max_groups, sizeof *c->groups);
    c->scores = msgl__calloc(MSGL_INDEX_ROWS * (size_t)c->max_keys, sizeof *c->scores);
    if (c->works == NULL || c->groups == NULL || c->scores == NULL) {
        rc = msgl__err_set(err, MSGL_ENOMEM, "chosen keys: no memory for scores of %d keys",
                           (int)c->max_keys);
        goto fail;
    }
    *out = c;
    return 0;
fail:
    msgl__chosen_destroy(c);
    return rc;
}

void msgl__chosen_choose(const msgl_attn_chosen *c, msgl_exec *x,
                         const msgl_index_choose_call *call)
{
    msgl_index_choose_call full = *call;
    full.top_k = c->top_k;
    full.pages = c->page_table->pages;
    full.page_stride = (size_t)c->page_table->stride;
    full.page_size = c->page_table->paging.size;
    full.scores = c->scores;
    full.max_keys = c->max_keys;
    c->cfg.kernels->index.choose(x, &full);
}

void msgl__chosen_attend(const msgl_attn_chosen *c, msgl_exec *x, const msgl_attn_layer *layer,
                         int32_t tokens, const int32_t *slots, const int32_t *counts, const void *q,
                         size_t ld, void *out)
{
    const msgl_attn_kernels *k = &c->cfg.kernels->attn;
    const size_t out_ld = (size_t)c->cfg.num_q_heads * (size_t)c->cfg.pool->spec.v_dim;
    for (int32_t t = 0; t < tokens; t += ROWS) {
        const int32_t n = tokens - t < ROWS ? tokens - t : ROWS;
        const msgl_seqs seqs = {
            .size = n, .num_tokens = n, .cu_seqlens_q = c->cu_seqlens_q, .seqlens_k = counts + t};
        const msgl_attn_input in = {.q = (const float *)q + (size_t)t * ld, .ld = ld};
        msgl_attn_plan plan = {.works = c->works, .groups = c->groups};
        msgl_attn_call call;
        msgl__attn_plan_tiles(&c->cfg, &c->ws, n, seqs.cu_seqlens_q, seqs.seqlens_k, NULL, &plan);
        msgl__attn_call_init(&c->cfg, &c->ws, layer, &seqs, &in, (float *)out + (size_t)t * out_ld,
                             &call);
        call.pages = slots + (size_t)t * (size_t)c->top_k;
        call.page_stride = (size_t)c->top_k;
        call.page_size = 1;
        call.works = plan.works;
        call.groups = plan.groups;
        call.num_works = plan.num_works;
        call.heads_per_task = plan.heads_per_task;
        call.partial_kind = MSGL_ATTN_PARTIAL_TILE;
        k->paged(k, x, &call);
    }
}
