// SPDX-License-Identifier: Apache-2.0
//
// What packed tensors are refused with: sizes that do not fit each other, tensors that are missing,
// and forms that are not known; and that those that are read give the same values by rows, columns,
// pairs and ranks, and have a name for all of their bytes. Values are tests/quant's and
// tests/engine's.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "models/adapters.h"
#include "models/checkpoint.h"
#include "models/contents.h"
#include "models/folder.h"
#include "models/source.h"

enum { MAX_TENSORS = 6 };

// A tensor; or of type JSON, and with a text as bytes, what __metadata__ says of m.weight.
typedef struct given {
    const char *name, *type;
    int64_t dims[3];   // until the first 0
    const void *bytes; // NULL: all 0
} given;

typedef struct refusal {
    const char *config; // quantization_config
    given tensors[MAX_TENSORS];
    const char *expect; // in the error; READ TYPE: there is none, and this is what it is called
} refusal;

#define READ "read as "

static size_t size_of(const char *type)
{
    return strstr(type, "64") != NULL   ? 8
           : strstr(type, "32") != NULL ? 4
           : strstr(type, "16") != NULL ? 2
                                        : 1;
}

// ", "__metadata__": {...}" with the text, whose quotation marks are escaped; its length.
static size_t put_note(char *to, size_t size, const char *text)
{
    size_t n = (size_t)snprintf(to, size, ", \"__metadata__\": {\"m.weight\": \"");
    for (; *text != '\0'; text++) {
        n += (size_t)snprintf(to + n, size - n, *text == '"' ? "\\%c" : "%c", *text);
    }
    return n + (size_t)snprintf(to + n, size - n, "\"}");
}

// Writes the folder.
static void make(const folder *f, const refusal *r)
{
    static uint8_t data[1 << 16];
    char header[2000] = "{";
    size_t at = 0, n = 1;
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * 37 + i / 7) & 0x3f; // no NaN
    for (size_t i = 0; i < MAX_TENSORS && r->tensors[i].name != NULL; i++) {
        const given *g = &r->tensors[i];
        if (strcmp(g->type, "JSON") == 0) {
            n += put_note(header + n, sizeof header - n, g->bytes);
            continue;
        }
        size_t bytes = size_of(g->type);
        char shape[100] = "";
        for (int d = 0; d < 3 && g->dims[d] != 0; d++) {
            bytes *= (size_t)g->dims[d];
            snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%d", d > 0 ? ", " : "",
                     (int)g->dims[d]);
        }
        assert_true(at + bytes <= sizeof data);
        if (g->bytes != NULL) memcpy(data + at, g->bytes, bytes);
        if (strcmp(g->name, "bias") == 0) memset(data + at, 0, bytes);
        n += (size_t)snprintf(header + n, sizeof header - n,
                              "%s\"m.%s\": {\"dtype\": \"%s\", \"shape\": [%s], \"data_offsets\": "
                              "[%zu, %zu]}",
                              i > 0 ? ", " : "", g->name, g->type, shape, at, at + bytes);
        at += bytes;
    }
    snprintf(header + n, sizeof header - n, "}");
    write_safetensors(f, "model.safetensors", header, data, at);
    char config[600];
    snprintf(config, sizeof config, "{\"quantization_config\": %s}", r->config);
    folder_write(f, "config.json", config, strlen(config));
}

#define AWQ(version) "{\"quant_method\": \"awq\", \"group_size\": 32, \"version\": \"" version "\"}"
#define GPTQ(more) "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 32" more "}"
#define AUTO(format, more)                                                                         \
    "{\"quant_method\": \"auto-round\", \"bits\": 4, \"group_size\": 32, \"packing_format\": "     \
    "\"" format "\"" more "}"
#define PACKED(bits, more)                                                                         \
    "{\"quant_method\": \"compressed-tensors\"" more                                               \
    ", \"config_groups\": {\"g\": {\"weights\": {\"num_bits\": " bits "}}}}"
#define MLX "{\"group_size\": 32, \"bits\": 4}"
#define TORCHAO "{\"quant_method\": \"torchao\"}"
#define NOTE(type, block) "{\"_type\": \"" type "\", \"_data\": {\"block_size\": " block "}}"
#define HQQ "{\"quant_method\": \"hqq\"}"
#define BNB "{\"quant_method\": \"bitsandbytes\"}"
#define STATE "weight.quant_state.bitsandbytes__nf4"

static const int64_t SHAPE[2] = {8, 64}, OTHER[2] = {7, 64}, FORTY[2] = {8, 32},
                     NEGATIVE[2] = {8, -64};
static const int32_t GROUPS[64] = {[5] = 2}, ORDER[64] = {[5] = 1, [6] = 1, [63] = 1},
                     BELOW[64] = {[5] = -1}, NONE[64] = {-1}, ONE[2] = {1};

