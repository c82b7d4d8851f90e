// SPDX-License-Identifier: Apache-2.0
//
// The program: its commands, and which of them runs. Options without a command are those of
// `serve`, as in Mini-SGLang.
#include <locale.h>
#include <signal.h>
#include <string.h>

#include "cli/args.h"
#include "cli/common.h"
#include "cli/job.h"
#include "core/attributes.h"
#ifdef MSGL_APP_HUB
#include "apps/hub/command.h"
#endif

static int cmd_help(const msgl_args *a);

static const msgl_command COMMANDS[] = {
    {"serve", MSGL_CMD_SERVE, "MODEL [options]", "Serve the model over an OpenAI-compatible API.",
     msgl__cmd_serve},
#ifdef MSGL_APP_CHAT
    {"chat", MSGL_CMD_CHAT, "MODEL [options]",
     "Talk to the model in a shell. /help in it shows its commands, Ctrl-D ends.", msgl__cmd_chat},
#endif
    {"run", MSGL_CMD_RUN, "MODEL (--prompt TEXT... | --input FILE.jsonl) [options]",
     "Answer prompts offline, all batched together.", msgl__cmd_run},
#ifdef MSGL_APP_BENCH
    {"bench", MSGL_CMD_BENCH,
     "step|decode|prefill|offline|serve|speculation|attn|startup|limits [MODEL] [options]",
     "Measure: steps, a batch job, a server (any OpenAI endpoint), drafts, attention backends, the "
     "start, this machine's limits.",
     msgl__cmd_bench},
#endif
#ifdef MSGL_APP_SIMULATION
    {"simulate", MSGL_CMD_SIMULATE,
     "--step-table FILE --trace FILE --num-pages N [--replicas LIST] [options]",
     "Predict what replicas of a server do with a trace, from steps that were measured.",
     msgl__cmd_simulate},
#endif
    {"info", MSGL_CMD_INFO, "[MODEL]",
     "Show the hardware, the attention backends and why one cannot run here, and a model's shape "
     "and the types of its weights.",
     msgl__cmd_info},
    {"calibrate", MSGL_CMD_CALIBRATE, "MODEL --text FILE -o FILE [options]",
     "Find the heavy channels of K on a text, for --attn double_sparsity.", msgl__cmd_calibrate},
    {"tokenize", MSGL_CMD_TOKENIZE, "MODEL [--decode]",
     "Text on standard input, a JSON array of token ids out; or the reverse.", msgl__cmd_tokenize},
    {"template", MSGL_CMD_TEMPLATE, "MODEL",
     "{\"messages\": [...], \"tools\": [...]} on standard input, the rendered chat template out.",
     msgl__cmd_template},
#ifdef MSGL_APP_HUB
    {"pull", MSGL_CMD_PULL, "ORG/NAME[/FILE.gguf|:TYPE] [--revision NAME]",
     "Download a model from the hub, or what is new of it, and print its folder.", msgl__cmd_pull},
#endif
    {"help", MSGL_CMD_HELP,
     "[COMMAND | --man | --completion bash | --markdown | --http | --matrix | --forms]",
     "Show this overview, or a command's options, or write the manual page, completion for a "
     "shell, docs/cli.md, docs/http.md, the matrix of attention backends or the table of forms "
     "of weights.",
     cmd_help},
};

static const msgl_command *command(const char *name)
{
    for (size_t i = 0; i < MSGL_COUNT(COMMANDS); i++) {
        if (strcmp(name, COMMANDS[i].name) == 0) return &COMMANDS[i];
    }
    return NULL;
}

static void overview(FILE *out)
{
    fprintf(out, "minisgl %s: an LLM serving engine in C\n\nusage: minisgl COMMAND [options]\n\n",
            msgl_version());
    for (size_t i = 0; i < MSGL_COUNT(COMMANDS); i++) {
        fprintf(out, "  %-9s %s\n", COMMANDS[i].name, COMMANDS[i].summary);
    }
    fprintf(out, "\n`minisgl COMMAND --help` lists a command's options.\n");
}

