// SPDX-License-Identifier: Apache-2.0
//
// Answers of each form and what they are: parts that are the same for every cut into pieces, and
// content for everything that is no call.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "core/err.h"
#include "parsers/answers.h"

static void test_hermes(void **state)
{
    (void)state;
    static const answer_sample samples[] = {
        {"", ""},
        {"Hello,\n world. \n", "Hello,\n world. \n"},
        {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"x\"}}\n</tool_call>",
         "<call f {\"s\": \"x\"}>"},
        {"Look: \n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, {\"b\": \"}\"}]}}\n"
         "</tool_call>\n<tool_call>{\"name\":\"other\",\"arguments\":{}}</tool_call>\n\nDone.\n",
         "Look:<call f {\"a\": [1, {\"b\": \"}\"}]}><call other {}>Done.\n"},
        // Keys in another order, others, none, and names for them.
        {"<tool_call>{\"id\": {\"name\": 5}, \"arguments\": {\"s\": 1}, \"x\":-1.5e3, \"name\": "
         "\"f\", \"y\": null}</tool_call>",
         "<call f {\"s\": 1}>"},
        {"<tool_call>{\"name\": \"f\"}</tool_call>", "<call f {}>"},
        {"<tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call>", "<call f {}>"},
        {"<tool_call>{\"name\": \"f\", \"parameters\": {}}</tool_call>", "<call f {}>"},
        {"<tool_call>{\"name\": \"f\\u00e9\\n\", \"arguments\": {}}</tool_call>",
         "<call f\xc3\xa9\n {}>"},
        // Arguments as a text of JSON.
        {"<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"s\\\": \\\"\\\\\\\"\\\"}\"}"
         "</tool_call>",
         "<call f {\"s\": \"\\\"\"}>"},
        // Markers in strings are strings.
        {"<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"</tool_call>\\\"<tool_call>\"}}"
         "</tool_call>",
         "<call f {\"s\": \"</tool_call>\\\"<tool_call>\"}>"},
        // No closing marker, a bracket too many, one too few, or two.
        {"<tool_call>{\"name\": \"f\", \"arguments\": {}}", "<call f {}>"},
        {"<tool_call>{\"name\": \"f\", \"arguments\": {}}}\n</tool_call>x", "<call f {}>x"},
        {"<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": 1}\n</tool_call> x",
         "<call f {\"s\": 1}>x"},
        {"<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": 1\n</tool_call>x",
         "<call f {\"s\": 1\n>x"},
        {"<tool_call>{\"name\": \"f\", \"arguments\": {}}\n<tool_call>{\"name\": \"g\"}",
         "<call f {}><call g {}>"},
        {"<tool_call>{\"name\": \"f\", \"arguments\": {}} and <more", "<call f {}>and <more"},
        {"<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": <tool>}}</tool_call>",
         "<call f {\"s\": <tool>}>"},
        // No calls.
        {"<tool_call>", "<tool_call>"},
        {"a <tool_call>\nb</tool_call> c", "a <tool_call>\nb</tool_call> c"},
        {"<tool_call><tool_call>{\"name\": \"f\"}</tool_call>", "<tool_call><call f {}>"},
        {"<tool_call>{\"nam\": \"f\", \"arguments\": {}}</tool_call>",
         "<tool_call>{\"nam\": \"f\", \"arguments\": {}}</tool_call>"},
        {"<tool_call>{\"name\": 5}</tool_call>", "<tool_call>{\"name\": 5}</tool_call>"},
        {"<tool_call>{\"name\": \"\", \"arguments\": {}}", "<tool_call>{\"name\": \"\", "
                                                           "\"arguments\": {}}"},
        {"<tool_call>{\"name\": \"f\", \"arguments\": [1]}", "<tool_call>{\"name\": \"f\", "
                                                             "\"arguments\": [1]}"},
        {"<tool_call>{\"name\": \"f\", \"arguments\": \"x\"}", "<tool_call>{\"name\": \"f\", "
                                                               "\"arguments\": \"x\"}"},
        {"<tool_call>{\"name\": \"\\q\"}", "<tool_call>{\"name\": \"\\q\"}"},
        {"<tool_call>{\"name\" \"f\"}", "<tool_call>{\"name\" \"f\"}"},
        {"<<tool_call>{\"name\": \"f\"}</tool_call><", "<<call f {}><"},
        {"<tool_call <tool_cal", "<tool_call <tool_cal"},
        {NULL, NULL},
    };
    check_answers("hermes", "none", samples);
}

