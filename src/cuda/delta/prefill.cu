// SPDX-License-Identifier: Apache-2.0
//
// Chunks of prompts: the launches, the list of chunks in front, and the norm with its gate behind
// them.
#include "cuda/delta/inputs.cuh"
#include "cuda/delta/prefill.cuh"
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/owner.cuh"

enum { PLAN_THREADS = 512, FINISH_THREADS = 256, FINISH_ROWS = 8 };

// Sum of v over the threads before this one; *total: of all.
static __device__ __forceinline__ int sum_before(int v, int *parts, int *total)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int sum = v;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int before = __shfl_up_sync(MSGL_FULL_MASK, sum, step);
        if (lane >= step) sum += before;
    }
    if (lane == 31) parts[warp] = sum;
    __syncthreads();
    int ahead = 0;
    *total = 0;
    for (int i = 0; i < PLAN_THREADS / 32; i++) {
        ahead += i < warp ? parts[i] : 0;
        *total += parts[i];
    }
    __syncthreads();
    return ahead + sum - v;
}

static __device__ __forceinline__ delta_chunk find_chunk(const msgl_delta_args &p, const int *start,
                                                         int i)
{
    const int r = msgl__owner_of(start, p.size, i);
    const int first_position = delta_first_position(p.cu_seqlens_q, p.seqlens_k, r);
    delta_chunk c = {};
    c.position = (first_position / DELTA_ROWS + i - start[r]) * DELTA_ROWS;
    c.first = max(first_position - c.position, 0);
    c.rows = min(p.seqlens_k[r] - c.position, (int)DELTA_ROWS) - c.first;
    c.token = c.position - first_position;
    c.row0 = p.cu_seqlens_q[r] + c.token;
    c.from = p.from[r], c.to = p.to[r];
    return c;
}

// The list of chunks, `most` of them: behind those that there are some without rows.
static __global__ void __launch_bounds__(PLAN_THREADS)
    delta_plan(const __grid_constant__ msgl_delta_args p, const __grid_constant__ delta_scratch out,
               int most)
{
    __shared__ int parts[PLAN_THREADS / 32];
    msgl__pdl_trigger();
    msgl__pdl_wait(); // the call before may still use the list
    int begin = 0;
    for (int base = 0; base < p.size; base += PLAN_THREADS) {
        const int r = base + (int)threadIdx.x;
        int total = 0;
        const int n = r < p.size ? delta_chunk_count(p.cu_seqlens_q, p.seqlens_k, r) : 0;
        const int before = begin + sum_before(n, parts, &total);
        if (r < p.size) out.start[r] = before;
        begin += total;
    }
    if (threadIdx.x == 0) out.start[p.size] = begin;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < most; i += PLAN_THREADS) {
        delta_chunk c = {};
        c.from = c.to = -1;
        if (i < begin) c = find_chunk(p, out.start, i);
        out.chunks[i] = c;
    }
}

// Rows of a chunk: o to norm(o) norm gate(z), 16 lanes a head. Grid: chunks, eighths of rows.
static __global__ void __launch_bounds__(FINISH_THREADS)
    delta_finish(const __grid_constant__ msgl_delta_args p,
                 const __grid_constant__ delta_scratch in)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const delta_chunk c = in.chunks[blockIdx.x];
    const int vec = (int)threadIdx.x % 16, top = (int)blockIdx.y * FINISH_ROWS;
    if (c.to < 0) return;
    for (int i = (int)threadIdx.x / 16; i < FINISH_ROWS * p.v_heads; i += FINISH_THREADS / 16) {
        const int row = top + i / p.v_heads, at = i % p.v_heads * MSGL_DELTA_DIM + vec * 8;
        const bool there = row >= c.first && row < c.first + c.rows;
        uint4 *const out = (uint4 *)(p.out + (ptrdiff_t)(c.row0 + row) * (ptrdiff_t)p.ld_out + at);
        const uint4 *const z =
            (const uint4 *)(p.z + (ptrdiff_t)(c.row0 + row) * (ptrdiff_t)p.ld_z + at);
        const uint4 zero = make_uint4(0, 0, 0, 0);
        const uint4 v = delta_gated(there ? *out : zero, there ? *z : zero, p.norm + vec * 8,
                                    p.norm_eps, p.sigmoid_gate);
        if (there) *out = v;
    }
}

