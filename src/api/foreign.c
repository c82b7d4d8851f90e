// SPDX-License-Identifier: Apache-2.0
#include "api/foreign.h"

#include <string.h>

#include "api/json.h"

static bool is_said(const char *key, bool top)
{
    static const char *const unsaid[] = {"cache_control", "citations", "status", "type"};
    if (strncmp(key, "encrypted_", 10) == 0) return false;
    for (size_t i = 0; i < sizeof unsaid / sizeof unsaid[0] && top; i++) {
        if (strcmp(key, unsaid[i]) == 0) return false;
    }
    return true;
}

// A copy without what is not said; NULL: no memory. As deep as the body, whose depth is limited.
static json_t *said(const json_t *v, bool top)
{
    const char *key;
    json_t *value;
    int bad = 0;
    if (json_is_array(v)) {
        json_t *all = json_array();
        for (size_t i = 0; i < json_array_size(v); i++) {
            bad |= json_array_append_new(all, said(json_array_get(v, i), false));
        }
        if (bad == 0) return all;
        json_decref(all);
        return NULL;
    }
    if (!json_is_object(v)) return json_incref((json_t *)v);
    json_t *o = json_object();
    json_object_foreach((json_t *)v, key, value)
    {
        if (is_said(key, top)) bad |= json_object_set_new(o, key, said(value, false));
    }
    if (bad == 0) return o;
    json_decref(o);
    return NULL;
}

int msgl__foreign_text(const json_t *o, msgl_strbuf *out)
{
    const char *type = json_string_value(json_object_get(o, "type"));
    json_t *copy = said(o, true);
    int rc = copy == NULL ? MSGL_ENOMEM : 0;
    if (rc == 0 && out->len > 0) rc = msgl__strbuf_addc(out, '\n');
    if (rc == 0) rc = msgl__strbuf_addf(out, "[%.64s] ", type == NULL ? "item" : type);
    if (rc == 0) rc = msgl__json_put(out, copy, JSON_COMPACT);
    json_decref(copy);
    return rc;
}

void msgl__foreign_tool_note(const char *type, msgl_strbuf *notes)
{
    const size_t before = notes->len;
    int rc = msgl__strbuf_addf(notes,
                               "a request has a tool of type '%.64s', which this server does not "
                               "run; it is left out",
                               type);
    if (rc == 0) rc = msgl__strbuf_addc(notes, '\0');
    if (rc != 0) notes->len = before; // no room: this tool is not logged
}
