// SPDX-License-Identifier: Apache-2.0
//
// A finished tile's sums to out, and to the norm behind.
#ifndef MSGL_CUDA_GEMM_CODES_SM90_RESULTS_CUH
#define MSGL_CUDA_GEMM_CODES_SM90_RESULTS_CUH

#include "cuda/gemm/codes_sm90/shape.cuh"
#include "cuda/gemm/epilogue.cuh"

// Row r of a tile of rows. Of a gated product the tile has eight rows of the gate, the up rows of
// the same outputs, the next eight of the gate ...: of n 1024 rows 8 to 23 of tile 1 are rows 576
// to 583 and 72 to 79 of W.
static __device__ __forceinline__ int row_of(const codes_args &g, int row_tile, int r)
{
    if (!g.gated) return row_tile * CODES_ROWS + r;
    return row_tile * (CODES_ROWS / 2) + r / 16 * 8 + r % 8 + (r / 8 % 2) * (g.n / 2);
}

// --- results ------------------------------------------------------------------------------------

// A factor per row of in, 1 without a norm, from the squares that the kernel in front has left;
// times what sums are to be multiplied by. By `warps` warps, of which this is number `warp`, while
// others multiply. Of a warp's 32 rows or fewer as many lanes add up parts of the same row's
// squares as there are: of 8 rows lanes 3, 11, 19 and 27 those of row 3.
static __device__ __forceinline__ void row_factors(const codes_args &g, float by, float *factors,
                                                   int warp, int warps)
{
    const int lane = threadIdx.x % 32;
    int rows = 1;
    while (rows < 32 && rows < g.m) rows *= 2;
    for (int first = warp * 32; first < g.m; first += warps * 32) {
        const int t = first + lane % rows;
        float sum = 0;
        if (g.in_squares != NULL && t < g.m) {
#pragma unroll 8
            for (int i = lane / rows; i < g.in_tiles; i += 32 / rows) {
                sum += __ldcg(g.in_squares + (size_t)i * g.m + t);
            }
        }
        for (int d = rows; d < 32; d *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
        const float norm = g.in_squares == NULL ? 1 : rsqrtf(sum / (float)g.k + g.eps);
        if (lane < rows && t < g.m) factors[t] = norm * by; // those of no row are not used
    }
}

// What a thread's four columns of a tile's rows of in need besides sums: it is asked for before the
// sums of other blocks have come. CHUNK: rows that go through shared memory at a time, PASSES: of
// them that a thread has.
template <int N, int COLUMNS> struct codes_finish {
    static constexpr int FOURS = COLUMNS / 4, AT_A_TIME = GROUP / FOURS;
    static constexpr int CHUNK = N < 16 ? N : 16, CHUNKS = N / CHUNK;
    static constexpr int PASSES = (CHUNK + AT_A_TIME - 1) / AT_A_TIME;
    uint2 old[CHUNKS][PASSES];
    float4 next;
    int column, first_row; // of out; of a chunk

    // Row of out of a pass, m where the thread has none there.
    __device__ __forceinline__ int row(const codes_args &g, int token, int chunk, int pass) const
    {
        const int t = first_row + pass * AT_A_TIME;
        return t < CHUNK ? token + chunk * CHUNK + t : g.m;
    }

    __device__ __forceinline__ codes_finish(const codes_args &g, int row_tile, int token)
    {
        const int group = threadIdx.x / GROUP, worker = threadIdx.x % GROUP;
        column = (row_tile * CODES_GROUPS + group) * COLUMNS + worker % FOURS * 4;
        first_row = worker / FOURS;
        next = make_float4(0, 0, 0, 0);
        if (g.next != NULL && column < g.columns) next = __ldg((const float4 *)(g.next + column));
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
#pragma unroll
            for (int p = 0; p < PASSES; p++) {
                const int t = row(g, token, c, p);
                old[c][p] = make_uint2(0, 0);
                if (g.accumulate && t < g.m && column < g.columns) {
                    old[c][p] = __ldcg(
                        (const uint2 *)((const uint16_t *)g.out + (size_t)t * g.ld_out + column));
                }
            }
        }
    }

    // Four outputs of row t from their sums and what is there: stored, and left for the norm
    // behind. All lanes.
    template <typename T>
    __device__ __forceinline__ void store(const codes_args &g, int t, float4 v, uint2 before) const
    {
        const bool there = t < g.m && column < g.columns;
        const size_t at = (size_t)t * g.ld_out + column;
        if (g.f32_out) {
            if (there) *(float4 *)((float *)g.out + at) = v;
            return;
        }
        if (g.accumulate) {
            const float2 a = msgl__unpack_two(before.x, T()), b = msgl__unpack_two(before.y, T());
            v.x += a.x, v.y += a.y, v.z += b.x, v.w += b.y;
        }
        const uint2 stored =
            make_uint2(msgl__pack_two(v.x, v.y, T()), msgl__pack_two(v.z, v.w, T()));
        if (there) *(uint2 *)((T *)g.out + at) = stored;
        if (g.next == NULL) return;
        const float2 a = msgl__unpack_two(stored.x, T()), b = msgl__unpack_two(stored.y, T());
        float square = there ? a.x * a.x + a.y * a.y + (b.x * b.x + b.y * b.y) : 0;
        if (there) {
            *(uint2 *)((T *)g.scaled + (size_t)t * g.columns + column) =
                make_uint2(msgl__pack_two(a.x * next.x, a.y * next.y, T()),
                           msgl__pack_two(b.x * next.z, b.y * next.w, T()));
        }
#pragma unroll
        for (int d = 1; d < FOURS; d *= 2) square += __shfl_xor_sync(0xffffffffu, square, d);
        if (there && column % COLUMNS == 0) {
            g.squares[(size_t)(column / COLUMNS) * g.m + t] = square;
        }
    }
};

