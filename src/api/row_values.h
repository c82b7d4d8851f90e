// SPDX-License-Identifier: Apache-2.0
//
// What an answer shows beside log-probabilities, in SGLang's forms: those of listed tokens at every
// position, and the hidden state of every token. Rows of the prompt and of the answer apart.
#ifndef MSGL_API_ROW_VALUES_H
#define MSGL_API_ROW_VALUES_H

#include "api/api.h"
#include "tokenizer/tokenizer.h"

typedef struct msgl_job msgl_job;

typedef struct msgl_row_texts {
    const msgl_req_extra *extra; // borrowed: what is wanted; NULL: nothing
    int32_t hidden_size;
    bool text; // tokens have their texts
    // Entries with commas between them, without brackets around them.
    msgl_strbuf listed_prompt, listed;
    // hidden_prompt: states of the prompt's tokens, from which the tokens behind each are
    // predicted, [...],[...]; hidden: those of the answer's, a comma before each.
    msgl_strbuf hidden_prompt, hidden;
    size_t shared; // bytes of hidden_prompt that all choices have: without the last token's
} msgl_row_texts;

void msgl__row_texts_init(msgl_row_texts *t, const msgl_req_extra *extra, int32_t hidden_size,
                          bool text);
void msgl__row_texts_free(msgl_row_texts *t);
size_t msgl__row_texts_bytes(const msgl_row_texts *t);
// Takes over what `first`, another choice of the same prompt, has of it.
int msgl__row_texts_share(msgl_row_texts *t, const msgl_row_texts *first);
// values: of a row, or NULL: nothing predicts its token. hidden: position of the token that it
// predicts. Nothing where nothing is wanted.
int msgl__row_texts_listed(msgl_row_texts *t, const msgl_tokenizer *tokenizer, const float *values,
                           bool prompt);
int msgl__row_texts_hidden(msgl_row_texts *t, const float *values, int32_t position,
                           size_t prompt_len);
// Appends SGLang's [[[...] per token of the prompt],[...] per token of the answer].
int msgl__row_texts_put_hidden(const msgl_row_texts *t, msgl_strbuf *out);

// The fields "token_ids_logprob" (ids for all prompts, or a list of them or null for each; ignored
// without `logprobs`), "return_hidden_states", and "input_embeds", which makes the prompts:
// checked, and kept in *out for msgl__row_values_extras. 0, or MSGL_EINVAL with *e.
int msgl__row_values_parse(const json_t *o, bool logprobs, const msgl_api_config *cfg,
                           msgl_gen_request *out, msgl_api_error *e);
int msgl__embeds_parse(const json_t *embeds, const msgl_api_config *cfg, msgl_gen_request *out,
                       msgl_api_error *e);
// When extra is complete and the body's tree still there: adds them to it, or makes one for each
// prompt. 0, or MSGL_EINVAL with the job's error.
int msgl__row_values_extras(msgl_job *j);

#endif
