// SPDX-License-Identifier: Apache-2.0
//
// flex attention in plain C. A task has one KV head and some tokens of a block, so that a group's
// query heads share K and V; it walks the block's list with the online softmax of Milakov &
// Gimelshein 2018. Masked probabilities are skipped, not multiplied by: what lies behind a window
// may be anything.
#include "kernel/attn_flex.h"

#include <math.h>
#include <string.h>

#include "core/paging.h"
#include "core/round.h"
#include "kernel/kernel.h"

enum { B = MSGL_FLEX_BLOCK, MAX_ROWS = MSGL_FLEX_MAX_GROUP };

typedef struct flex_scratch {
    float m[MAX_ROWS], l[MAX_ROWS], s[B];
    float data[]; // K transposed [head_dim, B], V [B, head_dim], o [MAX_ROWS, head_dim]
} flex_scratch;

typedef struct flex_task {
    const msgl_flex_call *c;
    flex_scratch *s;
    float *k, *v, *o;
    int32_t req, row, kv_head, group; // row: of the request's first token
    int32_t token, tokens;            // of the task
    int32_t len;                      // keys of the request
} flex_task;

size_t msgl__flex_scratch_size(int32_t head_dim)
{
    const size_t floats = (size_t)(2 * B + MAX_ROWS) * (size_t)head_dim;
    return msgl__round_up(sizeof(flex_scratch) + floats * sizeof(float), 64);
}

static msgl_attn_query query_at(const msgl_flex_call *c, int32_t req, int32_t token)
{
    const int32_t row = c->cu_seqlens_q[req], tokens = c->cu_seqlens_q[req + 1] - row;
    return msgl__attn_query_at(c->seqlens_k[req] - tokens, token, c->table_rows[req],
                               c->tree != NULL ? c->tree + row + token : NULL);
}

