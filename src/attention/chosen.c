// SPDX-License-Identifier: Apache-2.0
#include "attention/chosen.h"

#include "attention/fa/fa.h"
#include "attention/paged.h"
#include "core/attributes.h"
#include "core/mem.h"
#include "core/round.h"
#include "kernel/device.h"

enum {
    ROWS = 64,                // tokens of a call; of lists made here, on the CPU MSGL_INDEX_ROWS
    DEVICE_SCORES = 64 << 20, // bytes of scores that a device holds at a time, about
    // Of a device whose heads choose blocks: most tokens of a call, and bytes of scores and lists.
    BLOCK_ROWS = 256,
    DEVICE_BLOCKS = 64 << 20,
};

// Of a device with memory of its own.
typedef struct chosen_device {
    msgl_device *dev; // NULL: there is none
    msgl_attn_backend *backend;
    // The lists of a call's tokens, [heads, rows, list_keys], which are the backend's page table;
    // 0, 1, 2, ..., [heads * rows + 1].
    int32_t *table, *numbers;
    void *memory; // of both, and of what the kernels that choose write
    size_t bytes;
} chosen_device;

struct msgl_attn_chosen {
    msgl_attn_config cfg; // of a call, which is about one KV head
    const msgl_page_table *page_table;
    const int32_t *pages; // that kernels read, and integers from row to row
    size_t page_stride;
    msgl_attn_choosing what;
    int32_t heads;      // KV heads
    int32_t rows;       // most tokens of a call
    int32_t list_keys;  // most of a list
    int32_t max_scores; // of a token and head
    int32_t score_rows; // tokens whose scores are held at a time
    int32_t *numbers;   // 0, 1, 2, ..., [heads * rows + 1]; of a device memory that it copies from
    // Where kernels write, the device's or this process's: [score_rows, heads, max_scores]; of
    // blocks or windows [heads, rows, list_keys], and [heads, rows].
    float *scores;
    int32_t *keys, *counts;
    msgl_attn_workspace ws;
    msgl_attn_work *works;
    msgl_attn_group *groups;
    chosen_device device;
};

static size_t numbers_bytes(const msgl_attn_chosen *c)
{
    return ((size_t)c->heads * (size_t)c->rows + 1) * sizeof *c->numbers;
}

void msgl__chosen_destroy(msgl_attn_chosen *c)
{
    if (c == NULL) return;
    chosen_device *d = &c->device;
    if (d->backend != NULL) d->backend->desc->destroy(d->backend);
    if (d->memory != NULL) d->dev->ops->free(d->dev, d->memory, d->bytes);
    msgl__attn_workspace_destroy(&c->ws);
    msgl__free(c->works);
    msgl__free(c->groups);
    if (d->dev != NULL) {
        if (c->numbers != NULL) d->dev->ops->host_free(d->dev, c->numbers, numbers_bytes(c));
    } else {
        msgl__free(c->numbers);
        msgl__free(c->scores);
        msgl__free(c->keys);
        msgl__free(c->counts);
    }
    msgl__free(c);
}

// All keys of a list are seen, whatever the window of the layers that have it.
static void see_all(msgl_attn_variants *v)
{
    for (int32_t i = 0; i < v->count; i++) v->all[i].window = -1;
}

int msgl__chosen_select(const msgl_attn_needs *needs, const msgl_attn_desc **out, msgl_err *err)
{
    msgl_attn_needs n = *needs;
    n.page_size = 1;
    see_all(&n.variants);
    for (const msgl_attn_desc *const *d = n.backends->all; *d != NULL; d++) {
        msgl_err why = {0};
        *out = *d;
        if ((*d)->device_lists && msgl__attn_supports(*d, &n, &why) == 0) return 0;
    }
    if (n.cache == MSGL_CACHE_KV) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "attention to chosen blocks (index_topk_blocks): no kernel on %s for "
                             "%d query heads of %d elements in %s for each KV head",
                             n.backends->device, (int)n.num_q_heads, (int)n.head_dim,
                             msgl__dtype_name(n.kv_dtype));
    }
    return msgl__err_set(err, MSGL_EUNSUPPORTED,
                         "sparse attention (index_topk): no kernel on %s for %d heads over vectors "
                         "of %d + %d in %s; allowed: bfloat16, float16",
                         n.backends->device, (int)n.num_q_heads, (int)n.v_dim,
                         (int)(n.head_dim - n.v_dim), msgl__dtype_name(n.kv_dtype));
}

