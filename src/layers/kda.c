// SPDX-License-Identifier: Apache-2.0
#include "layers/kda.h"

static size_t width(const msgl_kda *l)
{
    return (size_t)l->heads * (size_t)l->dim;
}

msgl_delta_call msgl__kda_call_of(const msgl_kda *l)
{
    return (msgl_delta_call){.k_heads = l->heads,
                             .v_heads = l->heads,
                             .k_dim = l->dim,
                             .v_dim = l->dim,
                             .by_channel = true,
                             .sigmoid_gate = true,
                             .conv = l->conv,
                             .a_log = l->a_log,
                             .dt_bias = l->dt_bias,
                             .norm = l->norm,
                             .norm_eps = l->eps};
}

size_t msgl__kda_workspace(const msgl_kda *l, msgl_dtype act, int32_t max_tokens)
{
    const size_t t = (size_t)max_tokens;
    return msgl__activation_bytes(t, (size_t)l->in.w.n, act) +
           2 * msgl__activation_bytes(t, width(l), act);
}

void msgl__kda(msgl_forward *f, const msgl_kda *l, const msgl_norm *norm, const void *in, void *out)
{
    const size_t mark = f->arena->used, ld = (size_t)l->in.w.n, elem = msgl__dtype_size(f->x->act);
    const size_t wide = width(l), rank = (size_t)l->rank, t = (size_t)f->num_tokens;
    char *mixed = msgl__activation(f, t, ld);
    char *decays = msgl__activation(f, t, wide), *gates = msgl__activation(f, t, wide);
    if (mixed == NULL || decays == NULL || gates == NULL) return;
    msgl__linear(f, &l->in, norm, in, mixed, f->num_tokens);
    msgl__linear_of_columns(f, &l->decays, mixed + 3 * wide * elem, ld, decays, f->num_tokens);
    msgl__linear_of_columns(f, &l->gates, mixed + (3 * wide + rank) * elem, ld, gates,
                            f->num_tokens);
    msgl_delta_call c = msgl__kda_call_of(l);
    c.io = msgl__states_of(f, l->group, l->layer, 0);
    c.ld_qkv = c.ld_b = ld;
    c.ld_a = c.ld_z = c.ld_out = wide;
    for (int32_t i = 0; i < f->num_seqs; i++) {
        const int32_t first = f->seqs[i].first_token;
        const char *row = msgl__row(f, mixed, first, ld);
        c.io.seqs = &f->seqs[i];
        c.io.at = f->states[i];
        c.qkv = row;
        c.b = row + (3 * wide + 2 * rank) * elem;
        c.a = msgl__row(f, decays, first, wide);
        c.z = msgl__row(f, gates, first, wide);
        c.out = msgl__row(f, out, first, wide);
        f->k->delta.run(f->x, &c);
        msgl__arena_reset(f->x->scratch);
    }
    f->arena->used = mark;
}
