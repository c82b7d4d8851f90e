// SPDX-License-Identifier: Apache-2.0
//
// A vector in an answer.
#ifndef MSGL_API_OPENAI_EMBEDDINGS_H
#define MSGL_API_OPENAI_EMBEDDINGS_H

#include "api/reply.h"

// Appends the values of s, which it cuts to the request's dimensions and makes of length 1, as an
// array of numbers or as base64. 0, or the buffer's failure.
int msgl__embedding_put(const msgl_reply *r, msgl_sequence *s, msgl_strbuf *out);

#endif
