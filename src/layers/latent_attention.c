// SPDX-License-Identifier: Apache-2.0
#include "layers/latent_attention.h"

#include "attention/chosen.h"
#include "attention/expand.h"
#include "layers/attention.h"
#include "layers/lora.h"
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

static size_t results_width(const msgl_latent_attention *a)
{
    return (size_t)a->num_heads * (size_t)a->v_dim;
}

static size_t absorbed_bytes(const msgl_latent_attention *a, msgl_dtype act, size_t t)
{
    return msgl__activation_bytes(t, absorbed_width(a), act) +
           msgl__activation_bytes(t, (size_t)a->num_heads * (size_t)a->rank, act);
}

// What attend_expanded takes for passes of so many keys.
static size_t expanded_bytes(const msgl_latent_attention *a, msgl_dtype act, size_t t, size_t keys)
{
    return msgl__activation_bytes(keys, (size_t)a->rank, act) +
           msgl__activation_bytes(keys, (size_t)a->rotary, act) +
           msgl__activation_bytes(keys, (size_t)a->kv_up.w.n, act) +
           msgl__activation_bytes(t, results_width(a), act) +
           2 * msgl__activation_bytes(t, (size_t)a->num_heads, MSGL_F32);
}

static size_t index_bytes(const msgl_latent_index *i, msgl_dtype act, size_t t)
{
    if (!i->own) return 0;
    return msgl__activation_bytes(t, (size_t)i->q.w.n, act) +
           msgl__activation_bytes(t, (size_t)i->dim, act) +
           msgl__activation_bytes(t, (size_t)i->heads, MSGL_F32);
}

size_t msgl__latent_workspace(const msgl_latent_attention *a, msgl_dtype act, int32_t max_tokens)
{
    const size_t t = (size_t)max_tokens;
    const size_t own_q = a->q_rank == 0 ? 0
                                        : msgl__activation_bytes(t, (size_t)a->q_rank, act) +
                                              msgl__activation_bytes(t, q_width(a), act);
    const int32_t keys =
        msgl__expand_keys(&a->expanded, a->num_heads, msgl__dtype_size(act), max_tokens);
    const size_t absorbed = absorbed_bytes(a, act, t);
    const size_t expanded = keys > 0 ? expanded_bytes(a, act, t, (size_t)keys) : 0;
    return own_q + msgl__activation_bytes(t, (size_t)a->down.w.n, act) +
           index_bytes(&a->index, act, t) + (absorbed > expanded ? absorbed : expanded);
}

// Rows of [heads, dim] elements, ld from token to token.
typedef struct head_rows {
    const void *at;
    size_t ld, dim;
} head_rows;

// out [num_tokens, ...]: a product a head, in blocks of tokens as the feed-forward block's.
static void heads_product(msgl_forward *f, const msgl_latent_attention *a, bool second,
                          head_rows in, void *out, size_t ld_out, size_t head_out)
{
    const int32_t heads = a->num_heads;
    const msgl_weight *w = second ? a->v_up : a->k_up;
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
    const msgl_heads_call all = {.heads = heads,
                                 .in = in.at,
                                 .ld_in = in.ld,
                                 .head_in = in.dim,
                                 .out = out,
                                 .ld_out = ld_out,
                                 .head_out = head_out};
    msgl__lora_heads(f, a->k_up, second, &all);
}

// What the product down has made of the step's tokens.
typedef struct latent_rows {
    const void *down;
    const void *q_latent; // [num_tokens, q_rank], normed; NULL: there is none
    head_rows q;
    const float *cos_sin;
} latent_rows;

// The queries: the beginning of a token's row of `down`, or made of it.
static head_rows make_queries(msgl_forward *f, const msgl_latent_attention *a, latent_rows *rows)
{
    const void *down = rows->down;
    const size_t t = (size_t)f->num_tokens, ld = (size_t)a->down.w.n;
    const size_t dim = (size_t)(a->nope + a->rotary);
    if (a->q_rank == 0) return (head_rows){.at = down, .ld = ld, .dim = dim};
    void *normed = msgl__activation(f, t, (size_t)a->q_rank);
    void *q = msgl__activation(f, t, q_width(a));
    if (f->x->status != 0) return (head_rows){0};
    f->k->norm.rms_norm(f->x, down, ld, a->q_norm, a->eps, normed, (size_t)a->q_rank, f->num_tokens,
                        a->q_rank);
    msgl__linear(f, &a->q_up, NULL, normed, q, f->num_tokens);
    rows->q_latent = normed;
    return (head_rows){.at = q, .ld = q_width(a), .dim = dim};
}

