// SPDX-License-Identifier: Apache-2.0
#include "cli/args.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options.h"
#include "cli/spellings.h"
#include "core/attributes.h"

static const struct {
    const msgl_setting_table *table;
    size_t values; // where in msgl_args its values are
} TABLES[] = {
    {&msgl__engine_settings, offsetof(msgl_args, engine)},
    {&msgl__model_options, 0},
    {&msgl__server_options, 0},
    {&msgl__request_options, 0},
    {&msgl__bench_options, 0},
    {&msgl__help_options, 0},
    {&msgl__sampling_settings, offsetof(msgl_args, sampling)},
};

// The table of option *i, which becomes the row in it: with 60 rows in the first table and 5 in
// the second, option 70 is row 5 of the third. Past the last row the result is no table.
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

// The option of these commands that a flag means; -1: none. *as: the row of spellings.c that it is
// found by; NULL: it is minisgl's own name.
static int find(const char *flag, unsigned commands, const msgl_spelling **as)
{
    const msgl_setting *o;
    const msgl_spelling *s;
    *as = NULL;
    for (int k = 0; (s = msgl__spelling(k)) != NULL; k++) {
        if (s->option == NULL || strcmp(flag, s->flag) != 0) continue;
        for (int i = 0; (o = msgl__option(i)) != NULL; i++) {
            if ((o->commands & commands) == 0 || strcmp(o->name, s->option) != 0) continue;
            *as = s;
            return i;
        }
    }
    for (int i = 0; strncmp(flag, "--", 2) == 0 && (o = msgl__option(i)) != NULL; i++) {
        if ((o->commands & commands) != 0 && strcmp(flag + 2, o->name) == 0) return i;
    }
    return -1;
}

// The number of edits between two words of up to 63 letters (Levenshtein), for "did you mean".
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

// The known flag that is spelled most like this one, "" if none is near: less than a third of its
// letters are others, and not more than three.
static void find_nearest(const msgl_command *cmd, const char *name, char nearest[64])
{
    int best = (int)strlen(name) / 3 + 1;
    if (best > 4) best = 4;
    nearest[0] = '\0';
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
            snprintf(nearest, 64, "%s", spelling);
        }
    }
}

static int unknown(const msgl_command *cmd, const char *name, msgl_err *err)
{
    const msgl_spelling *as;
    char nearest[64];
    if (find(name, MSGL_CMD_ALL, &as) >= 0) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "%s is not an option of `minisgl %s`; see `minisgl %s --help`", name,
                             cmd->name, cmd->name);
    }
    as = msgl__spelling_find(name);
    if (as != NULL) {
        return msgl__err_set(err, MSGL_EINVAL, "%s, an option of %s, is none of minisgl: %s", name,
                             as->of, as->help);
    }
    find_nearest(cmd, name, nearest);
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

// The same for a value in the spelling of another project, `as`; NULL: it is minisgl's own.
static int store_spelled(int i, const msgl_spelling *as, const char *source, const char *value,
                         msgl_args *a, msgl_err *err)
{
    char number[64];
    if (as == NULL) return store(i, source, value, a, err);
    const int rc = msgl__spelling_value(as, value, number, &value, err);
    if (rc != 0 || value == NULL) return rc;
    if (as->all_slots) a->context_shared = true;
    return store(i, source, value, a, err);
}

// Whether a flag of another project asks for what minisgl always does. It is named, and changes
// nothing.
static bool is_ignored(const char *flag)
{
    const msgl_spelling *as = msgl__spelling_find(flag);
    if (as == NULL || !as->ignored) return false;
    fprintf(stderr, "minisgl: %s changes nothing: %s\n", flag, as->help);
    return true;
}

// Whether a variable is the address of another server: Kubernetes sets
// MINISGL_PORT=tcp://10.0.0.1:1919 in the pods beside a Service named minisgl, and Docker does for
// a link of that name.
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

