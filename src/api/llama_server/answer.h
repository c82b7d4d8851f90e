// SPDX-License-Identifier: Apache-2.0
//
// The answers of /completion and /infill: functions of their descriptors (endpoint.h says what each
// does).
#ifndef MSGL_API_LLAMA_SERVER_ANSWER_H
#define MSGL_API_LLAMA_SERVER_ANSWER_H

#include "api/reply.h"

// {"error":{"code":STATUS,"message":...,"type":...}}
int msgl__llama_put_error(const msgl_api_error *e, msgl_strbuf *out);
int msgl__llama_put_stream_error(const msgl_reply *r, const msgl_api_error *e, msgl_strbuf *out);
// {"n_predict":...,...}: what sampling is asked for, max_tokens -1: no limit.
int msgl__llama_put_settings(const msgl_sampling_params *p, int32_t max_tokens, msgl_strbuf *out);

int msgl__llama_put_begin(const msgl_reply *r, msgl_strbuf *out);
int msgl__llama_put_choice(const msgl_reply *r, int index, msgl_sequence *s, msgl_strbuf *out);
int msgl__llama_put_end(const msgl_reply *r, int64_t cached, int64_t completion, msgl_strbuf *out);
int msgl__llama_put_chunk(const msgl_reply *r, int index, msgl_sequence *s, bool silent,
                          msgl_strbuf *out);
int msgl__llama_put_stream_end(const msgl_reply *r, int64_t cached, int64_t completion,
                               msgl_strbuf *out);

#endif
