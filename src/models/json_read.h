// SPDX-License-Identifier: Apache-2.0
//
// Reading typed, range-checked fields of a JSON object. The first failure is kept in the reader,
// with one line that names file, field, found and allowed; later reads return their fallback, so a
// caller checks once at the end.
#ifndef MSGL_MODELS_JSON_READ_H
#define MSGL_MODELS_JSON_READ_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "core/err.h"

// What a file of another format calls a key.
typedef struct msgl_json_name {
    const char *key;
    char shown[64];
} msgl_json_name;

// What some files call a member.
typedef struct msgl_json_alias {
    const char *key, *other;
} msgl_json_alias;

typedef struct msgl_json_reader {
    const char *file;    // for messages
    const char *section; // "" or the name of the object that `obj` is, for messages
    const json_t *obj;   // borrowed
    msgl_err *err;
    int status;                  // 0 or the first failure
    const msgl_json_name *names; // for messages instead of section and key; [num_names]
    int num_names;
    const msgl_json_alias *aliases; // NULL, or ended by one without a key
} msgl_json_reader;

// The member, by its name or an alias; NULL when it is absent or null.
const json_t *msgl__json_get(const msgl_json_reader *r, const char *key);

// An integer in [lo, hi]; the first form is an error when the member is absent.
int32_t msgl__json_int(msgl_json_reader *r, const char *key, int32_t lo, int32_t hi);
int32_t msgl__json_int_or(msgl_json_reader *r, const char *key, int32_t lo, int32_t hi,
                          int32_t fallback);
// A number in [lo, hi].
double msgl__json_num_or(msgl_json_reader *r, const char *key, double lo, double hi,
                         double fallback);
bool msgl__json_bool_or(msgl_json_reader *r, const char *key, bool fallback);
// A string, borrowed from the object; fallback may be NULL.
const char *msgl__json_str_or(msgl_json_reader *r, const char *key, const char *fallback);
// Of the object `key`, whose own failures stay with it; its obj is NULL where that is missing, null
// or, which fails r and it, something else.
msgl_json_reader msgl__json_section(msgl_json_reader *r, const char *key);
// A string that changes what is computed and may be this one only, with which it may be missing.
void msgl__json_only(msgl_json_reader *r, const char *key, const char *only);

// Fails the reader: "FILE: SECTION.KEY: found VALUE, allowed ALLOWED". v NULL: "found nothing".
void msgl__json_reject(msgl_json_reader *r, int code, const char *key, const json_t *v,
                       const char *allowed);
// A short printable form of a value for messages: numbers and strings as they are (cut, control
// characters replaced), containers by kind and size.
const char *msgl__json_show(const json_t *v, char *buf, size_t size);

#endif
