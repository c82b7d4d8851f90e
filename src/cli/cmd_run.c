// SPDX-License-Identifier: Apache-2.0
//
// `minisgl run`: prompts from flags or JSON lines, all batched together; answers come out in the
// order of the input. At most a window of requests is in flight, so a file of any length fits in
// memory. Output that cannot be written ends the run: answers that nobody gets are not worth
// computing. What a run that was ended early has written is whole, but for a torn last line:
// another one goes on with it (--resume).
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/common.h"
#include "cli/run_line.h"
#include "cli/run_resume.h"
#include "core/err.h"
#include "core/mem.h"
#include "llm/llm.h"
#include "utils/clock.h"

struct run {
    char *lora_text; // names and folders of adapters
    const msgl_args *args;
    msgl_llm *llm;
    FILE *in, *out;
    long in_start; // where `in` begins: somebody may have read from standard input before
    const char *out_name;
    msgl_run_common common;
    msgl_run_line **window; // ring of requests, oldest first
    int cap, first, count;
    bool batch;         // the last line that was read is in OpenAI's form
    msgl_resume before; // what the output has already
    int64_t lines, done, failed, empty, generated;
    uint64_t total_bytes; // of the input; 0: not known
    uint64_t done_bytes;  // of lines that are answered
    uint64_t start_ns;
    char *text; // getline's buffer, kept between lines
    size_t text_cap;
};

static void show_progress(struct run *r)
{
    const double seconds = (double)(msgl__now_ns() - r->start_ns) / 1e9;
    char note[96];
    snprintf(note, sizeof note, "%lld done, %lld tokens, %.1f tok/s", (long long)r->done,
             (long long)r->generated, (double)r->generated / (seconds > 0 ? seconds : 1));
    msgl__cli_bar("requests", r->done_bytes, r->total_bytes, note);
}

static void line_done(struct run *r, const msgl_run_line *line)
{
    r->done++;
    r->done_bytes += line->bytes;
    if (line->error_status != 0) r->failed++;
}

static int on_piece(void *ctx, const msgl_piece *p)
{
    msgl_run_line *line = ctx;
    struct run *r = line->owner;
    msgl__run_line_piece(line, p);
    if (p->token >= 0) r->generated++;
    if (line->done) line_done(r, line);
    return msgl__cli_interrupted;
}

// Says why an answer is empty, of the first one, because it looks like a fault of the program.
// line: its line of the input; 0: it answers a prompt of the command line.
static void say_empty(struct run *r, int64_t line, int finish, int tokens)
{
    char where[40] = "";
    const bool asked = finish == MSGL_STOP || finish == MSGL_LENGTH;
    if (!asked || r->empty++ > 0) return;
    if (line > 0) snprintf(where, sizeof where, "line %lld: ", (long long)line);
    msgl__cli_bar_clear();
    fprintf(stderr, "%san empty answer: %s (finish_reason \"%s\")%s\n", where,
            finish == MSGL_LENGTH ? "none of its tokens is text"
            : tokens > 1          ? "it ended before any text"
                                  : "the model ended it with its first token",
            msgl__cli_finish_name(finish),
            r->common.chat ? "" : "; the prompt was no chat's, but text to be continued");
}

// Writes the answers that are complete, up to the first that is not. ended: the engine has failed;
// a line that has failed with it is not written, so that --resume asks it again.
static int flush_window(struct run *r, bool ended, msgl_err *err)
{
    while (r->count > 0 && r->window[r->first]->done) {
        const msgl_run_line *line = r->window[r->first];
        if (ended && r->window[r->first]->error_status >= 500) break;
        // If the file does not take it, the flush below says why.
        if (msgl__run_line_write(line, r->out) == MSGL_ENOMEM) {
            return msgl__err_set(err, MSGL_ENOMEM, "an answer: out of memory");
        }
        if (line->error_status == 0 && line->answer.len == 0) {
            say_empty(r, line->number, line->finish, (int)line->tokens.len);
        }
        msgl__run_line_free(r->window[r->first]);
        r->first = (r->first + 1) % r->cap;
        r->count--;
    }
    return msgl__cli_flush(r->out, r->out_name, err);
}

