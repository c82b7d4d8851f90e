// SPDX-License-Identifier: Apache-2.0
//
// From positions to slots: position p of a row of a page table is in slot
//     pages[p / page_size] * page_size + p % page_size.
// Who needs a slot makes it here; everything else speaks of pages.
#ifndef MSGL_CORE_PAGING_H
#define MSGL_CORE_PAGING_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define MSGL_PAGING_FN static __host__ __device__ __forceinline__
#else
#define MSGL_PAGING_FN static inline
#endif

// A page size, 1 to 2^20, and what divides by it: x / size is the upper half of 2 x * factor,
// shifted right, for 0 <= x < 2^31 (Granlund and Montgomery 1994, theorem 4.2). Of 48: shift 6,
// factor 2863311531; 100 / 48 = (200 * 2863311531 >> 32) >> 6 = 133 >> 6 = 2.
typedef struct msgl_paging {
    int32_t size, shift; // 2^shift >= size > 2^(shift - 1)
    uint32_t factor;     // floor(2^(31 + shift) / size) + 1
} msgl_paging;

static inline msgl_paging msgl__paging_of(int32_t page_size)
{
    msgl_paging p = {page_size, 0, 0};
    while (INT32_C(1) << p.shift < page_size) p.shift++;
    p.factor = (uint32_t)((UINT64_C(1) << (31 + p.shift)) / (uint64_t)page_size + 1);
    return p;
}

// x / size.
MSGL_PAGING_FN int32_t msgl__paging_page(msgl_paging p, int32_t x)
{
    return (int32_t)((uint32_t)((uint64_t)(2 * (uint32_t)x) * p.factor >> 32) >> p.shift);
}

// The slot of position x of a row.
MSGL_PAGING_FN int32_t msgl__paging_slot(msgl_paging p, const int32_t *pages, int32_t x)
{
    const int32_t page = msgl__paging_page(p, x);
    return pages[page] * p.size + (x - page * p.size);
}

// The slots of positions [first, first + n) of a row.
static inline void msgl__paging_slots(int32_t page_size, const int32_t *pages, int32_t first,
                                      int32_t n, int32_t *slots)
{
    if (page_size == 1) {
        memcpy(slots, pages + first, (size_t)n * sizeof *slots);
        return;
    }
    int32_t page = first / page_size, entry = first % page_size;
    for (int32_t i = 0; i < n; page++, entry = 0) {
        const int32_t slot = pages[page] * page_size;
        for (; entry < page_size && i < n; entry++) slots[i++] = slot + entry;
    }
}

#endif
