// SPDX-License-Identifier: Apache-2.0
#include "layers/compressed_attention.h"

#include "attention/chosen.h"

static size_t q_width(const msgl_compressed_attention *a)
{
    return (size_t)a->num_heads * (size_t)a->dim;
}

size_t msgl__compressed_workspace(const msgl_compressed_attention *a, msgl_dtype act,
                                  int32_t max_tokens)
{
    const size_t t = (size_t)max_tokens;
    const msgl_window_index *i = &a->index;
    size_t index = 0;
    if (i->heads > 0) {
        index = msgl__activation_bytes(t, (size_t)i->q.w.n, act) +
                msgl__activation_bytes(t, (size_t)i->heads, MSGL_F32) +
                msgl__activation_bytes(t, (size_t)i->top_k, MSGL_F32) + // slots and counts have
                msgl__activation_bytes(t, 1, MSGL_F32);                 // as many bytes
    }
    return index + msgl__activation_bytes(t, (size_t)a->down.w.n, act) +
           msgl__activation_bytes(t, (size_t)a->q_rank, act) +
           2 * msgl__activation_bytes(t, q_width(a), act);
}

// Heads of x [num_tokens, heads, dim] in place, by the angles of their tokens.
static void rotate(msgl_forward *f, const msgl_pair_rope_call *how, int32_t heads, int32_t dim,
                   void *x)
{
    msgl_pair_rope_call c = *how;
    c.tokens = f->num_tokens;
    c.heads = heads;
    c.dim = dim;
    c.in = c.out = x;
    c.ld_in = c.ld_out = (size_t)heads * (size_t)dim;
    f->k->compress.rotate(f->x, &c);
}

// The token's own key, `in` of rows of ld elements, to its slot.
static void store_keys(msgl_forward *f, const msgl_compressed_attention *a, const void *in,
                       size_t ld, const float *cos_sin)
{
    const msgl_cache_group *group = &f->groups[a->group];
    const msgl_pair_rope_call c = {.tokens = f->num_tokens,
                                   .heads = 1,
                                   .dim = a->dim,
                                   .half = a->half,
                                   .in = in,
                                   .ld_in = ld,
                                   .normed = true,
                                   .weight = a->k_norm,
                                   .eps = a->eps,
                                   .cos_sin = cos_sin,
                                   .dtype = group->pool.spec.dtype,
                                   .pool = msgl__kv_k(&group->pool, a->geometry.layer),
                                   .slots = f->tokens.slots[group->span]};
    f->k->compress.rotate(f->x, &c);
}

// What a token attends to of the compressed keys: [num_tokens, top_k] slots and [num_tokens] how
// many.
typedef struct choices {
    int32_t *slots, *counts;
} choices;

// in: what the layer's other products read, before `norm`; q_latent [num_tokens, q_rank].
static choices choose(msgl_forward *f, const msgl_compressed_attention *a, const msgl_norm *norm,
                      const void *in, const void *q_latent, const float *cos_sin)
{
    const msgl_window_index *i = &a->index;
    const msgl_cache_group *group = &f->groups[i->keys.group];
    const size_t t = (size_t)f->num_tokens, ld = (size_t)i->q.w.n;
    const choices to = {.slots = msgl__take_rows(f, t, (size_t)i->top_k, MSGL_F32),
                        .counts = msgl__take_rows(f, t, 1, MSGL_F32)};
    void *q = msgl__activation(f, t, ld);
    float *weights = msgl__take_rows(f, t, (size_t)i->heads, MSGL_F32);
    if (f->x->status != 0) return to;
    const msgl_pair_rope_call turn = {.half = i->keys.half, .cos_sin = cos_sin};
    msgl__linear(f, &i->q, NULL, q_latent, q, f->num_tokens);
    msgl__linear_f32(f, &i->weights, norm, in, weights, f->num_tokens);
    rotate(f, &turn, i->heads, i->keys.dim, q);
    for (int32_t s = 0; s < f->num_seqs; s++) {
        const int32_t first = f->seqs[s].first_token;
        const msgl_index_choose_call call = {.seqs = &f->seqs[s],
                                             .heads = i->heads,
                                             .dim = i->keys.dim,
                                             .every = i->keys.rate,
                                             .q = msgl__row(f, q, first, ld),
                                             .ld_q = ld,
                                             .weights = weights + (size_t)first * (size_t)i->heads,
                                             .dtype = group->pool.spec.dtype,
                                             .pool = msgl__kv_k(&group->pool, i->keys.layer),
                                             .slots = to.slots + (size_t)first * (size_t)i->top_k,
                                             .counts = to.counts + first};
        msgl__chosen_choose(f->groups[a->group].chosen, f->x, &call);
    }
    return to;
}

