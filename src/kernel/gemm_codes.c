// SPDX-License-Identifier: Apache-2.0
#include "kernel/gemm_kept.h"

#include <math.h>

// MSGL_W_BLOCKS of blocks without codes: a panel is 16 rows as the file has them, one behind the
// other.
static size_t raw_row_bytes(const msgl_blocks *b, int k)
{
    return (size_t)(k / b->elements) * (size_t)b->bytes;
}

static size_t panel_bytes(const msgl_blocks *b, int k)
{
    if (b->codes == NULL) return msgl__round_up(MSGL_GEMM_LANES * raw_row_bytes(b, k), 64);
    const int blocks = msgl__codes_blocks(k), left = blocks % MSGL_CODES_CHUNK;
    const size_t whole = (size_t)(blocks / MSGL_CODES_CHUNK);
    return msgl__codes_front_bytes(b->codes) +
           whole * msgl__codes_chunk_bytes(b->codes, MSGL_CODES_CHUNK) +
           (left > 0 ? msgl__codes_chunk_bytes(b->codes, left) : 0);
}

size_t msgl__kept_packed_size(const msgl_wformat *f, int n, int k)
{
    const int columns = msgl__gemm_columns(f, k);
    if (columns < 1 || columns > INT32_MAX - MSGL_MAX_BLOCK) return 0;
    return msgl__gemm_panels_size(n, panel_bytes(f->blocks, columns));
}

// Four codes, one a byte, each in bits [at, at + bits) of its byte.
static uint32_t field(uint32_t codes, uint32_t mask, int from, int at)
{
    return (codes >> from & mask * 0x01010101u) << at;
}

typedef struct plane {
    int bits, from;
} plane;

// The planes of codes of so many bits, and how many.
static int planes_of(int bits, plane out[2])
{
    const int low = bits == 8 ? 8 : bits >= 4 ? 4 : 2;
    out[0] = (plane){low, 0};
    out[1] = (plane){bits - low, low};
    return bits > low ? 2 : 1;
}

static size_t plane_bytes(const plane *p)
{
    return (size_t)p->bits * MSGL_CODES_BLOCK * MSGL_GEMM_LANES / 8;
}

// A plane of `bits` bits, which are bits [from, from + bits) of the codes: of one lane. codes: of a
// step each.
MSGL_INLINE void put_plane(char *lines, int lane, const uint32_t codes[8], const int bits,
                           const int from)
{
    const int per_line = 8 / bits;
    for (int l = 0; l < 8 / per_line; l++) {
        uint32_t word = 0;
        for (int i = 0; i < per_line; i++) {
            word |= field(codes[l * per_line + i], (1u << bits) - 1, from, i * bits);
        }
        memcpy(lines + (size_t)l * 64 + (size_t)lane * 4, &word, sizeof word);
    }
}

// As planes_of says.
MSGL_INLINE void put_planes(char *block, int lane, const uint32_t codes[8], const int low,
                            const int high)
{
    put_plane(block, lane, codes, low, 0);
    if (high > 0) put_plane(block + low * 64, lane, codes, high, low);
}

static void put_codes(const msgl_codes *c, char *block, int lane, const uint8_t codes[32])
{
    uint32_t steps[8];
    memcpy(steps, codes, sizeof steps);
    if (c->bits == 8 && !c->floats) { // signed: code - 128
        for (int i = 0; i < 8; i++) steps[i] ^= 0x80808080u;
    }
    switch (c->bits) {
    case 2: put_planes(block, lane, steps, 2, 0); break;
    case 3: put_planes(block, lane, steps, 2, 1); break;
    case 4: put_planes(block, lane, steps, 4, 0); break;
    case 5: put_planes(block, lane, steps, 4, 1); break;
    case 6: put_planes(block, lane, steps, 4, 2); break;
    default: put_planes(block, lane, steps, 8, 0);
    }
}

// The scales of one level: of block b's group `group`, in whose span of the chunk's it is.
static void put_one_level(const msgl_codes *c, char *scales, int spans, int span, int lane,
                          const msgl_code_block *b, int group)
{
    const size_t lanes = MSGL_GEMM_LANES, size = msgl__codes_number_bytes(c->number);
    const size_t at = (size_t)span * lanes + (size_t)lane, behind = (size_t)spans * lanes * size;
    if (size == 1) {
        scales[at] = (char)b->c[group];
    } else {
        memcpy(scales + at * size, &b->d, size); // little-endian
    }
    if (c->offset == MSGL_OFFSET_ZERO) scales[behind + at] = (char)b->e[group];
    if (msgl__codes_have_dmin(c)) memcpy(scales + behind + at * size, &b->dmin, size);
}

