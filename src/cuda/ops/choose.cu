// SPDX-License-Identifier: Apache-2.0
//
// Family moe, a step of few rows on Hopper and later: norm, router, choice and sort by expert as
// one kernel. All of it is latencies in a row, so there are as few of them as possible:
//
// - A cluster of eight blocks takes 16 rows, each block an eighth of k: nothing is loaded twice.
//   The router's weights are in registers, as the products need them, before the kernel in front
//   ends.
// - Blocks send each other their sums (st.async: counted by an mbarrier where they arrive). Each
//   finishes two rows, a warp per row; the others write the normed rows meanwhile.
// - One block sorts. A choice is one word that is its own flag, polled where it is written: no
//   fence, no counter. The sort is one pass: a bit per row in a mask per expert, whose bits below
//   a row are the row's place.
#include "cuda/device.cuh"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/lt.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/ops.h"
#include "cuda/ops/route.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/global.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared.cuh"

enum {
    K_SPLITS = 8, // of k: blocks of a cluster
    ROWS = 16,    // of a cluster
    OWN = ROWS / K_SPLITS,
    WARPS = SORT_WARPS,
    THREADS = SORT_THREADS,
    STRIP = 16, // experts of a warp at a time
    ROUND = WARPS * STRIP,
    STEP = 32, // of k: two mma
    STEPS = 8, // at a time
    MAX_ROWS = 256,
    MAX_EXPERTS = 512,
    MAX_DIM = 4096,
    MINE = MAX_DIM / K_SPLITS / STEP / WARPS, // steps that a warp loads
    MAX_CHOICES = 2048,
};
static_assert((int)MAX_CHOICES <= (int)MSGL_GEMM_FLAGS, "a flag for each choice");

// Offsets in shared memory, bytes.
typedef struct choose_layout {
    int norm;    // of this block's split of k
    int squares; // the same, [WARPS, ROWS]
    int all;     // [K_SPLITS, ROWS]
    int sums;    // [K_SPLITS, OWN, width]
    int ids;     // [OWN, top_k], and behind them the weights
    int choices; // [rows * top_k], whole fours; the first cluster's: zeros to begin with
    int masks;   // [(rows + 31) / 32, experts]; zeros to begin with
    int places;  // the same size
    int end;
} choose_layout;

typedef struct choose_args {
    const __nv_bfloat16 *in, *router;
    const float *norm;
    float eps, per_dim; // 1 / dim
    int rows, dim;
    int split_k;        // columns of k that each block of a cluster takes: dim / K_SPLITS
    int experts, width; // width: whole strips
    msgl_router how;
    __nv_bfloat16 *normed;
    float *logits, *weights;
    int32_t *ids, *offsets, *source;
    int32_t *flags; // [MAX_CHOICES], zeros between kernels
    choose_layout at;
} choose_args;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// --- the product --------------------------------------------------------------------------------

// STEPS of k of this warp's strip as operands of its two products, column n of product j being
// expert 4 (n / 2) + 2 j + n % 2 of the strip: so that a thread's sums are of four neighbours.
static __device__ __forceinline__ void load_router(const choose_args &g, int first, int k0,
                                                   uint4 (&w)[2][STEPS])
{
    const int lane = (int)threadIdx.x % 32;
    const int k = k0 + lane % 4 * 8;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int expert = first + lane / 8 * 4 + 2 * j + lane / 4 % 2;
        const __nv_bfloat16 *from = g.router + (size_t)expert * (size_t)g.dim +
                                    (size_t)(blockIdx.x * (unsigned)g.split_k) + k;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const bool there = expert < g.experts && k + s * STEP < g.split_k;
            w[j][s] = there ? *(const uint4 *)(from + s * STEP) : make_uint4(0, 0, 0, 0);
        }
    }
}

// What a lane has of the rows: of row `row` and the eighth one behind, eight elements from k on of
// this block's split of k, as the products' operands need them, and of every WARPSth step behind.
// Which k an element has does not matter there, only that both operands agree.
typedef struct place {
    int row, step, steps, k;
    size_t at; // in `in` and in `normed`
} place;

static __device__ __forceinline__ place place_of(const choose_args &g)
{
    const int lane = (int)threadIdx.x % 32;
    place p;
    p.row = lane / 4;
    p.step = (int)threadIdx.x / 32;
    p.steps = g.split_k / STEP;
    p.k = p.step * STEP + lane % 4 * 8;
    p.at = (size_t)((int)blockIdx.y * ROWS + p.row) * (size_t)g.dim +
           (size_t)((int)blockIdx.x * g.split_k + p.k);
    return p;
}

