// SPDX-License-Identifier: Apache-2.0
//
// Loops of independent multiply-adds on registers, one per ISA level that has its own instruction.
// fn(loops) runs that many rounds; every call returns the operations of one round.
#ifndef MSGL_KERNEL_LIMITS_INTERNAL_H
#define MSGL_KERNEL_LIMITS_INTERNAL_H

typedef double (*msgl_limits_fn)(long loops);

double msgl__limits_f32_avx2(long loops);
double msgl__limits_f32_avx512(long loops);
double msgl__limits_int8_avx2(long loops);
double msgl__limits_int8_avx512(long loops);
double msgl__limits_int8_avx512vnni(long loops);
double msgl__limits_bf16_avx512bf16(long loops);
double msgl__limits_bf16_amx(long loops);

#endif
