// SPDX-License-Identifier: Apache-2.0
//
// f32 weights at level AMX, whose unit multiplies bf16: an f32 number is the sum of three bf16
// numbers, its parts, and a product of two numbers is six products of parts, summed in f32. Parts
// have 8 bits each, the first one rounded, so x1 + x2 + x3 is x (24 bits). With 2^e <= |x| <
// 2^(e+1) |x2| is at most 2^(e-8) and |x3| below 2^(e-16); the products left out, x2 w3, x3 w2 and
// x3 w3, are at most 2^-23 of 2^e times w's, of either sign. A sum of 32 columns is made before it
// is added to those in front of it, which is why sums err less than those of one multiply-add after
// the other.
//
// What bf16 cannot do is done in f32: a sum that is no finite number (of an infinity's parts some
// are 0 or NaN), or is so small that products of parts may have been below 2^-126, which the unit
// takes for 0, is made again by multiply-adds, for itself alone. Of activations below 2^-110 the
// third part is rounded, to a multiple of 2^-133.
//
// Rows are prepared as A tiles: blocks of 16 rows (the last one fewer), each block
// [k / 32][part][rows][32] in bf16. Weights stay f32, as reading them is what few rows wait for; a
// stretch of k of some panels is cut into parts while the rows pass the stretch before it: the
// matrix unit takes 384 cycles for a step of 32 rows and two panels, and the vector units have
// little else to do. Few rows pass in the same way, so that a row's sums have one order; cutting is
// then most of the time, so this is for prompts alone (msgl_exec.prompts_only).
#include "core/round.h"
#include "kernel/vec.h"
#include "kernel/x86/amx.h"
#include "kernel/x86/gemm.h"

enum {
    PARTS = 3,
    TILE = 1024,
    TILES = 24,                         // of weights in a stretch: its parts take 72 KB
    FEW_TILES = 4,                      // the same of one square, whose sums stay in tiles
    SQUARES = MSGL_GEMM_TASK_ROWS / 32, // blocks of 32 rows, whose sums wait between stretches
    AHEAD = 2048,                       // bytes of a panel that are fetched ahead
};

typedef char part_tiles[PARTS][TILE]; // of 32 k and 16 features

size_t msgl__parts_row_bytes_amx(int kpad)
{
    return (size_t)kpad * PARTS * sizeof(uint16_t);
}

// 16 numbers' parts, in the upper halves of lanes.
typedef struct parts {
    __m512i p[PARTS];
} parts;

MSGL_INLINE __m512i upper(__m512i v)
{
    return _mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000));
}

MSGL_INLINE __m512i rounded(__m512 x)
{
    return upper(_mm512_add_epi32((__m512i)x, _mm512_set1_epi32(0x8000)));
}

// Of finite numbers that do not round to an infinity. Others have parts whose products are no
// finite numbers.
MSGL_INLINE parts split(__m512 x)
{
    const __m512i first = rounded(x);
    const __m512 left = _mm512_sub_ps(x, (__m512)first);
    const __m512i second = upper((__m512i)left);
    return (parts){{first, second, (__m512i)_mm512_sub_ps(left, (__m512)second)}};
}

enum { ROUNDS_TO_INFINITY = 0x7f7f8000 }; // magnitudes from here on

MSGL_INLINE __mmask16 is_large(__m512 x)
{
    const __m512i magnitude = _mm512_and_si512((__m512i)x, _mm512_set1_epi32(0x7fffffff));
    return _mm512_cmpge_epu32_mask(magnitude, _mm512_set1_epi32(ROUNDS_TO_INFINITY));
}

// Of any numbers: the first part is cut off, and that of an infinity or NaN is all that it has.
static MSGL_NOINLINE void split_any(const float *from, parts *to)
{
    const __m512 x = _mm512_loadu_ps(from);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i first = upper((__m512i)x);
    const __mmask16 finite = _mm512_cmp_ps_mask(_mm512_abs_ps((__m512)first),
                                                _mm512_set1_ps(__builtin_inff()), _CMP_LT_OQ);
    const __m512 left = _mm512_maskz_sub_ps(finite & ~nan, x, (__m512)first);
    const __m512i second = upper((__m512i)left);
    to->p[0] = _mm512_mask_or_epi32(first, nan, first, _mm512_set1_epi32(0x400000));
    to->p[1] = second;
    to->p[2] = (__m512i)_mm512_sub_ps(left, (__m512)second);
}

