// SPDX-License-Identifier: Apache-2.0
//
// config.json: what is read from both spellings, and that every impossible value is refused with
// one line that names file, field, what was found and what is allowed.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "models/arch.h"
#include "models/folder.h"

// Loads a config with one field replaced.
static int load_with(const char *arch, const char *key, const char *value, msgl_model_config *out,
                     msgl_err *err)
{
    folder f;
    folder_make(&f);
    json_t *c = small_config(arch);
    if (key != NULL) set_field(c, key, value);
    folder_write_json(&f, "config.json", c);
    json_decref(c);
    const int code = msgl__model_config_load(f.dir, out, err);
    folder_remove(&f);
    return code;
}

typedef struct bad_field {
    const char *key, *value; // value NULL: removed
    const char *expect;      // part of the message, beside the key
} bad_field;

#define FP8(size) "{\"quant_method\": \"fp8\", \"weight_block_size\": " size "}"

static const bad_field BAD[] = {
    {"num_attention_heads", "0", "found 0"},
    {"num_attention_heads", "-4", "found -4"},
    {"num_attention_heads", "1000000000", "1..1024"},
    {"num_attention_heads", "\"4\"", "found \"4\""},
    {"num_attention_heads", "4.5", "found 4.5"},
    {"num_attention_heads", "true", "found true"},
    {"num_attention_heads", NULL, "found nothing"},
    {"num_attention_heads", "9223372036854775807", "found 9223372036854775807"},
    {"num_key_value_heads", "3", "divisor of num_attention_heads 4"},
    {"num_key_value_heads", "8", "divisor"},
    {"num_key_value_heads", "0", "found 0"},
    {"vocab_size", "-1", "found -1"},
    {"vocab_size", "0", "found 0"},
    {"vocab_size", "4294967297", "found 4294967297"},
    {"vocab_size", "[]", "a list of 0"},
    {"num_hidden_layers", "1000000000", "found 1000000000"},
    {"num_hidden_layers", "0", "found 0"},
    {"hidden_size", "0", "found 0"},
    {"hidden_size", "2147483648", "found 2147483648"},
    {"hidden_size", "{}", "an object"},
    {"head_dim", "0", "found 0"},
    {"head_dim", "7", "even"},
    {"head_dim", "-8", "found -8"},
    {"intermediate_size", "1e9", "found 1000000000"},
    {"max_position_embeddings", "0", "found 0"},
    {"max_position_embeddings", "2147483647", "found 2147483647"},
    {"rms_norm_eps", "-1", "found -1"},
    {"rms_norm_eps", "\"a\"", "found \"a\""},
    {"rope_theta", "0", "found 0"},
    {"rope_theta", "-10000", "found -10000"},
    {"rope_theta", "1e300", "found 1e+300"},
    {"rope_scaling", "[]", "a list"},
    {"rope_scaling", "{\"type\": \"ntk\"}", "default, linear, dynamic, yarn, llama3, longrope"},
    {"rope_scaling", "{\"type\": \"longrope\"}", "short_factor: found nothing, allowed 4 numbers"},
    {"rope_scaling",
     "{\"type\": \"longrope\", \"short_factor\": [1, 1, 1, 1], \"long_factor\": [1, 1, 1, 0]}",
     "long_factor: found 0, allowed 4 numbers"},
    {"rope_scaling", "{\"type\": \"linear\"}", "factor"},
    {"rope_scaling", "{\"type\": \"linear\", \"factor\": 0}", "rope_scaling.factor: found 0"},
    {"rope_scaling", "{\"type\": \"linear\", \"factor\": \"2\"}", "factor"},
    {"rope_scaling", "{\"rope_type\": 7}", "rope_scaling.rope_type"},
    {"rope_scaling",
     "{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 5, \"high_freq_factor\": 4}",
     "of low_freq_factor or more"},
    {"rope_scaling",
     "{\"rope_type\": \"yarn\", \"factor\": 2, "
     "\"original_max_position_embeddings\": 0}",
     "original_max"},
    {"rope_parameters", "{\"full_attention\": {\"rope_type\": \"default\"}}", "one set"},
    {"partial_rotary_factor", "0.5", "found 0.5"},
    {"hidden_act", "\"gelu\"", "silu"},
    {"torch_dtype", "\"int8\"", "float32, float16, bfloat16"},
    {"dtype", "7", "a string"},
    {"tie_word_embeddings", "1", "true or false"},
    {"quantization_config", "{\"quant_method\": \"quark\"}",
     "quantization_config.quant_method: found \"quark\", allowed fp8, fbgemm_fp8, mxfp4, awq, "
     "gptq, "
     "auto-round, compressed-tensors, modelopt, bitsandbytes, hqq, torchao, or no "
     "quantization_config"},
    {"quantization_config", "{}", "quant_method: found nothing"},
    {"quantization_config", "7", "an object"},
    {"quantization_config", FP8("[128, 128.0]"),
     "weight_block_size: found a list of 2, allowed two"},
    {"quantization_config", FP8("[128]"), "weight_block_size"},
    {"quantization_config", FP8("[128, 0]"), "weight_block_size"},
    {"quantization_config", FP8("[128, 128], \"fmt\": \"e5m2\""),
     "fmt: found \"e5m2\", allowed e4m3"},
    {"quantization_config", FP8("[128, 128], \"activation_scheme\": \"never\""),
     "activation_scheme: found \"never\", allowed dynamic or static"},
    {"quantization_config", "{\"quant_method\": \"gptq\"}", "bits: found nothing"},
    {"quantization_config", "{\"quant_method\": \"gptq\", \"bits\": 5}", "allowed 2, 3, 4 or 8"},
    {"quantization_config",
     "{\"quant_method\": \"gptq\", \"bits\": 4, \"checkpoint_format\": \"marlin\"}",
     "checkpoint_format: found \"marlin\", allowed gptq or gptq_v2"},
    {"quantization_config", "{\"quant_method\": \"awq\", \"version\": \"gemv_fast\"}",
     "version: found \"gemv_fast\", allowed gemm or gemv"},
    {"quantization_config", "{\"quant_method\": \"compressed-tensors\", \"format\": \"marlin-24\"}",
     "format: found \"marlin-24\", allowed int-, float-"},
    {"quantization_config", "{\"quant_method\": \"modelopt\", \"quant_algo\": \"W4A8_AWQ\"}",
     "quant_algo: found \"W4A8_AWQ\", allowed FP8"},
    {"eos_token_id", "-1", "0..49"},
    {"eos_token_id", "50", "0..49"},
    {"eos_token_id", "\"</s>\"", "0..49"},
    {"eos_token_id", "[1, 2, 3, 4, 5, 6, 7, 8, 9]", "a list of 9"},
    {"eos_token_id", "[1, null]", "found nothing"},
    {"architectures", NULL, "found nothing"},
    {"architectures", "[]", "a list with one name"},
    {"architectures", "[\"GPT2LMHeadModel\"]", "LlamaForCausalLM"},
    {"architectures", "\"LlamaForCausalLM\"", "a list"},
};

