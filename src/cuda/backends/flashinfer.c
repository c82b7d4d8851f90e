// SPDX-License-Identifier: Apache-2.0
//
// flashinfer on GPUs: fi, but a chunk is computed in two calls, as SGLang's backend of this name
// does. New tokens attend to each other, K and V in rows one behind the other (ragged, causal);
// then to the prefix in its pages, which all of them see; the two results are merged by their LSE,
// in base 2. A step without any prefix is the first call alone.
//
// New K and V are in the pool before attention begins, so a kernel takes them out of it into rows
// first. fi itself computes what one call over all keys does better or alone can: answers, trees,
// --deterministic, layers with a window (where the prefix's end would be another key for each
// query), latent caches and E4M3.
#include "attention/paged.h"
#include "core/mem.h"
#include "core/round.h"
#include "cuda/backends/fi.h"

typedef struct side { // of the step's chunks: new tokens, or prefixes
    msgl_fi_kernel kernel;
    size_t at; // offset in the set of the step's slot
    msgl_fi_planned planned;
} side;

typedef struct step { // what is planned for the step of one step slot
    side fresh, prefix;
    bool any_prefix;
    size_t used; // bytes of the set
} step;

typedef struct memory { // device
    int32_t *pages;     // ragged lists of the prefixes
    void *k_rows, *v_rows, *other, *workspace;
    float *lse, *other_lse;
} memory;

typedef struct flashinfer {
    msgl_attn_backend base;
    msgl_attn_config cfg;
    msgl_attn_backend *fi;
    bool merges;   // else fi does everything
    bool windowed; // some layers' chunks are fi's too
    const msgl_fi_api *api;
    msgl_fi_shape shape, ragged; // of the prefix's pages, of rows
    bool hopper;
    // A set: prefixes and new tokens of each request, which stay on the host, then page_indptr,
    // last_page_len and the two plans.
    msgl_cuda_plans sets;
    size_t ints, plan_bytes;
    step *steps; // [max_in_flight]
    void *block; // all of m
    size_t block_bytes, workspace_bytes;
    memory m;
} flashinfer;

static int flashinfer_supports(const msgl_attn_needs *n, msgl_err *err)
{
    return msgl__attn_fi_cuda.supports(n, err);
}

static void flashinfer_destroy(msgl_attn_backend *base)
{
    flashinfer *b = (flashinfer *)base;
    if (b == NULL) return;
    msgl_device *d = b->cfg.dev;
    if (b->fi != NULL) b->fi->desc->destroy(b->fi);
    if (b->block != NULL) d->ops->free(d, b->block, b->block_bytes);
    msgl__cuda_plans_destroy(&b->sets);
    msgl__free(b->steps);
    msgl__free(b);
}

// Whether any layer's chunks are computed in two calls, and by which kernels.
static void choose(flashinfer *b)
{
    const msgl_attn_config *cfg = &b->cfg;
    const msgl_cache_spec *pool = &cfg->pool->spec;
    const int32_t capability = cfg->dev->capability;
    bool whole = cfg->variants.count == 0, capped = false;
    for (int32_t i = 0; i < cfg->variants.count; i++) {
        const msgl_attn_variant *v = &cfg->variants.all[i];
        b->windowed = b->windowed || v->window >= 0;
        whole = whole || v->window < 0;
        capped = capped || v->softcap > 0;
    }
    b->merges = whole && !cfg->deterministic && pool->kind == MSGL_CACHE_KV &&
                b->api->has(&b->ragged, MSGL_FI_RAGGED, capability) &&
                b->api->has(&b->shape, MSGL_FI_PREFIX, capability);
    b->hopper = !capped && b->api->has(&b->ragged, MSGL_FI_RAGGED_HOPPER, capability) &&
                b->api->has(&b->shape, MSGL_FI_PREFIX_HOPPER, capability);
}