static const refusal REFUSALS[] = {
    // AWQ: [cols, rows / 8].
    {AWQ("gemm"),
     {{"qweight", "I32", {64, 1}, NULL},
      {"qzeros", "I32", {2, 1}, NULL},
      {"scales", "F16", {2, 8}, NULL}},
     READ "AWQ 4-bit"},
    {AWQ("gemm"),
     {{"qweight", "I32", {64, 1}, NULL}, {"qzeros", "I32", {2, 1}, NULL}},
     "model.safetensors: tensor m.qweight: found I32 [64, 1], allowed a tensor that ends in "
     ".scales"},
    {AWQ("gemm"),
     {{"qweight", "I32", {64, 1}, NULL}, {"scales", "F16", {2, 8}, NULL}},
     "tensor m.qweight: found nothing beside it that ends in .qzeros, allowed I32"},
    {AWQ("gemm"),
     {{"qweight", "I32", {64, 1}, NULL},
      {"qzeros", "I32", {2, 1}, NULL},
      {"scales", "F16", {3, 8}, NULL}},
     "tensor m.scales: found F16 [3, 8], allowed scales for each group of config.json's "
     "group_size"},
    {AWQ("gemm"),
     {{"qweight", "I32", {64, 1}, NULL},
      {"qzeros", "I32", {2, 2}, NULL},
      {"scales", "F16", {2, 8}, NULL}},
     "tensor m.qzeros: found I32 [2, 2], allowed I32 [2, 1]"},
    {AWQ("gemm"),
     {{"qweight", "I32", {64, 1}, NULL},
      {"qzeros", "I32", {2, 1}, NULL},
      {"scales", "I16", {2, 8}, NULL}},
     "tensor m.scales: found I16 [2, 8], allowed F16, BF16 or F32 [2, 8]"},
    {AWQ("gemv"),
     {{"qweight", "I32", {8, 8}, NULL},
      {"qzeros", "I32", {8, 1}, NULL},
      {"scales", "F16", {8, 8}, NULL}},
     READ "AWQ 4-bit"},
    {AWQ("gemv"),
     {{"qweight", "I32", {8, 8}, NULL},
      {"qzeros", "I32", {8, 1}, NULL},
      {"scales", "F16", {8, 2}, NULL}},
     "tensor m.scales: found F16 [8, 2], allowed F16, BF16 or F32 [8, 8]"},
    // GPTQ: [cols / 8, rows].
    {GPTQ(""),
     {{"qweight", "I32", {8, 8}, NULL},
      {"qzeros", "I32", {2, 1}, NULL},
      {"scales", "F16", {2, 8}, NULL}},
     READ "GPTQ 4-bit"},
    {GPTQ(""),
     {{"qweight", "I32", {8, 8}, NULL},
      {"qzeros", "I32", {1, 2}, NULL},
      {"scales", "F16", {2, 8}, NULL}},
     "tensor m.qzeros: found I32 [1, 2], allowed I32 [2, 1]"},
    {GPTQ(", \"desc_act\": true"),
     {{"qweight", "I32", {8, 8}, NULL},
      {"qzeros", "I32", {2, 1}, NULL},
      {"scales", "F16", {2, 8}, NULL}},
     "found nothing beside it that ends in .g_idx, allowed I32"},
    {GPTQ(", \"desc_act\": true"),
     {{"qweight", "I32", {8, 8}, NULL},
      {"qzeros", "I32", {2, 1}, NULL},
      {"scales", "F16", {2, 8}, NULL},
      {"g_idx", "I32", {64}, GROUPS}},
     "tensor m.g_idx: found I32 [64], allowed numbers of groups that there are"},
    {GPTQ(", \"desc_act\": true"),
     {{"qweight", "I32", {8, 8}, NULL},
      {"qzeros", "I32", {2, 1}, NULL},
      {"scales", "F16", {2, 8}, NULL},
      {"g_idx", "I32", {64}, BELOW}},
     "tensor m.g_idx: found I32 [64], allowed numbers of groups"},
    {"{\"quant_method\": \"gptq\", \"bits\": 3, \"group_size\": 32}",
     {{"qweight", "I32", {8, 8}, NULL},
      {"qzeros", "I32", {2, 1}, NULL},
      {"scales", "F16", {2, 8}, NULL}},
     "tensor m.qweight: found I32 [8, 8], allowed a first dimension of whole codes"},
    {GPTQ(""),
     {{"qweight", "I32", {8, 8}, NULL},
      {"qzeros", "I32", {2, 1}, NULL},
      {"scales", "F16", {2, 8}, NULL},
      {"bias", "F16", {8}, NULL},
      {"g_idx", "I32", {64}, NULL}},
     READ "GPTQ 4-bit"},
    {"{\"quant_method\": \"gptq\", \"bits\": 3, \"group_size\": 32, \"sym\": false}",
     {{"qweight", "I32", {6, 32}, NULL},
      {"qzeros", "I32", {2, 3}, NULL},
      {"scales", "F16", {2, 32}, NULL}},
     "tensor m.qweight: found I32 [6, 32], allowed sym: true, with 3 bits and"},
    // Modules that differ from the config.
    {GPTQ(", \"dynamic\": {\"m\": {\"bits\": 8}}"),
     {{"qweight", "I32", {16, 32}, NULL},
      {"qzeros", "I32", {5, 8}, NULL},
      {"scales", "F16", {5, 32}, NULL}},
     "tensor m.scales: found F16 [5, 32], allowed scales for each group of config.json's "
     "group_size"},
    {GPTQ(", \"dynamic\": {\"m\": {\"bits\": 5}}"),
     {{"qweight", "I32", {10, 32}, NULL},
      {"qzeros", "I32", {2, 5}, NULL},
      {"scales", "F16", {2, 32}, NULL}},
     "tensor m.qzeros: found I32 [2, 5], allowed I32 [2, 4]"},
    {GPTQ(", \"dynamic\": {\"m\": {\"bits\": 3, \"sym\": false}}"),
     {{"qweight", "I32", {6, 32}, NULL},
      {"qzeros", "I32", {2, 3}, NULL},
      {"scales", "F16", {2, 32}, NULL}},
     "tensor m.qweight: found I32 [6, 32], allowed sym: true, with 3 bits"},
    {GPTQ(", \"dynamic\": {\"m\": {\"format\": \"marlin\"}}"),
     {{"a", "F32", {1}, NULL}},
     "quantization_config.dynamic: found \"marlin\", allowed modules that differ in bits"},
    // AutoRound.
    {AUTO("auto_round:auto_gptq", ""),
     {{"qweight", "I32", {8, 8}, NULL},
      {"qzeros", "I32", {2, 1}, NULL},
      {"scales", "F16", {2, 8}, NULL}},
     READ "GPTQ 4-bit"},
    {AUTO("auto_round:gptqmodel", ", \"extra_config\": {\"m\": {\"bits\": 2, \"group_size\": 16}}"),
     {{"qweight", "I32", {4, 8}, NULL},
      {"qzeros", "I32", {4, 1}, NULL},
      {"scales", "F16", {4, 8}, NULL},
      {"g_idx", "I32", {64}, NULL}},
     "tensor m.qweight: found I32 [4, 8], allowed a second dimension of whole 32"},
    {AUTO("auto_round:auto_awq", ""),
     {{"qweight", "I32", {64, 1}, NULL},
      {"qzeros", "I32", {2, 1}, NULL},
      {"scales", "F16", {2, 8}, NULL}},
     READ "AWQ 4-bit"},
    {AUTO("auto_round:llm_compressor_nvfp4_e5m3", ""),
     {{"a", "F32", {1}, NULL}},
     "packing_format: found \"auto_round:llm_compressor_nvfp4_e5m3\", allowed auto_round, or"},
    {AUTO("auto_round:llm_compressor", ", \"data_type\": \"mx_int\""),
     {{"a", "F32", {1}, NULL}},
     "data_type: found \"mx_int\", allowed mx_fp, nv_fp, fp8 or int"},
    {AUTO("auto_round", ", \"data_type\": \"fp8\""),
     {{"a", "F32", {1}, NULL}},
     "data_type: found \"fp8\", allowed int"},
    {AUTO("auto_round", ", \"act_bits\": 8"),
     {{"a", "F32", {1}, NULL}},
     "act_bits: found 8, allowed an integer in 9..32"},
    {AUTO("auto_round", ", \"rotation_config\": {\"a\": 1}"),
     {{"a", "F32", {1}, NULL}},
     "rotation_config: found an object"},
    // compressed-tensors.
    {PACKED("4", ""),
     {{"weight_packed", "I32", {8, 8}, NULL},
      {"weight_scale", "BF16", {8, 2}, NULL},
      {"weight_shape", "I64", {2}, SHAPE},
      {"weight_g_idx", "I32", {64}, NONE}},
     READ "pack-quantized 4-bit"},
    {PACKED("4", ""),
     {{"weight_packed", "I32", {8, 8}, NULL}, {"weight_scale", "BF16", {8, 2}, NULL}},
     "tensor m.weight_packed: found I32 [8, 8], allowed I64 [2] as its .weight_shape"},
    {PACKED("4", ""),
     {{"weight_packed", "I32", {8, 8}, NULL},
      {"weight_scale", "BF16", {8, 2}, NULL},
      {"weight_shape", "I64", {2}, OTHER}},
     "tensor m.weight_shape: found I64 [2], allowed the number of rows"},
    {PACKED("4", ""),
     {{"weight_packed", "I32", {8, 8}, NULL},
      {"weight_scale", "BF16", {8, 2}, NULL},
      {"weight_shape", "I64", {2}, NEGATIVE}},
     "tensor m.weight_shape: found I64 [2], allowed the number of rows"},
    {PACKED("8", ""),
     {{"weight_packed", "I32", {8, 8}, NULL},
      {"weight_scale", "BF16", {8, 2}, NULL},
      {"weight_shape", "I64", {2}, SHAPE}},
     "tensor m.weight_packed: found I32 [8, 8], allowed words of codes of 2 to 8 bits"},
    {PACKED("4", ""),
     {{"weight_packed", "I32", {8, 8}, NULL},
      {"weight_scale", "BF16", {8, 3}, NULL},
      {"weight_shape", "I64", {2}, SHAPE}},
     "tensor m.weight_scale: found BF16 [8, 3], allowed F16, BF16 or F32 [1], [8, 1]"},
    {PACKED("4", ""),
     {{"weight_packed", "I32", {8, 8}, NULL},
      {"weight_scale", "BF16", {8, 2}, NULL},
      {"weight_shape", "I64", {2}, SHAPE},
      {"weight_zero_point", "I8", {8, 2}, NULL}},
     "tensor m.weight_zero_point: found I8 [8, 2], allowed I32 [1, 2]"},
    {PACKED("4", ""),
     {{"weight_packed", "I32", {8, 8}, NULL},
      {"weight_scale", "BF16", {1}, NULL},
      {"weight_shape", "I64", {2}, SHAPE},
      {"weight_zero_point", "I8", {1}, "\x07"}},
     READ "pack-quantized 4-bit"},
    {PACKED("4", ""),
     {{"weight_packed", "I32", {8, 8}, NULL},
      {"weight_scale", "BF16", {1}, NULL},
      {"weight_shape", "I64", {2}, SHAPE},
      {"weight_zero_point", "I8", {1}, "\x08"}},
     "tensor m.weight_zero_point: found I8 [1], allowed a number that a code can stand for"},
    {PACKED("4", ""),
     {{"weight_packed", "I32", {8, 8}, NULL},
      {"weight_scale", "BF16", {8, 1}, NULL},
      {"weight_shape", "I64", {2}, SHAPE},
      {"weight_zero_point", "I8", {1}, NULL}},
     "tensor m.weight_zero_point: found I8 [1], allowed I32 [1, 1]"},
    // 32 columns of 7 bits: 7 words as a stream, 8 as whole codes. 40 of 3: 4 words as both.
    {PACKED("7", ""),
     {{"weight_packed", "I32", {8, 8}, NULL},
      {"weight_scale", "BF16", {8, 1}, NULL},
      {"weight_shape", "I64", {2}, FORTY}},
     READ "pack-quantized 7-bit"},
    {PACKED("3", ""),
     {{"weight_packed", "I32", {8, 4}, NULL},
      {"weight_scale", "BF16", {8, 1}, NULL},
      {"weight_shape", "I64", {2}, (const int64_t[2]){8, 40}}},
     "allowed words that fit one of the config_groups alone, and the quantization_config's "
     "version"},
    {PACKED("3", ", \"version\": \"0.12.2\""),
     {{"weight_packed", "I32", {8, 4}, NULL},
      {"weight_scale", "BF16", {8, 1}, NULL},
      {"weight_shape", "I64", {2}, (const int64_t[2]){8, 40}}},
     READ "pack-quantized 3-bit"},
    {PACKED("4", ""),
     {{"weight_packed", "U8", {8, 16}, NULL}, {"weight_scale", "F8_E4M3", {8, 2}, NULL}},
     "found nothing beside it that ends in .weight_global_scale, allowed F32"},
    {PACKED("4", ""),
     {{"weight_packed", "U8", {8, 16}, NULL}, {"weight_scale", "U8", {8, 2}, NULL}},
     "tensor m.weight_scale: found U8 [8, 2], allowed U8 [8, 1]"},
    {PACKED("4", ""),
     {{"weight_packed", "U8", {8, 9}, NULL}},
     "allowed rows of whole groups of 8 bytes"},
    {PACKED("8", ""),
     {{"weight", "I8", {8, 16}, NULL},
      {"weight_scale", "F32", {8, 1}, NULL},
      {"weight_zero_point", "I8", {8}, NULL}},
     "tensor m.weight_zero_point: found I8 [8], allowed I8 [8, 1]"},
    // bitsandbytes.
    {BNB,
     {{"weight", "U8", {256, 1}, NULL},
      {"weight.absmax", "F32", {8}, NULL},
      {"weight.quant_map", "F32", {16}, NULL},
      {STATE, "U8", {36}, "{\"blocksize\": 64, \"shape\": [8, 64]} "}},
     READ "NF4"},
    // Bytes that bnb_4bit_quant_storage calls bfloat16.
    {BNB,
     {{"weight", "BF16", {128, 1}, NULL},
      {"weight.absmax", "F32", {8}, NULL},
      {"weight.quant_map", "F32", {16}, NULL},
      {STATE, "U8", {36}, "{\"blocksize\": 64, \"shape\": [8, 64]} "}},
     READ "NF4"},
    {BNB,
     {{"weight", "F32", {128, 1}, NULL},
      {STATE, "U8", {36}, "{\"blocksize\": 64, \"shape\": [8, 64]} "}},
     "tensor m.weight: found F32 [128, 1], allowed half as many bytes as the shape"},
    {BNB,
     {{"weight", "U8", {256, 1}, NULL}, {STATE, "U8", {4}, "{\"a\""}},
     "model.safetensors: m." STATE},
    {BNB,
     {{"weight", "U8", {256, 1}, NULL},
      {STATE, "U8", {36}, "{\"blocksize\": 64, \"shape\": [8, 65]} "}},
     "tensor m.weight: found U8 [256, 1], allowed half as many bytes as the shape"},
    {BNB,
     {{"weight", "U8", {256, 1}, NULL},
      {STATE, "U8", {36}, "{\"blocksize\": 0 , \"shape\": [8, 64]} "}},
     "allowed a blocksize in its quant_state"},
    {BNB,
     {{"weight", "U8", {256, 1}, NULL},
      {"weight.absmax", "F32", {7}, NULL},
      {"weight.quant_map", "F32", {16}, NULL},
      {STATE, "U8", {36}, "{\"blocksize\": 64, \"shape\": [8, 64]} "}},
     "tensor m.weight.absmax: found F32 [7], allowed F32 or U8 [8]"},
    {BNB,
     {{"weight", "U8", {256, 1}, NULL},
      {"weight.absmax", "U8", {8}, NULL},
      {"weight.quant_map", "F32", {16}, NULL},
      {STATE, "U8", {36}, "{\"blocksize\": 64, \"shape\": [8, 64]} "}},
     "allowed a nested_offset and nested_blocksize 256 in its quant_state"},
    {BNB,
     {{"weight", "I8", {8, 16}, NULL}, {"SCB", "F32", {7}, NULL}},
     "tensor m.SCB: found F32 [7], allowed F32 [8]"},
    // HQQ: [groups, 32] of a matrix of 8 x 64.
    {HQQ,
     {{"W_q", "U8", {8, 32}, NULL},
      {"scale", "BF16", {16, 1}, NULL},
      {"zero", "BF16", {16, 1}, NULL},
      {"shape", "I64", {2}, SHAPE},
      {"axis", "I32", {0}, ONE},
      {"packing", "U8", {7}, "4bit_u8"}},
     READ "HQQ 4-bit"},
    {HQQ,
     {{"W_q", "I32", {4, 16}, NULL},
      {"scale", "F16", {1, 16}, NULL},
      {"zero", "F32", {1, 16}, NULL},
      {"shape", "I64", {2}, SHAPE},
      {"axis", "I32", {1}, &ONE[1]},
      {"packing", "U8", {7}, "3bit_32"}},
     READ "HQQ 3-bit"},
    {HQQ,
     {{"W_q", "U8", {8, 32}, NULL}, {"packing", "U8", {7}, "3bit_32"}},
     "tensor m.packing: found U8 [7], allowed 8bit_u8, 4bit_u8, 2bit_u8 or 1bit_u8 of U8, or "},
    {HQQ,
     {{"W_q", "U8", {8, 32}, NULL}},
     "tensor m.W_q: found U8 [8, 32], allowed 8bit_u8, 4bit_u8"},
    {HQQ,
     {{"W_q", "U8", {8, 32}, NULL},
      {"packing", "U8", {7}, "4bit_u8"},
      {"shape", "I64", {2}, OTHER}},
     "tensor m.shape: found I64 [2], allowed I64 [2] as its .shape, of a matrix with as many"},
    {HQQ,
     {{"W_q", "U8", {8, 32}, NULL},
      {"packing", "U8", {7}, "4bit_u8"},
      {"shape", "I64", {2}, NEGATIVE}},
     "tensor m.shape: found I64 [2], allowed I64 [2] as its .shape"},
    {HQQ,
     {{"W_q", "U8", {8, 32}, NULL},
      {"packing", "U8", {7}, "4bit_u8"},
      {"shape", "I64", {2}, SHAPE},
      {"axis", "I32", {1}, &NONE[0]}},
     "tensor m.axis: found I32 [1], allowed I32 [], 0 or 1"},
    {HQQ,
     {{"W_q", "U8", {8, 32}, NULL},
      {"scale", "BF16", {16, 1}, NULL},
      {"zero", "BF16", {1, 16}, NULL},
      {"shape", "I64", {2}, SHAPE},
      {"axis", "I32", {0}, ONE},
      {"packing", "U8", {7}, "4bit_u8"}},
     "tensor m.zero: found BF16 [1, 16], allowed F16, BF16 or F32 [16, 1]"},
    {HQQ,
     {{"W_q", "U8", {8, 32}, NULL},
      {"shape", "I64", {2}, SHAPE},
      {"axis", "I32", {0}, ONE},
      {"packing", "U8", {7}, "4bit_u8"}},
     "tensor m.W_q: found nothing beside it that ends in .scale"},
    {HQQ,
     {{"W_q", "BF16", {8, 16}, NULL}, {"packing", "U8", {7}, "4bit_u8"}},
     "tensor m.W_q: found BF16 [8, 16], allowed codes as integers, of HQQ with view_as_float"},
    // torchao.
    {TORCHAO,
     {{"_weight_qdata", "I8", {8, 32}, NULL},
      {"_weight_scale", "BF16", {2, 8}, NULL},
      {"_weight_zero_point", "BF16", {2, 8}, NULL},
      {"weight", "JSON", {0}, NOTE("Int4Tensor", "[1, 32]")}},
     READ "Int4Tensor 4-bit"},
    {TORCHAO,
     {{"_weight_qdata", "I8", {8, 64}, NULL},
      {"_weight_scale", "BF16", {8, 2}, NULL},
      {"_weight_zero_point", "I8", {8, 2}, NULL},
      {"weight", "JSON", {0}, NOTE("IntxUnpackedToInt8Tensor", "[1, 32]")}},
     READ "IntxUnpackedToInt8Tensor"},
    {TORCHAO,
     {{"_weight_qdata", "I8", {8, 64}, NULL},
      {"_weight_scale", "F32", {1, 1}, NULL},
      {"_weight_zero_point", "I8", {1, 1}, &ONE[1]},
      {"_weight_act_quant_scale", "F32", {1}, NULL},
      {"weight", "JSON", {0}, NOTE("Int8Tensor", "[8, 64]")}},
     READ "Int8Tensor"},
    {TORCHAO,
     {{"_weight_qdata", "F8_E4M3", {8, 64}, NULL},
      {"_weight_scale", "F32", {8, 1}, NULL},
      {"weight", "JSON", {0}, NOTE("Float8Tensor", "[1, 64]")}},
     READ "Float8Tensor"},
    {TORCHAO,
     {{"_weight_qdata", "I8", {8, 64}, NULL}},
     "tensor m._weight_qdata: found I8 [8, 64], allowed a file whose __metadata__ says its layout"},
    {TORCHAO,
     {{"_weight_qdata", "I8", {8, 64}, NULL}, {"weight", "JSON", {0}, "{\"_type\""}},
     "model.safetensors: m._weight_qdata:"},
    {TORCHAO,
     {{"_weight_qdata", "I32", {2, 2, 8}, NULL},
      {"weight", "JSON", {0}, NOTE("Int4TilePackedTo4dTensor", "[1, 32]")}},
     "tensor m._weight_qdata: layout in __metadata__: found Int4TilePackedTo4dTensor, allowed "
     "Int4Tensor, Int8Tensor, IntxUnpackedToInt8Tensor or Float8Tensor"},
    {TORCHAO,
     {{"_weight_qdata", "I32", {8, 8}, NULL}, {"weight", "JSON", {0}, "[7]"}},
     "found none, allowed Int4Tensor"},
    {TORCHAO,
     {{"_weight_qdata", "I8", {2, 8, 64}, NULL},
      {"weight", "JSON", {0}, NOTE("Int8Tensor", "[1, 64]")}},
     "tensor m._weight_qdata: found I8 [2, 8, 64], allowed I8 of two dimensions, as Int8Tensor "
     "has"},
    {TORCHAO,
     {{"_weight_qdata", "F8_E5M2", {8, 64}, NULL},
      {"weight", "JSON", {0}, NOTE("Float8Tensor", "[1, 64]")}},
     "found F8_E5M2 [8, 64], allowed F8_E4M3 of two dimensions, as Float8Tensor has"},
    {TORCHAO,
     {{"_weight_qdata", "I8", {8, 64}, NULL},
      {"_weight_scale", "F32", {8, 1}, NULL},
      {"weight", "JSON", {0}, NOTE("Int8Tensor", "[1, -64]")}},
     "allowed a block_size of two integers in its __metadata__"},
    {TORCHAO,
     {{"_weight_qdata", "I8", {8, 64}, NULL},
      {"_weight_scale", "F32", {8, 1}, NULL},
      {"weight", "JSON", {0}, NOTE("Int8Tensor", "[1, 32]")}},
     "tensor m._weight_scale: found F32 [8, 1], allowed a scale for each block of the block_size"},
    {TORCHAO,
     {{"_weight_qdata", "I8", {8, 64}, NULL},
      {"_weight_scale", "F32", {8, 1}, NULL},
      {"_weight_act_pre_scale", "F32", {64}, NULL},
      {"weight", "JSON", {0}, NOTE("Int8Tensor", "[1, 64]")}},
     "tensor m._weight_act_pre_scale: found F32 [64], allowed none"},
    {TORCHAO,
     {{"_weight_qdata", "I8", {8, 32}, NULL},
      {"_weight_scale", "BF16", {8, 2}, NULL},
      {"weight", "JSON", {0}, NOTE("Int4Tensor", "[1, 32]")}},
     "tensor m._weight_scale: found BF16 [8, 2], allowed F32, F16 or BF16 [2, 8]"},
    {TORCHAO,
     {{"_weight_qdata", "I8", {8, 32}, NULL},
      {"weight", "JSON", {0}, NOTE("Int4Tensor", "[2, 32]")}},
     "allowed a block_size of [1, columns]"},
    {TORCHAO,
     {{"_gate_up_proj_qdata", "I8", {8, 32}, NULL}},
     "tensor m._gate_up_proj_qdata: found I8 [8, 32], allowed F32"},
    // MLX: 4 bits.
    {MLX,
     {{"weight", "U32", {8, 8}, NULL},
      {"scales", "F16", {8, 2}, NULL},
      {"biases", "F16", {8, 2}, NULL}},
     READ "MLX 4-bit"},
    {MLX,
     {{"weight", "U32", {8, 8}, NULL}, {"scales", "F16", {8, 2}, NULL}},
     "tensor m.weight: found nothing beside it that ends in .biases, allowed F16, BF16 or F32"},
    {MLX,
     {{"weight", "U32", {8, 9}, NULL}, {"scales", "F16", {8, 2}, NULL}},
     "tensor m.weight: found U32 [8, 9], allowed rows of codes of 2 to 8 bits for its scales'"},
    // Others that are read.
    {GPTQ(", \"desc_act\": true"),
     {{"qweight", "I32", {8, 8}, NULL},
      {"qzeros", "I32", {2, 1}, NULL},
      {"scales", "F16", {2, 8}, NULL},
      {"g_idx", "I32", {64}, ORDER}},
     READ "GPTQ 4-bit"},
    {PACKED("4", ""),
     {{"weight_packed", "U8", {8, 16}, NULL},
      {"weight_scale", "F8_E4M3", {8, 2}, NULL},
      {"weight_global_scale", "F32", {1}, NULL}},
     READ "NVFP4"},
    {PACKED("4", ""),
     {{"weight_packed", "U8", {8, 16}, NULL}, {"weight_scale", "U8", {8, 1}, NULL}},
     READ "MXFP4"},
    {PACKED("8", ""),
     {{"weight", "F8_E4M3", {8, 40}, NULL},
      {"weight_scale", "F32", {1, 1}, NULL},
      {"input_scale", "F32", {1}, NULL}},
     READ "FP8"},
    {BNB, {{"weight", "I8", {8, 16}, NULL}, {"SCB", "F32", {8}, NULL}}, READ "INT8"},
    {PACKED("8", ""),
     {{"weight", "I8", {8, 16}, NULL},
      {"weight_scale", "F32", {8, 1}, NULL},
      {"weight_zero_point", "I8", {8, 1}, NULL},
      {"input_scale", "F32", {1}, NULL}},
     READ "INT8"},
    {PACKED("8", ""),
     {{"weight", "F8_E4M3", {8, 64}, NULL}, {"weight_scale", "U8", {8, 2}, NULL}},
     READ "MXFP8"},
    {BNB,
     {{"weight", "U8", {256, 1}, NULL},
      {"weight.absmax", "F32", {8}, NULL},
      {"weight.quant_map", "F32", {16}, NULL},
      {"weight.quant_state.bitsandbytes__fp4",
       "U8",
       {36},
       "{\"blocksize\": 64, \"shape\": [8, 64]} "}},
     READ "FP4"},
    {"{\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\"}",
     {{"weight", "U8", {8, 16}, NULL},
      {"weight_scale", "F8_E4M3", {8, 2}, NULL},
      {"weight_scale_2", "F32", {1}, NULL}},
     READ "NVFP4"},
    // Forms that nothing reads.
    {BNB,
     {{"qweight", "I32", {8, 8}, NULL}},
     "tensor m.qweight: found I32 [8, 8], allowed F32, F16 or BF16, or packed values with their "
     "scales, as FP8, INT8, AWQ"},
    {BNB, {{"W_q", "I8", {8, 8}, NULL}}, "tensor m.W_q: found I8 [8, 8], allowed F32"},
    {AWQ("gemm"),
     {{"qweight", "I16", {8, 8}, NULL}},
     "tensor m.qweight: found I16 [8, 8], allowed F32"},
    // A config that says what it cannot.
    {"{\"quant_method\": \"awq\", \"group_size\": 0}",
     {{"a", "F32", {1}, NULL}},
     "quantization_config.group_size: found 0, allowed -1 or an integer from 1 on"},
    {"{\"quant_method\": \"compressed-tensors\", \"transform_config\": {\"config_groups\": {\"a\": "
     "{}}}}",
     {{"a", "F32", {1}, NULL}},
     "quantization_config.transform_config: found an object, allowed none"},
    {PACKED("8", ", \"format\": \"sparse-bitmask\""),
     {{"a", "F32", {1}, NULL}},
     "format: found \"sparse-bitmask\", allowed int-"},
    {"{\"quant_method\": \"quark\"}",
     {{"a", "F32", {1}, NULL}},
     "quant_method: found \"quark\", allowed"},
};

