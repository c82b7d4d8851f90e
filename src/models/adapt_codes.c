// SPDX-License-Identifier: Apache-2.0
//
// Matrices of integers of 2 to 8 bits in words of 32 bits, with scales and zero points by group:
// AWQ, GPTQ, and pack-quantized of compressed-tensors.
#include <string.h>

#include "core/attributes.h"
#include "models/adapters.h"

static const char SCALES[] = "F16, BF16 or F32";

// Groups by the tensor of scales, whose first dimension they are; 0: there is no such tensor.
static int64_t groups_of(const msgl_adapting *a)
{
    const msgl_tensor *s = msgl__beside(a, ".scales");
    return s != NULL && s->ndim == 2 ? s->dims[0] : 0;
}

// The columns of a group, when `groups` of them are all columns: config.json's, or where modules
// differ, equal ones. Example: 3 groups of 96 columns are groups of 32, though config.json has 48.
static int take_group(msgl_adapting *a, int64_t cols, int64_t groups)
{
    int64_t group = a->q->group > 0 ? a->q->group : cols;
    const bool fits = groups == (cols + group - 1) / group;
    const bool equal = !fits && a->q->mixed && groups > 0 && cols % groups == 0;
    if (equal) group = cols / groups;
    if (fits || equal) {
        a->t->packing.group = (size_t)group;
        return 0;
    }
    const msgl_tensor *s = msgl__beside(a, ".scales");
    return msgl__adapt_error(a, s != NULL ? s : a->t,
                             s != NULL ? "scales for each group of config.json's group_size columns"
                                       : "a tensor that ends in .scales beside it");
}

// ---- AWQ ----

static int claim_awq(msgl_adapting *a)
{
    msgl_tensor *t = a->t;
    if (a->q->method != MSGL_QUANT_AWQ) return 0;
    const bool by_rows = a->q->by_rows;
    const int64_t rows = by_rows ? t->dims[0] : t->dims[1] * 8;
    const int64_t cols = by_rows ? t->dims[1] * 8 : t->dims[0];
    t->packing = (msgl_packing){
        .form = by_rows ? &msgl__stored_awq_rows : &msgl__stored_awq, .bits = 4, .group_rows = 1};
    int64_t zeros[2], scales[2];
    int code;
    if (by_rows) {
        const msgl_tensor *z = msgl__beside(a, ".qzeros");
        const int64_t group = a->q->group > 0 ? a->q->group : cols;
        const int64_t groups = (cols + group - 1) / group, least = (groups + 7) / 8;
        // Words of zero points are padded, by a rule that differs between groups.
        const int64_t words =
            z != NULL && z->ndim == 2 && z->dims[1] >= least && z->dims[1] < INT32_MAX ? z->dims[1]
                                                                                       : least;
        t->packing.group = (size_t)group;
        zeros[0] = scales[0] = rows;
        zeros[1] = words, scales[1] = words * 8;
        code = 0;
    } else {
        const int64_t groups = groups_of(a);
        code = take_group(a, cols, groups);
        zeros[0] = scales[0] = groups;
        zeros[1] = rows / 8, scales[1] = rows;
    }
    if (code == 0) code = msgl__take_side(a, MSGL_ZEROS, ".qzeros", "I32", 2, zeros);
    if (code == 0) code = msgl__take_side(a, MSGL_SCALES, ".scales", SCALES, 2, scales);
    if (code != 0) return code;
    msgl__claim_matrix(a, rows, cols);
    return 1;
}

const msgl_adapter msgl__adapter_awq = {.name = "AWQ",
                                        .from = "AutoAWQ, AutoRound",
                                        .bits = 1u << 4,

                                        .suffix = ".qweight",
                                        .type = "I32",
                                        .ndim = 2,
                                        .named = ".weight",
                                        .claim = claim_awq};

// ---- GPTQ ----