static bool of_blocks(const msgl_attn_chosen *c)
{
    return c->what.block_size > 0;
}

// Whether it makes the lists itself, and not its caller.
static bool makes_lists(const msgl_attn_chosen *c)
{
    return of_blocks(c) || c->what.list_keys > 0;
}

static int32_t clamp(size_t n, int32_t lo, int32_t hi)
{
    return n < (size_t)lo ? lo : n > (size_t)hi ? hi : (int32_t)n;
}

// Most scores that a token and head have of a request's keys, or blocks of them.
static int32_t scores_of(const msgl_attn_choosing *what, int32_t max_seq_len)
{
    if (what->block_size > 0) return msgl__ceil_div(max_seq_len, what->block_size);
    if (what->top_k == 0) return 0;
    return what->every > 1 ? max_seq_len / what->every : max_seq_len;
}

// How many tokens are scored at a time, and attended to.
static void set_rows(msgl_attn_chosen *c, bool on_host)
{
    const size_t scores = (size_t)c->heads * (size_t)c->max_scores * sizeof(float);
    const size_t lists = (size_t)c->heads * (2 * (size_t)c->list_keys + 1) * sizeof(int32_t);
    c->rows = makes_lists(c) && on_host ? MSGL_INDEX_ROWS : ROWS;
    c->score_rows = MSGL_INDEX_ROWS;
    if (!on_host && of_blocks(c)) {
        c->rows = clamp(DEVICE_BLOCKS / (scores + lists), MSGL_INDEX_ROWS, BLOCK_ROWS);
        c->score_rows = c->rows;
    } else if (!on_host && scores > 0) {
        c->score_rows = clamp(DEVICE_SCORES / scores, MSGL_INDEX_ROWS, 16 * ROWS);
    }
    c->cfg.max_running = c->cfg.max_step_tokens = c->rows;
}

static int make_numbers(msgl_attn_chosen *c, msgl_err *err)
{
    msgl_device *d = c->device.dev;
    const size_t bytes = numbers_bytes(c), n = bytes / sizeof *c->numbers;
    c->numbers = d != NULL ? d->ops->host_alloc(d, bytes) : msgl__calloc(1, bytes);
    if (c->numbers == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM, "chosen keys: no memory for %zu bytes", bytes);
    }
    for (size_t i = 0; i < n; i++) c->numbers[i] = (int32_t)i;
    return 0;
}

static int open_device(msgl_attn_chosen *c, const msgl_attn_config *cfg, const msgl_attn_desc *desc,
                       msgl_err *err)
{
    chosen_device *d = &c->device;
    const size_t of_rows = (size_t)c->heads * (size_t)c->rows;
    const size_t lists = of_rows * (size_t)c->list_keys * sizeof(int32_t);
    const size_t numbers = numbers_bytes(c);
    const size_t scores =
        (size_t)c->score_rows * (size_t)c->heads * (size_t)c->max_scores * sizeof(float);
    const size_t sizes[] = {lists, numbers, scores, makes_lists(c) ? lists : 0,
                            makes_lists(c) ? of_rows * sizeof(int32_t) : 0};
    for (size_t i = 0; i < MSGL_COUNT(sizes); i++) d->bytes += msgl__round_up(sizes[i], 64);
    d->memory = cfg->dev->ops->alloc(cfg->dev, d->bytes);
    if (d->memory == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM, "chosen keys: no memory for %zu bytes", d->bytes);
    }
    char *at = d->memory;
    d->table = msgl__attn_carve(&at, sizes[0]);
    d->numbers = msgl__attn_carve(&at, sizes[1]);
    c->scores = msgl__attn_carve(&at, sizes[2]);
    c->keys = msgl__attn_carve(&at, sizes[3]);
    c->counts = msgl__attn_carve(&at, sizes[4]);
    cfg->dev->ops->copy_in(cfg->dev, d->numbers, c->numbers, numbers);
    c->pages = cfg->device_table;
    c->page_stride = cfg->device_table_stride / (size_t)cfg->page_size;
    c->cfg.device_table = d->table;
    c->cfg.device_table_stride = (size_t)c->list_keys;
    return desc->create(desc, &c->cfg, &d->backend, err);
}