// Those of two levels: of block b's group `group`, which is group `at` of `groups` of the chunk.
static void put_two_levels(const msgl_codes *c, char *scales, int groups, int at, int lane,
                           const msgl_code_block *b, int group)
{
    const size_t lanes = MSGL_GEMM_LANES, l = (size_t)lane;
    const bool min = msgl__codes_have_min(c);
    char *const to = scales + (min ? 4 : 2) * lanes + (size_t)at * lanes + l;
    memcpy(scales + 2 * l, &b->d, 2);
    if (min) memcpy(scales + 2 * (lanes + l), &b->dmin, 2);
    if (c->scaling == MSGL_SCALING_U4) {
        *to = (char)(b->c[group] | b->e[group] << 4);
        return;
    }
    *to = (char)b->c[group];
    if (min) to[(size_t)groups * lanes] = (char)b->e[group];
}

// Where block `at` of a row of `blocks` is in a panel.
typedef struct block_place {
    size_t scales; // of its chunk
    size_t codes;
    int chunk_blocks; // that its chunk has
    int in_chunk;     // which of them it is
} block_place;

static block_place place_of(const msgl_codes *c, int blocks, int at)
{
    const int chunk = at / MSGL_CODES_CHUNK, left = blocks - chunk * MSGL_CODES_CHUNK;
    block_place p = {.chunk_blocks = left < MSGL_CODES_CHUNK ? left : MSGL_CODES_CHUNK,
                     .in_chunk = at % MSGL_CODES_CHUNK};
    p.scales =
        msgl__codes_front_bytes(c) + (size_t)chunk * msgl__codes_chunk_bytes(c, MSGL_CODES_CHUNK);
    p.codes = p.scales + msgl__codes_scales_bytes(c, p.chunk_blocks) +
              (size_t)p.in_chunk * msgl__codes_block_bytes(c);
    return p;
}

// The scales of block b's group `group`, which is group `at` of the chunk in this place.
static void put_scales(const msgl_codes *c, char *panel, const block_place *p, int at, int lane,
                       const msgl_code_block *b, int group)
{
    if (c->scaling != MSGL_SCALING_ONE) {
        const int groups = p->chunk_blocks * MSGL_CODES_BLOCK / c->group;
        put_two_levels(c, panel + p->scales, groups, at, lane, b, group);
    } else if (c->span == 0) {
        put_one_level(c, panel, 1, 0, lane, b, group);
    } else {
        put_one_level(c, panel + p->scales, msgl__codes_chunk_spans(c, p->chunk_blocks),
                      at * c->group / c->span, lane, b, group);
    }
}

// A file's blocks, which are blocks [first, first + num) of 32 columns, to their lane of a panel of
// zeros.
static void put_blocks(const msgl_blocks *b, char *panel, int k, int lane, const uint8_t *src,
                       int first, int num)
{
    const msgl_codes *c = b->codes;
    const int blocks = msgl__codes_blocks(k), per_block = b->elements / MSGL_CODES_BLOCK;
    const int groups = MSGL_CODES_BLOCK / c->group;
    const size_t block_bytes = msgl__codes_block_bytes(c);
    msgl_code_block split = {0};
    block_place p = {0};
    for (int i = first; i < first + num; i++, p.codes += block_bytes, p.in_chunk++) {
        const int part = i % per_block; // of the file's block
        if (part == 0) {
            msgl__codes_split(c, src, &split);
            src += b->bytes;
        }
        if (i == first || p.in_chunk == MSGL_CODES_CHUNK) p = place_of(c, blocks, i);
        put_codes(c, panel + p.codes, lane, split.codes + part * MSGL_CODES_BLOCK);
        for (int g = 0; g < groups; g++) {
            put_scales(c, panel, &p, p.in_chunk * groups + g, lane, &split, part * groups + g);
        }
    }
}

static void pack_panel(char *panel, const msgl_wformat *f, int k, int lane, int rows,
                       const char *src, msgl_dtype src_dtype, size_t ld_src)
{
    (void)src_dtype;
    const int columns = msgl__gemm_columns(f, k);
    const size_t raw = raw_row_bytes(f->blocks, columns);
    for (int r = 0; r < rows; r++, src += ld_src) {
        if (f->blocks->codes == NULL) {
            memcpy(panel + (size_t)(lane + r) * raw, src, raw);
        } else {
            put_blocks(f->blocks, panel, columns, lane + r, (const uint8_t *)src, 0,
                       msgl__codes_blocks(columns));
        }
    }
}

