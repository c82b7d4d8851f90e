// SPDX-License-Identifier: Apache-2.0
//
// Chat templates: a Jinja interpreter that renders what transformers' apply_chat_template renders,
// byte for byte, inside fixed budgets. Templates come from model folders, the operator or, where
// that is allowed, requests, and are not trusted with more than time and memory limits; messages
// come from clients and are data only.
//
// Strings keep, per byte, whether they came from the client. The rendered text carries those bytes
// as spans, so that the tokenizer can refuse special tokens there (a user who writes "<|im_end|>"
// writes eleven characters, not a control token).
#ifndef MSGL_TEMPLATE_CHAT_TEMPLATE_H
#define MSGL_TEMPLATE_CHAT_TEMPLATE_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"
#include "utils/strbuf.h"

typedef struct msgl_chat_template msgl_chat_template; // parsed, immutable, usable by many threads

// Parses template source (trim_blocks and lstrip_blocks on, as transformers sets them).
// MSGL_EFORMAT: line number and what was expected; MSGL_EUNSUPPORTED names the construct.
int msgl__chat_template_parse(const char *source, size_t len, msgl_chat_template **out,
                              msgl_err *err);
void msgl__chat_template_free(msgl_chat_template *t);

// The template of a model folder: chat_template.jinja, else chat_template of tokenizer_config.json
// (string, or list of {name, template}: "tool_use" when has_tools and present, else "default"),
// with the folder's bos_token, eos_token and other named special tokens as template variables. Of a
// GGUF file: tokenizer.chat_template and tokenizer.chat_template.tool_use of its metadata.
// MSGL_ENOENT when the model has none.
typedef struct msgl_chat_templates msgl_chat_templates;
int msgl__chat_templates_load(const char *dir, msgl_chat_templates **out, msgl_err *err);
// The same with one template in place of the model's, which may have none: the text `own`; "": none
// at all, only the special tokens, for templates that requests bring. NULL: the model's.
int msgl__chat_templates_load_own(const char *dir, const char *own, msgl_chat_templates **out,
                                  msgl_err *err);
// The same with what msgl__chat_template_read makes of `spec`. NULL: the model's.
int msgl__chat_templates_load_spec(const char *dir, const char *spec, msgl_chat_templates **out,
                                   msgl_err *err);
void msgl__chat_templates_free(msgl_chat_templates *t);
// The text of the template that an operator means: of a file, or `spec` itself if there is no such
// file, it has {{ or {%, and is not called like one (.jinja). It parses. Freed with msgl__free.
// MSGL_EINVAL: neither; else as for files and templates.
int msgl__chat_template_read(const char *spec, char **out, msgl_err *err);
// Whether a text has what makes one a template, {{ or {%.
bool msgl__chat_template_has_tags(const char *text);
// Their source, one behind the other: what markers a model was taught. As long as *t. "": none.
const char *msgl__chat_templates_text(const msgl_chat_templates *t);

// The special tokens that templates may name, by their names: bos_token, eos_token ... (strings),
// and what else they find without the client's saying. Borrowed.
const json_t *msgl__chat_templates_special(const msgl_chat_templates *t);
// The source of the one that conversations without tools are rendered with. NULL: none.
const char *msgl__chat_templates_default(const msgl_chat_templates *t);

typedef struct msgl_render_limits {
    size_t max_steps;  // evaluated nodes, loop iterations, and work that takes as long; 0: default
    size_t max_output; // bytes of any one string and of the output; 0: default
    size_t max_memory; // bytes of all values together; 0: by max_output
    int max_depth;     // nesting of calls, macros, expressions; 0: default
    // No limit: texts of calls' arguments that are objects for Python's json.loads become these, as
    // servers in Python have it, so that tojson prints them.
    bool load_arguments;
    // Set by another thread to end the render soon, with MSGL_EABORTED; NULL: it cannot be ended.
    const atomic_bool *cancelled;
} msgl_render_limits;

enum { MSGL_REQUEST_TEMPLATE_MAX = 64 << 10 }; // bytes of a template that a request brings
// What such a template may take: if the request is small it ends within 100 ms; with `bytes`,
// of all that there is to render, the budgets grow up to the defaults.
msgl_render_limits msgl__render_limits_of_request(size_t bytes);

typedef struct msgl_rendered {
    msgl_strbuf text;
    msgl_text_span *untrusted; // spans of `text` that came from `vars`
    size_t num_untrusted;
    msgl_text_span *foreign; // those of them that did not come from an assistant's messages
    size_t num_foreign;
} msgl_rendered;
void msgl__rendered_free(msgl_rendered *r); // zero-initialised is empty

// Renders with the variables of the JSON object `vars` (messages, tools, documents,
// add_generation_prompt, enable_thinking ...; untrusted, but for the roles that every chat API
// knows: templates glue those into control tokens). A message's reasoning may be called
// reasoning_content, thinking or reasoning; the template finds it as the first and the second. The
// role developer is system for a template that never names it.
// MSGL_EINVAL: the template called raise_exception or failed on this input (text says what);
// MSGL_ELIMIT: a budget ran out; the defaults end any template within about a second.
int msgl__chat_template_render(const msgl_chat_template *t, json_t *vars,
                               const msgl_render_limits *limits, msgl_rendered *out, msgl_err *err);
// The same with the folder's template and its special-token variables (trusted), as
// apply_chat_template calls it: tools and documents are None and add_generation_prompt is False
// unless `vars` has them.
int msgl__chat_templates_render(const msgl_chat_templates *t, json_t *vars,
                                const msgl_render_limits *limits, msgl_rendered *out,
                                msgl_err *err);
// With `use` in their place; only the special tokens are t's (NULL: there are none).
int msgl__chat_templates_render_as(const msgl_chat_templates *t, const msgl_chat_template *use,
                                   json_t *vars, const msgl_render_limits *limits,
                                   msgl_rendered *out, msgl_err *err);

#endif
