// SPDX-License-Identifier: Apache-2.0
//
// What a level of one CPU family lends to the other families, a row at a time: gemm normalises its
// input rows and gates its result, rope stores K and V. Every level gives the same bits.
#ifndef MSGL_KERNEL_ROW_OPS_H
#define MSGL_KERNEL_ROW_OPS_H

#include "core/dtype.h"
#include "kernel/calls.h"

typedef struct msgl_row_ops {
    // out = in / sqrt(mean(in^2) + eps) * weight, all [dim]; out may be in.
    void (*rms_norm)(const float *in, const float *weight, float eps, float *out, int dim);
    // out[i] of gate_up[i] and gate_up[dim + i], by activation.
    void (*gate[MSGL_ACTIVATIONS])(const float *gate_up, float *out, int dim);
} msgl_row_ops;

// ref/ops.inc; a level that compiles it has its own of each of these (x86/ops.h).
extern const msgl_row_ops msgl__row_ops_ref;

// Rounds n values (nearest even) to one dtype; E4M3 saturates.
typedef void (*msgl_kv_store_fn)(const float *from, void *to, int n);

// ref/ops.inc: E4M3's, and to bf16, which has every value.
void msgl__e4m3_store_ref(const float *from, void *to, int n);
void msgl__e4m3_expand_ref(const uint8_t *from, uint16_t *to, int n);

// Attention's files, by dtype of the pool.
extern const msgl_kv_store_fn msgl__kv_store_ref[MSGL_DTYPE_COUNT];

#endif
