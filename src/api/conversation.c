// SPDX-License-Identifier: Apache-2.0
#include "api/conversation.h"

#include <string.h>

#include "api/final_message.h"
#include "template/content_form.h"
#include "utils/json.h"

enum {
    COPY_BYTES = 1024, // of a message that is copied, its text aside
    LATER_BUDGET = 4,  // a template of a request has this part of its steps for each later try
    NO_FORM = -1,      // of a role that was not asked for yet
};

static const char blanks[] = " \t\n\v\f\r";

static int out_of_memory(msgl_err *err)
{
    return msgl__err_set(err, MSGL_ENOMEM, "out of memory for the messages");
}

static const char *role_of(const json_t *m)
{
    const char *role = json_string_value(json_object_get(m, "role"));
    return role == NULL ? "" : role;
}

static bool is_system(const json_t *m)
{
    return msgl__content_role(role_of(m)) == MSGL_CONTENT_SYSTEM;
}

static bool is_assistant(const json_t *m)
{
    return strcmp(role_of(m), "assistant") == 0;
}

// --- texts ---

// A content's text behind what *out has: parts are joined by one line break, as vLLM does.
static int add_content(const json_t *content, msgl_strbuf *out)
{
    if (json_is_string(content)) {
        return msgl__strbuf_add(out, json_string_value(content), json_string_length(content));
    }
    int rc = 0;
    for (size_t i = 0; i < json_array_size(content) && rc == 0; i++) {
        const json_t *text = json_object_get(json_array_get(content, i), "text");
        if (i > 0) rc = msgl__strbuf_addc(out, '\n');
        if (rc == 0) rc = msgl__strbuf_add(out, json_string_value(text), json_string_length(text));
    }
    return rc;
}

// The texts of messages [from, to), a blank line between those that are not empty. NULL: no memory.
static json_t *texts_of(const json_t *in, size_t from, size_t to, const char *name,
                        bool (*wanted)(const json_t *m))
{
    msgl_strbuf all;
    msgl__strbuf_init(&all, SIZE_MAX / 2);
    int rc = 0;
    for (size_t i = from; i < to && rc == 0; i++) {
        const json_t *m = json_array_get(in, i);
        if (wanted != NULL && !wanted(m)) continue;
        const size_t before = all.len;
        if (all.len > 0) rc = msgl__strbuf_adds(&all, "\n\n");
        const size_t behind = all.len;
        if (rc == 0) rc = add_content(json_object_get(m, name), &all);
        if (all.len == behind) all.len = before; // it is empty
    }
    json_t *out = rc == 0 ? json_stringn(all.len == 0 ? "" : all.data, all.len) : NULL;
    msgl__strbuf_free(&all);
    return out;
}

// --- what the template takes ---

typedef struct attempt {
    msgl_conversation *c;
    int forms[MSGL_CONTENT_ROLES]; // msgl_content_form, or NO_FORM
    bool has_tools;
    msgl_err *err;
} attempt;

static int form_of(attempt *a, const json_t *m, msgl_content_form *out)
{
    const msgl_content_role role = msgl__content_role(role_of(m));
    if (a->forms[role] == NO_FORM) {
        const int rc = msgl__chat_templates_content_form(a->c->templates, a->c->own, a->has_tools,
                                                         role, a->c->limits.cancelled, out);
        if (rc != 0) return msgl__err_set(a->err, rc, "the chat template was not looked at");
        a->forms[role] = (int)*out;
    }
    *out = (msgl_content_form)a->forms[role];
    return 0;
}

static int claim(const attempt *a, size_t bytes)
{
    if (a->c->claim == NULL) return 0;
    a->c->refused = msgl__claim_add(a->c->claim, MSGL_BUDGET_PROMPT, bytes);
    return a->c->refused == 0 ? 0 : MSGL_EBUSY;
}

// How many bytes a content's texts have.
static size_t content_bytes(const json_t *content)
{
    size_t n = json_string_length(content);
    for (size_t i = 0; i < json_array_size(content); i++) {
        n += json_string_length(json_object_get(json_array_get(content, i), "text")) + 1;
    }
    return n;
}

// The message with another content, a reference that is taken over, at its place in *messages.
static int replace_content(attempt *a, json_t *messages, size_t i, json_t *content)
{
    json_t *m = content == NULL ? NULL : msgl__json_copy(json_array_get(messages, i));
    if (m == NULL) {
        json_decref(content);
        return out_of_memory(a->err);
    }
    int bad = json_object_set_new(m, "content", content);
    bad |= json_array_set_new(messages, i, m);
    return bad == 0 ? 0 : out_of_memory(a->err);
}