static void expect_refusal(const char *arch, const bad_field *b)
{
    msgl_model_config *c = malloc(sizeof *c);
    msgl_err err = {0};
    const int code = load_with(arch, b->key, b->value, c, &err);
    free(c);
    if (code == 0) fail_msg("%s = %s was accepted", b->key, b->value);
    assert_true(code == MSGL_EFORMAT || code == MSGL_EUNSUPPORTED);
    assert_int_equal(code, err.code);
    if (strstr(err.text, "config.json") == NULL || strstr(err.text, b->key) == NULL ||
        strstr(err.text, b->expect) == NULL || strstr(err.text, "allowed") == NULL) {
        fail_msg("%s = %s: message \"%s\"", b->key, b->value, err.text);
    }
    assert_null(strchr(err.text, '\n'));
}

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < MSGL_COUNT(BAD); i++) expect_refusal("LlamaForCausalLM", &BAD[i]);
    const bad_field moe[] = {
        {"num_experts", "0", "found 0"},
        {"num_experts", "1000000000", "1..1024"},
        {"num_experts", NULL, "found nothing"},
        {"num_experts_per_tok", "5", "1..4"},
        {"moe_intermediate_size", "-16", "found -16"},
        {"decoder_sparse_step", "0", "found 0"},
        {"mlp_only_layers", "{}", "a list"},
        {"mlp_only_layers", "[-1]", "found -1"},
    };
    for (size_t i = 0; i < MSGL_COUNT(moe); i++) expect_refusal("Qwen3MoeForCausalLM", &moe[i]);
    const bad_field mistral = {"sliding_window", "0", "found 0"};
    expect_refusal("MistralForCausalLM", &mistral);
}

static void test_not_json(void **state)
{
    (void)state;
    const char *const texts[] = {"", "{", "[]", "null", "{\"a\": 1}}", "\xff\xfe", "{\"a\n\": 1}"};
    folder f;
    folder_make(&f);
    msgl_model_config *c = malloc(sizeof *c);
    msgl_err err = {0};
    assert_int_equal(msgl__model_config_load(f.dir, c, &err), MSGL_ENOENT);
    assert_non_null(strstr(err.text, "config.json"));
    for (size_t i = 0; i < MSGL_COUNT(texts); i++) {
        folder_write(&f, "config.json", texts[i], strlen(texts[i]));
        assert_int_equal(msgl__model_config_load(f.dir, c, &err), MSGL_EFORMAT);
        assert_non_null(strstr(err.text, "config.json"));
        assert_null(strchr(err.text, '\n'));
    }
    // Nesting far beyond any real file is an error, not a deep recursion.
    enum { DEPTH = 1000000 };
    char *deep = malloc(DEPTH);
    memset(deep, '[', DEPTH);
    folder_write(&f, "config.json", deep, DEPTH);
    free(deep);
    assert_int_equal(msgl__model_config_load(f.dir, c, &err), MSGL_EFORMAT);
    free(c);
    folder_remove(&f);
}

// Writes `config` as config.json with the members `more` behind its own.
static void write_with(const folder *f, json_t *config, const char *more)
{
    char *text = json_dumps(config, 0), all[4096];
    text[strlen(text) - 1] = '\0';
    const int n = snprintf(all, sizeof all, "%s, %s}", text, more);
    assert_true(n > 0 && (size_t)n < sizeof all);
    folder_write(f, "config.json", all, (size_t)n);
    free(text);
}

#define ODD_NUMBERS                                                                                \
    "\"a\": 1000000000000000019884624838656, \"b\": [NaN, -Infinity, 1e999], "                     \
    "\"c\": {\"d\": Infinity, \"e\": -99999999999999999999}"

// Python writes numbers that JSON or jansson do not have. Where nobody reads them they are nothing
// to us; a field that is read refuses them by name.
static void test_odd_numbers(void **state)
{
    (void)state;
    msgl_model_config *c = malloc(sizeof *c);
    msgl_err err = {0};
    folder f;
    folder_make(&f);
    json_t *j = small_config("LlamaForCausalLM");
    write_with(&f, j, ODD_NUMBERS);
    const char *gen = "{\"top_k\": 7, " ODD_NUMBERS "}";
    folder_write(&f, "generation_config.json", gen, strlen(gen));
    if (msgl__model_config_load(f.dir, c, &err) != 0) fail_msg("%s", err.text);
    assert_int_equal(c->vocab_size, 50);
    assert_int_equal(c->sampling.top_k, 7);

    static const struct {
        const char *key, *value, *found;
    } bad[] = {
        {"vocab_size", "1000000000000000019884624838656", "found 1e+30, allowed an integer in 1.."},
        {"vocab_size", "NaN", "found NaN or a number beyond 1e308, allowed an integer in 1.."},
        {"rope_theta", "Infinity", "found NaN or a number beyond 1e308, allowed a number in 1.."},
        {"rms_norm_eps", "NaN", "found NaN or a number beyond 1e308, allowed a number in 0..1"},
        {"rms_norm_eps", "-1e999", "found NaN or a number beyond 1e308, allowed a number in 0..1"},
        {"eos_token_id", "99999999999999999999", "found 1e+20, allowed an id in 0..49"},
        {"hidden_act", "NaN", "found NaN or a number beyond 1e308, allowed a string"},
    };
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        char more[128];
        json_t *without = json_copy(j);
        json_object_del(without, bad[i].key);
        snprintf(more, sizeof more, "\"%s\": %s", bad[i].key, bad[i].value);
        write_with(&f, without, more);
        json_decref(without);
        assert_int_equal(msgl__model_config_load(f.dir, c, &err), MSGL_EFORMAT);
        if (strstr(err.text, bad[i].key) == NULL || strstr(err.text, bad[i].found) == NULL) {
            fail_msg("%s: %s", more, err.text);
        }
    }
    json_decref(j);
    folder_remove(&f);
    free(c);
}

