// SPDX-License-Identifier: Apache-2.0
#include "attention/paged.h"

#include <string.h>

#include "core/mem.h"
#include "core/round.h"

enum {
    TASKS_PER_THREAD = 4, // aimed at, so that a slow core leaves work to the others
    MAX_PARTIALS = 1024,  // 262,144 keys of split requests; more are walked by one item each
};

int msgl__attn_config_check(const msgl_attn_desc *desc, const msgl_attn_config *cfg, msgl_err *err)
{
    const struct {
        const char *name;
        int32_t value, max;
    } limits[] = {{"num_q_heads", cfg->num_q_heads, 1 << 16},
                  {"num_kv_heads", cfg->num_kv_heads, 1 << 16},
                  {"head_dim", cfg->head_dim,
                   msgl__attn_latent(cfg) ? MSGL_ATTN_MAX_LATENT : MSGL_ATTN_MAX_DIM},
                  {"v_dim", cfg->pool->spec.v_dim, cfg->head_dim},
                  {"page_size", cfg->page_size, 1 << 20},
                  {"max_running", cfg->max_running, 1 << 20},
                  {"max_seq_len", cfg->max_seq_len, 1 << 28},
                  {"max_step_tokens", cfg->max_step_tokens, 1 << 28},
                  {"max_in_flight", cfg->max_in_flight, 64},
                  {"num_threads", cfg->num_threads, 1 << 16}};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        if (limits[i].value < 1 || limits[i].value > limits[i].max) {
            return msgl__err_set(err, MSGL_EINVAL, "attention: %s %d is not in [1, %d]",
                                 limits[i].name, (int)limits[i].value, (int)limits[i].max);
        }
    }
    if (cfg->num_q_heads % cfg->num_kv_heads != 0) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "attention: %d query heads are no multiple of %d KV heads",
                             (int)cfg->num_q_heads, (int)cfg->num_kv_heads);
    }
    if (cfg->head_dim % 8 != 0 || cfg->pool->spec.v_dim % 8 != 0) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "attention: head_dim %d, v_dim %d: not multiples of 8",
                             (int)cfg->head_dim, (int)cfg->pool->spec.v_dim);
    }
    const int64_t group = cfg->num_q_heads / cfg->num_kv_heads;
    if (cfg->max_step_tokens * group + cfg->max_running > INT32_MAX / 2) {
        return msgl__err_set(err, MSGL_EINVAL, "attention: %d tokens per step are too many",
                             (int)cfg->max_step_tokens);
    }
    return msgl__attn_check_page_size(desc, cfg->page_size, err);
}

void msgl__attn_workspace_limits(const msgl_attn_config *cfg, msgl_attn_workspace *w)
{
    const int32_t group = cfg->num_q_heads / cfg->num_kv_heads;
    const int32_t dual_len = cfg->dual_len;
    const int32_t cut = dual_len > 0 ? MSGL_ATTN_RANGES - 1 : 0; // tiles at ends of ranges
    const int64_t tiles = ((int64_t)msgl__ceil_div(cfg->max_seq_len, MSGL_ATTN_TILE) + cut) *
                          cfg->max_running * msgl__ceil_div(group, MSGL_ATTN_PARTIAL_ROWS);
    const int64_t row_tiles =
        (int64_t)cfg->max_step_tokens * group / MSGL_ATTN_PARTIAL_ROWS + cfg->max_running;
    *w = (msgl_attn_workspace){.partial_rows = MSGL_ATTN_PARTIAL_ROWS};
    // A dual chunk that ends inside of a step's rows makes one more item of them.
    const int32_t ends = dual_len > 0 ? cfg->max_step_tokens / dual_len + cfg->max_running : 0;
    w->max_partials = (int32_t)(tiles < MAX_PARTIALS ? tiles : MAX_PARTIALS);
    w->max_works = (int32_t)(row_tiles + ends) + w->max_partials;
    w->max_groups = w->max_partials;
}

int msgl__attn_workspace_create(const msgl_attn_config *cfg, msgl_attn_workspace *w, msgl_err *err)
{
    const msgl_kernels *k = cfg->kernels;
    const size_t partial =
        msgl__attn_partial_floats(w->partial_rows, cfg->pool->spec.v_dim) * sizeof(float);
    const size_t heads = (size_t)cfg->num_kv_heads;
    size_t partials, pending, scratch;
    w->scratch_stride = k->attn.scratch_size(&k->attn, cfg->pool->spec.dtype, cfg->head_dim,
                                             msgl__attn_latent(cfg));
    if (msgl__size_mul((size_t)w->max_partials * heads, partial, &partials) != 0 ||
        msgl__size_mul((size_t)w->max_groups * heads, sizeof(atomic_int), &pending) != 0 ||
        msgl__size_mul((size_t)cfg->num_threads, w->scratch_stride, &scratch) != 0 ||
        msgl__size_add(partials, msgl__round_up(pending, 64), &w->bytes) != 0 ||
        msgl__size_add(w->bytes, scratch, &w->bytes) != 0) {
        return msgl__err_set(err, MSGL_ELIMIT, "attention workspace: too large");
    }
    w->base = msgl__pages_alloc(w->bytes);
    if (w->base == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM, "attention workspace: no memory for %zu bytes",
                             w->bytes);
    }
    char *at = w->base;
    w->scratch = msgl__attn_carve(&at, scratch);
    w->pending = msgl__attn_carve(&at, pending);
    w->partials = msgl__attn_carve(&at, partials);
    return 0;
}

