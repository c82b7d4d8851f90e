// SPDX-License-Identifier: Apache-2.0
#include "models/replace.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/attributes.h"
#include "models/arch.h"
#include "models/safetensors.h"
#include "utils/file.h"

// --- whether it is the same model ---

typedef enum field_type { FIELD_INT, FIELD_FLAG, FIELD_FLOAT, FIELD_DOUBLE } field_type;

// Fields that decide what is computed and that shapes may not tell apart, by config.json's names
// where it has them.
typedef struct config_field {
    const char *name;
    field_type type;
    size_t at;
} config_field;

#define OF(name, type, member)                                                                     \
    {                                                                                              \
        name, type, offsetof(msgl_model_config, member)                                            \
    }
static const config_field FIELDS[] = {
    OF("vocab_size", FIELD_INT, vocab_size),
    OF("hidden_size", FIELD_INT, hidden_size),
    OF("num_hidden_layers", FIELD_INT, num_layers),
    OF("max_position_embeddings", FIELD_INT, max_position),
    OF("num_attention_heads", FIELD_INT, num_heads),
    OF("num_key_value_heads", FIELD_INT, num_kv_heads),
    OF("head_dim", FIELD_INT, head_dim),
    OF("logits_scaling", FIELD_FLOAT, logit_scale),
    OF("final_logit_softcapping", FIELD_FLOAT, logit_cap),
    OF("num_labels", FIELD_INT, num_labels),
    OF("intermediate_size", FIELD_INT, decoder.intermediate_size),
    OF("rms_norm_eps", FIELD_FLOAT, decoder.rms_eps),
    OF("attention_bias", FIELD_FLAG, decoder.qkv_bias),
    OF("hidden_act", FIELD_INT, decoder.activation),
    OF("sliding_window", FIELD_INT, decoder.sliding_window),
    OF("the scale of attention scores", FIELD_FLOAT, decoder.attn_scale),
    OF("attn_logit_softcapping", FIELD_FLOAT, decoder.attn_softcap),
    OF("residual_multiplier", FIELD_FLOAT, decoder.residual_scale),
    OF("num_experts", FIELD_INT, decoder.num_experts),
    OF("moe_intermediate_size", FIELD_INT, decoder.moe_intermediate_size),
    OF("shared_expert_intermediate_size", FIELD_INT, decoder.shared_intermediate_size),
    OF("num_experts_per_tok", FIELD_INT, decoder.router.top_k),
    OF("norm_topk_prob", FIELD_FLAG, decoder.router.norm_topk),
    OF("routed_scaling_factor", FIELD_FLOAT, decoder.router.scale),
    OF("n_group", FIELD_INT, decoder.router.num_groups),
    OF("topk_group", FIELD_INT, decoder.router.top_groups),
    OF("kv_lora_rank", FIELD_INT, decoder.latent.rank),
    OF("q_lora_rank", FIELD_INT, decoder.latent.q_rank),
    OF("index_block_size", FIELD_INT, decoder.blocks.size),
    OF("index_topk_blocks", FIELD_INT, decoder.blocks.top_k),
    OF("index_local_blocks", FIELD_INT, decoder.blocks.local),
    OF("compress_rates of layers that see all windows", FIELD_INT, decoder.compressed.rate),
    OF("compress_rates of layers that choose", FIELD_INT, decoder.compressed.chosen_rate),
    OF("index_topk of windows", FIELD_INT, decoder.compressed.index.top_k),
    OF("o_groups", FIELD_INT, decoder.compressed.groups),
    OF("hc_mult", FIELD_INT, decoder.hyper.streams),
    OF("hc_sinkhorn_iters", FIELD_INT, decoder.hyper.iterations),
    OF("hc_eps", FIELD_FLOAT, decoder.hyper.eps),
    OF("head_dim of layers that see all tokens", FIELD_INT, decoder.shapes[0].head_dim),
    OF("num_kv_shared_layers", FIELD_INT, decoder.shared_kv_layers),
    OF("attention_k_eq_v", FIELD_FLAG, decoder.shapes[0].k_is_v),
    OF("attention_value_scale", FIELD_FLOAT, decoder.value_scale),
    OF("linear_num_key_heads", FIELD_INT, decoder.delta.k_heads),
    OF("linear_num_value_heads", FIELD_INT, decoder.delta.v_heads),
    OF("output_gate_type", FIELD_FLAG, decoder.delta.sigmoid_gate),
    OF("indexer_n_heads", FIELD_INT, decoder.blocks.mean_queries),
    OF("hc_count", FIELD_INT, decoder.streams.num),
    OF("hc_lowrank", FIELD_INT, decoder.streams.rank),
    OF("ngram_size", FIELD_INT, decoder.ngrams.size),
    OF("heads_per_ngram", FIELD_INT, decoder.ngrams.heads),
    OF("ple_embed_dim", FIELD_INT, decoder.ngrams.dim),
    OF("ngram_vocab_size_base", FIELD_INT, decoder.ngrams.base),
    OF("make_ngram_vocab_size_divisible_by", FIELD_INT, decoder.ngrams.divisor),
    OF("split_ngram_parts", FIELD_INT, decoder.ngrams.parts),
    OF("ple_conv_kernel_size", FIELD_INT, decoder.ngrams.taps),
    OF("seed", FIELD_INT, decoder.ngrams.seed),
    OF("eos_token_id, which n-grams end at,", FIELD_INT, decoder.ngrams.end),
};
#undef OF

