// SPDX-License-Identifier: Apache-2.0
//
// Models in GGUF files against the folders that they were made from (tests/vectors/gguf): the same
// config, and every element of every tensor where the model wants it. Then files that say too
// little or what cannot be done.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "models/arch.h"
#include "models/gguf.h"
#include "models/gguf/arch.h"
#include "models/source.h"
#include "models/weights.h"
#include "utils/gguf_writer.h"

#define DIR MSGL_SOURCE_DIR "/tests/vectors/gguf/"

static const struct {
    const char *folder, *file;
    msgl_dtype dtype; // that the weights get by default
} PAIRS[] = {
    {"llama", "llama-f32.gguf", MSGL_F32},     {"llama", "llama-q8_0.gguf", MSGL_BF16},
    {"llama3", "llama3-bf16.gguf", MSGL_BF16}, {"qwen2", "qwen2-bf16.gguf", MSGL_BF16},
    {"qwen3", "qwen3-f16.gguf", MSGL_F16},
};

static void path_of(char out[512], const char *name)
{
    snprintf(out, 512, DIR "%s", name);
}

static msgl_model_config *load_config(const char *name)
{
    char path[512];
    msgl_err err = {0};
    msgl_model_config *c = malloc(sizeof *c);
    assert_non_null(c);
    path_of(path, name);
    if (msgl__model_config_load(path, c, &err) != 0) fail_msg("%s", err.text);
    return c;
}

static void same_rope(const msgl_rope_config *a, const msgl_rope_config *b)
{
    float x[MSGL_MAX_HEAD_DIM / 2], y[MSGL_MAX_HEAD_DIM / 2];
    assert_int_equal(a->dim, b->dim);
    assert_true(msgl__rope_inv_freq(a, 0, x) == msgl__rope_inv_freq(b, 0, y));
    assert_false(msgl__rope_per_request(b));
    const bool rounded = a->type == MSGL_ROPE_LLAMA3; // as factors, when they were stored
    assert_int_equal(b->type, rounded ? MSGL_ROPE_LONGROPE : a->type);
    for (int32_t i = 0; i < a->dim / 2; i++) {
        assert_true(rounded ? fabsf(x[i] - y[i]) <= 2e-7f * x[i] : x[i] == y[i]);
    }
}

static void test_config(void **state)
{
    (void)state;
    for (size_t i = 0; i < MSGL_COUNT(PAIRS); i++) {
        msgl_model_config *a = load_config(PAIRS[i].folder), *b = load_config(PAIRS[i].file);
        assert_ptr_equal(a->arch, b->arch);
        assert_int_equal(b->dtype, PAIRS[i].dtype);
        assert_int_equal(a->vocab_size, b->vocab_size);
        assert_int_equal(a->hidden_size, b->hidden_size);
        assert_int_equal(a->num_layers, b->num_layers);
        assert_int_equal(a->max_position, b->max_position);
        assert_int_equal(a->num_heads, b->num_heads);
        assert_int_equal(a->num_kv_heads, b->num_kv_heads);
        assert_int_equal(a->head_dim, b->head_dim);
        assert_int_equal(a->tie_embeddings, b->tie_embeddings);
        assert_int_equal(b->decoder.interleaved, strncmp(PAIRS[i].file, "llama", 5) == 0);
        b->decoder.interleaved = false;
        assert_memory_equal(&a->decoder, &b->decoder, sizeof a->decoder);
        assert_int_equal(msgl__model_config_context(a), msgl__model_config_context(b));
        assert_int_equal(b->num_eos, 1);
        assert_int_equal(b->eos_ids[0], 258); // the tokenizer's
        assert_int_equal(b->num_ropes, 1);
        same_rope(&a->ropes[0], &b->ropes[0]);
        free(a);
        free(b);
    }
}

static msgl_checkpoint *open_checkpoint(const char *name)
{
    char path[512];
    msgl_err err = {0};
    msgl_checkpoint *c = NULL;
    path_of(path, name);
    if (msgl__checkpoint_open(path, &c, &err) != 0) fail_msg("%s", err.text);
    return c;
}

