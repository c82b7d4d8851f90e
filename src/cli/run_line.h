// SPDX-License-Identifier: Apache-2.0
//
// One request of `minisgl run`: parsed from a JSON line or made from a prompt, collecting its
// answer, and written back as a JSON line.
#ifndef MSGL_CLI_RUN_LINE_H
#define MSGL_CLI_RUN_LINE_H

#include <jansson.h>
#include <minisgl/minisgl.h>
#include <stdbool.h>
#include <stdio.h>

#include "tokenizer/tokenizer.h"
#include "utils/stop.h"
#include "utils/strbuf.h"

typedef struct msgl_run_line {
    void *owner;
    json_t *input;    // what `text`, `chat`, stop strings and ids point into
    const char *text; // a completion prompt, or
    char *chat;       // the chat template's input, or
    msgl_ids ids;     // token ids
    msgl_params params;
    const char *stop[MSGL_MAX_STOPS];
    int32_t stop_ids[16];
    bool done;
    char *error; // NULL: none
    int finish, prompt_tokens, cached_tokens;
    msgl_strbuf answer;
    msgl_ids tokens;
    json_t *logprobs; // array, when asked for
} msgl_run_line;

// A line of the input file. Always returns a line unless memory is out; what is wrong with it
// stands in ->error. Fields missing in the line come from *defaults.
msgl_run_line *msgl__run_line_parse(const char *json, size_t len, int64_t number,
                                    const msgl_params *defaults);
// A prompt from the command line; chat: as a user message, after `system` when not NULL.
msgl_run_line *msgl__run_line_prompt(const char *prompt, bool chat, const char *system,
                                     const msgl_params *params);
void msgl__run_line_free(msgl_run_line *r);
int msgl__run_line_submit_to(msgl_run_line *r, msgl_llm *l, msgl_piece_fn fn, void *ctx,
                             msgl_err *err);
// The same with the line itself as the callback's context, a failure going to ->error.
void msgl__run_line_submit(msgl_run_line *r, msgl_llm *l, msgl_piece_fn fn);
// Collects a piece; sets ->done with the last.
void msgl__run_line_piece(msgl_run_line *r, const msgl_piece *p);
void msgl__run_line_write(const msgl_run_line *r, FILE *out);

#endif
