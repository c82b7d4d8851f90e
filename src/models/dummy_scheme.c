// SPDX-License-Identifier: Apache-2.0
#include "models/dummy_scheme.h"

#include <fnmatch.h>
#include <regex.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "core/attributes.h"
#include "utils/file.h"
#include "utils/json.h"
#include "utils/strbuf.h"

enum { CONFIG_MAX_BYTES = 16 << 20, PATH_BYTES = 4096, MODULE_BYTES = 256 };

static const char *const OTHERS = "fp8, fbgemm_fp8, awq, gptq, auto-round, compressed-tensors, "
                                  "modelopt, mxfp4 or gguf with --dummy-weight, or --weight-dtype "
                                  "bfloat16";

// ---- modules that are left out ----

// A regular expression from the beginning of the name on, as Python's re.match has it.
static bool matches_regex(const char *pattern, const char *module)
{
    regex_t compiled;
    regmatch_t found;
    if (regcomp(&compiled, pattern, REG_EXTENDED) != 0) return false;
    const bool good = regexec(&compiled, module, 1, &found, 0) == 0 && found.rm_so == 0;
    regfree(&compiled);
    return good;
}

// Lists name hundreds of modules, and a model has thousands: most comparisons are these.
static bool has_parts(const char *module, const char *parts)
{
    const size_t n = strlen(parts);
    for (const char *at = module; n > 0 && (at = strstr(at, parts)) != NULL; at++) {
        const bool begins = at == module || at[-1] == '.';
        if (begins && (at[n] == '\0' || at[n] == '.')) return true;
    }
    return false;
}

// A name, maybe with * and ?, of the module or of some parts of its name. Example: of
// model.layers.0.mlp.gate, "gate", "mlp", "mlp.gate" and "model.layers.*.mlp" are; "gat" is not.
static bool matches_parts(const char *pattern, const char *module)
{
    char part[MODULE_BYTES];
    if (strpbrk(pattern, "*?[") == NULL) return has_parts(module, pattern);
    for (const char *from = module; from != NULL; from = strchr(from, '.')) {
        from += from > module;
        for (const char *end = from[0] != '\0' ? from : NULL; end != NULL;) {
            end = strchr(end + 1, '.');
            const size_t n = end != NULL ? (size_t)(end - from) : strlen(from);
            if (n >= sizeof part) continue;
            memcpy(part, from, n);
            part[n] = '\0';
            if (fnmatch(pattern, part, 0) == 0) return true;
        }
    }
    return false;
}

static bool matches(const char *pattern, const char *module)
{
    if (strncmp(pattern, "re:", 3) == 0) return matches_regex(pattern + 3, module);
    return matches_parts(pattern, module);
}

static bool is_among(const json_t *list, const char *module)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *pattern = json_string_value(json_array_get(list, i));
        if (pattern != NULL && matches(pattern, module)) return true;
    }
    return false;
}

// GPTQ's `dynamic` has patterns of modules that are not packed behind "-:".
static bool is_excluded(const json_t *dynamic, const char *module)
{
    const char *pattern;
    json_t *value;
    json_object_foreach((json_t *)dynamic, pattern, value)
    {
        (void)value;
        if (strncmp(pattern, "-:", 2) == 0 && matches_regex(pattern + 2, module)) return true;
    }
    return false;
}

// The one of the config_groups that weights are packed by.
static const json_t *weights_group(const json_t *given)
{
    const char *name;
    json_t *group;
    json_object_foreach(json_object_get(given, "config_groups"), name, group)
    {
        (void)name;
        if (json_is_object(json_object_get(group, "weights"))) return group;
    }
    return NULL;
}

// Whether the group's targets, which are classes or modules, have this one. A linear layer it is.
static bool is_target(const json_t *given, const char *module)
{
    const json_t *targets = json_object_get(weights_group(given), "targets");
    for (size_t i = 0; i < json_array_size(targets); i++) {
        const char *target = json_string_value(json_array_get(targets, i));
        if (target != NULL && strcmp(target, "Linear") == 0) return true;
    }
    return targets == NULL || is_among(targets, module);
}

bool msgl__dummy_scheme_skips(const msgl_dummy_scheme *s, const char *module)
{
    static const char *const lists[] = {"ignore", "modules_to_not_convert", "ignored_layers",
                                        "exclude_modules"};
    for (size_t i = 0; i < MSGL_COUNT(lists); i++) {
        if (is_among(json_object_get(s->given, lists[i]), module)) return true;
    }
    return is_excluded(json_object_get(s->given, "dynamic"), module) ||
           !is_target(s->given, module);
}

