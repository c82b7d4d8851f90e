// SPDX-License-Identifier: Apache-2.0
//
// JSON in: a request body, and JSON texts inside it, under caps on nesting, number of values and
// memory, checked before anything is built. JSON out: utils/json_write.h.
#ifndef MSGL_API_JSON_H
#define MSGL_API_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"
#include "http/budget.h"
#include "utils/json_write.h"
#include "utils/strbuf.h"

#define MSGL_JSON_MAX_DEPTH 64
#define MSGL_JSON_MAX_VALUES 2000000

// What all trees of one request have taken.
typedef struct msgl_json_room {
    msgl_claim *claim; // of their memory, NULL: not counted
    size_t values;     // at most MSGL_JSON_MAX_VALUES
    bool copied; // what is parsed will be copied, too (into a chat template's variables): it counts
                 // twice
} msgl_json_room;

// A new object from the whole of text[0, len), or NULL with *err: MSGL_EFORMAT (not JSON, not an
// object, nested too deep), MSGL_ELIMIT (too many values, more memory than a request may take),
// MSGL_EBUSY (no memory left in the budget).
json_t *msgl__json_parse_object(const char *text, size_t len, msgl_json_room *room, msgl_err *err);

// Appends a number; NaN becomes null, minus infinity -9999 (as OpenAI writes such logprobs).
int msgl__json_put_logprob(msgl_strbuf *out, double v);
// Appends an array of numbers, each with the digits that tell it from every other float; what is
// not finite becomes null.
int msgl__json_put_floats(msgl_strbuf *out, const float *values, int32_t n);

#endif
