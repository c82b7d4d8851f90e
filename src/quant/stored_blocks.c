// SPDX-License-Identifier: Apache-2.0
//
// Values in blocks of so many bytes, with or without a factor for each block in another tensor: all
// of GGUF's types, and MXFP4 as safetensors have it.
#include <string.h>

#include "quant/stored.h"

static void expand(const msgl_packed *p, size_t row, size_t from, size_t n, float *values)
{
    const msgl_blocks *b = p->how->blocks;
    const size_t elements = (size_t)b->elements, per_row = (p->cols + elements - 1) / elements;
    for (size_t at = from; at < from + n;) {
        const size_t block = row * per_row + at / elements, skip = at % elements;
        const size_t left = from + n - at, rest = elements - skip;
        const size_t some = left < rest ? left : rest;
        float whole[MSGL_MAX_BLOCK], *to = values + (at - from);
        float *const all = some == elements ? to : whole;
        msgl__blocks_expand(b, p->data + block * (size_t)b->bytes, all);
        if (all == whole) memcpy(to, whole + skip, some * sizeof *to);
        if (p->how->sides[MSGL_SCALES].data != NULL) {
            const float scale = msgl__side_at(p, MSGL_SCALES, block);
            for (size_t i = 0; i < some; i++) to[i] *= scale;
        }
        at += some;
    }
}

static void span(const msgl_packed *p, size_t begin, size_t end, size_t *from, size_t *bytes)
{
    const size_t elements = (size_t)p->how->blocks->elements;
    const size_t first = begin / elements, past = (end + elements - 1) / elements;
    *from = first * (size_t)p->how->blocks->bytes;
    *bytes = (past - first) * (size_t)p->how->blocks->bytes;
}

// Blocks that have their scales themselves are taken apart whole.
static bool codes(const msgl_packed *p, msgl_codes *out)
{
    const msgl_blocks *b = p->how->blocks;
    const msgl_side *scales = &p->how->sides[MSGL_SCALES];
    if (b->codes == NULL || b->expand == NULL || b->elements != 32) return false;
    *out = *b->codes;
    return scales->data != NULL && scales->type == out->number;
}

static void split(const msgl_packed *p, size_t row, size_t from, msgl_code_part *out)
{
    const msgl_blocks *b = p->how->blocks;
    const size_t block = (row * p->cols + from) / 32;
    msgl_code_block whole;
    msgl__codes_split(b->codes, p->data + block * (size_t)b->bytes, &whole);
    memcpy(out->codes, whole.codes, sizeof out->codes);
    out->c[0] = p->how->sides[MSGL_SCALES].data[block];
}

const msgl_stored msgl__stored_blocks = {"blocks", expand, span, codes, split, NULL, NULL};
