// SPDX-License-Identifier: Apache-2.0
//
// Codes at level AMX: their integers are exact in bf16, and so are activations but for their own
// rounding to bf16, which costs nothing here beside rounding to 8 bits: a group of 32 columns is
// one tile product in either case. A group's sums leave the tiles to be multiplied by the weights'
// scales; activations have none.
//
// A panel's chunk is expanded to B tiles once, then all rows pass, 16 at a time. Of four columns
// the first and third are one pair of a tile, the second and fourth the next: a shift of a line of
// codes brings two of them to the lower bits of 16-bit words, where vpermw looks their values up.
// Rows are prepared in the same order, as A tiles: blocks of 16 rows (the last one fewer), each
// block [k / 32][rows][32] in bf16, behind it the sums of the rounded activations, by 32 and by 16
// columns: [rows][k / 32], then [rows][k / 16].
#include "kernel/gemm_codes.h"
#include "kernel/x86/amx.h"

enum {
    ROWS = 256, // that pass a chunk together
    GROUPS = 8, // whose products are made before they are folded: with two panels 16 KB
    TILE_BYTES = 1024,
};

// Values in bf16: of words with the codes in their lower bits, or of |v| as bytes.
typedef struct lookup {
    __m512i low, high; // codes 0 to 31 and 32 to 63
    __m512i bytes[4];  // of 0 to 63 and 64 to 127: the low bytes, then the high ones
} lookup;

// Of two panels, which share the loads of A. A last one alone is taken twice, and once too often.
typedef struct buffers {
    char b[2][MSGL_CODES_CHUNK][TILE_BYTES] MSGL_ALIGNED(64);
    float c[2][GROUPS][256] MSGL_ALIGNED(64); // groups' sums [rows][16]
    float sums[2][ROWS][16] MSGL_ALIGNED(64); // over k
    msgl_codes_scales scales[2];
    int tile_rows; // that tiles are configured for
} buffers;

size_t msgl__codes_row_bytes_amx(int kpad)
{
    return (size_t)kpad * sizeof(uint16_t) + (size_t)msgl__codes_blocks(kpad) * 3 * sizeof(float);
}

// The sum of 16 numbers of bf16.
MSGL_INLINE float sum16(__m256i words)
{
    return _mm512_reduce_add_ps(
        _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16)));
}

void msgl__codes_prepare_amx(const float *in, size_t ld_in, int rows, int k, char *a,
                             size_t row_bytes)
{
    (void)row_bytes; // rows * row_bytes is the block's size, but rows are interleaved in it
    const size_t blocks = (size_t)msgl__codes_blocks(k), n = (size_t)rows;
    float *const by32 = (float *)(a + n * blocks * 64), *const by16 = by32 + blocks * n;
    static const uint16_t ORDER[32] = {0,  2,  1,  3,  4,  6,  5,  7,  8,  10, 9,
                                       11, 12, 14, 13, 15, 16, 18, 17, 19, 20, 22,
                                       21, 23, 24, 26, 25, 27, 28, 30, 29, 31};
    const __m512i order = _mm512_loadu_si512(ORDER);
    for (size_t i = 0; i < blocks; i++) {
        const int left = k - (int)i * 32;
        const uint32_t mask = left < 32 ? (1u << left) - 1 : 0xffffffffu;
        for (size_t r = 0; r < n; r++) {
            const float *from = in + r * ld_in + i * 32;
            const __m512 lo = _mm512_maskz_loadu_ps((__mmask16)mask, from);
            const __m512 hi = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), from + 16);
            const __m512i words = (__m512i)_mm512_cvtne2ps_pbh(hi, lo);
            const float first = sum16(_mm512_castsi512_si256(words));
            const float second = sum16(_mm512_extracti64x4_epi64(words, 1));
            by16[(r * blocks + i) * 2] = first;
            by16[(r * blocks + i) * 2 + 1] = second;
            by32[r * blocks + i] = first + second;
            _mm512_storeu_si512(a + (i * n + r) * 64, _mm512_permutexvar_epi16(order, words));
        }
    }
}

