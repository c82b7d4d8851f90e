// SPDX-License-Identifier: Apache-2.0
//
// What an answer's next token is chosen from, where that is not a grammar's business: tokens that
// an answer is made of (allowed_token_ids), sequences that it does not have (bad_words), and, until
// it has min_tokens, no token that ends it.
#ifndef MSGL_SCHEDULER_TOKEN_MASKS_H
#define MSGL_SCHEDULER_TOKEN_MASKS_H

#include <stdbool.h>

#include "core/err.h"
#include "core/req_extra.h"
#include "core/sampling_params.h"

typedef struct msgl_token_masks msgl_token_masks;

// *out NULL: every token is allowed at any time. MSGL_EINVAL: none may be left at some time;
// MSGL_ENOMEM. ends: tokens that end an answer, beside p's stop_ids. x (or NULL) outlives *out.
int msgl__token_masks_create(int32_t vocab_size, const int32_t *ends, int32_t num_ends,
                             const msgl_sampling_params *p, const msgl_req_extra *x,
                             msgl_token_masks **out, msgl_err *err);
void msgl__token_masks_destroy(msgl_token_masks *m); // NULL allowed
// Whether a mask depends on the tokens before, so that all of them have to be known.
bool msgl__token_masks_look_back(const msgl_token_masks *m); // NULL allowed
// For the token behind answer[0, n): [ceil(vocab_size / 32)] until the next call, or NULL: any.
// Only of masks that look back is `answer` read.
const uint32_t *msgl__token_masks_at(msgl_token_masks *m, const int32_t *answer, int32_t n);

#endif
