// SPDX-License-Identifier: Apache-2.0
#include "layers/linear.h"

void msgl__linear(msgl_forward *f, const msgl_linear *l, const float *in, size_t ld_in, float *out,
                  int32_t rows)
{
    if (rows == 0) return;
    // Every rank of a row-parallel layer would add the bias, so only the first does.
    const float *bias = l->row_parallel && f->comm->rank != 0 ? NULL : l->bias;
    f->k->gemm.linear(f->x, &l->w, bias, in, ld_in, out, (size_t)l->w.n, rows);
    msgl__arena_reset(f->x->scratch);
    if (l->row_parallel) {
        f->comm->ops->all_reduce(f->comm, f->x, out, (size_t)rows * (size_t)l->w.n);
    }
}
