// SPDX-License-Identifier: Apache-2.0
//
// The input is a model's answer; its first two bytes choose the forms and where it is cut. Whatever
// it is, the parts of the pieces are those of the whole, a call's parts come in their order, and no
// byte is made of nothing.
#include <stdint.h>
#include <string.h>

#include "parsers/parser.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const FORMS[] = {
    "hermes",      "llama3",  "pythonic", "mistral", "deepseek_v3", "deepseek_v31",  "glm45",
    "qwen3_coder", "gpt-oss", "none",     "kimi_k2", "granite",     "phi4_mini_json"};
static const char *const MORE_FORMS[] = {
    "deepseek_v32", "minimax_m2",      "step3", "seed_oss",    "hy_v3",   "hunyuan_a13b",
    "gemma4",       "functiongemma",   "lfm2",  "olmo3",       "longcat", "internlm",
    "apertus",      "cohere_command4", "xlam",  "deepseek_v41"};
static const char *const THOUGHTS[] = {"none", "qwen3", "gpt-oss", "mistral"};
static const char *const MORE_THOUGHTS[] = {"hunyuan_a13b", "cohere_command4", "gemma4", "granite"};
enum {
    NUM_FORMS = sizeof FORMS / sizeof FORMS[0],
    NUM_MORE = sizeof MORE_FORMS / sizeof MORE_FORMS[0],
};

static void check_order(const msgl_parts *parts)
{
    bool in_call = false;
    size_t len = 0;
    for (size_t i = 0; i < parts->count; i++) {
        const msgl_part *p = &parts->items[i];
        const bool of_call = p->kind == MSGL_PART_ARGUMENTS || p->kind == MSGL_PART_CALL_END;
        if (of_call != in_call) __builtin_trap();
        if (p->kind == MSGL_PART_CALL) in_call = true;
        if (p->kind == MSGL_PART_CALL_END) in_call = false;
        if (p->kind != MSGL_PART_CALL_END && p->len == 0) __builtin_trap();
        len += p->len;
    }
    if (in_call || len != parts->bytes.len) __builtin_trap();
}

static void run(const msgl_parser_config *cfg, const char *text, size_t len, size_t step,
                msgl_parts *out)
{
    msgl_parser *p;
    msgl__parts_init(out, SIZE_MAX / 2);
    if (msgl__parser_create(cfg, &p) != 0) __builtin_trap();
    for (size_t at = 0; at < len; at += step) {
        const size_t n = len - at < step ? len - at : step;
        if (msgl__parser_feed(p, text + at, n, out) != 0) __builtin_trap();
    }
    if (msgl__parser_finish(p, out) != 0) __builtin_trap();
    msgl__parser_free(p);
    check_order(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    msgl_tool_set *set;
    json_t *tools = json_loads("[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":"
                               "{\"s\":{\"type\":\"string\"}}}}}]",
                               0, NULL);
    if (msgl__tool_set_create(tools, &set) != 0) __builtin_trap();
    json_decref(tools);
    const bool more = (data[1] & 64) != 0;
    const char *const form = more ? MORE_FORMS[data[0] % NUM_MORE] : FORMS[data[0] % NUM_FORMS];
    const char *const *thoughts = (data[1] & 128) != 0 ? MORE_THOUGHTS : THOUGHTS;
    const msgl_parser_config cfg = {.tools = msgl__tool_form(form, NULL),
                                    .reasoning =
                                        msgl__reasoning_form(thoughts[data[0] / 16 % 4], NULL),
                                    .thinking = (data[0] & 64) != 0,
                                    .keep_reasoning = (data[0] & 128) != 0,
                                    .max_calls = data[1] & 1,
                                    .known = set};
    const char *text = (const char *)data + 2;
    size -= 2;
    msgl_parts whole, pieces;
    run(&cfg, text, size, size + 1, &whole);
    run(&cfg, text, size, 1 + data[1] / 2 % 32, &pieces);
    const bool same =
        whole.count == pieces.count && whole.bytes.len == pieces.bytes.len &&
        (whole.bytes.len == 0 || memcmp(whole.bytes.data, pieces.bytes.data, whole.bytes.len) == 0);
    if (!same) __builtin_trap();
    // Without reasoning and calls not a byte is lost.
    bool all_text = cfg.reasoning == NULL && strcmp(form, "gpt-oss") != 0;
    for (size_t i = 0; i < whole.count; i++) {
        all_text = all_text && whole.items[i].kind == MSGL_PART_TEXT;
    }
    if (all_text &&
        (whole.bytes.len != size || memcmp(msgl__strbuf_str(&whole.bytes), text, size))) {
        __builtin_trap();
    }
    // A string of JSON may take six bytes for one.
    if (whole.bytes.len > 8 * size + 64) __builtin_trap();
    msgl__parts_free(&whole);
    msgl__parts_free(&pieces);
    msgl__tool_set_free(set);
    return 0;
}
