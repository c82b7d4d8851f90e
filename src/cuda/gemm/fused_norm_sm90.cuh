// SPDX-License-Identifier: Apache-2.0
//
// What mid_sm90.cu and tall_sm90.cu share: one warp loads, one adds up the squares of the norm in
// front, a warpgroup multiplies and finishes. Blocks of a cluster split k; each finishes some rows
// of `in` and gets the others' sums of these by bulk copies.
#ifndef MSGL_CUDA_GEMM_FUSED_NORM_SM90_CUH
#define MSGL_CUDA_GEMM_FUSED_NORM_SM90_CUH

#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/fused_norm.cuh"
#include "cuda/gemm/stage.cuh"
#include "cuda/peer_sum.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/wgmma.cuh"

enum {
    FUSED_WARPS = GROUP / 32,   // that multiply
    FUSED_THREADS = GROUP + 64, // and a warp that loads, a warp that adds up the squares
    FUSED_MAX_STAGES = 8,
    FUSED_MAX_SPLITS = 8,
};

// Whatever a block would have to divide for is computed before the launch: code that runs once
// comes from memory, so that a few hundred instructions more are felt.
struct fused_args {
    int32_t m, n, k; // n: outputs, which is half of W's rows when gated
    int32_t stages, splits;
    int32_t steps, longer; // steps of k of a split; of the first `longer` splits one more
    // Rows of a tile that each split finishes: of 64 rows and 3 splits 22, and the last one has
    // rows [44, 64).
    int32_t split_rows;
    const float *bias;
    const float *sums; // [num_tiles, m] of norm_stats of the input, or NULL
    int32_t num_tiles;
    float eps;
    bool accumulate;
    __nv_bfloat16 *out;
    size_t ld_out;
    const float *next; // weight of the norm behind, or NULL
    __nv_bfloat16 *scaled;
    float *squares;
    bool summed;       // with accumulate: out += this and the other rank's result
    msgl_peer_sum sum; // with summed
};

// --- around the launch --------------------------------------------------------------------------

// The call's part of the arguments. Returns what takes the place of its input.
static inline const void *fused_fill_args(const msgl_linear_call *c, int splits, fused_args *g)
{
    g->m = c->m;
    g->n = c->gated ? c->w->n / 2 : c->w->n;
    g->k = c->w->k;
    g->splits = splits;
    g->bias = c->bias;
    g->eps = c->norm_eps;
    g->accumulate = c->accumulate;
    g->out = (__nv_bfloat16 *)c->out;
    g->ld_out = c->ld_out;
    if (msgl__leaves_norm_stats(c)) {
        g->next = c->next_norm;
        g->scaled = (__nv_bfloat16 *)c->norm_stats->scaled;
        g->squares = c->norm_stats->sums;
    }
    g->summed = c->sum != NULL;
    if (g->summed) g->sum = *c->sum;
    if (c->norm == NULL) return c->in;
    g->sums = c->norm_stats->sums;
    g->num_tiles = c->norm_stats->num_tiles;
    return c->norm_stats->scaled;
}

static inline int fused_steps(int k)
{
    return (k + BK - 1) / BK;
}

// Whether k can be cut into so many splits.
static inline bool fused_can_split(const msgl_linear_call *c, int splits)
{
    return !(c->gated && splits > 1) && splits <= fused_steps(c->w->k) &&
           splits <= FUSED_MAX_SPLITS;
}

// Most splits of at least four steps that leave all blocks running at once: those of a cluster lie
// in one part of the GPU, of which each has a few multiprocessors left over.
static inline int fused_choose_splits(const msgl_cuda_device *d, int blocks, int steps)
{
    static const int SPLITS[] = {6, 4, 3, 2};
    for (int splits : SPLITS) {
        if (steps >= splits * 4 && blocks * splits <= d->sm_count * 10 / 11) return splits;
    }
    return 1;
}

// Shares out k, and the rows of a tile of up to `tile`.
static inline void fused_split_k(fused_args *g, int tile)
{
    const int steps = fused_steps(g->k), rows = g->m < tile ? g->m : tile;
    g->steps = steps / g->splits;
    g->longer = steps % g->splits;
    g->split_rows = (rows + g->splits - 1) / g->splits;
}

// As many stages as fit `room` bytes and have a use.
static inline int fused_count_stages(const fused_args *g, int room, int stage_bytes)
{
    const int needed = g->steps + (g->longer > 0);
    int stages = room / stage_bytes;
    if (stages > FUSED_MAX_STAGES) stages = FUSED_MAX_STAGES;
    if (stages > needed) stages = needed;
    return stages < 1 ? 1 : stages;
}

// --- where a block is ---------------------------------------------------------------------------

// Blocks of a cluster differ in their split of k.
struct fused_place {
    int split;
    int output, token; // its first output, its first row of in
    int rows, own;     // rows of in of this tile, rows that this block finishes
    int first, num;    // steps of k
};

