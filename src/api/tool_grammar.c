// SPDX-License-Identifier: Apache-2.0
#include "api/tool_grammar.h"

#include <string.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "grammar/constrain.h"
#include "api/fields.h"
#include "api/json.h"
#include "utils/json.h"

enum { MAX_BYTES = 1 << 20 }; // as the grammar's own limit

// Before arguments models write nothing, a space or a new line: as much as JSON's grammar has
// between its tokens.
static const char BLANK[] = "BLANK: /( |\\r?\\n[ \\t]{0,64})?/\n";

typedef struct writer {
    const msgl_tool_use *use;
    const msgl_api_config *cfg;
    msgl_claim *claim;
    msgl_tool_writing form;
    msgl_strbuf out;
    bool any; // arguments are any object
} writer;

static const json_t *function_at(const json_t *tools, size_t i)
{
    return json_object_get(json_array_get(tools, i), "function");
}

static const char *name_at(const json_t *tools, size_t i)
{
    return json_string_value(json_object_get(function_at(tools, i), "name"));
}

// Whether an answer can have a call of this tool.
static bool is_used(const msgl_tool_use *use, size_t i)
{
    return use->name == NULL || strcmp(use->name, name_at(use->tools, i)) == 0;
}

static bool any_strict(const msgl_tool_use *use)
{
    bool strict = false;
    for (size_t i = 0; i < json_array_size(use->tools); i++) {
        const json_t *f = function_at(use->tools, i);
        strict |= is_used(use, i) && json_is_true(json_object_get(f, "strict"));
    }
    return strict;
}

// Appends v, which it takes over (NULL: out of memory), as JSON.
static int put_json(json_t *v, msgl_strbuf *to)
{
    const int rc = msgl__json_put(to, v, JSON_COMPACT);
    json_decref(v);
    return rc;
}

// tool_I: the arguments of the I-th tool. Those of a function without a schema of an object, which
// is what arguments are, are any object.
static int put_arguments(writer *w, size_t i)
{
    const json_t *f = function_at(w->use->tools, i), *schema = msgl__field(f, "parameters");
    const char *type = json_string_value(json_object_get(schema, "type"));
    const bool free = w->any || type == NULL || strcmp(type, "object") != 0 ||
                      (!w->use->forced && !json_is_true(json_object_get(f, "strict")));
    int rc = msgl__strbuf_addf(&w->out, "tool_%zu: %%json ", i);
    if (rc != 0 || free) {
        return rc != 0 ? rc : msgl__strbuf_adds(&w->out, "{\"type\":\"object\"}\n");
    }
    rc = put_json(json_incref((json_t *)(uintptr_t)schema), &w->out);
    return rc == 0 ? msgl__strbuf_addc(&w->out, '\n') : rc;
}

// A text of the answer as a terminal, with a blank before it.
static int put_text(writer *w, const char *text)
{
    const int rc = msgl__strbuf_addc(&w->out, ' ');
    return rc == 0 ? put_json(json_string(text), &w->out) : rc;
}

// The name in JSON's form, without its quotes: forms that are written whole have names in JSON.
static int put_name(writer *w, const char *name)
{
    msgl_strbuf quoted;
    msgl__strbuf_init(&quoted, MAX_BYTES);
    int rc = put_json(json_string(name), &quoted);
    if (rc == 0) {
        quoted.data[quoted.len - 1] = '\0';
        rc = put_text(w, quoted.data + 1);
    }
    msgl__strbuf_free(&quoted);
    return rc;
}

// Text in which no mark is, whose first byte is nowhere else in it. A mark that begins and does
// not go on may be followed by another one at once.
static int put_free_text(writer *w)
{
    const char *mark = w->form.mark;
    const size_t n = strlen(mark);
    msgl_strbuf *b = &w->out;
    int rc = msgl__strbuf_addf(b, "TEXT: /([^%c]|(%c", mark[0], mark[0]);
    for (size_t i = 1; i + 1 < n && rc == 0; i++) rc = msgl__strbuf_addf(b, "(%c", mark[i]);
    for (size_t i = 1; i + 1 < n && rc == 0; i++) rc = msgl__strbuf_adds(b, ")?");
    if (rc == 0) rc = msgl__strbuf_addf(b, ")*%c", mark[0]);
    for (size_t i = 1; i < n && rc == 0; i++) {
        rc = msgl__strbuf_addf(b, "([^%c%c]%s%.1s", mark[0], mark[i], i + 1 < n ? "|" : "",
                               i + 1 < n ? mark + i : "");
    }
    for (size_t i = 1; i < n && rc == 0; i++) rc = msgl__strbuf_addc(b, ')');
    if (rc == 0) rc = msgl__strbuf_addf(b, ")*(%c", mark[0]);
    for (size_t i = 1; i + 1 < n && rc == 0; i++) rc = msgl__strbuf_addf(b, "(%c", mark[i]);
    for (size_t i = 1; i + 1 < n && rc == 0; i++) rc = msgl__strbuf_adds(b, ")?");
    return rc == 0 ? msgl__strbuf_adds(b, ")*/\n") : rc;
}

// call: a call from its name to its end.
static int put_call(writer *w)
{
    int rc = msgl__strbuf_adds(&w->out, "call: (");
    for (size_t i = 0; i < json_array_size(w->use->tools) && rc == 0; i++) {
        rc = i == 0 ? 0 : msgl__strbuf_adds(&w->out, " |");
        if (rc == 0) rc = put_name(w, name_at(w->use->tools, i));
        if (rc == 0) rc = put_text(w, w->form.behind);
        if (rc == 0) rc = msgl__strbuf_addf(&w->out, " BLANK tool_%zu", i);
    }
    if (rc == 0) rc = msgl__strbuf_adds(&w->out, ") BLANK");
    if (rc == 0) rc = put_text(w, w->form.close);
    return rc == 0 ? msgl__strbuf_addc(&w->out, '\n') : rc;
}