// A FIFO in the folder is an error, not a wait.
static void test_fifo(void **state)
{
    (void)state;
    msgl_model_config *c = malloc(sizeof *c);
    msgl_err err = {0};
    folder f;
    char path[512];
    folder_make(&f);
    alarm(60);
    folder_path(&f, "config.json", path, sizeof path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(msgl__model_config_load(f.dir, c, &err), MSGL_EIO);
    assert_non_null(strstr(err.text, "config.json: not a regular file"));
    assert_int_equal(unlink(path), 0);
    json_t *j = small_config("LlamaForCausalLM");
    folder_write_json(&f, "config.json", j);
    json_decref(j);
    folder_path(&f, "generation_config.json", path, sizeof path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(msgl__model_config_load(f.dir, c, &err), MSGL_EIO);
    alarm(0);
    folder_remove(&f);
    free(c);
}

// Both spellings of a scaled rope give the same config.
static void test_spellings(void **state)
{
    (void)state;
    msgl_model_config *a = malloc(sizeof *a), *b = malloc(sizeof *b);
    folder f;
    folder_make(&f);
    msgl_err err = {0};
    json_t *c = small_config("LlamaForCausalLM");
    set_field(c, "rope_theta", "500000.0");
    set_field(c, "rope_scaling",
              "{\"type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 16}");
    folder_write_json(&f, "config.json", c);
    assert_int_equal(msgl__model_config_load(f.dir, a, &err), 0);
    set_field(c, "rope_theta", NULL);
    set_field(c, "rope_scaling", NULL);
    set_field(c, "rope_parameters",
              "{\"rope_type\": \"yarn\", \"factor\": 4, \"rope_theta\": 500000, "
              "\"original_max_position_embeddings\": 16}");
    set_field(c, "torch_dtype", NULL);
    set_field(c, "dtype", "\"bfloat16\"");
    folder_write_json(&f, "config.json", c);
    assert_int_equal(msgl__model_config_load(f.dir, b, &err), 0);
    json_decref(c);
    folder_remove(&f);
    assert_int_equal(a->ropes[0].type, MSGL_ROPE_YARN);
    assert_int_equal(b->ropes[0].type, MSGL_ROPE_YARN);
    assert_true(a->ropes[0].theta == 500000 && b->ropes[0].theta == 500000);
    assert_true(a->ropes[0].factor == 4 && b->ropes[0].factor == 4);
    assert_int_equal(a->ropes[0].original_max, 16);
    assert_int_equal(b->ropes[0].original_max, 16);
    assert_int_equal(a->dtype, MSGL_BF16);
    assert_int_equal(b->dtype, MSGL_BF16);
    assert_int_equal(msgl__model_config_context(a), 64);
    free(a);
    free(b);
}

static int32_t sliding_layers(const msgl_model_config *c)
{
    int32_t bits = 0;
    for (int32_t l = 0; l < c->num_layers; l++) {
        if (c->decoder.layer_flags[l] & MSGL_LAYER_SLIDING) bits |= 1 << l;
    }
    return bits;
}

// A group of layers for each window, the one of all tokens first; backends are told the same.
static void expect_groups(const msgl_model_config *c, int32_t count, int32_t first, int32_t layers)
{
    msgl_cache_specs s;
    msgl__model_caches(c, 1, MSGL_F16, MSGL_F32, &s);
    assert_int_equal(s.count, count);
    assert_int_equal(s.all[0].num_layers, layers);
    if (count > 1) assert_int_equal(s.all[1].num_layers, c->num_layers - layers);
    for (int32_t g = 0; g < count; g++) {
        const msgl_cache_spec *spec = &s.all[g];
        const msgl_attn_variants v = msgl__model_variants(c, g);
        assert_int_equal(spec->kind, MSGL_CACHE_KV);
        assert_int_equal(spec->window, g == 0 ? first : 15);
        assert_int_equal(spec->num_heads, c->num_kv_heads);
        assert_int_equal(spec->k_dim, c->head_dim);
        assert_int_equal(spec->v_dim, c->head_dim);
        assert_int_equal(spec->dtype, MSGL_F16);
        assert_int_equal(v.count, 1);
        assert_int_equal(v.all[0].window, spec->window);
        assert_true(v.all[0].softcap == 0);
    }
}

static void test_dual_chunk(void **state)
{
    (void)state;
    const char *const key = "dual_chunk_attention_config", *const arch = "Qwen2ForCausalLM";
    static const char *const wrong[] = {"7", "{\"chunk_size\": 32, \"local_size\": 32}",
                                        "{\"chunk_size\": 1}",
                                        "{\"original_max_position_embeddings\": -1}"};
    msgl_model_config *c = malloc(sizeof *c);
    msgl_err err = {0};
    assert_int_equal(load_with(arch, key, NULL, c, &err), 0);
    assert_int_equal(c->ropes[0].dual.len, 0);
    assert_int_equal(load_with(arch, key, "{}", c, &err), 0);
    assert_int_equal(c->ropes[0].dual.len, 7168);
    assert_int_equal(c->ropes[0].dual.size, 8192);
    assert_int_equal(c->ropes[0].dual.original, 0);
    for (size_t i = 0; i < MSGL_COUNT(wrong); i++) {
        assert_int_equal(load_with(arch, key, wrong[i], c, &err), MSGL_EFORMAT);
        assert_non_null(strstr(err.text, key));
    }
    assert_false(c->ropes[0].dual.scaled_keys);
    setenv("MINISGL_DUAL_CHUNK_KEYS", "scaled", 1);
    assert_int_equal(load_with(arch, key, "{}", c, &err), 0);
    assert_true(c->ropes[0].dual.scaled_keys);
    setenv("MINISGL_DUAL_CHUNK_KEYS", "both", 1);
    assert_int_equal(load_with(arch, key, "{}", c, &err), MSGL_EINVAL);
    assert_non_null(strstr(err.text, "found \"both\""));
    unsetenv("MINISGL_DUAL_CHUNK_KEYS");
    free(c);
}

static void test_llama4(void **state)
{
    (void)state;
    const char *const arch = "Llama4ForCausalLM";
    const bad_field wrong[] = {
        {"num_experts_per_tok", "2", "allowed 1"},
        {"moe_layers", "[2]", "numbers of layers"},
        {"moe_layers", "7", "a list"},
        {"attention_chunk_size", "0", "found 0"},
        {"layer_types", "[\"full_attention\", \"sliding_attention\"]", "chunked_attention"},
        {"no_rope_layers", "[1]", "a list of num_hidden_layers"},
        {"intermediate_size_mlp", NULL, "found nothing"},
        {"rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 2}", "not yarn"},
    };
    msgl_model_config *c = malloc(sizeof *c);
    const msgl_decoder_config *d = &c->decoder;
    msgl_err err = {0};
    for (size_t i = 0; i < MSGL_COUNT(wrong); i++) expect_refusal(arch, &wrong[i]);
    assert_int_equal(load_with(arch, "no_rope_layer_interval", "2", c, &err), 0);
    assert_true(d->chunked);
    assert_int_equal(d->sliding_window, 8192);
    assert_int_equal(d->layer_flags[0], MSGL_LAYER_SLIDING | MSGL_LAYER_SPARSE);
    assert_int_equal(d->layer_flags[1], MSGL_LAYER_SECOND_ROPE | MSGL_LAYER_SPARSE);
    assert_int_equal(d->intermediate_size, 64);
    assert_int_equal(d->shared_intermediate_size, 48);
    assert_int_equal(load_with(arch, "moe_layers", "[1]", c, &err), 0);
    assert_int_equal(d->layer_flags[0] & MSGL_LAYER_SPARSE, 0);
    assert_true((d->layer_flags[1] & MSGL_LAYER_SPARSE) != 0);
    static const struct {
        const char *value;
        float every;
    } tuning[] = {{NULL, 8192}, {"4", 8192}, {"true", 8192}, {"0", 0}, {"false", 0}};
    for (size_t i = 0; i < MSGL_COUNT(tuning); i++) {
        assert_int_equal(load_with(arch, "attn_temperature_tuning", tuning[i].value, c, &err), 0);
        assert_true(d->temper.every == tuning[i].every);
    }
    free(c);
}

static void test_windows(void **state)
{
    (void)state;
    msgl_model_config *c = malloc(sizeof *c);
    msgl_err err = {0};
    assert_int_equal(load_with("MistralForCausalLM", "sliding_window", "16", c, &err), 0);
    assert_int_equal(c->decoder.sliding_window, 16);
    assert_int_equal(sliding_layers(c), 3);
    expect_groups(c, 1, 15, c->num_layers);
    assert_int_equal(load_with("MistralForCausalLM", "sliding_window", "null", c, &err), 0);
    assert_int_equal(sliding_layers(c), 0);
    expect_groups(c, 1, -1, c->num_layers);
    assert_int_equal(load_with("Qwen2ForCausalLM", "sliding_window", "16", c, &err), 0);
    assert_int_equal(sliding_layers(c), 0); // use_sliding_window is off

    folder f;
    folder_make(&f);
    json_t *j = small_config("Qwen3ForCausalLM");
    set_field(j, "use_sliding_window", "true");
    set_field(j, "sliding_window", "16");
    set_field(j, "max_window_layers", "1");
    folder_write_json(&f, "config.json", j);
    assert_int_equal(msgl__model_config_load(f.dir, c, &err), 0);
    assert_int_equal(sliding_layers(c), 2); // layers from max_window_layers on
    expect_groups(c, 2, -1, 1);
    set_field(j, "layer_types", "[\"sliding_attention\", \"full_attention\"]");
    folder_write_json(&f, "config.json", j);
    assert_int_equal(msgl__model_config_load(f.dir, c, &err), 0);
    assert_int_equal(sliding_layers(c), 1);
    expect_groups(c, 2, -1, 1);
    set_field(j, "layer_types", "[\"full_attention\"]");
    folder_write_json(&f, "config.json", j);
    assert_int_equal(msgl__model_config_load(f.dir, c, &err), MSGL_EFORMAT);
    json_decref(j);
    folder_remove(&f);
    free(c);
}

static void test_generation_config(void **state)
{
    (void)state;
    msgl_model_config *c = malloc(sizeof *c);
    msgl_err err = {0};
    folder f;
    folder_make(&f);
    json_t *j = small_config("Qwen3ForCausalLM");
    set_field(j, "eos_token_id", "3");
    folder_write_json(&f, "config.json", j);
    json_decref(j);
    assert_int_equal(msgl__model_config_load(f.dir, c, &err), 0);
    assert_int_equal(c->num_eos, 1);
    assert_int_equal(c->eos_ids[0], 3);
    const msgl_sampling_params *p = &c->sampling;
    assert_true(p->temperature == 1 && p->top_p == 1 && p->min_p == 0);
    assert_true(p->repetition_penalty == 1 && p->frequency_penalty == 0 &&
                p->presence_penalty == 0);
    assert_int_equal(p->top_k, 0);
    const char *text = "{\"eos_token_id\": [7, 9], \"temperature\": 0.6, \"top_p\": 0.95, "
                       "\"top_k\": 20, \"min_p\": 0, \"repetition_penalty\": 1.05}";
    folder_write(&f, "generation_config.json", text, strlen(text));
    assert_int_equal(msgl__model_config_load(f.dir, c, &err), 0);
    assert_int_equal(c->num_eos, 2);
    assert_int_equal(c->eos_ids[0], 7);
    assert_int_equal(c->eos_ids[1], 9);
    assert_true(p->temperature == 0.6f && p->top_p == 0.95f && p->min_p == 0);
    assert_int_equal(p->top_k, 20);
    assert_true(p->repetition_penalty == 1.05f);
    folder_write(&f, "generation_config.json", "{\"top_k\": -1}", 13);
    assert_int_equal(msgl__model_config_load(f.dir, c, &err), 0);
    assert_int_equal(p->top_k, -1); // off
    static const struct {
        const char *text;
        float temperature, top_p;
    } greedy[] = {
        {"{\"do_sample\": false, \"temperature\": 0.9, \"top_p\": 0.5}", 0, 0.5f},
        {"{\"do_sample\": false}", 0, 1},
        {"{\"do_sample\": true, \"temperature\": 0.9}", 0.9f, 1},
        {"{\"do_sample\": null, \"temperature\": 0.9}", 0.9f, 1},
    };
    for (size_t i = 0; i < MSGL_COUNT(greedy); i++) {
        folder_write(&f, "generation_config.json", greedy[i].text, strlen(greedy[i].text));
        assert_int_equal(msgl__model_config_load(f.dir, c, &err), 0);
        assert_true(p->temperature == greedy[i].temperature && p->top_p == greedy[i].top_p);
    }
    const char *const bad[][2] = {
        {"{\"do_sample\": \"no\"}", "do_sample: found \"no\", allowed true or false"},
        {"{\"temperature\": -1}", "generation_config.json: temperature: found -1"},
        {"{\"top_p\": 0}", "top_p: found 0, allowed a number in 1e-37..1"},
        {"{\"top_k\": -2}", "top_k: found -2"},
        {"{\"min_p\": 1.5}", "min_p: found 1.5, allowed a number in 0..1"},
        {"{\"repetition_penalty\": 0}", "repetition_penalty: found 0, allowed a number in 0.01"},
        {"{\"repetition_penalty\": -1.1}", "repetition_penalty: found -1.1"},
        {"{\"repetition_penalty\": \"1\"}", "repetition_penalty: found \"1\""},
        {"{\"repetition_penalty\": Infinity}", "repetition_penalty: found NaN or a number beyond"},
    };
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        folder_write(&f, "generation_config.json", bad[i][0], strlen(bad[i][0]));
        assert_int_equal(msgl__model_config_load(f.dir, c, &err), MSGL_EFORMAT);
        if (strstr(err.text, bad[i][1]) == NULL) fail_msg("%s: %s", bad[i][0], err.text);
    }
    folder_remove(&f);
    free(c);
}

// Every architecture in the registry has a descriptor that can do its job.
// What a config means where it does not say, by architecture (transformers' configuration files).
static void test_defaults(void **state)
{
    (void)state;
    msgl_model_config *c = malloc(sizeof *c);
    msgl_err err = {0};
    assert_int_equal(load_with("Gemma2ForCausalLM", "head_dim", NULL, c, &err), 0);
    assert_int_equal(c->head_dim, 256);
    assert_int_equal(sliding_layers(c), 1); // even ones
    assert_int_equal(c->decoder.sliding_window, 4096);
    assert_true(c->decoder.attn_softcap == 50 && c->logit_cap == 30);
    assert_true(c->decoder.activation == MSGL_GELU_TANH && c->decoder.norm_plus_one);
    assert_int_equal(load_with("Gemma2ForCausalLM", "attn_logit_softcapping", "null", c, &err), 0);
    assert_true(c->decoder.attn_softcap == 0 && c->logit_cap == 30);
    assert_int_equal(load_with("Gemma3ForCausalLM", "sliding_window_pattern", "2", c, &err), 0);
    assert_int_equal(sliding_layers(c), 1); // all but every second
    assert_int_equal(c->num_ropes, 2);
    assert_true(c->ropes[0].theta == 1e6 && c->ropes[1].theta == 1e4);
    assert_int_equal(load_with("Glm4ForCausalLM", "head_dim", NULL, c, &err), 0);
    assert_int_equal(c->head_dim, 128);
    assert_int_equal(c->ropes[0].dim, 64);
    assert_true(c->decoder.qkv_bias && !c->decoder.o_bias);
    assert_int_equal(load_with("SmolLM3ForCausalLM", "num_hidden_layers", "9", c, &err), 0);
    for (int32_t l = 0; l < 9; l++) {
        const bool second = (c->decoder.layer_flags[l] & MSGL_LAYER_SECOND_ROPE) != 0;
        assert_int_equal(second, l == 3 || l == 7);
    }
    assert_true(c->ropes[0].theta == 2e6 && c->ropes[1].type == MSGL_ROPE_NONE);
    assert_int_equal(load_with("GraniteForCausalLM", "logits_scaling", "8", c, &err), 0);
    assert_true(c->logit_scale == 0.125f && c->decoder.attn_scale == 1);
    assert_int_equal(load_with("Qwen2MoeForCausalLM", "qkv_bias", NULL, c, &err), 0);
    assert_true(c->decoder.qkv_bias && !c->decoder.router.norm_topk);
    assert_int_equal(load_with("MixtralForCausalLM", "sliding_window", NULL, c, &err), 0);
    assert_true(c->decoder.router.norm_topk && sliding_layers(c) == 0 && c->ropes[0].theta == 1e6);
    static const char yarn[] = "{\"rope_type\": \"yarn\", \"factor\": 32, \"truncate\": false,"
                               " \"original_max_position_embeddings\": 4096}";
    if (load_with("GptOssForCausalLM", "rope_scaling", yarn, c, &err) != 0) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(sliding_layers(c), 1); // even ones
    assert_int_equal(c->decoder.sliding_window, 128);
    assert_true(c->decoder.shapes[0].sinks && c->decoder.shapes[1].sinks && c->decoder.qkv_bias &&
                c->decoder.o_bias);
    assert_true(c->ropes[0].theta == 150000 && !c->ropes[0].truncate);
    const msgl_rope_config rope = c->ropes[0];
    assert_int_equal(load_with("GptOssForCausalLM", "rope_scaling", NULL, c, &err), 0);
    assert_memory_equal(&c->ropes[0], &rope, sizeof rope);
    free(c);
}

// The same of those with LayerNorms, other blocks and other activations.
static void test_defaults_of_parts(void **state)
{
    (void)state;
    msgl_model_config *c = malloc(sizeof *c);
    const msgl_decoder_config *d = &c->decoder;
    msgl_err err = {0};
    assert_int_equal(load_with("ArceeForCausalLM", NULL, NULL, c, &err), 0);
    assert_true(d->pointwise == MSGL_POINTWISE_RELU2 && !d->mlp_bias && !d->qkv_bias);
    assert_int_equal(load_with("Starcoder2ForCausalLM", "tie_word_embeddings", NULL, c, &err), 0);
    assert_true(c->tie_embeddings && d->layer_norm && d->norm_bias && d->mlp_bias && d->o_bias);
    assert_true(d->pointwise == MSGL_POINTWISE_GELU_TANH && sliding_layers(c) == 0);
    assert_int_equal(load_with("StableLmForCausalLM", NULL, NULL, c, &err), 0);
    assert_true(c->ropes[0].dim == 2 && !d->parallel && d->qk_norm == MSGL_QK_NORM_NONE);
    assert_int_equal(load_with("StableLmForCausalLM", "use_parallel_residual", "true", c, &err), 0);
    assert_true(d->parallel && d->names.ffn_norm == NULL);
    assert_int_equal(load_with("CohereForCausalLM", "logit_scale", NULL, c, &err), 0);
    assert_true(c->logit_scale == 0.0625f && c->ropes[0].theta == 5e5 && c->num_ropes == 1);
    assert_true(d->parallel && d->layer_norm && !d->norm_bias && d->interleaved);
    assert_int_equal(load_with("Cohere2ForCausalLM", "sliding_window", "null", c, &err), 0);
    assert_int_equal(c->decoder.sliding_window, c->max_position);
    assert_int_equal(load_with("Cohere2ForCausalLM", "num_hidden_layers", "8", c, &err), 0);
    for (int32_t l = 0; l < 8; l++) {
        const int full = MSGL_LAYER_SECOND_ROPE, flags = l % 4 == 3 ? full : MSGL_LAYER_SLIDING;
        assert_int_equal(d->layer_flags[l], flags);
    }
    assert_true(d->sliding_window == 4096 && c->ropes[1].type == MSGL_ROPE_NONE);
    assert_int_equal(load_with("ApertusForCausalLM", "rope_scaling", NULL, c, &err), 0);
    assert_true(c->ropes[0].type == MSGL_ROPE_LLAMA3 && c->ropes[0].theta == 12e6);
    assert_true(c->ropes[0].original_max == 8192 && d->pointwise == MSGL_POINTWISE_XIELU);
    assert_int_equal(load_with("PhimoeForCausalLM", NULL, NULL, c, &err), 0);
    assert_true(d->router.scoring == MSGL_SCORE_SPARSEMIXER && d->router.spread == 0.02f);
    assert_int_equal(load_with("BailingMoeV2ForCausalLM", "num_shared_experts", "1", c, &err), 0);
    assert_true(d->router.scoring == MSGL_SCORE_SIGMOID && d->shared_intermediate_size == 16);
    free(c);
}

// Nemotron-H's layers by its pattern and by both lists, which also say how many there are.
static void test_nemotron_layers(void **state)
{
    (void)state;
    static const char *const ARCH = "NemotronHForCausalLM";
    static const char *const lists[][2] = {
        {"hybrid_override_pattern", "\"M*-E\""},
        {"layers_block_type", "[\"mamba\", \"attention\", \"mlp\", \"moe\"]"},
        {"layer_types", "[\"linear_attention\", \"full_attention\", \"mlp\", \"moe\"]"},
    };
    static const int flags[] = {MSGL_LAYER_RECURRENT | MSGL_LAYER_NO_FFN, MSGL_LAYER_NO_FFN,
                                MSGL_LAYER_NO_MIXER, MSGL_LAYER_NO_MIXER | MSGL_LAYER_SPARSE};
    msgl_model_config *c = malloc(sizeof *c);
    for (size_t i = 0; i < MSGL_COUNT(lists); i++) {
        msgl_err err = {0};
        if (load_with(ARCH, lists[i][0], lists[i][1], c, &err) != 0) fail_msg("%s", err.text);
        assert_int_equal(c->num_layers, 4);
        for (int l = 0; l < 4; l++) assert_int_equal(c->decoder.layer_flags[l], flags[l]);
    }
    assert_true(c->ropes[0].type == MSGL_ROPE_NONE && c->decoder.mamba.dt_min == 0.001f);
    free(c);
    const bad_field wrong[] = {
        {"hybrid_override_pattern", "\"\"", "1 to 1024 layers"},
        {"hybrid_override_pattern", "\"M?\"", "found \"M?\", allowed a string of M, *, - and E"},
        {"hybrid_override_pattern", "[\"M\"]", "allowed a string of M, *, - and E"},
        {"layers_block_type", "\"MM\"", "a list of num_hidden_layers"},
        {"layers_block_type", "[]", "1 to 1024 layers"},
        {"layer_types", "[\"mamba\", \"sliding\"]", "found \"sliding\", allowed mamba"},
        {"mamba_hidden_act", "\"gelu\"", "allowed silu"},
        {"mlp_hidden_act", "\"swish\"", "allowed relu2"},
        {"mlp_hidden_act", "\"xielu\"", "allowed relu2, for experts"},
        {"time_step_min", "-1", "found -1"},
        {"attention_bias", "true", "found true"},
        {"n_shared_experts", "2", "allowed 1"},
        {"moe_latent_size", "0", "found 0"},
    };
    for (size_t i = 0; i < MSGL_COUNT(wrong); i++) expect_refusal(ARCH, &wrong[i]);
}

// Groups of layers, experts and the softmax's scale of models with latent attention.
static void test_latent(void **state)
{
    (void)state;
    msgl_model_config *c = malloc(sizeof *c);
    msgl_err err = {0};
    msgl_cache_specs s;
    assert_int_equal(load_with("DeepseekV3ForCausalLM", NULL, NULL, c, &err), 0);
    msgl__model_caches(c, 1, MSGL_F16, MSGL_F32, &s);
    assert_int_equal(s.count, 1);
    assert_int_equal(s.all[0].kind, MSGL_CACHE_LATENT);
    assert_int_equal(s.all[0].num_heads, 1);
    assert_int_equal(s.all[0].k_dim, 24);
    assert_int_equal(s.all[0].v_dim, 16);
    assert_int_equal(c->ropes[0].dim, 8);
    const msgl_decoder_config *d = &c->decoder;
    assert_true(d->router.scoring == MSGL_SCORE_SIGMOID && d->router.norm_topk);
    assert_true(d->router.num_groups == 4 && d->router.top_groups == 2 && d->router.group_pairs);
    assert_int_equal(d->layer_flags[0] & MSGL_LAYER_SPARSE, 0);
    assert_int_equal(d->layer_flags[1] & MSGL_LAYER_SPARSE, MSGL_LAYER_SPARSE);
    assert_int_equal(d->shared_intermediate_size, 32);
    assert_true(fabsf(d->attn_scale - 0.2236068f) < 1e-6f); // of 12 + 8
    // yarn: (0.1 * 0.707 * ln 40 + 1)^2 times that
    const char *yarn = "{\"type\": \"yarn\", \"factor\": 40, \"mscale\": 0.707, "
                       "\"mscale_all_dim\": 0.707, \"original_max_position_embeddings\": 4096}";
    assert_int_equal(load_with("DeepseekV2ForCausalLM", "rope_scaling", yarn, c, &err), 0);
    assert_true(fabsf(c->decoder.attn_scale / 0.2236068f - 1.5896262f) < 1e-5f);
    // What files of V2 leave out: no groups but by topk_method.
    assert_true(c->decoder.router.num_groups == 0 && !c->decoder.router.norm_topk);
    assert_int_equal(load_with("DeepseekV2ForCausalLM", "q_lora_rank", "null", c, &err), 0);
    assert_int_equal(c->decoder.latent.q_rank, 0);
    free(c);
}

// GLM-4.7-Flash says of each layer what it has, as transformers 5 writes it, or how many dense ones
// come first, as hubs do; with neither the first layer alone is dense.
static void test_glm(void **state)
{
    (void)state;
    static const struct {
        const char *types, *first_k;
        int sparse; // bits of layers
    } cases[] = {
        {"[\"dense\", \"sparse\", \"sparse\"]", NULL, 6},
        {"[\"sparse\", \"dense\", \"sparse\"]", NULL, 5},
        {"[\"sparse\", \"sparse\", \"dense\"]", "2", 3}, // the number is not looked at
        {"[\"dense\", \"dense\", \"dense\"]", NULL, 0},
        {NULL, "2", 4},
        {NULL, "0", 7},
        {NULL, NULL, 6},
        {"null", NULL, 6},
    };
    msgl_model_config *c = malloc(sizeof *c);
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        folder f;
        msgl_err err = {0};
        folder_make(&f);
        json_t *config = small_config("Glm4MoeLiteForCausalLM");
        set_field(config, "num_hidden_layers", "3");
        set_field(config, "first_k_dense_replace", cases[i].first_k);
        set_field(config, "mlp_layer_types", cases[i].types);
        folder_write_json(&f, "config.json", config);
        json_decref(config);
        if (msgl__model_config_load(f.dir, c, &err) != 0) fail_msg("%s", err.text);
        folder_remove(&f);
        for (int l = 0; l < 3; l++) {
            assert_int_equal((c->decoder.layer_flags[l] & MSGL_LAYER_SPARSE) != 0,
                             cases[i].sparse >> l & 1);
        }
    }
    free(c);
    const bad_field wrong[] = {
        {"mlp_layer_types", "[\"dense\"]", "a list of num_hidden_layers"},
        {"mlp_layer_types", "7", "a list of num_hidden_layers"},
        {"mlp_layer_types", "[\"dense\", \"hash_moe\"]",
         "found \"hash_moe\", allowed dense, sparse"},
        {"mlp_layer_types", "[\"dense\", 1]", "found 1, allowed dense, sparse"},
    };
    for (size_t i = 0; i < MSGL_COUNT(wrong); i++) {
        expect_refusal("Glm4MoeLiteForCausalLM", &wrong[i]);
    }
}

