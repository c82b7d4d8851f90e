// SPDX-License-Identifier: Apache-2.0
#include "template/content_form.h"

#include <stdio.h>
#include <string.h>

#include "template/jinja_render.h"
#include "utils/json.h"

enum {
    PROBE_STEPS = 64 << 10, // some 3 ms; a usual template takes 100 a message
    PROBE_OUTPUT = 256 << 10,
    PROBE_MEMORY = 8 << 20,
    PROBE_DEPTH = 200,
};

// Words that no template has of its own.
static const char first[] = "qvxFIRSTxvq", second[] = "qvxSECONDxvq";
static const char as_text[] = "\"qvxFIRSTxvq\"";
static const char as_parts[] = "[{\"type\":\"text\",\"text\":\"qvxFIRSTxvq\"},"
                               "{\"type\":\"text\",\"text\":\"qvxSECONDxvq\"}]";

// What stands before and behind the content. Templates raise for conversations that they do not
// expect, so each role stands where it usually does.
static const char *const around[MSGL_CONTENT_ROLES][2] = {
    [MSGL_CONTENT_USER] = {"{\"role\":\"user\",\"content\":", "}"},
    [MSGL_CONTENT_SYSTEM] = {"{\"role\":\"system\",\"content\":",
                             "},{\"role\":\"user\",\"content\":\"a\"}"},
    [MSGL_CONTENT_ASSISTANT] = {"{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
                                "\"content\":",
                                "},{\"role\":\"user\",\"content\":\"b\"}"},
    [MSGL_CONTENT_TOOL] = {"{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
                           "\"content\":\"\",\"tool_calls\":[{\"id\":\"call00001\",\"type\":"
                           "\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]},"
                           "{\"role\":\"tool\",\"tool_call_id\":\"call00001\",\"name\":\"f\","
                           "\"content\":",
                           "}"},
};

msgl_content_role msgl__content_role(const char *role)
{
    static const struct {
        const char *name;
        msgl_content_role role;
    } names[] = {{"system", MSGL_CONTENT_SYSTEM},
                 {"developer", MSGL_CONTENT_SYSTEM},
                 {"assistant", MSGL_CONTENT_ASSISTANT},
                 {"tool", MSGL_CONTENT_TOOL},
                 {"function", MSGL_CONTENT_TOOL}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(role, names[i].name) == 0) return names[i].role;
    }
    return MSGL_CONTENT_USER;
}

// Whether `word` is in the text, and not as a value of a printed list of parts, such as
// [{'type': 'text', 'text': 'word'}].
static bool says(const msgl_strbuf *text, const char *word)
{
    static const char *const printed[] = {"text': '", "text\": \"", "text\":\""};
    const char *s = msgl__strbuf_str(text), *at = strstr(s, word);
    for (size_t i = 0; at != NULL && i < sizeof printed / sizeof printed[0]; i++) {
        const size_t n = strlen(printed[i]);
        if ((size_t)(at - s) >= n && memcmp(at - n, printed[i], n) == 0) return false;
    }
    return at != NULL;
}

// *out: the words of this content are written. 0, or MSGL_ENOMEM or MSGL_EABORTED.
static int takes(const msgl_chat_template *t, json_t *special, msgl_content_role role,
                 const char *content, const atomic_bool *cancelled, bool *out)
{
    char text[512];
    const msgl_render_limits limits = {.max_steps = PROBE_STEPS,
                                       .max_output = PROBE_OUTPUT,
                                       .max_memory = PROBE_MEMORY,
                                       .max_depth = PROBE_DEPTH,
                                       .cancelled = cancelled};
    msgl_rendered r = {0};
    msgl_err err = {0};
    msgl_jclock now;
    *out = false;
    (void)snprintf(text, sizeof text, "{\"messages\":[%s%s%s],\"add_generation_prompt\":true}",
                   around[role][0], content, around[role][1]);
    json_t *vars = msgl__json_loadb(text, strlen(text), 0, NULL, NULL);
    if (vars == NULL) return MSGL_ENOMEM;
    msgl__jclock_now(&now);
    const int rc = msgl__chat_template_render_at(t, vars, special, &limits, &now, &r, &err);
    json_decref(vars);
    if (rc == MSGL_ENOMEM || rc == MSGL_EABORTED) return rc;
    *out = rc == 0 && says(&r.text, first) && (content == as_text || says(&r.text, second));
    msgl__rendered_free(&r);
    return 0;
}

int msgl__content_form_probe(const msgl_chat_template *t, json_t *special, msgl_content_role role,
                             const atomic_bool *cancelled, msgl_content_form *out)
{
    bool text, parts;
    *out = MSGL_CONTENT_TEXT;
    int rc = takes(t, special, role, as_parts, cancelled, &parts);
    if (rc == 0 && parts) rc = takes(t, special, role, as_text, cancelled, &text);
    if (rc == 0 && parts) *out = text ? MSGL_CONTENT_EITHER : MSGL_CONTENT_PARTS;
    return rc;
}
