// SPDX-License-Identifier: Apache-2.0
#include "models/folder.h"

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

void folder_make(folder *f)
{
    snprintf(f->dir, sizeof f->dir, "/tmp/minisgl-test-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
}

void folder_path(const folder *f, const char *file, char *out, size_t size)
{
    const int n = snprintf(out, size, "%s/%s", f->dir, file);
    assert_true(n > 0 && (size_t)n < size);
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}

void folder_remove(folder *f)
{
    assert_int_equal(nftw(f->dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
}

void folder_add(const folder *f, const char *name)
{
    char path[512];
    folder_path(f, name, path, sizeof path);
    assert_int_equal(mkdir(path, 0777), 0);
}

void folder_write(const folder *f, const char *file, const void *data, size_t size)
{
    char path[512];
    folder_path(f, file, path, sizeof path);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(data, 1, size, out), size);
    assert_int_equal(fclose(out), 0);
}

void folder_write_json(const folder *f, const char *file, const json_t *v)
{
    char *text = json_dumps(v, 0);
    assert_non_null(text);
    folder_write(f, file, text, strlen(text));
    free(text);
}

// Fields of architectures in whose names one of the parts is; those of later rows win.
static const struct {
    const char *parts[8], *fields[13][2];
} ADDED[] = {
    {{"Moe", "MoE", "moe", "Mixtral", "Next", "GptOss", "MiniMax"},
     {{"num_experts", "4"},
      {"num_experts_per_tok", "2"},
      {"moe_intermediate_size", "16"},
      {"shared_expert_intermediate_size", "24"}}},
    {{"Hybrid", "Bamba", "FalconH1"}, {{"mamba_n_heads", "4"}, {"mamba_d_head", "16"}}},
    {{"NemotronH"},
     {{"hybrid_override_pattern", "\"M-*E\""},
      {"n_routed_experts", "8"},
      {"num_experts_per_tok", "2"},
      {"moe_intermediate_size", "16"},
      {"moe_shared_expert_intermediate_size", "24"},
      {"n_group", "2"},
      {"mamba_num_heads", "4"},
      {"mamba_head_dim", "16"},
      {"n_groups", "2"}}},
    {{"Deepseek", "MoeLite", "Glm4MoeFor", "Dots1", "Kimi", "MoeDsa"},
     {{"kv_lora_rank", "16"},
      {"q_lora_rank", "24"},
      {"qk_nope_head_dim", "12"},
      {"qk_rope_head_dim", "8"},
      {"v_head_dim", "10"},
      {"n_routed_experts", "8"},
      {"n_shared_experts", "2"},
      {"num_experts_per_tok", "2"},
      {"moe_intermediate_size", "16"},
      {"n_group", "4"},
      {"topk_group", "2"},
      {"first_k_dense_replace", "1"}}},
    {{"DeepseekV4"},
     {{"head_dim", "16"},
      {"num_key_value_heads", "1"},
      {"n_shared_experts", "1"},
      {"num_hash_layers", "1"},
      {"o_groups", "2"},
      {"o_lora_rank", "12"},
      {"index_head_dim", "16"},
      {"index_topk", "3"},
      {"compress_rates",
       "{\"compressed_sparse_attention\": 4, \"heavily_compressed_attention\": 8}"},
      {"layer_types", "[\"heavily_compressed_attention\", \"compressed_sparse_attention\"]"}}},
    {{"HunYuanMoE"}, {{"moe_topk", "2"}}},
    {{"Gemma3TextModel"}, {{"use_bidirectional_attention", "true"}}},
    {{"Llama4"},
     {{"intermediate_size_mlp", "64"}, {"num_local_experts", "4"}, {"num_experts_per_tok", "1"}}},
    {{"MiMoV2"},
     {{"n_routed_experts", "4"},
      {"num_experts_per_tok", "2"},
      {"moe_intermediate_size", "16"},
      {"v_head_dim", "8"},
      {"num_key_value_heads", "1"}}},
    {{"Gemma4"},
     {{"enable_moe_block", "true"},
      {"num_experts", "4"},
      {"top_k_experts", "2"},
      {"moe_intermediate_size", "16"},
      {"hidden_size_per_layer_input", "8"},
      {"global_head_dim", "16"}}},
    {{"Zamba2"},
     {{"layers_block_type", "[\"mamba\", \"hybrid\"]"},
      {"n_mamba_heads", "2"},
      {"num_key_value_heads", "4"}}},
    {{"Qwen4Exp"},
     {{"num_experts", "4"},
      {"num_experts_per_tok", "2"},
      {"moe_intermediate_size", "16"},
      {"shared_expert_intermediate_size", "24"},
      {"full_attention_interval", "2"},
      {"eos_token_id", "3"},
      {"heads_per_ngram", "2"},
      {"ngram_vocab_size_base", "20"},
      {"ple_layer_ids", "[1]"}}},
    // Both kinds of layers; of Qwen3-Next, by default, linear attention alone.
    {{"Qwen3_5"}, {{"full_attention_interval", "2"}}},
};

static bool has_any(const char *architecture, const char *const *parts)
{
    for (; *parts != NULL; parts++) {
        if (strstr(architecture, *parts) != NULL) return true;
    }
    return false;
}

json_t *small_config(const char *architecture)
{
    json_t *c = json_pack("{s:[s], s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:b}",
                          "architectures", architecture, "vocab_size", 50, "hidden_size", 32,
                          "num_hidden_layers", 2, "num_attention_heads", 4, "num_key_value_heads",
                          2, "head_dim", 8, "intermediate_size", 48, "max_position_embeddings", 64,
                          "torch_dtype", "bfloat16", "tie_word_embeddings", 1);
    assert_non_null(c);
    for (size_t i = 0; i < sizeof ADDED / sizeof ADDED[0]; i++) {
        const char *const(*field)[2] = ADDED[i].fields;
        if (!has_any(architecture, ADDED[i].parts)) continue;
        for (; (*field)[0] != NULL; field++) set_field(c, (*field)[0], (*field)[1]);
    }
    if (strstr(architecture, "ConditionalGeneration") != NULL) {
        json_t *outer = json_pack("{s:[s], s:O}", "architectures", architecture, "text_config", c);
        assert_non_null(outer);
        json_decref(c);
        return outer;
    }
    return c;
}

void set_field(json_t *obj, const char *key, const char *text)
{
    if (text == NULL) {
        json_object_del(obj, key);
        return;
    }
    json_t *v = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(v);
    assert_int_equal(json_object_set_new(obj, key, v), 0);
}

void write_safetensors(const folder *f, const char *file, const char *header, const void *data,
                       size_t size)
{
    const size_t n = strlen(header);
    uint8_t *all = malloc(8 + n + size);
    assert_non_null(all);
    for (int i = 0; i < 8; i++) all[i] = (uint8_t)((uint64_t)n >> (8 * i));
    memcpy(all + 8, header, n);
    if (size > 0) memcpy(all + 8 + n, data, size);
    folder_write(f, file, all, 8 + n + size);
    free(all);
}
