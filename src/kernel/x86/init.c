// SPDX-License-Identifier: Apache-2.0
//
// The ladder of x86-64.
#include "kernel/x86/init.h"

#include "core/attributes.h"

static const msgl_cpu_level_desc LEVELS[] = {
    MSGL_CPU_LEVEL_REF,
    {.name = "avx2",
     .needs = MSGL_X86_AVX2,
     .gemm = msgl__gemm_init_avx2,
     .attn = msgl__attn_init_avx2,
     .ops = msgl__ops_fill_avx2,
     .limits = {.f32 = msgl__limits_f32_avx2, .int8 = msgl__limits_int8_avx2}},
    {.name = "avx512",
     .needs = MSGL_X86_AVX512,
     .gemm = msgl__gemm_init_avx512,
     .attn = msgl__attn_init_avx512,
     .ops = msgl__ops_fill_avx512,
     .limits = {.f32 = msgl__limits_f32_avx512, .int8 = msgl__limits_int8_avx512}},
    {.name = "avx512vnni",
     .needs = MSGL_X86_AVX512_VNNI,
     .gemm = msgl__gemm_init_avx512vnni,
     .limits = {.int8 = msgl__limits_int8_avx512vnni}},
    {.name = "avx512bf16",
     .needs = MSGL_X86_AVX512_BF16,
     .gemm = msgl__gemm_init_avx512bf16,
     .attn = msgl__attn_init_avx512bf16,
     .limits = {.bf16 = msgl__limits_bf16_avx512bf16}},
    {.name = "amx",
     .needs = MSGL_X86_AMX,
     .gemm = msgl__gemm_init_amx,
     .attn = msgl__attn_init_amx,
     .limits = {.bf16 = msgl__limits_bf16_amx}},
};
_Static_assert(MSGL_COUNT(LEVELS) <= MSGL_CPU_MAX_LEVELS, "tables by level have no room for these");

const msgl_cpu_ladder msgl__cpu_ladder = {LEVELS, MSGL_COUNT(LEVELS), msgl__x86_flags};
