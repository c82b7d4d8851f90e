// SPDX-License-Identifier: Apache-2.0
//
// Activations as products of FP8 weights take them: E4M3 with f32 scales, q = v / scale rounded to
// nearest even, scale = largest magnitude / 448. A scale is that of 128 columns of a row, as in
// DeepSeek-V3 (DeepSeek-AI 2024, section 3.3.2), or of a whole row. Where the largest magnitude is
// below 2^-100 scale and q are 0; one that is not finite makes the scale NaN or infinite.
#ifndef MSGL_CUDA_GEMM_FP8_ROWS_H
#define MSGL_CUDA_GEMM_FP8_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kernel/calls.h"
#include "kernel/exec.h"

enum {
    MSGL_FP8_GROUP = 128,          // columns that share a scale
    MSGL_FP8_FEW_ROWS = 64,        // up to here all rows of scales lie together, filled up to fours
    MSGL_FP8_MOST_COLUMNS = 49152, // of a row that one block quantises in its registers
};

// m rows of k columns, a multiple of 128 and at most MOST_COLUMNS. Memory of the device, aligned to
// 16 bytes. The library's products are of fours of rows: of more than FEW_ROWS the last m % 4 have
// scales of their own.
typedef struct msgl_fp8_rows {
    int32_t m, k;
    bool by_row;    // a row has one scale
    uint8_t *codes; // [m, k], the columns of each 32 in the order of codes_row.h's 8 bits
    // [m], or [k / 128, pitch] and, of the rows from pitch on, [k / 128, 4] behind it. Of 303 rows
    // of 1024 columns pitch is 300, the scale of columns 256 to 383 of row 7 is at 607, and that of
    // row 301 at 8 * 300 + 9.
    float *scales;
    int32_t pitch;
} msgl_fp8_rows;

// Bytes of m rows with either kind of scales; of 2 rows and more, or of few columns, fewer than
// those of 16-bit values.
size_t msgl__fp8_rows_bytes(int32_t m, int32_t k);
// Rows at `memory`, of so many bytes.
msgl_fp8_rows msgl__fp8_rows_at(void *memory, int32_t m, int32_t k, bool by_row);
// Rows by group whose scales lie together whatever their number, as products of our own take them:
// pitch is m filled up to fours.
msgl_fp8_rows msgl__fp8_rows_together(void *memory, int32_t m, int32_t k);
// Of rows by group, of more than FEW_ROWS: the last m % 4.
msgl_fp8_rows msgl__fp8_rows_rest(const msgl_fp8_rows *r);

// What is quantised: rows of exec->act.
typedef struct msgl_fp8_source {
    const void *in;    // [m, k], or, gated, [m, 2 k]: gates, then ups; aligned to 16 bytes
    size_t ld_in;      // elements, a multiple of 8
    const float *norm; // [k] weight of a norm that is done first, or NULL; not together with gated
    float norm_eps;
    bool gated; // activation(gate) * up
    msgl_activation activation;
} msgl_fp8_source;

// One kernel, which may start early (launch.cuh).
void msgl__cuda_quantise_rows(msgl_exec *x, const msgl_fp8_source *from, const msgl_fp8_rows *to);
// Row j of to becomes row index[j] / per of from, by one kernel that may start early; index:
// [to->m] in memory of the device. Both by group, whose scales lie together.
void msgl__cuda_gather_coded(msgl_exec *x, const msgl_fp8_rows *from, const int32_t *index,
                             int32_t per, const msgl_fp8_rows *to);

#ifdef __cplusplus
}
#endif

#endif
