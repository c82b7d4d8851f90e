// SPDX-License-Identifier: Apache-2.0
#include "cli/spellings.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/attributes.h"
#include "core/batch.h"

#define MINI "Mini-SGLang"
#define SGL "SGLang"
#define VLLM "vLLM"
#define LLAMA "llama-server"

// Helps that several rows have: the same pointer in neighbours is printed once.
static const char SLOTS[] = "of all requests at once: with -np 4 each has a quarter",
                  GPU[] = "0 is cpu, and 99, auto or all auto",
                  GUESSES[] = "counts guesses alone: 4 is 5",
                  OTHER_DRAFTS[] = "--speculative-algorithm and the options beside it say where "
                                   "drafts come from",
                  FEWER_DRAFTS[] = "how many guesses pay is measured; "
                                   "--speculative-num-draft-tokens bounds them",
                  DRAFT_MODEL[] = "a draft model is where the model is, with its threads, lengths "
                                  "and dtypes";

static const msgl_spelled_value AUTO[] = {{"auto", NULL}, {"-1", NULL}, {NULL, NULL}},
                                ENDLESS[] = {{"-1", NULL}, {"-2", NULL}, {NULL, NULL}},
                                EXPERTS[] = {{"fused", "grouped"}, {NULL, NULL}},
                                TYPES[] = {{"half", "float16"}, {"float", "float32"}, {NULL, NULL}},
                                FORMATS[] = {{"auto", "0"},
                                             {"safetensors", "0"},
                                             {"gguf", "0"},
                                             {"dummy", "1"},
                                             {NULL, NULL}},
                                LAYERS[] = {{"0", "cpu"},   {"auto", "auto"}, {"all", "auto"},
                                            {"-1", "auto"}, {"99", "auto"},   {"999", "auto"},
                                            {NULL, NULL}};

// llama-server's kinds of drafts. What ngram-mod finds is of all requests, what the others find of
// one.
static const msgl_spelled_value DRAFTS[] = {{"none", "none"},
                                            {"draft", "STANDALONE"},
                                            {"draft-simple", "STANDALONE"},
                                            {"draft-eagle3", "EAGLE3"},
                                            {"draft-mtp", "NEXTN"},
                                            {"ngram-simple", "NGRAM"},
                                            {"ngram-map-k", "NGRAM"},
                                            {"ngram-map-k4v", "NGRAM"},
                                            {"ngram-mod", "SUFFIX"},
                                            {"ngram-cache", "NGRAM"},
                                            {NULL, NULL}};
static const char DRAFT_TYPES[] = "none, draft-simple, draft-eagle3, draft-mtp, ngram-simple, "
                                  "ngram-map-k, ngram-map-k4v, ngram-mod or ngram-cache, one of "
                                  "them";

