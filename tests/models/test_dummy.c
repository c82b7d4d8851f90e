// SPDX-License-Identifier: Apache-2.0
//
// Packed weights that are made up: their tensors have the form that config.json names, their values
// are finite and about normal with deviation 0.02, and modules that are left out stay plain.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "models/dummy_checkpoint.h"
#include "models/dummy_scheme.h"
#include "models/folder.h"

enum { ROWS = 192, COLS = 768, EXPERTS = 3, LAYERS = 8 };

#define COMPRESSED(format, weights)                                                                \
    "{\"quant_method\": \"compressed-tensors\", \"format\": \"" format                             \
    "\", \"ignore\": [\"lm_head\"], \"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], " \
    "\"weights\": {" weights "}}}}"
#define GPTQ(more) "{\"quant_method\": \"gptq\", \"group_size\": 128, " more "}"
#define GGUF(type) "{\"quant_method\": \"gguf\", \"file_type\": \"" type "\"}"
#define MODELOPT(algorithm)                                                                        \
    "{\"quant_method\": \"modelopt\", \"quant_algo\": \"" algorithm "\", \"exclude_modules\": "    \
    "[\"lm_head\"]}"

// A model of one matrix of each kind. What it is called by decides what becomes of it.
typedef struct tiny {
    folder f;
    msgl_kernels k;
    msgl_weight embed, head, router, q, down;
    msgl_weight_plan p;
    msgl_checkpoint *c;
} tiny;

static void plan(tiny *t, msgl_weight *w, const char *name)
{
    msgl__plan_weight(&t->p, w, ROWS, COLS);
    msgl__plan_rows(&t->p, w, 0, ROWS, "%s", name);
}

static int make(tiny *t, const char *quantization, msgl_err *err)
{
    json_t *config = small_config("LlamaForCausalLM");
    *t = (tiny){0};
    set_field(config, "quantization_config", quantization);
    folder_make(&t->f);
    folder_write_json(&t->f, "config.json", config);
    json_decref(config);
    msgl__kernels_init_cpu(&t->k, MSGL_CPU_REF);
    const msgl_weight_formats formats = {.kernels = &t->k.gemm,
                                         .dtype = MSGL_BF16,
                                         .converted = &t->k.gemm.formats[MSGL_W_BF16],
                                         .keeps = true};
    msgl__weight_plan_init(&t->p, &formats, err);
    plan(t, &t->embed, "model.embed_tokens.weight");
    plan(t, &t->head, "lm_head.weight");
    msgl__plan_exact_weight(&t->p, &t->router, ROWS, COLS);
    msgl__plan_rows(&t->p, &t->router, 0, ROWS, "model.layers.0.mlp.shared_expert_gate.weight");
    plan(t, &t->q, "model.layers.0.self_attn.q_proj.weight");
    plan(t, &t->down, "model.layers.5.mlp.down_proj.weight");
    assert_int_equal(t->p.status, 0);
    return msgl__dummy_checkpoint(&t->p, t->f.dir, LAYERS, &t->embed, &t->head, &t->c, err);
}

static void end(tiny *t)
{
    msgl__checkpoint_close(t->c);
    msgl__weight_plan_free(&t->p);
    folder_remove(&t->f);
}

static const msgl_tensor *tensor_of(const tiny *t, const char *name)
{
    const msgl_tensor *found = msgl__checkpoint_find(t->c, name);
    if (found == NULL) fail_msg("%s: missing", name);
    return found;
}

