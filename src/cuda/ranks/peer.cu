// SPDX-License-Identifier: Apache-2.0
//
// Sums and gathers over peer memory, for messages that are so short that it counts how often ranks
// meet. A block of a rank works with the blocks of the same index of the others. Nobody waits for a
// whole grid; a block waits for none that is behind its own index, and blocks start in the order of
// their indices, so that a grid may have more blocks than the GPU holds: while first ones wait,
// later ones write. Sums are in rank order, so that all ranks have the same bits.
//
// One shot, for two ranks, or for short messages: everybody sums everything. A rank writes its part
// into the memory of those that need it (a link's writes need no answer, its reads do), and who
// waits for it looks at the data themselves: a word that has not come is EMPTY, which is minus zero
// in every dtype, and minus zeros are sent as zeros. So there is nothing to be said, no fence that
// the link would have to drain for, and threads do not wait for each other; what has been read is
// made EMPTY again. (Lamport's queue of one reader and one writer; TensorRT-LLM's sums for few
// tokens are alike.) Words come whole, and that is all that is asked of the link.
//
// Two shots: a rank sums its shard of each tile and the others read it, which moves 2 (p - 1) / p
// instead of p - 1 messages. There, and in gathers, a block writes to its rank's own memory, says
// so to the same block of the others, waits for theirs and reads it. What blocks say is the number
// of the call, so that nothing has to be reset.
//
// Either has two slots that take turns. When a block writes to a slot again, all ranks have arrived
// at the call between, hence their kernels of the call before that one have ended, and with them
// all reading, and emptying.
#include "cuda/launch.cuh"
#include "cuda/ops/vec8.cuh"
#include "cuda/peer_sum.cuh"
#include "cuda/ptx/global.cuh"
#include "cuda/ranks/comm.h"

enum {
    THREADS = 128,
    TILE = THREADS * 8,         // elements that a block takes at a time
    ONE_SHOT_BYTES = 256 << 10, // times 7 others: less than a slot
};
static const uint32_t EMPTY = MSGL_PEER_EMPTY;

struct meeting {
    uint32_t call;
    size_t slot; // of this call, in everybody's memory
};

// Behind it the block may write to its own slot.
static __device__ __forceinline__ meeting open_call(const msgl_peers &p)
{
    meeting m;
    m.call = p.of[p.rank]->epoch + 1;
    m.slot = sizeof(msgl_peer_shared) + (m.call % MSGL_PEER_SLOTS) * MSGL_PEER_SLOT_BYTES;
    return m;
}

template <typename T>
static __device__ __forceinline__ T *slot_of(const msgl_peers &p, const meeting &m, int rank)
{
    return (T *)((char *)p.of[rank] + m.slot);
}

// What the block's threads wrote before it can be read by the same block of every rank behind it.
// A rank that is over is not waited for: what comes out is then undefined.
static __device__ __forceinline__ void meet(const msgl_peers &p, const meeting &m, bool again)
{
    __syncthreads();
    const int peer = (int)threadIdx.x;
    if (peer < p.size && peer != p.rank) {
        msgl_peer_shared *theirs = p.of[peer], *own = p.of[p.rank];
        msgl__store_release_sys(&(again ? theirs->reduced : theirs->arrived)[p.rank][blockIdx.x],
                                m.call);
        const uint32_t *word = &(again ? own->reduced : own->arrived)[peer][blockIdx.x];
        for (int polls = 1; (int32_t)(msgl__load_acquire_sys(word) - m.call) < 0; polls++) {
            msgl__polled();
            if (msgl__peer_over(p.over, polls)) break;
        }
    }
    __syncthreads();
}

// The last block counts the call. Behind all that the block's threads read of the count.
static __device__ __forceinline__ void close_call(const msgl_peers &p, uint32_t *count,
                                                  uint32_t call)
{
    __syncthreads();
    if (threadIdx.x == 0) msgl__peer_count(count, &p.of[p.rank]->ticket, call, gridDim.x);
}

