// SPDX-License-Identifier: Apache-2.0
//
// fa on GPUs: our own kernels over the page table as it is. Decode needs no plan (the kernel shares
// out its work from the lengths in device memory), so a captured graph only needs new lengths; the
// longest that it is captured for decides between the kernels for few requests and for many.
// Prefill takes a work list per step and kind of layers; local attention the lists of local.h, of
// answers and chunks each their own.
//
// Latent caches have the kernel of mla_cuda.h in both phases.
//
// Drafts to be verified (trees) have a kernel that needs no plan. Heads of more than 256 elements,
// or with V of other dimensions than K, have one for all phases (wide_sm80.h), and attention both
// ways, of encoders, has the prefill kernel of all GPUs.
//
// Deterministic: the phase alone chooses the kernel, since a row's bits must not depend on how many
// other tokens its chunk has; otherwise single-token chunks take the decode kernel too.
#include "cuda/backends/fa.h"

#include "attention/paged.h"
#include "core/mem.h"
#include "core/round.h"
#include "cuda/attn/decode.h"
#include "cuda/attn/prefill.h"
#include "cuda/attn/reference.h"
#include "cuda/attn/prefill_sm80.h"
#include "cuda/attn/tree_sm80.h"
#include "cuda/attn/wide_sm80.h"
#include "cuda/backends/expand.h"
#include "cuda/backends/latent.h"
#include "cuda/backends/local.h"
#include "cuda/backends/plan_prefill.h"

// Layers that share what a step prepares.
typedef struct fa_kind {
    int32_t window, chunk;
} fa_kind;

enum { PHASES = 2 };

typedef struct fa_backend {
    msgl_attn_backend base;
    msgl_attn_config cfg;
    fa_kind kinds[MSGL_ATTN_MAX_VARIANTS]; // different ones of the model
    int32_t num_kinds;
    // Of each kind: a plan of prefill, and the lists of each phase.
    msgl_cuda_plans plans;
    size_t plan_bytes, lists_bytes;
    int32_t most; // virtual requests of a step
    size_t *used; // [max_in_flight, num_kinds] bytes of each plan; 0: none
    msgl_fa_local
        *local;      // [max_in_flight, num_kinds, PHASES], in host memory; of kinds with chunks
    size_t l2_bytes; // of the GPU
    void *workspace; // of decode: counters, then partials
    size_t workspace_bytes;
    void *tree_workspace; // in place of these partials
    msgl_mla_cuda mla;    // of a latent cache, which needs nothing of the above
} fa_backend;

static bool is_latent(const fa_backend *b)
{
    return b->cfg.pool->spec.kind == MSGL_CACHE_LATENT;
}

// Whether heads are none of those that the kernels of a phase are made for.
static bool is_wide(const msgl_attn_config *cfg)
{
    return !msgl__attn_latent(cfg) &&
           (cfg->head_dim > 256 || cfg->pool->spec.v_dim != cfg->head_dim);
}

static bool has_wide_kernel(const msgl_attn_config *cfg)
{
    return is_wide(cfg) &&
           msgl__fa_wide_fits(cfg->pool->spec.dtype, cfg->head_dim, cfg->pool->spec.v_dim);
}

// Whether tokens see those behind them: in all of a group's layers or none.
static bool sees_both_ways(const msgl_attn_config *cfg)
{
    return cfg->variants.count > 0 && cfg->variants.all[0].bidirectional;
}

static bool has_decode_kernel(const msgl_attn_config *cfg)
{
    return !is_wide(cfg) && !sees_both_ways(cfg) &&
           msgl__fa_decode_fits(msgl__cuda_attn_act(cfg), cfg->head_dim);
}

