// SPDX-License-Identifier: Apache-2.0
//
// The gated delta rule for one token a request. Every byte of a state is read and written once and
// little is computed, so memory is the limit. Everything of the layer between its two products is
// in here: convolution, gates, norms, recurrence (recur.cuh). States, and what else is older than
// the step, are read before the kernel ahead has ended.
//
// Few requests: two blocks have a v head, S in registers, with nothing between the loads and the
// arithmetic. Many: a block has a v head, S in shared memory, in and out by one bulk copy each:
// the memory likes 64 KB in a row better than 512 rows of 128 bytes.
#include "cuda/delta/recur.cuh"
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/tma.cuh"

typedef decode_shape<4, 4> decode_few;
typedef decode_shape<8, 4> decode_many;

// A thread's rows of S in shared memory.
template <class C> struct decode_shared {
    float *rows;
    __device__ __forceinline__ float4 get(int i) const
    {
        return *(const float4 *)(rows + i * C::GROUPS * DIM);
    }
    __device__ __forceinline__ void put(int i, float4 v)
    {
        *(float4 *)(rows + i * C::GROUPS * DIM) = v;
    }
};

static __global__ void __launch_bounds__(decode_few::THREADS, 4)
    delta_decode_few(const __grid_constant__ msgl_delta_args p)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900 // never launched before
    typedef decode_few C;
    __shared__ __align__(16) decode_smem<C> smem;
    msgl__pdl_trigger();
    const decode_place at = find_place(p, C::SLICES, (int)blockIdx.y, 1);
    const decode_thread<C> me(at);
    const size_t row = (size_t)at.request, place = (size_t)me.group * DIM + me.column;
    msgl_delta_act *const out = p.out + row * p.ld_out + at.head * DIM + me.column;
    if (at.to < 0) { // all blocks of the head
        msgl__pdl_wait();
        if (me.group == 0) *(uint2 *)out = make_uint2(0, 0);
        return;
    }
    msgl__cluster_arrive(); // all have begun where one writes to another
    decode_registers<C> s;
    load_rows(s, at.from >= 0 ? p.matrix(at.from, at.head) + place : NULL);
    const float4 norm = *(const float4 *)(p.norm + me.column);
    decode_inputs in;
    load_inputs<C>(p, at, &in);
    msgl__pdl_wait();
    const uint2 z = *(const uint2 *)(p.z + row * p.ld_z + at.head * DIM + me.column);
    (void)take_token<C, true>(p, at, smem, in);
    __syncthreads();
    const float4 o = step_state<C>(s, smem.q + me.group * C::STRIDE, smem.k + me.group * C::STRIDE,
                                   *(const float4 *)&smem.v[me.column], smem.decay, smem.beta);
    for (int i = at.save; i <= at.save_end; i++) {
        store_rows(s, p.matrix(i < at.save_end ? p.saves[i].state : at.to, at.head) + place);
    }
    msgl__cluster_wait();
    const float squares = head_squares<C>(smem, o, me.part);
    if (me.group == 0) *(uint2 *)out = gated4(o, z, norm, squares, p.norm_eps, p.sigmoid_gate);
#endif
}

struct decode_many_smem {
    float s[DIM * DIM];
    decode_smem<decode_many> token;
    uint64_t full;
};

static __global__ void __launch_bounds__(decode_many::THREADS, 2)
    delta_decode_many(const __grid_constant__ msgl_delta_args p)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900 // never launched before
    typedef decode_many C;
    extern __shared__ __align__(128) unsigned char raw[];
    decode_many_smem &smem = *(decode_many_smem *)raw;
    const uint32_t full = msgl__shared_address(&smem.full), bytes = sizeof smem.s;
    msgl__pdl_trigger();
    const decode_place at = find_place(p, C::SLICES, (int)blockIdx.y, 1);
    const decode_thread<C> me(at);
    const size_t row = (size_t)at.request;
    msgl_delta_act *const out = p.out + row * p.ld_out + at.head * DIM + me.column;
    if (at.to < 0) {
        msgl__pdl_wait();
        if (me.group == 0) *(uint2 *)out = make_uint2(0, 0);
        return;
    }
    if (at.from < 0) {
        for (int i = (int)threadIdx.x; i < DIM * DIM / 4; i += C::THREADS) {
            ((float4 *)smem.s)[i] = make_float4(0, 0, 0, 0);
        }
    } else {
        if (threadIdx.x == 0) {
            msgl__mbarrier_init(full, 1);
            msgl__mbarrier_init_done();
        }
        __syncthreads(); // for racecheck, to which one thread's two lines above and below race
        if (threadIdx.x == 0) {
            msgl__mbarrier_expect(full, bytes);
            msgl__bulk_load(msgl__shared_address(smem.s), p.matrix(at.from, at.head), bytes, full);
        }
    }
    const float4 norm = *(const float4 *)(p.norm + me.column);
    decode_inputs in;
    load_inputs<C>(p, at, &in);
    msgl__pdl_wait();
    const uint2 z = *(const uint2 *)(p.z + row * p.ld_z + at.head * DIM + me.column);
    (void)take_token<C, true>(p, at, smem.token, in);
    __syncthreads();
    if (at.from >= 0) msgl__mbarrier_wait(full, 0);
    decode_shared<C> s = {smem.s + me.group * DIM + me.column};
    const float4 o =
        step_state<C>(s, smem.token.q + me.group * C::STRIDE, smem.token.k + me.group * C::STRIDE,
                      *(const float4 *)&smem.token.v[me.column], smem.token.decay, smem.token.beta);
    msgl__fence_async_proxy();
    const float squares = head_squares<C>(smem.token, o, me.part); // and all have written S
    if (threadIdx.x == 0) {
        for (int i = at.save; i <= at.save_end; i++) {
            msgl__bulk_store(p.matrix(i < at.save_end ? p.saves[i].state : at.to, at.head),
                             msgl__shared_address(smem.s), bytes);
        }
        msgl__tensor_store_commit();
    }
    if (me.group == 0) *(uint2 *)out = gated4(o, z, norm, squares, p.norm_eps, p.sigmoid_gate);
    if (threadIdx.x == 0) msgl__tensor_store_read<0>();
#endif
}

static cudaError_t launch_few(const msgl_delta_args &p, cudaStream_t stream)
{
    return msgl__launch_clusters(delta_decode_few, dim3(decode_few::SLICES),
                                 dim3(p.v_heads * decode_few::SLICES, p.size),
                                 dim3(decode_few::THREADS), 0, stream, p);
}

static cudaError_t launch_many(const msgl_delta_args &p, cudaStream_t stream)
{
    // So many that two blocks share an SM: with three the memory has more to do at once and is 1%
    // slower.
    const size_t bytes = sizeof(decode_many_smem) + (32 << 10);
    const cudaError_t code = msgl__allow_shared<delta_decode_many>(bytes, true);
    if (code != cudaSuccess) return code;
    return msgl__launch(delta_decode_many, dim3(p.v_heads, p.size), dim3(decode_many::THREADS),
                        bytes, stream, p);
}

extern "C" void msgl__cuda_delta_decode(msgl_exec *x, const msgl_delta_call *c, int slices)
{
    msgl_delta_args p;
    if (c->io.seqs->size == 0 || !msgl__delta_args(x, c, &p)) return;
    const cudaStream_t stream = msgl__cuda_stream(x);
    if (slices == 0) slices = p.size * p.v_heads <= 4 * msgl__cuda_device(x)->sm_count ? 2 : 1;
    MSGL_CUDA_TRY(x, slices == 2 ? launch_few(p, stream) : launch_many(p, stream));
}
