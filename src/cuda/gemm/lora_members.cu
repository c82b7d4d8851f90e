// SPDX-License-Identifier: Apache-2.0
//
// Low-rank adapters of experts and of heads (msgl_lora_members_call): h = A x, then y += B h, both
// in one kernel, as these products are short and their rows have many different adapters. A block
// has some neighbouring places, and of these one stretch after the other that has the same adapter
// and member, so that A and B are read once for it. Sums are f32 and run over k and over ranks in
// an order that is a row's own, whatever stands beside it.
//
// Which places there are is read from device memory: a captured call serves any adapters.
#include "cuda/device.cuh"
#include "cuda/gemm/gemm.h"
#include "cuda/launch.cuh"
#include "cuda/ops/gate.cuh"
#include "cuda/ops/vec8.cuh"

enum {
    WARPS = 4,
    THREADS = WARPS * 32,
    MANY = 8,                   // places of a block where there are many
    RANKS = 4,                  // of a warp at a time
    STEP_RANKS = WARPS * RANKS, // of a block
    BLOCKS = 8,                 // of an SM, above which places are many
    ALONE_UNROLL = 4,           // loads under way at once, where a block has one place
    MOST = MSGL_LORA_MEMBER_RANKS,
};
static_assert((int)MSGL_LORA_RANK_STEP == (int)STEP_RANKS, "a block's step is the ranks' padding");

// What the adapter of a place's token has of the place's product; NULL: nothing.
static __device__ const msgl_lora_member *member_of(const msgl_lora_members_call &g, int place)
{
    if (place >= g.places) return NULL;
    int token = place, member = (int)blockIdx.y;
    if (g.source != NULL) {
        const int choice = g.source[place];
        token = choice / g.top_k;
        member = g.ids[choice] - g.first_id;
        if (member < 0 || member >= g.members) return NULL;
    }
    const int slot = g.slots[g.first + token];
    if (slot < 0) return NULL;
    const msgl_lora_member *set = g.sets[(size_t)slot * (size_t)g.stride];
    if (set == NULL || set[g.base + member].a == NULL) return NULL;
    return &set[g.base + member];
}

template <typename T> static __device__ const T *in_row(const msgl_lora_members_call &g, int place)
{
    const int row = g.by_token ? g.source[place] / g.top_k : place;
    return (const T *)g.in + (size_t)row * g.ld_in + (size_t)blockIdx.y * g.member_in;
}

template <typename T> static __device__ T *out_row(const msgl_lora_members_call &g, int place)
{
    const int row = g.by_choice ? g.source[place] : place;
    return (T *)g.out + (size_t)row * g.ld_out + (size_t)blockIdx.y * g.member_out;
}

// A warp's RANKS rows of A from `a` on, with `rows` rows from `place` on: to h[row][rank].
template <typename T, int PLACES, bool VECTORS>
static __device__ void shrink(const msgl_lora_members_call &g, const T *a, int rank, int place,
                              int rows, float h[PLACES][MOST])
{
    const int lane = (int)threadIdx.x % 32, k = g.k;
    const T *x[PLACES];
    float sums[PLACES][RANKS] = {};
#pragma unroll
    for (int j = 0; j < PLACES; j++) x[j] = in_row<T>(g, place + (j < rows ? j : 0));
#pragma unroll(PLACES == 1 ? ALONE_UNROLL : 1)
    for (int at = lane * 8; at < k; at += 32 * 8) {
        float w[RANKS][8];
#pragma unroll
        for (int r = 0; r < RANKS; r++)
            load8_within<VECTORS>(a + (size_t)r * (size_t)k, at, k, w[r]);
#pragma unroll
        for (int j = 0; j < PLACES; j++) {
            float v[8];
            if (j >= rows) break;
            load8_within<VECTORS>(x[j], at, k, v);
#pragma unroll
            for (int r = 0; r < RANKS; r++) {
#pragma unroll
                for (int i = 0; i < 8; i++) sums[j][r] += v[i] * w[r][i];
            }
        }
    }
#pragma unroll
    for (int j = 0; j < PLACES; j++) {
#pragma unroll
        for (int r = 0; r < RANKS; r++) {
            const float sum = group_sum(sums[j][r], 32);
            if (lane == 0) h[j][rank + r] = sum;
        }
    }
}

// One part's columns of those rows; rank `at` is B's first.
template <typename T, int PLACES>
static __device__ void expand(const msgl_lora_members_call &g, const msgl_lora_member *m, int part,
                              int at, int place, int rows, const float h[PLACES][MOST])
{
    constexpr int COLUMNS = PLACES == 1 ? ALONE_UNROLL : 1;
    const int n = m->parts[part].n, rank = m->parts[part].rank;
    const T *b = (const T *)m->parts[part].b;
    for (int first = (int)threadIdx.x; first < n; first += COLUMNS * THREADS) {
        float sums[COLUMNS][PLACES] = {};
        for (int r = 0; r < rank; r += 8) {
            float w[COLUMNS][8];
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) { // beyond n: any row, which comes to nothing
                const int i = first + c * THREADS;
                load8(b + (size_t)(i < n ? i : first) * (size_t)rank + r, w[c]);
            }
#pragma unroll
            for (int j = 0; j < PLACES; j++) {
                float v[8];
                if (j >= rows) break;
                load8(&h[j][at + r], v);
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
#pragma unroll
                    for (int q = 0; q < 8; q++) sums[c][j] += w[c][q] * v[q];
                }
            }
        }
