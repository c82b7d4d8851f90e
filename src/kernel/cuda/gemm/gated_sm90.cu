// SPDX-License-Identifier: Apache-2.0
//
// out[m, n/2] = silu(in G^T) * (in U^T), W = [G; U], on Hopper: a gate tile and the up tile that
// belongs to it are multiplied together, so that the 2 x n/2 products stay in registers. By the
// library and a kernel behind it they go through device memory twice.
//
// A block makes 128 rows x 128 columns of out: one warp loads, two warpgroups multiply 64 rows by
// 256 columns each (128 gate, 128 up). Two blocks of a cluster work on the same columns; each loads
// half of the weights for both. docs/internals/gemm.md has the reasons and the figures.
#include "kernel/cuda/gemm/gated_sm90.h"

#include "kernel/cuda/device.cuh"
#include "kernel/cuda/gemm/mma.cuh"
#include "kernel/cuda/gemm/tensor_map.cuh"
#include "kernel/cuda/gemm/wgmma.cuh"
#include "kernel/cuda/launch.cuh"

enum {
    BM = 128,
    COLUMNS = 128,
    BK = 64,
    STAGES = 4,
    GROUP = 128, // threads
    THREADS = 3 * GROUP,
    A_BYTES = BM * BK * 2,
    HALF_BYTES = COLUMNS * BK * 2, // of the gate tile, of the up tile
    STAGE_BYTES = A_BYTES + 2 * HALF_BYTES,
    BOX_BYTES = 64 * 128, // of out: 64 rows x 64 columns
    OUT_BYTES = BM * COLUMNS * 2,
    SHARED_BYTES = STAGES * STAGE_BYTES + OUT_BYTES + 2 * STAGES * 8 + 1024,
    CLUSTER = 2,
    BAND = 8, // pairs of row tiles that are made before the next columns: they stay in the L2
};

typedef struct gated_args {
    int32_t m, half, k;              // half: n / 2
    int32_t row_tiles, column_tiles; // row tiles of the cluster's 256 rows
} gated_args;

static __device__ __forceinline__ void place(const gated_args &g, int index, int *row, int *column)
{
    const int per_band = BAND * g.column_tiles, band = index / per_band, within = index % per_band;
    const int left = g.row_tiles - band * BAND, height = left < BAND ? left : BAND;
    *row = (band * BAND + within % height) * (CLUSTER * BM);
    *column = within / height * COLUMNS;
}

template <typename T> static __device__ __forceinline__ uint32_t pack_two(float a, float b);
template <> __device__ __forceinline__ uint32_t pack_two<__nv_bfloat16>(float a, float b)
{
    const __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
    return *(const uint32_t *)&v;
}
template <> __device__ __forceinline__ uint32_t pack_two<__half>(float a, float b)
{
    const __half2 v = __floats2half2_rn(a, b);
    return *(const uint32_t *)&v;
}

template <typename T>
__global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(CLUSTER, 1, 1)
    gated_sm90(const gated_args g, const __grid_constant__ CUtensorMap map_in,
               const __grid_constant__ CUtensorMap map_w,
               const __grid_constant__ CUtensorMap map_out)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ unsigned char unaligned[];
    const uint32_t stages = (msgl__shared_address(unaligned) + 1023) & ~1023u;
    const uint32_t out = stages + STAGES * STAGE_BYTES;
    const uint32_t full = out + OUT_BYTES, empty = full + STAGES * 8;
    const uint32_t rank = msgl__cluster_rank();
    const int group = threadIdx.x / GROUP, steps = (g.k + BK - 1) / BK;
    const int tiles = g.row_tiles * g.column_tiles;
    const int begin = blockIdx.x / CLUSTER, stride = gridDim.x / CLUSTER;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            msgl__barrier_init(full + i * 8, 1);
            msgl__barrier_init(empty + i * 8, CLUSTER * 2 * GROUP / 32); // warps that multiply
        }
        msgl__barrier_init_done();
    }
    msgl__cluster_meet();
    msgl__pdl_trigger();
    msgl__pdl_wait();
    int slot = 0;
    uint32_t phase = 0;

    if (group == 0) {
        msgl__registers_down<40>();
        if (threadIdx.x == 0) {
            for (int index = begin; index < tiles; index += stride) {
                int row, column;
                place(g, index, &row, &column);
                row += (int)rank * BM;
                for (int s = 0; s < steps; s++) {
                    const uint32_t a = stages + (uint32_t)slot * STAGE_BYTES;
                    const uint32_t b = a + A_BYTES + rank * HALF_BYTES, done = full + slot * 8;
                    msgl__barrier_wait(empty + slot * 8, phase ^ 1);
                    msgl__barrier_expect(done, STAGE_BYTES);
                    msgl__tensor_load(a, &map_in, s * BK, row, done);
                    // Of the weights, one block loads the gate rows, the other the up rows.
                    msgl__tensor_load_multicast(b, &map_w, s * BK, column + (int)rank * g.half,
                                                done, (1 << CLUSTER) - 1);
                    if (++slot == STAGES) {
                        slot = 0;
                        phase ^= 1;
                    }
                }
            }
        }
        __syncwarp();
    } else {
        msgl__registers_up<232>();
        const int lane = threadIdx.x % 32, warp = threadIdx.x % GROUP / 32;
        const uint32_t rows_out = out + (uint32_t)(group - 1) * (OUT_BYTES / 2);
        const bool stores = threadIdx.x % GROUP == 0;
        for (int index = begin; index < tiles; index += stride) {
            int row, column, last = 0;
            place(g, index, &row, &column);
            row += (int)rank * BM + (group - 1) * 64;
            float acc[128];
            for (int s = 0; s < steps; s++) {
                msgl__barrier_wait(full + slot * 8, phase);
                const uint32_t at = stages + (uint32_t)slot * STAGE_BYTES;
                const uint64_t a = msgl__wgmma_operand(at + (uint32_t)(group - 1) * (A_BYTES / 2));
                const uint64_t b = msgl__wgmma_operand(at + A_BYTES);
                msgl__wgmma_begin();
#pragma unroll
                for (int i = 0; i < BK / 16; i++) { // 32 bytes on in every row
                    msgl__wgmma(acc, a + 2 * i, b + 2 * i, s > 0 || i > 0, T());
                }
                msgl__wgmma_commit();
                msgl__wgmma_wait<1>();
                if (s > 0 && lane < CLUSTER) msgl__barrier_arrive(empty + last * 8, (uint32_t)lane);
                last = slot;
                if (++slot == STAGES) {
                    slot = 0;
                    phase ^= 1;
                }
            }
            msgl__wgmma_wait<0>();
            if (lane < CLUSTER) msgl__barrier_arrive(empty + last * 8, (uint32_t)lane);

            if (stores) msgl__tensor_store_read();
            msgl__barrier_group(group, GROUP);
            const int r = warp * 16 + lane % 16;
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; j += 2) {
                uint32_t v[4];
#pragma unroll
                for (int i = 0; i < 4; i++) { // columns j and j + 1, rows 0-7 and 8-15 of each
                    const int at = (j + i / 2) * 4 + i % 2 * 2;
                    v[i] = pack_two<T>(msgl__silu(acc[at]) * acc[64 + at],
                                       msgl__silu(acc[at + 1]) * acc[64 + at + 1]);
                }
                const int chunk = j + lane / 16;
                msgl__store_matrix_4(rows_out + (uint32_t)(chunk / 8 * BOX_BYTES + r * 128 +
                                                           ((chunk % 8) ^ (r % 8)) * 16),
                                     v[0], v[1], v[2], v[3]);
            }
            msgl__fence_shared();
            msgl__barrier_group(group, GROUP);
            if (stores) {
                msgl__tensor_store(&map_out, rows_out, column, row);
                msgl__tensor_store(&map_out, rows_out + BOX_BYTES, column + 64, row);
                msgl__tensor_store_commit();
            }
        }
        if (stores) msgl__tensor_store_wait();
    }
    msgl__cluster_sync(); // the other block may still write and arrive here