// Multiplies a step by the norm's weights and leaves it in shared memory, in the order of the
// products' registers. squares += of the two rows.
static __device__ __forceinline__ void store_step(const uint4 (&x)[2], const float *norm, uint4 *to,
                                                  float (&squares)[2])
{
    float scale[8];
    load8(norm, scale);
    uint4 packed[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float v[8];
        unpack8(x[h], v, __nv_bfloat16());
#pragma unroll
        for (int i = 0; i < 8; i++) {
            squares[h] += v[i] * v[i];
            v[i] *= scale[i];
        }
        packed[h] = pack8(v, __nv_bfloat16());
    }
    const uint4 a = packed[0], b = packed[1];
    to[threadIdx.x % 32] = make_uint4(a.x, b.x, a.y, b.y);
    to[threadIdx.x % 32 + 32] = make_uint4(a.z, b.z, a.w, b.w);
}

// Loads this block's split of the rows; to: [steps, 2, 32], squares: [WARPS, ROWS].
static __device__ __forceinline__ void take_rows(const choose_args &g, const place &p,
                                                 const float *norm, int here, uint4 *to,
                                                 float *squares)
{
    uint4 x[MINE][2];
    float square[2] = {0};
#pragma unroll
    for (int i = 0; i < MINE && p.step + i * WARPS < p.steps; i++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            x[i][h] = make_uint4(0, 0, 0, 0);
            if (p.row + 8 * h >= here) continue;
            x[i][h] = *(const uint4 *)(g.in + p.at + (size_t)(8 * h * g.dim + i * WARPS * STEP));
        }
    }
#pragma unroll
    for (int i = 0; i < MINE && p.step + i * WARPS < p.steps; i++) {
        store_step(x[i], norm + p.k + i * WARPS * STEP, to + (p.step + i * WARPS) * 64, square);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        square[h] = group_sum(square[h], 4);
        if (threadIdx.x % 4 == 0) squares[p.step * ROWS + p.row + 8 * h] = square[h];
    }
}

// acc[j][.] += the two halves of STEPS steps; behind the last of `steps` their weights are zeros
// and it is multiplied again: branches would keep the reads from running ahead.
static __device__ __forceinline__ void multiply(const uint4 *in, int steps,
                                                const uint4 (&w)[2][STEPS], float (&acc)[2][2][4])
{
    in += threadIdx.x % 32;
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const uint4 *from = in + (s < steps ? s : steps - 1) * 64;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint4 a = from[h * 32];
            const uint32_t m[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint4 v = w[j][s];
                msgl__mma(acc[j][h], m, h == 0 ? v.x : v.z, h == 0 ? v.y : v.w, __nv_bfloat16());
            }
        }
    }
}

// Of a row: of the warps or of the splits of k, ROWS floats after another.
static __device__ __forceinline__ float sum_of_eight(const float *p)
{
    static_assert((int)K_SPLITS == 8 && (int)WARPS == 8, "as many of both");
    return ((p[0] + p[ROWS]) + (p[2 * ROWS] + p[3 * ROWS])) +
           ((p[4 * ROWS] + p[5 * ROWS]) + (p[6 * ROWS] + p[7 * ROWS]));
}

// --- between blocks -----------------------------------------------------------------------------

// To the same place in block `to` of the cluster. Its own share a block stores plainly, and its
// warps arrive.
static __device__ __forceinline__ void send(float *place, float v, int to, uint32_t barrier)
{
    if (to == (int)blockIdx.x) {
        *place = v;
        return;
    }
    const uint32_t remote = msgl__cluster_address(msgl__shared_address(place), (uint32_t)to);
    msgl__cluster_store(remote, v, msgl__cluster_address(barrier, (uint32_t)to));
}

static __device__ __forceinline__ void send(float *place, float4 v, int to, uint32_t barrier)
{
    if (to == (int)blockIdx.x) {
        *(float4 *)place = v;
        return;
    }
    const uint32_t remote = msgl__cluster_address(msgl__shared_address(place), (uint32_t)to);
    msgl__cluster_store(remote, v, msgl__cluster_address(barrier, (uint32_t)to));
}

