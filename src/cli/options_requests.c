// SPDX-License-Identifier: Apache-2.0
//
// Options that say what is asked of a model, and where its answers go.
#include "cli/options.h"
#include "core/attributes.h"

#define SAMPLING (MSGL_CMD_CHAT | MSGL_CMD_RUN)

static const msgl_setting ROWS[] = {
    {
        .name = "prompt",
        MSGL_LIST(msgl_args, prompts),
        .commands = MSGL_CMD_RUN | MSGL_CMD_CHAT,
        .group = "requests",
        .metavar = "TEXT",
        .help = "a prompt; may be given several times (chat: answer it and end)",
    },
    {
        .name = "input",
        MSGL_TEXT(msgl_args, input),
        .commands = MSGL_CMD_RUN,
        .group = "requests",
        .metavar = "FILE",
        .help = "JSON lines, each {\"prompt\": text or ids, or \"messages\": [...], fields as over "
                "HTTP}, or OpenAI's batch form; - is standard input (docs/batch.md)",
    },
    {
        .name = "text",
        MSGL_TEXT(msgl_args, text),
        .commands = MSGL_CMD_CALIBRATE,
        .group = "requests",
        .metavar = "FILE",
        .help = "text such as the model will read, cut into prompts as long as it may get them",
    },
    {
        .name = "output",
        MSGL_TEXT(msgl_args, output),
        .by_default = ": standard output; calibrate: none",
        .commands = MSGL_CMD_RUN | MSGL_CMD_CALIBRATE,
        .group = "requests",
        .metavar = "FILE",
        .help = "where the JSON lines go: text, token_ids, finish_reason, line; calibrate: the "
                "channels of every layer and head, in the form that SGLang reads",
    },
    {
        .name = "resume",
        MSGL_FLAG(msgl_args, resume),
        .commands = MSGL_CMD_RUN,
        .group = "requests",
        .help = "go on with an --output that an earlier run of the same --input has begun; without "
                "it one that is not empty is refused (docs/batch.md)",
    },
    {
        .name = "chat",
        MSGL_FLAG(msgl_args, chat),
        .commands = MSGL_CMD_RUN,
        .group = "requests",
        .help = "put prompts into the model's chat template, which is so anyway",
    },
    {
        .name = "raw",
        MSGL_FLAG(msgl_args, raw),
        .commands = MSGL_CMD_RUN,
        .group = "requests",
        .help = "take prompts as they are, to be continued; else a text is a user message in the "
                "model's chat template, if it has one (token ids and OpenAI's batch form are as "
                "they are)",
    },
    {
        .name = "system",
        MSGL_TEXT(msgl_args, system),
        .commands = SAMPLING,
        .group = "requests",
        .metavar = "TEXT",
        .help = "system message before the prompts",
    },
    {
        .name = "stream",
        MSGL_FLAG(msgl_args, stream),
        .commands = MSGL_CMD_RUN,
        .group = "requests",
        .help = "answer the prompts one by one, showing the text as it comes and tokens per second",
    },
    {
        .name = "max-tokens",
        MSGL_INT(msgl_args, max_tokens),
        .min = 1,
        .max = 1 << 24,
        .unset = true,
        .by_default = ": what the context leaves; bench serve and offline: 64",
        .commands = SAMPLING | MSGL_CMD_BENCH,
        .group = "requests",
        .metavar = "N",
        .help = "tokens to generate at most",
    },
    {
        .name = "seed",
        MSGL_INT(msgl_args, seed),
        .max = 1e15,
        .preset = -1,
        .unset = true,
        .by_default = ": random",
        .commands = SAMPLING | MSGL_CMD_BENCH,
        .group = "requests",
        .metavar = "N",
        .help = "makes sampling repeatable; bench serve: also chooses the prompts, which are else "
                "the same in every run",
    },
    {
        .name = "stop",
        MSGL_LIST(msgl_args, stop),
        .commands = SAMPLING,
        .group = "requests",
        .metavar = "TEXT",
        .help = "end an answer before this text; may be given several times",
    },
    {
        .name = "logprobs",
        MSGL_INT(msgl_args, logprobs),
        .max = 20,
        .preset = -1,
        .unset = true,
        .commands = MSGL_CMD_RUN,
        .group = "requests",
        .metavar = "N",
        .help = "report log-probabilities, and the N most likely tokens at each place",
    },
    {
        .name = "decode",
        MSGL_FLAG(msgl_args, decode),
        .commands = MSGL_CMD_TOKENIZE,
        .group = "requests",
        .help = "the reverse: a JSON array of ids on standard input, text out",
    },

};
const msgl_setting_table msgl__request_options = {ROWS, MSGL_COUNT(ROWS)};
