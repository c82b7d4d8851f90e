// SPDX-License-Identifier: Apache-2.0
//
// Convolution, silu and the norms of q and k for chunks, into images. A block has a chunk of one
// head; a warp has 16 of its rows, a lane four channels of them.
#include "cuda/delta/prefill.cuh"
#include "cuda/launch.cuh"

enum { DIM = MSGL_DELTA_DIM, WARP_ROWS = 16, BEFORE = MSGL_DELTA_TAPS - 1 };

// Of the rows from `top` on and the three before, what this chunk's rows need.
static __device__ __forceinline__ void load_rows(const msgl_delta_args &p, const delta_chunk &c,
                                                 int top, int channel,
                                                 uint2 (&raw)[WARP_ROWS + BEFORE])
{
    const int token = c.token + top - BEFORE; // of raw[0]
    const int end = c.first + c.rows;
    const msgl_delta_act *at =
        p.qkv + (ptrdiff_t)(c.row0 + top - BEFORE) * (ptrdiff_t)p.ld_qkv + channel;
    if (token >= 0 && top + WARP_ROWS <= end) {
#pragma unroll
        for (int i = 0; i < WARP_ROWS + BEFORE; i++) {
            raw[i] = *(const uint2 *)(at + (size_t)i * p.ld_qkv);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < WARP_ROWS + BEFORE; i++) {
        raw[i] = make_uint2(0, 0);
        const int row = top - BEFORE + i, position = c.position + row;
        if (row >= end || row < c.first - BEFORE) continue;
        if (token + i >= 0)
            raw[i] = *(const uint2 *)(at + (size_t)i * p.ld_qkv);
        else if (c.from >= 0 && position >= 0)
            raw[i] = *(const uint2 *)(p.ring(c.from, position) + channel);
    }
}

static __device__ __forceinline__ void unpack4(uint2 v, float (&x)[4])
{
    const float2 lo = msgl__unpack_two(v.x, msgl_delta_act());
    const float2 hi = msgl__unpack_two(v.y, msgl_delta_act());
    x[0] = lo.x, x[1] = lo.y, x[2] = hi.x, x[3] = hi.y;
}

// Of the results.
static __device__ __forceinline__ void clear_rows(const msgl_delta_args &p, const delta_chunk &c,
                                                  int top, int column)
{
    const int first = max(top, c.first), end = min(top + WARP_ROWS, c.first + c.rows);
    for (int row = first; row < end; row++) {
        *(uint2 *)(p.out + (size_t)(c.row0 + row) * p.ld_out + column) = make_uint2(0, 0);
    }
}

static __global__ void __launch_bounds__(128)
    delta_mix(const __grid_constant__ msgl_delta_args p, const __grid_constant__ delta_scratch out)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const int head = (int)blockIdx.x, index = (int)blockIdx.y, lane = (int)threadIdx.x % 32;
    const delta_chunk c = out.chunks[index];
    const int channel = head * DIM + lane * 4, top = (int)threadIdx.x / 32 * WARP_ROWS;
    if (c.to < 0) {
        if (head >= 2 * p.k_heads) clear_rows(p, c, top, (head - 2 * p.k_heads) * DIM + lane * 4);
        return;
    }
    uint2 raw[WARP_ROWS + BEFORE];
    load_rows(p, c, top, channel, raw);
    float4 taps[4];
#pragma unroll
    for (int j = 0; j < 4; j++) taps[j] = ((const float4 *)p.conv)[channel + j];
    const bool key = head < 2 * p.k_heads; // or query
    const float scale = head < p.k_heads ? MSGL_DELTA_SCALE : 1.0f;
    char *to = head < p.k_heads ? out.q + ((size_t)index * p.k_heads + head) * DELTA_HEAD_IMAGES
               : key
                   ? out.k + ((size_t)index * p.k_heads + head - p.k_heads) * DELTA_HEAD_IMAGES
                   : out.v + ((size_t)index * p.v_heads + head - 2 * p.k_heads) * DELTA_HEAD_IMAGES;
    to += lane / 16 * DELTA_IMAGE + lane % 2 * 8;
    float x[4][4];
#pragma unroll
    for (int i = 0; i < BEFORE; i++) unpack4(raw[i], x[i]);
#pragma unroll
    for (int i = 0; i < WARP_ROWS; i++) {
        const int row = top + i;
        unpack4(raw[i + BEFORE], x[(i + BEFORE) % 4]);
        float y[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            y[j] = delta_conv(taps[j], x[i % 4][j], x[(i + 1) % 4][j], x[(i + 2) % 4][j],
                              x[(i + 3) % 4][j]);
        }
        if (key) {
            const float sum = fmaf(y[0], y[0], y[1] * y[1]) + fmaf(y[2], y[2], y[3] * y[3]);
            const float by = scale * rsqrtf(group_sum(sum, 32) + 1e-6f);
#pragma unroll
            for (int j = 0; j < 4; j++) y[j] *= by;
        }
        const bool there = row >= c.first && row < c.first + c.rows;
        const uint2 packed = make_uint2(msgl__pack_two(y[0], y[1], msgl_delta_act()),
                                        msgl__pack_two(y[2], y[3], msgl_delta_act()));
        *(uint2 *)(to + image_at(row, lane / 2 % 8)) = there ? packed : make_uint2(0, 0);
    }
}

cudaError_t msgl__delta_mix(const msgl_delta_args &p, const delta_scratch &s, int chunks,
                            cudaStream_t stream)
{
    return msgl__launch(delta_mix, dim3(2 * p.k_heads + p.v_heads, chunks), dim3(128), 0, stream, p,
                        s);
}
