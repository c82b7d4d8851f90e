// SPDX-License-Identifier: Apache-2.0
//
// The end of mid_sm90 for tiles of 80 outputs: 64 tiles of 5,120 outputs with k in two splits are
// 128 blocks, in pairs, of which a GPU holds as many as it has pairs of multiprocessors. (o of half
// of 14B, 64 rows: 10.6 us; 40 clusters of three, for tiles of 128, took 17.2, 40 pairs 13.1.)
//
// A thread finishes eight outputs of a row, ten lanes a row, three rows a warp.
#ifndef MSGL_CUDA_GEMM_MID_EIGHTS_CUH
#define MSGL_CUDA_GEMM_MID_EIGHTS_CUH

#include "cuda/gemm/fused_norm_sm90.cuh"

static __device__ __forceinline__ uint4 eights_pack(const float v[8])
{
    const uint2 a = fused_pack_four(v), b = fused_pack_four(v + 4);
    return make_uint4(a.x, a.y, b.x, b.y);
}

static __device__ __forceinline__ void eights_unpack(uint4 p, float v[8])
{
    fused_unpack_four(make_uint2(p.x, p.y), v);
    fused_unpack_four(make_uint2(p.z, p.w), v + 4);
}

// PITCH: floats of a row of sums.
template <int COLUMNS, int PITCH> struct eights_finisher {
    static constexpr int LANES = COLUMNS / 8, OF_WARP = 32 / LANES, STEP = GROUP / 32 * OF_WARP;
    static constexpr int AHEAD = 3; // rows of a thread at a time: all there are of 32
    int lane, row, column;          // of its row's LANES, the first of its rows, its first output
    bool valid;
    uint4 old[AHEAD];
    __nv_bfloat16 *out;

    __device__ __forceinline__ eights_finisher(const fused_args &g, const fused_place &p)
    {
        const int of_warp = (int)threadIdx.x % 32 / LANES;
        lane = (int)threadIdx.x % 32 % LANES;
        row = (int)threadIdx.x / 32 * OF_WARP + of_warp;
        column = p.output + lane * 8;
        valid = of_warp < OF_WARP && column < g.n;
        out = g.out + (size_t)(p.token + p.split * g.split_rows) * g.ld_out + column;
    }

    __device__ __forceinline__ bool there(const fused_place &p, int r) const
    {
        return valid && r < p.own;
    }

    // What is there before the sums are.
    __device__ __forceinline__ void load(const fused_args &g, const fused_place &p)
    {
        load_from(g, p, row);
    }
    // Of the rows from r on.
    __device__ __forceinline__ void load_from(const fused_args &g, const fused_place &p, int r)
    {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            old[i] = make_uint4(0, 0, 0, 0);
            if (g.accumulate && there(p, r + i * STEP)) {
                old[i] = __ldcg((const uint4 *)(out + (size_t)(r + i * STEP) * g.ld_out));
            }
        }
    }

    // Where its partial of row r of this block's lies in shared memory.
    __device__ __forceinline__ uint32_t place(const fused_place &p, int r) const
    {
        return (uint32_t)((r * PITCH + column - p.output) * 4);
    }

    // All splits of k, this block's first, and the bias.
    __device__ __forceinline__ void add_splits(const fused_args &g, const fused_place &p,
                                               const fused_shared &at, int r, float v[8]) const
    {
        const int bytes = g.split_rows * PITCH * 4, first = p.split * g.split_rows;
        uint32_t from = at.stages + (uint32_t)(p.split * bytes) + place(p, r);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = 0;
#pragma unroll 1
        for (int split = 0; split < g.splits; split++) {
            const float4 a = msgl__read_shared<float4>(from);
            const float4 b = msgl__read_shared<float4>(from + 16);
            v[0] += a.x, v[1] += a.y, v[2] += a.z, v[3] += a.w;
            v[4] += b.x, v[5] += b.y, v[6] += b.z, v[7] += b.w;
            from = at.partials + (uint32_t)(split * bytes) + place(p, r);
        }
        const float scale = fused_load_scale(g.sums != NULL, at.scales, first + r);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            v[j] *= scale;
            if (g.bias != NULL) v[j] += __ldg(g.bias + column + j);
        }
    }

    // What the norm behind needs of row r, as it is stored. All lanes.
    __device__ __forceinline__ void leave_norm_stats(const fused_args &g, const fused_place &p,
                                                     int r, uint4 stored) const
    {
        const int t = p.token + p.split * g.split_rows + r;
        float x[8], square = 0;
        eights_unpack(stored, x);
#pragma unroll
        for (int j = 0; j < 8; j++) square += x[j] * x[j];
        if (there(p, r)) {
            const float4 a = __ldg((const float4 *)(g.next + column));
            const float4 b = __ldg((const float4 *)(g.next + column + 4));
            x[0] *= a.x, x[1] *= a.y, x[2] *= a.z, x[3] *= a.w;
            x[4] *= b.x, x[5] *= b.y, x[6] *= b.z, x[7] *= b.w;
            *(uint4 *)(g.scaled + (size_t)t * g.n + column) = eights_pack(x);
        }
#pragma unroll
        for (int d = 8; d > 0; d /= 2) {
            const float other = __shfl_down_sync(0xffffffffu, square, d);
            if (lane + d < (2 * d < LANES ? 2 * d : LANES)) square += other;
        }
        if (there(p, r) && lane == 0) g.squares[(size_t)blockIdx.y * g.m + t] = square;
    }

    // Adds up, stores, leaves norm_stats.
    __device__ __forceinline__ void run(const fused_args &g, const fused_place &p,
                                        const fused_shared &at)
    {
        const int of_warp = (int)threadIdx.x / 32 * OF_WARP; // its first row
#pragma unroll 1
        for (int done = 0; of_warp + done < p.own; done += AHEAD * STEP) {
            if (done > 0) load_from(g, p, row + done);
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                const int r = row + done + i * STEP;
                uint4 stored = make_uint4(0, 0, 0, 0);
                if (there(p, r)) {
                    float v[8], before[8];
                    add_splits(g, p, at, r, v);
                    eights_unpack(old[i], before);
#pragma unroll
                    for (int j = 0; j < 8; j++) v[j] += before[j];
                    stored = eights_pack(v);
                    *(uint4 *)(out + (size_t)r * g.ld_out) = stored;
                }
                if (g.next != NULL) leave_norm_stats(g, p, r, stored);
            }
        }
    }

    // Where the other rank's partial of row r is, or this one's goes, behind a slot's beginning.
    __device__ __forceinline__ size_t word(const fused_args &g, const fused_place &p, int r) const
    {
        const int t = p.token + p.split * g.split_rows + r;
        return ((size_t)t * g.n + column) * sizeof(__nv_bfloat16);
    }

    // This rank's partials to the other one, and in place of their first sums.
    __device__ __forceinline__ void send(const fused_args &g, const fused_place &p,
                                         const fused_shared &at, const msgl_peer_slot &slot) const
    {
#pragma unroll 1
        for (int r = row; there(p, r); r += STEP) {
            float v[8];
            add_splits(g, p, at, r, v);
            const uint4 u = eights_pack(v);
            const uint2 a = fused_plus_zeros(make_uint2(u.x, u.y));
            const uint2 b = fused_plus_zeros(make_uint2(u.z, u.w));
            const uint4 sent = make_uint4(a.x, a.y, b.x, b.y);
            msgl__peer_push(slot.theirs + word(g, p, r), sent);
            msgl__write_shared(
                at.stages + (uint32_t)(p.split * g.split_rows * PITCH * 4) + place(p, r), sent);
        }
    }

    // Behind it: what the other one has sent is added too.
    __device__ __forceinline__ void receive(const fused_args &g, const fused_place &p,
                                            const fused_shared &at, const msgl_peer_slot &slot)
    {
        const uint32_t own = at.stages + (uint32_t)(p.split * g.split_rows * PITCH * 4);
        const int of_warp = (int)threadIdx.x / 32 * OF_WARP;
#pragma unroll 1
        for (int done = 0; of_warp + done < p.own; done += AHEAD * STEP) {
            uint4 theirs[AHEAD];
            if (done > 0) load_from(g, p, row + done);
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                const int r = row + done + i * STEP;
                if (there(p, r)) msgl__peer_look(slot.own + word(g, p, r), &theirs[i]);
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                const int r = row + done + i * STEP;
                uint4 stored = make_uint4(0, 0, 0, 0);
                if (there(p, r)) {
                    float v[8], other[8], before[8];
                    msgl__peer_take(slot.own + word(g, p, r), g.sum.over, &theirs[i]);
                    eights_unpack(msgl__read_shared<uint4>(own + place(p, r)), v);
                    eights_unpack(theirs[i], other);
                    eights_unpack(old[i], before);
#pragma unroll
                    for (int j = 0; j < 8; j++) v[j] = v[j] + other[j] + before[j];
                    stored = eights_pack(v);
                    *(uint4 *)(out + (size_t)r * g.ld_out) = stored;
                }
                if (g.next != NULL) leave_norm_stats(g, p, r, stored);
            }
        }
    }
};

#endif
