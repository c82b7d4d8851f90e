// SPDX-License-Identifier: Apache-2.0
//
// Products of up to 1,024 rows with weights of codes (codes_row.h), on Hopper: what is read from
// memory is the codes, and operands of products are made of them in registers.
//
// A tile is 128 rows of W times 8 to 128 rows of `in`; W's rows are the rows of the tensor cores'
// product and those of `in` its columns. Up to 16 rows are multiplied by each warp for itself
// (codes_sm90/few.cuh), more by two warpgroups (many.cuh), whose tiles two blocks of a cluster
// share the activations of. A warp more brings codes, scales and activations of 256 columns, or of
// 128, through a ring of stages. The tiles' stages lie on a line (line.cuh). Of few rows a block
// takes half of a multiprocessor, so that the next product's first stages are on their way while
// this one's sums are added up.
//
// Values are exact: integers (code, or code - zero point) are multiplied, which bf16 and f16 have,
// and a group's sum in f32 is multiplied by its scale in f32 and added to the tile's. What is added
// to all values of a group, and for few rows the zero point, is multiplied by the sum of the
// group's activations, which some warps make for all others (prepare.cuh). Only sums are rounded,
// to f32. docs/decisions/051 has the figures.
#include "cuda/gemm/codes_sm90.h"

#include "cuda/device.cuh"
#include "cuda/gemm/codes_sm90/call.cuh"
#include "cuda/gemm/fused_norm.cuh"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/lt.cuh"
#include "cuda/gemm/table.cuh"
#include "cuda/launch.cuh"
#include "cuda/tensor_map.cuh"

enum {
    LEAST_STAGES = 2,   // of a segment: shorter ones cost more than they bring
    STATS_COLUMNS = 64, // of a tile of msgl_norm_stats
};

// --- a norm in front ----------------------------------------------------------------------------

// The sums of each row's squares over all tiles: lanes are rows, warps every so many tiles. Of more
// than a few rows all blocks of a product would ask for the same lines at the same time.
enum { TOTAL_WARPS = 8, TOTAL_ROWS = 32 };
static __global__ void __launch_bounds__(TOTAL_WARPS * 32)
    total_squares(const float *squares, int tiles, int m, float *totals)
{
    __shared__ float parts[TOTAL_WARPS][TOTAL_ROWS];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int t = (int)blockIdx.x * TOTAL_ROWS + lane;
    float sum = 0;
    msgl__pdl_trigger();
    msgl__pdl_wait();
    if (t < m) {
#pragma unroll 16
        for (int i = warp; i < tiles; i += TOTAL_WARPS) sum += __ldcg(squares + (size_t)i * m + t);
    }
    parts[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || t >= m) return;
    for (int i = 1; i < TOTAL_WARPS; i++) sum += parts[i][lane];
    totals[t] = sum;
}

// Behind the sums of pieces of a tile in the workspace.
static float *totals_of(const msgl_cuda_device *d)
{
    return (float *)((char *)d->blas->workspace + d->blas->workspace_bytes) - MSGL_CODES_SM90_ROWS;
}

// --- what can be done ---------------------------------------------------------------------------

static int parts_of(const msgl_weight *w)
{
    return w->num_parts > 0 ? w->num_parts : 1;
}

static const msgl_weight *part_of(const msgl_weight *w, int i)
{
    return w->num_parts > 0 ? &w->parts[i] : w;
}

// Whether something is added to all values of a group.
static bool has_offset(const msgl_codes_row *l)
{
    return l->offset == MSGL_OFFSET_MIN || l->offset == MSGL_OFFSET_FLOAT;
}

// Whether there is a kernel for rows of this form.
static bool has_kernel(const msgl_codes_row *l)
{
    const bool number =
        l->number == MSGL_NUMBER_F16 || l->number == MSGL_NUMBER_BF16 ||
        (l->number == MSGL_NUMBER_F32 && (l->span >= 128 || (l->bits == 8 && l->span == 64)));
    if (msgl__codes_row_is_e2m1(l)) { // MXFP4 and NVFP4
        return l->scaling == MSGL_SCALING_ONE && l->offset == MSGL_OFFSET_NONE &&
               l->span == (l->number == MSGL_NUMBER_E4M3 ? 16 : 32) &&
               msgl__codes_row_size(l->number) == 1;
    }
    if (l->looked_up || l->e4m3) return false;
    if (l->scaling == MSGL_SCALING_I8) return l->bits == 6 && l->group == 16;
    if (l->scaling == MSGL_SCALING_U8) return l->bits == 4 || l->bits == 5;
    if (l->scaling != MSGL_SCALING_ONE || !number || l->span < 32) return false;
    switch (l->bits) {
    case 4: return true;
    case 5: return l->span == 32;
    case 8: return !has_offset(l);
    default: return false;
    }
}

