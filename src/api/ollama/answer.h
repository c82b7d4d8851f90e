// SPDX-License-Identifier: Apache-2.0
//
// The answers of Ollama's dialect: functions of its descriptors (endpoint.h says what each does).
// Those of /api/chat have a `message`, those of /api/generate a `response`.
#ifndef MSGL_API_OLLAMA_ANSWER_H
#define MSGL_API_OLLAMA_ANSWER_H

#include "api/job.h"
#include "api/reply.h"

// {"error":MESSAGE}
int msgl__ollama_put_error(const msgl_api_error *e, msgl_strbuf *out);
// The line of an error in a stream that has begun.
int msgl__ollama_put_stream_error(const msgl_reply *r, const msgl_api_error *e, msgl_strbuf *out);
// A name as Ollama writes it: with ":latest" if it has no tag, as a JSON string.
int msgl__ollama_put_name(const char *name, msgl_strbuf *out);
// A point in time, in seconds since 1970, as a JSON string.
int msgl__ollama_put_time(int64_t seconds, msgl_strbuf *out);
// "details":{...} of a model, by its path.
int msgl__ollama_put_details(const char *path, msgl_strbuf *out);

// The functions of the descriptors of /api/chat (chat) and /api/generate (generate), or of both.
int msgl__ollama_chat_put_job(const msgl_job *j, const msgl_tokenizer *t, msgl_strbuf *out);
int msgl__ollama_chat_put_begin(const msgl_reply *r, msgl_strbuf *out);
int msgl__ollama_chat_put_choice(const msgl_reply *r, int index, msgl_sequence *s,
                                 msgl_strbuf *out);
int msgl__ollama_chat_put_chunk(const msgl_reply *r, int index, msgl_sequence *s, bool silent,
                                msgl_strbuf *out);
int msgl__ollama_generate_put_job(const msgl_job *j, const msgl_tokenizer *t, msgl_strbuf *out);
int msgl__ollama_generate_put_choice(const msgl_reply *r, int index, msgl_sequence *s,
                                     msgl_strbuf *out);
int msgl__ollama_generate_put_chunk(const msgl_reply *r, int index, msgl_sequence *s, bool silent,
                                    msgl_strbuf *out);
int msgl__ollama_put_end(const msgl_reply *r, int64_t cached, int64_t completion, msgl_strbuf *out);
int msgl__ollama_put_stream_end(const msgl_reply *r, int64_t cached, int64_t completion,
                                msgl_strbuf *out);

#endif
