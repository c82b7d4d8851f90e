// SPDX-License-Identifier: Apache-2.0
//
// How a chat's answer begins: with thoughts, which are free, with a call that is asked for, or with
// a text of a given form.
#ifndef MSGL_API_BEGIN_ANSWER_H
#define MSGL_API_BEGIN_ANSWER_H

#include "api/api.h"
#include "template/chat_template.h"
#include "tokenizer/tokenizer.h"

// Of the rendered prompt *r: sets req->chat.split.thinking, adds to *r (and to req->chat.prefill)
// what the answer goes on behind, and to req->extra the stages that it is made of. 0, or
// MSGL_EINVAL with *e (500).
int msgl__begin_answer(msgl_gen_request *req, const msgl_tokenizer *t, msgl_rendered *r,
                       msgl_api_error *e);

#endif
