// SPDX-License-Identifier: Apache-2.0
//
// A tile is up to 192 rows of an expert, 64 of each of three warpgroups, times 128 rows of W, of
// which gated ones are 64 gates and 64 ups in eights by turns. A cluster of two blocks shares the
// rows of `in`, each loading half of them for both, and each has rows of W of its own. A stage is
// 128 columns, which share a scale in a row of `in` and in a block of W. The tensor cores add up
// E4M3's products with fewer bits than an f32 has; a stage's sums are therefore multiplied by both
// scales and added to the tile's in f32, while other warpgroups' products run.
//
// Rows of `in` are the rows of the tensor cores' product here, not its columns as in
// grouped_sm90.cu: a thread has two of them, and so two scales of a stage. The other way round it
// has 48, and reading those from shared memory takes longer than the products
// (docs/decisions/053).
#include "cuda/gemm/grouped_fp8_sm90.cuh"

#include <string.h>

#include "cuda/device.cuh"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/experts_codes.cuh"
#include "cuda/gemm/fp8.h"
#include "cuda/gemm/fp8_rows.h"
#include "cuda/gemm/grouped_tile_sm90.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/tensor_map.cuh"

enum {
    GROUPS = 3, // warpgroups that multiply
    WORKERS = GROUPS * GROUP,
    THREADS = WORKERS + GROUP,
    CLUSTER = 2,
    M = GROUPS * GROUP_ROWS, // rows of in
    N = 128,                 // of W
    STEP = 128,              // columns, and bytes of a row, of a stage
    BOX_ROWS = 32,           // of in per tensor copy
    STAGES = 5,
    IN_BYTES = M * STEP,
    STAGE_BYTES = IN_BYTES + N * STEP,
    // Scales of in's rows, which a tensor copy brings from a multiple of 16 bytes on. Of a tile
    // whose first row is 1,203 they begin with that of row 1,200.
    IN_SCALES = M + 4,
    // Behind them 16 bytes of W's, of which the first number counts; gated, as many of the ups'.
    W_SCALES_AT = (IN_SCALES * 4 + 127) / 128 * 128,
    W_SCALES_BYTES = 16,
    SCALES_BYTES = W_SCALES_AT + 128,
    // A warp's results on their way out: 16 rows of 32 features.
    OUT_ROWS = 16,
    OUT_FEATURES = 32,
    OUT_ROW_BYTES = OUT_FEATURES * 2,
    OUT_BYTES = OUT_ROWS * OUT_ROW_BYTES,
    SHARED_BYTES =
        1024 + STAGES * (STAGE_BYTES + SCALES_BYTES) + WORKERS / 32 * OUT_BYTES + 2 * STAGES * 8,
    // Rows per expert on average: with fewer, reading the weights decides, which codes do as well.
    LEAST_AVERAGE = 12,
};

typedef struct grouped_fp8_args {
    msgl_grouped_args g;       // w, in and from are not used: maps have them
    const uint8_t *row_scales; // the first expert's, of whole rows; NULL: those of blocks
    size_t stride;             // bytes from one expert's to the next one's
    msgl_number number;
    uint32_t w_scales_bytes; // that arrive with a stage
} grouped_fp8_args;

typedef struct grouped_fp8_maps {
    CUtensorMap w, w_scales, in, in_scales;
} grouped_fp8_maps;

// --- loading ------------------------------------------------------------------------------------

