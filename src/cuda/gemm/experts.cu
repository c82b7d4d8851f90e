// SPDX-License-Identifier: Apache-2.0
//
// The experts of a step of a few rows, where hardly two of them have a row in common: what the
// grouped products and the combination behind them do, as two kernels that read weights as fast as
// they arrive. There is nothing to share and so no tile: a warp has a row of W, an activation is a
// float in shared memory. An output's weights are all on their way at once, in registers, and those
// of the next one while its sum is made.
//
// In the second kernel a warp has an output of a token: the rows that its experts have for it, one
// behind the other, as one long row, times their activations, each by its choice's weight. Who the
// experts are is known before the first kernel has ended, so that weights are asked for meanwhile.
// There are two of that one. With one token a block stands alone on its SM, and registers hold what
// is on its way, which leaves shared memory to the product behind. With more two blocks stand
// there, and each has a ring in shared memory that is never empty.
//
// docs/internals/gemm.md has the figures.
#include "cuda/device.cuh"
#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/experts_codes.cuh"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/grouped.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/vec8.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/shared.cuh"

enum {
    WARPS = 16,
    THREADS = WARPS * 32,
    PIECE = 256,   // elements that a warp reads at once, 8 a lane
    UP_PIECES = 8, // of each of two rows, on their way at a time
    UP_PASS = UP_PIECES * PIECE,
    DOWN_PIECES = 12,
    DOWN_RING = 8, // pieces of an output on their way, of more than one token
    DOWN_PIECE_BYTES = PIECE * 2,
    // Threads that the compiler saves registers for: with 80 a block of `down` stands beside one of
    // the product behind it, which loads its weights meanwhile.
    DOWN_BOUND = 768,
    // More of them share experts too often. (A lane knows one each.)
    MAX_ASSIGNMENTS = 16,
    MAX_SHARED = 96 << 10,
};

typedef struct experts_args {
    const void *gate_up, *down;
    size_t gate_up_stride, down_stride; // elements from one expert's to the next one's
    int32_t rows, top_k, hidden, inter;
    const int32_t *ids, *source;
    const float *weights;
    const void *in;
    void *act; // [rows * top_k, inter]
    void *out;
    bool accumulate;
    // The expert of all tokens; inter 0: there is none.
    const void *shared_up, *shared_down;
    void *shared_act; // [rows, shared_inter]
    int32_t shared_inter;
} experts_args;

// Activations as floats: of a piece first the lanes' first four, then their second four, so that
// lanes read 16 bytes next to each other.
static __device__ __forceinline__ void keep_eight(float *piece, int lane, const float v[8])
{
    ((float4 *)piece)[lane] = make_float4(v[0], v[1], v[2], v[3]);
    ((float4 *)piece)[32 + lane] = make_float4(v[4], v[5], v[6], v[7]);
}

template <typename T>
static __device__ __forceinline__ float add_eight(float sum, const uint4 w, const float x[8])
{
    float v[8];
    unpack8(w, v, T());
#pragma unroll
    for (int i = 0; i < 8; i++) sum = fmaf(v[i], x[i], sum);
    return sum;
}