// At most so many chunks have these requests.
static int most_chunks(const msgl_seqs *s)
{
    return s->num_tokens / DELTA_ROWS + 2 * s->size;
}

// Lays a call's scratch out behind `base`; returns its bytes.
static size_t layout(const msgl_delta_call *c, char *base, delta_scratch *out)
{
    const size_t chunks = (size_t)most_chunks(c->io.seqs), keys = chunks * (size_t)c->k_heads;
    const size_t values = chunks * (size_t)c->v_heads;
    size_t at = 0;
    const auto take = [&](size_t bytes) {
        char *p = base + at;
        at += (bytes + 127) / 128 * 128;
        return p;
    };
    out->q = take(keys * DELTA_HEAD_IMAGES);
    out->k = take(keys * DELTA_HEAD_IMAGES);
    out->v = take(values * DELTA_HEAD_IMAGES);
    out->t = take(values * DELTA_IMAGE);
    out->p = take(values * DELTA_IMAGE);
    out->gates = take(values * DELTA_GATES);
    out->chunks = (delta_chunk *)take(chunks * sizeof(delta_chunk));
    out->start = (int *)take(((size_t)c->io.seqs->size + 1) * sizeof(int));
    return at;
}

extern "C" size_t msgl__cuda_delta_scratch(const msgl_delta_call *c)
{
    delta_scratch unused;
    if (c->io.seqs->phase == MSGL_DECODE || !msgl__delta_fast_dims(c)) return 0;
    return layout(c, NULL, &unused) + 128;
}

// As many chunks as there are, if a launch may depend on that.
static int count_chunks(const msgl_seqs *s)
{
    if (s->graph) return most_chunks(s);
    int n = 0;
    for (int r = 0; r < s->size; r++) n += delta_chunk_count(s->cu_seqlens_q, s->seqlens_k, r);
    return n;
}

extern "C" void msgl__cuda_delta_prefill(msgl_exec *x, const msgl_delta_call *c, int warps)
{
    msgl_delta_args p;
    if (c->io.seqs->size == 0 || !msgl__delta_args(x, c, &p)) return;
    const size_t used = x->scratch->used;
    char *base = (char *)msgl__arena_alloc(x->scratch, msgl__cuda_delta_scratch(c));
    if (base == NULL) {
        x->status = MSGL_EINTERNAL;
        return;
    }
    delta_scratch s;
    layout(c, (char *)(((uintptr_t)base + 127) / 128 * 128), &s);
    x->scratch->used = used; // work on a stream is done in order
    const cudaStream_t stream = msgl__cuda_stream(x);
    const int chunks = count_chunks(c->io.seqs);
    // Blocks of all columns leave less to read; half as many columns fill twice as many SMs.
    if (warps == 0) warps = p.size * p.v_heads >= msgl__cuda_device(x)->sm_count ? 8 : 4;
    MSGL_CUDA_TRY(x,
                  msgl__launch(delta_plan, dim3(1), dim3(PLAN_THREADS), 0, stream, p, s, chunks));
    MSGL_CUDA_TRY(x, msgl__delta_mix(p, s, chunks, stream));
    MSGL_CUDA_TRY(x, msgl__delta_prepare(p, s, chunks, msgl__delta_targets(c), stream));
    MSGL_CUDA_TRY(x, msgl__delta_scan(p, s, warps, stream));
    if (warps == 8) return; // it has whole heads, and does their norm
    MSGL_CUDA_TRY(x, msgl__launch(delta_finish, dim3(chunks, DELTA_ROWS / FINISH_ROWS),
                                  dim3(FINISH_THREADS), 0, stream, p, s));
}
