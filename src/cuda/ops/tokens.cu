// SPDX-License-Identifier: Apache-2.0
//
// Pieces of the device's table: token ids out of the token pool, where a sampled token reaches the
// next step without the host, and random weights.
#include "cuda/device_api.h"
#include "cuda/launch.cuh"
#include "cuda/ops/philox.cuh"
#include "cuda/ops/vec8.cuh"

static __global__ void gather_kernel(const int32_t *pool, const int32_t *index, int32_t n,
                                     int32_t *out, size_t stride)
{
    msgl__pdl_trigger();
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    msgl__pdl_wait();
    if (i < n) out[(size_t)i * stride] = pool[index[i]];
}

static __global__ void map_kernel(int32_t *pool, const int32_t *index, int n, const int32_t *ids,
                                  int num_ids)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    msgl__pdl_wait();
    if (i >= n) return;
    const int32_t place = index[i], token = pool[place];
    if (token >= 0 && token < num_ids) pool[place] = ids[token];
}

// No early trigger, and a fence: kernels behind read the table before they wait (launch.cuh).
static __global__ void take_kernel(const __grid_constant__ msgl_step_tokens s, int32_t *ids)
{
    const int t = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    msgl__pdl_wait();
    if (t >= s.count) return;
    const int32_t place = s.index[t];
    ids[t] = s.pool[place + s.shift];
    msgl__step_put(&s, t, place);
    __threadfence();
}

// Two independent normal values from two random words (Box and Muller 1958).
static __device__ __forceinline__ float2 normal2(uint32_t a, uint32_t b)
{
    const float u = (float)a * 0x1p-32f + 0x1p-33f; // in (0, 1]
    const float radius = sqrtf(-2.0f * __logf(u));
    float s, c;
    __sincosf((float)b * (0x1p-32f * 6.2831853f), &s, &c);
    return make_float2(radius * c, radius * s);
}

// Elements [8 g, 8 g + 8) come from counters 2 g and 2 g + 1.
template <typename T>
static __global__ void fill_kernel(T *p, size_t n, uint64_t seed, float deviation)
{
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t g = (size_t)blockIdx.x * blockDim.x + threadIdx.x; g * 8 < n; g += step) {
        float v[8];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const size_t counter = 2 * g + (size_t)i;
            const uint4 w = philox(seed, (uint32_t)counter, (uint32_t)(counter >> 32), 0, 0);
            const float2 a = normal2(w.x, w.y), b = normal2(w.z, w.w);
            v[4 * i] = a.x * deviation, v[4 * i + 1] = a.y * deviation;
            v[4 * i + 2] = b.x * deviation, v[4 * i + 3] = b.y * deviation;
        }
        if (g * 8 + 8 <= n) {
            store8(p + g * 8, v);
        } else {
            for (int i = 0; g * 8 + (size_t)i < n; i++) p[g * 8 + (size_t)i] = from_f32<T>(v[i]);
        }
    }
}

template <typename T>
static void fill(cudaStream_t stream, void *p, size_t n, uint64_t seed, float deviation)
{
    const size_t blocks = (n + 2047) / 2048;
    msgl__launch_in_order(fill_kernel<T>, dim3((unsigned)(blocks < 8192 ? blocks : 8192)),
                          dim3(256), 0, stream, (T *)p, n, seed, deviation);
}

extern "C" void msgl__cuda_gather_tokens(cudaStream_t stream, const int32_t *pool,
                                         const int32_t *index, int32_t n, int32_t *out,
                                         size_t stride)
{
    if (n <= 0) return;
    msgl__launch(gather_kernel, dim3((unsigned)(n + 127) / 128), dim3(128), 0, stream, pool, index,
                 n, out, stride);
}

extern "C" void msgl__cuda_map_tokens(cudaStream_t stream, int32_t *pool, const int32_t *index,
                                      int32_t n, const int32_t *ids, int32_t num_ids)
{
    if (n <= 0) return;
    msgl__launch(map_kernel, dim3((unsigned)(n + 127) / 128), dim3(128), 0, stream, pool, index, n,
                 ids, num_ids);
}

extern "C" void msgl__cuda_take_tokens(cudaStream_t stream, const msgl_step_tokens *s, int32_t *ids)
{
    if (s->count <= 0) return;
    msgl__launch(take_kernel, dim3((unsigned)(s->count + 127) / 128), dim3(128), 0, stream, *s,
                 ids);
}

extern "C" void msgl__cuda_fill_normal(cudaStream_t stream, void *p, msgl_dtype dtype, size_t n,
                                       uint64_t seed, float deviation)
{
    if (n > 0) MSGL_BY_DTYPE(dtype, fill, stream, p, n, seed, deviation);
}
