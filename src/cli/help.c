// SPDX-License-Identifier: Apache-2.0
//
// What the options' tables say to people: --help, docs/cli.md, the manual page, and what a shell
// completes.
#include <ctype.h>
#include <string.h>

#include "cli/args.h"
#include "cli/spellings.h"
#include "core/attributes.h"

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

enum { NAMES_SIZE = 1024 }; // of what names_of writes: the forms of calls have some 60 names

// The flags of an option and its value: "--format, -o md|csv|json".
static void names_of(const msgl_setting *o, const char *separator, char *out, size_t size)
{
    const char *alias, *value = o->choices != NULL ? o->choices : o->metavar;
    size_t n = (size_t)snprintf(out, size, "--%s", o->name);
    for (int k = 0; n < size && (alias = msgl__option_alias(o, k)) != NULL; k++) {
        n += (size_t)snprintf(out + n, size - n, "%s%s", separator, alias);
    }
    if (n < size && value != NULL) snprintf(out + n, size - n, " %s", value);
}

// Appends a and b to a text of n bytes in `size`; the length that it has, or would have, then.
static size_t append(char *out, size_t size, size_t n, const char *a, const char *b)
{
    if (n >= size) return n;
    return n + (size_t)snprintf(out + n, size - n, "%s%s", a, b);
}

// Appends to an option's help the flags of other projects that are it with other values, or not
// quite. Those of which the same is to be said stand together.
static void spelled_elsewhere(const msgl_setting *o, char *out, size_t size)
{
    const msgl_spelling *s;
    size_t n = strlen(out);
    bool same = false; // as the row before says
    for (int i = 0; (s = msgl__spelling(i)) != NULL; i++) {
        if (s->option == NULL || strcmp(s->option, o->name) != 0 ||
            (s->help == NULL && s->value == NULL)) {
            continue;
        }
        const msgl_spelling *next = msgl__spelling(i + 1);
        const bool own = strncmp(s->flag, "--", 2) == 0 && strcmp(s->flag + 2, o->name) == 0;
        n = append(out, size, n, same ? ", " : "; ", own ? "" : s->flag);
        same = next != NULL && next->option != NULL && next->help == s->help &&
               next->value == s->value && strcmp(next->option, s->option) == 0;
        if (!same) n = append(out, size, n, own ? "" : ": ", s->help != NULL ? s->help : s->value);
    }
}

// The help of an option, with its default at the end.
static void help_of(const msgl_setting *o, char *out, size_t size)
{
    char value[64] = "";
    const char *more = o->by_default != NULL ? o->by_default : "";
    const bool number = o->type == MSGL_SETTING_INT || o->type == MSGL_SETTING_REAL;
    if (o->preset_text != NULL) snprintf(value, sizeof value, " %s", o->preset_text);
    if (number && !o->unset) snprintf(value, sizeof value, " %.10g", o->preset);
    if (value[0] == '\0' && *more == '\0') {
        snprintf(out, size, "%s", o->help);
    } else {
        snprintf(out, size, "%s (default%s%s)", o->help, value, more);
    }
    spelled_elsewhere(o, out, size);
}

// Puts the options of these commands into `out`, group by group; how many there are.
static int in_order(unsigned commands, const msgl_setting *out[MSGL_MAX_OPTIONS])
{
    static const char *const GROUPS[] = {"model", "engine", "server", "requests", "bench", "help"};
    const msgl_setting *o;
    int n = 0;
    for (size_t g = 0; g < MSGL_COUNT(GROUPS); g++) {
        for (int i = 0; (o = msgl__option(i)) != NULL; i++) {
            if ((o->commands & commands) != 0 && strcmp(o->group, GROUPS[g]) == 0) out[n++] = o;
        }
    }
    return n;
}

// An option's names and choices as lines of a terminal, which end behind a choice.
static void put_names(FILE *out, const char *names)
{
    enum { COLUMNS = 96, INDENT = 2 };
    const char *line = names;
    while (strlen(line) > COLUMNS - INDENT) {
        size_t n = COLUMNS - INDENT;
        while (n > 0 && line[n - 1] != '|') n--;
        if (n == 0) break;
        fprintf(out, "%*s%.*s\n", line == names ? INDENT : 2 * INDENT, "", (int)n, line);
        line += n;
    }
    fprintf(out, "%*s%s", line == names ? INDENT : 2 * INDENT, "", line);
}

