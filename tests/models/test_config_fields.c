// SPDX-License-Identifier: Apache-2.0
//
// Fields of config.json that transformers' configuration classes have: none is passed over.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "models/arch.h"
#include "models/folder.h"

// Fields of transformers' configuration classes that nothing reads, as they change nothing in what
// a server computes: they are about training, special tokens (which the tokenizer's files have),
// what transformers returns and how it cuts products, or follow from others.
static const char *const HARMLESS[] = {
    "attention_dropout",  "embd_pdrop",
    "initializer_range",  "output_router_logits",
    "resid_pdrop",        "router_aux_loss_coef",
    "input_jitter_noise", "bos_token_id",
    "pad_token_id",       "output_attentions",
    "use_cache",          "pretraining_tp",
    "qk_head_dim",        "_sliding_window_pattern",
    "embedding_dropout",  "hidden_dropout",
    "output_dropout",     "residual_dropout",
    "eod_token_id",       "sep_token_id",
    "mamba_chunk_size",   "num_logits_to_keep",
    "z_loss_coefficient", "chunk_size",
    "time_step_floor",    "time_step_max",
    "use_mamba_kernels",  "rescale_prenorm_residual",
    "residual_in_fp32",   "moe_shared_expert_overlap",
};

// Those that make no difference in transformers either, by architecture.
static const struct {
    const char *arch, *key;
} UNREAD[] = {
    {"DeepseekV2ForCausalLM", "head_dim"}, // another one than qk_rope_head_dim does not run there
    {"DeepseekV3ForCausalLM", "head_dim"},
    {"DeepseekV32ForCausalLM", "head_dim"}, // set to qk_rope_head_dim by the class
    {"GlmMoeDsaForCausalLM", "head_dim"},
    {"DeepseekV2ForCausalLM", "norm_topk_prob"},
    // Only Phi-3.5-MoE chooses by it.
    {"Llama4ForCausalLM", "router_jitter_noise"},
    {"Llama4ForConditionalGeneration", "router_jitter_noise"},
    {"MixtralForCausalLM", "router_jitter_noise"},
    {"MiniMaxM2ForCausalLM", "router_jitter_noise"},
    {"MiniMaxM3VLForCausalLM", "router_jitter_noise"},
    {"MiniMaxM3SparseForConditionalGeneration", "router_jitter_noise"},
    {"DeepseekV3ForCausalLM", "num_nextn_predict_layers"},
    {"DeepseekV4ForCausalLM", "num_nextn_predict_layers"},
    {"DeepseekV4ForCausalLM", "router_jitter_noise"},
    {"Glm4MoeForCausalLM", "num_nextn_predict_layers"},
    {"KimiK25ForConditionalGeneration", "num_nextn_predict_layers"},
    {"KimiK25ForConditionalGeneration", "head_dim"},
    {"Gemma3ForCausalLM", "attn_logit_softcapping"},
    {"Gemma3ForConditionalGeneration", "attn_logit_softcapping"},
    {"Gemma3ForConditionalGeneration", "final_logit_softcapping"},
    // Beyond the last layer of the config here.
    {"Ernie4_5_MoeForCausalLM", "moe_layer_end_index"},
    {"Qwen3VLMoeForConditionalGeneration", "sliding_window"}, // its class sets it to none
    // The language model's own counts first.
    {"Mistral3ForConditionalGeneration", "tie_word_embeddings"},
    // Outside of text_config it is the model's, inside the class's default.
    {"Gemma3ForConditionalGeneration", "eos_token_id"},
    {"Gemma4ForConditionalGeneration", "eos_token_id"},
    {"Llama4ForConditionalGeneration", "eos_token_id"},
    {"KimiK25ForConditionalGeneration", "eos_token_id"},
    {"Mistral3ForConditionalGeneration", "eos_token_id"},
    {"MiniMaxM3SparseForConditionalGeneration", "eos_token_id"},
    {"Qwen3VLMoeForConditionalGeneration", "eos_token_id"},
    {"Qwen3_5ForConditionalGeneration", "eos_token_id"},
    {"Qwen3_5MoeForConditionalGeneration", "eos_token_id"},
    // Of mamba_d_head "auto" only.
    {"BambaForCausalLM", "mamba_expand"},
    {"GraniteMoeHybridForCausalLM", "mamba_expand"},
    {"FalconH1ForCausalLM", "mamba_expand"},
    {"FalconH1ForCausalLM", "mamba_d_ssm"},
    {"KimiLinearForCausalLM", "model_max_length"},   // another name of max_position_embeddings
    {"Lfm2ForCausalLM", "block_ffn_dim_multiplier"}, // lost where widths are rounded up to 256
    {"KimiLinearForCausalLM", "head_dim"},           // set to qk_rope_head_dim by the class
    // layer_types has layers; without it full_attn_idxs is null as all have attention.
    {"Lfm2ForCausalLM", "full_attn_idxs"},
    // Without mamba_rms_norm there is no norm to be before the gate.
    {"FalconH1ForCausalLM", "mamba_norm_before_gate"},
    {"NemotronHForCausalLM", "expand"},          // mamba_num_heads and mamba_head_dim say it
    {"NemotronHForCausalLM", "mamba_proj_bias"}, // use_bias says it
    {"NemotronHForCausalLM", "sliding_window"},  // no layer has one
    {"NemotronHForCausalLM", "num_nextn_predict_layers"},
    // Computed by the class from others, or not looked at.
    {"Zamba2ForCausalLM", "attention_head_dim"},
    {"Zamba2ForCausalLM", "attention_hidden_size"},
    {"Zamba2ForCausalLM", "kv_channels"},
    {"Zamba2ForCausalLM", "num_query_groups"},
    {"Zamba2ForCausalLM", "use_conv_bias"},
    {"Zamba2ForCausalLM", "use_mem_eff_path"},
    {"Qwen4ExpForCausalLM", "number_of_conv_states"}, // set by the class
    {"Qwen4ExpForConditionalGeneration", "number_of_conv_states"},
};

