// SPDX-License-Identifier: Apache-2.0
//
// What parsers have to know of a request's tools: their names, and which of their parameters are
// strings (forms without quotes do not say so themselves). Immutable, and independent of the
// request's body.
#ifndef MSGL_PARSERS_TOOL_SET_H
#define MSGL_PARSERS_TOOL_SET_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct msgl_tool_set msgl_tool_set;

// Of an array of {"type": "function", "function": {"name": string, "parameters": schema}}; what a
// schema has of another form is not known, and no error. 0 or MSGL_ENOMEM.
int msgl__tool_set_create(const json_t *tools, msgl_tool_set **out);
void msgl__tool_set_free(msgl_tool_set *s); // NULL allowed
size_t msgl__tool_set_bytes(const msgl_tool_set *s);
bool msgl__tool_set_has(const msgl_tool_set *s, const char *name, size_t len); // s NULL: nothing

// What values of a parameter are.
typedef enum msgl_param_type {
    MSGL_PARAM_UNKNOWN,        // its schema does not say
    MSGL_PARAM_STRING,         //
    MSGL_PARAM_STRING_OR_NULL, //
    MSGL_PARAM_OTHER,          // of another type, or one that is no string comes first
} msgl_param_type;
// Of several types that a schema allows (a list of them, anyOf, oneOf) the first that is not null
// is the one: clients write what may be missing as a string or null.
msgl_param_type msgl__tool_set_type(const msgl_tool_set *s, const char *name, const char *param);

#endif
