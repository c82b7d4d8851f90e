// SPDX-License-Identifier: Apache-2.0
#include "layers/latent_attention.h"

#include "layers/attention.h"
#include "layers/mlp.h"

// Elements from token to token.
static size_t q_width(const msgl_latent_attention *a)
{
    return (size_t)a->num_heads * (size_t)(a->nope + a->rotary);
}

static size_t absorbed_width(const msgl_latent_attention *a)
{
    return (size_t)a->num_heads * (size_t)(a->rank + a->rotary);
}

size_t msgl__latent_workspace(const msgl_latent_attention *a, msgl_dtype act, int32_t max_tokens)
{
    const size_t t = (size_t)max_tokens, rank = (size_t)a->rank;
    const size_t own_q = a->q_rank == 0 ? 0
                                        : msgl__activation_bytes(t, (size_t)a->q_rank, act) +
                                              msgl__activation_bytes(t, q_width(a), act);
    return own_q + msgl__activation_bytes(t, (size_t)a->down.w.n, act) +
           msgl__activation_bytes(t, absorbed_width(a), act) +
           msgl__activation_bytes(t, (size_t)a->num_heads * rank, act);
}

// Rows of [heads, dim] elements, ld from token to token.
typedef struct head_rows {
    const void *at;
    size_t ld, dim;
} head_rows;

// out [num_tokens, ...]: a product a head, in blocks of tokens as the feed-forward block's.
static void heads_product(msgl_forward *f, const msgl_weight *w, int32_t heads, head_rows in,
                          void *out, size_t ld_out, size_t head_out)
{
    const int32_t block = msgl__ffn_rows(f->k, f->num_tokens);
    for (int32_t t = 0; t < f->num_tokens; t += block) {
        const msgl_heads_call c = {.w = w,
                                   .heads = heads,
                                   .m = f->num_tokens - t < block ? f->num_tokens - t : block,
                                   .in = msgl__row(f, in.at, t, in.ld),
                                   .ld_in = in.ld,
                                   .head_in = in.dim,
                                   .out = msgl__row(f, out, t, ld_out),
                                   .ld_out = ld_out,
                                   .head_out = head_out};
        f->k->gemm.heads(f->x, &c);
        msgl__arena_reset(f->x->scratch);
    }
}

// The queries: the beginning of a token's row of `down`, or made of it.
static head_rows make_queries(msgl_forward *f, const msgl_latent_attention *a, const void *down)
{
    const size_t t = (size_t)f->num_tokens, ld = (size_t)a->down.w.n;
    const size_t dim = (size_t)(a->nope + a->rotary);
    if (a->q_rank == 0) return (head_rows){.at = down, .ld = ld, .dim = dim};
    void *normed = msgl__activation(f, t, (size_t)a->q_rank);
    void *q = msgl__activation(f, t, q_width(a));
    if (f->x->status != 0) return (head_rows){0};
    f->k->norm.rms_norm(f->x, down, ld, a->q_norm, a->eps, normed, (size_t)a->q_rank, f->num_tokens,
                        a->q_rank);
    msgl__linear(f, &a->q_up, NULL, normed, q, f->num_tokens);
    return (head_rows){.at = q, .ld = q_width(a), .dim = dim};
}

// Queries to absorbed ones, and c and k_r to the pool.
static void absorb(msgl_forward *f, const msgl_latent_attention *a, const void *down,
                   const float *cos_sin, void *absorbed)
{
    const msgl_cache_group *group = &f->groups[a->group];
    const size_t elem = msgl__dtype_size(f->x->act);
    const size_t before = a->q_rank > 0 ? (size_t)a->q_rank : q_width(a);
    const size_t head = (size_t)(a->rank + a->rotary), ld = absorbed_width(a);
    const head_rows q = make_queries(f, a, down);
    if (f->x->status != 0) return;
    heads_product(f, a->k_up, a->num_heads, q, absorbed, ld, head);
    const msgl_latent_rope_call c = {
        .tokens = f->num_tokens,
        .num_heads = a->num_heads,
        .rank = a->rank,
        .half = a->rotary / 2,
        .latent = (const char *)down + before * elem,
        .ld_latent = (size_t)a->down.w.n,
        .weight = a->latent_norm,
        .eps = a->eps,
        .cos_sin = cos_sin,
        .q = (const char *)q.at + (size_t)a->nope * elem,
        .ld_q = q.ld,
        .head_q = q.dim,
        .out = (char *)absorbed + (size_t)a->rank * elem,
        .ld_out = ld,
        .head_out = head,
        .dtype = group->pool.spec.dtype,
        .scale = a->geometry.k_scale,
        .pool = msgl__kv_k(&group->pool, a->geometry.layer),
        .slots = f->slots[group->span],
    };
    f->k->rope.latent_rope_store(f->x, &c);
}

void msgl__latent_attention(msgl_forward *f, const msgl_latent_attention *a, const msgl_norm *norm,
                            const void *in, const float *cos_sin, void *out)
{
    const size_t t = (size_t)f->num_tokens, mark = f->arena->used;
    const size_t rank = (size_t)a->rank, heads = (size_t)a->num_heads, v_dim = (size_t)a->v_dim;
    void *down = msgl__activation(f, t, (size_t)a->down.w.n);
    void *absorbed = msgl__activation(f, t, absorbed_width(a));
    void *sums = msgl__activation(f, t, heads * rank);
    if (f->x->status == 0) {
        msgl__linear(f, &a->down, norm, in, down, f->num_tokens);
        absorb(f, a, down, cos_sin, absorbed);
    }
    if (f->x->status == 0) {
        msgl__attend(f, a->group, &a->geometry, absorbed, absorbed_width(a), sums, heads * rank);
        heads_product(f, a->v_up, a->num_heads, (head_rows){sums, heads * rank, rank}, out,
                      heads * v_dim, v_dim);
    }
    f->arena->used = mark;
}
