// SPDX-License-Identifier: Apache-2.0
//
// Answers of the families of 2025 and 2026, each form with: one call and several, none, text before
// and behind, no arguments, nested ones, strings of everything, tags that are missing, ends that
// are cut, and what only looks like a call.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "parsers/answers.h"

// --- parameters in tags ---

#define M_BEGIN "<minimax:tool_call>\n"
#define M_END "</minimax:tool_call>"

static void test_minimax(void **state)
{
    (void)state;
    static const answer_sample samples[] = {
        {"Ok.\n" M_BEGIN "<invoke name=\"f\">\n<parameter name=\"s\">a <b> & \"c\"\n "
         "</parameter>\n<parameter name=\"n\">5</parameter>\n</invoke>\n" M_END "\nx",
         "Ok.<call f {\"s\": \"a <b> & \\\"c\\\"\\n \", \"n\": 5}>x"},
        // Several calls in a block, of any name there; no arguments; nested ones.
        {M_BEGIN "<invoke name=\"f\">\n</invoke>\n<invoke name=\"any\">\n<parameter name=\"o\">"
                 "{\"k\": [1, {\"l\": null}]}</parameter>\n</invoke>\n" M_END,
         "<call f {}><call any {\"o\": {\"k\": [1, {\"l\": null}]}}>"},
        {M_BEGIN "<invoke name=\"f\"></invoke>" M_END M_BEGIN "<invoke name=\"f\"></invoke>" M_END,
         "<call f {}><call f {}>"},
        // Names in other quotes and without.
        {M_BEGIN "<invoke name='f'><parameter name=n>1</parameter></invoke>" M_END,
         "<call f {\"n\": 1}>"},
        {M_BEGIN "<invoke name=f/>" M_END, "<call f {}>"},
        // Without the outer tag, of a tool that there is.
        {"So: <invoke name=\"f\"><parameter name=\"n\">1</parameter></invoke>" M_END "y",
         "So:<call f {\"n\": 1}>y"},
        {"So: <invoke name=\"any\"></invoke>", "So: <invoke name=\"any\"></invoke>"},
        // Ends that are missing.
        {M_BEGIN "<invoke name=\"f\"><parameter name=\"s\">a</parameter>",
         "<call f {\"s\": \"a\"}>"},
        {M_BEGIN "<invoke name=\"f\"><parameter name=\"s\">a</invoke>" M_END,
         "<call f {\"s\": \"a\"}>"},
        {M_BEGIN "<invoke name=\"f\"><parameter name=\"s\">a", "<call f {>"},
        {M_BEGIN "<invoke name=\"f\"> oops", "<call f {}>oops"},
        // No calls.
        {M_BEGIN M_END, M_BEGIN M_END},
        {M_BEGIN "<invoke name=\"\">", M_BEGIN "<invoke name=\"\">"},
        {M_BEGIN "<invoke name=\"a b\">", M_BEGIN "<invoke name=\"a b\">"},
        {"a <minimax:tool b", "a <minimax:tool b"},
        {NULL, NULL},
    };
    check_answers("minimax_m2", "none", samples);
}

#define S_BEGIN "<seed:tool_call>\n<function="
#define S_END "</function>\n</seed:tool_call>"

static void test_seed(void **state)
{
    (void)state;
    static const answer_sample samples[] = {
        {"Ok.\n" S_BEGIN "f>\n<parameter=s>x</parameter>\n<parameter=n>-3</parameter>\n" S_END "y",
         "Ok.<call f {\"s\": \"x\", \"n\": -3}>y"},
        {S_BEGIN "f>\n" S_END "\n" S_BEGIN
                 "any>\n<parameter=a>\n[1, {\"b\": 2}]\n</parameter>\n" S_END,
         "<call f {}><call any {\"a\": [1, {\"b\": 2}]}>"},
        {S_BEGIN "f>\n<parameter=s>two\nlines</parameter>\n</function>",
         "<call f {\"s\": \"two\\nlines\"}>"},
        {"<tool_call>\n{\"name\": \"f\"}</tool_call>",
         "<tool_call>\n{\"name\": \"f\"}</tool_call>"},
        {S_BEGIN ">", S_BEGIN ">"},
        {NULL, NULL},
    };
    check_answers("seed_oss", "none", samples);
}

#define D32_BEGIN "<｜DSML｜function_calls>\n"
#define D32_END "</｜DSML｜function_calls>"
#define D_INVOKE(name) "<｜DSML｜invoke name=\"" name "\">\n"
#define D_INVOKE_END "</｜DSML｜invoke>\n"
#define D_PARAM(name, string, value)                                                               \
    "<｜DSML｜parameter name=\"" name "\" string=\"" string "\">" value "</｜DSML｜parameter>\n"

