// SPDX-License-Identifier: Apache-2.0
#include "models/quantization.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/attributes.h"
#include "utils/file.h"
#include "utils/json.h"

enum { CONFIG_MAX_BYTES = 16 << 20, PATH_BYTES = 4096 };

// The member is one of the words, or absent where `usual` is one of them.
static const char *word(msgl_json_reader *r, const char *key, const char *usual,
                        const char *const *words, size_t n, const char *allowed)
{
    const char *found = msgl__json_str_or(r, key, usual);
    for (size_t i = 0; found != NULL && i < n; i++) {
        if (strcasecmp(found, words[i]) == 0) return words[i];
    }
    msgl__json_reject(r, MSGL_EUNSUPPORTED, key, msgl__json_get(r, key), allowed);
    return "";
}

static void read_block(msgl_json_reader *r, const char *key, msgl_quantization *q)
{
    const json_t *size = msgl__json_get(r, key);
    if (size == NULL) return;
    bool good = json_array_size(size) == 2;
    if (json_is_string(size)) { // "128x128"
        char *end;
        q->block[0] = strtol(json_string_value(size), &end, 10);
        q->block[1] = *end == 'x' ? strtol(end + 1, &end, 10) : 0;
        good = *end == '\0' && q->block[0] > 0 && q->block[1] > 0 && q->block[0] < 1 << 24 &&
               q->block[1] < 1 << 24;
    }
    for (size_t i = 0; i < 2 && good && json_is_array(size); i++) {
        const json_t *n = json_array_get(size, i);
        q->block[i] = json_integer_value(n);
        good = json_is_integer(n) && q->block[i] > 0 && q->block[i] < 1 << 24;
    }
    if (!good) msgl__json_reject(r, MSGL_EUNSUPPORTED, key, size, "two integers, as [128, 128]");
}

static void read_group(msgl_json_reader *r, const char *key, msgl_quantization *q)
{
    q->group = msgl__json_int_or(r, key, -1, 1 << 24, 128);
    if (q->group != 0) return;
    msgl__json_reject(r, MSGL_EFORMAT, key, msgl__json_get(r, key), "-1 or an integer from 1 on");
}

static void read_fp8(msgl_json_reader *r, msgl_quantization *q)
{
    static const char *const formats[] = {"e4m3", "float8_e4m3fn"};
    static const char *const schemes[] = {"dynamic", "static"};
    word(r, "fmt", "e4m3", formats, MSGL_COUNT(formats), "e4m3");
    // Activations are not quantised here: scales for them say nothing.
    word(r, "activation_scheme", "dynamic", schemes, MSGL_COUNT(schemes), "dynamic or static");
    read_block(r, "weight_block_size", q);
}

// One of the modules' own settings: bits and group are what the module's shapes say they are.
static void read_override(msgl_json_reader *r, const char *key, const json_t *own,
                          msgl_quantization *q)
{
    static const char *const others[] = {"checkpoint_format", "format", "method", "quant_method"};
    if (!json_is_object(own)) return; // "-:PATTERN": modules that are not packed
    if (json_is_false(json_object_get(own, "sym"))) q->symmetric = false;
    if (json_is_true(json_object_get(own, "desc_act"))) q->ordered = true;
    for (size_t i = 0; i < MSGL_COUNT(others); i++) {
        const json_t *form = json_object_get(own, others[i]);
        if (form == NULL || json_is_null(form)) continue;
        msgl__json_reject(r, MSGL_EUNSUPPORTED, key, form,
                          "modules that differ in bits, group_size, sym and desc_act alone");
        return;
    }
}

// `key`: an object of them by patterns of modules' names, which need no reader.
static void read_overrides(msgl_json_reader *r, const char *key, msgl_quantization *q)
{
    const json_t *all = msgl__json_get(r, key);
    const char *pattern;
    json_t *own;
    q->mixed = q->mixed || json_object_size(all) > 0;
    json_object_foreach((json_t *)all, pattern, own) read_override(r, key, own, q);
}

