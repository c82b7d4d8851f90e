// SPDX-License-Identifier: Apache-2.0
//
// The kernel: out[m, n] = f(in[m, k] W[n, k]^T) for m <= 16, one block per multiprocessor.
//
// Every block owns a run of outputs and computes them for all m rows, so W is read once and no
// block waits for another. Its warps split k in steps of STEP: the product of 16 rows of W with 8
// columns (the m activations) goes to the tensor cores, W as their A operand. k inside a step is
// permuted, the same way for both operands, so that a lane's share of a row is 16 contiguous bytes:
// each lane then loads exactly the bytes that it multiplies, through a queue in shared memory of
// its own, and warps meet only to add their sums, once per 16 rows, in a fixed order.
//
// W does not depend on earlier kernels: the queues fill before msgl__pdl_wait.
#ifndef MSGL_CUDA_GEMM_GEMV_KERNEL_CUH
#define MSGL_CUDA_GEMM_GEMV_KERNEL_CUH

#include "cuda/launch.cuh"
#include "cuda/peer_sum.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared.cuh"

#define GEMV_WARPS 8
#define GEMV_THREADS (GEMV_WARPS * 32)
#define GEMV_STEP 64     // elements of k that a warp takes at once
#define GEMV_PITCH 20    // floats of one column of sums: 16 rows, and banks kept apart
#define GEMV_MAX_ROWS 16 // m

typedef struct gemv_params {
    const char *w; // [rows of W, k]
    const float *bias, *norm;
    const char *in;
    char *out;
    size_t ld_in, ld_out; // elements
    float eps;
    int m, n, k; // n: outputs, which is half of W's rows when gated
    bool gated, accumulate, f32_out;
    int each, extra;   // resident.cuh: outputs of a block, one more in the first `extra` ones
    bool much;         // to load: several fillings of the queue
    bool early;        // lets the next kernel start at its own start, not only behind its wait
    bool summed;       // with accumulate: out += this and the other rank's result
    msgl_peer_sum sum; // with summed
} gemv_params;

// Bytes between two activations in shared memory: whole steps, banks of neighbours kept apart.
static __host__ __device__ __forceinline__ int gemv_act_pitch(int k)
{
    return (k + GEMV_STEP - 1) / GEMV_STEP * GEMV_STEP * 2 + 64;
}

template <typename T> struct gemv_type;

template <> struct gemv_type<__nv_bfloat16> {
    static constexpr bool wide = true; // has the exponents of f32
    static __device__ __forceinline__ float load(const char *p)
    {
        return __bfloat162float(__ldcg((const __nv_bfloat16 *)p));
    }
    static __device__ __forceinline__ void store(char *p, float v)
    {
        *(__nv_bfloat16 *)p = __float2bfloat16_rn(v);
    }
    static __device__ __forceinline__ void mma(float *d, uint32_t a0, uint32_t a1, uint32_t a2,
                                               uint32_t a3, uint32_t b0, uint32_t b1)
    {
        const uint32_t a[4] = {a0, a1, a2, a3};
        msgl__mma(d, a, b0, b1, __nv_bfloat16());
    }
};

template <> struct gemv_type<__half> {
    static constexpr bool wide = false;
    static __device__ __forceinline__ float load(const char *p)
    {
        return __half2float(__ldcg((const __half *)p));
    }
    static __device__ __forceinline__ void store(char *p, float v)
    {
        *(__half *)p = __float2half_rn(v);
    }
    static __device__ __forceinline__ void mma(float *d, uint32_t a0, uint32_t a1, uint32_t a2,
                                               uint32_t a3, uint32_t b0, uint32_t b1)
    {
        const uint32_t a[4] = {a0, a1, a2, a3};
        msgl__mma(d, a, b0, b1, __half());
    }
};