// Takes a line into the window and starts it. What cannot be started is done at once, with an
// error.
static void start_line(struct run *r, msgl_run_line *line)
{
    line->owner = r;
    r->window[(r->first + r->count++) % r->cap] = line;
    if (line->error_status == 0) msgl__run_line_submit(line, r->llm, on_piece);
    if (line->error_status != 0) {
        line->done = true;
        line_done(r, line);
    }
}

static void free_window(struct run *r)
{
    for (int i = 0; i < r->count; i++) msgl__run_line_free(r->window[(r->first + i) % r->cap]);
    r->count = 0;
}

// Reads and submits lines while the window has room. 1: the input has ended.
static int fill_window(struct run *r, msgl_err *err)
{
    while (r->count < r->cap) {
        const ssize_t n = getline(&r->text, &r->text_cap, r->in);
        if (n < 0 && ferror(r->in)) {
            return msgl__err_set(err, MSGL_EIO, "--input %.180s: %m", r->args->input);
        }
        if (n < 0) return 1;
        r->lines++;
        if (strspn(r->text, " \t\r\n") == (size_t)n) { // "line" tells the answers apart
            r->done_bytes += (uint64_t)n;
            continue;
        }
        if (msgl__resume_done(&r->before, r->lines, &r->batch)) {
            r->done_bytes += (uint64_t)n;
            continue;
        }
        msgl_run_line *line =
            msgl__run_line_parse(r->text, (size_t)n, r->lines, r->batch, &r->common);
        if (line == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
        r->batch = line->batch;
        start_line(r, line);
    }
    return 0;
}

static int run_lines(struct run *r, msgl_err *err)
{
    int ended = 0, rc = 0;
    bool lost = false; // the engine
    while (rc >= 0 && !msgl__cli_interrupted) {
        if (!ended) ended = fill_window(r, err);
        if (ended < 0) return ended;
        const int more = msgl_step(r->llm, err);
        lost = more < 0;
        rc = lost ? more : flush_window(r, false, err);
        show_progress(r);
        if (ended && more == 0 && r->count == 0) return rc;
    }
    msgl_err dropped; // what went wrong first is the news
    const int last = flush_window(r, lost, rc < 0 ? &dropped : err);
    return rc < 0 ? rc : last;
}

static int open_input(struct run *r, const char *input, msgl_err *err)
{
    r->in = strcmp(input, "-") == 0 ? stdin : fopen(input, "r");
    if (r->in == NULL) return msgl__err_set(err, MSGL_EIO, "--input %.180s: %m", input);
    struct stat st;
    if (fstat(fileno(r->in), &st) == 0 && S_ISDIR(st.st_mode)) {
        return msgl__err_set(err, MSGL_EINVAL, "--input %.180s: is a folder", input);
    }
    r->in_start = ftell(r->in);
    if (r->in_start >= 0 && fseek(r->in, 0, SEEK_END) == 0) {
        const long end = ftell(r->in);
        r->total_bytes = end > r->in_start ? (uint64_t)(end - r->in_start) : 0;
        (void)fseek(r->in, r->in_start, SEEK_SET);
    } else if (r->args->resume) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "--input %.180s: --resume reads it twice; it must be a file", input);
    }
    return 0;
}

// Reads what the output, a file of `bytes`, has already.
static int read_before(struct run *r, int64_t bytes, msgl_err *err)
{
    const char *output = r->args->output;
    if (!r->args->resume && bytes > 0) {
        return msgl__err_set(
            err, MSGL_EINVAL,
            "--output %.180s: is not empty; --resume goes on with it, or remove it "
            "first",
            output);
    }
    if (bytes == 0) return 0;
    FILE *out = fopen(output, "r");
    if (out == NULL) return msgl__err_set(err, MSGL_EIO, "--output %.180s: %m", output);
    const int rc = msgl__resume_read(r->in, r->args->input, out, output, &r->before, err);
    fclose(out);
    (void)fseek(r->in, r->in_start, SEEK_SET);
    if (rc == 0) {
        fprintf(stderr, "%lld requests are answered in %s%s\n", (long long)r->before.answered,
                output, r->before.torn ? "; its torn last line is cut off" : "");
    }
    return rc;
}