static MSGL_NOINLINE void split_large(__m512 lo, __m512 hi, parts *a, parts *b)
{
    float x[32];
    _mm512_storeu_ps(x, lo);
    _mm512_storeu_ps(x + 16, hi);
    split_any(x, a);
    split_any(x + 16, b);
}

void msgl__parts_prepare_amx(const float *in, size_t ld_in, int rows, int k, char *a,
                             size_t row_bytes)
{
    (void)row_bytes; // rows * row_bytes is the block's size, but rows are interleaved in it
    static const uint16_t UPPER[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                       23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                       45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    const __m512i halves = _mm512_loadu_si512(UPPER);
    const size_t part = (size_t)rows * 64;
    for (int i = 0; i < k; i += 32, a += PARTS * part) {
        const uint32_t mask = k - i < 32 ? (1u << (k - i)) - 1 : 0xffffffffu;
        for (int r = 0; r < rows; r++) {
            const float *from = in + (size_t)r * ld_in + i;
            const __m512 lo = _mm512_maskz_loadu_ps((__mmask16)mask, from);
            const __m512 hi = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), from + 16);
            parts x = split(lo), y = split(hi);
            if (!MSGL_LIKELY((is_large(lo) | is_large(hi)) == 0)) split_large(lo, hi, &x, &y);
            for (int p = 0; p < PARTS; p++) {
                _mm512_storeu_si512(a + (size_t)p * part + (size_t)r * 64,
                                    _mm512_permutex2var_epi16(x.p[p], halves, y.p[p]));
            }
        }
    }
}

// The panels that pass together, and a stretch of their k. A gate's and its up's are neighbours.
typedef struct stretch {
    int col;          // of the result
    int first, tiles; // of 32 k
    const char *w[4]; // panels; behind the last one it again, whose results are not kept
} stretch;

static stretch stretch_at(const msgl_gemm_block *b, int panels, int col, int first)
{
    const int all = b->kpad / 32, tiles = b->rows <= 32 ? FEW_TILES : TILES;
    const int stretches = msgl__ceil_div(all, tiles / panels); // of about equal length
    const int left = all - first, most = msgl__ceil_div(all, stretches);
    stretch s = {.col = col, .first = first, .tiles = left < most ? left : most};
    const int last = msgl__ceil_div(b->cols, MSGL_GEMM_LANES) - 1, at = col / MSGL_GEMM_LANES;
    for (int i = 0; i < panels; i++) {
        const int panel = at + (b->up > 0 ? i / 2 : i);
        s.w[i] = b->w + (size_t)(panel < last ? panel : last) * b->panel_bytes +
                 (b->up > 0 && i % 2 == 1 ? b->up : 0);
    }
    return s;
}

// Columns of the result that so many panels make.
static int group_cols(const msgl_gemm_block *b, int panels)
{
    return (b->up > 0 ? panels / 2 : panels) * MSGL_GEMM_LANES;
}

// The cutting of a stretch's weights into parts, some lines at a time while rows pass another
// stretch.
typedef struct cutting {
    stretch s;
    int panels;    // 0: there is no such stretch
    int left;      // lines of B tiles to make: 16 for 32 k of a panel
    int each;      // lines that are made at a time
    int panel;     // of the next line
    const char *w; // its weights
    char *to;      // line 0 of [panels][tiles] part_tiles, plus 64 for each
} cutting;

// Line i of a B tile has k 2i and 2i + 1 of each of the 16 features: even >> 16 | upper(odd).
MSGL_INLINE void cut_line(const char *w, char *to)
{
    _mm_prefetch(w + AHEAD, _MM_HINT_T0);
    _mm_prefetch(w + AHEAD + 64, _MM_HINT_T0);
    const parts even = split(_mm512_loadu_ps(w)), odd = split(_mm512_loadu_ps(w + 64));
    const __m512i high = _mm512_set1_epi32((int)0xffff0000);
    for (int p = 0; p < PARTS; p++) {
        const __m512i low = _mm512_srli_epi32(even.p[p], 16);
        _mm512_store_si512(to + p * TILE, _mm512_ternarylogic_epi32(low, odd.p[p], high, 0xf8));
    }
}

// Where the next line is behind a tile's last one.
static void next_tile(cutting *c)
{
    c->to += sizeof(part_tiles) - TILE;
    if (c->left % (16 * c->s.tiles) != 0 || c->left == 0) return;
    c->w = c->s.w[++c->panel] + (size_t)c->s.first * (2 * TILE);
}