static bool is_listed(const char *arch, const char *key)
{
    for (size_t i = 0; i < MSGL_COUNT(HARMLESS); i++) {
        if (strcmp(key, HARMLESS[i]) == 0) return true;
    }
    for (size_t i = 0; i < MSGL_COUNT(UNREAD); i++) {
        if (strcmp(arch, UNREAD[i].arch) == 0 && strcmp(key, UNREAD[i].key) == 0) return true;
    }
    return false;
}

// Qwen4-Exp's index, which is there with all of its fields or none.
static const char *const QWEN4_INDEX[][2] = {{"indexer_n_heads", "2"},
                                             {"indexer_kv_heads", "1"},
                                             {"indexer_head_dim", "16"},
                                             {"indexer_budget", "16"},
                                             {"indexer_compress_ratio", "4"}};

// A config in which every optional part is there, so that its fields count.
static json_t *full_config(const char *arch)
{
    static const char *const FIELDS[][2] = {
        {"num_hidden_layers", "4"}, {"use_sliding_window", "true"},      {"sliding_window", "16"},
        {"max_window_layers", "2"}, {"attn_temperature_tuning", "true"},
    };
    json_t *c = small_config(arch), *text = json_object_get(c, "text_config");
    if (strcmp(arch, "DeepseekV2ForCausalLM") == 0) {
        set_field(c, "topk_method", "\"group_limited_greedy\"");
    }
    if (strncmp(arch, "MiniMaxM3", 9) == 0) {
        set_field(text != NULL ? text : c, "layer_types",
                  "[\"full_attention\", \"minimax_m3_sparse\", \"full_attention\", "
                  "\"minimax_m3_sparse\"]");
    }
    if (strcmp(arch, "Zamba2ForCausalLM") == 0) {
        set_field(c, "layers_block_type", "[\"mamba\", \"hybrid\", \"mamba\", \"hybrid\"]");
    }
    if (strncmp(arch, "Qwen4Exp", 8) == 0) {
        for (size_t i = 0; i < MSGL_COUNT(QWEN4_INDEX); i++) {
            set_field(text != NULL ? text : c, QWEN4_INDEX[i][0], QWEN4_INDEX[i][1]);
        }
    }
    if (strcmp(arch, "DeepseekV4ForCausalLM") == 0) {
        set_field(c, "layer_types", NULL);
        set_field(c, "compress_ratios", "[0, 4, 128, 4]");
    }
    if (strcmp(arch, "Phi3ForCausalLM") == 0) {
        set_field(c, "rope_scaling",
                  "{\"type\": \"longrope\", \"short_factor\": [1, 1, 1, 1], \"long_factor\": "
                  "[2, 2, 2, 2]}");
    }
    for (size_t i = 0; i < MSGL_COUNT(FIELDS); i++) {
        set_field(text != NULL ? text : c, FIELDS[i][0], FIELDS[i][1]);
    }
    return c;
}