static void test_llama(void **state)
{
    (void)state;
    static const answer_sample samples[] = {
        {"Hi {\"name\": \"f\"}", "Hi {\"name\": \"f\"}"},
        {"{\"name\": \"f\", \"parameters\": {\"s\": \"x\"}}", "<call f {\"s\": \"x\"}>"},
        {" \n{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}", "<call f {}>"},
        {"{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"get.w-2\", \"arguments\": {}}",
         "<call f {}><call get.w-2 {}>"},
        {"{\"name\": \"f\", \"parameters\": {}}\n{\"name\": \"f\"}", "<call f {}><call f {}>"},
        {"<|python_tag|>{\"name\": \"any\", \"parameters\": {\"a\": 1}}<|eom_id|>",
         "<call any {\"a\": 1}>"},
        {"Let me see.<|python_start|>{\"name\": \"any\"}<|python_end|> Well.",
         "Let me see.<call any {}>Well."},
        // JSON that is an answer.
        {"{\"name\": \"Ann\", \"parameters\": {}}", "{\"name\": \"Ann\", \"parameters\": {}}"},
        {"{\"name\": \"f\", \"age\": 5, \"parameters\": {}", "<call f {}>"},
        {"{\"a\": 1}", "{\"a\": 1}"},
        {"  { }\n", "  { }\n"},
        {"<|python_tag|>print(1)", "<|python_tag|>print(1)"},
        {"{\"name\": \"f\", \"parameters\": {}} That is all.", "<call f {}>That is all."},
        {"{\"name\": \"f\"}; {\"name\": \"Ann\"} x", "<call f {}>; {\"name\": \"Ann\"} x"},
        {NULL, NULL},
    };
    check_answers("llama3", "none", samples);
}

static void test_pythonic(void **state)
{
    (void)state;
    static const answer_sample samples[] = {
        {"[1, 2]", "[1, 2]"},
        {"[f](x)", "[f](x)"},
        {"[f(s=\"x\", n=-3)]", "<call f {\"s\": \"x\", \"n\": -3}>"},
        {"[f()]", "<call f {}>"},
        {" [f( a = [1, 2.5e3, (True,), None, ], b={'k': \"it's\", \"\": {}} ), get.w-2(x='\\'\\n"
         "\\x41\\u00e9\\U0001f600\\d')]\n",
         "<call f {\"a\": [1, 2.5e3, [true], null], \"b\": {\"k\": \"it's\", \"\": {}}}><call "
         "get.w-2 {\"x\": \"'\\nA\\u00e9\\ud83d\\ude00\\\\d\"}>"},
        {"[f(s=\")]\")]", "<call f {\"s\": \")]\"}>"},
        {"[other(s=1)]", "[other(s=1)]"},
        {"<|python_start|>[other(s=1)]<|python_end|>ok", "<call other {\"s\": 1}>ok"},
        {"[f(s=x)]", "[f(s=x)]"},
        {"[f(1)]", "[f(1)]"},
        {"[f(s=\"x)]", "[f(s=\"x)]"},
        {"[f(s=1]", "[f(s=1]"},
        {"[f(s=01)]", "[f(s=01)]"},
        {"[f(s={1: 2})]", "[f(s={1: 2})]"},
        {"[f(s=1), f(2)] x", "<call f {\"s\": 1}>, f(2)] x"},
        {"[f(s=1) f(s=2)]", "<call f {\"s\": 1}>f(s=2)]"},
        {"Hi [f()]", "Hi [f()]"},
        {NULL, NULL},
    };
    check_answers("pythonic", "none", samples);
}

static void test_mistral(void **state)
{
    (void)state;
    static const answer_sample samples[] = {
        {"[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"s\": \"]\"}}, {\"name\": \"g\", "
         "\"arguments\": {}, \"id\": \"abcdefghi\"}]",
         "<call f {\"s\": \"]\"}><call g {}>"},
        {"Well.[TOOL_CALLS]f{\"s\": 1}[TOOL_CALLS]g[ARGS]{}",
         "Well.<call f {\"s\": 1}><call g {}>"},
        {"[TOOL_CALLS]f[CALL_ID]123456789[ARGS] {\"a\": {}}", "<call f {\"a\": {}}>"},
        {"[TOOL_CALLS]{\"name\": \"f\", \"arguments\": {}} x", "<call f {}>x"},
        {"[TOOL_CALLS]", "[TOOL_CALLS]"},
        {"[TOOL_CALLS]f", "[TOOL_CALLS]f"},
        {"[TOOL_CALLS]f x", "[TOOL_CALLS]f x"},
        {"[TOOL_CALLS][ARGS]{}", "[TOOL_CALLS][ARGS]{}"},
        {"[TOOL_CALLS]f[ARGS]5", "[TOOL_CALLS]f[ARGS]5"},
        {"[TOOL_CALLS] [5]", "[TOOL_CALLS] [5]"},
        {"[TOOL_CALLS] [{\"name\": \"f\"}, 5] x", "<call f {}>, 5] x"},
        {"a [TOOL b", "a [TOOL b"},
        {NULL, NULL},
    };
    check_answers("mistral", "none", samples);
}

