// SPDX-License-Identifier: Apache-2.0
//
// A tile is 128 rows of W, 64 of each of two warpgroups, times up to 192 rows of an expert, as in
// grouped_sm90.cu, whose tiles these are: a cluster of two blocks shares the rows of `in`, each
// loading half of them for both. A stage is 128 columns, which share a scale in W's rows and in
// the rows of `in`. The tensor cores add up E4M3's products with fewer bits than an f32 has; a
// stage's sums are therefore multiplied by both scales and added to the tile's in f32. While one
// warpgroup does that the other one's products run.
//
// Rows of `in` are quantised by a kernel in front, which takes them by index, so that nobody copies
// values.
#include "cuda/gemm/grouped_fp8_sm90.h"

#include <string.h>

#include "cuda/device.cuh"
#include "cuda/gemm/experts_codes.cuh"
#include "cuda/gemm/fp8.h"
#include "cuda/gemm/fp8_rows.h"
#include "cuda/gemm/grouped_tile_sm90.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/tensor_map.cuh"

enum {
    GROUPS = 2, // warpgroups that multiply
    THREADS = (GROUPS + 1) * GROUP,
    CLUSTER = 2,
    ROWS = GROUPS * GROUP_ROWS, // of W per tile
    N = 192,                    // rows of in
    STEP = 128,                 // columns, and bytes of a row, of a stage
    BOX_ROWS = 16,              // of in per tensor copy
    STAGES = 5,
    W_BYTES = ROWS * STEP,
    STAGE_BYTES = W_BYTES + N * STEP,
    // Scales of a stage: f32 or 16 bits of W's rows, f32 of the rows of in, which a tensor copy
    // brings from a multiple of 16 bytes on. Of a tile whose first row is 1,203 they begin with
    // that of row 1,200.
    IN_SCALES_AT = ROWS * 4,
    IN_SCALES = N + 4,
    SCALES_BYTES = (IN_SCALES_AT + IN_SCALES * 4 + 127) / 128 * 128,
    OUT_BYTES = GROUPS * 2 * CHUNK_BYTES,
    TO_BYTES = GROUPS * 2 * N * 4,
    SHARED_BYTES =
        1024 + STAGES * (STAGE_BYTES + SCALES_BYTES) + OUT_BYTES + TO_BYTES + 2 * STAGES * 8,
    // Rows per expert on average: with fewer, reading the weights decides, which codes do as well.
    LEAST_AVERAGE = 48,
};

typedef struct grouped_fp8_args {
    msgl_grouped_args g;       // in: codes
    const uint8_t *row_scales; // the first expert's, of whole rows; NULL: a stage has its own
    size_t stride;             // bytes from one expert's to the next one's
    msgl_number number;
    uint32_t w_bytes; // that arrive with a stage of W, scales among them
} grouped_fp8_args;

typedef struct grouped_fp8_maps {
    CUtensorMap w, w_scales, in, in_scales;
} grouped_fp8_maps;

struct fp8_ring : ring {
    uint32_t scales; // of the stages
};

static __device__ __forceinline__ float number_of(msgl_number type, uint32_t bits)
{
    if (type == MSGL_NUMBER_F16) return __half2float(__ushort_as_half((unsigned short)bits));
    return __uint_as_float(type == MSGL_NUMBER_BF16 ? bits << 16 : bits);
}

// Rows of in that are loaded for a tile: whole boxes of both blocks.
static __device__ __forceinline__ int loaded_of(int rows)
{
    return (rows + 2 * BOX_ROWS - 1) / (2 * BOX_ROWS) * (2 * BOX_ROWS);
}

// That are multiplied. An expert's rows are cut into equal row tiles, which are rarely of fewer
// than 97.
static __device__ __forceinline__ int columns_of(int rows)
{
    return rows <= 64 ? 64 : rows <= 112 ? 112 : (rows + 15) & ~15;
}

// --- loading ------------------------------------------------------------------------------------