// Checks the output of a batch file, which may be there already.
static int check_output(struct run *r, msgl_err *err)
{
    const char *output = r->args->output;
    struct stat in, out;
    const bool known = fstat(fileno(r->out), &out) == 0;
    if (!known || !S_ISREG(out.st_mode)) {
        if (!r->args->resume) return 0;
        return msgl__err_set(err, MSGL_EINVAL, "--output %.180s: --resume needs a file", output);
    }
    if (fstat(fileno(r->in), &in) == 0 && in.st_dev == out.st_dev && in.st_ino == out.st_ino) {
        return msgl__err_set(err, MSGL_EINVAL, "--output %.180s: is the input", output);
    }
    // This finds a run that still goes on, unless the file system has no locks.
    if (flock(fileno(r->out), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        return msgl__err_set(err, MSGL_EBUSY, "--output %.180s: another run is writing it", output);
    }
    return read_before(r, out.st_size, err);
}

// Opens the files before the model is loaded, so that a wrong name is refused at once. The output
// is cut only when the run begins: a model that cannot be loaded leaves it as it is.
static int open_files(struct run *r, msgl_err *err)
{
    const char *input = r->args->input, *output = r->args->output;
    int rc = input == NULL ? 0 : open_input(r, input, err);
    if (rc != 0) return rc;
    r->out = output == NULL ? stdout : fopen(output, "a");
    if (r->out == NULL) return msgl__err_set(err, MSGL_EIO, "--output %.180s: %m", output);
    r->out_name = output == NULL ? "standard output" : output;
    return input != NULL && output != NULL ? check_output(r, err) : 0;
}

// Closes the files. rc is the result so far; closing the output may be the first thing that fails.
static int close_files(struct run *r, int rc, msgl_err *err)
{
    if (r->in != NULL && r->in != stdin) fclose(r->in);
    if (r->out != NULL && r->out != stdout && fclose(r->out) != 0 && rc == 0) {
        rc = msgl__err_set(err, MSGL_EIO, "%.180s: %m", r->out_name);
    }
    return rc;
}

// Cuts the output to what stays of it: nothing, or the whole lines that the run goes on with.
static int cut_output(const struct run *r, msgl_err *err)
{
    struct stat st;
    const bool file = r->out != stdout && fstat(fileno(r->out), &st) == 0 && S_ISREG(st.st_mode);
    if (!file || ftruncate(fileno(r->out), r->before.keep) == 0) return 0;
    return msgl__err_set(err, MSGL_EIO, "%.180s: %m", r->out_name);
}

static int run_file(struct run *r, msgl_err *err)
{
    msgl_info info;
    msgl_get_info(r->llm, &info);
    r->cap = 4 * info.max_running;
    r->start_ns = msgl__now_ns();
    r->window = msgl__calloc((size_t)r->cap, sizeof *r->window);
    int rc = r->window == NULL ? msgl__err_set(err, MSGL_ENOMEM, "out of memory") : 0;
    if (rc == 0) rc = run_lines(r, err);
    free_window(r);
    msgl__free(r->window);
    msgl__free(r->text);
    msgl__cli_bar_clear();
    const double seconds = (double)(msgl__now_ns() - r->start_ns) / 1e9;
    fprintf(stderr, "%lld requests, %lld failed, %lld tokens in %.2f s: %.1f tok/s\n",
            (long long)r->done, (long long)r->failed, (long long)r->generated, seconds,
            (double)r->generated / seconds);
    const int64_t failed = r->failed + r->before.failed; // as if it had been one run
    if (rc == 0 && failed > 0) {
        rc = msgl__err_set(err, MSGL_EINVAL, "%lld of %lld requests failed; the output says why",
                           (long long)failed, (long long)(r->done + r->before.answered));
    }
    return rc;
}

// ---- prompts from flags ----

struct shown {
    uint64_t start_ns, first_ns, end_ns;
    int tokens, finish;
    size_t bytes; // of text
    bool lost;    // standard output takes no more
    char error[256];
};

static int on_shown(void *ctx, const msgl_piece *p)
{
    struct shown *s = ctx;
    s->end_ns = msgl__now_ns();
    if (s->first_ns == 0) s->first_ns = s->end_ns;
    s->tokens = p->generated_tokens;
    s->finish = p->finish;
    if (p->error != NULL) snprintf(s->error, sizeof s->error, "%s", p->error);
    s->bytes += p->text_len;
    fwrite(p->text, 1, p->text_len, stdout);
    s->lost = msgl__cli_flush(stdout, "standard output", NULL) != 0;
    return msgl__cli_interrupted || s->lost;
}

// Answers one prompt after the other, and shows the text as it comes, then how fast it came.
static int run_streamed(struct run *r, msgl_err *err)
{
    const msgl_args *a = r->args;
    msgl_llm *l = r->llm;
    const char *dim = isatty(STDOUT_FILENO) && getenv("NO_COLOR") == NULL ? "\033[2m" : "";
    const char *plain = *dim != '\0' ? "\033[0m" : "";
    for (int i = 0; i < a->prompts.count && !msgl__cli_interrupted; i++) {
        struct shown s = {.start_ns = msgl__now_ns()};
        printf("%s> %s%s\n", dim, a->prompts.items[i], plain);
        msgl_run_line *line = msgl__run_line_prompt(a->prompts.items[i], &r->common);
        if (line == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
        int rc = msgl__run_line_submit_to(line, l, on_shown, &s, err);
        if (rc == 0) rc = msgl_run(l, err);
        msgl__run_line_free(line);
        if (rc == 0 && s.lost) rc = msgl__cli_flush(stdout, "standard output", err);
        if (rc != 0) return rc;
        if (s.finish == MSGL_FAILED) return msgl__err_set(err, MSGL_EINTERNAL, "%.200s", s.error);
        const double wait = (double)(s.first_ns - s.start_ns) / 1e9;
        const double rest = (double)(s.end_ns - s.first_ns) / 1e9;
        if (s.bytes == 0) say_empty(r, 0, s.finish, s.tokens);
        printf("\n%s[%d tokens, %s; first after %.0f ms, then %.1f tok/s]%s\n\n", dim, s.tokens,
               msgl__cli_finish_name(s.finish), wait * 1e3,
               rest > 0 ? (double)(s.tokens - 1) / rest : 0.0, plain);
    }
    return 0;
}

// Answers all prompts of the command line in one batch, as JSON lines.
static int run_prompts(struct run *r, msgl_err *err)
{
    const msgl_args *a = r->args;
    msgl_run_line *window[MSGL_MAX_LIST];
    r->window = window;
    r->cap = a->prompts.count;
    int rc = 0;
    for (int i = 0; rc == 0 && i < a->prompts.count; i++) {
        msgl_run_line *line = msgl__run_line_prompt(a->prompts.items[i], &r->common);
        if (line != NULL) {
            start_line(r, line);
        } else {
            rc = msgl__err_set(err, MSGL_ENOMEM, "out of memory");
        }
    }
    if (rc == 0) rc = msgl_run(r->llm, err);
    msgl_err dropped; // what went wrong first is the news
    const int last = flush_window(r, false, rc < 0 ? &dropped : err);
    if (rc == 0) rc = last;
    free_window(r);
    if (rc == 0 && r->failed > 0) {
        rc = msgl__err_set(err, MSGL_EINVAL, "%lld of %d prompts failed; the output says why",
                           (long long)r->failed, a->prompts.count);
    }
    return rc;
}

// The adapters that lines may name; prompts of the command line have the first.
static int add_loras(struct run *r, msgl_err *err)
{
    msgl_lora_path all[MSGL_MAX_LIST];
    int rc = msgl__cli_loras(r->args, all, &r->lora_text, err);
    if (rc != 0 || r->args->loras.count == 0) return rc;
    r->common.api.loras = msgl__loras_create();
    if (r->common.api.loras == NULL) rc = MSGL_ENOMEM;
    for (int i = 0; i < r->args->loras.count && rc == 0; i++) {
        rc = msgl__loras_put(r->common.api.loras, all[i].name, all[i].path, 1 + (uint64_t)i);
    }
    if (r->args->prompts.count > 0) r->common.params.lora_path = all[0].path;
    return rc == 0 ? 0 : msgl__err_set(err, rc, "--lora-paths: %s", msgl__status_text(rc));
}

// Sets what all lines have in common. dir: the model's, which has to live as long as the run.
static void begin(struct run *r, const char *dir)
{
    const msgl_args *a = r->args;
    msgl_info info;
    msgl_params params;
    msgl_get_info(r->llm, &info);
    msgl__cli_params(a, r->llm, &params);
    msgl__run_common_init(&r->common, &params, msgl__cli_model_name(a, dir), a->engine.model_dir,
                          info.vocab_size);
    r->common.chat = !a->raw && msgl__llm_templates(r->llm) != NULL;
    r->common.system = a->system;
    if (!a->raw && !r->common.chat) {
        fprintf(stderr, "the model has no chat template: prompts are taken as they are\n");
    }
}

int msgl__cmd_run(const msgl_args *a)
{
    msgl_err err;
    if ((a->input == NULL) == (a->prompts.count == 0)) {
        msgl__err_set(&err, MSGL_EINVAL, "give either --prompt TEXT or --input FILE.jsonl");
        return msgl__cli_fail(MSGL_EXIT_USAGE, &err);
    }
    if (a->stream && (a->input != NULL || a->output != NULL)) {
        msgl__err_set(&err, MSGL_EINVAL,
                      "--stream goes with --prompt, not with --input or --output");
        return msgl__cli_fail(MSGL_EXIT_USAGE, &err);
    }
    if (a->resume && (a->input == NULL || a->output == NULL)) {
        msgl__err_set(&err, MSGL_EINVAL, "--resume needs --input FILE.jsonl and --output FILE");
        return msgl__cli_fail(MSGL_EXIT_USAGE, &err);
    }
    if (a->raw && (a->chat || a->system != NULL)) {
        msgl__err_set(&err, MSGL_EINVAL, "--raw and %s; allowed: either",
                      a->chat ? "--chat" : "--system");
        return msgl__cli_fail(MSGL_EXIT_USAGE, &err);
    }
    struct run r = {.args = a};
    char *dir = NULL;
    int rc = open_files(&r, &err);
    if (rc == 0) rc = msgl__cli_open(a, !a->stream, &r.llm, &err);
    if (rc == 0) rc = cut_output(&r, &err);
    if (rc == 0) rc = msgl__cli_model_dir(a, &dir, &err);
    if (rc == 0) begin(&r, dir);
    if (rc == 0) rc = add_loras(&r, &err);
    if (rc == 0) {
        msgl__cli_catch_interrupt();
        rc = a->input != NULL ? run_file(&r, &err)
             : a->stream      ? run_streamed(&r, &err)
                              : run_prompts(&r, &err);
    }
    rc = close_files(&r, rc, &err);
    msgl__resume_free(&r.before);
    msgl_close(r.llm);
    msgl__loras_free(r.common.api.loras);
    msgl_free(r.lora_text);
    msgl_free(dir);
    if (msgl__cli_interrupted) return MSGL_EXIT_INTERRUPTED;
    return rc == 0 ? MSGL_EXIT_OK : msgl__cli_fail(MSGL_EXIT_FAILED, &err);
}
