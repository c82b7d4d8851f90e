// SPDX-License-Identifier: Apache-2.0
#include "cuda/attn/sink.h"

#include "cuda/attn/sink.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/vec8.cuh"

enum { THREADS = 256 };

// Eight elements a thread: bytes are the limit.
template <typename T>
static __global__ void __launch_bounds__(THREADS) scale_rows(const msgl_sink_call c, int64_t eights)
{
    const int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x;
    const int32_t per_row = c.head_dim / 8;
    msgl__pdl_wait();
    msgl__pdl_trigger();
    if (i >= eights) return;
    const int64_t row = i / per_row;
    const float z = msgl__attn_sink(c.sinks[row % c.num_q_heads], c.lse[row]);
    const float factor = msgl__rcp(1.f + z); // 0 where a row has no key: z is infinite
    float v[8];
    load8((const T *)c.out + i * 8, v);
#pragma unroll
    for (float &x : v) x *= factor;
    store8((T *)c.out + i * 8, v);
}

template <typename T> static cudaError_t launch(const msgl_sink_call *c, cudaStream_t stream)
{
    const int64_t eights = (int64_t)c->tokens * c->num_q_heads * (c->head_dim / 8);
    if (eights == 0) return cudaSuccess;
    return msgl__launch(scale_rows<T>, dim3((unsigned)((eights + THREADS - 1) / THREADS)),
                        dim3(THREADS), 0, stream, *c, eights);
}

extern "C" int msgl__cuda_sink(const msgl_sink_call *c, void *stream)
{
    if (c->head_dim % 8 != 0) return cudaErrorNotSupported;
    if (c->dtype == MSGL_BF16) return launch<__nv_bfloat16>(c, (cudaStream_t)stream);
    if (c->dtype == MSGL_F16) return launch<__half>(c, (cudaStream_t)stream);
    return cudaErrorNotSupported;
}
