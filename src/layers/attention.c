// SPDX-License-Identifier: Apache-2.0
#include "layers/attention.h"

#include "attention/chosen.h"

void msgl__attend(const msgl_forward *f, int32_t group, const msgl_attn_layer *geometry,
                  const void *q, size_t ld, void *out, size_t out_ld)
{
    const msgl_attn *attn = &f->groups[group].attn;
    for (int32_t i = 0; i < f->num_seqs; i++) {
        const msgl_seqs *seqs = &f->seqs[i];
        const msgl_attn_input in = {.q = msgl__row(f, q, seqs->first_token, ld),
                                    .ld = ld,
                                    .first = i + 1 < f->num_seqs,
                                    .second = i > 0};
        msgl__attn_forward(attn, f->x, geometry, seqs, &in,
                           msgl__row(f, out, seqs->first_token, out_ld));
    }
}

// Of a layer whose heads choose blocks of keys, by their index queries index_q [num_tokens,
// heads, dim].
static void attend_blocks(const msgl_forward *f, const msgl_attention *a, const void *index_q,
                          const void *q, size_t ld, void *out)
{
    const bool means = a->means.heads > 0;
    const msgl_cache_group *keys = &f->groups[means ? a->means.group : a->blocks.group];
    const int32_t layer = means ? a->means.layer : a->blocks.layer;
    const size_t index_ld = (size_t)(means ? a->means.qk.w.n : a->blocks.qk.w.n);
    const size_t out_ld = msgl__attention_width(a);
    for (int32_t i = 0; i < f->num_seqs; i++) {
        const msgl_seqs *seqs = &f->seqs[i];
        const msgl_attn_block_index index = {.dim = means ? a->means.dim : a->blocks.dim,
                                             .q =
                                                 msgl__row(f, index_q, seqs->first_token, index_ld),
                                             .ld_q = index_ld,
                                             .dtype = keys->pool.spec.dtype,
                                             .pool = msgl__kv_k(&keys->pool, layer)};
        msgl__chosen_attend_blocks(f->groups[a->group].chosen, f->x, &a->geometry, seqs, &index,
                                   msgl__row(f, q, seqs->first_token, ld), ld,
                                   msgl__row(f, out, seqs->first_token, out_ld));
    }
}

// index_q: NULL where all keys are seen.
static void attend(const msgl_forward *f, const msgl_attention *a, const void *index_q,
                   const void *q, size_t ld, void *out)
{
    if (index_q != NULL) {
        attend_blocks(f, a, index_q, q, ld, out);
    } else {
        msgl__attend(f, a->group, &a->geometry, q, ld, out, msgl__attention_width(a));
    }
}

// Behind the projection: rotation and attention with the queries of dual chunks.
static void attend_dual(msgl_forward *f, const msgl_attention *a, const msgl_rope_call *rope,
                        void *out)
{
    const size_t width = MSGL_DUAL_QUERIES * msgl__q_width(a);
    void *queries = msgl__activation(f, (size_t)f->num_tokens, width);
    if (queries == NULL) return;
    const msgl_dual_rope_call dual = {.rope = *rope, .queries = queries};
    f->k->rope.dual_rope_store(f->x, &dual);
    attend(f, a, NULL, queries, width, out);
}

// The same with heads on several ranks, whose sums of squares are added up.
static void norm_shared(msgl_forward *f, const msgl_attention *a, void *qkv)
{
    const msgl_norm_kernels *k = &f->k->norm;
    const int32_t q = a->num_heads * a->head_dim, kv = a->num_kv_heads * a->head_dim;
    const int ranks = f->comm->size;
    const size_t ld = (size_t)a->qkv.w.n;
    char *const at_k = (char *)qkv + (size_t)q * msgl__dtype_size(f->x->act);
    float *sums = msgl__take_rows(f, (size_t)f->num_tokens, 2, MSGL_F32);
    if (sums == NULL) return;
    k->sum_squares(f->x, qkv, ld, f->num_tokens, q, sums, 2);
    k->sum_squares(f->x, at_k, ld, f->num_tokens, kv, sums + 1, 2);
    f->comm->ops->all_reduce(f->comm, f->x, MSGL_F32, sums, 2 * (size_t)f->num_tokens);
    k->norm_by_sums(f->x, qkv, ld, a->q_norm, a->eps, sums, 2, q * ranks, f->num_tokens, q);
    // KV heads that several ranks keep are counted as often, in sum and number.
    k->norm_by_sums(f->x, at_k, ld, a->k_norm, a->eps, sums + 1, 2, kv * ranks, f->num_tokens, kv);
}

