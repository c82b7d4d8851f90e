// SPDX-License-Identifier: Apache-2.0
//
// From an answer's text to its parts while it comes: what the model thought, what it says, and the
// tools that it calls, in the form that its chat template taught it. The parts of a text are the
// same whatever pieces it is fed in; every byte is looked at a bounded number of times; what is
// pending is at most the text since a marker.
//
// A call is one from where its arguments begin. What is wrong before that is content, with the
// markers, as is all that only looks like a call. Arguments that are wrong themselves reach the
// client as the model wrote them, up to the call's end: it can tell the model.
#ifndef MSGL_PARSERS_PARSER_H
#define MSGL_PARSERS_PARSER_H

#include <stdbool.h>
#include <stddef.h>

#include "parsers/parts.h"
#include "parsers/tool_set.h"

// How a family of models writes calls; how it marks its thoughts. Const, in the tables of forms.c.
typedef struct msgl_tool_form msgl_tool_form;
typedef struct msgl_reasoning_form msgl_reasoning_form;

enum { MSGL_TOOL_NAME_MAX = 256 }; // bytes of a tool's name; what is longer is none

// Values of --tool-call-parser and --reasoning-parser.
#define MSGL_TOOL_FORM_NAMES                                                                       \
    "auto|none|apertus|apertus2509|cohere_command3|cohere_command4|deepseek_v3|"                   \
    "deepseek_v31|deepseek_v32|deepseek_v4|deepseek_v41|deepseekv3|deepseekv31|deepseekv32|"       \
    "deepseekv4|deepseekv41|ernie45|functiongemma|gemma4|glm|glm45|glm47|gpt-oss|granite|"         \
    "granite4|hermes|hunyuan|hunyuan_a13b|hy_v3|internlm|interns1|jamba|kimi_k2|lfm2|ling3|"       \
    "llama3|llama3_json|llama4_json|llama4_pythonic|longcat|mimo|minimax-m2|minimax_m2|"           \
    "mistral|nanbeige|nemotron_json|olmo3|openai|phi4_mini_json|poolside_v1|pythonic|qwen|"        \
    "qwen25|qwen3_coder|qwen3_xml|seed_oss|spark25|step3|step3p5|trinity|xlam"
#define MSGL_REASONING_FORM_NAMES                                                                  \
    "auto|none|apertus|apertus2509|cohere_command3|cohere_command4|deepseek-r1|deepseek-v3|"       \
    "deepseek-v4|deepseek-v41|deepseek_r1|deepseek_v3|deepseek_v4|dots|ernie45|gemma4|"            \
    "gigachat35|glm45|glm47|gpt-oss|granite|granite_thinking_parser|holo2|hunyuan|"                \
    "hunyuan_a13b|hy_v3|interns1|kimi|kimi_k2|ling3|mimo|minimax|minimax-m3|minimax_m2|"           \
    "minimax_m3|mistral|nanbeige|nano_v3|nemotron_3|nemotron_v3|olmo3|openai_gptoss|"              \
    "poolside_v1|qwen3|qwen3-thinking|seed_oss|step3|step3p5"

// The form of this name, ours or SGLang's or vLLM's, or NULL: "none", and names that there are not.
// "auto": the form whose markers `templates`, the text of a chat template (NULL: there is none),
// contains.
const msgl_tool_form *msgl__tool_form(const char *name, const char *templates);
const msgl_reasoning_form *msgl__reasoning_form(const char *name, const char *templates);
const char *msgl__tool_form_name(const msgl_tool_form *f);           // NULL: "none"
const char *msgl__reasoning_form_name(const msgl_reasoning_form *f); // NULL: "none"

// Letters and digits of a call's id, behind "call_"; 9: the id has no "call_" and exactly nine,
// which is what Mistral's templates insist on.
int msgl__tool_form_id_len(const msgl_tool_form *f);

// Writes how a call of `name` (NULL: of any tool) begins, up to where the model has to go on:
// what an answer is prefilled with to force a call. [*name_at, *name_at + strlen(name)) of what is
// appended is the name. 0 or the buffer's failure.
int msgl__tool_form_opening(const msgl_tool_form *f, const char *name, msgl_strbuf *out,
                            size_t *name_at);
// Whether the form determines how a call of a given name begins.
bool msgl__tool_form_can_open(const msgl_tool_form *f);

