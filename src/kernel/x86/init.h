// SPDX-License-Identifier: Apache-2.0
//
// What the levels of x86-64 need and bring: declarations for the table in x86/init.c.
#ifndef MSGL_KERNEL_X86_INIT_H
#define MSGL_KERNEL_X86_INIT_H

#include "kernel/ladder.h"

// What a machine has. Each is a usable bundle, not a CPUID bit: the instructions and the operating
// system's support for their registers.
enum {
    MSGL_X86_AVX2 = 1 << 0,        // AVX2, FMA, F16C
    MSGL_X86_AVX512 = 1 << 1,      // AVX-512 F, BW, DQ, VL, CD
    MSGL_X86_AVX512_VNNI = 1 << 2, // with AVX-512
    MSGL_X86_AVX512_BF16 = 1 << 3, // with AVX-512
    // AVX512_FP16, AMX-TILE, AMX-BF16; permission to use tiles, granted by the Linux kernel
    MSGL_X86_AMX = 1 << 4,
};
// The bundles that this machine has. Asks the Linux kernel for permission to use tiles, if there
// are any.
uint32_t msgl__x86_flags(void);

void msgl__gemm_init_avx2(msgl_gemm_kernels *k);
void msgl__gemm_init_avx512(msgl_gemm_kernels *k);
void msgl__gemm_init_avx512vnni(msgl_gemm_kernels *k);
void msgl__gemm_init_avx512bf16(msgl_gemm_kernels *k);
void msgl__gemm_init_amx(msgl_gemm_kernels *k);

void msgl__attn_init_avx2(msgl_attn_kernels *k);
void msgl__attn_init_avx512(msgl_attn_kernels *k);
void msgl__attn_init_avx512bf16(msgl_attn_kernels *k);
void msgl__attn_init_amx(msgl_attn_kernels *k);

void msgl__ops_fill_avx2(msgl_kernels *k);
void msgl__ops_fill_avx512(msgl_kernels *k);

double msgl__limits_f32_avx2(long loops);
double msgl__limits_f32_avx512(long loops);
double msgl__limits_int8_avx2(long loops);
double msgl__limits_int8_avx512(long loops);
double msgl__limits_int8_avx512vnni(long loops);
double msgl__limits_bf16_avx512bf16(long loops);
double msgl__limits_bf16_amx(long loops);

#endif