// One thread: weights, and this block's half of the rows of in, for both blocks.
template <bool GATED>
static __device__ __forceinline__ void load_all(const grouped_fp8_args &a, fp8_ring r,
                                                const int32_t *first, int32_t start,
                                                const grouped_fp8_maps &maps, uint32_t rank)
{
    const msgl_grouped_args &g = a.g;
    const int32_t tiles = first[g.num_experts] * g.column_tiles, steps = g.k / STEP;
    int32_t low = start, high = start + 1;
#pragma unroll 1
    for (int32_t i = blockIdx.x / CLUSTER; i < tiles; i += gridDim.x / CLUSTER) {
        const span s = find_span(g, first, i, low, high);
        low = s.expert, high = g.num_experts; // of the next one
        const int tile = s.tile * CLUSTER + (int)rank, half = loaded_of(s.rows) / 2;
        const uint32_t bytes = a.w_bytes + (uint32_t)(2 * half * STEP + IN_SCALES * 4);
#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            const uint32_t at = r.stages + (uint32_t)(r.slot * STAGE_BYTES);
            const uint32_t scales = r.scales + (uint32_t)(r.slot * SCALES_BYTES);
            const uint32_t done = r.full + (uint32_t)r.slot * 8;
            msgl__mbarrier_wait(r.empty + (uint32_t)r.slot * 8, r.phase ^ 1);
            msgl__mbarrier_expect(done, bytes);
            // Gated: a pair of eights, gate and up, is one step of the map.
            msgl__tensor_load(at, &maps.w, step * STEP, 0, 0, tile * (ROWS / (GATED ? 16 : 8)),
                              s.expert, done);
            if (a.row_scales == NULL) {
                msgl__tensor_load(scales, &maps.w_scales, tile * (GATED ? ROWS / 2 : ROWS), 0, step,
                                  s.expert, done);
            }
            msgl__tensor_load(scales + IN_SCALES_AT, &maps.in_scales, s.row & ~3, step, done);
#pragma unroll 1
            for (int row = (int)rank * half; row < ((int)rank + 1) * half; row += BOX_ROWS) {
                msgl__tensor_load_multicast(at + (uint32_t)(W_BYTES + row * STEP), &maps.in,
                                            step * STEP, s.row + row, done, (1 << CLUSTER) - 1);
            }
            next_slot<STAGES>(r);
        }
    }
}

// --- multiplying --------------------------------------------------------------------------------

// The scale of row `row` of a tile, which a stage has: of a gated product first the gates'.
template <bool GATED>
static __device__ __forceinline__ float scale_of(msgl_number type, uint32_t scales, int row)
{
    if (GATED) row = row / 16 * 8 + row % 8 + row / 8 % 2 * (ROWS / 2);
    return number_of(type, type == MSGL_NUMBER_F32
                               ? msgl__read_shared<uint32_t>(scales + (uint32_t)row * 4)
                               : msgl__read_shared<uint16_t>(scales + (uint32_t)row * 2));
}

// A stage, which has arrived, of COLUMNS columns: its sums, times both scales, are added to the
// tile's.
template <bool GATED, int COLUMNS>
static __device__ __forceinline__ void multiply_step(float (&acc)[N / 2], const grouped_fp8_args &a,
                                                     const fp8_ring &r, int first_row)
{
    const int group = (int)threadIdx.x / GROUP - 1, t = threadIdx.x % GROUP;
    const uint32_t stage = r.stages + (uint32_t)(r.slot * STAGE_BYTES);
    const uint32_t scales = r.scales + (uint32_t)(r.slot * SCALES_BYTES);
    const uint32_t in_scales = scales + IN_SCALES_AT + (uint32_t)(t % 4 * 8 + first_row % 4 * 4);
    const uint64_t w = msgl__wgmma_operand(stage + (uint32_t)(group * GROUP_ROWS * STEP));
    const uint64_t in = msgl__wgmma_operand(stage + W_BYTES);
    float sum[COLUMNS / 2], upper = 1, lower = 1;
    msgl__wgmma_fence();
#pragma unroll
    for (int i = 0; i < STEP / 32; i++) msgl__wgmma_e4m3(sum, w + 2 * i, in + 2 * i, i > 0);
    msgl__wgmma_commit();
    if (a.row_scales == NULL) {
        const int row = group * GROUP_ROWS + t / 32 * 16 + t % 32 / 4;
        upper = scale_of<GATED>(a.number, scales, row);
        lower = scale_of<GATED>(a.number, scales, row + 8);
    }
    msgl__wgmma_wait<0>(sum);
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j++) {
        const float x = msgl__read_shared<float>(in_scales + (uint32_t)j * 32);
        const float y = msgl__read_shared<float>(in_scales + (uint32_t)j * 32 + 4);
        acc[4 * j] = fmaf(sum[4 * j] * x, upper, acc[4 * j]);
        acc[4 * j + 1] = fmaf(sum[4 * j + 1] * y, upper, acc[4 * j + 1]);
        acc[4 * j + 2] = fmaf(sum[4 * j + 2] * x, lower, acc[4 * j + 2]);
        acc[4 * j + 3] = fmaf(sum[4 * j + 3] * y, lower, acc[4 * j + 3]);
    }
}