static __device__ __forceinline__ void take_eight(const float *piece, int lane, float v[8])
{
    const float4 a = ((const float4 *)piece)[lane], b = ((const float4 *)piece)[32 + lane];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

// --- gate and up --------------------------------------------------------------------------------

// What a warp does next: UP_PASS elements of an output.
typedef struct up_item {
    int32_t place; // of the assignment in the order of experts; of the shared expert: row - rows
    int32_t output, k;
} up_item;

// To the output that it has, counted on from its place's first one.
static __device__ __forceinline__ void find_place(const experts_args &g, up_item *item)
{
#pragma unroll 1
    for (;;) {
        const int32_t inter = item->place < 0 ? g.shared_inter : g.inter;
        if (item->output < inter) return;
        item->output -= inter, item->place++;
    }
}

// Asks for the item's part of the gate's row and of the up's; expert: of its assignment.
template <typename T>
static __device__ __forceinline__ void ask_up(const experts_args &g, const up_item &item,
                                              int32_t expert, uint4 (&w)[2][UP_PIECES])
{
    const int k = item.k + (int)threadIdx.x % 32 * 8;
    const bool shared = item.place < 0;
    const T *const first =
        shared ? (const T *)g.shared_up : (const T *)g.gate_up + (size_t)expert * g.gate_up_stride;
    const T *gate = first + (size_t)item.output * (size_t)g.hidden + k;
    const T *up = gate + (size_t)(shared ? g.shared_inter : g.inter) * (size_t)g.hidden;
#pragma unroll
    for (int i = 0; i < UP_PIECES; i++) {
        const bool there = k + i * PIECE < g.hidden;
        w[0][i] = there ? msgl__read_once(gate + i * PIECE) : make_uint4(0, 0, 0, 0);
        w[1][i] = there ? msgl__read_once(up + i * PIECE) : make_uint4(0, 0, 0, 0);
    }
}

// All rows to shared memory, `padded` floats each, zeros behind their end.
template <typename T>
static __device__ __forceinline__ void keep_rows(const experts_args &g, int padded, float *rows)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
#pragma unroll 1
    for (int r = 0; r < g.rows; r++) {
#pragma unroll 1
        for (int k = warp * PIECE; k < padded; k += WARPS * PIECE) {
            const int at = k + lane * 8;
            uint4 u = make_uint4(0, 0, 0, 0);
            float v[8];
            if (at < g.hidden) {
                u = __ldcg((const uint4 *)((const T *)g.in + (size_t)r * (size_t)g.hidden + at));
            }
            unpack8(u, v, T());
            keep_eight(rows + r * padded + k, lane, v);
        }
    }
}

template <typename T>
static __global__ void __launch_bounds__(THREADS, 1) experts_up(const experts_args g)
{
    extern __shared__ __align__(16) float rows[];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int n = g.rows * g.top_k, padded = (g.hidden + UP_PASS - 1) / UP_PASS * UP_PASS;
    up_item item = {g.shared_inter > 0 ? -g.rows : 0, warp * (int)gridDim.x + (int)blockIdx.x, 0};
    uint4 w[2][UP_PIECES];
    find_place(g, &item);
    // Weights of the shared expert are on their way while the others are chosen.
    const bool early = item.place < 0;
    if (early) ask_up<T>(g, item, 0, w);
    msgl__pdl_wait();
    msgl__pdl_trigger(); // not before: the kernel behind knows then what was chosen
    const int32_t source = lane < n ? __ldcg(g.source + lane) : 0;
    const int32_t id = lane < n ? __ldcg(g.ids + lane) : 0;
    const int32_t expert = __shfl_sync(MSGL_FULL_MASK, id, source), row = source / g.top_k;
    if (!early && item.place < n) {
        ask_up<T>(g, item, __shfl_sync(MSGL_FULL_MASK, expert, item.place), w);
    }
    keep_rows<T>(g, padded, rows);
    __syncthreads();
    float gate = 0, up = 0;
#pragma unroll 1
    while (item.place < n) {
        const int32_t in = __shfl_sync(MSGL_FULL_MASK, row, item.place & 31);
        const float *x = rows + (item.place < 0 ? item.place + g.rows : in) * padded + item.k;
#pragma unroll
        for (int i = 0; i < UP_PIECES; i++) {
            float v[8];
            take_eight(x + i * PIECE, lane, v);
            gate = add_eight<T>(gate, w[0][i], v);
            up = add_eight<T>(up, w[1][i], v);
        }
        const up_item done = item;
        item.k += UP_PASS;
        if (item.k >= g.hidden) {
            item.k = 0;
            item.output += WARPS * (int)gridDim.x;
            find_place(g, &item);
        }
        const int32_t next = __shfl_sync(MSGL_FULL_MASK, expert, item.place & 31);
        if (item.place < n) ask_up<T>(g, item, next, w);
        if (item.k > 0) continue;
        gate = group_sum(gate, 32), up = group_sum(up, 32);
        const int32_t to = __shfl_sync(MSGL_FULL_MASK, source, done.place & 31);
        T *act = done.place < 0
                     ? (T *)g.shared_act + (done.place + g.rows) * g.shared_inter + done.output
                     : (T *)g.act + (size_t)to * (size_t)g.inter + (size_t)done.output;
        if (lane == 0) *act = from_f32<T>(msgl__silu(gate) * up);
        gate = up = 0;
    }
}

