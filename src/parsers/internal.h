// SPDX-License-Identifier: Apache-2.0
//
// What the forms share. A form is a state machine over bytes: its step gets one, and whatever the
// pieces were that it came in, the parts are the same. A step that finds that the text is no call
// gives back what was pending and asks for the same byte again as content.
#ifndef MSGL_PARSERS_INTERNAL_H
#define MSGL_PARSERS_INTERNAL_H

#include "core/err.h"
#include "parsers/json_call.h"
#include "parsers/marks.h"
#include "parsers/parser.h"

enum { MSGL_THINK_ENDS = 8 }; // marks that end thoughts, of both forms

enum {
    MSGL_FORM_TEXT = 0, // state of every form: content, in which calls may begin
};

#define MSGL_DEEPSEEK_CALLS "<｜tool▁calls▁begin｜>"
#define MSGL_DEEPSEEK_CALLS_END "<｜tool▁calls▁end｜>"
#define MSGL_DEEPSEEK_CALL "<｜tool▁call▁begin｜>"
#define MSGL_DEEPSEEK_CALL_END "<｜tool▁call▁end｜>"
#define MSGL_DEEPSEEK_SEP "<｜tool▁sep｜>"

#define MSGL_KIMI_CALLS "<|tool_calls_section_begin|>"
#define MSGL_KIMI_CALLS_END "<|tool_calls_section_end|>"
#define MSGL_KIMI_CALL "<|tool_call_begin|>"
#define MSGL_KIMI_CALL_END "<|tool_call_end|>"
#define MSGL_KIMI_SEP "<|tool_call_argument_begin|>"

struct msgl_tool_form {
    const char *name;
    // It is meant by a template with one of these texts. Rows are asked in their order.
    const char *const *signs;
    const char *also;          // ... and with this one, too; NULL: any
    const char *const *tokens; // special tokens; NULL: none
    int id_len;                // 0: the usual one
    bool json;                 // arguments are an object of JSON, right behind an opening
    bool whole;                // it takes the answer as it is: reasoning is its own
    int variant;               // the step's
    int start;                 // state that an answer begins in
    int (*step)(msgl_parser *p, char c);
    int (*finish)(msgl_parser *p); // in any state but MSGL_FORM_TEXT
    const char *name_key; // what a call's object has the name under beside "name"; NULL: nothing
    bool keyed;           // a call's object is {NAME: ARGUMENTS}
    bool objects;         // pythonic: a list of JSON objects is one of calls, too
    // An opening: before the name and behind it, NULL where models of the form differ; and without
    // a name, NULL where that is `before`.
    const char *before, *behind, *any;
    const char *mark, *close, *next, *again, *end; // as in msgl_tool_writing
    const char *const *marks; // what calls begin with; NULL: by_name, or inside of thoughts
    // Thoughts end where one of `marks` comes although nothing closed them: these are special
    // tokens, of which thoughts have none.
    bool ends_thoughts;
    bool by_name; // `before`, a tool's name and one byte of `behind` are that
};

struct msgl_reasoning_form {
    const char *name;
    const char *const *signs;
    const char *also;
    const char *open, *close; // NULL: of a form that is `whole`
    const char *const *opens; // all that may open them; NULL: `open`. What closes them is `closes`
    const char *opened_by;    // what a template may end in behind `open`; NULL: nothing
    // What models write around the answer's text behind the thoughts; NULL: nothing.
    const char *const *answer_opens, *const *answer_closes;
    // As in msgl_reasoning_marks.
    const char *begin, *end, *part_end, *part_begin;
    const char *const *closes, *const *away;
    bool assumed; // an answer is thoughts up to `close`, whether it begins with `open` or not
    const char *const *tokens; // special tokens; NULL: none
};

struct msgl_parser {
    msgl_parser_config cfg;
    const msgl_tool_form *form; // cfg.tools, or what reads a `whole` form's answer; NULL: none
    msgl_parts *out;            // of the call of feed or finish
    int think;                  // state of what splits reasoning off
    msgl_match think_match;
    msgl_strbuf think_space; // white space that may be the last before the end of thoughts
    const char *think_ends[MSGL_THINK_ENDS + 1]; // what ends thoughts, a NULL behind it ...
    int num_own_ends;                            // ... the first of them the thoughts' own marks
    bool thought;                                // some was told
    int answer;    // state of what leaves out the marks around the answer
    bool thinking; // nothing else was told since

    int state;     // of the form
    bool again;    // the step wants the same byte again
    bool trim;     // white space that comes now is not content
    bool marked;   // a marker came before the call: it means to be one
    bool in_call;  // a call began and did not end
    bool mute;     // that call is left out
    bool has_args; // that call has arguments
    int calls;
    msgl_match match;
    msgl_strbuf space;   // white space before what may be a call
    msgl_strbuf pending; // what may turn out to be content
    msgl_strbuf name;    // of the call
    msgl_strbuf id;      // of the call that begins next, if the model gives it one
    msgl_strbuf key, value;
    msgl_json_call json;
    size_t mark_at; // harmony: where the channel is in `key`
    int body;       // harmony: what a message is
    int depth;      // pythonic: brackets; tagged: arguments
    char quote;     // pythonic: of the string, or 0
    bool escaped;   // pythonic
};