// 0 and the config, or an error.
static int load_changed(const folder *f, const char *arch, const char *key, json_t *value,
                        msgl_model_config *out, msgl_err *err)
{
    json_t *c = full_config(arch), *text = json_object_get(c, "text_config");
    const bool outer = text == NULL || strcmp(key, "tie_word_embeddings") == 0;
    if (value != NULL) json_object_set_new(outer ? c : text, key, value);
    folder_write_json(f, "config.json", c);
    json_decref(c);
    return msgl__model_config_load(f->dir, out, err);
}

// Whether some other value of the field is seen: the config is another one, or an error names it.
static bool is_seen(const folder *f, const char *arch, const char *key, const json_t *usual,
                    const msgl_model_config *plain, msgl_model_config *c)
{
    const double d = json_number_value(usual);
    json_t *const values[] = {json_boolean(!json_is_true(usual)), json_boolean(json_is_true(usual)),
                              json_integer((json_int_t)d + 1), json_integer((json_int_t)d / 2),
                              json_real(d / 2 + 0.25)};
    bool seen = false;
    for (size_t i = 0; i < MSGL_COUNT(values); i++) {
        msgl_err err = {0};
        const bool same_kind = json_is_null(usual) ||
                               json_typeof(values[i]) == json_typeof(usual) ||
                               (json_is_boolean(values[i]) && json_is_boolean(usual));
        const int code =
            same_kind ? load_changed(f, arch, key, json_incref(values[i]), c, &err) : 0;
        seen = seen || (same_kind && (code != 0 ? strstr(err.text, key) != NULL
                                                : memcmp(c, plain, sizeof *c) != 0));
        json_decref(values[i]);
    }
    return seen;
}

// No number or truth value that transformers' class of an architecture has is passed over: it
// changes the config, is refused by name, or is in a list here, with a reason.
static void test_known_fields(void **state)
{
    (void)state;
    json_t *all = json_load_file(MSGL_SOURCE_DIR "/tests/vectors/models/fields.json", 0, NULL);
    json_t *fields, *usual;
    const char *arch, *key;
    msgl_model_config *plain = malloc(sizeof *plain), *c = malloc(sizeof *c);
    folder f;
    folder_make(&f);
    size_t decoders = 0; // of encoders no fields are listed
    for (int i = 0; i < msgl__arch_count(); i++) decoders += !msgl__arch_at(i)->family->encodes;
    assert_int_equal(json_object_size(all), decoders);
    json_object_foreach(all, arch, fields)
    {
        msgl_err err = {0};
        if (load_changed(&f, arch, "", NULL, plain, &err) != 0) fail_msg("%s", err.text);
        assert_true(json_object_size(fields) > 13);
        json_object_foreach(fields, key, usual)
        {
            const bool seen = is_seen(&f, arch, key, usual, plain, c);
            if (seen != is_listed(arch, key)) continue;
            fail_msg("%s: %s is %s", arch, key, seen ? "listed, and seen" : "not seen");
        }
    }
    folder_remove(&f);
    json_decref(all);
    free(plain);
    free(c);
}