void msgl__attn_workspace_destroy(msgl_attn_workspace *w)
{
    msgl__pages_free(w->base, w->bytes);
    w->base = NULL;
}

void msgl__attn_list_slots(const msgl_page_table *table, const msgl_seqs *seqs, int32_t *indptr,
                           int32_t *indices)
{
    indptr[0] = 0;
    for (int32_t i = 0; i < seqs->size; i++) {
        const int32_t len = seqs->seqlens_k[i];
        msgl__page_table_slots(table, seqs->table_rows[i], 0, len, indices + indptr[i]);
        indptr[i + 1] = indptr[i] + len;
    }
}

// Rows per item: large enough to use K and V well, small enough to give every thread some items.
static int32_t choose_rows(const msgl_attn_config *cfg, int32_t bs, const int32_t *cu_seqlens_q)
{
    const int32_t group = cfg->num_q_heads / cfg->num_kv_heads;
    for (int32_t rows = MSGL_ATTN_MAX_ROWS; rows > MSGL_ATTN_PARTIAL_ROWS; rows /= 2) {
        int64_t tasks = 0;
        for (int32_t i = 0; i < bs; i++) {
            tasks += msgl__ceil_div((cu_seqlens_q[i + 1] - cu_seqlens_q[i]) * group, rows);
        }
        if (tasks * cfg->num_kv_heads >= (int64_t)TASKS_PER_THREAD * cfg->num_threads) return rows;
    }
    return MSGL_ATTN_PARTIAL_ROWS;
}

static int32_t tiles_of(int32_t begin, int32_t end)
{
    return begin < end ? msgl__ceil_div(end, MSGL_ATTN_TILE) - begin / MSGL_ATTN_TILE : 0;
}

// Cuts an item, whose keys are in these ranges, into several of `unit` tiles each, every tile with
// its own partial.
static void add_item(const msgl_attn_workspace *w, msgl_attn_work item,
                     const int32_t ends[MSGL_ATTN_RANGES], int32_t unit, msgl_attn_plan *p)
{
    int32_t tiles = 0, num_works = 0;
    for (int i = 0, begin = 0; i < MSGL_ATTN_RANGES; begin = ends[i++]) {
        const int32_t n = tiles_of(begin, ends[i]);
        tiles += n;
        num_works += msgl__ceil_div(n, unit);
    }
    if (item.rows > w->partial_rows || tiles <= unit || tiles > w->max_partials - p->num_partials) {
        item.partial = -1;
        p->works[p->num_works++] = item;
        return;
    }
    p->groups[p->num_groups] = (msgl_attn_group){.req = item.req,
                                                 .row = item.row,
                                                 .rows = item.rows,
                                                 .partial = p->num_partials,
                                                 .num_partials = tiles,
                                                 .num_works = num_works};
    item.group = p->num_groups++;
    for (int i = 0, begin = 0; i < MSGL_ATTN_RANGES; begin = ends[i++]) {
        const int32_t first = begin / MSGL_ATTN_TILE, last = first + tiles_of(begin, ends[i]);
        for (int32_t tile = first; tile < last; tile += unit) {
            item.kv_begin = tile > first ? tile * MSGL_ATTN_TILE : begin;
            item.kv_end = tile + unit < last ? (tile + unit) * MSGL_ATTN_TILE : ends[i];
            item.partial = p->num_partials + tile - first;
            p->works[p->num_works++] = item;
        }
        p->num_partials += last - first;
    }
}

// Whether tokens see those behind them: in all of a group's layers or none.
static bool bidirectional(const msgl_attn_config *cfg)
{
    return cfg->variants.count > 0 && cfg->variants.all[0].bidirectional;
}

