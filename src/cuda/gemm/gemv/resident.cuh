// SPDX-License-Identifier: Apache-2.0
//
// The kernel for products whose weights fit into half of the GPU's shared memory all at once (14
// MB): out[m, n] = f(in[m, k] W[n, k]^T), m <= 8, one block per multiprocessor, each with a run of
// outputs.
//
// Such a product takes a few microseconds, most of which are latencies in a row. So that as few as
// possible are left behind the kernel before this one: the copy engine brings all of a block's rows
// of W while that kernel still runs, and no thread is held up by it; behind msgl__pdl_wait every
// lane reads its own activations straight into registers, one round trip to the L2, and keeps them
// for all rows of W. A warp has one split of k. Warps meet once, to add their sums in a fixed
// order.
//
// Instructions arrive late, too: each is executed once or twice, in kernels that follow each other
// every few microseconds. So there are few of them: k is known to the compiler, rows of W pass in a
// rolled loop, and what threads do at the end needs no division and no second round.
//
// Tensor cores: activations are the A operand, 8 rows of W are the columns of B. k inside a CHUNK
// is permuted the same way for both, so that a lane's share of a row is 16 contiguous bytes, which
// are the fragment. A has 16 rows and there are 8 of activations: the other 8 hold the other half
// of a lane's share, and the second mma of a CHUNK takes its products from there.
#ifndef MSGL_CUDA_GEMM_GEMV_RESIDENT_CUH
#define MSGL_CUDA_GEMM_GEMV_RESIDENT_CUH

#include "cuda/gemm/gemv/kernel.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/tma.cuh"

#define GEMV_CHUNK 32 // elements of k: two mma
#define GEMV_RESIDENT_COLUMNS 8
#define GEMV_RESIDENT_OUTPUTS 32 // of a block: a lane of the warp that finishes a row has one
// Bytes: sums of squares [column][warp], the barrier.
#define GEMV_RESIDENT_HEAD (GEMV_WARPS * GEMV_RESIDENT_COLUMNS * 4 + 128)

// How rows of K elements are divided.
template <int K> struct gemv_k_split {
    static constexpr int CHUNKS = (K / GEMV_CHUNK + GEMV_WARPS - 1) / GEMV_WARPS; // of a warp
    static constexpr int WARPS = K / GEMV_CHUNK / CHUNKS;                         // that have any
    static constexpr int SPLIT_BYTES =
        CHUNKS * GEMV_CHUNK * 2; // bytes of a row that one of them reads
    // Bytes from one row of W in shared memory to the next: an odd multiple of 64, which keeps the
    // 16 byte pieces that eight lanes read at a time in different banks.
    static constexpr int PITCH = (2 * K + 127) / 128 * 128 + 64;
    static_assert(K == WARPS * CHUNKS * GEMV_CHUNK, "no warp has less than the others");
    static_assert(SPLIT_BYTES >= 128, "a split has room for its sums");
};

// Rows of shared memory for a block's outputs: whole eights, of gate rows and of up rows if gated.
static __host__ __device__ __forceinline__ int gemv_resident_rows(bool gated, int outputs)
{
    return (outputs + 7) / 8 * (gated ? 16 : 8);
}

// Row of W that belongs in row `row` of shared memory, -1: none. Behind 8 gate rows come the 8 up
// rows of the same outputs.
static __device__ __forceinline__ int gemv_resident_row(const gemv_params &p, int begin, int end,
                                                        int row)
{
    const int o = begin + (p.gated ? row / 16 * 8 + row % 8 : row);
    if (o >= end) return -1;
    return p.gated && row % 16 >= 8 ? p.n + o : o;
}

// Starts the copies of the block's rows; by one warp.
template <int K>
static __device__ __forceinline__ void gemv_resident_load(const gemv_params &p, int begin, int end,
                                                          uint32_t weights, uint32_t barrier)
{
    const int lane = threadIdx.x % 32, rows = gemv_resident_rows(p.gated, end - begin);
    if (lane == 0) {
        msgl__mbarrier_init(barrier, 1);
        msgl__mbarrier_init_done();
        msgl__mbarrier_expect(barrier, (uint32_t)(end - begin) * (p.gated ? 2 : 1) * K * 2);
    }
    __syncwarp();
#pragma unroll 1
    for (int row = lane; row < rows; row += 32) {
        const int from = gemv_resident_row(p, begin, end, row);
        if (from < 0) continue;
        msgl__bulk_load(weights + row * gemv_k_split<K>::PITCH, p.w + (size_t)from * K * 2, K * 2,
                        barrier);
    }
}