static int open_host(msgl_attn_chosen *c, msgl_err *err)
{
    const size_t lists = makes_lists(c) ? (size_t)c->heads * (size_t)c->rows : 0;
    int rc = msgl__attn_config_check(&msgl__attn_fa, &c->cfg, err);
    if (rc != 0) return rc;
    c->pages = c->page_table->pages;
    c->page_stride = (size_t)c->page_table->stride;
    msgl__attn_workspace_limits(&c->cfg, &c->ws);
    rc = msgl__attn_workspace_create(&c->cfg, &c->ws, err);
    if (rc != 0) return rc;
    c->works = msgl__calloc((size_t)c->ws.max_works, sizeof *c->works);
    c->groups = msgl__calloc((size_t)c->ws.max_groups, sizeof *c->groups);
    c->scores = msgl__calloc((size_t)c->score_rows * (size_t)c->heads * (size_t)c->max_scores,
                             sizeof *c->scores);
    c->keys = msgl__calloc(lists * (size_t)c->list_keys, sizeof *c->keys);
    c->counts = msgl__calloc(lists, sizeof *c->counts);
    if (c->works != NULL && c->groups != NULL && c->scores != NULL && c->keys != NULL &&
        c->counts != NULL) {
        return 0;
    }
    return msgl__err_set(err, MSGL_ENOMEM, "chosen keys: no memory for lists of %d and %d scores",
                         (int)c->list_keys, (int)c->max_scores);
}

static void set_sizes(const msgl_attn_config *cfg, const msgl_attn_choosing *what,
                      msgl_attn_chosen *c)
{
    c->what = *what;
    const bool blocks = of_blocks(c);
    c->heads = cfg->num_kv_heads;
    c->max_scores = scores_of(what, cfg->max_seq_len);
    c->list_keys = what->list_keys > 0 ? what->list_keys
                   : blocks            ? what->top_k * what->block_size
                                       : what->top_k;
    if (what->mean_queries > 0) c->list_keys += what->block_size - 1; // behind the last whole block
    c->page_table = cfg->page_table;
    c->cfg = *cfg;
    c->cfg.num_q_heads = cfg->num_q_heads / c->heads;
    c->cfg.num_kv_heads = 1;
    c->cfg.page_size = 1;
    c->cfg.max_seq_len = c->list_keys;
    see_all(&c->cfg.variants);
}

int msgl__chosen_create(const msgl_attn_config *cfg, const msgl_attn_desc *desc,
                        const msgl_attn_choosing *what, msgl_attn_chosen **out, msgl_err *err)
{
    const msgl_kv_pool *pool = cfg->pool;
    const int64_t slots = ((int64_t)pool->num_pages + 1) * cfg->page_size;
    if (slots * (what->list_keys > 0 ? 2 : cfg->num_kv_heads) > INT32_MAX) { // keys of windows
        return msgl__err_set(err, MSGL_ELIMIT,
                             "chosen keys: %d pages of %d tokens with %d KV heads are more than "
                             "2^31 places; lower --num-pages",
                             (int)pool->num_pages, (int)cfg->page_size, (int)cfg->num_kv_heads);
    }
    msgl_attn_chosen *c = msgl__calloc(1, sizeof *c);
    if (c == NULL) return msgl__err_set(err, MSGL_ENOMEM, "chosen keys: out of memory");
    set_sizes(cfg, what, c);
    set_rows(c, desc == NULL);
    if (desc != NULL) c->device.dev = cfg->dev;
    int rc = make_numbers(c, err);
    if (rc == 0) rc = desc != NULL ? open_device(c, cfg, desc, err) : open_host(c, err);
    if (rc != 0) {
        msgl__chosen_destroy(c);
        return rc;
    }
    *out = c;
    return 0;
}

void msgl__chosen_choose(const msgl_attn_chosen *c, msgl_exec *x,
                         const msgl_index_choose_call *call)
{
    msgl_index_choose_call full = *call;
    full.top_k = c->what.top_k;
    full.pages = c->pages;
    full.page_stride = c->page_stride;
    full.page_size = c->page_table->paging.size;
    full.scores = c->scores;
    full.score_rows = c->score_rows;
    full.max_keys = c->max_scores;
    c->cfg.kernels->index.choose(x, &full);
}