// The scale of a whole row of W, whose place among its expert's outputs is `row`.
static __device__ __forceinline__ float row_scale(const grouped_fp8_args &a, int expert, int row)
{
    if (row >= a.g.n) return 0;
    const uint8_t *const s = a.row_scales + (size_t)expert * a.stride;
    return number_of(a.number, a.number == MSGL_NUMBER_F32 ? __ldg((const uint32_t *)s + row)
                                                           : __ldg((const uint16_t *)s + row));
}

// One tile.
template <typename T, bool GATED>
static __device__ __forceinline__ void multiply(const grouped_fp8_args &a, fp8_ring &r,
                                                const span &s, int feature, const int32_t *places,
                                                uint32_t buffers)
{
    const int t = threadIdx.x % GROUP, lane = t % 32, steps = a.g.k / STEP;
    const int columns = columns_of(s.rows);
    float acc[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++) acc[i] = 0;
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        msgl__mbarrier_wait(r.full + (uint32_t)r.slot * 8, r.phase);
        if (columns == N) {
            multiply_step<GATED, N>(acc, a, r, s.row);
        } else if (columns == 176) {
            multiply_step<GATED, 176>(acc, a, r, s.row);
        } else if (columns == 160) {
            multiply_step<GATED, 160>(acc, a, r, s.row);
        } else if (columns == 144) {
            multiply_step<GATED, 144>(acc, a, r, s.row);
        } else if (columns == 128) {
            multiply_step<GATED, 128>(acc, a, r, s.row);
        } else if (columns == 112) {
            multiply_step<GATED, 112>(acc, a, r, s.row);
        } else {
            multiply_step<GATED, 64>(acc, a, r, s.row);
        }
        __syncwarp();
        if (lane < CLUSTER) {
            msgl__mbarrier_arrive_at(r.empty + (uint32_t)r.slot * 8, (uint32_t)lane);
        }
        next_slot<STAGES>(r);
    }
    if (a.row_scales != NULL) {
        const int row = feature + (GATED ? t / 32 * 8 : t / 32 * 16) + lane / 4;
        const float upper = row_scale(a, s.expert, row);
        const float lower = row_scale(a, s.expert, row + (GATED ? a.g.n / 2 : 8));
#pragma unroll
        for (int i = 0; i < N / 2; i++) acc[i] *= i % 4 < 2 ? upper : lower;
    }
    store<T, GATED, N>(a.g, acc, s.rows, feature, places, buffers);
}

template <typename T, bool GATED>
static __device__ __forceinline__ void multiply_all(const grouped_fp8_args &a, fp8_ring r,
                                                    const int32_t *first, int32_t start,
                                                    int32_t *places, uint32_t out, uint32_t rank)
{
    const msgl_grouped_args &g = a.g;
    const int32_t tiles = first[g.num_experts] * g.column_tiles;
    const int group = threadIdx.x / GROUP - 1;
    const uint32_t buffers = out + (uint32_t)(group * 2 * CHUNK_BYTES);
    constexpr int FEATURES = GROUP_ROWS / (GATED ? 2 : 1); // of a group
    bool odd = false;
    int32_t low = start, high = start + 1;
#pragma unroll 1
    for (int32_t i = blockIdx.x / CLUSTER; i < tiles; i += gridDim.x / CLUSTER) {
        const span s = find_span(g, first, i, low, high);
        low = s.expert, high = g.num_experts; // of the next one
        const int tile = s.tile * CLUSTER + (int)rank;
        // Two of them, as others may still read those of the tile before.
        int32_t *to = places + (2 * group + odd) * N;
        odd = !odd;
#pragma unroll 1
        for (int c = threadIdx.x % GROUP; c < N; c += GROUP) {
            int32_t row = c < s.rows ? s.row + c : -1;
            if (row >= 0 && g.to != NULL) row = __ldcg(g.to + row);
            to[c] = row;
        }
        multiply<T, GATED>(a, r, s, (tile * GROUPS + group) * FEATURES, to, buffers);
    }
}