// ---- what each method says ----

static int32_t four_or_eight(msgl_json_reader *r, const char *key, int32_t bits)
{
    if (r->status == 0 && bits != 4 && bits != 8) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, key, msgl__json_get(r, key),
                          "4 or 8 with --dummy-weight");
    }
    return bits;
}

static void read_awq(msgl_json_reader *r, msgl_dummy_scheme *s)
{
    if (s->quantization.by_rows) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "version", msgl__json_get(r, "version"),
                          "gemm with --dummy-weight");
    }
    s->layout = MSGL_DUMMY_AWQ;
    s->bits = 4;
    s->group = s->quantization.group;
    s->zeros = msgl__json_bool_or(r, "zero_point", true);
}

static void read_gptq(msgl_json_reader *r, msgl_dummy_scheme *s)
{
    s->layout = MSGL_DUMMY_GPTQ;
    s->bits = four_or_eight(r, "bits", s->quantization.bits);
    s->group = s->quantization.group;
    s->zeros = !msgl__json_bool_or(r, "sym", true);
    s->ordered = s->quantization.ordered;
    s->head = json_is_true(msgl__json_get(r, "lm_head"));
}

static void read_auto_round(msgl_json_reader *r, msgl_dummy_scheme *s)
{
    if (s->quantization.method == MSGL_QUANT_OTHER) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "packing_format",
                          msgl__json_get(r, "packing_format"),
                          "layouts of GPTQ and AWQ with --dummy-weight");
        return;
    }
    read_gptq(r, s);
    if (s->quantization.method == MSGL_QUANT_AWQ) s->layout = MSGL_DUMMY_AWQ;
}

// Numbers of eight bits with a scale for `rows` x `group` of them; 0, 0: for all.
static void set_numeric(msgl_dummy_scheme *s, msgl_number number, int64_t rows, int64_t group,
                        msgl_number scale, const char *name)
{
    s->layout = MSGL_DUMMY_NUMERIC;
    s->number = number;
    s->rows = rows;
    s->group = group;
    s->scale = scale;
    s->scale_name = name;
}

// In blocks as Qwen3's files have them, whose scales are BF16, else with a scale for all.
static void read_fp8(msgl_json_reader *r, msgl_dummy_scheme *s)
{
    const int64_t *block = s->quantization.block;
    if (msgl__json_get(r, "weight_block_size") == NULL) {
        set_numeric(s, MSGL_NUMBER_E4M3, 0, 0, MSGL_NUMBER_F32, "_scale");
        return;
    }
    set_numeric(s, MSGL_NUMBER_E4M3, block[0], block[1], MSGL_NUMBER_BF16, "_scale_inv");
}

static void read_fbgemm(msgl_json_reader *r, msgl_dummy_scheme *s)
{
    (void)r;
    set_numeric(s, MSGL_NUMBER_E4M3, 1, -1, MSGL_NUMBER_F32, "_scale");
}

static void read_mxfp4(msgl_json_reader *r, msgl_dummy_scheme *s)
{
    (void)r;
    s->layout = MSGL_DUMMY_EXPERTS;
}

// Rows and columns that share a scale by `strategy`.
static void read_strategy(msgl_json_reader *r, msgl_dummy_scheme *s)
{
    const char *strategy = msgl__json_str_or(r, "strategy", "tensor");
    const int64_t *block = s->quantization.block;
    if (strcmp(strategy, "tensor") == 0) {
        s->rows = 0, s->group = 0;
    } else if (strcmp(strategy, "channel") == 0) {
        s->rows = 1, s->group = -1;
    } else if (strcmp(strategy, "group") == 0 || strcmp(strategy, "tensor_group") == 0) {
        s->rows = 1, s->group = msgl__json_int(r, "group_size", 1, 1 << 24);
    } else if (strcmp(strategy, "block") == 0) {
        s->rows = block[0], s->group = block[1];
    } else {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "strategy", msgl__json_get(r, "strategy"),
                          "tensor, channel, group, tensor_group or block with --dummy-weight");
    }
}