static double number(const msgl_model_config *c, const config_field *f)
{
    const char *at = (const char *)c + f->at;
    int32_t i;
    bool b;
    float x;
    double d;
    switch (f->type) {
    case FIELD_INT: memcpy(&i, at, sizeof i); return i;
    case FIELD_FLAG: memcpy(&b, at, sizeof b); return b;
    case FIELD_FLOAT: memcpy(&x, at, sizeof x); return (double)x;
    case FIELD_DOUBLE: break;
    }
    memcpy(&d, at, sizeof d);
    return d;
}

static int differs(const char *path, const char *field, double found, double now, msgl_err *err)
{
    return msgl__err_set(err, MSGL_EINVAL, "%s: %s: found %.9g, allowed %.9g, as of the model here",
                         msgl__path_shown(path), field, found, now);
}

static int same_ropes(const msgl_model_config *now, const msgl_model_config *next, const char *path,
                      msgl_err *err)
{
    if (now->num_ropes != next->num_ropes) {
        return differs(path, "rope_parameters: kinds of layers", next->num_ropes, now->num_ropes,
                       err);
    }
    for (int32_t i = 0; i < now->num_ropes; i++) {
        const msgl_rope_config *a = &now->ropes[i], *b = &next->ropes[i];
        if (a->theta != b->theta) return differs(path, "rope_theta", b->theta, a->theta, err);
        if (a->factor != b->factor) {
            return differs(path, "rope_scaling.factor", b->factor, a->factor, err);
        }
        if (a->dim != b->dim) {
            return differs(path, "dimensions of a head that rotate", b->dim, a->dim, err);
        }
        if (a->type != b->type) {
            return msgl__err_set(err, MSGL_EINVAL, "%s: rope_type: found %s, allowed %s",
                                 msgl__path_shown(path), msgl__rope_type_name(b->type),
                                 msgl__rope_type_name(a->type));
        }
    }
    return 0;
}

int msgl__config_same(const msgl_model_config *now, const msgl_model_config *next, const char *path,
                      msgl_err *err)
{
    if (now->arch != next->arch) {
        return msgl__err_set(err, MSGL_EINVAL, "%s: architectures: found %s, allowed %s",
                             msgl__path_shown(path), next->arch->name, now->arch->name);
    }
    for (size_t i = 0; i < MSGL_COUNT(FIELDS); i++) {
        const double a = number(now, &FIELDS[i]), b = number(next, &FIELDS[i]);
        if (a != b) return differs(path, FIELDS[i].name, b, a, err);
    }
    // That of the model here may have been rounded to a half precision dtype.
    const float scale = now->decoder.embed_scale, other = next->decoder.embed_scale;
    if (fabsf(scale - other) > fabsf(scale) / 128) {
        return differs(path, "embedding_multiplier", (double)other, (double)scale, err);
    }
    for (int32_t i = 0; i < now->num_layers; i++) {
        const int changed = now->decoder.layer_flags[i] ^ next->decoder.layer_flags[i];
        const bool ngrams = changed == MSGL_LAYER_NGRAMS; // of layers that count from 1
        if (changed == 0) continue;
        return msgl__err_set(err, MSGL_EINVAL, "%s: %s: layer %d is of another kind here",
                             msgl__path_shown(path), ngrams ? "ple_layer_ids" : "layer_types",
                             (int)i + ngrams);
    }
    return same_ropes(now, next, path, err);
}