static void test_dsml(void **state)
{
    (void)state;
    static const answer_sample v32[] = {
        {"Ok.\n\n" D32_BEGIN D_INVOKE("any") D_PARAM("a", "true", "5 <x>") D_PARAM(
             "b", "false", "5") D_PARAM("c", "false", "{\"k\": [true]}") D_INVOKE_END D32_END,
         "Ok.<call any {\"a\": \"5 <x>\", \"b\": 5, \"c\": {\"k\": [true]}}>"},
        // What the tag says goes before the schema; without it the schema decides.
        {D32_BEGIN D_INVOKE("f") D_PARAM("n", "true", "5") D_PARAM("s", "false", "5")
             D_INVOKE_END D32_END,
         "<call f {\"n\": \"5\", \"s\": 5}>"},
        {D32_BEGIN D_INVOKE("f") "<｜DSML｜parameter name=\"s\">5"
                                 "</｜DSML｜parameter>" D_INVOKE_END,
         "<call f {\"s\": \"5\"}>"},
        {D32_BEGIN D_INVOKE("f") D_INVOKE_END D_INVOKE("g") D_INVOKE_END D32_END "\nx",
         "<call f {}><call g {}>x"},
        // Arguments as an object.
        {D32_BEGIN D_INVOKE("f") "{ \"s\": \"}\", \"n\": [1] }\n" D_INVOKE_END D_INVOKE(
             "g") "{}" D_INVOKE_END D32_END,
         "<call f { \"s\": \"}\", \"n\": [1] }><call g {}>"},
        {D32_BEGIN D_INVOKE("f") "{\"s\": 1}" D_PARAM("n", "false", "5") D_INVOKE_END D32_END "x",
         "<call f {\"s\": 1}>x"},
        {D32_BEGIN D_INVOKE("f") "{\"s\": [", "<call f {\"s\": [>"},
        {D32_BEGIN D_INVOKE("f") D_PARAM("a", "true", "x") D_INVOKE_END, "<call f {\"a\": \"x\"}>"},
        {D32_BEGIN "x", D32_BEGIN "x"},
        {"<｜DSML｜tool_calls>\n" D_INVOKE("any"), "<｜DSML｜tool_calls>\n" D_INVOKE("any")},
        {NULL, NULL},
    };
    static const answer_sample v4[] = {
        {"<｜DSML｜tool_calls>\n" D_INVOKE("any") D_PARAM("a", "true", "x") D_INVOKE_END
         "</｜DSML｜tool_calls>\ny",
         "<call any {\"a\": \"x\"}>y"},
        {D32_BEGIN "x", D32_BEGIN "x"},
        {NULL, NULL},
    };
    check_answers("deepseek_v32", "none", v32);
    check_answers("deepseek_v4", "none", v4);
    static const answer_sample v41[] = {
        {"Ok.<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"any\">\n"
         "<｜DSML｜ parameter name=\"a\" string=\"false\">[5]</｜DSML｜ parameter>\n"
         "</｜DSML｜ invoke>\n</｜DSML｜ calls>\ny",
         "Ok.<call any {\"a\": [5]}>y"},
        {NULL, NULL},
    };
    check_answers("deepseek_v41", "none", v41);
}

#define ST_BEGIN "<｜tool_calls_begin｜>\n"
#define ST_CALL "<｜tool_call_begin｜>function<｜tool_sep｜>"
#define ST_END "</steptml:invoke><｜tool_call_end｜>\n"

static void test_step3(void **state)
{
    (void)state;
    static const answer_sample samples[] = {
        {"Ok." ST_BEGIN ST_CALL
         "<steptml:invoke name=\"f\">\n<steptml:parameter name=\"s\">x</steptml:parameter>"
         "<steptml:parameter name=\"n\">2</steptml:parameter>" ST_END ST_CALL
         "<steptml:invoke name=\"any\">" ST_END "<｜tool_calls_end｜>y",
         "Ok.<call f {\"s\": \"x\", \"n\": 2}><call any {}>y"},
        // As it is where special tokens are not shown.
        {"function<steptml:invoke name=\"f\">" ST_END, "function<call f {}>"},
        {ST_BEGIN "x", ST_BEGIN "x"},
        {"a function of x", "a function of x"},
        {NULL, NULL},
    };
    check_answers("step3", "none", samples);
}

