// SPDX-License-Identifier: Apache-2.0
#include "layers/short_conv.h"

size_t msgl__short_conv_workspace(const msgl_short_conv *l, msgl_dtype act, int32_t max_tokens)
{
    return msgl__activation_bytes((size_t)max_tokens, (size_t)l->in.w.n, act);
}

void msgl__short_conv(msgl_forward *f, const msgl_short_conv *l, const msgl_norm *norm,
                      const void *in, void *out)
{
    const size_t mark = f->arena->used, ld = (size_t)l->in.w.n, channels = (size_t)l->channels;
    const size_t bytes = channels * msgl__dtype_size(f->x->act);
    void *mixed = msgl__activation(f, (size_t)f->num_tokens, ld);
    if (mixed == NULL) return;
    msgl__linear(f, &l->in, norm, in, mixed, f->num_tokens);
    msgl_conv_call c = {.io = msgl__states_of(f, l->group, l->layer, 0),
                        .channels = l->channels,
                        .taps = l->taps,
                        .ld_in = ld,
                        .weight = l->weight,
                        .bias = l->bias,
                        .ld_out = channels};
    for (int32_t i = 0; i < f->num_seqs; i++) {
        const char *row = msgl__row(f, mixed, f->seqs[i].first_token, ld);
        c.io.seqs = &f->seqs[i];
        c.io.at = f->states[i];
        c.before = row;
        c.behind = row + bytes;
        c.in = row + 2 * bytes;
        c.out = msgl__row(f, out, f->seqs[i].first_token, channels);
        f->k->conv.run(f->x, &c);
    }
    f->arena->used = mark;
}