// --- down ---------------------------------------------------------------------------------------

// Pieces of a row of the shared expert's W.
static __host__ __device__ __forceinline__ int shared_pieces(const experts_args &g)
{
    return (g.shared_inter + PIECE - 1) / PIECE;
}

// Pieces of an expert's row.
static __host__ __device__ __forceinline__ int expert_pieces(const experts_args &g)
{
    return (g.inter + PIECE - 1) / PIECE;
}

// Pieces of an output's weights, `per` of each expert's row.
static __host__ __device__ __forceinline__ int row_pieces(const experts_args &g, int per)
{
    return g.top_k * per + shared_pieces(g);
}

// Lane c's is choice c of a row: its expert and what that one counts.
struct choices {
    int32_t expert;
    float weight;

    __device__ __forceinline__ choices(const experts_args &g, int row) : expert(0), weight(0)
    {
        const int lane = (int)threadIdx.x % 32;
        if (lane >= g.top_k) return;
        expert = __ldcg(g.ids + row * g.top_k + lane);
        weight = __ldcg(g.weights + row * g.top_k + lane);
    }
};

// This lane's eight activations of piece i of row `row`: zeros behind a row's end.
template <typename T>
static __device__ __forceinline__ uint4 read_act(const experts_args &g, int row, int per, int i)
{
    const int lane = (int)threadIdx.x % 32, chosen = g.top_k * per;
    const T *in = (const T *)g.act + (size_t)row * (size_t)g.top_k * (size_t)g.inter;
    const T *shared_in = (const T *)g.shared_act + (size_t)row * (size_t)g.shared_inter;
    const int choice = i / per, piece = i < chosen ? i - choice * per : i - chosen;
    const int at = piece * PIECE + lane * 8;
    const T *from = i < chosen ? in + choice * g.inter : shared_in;
    if (at >= (i < chosen ? g.inter : g.shared_inter)) return make_uint4(0, 0, 0, 0);
    return __ldcg((const uint4 *)(from + at));
}

// Asks for pieces [first, first + DOWN_PIECES) of the rows of all chosen experts that make output
// `output`, `per` pieces each, and behind them of the shared one's: the last one of a row whole if
// EVEN. expert: lane c's is choice c.
template <typename T, bool EVEN>
static __device__ __forceinline__ void ask_down(const experts_args &g, int output, int first,
                                                int per, int32_t expert, uint4 (&w)[DOWN_PIECES])
{
    // Where a piece is, in eights of elements, a lane one of them.
    const int lane = (int)threadIdx.x % 32, chosen = g.top_k * per;
    const int choice = (first + lane) / per, shared = first + lane - chosen;
    const uint32_t begin =
        (uint32_t)__shfl_sync(MSGL_FULL_MASK, expert, choice % 32) * (uint32_t)(g.down_stride / 8);
    const int piece = shared < 0 ? first + lane - choice * per : shared;
    const int room = (shared < 0 ? g.inter : g.shared_inter) - piece * PIECE;
    const uint32_t place = (shared < 0 ? begin : 0) + (uint32_t)piece * (PIECE / 8);
    const T *from = (const T *)g.down + (size_t)output * (size_t)g.inter + lane * 8;
    const T *from_shared =
        (const T *)g.shared_down + (size_t)output * (size_t)g.shared_inter + lane * 8;
    const int pieces = output < g.hidden ? row_pieces(g, per) : 0;
#pragma unroll
    for (int i = 0; i < DOWN_PIECES; i++) {
        const T *at = (first + i < chosen ? from : from_shared) +
                      (size_t)__shfl_sync(MSGL_FULL_MASK, place, i) * 8;
        const int end = EVEN ? PIECE : __shfl_sync(MSGL_FULL_MASK, room, i);
        const bool there = first + i < pieces && lane * 8 < end;
        w[i] = there ? msgl__read_once(at) : make_uint4(0, 0, 0, 0);
    }
}

