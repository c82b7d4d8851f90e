// SPDX-License-Identifier: Apache-2.0
//
// The names that a request's fields can have: those read here, those refused here, and those known
// from other servers. A field that nobody knows is most likely a typing error, and then the answer
// is not what was asked for.
#ifndef MSGL_SERVER_KNOWN_FIELDS_H
#define MSGL_SERVER_KNOWN_FIELDS_H

#include "server/api.h"

// Where a field stands; bits.
typedef enum msgl_field_place {
    MSGL_IN_CHAT = 1,       // POST /v1/chat/completions
    MSGL_IN_COMPLETION = 2, // POST /v1/completions
    MSGL_IN_GENERATE = 4,   // POST /generate, Mini-SGLang's form
    MSGL_IN_SGLANG = 8,     // POST /generate with "sampling_params", SGLang's form
    MSGL_IN_PARAMS = 16,    // that object
} msgl_field_place;

// Looks at o's fields; null values count as absent. One that is not supported in this place is
// refused unless its value changes nothing. A near miss of a field that is read in this place is
// refused with a suggestion, unless it is known from another server. Other names that are not read
// here are added to *unknown (each with a NUL behind it, as far as it has room) or, with `refuse`,
// refused. 0, or MSGL_EINVAL with *e.
int msgl__check_fields(const json_t *o, msgl_field_place place, bool refuse, msgl_strbuf *unknown,
                       msgl_api_error *e);

#endif
