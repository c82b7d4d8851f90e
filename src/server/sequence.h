// SPDX-License-Identifier: Apache-2.0
//
// One choice of an answer: from the engine's token events to text that may be shown, with stop
// strings cut, and log-probabilities in step with that text. No sockets.
#ifndef MSGL_SERVER_SEQUENCE_H
#define MSGL_SERVER_SEQUENCE_H

#include "message/message.h"
#include "server/logprobs.h"

typedef struct msgl_sequence {
    const msgl_gen_request *req; // borrowed
    const msgl_tokenizer *tokenizer;
    const msgl_ids *prompt; // borrowed
    msgl_detok *detok;
    msgl_stop stop;
    msgl_strbuf text;       // shown text that the caller has not taken (cleared) yet
    msgl_logprobs logprobs; // the same of log-probabilities
    bool want_logprobs;
    int32_t cached_tokens, completion_tokens;
    bool started;                   // an event has come
    const char *finish;             // "stop", "length"; NULL: not finished
    bool first_shown, finish_shown; // the caller's: what the client was told

    struct msgl_pending *pending; // log-probabilities of text that is still held back
    int num_pending, cap_pending;
    msgl_strbuf piece;
    size_t detok_bytes, shown_bytes; // generated text so far, and how much of it was released
    size_t chars;                    // characters of echo and generated text so far
    msgl_detok *prompt_detok;        // offsets of an echoed prompt's tokens
    size_t prompt_chars;
    int32_t prompt_rows; // tokens of the prompt that have their entry
} msgl_sequence;

// All borrowed things must outlive *s. MSGL_ENOMEM, MSGL_EINVAL (an echoed id that has no text).
int msgl__sequence_init(msgl_sequence *s, const msgl_gen_request *req, int prompt_index,
                        const msgl_ids *prompt, const msgl_tokenizer *tokenizer);
void msgl__sequence_free(msgl_sequence *s); // zero-initialised allowed

// Handles an event that is not an error. 0, MSGL_ENOMEM, MSGL_ELIMIT.
int msgl__sequence_event(msgl_sequence *s, const msgl_token_event *e);

#endif
