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
// columns: [k / 32][rows], then [k / 16][rows].
#include <assert.h>

#include "kernel/gemm_codes.h"
#include "kernel/x86/amx.h"

enum {
    ROWS = 256, // that pass a chunk together: their sums are 16 KB
    TILE_BYTES = 1024,
    AHEAD = 3072, // bytes of codes that are fetched ahead
};

// Of words with the codes in their lower bits.
typedef struct lookup {
    __m512i low, high; // values 0 to 31 and 32 to 63
} lookup;

// Buffers of one product, in the L1 cache.
typedef struct buffers {
    char b[MSGL_CODES_CHUNK][TILE_BYTES] MSGL_ALIGNED(64);
    float c[MSGL_CODES_GROUPS][256] MSGL_ALIGNED(64); // a group's sums [rows][16]
    float sums[ROWS][16] MSGL_ALIGNED(64);
    msgl_codes_scales scales;
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
            by16[2 * i * n + r] = first;
            by16[(2 * i + 1) * n + r] = second;
            by32[i * n + r] = first + second;
            _mm512_storeu_si512(a + (i * n + r) * 64, _mm512_permutexvar_epi16(order, words));
        }
    }
}

static lookup lookup_of(const msgl_codes *c)
{
    uint16_t words[64];
    const int codes = c->bits == 8 ? 1 : 1 << c->bits;
    for (int i = 0; i < 64; i++) {
        const int code = i % codes; // what lies above the code's bits does not matter
        words[i] = msgl__f32_to_bf16((float)msgl__code_value(c, (uint8_t)code));
    }
    return (lookup){_mm512_loadu_si512(words), _mm512_loadu_si512(words + 32)};
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
                              lookup t)
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
        return _mm512_permutex2var_epi16(t.low, at, t.high);
    }
    return _mm512_permutexvar_epi16(at, t.low);
}

// Integers of 8 bits by way of f32, whose upper half has them whole.
MSGL_INLINE void expand_step_8(const char *line, char *to)
{
    const __m512i v = _mm512_loadu_si512(line);
    __m512i f[4];
    f[0] = _mm512_srai_epi32(_mm512_slli_epi32(v, 24), 24);
    f[1] = _mm512_srai_epi32(_mm512_slli_epi32(v, 16), 24);
    f[2] = _mm512_srai_epi32(_mm512_slli_epi32(v, 8), 24);
    f[3] = _mm512_srai_epi32(v, 24);
    for (int i = 0; i < 4; i++) f[i] = _mm512_castps_si512(_mm512_cvtepi32_ps(f[i]));
    for (int i = 0; i < 2; i++) {
        const __m512i pair =
            _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(f[i], 16), f[i + 2]);
        _mm512_store_si512(to + 64 * i, pair);
    }
}

// A block of codes to a B tile.
MSGL_INLINE void expand_block(const char *lines, const int bits, lookup t, char *to)
{
#pragma GCC unroll 8
    for (int step = 0; step < 8; step++, to += 128) {
        if (bits == 8) {
            expand_step_8(lines + step * 64, to);
        } else {
            _mm512_store_si512(to, values_at(lines, bits, step, 0, t));
            _mm512_store_si512(to + 64, values_at(lines, bits, step, 1, t));
        }
    }
}

