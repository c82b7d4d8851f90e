// SPDX-License-Identifier: Apache-2.0
#include "quant/blocks.h"

#include <stddef.h>
#include <string.h>

#include "core/attributes.h"

// Those that GGUF files have.
static const msgl_blocks *const GGML[] = {
    &msgl__blocks_f64,        &msgl__blocks_q4_0,    &msgl__blocks_q4_1,   &msgl__blocks_q5_0,
    &msgl__blocks_q5_1,       &msgl__blocks_q8_0,    &msgl__blocks_q2_k,   &msgl__blocks_q3_k,
    &msgl__blocks_q4_k,       &msgl__blocks_q5_k,    &msgl__blocks_q6_k,   &msgl__blocks_iq1_s,
    &msgl__blocks_iq1_m,      &msgl__blocks_iq2_s,   &msgl__blocks_iq2_xs, &msgl__blocks_iq2_xxs,
    &msgl__blocks_iq3_s,      &msgl__blocks_iq3_xxs, &msgl__blocks_iq4_nl, &msgl__blocks_iq4_xs,
    &msgl__blocks_ggml_mxfp4, &msgl__blocks_nvfp4,   &msgl__blocks_tq1_0,  &msgl__blocks_tq2_0,
    &msgl__blocks_q1_0,       &msgl__blocks_q2_0,
};

const msgl_blocks *msgl__blocks_of_ggml(const char *type_name)
{
    for (size_t i = 0; i < MSGL_COUNT(GGML); i++) {
        if (strcmp(type_name, GGML[i]->name) == 0) return GGML[i];
    }
    return NULL;
}

const msgl_blocks *const *msgl__blocks_all(int *count)
{
    *count = (int)MSGL_COUNT(GGML);
    return GGML;
}

static void expand_codes(const msgl_codes *c, int32_t elements, const uint8_t *block, float *values)
{
    msgl_code_block b;
    msgl__codes_split(c, block, &b);
    for (int32_t at = 0; at < elements; at += c->group) {
        float scale, offset;
        msgl__codes_scale(c, &b, at / c->group, &scale, &offset);
        for (int32_t i = at; i < at + c->group; i++) {
            values[i] = msgl__codes_value(c, scale, offset, msgl__code_number(c, b.codes[i]));
        }
    }
}

void msgl__blocks_expand(const msgl_blocks *b, const uint8_t *block, float *values)
{
    if (b->expand != NULL) {
        b->expand(block, values);
    } else {
        expand_codes(b->codes, b->elements, block, values);
    }
}