static void refuse(const char *arch, const char *field, const char *value, const char *says)
{
    msgl_model_config *c = malloc(sizeof *c);
    msgl_err err = {0};
    assert_true(load_with(arch, field, value, c, &err) < 0);
    if (strstr(err.text, says) == NULL) fail_msg("%s %s: \"%s\"", arch, field, err.text);
    free(c);
}

static void test_refusals_of_parts(void **state)
{
    (void)state;
    refuse("ArceeForCausalLM", "hidden_act", "\"relu\"", "found \"relu\", allowed relu2, gelu");
    refuse("Cohere2ForCausalLM", "use_parallel_block", "false", "found false, allowed 1");
    refuse("Cohere2ForCausalLM", "layer_types", "[\"full_attention\"]", "a list of num_hidden");
    refuse("CohereForCausalLM", "logit_scale", "0", "logit_scale: found 0");
    refuse("StableLmForCausalLM", "layer_norm_eps", "-1", "layer_norm_eps: found -1");
    refuse("BailingMoeForCausalLM", "norm_head", "true", "norm_head: found true, allowed 0");
    refuse("BailingMoeV2ForCausalLM", "n_group", "3", "n_group: found 3");
    refuse("PhimoeForCausalLM", "router_jitter_noise", "2", "found 2, allowed a number in 0..1");
    refuse("PhimoeForCausalLM", "rope_scaling",
           "{\"type\": \"longrope\", \"short_factor\": [1, 1, 1, 1], \"long_factor\": [2, 2, 2, 2],"
           " \"short_mscale\": 1.5, \"long_mscale\": 2, \"original_max_position_embeddings\": 32}",
           "long_mscale: found 2, allowed what short_mscale is");
}