static json_t *joined(const json_t *parts)
{
    msgl_strbuf all;
    msgl__strbuf_init(&all, SIZE_MAX / 2);
    const int rc = add_content(parts, &all);
    json_t *out = rc == 0 ? json_stringn(msgl__strbuf_str(&all), all.len) : NULL;
    msgl__strbuf_free(&all);
    return out;
}

static json_t *one_part(json_t *text)
{
    return json_pack("[{s:s,s:O}]", "type", "text", "text", text);
}

// Contents in the form that the template takes.
static int adapt(attempt *a, json_t *messages)
{
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *m = json_array_get(messages, i);
        json_t *content = json_object_get(m, "content");
        msgl_content_form form;
        if (content == NULL) continue;
        int rc = form_of(a, m, &form);
        if (rc != 0) return rc;
        const bool join = json_is_array(content) && form == MSGL_CONTENT_TEXT;
        if (!join && !(json_is_string(content) && form == MSGL_CONTENT_PARTS)) continue;
        rc = claim(a, COPY_BYTES + (join ? 2 * content_bytes(content) : 0));
        if (rc != 0) return rc;
        rc = replace_content(a, messages, i, join ? joined(content) : one_part(content));
        if (rc != 0) return rc;
    }
    return 0;
}

// --- changes ---
// Each: *out is a new array, or NULL if there is nothing to change.

typedef int (*change)(const json_t *in, json_t **out);

static int add_empty(const json_t *in, json_t **out)
{
    bool any = false;
    for (size_t i = 0; i < json_array_size(in) && !any; i++) {
        any = json_object_get(json_array_get(in, i), "content") == NULL;
    }
    *out = any ? json_array() : NULL;
    for (size_t i = 0; i < json_array_size(in) && any; i++) {
        json_t *m = json_array_get(in, i);
        if (json_object_get(m, "content") != NULL) {
            if (json_array_append(*out, m) != 0) return MSGL_ENOMEM;
            continue;
        }
        m = msgl__json_copy(m);
        if (json_object_set_new(m, "content", json_string("")) != 0) {
            json_decref(m);
            return MSGL_ENOMEM;
        }
        if (json_array_append_new(*out, m) != 0) return MSGL_ENOMEM;
    }
    return any && *out == NULL ? MSGL_ENOMEM : 0;
}

// Whether there are system messages beside a first one.
static bool has_later_system(const json_t *in)
{
    for (size_t i = 1; i < json_array_size(in); i++) {
        if (is_system(json_array_get(in, i))) return true;
    }
    return false;
}

// The other messages behind those that *out has.
static int append_others(const json_t *in, json_t *out)
{
    int bad = out == NULL;
    for (size_t i = 0; i < json_array_size(in); i++) {
        json_t *m = json_array_get(in, i);
        if (!is_system(m)) bad |= json_array_append(out, m);
    }
    return bad == 0 ? 0 : MSGL_ENOMEM;
}

static int merge_system(const json_t *in, json_t **out)
{
    *out = NULL;
    if (!has_later_system(in)) return 0;
    json_t *m = json_pack("{s:s,s:o}", "role", "system", "content",
                          texts_of(in, 0, json_array_size(in), "content", is_system));
    *out = json_array();
    if (json_array_append_new(*out, m) != 0) return MSGL_ENOMEM;
    return append_others(in, *out);
}

static bool are_neighbours(const json_t *a, const json_t *b)
{
    return strcmp(role_of(a), role_of(b)) == 0 &&
           (is_assistant(a) || strcmp(role_of(a), "user") == 0);
}

static bool has_neighbours(const json_t *in)
{
    for (size_t i = 1; i < json_array_size(in); i++) {
        if (are_neighbours(json_array_get(in, i - 1), json_array_get(in, i))) return true;
    }
    return false;
}

