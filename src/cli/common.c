// SPDX-License-Identifier: Apache-2.0
#include "cli/common.h"
#include "cli/speculative.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/err.h"
#include "core/mem.h"
#include "llm/llm.h"
#include "utils/clock.h"
#include "utils/json.h"
#include "utils/json_write.h"
#include "utils/strbuf.h"

volatile sig_atomic_t msgl__cli_interrupted;

// Whoever read standard output has closed it, as `head` does when it has its lines.
static bool g_reader_gone;

int msgl__cli_fail(int code, const msgl_err *err)
{
    msgl__cli_bar_clear();
    if (g_reader_gone) return code;
    fprintf(stderr, "minisgl: %s\n", err->text);
    return code;
}

int msgl__cli_flush(FILE *f, const char *name, msgl_err *err)
{
    static int why; // of the first failure: the file itself remembers only that there was one
    errno = 0;
    if (fflush(f) == 0 && !ferror(f)) return 0;
    if (why == 0) why = errno;
    if (f == stdout && why == EPIPE) g_reader_gone = true;
    return msgl__err_set(err, MSGL_EIO, "%.180s: %s", name,
                         why != 0 ? strerror(why) : "not everything could be written");
}

void msgl__cli_end_pipe(void)
{
    if (!g_reader_gone) return;
    signal(SIGPIPE, SIG_DFL);
    raise(SIGPIPE);
}

const char *msgl__cli_attention(const msgl_args *a, char buf[128])
{
    const char *both = a->engine.attention;
    if (a->prefill_attention == NULL && a->decode_attention == NULL) return both;
    const char *comma = strchr(both, ',');
    const int first = comma != NULL ? (int)(comma - both) : (int)strlen(both);
    const char *second = comma != NULL ? comma + 1 : both;
    snprintf(buf, 128, "%.*s,%s", a->prefill_attention != NULL ? 60 : first,
             a->prefill_attention != NULL ? a->prefill_attention : both,
             a->decode_attention != NULL ? a->decode_attention : second);
    return buf;
}

// ---- opening ----

static void print_log(void *ctx, const char *line)
{
    (void)ctx;
    msgl__cli_bar_clear();
    fprintf(stderr, "%s\n", line);
}

static void print_progress(void *ctx, const char *stage, uint64_t done, uint64_t total)
{
    (void)ctx;
    char note[64];
    snprintf(note, sizeof note, "%.0f / %.0f MB", (double)done / 1e6, (double)total / 1e6);
    if (done < total) {
        msgl__cli_bar(stage, done, total, note);
    } else {
        msgl__cli_bar_clear();
    }
}

const char *msgl__cli_cpu_level(void)
{
    return getenv("MINISGL_CPU");
}

// Refuses a pair of backends for one half of a pair.
static int check_half(const char *flag, const char *name, msgl_err *err)
{
    if (name == NULL || strchr(name, ',') == NULL) return 0;
    return msgl__err_set(err, MSGL_EINVAL,
                         "%s is \"%.60s\"; allowed: one backend, or auto (a pair is "
                         "--attention-backend PREFILL,DECODE)",
                         flag, name);
}

static int take_speculative(const msgl_args *a, msgl_options *o, msgl_err *err)
{
    if (a->speculative_config == NULL) return 0;
    if (msgl__args_given(a, &a->engine.speculative_algorithm)) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "--speculative-config and --speculative-algorithm; allowed: one of "
                             "them");
    }
    return msgl__speculative_config(a->speculative_config, o, err);
}

// The draft model's folder, found as the model's is. It is kept as long as the program runs.
static int find_draft(const msgl_args *a, msgl_options *o, msgl_err *err)
{
    static char *dir;
    if (o->speculative_draft_model_path == NULL) return 0;
    msgl__free(dir);
    dir = NULL;
    const int rc = msgl__cli_draft_dir(a, o->speculative_draft_model_path, &dir, err);
    o->speculative_draft_model_path = dir;
    return rc;
}

