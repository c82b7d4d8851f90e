// SPDX-License-Identifier: Apache-2.0
//
// Family attn at level AMX, for a bf16 pool. Per tile of 256 keys and block of up to 32 packed
// rows:
//   S^T = K Q^T   A: 16 keys x 32 of head_dim, rows straight from the pool where 16 slots are
//                 contiguous; B: q rounded to bf16, packed once per item.
//   softmax       on S^T [key][column]: 16 keys of N columns are N vectors, so maxima and sums over
//                 keys are vector operations and N < 16 (decode) wastes no lanes.
//   O = P V       A: P rounded to bf16, 32 keys a row; B: V with key r beside key r + 16 of 32.
// An element of a tile product is summed over k in one order whatever the tile's rows and columns
// are, and masked keys are zeros, so a row's result does not depend on the block it is in.
//
// Decode is bound by reading K and V, so an item of few rows takes several KV heads at once and
// reads in the order of memory: stages of 64 keys with all heads, first of K, then of V, each
// fetching the next stage into L2 while it computes.
//
// N, the columns of a block of up to 16 rows, is a power of two, since 16 keys then fill whole
// vectors with lane i belonging to column i % N. The sum over keys is taken as 16 sums over keys
// equal mod 16, then halved 8, 4, 2, 1 apart: the same for every N.
#include <stdbool.h>
#include <string.h>

#include "core/round.h"
#include "kernel/x86/amx.h"
#include "kernel/x86/attn_avx512.h"
#include "kernel/x86/init.h"

enum {
    TILE = MSGL_ATTN_TILE,
    BLOCKS = TILE / 16,                                     // 16 keys: an A tile of K
    STAGE = 4,                                              // blocks
    MAX_COLUMNS = MSGL_ATTN_FEW_ROWS * MSGL_ATTN_FEW_HEADS, // of one tile()
};

static const MSGL_ALIGNED(64) char ZEROS[MSGL_ATTN_FEW_COLUMNS * 2 + 64];

// With several heads, column c of head h is column h * n + c.
typedef struct amx_scratch {
    int n;                     // columns of a block of up to 16 rows: 1, 2, 4, 8 or 16
    int padded, steps;         // head_dim padded to 32, and that over 32
    int v_padded, v_steps;     // of V likewise
    bool placed;               // the whole tile is in k and v; else each stage is placed in turn
    char *q, *k, *v;           // B tiles of q; gathered keys; B tiles of V
    const char *block[BLOCKS]; // keys of 16: row 0, and bytes from row to row
    size_t stride[BLOCKS];
    const char *value[TILE]; // rows of V; zeros for what must not be read
    float m[MAX_COLUMNS], l[MAX_COLUMNS];
    MSGL_ALIGNED(64) float s[MAX_COLUMNS * TILE]; // scores, then pairs of probabilities
    MSGL_ALIGNED(64) uint16_t p[MAX_COLUMNS][TILE];
    MSGL_ALIGNED(64) float o[MSGL_ATTN_FEW_ROWS * MSGL_ATTN_FEW_COLUMNS];
    MSGL_ALIGNED(64) char area[]; // q, k, v
} amx_scratch;

static size_t q_bytes(int head_dim)
{
    return (size_t)MSGL_ATTN_MAX_ROWS * (size_t)msgl__attn_padded_dim(head_dim) * 2;
}

static size_t k_bytes(int head_dim) // a tile of one head, or a stage of several
{
    const size_t tile = (size_t)TILE * (size_t)msgl__attn_padded_dim(head_dim) * 2;
    const size_t stage = STAGE * 16 * MSGL_ATTN_FEW_COLUMNS * 2;
    return tile > stage ? tile : stage;
}

// V is never wider than K.
static size_t amx_scratch_size(int head_dim)
{
    const size_t v = (size_t)TILE * (size_t)msgl__attn_padded_dim(head_dim) * 2;
    return sizeof(amx_scratch) + q_bytes(head_dim) + k_bytes(head_dim) + v;
}

// Tiles 0, 1: S [16 keys][N]; 2, 3: K or V [16][64 bytes]; 4: Q [16][N]; 5, 6: O [N][16]; 7: P
// [N][32 keys]. With N = 16 all are 16 x 64 bytes and blocks of 32 rows use them otherwise.
static void configure(int n)
{
    msgl_amx_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.rows[i] = i >= 5 ? (uint8_t)n : 16;
        c.colsb[i] = i < 2 || i == 4 ? (uint16_t)(4 * n) : 64;
    }
    MSGL_AMX_BARRIER(&c);
    _tile_loadconfig(&c);
}

