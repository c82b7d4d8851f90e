// SPDX-License-Identifier: Apache-2.0
//
// Folders as sentence-transformers writes them: which ones embed or rank, and what is wrong with
// others.
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
#include "models/embeds.h"
#include "models/folder.h"
#include "models/prompts.h"

#define MODULE(path, type) "{\"idx\":0,\"name\":\"0\",\"path\":\"" path "\",\"type\":\"" type "\"}"
#define OLD "sentence_transformers.models."
#define NEW "sentence_transformers.sentence_transformer.modules."
#define QWEN3                                                                                      \
    "[" MODULE("", OLD "Transformer") "," MODULE("1_Pooling", OLD "Pooling") "," MODULE(           \
        "2_Normalize", OLD "Normalize") "]"
#define RERANKER                                                                                   \
    "[" MODULE("", OLD "Transformer") "," MODULE("1_Pooling", NEW "logit_score.LogitScore") "]"
#define LAST                                                                                       \
    "{\"word_embedding_dimension\":1024,\"pooling_mode_cls_token\":false,"                         \
    "\"pooling_mode_mean_tokens\":false,\"pooling_mode_lasttoken\":true,\"include_prompt\":true}"

typedef struct question {
    const char *modules, *pooling; // files, or NULL
    int code;
    msgl_pooling kind;
    const char *text; // of the error
} question;

static const question questions[] = {
    {NULL, NULL, 0, MSGL_POOL_NONE, NULL},
    {QWEN3, LAST, 0, MSGL_POOL_EMBED, NULL},
    {"[" MODULE("", "sentence_transformers.base.modules.transformer.Transformer") "," MODULE(
         "1_Pooling", NEW "pooling.Pooling") "]",
     "{\"pooling_mode\":\"lasttoken\"}", 0, MSGL_POOL_EMBED, NULL},
    {RERANKER, "{\"true_token_id\":9693,\"false_token_id\":2152}", 0, MSGL_POOL_SCORE, NULL},
    {RERANKER, "{\"true_token_id\":9693,\"false_token_id\":-3}", MSGL_EUNSUPPORTED, MSGL_POOL_SCORE,
     "1_Pooling/config.json: false_token_id: allowed: a token's id"},
    {RERANKER, "{\"true_token_id\":-1,\"false_token_id\":1}", MSGL_EUNSUPPORTED, MSGL_POOL_SCORE,
     "true_token_id"},
    {RERANKER, NULL, MSGL_ENOENT, MSGL_POOL_SCORE, "1_Pooling/config.json"},
    {"[" MODULE("", NEW "Dense") "," MODULE("1_Pooling", NEW "LogitScore") "]", NULL,
     MSGL_EUNSUPPORTED, MSGL_POOL_SCORE, "found a module Dense, allowed: Transformer, LogitScore"},
    {"{}", NULL, MSGL_EFORMAT, MSGL_POOL_NONE, "modules.json: expected a JSON array"},
    {"[1,{}]", NULL, 0, MSGL_POOL_NONE, NULL},
    {"[", NULL, MSGL_EFORMAT, MSGL_POOL_NONE, "modules.json"},
    {QWEN3, NULL, MSGL_ENOENT, MSGL_POOL_EMBED, "1_Pooling/config.json"},
    {QWEN3, "{\"pooling_mode_mean_tokens\":true}", MSGL_EUNSUPPORTED, MSGL_POOL_EMBED,
     "pooling mode: found mean_tokens, allowed: lasttoken"},
    {QWEN3, "{\"pooling_mode_lasttoken\":true,\"pooling_mode_cls_token\":true}", MSGL_EUNSUPPORTED,
     MSGL_POOL_EMBED, "found several"},
    {QWEN3, "{\"pooling_mode\":\"mean\"}", MSGL_EUNSUPPORTED, MSGL_POOL_EMBED, "found mean"},
    {QWEN3, "{}", MSGL_EUNSUPPORTED, MSGL_POOL_EMBED, "found none"},
    {"[" MODULE("1_Pooling", OLD "Pooling") "," MODULE("2_Dense", OLD "Dense") "]", LAST,
     MSGL_ENOENT, MSGL_POOL_EMBED, "2_Dense/config.json"},
    {"[" MODULE("1_Pooling", OLD
                "Pooling") "," MODULE("", OLD "Normalize") "," MODULE("1_Pooling", OLD "Dense") "]",
     LAST, MSGL_EUNSUPPORTED, MSGL_POOL_EMBED,
     "found a module Dense, allowed: Transformer, Pooling, Dense, Normalize, in this order"},
    {"[" MODULE("", OLD "Transformer") "," MODULE("1_Pooling", OLD "LayerNorm") "," MODULE(
         "1_Pooling", OLD "Pooling") "]",
     LAST, MSGL_EUNSUPPORTED, MSGL_POOL_EMBED, "found a module LayerNorm"},
    {"[" MODULE("../x", OLD "Pooling") "]", LAST, MSGL_EFORMAT, MSGL_POOL_EMBED, "found \"../x\""},
    {"[" MODULE("", OLD "Pooling") "]", LAST, MSGL_EFORMAT, MSGL_POOL_EMBED, "path of Pooling"},
};

