// SPDX-License-Identifier: Apache-2.0
//
// fi: FlashInfer's interface on the CPU. The kernel sees pages of 1: all requests' slots in one
// ragged list. plan() cuts the batch into a balanced split-KV list, once per step; partial results
// are merged by log-sum-exp in base 2. The batch decides the cuts, so results depend on it in the
// last bits, unless `deterministic` (no cuts).
//
// On a GPU the number of workers is SM count times occupancy; here it is threads times
// WORKERS_PER_THREAD.
//
// Tolerance against exact attention (tests/attention/world.c), over the largest |v|: bf16 KV 4e-3
// (levels from AVX-512-BF16 on round q and probabilities to bf16), f16 and f32 2e-6.
#include "attention/fi/fi.h"

#include "attention/fi/tensor_cores.h"
#include "core/mem.h"
#include "core/round.h"

enum {
    WORKERS_PER_THREAD = 16, // so that a slow core leaves work to the others
    TASKS_PER_THREAD = 4,    // at least, when tasks take several heads
};

typedef struct fi_backend {
    msgl_attn_backend base;
    msgl_attn_config cfg;
    msgl_attn_workspace ws;
    msgl_fi_plan_limits limits;
    void *memory; // metadata of all sets
    size_t memory_bytes;
    msgl_fi_metadata *sets; // [max_flights]
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
        {(void **)&md->kv_indptr, (bs + 1) * 4},
        {(void **)&md->last_page_len, bs * 4},
        {(void **)&md->plan.request_indices, works * 4},
        {(void **)&md->plan.qo_tile_indices, works * 4},
        {(void **)&md->plan.kv_tile_indices, works * 4},
        {(void **)&md->plan.o_indptr, (bs + 1) * 4},
        {(void **)&md->plan.merge_indptr, ((size_t)max_tokens + 1) * 4},
        {(void **)&md->works, works * sizeof *md->works},
        {(void **)&md->groups, works * sizeof *md->groups},
        {(void **)&md->indices, bs * (size_t)max_len * 4},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        *arrays[i].to = (void *)*at;
        *at += msgl__round_up(arrays[i].size, 64);
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
    msgl__free(b->sets);
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

static int fi_create(const msgl_attn_desc *desc, const msgl_attn_config *cfg,
                     msgl_attn_backend **out, msgl_err *err)
{
    int rc = msgl__attn_config_check(desc, cfg, err);
    if (rc != 0) return rc;
    if ((int64_t)cfg->max_running * cfg->max_seq_len > INT32_MAX) {
        return msgl__err_set(err, MSGL_ELIMIT,
                             "fi: %d requests of %d tokens exceed its 32-bit index",
                             (int)cfg->max_running, (int)cfg->max_seq_len);
    }
    fi_backend *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "fi: out of memory");
    b->base.desc = desc;
    b->cfg = *cfg;
    rc = set_limits(b, err);
    if (rc == 0) rc = msgl__attn_workspace_create(cfg, &b->ws, err);
    if (rc != 0) goto fail;
    const size_t set = set_bytes(b, cfg->max_running, cfg->max_seq_len, cfg->max_step_tokens);
    b->memory_bytes = set * (size_t)cfg->max_flights;
    b->sets = msgl__calloc((size_t)cfg->max_flights, sizeof *b->sets);
    b->memory = msgl__pages_alloc(b->memory_bytes);
    if (b->sets == NULL || b->memory == NULL) {
        rc = msgl__err_set(err, MSGL_ENOMEM, "fi: no memory for %zu bytes", b->memory_bytes);
        goto fail;
    }
    for (int32_t i = 0; i < cfg->max_flights; i++) {
        uintptr_t at = (uintptr_t)b->memory + (size_t)i * set;
        carve(b, cfg->max_running, cfg->max_seq_len, cfg->max_step_tokens, &at, &b->sets[i]);
    }
    *out = &b->base;
    return 0;
fail:
    fi_destroy(&b->base);
    return rc;
}

// The plan as work items: part and item have the same number, and the chunks of a query tile are
// neighbours.
static void list_works(const fi_backend *b, const msgl_seqs *seqs, msgl_fi_metadata *md)
{
    const msgl_fi_plan *p = &md->plan;
    int32_t group = -1;
    for (int32_t n = 0; n < p->num_works; n++) {
        msgl_attn_work *w = &md->works[n];
        *w = (msgl_attn_work){.part = -1};
        const int32_t i = p->request_indices[n], chunk = p->kv_tile_indices[n];
        const int32_t rows = (seqs->cu_seqlens_q[i + 1] - seqs->cu_seqlens_q[i]) * b->limits.group;
        const int32_t left = seqs->seqlens_k[i] - chunk * p->kv_chunk_size;
        w->req = i;
        w->row = p->qo_tile_indices[n] * p->q_tile;
        w->rows = rows - w->row < p->q_tile ? rows - w->row : p->q_tile;
        w->kv_begin = chunk * p->kv_chunk_size;
        w->kv_end = w->kv_begin + (left < p->kv_chunk_size ? left : p->kv_chunk_size);
        if (seqs->seqlens_k[i] <= p->kv_chunk_size) continue; // the only chunk writes the output
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

static int fi_prepare(msgl_attn_backend *base, const msgl_seqs *seqs)
{
    fi_backend *b = (fi_backend *)base;
    msgl_fi_metadata *md = &b->sets[seqs->flight];
    msgl__attn_list_slots(b->cfg.page_table, seqs, md->kv_indptr, md->indices);
    for (int32_t i = 0; i < seqs->size; i++) md->last_page_len[i] = 1;
    const int rc =
        msgl__fi_plan(&b->limits, seqs->size, seqs->cu_seqlens_q, md->kv_indptr, &md->plan);
    if (rc != 0) return rc;
    list_works(b, seqs, md);
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
    return 0;
}

static void fi_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                       const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    const fi_backend *b = (const fi_backend *)base;
    const msgl_fi_metadata *md = &b->sets[seqs->flight];
    msgl_attn_call c;
    msgl__attn_call_init(&b->cfg, &b->ws, layer, seqs, in, out, &c);
    c.pages = md->indices;
    c.page_indptr = md->kv_indptr;
    c.page_size = 1;
    c.works = md->works;
    c.groups = md->groups;
    c.num_works = md->plan.num_works;
    c.heads_per_task = md->heads_per_task;
    c.part_kind = MSGL_ATTN_PART_LSE2;
    const msgl_attn_kernels *k = &b->cfg.kernels->attn;
    k->paged(k, x, &c);
}

msgl_fi_metadata *msgl__fi_metadata(msgl_attn_backend *base, int32_t flight)
{
    return &((fi_backend *)base)->sets[flight];
}

const msgl_attn_desc msgl__attn_fi = {
    .name = "fi",
    .aliases = {"flashinfer", NULL},
    .summary = "FlashInfer: ragged token indices, balanced split-KV plan per batch",
    .devices = 1u << MSGL_DEVICE_CPU,
    .page_rule = MSGL_PAGE_FLATTENED,
    .caches = 1u << MSGL_CACHE_KV | 1u << MSGL_CACHE_LATENT,
    .kv_dtypes = 1u << MSGL_F32 | 1u << MSGL_F16 | 1u << MSGL_BF16 | 1u << MSGL_E4M3,
    .sliding_window = true,
    .softcap = true,
    .sinks = true,
    .tree = true,
    .ragged = true,
    .supports = fi_supports,
    .remark = fi_remark,
    .create = fi_create,
    .destroy = fi_destroy,
    .prepare = fi_prepare,
    .forward = fi_forward,
};
