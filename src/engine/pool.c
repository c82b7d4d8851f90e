// SPDX-License-Identifier: Apache-2.0
//
// Engines that pool: a prompt's result is values of its last row, not a token. The rest of a step
// is as for answers (docs/decisions/030, 039).
#include <math.h>

#include "core/attributes.h"
#include "engine/internal.h"
#include "layers/norm.h"

size_t msgl__pool_bytes(const msgl_engine *e)
{
    return msgl__activation_bytes((size_t)e->max_running, (size_t)e->info.pooled_size,
                                  e->model.target.act);
}

// The whole head for two of its columns: of last tokens alone, it is little beside their prompts.
static void score_step(msgl_engine *e, msgl_engine_step *s, msgl_forward *f, const void *hidden)
{
    const size_t vocab = (size_t)e->model.cfg.vocab_size;
    const int32_t block = s->num_rows < e->logits_rows ? s->num_rows : e->logits_rows;
    msgl_logits l;
    if (!msgl__model_take_logits(&e->model, f, block, &l)) return;
    for (int32_t r = 0; r < s->num_rows; r += block) {
        const int32_t n = s->num_rows - r < block ? s->num_rows - r : block;
        msgl__logits_block(e, f, hidden, r, n, &l);
        msgl__model_join_logits(&e->model, f, n, &l);
        for (int32_t i = 0; i < n; i++) {
            float *out = s->pooled + (size_t)(r + i) * MSGL_COUNT(e->score_ids);
            const float *row = l.whole + (size_t)i * vocab;
            for (size_t k = 0; k < MSGL_COUNT(e->score_ids); k++) {
                e->device->ops->copy_out(e->device, out + k, row + e->score_ids[k], sizeof *out);
            }
        }
    }
}

void msgl__pool_step(msgl_engine *e, msgl_engine_step *s, msgl_forward *f, const void *hidden)
{
    if (e->info.pooling == MSGL_POOL_SCORE) {
        score_step(e, s, f, hidden);
        return;
    }
    const size_t rows = (size_t)s->num_rows, dim = (size_t)e->info.pooled_size;
    if (e->model.cfg.arch->family->encodes) { // which has done the rest
        e->device->ops->copy_out(e->device, s->hidden, hidden,
                                 rows * dim * msgl__dtype_size(e->exec.act));
        return;
    }
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
            if (e->info.pooling != MSGL_POOL_SCORE) {
                s->pooled[j] = msgl__load_f32(s->hidden, e->exec.act, j);
            }
            finite = finite && isfinite(s->pooled[j]);
        }
        if (!finite) s->status[s->sample_req[i]] = MSGL_ENUMERIC;
    }
}
