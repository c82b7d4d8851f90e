// SPDX-License-Identifier: Apache-2.0
//
// Log-probabilities in the two forms of OpenAI's endpoints: the list "content" of chat completions
// (token, logprob, bytes, top_logprobs), and the four parallel arrays of completions. And in vLLM's
// form of a prompt's.
#ifndef MSGL_API_LOGPROBS_H
#define MSGL_API_LOGPROBS_H

#include "core/batch.h"
#include "tokenizer/tokenizer.h"
#include "utils/strbuf.h"

enum { MSGL_LOGPROBS_PARTS = 4 }; // at most

typedef struct msgl_logprobs_form msgl_logprobs_form;
extern const msgl_logprobs_form msgl__logprobs_content;  // {"content":[...],"refusal":null}
extern const msgl_logprobs_form msgl__logprobs_list;     // [...], of the same entries
extern const msgl_logprobs_form msgl__logprobs_with_ids; // the same with the tokens' ids
extern const msgl_logprobs_form msgl__logprobs_arrays;   // {"tokens":[...],...,"text_offset":[...]}
extern const msgl_logprobs_form msgl__logprobs_prompt;   // [null,{"ID":{...},...},...]
// SGLang's two lists, [[logprob,ID,null],...] and [[[logprob,ID,null],...],...]; with a token's
// text in place of null.
extern const msgl_logprobs_form msgl__logprobs_sglang, msgl__logprobs_sglang_text;

// Entries formatted and not yet written; zero-initialise, then init.
typedef struct msgl_logprobs {
    const msgl_logprobs_form *form;
    int count;
    msgl_strbuf parts[MSGL_LOGPROBS_PARTS]; // of each list, what stands between its brackets
} msgl_logprobs;

// form NULL: nothing will be added.
void msgl__logprobs_init(msgl_logprobs *l, const msgl_logprobs_form *form);
void msgl__logprobs_free(msgl_logprobs *l);
// offset: characters of the text before this token (arrays). row NULL: the first token of an
// echoed prompt, `token`, which nothing predicts.
int msgl__logprobs_add(msgl_logprobs *l, const msgl_tokenizer *t, const msgl_token_logprobs *row,
                       int32_t token, size_t offset);
// Appends SGLang's list of one row's tokens, values[i] being ids[i]'s: [[logprob,ID,null],...],
// with `text` their texts in place of null.
int msgl__logprobs_put_listed(msgl_strbuf *out, const msgl_tokenizer *t, const int32_t *ids,
                              int32_t n, const float *values, bool text);
// Appends a copy of other's entries.
int msgl__logprobs_append(msgl_logprobs *l, const msgl_logprobs *other);
size_t msgl__logprobs_bytes(const msgl_logprobs *l); // of heap
// Appends the entries of one of the lists, without brackets, and keeps them.
int msgl__logprobs_put_part(const msgl_logprobs *l, int part, msgl_strbuf *out);
// Appends the entries as the value of "logprobs" and forgets them.
int msgl__logprobs_put(msgl_logprobs *l, msgl_strbuf *out);

#endif
