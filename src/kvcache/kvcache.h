// SPDX-License-Identifier: Apache-2.0
//
// The KV pool (memory), the page table (which slot holds which token) and the page allocator with
// its prefix cache (who may use which page). Slot numbers count tokens: slot s is entry s %
// page_size of page s / page_size. The last page, `num_pages`, is the dummy page of padding
// requests.
#ifndef MSGL_KVCACHE_KVCACHE_H
#define MSGL_KVCACHE_KVCACHE_H

#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"
#include "core/err.h"

// K and V of all layers: [2, num_layers, num_pages + 1, page_size, num_kv_heads, head_dim].
typedef struct msgl_kv_pool {
    msgl_dtype dtype;
    int32_t num_layers, num_pages, page_size, num_kv_heads, head_dim;
    void *base;   // device memory
    size_t bytes; // of base
} msgl_kv_pool;

// Bytes that a pool of these dimensions takes (the dummy page included); 0 on overflow.
size_t msgl__kv_pool_bytes(const msgl_kv_pool *dims);
// Elements from one slot to the next: num_kv_heads * head_dim.
static inline size_t msgl__kv_slot_stride(const msgl_kv_pool *p)
{
    return (size_t)p->num_kv_heads * (size_t)p->head_dim;
}
static inline void *msgl__kv_layer(const msgl_kv_pool *p, int kv, int layer)
{
    const size_t slots = ((size_t)p->num_pages + 1) * (size_t)p->page_size;
    const size_t elements =
        ((size_t)kv * (size_t)p->num_layers + (size_t)layer) * slots * msgl__kv_slot_stride(p);
    return (char *)p->base + elements * msgl__dtype_size(p->dtype);
}
static inline void *msgl__kv_k(const msgl_kv_pool *p, int layer) // [slots, num_kv_heads, head_dim]
{
    return msgl__kv_layer(p, 0, layer);
}
static inline void *msgl__kv_v(const msgl_kv_pool *p, int layer)
{
    return msgl__kv_layer(p, 1, layer);
}

// int32 [max_running + 1, stride], token-granular: row r, column c is the slot of token c of the
// request in row r. stride = max_seq_len rounded up to 32. Row max_running is the dummy request:
// all of it points to the dummy page. Host memory, written by the scheduler's thread only; entries
// of positions that a step in flight reads are not changed before that step ends.
typedef struct msgl_page_table {
    int32_t *slots;
    int32_t max_running, stride;
} msgl_page_table;

int msgl__page_table_create(int32_t max_running, int32_t max_seq_len, int32_t dummy_slot,
                            msgl_page_table *out, msgl_err *err);
void msgl__page_table_destroy(msgl_page_table *t);
static inline int32_t *msgl__page_table_row(const msgl_page_table *t, int32_t row)
{
    return t->slots + (size_t)row * (size_t)t->stride;
}

#endif