// Messages [from, to), of one role, as one. NULL: no memory.
static json_t *as_one(const json_t *in, size_t from, size_t to)
{
    static const char *const texts[] = {"content", "reasoning_content"};
    json_t *m = msgl__json_copy(json_array_get(in, from)), *calls = json_array();
    int bad = m == NULL || calls == NULL;
    for (size_t k = 0; k < sizeof texts / sizeof texts[0]; k++) {
        json_t *text = texts_of(in, from, to, texts[k], NULL);
        const bool empty = text != NULL && json_string_length(text) == 0;
        if (empty) json_decref(text); // one that has none stays without
        if (!empty) bad |= json_object_set_new(m, texts[k], text);
    }
    for (size_t i = from; i < to; i++) {
        json_t *more = json_object_get(json_array_get(in, i), "tool_calls");
        if (more != NULL) bad |= json_array_extend(calls, more);
    }
    if (json_array_size(calls) > 0) bad |= json_object_set(m, "tool_calls", calls);
    json_decref(calls);
    if (bad == 0) return m;
    json_decref(m);
    return NULL;
}

static int merge_turns(const json_t *in, json_t **out)
{
    *out = NULL;
    if (!has_neighbours(in)) return 0;
    *out = json_array();
    for (size_t from = 0, to; from < json_array_size(in); from = to) {
        json_t *first = json_array_get(in, from);
        for (to = from + 1; to < json_array_size(in); to++) {
            if (!are_neighbours(first, json_array_get(in, to))) break;
        }
        json_t *m = to == from + 1 ? json_incref(first) : as_one(in, from, to);
        if (json_array_append_new(*out, m) != 0) return MSGL_ENOMEM;
    }
    return 0;
}

// The system's texts in front of the first message of the user's.
static int system_to_user(const json_t *in, json_t **out)
{
    const size_t n = json_array_size(in);
    size_t user = 0;
    *out = NULL;
    while (user < n && strcmp(role_of(json_array_get(in, user)), "user") != 0) user++;
    if (user == n) return 0;
    json_t *texts = json_array();
    int bad = texts == NULL;
    for (size_t i = 0; i < n; i++) {
        json_t *m = json_array_get(in, i);
        if (is_system(m)) bad |= json_array_append(texts, m);
    }
    const bool any = json_array_size(texts) > 0;
    bad |= json_array_append(texts, json_array_get(in, user));
    json_t *m = any ? msgl__json_copy(json_array_get(in, user)) : NULL;
    if (any) {
        bad |= json_object_set_new(m, "content",
                                   texts_of(texts, 0, json_array_size(texts), "content", NULL));
        *out = json_array();
        bad |= append_others(in, *out);
        // It is behind those before it that are not the system's.
        size_t at = 0;
        for (size_t i = 0; i < user; i++) at += !is_system(json_array_get(in, i));
        bad |= json_array_set(*out, at, m);
    }
    json_decref(m);
    json_decref(texts);
    return bad == 0 ? 0 : MSGL_ENOMEM;
}

// --- renders ---

// Whether the text has each of the texts of system messages beside a first one, in their order. A
// template may trim them.
static bool shows_system(const json_t *messages, const msgl_strbuf *text)
{
    const char *at = msgl__strbuf_str(text);
    size_t left = text->len;
    for (size_t i = 1; i < json_array_size(messages); i++) {
        const json_t *m = json_array_get(messages, i), *content = json_object_get(m, "content");
        const size_t parts = json_is_array(content) ? json_array_size(content) : 1;
        for (size_t k = 0; k < parts && is_system(m); k++) {
            const json_t *one = content;
            if (json_is_array(one)) one = json_object_get(json_array_get(content, k), "text");
            const char *s = json_string_value(one);
            size_t n = json_string_length(one);
            while (n > 0 && strchr(blanks, s[0]) != NULL) s++, n--;
            while (n > 0 && strchr(blanks, s[n - 1]) != NULL) n--;
            const char *found = n == 0 ? at : memmem(at, left, s, n);
            if (found == NULL) return false;
            left -= (size_t)(found + n - at);
            at = found + n;
        }
    }
    return true;
}

// One try with these messages, which are a copy of the list.
static int try_messages(attempt *a, json_t *messages, msgl_rendered *out)
{
    msgl_conversation *c = a->c;
    int rc = adapt(a, messages);
    if (rc == 0 && json_object_set(c->vars, "messages", messages) != 0) {
        rc = out_of_memory(a->err);
    }
    json_t *vars = c->vars;
    if (rc == 0 && c->continue_final) {
        vars = msgl__json_copy(c->vars);
        json_t *tagged = msgl__final_message_tag(messages);
        if (json_object_set_new(vars, "messages", tagged) != 0) rc = out_of_memory(a->err);
    }
    if (rc == 0) {
        rc = c->own != NULL
                 ? msgl__chat_templates_render_as(c->templates, c->own, vars, &c->limits, out,
                                                  a->err)
                 : msgl__chat_templates_render(c->templates, vars, &c->limits, out, a->err);
    }
    if (vars != c->vars) json_decref(vars);
    if (rc == 0 && c->continue_final && msgl__final_message_cut(messages, out) != 0) {
        msgl__rendered_free(out);
        rc = MSGL_EUNSUPPORTED;
    }
    return rc;
}

