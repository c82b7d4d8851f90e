// SPDX-License-Identifier: Apache-2.0
//
// Attention by its steps, of one request and a block of its tokens at a time (backend
// torch_native): K and V gathered into rows, a product, a softmax, another product. All pointers
// are device memory, 16-byte aligned; strides are in elements unless they say bytes. The launchers
// only queue work; but for the product they return a cudaError_t as int.
#ifndef MSGL_CUDA_ATTN_NATIVE_H
#define MSGL_CUDA_ATTN_NATIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "core/dtype.h"
#include "core/paging.h"
#include "kernel/exec.h"

// Columns of scores begin and end at positions that are multiples of it: rows stay aligned, few
// shapes of products occur, and a sum over keys is cut at the same places in every block.
enum { MSGL_NATIVE_KEYS = 128 };

// Rows [first, end) of to_k and to_v from the layer's pool, zeros in all others: they meet
// probabilities of 0, and 0 times what another request has there could be NaN.
typedef struct msgl_native_gather {
    msgl_dtype dtype;     // of the rows
    bool e4m3;            // the pool's elements are E4M3, dtype is bf16
    int32_t width;        // elements of a row, num_kv_heads * head_dim, a multiple of 8
    const void *k, *v;    // [num_slots, width]; v NULL: a latent cache
    const int32_t *table; // pages; row i is place `place` + i of it, and [first, end) are read
    msgl_paging paging;
    int32_t place;
    int32_t first, end, rows;
    void *to_k, *to_v; // [rows, width]
} msgl_native_gather;

// to[h][t] = from[h][t]: runs of `bytes` bytes, all strides in bytes and multiples of 16.
typedef struct msgl_native_copy {
    const void *from;
    void *to;
    size_t from_head, from_token, to_head, to_token;
    int32_t heads, tokens, bytes;
} msgl_native_copy;

// Probabilities of a block of queries, 0 where a key is not seen. Rows are (token, query head of
// the KV head); column i is the key at position first_key + i.
typedef struct msgl_native_softmax {
    const float *scores; // [num_kv_heads, tokens * group, keys], with the scale
    void *p;             // the same of dtype; f32: may be scores
    msgl_dtype dtype;
    int32_t num_kv_heads, group, tokens;
    int32_t keys, first_key; // multiples of MSGL_NATIVE_KEYS
    int32_t first_pos;       // of the first token
    int32_t window, chunk;   // as in msgl_attn_layer
    float softcap;           // the same
    const float *sinks;      // [num_kv_heads * group] or NULL
} msgl_native_softmax;

// out[h] = scale a[h] b[h] of every head h, sums in f32: a [m, k], b [k, n], or [n, k] transposed.
// What length a request has is n where b is transposed, else k.
typedef struct msgl_native_product {
    msgl_dtype in_type, out_type; // of a and b; of out
    bool transposed;
    int32_t heads, m, n, k;
    const void *a, *b;
    void *out;
    size_t ld_a, ld_b, ld_out, head_a, head_b, head_out; // of rows, and from head to head
    float scale;
} msgl_native_product;

int msgl__cuda_native_gather(const msgl_native_gather *g, void *stream);
int msgl__cuda_native_copy(const msgl_native_copy *c, void *stream);
int msgl__cuda_native_softmax(const msgl_native_softmax *s, void *stream);
// By cuBLASLt (gemm/batched.cu), by an algorithm that the call's own shape decides; deterministic:
// one for every m and every length. Failures go to x->status.
void msgl__cuda_native_product(msgl_exec *x, const msgl_native_product *p);

#ifdef __cplusplus
}
#endif

#endif
