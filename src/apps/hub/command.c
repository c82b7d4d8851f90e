// SPDX-License-Identifier: Apache-2.0
//
// Models by their names on a hub, with what the user's environment says of it, and `minisgl pull`.
#include "apps/hub/command.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "apps/hub/hub.h"
#include "core/attributes.h"
#include "core/err.h"
#include "core/mem.h"
#include "utils/clock.h"
#include "utils/file.h"

enum { MAX_TOKEN = 4096 };
#define QUIET_NS 30000000000u // between lines where there is no terminal

struct shown {
    const char *name;
    uint64_t start_ns, line_ns;
};

// ---- progress ----

static void on_log(void *ctx, const char *line)
{
    (void)ctx;
    msgl__cli_bar_clear();
    fprintf(stderr, "minisgl: %s\n", line);
}

// A duration as minutes and seconds, "3:07", or with hours, "1:02:03".
static void duration(double seconds, char out[32])
{
    const long s = seconds < 359999 ? (long)seconds : 359999;
    if (s >= 3600) {
        snprintf(out, 32, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    } else {
        snprintf(out, 32, "%ld:%02ld", s / 60, s % 60);
    }
}

static void on_progress(void *ctx, uint64_t done, uint64_t total, uint64_t received)
{
    struct shown *s = ctx;
    const uint64_t now = msgl__now_ns();
    if (s->start_ns == 0) s->start_ns = s->line_ns = now;
    const double seconds = (double)(now - s->start_ns) / 1e9;
    const double rate = seconds > 0.2 ? (double)received / seconds : 0;
    char note[128], left[32] = "";
    if (rate > 0) duration((double)(total - done) / rate, left);
    snprintf(note, sizeof note, "%.1f / %.1f MB%s", (double)done / 1e6, (double)total / 1e6,
             rate > 0 ? "" : "  ");
    if (rate > 0) {
        const size_t n = strlen(note);
        snprintf(note + n, sizeof note - n, "  %.1f MB/s  %s left", rate / 1e6, left);
    }
    if (isatty(STDERR_FILENO)) {
        msgl__cli_bar(s->name, done, total, note);
        if (done >= total) msgl__cli_bar_clear();
    } else if (now - s->line_ns >= QUIET_NS) {
        s->line_ns = now;
        fprintf(stderr, "minisgl: %s: %s\n", s->name, note);
    }
}

// ---- the environment ----

static const char *variable(const char *text)
{
    return text != NULL && *text != '\0' ? text : NULL;
}

// Where the hub's own client has its files; "" if nothing says where.
static void hub_home(const msgl_hub_kind *kind, char *out, size_t size)
{
    const char *home = kind->home_var != NULL ? variable(getenv(kind->home_var)) : NULL;
    const char *cache = kind->xdg ? variable(getenv("XDG_CACHE_HOME")) : NULL;
    const char *user = variable(getenv("HOME"));
    if (home != NULL) {
        snprintf(out, size, "%s", home);
    } else if (cache != NULL) {
        snprintf(out, size, "%s/%s", cache, kind->home);
    } else {
        snprintf(out, size, "%s%s%s", user != NULL ? user : "", user != NULL ? "/.cache/" : "",
                 user != NULL ? kind->home : "");
    }
}

// Where the hub's cache is; "" if nothing says where.
static void cache_root(const msgl_hub_kind *kind, const char *home, char *out, size_t size)
{
    const char *set = variable(getenv(kind->cache_var));
    const bool none = set == NULL && *home == '\0';
    snprintf(out, size, "%s%s", set != NULL ? set : home, set != NULL || none ? "" : kind->cache);
}

// The hub's address that the environment has; "" if it has none. A host without a scheme is one of
// https.
static void hub_endpoint(const msgl_hub_kind *kind, char *out, size_t size)
{
    const char *set = NULL;
    for (size_t i = 0; i < MSGL_COUNT(kind->endpoint_vars) && set == NULL; i++) {
        const char *name = kind->endpoint_vars[i];
        set = name != NULL ? variable(getenv(name)) : NULL;
    }
    const bool host = set != NULL && kind->endpoint_vars[1] != NULL && strstr(set, "://") == NULL;
    snprintf(out, size, "%s%s", host ? "https://" : "", set != NULL ? set : "");
}

static bool is_yes(const char *text)
{
    return text != NULL && (strcmp(text, "1") == 0 || strcasecmp(text, "yes") == 0 ||
                            strcasecmp(text, "on") == 0 || strcasecmp(text, "true") == 0);
}

// The hub that names are looked up in; NULL: none. As vLLM and SGLang have it, a variable may say
// ModelScope where no option does.
static const msgl_hub_kind *hub_kind(const msgl_args *a)
{
    const char *name = a->model_source;
    if (name == NULL) {
        const bool other =
            is_yes(getenv("VLLM_USE_MODELSCOPE")) || is_yes(getenv("SGLANG_USE_MODELSCOPE"));
        return other ? &msgl__hub_modelscope : &msgl__hub_huggingface;
    }
    return msgl__hub_kind_named(name);
}

// Reads the token; "" if there is none. It becomes a line of HTTP, so that it is one word, and no
// message shows it.
static int read_token(const msgl_hub_kind *kind, const char *home, char out[MAX_TOKEN],
                      msgl_err *err)
{
    char path[1100], *text = NULL;
    size_t len = 0;
    const char *value = variable(getenv(kind->token_var)), *source = kind->token_var;
    out[0] = '\0';
    if (value == NULL) {
        if (kind->token_file == NULL) return 0;
        snprintf(path, sizeof path, "%s/%s", home, kind->token_file);
        const int rc = msgl__file_read(path, MAX_TOKEN, &text, &len, err);
        if (rc == MSGL_ENOENT) return 0;
        if (rc != 0) return rc;
        value = text;
        source = path;
    }
    value += strspn(value, " \t\r\n");
    const size_t n = strcspn(value, " \t\r\n");
    bool ok = n < MAX_TOKEN && value[n + strspn(value + n, " \t\r\n")] == '\0';
    for (size_t i = 0; i < n; i++) ok = ok && value[i] > 0x20 && value[i] < 0x7f;
    if (ok) snprintf(out, MAX_TOKEN, "%.*s", (int)n, value);
    msgl__free(text);
    if (ok) return 0;
    return msgl__err_set(err, MSGL_EINVAL,
                         "%.150s: the token is not valid; allowed: one word of up to %d letters, "
                         "digits and signs",
                         source, MAX_TOKEN - 1);
}

// ---- finding ----

static int find(const msgl_args *a, bool refresh, char **out, msgl_err *err)
{
    static char token[MAX_TOKEN];
    char home[1024], root[1100], endpoint[600];
    const msgl_hub_kind *kind = hub_kind(a);
    msgl_hub_name name;
    int rc = msgl__hub_name_parse(a->engine.model_dir, a->revision, &name, err);
    hub_home(kind, home, sizeof home);
    cache_root(kind, home, root, sizeof root);
    hub_endpoint(kind, endpoint, sizeof endpoint);
    if (rc == 0 && root[0] == '\0') {
        rc = msgl__err_set(err, MSGL_EINVAL, "no HOME and no %s: there is no cache to look in",
                           kind->home_var != NULL ? kind->home_var : kind->cache_var);
    }
    if (rc == 0) rc = read_token(kind, home, token, err);
    if (rc != 0) return rc;
    struct shown shown = {.name = name.repo};
    const msgl_hub hub = {.kind = kind,
                          .endpoint = variable(endpoint),
                          .cache = root,
                          .token = token[0] != '\0' ? token : NULL,
                          .offline = is_yes(getenv("HF_HUB_OFFLINE"))
                                         ? "HF_HUB_OFFLINE forbids to ask the hub"
                                         : NULL,
                          .refresh = refresh,
                          .interrupted = &msgl__cli_interrupted,
                          .log = on_log,
                          .progress = on_progress,
                          .ctx = &shown};
    rc = msgl__hub_find(&hub, &name, out, err);
    msgl__cli_bar_clear();
    return rc;
}

// --- what the program has of it ---

static int find_model(const msgl_args *a, const char *flag, char **out, msgl_err *err)
{
    const char *model = a->engine.model_dir;
    msgl_hub_name name;
    const bool local = hub_kind(a) == NULL;
    if (local || msgl__hub_name_parse(model, a->revision, &name, err) != 0) {
        const bool a_name = !local && strchr("./~", *model) == NULL && strchr(model, '/') != NULL;
        if (a_name) return MSGL_EINVAL; // as the parser says
        return msgl__err_set(err, MSGL_ENOENT,
                             "%s %.150s: no such folder or file, and no ORG/NAME of a hub", flag,
                             model);
    }
    const int rc = find(a, false, out, err);
    if (rc == MSGL_EIO) { // a network that is not there
        const msgl_err what = *err;
        return msgl__err_set(err, rc,
                             "%.400s; without a network a folder or a .gguf file that is here can "
                             "be given as %s",
                             what.text, flag);
    }
    return rc == MSGL_ENOENT ? msgl__err_prefix(err, rc, "no folder %.60s here", model) : rc;
}

const msgl_model_names msgl__hub_names = {.of_address = msgl__hub_name_of_address,
                                          .find = find_model};

int msgl__cmd_pull(const msgl_args *a)
{
    msgl_err err;
    char *dir = NULL;
    if (a->engine.model_dir == NULL) {
        msgl__err_set(&err, MSGL_EINVAL,
                      "pull what? allowed: ORG/NAME, ORG/NAME:TYPE, ORG/NAME/FILE.gguf");
        return msgl__cli_fail(MSGL_EXIT_USAGE, &err);
    }
    if (hub_kind(a) == NULL) {
        msgl__err_set(&err, MSGL_EINVAL,
                      "pull --model-source local: there is nothing to ask; allowed: huggingface or "
                      "modelscope");
        return msgl__cli_fail(MSGL_EXIT_USAGE, &err);
    }
    msgl__cli_catch_interrupt();
    const int rc = find(a, true, &dir, &err);
    if (rc != 0) {
        return msgl__cli_fail(rc == MSGL_EABORTED ? MSGL_EXIT_INTERRUPTED : MSGL_EXIT_FAILED, &err);
    }
    printf("%s\n", dir);
    msgl_free(dir);
    return MSGL_EXIT_OK;
}