// --- the model beside the first ---

static int build(const msgl_model *m, msgl_model *next, msgl_err *err)
{
    const msgl_model_target target = m->target;
    next->cfg = m->cfg;
    return msgl__model_build(next, &target, err);
}

// Whether the plan's weights lie where m's do, in the same formats.
static int check_layout(const msgl_model *m, const msgl_model *next, const char *what,
                        msgl_err *err)
{
    const msgl_weight_plan *a = &m->plan, *b = &next->plan;
    bool same = a->num_places == b->num_places && a->num_planned == b->num_planned &&
                a->num_scales == b->num_scales && a->bytes == b->bytes;
    for (size_t i = 0; i < a->num_places && same; i++) {
        same =
            a->places[i].offset == b->places[i].offset && a->places[i].bytes == b->places[i].bytes;
    }
    for (size_t i = 0; i < a->num_planned && same; i++) {
        const msgl_weight *x = a->planned[i].w, *y = b->planned[i].w;
        same = msgl__same_format(x->format, y->format) && x->num_parts == y->num_parts;
        for (int k = 0; k < x->num_parts && same; k++) {
            same = msgl__same_format(x->parts[k].format, y->parts[k].format);
        }
    }
    if (same) return 0;
    return msgl__err_set(err, MSGL_EUNSUPPORTED,
                         "%s: its weights are stored in other forms than those of the model here; "
                         "allowed: the same dtypes and quantization",
                         what);
}

int msgl__replace_open(const msgl_model *m, const char *dir, bool dummy, msgl_model *next,
                       msgl_err *err)
{
    int code = 0;
    if (!dummy) {
        code = msgl__model_config_load(dir, &next->cfg, err);
        // What is made to embed has no head, whatever the config says of it.
        if (code == 0) code = msgl__config_same(&m->cfg, &next->cfg, dir, err);
        if (code != 0) {
            next->cfg.arch = NULL; // nothing was built
            return code;
        }
    }
    code = build(m, next, err);
    if (code == 0) code = msgl__model_open(next, dir, dummy, err);
    return code == 0 ? check_layout(m, next, msgl__path_shown(dir), err) : code;
}

int msgl__replace_open_tensors(const msgl_model *m, const void *file, size_t size, msgl_model *next,
                               msgl_err *err)
{
    if (m->kept) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "tensors cannot take the place of weights that are kept as the file "
                             "has them (quantized): allowed are whole checkpoints of the same form "
                             "(/update_weights_from_disk), or a server with --weight-dtype");
    }
    int code = build(m, next, err);
    if (code == 0) code = msgl__safetensors_open_bytes(file, size, &next->checkpoint, err);
    if (code != 0) return code;
    for (int i = 0; i < MSGL_MAX_RENAMED && m->cfg.arch->renamed[i].own != NULL; i++) {
        msgl__weights_rename(&next->plan, next->checkpoint, m->cfg.arch->renamed[i].own,
                             m->cfg.arch->renamed[i].other);
    }
    msgl__weights_choose_form(&next->plan, next->checkpoint);
    return check_layout(m, next, "tensors", err);
}

bool msgl__replace_take(const msgl_model *next, msgl_model *m)
{
    bool changed = false;
    for (size_t i = 0; i < m->plan.num_scales; i++) {
        float *to = m->plan.scales[i].to;
        changed = changed || *to != *next->plan.scales[i].to;
        *to = *next->plan.scales[i].to;
    }
    return changed;
}
