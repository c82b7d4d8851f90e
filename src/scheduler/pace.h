// SPDX-License-Identifier: Apache-2.0
//
// How many prompt tokens one step may compute. This is the only place where measured time enters a
// scheduling decision: msgl__pace_observe is called once per step with the engine's compute time.
// Ranks that must take the same decisions get rank 0's number for it, along with its messages.
// Why these rules: docs/decisions/006-pace.md and 056-prompts-keep-up.md.
#ifndef MSGL_SCHEDULER_PACE_H
#define MSGL_SCHEDULER_PACE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct msgl_pace {
    uint64_t answers_ns;  // of a step with answers only, smoothed; 0: none seen yet
    uint64_t chunk_ps;    // picoseconds per prompt token of steps without answers; 0: none seen
    uint64_t filling_ps;  // what one adds to a step with answers in its first two tiles, whose
                          // products wait for the weights; 0: none seen
    uint64_t riding_ps;   // what one adds beyond those; 0: none seen
    int32_t mixed_in_row; // steps with both, since one with answers only
} msgl_pace;

// What waits to be computed.
typedef struct msgl_pace_queue {
    int64_t tokens;     // of prompts
    int32_t prompts;    // that these are of
    int32_t first;      // tokens that complete the first of them
    int32_t answer_len; // tokens that an answer is expected to have, at least 1
} msgl_pace_queue;

// A step with num_answers answers and num_chunk prompt tokens, one of them at least 1, took
// compute_ns. tile: rows of one tile of the device's products; 0: unknown.
void msgl__pace_observe(msgl_pace *p, int32_t num_answers, int32_t num_chunk, int32_t tile,
                        uint64_t compute_ns);

// Prompt tokens for a step with num_answers answers, at most max_tokens. With answers, the step is
// kept within the gap between two tokens that a stream is promised: 1.8 times what the answers take
// alone, or 20 ms, which nobody sees, where that is longer; up to 60 ms while prompts wait for more
// than 30 such gaps. It may be longer, up to 2.75 times, where prompts would otherwise not keep up:
// n answers of a tokens end at n / a a step, so that prompts of p tokens have to be computed at
// n p / a a step for as many to begin (256 answers of 256 tokens and prompts of 512: 512). It takes
// half of what waits, so that a prompt is spread over two steps, but fills two tiles, whose
// products wait for the weights anyway. 0: this step has to show what answers take alone. Without
// answers it takes the first prompt to its end, or 40 ms, long enough to be efficient, so that
// there are answers soon that other prompts can ride with; but not more than half a second, so that
// an abort or a new request does not wait long. With `tile` > 0 the step's tokens are a multiple of
// it, where that leaves a chunk of some length.
int32_t msgl__pace_budget(const msgl_pace *p, int32_t num_answers, const msgl_pace_queue *queue,
                          int32_t tile, int32_t max_tokens);

#endif
