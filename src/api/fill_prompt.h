// SPDX-License-Identifier: Apache-2.0
//
// Prompts of a gap: what stands before it and behind it, between the three tokens that models of
// code were trained with.
#ifndef MSGL_API_FILL_PROMPT_H
#define MSGL_API_FILL_PROMPT_H

#include "api/api.h"
#include "template/chat_template.h"
#include "tokenizer/tokenizer.h"

// The tokens of one family: before the prefix, before the suffix, before the answer.
typedef struct msgl_fill_form {
    const char *prefix, *suffix, *middle;
    const char *repository, *file; // before other files' names; NULL: they are text alone
} msgl_fill_form;

// The form whose three tokens the tokenizer has, or NULL.
const msgl_fill_form *msgl__fill_form(const msgl_tokenizer *t);
// The prompt of a request that has `fill`, into *out (msgl__rendered_free, also on failure): spans
// of what the client wrote are untrusted. MSGL_EUNSUPPORTED (names the tokens of all forms),
// MSGL_ENOMEM.
int msgl__fill_render(const msgl_gen_request *req, const msgl_tokenizer *t, msgl_rendered *out,
                      msgl_err *err);

#endif
