// SPDX-License-Identifier: Apache-2.0
//
// SGLang's form of /v1/score: how likely some tokens are behind a query and each of several items.
#ifndef MSGL_API_SGLANG_SCORE_H
#define MSGL_API_SGLANG_SCORE_H

#include "api/known_fields.h"
#include "api/reply.h"

extern const msgl_fields msgl__token_score_fields;

// Reads its fields; the engine is one that answers. 0, or MSGL_EINVAL with *e.
int msgl__token_scores_parse(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                             bool *softmax, msgl_api_error *e);
// The answer. softmax: of the tokens' log-probabilities alone; else the probabilities that they
// have among all. all: [r->num_choices].
int msgl__token_scores_put(const msgl_reply *r, const msgl_sequence *const *all, bool softmax,
                           int64_t cached, msgl_strbuf *out);

#endif