// Of a normal distribution 68.3 % are within one deviation, 4.6 % beyond two; codes are coarse.
static void check_values(const char *what, const msgl_tensor *t)
{
    float row[COLS];
    double sum = 0, squares = 0;
    int within = 0, beyond = 0, n = 0;
    msgl_packed p = {.how = &t->packing, .data = t->data, .rows = 1, .cols = COLS};
    for (int32_t i = 0; i + 1 < t->ndim; i++) p.rows *= (size_t)t->dims[i];
    assert_int_equal(t->dims[t->ndim - 1], COLS);
    for (size_t r = 0; r < p.rows; r++) {
        t->packing.form->expand(&p, r, 0, COLS, row);
        for (int i = 0; i < COLS; i++, n++) {
            if (!isfinite(row[i])) fail_msg("%s: row %zu, column %d: %g", what, r, i, row[i]);
            sum += row[i], squares += (double)row[i] * row[i];
            within += fabsf(row[i])<0.02f, beyond += fabsf(row[i])> 0.04f;
        }
    }
    const double mean = sum / n, deviation = sqrt(squares / n - mean * mean);
    print_message("%s: mean %.5f, deviation %.5f, within one %.3f, beyond two %.3f\n", what, mean,
                  deviation, (double)within / n, (double)beyond / n);
    assert_true(fabs(mean) < 0.0005 && fabs(deviation - 0.02) < 0.001);
    assert_true(within > 0.6 * n && within < 0.76 * n);
    assert_true(beyond > 0.02 * n && beyond < 0.08 * n);
}

// bytes: of the matrix, and of all that stands beside it, whether it is read or not.
static const struct {
    const char *config, *form;
    size_t bytes, beside;
} FORMS[] = {
    {"{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 128}", "AWQ", ROWS *COLS / 2,
     ROWS * 6 / 2 + ROWS * 6 * 2},
    {GPTQ("\"bits\": 4"), "GPTQ", ROWS *COLS / 2, ROWS * 6 / 2 + ROWS * 6 * 2},
    {GPTQ("\"bits\": 8, \"sym\": false"), "GPTQ", ROWS *COLS, ROWS * 6 + ROWS * 6 * 2},
    {GPTQ("\"bits\": 4, \"sym\": false, \"desc_act\": true, \"checkpoint_format\": \"gptq_v2\""),
     "GPTQ", ROWS *COLS / 2, ROWS * 6 / 2 + ROWS * 6 * 2 + COLS * 4},
    {"{\"quant_method\": \"auto-round\", \"bits\": 4, \"group_size\": 128, \"packing_format\": "
     "\"auto_round:auto_gptq\"}",
     "GPTQ", ROWS *COLS / 2, ROWS * 6 / 2 + ROWS * 6 * 2},
    {COMPRESSED("pack-quantized", "\"num_bits\": 4, \"strategy\": \"group\", \"group_size\": 32"),
     "pack-quantized", ROWS *COLS / 2, ROWS * 24 * 2 + 16},
    {COMPRESSED("pack-quantized", "\"num_bits\": 4, \"strategy\": \"group\", \"group_size\": 128, "
                                  "\"symmetric\": false, \"actorder\": \"group\""),
     "pack-quantized", ROWS *COLS / 2, ROWS * 6 * 2 + 16 + ROWS * 6 / 2 + COLS * 4},
    {COMPRESSED("pack-quantized", "\"num_bits\": 8, \"strategy\": \"channel\""), "pack-quantized",
     ROWS *COLS, ROWS * 2 + 16},
    {COMPRESSED("int-quantized", "\"num_bits\": 8, \"strategy\": \"channel\""), "INT8", ROWS *COLS,
     ROWS * 2},
    {COMPRESSED("float-quantized", "\"num_bits\": 8, \"type\": \"float\", \"strategy\": "
                                   "\"channel\""),
     "FP8", ROWS *COLS, ROWS * 2},
    {COMPRESSED("float-quantized", "\"num_bits\": 8, \"type\": \"float\", \"strategy\": "
                                   "\"tensor\""),
     "FP8", ROWS *COLS, 2},
    {COMPRESSED("nvfp4-pack-quantized", "\"num_bits\": 4, \"type\": \"float\", \"strategy\": "
                                        "\"tensor_group\", \"group_size\": 16"),
     "NVFP4", ROWS *COLS / 2, ROWS * 48 + 4},
    {COMPRESSED("mxfp4-pack-quantized", "\"num_bits\": 4, \"type\": \"float\", \"strategy\": "
                                        "\"group\", \"group_size\": 32"),
     "MXFP4", ROWS *COLS / 2, ROWS * 24},
    {COMPRESSED("mxfp8-quantized", "\"num_bits\": 8, \"type\": \"float\", \"strategy\": "
                                   "\"group\", \"group_size\": 32"),
     "MXFP8", ROWS *COLS, ROWS * 24},
    {"{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}", "FP8", ROWS *COLS,
     2 * 6 * 2},
    {"{\"quant_method\": \"fp8\"}", "FP8", ROWS *COLS, 4},
    {"{\"quant_method\": \"fbgemm_fp8\"}", "FP8", ROWS *COLS, ROWS * 4},
    {MODELOPT("FP8"), "FP8", ROWS *COLS, 4},
    {MODELOPT("FP8_PB_WO"), "FP8", ROWS *COLS, 2 * 6 * 4},
    {MODELOPT("NVFP4"), "NVFP4", ROWS *COLS / 2, ROWS * 48 + 4},
};

