// SPDX-License-Identifier: Apache-2.0
//
// MLA decode for Hopper: a persistent block of one loading and two computing warpgroups per SM, its
// work shared out by a plan on the device, parts of requests merged in the same launch.
#include "kernel/cuda/attn/mla_sm90/consumer.cuh"
#include "kernel/cuda/attn/mla_sm90/plan.cuh"
#include "kernel/cuda/attn/mla_sm90/producer.cuh"
#include "kernel/cuda/launch.cuh"
#include "kernel/cuda/tensor_map.cuh"

static const float log2_e = 1.4426950408889634f;

// Measured: docs/internals/mla.md.
static msgl_mla_tune measured(const msgl_mla_call *c)
{
    // The parts of few heads are merged sooner.
    const int32_t least = msgl__mla_row_groups(c->num_heads, c->q_len) < 4 ? 2 : 4;
    return {least, least, least, 8};
}

static __device__ __forceinline__ void init_barriers(msgl_mla_smem &s, msgl_mla_mode mode,
                                                     bool q_box)
{
    const uint32_t full = mode == MSGL_MLA_GATHER ? 64 : 1, empty = mode == MSGL_MLA_PAIRS ? 8 : 4;
    msgl__mbarrier_init(msgl__shared_address(&s.q_full), q_box ? 4 : 128);
    msgl__mbarrier_init(msgl__shared_address(&s.q_empty), 8);
    msgl__mbarrier_init(msgl__shared_address(&s.left), 8);
    msgl__mbarrier_init(msgl__shared_address(&s.merge), 2);
    for (int stage = 0; stage < 2; stage++) {
        for (int part = 0; part < MSGL_MLA_PARTS; part++) {
            msgl__mbarrier_init(msgl__shared_address(&s.full[stage][part]), full);
            msgl__mbarrier_init(msgl__shared_address(&s.empty[stage][part]), empty);
        }
    }
    msgl__mbarrier_init_done();
}

// Query rows that no request has are zero for the whole launch.
static __device__ __forceinline__ void clear_q(msgl_mla_smem &s, int rows)
{
    for (int i = rows * 8 + (int)threadIdx.x; i < MSGL_MLA_TILE * 8; i += MSGL_MLA_THREADS) {
        for (int c = 0; c < MSGL_MLA_CHUNKS; c++)
            msgl__write_shared(msgl__shared_address(s.q) + c * MSGL_MLA_CHUNK + i * 16,
                               make_uint4(0, 0, 0, 0));
    }
    msgl__fence_async_proxy();
}

template <msgl_mla_mode MODE>
static __global__ void __launch_bounds__(MSGL_MLA_THREADS, 1)
    mla_kernel(const __grid_constant__ msgl_mla_params p)
{
    extern __shared__ unsigned char raw[];
    const uint32_t base = msgl__shared_address(raw);
    msgl_mla_smem &s = *(msgl_mla_smem *)(raw + ((base + 1023) / 1024 * 1024 - base));
    const int share = blockIdx.x / p.row_tiles, row_tile = blockIdx.x - share * p.row_tiles;
    if (threadIdx.x == 0) {
        init_barriers(s, MODE, p.q_box_rows > 0);
        msgl__tensor_prefetch(&p.kv_map);
    }
    clear_q(s, p.rows - row_tile * MSGL_MLA_TILE);
    if (MODE == MSGL_MLA_PAIRS)
        msgl__cluster_sync();
    else
        __syncthreads();
    msgl__pdl_trigger();
    if (threadIdx.x < 128) {
        msgl__registers_down<MSGL_MLA_LOADER_REGISTERS>();
        msgl_mla_producer<MODE>(p, s, row_tile).run(share);
        __syncwarp();
        if (MODE == MSGL_MLA_PAIRS) msgl__cluster_arrive_done();
        if (threadIdx.x < 32) msgl__mla_meet(p, s, share, row_tile);
    } else {
        msgl__registers_up<MSGL_MLA_COMPUTE_REGISTERS>();
        msgl__pdl_wait();
        if (threadIdx.x < 256)
            msgl_mla_consumer<0, MODE>(p, s, share, row_tile).run();
        else
            msgl_mla_consumer<1, MODE>(p, s, share, row_tile).run();
        msgl_mla_merger(p, s, share, row_tile).run();
    }
    // The other block of the pair may still report, here, what it has used.
    __syncwarp();
    if (MODE == MSGL_MLA_PAIRS) msgl__cluster_wait();
}

// --- host ---------------------------------------------------------------------------------------

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

// Shares of a launch on this GPU; 0: it is no Hopper.
static cudaError_t count_shares(const msgl_mla_call *c, int *shares)
{
    msgl_gpu gpu;
    const cudaError_t code = msgl__current_gpu(&gpu);
    if (code != cudaSuccess) return code;
    const int ctas = gpu.sms < MSGL_MLA_MAX_CTAS ? gpu.sms : (int)MSGL_MLA_MAX_CTAS;
    *shares = gpu.major == 9 ? ctas / unit_tiles(c) : 0;
    return cudaSuccess;
}

static msgl_mla_unit *units_of(const msgl_mla_call *c)
{
    return (msgl_mla_unit *)((msgl_mla_plan *)c->plan + 1);
}

