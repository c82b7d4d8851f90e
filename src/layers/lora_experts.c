// SPDX-License-Identifier: Apache-2.0
//
// Adapters of experts. Assignments are sorted by expert and, within an expert, by row, so that
// those of one adapter stand next to each other: each such stretch is a run of gemm.lora, whose A
// and B's are those of the expert.
#include "layers/lora.h"

static const msgl_lora_experts *find(const msgl_lora *a, const msgl_moe_experts *e)
{
    int lo = 0, hi = a->num_experts;
    while (lo < hi) {
        const int mid = lo + (hi - lo) / 2;
        if (a->experts[mid].of == e) return &a->experts[mid];
        if (a->experts[mid].of < e) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return NULL;
}

// Runs of expert number `at` of those that are computed here, from assignment `i` to `end`.
static int add_runs(const msgl_lora_moe *m, bool second, int32_t at, const int32_t *source,
                    int32_t i, int32_t end, msgl_lora_run *runs)
{
    const int32_t top_k = m->experts->router.top_k;
    int num = 0;
    while (i < end) {
        const msgl_lora_experts *own = m->of_row[source[i] / top_k];
        const int32_t first = i++;
        while (i < end && m->of_row[source[i] / top_k] == own) i++;
        if (own == NULL) continue;
        const msgl_lora_expert *e = second ? &own->second[at] : &own->first[at];
        if (e->a.n == 0) continue;
        runs[num++] = (msgl_lora_run){.row = first,
                                      .rows = i - first,
                                      .a = &e->a,
                                      .parts = e->parts,
                                      .num_parts = e->num_parts};
    }
    return num;
}

static void add(void *ctx, bool second, const int32_t *offsets, const int32_t *source,
                const void *in, void *out)
{
    const msgl_lora_moe *m = ctx;
    const msgl_weight *w = second ? m->experts->down : m->experts->gate_up;
    int num = 0;
    for (int32_t e = 0; e < m->experts->own; e++) {
        num += add_runs(m, second, e, source, offsets[e], offsets[e + 1], m->runs + num);
    }
    if (num == 0) return;
    const msgl_lora_call c = {.runs = m->runs,
                              .num_runs = num,
                              .in = in,
                              .ld_in = (size_t)w->k,
                              .out = out,
                              .ld_out = (size_t)w->n};
    m->f->k->gemm.lora(m->f->x, &c);
    msgl__arena_reset(m->f->x->scratch);
}

size_t msgl__lora_moe_bytes(const msgl_moe_experts *e, msgl_dtype act, size_t rows)
{
    const size_t n = rows * (size_t)e->router.top_k;
    return msgl__round_up(rows * sizeof(msgl_lora_experts *), 64) +
           msgl__round_up(n * sizeof(msgl_lora_run), 64) +
           (e->plain ? 0 : msgl__activation_bytes(n, (size_t)e->gate_up[0].n, act));
}

const msgl_moe_adapters *msgl__lora_moe(msgl_forward *f, const msgl_moe_experts *e, int32_t rows,
                                        msgl_lora_moe *own)
{
    const msgl_lora_step *s = f->lora;
    bool any = false;
    for (int32_t i = 0; s != NULL && i < s->num_tokens && !any; i++) {
        any = find(s->tokens[i].adapter, e) != NULL;
    }
    if (!any) return NULL;
    const size_t n = (size_t)rows * (size_t)e->router.top_k;
    *own = (msgl_lora_moe){.f = f, .experts = e, .calls = {.add = add, .ctx = own}};
    own->of_row = msgl__arena_alloc(f->arena, (size_t)rows * sizeof *own->of_row);
    own->runs = msgl__arena_alloc(f->arena, n * sizeof *own->runs);
    if (own->of_row == NULL || own->runs == NULL) {
        f->x->status = MSGL_EINTERNAL;
        return NULL;
    }
    for (int32_t r = 0; r < rows; r++) own->of_row[r] = NULL;
    for (int32_t i = 0; i < s->num_tokens; i++) {
        const msgl_lora_rows *l = &s->tokens[i];
        const msgl_lora_experts *of = find(l->adapter, e);
        const int32_t from = l->row > s->first ? l->row - s->first : 0;
        const int32_t to = l->row + l->rows - s->first;
        for (int32_t r = from; r < to && r < rows; r++) own->of_row[r] = of;
    }
    return &own->calls;
}
