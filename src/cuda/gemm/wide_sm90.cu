// SPDX-License-Identifier: Apache-2.0
//
// Products of many rows on Hopper, with what stands behind them done to the sums in registers. By
// the library and a kernel behind it, the products go through device memory twice.
//
//   GATED  out[m, n/2] = silu(in G^T) * (in U^T), W = [G; U]
//   HEADS  heads of q and k normed and rotated, q to out, K and V to the pool
//
// A block makes 128 rows x 256 columns of the product: one warp loads, two warpgroups multiply 64
// rows each. The columns are two tiles of 128 rows of W: of GATED a gate tile and the up tile that
// belongs to it, otherwise neighbours. Two blocks of a cluster work on the same columns; each loads
// half of the weights for both. docs/internals/gemm.md has the reasons and the figures.
#include "cuda/gemm/wide_sm90.h"

#include "cuda/device.cuh"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/stage.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/tensor_map.cuh"

enum {
    BM = 128,
    COLUMNS = 128, // of a tile of W
    STAGES = 4,
    THREADS = 3 * GROUP,
    A_BYTES = BM * BK * 2,
    HALF_BYTES = COLUMNS * BK * 2, // of either tile of W
    STAGE_BYTES = A_BYTES + 2 * HALF_BYTES,
    // Each of the 8 multiplying warps writes its 16 rows by boxes of 64 columns, through two
    // buffers of its own.
    WARP_ROWS = 16,
    BOX_BYTES = WARP_ROWS * 128,
    OUT_BYTES = 8 * 2 * BOX_BYTES,
    SHARED_BYTES = STAGES * STAGE_BYTES + OUT_BYTES + 2 * STAGES * 8 + 1024,
    CLUSTER = 2,
    BAND = 8, // pairs of row tiles that are made before the next columns: they stay in the L2
};

enum { GATED, HEADS };

typedef struct wide_args {
    int32_t m, k;
    int32_t second, step;            // rows of W: from a tile to its second one, to the next tile
    int32_t row_tiles, column_tiles; // row tiles of the cluster's 256 rows
    // HEADS:
    void *out;
    size_t ld_out;
    int32_t q_columns, kv_columns; // of out: q, then K, then V
    const float *bias, *q_weight, *k_weight, *cos_sin;
    float eps;
    void *k_pool, *v_pool; // [slots, kv_columns]
    const int32_t *slots;
} wide_args;

static __device__ __forceinline__ void place(const wide_args &g, int index, int *row, int *column)
{
    const int per_band = BAND * g.column_tiles, band = index / per_band, within = index % per_band;
    const int left = g.row_tiles - band * BAND, height = left < BAND ? left : BAND;
    *row = (band * BAND + within % height) * (CLUSTER * BM);
    *column = within / height * g.step;
}

// --- what is done to the sums -------------------------------------------------------------------
//
// A thread of a warp holds, of its rows lane / 4 and lane / 4 + 8, columns 8 j + 2 (lane % 4) and
// the next one of every j: acc[4 j], acc[4 j + 1] of the first row, acc[4 j + 2], acc[4 j + 3] of
// the second. The other columns of a row are in the other three lanes of its quad.

