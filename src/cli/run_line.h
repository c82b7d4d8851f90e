// SPDX-License-Identifier: Apache-2.0
//
// One request of `minisgl run`: parsed from a JSON line or made from a prompt, collecting its
// answer, and written back as a JSON line. A line's request is read by the server's own parser, so
// that what the server refuses is refused here, too; what it only notes (fields that are not read)
// is refused as well.
//
// A line is {"prompt" or "messages", parameters, "custom_id"}, answered by one flat object; or
// OpenAI's batch form {"custom_id", "method", "url", "body"}, answered in OpenAI's.
#ifndef MSGL_CLI_RUN_LINE_H
#define MSGL_CLI_RUN_LINE_H

#include <jansson.h>
#include <minisgl/minisgl.h>
#include <stdbool.h>
#include <stdio.h>

#include "api/api.h"
#include "tokenizer/tokenizer.h"
#include "utils/strbuf.h"

// What lines have in common.
typedef struct msgl_run_common {
    msgl_params params;  // of fields that a line leaves out
    bool chat;           // a text alone is a user message
    const char *system;  // message before it, or NULL; borrowed
    msgl_api_config api; // filled by msgl__run_common_init; model_name and model_path borrowed
} msgl_run_common;
void msgl__run_common_init(msgl_run_common *c, const msgl_params *params, const char *model_name,
                           const char *model_path, int vocab_size);

typedef struct msgl_run_line {
    void *owner;
    const msgl_run_common *common;
    int64_t number;           // of its line in the input; 0: a prompt from the command line
    size_t bytes;             // of it
    bool batch;               // OpenAI's form
    json_t *custom_id;        // a string, or NULL
    msgl_gen_request request; // what text, stop strings and ids point into
    const char *text;         // a completion prompt, or
    // [params.num_bad_words] and [params.num_dry_sequence_breakers], in request
    const char **bad_words, **breakers;
    char *chat;   // the chat template's input, or
    msgl_ids ids; // token ids
    msgl_params params;
    bool done;
    char error[512];
    int error_status;       // as over HTTP; 0: no error
    const char *error_code; // as over HTTP, or NULL
    char error_param[64];   // the field that it is about; empty: none
    int finish, prompt_tokens, cached_tokens;
    msgl_strbuf answer;
    msgl_ids tokens;
    json_t *logprobs; // array, when asked for
} msgl_run_line;

// Parses a line's JSON; NULL: it is none, and *where says why.
json_t *msgl__run_line_json(const char *json, size_t len, json_error_t *where);
// Whether an object is meant to be OpenAI's form: it has a url, a method or a body.
bool msgl__run_line_is_batch(const json_t *line);
// A line of the input file. Always returns a line unless memory is out; what is wrong with it
// stands in ->error. batch: what cannot be read is answered in OpenAI's form, as the line before.
msgl_run_line *msgl__run_line_parse(const char *json, size_t len, int64_t number, bool batch,
                                    const msgl_run_common *common);
// A prompt from the command line.
msgl_run_line *msgl__run_line_prompt(const char *prompt, const msgl_run_common *common);
void msgl__run_line_free(msgl_run_line *r);
int msgl__run_line_submit_to(msgl_run_line *r, msgl_llm *l, msgl_piece_fn fn, void *ctx,
                             msgl_err *err);
// The same, with the line itself as the callback's context; a failure is noted in ->error.
void msgl__run_line_submit(msgl_run_line *r, msgl_llm *l, msgl_piece_fn fn);
// Adds a piece to the answer; the last one sets ->done.
void msgl__run_line_piece(msgl_run_line *r, const msgl_piece *p);
// Writes the answer. 0, MSGL_ENOMEM, or MSGL_EIO when the file did not take it.
int msgl__run_line_write(const msgl_run_line *r, FILE *out);

#endif