// Adds the items of packed rows [row, end) of a request, which lie in one dual chunk. Last rows
// first: they see the most keys, and long tasks are best handed out early. With item.kv_end they
// all see keys up to there.
static void add_rows(const msgl_attn_config *cfg, const msgl_attn_workspace *w, msgl_attn_work item,
                     int32_t end, int32_t first_pos, int32_t rows, int32_t unit, msgl_attn_plan *p)
{
    const int32_t group = cfg->num_q_heads / cfg->num_kv_heads, begin = item.row, all = item.kv_end;
    int32_t at[MSGL_ATTN_RANGES];
    msgl__attn_ranges(cfg->dual_len, first_pos + begin / group, at);
    for (int32_t t = msgl__ceil_div(end - begin, rows) - 1; t >= 0; t--) {
        item.row = begin + t * rows;
        item.rows = end - item.row < rows ? end - item.row : rows;
        item.kv_end = all > 0 ? all : first_pos + (item.row + item.rows - 1) / group + 1;
        const int32_t ends[MSGL_ATTN_RANGES] = {at[1], at[2], item.kv_end};
        add_item(w, item, ends, unit, p);
    }
}

void msgl__attn_plan_tiles(const msgl_attn_config *cfg, const msgl_attn_workspace *w, int32_t bs,
                           const int32_t *cu_seqlens_q, const int32_t *seqlens_k, int32_t *ints,
                           msgl_attn_plan *p)
{
    (void)ints;
    const int32_t group = cfg->num_q_heads / cfg->num_kv_heads;
    const int32_t dual_len = cfg->dual_len;
    const int32_t rows = choose_rows(cfg, bs, cu_seqlens_q);
    int64_t cost = 0; // in tiles, over all items and heads
    int32_t most = 0; // rows of an item
    for (int32_t i = 0; i < bs; i++) {
        const int32_t packed = (cu_seqlens_q[i + 1] - cu_seqlens_q[i]) * group;
        const int32_t n = msgl__ceil_div(packed, rows);
        most = packed > most ? packed : most;
        cost += (int64_t)n * msgl__ceil_div(seqlens_k[i], MSGL_ATTN_TILE) * cfg->num_kv_heads;
    }
    const int64_t tiles = cost / ((int64_t)TASKS_PER_THREAD * cfg->num_threads); // per task
    p->heads_per_task = msgl__attn_heads_per_task(tiles < 1 << 20 ? (int32_t)tiles : 1 << 20,
                                                  cfg->num_kv_heads, most, cfg->head_dim);
    const int64_t unit = tiles / p->heads_per_task;
    p->num_works = p->num_groups = p->num_partials = 0;
    for (int32_t i = 0; i < bs; i++) {
        const int32_t q_len = cu_seqlens_q[i + 1] - cu_seqlens_q[i];
        const int32_t first_pos = seqlens_k[i] - q_len;
        // Dual chunks end pieces of rows; without them there is one piece.
        for (int32_t to = q_len, from = 0; to > 0; to = from) {
            from = dual_len > 0 ? (first_pos + to - 1) / dual_len * dual_len - first_pos : 0;
            from = from > 0 ? from : 0;
            const msgl_attn_work item = {
                .req = i, .row = from * group, .kv_end = bidirectional(cfg) ? seqlens_k[i] : 0};
            add_rows(cfg, w, item, to * group, first_pos, rows, unit > 1 ? (int32_t)unit : 1, p);
        }
    }
}

void msgl__attn_call_init(const msgl_attn_config *cfg, const msgl_attn_workspace *w,
                          const msgl_attn_layer *layer, const msgl_seqs *seqs,
                          const msgl_attn_input *in, void *out, msgl_attn_call *c)
{
    *c = (msgl_attn_call){.dtype = cfg->pool->spec.dtype,
                          .num_q_heads = cfg->num_q_heads,
                          .num_kv_heads = cfg->num_kv_heads,
                          .head_dim = cfg->head_dim,
                          .v_dim = cfg->pool->spec.v_dim,
                          .latent = msgl__attn_latent(cfg),
                          .k = msgl__kv_k(cfg->pool, layer->layer),
                          .v = msgl__kv_v(cfg->pool, layer->layer),
                          .q = in->q,
                          .ld_q = in->ld,
                          .out = out,
                          .ld_out = (size_t)cfg->num_q_heads * (size_t)cfg->pool->spec.v_dim,
                          .scale = layer->scale * msgl__attn_k_scale(cfg->pool, layer),
                          .softcap = layer->softcap,
                          .sinks = layer->sinks,
                          .out_scale = msgl__attn_v_scale(cfg->pool, layer),
                          .window = layer->window,
                          .chunk = layer->chunk,
                          .bidirectional = layer->bidirectional,
                          .dual_len = cfg->dual_len,
                          .q_next = (size_t)cfg->num_q_heads * (size_t)cfg->head_dim,
                          .cu_seqlens_q = seqs->cu_seqlens_q,
                          .seqlens_k = seqs->seqlens_k,
                          .tree = seqs->tree,
                          .partial_rows = w->partial_rows,
                          .partials = w->partials,
                          .pending = w->pending,
                          .scratch = w->scratch,
                          .scratch_stride = w->scratch_stride};
}