// Rows and columns of 16 x 16 dwords exchanged, in place.
MSGL_INLINE void transpose(__m512i a[16])
{
    __m512i b[16];
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        for (int j = 0; j < 2; j++) {
            a[i + 2 * j] = _mm512_unpacklo_epi64(b[i + j], b[i + j + 2]);
            a[i + 2 * j + 1] = _mm512_unpackhi_epi64(b[i + j], b[i + j + 2]);
        }
    }
    // a[4 g + c], 128-bit lane q: rows 4 g .. 4 g + 3 of column 4 q + c.
    for (int c = 0; c < 4; c++) {
        const __m512i x = _mm512_shuffle_i32x4(a[c], a[4 + c], 0x44);
        const __m512i y = _mm512_shuffle_i32x4(a[c], a[4 + c], 0xee);
        const __m512i z = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0x44);
        const __m512i w = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0xee);
        b[c] = _mm512_shuffle_i32x4(x, z, 0x88);
        b[4 + c] = _mm512_shuffle_i32x4(x, z, 0xdd);
        b[8 + c] = _mm512_shuffle_i32x4(y, w, 0x88);
        b[12 + c] = _mm512_shuffle_i32x4(y, w, 0xdd);
    }
    for (int i = 0; i < 16; i++) a[i] = b[i];
}

// 32 elements of a q row from d on, as bf16; zeros beyond head_dim.
MSGL_INLINE __m512i load_q(const float *row, int d, int dim)
{
    const int left = dim - d;
    const uint32_t mask = left >= 32 ? 0xffffffffu : (1u << left) - 1;
    const __m512 a = _mm512_maskz_loadu_ps((__mmask16)mask, row + d);
    const __m512 b = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), row + d + 16);
    return (__m512i)_mm512_cvtne2ps_pbh(b, a);
}

// B tiles of n columns, step by step of 32 dims: row r holds dims (2 r, 2 r + 1) of each column.
static void pack_columns(const msgl__attn_query *q, int head, int row, int columns, int n, char *to)
{
    const int dim = q->call->head_dim;
    const float *rows[16];
    for (int i = 0; i < columns; i++) rows[i] = msgl__attn_q_row(q, head, row + i);
    for (int d = 0; d < dim; d += 32) {
        __m512i a[16];
        for (int i = 0; i < 16; i++) {
            a[i] = i < columns ? load_q(rows[i], d, dim) : _mm512_setzero_si512();
        }
        transpose(a);
        const __mmask16 k = (__mmask16)((1u << n) - 1);
        for (int i = 0; i < 16; i++, to += 4 * n) _mm512_mask_storeu_epi32(to, k, a[i]);
    }
}

static void amx_load_q(const msgl__attn_query *q, void *scratch)
{
    amx_scratch *s = scratch;
    const int rows = q->work->rows;
    s->padded = msgl__attn_padded_dim(q->call->head_dim);
    s->steps = s->padded / 32;
    s->v_padded = msgl__attn_padded_dim(q->call->v_dim);
    s->v_steps = s->v_padded / 32;
    s->n = rows > 8 ? 16 : rows > 4 ? 8 : rows > 2 ? 4 : rows;
    s->q = s->area;
    s->k = s->q + q_bytes(q->call->head_dim);
    s->v = s->k + k_bytes(q->call->head_dim);
    configure(s->n);
    char *to = s->q;
    for (int head = 0; head < q->heads; head++) {
        for (int row = 0; row < rows; row += s->n) {
            const int columns = rows - row < s->n ? rows - row : s->n;
            pack_columns(q, head, row, columns, s->n, to);
            to += s->steps * 64 * s->n;
        }
    }
}

