// SPDX-License-Identifier: Apache-2.0
//
// continue_final_message: the answer goes on in the conversation's last message, which is the
// assistant's, instead of beginning one of its own.
#ifndef MSGL_API_FINAL_MESSAGE_H
#define MSGL_API_FINAL_MESSAGE_H

#include "api/api.h"
#include "template/chat_template.h"

// Whether a chat's last message is an answer that was begun: an assistant's, with text that is not
// blank and without calls.
bool msgl__final_message_open(const json_t *messages);
// Reads the field of the body o. *out: it is wanted. 0, or MSGL_EINVAL with *e: the last message
// cannot be continued, or add_generation_prompt is true.
int msgl__final_message_parse(const json_t *o, bool *out, msgl_api_error *e);
// The messages with a mark behind the last text of the last one, which can be continued, as
// transformers does. Owned by the caller; NULL: no memory.
json_t *msgl__final_message_tag(const json_t *messages);
// Cuts what was rendered of them where the mark is: blanks at the text's end stay if the template
// has them. messages: without the mark. MSGL_EINVAL: the template does not show the text.
int msgl__final_message_cut(const json_t *messages, msgl_rendered *r);

#endif