// compressed-tensors' integers in words: the file's format says so, or numbers of less than 8 bits.
static void read_packed(msgl_json_reader *r, msgl_dummy_scheme *s)
{
    s->layout = MSGL_DUMMY_PACKED;
    s->bits = four_or_eight(r, "num_bits", msgl__json_int(r, "num_bits", 2, 8));
    s->zeros = !msgl__json_bool_or(r, "symmetric", true);
    const json_t *order = msgl__json_get(r, "actorder");
    s->ordered = json_is_string(order) && strcmp(json_string_value(order), "group") == 0;
    s->scale = MSGL_NUMBER_BF16;
    if (s->rows == 1) return;
    msgl__json_reject(r, MSGL_EUNSUPPORTED, "strategy", msgl__json_get(r, "strategy"),
                      "channel or group, of packed integers with --dummy-weight");
}

static void read_compressed_weights(msgl_json_reader *r, const char *format, msgl_dummy_scheme *s)
{
    const bool floats = strcmp(msgl__json_str_or(r, "type", "int"), "float") == 0;
    const bool narrow = msgl__json_int(r, "num_bits", 2, 8) < 8;
    read_strategy(r, s);
    if (strcmp(format, "nvfp4-pack-quantized") == 0) {
        s->layout = MSGL_DUMMY_NVFP4;
    } else if (strcmp(format, "mxfp4-pack-quantized") == 0) {
        s->layout = MSGL_DUMMY_MXFP4;
    } else if (strcmp(format, "mxfp8-quantized") == 0) {
        s->layout = MSGL_DUMMY_MXFP8;
    } else if (strcmp(format, "pack-quantized") == 0 && !floats) {
        read_packed(r, s);
    } else if (!narrow) {
        set_numeric(s, floats ? MSGL_NUMBER_E4M3 : MSGL_NUMBER_I8, s->rows, s->group,
                    MSGL_NUMBER_BF16, "_scale");
    } else {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "num_bits", msgl__json_get(r, "num_bits"),
                          "8, or a format whose name ends in pack-quantized, with --dummy-weight");
    }
}

static void read_compressed(msgl_json_reader *r, msgl_dummy_scheme *s)
{
    const json_t *groups = msgl__json_get(r, "config_groups"), *group = weights_group(r->obj);
    size_t packed = 0;
    const char *name;
    json_t *one;
    json_object_foreach((json_t *)groups, name, one)
    {
        (void)name;
        packed += json_is_object(json_object_get(one, "weights"));
    }
    if (packed != 1) {
        msgl__json_reject(r, MSGL_EUNSUPPORTED, "config_groups", groups,
                          "one with an object weights, with --dummy-weight");
        return;
    }
    msgl_json_reader sub = *r;
    sub.section = "quantization_config.config_groups.weights";
    sub.obj = json_object_get(group, "weights");
    const char *own = json_string_value(json_object_get(group, "format"));
    s->head = true;
    read_compressed_weights(&sub, own != NULL ? own : msgl__json_str_or(r, "format", ""), s);
    r->status = sub.status;
}

static void read_modelopt(msgl_json_reader *r, msgl_dummy_scheme *s)
{
    msgl_json_reader sub = *r;
    if (json_is_object(msgl__json_get(r, "quantization"))) {
        sub.obj = s->given = msgl__json_get(r, "quantization");
    }
    const char *algorithm = msgl__json_str_or(&sub, "quant_algo", "");
    s->head = true;
    if (strcasecmp(algorithm, "FP8") == 0) {
        set_numeric(s, MSGL_NUMBER_E4M3, 0, 0, MSGL_NUMBER_F32, "_scale");
    } else if (strcasecmp(algorithm, "FP8_PER_CHANNEL_PER_TOKEN") == 0) {
        set_numeric(s, MSGL_NUMBER_E4M3, 1, -1, MSGL_NUMBER_F32, "_scale");
    } else if (strcasecmp(algorithm, "FP8_PB_WO") == 0) {
        set_numeric(s, MSGL_NUMBER_E4M3, 128, 128, MSGL_NUMBER_F32, "_scale");
    } else if (strcasecmp(algorithm, "MXFP8") == 0) {
        s->layout = MSGL_DUMMY_MXFP8;
    } else if (strcasecmp(algorithm, "NVFP4") == 0 || strcasecmp(algorithm, "W4A16_NVFP4") == 0) {
        s->layout = MSGL_DUMMY_MODELOPT;
    } else {
        msgl__json_reject(&sub, MSGL_EUNSUPPORTED, "quant_algo", msgl__json_get(&sub, "quant_algo"),
                          "FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO, MXFP8, NVFP4 or W4A16_NVFP4 "
                          "with --dummy-weight");
    }
    r->status = sub.status;
}

