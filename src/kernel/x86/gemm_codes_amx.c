// SPDX-License-Identifier: Apache-2.0
//
// Codes at level AMX: weights become bf16 on their way from memory, scales multiplied in
// (codes_bf16.h), so that a sum over k stays in its tile as it does with bf16 weights; activations
// are rounded to bf16.
//
// With more than 32 rows, some blocks of two panels, a stretch, are expanded to B tiles while the
// rows pass the stretch before it: a step of the rows' products (2 x 2 tiles) takes the matrix unit
// 64 cycles, in which the vector units have little else to do. With fewer rows expanding takes
// longest, beside reading W: tiles then go through a ring, in which a tile is multiplied when four
// behind it have been made. Sums are the same: over k in one order, of a feature and a row.
//
// Rows are prepared as A tiles: blocks of 16 rows (the last one fewer), each block
// [k / 32][rows][32] in bf16.
#include <stdlib.h>

#include "kernel/vec.h"
#include "kernel/x86/amx.h"
#include "kernel/x86/codes_bf16.h"
#include "kernel/x86/gemm.h"

enum {
    SQUARES = 16, // blocks of 32 rows whose sums wait while others pass a stretch: 64 KB
    LONG = 8,     // blocks of a stretch, which divide a chunk's
    RING = 4,     // blocks of two tiles; of pairs of panels with one block each as many are begun
    BEHIND = 2,   // blocks that are made before the first of them is multiplied
};

typedef char tile[MSGL_BF16_TILE];
// B tiles of a stretch of two panels.
typedef tile stretch_tiles[2][LONG];

static int least(int a, int b)
{
    return a < b ? a : b;
}

size_t msgl__codes_row_bytes_amx(int kpad)
{
    return (size_t)kpad * sizeof(uint16_t);
}

void msgl__codes_prepare_amx(const float *in, size_t ld_in, int rows, int k, char *a,
                             size_t row_bytes)
{
    (void)row_bytes; // rows * row_bytes is the block's size, but rows are interleaved in it
    static const uint16_t ORDER[32] = {0,  2,  1,  3,  4,  6,  5,  7,  8,  10, 9,
                                       11, 12, 14, 13, 15, 16, 18, 17, 19, 20, 22,
                                       21, 23, 24, 26, 25, 27, 28, 30, 29, 31};
    const __m512i order = _mm512_loadu_si512(ORDER);
    for (int i = 0; i < k; i += 32) {
        const uint32_t mask = k - i < 32 ? (1u << (k - i)) - 1 : 0xffffffffu;
        for (int r = 0; r < rows; r++, a += 64) {
            const float *from = in + (size_t)r * ld_in + i;
            const __m512 lo = _mm512_maskz_loadu_ps((__mmask16)mask, from);
            const __m512 hi = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), from + 16);
            const __m512i words = (__m512i)_mm512_cvtne2ps_pbh(hi, lo);
            _mm512_storeu_si512(a, _mm512_permutexvar_epi16(order, words));
        }
    }
}

// Which function makes tiles of these codes.
static int expansion_of(const msgl_codes *c)
{
    return c->floats && c->bits == 8 ? MSGL_CODES_E4M3 : c->bits;
}

// Columns of the result that a pair of panels makes. A gate's panel and its up's are one.
static int pair_cols(const msgl_gemm_block *b)
{
    return b->up > 0 ? MSGL_GEMM_LANES : 2 * MSGL_GEMM_LANES;
}

// The pair of panels at col; a last one alone is taken twice.
static void pair_at(const msgl_gemm_block *b, int col, const char *panels[2])
{
    const bool alone = b->cols - col <= MSGL_GEMM_LANES;
    panels[0] = b->w + (size_t)(col / MSGL_GEMM_LANES) * b->panel_bytes;
    panels[1] = panels[0] + (b->up > 0 ? b->up : alone ? 0 : b->panel_bytes);
}

