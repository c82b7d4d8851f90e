// SPDX-License-Identifier: Apache-2.0
#include "attention/expand.h"

#include <string.h>

#include "attention/cuda_call.h"
#include "attention/fa/plan_prefill.h"
#include "core/mem.h"
#include "core/round.h"
#include "kernel/cuda/plugin.h"

enum {
    TILE = 128,      // keys that a GPU's kernel takes at a time: ranges end there
    MAX_PASSES = 64, // of a step; one that needs more is not expanded
    KV_MIB = 128,    // of K and V that a pass has at most
    PLAN_ALIGN = 64, // bytes
    GPU_HEAD = 128,  // of the GPU's kernel: of K without its rotary part, and of V
    GPU_ROTARY = 64,
};

// Requests [first, first + size) of the sequences: all of their keys, or keys [from, from + keys)
// of the one that it is.
typedef struct pass {
    int32_t first, size, from, keys;
    int32_t req0; // its first msgl_expand_req of the step
    size_t plan;  // a GPU's: offset and bytes in the set of its step slot
    size_t plan_bytes;
} pass;

typedef struct step_passes {
    int32_t num_passes, num_reqs;
    pass passes[MAX_PASSES];
} step_passes;

struct msgl_expand {
    msgl_attn_config cfg;
    int32_t max_keys;      // of a pass
    int32_t max_reqs;      // of a step, over all passes
    step_passes *steps;    // [max_in_flight]
    msgl_expand_req *reqs; // [max_in_flight, max_reqs], on the CPU; on a GPU they are in `plans`
    // A GPU's: each step slot's set has its requests, then the passes' lists of work.
    msgl_cuda_plans plans;
    size_t reqs_bytes;
    int32_t *lens; // [4, max_running + 1] of a pass, for its list
};

bool msgl__expand_supports(const msgl_attn_needs *n, const msgl_attn_expanded *expanded)
{
    if (n->device == MSGL_DEVICE_CPU) return true;
    return n->capability / 10 == 9 && n->act == MSGL_BF16 && n->kv_dtype == MSGL_BF16 &&
           expanded->nope == GPU_HEAD && expanded->v_dim == GPU_HEAD &&
           n->head_dim - n->v_dim == GPU_ROTARY && n->v_dim % 8 == 0;
}

int32_t msgl__expand_keys(const msgl_attn_expanded *expanded, int32_t heads, size_t elem,
                          int32_t max_tokens)
{
    const size_t key = (size_t)heads * (size_t)(expanded->nope + expanded->v_dim) * elem;
    const size_t most = ((size_t)KV_MIB << 20) / key;
    if (expanded->prompts == MSGL_PROMPTS_ABSORBED || most < TILE) return 0;
    const int32_t keys = most < (size_t)max_tokens ? (int32_t)most : max_tokens;
    return keys / TILE * TILE;
}

static int32_t heads_of(const msgl_expand *e)
{
    return e->cfg.num_q_heads;
}

// Every pass of a range may have a tile of queries that is not full, as every request may.
static size_t plans_bytes(const msgl_expand *e)
{
    const int32_t heads = heads_of(e), t = e->cfg.max_step_tokens;
    const size_t ranges = MAX_PASSES * msgl__fa_plan_prefill_size(heads, heads, 1, t);
    const size_t requests = msgl__fa_plan_prefill_size(heads, heads, e->cfg.max_running, t);
    return ranges + requests + (MAX_PASSES + 1) * PLAN_ALIGN;
}