static void read_gguf(msgl_json_reader *r, msgl_dummy_scheme *s)
{
    s->layout = MSGL_DUMMY_GGML;
    s->head = true;
    s->file_type = msgl__json_str_or(r, "file_type", "");
    if (msgl__dummy_ggml_blocks(s->file_type, "", 0, 1) != NULL) return;
    msgl__json_reject(r, MSGL_EUNSUPPORTED, "file_type", msgl__json_get(r, "file_type"),
                      "Q4_0, Q8_0, Q6_K or Q4_K_M");
}

static const struct {
    const char *name; // quant_method
    void (*read)(msgl_json_reader *r, msgl_dummy_scheme *s);
} METHODS[] = {
    {"fp8", read_fp8},
    {"fbgemm_fp8", read_fbgemm},
    {"awq", read_awq},
    {"gptq", read_gptq},
    {"auto-round", read_auto_round},
    {"compressed-tensors", read_compressed},
    {"modelopt", read_modelopt},
    {"modelopt_fp4", read_modelopt},
    {"mxfp4", read_mxfp4},
    {"gguf", read_gguf},
};

static int read_config(msgl_json_reader *r, msgl_dummy_scheme *s)
{
    s->given = msgl__quantization_given(r);
    msgl__quantization_read(r, &s->quantization);
    if (s->given == NULL || r->status != 0) return r->status;
    msgl_json_reader sub = *r;
    sub.section = "quantization_config";
    sub.obj = s->given;
    const char *method = msgl__json_str_or(&sub, "quant_method", "");
    size_t i = 0;
    while (i < MSGL_COUNT(METHODS) && strcmp(method, METHODS[i].name) != 0) i++;
    if (i < MSGL_COUNT(METHODS)) {
        METHODS[i].read(&sub, s);
    } else {
        msgl__json_reject(&sub, MSGL_EUNSUPPORTED, "quant_method",
                          msgl__json_get(&sub, "quant_method"), OTHERS);
    }
    return sub.status;
}

int msgl__dummy_scheme_load(const char *dir, msgl_dummy_scheme *s, msgl_err *err)
{
    char path[PATH_BYTES];
    struct stat st;
    *s = (msgl_dummy_scheme){.layout = MSGL_DUMMY_PLAIN};
    if (stat(dir, &st) != 0 || !S_ISDIR(st.st_mode)) return 0; // a GGUF file has its own types
    int code = msgl__path_join(dir, "config.json", path, sizeof path, err);
    if (code == 0) code = msgl__json_load(path, CONFIG_MAX_BYTES, 0, &s->root, err);
    if (code != 0) return code;
    msgl_json_reader r = {
        .file = msgl__path_shown(path), .section = "", .obj = s->root, .err = err};
    return read_config(&r, s);
}

void msgl__dummy_scheme_free(msgl_dummy_scheme *s)
{
    json_decref(s->root);
    *s = (msgl_dummy_scheme){.layout = MSGL_DUMMY_PLAIN};
}

// ---- GGUF ----

// Of Q4_K_M the head has Q6_K, and so have v and down of the layers that are more sensitive: the
// first and the last eighth, and every third of those between.
static bool has_more_bits(const char *module, int32_t layer, int32_t layers)
{
    const int32_t eighth = layers / 8;
    if (msgl__ends_with(module, "lm_head")) return true;
    if (!msgl__ends_with(module, "v_proj") && !msgl__ends_with(module, "down_proj")) return false;
    return layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
}

const msgl_blocks *msgl__dummy_ggml_blocks(const char *file_type, const char *module, int32_t layer,
                                           int32_t layers)
{
    if (strcasecmp(file_type, "Q4_0") == 0) {
        return msgl__ends_with(module, "lm_head") ? &msgl__blocks_q6_k : &msgl__blocks_q4_0;
    }
    if (strcasecmp(file_type, "Q8_0") == 0) return &msgl__blocks_q8_0;
    if (strcasecmp(file_type, "Q6_K") == 0) return &msgl__blocks_q6_k;
    if (strcasecmp(file_type, "Q4_K_M") != 0) return NULL;
    return has_more_bits(module, layer, layers) ? &msgl__blocks_q6_k : &msgl__blocks_q4_k;
}
