// SPDX-License-Identifier: Apache-2.0
//
// Plain C reference of kernel family gemm, and the family's initialiser. Sums run over k one
// element at a time.
#include "kernel/gemm_int8.h"
#include "kernel/kernel.h"

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
            for (int j = 0; j < n; j++) out[j] = sum[j] + (b->bias == NULL ? 0 : b->bias[col + j]);
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

// out[0, cols) of row r.
static void row_int8(const msgl_gemm_block *b, const char *panel, const char *a, float *out,
                     int cols)
{
    const msgl_int8_head *head = (const msgl_int8_head *)a;
    const int8_t *x = (const int8_t *)a + msgl__int8_heads_bytes(b->kpad);
    float sum[MSGL_GEMM_LANES] = {0}, scale[MSGL_GEMM_LANES];
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
    for (int j = 0; j < cols; j++) out[j] = sum[j];
}

static void block_int8(const msgl_gemm_block *b)
{
    for (int col = 0; col < b->cols; col += MSGL_GEMM_LANES) {
        const char *panel = b->w + (size_t)(col / MSGL_GEMM_LANES) * b->panel_bytes;
        const int left = b->cols - col, n = left < MSGL_GEMM_LANES ? left : MSGL_GEMM_LANES;
        for (int r = 0; r < b->rows; r++) {
            float *out = b->out + (size_t)r * b->ld_out + col;
            row_int8(b, panel, b->a + (size_t)r * b->a_row_bytes, out, n);
            for (int j = 0; b->bias != NULL && j < n; j++) out[j] += b->bias[col + j];
        }
    }
}

static const msgl_gemm_micro MICRO[MSGL_WFORMATS] = {
    [MSGL_W_F32] = {4, 16, 4, 256, prepare_f32, block_f32},
    [MSGL_W_F16] = {4, 16, 1, 256, prepare_f32, block_f16},
    [MSGL_W_BF16] = {4, 16, 3, 256, prepare_bf16, block_bf16},
    [MSGL_W_INT8] = {1, 64, 3, 256, prepare_int8, block_int8},
};

static void pack(msgl_exec *x, msgl_weight *w, int row, int rows, const void *src,
                 msgl_dtype src_dtype, size_t ld_src)
{
    msgl__gemm_pack(msgl__gemm_pack_panel_ref, x, w, row, rows, src, src_dtype, ld_src);
}

static const msgl_wformat FORMATS[MSGL_WFORMATS] = MSGL_GEMM_FORMATS(pack);

void msgl__gemm_init(msgl_gemm_kernels *k, msgl_cpu_level level)
{
    *k = (msgl_gemm_kernels){
        .name = msgl__cpu_level_name(level),
        .formats = FORMATS,
        .linear = linear,
        .grouped = grouped,
        .heads = heads,
        .linear_scratch = msgl__gemm_linear_scratch,
        .grouped_scratch = msgl__gemm_grouped_scratch,
        .heads_scratch = msgl__gemm_heads_scratch,
        .block_rows = 1024,
    };
#if defined(__x86_64__)
    if (level >= MSGL_CPU_AVX2) msgl__gemm_init_avx2(k);
    if (level >= MSGL_CPU_AVX512) msgl__gemm_init_avx512(k);
    if (level >= MSGL_CPU_AVX512VNNI) msgl__gemm_init_avx512vnni(k);
    if (level >= MSGL_CPU_AVX512BF16) msgl__gemm_init_avx512bf16(k);
    if (level >= MSGL_CPU_AMX) msgl__gemm_init_amx(k);
#endif
}
