// SPDX-License-Identifier: Apache-2.0
//
// The names that a request's fields can have: those read here, those refused here, and those known
// from other servers. A field that nobody knows is most likely a typing error, and then the answer
// is not what was asked for.
#ifndef MSGL_SERVER_KNOWN_FIELDS_H
#define MSGL_SERVER_KNOWN_FIELDS_H

#include "server/api.h"

// What means "as if it were not there".
typedef enum msgl_neutral {
    MSGL_NEUTRAL_NULL,     // only null
    MSGL_NEUTRAL_ZERO,     // the number 0
    MSGL_NEUTRAL_ONE,      // the number 1
    MSGL_NEUTRAL_FALSE,    // false
    MSGL_NEUTRAL_EMPTY,    // {} or [] or ""
    MSGL_NEUTRAL_OFF,      // MSGL_NEUTRAL_EMPTY, false, 0 or -1
    MSGL_NEUTRAL_TEXT,     // {"type": "text"}
    MSGL_NEUTRAL_NO_AUDIO, // an array that is exactly ["text"]
} msgl_neutral;

// Any other value is refused: it would change the answer.
typedef struct msgl_refused_field {
    const char *name;
    msgl_neutral neutral;
} msgl_refused_field;

// The fields of a kind of object, beside those that are refused in any.
typedef struct msgl_fields {
    const char *const *read;           // names, a NULL behind them
    const msgl_refused_field *refused; // a NULL name behind them; NULL: none
    const struct msgl_fields *also;    // and these, or NULL
    // Of an object inside of it, or NULL: a near miss of one that is read there gets a suggestion.
    const struct msgl_fields *inside;
} msgl_fields;

// sampling.c: what msgl__parse_sampling reads; and that with what is common to requests that have
// it at the top.
extern const msgl_fields msgl__sampling_fields, msgl__request_fields;

// Looks at o's fields; null values count as absent. One that is not supported in this kind of
// object is refused unless its value changes nothing. A near miss of a field that is read in it is
// refused with a suggestion, unless it is known from another endpoint or server. Other names that
// are not read here are added to *unknown (each with a NUL behind it, as far as it has room) or,
// with `refuse`, refused. 0, or MSGL_EINVAL with *e.
int msgl__check_fields(const json_t *o, const msgl_fields *f, bool refuse, msgl_strbuf *unknown,
                       msgl_api_error *e);

#endif
