// SPDX-License-Identifier: Apache-2.0
//
// The backends of a group: one for both phases, or one for each. Sequences go to the one of their
// phase; nothing of one backend is ever seen by the other.
#include "attention/expand.h"

bool msgl__attn_apart(const msgl_attn_choice *c)
{
    return c->prefill != c->decode || !c->prefill->ragged;
}

int msgl__attn_create(const msgl_attn_choice *c, const msgl_attn_config *cfg, msgl_attn *out,
                      msgl_err *err)
{
    *out = (msgl_attn){0};
    // A ragged backend prepares one set of sequences a step, so two are two backends.
    const bool two = c->decode != c->prefill || (cfg->apart && c->prefill->ragged);
    int rc = c->prefill->create(c->prefill, cfg, &out->prefill, err);
    if (rc == 0 && !two) {
        out->decode = out->prefill;
    } else if (rc == 0) {
        rc = c->decode->create(c->decode, cfg, &out->decode, err);
    }
    if (rc == 0 && cfg->expanded.prompts != MSGL_PROMPTS_ABSORBED) {
        rc = msgl__expand_create(c->prefill->expand, cfg, &out->expand, err);
    }
    if (rc != 0) msgl__attn_destroy(out);
    return rc;
}

void msgl__attn_destroy(msgl_attn *a)
{
    if (a->decode != NULL && a->decode != a->prefill) a->decode->desc->destroy(a->decode);
    if (a->prefill != NULL) a->prefill->desc->destroy(a->prefill);
    msgl__expand_destroy(a->expand);
    *a = (msgl_attn){0};
}

int32_t msgl__attn_split_seqs(bool apart, int32_t num_decode, int32_t size, int32_t ends[2])
{
    const bool mixed = num_decode > 0 && num_decode < size;
    int32_t n = 0;
    if (mixed && apart) ends[n++] = num_decode;
    ends[n++] = size;
    return n;
}

static msgl_attn_backend *of(const msgl_attn *a, const msgl_seqs *seqs)
{
    return seqs->phase == MSGL_DECODE ? a->decode : a->prefill;
}

int msgl__attn_prepare(const msgl_attn *a, const msgl_seqs *seqs)
{
    msgl_attn_backend *b = of(a, seqs);
    if (a->expand != NULL && msgl__expand_prepare(a->expand, seqs) > 0) return 0;
    return b->desc->prepare != NULL ? b->desc->prepare(b, seqs) : 0;
}

void msgl__attn_copy_in(const msgl_attn *a, msgl_exec *x, const msgl_seqs *seqs)
{
    msgl_attn_backend *b = of(a, seqs);
    if (msgl__expand_passes(a->expand, seqs) > 0) {
        msgl__expand_copy_in(a->expand, seqs);
    } else if (b->desc->copy_in != NULL) {
        b->desc->copy_in(b, x, seqs);
    }
}

void msgl__attn_begin(const msgl_attn *a, msgl_exec *x, const msgl_seqs *seqs)
{
    msgl_attn_backend *b = of(a, seqs);
    if (msgl__expand_passes(a->expand, seqs) > 0) return;
    if (b->desc->begin != NULL) b->desc->begin(b, x, seqs);
}

void msgl__attn_forward(const msgl_attn *a, msgl_exec *x, const msgl_attn_layer *layer,
                        const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    msgl_attn_backend *b = of(a, seqs);
    msgl_attn_input alone = *in;
    if (a->decode->desc != a->prefill->desc) alone.first = alone.second = false;
    b->desc->forward(b, x, layer, seqs, &alone, out);
}

bool msgl__attn_takes_rope(const msgl_attn *a, const msgl_seqs *seqs)
{
    const msgl_attn_backend *b = of(a, seqs);
    return !seqs->related && b->desc->takes_rope != NULL && b->desc->takes_rope(b, seqs);
}