static void test_hunyuan(void **state)
{
    (void)state;
    static const answer_sample v3[] = {
        {"Ok.\n<tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>s</arg_key>\n<arg_value>5</arg_value>"
         "\n<arg_key>n</arg_key>\n<arg_value>5</arg_value>\n</tool_call>\n<tool_call>any<tool_sep>"
         "</tool_call>\n</tool_calls>\nx",
         "Ok.<call f {\"s\": \"5\", \"n\": 5}><call any {}>x"},
        // Without <tool_sep>, and without what is around the calls.
        {"<tool_calls><tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value></tool_call>",
         "<call f {\"n\": 1}>"},
        {"<tool_call>f\n</tool_call>", "<call f {}>"},
        {"<tool_calls><tool_call>f<tool_sep><arg_key>s</arg_key><arg_value>a</tool_call></"
         "tool_calls>",
         "<call f {\"s\": \"a\"}>"},
        {"<tool_calls></tool_calls>", "<tool_calls></tool_calls>"},
        {"<tool_calls>[{\"name\": \"f\"}]", "<tool_calls>[{\"name\": \"f\"}]"},
        {NULL, NULL},
    };
    static const answer_sample a13b[] = {
        {"Ok.\n<tool_calls>[{\"name\": \"f\", \"arguments\": {\"s\": \"</tool_calls>]\"}}, "
         "{\"name\": "
         "\"any\", \"arguments\": {\"o\": {\"k\": [1]}}}]</tool_calls>\nx",
         "Ok.<call f {\"s\": \"</tool_calls>]\"}><call any {\"o\": {\"k\": [1]}}>x"},
        {"<tool_calls>\n{\"name\": \"f\"}\n</tool_calls>", "<call f {}>"},
        {"<tool_calls>[{\"name\": \"f\", \"arguments\": {\"s\": 1", "<call f {\"s\": 1>"},
        {"<tool_calls>[]</tool_calls>", "<tool_calls>[]</tool_calls>"},
        {"[{\"name\": \"f\"}]", "[{\"name\": \"f\"}]"},
        {NULL, NULL},
    };
    check_answers("hy_v3", "none", v3);
    check_answers("hunyuan_a13b", "none", a13b);
}

// --- JSON ---

static void test_lists(void **state)
{
    (void)state;
    static const answer_sample cohere[] = {
        {"<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": "
         "{\"s\": \"é]\"}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"any\", "
         "\"parameters\": {}}\n]<|END_ACTION|>",
         "<call f {\"s\": \"é]\"}><call any {}>"},
        {"I will.<|START_ACTION|>[{\"tool_name\": \"f\"}]<|END_ACTION|> x", "I will.<call f {}>x"},
        {"<|START_ACTION|>[]<|END_ACTION|>", "<|START_ACTION|>[]<|END_ACTION|>"},
        {"<|START_ACTION|>[{\"tool_name\": \"f\", \"parameters\": {\"a\": [", "<call f {\"a\": [>"},
        {NULL, NULL},
    };
    static const answer_sample apertus[] = {
        {"Ok. <|tools_prefix|>[{\"f\": {\"s\": \"}\", \"o\": {\"k\": [1]}}}, {\"a\\u00e9\": {}}]"
         "<|tools_suffix|>x",
         "Ok.<call f {\"s\": \"}\", \"o\": {\"k\": [1]}}><call a\xc3\xa9 {}>x"},
        {"<|tools_prefix|>[{\"f\": {\"s\": 1", "<call f {\"s\": 1>"},
        {"<|tools_prefix|>[{\"f\": 5}]", "<|tools_prefix|>[{\"f\": 5}]"},
        {"<|tools_prefix|>[{}]", "<|tools_prefix|>[{}]"},
        {"<|tools_prefix|>[{\"\": {}}]", "<|tools_prefix|>[{\"\": {}}]"},
        {NULL, NULL},
    };
    static const answer_sample xlam[] = {
        {"[{\"name\": \"f\", \"arguments\": {\"s\": 1}}, {\"name\": \"get.w-2\", \"arguments\": "
         "{}}]",
         "<call f {\"s\": 1}><call get.w-2 {}>"},
        {"[{\"name\": \"Ann\"}]", "[{\"name\": \"Ann\"}]"},
        {"Ok.\n```json\n[{\"name\": \"f\"}]\n```\nx", "Ok.<call f {}>x"},
        {"Ok.\n```json\n[{\"name\": \"Ann\"}]\n```", "Ok.\n```json\n[{\"name\": \"Ann\"}]\n```"},
        {"Ok.[TOOL_CALLS] [{\"name\": \"any\", \"arguments\": {}}]", "Ok.<call any {}>"},
        {"<tool_call>[{\"name\": \"any\"}]</tool_call>", "<call any {}>"},
        {"[1, 2]", "[1, 2]"},
        {NULL, NULL},
    };
    static const answer_sample nemotron[] = {
        {"Ok.\n\n<TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"s\": \"<\"}}, {\"name\": \"any\", "
         "\"arguments\": {}}]</TOOLCALL>\nx",
         "Ok.<call f {\"s\": \"<\"}><call any {}>x"},
        {"<TOOLCALL>[]</TOOLCALL>", "<TOOLCALL>[]</TOOLCALL>"},
        {NULL, NULL},
    };
    check_answers("cohere_command4", "none", cohere);
    check_answers("nemotron_json", "none", nemotron);
    check_answers("apertus", "none", apertus);
    check_answers("xlam", "none", xlam);
}

