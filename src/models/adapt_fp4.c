// SPDX-License-Identifier: Apache-2.0
//
// Matrices of e2m1, two elements in a byte, with scales for each 16 or 32 of a row.
#include <string.h>

#include "models/adapters.h"

// Matrices of a mixture's experts as gpt-oss has them, MXFP4: X_blocks [experts, rows, blocks, 16]
// and X_scales [experts, rows, blocks] are one tensor X [experts, rows, columns].
static int claim_gpt_oss(msgl_adapting *a)
{
    msgl_tensor *t = a->t;
    const msgl_blocks *b = &msgl__blocks_ocp_mxfp4;
    if (t->dims[3] != b->bytes) return 0;
    t->packing = (msgl_packing){.form = &msgl__stored_blocks, .blocks = b};
    const int code = msgl__take_side(a, MSGL_SCALES, "_scales", "U8", 3, t->dims);
    if (code != 0) return code;
    t->packing.sides[MSGL_SCALES].type = MSGL_NUMBER_E8M0;
    t->ndim = 3;
    t->dims[2] *= b->elements;
    return 1;
}

const msgl_adapter msgl__adapter_gpt_oss = {.name = "MXFP4",
                                            .from = "gpt-oss",
                                            .bits = 1u << 4,
                                            .group = 32,

                                            .suffix = "_blocks",
                                            .type = "U8",
                                            .ndim = 4,
                                            .named = "",
                                            .claim = claim_gpt_oss};

static int take_one(msgl_adapting *a, const char *name)
{
    const msgl_tensor *s = msgl__beside(a, name);
    const int64_t one = 1;
    return msgl__take_side(a, MSGL_GLOBAL, name, "F32", s != NULL && s->ndim == 0 ? 0 : 1, &one);
}

// NVFP4: a scale for each 16 of a row and one for all, by which those are multiplied or `divided`.
static int claim_scaled_twice(msgl_adapting *a, const char *global, bool divided)
{
    msgl_tensor *t = a->t;
    const int64_t rows = t->dims[0], cols = t->dims[1] * 2;
    const int64_t scales[2] = {rows, cols / 16};
    if (cols % 16 != 0) return msgl__adapt_error(a, t, "rows of whole groups of 8 bytes");
    t->packing =
        (msgl_packing){.form = &msgl__stored_fp4, .group_rows = 1, .group = 16, .divided = divided};
    int code = msgl__take_side(a, MSGL_SCALES, ".weight_scale", "F8_E4M3", 2, scales);
    if (code == 0) code = take_one(a, global);
    if (code != 0) return code;
    msgl__take_unused(a, ".input_global_scale");
    msgl__take_unused(a, ".input_scale");
    msgl__claim_matrix(a, rows, cols);
    return 1;
}

// Of compressed-tensors' two forms MXFP4 is the one whose scales are exponents.
static bool has_exponents(const msgl_adapting *a)
{
    const msgl_tensor *s = msgl__beside(a, ".weight_scale");
    return s != NULL && strcmp(s->type, "U8") == 0;
}

// [rows, bytes] of blocks, whose exponents are MODULE's `scale` of this type.
static int take_blocks(msgl_adapting *a, const char *scale, const char *type)
{
    msgl_tensor *t = a->t;
    const msgl_blocks *b = &msgl__blocks_ocp_mxfp4;
    const int64_t rows = t->dims[0], cols = t->dims[1] * 2;
    const int64_t scales[2] = {rows, cols / b->elements};
    if (cols % b->elements != 0) return msgl__adapt_error(a, t, "rows of whole groups of 16 bytes");
    t->packing = (msgl_packing){.form = &msgl__stored_blocks, .blocks = b};
    const int code = msgl__take_side(a, MSGL_SCALES, scale, type, 2, scales);
    if (code != 0) return code;
    t->packing.sides[MSGL_SCALES].type = MSGL_NUMBER_E8M0;
    msgl__claim_matrix(a, rows, cols);
    return 1;
}

static int claim_mxfp4(msgl_adapting *a)
{
    return has_exponents(a) ? take_blocks(a, ".weight_scale", "U8") : 0;
}

const msgl_adapter msgl__adapter_mxfp4 = {.name = "MXFP4",
                                          .from = "compressed-tensors",
                                          .bits = 1u << 4,
                                          .group = 32,

                                          .suffix = ".weight_packed",
                                          .type = "U8",
                                          .ndim = 2,
                                          .named = ".weight",
                                          .claim = claim_mxfp4};

static int claim_nvfp4(msgl_adapting *a)
{
    return has_exponents(a) ? 0 : claim_scaled_twice(a, ".weight_global_scale", true);
}

const msgl_adapter msgl__adapter_nvfp4 = {.name = "NVFP4",
                                          .from = "compressed-tensors",
                                          .bits = 1u << 4,
                                          .group = 16,

                                          .suffix = ".weight_packed",
                                          .type = "U8",
                                          .ndim = 2,
                                          .named = ".weight",
                                          .claim = claim_nvfp4};

// ModelOpt.
static int claim_modelopt(msgl_adapting *a)
{
    if (msgl__beside(a, ".weight_scale_2") == NULL) return 0;
    return claim_scaled_twice(a, ".weight_scale_2", false);
}

const msgl_adapter msgl__adapter_modelopt_fp4 = {.name = "NVFP4",
                                                 .from = "ModelOpt",
                                                 .bits = 1u << 4,
                                                 .group = 16,

                                                 .suffix = ".weight",
                                                 .type = "U8",
                                                 .ndim = 2,
                                                 .named = ".weight",
                                                 .claim = claim_modelopt};

// DeepSeek-V4's experts: X.weight and X.scale.
static int claim_v4(msgl_adapting *a)
{
    return msgl__beside(a, ".scale") != NULL ? take_blocks(a, ".scale", "F8_E8M0") : 0;
}

const msgl_adapter msgl__adapter_v4_fp4 = {.name = "MXFP4",
                                           .from = "DeepSeek-V4",
                                           .bits = 1u << 4,
                                           .group = 32,

                                           .suffix = ".weight",
                                           .type = "I8",
                                           .ndim = 2,
                                           .named = ".weight",
                                           .claim = claim_v4};
