// SPDX-License-Identifier: Apache-2.0
#include "layers/compressed_keys.h"

void msgl__store_raw_rows(msgl_forward *f, const msgl_raw_rows *r, const void *in, size_t ld)
{
    const msgl_cache_group *group = &f->groups[r->group];
    const msgl_store_rows_call call = {.tokens = f->num_tokens,
                                       .dim = r->width,
                                       .in = in,
                                       .ld_in = ld,
                                       .dtype = group->pool.spec.dtype,
                                       .pool = msgl__kv_k(&group->pool, r->layer),
                                       .slots = f->tokens.slots[group->span]};
    f->k->compress.store(f->x, &call);
}

void msgl__compress_keys(msgl_forward *f, const msgl_compressed_keys *k, const msgl_raw_rows *rows,
                         int32_t rope)
{
    const msgl_cache_group *raw = &f->groups[rows->group], *keys = &f->groups[k->group];
    for (int32_t s = 0; s < f->num_seqs; s++) {
        const msgl_compress_call call = {.seqs = &f->seqs[s],
                                         .rate = k->rate,
                                         .dim = k->dim,
                                         .half = k->half,
                                         .two_series = k->two_series,
                                         .rows_dtype = raw->pool.spec.dtype,
                                         .rows = msgl__kv_k(&raw->pool, rows->layer),
                                         .ld_rows = (size_t)rows->width,
                                         .at = (size_t)k->at,
                                         .pages = raw->pages,
                                         .page_stride = raw->page_stride,
                                         .page_size = raw->page_size,
                                         .bias = k->bias,
                                         .weight = k->norm,
                                         .eps = k->eps,
                                         .inv_freq = f->ropes[rope].inv_freq,
                                         .scale = f->ropes[rope].scale,
                                         .dtype = keys->pool.spec.dtype,
                                         .pool = msgl__kv_k(&keys->pool, k->layer),
                                         .slots =
                                             f->tokens.slots[keys->span] + f->seqs[s].first_token};
        f->k->compress.make(f->x, &call);
    }
}
