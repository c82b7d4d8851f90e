// SPDX-License-Identifier: Apache-2.0
//
// Latent attention over expanded keys, for prompts: K and V of every head are made of the latent
// vectors (attention/expand.h says in which pieces), and a score is
//     scale (q_nope . K_nope + q_rotary . k_rotary),
// with the rotary key that all heads share. Plain data, for kernels on any device.
#ifndef MSGL_KERNEL_EXPANDED_H
#define MSGL_KERNEL_EXPANDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"
#include "core/paging.h"

// The keys of a request in a pass: keys [first, first + keys) of it are rows [row0, row0 + keys) of
// the pass's arrays, and meet its query tokens from query row q_row on, the first of which is at
// position pos >= first. A query sees keys up to its own position.
typedef struct msgl_expand_req {
    int32_t row0, first, keys;
    int32_t table_row;
    int32_t q_row, tokens, pos;
} msgl_expand_req;

// Latent vectors and rotary keys out of the pool, into arrays for the product behind.
typedef struct msgl_gather_call {
    const msgl_expand_req *reqs; // [num_reqs], device, row0 ascending
    int32_t num_reqs, keys;      // of all
    int32_t rank, rotary;
    msgl_dtype dtype; // of the pool
    float scale;      // of E4M3: what is stored is multiplied by it
    const void *pool; // [slots, rank + rotary]
    // Position p of a request is place x = table_row * table_stride + p, in page table[x / page
    // size]; table_stride is a multiple of the page size.
    const int32_t *table;
    size_t table_stride;
    msgl_paging paging;
    void *latent, *rotary_keys; // [keys, rank], [keys, rotary] of exec->act
} msgl_gather_call;

typedef struct msgl_expanded_call {
    const msgl_expand_req *reqs; // [num_reqs], device
    int32_t num_reqs, keys;
    int32_t heads, nope, rotary, v_dim;
    float scale;             // > 0
    const void *q;           // [tokens, heads, nope + rotary], token stride ld_q elements
    size_t ld_q;             //
    int32_t tokens;          // rows of q that there are
    const void *kv;          // [keys, heads, nope + v_dim]: of each head its K, then its V
    const void *rotary_keys; // [keys, rotary]
    void *out;               // [tokens, heads, v_dim], dense
    float *lse;              // [tokens, heads] natural logarithm
    // The pass's only request has results over earlier keys in out and lse: those of these keys are
    // merged into them. partial_out, partial_lse: room, shaped like these.
    bool merges;
    void *partial_out;
    float *partial_lse;
    void *plan; // of the GPU's kernel; else not read
} msgl_expanded_call;

#endif