extern "C" int msgl__cuda_mla_plan_tuned(const msgl_mla_call *c, const msgl_mla_tune *t,
                                         void *stream)
{
    msgl_mla_plan_args a = {};
    if (!fits(c)) return cudaErrorNotSupported;
    const cudaError_t code = count_shares(c, &a.shares);
    if (code != cudaSuccess) return code;
    if (a.shares == 0) return cudaErrorNotSupported;
    if (c->batch == 0) return cudaSuccess;
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
    a.unit_rows = ragged ? unit_tiles(c) * MSGL_MLA_TILE : c->num_heads * c->q_len;
    a.tune = *t;
    if (c->deterministic) a.tune.whole = INT32_MAX;
    msgl__mla_plan_kernel<<<1, MSGL_MLA_PLAN_THREADS, 0, (cudaStream_t)stream>>>(a);
    return cudaGetLastError();
}

extern "C" int msgl__cuda_mla_plan(const msgl_mla_call *c, void *stream)
{
    const msgl_mla_tune t = measured(c);
    return msgl__cuda_mla_plan_tuned(c, &t, stream);
}

template <msgl_mla_mode MODE>
static cudaError_t launch(const msgl_mla_params &p, int ctas, cudaStream_t stream)
{
    constexpr auto kernel = mla_kernel<MODE>;
    const size_t bytes = sizeof(msgl_mla_smem) + 1024;
    const cudaError_t code = msgl__allow_shared<kernel>(bytes);
    if (code != cudaSuccess) return code;
    const dim3 grid((unsigned)ctas), block(MSGL_MLA_THREADS);
    if (MODE == MSGL_MLA_PAIRS)
        return msgl__launch_clusters(kernel, dim3(2), grid, block, bytes, stream, p);
    return msgl__launch(kernel, grid, block, bytes, stream, p);
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
    const bool part = !ragged && c->num_heads < MSGL_MLA_TILE;
    p->q_box_rows = part ? c->num_heads : (int)MSGL_MLA_TILE;
    p->q_box_heads = dense ? c->num_heads * tokens : c->num_heads;
    const cuuint64_t dims[3] = {MSGL_MLA_ROW, (cuuint64_t)p->q_box_heads,
                                dense ? 1 : (cuuint64_t)tokens};
    const cuuint64_t strides[2] = {MSGL_MLA_ROW * 2, (cuuint64_t)c->ld_q * 2};
    const cuuint32_t box[3] = {64, (cuuint32_t)p->q_box_rows, 1};
    return msgl__tensor_map_encode(&p->q_map, MSGL_BF16, c->q, 3, dims, strides, box);
}

extern "C" int msgl__cuda_mla(const msgl_mla_call *c, void *stream)
{
    int shares;
    if (!fits(c)) return cudaErrorNotSupported;
    const cudaError_t code = count_shares(c, &shares);
    if (code != cudaSuccess) return code;
    if (shares == 0) return cudaErrorNotSupported;
    if (c->batch == 0) return cudaSuccess;
    const uintptr_t bits = (uintptr_t)c->q | (uintptr_t)c->out | (uintptr_t)c->kv |
                           (uintptr_t)c->workspace | (uintptr_t)c->plan | c->ld_q * 2 |
                           c->ld_out * 2;
    if (bits % 16 != 0) return cudaErrorInvalidValue;
    const int row_tiles = unit_tiles(c);
    const bool pairs = row_tiles % 2 == 0;
    const bool gather = c->page_size < (pairs ? (int)MSGL_MLA_PAIRS_PAGE : 32);
    msgl_mla_params p = {};
    p.box_rows = gather ? (int)MSGL_MLA_GATHER_ROWS : c->page_size;
    if (p.box_rows > MSGL_MLA_TILE) p.box_rows = MSGL_MLA_TILE;
    while (1 << p.box_shift < p.box_rows) p.box_shift++;
    if (!msgl__tensor_map(&p.kv_map, MSGL_BF16, c->kv, (int)c->num_slots, MSGL_MLA_ROW,
                          MSGL_MLA_ROW, p.box_rows) ||
        !map_queries(c, &p))
        return cudaErrorInvalidValue;
    p.q = (const __nv_bfloat16 *)c->q;
    p.out = (__nv_bfloat16 *)c->out;
    p.lse = c->lse;
    p.kv = (const char *)c->kv;
    p.plan = (const msgl_mla_plan *)c->plan;
    p.units = units_of(c);
    p.table = c->table;
    p.tree = c->tree;
    p.ld_q = c->ld_q;
    p.ld_out = c->ld_out;
    p.table_stride = c->table_stride;
    const msgl_mla_workspace w = msgl__mla_workspace_layout(c->num_heads, c->q_len);
    p.counters = (int32_t *)c->workspace;
    p.part_ml = (float2 *)((char *)c->workspace + w.part_ml);
    p.part_o = (float4 *)((char *)c->workspace + w.part_o);
    p.heads = c->num_heads;
    p.row_tiles = row_tiles;
    p.rows = c->num_heads * c->q_len;
    if (p.rows > row_tiles * MSGL_MLA_TILE) p.rows = row_tiles * MSGL_MLA_TILE;
    p.row_groups = msgl__mla_row_groups(c->num_heads, c->q_len);
    p.page_mask = c->page_size - 1;
    p.num_slots = (int32_t)c->num_slots;
    p.log2_scale = c->scale * log2_e;
    p.ln_scale = c->scale;
    const int ctas = shares * p.row_tiles;
    if (gather) return launch<MSGL_MLA_GATHER>(p, ctas, (cudaStream_t)stream);
    return pairs ? launch<MSGL_MLA_PAIRS>(p, ctas, (cudaStream_t)stream)
                 : launch<MSGL_MLA_BOXES>(p, ctas, (cudaStream_t)stream);
}
