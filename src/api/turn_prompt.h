// SPDX-License-Identifier: Apache-2.0
//
// A text that a model embeds as a turn of its chat template.
#ifndef MSGL_API_TURN_PROMPT_H
#define MSGL_API_TURN_PROMPT_H

#include "api/api.h"
#include "template/chat_template.h"

// The text p as the content of a user's turn, behind a system's turn of `before` (NULL or "": there
// is none), as sentence-transformers has it of folders whose modality_config has "message". *out is
// empty before; freed by the caller, also on failure. templates NULL: MSGL_EINVAL; else the errors
// of msgl__chat_templates_render.
int msgl__turn_render(const msgl_text_form *form, const char *before, const msgl_prompt *p,
                      const msgl_chat_templates *templates, const msgl_render_limits *limits,
                      msgl_rendered *out, msgl_err *err);

#endif
