// SPDX-License-Identifier: Apache-2.0
//
// "tool_choice" of a chat, in all forms that clients send: which tools an answer may call, and
// whether it has to.
#ifndef MSGL_API_TOOL_CHOICE_H
#define MSGL_API_TOOL_CHOICE_H

#include "api/api.h"

typedef struct msgl_tool_choice {
    bool none;        // no tool is called, or shown to the model
    bool force;       // the answer has to begin with a call ...
    const char *name; // ... of this tool, borrowed from o; NULL: of any
} msgl_tool_choice;

// Reads o's field. tools: o's, checked; NULL: there are none. Of "allowed_tools" the others are
// taken out of o. 0, or MSGL_EINVAL with *e (400; 500 without memory).
int msgl__tool_choice_parse(json_t *o, const json_t *tools, msgl_tool_choice *out,
                            msgl_api_error *e);

#endif
