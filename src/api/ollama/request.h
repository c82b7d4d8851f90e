// SPDX-License-Identifier: Apache-2.0
//
// What /api/chat and /api/generate have in common: their options and the form of the answer, which
// become fields of a chat completion.
#ifndef MSGL_API_OLLAMA_REQUEST_H
#define MSGL_API_OLLAMA_REQUEST_H

#include "api/fields.h"

extern const msgl_fields msgl__ollama_options, msgl__ollama_common;

// Adds the body's options, form and thinking to the chat's body `chat`. 0, or MSGL_EINVAL with *e.
int msgl__ollama_convert(const json_t *o, json_t *chat, const msgl_api_config *cfg,
                         msgl_gen_request *out, msgl_api_error *e);
// Renames the fields of the chat's body in an error to those that the client gave.
void msgl__ollama_rename(const json_t *o, msgl_api_error *e);
// Reads what the body asks of an answer where it is not read as a chat completion: it has no
// prompt, or one that no template is made of.
int msgl__ollama_check(const json_t *o, const json_t *chat, const msgl_api_config *cfg,
                       msgl_gen_request *out, msgl_api_error *e);
// Reads what is the same whatever the prompt is, after all else was read.
int msgl__ollama_finish(const json_t *o, msgl_gen_request *out, msgl_api_error *e);

#endif
