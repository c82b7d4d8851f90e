// SPDX-License-Identifier: Apache-2.0
//
// Inside the attn family: what an ISA level implements (one tile of keys for a block of packed
// query rows) and the driver in attn_paged.c expects.
#ifndef MSGL_KERNEL_ATTN_INTERNAL_H
#define MSGL_KERNEL_ATTN_INTERNAL_H

#include <stdbool.h>

#include "kernel/attn.h"
#include "kernel/row_ops.h"

// Rows of an item, before a tile is chosen.
typedef struct msgl__attn_query {
    const msgl_attn_call *call;
    const msgl_attn_work *work;
    int kv_head, heads; // first KV head, and how many
    const float *q;     // token 0 of the request, first query head of the first KV head
} msgl__attn_query;

// Rows of the pool that this thread reads soon: those in slots [begin, end) of the array, `bytes`
// of each, those of one KV head.
typedef struct msgl__attn_soon {
    const char *base;
    const int *slots;
    size_t slot_bytes;
    int begin, end, bytes;
} msgl__attn_soon;

// The keys of one tile that may be read: offsets [begin, end) into the tile. The others are masked
// for every row of the item.
typedef struct msgl__attn_keys {
    const char *k, *v;               // the first KV head in slot 0
    int heads;                       // KV heads beside each other
    size_t slot_bytes, v_slot_bytes; // from slot to slot, of K and of V
    const int *slots;                // [MSGL_ATTN_TILE], valid in [begin, end)
    int begin, end;
    int head_dim, v_dim;
    float scale, softcap;
    // What comes behind this tile, to be fetched into the L2 cache meanwhile: K and V of the item's
    // next tile, or of its first tile in the next KV head. held: this tile is in the caches.
    msgl__attn_soon next_k, next_v;
    bool held;
    int prefetched; // keys of this tile that next_k of the last one offered
} msgl__attn_keys;

// A block of rows against a tile: row i sees offsets [lo[i], hi[i]) of the tile, within [begin,
// end) of the keys or empty. o is [n, padded dim]. With several heads each has the same rows, and
// results of head h start at row h * stride.
typedef struct msgl__attn_block {
    int row, n;
    const int *lo, *hi;
    float *m, *l, *o;
    int stride;
} msgl__attn_block;

typedef struct msgl__attn_ops {
    int block;                       // most rows of one tile() call
    bool many_heads;                 // takes several heads of an item of up to FEW_ROWS rows
    size_t (*scratch)(int head_dim); // bytes that the functions below share per thread
    void (*load_q)(const msgl__attn_query *q, void *scratch);
    void (*load_keys)(const msgl__attn_keys *keys, int rows, void *scratch);
    // Fills b->m, l, o: buffers in scratch that the function chooses, valid until the next call.
    void (*tile)(const msgl__attn_keys *keys, msgl__attn_block *b, void *scratch);
    // Folds (m, l, o) of n rows into (M, L, O): see attn.h. Rows of o and O are
    // msgl__attn_padded_dim columns apart, in an order of columns that the level is free to choose.
    void (*fold)(int n, int padded_dim, float *M, float *L, float *O, const float *m,
                 const float *l, const float *o);
    // out[d] = f * column d of o, d < v_dim; undoes the level's order of columns.
    void (*write)(int v_dim, const float *o, float f, float *out);
} msgl__attn_ops;

// Row `row` of the item, of KV head kv_head + head.
static inline const float *msgl__attn_q_row(const msgl__attn_query *q, int head, int row)
{
    const int group = q->call->num_q_heads / q->call->num_kv_heads;
    const int r = q->work->row + row;
    return q->q + (size_t)(r / group) * q->call->ld_q +
           (size_t)(head * group + r % group) * (size_t)q->call->head_dim;
}

// attn_paged.c: the same at every level.
void msgl__attn_paged(const msgl_attn_kernels *k, msgl_exec *x, const msgl_attn_call *c);
size_t msgl__attn_scratch_size(const msgl_attn_kernels *k, msgl_dtype dtype, int head_dim,
                               bool latent);

// ref/attn_expanded.c: the same at every level.
void msgl__attn_gather_ref(msgl_exec *x, const msgl_gather_call *c);
void msgl__attn_expanded_ref(msgl_exec *x, const msgl_expanded_call *c);

#endif
