// SPDX-License-Identifier: Apache-2.0
#include "api/pair_prompt.h"

#include <stdio.h>
#include <string.h>

#include "core/mem.h"

// Whether the source names a role, as a string.
static bool names(const char *source, const char *role)
{
    char text[32];
    for (const char *quote = "'\""; *quote != '\0'; quote++) {
        (void)snprintf(text, sizeof text, "%c%s%c", *quote, role, *quote);
        if (strstr(source, text) != NULL) return true;
    }
    return false;
}

static int add_message(json_t *messages, const char *role, const char *text, size_t len)
{
    json_t *content = json_stringn_nocheck(text, len); // of a body that was parsed
    return json_array_append_new(messages,
                                 json_pack("{s:s,s:o}", "role", role, "content", content));
}

bool msgl__pair_template(const char *source)
{
    return source != NULL && names(source, "query") && names(source, "document");
}

// roles: whether the template has these two.
static json_t *vars_of(const msgl_gen_request *q, const msgl_prompt *query,
                       const msgl_prompt *document, bool roles)
{
    json_t *messages = json_array();
    json_t *vars = json_pack("{s:o,s:b}", "messages", messages, "add_generation_prompt", 1);
    if (vars == NULL) return NULL;
    int rc = 0;
    if (q->pairs.instruct != NULL && roles)
        rc = add_message(messages, "system", q->pairs.instruct, strlen(q->pairs.instruct));
    if (rc == 0) {
        rc = add_message(messages, roles ? "query" : "system", query->text, query->len);
    }
    if (rc == 0) {
        rc = add_message(messages, roles ? "document" : "user", document->text, document->len);
    }
    if (rc == 0) return vars;
    json_decref(vars);
    return NULL;
}

static int add_client_text(msgl_rendered *r, const char *text, size_t len)
{
    msgl_text_span *spans =
        msgl__reallocarray(r->untrusted, r->num_untrusted + 1, sizeof *r->untrusted);
    if (spans == NULL) return MSGL_ENOMEM;
    r->untrusted = spans;
    spans[r->num_untrusted++] = (msgl_text_span){r->text.len, r->text.len + len};
    return msgl__strbuf_add(&r->text, text, len);
}

// The prompt that Qwen3-Reranker's page on its hub gives.
static int write_qwen(const msgl_gen_request *q, const msgl_prompt *query,
                      const msgl_prompt *document, msgl_rendered *r)
{
    static const char usual[] =
        "Given a web search query, retrieve relevant passages that answer the query";
    enum { FRAME = 1024 };
    const size_t instruct = q->pairs.instruct == NULL ? 0 : strlen(q->pairs.instruct);
    msgl__strbuf_init(&r->text, FRAME + instruct + query->len + document->len);
    int rc = msgl__strbuf_adds(
        &r->text,
        "<|im_start|>system\nJudge whether the Document meets the requirements based on "
        "the Query and the Instruct provided. Note that the answer can only be \"yes\" or "
        "\"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: ");
    if (rc == 0 && q->pairs.instruct == NULL) rc = msgl__strbuf_adds(&r->text, usual);
    if (rc == 0 && q->pairs.instruct != NULL) rc = add_client_text(r, q->pairs.instruct, instruct);
    if (rc == 0) rc = msgl__strbuf_adds(&r->text, "\n<Query>: ");
    if (rc == 0) rc = add_client_text(r, query->text, query->len);
    if (rc == 0) rc = msgl__strbuf_adds(&r->text, "\n<Document>: ");
    if (rc == 0) rc = add_client_text(r, document->text, document->len);
    if (rc != 0) return rc;
    return msgl__strbuf_adds(&r->text,
                             "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
}

int msgl__pair_render(const msgl_gen_request *q, int i, const msgl_chat_templates *templates,
                      const msgl_render_limits *limits, msgl_rendered *out, msgl_err *err)
{
    const msgl_prompt *document = &q->prompts[i], *query = &q->prompts[msgl__pair_query(q, i)];
    const char *source = templates == NULL ? "" : msgl__chat_templates_text(templates);
    const bool roles = msgl__pair_template(source);
    if (!roles && (!q->pairs.one_token || source[0] == '\0')) {
        const int rc = write_qwen(q, query, document, out);
        return rc == 0 ? 0 : msgl__err_set(err, rc, "%s", msgl__status_text(rc));
    }
    json_t *vars = vars_of(q, query, document, roles);
    if (vars == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    const int rc = msgl__chat_templates_render(templates, vars, limits, out, err);
    json_decref(vars);
    return rc;
}
