// SPDX-License-Identifier: Apache-2.0
//
// Products of FP8 weights by FP8 activations (fp8_rows.h) of up to 64 rows, on Hopper, whose
// tensor cores multiply E4M3 as it is.
//
// A tile is 128 or 256 rows of W times 8 to 64 rows of `in`; W's rows are the rows of the tensor
// cores' product and those of `in` its columns. A warp brings stages of 128 columns of both, with
// their scales, through a ring; two warpgroups multiply. A stage's sums are multiplied by the
// scales of its row and its token in f32 and added to the tile's: the tensor cores add products
// with fewer bits than an f32 has, and no further than that. The tiles' stages lie on a line that
// is cut into equal segments, one for each multiprocessor, which begin and end somewhere in a tile;
// all that have a piece of a tile finish it together. They wait for each other then, which is safe
// because there are no more blocks than multiprocessors, and because a kernel behind gets none of
// these before all have begun.
//
// What decides for few rows is that memory is never idle. A block therefore takes half of a
// multiprocessor's shared memory, so that one of the kernel behind is there beside it: that one's
// first weights are on their way before the kernel in front has ended (launch.cuh).
//
// The end of a tile makes coded rows of what it has, where a product behind wants them: 128 outputs
// of a row share a scale, so that a tile with a gate has 256 rows of W. It is a loop over them and
// not unrolled, since code that runs once comes from memory as weights do. docs/decisions/052 has
// the figures.
#include "cuda/gemm/fp8_sm90.h"

#include "cuda/device.cuh"
#include "cuda/gemm/fp8_sm90/call.cuh"
#include "cuda/gemm/lt.cuh"
#include "cuda/tensor_map.cuh"

enum {
    LEAST_STAGES = 2, // of a segment: shorter ones cost more than they bring
};

int msgl__fp8_sm90_cut(const msgl_exec *x, fp8_launch_args *a)
{
    const msgl_cuda_device *d = msgl__cuda_device(x);
    fp8_args *g = &a->g;
    const int rows = FP8_GROUPS * a->slabs * FP8_SLAB;
    const int64_t tiles = (g->n + rows - 1) / rows;
    if (2 * tiles > MSGL_GEMM_FLAGS) return 0;
    return line_cut(d, &g->line, tiles, g->line.stages, d->sm_count, LEAST_STAGES,
                    2 * (size_t)rows * (size_t)a->tokens, 0, true);
}

// Eights of rows of W, of which a gated product takes one of the gates and one of the ups in turns.
static bool map_w(fp8_launch_args *a, const msgl_weight *w, bool gated)
{
    const cuuint64_t row = (cuuint64_t)w->k, n = (cuuint64_t)w->n;
    const cuuint64_t dims[4] = {row, 8, 2, n / 16};
    const cuuint64_t strides[3] = {row, gated ? n / 2 * row : 8 * row, gated ? 8 * row : 16 * row};
    const cuuint32_t pairs = (cuuint32_t)(FP8_GROUPS * a->slabs * FP8_SLAB / 16);
    const cuuint32_t box[4] = {FP8_STEP, 8, 2, pairs};
    return msgl__tensor_map_encode(&a->maps.w, MSGL_E4M3, w->data, 4, dims, strides, box);
}

// Scales of W by group: rows, of a gated product gates and ups apart, and groups.
static bool map_w_scales(fp8_launch_args *a, const msgl_weight *w, const msgl_codes_row *l,
                         bool gated)
{
    const msgl_dtype type = l->number == MSGL_NUMBER_F32 ? MSGL_F32 : MSGL_BF16; // of its size
    const cuuint64_t n = (cuuint64_t)w->n, halves = gated ? 2 : 1, size = msgl__dtype_size(type);
    const cuuint64_t dims[3] = {n / halves, halves, (cuuint64_t)a->g.line.stages};
    const cuuint64_t strides[2] = {n / halves * size, n * size};
    const cuuint32_t rows = (cuuint32_t)(FP8_GROUPS * a->slabs * FP8_SLAB);
    const cuuint32_t box[3] = {rows / (cuuint32_t)halves, (cuuint32_t)halves, 1};
    return msgl__tensor_map_encode(&a->maps.w_scales, type, (const uint8_t *)w->data + n * l->codes,
                                   3, dims, strides, box, CU_TENSOR_MAP_SWIZZLE_NONE);
}

static bool map_in(fp8_launch_args *a, const msgl_fp8_rows *in)
{
    const cuuint64_t m = (cuuint64_t)in->m, k = (cuuint64_t)in->k;
    const cuuint64_t dims[2] = {k, m}, strides[1] = {k};
    const cuuint64_t groups[2] = {m, k / MSGL_FP8_GROUP};
    const cuuint64_t group_strides[1] = {(cuuint64_t)in->pitch * sizeof(float)};
    const cuuint32_t box[2] = {FP8_STEP, (cuuint32_t)a->tokens};
    const cuuint32_t group_box[2] = {(cuuint32_t)a->tokens, 1};
    return msgl__tensor_map_encode(&a->maps.in, MSGL_E4M3, in->codes, 2, dims, strides, box) &&
           msgl__tensor_map_encode(&a->maps.in_scales, MSGL_F32, in->scales, 2, groups,
                                   group_strides, group_box, CU_TENSOR_MAP_SWIZZLE_NONE);
}

static void fill_output(fp8_args *g, const msgl_fp8_product *p, size_t element)
{
    const msgl_linear_call *c = p->call;
    g->columns = p->gated ? p->w->n / 2 : p->w->n;
    g->gated = p->gated;
    g->bias = c->bias != NULL ? c->bias + p->first : NULL;
    g->accumulate = c->accumulate;
    g->f32_out = c->f32_out;
    g->out = (char *)p->out + (size_t)p->first * element;
    g->ld_out = p->ld_out;
    if (p->to == NULL) return;
    g->leaves = p->leaves_stats ? FP8_NORM_STATS : FP8_ROWS;
    g->codes = p->to->codes;
    g->scales = p->to->scales;
    g->pitch = p->to->pitch;
    if (!p->leaves_stats) return;
    g->next = c->next_norm;
    g->squares = c->norm_stats->sums;
}

bool msgl__cuda_fp8_sm90(msgl_exec *x, const msgl_fp8_product *p)
{
    const size_t element = p->call->f32_out ? sizeof(float) : msgl__dtype_size(x->act);
    const int m = p->in.m;
    fp8_launch_args a = {};
    fp8_args *g = &a.g;
    a.tokens = m <= 8 ? 8 : m <= 16 ? 16 : m <= 32 ? 32 : 64;
    a.slabs = p->gated ? 2 : 1;
    g->m = m;
    g->n = p->w->n;
    g->k = p->w->k;
    g->line.stages = p->w->k / FP8_STEP;
    g->number = p->l->number;
    if (p->l->span == p->l->k) {
        g->row_scales = (const uint8_t *)p->w->data + (size_t)p->w->n * p->l->codes;
    }
    g->in_squares = p->squares;
    g->in_tiles = p->tiles;
    g->eps = p->call->norm_eps;
    g->half_out = x->act == MSGL_F16;
    fill_output(g, p, element);
    if (m > MSGL_FP8_FEW_ROWS || !map_w(&a, p->w, p->gated) || !map_in(&a, &p->in) ||
        (g->row_scales == NULL && !map_w_scales(&a, p->w, p->l, p->gated))) {
        return false;
    }
    return a.tokens <= 32 ? msgl__fp8_sm90_few(x, &a) : msgl__fp8_sm90_many(x, &a);
}