static void read_gptq(msgl_json_reader *r, msgl_quantization *q)
{
    static const char *const formats[] = {"gptq", "gptq_v2"};
    q->method = MSGL_QUANT_GPTQ;
    q->may_have = 1u << 2 | 1u << 3 | 1u << 4 | 1u << 8;
    q->bits = msgl__json_int(r, "bits", 2, 8);
    read_group(r, "group_size", q);
    if (r->status == 0 && (q->may_have >> q->bits & 1) == 0) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "bits", msgl__json_get(r, "bits"), "2, 3, 4 or 8");
    }
    const char *format =
        word(r, "checkpoint_format", "gptq", formats, MSGL_COUNT(formats), "gptq or gptq_v2");
    q->zeros = strcmp(format, "gptq_v2") == 0 ? MSGL_ZEROS_PLAIN : MSGL_ZEROS_WORDS_LESS;
    q->symmetric = msgl__json_bool_or(r, "sym", true);
    q->ordered = msgl__json_bool_or(r, "desc_act", false);
    read_overrides(r, "dynamic", q);
}

static void read_awq(msgl_json_reader *r, msgl_quantization *q)
{
    static const char *const versions[] = {"gemm", "gemv"};
    q->method = MSGL_QUANT_AWQ;
    read_group(r, msgl__json_get(r, "q_group_size") != NULL ? "q_group_size" : "group_size", q);
    msgl__json_int_or(r, msgl__json_get(r, "w_bit") != NULL ? "w_bit" : "bits", 4, 4, 4);
    q->by_rows = strcmp(word(r, "version", "gemm", versions, MSGL_COUNT(versions), "gemm or gemv"),
                        "gemv") == 0;
}

// AutoRound names the layout that it has from elsewhere. Its packing_format without a layout is
// what it calls auto_round:gptqmodel, and transformers takes an absent one for auto_round:gptq.
static void read_auto_round(msgl_json_reader *r, msgl_quantization *q)
{
    static const struct {
        const char *format;
        msgl_quant_method method;
        msgl_stored_zeros zeros;
    } LAYOUTS[] = {
        {"auto_round:auto_gptq", MSGL_QUANT_GPTQ, MSGL_ZEROS_EACH_LESS},
        {"auto_round:gptq", MSGL_QUANT_GPTQ, MSGL_ZEROS_EACH_LESS},
        {"auto", MSGL_QUANT_GPTQ, MSGL_ZEROS_EACH_LESS},
        {"auto_round", MSGL_QUANT_GPTQ, MSGL_ZEROS_PLAIN},
        {"auto_round:gptqmodel", MSGL_QUANT_GPTQ, MSGL_ZEROS_PLAIN},
        {"auto_round:auto_awq", MSGL_QUANT_AWQ, MSGL_ZEROS_PLAIN},
        {"auto_round:awq", MSGL_QUANT_AWQ, MSGL_ZEROS_PLAIN},
        {"auto_round:llm_compressor", MSGL_QUANT_OTHER, MSGL_ZEROS_PLAIN},
        {"auto_round:fp8_static", MSGL_QUANT_OTHER, MSGL_ZEROS_PLAIN},
        {"auto_round:fp8", MSGL_QUANT_OTHER, MSGL_ZEROS_PLAIN},
        {"auto_round:fake", MSGL_QUANT_OTHER, MSGL_ZEROS_PLAIN},
    };
    static const char *const rotations[] = {"rotation_config", "spinquant_config"};
    const char *format = msgl__json_str_or(r, "packing_format", "auto_round:gptq");
    size_t i = 0;
    while (i < MSGL_COUNT(LAYOUTS) && strcmp(format, LAYOUTS[i].format) != 0) i++;
    if (i == MSGL_COUNT(LAYOUTS)) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "packing_format",
                          msgl__json_get(r, "packing_format"),
                          "auto_round, or auto_round: and auto_gptq, gptq, gptqmodel, auto_awq, "
                          "awq, llm_compressor, fp8_static, fp8 or fake");
        return;
    }
    q->method = LAYOUTS[i].method;
    q->zeros = LAYOUTS[i].zeros;
    for (size_t k = 0; k < MSGL_COUNT(rotations); k++) {
        const json_t *rotation = msgl__json_get(r, rotations[k]);
        if (rotation == NULL || (json_is_object(rotation) && json_object_size(rotation) == 0)) {
            continue;
        }
        msgl__json_reject(r, MSGL_EUNSUPPORTED, rotations[k], rotation,
                          "none: weights that were rotated need activations that are");
    }
    const char *type = msgl__json_str_or(r, "data_type", "int");
    const bool integers = strcmp(type, "int") == 0 || strncmp(type, "int_", 4) == 0;
    // Codes of mx_int lie as those of mx_fp do, and stand for other values.
    if (q->method == MSGL_QUANT_OTHER ? strncmp(type, "mx_int", 6) == 0 : !integers) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "data_type", msgl__json_get(r, "data_type"),
                          q->method == MSGL_QUANT_OTHER ? "mx_fp, nv_fp, fp8 or int" : "int");
    }
    if (q->method == MSGL_QUANT_OTHER) return;
    q->may_have = MSGL_BITS_2_TO_8;
    q->bits = msgl__json_int(r, "bits", 2, 8);
    read_group(r, "group_size", q);
    msgl__json_int_or(r, "act_bits", 9, 32, 16); // of 8, weights have a second scale
    read_overrides(r, "extra_config", q);
    if (q->method == MSGL_QUANT_AWQ) msgl__json_int(r, "bits", 4, 4);
}

