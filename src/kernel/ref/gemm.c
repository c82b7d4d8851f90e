// SPDX-License-Identifier: Apache-2.0
//
// Plain C reference of kernel family gemm. Sums run over k one element at a time.
#include "kernel/gemm_kept.h"
#include "kernel/ladder.h"

#include <string.h>

static void put(char *panel, msgl_dtype dtype, int lane, int k, const char *src,
                msgl_dtype src_dtype)
{
    const size_t at = dtype == MSGL_BF16
                          ? (size_t)(k >> 1) * 2 * MSGL_GEMM_LANES + (size_t)(2 * lane + (k & 1))
                          : (size_t)k * MSGL_GEMM_LANES + (size_t)lane;
    if (dtype == src_dtype) { // keeps every bit, NaN payloads too
        const size_t size = msgl__dtype_size(dtype);
        memcpy(panel + at * size, src + (size_t)k * size, size);
    } else {
        msgl__store_f32(panel, dtype, at, msgl__load_f32(src, src_dtype, (size_t)k));
    }
}

void msgl__gemm_pack_panel_ref(char *panel, const msgl_wformat *f, int k, int lane, int rows,
                               const char *src, msgl_dtype src_dtype, size_t ld_src)
{
    const size_t row_bytes = ld_src * msgl__dtype_size(src_dtype);
    if (f->id == MSGL_W_INT8) {
        msgl__int8_pack_panel(panel, k, lane, rows, src, src_dtype, ld_src);
        return;
    }
    for (int r = 0; r < rows; r++) {
        for (int i = 0; i < k; i++) {
            put(panel, f->dtype, lane + r, i, src + (size_t)r * row_bytes, src_dtype);
        }
    }
}

#define ROW_OPS msgl__row_ops_ref
#include "kernel/gemm_level.inc"

static void prepare_bf16(const float *in, size_t ld_in, int rows, int k, char *a, size_t row_bytes)
{
    msgl__gemm_prepare_rounded(in, ld_in, rows, k, a, row_bytes);
}

// The 16 weights of step k, as f32.
static void weights_at(const char *panel, msgl_dtype dtype, int k, float *w)
{
    for (int j = 0; j < MSGL_GEMM_LANES; j++) {
        if (dtype == MSGL_BF16) {
            w[j] = msgl__bf16_to_f32(((const uint16_t *)panel)[(k >> 1) * 32 + 2 * j + (k & 1)]);
        } else {
            w[j] = msgl__load_f32(panel, dtype, (size_t)(k * MSGL_GEMM_LANES + j));
        }
    }
}

// Sums of the columns [col, col + n) of b.
static void put_row(const msgl_gemm_block *b, int col, const float *sum, float *out, int n)
{
    for (int j = 0; j < n; j++) {
        const float y = sum[j] + (b->bias == NULL ? 0 : b->bias[col + j]);
        out[j] = b->add ? out[j] + y : y;
    }
}

static void block(const msgl_gemm_block *b, msgl_dtype dtype)
{
    for (int col = 0; col < b->cols; col += MSGL_GEMM_LANES) {
        const char *panel = b->w + (size_t)(col / MSGL_GEMM_LANES) * b->panel_bytes;
        const int left = b->cols - col, n = left < MSGL_GEMM_LANES ? left : MSGL_GEMM_LANES;
        for (int r = 0; r < b->rows; r++) {
            const float *a = (const float *)(b->a + (size_t)r * b->a_row_bytes);
            float *out = b->out + (size_t)r * b->ld_out + col;
            float sum[MSGL_GEMM_LANES] = {0}, w[MSGL_GEMM_LANES];
            for (int k = 0; k < b->kpad; k++) {
                weights_at(panel, dtype, k, w);
                for (int j = 0; j < MSGL_GEMM_LANES; j++) sum[j] += a[k] * w[j];
            }
            put_row(b, col, sum, out, n);
        }
    }
}