static void test_refusals_by_architecture(void **state)
{
    (void)state;
    refuse("SmolLM3ForCausalLM", "no_rope_layers", "[1]", "a list of num_hidden_layers");
    refuse("SmolLM3ForCausalLM", "no_rope_layers", "[1, 2]", "found 2, allowed 0 or 1");
    refuse("Glm4ForCausalLM", "partial_rotary_factor", "0.1", "a share of head_dim 8 that is even");
    refuse("LlamaForCausalLM", "partial_rotary_factor", "0.5",
           "found 0.5, allowed a number in 1..1");
    refuse("Gemma2ForCausalLM", "hidden_activation", "\"gelu\"", "silu, gelu_pytorch_tanh");
    refuse("Gemma3ForCausalLM", "use_bidirectional_attention", "true", "allowed false");
    refuse("Gemma3ForConditionalGeneration", "text_config", "3", "text_config: found 3");
    refuse("MixtralForCausalLM", "hidden_act", "\"gelu_pytorch_tanh\"", "silu, for experts");
    refuse("GraniteForCausalLM", "residual_multiplier", "0", "residual_multiplier: found 0");
    refuse("DeepseekV2ForCausalLM", "kv_lora_rank", "12", "a multiple of 8");
    refuse("DeepseekV2ForCausalLM", "kv_lora_rank", "576", "of up to 576");
    refuse("DeepseekV2ForCausalLM", "qk_rope_head_dim", "7", "qk_rope_head_dim: found 7");
    refuse("DeepseekV2ForCausalLM", "qk_rope_head_dim", NULL, "qk_rope_head_dim: found nothing");
    refuse("DeepseekV2ForCausalLM", "topk_method", "\"noaux_tc\"", "greedy, group_limited_greedy");
    refuse("DeepseekV3ForCausalLM", "topk_method", "\"greedy\"", "allowed noaux_tc");
    refuse("DeepseekV3ForCausalLM", "n_group", "3", "a divisor of n_routed_experts 8, 2 or more");
    refuse("DeepseekV3ForCausalLM", "n_group", "8", "a divisor of n_routed_experts 8, 2 or more");
    refuse("DeepseekV3ForCausalLM", "topk_group", "5", "topk_group: found 5");
    refuse("DeepseekV3ForCausalLM", "num_experts_per_tok", "5", "no more than topk_group groups");
    refuse("DeepseekV32ForCausalLM", "index_head_dim", "6", "qk_rope_head_dim 8 or more");
    refuse("DeepseekV32ForCausalLM", "index_topk", "0", "index_topk: found 0");
    refuse("DeepseekV32ForCausalLM", "q_lora_rank", NULL, "a number, with sparse attention");
    refuse("GlmMoeDsaForCausalLM", "indexer_types", "[\"full\"]", "a list of num_hidden_layers");
    refuse("GlmMoeDsaForCausalLM", "indexer_types", "[\"full\", \"half\"]", "full, shared");
    refuse("GlmMoeDsaForCausalLM", "indexer_types", "[\"shared\", \"full\"]",
           "an index in the first layer");
    refuse("GlmMoeDsaForCausalLM", "index_topk_pattern", "\"FX\"", "a letter F or S");
    refuse("DeepseekV3ForCausalLM", "n_routed_experts", "0", "n_routed_experts: found 0");
    refuse("Qwen3_5ForCausalLM", "linear_num_value_heads", "24", "linear_num_key_heads 16");
    refuse("Qwen3_5ForCausalLM", "linear_key_head_dim", "24", "a multiple of 16 up to 256");
    refuse("Qwen3_5ForCausalLM", "linear_value_head_dim", "272", "1..256");
    refuse("Qwen3_5ForCausalLM", "linear_conv_kernel_dim", "3", "found 3, allowed 4");
    refuse("Qwen3_5ForCausalLM", "hidden_act", "\"gelu_pytorch_tanh\"", "linear attention");
    refuse("Qwen3_5ForCausalLM", "layer_types", "[\"sliding_attention\", \"full_attention\"]",
           "full_attention, linear_attention");
    refuse("Qwen3NextForCausalLM", "intermediate_size", NULL, "intermediate_size: found nothing");
    // Found by fuzzing: layers without experts had a width of 0.
    refuse("Qwen3_5MoeForCausalLM", "mlp_only_layers", "[0]", "allowed none");
    refuse("Qwen3_5MoeForCausalLM", "decoder_sparse_step", "2", "found 2, allowed none");
}