// One thread: weights, and this block's half of the rows of in, for both blocks.
template <bool GATED>
static __device__ __forceinline__ void load_all(const grouped_fp8_args &a, scaled_ring r,
                                                const int32_t *first, int32_t start,
                                                const grouped_fp8_maps &maps, uint32_t rank)
{
    const msgl_grouped_args &g = a.g;
    const int32_t tiles = first[g.num_experts] * g.column_tiles, steps = g.k / STEP;
    int32_t low = start, high = start + 1;
#pragma unroll 1
    for (int32_t i = blockIdx.x / CLUSTER; i < tiles; i += gridDim.x / CLUSTER) {
        const span s = find_span<M>(g, first, i, low, high);
        low = s.expert, high = g.num_experts; // of the next one
        const int tile = s.tile * CLUSTER + (int)rank;
        const int half = (s.rows + GROUP_ROWS - 1) / GROUP_ROWS * GROUP_ROWS / 2;
        const uint32_t bytes =
            (uint32_t)(N * STEP + 2 * half * STEP + IN_SCALES * 4) + a.w_scales_bytes;
#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            const uint32_t at = r.stages + (uint32_t)(r.slot * STAGE_BYTES);
            const uint32_t scales = r.scales + (uint32_t)(r.slot * SCALES_BYTES);
            const uint32_t done = r.full + (uint32_t)r.slot * 8;
            msgl__mbarrier_wait(r.empty + (uint32_t)r.slot * 8, r.phase ^ 1);
            msgl__mbarrier_expect(done, bytes);
            // Gated: a pair of eights, gate and up, is one step of the map.
            msgl__tensor_load(at + IN_BYTES, &maps.w, step * STEP, 0, 0,
                              tile * (N / (GATED ? 16 : 8)), s.expert, done);
            msgl__tensor_load(scales, &maps.in_scales, s.row & ~3, step, done);
            if (a.row_scales == NULL) {
                msgl__tensor_load(scales + W_SCALES_AT, &maps.w_scales, tile * (GATED ? N / 2 : N),
                                  0, step, s.expert, done);
            }
#pragma unroll 1
            for (int row = (int)rank * half; row < ((int)rank + 1) * half; row += BOX_ROWS) {
                msgl__tensor_load_multicast(at + (uint32_t)(row * STEP), &maps.in, step * STEP,
                                            s.row + row, done, (1 << CLUSTER) - 1);
            }
            next_slot<STAGES>(r);
        }
    }
}

// --- multiplying --------------------------------------------------------------------------------
//
// A thread of warp w of a group has, of rows 16 w + lane / 4 and the eighth one behind, features
// 8 j + 2 (lane % 4) and the next one of every j: acc[4 j], acc[4 j + 1] of the first row,
// acc[4 j + 2], acc[4 j + 3] of the second.

// The scale of a stage's W, of a gated tile the gates' or the ups'.
template <bool UPS>
static __device__ __forceinline__ float w_scale(const grouped_fp8_args &a, uint32_t scales)
{
    if (a.row_scales != NULL) return 1;
    const uint32_t at = scales + (uint32_t)(W_SCALES_AT + (UPS ? W_SCALES_BYTES : 0));
    return codes_number(a.number, a.number == MSGL_NUMBER_F32 ? msgl__read_shared<uint32_t>(at)
                                                              : msgl__read_shared<uint16_t>(at));
}

// A stage, which has arrived: its sums, times both scales, are added to the tile's.
// first: the thread's first row of the tile, and what the tile's own is beyond a multiple of four.
template <bool GATED>
static __device__ __forceinline__ void multiply_step(float (&acc)[N / 2], const grouped_fp8_args &a,
                                                     const scaled_ring &r, int first)
{
    const int group = (int)threadIdx.x / GROUP - 1, lane = threadIdx.x % 32;
    const uint32_t stage = r.stages + (uint32_t)(r.slot * STAGE_BYTES);
    const uint32_t scales = r.scales + (uint32_t)(r.slot * SCALES_BYTES);
    const uint64_t in = msgl__wgmma_operand(stage + (uint32_t)(group * GROUP_ROWS * STEP));
    const uint64_t w = msgl__wgmma_operand(stage + IN_BYTES);
    float sum[N / 2];
    msgl__wgmma_fence();
#pragma unroll
    for (int i = 0; i < STEP / 32; i++) msgl__wgmma_e4m3(sum, in + 2 * i, w + 2 * i, i > 0);
    msgl__wgmma_commit();
    const float upper = msgl__read_shared<float>(scales + (uint32_t)first * 4);
    const float lower = msgl__read_shared<float>(scales + (uint32_t)first * 4 + 32);
    const float gate = w_scale<false>(a, scales), up = GATED ? w_scale<true>(a, scales) : gate;
    const float u[2] = {upper * gate, upper * up}, l[2] = {lower * gate, lower * up};
    msgl__wgmma_wait<0>(sum);
    if (lane < CLUSTER) {
        msgl__mbarrier_arrive_at(r.empty + (uint32_t)r.slot * 8, (uint32_t)lane);
    }
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        const int odd = GATED ? i / 4 % 2 : 0;
        acc[i] = fmaf(sum[i], i % 4 < 2 ? u[odd] : l[odd], acc[i]);
    }
}

