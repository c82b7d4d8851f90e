// SPDX-License-Identifier: Apache-2.0
//
// A conversation as the chat template in use takes it. Clients send messages that strict templates
// refuse or leave out (a second system message, one behind the user's, two of the user's in a row):
// they are rendered as they came where the template can, else in the nearest form that it takes.
#ifndef MSGL_API_CONVERSATION_H
#define MSGL_API_CONVERSATION_H

#include "api/api.h"
#include "template/chat_template.h"

// What was changed so that the template renders the messages; each is tried when those before it
// were not enough.
typedef enum msgl_conversation_change {
    MSGL_CHANGED_EMPTY = 1,    // an assistant's message without content got an empty one
    MSGL_CHANGED_SYSTEM = 2,   // all system and developer texts are the first message
    MSGL_CHANGED_TURNS = 4,    // neighbours of one role, user or assistant, are one message
    MSGL_CHANGED_NO_SYSTEM = 8 // system texts stand in front of the first user's
} msgl_conversation_change;

typedef struct msgl_conversation {
    const msgl_chat_templates *templates; // NULL: only `own`, without special tokens
    const msgl_chat_template *own;        // NULL: the model's
    json_t *vars;                         // `messages` is replaced by what was rendered
    bool continue_final;                  // the text ends in the last message's
    msgl_render_limits limits;
    msgl_claim *claim; // gets the bytes of what is copied; NULL: not counted
    unsigned changed;  // result: msgl_conversation_change
    int refused;       // result: why the claim could not grow, MSGL_EBUSY or MSGL_ELIMIT
} msgl_conversation;

// Contents are joined to texts, or made parts, as the template takes them (content_form.h). 0, or
// as msgl__chat_template_render, with the error of the messages as they came; MSGL_EUNSUPPORTED:
// with continue_final, the template does not show the last message's text; MSGL_EBUSY: see refused.
int msgl__conversation_render(msgl_conversation *c, msgl_rendered *out, msgl_err *err);

// Adds a sentence for each bit of `changed` to the notes, which the log has once.
void msgl__conversation_note(unsigned changed, msgl_strbuf *notes);

#endif