static int take_memory(msgl_expand *e, msgl_err *err)
{
    const msgl_attn_config *cfg = &e->cfg;
    const size_t step_slots = (size_t)cfg->max_in_flight, reqs = (size_t)e->max_reqs;
    e->steps = msgl__calloc(step_slots, sizeof *e->steps);
    e->reqs_bytes = msgl__round_up(reqs * sizeof *e->reqs, PLAN_ALIGN);
    bool all = e->steps != NULL;
    if (cfg->device == MSGL_DEVICE_CPU) {
        e->reqs = msgl__calloc(step_slots * reqs, sizeof *e->reqs);
        all = all && e->reqs != NULL;
    } else {
        e->plans.dev = cfg->dev;
        e->lens = msgl__calloc(4 * ((size_t)cfg->max_running + 1), sizeof *e->lens);
        const int code = msgl__cuda_plans_create(cfg, "expanded attention",
                                                 e->reqs_bytes + plans_bytes(e), &e->plans, err);
        if (code != 0) return code;
        all = all && e->lens != NULL;
    }
    return all ? 0 : msgl__err_set(err, MSGL_ENOMEM, "expanded attention: out of memory");
}

int msgl__expand_create(const msgl_attn_config *cfg, msgl_expand **out, msgl_err *err)
{
    *out = NULL;
    const int32_t keys =
        msgl__expand_keys(&cfg->expanded, cfg->num_q_heads,
                          cfg->device == MSGL_DEVICE_CPU ? sizeof(float) : 2, cfg->max_step_tokens);
    if (keys == 0) return 0;
    msgl_expand *e = msgl__calloc(1, sizeof *e);
    if (e == NULL) return msgl__err_set(err, MSGL_ENOMEM, "expanded attention: out of memory");
    e->cfg = *cfg;
    e->max_keys = keys;
    e->max_reqs = cfg->max_running + MAX_PASSES;
    const int code = take_memory(e, err);
    if (code != 0) {
        msgl__expand_destroy(e);
        return code;
    }
    *out = e;
    return 0;
}

void msgl__expand_destroy(msgl_expand *e)
{
    if (e == NULL) return;
    if (e->plans.dev != NULL) msgl__cuda_plans_destroy(&e->plans);
    msgl__free(e->lens);
    msgl__free(e->reqs);
    msgl__free(e->steps);
    msgl__free(e);
}

// By operations: absorbed, a pair of query and key costs 2 rank + rotary a head and expanded nope +
// rotary + v_dim; but keys before the new tokens are expanded for this step alone. (Those of the
// new tokens cost what absorbing their queries and W_UV behind the sum do.)
static bool is_cheaper(const msgl_expand *e, const msgl_seqs *seqs)
{
    const msgl_cache_spec *spec = &e->cfg.pool->spec;
    const double head = e->cfg.expanded.nope + e->cfg.expanded.v_dim, rank = spec->v_dim;
    double pairs = 0, cached = 0;
    for (int32_t i = 0; i < seqs->size; i++) {
        const double n = seqs->cu_seqlens_q[i + 1] - seqs->cu_seqlens_q[i];
        const double before = seqs->seqlens_k[i] - n;
        pairs += n * (before + (n + 1) / 2);
        cached += before;
    }
    return pairs * (2 * rank - head) > cached * rank * head;
}

// Of requests [first, first + size), or of keys from `from` on of the one.
static bool add_pass(const msgl_expand *e, step_passes *s, int32_t first, int32_t size,
                     int32_t from, int32_t keys)
{
    if (s->num_passes == MAX_PASSES || s->num_reqs + size > e->max_reqs) return false;
    s->passes[s->num_passes++] =
        (pass){.first = first, .size = size, .from = from, .keys = keys, .req0 = s->num_reqs};
    s->num_reqs += size;
    return true;
}

// Whole requests as long as they fit, ranges of those that do not.
static bool cut(const msgl_expand *e, const msgl_seqs *seqs, step_passes *s)
{
    for (int32_t i = 0; i < seqs->size;) {
        const int32_t first = i;
        int32_t keys = 0;
        while (i < seqs->size && seqs->seqlens_k[i] <= e->max_keys - keys) {
            keys += seqs->seqlens_k[i++];
        }
        if (i > first && !add_pass(e, s, first, i - first, 0, keys)) return false;
        if (i > first) continue;
        for (int32_t at = 0; at < seqs->seqlens_k[i]; at += e->max_keys) {
            const int32_t rest = seqs->seqlens_k[i] - at;
            const int32_t n = rest < e->max_keys ? rest : e->max_keys;
            if (!add_pass(e, s, i, 1, at, n)) return false;
        }
        i++;
    }
    return true;
}