// All elements as the model's rows, read `step` rows at a time.
static float *elements(msgl_pool *pool, const msgl_model_config *c, const msgl_tensor *t,
                       int32_t step)
{
    const bool heads = strstr(t->name, "q_proj") != NULL || strstr(t->name, "k_proj") != NULL;
    const msgl_source s = {.t = t,
                           .want = MSGL_F32,
                           .cols = t->ndim == 2 ? (size_t)t->dims[1] : 1,
                           .head = c->head_dim,
                           .pairs = c->decoder.interleaved && heads ? c->head_dim / 2 : 0};
    const int32_t rows = (int32_t)t->dims[0];
    float *out = malloc((size_t)rows * s.cols * sizeof *out);
    char *stage = malloc((size_t)step * msgl__source_row_bytes(&s));
    assert_true(t->loadable && out != NULL && stage != NULL);
    for (int32_t r = 0; r < rows && t->ndim == 1; r++) {
        out[r] = msgl__source_element(&s, (size_t)r);
    }
    for (int32_t r = 0; r < rows && t->ndim == 2; r += step) {
        const int32_t n = rows - r < step ? rows - r : step;
        msgl__source_rows(pool, &s, r, n, stage);
        for (size_t i = 0; i < (size_t)n * s.cols; i++) {
            out[(size_t)r * s.cols + i] = msgl__load_f32(stage, msgl__source_dtype(&s), i);
        }
    }
    free(stage);
    return out;
}

static void test_tensors(void **state)
{
    (void)state;
    msgl_pool *pool = NULL;
    msgl_err err = {0};
    assert_int_equal(msgl__pool_create(2, &pool, &err), 0);
    for (size_t p = 0; p < MSGL_COUNT(PAIRS); p++) {
        msgl_model_config *ca = load_config(PAIRS[p].folder), *cb = load_config(PAIRS[p].file);
        msgl_checkpoint *a = open_checkpoint(PAIRS[p].folder);
        msgl_checkpoint *b = open_checkpoint(PAIRS[p].file);
        assert_true(msgl__checkpoint_count(a) > 8);
        assert_int_equal(msgl__checkpoint_count(a), msgl__checkpoint_count(b));
        for (size_t i = 0; i < msgl__checkpoint_count(a); i++) {
            const msgl_tensor *x = msgl__checkpoint_at(a, i), *y = msgl__checkpoint_at(b, i);
            assert_string_equal(x->name, y->name);
            assert_int_equal(x->ndim, y->ndim);
            assert_memory_equal(x->dims, y->dims, (size_t)x->ndim * sizeof *x->dims);
            const size_t n = (size_t)x->dims[0] * (size_t)(x->ndim == 2 ? x->dims[1] : 1);
            for (int32_t step = 3; step < 100; step += 60) {
                float *want = elements(pool, ca, x, step), *got = elements(pool, cb, y, step);
                if (memcmp(want, got, n * sizeof *want) != 0) {
                    fail_msg("%s: %s differs", PAIRS[p].file, msgl__tensor_label(y));
                }
                free(want);
                free(got);
            }
        }
        msgl__checkpoint_close(a);
        msgl__checkpoint_close(b);
        free(ca);
        free(cb);
    }
    msgl__pool_destroy(pool);
}

// ---- files made here ----

enum { F32 = 0, I32 = 26 };

// A model of one layer, without the tensors that nothing looks at.
static void put_model(gguf_writer *w, const char *arch)
{
    static const char *const tokens[] = {"a", "b", "c"};
    static const float data[64] = {0};
    const struct {
        const char *key;
        uint32_t value;
    } sizes[] = {{"block_count", 1},
                 {"context_length", 64},
                 {"embedding_length", 8},
                 {"feed_forward_length", 16},
                 {"attention.head_count", 2}};
    gguf_put_string(w, "general.architecture", arch);
    for (size_t i = 0; i < MSGL_COUNT(sizes); i++) {
        char key[96];
        snprintf(key, sizeof key, "%s.%s", arch, sizes[i].key);
        gguf_put_int(w, key, MSGL_GGUF_U32, sizes[i].value);
    }
    gguf_put_strings(w, "tokenizer.ggml.tokens", tokens, 3);
    gguf_put_tensor(w, "blk.0.attn_q.weight", F32, 2, (int64_t[]){8, 8}, data, sizeof data);
}

static int config_of(gguf_writer *w, msgl_model_config *c, msgl_err *err)
{
    const gguf_bytes b = gguf_finish(w);
    msgl_gguf g;
    int code = msgl__gguf_parse(b.p, b.n, "f.gguf", &g, err);
    if (code == 0) code = msgl__gguf_config(&g, c, err);
    msgl__gguf_close(&g);
    free(b.p);
    return code;
}