// Rows of the source are elements of `whole`, 8 x cols, whose row and column `at` says.
static void check_rows(msgl_pool *pool, const msgl_source *s, int32_t first, int32_t rows,
                       const float *whole, size_t cols,
                       size_t (*at)(size_t cols, size_t row, size_t col))
{
    float got[64 * 64];
    assert_true((size_t)rows * s->cols <= MSGL_COUNT(got));
    assert_null(msgl__source_direct(s, 0));
    msgl__source_rows(pool, s, first, rows, got);
    for (size_t r = 0; r < (size_t)rows; r++) {
        for (size_t c = 0; c < s->cols; c++) {
            const float want = whole[at(cols, r + (size_t)first, c)];
            assert_memory_equal(&got[r * s->cols + c], &want, sizeof want);
        }
    }
}

static size_t plain(size_t cols, size_t row, size_t col)
{
    return row * cols + col;
}

// Heads of 4 rows: 0 2 1 3.
static size_t paired(size_t cols, size_t row, size_t col)
{
    static const size_t order[4] = {0, 2, 1, 3};
    return (row / 4 * 4 + order[row % 4]) * cols + col;
}

static size_t from_5(size_t cols, size_t row, size_t col)
{
    return row * cols + 5 + col;
}

static size_t transposed(size_t cols, size_t row, size_t col)
{
    return (col + 3) * cols + row;
}

