// SPDX-License-Identifier: Apache-2.0
//
// What a draft head has in front of its layers: how a token's embedding and a state of the target
// become what the first layer reads. Formulas: docs/decisions/059-draft-heads.md.
#include "kernel/device.h"
#include "models/decoder.h"

static bool is_eagle(const msgl_model *m)
{
    return m->cfg.decoder.head.kind == MSGL_HEAD_EAGLE3;
}

// Of a chain's rows; the target's may have others.
static int32_t state_width(const msgl_model *m)
{
    const msgl_model_config *c = &m->cfg;
    return is_eagle(m) ? c->hidden_size : c->decoder.head.state_dim;
}

void msgl__head_build(msgl_model *m, msgl_decoder *decoder)
{
    const float eps = m->cfg.decoder.rms_eps;
    decoder->head.embed_norm = (msgl_norm){.eps = eps, .dim = m->cfg.hidden_size};
    decoder->head.state_norm = (msgl_norm){.eps = eps, .dim = state_width(m)};
}

// Embedding and state side by side.
static size_t pair_width(const msgl_model *m)
{
    return (size_t)m->cfg.hidden_size + (size_t)state_width(m);
}

size_t msgl__head_workspace(const msgl_model *m, int32_t max_tokens)
{
    if (m->cfg.decoder.head.kind == MSGL_HEAD_NONE) return 0;
    return msgl__activation_bytes((size_t)max_tokens, pair_width(m), m->target.act);
}

void msgl__head_take_states(const msgl_model *m, msgl_forward *f, const void *states, int32_t rows,
                            void *out)
{
    const msgl_decoder *decoder = m->layers;
    msgl__linear(f, &decoder->head.fc, NULL, states, out, rows);
}

void *msgl__head_begin(const msgl_model *m, msgl_forward *f, void *residual)
{
    const msgl_decoder_head *h = &((const msgl_decoder *)m->layers)->head;
    const size_t hidden = (size_t)m->cfg.hidden_size, ld = pair_width(m);
    const size_t size = msgl__dtype_size(f->x->act);
    const msgl_norm_kernels *k = &f->k->norm;
    char *pairs = msgl__activation(f, (size_t)f->num_tokens, ld);
    if (pairs == NULL) return NULL;
    k->rms_norm(f->x, residual, hidden, h->embed_norm.weight, h->embed_norm.eps, pairs, ld,
                f->num_tokens, h->embed_norm.dim);
    k->rms_norm(f->x, f->hidden, (size_t)h->state_norm.dim, h->state_norm.weight, h->state_norm.eps,
                pairs + hidden * size, ld, f->num_tokens, h->state_norm.dim);
    if (!is_eagle(m)) {
        msgl__linear(f, &h->fc, NULL, pairs, residual, f->num_tokens);
        return residual;
    }
    if (m->cfg.decoder.head.norm_before_residual) {
        k->rms_norm(f->x, f->hidden, hidden, h->state_norm.weight, h->state_norm.eps, residual,
                    hidden, f->num_tokens, h->state_norm.dim);
    } else {
        f->x->device->ops->copy(f->x->device, residual, f->hidden,
                                (size_t)f->num_tokens * hidden * size);
    }
    return pairs;
}

static void declare_norm(msgl_weight_plan *p, msgl_norm *n, const char *name, bool plus_one)
{
    msgl__plan_vector(p, &n->weight, n->dim);
    msgl__plan_elements(p, &n->weight, 0, n->dim, 1, "%s.weight", name);
    if (plus_one) msgl__plan_add_one(p);
}

void msgl__head_declare(msgl_model *m, msgl_weight_plan *p)
{
    const msgl_decoder_config *d = &m->cfg.decoder;
    msgl_decoder_head *h = &((msgl_decoder *)m->layers)->head;
    const msgl_linear_use plain = {0};
    const int32_t columns =
        is_eagle(m) ? d->head.num_states * d->head.state_dim : (int32_t)pair_width(m);
    declare_norm(p, &h->embed_norm, d->head.embed_norm, d->norm_plus_one);
    declare_norm(p, &h->state_norm, d->head.state_norm, d->norm_plus_one);
    msgl__plan_weight(p, &h->fc.w, m->cfg.hidden_size, columns);
    msgl__plan_rows(p, &h->fc.w, 0, m->cfg.hidden_size, "%s.weight", d->head.fc);
    msgl__products_add(&m->products, &h->fc, &plain);
}
