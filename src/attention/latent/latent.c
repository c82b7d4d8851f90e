// SPDX-License-Identifier: Apache-2.0
//
// Latent attention by the names of those whose interfaces it has: FlashMLA, CUTLASS and
// TensorRT-LLM differ in the pages that they take and in how a batch's keys are split; the kernel
// is that of the other paged backends. Prompts are flashinfer's, as they are in SGLang.
//
//   flashmla     pages of 64; its scheduler metadata (metadata.h) deals blocks of keys to
//                workers; splits are merged by their log-sum-exps in a second pass
//   trtllm_mla   pages of 32 or 64; a block table with -1 behind a request's last page; tiles as
//                trtllm has them
//   cutlass_mla  pages of 128; one partial for all keys of a request (num_kv_splits 1): a long
//                request is one worker's
//
// FlashMLA's number of workers is on a GPU that of its multiprocessors; here it is threads times
// WORKERS_PER_THREAD. The batch decides its cuts, so results depend on it in the last bits, unless
// `deterministic` (no cuts).
//
// Tolerance against exact attention: flashmla as of fi, trtllm_mla as of trtllm, cutlass_mla as of
// fa, whose bits it has.
#include "attention/latent/latent.h"

#include "attention/latent/metadata.h"
#include "attention/table.h"

// ---- flashmla ----

enum { WORKERS_PER_THREAD = 16 }; // so that a slow core leaves work to the others

static int32_t num_sm_parts(const msgl_attn_config *cfg)
{
    return msgl__flashmla_num_sm_parts(cfg->num_threads * WORKERS_PER_THREAD, cfg->num_q_heads);
}

static int32_t row_blocks(const msgl_attn_config *cfg)
{
    return msgl__ceil_div(cfg->num_q_heads, MSGL_FLASHMLA_ROWS);
}

// One split more for every request that a worker begins in the middle of.
static void limits(const msgl_attn_config *cfg, msgl_attn_workspace *w)
{
    const int32_t most = cfg->max_running + num_sm_parts(cfg);
    *w = (msgl_attn_workspace){.partial_rows = MSGL_FLASHMLA_ROWS,
                               .max_works = most * row_blocks(cfg),
                               .max_partials = most * row_blocks(cfg),
                               .max_groups = cfg->max_running * row_blocks(cfg)};
}

static size_t metadata_ints(const msgl_attn_config *cfg)
{
    return (size_t)num_sm_parts(cfg) * sizeof(msgl_flashmla_sched_meta) / sizeof(int32_t) +
           (size_t)cfg->max_running + 1;
}

// Blocks [begin, end) of a request, its split number `split` of several or the only one.
static void add_range(const msgl_attn_config *cfg, int32_t req, int32_t len, int32_t begin,
                      int32_t end, int32_t split, const int32_t *num_splits, msgl_attn_plan *p)
{
    const int32_t blocks = row_blocks(cfg), splits = num_splits[req + 1] - num_splits[req];
    for (int32_t b = 0; b < blocks; b++) {
        const int32_t row = b * MSGL_FLASHMLA_ROWS, left = cfg->num_q_heads - row;
        msgl_attn_work w = {.req = req,
                            .row = row,
                            .rows = left < MSGL_FLASHMLA_ROWS ? left : MSGL_FLASHMLA_ROWS,
                            .kv_begin = begin * MSGL_FLASHMLA_BLOCK,
                            .kv_end = end * MSGL_FLASHMLA_BLOCK,
                            .partial = -1};
        if (w.kv_end > len) w.kv_end = len;
        if (splits > 1) {
            const int32_t first = num_splits[req] * blocks + b * splits;
            w.partial = first + split;
            w.group = req * blocks + b;
            p->groups[w.group] = (msgl_attn_group){.req = req,
                                                   .row = row,
                                                   .rows = w.rows,
                                                   .partial = first,
                                                   .num_partials = splits,
                                                   .num_works = splits};
        }
        p->works[p->num_works++] = w;
    }
}