static void check_values(msgl_pool *pool, const msgl_tensor *t)
{
    float whole[8 * 64];
    const size_t cols = (size_t)t->dims[1];
    const msgl_packed p = {&t->packing, t->data, 8, cols};
    assert_true(cols <= 64);
    for (size_t r = 0; r < 8; r++) t->packing.form->expand(&p, r, 0, cols, whole + r * cols);
    msgl_source s = {.t = t, .want = MSGL_F32, .cols = cols};
    check_rows(pool, &s, 1, 7, whole, cols, plain);
    s.head = 4, s.pairs = 2;
    check_rows(pool, &s, 1, 7, whole, cols, paired);
    s = (msgl_source){.t = t, .want = MSGL_F32, .cols = cols - 8, .all_cols = cols, .first_col = 5};
    check_rows(pool, &s, 2, 5, whole, cols, from_5);
    s = (msgl_source){.t = t, .want = MSGL_F32, .cols = 4, .first = 3, .transposed = true};
    check_rows(pool, &s, 1, (int32_t)cols - 1, whole, cols, transposed);
    for (size_t i = 0; i < 8 * cols; i += 7) {
        const float got = msgl__source_element(&(msgl_source){.t = t}, i);
        assert_memory_equal(&got, &whole[i], sizeof got);
    }
    size_t from, bytes;
    msgl__source_span(&s, 1, cols - 1, &from, &bytes);
    assert_true(from + bytes <= t->bytes);
}