// The most rows up to which products of codes were faster than those of rows that are expanded
// first (docs/decisions/051), in tiles of 128: the less columns share a scale, the fewer.
static int most_rows(const msgl_codes_row *l)
{
    if (has_offset(l)) return 128;
    if (msgl__codes_row_is_e2m1(l)) return 256;
    if (l->scaling == MSGL_SCALING_I8) return 384;
    return l->span >= 128 && l->bits == 4 ? MSGL_CODES_SM90_ROWS : 512;
}

static bool part_can(const msgl_weight *w, int32_t m)
{
    msgl_codes_row l;
    return w->format->id == MSGL_W_CODES && w->format->order == NULL && w->n % 16 == 0 &&
           w->k % 128 == 0 && (uintptr_t)w->data % 16 == 0 &&
           msgl__codes_row_of(w->format->blocks, w->k, &l) && has_kernel(&l) && m <= most_rows(&l);
}

// Whether the gate is part of the product.
static bool gates(const msgl_linear_call *c)
{
    // Copies of scales of a byte begin at multiples of 16, for gate and up.
    return c->gated && c->w->num_parts == 0 && c->activation == MSGL_SILU && c->w->n % 32 == 0;
}

bool msgl__cuda_codes_sm90_can(const msgl_exec *x, const msgl_linear_call *c)
{
    const uintptr_t bits = (uintptr_t)c->in | (uintptr_t)c->out | (uintptr_t)c->next_norm;
    if (x->device->capability != 90 || x->act == MSGL_F32 || c->m < 1 ||
        c->m > MSGL_CODES_SM90_ROWS || bits % 16 != 0 || c->ld_in % 8 != 0 || c->ld_out % 8 != 0) {
        return false;
    }
    for (int i = 0; i < parts_of(c->w); i++) {
        if (!part_can(part_of(c->w, i), c->m)) return false;
    }
    return true;
}

// --- a product -----------------------------------------------------------------------------------

// Tensor maps of a plane of the codes: eights of rows, of which a gated product takes one of the
// gate and one of the up rows in turns.
static bool map_plane(CUtensorMap *map, const msgl_weight *w, const msgl_codes_row *l, bool gated,
                      uint32_t at, int bits, int steps)
{
    const cuuint64_t row = l->codes, n = (cuuint64_t)w->n;
    const cuuint64_t step = (cuuint64_t)(CODES_STEP / 8 * bits);
    const cuuint64_t dims[5] = {step, 8, 2, n / 16, (cuuint64_t)(w->k / CODES_STEP)};
    const cuuint64_t strides[4] = {row, gated ? n / 2 * row : 8 * row, gated ? 8 * row : 16 * row,
                                   step};
    const cuuint32_t box[5] = {(cuuint32_t)step, 8, 2, CODES_ROWS / 16, (cuuint32_t)steps};
    const CUtensorMapSwizzle swizzle = bits == 8   ? CU_TENSOR_MAP_SWIZZLE_128B
                                       : bits == 4 ? CU_TENSOR_MAP_SWIZZLE_64B
                                       : bits == 2 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                   : CU_TENSOR_MAP_SWIZZLE_NONE;
    return msgl__tensor_map_encode(map, MSGL_E4M3, (const uint8_t *)w->data + at, 5, dims, strides,
                                   box, swizzle);
}

// Of an array of scales: elements of `size` bytes of all rows at byte `at` of a row's, of
// which a step takes `count` of each row. Elements of 4 bytes are two of 2.
static bool map_scales(CUtensorMap *map, const msgl_weight *w, const msgl_codes_row *l, bool gated,
                       uint32_t at, uint32_t end, uint32_t size, int count)
{
    const cuuint64_t n = (cuuint64_t)w->n, words = size == 4 ? 2 : 1, rows = gated ? n / 2 : n;
    const cuuint64_t dims[3] = {rows * words, gated ? 2u : 1u, (end - at) / size};
    const cuuint64_t strides[2] = {rows * size, n * size};
    const cuuint32_t tile = gated ? CODES_ROWS / 2 : CODES_ROWS;
    const cuuint32_t box[3] = {tile * (cuuint32_t)words, gated ? 2u : 1u, (cuuint32_t)count};
    return msgl__tensor_map_encode(map, size == 1 ? MSGL_E4M3 : MSGL_BF16,
                                   (const uint8_t *)w->data + n * l->codes + n * at, 3, dims,
                                   strides, box, CU_TENSOR_MAP_SWIZZLE_NONE);
}

