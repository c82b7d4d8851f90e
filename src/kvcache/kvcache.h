// SPDX-License-Identifier: Apache-2.0
//
// The pools (memory of a group of layers each), the page table (which page holds which tokens) and
// the page allocator with its prefix cache (who may use which page). Slot numbers count tokens:
// slot s is entry s % page_size of page s / page_size. The last page, `num_pages`, is the dummy
// page of padding requests.
#ifndef MSGL_KVCACHE_KVCACHE_H
#define MSGL_KVCACHE_KVCACHE_H

#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"
#include "core/err.h"
#include "core/paging.h"
#include "kernel/calls.h"
#include "kvcache/layout.h"

// The memory of one group of layers (layout.h).
//
// KV: K of all layers, [num_layers, num_pages + 1, page_size, num_heads, k_dim], then V with v_dim,
// then labels with label_dim.
// LATENT: the same without V, as V lies in K; INDEX: the same without V.
// STATE: [max_running + 1 + num_checkpoints, num_layers, state_bytes]: live states by row of the
// page table, the dummy request's the last of them, then checkpoints. A state of all layers is one
// piece, so that one copy makes a checkpoint of it.
typedef struct msgl_kv_pool {
    msgl_cache_spec spec;
    int32_t num_pages, page_size;         // KV, LATENT
    int32_t max_running, num_checkpoints; // STATE; those for drafts are the last of them
    void *base;                           // device memory
    size_t bytes;                         // of base
} msgl_kv_pool;

// Bytes that a pool of these dimensions takes (dummies included); 0 on overflow.
size_t msgl__kv_pool_bytes(const msgl_kv_pool *dims);
// Elements of K from one slot to the next.
static inline size_t msgl__kv_slot_stride(const msgl_kv_pool *p)
{
    return (size_t)p->spec.num_heads * (size_t)p->spec.k_dim;
}
// K, V (kv 1) or labels (kv 2) of the group's layer `layer`: [slots, num_heads, k_dim, v_dim or
// label_dim]. LATENT has K.
static inline void *msgl__kv_layer(const msgl_kv_pool *p, int kv, int layer)
{
    const size_t slots = ((size_t)p->num_pages + 1) * (size_t)p->page_size;
    const size_t heads = slots * (size_t)p->spec.num_heads, layers = (size_t)p->spec.num_layers;
    const size_t dims[] = {(size_t)p->spec.k_dim, (size_t)p->spec.v_dim, (size_t)p->spec.label_dim};
    size_t elements = (size_t)layer * heads * dims[kv];
    for (int i = 0; i < kv; i++) elements += layers * heads * dims[i];
    return (char *)p->base + elements * msgl__dtype_size(p->spec.dtype);
}
static inline void *msgl__kv_k(const msgl_kv_pool *p, int layer)
{
    return msgl__kv_layer(p, 0, layer);
}
static inline void *msgl__kv_v(const msgl_kv_pool *p, int layer)
{
    return msgl__kv_layer(p, p->spec.kind == MSGL_CACHE_LATENT ? 0 : 1, layer);
}
static inline void *msgl__kv_labels(const msgl_kv_pool *p, int layer)
{
    return msgl__kv_layer(p, 2, layer);
}
// KV, LATENT: the memory that a move of tokens' K and V works on: all of *c but the requests'
// moves.
void msgl__kv_pool_moved(const msgl_kv_pool *p, msgl_kv_move_call *c);
// STATE: the state of a row of the page table, and a checkpoint, in the group's layer `layer`.
static inline void *msgl__state_of_row(const msgl_kv_pool *p, int32_t row, int layer)
{
    const size_t at = (size_t)row * (size_t)p->spec.num_layers + (size_t)layer;
    return (char *)p->base + at * p->spec.state_bytes;
}
static inline void *msgl__state_checkpoint(const msgl_kv_pool *p, int32_t checkpoint, int layer)
{
    return msgl__state_of_row(p, p->max_running + 1 + checkpoint, layer);
}

// int32 [max_running + 1, stride]: row r, column c is the page that has tokens [c * page_size, (c +
// 1)
// * page_size) of the request in row r, so that token p is in slot row[p / page_size] * page_size +
// p % page_size (core/paging.h). stride = ceil(max_seq_len / page_size). Row max_running is the
// dummy request: all of it is the dummy page. Host memory, written by the scheduler's thread only;
// entries of positions that a step in flight reads are not changed before that step ends.
typedef struct msgl_page_table {
    int32_t *pages;
    int32_t max_running, stride;
    msgl_paging paging; // its size is the page size
} msgl_page_table;

int msgl__page_table_create(int32_t max_running, int32_t max_seq_len, int32_t page_size,
                            int32_t dummy_page, msgl_page_table *out, msgl_err *err);
void msgl__page_table_destroy(msgl_page_table *t);
static inline int32_t *msgl__page_table_row(const msgl_page_table *t, int32_t row)
{
    return t->pages + (size_t)row * (size_t)t->stride;
}
// How many entries of a row tokens [from, to) are in, as far as rows go, and the first of them.
static inline int32_t msgl__page_table_span(const msgl_page_table *t, int32_t from, int32_t to,
                                            int32_t *first)
{
    const int32_t end = to > 0 ? (to - 1) / t->paging.size + 1 : 0;
    *first = from / t->paging.size;
    if (*first > t->stride) *first = t->stride;
    const int32_t n = (end < t->stride ? end : t->stride) - *first;
    return to > from && n > 0 ? n : 0;
}
// The slot of token `position` of a row.
static inline int32_t msgl__page_table_slot(const msgl_page_table *t, int32_t row, int32_t position)
{
    return msgl__paging_slot(t->paging, msgl__page_table_row(t, row), position);
}
// The slots of tokens [first, first + n) of a row.
static inline void msgl__page_table_slots(const msgl_page_table *t, int32_t row, int32_t first,
                                          int32_t n, int32_t *slots)
{
    msgl__paging_slots(t->paging.size, msgl__page_table_row(t, row), first, n, slots);
}

#endif