// How far behind a panel's place `at` what is fetched meanwhile is: as far as measured to be best,
// and where that is behind the panel's end, in that of the next pair.
static size_t ahead_of(const msgl_gemm_block *b, size_t at)
{
    const size_t ahead = b->format->blocks->codes->bits == 8 ? 2048 : 8192;
    return at + ahead < b->panel_bytes || b->up > 0 ? ahead : ahead + b->panel_bytes;
}

static void fetch(const char *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64) _mm_prefetch(from + i, _MM_HINT_T1);
}

static void configure(int configured[2], int rows0, int rows1)
{
    const uint8_t r0 = (uint8_t)rows0, r1 = (uint8_t)(rows1 > 0 ? rows1 : rows0);
    if (configured[0] == r0 && configured[1] == r1) return;
    msgl__amx_configure((const uint8_t[8]){r0, r0, r1, r1, r0, r1, 16, 16});
    configured[0] = r0;
    configured[1] = r1;
}

// Up to 32 rows: A tiles, which are rows0 * 64 and rows1 * 64 bytes apart over k, and sums
// [4][16][16]: of the first rows and first panel, the first rows and second panel, and so on.
// Tiles 0 to 3 are sums, 4 and 5 rows, 6 and 7 weights.
typedef struct square {
    const char *a0, *a1;
    int rows0, rows1;
    float *sums;
} square;

// Rows [row, row + rows) of b from block `first` on.
static square square_at(const msgl_gemm_block *b, int row, int rows, int first, float *sums)
{
    const int n = least(rows, 32), n0 = least(n, 16), n1 = n - n0;
    const char *a = b->a + (size_t)row * b->a_row_bytes;
    return (square){.a0 = a + (size_t)(first * n0) * 64,
                    .a1 = a + (size_t)n0 * b->a_row_bytes + (size_t)(first * n1) * 64,
                    .rows0 = n0,
                    .rows1 = n1,
                    .sums = sums};
}

MSGL_INLINE void zero_sums(const bool two)
{
    _tile_zero(0);
    _tile_zero(1);
    if (two) _tile_zero(2);
    if (two) _tile_zero(3);
}

MSGL_INLINE void store_sums(float *sums, const bool two)
{
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + 256, 64);
    if (two) _tile_stored(2, sums + 512, 64);
    if (two) _tile_stored(3, sums + 768, 64);
    MSGL_AMX_BARRIER(sums);
}

// A block of the first panel; behind it comes that of the second.
MSGL_INLINE void multiply_first(const square *q, const tile *w, const bool two)
{
    _tile_loadd(4, q->a0, 64);
    _tile_loadd(6, *w, 64);
    _tile_dpbf16ps(0, 4, 6);
    if (!two) return;
    _tile_loadd(5, q->a1, 64);
    _tile_dpbf16ps(2, 5, 6);
}

MSGL_INLINE void multiply_second(square *q, const tile *w, const bool two)
{
    _tile_loadd(7, *w, 64);
    _tile_dpbf16ps(1, 4, 7);
    if (two) _tile_dpbf16ps(3, 5, 7);
    q->a0 += q->rows0 * 64;
    q->a1 += q->rows1 * 64;
}

MSGL_INLINE __m512 sums_of(const float *sums, int row, int panel, __mmask16 none)
{
    const __m512 y = _mm512_load_ps(sums + row / 16 * 512 + panel * 256 + row % 16 * 16);
    return _mm512_mask_mov_ps(y, none, _mm512_set1_ps(NAN));
}

// Sums of up to 32 rows, of one panel of the pair at col, to the result.
static void finish_panel(const msgl_gemm_block *b, const float *sums, int row, int rows, int col,
                         int panel, __mmask16 none)
{
    col += panel * MSGL_GEMM_LANES;
    const int n = least(b->cols - col, MSGL_GEMM_LANES);
    if (n <= 0) return; // the pair has one panel
    const __mmask16 some = (__mmask16)((1u << n) - 1);
    for (int r = 0; r < rows; r++) {
        float *out = b->out + (size_t)(row + r) * b->ld_out + col;
        __m512 y = sums_of(sums, r, panel, none);
        if (b->bias != NULL) y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(some, b->bias + col));
        if (b->add) y = _mm512_add_ps(_mm512_maskz_loadu_ps(some, out), y);
        _mm512_mask_storeu_ps(out, some, y);
    }
}

