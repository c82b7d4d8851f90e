// SPDX-License-Identifier: Apache-2.0
//
// A request's row of a page table, which looks like the list of its keys' slots. A load that is
// asked for ahead takes the page alone, and the slot is made of it where it is wanted: arithmetic
// behind a load waits for it.
#ifndef MSGL_CUDA_ATTN_PAGE_ROW_CUH
#define MSGL_CUDA_ATTN_PAGE_ROW_CUH

#include "core/paging.h"

// The slot of place x, which is in this page.
static __device__ __forceinline__ int32_t msgl__page_slot(const msgl_paging &paging, int32_t page,
                                                          int32_t x)
{
    return page * paging.size + (x - msgl__paging_page(paging, x) * paging.size);
}

struct msgl_page_row {
    const int32_t *pages; // of all rows
    int32_t first;        // place of key 0 (cuda/attn/call.h)
    msgl_paging paging;

    __device__ __forceinline__ int32_t page(int32_t key) const
    {
        return pages[msgl__paging_page(paging, first + key)];
    }
    // The slot of a key, which is in this page.
    __device__ __forceinline__ int32_t slot(int32_t page, int32_t key) const
    {
        return msgl__page_slot(paging, page, first + key);
    }
    __device__ __forceinline__ int32_t operator[](int32_t key) const
    {
        return slot(page(key), key);
    }
};

// Row `row` of a call's page table. C: has table, table_stride and paging.
template <typename C>
static __device__ __forceinline__ msgl_page_row msgl__page_row(const C &c, int32_t row)
{
    return {c.table, row * (int32_t)c.table_stride, c.paging};
}

#endif