// Features of this thread's sums times the scales of whole rows of W. feature: the tile's first
// output.
template <bool GATED>
static __device__ __forceinline__ void scale_rows(float (&acc)[N / 2], const grouped_fp8_args &a,
                                                  int expert, int feature)
{
    const uint8_t *const scales = a.row_scales + (size_t)expert * a.stride;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        if (i % 4 > 1) continue;
        const int j = i / 4, column = threadIdx.x % 4 * 2 + i % 4;
        int row = feature + (GATED ? j / 2 * 8 : j * 8) + column;
        const bool there = row < (GATED ? a.g.n / 2 : a.g.n);
        if (GATED && j % 2 == 1) row += a.g.n / 2;
        if (!there) continue;
        const uint32_t bits = a.number == MSGL_NUMBER_F32 ? __ldg((const uint32_t *)scales + row)
                                                          : __ldg((const uint16_t *)scales + row);
        const float by = codes_number(a.number, bits);
        acc[i] *= by, acc[i + 2] *= by;
    }
}

// Where eight `piece` of a row is in a warp's buffer: eight rows' equal pieces are in different
// banks.
static __device__ __forceinline__ uint32_t out_piece(int row, int piece)
{
    return (uint32_t)(row * OUT_ROW_BYTES + ((piece ^ row / 2 % 4) << 4));
}

// OUT_FEATURES of the warp's rows from `buffer` to out. to: where this lane's row goes, of lane
// l < 16 row l; -1: nowhere.
template <typename T>
static __device__ __forceinline__ void store_rows(const grouped_fp8_args &a, uint32_t buffer,
                                                  int32_t to, int feature, int features)
{
    const int lane = threadIdx.x % 32, piece = lane % 4, at = feature + piece * 8;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < OUT_ROWS / 8; i++) {
        const int row = 8 * i + lane / 4;
        const int32_t place = __shfl_sync(0xffffffffu, to, row);
        if (place < 0 || at >= features) continue;
        *(uint4 *)((T *)a.g.out + (size_t)place * a.g.ld_out + at) =
            msgl__read_shared<uint4>(buffer + out_piece(row, piece));
    }
    __syncwarp();
}

// Two eights of features, i and the next one, as two words of each row, to the buffer.
static __device__ __forceinline__ void keep_eights(uint32_t buffer, int i, uint32_t first_upper,
                                                   uint32_t first_lower, uint32_t second_upper,
                                                   uint32_t second_lower)
{
    const int lane = threadIdx.x % 32;
    msgl__store_matrix_4(buffer + out_piece(lane % 16, i + lane / 16), first_upper, first_lower,
                         second_upper, second_lower);
}

// The two values of a pair of features, of the thread's upper or lower row: acc[at] and the next
// one, of a gated tile gates, whose ups are the next eight.
template <typename T, bool GATED>
static __device__ __forceinline__ uint32_t result_of(const float (&acc)[N / 2], int at)
{
    if (!GATED) return msgl__pack_two(acc[at], acc[at + 1], T());
    return msgl__pack_two(msgl__silu(acc[at]) * acc[at + 4], msgl__silu(acc[at + 1]) * acc[at + 5],
                          T());
}

template <typename T, bool GATED>
static __device__ __forceinline__ void store(const grouped_fp8_args &a, const float (&acc)[N / 2],
                                             uint32_t buffer, int32_t to, int feature)
{
    constexpr int EIGHT = GATED ? 8 : 4; // sums of a thread that make eight features of two rows
#pragma unroll
    for (int part = 0; part < N / 2 / EIGHT / 4; part++) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            const int at = (4 * part + i) * EIGHT;
            keep_eights(buffer, i, result_of<T, GATED>(acc, at), result_of<T, GATED>(acc, at + 2),
                        result_of<T, GATED>(acc, at + EIGHT),
                        result_of<T, GATED>(acc, at + EIGHT + 2));
        }
        store_rows<T>(a, buffer, to, feature + part * OUT_FEATURES, GATED ? a.g.n / 2 : a.g.n);
    }
}

