// SPDX-License-Identifier: Apache-2.0
//
// How one request's tokens are chosen, as plain data: it crosses the process channel and is copied
// into every batch. Stop strings are not here: they are text, and belong to whoever detokenizes.
#ifndef MSGL_CORE_SAMPLING_PARAMS_H
#define MSGL_CORE_SAMPLING_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

#define MSGL_MAX_STOP_IDS 16
#define MSGL_MAX_LOGPROBS 20

typedef struct msgl_sampling_params {
    float temperature;  // 0: greedy; else logits are divided by it
    float top_p;        // (0, 1]; 1: off
    float min_p;        // [0, 1]; 0: off; keeps tokens with p >= min_p * max p
    int32_t top_k;      // 0: off
    uint64_t seed;      // with the token's position, determines the random number used for it
    int32_t max_tokens; // >= 1 tokens to generate at most
    bool ignore_eos;
    int32_t logprobs; // -1: none; 0..20: of the chosen token, and this many of the most likely
    int32_t prompt_logprobs; // -1: none; 0..20: the same for prompt tokens 1.. (echo)
    int32_t num_stop_ids;
    int32_t stop_ids[MSGL_MAX_STOP_IDS]; // finish with "stop" after one of these
} msgl_sampling_params;

// Greedy, 16 tokens, nothing else.
msgl_sampling_params msgl__sampling_params_default(void);
// Checks every field's range (NaN included) and stop ids against vocab_size. MSGL_EINVAL names the
// field, its value and what is allowed.
int msgl__sampling_params_check(const msgl_sampling_params *p, int vocab_size, msgl_err *err);

#endif