static void repack(msgl_exec *x, msgl_weight *w, int row, int rows, const uint8_t *src,
                   size_t ld_src)
{
    msgl__gemm_pack(pack_panel, x, w, row, rows, src, ld_src, MSGL_DTYPE_COUNT, ld_src);
}

// 32 values to a block of Q4_0, as MSGL_WFORMAT_Q4 says.
static void round_to_q4(const float v[MSGL_CODES_BLOCK], uint8_t block[18])
{
    float most = 0, sum = 0;
    for (int i = 0; i < MSGL_CODES_BLOCK; i++) {
        most = fabsf(v[i]) > fabsf(most) ? v[i] : most;
        sum += v[i] - v[i]; // not a number if one of them is none or infinite
    }
    const float d = most / -8 + sum;
    const uint16_t bits = msgl__f32_to_f16(d);
    const bool none = msgl__f16_to_f32(bits) == 0;
    memcpy(block, &bits, sizeof bits);
    for (int i = 0; i < 16; i++) {
        uint8_t q[2];
        for (int half = 0; half < 2; half++) {
            const float code = none ? 8 : rintf(v[i + 16 * half] / d + 8);
            q[half] = code > 0 ? code < 15 ? (uint8_t)code : 15 : 0;
        }
        block[2 + i] = (uint8_t)(q[0] | q[1] << 4);
    }
}

static void q4_panel(char *panel, const msgl_wformat *f, int k, int lane, int rows, const char *src,
                     msgl_dtype src_dtype, size_t ld_src)
{
    (void)f;
    const size_t row_bytes = ld_src * msgl__dtype_size(src_dtype);
    for (int r = 0; r < rows; r++, src += row_bytes) {
        for (int at = 0; at < k; at += MSGL_CODES_BLOCK) {
            const int n = k - at < MSGL_CODES_BLOCK ? k - at : MSGL_CODES_BLOCK;
            float v[MSGL_CODES_BLOCK] = {0};
            uint8_t block[18];
            msgl__int8_source(src, src_dtype, at, n, v);
            round_to_q4(v, block);
            put_blocks(&msgl__blocks_q4_0, panel, k, lane + r, block, at / MSGL_CODES_BLOCK, 1);
        }
    }
}

void msgl__q4_pack(msgl_exec *x, msgl_weight *w, int row, int rows, const void *src,
                   msgl_dtype src_dtype, size_t ld_src)
{
    msgl__gemm_pack(q4_panel, x, w, row, rows, src, ld_src * msgl__dtype_size(src_dtype), src_dtype,
                    ld_src);
}

// q of the four columns of step `step` of a block, of one lane.
static void step_values(const msgl_codes *c, const char *block, int lane, int step, float q[4])
{
    plane planes[2];
    const int num = planes_of(c->bits, planes);
    uint32_t codes = 0;
    for (int i = 0; i < num; i++) {
        const int bits = planes[i].bits, per_line = 8 / bits;
        uint32_t word;
        memcpy(&word, block + (size_t)(step / per_line) * 64 + (size_t)lane * 4, sizeof word);
        codes |= field(word, (1u << bits) - 1, step % per_line * bits, planes[i].from);
        block += plane_bytes(&planes[i]);
    }
    for (int i = 0; i < 4; i++) {
        const uint8_t code = (uint8_t)(codes >> 8 * i);
        q[i] = c->bits == 8 && !c->floats ? (int8_t)code : msgl__code_number(c, code);
    }
}

void msgl__codes_values(const msgl_codes *c, const char *block,
                        int8_t q[MSGL_CODES_BLOCK][MSGL_GEMM_LANES])
{
    for (int lane = 0; lane < MSGL_GEMM_LANES; lane++) {
        for (int step = 0; step < 8; step++) {
            float four[4];
            step_values(c, block, lane, step, four);
            for (int i = 0; i < 4; i++) q[4 * step + i][lane] = (int8_t)four[i];
        }
    }
}

// The 32 columns of block `at`, of one lane.
static void block_values(const msgl_codes *c, const char *panel, int blocks, int at, int lane,
                         float out[MSGL_CODES_BLOCK])
{
    const block_place p = place_of(c, blocks, at);
    const int first = p.in_chunk * MSGL_CODES_BLOCK / c->group;
    msgl_codes_scales s;
    msgl__codes_scales_of(c, panel, panel + p.scales, p.chunk_blocks, false, &s);
    for (int step = 0; step < 8; step++) {
        const int g = first + step * 4 / c->group;
        const float offset = msgl__codes_have_min(c) ? s.min[g][lane] : 0;
        float q[4];
        step_values(c, panel + p.codes, lane, step, q);
        for (int i = 0; i < 4; i++) {
            out[4 * step + i] = msgl__codes_value(c, s.scale[g][lane], offset, q[i]);
        }
    }
}

