// SPDX-License-Identifier: Apache-2.0
//
// Family gemm at level AMX: int8 weights by vpdpbusd, because 64 columns make one tile product, and
// then its sums would have to leave the tile to be scaled. bf16 weights by tdpbf16ps, whatever the
// number of rows, so that a row's sums always run in the same order. A panel's 16 consecutive lines
// are a B tile (32 k x 16 features). Rows are prepared as A tiles: blocks of 16 rows (the last one
// fewer), each block [k / 32][rows][32] in bf16, so that a tile is contiguous.
//
// Up to 16 rows are bound by reading W: one A tile against one panel after the other, which reads
// fastest, or against four panels at a time when reading A would begin to count. More rows: 2 x 2
// tiles, four loads for four products.
#include "core/round.h"
#include "kernel/gemm_kept.h"
#include "kernel/x86/amx.h"
#include "kernel/x86/gemm.h"
#include "kernel/x86/init.h"
#include "kernel/x86/ops.h"

enum {
    TILE_BYTES = 1024,
    AHEAD = 512,      // bytes of W that are fetched ahead
    SINGLE_ROWS = 2,  // up to here one panel at a time
    STRETCH = 8,      // tiles of k: two panels of it take a third of a 48 KB L1 cache
    MAX_SQUARES = 16, // 32 x 32 results that wait between stretches: 512 rows
};

static void prepare_bf16(const float *in, size_t ld_in, int rows, int k, char *a, size_t row_bytes)
{
    (void)row_bytes; // rows * row_bytes is the block's size, but rows are interleaved in it
    for (int i = 0; i < k; i += 32) {
        char *to = a + (size_t)(i / 32) * (size_t)rows * 64;
        const uint32_t mask = k - i < 32 ? (1u << (k - i)) - 1 : 0xffffffffu;
        for (int r = 0; r < rows; r++) {
            const float *from = in + (size_t)r * ld_in + i;
            const __m512 lo = _mm512_maskz_loadu_ps((__mmask16)mask, from);
            const __m512 hi = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), from + 16);
            _mm512_storeu_si512(to + r * 64, (__m512i)_mm512_cvtne2ps_pbh(hi, lo));
        }
    }
}

// One C tile to the result: `rows` rows of columns [col, col + 16) of b, as far as they exist.
static MSGL_NOINLINE void finish(const msgl_gemm_block *b, const float *sums, int row, int rows,
                                 int col)
{
    const int cols = b->cols - col < 16 ? b->cols - col : 16;
    for (int r = 0; r < rows; r++) {
        float *out = b->out + (size_t)(row + r) * b->ld_out + col;
        for (int i = 0; i < cols; i++) {
            out[i] = sums[r * 16 + i] + (b->bias == NULL ? 0.0f : b->bias[col + i]);
        }
    }
}

#define STORE_TILE(tile, row, rows, col)                                                           \
    do {                                                                                           \
        if (MSGL_LIKELY(b->bias == NULL && b->cols - (col) >= 16)) {                               \
            _tile_stored(tile, b->out + (size_t)(row)*b->ld_out + (col), b->ld_out * 4);           \
        } else {                                                                                   \
            float tile_[256];                                                                      \
            _tile_stored(tile, tile_, 64);                                                         \
            MSGL_AMX_BARRIER(tile_);                                                               \
            finish(b, tile_, row, rows, col);                                                      \
        }                                                                                          \
    } while (0)

MSGL_INLINE void prefetch_tile(const char *p)
{
    for (int i = 0; i < TILE_BYTES; i += 64) _mm_prefetch(p + i, _MM_HINT_T0);
}

// At most 16 rows, one A tile; panels `panel` + j * `stride`, j < 4.
static void tile_1x4(const msgl_gemm_block *b, int panel, int stride)
{
    const char *a = b->a, *w = b->w + (size_t)panel * b->panel_bytes;
    const size_t s = (size_t)stride * b->panel_bytes, a_tile = (size_t)b->rows * 64;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int i = b->kpad / 32; i > 0; i--, a += a_tile, w += TILE_BYTES) {
        prefetch_tile(w + AHEAD);
        prefetch_tile(w + s + AHEAD);
        prefetch_tile(w + 2 * s + AHEAD);
        prefetch_tile(w + 3 * s + AHEAD);
        _tile_loadd(4, a, 64);
        _tile_loadd(6, w, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, w + s, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(6, w + 2 * s, 64);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(7, w + 3 * s, 64);
        _tile_dpbf16ps(3, 4, 7);
    }
    STORE_TILE(0, 0, b->rows, panel * 16);
    STORE_TILE(1, 0, b->rows, (panel + stride) * 16);
    STORE_TILE(2, 0, b->rows, (panel + 2 * stride) * 16);
    STORE_TILE(3, 0, b->rows, (panel + 3 * stride) * 16);
}