// Of the tokens from `first` on: c and k_r to the pool, and the queries rotated where they are.
static msgl_latent_rope_call rotation(const msgl_forward *f, const msgl_latent_attention *a,
                                      const latent_rows *rows, int32_t first)
{
    const msgl_cache_group *group = &f->groups[a->group];
    const size_t elem = msgl__dtype_size(f->x->act), ld = (size_t)a->down.w.n;
    const size_t before = a->q_rank > 0 ? (size_t)a->q_rank : q_width(a);
    char *const q = (char *)msgl__row(f, rows->q.at, first, rows->q.ld) + (size_t)a->nope * elem;
    return (msgl_latent_rope_call){
        .tokens = f->num_tokens - first,
        .num_heads = a->num_heads,
        .rank = a->rank,
        .half = a->rotary / 2,
        .latent = (const char *)msgl__row(f, rows->down, first, ld) + before * elem,
        .ld_latent = ld,
        .weight = a->latent_norm,
        .eps = a->eps,
        .cos_sin = rows->cos_sin + (size_t)first * (size_t)a->rotary,
        .q = q,
        .ld_q = rows->q.ld,
        .head_q = rows->q.dim,
        .out = q,
        .ld_out = rows->q.ld,
        .head_out = rows->q.dim,
        .dtype = group->pool.spec.dtype,
        .scale = a->geometry.k_scale,
        .pool = msgl__kv_k(&group->pool, a->geometry.layer),
        .slots = f->tokens.slots[group->span] + first,
    };
}

// Index keys of the step's tokens to their pool, and which keys each attends to. in: what the
// layer's other products read, before `norm`.
static void choose_keys(msgl_forward *f, const msgl_latent_attention *a, const latent_rows *rows,
                        const msgl_norm *norm, const void *in)
{
    const msgl_latent_index *i = &a->index;
    const msgl_cache_group *group = &f->groups[i->group];
    const size_t t = (size_t)f->num_tokens, mark = f->arena->used, ld = (size_t)i->q.w.n;
    void *q = msgl__activation(f, t, ld), *k = msgl__activation(f, t, (size_t)i->dim);
    float *weights = msgl__take_rows(f, t, (size_t)i->heads, MSGL_F32);
    if (f->x->status != 0) return;
    msgl__linear(f, &i->q, NULL, rows->q_latent, q, f->num_tokens);
    msgl__linear(f, &i->k, norm, in, k, f->num_tokens);
    msgl__linear_f32(f, &i->weights, norm, in, weights, f->num_tokens);
    void *const pool = msgl__kv_k(&group->pool, i->layer);
    const msgl_index_store_call store = {.tokens = f->num_tokens,
                                         .heads = i->heads,
                                         .dim = i->dim,
                                         .half = a->rotary / 2,
                                         .q = q,
                                         .ld_q = ld,
                                         .k = k,
                                         .ld_k = (size_t)i->dim,
                                         .k_weight = i->k_norm,
                                         .k_bias = i->k_norm_bias,
                                         .eps = MSGL_INDEX_EPS,
                                         .cos_sin = rows->cos_sin,
                                         .dtype = group->pool.spec.dtype,
                                         .pool = pool,
                                         .slots = f->tokens.slots[group->span]};
    f->k->index.store(f->x, &store);
    for (int32_t s = 0; s < f->num_seqs; s++) {
        const int32_t first = f->seqs[s].first_token;
        const msgl_index_choose_call choose = {
            .seqs = &f->seqs[s],
            .heads = i->heads,
            .dim = i->dim,
            .q = msgl__row(f, q, first, ld),
            .ld_q = ld,
            .weights = weights + (size_t)first * (size_t)i->heads,
            .dtype = group->pool.spec.dtype,
            .pool = pool,
            .slots = f->chosen_slots + (size_t)first * (size_t)i->top_k,
            .counts = f->chosen_counts + first};
        msgl__chosen_choose(f->groups[a->group].chosen, f->x, &choose);
    }
    f->arena->used = mark;
}

