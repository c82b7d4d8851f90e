// SPDX-License-Identifier: Apache-2.0
//
// JSON in: a request body under caps on nesting and number of values, checked before anything is
// built. JSON out: strings written straight into a buffer, no tree.
#ifndef MSGL_SERVER_JSON_H
#define MSGL_SERVER_JSON_H

#include <jansson.h>
#include <stddef.h>

#include "core/err.h"
#include "utils/strbuf.h"

#define MSGL_JSON_MAX_DEPTH 64
#define MSGL_JSON_MAX_VALUES 2000000 // about 100 bytes of heap each

// A new object from the whole of text[0, len), or NULL with *err (MSGL_EFORMAT).
json_t *msgl__json_parse_object(const char *text, size_t len, msgl_err *err);

// Appends a JSON string literal. Bytes that are not UTF-8 become U+FFFD.
int msgl__json_put_str(msgl_strbuf *out, const char *s, size_t len);
// Appends a number; NaN becomes null, minus infinity -9999 (as OpenAI writes such logprobs).
int msgl__json_put_logprob(msgl_strbuf *out, double v);

#endif
