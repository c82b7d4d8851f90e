// SPDX-License-Identifier: Apache-2.0
//
// What clients send of tools that other servers run (searches, files, shells of OpenAI's and
// Anthropic's): the model gets it as text, since no chat template has a form for it, and the tools
// themselves are left out.
#ifndef MSGL_API_FOREIGN_H
#define MSGL_API_FOREIGN_H

#include "api/api.h"

// "[TYPE] {...}": a block or an item with its ids, without what nobody can read here (members that
// begin with encrypted_) and what is not said to the model (cache_control, citations, status).
// Behind a line break if *out has text. MSGL_ENOMEM.
int msgl__foreign_text(const json_t *o, msgl_strbuf *out);

// A note for the log: a tool of this type is left out.
void msgl__foreign_tool_note(const char *type, msgl_strbuf *notes);

#endif
