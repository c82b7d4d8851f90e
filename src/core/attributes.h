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
#define MSGL_COUNT(a) (sizeof(a) / sizeof((a)[0]))

#endif
