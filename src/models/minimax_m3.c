// SPDX-License-Identifier: Apache-2.0
//
// MiniMax-M3: MiniMax-M2's experts beside one that all tokens have, with GPT-OSS's clamped gate,
// norms of each head that multiply by 1 + weight, and layers whose KV heads attend to blocks of
// keys that an index chooses (kernel/index.h). Its language half, beside eyes or by itself.
#include "core/attributes.h"
#include "models/archs.h"
#include "models/decoder.h"

// As hubs have them.
static void name_of_hubs(msgl_decoder_config *d)
{
    msgl_decoder_names *n = &d->names;
    n->prefix = "language_model.model.";
    n->head = "language_model.lm_head";
    n->router = "block_sparse_moe.gate";
    n->correction = "block_sparse_moe.e_score_correction_bias";
    n->experts = "block_sparse_moe.experts";
    n->gate = "w1";
    n->up = "w3";
    n->down = "w2";
    n->shared = "block_sparse_moe.shared_experts";
    d->blocks.q = "self_attn.index_q_proj";
    d->blocks.k = "self_attn.index_k_proj";
    d->blocks.q_norm = "self_attn.index_q_norm";
    d->blocks.k_norm = "self_attn.index_k_norm";
}

// As transformers saves the language half by itself.
static void name_of_half(msgl_decoder_config *d)
{
    d->names.correction = "mlp.gate.e_score_correction_bias";
    d->names.experts = NULL;
    d->names.shared = "mlp.shared_experts";
    d->names.mlp_gate_up = "gate_up_proj";
    d->blocks.q = "self_attn.indexer.q_proj";
    d->blocks.k = "self_attn.indexer.k_proj";
    d->blocks.q_norm = "self_attn.indexer.q_norm";
    d->blocks.k_norm = "self_attn.indexer.k_norm";
}

// Which layers have an index, by layer_types or inside sparse_attention_config with 1 for those
// that do; without either none has.
static void read_attention(msgl_json_reader *r, msgl_model_config *c)
{
    static const msgl_layer_kind KINDS[] = {{"full_attention", 0},
                                            {"minimax_m3_sparse", MSGL_LAYER_CHOOSES_BLOCKS}};
    msgl_json_reader section = msgl__json_section(r, "sparse_attention_config");
    if (section.status != 0) return;
    if (!msgl__decoder_read_kinds(r, c, "layer_types", KINDS, MSGL_COUNT(KINDS)) &&
        section.obj != NULL) {
        msgl__decoder_read_bits(&section, c, "sparse_attention_freq", 1, MSGL_LAYER_CHOOSES_BLOCKS);
    }
    bool chooses = false;
    for (int32_t l = 0; l < c->num_layers; l++) {
        chooses = chooses || msgl__layer_has(&c->decoder, l, MSGL_LAYER_CHOOSES_BLOCKS);
    }
    if (chooses && r->status == 0 && section.status == 0)
        msgl__decoder_read_block_index(r, &section, c);
    if (r->status == 0) r->status = section.status;
}

static void read_all(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->names.shared_gate = NULL;
    d->norm_plus_one = true;
    d->qk_norm = MSGL_QK_NORM_HEAD;
    msgl__decoder_read_rotary_dim(r, c);
    msgl__decoder_read_experts(r, c, "intermediate_size");
    d->intermediate_size =
        msgl__json_int_or(r, "dense_intermediate_size", 1, MSGL_MAX_INTERMEDIATE, 12288);
    d->shared_intermediate_size =
        msgl__json_int_or(r, "shared_intermediate_size", 1, MSGL_MAX_INTERMEDIATE, 3072);
    d->router.scoring = MSGL_SCORE_SIGMOID;
    d->router.norm_topk = true;
    d->router.scale = (float)msgl__json_num_or(r, "routed_scaling_factor", 1e-6, 1e6, 2);
    if (r->status == 0) msgl__decoder_read_sparse_layers(r, c, 0);
    if (r->status == 0) read_attention(r, c);
}

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    name_of_half(&c->decoder);
    read_all(r, c);
}

static void configure_conditional(msgl_json_reader *r, msgl_model_config *c)
{
    name_of_hubs(&c->decoder);
    read_all(r, c);
}

#define OF_BOTH                                                                                    \
    .family = &msgl__decoder_family, .default_head_dim = 128, .default_theta = 5e6,                \
    .rotary_factor = 1, .own_width = true, .clamps_swiglu = true,                                  \
    .fixed = {{"swiglu_alpha", 1.702}, {"swiglu_limit", 7}} /* the kernels' constants */

const msgl_arch msgl__arch_minimax_m3 = {OF_BOTH, .name = "MiniMaxM3VLForCausalLM",
                                         .ignored = {"mtp."}, .configure = configure};

const msgl_arch msgl__arch_minimax_m3_conditional = {
    OF_BOTH,
    .name = "MiniMaxM3SparseForConditionalGeneration",
    .text_section = "text_config",
    .text_defaults = "{\"vocab_size\": 200064, \"hidden_size\": 6144, \"intermediate_size\": 3072,"
                     " \"num_hidden_layers\": 60, \"num_attention_heads\": 64,"
                     " \"num_key_value_heads\": 4, \"max_position_embeddings\": 524288,"
                     " \"num_local_experts\": 128, \"num_experts_per_tok\": 4}",
    .ignored = {"vision_tower.", "multi_modal_projector.", "patch_merge_mlp.",
                "model.vision_tower.", "model.multi_modal_projector.", "mtp.",
                "language_model.mtp.", "language_model.model.mtp."},
    .renamed = {{"language_model.model.", "model.language_model."},
                {"language_model.lm_head.", "lm_head."}},
    .configure = configure_conditional,
};
