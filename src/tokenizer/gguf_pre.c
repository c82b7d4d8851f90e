// SPDX-License-Identifier: Apache-2.0
//
// Patterns are those of the models' tokenizer.json, or of llama.cpp (src/llama-vocab.cpp) where
// that has its own; each splits the pieces that the one before it has left.
#include "tokenizer/gguf_pre.h"

#include <string.h>

#include "core/attributes.h"
#include "tokenizer/load_tiktoken.h"
#include "tokenizer/scan.h"

#define GPT2_LETTERS                                                                               \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
// Words by upper and lower case, each with what may stand before and behind it.
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define BEFORE "[^\\r\\n\\p{L}\\p{N}]?"
#define CASED_WORDS(end) BEFORE UPPER "*" LOWER "+" end "|" BEFORE UPPER "+" LOWER "*" end
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LINES "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const char TEKKEN[] = CASED_WORDS("") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" LINES;
static const char GPT_4O[] =
    CASED_WORDS(CONTRACTIONS "?") "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" LINES;
static const char QWEN35[] = CONTRACTIONS
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" LINES;
static const char UFAKZEKA[] =
    "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" LINES;
static const char SEED_CODER[] =
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+" LINES;
static const char BAILING[] =
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]|\\s+(?!\\S)|\\s+";
static const char CJK[] =
    "[\344\270\200-\351\276\245\343\201\200-\343\202\237\343\202\240-\343\203\277]+";
static const char DEEPSEEK_V3[] =
    "[!\"#$%&'()*+,\\-./"
    ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
    " ?[\\p{P}\\p{S}]+[\\r\\n]*" LINES;
// Letters of scripts with cases, as DeepSeek lists them; its punctuation; its ideographs.
static const char DEEPSEEK_LETTERS[] =
    "\\s?[A-Za-z\302\265\303\200-\303\226\303\230-\303\266\303\270-\306\272\306\274-\306\277"
    "\307\204-\312\223\312\225-\312\257\315\260-\315\263\315\266\315\267\315\273-\315\275"
    "\315\277\316\206\316\210-\316\212\316\214\316\216-\316\241\316\243-\317\265\317\267-"
    "\322\201\322\212-\324\257\324\261-\325\226\341\202\240-\341\203\205\341\216\240-"
    "\341\217\265\341\217\270-\341\217\275\341\262\220-\341\262\272\341\262\275-\341\262\277"
    "\341\264\200-\341\264\253\341\265\253-\341\265\267\341\265\271-\341\266\232\341\270\200-"
    "\341\274\225\341\274\230-\341\274\235\341\274\240-\341\275\205\341\275\210-\341\275\215"
    "\341\275\220-\341\275\227\341\275\231\341\275\233\341\275\235\341\275\237-\341\275\275"
    "\341\276\200-\341\276\264\341\276\266-\341\276\274\341\276\276\341\277\202-\341\277\204"
    "\341\277\206-\341\277\214\341\277\220-\341\277\223\341\277\226-\341\277\233\341\277\240-"
    "\341\277\254\341\277\262-\341\277\264\341\277\266-\341\277\274\342\204\202\342\204\207"
    "\342\204\212-\342\204\223\342\204\225\342\204\231-\342\204\235\342\204\244\342\204\246"
    "\342\204\250\342\204\252-\342\204\255\342\204\257-\342\204\264\342\204\271\342\204\274-"
    "\342\204\277\342\205\205-\342\205\211\342\205\216\342\206\203\342\206\204\342\260\200-"
    "\342\261\273\342\261\276-\342\263\244\342\263\253-\342\263\256\342\263\262\342\263\263"
    "\352\231\200-\352\231\255\352\232\200-\352\232\233\352\234\242-\352\235\257\352\235\261-"
    "\352\236\207\352\236\213-\352\236\216\352\255\260-\352\256\277\357\254\200-\357\254\206"
    "\357\254\223-\357\254\227\357\274\241-\357\274\272\357\275\201-\357\275\232"
    "\360\220\220\200-\360\220\221\217\360\220\222\260-\360\220\223\223\360\220\223\230-"
    "\360\220\223\273\360\220\262\200-\360\220\262\262\360\220\263\200-\360\220\263\262"
    "\360\221\242\240-\360\221\243\237\360\236\244\200-\360\236\245\203]+";
static const char DEEPSEEK_SIGNS[] =
    "\\s?[!-/:-~\357\274\201-\357\274\217\357\274\232-\357\275\236\342\200\230-\342\200\237"
    "\343\200\200-\343\200\202]+";
static const char DEEPSEEK_CJK[] =
    "[\344\270\200-\351\276\245\340\240\200-\344\270\200\352\260\200-\355\237\277]+";