static __device__ __forceinline__ float gemv_warp_sum(float v)
{
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

// What a warp has still to load: its steps of each pass over the block's outputs. A pass is up to
// TILES tiles of HALVES times 8 rows of W: as many outputs, or 8 gate rows and the 8 up rows of the
// same outputs.
template <int TILES, int HALVES> struct gemv_source {
    const char *at[TILES][HALVES]; // this lane's row g and row g + 8, at the lane's share of k
    bool valid[TILES][HALVES];
    int first, end; // outputs of the block still to come
    int advance;    // outputs of a pass: all passes alike, so that the last keeps the queue full
    int step;       // of k

    __device__ __forceinline__ void seek(const gemv_params &p, int lane)
    {
        const int limit = min(first + advance, end);
#pragma unroll
        for (int j = 0; j < TILES; j++) {
#pragma unroll
            for (int half = 0; half < HALVES; half++) {
                const int o = first + lane / 4 + 8 * (p.gated ? j : j * HALVES + half);
                const int row = p.gated ? o + half * p.n : o;
                valid[j][half] = o < limit;
                at[j][half] = p.w + ((size_t)row * p.k + lane % 4 * 8) * 2;
            }
        }
    }

    __device__ __forceinline__ void load(const gemv_params &p, uint32_t slot, int lane, int warp,
                                         int steps)
    {
        if (first >= end) return;
        const int k = step * GEMV_STEP + lane % 4 * 8;
#pragma unroll
        for (int i = 0; i < TILES * HALVES * 2; i++) {
            const int j = i / 2 / HALVES, half = i / 2 % HALVES, piece = i % 2;
            msgl__copy_async_16_line(slot + i * GEMV_THREADS * 16,
                                     at[j][half] + ((size_t)step * GEMV_STEP + piece * 32) * 2,
                                     valid[j][half] && k + piece * 32 < p.k);
        }
        step += GEMV_WARPS;
        if (step < steps) return;
        step = warp;
        first += advance;
        seek(p, lane);
    }
};

template <typename T>
static __device__ __forceinline__ uint4 gemv_times_norm(uint4 v, const float *norm, float scale,
                                                        float *squares)
{
    const float4 g0 = __ldg((const float4 *)norm), g1 = __ldg((const float4 *)norm + 1);
    const float g[8] = {g0.x, g0.y, g0.z, g0.w, g1.x, g1.y, g1.z, g1.w};
    uint32_t u[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 f = msgl__unpack_two(u[i], T());
        if (gemv_type<T>::wide) *squares += f.x * f.x + f.y * f.y;
        u[i] = msgl__pack_two(f.x * scale * g[2 * i], f.y * scale * g[2 * i + 1], T());
    }
    return make_uint4(u[0], u[1], u[2], u[3]);
}

// 1 / root mean square of a row, by one warp.
template <typename T>
static __device__ __forceinline__ float gemv_row_scale(const gemv_params &p, const uint4 *row)
{
    float sum = 0;
    for (int c = threadIdx.x % 32; c < p.k / 8; c += 32) {
        const uint4 v = __ldcg(row + c);
        const uint32_t u[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 f = msgl__unpack_two(u[i], T());
            sum += f.x * f.x + f.y * f.y;
        }
    }
    return rsqrtf(gemv_warp_sum(sum) / (float)p.k + p.eps);
}

// Activations, normalised if asked, to shared memory. With the exponents of f32 a row's scale is
// left to the end, since it needs the whole row: squares[row][warp of that row] gets sums of
// squares.
template <typename T>
static __device__ __forceinline__ void gemv_stage(const gemv_params &p, char *act, float *squares,
                                                  int warps_per_row)
{
    constexpr int BATCH = 4; // loads in flight
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pitch = gemv_act_pitch(p.k);
    const int eights = (p.k + GEMV_STEP - 1) / GEMV_STEP * (GEMV_STEP / 8), valid = p.k / 8;
    const int sub = warp % warps_per_row, stride = warps_per_row * 32;
    for (int row = warp / warps_per_row; row < p.m; row += GEMV_WARPS / warps_per_row) {
        const uint4 *src = (const uint4 *)(p.in + (size_t)row * p.ld_in * 2);
        uint4 *dst = (uint4 *)(act + (size_t)row * pitch);
        float scale = 1, sum = 0;
        if (p.norm != NULL && !gemv_type<T>::wide) scale = gemv_row_scale<T>(p, src);
        for (int first = sub * 32 + lane; first < eights; first += BATCH * stride) {
            uint4 v[BATCH];
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                const int c = first + b * stride;
                v[b] = c < valid ? __ldcg(src + c) : make_uint4(0, 0, 0, 0);
            }
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                const int c = first + b * stride;
                if (c >= eights) break;
                if (p.norm != NULL && c < valid) {
                    v[b] = gemv_times_norm<T>(v[b], p.norm + 8 * c, scale, &sum);
                }
                dst[c] = v[b];
            }
        }
        if (p.norm != NULL && gemv_type<T>::wide) {
            sum = gemv_warp_sum(sum);
            if (lane == 0) squares[row * GEMV_WARPS + sub] = sum;
        }
    }
}