// Each column's group is one of `groups`. An order in which each is the one that it is in is none.
static int check_order(const msgl_adapting *a, const char *name, int64_t cols, int64_t groups)
{
    msgl_packing *p = &a->t->packing;
    const uint8_t *order = p->sides[MSGL_ORDER].data;
    bool moves = false;
    for (int64_t i = 0; i < cols; i++) {
        const int64_t group = msgl__integer_at(order, MSGL_NUMBER_I32, (size_t)i);
        moves = moves || group != i / (int64_t)p->group;
        if (group >= 0 && group < groups) continue;
        return msgl__adapt_error(a, msgl__beside(a, name), "numbers of groups that there are");
    }
    if (!moves) p->sides[MSGL_ORDER] = (msgl_side){0};
    return 0;
}

static int take_zeros(msgl_adapting *a, int64_t rows, int64_t groups)
{
    static const uint32_t ONES[9] = {[2] = 0x55555555, [4] = 0x11111111, [8] = 0x01010101};
    msgl_packing *p = &a->t->packing;
    const int64_t zeros[2] = {groups, (rows * p->bits + 31) / 32};
    const int code = msgl__take_side(a, MSGL_ZEROS, ".qzeros", "I32", 2, zeros);
    if (code != 0 || a->q->zeros == MSGL_ZEROS_PLAIN) return code;
    if (a->q->zeros == MSGL_ZEROS_EACH_LESS) {
        p->zero_plus = 1;
        return 0;
    }
    p->zeros_plus = ONES[p->bits];
    if (p->zeros_plus != 0) return 0;
    // Zero points of 3 bits: GPTQModel's earlier releases take constants from words that are 4, 1
    // or 2 of a code, by the word that it is in; 7.7.0 and AutoGPTQ take 1. They agree on what a
    // symmetric file means.
    if (!a->q->symmetric) {
        return msgl__adapt_error(a, a->t,
                                 "sym: true, with 3 bits and checkpoint_format gptq: its zero "
                                 "points are ambiguous");
    }
    p->sides[MSGL_ZEROS] = (msgl_side){0};
    p->zero = 4;
    return 0;
}

// Bits of a code: config.json's, or where modules differ, those whose zero points have .qzeros'
// words. Example: 96 rows of 5 bits have 15 of them, as those of no other number of bits have.
static int find_gptq_bits(msgl_adapting *a, int64_t rows)
{
    const msgl_tensor *z = msgl__beside(a, ".qzeros");
    msgl_packing *p = &a->t->packing;
    p->bits = a->q->bits;
    if (!a->q->mixed || z == NULL || z->ndim != 2) return 0;
    if (rows % 32 != 0) {
        return msgl__adapt_error(a, a->t,
                                 "a second dimension of whole 32, where modules differ in bits");
    }
    for (int32_t bits = 2; bits <= 8; bits++) {
        if ((a->q->may_have >> bits & 1) != 0 && z->dims[1] == rows / 32 * bits) p->bits = bits;
    }
    return 0;
}

// Exporters gave modules a bias of zeros whose models have none.
static void take_no_bias(const msgl_adapting *a)
{
    msgl_tensor *bias = msgl__beside(a, ".bias");
    if (bias == NULL) return;
    size_t i = 0;
    while (i < bias->bytes && bias->data[i] == 0) i++;
    if (i == bias->bytes) msgl__take(a, bias);
}

static int claim_gptq(msgl_adapting *a)
{
    msgl_tensor *t = a->t;
    if (a->q->method != MSGL_QUANT_GPTQ) return 0;
    const int64_t rows = t->dims[1], groups = groups_of(a);
    t->packing = (msgl_packing){.form = &msgl__stored_gptq, .group_rows = 1};
    int code = find_gptq_bits(a, rows);
    if (code != 0) return code;
    const int32_t bits = t->packing.bits;
    const int64_t cols = t->dims[0] * 32 / bits;
    if (t->dims[0] * 32 % bits != 0) {
        return msgl__adapt_error(a, t, "a first dimension of whole codes of config.json's bits");
    }
    const int64_t scales[2] = {groups, rows};
    code = take_group(a, cols, groups);
    if (code == 0) code = msgl__take_side(a, MSGL_SCALES, ".scales", SCALES, 2, scales);
    if (code == 0) code = take_zeros(a, rows, groups);
    if (code == 0 && a->q->ordered) {
        code = msgl__take_side(a, MSGL_ORDER, ".g_idx", "I32", 1, &cols);
        if (code == 0) code = check_order(a, ".g_idx", cols, groups);
    }
    if (code != 0) return code;
    msgl__take_unused(a, ".g_idx");
    take_no_bias(a);
    msgl__claim_matrix(a, rows, cols);
    return 1;
}