static MSGL_NOINLINE void finish(const msgl_gemm_block *b, const float *sums, int row, int rows,
                                 int col, const __mmask16 none[2])
{
    if (b->up == 0) {
        for (int i = 0; i < 2; i++) finish_panel(b, sums, row, rows, col, i, none[i]);
        return;
    }
    for (int r = 0; r < rows; r++) {
        const __m512 g = sums_of(sums, r, 0, none[0]), u = sums_of(sums, r, 1, none[1]);
        msgl__vf_store(b->out + (size_t)(row + r) * b->ld_out + col,
                       msgl__vf_silu_mul((msgl_vf)g, (msgl_vf)u));
    }
}

// ---- up to 32 rows ----

// A chunk of a pair of panels.
typedef struct chunk {
    const char *lines[2]; // of the panels' codes
    size_t ahead;
    int blocks;
    msgl_bf16_scales scales[2];
} chunk;

typedef struct ring {
    const msgl_gemm_block *b;
    const msgl_bf16_values *values;
    square q;
    int made;                // blocks
    int left;                // blocks that the sums in tiles lack
    int col;                 // of their pair, the first
    tile (*tiles)[2];        // [RING]
    __mmask16 none[RING][2]; // of pairs, by their number: features without a number
} ring;

static __mmask16 (*none_of(ring *r, int col))[2]
{
    return &r->none[col / pair_cols(r->b) % RING];
}

// The ring's sums are complete.
static MSGL_NOINLINE void end_pair(ring *r)
{
    const bool two = r->q.rows1 > 0;
    store_sums(r->q.sums, two);
    zero_sums(two);
    finish(r->b, r->q.sums, 0, r->b->rows, r->col, *none_of(r, r->col));
    r->q = square_at(r->b, 0, r->b->rows, 0, r->q.sums);
    r->left = msgl__codes_blocks(r->b->k);
    r->col += pair_cols(r->b);
}

// The tile that is due, of the panel; none at first.
MSGL_INLINE void multiply_due(ring *r, const int panel)
{
    if (r->made < BEHIND) return;
    const tile *w = &r->tiles[(r->made - BEHIND) % RING][panel];
    const bool two = r->q.rows1 > 0;
    if (panel == 0) {
        multiply_first(&r->q, w, two);
    } else {
        multiply_second(&r->q, w, two);
    }
}

MSGL_INLINE void end_block(ring *r)
{
    MSGL_AMX_BARRIER(r->tiles);
    if (r->made++ >= BEHIND && --r->left == 0) end_pair(r);
}

MSGL_INLINE void pass_chunk(ring *r, const chunk *c, const int bits, const bool min)
{
    const msgl_codes *codes = r->values->codes;
    const size_t bytes = msgl__codes_block_bytes(codes), ahead = c->ahead;
    const int per_block = MSGL_CODES_BLOCK / codes->group;
    const char *first = c->lines[0], *second = c->lines[1];
    for (int i = 0; i < c->blocks; i++, first += bytes, second += bytes) {
        const int group = i * per_block, last = group + per_block - 1;
        tile *to = r->tiles[r->made % RING];
        multiply_due(r, 0);
        msgl__bf16_expand_block(first, ahead, bits, min, r->values, &c->scales[0], group, last,
                                to[0]);
        multiply_due(r, 1);
        msgl__bf16_expand_block(second, ahead, bits, min, r->values, &c->scales[1], group, last,
                                to[1]);
        end_block(r);
    }
}

typedef void (*pass_fn)(ring *r, const chunk *c);
#define PASS(bits, min)                                                                            \
    static MSGL_NOINLINE void pass_##bits##_##min(ring *r, const chunk *c)                         \
    {                                                                                              \
        pass_chunk(r, c, bits, min);                                                               \
    }