// nomic-ai's own files call fields otherwise than transformers' class, and mean the same.
static void test_aliases(void **state)
{
    (void)state;
    static const char *const NAMES[][2] = {{"vocab_size", "vocab_size"},
                                           {"hidden_size", "n_embd"},
                                           {"num_hidden_layers", "n_layer"},
                                           {"num_attention_heads", "n_head"},
                                           {"intermediate_size", "n_inner"},
                                           {"max_position_embeddings", "n_positions"},
                                           {"layer_norm_eps", "layer_norm_epsilon"},
                                           {"rope_theta", "rotary_emb_base"}};
    static const char *const VALUES[] = {"60", "32", "3", "4", "48", "64", "1e-3", "777"};
    msgl_model_config *c[2] = {malloc(sizeof **c), malloc(sizeof **c)};
    folder f;
    msgl_err err = {0};
    folder_make(&f);
    for (int spelling = 0; spelling < 2; spelling++) {
        json_t *j = json_pack("{s:[s]}", "architectures", "NomicBertModel");
        for (size_t i = 0; i < MSGL_COUNT(VALUES); i++) {
            set_field(j, NAMES[i][spelling], VALUES[i]);
        }
        if (spelling == 1) set_field(j, "activation_function", "\"swiglu\"");
        folder_write_json(&f, "config.json", j);
        if (msgl__model_config_load(f.dir, c[spelling], &err) != 0) fail_msg("%s", err.text);
        if (spelling == 1) set_field(j, "n_head", "0");
        folder_write_json(&f, "config.json", j);
        json_decref(j);
    }
    assert_memory_equal(c[0], c[1], sizeof **c);
    assert_true(c[0]->num_layers == 3 && c[0]->ropes[0].theta == 777);
    assert_true(msgl__model_config_load(f.dir, c[0], &err) < 0);
    assert_non_null(strstr(err.text, "n_head: found 0")); // by the name that the file has
    folder_remove(&f);
    free(c[0]), free(c[1]);
}

// A full config with these fields, which are in braces.
static int load_fields(const char *arch, const char *fields, msgl_model_config *c, msgl_err *err)
{
    folder f;
    folder_make(&f);
    json_t *config = full_config(arch), *given = json_loads(fields, 0, NULL);
    assert_int_equal(json_object_update(config, given), 0);
    folder_write_json(&f, "config.json", config);
    json_decref(config), json_decref(given);
    const int code = msgl__model_config_load(f.dir, c, err);
    folder_remove(&f);
    return code;
}

static void refuse(const char *arch, const char *fields, const char *says)
{
    msgl_model_config *c = malloc(sizeof *c);
    msgl_err err = {0};
    if (load_fields(arch, fields, c, &err) == 0) fail_msg("%s %s was accepted", arch, fields);
    if (strstr(err.text, says) == NULL) fail_msg("%s %s: \"%s\"", arch, fields, err.text);
    free(c);
}

// So many experts that every token has that their width as one does not fit.
static void test_shared_width(void **state)
{
    (void)state;
    static const char SAYS[] = "found 1024, allowed up to 1, of 1048576 columns each";
    static const char *const FIELDS[][3] = {
        {"DeepseekV3ForCausalLM", "n_shared_experts", "moe_intermediate_size"},
        {"Ernie4_5_MoeForCausalLM", "moe_num_shared_experts", "moe_intermediate_size"},
        {"BailingMoeForCausalLM", "num_shared_experts", "moe_shared_expert_intermediate_size"},
    };
    for (size_t i = 0; i < MSGL_COUNT(FIELDS); i++) {
        char fields[128], says[128];
        snprintf(fields, sizeof fields, "{\"%s\": 1024, \"%s\": 1048576}", FIELDS[i][1],
                 FIELDS[i][2]);
        snprintf(says, sizeof says, "%s: %s", FIELDS[i][1], SAYS);
        refuse(FIELDS[i][0], fields, says);
    }
}