// Pieces of shared memory, whole passes: zeros behind the end.
static __host__ __device__ __forceinline__ int down_pieces(const experts_args &g)
{
    const int pieces = row_pieces(g, expert_pieces(g));
    return (pieces + DOWN_PIECES - 1) / DOWN_PIECES * DOWN_PIECES;
}

// The activations of row `row`, each times its choice's weight, to shared memory.
template <typename T>
static __device__ __forceinline__ void keep_act(const experts_args &g, int row, int per,
                                                float weight, float *act)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, chosen = g.top_k * per;
#pragma unroll 1
    for (int i = warp; i < down_pieces(g); i += WARPS) {
        const float chosen_by = __shfl_sync(MSGL_FULL_MASK, weight, i / per % 32);
        const float by = i < chosen ? chosen_by : 1.0f;
        float v[8];
        unpack8(read_act<T>(g, row, per, i), v, T());
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] *= by;
        keep_eight(act + i * PIECE, lane, v);
    }
}

// per: pieces of an expert's row.
template <typename T, bool EVEN>
static __global__ void __launch_bounds__(DOWN_BOUND) experts_down(const experts_args g, int per)
{
    extern __shared__ __align__(16) float act[];
    const int lane = (int)threadIdx.x % 32, row = (int)blockIdx.y;
    const int output = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32;
    const int pieces = row_pieces(g, per);
    msgl__pdl_trigger();
    const choices chosen(g, row);
    uint4 w[DOWN_PIECES];
    ask_down<T, EVEN>(g, output, 0, per, chosen.expert, w);
    msgl__pdl_wait();
    T *out = (T *)g.out + (size_t)row * (size_t)g.hidden + output;
    const bool finishes = lane == 0 && output < g.hidden;
    const float old = g.accumulate && finishes ? to_f32(*out) : 0;
    keep_act<T>(g, row, per, chosen.weight, act);
    __syncthreads();
    float sum = 0;
#pragma unroll 1
    for (int first = 0;;) {
#pragma unroll
        for (int i = 0; i < DOWN_PIECES; i++) {
            float v[8];
            take_eight(act + (first + i) * PIECE, lane, v);
            sum = add_eight<T>(sum, w[i], v);
        }
        first += DOWN_PIECES;
        if (first >= pieces) break;
        ask_down<T, EVEN>(g, output, first, per, chosen.expert, w);
    }
    sum = group_sum(sum, 32);
    if (finishes) *out = from_f32<T>(sum + old);
}

// --- down, of more than one token ---------------------------------------------------------------

// What a warp knows of 32 pieces of an output's weights, a lane of one: those of the chosen
// experts' rows one behind the other, `per` pieces each, then of the shared one's.
template <typename T> struct ring_pieces {
    const T *at;
    int room; // elements that are left of its row; below 1: it is none
    float by; // what its choice counts

    __device__ __forceinline__ void find(const experts_args &g, int output, int first, int per,
                                         const choices &c)
    {
        const int lane = (int)threadIdx.x % 32, chosen = g.top_k * per, piece = first + lane;
        const int choice = piece / per, id = __shfl_sync(MSGL_FULL_MASK, c.expert, choice % 32);
        const float chosen_by = __shfl_sync(MSGL_FULL_MASK, c.weight, choice % 32);
        const bool shared = piece >= chosen;
        const int k = (shared ? piece - chosen : piece - choice * per) * PIECE;
        const int inter = shared ? g.shared_inter : g.inter;
        const T *rows =
            shared ? (const T *)g.shared_down : (const T *)g.down + (size_t)id * g.down_stride;
        at = rows + (size_t)output * (size_t)inter + k;
        room = output < g.hidden ? inter - k : 0;
        by = shared ? 1.f : chosen_by;
    }
};