template <typename T, bool GATED>
__global__ void __launch_bounds__(THREADS, 1)
    grouped_fp8(const __grid_constant__ grouped_fp8_args a,
                const __grid_constant__ grouped_fp8_maps maps)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ unsigned char unaligned[];
    const uint32_t stages = (msgl__shared_address(unaligned) + 1023) & ~1023u;
    const uint32_t scales = stages + STAGES * STAGE_BYTES, out = scales + STAGES * SCALES_BYTES;
    unsigned char *behind = unaligned + (out - msgl__shared_address(unaligned)) + OUT_BYTES;
    int32_t *places = (int32_t *)behind, *first = places + TO_BYTES / 4 + 4 * STAGES;
    fp8_ring r = {{stages, out + OUT_BYTES + TO_BYTES, 0, 0, 0}, scales};
    r.empty = r.full + STAGES * 8;
    const uint32_t rank = msgl__cluster_rank();
    if (threadIdx.x == 0) {
#pragma unroll 1
        for (int i = 0; i < STAGES; i++) {
            msgl__mbarrier_init(r.full + i * 8, 1);
            msgl__mbarrier_init(r.empty + i * 8, CLUSTER * GROUPS * GROUP / 32);
        }
        msgl__mbarrier_init_done();
        msgl__tensor_prefetch(&maps.w);
    }
    if (!a.g.inputs_ready) msgl__pdl_wait();
    msgl__count_tiles<N>(a.g, first); // ends with a barrier
    const int32_t start = find_expert(a.g, first, (int32_t)blockIdx.x / CLUSTER);
    msgl__cluster_meet();
    if (threadIdx.x < GROUP) {
        msgl__registers_down<40>();
        if (threadIdx.x < 32) {
            msgl__pdl_wait();
            if (threadIdx.x == 0) load_all<GATED>(a, r, first, start, maps, rank);
            __syncwarp();
        }
    } else {
        msgl__registers_up<232>();
        msgl__pdl_wait();
        msgl__pdl_trigger();
        multiply_all<T, GATED>(a, r, first, start, places, out, rank);
    }
    msgl__cluster_sync(); // the other block may still write and arrive here
#endif
}

// --- host ---------------------------------------------------------------------------------------

bool msgl__cuda_grouped_fp8_takes(const msgl_exec *x, const msgl_grouped_call *c)
{
    const uintptr_t bits = (uintptr_t)c->in | (uintptr_t)c->out;
    codes_matrix m;
    msgl_codes_row l;
    return bits % 16 == 0 && c->ld_in % 8 == 0 && c->ld_out % 8 == 0 &&
           x->device->capability == 90 && x->act != MSGL_F32 &&
           !msgl__cuda_device(x)->deterministic && c->num_experts <= MAX_EXPERTS &&
           c->rows / c->num_experts >= LEAST_AVERAGE && msgl__fp8_weight(c->experts, &l) &&
           msgl__codes_matrix_of(c->experts, c->num_experts, &m);
}

// Eights of rows of every expert; gated: of gate, of up, ...
static bool map_w(CUtensorMap *map, const codes_matrix &m, int num, bool gated)
{
    const cuuint64_t row = (cuuint64_t)m.row, halves = gated ? 2 : 1;
    const cuuint64_t half = (cuuint64_t)m.n / halves;
    const cuuint64_t dims[5] = {(cuuint64_t)m.k, 8, halves, half / 8, (cuuint64_t)num};
    const cuuint64_t strides[4] = {row, half * row, 8 * row, (cuuint64_t)m.stride};
    const cuuint32_t box[5] = {STEP, 8, (cuuint32_t)halves, (cuuint32_t)(ROWS / 8 / (int)halves),
                               1};
    return msgl__tensor_map_encode(map, MSGL_E4M3, m.w, 5, dims, strides, box);
}

// Scales by group: rows, of a gated product gates and ups apart, groups and experts.
static bool map_w_scales(CUtensorMap *map, const codes_matrix &m, int num, bool gated)
{
    const msgl_dtype type = m.number == MSGL_NUMBER_F32 ? MSGL_F32 : MSGL_BF16; // of its size
    const cuuint64_t halves = gated ? 2 : 1, size = msgl__dtype_size(type);
    const cuuint64_t n = (cuuint64_t)m.n, half = n / halves;
    const cuuint64_t dims[4] = {half, halves, (cuuint64_t)(m.k / STEP), (cuuint64_t)num};
    const cuuint64_t strides[3] = {half * size, n * size, (cuuint64_t)m.stride};
    const cuuint32_t box[4] = {(cuuint32_t)(ROWS / (int)halves), (cuuint32_t)halves, 1, 1};
    return msgl__tensor_map_encode(map, type, m.w + m.scales, 4, dims, strides, box,
                                   CU_TENSOR_MAP_SWIZZLE_NONE);
}

