// SPDX-License-Identifier: Apache-2.0
//
// The input of /v1/responses as the messages of a chat.
#ifndef MSGL_API_OPENAI_RESPONSES_INPUT_H
#define MSGL_API_OPENAI_RESPONSES_INPUT_H

#include "api/api.h"

// The body's "instructions" and "input" into chat's "messages". 0, or MSGL_EINVAL with *e.
int msgl__responses_put_input(const json_t *o, json_t *chat, msgl_api_error *e);

// What a function of a namespace is called in a chat, which has none: SPACE__NAME. Two strings; the
// caller's reference, NULL: no memory.
json_t *msgl__responses_flat_name(const json_t *space, const json_t *name);

#endif