// per: pieces of an expert's row.
template <typename T>
static __global__ void __launch_bounds__(THREADS) experts_down_ring(const experts_args g, int per)
{
    extern __shared__ __align__(16) unsigned char down_shared[];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, row = (int)blockIdx.y;
    const int output = (int)blockIdx.x * WARPS + warp, pieces = row_pieces(g, per);
    msgl__pdl_trigger();
    const choices chosen(g, row);
    T *act = (T *)(down_shared + WARPS * DOWN_RING * DOWN_PIECE_BYTES);
    // This lane's 16 bytes of each piece of its warp's ring.
    const uint32_t ring = msgl__shared_address(down_shared) +
                          (uint32_t)(warp * DOWN_RING * DOWN_PIECE_BYTES + lane * 16);
    ring_pieces<T> asked, used;
    const auto ask = [&](int i) {
        if (i % 32 == 0) asked.find(g, output, i, per, chosen);
        const int room = __shfl_sync(MSGL_FULL_MASK, asked.room, i % 32);
        const T *at = (const T *)__shfl_sync(MSGL_FULL_MASK, (uint64_t)asked.at, i % 32);
        if (i < pieces) {
            msgl__copy_async_16(ring + (uint32_t)(i % DOWN_RING) * DOWN_PIECE_BYTES, at + lane * 8,
                                lane * 8 < room);
        }
        msgl__copy_async_commit();
    };
    for (int i = 0; i < DOWN_RING; i++) ask(i);
    msgl__pdl_wait();
    T *out = (T *)g.out + (size_t)row * (size_t)g.hidden + output;
    const bool finishes = lane == 0 && output < g.hidden;
    const float old = g.accumulate && finishes ? to_f32(*out) : 0;
#pragma unroll 1
    for (int i = warp; i < pieces; i += WARPS)
        *(uint4 *)(act + i * PIECE + lane * 8) = read_act<T>(g, row, per, i);
    __syncthreads();
    float sum = 0;
#pragma unroll 4
    for (int i = 0; i < pieces; i++) {
        if (i % 32 == 0) used.find(g, output, i, per, chosen);
        msgl__copy_async_wait<DOWN_RING - 1>();
        const uint4 w =
            msgl__read_shared<uint4>(ring + (uint32_t)(i % DOWN_RING) * DOWN_PIECE_BYTES);
        ask(i + DOWN_RING);
        float x[8];
        unpack8(*(const uint4 *)(act + i * PIECE + lane * 8), x, T());
        const float by = __shfl_sync(MSGL_FULL_MASK, used.by, i % 32);
        sum = fmaf(add_eight<T>(0, w, x), by, sum);
    }
    sum = group_sum(sum, 32);
    if (finishes) *out = from_f32<T>(sum + old);
}

// --- host ---------------------------------------------------------------------------------------

static size_t up_bytes(const experts_args &g)
{
    const size_t padded = (size_t)((g.hidden + UP_PASS - 1) / UP_PASS * UP_PASS);
    return (size_t)g.rows * padded * sizeof(float);
}

static size_t down_bytes(const experts_args &g)
{
    return (size_t)down_pieces(g) * PIECE * sizeof(float);
}

static size_t ring_bytes(const experts_args &g)
{
    const int pieces = WARPS * DOWN_RING + row_pieces(g, expert_pieces(g));
    return (size_t)pieces * DOWN_PIECE_BYTES;
}

// KERNEL with `bytes` of shared memory.
template <auto KERNEL> static void launch_down(msgl_exec *x, const experts_args &g, size_t bytes)
{
    const dim3 tiles((unsigned)((g.hidden + WARPS - 1) / WARPS), (unsigned)g.rows);
    MSGL_CUDA_TRY(x, msgl__allow_shared<KERNEL>(bytes, true));
    MSGL_CUDA_TRY(x, msgl__launch(KERNEL, tiles, dim3(THREADS), bytes, msgl__cuda_stream(x), g,
                                  expert_pieces(g)));
}

