// SPDX-License-Identifier: Apache-2.0
//
// y = x W^T + b, with what belongs to it in a transformer: the norm of x before it, and behind it a
// gate or the addition to the residual stream. A row-parallel layer (its input split
// over the ranks) sums the ranks' results; a column-parallel one (its output split) needs nothing.
#ifndef MSGL_LAYERS_LINEAR_H
#define MSGL_LAYERS_LINEAR_H

#include "layers/norm.h"

struct msgl_low_rank;

typedef struct msgl_linear {
    msgl_weight w;
    float *bias; // [w.n], or NULL
    bool row_parallel;
    const struct msgl_low_rank *low_rank; // or NULL
} msgl_linear;

enum { MSGL_MAX_LOW_RANK = 3 };

// What the model itself adds to the results of a linear layer whose W is that of several layers, in
// front of what follows the product: y += B_i (A_i x) for parts of y that lie next to each other
// (Zamba2). Of msgl__linear, msgl__linear_rope and msgl__linear_gated.
typedef struct msgl_low_rank {
    msgl_linear a; // [num rank, w.k]: that of every part
    int32_t rank, num;
    msgl_linear b[MSGL_MAX_LOW_RANK]; // [num] of [rows of a part, rank]
} msgl_low_rank;

// Step arena bytes that it takes for up to so many rows; l NULL: none.
static inline size_t msgl__low_rank_bytes(const msgl_low_rank *l, msgl_dtype act, int32_t rows)
{
    return l == NULL ? 0 : msgl__activation_bytes((size_t)rows, (size_t)l->a.w.n, act);
}

// What becomes of a block's result: residual += scale * norm(result).
typedef struct msgl_join {
    const msgl_norm *norm; // of the result, or NULL: none
    float scale;
    const msgl_norm *next; // the norm that a product behind the addition will be given, or NULL
} msgl_join;

// Whether the product that makes the result can add it itself.
static inline bool msgl__joins_directly(const msgl_join *j, int ranks)
{
    return ranks == 1 && j->norm == NULL && j->scale == 1;
}

// Adds a result that no product has added; both [rows, dim], dense. shared: it is this rank's part
// of a sum, and is overwritten.
void msgl__join(msgl_forward *f, const msgl_join *j, bool shared, void *result, void *residual,
                int32_t rows, int32_t dim);

// All operands are dense. norm NULL: x is `in` itself.

// in [rows, w.k] -> out [rows, w.n].
void msgl__linear(msgl_forward *f, const msgl_linear *l, const msgl_norm *norm, const void *in,
                  void *out, int32_t rows);
// The same without a norm, `in` being columns of rows that begin ld_in elements apart.
void msgl__linear_of_columns(msgl_forward *f, const msgl_linear *l, const void *in, size_t ld_in,
                             void *out, int32_t rows);
// The projection to q, K and V, then rope as its call says; rope->qkv gets q, rotated.
void msgl__linear_rope(msgl_forward *f, const msgl_linear *l, const msgl_norm *norm, const void *in,
                       const msgl_rope_call *rope);
// The same with out in f32.
void msgl__linear_f32(msgl_forward *f, const msgl_linear *l, const msgl_norm *norm, const void *in,
                      float *out, int32_t rows);
// W holds gate rows, then as many up rows: out [rows, w.n / 2] = activation(gate) * up. handover:
// NULL, or the product that alone reads `out`, msgl__linear_add's, which gets it too.
void msgl__linear_gated(msgl_forward *f, const msgl_linear *l, const msgl_norm *norm,
                        msgl_activation activation, const void *in, void *out, int32_t rows,
                        msgl_handover *handover);
// Joins the result to residual [rows, w.n]. Where that is not done directly it takes an activation
// of that shape from the step arena. handover: NULL, or what the product that made `in` was given.
void msgl__linear_add(msgl_forward *f, const msgl_linear *l, const void *in, void *residual,
                      const msgl_join *join, int32_t rows, msgl_handover *handover);

#endif