static const struct {
    change make;
    msgl_conversation_change bit;
    const char *note;
} changes[] = {
    {add_empty, MSGL_CHANGED_EMPTY,
     "the chat template takes no assistant's message without content: an empty one is put there"},
    {merge_system, MSGL_CHANGED_SYSTEM,
     "the chat template takes one system message, in front of all others: the texts of a "
     "conversation's system and developer messages are put together there"},
    {merge_turns, MSGL_CHANGED_TURNS,
     "the chat template takes messages of user and assistant in turns only: neighbours of one "
     "role are put together"},
    {system_to_user, MSGL_CHANGED_NO_SYSTEM,
     "the chat template takes no system message: its text is put in front of the first user's"},
};

void msgl__conversation_note(unsigned changed, msgl_strbuf *notes)
{
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        if ((changed & changes[i].bit) == 0) continue;
        // With its NUL; one that finds no room is not worth failing for.
        (void)msgl__strbuf_add(notes, changes[i].note, strlen(changes[i].note) + 1);
    }
}

static json_t *copy_list(attempt *a, const json_t *messages)
{
    json_t *copy = msgl__json_copy(messages);
    if (copy == NULL) (void)out_of_memory(a->err);
    return copy;
}

// The messages changed by changes[i], which are tried in the place of *messages (owned). *tried:
// there was something to change. The status of the try.
static int try_change(attempt *a, size_t i, json_t **messages, bool *tried, msgl_rendered *out)
{
    json_t *next = NULL;
    size_t bytes = 0;
    for (size_t k = 0; k < json_array_size(*messages); k++) {
        const json_t *content = json_object_get(json_array_get(*messages, k), "content");
        bytes += COPY_BYTES + 2 * content_bytes(content);
    }
    int rc = claim(a, bytes);
    if (rc != 0) return rc;
    if (changes[i].make(*messages, &next) != 0) {
        json_decref(next);
        return out_of_memory(a->err);
    }
    *tried = next != NULL;
    if (next == NULL) return 0;
    json_decref(*messages);
    *messages = next;
    a->c->changed |= changes[i].bit;
    json_t *copy = copy_list(a, next);
    rc = copy == NULL ? MSGL_ENOMEM : try_messages(a, copy, out);
    json_decref(copy);
    return rc;
}

int msgl__conversation_render(msgl_conversation *c, msgl_rendered *out, msgl_err *err)
{
    msgl_err later = {0};
    msgl_rendered given = {0}; // of the messages as they came, where some are not shown
    const json_t *tools = json_object_get(c->vars, "tools");
    attempt a = {.c = c, .has_tools = tools != NULL && !json_is_null(tools), .err = err};
    for (int i = 0; i < MSGL_CONTENT_ROLES; i++) a.forms[i] = NO_FORM;
    c->changed = 0;
    json_t *messages = copy_list(&a, json_object_get(c->vars, "messages"));
    json_t *copy = messages == NULL ? NULL : copy_list(&a, messages);
    int rc = copy == NULL ? MSGL_ENOMEM : try_messages(&a, copy, out);
    json_decref(copy);
    const int first = rc;
    if (rc == 0 && has_later_system(messages) && !shows_system(messages, &out->text)) {
        given = *out;
        *out = (msgl_rendered){0};
        rc = MSGL_EINVAL;
    }
    // A template that a request brings may take all of its steps and raise: not as often again.
    if (c->own != NULL) c->limits.max_steps /= LATER_BUDGET;
    a.err = &later; // the client's error stays the one about the messages that it sent
    for (size_t i = 0; i < sizeof changes / sizeof changes[0] && rc == MSGL_EINVAL; i++) {
        bool tried = false;
        const int now = try_change(&a, i, &messages, &tried, out);
        if (tried || now != 0) rc = now;
    }
    json_decref(messages);
    if (rc == MSGL_EINVAL && first == 0) { // it takes them in no other form, either
        *out = given;
        c->changed = 0;
        return 0;
    }
    msgl__rendered_free(&given);
    if (rc == MSGL_EINVAL) return first;
    if (rc != 0 && rc != first) *err = later;
    return rc;
}