static void test_forms(void **state)
{
    (void)state;
    for (size_t i = 0; i < MSGL_COUNT(FORMS); i++) {
        msgl_err err = {0};
        tiny t;
        if (make(&t, FORMS[i].config, &err) != 0) fail_msg("%s: %s", FORMS[i].config, err.text);
        const msgl_tensor *q = tensor_of(&t, "model.layers.0.self_attn.q_proj.weight");
        const msgl_tensor *down = tensor_of(&t, "model.layers.5.mlp.down_proj.weight");
        assert_int_equal(msgl__weights_check(&t.p, t.c, &err), 0);
        assert_string_equal(q->packed, FORMS[i].form);
        assert_int_equal(q->bytes, FORMS[i].bytes);
        assert_int_equal(q->beside, FORMS[i].beside);
        assert_ptr_equal(q->data, down->data); // of one shape
        check_values(FORMS[i].config, q);
        static const char *const plain[] = {"model.embed_tokens.weight", "lm_head.weight",
                                            "model.layers.0.mlp.shared_expert_gate.weight"};
        for (size_t k = 0; k < MSGL_COUNT(plain); k++) {
            assert_null(tensor_of(&t, plain[k])->packing.form);
        }
        end(&t);
    }
}

// The types that llama.cpp gives these: layer 5 of 8 is not one of the first, the last or every
// third from the second eighth on (3, 6), layer 6 is.
static void test_ggml(void **state)
{
    (void)state;
    static const struct {
        const char *config, *q, *down, *head, *embed;
    } files[] = {{GGUF("Q4_K_M"), "Q4_K", "Q4_K", "Q6_K", "Q4_K"},
                 {GGUF("Q6_K"), "Q6_K", "Q6_K", "Q6_K", "Q6_K"},
                 {GGUF("q8_0"), "Q8_0", "Q8_0", "Q8_0", "Q8_0"},
                 {GGUF("Q4_0"), "Q4_0", "Q4_0", "Q6_K", "Q4_0"}};
    for (size_t i = 0; i < MSGL_COUNT(files); i++) {
        msgl_err err = {0};
        tiny t;
        if (make(&t, files[i].config, &err) != 0) fail_msg("%s", err.text);
        const msgl_tensor *q = tensor_of(&t, "model.layers.0.self_attn.q_proj.weight");
        assert_int_equal(msgl__weights_check(&t.p, t.c, &err), 0);
        assert_string_equal(q->type, files[i].q);
        assert_string_equal(tensor_of(&t, "lm_head.weight")->type, files[i].head);
        assert_string_equal(tensor_of(&t, "model.embed_tokens.weight")->type, files[i].embed);
        assert_string_equal(tensor_of(&t, "model.layers.5.mlp.down_proj.weight")->type,
                            files[i].down);
        assert_null(tensor_of(&t, "model.layers.0.mlp.shared_expert_gate.weight")->packing.form);
        check_values(files[i].config, q);
        check_values("lm_head", tensor_of(&t, "lm_head.weight"));
        end(&t);
    }
    const char *const down = "model.layers.6.mlp.down_proj", *const v = "layers.6.self_attn.v_proj";
    static const bool more[LAYERS] = {true, false, false, true, false, false, true, true};
    for (int32_t l = 0; l < LAYERS; l++) {
        const msgl_blocks *want = more[l] ? &msgl__blocks_q6_k : &msgl__blocks_q4_k;
        assert_ptr_equal(msgl__dummy_ggml_blocks("Q4_K_M", down, l, LAYERS), want);
        assert_ptr_equal(msgl__dummy_ggml_blocks("Q4_K_M", v, l, LAYERS), want);
        assert_ptr_equal(msgl__dummy_ggml_blocks("Q4_K_M", "layers.6.self_attn.k_proj", l, LAYERS),
                         &msgl__blocks_q4_k);
    }
}