static lookup lookup_of(const msgl_codes *c)
{
    uint16_t words[64];
    uint8_t bytes[2][128];
    lookup t = {0};
    if (c->bits == 8) {
        for (int i = 0; i < 128; i++) {
            const uint16_t v = msgl__f32_to_bf16((float)i);
            bytes[0][i] = (uint8_t)v;
            bytes[1][i] = (uint8_t)(v >> 8);
        }
        for (int i = 0; i < 4; i++) t.bytes[i] = _mm512_loadu_si512(bytes[i / 2] + i % 2 * 64);
        return t;
    }
    for (int i = 0; i < 64; i++) {
        const int code = i % (1 << c->bits); // what lies above the code's bits does not matter
        words[i] = msgl__f32_to_bf16((float)msgl__code_value(c, (uint8_t)code));
    }
    t.low = _mm512_loadu_si512(words);
    t.high = _mm512_loadu_si512(words + 32);
    return t;
}

// v shifted so that bit `from` of its words comes to bit `to`.
MSGL_INLINE __m512i move(__m512i v, const int from, const int to)
{
    return from == to  ? v
           : from > to ? _mm512_srli_epi16(v, (unsigned)(from - to))
                       : _mm512_slli_epi16(v, (unsigned)(to - from));
}

// The values of a step's columns 0 and 2, or with odd 1 and 3, of all features.
MSGL_INLINE __m512i values_at(const char *lines, const int bits, const int step, const int odd,
                              const lookup *t)
{
    const int low = bits >= 4 ? 4 : 2, per_line = 8 / low;
    const __m512i v = _mm512_loadu_si512(lines + step / per_line * 64);
    const char *const high = lines + low * 64;
    __m512i at = move(v, step % per_line * low + 8 * odd, 0);
    if (bits == 5 || bits == 3) {
        const __m512i h = move(_mm512_loadu_si512(high), step + 8 * odd, low);
        at = _mm512_ternarylogic_epi32(_mm512_set1_epi16((1 << low) - 1), at, h, 0xca);
    } else if (bits == 6) {
        const __m512i h = move(_mm512_loadu_si512(high + step / 4 * 64), step % 4 * 2 + 8 * odd, 4);
        at = _mm512_ternarylogic_epi32(_mm512_set1_epi16(15), at, h, 0xca);
        return _mm512_permutex2var_epi16(t->low, at, t->high);
    }
    return _mm512_permutexvar_epi16(at, t->low);
}

// Integers of 8 bits: both bytes of |v| as bf16 are looked up, and the sign is v's. 128 has the low
// byte of 0, and a high byte of its own.
MSGL_INLINE void expand_step_8(const char *line, const lookup *t, char *to)
{
    const __m512i v = _mm512_loadu_si512(line), m = _mm512_abs_epi8(v);
    const __m512i low = _mm512_permutex2var_epi8(t->bytes[0], m, t->bytes[1]);
    __m512i high = _mm512_permutex2var_epi8(t->bytes[2], m, t->bytes[3]);
    high = _mm512_mask_mov_epi8(high, _mm512_movepi8_mask(m), _mm512_set1_epi8(0x43));
    high = _mm512_ternarylogic_epi32(_mm512_set1_epi8((char)0x80), v, high, 0xca);
    const __m512i lower = _mm512_set1_epi16(0xff);
    _mm512_store_si512(to, _mm512_ternarylogic_epi32(lower, low, _mm512_slli_epi16(high, 8), 0xca));
    _mm512_store_si512(to + 64,
                       _mm512_ternarylogic_epi32(lower, _mm512_srli_epi16(low, 8), high, 0xca));
}