static void test_folders(void **state)
{
    (void)state;
    for (size_t i = 0; i < MSGL_COUNT(questions); i++) {
        const question *q = &questions[i];
        folder f;
        folder_make(&f);
        folder_add(&f, "1_Pooling");
        if (q->modules != NULL) folder_write(&f, "modules.json", q->modules, strlen(q->modules));
        if (q->pooling != NULL) {
            folder_write(&f, "1_Pooling/config.json", q->pooling, strlen(q->pooling));
        }
        msgl_model_pooling got;
        msgl_err err = {0};
        const int code = msgl__model_pooling(f.dir, false, &got, &err);
        const bool scores = code == 0 && got.kind == MSGL_POOL_SCORE;
        if (code != q->code || got.kind != q->kind ||
            (scores && (got.score_ids[0] != 9693 || got.score_ids[1] != 2152)) ||
            (q->text != NULL && strstr(err.text, q->text) == NULL)) {
            fail_msg("folder %zu: %d, %d: %s", i, code, (int)got.kind, err.text);
        }
        folder_remove(&f);
    }
}

// Which rows an encoder's vector is made of.
static void test_modes(void **state)
{
    static const struct {
        const char *pooling;
        int code;
        msgl_pool_mode mode;
        bool without_prompt;
    } modes[] = {
        {"{\"pooling_mode_mean_tokens\":true}", 0, MSGL_POOL_MEAN, false},
        {"{\"pooling_mode\":\"mean\"}", 0, MSGL_POOL_MEAN, false},
        {"{\"pooling_mode\":\"mean\",\"include_prompt\":true}", 0, MSGL_POOL_MEAN, false},
        {"{\"pooling_mode\":\"mean\",\"include_prompt\":false}", 0, MSGL_POOL_MEAN, true},
        {"{\"pooling_mode\":\"cls\",\"include_prompt\":false}", 0, MSGL_POOL_FIRST, true},
        {"{\"pooling_mode\":\"lasttoken\",\"include_prompt\":false}", 0, MSGL_POOL_LAST, false},
        {"{\"pooling_mode_cls_token\":true}", 0, MSGL_POOL_FIRST, false},
        {"{\"pooling_mode\":\"cls\"}", 0, MSGL_POOL_FIRST, false},
        {LAST, 0, MSGL_POOL_LAST, false},
        {"{\"pooling_mode_max_tokens\":true}", MSGL_EUNSUPPORTED, MSGL_POOL_LAST, false},
        {"{\"pooling_mode\":\"mean_tokens\"}", MSGL_EUNSUPPORTED, MSGL_POOL_LAST, false},
        {"{\"pooling_mode_cls_token\":true,\"pooling_mode_mean_tokens\":true}", MSGL_EUNSUPPORTED,
         MSGL_POOL_LAST, false},
    };
    (void)state;
    folder f;
    folder_make(&f);
    folder_add(&f, "1_Pooling");
    folder_write(&f, "modules.json", QWEN3, strlen(QWEN3));
    for (size_t i = 0; i < MSGL_COUNT(modes); i++) {
        msgl_model_pooling got;
        msgl_err err = {0};
        folder_write(&f, "1_Pooling/config.json", modes[i].pooling, strlen(modes[i].pooling));
        const int code = msgl__model_pooling(f.dir, true, &got, &err);
        if (code != modes[i].code || (code == 0 && got.mode != modes[i].mode) ||
            (code == 0 && got.text_form.without_prompt != modes[i].without_prompt) ||
            (code != 0 && strstr(err.text, "allowed: one of lasttoken, cls, mean") == NULL)) {
            fail_msg("%s: %d, %d: %s", modes[i].pooling, code, (int)got.mode, err.text);
        }
    }
    folder_remove(&f);
}

