// SPDX-License-Identifier: Apache-2.0
//
// NF4 and FP4 of bitsandbytes: MODULE.weight of bytes, whatever type those are called
// (bnb_4bit_quant_storage), and a JSON text in a tensor of bytes beside it that says the matrix's
// shape.
#include <string.h>

#include "models/adapters.h"
#include "utils/json.h"

enum { NESTED = 256, MAX_TEXT = 1 << 16 };

// An integer from 1 on of the text, or 0.
static int64_t positive(const json_t *state, const char *key)
{
    const json_t *v = json_object_get(state, key);
    return json_is_integer(v) && json_integer_value(v) > 0 && json_integer_value(v) < INT32_MAX
               ? json_integer_value(v)
               : 0;
}

static int take_blocks(msgl_adapting *a, const json_t *state, int64_t elements)
{
    const int64_t group = positive(state, "blocksize");
    const msgl_tensor *absmax = msgl__beside(a, ".absmax");
    if (group == 0) return msgl__adapt_error(a, a->t, "a blocksize in its quant_state");
    const int64_t blocks = (elements + group - 1) / group, values = 16;
    const bool nested = absmax != NULL && strcmp(absmax->type, "U8") == 0;
    a->t->packing.group = (size_t)group;
    int code = msgl__take_side(a, MSGL_VALUES, ".quant_map", "F32", 1, &values);
    if (code == 0) code = msgl__take_side(a, MSGL_SCALES, ".absmax", "F32 or U8", 1, &blocks);
    if (code != 0 || !nested) return code;
    const int64_t outer = (blocks + NESTED - 1) / NESTED, inner = 256;
    const json_t *offset = json_object_get(state, "nested_offset");
    if (positive(state, "nested_blocksize") != NESTED || !json_is_number(offset)) {
        return msgl__adapt_error(a, a->t,
                                 "a nested_offset and nested_blocksize 256 in its "
                                 "quant_state");
    }
    a->t->packing.nested_plus = (float)json_number_value(offset);
    code = msgl__take_side(a, MSGL_NESTED, ".nested_absmax", "F32", 1, &outer);
    return code == 0 ? msgl__take_side(a, MSGL_NESTED_VALUES, ".nested_quant_map", "F32", 1, &inner)
                     : code;
}

static int claim_state(msgl_adapting *a, const json_t *state)
{
    msgl_tensor *t = a->t;
    const json_t *shape = json_object_get(state, "shape");
    int64_t dims[2] = {0, 0};
    for (size_t i = 0; i < 2 && json_array_size(shape) == 2; i++) {
        const json_t *n = json_array_get(shape, i);
        dims[i] = json_is_integer(n) ? json_integer_value(n) : 0;
    }
    if (dims[0] < 1 || dims[1] < 1 || dims[0] > INT32_MAX || dims[1] > INT32_MAX ||
        (uint64_t)(dims[0] * dims[1] + 1) / 2 != t->bytes) {
        return msgl__adapt_error(a, t,
                                 "half as many bytes as the shape in its quant_state has "
                                 "elements");
    }
    t->packing = (msgl_packing){.form = &msgl__stored_codebook};
    const int code = take_blocks(a, state, dims[0] * dims[1]);
    if (code != 0) return code;
    msgl__claim_matrix(a, dims[0], dims[1]);
    return 1;
}

static int claim_codebook(msgl_adapting *a, const char *name)
{
    msgl_tensor *s = msgl__beside(a, name);
    if (s == NULL) return 0;
    if (s->ndim != 1 || strcmp(s->type, "U8") != 0 || s->bytes > MAX_TEXT) {
        return msgl__adapt_error(a, s, "U8 of one dimension, up to 65536 bytes");
    }
    json_t *state;
    int code = msgl__json_parse(s->name, (const char *)s->data, s->bytes, 0, &state, a->err);
    if (code != 0) return msgl__err_prefix(a->err, code, "%s", msgl__checkpoint_file(a->c, s));
    msgl__take(a, s);
    code = claim_state(a, state);
    json_decref(state);
    return code;
}

static int claim_nf4(msgl_adapting *a)
{
    return claim_codebook(a, ".quant_state.bitsandbytes__nf4");
}

const msgl_adapter msgl__adapter_nf4 = {.name = "NF4",
                                        .from = "bitsandbytes",
                                        .bits = 1u << 4,
                                        .suffix = "",
                                        .ndim = 2,
                                        .claim = claim_nf4};

static int claim_bnb_fp4(msgl_adapting *a)
{
    return claim_codebook(a, ".quant_state.bitsandbytes__fp4");
}

const msgl_adapter msgl__adapter_bnb_fp4 = {.name = "FP4",
                                            .from = "bitsandbytes",
                                            .bits = 1u << 4,
                                            .suffix = "",
                                            .ndim = 2,
                                            .claim = claim_bnb_fp4};
