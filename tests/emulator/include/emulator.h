// SPDX-License-Identifier: Apache-2.0
//
// CUDA's built-ins for kernels that run on the host: a block's threads are fibers of one thread,
// one block after the other. Warps run in random order, and so do the lanes of one, up to the next
// barrier or warp-wide operation; there the emulator checks that all threads are at the same one.
// Copies to shared memory arrive when they are waited for. So a kernel that lacks a barrier, or
// waits for the wrong copy, gives wrong results here sooner or later, and does so again with the
// same seed.
//
// What mma.sync, ldmatrix and cp.async compute is in cuda/ptx beside this file, which has
// the headers of that name in src/ replaced. There is nothing of clusters, TMA, mbarriers and
// WGMMA: kernels for Hopper alone are not for it. Every block ends before the next one begins, so
// blocks of a grid that wait for each other never end; those of two GPUs, which are two processes
// here, can, one for the one of its index.
#ifndef MSGL_TESTS_EMULATOR_H
#define MSGL_TESTS_EMULATOR_H

#include <functional>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "core/dtype.h"
}

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
// One copy for all fibers; `extern` in front of it is legal.
#define __shared__ thread_local
#define __align__(n) __attribute__((aligned(n)))

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z)
    {
    }
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
static inline float2 make_float2(float x, float y)
{
    return {x, y};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
static inline int2 make_int2(int x, int y)
{
    return {x, y};
}
static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}

// Of the fiber that runs.
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

// ---- the scheduler ----

extern uint64_t emulator_seed; // of all orders; not 0
extern bool emulator_in_order; // blocks begin by their indices
uint64_t emulator_draw();

[[noreturn]] void emulator_fail(const char *what, const char *where);
// Runs the blocks of a grid; fn is the kernel with its arguments. Dynamic shared memory is what the
// kernel declares itself.
void emulator_run(dim3 grid, dim3 block, const std::function<void()> &fn);
void emulator_barrier(const char *where);
void emulator_yield(); // other threads of the block may run
// Waits until all lanes of the warp are here, each with n <= EMULATOR_WORDS words: [32][n] of them.
enum { EMULATOR_WORDS = 12 };
const uint32_t (*emulator_exchange(const char *where, const uint32_t *words,
                                   int n))[EMULATOR_WORDS];

#define EMULATOR_TEXT2(x) #x
#define EMULATOR_TEXT(x) EMULATOR_TEXT2(x)
#define EMULATOR_HERE __FILE__ ":" EMULATOR_TEXT(__LINE__)

#define __syncthreads() emulator_barrier(EMULATOR_HERE)
#define __syncwarp() ((void)emulator_exchange(EMULATOR_HERE, NULL, 0))
static inline void __threadfence()
{
}

// ---- operations of a warp ----

enum emulator_lane { FROM, UP, XOR };

template <typename T>
static inline T emulator_shuffle(const char *where, T v, emulator_lane kind, int by)
{
    static_assert(sizeof v == 4, "a word");
    const int lane = (int)threadIdx.x % 32;
    const int from = kind == FROM ? by & 31
                     : kind == UP ? (lane < by ? lane : lane - by)
                                  : lane ^ by;
    uint32_t word;
    memcpy(&word, &v, 4);
    const auto all = emulator_exchange(where, &word, 1);
    memcpy(&v, &all[from][0], 4);
    return v;
}

// T: int32_t or uint32_t, in whose order fn finds the least and the most.
template <typename T, typename FN>
static inline T emulator_fold(const char *where, T v, const FN &fn)
{
    static_assert(sizeof v == 4, "a word");
    const uint32_t word = (uint32_t)v;
    const auto all = emulator_exchange(where, &word, 1);
    T r = (T)all[0][0];
    for (int i = 1; i < 32; i++) r = fn(r, (T)all[i][0]);
    return r;
}

static inline uint32_t emulator_ballot(const char *where, bool v)
{
    const uint32_t word = v;
    const auto all = emulator_exchange(where, &word, 1);
    uint32_t r = 0;
    for (int i = 0; i < 32; i++) r |= all[i][0] << i;
    return r;
}

static inline uint32_t emulator_match(const char *where, uint32_t v)
{
    const auto all = emulator_exchange(where, &v, 1);
    uint32_t r = 0;
    for (int i = 0; i < 32; i++) r |= (uint32_t)(all[i][0] == v) << i;
    return r;
}

// Masks are always all lanes' in this project.
#define __shfl_sync(mask, v, lane) emulator_shuffle(EMULATOR_HERE, v, FROM, lane)
#define __shfl_up_sync(mask, v, by) emulator_shuffle(EMULATOR_HERE, v, UP, by)
#define __shfl_xor_sync(mask, v, by) emulator_shuffle(EMULATOR_HERE, v, XOR, by)
#define __ballot_sync(mask, v) emulator_ballot(EMULATOR_HERE, v)
#define __match_any_sync(mask, v) emulator_match(EMULATOR_HERE, (uint32_t)(v))
#define __any_sync(mask, v) (emulator_ballot(EMULATOR_HERE, v) != 0)
#define __all_sync(mask, v) (emulator_ballot(EMULATOR_HERE, v) == ~0u)
#define __reduce_add_sync(mask, v)                                                                 \
    emulator_fold(EMULATOR_HERE, v, [](auto a, auto b) { return a + b; })
#define __reduce_min_sync(mask, v)                                                                 \
    emulator_fold(EMULATOR_HERE, v, [](auto a, auto b) { return a < b ? a : b; })
#define __reduce_max_sync(mask, v)                                                                 \
    emulator_fold(EMULATOR_HERE, v, [](auto a, auto b) { return a > b ? a : b; })

// ---- arithmetic ----

template <typename T> static inline T atomicAdd(T *p, T v)
{
    const T old = *p;
    *p += v;
    return old;
}
template <typename T> static inline T atomicOr(T *p, T v)
{
    const T old = *p;
    *p |= v;
    return old;
}
static inline unsigned atomicCAS(unsigned *p, unsigned want, unsigned v)
{
    const unsigned old = *p;
    if (old == want) *p = v;
    return old;
}
static inline int min(int a, int b)
{
    return a < b ? a : b;
}
static inline int max(int a, int b)
{
    return a > b ? a : b;
}
static inline unsigned min(unsigned a, unsigned b)
{
    return a < b ? a : b;
}
static inline int __ffs(int v)
{
    return __builtin_ffs(v);
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}
static inline int __popc(unsigned v)
{
    return __builtin_popcount(v);
}
static inline int __popcll(unsigned long long v)
{
    return __builtin_popcountll(v);
}
static inline uint32_t __float_as_uint(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
template <typename T> static inline T __ldcg(const T *p)
{
    return *p;
}
static inline float __uint_as_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fsub_rn(float a, float b)
{
    return a - b;
}
static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
static inline float __fsqrt_rn(float a)
{
    return sqrtf(a);
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
static inline float __fdividef(float a, float b)
{
    return a / b;
}
static inline float rsqrtf(float x)
{
    return 1 / sqrtf(x);
}
#define __expf expf
#define __logf logf
#define __sincosf sincosf
// What a negative number or NaN becomes is no use to any kernel.
static inline uint32_t __float2uint_rn(float f)
{
    if (!(f >= 0)) emulator_fail("__float2uint_rn of a negative number or NaN", __FILE__);
    return (uint32_t)lrintf(f);
}
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector)
{
    const uint64_t both = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) r |= (uint32_t)(both >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
    return r;
}

#endif
