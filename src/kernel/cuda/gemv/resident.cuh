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
// for all tiles. A warp has one part of k. Warps meet once, to add their sums in a fixed order.
//
// Tensor cores as in kernel.cuh: W is the A operand (16 rows), activations are the 8 columns of B,
// and k inside a CHUNK is permuted the same way for both, so that a lane's share of a row is 16
// contiguous bytes. Norm weights multiply the fragments, the row's scale the sums.
#ifndef MSGL_KERNEL_CUDA_GEMV_RESIDENT_CUH
#define MSGL_KERNEL_CUDA_GEMV_RESIDENT_CUH

#include "kernel/cuda/gemm/wgmma.cuh"
#include "kernel/cuda/gemv/kernel.cuh"

#define GEMV_CHUNK 32 // elements of k: two mma
#define GEMV_RESIDENT_COLUMNS 8
// Sums of one tile: [warp][column][row], rows padded.
#define GEMV_RESIDENT_SUMS (GEMV_WARPS * GEMV_RESIDENT_COLUMNS * GEMV_PITCH)

#define GEMV_RESIDENT_TILES 4
// Bytes: sums of squares [warp][column], the barrier.
#define GEMV_RESIDENT_HEAD (GEMV_WARPS * GEMV_RESIDENT_COLUMNS * 4 + 128)

// Bytes from one row of W in shared memory to the next: an odd multiple of 64, which keeps the 16
// byte pieces that eight lanes read at a time in different banks.
static __host__ __device__ __forceinline__ int gemv_resident_pitch(int k)
{
    return (2 * k + 127) / 128 * 128 + 64;
}

// Rows of shared memory for a block's outputs: tiles of 16, the last one of 8 if that suffices.
static __host__ __device__ __forceinline__ int gemv_resident_rows(bool gated, int outputs)
{
    return gated ? (outputs + 7) / 8 * 16 : (outputs + 7) / 8 * 8;
}

// Row of W that belongs in row `row` of the block's tiles, -1: none. A gated tile has 8 gate rows,
// then the 8 up rows of the same outputs.
static __device__ __forceinline__ int gemv_resident_row(const gemv_params &p, int begin, int end,
                                                        int row)
{
    const int o = begin + (p.gated ? row / 16 * 8 + row % 8 : row);
    if (o >= end) return -1;
    return p.gated && row % 16 >= 8 ? p.n + o : o;
}

// Starts the copies of the block's rows; by one warp.
static __device__ __forceinline__ void gemv_resident_load(const gemv_params &p, int begin, int end,
                                                          int rows, uint32_t weights,
                                                          uint32_t barrier)
{
    const int lane = threadIdx.x % 32, pitch = gemv_resident_pitch(p.k);
    if (lane == 0) {
        const uint32_t bytes = (uint32_t)(end - begin) * (p.gated ? 2 : 1) * p.k * 2;
        msgl__barrier_init(barrier, 1);
        msgl__barrier_init_done();
        msgl__barrier_expect(barrier, bytes);
    }
    __syncwarp();
    for (int row = lane; row < rows; row += 32) {
        const int from = gemv_resident_row(p, begin, end, row);
        if (from < 0) continue;
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1], %2, [%3];" ::"r"(weights + row * pitch),
                     "l"(p.w + (size_t)from * p.k * 2), "r"(p.k * 2), "r"(barrier)
                     : "memory");
    }
}

// This lane's activations: row lane / 4 of `in`, its share of the warp's chunks, times the norm's
// weights. Zero beyond m and k. *squares: sum of the squares of what was read.
template <typename T, int CHUNKS>
static __device__ __forceinline__ void gemv_resident_act(const gemv_params &p, uint4 b[CHUNKS],
                                                         float *squares)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = lane / 4;
    const int first = warp * CHUNKS * GEMV_CHUNK + lane % 4 * 8;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        const int k = first + i * GEMV_CHUNK;
        b[i] = make_uint4(0, 0, 0, 0);
        if (column < p.m && k < p.k) {
            b[i] = __ldcg((const uint4 *)(p.in + (column * p.ld_in + k) * 2));
        }
    }
    *squares = 0;
    if (p.norm == NULL) return;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        const int k = first + i * GEMV_CHUNK;
        if (k < p.k) b[i] = gemv_times_norm<T>(b[i], p.norm + k, 1, squares);
    }
}

// The block's outputs, column by column. old: what thread i's output i holds before.
template <typename T>
static __device__ __forceinline__ void gemv_resident_finish(const gemv_params &p, int begin,
                                                            int outputs, const float *sums,
                                                            const float *part, float old)
{
    const int per_tile = p.gated ? 8 : 16;
    for (int i = threadIdx.x; i < outputs * p.m; i += GEMV_THREADS) {
        const int column = i / outputs, o = i % outputs, row = o % per_tile;
        float scale = 1;
        if (p.norm != NULL) {
            float sum = 0;
#pragma unroll
            for (int w = 0; w < GEMV_WARPS; w++) sum += part[w * GEMV_RESIDENT_COLUMNS + column];
            scale = rsqrtf(sum / (float)p.k + p.eps);
        }
        const float *const tile = sums + o / per_tile * GEMV_RESIDENT_SUMS;
        const float v = gemv_total(tile, GEMV_RESIDENT_COLUMNS, column, row);
        const float up = p.gated ? gemv_total(tile, GEMV_RESIDENT_COLUMNS, column, row + 8) : 0;
        if (i >= GEMV_THREADS && p.accumulate) {
            old = gemv_type<T>::load(p.out + (column * p.ld_out + begin + o) * 2);
        }
        gemv_finish<T>(p, v, up, scale, column, begin + o, old);
    }
}

