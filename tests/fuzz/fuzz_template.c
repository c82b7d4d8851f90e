// SPDX-License-Identifier: Apache-2.0
//
// The input is a chat template; if a NUL byte is in it, what follows is the JSON of its variables.
// Whatever happens, the answer is text with well-formed spans or one line of error.
#include <stdint.h>
#include <string.h>

#include "template/chat_template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const TALK =
    "{\"messages\": [{\"role\": \"system\", \"content\": \" s\\u00e9 \"}, {\"role\": \"user\","
    " \"content\": \"a <|b|> c\"}, {\"role\": \"assistant\", \"content\": null, \"tool_calls\":"
    " [{\"function\": {\"name\": \"f\", \"arguments\": {\"x\": [1, 2.5, true, null]}}}]}],"
    " \"tools\": [{\"type\": \"function\"}], \"add_generation_prompt\": true, \"x\": 5}";

static void check(const msgl_rendered *r)
{
    size_t end = 0;
    for (size_t i = 0; i < r->num_untrusted; i++) {
        const msgl_text_span s = r->untrusted[i];
        if (s.start >= s.end || s.end > r->text.len || (i > 0 && s.start <= end)) __builtin_trap();
        end = s.end;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = size > 0 ? memchr(data, 0, size) : NULL;
    const size_t len = nul != NULL ? (size_t)(nul - data) : size;
    json_t *vars = nul != NULL ? json_loadb((const char *)nul + 1, size - len - 1, 0, NULL)
                               : json_loads(TALK, 0, NULL);
    msgl_chat_template *t;
    msgl_err err = {0};
    int rc = msgl__chat_template_parse((const char *)data, len, &t, &err);
    if (rc == 0) {
        const msgl_render_limits limits = {.max_steps = 100000, .max_output = 1 << 20};
        msgl_rendered r = {0};
        rc = msgl__chat_template_render(t, vars, &limits, &r, &err);
        if (rc == 0) check(&r);
        msgl__rendered_free(&r);
        msgl__chat_template_free(t);
    }
    if (rc != 0 && (rc != err.code || strlen(err.text) == 0)) {
        // Only a template's own raise_exception('') has nothing to say.
        if (rc != MSGL_EINVAL) __builtin_trap();
    }
    json_decref(vars);
    return 0;
}