static void block_f32(const msgl_gemm_block *b)
{
    block(b, MSGL_F32);
}
static void block_f16(const msgl_gemm_block *b)
{
    block(b, MSGL_F16);
}
static void block_bf16(const msgl_gemm_block *b)
{
    block(b, MSGL_BF16);
}

static void prepare_int8(const float *in, size_t ld_in, int rows, int k, char *a, size_t row_bytes)
{
    msgl__int8_prepare(in, ld_in, rows, k, a, row_bytes, false);
}

static void row_int8(const msgl_gemm_block *b, const char *panel, const char *a, float *sum)
{
    const msgl_int8_head *head = (const msgl_int8_head *)a;
    const int8_t *x = (const int8_t *)a + msgl__int8_heads_bytes(b->kpad);
    float scale[MSGL_GEMM_LANES];
    for (int k = 0; k < b->kpad; k += MSGL_INT8_GROUP, head++, panel += MSGL_INT8_PANEL_GROUP) {
        memcpy(scale, panel + MSGL_INT8_VALUES, sizeof scale);
        for (int j = 0; j < MSGL_GEMM_LANES; j++) {
            int32_t n = head->start;
            for (int i = 0; i < MSGL_INT8_GROUP; i++) {
                n += ((const uint8_t *)panel)[msgl__int8_at(j, i)] * x[k + i];
            }
            sum[j] += (float)n * (scale[j] * head->scale);
        }
    }
}

static void block_int8(const msgl_gemm_block *b)
{
    for (int col = 0; col < b->cols; col += MSGL_GEMM_LANES) {
        const char *panel = b->w + (size_t)(col / MSGL_GEMM_LANES) * b->panel_bytes;
        const int left = b->cols - col, n = left < MSGL_GEMM_LANES ? left : MSGL_GEMM_LANES;
        for (int r = 0; r < b->rows; r++) {
            float *out = b->out + (size_t)r * b->ld_out + col;
            float sum[MSGL_GEMM_LANES] = {0};
            row_int8(b, panel, b->a + (size_t)r * b->a_row_bytes, sum);
            put_row(b, col, sum, out, n);
        }
    }
}

static void prepare_codes(const float *in, size_t ld_in, int rows, int k, char *a, size_t row_bytes)
{
    (void)row_bytes; // rows are interleaved
    msgl__codes_prepare(in, ld_in, rows, k, a, MSGL_CODES_SIGNED);
}

// Adds block `at` of a panel's chunk; x and head: of the row's block.
static void add_block(const msgl_codes *c, const int8_t q[MSGL_CODES_BLOCK][MSGL_GEMM_LANES],
                      const msgl_codes_scales *s, int at, const int8_t *x,
                      const msgl_codes_head *head, float *sum)
{
    enum { HALF = MSGL_CODES_BLOCK / 2 };
    const int groups = MSGL_CODES_BLOCK / c->group;
    for (int j = 0; j < MSGL_GEMM_LANES; j++) {
        for (int h = 0; h < 2; h++) {
            const int g = at * groups + h * groups / 2;
            int32_t n = 0, weights = 0;
            for (int i = h * HALF; i < (h + 1) * HALF; i++) {
                n += q[i][j] * x[i];
                weights += q[i][j];
            }
            sum[j] += s->scale[g][j] * ((float)n * head->scale[h] + (float)weights * head->low[h]);
            if (msgl__codes_have_min(c)) sum[j] += s->min[g][j] * head->sum16[h];
        }
    }
}

