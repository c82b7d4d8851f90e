// SPDX-License-Identifier: Apache-2.0
#include "program/endpoints.h"

#include <stddef.h>

#include "api/anthropic/endpoints.h"
#include "api/jina/endpoints.h"
#include "api/llama_server/endpoints.h"
#include "api/ollama/endpoints.h"
#include "api/openai/endpoints.h"
#include "api/sglang/endpoints.h"
#include "api/tei/endpoints.h"
#include "api/vllm/endpoints.h"
#include "front/endpoints.h"
#ifdef MSGL_APP_BATCHES
#include "apps/batches/endpoints.h"
#endif
#ifdef MSGL_APP_PAGE
#include "apps/page/endpoints.h"
#endif

const msgl_endpoint *const msgl__endpoints[] = {
    &msgl__endpoint_chat,
    &msgl__endpoint_completion,
    &msgl__endpoint_generate,
    &msgl__endpoint_messages,
    &msgl__endpoint_count_tokens,
    &msgl__endpoint_responses,
    &msgl__endpoint_input_tokens,
    &msgl__endpoint_response,
    &msgl__endpoint_embeddings,
    &msgl__endpoint_rerank,
    &msgl__endpoint_rerank_short,
    &msgl__endpoint_rerank_v2,
    &msgl__endpoint_score,
    &msgl__endpoint_score_short,
    &msgl__endpoint_classify,
    &msgl__endpoint_pooling,
    &msgl__endpoint_embed_sparse,
    &msgl__endpoint_tokenize,
    &msgl__endpoint_detokenize,
    &msgl__endpoint_apply_template,
    &msgl__endpoint_health,
    &msgl__endpoint_ready,
    &msgl__endpoint_models,
    &msgl__endpoint_model,
    &msgl__endpoint_v1,
    &msgl__endpoint_version,
    &msgl__endpoint_tokenizer_info,
    &msgl__endpoint_get_model_info,
    &msgl__endpoint_model_info,
    &msgl__endpoint_get_server_info,
    &msgl__endpoint_server_info,
    &msgl__endpoint_get_load,
    &msgl__endpoint_flush_cache,
    &msgl__endpoint_abort_request,
    &msgl__endpoint_pause_generation,
    &msgl__endpoint_continue_generation,
    &msgl__endpoint_update_weights_from_disk,
    &msgl__endpoint_update_weights_from_tensor,
    &msgl__endpoint_update_weights_from_distributed,
    &msgl__endpoint_init_weights_update_group,
    &msgl__endpoint_destroy_weights_update_group,
    &msgl__endpoint_update_weight_version,
    &msgl__endpoint_get_weight_version,
    &msgl__endpoint_weight_version,
    &msgl__endpoint_release_memory_occupation,
    &msgl__endpoint_resume_memory_occupation,
    &msgl__endpoint_sleep,
    &msgl__endpoint_wake_up,
    &msgl__endpoint_is_sleeping,
    &msgl__endpoint_load_lora,
    &msgl__endpoint_unload_lora,
    &msgl__endpoint_load_lora_sglang,
    &msgl__endpoint_unload_lora_sglang,
    &msgl__endpoint_metrics,
    &msgl__endpoint_radix_tree,
    &msgl__endpoint_llama_completion,
    &msgl__endpoint_llama_infill,
    &msgl__endpoint_llama_props,
    &msgl__endpoint_llama_slots,
    &msgl__endpoint_ollama_chat,
    &msgl__endpoint_ollama_generate,
    &msgl__endpoint_ollama_embed,
    &msgl__endpoint_ollama_embeddings,
    &msgl__endpoint_ollama_show,
    &msgl__endpoint_ollama_tags,
    &msgl__endpoint_ollama_ps,
    &msgl__endpoint_ollama_version,
    &msgl__endpoint_ollama_pull,
    &msgl__endpoint_ollama_push,
    &msgl__endpoint_ollama_create,
    &msgl__endpoint_ollama_copy,
    &msgl__endpoint_ollama_delete,
#ifdef MSGL_APP_PAGE
    &msgl__endpoint_page,
#endif
#ifdef MSGL_APP_BATCHES
    &msgl__endpoint_files,
    &msgl__endpoint_batches,
    &msgl__endpoint_batch,
    &msgl__endpoint_file,
#endif
    NULL,
};

#ifdef MSGL_APP_BATCHES
const msgl_guest *const msgl__program_batches = &msgl__batches_guest;
#else
const msgl_guest *const msgl__program_batches = NULL;
#endif