#define D_BEGIN "<｜tool▁calls▁begin｜>"
#define D_END "<｜tool▁calls▁end｜>"
#define D_CALL "<｜tool▁call▁begin｜>"
#define D_CLOSE "<｜tool▁call▁end｜>"
#define D_SEP "<｜tool▁sep｜>"

static void test_deepseek(void **state)
{
    (void)state;
    static const answer_sample v3[] = {
        {"Ok.\n" D_BEGIN D_CALL "function" D_SEP "f\n```json\n{\"s\": \"<\"}\n```" D_CLOSE
         "\n" D_CALL "function" D_SEP "g\n```json\n{}\n```" D_CLOSE D_END,
         "Ok.<call f {\"s\": \"<\"}><call g {}>"},
        {D_CALL "function" D_SEP "f\n{\"a\":[1}\n```" D_CLOSE D_END "x",
         "<call f {\"a\":[1}\n```>x"},
        {D_BEGIN D_CALL "function" D_SEP "f\n```json\n{\"a\": 1\n```" D_CLOSE D_END "x",
         "<call f {\"a\": 1\n```>x"},
        {D_BEGIN "x", D_BEGIN "x"},
        {D_BEGIN "\n" D_END "x", D_BEGIN "\n" D_END "x"}, // found by fuzzing: it was lost
        {D_BEGIN D_CALL "function" D_SEP "f g\n", D_BEGIN D_CALL "function" D_SEP "f g\n"},
        {D_BEGIN D_CALL "function" D_SEP "f\n```json\n[]",
         D_BEGIN D_CALL "function" D_SEP "f\n```json\n[]"},
        {D_BEGIN D_CALL "fun ction", D_BEGIN D_CALL "fun ction"},
        {"a<｜b" D_BEGIN, "a<｜b" D_BEGIN},
        {NULL, NULL},
    };
    static const answer_sample v31[] = {
        {D_BEGIN D_CALL "f" D_SEP "{\"s\": 1}" D_CLOSE D_CALL "function" D_SEP "{}" D_CLOSE D_END
                        "\nHm.",
         "<call f {\"s\": 1}><call function {}>Hm."},
        {D_BEGIN D_CALL "f" D_SEP "{\"s\": 1}" D_CLOSE "Hm.", "<call f {\"s\": 1}>Hm."},
        {D_BEGIN D_CALL "f" D_SEP "{\"s\": 1}", "<call f {\"s\": 1}>"},
        {D_BEGIN D_CALL D_SEP "{}", D_BEGIN D_CALL D_SEP "{}"},
        {NULL, NULL},
    };
    check_answers("deepseek_v3", "none", v3);
    check_answers("deepseek_v31", "none", v31);
}

#define K_BEGIN "<|tool_calls_section_begin|>"
#define K_END "<|tool_calls_section_end|>"
#define K_CALL "<|tool_call_begin|>"
#define K_CLOSE "<|tool_call_end|>"
#define K_SEP "<|tool_call_argument_begin|>"

static void test_kimi(void **state)
{
    (void)state;
    static const answer_sample samples[] = {
        {"Ok. " K_BEGIN K_CALL "functions.f:0" K_SEP "{\"s\": \"<\"}" K_CLOSE K_CALL
         "functions.get.w-2:12" K_SEP "{}" K_CLOSE K_END,
         "Ok.<call f (functions.f:0) {\"s\": \"<\"}><call get.w-2 (functions.get.w-2:12) {}>"},
        // Blanks, no section or one of the other spelling, and ids of other kinds.
        {K_CALL " functions.f:3 \n" K_SEP " {\"a\": [1]}\n" K_CLOSE "\n" K_END "x",
         "<call f (functions.f:3) {\"a\": [1]}>x"},
        {"<|tool_call_section_begin|>" K_CALL "f:1" K_SEP "{}" K_CLOSE "<|tool_call_section_end|>x",
         "<call f (f:1) {}>x"},
        {K_BEGIN K_CALL "f" K_SEP "{}" K_CLOSE K_CALL "functions.g:x" K_SEP "{}",
         "<call f (functions.f:0) {}><call g:x (functions.g:x:1) {}>"},
        // No ends, and arguments that are wrong.
        {K_BEGIN K_CALL "functions.f:0" K_SEP "{\"s\": 1}", "<call f (functions.f:0) {\"s\": 1}>"},
        {K_CALL "functions.f:0" K_SEP "{\"a\": [" K_CLOSE K_END "x",
         "<call f (functions.f:0) {\"a\": [>x"},
        // No calls.
        {K_BEGIN K_END "x", K_BEGIN K_END "x"},
        {"<|tool_call_section_begin|> x", "<|tool_call_section_begin|> x"},
        {K_CALL K_SEP "{}", K_CALL K_SEP "{}"},
        {K_CALL ":0" K_SEP "{}", K_CALL ":0" K_SEP "{}"},
        {K_CALL "functions.f:0" K_SEP "[1]", K_CALL "functions.f:0" K_SEP "[1]"},
        {NULL, NULL},
    };
    check_answers("kimi_k2", "none", samples);
}