static const msgl_spelling ROWS[] = {
    // Other names for an option.
    {.flag = "-m", .option = "model"},
    {.flag = "--model-path", .of = MINI ", " SGL, .option = "model"},
    {.flag = "--attn", .of = MINI, .option = "attention-backend"},
    {.flag = "--max-extend-length", .of = MINI, .option = "max-prefill-length"},
    {.flag = "--graph", .of = MINI, .option = "cuda-graph-max-bs"},
    {.flag = "--cuda-graph-max-bs-decode", .of = SGL, .option = "cuda-graph-max-bs"},
    {.flag = "--tp", .of = MINI ", " SGL, .option = "tp-size"},
    {.flag = "-tp", .of = VLLM, .option = "tp-size"},
    {.flag = "--tensor-parallel-size", .of = MINI ", " VLLM, .option = "tp-size"},
    {.flag = "--ep", .of = SGL, .option = "ep-size"},
    {.flag = "--expert-parallel-size", .of = SGL, .option = "ep-size"},
    {.flag = "--dp", .of = SGL, .option = "dp-size"},
    {.flag = "-dp", .of = VLLM, .option = "dp-size"},
    {.flag = "--data-parallel-size", .of = SGL ", " VLLM, .option = "dp-size"},
    {.flag = "--cache", .of = MINI, .option = "cache-type"},
    {.flag = "--tokenizer-count", .of = MINI, .option = "num-tokenizer"},
    {.flag = "--shell", .of = MINI, .option = "shell-mode"},
    {.flag = "-o", .option = "format"},
    {.flag = "-o", .option = "output"},
    {.flag = "-h", .option = "help"},
    {.flag = "--context-length", .of = SGL, .option = "max-seq-len-override", .counts = true},
    {.flag = "--chunked-prefill-size", .of = SGL, .option = "max-prefill-length"},
    {.flag = "--block-size", .of = VLLM, .option = "page-size"},
    {.flag = "--num-gpu-blocks-override", .of = VLLM, .option = "num-pages"},
    {.flag = "--disable-overlap-schedule", .of = SGL, .option = "disable-overlap-scheduling"},
    {.flag = "--max-num-seqs", .of = VLLM, .option = "max-running-requests", .counts = true},
    {.flag = "--max-num-batched-tokens",
     .of = VLLM,
     .option = "max-prefill-length",
     .counts = true,
     .help = "vLLM counts tokens of answers as well"},
    {.flag = "--ubatch-size", .of = LLAMA, .option = "max-prefill-length"},
    {.flag = "-ub", .of = LLAMA, .option = "max-prefill-length"},
    {.flag = "--alias", .of = LLAMA, .option = "served-model-name"},
    {.flag = "--embedding", .of = LLAMA, .option = "is-embedding"},
    {.flag = "--embeddings", .of = LLAMA, .option = "is-embedding"},
    {.flag = "--reranking", .of = LLAMA, .option = "is-embedding"},
    {.flag = "--chat-template-file", .of = LLAMA, .option = "chat-template"},
    {.flag = "--hf-repo", .of = LLAMA, .option = "model"},
    {.flag = "-hf", .of = LLAMA, .option = "model"},
    {.flag = "-p", .of = LLAMA, .option = "prompt"},
    {.flag = "--system-prompt", .of = LLAMA, .option = "system"},
    {.flag = "-sys", .of = LLAMA, .option = "system"},
    {.flag = "--temp", .of = LLAMA, .option = "temperature"},
    {.flag = "--repeat-penalty", .of = LLAMA, .option = "repetition-penalty"},
    {.flag = "-s", .of = LLAMA, .option = "seed"},
    {.flag = "--model-draft", .of = LLAMA, .option = "speculative-draft-model-path"},
    {.flag = "-md", .of = LLAMA, .option = "speculative-draft-model-path"},
    {.flag = "--spec-draft-model", .of = LLAMA, .option = "speculative-draft-model-path"},
    {.flag = "--hf-repo-draft", .of = LLAMA, .option = "speculative-draft-model-path"},
    {.flag = "-hfd", .of = LLAMA, .option = "speculative-draft-model-path"},
    {.flag = "-hfrd", .of = LLAMA, .option = "speculative-draft-model-path"},
    {.flag = "--spec-draft-hf", .of = LLAMA, .option = "speculative-draft-model-path"},
    {.flag = "--num-prompts", .of = SGL ", " VLLM, .option = "requests"},
    {.flag = "--max-concurrency", .of = SGL ", " VLLM, .option = "concurrency"},
    {.flag = "--base-url", .of = SGL ", " VLLM, .option = "url"},
    {.flag = "--random-input-len", .of = SGL ", " VLLM, .option = "prompt-len"},
    {.flag = "--input-len", .of = SGL ", " VLLM, .option = "prompt-len"},
    {.flag = "--random-output-len", .of = SGL ", " VLLM, .option = "max-tokens"},
    {.flag = "--output-len", .of = SGL ", " VLLM, .option = "max-tokens"},

    {.flag = "--lora-modules", .of = VLLM, .option = "lora-paths"},
    {.flag = "--max-loras", .of = VLLM, .option = "max-loras-per-batch"},
    {.flag = "--max-cpu-loras", .of = VLLM, .option = "max-loaded-loras"},

    // Other names for an option whose values differ.
    {.flag = "--max-model-len",
     .of = VLLM,
     .option = "max-seq-len-override",
     .values = AUTO,
     .counts = true,
     .help = "auto and -1: the model's"},
    {.flag = "--ctx-size",
     .of = LLAMA,
     .option = "max-seq-len-override",
     .all_slots = true,
     .help = SLOTS},
    {.flag = "-c", .of = LLAMA, .option = "max-seq-len-override", .all_slots = true, .help = SLOTS},
    {.flag = "--parallel", .of = LLAMA, .option = "max-running-requests", .values = AUTO},
    {.flag = "-np", .of = LLAMA, .option = "max-running-requests", .values = AUTO},
    {.flag = "-t", .of = LLAMA, .option = "threads", .values = AUTO},
    {.flag = "--moe-backend",
     .of = MINI,
     .option = "moe-backend",
     .values = EXPERTS,
     .help = "fused is grouped"},
    {.flag = "--dtype",
     .of = SGL ", " VLLM,
     .option = "dtype",
     .values = TYPES,
     .help = "half is float16, float is float32"},
    {.flag = "--load-format",
     .of = SGL ", " VLLM,
     .option = "dummy-weight",
     .values = FORMATS,
     .only = "auto, safetensors, gguf or dummy",
     .help = "dummy; or auto, safetensors, gguf: what the files are"},
    {.flag = "--disable-radix-cache", .of = SGL, .option = "cache-type", .value = "naive"},
    {.flag = "--no-enable-prefix-caching", .of = VLLM, .option = "cache-type", .value = "naive"},
    {.flag = "--enable-prefix-caching", .of = VLLM, .option = "cache-type", .value = "radix"},
    {.flag = "--disable-cuda-graph", .of = SGL, .option = "cuda-graph-max-bs", .value = "0"},
    {.flag = "--enforce-eager", .of = VLLM, .option = "cuda-graph-max-bs", .value = "0"},
    {.flag = "-n", .of = LLAMA, .option = "max-tokens", .values = ENDLESS},
    {.flag = "--n-predict", .of = LLAMA, .option = "max-tokens", .values = ENDLESS},
    {.flag = "--predict", .of = LLAMA, .option = "max-tokens", .values = ENDLESS},
    {.flag = "-ngl",
     .of = LLAMA,
     .option = "device",
     .values = LAYERS,
     .only = "0, or 99, auto or all: a model is on the GPU as a whole or not at all",
     .help = GPU},
    {.flag = "--gpu-layers",
     .of = LLAMA,
     .option = "device",
     .values = LAYERS,
     .only = "0, or 99, auto or all: a model is on the GPU as a whole or not at all",
     .help = GPU},
    {.flag = "--n-gpu-layers",
     .of = LLAMA,
     .option = "device",
     .values = LAYERS,
     .only = "0, or 99, auto or all: a model is on the GPU as a whole or not at all",
     .help = GPU},
    {.flag = "--spec-type",
     .of = LLAMA,
     .option = "speculative-algorithm",
     .values = DRAFTS,
     .only = DRAFT_TYPES,
     .help = "draft-simple is STANDALONE, draft-eagle3 EAGLE3, draft-mtp NEXTN, ngram-mod SUFFIX, "
             "each other ngram-... NGRAM"},
    {.flag = "--spec-default", .of = LLAMA, .option = "speculative-algorithm", .value = "auto"},
    {.flag = "--draft",
     .of = LLAMA,
     .option = "speculative-num-draft-tokens",
     .guesses = true,
     .help = GUESSES},
    {.flag = "--draft-n",
     .of = LLAMA,
     .option = "speculative-num-draft-tokens",
     .guesses = true,
     .help = GUESSES},
    {.flag = "--draft-max",
     .of = LLAMA,
     .option = "speculative-num-draft-tokens",
     .guesses = true,
     .help = GUESSES},
    {.flag = "--spec-draft-n-max",
     .of = LLAMA,
     .option = "speculative-num-draft-tokens",
     .guesses = true,
     .help = GUESSES},

    // Flags that ask for what is always so.
    {.flag = "--disable-pynccl",
     .of = MINI,
     .ignored = true,
     .help = "NCCL is used directly; --nccl-path none does without it"},
    {.flag = "--trust-remote-code",
     .of = SGL ", " VLLM,
     .ignored = true,
     .help = "no code of a model is ever run"},
    {.flag = "--enable-auto-tool-choice",
     .of = VLLM,
     .ignored = true,
     .help = "tool_choice auto always works"},
    {.flag = "--enable-chunked-prefill",
     .of = VLLM,
     .ignored = true,
     .help = "long prompts are always chunked"},
    {.flag = "--enable-metrics", .of = SGL, .ignored = true, .help = "/metrics is always there"},
    {.flag = "--metrics", .of = LLAMA, .ignored = true, .help = "/metrics is always there"},
    {.flag = "--jinja", .of = LLAMA, .ignored = true, .help = "templates are always rendered"},
    {.flag = "--cont-batching", .of = LLAMA, .ignored = true, .help = "it is always so"},
    {.flag = "-cb", .of = LLAMA, .ignored = true, .help = "it is always so"},
    {.flag = "--disable-log-requests",
     .of = VLLM,
     .ignored = true,
     .help = "requests are logged by --access-log alone"},

    // Flags that are refused, with what to do instead.
    {.flag = "--max-prefill-tokens",
     .of = SGL,
     .help = "--max-prefill-length bounds the prompt tokens of a step, of all requests together"},
    {.flag = "--max-total-tokens",
     .of = SGL,
     .help = "--num-pages N with --page-size 1 holds N tokens"},
    {.flag = "--quantization",
     .of = SGL ", " VLLM,
     .help = "a checkpoint says itself how it is quantised; --weight-dtype int8 quantises while "
             "loading"},
    {.flag = "-q", .of = VLLM, .help = "--weight-dtype int8 quantises"},
    {.flag = "--cache-type-k", .of = LLAMA, .help = "--kv-cache-dtype is of both"},
    {.flag = "--cache-type-v", .of = LLAMA, .help = "--kv-cache-dtype is of both"},
    {.flag = "-ctk", .of = LLAMA, .help = "--kv-cache-dtype is of both"},
    {.flag = "-ctv", .of = LLAMA, .help = "--kv-cache-dtype is of both"},
    {.flag = "--batch-size", .of = LLAMA, .help = "--max-prefill-length bounds a step"},
    {.flag = "-b", .of = LLAMA, .help = "--max-prefill-length bounds a step"},
    {.flag = "--threads-batch", .of = LLAMA, .help = "--threads is of both phases"},
    {.flag = "-tb", .of = LLAMA, .help = "--threads is of both phases"},
    {.flag = "--flash-attn", .of = LLAMA, .help = "--attn names the backend"},
    {.flag = "-fa", .of = LLAMA, .help = "--attn names the backend"},
    {.flag = "--gpu", .of = "others", .help = "--device cuda, or cuda:N"},
    {.flag = "--gpus", .of = "others", .help = "--device cuda:N,N with --tp-size"},
    {.flag = "--mlock", .of = LLAMA, .help = "weights are copied into memory of minisgl's own"},
    {.flag = "--no-mmap", .of = LLAMA, .help = "weights are copied into memory of minisgl's own"},
    {.flag = "--tokenizer*", .of = SGL ", " VLLM, .help = "the tokenizer is the model folder's"},
    {.flag = "--download-dir",
     .of = SGL ", " VLLM,
     .help = "HF_HUB_CACHE names the folder (docs/hubs.md)"},
    {.flag = "--hf-token", .of = VLLM ", " LLAMA, .help = "HF_TOKEN has it (docs/hubs.md)"},
    {.flag = "--random-seed", .of = SGL, .help = "`seed` is a field of requests"},
    {.flag = "--allowed-origins", .of = VLLM, .help = "--cors-origin, once for each"},
    {.flag = "--log-level",
     .of = SGL,
     .help = "the variable MINISGL_LOG: error, warn, info, debug"},
    {.flag = "--pipeline-parallel-size", .of = VLLM, .help = "--tp-size shares a model out"},
    {.flag = "--pp-size", .of = SGL, .help = "--tp-size shares a model out"},
    {.flag = "-pp", .of = VLLM, .help = "--tp-size shares a model out"},
    {.flag = "--cpu-offload-gb",
     .of = SGL ", " VLLM,
     .help = "a model is on one device as a whole"},
    {.flag = "--n-cpu-moe", .of = LLAMA, .help = "a model is on one device as a whole"},
    {.flag = "--swap-space", .of = VLLM, .help = "the KV cache is on one device as a whole"},
    {.flag = "--draft-min", .of = LLAMA, .help = FEWER_DRAFTS},
    {.flag = "--draft-n-min", .of = LLAMA, .help = FEWER_DRAFTS},
    {.flag = "--draft-p-min", .of = LLAMA, .help = FEWER_DRAFTS},
    {.flag = "--spec-draft-n-min", .of = LLAMA, .help = FEWER_DRAFTS},
    {.flag = "--spec-draft-p-min", .of = LLAMA, .help = FEWER_DRAFTS},
    {.flag = "--gpu-layers-draft", .of = LLAMA, .help = DRAFT_MODEL},
    {.flag = "--n-gpu-layers-draft", .of = LLAMA, .help = DRAFT_MODEL},
    {.flag = "-ngld", .of = LLAMA, .help = DRAFT_MODEL},
    {.flag = "--device-draft", .of = LLAMA, .help = DRAFT_MODEL},
    {.flag = "-devd", .of = LLAMA, .help = DRAFT_MODEL},
    {.flag = "--threads-draft", .of = LLAMA, .help = DRAFT_MODEL},
    {.flag = "-td", .of = LLAMA, .help = DRAFT_MODEL},
    {.flag = "--ctx-size-draft", .of = LLAMA, .help = DRAFT_MODEL},
    {.flag = "-cd", .of = LLAMA, .help = DRAFT_MODEL},
    {.flag = "--cache-type-k-draft", .of = LLAMA, .help = DRAFT_MODEL},
    {.flag = "-ctkd", .of = LLAMA, .help = DRAFT_MODEL},
    {.flag = "--cache-type-v-draft", .of = LLAMA, .help = DRAFT_MODEL},
    {.flag = "-ctvd", .of = LLAMA, .help = DRAFT_MODEL},
    {.flag = "--speculative*", .of = SGL ", " VLLM, .help = OTHER_DRAFTS},
    {.flag = "--spec-*", .of = LLAMA, .help = OTHER_DRAFTS},
    {.flag = "--draft*", .of = LLAMA, .help = OTHER_DRAFTS},
    {.flag = "--lora*",
     .of = SGL ", " LLAMA,
     .help = "--lora-paths NAME=PATH, of PEFT's folders or GGUF files"},
    {.flag = "--mmproj", .of = LLAMA, .help = "models read text only"},
    {.flag = "--reasoning-format", .of = LLAMA, .help = "--reasoning-parser names the form"},
    {.flag = "--schedule-policy", .of = SGL, .help = "there is one, which --cache-type goes with"},
};

