// SPDX-License-Identifier: Apache-2.0
//
// Hermes and Qwen: <tool_call>\n{"name": "f", "arguments": {...}}\n</tool_call>, any number of them
// behind content. LongCat has other tags; InternLM <|action_start|><|plugin|> and <|action_end|>.
#include "parsers/internal.h"

enum { CALL = MSGL_FORM_TEXT + 1, CLOSE };

// A call's end, then what it may begin with: as what comes behind a call.
typedef struct call_marks {
    const char *closing[4];
} call_marks;

static const call_marks FORMS[] = {
    [MSGL_OBJECT_HERMES] = {{"</tool_call>", "<tool_call>"}},
    [MSGL_OBJECT_LONGCAT] = {{"</longcat_tool_call>", "<longcat_tool_call>"}},
    [MSGL_OBJECT_INTERNLM] = {{"<|action_end|>", "<|action_start|><|plugin|>",
                               "<|action_start|> <|plugin|>"}},
};

static const char *const *closing_of(const msgl_parser *p)
{
    return FORMS[p->form->variant].closing;
}

static const char *const *opens_of(const msgl_parser *p)
{
    return closing_of(p) + 1;
}

static void open_call(msgl_parser *p)
{
    p->state = CALL;
    p->marked = true;
    msgl__json_call_start(p);
}

// Behind the object: models close a bracket too many, and forget the marker.
static int closing(msgl_parser *p, char c)
{
    if (p->match.len == 0 && (msgl__is_space(c) || c == '}')) return 0;
    char plain[MSGL_MARK_MAX];
    int n, rc;
    const int mark = msgl__match_add(&p->match, closing_of(p), c, plain, &n);
    if (mark < 0 && n == 0) return 0;
    rc = msgl__call_done(p);
    if (rc == 0) rc = msgl__put_text(p, plain, (size_t)n);
    if (mark < 1 || rc != 0) return rc;
    open_call(p);
    return msgl__strbuf_adds(&p->pending, closing_of(p)[mark]);
}

static int call(msgl_parser *p, char c)
{
    const char *const ends[] = {closing_of(p)[0], NULL};
    msgl_json_call_step step;
    const int rc = msgl__json_call_until(p, ends, c, &step);
    if (rc != 0 || step == MSGL_JSON_CALL_MORE) return rc;
    if (step == MSGL_JSON_CALL_MARK) return msgl__call_done(p);
    if (step == MSGL_JSON_CALL_FAIL && !p->in_call) return msgl__give_back(p);
    p->again = step == MSGL_JSON_CALL_FAIL;
    p->state = CLOSE;
    return msgl__call_end(p);
}

int msgl__hermes_step(msgl_parser *p, char c)
{
    int rc = 0;
    switch (p->state) {
    case CALL: return call(p, c);
    case CLOSE: return closing(p, c);
    default:
        if (msgl__text_until(p, opens_of(p), c, &rc) >= 0) open_call(p);
        return rc;
    }
}

int msgl__hermes_finish(msgl_parser *p)
{
    int rc = 0;
    if (p->state == CALL && !p->in_call) return msgl__give_back(p);
    if (p->in_call) rc = msgl__call_arguments(p, p->match.buf, (size_t)p->match.len);
    p->match.len = 0; // or the beginning of the closing marker
    return rc == 0 ? msgl__call_done(p) : rc;
}