#endif
}

template <typename T>
static void launch(msgl_exec *x, const gated_args &g, const CUtensorMap maps[3])
{
    const msgl_cuda_device *d = msgl__cuda_device(x);
    const int64_t blocks = (int64_t)g.row_tiles * g.column_tiles * CLUSTER;
    const int64_t resident = d->sm_count / CLUSTER * CLUSTER;
    MSGL_CUDA_TRY(x, cudaFuncSetAttribute(
                         gated_sm90<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES));
    MSGL_CUDA_TRY(
        x, msgl__launch(gated_sm90<T>, dim3((unsigned)(blocks < resident ? blocks : resident)),
                        dim3(THREADS), SHARED_BYTES, d->stream, g, maps[0], maps[1], maps[2]));
}

// It wins by 1 to 15 % where the last round of tiles leaves few multiprocessors idle; the library
// can cut tiles of other sizes.
bool msgl__cuda_gated_sm90_wins(const msgl_exec *x, const msgl_weight *w, int32_t m)
{
    enum { MIN_ROWS = 512 };
    const int64_t row_tiles = (m + CLUSTER * BM - 1) / (CLUSTER * BM);
    const int64_t tiles = row_tiles * ((w->n / 2 + COLUMNS - 1) / COLUMNS);
    const int64_t clusters = msgl__cuda_device(x)->sm_count / CLUSTER;
    const int64_t rounds = (tiles + clusters - 1) / clusters;
    return x->device->capability == 90 && w->dtype != MSGL_F32 && m >= MIN_ROWS &&
           100 * tiles >= 93 * rounds * clusters;
}

bool msgl__cuda_gated_sm90(msgl_exec *x, const msgl_linear_call *c, bool always)
{
    const msgl_weight *w = c->w;
    const uintptr_t bits = (uintptr_t)c->in | (uintptr_t)c->out | (uintptr_t)w->data;
    if (x->device->capability != 90 || w->dtype == MSGL_F32 || !c->gated || c->norm != NULL ||
        c->bias != NULL || bits % 16 != 0 || w->k % 8 != 0 || w->n % 16 != 0 || c->ld_in % 8 != 0 ||
        c->ld_out % 8 != 0) {
        return false;
    }
    gated_args g = {};
    g.m = c->m;
    g.half = w->n / 2;
    g.k = w->k;
    g.row_tiles = (c->m + CLUSTER * BM - 1) / (CLUSTER * BM);
    g.column_tiles = (g.half + COLUMNS - 1) / COLUMNS;
    if (!always && !msgl__cuda_gated_sm90_wins(x, w, c->m)) return false;
    CUtensorMap maps[3];
    if (!msgl__tensor_map(&maps[0], w->dtype, c->in, c->m, w->k, c->ld_in, BM) ||
        !msgl__tensor_map(&maps[1], w->dtype, w->data, w->n, w->k, (size_t)w->k, COLUMNS) ||
        !msgl__tensor_map(&maps[2], w->dtype, c->out, c->m, g.half, c->ld_out, 64)) {
        return false;
    }
    if (w->dtype == MSGL_F16) {
        launch<__half>(x, g, maps);
    } else {
        launch<__nv_bfloat16>(x, g, maps);
    }
    return true;
}