static void test_refusals_of_shapes(void **state)
{
    (void)state;
    static const char gemma[] = "Gemma4ForCausalLM", mimo[] = "MiMoV2FlashForCausalLM";
    refuse(gemma, "num_kv_shared_layers", "2", "num_kv_shared_layers: found 2");
    refuse(gemma, "num_kv_shared_layers", "1", "a layer of each kind in layer_types");
    refuse(gemma, "per_layer_config", "3", "per_layer_config: found 3");
    refuse(gemma, "per_layer_config", "{\"7\": {\"head_dim\": 8}}", "for numbers of layers");
    refuse(gemma, "per_layer_config", "{\"1\": {\"head_dim\": 0}}", "head_dim: found 0");
    refuse(gemma, "global_head_dim", "7", "an even number");
    refuse(gemma, "use_bidirectional_attention", "\"all\"", "found \"all\", allowed vision");
    refuse(gemma, "vocab_size_per_layer_input", "49", "vocab_size or more");
    refuse(gemma, "top_k_experts", "5", "top_k_experts: found 5");
    refuse(mimo, "hybrid_layer_pattern", "[1]", "a list of num_hidden_layers");
    refuse(mimo, "hybrid_layer_pattern", "[1, 7]", "found 7, allowed 0 or 1 for every layer");
    refuse(mimo, "moe_layer_freq", "[0, \"x\"]", "found \"x\", allowed 0 or 1 for every layer");
    refuse(mimo, "mlp_layer_types", "[\"dense\", 1]", "found 1, allowed dense, sparse");
    refuse(mimo, "swa_num_key_value_heads", "3", "a divisor of num_attention_heads");
    refuse(mimo, "swa_head_dim", "16", "swa_head_dim: found 16, allowed head_dim");
    refuse(mimo, "n_group", "2", "n_group: found 2, allowed 1");
}

