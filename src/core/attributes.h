// SPDX-License-Identifier: Apache-2.0
//
// The only place for compiler extensions that are not plain C11.
#ifndef MSGL_CORE_ATTRIBUTES_H
#define MSGL_CORE_ATTRIBUTES_H

#define MSGL_LIKELY(x) __builtin_expect(!!(x), 1)
#define MSGL_ALIGNED(n) __attribute__((aligned(n)))
#define MSGL_UNUSED __attribute__((unused))
#define MSGL_INLINE static inline __attribute__((always_inline))
#define MSGL_NOINLINE __attribute__((noinline))
// In a loop that waits for another thread: leaves the core's units to its sibling.
#if defined(__x86_64__)
#define MSGL_CPU_RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define MSGL_CPU_RELAX() __asm__ volatile("yield")
#else
#define MSGL_CPU_RELAX() ((void)0)
#endif
#define MSGL_POPCOUNT64(x) __builtin_popcountll(x)
#define MSGL_CTZ64(x) __builtin_ctzll(x) // x != 0
#define MSGL_COUNT(a) (sizeof(a) / sizeof((a)[0]))

#endif