typedef void (*expand_fn)(const char *lines, int blocks, lookup t, char (*to)[TILE_BYTES]);
#define EXPAND(bits)                                                                               \
    static MSGL_NOINLINE void expand_##bits(const char *lines, int blocks, lookup t,               \
                                            char(*to)[TILE_BYTES])                                 \
    {                                                                                              \
        for (int i = 0; i < blocks; i++, lines += (bits)*64) {                                     \
            for (int l = 0; l < (bits); l++) _mm_prefetch(lines + AHEAD + l * 64, _MM_HINT_T0);    \
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

// Up to 16 rows of a chunk.
typedef struct part {
    const char *a;     // A tile of the chunk's first block
    const float *sums; // of the first group's activations, [groups][rows]
    int rows, groups, group;
    float (*out)[16]; // sums over k
} part;

// One group's product of all rows: tile c = A b.
#define GROUP(c_tile, a_tile, b_tile, g)                                                           \
    do {                                                                                           \
        const int at_ = (g)*p->group / 32, half_ = (g)*p->group % 32;                              \
        _tile_zero(c_tile);                                                                        \
        _tile_loadd(a_tile, p->a + (size_t)(at_ * p->rows) * 64 + half_ * 2, 64);                  \
        _tile_loadd(b_tile, w->b[at_] + half_ * 32, 64);                                           \
        _tile_dpbf16ps(c_tile, a_tile, b_tile);                                                    \
        _tile_stored(c_tile, w->c[g], 64);                                                         \
    } while (0)

static void multiply(buffers *w, const part *p)
{
    int g = 0;
    for (; g + 4 <= p->groups; g += 4) {
        GROUP(0, 4, 6, g);
        GROUP(1, 5, 7, g + 1);
        GROUP(2, 4, 6, g + 2);
        GROUP(3, 5, 7, g + 3);
    }
    for (; g < p->groups; g++) GROUP(0, 4, 6, g);
    MSGL_AMX_BARRIER(w->c);
}

#define EACH_8(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define LOAD_SCALE(i)                                                                              \
    const __m512 s##i = _mm512_load_ps(w->scales.scale[g + i]);                                    \
    const __m512 m##i = min ? _mm512_load_ps(w->scales.min[g + i]) : s##i;
#define FOLD(i)                                                                                    \
    y = _mm512_fmadd_ps(_mm512_load_ps(w->c[g + i] + r * 16), s##i, y);                            \
    if (min) y = _mm512_fmadd_ps(_mm512_set1_ps(p->sums[(g + i) * p->rows + r]), m##i, y);

// Eight groups' sums times their scales, or one group's.
MSGL_INLINE void fold_8(const buffers *w, const part *p, const int g, const bool min)
{
    EACH_8(LOAD_SCALE)
    for (int r = 0; r < p->rows; r++) {
        __m512 y = _mm512_load_ps(p->out[r]);
        EACH_8(FOLD)
        _mm512_store_ps(p->out[r], y);
    }
}
MSGL_INLINE void fold_1(const buffers *w, const part *p, const int g, const bool min)
{
    LOAD_SCALE(0)
    for (int r = 0; r < p->rows; r++) {
        __m512 y = _mm512_load_ps(p->out[r]);
        FOLD(0)
        _mm512_store_ps(p->out[r], y);
    }
}

MSGL_INLINE void fold_all(const buffers *w, const part *p, const bool min)
{
    int g = 0;
    for (; g + 8 <= p->groups; g += 8) fold_8(w, p, g, min);
    for (; g < p->groups; g++) fold_1(w, p, g, min);
}

static MSGL_NOINLINE void fold(const buffers *w, const part *p)
{
    fold_all(w, p, false);
}
static MSGL_NOINLINE void fold_min(const buffers *w, const part *p)
{
    fold_all(w, p, true);
}

// Tiles 0-3 are sums, 4 and 5 rows of A, 6 and 7 weights; a group of 16 has half the columns.
static void configure(int rows, int group)
{
    msgl_amx_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.colsb[i] = i == 4 || i == 5 ? (uint16_t)(group * 2) : 64;
        c.rows[i] = (uint8_t)(i < 6 ? rows : group / 2);
    }
    MSGL_AMX_BARRIER(&c);
    _tile_loadconfig(&c);
}

// Rows [row, row + rows) of b, at most ROWS, of a chunk of `blocks` blocks from number `first` on.
static void chunk_rows(const msgl_gemm_block *b, buffers *w, int row, int rows, int first,
                       int blocks)
{
    const msgl_codes *c = b->format->blocks->codes;
    const int all = msgl__codes_blocks(b->k), groups = 32 / c->group;
    for (int r = 0; r < rows; r += 16) {
        const int n = b->rows - row - r < 16 ? b->rows - row - r : 16;
        const char *a = b->a + (size_t)(row + r) * b->a_row_bytes;
        const float *sums = (const float *)(a + (size_t)(n * all) * 64);
        if (c->group == 16) sums += all * n;
        const part p = {.a = a + (size_t)(first * n) * 64,
                        .sums = sums + first * groups * n,
                        .rows = n,
                        .groups = blocks * groups,
                        .group = c->group,
                        .out = w->sums + r};
        if (n < 16) configure(n, c->group);
        multiply(w, &p);
        if (msgl__codes_have_min(c)) {
            fold_min(w, &p);
        } else {
            fold(w, &p);
        }
        if (n < 16 && b->rows > 16) configure(16, c->group);
    }
}

static void panel(const msgl_gemm_block *b, buffers *w, const char *codes, lookup t, int row,
                  int rows)
{
    const msgl_codes *c = b->format->blocks->codes;
    const int blocks = msgl__codes_blocks(b->k);
    const char *const first = codes;
    codes += msgl__codes_front_bytes(c);
    for (int i = 0; i < blocks; i += MSGL_CODES_CHUNK) {
        const int some = blocks - i < MSGL_CODES_CHUNK ? blocks - i : MSGL_CODES_CHUNK;
        msgl__codes_scales_of(c, first, codes, some, &w->scales);
        codes += msgl__codes_scales_bytes(c, some);
        EXPANDS[c->bits](codes, some, t, w->b);
        MSGL_AMX_BARRIER(w->b);
        codes += (size_t)some * msgl__codes_block_bytes(c);
        chunk_rows(b, w, row, rows, i, some);
    }
}

// Sums of rows of the columns [col, col + n) to the result.
static void finish(const msgl_gemm_block *b, const buffers *w, int row, int rows, int col, int n)
{
    for (int r = 0; r < rows; r++) {
        float *out = b->out + (size_t)(row + r) * b->ld_out + col;
        for (int i = 0; i < n; i++) {
            const float y = w->sums[r][i] + (b->bias == NULL ? 0.0f : b->bias[col + i]);
            out[i] = b->add ? out[i] + y : y;
        }
    }
}

void msgl__codes_block_amx(const msgl_gemm_block *b)
{
    const msgl_codes *c = b->format->blocks->codes;
    const lookup t = lookup_of(c);
    buffers w;
    MSGL_AMX_BARRIER(b->a);
    configure(b->rows < 16 ? b->rows : 16, c->group);
    for (int col = 0; col < b->cols; col += MSGL_GEMM_LANES) {
        const char *codes = b->w + (size_t)(col / MSGL_GEMM_LANES) * b->panel_bytes;
        const int left = b->cols - col, n = left < MSGL_GEMM_LANES ? left : MSGL_GEMM_LANES;
        for (int row = 0; row < b->rows; row += ROWS) {
            const int rows = b->rows - row < ROWS ? b->rows - row : ROWS;
            memset(w.sums, 0, (size_t)rows * sizeof w.sums[0]);
            panel(b, &w, codes, t, row, rows);
            finish(b, &w, row, rows, col, n);
        }
    }
    _tile_release(); // an idle tile file costs nothing at a context switch
}