static void refuse(gguf_writer *w, int code, const char *text)
{
    static msgl_model_config c;
    msgl_err err = {0};
    const int got = config_of(w, &c, &err);
    if (got != code || strcmp(err.text, text) != 0) {
        fail_msg("%d \"%s\", not %d \"%s\"", got, err.text, code, text);
    }
}

static void test_defaults(void **state)
{
    (void)state;
    static msgl_model_config c;
    gguf_writer w = {0};
    msgl_err err = {0};
    put_model(&w, "llama");
    gguf_put_int(&w, "tokenizer.ggml.eos_token_id", MSGL_GGUF_U32, 1);
    gguf_put_int(&w, "tokenizer.ggml.eot_token_id", MSGL_GGUF_U32, 2);
    gguf_put_int(&w, "tokenizer.ggml.eom_token_id", MSGL_GGUF_U32, 1);
    gguf_put_f32(&w, "general.sampling.temp", 0.5f);
    gguf_put_int(&w, "general.sampling.top_k", MSGL_GGUF_I32, 20);
    if (config_of(&w, &c, &err) != 0) fail_msg("%s", err.text);
    assert_int_equal(c.head_dim, 4);
    assert_int_equal(c.num_kv_heads, 2);
    assert_int_equal(c.vocab_size, 3);
    assert_true(c.tie_embeddings);
    assert_int_equal(c.dtype, MSGL_F32);
    assert_true(c.ropes[0].theta == 10000);
    assert_int_equal(c.num_eos, 2);
    assert_int_equal(c.eos_ids[1], 2);
    assert_true(c.sampling.temperature == 0.5f);
    assert_int_equal(c.sampling.top_k, 20);

    // Qwen3's head is not 128 when a file does not say so.
    put_model(&w, "qwen3");
    gguf_put_f32(&w, "qwen3.rope.scaling.factor", 4); // a type is linear unless it is given
    if (config_of(&w, &c, &err) != 0) fail_msg("%s", err.text);
    assert_int_equal(c.head_dim, 4);
    assert_int_equal(c.ropes[0].type, MSGL_ROPE_LINEAR);
    assert_int_equal(c.num_eos, 0);
    assert_true(c.sampling.temperature == 1);
    put_model(&w, "qwen3");
    gguf_put_f32(&w, "qwen3.rope.scaling.factor", 4);
    gguf_put_string(&w, "qwen3.rope.scaling.type", "none");
    if (config_of(&w, &c, &err) != 0) fail_msg("%s", err.text);
    assert_int_equal(c.ropes[0].type, MSGL_ROPE_DEFAULT);
}

static void refuse_name(gguf_writer *w, const char *found)
{
    char known[MSGL_GGUF_NAMES_SHOWN], text[256];
    msgl__gguf_arch_names(known, sizeof known);
    assert_non_null(strstr(known, "llama, "));
    assert_non_null(strstr(known, " more"));
    snprintf(text, sizeof text, "f.gguf: general.architecture: found %s, allowed %s", found, known);
    refuse(w, MSGL_EUNSUPPORTED, text);
}

static void test_bad_config(void **state)
{
    (void)state;
    gguf_writer w = {0};
    put_model(&w, "rwkv7");
    refuse_name(&w, "\"rwkv7\"");
    refuse_name(&w, "nothing");
    gguf_put_string(&w, "general.architecture", "clip");
    refuse(&w, MSGL_EUNSUPPORTED,
           "f.gguf: general.architecture: found \"clip\", the part of a model that sees or hears "
           "(mmproj), which goes with a language model");
    gguf_put_string(&w, "general.architecture", "llama");
    refuse(&w, MSGL_EFORMAT,
           "f.gguf: llama.vocab_size: found nothing, allowed an integer in 1..16777216");
}