static void test_blocks_of_keys(void **state)
{
    (void)state;
    static const char ARCH[] = "MiniMaxM3VLForCausalLM";
    static const char *const SPARSE[][2] = {
        {"\"sparse_num_index_heads\": 3",
         "sparse_attention_config.sparse_num_index_heads: found 3, allowed num_key_value_heads 2"},
        {"\"sparse_index_dim\": 4",
         "sparse_index_dim: found 4, allowed the 8 dimensions of a head that rotate, or more"},
        {"\"sparse_local_block\": 4", "sparse_local_block: found 4, allowed an integer in 0..3"},
        {"\"sparse_topk_blocks\": 8193", "found 8193, allowed an integer in 1..8192"},
        {"\"sparse_attention_freq\": [1]",
         "sparse_attention_freq: found a list of 1, allowed a list of num_hidden_layers"}};
    for (size_t i = 0; i < MSGL_COUNT(SPARSE); i++) {
        char fields[512];
        snprintf(fields, sizeof fields,
                 "{\"layer_types\": null, \"sparse_attention_config\": {"
                 "\"sparse_attention_freq\": [0, 1, 1, 1], \"sparse_num_index_heads\": 2, "
                 "\"sparse_index_dim\": 16, \"sparse_block_size\": 8, \"sparse_topk_blocks\": 3, "
                 "%s}}",
                 SPARSE[i][0]);
        refuse(ARCH, fields, SPARSE[i][1]);
    }
    refuse(ARCH, "{\"index_n_heads\": 3}", "index_n_heads: found 3, allowed num_key_value_heads 2");
    refuse(ARCH, "{\"index_head_dim\": 4}", "index_head_dim: found 4, allowed the 8 dimensions");
    refuse(ARCH, "{\"sparse_attention_config\": []}",
           "found a list of 0, allowed an object or null");
    refuse(ARCH,
           "{\"layer_types\": [\"full_attention\", \"full_attention\", \"full_attention\", "
           "\"sliding_attention\"]}",
           "found \"sliding_attention\", allowed full_attention, minimax_m3_sparse");
    refuse(ARCH, "{\"swiglu_limit\": 8}", "found 8, allowed 7");
}

static void test_shared_blocks(void **state)
{
    (void)state;
    static const char ARCH[] = "Zamba2ForCausalLM";
    static const char *const WRONG[][2] = {
        {"\"layers_block_type\": null", "layers_block_type: found nothing"},
        {"\"layers_block_type\": [\"mamba\", \"mamba\", \"mamba\", \"mamba\"]",
         "layers_block_type: found a list of 4, allowed one hybrid layer or more"},
        {"\"num_mem_blocks\": 3", "found 3, allowed up to 2, the number of hybrid layers"},
        {"\"num_attention_heads\": 6, \"num_key_value_heads\": 6", "a divisor of 2 hidden_size"},
        {"\"num_key_value_heads\": 2",
         "num_key_value_heads: found 2, allowed num_attention_heads 4"},
        {"\"hidden_act\": \"relu\"", "hidden_act: found \"relu\", allowed gelu"},
        {"\"hidden_act\": \"silu\"", "hidden_act: found \"silu\", allowed gelu"},
        {"\"tie_word_embeddings\": false", "tie_word_embeddings: found false, allowed true"},
        {"\"use_mem_rope\": true, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}",
         "allowed a rotation without scaling"}};
    for (size_t i = 0; i < MSGL_COUNT(WRONG); i++) {
        char fields[256];
        snprintf(fields, sizeof fields, "{%s}", WRONG[i][0]);
        refuse(ARCH, fields, WRONG[i][1]);
    }
    // Heads of 2 x 32 / 4, and what a longer context changes.
    msgl_model_config *c = malloc(sizeof *c);
    msgl_err err = {0};
    assert_int_equal(
        load_fields(ARCH, "{\"use_mem_rope\": true, \"use_long_context\": true}", c, &err), 0);
    assert_true(c->ropes[0].type == MSGL_ROPE_DEFAULT && c->ropes[0].dim == 16);
    assert_int_equal(c->max_position, 16384);
    free(c);
}

static void test_streams(void **state)
{
    (void)state;
    static const char ARCH[] = "Qwen4ExpForCausalLM";
    static const char *const WRONG[][2] = {
        {"\"hc_count\": 1", "hc_count: found 1, allowed an integer in 2..16"},
        {"\"hc_lowrank\": 65537", "hc_lowrank: found 65537, allowed an integer in 1..65536"},
        {"\"output_gate_type\": \"relu\"", "found \"relu\", allowed silu, sigmoid"},
        {"\"hidden_act\": \"sigmoid\"", "hidden_act: found \"sigmoid\""},
        {"\"layer_types\": [\"sliding_attention\", \"a\", \"b\", \"c\"]",
         "allowed full_attention, indexed_attention, linear_attention"},
        {"\"num_experts_per_tok\": 5", "num_experts_per_tok: found 5"},
        {"\"indexer_n_heads\": null", "indexer_n_heads: found nothing"},
        {"\"indexer_kv_heads\": 2", "indexer_kv_heads: found 2, allowed an integer in 1..1"},
        {"\"indexer_head_dim\": 6", "indexer_head_dim: found 6, allowed an integer in 8..256"},
        {"\"indexer_budget\": 18", "found 18, allowed a multiple of indexer_compress_ratio 4"},
        {"\"indexer_budget\": 32769", "found 32769, allowed an integer in 1..32768"},
        {"\"indexer_compress_ratio\": 17", "found 17, allowed an integer in 1..16"},
        {"\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}",
         "a rope scaling that depends on the prompt's length"}};
    for (size_t i = 0; i < MSGL_COUNT(WRONG); i++) {
        char fields[256];
        snprintf(fields, sizeof fields, "{%s}", WRONG[i][0]);
        refuse(ARCH, fields, WRONG[i][1]);
    }
    // Without an index all keys are seen, by the same flags as of other models.
    msgl_model_config *c = malloc(sizeof *c);
    msgl_err err = {0};
    assert_int_equal(load_fields(ARCH,
                                 "{\"indexer_n_heads\": null, \"indexer_kv_heads\": null, "
                                 "\"indexer_head_dim\": null, \"indexer_budget\": null, "
                                 "\"indexer_compress_ratio\": null}",
                                 c, &err),
                     0);
    assert_true(c->decoder.blocks.top_k == 0 && c->decoder.layer_flags[1] == MSGL_LAYER_SPARSE);
    free(c);
}

