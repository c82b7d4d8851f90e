// SPDX-License-Identifier: Apache-2.0
#include "models/dummy_bytes.h"

#include <math.h>
#include <string.h>

#include "core/dtype.h"
#include "utils/random.h"

// So many of the block forms' blocks differ; the others are copies of them.
enum { BLOCKS = 4093 };

bool msgl__dummy_content_equal(const msgl_dummy_content *a, const msgl_dummy_content *b)
{
    return a->kind == b->kind && a->bits == b->bits && a->least == b->least && a->most == b->most &&
           a->number == b->number && a->mean == b->mean && a->blocks == b->blocks &&
           a->rows == b->rows && a->cols == b->cols && a->group == b->group;
}

// The sum of twelve uniform numbers in [0, 1) has variance 1 and mean 6.
void msgl__dummy_normals(float *normals)
{
    uint64_t seed = 1;
    for (size_t i = 0; i < MSGL_DUMMY_NORMALS; i++) {
        uint32_t sum = 0;
        for (int k = 0; k < 3; k++) {
            const uint64_t bits = msgl__random(&seed);
            for (int j = 0; j < 64; j += 16) sum += (uint32_t)(bits >> j & 0xffff);
        }
        normals[i] = (float)sum * 0x1p-16f - 6;
    }
}

// An integer of [least, most], of this mean and deviation if they allow it.
static int integer(float normal, float mean, float deviation, int least, int most)
{
    const int q = (int)lrintf(mean + normal * deviation);
    return q < least ? least : q > most ? most : q;
}

static float normal_at(const float *normals, size_t i)
{
    return normals[i % MSGL_DUMMY_NORMALS];
}

static uint8_t code_at(const float *normals, int32_t bits, size_t i)
{
    const float deviation = bits == 4 ? MSGL_DUMMY_CODES_4 : MSGL_DUMMY_CODES_8;
    const int middle = 1 << (bits - 1);
    return (uint8_t)integer(normal_at(normals, i), (float)middle, deviation, 1, 2 * middle - 1);
}

static uint8_t codes_byte(const float *normals, int32_t bits, size_t i)
{
    if (bits == 8) return code_at(normals, 8, i);
    return (uint8_t)(code_at(normals, 4, 2 * i) | code_at(normals, 4, 2 * i + 1) << 4);
}

static uint8_t zeros_byte(const msgl_dummy_content *c, size_t i)
{
    const uint64_t random = msgl__mix_bits(i), range = (uint64_t)(c->most - c->least) + 1;
    const uint64_t low = (uint64_t)c->least + (random & 0xffff) % range;
    const uint64_t high = (uint64_t)c->least + (random >> 16 & 0xffff) % range;
    return (uint8_t)(c->bits == 8 ? low : low | high << 4);
}

// The nearest of e2m1's, 0, 0.5, 1, 1.5, 2, 3, 4 and 6, and its sign.
static uint8_t e2m1(float v)
{
    static const float upper[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5};
    uint8_t code = 0;
    while (code < 7 && fabsf(v) > upper[code]) code++;
    return (uint8_t)(code | (v < 0 && code > 0 ? 8 : 0));
}

static uint8_t number_byte(msgl_number number, float normal)
{
    if (number == MSGL_NUMBER_E4M3) return msgl__f32_to_e4m3(normal * MSGL_DUMMY_E4M3);
    return (uint8_t)integer(normal, 0, MSGL_DUMMY_CODES_8, -127, 127);
}

static uint8_t byte_at(const msgl_dummy_content *c, const float *normals, size_t i)
{
    switch (c->kind) {
    case MSGL_DUMMY_CODES: return codes_byte(normals, c->bits, i);
    case MSGL_DUMMY_ZEROS: return zeros_byte(c, i);
    case MSGL_DUMMY_NUMBERS: return number_byte(c->number, normal_at(normals, i));
    default:
        return (uint8_t)(e2m1(normal_at(normals, 2 * i) * MSGL_DUMMY_FP4) |
                         e2m1(normal_at(normals, 2 * i + 1) * MSGL_DUMMY_FP4) << 4);
    }
}

// The exponent of a power of two: of the two that are next to `mean` one at random, as often as
// gives their squares that mean. Example: 0.009 lies between 2^-7 and 2^-6; of 0.009^2 = 8.1e-5
// the squares 6.1e-5 and 2.44e-4 make 89 % and 11 %.
static uint8_t exponent(float mean, uint64_t random)
{
    const float low = floorf(log2f(mean)), square = mean * mean, of_low = exp2f(2 * low);
    const float share = (square - of_low) / (3 * of_low);
    const float unit = (float)(random >> 40) * 0x1p-24f;
    return (uint8_t)(127 + (int)low + (unit < share));
}

// `one`: it scales all, and is the mean itself.
static void put_scale(const msgl_dummy_content *c, size_t i, bool one, uint8_t *to)
{
    const uint64_t random = msgl__mix_bits(i + 1);
    const float unit = (float)(random >> 40) * 0x1p-24f;
    const float v = one ? c->mean : c->mean * (0.75f + 0.5f * unit);
    uint16_t half = 0;
    switch (c->number) {
    case MSGL_NUMBER_F32: memcpy(to, &v, sizeof v); return;
    case MSGL_NUMBER_E4M3: *to = msgl__f32_to_e4m3(v); return;
    case MSGL_NUMBER_E8M0: *to = exponent(c->mean, random); return;
    case MSGL_NUMBER_F16: half = msgl__f32_to_f16(v); break;
    default: half = msgl__f32_to_bf16(v); break;
    }
    memcpy(to, &half, sizeof half);
}