// gpt-oss's experts are one tensor; nothing else is packed.
static void test_experts(void **state)
{
    (void)state;
    msgl_err err = {0};
    tiny t;
    msgl_weight w[EXPERTS];
    assert_int_equal(make(&t, NULL, &err), 0);
    assert_null(t.c); // nothing is packed
    for (int32_t e = 0; e < EXPERTS; e++) {
        msgl__plan_weight(&t.p, &w[e], ROWS, COLS);
        msgl__plan_rows(&t.p, &w[e], 0, ROWS, "model.layers.0.mlp.experts.down_proj");
        msgl__plan_expert(&t.p, EXPERTS, e, true);
    }
    static const char *const configs[] = {
        "{\"quantization_config\": {\"quant_method\": \"mxfp4\"}}",
        "{\"quantization_config\": {\"quant_method\": \"fp8\"}}"};
    for (int i = 0; i < 2; i++) {
        folder_write(&t.f, "config.json", configs[i], strlen(configs[i]));
        const int rc = msgl__dummy_checkpoint(&t.p, t.f.dir, LAYERS, &t.embed, &t.head, &t.c, &err);
        if (i == 1) {
            assert_int_equal(rc, MSGL_EUNSUPPORTED);
            assert_non_null(strstr(err.text, "experts in one tensor"));
            continue;
        }
        if (rc != 0) fail_msg("%s", err.text);
        assert_int_equal(msgl__weights_check(&t.p, t.c, &err), 0);
        const msgl_tensor *all = tensor_of(&t, "model.layers.0.mlp.experts.down_proj");
        assert_int_equal(all->ndim, 3);
        assert_int_equal(all->bytes, EXPERTS * ROWS * COLS / 2);
        assert_int_equal(all->beside, EXPERTS * ROWS * COLS / 32);
        check_values("experts", all);
        assert_null(tensor_of(&t, "model.layers.5.mlp.down_proj.weight")->packing.form);
        msgl__checkpoint_close(t.c);
        t.c = NULL;
    }
    end(&t);
}

static size_t bytes_of_codes(const msgl_wformat *f, int n, int k)
{
    (void)f;
    return (size_t)n * (size_t)k;
}

static bool keep_codes(const msgl_blocks *b, int k, bool exact, msgl_wformat *out)
{
    (void)k, (void)exact;
    *out = (msgl_wformat){.id = MSGL_W_CODES, .packed_size = bytes_of_codes, .blocks = b};
    return true;
}