static __device__ __forceinline__ float quad_sum(float v)
{
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

static __device__ __forceinline__ float2 read_two(const float *p)
{
    return *(const float2 *)p;
}

static __device__ __forceinline__ void add_bias(float (&acc)[128], const float *bias, int lane)
{
#pragma unroll
    for (int j = 0; j < 32; j++) {
        const float2 b = read_two(bias + 8 * j + lane % 4 * 2);
        acc[4 * j] += b.x;
        acc[4 * j + 1] += b.y;
        acc[4 * j + 2] += b.x;
        acc[4 * j + 3] += b.y;
    }
}

template <int DIM>
static __device__ __forceinline__ void norm_heads(float (&acc)[128], const float *weight, float eps,
                                                  int lane)
{
    enum { SUMS = DIM / 2, NUM = 128 / SUMS };
    float scale[2 * NUM];
#pragma unroll
    for (int h = 0; h < NUM; h++) {
        float first = 0, second = 0;
#pragma unroll
        for (int i = h * SUMS; i < (h + 1) * SUMS; i += 4) {
            first += acc[i] * acc[i] + acc[i + 1] * acc[i + 1];
            second += acc[i + 2] * acc[i + 2] + acc[i + 3] * acc[i + 3];
        }
        scale[2 * h] = rsqrtf(quad_sum(first) / (float)DIM + eps);
        scale[2 * h + 1] = rsqrtf(quad_sum(second) / (float)DIM + eps);
    }
#pragma unroll
    for (int j = 0; j < DIM / 8; j++) {
        const float2 w = read_two(weight + 8 * j + lane % 4 * 2);
#pragma unroll
        for (int h = 0; h < NUM; h++) {
            float *v = acc + h * SUMS + 4 * j;
            v[0] *= scale[2 * h] * w.x;
            v[1] *= scale[2 * h] * w.y;
            v[2] *= scale[2 * h + 1] * w.x;
            v[3] *= scale[2 * h + 1] * w.y;
        }
    }
}

// Cosines and sines of eight rows, read as whole lines: a load of what each thread needs itself
// touches eight lines. Through the warp's buffers they get to their threads, chunks of eight
// floats swizzled by the row.
template <int DIM> struct angles {
    float4 v[DIM / 16];
};

template <int DIM>
static __device__ __forceinline__ void read_angles(angles<DIM> &a, const wide_args &g, int row,
                                                   int lane)
{
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) {
        const int at = 32 * i + lane, r = row + at / (DIM / 4);
        const float *p = g.cos_sin + (size_t)(r < g.m ? r : g.m - 1) * DIM;
        a.v[i] = *(const float4 *)(p + at % (DIM / 4) * 4);
    }
}

template <int DIM>
static __device__ __forceinline__ void copy_angles(const angles<DIM> &a, uint32_t buffer, int lane)
{
    __syncwarp(); // all have read what was there
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) {
        const int at = 32 * i + lane, r = at / (DIM / 4), c = at % (DIM / 4);
        msgl__write_shared(buffer + (uint32_t)(r * DIM * 4 + ((c / 2) ^ r) * 32 + c % 2 * 16),
                           a.v[i]);
    }
    __syncwarp();
}

// Of columns 8 chunk + 2 (lane % 4) and the next one in this thread's row.
template <int DIM>
static __device__ __forceinline__ float2 shared_angle(uint32_t buffer, int chunk, int lane)
{
    const int r = lane / 4;
    return msgl__read_shared<float2>(buffer +
                                     (uint32_t)(r * DIM * 4 + (chunk ^ r) * 32 + lane % 4 * 8));
}

static __device__ __forceinline__ void rotate(float &a, float &b, float cosine, float sine)
{
    const float u = a, w = b;
    a = u * cosine - w * sine;
    b = w * cosine + u * sine;
}

// Of this thread's first or second row. Column i of a head turns into column i + DIM / 2: both are
// in this thread.
template <int DIM>
static __device__ __forceinline__ void rotate_heads(float (&acc)[128], int second, uint32_t buffer,
                                                    int lane)
{
    enum { SUMS = DIM / 2, NUM = 128 / SUMS, HALF = SUMS / 2 };
#pragma unroll
    for (int j = 0; j < DIM / 16; j++) {
        const float2 cosine = shared_angle<DIM>(buffer, j, lane);
        const float2 sine = shared_angle<DIM>(buffer, DIM / 16 + j, lane);
#pragma unroll
        for (int h = 0; h < NUM; h++) {
            float *v = acc + h * SUMS + 4 * j + 2 * second;
            rotate(v[0], v[HALF], cosine.x, sine.x);
            rotate(v[1], v[HALF + 1], cosine.y, sine.y);
        }
    }
}

// --- out ----------------------------------------------------------------------------------------

