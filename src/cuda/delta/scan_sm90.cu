// SPDX-License-Identifier: Apache-2.0
//
// The chunks of a request one after the other, for what depends on the state. With S at the chunk's
// beginning and the chunk's T and P (prepare_sm90.cu):
//
//   U = T (V - e^G K S)
//   O = e^G Q S + P U
//   S = e^(G of the last row) S + K^T e^(G of the last row - G) U
//
// Columns of S do not need each other: a warpgroup has 64 of them, transposed, in f32 registers,
// and computes its columns of U, O and S alone. The sums of one product are the A operand of the
// next one as they lie in registers (rounded to bf16), so nothing but the chunk's images goes
// through shared memory, and warpgroups share only the ring in which these arrive.
#include "cuda/delta/prefill.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/wgmma.cuh"

enum { DIM = MSGL_DELTA_DIM, ROWS = DELTA_ROWS, STAGES = 3 };

// A warp has 16 columns. A block of 8 warps has a whole head and does its norm.
template <int WARPS> struct scan_shape {
    static const int COLUMNS = WARPS * 16;
    static const int SLICES = DIM / COLUMNS;
    static const int V_IMAGES = COLUMNS > 64 ? 2 : 1;
    static const bool NORM = COLUMNS == DIM;
    static const int OUT_ROW = COLUMNS * 2;                  // bytes
    static const int PASS_ROWS = WARPS * 32 / (COLUMNS / 8); // rows by one store of each thread
    static const int PASSES = ROWS / PASS_ROWS;
};

template <int WARPS> struct scan_stage {
    char k[DELTA_HEAD_IMAGES], q[DELTA_HEAD_IMAGES], t[DELTA_IMAGE], p[DELTA_IMAGE];
    char v[scan_shape<WARPS>::V_IMAGES * DELTA_IMAGE];
};

template <int WARPS> struct scan_smem {
    scan_stage<WARPS> stage[STAGES];                // at multiples of 1,024
    char out[2][ROWS * scan_shape<WARPS>::OUT_ROW]; // of this chunk and of the one before
    delta_gates gates[STAGES];
    uint64_t full[STAGES];
};

// What a block works on.
struct scan_place {
    int request, head, column; // column: the block's first
    int chunk, chunks;         // number of the first one, and how many
};

// Queues the copies of chunk `n`, by one thread.
template <int WARPS>
static __device__ __forceinline__ void fetch(const msgl_delta_args &p, const delta_scratch &in,
                                             const scan_place &at, scan_smem<WARPS> &smem, int n)
{
    const int v_bytes = scan_shape<WARPS>::V_IMAGES * DELTA_IMAGE;
    const uint32_t full = msgl__shared_address(&smem.full[n % STAGES]);
    scan_stage<WARPS> &to = smem.stage[n % STAGES];
    const size_t k = (size_t)(at.chunk + n) * p.k_heads + at.head / p.group_size;
    const size_t v = (size_t)(at.chunk + n) * p.v_heads + at.head;
    msgl__mbarrier_expect(full, 2 * DELTA_HEAD_IMAGES + 2 * DELTA_IMAGE + v_bytes + DELTA_GATES);
    msgl__bulk_load(msgl__shared_address(to.k), in.k + k * DELTA_HEAD_IMAGES, DELTA_HEAD_IMAGES,
                    full);
    msgl__bulk_load(msgl__shared_address(to.q), in.q + k * DELTA_HEAD_IMAGES, DELTA_HEAD_IMAGES,
                    full);
    msgl__bulk_load(msgl__shared_address(to.t), in.t + v * DELTA_IMAGE, DELTA_IMAGE, full);
    msgl__bulk_load(msgl__shared_address(to.p), in.p + v * DELTA_IMAGE, DELTA_IMAGE, full);
    msgl__bulk_load(msgl__shared_address(to.v),
                    in.v + v * DELTA_HEAD_IMAGES + at.column / 64 * DELTA_IMAGE, v_bytes, full);
    msgl__bulk_load(msgl__shared_address(&smem.gates[n % STAGES]), in.gates + v * DELTA_GATES,
                    DELTA_GATES, full);
}

