// SPDX-License-Identifier: Apache-2.0
//
// Inside of kernel family gemm: what an ISA level provides (micro) and what all levels share (the
// driver: memory layout, splitting into tasks, experts).
//
// Packed W, the same at every level: panels of 16 output features, the last one filled up with
// zeros, each panel contiguous over k rounded up to 32 (zeros again):
//   bf16      [k / 2][16][2]   one 64-byte line holds a pair of k for 16 features: what vdpbf16ps
//                              takes with a broadcast pair of x, and 16 such lines are an AMX B
//                              tile
//   f16, f32  [k][16]
//   int8      groups of 64 k (k is rounded up to that): [16][16][4] bytes q + 128, then the 16
//             features' f32 scales; see gemm_int8.h
// Activations are brought into the level's own form once per call ("prepared rows"), with their
// columns in the order that W's have (msgl_wformat.order).
#ifndef MSGL_KERNEL_GEMM_INTERNAL_H
#define MSGL_KERNEL_GEMM_INTERNAL_H

#include <stdbool.h>
#include <string.h>

#include "core/attributes.h"
#include "core/round.h"
#include "kernel/gemm.h"
#include "kernel/row_ops.h"
#include "quant/blocks.h"

enum {
    MSGL_GEMM_LANES = 16,      // features per panel
    MSGL_GEMM_K_ALIGN = 32,    // k of a packed panel is a multiple of this
    MSGL_GEMM_ROWS = 16,       // prepared rows come in blocks that start at multiples of this
    MSGL_GEMM_TASK_ROWS = 512, // most rows of a task
};

static inline int msgl__gemm_kpad(int k)
{
    return msgl__ceil_div(k, MSGL_GEMM_K_ALIGN) * MSGL_GEMM_K_ALIGN;
}

// Columns that a row of k is packed with.
static inline int msgl__gemm_columns(const msgl_wformat *f, int k)
{
    return f->order != NULL ? f->order->num : k;
}

static inline size_t msgl__gemm_panel_bytes(const msgl_weight *w)
{
    return w->format->packed_size(w->format, MSGL_GEMM_LANES, w->k);
}

// A rectangle of the result: `rows` rows times `cols` features.
typedef struct msgl_gemm_block {
    const msgl_wformat *format;
    const char *w;      // first panel
    size_t panel_bytes; // from one panel to the next
    int k, kpad;        // of the packed columns
    const char *a;      // prepared rows, from a multiple of MSGL_GEMM_ROWS of its segment on
    size_t a_row_bytes;
    int rows, cols;    // both >= 1; cols covers ceil(cols / 16) panels
    const float *bias; // of the first column; NULL: none
    float *out;
    size_t ld_out;
    // For kernels that say so in msgl_gemm_micro:
    bool add;   // out += instead of out =
    size_t up;  // not 0: out = silu(product) * the product of panels `up` bytes further; no bias,
                // no add, cols a multiple of 16
    int follow; // panels behind the last one that this thread will probably be given next
} msgl_gemm_block;

// Kernels of one ISA level for one weight format.
typedef struct msgl_gemm_micro {
    // Bytes of a prepared row, with up to 64 unused ones against cache-set conflicts. At most those
    // of kpad + 64 floats, and half as much again for f32 weights (gemm_parts_amx.c).
    size_t (*row_bytes)(int kpad);
    int kmacs_per_us; // thousand multiply-adds per us of one core, roughly: only sizes tasks
    int l2_kb;        // prepared rows that a task goes over again and again, to stay in L2
    // Prepares rows <= 16 of k elements, zero-filled up to kpad, at `a`, row_bytes each.
    void (*prepare)(const float *in, size_t ld_in, int rows, int k, char *a, size_t row_bytes);
    void (*block)(const msgl_gemm_block *b);
    bool adds;     // block takes `add`
    int gate_rows; // block takes `up`, and is faster for that from so many rows on; 0: it does not
} msgl_gemm_micro;

// Packs one panel: 16 rows, `rows` of them given from row `lane` on, into `panel`.
typedef void (*msgl_gemm_pack_fn)(char *panel, const msgl_wformat *f, int k, int lane, int rows,
                                  const char *src, msgl_dtype src_dtype, size_t ld_src);

// What a level brings.
typedef struct msgl_gemm_level {
    const msgl_gemm_micro *micro; // [MSGL_WFORMATS]
    const msgl_row_ops *row_ops;
    const msgl_gemm_micro *prompts_f32; // of f32 weights with exec->prompts_only; NULL: as ever
} msgl_gemm_level;

// A level's descriptors, all of which pack by one function.
#define MSGL_GEMM_FORMAT(beginning, size, pack)                                                    \
    {                                                                                              \
        beginning, size, pack, msgl__gemm_gather, NULL, NULL, NULL                                 \
    }