// This warp's sums of the strip of experts from `first` on, to the blocks that finish their rows.
static __device__ __forceinline__ void send_sums(const choose_args &g, float *sums, int first,
                                                 int here, const float (&acc)[2][2][4],
                                                 uint32_t barrier)
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = lane / 4 + 8 * h, i = 2 * h;
        if (row >= here || first >= g.width) continue;
        const float4 v =
            make_float4(acc[0][0][i] + acc[0][1][i], acc[0][0][i + 1] + acc[0][1][i + 1],
                        acc[1][0][i] + acc[1][1][i], acc[1][0][i + 1] + acc[1][1][i + 1]);
        send(sums + ((int)blockIdx.x * OWN + row % OWN) * g.width + first + lane % 4 * 4, v,
             row / OWN, barrier);
    }
}

// Where the word of choice i goes: to the block that sorts, or past the L2 where that is in another
// cluster.
static __device__ __forceinline__ int32_t *word_of(const choose_args &g, int32_t *choices, int i)
{
    if (blockIdx.y > 0) return g.flags + i;
    return msgl__cluster_pointer(choices + i, 0);
}

// --- a row --------------------------------------------------------------------------------------

static __device__ __forceinline__ float scale_of(const choose_args &g, const float *squares,
                                                 int row)
{
    return rsqrtf(sum_of_eight(squares + row) * g.per_dim + g.eps);
}

// The choice of row `row` of this cluster, one of this block's, by a warp.
template <int PER, bool PLAIN>
static __device__ __forceinline__ void finish_row(const choose_args &g, unsigned char *shared,
                                                  int row)
{
    const int lane = (int)threadIdx.x % 32, own = row % OWN, first = lane * PER;
    const float *sums = (const float *)(shared + g.at.sums) + own * g.width + first;
    int32_t *ids = (int32_t *)(shared + g.at.ids) + own * g.how.top_k;
    float *weights = (float *)(ids + OWN * g.how.top_k);
    float logits[PER] = {0}, added[PER];
    if constexpr (!PLAIN) load_corrections(g.how, g.experts, added);
#pragma unroll
    for (int i = 0; i < PER; i += 4) {
        if (first + i >= g.width) break;
#pragma unroll
        for (int p = 0; p < K_SPLITS; p++) {
            const float4 v = *(const float4 *)(sums + p * OWN * g.width + i);
            logits[i] += v.x, logits[i + 1] += v.y, logits[i + 2] += v.z, logits[i + 3] += v.w;
        }
    }
    const float scale = scale_of(g, (const float *)(shared + g.at.all), row);
    uint32_t keys[PER];
#pragma unroll
    for (int i = 0; i < PER; i++) {
        logits[i] *= scale;
        keys[i] = first + i < g.experts ? ordered(logits[i]) : 0;
    }
    const float total = route_row<PER, PLAIN>(g.how, g.experts, added, keys, ids, weights);
    row += (int)blockIdx.y * ROWS;
#pragma unroll 1
    for (int c = lane; c < g.how.top_k; c += 32) {
        const int i = row * g.how.top_k + c, expert = ids[c];
        msgl__store_relaxed(word_of(g, (int32_t *)(shared + g.at.choices), i),
                            row << 16 | (expert + 1));
        g.ids[i] = expert;
        g.weights[i] = weights[c] / total * g.how.scale;
    }
    float *to = g.logits + (size_t)row * (size_t)g.experts + first;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        if (first + i < g.experts) to[i] = logits[i];
    }
}

// This block's split of the normed rows.
static __device__ __forceinline__ void store_normed(const choose_args &g, const place &p,
                                                    const float *squares, const float *norm,
                                                    int here)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (p.row + 8 * h >= here) break;
        const float scale = scale_of(g, squares, p.row + 8 * h);
#pragma unroll
        for (int i = 0; i < MINE && p.step + i * WARPS < p.steps; i++) {
            const size_t at = p.at + (size_t)(8 * h * g.dim + i * WARPS * STEP);
            float v[8], weight[8];
            load8(g.in + at, v); // from the L1: registers are scarce meanwhile
            load8(norm + p.k + i * WARPS * STEP, weight);
#pragma unroll
            for (int j = 0; j < 8; j++) v[j] = v[j] * scale * weight[j];
            store8(g.normed + at, v);
        }
    }
}

// --- the sort -----------------------------------------------------------------------------------