// Bytes from a warp's split of the first of 8 rows of W to the warp's sums of a column with these
// rows, 8 floats. They are in the split of row `column`, in one of four groups of banks, so that
// neither the warp that writes them nor the one that adds them up meets conflicts. turn: which 8
// outputs.
template <int K>
static __device__ __forceinline__ uint32_t gemv_resident_sum(uint32_t column, uint32_t turn)
{
    return column * gemv_k_split<K>::PITCH + (column / 2 + turn) % 4 * 32;
}

// Products of this warp's split of W, `eights` times 8 rows, with its activations x. Sums take the
// place of what was read: no other warp reads it.
template <int K>
static __device__ __forceinline__ void
gemv_resident_multiply(uint32_t from_split, uint32_t eights, bool gated,
                       const uint4 x[gemv_k_split<K>::CHUNKS])
{
    using k_split = gemv_k_split<K>;
    const uint32_t lane = threadIdx.x % 32;
    uint32_t from = from_split + lane / 4 * k_split::PITCH + lane % 4 * 16;
    uint32_t to = from_split + lane % 4 * 8;
#pragma unroll 1
    for (uint32_t i = 0; i < eights; i++) {
        float front[4] = {}, back[4] = {}; // of which rows 0 to 7 and rows 8 to 15 are meant
#pragma unroll
        for (int c = 0; c < k_split::CHUNKS; c++) {
            const uint4 w = msgl__read_shared<uint4>(from + c * GEMV_CHUNK * 2);
            gemv_type<__nv_bfloat16>::mma(front, x[c].x, x[c].z, x[c].y, x[c].w, w.x, w.y);
            gemv_type<__nv_bfloat16>::mma(back, x[c].x, x[c].z, x[c].y, x[c].w, w.z, w.w);
        }
        __syncwarp();
        const uint32_t sum = to + gemv_resident_sum<K>(lane / 4, i >> (int)gated);
        msgl__write_shared(sum, make_float2(front[0] + back[2], front[1] + back[3]));
        from += 8 * k_split::PITCH;
        to += 8 * k_split::PITCH;
    }
}

// The sum of one float of each of WARPS warps, `stride` bytes apart, in a fixed order.
template <int WARPS>
static __device__ __forceinline__ float gemv_resident_total(const char *at, int stride)
{
    float v[WARPS];
#pragma unroll
    for (int w = 0; w < WARPS; w++) v[w] = *(const float *)(at + w * stride);
#pragma unroll
    for (int step = 1; step < WARPS; step *= 2) {
#pragma unroll
        for (int w = 0; w + step < WARPS; w += 2 * step) v[w] += v[w + step];
    }
    return v[0];
}

// The norm's weights of this lane's activations, to the L1.
template <int K> static __device__ __forceinline__ void gemv_resident_fetch_norm(const float *norm)
{
    const int at = threadIdx.x * 32;
    if (at < K) msgl__prefetch_l1(norm + at);
}

