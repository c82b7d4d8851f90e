// SPDX-License-Identifier: Apache-2.0
#include "models/model.h"

#include <string.h>

#include "core/mem.h"
#include "core/round.h"
#include "kernel/device.h"
#include "models/arch.h"
#include "models/dummy_checkpoint.h"

void msgl__model_caches(const msgl_model_config *c, int32_t ranks, msgl_dtype dtype, msgl_dtype act,
                        msgl_cache_specs *out)
{
    c->arch->family->caches(c, ranks, dtype, act, out);
}

int msgl__model_check_ranks(const msgl_model_config *c, int32_t ranks, int32_t *expert_ranks,
                            msgl_err *err)
{
    return c->arch->family->check_ranks(c, ranks, expert_ranks, err);
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
    msgl__weight_plan_init(&m->plan, &target->weights, err);
    m->plan.ignored = m->cfg.arch->ignored;
    m->plan.num_ignored = MSGL_MAX_IGNORED;
    if (m->cfg.arch->ignores_layers_behind) m->plan.ignored_from = m->cfg.num_layers;
    m->plan.ignores_all = m->cfg.decoder.head.in_target;
    family->declare(m, &m->plan);
    msgl__projections_declare(m, &m->plan);
    if (m->plan.status != 0) return m->plan.status;
    if (m->products.status == 0) return 0;
    return msgl__err_set(err, m->products.status, "model: out of memory");
}

void msgl__model_free(msgl_model *m)
{
    msgl__free(m->draft_ids);
    msgl__checkpoint_close(m->checkpoint);
    msgl__weight_plan_free(&m->plan);
    msgl__free(m->parts);
    msgl__kept_forms_free(m->forms);
    msgl__products_free(&m->products);
    if (m->cfg.arch != NULL) m->cfg.arch->family->free(m);
}

// The rows of embedding and head that a rank has: as many for each, fewer for the last.
static int32_t vocab_shard_size(const msgl_model *m)
{
    return msgl__ceil_div(m->cfg.vocab_size, m->target.ranks);
}

msgl_range msgl__model_vocab_rows(const msgl_model *m, int32_t all)
{
    const int32_t shard = msgl__ceil_div(all, m->target.ranks), from = m->target.rank * shard;
    return (msgl_range){.from = from, .count = all - from < shard ? all - from : shard};
}

static msgl_range vocab_of(const msgl_model *m, int32_t rank)
{
    const int32_t shard = vocab_shard_size(m), from = rank * shard, left = m->cfg.vocab_size - from;
    return (msgl_range){.from = from, .count = left < shard ? left : shard};
}

// The tensor that a weight of the model is declared to be.
static const char *tensor_of(const msgl_model *m, const msgl_weight *w)
{
    size_t i = 0;
    while (m->plan.wanted[i].weight != w) i++;
    return m->plan.wanted[i].name;
}

static void declare_whole(msgl_model *m, msgl_weight *w, const char *tensor)
{
    msgl__plan_weight(&m->plan, w, m->cfg.vocab_size, m->cfg.hidden_size);
    msgl__plan_rows(&m->plan, w, 0, m->cfg.vocab_size, "%s", tensor);
}

int msgl__model_build_ends(msgl_model *m, const msgl_model *of, const msgl_head_config *head,
                           msgl_err *err)
{
    const bool logits = !head->own_logits, tied = of->cfg.tie_embeddings;
    m->cfg = of->cfg;
    m->target = of->target;
    m->target.rank = 0;
    m->target.ranks = m->target.expert_ranks = 1;
    msgl__weight_plan_init(&m->plan, &m->target.weights, err);
    m->plan.ignores_all = true;
    if (!head->own_embed || (logits && tied))
        declare_whole(m, &m->embed, tensor_of(of, &of->embed));
    if (logits && !tied) declare_whole(m, &m->lm_head.w, tensor_of(of, &of->lm_head.w));
    if (tied) m->lm_head.w = m->embed; // its place comes with the weights
    return m->plan.status;
}

void msgl__model_take_shared(msgl_model *m)
{
    const msgl_head_config *h = &m->cfg.decoder.head;
    if (h->kind == MSGL_HEAD_NONE) return;
    if (!h->own_embed) m->embed = m->target.of->embed;
    if (!h->own_logits) m->lm_head.w = m->target.of->lm_head.w;
}

