// SPDX-License-Identifier: Apache-2.0
#include "utils/code_forms.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/attributes.h"
#include "core/dtype.h"
#include "quant/stored.h"
#include "utils/random.h"
#include "utils/random_blocks.h"

static void put(code_form *out, const msgl_codes *c, const char *what)
{
    snprintf(out->name, sizeof out->name, "%d_bits_%s_%d", (int)c->bits, what, (int)c->span);
    out->codes = *c;
    out->blocks = (msgl_blocks){
        .name = out->name, .elements = 32, .bytes = sizeof(msgl_code_part), .codes = &out->codes};
}

// Each type of scales with each offset and span, and each number of bits with each offset.
enum { PLAIN_FORMS = 4 * 3 * 5, OTHER_FORMS = 8 };

static void put_plain(int i, code_form *out)
{
    static const int BITS[] = {2, 3, 4, 5, 6, 8}, SPANS[] = {32, 64, 128, 256, 0};
    static const char *const WHAT[3][4] = {{"f32", "f32_zero", "f32_min", "f32_float"},
                                           {"f16", "f16_zero", "f16_min", "f16_float"},
                                           {"bf16", "bf16_zero", "bf16_min", "bf16_float"}};
    const int offset = i % 4, number = i / 4 % 3, bits = BITS[(i / 4 + i / 24) % 6];
    const msgl_codes c = {.bits = bits,
                          .group = 32,
                          .zero = offset == MSGL_OFFSET_MIN && bits < 8 ? 0 : 1 << (bits - 1),
                          .offset = (msgl_offset)offset,
                          .number = (msgl_number)number,
                          .span = SPANS[i / 12]};
    put(out, &c, WHAT[number][offset]);
}

// Scales of a byte, codes that are floats, and a factor behind the scales.
static void put_other(int i, code_form *out)
{
    static const int8_t VALUES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    static const struct {
        const char *what;
        msgl_codes codes;
    } FORMS[OTHER_FORMS] = {
        {"e8m0", {4, 32, .values = VALUES, .span = 32, .number = MSGL_NUMBER_E8M0, .factor = 0.5f}},
        {"e4m3_times",
         {4, 16, .values = VALUES, .span = 16, .number = MSGL_NUMBER_E4M3, .factor = 0.03f}},
        {"e4m3_divided",
         {4, 16, .values = VALUES, .span = 16, .number = MSGL_NUMBER_E4M3, .factor = 29,
          .divided = true}},
        {"e4m3_values", {8, 32, .floats = true, .span = 128, .number = MSGL_NUMBER_BF16}},
        {"e4m3_values_e8m0", {8, 32, .floats = true, .span = 32, .number = MSGL_NUMBER_E8M0}},
        {"book", {4, 32, .floats = true, .span = 64}},
        {"int8", {8, 32, .zero = 128, .span = 64}},
        {"factor_last", {8, 32, .zero = 128, .factor = 1 / 127.0f, .factor_last = true}},
    };
    msgl_codes c = FORMS[i].codes;
    if (c.floats && c.bits == 4) {
        for (int j = 0; j < 16; j++) c.book[j] = sinf((float)(j - 8) * 0.2f);
    }
    put(out, &c, FORMS[i].what);
}

int code_forms_count(void)
{
    return PLAIN_FORMS + OTHER_FORMS;
}

void code_forms_get(int i, code_form *out)
{
    if (i < PLAIN_FORMS) {
        put_plain(i, out);
    } else {
        put_other(i - PLAIN_FORMS, out);
    }
}

int code_blocks_all(const msgl_blocks *out[MAX_CODE_BLOCKS])
{
    int num, kept = 0;
    const msgl_blocks *const *all = msgl__blocks_all(&num);
    for (int i = 0; i < num && kept < MAX_CODE_BLOCKS; i++) {
        if (all[i]->codes != NULL) out[kept++] = all[i];
    }
    return kept;
}

static int below(uint64_t *seed, int n)
{
    return (int)(msgl__random(seed) % (uint64_t)n);
}

// The bits of a random number of this type, or a byte that is one.
static uint32_t draw_number(uint64_t *seed, msgl_number type)
{
    const float v = (msgl__random_unit(seed) - 0.5f) * 0.2f;
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    switch (type) {
    case MSGL_NUMBER_F32: return bits;
    case MSGL_NUMBER_F16: return msgl__f32_to_f16(v);
    case MSGL_NUMBER_BF16: return msgl__f32_to_bf16(v);
    case MSGL_NUMBER_E4M3: // subnormal ones too
        return msgl__f32_to_e4m3(v * (below(seed, 2) == 0 ? 100 : 0.1f));
    default: return (uint32_t)(below(seed, 10) + (below(seed, 4) == 0 ? 0 : 115));
    }
}

// A zero point that is no integer: among the codes, or as far below or above them as they reach.
static uint32_t draw_zero(uint64_t *seed, const msgl_codes *c)
{
    const float codes = (float)(1 << c->bits), v = codes * (msgl__random_unit(seed) * 3 - 1);
    uint32_t bits;
    if (c->number == MSGL_NUMBER_F16) return msgl__f32_to_f16(v);
    if (c->number == MSGL_NUMBER_BF16) return msgl__f32_to_bf16(v);
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

// 32 columns; scale and offset stay as they are within a span.
static void draw_part(uint64_t *seed, const msgl_codes *c, bool first, msgl_code_part *part)
{
    for (int i = 0; i < 32; i++) {
        part->codes[i] = (uint8_t)(msgl__random(seed) & ((1u << c->bits) - 1));
        if (c->floats && (part->codes[i] & 0x7f) == 0x7f) part->codes[i] = 0; // NaN
    }
    if (!first) return;
    part->d = draw_number(seed, c->number);
    part->dmin = c->offset == MSGL_OFFSET_FLOAT ? draw_zero(seed, c) : draw_number(seed, c->number);
    for (int i = 0; i < 2; i++) part->c[i] = (uint8_t)draw_number(seed, c->number);
    part->e[0] = (uint8_t)(below(seed, 1 << c->bits) - (1 << (c->bits - 1)));
}

void code_row_draw(uint64_t *seed, const msgl_blocks *b, int k, uint8_t *row, float *values)
{
    msgl_code_part part = {0};
    for (int at = 0; at < k; at += b->elements, row += b->bytes) {
        if (b->codes == NULL || b->codes->split != NULL) {
            random_block(seed, b, 0.01f, 1, row, values + at);
            continue;
        }
        const int span = b->codes->span;
        draw_part(seed, b->codes, span == 0 ? at == 0 : at % span == 0, &part);
        memcpy(row, &part, sizeof part);
        msgl__blocks_expand(b, row, values + at);
    }
}
