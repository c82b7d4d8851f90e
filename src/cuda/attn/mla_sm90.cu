// SPDX-License-Identifier: Apache-2.0
//
// MLA decode for Hopper: the plan's launch, checks, tensor maps and the choice of the kernel.
#include "cuda/attn/mla_sm90/launch.cuh"
#include "cuda/attn/mla_sm90/plan.cuh"
#include "cuda/launch.cuh"
#include "cuda/tensor_map.cuh"

static const float log2_e = 1.4426950408889634f;

// What a call becomes.
struct msgl_mla_way {
    int ranges; // of the keys
    bool few;   // by few.cuh, whose ranges are clusters
};

// Measured: docs/internals/mla.md.
static msgl_mla_tune measured(const msgl_mla_call *c, bool few)
{
    // Splits of a request, merged through the L2, pay where there are clusters to spare.
    if (few) return {1, 2, 2, c->batch < 4 ? 8 : 16};
    // The splits of few heads are merged sooner.
    const int32_t least = msgl__mla_row_groups(c->num_heads, c->q_len) < 4 ? 2 : 4;
    return {least, least, least, 8};
}

static_assert(sizeof(msgl_mla_plan) == 12 * sizeof(int32_t) * MSGL_MLA_MAX_CTAS &&
                  sizeof(msgl_mla_unit) == 8 * sizeof(int32_t),
              "msgl__mla_plan_bytes");

static bool fits(const msgl_mla_call *c)
{
    return c->num_heads >= 1 && c->num_heads <= MSGL_MLA_MAX_HEADS && c->q_len >= 1 &&
           (c->q_len <= MSGL_MLA_MAX_Q_LEN || c->cu_seqlens_q != NULL) && c->page_size >= 1 &&
           c->page_size <= MSGL_MLA_MAX_PAGE && (c->page_size & (c->page_size - 1)) == 0;
}

// Tiles of query rows of a unit.
static int unit_tiles(const msgl_mla_call *c)
{
    const int tiles = msgl__mla_row_tiles(c->num_heads, c->q_len);
    if (c->cu_seqlens_q == NULL) return tiles;
    return tiles > 1 && c->page_size >= MSGL_MLA_PAIRS_PAGE ? 2 : 1;
}

// The same for a call's plan and its launches. cudaErrorNotSupported: as msgl__cuda_mla.
static cudaError_t find_way(const msgl_mla_call *c, msgl_mla_way *way)
{
    msgl_gpu gpu;
    *way = {};
    if (!fits(c)) return cudaErrorNotSupported;
    cudaError_t code = msgl__current_gpu(&gpu);
    if (code != cudaSuccess) return code;
    if (gpu.major != 9) return cudaErrorNotSupported;
    if (c->cu_seqlens_q == NULL && c->batch <= MSGL_MLA_FEW_BATCH && !c->e4m3 &&
        c->num_heads * c->q_len <= MSGL_MLA_FEW_ROWS && !c->deterministic) {
        code = msgl__mla_few_ranges(&gpu, &way->ranges);
        way->few = way->ranges > 0;
        if (code != cudaSuccess || way->few) return code;
    }
    way->ranges = (gpu.sms < MSGL_MLA_MAX_CTAS ? gpu.sms : (int)MSGL_MLA_MAX_CTAS) / unit_tiles(c);
    return cudaSuccess;
}

static msgl_mla_unit *units_of(const msgl_mla_call *c)
{
    return (msgl_mla_unit *)((msgl_mla_plan *)c->plan + 1);
}

static cudaError_t plan_ranges(const msgl_mla_call *c, int ranges, const msgl_mla_tune &t,
                               cudaStream_t stream)
{
    if (c->batch == 0) return cudaSuccess;
    msgl_mla_plan_args a = {};
    const bool ragged = c->cu_seqlens_q != NULL;
    const int32_t units = msgl__mla_units(c->num_heads, c->batch, ragged ? c->total_q : 0);
    a.plan = (msgl_mla_plan *)c->plan;
    a.units = units_of(c);
    a.sums = (int32_t *)(a.units + units);
    a.starts = a.sums + units + 1;
    a.lens = c->seqlens_k;
    a.table_rows = c->table_rows;
    a.cu_seqlens_q = c->cu_seqlens_q;
    a.batch = c->batch;
    a.heads = c->num_heads;
    a.q_len = c->q_len;
    a.ranges = ranges;
    a.unit_rows = ragged ? unit_tiles(c) * MSGL_MLA_TILE : c->num_heads * c->q_len;
    a.tune = t;
    if (c->deterministic) a.tune.whole = INT32_MAX;
    msgl__mla_plan_kernel<<<1, MSGL_MLA_PLAN_THREADS, 0, stream>>>(a);
    return cudaGetLastError();
}

extern "C" int msgl__cuda_mla_plan_tuned(const msgl_mla_call *c, const msgl_mla_tune *t,
                                         void *stream)
{
    msgl_mla_way way;
    const cudaError_t code = find_way(c, &way);
    return code != cudaSuccess ? code : plan_ranges(c, way.ranges, *t, (cudaStream_t)stream);
}

extern "C" int msgl__cuda_mla_plan(const msgl_mla_call *c, void *stream)
{
    msgl_mla_way way;
    const cudaError_t code = find_way(c, &way);
    if (code != cudaSuccess) return code;
    return plan_ranges(c, way.ranges, measured(c, way.few), (cudaStream_t)stream);
}