// S of this thread: s[4 n + 2 h + e] is row 8 n + 2 (lane % 4) + e, column lane / 4 + 8 h of the
// warp's.
static __device__ __forceinline__ void load_state(float (&s)[64], const float *at)
{
    const int lane = (int)threadIdx.x % 32;
    at += lane % 4 * 2 * DIM + lane / 4;
#pragma unroll
    for (int i = 0; i < 64; i++) s[i] = __ldcs(at + (i / 4 * 8 + i % 2) * DIM + i % 4 / 2 * 8);
}

static __device__ __forceinline__ void store_state(const float (&s)[64], float *at)
{
    const int lane = (int)threadIdx.x % 32;
    at += lane % 4 * 2 * DIM + lane / 4;
#pragma unroll
    for (int i = 0; i < 64; i++) __stcs(at + (i / 4 * 8 + i % 2) * DIM + i % 4 / 2 * 8, s[i]);
}

// Sums as the A operand of the next product.
template <int SUMS>
static __device__ __forceinline__ void pack(const float (&d)[SUMS], uint32_t (&a)[SUMS / 8][4])
{
#pragma unroll
    for (int i = 0; i < SUMS / 2; i++) {
        a[i / 4][i % 4] = msgl__pack_two(d[2 * i], d[2 * i + 1], msgl_delta_act());
    }
}

// Queues d (+)= a B^T, B: 64 rows of STEPS / 4 images, as a group.
template <int STEPS>
static __device__ __forceinline__ void multiply(float (&d)[32], const uint32_t (&a)[STEPS][4],
                                                const char *b, bool add)
{
    const uint64_t operand = msgl__wgmma_operand(msgl__shared_address(b));
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        msgl__wgmma_registers<false>(d, a[k], operand + (k / 4 * DELTA_IMAGE + k % 4 * 32) / 16,
                                     k > 0 || add, msgl_delta_act());
    }
    msgl__wgmma_commit();
}

// Queues s += a B, B: 64 rows of two images.
static __device__ __forceinline__ void add_outer(float (&s)[64], const uint32_t (&a)[4][4],
                                                 const char *b)
{
    const uint64_t operand = msgl__wgmma_operand(msgl__shared_address(b), DELTA_IMAGE);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        msgl__wgmma_registers<true>(s, a[k], operand + k * 2048 / 16, 1, msgl_delta_act());
    }
    msgl__wgmma_commit();
}

// d times the gate of its rows.
static __device__ __forceinline__ void scale_rows(float (&d)[32], const float *gate)
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 g = *(const float2 *)&gate[8 * n + lane % 4 * 2];
        d[4 * n] *= g.x, d[4 * n + 1] *= g.y, d[4 * n + 2] *= g.x, d[4 * n + 3] *= g.y;
    }
}

// x = V - e^G x; v: the image with the warp's columns, of which `eight` is the first eight.
static __device__ __forceinline__ void correct(float (&x)[32], const char *v, int eight,
                                               const delta_gates &gates)
{
    const int lane = (int)threadIdx.x % 32;
    const uint32_t at = msgl__shared_address(v);
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
        uint32_t r[4];
        msgl__load_matrix_4_transposed(
            at + image_at(n * 8 + lane / 16 * 8 + lane % 8, eight + lane / 8 % 2), r);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = (n + i) * 8 + lane % 4 * 2;
            const float2 begin = *(const float2 *)&gates.begin[row];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float2 want = msgl__unpack_two(r[2 * i + h], msgl_delta_act());
                float *d = &x[4 * (n + i) + 2 * h];
                d[0] = fmaf(-begin.x, d[0], want.x);
                d[1] = fmaf(-begin.y, d[1], want.y);
            }
        }
    }
}

// Byte of 8 columns of a row of scan_smem.out.
template <int WARPS> static __device__ __forceinline__ int out_at(int row, int eight)
{
    return row * scan_shape<WARPS>::OUT_ROW + ((eight ^ (row & 7)) << 4);
}

// A warp's 16 columns of o to `shared`.
template <int WARPS>
static __device__ __forceinline__ void stage_rows(const float (&o)[32], char *shared)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const uint32_t at = msgl__shared_address(shared);
    uint32_t packed[4][4];
    pack(o, packed);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        msgl__store_matrix_4_transposed(
            at + out_at<WARPS>(i * 16 + lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2),
            packed[i][0], packed[i][1], packed[i][2], packed[i][3]);
    }
}

// Where the chunk's rows are in a call's.
struct scan_rows {
    ptrdiff_t row0; // of row 0, if it were there
    int first, end; // those that are
};