struct reduce_args {
    msgl_peers peers;
    const void *in;
    void *out, *residual;
    float scale;
    size_t rows, dim;
    int row_tiles; // tiles of a row
    const float *next_norm;
    void *scaled;
    float *sums;
};

// Past the L1, which may keep what a slot held two calls ago.
template <typename T> static __device__ __forceinline__ void load_slot(const T *p, float v[8])
{
    unpack8(__ldcg((const uint4 *)p), v, T());
}
template <> __device__ __forceinline__ void load_slot<float>(const float *p, float v[8])
{
    const float4 a = __ldcg((const float4 *)p), b = __ldcg((const float4 *)p + 1);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

// Elements [at, at + 8) of all slots, summed in rank order.
template <typename T>
static __device__ __forceinline__ void sum_slots(const msgl_peers &p, const meeting &m, size_t at,
                                                 float v[8])
{
    load_slot(slot_of<const T>(p, m, 0) + at, v);
    for (int r = 1; r < p.size; r++) {
        float w[8];
        load_slot(slot_of<const T>(p, m, r) + at, w);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] += w[j];
    }
}

// Eight elements, 16 bytes of bf16 and f16, 32 of f32, to another rank's memory.
template <typename T> static __device__ __forceinline__ void push(T *to, const float v[8])
{
    msgl__store_relaxed_sys_4((uint4 *)to, pack8(v, T()));
}
template <> __device__ __forceinline__ void push<float>(float *to, const float v[8])
{
    const uint32_t *w = (const uint32_t *)v;
    msgl__store_relaxed_sys_4((uint4 *)to, make_uint4(w[0], w[1], w[2], w[3]));
    msgl__store_relaxed_sys_4((uint4 *)to + 1, make_uint4(w[4], w[5], w[6], w[7]));
}

// Waits until 16 bytes are there, and makes them EMPTY.
static __device__ __forceinline__ uint4 pull_16(uint4 *from, const volatile uint32_t *over)
{
    uint4 u;
    msgl__peer_look((const char *)from, &u);
    msgl__peer_take((char *)from, over, &u);
    return u;
}

template <typename T>
static __device__ __forceinline__ void pull(T *from, const volatile uint32_t *over, float v[8])
{
    unpack8(pull_16((uint4 *)from, over), v, T());
}
template <>
__device__ __forceinline__ void pull<float>(float *from, const volatile uint32_t *over, float v[8])
{
    const uint4 a = pull_16((uint4 *)from, over), b = pull_16((uint4 *)from + 1, over);
    const uint32_t w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = __uint_as_float(w[j]);
}

// Eight elements from column `at` of a tile's row, fewer at its end; slots have whole eights.
template <typename T>
static __device__ __forceinline__ void load_some(const T *row, size_t at, size_t dim, float v[8])
{
    if (at + 8 <= dim && aligned16(row + at)) {
        load8(row + at, v);
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = at + (size_t)j < dim ? to_f32(row[at + (size_t)j]) : 0;
}

template <typename T>
static __device__ __forceinline__ void store_some(T *row, size_t at, size_t dim, const float v[8])
{
    if (at + 8 <= dim && aligned16(row + at)) {
        store8(row + at, v);
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        if (at + (size_t)j < dim) row[at + (size_t)j] = from_f32<T>(v[j]);
    }
}

// The residual stream's x, where the sum is added to it.
template <typename T>
static __device__ __forceinline__ void load_stream(const reduce_args &a, size_t row, size_t at,
                                                   float x[8])
{
    if (a.residual != NULL && at < a.dim) load_some((T *)a.residual + row * a.dim, at, a.dim, x);
}

// A tile's sum to where it is wanted. Row and column of its first element for this thread.
template <typename T>
static __device__ __forceinline__ void finish_tile(const reduce_args &a, size_t row, size_t tile,
                                                   size_t at, const float v[8], float x[8])
{
    if (a.residual == NULL) {
        if (at < a.dim) store_some((T *)a.out, at, a.dim, v);
        return;
    }
    float squares = 0;
    if (at < a.dim) {
        T *const to = (T *)a.residual + row * a.dim;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            // Rounded as a sum in memory would be: the same bits as in two steps.
            x[j] = to_f32(from_f32<T>(x[j] + a.scale * to_f32(from_f32<T>(v[j]))));
            squares += x[j] * x[j];
        }
        store_some(to, at, a.dim, x);
    }
    if (a.scaled == NULL) return;
    if (at < a.dim) {
        float w[8];
        load_some(a.next_norm, at, a.dim, w);
#pragma unroll
        for (int j = 0; j < 8; j++) w[j] *= x[j];
        store_some((T *)a.scaled + row * a.dim, at, a.dim, w);
    }
    __shared__ float warps[THREADS / 32];
    squares = group_sum(squares, 32);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = squares;
    __syncthreads();
    if (threadIdx.x == 0) {
        float all = 0;
        for (int i = 0; i < THREADS / 32; i++) all += warps[i];
        a.sums[tile * a.rows + row] = all;
    }
    __syncthreads();
}

