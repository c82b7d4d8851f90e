// SPDX-License-Identifier: Apache-2.0
//
// Groups of NCCL whose other processes are not the engine's ranks: a trainer's, which broadcasts
// weights. They have a stream of their own.
#include <pthread.h>

#include "core/mem.h"
#include "cuda/ranks/comm.h"

typedef struct group {
    int ordinal;
    msgl_nccl *nccl;
    cudaStream_t stream;
} group;

// The library is opened once a process; groups have a thread each.
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static int open_nccl(const char *path, msgl_err *err)
{
    pthread_mutex_lock(&opening);
    const bool ok = msgl__nccl_open(path, err);
    pthread_mutex_unlock(&opening);
    return ok ? 0 : err->code;
}

static int failed(const char *what, cudaError_t code, msgl_err *err)
{
    (void)cudaGetLastError();
    return msgl__err_set(err, code == cudaErrorMemoryAllocation ? MSGL_ENOMEM : MSGL_EDEVICE,
                         "a group's %s: %s", what, cudaGetErrorString(code));
}

static void leave(void *joined)
{
    group *g = joined;
    (void)cudaSetDevice(g->ordinal);
    if (g->nccl != NULL) msgl__nccl_destroy(g->nccl);
    if (g->stream != NULL) (void)cudaStreamDestroy(g->stream);
    msgl__free(g);
}

static int join(int ordinal, const char id[MSGL_GROUP_ID_BYTES], int rank, int size,
                const char *nccl, void **out, msgl_err *err)
{
    group *g = msgl__calloc(1, sizeof *g);
    if (g == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory for a group");
    g->ordinal = ordinal;
    cudaError_t code = cudaSetDevice(ordinal);
    if (code == cudaSuccess) {
        code = cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking);
    }
    int rc = code == cudaSuccess ? 0 : failed("stream", code, err);
    if (rc == 0) rc = open_nccl(nccl, err);
    if (rc == 0) rc = msgl__nccl_create(id, rank, size, &g->nccl, err);
    if (rc != 0) {
        leave(g);
        return rc;
    }
    *out = g;
    return 0;
}

static int receive(void *joined, msgl_dtype dtype, size_t count, void *host, msgl_err *err)
{
    group *g = joined;
    const size_t bytes = count * msgl__dtype_size(dtype);
    void *buf = NULL;
    cudaError_t code = cudaMalloc(&buf, bytes);
    if (code != cudaSuccess) return failed("memory for a tensor", code, err);
    const char *wrong = msgl__nccl_broadcast(g->nccl, dtype, buf, count, g->stream);
    if (wrong == NULL) {
        code = cudaMemcpyAsync(host, buf, bytes, cudaMemcpyDeviceToHost, g->stream);
        if (code == cudaSuccess) code = cudaStreamSynchronize(g->stream);
    }
    (void)cudaFree(buf);
    if (wrong != NULL) return msgl__err_set(err, MSGL_EDEVICE, "NCCL: %.200s", wrong);
    return code == cudaSuccess ? 0 : failed("broadcast", code, err);
}

const msgl_group_ops msgl__cuda_groups = {.join = join, .receive = receive, .leave = leave};
