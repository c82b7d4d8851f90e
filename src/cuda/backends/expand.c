// SPDX-License-Identifier: Apache-2.0
//
// Expanded prompts on GPUs. A step slot's set has the step's requests, then each pass's list of
// work, which is that of the prefill kernel (plan_prefill.h); one copy takes all of it to the
// device.
#include "cuda/backends/expand.h"

#include "core/mem.h"
#include "core/round.h"
#include "cuda/attn/expanded.h"
#include "cuda/backends/call.h"
#include "cuda/backends/plan_prefill.h"

enum {
    ALIGN = 64, // bytes
    HEAD = 128, // of the kernel: of K without its rotary part, and of V
    ROTARY = 64,
};

typedef struct list {
    size_t at, bytes; // in a step slot's set
} list;

struct msgl_expand_device {
    msgl_attn_config cfg;
    msgl_cuda_plans sets;
    size_t reqs_bytes;
    list *lists;   // [max_in_flight, MSGL_EXPAND_MAX_PASSES]
    int32_t *lens; // [4, max_running + 1] of a pass, for its list
};

static bool cuda_supports(const msgl_attn_needs *n, const msgl_attn_expanded *expanded)
{
    return n->capability / 10 == 9 && n->act == MSGL_BF16 && n->kv_dtype == MSGL_BF16 &&
           expanded->nope == HEAD && expanded->v_dim == HEAD && n->head_dim - n->v_dim == ROTARY &&
           n->v_dim % 8 == 0;
}

// Every pass of a range may have a tile of queries that is not full, as every request may.
static size_t lists_bytes(const msgl_attn_config *cfg)
{
    const int32_t heads = cfg->num_q_heads, t = cfg->max_step_tokens;
    const size_t ranges = MSGL_EXPAND_MAX_PASSES * msgl__fa_plan_prefill_size(heads, heads, 1, t);
    const size_t requests = msgl__fa_plan_prefill_size(heads, heads, cfg->max_running, t);
    return ranges + requests + (MSGL_EXPAND_MAX_PASSES + 1) * ALIGN;
}

static void cuda_destroy(msgl_expand_device *d)
{
    if (d == NULL) return;
    if (d->sets.dev != NULL) msgl__cuda_plans_destroy(&d->sets);
    msgl__free(d->lists);
    msgl__free(d->lens);
    msgl__free(d);
}

static int cuda_create(const msgl_attn_config *cfg, int32_t max_reqs, msgl_expand_device **out,
                       msgl_err *err)
{
    const size_t slots = (size_t)cfg->max_in_flight;
    msgl_expand_device *d = msgl__calloc(1, sizeof *d);
    if (d == NULL) return msgl__err_set(err, MSGL_ENOMEM, "expanded attention: out of memory");
    d->cfg = *cfg;
    d->reqs_bytes = msgl__round_up((size_t)max_reqs * sizeof(msgl_expand_req), ALIGN);
    d->lists = msgl__calloc(slots * MSGL_EXPAND_MAX_PASSES, sizeof *d->lists);
    d->lens = msgl__calloc(4 * ((size_t)cfg->max_running + 1), sizeof *d->lens);
    int code = msgl__cuda_plans_create(cfg, "expanded attention", d->reqs_bytes + lists_bytes(cfg),
                                       &d->sets, err);
    if (code == 0 && (d->lists == NULL || d->lens == NULL)) {
        code = msgl__err_set(err, MSGL_ENOMEM, "expanded attention: out of memory");
    }
    if (code != 0) {
        cuda_destroy(d);
        return code;
    }
    *out = d;
    return 0;
}

static msgl_expand_req *cuda_reqs(msgl_expand_device *d, int32_t step_slot)
{
    return (msgl_expand_req *)(void *)msgl__cuda_plan(&d->sets, step_slot);
}

// Where the kernel reads them.
static const msgl_expand_req *device_reqs(const msgl_expand_device *d)
{
    return (const msgl_expand_req *)(const void *)d->sets.device;
}

static list *lists_of(const msgl_expand_device *d, int32_t step_slot)
{
    return d->lists + (size_t)step_slot * MSGL_EXPAND_MAX_PASSES;
}

// Keys count from the pass's first of a request on, which is row row0 in place of a page table's.
static void cuda_plan(msgl_expand_device *d, int32_t step_slot, int32_t pass,
                      const msgl_expand_req *reqs, int32_t num_reqs)
{
    const size_t width = (size_t)d->cfg.max_running + 1;
    int32_t *cu = d->lens, *lens = cu + width, *keys = lens + width, *rows = keys + width;
    list *l = lists_of(d, step_slot) + pass;
    l->at = pass == 0 ? d->reqs_bytes : l[-1].at + msgl__round_up(l[-1].bytes, ALIGN);
    for (int32_t i = 0; i < num_reqs; i++) {
        const msgl_expand_req *r = &reqs[i];
        cu[i] = r->q_row;
        cu[i + 1] = r->q_row + r->tokens;
        lens[i] = r->pos + r->tokens - r->first;
        keys[i] = r->keys;
        rows[i] = r->row0;
    }
    const msgl_fa_prefill_batch b = {.num_q_heads = d->cfg.num_q_heads,
                                     .num_kv_heads = d->cfg.num_q_heads,
                                     .head_dim = HEAD,
                                     .elem_size = 2,
                                     .window = -1,
                                     .l2_bytes = msgl__cuda_device_l2_bytes(d->cfg.dev),
                                     .batch = num_reqs,
                                     .cu_seqlens_q = cu,
                                     .seqlens_k = lens,
                                     .keys = keys,
                                     .table_rows = rows};
    l->bytes = msgl__fa_plan_prefill(&b, msgl__cuda_plan(&d->sets, step_slot) + l->at);
}

static void cuda_copy_in(msgl_expand_device *d, int32_t step_slot, int32_t num_passes)
{
    const list *last = lists_of(d, step_slot) + num_passes - 1;
    msgl__cuda_plans_copy(&d->sets, step_slot, 0, last->at + last->bytes);
}

static void cuda_gather(msgl_expand_device *d, msgl_exec *x, int32_t step_slot, int32_t req0,
                        msgl_gather_call *c)
{
    (void)step_slot; // steps do not overlap on the device
    c->reqs = device_reqs(d) + req0;
    c->table = d->cfg.device_table;
    c->table_stride = d->cfg.device_table_stride;
    c->paging = msgl__paging_of(d->cfg.page_size);
    msgl__cuda_attn_result(x, "latent gather",
                           msgl__cuda_gather(c, msgl__cuda_device_stream(x->device)));
}

static void cuda_attend(msgl_expand_device *d, msgl_exec *x, int32_t step_slot, int32_t pass,
                        int32_t req0, msgl_expanded_call *c)
{
    c->reqs = device_reqs(d) + req0;
    c->plan = d->sets.device + lists_of(d, step_slot)[pass].at;
    msgl__cuda_attn_result(x, "expanded attention",
                           msgl__cuda_expanded(c, msgl__cuda_device_stream(x->device)));
}

const msgl_expand_kernels msgl__expand_cuda = {
    .by_default = true,
    .element = 2,
    .supports = cuda_supports,
    .create = cuda_create,
    .destroy = cuda_destroy,
    .reqs = cuda_reqs,
    .plan = cuda_plan,
    .copy_in = cuda_copy_in,
    .gather = cuda_gather,
    .attend = cuda_attend,
};