// Makes lists [heads, n, list_keys] the backend's page table. Kernels may read lengths, page table
// and keys before the kernel ahead of them has ended (cuda/launch.cuh): the copy of the lists,
// which no kernel overtakes, is behind what has made these and their lengths.
static void take_lists(const msgl_attn_chosen *c, int32_t heads, int32_t n, const int32_t *lists)
{
    const chosen_device *d = &c->device;
    const size_t num = (size_t)heads * (size_t)n;
    d->dev->ops->copy(d->dev, d->table, lists, num * (size_t)c->list_keys * sizeof *lists);
}

// Of n tokens, which are requests of one token, with list `first` and those behind it. What begin
// queues either lets no kernel start early or is waited for.
static void attend_on_device(const msgl_attn_chosen *c, msgl_exec *x, const msgl_attn_layer *layer,
                             int32_t first, int32_t n, const int32_t *counts,
                             const msgl_attn_input *in, void *out)
{
    const chosen_device *d = &c->device;
    const msgl_seqs seqs = {.phase = MSGL_DECODE,
                            .size = n,
                            .num_tokens = n,
                            .max_seqlen_q = 1,
                            .max_seqlen_k = c->list_keys,
                            .dev_cu_seqlens_q = d->numbers,
                            .dev_seqlens_k = counts,
                            .dev_table_rows = d->numbers + first,
                            .graph = true};
    d->backend->desc->begin(d->backend, x, &seqs);
    d->backend->desc->forward(d->backend, x, layer, &seqs, in, out);
}

// Up to c->rows tokens: lists [tokens, list_keys] and counts [tokens] of one KV head, its queries
// and where its results go.
static void attend_lists(const msgl_attn_chosen *c, msgl_exec *x, const msgl_attn_layer *layer,
                         int32_t tokens, const int32_t *lists, const int32_t *counts,
                         const float *q, size_t ld, float *out, size_t out_ld)
{
    const msgl_attn_kernels *k = &c->cfg.kernels->attn;
    const msgl_seqs seqs = {
        .size = tokens, .num_tokens = tokens, .cu_seqlens_q = c->numbers, .seqlens_k = counts};
    const msgl_attn_input in = {.q = q, .ld = ld};
    msgl_attn_plan plan = {.works = c->works, .groups = c->groups};
    msgl_attn_call call;
    msgl__attn_plan_tiles(&c->cfg, &c->ws, tokens, seqs.cu_seqlens_q, seqs.seqlens_k, NULL, &plan);
    msgl__attn_call_init(&c->cfg, &c->ws, layer, &seqs, &in, out, &call);
    call.ld_out = out_ld;
    call.pages = lists;
    call.page_stride = (size_t)c->list_keys;
    call.page_size = 1;
    call.works = plan.works;
    call.groups = plan.groups;
    call.num_works = plan.num_works;
    call.heads_per_task = plan.heads_per_task;
    call.partial_kind = MSGL_ATTN_PARTIAL_TILE;
    k->paged(k, x, &call);
}

void msgl__chosen_attend(const msgl_attn_chosen *c, msgl_exec *x, const msgl_attn_layer *layer,
                         int32_t tokens, const int32_t *slots, const int32_t *counts, const void *q,
                         size_t ld, void *out)
{
    const size_t elem = c->device.dev != NULL ? msgl__dtype_size(x->act) : sizeof(float);
    const size_t out_ld = (size_t)c->cfg.num_q_heads * (size_t)c->cfg.pool->spec.v_dim;
    for (int32_t t = 0; t < tokens; t += ROWS) {
        const int32_t n = tokens - t < ROWS ? tokens - t : ROWS;
        const int32_t *of = slots + (size_t)t * (size_t)c->list_keys;
        const void *from = (const char *)q + (size_t)t * ld * elem;
        void *to = (char *)out + (size_t)t * out_ld * elem;
        if (c->device.dev != NULL) {
            const msgl_attn_input in = {.q = from, .ld = ld};
            take_lists(c, 1, n, of);
            attend_on_device(c, x, layer, 0, n, counts + t, &in, to);
        } else {
            attend_lists(c, x, layer, n, of, counts + t, from, ld, to, out_ld);
        }
    }
}

