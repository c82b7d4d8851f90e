// SPDX-License-Identifier: Apache-2.0
#include "cuda/backends/auto.h"

#include <stdlib.h>

#include "core/attributes.h"

static const struct row {
    int32_t capability; // 0: the end
    msgl_phase phase;
    int32_t head_dim, group, page_size;
    const char *names[MSGL_ATTN_AUTO_NAMES];
} TABLE[] = {
#include "cuda/backends/auto_table.inc"
    {.capability = 0},
};

const char *const *msgl__attn_measured(const msgl_attn_needs *n, msgl_phase phase)
{
    const int32_t group = n->num_kv_heads > 0 ? n->num_q_heads / n->num_kv_heads : 1;
    const struct row *best = NULL;
    if (n->kv_dtype == MSGL_E4M3) return NULL; // the table is of caches of 16 bits
    for (const struct row *r = TABLE; r->capability != 0; r++) {
        if (r->capability != n->capability || r->phase != phase || r->head_dim != n->head_dim ||
            r->page_size > n->page_size) {
            continue;
        }
        if (best != NULL) {
            const int32_t far = abs(r->group - group), near = abs(best->group - group);
            if (far > near || (far == near && r->page_size <= best->page_size)) continue;
        }
        best = r;
    }
    return best != NULL ? best->names : NULL;
}