// Products of all tiles with this warp's part of k.
template <typename T, int CHUNKS>
static __device__ __forceinline__ void gemv_resident_multiply(uint32_t at, int pitch, int rows,
                                                              int chunks, const uint4 b[CHUNKS],
                                                              float acc[GEMV_RESIDENT_TILES][4])
{
#pragma unroll
    for (int tile = 0; tile < GEMV_RESIDENT_TILES; tile++) {
        if (tile * 16 >= rows) break;
        const uint32_t row0 = at + tile * 16 * pitch;
        const bool whole = rows - tile * 16 > 8; // or there are no rows 8 to 15
        float other[4] = {};
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            if (i >= chunks) break;
            const uint4 r0 = msgl__read_shared_16(row0 + i * GEMV_CHUNK * 2);
            uint4 r8 = make_uint4(0, 0, 0, 0);
            if (whole) r8 = msgl__read_shared_16(row0 + 8 * pitch + i * GEMV_CHUNK * 2);
            gemv_type<T>::mma(acc[tile], r0.x, r8.x, r0.y, r8.y, b[i].x, b[i].y);
            gemv_type<T>::mma(other, r0.z, r8.z, r0.w, r8.w, b[i].z, b[i].w);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) acc[tile][e] += other[e];
    }
}

// CHUNKS: of each warp, at least. Shared memory: sums of squares, the barrier, rows of W, whose
// place the sums take once all warps have read them.
template <typename T, int CHUNKS>
static __global__ void __launch_bounds__(GEMV_THREADS, 2)
    gemv_resident(const __grid_constant__ gemv_params p)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900 // never launched before
    extern __shared__ __align__(128) char shared[];
    float *const part = (float *)shared;
    char *const rows_of_w = shared + GEMV_RESIDENT_HEAD;
    float *const sums = (float *)rows_of_w;
    const uint32_t weights = (uint32_t)__cvta_generic_to_shared(rows_of_w);
    const uint32_t barrier = weights - 16;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pitch = gemv_resident_pitch(p.k);
    const int begin = (int)((int64_t)p.n * blockIdx.x / gridDim.x);
    const int end = (int)((int64_t)p.n * (blockIdx.x + 1) / gridDim.x);
    const int outputs = end - begin, rows = gemv_resident_rows(p.gated, outputs);

    if (p.early) msgl__pdl_trigger();
    if (warp == 0) gemv_resident_load(p, begin, end, rows, weights, barrier);
    if (p.norm != NULL) {
        for (int i = threadIdx.x * 32; i < p.k; i += GEMV_THREADS * 32) {
            asm volatile("prefetch.global.L1 [%0];" ::"l"(p.norm + i));
        }
    }
    __syncthreads(); // the barrier is ready
    msgl__pdl_wait();
    if (!p.early) msgl__pdl_trigger();

    uint4 b[CHUNKS];
    float squares;
    gemv_resident_act<T, CHUNKS>(p, b, &squares);
    float old = 0; // of the output that this thread finishes first
    if (p.accumulate && (int)threadIdx.x < outputs * p.m) {
        const int column = threadIdx.x / outputs, o = begin + threadIdx.x % outputs;
        old = gemv_type<T>::load(p.out + (column * p.ld_out + o) * 2);
    }
    if (p.norm != NULL) {
        squares += __shfl_xor_sync(~0u, squares, 1);
        squares += __shfl_xor_sync(~0u, squares, 2);
        if (lane % 4 == 0) part[warp * GEMV_RESIDENT_COLUMNS + lane / 4] = squares;
    }
    float acc[GEMV_RESIDENT_TILES][4] = {};
    msgl__barrier_wait(barrier, 0);
    gemv_resident_multiply<T, CHUNKS>(weights + lane / 4 * pitch + warp * CHUNKS * GEMV_CHUNK * 2 +
                                          lane % 4 * 16,
                                      pitch, rows, p.k / GEMV_CHUNK - warp * CHUNKS, b, acc);
    __syncthreads();
    float *const mine =
        sums + (warp * GEMV_RESIDENT_COLUMNS + lane % 4 * 2) * GEMV_PITCH + lane / 4;
#pragma unroll
    for (int tile = 0; tile < GEMV_RESIDENT_TILES; tile++) {
        if (tile * 16 >= rows) break;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            mine[tile * GEMV_RESIDENT_SUMS + e % 2 * GEMV_PITCH + e / 2 * 8] = acc[tile][e];
        }
    }
    __syncthreads();
    gemv_resident_finish<T>(p, begin, outputs, sums, part, old);
#endif
}

static size_t gemv_resident_shared(const gemv_params *p, int outputs)
{
    const int rows = gemv_resident_rows(p->gated, outputs);
    const size_t sums = (size_t)(rows + 15) / 16 * GEMV_RESIDENT_SUMS * sizeof(float);
    const size_t weights = (size_t)rows * gemv_resident_pitch(p->k);
    return GEMV_RESIDENT_HEAD + (sums > weights ? sums : weights);
}

#endif
