// SPDX-License-Identifier: Apache-2.0
//
// MiMo-V2-Flash: V of fewer dimensions than K, windows in most layers, which have sinks and twice
// the heads of K and V, and experts in all layers but the first.
#include "models/archs.h"
#include "models/decoder.h"

// layer_types, or hubs' hybrid_layer_pattern with 1 for a window; without them layers 0, 5, 11, ...
// see all tokens.
static void read_windows(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    // Hubs' sliding_window_size does not count the query's own token.
    const int32_t before = msgl__json_int_or(r, "sliding_window_size", 1, INT32_MAX - 1, 0);
    d->sliding_window =
        before > 0 ? before + 1 : msgl__json_int_or(r, "sliding_window", 1, INT32_MAX, 129);
    if (!msgl__decoder_read_layer_types(r, c) &&
        !msgl__decoder_read_bits(r, c, "hybrid_layer_pattern", 1, MSGL_LAYER_SLIDING)) {
        msgl__decoder_set_all_but(c, 6, MSGL_LAYER_SLIDING);
        d->layer_flags[0] &= (uint16_t)~MSGL_LAYER_SLIDING;
    }
    msgl__decoder_rope_of_windows(c);
}

static void read_shapes(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_attn_shape *full = &c->decoder.shapes[0], *sliding = &c->decoder.shapes[1];
    full->v_dim = msgl__json_int_or(r, "v_head_dim", 1, MSGL_MAX_HEAD_DIM, 128);
    full->sinks = msgl__json_bool_or(r, "add_full_attention_sink_bias", false);
    sliding->head_dim = msgl__json_int_or(r, "swa_head_dim", 2, MSGL_MAX_HEAD_DIM, c->head_dim);
    sliding->v_dim = msgl__json_int_or(r, "swa_v_head_dim", 1, MSGL_MAX_HEAD_DIM, full->v_dim);
    sliding->sinks = msgl__json_bool_or(r, "add_swa_attention_sink_bias", true);
    sliding->num_kv_heads =
        msgl__json_int_or(r, "swa_num_key_value_heads", 1, MSGL_MAX_HEADS, 2 * c->num_kv_heads);
    if (r->status == 0 && c->num_heads % sliding->num_kv_heads != 0) {
        msgl__json_reject(r, MSGL_EFORMAT, "swa_num_key_value_heads",
                          msgl__json_get(r, "swa_num_key_value_heads"),
                          "a divisor of num_attention_heads");
    }
    if (r->status == 0 && sliding->head_dim != c->head_dim) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "swa_head_dim", msgl__json_get(r, "swa_head_dim"),
                          "head_dim");
    }
}

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->names.sinks = "self_attn.attention_sink_bias";
    d->names.correction = "mlp.gate.e_score_correction_bias";
    const double eps = msgl__json_num_or(r, "layernorm_epsilon", 0, 1, 1e-5);
    d->rms_eps = (float)msgl__json_num_or(r, "rms_norm_eps", 0, 1, eps);
    d->qkv_bias = msgl__json_bool_or(r, "attention_bias", false);
    d->value_scale = (float)msgl__json_num_or(
        r, "attention_value_scale", 1e-6, 1e6,
        json_is_null(json_object_get(r->obj, "attention_value_scale")) ? 1 : 0.707);
    read_windows(r, c);
    if (r->status == 0) read_shapes(r, c);
    c->ropes[1].theta = msgl__json_num_or(r, "swa_rope_theta", 1, 1e18, c->ropes[1].theta);
    if (r->status == 0) msgl__decoder_read_experts(r, c, "moe_intermediate_size");
    d->router.scoring = MSGL_SCORE_SIGMOID;
    d->router.norm_topk = msgl__json_bool_or(r, "norm_topk_prob", true);
    d->router.scale = (float)msgl__json_num_or(r, "routed_scaling_factor", 1e-6, 1e6, 1);
    if (r->status == 0) msgl__decoder_read_sparse_layers(r, c, 1);
}

const msgl_arch msgl__arch_mimo_v2_flash = {
    .name = "MiMoV2FlashForCausalLM",
    .family = &msgl__decoder_family,
    .default_head_dim = 192,
    .default_theta = 5e6,
    .rotary_factor = 0.334,
    .local_rope = true,
    .local_theta = 10000,
    .ignored = {"model.mtp."},
    .ignores_layers_behind = true, // as files of GGUF have what predicts further tokens
    .mtp = msgl__mtp_of_mimo,
    .mtp_several = true,
    .fixed = {{"n_group", 1}, {"topk_group", 1}},
    .configure = configure,
};
