// SPDX-License-Identifier: Apache-2.0
//
// Instead of src/cuda/ptx/copy.cuh: copies arrive when they are waited for.
#ifndef MSGL_KERNEL_CUDA_PTX_COPY_CUH
#define MSGL_KERNEL_CUDA_PTX_COPY_CUH

#include <vector>

#include "cuda/ptx/shared.cuh"
#include "emulator.h"

enum { EMULATOR_THREADS = 1024 };

struct emulator_copy {
    uint32_t dst;
    const void *src;
    int bytes;
    bool there;
};
// Of a thread: groups of copies, the last one still open.
extern std::vector<std::vector<emulator_copy>> emulator_copies[EMULATOR_THREADS];

static inline void emulator_copy_async(uint32_t dst, const void *src, int bytes, bool there)
{
    if (dst % (unsigned)bytes != 0 || (uintptr_t)src % (unsigned)bytes != 0) {
        emulator_fail("a copy is not aligned", __FILE__);
    }
    emulator_copies[threadIdx.x].back().push_back({dst, src, bytes, there});
}

static inline void msgl__copy_async_16(uint32_t dst, const void *src, bool there)
{
    emulator_copy_async(dst, src, 16, there);
}

static inline void msgl__copy_async_16_line(uint32_t dst, const void *src, bool there)
{
    emulator_copy_async(dst, src, 16, there);
}

static inline void msgl__copy_async_4(uint32_t dst, const void *src)
{
    emulator_copy_async(dst, src, 4, true);
}

static inline void msgl__copy_async_commit(void)
{
    emulator_copies[threadIdx.x].emplace_back();
}

template <int PENDING> static inline void msgl__copy_async_wait(void)
{
    auto &groups = emulator_copies[threadIdx.x];
    while ((int)groups.size() - 1 > PENDING) {
        for (const emulator_copy &c : groups[0]) {
            char *to = emulator_shared(c.dst);
            if (c.there) {
                memcpy(to, c.src, (size_t)c.bytes);
            } else {
                memset(to, 0, (size_t)c.bytes);
            }
        }
        groups.erase(groups.begin());
    }
}

static inline void msgl__copy_async_wait_all(void)
{
    msgl__copy_async_commit();
    msgl__copy_async_wait<0>();
}

static inline uint4 msgl__read_once(const void *p)
{
    if ((uintptr_t)p % 16 != 0) emulator_fail("a read is not aligned", __FILE__);
    return *(const uint4 *)p;
}

static inline void msgl__prefetch_l1(const void *)
{
}
static inline void msgl__prefetch_l2(const void *)
{
}

#endif
