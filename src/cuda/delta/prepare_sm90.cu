// SPDX-License-Identifier: Apache-2.0
//
// Of a chunk and a v head what needs no state: the gates, and the two matrices that make the
// recurrence within a chunk a product (WY form; Yang et al. 2024, "Parallelizing Linear
// Transformers with the Delta Rule over Sequence Length", with gates as in Gated Delta Networks,
// section 3.3):
//
//   A[i, j] = beta_i e^(G_i - G_j) k_i . k_j for j < i, T = (I + A)^-1 beta
//   P[i, j] = e^(G_i - G_j) q_i . k_j for j <= i
//
// Products by tensor cores, the inverse in f32: what bf16 would lose in it grows with the number of
// keys that are alike. Its two diagonal blocks of 32 are by substitution, a thread a column; the
// block below them is -T22 A21 T11 (of the inverse; beta comes last).
#include "cuda/delta/inputs.cuh"
#include "cuda/delta/prefill.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/wgmma.cuh"

enum { DIM = MSGL_DELTA_DIM, ROWS = DELTA_ROWS, THREADS = 128, LD_A = ROWS + 4, HALF = ROWS / 2 };

// What the products leave lies where the keys and queries were.
struct prepare_smem {
    union {
        struct {
            char k[DELTA_HEAD_IMAGES], q[DELTA_HEAD_IMAGES];
        } in;
        struct {
            // A; then T's diagonal blocks in place of A's, and A21 T11 in the upper right.
            float a[ROWS * LD_A];
            char t[DELTA_IMAGE], p[DELTA_IMAGE];
        } out;
    };
    delta_gates gates;
    float g[ROWS], beta[ROWS]; // g: sums, of base 2
    uint64_t full;
};

// The chunk's gates, by a warp, two rows a lane.
static __device__ __forceinline__ void find_gates(const msgl_delta_args &p, const delta_chunk &c,
                                                  int head, prepare_smem &smem)
{
    const int lane = (int)threadIdx.x % 32;
    float g[2], beta[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = 2 * lane + i;
        const bool there = row >= c.first && row < c.first + c.rows;
        const ptrdiff_t from = (ptrdiff_t)(c.row0 + row) * (ptrdiff_t)p.ld_ab + head;
        g[i] = there ? delta_decay(to_f32(p.a[from]), p.a_log[head], p.dt_bias[head]) : 0;
        beta[i] = there ? delta_sigmoid(to_f32(p.b[from])) : 0;
    }
    float sum = g[0] + g[1];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const float before = __shfl_up_sync(MSGL_FULL_MASK, sum, step);
        if (lane >= step) sum += before;
    }
    float before = __shfl_up_sync(MSGL_FULL_MASK, sum, 1);
    if (lane == 0) before = 0;
    const float last = __shfl_sync(MSGL_FULL_MASK, sum, 31);
    const float2 total = make_float2(before + g[0], sum);
    ((float2 *)smem.g)[lane] = total;
    ((float2 *)smem.gates.begin)[lane] = make_float2(msgl__exp2(total.x), msgl__exp2(total.y));
    ((float2 *)smem.beta)[lane] = make_float2(beta[0], beta[1]);
    ((float2 *)smem.gates.end)[lane] =
        make_float2(msgl__exp2(last - total.x), msgl__exp2(last - total.y));
}

// kk, qk: k k^T and q k^T, 16 rows of each a warp.
static __device__ __forceinline__ void multiply(const prepare_smem &smem, float (&kk)[32],
                                                float (&qk)[32])
{
    const uint64_t k = msgl__wgmma_operand(msgl__shared_address(smem.in.k));
    const uint64_t q = msgl__wgmma_operand(msgl__shared_address(smem.in.q));
    msgl__wgmma_fence();
#pragma unroll
    for (int s = 0; s < DIM / 16; s++) {
        const int at = (s / 4 * DELTA_IMAGE + s % 4 * 32) / 16;
        msgl__wgmma(kk, k + at, k + at, s > 0, msgl_delta_act());
        msgl__wgmma(qk, q + at, k + at, s > 0, msgl_delta_act());
    }
    msgl__wgmma_commit();
    msgl__wgmma_wait<0>(kk);
    msgl__wgmma_wait<0>(qk);
}

// A and P of a warp's 16 rows.
static __device__ __forceinline__ void decay(const float (&kk)[32], const float (&qk)[32], int tile,
                                             prepare_smem &smem)
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int i = tile * 16 + lane / 4 + 8 * h;
        const float gi = smem.g[i], beta = smem.beta[i];
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const int j = n * 8 + lane % 4 * 2;
            float2 a = make_float2(0, 0), p = a;
            if (n < 2 * tile + 2) {
                const float2 gj = *(const float2 *)&smem.g[j];
                const float ex = msgl__exp2(gi - gj.x), ey = msgl__exp2(gi - gj.y);
                p.x = j <= i ? qk[4 * n + 2 * h] * ex : 0;
                p.y = j + 1 <= i ? qk[4 * n + 2 * h + 1] * ey : 0;
                a.x = j < i ? beta * kk[4 * n + 2 * h] * ex : 0;
                a.y = j + 1 < i ? beta * kk[4 * n + 2 * h + 1] * ey : 0;
            }
            *(float2 *)&smem.out.a[i * LD_A + j] = a;
            *(uint32_t *)(smem.out.p + image_at(i, n) + lane % 4 * 4) =
                msgl__pack_two(p.x, p.y, msgl_delta_act());
        }
    }
}

static __device__ __forceinline__ msgl_delta_act *t_at(prepare_smem &smem, int i, int c)
{
    return (msgl_delta_act *)(smem.out.t + image_at(i, c / 8) + c % 8 * 2);
}

