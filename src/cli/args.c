// SPDX-License-Identifier: Apache-2.0
#include "cli/args.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "core/attributes.h"

static const struct {
    const msgl_setting_table *table;
    size_t values; // where in msgl_args its values are
} TABLES[] = {
    {&msgl__engine_settings, offsetof(msgl_args, engine)},
    {&msgl__cli_settings, 0},
    {&msgl__sampling_settings, offsetof(msgl_args, sampling)},
};

// The table of option *i, which becomes a row of it; past the last table: none.
static size_t table_of(int *i)
{
    size_t t = 0;
    for (; t < MSGL_COUNT(TABLES) && *i >= TABLES[t].table->count; t++)
        *i -= TABLES[t].table->count;
    return t;
}

const msgl_setting *msgl__option(int i)
{
    const size_t t = table_of(&i);
    return t < MSGL_COUNT(TABLES) ? &TABLES[t].table->rows[i] : NULL;
}

size_t msgl__option_values(int i)
{
    return TABLES[table_of(&i)].values;
}

bool msgl__args_given(const msgl_args *a, const void *member)
{
    const msgl_setting *o;
    for (int i = 0; (o = msgl__option(i)) != NULL; i++) {
        const size_t at = msgl__option_values(i) + o->offset;
        if ((const char *)a + at == member) return a->given[i];
    }
    return false;
}

void msgl__option_env(const msgl_setting *o, char out[64])
{
    size_t n = (size_t)snprintf(out, 64, "MINISGL_");
    for (const char *p = o->name; *p != '\0' && n < 63; p++) {
        out[n++] = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
    }
    out[n] = '\0';
}

// Whether `flag`, as typed, is this option.
static bool is_spelled(const msgl_setting *o, const char *flag)
{
    if (strncmp(flag, "--", 2) == 0 && strcmp(flag + 2, o->name) == 0) return true;
    const char *alias;
    for (int k = 0; (alias = msgl__option_alias(o, k)) != NULL; k++) {
        if (strcmp(flag, alias) == 0) return true;
    }
    return false;
}

// The option of these commands that is called so; -1: none.
static int find(const char *flag, unsigned commands)
{
    const msgl_setting *o;
    for (int i = 0; (o = msgl__option(i)) != NULL; i++) {
        if ((o->commands & commands) != 0 && is_spelled(o, flag)) return i;
    }
    return -1;
}

// Edits between two words (Levenshtein), for "did you mean"; words of up to 63 letters.
static int distance(const char *a, const char *b)
{
    int row[64];
    const int n = (int)strlen(a), m = (int)strlen(b);
    if (n > 63 || m > 63) return 99;
    for (int j = 0; j <= m; j++) row[j] = j;
    for (int i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            const int replace = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            int best = row[j] + 1 < row[j - 1] + 1 ? row[j] + 1 : row[j - 1] + 1;
            row[j] = best < replace ? best : replace;
        }
    }
    return row[m];
}

static int unknown(const msgl_command *cmd, const char *name, msgl_err *err)
{
    if (find(name, MSGL_CMD_ALL) >= 0) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "%s is not an option of `minisgl %s`; see `minisgl %s --help`", name,
                             cmd->name, cmd->name);
    }
    char nearest[64] = "";
    int best = 4;
    const msgl_setting *o;
    for (int i = 0; (o = msgl__option(i)) != NULL; i++) {
        if ((o->commands & cmd->bit) == 0) continue;
        char flag[64];
        snprintf(flag, sizeof flag, "--%s", o->name);
        const char *spelling = flag;
        for (int k = 0; spelling != NULL; spelling = msgl__option_alias(o, k++)) {
            const int d = distance(name, spelling);
            if (d >= best) continue;
            best = d;
            snprintf(nearest, sizeof nearest, "%s", spelling);
        }
    }
    if (nearest[0] != '\0') {
        return msgl__err_set(err, MSGL_EINVAL, "unknown option %s; did you mean %s?", name,
                             nearest);
    }
    return msgl__err_set(err, MSGL_EINVAL, "unknown option %s; see `minisgl %s --help`", name,
                         cmd->name);
}

// Stores the value of option i; `source` is the flag or variable as the user wrote it.
static int store(int i, const char *source, const char *value, msgl_args *a, msgl_err *err)
{
    const msgl_setting *o = msgl__option(i);
    void *values = (char *)a + msgl__option_values(i);
    a->given[i] = true;
    if (o->type != MSGL_SETTING_LIST) return msgl__setting_parse(o, source, value, values, err);
    msgl_list *list = (msgl_list *)(void *)((char *)values + o->offset);
    if (list->count == MSGL_MAX_LIST) {
        return msgl__err_set(err, MSGL_ELIMIT, "%s is given more than %d times", source,
                             MSGL_MAX_LIST);
    }
    list->items[list->count++] = value;
    return 0;
}

