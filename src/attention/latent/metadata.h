// SPDX-License-Identifier: Apache-2.0
//
// FlashMLA's scheduler metadata: how a decode batch's blocks of keys are dealt to a fixed number of
// workers. Each gets a run of neighbours, begun in the middle of one request and ended in the
// middle of another, of about equal cost; a request that is touched costs FLASHMLA_OVERHEAD blocks
// more. The fields and their meaning are those of FlashMLA's get_mla_metadata
// (deepseek-ai/FlashMLA).
#ifndef MSGL_ATTENTION_LATENT_METADATA_H
#define MSGL_ATTENTION_LATENT_METADATA_H

#include <stdint.h>

enum {
    MSGL_FLASHMLA_BLOCK = 64,   // keys: a page
    MSGL_FLASHMLA_ROWS = 64,    // query rows, that is heads, of one worker
    MSGL_FLASHMLA_OVERHEAD = 5, // blocks
};

// One worker's: blocks [begin_block, ...) of request begin_req to [..., end_block) of request
// end_req, all of those in between; end_req < begin_req: nothing. begin_split: which split of
// begin_req its own is.
typedef struct msgl_flashmla_sched_meta {
    int32_t begin_req, end_req, begin_block, end_block, begin_split;
} msgl_flashmla_sched_meta;

// Workers of one row block (FlashMLA's num_sm_parts), of `workers` in all: at least 1.
int32_t msgl__flashmla_num_sm_parts(int32_t workers, int32_t num_heads);

// sched_meta [num_sm_parts]; num_splits [bs + 1]: prefix sums of the splits of each request, each
// at least one: splits of 2, 1 and 3 give 0, 2, 3, 6. seqlens_k [bs], each at least 1. Every block
// of every request lies in exactly one split.
void msgl__flashmla_metadata(int32_t num_sm_parts, int32_t bs, const int32_t *seqlens_k,
                             msgl_flashmla_sched_meta *sched_meta, int32_t *num_splits);

#endif
