// SPDX-License-Identifier: Apache-2.0
#include "api/begin_answer.h"

#include <string.h>

#include "api/json.h"
#include "core/mem.h"

enum { TEXT_MAX = 1 << 24 };

typedef struct beginning {
    msgl_gen_request *req;
    const msgl_tokenizer *t;
    msgl_reasoning_marks marks;
    bool thinks; // there may be thoughts
    bool behind; // a call that is asked for comes behind them, and is no part of the prompt
} beginning;

static int add_span(msgl_text_span **spans, size_t *n, msgl_text_span one)
{
    msgl_text_span *more = msgl__reallocarray(*spans, *n + 1, sizeof *more);
    if (more == NULL) return MSGL_ENOMEM;
    *spans = more;
    more[(*n)++] = one;
    return 0;
}

// The prompt goes on with the thoughts' end or with a call's first bytes, in which the name is the
// client's.
static int prefill(msgl_gen_request *req, bool closes, bool calls, msgl_rendered *r)
{
    msgl_strbuf *out = &req->chat.prefill;
    size_t at = 0;
    int rc = 0;
    if (closes) {
        rc = msgl__strbuf_addf(out, "\n%s\n\n", msgl__reasoning_close(req->chat.split.reasoning));
    }
    if (rc == 0 && !calls) return msgl__strbuf_add(&r->text, out->data, out->len);
    if (rc == 0)
        rc = msgl__tool_form_opening(req->chat.split.tools, req->chat.force_name, out, &at);
    const size_t before = r->text.len,
                 n = req->chat.force_name == NULL ? 0 : strlen(req->chat.force_name);
    if (rc == 0) rc = msgl__strbuf_add(&r->text, out->data, out->len);
    if (rc != 0 || n == 0) return rc;
    const msgl_text_span name = {before + at, before + at + n};
    rc = add_span(&r->untrusted, &r->num_untrusted, name);
    return rc == 0 ? add_span(&r->foreign, &r->num_foreign, name) : rc;
}

// --- stages, as grammar/stages.h has them ---

// "NAME": the ids of a text, in which what span has is the client's.
static int put_ids(const beginning *b, json_t *o, const char *name, const char *text,
                   msgl_text_span span)
{
    const size_t spans = span.end > span.start;
    const msgl_encode_opts opts = {
        .untrusted = &span, .num_untrusted = spans, .foreign = &span, .num_foreign = spans};
    msgl_ids ids = {0};
    msgl_err err;
    json_t *list = json_array();
    int bad = list == NULL;
    if (bad == 0) bad = msgl__tokenizer_encode(b->t, text, strlen(text), &opts, &ids, &err);
    for (size_t i = 0; i < ids.len && bad == 0; i++) {
        bad = json_array_append_new(list, json_integer(ids.data[i]));
    }
    msgl__ids_free(&ids);
    return json_object_set_new(o, name, list) | bad;
}

static int put_texts(json_t *o, const char *name, const char *const *texts)
{
    json_t *list = json_array();
    int bad = list == NULL;
    for (; *texts != NULL && bad == 0; texts++) {
        bad = json_array_append_new(list, json_string(*texts));
    }
    return json_object_set_new(o, name, list) | bad;
}

static int put_text(json_t *o, const char *name, const char *text)
{
    const char *const texts[] = {text, NULL};
    return put_texts(o, name, texts);
}

// Parts of `whole` forms come one behind the other; a call's is begun with what is before it.
static int put_opening(const beginning *b, json_t *o, const char *name, const char *before)
{
    const char *called = b->req->chat.force_name;
    msgl_strbuf text;
    size_t at;
    msgl__strbuf_init(&text, TEXT_MAX);
    int bad = msgl__strbuf_adds(&text, before);
    if (bad == 0) bad = msgl__tool_form_opening(b->req->chat.split.tools, called, &text, &at);
    if (bad == 0) {
        const msgl_text_span span = {at, called == NULL ? at : at + strlen(called)};
        bad = put_ids(b, o, name, msgl__strbuf_str(&text), span);
    }
    msgl__strbuf_free(&text);
    return bad;
}

static int put_thoughts(const beginning *b, json_t *o)
{
    const msgl_reasoning_marks *m = &b->marks;
    const bool whole = m->whole && !b->behind;
    int bad = 0;
    if (b->req->chat.split.thinking || whole) {
        bad |= json_object_set_new(o, "thinking", json_true());
    } else if (!b->req->chat.continue_final) {
        bad |= put_text(o, "open", m->begin);
    }
    const bool part = m->whole && b->behind;
    bad |= part ? put_text(o, "close", m->part_end) : put_texts(o, "close", m->closes);
    if (whole && b->req->chat.calls_beside) bad |= put_texts(o, "away", m->away);
    if (b->req->chat.thinking_budget >= 0) {
        const msgl_text_span none = {0};
        bad |= json_object_set_new(o, "budget", json_integer(b->req->chat.thinking_budget));
        bad |= put_ids(b, o, "end", part ? m->part_end : m->end, none);
    }
    if (!b->behind) return bad;
    bad |= put_opening(b, o, "opening", "");
    return part ? bad | put_opening(b, o, "behind", m->part_begin) : bad;
}