// The same for 5 to 8 long rows: a thread takes its eights of all rows, so that the norm's weights
// are read once.
template <typename T>
static __device__ __forceinline__ void gemv_stage_long(const gemv_params &p, char *act,
                                                       float *squares)
{
    constexpr int ROWS = 8;
    const int pitch = gemv_act_pitch(p.k), valid = p.k / 8;
    const int eights = (p.k + GEMV_STEP - 1) / GEMV_STEP * (GEMV_STEP / 8);
    float sum[ROWS] = {};
    for (int c = threadIdx.x; c < eights; c += GEMV_THREADS) {
        uint4 v[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            v[r] = make_uint4(0, 0, 0, 0);
            if (r < p.m && c < valid) v[r] = __ldcg((const uint4 *)(p.in + r * p.ld_in * 2) + c);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r >= p.m) break;
            if (c < valid) v[r] = gemv_times_norm<T>(v[r], p.norm + 8 * c, 1, &sum[r]);
            *((uint4 *)(act + r * pitch) + c) = v[r];
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float all = gemv_warp_sum(sum[r]);
        if (threadIdx.x % 32 == 0) squares[r * GEMV_WARPS + threadIdx.x / 32] = all;
    }
}

// One output's sum over the warps, in their order.
static __device__ __forceinline__ float gemv_total(const float *sums, int columns, int column,
                                                   int row)
{
    float v = 0;
#pragma unroll
    for (int w = 0; w < GEMV_WARPS; w++) v += sums[(w * columns + column) * GEMV_PITCH + row];
    return v;
}

template <typename T>
static __device__ __forceinline__ void gemv_finish(const gemv_params &p, float v, float up,
                                                   float scale, int column, int o, float old)
{
    v *= scale;
    if (p.bias != NULL) v += __ldg(p.bias + o);
    if (p.gated) {
        up *= scale;
        if (p.bias != NULL) up += __ldg(p.bias + p.n + o);
        v = __fdividef(v, 1.0f + __expf(-v)) * up;
    }
    const size_t at = column * p.ld_out + o;
    if (p.f32_out) {
        ((float *)p.out)[at] = v;
    } else {
        gemv_type<T>::store(p.out + at * 2, v + old);
    }
}

// Word of output o of a row in a slot.
static __device__ __forceinline__ size_t gemv_word(const gemv_params &p, int column, int o)
{
    return ((size_t)column * p.n + o) * sizeof(float);
}

// This rank's partial sum, as it is sent.
static __device__ __forceinline__ float gemv_partial(const gemv_params &p, float v, float scale,
                                                     int o)
{
    v *= scale;
    if (p.bias != NULL) v += __ldg(p.bias + o);
    return v + 0.0f; // minus zero is msgl_peer_sum's
}

static __device__ __forceinline__ void gemv_send(const gemv_params &p, const msgl_peer_slot &slot,
                                                 int column, int o, float partial)
{
    msgl__peer_push(slot.theirs + gemv_word(p, column, o), __float_as_uint(partial));
}

// Adds what the other rank has sent to the partials that this thread has left in `held`, `stride`
// apart: of one output in each of the TILES tiles of a pass. A few at a time, whose ways to the L2
// overlap.
template <typename T, int TILES>
static __device__ __forceinline__ void
gemv_add_theirs(const gemv_params &p, const msgl_peer_slot &slot, const float *held, int stride,
                int begin, int end, int advance, int tile)
{
    constexpr int PASSES = TILES == 1 ? 4 : TILES == 2 ? 2 : 1, BATCH = PASSES * TILES;
    const int row = threadIdx.x % tile, column = threadIdx.x / tile;
    if (column >= p.m) return;
    for (; begin < end; begin += PASSES * advance, held += BATCH * stride) {
        uint32_t theirs[BATCH];
        float old[BATCH];
        int o[BATCH]; // -1: not there
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int first = begin + i / TILES * advance, at = first + i % TILES * tile + row;
            o[i] = at < min(first + advance, end) ? at : -1;
            if (o[i] < 0) continue;
            msgl__peer_look(slot.own + gemv_word(p, column, at), &theirs[i]);
            old[i] = gemv_type<T>::load(p.out + (column * p.ld_out + at) * 2);
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (o[i] < 0) continue;
            msgl__peer_take(slot.own + gemv_word(p, column, o[i]), p.sum.over, &theirs[i]);
            const float sum = held[i * stride] + __uint_as_float(theirs[i]);
            gemv_type<T>::store(p.out + (column * p.ld_out + o[i]) * 2, sum + old[i]);
        }
    }
}

