// SPDX-License-Identifier: Apache-2.0
//
// A vector in an answer.
#ifndef MSGL_API_OPENAI_EMBEDDINGS_H
#define MSGL_API_OPENAI_EMBEDDINGS_H

#include "api/fields.h"
#include "api/reply.h"
#include "core/batch.h"

// The row of the field that names what is put before each text.
#define MSGL_ROW_PROMPT_NAME                                                                       \
    {                                                                                              \
        "prompt_name", MSGL_FIELD_STRING, .preset = "the folder's `default_prompt_name`",          \
                                          .help = "the one of the prompts of the folder's "        \
                                                  "`config_sentence_transformers.json` that is "   \
                                                  "put before each text"                           \
    }

// What texts get before them that ask for nothing.
static inline const char *msgl__usual_prompt(const msgl_api_config *cfg)
{
    return cfg->prompts != NULL ? cfg->prompts->usual : NULL;
}

// "prompt_name", as sentence-transformers' encode() has it, into out->before: the prompt of that
// name, else the usual one. 0, or MSGL_EINVAL with *e.
int msgl__parse_prompt_name(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                            msgl_api_error *e);
// Has the engine make values of each token. param: the field that asks for it, NULL: the path does.
// 0, or MSGL_EINVAL with *e: the model has no such head.
int msgl__want_tokens(msgl_token_task task, const msgl_api_config *cfg, const char *param,
                      msgl_gen_request *out, msgl_api_error *e);

// Appends the first `dimensions` values of s (0: all), which it makes of length 1, as an array of
// numbers or as base64. 0, or the buffer's failure.
int msgl__embedding_put(msgl_sequence *s, int32_t dimensions, bool base64, msgl_strbuf *out);

#endif