// One of the config_groups.
static void read_scheme(msgl_json_reader *r, const char *name, const json_t *group,
                        msgl_quantization *q)
{
    const json_t *weights = json_object_get(group, "weights");
    if (weights == NULL || json_is_null(weights)) return; // activations alone
    if (!json_is_object(weights) || q->num_schemes == MSGL_MAX_SCHEMES) {
        msgl__json_reject(r, MSGL_EFORMAT, name, weights, "up to 16 groups with an object weights");
        return;
    }
    msgl_json_reader sub = *r;
    sub.section = "quantization_config.config_groups.weights";
    sub.obj = weights;
    const int32_t bits = msgl__json_int(&sub, "num_bits", 1, 16);
    read_block(&sub, "block_structure", q);
    if (strcmp(msgl__json_str_or(&sub, "type", "int"), "int") == 0) {
        q->schemes[q->num_schemes++] = bits;
    }
    r->status = sub.status;
}

static void read_compressed(msgl_json_reader *r, msgl_quantization *q)
{
    static const char *const formats[] = {
        "dense",          "int-quantized",        "float-quantized",      "naive-quantized",
        "pack-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized",
        "mixed-precision"};
    word(r, "format", "mixed-precision", formats, MSGL_COUNT(formats),
         "int-, float-, naive- or pack-quantized, nvfp4- or mxfp4-pack-quantized, mxfp8-quantized, "
         "mixed-precision or dense");
    const char *release = msgl__json_str_or(r, "version", "");
    char *end;
    const long major = strtol(release, &end, 10),
               minor = *end == '.' ? strtol(end + 1, NULL, 10) : 0;
    if (end != release && major >= 0 && major < 1000 && minor >= 0 && minor < 1000) {
        q->release = (int32_t)(major * 1000 + minor);
    }
    const json_t *transforms = msgl__json_get(r, "transform_config");
    if (json_object_size(json_object_get(transforms, "config_groups")) > 0) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "transform_config", transforms,
                          "none: weights that were rotated need activations that are");
    }
    const json_t *groups = msgl__json_get(r, "config_groups");
    const char *name;
    json_t *group;
    json_object_foreach((json_t *)groups, name, group) read_scheme(r, name, group, q);
}