// Behind the first call: others, and what ends them all.
static int put_more(writer *w)
{
    const msgl_tool_writing *form = &w->form;
    int rc = 0;
    if (w->use->several && form->next != NULL) {
        rc = msgl__strbuf_adds(&w->out, " (");
        if (rc == 0) rc = put_text(w, form->next);
        if (rc == 0) rc = put_text(w, form->again == NULL ? form->open : form->again);
        if (rc == 0) rc = msgl__strbuf_adds(&w->out, " call)*");
    }
    if (rc != 0 || form->end == NULL) return rc;
    rc = msgl__strbuf_adds(&w->out, " BLANK");
    return rc == 0 ? put_text(w, form->end) : rc;
}

// What the answer begins with: a call, its arguments, or text.
static int put_start(writer *w, size_t named)
{
    const msgl_tool_use *use = w->use;
    int rc = msgl__strbuf_adds(&w->out, "start:");
    if (!use->forced) {
        if (rc == 0) rc = msgl__strbuf_adds(&w->out, " TEXT (");
        if (rc == 0) rc = put_text(w, w->form.open);
        if (rc == 0)
            rc = msgl__strbuf_adds(&w->out, use->several ? " call TEXT)*" : " call TEXT)?");
        return rc == 0 ? msgl__strbuf_addc(&w->out, '\n') : rc;
    }
    if (rc == 0 && use->name == NULL) rc = msgl__strbuf_adds(&w->out, " call");
    if (rc == 0 && use->name != NULL) {
        rc = msgl__strbuf_addf(&w->out, " BLANK tool_%zu", named);
        if (rc == 0 && w->form.close != NULL) rc = msgl__strbuf_adds(&w->out, " BLANK");
        if (rc == 0 && w->form.close != NULL) rc = put_text(w, w->form.close);
    }
    if (rc == 0) rc = put_more(w);
    return rc == 0 ? msgl__strbuf_addc(&w->out, '\n') : rc;
}

static int put_grammar(writer *w)
{
    const msgl_tool_use *use = w->use;
    const bool several = use->several && w->form.next != NULL;
    const bool all = !use->forced || use->name == NULL || several;
    size_t named = 0;
    int rc = msgl__strbuf_adds(&w->out, BLANK);
    for (size_t i = 0; i < json_array_size(use->tools) && rc == 0; i++) {
        if (is_used(use, i)) named = i;
        if (all || is_used(use, i)) rc = put_arguments(w, i);
    }
    if (rc == 0 && all) rc = put_call(w);
    if (rc == 0 && !use->forced) rc = put_free_text(w);
    return rc == 0 ? put_start(w, named) : rc;
}

// Into w->out.
static int make(writer *w, msgl_strbuf *left_out, msgl_err *err)
{
    msgl__strbuf_free(&w->out);
    msgl__strbuf_init(&w->out, MAX_BYTES);
    int rc = put_grammar(w);
    if (rc != 0) {
        return msgl__err_set(err, rc, "grammar: more than %d bytes of schemas (limit: input)",
                             MAX_BYTES);
    }
    const msgl_constraint_text c = {MSGL_GRAMMAR_LARK,
                                    (char *)(uintptr_t)msgl__strbuf_str(&w->out)};
    const msgl_constraint_use how = {w->cfg, w->claim, left_out, any_strict(w->use)};
    return msgl__constraint_compile(&c, &how, err);
}

// Whether the answer is to be constrained by a grammar.
static bool is_wanted(const msgl_tool_use *use, const msgl_tool_writing *form)
{
    const bool strict = any_strict(use);
    if (!use->forced) return strict && form->mark != NULL;
    if (form->next != NULL) return true;
    // The answer ends with the arguments of its first call.
    return use->name != NULL && (strict || !use->several);
}

int msgl__tool_grammar(const msgl_tool_use *use, const msgl_api_config *cfg, msgl_claim *claim,
                       msgl_strbuf *left_out, msgl_constraint_text *out, msgl_api_error *e)
{
    writer w = {.use = use, .cfg = cfg, .claim = claim};
    msgl_err err = {0};
    *out = (msgl_constraint_text){0};
    if (!msgl__tool_form_writing(use->form, &w.form) || !is_wanted(use, &w.form)) return 0;
    int rc = make(&w, left_out, &err);
    // A schema that cannot be compiled is left out, unless its tool is strict.
    const bool final = rc == 0 || rc == MSGL_ENOMEM || rc == MSGL_EBUSY || rc == MSGL_API_FORM;
    if (!final && !any_strict(use)) {
        w.any = true;
        rc = make(&w, left_out, &err);
    }
    if (rc == 0) {
        out->kind = MSGL_GRAMMAR_LARK;
        out->text = msgl__strdup(msgl__strbuf_str(&w.out));
        if (out->text == NULL) rc = MSGL_ENOMEM;
    }
    msgl__strbuf_free(&w.out);
    if (rc == 0) return 0;
    msgl__constraint_text_free(out);
    if (rc == MSGL_API_FORM) return rc;
    if (rc == MSGL_ENOMEM) return msgl__api_oom(e);
    if (rc == MSGL_EBUSY) return msgl__api_fail_memory(e, rc);
    return msgl__api_fail(e, 400, "tools",
                          rc == MSGL_EUNSUPPORTED ? "unsupported_parameter" : "invalid_value",
                          "'tools' with \"strict\": true: %s.", err.text);
}
