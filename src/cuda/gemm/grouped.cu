// SPDX-License-Identifier: Apache-2.0
//
// Grouped product of a mixture of experts. Blocks are persistent: tiles are dealt out round-robin,
// and the loads of a block's next tile start while its last one is being multiplied. An element's
// sum runs over k in one order whatever the tile's height, so that a row's result depends on that
// row only. Where the weights allow it, Hopper has grouped_sm90.cu for all of this. Experts that
// are not plain are multiplied by their codes (grouped_codes.cu, grouped_fp8_sm90.cu), or become
// values a few at a time, and the same kernels multiply by these.
#include <string.h>

#include "cuda/device.cuh"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/expand.h"
#include "cuda/gemm/experts_codes.cuh"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/grouped.cuh"
#include "cuda/gemm/grouped_fp8_sm90.cuh"
#include "cuda/gemm/grouped_sm90.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/ops.h"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared.cuh"

// With the places of all experts of a launch stages stay within the 99 KiB that every GPU here has.
enum { BK = 64, ROW_BYTES = BK * 2, CHUNKS = ROW_BYTES / 16 };

// Where chunk `c` (16 bytes) of row `r` of a tile lies: rows are 128 bytes, and neighbouring rows
// permute their chunks so that eight rows' equal chunks are in different banks.
static __device__ __forceinline__ uint32_t tile_offset(int r, int c)
{
    return (uint32_t)(r * ROW_BYTES + ((c ^ (r & (CHUNKS - 1))) << 4));
}

// Row of W that is row r of the tile of columns `column`. Gated: 8 gate rows, then the 8 up rows
// that belong to them, so that one thread's sums hold both.
template <int BN, bool GATED>
static __device__ __forceinline__ int weight_row(const msgl_grouped_args &g, int column, int r)
{
    if (!GATED) return column * BN + r < g.n ? column * BN + r : -1;
    const int half = g.n / 2, at = column * (BN / 2) + r / 16 * 8 + r % 8;
    if (at >= half) return -1;
    return r % 16 < 8 ? at : half + at;
}

template <typename T, int BM, int BN, int THREADS, bool GATED>
static __device__ __forceinline__ void load_stage(const msgl_grouped_args &g, const msgl_tile &t,
                                                  int k0, uint32_t a, uint32_t b)
{
    const T *in = (const T *)g.in, *w = (const T *)g.w + (size_t)t.expert * g.stride;
    const int c = threadIdx.x % CHUNKS, k = k0 + c * 8;
    for (int r = threadIdx.x / CHUNKS; r < BM; r += THREADS / CHUNKS) {
        const bool there = t.row + r < t.end && k < g.k;
        msgl__copy_async_16(a + tile_offset(r, c),
                            there ? in + (size_t)(t.row + r) * g.ld_in + k : in, there);
    }
#pragma unroll
    for (int i = 0; i < BN * CHUNKS / THREADS; i++) {
        const int r = threadIdx.x / CHUNKS + i * (THREADS / CHUNKS);
        const int row = weight_row<BN, GATED>(g, t.column, r);
        const bool there = row >= 0 && k < g.k;
        msgl__copy_async_16(b + tile_offset(r, c), there ? w + (size_t)row * g.k + k : w, there);
    }
}

template <typename T, int MI, int NI, bool GATED>
static __device__ __forceinline__ void store_tile(const msgl_grouped_args &g, const msgl_tile &t,
                                                  int row0, int column0, float acc[MI][NI][4])
{
    const int lane = threadIdx.x % 32, columns = GATED ? g.n / 2 : g.n;
    constexpr int STEP = GATED ? 2 : 1;
    T *out = (T *)g.out;
#pragma unroll
    for (int mi = 0; mi < MI; mi++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = t.row + row0 + mi * 16 + h * 8 + lane / 4;
            if (row >= t.end) continue;
            T *const to = out + (size_t)(g.to != NULL ? g.to[row] : row) * g.ld_out;
#pragma unroll
            for (int ni = 0; ni < NI; ni += STEP) {
                const int column = column0 + ni / STEP * 8 + lane % 4 * 2;
                if (column >= columns) continue;
                float v0 = acc[mi][ni][2 * h], v1 = acc[mi][ni][2 * h + 1];
                if (GATED) {
                    v0 = msgl__silu(v0) * acc[mi][ni + STEP - 1][2 * h];
                    v1 = msgl__silu(v1) * acc[mi][ni + STEP - 1][2 * h + 1];
                }
                msgl__store_pair(to + column, v0, v1);
            }
        }
    }
}

