// SPDX-License-Identifier: Apache-2.0
//
// One choice of an answer: from the engine's token events to text that may be shown, and
// log-probabilities in step with that text. No sockets.
#ifndef MSGL_API_SEQUENCE_H
#define MSGL_API_SEQUENCE_H

#include "api/api.h"
#include "api/logprobs.h"
#include "api/row_values.h"
#include "text/stream.h"

typedef struct msgl_sequence {
    const msgl_gen_request *req; // borrowed
    const msgl_tokenizer *tokenizer;
    const msgl_ids *prompt; // borrowed
    msgl_text_stream answer;
    msgl_strbuf text;    // shown text that the caller has not taken (cleared) yet
    msgl_parser *parser; // NULL: text is all there is
    msgl_parts parts;    // else what the text was split into, in its place
    int calls_shown;     // the caller's: calls that the client has got
    int blocks;          // the caller's: content blocks before the one that is open, if it is
    bool block_open;
    msgl_part_kind block_kind; // of the open one
    msgl_strbuf block_text;    // the caller's: what was shown of the open block
    msgl_strbuf blocks_shown;  // the same of all blocks, in the caller's form
    size_t block_at;           // the caller's: where the open one begins in blocks_shown
    int events_shown;          // the caller's: events of its stream
    size_t kept_at, kept_len;  // the same: in what was written last, the answer as it is stored
    msgl_logprobs logprobs;    // the same of log-probabilities
    bool want_logprobs;
    msgl_ids ids;          // with return_ids: tokens that the caller has not taken (cleared) yet
    bool prompt_ids_shown; // the caller's: the client has got the prompt's
    float *values;         // of an engine that pools, with the end
    int32_t num_values;
    int32_t cached_tokens, completion_tokens;
    int32_t drafted, accepted;      // drafts computed; tokens of the answer that were drafts
    int32_t reasoning_tokens;       // of the latter, those that thoughts took
    bool started;                   // an event has come
    const char *finish;             // "stop", "length", "tool_calls", "abort"; NULL: not finished
    bool first_shown, finish_shown; // the caller's: the client has got an event, and the finish
    int32_t tokens_shown;           // the same: completion tokens that it has got events of

    struct msgl_pending *pending; // log-probabilities of text that cannot be shown yet
    int num_pending, cap_pending;
    msgl_text_stream echoed;    // the prompt's tokens, for their offsets
    const msgl_prompt *in_text; // the prompt, if it is echoed as the text that it came as
    msgl_strbuf echo_piece;
    int32_t prompt_rows; // tokens of the prompt that have their entry
    bool keep_prompt;    // the caller's: keep these entries for msgl__sequence_share_prompt
    msgl_logprobs prompt_entries;
    msgl_logprobs prompt_logprobs; // with_prompt_logprobs: of the whole prompt
    msgl_row_texts rows;           // what is beside both
} msgl_sequence;

// All borrowed things must outlive *s. MSGL_ENOMEM, MSGL_EINVAL (an echoed id that has no text).
int msgl__sequence_init(msgl_sequence *s, const msgl_gen_request *req, int prompt_index,
                        const msgl_ids *prompt, const msgl_tokenizer *tokenizer);
void msgl__sequence_free(msgl_sequence *s); // zero-initialised allowed

// Whether the prompt's entries are complete (or none are wanted).
bool msgl__sequence_prompt_done(const msgl_sequence *s);
// Takes over the prompt's entries of `first`, a sequence of the same prompt that has kept them and
// is done with it: they are computed once, however many choices a prompt has.
int msgl__sequence_share_prompt(msgl_sequence *s, const msgl_sequence *first);
// Heap bytes of its buffers.
size_t msgl__sequence_bytes(const msgl_sequence *s);

// Handles an event that is not an error. 0, MSGL_ENOMEM, MSGL_ELIMIT.
int msgl__sequence_event(msgl_sequence *s, const msgl_token_event *e);

#endif