static void test_objects(void **state)
{
    (void)state;
    static const answer_sample internlm[] = {
        {"Ok.<|action_start|><|plugin|>\n{\"name\": \"f\", \"parameters\": {\"s\": "
         "\"<|action_end|>\"}}<|action_end|>\nx",
         "Ok.<call f {\"s\": \"<|action_end|>\"}>x"},
        {"<|action_start|> <|plugin|>{\"name\": \"any\"}<|action_end|><|action_start|><|plugin|>"
         "{\"name\": \"g\", \"parameters\": {\"a\": [1, {}]}}",
         "<call any {}><call g {\"a\": [1, {}]}>"},
        {"<|action_start|><|interpreter|>\nprint(1)<|action_end|>",
         "<|action_start|><|interpreter|>\nprint(1)<|action_end|>"},
        {"<|action_start|><|plugin|>x", "<|action_start|><|plugin|>x"},
        {NULL, NULL},
    };
    static const answer_sample longcat[] = {
        {"Ok.\n<longcat_tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"x\"}}\n"
         "</longcat_tool_call>\n<longcat_tool_call>{\"name\": \"g\"}</longcat_tool_call>x",
         "Ok.<call f {\"s\": \"x\"}><call g {}>x"},
        {"<tool_call>{\"name\": \"f\"}</tool_call>", "<tool_call>{\"name\": \"f\"}</tool_call>"},
        {NULL, NULL},
    };
    check_answers("internlm", "none", internlm);
    check_answers("longcat", "none", longcat);
}

// --- Python ---

#define L_BEGIN "<|tool_call_start|>"
#define L_END "<|tool_call_end|>"

static void test_python(void **state)
{
    (void)state;
    static const answer_sample lfm2[] = {
        {"Ok. " L_BEGIN "[f(s=\"x)]\", n=-1), any(a=[1, {'k': None}])]" L_END "Wait.",
         "Ok.<call f {\"s\": \"x)]\", \"n\": -1}><call any {\"a\": [1, {\"k\": null}]}>Wait."},
        {L_BEGIN "[any()]" L_END, "<call any {}>"},
        {L_BEGIN "[{\"name\": \"any\", \"arguments\": {\"s\": [1]}}, {\"name\": \"f\"}]" L_END "x",
         "<call any {\"s\": [1]}><call f {}>x"},
        {L_BEGIN "[f(s=1)", "<call f {\"s\": 1}>"},
        {L_BEGIN "[f(s=", L_BEGIN "[f(s="},
        {"[f(s=1)]", "[f(s=1)]"},
        {L_BEGIN L_END, L_BEGIN L_END},
        {NULL, NULL},
    };
    static const answer_sample olmo[] = {
        {"Ok.\n<function_calls>\nf(s=\"a\\nb\", n=3)\nany(b=true, o={\"k\": "
         "null})\n</function_calls>x",
         "Ok.<call f {\"s\": \"a\\nb\", \"n\": 3}><call any {\"b\": true, \"o\": {\"k\": null}}>x"},
        {"<function_calls>f()</function_calls>", "<call f {}>"},
        {"<function_calls>[f(), g(a=1)]</function_calls>", "<call f {}><call g {\"a\": 1}>"},
        {"<function_calls>f(n=1)\n", "<call f {\"n\": 1}>"},
        {"<function_calls>f(n=1) < 2", "<call f {\"n\": 1}>< 2"},
        {"<function_calls>\nnothing\n</function_calls>",
         "<function_calls>\nnothing\n</function_calls>"},
        {"f(n=1)", "f(n=1)"},
        {NULL, NULL},
    };
    check_answers("lfm2", "none", lfm2);
    check_answers("olmo3", "none", olmo);
}

// --- Gemma ---

#define G_BEGIN "<|tool_call>call:"
#define G_END "<tool_call|>"
#define Q "<|\"|>"

