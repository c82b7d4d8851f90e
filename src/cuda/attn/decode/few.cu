// SPDX-License-Identifier: Apache-2.0
//
// Launch and instantiation of the decode kernel for few requests.
#include "cuda/attn/decode/few.cuh"

#include "cuda/attn/decode/launch.cuh"

// CTAs per (request, KV head). 1: these are too many, or not of a kind that there is a kernel for.
static int cluster_of(const msgl_decode_args &a, int head_dim, const msgl_decode_gpu &g)
{
    const int most = g.ctas > 0 ? g.ctas : g.sms, items = a.split.batch * a.split.heads;
    const bool fits =
        g.large && !a.deterministic && head_dim <= 128 && a.row_blocks == 1 && a.rows <= 8;
    int ctas = 1;
    while (fits && ctas < MSGL_FEW_MAX_CLUSTER && items * ctas * 2 <= most) ctas *= 2;
    return ctas;
}

template <typename T, int HD>
static cudaError_t launch(const msgl_decode_args &a, int ctas, cudaStream_t stream)
{
    typedef msgl_few_shape<HD> S;
    constexpr auto kernel = msgl_decode_few_kernel<T, HD>;
    const cudaError_t e = msgl__allow_shared<kernel>(S::BYTES, true);
    if (e != cudaSuccess) return e;
    const dim3 cluster((unsigned)ctas), grid((unsigned)(a.split.batch * a.split.heads * ctas));
    return msgl__launch_clusters(kernel, cluster, grid, dim3(S::THREADS), S::BYTES, stream, a);
}

template <typename T>
static cudaError_t launch_dim(const msgl_decode_args &a, int head_dim, int ctas, cudaStream_t s)
{
    return head_dim == 64   ? launch<T, 64>(a, ctas, s)
           : head_dim == 96 ? launch<T, 96>(a, ctas, s)
                            : launch<T, 128>(a, ctas, s);
}

bool msgl__fa_decode_few(const msgl_decode_args *a, msgl_dtype dtype, int head_dim,
                         const msgl_decode_gpu *g, cudaError_t *e)
{
    const int ctas = cluster_of(*a, head_dim, *g);
    if (ctas == 1) return false;
    *e = dtype == MSGL_BF16 ? launch_dim<__nv_bfloat16>(*a, head_dim, ctas, g->stream)
                            : launch_dim<__half>(*a, head_dim, ctas, g->stream);
    return true;
}
