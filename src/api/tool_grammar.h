// SPDX-License-Identifier: Apache-2.0
//
// What an answer with calls of tools has to be, so that their arguments fit the tools' schemas: a
// grammar in Lark's form.
#ifndef MSGL_API_TOOL_GRAMMAR_H
#define MSGL_API_TOOL_GRAMMAR_H

#include "api/constraint.h"

typedef struct msgl_tool_use {
    const json_t *tools;        // of a chat, checked
    const msgl_tool_form *form; // not NULL
    bool forced;                // the answer goes on behind the beginning of a call ...
    const char *name;           // ... of this tool; NULL: behind what all calls begin with
    bool several;               // further calls may follow
} msgl_tool_use;

// out->kind is MSGL_GRAMMAR_NONE where calls of this form cannot be constrained by schemas, or
// nothing asks for it: calls are not forced, and no tool is `strict`. Arguments of forced calls
// have no members that their schema does not name, unless it says that there may be some; what of a
// schema is not supported is added to *left_out, as msgl__constraint_compile does. Those of strict
// tools fit, or MSGL_EINVAL with *e (400, or 500 without memory). cfg, claim and MSGL_API_FORM: as
// of msgl__constraint_parse.
int msgl__tool_grammar(const msgl_tool_use *use, const msgl_api_config *cfg, msgl_claim *claim,
                       msgl_strbuf *left_out, msgl_constraint_text *out, msgl_api_error *e);

#endif