static void test_gemma(void **state)
{
    (void)state;
    static const answer_sample samples[] = {
        {"Ok. " G_BEGIN "f{s:" Q "a, {b}: \"c\"\n\\<|" Q ",n:42}" G_END "x",
         "Ok.<call f {\"s\": \"a, {b}: \\\"c\\\"\\n\\\\<|\", \"n\": 42}>x"},
        {G_BEGIN "any{}" G_END G_BEGIN "get.w-2{a:true,b:null,c:-1.5e3}" G_END,
         "<call any {}><call get.w-2 {\"a\": true, \"b\": null, \"c\": -1.5e3}>"},
        {G_BEGIN "f{o:{k:[1,{l:" Q Q "},[]],m:{}},x:[" Q "a" Q "," Q "b" Q "]}" G_END,
         "<call f {\"o\": {\"k\": [1, {\"l\": \"\"}, []], \"m\": {}}, \"x\": [\"a\", \"b\"]}>"},
        // Blanks, keys in marks, text without marks, types by the schema.
        {G_BEGIN " f { s : 5 , " Q "k:1" Q ": some text }" G_END,
         G_BEGIN " f { s : 5 , " Q "k:1" Q ": some text }" G_END},
        {G_BEGIN "f{ s: 5 , " Q "k:1" Q ": some text }" G_END,
         "<call f {\"s\": \"5\", \"k:1\": \"some text\"}>"},
        {G_BEGIN "f{s:" Q "a" Q ",}" G_END, "<call f {\"s\": \"a\"}>"},
        // Ends that are missing, and brackets too many.
        {G_BEGIN "f{n:1}", "<call f {\"n\": 1}>"},
        {G_BEGIN "f{n:1}}" G_END "x", "<call f {\"n\": 1}>x"},
        {G_BEGIN "f{n:1}\n" G_BEGIN "g{}", "<call f {\"n\": 1}><call g {}>"},
        {G_BEGIN "f{n:1,s:" Q "a", "<call f {\"n\": 1, \"s\": \"a>"},
        {G_BEGIN "f{n:1,s:2", "<call f {\"n\": 1>"},
        {G_BEGIN "f{o:[1" G_END "x", "<call f {\"o\": [>x"},
        {G_BEGIN "f{n:1} and more", "<call f {\"n\": 1}>and more"},
        // No calls.
        {G_BEGIN "{}", G_BEGIN "{}"},
        {"<|tool_call>f{}", "<|tool_call>f{}"},
        {"call:f{}", "call:f{}"},
        {"a <|tool b", "a <|tool b"},
        {NULL, NULL},
    };
    static const answer_sample function[] = {
        {"<start_function_call>call:f{s:<escape>a<b>{}<escape>,n:1}<end_function_call>x",
         "<call f {\"s\": \"a<b>{}\", \"n\": 1}>x"},
        {NULL, NULL},
    };
    check_answers("gemma4", "none", samples);
    check_answers("functiongemma", "none", function);
}

// --- thoughts ---