#define EACH_BITS(X, min) X(2, min) X(3, min) X(4, min) X(5, min) X(6, min) X(8, min)
PASS(7, 0) // MSGL_CODES_E4M3
EACH_BITS(PASS, 0)
EACH_BITS(PASS, 1)
#define PASS_ENTRY(bits, min) [bits] = pass_##bits##_##min,
static const pass_fn PASSES[2][9] = {{EACH_BITS(PASS_ENTRY, 0) PASS_ENTRY(7, 0)},
                                     {EACH_BITS(PASS_ENTRY, 1)}};

// The pair of panels at col.
static void pass_pair(ring *r, int col, pass_fn pass)
{
    const msgl_gemm_block *b = r->b;
    const msgl_codes *codes = r->values->codes;
    const int blocks = msgl__codes_blocks(b->k);
    const char *panels[2];
    __mmask16 *none = *none_of(r, col);
    size_t at = msgl__codes_front_bytes(codes);
    pair_at(b, col, panels);
    none[0] = none[1] = 0;
    for (int i = 0; i < blocks; i += MSGL_CODES_CHUNK) {
        chunk c;
        c.blocks = least(blocks - i, MSGL_CODES_CHUNK);
        c.ahead = ahead_of(b, at);
        const size_t scales_bytes = msgl__codes_scales_bytes(codes, c.blocks);
        for (int p = 0; p < 2; p++) {
            fetch(panels[p] + at + c.ahead, scales_bytes);
            msgl__bf16_take_scales(r->values, panels[p], panels[p] + at, c.blocks, &c.scales[p]);
            none[p] |= c.scales[p].none;
            c.lines[p] = panels[p] + at + scales_bytes;
        }
        pass(r, &c);
        at += msgl__codes_chunk_bytes(codes, c.blocks);
    }
}

static void few_rows(const msgl_gemm_block *b, const msgl_bf16_values *v)
{
    const msgl_codes *c = v->codes;
    tile tiles[RING][2] MSGL_ALIGNED(64);
    float sums[1024] MSGL_ALIGNED(64);
    int configured[2] = {0, 0};
    ring r = {.b = b,
              .values = v,
              .q = square_at(b, 0, b->rows, 0, sums),
              .left = msgl__codes_blocks(b->k),
              .tiles = tiles};
    configure(configured, r.q.rows0, r.q.rows1); // which zeroes the sums
    const pass_fn pass = PASSES[msgl__codes_have_min(c)][expansion_of(c)];
    for (int col = 0; col < b->cols; col += pair_cols(b)) pass_pair(&r, col, pass);
    while (r.col < b->cols) {
        multiply_due(&r, 0);
        multiply_due(&r, 1);
        end_block(&r);
    }
}

// ---- more rows ----

typedef void (*expand_fn)(const char *lines, size_t ahead, const msgl_bf16_values *v,
                          const msgl_bf16_scales *s, int first, int second, char *to);

#define EXPAND(bits, min)                                                                          \
    static MSGL_NOINLINE void expand_##bits##_##min(                                               \
        const char *lines, size_t ahead, const msgl_bf16_values *v, const msgl_bf16_scales *s,     \
        int first, int second, char *to)                                                           \
    {                                                                                              \
        msgl__bf16_expand_block(lines, ahead, bits, min, v, s, first, second, to);                 \
    }
EXPAND(7, 0)
EACH_BITS(EXPAND, 0)
EACH_BITS(EXPAND, 1)
#define EXPAND_ENTRY(bits, min) [bits] = expand_##bits##_##min,
static const expand_fn EXPANDS[2][9] = {{EACH_BITS(EXPAND_ENTRY, 0) EXPAND_ENTRY(7, 0)},
                                        {EACH_BITS(EXPAND_ENTRY, 1)}};

