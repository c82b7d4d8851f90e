// SPDX-License-Identifier: Apache-2.0
//
// The only door to the heap. Everything else in src/ is forbidden by scripts/check-style to call
// malloc and its family, so that allocations can be counted (zero per decode step after warm-up),
// failed on purpose (the n-th allocation of a load or a request) and found by purpose.
//
// Three lifetimes: heap objects that live as long as their owner (msgl__malloc), large page-backed
// regions that live as long as the engine (msgl__pages_alloc: weights, KV), and step arenas that
// are sized once and reset every step (msgl_arena).
#ifndef MSGL_CORE_MEM_H
#define MSGL_CORE_MEM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Heap. Sizes of 0 return a unique non-NULL pointer. NULL on failure; nothing is ever printed.
void *msgl__malloc(size_t size);
void *msgl__calloc(size_t n, size_t size); // n * size checked for overflow
void *msgl__realloc(void *p, size_t size);
// realloc to n * size bytes with the product checked; NULL leaves p as it was.
void *msgl__reallocarray(void *p, size_t n, size_t size);
void *msgl__aligned_alloc(size_t align, size_t size); // freed with msgl__free
char *msgl__strdup(const char *s);
char *msgl__strndup(const char *s, size_t n);
void msgl__free(void *p); // NULL allowed

// Gives the heap's free pages back to the system, where the C library can (glibc). Walks the whole
// heap: for after something large, not for a hot path.
void msgl__mem_trim(void);

// Number of successful heap allocations (all functions above) since the process began, all threads.
uint64_t msgl__mem_allocs(void);

// Testing: the `nth` allocation from now on (1 = the next) and every later one returns NULL;
// 0 turns the failing off.
void msgl__mem_fail_from(uint64_t nth);

// Zeroed, page-aligned memory from mmap, asking for transparent huge pages; size is rounded up to
// 2 MiB. NULL on failure. Not counted as heap. Freed with the same size.
void *msgl__pages_alloc(size_t size);
void msgl__pages_free(void *p, size_t size);

// Checked size arithmetic: returns 0 and stores the result, or MSGL_ELIMIT on overflow.
int msgl__size_mul(size_t a, size_t b, size_t *out);
int msgl__size_add(size_t a, size_t b, size_t *out);

// Bump allocator over memory that the caller provides and keeps.
typedef struct msgl_arena {
    char *base;
    size_t size, used;
} msgl_arena;

void msgl__arena_init(msgl_arena *a, void *base, size_t size);
// 64-byte aligned, not zeroed; NULL when the arena is full (its size is computed from the limits,
// so that is a bug of the caller).
void *msgl__arena_alloc(msgl_arena *a, size_t size);
static inline void msgl__arena_reset(msgl_arena *a)
{
    a->used = 0;
}

#ifdef __cplusplus
}
#endif

#endif