// The activations: 64 columns of a tile's rows, and as many times as a stage has them; in a cluster
// of two each block has half a step.
static bool map_in(codes_launch_args *a, msgl_dtype act, const void *in, const msgl_linear_call *c)
{
    const int steps = codes_stage_steps(a->tokens, a->l.bits), k = c->w->k;
    if (a->tokens > CODES_FEW) {
        return msgl__tensor_map(&a->maps.in, act, in, c->m, k, c->ld_in, a->tokens);
    }
    const cuuint64_t dims[3] = {64, (cuuint64_t)c->m, (cuuint64_t)k / 64};
    const cuuint64_t strides[2] = {c->ld_in * 2, 128};
    const cuuint32_t box[3] = {64, (cuuint32_t)a->tokens, (cuuint32_t)(2 * steps)};
    return msgl__tensor_map_encode(&a->maps.in, act, in, 3, dims, strides, box);
}

// All arrays of scales, and the bytes that they are of a stage.
static bool map_all_scales(codes_launch_args *a, const msgl_weight *w, bool gated)
{
    const msgl_codes_row *l = &a->l;
    const bool one = l->scaling == MSGL_SCALING_ONE, has_dmin = l->dmin < l->c;
    const uint32_t size = one ? msgl__codes_row_size(l->number) : 2;
    const bool bytes = l->offset == MSGL_OFFSET_ZERO;
    const int steps = codes_stage_steps(a->tokens, a->l.bits);
    const int groups = !one ? steps * 128 / l->group : l->span <= 128 ? steps * 128 / l->span : 1;
    const int first = one ? groups : 1;
    CUtensorMap *map = a->maps.scales;
    uint32_t row = (uint32_t)first * size; // bytes of a row and a step
    if (!map_scales(map++, w, l, gated, 0, l->dmin, size, first)) return false;
    if (has_dmin) {
        row += (uint32_t)first * (bytes ? 1 : size);
        if (!map_scales(map++, w, l, gated, l->dmin, l->c, bytes ? 1 : size, first)) return false;
    }
    for (int i = 0; i < 2 && !one; i++) {
        const uint32_t at = i == 0 ? l->c : l->e, end = i == 0 ? l->e : l->scales;
        if (at == end) continue;
        row += (uint32_t)groups;
        if (!map_scales(map++, w, l, gated, at, end, 1, groups)) return false;
    }
    a->g.stage_bytes = row * CODES_ROWS;
    a->g.zeros = bytes;
    a->g.wide = size == 4 ? 2 : 1;
    return true;
}

// Of numbers of one level: which one a step has (codes_args).
static int shift_of(const msgl_codes_row *l)
{
    int shift = 0;
    if (l->span == l->k) return 31;
    while (128 << shift < l->span) shift++;
    return shift;
}

int msgl__codes_sm90_cut(const msgl_exec *x, codes_launch_args *a, int per_sm, int cluster,
                         int warps)
{
    const msgl_cuda_device *d = msgl__cuda_device(x);
    codes_args *g = &a->g;
    const int rows = CODES_ROWS * cluster;
    const int64_t tiles = (int64_t)((g->n + rows - 1) / rows) * g->column_tiles;
    const size_t floats = (size_t)rows * (size_t)a->tokens;
    const int segments =
        line_cut(d, &g->line, tiles, g->line.stages, (int64_t)per_sm * d->sm_count / cluster,
                 LEAST_STAGES, floats, cluster * warps, false);
    return (float *)d->blas->workspace + (size_t)segments * floats <= totals_of(d) ? segments : 0;
}

static bool launch(msgl_exec *x, const codes_launch_args *a)
{
    switch (a->l.bits) {
    case 4: return msgl__codes_sm90_4(x, a);
    case 5: return msgl__codes_sm90_5(x, a);
    case 6: return msgl__codes_sm90_6(x, a);
    default: return msgl__codes_sm90_8(x, a);
    }
}