// Where rank `from` sends to rank `to`: in the slot of this call, which has a region for each of
// the others.
template <typename T>
static __device__ __forceinline__ T *pushed_at(const msgl_peers &p, uint32_t call, size_t region,
                                               int from, int to)
{
    const size_t slot = MSGL_PEER_PUSHED + call % MSGL_PEER_SLOTS * MSGL_PEER_SLOT_BYTES;
    return (T *)((char *)p.of[to] + slot) + (size_t)(from < to ? from : from - 1) * region;
}

// Eight elements to all others. Every rank begins with another one.
template <typename T>
static __device__ __forceinline__ void push_all(const msgl_peers &p, uint32_t call, size_t region,
                                                size_t offset, const float own[8])
{
    for (int i = 1; i < p.size; i++) {
        push(pushed_at<T>(p, call, region, p.rank, (p.rank + i) % p.size) + offset, own);
    }
}

// The same eight of every rank's, summed in rank order; v: this one's, then the sum.
template <typename T>
static __device__ __forceinline__ void sum_pushed(const msgl_peers &p, uint32_t call, size_t region,
                                                  size_t offset, float v[8])
{
    float own[8];
#pragma unroll
    for (int j = 0; j < 8; j++) own[j] = v[j];
    for (int r = 0; r < p.size; r++) {
        float w[8];
        if (r != p.rank) pull(pushed_at<T>(p, call, region, r, p.rank) + offset, p.over, w);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float value = r == p.rank ? own[j] : w[j];
            v[j] = r == 0 ? value : v[j] + value;
        }
    }
}

// A tile to a block. Ten blocks on each of 132 SMs run 256 rows of 5,120 columns at once, for which
// 16 bytes of a thread are spilled. (Between products 12.0 us; with nine and no spills 12.3, but in
// another run and with the stream read behind the others' parts.)
template <typename T>
static __global__ void __launch_bounds__(THREADS, 10)
    one_shot_kernel(const __grid_constant__ reduce_args a)
{
    const msgl_peers &p = a.peers;
    msgl__pdl_trigger();
    msgl__pdl_wait();
    uint32_t *const count = &p.of[p.rank]->pushed;
    const uint32_t call = *count + 1;
    const size_t row = blockIdx.x / (unsigned)a.row_tiles,
                 tile = blockIdx.x % (unsigned)a.row_tiles;
    const size_t at = tile * TILE + threadIdx.x * 8, width = (size_t)a.row_tiles * TILE;
    float v[8] = {0}, x[8] = {0};
    if (at < a.dim) {
        load_some((const T *)a.in + row * a.dim, at, a.dim, v);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] += 0.0f; // minus zero is EMPTY's
        push_all<T>(p, call, a.rows * width, row * width + at, v);
        load_stream<T>(a, row, at, x); // while the others' come
    }
    __syncthreads();
    if (threadIdx.x == 0) msgl__peer_count(count, &p.of[p.rank]->ticket, call, gridDim.x);
    if (at < a.dim) sum_pushed<T>(p, call, a.rows * width, row * width + at, v);
    finish_tile<T>(a, row, tile, at, v, x);
}