template <typename T, int BM, int BN, int WM, int WN, int STAGES, bool GATED>
__global__ void __launch_bounds__(WM *WN * 32, 2) grouped_mma(const msgl_grouped_args g)
{
    constexpr int THREADS = WM * WN * 32, MI = BM / WM / 16, NI = BN / WN / 8;
    constexpr int STAGE = (BM + BN) * ROW_BYTES;
    extern __shared__ __align__(128) unsigned char shared[];
    int32_t *first = (int32_t *)(shared + STAGES * STAGE);
    const uint32_t base = msgl__shared_address(shared);
    msgl__pdl_wait();
    msgl__pdl_trigger(); // behind the wait: see msgl_grouped_call.inputs_ready
    msgl__count_tiles<BM>(g, first);
    const int tiles = first[g.num_experts] * g.column_tiles, steps = (g.k + BK - 1) / BK;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row0 = warp / WN * (BM / WM), column0 = warp % WN * (BN / WN);

    int load_index = blockIdx.x, load_step = 0, load_slot = 0; // what is loaded next
    msgl_tile load = {};
    if (load_index < tiles) load = msgl__find_tile<BM>(g, first, load_index);
    auto load_next = [&]() {
        if (load_index < tiles) {
            const uint32_t at = base + (uint32_t)(load_slot * STAGE);
            load_stage<T, BM, BN, THREADS, GATED>(g, load, load_step * BK, at, at + BM * ROW_BYTES);
            load_slot = load_slot + 1 == STAGES ? 0 : load_slot + 1;
            if (++load_step == steps) {
                load_step = 0;
                load_index += gridDim.x;
                if (load_index < tiles) load = msgl__find_tile<BM>(g, first, load_index);
            }
        }
        msgl__copy_async_commit();
    };
    for (int s = 0; s < STAGES - 1; s++) load_next();

    int slot = 0;
    for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
        const msgl_tile t = msgl__find_tile<BM>(g, first, index);
        float acc[MI][NI][4] = {};
        for (int step = 0; step < steps; step++) {
            msgl__copy_async_wait<STAGES - 2>();
            __syncthreads(); // the stage has arrived, and all have left the one that is loaded now
            load_next();
            const uint32_t a = base + (uint32_t)(slot * STAGE), b = a + BM * ROW_BYTES;
#pragma unroll
            for (int kk = 0; kk < BK / 16; kk++) {
                uint32_t fa[MI][4], fb[NI / 2][4];
#pragma unroll
                for (int mi = 0; mi < MI; mi++) {
                    msgl__load_matrix_4(
                        a + tile_offset(row0 + mi * 16 + lane % 16, kk * 2 + lane / 16), fa[mi]);
                }
#pragma unroll
                for (int ni = 0; ni < NI / 2; ni++) {
                    const int r = column0 + ni * 16 + lane % 8 + lane / 16 * 8;
                    msgl__load_matrix_4(b + tile_offset(r, kk * 2 + lane / 8 % 2), fb[ni]);
                }
#pragma unroll
                for (int mi = 0; mi < MI; mi++) {
#pragma unroll
                    for (int ni = 0; ni < NI; ni++) {
                        msgl__mma(acc[mi][ni], fa[mi], fb[ni / 2][ni % 2 * 2],
                                  fb[ni / 2][ni % 2 * 2 + 1], T());
                    }
                }
            }
            slot = slot + 1 == STAGES ? 0 : slot + 1;
        }
        const int out_column = t.column * (GATED ? BN / 2 : BN) + (GATED ? column0 / 2 : column0);
        store_tile<T, MI, NI, GATED>(g, t, row0, out_column, acc);
    }
    msgl__copy_async_wait<0>();
}

