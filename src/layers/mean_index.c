// SPDX-License-Identifier: Apache-2.0
#include "layers/mean_index.h"

#include "attention/chosen.h"

const void *msgl__mean_index(msgl_forward *f, const msgl_mean_index *i, int32_t attended,
                             const msgl_norm *norm, const void *in, const float *cos_sin)
{
    const msgl_cache_group *keys = &f->groups[i->group];
    const msgl_step_rope *rope = &f->ropes[i->rope];
    const size_t ld = (size_t)i->qk.w.n, queries = (size_t)i->heads * (size_t)i->dim;
    void *qk = msgl__activation(f, (size_t)f->num_tokens, ld);
    if (qk == NULL) return NULL;
    msgl__linear(f, &i->qk, norm, in, qk, f->num_tokens);
    for (int32_t s = 0; s < f->num_seqs; s++) {
        char *rows = msgl__row(f, qk, f->seqs[s].first_token, ld);
        const msgl_index_means_store_call store = {
            .seqs = &f->seqs[s],
            .heads = i->heads,
            .dim = i->dim,
            .half = i->half,
            .size = i->size,
            .q = rows,
            .k = rows + queries * msgl__dtype_size(f->x->act),
            .ld = ld,
            .q_weight = i->q_norm,
            .k_weight = i->k_norm,
            .eps = i->eps,
            .cos_sin = cos_sin + (size_t)f->seqs[s].first_token * 2 * (size_t)i->half,
            .inv_freq = rope->inv_freq,
            .scale = rope->scale,
            .dtype = keys->pool.spec.dtype,
            .pool = msgl__kv_k(&keys->pool, i->layer)};
        msgl__chosen_store_means(f->groups[attended].chosen, f->x, &store);
    }
    return qk;
}
