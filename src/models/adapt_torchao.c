// SPDX-License-Identifier: Apache-2.0
//
// torchao's tensors, flattened for safetensors: MODULE._weight_qdata, _scale and _zero_point, and a
// JSON text in the header that says which class they are of and which elements share a scale.
#include <stdio.h>
#include <string.h>

#include "core/attributes.h"
#include "models/adapters.h"
#include "utils/json.h"

static const char FLOATS[] = "F32, F16 or BF16";

// What the JSON text says.
typedef struct layout {
    char type[32];
    int64_t block[2]; // rows and columns that share a scale; 0: it does not say
} layout;

static const char *const READ[] = {"Int4Tensor", "Int8Tensor", "IntxUnpackedToInt8Tensor",
                                   "Float8Tensor"};

static int read_text(const msgl_adapting *a, const json_t *root, layout *l)
{
    const char *type = json_string_value(json_object_get(root, "_type"));
    const json_t *block = json_object_get(json_object_get(root, "_data"), "block_size");
    size_t i = 0;
    while (i < MSGL_COUNT(READ) && (type == NULL || strcmp(type, READ[i]) != 0)) i++;
    if (i == MSGL_COUNT(READ)) {
        char shown[64], name[96];
        return msgl__err_set(a->err, MSGL_EUNSUPPORTED,
                             "%s: tensor %s: layout in __metadata__: found %s, allowed Int4Tensor, "
                             "Int8Tensor, IntxUnpackedToInt8Tensor or Float8Tensor",
                             msgl__checkpoint_file(a->c, a->t),
                             msgl__printable(a->t->name, name, sizeof name),
                             msgl__printable(type != NULL ? type : "none", shown, sizeof shown));
    }
    *l = (layout){0};
    memcpy(l->type, type, strlen(type) + 1);
    for (size_t k = 0; k < 2 && json_array_size(block) == 2; k++) {
        const json_int_t n = json_integer_value(json_array_get(block, k));
        l->block[k] = n > 0 && n < INT32_MAX ? n : 0;
    }
    return 0;
}

static int read_layout(const msgl_adapting *a, layout *l)
{
    const char *note = a->t->note;
    if (note == NULL) {
        return msgl__adapt_error(a, a->t, "a file whose __metadata__ says its layout");
    }
    json_t *root;
    int code = msgl__json_parse(a->t->name, note, strlen(note), 0, &root, a->err);
    if (code != 0) return msgl__err_prefix(a->err, code, "%s", msgl__checkpoint_file(a->c, a->t));
    code = read_text(a, root, l);
    json_decref(root);
    return code;
}

// 1: it is of this class, a matrix of one of these types, and activations are not scaled.
static int is_of(msgl_adapting *a, const char *type, const char *elements, layout *l)
{
    const int code = read_layout(a, l);
    if (code != 0 || strcmp(l->type, type) != 0) return code;
    const msgl_tensor *t = a->t, *s = msgl__beside(a, "._weight_act_pre_scale");
    if (t->ndim != 2 || !msgl__is_among(elements, t->type)) {
        char allowed[80];
        snprintf(allowed, sizeof allowed, "%s of two dimensions, as %s has", elements, type);
        return msgl__adapt_error(a, t, allowed);
    }
    if (s != NULL) return msgl__adapt_error(a, s, "none: activations are not scaled here");
    if (l->block[0] == 0 || l->block[1] == 0) {
        return msgl__adapt_error(a, t, "a block_size of two integers in its __metadata__");
    }
    return 1;
}

// Zero points of 0 are none.
static void drop_no_zeros(msgl_adapting *a)
{
    msgl_side *zeros = &a->t->packing.sides[MSGL_ZEROS];
    size_t i = 0;
    if (zeros->data == NULL || zeros->type != MSGL_NUMBER_I8) return;
    while (i < zeros->bytes && zeros->data[i] == 0) i++;
    if (i == zeros->bytes) *zeros = (msgl_side){0};
}

// A class of numbers of eight bits. value: (number - zero point) * scale of its block.
static int claim_numbers(msgl_adapting *a, const char *type, const char *elements,
                         msgl_number number)
{
    layout l;
    int code = is_of(a, type, elements, &l);
    if (code != 1) return code;
    msgl_tensor *t = a->t;
    msgl_packing *p = &t->packing;
    const msgl_tensor *s = msgl__beside(a, "._weight_scale");
    *p = (msgl_packing){.form = &msgl__stored_numbers, .number = number};
    code = msgl__take_scales(a, "._weight_scale", FLOATS, t->dims[0], t->dims[1], l.block);
    if (code != 0) return code;
    if (p->group_rows != (size_t)l.block[0] || p->group != (size_t)l.block[1]) {
        return msgl__adapt_error(a, s, "a scale for each block of the block_size in __metadata__");
    }
    if (msgl__beside(a, "._weight_zero_point") != NULL) {
        code = msgl__take_side(a, MSGL_ZEROS, "._weight_zero_point", "I8, F32, F16 or BF16",
                               s->ndim, s->dims);
    }
    if (code != 0) return code;
    drop_no_zeros(a);
    msgl__take_unused(a, "._weight_act_quant_scale");
    msgl__take_unused(a, "._weight_act_quant_zero_point");
    return 1;
}

static int claim_int8(msgl_adapting *a)
{
    return claim_numbers(a, "Int8Tensor", "I8", MSGL_NUMBER_I8);
}

static int claim_intx(msgl_adapting *a)
{
    return claim_numbers(a, "IntxUnpackedToInt8Tensor", "I8", MSGL_NUMBER_I8);
}

static int claim_float8(msgl_adapting *a)
{
    return claim_numbers(a, "Float8Tensor", "F8_E4M3", MSGL_NUMBER_E4M3);
}

// [rows, cols / 2]; scales and zero points are [groups, rows].
static int claim_int4(msgl_adapting *a)
{
    layout l;
    const int code = is_of(a, "Int4Tensor", "I8 or U8", &l);
    if (code != 1) return code;
    msgl_tensor *t = a->t;
    const int64_t rows = t->dims[0], cols = t->dims[1] * 2;
    const int64_t dims[2] = {(cols + l.block[1] - 1) / l.block[1], rows};
    if (l.block[0] != 1) return msgl__adapt_error(a, t, "a block_size of [1, columns]");
    t->packing = (msgl_packing){
        .form = &msgl__stored_int4, .bits = 4, .group_rows = 1, .group = (size_t)l.block[1]};
    int taken = msgl__take_side(a, MSGL_SCALES, "._weight_scale", FLOATS, 2, dims);
    if (taken == 0) taken = msgl__take_side(a, MSGL_ZEROS, "._weight_zero_point", FLOATS, 2, dims);
    if (taken != 0) return taken;
    msgl__claim_matrix(a, rows, cols);
    return 1;
}

#define TORCHAO(as, of, function)                                                                  \
    {                                                                                              \
        .name = as, .from = "torchao", .bits = of, .suffix = "._weight_qdata", .named = ".weight", \
        .claim = function                                                                          \
    }

const msgl_adapter msgl__adapter_ao_int4 = TORCHAO("Int4Tensor", 1u << 4, claim_int4);
const msgl_adapter msgl__adapter_ao_int8 = TORCHAO("Int8Tensor", 1u << 8, claim_int8);
const msgl_adapter msgl__adapter_ao_intx = TORCHAO("IntxUnpackedToInt8Tensor", 1u << 8, claim_intx);
const msgl_adapter msgl__adapter_ao_float8 = TORCHAO("Float8Tensor", 1u << 8, claim_float8);
