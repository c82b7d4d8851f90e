// SPDX-License-Identifier: Apache-2.0
//
// Matrices of numbers of eight bits with scales beside them. Which rows and columns share one the
// scales' shape says. Scales of activations are not read: activations are not quantised here.
#include <string.h>

#include "models/adapters.h"

static void take_activations(const msgl_adapting *a)
{
    static const char WEIGHT[] = ".weight";
    static const char *const names[] = {".input_scale", ".input_zero_point", ".activation_scale"};
    const size_t n = sizeof WEIGHT - 1;
    msgl_adapting module = *a;
    if (a->module < n || strcmp(a->t->name + a->module - n, WEIGHT) != 0) return;
    module.module -= n;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) msgl__take_unused(&module, names[i]);
}

// E4M3: X_scale_inv of DeepSeek-V3 (DeepSeek-AI 2024, section 3.3.2) and of transformers, X_scale
// of all others. Both are multiplied by. exponents: those of type U8 are asked for, which are
// exponents, else all others.
static int claim_e4m3(msgl_adapting *a, bool exponents)
{
    const msgl_tensor *t = a->t;
    const char *name = msgl__beside(a, "_scale_inv") != NULL ? "_scale_inv" : "_scale";
    const msgl_tensor *s = msgl__beside(a, name);
    if (s == NULL || (strcmp(s->type, "U8") == 0) != exponents) return 0;
    a->t->packing = (msgl_packing){.form = &msgl__stored_numbers, .number = MSGL_NUMBER_E4M3};
    const int code = msgl__take_scales(a, name, "F32, F16, BF16, F8_E8M0 or U8", t->dims[0],
                                       t->dims[1], a->q->block);
    if (code != 0) return code;
    if (exponents) a->t->packing.sides[MSGL_SCALES].type = MSGL_NUMBER_E8M0;
    take_activations(a);
    return 1;
}

static int claim_fp8(msgl_adapting *a)
{
    return claim_e4m3(a, false);
}

static int claim_mxfp8(msgl_adapting *a)
{
    return claim_e4m3(a, true);
}

const msgl_adapter msgl__adapter_fp8 = {
    .name = "FP8",
    .from = "DeepSeek-V3, transformers, FBGEMM, compressed-tensors, ModelOpt",
    .bits = 1u << 8,
    .suffix = "",
    .type = "F8_E4M3",
    .ndim = 2,
    .claim = claim_fp8};

const msgl_adapter msgl__adapter_mxfp8 = {.name = "MXFP8",
                                          .from = "compressed-tensors, ModelOpt",
                                          .bits = 1u << 8,
                                          .group = 32,
                                          .suffix = "",
                                          .type = "F8_E4M3",
                                          .ndim = 2,
                                          .claim = claim_mxfp8};

// int-quantized of compressed-tensors: X_scale, and X_zero_point of the same shape.
static int claim_int8(msgl_adapting *a)
{
    const msgl_tensor *t = a->t, *s = msgl__beside(a, "_scale");
    if (s == NULL) return 0;
    a->t->packing = (msgl_packing){.form = &msgl__stored_numbers, .number = MSGL_NUMBER_I8};
    int code =
        msgl__take_scales(a, "_scale", "F32, F16 or BF16", t->dims[0], t->dims[1], a->q->block);
    if (code == 0 && msgl__beside(a, "_zero_point") != NULL) {
        code = msgl__take_side(a, MSGL_ZEROS, "_zero_point", "I8", s->ndim, s->dims);
    }
    if (code != 0) return code;
    take_activations(a);
    return 1;
}

const msgl_adapter msgl__adapter_int8 = {.name = "INT8",
                                         .from = "compressed-tensors",
                                         .bits = 1u << 8,
                                         .suffix = "",
                                         .type = "I8",
                                         .ndim = 2,
                                         .claim = claim_int8};

// int8 of bitsandbytes: the largest magnitude of each row, which is 127 of its numbers.
static int claim_bnb_int8(msgl_adapting *a)
{
    const int64_t rows = a->t->dims[0];
    if (msgl__beside(a, ".SCB") == NULL) return 0;
    a->t->packing = (msgl_packing){.form = &msgl__stored_numbers,
                                   .number = MSGL_NUMBER_I8,
                                   .group_rows = 1,
                                   .group = (size_t)a->t->dims[1],
                                   .factor = 1 / 127.0f};
    const int code = msgl__take_side(a, MSGL_SCALES, ".SCB", "F32", 1, &rows);
    if (code != 0) return code;
    msgl__take_unused(a, ".weight_format");
    return 1;
}

const msgl_adapter msgl__adapter_bnb_int8 = {.name = "INT8",
                                             .from = "bitsandbytes",
                                             .bits = 1u << 8,

                                             .suffix = ".weight",
                                             .type = "I8",
                                             .ndim = 2,
                                             .named = ".weight",
                                             .claim = claim_bnb_int8};

// DeepSeek-V4's: X.weight and X.scale.
static int claim_v4_fp8(msgl_adapting *a)
{
    const msgl_tensor *t = a->t;
    if (msgl__beside(a, ".scale") == NULL) return 0;
    a->t->packing = (msgl_packing){.form = &msgl__stored_numbers, .number = MSGL_NUMBER_E4M3};
    const int code =
        msgl__take_scales(a, ".scale", "F32, BF16 or F8_E8M0", t->dims[0], t->dims[1], a->q->block);
    return code != 0 ? code : 1;
}

const msgl_adapter msgl__adapter_v4_fp8 = {.name = "FP8",
                                           .from = "DeepSeek-V4",
                                           .bits = 1u << 8,
                                           .suffix = ".weight",
                                           .type = "F8_E4M3",
                                           .ndim = 2,
                                           .claim = claim_v4_fp8};