template <typename T> static void launch(msgl_exec *x, const experts_args &g)
{
    const msgl_cuda_device *d = msgl__cuda_device(x);
    MSGL_CUDA_TRY(x, msgl__allow_shared<experts_up<T>>(up_bytes(g), true));
    MSGL_CUDA_TRY(x, msgl__launch(experts_up<T>, dim3((unsigned)d->sm_count), dim3(THREADS),
                                  up_bytes(g), d->stream, g));
    if (g.rows > 1 && ring_bytes(g) <= MAX_SHARED) {
        launch_down<experts_down_ring<T>>(x, g, ring_bytes(g));
    } else if ((g.inter | g.shared_inter) % PIECE == 0) {
        launch_down<experts_down<T, true>>(x, g, down_bytes(g));
    } else {
        launch_down<experts_down<T, false>>(x, g, down_bytes(g));
    }
}

bool msgl__cuda_experts(msgl_exec *x, const msgl_experts_call *c)
{
    const msgl_weight *up = &c->gate_up[0], *down = &c->down[0];
    experts_args g = {};
    if (msgl__cuda_device(x)->deterministic || c->rows <= 0 ||
        c->rows * c->top_k > MAX_ASSIGNMENTS || (x->act != MSGL_BF16 && x->act != MSGL_F16)) {
        return false;
    }
    // Of codes a grouped product is faster where assignments share experts: n of them n^2 / 2 times
    // in the number of experts.
    const int32_t n = c->rows * c->top_k;
    if ((c->rows == 1 || n * n <= 2 * c->num_experts) && msgl__cuda_experts_codes(x, c)) {
        return true;
    }
    if (c->activation != MSGL_SILU || c->gate_up_bias != NULL || c->down_bias != NULL) return false;
    if (!msgl__experts_are(c->gate_up, c->num_experts, x->act) ||
        !msgl__experts_are(c->down, c->num_experts, x->act)) {
        return false;
    }
    g.gate_up = up->data;
    g.down = down->data;
    g.gate_up_stride = msgl__expert_stride(c->gate_up, c->num_experts);
    g.down_stride = msgl__expert_stride(c->down, c->num_experts);
    g.rows = c->rows;
    g.top_k = c->top_k;
    g.hidden = down->n;
    g.inter = down->k;
    g.ids = c->ids;
    g.source = c->source;
    g.weights = c->weights;
    g.in = c->in;
    g.act = c->act;
    g.out = c->out;
    g.accumulate = c->accumulate;
    uintptr_t bits = (uintptr_t)g.gate_up | (uintptr_t)g.down | (uintptr_t)g.in | (uintptr_t)g.act;
    if (c->shared_up != NULL) {
        if (!msgl__weight_is(c->shared_up, x->act) || !msgl__weight_is(c->shared_down, x->act)) {
            return false;
        }
        g.shared_up = c->shared_up->data;
        g.shared_down = c->shared_down->data;
        g.shared_act = c->shared_act;
        g.shared_inter = c->shared_down->k;
        bits |= (uintptr_t)g.shared_up | (uintptr_t)g.shared_down | (uintptr_t)g.shared_act;
    }
    if (g.gate_up_stride % 8 != 0 || g.gate_up_stride == 0 || g.down_stride % 8 != 0 ||
        g.down_stride == 0 || g.down_stride / 8 * (size_t)c->num_experts > UINT32_MAX ||
        g.hidden % 8 != 0 || g.inter % 8 != 0 || g.shared_inter % 8 != 0 || bits % 16 != 0 ||
        up_bytes(g) > MAX_SHARED || down_bytes(g) > MAX_SHARED) {
        return false;
    }
    x->act == MSGL_F16 ? launch<__half>(x, g) : launch<__nv_bfloat16>(x, g);
    return true;
}
