// SPDX-License-Identifier: Apache-2.0
//
// OpenAI's dialect.
#ifndef MSGL_API_OPENAI_ENDPOINTS_H
#define MSGL_API_OPENAI_ENDPOINTS_H

#include "api/endpoint.h"

extern const msgl_endpoint msgl__endpoint_chat;
extern const msgl_endpoint msgl__endpoint_completion;
extern const msgl_endpoint msgl__endpoint_responses;
extern const msgl_endpoint msgl__endpoint_input_tokens;
extern const msgl_endpoint msgl__endpoint_pooling;
extern const msgl_endpoint msgl__endpoint_embeddings;

#endif
