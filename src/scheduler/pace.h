// SPDX-License-Identifier: Apache-2.0
//
// How many prompt tokens one step may compute. This is the only place where measured time enters a
// scheduling decision: msgl__pace_observe is called once per step with the engine's compute time.
// Ranks that must take the same decisions get rank 0's number for it, along with its messages.
#ifndef MSGL_SCHEDULER_PACE_H
#define MSGL_SCHEDULER_PACE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/batch.h"

typedef struct msgl_pace {
    uint64_t decode_ns;        // of a decode step, smoothed; 0: none seen yet
    uint64_t prefill_token_ps; // picoseconds per prompt token, smoothed; 0: none seen yet
} msgl_pace;

void msgl__pace_observe(msgl_pace *p, msgl_phase phase, int32_t num_tokens, uint64_t compute_ns);

// Prompt tokens for the next prefill step, at most max_tokens. With `decoding`, requests are
// waiting for their next token: decode steps and prefill steps alternate, and a prefill step is
// kept to about two decode steps, so that the gap between two tokens stays under four, or to 20 ms,
// a gap that nobody sees, where decode steps are much shorter than that (0: no decode step has been
// seen yet; the next step has to be one). Without, it is kept to half a second, which is long
// enough to be efficient and short enough for an abort or a new request not to wait long.
int32_t msgl__pace_budget(const msgl_pace *p, bool decoding, int32_t max_tokens);

#endif