// ModelOpt writes its object into config.json, or one level deeper.
static void read_modelopt(msgl_json_reader *r, msgl_quantization *q)
{
    static const char *const algorithms[] = {"FP8",
                                             "FP8_PER_CHANNEL_PER_TOKEN",
                                             "FP8_PB_WO",
                                             "NVFP4",
                                             "W4A16_NVFP4",
                                             "MXFP8",
                                             "MIXED_PRECISION"};
    (void)q;
    const json_t *inner = msgl__json_get(r, "quantization");
    msgl_json_reader sub = *r;
    if (json_is_object(inner)) sub.obj = inner;
    word(&sub, "quant_algo", NULL, algorithms, MSGL_COUNT(algorithms),
         "FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO, NVFP4, W4A16_NVFP4, MXFP8 or MIXED_PRECISION");
    r->status = sub.status;
}

static void read_nothing(msgl_json_reader *r, msgl_quantization *q)
{
    (void)r;
    (void)q;
}

static const struct {
    const char *name; // quant_method
    void (*read)(msgl_json_reader *r, msgl_quantization *q);
} METHODS[] = {
    {"fp8", read_fp8},
    {"fbgemm_fp8", read_nothing},
    {"mxfp4", read_nothing},
    {"awq", read_awq},
    {"gptq", read_gptq},
    {"auto-round", read_auto_round},
    {"compressed-tensors", read_compressed},
    {"modelopt", read_modelopt},
    {"modelopt_fp4", read_modelopt},
    {"bitsandbytes", read_nothing},
    {"hqq", read_nothing},
    {"torchao", read_nothing},
    {"gguf", read_nothing}, // of weights that are made up (models/dummy_scheme.h); files say it
};

// MLX names no method. Modules that differ in bits say so by their shapes.
static void read_mlx(msgl_json_reader *r, msgl_quantization *q)
{
    static const char *const modes[] = {"affine"};
    q->method = MSGL_QUANT_MLX;
    q->group = msgl__json_int(r, "group_size", 1, 1 << 24);
    word(r, "mode", "affine", modes, MSGL_COUNT(modes), "affine");
}

const json_t *msgl__quantization_given(msgl_json_reader *r)
{
    const json_t *given = msgl__json_get(r, "quantization_config");
    if (given == NULL) given = msgl__json_get(r, "compression_config");
    if (given == NULL) given = msgl__json_get(r, "quantization");
    return given;
}

void msgl__quantization_read(msgl_json_reader *r, msgl_quantization *q)
{
    *q = (msgl_quantization){.block = {128, 128}};
    const json_t *given = msgl__quantization_given(r);
    if (given == NULL) return;
    if (!json_is_object(given)) {
        msgl__json_reject(r, MSGL_EFORMAT, "quantization_config", given, "an object");
        return;
    }
    msgl_json_reader sub = *r;
    sub.section = "quantization_config";
    sub.obj = given;
    const char *method = msgl__json_str_or(&sub, "quant_method", "");
    size_t i = 0;
    while (i < MSGL_COUNT(METHODS) && strcmp(method, METHODS[i].name) != 0) i++;
    if (i < MSGL_COUNT(METHODS)) {
        METHODS[i].read(&sub, q);
    } else if (method[0] == '\0' && msgl__json_get(&sub, "group_size") != NULL) {
        read_mlx(&sub, q);
    } else {
        msgl__json_reject(&sub, MSGL_EUNSUPPORTED, "quant_method",
                          msgl__json_get(&sub, "quant_method"),
                          "fp8, fbgemm_fp8, mxfp4, awq, gptq, auto-round, compressed-tensors, "
                          "modelopt, bitsandbytes, hqq, torchao, or no quantization_config");
    }
    r->status = sub.status;
}

int msgl__quantization_load(const char *dir, msgl_quantization *q, msgl_err *err)
{
    char path[PATH_BYTES];
    json_t *root = NULL;
    *q = (msgl_quantization){.block = {128, 128}};
    int code = msgl__path_join(dir, "config.json", path, sizeof path, err);
    if (code == 0) code = msgl__json_load(path, CONFIG_MAX_BYTES, 0, &root, err);
    if (code != 0) return code == MSGL_ENOENT ? 0 : code;
    msgl_json_reader r = {.file = msgl__path_shown(path), .section = "", .obj = root, .err = err};
    msgl__quantization_read(&r, q);
    json_decref(root);
    return r.status;
}