// What the form's descriptor says of bits: the codes are of its number, and scales of one byte are
// as many as it says.
static void check_bits(const msgl_tensor *t)
{
    int count;
    const msgl_adapter *const *all = msgl__adapters(&count);
    const size_t elements = (size_t)(t->dims[0] * t->dims[1]);
    bool found = false;
    for (int i = 0; i < count; i++) {
        if (strcmp(all[i]->name, t->packed) != 0) continue;
        const int32_t group = all[i]->group;
        const size_t bits = t->packing.bits > 0 ? (size_t)t->packing.bits : t->bytes * 8 / elements;
        assert_true((all[i]->bits >> bits & 1) != 0);
        assert_true(t->bytes * 8 >= bits * elements);
        if (group > 0) {
            const msgl_side *scales = &t->packing.sides[MSGL_SCALES];
            assert_int_equal(scales->bytes * (size_t)group, elements);
        }
        found = true;
    }
    assert_true(found);
}

// All bytes of the folder, those too that are not read, are the one weight's.
static void check_contents(const msgl_checkpoint *c, const char *type)
{
    size_t bytes = 0;
    msgl_type_rows rows;
    for (size_t i = 0; i < msgl__checkpoint_count(c); i++) {
        bytes += msgl__checkpoint_at(c, i)->bytes;
    }
    assert_int_equal(msgl__checkpoint_types(c, &rows, NULL), 0);
    assert_int_equal(rows.count, 1);
    assert_string_equal(rows.at[0].name, type);
    assert_int_equal(rows.at[0].tensors, 1);
    assert_int_equal(rows.at[0].bytes, bytes);
    assert_int_equal(rows.bytes, bytes);
    msgl__type_rows_free(&rows);
}

