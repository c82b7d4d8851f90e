// SPDX-License-Identifier: Apache-2.0
//
// Log-probabilities as the two OpenAI endpoints write them: "content" of chat completions (token,
// logprob, bytes, top_logprobs), and the four parallel arrays of completions.
#ifndef MSGL_SERVER_LOGPROBS_H
#define MSGL_SERVER_LOGPROBS_H

#include "core/batch.h"
#include "server/api.h"
#include "tokenizer/tokenizer.h"

// Entries formatted and not yet written; zero-initialise, then init.
typedef struct msgl_logprobs {
    msgl_api_kind kind;
    int count;
    msgl_strbuf parts[4]; // chat: content; else tokens, token_logprobs, top_logprobs, text_offset
} msgl_logprobs;

void msgl__logprobs_init(msgl_logprobs *l, msgl_api_kind kind);
void msgl__logprobs_free(msgl_logprobs *l);
// offset: characters of the text before this token (completions). row NULL: the first token of an
// echoed prompt, `token`, which nothing predicts.
int msgl__logprobs_add(msgl_logprobs *l, const msgl_tokenizer *t, const msgl_token_logprobs *row,
                       int32_t token, size_t offset);
// Appends a copy of other's entries.
int msgl__logprobs_append(msgl_logprobs *l, const msgl_logprobs *other);
size_t msgl__logprobs_bytes(const msgl_logprobs *l); // of heap
// Appends the entries as the value of "logprobs" and forgets them.
int msgl__logprobs_put(msgl_logprobs *l, msgl_strbuf *out);

#endif
