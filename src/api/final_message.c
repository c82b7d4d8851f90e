// SPDX-License-Identifier: Apache-2.0
#include "api/final_message.h"

#include <string.h>

#include "api/fields.h"

enum { MAX_BEHIND = 1024 }; // bytes that a template writes behind a message

static const char blanks[] = " \t\n\v\f\r";

static const json_t *last_of(const json_t *messages)
{
    const size_t n = json_array_size(messages);
    return n == 0 ? NULL : json_array_get(messages, n - 1);
}

bool msgl__final_message_open(const json_t *messages)
{
    const json_t *m = last_of(messages);
    const char *role = json_string_value(json_object_get(m, "role"));
    const char *text = json_string_value(json_object_get(m, "content"));
    return role != NULL && strcmp(role, "assistant") == 0 && text != NULL &&
           text[strspn(text, blanks)] != '\0' && json_object_get(m, "tool_calls") == NULL;
}

int msgl__final_message_parse(const json_t *o, bool *out, msgl_api_error *e)
{
    static const char name[] = "continue_final_message";
    *out = false;
    const int rc = msgl__field_bool(o, name, out, e);
    if (rc < 0 || !*out) return rc < 0 ? rc : 0;
    if (json_is_true(json_object_get(o, "add_generation_prompt"))) {
        return msgl__api_fail(e, 400, name, "invalid_value",
                              "'%s' and 'add_generation_prompt' are both true; allowed: one of "
                              "them.",
                              name);
    }
    if (msgl__final_message_open(json_object_get(o, "messages"))) return 0;
    return msgl__api_fail(e, 400, name, "invalid_value",
                          "'%s' is true; the last of 'messages' must then be the assistant's, with "
                          "text and without 'tool_calls'.",
                          name);
}

// The last place of part[0, n) in text[0, len), or NULL. Only near the end, where the last message
// is: what a client sends may be long and alike, and looking everywhere would take a square of it.
static const char *find_last(const char *text, size_t len, const char *part, size_t n)
{
    for (size_t behind = 0; behind <= MAX_BEHIND && n + behind <= len; behind++) {
        const char *at = text + len - n - behind;
        if (memcmp(at, part, n) == 0) return at;
    }
    return NULL;
}

static void cut_spans(msgl_text_span *spans, size_t *n, size_t len)
{
    while (*n > 0 && spans[*n - 1].start >= len) --*n;
    if (*n > 0 && spans[*n - 1].end > len) spans[*n - 1].end = len;
}

int msgl__final_message_cut(const json_t *messages, msgl_rendered *r)
{
    const json_t *content = json_object_get(last_of(messages), "content");
    const char *text = json_string_value(content);
    size_t len = json_string_length(content);
    const size_t before = strspn(text, blanks);
    text += before;
    len -= before;
    size_t stripped = len;
    while (stripped > 0 && strchr(blanks, text[stripped - 1]) != NULL) stripped--;
    const char *begin = msgl__strbuf_str(&r->text);
    const char *at = find_last(begin, r->text.len, text, stripped);
    if (at == NULL) return MSGL_EINVAL;
    const size_t from = (size_t)(at - begin);
    const bool whole = r->text.len - from >= len && memcmp(at, text, len) == 0;
    r->text.len = from + (whole ? len : stripped);
    r->text.data[r->text.len] = '\0';
    cut_spans(r->untrusted, &r->num_untrusted, r->text.len);
    cut_spans(r->foreign, &r->num_foreign, r->text.len);
    return 0;
}
