// SPDX-License-Identifier: Apache-2.0
//
// How one request's tokens are chosen, as plain data: it crosses the process channel and is copied
// into every batch. What varies in size is in core/req_extra.h. Stop strings are in neither: they
// are text, and belong to whoever detokenizes.
#ifndef MSGL_CORE_SAMPLING_PARAMS_H
#define MSGL_CORE_SAMPLING_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

#define MSGL_MAX_STOP_IDS 16
#define MSGL_MAX_LOGPROBS 20
#define MSGL_USUAL_MAX_TOKENS 16 // OpenAI's default of completions

// msgl__sampling_settings (core/settings.h) has the limits of the fields up to min_tokens.
typedef struct msgl_sampling_params {
    float temperature; // 0: greedy; else logits are divided by it
    float top_p;       // (0, 1]; 1: off
    float min_p;       // [0, 1]; 0: off; keeps tokens with p >= min_p * max p
    int32_t top_k;     // 0 or -1: off
    // Of tokens that are in the prompt or the answer, logits are divided by the first when
    // positive, else multiplied (Keskar et al. 2019, section 4.1); 1: off. Of those in the answer,
    // the second is taken off as often as they are, the third once (OpenAI's API reference); 0:
    // off.
    float repetition_penalty, frequency_penalty, presence_penalty;
    // llama.cpp's further samplers, in docs/sampling.md: 1, 0, -1, 0, 0 and 0 are off.
    float typical_p;
    float xtc_probability, xtc_threshold;
    float top_n_sigma;
    float dynatemp_range, dynatemp_exponent;
    float dry_multiplier, dry_base;
    int32_t dry_allowed_length, dry_penalty_last_n; // the latter: -1: prompt and answer
    int32_t mirostat;                               // 0 or 2
    float mirostat_tau, mirostat_eta;
    bool ignore_eos;
    int32_t min_tokens;  // as long as the answer has fewer, nothing that ends it is chosen
    int32_t speculative; // drafts in a step at most; -1: as many as pay; 0: none
    uint64_t seed;       // with the token's position, determines the random number used for it
    int32_t max_tokens;  // >= 1 tokens to generate at most
    int32_t logprobs;    // -1: none; 0..20: of the chosen token, and this many of the most likely
    int32_t prompt_logprobs; // -1: none; 0..20: the same for prompt tokens 1.. (echo)
    int32_t num_stop_ids;
    int32_t stop_ids[MSGL_MAX_STOP_IDS]; // finish with "stop" after one of these
} msgl_sampling_params;

// Whether the choice is made by one of these samplers, none of which but DRY changes a greedy one.
static inline bool msgl__sampling_has_chain(const msgl_sampling_params *p)
{
    return p->dry_multiplier > 0 ||
           (p->temperature > 0 &&
            (p->typical_p < 1 || p->xtc_probability > 0 || p->top_n_sigma > 0 ||
             p->dynatemp_range > 0 || p->mirostat != 0));
}

// Greedy, MSGL_USUAL_MAX_TOKENS, nothing else.
msgl_sampling_params msgl__sampling_params_default(void);
// The same with temperature 1: a model's own defaults where its files say nothing.
msgl_sampling_params msgl__sampling_params_plain(void);
// Checks every field's range (NaN included) and stop ids against vocab_size. MSGL_EINVAL names the
// field, its value and what is allowed.
int msgl__sampling_params_check(const msgl_sampling_params *p, int vocab_size, msgl_err *err);

#endif
