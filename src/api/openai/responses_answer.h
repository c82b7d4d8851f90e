// SPDX-License-Identifier: Apache-2.0
//
// The answers of /v1/responses: functions of its descriptor (endpoint.h says what each does).
#ifndef MSGL_API_OPENAI_RESPONSES_ANSWER_H
#define MSGL_API_OPENAI_RESPONSES_ANSWER_H

#include "api/reply.h"

// What a response has beside a chat.
typedef struct msgl_responses_own {
    msgl_strbuf namespaces; // NAMESPACE NUL NAME NUL of the tools that have one
    msgl_strbuf repeated;   // members of its object that come from the request
} msgl_responses_own;

static inline msgl_responses_own *msgl__responses_own(const msgl_gen_request *r)
{
    return r->own;
}

int msgl__responses_put_begin(const msgl_reply *r, msgl_strbuf *out);
int msgl__responses_put_choice(const msgl_reply *r, int index, msgl_sequence *s, msgl_strbuf *out);
int msgl__responses_put_end(const msgl_reply *r, int64_t cached, int64_t completion,
                            msgl_strbuf *out);
int msgl__responses_put_chunk(const msgl_reply *r, int index, msgl_sequence *s, bool silent,
                              msgl_strbuf *out);
int msgl__responses_put_stream_end(const msgl_reply *r, int64_t cached, int64_t completion,
                                   msgl_strbuf *out);
int msgl__responses_put_stream_error(const msgl_reply *r, const msgl_api_error *e,
                                     msgl_strbuf *out);

#endif
