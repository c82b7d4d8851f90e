// SPDX-License-Identifier: Apache-2.0
#include "api/turn_prompt.h"

#include <string.h>

static int add_turn(json_t *messages, const char *role, bool parts, const char *text, size_t len)
{
    json_t *content = json_stringn_nocheck(text, len); // of a body or a file that was parsed
    if (parts) content = json_pack("[{s:s,s:o}]", "type", "text", "text", content);
    return json_array_append_new(messages,
                                 json_pack("{s:s,s:o}", "role", role, "content", content));
}

int msgl__turn_render(const msgl_text_form *form, const char *before, const msgl_prompt *p,
                      const msgl_chat_templates *templates, const msgl_render_limits *limits,
                      msgl_rendered *out, msgl_err *err)
{
    if (templates == NULL || *msgl__chat_templates_text(templates) == '\0') {
        return msgl__err_set(err, MSGL_EINVAL,
                             "This model embeds texts in its chat template, and has none.");
    }
    json_t *messages = json_array();
    json_t *vars = json_pack("{s:o,s:b}", "messages", messages, "add_generation_prompt",
                             (int)form->answer_begins);
    int rc = vars == NULL ? MSGL_ENOMEM : 0;
    if (rc == 0 && before != NULL && before[0] != '\0')
        rc = add_turn(messages, "system", form->parts, before, strlen(before));
    if (rc == 0) rc = add_turn(messages, "user", form->parts, p->text, p->len);
    if (rc != 0) {
        json_decref(vars);
        return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    }
    rc = msgl__chat_templates_render(templates, vars, limits, out, err);
    json_decref(vars);
    return rc;
}
