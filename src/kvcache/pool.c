// SPDX-License-Identifier: Apache-2.0
//
// Size of a pool. The memory itself belongs to the engine, which knows the device.
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