// This lane's share of the activations of one step, to the queue (STREAM).
template <int NB>
static __device__ __forceinline__ void gemv_load_act(const gemv_params &p, uint32_t slot, int lane,
                                                     int step)
{
    const int k = step * GEMV_STEP + lane % 4 * 8;
#pragma unroll
    for (int i = 0; i < NB * 2; i++) {
        const int column = i / 2 * 8 + lane / 4, at = k + i % 2 * 32;
        msgl__copy_async_16_line(slot + i * GEMV_THREADS * 16, p.in + (column * p.ld_in + at) * 2,
                                 column < p.m && at < p.k);
    }
}

// All that the queue has room for, which is waited for: the loop counts on one group per step.
template <int NB, int DEPTH>
static __device__ __forceinline__ void gemv_load_first_acts(const gemv_params &p, uint32_t slot,
                                                            int pitch, int steps)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int mine = (steps - warp + GEMV_WARPS - 1) / GEMV_WARPS;
    for (int d = 0; d < DEPTH && mine > 0; d++) {
        gemv_load_act<NB>(p, slot + d * pitch, lane, warp + d % mine * GEMV_WARPS);
    }
    msgl__copy_async_commit();
    msgl__copy_async_wait<0>();
}

static __device__ __forceinline__ void gemv_fetch_norm(const gemv_params &p)
{
    for (int i = threadIdx.x * 32; i < p.k; i += GEMV_THREADS * 32) {
        msgl__prefetch_l1(p.norm + i);
    }
}

// U steps from the queue: loads what they need, then refills their slots, then multiplies.
template <typename T, int NB, int TILES, int HALVES, int DEPTH, bool STREAM, int U>
static __device__ __forceinline__ void
gemv_steps(const gemv_params &p, gemv_source<TILES, HALVES> &source, float acc[U][TILES][NB][4],
           uint32_t queue, int &slot, uint32_t act, int step, int steps)
{
    constexpr int W_PIECES = TILES * HALVES * 2, PIECES = W_PIECES + (STREAM ? NB * 2 : 0);
    constexpr int SLOT = PIECES * GEMV_THREADS * 16, ACT = W_PIECES * GEMV_THREADS * 16;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint4 a[U][TILES][HALVES * 2], b[U][NB][2];
    uint32_t from[U];
#pragma unroll
    for (int u = 0; u < U; u++) {
        from[u] = queue + slot * SLOT;
        slot = slot + 1 == DEPTH ? 0 : slot + 1;
    }
#pragma unroll
    for (int i = 0; i < U * NB * 2 && !STREAM; i++) {
        const int u = i / (NB * 2), n = i / 2 % NB;
        b[u][n][i % 2] = make_uint4(0, 0, 0, 0);
        if (n * 8 + lane / 4 < p.m) {
            b[u][n][i % 2] =
                msgl__read_shared<uint4>(act + n * 8 * gemv_act_pitch(p.k) +
                                         (step + u * GEMV_WARPS) * GEMV_STEP * 2 + i % 2 * 64);
        }
    }
    msgl__copy_async_wait<DEPTH - U>();
#pragma unroll
    for (int u = 0; u < U; u++) {
#pragma unroll
        for (int i = 0; i < NB * 2 && STREAM; i++) {
            b[u][i / 2][i % 2] = msgl__read_shared<uint4>(from[u] + ACT + i * GEMV_THREADS * 16);
        }
#pragma unroll
        for (int i = 0; i < W_PIECES; i++) {
            a[u][i / HALVES / 2][i % (HALVES * 2)] =
                msgl__read_shared<uint4>(from[u] + i * GEMV_THREADS * 16);
        }
    }
#pragma unroll
    for (int piece = 0; piece < 4; piece++) { // of 16 of k
#pragma unroll
        for (int i = 0; i < U * TILES * NB; i++) {
            const int u = i / (TILES * NB), j = i / NB % TILES, n = i % NB;
            const uint4 r0 = a[u][j][piece / 2];
            uint4 r8 = make_uint4(0, 0, 0, 0);
            if (HALVES == 2) r8 = a[u][j][(HALVES - 1) * 2 + piece / 2];
            const uint4 c = b[u][n][piece / 2];
            if (piece % 2 == 0) {
                gemv_type<T>::mma(acc[u][j][n], r0.x, r8.x, r0.y, r8.y, c.x, c.y);
            } else {
                gemv_type<T>::mma(acc[u][j][n], r0.z, r8.z, r0.w, r8.w, c.z, c.w);
            }
        }
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
        if (STREAM && source.first < source.end) {
            gemv_load_act<NB>(p, from[u] + ACT, lane, source.step);
        }
        source.load(p, from[u], lane, warp, steps);
        msgl__copy_async_commit();
    }
}

