// SPDX-License-Identifier: Apache-2.0
#include "core/mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "core/err.h"
#include "core/round.h"

static atomic_uint_fast64_t g_allocs;  // successes so far
static atomic_uint_fast64_t g_fail_in; // 0: never fail; n: the n-th next call fails, and all after
static const size_t HUGE_PAGE = (size_t)2 << 20;

// Counts one attempt down towards the injected failure; true when this attempt has to fail.
static int must_fail(void)
{
    uint_fast64_t n = atomic_load_explicit(&g_fail_in, memory_order_relaxed);
    while (n > 1) {
        if (atomic_compare_exchange_weak(&g_fail_in, &n, n - 1)) return 0;
    }
    return n == 1;
}

static void *counted(void *p)
{
    if (p != NULL) atomic_fetch_add_explicit(&g_allocs, 1, memory_order_relaxed);
    return p;
}

void *msgl__malloc(size_t size)
{
    return must_fail() ? NULL : counted(malloc(size ? size : 1));
}

void *msgl__calloc(size_t n, size_t size)
{
    if (n == 0 || size == 0) n = size = 1;
    return must_fail() ? NULL : counted(calloc(n, size));
}

void *msgl__realloc(void *p, size_t size)
{
    return must_fail() ? NULL : counted(realloc(p, size ? size : 1));
}

void *msgl__reallocarray(void *p, size_t n, size_t size)
{
    size_t bytes;
    if (msgl__size_mul(n, size, &bytes) != 0) return NULL;
    return msgl__realloc(p, bytes);
}

void *msgl__aligned_alloc(size_t align, size_t size)
{
    size_t padded;
    if (msgl__size_add(size ? size : 1, align - 1, &padded) != 0) return NULL;
    return must_fail() ? NULL : counted(aligned_alloc(align, padded & ~(align - 1)));
}

char *msgl__strndup(const char *s, size_t n)
{
    const size_t len = strnlen(s, n);
    char *p = msgl__malloc(len + 1);
    if (p == NULL) return NULL;
    memcpy(p, s, len);
    p[len] = '\0';
    return p;
}

char *msgl__strdup(const char *s)
{
    return msgl__strndup(s, strlen(s));
}

void msgl__free(void *p)
{
    free(p);
}

void msgl__mem_trim(void)
{
#ifdef __GLIBC__
    (void)malloc_trim(0);
#endif
}

uint64_t msgl__mem_allocs(void)
{
    return atomic_load_explicit(&g_allocs, memory_order_relaxed);
}

void msgl__mem_fail_from(uint64_t nth)
{
    atomic_store(&g_fail_in, nth);
}

static size_t huge_round(size_t size)
{
    return size > SIZE_MAX - HUGE_PAGE ? 0 : msgl__round_up(size, HUGE_PAGE);
}

void *msgl__pages_alloc(size_t size)
{
    const size_t bytes = huge_round(size ? size : 1);
    if (bytes == 0 || bytes > SIZE_MAX - HUGE_PAGE || must_fail()) return NULL;
    // Over-allocate by one huge page and trim, so that the region starts on a 2 MiB border and the
    // kernel can back all of it with huge pages (fewer TLB misses while weights stream by).
    char *p = mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    const size_t head = (HUGE_PAGE - ((uintptr_t)p & (HUGE_PAGE - 1))) & (HUGE_PAGE - 1);
    if (head > 0) munmap(p, head);
    if (head < HUGE_PAGE) munmap(p + head + bytes, HUGE_PAGE - head);
    p += head;
    madvise(p, bytes, MADV_HUGEPAGE); // a refusal only costs speed
    return p;
}

void msgl__pages_free(void *p, size_t size)
{
    if (p != NULL) munmap(p, huge_round(size ? size : 1));
}

int msgl__size_mul(size_t a, size_t b, size_t *out)
{
    return __builtin_mul_overflow(a, b, out) ? MSGL_ELIMIT : 0;
}

int msgl__size_add(size_t a, size_t b, size_t *out)
{
    return __builtin_add_overflow(a, b, out) ? MSGL_ELIMIT : 0;
}

void msgl__arena_init(msgl_arena *a, void *base, size_t size)
{
    *a = (msgl_arena){.base = base, .size = size};
}

void *msgl__arena_alloc(msgl_arena *a, size_t size)
{
    const size_t at = msgl__round_up(a->used, 64);
    if (at > a->size || size > a->size - at) return NULL;
    a->used = at + size;
    return a->base + at;
}
