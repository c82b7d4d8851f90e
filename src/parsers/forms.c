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
static const char *const INTERNLM_TOKENS[] = {"<|action_start|>", "<|plugin|>", "<|action_end|>",
                                              NULL};
static const char *const LONGCAT_TOKENS[] = {"<longcat_tool_call>", "</longcat_tool_call>", NULL};
static const char *const CALLS_TOKENS[] = {"<tool_calls>", "</tool_calls>", NULL};
static const char *const NEMOTRON_TOKENS[] = {"<TOOLCALL>", "</TOOLCALL>", NULL};
static const char *const COHERE_TOKENS[] = {"<|START_ACTION|>", "<|END_ACTION|>", NULL};
static const char *const APERTUS_TOKENS[] = {"<|tools_prefix|>", "<|tools_suffix|>", NULL};
static const char *const XLAM_TOKENS[] = {"<tool_call>", "</tool_call>", "[TOOL_CALLS]", NULL};
static const char *const LFM2_TOKENS[] = {"<|tool_call_start|>", "<|tool_call_end|>", NULL};
static const char *const OLMO_TOKENS[] = {"<function_calls>", "</function_calls>", NULL};
static const char *const GEMMA_TOKENS[] = {"<|tool_call>", "<tool_call|>", "<|\"|>", NULL};
static const char *const FUNCTION_GEMMA_TOKENS[] = {"<start_function_call>", "<end_function_call>",
                                                    "<escape>", NULL};
static const char *const SEED_TOKENS[] = {"<seed:tool_call>", "</seed:tool_call>", NULL};
static const char *const HUNYUAN_TOKENS[] = {
    "<tool_calls>", "</tool_calls>", "<tool_call>", "</tool_call>", "<tool_sep>",
    "<arg_key>",    "</arg_key>",    "<arg_value>", "</arg_value>", NULL};
static const char *const MINIMAX_TOKENS[] = {"<minimax:tool_call>", "</minimax:tool_call>", NULL};
static const char *const STEP3_TOKENS[] = {"<｜tool_calls_begin｜>", "<｜tool_calls_end｜>",
                                           "<｜tool_call_begin｜>",  "<｜tool_call_end｜>",
                                           "<｜tool_sep｜>",         NULL};
static const char *const DSML_TOKENS[] = {"｜DSML｜", NULL};
static const char *const THINK_TOKENS[] = {"<think>", "</think>", NULL};
static const char *const ANSWER_TOKENS[] = {"<think>",    "</think>",    "<answer>", "</answer>",
                                            "<response>", "</response>", NULL};
static const char *const SEED_THINK_TOKENS[] = {"<seed:think>", "</seed:think>", NULL};
static const char *const GEMMA_THINK_TOKENS[] = {"<|channel>", "<channel|>", NULL};
static const char *const COHERE_THINK_TOKENS[] = {"<|START_THINKING|>",
                                                  "<|END_THINKING|>",
                                                  "<|START_RESPONSE|>",
                                                  "<|END_RESPONSE|>",
                                                  "<|START_TEXT|>",
                                                  "<|END_TEXT|>",
                                                  NULL};
static const char *const APERTUS_THINK_TOKENS[] = {"<|inner_prefix|>", "<|inner_suffix|>", NULL};
static const char *const MINIMAX_THINK_TOKENS[] = {"<mm:think>", "</mm:think>", NULL};
static const char *const KIMI_THINK_TOKENS[] = {"◁think▷", "◁/think▷", NULL};
static const char *const MISTRAL_THINK_TOKENS[] = {"[THINK]", "[/THINK]", NULL};

// Calls that are a list of JSON objects with the usual keys.
#define OBJECT_LIST .json = true, .close = "}", .next = ", ", .again = "{\"name\": \"", .end = "]"