// Thread t of a tile sums its eight elements for all ranks if t % size is its rank.
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    two_shot_kernel(const __grid_constant__ reduce_args a)
{
    const msgl_peers &p = a.peers;
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const meeting m = open_call(p);
    const size_t tiles = a.rows * (size_t)a.row_tiles, eight = threadIdx.x * 8;
    const size_t width = (size_t)a.row_tiles * TILE; // of a row in a slot
    T *const own = slot_of<T>(p, m, p.rank);
    for (size_t t = blockIdx.x; t < tiles; t += gridDim.x) {
        const size_t row = t / a.row_tiles, at = t % a.row_tiles * TILE + eight;
        float v[8];
        if (at >= a.dim) continue;
        load_some((const T *)a.in + row * a.dim, at, a.dim, v);
        store8(own + row * width + at, v);
    }
    meet(p, m, false);
    for (size_t t = blockIdx.x; t < tiles; t += gridDim.x) {
        const size_t row = t / a.row_tiles, at = t % a.row_tiles * TILE + eight;
        float v[8];
        if (at >= a.dim || (int)threadIdx.x % p.size != p.rank) continue;
        sum_slots<T>(p, m, row * width + at, v);
        store8(own + row * width + at, v);
    }
    meet(p, m, true);
    for (size_t t = blockIdx.x; t < tiles; t += gridDim.x) {
        const size_t row = t / a.row_tiles, tile = t % a.row_tiles, at = tile * TILE + eight;
        float v[8] = {0}, x[8] = {0};
        if (at < a.dim) {
            load_slot(slot_of<const T>(p, m, (int)threadIdx.x % p.size) + row * width + at, v);
        }
        load_stream<T>(a, row, at, x);
        finish_tile<T>(a, row, tile, at, v, x);
    }
    close_call(p, &p.of[p.rank]->epoch, m.call);
}

template <typename T>
static void launch_reduce(const reduce_args &a, cudaStream_t stream, cudaError_t *e)
{
    const size_t tiles = a.rows * (size_t)a.row_tiles, bytes = tiles * TILE * sizeof(T);
    const bool one = a.peers.size == 2 || bytes <= ONE_SHOT_BYTES;
    const unsigned blocks = one || tiles < MSGL_PEER_BLOCKS ? (unsigned)tiles : MSGL_PEER_BLOCKS;
    // Products run with all of an SM's shared memory; what asks for less waits for their end.
    *e = one ? msgl__allow_shared<one_shot_kernel<T>>(1, true)
             : msgl__allow_shared<two_shot_kernel<T>>(1, true);
    if (*e != cudaSuccess) return;
    *e = msgl__launch(one ? one_shot_kernel<T> : two_shot_kernel<T>, dim3(blocks), dim3(THREADS), 0,
                      stream, a);
}

static size_t row_tiles_of(size_t dim)
{
    return (dim + TILE - 1) / TILE;
}

size_t msgl__peer_most_rows(msgl_dtype dtype, size_t dim)
{
    return MSGL_PEER_SLOT_BYTES / (row_tiles_of(dim) * TILE * msgl__dtype_size(dtype));
}

int msgl__peer_norm_stats_tiles(size_t dim)
{
    return (int)row_tiles_of(dim);
}

cudaError_t msgl__peer_reduce(const msgl_peers *p, const msgl_peer_reduce *c, cudaStream_t stream)
{
    reduce_args a = {};
    a.peers = *p;
    a.in = c->in, a.out = c->out, a.residual = c->residual;
    a.scale = c->scale;
    a.rows = c->rows, a.dim = c->dim;
    a.row_tiles = (int)row_tiles_of(c->dim);
    a.next_norm = c->next_norm;
    a.scaled = c->scaled, a.sums = c->sums;
    cudaError_t e = cudaSuccess;
    if (c->rows > 0 && c->dim > 0) MSGL_BY_DTYPE(c->dtype, launch_reduce, a, stream, &e);
    return e;
}

