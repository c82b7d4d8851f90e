// SPDX-License-Identifier: Apache-2.0
//
// `store` and `previous_response_id` of a response: the conversation that goes on, and the one that
// is kept.
#ifndef MSGL_API_OPENAI_RESPONSES_KEPT_H
#define MSGL_API_OPENAI_RESPONSES_KEPT_H

#include "api/api.h"

// Puts the items of the earlier response, what was asked and what was answered, in front of o's
// "input". 0, or MSGL_EINVAL with *e: the client has no such response.
int msgl__responses_go_on(json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                          msgl_api_error *e);
// If the response is to be stored: o's "input", as items, into out->kept.
int msgl__responses_keep(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                         msgl_api_error *e);

#endif
