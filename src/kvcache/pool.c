// SPDX-License-Identifier: Apache-2.0
//
// Size and arrays of a pool. The memory itself belongs to the engine, which knows the device.
#include <stdbool.h>

#include "core/mem.h"
#include "kvcache/kvcache.h"

size_t msgl__kv_pool_bytes(const msgl_kv_pool *d)
{
    const bool states = d->spec.kind == MSGL_CACHE_STATE;
    const int32_t units = states ? d->max_running : d->num_pages, more = d->num_checkpoints;
    size_t n = msgl__cache_unit_bytes(&d->spec, d->page_size);
    if (units < 1 || more < 0 || msgl__size_mul(n, (size_t)units + 1 + (size_t)more, &n) != 0) {
        return 0;
    }
    return n;
}

void msgl__kv_pool_moved(const msgl_kv_pool *p, msgl_kv_move_call *c)
{
    const size_t head = (size_t)p->spec.num_heads * msgl__dtype_size(p->spec.dtype);
    c->slots = ((size_t)p->num_pages + 1) * (size_t)p->page_size;
    c->num_layers = p->spec.num_layers;
    c->k = msgl__kv_k(p, 0);
    c->k_bytes = head * (size_t)p->spec.k_dim;
    c->v = NULL;
    c->v_bytes = 0;
    if (p->spec.kind != MSGL_CACHE_KV) return;
    c->v = msgl__kv_v(p, 0);
    c->v_bytes = head * (size_t)p->spec.v_dim;
}