// Columns [64 box, 64 box + 64) of this warp's 16 rows, rounded, into a buffer swizzled as a tensor
// copy reads it.
template <typename T, int KIND>
static __device__ __forceinline__ void fill_box(const float (&acc)[128], int box, uint32_t buffer,
                                                int lane)
{
    const int r = lane % 16;
#pragma unroll
    for (int i = 0; i < 4; i++) { // 16 columns each
        uint32_t v[4];
#pragma unroll
        for (int p = 0; p < 4; p++) { // columns 0-7 and 8-15, of each rows 0-7 and 8-15
            const int at = (8 * box + 2 * i + p / 2) * 4 + p % 2 * 2;
            if (KIND == GATED) {
                v[p] = msgl__pack_two(msgl__silu(acc[at]) * acc[(at + 64) % 128],
                                      msgl__silu(acc[at + 1]) * acc[(at + 65) % 128], T());
            } else {
                v[p] = msgl__pack_two(acc[at], acc[at + 1], T());
            }
        }
        const int chunk = 2 * i + lane / 16;
        msgl__store_matrix_4(buffer + (uint32_t)(r * 128 + (chunk ^ (r % 8)) * 16), v[0], v[1],
                             v[2], v[3]);
    }
}

template <typename T>
static __device__ __forceinline__ void store_gated(const float (&acc)[128], const CUtensorMap *map,
                                                   uint32_t buffers, int row, int column, int lane)
{
#pragma unroll
    for (int box = 0; box < 2; box++) {
        const uint32_t buffer = buffers + (uint32_t)(box * BOX_BYTES);
        if (lane == 0) msgl__tensor_store_read<1>(); // the copy before the last, of this buffer
        __syncwarp();
        fill_box<T, GATED>(acc, box, buffer, lane);
        msgl__fence_async_proxy();
        __syncwarp();
        if (lane == 0) {
            msgl__tensor_store(map, buffer, column + 64 * box, row);
            msgl__tensor_store_commit();
        }
    }
}

// Which row of out or of the pool this warp's row lane % 16 is; -1: none.
static __device__ __forceinline__ int32_t find_row(const wide_args &g, int row, int column,
                                                   int lane)
{
    const int r = row + lane % WARP_ROWS;
    return r >= g.m ? -1 : column < g.q_columns ? r : g.slots[r];
}

// By ordinary stores of whole lines, as rows of the pool are anywhere.
template <typename T>
static __device__ __forceinline__ void store_heads(const wide_args &g, const float (&acc)[128],
                                                   int32_t to, uint32_t buffers, int column,
                                                   int lane)
{
    const bool is_q = column < g.q_columns, is_v = column >= g.q_columns + g.kv_columns;
    const size_t ld = is_q ? g.ld_out : (size_t)g.kv_columns;
    const int first = column - (is_q ? 0 : g.q_columns) - (is_v ? g.kv_columns : 0);
    char *base = (char *)(is_q ? g.out : is_v ? g.v_pool : g.k_pool);
    base += (size_t)(first + lane % 8 * 8) * 2;
#pragma unroll
    for (int box = 0; box < 4; box++) {
        const uint32_t buffer = buffers + (uint32_t)(box % 2 * BOX_BYTES);
        fill_box<T, HEADS>(acc, box, buffer, lane);
        __syncwarp(); // also: all have read the other buffer
        uint4 v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) { // eight lanes a row
            const int r = 4 * i + lane / 8;
            v[i] = msgl__read_shared<uint4>(buffer + (uint32_t)(r * 128 + ((lane ^ r) % 8) * 16));
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int32_t at = __shfl_sync(0xffffffffu, to, 4 * i + lane / 8);
            if (at >= 0) *(uint4 *)(base + ((size_t)at * ld + box * 64) * 2) = v[i];
        }
    }
    __syncwarp();
}

// --- the kernel ---------------------------------------------------------------------------------

