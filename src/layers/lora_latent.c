// SPDX-License-Identifier: Apache-2.0
#include "layers/lora.h"

static const msgl_lora_latent *find(const msgl_lora *a, const msgl_weight *k_up)
{
    for (int i = 0; i < a->num_latents; i++) {
        if (a->latents[i].of == k_up) return &a->latents[i];
    }
    return NULL;
}

// What the adapters say of head h; part: room for one for each run.
static int runs_of(const msgl_forward *f, const msgl_weight *k_up, bool second, int32_t h)
{
    const msgl_lora_step *s = f->lora;
    int num = 0;
    for (int32_t i = 0; i < s->num_tokens; i++) {
        const msgl_lora_rows *r = &s->tokens[i];
        const int32_t left = f->num_tokens - r->row;
        const msgl_lora_latent *own = left > 0 ? find(r->adapter, k_up) : NULL;
        if (own == NULL) continue;
        s->parts[num] = (msgl_lora_part){.b = second ? &own->v_up[h] : &own->k_up};
        s->runs[num] = (msgl_lora_run){.row = r->row,
                                       .rows = r->rows < left ? r->rows : left,
                                       .a = second ? &own->v_down : &own->k_down[h],
                                       .parts = &s->parts[num],
                                       .num_parts = 1};
        num++;
    }
    return num;
}

static void heads_by_tiles(msgl_forward *f, const msgl_weight *k_up, bool second,
                           const msgl_heads_call *c)
{
    msgl_lora_members_call add;
    if (!msgl__lora_members(f, k_up, &add)) return;
    add.base = second ? c->heads : 0;
    add.members = c->heads;
    add.places = f->num_tokens;
    add.k = second ? k_up->n : k_up->k; // W_UV's columns are W_UK's rows: the latent's
    add.in = c->in;
    add.ld_in = c->ld_in;
    add.member_in = c->head_in;
    add.out = c->out;
    add.ld_out = c->ld_out;
    add.member_out = c->head_out;
    f->k->gemm.lora_members(f->x, &add);
}

void msgl__lora_heads(msgl_forward *f, const msgl_weight *k_up, bool second,
                      const msgl_heads_call *c)
{
    const size_t size = msgl__dtype_size(f->x->act);
    if (f->lora != NULL && f->lora->table != NULL) {
        heads_by_tiles(f, k_up, second, c);
        return;
    }
    for (int32_t h = 0; h < c->heads && f->lora != NULL; h++) {
        const int num = runs_of(f, k_up, second, h);
        if (num == 0) return;
        const msgl_lora_call add = {.runs = f->lora->runs,
                                    .num_runs = num,
                                    .in = (const char *)c->in + (size_t)h * c->head_in * size,
                                    .ld_in = c->ld_in,
                                    .out = (char *)c->out + (size_t)h * c->head_out * size,
                                    .ld_out = c->ld_out};
        f->k->gemm.lora(f->x, &add);
        msgl__arena_reset(f->x->scratch);
    }
}

// The adapter of the request whose tokens, or the last before them, are this row of the step.
static const msgl_lora *adapter_at(const msgl_lora_step *s, int32_t row)
{
    for (int32_t i = 0; i < s->num_tokens; i++) {
        const msgl_lora_rows *r = &s->tokens[i];
        if (row >= r->row && row < r->row + r->rows) return r->adapter;
    }
    return NULL;
}

// What gemm.lora does, by the product of any rows: a pass of keys is many rows of few requests.
static void add_by_products(msgl_forward *f, const msgl_lora_call *c)
{
    const size_t size = msgl__dtype_size(f->x->act), mark = f->arena->used;
    for (int i = 0; i < c->num_runs; i++) {
        const msgl_lora_run *r = &c->runs[i];
        const msgl_weight *b = r->parts->b;
        for (int32_t at = 0, n; at < r->rows; at += n) {
            const int32_t left = r->rows - at;
            n = left < MSGL_LORA_EXPANDED_ROWS ? left : MSGL_LORA_EXPANDED_ROWS;
            void *h = msgl__activation(f, (size_t)n, (size_t)r->a->n);
            if (h == NULL) return;
            const size_t row = (size_t)(r->row + at);
            const msgl_linear_call first = {.w = r->a,
                                            .in = (const char *)c->in + row * c->ld_in * size,
                                            .ld_in = c->ld_in,
                                            .m = n,
                                            .out = h,
                                            .ld_out = (size_t)r->a->n};
            const msgl_linear_call second = {.w = b,
                                             .in = h,
                                             .ld_in = (size_t)b->k,
                                             .m = n,
                                             .accumulate = true,
                                             .out = (char *)c->out + row * c->ld_out * size,
                                             .ld_out = c->ld_out};
            f->k->gemm.linear(f->x, &first);
            msgl__arena_reset(f->x->scratch);
            f->k->gemm.linear(f->x, &second);
            msgl__arena_reset(f->x->scratch);
            f->arena->used = mark;
        }
    }
}

void msgl__lora_expanded(msgl_forward *f, const msgl_weight *k_up, int32_t first,
                         const msgl_expand_req *reqs, int32_t num, const msgl_linear_call *c)
{
    const msgl_lora_step *s = f->lora;
    int num_runs = 0;
    for (int32_t i = 0; i < num && s != NULL; i++) {
        // Of a request that has no queries for these keys q_row is behind its last one.
        const int32_t row = first + reqs[i].q_row - (reqs[i].tokens > 0 ? 0 : 1);
        const msgl_lora *a = adapter_at(s, row);
        const msgl_lora_latent *own = a != NULL ? find(a, k_up) : NULL;
        if (own == NULL) continue;
        s->parts[num_runs] = (msgl_lora_part){.b = &own->kv_up};
        s->runs[num_runs] = (msgl_lora_run){.row = reqs[i].row0,
                                            .rows = reqs[i].keys,
                                            .a = &own->v_down,
                                            .parts = &s->parts[num_runs],
                                            .num_parts = 1};
        num_runs++;
    }
    if (num_runs == 0) return;
    const msgl_lora_call add = {.runs = s->runs,
                                .num_runs = num_runs,
                                .in = c->in,
                                .ld_in = c->ld_in,
                                .out = c->out,
                                .ld_out = c->ld_out};
    if (s->table != NULL) {
        add_by_products(f, &add);
        return;
    }
    f->k->gemm.lora(f->x, &add);
    msgl__arena_reset(f->x->scratch);
}