static void test_refusals(void **state)
{
    (void)state;
    msgl_pool *pool;
    assert_int_equal(msgl__pool_create(2, &pool, NULL), 0);
    for (size_t i = 0; i < MSGL_COUNT(REFUSALS); i++) {
        const refusal *r = &REFUSALS[i];
        folder f;
        msgl_checkpoint *c = NULL;
        msgl_err err = {0};
        folder_make(&f);
        make(&f, r);
        const int code = msgl__checkpoint_open(f.dir, &c, &err);
        const size_t n = sizeof READ - 1;
        const bool reads = strncmp(r->expect, READ, n) == 0;
        if (reads && code != 0) fail_msg("%zu: %s", i, err.text);
        if (!reads && (code == 0 || strstr(err.text, r->expect) == NULL)) {
            fail_msg("%zu: \"%s\", expected \"%s\"", i, err.text, r->expect);
        }
        if (reads) {
            const msgl_tensor *t = msgl__checkpoint_find(c, "m.weight");
            assert_non_null(t);
            assert_true(t->loadable && t->ndim == 2 && t->dims[0] == 8);
            check_values(pool, t);
            check_bits(t);
            check_contents(c, r->expect + n);
            for (size_t k = 0; k < msgl__checkpoint_count(c); k++) {
                const msgl_tensor *s = msgl__checkpoint_at(c, k);
                assert_true(s == t || s->is_side);
            }
        }
        msgl__checkpoint_close(c);
        folder_remove(&f);
    }
    msgl__pool_destroy(pool);
}