static void test_lists(void **state)
{
    (void)state;
    static const answer_sample granite[] = {
        {"<|tool_call|>[{\"name\": \"any\", \"arguments\": {\"s\": \"]\"}}, {\"arguments\": {}, "
         "\"name\": \"g\"}]",
         "<call any {\"s\": \"]\"}><call g {}>"},
        {"Ok.\n<tool_call>\n[ {\"name\": \"any\", \"arguments\": {}} ] </tool_call> x",
         "Ok.<call any {}>x"},
        {"<|tool_call|>{\"name\": \"any\"}", "<call any {}>"},
        // Without a marker only of tools that there are.
        {" [{\"name\": \"f\", \"arguments\": {\"s\": 1}}]", "<call f {\"s\": 1}>"},
        {"[{\"name\": \"Ann\", \"arguments\": {}}]", "[{\"name\": \"Ann\", \"arguments\": {}}]"},
        {"So: [{\"name\": \"f\"}]", "So: [{\"name\": \"f\"}]"},
        {"{\"name\": \"f\"}", "{\"name\": \"f\"}"},
        {"[1, 2]", "[1, 2]"},
        {"<|tool_call|>[]", "<|tool_call|>[]"},
        {"a </tool_call> b", "a </tool_call> b"},
        {"<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"s\": 1", "<call f {\"s\": 1>"},
        {NULL, NULL},
    };
    static const answer_sample phi[] = {
        {"<|tool_call|>[{\"name\": \"any\", \"parameters\": {\"s\": 1}}]<|/tool_call|>",
         "<call any {\"s\": 1}>"},
        {"Ok. functools[{\"name\": \"f\", \"arguments\": {}},{\"name\": \"g\", \"arguments\": "
         "{\"a\": "
         "[1]}}]\nx",
         "Ok.<call f {}><call g {\"a\": [1]}>x"},
        {"functools.wraps, functools[0]", "functools.wraps, functools[0]"},
        {"[{\"name\": \"f\", \"arguments\": {}}]", "[{\"name\": \"f\", \"arguments\": {}}]"},
        {"<|tool_call|> x <|/tool_call|>", "<|tool_call|> x <|/tool_call|>"},
        {NULL, NULL},
    };
    check_answers("granite", "none", granite);
    check_answers("phi4_mini_json", "none", phi);
}

