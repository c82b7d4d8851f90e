// SPDX-License-Identifier: Apache-2.0
#include "api/final_message.h"

#include <string.h>

#include "api/fields.h"
#include "utils/json.h"

enum { MAX_BEHIND = 1024 }; // bytes that a template writes behind a message

static const char blanks[] = " \t\n\v\f\r";
// The blank at its end tells whether the template trims.
static const char mark[] = "<MINISGL-CONTINUES-HERE> ";

static const json_t *last_of(const json_t *messages)
{
    const size_t n = json_array_size(messages);
    return n == 0 ? NULL : json_array_get(messages, n - 1);
}

// The last text of a content, itself or of its parts; NULL: it has none.
static const json_t *last_text(const json_t *content)
{
    if (json_is_string(content)) return content;
    for (size_t i = json_array_size(content); i > 0; i--) {
        const json_t *text = json_object_get(json_array_get(content, i - 1), "text");
        if (json_is_string(text)) return text;
    }
    return NULL;
}

// The text in which the last message can go on; NULL: in none.
static const json_t *continued(const json_t *messages)
{
    const json_t *m = last_of(messages);
    const char *role = json_string_value(json_object_get(m, "role"));
    if (role == NULL || strcmp(role, "assistant") != 0) return NULL;
    if (json_object_get(m, "tool_calls") != NULL) return NULL;
    return last_text(json_object_get(m, "content"));
}

bool msgl__final_message_open(const json_t *messages)
{
    const char *text = json_string_value(continued(messages));
    return text != NULL && text[strspn(text, blanks)] != '\0';
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
    if (continued(json_object_get(o, "messages")) != NULL) return 0;
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

// The last text of the content, with the mark.
static json_t *tagged(const json_t *content)
{
    const json_t *text = last_text(content);
    json_t *with = json_sprintf("%s%s", json_string_value(text), mark);
    if (json_is_string(content) || with == NULL) return with;
    json_t *parts = msgl__json_copy(content);
    size_t i = json_array_size(parts);
    while (i > 0 && json_object_get(json_array_get(parts, i - 1), "text") != text) i--;
    json_t *part = i == 0 ? NULL : msgl__json_copy(json_array_get(parts, i - 1));
    int bad = json_object_set_new(part, "text", with);
    bad |= i == 0 ? -1 : json_array_set_new(parts, i - 1, part);
    if (bad == 0) return parts;
    json_decref(parts);
    return NULL;
}

json_t *msgl__final_message_tag(const json_t *messages)
{
    json_t *all = msgl__json_copy(messages), *m = msgl__json_copy(last_of(messages));
    int bad = all == NULL;
    bad |= json_object_set_new(m, "content", tagged(json_object_get(m, "content")));
    if (bad == 0) bad = json_array_set(all, json_array_size(all) - 1, m);
    json_decref(m);
    if (bad == 0) return all;
    json_decref(all);
    return NULL;
}

int msgl__final_message_cut(const json_t *messages, msgl_rendered *r)
{
    const json_t *content = last_text(json_object_get(last_of(messages), "content"));
    const char *text = json_string_value(content);
    size_t len = json_string_length(content);
    const size_t before = text == NULL ? 0 : strspn(text, blanks);
    const char *begin = msgl__strbuf_str(&r->text);
    const char *at = find_last(begin, r->text.len, mark, sizeof mark - 2);
    if (at == NULL || text == NULL) return MSGL_EINVAL;
    text += before;
    len -= before;
    const size_t end = (size_t)(at - begin);
    if (end < len || memcmp(at - len, text, len) != 0) return MSGL_EINVAL;
    r->text.len = end;
    if (at[sizeof mark - 2] != ' ') { // it trims: what is said last ends without blanks
        while (r->text.len > 0 && strchr(blanks, begin[r->text.len - 1]) != NULL) r->text.len--;
    }
    r->text.data[r->text.len] = '\0';
    cut_spans(r->untrusted, &r->num_untrusted, r->text.len);
    cut_spans(r->foreign, &r->num_foreign, r->text.len);
    return 0;
}
