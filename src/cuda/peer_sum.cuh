// SPDX-License-Identifier: Apache-2.0
//
// The end of a product whose results are this rank's part of a sum over two ranks on GPUs that see
// each other's memory: a thread writes its parts into the other rank's memory, and adds those that
// the other one has written into its own. So there is no kernel for the sum, and the way over the
// link begins as soon as a block has its results.
//
// A word that has not come is EMPTY, minus zero in every dtype, which is never sent; who has read
// one makes it EMPTY again. Two slots take turns: who writes to one has had all of the other rank's
// parts of the sum between, before which the other one had ended the kernel that emptied it. The
// count of sums is the rank's own, in device memory, so that graphs can be replayed.
//
// Blocks wait for those of the same index of the other rank, for none behind it, and blocks start
// in the order of their indices. (Lamport's queue of one reader and one writer; TensorRT-LLM's sums
// for few tokens are alike.)
#ifndef MSGL_CUDA_PEER_SUM_CUH
#define MSGL_CUDA_PEER_SUM_CUH

#include "cuda/peer_sum.h"
#include "cuda/ptx/global.cuh"

static const uint32_t MSGL_PEER_EMPTY = 0x80000000u;

// The slot of the current sum. Behind the wait for the kernels in front.
struct msgl_peer_slot {
    char *theirs, *own;
    uint32_t call;
};

static __device__ __forceinline__ msgl_peer_slot msgl__peer_open(const msgl_peer_sum &s)
{
    msgl_peer_slot at;
    at.call = *(const volatile uint32_t *)s.count + 1;
    const size_t slot = at.call % MSGL_PEER_SLOTS * MSGL_PEER_SLOT_BYTES;
    at.theirs = s.theirs + slot;
    at.own = s.own + slot;
    return at;
}

// By one thread of every block, when all threads of the block have opened: the last block counts
// the sum. Early, so that nobody waits for the way to the L2 and back.
static __device__ __forceinline__ void msgl__peer_count(uint32_t *count, uint32_t *ticket,
                                                        uint32_t call, uint32_t blocks)
{
    if (atomicAdd(ticket, 1u) + 1 < blocks) return;
    *ticket = 0;
    *count = call;
}

// A thread that waits looks at the host's word, which takes a microsecond, every so many polls.
static __device__ __forceinline__ bool msgl__peer_over(const volatile uint32_t *over, int polls)
{
    return polls % 1024 == 0 && *over != 0;
}

static __device__ __forceinline__ bool msgl__peer_came(uint32_t v)
{
    return v != MSGL_PEER_EMPTY;
}
static __device__ __forceinline__ bool msgl__peer_came(uint2 v)
{
    return msgl__peer_came(v.x) && msgl__peer_came(v.y);
}

static __device__ __forceinline__ bool msgl__peer_came(uint4 v)
{
    return msgl__peer_came(make_uint2(v.x, v.y)) && msgl__peer_came(make_uint2(v.z, v.w));
}

// What is sent of a value: +0 for EMPTY. Its rank goes on with the same, so that all have the same
// bits.
static __device__ __forceinline__ uint32_t msgl__peer_sent(uint32_t v)
{
    return msgl__peer_came(v) ? v : 0;
}
static __device__ __forceinline__ uint2 msgl__peer_sent(uint2 v)
{
    return make_uint2(msgl__peer_sent(v.x), msgl__peer_sent(v.y));
}

static __device__ __forceinline__ uint4 msgl__peer_sent(uint4 v)
{
    return make_uint4(msgl__peer_sent(v.x), msgl__peer_sent(v.y), msgl__peer_sent(v.z),
                      msgl__peer_sent(v.w));
}

static __device__ __forceinline__ void msgl__peer_push(char *to, uint32_t v)
{
    msgl__store_relaxed_sys((uint32_t *)to, v);
}
static __device__ __forceinline__ void msgl__peer_push(char *to, uint2 v)
{
    msgl__store_relaxed_sys_2((uint2 *)to, v);
}

static __device__ __forceinline__ void msgl__peer_push(char *to, uint4 v)
{
    msgl__store_relaxed_sys_4((uint4 *)to, v);
}

static __device__ __forceinline__ void msgl__peer_look(const char *from, uint32_t *v)
{
    *v = msgl__load_relaxed_sys((const uint32_t *)from);
}
static __device__ __forceinline__ void msgl__peer_look(const char *from, uint2 *v)
{
    *v = msgl__load_relaxed_sys_2((const uint2 *)from);
}

static __device__ __forceinline__ void msgl__peer_look(const char *from, uint4 *v)
{
    *v = msgl__load_relaxed_sys_4((const uint4 *)from);
}

static __device__ __forceinline__ void msgl__peer_empty(char *at, uint32_t)
{
    *(uint32_t *)at = MSGL_PEER_EMPTY;
}
static __device__ __forceinline__ void msgl__peer_empty(char *at, uint2)
{
    *(uint2 *)at = make_uint2(MSGL_PEER_EMPTY, MSGL_PEER_EMPTY);
}
static __device__ __forceinline__ void msgl__peer_empty(char *at, uint4)
{
    const uint32_t e = MSGL_PEER_EMPTY;
    *(uint4 *)at = make_uint4(e, e, e, e);
}

// Waits for what msgl__peer_look has not found yet, and empties its place. From a rank that is
// over: whatever is there.
template <typename V>
static __device__ __forceinline__ void msgl__peer_take(char *from, const volatile uint32_t *over,
                                                       V *v)
{
    for (int polls = 1; !msgl__peer_came(*v) && !msgl__peer_over(over, polls); polls++) {
        msgl__polled();
        msgl__peer_look(from, v);
    }
    msgl__peer_empty(from, *v);
}

#endif
