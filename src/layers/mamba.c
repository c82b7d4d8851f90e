// SPDX-License-Identifier: Apache-2.0
#include "layers/mamba.h"

static size_t matrix_bytes(const msgl_mamba *m)
{
    return msgl__ssm_state_bytes(m->heads, m->head_dim, m->state_dim);
}

size_t msgl__mamba_state_bytes(const msgl_mamba *m, msgl_dtype act)
{
    return matrix_bytes(m) + msgl__conv_state_bytes(msgl__mamba_channels(m), m->taps, act);
}

size_t msgl__mamba_workspace(const msgl_mamba *m, msgl_dtype act, int32_t max_tokens)
{
    const size_t t = (size_t)max_tokens;
    return msgl__activation_bytes(t, (size_t)m->in.w.n, act) +
           msgl__activation_bytes(t, (size_t)msgl__mamba_channels(m), act);
}

static msgl_conv_call conv_of(const msgl_forward *f, const msgl_mamba *m)
{
    return (msgl_conv_call){.io = msgl__states_of(f, m->group, m->layer, matrix_bytes(m)),
                            .channels = msgl__mamba_channels(m),
                            .taps = m->taps,
                            .ld_in = (size_t)m->in.w.n,
                            .weight = m->conv,
                            .bias = m->conv_bias,
                            .silu = true,
                            .ld_out = (size_t)msgl__mamba_channels(m)};
}

static msgl_ssm_call ssm_of(const msgl_forward *f, const msgl_mamba *m)
{
    return (msgl_ssm_call){.io = msgl__states_of(f, m->group, m->layer, 0),
                           .heads = m->heads,
                           .groups = m->groups,
                           .head_dim = m->head_dim,
                           .state_dim = m->state_dim,
                           .ld_x = (size_t)msgl__mamba_channels(m),
                           .ld_z = (size_t)m->in.w.n,
                           .ld_out = (size_t)(m->heads * m->head_dim),
                           .a_log = m->a_log,
                           .d = m->d,
                           .dt_bias = m->dt_bias,
                           .dt_min = m->dt_min,
                           .dt_max = m->dt_max,
                           .dt_scale = m->dt_scale,
                           .z_scale = m->z_scale,
                           .norm = m->norm,
                           .norm_weight = m->norm_weight,
                           .norm_eps = m->eps,
                           .norm_groups = m->norm_groups};
}

void msgl__mamba(msgl_forward *f, const msgl_mamba *m, const msgl_norm *norm, const void *in,
                 void *out)
{
    const size_t mark = f->arena->used, ld = (size_t)m->in.w.n, elem = msgl__dtype_size(f->x->act);
    const size_t wide = (size_t)(m->heads * m->head_dim);
    const size_t channels = (size_t)msgl__mamba_channels(m);
    const size_t group_dims = (size_t)(m->groups * m->state_dim);
    void *mixed = msgl__activation(f, (size_t)f->num_tokens, ld);
    void *convolved = msgl__activation(f, (size_t)f->num_tokens, channels);
    if (mixed == NULL || convolved == NULL) return;
    msgl__linear(f, &m->in, norm, in, mixed, f->num_tokens);
    msgl_conv_call conv = conv_of(f, m);
    msgl_ssm_call ssm = ssm_of(f, m);
    for (int32_t i = 0; i < f->num_seqs; i++) {
        const int32_t first = f->seqs[i].first_token;
        const char *row = msgl__row(f, mixed, first, ld);
        char *x = msgl__row(f, convolved, first, channels);
        conv.io.seqs = ssm.io.seqs = &f->seqs[i];
        conv.io.at = ssm.io.at = f->states[i];
        conv.in = row + wide * elem;
        conv.out = x;
        f->k->conv.run(f->x, &conv);
        ssm.z = row;
        ssm.dt = row + (wide + channels) * elem;
        ssm.x = x;
        ssm.b = x + wide * elem;
        ssm.c = x + (wide + group_dims) * elem;
        ssm.out = msgl__row(f, out, first, wide);
        f->k->ssm.run(f->x, &ssm);
    }
    f->arena->used = mark;
}
