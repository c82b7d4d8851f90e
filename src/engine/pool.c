// SPDX-License-Identifier: Apache-2.0
//
// Engines that pool: a prompt's result is a vector of its last row, not a token. The head is never
// run; the rest of a step is as for answers (docs/decisions/030).
#include <math.h>

#include "engine/internal.h"
#include "layers/norm.h"

size_t msgl__pool_bytes(const msgl_engine *e)
{
    return msgl__activation_bytes((size_t)e->max_running, (size_t)e->info.pooled_size,
                                  e->model.target.act);
}

void msgl__pool_step(msgl_engine *e, msgl_engine_step *s, msgl_forward *f, const void *hidden)
{
    const size_t rows = (size_t)s->num_rows, dim = (size_t)e->info.pooled_size;
    void *normed = msgl__activation(f, rows, dim);
    if (normed == NULL) return;
    msgl__norm(f, &e->model.final_norm, hidden, normed, s->num_rows);
    e->device->ops->copy_out(e->device, s->hidden, normed,
                             rows * dim * msgl__dtype_size(e->exec.act));
}

void msgl__pool_result(const msgl_engine *e, msgl_engine_step *s)
{
    const size_t dim = (size_t)e->info.pooled_size;
    for (int32_t i = 0; i < s->num_samples; i++) {
        bool finite = true;
        for (size_t j = (size_t)i * dim; j < ((size_t)i + 1) * dim; j++) {
            s->pooled[j] = msgl__load_f32(s->hidden, e->exec.act, j);
            finite = finite && isfinite(s->pooled[j]);
        }
        if (!finite) s->status[s->sample_req[i]] = MSGL_ENUMERIC;
    }
}
