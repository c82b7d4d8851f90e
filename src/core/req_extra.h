// SPDX-License-Identifier: Apache-2.0
//
// The part of a request whose size varies from one to the next. It is made once, where the request
// is parsed, does not change afterwards, and is counted instead of copied: message, scheduler and
// the batches in flight point to the same block, and the last one to let go frees it. Requests
// without such a part have NULL.
#ifndef MSGL_CORE_REQ_EXTRA_H
#define MSGL_CORE_REQ_EXTRA_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "core/sampling_params.h"

#define MSGL_MAX_LOGIT_BIAS 1024 // entries of one request
#define MSGL_LOGIT_BIAS_RANGE 100.0f
#define MSGL_MAX_ALLOWED_TOKENS 16384
#define MSGL_MAX_DRY_BREAKERS 65536
#define MSGL_MAX_BANNED 8192 // numbers: of each sequence its length and its tokens
#define MSGL_MAX_LISTED 2048 // tokens whose log-probabilities one request wants at every row
#define MSGL_MAX_EMBED_VALUES ((int64_t)12 << 20) // floats of one prompt: 48 MiB of a message

typedef struct msgl_req_extra {
    atomic_int refs;
    int32_t num_bias;
    msgl_grammar_kind grammar_kind; // MSGL_GRAMMAR_NONE: the answer may be anything
    const char *grammar;            // in this block, NUL-terminated; "" with MSGL_GRAMMAR_NONE
    // The same: what may come before that text or in its place, as grammar/stages.h has it; "":
    // nothing.
    const char *stages;
    int32_t num_allowed, num_banned, num_breakers, num_listed;
    // Of a pair of texts: tokens from this one on are the second's, whose embedding of token types
    // is another (BERT's segment B); 0: there is no second.
    int32_t pair_from;
    int32_t token_task;     // msgl_token_task
    int32_t pool_from;      // tokens before this one are not in the text's vector
    const int32_t *allowed; // in this block: the tokens that an answer is made of; none: all
    // In this block: sequences that no answer has, one behind the other, each with its length
    // before it.
    const int32_t *banned;
    const int32_t *breakers; // in this block: tokens behind which DRY sees no repeat
    // What each row of log-probabilities (msgl_token_logprobs) has beside it: those of `listed`
    // tokens, in this block, in their order, and, with `hidden`, the hidden state that the row was
    // predicted from, behind the final norm.
    const int32_t *listed;
    bool hidden;
    // In this block: [num_embeds, embed_dim] what the prompt's tokens enter the first layer as, in
    // place of their rows of the embedding. num_embeds is 0 or the prompt's length.
    int32_t num_embeds, embed_dim;
    const float *embeds;
    msgl_bias bias[]; // ascending tokens, each once; values within +-MSGL_LOGIT_BIAS_RANGE
} msgl_req_extra;

// Whether a request's own tokens or its bias change its logits. extra: or NULL.
static inline bool msgl__sampling_adjusts(const msgl_sampling_params *p,
                                          const msgl_req_extra *extra)
{
    return (extra != NULL && extra->num_bias > 0) || p->repetition_penalty != 1 ||
           p->frequency_penalty != 0 || p->presence_penalty != 0;
}

// What a block is made of; everything is copied.
typedef struct msgl_req_extra_parts {
    const msgl_bias *bias;
    int64_t num_bias;
    msgl_grammar_kind grammar_kind;
    const char *grammar; // NULL: ""; not looked at
    const char *stages;  // the same
    const int32_t *allowed;
    int64_t num_allowed;
    const int32_t *banned;
    int64_t num_banned;
    const int32_t *breakers;
    int64_t num_breakers;
    int32_t pair_from, token_task, pool_from;
    const int32_t *listed;
    int64_t num_listed;
    bool hidden;
    const float *embeds;
    int64_t num_embeds, embed_dim;
} msgl_req_extra_parts;

// A block with the count 1 from entries in any order, or *out NULL when there are none. MSGL_EINVAL
// names "logit_bias" and what is wrong with it: too many entries, a token outside the vocabulary or
// twice, a value out of range (NaN is); MSGL_ENOMEM.
int msgl__req_extra_create(const msgl_bias *bias, int64_t num_bias, int vocab_size,
                           msgl_req_extra **out, msgl_err *err);
// The same of all that there may be; MSGL_EINVAL names allowed_token_ids, bad_words or
// dry_sequence_breakers, token_ids_logprob or input_embeds, too.
int msgl__req_extra_create_with(const msgl_req_extra_parts *parts, int vocab_size,
                                msgl_req_extra **out, msgl_err *err);
// What x (NULL: nothing) was made of, in x.
msgl_req_extra_parts msgl__req_extra_parts_of(const msgl_req_extra *x);
// Whether a block that was made without knowing the vocabulary (INT32_MAX) fits it: 0 or
// MSGL_EINVAL.
int msgl__req_extra_check(const msgl_req_extra *x, int vocab_size, msgl_err *err);
// Whether each token depends on those before it: there is a grammar, or are stages. x may be NULL.
bool msgl__req_extra_constrains(const msgl_req_extra *x);
// Whether there is something for how an answer is chosen: more than where a second text begins. The
// same.
bool msgl__req_extra_answers(const msgl_req_extra *x);
// Values that each of its rows of log-probabilities has beside it, of a model of so many hidden
// ones. x may be NULL.
int32_t msgl__req_extra_row_values(const msgl_req_extra *x, int32_t hidden_size);
size_t msgl__req_extra_bytes(const msgl_req_extra *x);  // that the block takes; of NULL 0
msgl_req_extra *msgl__req_extra_ref(msgl_req_extra *x); // x; NULL allowed
void msgl__req_extra_unref(msgl_req_extra *x);          // NULL allowed

#endif