static void test_bad_values(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        msgl_gguf_type type;
        uint64_t value;
        int code;
        const char *text;
    } bad[] = {
        {"llama.expert_count", MSGL_GGUF_U32, 8, MSGL_EFORMAT,
         "f.gguf: llama.expert_used_count: found nothing, allowed an integer in 1..8"},
        {"llama.attention.temperature_scale", MSGL_GGUF_F32, 0x3dcccccd, MSGL_EUNSUPPORTED,
         "f.gguf: llama.attention.temperature_scale: found 0.1000000015, allowed 0"},
        {"llama.logit_scale", MSGL_GGUF_F32, 0x40000000, MSGL_EUNSUPPORTED,
         "f.gguf: llama.logit_scale: found 2, allowed 1"},
        {"llama.nextn_predict_layers", MSGL_GGUF_U32, 1, MSGL_EUNSUPPORTED,
         "f.gguf: llama.nextn_predict_layers: found 1, allowed 0"},
        {"llama.attention.sliding_window", MSGL_GGUF_U32, 1, MSGL_EUNSUPPORTED,
         "f.gguf: llama.attention.sliding_window: found 1, allowed 0"},
        {"llama.rope.scale_linear", MSGL_GGUF_F32, 0x40000000, MSGL_EUNSUPPORTED,
         "f.gguf: llama.rope.scale_linear: found 2, allowed 1"},
        {"llama.rope.scale_linear", MSGL_GGUF_F32, 0x3f800001, MSGL_EUNSUPPORTED,
         "f.gguf: llama.rope.scale_linear: found 1.000000119, allowed 1"},
        {"llama.rope.scaling.attn_factor", MSGL_GGUF_F32, 0x3f000000, MSGL_EUNSUPPORTED,
         "f.gguf: llama.rope.scaling.attn_factor: found 0.5, allowed 1"},
        {"llama.rope.scaling.yarn_attn_factor", MSGL_GGUF_F32, 0x40000000, MSGL_EUNSUPPORTED,
         "f.gguf: llama.rope.scaling.yarn_attn_factor: found 2, allowed 1"},
        {"llama.rope.scaling.yarn_ext_factor", MSGL_GGUF_F32, 0, MSGL_EUNSUPPORTED,
         "f.gguf: llama.rope.scaling.yarn_ext_factor: found 0, allowed 1"},
        {"llama.rope.scaling.yarn_log_multiplier", MSGL_GGUF_F32, 0x3f800000, MSGL_EUNSUPPORTED,
         "f.gguf: llama.rope.scaling.yarn_log_multiplier: found 1, allowed 0"},
        {"llama.attention.value_length", MSGL_GGUF_U32, 8, MSGL_EUNSUPPORTED,
         "f.gguf: llama.attention.value_length: found 8, allowed 4"},
        {"llama.rope.dimension_count", MSGL_GGUF_U32, 2, MSGL_EUNSUPPORTED,
         "f.gguf: llama.rope.dimension_count: found 2, allowed 4"},
        {"llama.attention.head_count_kv", MSGL_GGUF_U32, 0, MSGL_EFORMAT,
         "f.gguf: llama.attention.head_count_kv: found 0, allowed an integer in 1..1024"},
        {"llama.rope.freq_base", MSGL_GGUF_F32, 0xff800000, MSGL_EFORMAT,
         "f.gguf: llama.rope.freq_base: found NaN or a number beyond 1e308, allowed a number in "
         "1..1e+18"},
        {"llama.rope.scaling.type", MSGL_GGUF_BOOL, 1, MSGL_EFORMAT,
         "f.gguf: llama.rope.scaling.type: found true, allowed a string"},
        {"tokenizer.ggml.eos_token_id", MSGL_GGUF_U32, 3, MSGL_EFORMAT,
         "f.gguf: tokenizer.ggml.eos_token_id: found 3, allowed an id in 0..2 or a list of up to "
         "8"},
        {"general.sampling.top_p", MSGL_GGUF_F32, 0x40000000, MSGL_EFORMAT,
         "f.gguf: general.sampling.top_p: found 2, allowed a number in 1e-37..1"},
    };
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        gguf_writer w = {0};
        put_model(&w, "llama");
        gguf_put_int(&w, bad[i].key, bad[i].type, bad[i].value);
        refuse(&w, bad[i].code, bad[i].text);
    }
    gguf_writer w = {0};
    static const int32_t heads[] = {2, 2};
    put_model(&w, "llama");
    gguf_put_array(&w, "llama.attention.head_count_kv", MSGL_GGUF_I32, heads, 2);
    refuse(&w, MSGL_EFORMAT,
           "f.gguf: llama.attention.head_count_kv: found a list of 2, allowed an integer in "
           "1..1024");
    static const float factors[] = {1, 0, 1};
    put_model(&w, "llama");
    gguf_put_tensor(&w, "rope_freqs.weight", F32, 1, (int64_t[]){3}, factors, sizeof factors);
    refuse(&w, MSGL_EFORMAT,
           "f.gguf: rope_freqs.weight: found a list of 3, allowed 2 numbers above 0, up to 1e+06");
    put_model(&w, "llama");
    gguf_put_tensor(&w, "rope_freqs.weight", F32, 1, (int64_t[]){2}, factors, 8);
    refuse(&w, MSGL_EFORMAT,
           "f.gguf: rope_freqs.weight: found 0, allowed 2 numbers above 0, up to 1e+06");
    for (int typed = 0; typed < 2; typed++) {
        put_model(&w, "llama");
        gguf_put_tensor(&w, "rope_freqs.weight", F32, 1, (int64_t[]){2}, factors, 8);
        gguf_put_f32(&w, "llama.rope.scaling.factor", 8);
        if (typed) gguf_put_string(&w, "llama.rope.scaling.type", "yarn");
        refuse(&w, MSGL_EUNSUPPORTED,
               typed ? "f.gguf: llama.rope.scaling.type: found \"yarn\", allowed none beside the "
                       "tensor rope_freqs.weight"
                     : "f.gguf: llama.rope.scaling.factor: found 8, allowed 1");
    }
}