// The panels on their way to tiles: stretch after stretch, block after block.
typedef struct stream {
    const msgl_gemm_block *b;
    const msgl_bf16_values *values;
    expand_fn expand;
    size_t block_bytes;
    int per_block; // groups
    // The chunk: where its pair of panels begins, ...
    const char *panels[2];
    int col;
    int passes;          // ... how many times that is still to be expanded, ...
    int first, end;      // ... the chunk's blocks, of the panel's, ...
    size_t at;           // ... its place in the panel, ...
    size_t scales_bytes; // ... how long its scales are, ...
    size_t ahead;        // ... and what is fetched meanwhile.
    // The stretch: its blocks; none behind the last one.
    int begin, blocks;
    // The next block: its place in the stretch, first group, codes and tile.
    int panel, block, group;
    const char *lines;
    msgl_bf16_scales scales[2];
    stretch_tiles *to;
    __mmask16 none[2]; // features of the pair that have a scale that is no number
    int due, steps;    // see expand_due()
} stream;

// The stretch at s->begin.
static void begin_stretch(stream *s)
{
    s->blocks = least(s->end - s->begin, LONG);
    s->panel = s->block = 0;
}

// The chunk at s->at, and its first stretch.
static void begin_chunk(stream *s)
{
    const int blocks = least(msgl__codes_blocks(s->b->k) - s->first, MSGL_CODES_CHUNK);
    s->begin = s->first;
    s->end = s->first + blocks;
    s->scales_bytes = msgl__codes_scales_bytes(s->values->codes, blocks);
    s->ahead = ahead_of(s->b, s->at);
    begin_stretch(s);
}

// Begins the pair of panels at s->col, or ends the stream.
static void begin_pair(stream *s)
{
    const msgl_gemm_block *b = s->b;
    s->first = s->blocks = 0;
    if (s->col >= b->cols) return;
    pair_at(b, s->col, s->panels);
    s->at = msgl__codes_front_bytes(s->values->codes);
    begin_chunk(s);
}

// The stretch is expanded: on to the next one, of the same pair or the next.
static void next_stretch(stream *s)
{
    s->begin += s->blocks;
    if (s->begin < s->end) {
        begin_stretch(s);
    } else if (s->end < msgl__codes_blocks(s->b->k)) {
        s->at += s->scales_bytes + (size_t)(s->end - s->first) * s->block_bytes;
        s->first = s->end;
        begin_chunk(s);
    } else {
        if (--s->passes == 0) {
            s->passes = msgl__ceil_div(s->b->rows, 32 * SQUARES);
            s->col += pair_cols(s->b);
        }
        begin_pair(s);
    }
}

static void begin_panel(stream *s)
{
    const char *panel = s->panels[s->panel], *const at = panel + s->at;
    const int block = s->begin - s->first; // of the chunk's
    if (block == 0) {
        fetch(at + s->ahead, s->scales_bytes);
        msgl__bf16_take_scales(s->values, panel, at, s->end - s->first, &s->scales[s->panel]);
        s->none[s->panel] |= s->scales[s->panel].none;
    }
    s->lines = at + s->scales_bytes + (size_t)block * s->block_bytes;
    s->group = block * s->per_block;
}

static MSGL_NOINLINE void expand_next(stream *s)
{
    if (s->block == 0) begin_panel(s);
    s->expand(s->lines, s->ahead, s->values, &s->scales[s->panel], s->group,
              s->group + s->per_block - 1, (*s->to)[s->panel][s->block]);
    s->lines += s->block_bytes;
    s->group += s->per_block;
    if (++s->block < s->blocks) return;
    s->block = 0;
    s->panel++;
}

// Expands what is left of the stretch.
static void expand_rest(stream *s)
{
    while (s->blocks > 0 && s->panel < 2) expand_next(s);
    MSGL_AMX_BARRIER(s->to);
}

// One of s->steps steps that a stretch's expansion is spread over.
MSGL_INLINE void expand_due(stream *s)
{
    for (s->due += 2 * s->blocks; s->due >= s->steps; s->due -= s->steps) expand_next(s);
}