// The rows' part of z that this thread gates.
template <int WARPS>
static __device__ __forceinline__ void load_gate(const msgl_delta_args &p, const scan_rows &rows,
                                                 int head, uint4 *z)
{
    typedef scan_shape<WARPS> C;
    const int vec = (int)threadIdx.x % (C::COLUMNS / 8);
#pragma unroll
    for (int i = 0; i < C::PASSES; i++) {
        const int row = i * C::PASS_ROWS + (int)threadIdx.x / (C::COLUMNS / 8);
        const msgl_delta_act *at =
            p.z + (rows.row0 + row) * (ptrdiff_t)p.ld_z + head * DIM + vec * 8;
        z[i] = row >= rows.first && row < rows.end ? *(const uint4 *)at : make_uint4(0, 0, 0, 0);
    }
}

// The block's columns from `shared`, gated by z if it has the head's norm, to the results.
template <int WARPS>
static __device__ __forceinline__ void store_rows(const msgl_delta_args &p, const scan_rows &rows,
                                                  int column, const char *shared, const uint4 *z)
{
    typedef scan_shape<WARPS> C;
    const int vec = (int)threadIdx.x % (C::COLUMNS / 8);
#pragma unroll
    for (int i = 0; i < C::PASSES; i++) {
        const int row = i * C::PASS_ROWS + (int)threadIdx.x / (C::COLUMNS / 8);
        uint4 v = *(const uint4 *)(shared + out_at<WARPS>(row, vec));
        if (C::NORM) v = delta_gated(v, z[i], p.norm + vec * 8, p.norm_eps, p.sigmoid_gate);
        if (row >= rows.first && row < rows.end) {
            *(uint4 *)(p.out + (rows.row0 + row) * (ptrdiff_t)p.ld_out + column + vec * 8) = v;
        }
    }
}

// A warpgroup's columns on their way through the chunks of a request.
template <int WARPS> struct scan_worker {
    typedef scan_shape<WARPS> C;
    const msgl_delta_args &p;
    const delta_scratch &in;
    const scan_place &at;
    scan_smem<WARPS> &smem;
    int row0, first_position, end; // of the request: row of its first token, positions
    float s[64], x[32], o[32];
    uint4 z[C::PASSES];

    __device__ __forceinline__ scan_rows rows(int n) const
    {
        const int position = (first_position / ROWS + n) * ROWS;
        return {(ptrdiff_t)row0 + position - first_position, max(first_position - position, 0),
                min(end - position, (int)ROWS)};
    }

    // S as it is at the chunk's beginning, and K S of it on its way into x.
    __device__ __forceinline__ void begin(int n, uint32_t (&a)[8][4])
    {
        msgl__mbarrier_wait(msgl__shared_address(&smem.full[n % STAGES]), n / STAGES & 1);
        pack(s, a);
        msgl__wgmma_fence();
        multiply<8>(x, a, smem.stage[n % STAGES].k, false);
    }

    // The chunk's results out of o.
    __device__ __forceinline__ void leave(int n)
    {
        stage_rows<WARPS>(o, smem.out[n % 2]);
        __syncthreads(); // all have left the stage, and the rows of the chunk before
        if (threadIdx.x == 0 && n + STAGES < at.chunks) fetch(p, in, at, smem, n + STAGES);
        __syncwarp();
        store_rows<WARPS>(p, rows(n), at.head * DIM + at.column, smem.out[n % 2], z);
    }

    // From K S, on its way into x, to o, and S behind the chunk.
    __device__ __forceinline__ void advance(int n, const uint32_t (&a)[8][4])
    {
        const scan_stage<WARPS> &stage = smem.stage[n % STAGES];
        const delta_gates &gates = smem.gates[n % STAGES];
        const int column = at.column + (int)threadIdx.x / 32 * 16;
        uint32_t u[4][4], w[4][4];
        msgl__wgmma_fence();
        multiply<8>(o, a, stage.q, false);
        if (C::NORM) load_gate<WARPS>(p, rows(n), at.head, z);
        msgl__wgmma_wait<1>(x);
        correct(x, stage.v + (C::NORM ? column / 64 * DELTA_IMAGE : 0), column % 64 / 8, gates);
        pack(x, u);
        msgl__wgmma_fence();
        multiply<4>(x, u, stage.t, false);
        const float all = gates.begin[ROWS - 1];
#pragma unroll
        for (int i = 0; i < 64; i++) s[i] *= all;
        msgl__wgmma_wait<0>(x);
        msgl__wgmma_wait<0>(o);
        pack(x, u);
        scale_rows(o, gates.begin);
        msgl__wgmma_fence();
        multiply<4>(o, u, stage.p, true);
        scale_rows(x, gates.end);
        pack(x, w);
        msgl__wgmma_fence();
        add_outer(s, w, stage.k);
        msgl__wgmma_wait<0>(s);
        msgl__wgmma_wait<0>(o);
    }

    // States that are asked for behind the chunk.
    __device__ __forceinline__ void keep(int n, int &save, int save_end)
    {
        const int column = at.column + (int)threadIdx.x / 32 * 16;
        const int behind = min((first_position / ROWS + n + 1) * ROWS, end);
        for (; save < save_end && p.saves[save].len <= behind; save++) {
            store_state(s, p.matrix(p.saves[save].state, at.head) + column);
        }
    }

    // The results of a chunk leave while the tensor cores have K S of the next one to do.
    __device__ __forceinline__ void run()
    {
        int save = p.saves != NULL ? p.save_start[at.request] : 0;
        const int save_end = p.saves != NULL ? p.save_start[at.request + 1] : 0;
        uint32_t a[8][4];
        begin(0, a);
        advance(0, a);
        keep(0, save, save_end);
        for (int n = 1; n < at.chunks; n++) {
            begin(n, a);
            leave(n - 1);
            advance(n, a);
            keep(n, save, save_end);
        }
        leave(at.chunks - 1);
        const int column = at.column + (int)threadIdx.x / 32 * 16;
        store_state(s, p.matrix(p.to[at.request], at.head) + column);
    }
};