// TILE, OUTPUTS: rows of in and outputs of a tile.
template <int TILE, int OUTPUTS>
static __device__ __forceinline__ fused_place fused_find_place(const fused_args &g)
{
    fused_place p;
    p.split = (int)blockIdx.x;
    p.output = (int)blockIdx.y * OUTPUTS;
    p.token = (int)blockIdx.z * TILE;
    p.rows = msgl__clamp_to(g.m - p.token, TILE);
    p.own = msgl__clamp_to(p.rows - p.split * g.split_rows, g.split_rows);
    p.first = p.split * g.steps + (p.split < g.longer ? p.split : g.longer);
    p.num = g.steps + (p.split < g.longer);
    return p;
}

// Addresses in shared memory.
struct fused_shared {
    uint32_t stages;   // then this block's own sums
    uint32_t partials; // other blocks' sums of the rows that this one finishes
    uint32_t full, empty, landed, scales;
};

// All but `partials`. scales: bytes of the rows' factors.
static __device__ __forceinline__ fused_shared fused_lay_out(const void *unaligned, uint32_t scales)
{
    fused_shared at;
    at.full = (msgl__shared_address(unaligned) + 15) & ~15u;
    at.empty = at.full + FUSED_MAX_STAGES * 8;
    at.landed = at.empty + FUSED_MAX_STAGES * 8;
    at.scales = at.landed + 16;
    at.stages = (at.scales + scales + 1023) & ~1023u;
    return at;
}

// The barriers, by one lane. pitch: floats of a row of sums.
static __device__ __forceinline__ void fused_init(const fused_args &g, const fused_place &p,
                                                  const fused_shared &at, int pitch)
{
#pragma unroll 1
    for (int i = 0; i < g.stages; i++) {
        msgl__mbarrier_init(at.full + i * 8, 1);
        msgl__mbarrier_init(at.empty + i * 8, FUSED_WARPS);
    }
    msgl__mbarrier_init(at.landed, 1);
    msgl__mbarrier_init_done();
    msgl__fence_async_proxy();
    msgl__mbarrier_expect(at.landed, (uint32_t)((g.splits - 1) * p.own * pitch * 4));
}

// --- loading ------------------------------------------------------------------------------------

// Before the kernel in front has ended: weights of the first `ahead` steps, one for every stage.
// LOADER has STAGE_BYTES and starts the copies of step s: weights(stage, s, done), in(...).
template <typename LOADER>
static __device__ __forceinline__ void fused_load_ahead(const LOADER &l, const fused_shared &at,
                                                        int first, int ahead)
{
    uint32_t stage = at.stages, done = at.full;
#pragma unroll 1
    for (int s = first; s < first + ahead; s++) {
        msgl__mbarrier_expect(done, LOADER::STAGE_BYTES);
        l.weights(stage, s, done);
        stage += LOADER::STAGE_BYTES;
        done += 8;
    }
}

// Behind it: all that is left of the steps [first, last).
template <typename LOADER>
static __device__ __forceinline__ void fused_load_rest(const LOADER &l, const fused_shared &at,
                                                       int first, int last, int ahead, int stages)
{
    uint32_t stage = at.stages, done = at.full, phase = 1;
    int slot = 0;
#pragma unroll 1
    for (int s = first; s < last; s++) {
        if (s >= first + ahead) { // else its weights are on their way
            msgl__mbarrier_wait(done + FUSED_MAX_STAGES * 8, phase);
            msgl__mbarrier_expect(done, LOADER::STAGE_BYTES);
            l.weights(stage, s, done);
        }
        l.in(stage, s, done);
        stage += LOADER::STAGE_BYTES;
        done += 8;
        if (++slot == stages) {
            slot = 0;
            stage = at.stages;
            done = at.full;
            phase ^= 1;
        }
    }
}

// --- multiplying --------------------------------------------------------------------------------

// The tile's sums over this block's split of k; A and B are at A_AT and B_AT of a stage.
// LAST: also stages that nobody waits for are given back.
template <int STAGE_BYTES, int A_AT, int B_AT, bool LAST, int SUMS>
static __device__ __forceinline__ void fused_multiply(const fused_args &g, const fused_place &p,
                                                      const fused_shared &at, float (&acc)[SUMS])
{
    int slot = 0, before = 0;
    uint32_t phase = 0;
#pragma unroll 1
    for (int s = 0; s < p.num; s++) {
        const uint32_t from = at.stages + (uint32_t)(slot * STAGE_BYTES);
        msgl__mbarrier_wait(at.full + slot * 8, phase);
        multiply_stage(acc, msgl__wgmma_operand(from + A_AT), msgl__wgmma_operand(from + B_AT),
                       s > 0, __nv_bfloat16());
        msgl__wgmma_wait<1>();
        if (s > 0 && (LAST || s - 1 + g.stages < p.num) && threadIdx.x % 32 == 0) {
            msgl__mbarrier_arrive(at.empty + before * 8);
        }
        before = slot;
        if (++slot == g.stages) {
            slot = 0;
            phase ^= 1;
        }
    }
    msgl__wgmma_wait<0>();
}

// --- finishing ----------------------------------------------------------------------------------

