// SPDX-License-Identifier: Apache-2.0
//
// The tables of forms, in the order in which a template is asked for their signs.
#include <string.h>

#include "parsers/internal.h"

enum { ID_LEN = 24 };

#define SIGNS(...) ((const char *const[]){__VA_ARGS__, NULL})

static const char *const HARMONY_TOKENS[] = {"<|start|>", "<|channel|>", "<|message|>",   "<|end|>",
                                             "<|call|>",  "<|return|>",  "<|constrain|>", NULL};
static const char *const DEEPSEEK_TOKENS[] = {MSGL_DEEPSEEK_CALLS, MSGL_DEEPSEEK_CALLS_END,
                                              MSGL_DEEPSEEK_CALL,  MSGL_DEEPSEEK_CALL_END,
                                              MSGL_DEEPSEEK_SEP,   NULL};
static const char *const KIMI_TOKENS[] = {MSGL_KIMI_CALLS,    MSGL_KIMI_CALLS_END, MSGL_KIMI_CALL,
                                          MSGL_KIMI_CALL_END, MSGL_KIMI_SEP,       NULL};
static const char *const LIST_TOKENS[] = {"<|tool_call|>", "<|/tool_call|>", "<tool_call>",
                                          "</tool_call>", NULL};
static const char *const LLAMA_TOKENS[] = {"<|python_tag|>", "<|python_start|>", "<|python_end|>",
                                           "<|eom_id|>", NULL};