// 16 keys as A tiles: in place, or copied to `to` with zeros for what must not be read. Either way
// head h starts h * padded elements into a row.
static void place_block(amx_scratch *s, const msgl__attn_keys *keys, int b, char *to)
{
    const int first = b * 16, *slots = keys->slots + first;
    const size_t head_bytes = (size_t)keys->head_dim * 2, padded = (size_t)s->padded * 2;
    bool direct = first >= keys->begin && first + 16 <= keys->end && head_bytes == padded;
    if (direct) {
        const __m512i want = _mm512_add_epi32(
            _mm512_set1_epi32(slots[0]),
            _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
        direct = _mm512_cmpneq_epi32_mask(want, _mm512_loadu_si512(slots)) == 0;
    }
    if (direct) {
        s->block[b] = keys->k + (size_t)slots[0] * keys->slot_bytes;
        s->stride[b] = keys->slot_bytes;
        return;
    }
    s->block[b] = to;
    s->stride[b] = padded * (size_t)keys->heads;
    for (int i = 0; i < 16; i++) {
        const bool in = first + i >= keys->begin && first + i < keys->end;
        const char *from = in ? keys->k + (size_t)slots[i] * keys->slot_bytes : ZEROS;
        for (int h = 0; h < keys->heads; h++, from += head_bytes, to += padded) {
            memcpy(to, from, head_bytes);
            memset(to + head_bytes, 0, padded - head_bytes);
        }
    }
}

// 32 keys of 32 columns of V, `at` bytes into its rows, as two B tiles: row r is key r beside key
// r + 16. The unpacks work within 128-bit lanes, so the first tile gets columns 0-3, 8-11, 16-19,
// 24-27 and the second the rest; msgl__write_unpacked_avx512 puts them right.
MSGL_INLINE void place_values(const char *const *value, size_t at, __mmask32 k, char *to)
{
    for (int r = 0; r < 16; r++, to += 64) {
        const __m512i x = _mm512_maskz_loadu_epi16(k, value[r] + at);
        const __m512i y = _mm512_maskz_loadu_epi16(k, value[r + 16] + at);
        _mm512_store_si512(to, _mm512_unpacklo_epi16(x, y));
        _mm512_store_si512(to + 1024, _mm512_unpackhi_epi16(x, y));
    }
}

MSGL_INLINE __mmask32 columns_of_step(const msgl__attn_keys *keys, int t)
{
    const int left = keys->v_dim - t * 32;
    return left >= 32 ? 0xffffffffu : (1u << left) - 1;
}

static void amx_load_keys(const msgl__attn_keys *keys, int rows, void *scratch)
{
    amx_scratch *s = scratch;
    const int first = keys->begin / 32, last = msgl__ceil_div(keys->end, 32);
    for (int i = first * 32; i < last * 32; i++) {
        const bool in = i >= keys->begin && i < keys->end;
        s->value[i] = in ? keys->v + (size_t)keys->slots[i] * keys->v_slot_bytes : ZEROS;
    }
    s->placed = rows > MSGL_ATTN_FEW_ROWS;
    if (!s->placed) return;
    for (int b = first * 2; b < last * 2; b++) {
        place_block(s, keys, b, s->k + (size_t)b * 32 * (size_t)s->padded);
    }
    for (int pair = first; pair < last; pair++) {
        char *to = s->v + (size_t)pair * 64 * (size_t)s->v_padded;
        for (int t = 0; t < s->v_steps; t++, to += 2048) {
            place_values(s->value + pair * 32, (size_t)t * 64, columns_of_step(keys, t), to);
        }
    }
    MSGL_AMX_BARRIER(s);
}

// Rows of K or V of all heads on their way into L2. (Not into L1: rows 2 KiB apart share few of its
// sets.) Some rows at each product, so that fetching and computing overlap.
typedef struct fetch {
    const char *base;
    const int *slots;
    size_t slot_bytes;
    int row, end, each, bytes;
} fetch;

static fetch fetch_of(const msgl__attn_keys *keys, const char *base, const int *slots, int from,
                      int to, int products)
{
    const int n = to > from ? to - from : 0;
    const bool of_v = base == keys->v;
    return (fetch){.base = base,
                   .slots = slots,
                   .slot_bytes = of_v ? keys->v_slot_bytes : keys->slot_bytes,
                   .row = from,
                   .end = from + n,
                   .each = msgl__ceil_div(n, products),
                   .bytes = keys->heads * (of_v ? keys->v_dim : keys->head_dim) * 2};
}

MSGL_INLINE void fetch_some(fetch *f)
{
    for (int i = 0; i < f->each && f->row < f->end; i++, f->row++) {
        const char *row = f->base + (size_t)f->slots[f->row] * f->slot_bytes;
        for (int d = 0; d < f->bytes; d += 64) _mm_prefetch(row + d, _MM_HINT_T1);
    }
}

// The stage's keys that may be read, clipped to the tile's.
static fetch fetch_stage(const msgl__attn_keys *keys, const char *base, int block, int last,
                         int products)
{
    const int from = block * 16 > keys->begin ? block * 16 : keys->begin;
    const int end = block + STAGE < last ? block + STAGE : last;
    return fetch_of(keys, base, keys->slots, from, end * 16 < keys->end ? end * 16 : keys->end,
                    products);
}

// Scores of all heads against key blocks [from, to) of one stage.
static void score_stage(amx_scratch *s, const msgl__attn_keys *keys, int column, int from, int to,
                        fetch *next)
{
    const size_t n = (size_t)s->n, q_tile = 64 * n;
    const char *q = s->q + (size_t)(column * s->steps) * q_tile;
    for (int h = 0; h < keys->heads; h++, q += (size_t)s->steps * q_tile) {
        const size_t at = (size_t)h * (size_t)s->padded * 2;
        float *scores = s->s + (size_t)h * n * TILE;
        for (int b = from; b < to; b += 2) {
            _tile_zero(0);
            _tile_zero(1);
            for (int t = 0; t < s->steps; t++) {
                fetch_some(next);
                _tile_loadd(4, q + (size_t)t * q_tile, 4 * n);
                _tile_loadd(2, s->block[b] + at + t * 64, s->stride[b]);
                _tile_dpbf16ps(0, 2, 4);
                _tile_loadd(3, s->block[b + 1] + at + t * 64, s->stride[b + 1]);
                _tile_dpbf16ps(1, 3, 4);
            }
            _tile_stored(0, scores + (size_t)b * 16 * n, 4 * n);
            _tile_stored(1, scores + (size_t)(b + 1) * 16 * n, 4 * n);
        }
    }
}

// Scores of up to 16 rows of all heads; from and to are even.
static void scores_1(amx_scratch *s, const msgl__attn_keys *keys, int column, int from, int to)
{
    const int products = keys->heads * s->steps * (STAGE / 2);
    fetch now = fetch_stage(keys, keys->k, from, to, 1);
    const int fetched = keys->prefetched < STAGE * 16 ? keys->prefetched : STAGE * 16;
    if (from * 16 < fetched) now.row = fetched;
    fetch_some(&now); // nobody has fetched the item's first stage
    for (int b = from; b < to; b += STAGE) {
        const int end = b + STAGE < to ? b + STAGE : to;
        fetch next = end < to ? fetch_stage(keys, keys->k, end, to, products)
                              : fetch_stage(keys, keys->v, from, to, products);
        // Of an item of 40 rows the second block has 8, and all is placed.
        for (int i = b; i < end && !s->placed; i++) {
            place_block(s, keys, i,
                        s->k + (size_t)(i - b) * 32 * (size_t)(s->padded * keys->heads));
        }
        MSGL_AMX_BARRIER(s);
        score_stage(s, keys, column, b, end, &next);
    }
}

// The same for two column blocks of 16.
static void scores_2(amx_scratch *s, int column, int from, int to)
{
    const char *q0 = s->q + (size_t)(column * s->steps) * 1024;
    const char *q1 = q0 + (size_t)s->steps * 1024;
    float *s1 = s->s + TILE * 16;
    for (int b = from; b < to; b += 2) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int t = 0; t < s->steps; t++) {
            _tile_loadd(4, s->block[b] + t * 64, s->stride[b]);
            _tile_loadd(6, q0 + t * 1024, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, q1 + t * 1024, 64);
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(5, s->block[b + 1] + t * 64, s->stride[b + 1]);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, s->s + b * 256, 64);
        _tile_stored(1, s1 + b * 256, 64);
        _tile_stored(2, s->s + b * 256 + 256, 64);
        _tile_stored(3, s1 + b * 256 + 256, 64);
    }
}