static void fa_destroy(msgl_attn_backend *base)
{
    fa_backend *b = (fa_backend *)base;
    if (b == NULL) return;
    msgl_device *d = b->cfg.dev;
    if (b->workspace != NULL) d->ops->free(d, b->workspace, b->workspace_bytes);
    msgl__cuda_plans_destroy(&b->plans);
    msgl__mla_cuda_close(&b->mla);
    msgl__free(b->used);
    msgl__free(b->local);
    msgl__free(b);
}

static int32_t place_of(const fa_backend *b, int32_t window, int32_t chunk)
{
    int32_t i = 0;
    while (i < b->num_kinds && (b->kinds[i].window != window || b->kinds[i].chunk != chunk)) i++;
    return i;
}

static void list_kinds(fa_backend *b)
{
    const msgl_attn_config *cfg = &b->cfg;
    const msgl_attn_variants *v = &cfg->variants;
    b->most = cfg->max_running;
    for (int32_t i = 0; i < v->count; i++) {
        const fa_kind kind = {.window = v->all[i].window, .chunk = v->all[i].chunk};
        if (place_of(b, kind.window, kind.chunk) == b->num_kinds) b->kinds[b->num_kinds++] = kind;
        if (kind.chunk == 0) continue;
        const int32_t most =
            msgl__fa_local_most(kind.chunk, cfg->max_running, cfg->max_step_tokens);
        b->most = most > b->most ? most : b->most;
        b->lists_bytes = msgl__fa_local_bytes(b->most);
    }
    if (b->num_kinds == 0) b->kinds[b->num_kinds++] = (fa_kind){.window = -1};
}

// Places in a set of `plans`: of a kind's plan, and of its lists for a phase.
static size_t plan_at(const fa_backend *b, int32_t kind)
{
    return (size_t)kind * (b->plan_bytes + PHASES * b->lists_bytes);
}

static size_t lists_at(const fa_backend *b, int32_t kind, msgl_phase phase)
{
    return plan_at(b, kind) + b->plan_bytes + (phase == MSGL_DECODE) * b->lists_bytes;
}

// A kind's virtual requests.
static msgl_fa_local *local_of(const fa_backend *b, const msgl_seqs *seqs, int32_t kind)
{
    const int32_t set = seqs->step_slot * b->num_kinds + kind;
    return &b->local[set * PHASES + (seqs->phase == MSGL_DECODE)];
}

static int take_memory(fa_backend *b, msgl_err *err)
{
    const msgl_attn_config *cfg = &b->cfg;
    list_kinds(b);
    b->plan_bytes = msgl__round_up(msgl__fa_plan_prefill_size(cfg->num_q_heads, cfg->num_kv_heads,
                                                              b->most, cfg->max_step_tokens),
                                   64);
    const size_t sets = (size_t)cfg->max_in_flight * (size_t)b->num_kinds;
    const int code = msgl__cuda_plans_create(cfg, "fa", plan_at(b, b->num_kinds), &b->plans, err);
    if (code != 0) return code;
    b->used = msgl__calloc(sets, sizeof *b->used);
    b->local = msgl__calloc(sets * PHASES, sizeof *b->local);
    b->workspace_bytes = msgl__fa_decode_workspace(
        cfg->num_q_heads, cfg->num_kv_heads, cfg->head_dim, cfg->max_running, cfg->deterministic);
    const size_t partials = msgl__fa_decode_region(cfg->num_q_heads, cfg->num_kv_heads,
                                                   cfg->head_dim, cfg->deterministic)
                                .partial_ml;
    const size_t tree = partials + msgl__attn_tree_workspace(cfg->num_q_heads, cfg->head_dim);
    if (b->workspace_bytes < tree && !cfg->deterministic) b->workspace_bytes = tree;
    if (has_wide_kernel(cfg)) {
        b->workspace_bytes =
            msgl__fa_wide_workspace(cfg->num_q_heads, cfg->head_dim, cfg->pool->spec.v_dim,
                                    cfg->max_running, cfg->deterministic);
    }
    b->workspace = cfg->dev->ops->alloc(cfg->dev, b->workspace_bytes);
    if (b->used != NULL && b->local != NULL && b->workspace != NULL) {
        if (!cfg->deterministic && !is_wide(cfg))
            b->tree_workspace = (char *)b->workspace + partials;
        return 0;
    }
    return msgl__err_set(err, MSGL_ENOMEM, "fa: no memory for a workspace of %zu bytes",
                         b->workspace_bytes);
}

