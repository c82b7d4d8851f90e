// SPDX-License-Identifier: Apache-2.0
#include "models/products.h"

#include "core/attributes.h"
#include "core/mem.h"
#include "layers/mlp.h"

// The list with room for one more; NULL without memory.
static void *grow(msgl_products *p, void *list, int32_t num, int32_t *room, size_t size)
{
    enum { FIRST = 64 };
    if (num < *room) return list;
    const int32_t more = *room > 0 ? 2 * *room : FIRST;
    void *moved = msgl__reallocarray(list, (size_t)more, size);
    if (moved == NULL) {
        p->status = MSGL_ENOMEM;
    } else {
        *room = more;
    }
    return moved;
}

void msgl__products_add(msgl_products *p, const msgl_linear *l, const msgl_linear_use *use)
{
    msgl_product *list = grow(p, p->list, p->num, &p->room, sizeof *list);
    if (list == NULL) return;
    p->list = list;
    p->list[p->num++] = (msgl_product){.linear = l, .use = *use};
}

void msgl__products_add_heads(msgl_products *p, const msgl_weight *w, int32_t heads)
{
    msgl_head_products *list = grow(p, p->heads, p->num_heads, &p->heads_room, sizeof *list);
    if (list == NULL) return;
    p->heads = list;
    p->heads[p->num_heads++] = (msgl_head_products){.w = w, .heads = heads};
}

void msgl__products_add_experts(msgl_products *p, const msgl_moe *m)
{
    const msgl_moe **list = grow(p, p->experts, p->num_experts, &p->experts_room, sizeof *list);
    if (list == NULL) return;
    p->experts = list;
    p->experts[p->num_experts++] = m;
}