#define MESSAGE(members) "{\"modality_config\":{\"text\":{},\"message\":{" members "}}"
#define FORWARD "\"method\":\"forward\",\"method_output_name\":\"last_hidden_state\""
#define IN_TURNS(more) MESSAGE(FORWARD ",\"format\":\"flat\"") more "}"
#define ARGUMENTS(members) IN_TURNS(",\"processing_kwargs\":{\"chat_template\":{" members "}}")

// What a Transformer makes of a text before the model reads it.
static void test_modalities(void **state)
{
    static const struct {
        const char *config;
        int code;
        msgl_text_form turns;
        const char *text;
    } all[] = {
        {"{}", 0, {0}, NULL},
        {"{\"max_seq_length\":512,\"do_lower_case\":false}", 0, {0}, NULL},
        {"{\"modality_config\":{\"text\":{\"method\":\"forward\"}}}", 0, {0}, NULL},
        {IN_TURNS(""), 0, {.turns = true}, NULL},
        {MESSAGE(FORWARD ",\"format\":\"structured\"") "}",
         0,
         {.turns = true, .parts = true},
         NULL},
        {ARGUMENTS("\"add_generation_prompt\":true"),
         0,
         {.turns = true, .answer_begins = true},
         NULL},
        {ARGUMENTS("\"restore_suffix\":false"), 0, {.turns = true}, NULL},
        {MESSAGE(FORWARD) "}",
         MSGL_EUNSUPPORTED,
         {0},
         "sentence_bert_config.json: modality_config.message.format: found nothing, allowed flat "
         "or structured"},
        {MESSAGE("\"method\":\"get_text_features\"") "}",
         MSGL_EUNSUPPORTED,
         {0},
         "modality_config.message.method: found \"get_text_features\", allowed forward"},
        {MESSAGE("\"method\":\"forward\",\"method_output_name\":\"logits\"") "}",
         MSGL_EUNSUPPORTED,
         {0},
         "modality_config.message.method_output_name: found \"logits\", allowed last_hidden_state"},
        {ARGUMENTS("\"enable_thinking\":false"),
         MSGL_EUNSUPPORTED,
         {0},
         "processing_kwargs.chat_template.enable_thinking: found false, allowed "
         "add_generation_prompt alone"},
        {ARGUMENTS("\"add_generation_prompt\":1"),
         MSGL_EFORMAT,
         {0},
         "processing_kwargs.chat_template.add_generation_prompt: found 1"},
        {"{\"modality_config\":[]}",
         MSGL_EFORMAT,
         {0},
         "modality_config: found a list of 0, allowed an object"},
        {"{\"modality_config\":{\"message\":7}}",
         MSGL_EFORMAT,
         {0},
         "modality_config.message: found 7, allowed an object"},
        {"[", MSGL_EFORMAT, {0}, "sentence_bert_config.json"},
    };
    static const char modules[] =
        "[" MODULE("", OLD "Transformer") "," MODULE("1_Pooling", OLD "Pooling") "]";
    (void)state;
    folder f;
    folder_make(&f);
    folder_add(&f, "1_Pooling");
    folder_write(&f, "modules.json", modules, strlen(modules));
    folder_write(&f, "1_Pooling/config.json", LAST, strlen(LAST));
    for (size_t i = 0; i < MSGL_COUNT(all); i++) {
        msgl_model_pooling got;
        msgl_err err = {0};
        folder_write(&f, "sentence_bert_config.json", all[i].config, strlen(all[i].config));
        const int code = msgl__model_pooling(f.dir, false, &got, &err);
        if (code != all[i].code || (code != 0 && strstr(err.text, all[i].text) == NULL)) {
            fail_msg("%s: %d: %s", all[i].config, code, err.text);
        }
        const msgl_text_form *want = &all[i].turns;
        if (code == 0 &&
            (got.text_form.turns != want->turns || got.text_form.parts != want->parts ||
             got.text_form.answer_begins != want->answer_begins)) {
            fail_msg("%s: %d, %d, %d", all[i].config, got.text_form.turns, got.text_form.parts,
                     got.text_form.answer_begins);
        }
    }
    folder_remove(&f);
}