// `rows` <= 16 rows from `row` on, one panel.
static void tile_1x1(const msgl_gemm_block *b, int row, int rows, int panel)
{
    const char *a = b->a + (size_t)row * b->a_row_bytes;
    const char *w = b->w + (size_t)panel * b->panel_bytes;
    _tile_zero(0);
    for (int i = b->kpad / 32; i > 0; i--, a += (size_t)rows * 64, w += TILE_BYTES) {
        prefetch_tile(w + AHEAD);
        _tile_loadd(4, a, 64);
        _tile_loadd(6, w, 64);
        _tile_dpbf16ps(0, 4, 6);
    }
    STORE_TILE(0, row, rows, panel * 16);
}

// Two by two tiles: 16 + rows1 rows, two panels, a stretch of k. Sums of an earlier stretch come
// from and go to `sums` [4][16][16].
typedef struct square {
    const char *a0, *a1, *w0, *w1;
    size_t a1_tile; // bytes per tile of a1
    int tiles;      // of k
    bool first, last;
    float *sums;
    const char **ahead; // what to fetch into the L2 cache meanwhile, `lines` lines per step
    int lines;
} square;

MSGL_INLINE void multiply(const square *s)
{
    const char *a0 = s->a0, *a1 = s->a1, *w0 = s->w0, *w1 = s->w1, *ahead = *s->ahead;
    if (s->first) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, s->sums, 64);
        _tile_loadd(1, s->sums + 256, 64);
        _tile_loadd(2, s->sums + 512, 64);
        _tile_loadd(3, s->sums + 768, 64);
    }
    for (int i = 0; i < s->tiles; i++) {
        for (int j = 0; j < s->lines; j++, ahead += 64) _mm_prefetch(ahead, _MM_HINT_T1);
        _tile_loadd(4, a0, 64);
        _tile_loadd(6, w0, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, w1, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a1, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        a0 += TILE_BYTES;
        a1 += s->a1_tile;
        w0 += TILE_BYTES;
        w1 += TILE_BYTES;
    }
    if (!s->last) {
        _tile_stored(0, s->sums, 64);
        _tile_stored(1, s->sums + 256, 64);
        _tile_stored(2, s->sums + 512, 64);
        _tile_stored(3, s->sums + 768, 64);
    }
    *s->ahead = ahead;
}

// All rows from 32 i to 32 i + 16 + rows1, i < squares, of panels `panel` and `panel` + 1. With
// many rows, k is cut into stretches whose weights stay in the L1 cache while all rows pass; the
// sums wait in memory meanwhile. Stores and loads of sums are exact, so this changes no bit.
static void tiles_2x2(const msgl_gemm_block *b, int first_row, int squares, int rows1, int panel)
{
    float sums[MAX_SQUARES * 1024];
    const int tiles = b->kpad / 32, stretch = squares > 2 ? STRETCH : tiles;
    const char *w = b->w + (size_t)panel * b->panel_bytes;
    const char *ahead = w + 2 * b->panel_bytes; // the next pair of panels
    for (int k = 0; k < tiles; k += stretch) {
        for (int i = 0; i < squares; i++) {
            const int row = first_row + 32 * i, left = tiles - k;
            const char *a = b->a + (size_t)row * b->a_row_bytes;
            const square s = {
                .a0 = a + (size_t)k * TILE_BYTES,
                .a1 = a + 16 * b->a_row_bytes + (size_t)k * (size_t)rows1 * 64,
                .w0 = w + (size_t)k * TILE_BYTES,
                .w1 = w + b->panel_bytes + (size_t)k * TILE_BYTES,
                .a1_tile = (size_t)rows1 * 64,
                .tiles = left < stretch ? left : stretch,
                .first = k == 0,
                .last = left <= stretch,
                .sums = sums + i * 1024,
                .ahead = &ahead,
                .lines = msgl__ceil_div(32, squares),
            };
            multiply(&s);
            if (!s.last) continue;
            STORE_TILE(0, row, 16, panel * 16);
            STORE_TILE(1, row, 16, (panel + 1) * 16);
            STORE_TILE(2, row + 16, rows1, panel * 16);
            STORE_TILE(3, row + 16, rows1, (panel + 1) * 16);
        }
    }
}