static const msgl_tool_form TOOLS[] = {
    {.name = "gpt-oss",
     .json = true,
     .signs = SIGNS("<|channel|>"),
     .tokens = HARMONY_TOKENS,
     .whole = true,
     .step = msgl__harmony_step,
     .finish = msgl__harmony_finish,
     .before = "<|channel|>commentary to=functions.",
     .behind = " <|constrain|>json<|message|>"},
    {.name = "deepseek_v3",
     .ends_thoughts = true,
     .marks = SIGNS(MSGL_DEEPSEEK_CALLS, MSGL_DEEPSEEK_CALL),
     .json = true,
     .signs = SIGNS(MSGL_DEEPSEEK_CALLS, MSGL_DEEPSEEK_CALL),
     .also = "```json",
     .tokens = DEEPSEEK_TOKENS,
     .step = msgl__deepseek_step,
     .finish = msgl__deepseek_finish,
     .before = MSGL_DEEPSEEK_CALLS MSGL_DEEPSEEK_CALL "function" MSGL_DEEPSEEK_SEP,
     .behind = "\n```json\n"},
    {.name = "deepseek_v31",
     .ends_thoughts = true,
     .marks = SIGNS(MSGL_DEEPSEEK_CALLS, MSGL_DEEPSEEK_CALL),
     .json = true,
     .signs = SIGNS(MSGL_DEEPSEEK_CALLS, MSGL_DEEPSEEK_CALL),
     .tokens = DEEPSEEK_TOKENS,
     .variant = 1,
     .step = msgl__deepseek_step,
     .finish = msgl__deepseek_finish,
     .before = MSGL_DEEPSEEK_CALLS MSGL_DEEPSEEK_CALL,
     .behind = MSGL_DEEPSEEK_SEP},
    {.name = "kimi_k2",
     .ends_thoughts = true,
     .marks = SIGNS(MSGL_KIMI_CALLS, MSGL_KIMI_CALL),
     .signs = SIGNS(MSGL_KIMI_CALLS, MSGL_KIMI_CALL),
     .tokens = KIMI_TOKENS,
     .variant = 2,
     .step = msgl__deepseek_step,
     .finish = msgl__deepseek_finish,
     .before = MSGL_KIMI_CALLS MSGL_KIMI_CALL "functions.",
     .behind = ":"},
    {.name = "deepseek_v32",
     .ends_thoughts = true,
     .marks = SIGNS("<｜DSML｜function_calls>", "<｜DSML｜invoke name="),
     .signs = SIGNS("｜DSML｜"),
     .also = "function_calls>",
     .tokens = DSML_TOKENS,
     .variant = MSGL_TAGGED_DSML_32,
     .step = msgl__tagged_step,
     .finish = msgl__tagged_finish,
     .before = "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"",
     .behind = "\">\n"},
    {.name = "deepseek_v41",
     .ends_thoughts = true,
     .marks = SIGNS("<｜DSML｜ calls>", "<｜DSML｜ invoke name="),
     .signs = SIGNS("｜DSML｜"),
     .also = " calls>",
     .tokens = DSML_TOKENS,
     .variant = MSGL_TAGGED_DSML_41,
     .step = msgl__tagged_step,
     .finish = msgl__tagged_finish,
     .before = "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"",
     .behind = "\">\n"},
    {.name = "deepseek_v4",
     .ends_thoughts = true,
     .marks = SIGNS("<｜DSML｜tool_calls>", "<｜DSML｜invoke name="),
     .signs = SIGNS("｜DSML｜"),
     .tokens = DSML_TOKENS,
     .variant = MSGL_TAGGED_DSML_4,
     .step = msgl__tagged_step,
     .finish = msgl__tagged_finish,
     .before = "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"",
     .behind = "\">\n"},
    {.name = "minimax_m2",
     .ends_thoughts = true,
     .marks = SIGNS("<minimax:tool_call>", "<invoke name="),
     .signs = SIGNS("<minimax:tool_call>"),
     .tokens = MINIMAX_TOKENS,
     .variant = MSGL_TAGGED_MINIMAX,
     .step = msgl__tagged_step,
     .finish = msgl__tagged_finish,
     .before = "<minimax:tool_call>\n<invoke name=\"",
     .behind = "\">\n"},
    {.name = "step3",
     .ends_thoughts = true,
     .marks = SIGNS("<｜tool_calls_begin｜>", "<steptml:invoke name="),
     .signs = SIGNS("steptml:"),
     .tokens = STEP3_TOKENS,
     .variant = MSGL_TAGGED_STEP3,
     .step = msgl__tagged_step,
     .finish = msgl__tagged_finish,
     .before = "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜>"
               "<steptml:invoke name=\"",
     .behind = "\">\n"},
    {.name = "seed_oss",
     .ends_thoughts = true,
     .marks = SIGNS("<seed:tool_call>", "<function="),
     .signs = SIGNS("<seed:tool_call>"),
     .tokens = SEED_TOKENS,
     .variant = MSGL_TAGGED_SEED,
     .step = msgl__tagged_step,
     .finish = msgl__tagged_finish,
     .before = "<seed:tool_call>\n<function=",
     .behind = ">\n"},
    {.name = "hy_v3",
     .marks = SIGNS("<tool_calls>", "<tool_call>"),
     .signs = SIGNS("<tool_sep>", "<tool_calls>"),
     .also = "<arg_key>",
     .tokens = HUNYUAN_TOKENS,
     .variant = MSGL_TAGGED_HUNYUAN,
     .step = msgl__tagged_step,
     .finish = msgl__tagged_finish,
     .before = "<tool_calls>\n<tool_call>",
     .behind = "<tool_sep>\n"},
    {.name = "glm45",
     .marks = SIGNS("<tool_call>"),
     .signs = SIGNS("<arg_key>"),
     .tokens = XML_TOKENS,
     .step = msgl__tagged_step,
     .finish = msgl__tagged_finish,
     .before = "<tool_call>",
     .behind = "\n"},
    {.name = "qwen3_coder",
     .marks = SIGNS("<tool_call>", "<function="),
     .signs = SIGNS("<function="),
     .also = "<tool_call>",
     .tokens = XML_TOKENS,
     .variant = MSGL_TAGGED_QWEN,
     .step = msgl__tagged_step,
     .finish = msgl__tagged_finish,
     .before = "<tool_call>\n<function=",
     .behind = ">\n"},
    {.name = "gemma4",
     .ends_thoughts = true,
     .marks = SIGNS("<|tool_call>"),
     .signs = SIGNS("<|tool_call>"),
     .tokens = GEMMA_TOKENS,
     .step = msgl__gemma_step,
     .finish = msgl__gemma_finish,
     .before = "<|tool_call>call:",
     .behind = "{"},
    {.name = "functiongemma",
     .ends_thoughts = true,
     .marks = SIGNS("<start_function_call>"),
     .signs = SIGNS("<start_function_call>"),
     .tokens = FUNCTION_GEMMA_TOKENS,
     .variant = MSGL_GEMMA_FUNCTION,
     .step = msgl__gemma_step,
     .finish = msgl__gemma_finish,
     .before = "<start_function_call>call:",
     .behind = "{"},
    {.name = "lfm2",
     .ends_thoughts = true,
     .marks = SIGNS("<|tool_call_start|>"),
     .objects = true,
     .signs = SIGNS("<|tool_call_start|>", "<|tool_list_start|>"),
     .tokens = LFM2_TOKENS,
     .variant = MSGL_PYTHON_LFM2,
     .step = msgl__pythonic_step,
     .finish = msgl__pythonic_finish,
     .before = "<|tool_call_start|>[",
     .behind = "("},
    {.name = "olmo3",
     .marks = SIGNS("<function_calls>"),
     .signs = SIGNS("<function_calls>"),
     .tokens = OLMO_TOKENS,
     .variant = MSGL_PYTHON_OLMO,
     .step = msgl__pythonic_step,
     .finish = msgl__pythonic_finish,
     .before = "<function_calls>",
     .behind = "("},
    {.name = "cohere_command4",
     .ends_thoughts = true,
     .marks = SIGNS("<|START_ACTION|>"),
     .json = true,
     .name_key = "tool_name",
     .signs = SIGNS("<|START_ACTION|>"),
     .tokens = COHERE_TOKENS,
     .variant = MSGL_LIST_COHERE,
     .step = msgl__list_step,
     .finish = msgl__list_finish,
     .before = "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"",
     .behind = "\", \"parameters\":"},
    {.name = "apertus",
     .ends_thoughts = true,
     .marks = SIGNS("<|tools_prefix|>"),
     .json = true,
     .keyed = true,
     .close = "}",
     .next = ", ",
     .again = "{\"",
     .end = "]",
     .signs = SIGNS("<|tools_prefix|>"),
     .tokens = APERTUS_TOKENS,
     .variant = MSGL_LIST_APERTUS,
     .step = msgl__list_step,
     .finish = msgl__list_finish,
     .before = "<|tools_prefix|>[{\"",
     .behind = "\":"},
    {.name = "internlm",
     .ends_thoughts = true,
     .marks = SIGNS("<|action_start|>"),
     .json = true,
     .signs = SIGNS("<|action_start|>"),
     .tokens = INTERNLM_TOKENS,
     .variant = MSGL_OBJECT_INTERNLM,
     .step = msgl__hermes_step,
     .finish = msgl__hermes_finish,
     .before = "<|action_start|><|plugin|>\n{\"name\": \"",
     .behind = "\", \"parameters\":"},
    {.name = "longcat",
     .ends_thoughts = true,
     .marks = SIGNS("<longcat_tool_call>"),
     .json = true,
     .mark = "<longcat_tool_call>",
     .close = "}\n</longcat_tool_call>",
     .next = "\n",
     .signs = SIGNS("<longcat_tool_call>"),
     .tokens = LONGCAT_TOKENS,
     .variant = MSGL_OBJECT_LONGCAT,
     .step = msgl__hermes_step,
     .finish = msgl__hermes_finish,
     .before = "<longcat_tool_call>\n{\"name\": \"",
     .behind = "\", \"arguments\":"},
    {.name = "hunyuan_a13b",
     .marks = SIGNS("<tool_calls>"),
     OBJECT_LIST,
     .signs = SIGNS("<tool_calls>"),
     .tokens = CALLS_TOKENS,
     .variant = MSGL_LIST_HUNYUAN,
     .step = msgl__list_step,
     .finish = msgl__list_finish,
     .before = "<tool_calls>[{\"name\": \"",
     .behind = "\", \"arguments\":"},
    {.name = "nemotron_json",
     .marks = SIGNS("<TOOLCALL>"),
     OBJECT_LIST,
     .signs = SIGNS("<TOOLCALL>"),
     .tokens = NEMOTRON_TOKENS,
     .variant = MSGL_LIST_NEMOTRON,
     .step = msgl__list_step,
     .finish = msgl__list_finish,
     .before = "<TOOLCALL>[{\"name\": \"",
     .behind = "\", \"arguments\":"},
    // By its name alone: the templates are those of the models that it was made of.
    {.name = "xlam",
     .by_name = true,
     OBJECT_LIST,
     .signs = SIGNS(NULL),
     .tokens = XLAM_TOKENS,
     .start = MSGL_LIST_STATES,
     .variant = MSGL_LIST_XLAM,
     .step = msgl__list_step,
     .finish = msgl__list_finish,
     .before = "[{\"name\": \"",
     .behind = "\", \"arguments\":"},
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
     OBJECT_LIST,
     .variant = MSGL_LIST_PHI,
     .step = msgl__list_step,
     .finish = msgl__list_finish,
     .before = "functools[{\"name\": \"",
     .behind = "\", \"arguments\":"},
    {.name = "granite",
     .marks = SIGNS("<|tool_call|>", "<tool_call>"),
     .signs = SIGNS("<|tool_call|>"),
     .tokens = LIST_TOKENS,
     OBJECT_LIST,
     .start = MSGL_LIST_STATES,
     .step = msgl__list_step,
     .finish = msgl__list_finish,
     .before = "<|tool_call|>[{\"name\": \"",
     .behind = "\", \"arguments\":"},
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
     .behind = "\", \"arguments\":"},
    {.name = "pythonic",
     .by_name = true,
     .signs = SIGNS("func_name1("),
     .tokens = LLAMA_TOKENS,
     .start = MSGL_LIST_STATES,
     .step = msgl__pythonic_step,
     .finish = msgl__pythonic_finish,
     .before = "[",
     .behind = "("},
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
     .behind = "\", \"parameters\":"},
};

