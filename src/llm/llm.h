// SPDX-License-Identifier: Apache-2.0
//
// What the offline API and the server's engine process share: from an engine to its scheduler's
// config, and the rendering of a chat.
#ifndef MSGL_LLM_LLM_H
#define MSGL_LLM_LLM_H

#include <minisgl/minisgl.h>

#include "engine/engine.h"
#include "scheduler/scheduler.h"
#include "template/chat_template.h"
#include "tokenizer/tokenizer.h"

msgl_engine *msgl__llm_engine(msgl_llm *l);
void msgl__llm_stats(const msgl_llm *l, msgl_msg_stats *out);
// Of the requests that are submitted from now on (message/message.h); at first 0.
void msgl__llm_set_salt(msgl_llm *l, uint64_t salt);
const msgl_chat_templates *msgl__llm_templates(const msgl_llm *l); // NULL: the model has none
void msgl__scheduler_config_of(msgl_engine *e, msgl_scheduler_config *out);
// A draft model's tokens have to be its target's: MSGL_EUNSUPPORTED names one that is not.
// `tokenizer`: the target's; NULL: it is loaded.
int msgl__check_draft_tokens(const msgl_options *o, const msgl_tokenizer *tokenizer, msgl_err *err);
// The fields that both have under one name, but for seed, max_tokens, logprobs and stop ids, whose
// "not given" differs.
void msgl__params_to_sampling(const msgl_params *p, msgl_sampling_params *out);
void msgl__params_from_sampling(const msgl_sampling_params *s, msgl_params *out);
// `json`: an object with "messages"; prompt: whether add_generation_prompt is true unless it says
// otherwise (transformers leaves it false, every server sets it).
int msgl__render_chat(const msgl_chat_templates *templates, const char *json, bool prompt,
                      msgl_rendered *out, msgl_err *err);

// The part of an event that belongs to its token t, or to none where it has none: the rows of the
// prompt go with the first, the finish with the last.
msgl_token_event msgl__token_event_at(const msgl_token_event *e, int32_t t);

#endif
