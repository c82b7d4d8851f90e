// SPDX-License-Identifier: Apache-2.0
//
// The fields that requests can have: those read here, with what they may be (for the parser, and
// for docs/http.md), those refused here, and those known from other servers. A field that nobody
// knows is most likely a typing error, and then the answer is not what was asked for.
#ifndef MSGL_API_KNOWN_FIELDS_H
#define MSGL_API_KNOWN_FIELDS_H

#include "api/api.h"

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

typedef enum msgl_field_type {
    MSGL_FIELD_ANY, // several; `help` says which
    MSGL_FIELD_BOOL,
    MSGL_FIELD_INT,
    MSGL_FIELD_REAL,
    MSGL_FIELD_STRING,
    MSGL_FIELD_STRINGS,
    MSGL_FIELD_IDS, // token ids
    MSGL_FIELD_ARRAY,
    MSGL_FIELD_OBJECT,
    MSGL_FIELD_SETTING, // a number or flag: the row of msgl__sampling_settings says the rest
} msgl_field_type;

// A field that is read.
typedef struct msgl_field_row {
    const char *name;
    msgl_field_type type;
    const char *help;
    const char *preset;  // what it is when it is left out; NULL: nothing is asked for
    const char *setting; // of MSGL_FIELD_SETTING, where it is called something else
    int64_t min, max;    // of MSGL_FIELD_INT; both 0: any
    int max_items;       // of an array or object; 0: as the body allows
    int max_bytes;       // of each string in it; 0: as the body allows
    const char *only;    // its only values: the error that refuses others says this
    bool required;
    bool unlimited; // of MSGL_FIELD_INT: -1 is as if it were not there, as in llama-server
} msgl_field_row;

// The fields of a kind of object, beside those that are refused in any.
typedef struct msgl_fields {
    const char *title;                 // in docs/http.md; NULL: the endpoint's own fields
    const char *member;                // of a request, which is such an object; NULL: the request
    const msgl_field_row *read;        // a NULL name behind them
    const msgl_refused_field *refused; // a NULL name behind them; NULL: none
    const struct msgl_fields *also;    // and these, or NULL
    // Of an object inside of it, or NULL: a near miss of one that is read there gets a suggestion.
    const struct msgl_fields *inside;
} msgl_fields;

// sampling.c: what msgl__parse_sampling reads; and that with what is common to requests that have
// it at the top.
extern const msgl_fields msgl__sampling_fields, msgl__request_fields;

// Gives fields of o that are called by another convention's name (maxTokens, max-tokens, n_predict)
// the name that is read in it, unless it is there, too. MSGL_ENOMEM.
int msgl__rename_fields(json_t *o, const msgl_fields *f);

// Renames o's fields, then looks at them; null values count as absent. One that is not supported in
// this kind of object is refused unless its value changes nothing. What `what` says becomes of
// other names that are not read here. A near miss of a field that is read in it is refused with a
// suggestion, unless it is known from another endpoint or server. unknown: gets the names that are
// to be logged, each with a NUL behind it, as far as it has room. 0, or MSGL_EINVAL with *e.
int msgl__check_fields(const json_t *o, const msgl_fields *f, const msgl_api_config *cfg,
                       msgl_unknown_fields what, msgl_strbuf *unknown, msgl_api_error *e);

// Refused wherever they stand and are not read; a NULL name behind them.
extern const msgl_refused_field msgl__refused_fields[];
// Other servers' fields, a NULL behind them: those that do not change the answer and are read over
// without a word; and those that may change it, which are named in the log, or refused.
extern const char *const msgl__harmless_fields[], *const msgl__foreign_fields[];

#endif