#define THINK                                                                                      \
    .open = "<think>", .close = "</think>", .begin = "<think>", .closes = SIGNS("</think>"),       \
    .end = "\n</think>\n\n"

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
    {.name = "seed_oss",
     .signs = SIGNS("<seed:think>"),
     .open = "<seed:think>",
     .opened_by = "<seed:cot_budget_reflect>",
     .close = "</seed:think>",
     .begin = "<seed:think>",
     .closes = SIGNS("</seed:think>"),
     .end = "</seed:think>",
     .tokens = SEED_THINK_TOKENS},
    {.name = "gemma4",
     .signs = SIGNS("<|channel>"),
     .open = "<|channel>thought",
     .close = "<channel|>",
     .begin = "<|channel>thought\n",
     .closes = SIGNS("<channel|>"),
     .end = "<channel|>",
     .tokens = GEMMA_THINK_TOKENS},
    {.name = "cohere_command4",
     .signs = SIGNS("<|START_THINKING|>"),
     .open = "<|START_THINKING|>",
     .close = "<|END_THINKING|>",
     .answer_opens = SIGNS("<|START_RESPONSE|>", "<|START_TEXT|>"),
     .answer_closes = SIGNS("<|END_RESPONSE|>", "<|END_TEXT|>"),
     .begin = "<|START_THINKING|>",
     .closes = SIGNS("<|END_THINKING|>"),
     .end = "<|END_THINKING|>",
     .tokens = COHERE_THINK_TOKENS},
    {.name = "apertus",
     .signs = SIGNS("<|inner_prefix|>"),
     .open = "<|inner_prefix|>",
     .close = "<|inner_suffix|>",
     .begin = "<|inner_prefix|>",
     .closes = SIGNS("<|inner_suffix|>"),
     .end = "<|inner_suffix|>",
     .tokens = APERTUS_THINK_TOKENS},
    {.name = "minimax_m3",
     .signs = SIGNS("<mm:think>"),
     .open = "<mm:think>",
     .close = "</mm:think>",
     .begin = "<mm:think>",
     .closes = SIGNS("</mm:think>"),
     .end = "</mm:think>",
     .tokens = MINIMAX_THINK_TOKENS},
    {.name = "kimi",
     .signs = SIGNS("◁think▷"),
     .open = "◁think▷",
     .close = "◁/think▷",
     .begin = "◁think▷",
     .closes = SIGNS("◁/think▷"),
     .end = "◁/think▷",
     .tokens = KIMI_THINK_TOKENS},
    {.name = "granite",
     .signs = SIGNS("Here is my thought process:"),
     .open = "Here is my thought process:",
     .opens = SIGNS("Here is my thought process:", "Here's my thought process:"),
     .close = "Here is my response:",
     .begin = "Here is my thought process:",
     .closes = SIGNS("Here is my response:", "Here's my response:"),
     .end = "\n\nHere is my response:"},
    {.name = "hunyuan_a13b",
     .signs = SIGNS("<|extra_0|>", "hy_Assistant"),
     .also = "<answer>",
     .answer_opens = SIGNS("<answer>"),
     .answer_closes = SIGNS("</answer>"),
     .tokens = ANSWER_TOKENS,
     THINK},
    {.name = "ernie45",
     .signs = SIGNS("think_mode=", "<response></response>"),
     .also = "<response>",
     .answer_opens = SIGNS("<response>"),
     .answer_closes = SIGNS("</response>"),
     .tokens = ANSWER_TOKENS,
     THINK},
    {.name = "glm45", .signs = SIGNS("<arg_key>"), .also = "think>", .tokens = THINK_TOKENS, THINK},
    {.name = "deepseek-v3",
     .signs = SIGNS(MSGL_DEEPSEEK_CALLS),
     .also = "thinking",
     .tokens = THINK_TOKENS,
     THINK},
    {.name = "qwen3", .signs = SIGNS("<think>", "</think>"), .tokens = THINK_TOKENS, THINK},
    // By its name alone: a template does not tell a model that always thinks from one that can.
    {.name = "deepseek-r1", .signs = SIGNS(NULL), .assumed = true, .tokens = THINK_TOKENS, THINK},
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
    {"apertus2509", "apertus"},
    {"cohere_command3", "cohere_command4"},
    {"deepseekv3", "deepseek_v3"},
    {"deepseekv31", "deepseek_v31"},
    {"deepseekv32", "deepseek_v32"},
    {"deepseekv4", "deepseek_v4"},
    {"deepseekv41", "deepseek_v41"},
    {"ernie45", "hermes"},
    {"glm", "glm45"},
    {"glm47", "glm45"},
    {"granite4", "hermes"},
    {"hunyuan", "hy_v3"},
    {"interns1", "internlm"},
    {"jamba", "hunyuan_a13b"},
    {"ling3", "glm45"},
    {"llama3_json", "llama3"},
    {"llama4_json", "llama3"},
    {"llama4_pythonic", "pythonic"},
    {"mimo", "qwen3_coder"},
    {"minimax-m2", "minimax_m2"},
    {"nanbeige", "qwen3_coder"},
    {"openai", "gpt-oss"},
    {"poolside_v1", "glm45"},
    {"qwen", "hermes"},
    {"qwen25", "hermes"},
    {"qwen3_xml", "qwen3_coder"},
    {"spark25", "glm45"},
    {"step3p5", "qwen3_coder"},
    {"trinity", "hermes"},
};
static const other_name REASONING_NAMES[] = {
    {"apertus2509", "apertus"},
    {"cohere_command3", "cohere_command4"},
    {"deepseek-v4", "deepseek-v3"},
    {"deepseek-v41", "deepseek-v3"},
    {"deepseek_r1", "deepseek-r1"},
    {"deepseek_v3", "deepseek-v3"},
    {"deepseek_v4", "deepseek-v3"},
    {"dots", "qwen3"},
    {"gigachat35", "deepseek-r1"},
    {"glm47", "glm45"},
    {"granite_thinking_parser", "qwen3"},
    {"holo2", "deepseek-v3"},
    {"hunyuan", "qwen3"},
    {"hy_v3", "qwen3"},
    {"interns1", "qwen3"},
    {"kimi_k2", "qwen3"},
    {"ling3", "glm45"},
    {"mimo", "qwen3"},
    {"minimax", "qwen3"},
    {"minimax-m3", "minimax_m3"},
    {"minimax_m2", "deepseek-r1"},
    {"nanbeige", "qwen3"},
    {"nano_v3", "qwen3"},
    {"nemotron_3", "qwen3"},
    {"nemotron_v3", "qwen3"},
    {"olmo3", "qwen3"},
    {"openai_gptoss", "gpt-oss"},
    {"poolside_v1", "qwen3"},
    {"qwen3-thinking", "deepseek-r1"},
    {"step3", "deepseek-r1"},
    {"step3p5", "deepseek-r1"},
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

static const char *opening_of_any(const msgl_tool_form *f)
{
    return f->any != NULL ? f->any : f->before;
}

int msgl__tool_form_opening(const msgl_tool_form *f, const char *name, msgl_strbuf *out,
                            size_t *name_at)
{
    *name_at = out->len;
    if (name == NULL) return msgl__strbuf_adds(out, opening_of_any(f));
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
    *out = (msgl_tool_writing){.open = opening_of_any(f),
                               .mark = f->mark,
                               .behind = f->behind,
                               .close = f->close,
                               .next = f->next,
                               .again = f->again,
                               .end = f->end};
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
    return f != NULL && (ends_in(prompt, len, f->open) || ends_in(prompt, len, f->opened_by));
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
