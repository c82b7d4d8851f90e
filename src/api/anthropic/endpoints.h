// SPDX-License-Identifier: Apache-2.0
//
// Anthropic's dialect.
#ifndef MSGL_API_ANTHROPIC_ENDPOINTS_H
#define MSGL_API_ANTHROPIC_ENDPOINTS_H

#include "api/endpoint.h"

extern const msgl_endpoint msgl__endpoint_messages;
extern const msgl_endpoint msgl__endpoint_count_tokens;

#endif
