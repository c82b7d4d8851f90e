// SPDX-License-Identifier: Apache-2.0
//
// Kernel family compress: keys that stand for windows of tokens (DeepSeek-V4's compressed
// attention). Every token keeps a raw row, values c and gates z of one or of two series of `dim`
// elements each; window w of `rate` tokens, which ends with token (w + 1) rate - 1, becomes one
// entry, element by element
//
//     e_w = norm(sum_j softmax_j(z_j + b_j) c_j), rotated by the angles of position w rate
//
// over the tokens j of the window, b_j by a token's place in its window. With two series the sum
// has the first series of the window before it and the second of its own: 2 rate terms, and rate
// for window 0. An entry lies where the last token of its window has its slot. Example: rate 4;
// token 11's slot has entry 2, of tokens 8 to 11 and, with two series, 4 to 7.
#ifndef MSGL_KERNEL_COMPRESS_H
#define MSGL_KERNEL_COMPRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/batch.h"
#include "core/dtype.h"
#include "kernel/exec.h"

enum {
    MSGL_COMPRESS_MAX_RATE = 1 << 12,
    MSGL_COMPRESS_MAX_DIM = 1024, // of an entry
};

// Rows of heads, normed and rotated: the last 2 half elements of a head, neighbours (2 i, 2 i + 1)
// of them by angle i.
typedef struct msgl_pair_rope_call {
    int32_t tokens, heads, dim, half; // 2 half <= dim <= MSGL_COMPRESS_MAX_DIM
    const void *in;                   // [tokens, heads, dim] of exec->act
    size_t ld_in;
    bool normed;         // by an RMS norm of each head first
    const float *weight; // [dim] of it; NULL: ones
    float eps;
    bool back;            // by minus the angles
    const float *cos_sin; // [tokens, 2 half]: half cosines, then half sines
    // [tokens, heads, dim] where it goes, may be `in`; or NULL: one head goes to its slot of a
    // pool [slots, dim] of dtype.
    void *out;
    size_t ld_out;
    msgl_dtype dtype;
    void *pool;
    const int32_t *slots; // [tokens]
} msgl_pair_rope_call;

typedef struct msgl_store_rows_call {
    int32_t tokens, dim;
    const void *in; // [tokens, dim] of exec->act
    size_t ld_in;
    msgl_dtype dtype;
    void *pool;           // [slots, dim]
    const int32_t *slots; // [tokens]
} msgl_store_rows_call;

typedef struct msgl_compress_call {
    const msgl_seqs *seqs; // chains; of their tokens those that end a window make an entry
    int32_t rate, dim, half;
    bool two_series;
    // Raw rows of all tokens of these windows: the values of all series, then their gates, from
    // element `at` of a row of ld_rows.
    msgl_dtype rows_dtype; // not MSGL_E4M3
    const void *rows;      // [slots, ld_rows]
    size_t ld_rows, at;
    // Position p of table row r is in slot pages[r * page_stride + p / page_size] * page_size + p %
    // page_size of these.
    const int32_t *pages;
    size_t page_stride;
    int32_t page_size;
    const float *bias;   // [rate, series * dim]
    const float *weight; // [dim] of the norm
    float eps;
    const float *inv_freq; // [half]
    float scale;           // of cosines and sines
    msgl_dtype dtype;
    void *pool;           // [slots, dim] of entries
    const int32_t *slots; // [seqs' tokens] there
} msgl_compress_call;

// A token's result depends on its own request alone, to the bit. NULL: not on this device.
typedef struct msgl_compress_kernels {
    void (*rotate)(msgl_exec *x, const msgl_pair_rope_call *c);
    void (*store)(msgl_exec *x, const msgl_store_rows_call *c);
    void (*make)(msgl_exec *x, const msgl_compress_call *c);
} msgl_compress_kernels;

#endif
