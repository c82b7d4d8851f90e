// SPDX-License-Identifier: Apache-2.0
#include "layers/lora.h"

static const msgl_lora_linear *find(const msgl_lora *a, const msgl_linear *l)
{
    int lo = 0, hi = a->num;
    while (lo < hi) {
        const int mid = lo + (hi - lo) / 2;
        if (a->linears[mid].of == l) return &a->linears[mid];
        if (a->linears[mid].of < l) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return NULL;
}

int msgl__lora_table_find(const msgl_lora_table *t, const msgl_linear *l)
{
    int lo = 0, hi = t->num;
    while (lo < hi) {
        const int mid = lo + (hi - lo) / 2;
        if (t->linears[mid] == l) return mid;
        if (t->linears[mid] < l) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return -1;
}

int msgl__lora_table_find_many(const msgl_lora_table *t, const void *of)
{
    for (int i = 0; i < t->num_many; i++) {
        if (t->many[i] == of) return i;
    }
    return -1;
}

// What an adapter has of a layer of the table's `many`; NULL: nothing.
static const msgl_lora_member *set_of(const msgl_lora *a, const void *of)
{
    for (int i = 0; i < a->num_experts; i++) {
        if (a->experts[i].of == of) return a->experts[i].members;
    }
    for (int i = 0; i < a->num_latents; i++) {
        if (a->latents[i].of == of) return a->latents[i].members;
    }
    return NULL;
}

bool msgl__lora_members(const msgl_forward *f, const void *of, msgl_lora_members_call *call)
{
    const msgl_lora_step *s = f->lora;
    const msgl_lora_table *t = s->table;
    const int at = msgl__lora_table_find_many(t, of);
    if (at < 0) return false;
    bool changed = s->changes != NULL && s->changes[t->num + at];
    for (int32_t i = 0; i < s->num_adapters && !changed; i++) {
        changed = set_of(s->adapters[i], of) != NULL;
    }
    *call = (msgl_lora_members_call){.sets = t->sets + at,
                                     .stride = t->num_many,
                                     .slots = s->of_logits ? s->by_logits.slots : s->by_token.slots,
                                     .first = s->first};
    return changed;
}

void msgl__lora_entries(const msgl_lora_table *t, const msgl_lora *a, msgl_lora_entry *out,
                        const msgl_lora_member **sets)
{
    for (int i = 0; i < t->num_many; i++) sets[i] = a != NULL ? set_of(a, t->many[i]) : NULL;
    for (int i = 0; i < t->num; i++) {
        const msgl_lora_linear *l = a != NULL ? find(a, t->linears[i]) : NULL;
        out[i] = (msgl_lora_entry){0};
        if (l == NULL || l->num_parts == 0) continue;
        out[i].a = l->a.data;
        out[i].ranks = l->a.n;
        out[i].num_parts = l->num_parts;
        for (int j = 0; j < l->num_parts; j++) {
            const msgl_lora_part *p = &l->parts[j];
            out[i].parts[j].b = p->b->data;
            out[i].parts[j].n = p->b->n;
            out[i].parts[j].rank = p->b->k;
            out[i].parts[j].at = p->at;
            out[i].parts[j].col = p->col;
        }
    }
}

static const msgl_lora_saved *find_saved(const msgl_lora *a, const msgl_linear *l)
{
    for (int i = 0; i < a->num_saved; i++) {
        if (a->saved[i].of == l) return &a->saved[i];
    }
    return NULL;
}

const msgl_lora_rows *msgl__lora_current(const msgl_lora_step *s, int32_t *num)
{
    *num = s->of_logits ? s->num_logits : s->num_tokens;
    return s->of_logits ? s->logits : s->tokens;
}

bool msgl__lora_changes(const msgl_forward *f, const msgl_linear *l)
{
    int32_t num;
    const msgl_lora_step *s = f->lora;
    if (s == NULL) return false;
    if (s->changes != NULL) {
        const int at = msgl__lora_table_find(s->table, l);
        return at >= 0 && s->changes[at];
    }
    for (int32_t i = 0; s->table != NULL && i < s->num_adapters; i++) {
        const msgl_lora *a = s->adapters[i];
        if (find(a, l) != NULL || find_saved(a, l) != NULL) return true;
    }
    if (s->table != NULL) return false;
    const msgl_lora_rows *all = msgl__lora_current(s, &num);
    for (int32_t i = 0; i < num; i++) {
        const msgl_lora *a = all[i].adapter;
        if (find(a, l) != NULL || find_saved(a, l) != NULL) return true;
    }
    return false;
}

// The part of `r` that lies in [first, first + rows), counted from there; rows 0: none does.
static msgl_lora_rows part_in(const msgl_lora_rows *r, int32_t first, int32_t rows)
{
    const int32_t from = r->row > first ? r->row : first, end = first + rows;
    const int32_t to = r->row + r->rows < end ? r->row + r->rows : end;
    return (msgl_lora_rows){
        .row = from - first, .rows = to > from ? to - from : 0, .adapter = r->adapter};
}

static void add_by_tiles(msgl_forward *f, const msgl_linear *l, const msgl_linear_call *c)
{
    const msgl_lora_step *s = f->lora;
    const msgl_lora_tiles *by = s->of_logits ? &s->by_logits : &s->by_token;
    const int at = msgl__lora_table_find(s->table, l);
    if (at < 0 || by->num_tiles == 0 || !msgl__lora_changes(f, l)) return;
    const msgl_lora_tiles_call add = {.entries = s->table->entries + at,
                                      .stride = s->table->num,
                                      .parts = s->table->parts[at],
                                      .max_ranks = s->table->parts[at] * s->table->rank,
                                      .tiles = by->tiles,
                                      .num_tiles = by->num_tiles,
                                      .tile_rows = by->tile_rows,
                                      .order = by->order,
                                      .rows = by->rows,
                                      .first = s->first,
                                      .m = c->m,
                                      .n = l->w.n,
                                      .k = l->w.k,
                                      .in = c->in,
                                      .ld_in = c->ld_in,
                                      .norm = c->norm,
                                      .norm_eps = c->norm_eps,
                                      .f32_out = c->f32_out,
                                      .out = c->out,
                                      .ld_out = c->ld_out};
    f->k->gemm.lora_tiles(f->x, &add);
    msgl__arena_reset(f->x->scratch);
}

// The product c of rows that have an adapter with rows of the weight of its own.
static void replace(msgl_forward *f, const msgl_linear *l, const msgl_linear_call *c,
                    const msgl_lora_rows *r, const msgl_lora_saved *s)
{
    const size_t size = c->f32_out ? sizeof(float) : msgl__dtype_size(f->x->act);
    const bool biased = !l->row_parallel || f->comm->rank == 0;
    for (int i = 0; i < s->num; i++) {
        const msgl_lora_replaced *own = &s->at[i];
        msgl_linear_call call = *c;
        const float *bias = own->bias != NULL || l->bias == NULL ? own->bias : l->bias + own->first;
        call.w = &own->w;
        call.bias = biased ? bias : NULL;
        call.in = msgl__row(f, c->in, r->row, c->ld_in);
        call.m = r->rows;
        call.out = (char *)c->out + ((size_t)r->row * c->ld_out + (size_t)own->first) * size;
        call.norm_stats = NULL;
        call.handover = NULL;
        f->k->gemm.linear(f->x, &call);
        msgl__arena_reset(f->x->scratch);
    }
}

void msgl__lora_add(msgl_forward *f, const msgl_linear *l, const msgl_linear_call *c)
{
    const msgl_lora_step *s = f->lora;
    int32_t num, num_runs = 0;
    if (s == NULL || c->m == 0) return;
    const msgl_lora_rows *all = msgl__lora_current(s, &num);
    for (int32_t i = 0; i < num; i++) {
        const msgl_lora_rows r = part_in(&all[i], s->first, c->m);
        const msgl_lora_saved *saved = r.rows > 0 ? find_saved(r.adapter, l) : NULL;
        if (saved != NULL) replace(f, l, c, &r, saved);
    }
    if (s->table != NULL) {
        add_by_tiles(f, l, c);
        return;
    }
    for (int32_t i = 0; i < num; i++) {
        const msgl_lora_rows r = part_in(&all[i], s->first, c->m);
        const msgl_lora_linear *own = r.rows > 0 ? find(r.adapter, l) : NULL;
        if (own == NULL) continue;
        s->runs[num_runs++] = (msgl_lora_run){.row = r.row,
                                              .rows = r.rows,
                                              .a = &own->a,
                                              .parts = own->parts,
                                              .num_parts = own->num_parts};
    }
    if (num_runs == 0) return;
    const msgl_lora_call add = {.runs = s->runs,
                                .num_runs = num_runs,
                                .in = c->in,
                                .ld_in = c->ld_in,
                                .norm = c->norm,
                                .norm_eps = c->norm_eps,
                                .f32_out = c->f32_out,
                                .out = c->out,
                                .ld_out = c->ld_out};
    f->k->gemm.lora(f->x, &add);
    msgl__arena_reset(f->x->scratch);
}

// The first product is a lookup: A's row of each id.
static void embed_rows(msgl_forward *f, const msgl_lora_rows *r, void *out)
{
    const msgl_lora_embed *e = &r->adapter->embed;
    const size_t mark = f->arena->used;
    void *h = msgl__activation(f, (size_t)r->rows, (size_t)e->a.k);
    if (h == NULL) return;
    e->a.format->gather(f->x, &e->a, f->ids + r->row, r->rows, h);
    const msgl_linear_call c = {.w = &e->b,
                                .in = h,
                                .ld_in = (size_t)e->b.k,
                                .m = r->rows,
                                .accumulate = true,
                                .out = msgl__row(f, out, r->row, (size_t)e->b.n),
                                .ld_out = (size_t)e->b.n};
    f->k->gemm.linear(f->x, &c);
    msgl__arena_reset(f->x->scratch);
    f->arena->used = mark;
}

bool msgl__lora_embeds(const msgl_forward *f)
{
    const msgl_lora_step *s = f->lora;
    for (int32_t i = 0; s != NULL && i < s->num_tokens; i++) {
        const msgl_lora *a = s->tokens[i].adapter;
        if (a->embed.a.n > 0 || find_saved(a, NULL) != NULL) return true;
    }
    return false;
}

// Rows of ids that the adapter has a row of its own for.
static void replace_rows(msgl_forward *f, const msgl_lora_rows *r, const msgl_lora_saved *s,
                         void *out)
{
    for (int i = 0; i < s->num; i++) {
        const msgl_weight *w = &s->at[i].w;
        f->k->gemm.gather_own(f->x, w, f->ids + r->row, r->rows,
                              msgl__row(f, out, r->row, (size_t)w->k));
    }
}

void msgl__lora_embed(msgl_forward *f, void *out)
{
    const msgl_lora_step *s = f->lora;
    for (int32_t i = 0; s != NULL && i < s->num_tokens; i++) {
        const msgl_lora_saved *saved = find_saved(s->tokens[i].adapter, NULL);
        if (saved != NULL) replace_rows(f, &s->tokens[i], saved, out);
        if (s->tokens[i].adapter->embed.a.n > 0) embed_rows(f, &s->tokens[i], out);
    }
}
