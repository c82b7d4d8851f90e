// SPDX-License-Identifier: Apache-2.0
//
// Options of all commands that are settings of no module below, and how flags are spelled.
#include "cli/options.h"

#include <string.h>

#include "cli/spellings.h"
#include "core/attributes.h"

static const msgl_setting MODEL_ROWS[] = {
    {
        .name = "model-source",
        MSGL_TEXT(msgl_args, model_source),
        .choices = "huggingface|modelscope|local",
        .by_default = ": huggingface, or modelscope if VLLM_USE_MODELSCOPE or "
                      "SGLANG_USE_MODELSCOPE is true",
        .commands =
            MSGL_CMD_ENGINE | MSGL_CMD_INFO | MSGL_CMD_TOKENIZE | MSGL_CMD_TEMPLATE | MSGL_CMD_PULL,
        .group = "model",
        .metavar = "NAME",
        .help = "where a model name is looked up: in the hub's local cache, then on the hub; or "
                "nowhere, and --model is a path (docs/hubs.md)",
    },
    {
        .name = "revision",
        MSGL_TEXT(msgl_args, revision),
        .by_default = ": main, of ModelScope master",
        .commands =
            MSGL_CMD_ENGINE | MSGL_CMD_INFO | MSGL_CMD_TOKENIZE | MSGL_CMD_TEMPLATE | MSGL_CMD_PULL,
        .group = "model",
        .metavar = "NAME",
        .help = "branch, tag or commit of a model of a hub; --model ORG/NAME@NAME says the same",
    },
    {
        .name = "prefill-attention-backend",
        MSGL_TEXT(msgl_args, prefill_attention),
        .commands = MSGL_CMD_ENGINE,
        .group = "engine",
        .metavar = "NAME",
        .help = "replaces the prefill half of --attention-backend",
    },
    {
        .name = "decode-attention-backend",
        MSGL_TEXT(msgl_args, decode_attention),
        .commands = MSGL_CMD_ENGINE,
        .group = "engine",
        .metavar = "NAME",
        .help = "replaces the decode half of --attention-backend",
    },
    {
        .name = "speculative-config",
        MSGL_TEXT(msgl_args, speculative_config),
        .commands = MSGL_CMD_ANSWERS,
        .group = "engine",
        .metavar = "JSON",
        .help = "vLLM's object in place of --speculative-algorithm and the options beside it: "
                "method (ngram, suffix, draft_model, eagle3, mtp), model, num_speculative_tokens, "
                "prompt_lookup_min and _max",
    },
};
const msgl_setting_table msgl__model_options = {MODEL_ROWS, MSGL_COUNT(MODEL_ROWS)};

static const msgl_setting HELP_ROWS[] = {
    {
        .name = "config",
        MSGL_TEXT(msgl_args, config_file),
        .commands = MSGL_CMD_ALL & ~(unsigned)MSGL_CMD_HELP,
        .group = "help",
        .metavar = "FILE",
        .help = "options that are neither flags nor variables, as YAML: a line NAME: VALUE each, "
                "true or false for a flag, [VALUE, VALUE] where several are allowed "
                "(docs/operations.md)",
    },
    {
        .name = "help",
        MSGL_FLAG(msgl_args, help),
        .commands = MSGL_CMD_ALL,
        .group = "help",
        .help = "show this and end",
    },
    {
        .name = "markdown",
        MSGL_FLAG(msgl_args, markdown),
        .commands = MSGL_CMD_HELP,
        .group = "help",
        .help = "print docs/cli.md",
    },
    {
        .name = "http",
        MSGL_FLAG(msgl_args, http),
        .commands = MSGL_CMD_HELP,
        .group = "help",
        .help = "print docs/http.md",
    },
    {
        .name = "matrix",
        MSGL_FLAG(msgl_args, matrix),
        .commands = MSGL_CMD_HELP,
        .group = "help",
        .help = "print the matrix of attention backends that docs/attention.md has",
    },
    {
        .name = "forms",
        MSGL_FLAG(msgl_args, forms),
        .commands = MSGL_CMD_HELP,
        .group = "help",
        .help = "print the table of forms of weights that docs/packed-weights.md has",
    },
    {
        .name = "man",
        MSGL_FLAG(msgl_args, man),
        .commands = MSGL_CMD_HELP,
        .group = "help",
        .help = "print the manual page: minisgl help --man | man -l -",
    },
    {
        .name = "completion",
        MSGL_TEXT(msgl_args, completion),
        .choices = "bash",
        .commands = MSGL_CMD_HELP,
        .group = "help",
        .metavar = "SHELL",
        .help = "print what completes commands and options: source <(minisgl help --completion "
                "bash)",
    },
};
const msgl_setting_table msgl__help_options = {HELP_ROWS, MSGL_COUNT(HELP_ROWS)};

const char *msgl__option_alias(const msgl_setting *o, int k)
{
    const msgl_spelling *s;
    for (int i = 0; (s = msgl__spelling(i)) != NULL; i++) {
        if (!msgl__spelling_is_alias(s) || strcmp(s->option, o->name) != 0) continue;
        if (k-- == 0) return s->flag;
    }
    return NULL;
}