// COLUMNS: 8 or 16, at least m. DEPTH: steps of the queue. STREAM: activations, too many for
// shared memory, pass through the queue; no norm then. Shared memory: the queue, the warps' sums
// (twice), sums of squares, activations.
template <typename T, int COLUMNS, int TILES, int HALVES, int DEPTH, bool STREAM>
static __global__ void __launch_bounds__(GEMV_THREADS, STREAM ? 1 : 2)
    gemv_kernel(const __grid_constant__ gemv_params p, int warps_per_row)
{
    constexpr int NB = COLUMNS / 8, U = TILES == 1 ? 2 : 1;
    constexpr int W_PIECES = TILES * HALVES * 2, PIECES = W_PIECES + (STREAM ? NB * 2 : 0);
    constexpr int SLOT = PIECES * GEMV_THREADS * 16, ACT = W_PIECES * GEMV_THREADS * 16;
    constexpr int SUMS = GEMV_WARPS * COLUMNS * GEMV_PITCH;
    extern __shared__ __align__(128) char shared[];
    float *const sums = (float *)(shared + DEPTH * SLOT);
    float *const squares = sums + 2 * SUMS;
    char *const act = (char *)(squares + GEMV_MAX_ROWS * GEMV_WARPS);
    // This thread's partials of sums over ranks, one of each tile. (Of all threads' they would take
    // so much of a multiprocessor that the next product's block had no room there: 3 us a layer.)
    float *held = (float *)(act + (STREAM ? 0 : (size_t)p.m * gemv_act_pitch(p.k))) + threadIdx.x;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int steps = (p.k + GEMV_STEP - 1) / GEMV_STEP;
    const int tile = p.gated ? 8 : 8 * HALVES;

    if (p.early) msgl__pdl_trigger();
    gemv_source<TILES, HALVES> source;
    const int begin = (int)((int64_t)p.n * blockIdx.x / gridDim.x);
    const int end = (int)((int64_t)p.n * (blockIdx.x + 1) / gridDim.x);
    const int passes = (end - begin + TILES * tile - 1) / (TILES * tile);
    source.first = warp < steps ? begin : end;
    source.end = end;
    source.advance = (end - begin + passes - 1) / passes;
    source.step = warp;
    source.seek(p, lane);
    const uint32_t queue = msgl__shared_address(shared) + threadIdx.x * 16;
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
        source.load(p, queue + d * SLOT, lane, warp, steps);
        msgl__copy_async_commit();
    }
    if (p.norm != NULL) gemv_fetch_norm(p);
    msgl__pdl_wait();
    // Not before, if this one's time is its latency: the next one's weights would delay its rows.
    if (!p.early) msgl__pdl_trigger();
    msgl_peer_slot peer = {};
    if (p.summed) peer = msgl__peer_open(p.sum);
    if (STREAM) {
        gemv_load_first_acts<NB, DEPTH>(p, queue + ACT, SLOT, steps);
    } else {
        if (warps_per_row == 0) {
            gemv_stage_long<T>(p, act, squares);
        } else {
            gemv_stage<T>(p, act, squares, warps_per_row);
        }
        __syncthreads();
    }

    // The output that this thread finishes in each tile.
    const int my_row = threadIdx.x % tile, my_column = threadIdx.x / tile;
    float scale = 1;
    if (p.norm != NULL && gemv_type<T>::wide && my_column < p.m) {
        float sum = 0;
        const int warps = warps_per_row == 0 ? GEMV_WARPS : warps_per_row;
        for (int w = 0; w < warps; w++) sum += squares[my_column * GEMV_WARPS + w];
        scale = rsqrtf(sum / (float)p.k + p.eps);
    }
    const uint32_t b_lane =
        msgl__shared_address(act) + lane / 4 * gemv_act_pitch(p.k) + lane % 4 * 16;
    int slot = 0, parity = 0;
    for (int first = begin; first < end; first += source.advance) {
        const int limit = min(first + source.advance, end);
        float old[TILES];
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            const int o = first + j * tile + my_row;
            const bool mine = p.accumulate && !p.summed && my_column < p.m && o < limit;
            old[j] = mine ? gemv_type<T>::load(p.out + (my_column * p.ld_out + o) * 2) : 0;
        }
        float acc[U][TILES][NB][4] = {};
        int step = warp;
        for (; step + (U - 1) * GEMV_WARPS < steps; step += U * GEMV_WARPS) {
            gemv_steps<T, NB, TILES, HALVES, DEPTH, STREAM, U>(p, source, acc, queue, slot, b_lane,
                                                               step, steps);
        }
        if (U > 1 && step < steps) {
            gemv_steps<T, NB, TILES, HALVES, DEPTH, STREAM, 1>(p, source, acc, queue, slot, b_lane,
                                                               step, steps);
        }
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            float *const mine = sums + parity * SUMS;
#pragma unroll
            for (int i = 0; i < NB; i++) {
                float *const d =
                    mine + (warp * COLUMNS + i * 8 + lane % 4 * 2) * GEMV_PITCH + lane / 4;
#pragma unroll
                for (int e = 0; e < HALVES * 2; e++) {
                    float v = acc[0][j][i][e];
                    if (U > 1) v += acc[U - 1][j][i][e];
                    d[e % 2 * GEMV_PITCH + e / 2 * 8] = v;
                }
            }
            __syncthreads();
            const int o = first + j * tile + my_row;
            if (my_column < p.m && o < limit) {
                const float v = gemv_total(mine, COLUMNS, my_column, my_row);
                const float up = p.gated ? gemv_total(mine, COLUMNS, my_column, my_row + 8) : 0;
                if (p.summed) {
                    *held = gemv_partial(p, v, scale, o);
                    gemv_send(p, peer, my_column, o, *held);
                } else {
                    gemv_finish<T>(p, v, up, scale, my_column, o, old[j]);
                }
            }
            held += p.m * tile;
            parity ^= 1; // the other half is free: all passed the barrier after reading it
        }
    }
    if (!p.summed) return;
    if (threadIdx.x == GEMV_THREADS - 1) { // which mostly has no output to wait for
        msgl__peer_count(p.sum.count, p.sum.ticket, peer.call, gridDim.x);
    }
    gemv_add_theirs<T, TILES>(p, peer, held - passes * TILES * p.m * tile, p.m * tile, begin, end,
                              source.advance, tile);
}

// outputs: of a block whose results wait for the other rank's; 0: they do not.
template <int COLUMNS, int TILES, int HALVES, int DEPTH, bool STREAM>
static size_t gemv_shared(int m, int k, int outputs)
{
    const int pass = TILES * HALVES * 8, passes = (outputs + pass - 1) / pass;
    const size_t held = (size_t)passes * pass * (size_t)m * sizeof(float);
    const size_t slot = (TILES * HALVES * 2 + (STREAM ? COLUMNS / 8 * 2 : 0)) * GEMV_THREADS * 16;
    return DEPTH * slot + 2 * GEMV_WARPS * COLUMNS * GEMV_PITCH * sizeof(float) +
           GEMV_MAX_ROWS * GEMV_WARPS * sizeof(float) +
           (STREAM ? 0 : (size_t)m * gemv_act_pitch(k)) + held;
}

#endif
