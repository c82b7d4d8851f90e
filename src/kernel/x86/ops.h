// SPDX-License-Identifier: Apache-2.0
//
// What levels of x86-64 lend from one family to the others, as kernel/row_ops.h has it of plain C.
#ifndef MSGL_KERNEL_X86_OPS_H
#define MSGL_KERNEL_X86_OPS_H

#include "kernel/row_ops.h"

extern const msgl_row_ops msgl__row_ops_avx2, msgl__row_ops_avx512;

void msgl__e4m3_store_avx2(const float *from, void *to, int n);
void msgl__e4m3_store_avx512(const float *from, void *to, int n);
void msgl__e4m3_expand_avx2(const uint8_t *from, uint16_t *to, int n);
void msgl__e4m3_expand_avx512(const uint8_t *from, uint16_t *to, int n);

// attn_avx2.c, attn_avx512.c
extern const msgl_kv_store_fn msgl__kv_store_avx2[MSGL_DTYPE_COUNT];
extern const msgl_kv_store_fn msgl__kv_store_avx512[MSGL_DTYPE_COUNT];

#endif