template <typename T, int KIND, int DIM>
__global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(CLUSTER, 1, 1)
    wide_sm90(const wide_args g, const __grid_constant__ CUtensorMap map_in,
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
            msgl__mbarrier_init(full + i * 8, 1);
            msgl__mbarrier_init(empty + i * 8, CLUSTER * 2 * GROUP / 32); // warps that multiply
        }
        msgl__mbarrier_init_done();
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
                    msgl__mbarrier_wait(empty + slot * 8, phase ^ 1);
                    msgl__mbarrier_expect(done, STAGE_BYTES);
                    msgl__tensor_load(a, &map_in, s * BK, row, done);
                    // Of the weights, one block loads the first tile, the other the second.
                    msgl__tensor_load_multicast(b, &map_w, s * BK, column + (int)rank * g.second,
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
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - GROUP / 32; // 0 to 7
        const uint32_t buffers = out + (uint32_t)(warp * 2 * BOX_BYTES);
        for (int index = begin; index < tiles; index += stride) {
            int row, column, last = 0;
            place(g, index, &row, &column);
            row += (int)rank * BM + warp * WARP_ROWS;
            float acc[128];
            for (int s = 0; s < steps; s++) {
                msgl__mbarrier_wait(full + slot * 8, phase);
                const uint32_t at = stages + (uint32_t)slot * STAGE_BYTES;
                const uint32_t mine = at + (uint32_t)(group - 1) * (A_BYTES / 2);
                multiply_stage(acc, msgl__wgmma_operand(mine), msgl__wgmma_operand(at + A_BYTES),
                               s > 0, T());
                msgl__wgmma_wait<1>();
                if (s > 0 && lane < CLUSTER)
                    msgl__mbarrier_arrive_at(empty + last * 8, (uint32_t)lane);
                last = slot;
                if (++slot == STAGES) {
                    slot = 0;
                    phase ^= 1;
                }
            }
            if constexpr (KIND == GATED) {
                msgl__wgmma_wait<0>();
                if (lane < CLUSTER) msgl__mbarrier_arrive_at(empty + last * 8, (uint32_t)lane);
                store_gated<T>(acc, &map_out, buffers, row, column, lane);
            } else {
                // The first rows' angles and all rows' slots are read beside the last products.
                const bool rotates = column < g.q_columns + g.kv_columns;
                const int32_t to = find_row(g, row, column, lane);
                angles<DIM> a;
                if (rotates) read_angles(a, g, row, lane);
                msgl__wgmma_wait<0>();
                if (lane < CLUSTER) msgl__mbarrier_arrive_at(empty + last * 8, (uint32_t)lane);
                if (g.bias != NULL) add_bias(acc, g.bias + column, lane);
                if (rotates) {
                    copy_angles(a, buffers, lane);
                    read_angles(a, g, row + 8, lane);
                    const float *weight = column < g.q_columns ? g.q_weight : g.k_weight;
                    if (weight != NULL) norm_heads<DIM>(acc, weight, g.eps, lane);
                    rotate_heads<DIM>(acc, 0, buffers, lane);
                    copy_angles(a, buffers, lane);
                    rotate_heads<DIM>(acc, 1, buffers, lane);
                    __syncwarp();
                }
                store_heads<T>(g, acc, to, buffers, column, lane);
            }
        }
        if (KIND == GATED && lane == 0) msgl__tensor_store_wait();
    }
    msgl__cluster_sync(); // the other block may still write and arrive here
#endif
}

// --- host ---------------------------------------------------------------------------------------

static void set_tiles(wide_args *g, int kind, const msgl_weight *w, int32_t m)
{
    const int32_t columns = kind == GATED ? w->n / 2 : w->n;
    g->m = m;
    g->k = w->k;
    g->second = kind == GATED ? columns : COLUMNS;
    g->step = kind == GATED ? COLUMNS : 2 * COLUMNS;
    g->row_tiles = (m + CLUSTER * BM - 1) / (CLUSTER * BM);
    g->column_tiles = (columns + g->step - 1) / g->step;
}

// A tile holds whole heads of one sort.
static bool takes_heads(const msgl_exec *x, const msgl_linear_call *c, const msgl_rope_call *r)
{
    const int32_t q = r->num_q_heads * r->head_dim, kv = r->num_kv_heads * r->head_dim;
    const uintptr_t bits = (uintptr_t)c->bias | (uintptr_t)r->q_weight | (uintptr_t)r->k_weight |
                           (uintptr_t)r->cos_sin | (uintptr_t)r->k_pool | (uintptr_t)r->v_pool;
    return (r->head_dim == 64 || r->head_dim == 128) && 2 * r->half == r->head_dim &&
           q % (2 * COLUMNS) == 0 && kv % (2 * COLUMNS) == 0 && c->w->n == q + 2 * kv &&
           r->qkv == c->out && r->ld == c->ld_out && r->tokens == c->m && r->kv_dtype == x->act &&
           !c->gated && !c->accumulate && bits % 16 == 0;
}