static MSGL_NOINLINE void cut_some(cutting *c, int lines)
{
    while (lines > 0 && c->left > 0) {
        const int of_tile = (c->left - 1) % 16 + 1, n = lines < of_tile ? lines : of_tile;
        for (int i = 0; i < n; i++) cut_line(c->w + i * 128, c->to + i * 64);
        c->w += (size_t)n * 128;
        c->to += (size_t)n * 64;
        lines -= n;
        c->left -= n;
        if (c->left % 16 == 0) next_tile(c);
    }
}

MSGL_INLINE void cut_due(cutting *c)
{
    if (c->left > 0) cut_some(c, c->each);
}

static void cut_rest(cutting *c)
{
    cut_some(c, c->left);
    MSGL_AMX_BARRIER(c->to);
}

// Where the sums of a stretch begin and end.
typedef enum from_to {
    FROM_ZERO = 1, // else from memory, or
    FROM_TILES = 2,
    TO_MEMORY = 4, // else they stay in their tiles
} from_to;

// Up to 32 rows: A tiles of rows0 <= 16 and rows1 rows at a stretch, and sums [tiles][16][16].
typedef struct square {
    const char *a0, *a1;
    int rows0, rows1;
    float *sums;
    unsigned way; // from_to
} square;

static square square_at(const msgl_gemm_block *b, int row, int first, float *sums)
{
    const int left = b->rows - row, n = left < 32 ? left : 32, n0 = n < 16 ? n : 16, n1 = n - n0;
    const char *a = b->a + (size_t)row * b->a_row_bytes;
    const size_t ahead = (size_t)first * PARTS * 64;
    return (square){.a0 = a + ahead * (size_t)n0,
                    .a1 = a + (size_t)n0 * b->a_row_bytes + ahead * (size_t)n1,
                    .rows0 = n0,
                    .rows1 = n1,
                    .sums = sums};
}

MSGL_INLINE void load_sums(const float *sums, unsigned way)
{
    if (way & FROM_TILES) return;
    if (way & FROM_ZERO) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, sums, 64);
        _tile_loadd(1, sums + 256, 64);
        _tile_loadd(2, sums + 512, 64);
        _tile_loadd(3, sums + 768, 64);
    }
}

MSGL_INLINE void store_sums(float *sums, unsigned way)
{
    if (!(way & TO_MEMORY)) return;
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + 256, 64);
    _tile_stored(2, sums + 512, 64);
    _tile_stored(3, sums + 768, 64);
    MSGL_AMX_BARRIER(sums);
}

// The order of the six products, small ones first: neighbours have an operand in common.
#define SIX(X) X(2, 0) X(1, 0) X(1, 1) X(0, 1) X(0, 2) X(0, 0)

// Tiles 0 to 3 are sums: of the first rows and the first panel, the first rows and the second
// panel, and so on. 4 and 5 are rows, 6 and 7 weights.
static MSGL_NOINLINE void multiply_2x2(square q, const part_tiles *w, const stretch *s, cutting *c)
{
    const size_t row0 = (size_t)q.rows0 * 64, row1 = (size_t)q.rows1 * 64;
    const part_tiles *v = w + s->tiles;
    load_sums(q.sums, q.way);
    for (int i = 0; i < s->tiles; i++, w++, v++, q.a0 += PARTS * row0, q.a1 += PARTS * row1) {
#define ROWS(part)                                                                                 \
    _tile_loadd(4, q.a0 + (part)*row0, 64);                                                        \
    _tile_loadd(5, q.a1 + (part)*row1, 64);
#define WEIGHTS(part)                                                                              \
    _tile_loadd(6, (*w)[part], 64);                                                                \
    _tile_loadd(7, (*v)[part], 64);
#define PRODUCTS                                                                                   \
    _tile_dpbf16ps(0, 4, 6);                                                                       \
    _tile_dpbf16ps(1, 4, 7);                                                                       \
    _tile_dpbf16ps(2, 5, 6);                                                                       \
    _tile_dpbf16ps(3, 5, 7);                                                                       \
    cut_due(c);
        ROWS(2)
        WEIGHTS(0)
        PRODUCTS ROWS(1) PRODUCTS WEIGHTS(1) PRODUCTS ROWS(0) PRODUCTS WEIGHTS(2)
            PRODUCTS WEIGHTS(0) PRODUCTS
#undef ROWS
#undef WEIGHTS
#undef PRODUCTS
    }
    store_sums(q.sums, q.way);
}