void msgl__help_command(const msgl_command *cmd, FILE *out)
{
    fprintf(out, "minisgl %s %s\n\n%s\n", cmd->name, cmd->usage, cmd->summary);
    const msgl_setting *options[MSGL_MAX_OPTIONS];
    const int n = in_order(cmd->bit, options);
    const char *group = "";
    for (int i = 0; i < n; i++) {
        const msgl_setting *o = options[i];
        if (strcmp(group, o->group) != 0) fprintf(out, "\n%s:\n", o->group);
        group = o->group;
        char names[NAMES_SIZE], help[1024];
        names_of(o, ", ", names, sizeof names);
        help_of(o, help, sizeof help);
        put_names(out, names);
        fprintf(out, "\n%6s", "");
        wrap(out, help, 6);
    }
    fprintf(out, "\nEach option can also be set by a variable (--max-tokens is MINISGL_MAX_TOKENS) "
                 "or in the "
                 "file of --config.\n");
}

// The variables that are read beside the options' own.
static const struct {
    const char *names, *values, *meaning;
} VARIABLES[] = {
    {"`MINISGL_LOG`", "`error`, `warn`, `info`, `debug`",
     "what is logged on standard error (default info)"},
    {"`MINISGL_CPU`", "`ref`, `avx2`, `avx512`, `avx512vnni`, `avx512bf16`, `amx`",
     "the CPU kernels to use (default: the best that the machine has)"},
    {"`MINISGL_PLUGIN_DIR`", "a folder",
     "where the plug-ins are (default: beside the program, else in ../lib/minisgl)"},
    {"`XDG_STATE_HOME`", "a folder",
     "minisgl/ in it keeps what was entered in `minisgl chat` (default ~/.local/state)"},
    {"`XDG_CACHE_HOME`", "a folder",
     "minisgl/ in it keeps the GPU's measured algorithms, huggingface/ is HF_HOME (default "
     "~/.cache)"},
    {"`HF_HUB_CACHE`, `HF_HOME`", "a folder",
     "the local Hugging Face cache, or the folder that holds it as hub/ (default "
     "~/.cache/huggingface)"},
    {"`HF_TOKEN`", "a token",
     "what gated and private models of the hub want (default: the file token in HF_HOME); only "
     "HF_ENDPOINT's host sees it"},
    {"`HF_ENDPOINT`", "an address", "the hub, or a mirror of it (default https://huggingface.co)"},
    {"`HF_HUB_OFFLINE`", "`1`, `0`",
     "1: nothing is downloaded, of either hub; the cache has it or not"},
    {"`SSL_CERT_FILE`", "a file",
     "certificates that hubs are trusted by (default: where the system has them)"},
    {"`VLLM_USE_MODELSCOPE`, `SGLANG_USE_MODELSCOPE`", "`true`, `1`",
     "names of models are ModelScope's, where --model-source says nothing"},
    {"`MODELSCOPE_CACHE`", "a folder", "ModelScope's local cache (default ~/.cache/modelscope)"},
    {"`MODELSCOPE_API_TOKEN`", "a token",
     "what private models of ModelScope want; only its own address sees it"},
    {"`MODELSCOPE_ENDPOINT`, `MODELSCOPE_DOMAIN`", "an address; or a host",
     "where ModelScope is (default https://modelscope.cn)"},
    {"`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`, `OTEL_EXPORTER_OTLP_ENDPOINT` and others", "URLs, ...",
     "where spans of requests go (docs/traces.md)"},
    {"`MINISGL_FLASHINFER_USE_TENSOR_CORES`, `FLASHINFER_USE_TENSOR_CORES`",
     "`0`, `1`, `false`, `true`, `no`, `yes`, `off`, `on`",
     "which of its decode kernels the GPU backend fi takes (default: by the group size)"},
    {"`MINISGL_DUAL_CHUNK_KEYS`", "`plain`, `scaled`",
     "how Qwen2.5-1M's keys are stored: `scaled` as its original does (default plain)"},
    {"`MINISGL_LATENT_PROMPTS`", "`absorbed`, `expanded`",
     "how prompts over latent caches are computed, for measurements (default: what is cheaper)"},
    {"`OMPI_COMM_WORLD_RANK` and `OMPI_COMM_WORLD_SIZE`; `SLURM_PROCID` and "
     "`SLURM_STEP_NUM_TASKS`; `PMI_RANK` and `PMI_SIZE`",
     "numbers", "set by mpirun and srun: which of the ranks of a model this process is"},
    {"`TERM`", "a terminal's name", "how `minisgl chat` edits lines; dumb: pastes are not marked"},
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
            "else from the file of `--config`, else it is "
            "the default. Exit codes: 0 done, 1 failed, 2 wrong\narguments, 130 interrupted.\n");
    for (int c = 0; c < n; c++) {
        fprintf(out,
                "\n## minisgl %s\n\n`minisgl %s %s`\n\n%s\n\n| option | variable | meaning "
                "|\n|---|---|---|\n",
                commands[c].name, commands[c].name, commands[c].usage, commands[c].summary);
        const msgl_setting *options[MSGL_MAX_OPTIONS];
        const int num = in_order(commands[c].bit, options);
        for (int i = 0; i < num; i++) {
            const msgl_setting *o = options[i];
            char names[NAMES_SIZE], env[64], help[1024];
            names_of(o, "`, `", names, sizeof names);
            msgl__option_env(o, env);
            help_of(o, help, sizeof help);
            fprintf(out, "| `");
            for (const char *p = names; *p != '\0'; p++) fprintf(out, *p == '|' ? "\\|" : "%c", *p);
            fprintf(out, "` | `%s` | %s |\n", env, help);
        }
    }
    environment_markdown(out);
}

