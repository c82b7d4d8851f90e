// SPDX-License-Identifier: Apache-2.0
#include "layers/ngrams.h"

#include "layers/gated_streams.h"

static size_t streams_width(const msgl_ngrams *n)
{
    return (size_t)n->num * (size_t)n->hidden;
}

size_t msgl__ngrams_state_bytes(const msgl_ngrams *n, msgl_dtype act)
{
    return msgl__conv_state_bytes(n->num * n->hidden, msgl__conv_rows(n->taps, n->skip), act);
}

size_t msgl__ngrams_workspace(const msgl_ngrams *n, msgl_dtype act, int32_t max_tokens)
{
    const size_t t = (size_t)max_tokens, heads = (size_t)msgl__ngrams_heads(n);
    return msgl__activation_bytes(t, heads, MSGL_F32) + // ids
           msgl__activation_bytes(t, heads * (size_t)n->embed.k, act) +
           msgl__activation_bytes(t, (size_t)n->kv.w.n, act) +
           2 * msgl__activation_bytes(t, streams_width(n), act);
}

// Keys and value of the step's tokens, [num_tokens, kv.w.n]; keys are normed.
static void *keys_and_values(msgl_forward *f, const msgl_ngrams *n, void *kv)
{
    const size_t t = (size_t)f->num_tokens, heads = (size_t)msgl__ngrams_heads(n);
    const size_t width = heads * (size_t)n->embed.k, ld = (size_t)n->kv.w.n;
    int32_t *ids = msgl__take_rows(f, t, heads, MSGL_F32); // as many bytes
    void *rows = msgl__activation(f, t, width);
    if (ids == NULL || rows == NULL) return NULL;
    f->k->ngrams.ids(f->x, &n->hash, &f->tokens, f->positions, ids);
    n->embed.format->gather(f->x, &n->embed, ids, f->num_tokens * (int32_t)heads, rows);
    if (f->comm->size > 1) {
        f->comm->ops->all_reduce(f->comm, f->x, f->x->act, rows, t * width);
    }
    msgl__linear(f, &n->kv, NULL, rows, kv, f->num_tokens);
    for (int32_t s = 0; s < n->num; s++) {
        const size_t at = (size_t)s * (size_t)n->hidden;
        char *key = (char *)kv + at * msgl__dtype_size(f->x->act);
        f->k->norm.rms_norm(f->x, key, ld, n->key_norm + at, n->eps, key, ld, f->num_tokens,
                            n->hidden);
    }
    return kv;
}

// normed [num_tokens, num * hidden] to out, dense rows as those.
static void convolve(msgl_forward *f, const msgl_ngrams *n, const void *normed, void *out)
{
    const size_t width = streams_width(n);
    msgl_conv_call c = {.io = msgl__states_of(f, n->group, n->layer, 0),
                        .channels = n->num * n->hidden,
                        .taps = n->taps,
                        .skip = n->skip,
                        .ld_in = width,
                        .weight = n->conv,
                        .silu = true,
                        .ld_out = width};
    for (int32_t i = 0; i < f->num_seqs; i++) {
        c.io.seqs = &f->seqs[i];
        c.io.at = f->states[i];
        c.in = msgl__row(f, normed, f->seqs[i].first_token, width);
        c.out = msgl__row(f, out, f->seqs[i].first_token, width);
        f->k->conv.run(f->x, &c);
    }
}

void msgl__ngrams(msgl_forward *f, const msgl_ngrams *n, void *streams)
{
    const size_t mark = f->arena->used, width = streams_width(n);
    const size_t t = (size_t)f->num_tokens, ld = (size_t)n->kv.w.n;
    void *kv = msgl__activation(f, t, ld);
    void *normed = msgl__activation(f, t, width), *gated = msgl__activation(f, t, width);
    if (kv == NULL || normed == NULL || gated == NULL) return;
    if (keys_and_values(f, n, kv) == NULL) return;
    msgl__streams_norm(f, n->query_norm, n->eps, n->num, n->hidden, streams, width, f->num_tokens,
                       normed);
    const msgl_ngram_gate_call gate = {.rows = f->num_tokens,
                                       .num = n->num,
                                       .dim = n->hidden,
                                       .keys = kv,
                                       .values = msgl__row(f, kv, 1, width),
                                       .ld = ld,
                                       .queries = normed,
                                       .out = gated};
    f->k->ngrams.gate(f->x, &gate);
    f->k->norm.add(f->x, streams, gated, NULL, 0, 1, f->num_tokens, (int32_t)width);
    msgl__streams_norm(f, n->conv_norm, n->eps, n->num, n->hidden, gated, width, f->num_tokens,
                       normed);
    convolve(f, n, normed, gated);
    f->k->norm.add(f->x, streams, gated, NULL, 0, 1, f->num_tokens, (int32_t)width);
    f->arena->used = mark;
}