static void configure(gguf_writer *w, msgl_model_config *c)
{
    msgl_err err = {0};
    if (config_of(w, c, &err) != 0) fail_msg("%s", err.text);
}

// What the files of models with several kinds of layers may not say.
static void test_kinds_refused(void **state)
{
    (void)state;
    static const struct {
        const char *arch, *key;
        msgl_gguf_type type;
        uint64_t value;
        int code;
        const char *text;
    } bad[] = {
        {"lfm2", "attention.sliding_window", MSGL_GGUF_U32, 128, MSGL_EUNSUPPORTED,
         "f.gguf: lfm2.attention.sliding_window: found 128, allowed 0"},
        {"lfm2", "shortconv.l_cache", MSGL_GGUF_U32, 99, MSGL_EFORMAT,
         "f.gguf: lfm2.shortconv.l_cache: found 99, allowed an integer in 2..4"},
        {"gemma4", "rope.dimension_count_swa", MSGL_GGUF_U32, 2, MSGL_EUNSUPPORTED,
         "f.gguf: gemma4.rope.dimension_count_swa: found 2, allowed 4"},
        {"gemma4", "attention.value_length_swa", MSGL_GGUF_U32, 8, MSGL_EUNSUPPORTED,
         "f.gguf: gemma4.attention.value_length_swa: found 8, allowed 4"},
        {"granitehybrid", "attention.value_scale", MSGL_GGUF_F32, 0x3f000000, MSGL_EUNSUPPORTED,
         "f.gguf: granitehybrid.attention.value_scale: found 0.5, allowed 1"},
        {"falcon-h1", "ssm.group_count", MSGL_GGUF_U32, 3, MSGL_EFORMAT,
         "f.gguf: falcon-h1.ssm.group_count: found 3, allowed a divisor of mamba_n_heads 4"},
        {"mimo2", "expert_group_count", MSGL_GGUF_U32, 2, MSGL_EUNSUPPORTED,
         "f.gguf: mimo2.expert_group_count: found 2, allowed 1"},
        {"stablelm", "attention.layer_norm_epsilon", MSGL_GGUF_F32, 0x40000000, MSGL_EFORMAT,
         "f.gguf: stablelm.attention.layer_norm_epsilon: found 2, allowed a number in 0..1"},
    };
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        gguf_writer w = {0};
        char key[64];
        put_model(&w, bad[i].arch);
        snprintf(key, sizeof key, "%s.ssm.time_step_rank", bad[i].arch);
        gguf_put_int(&w, key, MSGL_GGUF_U32, 4);
        snprintf(key, sizeof key, "%s.ssm.inner_size", bad[i].arch);
        gguf_put_int(&w, key, MSGL_GGUF_U32, 64);
        if (strcmp(bad[i].arch, "mimo2") == 0) {
            gguf_put_int(&w, "mimo2.expert_count", MSGL_GGUF_U32, 4);
            gguf_put_int(&w, "mimo2.attention.head_count_kv", MSGL_GGUF_U32, 1);
            gguf_put_int(&w, "mimo2.expert_used_count", MSGL_GGUF_U32, 2);
            gguf_put_int(&w, "mimo2.expert_feed_forward_length", MSGL_GGUF_U32, 8);
        }
        snprintf(key, sizeof key, "%s.%s", bad[i].arch, bad[i].key);
        gguf_put_int(&w, key, bad[i].type, bad[i].value);
        refuse(&w, bad[i].code, bad[i].text);
    }
    // Nemotron 3 Puzzle, whose layers differ in their experts.
    static const int32_t used[] = {2};
    static const float router[64] = {0};
    gguf_writer w = {0};
    put_model(&w, "nemotron_h_moe");
    gguf_put_tensor(&w, "blk.0.ffn_gate_inp.weight", F32, 2, (int64_t[]){8, 8}, router,
                    sizeof router);
    gguf_put_int(&w, "nemotron_h_moe.ssm.time_step_rank", MSGL_GGUF_U32, 8);
    gguf_put_int(&w, "nemotron_h_moe.ssm.inner_size", MSGL_GGUF_U32, 128);
    gguf_put_int(&w, "nemotron_h_moe.expert_count", MSGL_GGUF_U32, 8);
    gguf_put_array(&w, "nemotron_h_moe.expert_used_count", MSGL_GGUF_I32, used, 1);
    refuse(&w, MSGL_EFORMAT,
           "f.gguf: nemotron_h_moe.expert_used_count: found a list of 1, allowed an integer in "
           "1..8");
}