// Layers of one model that keep different K and V, or none.
static void test_shapes(void **state)
{
    (void)state;
    msgl_model_config *c = malloc(sizeof *c);
    msgl_err err = {0};
    msgl_cache_specs s;
    assert_int_equal(load_with("MiMoV2FlashForCausalLM", "v_head_dim", "4", c, &err), 0);
    msgl__model_caches(c, 1, MSGL_F16, MSGL_BF16, &s);
    assert_int_equal(s.count, 2);
    assert_true(s.all[0].window == -1 && s.all[0].num_heads == 1);
    assert_true(s.all[1].window == 128 && s.all[1].num_heads == 2); // 129 with the query's own
    assert_true(s.all[1].k_dim == 8 && s.all[1].v_dim == 4);
    assert_true(!c->decoder.shapes[0].sinks && c->decoder.shapes[1].sinks);

    folder f;
    json_t *j = small_config("Gemma4ForCausalLM");
    set_field(j, "num_hidden_layers", "5");
    set_field(j, "num_kv_shared_layers", "2");
    set_field(j, "layer_types",
              "[\"sliding_attention\", \"sliding_attention\", \"full_attention\", "
              "\"sliding_attention\", \"sliding_attention\"]");
    folder_make(&f);
    folder_write_json(&f, "config.json", j);
    json_decref(j);
    if (msgl__model_config_load(f.dir, c, &err) != 0) fail_msg("%s", err.text);
    folder_remove(&f);
    msgl__model_caches(c, 1, MSGL_F16, MSGL_BF16, &s);
    assert_int_equal(s.count, 2);
    assert_true(s.all[0].num_layers == 1 && s.all[0].k_dim == 16); // the last one sees all tokens
    assert_true(s.all[1].num_layers == 2 && s.all[1].k_dim == 8 && s.all[1].window == 511);
    assert_true(c->ropes[0].type == MSGL_ROPE_PROPORTIONAL && c->ropes[0].dim == 16);
    assert_true(c->ropes[1].dim == 8 && c->ropes[1].theta == 10000);
    free(c);
}

