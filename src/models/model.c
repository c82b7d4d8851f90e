// SPDX-License-Identifier: Apache-2.0
#include "models/model.h"

#include "models/arch.h"

void msgl__model_caches(const msgl_model_config *c, msgl_dtype dtype, msgl_dtype act,
                        msgl_cache_specs *out)
{
    c->arch->family->caches(c, dtype, act, out);
}

msgl_attn_variants msgl__model_variants(const msgl_model_config *c, int32_t group)
{
    return c->arch->family->variants(c, group);
}

int msgl__model_build(msgl_model *m, const msgl_model_target *target, msgl_err *err)
{
    const msgl_family *family = m->cfg.arch->family;
    m->target = *target;
    const int code = family->build(m, err);
    if (code != 0) return code;
    msgl__weight_plan_init(&m->plan, target->weights, &target->kernels->gemm.formats[target->dtype],
                           err);
    m->plan.ignored = m->cfg.arch->ignored;
    m->plan.num_ignored = MSGL_MAX_IGNORED;
    if (m->cfg.arch->ignores_layers_behind) m->plan.ignored_from = m->cfg.num_layers;
    family->declare(m, &m->plan);
    if (m->plan.status != 0) return m->plan.status;
    if (m->products.status == 0) return 0;
    return msgl__err_set(err, m->products.status, "model: out of memory");
}

void msgl__model_free(msgl_model *m)
{
    msgl__weight_plan_free(&m->plan);
    msgl__products_free(&m->products);
    if (m->cfg.arch != NULL) m->cfg.arch->family->free(m);
}

void msgl__model_declare_ends(msgl_model *m, msgl_weight_plan *p, const char *embed,
                              const char *norm, const char *head, bool norm_plus_one)
{
    const msgl_model_config *c = &m->cfg;
    const msgl_linear_use logits = {
        .rows = MSGL_ROWS_LOGITS, .norm = &m->final_norm, .f32_out = true};
    msgl__plan_weight(p, &m->embed, c->vocab_size, c->hidden_size);
    msgl__plan_rows(p, &m->embed, 0, c->vocab_size, "%s", embed);
    msgl__plan_vector(p, &m->final_norm.weight, c->hidden_size);
    msgl__plan_elements(p, &m->final_norm.weight, 0, c->hidden_size, 1, "%s", norm);
    if (norm_plus_one) msgl__plan_add_one(p);
    if (c->tie_embeddings) {
        m->lm_head.w = m->embed; // its place comes with the weights
    } else {
        msgl__plan_weight(p, &m->lm_head.w, c->vocab_size, c->hidden_size);
        msgl__plan_rows(p, &m->lm_head.w, 0, c->vocab_size, "%s", head);
    }
    msgl__products_add(&m->products, &m->lm_head, &logits);
}

int msgl__model_load(msgl_model *m, void *region, const char *dir, msgl_exec *x,
                     msgl_load_progress progress, void *ctx, msgl_err *err)
{
    msgl__weight_plan_place(&m->plan, region);
    if (m->cfg.tie_embeddings) m->lm_head.w = m->embed;
    int code;
    if (dir == NULL) {
        code = msgl__weights_dummy(&m->plan, x, progress, ctx, err);
    } else {
        msgl_checkpoint *ckpt = NULL;
        code = msgl__checkpoint_open(dir, &ckpt, err);
        if (code == 0) code = msgl__weights_check(&m->plan, ckpt, err);
        if (code == 0) code = msgl__weights_load(&m->plan, ckpt, x, progress, ctx, err);
        msgl__checkpoint_close(ckpt);
    }
    msgl__weight_plan_free(&m->plan);
    return code;
}

void msgl__model_logits(const msgl_model *m, msgl_forward *f, const void *hidden, int32_t rows,
                        float *logits)
{
    const msgl_model_config *c = &m->cfg;
    msgl__linear_f32(f, &m->lm_head, &m->final_norm, hidden, logits, rows);
    if (c->logit_scale == 1 && c->logit_cap == 0) return;
    f->k->act.cap(f->x, logits, (size_t)rows * (size_t)c->vocab_size, c->logit_scale, c->logit_cap);
}
