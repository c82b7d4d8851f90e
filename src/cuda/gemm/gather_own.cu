// SPDX-License-Identifier: Apache-2.0
//
// Rows that an adapter has of the embedding in the place of the model's: those of its ids are
// written over, all others stay.
#include "cuda/device.cuh"
#include "cuda/gemm/gemm.h"
#include "cuda/launch.cuh"
#include "cuda/ops/vec8.cuh"

enum { THREADS = 128 };

// A block per row. It never triggers: the layers behind it may read what the step's first kernels
// wrote (the page table) without waiting for those themselves, as behind gemm/pack.cu's.
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    own_rows(const T *w, int first, int n, const int32_t *ids, int k, T *out)
{
    msgl__pdl_wait();
    const int row = ids[blockIdx.x] - first;
    if (row < 0 || row >= n) return;
    const T *from = w + (size_t)row * (size_t)k;
    T *to = out + (size_t)blockIdx.x * (size_t)k;
    for (int i = (int)threadIdx.x; i < k; i += THREADS) to[i] = from[i];
}

template <typename T>
static void launch(msgl_exec *x, const msgl_weight *w, const int32_t *ids, int rows, void *out)
{
    MSGL_CUDA_TRY(x, msgl__launch(own_rows<T>, dim3((unsigned)rows), dim3(THREADS), 0,
                                  msgl__cuda_stream(x), (const T *)w->data, w->first, w->n, ids,
                                  w->k, (T *)out));
}

void msgl__cuda_gather_own(msgl_exec *x, const msgl_weight *w, const int32_t *ids, int rows,
                           void *out)
{
    if (rows <= 0 || x->status != 0) return;
    if (!msgl__weight_is(w, x->act)) {
        x->status = MSGL_EUNSUPPORTED;
        return;
    }
    MSGL_BY_DTYPE(x->act, launch, x, w, ids, rows, out);
}