static int fa_create(const msgl_attn_desc *desc, const msgl_attn_config *cfg,
                     msgl_attn_backend **out, msgl_err *err)
{
    fa_backend *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "fa: out of memory");
    b->base.desc = desc;
    b->cfg = *cfg;
    b->plans.dev = cfg->dev;
    b->l2_bytes = msgl__cuda_device_l2_bytes(cfg->dev);
    int code = msgl__attn_config_check(desc, cfg, err);
    if (code == 0) {
        code = is_latent(b) ? msgl__mla_cuda_open(desc, cfg, &b->mla, err) : take_memory(b, err);
    }
    if (code != 0) {
        fa_destroy(&b->base);
        return code;
    }
    *out = &b->base;
    return 0;
}

static int fa_supports(const msgl_attn_needs *n, msgl_err *err)
{
    const bool latent = n->cache == MSGL_CACHE_LATENT;
    for (int32_t i = 0; i < n->variants.count && (latent || n->tree); i++) {
        if (n->variants.all[i].chunk == 0) continue;
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "attention backend fa: no local attention over latent vectors or in "
                             "trees, on a GPU");
    }
    return latent ? msgl__mla_cuda_supports(n, err) : msgl__cuda_supports(n, err);
}

// local: NULL, or what stands for the sequences' requests.
static size_t plan_kind(const fa_backend *b, const msgl_seqs *seqs, int32_t window,
                        const msgl_fa_local *local, char *out)
{
    const msgl_attn_config *cfg = &b->cfg;
    msgl_fa_prefill_batch p = {.num_q_heads = cfg->num_q_heads,
                               .num_kv_heads = cfg->num_kv_heads,
                               .head_dim = cfg->head_dim,
                               .elem_size = (int32_t)msgl__dtype_size(cfg->pool->spec.dtype),
                               .window = window,
                               .l2_bytes = b->l2_bytes,
                               .batch = seqs->size,
                               .cu_seqlens_q = seqs->cu_seqlens_q,
                               .seqlens_k = seqs->seqlens_k,
                               .table_rows = seqs->table_rows};
    if (local != NULL) {
        p.batch = local->size;
        p.cu_seqlens_q = local->cu_seqlens_q;
        p.seqlens_k = local->seqlens_k;
        p.table_rows = local->table_rows;
    }
    return msgl__fa_plan_prefill(&p, out);
}

static bool decodes(const fa_backend *b, const msgl_seqs *seqs)
{
    return seqs->phase == MSGL_DECODE || (seqs->max_seqlen_q <= 1 && !b->cfg.deterministic);
}

// (Of E4M3, 16 bytes have to be of one head.)
static bool plans(const fa_backend *b, const msgl_seqs *seqs)
{
    const msgl_dtype kv = b->cfg.pool->spec.dtype;
    const bool has = kv == MSGL_E4M3 ? b->cfg.head_dim % 16 == 0 : kv != MSGL_F32;
    const bool own = is_latent(b) || is_wide(&b->cfg) || sees_both_ways(&b->cfg);
    return !own && !decodes(b, seqs) && !msgl__cuda_forks(seqs) && has;
}

