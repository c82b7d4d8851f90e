// SPDX-License-Identifier: Apache-2.0
//
// The gated delta rule for the few tokens of answers with drafts, one after the other, with the
// arithmetic of answers (recur.cuh): a row has the bits that it would have in a step of its own,
// and the state behind any row can be kept. S stays in registers from the first token to the last,
// so that a request reads its state once and writes it once for each row that is kept.
//
// A block has a v head. Two barriers a token are enough: q, k and v of the next one are written
// behind that of the norm, in front of which all have read these, and the sums of its norm behind
// that of its q, k and v, in front of which all have read those sums.
//
// Several tokens' inputs of the convolution would overwrite what another block has yet to read, so
// a second kernel keeps them when all have (inputs.cuh).
#include "cuda/delta/inputs.cuh"
#include "cuda/delta/recur.cuh"
#include "cuda/device.cuh"
#include "cuda/launch.cuh"

typedef decode_shape<4, 8> C;
static_assert(C::SLICES == 1, "a v head a block");

enum { KEEP_THREADS = 128 };

static __global__ void __launch_bounds__(C::THREADS, 1)
    delta_rows(const __grid_constant__ msgl_delta_args p)
{
    __shared__ __align__(16) decode_smem<C> smem;
    msgl__pdl_trigger();
    const int row0 = p.cu_seqlens_q[blockIdx.y], tokens = p.cu_seqlens_q[blockIdx.y + 1] - row0;
    decode_place at = find_place(p, C::SLICES, row0, tokens);
    const decode_thread<C> me(at);
    const size_t place = (size_t)me.group * DIM + me.column;
    const int column = at.head * DIM + me.column;
    if (at.to < 0) {
        msgl__pdl_wait();
        for (int t = 0; t < tokens && me.group == 0; t++) {
            *(uint2 *)(p.out + (size_t)(row0 + t) * p.ld_out + column) = make_uint2(0, 0);
        }
        return;
    }
    decode_registers<C> s;
    load_rows(s, at.from >= 0 ? p.matrix(at.from, at.head) + place : NULL);
    const float4 norm = *(const float4 *)(p.norm + me.column);
    decode_inputs in;
    load_inputs<C>(p, at, &in);
    msgl__pdl_wait();
    for (int t = 0; t < tokens; t++, at.row++, at.pos++) {
        const uint2 z = *(const uint2 *)(p.z + (size_t)at.row * p.ld_z + column);
        const uint2 now = take_token<C, false>(p, at, smem, in);
        in.old[0] = in.old[1], in.old[1] = in.old[2], in.old[2] = now;
        __syncthreads();
        const float4 o =
            step_state<C>(s, smem.q + me.group * C::STRIDE, smem.k + me.group * C::STRIDE,
                          *(const float4 *)&smem.v[me.column], smem.decay, smem.beta);
        for (; at.save < at.save_end && p.saves[at.save].len == at.pos + 1; at.save++) {
            store_rows(s, p.matrix(p.saves[at.save].state, at.head) + place);
        }
        const float squares = head_squares<C>(smem, o, me.part);
        if (me.group == 0) {
            *(uint2 *)(p.out + (size_t)at.row * p.ld_out + column) =
                gated4(o, z, norm, squares, p.norm_eps, p.sigmoid_gate);
        }
    }
    store_rows(s, p.matrix(at.to, at.head) + place);
}

// A block a target (inputs.cuh).
static __global__ void __launch_bounds__(KEEP_THREADS)
    delta_keep(const __grid_constant__ msgl_delta_args p)
{
    msgl__pdl_trigger();
    msgl__pdl_wait();
    delta_keep_target(p, (int)blockIdx.x);
}

extern "C" void msgl__cuda_delta_rows(msgl_exec *x, const msgl_delta_call *c)
{
    msgl_delta_args p;
    if (c->io.seqs->size == 0 || !msgl__delta_args(x, c, &p)) return;
    const cudaStream_t stream = msgl__cuda_stream(x);
    MSGL_CUDA_TRY(
        x, msgl__launch(delta_rows, dim3(p.v_heads, p.size), dim3(C::THREADS), 0, stream, p));
    MSGL_CUDA_TRY(x, msgl__launch(delta_keep, dim3(msgl__delta_targets(c)), dim3(KEEP_THREADS), 0,
                                  stream, p));
}