// The ends of a draft head.
static void declare_head_ends(msgl_model *m, msgl_weight_plan *p, const char *embed,
                              const char *head)
{
    const msgl_model_config *c = &m->cfg;
    const msgl_head_config *h = &c->decoder.head;
    msgl__model_take_shared(m);
    if (h->own_embed) {
        msgl__plan_weight(p, &m->embed, h->vocab, c->hidden_size);
        msgl__plan_rows(p, &m->embed, 0, h->vocab, "%s", embed);
    }
    if (!h->own_logits) return;
    msgl__plan_weight(p, &m->lm_head.w, c->vocab_size, c->hidden_size);
    msgl__plan_rows(p, &m->lm_head.w, 0, c->vocab_size, "%s", head);
}

// Tokens of an EAGLE-3 head, of the folder `dir`: d2t says what is to be added to its ids.
static int read_draft_ids(msgl_model *m, const char *dir, msgl_err *err)
{
    const msgl_model_config *c = &m->cfg;
    const size_t n = (size_t)c->vocab_size;
    if (!c->decoder.head.own_logits) return 0;
    m->draft_ids = msgl__calloc(n, sizeof *m->draft_ids);
    if (m->draft_ids == NULL) return msgl__err_set(err, MSGL_ENOMEM, "model: out of memory");
    for (size_t i = 0; i < n; i++) m->draft_ids[i] = (int32_t)i;
    if (m->dummy || c->vocab_size == c->decoder.head.vocab) return 0;
    const msgl_tensor *t = msgl__checkpoint_find(m->checkpoint, "d2t");
    if (t == NULL || strcmp(t->type, "I64") != 0 || t->ndim != 1 || t->dims[0] != c->vocab_size) {
        char shape[80] = "";
        return msgl__err_set(
            err, MSGL_EFORMAT, "%s: tensor d2t: found %s%s%s; allowed: I64 of [%d]",
            msgl__path_shown(dir), t == NULL ? "none" : t->type, t == NULL ? "" : " of ",
            t == NULL ? "" : msgl__shape_show(t->dims, t->ndim, shape, sizeof shape),
            (int)c->vocab_size);
    }
    for (size_t i = 0; i < n; i++) {
        int64_t offset;
        memcpy(&offset, t->data + i * sizeof offset, sizeof offset);
        if (offset < -(int64_t)i || offset >= c->decoder.head.vocab - (int64_t)i) {
            return msgl__err_set(err, MSGL_EFORMAT,
                                 "%s: tensor d2t: %lld behind draft token %zu; allowed: what "
                                 "gives a token of the model, 0 to %d",
                                 msgl__path_shown(dir), (long long)offset, i,
                                 (int)c->decoder.head.vocab - 1);
        }
        m->draft_ids[i] += (int32_t)offset;
    }
    return 0;
}

void msgl__model_declare_embed(msgl_model *m, msgl_weight_plan *p, const char *name)
{
    const msgl_range vocab = vocab_of(m, m->target.rank);
    const msgl_kept kept = {.rows = {vocab}, .num_rows = 1};
    if (m->target.ranks > 1) msgl__plan_keep(p, &m->embed, &kept);
    msgl__plan_weight(p, &m->embed, vocab.count, m->cfg.hidden_size);
    m->embed.first = vocab.from;
    msgl__plan_rows(p, &m->embed, 0, m->cfg.vocab_size, "%s", name);
}

// As their product takes it.
static const msgl_norm *norm_of_logits(const msgl_model *m)
{
    return m->final_norm.dim > 0 && !m->final_norm.centred ? &m->final_norm : NULL;
}

static void declare_final_norm(msgl_model *m, msgl_weight_plan *p, const char *norm,
                               bool norm_plus_one)
{
    const msgl_model_config *c = &m->cfg;
    msgl__plan_vector(p, &m->final_norm.weight, c->hidden_size);
    msgl__plan_elements(p, &m->final_norm.weight, 0, c->hidden_size, 1, "%s", norm);
    if (norm_plus_one) msgl__plan_add_one(p);
    if (!c->decoder.norm_bias) return;
    msgl__plan_vector(p, &m->final_norm.bias, c->hidden_size);
    msgl__plan_elements(p, &m->final_norm.bias, 0, c->hidden_size, 0, "%.*sbias",
                        (int)(strlen(norm) - strlen("weight")), norm);
}