template <typename T, bool GATED>
static __device__ __forceinline__ void multiply_all(const grouped_fp8_args &a, scaled_ring r,
                                                    const int32_t *first, int32_t start,
                                                    uint32_t buffers, uint32_t rank)
{
    const msgl_grouped_args &g = a.g;
    const int32_t tiles = first[g.num_experts] * g.column_tiles;
    const int t = (int)threadIdx.x - GROUP, lane = t % 32, steps = g.k / STEP;
    const int row = t / 32 * 16; // the warp's first one
    const uint32_t buffer = buffers + (uint32_t)(t / 32 * OUT_BYTES);
    int32_t low = start, high = start + 1;
#pragma unroll 1
    for (int32_t i = blockIdx.x / CLUSTER; i < tiles; i += gridDim.x / CLUSTER) {
        const span s = find_span<M>(g, first, i, low, high);
        low = s.expert, high = g.num_experts; // of the next one
        const int feature = (s.tile * CLUSTER + (int)rank) * (GATED ? N / 2 : N);
        const bool works = t / GROUP * GROUP_ROWS < s.rows,
                   there = feature < (GATED ? g.n / 2 : g.n);
        const int first_row = row + lane / 4 + s.row % 4;
        float acc[N / 2];
#pragma unroll
        for (int j = 0; j < N / 2; j++) acc[j] = 0;
#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            msgl__mbarrier_wait(r.full + (uint32_t)r.slot * 8, r.phase);
            if (works) {
                multiply_step<GATED>(acc, a, r, first_row);
            } else if (lane < CLUSTER) {
                msgl__mbarrier_arrive_at(r.empty + (uint32_t)r.slot * 8, (uint32_t)lane);
            }
            next_slot<STAGES>(r);
        }
        if (!works || !there) continue;
        if (a.row_scales != NULL) scale_rows<GATED>(acc, a, s.expert, feature);
        int32_t to = row + lane < s.rows && lane < OUT_ROWS ? s.row + row + lane : -1;
        if (to >= 0 && g.to != NULL) to = __ldcg(g.to + to);
        store<T, GATED>(a, acc, buffer, to, feature);
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
    const uint32_t scales = stages + STAGES * STAGE_BYTES;
    const uint32_t buffers = scales + STAGES * SCALES_BYTES;
    const uint32_t barriers = buffers + WORKERS / 32 * OUT_BYTES;
    unsigned char *const behind = unaligned + (barriers - msgl__shared_address(unaligned));
    int32_t *const first = (int32_t *)behind + 4 * STAGES;
    const scaled_ring r = {{stages, barriers, barriers + STAGES * 8, 0, 0}, scales};
    const uint32_t rank = msgl__cluster_rank();
    if (threadIdx.x == 0) {
#pragma unroll 1
        for (int i = 0; i < STAGES; i++) {
            msgl__mbarrier_init(r.full + i * 8, 1);
            msgl__mbarrier_init(r.empty + i * 8, CLUSTER * WORKERS / 32);
        }
        msgl__mbarrier_init_done();
        msgl__tensor_prefetch(&maps.w);
    }
    if (!a.g.inputs_ready) msgl__pdl_wait();
    msgl__count_tiles<M>(a.g, first); // ends with a barrier
    const int32_t start = find_expert(a.g, first, (int32_t)blockIdx.x / CLUSTER);
    msgl__cluster_meet();
    if (threadIdx.x < GROUP) {
        msgl__registers_down<32>();
        if (threadIdx.x < 32) {
            msgl__pdl_wait();
            if (threadIdx.x == 0) load_all<GATED>(a, r, first, start, maps, rank);
            __syncwarp();
        }
    } else {
        msgl__registers_up<160>();
        msgl__pdl_wait();
        msgl__pdl_trigger();
        multiply_all<T, GATED>(a, r, first, start, buffers, rank);
    }
    msgl__cluster_sync(); // the other block may still write and arrive here
#endif
}

// --- host ---------------------------------------------------------------------------------------

// Whether an expert is FP8 in blocks of 128 x 128, or with scales of rows.
static bool is_fp8(const msgl_weight *w, bool gated)
{
    msgl_codes_row l;
    if (w->num_parts > 0 || !msgl__fp8_weight(w, &l)) return false;
    const bool whole = (gated ? w->n / 2 : w->n) % (N / 2) == 0; // tiles lie within blocks
    return l.span == l.k || (w->format->blocks->codes->rows == N && whole);
}

bool msgl__cuda_grouped_fp8_takes(const msgl_exec *x, const msgl_grouped_call *c, codes_matrix *m)
{
    const uintptr_t bits = (uintptr_t)c->in | (uintptr_t)c->out;
    return x->device->capability == 90 && x->act != MSGL_F32 &&
           !msgl__cuda_device(x)->deterministic && c->num_experts <= MSGL_MOST_EXPERTS &&
           c->rows / c->num_experts >= LEAST_AVERAGE && bits % 16 == 0 && c->ld_in % 8 == 0 &&
           c->ld_out % 8 == 0 && is_fp8(c->experts, c->gated) &&
           msgl__codes_matrix_of(c->experts, c->num_experts, m);
}