static const msgl_gguf_pre PRES[] = {
    // What llama.cpp takes where the file says none.
    {.name = "default",
     .patterns = {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2_LETTERS, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {.name = "gpt-2"},
    {.name = "phi-2"},
    {.name = "gigachat"},
    {.name = "a.x-4.0"},
    {.name = "mellum"},
    {.name = "mpt"},
    {.name = "olmo"},
    {.name = "jais"},
    {.name = "trillion"},
    {.name = "granite-docling"},
    {.name = "exaone4"},
    {.name = "llama-bpe", .scan = MSGL_SCAN_LLAMA3, .ignore_merges = 1, .add_bos = 1},
    {.name = "llama3", .scan = MSGL_SCAN_LLAMA3, .ignore_merges = 1, .add_bos = 1},
    {.name = "llama-v3", .scan = MSGL_SCAN_LLAMA3, .ignore_merges = 1, .add_bos = 1},
    {.name = "falcon3", .scan = MSGL_SCAN_LLAMA3, .ignore_merges = 1, .add_bos = 1},
    {.name = "falcon-h1", .scan = MSGL_SCAN_LLAMA3, .ignore_merges = 1, .add_bos = 1},
    {.name = "pixtral", .scan = MSGL_SCAN_LLAMA3, .ignore_merges = 1, .add_bos = 1},
    {.name = "midm-2.0", .scan = MSGL_SCAN_LLAMA3, .ignore_merges = 1, .add_bos = 1},
    {.name = "lfm2", .scan = MSGL_SCAN_LLAMA3, .ignore_merges = 1, .add_bos = 1},
    {.name = "dbrx", .scan = MSGL_SCAN_LLAMA3},
    {.name = "smaug-bpe", .scan = MSGL_SCAN_LLAMA3},
    {.name = "chatglm-bpe", .scan = MSGL_SCAN_LLAMA3},
    {.name = "glm4", .scan = MSGL_SCAN_LLAMA3, .ignore_merges = 1},
    {.name = "glm5", .scan = MSGL_SCAN_LLAMA3, .ignore_merges = 1},
    {.name = "qwen2", .scan = MSGL_SCAN_QWEN2, .nfc = 1},
    {.name = "deepseek-r1-qwen", .scan = MSGL_SCAN_QWEN2, .nfc = 1},
    {.name = "megrez", .scan = MSGL_SCAN_QWEN2, .nfc = 1},
    {.name = "stablelm2", .scan = MSGL_SCAN_QWEN2},
    {.name = "hunyuan", .scan = MSGL_SCAN_QWEN2},
    {.name = "solar-open", .scan = MSGL_SCAN_QWEN2},
    {.name = "kormo", .scan = MSGL_SCAN_QWEN2},
    {.name = "f2llmv2", .scan = MSGL_SCAN_QWEN2},
    {.name = "grok-2", .scan = MSGL_SCAN_QWEN2},
    {.name = "qwen35", .patterns = {QWEN35}, .nfc = 1},
    {.name = "smollm", .digits = 1},
    {.name = "starcoder", .digits = 1},
    {.name = "refact", .digits = 1},
    {.name = "command-r", .digits = 1},
    {.name = "codeshell", .digits = 1},
    {.name = "exaone", .digits = 1},
    {.name = "minerva-7b", .digits = 1},
    {.name = "mellum2", .digits = 1},
    {.name = "tekken", .patterns = {TEKKEN}, .ignore_merges = 1, .add_bos = 1},
    {.name = "gpt-4o", .patterns = {GPT_4O}},
    {.name = "llama4", .patterns = {GPT_4O}},
    {.name = "kanana2", .patterns = {GPT_4O}},
    {.name = "minimax-m2", .patterns = {GPT_4O}},
    {.name = "deepseek-v3", .patterns = {"\\p{N}{1,3}", CJK, DEEPSEEK_V3}},
    {.name = "hunyuan-dense", .patterns = {"\\p{N}{1,3}", CJK, DEEPSEEK_V3}},
    {.name = "joyai-llm", .patterns = {"\\p{N}{1,3}", CJK, DEEPSEEK_V3}},
    {.name = "hy_v4", .patterns = {"\\p{N}{1,3}", CJK, DEEPSEEK_V3}},
    {.name = "deepseek-llm",
     .patterns = {"[\\r\\n]", DEEPSEEK_LETTERS, DEEPSEEK_SIGNS, "\\s+$", DEEPSEEK_CJK, "\\p{N}+"}},
    {.name = "deepseek-coder",
     .patterns = {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", DEEPSEEK_CJK, "\\p{N}"}},
    {.name = "falcon", .patterns = {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2_LETTERS, "[0-9][0-9][0-9]"}},
    {.name = "kimi-k2", .patterns = {msgl__kimi_pattern}, .ignore_merges = 1},
    {.name = "ufakzeka", .patterns = {UFAKZEKA}},
    {.name = "seed-coder", .patterns = {SEED_CODER}},
    {.name = "bailingmoe", .patterns = {BAILING}},
    {.name = "bailingmoe2", .patterns = {BAILING}},
    {.name = "llada-moe", .patterns = {BAILING}},
};

const msgl_gguf_pre *msgl__gguf_pre_find(const char *name)
{
    for (size_t i = 0; i < MSGL_COUNT(PRES); i++) {
        if (strcmp(PRES[i].name, name) == 0) return &PRES[i];
    }
    return NULL;
}

const msgl_gguf_pre *msgl__gguf_pre_at(int i)
{
    return i >= 0 && (size_t)i < MSGL_COUNT(PRES) ? &PRES[i] : NULL;
}
