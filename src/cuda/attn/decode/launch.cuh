// SPDX-License-Identifier: Apache-2.0
//
// Instantiation of the decode kernel for one dtype (msgl_decode_types): included by one .cu file
// per dtype.
#ifndef MSGL_CUDA_ATTN_DECODE_LAUNCH_CUH
#define MSGL_CUDA_ATTN_DECODE_LAUNCH_CUH

#include <cuda_runtime.h>

#include "cuda/attn/decode.h"
#include "cuda/attn/decode/kernel.cuh"

// What a launch may use. large: the GPU has the shared memory of MSGL_DECODE_LARGE's architectures.
// ctas: at most so many CTAs; 0: as many as run at once.
struct msgl_decode_gpu {
    int sms, ctas;
    bool large;
    cudaStream_t stream;
};

cudaError_t msgl__fa_decode_bf16(const msgl_decode_args *a, int head_dim, const msgl_decode_gpu *g);
cudaError_t msgl__fa_decode_f16(const msgl_decode_args *a, int head_dim, const msgl_decode_gpu *g);
cudaError_t msgl__fa_decode_e4m3(const msgl_decode_args *a, int head_dim, const msgl_decode_gpu *g);

// The kernel for few requests (few.cuh). false: this call is not for it.
bool msgl__fa_decode_few(const msgl_decode_args *a, msgl_dtype dtype, int head_dim,
                         const msgl_decode_gpu *g, cudaError_t *e);

template <typename T, int HD, int ROWS, bool LARGE, bool PAIR, bool ROPE, bool DET>
static cudaError_t msgl_decode_launch(const msgl_decode_args &a, const msgl_decode_gpu &g)
{
    typedef msgl_decode_shape<HD, ROWS, LARGE, PAIR, ROPE, msgl_decode_types<T>::BYTES> S;
    constexpr auto kernel = msgl_decode_kernel<T, HD, ROWS, LARGE, PAIR, ROPE, DET>;
    const cudaError_t e = msgl__allow_shared<kernel>(S::BYTES, true);
    if (e != cudaSuccess) return e;
    int ctas = g.ctas > 0 ? g.ctas : g.sms * S::CTAS;
    if (ctas > MSGL_FA_MAX_CTAS) ctas = MSGL_FA_MAX_CTAS;
    return msgl__launch(kernel, ctas, S::THREADS, S::BYTES, g.stream, a);
}

// A row's bits depend on the shape's warps, so deterministic the batch does not choose it.
template <typename T, int HD, int ROWS, bool LARGE>
static cudaError_t msgl_decode_launch_shape(const msgl_decode_args &a, const msgl_decode_gpu &g)
{
    const bool has_pair = MSGL_DECODE_HAS_PAIR(HD, ROWS, LARGE);
    if (a.deterministic) return msgl_decode_launch<T, HD, ROWS, LARGE, has_pair, true, true>(a, g);
    if (has_pair && a.split.batch * a.split.heads > g.sms) {
        return msgl_decode_launch<T, HD, ROWS, LARGE, has_pair, true, false>(a, g);
    }
    return a.rope.on ? msgl_decode_launch<T, HD, ROWS, LARGE, false, true, false>(a, g)
                     : msgl_decode_launch<T, HD, ROWS, LARGE, false, false, false>(a, g);
}

template <typename T, int HD, bool LARGE>
static cudaError_t msgl_decode_launch_rows(const msgl_decode_args &a, const msgl_decode_gpu &g)
{
    return a.rows <= 8 ? msgl_decode_launch_shape<T, HD, 8, LARGE>(a, g)
                       : msgl_decode_launch_shape<T, HD, 16, LARGE>(a, g);
}

template <typename T, int HD>
static cudaError_t msgl_decode_launch_fit(const msgl_decode_args &a, const msgl_decode_gpu &g)
{
    return g.large ? msgl_decode_launch_rows<T, HD, true>(a, g)
                   : msgl_decode_launch_rows<T, HD, false>(a, g);
}

template <typename T>
static cudaError_t msgl_decode_launch_dim(const msgl_decode_args &a, int head_dim,
                                          const msgl_decode_gpu &g)
{
    switch (head_dim) {
    case 64: return msgl_decode_launch_fit<T, 64>(a, g);
    case 96: return msgl_decode_launch_fit<T, 96>(a, g);
    case 128: return msgl_decode_launch_fit<T, 128>(a, g);
    case 256: return msgl_decode_launch_fit<T, 256>(a, g);
    }
    return cudaErrorInvalidValue;
}

#endif