// What the calls begin with that may come in place of the form.
static int put_calls(const beginning *b, json_t *o)
{
    const msgl_tool_form *form = b->req->chat.split.tools;
    const char *const *marks = msgl__tool_form_marks(form);
    msgl_tool_writing writing;
    if (b->req->chat.call_grammar != NULL && msgl__tool_form_writing(form, &writing)) {
        const int bad = put_text(o, "calls", writing.open);
        return bad | json_object_set_new(o, "grammar", json_string(b->req->chat.call_grammar));
    }
    if (marks != NULL) return put_texts(o, "calls", marks);
    const json_t *tools = json_object_get(b->req->chat.vars, "tools");
    json_t *list = json_array();
    msgl_strbuf text;
    msgl__strbuf_init(&text, TEXT_MAX);
    int bad = list == NULL;
    for (size_t i = 0; i < json_array_size(tools) && bad == 0; i++) {
        const json_t *f = json_object_get(json_array_get(tools, i), "function");
        msgl__strbuf_clear(&text);
        bad = msgl__tool_form_by_name(form, json_string_value(json_object_get(f, "name")), &text);
        // A name of kilobytes is not looked for.
        if (bad != 0 || text.len == 0 || text.len > 2 * MSGL_TOOL_NAME_MAX) continue;
        bad = json_array_append_new(list, json_stringn(text.data, text.len));
    }
    msgl__strbuf_free(&text);
    return json_object_set_new(o, "calls", list) | bad;
}

static int put_stages(const beginning *b)
{
    json_t *o = json_object();
    msgl_req_extra_parts parts = msgl__req_extra_parts_of(b->req->extra);
    msgl_req_extra *made = NULL;
    msgl_strbuf text;
    msgl_err err;
    msgl__strbuf_init(&text, TEXT_MAX);
    int bad = o == NULL;
    if (bad == 0 && b->thinks) bad |= put_thoughts(b, o);
    if (bad == 0 && b->req->chat.calls_beside && !(b->thinks && b->marks.whole))
        bad |= put_calls(b, o);
    if (bad == 0) bad |= msgl__json_put(&text, o, JSON_COMPACT);
    json_decref(o);
    parts.stages = msgl__strbuf_str(&text);
    if (bad == 0) bad |= msgl__req_extra_create_with(&parts, INT32_MAX, &made, &err);
    msgl__strbuf_free(&text);
    if (bad != 0) return MSGL_ENOMEM;
    msgl__req_extra_unref(b->req->extra);
    b->req->extra = made;
    return 0;
}

// --- the whole ---

// Whether the form that the client asks for spells the thoughts' end: they are part of it then.
static bool has_thoughts(const beginning *b)
{
    const msgl_req_extra *x = b->req->extra;
    return !b->marks.whole && !b->req->chat.text_first && x != NULL &&
           strstr(x->grammar, b->marks.closes[0]) != NULL;
}

int msgl__begin_answer(msgl_gen_request *req, const msgl_tokenizer *t, msgl_rendered *r,
                       msgl_api_error *e)
{
    msgl_parser_config *split = &req->chat.split;
    const msgl_reasoning_form *form = split->reasoning;
    beginning b = {.req = req, .t = t};
    if (form != NULL) msgl__reasoning_marks(form, &b.marks);
    // A client's text opens no thoughts.
    const size_t from = r->num_untrusted == 0 ? 0 : r->untrusted[r->num_untrusted - 1].end;
    const char *end = msgl__strbuf_str(&r->text) + from;
    const size_t len = r->text.len - from;
    const bool opened = msgl__reasoning_opened(form, end, len);
    const bool closed = msgl__reasoning_closed(form, end, len);
    const bool bound = req->chat.force_call || msgl__req_extra_constrains(req->extra);
    const msgl_req_extra_parts parts = msgl__req_extra_parts_of(req->extra);
    // These fields constrain the answer's tokens from the first one on, those of thoughts included.
    const bool fixed =
        parts.num_allowed > 0 || req->bad_words != NULL || req->sampling.min_tokens > 0;
    const bool own = form != NULL && !req->chat.force_call && has_thoughts(&b);
    const bool may = form != NULL && !fixed && !own;
    b.thinks = may && (b.marks.whole || (!req->chat.no_thinking && !closed)) &&
               (bound || req->chat.thinking_budget >= 0);
    b.behind = b.thinks && req->chat.force_call;
    const bool closes = opened && !own && (req->chat.no_thinking || (bound && !b.thinks));
    const bool calls = req->chat.force_call && !b.behind;
    const bool assumed = msgl__reasoning_assumed(form, end, len) && !req->chat.no_thinking;
    split->thinking = opened || (assumed && !calls);
    int rc = closes || calls ? prefill(req, closes, calls, r) : 0;
    if (rc == 0 && (b.thinks || (req->chat.calls_beside && !fixed))) rc = put_stages(&b);
    return rc == 0 ? 0 : msgl__api_oom(e);
}
