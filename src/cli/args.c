// SPDX-License-Identifier: Apache-2.0
#include "cli/args.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/attributes.h"

void msgl__option_env(const msgl_option *o, char out[64])
{
    size_t n = (size_t)snprintf(out, 64, "MINISGL_");
    for (const char *p = o->names[0] + 2; *p != '\0' && n < 63; p++) {
        out[n++] = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
    }
    out[n] = '\0';
}

static const msgl_option *find(const char *name, unsigned commands)
{
    for (int i = 0; i < msgl__num_options; i++) {
        const msgl_option *o = &msgl__options[i];
        if ((o->commands & commands) == 0) continue;
        for (size_t k = 0; k < MSGL_COUNT(o->names) && o->names[k] != NULL; k++) {
            if (strcmp(name, o->names[k]) == 0) return o;
        }
    }
    return NULL;
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
    const msgl_option *elsewhere = find(name, MSGL_CMD_ALL);
    const char *nearest = NULL;
    int best = 4;
    for (int i = 0; i < msgl__num_options; i++) {
        const msgl_option *o = &msgl__options[i];
        if ((o->commands & cmd->bit) == 0) continue;
        for (size_t k = 0; k < MSGL_COUNT(o->names) && o->names[k] != NULL; k++) {
            const int d = distance(name, o->names[k]);
            if (d < best) {
                best = d;
                nearest = o->names[k];
            }
        }
    }
    if (elsewhere != NULL) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "%s is not an option of `minisgl %s`; see `minisgl %s --help`", name,
                             cmd->name, cmd->name);
    }
    if (nearest != NULL) {
        return msgl__err_set(err, MSGL_EINVAL, "unknown option %s; did you mean %s?", name,
                             nearest);
    }
    return msgl__err_set(err, MSGL_EINVAL, "unknown option %s; see `minisgl %s --help`", name,
                         cmd->name);
}

static int allowed(const char *list, const char *value)
{
    const size_t n = strlen(value);
    for (const char *p = list; p != NULL && n > 0; p = strchr(p, '|')) {
        if (*p == '|') p++;
        if (strncmp(p, value, n) == 0 && (p[n] == '|' || p[n] == '\0')) return 1;
    }
    return 0;
}

// Stores `value` in its field; `source` is the flag or variable as the user wrote it.
static int store(const msgl_option *o, const char *source, const char *value, msgl_args *a,
                 msgl_err *err)
{
    char *field = (char *)a + o->offset;
    char *end = NULL;
    switch (o->type) {
    case MSGL_OPT_FLAG: {
        const int yes = allowed("1|true|yes|on", value), no = allowed("0|false|no|off", value);
        if (!yes && !no && *value != '\0') {
            return msgl__err_set(err, MSGL_EINVAL, "%s is \"%s\"; allowed: 1 or 0", source, value);
        }
        *(bool *)(void *)field = yes;
        return 0;
    }
    case MSGL_OPT_STRING: *(const char **)(void *)field = value; return 0;
    case MSGL_OPT_ENUM:
        if (!allowed(o->allowed, value)) {
            return msgl__err_set(err, MSGL_EINVAL, "%s is \"%s\"; allowed: %s", source, value,
                                 o->allowed);
        }
        *(const char **)(void *)field = value;
        return 0;
    case MSGL_OPT_LIST: {
        msgl_list *list = (msgl_list *)(void *)field;
        if (list->count == MSGL_MAX_LIST) {
            return msgl__err_set(err, MSGL_ELIMIT, "%s is given more than %d times", source,
                                 MSGL_MAX_LIST);
        }
        list->items[list->count++] = value;
        return 0;
    }
    case MSGL_OPT_INT: {
        errno = 0;
        const long long v = strtoll(value, &end, 10);
        if (end == value || *end != '\0' || errno != 0 || (double)v < o->min ||
            (double)v > o->max) {
            return msgl__err_set(err, MSGL_EINVAL,
                                 "%s is \"%s\"; allowed: a whole number from %.0f to %.0f", source,
                                 value, o->min, o->max);
        }
        *(int64_t *)(void *)field = v;
        return 0;
    }
    case MSGL_OPT_REAL: {
        const double v = strtod(value, &end);
        if (end == value || *end != '\0' || !(v >= o->min && v <= o->max)) {
            return msgl__err_set(err, MSGL_EINVAL, "%s is \"%s\"; allowed: a number from %g to %g",
                                 source, value, o->min, o->max);
        }
        *(double *)(void *)field = v;
        return 0;
    }
    }
    return MSGL_EINTERNAL;
}