// -inf outside [lo, hi) of each column, and the soft cap; for key blocks [from, to).
static void mask_scores(float *s, int n, int from, int to, const __m512i lo, const __m512i hi,
                        const msgl__attn_keys *keys)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i lane_key = _mm512_srlv_epi32(lane, _mm512_set1_epi32(__builtin_ctz((unsigned)n)));
    for (int v = 0; v < n; v++) {
        __m512i key = _mm512_add_epi32(lane_key, _mm512_set1_epi32(from * 16 + v * (16 / n)));
        for (int b = from; b < to; b++, key = _mm512_add_epi32(key, _mm512_set1_epi32(16))) {
            float *at = s + (size_t)(b * n + v) * 16;
            __m512 x = _mm512_load_ps(at);
            if (keys->softcap > 0) x = msgl__softcap_avx512(x, keys->scale, keys->softcap);
            const __mmask16 in =
                _mm512_kand(_mm512_cmpge_epi32_mask(key, lo), _mm512_cmplt_epi32_mask(key, hi));
            _mm512_store_ps(at, _mm512_mask_blend_ps(in, _mm512_set1_ps(-INFINITY), x));
        }
    }
}

// Lane i of the result: f over lanes equal to i mod n, n a power of two.
MSGL_INLINE __m512 rotate_lanes(__m512 x, int by)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_permutexvar_ps(_mm512_xor_epi32(lane, _mm512_set1_epi32(by)), x);
}

