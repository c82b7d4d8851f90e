// SPDX-License-Identifier: Apache-2.0
//
// Size of the KV pool. The memory itself belongs to the engine, which knows the device.
#include "core/mem.h"
#include "kvcache/kvcache.h"

size_t msgl__kv_pool_bytes(const msgl_kv_pool *d)
{
    if (d->num_layers < 1 || d->num_pages < 1 || d->page_size < 1 || d->num_kv_heads < 1 ||
        d->head_dim < 1) {
        return 0;
    }
    size_t n = 2 * msgl__dtype_size(d->dtype);
    if (msgl__size_mul(n, (size_t)d->num_layers, &n) != 0 ||
        msgl__size_mul(n, (size_t)d->num_pages + 1, &n) != 0 ||
        msgl__size_mul(n, (size_t)d->page_size, &n) != 0 ||
        msgl__size_mul(n, (size_t)d->num_kv_heads, &n) != 0 ||
        msgl__size_mul(n, (size_t)d->head_dim, &n) != 0) {
        return 0;
    }
    return n;
}
