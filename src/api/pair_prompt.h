// SPDX-License-Identifier: Apache-2.0
//
// What a reranker reads: a query and a document in one prompt.
#ifndef MSGL_API_PAIR_PROMPT_H
#define MSGL_API_PAIR_PROMPT_H

#include "api/api.h"
#include "template/chat_template.h"

// Whether a chat template's source (NULL: "") writes messages of the roles query and document.
bool msgl__pair_template(const char *source);

// The prompt of document i of q, whose `pairs` are on, and of its query: by the folder's chat
// template if that writes messages of the roles query and document (and system, the instruction),
// as sentence-transformers has it; of one_token (zerank) by any other with the query as system's
// message and the document as user's; else (NULL, too) as Qwen3-Reranker was trained. *out is empty
// before; freed by the caller, also on failure. The errors of msgl__chat_templates_render.
int msgl__pair_render(const msgl_gen_request *q, int i, const msgl_chat_templates *templates,
                      const msgl_render_limits *limits, msgl_rendered *out, msgl_err *err);

#endif
