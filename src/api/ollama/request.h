// SPDX-License-Identifier: Apache-2.0
//
// What /api/chat and /api/generate have in common: their options, and the form of the answer, as
// fields of a chat completion.
#ifndef MSGL_API_OLLAMA_REQUEST_H
#define MSGL_API_OLLAMA_REQUEST_H

#include "api/fields.h"

extern const msgl_fields msgl__ollama_options, msgl__ollama_common;

// The body's options, form and thinking into the chat's body `chat`. 0, or MSGL_EINVAL with *e.
int msgl__ollama_convert(const json_t *o, json_t *chat, const msgl_api_config *cfg,
                         msgl_gen_request *out, msgl_api_error *e);
// An error of the chat's body is about the fields that the client gave.
void msgl__ollama_rename(const json_t *o, msgl_api_error *e);
// What they ask of an answer, where no chat completion reads it: there is no prompt, or a bare one.
int msgl__ollama_check(const json_t *o, const json_t *chat, const msgl_api_config *cfg,
                       msgl_gen_request *out, msgl_api_error *e);
// A body that was read so far: what is the same whatever the prompt is.
int msgl__ollama_finish(const json_t *o, msgl_gen_request *out, msgl_api_error *e);

#endif