// Per column, in lane i for column i % n: the largest score.
static __m512 column_max(const float *s, int n, int from, int to)
{
    __m512 top = _mm512_set1_ps(-INFINITY);
    for (int v = 0; v < n; v++) {
        __m512 x = _mm512_set1_ps(-INFINITY);
        // max_ps returns its second operand when one is NaN, so a NaN score that is followed by a
        // number is lost here; its probability is NaN all the same.
        for (int b = from; b < to; b++) {
            x = _mm512_max_ps(x, _mm512_load_ps(s + (size_t)(b * n + v) * 16));
        }
        if (n == 16) { // vector v holds all columns of key v
            top = _mm512_max_ps(top, x);
        } else {
            for (int by = 8; by >= n; by /= 2) x = _mm512_max_ps(x, rotate_lanes(x, by));
            top = _mm512_max_ps(top, x);
        }
    }
    return top;
}

// The 16 partial sums of each column, halved 8, 4, 2, 1 keys apart. Key j of a column is vector
// j * n / 16, lanes (j * n) % 16 + column.
static __m512 column_sum(__m512 *sum, int n)
{
    int vectors = n;
    for (int apart = 8; apart > 0; apart /= 2) {
        if (vectors > 1) {
            vectors /= 2;
            for (int v = 0; v < vectors; v++) sum[v] = _mm512_add_ps(sum[v], sum[v + vectors]);
        } else {
            sum[0] = _mm512_add_ps(sum[0], rotate_lanes(sum[0], apart * n));
        }
    }
    return sum[0];
}

// Scores to probabilities; keys r and r + 16 of 32 leave as a pair of bf16 in one lane, in the
// place of key r's score. Returns the sum of each column. from and to are even.
static __m512 probabilities(float *s, int n, int from, int to, float factor, __m512 base)
{
    const __m512 c = _mm512_set1_ps(factor);
    const __m512i interleave =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    __m512 sum[16];
    for (int v = 0; v < n; v++) {
        __m512 total = _mm512_setzero_ps();
        for (int b = from; b < to; b += 2) {
            float *at = s + (size_t)(b * n + v) * 16;
            const __m512 x0 = _mm512_load_ps(at), x1 = _mm512_load_ps(at + n * 16);
            const __m512 p0 = msgl__exp2_avx512(_mm512_fmsub_ps(x0, c, base));
            const __m512 p1 = msgl__exp2_avx512(_mm512_fmsub_ps(x1, c, base));
            total = _mm512_add_ps(_mm512_add_ps(total, p0), p1);
            const __m512i pair = (__m512i)_mm512_cvtne2ps_pbh(p1, p0);
            _mm512_store_si512(at, _mm512_permutexvar_epi16(interleave, pair));
        }
        sum[v] = total;
    }
    return column_sum(sum, n);
}

// Row r of 16 (dwords, one per column) to row `column` of P: a 16 x 16 transposition.
static void transpose_16(const float *from, uint16_t *to)
{
    __m512i a[16];
    for (int i = 0; i < 16; i++) a[i] = _mm512_load_si512(from + i * 16);
    transpose(a);
    for (int i = 0; i < 16; i++) _mm512_store_si512(to + i * TILE, a[i]);
}