// Brings all choices to shared memory and sets their bits. A word is a row and an expert, row << 16
// | (expert + 1), or 0: not there yet. Other clusters run, or get to run: nothing that waits for
// this kernel can hold an SM before all its blocks do.
static __device__ __forceinline__ void collect(const choose_args &g, int32_t *choices, int n,
                                               uint32_t *masks)
{
    const int here = msgl__clamp_to(g.rows, ROWS) * g.how.top_k; // those of this cluster
#pragma unroll 1
    for (int i = (int)threadIdx.x * 4; i < n; i += THREADS * 4) {
        int32_t *const from = i < here ? choices + i : g.flags + i;
        int4 v;
        do {
            v = msgl__load_relaxed_4(from);
        } while (v.x == 0 || (v.y == 0 && i + 1 < n) || (v.z == 0 && i + 2 < n) ||
                 (v.w == 0 && i + 3 < n));
        if (i >= here) {
            *(int4 *)from = make_int4(0, 0, 0, 0);
            *(int4 *)(choices + i) = v;
        }
        const int words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int u = 0; u < 4; u++) {
            const int row = words[u] >> 16, expert = (words[u] & 0xffff) - 1;
            if (i + u < n) atomicOr(&masks[(row >> 5) * g.experts + expert], 1u << (row & 31));
        }
    }
}

static __device__ __forceinline__ void sort(const choose_args &g, unsigned char *shared)
{
    const int t = (int)threadIdx.x, n = g.rows * g.how.top_k, sets = (g.rows + 31) / 32;
    int32_t *choices = (int32_t *)(shared + g.at.choices);
    uint32_t *masks = (uint32_t *)(shared + g.at.masks);
    int32_t *places = (int32_t *)(shared + g.at.places);
    collect(g, choices, n, masks);
    __syncthreads();
    const int per = (g.experts + THREADS - 1) / THREADS, first = t * per;
    const int last = first + per < g.experts ? first + per : g.experts;
    int total = 0;
#pragma unroll 1
    for (int e = first; e < last; e++) {
#pragma unroll 1
        for (int s = 0; s < sets; s++) total += __popc(masks[s * g.experts + e]);
    }
    int place = scan_before(total);
#pragma unroll 1
    for (int e = first; e < last; e++) {
        g.offsets[e] = place;
#pragma unroll 1
        for (int s = 0; s < sets; s++) {
            places[s * g.experts + e] = place;
            place += __popc(masks[s * g.experts + e]);
        }
    }
    if (t == 0) g.offsets[g.experts] = n;
    __syncthreads();
#pragma unroll 1
    for (int i = t; i < n; i += THREADS) {
        const int row = choices[i] >> 16, expert = (choices[i] & 0xffff) - 1;
        const int at = (row >> 5) * g.experts + expert;
        g.source[places[at] + __popc(masks[at] & ((1u << (row & 31)) - 1))] = i;
    }
}

#endif

template <int PER, bool PLAIN>
static __global__ void __launch_bounds__(THREADS, 2) choose_kernel(const choose_args g)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ uint64_t arrived;
    const int t = (int)threadIdx.x, warp = t / 32, split = (int)blockIdx.x;
    const int here = msgl__clamp_to(g.rows - (int)blockIdx.y * ROWS, ROWS); // rows
    const int own = msgl__clamp_to(here - split * OWN, OWN), steps = g.split_k / STEP;
    const bool sorts = blockIdx.x == 0 && blockIdx.y == 0;
    const uint32_t barrier = msgl__shared_address(&arrived);
    uint4 *in = (uint4 *)shared;
    float *norm = (float *)(shared + g.at.norm);
    float *squares = (float *)(shared + g.at.squares), *all = (float *)(shared + g.at.all);
    msgl__pdl_trigger();
    if (t == 0) {
        msgl__mbarrier_init(barrier, 1 + WARPS);
        msgl__mbarrier_init_done();
        msgl__mbarrier_expect(barrier, (uint32_t)((K_SPLITS - 1) * (own * g.width + ROWS) * 4));
    }
#pragma unroll 1
    for (int i = g.at.choices / 4 + t; sorts && i < g.at.places / 4; i += THREADS) {
        ((int32_t *)shared)[i] = 0;
    }
#pragma unroll 1
    for (int i = t; i < g.split_k / 4; i += THREADS) {
        ((float4 *)norm)[i] = ((const float4 *)(g.norm + split * g.split_k))[i];
    }
    msgl__cluster_sync(); // behind it others may send, and write choices
    uint4 w[2][STEPS];
    load_router(g, warp * STRIP, 0, w);
    const place p = place_of(g);
    msgl__pdl_wait();
    take_rows(g, p, norm, here, in, squares);
    __syncthreads();
    if (t < K_SPLITS * ROWS) {
        send(all + split * ROWS + t % ROWS, sum_of_eight(squares + t % ROWS), t / ROWS, barrier);
    }