// ---- the manual page ----

// Writes a line for roff: its own characters are escaped, and the ` that Markdown has is left out.
static void put_roff(FILE *out, const char *text)
{
    if (*text == '.' || *text == '\'') fputs("\\&", out);
    for (; *text != '\0'; text++) {
        if (*text == '\\') {
            fputs("\\e", out);
        } else if (*text == '|') { // of many choices: a line may end behind each
            fputs("|\\:", out);
        } else if (*text == '-') {
            fputs("\\-", out);
        } else if (*text != '`') {
            fputc(*text, out);
        }
    }
    fputc('\n', out);
}

// The commands that read an option: "chat, run".
static void readers_of(const msgl_setting *o, const msgl_command *commands, int n, char *out,
                       size_t size)
{
    size_t len = 0;
    out[0] = '\0';
    for (int c = 0; c < n && len < size; c++) {
        if ((o->commands & commands[c].bit) == 0) continue;
        len +=
            (size_t)snprintf(out + len, size - len, "%s%s", len > 0 ? ", " : "", commands[c].name);
    }
}

static void options_man(const msgl_command *commands, int n, FILE *out)
{
    const msgl_setting *options[MSGL_MAX_OPTIONS];
    const int num = in_order(MSGL_CMD_ALL, options);
    const char *group = "";
    fputs(".SH OPTIONS\n", out);
    put_roff(out,
             "Each can also be set by a variable (--max-tokens is MINISGL_MAX_TOKENS) or in the "
             "file of --config. The commands that read an option stand behind it.");
    for (int i = 0; i < num; i++) {
        const msgl_setting *o = options[i];
        char names[NAMES_SIZE], text[1024], readers[128];
        if (strcmp(group, o->group) != 0) fprintf(out, ".SS %s\n", o->group);
        group = o->group;
        names_of(o, ", ", names, sizeof names);
        help_of(o, text, sizeof text);
        readers_of(o, commands, n, readers, sizeof readers);
        fputs(".TP\n.B ", out);
        put_roff(out, names);
        put_roff(out, text);
        fprintf(out, ".br\n.I %s\n", readers);
    }
}

