// SPDX-License-Identifier: Apache-2.0
//
// Ollama's dialect: what generates and embeds, and what is asked of the model.
// front/ollama_models.c has what is asked of the server.
#ifndef MSGL_API_OLLAMA_ENDPOINTS_H
#define MSGL_API_OLLAMA_ENDPOINTS_H

#include "api/endpoint.h"

extern const msgl_endpoint msgl__endpoint_ollama_chat;
extern const msgl_endpoint msgl__endpoint_ollama_generate;
extern const msgl_endpoint msgl__endpoint_ollama_embed;
extern const msgl_endpoint msgl__endpoint_ollama_embeddings;
extern const msgl_endpoint msgl__endpoint_ollama_show;

#endif
