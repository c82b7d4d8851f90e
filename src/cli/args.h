// SPDX-License-Identifier: Apache-2.0
//
// The command line. One table (options.c) feeds parsing, --help, the MINISGL_ environment names and
// docs/cli.md; a value comes from its flag, else from its variable, else it is the default.
#ifndef MSGL_CLI_ARGS_H
#define MSGL_CLI_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "core/err.h"

#define MSGL_MAX_LIST 64

typedef struct msgl_list {
    const char *items[MSGL_MAX_LIST];
    int count;
} msgl_list;

typedef struct msgl_args {
    // model
    const char *model, *model_source, *device, *dtype;
    bool dummy_weight;
    int64_t threads;
    // engine
    const char *attention, *prefill_attention, *decode_attention, *cache_type, *moe_backend;
    int64_t tp_size, max_running, max_seq_len, max_prefill, num_pages, page_size, graph_max_bs;
    double memory_ratio;
    bool disable_overlap, deterministic;
    // server
    const char *host, *allowed_hosts, *unknown_fields;
    int64_t port, num_tokenizer, request_memory;
    bool shell;
    // requests
    msgl_list prompts, stop;
    const char *input, *output, *system;
    double temperature, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty;
    int64_t top_k, seed, max_tokens, logprobs;
    bool chat, stream, ignore_eos;
    // bench
    const char *format, *url, *batch, *chunk, *concurrency, *backends, *lengths, *write_table;
    int64_t prompt_len, steps, requests, repeat;
    bool open_ended;
    // tokenize
    bool decode;
    // help
    bool help, markdown;
    const char *sub; // second word of `bench`
} msgl_args;

// Which commands an option belongs to.
enum {
    MSGL_CMD_SERVE = 1,
    MSGL_CMD_CHAT = 2,
    MSGL_CMD_RUN = 4,
    MSGL_CMD_BENCH = 8,
    MSGL_CMD_INFO = 16,
    MSGL_CMD_TOKENIZE = 32,
    MSGL_CMD_TEMPLATE = 64,
    MSGL_CMD_HELP = 128,
    MSGL_CMD_ALL = 255,
    // With MSGL_CMD_BENCH: the only benchmark that reads it.
    MSGL_BENCH_STEP = 256,
    MSGL_BENCH_OFFLINE = 512,
    MSGL_BENCH_SERVE = 1024,
    MSGL_BENCH_ATTN = 2048,
};

typedef struct msgl_command {
    const char *name;
    unsigned bit;
    const char *usage;              // after "minisgl NAME "
    const char *summary;            // one line
    int (*run)(const msgl_args *a); // exit code
} msgl_command;

typedef enum msgl_option_type {
    MSGL_OPT_FLAG,
    MSGL_OPT_STRING,
    MSGL_OPT_ENUM, // allowed: "a|b|c"
    MSGL_OPT_INT,
    MSGL_OPT_REAL,
    MSGL_OPT_LIST, // may be repeated
} msgl_option_type;

typedef struct msgl_option {
    const char *names[3]; // "--model", aliases; the first names the MINISGL_ variable
    unsigned commands;
    msgl_option_type type;
    size_t offset; // in msgl_args
    const char *metavar;
    double min, max;     // INT, REAL
    const char *allowed; // ENUM
    const char *group;
    const char *help;
} msgl_option;

extern const msgl_option msgl__options[];
extern const int msgl__num_options;

// Values when neither flag nor variable is given.
void msgl__args_default(msgl_args *a);
// Reads variables, then argv[0, argc) (without program and command). Errors name the flag or
// variable, the value and what is allowed; an unknown flag gets the nearest known one.
int msgl__args_parse(const msgl_command *cmd, int argc, char **argv, msgl_args *out, msgl_err *err);
// "MINISGL_MAX_RUNNING_REQUESTS" of "--max-running-requests".
void msgl__option_env(const msgl_option *o, char out[64]);
void msgl__help_command(const msgl_command *cmd, FILE *out);
void msgl__help_markdown(const msgl_command *commands, int n, FILE *out);

#endif