// A function of the kernel table that devices may not have.
#define KERNEL(of) offsetof(msgl_kernels, of), #of
static const struct {
    size_t at;
    const char *name;
} OPTIONAL[] = {
    {KERNEL(streams.spread)},    {KERNEL(streams.squash)},      {KERNEL(streams.mix)},
    {KERNEL(streams.inject)},    {KERNEL(streams.clear)},       {KERNEL(hyper.open)},
    {KERNEL(hyper.close)},       {KERNEL(hyper.head)},          {KERNEL(compress.rotate)},
    {KERNEL(compress.store)},    {KERNEL(compress.make)},       {KERNEL(index.store)},
    {KERNEL(index.choose)},      {KERNEL(index.choose_blocks)}, {KERNEL(index.list)},
    {KERNEL(index.store_means)}, {KERNEL(index.choose_means)},  {KERNEL(moe.look_up)},
    {KERNEL(ngrams.ids)},        {KERNEL(ngrams.gate)},         {KERNEL(conv.run)},
    {KERNEL(ssm.run)},           {KERNEL(delta.run)},           {KERNEL(delta.supports)},
    {KERNEL(delta.scratch_size)}};

// What a model's layers take of these, each with what a message calls the layers without it.
typedef struct taken {
    const char *kernels, *what; // one or several, with a space behind each
} taken;
#define DELTA "delta.run delta.supports delta.scratch_size "
static const struct {
    const char *folder, *arch;
    taken takes[8];
} MODELS[] = {
    {"llama", "LlamaForCausalLM", {{0}}},
    {"deepseek_v3", "DeepseekV3ForCausalLM", {{0}}},
    {"deepseek_v4",
     "DeepseekV4ForCausalLM",
     {{"streams.spread hyper.open hyper.close hyper.head ", "hyper-connections (hc_mult)"},
      {"compress.rotate index.list ", "attention to lists of keys (sliding_window)"},
      {"compress.store compress.make ", "compressed keys (compress_rates)"},
      {"index.choose ", "sparse attention (index_topk)"},
      {"moe.look_up ", "experts by token id (num_hash_layers)"}}},
    {"deepseek_v32",
     "DeepseekV32ForCausalLM",
     {{"index.choose ", "sparse attention (index_topk)"},
      {"index.store ", "index keys (index_topk)"}}},
    {"minimax_m3",
     "MiniMaxM3VLForCausalLM",
     {{"index.store index.choose_blocks ", "attention to chosen blocks (index_topk_blocks)"}}},
    {"qwen4_exp_ngrams",
     "Qwen4ExpForCausalLM",
     {{"streams.spread streams.squash streams.mix streams.inject streams.clear ",
       "gated residual streams (hc_count)"},
      {"index.store_means index.choose_means ", "attention to chosen blocks (indexer_budget)"},
      {"ngrams.ids ngrams.gate conv.run ", "embeddings of n-grams (ple_layer_ids)"},
      {DELTA, "linear attention by the gated delta rule"}}},
    {"qwen3_next", "Qwen3NextForCausalLM", {{DELTA, "linear attention by the gated delta rule"}}},
    {"kimi_linear", "KimiLinearForCausalLM", {{DELTA, "Kimi Delta Attention"}}},
    {"lfm2", "Lfm2ForCausalLM", {{"conv.run ", "short convolutions"}}},
    {"bamba", "BambaForCausalLM", {{"conv.run ssm.run ", "Mamba-2"}}},
    {"falcon_h1", "FalconH1ForCausalLM", {{"conv.run ssm.run ", "Mamba-2"}}},
    {"zamba2", "Zamba2ForCausalLM", {{"conv.run ssm.run ", "Mamba-2"}}},
};