// A block of codes to a B tile.
MSGL_INLINE void expand_block(const char *lines, const int bits, const lookup *t, char *to)
{
#pragma GCC unroll 8
    for (int step = 0; step < 8; step++, to += 128) {
        if (bits == 8) {
            expand_step_8(lines + step * 64, t, to);
        } else {
            _mm512_store_si512(to, values_at(lines, bits, step, 0, t));
            _mm512_store_si512(to + 64, values_at(lines, bits, step, 1, t));
        }
    }
}

typedef void (*expand_fn)(const char *lines, int blocks, const lookup *t, char (*to)[TILE_BYTES]);
#define EXPAND(bits)                                                                               \
    static MSGL_NOINLINE void expand_##bits(const char *lines, int blocks, const lookup *t,        \
                                            char(*to)[TILE_BYTES])                                 \
    {                                                                                              \
        for (int i = 0; i < blocks; i++, lines += (bits)*64) {                                     \
            expand_block(lines, bits, t, to[i]);                                                   \
        }                                                                                          \
    }
EXPAND(2)
EXPAND(3)
EXPAND(4)
EXPAND(5)
EXPAND(6)
EXPAND(8)
static const expand_fn EXPANDS[9] = {
    [2] = expand_2, [3] = expand_3, [4] = expand_4, [5] = expand_5, [6] = expand_6, [8] = expand_8};

// Up to 16 rows and GROUPS groups of a chunk.
typedef struct part {
    const char *a;     // A tile of the chunk's first block
    const float *sums; // of the activations in the chunk's first group; rows are ld_sums apart
    size_t ld_sums;
    int rows;
    int first, groups; // of the chunk's groups
    int row;           // among the sums over k
    // What the caches are asked for meanwhile: `lines` lines of each panel.
    const char *ahead[2];
    int lines;
} part;

// One group of one panel: tile c = A b.
#define PRODUCT(c_tile, a_tile, b_tile, panel, g)                                                  \
    do {                                                                                           \
        _tile_zero(c_tile);                                                                        \
        _tile_loadd(b_tile, w->b[panel][(g)*group / 32] + (g)*group % 32 * 32, 64);                \
        _tile_dpbf16ps(c_tile, a_tile, b_tile);                                                    \
    } while (0)
#define LOAD_A(tile, g)                                                                            \
    _tile_loadd(tile, p->a + (size_t)((g)*group / 32 * p->rows) * 64 + (g)*group % 32 * 2, 64)

// Four products are on their way before the first is stored: one takes some fifty cycles.
MSGL_INLINE void multiply(buffers *w, const part *p, const int group)
{
    int i = 0;
    const char *next[2] = {p->ahead[0], p->ahead[1]};
    for (; i + 2 <= p->groups; i += 2) {
        const int g = p->first + i;
        for (int l = 0; l < p->lines; l++, next[0] += 64, next[1] += 64) {
            _mm_prefetch(next[0], _MM_HINT_T0);
            _mm_prefetch(next[1], _MM_HINT_T0);
        }
        LOAD_A(4, g);
        PRODUCT(0, 4, 6, 0, g);
        PRODUCT(1, 4, 7, 1, g);
        LOAD_A(5, g + 1);
        PRODUCT(2, 5, 6, 0, g + 1);
        PRODUCT(3, 5, 7, 1, g + 1);
        _tile_stored(0, w->c[0][i], 64);
        _tile_stored(1, w->c[1][i], 64);
        _tile_stored(2, w->c[0][i + 1], 64);
        _tile_stored(3, w->c[1][i + 1], 64);
    }
    if (i < p->groups) {
        LOAD_A(4, p->first + i);
        PRODUCT(0, 4, 6, 0, p->first + i);
        PRODUCT(1, 4, 7, 1, p->first + i);
        _tile_stored(0, w->c[0][i], 64);
        _tile_stored(1, w->c[1][i], 64);
    }
    MSGL_AMX_BARRIER(w->c);
}

static MSGL_NOINLINE void multiply_32(buffers *w, const part *p)
{
    multiply(w, p, 32);
}
static MSGL_NOINLINE void multiply_16(buffers *w, const part *p)
{
    multiply(w, p, 16);
}

