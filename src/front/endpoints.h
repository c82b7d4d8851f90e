// SPDX-License-Identifier: Apache-2.0
//
// What is asked of the server itself.
#ifndef MSGL_FRONT_ENDPOINTS_H
#define MSGL_FRONT_ENDPOINTS_H

#include "api/endpoint.h"

extern const msgl_endpoint msgl__endpoint_health;
extern const msgl_endpoint msgl__endpoint_ready;
extern const msgl_endpoint msgl__endpoint_models;
extern const msgl_endpoint msgl__endpoint_model;
extern const msgl_endpoint msgl__endpoint_v1;
extern const msgl_endpoint msgl__endpoint_version;
extern const msgl_endpoint msgl__endpoint_tokenizer_info;
extern const msgl_endpoint msgl__endpoint_get_model_info;
extern const msgl_endpoint msgl__endpoint_model_info;
extern const msgl_endpoint msgl__endpoint_get_server_info;
extern const msgl_endpoint msgl__endpoint_server_info;
extern const msgl_endpoint msgl__endpoint_get_load;
extern const msgl_endpoint msgl__endpoint_flush_cache;
extern const msgl_endpoint msgl__endpoint_abort_request;
extern const msgl_endpoint msgl__endpoint_load_lora;
extern const msgl_endpoint msgl__endpoint_unload_lora;
extern const msgl_endpoint msgl__endpoint_load_lora_sglang;
extern const msgl_endpoint msgl__endpoint_unload_lora_sglang;
extern const msgl_endpoint msgl__endpoint_metrics;
extern const msgl_endpoint msgl__endpoint_radix_tree;
extern const msgl_endpoint msgl__endpoint_response;
extern const msgl_endpoint msgl__endpoint_llama_props;
extern const msgl_endpoint msgl__endpoint_llama_slots;
extern const msgl_endpoint msgl__endpoint_ollama_tags;
extern const msgl_endpoint msgl__endpoint_ollama_ps;
extern const msgl_endpoint msgl__endpoint_ollama_version;
extern const msgl_endpoint msgl__endpoint_ollama_pull;
extern const msgl_endpoint msgl__endpoint_ollama_push;
extern const msgl_endpoint msgl__endpoint_ollama_create;
extern const msgl_endpoint msgl__endpoint_ollama_copy;
extern const msgl_endpoint msgl__endpoint_ollama_delete;

#endif