// f32: 64 x 64 tiles, 4 x 4 sums per thread.
__global__ void __launch_bounds__(256) grouped_f32(const msgl_grouped_args g)
{
    enum { TILE = 64, DEPTH = 16 };
    __shared__ float a[DEPTH][TILE + 4], b[DEPTH][TILE + 4];
    extern __shared__ __align__(16) int32_t first[];
    msgl__count_tiles<TILE>(g, first);
    const int tiles = first[g.num_experts] * g.column_tiles;
    const int row0 = threadIdx.x / 16 * 4, column0 = threadIdx.x % 16 * 4;
    for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
        const msgl_tile t = msgl__find_tile<TILE>(g, first, index);
        const float *in = (const float *)g.in;
        const float *w = (const float *)g.w + (size_t)t.expert * g.stride;
        float acc[4][4] = {};
        for (int k0 = 0; k0 < g.k; k0 += DEPTH) {
            for (int i = threadIdx.x; i < TILE * DEPTH; i += 256) {
                const int r = i / DEPTH, c = i % DEPTH, k = k0 + c;
                const int row = t.row + r, column = t.column * TILE + r;
                a[c][r] = row < t.end && k < g.k ? in[(size_t)row * g.ld_in + k] : 0.0f;
                b[c][r] = column < g.n && k < g.k ? w[(size_t)column * g.k + k] : 0.0f;
            }
            __syncthreads();
            for (int c = 0; c < DEPTH; c++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
#pragma unroll
                    for (int j = 0; j < 4; j++) acc[i][j] += a[c][row0 + i] * b[c][column0 + j];
                }
            }
            __syncthreads();
        }
        for (int i = 0; i < 4; i++) {
            for (int j = 0; j < 4; j++) {
                const int row = t.row + row0 + i, column = t.column * TILE + column0 + j;
                if (row < t.end && column < g.n) {
                    const int to = g.to != NULL ? g.to[row] : row;
                    ((float *)g.out)[(size_t)to * g.ld_out + column] = acc[i][j];
                }
            }
        }
    }
}

template <typename T, int BM, int BN, int WM, int WN, int STAGES, bool GATED>
static void launch(msgl_exec *x, msgl_grouped_args g, int32_t rows)
{
    const msgl_cuda_device *d = msgl__cuda_device(x);
    const int columns = GATED ? g.n / 2 : g.n, width = GATED ? BN / 2 : BN;
    const size_t bytes = (size_t)STAGES * (BM + BN) * ROW_BYTES + msgl__tiles_bytes(g.num_experts);
    g.column_tiles = (columns + width - 1) / width;
    // Every expert may have a tile that is not full.
    int64_t tiles = rows / BM + (rows < g.num_experts ? rows : g.num_experts);
    tiles *= g.column_tiles;
    const int64_t blocks = 2 * (int64_t)d->sm_count;
    constexpr auto kernel = grouped_mma<T, BM, BN, WM, WN, STAGES, GATED>;
    MSGL_CUDA_TRY(x, msgl__allow_shared<kernel>(bytes));
    MSGL_CUDA_TRY(x, msgl__launch(kernel, dim3((unsigned)(tiles < blocks ? tiles : blocks)),
                                  dim3(WM * WN * 32), bytes, d->stream, g));
}

// Heights by the average number of rows per expert.
template <typename T, bool GATED>
static void launch_height(msgl_exec *x, const msgl_grouped_args &g, int32_t rows)
{
    const int32_t average = rows / g.num_experts;
    if (average <= 12) {
        launch<T, 16, 128, 1, 4, 5, GATED>(x, g, rows);
    } else if (average <= 24) {
        launch<T, 32, 128, 1, 4, 4, GATED>(x, g, rows);
    } else if (average <= 64) {
        launch<T, 64, 128, 2, 2, 4, GATED>(x, g, rows);
    } else {
        launch<T, 128, 128, 2, 4, 3, GATED>(x, g, rows);
    }
}

static void run_f32(msgl_exec *x, msgl_grouped_args g, int32_t rows)
{
    const msgl_cuda_device *d = msgl__cuda_device(x);
    g.column_tiles = (g.n + 63) / 64;
    const size_t bytes = msgl__tiles_bytes(g.num_experts);
    int64_t tiles = rows / 64 + (rows < g.num_experts ? rows : g.num_experts);
    tiles *= g.column_tiles;
    const int64_t blocks = 8 * (int64_t)d->sm_count;
    MSGL_CUDA_TRY(x, msgl__launch_in_order(grouped_f32,
                                           dim3((unsigned)(tiles < blocks ? tiles : blocks)),
                                           dim3(256), bytes, d->stream, g));
}

static void run_uniform(msgl_exec *x, const msgl_grouped_args *g, int32_t rows, bool gated,
                        msgl_dtype dtype)
{
    if (dtype == MSGL_F32) {
        run_f32(x, *g, rows);
    } else if (dtype == MSGL_F16) {
        if (gated) {
            launch_height<__half, true>(x, *g, rows);
        } else {
            launch_height<__half, false>(x, *g, rows);
        }
    } else if (gated) {
        launch_height<__nv_bfloat16, true>(x, *g, rows);
    } else {
        launch_height<__nv_bfloat16, false>(x, *g, rows);
    }
}

