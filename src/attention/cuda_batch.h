// SPDX-License-Identifier: Apache-2.0
//
// A batch's metadata on its way to a GPU, for every CUDA backend: lengths and table rows, and a
// part of the backend's own behind them (a plan). Written by the scheduler's thread into pinned
// memory of the batch's staging slot; one copy takes it to device memory at fixed addresses, which
// captured graphs read too. One set on the device suffices: steps run one after the other.
#ifndef MSGL_ATTENTION_CUDA_BATCH_H
#define MSGL_ATTENTION_CUDA_BATCH_H

#include "attention/attention.h"
#include "kernel/cuda/attn.h"
#include "kernel/device.h"

typedef struct msgl_cuda_batch { // of one staging slot
    int32_t size;                // requests, padding included
    int32_t total_q, max_seqlen_q, max_seqlen_k;
    int32_t *cu_seqlens_q; // [size + 1]
    int32_t *seqlens_k;    // [size]
    int32_t *table_rows;   // [size]
    char *extra;           // [extra_bytes] of the backend, 64-byte aligned
    bool copied;           // to the device, lengths and rows
} msgl_cuda_batch;

typedef struct msgl_cuda_batches {
    msgl_attn_config cfg;
    msgl_cuda_batch *slots; // [num_slots + 1]; the last one is for captures
    char *staging, *device; // all slots; one set
    size_t set_bytes, extra_at, extra_bytes;
    int32_t graph_max_bs;
} msgl_cuda_batches;

// What holds for every CUDA backend: queries and output have the pool's dtype.
int msgl__cuda_supports(const msgl_attn_needs *needs, msgl_err *err);

// For batches of cfg, with extra_bytes of the backend's own. destroy takes half-made ones too.
int msgl__cuda_batches_create(const msgl_attn_config *cfg, const char *name, size_t extra_bytes,
                              msgl_cuda_batches *out, msgl_err *err);
void msgl__cuda_batches_destroy(msgl_cuda_batches *b);

// Lengths and rows of a batch in its slot; sets batch->attn_metadata to it. Padded: dummy requests
// of one key up to batch->padded_size.
msgl_cuda_batch *msgl__cuda_batch_fill(const msgl_cuda_batches *b, msgl_batch *batch, bool padded);
// Queues the copy of lengths and rows, with the first `extra` bytes of the backend's part.
void msgl__cuda_batch_copy(const msgl_cuda_batches *b, msgl_cuda_batch *md, size_t extra);
// Queues a copy of extra[from, from + bytes).
void msgl__cuda_batch_copy_extra(const msgl_cuda_batches *b, const msgl_cuda_batch *md, size_t from,
                                 size_t bytes);
// Where extra[at] is on the device.
static inline void *msgl__cuda_batch_extra(const msgl_cuda_batches *b, size_t at)
{
    return b->device + b->extra_at + at;
}

// One layer's attention over a batch. plan and workspace are the caller's to set.
void msgl__cuda_batch_call(const msgl_cuda_batches *b, const msgl_cuda_batch *md,
                           const msgl_attn_layer *layer, msgl_dtype act, const void *q, size_t ld,
                           void *out, msgl_cuda_attn_call *c);

// First member of every CUDA backend's struct, so that the descriptor's functions below serve all.
typedef struct msgl_cuda_backend {
    msgl_attn_backend base;
    msgl_cuda_batches batches;
} msgl_cuda_backend;

void msgl__cuda_last_indices(const msgl_attn_backend *base, const msgl_batch *batch, int32_t *out);
// The graph hooks. Capture: queues the copy of a batch of padded_size dummy requests and makes it
// batch->attn_metadata, with lengths' upper bounds as the launches of a graph need them. Replay:
// fills and queues the copy.
int msgl__cuda_init_capture(msgl_attn_backend *base, int32_t max_seq_len,
                            const int32_t *batch_sizes, int32_t num_sizes, msgl_err *err);
int msgl__cuda_prepare_for_capture(msgl_attn_backend *base, msgl_batch *batch);
int msgl__cuda_prepare_for_replay(msgl_attn_backend *base, msgl_batch *batch);

// A launcher's cudaError_t: kept as the device's fault, status becomes MSGL_EDEVICE.
void msgl__cuda_attn_result(msgl_exec *x, const char *name, int code);

#endif