// With what some families have around the answer, which is left out with the white space inside.
static void test_thoughts(void **state)
{
    (void)state;
    static const answer_sample seed[] = {
        {"<seed:think>\nHm.</seed:think>\nYes." S_BEGIN "f>\n" S_END,
         "<think: Hm.>Yes.<call f {}>"},
        {"<seed:think>a" S_BEGIN "f>\n" S_END, "<think: a><call f {}>"},
        {"<think>a</think>b", "<think>a</think>b"},
        {NULL, NULL},
    };
    static const answer_sample gemma[] = {
        {"<|channel>thought\nSo.\n<channel|>Yes.", "<think: So.>Yes."},
        {"<|channel>thought\n<channel|>" G_BEGIN "f{}" G_END, "<call f {}>"},
        {"<|channel>thought\na" G_BEGIN "f{n:1}" G_END, "<think: a><call f {\"n\": 1}>"},
        {"<|channel>other\nx", "<|channel>other\nx"},
        {NULL, NULL},
    };
    static const answer_sample cohere[] = {
        {"<|START_THINKING|>Plan.<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>",
         "<think: Plan.>Yes."},
        {"<|START_THINKING|>a<|END_THINKING|><|START_TEXT|> b \n<|END_TEXT|>\n", "<think: a>b"},
        {"<|START_RESPONSE|>Yes.<|END_RESPONSE|>", "Yes."},
        {"<|START_THINKING|>a<|END_THINKING|><|START_ACTION|>[{\"tool_name\": \"f\", "
         "\"parameters\": "
         "{\"s\": \"<|END_RESPONSE|>\"}}]<|END_ACTION|>",
         "<think: a><call f {\"s\": \"<|END_RESPONSE|>\"}>"},
        {"Yes. <|START_RESPONSE|>x", "Yes. <|START_RESPONSE|>x"},
        {NULL, NULL},
    };
    static const answer_sample hunyuan[] = {
        {"<think>\nHm.\n</think>\n<answer>\nYes <b> no.\n</answer>", "<think: Hm.>Yes <b> no."},
        {"<think>\n\n</think>\n<answer>\n<tool_calls>[{\"name\": \"f\", \"arguments\": {\"s\": \" "
         "</answer>\"}}]</tool_calls>\n</answer>\n",
         "<call f {\"s\": \" </answer>\"}>"},
        {"<think>a</think>b <answer>c</answer>", "<think: a>b <answer>c</answer>"},
        {"<think>a</think><answer>b </ans", "<think: a>b </ans"},
        {"<think>a</think><\nb", "<think: a><\nb"},
        {"<think>a</think> <ans", "<think: a><ans"},
        {"<think>a</think><answer>b</answer> c", "<think: a>bc"},
        {NULL, NULL},
    };
    check_answers("seed_oss", "seed_oss", seed);
    check_answers("gemma4", "gemma4", gemma);
    check_answers("cohere_command4", "cohere_command4", cohere);
    check_answers("hunyuan_a13b", "hunyuan_a13b", hunyuan);
    // The prompt has opened them.
    msgl_parser_config cfg = {.reasoning = msgl__reasoning_form("ernie45", NULL), .thinking = true};
    check_answer(&cfg, "a\n</think>\n\n<response>\nb\n\nc\n</response>\n", "<think: a>b\n\nc");
    check_answer(&cfg, "a\n</think>\n\nb\n", "<think: a>b\n");
    // Thoughts as content keep the marks, the answer's too.
    cfg.keep_reasoning = true;
    check_answer(&cfg, "a</think><response>b</response>", "a</think><response>b</response>");
    cfg = (msgl_parser_config){.reasoning = msgl__reasoning_form("granite", NULL)};
    check_answer(&cfg, "Here is my thought process: a\n\nHere is my response: b", "<think: a>b");
    check_answer(&cfg, "Here's my thought process:a Here's my response:b", "<think: a>b");
    check_answer(&cfg, "Here is my response: b", "Here is my response: b");
    cfg = (msgl_parser_config){.reasoning = msgl__reasoning_form("apertus2509", NULL)};
    check_answer(&cfg, "<|inner_prefix|>a<|inner_suffix|>b", "<think: a>b");
    cfg = (msgl_parser_config){.reasoning = msgl__reasoning_form("minimax-m3", NULL)};
    check_answer(&cfg, "<mm:think>a</mm:think>b", "<think: a>b");
    cfg = (msgl_parser_config){.reasoning = msgl__reasoning_form("kimi", NULL)};
    check_answer(&cfg, "◁think▷a◁/think▷b", "<think: a>b");
    // Of a model that always thinks: nothing opens them.
    cfg = (msgl_parser_config){.reasoning = msgl__reasoning_form("minimax_m2", NULL),
                               .thinking = true};
    check_answer(&cfg, "a\n</think>\n\nb", "<think: a>b");
}

// A call's special token ends thoughts that nothing closed; text that models think of does not.
static void test_call_in_thoughts(void **state)
{
    (void)state;
    static const answer_sample kimi[] = {
        {"<think>I call.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
         "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
         "<think: I call.><call f (functions.f:0) {}>"},
        {NULL, NULL},
    };
    static const answer_sample apertus[] = {
        {"<|inner_prefix|>a \n<|tools_prefix|>[{\"f\": {}}]<|tools_suffix|>x",
         "<think: a><call f {}>x"},
        {NULL, NULL},
    };
    static const answer_sample dsml[] = {
        {"<think>a\n" D32_BEGIN D_INVOKE("f") D_INVOKE_END D32_END, "<think: a><call f {}>"},
        {"<think>a <｜DSML｜ b</think>c", "<think: a <｜DSML｜ b>c"},
        {NULL, NULL},
    };
    static const answer_sample coder[] = {
        {"<think><tool_call>\n<function=f>\n</function>\n</tool_call></think>b",
         "<think: <tool_call>\n<function=f>\n</function>\n</tool_call>>b"},
        {NULL, NULL},
    };
    check_answers("kimi_k2", "qwen3", kimi);
    check_answers("apertus", "apertus", apertus);
    check_answers("deepseek_v32", "qwen3", dsml);
    check_answers("qwen3_coder", "qwen3", coder);
    msgl_tool_set *set = make_test_tools();
    msgl_parser_config cfg = {.tools = msgl__tool_form("lfm2", NULL),
                              .reasoning = msgl__reasoning_form("qwen3", NULL),
                              .known = set,
                              .keep_reasoning = true};
    check_answer(&cfg, "<think>a " L_BEGIN "[f()]" L_END "b", "<think>a <call f {}>b");
    // Without tools they are thoughts.
    cfg = (msgl_parser_config){.reasoning = msgl__reasoning_form("qwen3", NULL)};
    check_answer(&cfg, "<think>a" L_BEGIN "</think>b", "<think: a" L_BEGIN ">b");
    msgl__tool_set_free(set);
}