// Kubernetes sets MINISGL_PORT=tcp://10.0.0.1:1919 in the pods beside a Service named minisgl (and
// Docker for a link of that name): it tells of another server, and is no setting of this one.
static bool is_service_link(const msgl_setting *o, const char *value)
{
    return strcmp(o->name, "port") == 0 &&
           (strncmp(value, "tcp://", 6) == 0 || strncmp(value, "udp://", 6) == 0 ||
            strncmp(value, "sctp://", 7) == 0);
}

static int read_environment(const msgl_command *cmd, msgl_args *out, msgl_err *err)
{
    const msgl_setting *o;
    for (int i = 0; (o = msgl__option(i)) != NULL; i++) {
        if ((o->commands & cmd->bit) == 0 || strcmp(o->name, "help") == 0) continue;
        char env[64];
        msgl__option_env(o, env);
        const char *value = getenv(env);
        if (out->given[i] || value == NULL || *value == '\0') continue;
        if (is_service_link(o, value)) {
            fprintf(stderr,
                    "minisgl: warning: %s=%.100s is the address of a service called minisgl (set "
                    "by Kubernetes or Docker), not a port: ignored\n",
                    env, value);
            continue;
        }
        const int rc = store(i, env, value, out, err);
        if (rc != 0) return rc;
    }
    return 0;
}

// The benchmarks that read an option, if not all or none do: NULL then.
static const char *benchmarks_of(const msgl_setting *o)
{
    return (o->commands & MSGL_BENCH_STEP) != 0      ? "step"
           : (o->commands & MSGL_BENCH_OFFLINE) != 0 ? "offline"
           : (o->commands & MSGL_BENCH_SERVE) != 0   ? "serve"
           : (o->commands & MSGL_BENCH_ATTN) != 0    ? "attn"
           : (o->commands & MSGL_BENCH_ENGINE) != 0  ? "step, decode, prefill, offline"
                                                     : NULL;
}

bool msgl__cli_lists(const char *list, const char *name)
{
    const size_t n = strlen(name);
    for (const char *p = list; p != NULL; p = strchr(p, ',')) {
        p += strspn(p, ", ");
        if (strncmp(p, name, n) == 0 && (p[n] == ',' || p[n] == '\0')) return true;
    }
    return false;
}

// An option of some benchmarks must not be given to another in silence. o: one of those, or NULL.
static int check_benchmark(const msgl_setting *o, const char *sub, msgl_err *err)
{
    if (o == NULL || msgl__cli_lists(benchmarks_of(o), sub)) return 0;
    const char *list = benchmarks_of(o);
    return msgl__err_set(err, MSGL_EINVAL, "bench %.40s does not read --%s; bench %s %s", sub,
                         o->name, list, strchr(list, ',') != NULL ? "do" : "does");
}

// Options of some benchmarks that have been read: the first that is one benchmark's, and the last
// that is several's.
struct own_options {
    const msgl_setting *one, *several;
};

static int add_option(struct own_options *own, const msgl_setting *o, const char *sub,
                      msgl_err *err)
{
    if (benchmarks_of(o) == NULL) return 0;
    if (sub != NULL) return check_benchmark(o, sub, err);
    if (strchr(benchmarks_of(o), ',') != NULL) {
        own->several = o;
    } else if (own->one == NULL) {
        own->one = o;
    }
    if (own->one == NULL) return 0;
    const int rc = check_benchmark(o, benchmarks_of(own->one), err);
    return rc != 0 ? rc : check_benchmark(own->several, benchmarks_of(own->one), err);
}

// A word that is no option: what is measured (bench), or the model. *model: the one so far.
static int take_word(const msgl_command *cmd, const char *word, const struct own_options *own,
                     const char **model, msgl_args *out, msgl_err *err)
{
    if (cmd->bit == MSGL_CMD_BENCH && out->sub == NULL) {
        out->sub = word;
        const int rc = check_benchmark(own->one, word, err);
        return rc != 0 ? rc : check_benchmark(own->several, word, err);
    }
    const int at = find("--model", cmd->bit);
    if (at >= 0 && *model == NULL) {
        *model = word;
        return store(at, "--model", word, out, err);
    }
    return msgl__err_set(err, MSGL_EINVAL, "unexpected argument \"%s\"; see `minisgl %s --help`",
                         word, cmd->name);
}