// Gives all device memory its places from *at on; with at counting from NULL, measures it.
static void carve(flashinfer *b, char **at)
{
    const msgl_attn_config *cfg = &b->cfg;
    memory *m = &b->m;
    const size_t tokens = (size_t)cfg->max_step_tokens, dim = (size_t)cfg->head_dim;
    const size_t element = msgl__dtype_size(b->shape.dtype);
    const size_t rows = tokens * (size_t)cfg->num_q_heads;
    const size_t kv = tokens * (size_t)cfg->num_kv_heads * dim * element;
    const size_t pages = (size_t)msgl__ceil_div(cfg->max_seq_len, cfg->page_size);
    m->k_rows = msgl__attn_carve(at, kv);
    m->v_rows = msgl__attn_carve(at, kv);
    m->other = msgl__attn_carve(at, rows * dim * element);
    m->workspace = msgl__attn_carve(at, b->workspace_bytes);
    m->lse = msgl__attn_carve(at, rows * sizeof *m->lse);
    m->other_lse = msgl__attn_carve(at, rows * sizeof *m->other_lse);
    m->pages = msgl__attn_carve(at, (size_t)cfg->max_running * pages * sizeof *m->pages);
}

static int take_memory(flashinfer *b, msgl_err *err)
{
    const msgl_attn_config *cfg = &b->cfg;
    msgl_device *d = cfg->dev;
    b->api->sizes(&b->shape, cfg->max_running, cfg->max_step_tokens, &b->plan_bytes,
                  &b->workspace_bytes);
    b->plan_bytes = msgl__round_up(b->plan_bytes, 64);
    b->ints = msgl__round_up(((size_t)cfg->max_running + 1) * sizeof(int32_t), 64);
    const int code =
        msgl__cuda_plans_create(cfg, "flashinfer", 4 * b->ints + 2 * b->plan_bytes, &b->sets, err);
    if (code != 0) return code;
    b->steps = msgl__calloc((size_t)cfg->max_in_flight, sizeof *b->steps);
    char *at = NULL;
    carve(b, &at);
    b->block_bytes = (size_t)(uintptr_t)at;
    b->block = d->ops->alloc(d, b->block_bytes);
    if (b->steps == NULL || b->block == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM,
                             "flashinfer: no memory for %zu bytes of rows and partial results",
                             b->block_bytes);
    }
    at = b->block;
    carve(b, &at);
    return 0;
}

static int flashinfer_create(const msgl_attn_desc *desc, const msgl_attn_config *cfg,
                             msgl_attn_backend **out, msgl_err *err)
{
    flashinfer *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "flashinfer: out of memory");
    b->base.desc = desc;
    b->cfg = *cfg;
    b->sets.dev = cfg->dev;
    b->shape = msgl__fi_shape(cfg);
    b->ragged = b->shape;
    b->ragged.page_size = 1;
    int code = msgl__attn_fi_cuda.create(&msgl__attn_fi_cuda, cfg, &b->fi, err);
    if (code == 0 && (b->api = msgl__fi_open(err)) == NULL) code = MSGL_EUNSUPPORTED;
    if (code == 0) choose(b);
    if (code == 0 && b->merges) code = take_memory(b, err);
    if (code != 0) {
        flashinfer_destroy(&b->base);
        return code;
    }
    *out = &b->base;
    return 0;
}

// Whether these sequences' layers without a window are computed in two calls.
static bool in_two(const flashinfer *b, const msgl_seqs *seqs)
{
    return b->merges && seqs->phase == MSGL_PREFILL && !msgl__cuda_forks(seqs);
}

static bool needs_fi(const flashinfer *b, const msgl_seqs *seqs)
{
    return b->windowed || !in_two(b, seqs);
}

// The lengths of both sides: arrays of the set.
static void fill_lengths(const flashinfer *b, const msgl_seqs *seqs, int32_t *set, step *s)
{
    const size_t ints = b->ints / sizeof(int32_t);
    int32_t *prefix = set, *fresh = set + ints, *indptr = set + 2 * ints, *last = set + 3 * ints;
    for (int32_t i = 0; i < seqs->size; i++) {
        fresh[i] = seqs->cu_seqlens_q[i + 1] - seqs->cu_seqlens_q[i];
        prefix[i] = seqs->seqlens_k[i] - fresh[i];
    }
    msgl__fi_count_pages(prefix, seqs->size, b->shape.page_size, indptr, last);
    s->any_prefix = indptr[seqs->size] > 0;
    s->used = 4 * b->ints;
}