// Columns in an order of their own, at their places in out.
static void ordered_lane(const msgl_codes *c, const msgl_column_order *order, const char *panel,
                         int lane, float *out)
{
    const int blocks = msgl__codes_blocks(order->num);
    float values[MSGL_CODES_BLOCK];
    for (int i = 0; i < blocks; i++) {
        const int32_t *columns = order->columns + i * MSGL_CODES_BLOCK;
        block_values(c, panel, blocks, i, lane, values);
        for (int j = 0; j < MSGL_CODES_BLOCK; j++) {
            if (columns[j] >= 0) out[columns[j]] = values[j];
        }
    }
}

void msgl__kept_lane(const msgl_wformat *f, const char *panel, int lane, int k, float *out)
{
    const msgl_blocks *b = f->blocks;
    if (f->order != NULL) {
        ordered_lane(b->codes, f->order, panel, lane, out);
        return;
    }
    if (b->codes != NULL) {
        const int blocks = msgl__codes_blocks(k);
        float last[MSGL_CODES_BLOCK];
        for (int i = 0; i < blocks; i++) {
            const int left = k - i * MSGL_CODES_BLOCK;
            float *to = left < MSGL_CODES_BLOCK ? last : out + i * MSGL_CODES_BLOCK;
            block_values(b->codes, panel, blocks, i, lane, to);
            if (to == last) memcpy(out + i * MSGL_CODES_BLOCK, last, (size_t)left * sizeof *out);
        }
        return;
    }
    const uint8_t *row = (const uint8_t *)panel + (size_t)lane * raw_row_bytes(b, k);
    for (int at = 0; at < k; at += b->elements, row += b->bytes) {
        msgl__blocks_expand(b, row, out + at);
    }
}

void msgl__kept_raw_tile(const msgl_blocks *form, int k, const char *panel, int at, int columns,
                         msgl_kept_tile tile)
{
    const size_t row_bytes = raw_row_bytes(form, k);
    float values[MSGL_KEPT_TILE];
    for (int lane = 0; lane < MSGL_GEMM_LANES; lane++) {
        const uint8_t *from =
            (const uint8_t *)panel + (size_t)lane * row_bytes + raw_row_bytes(form, at);
        for (int i = 0; i < columns; i += form->elements, from += form->bytes) {
            msgl__blocks_expand(form, from, values + i);
        }
        for (int i = 0; i < columns; i++) tile[i][lane] = values[i];
    }
}

size_t msgl__codes_row_bytes_8(int kpad)
{
    return msgl__codes_row_bytes(kpad, 1);
}

size_t msgl__codes_row_bytes_16(int kpad)
{
    return msgl__codes_row_bytes(kpad, 2);
}

// Whether every level has a kernel of integers for these: CODES_KINDS of x86/gemm_codes.inc.
static bool has_kernels(const msgl_codes *c)
{
    const bool min = msgl__codes_have_min(c);
    if (c->floats) return false;
    if (c->values != NULL) return c->bits == 4 && !min;
    if (c->group == 16) return c->bits == 2 ? min : (c->bits == 3 || c->bits == 6) && !min;
    return c->group == MSGL_CODES_BLOCK && c->bits >= 2 && c->bits <= 8 && c->bits != 7;
}

static bool keep(const msgl_blocks *b, int k, bool codes, msgl_wformat *out)
{
    if (b->elements < MSGL_CODES_BLOCK || k % b->elements != 0) return false;
    *out = (msgl_wformat){
        .name = b->name,
        .id = codes ? MSGL_W_CODES : MSGL_W_BLOCKS,
        .dtype = MSGL_DTYPE_COUNT,
        .group = MSGL_CODES_BLOCK,
        .packed_size = msgl__kept_packed_size,
        .gather = msgl__gemm_gather,
        .blocks = b,
        .repack = repack,
    };
    return true;
}

bool msgl__gemm_keep(const msgl_blocks *b, int k, bool exact, msgl_wformat *out)
{
    return keep(b, k, !exact && b->codes != NULL && has_kernels(b->codes), out);
}

bool msgl__gemm_keep_by_bf16(const msgl_blocks *b, int k, bool exact, msgl_wformat *out)
{
    return keep(b, k, !exact && b->codes != NULL, out);
}