void msgl__products_free(msgl_products *p)
{
    msgl__free(p->list);
    msgl__free(p->experts);
    msgl__free(p->heads);
    *p = (msgl_products){0};
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

// Scratch may be asked for before the weights have a place: whether a call has a norm or a bias is
// then said by the address of something else.
static size_t linear_scratch(const msgl_kernels *k, msgl_dtype act, const msgl_linear *l,
                             const msgl_linear_use *u, int32_t rows)
{
    static const float something = 0;
    msgl_linear_call c = {.w = &l->w,
                          .m = rows,
                          .ld_in = (size_t)l->w.k,
                          .norm = u->norm != NULL ? &something : NULL,
                          .gated = u->gated,
                          .activation = u->activation,
                          .accumulate = u->adds,
                          .ld_out = (size_t)(u->gated ? l->w.n / 2 : l->w.n)};
    const size_t plain = k->gemm.linear_scratch(&c, act);
    c.bias = &something;
    return larger(plain, k->gemm.linear_scratch(&c, act));
}

static size_t experts_scratch(const msgl_kernels *k, msgl_dtype act, const msgl_moe *m,
                              int32_t block)
{
    const msgl_moe_experts *e = &m->experts;
    msgl_grouped_call c = {.experts = e->gate_up,
                           .num_experts = e->own,
                           .rows = block * e->router.top_k,
                           .ld_in = (size_t)e->gate_up->k,
                           .from_per = e->router.top_k,
                           .gated = !e->plain,
                           .activation = e->activation,
                           .ld_out = (size_t)e->down->k};
    const size_t up = k->gemm.grouped_scratch(&c, act);
    c = (msgl_grouped_call){.experts = e->down,
                            .num_experts = e->own,
                            .rows = block * e->router.top_k,
                            .ld_in = (size_t)e->down->k,
                            .ld_out = (size_t)e->down->n};
    const size_t down = k->gemm.grouped_scratch(&c, act);
    // Sorting and combining number the assignments, and count them by expert; routing takes less.
    const size_t places = ((size_t)c.rows + (size_t)e->num_experts + 64) * 2 * sizeof(int32_t);
    const msgl_linear_use plain = {.rows = MSGL_ROWS_BLOCK};
    const size_t router = linear_scratch(k, act, &m->router, &plain, block);
    return larger(larger(up, down), larger(places, router));
}

static int32_t rows_of(const msgl_linear_use *u, int32_t step, int32_t block, int32_t logits)
{
    return u->rows == MSGL_ROWS_STEP ? step : u->rows == MSGL_ROWS_BLOCK ? block : logits;
}

size_t msgl__products_scratch(const msgl_products *p, const msgl_kernels *k, msgl_dtype act,
                              int32_t max_tokens, int32_t max_requests, int32_t max_rows)
{
    const int32_t block = msgl__ffn_rows(k, max_tokens);
    size_t most = 0;
    for (int32_t i = 0; i < p->num; i++) {
        const msgl_product *one = &p->list[i];
        const int32_t rows = rows_of(&one->use, max_tokens, block, max_rows);
        most = larger(most, linear_scratch(k, act, one->linear, &one->use, rows));
    }
    for (int32_t i = 0; i < p->num_heads; i++) {
        const msgl_heads_call c = {.w = p->heads[i].w, .heads = p->heads[i].heads, .m = block};
        most = larger(most, k->gemm.heads_scratch(&c, act));
    }
    for (int32_t i = 0; i < p->num_experts; i++) {
        most = larger(most, experts_scratch(k, act, p->experts[i], block));
    }
    if (p->delta != NULL) {
        most = larger(most, msgl__delta_scratch(p->delta, k, max_tokens, max_requests));
    }
    return most;
}

// Row counts worth a measurement of their own: 1, 4 and 8, every 16 up to 64 and every 32 up to
// 256, then four in every doubling up to 2,048, where a tile more or less shows in steps of answers
// and chunks; powers of two above.
static int32_t tuned_rows(int32_t most, int32_t *ms, int32_t room)
{
    int32_t n = 0, doubling = 256;
    for (int32_t m = 1; m <= most && n < room;) {
        ms[n++] = m;
        if (m >= 2 * doubling) doubling *= 2;
        m += m == 1 ? 3 : m < 16 ? m : m < 64 ? 16 : m < 256 ? 32 : m < 2048 ? doubling / 4 : m;
    }
    return n;
}

static int32_t rows_up_to(int32_t most, const int32_t *ms, int32_t num)
{
    int32_t n = 0;
    while (n < num && ms[n] <= most) n++;
    return n;
}

static bool same_heads(const msgl_attention *a, const msgl_attention *b)
{
    if (a == NULL || b == NULL) return a == b;
    return a->num_heads == b->num_heads && a->num_kv_heads == b->num_kv_heads &&
           a->head_dim == b->head_dim && a->half == b->half &&
           (a->q_norm != NULL) == (b->q_norm != NULL);
}

// Whether one measurement serves both.
static bool same_kind(const msgl_product *a, const msgl_product *b)
{
    const msgl_linear_use *u = &a->use, *v = &b->use;
    return a->linear->w.n == b->linear->w.n && a->linear->w.k == b->linear->w.k &&
           a->linear->w.format == b->linear->w.format &&
           (a->linear->w.num_parts > 0) == (b->linear->w.num_parts > 0) &&
           (a->linear->bias != NULL) == (b->linear->bias != NULL) && u->rows == v->rows &&
           (u->norm != NULL) == (v->norm != NULL) && u->gated == v->gated &&
           u->activation == v->activation && u->f32_out == v->f32_out && u->adds == v->adds &&
           u->sums == v->sums && same_heads(u->rotates, v->rotates);
}

enum {
    KINDS = 24,       // of products of one model; those beyond are not measured
    TUNED_LAYERS = 8, // of a kind: their weights do not stay in a cache from one use to the next
};

typedef struct kind {
    const msgl_product *first;
    msgl_linear_call calls[TUNED_LAYERS];
    msgl_rope_call rope;
    msgl_tune_product tune;
} kind;

// As layers/linear.c makes it, without rows and activations.
static msgl_linear_call call_of(const msgl_product *p)
{
    const msgl_linear_use *u = &p->use;
    return (msgl_linear_call){.w = &p->linear->w,
                              .bias = p->linear->bias,
                              .norm = u->norm != NULL ? u->norm->weight : NULL,
                              .norm_eps = u->norm != NULL ? u->norm->eps : 0,
                              .gated = u->gated,
                              .activation = u->activation,
                              .accumulate = u->adds,
                              .f32_out = u->f32_out,
                              .next_norm = u->next != NULL ? u->next->weight : NULL};
}

static msgl_rope_call rope_of(const msgl_attention *a, msgl_dtype kv)
{
    return (msgl_rope_call){.num_q_heads = a->num_heads,
                            .num_kv_heads = a->num_kv_heads,
                            .head_dim = a->head_dim,
                            .q_weight = a->q_norm,
                            .k_weight = a->k_norm,
                            .eps = a->eps,
                            .half = a->half,
                            .kv_dtype = kv,
                            .k_scale = 1,
                            .v_scale = 1};
}

static int32_t kind_of(const kind *kinds, int32_t num, const msgl_product *p)
{
    int32_t i = 0;
    while (i < num && !same_kind(kinds[i].first, p)) i++;
    return i;
}

static int32_t take_kinds(const msgl_products *p, msgl_dtype kv, kind *kinds)
{
    int32_t num = 0;
    for (int32_t i = 0; i < p->num; i++) {
        const msgl_product *one = &p->list[i];
        const int32_t at = kind_of(kinds, num, one);
        if (at == KINDS) continue;
        kind *k = &kinds[at];
        if (at == num) {
            *k = (kind){.first = one, .tune = {.calls = k->calls, .summed = one->use.sums}};
            num++;
            if (one->use.rotates != NULL) {
                k->rope = rope_of(one->use.rotates, kv);
                k->tune.rope = &k->rope;
            }
        }
        // Those that leave nothing for a norm (the last layer's) are calls of another form, once a
        // step: they take what is measured for the others.
        const bool alike = (one->use.next != NULL) == (k->first->use.next != NULL);
        if (k->tune.num_calls < TUNED_LAYERS && alike) {
            k->calls[k->tune.num_calls++] = call_of(one);
        }
    }
    return num;
}

int msgl__products_add_apart(msgl_products *p)
{
    const int32_t num = p->num;
    for (int32_t i = 0; i < num; i++) {
        const msgl_linear *l = p->list[i].linear;
        msgl_linear_use use = p->list[i].use;
        if (use.rotates == NULL && !use.gated) continue;
        use.rotates = NULL;
        use.gated = false;
        use.activation = MSGL_SILU;
        msgl__products_add(p, l, &use);
    }
    return p->status;
}

void msgl__products_tune(const msgl_products *p, const msgl_kernels *k, msgl_exec *x,
                         msgl_arena *memory, msgl_dtype kv, int32_t max_batch, int32_t max_tokens)
{
    int32_t ms[32];
    if (k->gemm.tune == NULL) return;
    kind *kinds = msgl__calloc(KINDS, sizeof *kinds);
    if (kinds == NULL) {
        x->status = MSGL_ENOMEM;
        return;
    }
    const int32_t counts = tuned_rows(max_tokens, ms, MSGL_COUNT(ms));
    const int32_t block = msgl__ffn_rows(k, max_tokens), num = take_kinds(p, kv, kinds);
    // A product that adds may leave norm_stats: it comes behind the products that take them.
    for (int32_t i = 0; i < 2 * num; i++) {
        kind *one = &kinds[i % num];
        if (one->first->use.adds != (i >= num)) continue;
        if (one->first->use.next != NULL) {
            const int32_t behind = kind_of(kinds, num, one->first + 1);
            if (behind < num) one->tune.behind = &kinds[behind].tune;
        }
        const int32_t most = rows_of(&one->first->use, max_tokens, block, max_batch);
        k->gemm.tune(x, memory, &one->tune, ms, rows_up_to(most, ms, counts));
        msgl__arena_reset(memory);
        msgl__arena_reset(x->scratch);
    }
    msgl__free(kinds);
}