// K: p.k. Shared memory: sums of squares, the barrier, rows of W, whose place the sums take.
template <int K, bool NORM>
static __global__ void __launch_bounds__(GEMV_THREADS, 2)
    gemv_resident(const __grid_constant__ gemv_params p)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900 // never launched before
    using k_split = gemv_k_split<K>;
    using bf16 = gemv_type<__nv_bfloat16>;
    extern __shared__ __align__(128) char shared[];
    const char *const rows_of_w = shared + GEMV_RESIDENT_HEAD;
    const uint32_t weights = msgl__shared_address(rows_of_w);
    const uint32_t barrier = weights - 16;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int begin = (int)blockIdx.x * p.each + min((int)blockIdx.x, p.extra);
    const int outputs = p.each + ((int)blockIdx.x < p.extra);

    if (p.early) msgl__pdl_trigger();
    if (warp == 0) gemv_resident_load<K>(p, begin, begin + outputs, weights, barrier);
    // This lane multiplies row lane / 4 of the activations, or the last one once more, whose
    // products are not used, and finishes output `lane` of row `warp`.
    const bool has_split = k_split::WARPS == GEMV_WARPS || warp < k_split::WARPS;
    const bool finishes = (int)warp < p.m && (int)lane < outputs;
    const int k = warp * k_split::SPLIT_BYTES / 2 + lane % 4 * 8;
    const char *in = p.in + (min((int)lane / 4, p.m - 1) * p.ld_in + k) * 2;
    size_t out = (warp * p.ld_out + begin + lane) * 2;
    float bias[2] = {};
    if (p.bias != NULL && finishes) {
        bias[0] = __ldg(p.bias + begin + lane);
        if (p.gated) bias[1] = __ldg(p.bias + p.n + begin + lane);
    }
    if (NORM) gemv_resident_fetch_norm<K>(p.norm);
    asm volatile("" : "+l"(in), "+l"(out)); // or the compiler works them out behind the wait
    __syncthreads();                        // the barrier is ready
    msgl__pdl_wait();
    if (!p.early) msgl__pdl_trigger();

    uint4 x[k_split::CHUNKS];
    if (has_split) {
#pragma unroll
        for (int c = 0; c < k_split::CHUNKS; c++) {
            x[c] = __ldcg((const uint4 *)(in + c * GEMV_CHUNK * 2));
        }
    }
    msgl_peer_slot peer = {};
    if (!NORM && p.summed) peer = msgl__peer_open(p.sum);
    uint16_t old = 0;
    if (p.accumulate && finishes) old = __ldcg((const uint16_t *)(p.out + out));
    if (NORM) {
        float squares = 0;
        if (has_split) {
#pragma unroll
            for (int c = 0; c < k_split::CHUNKS; c++) {
                const float *const norm = p.norm + k + c * GEMV_CHUNK;
                x[c] = gemv_times_norm<__nv_bfloat16>(x[c], norm, 1, &squares);
            }
        }
        squares += __shfl_xor_sync(~0u, squares, 1);
        squares += __shfl_xor_sync(~0u, squares, 2);
        if (lane % 4 == 0) ((float *)shared)[lane / 4 * GEMV_WARPS + warp] = squares;
    }
    msgl__mbarrier_wait(barrier, 0);
    if (has_split) {
        const uint32_t eights = (uint32_t)gemv_resident_rows(p.gated, outputs) / 8;
        gemv_resident_multiply<K>(weights + warp * k_split::SPLIT_BYTES, eights, p.gated, x);
    }
    __syncthreads();
    if (!NORM && p.summed && threadIdx.x == 0) {
        msgl__peer_count(p.sum.count, p.sum.ticket, peer.call, gridDim.x);
    }
    if (!finishes) return;

    float scale = 1;
    if (NORM) {
        const char *const squares = shared + warp * GEMV_WARPS * 4;
        scale = rsqrtf(gemv_resident_total<k_split::WARPS>(squares, 4) * (1.0f / K) + p.eps);
    }
    const char *const at = rows_of_w + (lane / 8 << (int)p.gated) * 8 * k_split::PITCH +
                           gemv_resident_sum<K>(warp, lane / 8) + lane % 8 * 4;
    float v = gemv_resident_total<k_split::WARPS>(at, k_split::SPLIT_BYTES) * scale + bias[0];
    if (p.gated) {
        const char *const up_at = at + 8 * k_split::PITCH;
        const float up =
            gemv_resident_total<k_split::WARPS>(up_at, k_split::SPLIT_BYTES) * scale + bias[1];
        v = __fdividef(v, 1.0f + __expf(-v)) * up;
    }
    if (!NORM && p.summed) {
        char *const own = peer.own + gemv_word(p, (int)warp, begin + (int)lane);
        uint32_t theirs;
        v += 0.0f; // minus zero is msgl_peer_sum's
        gemv_send(p, peer, (int)warp, begin + (int)lane, v);
        msgl__peer_look(own, &theirs);
        msgl__peer_take(own, p.sum.over, &theirs);
        v += __uint_as_float(theirs);
    }
    bf16::store(p.out + out, v + msgl__unpack_two(old, __nv_bfloat16()).x);
#endif
}

template <int K> static size_t gemv_resident_shared(bool gated, int outputs)
{
    return GEMV_RESIDENT_HEAD + (size_t)gemv_resident_rows(gated, outputs) * gemv_k_split<K>::PITCH;
}

#endif
