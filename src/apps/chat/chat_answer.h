// SPDX-License-Identifier: Apache-2.0
//
// One answer of a chat: asked for, shown as it comes, kept in the conversation.
#ifndef MSGL_APPS_CHAT_CHAT_ANSWER_H
#define MSGL_APPS_CHAT_CHAT_ANSWER_H

#include <minisgl/minisgl.h>

#include "apps/chat/chat.h"
#include "parsers/parser.h"

typedef struct msgl_answerer {
    msgl_llm *llm;
    const msgl_reasoning_form *form; // of thoughts in its answers; NULL: none that could be told
    bool color;
} msgl_answerer;

void msgl__answerer_init(msgl_answerer *a, msgl_llm *llm);
// Tokens that a conversation may have, its last answer with it.
int msgl__answerer_limit(const msgl_answerer *a);

// Asks a question and adds it and its answer; a failure leaves the conversation as it was.
int msgl__chat_ask(msgl_answerer *a, msgl_chat *c, const char *question, msgl_err *err);
// Answers the question that the conversation ends with; an answer that is there goes, unless the
// new one fails.
int msgl__chat_answer_again(msgl_answerer *a, msgl_chat *c, msgl_err *err);

#endif
