// SPDX-License-Identifier: Apache-2.0
#include "layers/delta.h"

msgl_delta_call msgl__delta_call_of(const msgl_delta *d)
{
    return (msgl_delta_call){.k_heads = d->k_heads,
                             .v_heads = d->v_heads,
                             .k_dim = d->k_dim,
                             .v_dim = d->v_dim,
                             .sigmoid_gate = d->sigmoid_gate,
                             .conv = d->conv,
                             .a_log = d->a_log,
                             .dt_bias = d->dt_bias,
                             .norm = d->norm,
                             .norm_eps = d->eps};
}

int32_t msgl__delta_rows(const msgl_delta *d)
{
    enum { WHOLE = 8 }; // rows of 16 bytes, as GPUs load them
    const msgl_delta_call c = msgl__delta_call_of(d);
    const int32_t rows = msgl__delta_channels(&c) + d->v_heads * (d->v_dim + 2);
    return msgl__ceil_div(rows, WHOLE) * WHOLE;
}

size_t msgl__delta_workspace(const msgl_delta *d, msgl_dtype act, int32_t max_tokens)
{
    return msgl__activation_bytes((size_t)max_tokens, (size_t)d->in.w.n, act);
}

size_t msgl__delta_scratch(const msgl_delta *d, const msgl_kernels *k, int32_t max_tokens,
                           int32_t max_requests)
{
    const msgl_seqs chunks = {
        .phase = MSGL_PREFILL, .size = max_requests, .num_tokens = max_tokens};
    const msgl_seqs answers = {
        .phase = MSGL_DECODE, .size = max_requests, .num_tokens = max_requests};
    msgl_delta_call c = msgl__delta_call_of(d);
    c.io.seqs = &chunks;
    const size_t most = k->delta.scratch_size(&c);
    c.io.seqs = &answers;
    const size_t other = k->delta.scratch_size(&c);
    return most > other ? most : other;
}

void msgl__delta(msgl_forward *f, const msgl_delta *d, const msgl_norm *norm, const void *in,
                 void *out)
{
    const size_t mark = f->arena->used, ld = (size_t)d->in.w.n, elem = msgl__dtype_size(f->x->act);
    const size_t values = (size_t)d->v_heads * (size_t)d->v_dim;
    char *mixed = msgl__activation(f, (size_t)f->num_tokens, ld);
    if (mixed == NULL) return;
    msgl__linear(f, &d->in, norm, in, mixed, f->num_tokens);
    msgl_delta_call c = msgl__delta_call_of(d);
    const size_t channels = (size_t)msgl__delta_channels(&c);
    c.ld_qkv = c.ld_z = c.ld_a = c.ld_b = ld;
    c.ld_out = values;
    c.io = msgl__states_of(f, d->group, d->layer, 0);
    for (int32_t i = 0; i < f->num_seqs; i++) {
        const char *row = msgl__row(f, mixed, f->seqs[i].first_token, ld);
        c.io.seqs = &f->seqs[i];
        c.io.at = f->states[i];
        c.qkv = row;
        c.z = row + channels * elem;
        c.b = row + (channels + values) * elem;
        c.a = row + (channels + values + (size_t)d->v_heads) * elem;
        c.out = msgl__row(f, out, f->seqs[i].first_token, values);
        f->k->delta.run(f->x, &c);
        msgl__arena_reset(f->x->scratch);
    }
    f->arena->used = mark;
}