// Tiles 0-3 are sums, 4 and 5 rows of A, 6 and 7 weights; with one A tile 5 is not used.
static void configure_1(int rows)
{
    const uint8_t r = (uint8_t)rows;
    msgl__amx_configure((const uint8_t[8]){r, r, r, r, r, r, 16, 16});
}

static void configure_2(int rows1)
{
    const uint8_t r = (uint8_t)rows1;
    msgl__amx_configure((const uint8_t[8]){16, 16, r, r, 16, r, 16, 16});
}

// At most 16 rows.
static void few_rows(const msgl_gemm_block *b, int panels)
{
    const int groups = b->rows <= SINGLE_ROWS ? 0 : panels / 4;
    configure_1(b->rows);
    for (int i = 0; i < groups; i++) tile_1x4(b, i, groups);
    for (int i = groups * 4; i < panels; i++) tile_1x1(b, 0, b->rows, i);
}

// More than 16 rows: pairs of panels (a single last one), all rows for each.
static void many_rows(const msgl_gemm_block *b, int panels)
{
    for (int panel = 0; panel < panels; panel += 2) {
        const bool pair = panel + 1 < panels;
        int row = 0;
        configure_2(16);
        for (int squares; pair && (squares = (b->rows - row) / 32) > 0; row += 32 * squares) {
            squares = squares < MAX_SQUARES ? squares : MAX_SQUARES;
            tiles_2x2(b, row, squares, 16, panel);
        }
        if (pair && b->rows - row > 16) {
            configure_2(b->rows - row - 16);
            tiles_2x2(b, row, 1, b->rows - row - 16, panel);
            row = b->rows;
        }
        for (; row < b->rows; row += 16) {
            const int rows = b->rows - row < 16 ? b->rows - row : 16;
            configure_1(rows);
            tile_1x1(b, row, rows, panel);
            if (pair) tile_1x1(b, row, rows, panel + 1);
        }
    }
}

static void bf16_block(const msgl_gemm_block *b)
{
    const int panels = msgl__ceil_div(b->cols, 16);
    MSGL_AMX_BARRIER(b->a);
    if (b->rows <= 16) {
        few_rows(b, panels);
    } else {
        many_rows(b, panels);
    }
    _tile_release(); // an idle tile file costs nothing at a context switch
}

static const msgl_gemm_micro PARTS = {
    msgl__parts_row_bytes_amx, 120, 1280, msgl__parts_prepare_amx, msgl__parts_block_amx, true, 1};

#define ROW_OPS msgl__row_ops_avx512
#define PROMPTS_F32 &PARTS
#include "kernel/gemm_level.inc"

// A block of rows is whole tiles.
static size_t row_bytes_bf16(int kpad)
{
    return (size_t)kpad * sizeof(uint16_t);
}

static void kept_block(const msgl_gemm_block *b)
{
    msgl__kept_block(b, msgl__gemm_block_f32_avx512);
}

static const msgl_gemm_micro MICRO[MSGL_WFORMATS] = {
    [MSGL_W_F32] = {msgl__gemm_row_bytes_f32, 40, 512, prepare_f32, msgl__gemm_block_f32_avx512,
                    true, 7},
    [MSGL_W_F16] = {msgl__gemm_row_bytes_f32, 40, 512, prepare_f32, msgl__gemm_block_f16_avx512,
                    true, 7},
    [MSGL_W_BF16] = {row_bytes_bf16, 800, 1280, prepare_bf16, bf16_block, false, 0},
    [MSGL_W_INT8] = MSGL_INT8_MICRO_VNNI,
    [MSGL_W_CODES] = {msgl__codes_row_bytes_amx, 600, 1280, msgl__codes_prepare_amx,
                      msgl__codes_block_amx, true, 1},
    [MSGL_W_BLOCKS] = {msgl__gemm_row_bytes_f32, 20, 512, prepare_f32, kept_block, true, 0},
};

void msgl__gemm_init_amx(msgl_gemm_kernels *k)
{
    k->linear = linear;
    k->grouped = grouped;
    k->heads = heads;
    k->lora = lora;
    k->keep = msgl__gemm_keep_by_bf16;
    k->codes_by_bf16 = true;
}