#define DENSE(more) "{\"in_features\":32,\"out_features\":8" more "}"
#define DENSE_ACT(name) DENSE(",\"activation_function\":\"" name "\"")

// What a Dense module may be, and what it becomes.
static void test_dense(void **state)
{
    static const struct {
        const char *config;
        int code;
        msgl_projection_act act;
        bool bias;
        const char *text;
    } all[] = {
        {DENSE(""), 0, MSGL_PROJECTION_TANH, true, NULL}, // as sentence-transformers has it
        {DENSE_ACT("torch.nn.modules.linear.Identity"), 0, MSGL_PROJECTION_IDENTITY, true, NULL},
        {DENSE_ACT("torch.nn.modules.activation.GELU"), 0, MSGL_PROJECTION_GELU, true, NULL},
        {DENSE_ACT("torch.nn.modules.activation.SiLU"), 0, MSGL_PROJECTION_SILU, true, NULL},
        {DENSE(",\"bias\":false"), 0, MSGL_PROJECTION_TANH, false, NULL},
        {DENSE(",\"module_input_name\":\"sentence_embedding\",\"use_residual\":false"), 0,
         MSGL_PROJECTION_TANH, true, NULL},
        {DENSE_ACT("torch.nn.modules.activation.ReLU"), MSGL_EUNSUPPORTED, 0, false,
         "activation_function: found \"torch.nn.modules.activation.ReLU\", allowed "
         "torch.nn.modules' "
         "Identity, Tanh, GELU, SiLU"},
        {DENSE_ACT("my.Identity"), MSGL_EUNSUPPORTED, 0, false, "activation_function"},
        {DENSE(",\"use_residual\":true"), MSGL_EUNSUPPORTED, 0, false, "use_residual"},
        {DENSE(",\"module_input_name\":\"token_embeddings\""), MSGL_EUNSUPPORTED, 0, false,
         "module_input_name: found \"token_embeddings\", allowed sentence_embedding"},
        {"{\"in_features\":32}", MSGL_EFORMAT, 0, false, "out_features"},
        {"{\"in_features\":0,\"out_features\":8}", MSGL_EFORMAT, 0, false, "in_features"},
        {"{\"in_features\":32,\"out_features\":1e9}", MSGL_EFORMAT, 0, false, "out_features"},
        {"{\"in_features\":32,\"out_features\":1000000000}", MSGL_EFORMAT, 0, false,
         "out_features"},
    };
    static const char modules[] = "[" MODULE("1_Pooling", OLD "Pooling") "," MODULE(
        "2_Dense", OLD "Dense") "," MODULE("3_Normalize", OLD "Normalize") "]";
    (void)state;
    folder f;
    folder_make(&f);
    folder_add(&f, "1_Pooling");
    folder_add(&f, "2_Dense");
    folder_write(&f, "modules.json", modules, strlen(modules));
    folder_write(&f, "1_Pooling/config.json", LAST, strlen(LAST));
    for (size_t i = 0; i < MSGL_COUNT(all); i++) {
        msgl_model_pooling got;
        msgl_projection taken[MSGL_MAX_PROJECTIONS];
        int32_t num = 0;
        msgl_err err = {0};
        folder_write(&f, "2_Dense/config.json", all[i].config, strlen(all[i].config));
        const int code = msgl__model_pooling(f.dir, false, &got, &err);
        if (code != all[i].code || (code != 0 && strstr(err.text, all[i].text) == NULL)) {
            fail_msg("%s: %d: %s", all[i].config, code, err.text);
        }
        if (code != 0) continue;
        assert_int_equal(msgl__model_take_dense(&got, 32, taken, &num, &err), 0);
        assert_int_equal(num, 1);
        assert_int_equal(taken[0].act, all[i].act);
        assert_int_equal(taken[0].bias, all[i].bias);
        assert_int_equal(taken[0].out, 8);
        assert_string_equal(taken[0].file, "2_Dense/model.safetensors");
        assert_int_equal(msgl__model_take_dense(&got, 64, taken, &num, &err), MSGL_EFORMAT);
        assert_non_null(strstr(err.text, "in_features: found 32, allowed 64"));
    }
    folder_remove(&f);
}