// Of tokens [first, first + n), for which lists have been made.
static void attend_heads(const msgl_attn_chosen *c, msgl_exec *x, const msgl_attn_layer *layer,
                         int32_t first, int32_t n, const void *q, size_t ld, void *out)
{
    const bool on_device = c->device.dev != NULL;
    const size_t elem = on_device ? msgl__dtype_size(x->act) : sizeof(float);
    const size_t of_q = (size_t)c->cfg.num_q_heads * (size_t)c->cfg.head_dim; // of a KV head
    const size_t of_out = (size_t)c->cfg.num_q_heads * (size_t)c->cfg.pool->spec.v_dim;
    const size_t out_ld = (size_t)c->heads * of_out;
    if (on_device) take_lists(c, c->heads, n, c->keys);
    for (int32_t h = 0; h < c->heads; h++) {
        const size_t list = (size_t)h * (size_t)n;
        const void *from = (const char *)q + ((size_t)first * ld + (size_t)h * of_q) * elem;
        void *to = (char *)out + ((size_t)first * out_ld + (size_t)h * of_out) * elem;
        if (on_device) {
            const msgl_attn_input in = {.q = from, .ld = ld, .ld_out = out_ld};
            attend_on_device(c, x, layer, h * n, n, c->counts + list, &in, to);
        } else {
            attend_lists(c, x, layer, n, c->keys + list * (size_t)c->list_keys, c->counts + list,
                         from, ld, to, out_ld);
        }
    }
}

void msgl__chosen_store_means(const msgl_attn_chosen *c, msgl_exec *x,
                              const msgl_index_means_store_call *call)
{
    msgl_index_means_store_call full = *call;
    full.pages = c->pages;
    full.page_stride = c->page_stride;
    full.page_size = c->page_table->paging.size;
    c->cfg.kernels->index.store_means(x, &full);
}

// The lists of tokens [first, first + n) of seqs.
static void choose_blocks(const msgl_attn_chosen *c, msgl_exec *x, const msgl_seqs *seqs,
                          const msgl_attn_block_index *index, int32_t first, int32_t n)
{
    const msgl_index_kernels *k = &c->cfg.kernels->index;
    const msgl_index_blocks_call call = {.seqs = seqs,
                                         .first = first,
                                         .tokens = n,
                                         .heads = c->heads,
                                         .dim = index->dim,
                                         .queries = c->what.mean_queries,
                                         .size = c->what.block_size,
                                         .top_k = c->what.top_k,
                                         .local = c->what.local_blocks,
                                         .q = index->q,
                                         .ld_q = index->ld_q,
                                         .dtype = index->dtype,
                                         .pool = index->pool,
                                         .pages = c->pages,
                                         .page_stride = c->page_stride,
                                         .page_size = c->page_table->paging.size,
                                         .scores = c->scores,
                                         .max_blocks = c->max_scores,
                                         .keys = c->keys,
                                         .counts = c->counts};
    (c->what.mean_queries > 0 ? k->choose_means : k->choose_blocks)(x, &call);
}

void msgl__chosen_attend_blocks(const msgl_attn_chosen *c, msgl_exec *x,
                                const msgl_attn_layer *layer, const msgl_seqs *seqs,
                                const msgl_attn_block_index *index, const void *q, size_t ld,
                                void *out)
{
    for (int32_t t = 0; t < seqs->num_tokens && x->status == 0; t += c->rows) {
        const int32_t left = seqs->num_tokens - t, n = left < c->rows ? left : c->rows;
        choose_blocks(c, x, seqs, index, t, n);
        attend_heads(c, x, layer, t, n, q, ld, out);
    }
}

void msgl__chosen_attend_window(const msgl_attn_chosen *c, msgl_exec *x,
                                const msgl_attn_layer *layer, const msgl_seqs *seqs,
                                const msgl_attn_listing *what, const void *q, size_t ld, void *out)
{
    for (int32_t t = 0; t < seqs->num_tokens && x->status == 0; t += c->rows) {
        const int32_t left = seqs->num_tokens - t, n = left < c->rows ? left : c->rows;
        const msgl_index_list_call call = {.seqs = seqs,
                                           .first = t,
                                           .tokens = n,
                                           .window = what->window,
                                           .every = what->every,
                                           .shift = what->shift,
                                           .chosen = what->chosen,
                                           .chosen_counts = what->counts,
                                           .ld_chosen = (size_t)c->what.top_k,
                                           .pages = c->pages,
                                           .page_stride = c->page_stride,
                                           .page_size = c->page_table->paging.size,
                                           .keys = c->keys,
                                           .counts = c->counts,
                                           .ld_keys = (size_t)c->list_keys};
        c->cfg.kernels->index.list(x, &call);
        attend_heads(c, x, layer, t, n, q, ld, out); // of one KV head
    }
}