static void test_tagged(void **state)
{
    (void)state;
    static const answer_sample glm[] = {
        {"Hm.\n<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>5</arg_value>\n<arg_key>n</arg_key>"
         "\n<arg_value>5</arg_value>\n</tool_call>\n<tool_call>g<arg_key>a</arg_key><arg_value>"
         "{\"x\": [1]}</arg_value><arg_key>b</arg_key><arg_value>a \"b\"\n</arg_value>"
         "</tool_call>",
         "Hm.<call f {\"s\": \"5\", \"n\": 5}><call g {\"a\": {\"x\": [1]}, \"b\": \"a \\\"b\\\"\\n"
         "\"}>"},
        {"<tool_call>f</tool_call>x", "<call f {}>x"},
        {"<tool_call>f\n</tool_call>", "<call f {}>"},
        {"<tool_call>f\n<arg_key>e</arg_key><arg_value>1</arg_value>", "<call f {\"e\": \"1\"}>"},
        {"<tool_call>f\n<arg_key>e</arg_key><arg_value>1</arg", "<call f {>"},
        {"<tool_call>f\n<arg_key>e</arg_key>oops</tool_call>", "<call f {}>oops</tool_call>"},
        {"<tool_call>\n{\"name\": \"f\"}", "<tool_call>\n{\"name\": \"f\"}"},
        {"<tool_call></tool_call>", "<tool_call></tool_call>"},
        {"<tool_call>f g", "<tool_call>f g"},
        // Ends that are missing.
        {"<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>a\n</tool_call>",
         "<call f {\"s\": \"a\\n\"}>"},
        {"<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n<tool_call>g</tool_call>x",
         "<call f {\"n\": 1}><call g {}>x"},
        {"<tool_call>o\n<arg_key>any</arg_key><arg_value>true</arg_value><arg_key>list</arg_key>"
         "<arg_value>null</arg_value></tool_call>",
         "<call o {\"any\": \"true\", \"list\": null}>"},
        {NULL, NULL},
    };
    static const answer_sample coder[] = {
        {"I do.\n<tool_call>\n<function=f>\n<parameter=s>\nline\n two\n\n</parameter>\n<parameter="
         "n>\n7\n</parameter>\n</function>\n</tool_call>",
         "I do.<call f {\"s\": \"line\\n two\\n\", \"n\": 7}>"},
        {"<tool_call>\n<function=f>\n</function>\n</tool_call>\nx", "<call f {}>x"},
        {"<tool_call>\n<functio=f>", "<tool_call>\n<functio=f>"},
        {"<tool_call>\n<function=>", "<tool_call>\n<function=>"},
        {"<tool_call>\nf", "<tool_call>\nf"},
        // Without the opening tag, of a tool that there is; without other tags.
        {"I do.\n<function=f>\n<parameter=s>\nx\n</parameter>\n</function>\n</tool_call>\ny",
         "I do.<call f {\"s\": \"x\"}>y"},
        {"<function=f>\n</function>\n<function=f>\n<parameter=n>\n1\n</parameter>\n</function>",
         "<call f {}><call f {\"n\": 1}>"},
        {"Say <function=any> and <function=", "Say <function=any> and <function="},
        {"<tool_call>\n<function=f>\n</function>\n<tool_call>\n<function=g>\n</function>\n"
         "</tool_call>",
         "<call f {}><call g {}>"},
        {"<tool_call>\n<function=f>\n<parameter=s>\nx <b>\n</function>\n</tool_call>",
         "<call f {\"s\": \"x <b>\"}>"},
        {"<tool_call>\n<function=f>\n<parameter=s>\nx\n</function>\n", "<call f {\"s\": \"x\"}>"},
        {"<tool_call>\n<function=f>\n<parameter=s>\nx\n", "<call f {>"},
        // The first type that is not null decides.
        {"<tool_call>\n<function=o>\n<parameter=any>\n{\"a\": "
         "1}\n</parameter>\n<parameter=list>\n12"
         "\n</parameter>\n<parameter=one>\nnull\n</parameter>\n<parameter=num>\n12\n</parameter>\n"
         "<parameter=en>\n1\n</parameter>\n<parameter=mix>\n1\n</parameter>\n<parameter=c>\n1\n"
         "</parameter>\n<parameter=loop>\n1\n</parameter>\n</function>\n</tool_call>",
         "<call o {\"any\": \"{\\\"a\\\": 1}\", \"list\": \"12\", \"one\": null, \"num\": 12, "
         "\"en\": "
         "\"1\", \"mix\": 1, \"c\": \"1\", \"loop\": 1}>"},
        // What is no string may be Python's.
        {"<tool_call>\n<function=o>\n<parameter=b>\nTrue\n</parameter>\n<parameter=a>\n['x', "
         "None]\n"
         "</parameter>\n<parameter=num>\nNone\n</parameter>\n<parameter=any>\nNone\n</parameter>\n"
         "<parameter=x>\nTrue\n</parameter>\n</function>\n</tool_call>",
         "<call o {\"b\": true, \"a\": [\"x\", null], \"num\": null, \"any\": \"None\", \"x\": "
         "\"True\"}>"},
        {NULL, NULL},
    };
    check_answers("glm45", "none", glm);
    check_answers("qwen3_coder", "none", coder);
}