static void plan(const msgl_attn_config *cfg, const msgl_attn_workspace *w, int32_t bs,
                 const int32_t *cu_seqlens_q, const int32_t *seqlens_k, int32_t *ints,
                 msgl_attn_plan *p)
{
    (void)w;
    (void)cu_seqlens_q; // one token each
    const int32_t n = cfg->deterministic ? 1 : num_sm_parts(cfg);
    msgl_flashmla_sched_meta *sched_meta = (msgl_flashmla_sched_meta *)(void *)ints;
    int32_t *num_splits = ints + (size_t)n * sizeof *sched_meta / sizeof *ints;
    msgl__flashmla_metadata(n, bs, seqlens_k, sched_meta, num_splits);
    *p = (msgl_attn_plan){.works = p->works, .groups = p->groups, .heads_per_task = 1};
    for (int32_t i = 0; i < n; i++) {
        const msgl_flashmla_sched_meta *meta = &sched_meta[i];
        for (int32_t req = meta->begin_req; req <= meta->end_req; req++) {
            const bool first = req == meta->begin_req, last = req == meta->end_req;
            const int32_t blocks = msgl__ceil_div(seqlens_k[req], MSGL_FLASHMLA_BLOCK);
            add_range(cfg, req, seqlens_k[req], first ? meta->begin_block : 0,
                      last ? meta->end_block : blocks, first ? meta->begin_split : 0, num_splits,
                      p);
        }
    }
}

static const msgl_table_rule RULE = {
    .limits = limits, .ints = metadata_ints, .plan = plan, .partial_kind = MSGL_ATTN_PARTIAL_LSE2};

static int create_flashmla(const msgl_attn_desc *desc, const msgl_attn_config *cfg,
                           msgl_attn_backend **out, msgl_err *err)
{
    return msgl__table_create_by(&RULE, desc, cfg, out, err);
}

// ---- cutlass_mla ----

static void limits_whole(const msgl_attn_config *cfg, msgl_attn_workspace *w)
{
    msgl__attn_workspace_limits(cfg, w);
    w->max_works -= w->max_partials;
    w->max_partials = w->max_groups = 0;
}

static const msgl_table_rule WHOLE = {
    .limits = limits_whole, .plan = msgl__attn_plan_tiles, .partial_kind = MSGL_ATTN_PARTIAL_TILE};

static int create_whole(const msgl_attn_desc *desc, const msgl_attn_config *cfg,
                        msgl_attn_backend **out, msgl_err *err)
{
    return msgl__table_create_by(&WHOLE, desc, cfg, out, err);
}

// ---- descriptors ----

#define LATENT                                                                                     \
    .aliases = {NULL}, .prefill_by = "fi", .page_rule = MSGL_PAGE_SET,                             \
    .caches = 1u << MSGL_CACHE_LATENT,                                                             \
    .kv_dtypes = 1u << MSGL_F32 | 1u << MSGL_F16 | 1u << MSGL_BF16 | 1u << MSGL_E4M3,              \
    .tree = true, .destroy = msgl__table_destroy, .prepare = msgl__table_prepare,                  \
    .forward = msgl__table_forward

const msgl_attn_desc msgl__attn_flashmla = {
    LATENT,
    .name = "flashmla",
    .summary = "FlashMLA: pages of 64, its scheduler's split of the keys; prompts by fi",
    .page_sizes = {64},
    .page_override = 64,
    .create = create_flashmla,
};

const msgl_attn_desc msgl__attn_trtllm_mla = {
    LATENT,
    .name = "trtllm_mla",
    .summary = "TensorRT-LLM's latent attention: block table, pages of 32 or 64; prompts by fi",
    .page_sizes = {32, 64},
    .page_override = 64,
    .create = msgl__table_create,
};

const msgl_attn_desc msgl__attn_cutlass_mla = {
    LATENT,
    .name = "cutlass_mla",
    .summary = "CUTLASS's latent attention: pages of 128, keys not split; prompts by fi",
    .page_sizes = {128},
    .page_override = 128,
    .create = create_whole,
};