// Kubernetes sets MINISGL_PORT=tcp://10.0.0.1:1919 in the pods beside a Service named minisgl (and
// Docker for a link of that name): it tells of another server, and is no setting of this one.
static bool is_service_link(const msgl_option *o, const char *value)
{
    return strcmp(o->names[0], "--port") == 0 &&
           (strncmp(value, "tcp://", 6) == 0 || strncmp(value, "udp://", 6) == 0 ||
            strncmp(value, "sctp://", 7) == 0);
}

static int read_environment(const msgl_command *cmd, msgl_args *out, msgl_err *err)
{
    for (int i = 0; i < msgl__num_options; i++) {
        const msgl_option *o = &msgl__options[i];
        if ((o->commands & cmd->bit) == 0 || strcmp(o->names[0], "--help") == 0) continue;
        char env[64];
        msgl__option_env(o, env);
        const char *value = getenv(env);
        if (value == NULL || *value == '\0') continue;
        if (is_service_link(o, value)) {
            fprintf(stderr,
                    "minisgl: warning: %s=%.100s is the address of a service called minisgl (set "
                    "by Kubernetes or Docker), not a port: ignored\n",
                    env, value);
            continue;
        }
        const int rc = store(o, env, value, out, err);
        if (rc != 0) return rc;
    }
    return 0;
}

// The only benchmark that reads an option; NULL: there are others, or none does.
static const char *benchmark_of(const msgl_option *o)
{
    return (o->commands & MSGL_BENCH_STEP) != 0      ? "step"
           : (o->commands & MSGL_BENCH_OFFLINE) != 0 ? "offline"
           : (o->commands & MSGL_BENCH_SERVE) != 0   ? "serve"
           : (o->commands & MSGL_BENCH_ATTN) != 0    ? "attn"
                                                     : NULL;
}

// An option of one benchmark must not be given to another in silence. own: one of its own, or NULL.
static int check_benchmark(const msgl_option *own, const char *sub, msgl_err *err)
{
    if (own == NULL || strcmp(benchmark_of(own), sub) == 0) return 0;
    return msgl__err_set(err, MSGL_EINVAL, "bench %.40s does not read %s; bench %s does", sub,
                         own->names[0], benchmark_of(own));
}

int msgl__args_parse(const msgl_command *cmd, int argc, char **argv, msgl_args *out, msgl_err *err)
{
    msgl__args_default(out);
    int rc = read_environment(cmd, out, err);
    bool lists_from_argv = false;
    const msgl_option *own = NULL; // the first option that is one benchmark's own
    for (int i = 0; rc == 0 && i < argc; i++) {
        char name[64];
        const char *equals = strchr(argv[i], '=');
        const size_t n = equals != NULL ? (size_t)(equals - argv[i]) : strlen(argv[i]);
        if (argv[i][0] != '-') {
            if (cmd->bit == MSGL_CMD_BENCH && out->sub == NULL) {
                out->sub = argv[i];
                rc = check_benchmark(own, out->sub, err);
                continue;
            }
            return msgl__err_set(err, MSGL_EINVAL,
                                 "unexpected argument \"%s\"; see `minisgl %s --help`", argv[i],
                                 cmd->name);
        }
        if (n >= sizeof name)
            return msgl__err_set(err, MSGL_EINVAL, "unknown option %.40s...", argv[i]);
        memcpy(name, argv[i], n);
        name[n] = '\0';
        const msgl_option *o = find(name, cmd->bit);
        if (o == NULL) return unknown(cmd, name, err);
        const char *value = equals != NULL ? equals + 1 : NULL;
        if (value == NULL && o->type == MSGL_OPT_FLAG) value = "1";
        if (value == NULL) {
            if (i + 1 >= argc) {
                return msgl__err_set(err, MSGL_EINVAL, "%s needs a value (%s)", name, o->metavar);
            }
            value = argv[++i];
        }
        if (o->type == MSGL_OPT_LIST &&
            !lists_from_argv) { // flags replace a list from the environment
            out->prompts.count = out->stop.count = 0;
            lists_from_argv = true;
        }
        rc = store(o, name, value, out, err);
        if (rc != 0 || benchmark_of(o) == NULL) continue;
        if (own == NULL) own = o;
        rc = check_benchmark(o, out->sub != NULL ? out->sub : benchmark_of(own), err);
    }
    return rc;
}

// Prints `text` wrapped at 96 columns behind `indent` blanks.
static void wrap(FILE *out, const char *text, int indent)
{
    int column = indent;
    while (*text != '\0') {
        const size_t word = strcspn(text, " ");
        if (column > indent && column + 1 + (int)word > 96) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            fputc(' ', out);
            column++;
        }
        fprintf(out, "%.*s", (int)word, text);
        column += (int)word;
        text += word;
        while (*text == ' ') text++;
    }
    fputc('\n', out);
}