static void test_harmony(void **state)
{
    (void)state;
    static const answer_sample samples[] = {
        {"<|channel|>analysis<|message|>User asks.\nSo.<|end|><|start|>assistant<|channel|>final"
         "<|message|>Hello!\n",
         "<think: User asks.\nSo.>Hello!\n"},
        {"<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>commentary "
         "to=functions.get.w-2 <|constrain|>json<|message|>{\"a\": \"<|b|>\"}",
         "<think: A><call get.w-2 {\"a\": \"<|b|>\"}>"},
        {"<|channel|>commentary<|message|>First I look.<|end|><|start|>assistant to=functions.f"
         "<|channel|>commentary json<|message|> {} <|call|><|start|>assistant<|channel|>"
         "commentary to=functions.g<|message|>{\"x\": 1<|call|>",
         "First I look.<call f {}><call g {\"x\": 1>"},
        {"<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|>B",
         "<think: A\nB>"},
        {"<|channel|>commentary to=functions.f<|message|>oops<|call|>", "oops"},
        {"<|channel|>commentary to=functions.f<|message|><|call|>", ""},
        {"<|channel|>commentary to=browser.open<|message|>{}<|call|>", "{}"},
        // Without "functions." it has to be a tool's name; nothing else is a recipient.
        {"<|channel|>commentary to=f <|constrain|>json<|message|>{\"s\": 1}",
         "<call f {\"s\": 1}>"},
        {"<|channel|>commentary to=g<|message|>{}<|call|>", "{}"},
        {"<|channel|>commentary goto=functions.f<|message|>{}<|call|>", "{}"},
        {"<|channel|>commentary goto=x to=functions.f<|message|>{}<|call|>", "<call f {}>"},
        {"No channel at all", "No channel at all"},
        {"<|message|>A<|return|>B", "A"},
        {"<|channel|>fin", ""},
        {NULL, NULL},
    };
    check_answers("gpt-oss", "gpt-oss", samples);
    // Without tools a call is content.
    const msgl_parser_config plain = {.reasoning = msgl__reasoning_form("gpt-oss", NULL)};
    check_answer(&plain,
                 "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>commentary "
                 "to=functions.f<|message|>{}",
                 "<think: A>{}");
}

static void test_reasoning(void **state)
{
    (void)state;
    static const answer_sample samples[] = {
        {"<think>\nSo be it.\n\n</think>\n\nYes.", "<think: So be it.>Yes."},
        {"\n<think> a <b </thin> </think>c", "<think: a <b </thin>>c"},
        {"<think>\n\n</think>\n\nYes.", "Yes."},
        {"<think>cut </th", "<think: cut </th>"},
        {"<think>cut \n", "<think: cut \n>"},
        {"Yes. <think>no</think>", "Yes. <think>no</think>"},
        {" <thi", " <thi"},
        {" <<think>", " <<think>"},
        {"<think>\n<tool_call>{\"name\": \"f\"}</tool_call>\n</think>\n\n<tool_call>{\"name\": "
         "\"f\"}</tool_call>",
         "<think: <tool_call>{\"name\": \"f\"}</tool_call>><call f {}>"},
        {NULL, NULL},
    };
    check_answers("hermes", "qwen3", samples);
    msgl_parser_config cfg = {.reasoning = msgl__reasoning_form("deepseek-r1", NULL),
                              .thinking = true};
    check_answer(&cfg, "\nI think.\n</think>\n\nSo: </think>\n", "<think: I think.>So: </think>\n");
    check_answer(&cfg, "\n<think>again</think>x", "<think: again>x");
    check_answer(&cfg, "</think>x", "x");
    check_answer(&cfg, "</thi", "<think: </thi>");
    check_answer(&cfg, "\n <thi", "<think: <thi>");
    check_answer(&cfg, "\n", "");
    // Thoughts as content, but no calls in them.
    msgl_tool_set *set = make_test_tools();
    cfg = (msgl_parser_config){.tools = msgl__tool_form("hermes", NULL),
                               .reasoning = msgl__reasoning_form("qwen3", NULL),
                               .keep_reasoning = true,
                               .known = set};
    check_answer(&cfg,
                 "<think>\n<tool_call>{\"name\": \"f\"} </think>\n\n<tool_call>{\"name\": \"f\"}"
                 "</tool_call>",
                 "<think>\n<tool_call>{\"name\": \"f\"} </think><call f {}>");
    cfg.tools = NULL;
    check_answer(&cfg, "<think>\na </think>\n\nb", "<think>\na </think>\n\nb");
    cfg = (msgl_parser_config){.reasoning = msgl__reasoning_form("mistral", NULL)};
    check_answer(&cfg, "[THINK]a[/THINK]b", "<think: a>b");
    cfg = (msgl_parser_config){0};
    check_answer(&cfg, "<think>a</think> b\n", "<think>a</think> b\n");
    msgl__tool_set_free(set);
}

static void test_one_call(void **state)
{
    (void)state;
    const msgl_parser_config cfg = {.tools = msgl__tool_form("qwen", NULL), .max_calls = 1};
    check_answer(
        &cfg,
        "a<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": 1}}</tool_call>\n<tool_call>{"
        "\"name\": \"g\", \"arguments\": {\"s\": 2}}</tool_call> b",
        "a<call f {\"s\": 1}>b");
}