static const char *const MISTRAL_TOKENS[] = {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", NULL};
static const char *const XML_TOKENS[] = {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>",
                                         "<arg_value>", "</arg_value>", NULL};
static const char *const THINK_TOKENS[] = {"<think>", "</think>", NULL};
static const char *const MISTRAL_THINK_TOKENS[] = {"[THINK]", "[/THINK]", NULL};

static const msgl_tool_form TOOLS[] = {
    {.name = "gpt-oss",
     .json = true,
     .signs = SIGNS("<|channel|>"),
     .tokens = HARMONY_TOKENS,
     .whole = true,
     .step = msgl__harmony_step,
     .finish = msgl__harmony_finish,
     .before = "<|channel|>commentary to=functions.",
     .behind = " <|constrain|>json<|message|>",
     .any = "<|channel|>commentary to=functions."},
    {.name = "deepseek_v3",
     .marks = SIGNS(MSGL_DEEPSEEK_CALLS, MSGL_DEEPSEEK_CALL),
     .json = true,
     .signs = SIGNS(MSGL_DEEPSEEK_CALLS, MSGL_DEEPSEEK_CALL),
     .also = "```json",
     .tokens = DEEPSEEK_TOKENS,
     .step = msgl__deepseek_step,
     .finish = msgl__deepseek_finish,
     .before = MSGL_DEEPSEEK_CALLS MSGL_DEEPSEEK_CALL "function" MSGL_DEEPSEEK_SEP,
     .behind = "\n```json\n",
     .any = MSGL_DEEPSEEK_CALLS MSGL_DEEPSEEK_CALL "function" MSGL_DEEPSEEK_SEP},
    {.name = "deepseek_v31",
     .marks = SIGNS(MSGL_DEEPSEEK_CALLS, MSGL_DEEPSEEK_CALL),
     .json = true,
     .signs = SIGNS(MSGL_DEEPSEEK_CALLS, MSGL_DEEPSEEK_CALL),
     .tokens = DEEPSEEK_TOKENS,
     .variant = 1,
     .step = msgl__deepseek_step,
     .finish = msgl__deepseek_finish,
     .before = MSGL_DEEPSEEK_CALLS MSGL_DEEPSEEK_CALL,
     .behind = MSGL_DEEPSEEK_SEP,
     .any = MSGL_DEEPSEEK_CALLS MSGL_DEEPSEEK_CALL},
    {.name = "kimi_k2",
     .marks = SIGNS(MSGL_KIMI_CALLS, MSGL_KIMI_CALL),
     .signs = SIGNS(MSGL_KIMI_CALLS, MSGL_KIMI_CALL),
     .tokens = KIMI_TOKENS,
     .variant = 2,
     .step = msgl__deepseek_step,
     .finish = msgl__deepseek_finish,
     .before = MSGL_KIMI_CALLS MSGL_KIMI_CALL "functions.",
     .behind = ":",
     .any = MSGL_KIMI_CALLS MSGL_KIMI_CALL "functions."},
    {.name = "glm45",
     .marks = SIGNS("<tool_call>"),
     .signs = SIGNS("<arg_key>"),
     .tokens = XML_TOKENS,
     .step = msgl__tagged_step,
     .finish = msgl__tagged_finish,
     .before = "<tool_call>",
     .behind = "\n",
     .any = "<tool_call>"},
    {.name = "qwen3_coder",
     .marks = SIGNS("<tool_call>", "<function="),
     .signs = SIGNS("<function="),
     .also = "<tool_call>",
     .tokens = XML_TOKENS,
     .variant = 1,
     .step = msgl__tagged_step,
     .finish = msgl__tagged_finish,
     .before = "<tool_call>\n<function=",
     .behind = ">\n",
     .any = "<tool_call>\n<function="},
    {.name = "mistral",
     .marks = SIGNS("[TOOL_CALLS]"),
     .signs = SIGNS("[TOOL_CALLS]"),
     .tokens = MISTRAL_TOKENS,
     .id_len = 9,
     .step = msgl__mistral_step,
     .finish = msgl__mistral_finish,
     .any = "[TOOL_CALLS]"},
    {.name = "phi4_mini_json",
     .marks = SIGNS("functools[", "<|tool_call|>"),
     .signs = SIGNS("functools[", "<|tool|>"),
     .tokens = LIST_TOKENS,
     .variant = 1,
     .step = msgl__list_step,
     .finish = msgl__list_finish,
     .before = "functools[{\"name\": \"",
     .behind = "\", \"arguments\":",
     .any = "functools[{\"name\": \""},
    {.name = "granite",
     .marks = SIGNS("<|tool_call|>", "<tool_call>"),
     .signs = SIGNS("<|tool_call|>"),
     .tokens = LIST_TOKENS,
     .start = MSGL_LIST_STATES,
     .step = msgl__list_step,
     .finish = msgl__list_finish,
     .before = "<|tool_call|>[{\"name\": \"",
     .behind = "\", \"arguments\":",
     .any = "<|tool_call|>[{\"name\": \""},
    {.name = "hermes",
     .marks = SIGNS("<tool_call>"),
     .json = true,
     .mark = "<tool_call>",
     .close = "}\n</tool_call>",
     .next = "\n",
     .signs = SIGNS("<tool_call>"),
     .tokens = XML_TOKENS,
     .step = msgl__hermes_step,
     .finish = msgl__hermes_finish,
     .before = "<tool_call>\n{\"name\": \"",
     .behind = "\", \"arguments\":",
     .any = "<tool_call>\n{\"name\": \""},
    {.name = "pythonic",
     .by_name = true,
     .signs = SIGNS("func_name1("),
     .tokens = LLAMA_TOKENS,
     .start = 1,
     .step = msgl__pythonic_step,
     .finish = msgl__pythonic_finish,
     .before = "[",
     .behind = "(",
     .any = "["},
    {.name = "llama3",
     .by_name = true,
     .json = true,
     .close = "}",
     .next = "; ",
     .signs = SIGNS("<|python_tag|>", "<|python_start|>", "{\"name\": function name"),
     .tokens = LLAMA_TOKENS,
     .start = 1,
     .step = msgl__llama_step,
     .finish = msgl__llama_finish,
     .before = "{\"name\": \"",
     .behind = "\", \"parameters\":",
     .any = "{\"name\": \""},
};

#define THINK                                                                                      \
    .open = "<think>", .close = "</think>", .begin = "<think>", .closes = SIGNS("</think>"),       \
    .end = "\n</think>\n\n", .tokens = THINK_TOKENS

static const msgl_reasoning_form REASONING[] = {
    {.name = "gpt-oss",
     .signs = SIGNS("<|channel|>"),
     .begin = "<|channel|>analysis",
     .closes = SIGNS("<|channel|>final<|message|>", "<|channel|>final <|constrain|>json<|message|>",
                     "<|channel|>final<|constrain|>json<|message|>"),
     .away = SIGNS("<|channel|>commentary to=", "<|start|>assistant to="),
     .end = "<|end|><|start|>assistant<|channel|>final<|message|>",
     .part_end = "<|end|>",
     .part_begin = "<|start|>assistant",
     .tokens = HARMONY_TOKENS},
    {.name = "mistral",
     .signs = SIGNS("[THINK]"),
     .open = "[THINK]",
     .close = "[/THINK]",
     .begin = "[THINK]",
     .closes = SIGNS("[/THINK]"),
     .end = "[/THINK]",
     .tokens = MISTRAL_THINK_TOKENS},
    {.name = "glm45", .signs = SIGNS("<arg_key>"), .also = "think>", THINK},
    {.name = "deepseek-v3", .signs = SIGNS(MSGL_DEEPSEEK_CALLS), .also = "thinking", THINK},
    {.name = "qwen3", .signs = SIGNS("<think>", "</think>"), THINK},
    // By its name alone: a template does not tell a model that always thinks from one that can.
    {.name = "deepseek-r1", .signs = SIGNS(NULL), .assumed = true, THINK},
};

enum {
    NUM_TOOLS = sizeof TOOLS / sizeof TOOLS[0],
    NUM_REASONING = sizeof REASONING / sizeof REASONING[0],
};

static bool is_meant(const char *const *signs, const char *also, const char *text)
{
    if (text == NULL || (also != NULL && strstr(text, also) == NULL)) return false;
    for (; *signs != NULL; signs++) {
        if (strstr(text, *signs) != NULL) return true;
    }
    return false;
}

// Names that SGLang and vLLM have for a form of ours.
typedef struct other_name {
    const char *name, *ours;
} other_name;

static const other_name TOOL_NAMES[] = {
    {"qwen", "hermes"},
    {"qwen25", "hermes"},
    {"granite4", "hermes"},
    {"deepseekv3", "deepseek_v3"},
    {"deepseekv31", "deepseek_v31"},
    {"llama3_json", "llama3"},
    {"llama4_json", "llama3"},
    {"llama4_pythonic", "pythonic"},
    {"openai", "gpt-oss"},
    {"glm", "glm45"},
    {"glm47", "glm45"},
    {"qwen3_xml", "qwen3_coder"},
};
static const other_name REASONING_NAMES[] = {
    {"deepseek_r1", "deepseek-r1"},    {"kimi_k2", "qwen3"},
    {"deepseek_v3", "deepseek-v3"},    {"openai_gptoss", "gpt-oss"},
    {"qwen3-thinking", "deepseek-r1"},
};

static const char *our_name(const char *name, const other_name *others, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(others[i].name, name) == 0) return others[i].ours;
    }
    return name;
}