// Content: white space is pending until something follows it.
int msgl__put_text(msgl_parser *p, const char *data, size_t len);
int msgl__put_text_char(msgl_parser *p, char c);
int msgl__put_reasoning(msgl_parser *p, const char *data, size_t len);
// Content up to one of the marks: the mark's index, and what may be a mark is pending; or -1.
int msgl__text_until(msgl_parser *p, const char *const *marks, char c, int *rc);
// The same, and a mark begins what means to be a call: state `opened`.
int msgl__text_or_call(msgl_parser *p, const char *const *marks, char c, int opened);

// What is pending is content after all, and so is, or may be, this byte: state TEXT.
int msgl__give_back(msgl_parser *p);
// The byte belongs to what may be a call.
static inline int msgl__buffer(msgl_parser *p, char c)
{
    return msgl__strbuf_addc(&p->pending, c);
}

// A call of p->name, with the id p->id unless that is empty; p->pending and p->id are forgotten.
int msgl__call_begin(msgl_parser *p);
int msgl__call_arguments(msgl_parser *p, const char *data, size_t len);
int msgl__call_end(msgl_parser *p); // without arguments so far: they are {}
// The call's end, and content may follow: state TEXT.
int msgl__call_done(msgl_parser *p);

static inline bool msgl__is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}
// A byte that tools' names may have where nothing says where they end.
bool msgl__is_name_char(char c);

// Appends a string literal of JSON; bytes that are not UTF-8 stay what they are.
int msgl__put_json_string(msgl_strbuf *out, const char *s, size_t len);
// One byte of such a string, as it stands in the quotes.
int msgl__put_json_byte(msgl_strbuf *out, char c);

// A value of a form without types: a string where its parameter is one (or null, where that is
// allowed), else text as it is where JSON can read it, and translated where Python can and the
// parameter is known to be no string; what nobody can read is a string.
int msgl__put_untyped(msgl_strbuf *out, const char *s, size_t len, msgl_param_type type);

// Python's keyword arguments, text[0, len) between the parentheses, as a JSON object behind *out.
// MSGL_EFORMAT: they are something else, and *out is as before.
int msgl__python_arguments(const char *text, size_t len, msgl_strbuf *out);
// The same of one value.
int msgl__python_value(const char *text, size_t len, msgl_strbuf *out);

// A list of {"name": ..., "arguments": ...}, which forms have behind a marker: these are their
// states from one to the other, and what they do with a byte.
enum { MSGL_LIST = MSGL_FORM_TEXT + 1, MSGL_LIST_CALL, MSGL_LIST_NEXT, MSGL_LIST_STATES };
int msgl__in_list(msgl_parser *p, char c);
// The first object comes, without a list around it: asks for its first byte again.
void msgl__list_object(msgl_parser *p);

// The forms' steps and ends, and the variants of those that have some.
enum { MSGL_OBJECT_HERMES, MSGL_OBJECT_LONGCAT, MSGL_OBJECT_INTERNLM };
enum {
    MSGL_LIST_GRANITE,
    MSGL_LIST_PHI,
    MSGL_LIST_HUNYUAN,
    MSGL_LIST_NEMOTRON,
    MSGL_LIST_COHERE,
    MSGL_LIST_APERTUS,
    MSGL_LIST_XLAM,
};
enum { MSGL_PYTHON_LLAMA, MSGL_PYTHON_LFM2, MSGL_PYTHON_OLMO };
enum { MSGL_GEMMA_4, MSGL_GEMMA_FUNCTION };
enum {
    MSGL_TAGGED_GLM,
    MSGL_TAGGED_QWEN,
    MSGL_TAGGED_SEED,
    MSGL_TAGGED_HUNYUAN,
    MSGL_TAGGED_MINIMAX,
    MSGL_TAGGED_STEP3,
    MSGL_TAGGED_DSML_32,
    MSGL_TAGGED_DSML_4,
    MSGL_TAGGED_DSML_41,
};
int msgl__hermes_step(msgl_parser *p, char c);
int msgl__hermes_finish(msgl_parser *p);
int msgl__llama_step(msgl_parser *p, char c);
int msgl__llama_finish(msgl_parser *p);
int msgl__pythonic_step(msgl_parser *p, char c);
int msgl__pythonic_finish(msgl_parser *p);
int msgl__list_step(msgl_parser *p, char c);
int msgl__list_finish(msgl_parser *p);
int msgl__mistral_step(msgl_parser *p, char c);
int msgl__mistral_finish(msgl_parser *p);
int msgl__deepseek_step(msgl_parser *p, char c);
int msgl__deepseek_finish(msgl_parser *p);
int msgl__tagged_step(msgl_parser *p, char c);
int msgl__tagged_finish(msgl_parser *p);
int msgl__gemma_step(msgl_parser *p, char c);
int msgl__gemma_finish(msgl_parser *p);
int msgl__harmony_step(msgl_parser *p, char c);
int msgl__harmony_finish(msgl_parser *p);

#endif
