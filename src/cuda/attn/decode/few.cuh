// SPDX-License-Identifier: Apache-2.0
//
// Decode attention for few requests: a cluster of CTAs per (request, KV head), so that a step's few
// microseconds are spread over the GPU. Such a kernel is made of latencies in a row, and this one
// is shaped so that few of them come behind the kernel before it.
//
// A CTA stands beside a block of the product before it (the one for q, K and V) and of the one
// after it: memory and registers leave room for both. So lengths, table and the first keys, which
// are older than the step, are on their way or there when that product ends. Behind the wait come
// only the norm and rotation of the new token, a tile or two per warp, and merging: warps through
// the CTA's shared memory, CTAs through each other's, in fixed order. No workspace, no counters.
//
// Tiles are dealt to the cluster's warps in turn; each warp has a ring of its own, as in
// kernel.cuh.
#ifndef MSGL_CUDA_ATTN_DECODE_FEW_CUH
#define MSGL_CUDA_ATTN_DECODE_FEW_CUH

#include "cuda/attn/decode/kernel.cuh"
#include "cuda/gemm/turns.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared.cuh"

enum { MSGL_FEW_MAX_CLUSTER = 8 };

template <int HD> struct msgl_few_shape {
    static const int ROWS = 8; // query heads, padded
    // 12 tiles, in 106 KB for 128 elements.
    static const int WARPS = 6, STAGES = 2, THREADS = WARPS * 32;
    static const int LANES = MSGL_HEAD_LANES(HD); // that norm and rotate a head
    static const int EACH = 2;                    // bytes of an element of the pool
    static const int PITCH = HD * EACH + 16;      // bytes
    static const int INPUT_PITCH = PITCH;
    static const int STAGE = 2 * MSGL_FA_TILE * PITCH;
    static const int RING = STAGES * STAGE;                 // of one warp; then its partial result
    static const int MERGE_PITCH = HD + 8;                  // floats
    static const int PARTIAL = ROWS * MERGE_PITCH * 4;      // bytes
    static const int INPUT = (ROWS + 2) * INPUT_PITCH;      // query heads, newest K and V
    static const int SLOTS = WARPS * STAGES * MSGL_FA_TILE; // table entries
    static const int BYTES = WARPS * RING + INPUT + SLOTS * 4;
    static_assert(msgl__stand_together(BYTES, MSGL_TURN_LARGE), "o's block stands beside");
    static_assert(2 * PARTIAL <= RING, "a warp's partial and the CTA's");
    static_assert(STAGES * MSGL_FA_TILE == 32, "a lane per table entry");
};

// A cluster's share of a launch.
struct msgl_few_item {
    msgl_fa_walk walk; // its request, KV head, length and tiles; hi: tiles, or 0
    msgl_page_row table;
    int32_t rank, ctas; // of the cluster
};

// The position of key i of tile `tile`.
static __device__ __forceinline__ int32_t msgl_few_key(const msgl_few_item &it, int32_t tile,
                                                       int32_t i)
{
    return (it.walk.first + tile) * MSGL_FA_TILE + i;
}

// A sum of partials of one row in fixed order.
struct msgl_few_total {
    float m, l;
    float2 sum;
};

// Of n <= N partials; read_ml(i): maximum and sum of partial i, read_o(i): two of its values.
template <int N, typename ML, typename O>
static __device__ __forceinline__ msgl_few_total msgl_few_add(int32_t n, ML read_ml, O read_o)
{
    float2 ml[N], o[N];
    msgl_few_total r = {-INFINITY, 0.f, {0.f, 0.f}};
#pragma unroll
    for (int i = 0; i < N; i++) {
        ml[i] = make_float2(-INFINITY, 0.f), o[i] = make_float2(0.f, 0.f);
        if (i < n) ml[i] = read_ml(i), o[i] = read_o(i);
        r.m = fmaxf(r.m, ml[i].x);
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        // (A partial without keys has a maximum of -inf; perhaps all have none.)
        const float y = ml[i].x == -INFINITY ? 0.f : msgl__exp2(ml[i].x - r.m);
        r.sum.x += o[i].x * y;
        r.sum.y += o[i].y * y;
        r.l += ml[i].y * y;
    }
    return r;
}