// Of the requests of a pass: queries that see none of its keys are left out.
static void describe(const msgl_seqs *seqs, const pass *p, msgl_expand_req *reqs)
{
    int32_t row0 = 0;
    for (int32_t i = 0; i < p->size; i++) {
        const int32_t req = p->first + i, len = seqs->seqlens_k[req];
        const int32_t row = seqs->cu_seqlens_q[req], rows = seqs->cu_seqlens_q[req + 1] - row;
        const int32_t pos = len - rows, skip = p->from > pos ? p->from - pos : 0;
        reqs[i] = (msgl_expand_req){.row0 = row0,
                                    .first = p->from,
                                    .keys = p->size == 1 ? p->keys : len,
                                    .table_row = seqs->table_rows[req],
                                    .q_row = row + skip,
                                    .tokens = rows - skip,
                                    .pos = pos + skip};
        row0 += reqs[i].keys;
    }
}

// The kernel's list: keys count from the pass's first of a request on, which is row row0 in place
// of a page table's.
static size_t plan(const msgl_expand *e, const msgl_expand_req *reqs, int32_t num_reqs, char *to)
{
    const size_t width = (size_t)e->cfg.max_running + 1;
    int32_t *cu = e->lens, *lens = cu + width, *keys = lens + width, *rows = keys + width;
    for (int32_t i = 0; i < num_reqs; i++) {
        const msgl_expand_req *r = &reqs[i];
        cu[i] = r->q_row;
        cu[i + 1] = r->q_row + r->tokens;
        lens[i] = r->pos + r->tokens - r->first;
        keys[i] = r->keys;
        rows[i] = r->row0;
    }
    const msgl_fa_prefill_batch b = {.num_q_heads = heads_of(e),
                                     .num_kv_heads = heads_of(e),
                                     .head_dim = GPU_HEAD,
                                     .elem_size = 2,
                                     .window = -1,
                                     .l2_bytes = e->cfg.cuda->l2_bytes(e->cfg.dev),
                                     .batch = num_reqs,
                                     .cu_seqlens_q = cu,
                                     .seqlens_k = lens,
                                     .keys = keys,
                                     .table_rows = rows};
    return msgl__fa_plan_prefill(&b, to);
}

static msgl_expand_req *host_reqs(const msgl_expand *e, int32_t set)
{
    if (e->reqs != NULL) return e->reqs + (size_t)set * (size_t)e->max_reqs;
    return (msgl_expand_req *)(void *)msgl__cuda_plan(&e->plans, set);
}

static bool are_chunks(const msgl_seqs *seqs)
{
    return seqs->phase == MSGL_PREFILL && seqs->tree == NULL && !seqs->graph;
}

int32_t msgl__expand_prepare(msgl_expand *e, const msgl_seqs *seqs)
{
    if (!are_chunks(seqs)) return 0;
    step_passes *s = &e->steps[seqs->step_slot];
    s->num_passes = s->num_reqs = 0;
    const bool all = e->cfg.expanded.prompts == MSGL_PROMPTS_EXPANDED;
    if (!(all || is_cheaper(e, seqs)) || !cut(e, seqs, s)) {
        s->num_passes = 0;
        return 0;
    }
    size_t at = e->reqs_bytes;
    for (int32_t i = 0; i < s->num_passes; i++) {
        pass *p = &s->passes[i];
        msgl_expand_req *reqs = host_reqs(e, seqs->step_slot) + p->req0;
        describe(seqs, p, reqs);
        if (e->reqs != NULL) continue;
        p->plan = at;
        p->plan_bytes = plan(e, reqs, p->size, msgl__cuda_plan(&e->plans, seqs->step_slot) + at);
        at += msgl__round_up(p->plan_bytes, PLAN_ALIGN);
    }
    return s->num_passes;
}