// The factor of a row, in shared memory; 1 without a norm.
static __device__ __forceinline__ float fused_load_scale(bool normed, uint32_t scales, int row)
{
    return normed ? msgl__read_shared<float>(scales + (uint32_t)row * 4) : 1.0f;
}

// To every other block of the cluster with this tile: the rows that it finishes. One warp. PITCH:
// floats of a row of sums.
template <int PITCH>
static __device__ __forceinline__ void fused_send(const fused_args &g, const fused_place &p,
                                                  const fused_shared &at)
{
    const int to = threadIdx.x % 32;
    if (to >= g.splits || to == p.split) return;
    const uint32_t row = PITCH * 4, all = (uint32_t)g.split_rows * row;
    const uint32_t bytes = (uint32_t)msgl__clamp_to(p.rows - to * g.split_rows, g.split_rows) * row;
    const uint32_t slot = (uint32_t)(p.split < to ? p.split : p.split - 1);
    if (bytes == 0) return;
    msgl__cluster_copy(msgl__cluster_address(at.partials + slot * all, (uint32_t)to),
                       at.stages + (uint32_t)to * all, bytes,
                       msgl__cluster_address(at.landed, (uint32_t)to));
}

static __device__ __forceinline__ uint2 fused_pack_four(const float v[4])
{
    return make_uint2(msgl__pack_two(v[0], v[1], __nv_bfloat16()),
                      msgl__pack_two(v[2], v[3], __nv_bfloat16()));
}

static __device__ __forceinline__ void fused_unpack_four(uint2 p, float v[4])
{
    const float2 a = msgl__unpack_two(p.x, __nv_bfloat16());
    const float2 b = msgl__unpack_two(p.y, __nv_bfloat16());
    v[0] = a.x, v[1] = a.y, v[2] = b.x, v[3] = b.y;
}

// Minus zeros, which are not sent (msgl_peer_sum), become zeros: also those of tiny values.
static __device__ __forceinline__ uint2 fused_plus_zeros(uint2 v)
{
    const __nv_bfloat162 zero = __floats2bfloat162_rn(0, 0);
    *(__nv_bfloat162 *)&v.x = __hadd2(*(__nv_bfloat162 *)&v.x, zero);
    *(__nv_bfloat162 *)&v.y = __hadd2(*(__nv_bfloat162 *)&v.y, zero);
    return v;
}

// What a thread needs to finish four outputs of every STEP-th row; OUTPUTS: of a tile.
template <int OUTPUTS> struct fused_finisher {
    static constexpr int FOURS = OUTPUTS / 4, STEP = GROUP / FOURS;
    int row, column; // the first of its rows, within those that this block finishes
    bool valid;      // column
    float4 bias, weight;

    // Of weights only.
    __device__ __forceinline__ fused_finisher(const fused_args &g, const fused_place &p)
    {
        row = (int)threadIdx.x / FOURS;
        column = p.output + (int)threadIdx.x % FOURS * 4;
        valid = column < g.n;
        bias = weight = make_float4(0, 0, 0, 0);
        if (valid && g.bias != NULL) bias = __ldg((const float4 *)(g.bias + column));
        if (valid && g.next != NULL) weight = __ldg((const float4 *)(g.next + column));
    }

    // Sums to outputs; before: what they are added to.
    __device__ __forceinline__ void add(float v[4], float scale, const float before[4]) const
    {
        v[0] = v[0] * scale + bias.x + before[0];
        v[1] = v[1] * scale + bias.y + before[1];
        v[2] = v[2] * scale + bias.z + before[2];
        v[3] = v[3] * scale + bias.w + before[3];
    }

    // Sums to this rank's partial of what is added, as it is sent.
    __device__ __forceinline__ uint2 partial(float v[4], float scale) const
    {
        const float nothing[4] = {};
        add(v, scale, nothing);
        return fused_plus_zeros(fused_pack_four(v));
    }

    // Where the other rank's partial of row t of x is, or this one's goes, behind a slot's
    // beginning.
    __device__ __forceinline__ size_t place(const fused_args &g, int t) const
    {
        return ((size_t)t * g.n + column) * sizeof(__nv_bfloat16);
    }

    // What the norm behind needs of four values of row t of x, as they are stored. All lanes. tile:
    // of outputs.
    __device__ __forceinline__ void leave_norm_stats(const fused_args &g, const fused_place &p,
                                                     size_t tile, int t, uint2 stored,
                                                     bool there) const
    {
        float x[4];
        fused_unpack_four(stored, x);
        float square = x[0] * x[0] + x[1] * x[1] + (x[2] * x[2] + x[3] * x[3]);
        x[0] *= weight.x, x[1] *= weight.y, x[2] *= weight.z, x[3] *= weight.w;
        if (there) *(uint2 *)(g.scaled + (size_t)t * g.n + column) = fused_pack_four(x);
#pragma unroll
        for (int d = 1; d < FOURS; d *= 2) square += __shfl_xor_sync(0xffffffffu, square, d);
        if (there && column == p.output) g.squares[tile * g.m + t] = square;
    }
};

#endif