// Scales by group: rows, of a gated product gates and ups apart, groups and experts.
static bool map_w_scales(CUtensorMap *map, const codes_matrix *m, int num, bool gated)
{
    const msgl_dtype type = m->number == MSGL_NUMBER_F32 ? MSGL_F32 : MSGL_BF16; // of its size
    const cuuint64_t halves = gated ? 2 : 1, size = msgl__dtype_size(type);
    const cuuint64_t n = (cuuint64_t)m->n, half = n / halves;
    const cuuint64_t dims[4] = {half, halves, (cuuint64_t)(m->k / STEP), (cuuint64_t)num};
    const cuuint64_t strides[3] = {half * size, n * size, (cuuint64_t)m->stride};
    const cuuint32_t box[4] = {(cuuint32_t)(W_SCALES_BYTES / size), (cuuint32_t)halves, 1, 1};
    return msgl__tensor_map_encode(map, type, m->w + m->scales, 4, dims, strides, box,
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
    int64_t tiles = rows / M + (rows < a.g.num_experts ? rows : a.g.num_experts);
    tiles *= a.g.column_tiles;
    const int64_t most = d->sm_count / CLUSTER;
    const dim3 grid((unsigned)((tiles < most ? tiles : most) * CLUSTER));
    MSGL_CUDA_TRY(x, msgl__allow_shared<kernel>(bytes, true));
    MSGL_CUDA_TRY(x, msgl__launch_clusters(kernel, dim3(CLUSTER), grid, dim3(THREADS), bytes,
                                           d->stream, a, maps));
}

// Coded rows of the call's input in the order of the experts: false without memory for them.
static bool quantise(msgl_exec *x, const msgl_grouped_call *c, const msgl_grouped_args *g,
                     msgl_fp8_rows *rows)
{
    const int32_t own = c->from != NULL ? c->rows / c->from_per : 0; // of in
    void *const memory = msgl__arena_alloc(x->scratch, msgl__fp8_rows_bytes(c->rows, g->k));
    void *const first =
        c->from == NULL ? memory : msgl__arena_alloc(x->scratch, msgl__fp8_rows_bytes(own, g->k));
    if (memory == NULL || first == NULL) {
        x->status = MSGL_ENOMEM;
        return false;
    }
    *rows = msgl__fp8_rows_together(memory, c->rows, g->k);
    const msgl_fp8_rows once = msgl__fp8_rows_together(first, own, g->k);
    const msgl_fp8_source from = {g->in, g->ld_in, NULL, 0, false, MSGL_SILU};
    msgl__cuda_quantise_rows(x, &from, c->from == NULL ? rows : &once);
    if (c->from != NULL) msgl__cuda_gather_coded(x, &once, c->from, c->from_per, rows);
    return x->status == 0;
}

void msgl__cuda_grouped_fp8(msgl_exec *x, const msgl_grouped_call *c, const msgl_grouped_args *g,
                            const codes_matrix *m, bool gated)
{
    const bool by_row = m->shift == 31;
    grouped_fp8_args a = {*g, by_row ? m->w + m->scales : NULL, m->stride, m->number,
                          by_row ? 0u : (uint32_t)W_SCALES_BYTES * (gated ? 2 : 1)};
    grouped_fp8_maps maps;
    msgl_fp8_rows rows;
    memset(&maps, 0, sizeof maps);
    a.g.num_experts = c->num_experts;
    a.g.offsets = c->offsets;
    a.g.inputs_ready = c->inputs_ready;
    a.g.column_tiles = (g->n + CLUSTER * N - 1) / (CLUSTER * N);
    if (!quantise(x, c, g, &rows)) return;
    if (!map_eights(&maps.w, MSGL_E4M3, m->w, &a.g, m->stride, gated, N) || !map_in(&maps, &rows) ||
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
    if (!is_fp8(c->experts, c->gated)) return 0;
    const int32_t k = c->experts[0].k, own = c->from_per > 0 ? c->rows / c->from_per : 0;
    return msgl__fp8_rows_bytes(c->rows, k) + msgl__fp8_rows_bytes(own, k) + 2 * ALIGN;
}