// One scale and one zero point, which is not packed: what compressed-tensors 0.20.0 made of these
// values (strategy "tensor", not symmetric).
static void test_zero_of_all(void **state)
{
    (void)state;
    static const float scale = 0.25f,
                       want[2][8] = {{-0.5f, -0.25f, 0, 0.25f, 0.5f, 1, 1.5f, 2},
                                     {3.25f, 2.75f, 2.25f, 1.75f, 1.25f, 0.75f, 0, -0.5f}};
    static const uint32_t words[2] = {0xa8643210, 0x02579bdf};
    static const int64_t shape[2] = {2, 8};
    const refusal r = {PACKED("4", ""),
                       {{"weight_packed", "I32", {2, 1}, words},
                        {"weight_scale", "F32", {1}, &scale},
                        {"weight_shape", "I64", {2}, shape},
                        {"weight_zero_point", "I8", {1}, "\xfa"}},
                       ""};
    folder f;
    msgl_checkpoint *c = NULL;
    folder_make(&f);
    make(&f, &r);
    assert_int_equal(msgl__checkpoint_open(f.dir, &c, NULL), 0);
    const msgl_tensor *t = msgl__checkpoint_find(c, "m.weight");
    assert_non_null(t);
    const msgl_packed p = msgl__packed_of(t);
    for (size_t i = 0; i < 2; i++) {
        float got[8];
        t->packing.form->expand(&p, i, 0, 8, got);
        assert_memory_equal(got, want[i], sizeof got);
    }
    msgl__checkpoint_close(c);
    folder_remove(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_zero_of_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