// The step's first f->num_tokens rows, of its first f->num_seqs sequences.
static void attend_absorbed(msgl_forward *f, const msgl_latent_attention *a,
                            const latent_rows *rows, void *out)
{
    const size_t t = (size_t)f->num_tokens, rank = (size_t)a->rank, heads = (size_t)a->num_heads;
    const size_t head = rank + (size_t)a->rotary, ld = absorbed_width(a);
    void *absorbed = msgl__activation(f, t, ld);
    void *sums = msgl__activation(f, t, heads * rank);
    if (f->x->status != 0) return;
    heads_product(f, a, false, rows->q, absorbed, ld, head);
    msgl_latent_rope_call rope = rotation(f, a, rows, 0);
    rope.out = (char *)absorbed + rank * msgl__dtype_size(f->x->act);
    rope.ld_out = ld;
    rope.head_out = head;
    f->k->rope.latent_rope_store(f->x, &rope);
    if (a->index.top_k > 0) {
        msgl__chosen_attend(f->groups[a->group].chosen, f->x, &a->geometry, f->num_tokens,
                            f->chosen_slots, f->chosen_counts, absorbed, ld, sums);
    } else {
        msgl__attend(f, a->group, &a->geometry, absorbed, ld, sums, heads * rank);
    }
    heads_product(f, a, true, (head_rows){sums, heads * rank, rank}, out, results_width(a),
                  (size_t)a->v_dim);
}

// The step's last sequences, which are chunks, in passes over their keys.
static void attend_expanded(msgl_forward *f, const msgl_latent_attention *a, const msgl_seqs *seqs,
                            const latent_rows *rows, void *out)
{
    const msgl_expand *e = f->groups[a->group].attn.expand;
    const int32_t passes = msgl__expand_passes(e, seqs);
    int32_t keys = 0;
    for (int32_t i = 0; i < passes; i++) {
        const int32_t n = msgl__expand_pass_keys(e, seqs, i);
        keys = n > keys ? n : keys;
    }
    const size_t n = (size_t)keys, t = (size_t)seqs->num_tokens, heads = (size_t)a->num_heads;
    void *latent = msgl__activation(f, n, (size_t)a->rank);
    void *rotary_keys = msgl__activation(f, n, (size_t)a->rotary);
    void *kv = msgl__activation(f, n, (size_t)a->kv_up.w.n);
    const msgl_expand_io io = {
        .q = msgl__row(f, rows->q.at, seqs->first_token, rows->q.ld),
        .ld_q = rows->q.ld,
        .kv = kv,
        .rotary_keys = rotary_keys,
        .out = msgl__row(f, out, seqs->first_token, results_width(a)),
        .partial_out = msgl__activation(f, t, results_width(a)),
        .lse = msgl__take_rows(f, t, heads, MSGL_F32),
        .partial_lse = msgl__take_rows(f, t, heads, MSGL_F32),
    };
    if (f->x->status != 0) return;
    const msgl_latent_rope_call rope = rotation(f, a, rows, seqs->first_token);
    f->k->rope.latent_rope_store(f->x, &rope);
    for (int32_t i = 0; i < passes; i++) {
        msgl__expand_gather(e, f->x, &a->geometry, seqs, i, latent, rotary_keys);
        msgl__linear(f, &a->kv_up, NULL, latent, kv, msgl__expand_pass_keys(e, seqs, i));
        int32_t num;
        const msgl_expand_req *reqs = msgl__expand_pass_reqs(e, seqs, i, &num);
        const msgl_linear_call made = {
            .in = latent, .ld_in = (size_t)a->rank, .out = kv, .ld_out = (size_t)a->kv_up.w.n};
        msgl__lora_expanded(f, a->k_up, seqs->first_token, reqs, num, &made);
        msgl__expand_attend(e, f->x, &a->geometry, seqs, i, &io);
    }
}

void msgl__latent_attention(msgl_forward *f, const msgl_latent_attention *a, const msgl_norm *norm,
                            const void *in, const float *cos_sin, void *out)
{
    const size_t mark = f->arena->used;
    void *down = msgl__activation(f, (size_t)f->num_tokens, (size_t)a->down.w.n);
    if (f->x->status != 0) return;
    msgl__linear(f, &a->down, norm, in, down, f->num_tokens);
    latent_rows rows = {.down = down, .cos_sin = cos_sin};
    rows.q = make_queries(f, a, &rows);
    if (a->index.own && f->x->status == 0) choose_keys(f, a, &rows, norm, in);
    const size_t behind_queries = f->arena->used;
    const msgl_seqs *last = &f->seqs[f->num_seqs - 1];
    const bool expands = msgl__expand_passes(f->groups[a->group].attn.expand, last) > 0;
    msgl_forward absorbed = *f;
    if (expands) {
        absorbed.num_tokens = last->first_token;
        absorbed.num_seqs--;
    }
    if (absorbed.num_tokens > 0 && f->x->status == 0) attend_absorbed(&absorbed, a, &rows, out);
    f->arena->used = behind_queries;
    if (expands && f->x->status == 0) attend_expanded(f, a, last, &rows, out);
    f->arena->used = mark;
}