// --- choice ---

static void test_choice(void **state)
{
    (void)state;
    static const char *const by_text[][3] = {
        {"<minimax:tool_call> <invoke name= <response> ]~b]ai\n<think>\n", "minimax_m2", "qwen3"},
        {"Think in <think> </think>, answer in <answer> </answer>", "none", "qwen3"},
        {"{%- set toolcall_begin_token = '<seed:tool_call>' %} <function= <seed:think>", "seed_oss",
         "seed_oss"},
        {"{% set dsml_token = '｜DSML｜' %}<{{ dsml_token }}function_calls> <think>",
         "deepseek_v32", "qwen3"},
        {"<｜DSML｜tool_calls> </think>", "deepseek_v4", "qwen3"},
        {"{{ '<｜DSML｜ calls>' }} <think>", "deepseek_v41", "qwen3"},
        {"<AVAILABLE_TOOLS> <TOOLCALL>[ <think>", "nemotron_json", "qwen3"},
        {"<｜tool_calls_begin｜> <steptml:invoke name= <think>", "step3", "qwen3"},
        {"<tool_calls> <tool_call> <tool_sep> <arg_key> <think>", "hy_v3", "glm45"},
        {"<tool_calls> <tool_call> <arg_key>", "hy_v3", "none"},
        {"<tool_call> <arg_key> <think>", "glm45", "glm45"},
        {"<|extra_0|> <think> <answer> <tool_calls>[", "hunyuan_a13b", "hunyuan_a13b"},
        {"<｜hy_Assistant｜> <think> <answer>", "none", "hunyuan_a13b"},
        {"<|START_THINKING|> <|START_ACTION|>", "cohere_command4", "cohere_command4"},
        {"<|tools_prefix|> <|inner_prefix|>", "apertus", "apertus"},
        {"<|action_start|><|plugin|>", "internlm", "none"},
        {"<longcat_tool_call>", "longcat", "none"},
        {"<|tool_list_start|> tools <|tool_list_end|>", "lfm2", "none"},
        {"<|tool_call_start|> <think>", "lfm2", "qwen3"},
        {"<functions> <function_calls>", "olmo3", "none"},
        {"<|tool_call>call: <|channel>thought <|tool>", "gemma4", "gemma4"},
        {"<start_function_call>call:", "functiongemma", "none"},
        {"think_mode=True <tool_call> <think> <response>", "hermes", "ernie45"},
        {"<|tool_call|> Here is my thought process:", "granite", "granite"},
        {"<|tool_call|> between <think></think>, and <response></response>", "granite", "ernie45"},
        {"<mm:think>", "none", "minimax_m3"},
    };
    for (size_t i = 0; i < sizeof by_text / sizeof by_text[0]; i++) {
        const char *t = by_text[i][0];
        assert_string_equal(msgl__tool_form_name(msgl__tool_form("auto", t)), by_text[i][1]);
        assert_string_equal(msgl__reasoning_form_name(msgl__reasoning_form("auto", t)),
                            by_text[i][2]);
    }
    // The peers' names.
    static const char *const tools[][2] = {
        {"minimax-m2", "minimax_m2"}, {"deepseekv32", "deepseek_v32"},
        {"ernie45", "hermes"},        {"hunyuan", "hy_v3"},
        {"apertus2509", "apertus"},   {"mimo", "qwen3_coder"},
        {"interns1", "internlm"},     {"step3p5", "qwen3_coder"},
        {"jamba", "hunyuan_a13b"},    {"ling3", "glm45"},
        {"glm47", "glm45"},           {"xlam", "xlam"},
    };
    for (size_t i = 0; i < sizeof tools / sizeof tools[0]; i++) {
        assert_string_equal(msgl__tool_form_name(msgl__tool_form(tools[i][0], NULL)), tools[i][1]);
    }
    assert_null(msgl__tool_form("auto", "an xlam template"));
}

// --- openings ---