// A Gemma of so many layers; the scale is that of a head's 16 but in the models of 27B.
static void put_gemma(gguf_writer *w, const char *arch, uint32_t layers)
{
    char key[64];
    gguf_put_string(w, "general.architecture", arch);
    static const char *const tokens[] = {"a", "b"};
    gguf_put_strings(w, "tokenizer.ggml.tokens", tokens, 2);
    const struct {
        const char *key;
        uint32_t value;
    } sizes[] = {{"block_count", layers},       {"context_length", 64},
                 {"embedding_length", 32},      {"feed_forward_length", 16},
                 {"attention.head_count", 4},   {"attention.key_length", 16},
                 {"attention.value_length", 16}};
    for (size_t i = 0; i < MSGL_COUNT(sizes); i++) {
        snprintf(key, sizeof key, "%s.%s", arch, sizes[i].key);
        gguf_put_int(w, key, MSGL_GGUF_U32, sizes[i].value);
    }
}

// What the files of Gemma leave out is as llama.cpp takes it.
static void test_gemma_defaults(void **state)
{
    (void)state;
    static msgl_model_config c;
    gguf_writer w = {0};
    put_gemma(&w, "gemma3", 18); // without a window no layer has one
    configure(&w, &c);
    for (int32_t l = 0; l < 18; l++) assert_int_equal(c.decoder.layer_flags[l], 0);
    assert_true(c.decoder.attn_scale == 0.25f);
    assert_false(c.decoder.norm_plus_one);
    put_gemma(&w, "gemma3", 62); // every sixth has none, and the others rotate by 10,000
    gguf_put_int(&w, "gemma3.attention.sliding_window", MSGL_GGUF_U32, 512);
    gguf_put_f32(&w, "gemma3.rope.freq_base", 1e6f);
    configure(&w, &c);
    for (int32_t l = 0; l < 62; l++) {
        assert_int_equal((c.decoder.layer_flags[l] & MSGL_LAYER_SLIDING) != 0, l % 6 != 5);
    }
    assert_int_equal(c.decoder.sliding_window, 512);
    assert_true(c.ropes[0].theta == 1e6 && c.ropes[1].theta == 10000);
    assert_true(fabsf(c.decoder.attn_scale - 1 / sqrtf(8)) < 1e-7f); // 32 / 4
    put_gemma(&w, "gemma3", 4);                                      // what newer files say
    gguf_put_int(&w, "gemma3.attention.sliding_window", MSGL_GGUF_U32, 512);
    gguf_put_int(&w, "gemma3.attention.sliding_window_pattern", MSGL_GGUF_U32, 2);
    gguf_put_f32(&w, "gemma3.rope.freq_base_swa", 5000);
    configure(&w, &c);
    for (int32_t l = 0; l < 4; l++) {
        assert_int_equal((c.decoder.layer_flags[l] & MSGL_LAYER_SLIDING) != 0, l % 2 == 0);
    }
    assert_true(c.ropes[1].theta == 5000);
    static const int32_t pattern[] = {1, 0, 0, 1};
    put_gemma(&w, "gemma3", 4);
    gguf_put_int(&w, "gemma3.attention.sliding_window", MSGL_GGUF_U32, 512);
    gguf_put_array(&w, "gemma3.attention.sliding_window_pattern", MSGL_GGUF_I32, pattern, 4);
    configure(&w, &c);
    for (int32_t l = 0; l < 4; l++) {
        assert_int_equal((c.decoder.layer_flags[l] & MSGL_LAYER_SLIDING) != 0, pattern[l]);
    }
    put_gemma(&w, "gemma2", 46);
    configure(&w, &c);
    for (int32_t l = 0; l < 46; l++) {
        assert_int_equal((c.decoder.layer_flags[l] & MSGL_LAYER_SLIDING) != 0, l % 2 == 0);
    }
    assert_int_equal(c.decoder.sliding_window, 4096);
    assert_true(c.decoder.attn_softcap == 50 && c.logit_cap == 30);
    assert_true(fabsf(c.decoder.attn_scale - 1 / sqrtf(8)) < 1e-7f);
    assert_true(c.ropes[0].theta == 10000);
}

