// SPDX-License-Identifier: Apache-2.0
//
// What ranks on GPUs send their messages by: kernels over peer memory (peer.cu), and NCCL (nccl.c).
#ifndef MSGL_CUDA_RANKS_COMM_H
#define MSGL_CUDA_RANKS_COMM_H

#include <cuda_runtime.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "core/dtype.h"
#include "core/err.h"
#include "cuda/peer_sum.h"
#include "cuda/ranks/ranks.h"
#include "distributed/communicator.h"
#include "kernel/calls.h"

// --- peer.cu: kernels over peer memory ---------------------------------------------------------

enum {
    MSGL_PEER_RANKS = 8,     // at most
    MSGL_PEER_BLOCKS = 4096, // of a kernel whose blocks say something to each other, at most
};

// What lies in the memory that a rank shows to the others.
typedef struct msgl_peer_shared {
    // arrived[rank][block]: the call that this block of the rank has written its data for.
    uint32_t arrived[MSGL_PEER_RANKS][MSGL_PEER_BLOCKS];
    // The second time within a call.
    uint32_t reduced[MSGL_PEER_RANKS][MSGL_PEER_BLOCKS];
    uint32_t epoch;  // calls done but for sums in one shot; the rank's own
    uint32_t pushed; // sums in one shot done; the rank's own
    uint32_t ticket; // blocks of the current call that are done; the rank's own
    uint32_t unused[61];
    // Behind it: MSGL_PEER_SLOTS slots that the rank writes and the others read, then as many that
    // the others write and it reads.
} msgl_peer_shared;

#define MSGL_PEER_PUSHED (sizeof(msgl_peer_shared) + MSGL_PEER_SLOTS * MSGL_PEER_SLOT_BYTES)
#define MSGL_PEER_BYTES (MSGL_PEER_PUSHED + MSGL_PEER_SLOTS * MSGL_PEER_SLOT_BYTES)

typedef struct msgl_peers {
    int rank, size;
    msgl_peer_shared *of[MSGL_PEER_RANKS]; // everybody's, as this rank's GPU sees it
    const volatile uint32_t *over; // pinned host memory: not 0 when nobody need be waited for
} msgl_peers;

// memory [MSGL_PEER_BYTES] as it has to be before the first call, in which others write to it.
cudaError_t msgl__peer_prepare(msgl_peer_shared *memory, cudaStream_t stream);

// out[r, i] = sum over ranks of in[r, i], rounded to dtype, for a matrix of at most
// MSGL_PEER_SLOT_BYTES; in may be out. With residual (of the same dtype): residual += scale * that
// sum instead, and with `scaled` the msgl_norm_stats of the result (kernel/calls.h).
typedef struct msgl_peer_reduce {
    msgl_dtype dtype;
    const void *in;
    void *out; // NULL with residual
    void *residual;
    float scale;
    size_t rows, dim; // dense; without residual 1 and the number of elements
    const float *next_norm;
    void *scaled; // NULL: no norm_stats are left
    float *sums;  // [msgl__peer_norm_stats_tiles(dim), rows]
} msgl_peer_reduce;

// Of a reduction with residual, at once.
size_t msgl__peer_most_rows(msgl_dtype dtype, size_t dim);
int msgl__peer_norm_stats_tiles(size_t dim);
cudaError_t msgl__peer_reduce(const msgl_peers *p, const msgl_peer_reduce *c, cudaStream_t stream);
// out + r * stride = rank r's in [n], n * 4 <= MSGL_PEER_SLOT_BYTES.
cudaError_t msgl__peer_gather(const msgl_peers *p, const float *in, size_t n, size_t stride,
                              float *out, cudaStream_t stream);

// --- nccl.c ------------------------------------------------------------------------------------

typedef struct msgl_nccl msgl_nccl;

#define MSGL_NCCL_ID_BYTES 128

// Opens the library, once a process; NULL: not there, and why. `path` as in msgl_device_ranks.
bool msgl__nccl_open(const char *path, msgl_err *err);
int msgl__nccl_id(void *id, msgl_err *err); // [MSGL_NCCL_ID_BYTES] by rank 0, for all
// Blocks until all ranks are there.
int msgl__nccl_create(const void *id, int rank, int size, msgl_nccl **out, msgl_err *err);
// On the stream; NULL, or what went wrong.
const char *msgl__nccl_all_reduce(msgl_nccl *n, msgl_dtype dtype, void *buf, size_t count,
                                  cudaStream_t stream);
const char *msgl__nccl_all_gather(msgl_nccl *n, const float *in, size_t count, float *out,
                                  cudaStream_t stream);
// buf becomes rank 0's.
const char *msgl__nccl_broadcast(msgl_nccl *n, msgl_dtype dtype, void *buf, size_t count,
                                 cudaStream_t stream);
// From any thread: calls in flight end. Returns when no graph has calls of n any more.
void msgl__nccl_abort(msgl_nccl *n);
void msgl__nccl_destroy(msgl_nccl *n); // behind the last call, and the end of all graphs with some
const char *msgl__nccl_version(void);  // "2.28.9"

#ifdef __cplusplus
}
#endif

#endif
