// SPDX-License-Identifier: Apache-2.0
//
// The decode kernel's own way to copy, beside the shared instructions.
#ifndef MSGL_KERNEL_CUDA_ATTN_DECODE_PTX_CUH
#define MSGL_KERNEL_CUDA_ATTN_DECODE_PTX_CUH

#include "kernel/cuda/ptx.cuh"

// Copies 16 bytes of slot `slot` of slots of `bytes` bytes that start at src; a negative slot is
// zeros. L2 fetches 128 bytes at a time: 1-3 % faster from 64x1024 on (one run of each; why was not
// looked into). FIRST: they are the first to leave the L2, where K and V of a step are more than it
// holds; then tables, lengths and activations stay.
template <bool FIRST>
static __device__ __forceinline__ void msgl_cp_async16(uint32_t dst, const void *src, int32_t slot,
                                                       uint32_t bytes)
{
    // What createpolicy.fractional makes of evict_first and evict_normal.
    const uint64_t policy = FIRST ? 0x12f0000000000000u : 0x1000000000000000u;
    asm volatile("{\n"
                 ".reg .pred zeros;\n"
                 ".reg .u64 from;\n"
                 "setp.lt.s32 zeros, %2, 0;\n"
                 "mad.wide.u32 from, %2, %3, %1;\n"
                 "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [from], 16, zeros, %4;\n"
                 "}\n" ::"r"(dst),
                 "l"(src), "r"(slot), "r"(bytes), "l"(policy)
                 : "memory");
}

// The transpose of an 8 x 8 matrix of 16 bit elements, as mma's fragments hold it.
static __device__ __forceinline__ uint32_t msgl__transpose_8(uint32_t r)
{
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(r));
    return r;
}

#endif