// One part of the call's weight, whose first row is row `first` of it, behind the norm. gated: with
// the gate in it; out as the call's, or [m, w->n] of the call's dtype.
static bool multiply_part(msgl_exec *x, const msgl_linear_call *c, const msgl_weight *w, int first,
                          bool gated)
{
    const size_t element = c->f32_out ? sizeof(float) : msgl__dtype_size(x->act);
    codes_launch_args a = {};
    if (!msgl__codes_row_of(w->format->blocks, w->k, &a.l)) return false;
    a.tokens = c->m <= 8 ? 8 : c->m <= 16 ? 16 : c->m <= 64 ? 64 : 128;
    codes_args *g = &a.g;
    g->m = c->m;
    g->n = w->n;
    g->k = w->k;
    g->columns = gated ? w->n / 2 : w->n;
    const int columns = CODES_STEP * codes_stage_steps(a.tokens, a.l.bits);
    g->line.stages = (w->k + columns - 1) / columns;
    g->column_tiles = (c->m + a.tokens - 1) / a.tokens;
    g->factor = msgl__codes_row_factor(&a.l);
    g->shift = shift_of(&a.l);
    g->bias = c->bias != NULL ? c->bias + first : NULL;
    g->gated = gated;
    g->accumulate = c->accumulate;
    g->f32_out = c->f32_out;
    g->out = (char *)c->out + (size_t)first * element;
    g->ld_out = c->ld_out;
    if (c->norm != NULL) {
        g->in_squares = c->norm_stats->sums;
        g->in_tiles = c->norm_stats->num_tiles;
        g->eps = c->norm_eps;
    }
    if (msgl__leaves_norm_stats(c)) {
        g->next = c->next_norm;
        g->scaled = c->norm_stats->scaled;
        g->squares = c->norm_stats->sums;
    }
    const void *in = c->norm != NULL ? c->norm_stats->scaled : c->in;
    const int low = a.l.bits == 8 ? 8 : 4, high = a.l.bits - low;
    const int steps = codes_stage_steps(a.tokens, a.l.bits);
    if (!map_all_scales(&a, w, gated) || !map_in(&a, x->act, in, c) ||
        !map_plane(&a.maps.low, w, &a.l, gated, 0, low, steps) ||
        (high > 0 && !map_plane(&a.maps.high, w, &a.l, gated, a.l.upper, high, steps))) {
        return false;
    }
    return launch(x, &a);
}

bool msgl__cuda_codes_sm90(msgl_exec *x, const msgl_linear_call *c)
{
    msgl_linear_call call = *c;
    const bool gated = gates(c), apart = c->gated && !gated, bf16 = x->act == MSGL_BF16;
    if (!msgl__cuda_codes_sm90_can(x, c)) return false;
    // x * weight would leave f16's range where the normalised value does not.
    if (c->norm != NULL && !(bf16 && msgl__has_norm_stats(c)) &&
        !msgl__cuda_norm_first(x, c, &call)) {
        return false;
    }
    const bool leaves = bf16 && c->m <= MSGL_FUSED_NORM_ROWS && msgl__leaves_norm_stats(c) &&
                        c->w->num_parts == 0 && c->w->n % STATS_COLUMNS == 0;
    if (call.norm == NULL && !leaves) call.norm_stats = NULL;
    if (apart) {
        call.ld_out = (size_t)c->w->n;
        call.out =
            msgl__arena_alloc(x->scratch, (size_t)c->m * call.ld_out * msgl__dtype_size(x->act));
        if (call.out == NULL) {
            x->status = MSGL_ENOMEM;
            return false;
        }
    }
    msgl_norm_stats totals;
    if (call.norm != NULL && !leaves && c->m > TOTAL_ROWS) {
        totals = *c->norm_stats;
        totals.sums = totals_of(msgl__cuda_device(x));
        totals.num_tiles = 1;
        call.norm_stats = &totals;
        MSGL_CUDA_TRY(
            x, msgl__launch(total_squares, dim3((unsigned)(c->m + TOTAL_ROWS - 1) / TOTAL_ROWS),
                            dim3(TOTAL_WARPS * 32), 0, msgl__cuda_stream(x), c->norm_stats->sums,
                            c->norm_stats->num_tiles, c->m, totals.sums));
    }
    for (int i = 0, first = 0; i < parts_of(c->w); i++) {
        const msgl_weight *part = part_of(c->w, i);
        if (!multiply_part(x, &call, part, first, gated)) return false;
        first += part->n;
    }
    if (leaves) msgl__note_norm_stats(c, c->w->n / STATS_COLUMNS);
    if (apart) msgl__cuda_gate_product(x, c, call.out);
    return true;
}
