// SPDX-License-Identifier: Apache-2.0
//
// Adds up what ranks with parts of a layer's experts have. Where a token's experts are with few of
// the ranks, most of what an all_reduce would move is zeros. Then each rank sends the rows that it
// has to the rank in whose shard of the rows they are (all_to_all); that one adds them, in rank
// order as an all_reduce does, and all gather the shards. The sums are the same either way.
// Fewer rows than ranks are not worth the second barrier.
#ifndef MSGL_LAYERS_EXPERT_SUM_H
#define MSGL_LAYERS_EXPERT_SUM_H

#include "layers/forward.h"

// Whether rows may be exchanged: ranks have experts of their own, and enough of them.
bool msgl__experts_exchange(const msgl_moe_experts *e);
// Step arena bytes of msgl__expert_sum for up to `rows` rows.
size_t msgl__expert_sum_bytes(const msgl_moe_experts *e, int32_t rows);
// partial [rows, hidden]: this rank's; of rows with none of its experts zeros. ids [rows, top_k]:
// the experts, the same on all ranks. Returns the sum over the ranks, in the step arena, or NULL:
// an all_reduce moves less, or the step has failed.
void *msgl__expert_sum(msgl_forward *f, const msgl_moe_experts *e, const int32_t *ids,
                       void *partial, int32_t rows);

#endif