void msgl__model_declare_ends(msgl_model *m, msgl_weight_plan *p, const char *embed,
                              const char *norm, const char *head, bool norm_plus_one)
{
    const msgl_model_config *c = &m->cfg;
    const msgl_linear_use logits = {
        .rows = MSGL_ROWS_LOGITS, .norm = norm_of_logits(m), .f32_out = true};
    const msgl_range vocab = vocab_of(m, m->target.rank);
    const msgl_kept kept = {.rows = {vocab}, .num_rows = 1};
    if (m->target.ranks > 1) {
        msgl__plan_keep(p, &m->lm_head.w, &kept);
        msgl__plan_keep(p, &m->lm_head.bias, &kept);
    }
    const bool is_head = c->decoder.head.kind != MSGL_HEAD_NONE;
    if (is_head) {
        declare_head_ends(m, p, embed, head);
    } else {
        msgl__model_declare_embed(m, p, embed);
    }
    if (norm != NULL) declare_final_norm(m, p, norm, norm_plus_one);
    if (c->decoder.head_bias) {
        msgl__plan_vector(p, &m->lm_head.bias, vocab.count);
        msgl__plan_elements(p, &m->lm_head.bias, 0, c->vocab_size, 0, "%.*sbias",
                            (int)(strlen(head) - strlen("weight")), head);
    }
    if (c->tie_embeddings) {
        m->lm_head.w = m->embed; // its place comes with the weights
    } else if (!is_head) {
        msgl__plan_weight(p, &m->lm_head.w, vocab.count, c->hidden_size);
        msgl__plan_rows(p, &m->lm_head.w, 0, c->vocab_size, "%s", head);
    }
    msgl__products_add(&m->products, &m->lm_head, &logits);
}

static int open_files(msgl_model *m, const char *dir, msgl_err *err)
{
    int code = msgl__checkpoint_open(dir, &m->checkpoint, err);
    if (code == 0) code = msgl__projections_open(m, dir, m->checkpoint, err);
    if (code != 0) return code;
    for (int i = 0; i < MSGL_MAX_RENAMED && m->cfg.arch->renamed[i].own != NULL; i++) {
        msgl__weights_rename(&m->plan, m->checkpoint, m->cfg.arch->renamed[i].own,
                             m->cfg.arch->renamed[i].other);
    }
    msgl__weights_choose_form(&m->plan, m->checkpoint);
    return 0;
}

static int open_dummy(msgl_model *m, const char *dir, msgl_err *err)
{
    const msgl_weight *head = m->cfg.tie_embeddings ? &m->embed : &m->lm_head.w;
    m->dummy = true;
    msgl__weights_choose_form(&m->plan, NULL);
    return msgl__dummy_checkpoint(&m->plan, dir, m->cfg.num_layers, &m->embed, head, &m->checkpoint,
                                  err);
}

int msgl__model_open(msgl_model *m, const char *dir, bool dummy, msgl_err *err)
{
    const int code = dummy ? open_dummy(m, dir, err) : open_files(m, dir, err);
    if (code != 0 || m->checkpoint == NULL) return code;
    const int checked = msgl__weights_check(&m->plan, m->checkpoint, err);
    if (checked != 0) return checked;
    const int kept = msgl__weights_keep(&m->plan, m->checkpoint, err);
    m->parts = m->plan.parts;
    m->plan.parts = NULL;
    m->forms = m->plan.forms;
    m->plan.forms = NULL;
    m->kept = m->plan.keeps;
    if (m->cfg.tie_embeddings) m->lm_head.w = m->embed;
    msgl__plan_take_same(&m->plan);
    return kept == 0 ? read_draft_ids(m, dir, err) : kept;
}

int msgl__model_load(msgl_model *m, void *region, msgl_exec *x, msgl_load_progress progress,
                     void *ctx, msgl_err *err)
{
    msgl__weight_plan_place(&m->plan, region);
    if (m->cfg.tie_embeddings) m->lm_head.w = m->embed;
    msgl__model_take_shared(m);
    const int code = m->dummy ? msgl__weights_dummy(&m->plan, m->checkpoint, x, progress, ctx, err)
                              : msgl__weights_load(&m->plan, m->checkpoint, x, progress, ctx, err);
    msgl__checkpoint_close(m->checkpoint);
    m->checkpoint = NULL;
    msgl__weight_plan_trim(&m->plan);
    return code;
}