static __global__ void __launch_bounds__(THREADS) empty_kernel(uint4 *pushed)
{
    pushed[(size_t)blockIdx.x * THREADS + threadIdx.x] = make_uint4(EMPTY, EMPTY, EMPTY, EMPTY);
}

cudaError_t msgl__peer_prepare(msgl_peer_shared *memory, cudaStream_t stream)
{
    const cudaError_t e = cudaMemsetAsync(memory, 0, MSGL_PEER_PUSHED, stream);
    const size_t bytes = MSGL_PEER_BYTES - MSGL_PEER_PUSHED;
    if (e != cudaSuccess) return e;
    return msgl__launch(empty_kernel, dim3((unsigned)(bytes / (THREADS * sizeof(uint4)))),
                        dim3(THREADS), 0, stream, (uint4 *)((char *)memory + MSGL_PEER_PUSHED));
}

// n, stride: of V.
template <typename V>
static __global__ void __launch_bounds__(THREADS)
    gather_kernel(const __grid_constant__ msgl_peers p, const V *in, size_t n, size_t stride,
                  V *out)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const meeting m = open_call(p);
    const size_t first = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const size_t step = (size_t)gridDim.x * THREADS;
    V *const own = slot_of<V>(p, m, p.rank);
    for (size_t i = first; i < n; i += step) own[i] = in[i];
    meet(p, m, false);
    for (int r = 0; r < p.size; r++) {
        const V *from = slot_of<const V>(p, m, r);
        V *to = out + (size_t)r * stride;
        for (size_t i = first; i < n; i += step) to[i] = __ldcg(from + i);
    }
    close_call(p, &p.of[p.rank]->epoch, m.call);
}

// The same of two ranks, in one shot.
template <typename V>
static __global__ void __launch_bounds__(THREADS)
    pushed_gather_kernel(const __grid_constant__ msgl_peers p, const V *in, size_t n, size_t stride,
                         V *out)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    uint32_t *const count = &p.of[p.rank]->pushed;
    const uint32_t call = *count + 1;
    const size_t first = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const size_t step = (size_t)gridDim.x * THREADS;
    const int other = 1 - p.rank;
    V *const theirs = pushed_at<V>(p, call, 0, p.rank, other);
    V *const own = pushed_at<V>(p, call, 0, other, p.rank);
    for (size_t i = first; i < n; i += step) {
        const V v = msgl__peer_sent(in[i]);
        msgl__peer_push((char *)(theirs + i), v);
        out[(size_t)p.rank * stride + i] = v;
    }
    close_call(p, count, call);
    for (size_t i = first; i < n; i += step) {
        V v;
        msgl__peer_look((const char *)(own + i), &v);
        msgl__peer_take((char *)(own + i), p.over, &v);
        out[(size_t)other * stride + i] = v;
    }
}

// V: a word, or four of them where all addresses allow it. n, stride: of words.
template <typename V>
static cudaError_t launch_gather(const msgl_peers *p, const float *in, size_t n, size_t stride,
                                 float *out, cudaStream_t stream)
{
    const size_t per = sizeof(V) / sizeof(float), count = n / per;
    const size_t blocks = (count + THREADS - 1) / THREADS;
    return msgl__launch(p->size == 2 ? pushed_gather_kernel<V> : gather_kernel<V>,
                        dim3(blocks < MSGL_PEER_BLOCKS ? (unsigned)blocks : MSGL_PEER_BLOCKS),
                        dim3(THREADS), 0, stream, *p, (const V *)in, count, stride / per, (V *)out);
}

cudaError_t msgl__peer_gather(const msgl_peers *p, const float *in, size_t n, size_t stride,
                              float *out, cudaStream_t stream)
{
    if (n == 0) return cudaSuccess;
    const bool fours = (n | stride) % 4 == 0 && aligned16(in) && aligned16(out);
    return fours ? launch_gather<uint4>(p, in, n, stride, out, stream)
                 : launch_gather<uint32_t>(p, in, n, stride, out, stream);
}
