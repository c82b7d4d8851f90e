// SPDX-License-Identifier: Apache-2.0
//
// The first byte chooses the endpoint and the forms of tools and thoughts, the rest is a request's
// body: it is parsed, rendered by the demo model's template and made into token ids, as a worker
// does. What comes out is what the engine can take, or an error to a client.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "api/endpoint.h"
#include "api/job.h"
#include "api/openai/endpoints.h"
#include "api/anthropic/endpoints.h"
#include "api/sglang/endpoints.h"
#include "api/vllm/endpoints.h"
#include "api/jina/endpoints.h"
#include "api/llama_server/endpoints.h"
#include "api/ollama/endpoints.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_SEQ_LEN = 2048, MAX_BODY = 1 << 16 };

static const msgl_endpoint *const KINDS[] = {
    &msgl__endpoint_chat,       &msgl__endpoint_completion,     &msgl__endpoint_generate,
    &msgl__endpoint_messages,   &msgl__endpoint_responses,      &msgl__endpoint_tokenize,
    &msgl__endpoint_detokenize, &msgl__endpoint_apply_template,
};
enum { NUM_KINDS = sizeof KINDS / sizeof KINDS[0] };

// Of models that pool: the last values of the first byte, first of an embedder, then of a reranker.
static const msgl_endpoint *const POOLED[] = {
    &msgl__endpoint_embeddings, &msgl__endpoint_rerank, &msgl__endpoint_score,
    &msgl__endpoint_embeddings, &msgl__endpoint_rerank, &msgl__endpoint_score};
enum { NUM_POOLED = sizeof POOLED / sizeof POOLED[0], FIRST_POOLED = 256 - NUM_POOLED };

// Others that answer: the values before these.
static const msgl_endpoint *const MORE[] = {
    &msgl__endpoint_ollama_chat, &msgl__endpoint_ollama_generate, &msgl__endpoint_ollama_show,
    &msgl__endpoint_llama_completion, &msgl__endpoint_llama_infill};
enum { NUM_MORE = sizeof MORE / sizeof MORE[0], FIRST_MORE = FIRST_POOLED - NUM_MORE };

static void require(bool ok)
{
    if (!ok) __builtin_trap();
}

static void check_result(const msgl_job *j, int32_t vocab)
{
    if (j->rc != 0) {
        msgl_strbuf out;
        msgl__strbuf_init(&out, MAX_BODY);
        require(j->error.status >= 400 && j->error.message[0] != '\0');
        require(msgl__api_error_put(&j->error, &out) == 0);
        json_t *o = json_loadb(out.data, out.len, 0, NULL);
        require(o != NULL);
        json_decref(o);
        msgl__strbuf_free(&out);
        return;
    }
    if (msgl__endpoint_ends_here(j->ep, &j->req)) return;
    msgl_sampling_params p = j->req.sampling;
    p.min_tokens = 0; // compared by the engine's side, with the room that an answer has
    require(msgl__sampling_params_check(&p, vocab, NULL) == 0);
    require(j->req.root == NULL && j->req.num_prompts >= 1);
    const size_t most = j->ep->pooled ? MAX_SEQ_LEN : MAX_SEQ_LEN - 1;
    for (int i = 0; i < j->req.num_prompts; i++) {
        const msgl_ids *ids = &j->ids[i];
        require(ids->len > 0 && ids->len <= most);
        for (size_t k = 0; k < ids->len; k++) require(ids->data[k] >= 0 && ids->data[k] < vocab);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static msgl_tokenizer *tokenizer;
    static msgl_chat_templates *templates;
    static const char *const TOOLS[] = {"hermes", "gpt-oss", "llama3", "none"};
    static const char *const THOUGHTS[] = {"qwen3", "gpt-oss", "mistral", "none"};
    if (size == 0 || size > MAX_BODY) return 0;
    if (tokenizer == NULL) {
        require(msgl__tokenizer_load(MSGL_SOURCE_DIR "/models/demo", &tokenizer, NULL) == 0);
        require(msgl__chat_templates_load(MSGL_SOURCE_DIR "/models/demo", &templates, NULL) == 0);
    }
    const int32_t vocab = msgl__tokenizer_vocab_size(tokenizer);
    msgl_budget budget;
    msgl__budget_init(&budget, (size_t)64 << 20);
    msgl_job *j = msgl__calloc(1, sizeof *j);
    require(j != NULL);
    const bool pooled = data[0] >= FIRST_POOLED;
    j->ep = pooled                  ? POOLED[data[0] - FIRST_POOLED]
            : data[0] >= FIRST_MORE ? MORE[data[0] - FIRST_MORE]
                                    : KINDS[data[0] % NUM_KINDS];
    j->config = (msgl_api_config){
        .model_name = "m",
        .model_path = "/models/m",
        .defaults = msgl__sampling_params_default(),
        .vocab_size = vocab,
        .pooled_size = pooled ? 64 : 0,
        .reranks = data[0] >= FIRST_POOLED + NUM_POOLED / 2,
        .tool_form = msgl__tool_form(TOOLS[data[0] / 8 % 4], NULL),
        .reasoning_form = msgl__reasoning_form(THOUGHTS[data[0] / 32 % 4], NULL),
        .unknown_fields = (msgl_unknown_fields)(data[0] % 3),
        .trust_template = true,
        .tool_form_auto = true,
        .reasoning_form_auto = true,
    };
    j->max_seq_len = MAX_SEQ_LEN;
    j->claim.budget = &budget;
    msgl__strbuf_init(&j->body, MAX_BODY);
    require(msgl__strbuf_add(&j->body, (const char *)data + 1, size - 1) == 0);
    msgl__claim_count(&j->claim, j->body.cap);
    msgl__job_run(j, tokenizer, templates);
    check_result(j, vocab);
    msgl__job_free(j);
    require(atomic_load(&budget.used) == 0);
    return 0;
}
