// SPDX-License-Identifier: Apache-2.0
//
// {"name": ..., "arguments": {...}} byte by byte. Models write JSON that is nearly right: brackets
// and strings are followed, no more, and arguments are handed on as they stand.
#ifndef MSGL_PARSERS_JSON_CALL_H
#define MSGL_PARSERS_JSON_CALL_H

#include <stdbool.h>

typedef struct msgl_parser msgl_parser;

// How far a JSON value goes.
typedef struct msgl_json_span {
    int depth; // brackets open
    bool in_string, escaped, scalar;
} msgl_json_span;

typedef enum msgl_span_step {
    MSGL_SPAN_MORE,   // c belongs to the value, which goes on
    MSGL_SPAN_LAST,   // c is the value's last
    MSGL_SPAN_BEHIND, // the value ended before c (a number, true, false, null)
    MSGL_SPAN_BAD,    // no value begins with c
} msgl_span_step;

// Zero-initialised stands before a value's first byte.
msgl_span_step msgl__json_span_add(msgl_json_span *s, char c);

typedef struct msgl_json_call {
    int state;
    msgl_json_span span;
    bool has_name, has_arguments; // read completely; arguments before a name wait in p->value
} msgl_json_call;

typedef enum msgl_json_call_step {
    MSGL_JSON_CALL_MORE,
    MSGL_JSON_CALL_DONE, // c closed the object; the call has begun and its arguments are complete
    // Before the call began (p->in_call says so): this is no call, and c was not buffered. After
    // it: c does not belong to the object, which has no end.
    MSGL_JSON_CALL_FAIL,
    MSGL_JSON_CALL_MARK, // of msgl__json_call_until: the marker came in the arguments
} msgl_json_call_step;

// The next byte is the object's first, or white space before it.
void msgl__json_call_start(msgl_parser *p);
// Until the call begins bytes are buffered, too. 0 or what a buffer failed with.
int msgl__json_call_add(msgl_parser *p, char c, msgl_json_call_step *step);
// The same, with markers that end a call whose arguments have no end themselves: outside of
// strings, and they begin with '<', which they have nowhere else.
int msgl__json_call_until(msgl_parser *p, const char *const *ends, char c,
                          msgl_json_call_step *step);

// Arguments alone: the next byte is the first of an object, or white space before it. p->name is
// known; the call begins with the object. DONE: c is the object's last.
void msgl__json_arguments_start(msgl_parser *p);

#endif
