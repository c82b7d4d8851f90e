// SPDX-License-Identifier: Apache-2.0
//
// Adapters of experts. Assignments are sorted by expert and, within an expert, by row, so that
// those of one adapter stand next to each other: each such stretch is a run of gemm.lora, whose A
// and B's are those of the expert. By tiles the device finds them itself (gemm.lora_members).
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

static void add_by_runs(void *ctx, const msgl_moe_product *p)
{
    const msgl_lora_moe *m = ctx;
    const msgl_weight *w = p->second ? m->experts->down : m->experts->gate_up;
    int num = 0;
    for (int32_t e = 0; e < m->experts->own; e++) {
        num +=
            add_runs(m, p->second, e, p->source, p->offsets[e], p->offsets[e + 1], m->runs + num);
    }
    if (num == 0) return;
    const msgl_lora_call c = {.runs = m->runs,
                              .num_runs = num,
                              .in = p->in,
                              .ld_in = (size_t)w->k,
                              .out = p->out,
                              .ld_out = (size_t)w->n};
    m->f->k->gemm.lora(m->f->x, &c);
    msgl__arena_reset(m->f->x->scratch);
}

static msgl_lora_members_call members_of(const msgl_lora_moe *m, const msgl_moe_product *p)
{
    const msgl_weight *w = p->second ? m->experts->down : m->experts->gate_up;
    msgl_lora_members_call c = m->members;
    c.base = p->second ? m->experts->own : 0;
    c.members = m->experts->own;
    c.source = p->source;
    c.ids = p->ids;
    c.top_k = m->experts->router.top_k;
    c.first_id = m->experts->first;
    c.places = p->assignments;
    c.k = w->k;
    c.in = p->in;
    c.ld_in = (size_t)w->k;
    c.by_token = p->by_token;
    c.out = p->out;
    c.ld_out = (size_t)w->n;
    c.by_choice = p->by_choice;
    return c;
}

static void add_by_tiles(void *ctx, const msgl_moe_product *p)
{
    const msgl_lora_moe *m = ctx;
    const msgl_lora_members_call c = members_of(m, p);
    m->f->k->gemm.lora_members(m->f->x, &c);
}

static void gate_by_tiles(void *ctx, const msgl_moe_product *p, void *act)
{
    const msgl_lora_moe *m = ctx;
    msgl_lora_members_call c = members_of(m, p);
    c.k = m->experts->gate_up->n / 2;
    c.in = p->out;
    c.ld_in = (size_t)m->experts->gate_up->n;
    c.by_token = false;
    c.out = act;
    c.ld_out = (size_t)c.k;
    m->f->k->gemm.lora_gate(m->f->x, &c, m->experts->activation);
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
    if (s == NULL) return NULL;
    if (s->table != NULL) {
        *own = (msgl_lora_moe){.f = f,
                               .experts = e,
                               .calls = {.add = add_by_tiles, .gate = gate_by_tiles, .ctx = own}};
        return msgl__lora_members(f, e, &own->members) ? &own->calls : NULL;
    }
    int32_t num;
    const msgl_lora_rows *all = msgl__lora_current(s, &num);
    bool any = false;
    for (int32_t i = 0; i < num && !any; i++) any = find(all[i].adapter, e) != NULL;
    if (!any) return NULL;
    const size_t n = (size_t)rows * (size_t)e->router.top_k;
    *own = (msgl_lora_moe){.f = f, .experts = e, .calls = {.add = add_by_runs, .ctx = own}};
    own->of_row = msgl__arena_alloc(f->arena, (size_t)rows * sizeof *own->of_row);
    own->runs = msgl__arena_alloc(f->arena, n * sizeof *own->runs);
    if (own->of_row == NULL || own->runs == NULL) {
        f->x->status = MSGL_EINTERNAL;
        return NULL;
    }
    for (int32_t r = 0; r < rows; r++) own->of_row[r] = NULL;
    for (int32_t i = 0; i < num; i++) {
        const msgl_lora_rows *l = &all[i];
        const msgl_lora_experts *of = find(l->adapter, e);
        const int32_t from = l->row > s->first ? l->row - s->first : 0;
        const int32_t to = l->row + l->rows - s->first;
        for (int32_t r = from; r < to && r < rows; r++) own->of_row[r] = of;
    }
    return &own->calls;
}
