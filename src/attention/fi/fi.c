// SPDX-License-Identifier: Apache-2.0
//
// fi: FlashInfer's interface on the CPU. The kernel sees pages of 1: all requests' slots in one
// ragged list. plan() cuts the batch into a balanced split-KV list, once per step; partial results
// are merged by log-sum-exp in base 2. The batch decides the cuts, so results depend on it in the
// last bits, unless `deterministic` (no cuts).
//
// flashinfer, as SGLang's backend of that name: chunks are planned twice, new tokens among
// themselves and the prefix, which all of them see; both sides' partials are merged together.
// Answers, trees, latent caches and `deterministic` have fi's one plan.
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
    bool merges;  // chunks are planned in two
    void *memory; // metadata of all sets
    size_t memory_bytes;
    msgl_fi_metadata *sets; // [max_in_flight]
} fi_backend;

// Takes the arrays of one metadata set from *at; with at counting from NULL, measures them.
static void carve(const fi_backend *b, int32_t max_bs, int32_t max_len, int32_t max_tokens,
                  uintptr_t *at, msgl_fi_metadata *md)
{
    const size_t works = (size_t)b->limits.max_works, bs = (size_t)max_bs;
    const size_t sides = b->merges ? 2 : 1;
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
        {(void **)&md->works, sides * works * sizeof *md->works},
        {(void **)&md->groups, works * sizeof *md->groups},
        {(void **)&md->indices, bs * (size_t)max_len * 4},
        // Of merges alone.
        {(void **)&md->fresh.request_indices, works * 4},
        {(void **)&md->fresh.qo_tile_indices, works * 4},
        {(void **)&md->fresh.kv_tile_indices, works * 4},
        {(void **)&md->fresh.o_indptr, (bs + 1) * 4},
        {(void **)&md->fresh.merge_indptr, ((size_t)max_tokens + 1) * 4},
        {(void **)&md->prefix_indptr, (bs + 1) * 4},
    };
    const size_t count = sizeof arrays / sizeof arrays[0], own = 6;
    for (size_t i = 0; i < (b->merges ? count : count - own); i++) {
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

// Rows of partial results in one side of a step in two: all query tiles, if keys are not split.
static int64_t max_tiles(const msgl_attn_config *cfg)
{
    const int64_t rows = (int64_t)cfg->max_step_tokens * (cfg->num_q_heads / cfg->num_kv_heads);
    // A tile is as long as half of what requests have on average (plan.c), so smaller ones are few.
    const int64_t tiles = rows / (cfg->head_dim < 256 ? MSGL_FI_MAX_Q_TILE : 64) + cfg->max_running;
    return tiles > 2 * (int64_t)cfg->max_running ? tiles : 2 * (int64_t)cfg->max_running;
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
        return msgl__err_set(err, MSGL_ELIMIT, "%s: %d tokens per step are too many",
                             b->base.desc->name, (int)cfg->max_step_tokens);
    }
    b->limits.max_works = (int32_t)works;
    // Only a split list writes partials, and it has at most this many items.
    int64_t partials = b->limits.max_grid / cfg->num_kv_heads;
    if (b->merges) partials = 2 * (partials > max_tiles(cfg) ? partials : max_tiles(cfg));
    b->ws = (msgl_attn_workspace){.max_works = (int32_t)works * (b->merges ? 2 : 1),
                                  .max_groups = (int32_t)works,
                                  .max_partials = partials > 1 ? (int32_t)partials : 1,
                                  .partial_rows = MSGL_FI_MAX_Q_TILE};
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

// merges: chunks are planned in two where that can be.
static int create(const msgl_attn_desc *desc, const msgl_attn_config *cfg, bool merges,
                  msgl_attn_backend **out, msgl_err *err)
{
    int rc = msgl__attn_config_check(desc, cfg, err);
    if (rc != 0) return rc;
    if ((int64_t)cfg->max_running * cfg->max_seq_len > INT32_MAX) {
        return msgl__err_set(err, MSGL_ELIMIT,
                             "%s: %d requests of %d tokens exceed its 32-bit index", desc->name,
                             (int)cfg->max_running, (int)cfg->max_seq_len);
    }
    fi_backend *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", desc->name);
    b->base.desc = desc;
    b->cfg = *cfg;
    b->merges = merges && !cfg->deterministic && !msgl__attn_latent(cfg);
    rc = set_limits(b, err);
    if (rc == 0) rc = msgl__attn_workspace_create(cfg, &b->ws, err);
    if (rc != 0) goto fail;
    const size_t set = set_bytes(b, cfg->max_running, cfg->max_seq_len, cfg->max_step_tokens);
    b->memory_bytes = set * (size_t)cfg->max_in_flight;
    b->sets = msgl__calloc((size_t)cfg->max_in_flight, sizeof *b->sets);
    b->memory = msgl__pages_alloc(b->memory_bytes);
    if (b->sets == NULL || b->memory == NULL) {
        rc = msgl__err_set(err, MSGL_ENOMEM, "%s: no memory for %zu bytes", desc->name,
                           b->memory_bytes);
        goto fail;
    }
    for (int32_t i = 0; i < cfg->max_in_flight; i++) {
        uintptr_t at = (uintptr_t)b->memory + (size_t)i * set;
        carve(b, cfg->max_running, cfg->max_seq_len, cfg->max_step_tokens, &at, &b->sets[i]);
    }
    *out = &b->base;
    return 0;
fail:
    fi_destroy(&b->base);
    return rc;
}

static int fi_create(const msgl_attn_desc *desc, const msgl_attn_config *cfg,
                     msgl_attn_backend **out, msgl_err *err)
{
    return create(desc, cfg, false, out, err);
}

static int flashinfer_create(const msgl_attn_desc *desc, const msgl_attn_config *cfg,
                             msgl_attn_backend **out, msgl_err *err)
{
    return create(desc, cfg, true, out, err);
}

// A plan on its way into the list: over so many keys of each request.
typedef struct side {
    const msgl_fi_plan *plan;
    const int32_t *indptr; // [size + 1]
    int32_t next;          // item
} side;

// The chunks of the plan's next query tile, which are neighbours, as work items at w; their first
// key is the request's `from`-th. Returns how many.
static int32_t add_tile(side *s, const msgl_seqs *seqs, int32_t group, int32_t from,
                        msgl_attn_work *w)
{
    const msgl_fi_plan *p = s->plan;
    const int32_t i = p->request_indices[s->next], tile = p->qo_tile_indices[s->next];
    const int32_t row = tile * p->q_tile, keys = s->indptr[i + 1] - s->indptr[i];
    const int32_t rows = (seqs->cu_seqlens_q[i + 1] - seqs->cu_seqlens_q[i]) * group - row;
    int32_t n = 0;
    for (; s->next < p->num_works && p->request_indices[s->next] == i &&
           p->qo_tile_indices[s->next] == tile;
         s->next++) {
        const int32_t begin = p->kv_tile_indices[s->next] * p->kv_chunk_size, left = keys - begin;
        w[n++] = (msgl_attn_work){.req = i,
                                  .row = row,
                                  .rows = rows < p->q_tile ? rows : p->q_tile,
                                  .kv_begin = from + begin,
                                  .kv_end = from + begin +
                                            (left < p->kv_chunk_size ? left : p->kv_chunk_size),
                                  .partial = -1};
    }
    return n;
}

// The plans of a step, whose keys lie behind each other, as one list. A query tile's only item
// writes the output; several write partials, which are merged. Query tiles are the same in all
// plans.
static void list_works(const fi_backend *b, const msgl_seqs *seqs, side *sides, int32_t count,
                       msgl_fi_metadata *md)
{
    int32_t group = 0, partial = 0;
    md->num_works = 0;
    while (sides[0].next < sides[0].plan->num_works) {
        const int32_t i = sides[0].plan->request_indices[sides[0].next];
        msgl_attn_work *w = &md->works[md->num_works];
        int32_t n = 0, from = 0;
        for (int32_t k = 0; k < count; k++) {
            const int32_t keys = sides[k].indptr[i + 1] - sides[k].indptr[i];
            const int32_t added = add_tile(&sides[k], seqs, b->limits.group, from, w + n);
            if (keys > 0 || count == 1) n += added; // a request may have no prefix
            from += keys;
        }
        md->num_works += n;
        if (n == 1) continue;
        md->groups[group] = (msgl_attn_group){.req = i,
                                              .row = w->row,
                                              .rows = w->rows,
                                              .partial = partial,
                                              .num_partials = n,
                                              .num_works = n};
        for (int32_t k = 0; k < n; k++) {
            w[k].partial = partial++;
            w[k].group = group;
        }
        group++;
    }
}

// Plans and list of the step; md->kv_indptr is there.
static int plan_step(const fi_backend *b, const msgl_seqs *seqs, msgl_fi_metadata *md)
{
    const msgl_fi_plan_limits *l = &b->limits;
    const int32_t *qo = seqs->cu_seqlens_q, *keys = md->kv_indptr;
    md->in_two = b->merges && seqs->max_seqlen_q > 1 && seqs->tree == NULL;
    if (md->in_two) {
        for (int32_t i = 0; i <= seqs->size; i++) md->prefix_indptr[i] = md->kv_indptr[i] - qo[i];
        keys = md->prefix_indptr;
        const int rc = msgl__fi_plan(l, seqs->size, qo, qo, &md->fresh);
        if (rc != 0) return rc;
    }
    const int rc = msgl__fi_plan(l, seqs->size, qo, keys, &md->plan);
    if (rc != 0) return rc;
    side sides[2] = {{.plan = &md->plan, .indptr = keys}, {.plan = &md->fresh, .indptr = qo}};
    list_works(b, seqs, sides, md->in_two ? 2 : 1, md);
    return 0;
}

static int fi_prepare(msgl_attn_backend *base, const msgl_seqs *seqs)
{
    fi_backend *b = (fi_backend *)base;
    msgl_fi_metadata *md = &b->sets[seqs->step_slot];
    msgl__attn_list_slots(b->cfg.page_table, seqs, md->kv_indptr, md->indices);
    for (int32_t i = 0; i < seqs->size; i++) md->last_page_len[i] = 1;
    const int rc = plan_step(b, seqs, md);
    if (rc != 0) return rc;
    // Few rows: tasks of several KV heads, which read K and V in the order of memory, as long as
    // every thread gets some.
    int32_t rows = 0;
    for (int32_t n = 0; n < md->num_works; n++) {
        if (md->works[n].rows > rows) rows = md->works[n].rows;
    }
    const int64_t tasks = (int64_t)TASKS_PER_THREAD * b->cfg.num_threads;
    md->heads_per_task =
        msgl__attn_heads_per_task((int32_t)(md->num_works * (int64_t)b->cfg.num_kv_heads / tasks),
                                  b->cfg.num_kv_heads, rows, b->cfg.head_dim);
    return 0;
}

static void fi_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                       const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    const fi_backend *b = (const fi_backend *)base;
    const msgl_fi_metadata *md = &b->sets[seqs->step_slot];
    msgl_attn_call c;
    msgl__attn_call_init(&b->cfg, &b->ws, layer, seqs, in, out, &c);
    c.pages = md->indices;
    c.page_indptr = md->kv_indptr;
    c.page_size = 1;
    c.works = md->works;
    c.groups = md->groups;
    c.num_works = md->num_works;
    c.heads_per_task = md->heads_per_task;
    c.partial_kind = MSGL_ATTN_PARTIAL_LSE2;
    const msgl_attn_kernels *k = &b->cfg.kernels->attn;
    k->paged(k, x, &c);
}