// What texts get before them.
static void test_prompts(void **state)
{
    static const char file[] = "config_sentence_transformers.json";
    static const struct {
        const char *text;
        int code, num;
        const char *query, *usual, *error;
    } all[] = {
        {"{}", 0, 0, NULL, NULL, NULL},
        {"{\"prompts\":{\"query\":\"q: \",\"document\":\"\",\"x\":null}}", 0, 2, "q: ", NULL, NULL},
        {"{\"prompts\":{\"query\":\"q: \"},\"default_prompt_name\":\"query\"}", 0, 1,
         "q: ", "q: ", NULL},
        {"{\"prompts\":{\"query\":\"q: \"},\"default_prompt_name\":null}", 0, 1, "q: ", NULL, NULL},
        {"{\"prompts\":{},\"default_prompt_name\":\"query\"}", MSGL_EFORMAT, 0, NULL, NULL,
         "default_prompt_name: found \"query\", allowed: a name in prompts"},
        {"{\"prompts\":{\"query\":7}}", MSGL_EFORMAT, 0, NULL, NULL,
         "prompts: \"query\": allowed: a string of up to 4096 bytes"},
        {"[", MSGL_EFORMAT, 0, NULL, NULL, file},
    };
    (void)state;
    folder f;
    folder_make(&f);
    msgl_text_prompts got;
    msgl_err err = {0};
    assert_int_equal(msgl__text_prompts_load(f.dir, &got, &err), 0); // no such file
    assert_int_equal(got.num, 0);
    for (size_t i = 0; i < MSGL_COUNT(all); i++) {
        folder_write(&f, file, all[i].text, strlen(all[i].text));
        const int code = msgl__text_prompts_load(f.dir, &got, &err);
        if (code != all[i].code || got.num != all[i].num ||
            (code != 0 && strstr(err.text, all[i].error) == NULL)) {
            fail_msg("%s: %d, %d: %s", all[i].text, code, got.num, err.text);
        }
        const char *query = msgl__text_prompt(&got, "query");
        assert_true((query == NULL) == (all[i].query == NULL));
        if (query != NULL) assert_string_equal(query, all[i].query);
        assert_true((got.usual == NULL) == (all[i].usual == NULL));
        if (got.usual != NULL) assert_string_equal(got.usual, all[i].usual);
        msgl__text_prompts_free(&got);
    }
    folder_remove(&f);
}

