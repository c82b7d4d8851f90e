// SPDX-License-Identifier: Apache-2.0
//
// `minisgl bench serve`: the load client's command line, and a server of its own where no URL is
// given.
#include "apps/bench/serve_load.h"

#include <errno.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "apps/bench/bench.h"
#include "core/attributes.h"
#include "core/err.h"

// Prompts are random ids below this: valid in every vocabulary, so nothing has to be asked.
#define PROMPT_VOCAB 1000

enum { MAX_LEVELS = 16, MAX_CLIENTS = 4096, WARM_UP_TOKENS = 8 };

// ---- a server of its own ----

typedef struct own_server {
    pid_t pid; // 0: none
    char url[128];
} own_server;

static _Noreturn void serve(const msgl_args *a, int out)
{
    static msgl_args args;
    args = *a;
    args.port = 0;
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    // It hears of Ctrl-C from the benchmark only, and ends with it, however that ends.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    dup2(out, STDOUT_FILENO);
    close(out);
    exit(msgl__cmd_serve(&args));
}

// The address in the line that says that it is ready. False: it ended before.
static bool read_url(int fd, char *url, size_t size)
{
    FILE *f = fdopen(fd, "r");
    if (f == NULL) return false;
    char line[512];
    bool found = false;
    while (!found && fgets(line, sizeof line, f) != NULL) {
        const char *at = strstr(line, "http://");
        if (at == NULL) continue;
        snprintf(url, size, "%.*s", (int)strcspn(at, " \n"), at);
        found = true;
    }
    fclose(f);
    return found;
}

static void stop_server(own_server *s)
{
    if (s->pid <= 0) return;
    kill(s->pid, SIGTERM);
    while (waitpid(s->pid, NULL, 0) < 0 && errno == EINTR) {
    }
    s->pid = 0;
}

static int start_server(const msgl_args *a, own_server *s, msgl_err *err)
{
    int fd[2];
    if (pipe(fd) != 0) return msgl__err_set(err, MSGL_EIO, "pipe: %s", strerror(errno));
    fflush(NULL);
    s->pid = fork();
    if (s->pid == 0) {
        close(fd[0]);
        serve(a, fd[1]);
    }
    close(fd[1]);
    if (s->pid < 0) {
        close(fd[0]);
        return msgl__err_set(err, MSGL_EIO, "fork: %s", strerror(errno));
    }
    if (read_url(fd[0], s->url, sizeof s->url)) return 0;
    stop_server(s);
    if (msgl__cli_interrupted) return msgl__err_set(err, MSGL_EABORTED, "interrupted");
    return msgl__err_set(err, MSGL_EIO, "the server did not start");
}

// ---- levels ----

static bool on_progress(void *ctx, int done, int total)
{
    char label[32], note[32];
    snprintf(label, sizeof label, "%d clients", *(const int *)ctx);
    snprintf(note, sizeof note, "%d / %d requests", done, total);
    msgl__cli_bar(label, (uint64_t)done, (uint64_t)total, note);
    return !msgl__cli_interrupted;
}

// One request that is not counted: what a server does at its first, and a wrong URL, are behind it.
static int warm_up(const msgl_bench_serve_config *cfg, msgl_err *err)
{
    msgl_bench_serve_result r;
    msgl_bench_serve_config one = *cfg;
    one.concurrency = one.requests = 1;
    one.ctx = &one.concurrency;
    if (one.max_tokens > WARM_UP_TOKENS) one.max_tokens = WARM_UP_TOKENS;
    return msgl__bench_serve(&one, &r, err);
}