static int fa_prepare(msgl_attn_backend *base, const msgl_seqs *seqs)
{
    fa_backend *b = (fa_backend *)base;
    char *to = msgl__cuda_plan(&b->plans, seqs->step_slot);
    for (int32_t i = 0; i < b->num_kinds; i++) {
        const fa_kind *kind = &b->kinds[i];
        msgl_fa_local *local = kind->chunk > 0 ? local_of(b, seqs, i) : NULL;
        if (local != NULL) {
            msgl__fa_local_place(to + lists_at(b, i, seqs->phase), b->most, local);
            msgl__fa_local_cut(seqs, kind->chunk, b->cfg.device_table_stride, local);
        }
        if (!plans(b, seqs)) continue;
        b->used[seqs->step_slot * b->num_kinds + i] =
            plan_kind(b, seqs, kind->window, local, to + plan_at(b, i));
    }
    return 0;
}

static void fa_copy_in(msgl_attn_backend *base, msgl_exec *x, const msgl_seqs *seqs)
{
    const fa_backend *b = (const fa_backend *)base;
    (void)x;
    for (int32_t i = 0; i < b->num_kinds; i++) {
        if (b->kinds[i].chunk > 0) {
            msgl__cuda_plans_copy(&b->plans, seqs->step_slot, lists_at(b, i, seqs->phase),
                                  b->lists_bytes);
        }
        if (!plans(b, seqs)) continue;
        msgl__cuda_plans_copy(&b->plans, seqs->step_slot, plan_at(b, i),
                              b->used[seqs->step_slot * b->num_kinds + i]);
    }
}

static void fa_begin(msgl_attn_backend *base, msgl_exec *x, const msgl_seqs *seqs)
{
    const fa_backend *b = (const fa_backend *)base;
    if (is_latent(b)) msgl__mla_cuda_begin(&b->mla, "fa", x, seqs);
}