// Merges the warps' partials, which lie in their rings and in ml, then those of the CTAs, and
// stores. own_ml: maxima and sums of this CTA.
template <typename T, int HD, typename S>
static __device__ __forceinline__ void msgl_few_finish(const msgl_decode_args &a,
                                                       const msgl_few_item &it, char *smem,
                                                       const float2 *ml, float2 *own_ml)
{
    const int32_t pairs = a.rows * (HD / 2);
    float *own = (float *)(smem + S::PARTIAL); // behind the first warp's partial
    __syncthreads();
    for (int32_t i = threadIdx.x; i < pairs; i += S::THREADS) {
        const int32_t row = i / (HD / 2), at = row * S::MERGE_PITCH + i % (HD / 2) * 2;
        const msgl_few_total r = msgl_few_add<S::WARPS>(
            S::WARPS, [&](int x) { return ml[x * S::ROWS + row]; },
            [&](int x) { return *(const float2 *)(smem + x * S::RING + at * 4); });
        *(float2 *)(own + at) = r.sum;
        if (i % (HD / 2) == 0) own_ml[row] = make_float2(r.m, r.l);
    }
    msgl__cluster_sync();
    const uint32_t from = msgl__shared_address(own), from_ml = msgl__shared_address(own_ml);
    for (int32_t i = it.rank * S::THREADS + threadIdx.x; i < pairs; i += it.ctas * S::THREADS) {
        const int32_t row = i / (HD / 2), d = i % (HD / 2) * 2;
        const uint32_t at = from + (row * S::MERGE_PITCH + d) * 4;
        const msgl_few_total r = msgl_few_add<MSGL_FEW_MAX_CLUSTER>(
            it.ctas,
            [&](int x) {
                return msgl__cluster_read_8(msgl__cluster_address(from_ml + row * 8, x));
            },
            [&](int x) { return msgl__cluster_read_8(msgl__cluster_address(at, x)); });
        msgl_decode_store<T, HD>(a, it.walk.req, it.walk.head * a.group + row, d, r.sum, r.m, r.l);
    }
    msgl__cluster_sync(); // all have read
}

// Finds the cluster's request and head. false: it has no keys.
static __device__ __forceinline__ bool msgl_few_find(const msgl_decode_args &a, msgl_few_item *it)
{
    it->rank = (int32_t)msgl__cluster_rank();
    it->ctas = (int32_t)msgl__cluster_size();
    msgl_fa_walk *w = &it->walk;
    const int32_t item = blockIdx.x / it->ctas;
    w->req = item / a.split.heads;
    w->head = item - w->req * a.split.heads;
    w->len = a.seqlens[w->req];
    it->table = msgl__page_row(a, a.table_rows[w->req]);
    w->tiles = msgl__fa_tiles(w->len, a.split.window, &w->first);
    w->lo = 0;
    w->hi = (w->tiles - 1) % it->ctas == it->rank ? w->tiles : 0; // has the newest token
    return w->tiles > 0;
}