msgl_fi_metadata *msgl__fi_metadata(msgl_attn_backend *base, int32_t step_slot)
{
    return &((fi_backend *)base)->sets[step_slot];
}

#define FI                                                                                         \
    .aliases = {NULL}, .page_rule = MSGL_PAGE_FLATTENED, .max_dim = MSGL_ATTN_MAX_DIM,             \
    .own_v_dim = true, .caches = 1u << MSGL_CACHE_KV | 1u << MSGL_CACHE_LATENT,                    \
    .kv_dtypes = 1u << MSGL_F32 | 1u << MSGL_F16 | 1u << MSGL_BF16 | 1u << MSGL_E4M3,              \
    .sliding_window = true, .softcap = true, .sinks = true, .tree = true, .ragged = true,          \
    .supports = fi_supports, .remark = fi_remark, .destroy = fi_destroy, .prepare = fi_prepare,    \
    .forward = fi_forward

const msgl_attn_desc msgl__attn_fi = {
    FI,
    .name = "fi",
    .summary = "FlashInfer: ragged token indices, balanced split-KV plan per batch",
    .create = fi_create,
};

const msgl_attn_desc msgl__attn_flashinfer = {
    FI,
    .name = "flashinfer",
    .summary = "fi, chunks as ragged new tokens and paged prefix, merged",
    .create = flashinfer_create,
};