// How calls are written whose arguments are an object of JSON.
typedef struct msgl_tool_writing {
    const char *open;   // before the name
    const char *behind; // between name and arguments; blanks may follow
    // What `open` begins with, and a text before a call does not have; NULL: not known.
    const char *mark;
    const char *close; // behind the arguments; NULL: the answer ends with them
    const char *next;  // between a call and what another one begins with; NULL: none follows
    const char *again; // what another one begins with, up to its name; NULL: `open`
    const char *end;   // behind the last call; NULL: nothing
} msgl_tool_writing;
// Whether calls of the form are written like this.
bool msgl__tool_form_writing(const msgl_tool_form *f, msgl_tool_writing *out);

// What calls of the form begin with, each a call's from there on. NULL behind the last one, or
// NULL: a tool's name decides (msgl__tool_form_by_name).
const char *const *msgl__tool_form_marks(const msgl_tool_form *f);
// Appends what a call of the tool begins with, where that is more than JSON or Python; nothing
// where it has marks.
int msgl__tool_form_by_name(const msgl_tool_form *f, const char *name, msgl_strbuf *out);

// How thoughts stand in an answer.
typedef struct msgl_reasoning_marks {
    bool whole; // the whole answer is in parts of this kind (gpt-oss): it needs them to go on
    const char *begin;         // what opens thoughts
    const char *const *closes; // what ends them, so that the answer's text follows; a NULL behind
    const char *const *away;   // `whole`: what leads from them to a call; else NULL
    const char *end;           // what is put in their place to end them
    // `whole`: what ends a thought, and what comes before a part that is no thought.
    const char *part_end, *part_begin;
} msgl_reasoning_marks;
void msgl__reasoning_marks(const msgl_reasoning_form *f, msgl_reasoning_marks *out);

// Whether a prompt with this end has the model think: it ends in the opening marker.
bool msgl__reasoning_opened(const msgl_reasoning_form *f, const char *prompt, size_t len);
// Whether it ends in the closing marker: there are no thoughts.
bool msgl__reasoning_closed(const msgl_reasoning_form *f, const char *prompt, size_t len);
// Whether an answer is taken for thoughts up to what closes them although nothing opened them: the
// form is one whose models always think, and a prompt with this end has not closed them.
bool msgl__reasoning_assumed(const msgl_reasoning_form *f, const char *prompt, size_t len);
// What ends thoughts: before an opening is prefilled to a prompt that has begun them. "": nothing.
const char *msgl__reasoning_close(const msgl_reasoning_form *f);

typedef struct msgl_parser_config {
    const msgl_tool_form *tools;          // NULL: calls are text
    const msgl_reasoning_form *reasoning; // NULL: thoughts are text
    bool thinking;                        // the prompt has opened the thoughts
    bool keep_reasoning;                  // thoughts are text, but no calls are looked for in them
    int max_calls;                        // further ones are left out; 0: any number
    const msgl_tool_set *known;           // borrowed; NULL: no tool is known
} msgl_parser_config;

typedef struct msgl_parser msgl_parser;

// Neither form: all is text. 0 or MSGL_ENOMEM.
int msgl__parser_create(const msgl_parser_config *cfg, msgl_parser **out);
void msgl__parser_free(msgl_parser *p); // NULL allowed
// Appends what text[0, len) turns out to be, perhaps nothing yet. Text of any bytes is fine. 0,
// MSGL_ENOMEM, MSGL_ELIMIT (*out is full); after a failure the parser can only be freed.
int msgl__parser_feed(msgl_parser *p, const char *text, size_t len, msgl_parts *out);
// The text has ended: appends what was pending. Once.
int msgl__parser_finish(msgl_parser *p, msgl_parts *out);
int msgl__parser_calls(const msgl_parser *p);     // calls that are in the parts so far
bool msgl__parser_thinking(const msgl_parser *p); // what it was fed last belongs to thoughts
size_t msgl__parser_bytes(const msgl_parser *p);

// Texts of special tokens that the forms are made of, a NULL behind them; what the detokenizer has
// to give to this parser although special tokens are not shown.
const char *const *msgl__tool_form_tokens(const msgl_tool_form *f);           // f NULL: NULL
const char *const *msgl__reasoning_form_tokens(const msgl_reasoning_form *f); // f NULL: NULL

#endif