// Of rows behind the final norm, where the product does not do that.
static size_t normed_bytes(const msgl_model *m, int32_t rows)
{
    if (!m->final_norm.centred) return 0;
    return msgl__activation_bytes((size_t)rows, (size_t)m->cfg.hidden_size, m->target.act);
}

size_t msgl__model_logits_bytes(const msgl_model *m, int32_t rows)
{
    const size_t ranks = (size_t)m->target.ranks, columns = (size_t)vocab_shard_size(m),
                 n = (size_t)rows;
    const size_t whole =
        normed_bytes(m, rows) + msgl__activation_bytes(n, (size_t)m->cfg.vocab_size, MSGL_F32);
    if (ranks == 1) return whole;
    return whole + msgl__activation_bytes(n, columns, MSGL_F32) +
           msgl__activation_bytes(n * ranks, columns, MSGL_F32) +
           msgl__activation_bytes(n, 2 * (1 + ranks), MSGL_F32);
}

bool msgl__model_take_logits(const msgl_model *m, msgl_forward *f, int32_t rows, msgl_logits *out)
{
    const size_t ranks = (size_t)m->target.ranks, columns = (size_t)vocab_shard_size(m),
                 n = (size_t)rows;
    *out = (msgl_logits){
        .whole = msgl__take_rows(f, n, (size_t)m->cfg.vocab_size, MSGL_F32),
        .own_tokens = vocab_of(m, m->target.rank),
    };
    out->own = out->whole;
    if (m->final_norm.centred) {
        out->normed = msgl__activation(f, n, (size_t)m->cfg.hidden_size);
        if (out->normed == NULL) return false;
    }
    if (ranks == 1) return out->whole != NULL;
    out->own = msgl__take_rows(f, n, columns, MSGL_F32);
    out->all = msgl__take_rows(f, n * ranks, columns, MSGL_F32);
    out->keys = msgl__take_rows(f, n, 2 * (1 + ranks), MSGL_F32);
    return out->whole != NULL && out->own != NULL && out->all != NULL && out->keys != NULL;
}

void msgl__model_norm(const msgl_model *m, msgl_forward *f, const void *hidden, void *out,
                      int32_t rows)
{
    msgl_device *d = f->x->device;
    if (m->final_norm.dim > 0) {
        msgl__norm(f, &m->final_norm, hidden, out, rows);
    } else {
        d->ops->copy(d, out, hidden,
                     (size_t)rows * (size_t)m->cfg.hidden_size * msgl__dtype_size(f->x->act));
    }
}

void msgl__model_logits(const msgl_model *m, msgl_forward *f, const void *hidden, int32_t rows,
                        const msgl_logits *l)
{
    const msgl_model_config *c = &m->cfg;
    if (m->final_norm.centred) {
        msgl__norm(f, &m->final_norm, hidden, l->normed, rows);
        msgl__linear_f32(f, &m->lm_head, NULL, l->normed, l->own, rows);
    } else {
        msgl__linear_f32(f, &m->lm_head, norm_of_logits(m), hidden, l->own, rows);
    }
    if (c->logit_scale == 1 && c->logit_cap == 0) return;
    f->k->act.cap(f->x, l->own, (size_t)rows * (size_t)l->own_tokens.count, c->logit_scale,
                  c->logit_cap);
}

// Side by side in every row. The last rank has fewer columns, and what is behind them in its part
// is sent and not looked at.
void msgl__model_join_logits(const msgl_model *m, msgl_forward *f, int32_t rows,
                             const msgl_logits *l)
{
    const size_t n = (size_t)rows * (size_t)vocab_shard_size(m);
    if (m->target.ranks == 1) return;
    f->comm->ops->all_gather(f->comm, f->x, l->own, n, l->all);
    f->k->act.join_columns(f->x, MSGL_F32, l->all, vocab_shard_size(m), rows, m->cfg.vocab_size,
                           l->whole);
}

bool msgl__model_draws_apart(const msgl_model *m)
{
    return m->target.ranks > 1 && m->target.kernels->sample.draw != NULL &&
           vocab_shard_size(m) % 4 == 0;
}
