// SPDX-License-Identifier: Apache-2.0
//
// llama-server's own dialect: what generates. front/llama_server.c has what is asked of the server;
// its forms of /tokenize, /detokenize and /apply-template are vllm/tokenize.c's, too.
#ifndef MSGL_API_LLAMA_SERVER_ENDPOINTS_H
#define MSGL_API_LLAMA_SERVER_ENDPOINTS_H

#include "api/endpoint.h"

extern const msgl_endpoint msgl__endpoint_llama_completion;
extern const msgl_endpoint msgl__endpoint_llama_infill;

#endif
