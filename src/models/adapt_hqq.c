// SPDX-License-Identifier: Apache-2.0
//
// HQQ: MODULE.W_q, and MODULE's settings as tensors of one number, or of a text's bytes, beside it.
#include <string.h>

#include "core/attributes.h"
#include "models/adapters.h"

static const char SCALES[] = "F16, BF16 or F32";

// MODULE.packing, and what it says of W_q.
static const struct {
    const char *text, *type;
    int32_t bits, bands;
} PACKINGS[] = {
    {"8bit_u8", "U8", 8, 1}, {"4bit_u8", "U8", 4, 2}, {"3bit_32", "I32", 3, 10},
    {"2bit_u8", "U8", 2, 4}, {"1bit_u8", "U8", 1, 8},
};

// The bands of a word; 0: an error. 8 bits are those of 5 and 6 too, and 2 those of 1.58.
static int32_t take_packing(msgl_adapting *a)
{
    const msgl_tensor *s = msgl__beside(a, ".packing");
    for (size_t i = 0; s != NULL && i < MSGL_COUNT(PACKINGS); i++) {
        const size_t n = strlen(PACKINGS[i].text);
        if (strcmp(s->type, "U8") != 0 || s->bytes != n || strcmp(a->t->type, PACKINGS[i].type) ||
            memcmp(s->data, PACKINGS[i].text, n) != 0) {
            continue;
        }
        a->t->packing.bits = PACKINGS[i].bits;
        return PACKINGS[i].bands;
    }
    msgl__adapt_error(a, s != NULL ? s : a->t,
                      "8bit_u8, 4bit_u8, 2bit_u8 or 1bit_u8 of U8, or 3bit_32 of I32, as its "
                      ".packing");
    return 0;
}

// The integer at place i of MODULE's `name`, of `count`; 0 or less where there is none.
static int64_t integer_of(const msgl_adapting *a, const char *name, size_t count, size_t i)
{
    const msgl_tensor *s = msgl__beside(a, name);
    const bool wide = s != NULL && strcmp(s->type, "I64") == 0;
    if (s == NULL || (!wide && strcmp(s->type, "I32") != 0)) return -1;
    if (s->bytes != count * (wide ? 8 : 4)) return -1;
    return msgl__integer_at(s->data, wide ? MSGL_NUMBER_I64 : MSGL_NUMBER_I32, i);
}

// The matrix's shape, of as many elements as the codes' rows have.
static int take_shape(msgl_adapting *a, int64_t bands, int64_t dims[2])
{
    const msgl_tensor *t = a->t, *s = msgl__beside(a, ".shape");
    for (size_t i = 0; i < 2; i++) dims[i] = integer_of(a, ".shape", 2, i);
    const bool good = dims[0] > 0 && dims[1] > 0 && dims[0] <= INT32_MAX && dims[1] <= INT32_MAX;
    const int64_t rows = good ? dims[0] * dims[1] / t->dims[1] : 0;
    if (rows > 0 && rows * t->dims[1] == dims[0] * dims[1] &&
        (rows + bands - 1) / bands == t->dims[0]) {
        return 0;
    }
    return msgl__adapt_error(a, s != NULL ? s : t,
                             "I64 [2] as its .shape, of a matrix with as many elements as its "
                             ".W_q has codes");
}

static void take_settings(const msgl_adapting *a)
{
    static const char *const names[] = {".nbits",
                                        ".group_size",
                                        ".shape",
                                        ".axis",
                                        ".packing",
                                        ".channel_wise",
                                        ".optimize",
                                        ".round_zero",
                                        ".quant_scale",
                                        ".quant_zero",
                                        ".compute_dtype",
                                        ".unpack_view_dtype",
                                        ".view_as_float",
                                        ".offload_meta",
                                        ".encoded_state_dict",
                                        ".stores_quant_config"};
    for (size_t i = 0; i < MSGL_COUNT(names); i++) msgl__take_unused(a, names[i]);
}

static int claim_hqq(msgl_adapting *a)
{
    msgl_tensor *t = a->t;
    int64_t dims[2];
    t->packing = (msgl_packing){.form = &msgl__stored_bands, .group = (size_t)t->dims[1]};
    const int64_t bands = take_packing(a);
    if (bands == 0) return MSGL_EUNSUPPORTED;
    int code = take_shape(a, bands, dims);
    if (code != 0) return code;
    const int64_t axis = integer_of(a, ".axis", 1, 0);
    const msgl_tensor *s = msgl__beside(a, ".axis");
    if (axis != 0 && axis != 1) {
        return msgl__adapt_error(a, s != NULL ? s : t, "I32 [], 0 or 1, as its .axis");
    }
    t->packing.strided = axis == 0;
    const int64_t groups[2] = {axis == 0 ? 1 : dims[0] * dims[1] / t->dims[1],
                               axis == 0 ? t->dims[1] : 1};
    code = msgl__take_side(a, MSGL_SCALES, ".scale", SCALES, 2, groups);
    if (code == 0) code = msgl__take_side(a, MSGL_ZEROS, ".zero", SCALES, 2, groups);
    if (code != 0) return code;
    take_settings(a);
    msgl__claim_matrix(a, dims[0], dims[1]);
    return 1;
}

const msgl_adapter msgl__adapter_hqq = {.name = "HQQ",
                                        .from = "hqq, transformers",
                                        .bits = 1u << 1 | 1u << 2 | 1u << 3 | 1u << 4 | 1u << 8,

                                        .suffix = ".W_q",
                                        .type = "U8 or I32",
                                        .ndim = 2,
                                        .named = ".weight",
                                        .claim = claim_hqq};