const msgl_spelling *msgl__spelling(int i)
{
    return i < (int)MSGL_COUNT(ROWS) ? &ROWS[i] : NULL;
}

const msgl_spelling *msgl__spelling_find(const char *flag)
{
    for (size_t i = 0; i < MSGL_COUNT(ROWS); i++) {
        const size_t n = strcspn(ROWS[i].flag, "*");
        const bool open = ROWS[i].flag[n] == '*';
        if (open ? strncmp(flag, ROWS[i].flag, n) == 0 : strcmp(flag, ROWS[i].flag) == 0) {
            return &ROWS[i];
        }
    }
    return NULL;
}

bool msgl__spelling_is_alias(const msgl_spelling *s)
{
    const bool own =
        s->option != NULL && strncmp(s->flag, "--", 2) == 0 && strcmp(s->flag + 2, s->option) == 0;
    return s->option != NULL && !own && s->value == NULL && s->only == NULL && !s->guesses;
}

// A number with a unit, in decimal digits: "32k" is 32000, "1.5K" is 1536. NULL: it is none.
static const char *count_of(const char *text, char buf[64])
{
    static const char UNITS[] = "kmgKMG";
    char *end;
    errno = 0;
    const double v = strtod(text, &end);
    const char *unit = *end != '\0' ? strchr(UNITS, *end) : NULL;
    if (end == text || errno != 0 || unit == NULL || end[1] != '\0') return NULL;
    const int power = (int)(unit - UNITS) % 3 + 1;
    const double whole = v * pow(unit - UNITS < 3 ? 1000 : 1024, power);
    if (!(whole >= 0 && whole <= 1e15) || whole != floor(whole)) return NULL;
    (void)snprintf(buf, 64, "%.0f", whole);
    return buf;
}