int msgl__cli_options(const msgl_args *a, msgl_options *out, char **dir, char attention[128],
                      msgl_err *err)
{
    int rc = check_half("--prefill-attention-backend", a->prefill_attention, err);
    if (rc == 0) rc = check_half("--decode-attention-backend", a->decode_attention, err);
    *out = a->engine;
    if (rc == 0) rc = take_speculative(a, out, err);
    if (rc == 0) rc = find_draft(a, out, err);
    if (rc == 0) rc = msgl__cli_model_dir(a, dir, err);
    if (rc != 0) return rc;
    out->model_dir = *dir;
    out->attention = msgl__cli_attention(a, attention);
    out->cpu_level = msgl__cli_cpu_level();
    if (a->loras.count > 0) out->enable_lora = 1;
    out->collapsed_routing = strcmp(a->routing, "collapsed") == 0;
    out->log = print_log;
    out->progress = print_progress;
    return 0;
}

int msgl__cli_open(const msgl_args *a, bool batch_job, msgl_llm **out, msgl_err *err)
{
    msgl_options o;
    char *dir = NULL, attention[128];
    int rc = msgl__cli_options(a, &o, &dir, attention, err);
    if (rc == 0) {
        o.prefill_first = batch_job;
        rc = msgl_open(&o, out, err);
    }
    msgl_free(dir);
    return rc;
}

void msgl__cli_params(const msgl_args *a, const msgl_llm *l, msgl_params *out)
{
    msgl_params_init(l, out);
    msgl_sampling_params sampling;
    msgl__params_to_sampling(out, &sampling);
    for (int i = 0; i < msgl__sampling_settings.count; i++) {
        const msgl_setting *row = &msgl__sampling_settings.rows[i];
        if (!msgl__args_given(a, (const char *)&a->sampling + row->offset)) continue;
        msgl__setting_put(row, msgl__setting_number(row, &a->sampling), &sampling);
    }
    msgl__params_from_sampling(&sampling, out);
    if (a->seed >= 0) {
        out->has_seed = 1;
        out->seed = (uint64_t)a->seed;
    }
    out->max_tokens = a->max_tokens;
    out->logprobs = a->logprobs;
    out->stop = a->stop.items;
    out->num_stop = a->stop.count;
}

// ---- terminal ----

static bool g_bar_shown; // of this process's one terminal

void msgl__cli_bar(const char *label, uint64_t done, uint64_t total, const char *note)
{
    static uint64_t last_ns;
    if (!isatty(STDERR_FILENO)) return;
    const uint64_t now = msgl__now_ns();
    if (g_bar_shown && now - last_ns < 50000000) return; // 20 times a second is enough
    last_ns = now;
    g_bar_shown = true;
    if (total == 0) {
        fprintf(stderr, "\r\033[K%s  %s", label, note);
        fflush(stderr);
        return;
    }
    char bar[31];
    const int full = (int)((double)done / (double)total * 30);
    for (int i = 0; i < 30; i++) bar[i] = i < full ? '#' : '.';
    bar[30] = '\0';
    fprintf(stderr, "\r\033[K%s [%s] %3.0f%%  %s", label, bar, 100.0 * (double)done / (double)total,
            note);
    fflush(stderr);
}

void msgl__cli_bar_clear(void)
{
    if (!g_bar_shown) return;
    fprintf(stderr, "\r\033[K");
    g_bar_shown = false;
}

static void on_interrupt(int signal_number)
{
    if (msgl__cli_interrupted) _exit(128 + signal_number);
    msgl__cli_interrupted = 1;
}

void msgl__cli_catch_interrupt(void)
{
    struct sigaction sa = {.sa_handler = on_interrupt};
    sigemptyset(&sa.sa_mask);
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
}