// Diagonal block `block` of T by a warp, a lane a column: row i is that of I, less A's row i times
// the rows above.
static __device__ __forceinline__ void invert_diagonal(prepare_smem &smem, int block)
{
    const int lane = (int)threadIdx.x % 32;
    float *a = smem.out.a + block * HALF * (LD_A + 1);
    float t[HALF];
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        float sum[4] = {i == lane ? 1.0f : 0, 0, 0, 0};
#pragma unroll
        for (int j = 0; j < i; j += 4) {
            const float4 v = *(const float4 *)&a[i * LD_A + j]; // the same for all: a broadcast
            const float row[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int e = 0; e < 4; e++) {
                if (j + e < i) sum[e] = fmaf(-row[e], t[j + e], sum[e]);
            }
        }
        t[i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
    __syncwarp();
    const float beta = smem.beta[block * HALF + lane];
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        a[i * LD_A + lane] = t[i];
        *t_at(smem, block * HALF + i, block * HALF + lane) = from_f32<msgl_delta_act>(t[i] * beta);
    }
}

// d = rows of x times y, for row tid / 4 and eight columns of 32 x 32.
static __device__ __forceinline__ void multiply_32(const float *x, const float *y, float (&d)[8])
{
    const float *row = x + (int)threadIdx.x / 4 * LD_A, *columns = y + (int)threadIdx.x % 4 * 8;
#pragma unroll
    for (int c = 0; c < 8; c++) d[c] = 0;
#pragma unroll 2
    for (int j = 0; j < HALF; j += 4) {
        const float4 v = *(const float4 *)(row + j);
        const float by[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float w[8];
            load8(columns + (j + e) * LD_A, w);
#pragma unroll
            for (int c = 0; c < 8; c++) d[c] = fmaf(by[e], w[c], d[c]);
        }
    }
}

// A in smem to T's image.
static __device__ __forceinline__ void invert(prepare_smem &smem)
{
    const int tid = (int)threadIdx.x, row = tid / 4, column = tid % 4 * 8;
    float *const a = smem.out.a, *const below = a + HALF * LD_A, *const right = a + HALF;
    if (tid < 64)
        invert_diagonal(smem, tid / 32);
    else
        for (int i = tid - 64; i < HALF * 4; i += 64) { // T is zero above
            *(uint4 *)(smem.out.t + image_at(i / 4, 4 + i % 4)) = make_uint4(0, 0, 0, 0);
        }
    __syncthreads();
    float d[8];
    multiply_32(below, a, d); // A21 T11
    store8(right + row * LD_A + column, d);
    __syncthreads();
    multiply_32(below + HALF, right, d);
#pragma unroll
    for (int c = 0; c < 8; c++) d[c] *= -smem.beta[column + c];
    store8(t_at(smem, HALF + row, column), d);
}

// Grid: v heads, chunks; then rows of targets of the convolution's inputs, which nothing reads any
// more.
static __global__ void __launch_bounds__(THREADS, 5)
    delta_prepare(const __grid_constant__ msgl_delta_args p,
                  const __grid_constant__ delta_scratch s, int chunks, int targets)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    __shared__ __align__(1024) prepare_smem smem;
    msgl__pdl_trigger();
    const uint32_t full = msgl__shared_address(&smem.full);
    if (threadIdx.x == 0) {
        msgl__mbarrier_init(full, 1);
        msgl__mbarrier_init_done();
    }
    __syncthreads(); // for racecheck, as in decode_sm90.cu
    msgl__pdl_wait();
    const int head = (int)blockIdx.x, index = (int)blockIdx.y, warp = (int)threadIdx.x / 32;
    if (index >= chunks) {
        const int target = (index - chunks) * p.v_heads + head;
        if (target < targets) delta_keep_target(p, target);
        return;
    }
    if (threadIdx.x == 0) {
        const size_t at = ((size_t)index * p.k_heads + head / p.group_size) * DELTA_HEAD_IMAGES;
        msgl__mbarrier_expect(full, 2 * DELTA_HEAD_IMAGES);
        msgl__bulk_load(msgl__shared_address(smem.in.k), s.k + at, DELTA_HEAD_IMAGES, full);
        msgl__bulk_load(msgl__shared_address(smem.in.q), s.q + at, DELTA_HEAD_IMAGES, full);
    }
    if (warp == 3) find_gates(p, s.chunks[index], head, smem); // of padding: of no use
    __syncthreads();
    msgl__mbarrier_wait(full, 0);
    float kk[32], qk[32];
    multiply(smem, kk, qk);
    __syncthreads();
    decay(kk, qk, warp, smem);
    __syncthreads();
    invert(smem);
    msgl__fence_async_proxy();
    __syncthreads();
    if (threadIdx.x == 0) {
        const size_t at = (size_t)index * p.v_heads + head;
        msgl__bulk_store(s.t + at * DELTA_IMAGE, msgl__shared_address(smem.out.t), DELTA_IMAGE);
        msgl__bulk_store(s.p + at * DELTA_IMAGE, msgl__shared_address(smem.out.p), DELTA_IMAGE);
        msgl__bulk_store(s.gates + at * DELTA_GATES, msgl__shared_address(&smem.gates),
                         DELTA_GATES);
        msgl__tensor_store_commit();
        msgl__tensor_store_read<0>();
    }
#endif
}

cudaError_t msgl__delta_prepare(const msgl_delta_args &p, const delta_scratch &s, int chunks,
                                int targets, cudaStream_t stream)
{
    const int rows = chunks + (targets + p.v_heads - 1) / p.v_heads;
    return msgl__launch(delta_prepare, dim3(p.v_heads, rows), dim3(THREADS), 0, stream, p, s,
                        chunks, targets);
}
