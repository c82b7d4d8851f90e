// SPDX-License-Identifier: Apache-2.0
//
// The page table's memory. Every row starts out pointing to the dummy page, so that a reader that
// goes past a request's length still reads memory of the pool.
#include "core/mem.h"
#include "core/round.h"
#include "kvcache/kvcache.h"

int msgl__page_table_create(int32_t max_running, int32_t max_seq_len, int32_t page_size,
                            int32_t dummy_page, msgl_page_table *out, msgl_err *err)
{
    *out = (msgl_page_table){0};
    if (max_running < 1 || max_running == INT32_MAX || max_seq_len < 1 || page_size < 1 ||
        dummy_page < 0) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "page table of %d requests, %d tokens, pages of %d, dummy page %d; "
                             "allowed: at least 1, 1, 1 and 0",
                             max_running, max_seq_len, page_size, dummy_page);
    }
    const int32_t stride = msgl__ceil_div(max_seq_len, page_size);
    size_t n, bytes;
    if (msgl__size_mul((size_t)max_running + 1, (size_t)stride, &n) != 0 ||
        msgl__size_mul(n, sizeof(int32_t), &bytes) != 0) {
        return msgl__err_set(err, MSGL_ELIMIT, "page table of %d requests x %d tokens is too large",
                             max_running, max_seq_len);
    }
    int32_t *pages = msgl__aligned_alloc(64, bytes);
    if (pages == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM,
                             "page table of %d requests x %d tokens: no memory for %zu bytes",
                             max_running, max_seq_len, bytes);
    }
    for (size_t i = 0; i < n; i++) pages[i] = dummy_page;
    *out = (msgl_page_table){.pages = pages,
                             .max_running = max_running,
                             .stride = stride,
                             .paging = msgl__paging_of(page_size)};
    return 0;
}

void msgl__page_table_destroy(msgl_page_table *t)
{
    if (t == NULL) return;
    msgl__free(t->pages);
    *t = (msgl_page_table){0};
}