// A stretch of `blocks` blocks times up to 32 rows, whose sums over what is in front of it are in
// memory; `first`: there is nothing.
MSGL_INLINE void multiply(stream *s, square q, stretch_tiles *w, int blocks, const bool first,
                          const bool two)
{
    if (first) {
        zero_sums(two);
    } else {
        _tile_loadd(0, q.sums, 64);
        _tile_loadd(1, q.sums + 256, 64);
        if (two) _tile_loadd(2, q.sums + 512, 64);
        if (two) _tile_loadd(3, q.sums + 768, 64);
    }
    for (int i = 0; i < blocks; i++) {
        expand_due(s);
        multiply_first(&q, &(*w)[0][i], two);
        multiply_second(&q, &(*w)[1][i], two);
    }
    store_sums(q.sums, two);
}

static MSGL_NOINLINE void multiply_1(stream *s, square q, stretch_tiles *w, int blocks, bool first)
{
    multiply(s, q, w, blocks, first, false);
}
static MSGL_NOINLINE void multiply_2(stream *s, square q, stretch_tiles *w, int blocks, bool first)
{
    multiply(s, q, w, blocks, first, true);
}

// Rows that pass a pair of panels, stretch after stretch.
typedef struct strip {
    int row, rows, col;
    float (*sums)[1024]; // of 32 rows each
    int configured[2];
    __mmask16 none[2];
} strip;

// Times a stretch of `blocks` blocks from number `first` on.
static void stretch_rows(stream *s, strip *t, int first, int blocks, stretch_tiles *w)
{
    const bool last = first + blocks == msgl__codes_blocks(s->b->k);
    s->due = 0;
    s->steps = msgl__ceil_div(t->rows, 32) * blocks;
    for (int r = 0; r < t->rows; r += 32) {
        const int row = t->row + r, rows = least(t->rows - r, 32);
        const square q = square_at(s->b, row, rows, first, t->sums[r / 32]);
        configure(t->configured, q.rows0, q.rows1);
        (q.rows1 > 0 ? multiply_2 : multiply_1)(s, q, w, blocks, first == 0);
        if (last) finish(s->b, q.sums, row, rows, t->col, t->none);
    }
    expand_rest(s);
}

static void many_rows(const msgl_gemm_block *b, const msgl_bf16_values *v)
{
    const msgl_codes *c = v->codes;
    const int blocks = msgl__codes_blocks(b->k), most = 32 * SQUARES;
    stretch_tiles tiles[2] MSGL_ALIGNED(64);
    float sums[SQUARES][1024] MSGL_ALIGNED(64);
    strip t = {.sums = sums};
    stream s = {.b = b,
                .values = v,
                .expand = EXPANDS[msgl__codes_have_min(c)][expansion_of(c)],
                .block_bytes = msgl__codes_block_bytes(c),
                .per_block = MSGL_CODES_BLOCK / c->group,
                .passes = msgl__ceil_div(b->rows, most),
                .to = &tiles[0]};
    begin_pair(&s);
    expand_rest(&s);
    for (t.col = 0; t.col < b->cols; t.col += pair_cols(b)) {
        for (t.row = 0; t.row < b->rows; t.row += most) {
            t.rows = least(b->rows - t.row, most);
            t.none[0] = t.none[1] = 0;
            for (int at = 0; at < blocks; at += LONG) {
                stretch_tiles *const now = s.to;
                for (int i = 0; i < 2; i++) {
                    t.none[i] |= s.none[i];
                    s.none[i] = 0;
                }
                s.to = now == &tiles[0] ? &tiles[1] : &tiles[0];
                next_stretch(&s);
                stretch_rows(&s, &t, at, least(blocks - at, LONG), now);
            }
        }
    }
}

void msgl__codes_block_amx(const msgl_gemm_block *b)
{
    const msgl_bf16_values values = msgl__bf16_values(b->format->blocks->codes);
    MSGL_AMX_BARRIER(b->a);
    (b->rows > 32 ? many_rows : few_rows)(b, &values);
    _tile_release(); // an idle tile file costs nothing at a context switch
}