#define EACH_8(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define LOAD_SCALE(i)                                                                              \
    const __m512 s##i = _mm512_load_ps(w->scales[panel].scale[p->first + g + i]);                  \
    const __m512 m##i = min ? _mm512_load_ps(w->scales[panel].min[p->first + g + i]) : s##i;
#define FOLD(i)                                                                                    \
    y = _mm512_fmadd_ps(_mm512_load_ps(w->c[panel][g + i] + r * 16), s##i, y);                     \
    if (min) y = _mm512_fmadd_ps(_mm512_set1_ps(x[i]), m##i, y);

// Eight groups' sums times their scales, or one group's.
MSGL_INLINE void fold_8(buffers *w, const part *p, const int panel, const int g, const bool min)
{
    EACH_8(LOAD_SCALE)
    const float *x = p->sums + p->first + g;
    for (int r = 0; r < p->rows; r++, x += p->ld_sums) {
        __m512 y = _mm512_load_ps(w->sums[panel][p->row + r]);
        EACH_8(FOLD)
        _mm512_store_ps(w->sums[panel][p->row + r], y);
    }
}
MSGL_INLINE void fold_1(buffers *w, const part *p, const int panel, const int g, const bool min)
{
    LOAD_SCALE(0)
    const float *x = p->sums + p->first + g;
    for (int r = 0; r < p->rows; r++, x += p->ld_sums) {
        __m512 y = _mm512_load_ps(w->sums[panel][p->row + r]);
        FOLD(0)
        _mm512_store_ps(w->sums[panel][p->row + r], y);
    }
}

MSGL_INLINE void fold_all(buffers *w, const part *p, const bool min)
{
    for (int panel = 0; panel < 2; panel++) {
        if (p->groups == 8) {
            fold_8(w, p, panel, 0, min);
        } else {
            for (int g = 0; g < p->groups; g++) fold_1(w, p, panel, g, min);
        }
    }
}

static MSGL_NOINLINE void fold(buffers *w, const part *p)
{
    fold_all(w, p, false);
}
static MSGL_NOINLINE void fold_min(buffers *w, const part *p)
{
    fold_all(w, p, true);
}

// Tiles 0-3 are sums, 4 and 5 rows of A, 6 and 7 weights; a group of 16 has half the columns.
static void configure(buffers *w, int rows, int group)
{
    msgl_amx_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.colsb[i] = i == 4 || i == 5 ? (uint16_t)(group * 2) : 64;
        c.rows[i] = (uint8_t)(i < 6 ? rows : group / 2);
    }
    MSGL_AMX_BARRIER(&c);
    _tile_loadconfig(&c);
    w->tile_rows = rows;
}

// Rows [row, row + rows) of b, at most ROWS, of a chunk of `blocks` blocks from number `first` on.
static void chunk_rows(const msgl_gemm_block *b, buffers *w, int row, int rows, int first,
                       int blocks, const char *const ahead[2])
{
    const msgl_codes *c = b->format->blocks->codes;
    const int all = msgl__codes_blocks(b->k), groups = 32 / c->group, num = blocks * groups;
    const int bytes = (int)msgl__codes_chunk_bytes(c, MSGL_CODES_CHUNK) / (8 * groups); // a group's
    for (int r = 0; r < rows; r += 16) {
        const int n = b->rows - row - r < 16 ? b->rows - row - r : 16;
        const char *a = b->a + (size_t)(row + r) * b->a_row_bytes;
        const float *sums = (const float *)(a + (size_t)(n * all) * 64);
        if (c->group == 16) sums += n * all;
        if (n != w->tile_rows) configure(w, n, c->group);
        for (int g = 0; g < num; g += GROUPS) {
            const part p = {.a = a + (size_t)(first * n) * 64,
                            .sums = sums + first * groups,
                            .ld_sums = (size_t)(all * groups),
                            .rows = n,
                            .first = g,
                            .groups = num - g < GROUPS ? num - g : GROUPS,
                            .row = r,
                            .ahead = {ahead[0] + g * bytes, ahead[1] + g * bytes},
                            .lines = r > 0 ? 0 : 2 * bytes / 64 + 1};
            if (c->group == 32) {
                multiply_32(w, &p);
            } else {
                multiply_16(w, &p);
            }
            if (msgl__codes_have_min(c)) {
                fold_min(w, &p);
            } else {
                fold(w, &p);
            }
        }
    }
}

// Two panels, whose codes begin at codes[0] and codes[1].
static void panels(const msgl_gemm_block *b, buffers *w, const char *codes[2], const lookup *t,
                   int row, int rows)
{
    const msgl_codes *c = b->format->blocks->codes;
    const int blocks = msgl__codes_blocks(b->k);
    size_t at = msgl__codes_front_bytes(c);
    for (int i = 0; i < blocks; i += MSGL_CODES_CHUNK) {
        const int some = blocks - i < MSGL_CODES_CHUNK ? blocks - i : MSGL_CODES_CHUNK;
        for (int p = 0; p < 2; p++) {
            msgl__codes_scales_of(c, codes[p], codes[p] + at, some, &w->scales[p]);
            EXPANDS[c->bits](codes[p] + at + msgl__codes_scales_bytes(c, some), some, t, w->b[p]);
        }
        MSGL_AMX_BARRIER(w->b);
        at += msgl__codes_chunk_bytes(c, some);
        // The chunk behind the next one; behind a panel's last, the first of the next two panels.
        size_t ahead = at + msgl__codes_chunk_bytes(c, MSGL_CODES_CHUNK);
        if (ahead >= b->panel_bytes) ahead += b->panel_bytes;
        chunk_rows(b, w, row, rows, i, some, (const char *[2]){codes[0] + ahead, codes[1] + ahead});
    }
}

// Sums of rows of the columns [col, col + n) to the result.
static void finish(const msgl_gemm_block *b, float (*sums)[16], int row, int rows, int col, int n)
{
    for (int r = 0; r < rows; r++) {
        float *out = b->out + (size_t)(row + r) * b->ld_out + col;
        const __mmask16 some = (__mmask16)((1u << n) - 1);
        __m512 y = _mm512_load_ps(sums[r]);
        if (b->bias != NULL) y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(some, b->bias + col));
        if (b->add) y = _mm512_add_ps(_mm512_maskz_loadu_ps(some, out), y);
        _mm512_mask_storeu_ps(out, some, y);
    }
}

