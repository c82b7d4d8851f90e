// SPDX-License-Identifier: Apache-2.0
//
// The answers of /v1/chat/completions: functions of its descriptor (endpoint.h says what each
// does).
#ifndef MSGL_API_OPENAI_CHAT_ANSWER_H
#define MSGL_API_OPENAI_CHAT_ANSWER_H

#include "api/reply.h"

// The id of a choice's n-th call, as a string of JSON: the model's own, where it gave one, or one
// of letters and digits; the same whenever it is asked for. call[0, len): the call's part.
int msgl__chat_put_call_id(const msgl_reply *r, int index, int n, const char *call, size_t len,
                           msgl_strbuf *out);
// Its name, as a string of JSON.
int msgl__chat_put_call_name(const char *call, size_t len, msgl_strbuf *out);
int msgl__chat_put_begin(const msgl_reply *r, msgl_strbuf *out);
int msgl__chat_put_end(const msgl_reply *r, int64_t cached, int64_t completion, msgl_strbuf *out);
int msgl__chat_put_choice(const msgl_reply *r, int index, msgl_sequence *s, msgl_strbuf *out);
int msgl__chat_put_chunk(const msgl_reply *r, int index, msgl_sequence *s, bool silent,
                         msgl_strbuf *out);
int msgl__chat_put_stream_end(const msgl_reply *r, int64_t cached, int64_t completion,
                              msgl_strbuf *out);

#endif