// The same for n < 16 columns: n vectors, dword r * n + column. Each stage parts even from odd
// columns, so that after log2(n) stages a vector holds one column; their order is bit-reversed.
static void transpose_n(const float *from, int n, uint16_t *to)
{
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd =
        _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    __m512i a[8], b[8];
    for (int i = 0; i < n; i++) a[i] = _mm512_load_si512(from + i * 16);
    for (int size = n; size > 1; size /= 2) {
        for (int g = 0; g < n; g += size) {
            for (int i = 0; i < size; i += 2) {
                b[g + i / 2] = _mm512_permutex2var_epi32(a[g + i], even, a[g + i + 1]);
                b[g + i / 2 + size / 2] = _mm512_permutex2var_epi32(a[g + i], odd, a[g + i + 1]);
            }
        }
        memcpy(a, b, sizeof a);
    }
    static const uint8_t reversed[4][8] = {{0}, {0, 1}, {0, 2, 1, 3}, {0, 4, 2, 6, 1, 5, 3, 7}};
    const uint8_t *column = reversed[__builtin_ctz((unsigned)n)];
    for (int i = 0; i < n; i++) _mm512_store_si512(to + column[i] * TILE, a[i]);
}

// lo or hi of a column block in lane i for column i % n; columns beyond the rows see nothing.
static __m512i spread(const int *limit, int rows, int n)
{
    int x[16];
    for (int i = 0; i < 16; i++) x[i] = i % n < rows ? limit[i % n] : 0;
    return _mm512_loadu_si512(x);
}

// Softmax of the block's rows [row, row + rows) in columns [column, column + n): fills m, l and P.
static void softmax(amx_scratch *s, const msgl__attn_keys *keys, const msgl__attn_block *b, int row,
                    int rows, int column, int from, int to)
{
    const int n = s->n;
    float *scores = s->s + (size_t)column * TILE;
    const __m512i lo = spread(b->lo + row, rows, n), hi = spread(b->hi + row, rows, n);
    const bool all = rows == n && _mm512_cmpgt_epi32_mask(lo, _mm512_set1_epi32(from * 16)) == 0 &&
                     _mm512_cmplt_epi32_mask(hi, _mm512_set1_epi32(to * 16)) == 0;
    if (!all || keys->softcap > 0) mask_scores(scores, n, from, to, lo, hi, keys);
    const float factor = keys->softcap > 0 ? 1 : keys->scale * (float)M_LOG2E;
    const __m512 m = _mm512_mul_ps(column_max(scores, n, from, to), _mm512_set1_ps(factor));
    const __mmask16 none = _mm512_cmp_ps_mask(m, _mm512_set1_ps(-INFINITY), _CMP_EQ_OQ);
    const __m512 base = _mm512_mask_blend_ps(none, m, _mm512_setzero_ps());
    const __m512 l = probabilities(scores, n, from, to, factor, base);
    const __mmask16 k = (__mmask16)((1u << rows) - 1);
    _mm512_mask_storeu_ps(s->m + column, k, m);
    _mm512_mask_storeu_ps(s->l + column, k, l);
    for (int pair = from / 2; pair < to / 2; pair++) {
        const float *pairs = scores + (size_t)pair * 32 * (size_t)n;
        if (n == 16) {
            transpose_16(pairs, s->p[column] + pair * 32);
        } else {
            transpose_n(pairs, n, s->p[column] + pair * 32);
        }
    }
}

// O of all heads over pairs of blocks [from, to) of one stage; a pair's two tiles are made in L1.
static void value_stage(amx_scratch *s, const msgl__attn_keys *keys, int from, int to, bool first,
                        fetch *next)
{
    const size_t o_stride = (size_t)s->v_padded * 4;
    for (int h = 0; h < keys->heads; h++) {
        const size_t at = (size_t)(h * keys->v_dim) * 2;
        for (int t = 0; t < s->v_steps; t++) {
            float *o = s->o + (size_t)(h * s->n * s->v_padded) + t * 32;
            const __mmask32 k = columns_of_step(keys, t);
            if (first) {
                _tile_zero(5);
                _tile_zero(6);
            } else {
                _tile_loadd(5, o, o_stride);
                _tile_loadd(6, o + 16, o_stride);
            }
            for (int pair = from; pair < to; pair++) {
                const size_t in_tile = (size_t)pair * 64 * (size_t)s->v_padded + (size_t)t * 2048;
                char *tiles = s->v + (s->placed ? in_tile : (size_t)(pair & 1) * 2048);
                fetch_some(next);
                if (!s->placed) {
                    place_values(s->value + pair * 32, at + (size_t)t * 64, k, tiles);
                }
                MSGL_AMX_BARRIER(tiles);
                _tile_loadd(7, s->p[h * s->n] + pair * 32, TILE * 2);
                _tile_loadd(2, tiles, 64);
                _tile_dpbf16ps(5, 7, 2);
                _tile_loadd(3, tiles + 1024, 64);
                _tile_dpbf16ps(6, 7, 3);
            }
            _tile_stored(5, o, o_stride);
            _tile_stored(6, o + 16, o_stride);
        }
    }
}