// q, k and v of blocks of 128 x 128 are one weight whose rows share scales, unless rows move from
// block to block.
static void test_rows_that_share_scales(void **state)
{
    (void)state;
    static const struct {
        int32_t head, pairs, together, parts;
    } cases[] = {{128, 0, 128, 0}, {128, 64, 128, 0}, {64, 16, 128, 0}, {256, 64, 0, 2}};
    static const char *const names[] = {"q", "k", "v"};
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        enum { EACH = 256 };
        msgl_err err = {0};
        tiny t;
        msgl_weight qkv;
        assert_int_equal(make(&t, NULL, &err), 0);
        msgl__plan_weight(&t.p, &qkv, 3 * EACH, COLS);
        for (int32_t j = 0; j < 3; j++) {
            msgl__plan_rows(&t.p, &qkv, j * EACH, EACH, "model.layers.0.self_attn.%s_proj.weight",
                            names[j]);
            if (j < 2) msgl__plan_pairs(&t.p, cases[i].head, 0, cases[i].pairs);
        }
        const char *const config = "{\"quantization_config\": {\"quant_method\": \"fp8\", "
                                   "\"weight_block_size\": [128, 128]}}";
        folder_write(&t.f, "config.json", config, strlen(config));
        t.k.gemm.keep = keep_codes;
        if (msgl__dummy_checkpoint(&t.p, t.f.dir, LAYERS, &t.embed, &t.head, &t.c, &err) != 0 ||
            msgl__weights_keep(&t.p, t.c, &err) != 0) {
            fail_msg("%s", err.text);
        }
        assert_int_equal(qkv.num_parts, cases[i].parts);
        const msgl_weight *q = qkv.num_parts > 0 ? qkv.parts : &qkv;
        assert_int_equal(q->format->blocks->codes->rows, cases[i].together);
        end(&t);
    }
}