// The panel of columns [col, col + n).
static void panel_codes(const msgl_gemm_block *b, int col, int n)
{
    const msgl_codes *c = b->format->blocks->codes;
    const char *w = b->w + (size_t)(col / MSGL_GEMM_LANES) * b->panel_bytes;
    const int blocks = msgl__codes_blocks(b->k);
    const char *const panel = w;
    w += msgl__codes_front_bytes(c);
    for (int i = 0; i < blocks; i += MSGL_CODES_CHUNK) {
        const int some = blocks - i < MSGL_CODES_CHUNK ? blocks - i : MSGL_CODES_CHUNK;
        msgl_codes_scales s;
        msgl__codes_scales_of(c, panel, w, some, true, &s);
        w += msgl__codes_scales_bytes(c, some);
        for (int at = 0; at < some; at++, w += msgl__codes_block_bytes(c)) {
            int8_t q[MSGL_CODES_BLOCK][MSGL_GEMM_LANES];
            msgl__codes_values(c, w, q);
            for (int r = 0; r < b->rows; r++) {
                const int first = r / MSGL_GEMM_ROWS * MSGL_GEMM_ROWS, left = b->rows - first;
                const msgl_codes_rows_at rows = msgl__codes_rows(
                    b->a + (size_t)first * b->a_row_bytes,
                    left < MSGL_GEMM_ROWS ? left : MSGL_GEMM_ROWS, blocks, i + at, 1);
                const int8_t *x = (const int8_t *)rows.x + (r - first) * MSGL_CODES_BLOCK;
                float *sum = b->out + (size_t)r * b->ld_out + col, lanes[MSGL_GEMM_LANES] = {0};
                if (i + at > 0) memcpy(lanes, sum, (size_t)n * sizeof *sum);
                add_block(c, q, &s, at, x, rows.heads + (r - first), lanes);
                memcpy(sum, lanes, (size_t)n * sizeof *sum);
            }
        }
    }
}

static void block_codes(const msgl_gemm_block *b)
{
    for (int col = 0; col < b->cols; col += MSGL_GEMM_LANES) {
        const int left = b->cols - col, n = left < MSGL_GEMM_LANES ? left : MSGL_GEMM_LANES;
        panel_codes(b, col, n);
        for (int r = 0; b->bias != NULL && r < b->rows; r++) {
            float *out = b->out + (size_t)r * b->ld_out + col;
            for (int j = 0; j < n; j++) out[j] += b->bias[col + j];
        }
    }
}

static void kept_block(const msgl_gemm_block *b)
{
    msgl__kept_block(b, block_f32);
}

static const msgl_gemm_micro MICRO[MSGL_WFORMATS] = {
    [MSGL_W_F32] = {msgl__gemm_row_bytes_f32, 4, 256, prepare_f32, block_f32},
    [MSGL_W_F16] = {msgl__gemm_row_bytes_f32, 1, 256, prepare_f32, block_f16},
    [MSGL_W_BF16] = {msgl__gemm_row_bytes_f32, 3, 256, prepare_bf16, block_bf16},
    [MSGL_W_INT8] = {msgl__int8_row_bytes_8, 3, 256, prepare_int8, block_int8},
    [MSGL_W_CODES] = {msgl__codes_row_bytes_8, 2, 256, prepare_codes, block_codes},
    [MSGL_W_BLOCKS] = {msgl__gemm_row_bytes_f32, 2, 256, prepare_f32, kept_block},
};

static void pack(msgl_exec *x, msgl_weight *w, int row, int rows, const void *src,
                 msgl_dtype src_dtype, size_t ld_src)
{
    msgl__gemm_pack(msgl__gemm_pack_panel_ref, x, w, row, rows, src,
                    ld_src * msgl__dtype_size(src_dtype), src_dtype, ld_src);
}

static const msgl_wformat FORMATS[MSGL_WFORMATS] = MSGL_GEMM_FORMATS(pack);

void msgl__gemm_init_ref(msgl_gemm_kernels *k)
{
    *k = (msgl_gemm_kernels){
        .formats = FORMATS,
        .keep = msgl__gemm_keep,
        .keeps_order = true,
        .gather_own = msgl__gemm_gather_own,
        .linear = linear,
        .grouped = grouped,
        .heads = heads,
        .lora = lora,
        .linear_scratch = msgl__gemm_linear_scratch,
        .grouped_scratch = msgl__gemm_grouped_scratch,
        .heads_scratch = msgl__gemm_heads_scratch,
        .lora_scratch = msgl__gemm_lora_scratch,
        .block_rows = 1024,
    };
}