// Norms of q and K that no other kernel does, in place: over all heads at once, or LayerNorms.
static void norm_apart(msgl_forward *f, const msgl_attention *a, void *qkv)
{
    const int32_t q = a->num_heads * a->head_dim, k = a->num_kv_heads * a->head_dim;
    const size_t ld = (size_t)a->qkv.w.n;
    char *const at_k = (char *)qkv + (size_t)q * msgl__dtype_size(f->x->act);
    if (a->norms_layer) {
        f->k->norm.layer_norm_heads(f->x, qkv, ld, a->q_norm, a->eps, f->num_tokens, a->num_heads,
                                    a->head_dim);
        f->k->norm.layer_norm_heads(f->x, at_k, ld, a->k_norm, a->eps, f->num_tokens,
                                    a->num_kv_heads, a->head_dim);
        return;
    }
    if (f->comm->size > 1) {
        norm_shared(f, a, qkv);
        return;
    }
    f->k->norm.rms_norm(f->x, qkv, ld, a->q_norm, a->eps, qkv, ld, f->num_tokens, q);
    f->k->norm.rms_norm(f->x, at_k, ld, a->k_norm, a->eps, at_k, ld, f->num_tokens, k);
}

// The index queries of a layer that chooses blocks.
static const void *index_queries(msgl_forward *f, const msgl_attention *a, const msgl_norm *norm,
                                 const void *in, const float *cos_sin)
{
    if (a->means.heads > 0) return msgl__mean_index(f, &a->means, a->group, norm, in, cos_sin);
    return msgl__block_index(f, &a->blocks, norm, in, cos_sin);
}

static void gate_results(msgl_forward *f, const msgl_attention *a, const void *qkv, void *out)
{
    const int32_t q = a->num_heads * a->head_dim;
    const int32_t kv = a->num_kv_heads * (a->head_dim + a->v_dim);
    const void *gate = (const char *)qkv + (size_t)(q + kv) * msgl__dtype_size(f->x->act);
    f->k->act.times_sigmoid(f->x, gate, (size_t)a->qkv.w.n, out, f->num_tokens, q);
}

void msgl__attention(msgl_forward *f, const msgl_attention *a, const msgl_norm *norm,
                     const void *in, const float *cos_sin, void *out)
{
    const msgl_cache_group *group = &f->groups[a->group];
    const bool apart = a->norms_all || a->norms_layer;
    const size_t mark = f->arena->used;
    void *qkv = msgl__activation(f, (size_t)f->num_tokens, (size_t)a->qkv.w.n);
    const bool chooses = a->blocks.heads > 0 || a->means.heads > 0;
    const void *index_q = chooses ? index_queries(f, a, norm, in, cos_sin) : NULL;
    if (f->x->status != 0) return;
    const msgl_rope_call rope = {
        .qkv = qkv,
        .ld = (size_t)a->qkv.w.n,
        .tokens = f->num_tokens,
        .num_q_heads = a->num_heads,
        .num_kv_heads = a->num_kv_heads,
        .head_dim = a->head_dim,
        .v_dim = a->v_dim,
        .q_weight = apart ? NULL : a->q_norm,
        .k_weight = apart ? NULL : a->k_norm,
        .v_weight = a->v_norm,
        .eps = a->eps,
        .norm_behind = a->norms_behind,
        .clip = a->clip,
        .cos_sin = cos_sin,
        .half = a->half,
        .kv_dtype = group->pool.spec.dtype,
        .k_scale = a->geometry.k_scale,
        .v_scale = a->geometry.v_scale,
        .k_pool = msgl__kv_k(&group->pool, a->geometry.layer),
        .v_pool = msgl__kv_v(&group->pool, a->geometry.layer),
        .slots = f->tokens.slots[group->span],
    };
    if (!msgl__rotates_alone(a) && !chooses && f->num_seqs == 1 &&
        msgl__attn_takes_rope(&group->attn, f->seqs)) {
        const msgl_attn_input both = {.q = qkv, .ld = rope.ld, .rope = &rope};
        msgl__linear(f, &a->qkv, norm, in, qkv, rope.tokens);
        if (apart) norm_apart(f, a, qkv);
        msgl__attn_forward(&group->attn, f->x, &a->geometry, f->seqs, &both, out);
    } else if (a->dual) {
        msgl__linear(f, &a->qkv, norm, in, qkv, rope.tokens);
        attend_dual(f, a, &rope, out);
    } else if (msgl__rotates_apart(a)) {
        msgl__linear(f, &a->qkv, norm, in, qkv, rope.tokens);
        if (apart) norm_apart(f, a, qkv);
        f->k->rope.qk_norm_rope_store(f->x, &rope);
        if (a->temper.every > 0) {
            f->k->act.temper(f->x, &a->temper, f->positions, qkv, rope.ld, rope.tokens,
                             a->num_heads * a->head_dim);
        }
        attend(f, a, index_q, qkv, rope.ld, out);
    } else {
        msgl__linear_rope(f, &a->qkv, norm, in, &rope);
        attend(f, a, index_q, qkv, rope.ld, out);
    }
    if (a->gated) gate_results(f, a, qkv, out);
    if (a->value_scale != 1) {
        f->k->norm.scale(f->x, out, a->value_scale,
                         (size_t)f->num_tokens * msgl__attention_width(a));
    }
    msgl__arena_reset(f->x->scratch);
    f->arena->used = mark;
}