// Groups of layers of models with linear attention.
static void test_delta(void **state)
{
    (void)state;
    msgl_model_config *c = malloc(sizeof *c);
    msgl_err err = {0};
    msgl_cache_specs s;
    assert_int_equal(load_with("Qwen3_5MoeForCausalLM", "intermediate_size", NULL, c, &err), 0);
    const msgl_decoder_config *d = &c->decoder;
    assert_int_equal(d->layer_flags[0], MSGL_LAYER_RECURRENT | MSGL_LAYER_SPARSE);
    assert_int_equal(d->layer_flags[1], MSGL_LAYER_SPARSE);
    assert_true(d->router.norm_topk && d->norm_plus_one && d->gated_attn && !d->delta.by_k_head);
    assert_int_equal(c->ropes[0].dim, 2); // a quarter of a head
    msgl__model_caches(c, 1, MSGL_F16, MSGL_BF16, &s);
    assert_int_equal(s.count, 2);
    assert_int_equal(s.all[0].kind, MSGL_CACHE_KV);
    assert_int_equal(s.all[0].num_layers, 1);
    assert_int_equal(s.all[1].kind, MSGL_CACHE_STATE);
    assert_int_equal(s.all[1].num_layers, 1);
    // 32 heads of 128 x 128 in f32; inputs of 2 x 16 + 32 heads of 128, four tokens.
    assert_int_equal(s.all[1].state_bytes, 32 * 128 * 128 * 4 + 64 * 128 * 4 * 2);
    assert_int_equal(load_with("Qwen3_5ForCausalLM", "linear_value_head_dim", "16", c, &err), 0);
    msgl__model_caches(c, 1, MSGL_F16, MSGL_F32, &s);
    assert_int_equal(s.all[1].state_bytes, 32 * 128 * 16 * 4 + (32 * 128 + 32 * 16) * 4 * 4);
    const char *types = "[\"full_attention\", \"linear_attention\"]"; // wins over the interval
    assert_int_equal(load_with("Qwen3NextForCausalLM", "layer_types", types, c, &err), 0);
    assert_int_equal(d->layer_flags[0] & MSGL_LAYER_RECURRENT, 0);
    assert_int_equal(d->layer_flags[1] & MSGL_LAYER_RECURRENT, MSGL_LAYER_RECURRENT);
    assert_true(d->delta.by_k_head);
    assert_int_equal(load_with("Qwen3NextForCausalLM", NULL, NULL, c, &err), 0);
    msgl__model_caches(c, 1, MSGL_F16, MSGL_F32, &s);
    assert_int_equal(s.count, 1); // layers of linear attention alone
    assert_int_equal(s.all[0].kind, MSGL_CACHE_STATE);
    free(c);
}

static void test_switches(void **state)
{
    (void)state;
    refuse("MiniMaxM2ForCausalLM", "rotary_dim", "7",
           "rotary_dim: found 7, allowed an even number");
    refuse("MiniMaxM2ForCausalLM", "use_routing_bias", "false", "found false, allowed 1");
    refuse("HunYuanMoEV1ForCausalLM", "moe_topk", "[2, 1]", "the same one for every layer");
    refuse("HunYuanMoEV1ForCausalLM", "moe_topk", "5", "1..4");
    refuse("HunYuanDenseV1ForCausalLM", "use_cla", "true", "found true, allowed 0");
    refuse("HunYuanDenseV1ForCausalLM", "rope_scaling",
           "{\"type\": \"dynamic\", \"factor\": 1, \"alpha\": 0.5}", "alpha: found 0.5");
    refuse("Exaone4ForCausalLM", "sliding_window_pattern", "\"LLXG\"", "letters L and G");
    refuse("Exaone4ForCausalLM", "sliding_window_pattern", "0", "found 0");
    refuse("Ministral3ForCausalLM", "rope_parameters",
           "{\"rope_type\": \"default\", \"llama_4_scaling_beta\": -1}",
           "llama_4_scaling_beta: found -1");
    refuse("OlmoeForCausalLM", "clip_qkv", "0", "clip_qkv: found 0");
    refuse("Ernie4_5_MoeForCausalLM", "moe_k", "100",
           "moe_k: found 100, allowed an integer in 1..");
    refuse("Glm4MoeForCausalLM", "n_group", "3", "a divisor of n_routed_experts 8");
    msgl_model_config *c = malloc(sizeof *c);
    const msgl_decoder_config *d = &c->decoder;
    msgl_err err = {0};
    // alpha^(8 / 6) with heads of 8; layers of a pattern of letters; a head's own base where there
    // is none for layers with a window; what Ministral 3 rotates by if nothing says it.
    assert_int_equal(load_with("HunYuanDenseV1ForCausalLM", "rope_scaling",
                               "{\"type\": \"dynamic\", \"factor\": 1, \"alpha\": 8}", c, &err),
                     0);
    assert_int_equal(c->ropes[0].type, MSGL_ROPE_DEFAULT);
    assert_true(fabs(c->ropes[0].theta - 160000) < 1e-6);
    assert_int_equal(load_with("Exaone4ForCausalLM", "sliding_window_pattern", "\"GL\"", c, &err),
                     0);
    assert_int_equal(d->layer_flags[0], MSGL_LAYER_SECOND_ROPE);
    assert_int_equal(d->layer_flags[1], MSGL_LAYER_SLIDING);
    assert_int_equal(load_with("Olmo3ForCausalLM", "rope_theta", "7000", c, &err), 0);
    assert_true(c->ropes[0].theta == 7000 && c->ropes[1].theta == 7000);
    assert_int_equal(load_with("Ministral3ForCausalLM", NULL, NULL, c, &err), 0);
    assert_true(c->ropes[0].type == MSGL_ROPE_YARN && c->ropes[0].factor == 16);
    assert_true(d->tempers_all && d->temper.every == 16384);
    assert_int_equal(load_with("GemmaForCausalLM", "hidden_act", "\"gelu\"", c, &err), 0);
    assert_int_equal(d->activation, MSGL_GELU_TANH);
    free(c);
}

static void test_registry(void **state)
{
    (void)state;
    char names[4096];
    msgl__arch_names(names, sizeof names);
    assert_true(msgl__arch_count() >= 5);
    for (int i = 0; i < msgl__arch_count(); i++) {
        const msgl_arch *a = msgl__arch_at(i);
        assert_ptr_equal(msgl__arch_find(a->name), a);
        assert_non_null(strstr(names, a->name));
        assert_true(a->configure != NULL && a->family != NULL);
        msgl_model_config *c = malloc(sizeof *c);
        msgl_err err = {0};
        assert_int_equal(load_with(a->name, NULL, NULL, c, &err), 0);
        assert_ptr_equal(c->arch, a);
        free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_llama4),
        cmocka_unit_test(test_refusals_of_shapes),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_not_json),
        cmocka_unit_test(test_odd_numbers),
        cmocka_unit_test(test_fifo),
        cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_generation_config),
        cmocka_unit_test(test_switches),
        cmocka_unit_test(test_registry),
        cmocka_unit_test(test_nemotron_layers),
        cmocka_unit_test(test_latent),
        cmocka_unit_test(test_glm),
        cmocka_unit_test(test_delta),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_defaults_of_parts),
        cmocka_unit_test(test_refusals_of_parts),
        cmocka_unit_test(test_refusals_by_architecture),
        cmocka_unit_test(test_dual_chunk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