static void attend(msgl_forward *f, const msgl_compressed_attention *a, const choices *chosen,
                   const void *q, void *out)
{
    const msgl_cache_group *group = &f->groups[a->group];
    const size_t ld = q_width(a), top_k = (size_t)a->index.top_k;
    const int32_t slots = (group->pool.num_pages + 1) * group->pool.page_size;
    for (int32_t s = 0; s < f->num_seqs; s++) {
        const int32_t first = f->seqs[s].first_token;
        const msgl_attn_listing what = {
            .window = a->window,
            .every = a->keys.rate,
            .shift = slots,
            .chosen = chosen->slots != NULL ? chosen->slots + (size_t)first * top_k : NULL,
            .counts = chosen->slots != NULL ? chosen->counts + first : NULL};
        msgl__chosen_attend_window(group->chosen, f->x, &a->geometry, &f->seqs[s], &what,
                                   msgl__row(f, q, first, ld), ld, msgl__row(f, out, first, ld));
    }
}

void msgl__compressed_attention(msgl_forward *f, const msgl_compressed_attention *a,
                                const msgl_norm *norm, const void *in, const float *cos_sin,
                                void *out)
{
    const size_t mark = f->arena->used, t = (size_t)f->num_tokens, ld = (size_t)a->down.w.n;
    const size_t elem = msgl__dtype_size(f->x->act);
    char *down = msgl__activation(f, t, ld);
    void *q_latent = msgl__activation(f, t, (size_t)a->q_rank);
    void *q = msgl__activation(f, t, q_width(a)), *sums = msgl__activation(f, t, q_width(a));
    if (f->x->status != 0) return;
    const char *key = down + (size_t)a->q_rank * elem, *raw = key + (size_t)a->dim * elem;
    const msgl_pair_rope_call turn = {
        .half = a->half, .normed = true, .eps = a->eps, .cos_sin = cos_sin};
    const msgl_pair_rope_call back = {.half = a->half, .back = true, .cos_sin = cos_sin};
    choices chosen = {0};
    msgl__linear(f, &a->down, norm, in, down, f->num_tokens);
    f->k->norm.rms_norm(f->x, down, ld, a->q_norm, a->eps, q_latent, (size_t)a->q_rank,
                        f->num_tokens, a->q_rank);
    msgl__linear(f, &a->q_up, NULL, q_latent, q, f->num_tokens);
    rotate(f, &turn, a->num_heads, a->dim, q);
    store_keys(f, a, key, ld, cos_sin);
    if (a->keys.rate > 0) {
        msgl__store_raw_rows(f, &a->rows, raw, ld);
        msgl__compress_keys(f, &a->keys, &a->rows, a->rope);
    }
    if (a->index.heads > 0) {
        msgl__compress_keys(f, &a->index.keys, &a->rows, a->rope);
        chosen = choose(f, a, norm, in, q_latent, cos_sin);
    }
    if (f->x->status == 0) {
        attend(f, a, &chosen, q, sums);
        rotate(f, &back, a->num_heads, a->dim, sums);
        msgl__grouped_linear(f, &a->out, sums, out, f->num_tokens);
    }
    f->arena->used = mark;
}