size_t msgl__expert_stride(const msgl_weight *experts, int32_t num)
{
    const size_t size = msgl__dtype_size(experts[0].format->dtype);
    const char *base = (const char *)experts[0].data;
    if (num == 1) return (size_t)experts[0].n * experts[0].k;
    const char *second = (const char *)experts[1].data;
    if (second <= base || (size_t)(second - base) % size != 0) return 0;
    const size_t bytes = (size_t)(second - base);
    for (int32_t e = 2; e < num; e++) {
        if ((const char *)experts[e].data != base + (size_t)e * bytes) return 0;
    }
    return bytes / size;
}

// The rows that a launch of this size multiplies as a dense matrix.
static void gather(msgl_exec *x, const msgl_grouped_call *c, msgl_grouped_args *g)
{
    msgl__cuda_moe_gather(x, c->in, c->from, c->rows / c->from_per, c->from_per, g->k, c->gathered);
    g->in = c->gathered;
    g->ld_in = (size_t)g->k;
    g->from = NULL;
}

// Bias or another gate than silu's come behind the product, which is then ungated.
static bool has_more(const msgl_grouped_call *c)
{
    return c->bias != NULL || (c->gated && c->activation != MSGL_SILU);
}

// By all experts, which are plain.
static void run_plain(msgl_exec *x, const msgl_grouped_call *c, msgl_grouped_args g, bool gated)
{
    g.stride = msgl__expert_stride(c->experts, c->num_experts);
    g.w = c->experts[0].data;
    g.offsets = c->offsets;
    g.num_experts = c->num_experts;
    g.inputs_ready = c->inputs_ready;
    if (msgl__cuda_grouped_sm90_takes(x, &g, gated, x->act)) {
        if (g.from != NULL && msgl__cuda_grouped_sm90_dense(&g, c->rows)) gather(x, c, &g);
        msgl__cuda_grouped_sm90(x, &g, c->rows, gated, x->act);
        return;
    }
    if (g.from != NULL) gather(x, c, &g);
    const int32_t together = g.stride != 0 ? MSGL_MOST_EXPERTS : 1;
    for (int32_t e = 0; e < c->num_experts; e += together) {
        g.w = c->experts[e].data;
        g.offsets = c->offsets + e;
        g.num_experts = c->num_experts - e < together ? c->num_experts - e : together;
        run_uniform(x, &g, c->rows, gated, x->act);
    }
}

// Columns [at, at + columns) of the output by experts [e, e + g.num_experts), whose rows of W
// become values at g.w: those of the columns, gated first of gate and then of up.
static void run_slab(msgl_exec *x, const msgl_grouped_call *c, msgl_grouped_args g, int32_t e,
                     int32_t at, int32_t columns, bool gated)
{
    const int32_t halves = gated ? 2 : 1;
    const size_t size = msgl__dtype_size(x->act);
    g.offsets = c->offsets + e;
    g.n = halves * columns;
    g.stride = (size_t)g.n * (size_t)g.k;
    g.out = (char *)g.out + (size_t)at * size;
    for (int32_t h = 0; h < halves; h++) {
        const msgl_expand_call rows = {.w = c->experts + e,
                                       .num = g.num_experts,
                                       .row = h * (c->experts[0].n / halves) + at,
                                       .rows = columns,
                                       .offsets = g.offsets,
                                       .out = (char *)g.w +
                                              (size_t)h * (size_t)columns * (size_t)g.k * size,
                                       .out_stride = g.stride};
        msgl__cuda_expand(x, &rows);
    }
    if (x->status != 0) return;
    if (msgl__cuda_grouped_sm90_takes(x, &g, gated, x->act)) {
        msgl__cuda_grouped_sm90(x, &g, c->rows, gated, x->act);
    } else {
        run_uniform(x, &g, c->rows, gated, x->act);
    }
}