#pragma unroll 1
    for (int first = warp * STRIP; first < g.width; first += ROUND) {
        float acc[2][2][4] = {};
#pragma unroll 1
        for (int s = 0; s < steps; s += STEPS) {
            if (first >= ROUND || s > 0) load_router(g, first, s * STEP, w);
            multiply(in + s * 64, steps - s, w, acc);
        }
        send_sums(g, (float *)(shared + g.at.sums), first, here, acc, barrier);
    }
    __syncwarp();
    if (t % 32 == 0) msgl__mbarrier_arrive(barrier);
    msgl__mbarrier_wait(barrier, 0);
    if (warp < own) finish_row<PER, PLAIN>(g, shared, split * OWN + warp);
    store_normed(g, p, all, norm, here);
    if (sorts) sort(g, shared);
#endif
}

static choose_layout layout_of(int rows, int split_k, int experts, int width, int top_k)
{
    const int sets = (rows + 31) / 32;
    choose_layout at;
    at.norm = ROWS * split_k * 2;
    at.squares = at.norm + split_k * 4;
    at.all = at.squares + WARPS * ROWS * 4;
    at.sums = at.all + K_SPLITS * ROWS * 4;
    at.ids = at.sums + K_SPLITS * OWN * width * 4;
    at.choices = (at.ids + 2 * OWN * top_k * 4 + 15) & ~15;
    at.masks = at.choices + ((rows * top_k + 3) & ~3) * 4;
    at.places = at.masks + sets * experts * 4;
    at.end = at.places + sets * experts * 4;
    return at;
}

template <auto KERNEL> static void launch_kernel(msgl_exec *x, const choose_args &g)
{
    const size_t bytes = (size_t)g.at.end;
    MSGL_CUDA_TRY(x, msgl__allow_shared<KERNEL>(bytes, true));
    MSGL_CUDA_TRY(x, msgl__launch_clusters(KERNEL, dim3(K_SPLITS),
                                           dim3(K_SPLITS, (unsigned)(g.rows + ROWS - 1) / ROWS),
                                           dim3(THREADS), bytes, msgl__cuda_stream(x), g));
}

// The experts of a lane as in msgl__cuda_moe_route: so that without norm_topk the sum over all of
// them is made in the same order.
template <bool PLAIN> static void launch(msgl_exec *x, const choose_args &g)
{
    if (g.experts <= 128) {
        launch_kernel<choose_kernel<4, PLAIN>>(x, g);
    } else if (g.experts <= 256) {
        launch_kernel<choose_kernel<8, PLAIN>>(x, g);
    } else {
        launch_kernel<choose_kernel<16, PLAIN>>(x, g);
    }
}

// Sums in another order than norm, linear and route have: not for a deterministic device.
extern "C" bool msgl__cuda_moe_choose(msgl_exec *x, const msgl_choose_call *c)
{
    const msgl_cuda_device *d = msgl__cuda_device(x);
    const msgl_weight *w = c->router;
    const int dim = w->k, experts = w->n, split_k = dim / K_SPLITS;
    if (d->base.capability < 90 || d->deterministic || c->rows <= 0 || c->rows > MAX_ROWS ||
        c->choice->scoring == MSGL_SCORE_SPARSEMIXER || x->act != MSGL_BF16 ||
        !msgl__weight_is(w, MSGL_BF16) || dim % (K_SPLITS * STEP) != 0 || dim > MAX_DIM ||
        experts > MAX_EXPERTS || c->rows * c->choice->top_k > MAX_CHOICES || !aligned16(c->in) ||
        !aligned16(c->norm) || !aligned16(w->data) || !aligned16(c->normed)) {
        return false;
    }
    const int width = (experts + STRIP - 1) / STRIP * STRIP;
    const choose_args g = {(const __nv_bfloat16 *)c->in,
                           (const __nv_bfloat16 *)w->data,
                           c->norm,
                           c->norm_eps,
                           1.0f / (float)dim,
                           c->rows,
                           dim,
                           split_k,
                           experts,
                           width,
                           *c->choice,
                           (__nv_bfloat16 *)c->normed,
                           c->logits,
                           c->weights,
                           c->ids,
                           c->offsets,
                           c->source,
                           d->blas->flags,
                           layout_of(c->rows, split_k, experts, width, c->choice->top_k)};
    if (is_plain(c->choice)) {
        launch<true>(x, g);
    } else {
        launch<false>(x, g);
    }
    return true;
}
