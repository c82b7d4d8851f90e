// SPDX-License-Identifier: Apache-2.0
//
// What the commands share: finding the model, options and parameters from arguments, progress on a
// terminal, interruption, printing rows.
#ifndef MSGL_CLI_COMMON_H
#define MSGL_CLI_COMMON_H

#include <jansson.h>
#include <minisgl/minisgl.h>
#include <signal.h>

#include "api/loras.h"
#include "cli/args.h"

enum { MSGL_EXIT_OK = 0, MSGL_EXIT_FAILED = 1, MSGL_EXIT_USAGE = 2, MSGL_EXIT_INTERRUPTED = 130 };

// Prints "minisgl: text" to standard error, unless standard output has no reader any more, and
// returns `code`.
int msgl__cli_fail(int code, const msgl_err *err);

// Writes out what is buffered. MSGL_EIO if that, or any earlier write to the file, failed; `name`
// is what the error calls it.
int msgl__cli_flush(FILE *f, const char *name, msgl_err *err);
// If the reader of standard output is gone, ends the process by SIGPIPE, as other tools end in a
// pipe.
void msgl__cli_end_pipe(void);

// What finds models that are given by a name.
typedef struct msgl_model_names {
    // Turns the address of a hub's page into the name of its model. *source: which hub's it is, as
    // --model-source has it. False: it is no such address, or too long.
    bool (*of_address)(const char *text, char *out, size_t size, const char **source);
    // Finds the folder or file of the name a->engine.model_dir, and downloads it if it is not here.
    // flag: what has named it, for messages. Freed with msgl_free.
    int (*find)(const msgl_args *a, const char *flag, char **out, msgl_err *err);
} msgl_model_names;

// Puts names in the place of what else may be given as --model: an address of a hub's page, or the
// folder of a model in the hub's cache (models--ORG--NAME), which becomes that of its snapshot.
// It is called once, before --model is used.
int msgl__cli_take_address(msgl_args *a, msgl_err *err);
// The folder or file that --model means: a path, or ORG/NAME in the local Hugging Face cache
// (HF_HUB_CACHE, HF_HOME, ~/.cache/huggingface), else on the hub, from where it is downloaded.
// Freed with msgl_free. The error says where it looked.
int msgl__cli_model_dir(const msgl_args *a, char **out, msgl_err *err);
// The same of what --speculative-draft-model-path is.
int msgl__cli_draft_dir(const msgl_args *a, const char *model, char **out, msgl_err *err);
// The name that the model of such a folder is served under: "models/demo/" is "demo",
// "ORG/NAME@v1" is "NAME@v1".
const char *msgl__cli_model_name(const msgl_args *a, const char *dir);

// The attention backends, with the options for one half of a pair in place of that of --attn:
// "fa,fi" for
// --attn fa and --decode-attention-backend fi. The result may be in buf.
const char *msgl__cli_attention(const msgl_args *a, char buf[128]);

// MINISGL_CPU: the level to use at most; NULL when unset.
const char *msgl__cli_cpu_level(void);

// The options of the engine, with the model's folder as *dir (freed with msgl_free), and a bar of
// progress if there is a terminal.
int msgl__cli_options(const msgl_args *a, msgl_options *out, char **dir, char attention[128],
                      msgl_err *err);
// Calls msgl__cli_options, then msgl_open. batch_job: nobody watches the answers come, so that
// prompts may go first.
int msgl__cli_open(const msgl_args *a, bool batch_job, msgl_llm **out, msgl_err *err);
// The model's defaults overridden by the flags that were given.
void msgl__cli_params(const msgl_args *a, const msgl_llm *l, msgl_params *out);

// Takes --lora-paths apart: out [a->loras.count], whose texts are in *text, which is freed with
// msgl_free whatever happens. MSGL_EINVAL, MSGL_ENOMEM.
int msgl__cli_loras(const msgl_args *a, msgl_lora_path out[MSGL_MAX_LIST], char **text,
                    msgl_err *err);

// Shows a bar on standard error if that is a terminal. `note` follows the bar; if the total is not
// known, which is 0, there is the note alone.
void msgl__cli_bar(const char *label, uint64_t done, uint64_t total, const char *note);
void msgl__cli_bar_clear(void);

// SIGINT sets it, once msgl__cli_catch_interrupt was called; a second SIGINT ends the process.
extern volatile sig_atomic_t msgl__cli_interrupted;
void msgl__cli_catch_interrupt(void);

const char *msgl__cli_finish_name(int finish); // "stop", "length", "abort", "error"

// Writes the endpoints and their fields, as Markdown (http_reference.c).
void msgl__help_http(FILE *out);
// Writes what each attention backend can do, as Markdown (matrix.c).
void msgl__help_matrix(FILE *out);
// Writes the forms in which files hold weights, as Markdown (forms.c).
void msgl__help_forms(FILE *out);

// Rows of a table as Markdown, CSV or JSON lines; all rows have the columns of the first.
typedef struct msgl_rows {
    const char *format;
    int count;
} msgl_rows;
// A field of a row. In JSON a text is a string, and any other value, a number or null, is as it
// stands.
typedef struct msgl_cell {
    const char *name;
    char value[200];
    bool text;
} msgl_cell;
void msgl__cli_row(msgl_rows *r, const msgl_cell *cells, int n);
msgl_cell msgl__cell_text(const char *name, const char *value);
msgl_cell msgl__cell_int(const char *name, int64_t value);
msgl_cell msgl__cell_real(const char *name, double value, int digits);

// Reads "1,8,16" into numbers from 1 to max_value; how many there are, or a negative code with
// *err.
int msgl__cli_int_list(const char *flag, const char *text, int max_value, int *out, int cap,
                       msgl_err *err);

int msgl__cmd_calibrate(const msgl_args *a);
int msgl__cmd_serve(const msgl_args *a);
int msgl__cmd_chat(const msgl_args *a);
int msgl__cmd_simulate(const msgl_args *a);
int msgl__cmd_run(const msgl_args *a);
int msgl__cmd_bench(const msgl_args *a);
bool msgl__bench_opens_model(const char *sub); // in the program's own process
int msgl__cmd_info(const msgl_args *a);
int msgl__cmd_tokenize(const msgl_args *a);
int msgl__cmd_pull(const msgl_args *a);
int msgl__cmd_template(const msgl_args *a);

#endif
