// SPDX-License-Identifier: Apache-2.0
//
// Instead of src/cuda/ptx/global.cuh: blocks run one after the other, so memory has one
// order. Other GPUs are other processes, and what they write comes word by word, in any order.
#ifndef MSGL_KERNEL_CUDA_PTX_GLOBAL_CUH
#define MSGL_KERNEL_CUDA_PTX_GLOBAL_CUH

#include "emulator.h"

static inline int32_t msgl__count(int32_t *p)
{
    return (*p)++;
}

static inline void msgl__store_release(int32_t *p, int32_t v)
{
    *p = v;
}

static inline int32_t msgl__load_acquire(const int32_t *p)
{
    return *p;
}

static inline void msgl__store_relaxed(int32_t *p, int32_t v)
{
    *p = v;
}

static inline int4 msgl__load_relaxed_4(const int32_t *p)
{
    return *(const int4 *)p;
}

static inline void msgl__store_release_sys(uint32_t *p, uint32_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

static inline uint32_t msgl__load_acquire_sys(const uint32_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

static inline void msgl__store_relaxed_sys(uint32_t *p, uint32_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELAXED);
}

static inline uint32_t msgl__load_relaxed_sys(const uint32_t *p)
{
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}

static inline void msgl__store_relaxed_sys_2(uint2 *p, uint2 v)
{
    const uint32_t words[2] = {v.x, v.y};
    const unsigned first = (unsigned)emulator_draw() % 2;
    __atomic_store_n((uint32_t *)p + first, words[first], __ATOMIC_RELAXED);
    __atomic_store_n((uint32_t *)p + 1 - first, words[1 - first], __ATOMIC_RELAXED);
}

static inline uint2 msgl__load_relaxed_sys_2(const uint2 *p)
{
    const uint32_t *w = (const uint32_t *)p;
    return make_uint2(__atomic_load_n(w, __ATOMIC_RELAXED),
                      __atomic_load_n(w + 1, __ATOMIC_RELAXED));
}

static inline void msgl__store_relaxed_sys_4(uint4 *p, uint4 v)
{
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    const unsigned first = (unsigned)emulator_draw() % 4;
    for (unsigned i = 0; i < 4; i++) {
        const unsigned at = (first + i) % 4;
        __atomic_store_n((uint32_t *)p + at, words[at], __ATOMIC_RELAXED);
    }
}

static inline uint4 msgl__load_relaxed_sys_4(const uint4 *p)
{
    const uint32_t *w = (const uint32_t *)p;
    return make_uint4(
        __atomic_load_n(w, __ATOMIC_RELAXED), __atomic_load_n(w + 1, __ATOMIC_RELAXED),
        __atomic_load_n(w + 2, __ATOMIC_RELAXED), __atomic_load_n(w + 3, __ATOMIC_RELAXED));
}

// Others go on meanwhile.
static inline void msgl__polled(void)
{
    emulator_yield();
}

#endif