static int32_t min_of(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

// Whether queries [token, end) see anything of keys [key, key_end), and all of it.
static void look(const msgl_flex_call *c, int32_t req, int32_t token, int32_t end, int32_t key,
                 int32_t key_end, bool *any, bool *all)
{
    *any = false;
    *all = true;
    for (; token < end && (!*any || *all); token++) {
        const msgl_attn_query q = query_at(c, req, token);
        for (int32_t k = key; k < key_end; k++) {
            const bool seen = msgl__attn_sees(&c->mods, &q, k);
            *any |= seen;
            *all &= seen;
        }
    }
}

static void list_task(void *arg, int task, int worker)
{
    (void)worker;
    const msgl_flex_call *c = *(const msgl_flex_call *const *)arg;
    const msgl_flex_place p = c->places[task];
    const int32_t tokens = c->cu_seqlens_q[p.req + 1] - c->cu_seqlens_q[p.req];
    const int32_t len = c->seqlens_k[p.req], end = min_of(p.token + B, tokens);
    int32_t *list = c->lists + (size_t)task * c->lists_ld, n = 0;
    for (int32_t b = 0; b * B < len; b++) {
        bool any, all;
        look(c, p.req, p.token, end, b * B, min_of((b + 1) * B, len), &any, &all);
        if (any) list[++n] = 2 * b + !all;
    }
    list[0] = n;
}

void msgl__flex_make_lists(msgl_exec *x, const msgl_flex_call *c)
{
    msgl__pool_run(x->pool, c->num_places, list_task, &c);
}

static void load_keys(const flex_task *t, int32_t key, int32_t n)
{
    const msgl_flex_call *c = t->c;
    const size_t dim = (size_t)c->head_dim, slot = (size_t)c->num_kv_heads * dim;
    int32_t slots[B];
    msgl__paging_slots(c->page_size, c->pages + (size_t)c->table_rows[t->req] * c->pages_ld, key, n,
                       slots);
    for (int32_t j = 0; j < n; j++) {
        const size_t at = (size_t)slots[j] * slot + (size_t)t->kv_head * dim;
        for (size_t d = 0; d < dim; d++) {
            t->k[d * B + (size_t)j] = msgl__load_f32(c->k, c->dtype, at + d);
            t->v[(size_t)j * dim + d] = msgl__load_f32(c->v, c->dtype, at + d);
        }
    }
}

// Scores of a query head for the n keys from `key` on; -inf where the query does not see one.
static void score_keys(const flex_task *t, const msgl_attn_query *q, const float *vec, int32_t head,
                       int32_t key, int32_t n, bool partial)
{
    const msgl_flex_call *c = t->c;
    float *s = t->s->s;
    memset(s, 0, sizeof t->s->s);
    for (int32_t d = 0; d < c->head_dim; d++) {
        const float *k = t->k + (size_t)d * B;
        for (int j = 0; j < B; j++) s[j] += vec[d] * k[j];
    }
    for (int32_t j = 0; j < n; j++) s[j] *= c->scale;
    for (int32_t j = 0; j < n && c->mods.scores != 0; j++) {
        s[j] = msgl__attn_rescore(&c->mods, q, key + j, head, s[j]);
    }
    for (int32_t j = 0; j < n && partial; j++) {
        if (!msgl__attn_sees(&c->mods, q, key + j)) s[j] = -INFINITY;
    }
}

// Folds the scores s[0, n) into row r's state.
static void fold(const flex_task *t, int32_t r, int32_t n)
{
    const size_t dim = (size_t)t->c->head_dim;
    flex_scratch *f = t->s;
    float m = f->m[r], *o = t->o + (size_t)r * dim;
    for (int32_t j = 0; j < n; j++) m = f->s[j] > m || isnan(f->s[j]) ? f->s[j] : m;
    if (m == -INFINITY) return; // nothing seen so far
    const float keep = expf(f->m[r] - m);
    f->m[r] = m;
    f->l[r] *= keep;
    for (size_t d = 0; d < dim; d++) o[d] *= keep;
    for (int32_t j = 0; j < n; j++) {
        if (f->s[j] == -INFINITY) continue;
        const float p = expf(f->s[j] - m), *v = t->v + (size_t)j * dim;
        f->l[r] += p;
        for (size_t d = 0; d < dim; d++) o[d] += p * v[d];
    }
}

// The task's rows against an entry of the block's list.
static void attend_block(const flex_task *t, int32_t entry)
{
    const msgl_flex_call *c = t->c;
    const int32_t key = entry / 2 * B, n = min_of(B, t->len - key);
    load_keys(t, key, n);
    for (int32_t i = 0; i < t->tokens; i++) {
        const msgl_attn_query q = query_at(c, t->req, t->token + i);
        const float *token = c->q + (size_t)(t->row + t->token + i) * c->ld_q;
        for (int32_t g = 0; g < t->group; g++) {
            const int32_t head = t->kv_head * t->group + g;
            score_keys(t, &q, token + (size_t)head * (size_t)c->head_dim, head, key, n,
                       entry % 2 != 0);
            fold(t, i * t->group + g, n);
        }
    }
}

static void write_out(const flex_task *t)
{
    const size_t dim = (size_t)t->c->head_dim;
    for (int32_t r = 0; r < t->tokens * t->group; r++) {
        const float l = t->s->l[r], f = l == 0 ? 0 : 1 / l, *o = t->o + (size_t)r * dim;
        const size_t token = (size_t)(t->row + t->token + r / t->group);
        const size_t head = (size_t)(t->kv_head * t->group + r % t->group);
        float *out = t->c->out + token * t->c->ld_out + head * dim;
        for (size_t d = 0; d < dim; d++) out[d] = o[d] * f;
    }
}

// Tokens of a block that a task takes.
static int32_t task_tokens(const msgl_flex_call *c)
{
    return min_of(MAX_ROWS / (c->num_q_heads / c->num_kv_heads), B);
}

static void attend_task(void *arg, int task, int worker)
{
    const msgl_flex_call *c = *(const msgl_flex_call *const *)arg;
    const int32_t step = task_tokens(c), parts = msgl__ceil_div(B, step);
    const int32_t kv_head = task % c->num_kv_heads, unit = task / c->num_kv_heads;
    const msgl_flex_place p = c->places[unit / parts];
    const size_t dim = (size_t)c->head_dim;
    flex_task t = {.c = c, .req = p.req, .kv_head = kv_head};
    t.row = c->cu_seqlens_q[p.req];
    t.group = c->num_q_heads / c->num_kv_heads;
    t.token = p.token + unit % parts * step;
    t.len = c->seqlens_k[p.req];
    const int32_t end = min_of(p.token + B, c->cu_seqlens_q[p.req + 1] - t.row);
    t.tokens = min_of(step, end - t.token);
    if (t.tokens <= 0) return;
    t.s = (flex_scratch *)(void *)(c->scratch + (size_t)worker * c->scratch_stride);
    t.k = t.s->data;
    t.v = t.k + B * dim;
    t.o = t.v + B * dim;
    for (int32_t r = 0; r < t.tokens * t.group; r++) {
        t.s->m[r] = -INFINITY;
        t.s->l[r] = 0;
    }
    memset(t.o, 0, (size_t)(t.tokens * t.group) * dim * sizeof *t.o);
    const int32_t *list = c->lists + (size_t)(unit / parts) * c->lists_ld;
    for (int32_t i = 1; i <= list[0]; i++) attend_block(&t, list[i]);
    write_out(&t);
}

void msgl__flex_attend(msgl_exec *x, const msgl_flex_call *c)
{
    const int32_t parts = msgl__ceil_div(B, task_tokens(c));
    msgl__pool_run(x->pool, c->num_places * parts * c->num_kv_heads, attend_task, &c);
}
