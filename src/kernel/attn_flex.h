// SPDX-License-Identifier: Apache-2.0
//
// Attention by mask and score functions (attn_mods.h) over block masks. The queries of a request
// and its keys are cut into blocks of MSGL_FLEX_BLOCK; a block of queries has the list of the
// blocks of keys that it sees anything of, each marked `partial` unless every one of its queries
// sees every key. The lists are made once a step, and what is not in them costs nothing.
#ifndef MSGL_KERNEL_ATTN_FLEX_H
#define MSGL_KERNEL_ATTN_FLEX_H

#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"
#include "kernel/attn_mods.h"
#include "kernel/exec.h"

#define MSGL_FLEX_BLOCK 128
#define MSGL_FLEX_MAX_GROUP 256 // query heads per KV head, on the CPU

// Queries [token, token + MSGL_FLEX_BLOCK) of request req, as far as it has so many.
typedef struct msgl_flex_place {
    int32_t req, token;
} msgl_flex_place;

// One layer's attention of a batch on the CPU. Per request as in msgl_seqs.
typedef struct msgl_flex_call {
    msgl_dtype dtype;
    int32_t num_q_heads, num_kv_heads, head_dim;
    const void *k, *v; // [slots, num_kv_heads, head_dim]
    const float *q;    // [tokens, num_q_heads, head_dim]
    size_t ld_q;       // elements from token to token, here and in out
    float *out;
    size_t ld_out;
    float scale;
    msgl_attn_mods mods;
    const int32_t *cu_seqlens_q, *seqlens_k, *table_rows;
    const uint64_t *tree;
    const int32_t *pages; // key p of table row r: page pages[r * pages_ld + p / page_size]
    size_t pages_ld;
    int32_t page_size;
    // The block mask: list i is of block places[i], [lists_ld]: how many entries, then 2 * block of
    // keys + partial, ascending.
    int32_t num_places;
    const msgl_flex_place *places;
    int32_t *lists;
    size_t lists_ld; // > the most blocks of keys of a request
    char *scratch;   // [threads, scratch_stride], 64-byte aligned
    size_t scratch_stride;
} msgl_flex_call;

// Bytes of scratch for each thread, a multiple of 64.
size_t msgl__flex_scratch_size(int32_t head_dim);
// Makes the lists; of c it reads the requests, the mods and the places.
void msgl__flex_make_lists(msgl_exec *x, const msgl_flex_call *c);
// f32 throughout. A row that sees nothing gets zeros.
void msgl__flex_attend(msgl_exec *x, const msgl_flex_call *c);

#endif