#define MSGL_GEMM_FORMATS(pack)                                                                    \
    {                                                                                              \
        [MSGL_W_F32] = MSGL_GEMM_FORMAT(MSGL_WFORMAT_F32, msgl__gemm_packed_size, pack),           \
        [MSGL_W_F16] = MSGL_GEMM_FORMAT(MSGL_WFORMAT_F16, msgl__gemm_packed_size, pack),           \
        [MSGL_W_BF16] = MSGL_GEMM_FORMAT(MSGL_WFORMAT_BF16, msgl__gemm_packed_size, pack),         \
        [MSGL_W_INT8] =                                                                            \
            MSGL_GEMM_FORMAT(MSGL_WFORMAT_INT8(MSGL_W_INT8), msgl__int8_packed_size, pack),        \
        [MSGL_W_CODES] = MSGL_GEMM_Q4(MSGL_W_CODES), [MSGL_W_BLOCKS] = MSGL_GEMM_Q4(MSGL_W_BLOCKS) \
    }
#define MSGL_GEMM_Q4(id)                                                                           \
    {                                                                                              \
        MSGL_WFORMAT_Q4(id), msgl__kept_packed_size, msgl__q4_pack, msgl__gemm_gather,             \
            &msgl__blocks_q4_0, NULL, NULL                                                         \
    }
// msgl_gemm_micro.row_bytes of f32.
size_t msgl__gemm_row_bytes_f32(int kpad);

// The driver. A weight of n features in panels of so many bytes; 0 when the product overflows.
size_t msgl__gemm_panels_size(int n, size_t panel_bytes);
size_t msgl__gemm_packed_size(const msgl_wformat *f, int n, int k);
size_t msgl__int8_packed_size(const msgl_wformat *f, int n, int k);
size_t msgl__kept_packed_size(const msgl_wformat *f, int n, int k);
void msgl__q4_pack(msgl_exec *x, msgl_weight *w, int row, int rows, const void *src,
                   msgl_dtype src_dtype, size_t ld_src);
// By panels, in parallel. src_row: bytes from one row of src to the next; src_dtype and ld_src are
// fn's.
void msgl__gemm_pack(msgl_gemm_pack_fn fn, msgl_exec *x, msgl_weight *w, int row, int rows,
                     const void *src, size_t src_row, msgl_dtype src_dtype, size_t ld_src);
void msgl__gemm_gather(msgl_exec *x, const msgl_weight *w, const int32_t *ids, int rows, void *out);
void msgl__gemm_gather_own(msgl_exec *x, const msgl_weight *w, const int32_t *ids, int rows,
                           void *out);
// The feature in this lane of a panel: out[0, k).
void msgl__int8_lane(const msgl_wformat *f, const char *panel, int lane, int k, float *out);
void msgl__gemm_linear(const msgl_gemm_level *level, msgl_exec *x, const msgl_linear_call *c);
void msgl__gemm_grouped(const msgl_gemm_level *level, msgl_exec *x, const msgl_grouped_call *c);
void msgl__gemm_heads(const msgl_gemm_level *level, msgl_exec *x, const msgl_heads_call *c);
void msgl__gemm_lora(const msgl_gemm_level *level, msgl_exec *x, const msgl_lora_call *c);
size_t msgl__gemm_lora_scratch(const msgl_lora_size *s, msgl_dtype act);
size_t msgl__gemm_linear_scratch(const msgl_linear_call *c, msgl_dtype act);
size_t msgl__gemm_grouped_scratch(const msgl_grouped_call *c, msgl_dtype act);
size_t msgl__gemm_heads_scratch(const msgl_heads_call *c, msgl_dtype act);

// Plain C, also what the levels fall back to.
void msgl__gemm_pack_panel_ref(char *panel, const msgl_wformat *f, int k, int lane, int rows,
                               const char *src, msgl_dtype src_dtype, size_t ld_src);

// Prepared rows as they are, and rounded to bf16 but kept as f32; compiled in each level's file.
MSGL_INLINE void msgl__gemm_prepare_f32(const float *in, size_t ld_in, int rows, int k, char *a,
                                        size_t row_bytes)
{
    for (int r = 0; r < rows; r++) {
        float *to = (float *)(a + (size_t)r * row_bytes);
        memcpy(to, in + (size_t)r * ld_in, (size_t)k * sizeof(float));
        memset(to + k, 0, (size_t)(msgl__gemm_kpad(k) - k) * sizeof(float));
    }
}
MSGL_INLINE void msgl__gemm_prepare_rounded(const float *in, size_t ld_in, int rows, int k, char *a,
                                            size_t row_bytes)
{
    for (int r = 0; r < rows; r++) {
        const float *from = in + (size_t)r * ld_in;
        float *to = (float *)(a + (size_t)r * row_bytes);
        for (int i = 0; i < k; i++) to[i] = msgl__bf16_to_f32(msgl__f32_to_bf16(from[i]));
        memset(to + k, 0, (size_t)(msgl__gemm_kpad(k) - k) * sizeof(float));
    }
}

#endif
