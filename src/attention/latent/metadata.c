// SPDX-License-Identifier: Apache-2.0
#include "attention/latent/metadata.h"

#include <stdbool.h>

#include "core/round.h"

int32_t msgl__flashmla_num_sm_parts(int32_t workers, int32_t num_heads)
{
    const int32_t sched_meta = workers / msgl__ceil_div(num_heads, MSGL_FLASHMLA_ROWS);
    return sched_meta > 1 ? sched_meta : 1;
}

// Where the dealing has come to.
typedef struct place {
    int32_t req, block, split;
} place;

// Deals blocks worth `payload` from *at on.
static void deal(int32_t payload, int32_t bs, const int32_t *seqlens_k, place *at,
                 int32_t *num_splits)
{
    while (at->req < bs) {
        const int32_t blocks = msgl__ceil_div(seqlens_k[at->req], MSGL_FLASHMLA_BLOCK);
        const int32_t left = blocks - at->block, room = payload - MSGL_FLASHMLA_OVERHEAD;
        if (room < left) {
            if (room > 0) {
                at->block += room;
                at->split++;
            }
            return;
        }
        payload -= left + MSGL_FLASHMLA_OVERHEAD;
        num_splits[at->req + 1] = num_splits[at->req] + at->split + 1;
        *at = (place){.req = at->req + 1};
    }
}

void msgl__flashmla_metadata(int32_t num_sm_parts, int32_t bs, const int32_t *seqlens_k,
                             msgl_flashmla_sched_meta *sched_meta, int32_t *num_splits)
{
    int64_t cost = 0;
    for (int32_t i = 0; i < bs; i++) {
        cost += msgl__ceil_div(seqlens_k[i], MSGL_FLASHMLA_BLOCK) + MSGL_FLASHMLA_OVERHEAD;
    }
    // Every cut costs another overhead, which the addition pays for.
    const int32_t payload =
        (int32_t)((cost + num_sm_parts - 1) / num_sm_parts) + MSGL_FLASHMLA_OVERHEAD;
    place at = {0};
    num_splits[0] = 0;
    for (int32_t p = 0; p < num_sm_parts; p++) {
        const place from = at;
        deal(payload, bs, seqlens_k, &at, num_splits);
        const bool inside = at.block > 0;
        sched_meta[p] = (msgl_flashmla_sched_meta){.begin_req = from.req,
                                                   .begin_block = from.block,
                                                   .begin_split = from.split,
                                                   .end_req = inside ? at.req : at.req - 1};
        const int32_t last = sched_meta[p].end_req;
        if (inside) {
            sched_meta[p].end_block = at.block;
        } else if (last >= from.req) {
            sched_meta[p].end_block = msgl__ceil_div(seqlens_k[last], MSGL_FLASHMLA_BLOCK);
        }
    }
}