static void put_f16(uint8_t *to, float v)
{
    const uint16_t half = msgl__f32_to_f16(v);
    memcpy(to, &half, sizeof half);
}

// A scale of an element in units of d, which the forms of two levels have beside d.
static uint8_t inner_scale(uint64_t *seed)
{
    return (uint8_t)(36 + msgl__random_below(seed, 25));
}

static const float INNER_SCALE = 48; // their mean

// Blocks of one level, with codes of this deviation. What they are is said in quant/blocks_*.c.
static void put_legacy(const msgl_blocks *b, const float *normals, size_t first, uint8_t *to)
{
    const bool bytes = b == &msgl__blocks_q8_0;
    put_f16(to, MSGL_DUMMY_DEVIATION / (bytes ? MSGL_DUMMY_CODES_8 : MSGL_DUMMY_CODES_4));
    for (size_t i = 0; i < (size_t)b->bytes - 2; i++) {
        to[2 + i] = bytes ? number_byte(MSGL_NUMBER_I8, normal_at(normals, first + i))
                          : codes_byte(normals, 4, first + i);
    }
}

// Scale j and min j are equal, and dmin is 7.5 d: value = d * scale * (code - 7.5).
static void put_q4_k(const float *normals, size_t first, uint64_t *seed, uint8_t *to)
{
    const float d = MSGL_DUMMY_DEVIATION / MSGL_DUMMY_CODES_4 / INNER_SCALE;
    put_f16(to, d);
    put_f16(to + 2, 7.5f * d);
    for (int j = 0; j < 4; j++) {
        const uint8_t front = inner_scale(seed), behind = inner_scale(seed);
        to[4 + j] = to[8 + j] = (uint8_t)(front | behind >> 4 << 6);
        to[12 + j] = (uint8_t)((behind & 15) | (behind & 15) << 4);
    }
    for (size_t i = 0; i < 128; i++) {
        uint8_t both = 0;
        for (size_t half = 0; half < 2; half++) {
            const float normal = normal_at(normals, first + 2 * i + half);
            both |= (uint8_t)(integer(normal, 7.5f, MSGL_DUMMY_CODES_4, 0, 15) << 4 * half);
        }
        to[16 + i] = both;
    }
}

// Of 6 bits, whose lower four and upper two are apart.
static void put_q6_k(const float *normals, size_t first, uint64_t *seed, uint8_t *to)
{
    const float deviation = 10;
    memset(to, 0, 192);
    for (size_t i = 0; i < 256; i++) {
        const size_t part = i / 128, in = i % 128;
        const int q = integer(normal_at(normals, first + i), 32, deviation, 0, 63);
        to[64 * part + in % 64] |= (uint8_t)((q & 15) << (in < 64 ? 0 : 4));
        to[128 + 32 * part + in % 32] |= (uint8_t)(q >> 4 << 2 * (in / 32));
    }
    for (size_t k = 0; k < 16; k++) to[192 + k] = inner_scale(seed);
    put_f16(to + 208, MSGL_DUMMY_DEVIATION / deviation / INNER_SCALE);
}

static void put_block(const msgl_blocks *b, const float *normals, size_t block, uint8_t *to)
{
    uint64_t seed = block;
    const size_t first = block * (size_t)b->elements;
    if (b == &msgl__blocks_q4_k) {
        put_q4_k(normals, first, &seed, to);
    } else if (b == &msgl__blocks_q6_k) {
        put_q6_k(normals, first, &seed, to);
    } else {
        put_legacy(b, normals, first, to);
    }
}

static void put_shape(const msgl_dummy_content *c, uint8_t *to)
{
    memcpy(to, &c->rows, sizeof c->rows);
    memcpy(to + sizeof c->rows, &c->cols, sizeof c->cols);
}

// Column i's group is i / group before two columns change places again and again.
static void put_order(const msgl_dummy_content *c, uint8_t *to)
{
    uint64_t seed = 1;
    for (int64_t i = 0; i < c->cols; i++) {
        const int32_t own = (int32_t)(i / c->group);
        const size_t other = (size_t)msgl__random_below(&seed, (uint64_t)i + 1) * sizeof own;
        memcpy(to + (size_t)i * sizeof own, to + other, sizeof own);
        memcpy(to + other, &own, sizeof own);
    }
}

// Behind the first `period` bytes the same come again.
static void repeat(uint8_t *to, size_t period, size_t n)
{
    for (size_t at = period, some; at < n; at += some) {
        some = n - at < at ? n - at : at;
        memcpy(to + at, to, some);
    }
}

void msgl__dummy_bytes(const msgl_dummy_content *c, const float *normals, uint8_t *to, size_t n)
{
    size_t size = 1, period = MSGL_DUMMY_NORMALS;
    if (c->kind == MSGL_DUMMY_SHAPE) {
        put_shape(c, to);
        return;
    }
    if (c->kind == MSGL_DUMMY_ORDER) {
        put_order(c, to);
        return;
    }
    if (c->kind == MSGL_DUMMY_SCALES) size = msgl__number_size(c->number);
    if (c->kind == MSGL_DUMMY_BLOCKS) size = (size_t)c->blocks->bytes, period = BLOCKS;
    const size_t count = n / size < period ? n / size : period;
    for (size_t i = 0; i < count; i++) {
        if (c->kind == MSGL_DUMMY_BLOCKS) {
            put_block(c->blocks, normals, i, to + i * size);
        } else if (c->kind == MSGL_DUMMY_SCALES) {
            put_scale(c, i, n == size, to + i * size);
        } else {
            to[i] = byte_at(c, normals, i);
        }
    }
    repeat(to, count * size, n);
}