// Plans a side whose keys are kv_len, in pages (or rows) of indptr.
static int plan_side(const flashinfer *b, const msgl_seqs *seqs, const msgl_fi_shape *shape,
                     const int32_t *indptr, const int32_t *kv_len, step *s, side *to)
{
    char *set = msgl__cuda_plan(&b->sets, seqs->step_slot);
    to->at = s->used;
    const msgl_fi_plan_call c = {.shape = *shape,
                                 .kernel = to->kernel,
                                 .batch = seqs->size,
                                 .qo_indptr = seqs->cu_seqlens_q,
                                 .page_indptr = indptr,
                                 .kv_len = kv_len,
                                 .window = -1,
                                 .float_bytes = b->workspace_bytes,
                                 .staging = set + to->at,
                                 .staging_bytes = b->plan_bytes};
    msgl_err *fault = &b->cfg.dev->fault;
    const int code = b->api->plan(&c, &to->planned, fault->code == 0 ? fault : NULL);
    s->used += msgl__round_up(to->planned.bytes, 64);
    return code;
}

static int plan_sides(const flashinfer *b, const msgl_seqs *seqs)
{
    const size_t ints = b->ints / sizeof(int32_t);
    const bool hopper = b->hopper && msgl__fi_hopper_wins(seqs);
    step *s = &b->steps[seqs->step_slot];
    int32_t *set = (int32_t *)msgl__cuda_plan(&b->sets, seqs->step_slot);
    fill_lengths(b, seqs, set, s);
    s->fresh.kernel = hopper ? MSGL_FI_RAGGED_HOPPER : MSGL_FI_RAGGED;
    s->prefix.kernel = hopper ? MSGL_FI_PREFIX_HOPPER : MSGL_FI_PREFIX;
    const int code = plan_side(b, seqs, &b->ragged, seqs->cu_seqlens_q, set + ints, s, &s->fresh);
    if (code != 0 || !s->any_prefix) return code;
    return plan_side(b, seqs, &b->shape, set + 2 * ints, set, s, &s->prefix);
}

static int flashinfer_prepare(msgl_attn_backend *base, const msgl_seqs *seqs)
{
    const flashinfer *b = (const flashinfer *)base;
    const int code = needs_fi(b, seqs) ? b->fi->desc->prepare(b->fi, seqs) : 0;
    return code == 0 && in_two(b, seqs) ? plan_sides(b, seqs) : code;
}

static void flashinfer_copy_in(msgl_attn_backend *base, msgl_exec *x, const msgl_seqs *seqs)
{
    const flashinfer *b = (const flashinfer *)base;
    if (needs_fi(b, seqs)) b->fi->desc->copy_in(b->fi, x, seqs);
    if (!in_two(b, seqs)) return;
    const size_t host = 2 * b->ints;
    msgl__cuda_plans_copy(&b->sets, seqs->step_slot, host, b->steps[seqs->step_slot].used - host);
}

static void flashinfer_begin(msgl_attn_backend *base, msgl_exec *x, const msgl_seqs *seqs)
{
    const flashinfer *b = (const flashinfer *)base;
    if (needs_fi(b, seqs)) b->fi->desc->begin(b->fi, x, seqs);
    if (!in_two(b, seqs) || !b->steps[seqs->step_slot].any_prefix) return;
    msgl__fi_list_pages(b->api, base, &b->cfg, x, seqs,
                        (const int32_t *)(b->sets.device + 2 * b->ints), b->m.pages);
}

