// SPDX-License-Identifier: Apache-2.0
//
// A vector in an answer.
#ifndef MSGL_API_OPENAI_EMBEDDINGS_H
#define MSGL_API_OPENAI_EMBEDDINGS_H

#include "api/reply.h"

// Appends the first `dimensions` values of s (0: all), which it makes of length 1, as an array of
// numbers or as base64. 0, or the buffer's failure.
int msgl__embedding_put(msgl_sequence *s, int32_t dimensions, bool base64, msgl_strbuf *out);

#endif
