// SPDX-License-Identifier: Apache-2.0
//
// In which form a template takes a message's content: as one text, as parts ({"type": "text",
// "text": ...}), or either. Templates say it in many ways (`is string`, loops, macros with other
// names for the content), so what is looked at is what they write of small conversations.
#ifndef MSGL_TEMPLATE_CONTENT_FORM_H
#define MSGL_TEMPLATE_CONTENT_FORM_H

#include "template/chat_template.h"

// Whose content: templates differ between roles. MSGL_CONTENT_TOOL: of a tool's result.
typedef enum msgl_content_role {
    MSGL_CONTENT_USER,
    MSGL_CONTENT_SYSTEM,
    MSGL_CONTENT_ASSISTANT,
    MSGL_CONTENT_TOOL,
    MSGL_CONTENT_ROLES,
} msgl_content_role;

typedef enum msgl_content_form {
    MSGL_CONTENT_TEXT,   // parts have to be joined; also where the template shows neither form
    MSGL_CONTENT_PARTS,  // of a text nothing is written: it has to be the only part
    MSGL_CONTENT_EITHER, //
} msgl_content_form;

// The role of a message, by its name; users' for one that is not known.
msgl_content_role msgl__content_role(const char *role);

// Renders up to three conversations of one to three words, each of which ends within some
// milliseconds. special: as for msgl__chat_template_render's `trusted` variables; NULL: none. 0, or
// MSGL_ENOMEM or MSGL_EABORTED.
int msgl__content_form_probe(const msgl_chat_template *t, json_t *special, msgl_content_role role,
                             const atomic_bool *cancelled, msgl_content_form *out);

// The same by a model's templates: of `use`, or (NULL) of the one that they render with, which was
// looked at when they were loaded.
int msgl__chat_templates_content_form(const msgl_chat_templates *t, const msgl_chat_template *use,
                                      bool has_tools, msgl_content_role role,
                                      const atomic_bool *cancelled, msgl_content_form *out);

#endif