bool msgl__cuda_wide_sm90_can(const msgl_exec *x, const msgl_linear_call *c,
                              const msgl_rope_call *rope)
{
    const msgl_weight *w = c->w;
    const uintptr_t bits = (uintptr_t)c->in | (uintptr_t)c->out | (uintptr_t)w->data;
    if (x->device->capability != 90 || w->format->dtype == MSGL_F32 || w->format->dtype != x->act ||
        c->f32_out || c->norm != NULL || bits % 16 != 0 || w->k % 8 != 0 || w->n % 16 != 0 ||
        c->ld_in % 8 != 0 || c->ld_out % 8 != 0) {
        return false;
    }
    if (rope != NULL) return takes_heads(x, c, rope);
    return c->gated && c->bias == NULL;
}

template <typename T, int KIND, int DIM>
static void launch(msgl_exec *x, const wide_args &g, const CUtensorMap maps[3])
{
    const msgl_cuda_device *d = msgl__cuda_device(x);
    const int64_t blocks = (int64_t)g.row_tiles * g.column_tiles * CLUSTER;
    const int64_t resident = d->sm_count / CLUSTER * CLUSTER;
    const dim3 grid((unsigned)(blocks < resident ? blocks : resident));
    constexpr auto kernel = wide_sm90<T, KIND, DIM>;
    MSGL_CUDA_TRY(x, msgl__allow_shared<kernel>(SHARED_BYTES));
    MSGL_CUDA_TRY(x, msgl__launch(kernel, grid, dim3(THREADS), SHARED_BYTES, d->stream, g, maps[0],
                                  maps[1], maps[2]));
}

bool msgl__cuda_wide_sm90(msgl_exec *x, const msgl_linear_call *c, const msgl_rope_call *rope)
{
    const msgl_weight *w = c->w;
    if (!msgl__cuda_wide_sm90_can(x, c, rope)) return false;
    wide_args g = {};
    set_tiles(&g, rope != NULL ? HEADS : GATED, w, c->m);
    if (rope != NULL) {
        g.out = c->out;
        g.ld_out = c->ld_out;
        g.q_columns = rope->num_q_heads * rope->head_dim;
        g.kv_columns = rope->num_kv_heads * rope->head_dim;
        g.bias = c->bias;
        g.q_weight = rope->q_weight;
        g.k_weight = rope->k_weight;
        g.cos_sin = rope->cos_sin;
        g.eps = rope->eps;
        g.k_pool = rope->k_pool;
        g.v_pool = rope->v_pool;
        g.slots = rope->slots;
    }
    CUtensorMap maps[3];
    const int32_t columns = rope != NULL ? w->n : w->n / 2;
    if (!msgl__tensor_map(&maps[0], w->format->dtype, c->in, c->m, w->k, c->ld_in, BM) ||
        !msgl__tensor_map(&maps[1], w->format->dtype, w->data, w->n, w->k, (size_t)w->k, COLUMNS) ||
        !msgl__tensor_map(&maps[2], w->format->dtype, c->out, c->m, columns, c->ld_out,
                          WARP_ROWS)) {
        return false;
    }
    const bool f16 = w->format->dtype == MSGL_F16;
    if (rope == NULL) {
        f16 ? launch<__half, GATED, 0>(x, g, maps) : launch<__nv_bfloat16, GATED, 0>(x, g, maps);
    } else if (rope->head_dim == 64) {
        f16 ? launch<__half, HEADS, 64>(x, g, maps) : launch<__nv_bfloat16, HEADS, 64>(x, g, maps);
    } else {
        f16 ? launch<__half, HEADS, 128>(x, g, maps)
            : launch<__nv_bfloat16, HEADS, 128>(x, g, maps);
    }
    return true;
}