static int32_t common_divisor(int32_t a, int32_t b)
{
    while (b != 0) {
        const int32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

// The call of virtual requests. Slots of a page of theirs follow each other as far as pages begin
// where chunks do.
static void attend_locally(const fa_backend *b, const msgl_seqs *seqs, int32_t kind,
                           msgl_cuda_attn_call *c)
{
    const msgl_fa_local *host = local_of(b, seqs, kind);
    msgl_fa_local lists;
    msgl__fa_local_place(b->plans.device + lists_at(b, kind, seqs->phase), b->most, &lists);
    c->batch = host->size;
    c->cu_seqlens_q = lists.cu_seqlens_q;
    c->seqlens_k = lists.seqlens_k;
    c->table_rows = lists.table_rows;
    c->table_stride = 1;
    c->page_size = common_divisor(c->page_size, b->kinds[kind].chunk);
    c->max_seqlen_q = host->max_seqlen_q;
    c->max_seqlen_k = host->max_seqlen_k;
}

// A call of layers that have the kernel of wide heads, or, without trees, any other.
static int launch(const fa_backend *b, const msgl_seqs *seqs, int32_t kind, msgl_cuda_attn_call *c,
                  void *stream)
{
    const msgl_dtype kv = b->cfg.pool->spec.dtype;
    if (has_wide_kernel(&b->cfg)) {
        const bool forks = msgl__cuda_forks(seqs);
        return msgl__cuda_fa_wide(c, !forks && decodes(b, seqs), forks ? seqs->dev_tree : NULL,
                                  stream);
    }
    if (plans(b, seqs)) {
        c->plan = b->plans.device + plan_at(b, kind);
        return msgl__cuda_fa_prefill(c, stream);
    }
    if (decodes(b, seqs) && has_decode_kernel(&b->cfg)) return msgl__cuda_fa_decode(c, stream);
    const bool both_ways = c->both_ways && c->v_dim == c->head_dim;
    return both_ways && msgl__fa_prefill_sm80_fits(kv, c->head_dim)
               ? msgl__cuda_fa_prefill_sm80(c, stream)
               : msgl__cuda_attn_reference(c, stream);
}

static void fa_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                       const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    const fa_backend *b = (const fa_backend *)base;
    const msgl_attn_config *cfg = &b->cfg;
    if (is_latent(b)) {
        msgl__mla_cuda_attend(&b->mla, "fa", x, layer, layer->scale, seqs, in, out);
        return;
    }
    if (msgl__cuda_forks(seqs) && !has_wide_kernel(cfg)) {
        msgl__cuda_attend_tree(cfg, "fa", x, layer, seqs, in, out, b->tree_workspace);
        return;
    }
    if (!msgl__cuda_attn_dtype(x, cfg)) return;
    msgl_cuda_attn_call c;
    msgl__cuda_attn_call(cfg, layer, seqs, in, out, &c);
    c.workspace = b->workspace;
    const int32_t kind = place_of(b, layer->window, layer->chunk);
    if (kind == b->num_kinds && (plans(b, seqs) || layer->chunk > 0)) { // not in the configuration
        if (x->status == 0) x->status = MSGL_EINVAL;
        return;
    }
    if (layer->chunk > 0) attend_locally(b, seqs, kind, &c);
    msgl__cuda_attn_result(x, "fa", launch(b, seqs, kind, &c, msgl__cuda_device_stream(x->device)));
}

// Length up to which `size` requests are decoded by the kernel for few (few.cu), which wants two
// SMs for every request and KV head: 64 of these fit an H200's 132. (With fewer SMs some of these
// batches have the other kernel after all, and a graph that is not needed.)
static int32_t fa_short_seq_len(const msgl_attn_backend *base, int32_t size)
{
    enum { ITEMS = 64 };
    const msgl_attn_config *cfg = &((const fa_backend *)base)->cfg;
    const int major = cfg->dev->capability / 10;
    const bool has = (major == 9 || major == 10) && !cfg->deterministic && cfg->head_dim <= 128 &&
                     cfg->pool->spec.dtype != MSGL_E4M3 && has_decode_kernel(cfg) &&
                     cfg->num_q_heads <= 8 * cfg->num_kv_heads && size * cfg->num_kv_heads <= ITEMS;
    return has ? MSGL_FA_FEW_LEN : 0;
}

// For few requests the rope kernel apart is faster, by half a microsecond a layer for one and a
// whole one for eight: the decode kernel starts while it runs. But not if they have the kernel
// that starts even earlier (docs/internals/fa-decode.md).
static bool fa_takes_rope(const msgl_attn_backend *base, const msgl_seqs *seqs)
{
    enum { FEW = 8 };
    const fa_backend *b = (const fa_backend *)base;
    const bool starts_early = seqs->max_seqlen_k <= fa_short_seq_len(base, seqs->size);
    return (starts_early || seqs->size > FEW) && decodes(b, seqs) && has_decode_kernel(&b->cfg);
}

const msgl_attn_desc msgl__attn_fa_cuda = {
    .name = "fa",
    .aliases = {"fa3", NULL},
    .summary = "own kernels: WGMMA prefill on Hopper, memory-speed decode on any GPU",
    .min_capability = 80,
    .page_rule = MSGL_PAGE_ANY,
    .caches = 1u << MSGL_CACHE_KV | 1u << MSGL_CACHE_LATENT,
    .expand = &msgl__expand_cuda,
    .max_dim = MSGL_ATTN_MAX_DIM,
    .own_v_dim = true,
    .kv_dtypes = 1u << MSGL_F32 | 1u << MSGL_F16 | 1u << MSGL_BF16 | 1u << MSGL_E4M3,
    .sliding_window = true,
    .local_chunks = true,
    .softcap = true,
    .sinks = true,
    .bidirectional = true,
    .tree = true,
    .graph = true,
    .device_lists = true,
    .verifies = true,
    .supports = fa_supports,
    .create = fa_create,
    .destroy = fa_destroy,
    .prepare = fa_prepare,
    .copy_in = fa_copy_in,
    .begin = fa_begin,
    .forward = fa_forward,
    .takes_rope = fa_takes_rope,
    .short_seq_len = fa_short_seq_len,
};