const msgl_adapter msgl__adapter_gptq = {.name = "GPTQ",
                                         .from = "AutoGPTQ, GPTQModel, AutoRound",
                                         .bits = MSGL_BITS_2_TO_8,

                                         .suffix = ".qweight",
                                         .type = "I32",
                                         .ndim = 2,
                                         .named = ".weight",
                                         .claim = claim_gptq};

// ---- pack-quantized of compressed-tensors ----

static int64_t words_of(int64_t n, int32_t bits, bool by_word)
{
    return by_word ? (n + 32 / bits - 1) / (32 / bits) : (n * bits + 31) / 32;
}

// Bits of the codes and how they are packed: what config_groups allow and the words of a row fit.
// Releases from 0.18 on pack codes of 3, 5, 6 and 7 bits as one stream, earlier ones whole codes
// into each word.
static int find_bits(msgl_adapting *a, int64_t cols)
{
    static const int32_t usual[] = {4, 8};
    const msgl_quantization *q = a->q;
    const int32_t *bits = q->num_schemes > 0 ? q->schemes : usual;
    const int32_t n = q->num_schemes > 0 ? q->num_schemes : (int32_t)MSGL_COUNT(usual);
    const int64_t words = a->t->dims[1];
    msgl_packing *p = &a->t->packing;
    for (int32_t i = 0; i < n; i++) {
        if (bits[i] < 2 || bits[i] > 8 || bits[i] == p->bits) continue;
        bool dense = words == words_of(cols, bits[i], false);
        bool by_word = words == words_of(cols, bits[i], true) && 32 % bits[i] != 0;
        if (dense && by_word && q->release > 0) dense = q->release >= 18, by_word = !dense;
        if (!dense && !by_word) continue;
        if ((dense && by_word) || p->bits != 0) {
            return msgl__adapt_error(a, a->t,
                                     "words that fit one of the config_groups alone, and the "
                                     "quantization_config's version, the release that wrote it");
        }
        p->bits = bits[i];
        p->per_word = by_word ? 32 / bits[i] : 0;
    }
    if (p->bits != 0) return 0;
    return msgl__adapt_error(a, a->t, "words of codes of 2 to 8 bits, as config_groups have them");
}

// weight_shape: two numbers, the matrix's rows and columns.
static int take_shape(msgl_adapting *a, int64_t *cols)
{
    msgl_tensor *s = msgl__beside(a, ".weight_shape");
    const bool wide = s != NULL && strcmp(s->type, "I64") == 0;
    if (s == NULL || s->ndim != 1 || s->dims[0] != 2 || (!wide && strcmp(s->type, "I32") != 0)) {
        return msgl__adapt_error(a, s != NULL ? s : a->t, "I64 [2] as its .weight_shape");
    }
    const msgl_number type = wide ? MSGL_NUMBER_I64 : MSGL_NUMBER_I32;
    const int64_t rows = msgl__integer_at(s->data, type, 0);
    *cols = msgl__integer_at(s->data, type, 1);
    if (rows != a->t->dims[0] || *cols < 1 || *cols > INT32_MAX) {
        return msgl__adapt_error(a, s, "the number of rows of its .weight_packed, and of columns");
    }
    msgl__take(a, s);
    return 0;
}

// The columns' groups, if they say one; -1 in all of them says none.
static int take_order(msgl_adapting *a, int64_t cols)
{
    static const char NAME[] = ".weight_g_idx";
    const msgl_tensor *s = msgl__beside(a, NAME);
    if (s == NULL) return 0;
    int code = msgl__take_side(a, MSGL_ORDER, NAME, "I32", 1, &cols);
    if (code != 0) return code;
    msgl_packing *p = &a->t->packing;
    if (msgl__integer_at(s->data, MSGL_NUMBER_I32, 0) == -1) {
        p->sides[MSGL_ORDER] = (msgl_side){0};
        return 0;
    }
    return check_order(a, NAME, cols, cols / (int64_t)p->group);
}