// A tile's query rows as boxes, if all are of one token, or if tokens follow one another without a
// gap; false: no such map.
static bool map_queries(const msgl_mla_call *c, msgl_mla_params *p)
{
    const bool ragged = c->cu_seqlens_q != NULL;
    const bool dense = ragged && c->ld_q == (size_t)c->num_heads * MSGL_MLA_ROW;
    const bool one_token = c->num_heads % MSGL_MLA_TILE == 0 ||
                           (!ragged && c->q_len == 1 && c->num_heads <= MSGL_MLA_TILE);
    if (!dense && !one_token) return true;
    const int32_t tokens = ragged ? c->total_q : c->batch * c->q_len;
    const bool few_rows = !ragged && c->num_heads < MSGL_MLA_TILE;
    p->q_box_rows = few_rows ? c->num_heads : (int)MSGL_MLA_TILE;
    p->q_box_heads = dense ? c->num_heads * tokens : c->num_heads;
    const cuuint64_t dims[3] = {MSGL_MLA_ROW, (cuuint64_t)p->q_box_heads,
                                dense ? 1 : (cuuint64_t)tokens};
    const cuuint64_t strides[2] = {MSGL_MLA_ROW * 2, (cuuint64_t)c->ld_q * 2};
    const cuuint32_t box[3] = {64, (cuuint32_t)p->q_box_rows, 1};
    return msgl__tensor_map_encode(&p->q_map, MSGL_BF16, c->q, 3, dims, strides, box);
}

// The pool's rows, 64 columns of which are swizzled.
static bool map_rows(const msgl_mla_call *c, msgl_mla_params *p)
{
    if (!c->e4m3) {
        return msgl__tensor_map(&p->kv_map, MSGL_BF16, c->kv, (int)c->num_slots, MSGL_MLA_ROW,
                                MSGL_MLA_ROW, p->box_rows);
    }
    const cuuint64_t dims[2] = {MSGL_MLA_ROW, (cuuint64_t)c->num_slots},
                     strides[1] = {MSGL_MLA_ROW};
    const cuuint32_t box[2] = {64, (cuuint32_t)p->box_rows};
    return msgl__tensor_map_encode(&p->kv_map, MSGL_E4M3, c->kv, 2, dims, strides, box,
                                   CU_TENSOR_MAP_SWIZZLE_64B);
}

// What all kernels read.
static void common_params(const msgl_mla_call *c, msgl_mla_params *p)
{
    p->q = (const __nv_bfloat16 *)c->q;
    p->out = (__nv_bfloat16 *)c->out;
    p->lse = c->lse;
    p->kv = (const char *)c->kv;
    p->plan = (const msgl_mla_plan *)c->plan;
    p->units = units_of(c);
    p->table = c->table;
    p->tree = c->tree;
    p->ld_q = c->ld_q;
    p->ld_out = c->ld_out;
    p->table_stride = c->table_stride;
    p->paging = c->paging;
    const msgl_mla_workspace w = msgl__mla_workspace_layout(c->num_heads, c->q_len);
    p->counters = (int32_t *)c->workspace;
    p->partial_ml = (float2 *)((char *)c->workspace + w.partial_ml);
    p->partial_o = (float4 *)((char *)c->workspace + w.partial_o);
    p->heads = c->num_heads;
    p->row_groups = msgl__mla_row_groups(c->num_heads, c->q_len);
    p->num_slots = (int32_t)c->num_slots;
    p->log2_scale = c->scale * log2_e;
    p->ln_scale = c->scale;
    p->out_scale = c->out_scale;
}

static cudaError_t launch_boxes(const msgl_mla_call *c, int ranges, msgl_mla_params p,
                                cudaStream_t stream)
{
    p.row_tiles = unit_tiles(c);
    const bool pairs = p.row_tiles % 2 == 0;
    const bool gather = c->page_size < (pairs ? (int)MSGL_MLA_PAIRS_PAGE : 32);
    p.box_rows = gather ? (int)MSGL_MLA_GATHER_ROWS : c->page_size;
    if (p.box_rows > MSGL_MLA_TILE) p.box_rows = MSGL_MLA_TILE;
    while (1 << p.box_shift < p.box_rows) p.box_shift++;
    if (!map_rows(c, &p) || !map_queries(c, &p)) return cudaErrorInvalidValue;
    p.rows = c->num_heads * c->q_len;
    if (p.rows > p.row_tiles * MSGL_MLA_TILE) p.rows = p.row_tiles * MSGL_MLA_TILE;
    p.codes_in_q = p.rows <= MSGL_MLA_TILE / 2 && p.q_box_rows <= MSGL_MLA_TILE / 2;
    // Other sums than a prompt's tiles have.
    p.rows16 = c->e4m3 && p.row_groups == 1 && !c->deterministic;
    const int ctas = ranges * p.row_tiles;
    const msgl_mla_mode mode = gather ? MSGL_MLA_GATHER : pairs ? MSGL_MLA_PAIRS : MSGL_MLA_BOXES;
    return c->e4m3 ? msgl__mla_launch<true>(p, mode, ctas, stream)
                   : msgl__mla_launch<false>(p, mode, ctas, stream);
}

extern "C" int msgl__cuda_mla(const msgl_mla_call *c, void *stream)
{
    msgl_mla_way way;
    const cudaError_t code = find_way(c, &way);
    if (code != cudaSuccess || c->batch == 0) return code;
    const uintptr_t bits = (uintptr_t)c->q | (uintptr_t)c->out | (uintptr_t)c->kv |
                           (uintptr_t)c->workspace | (uintptr_t)c->plan | c->ld_q * 2 |
                           c->ld_out * 2;
    if (bits % 16 != 0) return cudaErrorInvalidValue;
    msgl_mla_params p = {};
    common_params(c, &p);
    return way.few ? msgl__mla_few_launch(p, way.ranges, (cudaStream_t)stream)
                   : launch_boxes(c, way.ranges, p, (cudaStream_t)stream);
}