// What model `of` is refused for without a kernel; NULL: it is not.
static const char *refused_for(size_t of, const char *kernel)
{
    char name[64];
    snprintf(name, sizeof name, "%s ", kernel);
    for (const taken *t = MODELS[of].takes; t->kernels != NULL; t++) {
        const char *const at = strstr(t->kernels, name);
        if (at != NULL && (at == t->kernels || at[-1] == ' ')) return t->what;
    }
    return NULL;
}

static int build_with(const char *name, const msgl_kernels *k, msgl_err *err)
{
    const msgl_model_target target = {
        .kernels = k,
        .weights = {.kernels = &k->gemm,
                    .dtype = MSGL_F32,
                    .converted = &k->gemm.formats[MSGL_W_F32]},
        .act = MSGL_F32,
        .ranks = 1,
        .expert_ranks = 1,
    };
    char dir[256];
    msgl_model *m = calloc(1, sizeof *m);
    assert_non_null(m);
    snprintf(dir, sizeof dir, "%s/tests/vectors/models/%s", MSGL_SOURCE_DIR, name);
    if (msgl__model_config_load(dir, &m->cfg, err) != 0) fail_msg("%s: %s", name, err->text);
    const int code = msgl__model_build(m, &target, err);
    assert_true(code == 0 || m->layers == NULL); // before it has anything of it
    msgl__model_free(m);
    free(m);
    return code;
}

// A device that lacks one of the kernels that a model's layers take refuses the model, and one that
// lacks any other does not.
static void test_kernels_of_devices(void **state)
{
    (void)state;
    int refused = 0;
    for (size_t i = 0; i < MSGL_COUNT(MODELS); i++) {
        msgl_kernels k;
        msgl_err err = {0};
        msgl__kernels_init_cpu(&k, MSGL_CPU_REF);
        if (build_with(MODELS[i].folder, &k, &err) != 0) fail_msg("%s", err.text);
        for (size_t j = 0; j < MSGL_COUNT(OPTIONAL); j++) {
            const char *const name = OPTIONAL[j].name, *const what = refused_for(i, name);
            char text[256];
            msgl__kernels_init_cpu(&k, MSGL_CPU_REF);
            memset((char *)&k + OPTIONAL[j].at, 0, sizeof k.delta.run); // a pointer to NULL
            const int code = build_with(MODELS[i].folder, &k, &err);
            if (code != (what != NULL ? MSGL_EUNSUPPORTED : 0)) {
                fail_msg("%s without %s: status %d", MODELS[i].folder, name, code);
            }
            if (what == NULL) continue;
            snprintf(text, sizeof text,
                     "%s: this device has no kernel for %s; allowed: --device cpu", MODELS[i].arch,
                     what);
            assert_string_equal(err.text, text);
            refused++;
        }
    }
    assert_int_equal(refused, 40);
}