// By experts that are expanded: several at a time where they are small, else some columns of one.
static void run_expanded(msgl_exec *x, const msgl_grouped_call *c, msgl_grouped_args g, bool gated)
{
    const int32_t n = g.n, halves = gated ? 2 : 1, most = msgl__cuda_slab_rows(g.k, x->act);
    const int32_t fit = most / n > MSGL_MOST_EXPERTS ? MSGL_MOST_EXPERTS : most / n;
    const int32_t together = fit < 1 ? 1 : fit < c->num_experts ? fit : c->num_experts;
    const int32_t columns = (n < most ? n : most) / halves;
    g.w = msgl__arena_alloc(x->scratch, (size_t)together * (size_t)(halves * columns) *
                                            (size_t)g.k * msgl__dtype_size(x->act));
    if (g.w == NULL) x->status = MSGL_ENOMEM;
    if (g.from != NULL && x->status == 0) gather(x, c, &g);
    g.inputs_ready = false; // nor are the weights
    for (int32_t e = 0; e < c->num_experts && x->status == 0; e += together) {
        g.num_experts = c->num_experts - e < together ? c->num_experts - e : together;
        for (int32_t at = 0; at < n / halves && x->status == 0; at += columns) {
            const int32_t left = n / halves - at;
            run_slab(x, c, g, e, at, left < columns ? left : columns, gated);
        }
    }
}

// fp8: its experts where it is a product of FP8, else NULL.
static void run_product(msgl_exec *x, const msgl_grouped_call *c, const codes_matrix *fp8)
{
    const msgl_weight *w = &c->experts[0];
    if (c->rows == 0 || x->status != 0) return;
    const size_t used = x->scratch->used;
    const bool split = c->gated && x->act == MSGL_F32; // product first, then silu
    msgl_grouped_args g = {};
    g.n = w->n;
    g.k = w->k;
    g.in = c->in;
    g.ld_in = c->ld_in;
    g.out = c->out;
    g.ld_out = c->ld_out;
    g.from = c->from;
    g.from_per = c->from_per;
    g.to = c->to;
    if (split) {
        g.out = msgl__arena_alloc(x->scratch, (size_t)c->rows * w->n * sizeof(float));
        g.ld_out = (size_t)w->n;
    }
    if (g.out == NULL) {
        x->status = MSGL_ENOMEM;
        return;
    }
    if (msgl__experts_are(c->experts, c->num_experts, x->act)) {
        run_plain(x, c, g, c->gated && !split);
    } else if (fp8 != NULL) {
        msgl__cuda_grouped_fp8(x, c, &g, fp8, c->gated);
    } else {
        run_expanded(x, c, g, c->gated && !split);
    }
    for (int32_t r = 0; split && r < c->rows && x->status == 0;) {
        // All rows at once where out is dense.
        const int32_t rows = c->ld_out == (size_t)w->n / 2 ? c->rows : 1;
        msgl__cuda_gate(x, MSGL_SILU, (const float *)g.out + (size_t)r * w->n,
                        (float *)c->out + (size_t)r * c->ld_out, rows, w->n / 2);
        r += rows;
    }
    x->scratch->used = used;
}

void msgl__cuda_grouped(msgl_exec *x, const msgl_grouped_call *c)
{
    if (c->rows == 0 || x->status != 0) return;
    codes_matrix m;
    const codes_matrix *const fp8 = msgl__cuda_grouped_fp8_takes(x, c, &m) ? &m : NULL;
    if (fp8 == NULL && msgl__cuda_grouped_codes(x, c)) return;
    if (!has_more(c)) {
        run_product(x, c, fp8);
        return;
    }
    const size_t used = x->scratch->used;
    msgl_grouped_call plain = *c;
    plain.bias = NULL;
    plain.gated = false;
    if (c->gated) {
        plain.ld_out = (size_t)c->experts[0].n;
        plain.out = msgl__arena_alloc(x->scratch,
                                      (size_t)c->rows * plain.ld_out * msgl__dtype_size(x->act));
        if (plain.out == NULL) x->status = MSGL_ENOMEM;
    }
    run_product(x, &plain, fp8);
    if (c->rows > 0 && x->status == 0) {
        msgl__cuda_finish_experts(x, c, plain.out, plain.ld_out);
    }
    x->scratch->used = used;
}

size_t msgl__cuda_grouped_scratch(const msgl_grouped_call *c, msgl_dtype act)
{
    const msgl_weight *w = &c->experts[0];
    size_t bytes = 0;
    if (!msgl__experts_are(c->experts, c->num_experts, act)) {
        const size_t slab = msgl__cuda_slab_bytes((size_t)c->num_experts * (size_t)w->n, w->k, act);
        const size_t fp8 = msgl__cuda_grouped_fp8_scratch(c);
        bytes += slab > fp8 ? slab : fp8;
    }
    if (c->gated && (has_more(c) || act == MSGL_F32)) {
        bytes += (size_t)c->rows * (size_t)w->n * msgl__dtype_size(act) + 64;
    }
    return bytes;
}
