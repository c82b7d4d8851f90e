// SPDX-License-Identifier: Apache-2.0
//
// Jina's and Cohere's dialect of reranking, and vLLM's of scores.
#ifndef MSGL_API_JINA_ENDPOINTS_H
#define MSGL_API_JINA_ENDPOINTS_H

#include "api/endpoint.h"

extern const msgl_endpoint msgl__endpoint_rerank;
extern const msgl_endpoint msgl__endpoint_rerank_short;
extern const msgl_endpoint msgl__endpoint_rerank_v2;
extern const msgl_endpoint msgl__endpoint_score;
extern const msgl_endpoint msgl__endpoint_score_short;

#endif
