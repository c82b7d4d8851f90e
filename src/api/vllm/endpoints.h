// SPDX-License-Identifier: Apache-2.0
//
// vLLM's own dialect: labels, and what is asked of a tokenizer and a template.
#ifndef MSGL_API_VLLM_ENDPOINTS_H
#define MSGL_API_VLLM_ENDPOINTS_H

#include "api/endpoint.h"

extern const msgl_endpoint msgl__endpoint_classify;
extern const msgl_endpoint msgl__endpoint_tokenize;
extern const msgl_endpoint msgl__endpoint_detokenize;
extern const msgl_endpoint msgl__endpoint_apply_template;

#endif
