// SPDX-License-Identifier: Apache-2.0
#include "layers/mlp.h"

static int32_t block_rows(int32_t rows)
{
    return rows < MSGL_FFN_ROWS ? rows : MSGL_FFN_ROWS;
}

size_t msgl__mlp_workspace(const msgl_mlp *m, int32_t max_rows)
{
    const size_t rows = (size_t)block_rows(max_rows);
    return msgl__activation_bytes(rows, (size_t)m->gate_up.w.n) +
           msgl__activation_bytes(rows, (size_t)m->down.w.k);
}

void msgl__mlp(msgl_forward *f, const msgl_mlp *m, const float *in, float *out, int32_t rows)
{
    const size_t hidden = (size_t)m->gate_up.w.k;
    const int32_t inter = m->down.w.k;
    const size_t mark = f->arena->used;
    const int32_t block = block_rows(rows);
    float *gate_up = msgl__activation(f, (size_t)block, (size_t)m->gate_up.w.n);
    float *act = msgl__activation(f, (size_t)block, (size_t)inter);
    if (gate_up == NULL || act == NULL) return;
    for (int32_t r = 0; r < rows; r += block) {
        const int32_t n = rows - r < block ? rows - r : block;
        msgl__linear(f, &m->gate_up, in + (size_t)r * hidden, hidden, gate_up, n);
        f->k->act.silu_mul(f->x, gate_up, act, n, inter);
        msgl__linear(f, &m->down, act, (size_t)inter, out + (size_t)r * hidden, n);
    }
    f->arena->used = mark;
}