static void test_left_out(void **state)
{
    (void)state;
    static const char GATE[] = "model.layers.10.mlp.gate";
    static const struct {
        const char *config, *module;
        bool skipped;
    } cases[] = {
        {"{\"quant_method\": \"awq\", \"modules_to_not_convert\": [\"gate\"]}", GATE, true},
        {"{\"quant_method\": \"awq\", \"modules_to_not_convert\": [\"gate\"]}",
         "model.layers.10.mlp.gate_proj", false},
        {"{\"quant_method\": \"awq\", \"modules_to_not_convert\": [\"mlp\"]}", GATE, true},
        {"{\"quant_method\": \"fp8\", \"modules_to_not_convert\": [\"model.layers.1\"]}", GATE,
         false},
        {"{\"quant_method\": \"fp8\", \"modules_to_not_convert\": [\"model.layers.*.mlp\"]}", GATE,
         true},
        {"{\"quant_method\": \"fp8\", \"ignored_layers\": [\"model.layers.10.mlp.gate\"]}", GATE,
         true},
        {"{\"quant_method\": \"modelopt\", \"quant_algo\": \"FP8\", \"exclude_modules\": "
         "[\"model.layers.1*\"]}",
         GATE, true},
        {COMPRESSED("int-quantized", "\"num_bits\": 8"), "lm_head", true},
        {COMPRESSED("int-quantized", "\"num_bits\": 8"), GATE, false},
        {"{\"quant_method\": \"compressed-tensors\", \"format\": \"int-quantized\", \"ignore\": "
         "[\"re:.*mlp.gate$\"], \"config_groups\": {\"a\": {\"weights\": {\"num_bits\": 8}}}}",
         GATE, true},
        {"{\"quant_method\": \"compressed-tensors\", \"format\": \"int-quantized\", \"ignore\": "
         "[\"re:gate$\"], \"config_groups\": {\"a\": {\"weights\": {\"num_bits\": 8}}}}",
         GATE, false}, // from the beginning on
        {"{\"quant_method\": \"compressed-tensors\", \"format\": \"int-quantized\", "
         "\"config_groups\": {\"a\": {\"targets\": [\"re:.*self_attn.*\"], \"weights\": "
         "{\"num_bits\": 8}}}}",
         GATE, true},
        {GPTQ("\"bits\": 4, \"dynamic\": {\"-:.*\\\\.gate$\": {}}"), GATE, true},
        {GPTQ("\"bits\": 4, \"dynamic\": {\"+:.*\\\\.gate$\": {}}"), GATE, false},
    };
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        folder f;
        msgl_dummy_scheme s;
        msgl_err err = {0};
        json_t *config = small_config("LlamaForCausalLM");
        set_field(config, "quantization_config", cases[i].config);
        folder_make(&f);
        folder_write_json(&f, "config.json", config);
        json_decref(config);
        if (msgl__dummy_scheme_load(f.dir, &s, &err) != 0) fail_msg("%s", err.text);
        if (msgl__dummy_scheme_skips(&s, cases[i].module) != cases[i].skipped) {
            fail_msg("%s: %s", cases[i].config, cases[i].module);
        }
        msgl__dummy_scheme_free(&s);
        folder_remove(&f);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"{\"quant_method\": \"hqq\"}", "quant_method: found \"hqq\", allowed fp8"},
        {GPTQ("\"bits\": 3"), "bits: found 3, allowed 4 or 8"},
        {GGUF("Q5_K_M"), "file_type: found \"Q5_K_M\", allowed Q4_0, Q8_0, Q6_K or Q4_K_M"},
        {"{\"quant_method\": \"awq\", \"version\": \"gemv\"}", "version: found \"gemv\", allowed"},
        {COMPRESSED("int-quantized", "\"num_bits\": 4"), "num_bits: found 4, allowed 8"},
        {COMPRESSED("pack-quantized", "\"num_bits\": 4, \"strategy\": \"tensor\""),
         "strategy: found \"tensor\", allowed channel or group"},
        {"{\"quant_method\": \"compressed-tensors\", \"format\": \"int-quantized\"}",
         "config_groups: found nothing, allowed one"},
        {MODELOPT("MIXED_PRECISION"), "quant_algo: found \"MIXED_PRECISION\", allowed FP8,"},
        {"{\"quant_method\": \"auto-round\", \"bits\": 4, \"packing_format\": "
         "\"auto_round:llm_compressor\", \"data_type\": \"mx_fp\"}",
         "packing_format: found"},
        {"{\"quant_method\": \"awq\", \"group_size\": 1000000, \"modules_to_not_convert\": 3}",
         NULL},
    };
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        msgl_err err = {0};
        tiny t;
        const int rc = make(&t, cases[i][0], &err);
        if (cases[i][1] == NULL) {
            assert_int_equal(rc, 0); // a group of more columns than there are is all of them
        } else if (rc != MSGL_EUNSUPPORTED || strstr(err.text, cases[i][1]) == NULL) {
            fail_msg("%s: %d, %s", cases[i][0], rc, err.text);
        }
        end(&t);
    }
}

// Every allocation may fail: that is an error then, and nothing else.
static void test_no_memory(void **state)
{
    (void)state;
    msgl_err err = {0};
    tiny t;
    int rc = MSGL_ENOMEM, failed = 0;
    if (make(&t, GPTQ("\"bits\": 4, \"desc_act\": true"), &err) != 0) fail_msg("%s", err.text);
    for (uint64_t nth = 1; rc != 0; nth++, failed++) {
        msgl__checkpoint_close(t.c);
        t.c = NULL;
        msgl__mem_fail_from(nth);
        rc = msgl__dummy_checkpoint(&t.p, t.f.dir, LAYERS, &t.embed, &t.head, &t.c, &err);
        msgl__mem_fail_from(0);
        if (rc != 0) assert_int_equal(rc, MSGL_ENOMEM);
        if (rc != 0) assert_null(t.c);
    }
    assert_true(failed > 20);
    end(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),     cmocka_unit_test(test_ggml),
        cmocka_unit_test(test_experts),   cmocka_unit_test(test_rows_that_share_scales),
        cmocka_unit_test(test_left_out),  cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