static void test_choice(void **state)
{
    (void)state;
    static const char *const by_text[][3] = {
        {"{{ '<|channel|>analysis' }} <tool_call>", "gpt-oss", "gpt-oss"},
        {"<｜Assistant｜>" D_BEGIN "'\\n```json\\n' <think>", "deepseek_v3", "qwen3"},
        {"<｜Assistant｜>" D_BEGIN "{% if thinking %}<think>", "deepseek_v31", "deepseek-v3"},
        {"<tool_call>{n}<arg_key> </think>", "glm45", "glm45"},
        {"<tool_call>\n<function=x>\n", "qwen3_coder", "none"},
        {"[AVAILABLE_TOOLS] [TOOL_CALLS] [THINK]", "mistral", "mistral"},
        {"<tool_call>\\n{\\\"name\\\": <function-name>", "hermes", "none"},
        {"<tool_call> '<think>\\n'", "hermes", "qwen3"},
        {"[func_name1(a=b)] <|python_tag|>", "pythonic", "none"},
        {"Respond in the format {\"name\": function name, \"parameters\": x}", "llama3", "none"},
        {"{{ '" K_BEGIN K_CALL "' + id }} <think>", "kimi_k2", "qwen3"},
        {"<|start_of_role|> respond with <|tool_call|> followed by a JSON list", "granite", "none"},
        {"'<|tool|>' + message['tools'] + '<|/tool|>'", "phi4_mini_json", "none"},
        {"formatted as functools[{\"name\": x}] <|tool_call|>", "phi4_mini_json", "none"},
        {"{{ messages }}", "none", "none"},
    };
    for (size_t i = 0; i < sizeof by_text / sizeof by_text[0]; i++) {
        const char *t = by_text[i][0];
        assert_string_equal(msgl__tool_form_name(msgl__tool_form("auto", t)), by_text[i][1]);
        assert_string_equal(msgl__reasoning_form_name(msgl__reasoning_form("auto", t)),
                            by_text[i][2]);
    }
    assert_null(msgl__tool_form("auto", NULL));
    assert_null(msgl__tool_form("none", by_text[0][0]));
    assert_null(msgl__reasoning_form("none", by_text[0][0]));
    // Each name that the options have is one.
    static const char *const lists[] = {MSGL_TOOL_FORM_NAMES, MSGL_REASONING_FORM_NAMES};
    for (int l = 0; l < 2; l++) {
        char names[1024], *rest = names;
        assert_true(strlen(lists[l]) < sizeof names);
        (void)snprintf(names, sizeof names, "%s", lists[l]);
        for (char *name; (name = strtok_r(rest, "|", &rest)) != NULL;) {
            if (strcmp(name, "auto") == 0 || strcmp(name, "none") == 0) continue;
            if (l == 0) assert_non_null(msgl__tool_form(name, NULL));
            if (l == 1) assert_non_null(msgl__reasoning_form(name, NULL));
        }
    }
}