static void print_level(msgl_rows *rows, const msgl_bench_serve_config *cfg,
                        const msgl_bench_serve_result *r)
{
    const msgl_cell cells[] = {msgl__cell_int("clients", cfg->concurrency),
                               msgl__cell_int("requests", cfg->requests),
                               msgl__cell_int("failed", r->failed),
                               msgl__cell_real("output_tok_per_s", r->output_tok_per_s, 1),
                               msgl__cell_real("ttft_p50_ms", r->ttft.p50, 1),
                               msgl__cell_real("ttft_p99_ms", r->ttft.p99, 1),
                               msgl__cell_real("gap_p50_ms", r->gap.p50, 2),
                               msgl__cell_real("gap_p99_ms", r->gap.p99, 2),
                               msgl__cell_real("gap_max_ms", r->gap.max, 2),
                               msgl__cell_real("e2e_p50_ms", r->e2e.p50, 1),
                               msgl__cell_int("prompt_tokens", r->prompt_tokens),
                               msgl__cell_int("cached_tokens", r->cached_tokens),
                               msgl__cell_int("output_tokens", r->output_tokens),
                               msgl__cell_real("wall_s", r->wall_s, 3),
                               msgl__cell_real("client_core_pct", 100 * r->client_core, 1)};
    msgl__cli_row(rows, cells, (int)MSGL_COUNT(cells));
}

static int run_levels(const msgl_args *a, msgl_bench_serve_config *cfg, const int *clients, int n,
                      msgl_err *err)
{
    msgl_rows rows = {.format = a->format};
    int failed = 0, all = 0;
    char first_error[256] = "";
    int rc = warm_up(cfg, err);
    cfg->first_index = 1;
    for (int i = 0; i < n && rc == 0; i++) {
        msgl_bench_serve_result r;
        cfg->concurrency = clients[i];
        cfg->requests = a->requests > 0 ? a->requests : clients[i] * (clients[i] < 256 ? 4 : 3);
        rc = msgl__bench_serve(cfg, &r, err);
        msgl__cli_bar_clear();
        if (rc != 0) return rc;
        print_level(&rows, cfg, &r);
        cfg->first_index += cfg->requests;
        failed += r.failed;
        all += cfg->requests;
        if (first_error[0] == '\0') memcpy(first_error, r.first_error, sizeof first_error);
    }
    if (rc == 0 && failed > 0) {
        rc = msgl__err_set(err, MSGL_EIO, "%d of %d requests failed, the first with: %.180s",
                           failed, all, first_error);
    }
    return rc;
}

int msgl__bench_serve_cmd(const msgl_args *a)
{
    msgl_err err;
    int clients[MAX_LEVELS];
    own_server server = {0};
    const int n =
        msgl__cli_int_list("--concurrency", a->concurrency, MAX_CLIENTS, clients, MAX_LEVELS, &err);
    if (n < 0) return msgl__cli_fail(MSGL_EXIT_USAGE, &err);
    msgl__cli_catch_interrupt();
    int rc = 0;
    if (a->url == NULL && a->engine.model_dir != NULL) rc = start_server(a, &server, &err);
    msgl_bench_serve_config cfg = msgl__bench_serve_config_default();
    if (a->url != NULL) cfg.url = a->url;
    if (server.pid > 0) cfg.url = server.url;
    cfg.prompt_tokens = a->prompt_len > 0 ? a->prompt_len : 127;
    cfg.vocab_size = PROMPT_VOCAB;
    if (a->max_tokens > 0) cfg.max_tokens = a->max_tokens;
    cfg.open_ended = a->open_ended;
    cfg.temperature = (double)a->sampling.temperature;
    if (a->seed >= 0) cfg.prompt_seed = (uint64_t)a->seed;
    cfg.sampling_seed = a->seed;
    cfg.progress = on_progress;
    cfg.ctx = &cfg.concurrency;
    if (rc == 0) rc = run_levels(a, &cfg, clients, n, &err);
    msgl__cli_bar_clear();
    stop_server(&server);
    if (rc == MSGL_EABORTED) return MSGL_EXIT_INTERRUPTED;
    return rc == 0 ? MSGL_EXIT_OK : msgl__cli_fail(MSGL_EXIT_FAILED, &err);
}
