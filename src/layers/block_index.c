// SPDX-License-Identifier: Apache-2.0
#include "layers/block_index.h"

const void *msgl__block_index(msgl_forward *f, const msgl_block_index *i, const msgl_norm *norm,
                              const void *in, const float *cos_sin)
{
    const msgl_cache_group *group = &f->groups[i->group];
    const size_t ld = (size_t)i->qk.w.n, queries = (size_t)i->heads * (size_t)i->dim;
    void *qk = msgl__activation(f, (size_t)f->num_tokens, ld);
    if (qk == NULL) return NULL;
    msgl__linear(f, &i->qk, norm, in, qk, f->num_tokens);
    const msgl_index_store_call store = {.tokens = f->num_tokens,
                                         .heads = i->heads,
                                         .dim = i->dim,
                                         .half = i->half,
                                         .q = qk,
                                         .ld_q = ld,
                                         .k = (char *)qk + queries * msgl__dtype_size(f->x->act),
                                         .ld_k = ld,
                                         .k_weight = i->k_norm,
                                         .q_weight = i->q_norm,
                                         .eps = i->eps,
                                         .cos_sin = cos_sin,
                                         .dtype = group->pool.spec.dtype,
                                         .pool = msgl__kv_k(&group->pool, i->layer),
                                         .slots = f->tokens.slots[group->span]};
    f->k->index.store(f->x, &store);
    return qk;
}