// New tokens among themselves, into out and m.lse; *r is left for the other side to change.
static int run_fresh(const flashinfer *b, const msgl_seqs *seqs, const step *s, msgl_fi_run_call *r,
                     void *stream)
{
    const size_t row = (size_t)b->shape.num_kv_heads * (size_t)b->shape.head_dim *
                       msgl__dtype_size(b->shape.dtype);
    const msgl_fi_rows_call rows = {.batch = seqs->size,
                                    .total_q = seqs->num_tokens,
                                    .row_bytes = row,
                                    .table = b->cfg.device_table,
                                    .table_stride = b->cfg.device_table_stride,
                                    .paging = msgl__paging_of(b->cfg.page_size),
                                    .table_rows = seqs->dev_table_rows,
                                    .qo_indptr = seqs->dev_cu_seqlens_q,
                                    .kv_len = seqs->dev_seqlens_k,
                                    .k = r->k,
                                    .v = r->v,
                                    .k_rows = b->m.k_rows,
                                    .v_rows = b->m.v_rows};
    const int code = b->api->rows(&rows, stream);
    if (code != 0) return code;
    msgl_fi_run_call fresh = *r;
    fresh.shape = b->ragged;
    fresh.plan = &s->fresh.planned;
    fresh.plan_arrays = b->sets.device + s->fresh.at;
    fresh.k = b->m.k_rows;
    fresh.v = b->m.v_rows;
    return b->api->run(&fresh, stream);
}

// The same queries over the prefix, and both results become one.
static int run_prefix(const flashinfer *b, const step *s, msgl_fi_run_call *r, void *stream)
{
    const msgl_fi_merge_call merge = {.dtype = r->shape.dtype,
                                      .rows = (int64_t)r->total_q * r->shape.num_q_heads,
                                      .head_dim = r->shape.head_dim,
                                      .out = r->out,
                                      .lse = r->lse,
                                      .other = b->m.other,
                                      .other_lse = b->m.other_lse};
    const char *set = b->sets.device;
    r->plan = &s->prefix.planned;
    r->plan_arrays = set + s->prefix.at;
    r->page_indptr = (const int32_t *)(set + 2 * b->ints);
    r->last_page_len = (const int32_t *)(set + 3 * b->ints);
    r->pages = b->m.pages;
    r->out = b->m.other;
    r->lse = b->m.other_lse;
    const int code = b->api->run(r, stream);
    return code == 0 ? b->api->merge(&merge, stream) : code;
}

static void flashinfer_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                               const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    const flashinfer *b = (const flashinfer *)base;
    const msgl_attn_config *cfg = &b->cfg;
    if (needs_fi(b, seqs) && (!in_two(b, seqs) || layer->window >= 0)) {
        b->fi->desc->forward(b->fi, x, layer, seqs, in, out);
        return;
    }
    if (!msgl__cuda_attn_dtype(x, cfg)) return;
    const step *s = &b->steps[seqs->step_slot];
    const bool hopper = s->fresh.kernel == MSGL_FI_RAGGED_HOPPER;
    if (layer->window >= 0 || (layer->softcap > 0 && hopper)) { // that the configuration lacks
        if (x->status == 0) x->status = MSGL_EINVAL;
        return;
    }
    msgl_fi_run_call r = {.shape = b->shape,
                          .batch = seqs->size,
                          .total_q = seqs->num_tokens,
                          .q = in->q,
                          .ld_q = in->ld,
                          .k = msgl__kv_k(cfg->pool, layer->layer),
                          .v = msgl__kv_v(cfg->pool, layer->layer),
                          .out = out,
                          .lse = b->m.lse,
                          .scale = layer->scale,
                          .softcap = layer->softcap,
                          .out_scale = 1,
                          .window = -1,
                          .qo_indptr = seqs->dev_cu_seqlens_q,
                          .float_workspace = b->m.workspace};
    void *stream = msgl__cuda_device_stream(x->device);
    int code = run_fresh(b, seqs, s, &r, stream);
    if (code == 0 && s->any_prefix) code = run_prefix(b, s, &r, stream);
    if (code == 0 && layer->sinks != NULL) {
        code = msgl__fi_add_sinks(cfg, layer, seqs, b->m.lse, out, stream);
    }
    msgl__cuda_attn_result(x, "flashinfer", code);
}

const msgl_attn_desc msgl__attn_flashinfer_cuda = {
    MSGL_FI_CUDA,
    .name = "flashinfer",
    .summary = "fi, chunks as ragged new tokens and paged prefix, merged",
    .supports = flashinfer_supports,
    .create = flashinfer_create,
    .destroy = flashinfer_destroy,
    .prepare = flashinfer_prepare,
    .copy_in = flashinfer_copy_in,
    .begin = flashinfer_begin,
    .forward = flashinfer_forward,
};
