// SPDX-License-Identifier: Apache-2.0
//
// Expanded prompts on the CPU: its kernels read the requests and the page table where they are.
#include "attention/expand.h"

#include "core/mem.h"

struct msgl_expand_device {
    msgl_attn_config cfg;
    int32_t max_reqs;
    msgl_expand_req *reqs; // [max_in_flight, max_reqs]
};

static bool cpu_supports(const msgl_attn_needs *n, const msgl_attn_expanded *expanded)
{
    (void)n, (void)expanded;
    return true;
}

static void cpu_destroy(msgl_expand_device *d)
{
    if (d == NULL) return;
    msgl__free(d->reqs);
    msgl__free(d);
}

static int cpu_create(const msgl_attn_config *cfg, int32_t max_reqs, msgl_expand_device **out,
                      msgl_err *err)
{
    msgl_expand_device *d = msgl__calloc(1, sizeof *d);
    if (d != NULL) {
        *d = (msgl_expand_device){.cfg = *cfg, .max_reqs = max_reqs};
        d->reqs = msgl__calloc((size_t)cfg->max_in_flight * (size_t)max_reqs, sizeof *d->reqs);
    }
    if (d == NULL || d->reqs == NULL) {
        cpu_destroy(d);
        return msgl__err_set(err, MSGL_ENOMEM, "expanded attention: out of memory");
    }
    *out = d;
    return 0;
}

static msgl_expand_req *cpu_reqs(msgl_expand_device *d, int32_t step_slot)
{
    return d->reqs + (size_t)step_slot * (size_t)d->max_reqs;
}

static void cpu_gather(msgl_expand_device *d, msgl_exec *x, int32_t step_slot, int32_t req0,
                       msgl_gather_call *c)
{
    c->reqs = cpu_reqs(d, step_slot) + req0;
    const msgl_page_table *t = d->cfg.page_table;
    c->table = t->pages;
    c->table_stride = (size_t)t->stride * (size_t)t->paging.size;
    c->paging = t->paging;
    d->cfg.kernels->attn.gather(x, c);
}

static void cpu_attend(msgl_expand_device *d, msgl_exec *x, int32_t step_slot, int32_t pass,
                       int32_t req0, msgl_expanded_call *c)
{
    (void)pass;
    c->reqs = cpu_reqs(d, step_slot) + req0;
    d->cfg.kernels->attn.expanded(x, c);
}

const msgl_expand_kernels msgl__expand_cpu = {
    .element = sizeof(float),
    .supports = cpu_supports,
    .create = cpu_create,
    .destroy = cpu_destroy,
    .reqs = cpu_reqs,
    .gather = cpu_gather,
    .attend = cpu_attend,
};