// One cluster's item.
template <typename T, int HD>
static __device__ __forceinline__ void msgl_few_run(const msgl_decode_args &a,
                                                    const msgl_few_item &it, char *smem)
{
    typedef msgl_few_shape<HD> S;
    const int WARPS = S::WARPS, STAGES = S::STAGES, ROWS = S::ROWS;
    __shared__ float2 ml[WARPS * ROWS], own_ml[ROWS];
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    char *input = smem + WARPS * S::RING;
    const uint32_t ring = msgl__shared_address(smem) + warp * S::RING;
    int32_t *slots = (int32_t *)(input + S::INPUT) + warp * STAGES * MSGL_FA_TILE;
    const int32_t len = it.walk.len, tiles = it.walk.tiles, rope = a.rope.on;
    const int32_t step = it.ctas * WARPS, from = warp * it.ctas + it.rank;
    const int32_t where = it.walk.head * HD * 2;
    const int32_t pos = msgl_few_key(it, from + lane / MSGL_FA_TILE * step, lane % MSGL_FA_TILE);
    const int32_t begin = msgl__fa_first_key(len, a.split.window);
    slots[lane] = pos >= begin && pos < len - rope ? it.table.page(pos) : MSGL_DECODE_NO_SLOT;
    __syncwarp();
    // Brings a tile; then, in the same group, the table entries of the one that takes its place.
    const auto bring = [&](int32_t tile, int32_t at) {
        int32_t *entries = slots + at * MSGL_FA_TILE;
        if (tile < tiles) {
            const int32_t place = it.table.first + msgl_few_key(it, tile, 0);
            msgl_decode_issue<HD, S::EACH, S::PITCH, false>(a, lane, entries, {where, place},
                                                            ring + at * S::STAGE);
        }
        __syncwarp();
        // Behind the first key in any case: this warp has a tile before.
        const int32_t after = msgl_few_key(it, tile + STAGES * step, lane);
        if (lane < MSGL_FA_TILE && after < len - rope) {
            msgl__copy_async_4(msgl__shared_address(entries + lane),
                               a.table + msgl__paging_page(a.paging, it.table.first + after));
        } else if (lane < MSGL_FA_TILE) {
            entries[lane] = MSGL_DECODE_NO_SLOT;
        }
        msgl__copy_async_commit();
    };
#pragma unroll 1
    for (int i = 0; i < STAGES; i++) {
        const int32_t tile = from + i * step;
        if (!rope && tile == tiles - 1) msgl__pdl_wait(); // the newest token is in the pool
        bring(tile, i);
    }
    if (rope) msgl_decode_prefetch_weights<HD>(a);
    msgl__pdl_wait();
    if (a.first) msgl__pdl_trigger();

    msgl_decode_warp<T, HD, ROWS> w;
    if (rope) {
        msgl_decode_fetched fetched;
        msgl_decode_fetch<T, HD>(a, it.walk, msgl_decode_lane_group<S>(), &fetched);
        msgl_decode_prepare_all<T, HD, S>(a, it.walk, &fetched, input);
        __syncthreads();
        msgl_decode_load_q<T, HD, ROWS, S::PITCH>(input, lane, &w);
    } else {
        msgl_decode_read_q(a, it.walk, lane, &w);
    }
    msgl_decode_reset(&w);
    int32_t at = 0; // stage
#pragma unroll 1
    for (int32_t tile = from; tile < tiles; tile += step) {
        msgl__copy_async_wait<STAGES - 1>();
        __syncwarp();
        const uint32_t stage = ring + at * S::STAGE, v_at = msgl_decode_v_at<S::PITCH>(stage, lane);
        if (rope && tile == tiles - 1) {
            msgl_decode_place_newest<HD, S>(smem + warp * S::RING + at * S::STAGE, input,
                                            (len - 1) % MSGL_FA_TILE, lane);
        }
        float s[2][ROWS / 8][4];
        uint32_t p[ROWS / 8][2], v[4];
        msgl_decode_scores<T, HD, ROWS, S::PITCH>(stage, lane, w, s);
        msgl_decode_softmax(a, s, lane, msgl_few_key(it, tile, 0), begin, len, &w, p);
#pragma unroll
        for (int db = 0; db < HD / 16; db++) {
            msgl__load_matrix_4_transposed(v_at + db * 32, v);
            msgl_decode_pv(v, db, p, &w);
        }
        __syncwarp();
        bring(tile + STAGES * step, at);
        at = at == STAGES - 1 ? 0 : at + 1;
    }
    msgl__copy_async_wait<0>();
    __syncwarp();
    msgl_decode_sum(&w);
    msgl_decode_put_ml(w, lane, ml + warp * ROWS);
    if (lane % 4 * 2 < a.rows) {
        msgl_decode_put_rows<ROWS, S::MERGE_PITCH>(w, 0, 0, lane, (float *)(smem + warp * S::RING));
    }
    msgl_few_finish<T, HD, S>(a, it, smem, ml, own_ml);
}

template <typename T, int HD>
__global__
__launch_bounds__(msgl_few_shape<HD>::THREADS,
                  2) void msgl_decode_few_kernel(const __grid_constant__ msgl_decode_args a)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900 // never launched before
    extern __shared__ __align__(128) char smem[];
    if (!a.first) msgl__pdl_trigger();
    msgl_few_item it;
    if (msgl_few_find(a, &it)) {
        msgl_few_run<T, HD>(a, it, smem);
    } else {
        msgl__pdl_wait();
    }
#endif
}

#endif