static int unknown_command(const char *name)
{
    fprintf(stderr, "minisgl: unknown command \"%s\"\n\n", name);
    overview(stderr);
    return MSGL_EXIT_USAGE;
}

static int cmd_help(const msgl_args *a)
{
    const msgl_command *of = a->sub != NULL ? command(a->sub) : NULL;
    if (a->sub != NULL && of == NULL) return unknown_command(a->sub);
    if (of != NULL) {
        msgl__help_command(of, stdout);
    } else if (a->http) {
        msgl__help_http(stdout);
    } else if (a->matrix) {
        msgl__help_matrix(stdout);
    } else if (a->forms) {
        msgl__help_forms(stdout);
    } else if (a->man) {
        msgl__help_man(COMMANDS, (int)MSGL_COUNT(COMMANDS), msgl_version(), stdout);
    } else if (a->completion != NULL) {
        msgl__help_bash(COMMANDS, (int)MSGL_COUNT(COMMANDS), stdout);
    } else if (a->markdown) {
        msgl__help_markdown(COMMANDS, (int)MSGL_COUNT(COMMANDS), stdout);
    } else {
        overview(stdout);
    }
    return MSGL_EXIT_OK;
}

// The exit code of a command whose result is written out here, since it has failed if that does.
static int finish(int code)
{
    msgl_err err;
    const int rc = msgl__cli_flush(stdout, "standard output", &err);
    msgl__cli_end_pipe();
    if (rc == 0 || code != MSGL_EXIT_OK) return code;
    return msgl__cli_fail(MSGL_EXIT_FAILED, &err);
}

static bool opens_model(const msgl_command *cmd, const msgl_args *a)
{
#ifdef MSGL_APP_BENCH
    if (cmd->bit == MSGL_CMD_BENCH) return msgl__bench_opens_model(a->sub);
#else
    (void)a;
#endif
    return (cmd->bit & MSGL_CMD_ENGINE) != 0;
}

int main(int argc, char **argv)
{
    setlocale(LC_CTYPE, ""); // line editing of UTF-8; numbers stay in the C locale
    signal(SIGPIPE, SIG_IGN);
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        overview(argc < 2 ? stderr : stdout);
        return finish(argc < 2 ? MSGL_EXIT_USAGE : MSGL_EXIT_OK);
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0 ||
        strcmp(argv[1], "version") == 0) {
        printf("minisgl %s\n", msgl_version());
        return finish(MSGL_EXIT_OK);
    }
    const int skip = argv[1][0] == '-' ? 1 : 2;
    const char *name = skip == 1 ? "serve" : argv[1];
    const msgl_command *cmd = command(name);
    if (cmd == NULL) return unknown_command(name);
    static msgl_args args; // some lists of pointers: not for the stack
    msgl_err err;
    msgl_cli_job job;
    int rc = msgl__cli_job(&job, &err);
    if (rc == 0) rc = msgl__args_parse(cmd, argc - skip, argv + skip, &args, &err);
    if (rc == 0) rc = msgl__cli_take_job(&job, &args, &err);
#ifdef MSGL_APP_HUB
    args.names = &msgl__hub_names;
#endif
    if (rc == 0) rc = msgl__cli_take_address(&args, &err);
    // All processes of a job have the same arguments, so that the first one says what is wrong with
    // them.
    if (rc != 0) return job.rank > 0 ? MSGL_EXIT_USAGE : msgl__cli_fail(MSGL_EXIT_USAGE, &err);
    if (args.help) {
        msgl__help_command(cmd, stdout);
        return finish(MSGL_EXIT_OK);
    }
    const bool follows = job.rank > 0 || args.engine.node_rank > 0;
    if (follows && opens_model(cmd, &args)) return msgl__cli_follow(&job, &args);
    return finish(cmd->run(&args));
}