// Further calls than asked for are left out, whatever the form, and the text behind them is not.
static void test_one_call(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"minimax_m2",
         M_BEGIN "<invoke name=\"f\"></invoke><invoke name=\"g\"><parameter name=\"a\">"
                 "1</parameter></invoke>" M_END "x"},
        {"gemma4", G_BEGIN "f{}" G_END G_BEGIN "g{a:[" Q "b" Q ",1]}" G_END "x"},
        {"lfm2", L_BEGIN "[f(), g(a=1)]" L_END "x"},
        {"olmo3", "<function_calls>f()\ng(a=1)\n</function_calls>x"},
        {"apertus", "<|tools_prefix|>[{\"f\": {}}, {\"g\": {\"a\": 1}}]<|tools_suffix|>x"},
        {"deepseek_v32",
         D32_BEGIN D_INVOKE("f") D_INVOKE_END D_INVOKE("g") "{\"a\": 1}" D_INVOKE_END D32_END "x"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const msgl_parser_config cfg = {.tools = msgl__tool_form(rows[i][0], NULL), .max_calls = 1};
        check_answer(&cfg, rows[i][1], "<call f {}>x");
    }
}

// An opening that is prefilled begins the call that it names.
static void test_opening(void **state)
{
    (void)state;
    static const char *const rows[][3] = {
        {"minimax_m2", "<parameter name=\"n\">1</parameter>\n</invoke>\n" M_END,
         "<call f {\"n\": 1}>"},
        {"seed_oss", "<parameter=n>1</parameter>\n" S_END, "<call f {\"n\": 1}>"},
        {"deepseek_v32", D_PARAM("n", "false", "1") D_INVOKE_END D32_END, "<call f {\"n\": 1}>"},
        {"deepseek_v4", D_PARAM("n", "false", "1") D_INVOKE_END, "<call f {\"n\": 1}>"},
        {"step3", "<steptml:parameter name=\"n\">1</steptml:parameter>" ST_END,
         "<call f {\"n\": 1}>"},
        {"hy_v3", "<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call>\n</tool_calls>",
         "<call f {\"n\": 1}>"},
        {"hunyuan_a13b", " {\"n\": 1}}]</tool_calls>", "<call f {\"n\": 1}>"},
        {"nemotron_json", " {\"n\": 1}}]</TOOLCALL>", "<call f {\"n\": 1}>"},
        {"cohere_command4", " {\"n\": 1}}\n]<|END_ACTION|>", "<call f {\"n\": 1}>"},
        {"cohere_command4", " {\"n\": 1}", "<call f {\"n\": 1}>"},
        {"apertus", " {\"n\": 1}}]<|tools_suffix|>", "<call f {\"n\": 1}>"},
        {"internlm", " {\"n\": 1}}<|action_end|>", "<call f {\"n\": 1}>"},
        {"longcat", " {\"n\": 1}}\n</longcat_tool_call>", "<call f {\"n\": 1}>"},
        {"xlam", " {\"n\": 1}}]", "<call f {\"n\": 1}>"},
        {"lfm2", "n=1)]" L_END, "<call f {\"n\": 1}>"},
        {"olmo3", "n=1)\n</function_calls>", "<call f {\"n\": 1}>"},
        {"gemma4", "n:1}" G_END, "<call f {\"n\": 1}>"},
        {"functiongemma", "n:1}<end_function_call>", "<call f {\"n\": 1}>"},
    };
    msgl_tool_set *set = make_test_tools();
    msgl_strbuf b;
    msgl__strbuf_init(&b, 1000);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const msgl_parser_config cfg = {.tools = msgl__tool_form(rows[i][0], NULL), .known = set};
        size_t at;
        assert_true(msgl__tool_form_can_open(cfg.tools));
        msgl__strbuf_clear(&b);
        assert_int_equal(msgl__tool_form_opening(cfg.tools, "f", &b, &at), 0);
        assert_int_equal(b.data[at], 'f');
        assert_int_equal(msgl__strbuf_adds(&b, rows[i][1]), 0);
        check_answer(&cfg, msgl__strbuf_str(&b), rows[i][2]);
    }
    msgl__strbuf_free(&b);
    msgl__tool_set_free(set);
    // Seed-OSS's template with a budget of 0 begins a reflection in the thoughts.
    const msgl_reasoning_form *seed = msgl__reasoning_form("seed_oss", NULL);
    static const char prompt[] = "<seed:think><seed:cot_budget_reflect>";
    assert_true(msgl__reasoning_opened(seed, prompt, sizeof prompt - 1));
    assert_true(msgl__reasoning_opened(seed, prompt, strlen("<seed:think>")));
    assert_false(msgl__reasoning_opened(seed, "</seed:think>", strlen("</seed:think>")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_minimax),
        cmocka_unit_test(test_seed),
        cmocka_unit_test(test_dsml),
        cmocka_unit_test(test_step3),
        cmocka_unit_test(test_hunyuan),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_objects),
        cmocka_unit_test(test_python),
        cmocka_unit_test(test_gemma),
        cmocka_unit_test(test_thoughts),
        cmocka_unit_test(test_call_in_thoughts),
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_one_call),
        cmocka_unit_test(test_opening),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
