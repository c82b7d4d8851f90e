// SPDX-License-Identifier: Apache-2.0
//
// Kernel family gemm on GPUs. Weights stay row-major [n, k] as in the file, values or a file's
// codes (codes_row.h); rows of codes become values before a product (expand.h). A product goes to
// the kernel of our own, or the algorithm of cuBLASLt, that was measured to be fastest (table.cuh),
// the grouped product of a mixture of experts to a kernel of our own.
#ifndef MSGL_CUDA_GEMM_GEMM_H
#define MSGL_CUDA_GEMM_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kernel/calls.h"
#include "kernel/exec.h"
#include "kernel/gemm.h"

// The kernel table's functions (kernel/gemm.h says what they compute).
extern const msgl_wformat msgl__cuda_formats[MSGL_WFORMATS];
size_t msgl__cuda_packed_size(const msgl_wformat *f, int n, int k);
void msgl__cuda_pack(msgl_exec *x, msgl_weight *w, int row, int rows, const void *src,
                     msgl_dtype src_dtype, size_t ld_src);
void msgl__cuda_gemm_gather(msgl_exec *x, const msgl_weight *w, const int32_t *ids, int rows,
                            void *out);
bool msgl__cuda_keep(const struct msgl_blocks *b, int k, bool exact, msgl_wformat *out);
void msgl__cuda_linear(msgl_exec *x, const msgl_linear_call *c);
bool msgl__cuda_linear_rope(msgl_exec *x, const msgl_linear_call *c, const msgl_rope_call *rope);
bool msgl__cuda_linear_sum(msgl_exec *x, const msgl_linear_call *c);
size_t msgl__cuda_linear_scratch(const msgl_linear_call *c, msgl_dtype act);
void msgl__cuda_grouped(msgl_exec *x, const msgl_grouped_call *c);
size_t msgl__cuda_grouped_scratch(const msgl_grouped_call *c, msgl_dtype act);
void msgl__cuda_heads(msgl_exec *x, const msgl_heads_call *c);
size_t msgl__cuda_heads_scratch(const msgl_heads_call *c, msgl_dtype act);
bool msgl__cuda_experts(msgl_exec *x, const msgl_experts_call *c);
void msgl__cuda_gather_own(msgl_exec *x, const msgl_weight *w, const int32_t *ids, int rows,
                           void *out);
void msgl__cuda_lora_tiles(msgl_exec *x, const msgl_lora_tiles_call *c);
void msgl__cuda_lora_members(msgl_exec *x, const msgl_lora_members_call *c);
void msgl__cuda_lora_gate(msgl_exec *x, const msgl_lora_members_call *c, msgl_activation f);
size_t msgl__cuda_lora_scratch(const msgl_lora_size *s, msgl_dtype act);

// As kernel/gemm.h says. Keeps what was measured in memory and, when the device was opened with a
// cache folder, on disk. Waits for the device.
void msgl__cuda_gemm_tune(msgl_exec *x, msgl_arena *memory, const msgl_tune_product *p,
                          const int32_t *ms, int32_t num);

#ifdef __cplusplus
}
#endif

#endif