static int read_command_line(const msgl_command *cmd, int argc, char **argv, msgl_args *out,
                             msgl_err *err)
{
    int rc = 0;
    struct own_options own = {0};
    const char *word = NULL, *flagged = NULL; // the model without and with its flag
    for (int i = 0; rc == 0 && i < argc; i++) {
        char name[64];
        const char *equals = strchr(argv[i], '=');
        const size_t n = equals != NULL ? (size_t)(equals - argv[i]) : strlen(argv[i]);
        if (argv[i][0] != '-') {
            rc = take_word(cmd, argv[i], &own, &word, out, err);
            continue;
        }
        if (n >= sizeof name)
            return msgl__err_set(err, MSGL_EINVAL, "unknown option %.40s...", argv[i]);
        memcpy(name, argv[i], n);
        name[n] = '\0';
        const int at = find(name, cmd->bit);
        if (at < 0) return unknown(cmd, name, err);
        const msgl_setting *o = msgl__option(at);
        const char *value = equals != NULL ? equals + 1 : NULL;
        if (value == NULL && o->type == MSGL_SETTING_FLAG) value = "1";
        if (value == NULL) {
            if (i + 1 >= argc) {
                return msgl__err_set(err, MSGL_EINVAL, "%s needs a value (%s)", name, o->metavar);
            }
            value = argv[++i];
        }
        rc = store(at, name, value, out, err);
        if (rc == 0 && strcmp(o->name, "model") == 0) flagged = value;
        if (rc == 0) rc = add_option(&own, o, out->sub, err);
    }
    if (rc == 0 && word != NULL && flagged != NULL) {
        rc = msgl__err_set(err, MSGL_EINVAL,
                           "two models: \"%.80s\" and --model %.80s; allowed: one", word, flagged);
    }
    return rc;
}

// ---- the file of --config ----

// What a boolean is called in YAML, in any case; else the text as it is.
static const char *lower_boolean(const char *value, char out[8])
{
    size_t n = 0;
    for (; value[n] != '\0' && n < 7; n++) out[n] = (char)tolower((unsigned char)value[n]);
    out[n] = '\0';
    return value[n] == '\0' ? out : value;
}

// The option of an entry; -1 with *err.
static int find_entry(const msgl_command *cmd, const msgl_file_option *e, msgl_err *err)
{
    char name[64];
    const int n = snprintf(name, sizeof name, "--%s", e->key);
    if (n >= (int)sizeof name) {
        msgl__err_set(err, MSGL_EINVAL, "unknown option --%.40s...", e->key);
        return -1;
    }
    for (char *p = name; (p = strchr(p, '_')) != NULL;) *p = '-';
    const int at = find(name, cmd->bit);
    if (at < 0) {
        (void)unknown(cmd, name, err);
        return -1;
    }
    const msgl_setting *o = msgl__option(at);
    if (strcmp(o->name, "help") == 0 || strcmp(o->name, "config") == 0) {
        msgl__err_set(err, MSGL_EINVAL, "%s cannot stand in a file", name);
        return -1;
    }
    return at;
}

// given: by flag or variable, which goes first.
static int take_entry(int at, const msgl_file_option *e, bool given, msgl_args *out, msgl_err *err)
{
    const msgl_setting *o = msgl__option(at);
    char word[8];
    if (e->value == NULL) {
        return msgl__err_set(err, MSGL_EINVAL, "%s has no value (%s)", e->key,
                             o->metavar == NULL ? "true or false" : o->metavar);
    }
    if (e->index >= 0 && o->type != MSGL_SETTING_LIST) {
        return msgl__err_set(err, MSGL_EINVAL, "%s is a list; allowed: one value", e->key);
    }
    const bool checks = out->sub != NULL && benchmarks_of(o) != NULL;
    const int rc = check_benchmark(checks ? o : NULL, out->sub, err);
    if (rc != 0 || given) return rc;
    const bool flag = o->type == MSGL_SETTING_FLAG;
    return store(at, e->key, flag ? lower_boolean(e->value, word) : e->value, out, err);
}

static int read_config(const msgl_command *cmd, msgl_args *out, msgl_err *err)
{
    const char *path = out->config_file;
    int rc = msgl__options_file_read(path, &out->config, err);
    if (rc != 0) return rc;
    bool given[MSGL_MAX_OPTIONS];
    int line[MSGL_MAX_OPTIONS] = {0}; // where each stands
    memcpy(given, out->given, sizeof given);
    for (int i = 0; i < out->config.count; i++) {
        const msgl_file_option *e = &out->config.entries[i];
        const int at = find_entry(cmd, e, err);
        if (at < 0) return msgl__options_file_at(path, e->line, err);
        if (e->index <= 0 && line[at] != 0) {
            msgl__err_set(err, MSGL_EINVAL, "%s is given twice, first in line %d", e->key,
                          line[at]);
            return msgl__options_file_at(path, e->line, err);
        }
        if (line[at] == 0) line[at] = e->line;
        rc = take_entry(at, e, given[at], out, err);
        if (rc != 0) return msgl__options_file_at(path, e->line, err);
    }
    return 0;
}

int msgl__args_parse(const msgl_command *cmd, int argc, char **argv, msgl_args *out, msgl_err *err)
{
    *out = (msgl_args){0};
    for (size_t t = 0; t < MSGL_COUNT(TABLES); t++) {
        msgl__settings_default(TABLES[t].table, (char *)out + TABLES[t].values);
    }
    int rc = read_command_line(cmd, argc, argv, out, err);
    if (rc == 0) rc = read_environment(cmd, out, err);
    if (rc == 0 && out->config_file != NULL) rc = read_config(cmd, out, err);
    if (rc != 0) msgl__args_free(out);
    return rc;
}

void msgl__args_free(msgl_args *a)
{
    msgl__options_file_free(&a->config);
}