// Decoders that transformers calls by another name with another head, or none.
static void test_other_heads(void **state)
{
    static const struct {
        const char *name, *key, *value, *arch;
        int code;
        int32_t labels;
    } all[] = {
        {"Qwen3ForSequenceClassification", NULL, NULL, "Qwen3ForCausalLM", 0, 2},
        {"LlamaForSequenceClassification", "id2label", "{\"0\": \"LABEL_0\"}", "LlamaForCausalLM",
         0, 1},
        {"Gemma3TextForSequenceClassification", "num_labels", "7", "Gemma3ForCausalLM", 0, 7},
        {"Qwen3Model", NULL, NULL, "Qwen3ForCausalLM", 0, 0},
        {"MistralModel", NULL, NULL, "MistralForCausalLM", 0, 0},
        {"LlamaForSequenceClassification", "num_labels", "5000", NULL, MSGL_EFORMAT, 0},
        {"LlamaForSequenceClassification", "num_labels", "0", NULL, MSGL_EFORMAT, 0},
        {"ForSequenceClassification", NULL, NULL, NULL, MSGL_EUNSUPPORTED, 0},
        {"TextModel", NULL, NULL, NULL, MSGL_EUNSUPPORTED, 0},
        {"NomicBertForSequenceClassification", NULL, NULL, NULL, MSGL_EUNSUPPORTED, 0},
        {"Gemma3TextModel", "use_bidirectional_attention", "false", NULL, MSGL_EUNSUPPORTED, 0},
        {"Gemma3TextModel", "attn_logit_softcapping", "30", NULL, MSGL_EUNSUPPORTED, 0},
        {"Gemma3TextModel", "sliding_window", "1", NULL, MSGL_EFORMAT, 0},
        {"Gemma3TextModel", "layer_types", "[\"full_attention\"]", NULL, MSGL_EFORMAT, 0},
        {"Gemma3TextModel", "layer_types", "[\"full_attention\", \"chunked\"]", NULL,
         MSGL_EUNSUPPORTED, 0},
    };
    (void)state;
    msgl_model_config *c = malloc(sizeof *c);
    assert_non_null(c);
    for (size_t i = 0; i < MSGL_COUNT(all); i++) {
        msgl_err err = {0};
        folder f;
        folder_make(&f);
        json_t *config = small_config(all[i].name);
        if (all[i].key != NULL) set_field(config, all[i].key, all[i].value);
        folder_write_json(&f, "config.json", config);
        json_decref(config);
        const int code = msgl__model_config_load(f.dir, c, &err);
        folder_remove(&f);
        if (code != all[i].code) fail_msg("%s: %d: %s", all[i].name, code, err.text);
        if (code != 0) continue;
        assert_string_equal(c->arch->name, all[i].arch);
        assert_int_equal(c->num_labels, all[i].labels);
        assert_int_equal(c->num_projections, all[i].labels > 0);
        if (c->num_projections > 0) assert_int_equal(c->projections[0].out, all[i].labels);
    }
    free(c);
}

static void test_no_folder(void **state)
{
    (void)state;
    msgl_model_pooling got = {.kind = MSGL_POOL_EMBED};
    msgl_err err;
    assert_int_equal(msgl__model_pooling("/dev/null", false, &got, &err), 0); // as a .gguf file
    assert_int_equal(got.kind, MSGL_POOL_NONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folders),    cmocka_unit_test(test_modes),
        cmocka_unit_test(test_modalities), cmocka_unit_test(test_dense),
        cmocka_unit_test(test_prompts),    cmocka_unit_test(test_other_heads),
        cmocka_unit_test(test_no_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
