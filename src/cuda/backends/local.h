// SPDX-License-Identifier: Apache-2.0
//
// Local attention by virtual requests, as SGLang's fa3 has it: each local chunk of a request that
// has new tokens in a step becomes a request of its own, whose keys begin with the chunk. A kernel
// that knows nothing of chunks then computes them (docs/internals/local-chunks.md).
#ifndef MSGL_CUDA_BACKENDS_LOCAL_H
#define MSGL_CUDA_BACKENDS_LOCAL_H

#include <stddef.h>

#include "core/batch.h"

// Virtual requests, as msgl_seqs has the real ones. Position p of one, counted from its chunk's
// start, is in slot table[table_rows[i] + p] of a table taken as one row.
typedef struct msgl_fa_local {
    int32_t size, max_seqlen_q, max_seqlen_k;
    int32_t *cu_seqlens_q, *seqlens_k, *table_rows; // [size + 1], [size], [size]
} msgl_fa_local;

// Most of them in a step of up to max_running requests and max_tokens new tokens.
int32_t msgl__fa_local_most(int32_t chunk, int32_t max_running, int32_t max_tokens);
// Bytes that the lists of up to `most` take, a multiple of 64, one behind the other.
size_t msgl__fa_local_bytes(int32_t most);
// Where the lists are in memory of that size.
void msgl__fa_local_place(char *lists, int32_t most, msgl_fa_local *out);
// Fills out (placed) with the virtual requests of seqs. An answer stays one request, so that a
// captured graph keeps its number; table_stride: of the page table, whose places fit 31 bits.
void msgl__fa_local_cut(const msgl_seqs *seqs, int32_t chunk, size_t table_stride,
                        msgl_fa_local *out);

#endif
