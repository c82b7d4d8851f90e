// SPDX-License-Identifier: Apache-2.0
//
// The command line. The tables of the engine's settings (core/engine_settings.c), of sampling
// (core/sampling_params.c) and of the rest (options.c) are what the parser, --help, the names of
// MINISGL_ variables, --config and docs/cli.md are made from. A value comes from its flag, else
// from its variable, else from the file, else it is the default.
#ifndef MSGL_CLI_ARGS_H
#define MSGL_CLI_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "cli/options_file.h"
#include "core/sampling_params.h"
#include "core/settings.h"

#define MSGL_MAX_LIST 64
#define MSGL_MAX_OPTIONS 192

typedef struct msgl_list {
    const char *items[MSGL_MAX_LIST];
    int count;
} msgl_list;

typedef struct msgl_args {
    msgl_options engine; // model_dir as the user wrote it; cpu_level and callbacks are not set
    // model
    const char *model_source, *revision;
    const struct msgl_model_names *names; // what looks names of models up; NULL: nothing does
    // engine
    const char *prefill_attention, *decode_attention, *speculative_config;
    // server
    const char *host, *uds, *root_path, *allowed_hosts, *unknown_fields, *routing_policy,
        *metrics_compat, *api_key_file, *admin_key, *admin_key_file, *ssl_certfile, *ssl_keyfile,
        *user, *seccomp, *log_format, *batch_dir, *otlp_traces;
    const char *tool_parser, *reasoning_parser;
    double balance; // of routing
    int port, num_tokenizer, request_memory, watchdog_timeout, shell, insecure, salt_by_key,
        added_from_text, trust_template, open_schemas, max_per_address, access_log,
        log_stats_interval, max_queued, max_connections, max_body, keep_alive, shutdown_timeout;
    // requests
    msgl_list prompts, stop, api_keys, served_names, cors_origins, loras;
    const char *input, *output, *system, *text;
    msgl_sampling_params sampling; // what msgl__sampling_settings has
    int max_tokens, logprobs, chat, raw, stream, resume;
    int64_t seed;
    // bench
    const char *format, *url, *batch, *chunk, *concurrency, *backends, *lengths, *write_table,
        *accept, *dataset;
    const char *routing;
    int prompt_len, steps, requests, repeat, open_ended, grid, drafts;
    const char *dummy_lora_modules;
    int dummy_loras, dummy_lora_rank;
    // simulate
    const char *step_table, *trace, *replicas;
    int trace_block, clients;
    double price, acceptance;
    // tokenize
    int decode;
    bool context_shared; // max_seq_len is of all requests at once, as llama-server's context
    const char *config_file;
    msgl_options_file config; // what config_file says; values point into it
    // help
    int verbose;
    int help, markdown, http, matrix, forms, man;
    const char *completion;
    const char *sub;              // second word of `bench` and `help`
    bool given[MSGL_MAX_OPTIONS]; // whether option i was, by flag, variable or file
} msgl_args;

typedef struct msgl_command {
    const char *name;
    unsigned bit;
    const char *usage;              // after "minisgl NAME "
    const char *summary;            // one line
    int (*run)(const msgl_args *a); // exit code
} msgl_command;

// The k-th other name, from 0, of an option: the first one of "format" is "-o". NULL: it has no
// more.
const char *msgl__option_alias(const msgl_setting *o, int k);

// The i-th of all options, from 0; NULL: there is none. One that only the C API has is of no
// command.
const msgl_setting *msgl__option(int i);
// The offset in msgl_args of the struct that has option i's value.
size_t msgl__option_values(int i);

// Reads argv[0, argc) (without program and command), then variables, then the file of --config. A
// word that is no option is the model, of commands that have one (of `bench` the second word).
// Errors name the flag or variable, or the file's line, the value and what is allowed; an unknown
// flag that others have gets what is here in its place, another one the nearest known. Values may
// point into *out: msgl__args_free when they are not needed any more, unless it failed.
int msgl__args_parse(const msgl_command *cmd, int argc, char **argv, msgl_args *out, msgl_err *err);
void msgl__args_free(msgl_args *a);
// Whether the option that is stored in this member of *a was given, by flag, variable or file.
bool msgl__args_given(const msgl_args *a, const void *member);
// The name of an option's variable: MINISGL_MAX_RUNNING_REQUESTS for max-running-requests.
void msgl__option_env(const msgl_setting *o, char out[64]);
void msgl__help_command(const msgl_command *cmd, FILE *out);
void msgl__help_markdown(const msgl_command *commands, int n, FILE *out);
// Writes the manual page, of section 1.
void msgl__help_man(const msgl_command *commands, int n, const char *version, FILE *out);
void msgl__help_bash(const msgl_command *commands, int n, FILE *out); // what bash completes

// Whether `name` is in a list with commas: "fi" is in "fa, fi", "f" is not.
bool msgl__cli_lists(const char *list, const char *name);

#endif