// Qwen3-Next's last blocks predict further tokens: they are no layers, and their tensors are left.
static void test_further_tokens(void **state)
{
    (void)state;
    static msgl_model_config c;
    gguf_writer w = {0};
    static const char *const tokens[] = {"a", "b"};
    static const int32_t recurrent[] = {1, 0, 0};
    static const struct {
        const char *key;
        uint32_t value;
    } sizes[] = {{"block_count", 3},
                 {"context_length", 64},
                 {"embedding_length", 8},
                 {"feed_forward_length", 16},
                 {"attention.head_count", 2},
                 {"attention.key_length", 16},
                 {"attention.value_length", 16},
                 {"rope.dimension_count", 4},
                 {"nextn_predict_layers", 1},
                 {"expert_count", 4},
                 {"expert_used_count", 2},
                 {"expert_feed_forward_length", 8},
                 {"expert_shared_feed_forward_length", 8},
                 {"ssm.group_count", 2},
                 {"ssm.time_step_rank", 4},
                 {"ssm.state_size", 16},
                 {"ssm.conv_kernel", 4},
                 {"ssm.inner_size", 128}};
    gguf_put_string(&w, "general.architecture", "qwen3next");
    for (size_t i = 0; i < MSGL_COUNT(sizes); i++) {
        char key[96];
        snprintf(key, sizeof key, "qwen3next.%s", sizes[i].key);
        gguf_put_int(&w, key, MSGL_GGUF_U32, sizes[i].value);
    }
    gguf_put_strings(&w, "tokenizer.ggml.tokens", tokens, 2);
    gguf_put_array(&w, "qwen3next.attention.recurrent_layers", MSGL_GGUF_I32, recurrent, 3);
    static const float router[32] = {0};
    for (int l = 0; l < 3; l += 2) { // layer 1 is dense
        char name[64];
        snprintf(name, sizeof name, "blk.%d.ffn_gate_inp.weight", l);
        gguf_put_tensor(&w, name, F32, 2, (int64_t[]){8, 4}, router, sizeof router);
    }
    configure(&w, &c);
    assert_int_equal(c.num_layers, 2);
    assert_true(c.arch->ignores_layers_behind);
    assert_int_equal(c.decoder.delta.v_dim, 32); // 128 / 4
    assert_int_equal(c.ropes[0].dim, 4);
    assert_true(c.decoder.delta.only_ba_by_k_head && c.decoder.delta.a_is_minus_exp);
    assert_int_equal(c.decoder.layer_flags[0], MSGL_LAYER_SPARSE | MSGL_LAYER_RECURRENT);
    assert_int_equal(c.decoder.layer_flags[1], 0);
}

