// SPDX-License-Identifier: Apache-2.0
//
// The field logit_bias, in the two forms that clients send: OpenAI's object from token ids to
// values, {"50256": -100}, and llama-server's array of pairs, [[50256, -100]].
#ifndef MSGL_API_LOGIT_BIAS_H
#define MSGL_API_LOGIT_BIAS_H

#include <jansson.h>

#include "core/req_extra.h"

// v: the field, or NULL. *out as msgl__req_extra_create gives it; NULL for an absent, null or empty
// field. vocab_size INT32_MAX: not known here. MSGL_EINVAL says what is wrong and what is allowed.
int msgl__logit_bias_parse(const json_t *v, int vocab_size, msgl_req_extra **out, msgl_err *err);

#endif