static bool map_in(grouped_fp8_maps *maps, const msgl_fp8_rows *in)
{
    const cuuint64_t rows = (cuuint64_t)in->m, k = (cuuint64_t)in->k;
    const cuuint64_t dims[2] = {k, rows}, strides[1] = {k};
    const cuuint64_t groups[2] = {rows, k / STEP};
    const cuuint64_t group_strides[1] = {(cuuint64_t)in->pitch * sizeof(float)};
    const cuuint32_t box[2] = {STEP, BOX_ROWS}, group_box[2] = {IN_SCALES, 1};
    return msgl__tensor_map_encode(&maps->in, MSGL_E4M3, in->codes, 2, dims, strides, box) &&
           msgl__tensor_map_encode(&maps->in_scales, MSGL_F32, in->scales, 2, groups, group_strides,
                                   group_box, CU_TENSOR_MAP_SWIZZLE_NONE);
}

template <typename T, bool GATED>
static void launch(msgl_exec *x, const grouped_fp8_args &a, const grouped_fp8_maps &maps,
                   int32_t rows)
{
    const msgl_cuda_device *d = msgl__cuda_device(x);
    const size_t bytes = SHARED_BYTES + msgl__tiles_bytes(a.g.num_experts);
    constexpr auto kernel = grouped_fp8<T, GATED>;
    // Every expert may have a tile that is not full.
    int64_t tiles = rows / N + (rows < a.g.num_experts ? rows : a.g.num_experts);
    tiles *= a.g.column_tiles;
    const int64_t most = d->sm_count / CLUSTER;
    const dim3 grid((unsigned)((tiles < most ? tiles : most) * CLUSTER));
    MSGL_CUDA_TRY(x, msgl__allow_shared<kernel>(bytes, true));
    MSGL_CUDA_TRY(x, msgl__launch_clusters(kernel, dim3(CLUSTER), grid, dim3(THREADS), bytes,
                                           d->stream, a, maps));
}

void msgl__cuda_grouped_fp8(msgl_exec *x, const msgl_grouped_call *c, const msgl_grouped_args *g,
                            bool gated)
{
    codes_matrix m;
    grouped_fp8_args a = {*g, NULL, 0, MSGL_NUMBER_F32, W_BYTES};
    grouped_fp8_maps maps;
    memset(&maps, 0, sizeof maps);
    void *const memory = msgl__arena_alloc(x->scratch, msgl__fp8_rows_bytes(c->rows, g->k));
    if (memory == NULL || !msgl__codes_matrix_of(c->experts, c->num_experts, &m)) {
        x->status = memory == NULL ? MSGL_ENOMEM : MSGL_EUNSUPPORTED;
        return;
    }
    const msgl_fp8_rows rows = msgl__fp8_rows_together(memory, c->rows, g->k);
    msgl_fp8_source from = {g->in, g->ld_in, NULL, 0, false, MSGL_SILU};
    from.rows = g->from;
    from.rows_per = g->from_per;
    msgl__cuda_quantise_rows(x, &from, &rows);
    if (x->status != 0) return;
    a.number = m.number;
    a.stride = m.stride;
    a.g.num_experts = c->num_experts;
    a.g.offsets = c->offsets;
    a.g.inputs_ready = c->inputs_ready;
    a.g.from = NULL;
    a.g.column_tiles = (g->n + CLUSTER * ROWS - 1) / (CLUSTER * ROWS);
    const bool by_row = m.shift == 31;
    if (by_row) a.row_scales = m.w + m.scales;
    if (!by_row) a.w_bytes += ROWS * (m.number == MSGL_NUMBER_F32 ? 4 : 2);
    if (!map_w(&maps.w, m, c->num_experts, gated) || !map_in(&maps, &rows) ||
        (!by_row && !map_w_scales(&maps.w_scales, m, c->num_experts, gated))) {
        x->status = MSGL_EDEVICE;
        return;
    }
    if (x->act == MSGL_F16) {
        gated ? launch<__half, true>(x, a, maps, c->rows)
              : launch<__half, false>(x, a, maps, c->rows);
    } else {
        gated ? launch<__nv_bfloat16, true>(x, a, maps, c->rows)
              : launch<__nv_bfloat16, false>(x, a, maps, c->rows);
    }
}

size_t msgl__cuda_grouped_fp8_scratch(const msgl_grouped_call *c)
{
    enum { ALIGN = 64 };
    return msgl__fp8_rows_bytes(c->rows, c->experts[0].k) + ALIGN;
}