// The benchmarks that read an option; NULL: all or none of them do.
static const char *benchmarks_of(const msgl_setting *o)
{
    return (o->commands & MSGL_BENCH_STEP) != 0          ? "step"
           : (o->commands & MSGL_BENCH_OFFLINE) != 0     ? "offline"
           : (o->commands & MSGL_BENCH_SERVE) != 0       ? "serve"
           : (o->commands & MSGL_BENCH_ATTN) != 0        ? "attn"
           : (o->commands & MSGL_BENCH_SPECULATION) != 0 ? "speculation"
           : (o->commands & MSGL_BENCH_ANSWERS) != 0     ? "offline, serve, speculation"
           : (o->commands & MSGL_BENCH_DRAFTS) != 0      ? "step, offline, serve, speculation"
           : (o->commands & MSGL_BENCH_ENGINE) != 0      ? "step, decode, prefill, offline"
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

// Refuses an option of some benchmarks for another one, which would read over it in silence. o
// NULL: fine.
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

// Takes a word that is no option: what is measured (bench), or the model, which *model becomes.
static int take_word(const msgl_command *cmd, const char *word, const struct own_options *own,
                     const char **model, msgl_args *out, msgl_err *err)
{
    const msgl_spelling *as;
    if (cmd->bit == MSGL_CMD_HELP && out->sub == NULL) {
        out->sub = word;
        return 0;
    }
    if (cmd->bit == MSGL_CMD_BENCH && out->sub == NULL) {
        out->sub = word;
        const int rc = check_benchmark(own->one, word, err);
        return rc != 0 ? rc : check_benchmark(own->several, word, err);
    }
    const int at = find("--model", cmd->bit, &as);
    if (at >= 0 && *model == NULL) {
        *model = word;
        return store(at, "--model", word, out, err);
    }
    return msgl__err_set(err, MSGL_EINVAL, "unexpected argument \"%s\"; see `minisgl %s --help`",
                         word, cmd->name);
}

// The value of the flag argv[*i]: what is behind its "=", what it stands for by itself, or the next
// word, which *i becomes. NULL: there is none.
static const char *value_of(const msgl_setting *o, const msgl_spelling *as, int argc, char **argv,
                            int *i)
{
    const char *equals = strchr(argv[*i], '=');
    if (as != NULL && as->value != NULL) return equals == NULL ? as->value : NULL;
    if (equals != NULL) return equals + 1;
    if (o->type == MSGL_SETTING_FLAG && (as == NULL || as->values == NULL)) return "1";
    return *i + 1 < argc ? argv[++*i] : NULL;
}

// Takes the word argv[*i], which begins with "-", and its value. *model becomes what --model says.
static int take_flag(const msgl_command *cmd, int argc, char **argv, int *i,
                     struct own_options *own, const char **model, msgl_args *out, msgl_err *err)
{
    char name[64];
    const msgl_spelling *as;
    const size_t n = strcspn(argv[*i], "=");
    if (n >= sizeof name)
        return msgl__err_set(err, MSGL_EINVAL, "unknown option %.40s...", argv[*i]);
    memcpy(name, argv[*i], n);
    name[n] = '\0';
    const int at = find(name, cmd->bit, &as);
    if (at < 0) return is_ignored(name) ? 0 : unknown(cmd, name, err);
    const msgl_setting *o = msgl__option(at);
    const char *value = value_of(o, as, argc, argv, i);
    if (value == NULL && as != NULL && as->value != NULL) {
        return msgl__err_set(err, MSGL_EINVAL, "%s takes no value; it is --%s %s", name, as->option,
                             as->value);
    }
    if (value == NULL) {
        return msgl__err_set(err, MSGL_EINVAL, "%s needs a value (%s)", name,
                             as != NULL && as->only != NULL ? as->only : o->metavar);
    }
    int rc = store_spelled(at, as, name, value, out, err);
    // SGLang's and vLLM's form: several words behind one flag.
    while (rc == 0 && strcmp(o->name, "lora-paths") == 0 && *i + 1 < argc &&
           argv[*i + 1][0] != '-' && strchr(argv[*i + 1], '=') != NULL) {
        rc = store_spelled(at, as, name, argv[++*i], out, err);
    }
    if (rc == 0 && strcmp(o->name, "model") == 0) *model = value;
    return rc == 0 ? add_option(own, o, out->sub, err) : rc;
}

static int read_command_line(const msgl_command *cmd, int argc, char **argv, msgl_args *out,
                             msgl_err *err)
{
    int rc = 0;
    struct own_options own = {0};
    const char *word = NULL, *flagged = NULL; // the model without and with its flag
    for (int i = 0; rc == 0 && i < argc; i++) {
        rc = argv[i][0] != '-' ? take_word(cmd, argv[i], &own, &word, out, err)
                               : take_flag(cmd, argc, argv, &i, &own, &flagged, out, err);
    }
    if (rc == 0 && word != NULL && flagged != NULL) {
        rc = msgl__err_set(err, MSGL_EINVAL,
                           "two models: \"%.80s\" and --model %.80s; allowed: one", word, flagged);
    }
    return rc;
}

// ---- the file of --config ----

// The text in lower case if it may be a boolean of YAML, which has them in any case; else as it is.
static const char *lower_boolean(const char *value, char out[8])
{
    size_t n = 0;
    for (; value[n] != '\0' && n < 7; n++) out[n] = (char)tolower((unsigned char)value[n]);
    out[n] = '\0';
    return value[n] == '\0' ? out : value;
}

enum { ENTRY_WRONG = -1, ENTRY_IGNORED = -2 };

// The option of an entry of the file, and how it is spelled; or one of the above, the first with
// *err.
static int find_entry(const msgl_command *cmd, const msgl_file_option *e, const msgl_spelling **as,
                      msgl_err *err)
{
    char name[64];
    const int n = snprintf(name, sizeof name, "--%s", e->key);
    if (n >= (int)sizeof name) {
        msgl__err_set(err, MSGL_EINVAL, "unknown option --%.40s...", e->key);
        return ENTRY_WRONG;
    }
    for (char *p = name; (p = strchr(p, '_')) != NULL;) *p = '-';
    const int at = find(name, cmd->bit, as);
    if (at < 0) {
        if (is_ignored(name)) return ENTRY_IGNORED;
        (void)unknown(cmd, name, err);
        return ENTRY_WRONG;
    }
    const msgl_setting *o = msgl__option(at);
    if (strcmp(o->name, "help") == 0 || strcmp(o->name, "config") == 0) {
        msgl__err_set(err, MSGL_EINVAL, "%s cannot stand in a file", name);
        return ENTRY_WRONG;
    }
    return at;
}

// Stores an entry of the file, unless a flag or a variable, which count more, has given the option.
static int take_entry(int at, const msgl_spelling *as, const msgl_file_option *e, bool given,
                      msgl_args *out, msgl_err *err)
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
    const bool flag = o->type == MSGL_SETTING_FLAG && (as == NULL || as->values == NULL);
    if (as != NULL && as->value != NULL) { // "disable-radix-cache: true"
        if (strcmp(lower_boolean(e->value, word), "true") == 0) {
            return store(at, e->key, as->value, out, err);
        }
        return msgl__err_set(err, MSGL_EINVAL, "%s is \"%.60s\"; allowed: true, for %s: %s", e->key,
                             e->value, as->option, as->value);
    }
    return store_spelled(at, as, e->key, flag ? lower_boolean(e->value, word) : e->value, out, err);
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
        const msgl_spelling *as;
        const int at = find_entry(cmd, e, &as, err);
        if (at == ENTRY_IGNORED) continue;
        if (at < 0) return msgl__options_file_at(path, e->line, err);
        if (e->index <= 0 && line[at] != 0) {
            msgl__err_set(err, MSGL_EINVAL, "%s is given twice, first in line %d", e->key,
                          line[at]);
            return msgl__options_file_at(path, e->line, err);
        }
        if (line[at] == 0) line[at] = e->line;
        rc = take_entry(at, as, e, given[at], out, err);
        if (rc != 0) return msgl__options_file_at(path, e->line, err);
    }
    return 0;
}

// Divides a context that was given as llama-server's, which all requests share, by their number: -c
// 8192 -np 4 is 2048 tokens for each.
static int share_context(msgl_args *a, msgl_err *err)
{
    const int n = a->engine.max_running;
    if (!a->context_shared || !msgl__args_given(a, &a->engine.max_running)) return 0;
    if (a->engine.max_seq_len == 0 || a->engine.max_seq_len / n >= 2) {
        a->engine.max_seq_len /= n;
        return 0;
    }
    return msgl__err_set(err, MSGL_EINVAL,
                         "--ctx-size is %d for %d requests at once; allowed: at least 2 tokens for "
                         "each",
                         a->engine.max_seq_len, n);
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
    if (rc == 0) rc = share_context(out, err);
    if (rc != 0) msgl__args_free(out);
    return rc;
}

void msgl__args_free(msgl_args *a)
{
    msgl__options_file_free(&a->config);
}
