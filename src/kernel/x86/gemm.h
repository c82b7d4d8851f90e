// SPDX-License-Identifier: Apache-2.0
//
// Kernel family gemm on x86-64: functions of one level's files that its other files, or the levels
// above it, put into their tables.
#ifndef MSGL_KERNEL_X86_GEMM_H
#define MSGL_KERNEL_X86_GEMM_H

#include "kernel/gemm_codes.h"

// Of AVX-512, for the levels above it that bring nothing new for these weights.
void msgl__gemm_block_f32_avx512(const msgl_gemm_block *b);
void msgl__gemm_block_f16_avx512(const msgl_gemm_block *b);
void msgl__gemm_block_bf16_avx512(const msgl_gemm_block *b);
// Whole panels by AVX-512.
void msgl__gemm_pack_panel_avx512(char *panel, const msgl_wformat *f, int k, int lane, int rows,
                                  const char *src, msgl_dtype src_dtype, size_t ld_src);

// int8. Levels without vpdpbusd take wide rows; those above AVX-512-VNNI have its functions.
void msgl__int8_prepare_avx2(const float *in, size_t ld_in, int rows, int k, char *a,
                             size_t row_bytes);
void msgl__int8_prepare_avx512(const float *in, size_t ld_in, int rows, int k, char *a,
                               size_t row_bytes);
void msgl__int8_prepare_avx512vnni(const float *in, size_t ld_in, int rows, int k, char *a,
                                   size_t row_bytes);
void msgl__int8_block_avx2(const msgl_gemm_block *b);
void msgl__int8_block_avx512(const msgl_gemm_block *b);
void msgl__int8_block_avx512vnni(const msgl_gemm_block *b);
#define MSGL_INT8_MICRO_VNNI                                                                       \
    {                                                                                              \
        msgl__int8_row_bytes_8, 100, 512, msgl__int8_prepare_avx512vnni,                           \
            msgl__int8_block_avx512vnni, true, 7                                                   \
    }

// f32 by parts.
size_t msgl__parts_row_bytes_amx(int kpad);
void msgl__parts_prepare_amx(const float *in, size_t ld_in, int rows, int k, char *a,
                             size_t row_bytes);
void msgl__parts_block_amx(const msgl_gemm_block *b);

// Codes. AVX-512-BF16 has AVX-512-VNNI's functions.
void msgl__codes_prepare_avx2(const float *in, size_t ld_in, int rows, int k, char *a,
                              size_t row_bytes);
void msgl__codes_prepare_avx512(const float *in, size_t ld_in, int rows, int k, char *a,
                                size_t row_bytes);
void msgl__codes_prepare_avx512vnni(const float *in, size_t ld_in, int rows, int k, char *a,
                                    size_t row_bytes);
void msgl__codes_block_avx2(const msgl_gemm_block *b);
void msgl__codes_block_avx512(const msgl_gemm_block *b);
void msgl__codes_block_avx512vnni(const msgl_gemm_block *b);
size_t msgl__codes_row_bytes_amx(int kpad);
void msgl__codes_prepare_amx(const float *in, size_t ld_in, int rows, int k, char *a,
                             size_t row_bytes);
void msgl__codes_block_amx(const msgl_gemm_block *b);
#define MSGL_CODES_MICRO_VNNI                                                                      \
    {                                                                                              \
        msgl__codes_row_bytes_8, 150, 512, msgl__codes_prepare_avx512vnni,                         \
            msgl__codes_block_avx512vnni, true, 0                                                  \
    }

#endif