const char *msgl__cli_finish_name(int finish)
{
    switch (finish) {
    case MSGL_STOP: return "stop";
    case MSGL_LENGTH: return "length";
    case MSGL_ABORTED: return "abort";
    default: return "error";
    }
}

// ---- rows ----

msgl_cell msgl__cell_text(const char *name, const char *value)
{
    msgl_cell c = {.name = name, .text = true};
    snprintf(c.value, sizeof c.value, "%s", value);
    return c;
}

msgl_cell msgl__cell_int(const char *name, int64_t value)
{
    msgl_cell c = {.name = name};
    snprintf(c.value, sizeof c.value, "%lld", (long long)value);
    return c;
}

msgl_cell msgl__cell_real(const char *name, double value, int digits)
{
    msgl_cell c = {.name = name};
    if (isfinite(value)) {
        snprintf(c.value, sizeof c.value, "%.*f", digits, value);
    } else {
        snprintf(c.value, sizeof c.value, "null");
    }
    return c;
}

static void put_json_row(const msgl_cell *cells, int n)
{
    json_t *row = json_object();
    for (int i = 0; i < n; i++) {
        const char *value = cells[i].value;
        json_object_set_new(
            row, cells[i].name,
            cells[i].text ? json_string(value)
                          : msgl__json_loadb(value, strlen(value), JSON_DECODE_ANY, NULL, NULL));
    }
    char *text = msgl__json_text(row, JSON_COMPACT | JSON_REAL_PRECISION(9));
    printf("%s\n", text != NULL ? text : "{\"error\":\"out of memory\"}");
    msgl__free(text);
    json_decref(row);
}

// A field of CSV, in quotes if it has what ends fields or records (RFC 4180).
static void put_csv(const char *value)
{
    if (value[strcspn(value, ",\"\r\n")] == '\0') {
        printf("%s", value);
        return;
    }
    putchar('"');
    for (; *value != '\0'; value++) {
        if (*value == '"') putchar('"');
        putchar(*value);
    }
    putchar('"');
}

static void put_csv_row(bool first, const msgl_cell *cells, int n)
{
    for (int i = 0; first && i < n; i++) printf("%s%s", i > 0 ? "," : "", cells[i].name);
    if (first) printf("\n");
    for (int i = 0; i < n; i++) {
        if (i > 0) putchar(',');
        put_csv(cells[i].value);
    }
    printf("\n");
}

static void put_markdown_row(bool first, const msgl_cell *cells, int n)
{
    for (int i = 0; first && i < n; i++) printf("| %s ", cells[i].name);
    if (first) printf("|\n");
    for (int i = 0; first && i < n; i++) printf("|---%s", cells[i].text ? "" : ":");
    if (first) printf("|\n");
    for (int i = 0; i < n; i++) printf("| %s ", cells[i].value);
    printf("|\n");
}

void msgl__cli_row(msgl_rows *r, const msgl_cell *cells, int n)
{
    const bool first = r->count++ == 0;
    if (strcmp(r->format, "json") == 0) {
        put_json_row(cells, n);
    } else if (strcmp(r->format, "csv") == 0) {
        put_csv_row(first, cells, n);
    } else {
        put_markdown_row(first, cells, n);
    }
    (void)msgl__cli_flush(stdout, "standard output", NULL); // main looks at it again
}

int msgl__cli_int_list(const char *flag, const char *text, int max_value, int *out, int cap,
                       msgl_err *err)
{
    int n = 0;
    for (const char *p = text;;) {
        char *end;
        errno = 0;
        const long v = strtol(p, &end, 10);
        if (end == p || errno != 0 || v < 1 || v > max_value || (*end != ',' && *end != '\0') ||
            n == cap) {
            return msgl__err_set(
                err, MSGL_EINVAL,
                "%s is \"%s\"; allowed: up to %d numbers from 1 to %d, as in 1,8,16", flag, text,
                cap, max_value);
        }
        out[n++] = (int)v;
        if (*end == '\0') return n;
        p = end + 1;
    }
}