static void test_ngrams(void **state)
{
    (void)state;
    static const char ARCH[] = "Qwen4ExpForCausalLM";
    static const char *const WRONG[][2] = {
        {"\"ple_layer_ids\": 1", "ple_layer_ids: found 1, allowed a list of layers with linear"},
        {"\"ple_layer_ids\": [0]", "ple_layer_ids: found 0, allowed a list of layers with linear"},
        {"\"ple_layer_ids\": [5]", "ple_layer_ids: found 5"},
        {"\"ple_layer_ids\": [2]", "ple_layer_ids: found 2, allowed a list of layers with linear"},
        {"\"eos_token_id\": null", "eos_token_id: found nothing, allowed a token's id"},
        {"\"eos_token_id\": []", "eos_token_id"},
        {"\"eos_token_id\": [50, 3]", "eos_token_id: found 50"},
        {"\"ngram_size\": 9", "ngram_size: found 9, allowed an integer in 2..8"},
        {"\"heads_per_ngram\": 33", "heads_per_ngram: found 33, allowed an integer in 1..32"},
        {"\"heads_per_ngram\": 0", "heads_per_ngram: found 0"},
        {"\"ple_embed_dim\": 30", "ple_embed_dim: found 30, allowed a multiple of the 4 heads"},
        {"\"ple_conv_kernel_size\": 5", "found 5, allowed an integer in 2..4"},
        {"\"ngram_vocab_size_base\": 1073741825", "found 1073741825, allowed an integer"},
        {"\"ngram_vocab_size_base\": 300000000",
         "found 300000000, allowed what leaves a layer with 2^30 rows or fewer"},
        {"\"make_ngram_vocab_size_divisible_by\": 0", "found 0, allowed an integer in 1..1048576"},
        {"\"split_ngram_parts\": 131073", "found 131073, allowed an integer in 1..131072"},
        {"\"seed\": -1", "seed: found -1"},
        {"\"hidden_size\": 30, \"hc_count\": 3, \"ple_embed_dim\": 32",
         "hc_count a multiple of 16"}};
    for (size_t i = 0; i < MSGL_COUNT(WRONG); i++) {
        char fields[256];
        snprintf(fields, sizeof fields, "{%s}", WRONG[i][0]);
        refuse(ARCH, fields, WRONG[i][1]);
    }
}

static void test_compressed_keys(void **state)
{
    (void)state;
    static const char *const CASES[][2] = {
        {"\"hc_mult\": 17", "hc_mult: found 17, allowed an integer in 1..16"},
        {"\"hc_sinkhorn_iters\": 0", "hc_sinkhorn_iters: found 0"},
        {"\"o_groups\": 3", "o_groups: found 3, allowed a divisor of num_attention_heads 4"},
        {"\"head_dim\": 20", "head_dim: found 20, allowed a multiple of 8 up to 576"},
        {"\"index_head_dim\": 4", "allowed an even number, no more than index_head_dim"},
        {"\"index_topk\": 0", "index_topk: found 0"},
        {"\"sliding_window\": 65537",
         "sliding_window: found 65537, allowed an integer in 1..65536"},
        {"\"compress_rates\": [4, 8]", "compress_rates: found a list of 2, allowed an object"},
        {"\"compress_rates\": {\"compressed_sparse_attention\": 0}",
         "compress_rates.compressed_sparse_attention: found 0, allowed an integer in 1..4096"},
        {"\"compress_rate_csa\": 0", "compress_rate_csa: found 0"},
        {"\"compress_ratios\": [0, 4, 128]", "compress_ratios: found a list of 3"},
        {"\"compress_ratios\": [0, 4, 128, 8]", "compress_ratios: found 8"},
        {"\"layer_types\": [\"full_attention\", \"\", \"\", \"\"]", "layer_types: found"},
        {"\"mlp_layer_types\": [\"moe\", \"dense\", \"moe\", \"moe\"]", "allowed moe, hash_moe"},
        {"\"scoring_func\": \"sigmoid\"", "scoring_func: found \"sigmoid\", allowed sqrtsoftplus"},
        {"\"swiglu_limit\": 7", "swiglu_limit: found 7, allowed 10"},
        {"\"num_key_value_heads\": 2", "num_key_value_heads: found 2, allowed 1"},
        {"\"partial_rotary_factor\": 0.5, \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}",
         "a scaling that does not depend on the prompt"}};
    for (size_t i = 0; i < MSGL_COUNT(CASES); i++) {
        char fields[256];
        snprintf(fields, sizeof fields, "{%s}", CASES[i][0]);
        refuse("DeepseekV4ForCausalLM", fields, CASES[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams),        cmocka_unit_test(test_kernels_of_devices),
        cmocka_unit_test(test_ngrams),         cmocka_unit_test(test_known_fields),
        cmocka_unit_test(test_aliases),        cmocka_unit_test(test_shared_width),
        cmocka_unit_test(test_blocks_of_keys), cmocka_unit_test(test_shared_blocks),
        cmocka_unit_test(test_compressed_keys)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