template <int WARPS>
static __global__ void __launch_bounds__(WARPS * 32, 1)
    delta_scan(const __grid_constant__ msgl_delta_args p, const __grid_constant__ delta_scratch in)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    typedef scan_shape<WARPS> C;
    extern __shared__ __align__(1024) unsigned char raw[];
    scan_smem<WARPS> &smem = *(scan_smem<WARPS> *)raw;
    msgl__pdl_trigger();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            msgl__mbarrier_init(msgl__shared_address(&smem.full[i]), 1);
        }
        msgl__mbarrier_init_done();
    }
    __syncthreads();
    msgl__pdl_wait();
    scan_place at;
    at.request = (int)blockIdx.y;
    at.head = (int)blockIdx.x / C::SLICES;
    at.column = (int)blockIdx.x % C::SLICES * C::COLUMNS;
    if (p.to[at.request] < 0) return;
    at.chunk = in.start[at.request];
    at.chunks = in.start[at.request + 1] - at.chunk;
    if (threadIdx.x == 0) {
        for (int n = 0; n < STAGES && n < at.chunks; n++) fetch(p, in, at, smem, n);
    }
    __syncwarp();
    const int r = at.request, from = p.from[r];
    scan_worker<WARPS> w = {p,
                            in,
                            at,
                            smem,
                            p.cu_seqlens_q[r],
                            delta_first_position(p.cu_seqlens_q, p.seqlens_k, r),
                            p.seqlens_k[r]};
    if (from >= 0) {
        load_state(w.s, p.matrix(from, at.head) + at.column + (int)threadIdx.x / 32 * 16);
    } else {
#pragma unroll
        for (int i = 0; i < 64; i++) w.s[i] = 0;
    }
    w.run();
#endif
}

template <int WARPS>
static cudaError_t launch(const msgl_delta_args &p, const delta_scratch &s, cudaStream_t stream)
{
    const size_t bytes = sizeof(scan_smem<WARPS>);
    const cudaError_t code = msgl__allow_shared<delta_scan<WARPS>>(bytes);
    if (code != cudaSuccess) return code;
    return msgl__launch(delta_scan<WARPS>, dim3(p.v_heads * scan_shape<WARPS>::SLICES, p.size),
                        dim3(WARPS * 32), bytes, stream, p, s);
}

cudaError_t msgl__delta_scan(const msgl_delta_args &p, const delta_scratch &s, int warps,
                             cudaStream_t stream)
{
    return warps == 4 ? launch<4>(p, s, stream) : launch<8>(p, s, stream);
}