// Up to 16 rows and two panels, the sums of which are tiles 0 and 1.
static MSGL_NOINLINE void multiply_1x2(square q, const part_tiles *w, const stretch *s, cutting *c)
{
    const size_t row = (size_t)q.rows0 * 64;
    const part_tiles *v = w + s->tiles;
    load_sums(q.sums, q.way);
    for (int i = 0; i < s->tiles; i++, w++, v++, q.a0 += PARTS * row) {
#define STEP(x, y)                                                                                 \
    _tile_loadd(4, q.a0 + (x)*row, 64);                                                            \
    _tile_loadd(6, (*w)[y], 64);                                                                   \
    _tile_dpbf16ps(0, 4, 6);                                                                       \
    _tile_loadd(7, (*v)[y], 64);                                                                   \
    _tile_dpbf16ps(1, 4, 7);                                                                       \
    cut_due(c);
        SIX(STEP)
#undef STEP
    }
    store_sums(q.sums, q.way);
}

// Up to 16 rows and four panels: as many sums as the unit needs to be busy.
static MSGL_NOINLINE void multiply_1x4(square q, const part_tiles *w, const stretch *s, cutting *c)
{
    const size_t row = (size_t)q.rows0 * 64, n = (size_t)s->tiles;
    load_sums(q.sums, q.way);
    for (int i = 0; i < s->tiles; i++, w++, q.a0 += PARTS * row) {
#define STEP(x, y)                                                                                 \
    _tile_loadd(4, q.a0 + (x)*row, 64);                                                            \
    _tile_loadd(6, w[0][y], 64);                                                                   \
    _tile_dpbf16ps(0, 4, 6);                                                                       \
    _tile_loadd(7, w[n][y], 64);                                                                   \
    _tile_dpbf16ps(1, 4, 7);                                                                       \
    _tile_loadd(6, w[2 * n][y], 64);                                                               \
    _tile_dpbf16ps(2, 4, 6);                                                                       \
    _tile_loadd(7, w[3 * n][y], 64);                                                               \
    _tile_dpbf16ps(3, 4, 7);                                                                       \
    cut_due(c);
        SIX(STEP)
#undef STEP
    }
    store_sums(q.sums, q.way);
}

// A row times a panel by multiply-adds. A number is its parts' sum.
static MSGL_NOINLINE __m512 by_f32(const msgl_gemm_block *b, int row, const char *panel)
{
    const int first = row / 16 * 16, rows = b->rows - first < 16 ? b->rows - first : 16;
    const char *a = b->a + (size_t)first * b->a_row_bytes + (size_t)(row - first) * 64;
    const size_t part = (size_t)rows * 64;
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < b->kpad; i += 16) {
        const char *at = a + (size_t)(i / 32) * PARTS * part + (size_t)(i % 32) * 2;
        __m512 x = _mm512_setzero_ps();
        float each[16];
        for (int p = PARTS; p-- > 0;) {
            const __m256i words = _mm256_loadu_si256((const __m256i *)(at + (size_t)p * part));
            x = _mm512_add_ps((__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16), x);
        }
        _mm512_storeu_ps(each, x);
        for (int j = 0; j < 16; j++, panel += 64) {
            sum = _mm512_fmadd_ps(_mm512_loadu_ps(panel), _mm512_set1_ps(each[j]), sum);
        }
    }
    return sum;
}

// Sums of a row and a panel; those made again that the unit could not make.
MSGL_INLINE __m512 checked(const msgl_gemm_block *b, const float *sums, int row, const char *panel)
{
    enum { SMALL = 0x0d800000, INFINITE = 0x7f800000 }; // 2^-100: 26 bits above 2^-126
    const __m512 v = _mm512_loadu_ps(sums);
    const __m512i magnitude = _mm512_and_si512((__m512i)v, _mm512_set1_epi32(0x7fffffff));
    const __mmask16 again = _mm512_cmpge_epu32_mask(
        _mm512_sub_epi32(magnitude, _mm512_set1_epi32(SMALL)), _mm512_set1_epi32(INFINITE - SMALL));
    if (MSGL_LIKELY(again == 0)) return v;
    return _mm512_mask_mov_ps(v, again, by_f32(b, row, panel));
}