// A finished tile. Sums go through shared memory, some rows of out at a time, so that a row's
// columns are next to each other.
template <typename T, int N, int PITCH, int COLUMNS>
static __device__ __forceinline__ void
store_tile(const codes_args &g, const codes_finish<N, COLUMNS> &finish, const float (&acc)[N / 2],
           int row_tile, int token, uint32_t sums, const float *factors)
{
    typedef codes_finish<N, COLUMNS> shape;
    constexpr int CHUNK = shape::CHUNK;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, group = threadIdx.x / GROUP;
    const int own = warp * (COLUMNS / 4) + lane / 4; // column of this thread's first row
    float bias[2] = {};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = row_of(g, row_tile, (int)threadIdx.x / 32 * 16 + lane / 4 + i * 8);
        if (g.bias != NULL && row < g.n) bias[i] = __ldg(g.bias + row);
    }
#pragma unroll
    for (int c = 0; c < shape::CHUNKS; c++) {
#pragma unroll
        for (int i = 0; i < CHUNK / 4; i++) { // pairs of sums, of both rows
            const int t = i / 2 * 8 + lane % 4 * 2 + i % 2, j = c * (CHUNK / 2) + i / 2 * 4 + i % 2;
            const float factor = factors[token + c * CHUNK + t];
            const float a = acc[j] * factor + bias[0], b = acc[j + 2] * factor + bias[1];
            const uint32_t to = sums + (uint32_t)(t * PITCH + own) * 4;
            if (COLUMNS == 32) {
                msgl__write_shared(to, msgl__silu(a) * b);
            } else {
                msgl__write_shared(to, a);
                msgl__write_shared(to + 32, b);
            }
        }
        msgl__named_barrier_sync(2 + group, GROUP);
#pragma unroll
        for (int p = 0; p < shape::PASSES; p++) {
            const int t = finish.first_row + p * shape::AT_A_TIME;
            const int column = (int)threadIdx.x % GROUP % shape::FOURS * 4;
            const float4 v = msgl__read_shared<float4>(
                sums + (uint32_t)((t < CHUNK ? t : 0) * PITCH + column) * 4);
            finish.template store<T>(g, finish.row(g, token, c, p), v, finish.old[c][p]);
        }
        msgl__named_barrier_sync(2 + group, GROUP);
    }
}

#endif
