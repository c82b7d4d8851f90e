// SPDX-License-Identifier: Apache-2.0
//
// The bodies of answers: whole JSON objects and SSE events, from sequences. No sockets.
#ifndef MSGL_SERVER_REPLY_H
#define MSGL_SERVER_REPLY_H

#include "server/sequence.h"

typedef struct msgl_reply {
    const msgl_gen_request *req;
    const char *id;    // "chatcmpl-...", "cmpl-..."
    const char *model; // served name
    int64_t created;   // Unix time
    int num_choices;
    int64_t prompt_tokens; // summed over prompts
} msgl_reply;

// All of these append to *out and return 0 or the buffer's failure.

// One SSE event of arbitrary text: each of its lines is a data line.
int msgl__sse_put(msgl_strbuf *out, const char *text, size_t len);
// The events of what choice `index` has to show now, or none; takes (clears) its text and logprobs.
// With s->finish set, the one that says so is the last.
int msgl__reply_chunks(const msgl_reply *r, int index, msgl_sequence *s, msgl_strbuf *out);
// The end of a stream: usage if asked for, then [DONE]. cached and completion: summed.
int msgl__reply_stream_end(const msgl_reply *r, int64_t cached, int64_t completion,
                           msgl_strbuf *out);
// An error inside a stream, then [DONE].
int msgl__reply_stream_error(const msgl_reply *r, const msgl_api_error *e, msgl_strbuf *out);

// A whole answer in three steps.
int msgl__reply_begin(const msgl_reply *r, msgl_strbuf *out);
int msgl__reply_choice(const msgl_reply *r, int index, msgl_sequence *s, msgl_strbuf *out);
int msgl__reply_end(const msgl_reply *r, int64_t cached, int64_t completion, msgl_strbuf *out);

#endif