// `rows` rows of a block of 16 from `row` on; sums [panels][16][16].
static void finish(const msgl_gemm_block *b, const stretch *s, int panels, const float *sums,
                   int row, int rows)
{
    const int each = b->up > 0 ? 2 : 1;
    for (int i = 0, col = s->col; i < panels && col < b->cols; i += each, col += 16) {
        const int cols = b->cols - col;
        const __mmask16 m = cols < 16 ? (__mmask16)((1u << cols) - 1) : 0xffff;
        const __m512 bias =
            b->bias == NULL ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(m, b->bias + col);
        for (int r = 0; r < rows; r++) {
            const float *from = sums + i * 256 + r * 16;
            float *out = b->out + (size_t)(row + r) * b->ld_out + col;
            __m512 v = checked(b, from, row + r, s->w[i]);
            if (b->up > 0) {
                const __m512 u = checked(b, from + 256, row + r, s->w[i + 1]);
                v = (__m512)msgl__vf_silu_mul((msgl_vf)v, (msgl_vf)u);
            }
            if (b->bias != NULL) v = _mm512_add_ps(v, bias);
            if (b->add) v = _mm512_add_ps(_mm512_maskz_loadu_ps(m, out), v);
            _mm512_mask_storeu_ps(out, m, v);
        }
    }
}

// What finish will write.
static void fetch_out(const msgl_gemm_block *b, const stretch *s, int panels, int row, int rows)
{
    const int most = b->cols - s->col, cols = group_cols(b, panels);
    for (int r = row; r < row + rows; r++) {
        const float *out = b->out + (size_t)r * b->ld_out + s->col;
        for (int i = 0; i < cols && i < most; i += 16) __builtin_prefetch(out + i, 1);
    }
}

static void configure(int configured[2], int rows0, int rows1)
{
    if (configured[0] == rows0 && configured[1] == rows1) return;
    const uint8_t r0 = (uint8_t)rows0, r1 = (uint8_t)(rows1 > 0 ? rows1 : rows0);
    msgl__amx_configure((const uint8_t[8]){r0, r0, r1, r1, r0, r1, 16, 16});
    configured[0] = rows0;
    configured[1] = rows1;
}

// Of a stretch, into `to`, beside `steps` steps of 6 products each.
static cutting cutting_of(const stretch *s, int panels, part_tiles *to, int steps)
{
    const int lines = panels * s->tiles * 16;
    return (cutting){.s = *s,
                     .panels = panels,
                     .left = lines,
                     .each = msgl__ceil_div(lines, 6 * steps),
                     .w = s->w[0] + (size_t)s->first * (2 * TILE),
                     .to = (*to)[0]};
}

// The stretch behind s: of the same panels, or the first one of the next.
static cutting begin_cutting(const msgl_gemm_block *b, int panels, const stretch *s, part_tiles *to)
{
    const int first = s->first + s->tiles, more = first < b->kpad / 32;
    const int col = more ? s->col : s->col + group_cols(b, panels);
    if (col >= b->cols) return (cutting){0};
    const stretch next = stretch_at(b, panels, col, more ? first : 0);
    return cutting_of(&next, panels, to, msgl__ceil_div(b->rows, 32) * s->tiles);
}

// All rows times s, whose parts are w.
static void pass(const msgl_gemm_block *b, int panels, const stretch *s, const part_tiles *w,
                 float (*sums)[1024], int configured[2], cutting *c)
{
    const bool last = s->first + s->tiles == b->kpad / 32, one = b->rows <= 32;
    for (int row = 0; row < b->rows; row += 32, sums++) {
        square q = square_at(b, row, s->first, *sums);
        q.way = s->first == 0 ? FROM_ZERO : one ? FROM_TILES : 0;
        if (last || !one) q.way |= TO_MEMORY;
        configure(configured, q.rows0, q.rows1);
        if (last) fetch_out(b, s, panels, row, q.rows0 + q.rows1);
        if (q.rows1 > 0) {
            multiply_2x2(q, w, s, c);
        } else {
            (panels == 4 ? multiply_1x4 : multiply_1x2)(q, w, s, c);
        }
        if (!last) continue;
        finish(b, s, panels, *sums, row, q.rows0);
        if (q.rows1 > 0) finish(b, s, panels, *sums + 512, row + 16, q.rows1);
    }
}

void msgl__parts_block_amx(const msgl_gemm_block *b)
{
    part_tiles tiles[2][TILES] MSGL_ALIGNED(64);
    float sums[SQUARES][1024] MSGL_ALIGNED(64);
    const int panels = b->rows <= 16 ? 4 : 2;
    int configured[2] = {0}, now = 0;
    MSGL_AMX_BARRIER(b->a);
    stretch s = stretch_at(b, panels, 0, 0);
    cutting c = cutting_of(&s, panels, tiles[0], 1);
    for (cut_rest(&c); c.panels > 0; now ^= 1) {
        s = c.s;
        c = begin_cutting(b, panels, &s, tiles[now ^ 1]);
        pass(b, panels, &s, tiles[now], sums, configured, &c);
        cut_rest(&c);
    }
    _tile_release(); // an idle tile file costs nothing at a context switch
}