const msgl_tool_form *msgl__tool_form(const char *name, const char *templates)
{
    const bool by_sign = strcmp(name, "auto") == 0;
    name = our_name(name, TOOL_NAMES, sizeof TOOL_NAMES / sizeof TOOL_NAMES[0]);
    for (int i = 0; i < NUM_TOOLS; i++) {
        const msgl_tool_form *f = &TOOLS[i];
        if (by_sign ? is_meant(f->signs, f->also, templates) : strcmp(f->name, name) == 0) return f;
    }
    return NULL;
}

const msgl_reasoning_form *msgl__reasoning_form(const char *name, const char *templates)
{
    const bool by_sign = strcmp(name, "auto") == 0;
    name = our_name(name, REASONING_NAMES, sizeof REASONING_NAMES / sizeof REASONING_NAMES[0]);
    for (int i = 0; i < NUM_REASONING; i++) {
        const msgl_reasoning_form *f = &REASONING[i];
        if (by_sign ? is_meant(f->signs, f->also, templates) : strcmp(f->name, name) == 0) return f;
    }
    return NULL;
}

const char *msgl__tool_form_name(const msgl_tool_form *f)
{
    return f == NULL ? "none" : f->name;
}

const char *msgl__reasoning_form_name(const msgl_reasoning_form *f)
{
    return f == NULL ? "none" : f->name;
}

