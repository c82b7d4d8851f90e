// SPDX-License-Identifier: Apache-2.0
//
// From one answer's token events to the text that may be shown: detokenised as tokens come, never
// inside a character; cut before the first stop string, and what could still become one held back;
// counted, so that what belongs to a token (its log-probability) finds its place in the text.
#ifndef MSGL_TEXT_STREAM_H
#define MSGL_TEXT_STREAM_H

#include <stdbool.h>

#include "message/message.h"
#include "text/stop.h"
#include "tokenizer/tokenizer.h"

typedef struct msgl_text_stream {
    msgl_detok *detok; // NULL: no token has text
    // Of these special tokens there is text, of others not; t NULL: as the detokenizer was told.
    const msgl_tokenizer *keeps_of;
    const char *const *keep[2];
    msgl_stop stop;
    int32_t unstopped; // tokens to come in whose text stop strings are not looked for
    bool stopped;      // a stop string is complete: nothing is shown any more
    size_t made;       // bytes of text that the tokens so far made
    size_t shown;      // bytes of it that were shown
    size_t chars;      // characters before the next token's text
} msgl_text_stream;

// t NULL: there is no tokenizer, and no text. stops must outlive *s. 0; MSGL_EINVAL for stop
// strings that msgl__stop_init refuses; MSGL_ENOMEM.
int msgl__text_init(msgl_text_stream *s, const msgl_tokenizer *t, bool skip_special,
                    const char *const *stops, int num_stops);
void msgl__text_free(msgl_text_stream *s);
// Special tokens are not shown but for those with these texts (lists with a NULL behind them, or
// NULL; borrowed): markers that the answer's reader waits for. Before the first token. 0 or
// MSGL_ENOMEM.
int msgl__text_keep_special(msgl_text_stream *s, const msgl_tokenizer *t, const char *const *a,
                            const char *const *b);
// Stop strings are not looked for in the text of the first `tokens` tokens.
void msgl__text_stop_behind(msgl_text_stream *s, int32_t tokens);
// The stop string that ends the text is part of it.
void msgl__text_keep_stop(msgl_text_stream *s);
// Characters are counted from behind this text (an echoed prompt).
void msgl__text_begin_behind(msgl_text_stream *s, const char *text, size_t len);
// Heap bytes that grow with the text.
size_t msgl__text_bytes(const msgl_text_stream *s);

// Whether token t of an event is text: the one that ended the answer (EOS, a stop id) is not.
static inline bool msgl__text_has(const msgl_token_event *e, int32_t t)
{
    return t < e->num_tokens && (e->finish != MSGL_FINISH_STOP || t + 1 < e->num_tokens);
}

// Both append what may be shown now to *out, perhaps nothing, and nothing once s->stopped. 0,
// MSGL_ENOMEM, MSGL_ELIMIT.
// The next token. An id without text (padding of the vocabulary) is one.
int msgl__text_token(msgl_text_stream *s, int32_t id, msgl_strbuf *out);
// Token t of an event, and the answer's end if that comes with it; of an event without tokens t is
// 0.
int msgl__text_event(msgl_text_stream *s, const msgl_token_event *e, int32_t t, msgl_strbuf *out);

#endif