// An opening that is prefilled begins the call that it names, wherever that is determined.
static void test_opening(void **state)
{
    (void)state;
    static const char *const rows[][3] = {
        {"hermes", " {\"s\": 1}}\n</tool_call>", "<call f {\"s\": 1}>"},
        {"llama3", " {\"s\": 1}}", "<call f {\"s\": 1}>"},
        {"pythonic", "s=1)]", "<call f {\"s\": 1}>"},
        {"deepseek_v3", "{\"s\": 1}\n```" D_CLOSE D_END, "<call f {\"s\": 1}>"},
        {"deepseek_v31", "{\"s\": 1}" D_CLOSE D_END, "<call f {\"s\": 1}>"},
        {"glm45", "<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
         "<call f {\"n\": 1}>"},
        {"qwen3_coder", "<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>",
         "<call f {\"n\": 1}>"},
        {"gpt-oss", "{\"s\": 1}", "<call f {\"s\": 1}>"},
        {"kimi_k2", "0" K_SEP "{\"s\": 1}" K_CLOSE K_END, "<call f (functions.f:0) {\"s\": 1}>"},
        {"granite", " {\"s\": 1}}]", "<call f {\"s\": 1}>"},
        {"phi4_mini_json", " {\"s\": 1}}]", "<call f {\"s\": 1}>"},
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
    assert_false(msgl__tool_form_can_open(msgl__tool_form("mistral", NULL)));
    assert_int_equal(msgl__tool_form_id_len(msgl__tool_form("mistral", NULL)), 9);
    const msgl_reasoning_form *r = msgl__reasoning_form("qwen3", NULL);
    assert_true(msgl__reasoning_opened(r, "x<think>\n", 9));
    assert_false(msgl__reasoning_opened(r, "x<think>\n\n</think>\n", 19));
    assert_false(msgl__reasoning_opened(r, "think>", 6));
    assert_false(msgl__reasoning_opened(NULL, "<think>", 7));
    // Models of one form always think, unless the prompt has closed the thoughts.
    const msgl_reasoning_form *always = msgl__reasoning_form("qwen3-thinking", NULL);
    assert_true(msgl__reasoning_assumed(always, "assistant\n", 10));
    assert_true(msgl__reasoning_assumed(always, "</think>x", 9));
    assert_false(msgl__reasoning_assumed(always, "<think>\n\n</think>\n\n", 19));
    assert_false(msgl__reasoning_assumed(r, "assistant\n", 10));
    assert_false(msgl__reasoning_assumed(NULL, "", 0));
    msgl__strbuf_free(&b);
    msgl__tool_set_free(set);
}

static const char *const all_forms[] = {
    "hermes",       "llama3",      "pythonic",        "mistral",  "deepseek_v3", "deepseek_v31",
    "glm45",        "qwen3_coder", "gpt-oss",         "kimi_k2",  "granite",     "phi4_mini_json",
    "deepseek_v32", "minimax_m2",  "step3",           "seed_oss", "hy_v3",       "gemma4",
    "lfm2",         "olmo3",       "cohere_command4", "apertus",  "internlm",    "xlam"};

// What a form might be slow at costs no more for each byte when there is more of it.
static void test_linear(void **state)
{
    (void)state;
    static const char *const units[] = {"<tool_call>",
                                        "<",
                                        "{\"name\":",
                                        "[",
                                        "[TOOL_CALLS]",
                                        D_CALL,
                                        "(",
                                        "<|start|>",
                                        " ",
                                        "<arg_key>",
                                        "[f(a=",
                                        "\"",
                                        "<think>",
                                        "<invoke name=",
                                        "<|tool_call>call:f{a:[{b:",
                                        "<function_calls>f(",
                                        "<response>"};
    enum { N = 100000 };
    msgl_tool_set *set = make_test_tools();
    msgl_parts parts;
    msgl__parts_init(&parts, SIZE_MAX / 2);
    char *text = malloc(N * 32);
    for (size_t f = 0; f < sizeof all_forms / sizeof all_forms[0]; f++) {
        for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
            const msgl_parser_config cfg = {.tools = msgl__tool_form(all_forms[f], NULL),
                                            .reasoning = msgl__reasoning_form("qwen3", NULL),
                                            .known = set};
            const size_t n = strlen(units[u]);
            for (size_t i = 0; i < N; i++) memcpy(text + i * n, units[u], n);
            msgl_parser *p;
            assert_int_equal(msgl__parser_create(&cfg, &p), 0);
            const clock_t start = clock();
            assert_int_equal(msgl__parser_feed(p, text, N * n, &parts), 0);
            assert_int_equal(msgl__parser_finish(p, &parts), 0);
            assert_true(clock() - start < 5 * CLOCKS_PER_SEC); // squared it would be minutes
            assert_true(msgl__parser_bytes(p) < 8 * N * n + 4096);
            assert_true(parts.bytes.len <= N * n + 2);
            msgl__parts_clear(&parts);
            msgl__parser_free(p);
        }
    }
    free(text);
    msgl__parts_free(&parts);
    msgl__tool_set_free(set);
}

// A full buffer is an error, and no more.
static void test_limit(void **state)
{
    (void)state;
    msgl_parts parts;
    msgl_parser *p;
    const msgl_parser_config cfg = {.tools = msgl__tool_form("hermes", NULL)};
    msgl__parts_init(&parts, 10);
    assert_int_equal(msgl__parser_create(&cfg, &p), 0);
    assert_int_equal(msgl__parser_feed(p, "0123456789ab", 12, &parts), MSGL_ELIMIT);
    msgl__parser_free(p);
    msgl__parser_free(NULL);
    msgl__parts_free(&parts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hermes),   cmocka_unit_test(test_llama),
        cmocka_unit_test(test_pythonic), cmocka_unit_test(test_mistral),
        cmocka_unit_test(test_deepseek), cmocka_unit_test(test_kimi),
        cmocka_unit_test(test_lists),    cmocka_unit_test(test_tagged),
        cmocka_unit_test(test_harmony),  cmocka_unit_test(test_reasoning),
        cmocka_unit_test(test_one_call), cmocka_unit_test(test_choice),
        cmocka_unit_test(test_opening),  cmocka_unit_test(test_linear),
        cmocka_unit_test(test_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
