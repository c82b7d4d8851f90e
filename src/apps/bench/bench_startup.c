// SPDX-License-Identifier: Apache-2.0
//
// `minisgl bench startup`: from exec of `minisgl serve` to the line that says it is ready, and the
// memory that is then resident in all of its processes.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "apps/bench/bench.h"
#include "core/attributes.h"
#include "core/err.h"
#include "utils/clock.h"
#include "utils/stats.h"

// Resident MB, and of it anonymous, of a process and its descendants.
static void add_resident(int pid, double *all, double *anonymous)
{
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *f = fopen(path, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        double kb;
        if (sscanf(line, "VmRSS: %lf", &kb) == 1) *all += kb / 1e3;
        if (sscanf(line, "RssAnon: %lf", &kb) == 1) *anonymous += kb / 1e3;
    }
    if (f != NULL) fclose(f);
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", pid, pid);
    f = fopen(path, "r");
    int child;
    while (f != NULL && fscanf(f, "%d", &child) == 1) add_resident(child, all, anonymous);
    if (f != NULL) fclose(f);
}

// Options that were given go to the server, as the variables of its environment.
static void pass_on(const msgl_args *a)
{
    const msgl_setting *o;
    for (int i = 0; (o = msgl__option(i)) != NULL; i++) {
        if (!a->given[i] || (o->commands & MSGL_CMD_SERVE) == 0) continue;
        const void *values = (const char *)a + msgl__option_values(i);
        char name[64], number[32];
        msgl__option_env(o, name);
        if (o->type == MSGL_SETTING_TEXT) {
            setenv(name, msgl__setting_text(o, values), 1);
            continue;
        }
        const double v = msgl__setting_number(o, values);
        snprintf(number, sizeof number, "%.15g", o->type == MSGL_SETTING_FLAG ? v != o->preset : v);
        setenv(name, number, 1);
    }
}

static int one_start(const msgl_args *a, double *seconds, double *mb, double *anonymous,
                     msgl_err *err)
{
    int out[2];
    if (pipe(out) != 0) return msgl__err_set(err, MSGL_EIO, "pipe: %m");
    const uint64_t start = msgl__now_ns();
    const pid_t pid = fork();
    if (pid < 0) return msgl__err_set(err, MSGL_EIO, "fork: %m");
    if (pid == 0) {
        dup2(out[1], STDOUT_FILENO);
        close(out[0]);
        close(out[1]);
        pass_on(a);
        execl("/proc/self/exe", "minisgl", "serve", "--port", "0", (char *)NULL);
        _exit(127);
    }
    close(out[1]);
    FILE *f = fdopen(out[0], "r");
    char line[512] = "";
    bool ready = false;
    while (!ready && f != NULL && fgets(line, sizeof line, f) != NULL) {
        ready = strstr(line, "http://") != NULL;
    }
    *seconds = (double)(msgl__now_ns() - start) / 1e9;
    *mb = *anonymous = 0;
    if (ready) add_resident(pid, mb, anonymous);
    kill(pid, SIGTERM);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
    if (f != NULL) fclose(f);
    return ready ? 0 : msgl__err_set(err, MSGL_EINTERNAL, "the server did not get ready");
}

int msgl__bench_startup(const msgl_args *a)
{
    enum { MAX_REPEAT = 1000 };
    static double seconds[MAX_REPEAT], mb[MAX_REPEAT], anonymous[MAX_REPEAT];
    msgl_err err;
    char *dir = NULL;
    int rc = msgl__cli_model_dir(a, &dir, &err);
    const int n = a->repeat > 0 ? a->repeat : 3;
    for (int i = 0; rc == 0 && i < n; i++) {
        rc = one_start(a, &seconds[i], &mb[i], &anonymous[i], &err);
    }
    msgl_free(dir);
    if (rc != 0) return msgl__cli_fail(MSGL_EXIT_FAILED, &err);
    msgl_rows rows = {.format = a->format};
    const double best = msgl__median(seconds, (size_t)n);
    const msgl_cell cells[] = {
        msgl__cell_int("starts", n),
        msgl__cell_real("min_s", seconds[0], 3),
        msgl__cell_real("median_s", best, 3),
        msgl__cell_real("max_s", seconds[n - 1], 3),
        msgl__cell_real("rss_mb", msgl__median(mb, (size_t)n), 0),
        msgl__cell_real("anonymous_mb", msgl__median(anonymous, (size_t)n), 0)};
    msgl__cli_row(&rows, cells, (int)MSGL_COUNT(cells));
    return MSGL_EXIT_OK;
}