int32_t msgl__expand_passes(const msgl_expand *e, const msgl_seqs *seqs)
{
    return e != NULL && are_chunks(seqs) ? e->steps[seqs->step_slot].num_passes : 0;
}

void msgl__expand_copy_in(msgl_expand *e, const msgl_seqs *seqs)
{
    const step_passes *s = &e->steps[seqs->step_slot];
    if (e->reqs != NULL || s->num_passes == 0) return;
    const pass *last = &s->passes[s->num_passes - 1];
    msgl__cuda_plans_copy(&e->plans, seqs->step_slot, 0, last->plan + last->plan_bytes);
}

int32_t msgl__expand_pass_keys(const msgl_expand *e, const msgl_seqs *seqs, int32_t i)
{
    return e->steps[seqs->step_slot].passes[i].keys;
}

static const msgl_expand_req *reqs_of(const msgl_expand *e, const msgl_seqs *seqs, const pass *p)
{
    if (e->reqs != NULL) return host_reqs(e, seqs->step_slot) + p->req0;
    return (const msgl_expand_req *)(const void *)e->plans.device + p->req0;
}

void msgl__expand_gather(const msgl_expand *e, msgl_exec *x, const msgl_attn_layer *layer,
                         const msgl_seqs *seqs, int32_t i, void *latent, void *rotary_keys)
{
    const msgl_attn_config *cfg = &e->cfg;
    const msgl_kv_pool *pool = cfg->pool;
    const pass *p = &e->steps[seqs->step_slot].passes[i];
    const bool cpu = cfg->device == MSGL_DEVICE_CPU;
    const msgl_gather_call c = {
        .reqs = reqs_of(e, seqs, p),
        .num_reqs = p->size,
        .keys = p->keys,
        .rank = pool->spec.v_dim,
        .rotary = pool->spec.k_dim - pool->spec.v_dim,
        .dtype = pool->spec.dtype,
        .scale = msgl__attn_k_scale(pool, layer),
        .pool = msgl__kv_k(pool, layer->layer),
        .table = cpu ? cfg->page_table->slots : cfg->device_table,
        .table_stride = cpu ? (size_t)cfg->page_table->stride : cfg->device_table_stride,
        .latent = latent,
        .rotary_keys = rotary_keys,
    };
    if (cpu) {
        cfg->kernels->attn.gather(x, &c);
        return;
    }
    const struct msgl_cuda_api *api = cfg->cuda;
    msgl__cuda_attn_result(x, "latent gather", api->attn->gather(&c, api->stream(x->device)));
}

void msgl__expand_attend(const msgl_expand *e, msgl_exec *x, const msgl_attn_layer *layer,
                         const msgl_seqs *seqs, int32_t i, const msgl_expand_io *io)
{
    const msgl_attn_config *cfg = &e->cfg;
    const pass *p = &e->steps[seqs->step_slot].passes[i];
    const msgl_expanded_call c = {
        .reqs = reqs_of(e, seqs, p),
        .num_reqs = p->size,
        .keys = p->keys,
        .heads = cfg->num_q_heads,
        .nope = cfg->expanded.nope,
        .rotary = cfg->pool->spec.k_dim - cfg->pool->spec.v_dim,
        .v_dim = cfg->expanded.v_dim,
        .scale = layer->scale,
        .q = io->q,
        .ld_q = io->ld_q,
        .tokens = seqs->num_tokens,
        .kv = io->kv,
        .rotary_keys = io->rotary_keys,
        .out = io->out,
        .lse = io->lse,
        .merges = p->from > 0,
        .partial_out = io->partial_out,
        .partial_lse = io->partial_lse,
        .plan = e->reqs != NULL ? NULL : e->plans.device + p->plan,
    };
    if (cfg->device == MSGL_DEVICE_CPU) {
        cfg->kernels->attn.expanded(x, &c);
        return;
    }
    const struct msgl_cuda_api *api = cfg->cuda;
    msgl__cuda_attn_result(x, "expanded attention",
                           api->attn->expanded(&c, api->stream(x->device)));
}