void msgl__help_man(const msgl_command *commands, int n, const char *version, FILE *out)
{
    fprintf(
        out,
        ".TH MINISGL 1 \"\" \"minisgl %s\"\n.ad l\n.SH NAME\nminisgl \\- an LLM serving engine\n"
        ".SH SYNOPSIS\n.B minisgl\n.I COMMAND\n[options]\n.SH COMMANDS\n",
        version);
    for (int c = 0; c < n; c++) {
        char line[256];
        snprintf(line, sizeof line, "%s %s", commands[c].name, commands[c].usage);
        fputs(".TP\n.B ", out);
        put_roff(out, line);
        put_roff(out, commands[c].summary);
    }
    options_man(commands, n, out);
    fputs(".SH ENVIRONMENT\n", out);
    for (size_t i = 0; i < MSGL_COUNT(VARIABLES); i++) {
        char text[256];
        fputs(".TP\n.B ", out);
        put_roff(out, VARIABLES[i].names);
        snprintf(text, sizeof text, "%s: %s", VARIABLES[i].values, VARIABLES[i].meaning);
        put_roff(out, text);
    }
    fputs(".SH EXIT STATUS\n0 done, 1 failed, 2 wrong arguments, 130 interrupted.\n", out);
}

// ---- completion ----

// Writes the choices "a|b" as the words "a b".
static void put_choices(FILE *out, const char *choices, size_t len)
{
    for (size_t i = 0; i < len; i++) fputc(choices[i] == '|' ? ' ' : choices[i], out);
}

// Completes the value of a flag: one of its choices, or, if it has none, a file, as bash itself
// does.
static void values_bash(FILE *out)
{
    const msgl_setting *o;
    fputs("    case $prev in\n", out);
    for (int i = 0; (o = msgl__option(i)) != NULL; i++) {
        if (o->name == NULL || o->choices == NULL) continue;
        fprintf(out, "    --%s) words=\"", o->name);
        put_choices(out, o->choices, strlen(o->choices));
        fputs("\" ;;\n", out);
    }
    fputs("    -o", out); // of --format and of --output
    for (int i = 0; (o = msgl__option(i)) != NULL; i++) {
        const char *alias;
        if (o->name == NULL || o->choices != NULL || o->type == MSGL_SETTING_FLAG) continue;
        fprintf(out, " | \\\n        --%s", o->name);
        for (int k = 0; (alias = msgl__option_alias(o, k)) != NULL; k++) {
            if (strcmp(alias, "-o") != 0) fprintf(out, " | %s", alias);
        }
    }
    fputs(") return ;;\n    esac\n", out);
}

void msgl__help_bash(const msgl_command *commands, int n, FILE *out)
{
    fputs("# Completion for bash, written by `minisgl help --completion bash`.\n"
          "_minisgl() {\n"
          "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} words=\n"
          "    COMPREPLY=()\n",
          out);
    values_bash(out);
    fputs("    if [[ -z $words && $COMP_CWORD -eq 1 ]]; then\n        words=\"", out);
    for (int c = 0; c < n; c++) fprintf(out, "%s%s", c > 0 ? " " : "", commands[c].name);
    fputs("\"\n    fi\n    [[ -n $words ]] || case ${COMP_WORDS[1]} in\n", out);
    for (int c = 0; c < n; c++) {
        const msgl_setting *options[MSGL_MAX_OPTIONS];
        const int num = in_order(commands[c].bit, options);
        fprintf(out, "    %s) words=\"", commands[c].name);
        const size_t first = strcspn(commands[c].usage, " "); // "step|decode" of bench
        if (islower((unsigned char)commands[c].usage[0])) {
            put_choices(out, commands[c].usage, first);
            fputc(' ', out);
        }
        for (int i = 0; i < num; i++) fprintf(out, "%s--%s", i > 0 ? " " : "", options[i]->name);
        fputs("\" ;;\n", out);
    }
    fputs("    esac\n"
          "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
          "}\n"
          "complete -o default -F _minisgl minisgl\n",
          out);
}