static void names_of(const msgl_option *o, const char *separator, char *out, size_t size)
{
    size_t n = 0;
    for (size_t k = 0; k < MSGL_COUNT(o->names) && o->names[k] != NULL; k++) {
        n += (size_t)snprintf(out + n, size - n, "%s%s", k > 0 ? separator : "", o->names[k]);
    }
    if (o->type == MSGL_OPT_ENUM) {
        snprintf(out + n, size - n, " %s", o->allowed);
    } else if (o->metavar != NULL) {
        snprintf(out + n, size - n, " %s", o->metavar);
    }
}

void msgl__help_command(const msgl_command *cmd, FILE *out)
{
    fprintf(out, "minisgl %s %s\n\n%s\n", cmd->name, cmd->usage, cmd->summary);
    const char *group = "";
    for (int i = 0; i < msgl__num_options; i++) {
        const msgl_option *o = &msgl__options[i];
        if ((o->commands & cmd->bit) == 0) continue;
        if (strcmp(group, o->group) != 0) fprintf(out, "\n%s:\n", o->group);
        group = o->group;
        char names[128];
        names_of(o, ", ", names, sizeof names);
        fprintf(out, "  %s\n%6s", names, "");
        wrap(out, o->help, 6);
    }
    fprintf(out,
            "\nEach option can also be set by a variable: --max-tokens is MINISGL_MAX_TOKENS.\n");
}

// What is read from the environment beside the options' own variables.
static const struct {
    const char *names, *values, *meaning;
} VARIABLES[] = {
    {"`MINISGL_LOG`", "`error`, `warn`, `info`, `debug`",
     "what is logged on standard error (default info)"},
    {"`MINISGL_CPU`", "`ref`, `avx2`, `avx512`, `avx512bf16`, `amx`",
     "the CPU kernels to use (default: the best that the machine has)"},
    {"`MINISGL_PLUGIN_DIR`", "a folder",
     "where the GPU plug-ins are (default: beside the program, else in ../lib/minisgl)"},
    {"`XDG_CACHE_HOME`", "a folder",
     "minisgl/ in it keeps the GPU's measured algorithms (default ~/.cache)"},
    {"`HF_HUB_CACHE`, `HF_HOME`", "a folder",
     "the local Hugging Face cache, or the folder that holds it as hub/ (default "
     "~/.cache/huggingface)"},
    {"`FLASHINFER_USE_TENSOR_CORES`", "`0`, `1`, `false`, `true`, `off`, `on`",
     "which of its decode kernels the GPU backend fi takes (default: by the group size)"},
    {"`NO_COLOR`", "anything", "no colour on a terminal"},
};

static void environment_markdown(FILE *out)
{
    fprintf(out, "\n## Environment\n\nBeside the options' variables:\n\n| variable | values | "
                 "meaning |\n|---|---|---|\n");
    for (size_t i = 0; i < MSGL_COUNT(VARIABLES); i++) {
        fprintf(out, "| %s | %s | %s |\n", VARIABLES[i].names, VARIABLES[i].values,
                VARIABLES[i].meaning);
    }
}

void msgl__help_markdown(const msgl_command *commands, int n, FILE *out)
{
    fprintf(out,
            "# Command line\n\nWritten by `minisgl help --markdown` from the table that also "
            "parses the "
            "options and prints `--help`.\nA value comes from its flag, else from its variable, "
            "else it is "
            "the default. Exit codes: 0 done, 1 failed, 2 wrong\narguments, 130 interrupted.\n");
    for (int c = 0; c < n; c++) {
        fprintf(out,
                "\n## minisgl %s\n\n`minisgl %s %s`\n\n%s\n\n| option | variable | meaning "
                "|\n|---|---|---|\n",
                commands[c].name, commands[c].name, commands[c].usage, commands[c].summary);
        for (int i = 0; i < msgl__num_options; i++) {
            const msgl_option *o = &msgl__options[i];
            if ((o->commands & commands[c].bit) == 0) continue;
            char names[128], env[64];
            names_of(o, "`, `", names, sizeof names);
            msgl__option_env(o, env);
            fprintf(out, "| `");
            for (const char *p = names; *p != '\0'; p++) fprintf(out, *p == '|' ? "\\|" : "%c", *p);
            fprintf(out, "` | `%s` | %s |\n", env, o->help);
        }
    }
    environment_markdown(out);
}