// Opens the file as a checkpoint and checks that it holds one tensor [8, 256] and nothing else.
static int check(gguf_writer *w, const char *tensor, msgl_err *err)
{
    char path[] = "/tmp/minisgl-gguf-XXXXXX";
    const gguf_bytes b = gguf_finish(w);
    FILE *f = fdopen(mkstemp(path), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(b.p, 1, b.n, f), b.n);
    fclose(f);
    free(b.p);
    msgl_checkpoint *c = NULL;
    int code = msgl__checkpoint_open(path, &c, err);
    if (code == 0) {
        msgl_weight_plan p;
        msgl_weight weight = {.k = 256};
        msgl__weight_plan_init(&p, NULL, err);
        msgl__plan_rows(&p, &weight, 0, 8, "%s", tensor);
        code = msgl__weights_check(&p, c, err);
        msgl__weight_plan_free(&p);
    }
    msgl__checkpoint_close(c);
    remove(path);
    return code;
}

static void expect(gguf_writer *w, const char *tensor, int code, const char *text)
{
    msgl_err err = {0};
    const int got = check(w, tensor, &err);
    if (got != code || strstr(err.text, text) == NULL) {
        fail_msg("%d \"%s\", not %d \"%s\"", got, err.text, code, text);
    }
}

static void test_bad_tensors(void **state)
{
    (void)state;
    const int64_t dims[] = {256, 8};
    uint8_t *data = calloc(8, 256 * 4);
    assert_non_null(data);
    static const char *const up = "model.layers.12.mlp.up_proj.weight";
    gguf_writer w = {0};
    gguf_put_string(&w, "general.architecture", "qwen3");
    gguf_put_tensor(&w, "blk.12.ffn_up.weight", F32, 2, dims, data, 8192);
    expect(&w, up, 0, "");
    gguf_put_string(&w, "general.architecture", "qwen3");
    gguf_put_tensor(&w, "blk.12.ffn_up.weight", I32, 2, dims, data, 8192);
    expect(&w, up, MSGL_EUNSUPPORTED,
           "tensor blk.12.ffn_up.weight: dtype: found I32, expected F32, F16, BF16, F64, Q1_0, "
           "Q2_0, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ1_S to IQ4_XS, TQ1_0, TQ2_0, "
           "MXFP4 or NVFP4");
    gguf_put_string(&w, "general.architecture", "qwen3");
    gguf_put_tensor(&w, "blk.12.ffn_up.weight", F32, 2, (int64_t[]){8, 256}, data, 8192);
    expect(&w, up, MSGL_EFORMAT,
           "tensor blk.12.ffn_up.weight: shape: found [256, 8], expected [8, 256]");
    gguf_put_string(&w, "general.architecture", "qwen3");
    gguf_put_tensor(&w, "blk.012.ffn_up.weight", F32, 2, dims, data, 8192);
    expect(&w, up, MSGL_EFORMAT, "tensor model.layers.12.mlp.up_proj.weight: missing");
    gguf_put_string(&w, "general.architecture", "qwen3");
    gguf_put_tensor(&w, "blk.12.ffn_up.weight", F32, 2, dims, data, 8192);
    gguf_put_tensor(&w, "blk.12.ffn_up.scale", F32, 0, NULL, data, 4);
    expect(&w, up, MSGL_EFORMAT, "tensor blk.12.ffn_up.scale: found, but the model has no such");
    gguf_put_string(&w, "general.architecture", "qwen3");
    gguf_put_tensor(&w, "blk.12.ffn_up.weight", F32, 2, dims, data, 8192);
    gguf_put_tensor(&w, "blk.12.ffn_up.weight", F32, 2, dims, data, 8192);
    expect(&w, up, MSGL_EFORMAT, "tensor blk.12.ffn_up.weight: also in");
    free(data);
}

// A memory failure at any point leaves nothing behind (the sanitizer's leak check looks on).
static void test_out_of_memory(void **state)
{
    (void)state;
    char path[512];
    msgl_err err = {0};
    int code = MSGL_ENOMEM;
    path_of(path, "llama-q8_0.gguf");
    for (uint64_t nth = 1; code != 0 && nth < 1000; nth++) {
        msgl_checkpoint *c = NULL;
        msgl__mem_fail_from(nth);
        code = msgl__checkpoint_open(path, &c, &err);
        msgl__mem_fail_from(0);
        assert_true(code == 0 || code == MSGL_ENOMEM);
        msgl__checkpoint_close(c);
    }
    assert_int_equal(code, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config),         cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_defaults),       cmocka_unit_test(test_bad_config),
        cmocka_unit_test(test_bad_values),     cmocka_unit_test(test_kinds_refused),
        cmocka_unit_test(test_bad_tensors),    cmocka_unit_test(test_gemma_defaults),
        cmocka_unit_test(test_further_tokens), cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
