// SPDX-License-Identifier: Apache-2.0
//
// Family ngrams (kernel/ngrams.h). A row's results are made of its own request's tokens and its own
// elements alone, and how a sum is split depends on the row's shape.
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/gate.cuh"
#include "cuda/ops/ops.h"
#include "cuda/ops/vec8.cuh"
#include "kernel/ngrams.h"
#include "kernel/streams.h"

enum {
    ID_THREADS = 128,
    GATE_THREADS = 1024, // at most
};

// --- hashes --------------------------------------------------------------------------------------

// A head of a token a thread: some loads that are a request's last ids, and a division of 64 bits.
// What bounds it is a launch: 8,192 tokens of 16 heads write 0.5 MB.
static __global__ void __launch_bounds__(ID_THREADS)
    ids_kernel(const __grid_constant__ msgl_ngram_hash h, const int32_t *pool, const int32_t *index,
               int32_t count, const int32_t *positions, int32_t *ids)
{
    msgl__pdl_trigger();
    const int heads = (h.size - 1) * h.heads;
    const size_t at = (size_t)blockIdx.x * ID_THREADS + threadIdx.x;
    const size_t t = at / (size_t)heads;
    msgl__pdl_wait(); // the step before may have written the newest ids
    if (t >= (size_t)count) return;
    const int head = (int)(at % (size_t)heads), order = head / h.heads + 2;
    const int32_t *id = pool + index[t];
    const int32_t position = positions[t];
    uint64_t hash = (uint64_t)(uint32_t)id[0] * h.factors[0];
    bool ended = false;
    for (int i = 1; i < order; i++) {
        int32_t before = h.end;
        if (!ended && position >= i) before = id[-i];
        ended = before == h.end;
        hash ^= (uint64_t)(uint32_t)before * h.factors[i];
    }
    ids[at] = h.offsets[head] + (int32_t)(hash % (uint64_t)h.moduli[head]);
}

extern "C" void msgl__cuda_ngram_ids(msgl_exec *x, const msgl_ngram_hash *h,
                                     const msgl_step_tokens *tokens, const int32_t *positions,
                                     int32_t *ids)
{
    const size_t all = (size_t)tokens->count * (size_t)((h->size - 1) * h->heads);
    if (tokens->count <= 0) return;
    MSGL_CUDA_TRY(x, msgl__launch(ids_kernel, dim3((unsigned)((all + ID_THREADS - 1) / ID_THREADS)),
                                  dim3(ID_THREADS), 0, msgl__cuda_stream(x), *h,
                                  tokens->pool + tokens->shift, tokens->index, tokens->count,
                                  positions, ids));
}

// --- gates ---------------------------------------------------------------------------------------

static __device__ __forceinline__ float gate_of(float dot, int dim)
{
    const float g = dot / sqrtf((float)dim);
    const float root = sqrtf(fmaxf(fabsf(g), 1e-6f));
    return sigmoid_of(1, g == 0 ? 0 : copysignf(root, g));
}

// The first of a thread's elements and its step are units of N; a warp's threads are neighbours.
template <int N, typename T>
static __device__ __forceinline__ float dot_of(const T *a, const T *b, int first, int step, int dim)
{
    float sum = 0;
#pragma unroll 2
    for (int i = first * N; i < dim; i += step * N) {
        float v[N], w[N];
        load_n<N>(a + i, v);
        load_n<N>(b + i, w);
#pragma unroll
        for (int j = 0; j < N; j++) sum = fmaf(v[j], w[j], sum);
    }
    return sum;
}

template <int N, typename T>
static __device__ __forceinline__ void put_scaled(const T *value, float by, T *out, int first,
                                                  int step, int dim)
{
#pragma unroll 2
    for (int i = first * N; i < dim; i += step * N) {
        float v[N];
        load_n<N>(value + i, v);
#pragma unroll
        for (int j = 0; j < N; j++) v[j] *= by;
        store_n<N>(out + i, v);
    }
}

// A block a row, `warps` warps a stream: bound by memory, of which it reads keys, queries and
// (once, as its streams read them together) values, and writes as many elements as the queries
// have.
template <typename T, int N>
static __global__ void __launch_bounds__(GATE_THREADS)
    gate_kernel(const __grid_constant__ msgl_ngram_gate_call c, int warps)
{
    __shared__ float parts[GATE_THREADS / 32];
    msgl__pdl_trigger();
    const int warp = (int)threadIdx.x / 32, stream = warp / warps;
    const int first = (int)threadIdx.x - stream * warps * 32, step = warps * 32;
    const size_t r = blockIdx.x, dim = (size_t)c.dim, at = (r * c.num + stream) * dim;
    msgl__pdl_wait();
    const T *keys = (const T *)c.keys + r * c.ld + (size_t)stream * dim;
    const float mine =
        group_sum(dot_of<N>(keys, (const T *)c.queries + at, first, step, c.dim), 32);
    if (threadIdx.x % 32 == 0) parts[warp] = mine;
    __syncthreads();
    float dot = 0;
    for (int w = 0; w < warps; w++) dot += parts[stream * warps + w];
    put_scaled<N>((const T *)c.values + r * c.ld, gate_of(dot, c.dim), (T *)c.out + at, first, step,
                  c.dim);
}

template <typename T> static void gate(msgl_exec *x, const msgl_ngram_gate_call *c)
{
    const bool vector = c->dim % 8 == 0 && c->ld % 8 == 0 && aligned16(c->keys) &&
                        aligned16(c->values) && aligned16(c->queries) && aligned16(c->out);
    const int warps = c->num <= GATE_THREADS / 128 ? 4 : 2;
    static_assert(MSGL_MAX_STREAMS * 2 * 32 <= GATE_THREADS, "two warps a stream");
    MSGL_CUDA_TRY(x, msgl__launch(vector ? gate_kernel<T, 8> : gate_kernel<T, 1>,
                                  dim3((unsigned)c->rows), dim3((unsigned)(c->num * warps * 32)), 0,
                                  msgl__cuda_stream(x), *c, warps));
}

extern "C" void msgl__cuda_ngram_gate(msgl_exec *x, const msgl_ngram_gate_call *c)
{
    if (c->rows > 0) MSGL_BY_DTYPE(x->act, gate, x, c);
}