// Zero points, packed as codes are; that of a scale for all is a number by itself.
static int take_row_zeros(msgl_adapting *a, int64_t rows, int64_t cols)
{
    static const char NAME[] = ".weight_zero_point";
    msgl_packing *p = &a->t->packing;
    msgl_tensor *s = msgl__beside(a, NAME);
    if (s == NULL) return 0;
    if (strcmp(s->type, "I8") != 0 || s->bytes != 1 || p->group_rows != (size_t)rows) {
        const int64_t zeros[2] = {words_of(rows, p->bits, p->per_word > 0),
                                  cols / (int64_t)p->group};
        return msgl__take_side(a, MSGL_ZEROS, NAME, "I32", 2, zeros);
    }
    const int32_t half = 1 << (p->bits - 1), zero = (int8_t)s->data[0];
    if (zero < -half || zero >= half) {
        return msgl__adapt_error(a, s, "a number that a code can stand for");
    }
    p->zero = half + zero;
    msgl__take(a, s);
    return 0;
}

static int claim_rows(msgl_adapting *a)
{
    msgl_tensor *t = a->t;
    const int64_t rows = t->dims[0];
    int64_t cols = 0;
    t->packing = (msgl_packing){.form = &msgl__stored_rows};
    int code = take_shape(a, &cols);
    if (code == 0) code = find_bits(a, cols);
    if (code != 0) return code;
    msgl_packing *p = &t->packing;
    p->zero = 1 << (p->bits - 1);
    code = msgl__take_scales(a, ".weight_scale", SCALES, rows, cols, (int64_t[]){1, cols});
    if (code == 0) code = take_row_zeros(a, rows, cols);
    if (code == 0) code = take_order(a, cols);
    if (code != 0) return code;
    msgl__take_unused(a, ".input_scale");
    msgl__take_unused(a, ".input_zero_point");
    msgl__take_unused(a, ".input_global_scale");
    msgl__claim_matrix(a, rows, cols);
    return 1;
}

const msgl_adapter msgl__adapter_packed = {.name = "pack-quantized",
                                           .from = "compressed-tensors",
                                           .bits = MSGL_BITS_2_TO_8,

                                           .suffix = ".weight_packed",
                                           .type = "I32",
                                           .ndim = 2,
                                           .named = ".weight",
                                           .claim = claim_rows};

// ---- MLX ----

// [rows, cols * bits / 32], one stream of bits in each row, which is whole groups.
static int claim_affine(msgl_adapting *a)
{
    msgl_tensor *t = a->t;
    const msgl_tensor *s = msgl__beside(a, ".scales");
    if (a->q->method != MSGL_QUANT_MLX || s == NULL) return 0;
    const int64_t groups = s->ndim == 2 && s->dims[1] < INT32_MAX ? s->dims[1] : 0;
    const int64_t rows = t->dims[0], cols = groups * a->q->group, room = t->dims[1] * 32;
    if (cols == 0 || room % cols != 0 || room / cols < 2 || room / cols > 8) {
        return msgl__adapt_error(a, t,
                                 "rows of codes of 2 to 8 bits for its scales' groups of "
                                 "config.json's group_size columns");
    }
    t->packing = (msgl_packing){.form = &msgl__stored_affine,
                                .bits = (int32_t)(room / cols),
                                .group_rows = 1,
                                .group = (size_t)a->q->group};
    const int64_t dims[2] = {rows, groups};
    int code = msgl__take_side(a, MSGL_SCALES, ".scales", SCALES, 2, dims);
    if (code == 0) code = msgl__take_side(a, MSGL_BIASES, ".biases", SCALES, 2, dims);
    if (code != 0) return code;
    msgl__claim_matrix(a, rows, cols);
    return 1;
}

const msgl_adapter msgl__adapter_mlx = {.name = "MLX",
                                        .from = "mlx-lm",
                                        .bits = MSGL_BITS_2_TO_8,

                                        .suffix = ".weight",
                                        .type = "U32",
                                        .ndim = 2,
                                        .named = ".weight",
                                        .claim = claim_affine};