int msgl__tool_form_id_len(const msgl_tool_form *f)
{
    return f == NULL || f->id_len == 0 ? ID_LEN : f->id_len;
}

const char *const *msgl__tool_form_tokens(const msgl_tool_form *f)
{
    return f == NULL ? NULL : f->tokens;
}

const char *const *msgl__reasoning_form_tokens(const msgl_reasoning_form *f)
{
    return f == NULL ? NULL : f->tokens;
}

int msgl__tool_form_opening(const msgl_tool_form *f, const char *name, msgl_strbuf *out,
                            size_t *name_at)
{
    *name_at = out->len;
    if (name == NULL) return msgl__strbuf_adds(out, f->any);
    int rc = msgl__strbuf_adds(out, f->before);
    *name_at = out->len;
    if (rc == 0) rc = msgl__strbuf_adds(out, name);
    return rc == 0 ? msgl__strbuf_adds(out, f->behind) : rc;
}

bool msgl__tool_form_can_open(const msgl_tool_form *f)
{
    return f->before != NULL;
}

bool msgl__tool_form_writing(const msgl_tool_form *f, msgl_tool_writing *out)
{
    if (!f->json) return false;
    *out = (msgl_tool_writing){
        .open = f->any, .mark = f->mark, .behind = f->behind, .close = f->close, .next = f->next};
    return true;
}

const char *const *msgl__tool_form_marks(const msgl_tool_form *f)
{
    return f->marks;
}

int msgl__tool_form_by_name(const msgl_tool_form *f, const char *name, msgl_strbuf *out)
{
    if (!f->by_name) return 0;
    return msgl__strbuf_addf(out, "%s%s%c", f->before, name, f->behind[0]);
}

void msgl__reasoning_marks(const msgl_reasoning_form *f, msgl_reasoning_marks *out)
{
    *out = (msgl_reasoning_marks){.whole = f->close == NULL,
                                  .begin = f->begin,
                                  .closes = f->closes,
                                  .away = f->away,
                                  .end = f->end,
                                  .part_end = f->part_end,
                                  .part_begin = f->part_begin};
}

// Whether text[0, len) ends in the mark, but for white space.
static bool ends_in(const char *text, size_t len, const char *mark)
{
    if (mark == NULL) return false;
    while (len > 0 && msgl__is_space(text[len - 1])) len--;
    const size_t n = strlen(mark);
    return len >= n && memcmp(text + len - n, mark, n) == 0;
}

bool msgl__reasoning_opened(const msgl_reasoning_form *f, const char *prompt, size_t len)
{
    return f != NULL && ends_in(prompt, len, f->open);
}

bool msgl__reasoning_closed(const msgl_reasoning_form *f, const char *prompt, size_t len)
{
    return f != NULL && ends_in(prompt, len, f->close);
}

bool msgl__reasoning_assumed(const msgl_reasoning_form *f, const char *prompt, size_t len)
{
    return f != NULL && f->assumed && !msgl__reasoning_closed(f, prompt, len);
}

const char *msgl__reasoning_close(const msgl_reasoning_form *f)
{
    return f == NULL || f->close == NULL ? "" : f->close;
}
