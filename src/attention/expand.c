// SPDX-License-Identifier: Apache-2.0
#include "attention/expand.h"

#include <string.h>

#include "core/mem.h"

enum {
    TILE = 128,   // keys that a kernel may take at a time: ranges end there
    KV_MIB = 128, // of K and V that a pass has at most
};

// Requests [first, first + size) of the sequences: all of their keys, or keys [from, from + keys)
// of the one that it is.
typedef struct pass {
    int32_t first, size, from, keys;
    int32_t req0; // its first msgl_expand_req of the step
} pass;

typedef struct step_passes {
    int32_t num_passes, num_reqs;
    pass passes[MSGL_EXPAND_MAX_PASSES];
} step_passes;

struct msgl_expand {
    msgl_attn_config cfg;
    const msgl_expand_kernels *kernels;
    msgl_expand_device *device;
    int32_t max_keys;   // of a pass
    int32_t max_reqs;   // of a step, over all passes
    step_passes *steps; // [max_in_flight]
};

int32_t msgl__expand_keys(const msgl_attn_expanded *expanded, int32_t heads, size_t elem,
                          int32_t max_tokens)
{
    const size_t key = (size_t)heads * (size_t)(expanded->nope + expanded->v_dim) * elem;
    const size_t most = ((size_t)KV_MIB << 20) / key;
    if (expanded->prompts == MSGL_PROMPTS_ABSORBED || most < TILE) return 0;
    const int32_t keys = most < (size_t)max_tokens ? (int32_t)most : max_tokens;
    return keys / TILE * TILE;
}

int msgl__expand_create(const msgl_expand_kernels *kernels, const msgl_attn_config *cfg,
                        msgl_expand **out, msgl_err *err)
{
    *out = NULL;
    const int32_t keys =
        msgl__expand_keys(&cfg->expanded, cfg->num_q_heads, kernels->element, cfg->max_step_tokens);
    if (keys == 0) return 0;
    msgl_expand *e = msgl__calloc(1, sizeof *e);
    if (e == NULL) return msgl__err_set(err, MSGL_ENOMEM, "expanded attention: out of memory");
    e->cfg = *cfg;
    e->kernels = kernels;
    e->max_keys = keys;
    e->max_reqs = cfg->max_running + MSGL_EXPAND_MAX_PASSES;
    e->steps = msgl__calloc((size_t)cfg->max_in_flight, sizeof *e->steps);
    int code = kernels->create(cfg, e->max_reqs, &e->device, err);
    if (code == 0 && e->steps == NULL) {
        code = msgl__err_set(err, MSGL_ENOMEM, "expanded attention: out of memory");
    }
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
    e->kernels->destroy(e->device);
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
    if (s->num_passes == MSGL_EXPAND_MAX_PASSES || s->num_reqs + size > e->max_reqs) return false;
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
    for (int32_t i = 0; i < s->num_passes; i++) {
        const pass *p = &s->passes[i];
        msgl_expand_req *reqs = e->kernels->reqs(e->device, seqs->step_slot) + p->req0;
        describe(seqs, p, reqs);
        if (e->kernels->plan == NULL) continue;
        e->kernels->plan(e->device, seqs->step_slot, i, reqs, p->size);
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
    if (e->kernels->copy_in == NULL || s->num_passes == 0) return;
    e->kernels->copy_in(e->device, seqs->step_slot, s->num_passes);
}

int32_t msgl__expand_pass_keys(const msgl_expand *e, const msgl_seqs *seqs, int32_t i)
{
    return e->steps[seqs->step_slot].passes[i].keys;
}

const msgl_expand_req *msgl__expand_pass_reqs(const msgl_expand *e, const msgl_seqs *seqs,
                                              int32_t i, int32_t *num)
{
    const pass *p = &e->steps[seqs->step_slot].passes[i];
    *num = p->size;
    return e->kernels->reqs(e->device, seqs->step_slot) + p->req0;
}

void msgl__expand_gather(const msgl_expand *e, msgl_exec *x, const msgl_attn_layer *layer,
                         const msgl_seqs *seqs, int32_t i, void *latent, void *rotary_keys)
{
    const msgl_attn_config *cfg = &e->cfg;
    const msgl_kv_pool *pool = cfg->pool;
    const pass *p = &e->steps[seqs->step_slot].passes[i];
    msgl_gather_call c = {
        .num_reqs = p->size,
        .keys = p->keys,
        .rank = pool->spec.v_dim,
        .rotary = pool->spec.k_dim - pool->spec.v_dim,
        .dtype = pool->spec.dtype,
        .scale = msgl__attn_k_scale(pool, layer),
        .pool = msgl__kv_k(pool, layer->layer),
        .latent = latent,
        .rotary_keys = rotary_keys,
    };
    e->kernels->gather(e->device, x, seqs->step_slot, p->req0, &c);
}

void msgl__expand_attend(const msgl_expand *e, msgl_exec *x, const msgl_attn_layer *layer,
                         const msgl_seqs *seqs, int32_t i, const msgl_expand_io *io)
{
    const msgl_attn_config *cfg = &e->cfg;
    const pass *p = &e->steps[seqs->step_slot].passes[i];
    msgl_expanded_call c = {
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
    };
    e->kernels->attend(e->device, x, seqs->step_slot, i, p->req0, &c);
}