// The first stage of the item's next tile.
static fetch fetch_next(const msgl__attn_keys *keys, int products)
{
    const msgl__attn_soon *k = &keys->next_k;
    const int end = k->end < STAGE * 16 ? k->end : STAGE * 16;
    return fetch_of(keys, k->base, k->slots, 0, end, products);
}

static void values_1(amx_scratch *s, const msgl__attn_keys *keys, int from, int to)
{
    const int products = keys->heads * s->v_steps * (STAGE / 2);
    if (from == to) { // rows that see nothing
        memset(s->o, 0, (size_t)(keys->heads * s->n * s->v_padded) * sizeof *s->o);
    }
    for (int b = from; b < to; b += STAGE) {
        const int end = b + STAGE < to ? b + STAGE : to;
        fetch next =
            end < to ? fetch_stage(keys, keys->v, end, to, products) : fetch_next(keys, products);
        value_stage(s, keys, b / 2, end / 2, b == from, &next);
    }
}

// The same for two column blocks of 16 with values in place.
static void values_2(amx_scratch *s, int from, int to)
{
    const size_t o_stride = (size_t)s->v_padded * 4, v_pair = (size_t)s->v_padded * 64;
    float *o1 = s->o + (size_t)s->v_padded * 16;
    for (int t = 0; t < s->v_steps; t++) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int pair = from / 2; pair < to / 2; pair++) {
            const char *v = s->v + (size_t)pair * v_pair + (size_t)t * 2048;
            _tile_loadd(4, s->p[0] + pair * 32, TILE * 2);
            _tile_loadd(6, v, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, v + 1024, 64);
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(5, s->p[16] + pair * 32, TILE * 2);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, s->o + t * 32, o_stride);
        _tile_stored(1, s->o + t * 32 + 16, o_stride);
        _tile_stored(2, o1 + t * 32, o_stride);
        _tile_stored(3, o1 + t * 32 + 16, o_stride);
    }
}

static void amx_tile(const msgl__attn_keys *keys, msgl__attn_block *b, void *scratch)
{
    amx_scratch *s = scratch;
    int begin = TILE, end = 0;
    for (int i = 0; i < b->n; i++) {
        if (b->lo[i] < b->hi[i] && b->lo[i] < begin) begin = b->lo[i];
        if (b->hi[i] > end) end = b->hi[i];
    }
    // Whole pairs of 16 keys that some row of this block sees; to == from when there are none.
    const int from = begin / 32 * 2, to = end > begin ? msgl__ceil_div(end, 32) * 2 : from;
    MSGL_AMX_BARRIER(s);
    if (b->n > MSGL_ATTN_FEW_ROWS) {
        scores_2(s, b->row / 16, from, to);
        softmax(s, keys, b, 0, 16, 0, from, to);
        softmax(s, keys, b, 16, b->n - 16, 16, from, to);
        MSGL_AMX_BARRIER(s);
        values_2(s, from, to);
    } else {
        scores_1(s, keys, b->row / 16, from, to);
        for (int h = 0; h < keys->heads; h++) {
            softmax(s, keys, b, 0, b->n, h * s->n, from, to);
        }
        MSGL_AMX_BARRIER(s);
        values_1(s, keys, from, to);
    }
    b->m = s->m;
    b->l = s->l;
    b->o = s->o;
    b->stride = s->n;
}

static const msgl__attn_ops AMX_BF16 = {.block = 32,
                                        .many_heads = true,
                                        .scratch = amx_scratch_size,
                                        .load_q = amx_load_q,
                                        .load_keys = amx_load_keys,
                                        .tile = amx_tile,
                                        .fold = msgl__fold_avx512,
                                        .write = msgl__write_unpacked_avx512};

void msgl__attn_init_amx(msgl_attn_kernels *k)
{
    k->ops[MSGL_BF16] = &AMX_BF16;
}