// So many guesses with the token before them: "4" is 5.
static int with_known(const msgl_spelling *s, const char *value, char buf[64], const char **out,
                      msgl_err *err)
{
    char *end;
    errno = 0;
    const long n = strtol(value, &end, 10);
    if (end == value || *end != '\0' || errno != 0 || n < 1 || n > MSGL_MAX_DRAFTS) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "%s is \"%.60s\"; allowed: a whole number from 1 to %d", s->flag,
                             value, MSGL_MAX_DRAFTS);
    }
    (void)snprintf(buf, 64, "%ld", n + 1);
    *out = buf;
    return 0;
}

int msgl__spelling_value(const msgl_spelling *s, const char *value, char buf[64], const char **out,
                         msgl_err *err)
{
    for (const msgl_spelled_value *v = s->values; v != NULL && v->theirs != NULL; v++) {
        if (strcmp(v->theirs, value) != 0) continue;
        *out = v->ours;
        return 0;
    }
    if (s->only) {
        return msgl__err_set(err, MSGL_EINVAL, "%s is \"%.60s\"; allowed: %s", s->flag, value,
                             s->only);
    }
    if (s->guesses) return with_known(s, value, buf, out, err);
    const char *count = s->counts ? count_of(value, buf) : NULL;
    *out = count != NULL ? count : value;
    return 0;
}
