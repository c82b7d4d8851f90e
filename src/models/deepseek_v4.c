// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek-V4: attention to a window of keys and to compressed ones, the residual as several
// streams, and experts in all layers, of which the first ones' are looked up by token ids.
#include <string.h>

#include "core/attributes.h"
#include "models/archs.h"
#include "models/compressed_config.h"

static void set_names(msgl_decoder_names *n)
{
    n->prefix = "";
    n->embed = "embed";
    n->head = "head";
    n->attn_norm = "attn_norm";
    n->ffn_norm = "ffn_norm";
    n->router = "ffn.gate";
    n->table = "ffn.gate.tid2eid";
    n->correction = "ffn.gate.bias";
    n->experts = "ffn.experts";
    n->gate = n->mlp_gate = "w1";
    n->down = n->mlp_down = "w2";
    n->up = n->mlp_up = "w3";
    n->shared = "ffn.shared_experts";
    n->shared_gate = NULL;
}

static void read_experts(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    const char *const key = "scoring_func";
    msgl__decoder_read_experts(r, c, "moe_intermediate_size");
    d->shared_intermediate_size = d->moe_intermediate_size;
    d->router.scale = (float)msgl__json_num_or(r, "routed_scaling_factor", 1e-6, 1e6, 1.5);
    d->router.scoring = MSGL_SCORE_SQRT_SOFTPLUS;
    d->router.norm_topk = true;
    d->activation = MSGL_SILU_CLAMPED;
    msgl__decoder_set_layers(c, 0, MSGL_LAYER_SPARSE);
    if (strcmp(msgl__json_str_or(r, key, "sqrtsoftplus"), "sqrtsoftplus") == 0) return;
    msgl__json_reject(r, MSGL_EUNSUPPORTED, key, msgl__json_get(r, key), "sqrtsoftplus");
}

static void read_tables(msgl_json_reader *r, msgl_model_config *c)
{
    static const msgl_layer_kind BLOCKS[] = {{"moe", 0}, {"hash_moe", MSGL_LAYER_TABLE}};
    if (msgl__decoder_read_kinds(r, c, "mlp_layer_types", BLOCKS, MSGL_COUNT(BLOCKS))) return;
    const int32_t hashed = msgl__json_int_or(r, "num_hash_layers", 0, INT32_MAX, 3);
    for (int32_t l = 0; l < c->num_layers && l < hashed; l++) {
        c->decoder.layer_flags[l] |= MSGL_LAYER_TABLE;
    }
}

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_hyper_config *h = &c->decoder.hyper;
    set_names(&c->decoder.names);
    c->decoder.shapes[0].sinks = c->decoder.shapes[1].sinks = true;
    h->streams = msgl__json_int_or(r, "hc_mult", 1, MSGL_MAX_HYPER_STREAMS, 4);
    if (r->status == 0 && (h->streams + 2) * h->streams > c->hidden_size) { // the kernels' room
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "hc_mult", msgl__json_get(r, "hc_mult"),
                          "no more than hidden_size has room for: its square and twice itself");
    }
    h->iterations = msgl__json_int_or(r, "hc_sinkhorn_iters", 1, 1000, 20);
    h->eps = (float)msgl__json_num_or(r, "hc_eps", 0, 1, 1e-6);
    msgl__decoder_read_compressed(r, c);
    if (r->status == 0) read_experts(r, c);
    if (r->status == 0) read_tables(r, c);
}

const msgl_arch msgl__arch_deepseek_v4 = {
    .name = "DeepseekV4ForCausalLM",
    .family = &msgl__decoder_family,
    .default_head_dim = 512,
    .rotary_factor = 0.125,
    .only_experts = true,
    .local_rope = true,
    .rope_kinds = {"compress", "main"},
    .ignored = {"mtp."},
    // As transformers 5 writes them.
    .renamed = {{"layers.*.attn.kv_norm.", "model.layers.*.attn.norm."},
                {"layers.", "model.layers."},
                {"embed.", "model.embed_tokens."},
                {"norm.", "model.norm."},
                {"hc_head_", "model.hc_head.hc_"}},
    // The kernels' constants, and what transformers 5.24 does not read.
    .fixed = {{"swiglu_limit", 10},
              {"num_key_value_heads", 1},
              {"n_shared_experts", 1},
              {"attention_bias", 0},
              {"mlp_bias", 0},
              {"norm_topk_prob", 1}},
    .configure = configure,
};