void msgl__codes_block_amx(const msgl_gemm_block *b)
{
    const lookup t = lookup_of(b->format->blocks->codes);
    buffers w;
    MSGL_AMX_BARRIER(b->a);
    w.tile_rows = 0;
    for (int col = 0; col < b->cols; col += 2 * MSGL_GEMM_LANES) {
        const char *first = b->w + (size_t)(col / MSGL_GEMM_LANES) * b->panel_bytes;
        const int left = b->cols - col, second = left - MSGL_GEMM_LANES; // columns of the second
        const char *codes[2] = {first, second > 0 ? first + b->panel_bytes : first};
        for (int row = 0; row < b->rows; row += ROWS) {
            const int rows = b->rows - row < ROWS ? b->rows - row : ROWS;
            memset(w.sums[0], 0, (size_t)rows * sizeof w.sums[0][0]);
            memset(w.sums[1], 0, (size_t)rows * sizeof w.sums[1][0]);
            panels(b, &w, codes, &t, row, rows);
            finish(b, w.sums[0], row, rows, col, left < 16 ? left : 16);
            if (second > 0) {
                finish(b, w.sums[1], row, rows, col + 16, second < 16 ? second : 16);
            }
        }
    }
    _tile_release(); // an idle tile file costs nothing at a context switch
}