#pragma unroll
        for (int j = 0; j < PLACES; j++) {
            if (j >= rows) break;
            T *to = out_row<T>(g, place + j) + m->parts[part].col;
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                const int i = first + c * THREADS;
                if (i < n) to[i] = from_f32<T>(to_f32(to[i]) + sums[c][j]);
            }
        }
    }
}

// Grid: places, PLACES each, and, of heads, members.
template <typename T, int PLACES, bool VECTORS>
static __global__ void __launch_bounds__(THREADS)
    add_members(const __grid_constant__ msgl_lora_members_call g)
{
    __shared__ const msgl_lora_member *of[PLACES];
    __shared__ __align__(16) float h[PLACES][MOST];
    const int first = (int)blockIdx.x * PLACES, tid = (int)threadIdx.x;
    msgl__pdl_trigger();
    msgl__pdl_wait();
    if (tid < PLACES) of[tid] = member_of(g, first + tid);
    __syncthreads();
    for (int i = 0, end; i < PLACES; i = end) {
        const msgl_lora_member *m = of[i];
        for (end = i + 1; end < PLACES && of[end] == m;) end++;
        if (m == NULL) continue;
        const int behind = m->parts[0].rank;
        const int ranks = behind + (m->parts[1].b != NULL ? m->parts[1].rank : 0);
        for (int r = tid / 32 * RANKS; r < ranks; r += STEP_RANKS) {
            const T *a = (const T *)m->a + (size_t)r * (size_t)g.k;
            shrink<T, PLACES, VECTORS>(g, a, r, first + i, end - i, h);
        }
        __syncthreads();
        expand<T, PLACES>(g, m, 0, 0, first + i, end - i, h);
        if (m->parts[1].b != NULL) expand<T, PLACES>(g, m, 1, behind, first + i, end - i, h);
        __syncthreads(); // h is the next stretch's
    }
}

template <typename T, int PLACES>
static void launch_places(msgl_exec *x, const msgl_lora_members_call &c, int members)
{
    const bool vectors =
        c.k % 8 == 0 && c.ld_in % 8 == 0 && c.member_in % 8 == 0 && aligned16(c.in);
    const auto kernel = vectors ? add_members<T, PLACES, true> : add_members<T, PLACES, false>;
    const dim3 grid((unsigned)((c.places + PLACES - 1) / PLACES), (unsigned)members);
    MSGL_CUDA_TRY(x, msgl__launch(kernel, grid, dim3(THREADS), 0, msgl__cuda_stream(x), c));
}

template <typename T> static void launch(msgl_exec *x, const msgl_lora_members_call &g)
{
    const int members = g.source != NULL ? 1 : g.members;
    const int64_t rows = (int64_t)g.places * members;
    if (rows <= (int64_t)BLOCKS * msgl__cuda_device(x)->sm_count) {
        launch_places<T, 1>(x, g, members);
    } else {
        launch_places<T, MANY>(x, g, members);
    }
}

void msgl__cuda_lora_members(msgl_exec *x, const msgl_lora_members_call *c)
{
    if (x->status != 0 || c->places == 0) return;
    MSGL_BY_DTYPE(x->act, launch, x, *c);
}

// --- the gate behind it -------------------------------------------------------------------------

// A block per place.
template <int F, typename T>
static __global__ void __launch_bounds__(THREADS)
    gate_members(const __grid_constant__ msgl_lora_members_call g)
{
    const int place = (int)blockIdx.x;
    msgl__pdl_trigger();
    msgl__pdl_wait();
    if (member_of(g, place) == NULL) return;
    const T *gate = in_row<T>(g, place), *up = gate + g.k;
    T *to = out_row<T>(g, place);
    for (int i = (int)threadIdx.x; i < g.k; i += THREADS) {
        to[i] = from_f32<T>(gated<F>(to_f32(gate[i]), to_f32(up[i])));
    }
}

template <typename T>
static void launch_gate(msgl_exec *x, const msgl_lora_members_call &g, msgl_activation f)
{
    const auto kernel = MSGL_OF_GATE(f, gate_members, T);
    MSGL_CUDA_TRY(x, msgl__launch(kernel, dim3((unsigned)g.places), dim3(THREADS), 0,
                                  msgl__cuda_stream(x), g));
}

void msgl__cuda_lora_gate(msgl_exec *x, const msgl_lora_members_call *c, msgl_activation f)
{
    if (x->status != 0 || c->places == 0) return;
    MSGL_BY_DTYPE(x->act, launch_gate, x, *c, f);
}
