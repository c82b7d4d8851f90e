// SPDX-License-Identifier: Apache-2.0
//
// The options' tables and their parser: every option can be set by flag and by variable, its limits
// hold for both and in the C API, with the same line, and no two options of a command share a name.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <minisgl/minisgl.h>

#include "cli/args.h"
#include "cli/spellings.h"
#include "core/attributes.h"

static const msgl_command SERVE = {"serve", MSGL_CMD_SERVE, "", "", NULL};
static const msgl_command RUN = {"run", MSGL_CMD_RUN, "", "", NULL};
static const msgl_command SIMULATE = {"simulate", MSGL_CMD_SIMULATE, "", "", NULL};
static const msgl_command BENCH = {"bench", MSGL_CMD_BENCH, "", "", NULL};
static msgl_args args;
static msgl_err err;

static int parse(const msgl_command *cmd, const char *a, const char *b, const char *c)
{
    msgl__args_free(&args);
    char *argv[] = {(char *)(uintptr_t)a, (char *)(uintptr_t)b, (char *)(uintptr_t)c};
    return msgl__args_parse(cmd,
                            a == NULL   ? 0
                            : b == NULL ? 1
                            : c == NULL ? 2
                                        : 3,
                            argv, &args, &err);
}

enum { FLAGS = 8 }; // spellings of an option at most

// The flags of an option: "--name", and its other spellings or NULL.
static void flags_of(const msgl_setting *o, char name[64], const char *flags[FLAGS])
{
    snprintf(name, 64, "--%s", o->name);
    flags[0] = name;
    for (int k = 1; k < FLAGS; k++) {
        flags[k] = flags[k - 1] != NULL ? msgl__option_alias(o, k - 1) : NULL;
    }
    assert_null(msgl__option_alias(o, FLAGS - 1));
}

static void test_table(void **state)
{
    (void)state;
    const msgl_setting *o;
    int n = 0;
    for (; (o = msgl__option(n)) != NULL; n++) {
        assert_int_equal(o->name == NULL, o->commands == 0);
        if (o->name == NULL) continue;
        assert_true(o->help != NULL && o->group != NULL);
        assert_int_equal(o->type == MSGL_SETTING_FLAG, o->metavar == NULL);
        assert_true(o->choices == NULL || o->type == MSGL_SETTING_TEXT);
        for (int j = 0; j < n; j++) {
            const msgl_setting *p = msgl__option(j);
            if ((o->commands & p->commands) == 0) continue;
            char names[2][64];
            const char *mine[FLAGS], *others[FLAGS];
            flags_of(o, names[0], mine);
            flags_of(p, names[1], others);
            for (int k = 0; k < FLAGS * FLAGS; k++) {
                const char *one = mine[k / FLAGS], *two = others[k % FLAGS];
                if (one == NULL || two == NULL) continue;
                assert_string_not_equal(one, two);
            }
        }
    }
    assert_in_range(n, 40, MSGL_MAX_OPTIONS);
}

// Every option of a command is in its help, by all its names.
static void test_help(void **state)
{
    (void)state;
    static char text[1 << 16];
    const msgl_setting *o;
    for (unsigned bit = 1; bit <= MSGL_CMD_HELP; bit *= 2) {
        const msgl_command cmd = {"x", bit, "", "", NULL};
        FILE *f = fmemopen(text, sizeof text, "w");
        assert_non_null(f);
        msgl__help_command(&cmd, f);
        fclose(f);
        for (int i = 0; (o = msgl__option(i)) != NULL; i++) {
            if ((o->commands & bit) == 0) continue;
            char name[64], line[80];
            const char *flags[FLAGS];
            flags_of(o, name, flags);
            snprintf(line, sizeof line, "  %s%s%s", name, flags[1] != NULL ? ", " : "",
                     flags[1] != NULL ? flags[1] : "");
            assert_non_null(strstr(text, line));
            // All choices, of however many lines: the last one is there.
            if (o->choices == NULL) continue;
            const char *last = strrchr(o->choices, '|');
            assert_non_null(strstr(text, last == NULL ? o->choices : last + 1));
        }
    }
}

// What option i holds now, as text.
static void value_of(int i, char out[64])
{
    const msgl_setting *o = msgl__option(i);
    const void *values = (const char *)&args + msgl__option_values(i);
    const char *text;
    switch (o->type) {
    case MSGL_SETTING_LIST:
        text = ((const msgl_list *)(const void *)((const char *)values + o->offset))->items[0];
        break;
    case MSGL_SETTING_TEXT: text = msgl__setting_text(o, values); break;
    default:
        snprintf(out, 64, o->size == sizeof(double) ? "%.15g" : "%g",
                 msgl__setting_number(o, values));
        return;
    }
    snprintf(out, 64, "%s", text);
}

static char folder[] = "/tmp/msgl-args-XXXXXX", file[64];

static int setup(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL) return -1;
    (void)snprintf(file, sizeof file, "%s/options.yaml", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    msgl__args_free(&args);
    (void)unlink(file);
    return rmdir(folder);
}

// The file of --config.
static void write_bytes(const char *text, size_t n)
{
    FILE *f = fopen(file, "we");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void write_file(const char *text)
{
    write_bytes(text, strlen(text));
}

// The smallest allowed value of every option, by flag, by alias, by --flag=value, by variable and
// by file, with - and with _.
static void test_every_option_every_way(void **state)
{
    (void)state;
    const msgl_setting *o;
    for (int i = 0; (o = msgl__option(i)) != NULL; i++) {
        if (o->name == NULL) continue;
        const msgl_command cmd = {"x", o->commands, "", "", NULL};
        char value[64] = "text", expected[64], got[64], joined[128], env[64], name[64];
        const char *flags[FLAGS];
        flags_of(o, name, flags);
        if (o->type == MSGL_SETTING_FLAG) snprintf(value, sizeof value, "1");
        if (o->type == MSGL_SETTING_INT || o->type == MSGL_SETTING_REAL) {
            snprintf(value, sizeof value, "%g", o->min);
        }
        const bool config = strcmp(o->name, "config") == 0;
        if (config) snprintf(value, sizeof value, "%s", file);
        write_file("");
        if (o->choices != NULL) {
            snprintf(value, sizeof value, "%.*s", (int)strcspn(o->choices, "|"), o->choices);
        }
        snprintf(expected, sizeof expected, "%s", value);
        if (o->type == MSGL_SETTING_FLAG && o->preset == 1) snprintf(expected, 64, "0");
        for (size_t k = 0; k < FLAGS && flags[k] != NULL; k++) {
            snprintf(joined, sizeof joined, "%s=%s", flags[k], value);
            assert_int_equal(parse(&cmd, joined, NULL, NULL), 0);
            value_of(i, got);
            assert_string_equal(got, expected);
            assert_true(args.given[i]);
            if (o->type == MSGL_SETTING_FLAG) continue;
            assert_int_equal(parse(&cmd, flags[k], value, NULL), 0);
            value_of(i, got);
            assert_string_equal(got, expected);
            assert_int_equal(parse(&cmd, flags[k], NULL, NULL), MSGL_EINVAL); // value missing
        }
        if (strcmp(o->name, "help") == 0) continue;
        msgl__option_env(o, env);
        setenv(env, value, 1);
        assert_int_equal(parse(&cmd, NULL, NULL, NULL), 0);
        value_of(i, got);
        assert_string_equal(got, expected);
        assert_true(args.given[i]);
        unsetenv(env);
        assert_int_equal(parse(&cmd, NULL, NULL, NULL), 0);
        assert_false(args.given[i]);
        for (int k = 0; k < 2 && !config && (o->commands & MSGL_CMD_HELP) == 0; k++) {
            char line[160];
            for (char *p = name; k == 1 && (p = strchr(p, '-')) != NULL;) *p = '_';
            snprintf(line, sizeof line, "%s: %s\n", name + 2, value);
            write_file(line);
            assert_int_equal(parse(&cmd, "--config", file, NULL), 0);
            value_of(i, got);
            assert_string_equal(got, expected);
            assert_true(args.given[i]);
        }
    }
}

// Texts that option o must not take, NULL behind the last.
static void bad_values(const msgl_setting *o, char out[3][32])
{
    memset(out, 0, 3 * sizeof out[0]);
    if (o->type == MSGL_SETTING_FLAG) snprintf(out[0], 32, "2");
    if (o->choices != NULL) snprintf(out[0], 32, "none of these");
    if (o->type == MSGL_SETTING_INT) {
        const double below = o->preset == o->min - 1 && !o->unset ? o->min - 2 : o->min - 1;
        snprintf(out[0], 32, "%.0f", below);
        snprintf(out[1], 32, "%.0f", o->max + 1);
    }
    if (o->type == MSGL_SETTING_REAL) {
        snprintf(out[0], 32, "%g", o->min > 0 ? o->min / 2 : o->min - 1);
        snprintf(out[1], 32, "%g", o->max * 2);
        snprintf(out[2], 32, "nan");
    }
}

// msgl_open with this value alone in its option: its error's line.
static const char *opened_with(const msgl_setting *o, const char *text)
{
    msgl_options options;
    msgl_llm *llm = NULL;
    msgl_options_init(&options);
    options.model_dir = "/nonexistent";
    char *member = (char *)&options + o->offset;
    if (o->type == MSGL_SETTING_TEXT) {
        *(const char **)(void *)member = text;
    } else if (o->type == MSGL_SETTING_REAL) {
        *(double *)(void *)member = strtod(text, NULL);
    } else {
        *(int *)(void *)member = atoi(text);
    }
    if (msgl_open(&options, &llm, &err) == 0) fail_msg("%s is taken as %s", text, o->field);
    return err.text;
}

// `line` must be that `name` has this value, and what is allowed, as in every other line.
static void expect_line(const char *line, const char *name, const char *value, const char *allowed)
{
    char expected[256];
    snprintf(expected, sizeof expected, "%s is \"%s\"; allowed: %s", name, value, allowed);
    assert_string_equal(line, expected);
}

// Refused as a flag and as a variable, with the same line; `allowed` becomes its end.
static void refused_by_commands(const msgl_setting *o, const char *value, char allowed[200])
{
    const msgl_command cmd = {"x", o->commands, "", "", NULL};
    char name[64], env[64], joined[192];
    const char *flags[FLAGS];
    flags_of(o, name, flags);
    snprintf(joined, sizeof joined, "%s=%s", name, value);
    assert_int_equal(parse(&cmd, joined, NULL, NULL), MSGL_EINVAL);
    const char *end = strstr(err.text, "; allowed: ");
    assert_non_null(end);
    snprintf(allowed, 200, "%s", end + strlen("; allowed: "));
    expect_line(err.text, name, value, allowed);
    if (strcmp(o->name, "help") == 0) return; // which has no variable
    msgl__option_env(o, env);
    setenv(env, value, 1);
    assert_int_equal(parse(&cmd, NULL, NULL, NULL), MSGL_EINVAL);
    expect_line(err.text, env, value, allowed);
    unsetenv(env);
}

static void test_limits_agree(void **state)
{
    (void)state;
    const msgl_setting *o;
    int checked = 0;
    for (int i = 0; (o = msgl__option(i)) != NULL; i++) {
        const bool engine = i < msgl__engine_settings.count; // they come first
        char bad[3][32], allowed[200] = "1 or 0";
        bad_values(o, bad);
        if (o->name == NULL && o->type == MSGL_SETTING_INT) {
            snprintf(allowed, sizeof allowed, "a whole number from %.0f to %.0f", o->min, o->max);
        }
        for (int k = 0; k < 3 && bad[k][0] != '\0'; k++, checked++) {
            if (o->name != NULL) refused_by_commands(o, bad[k], allowed);
            if (engine) expect_line(opened_with(o, bad[k]), o->field, bad[k], allowed);
        }
    }
    assert_true(checked > 60);
}

static void test_errors(void **state)
{
    (void)state;
    assert_int_equal(parse(&SERVE, "--port", "99999", NULL), MSGL_EINVAL);
    assert_string_equal(err.text, "--port is \"99999\"; allowed: a whole number from 0 to 65535");
    assert_int_equal(parse(&SERVE, "--port", "80x", NULL), MSGL_EINVAL);
    assert_int_equal(parse(&SERVE, "--porrt", "80", NULL), MSGL_EINVAL);
    assert_string_equal(err.text, "unknown option --porrt; did you mean --port?");
    assert_int_equal(parse(&SERVE, "--prompt", "x", NULL), MSGL_EINVAL);
    assert_non_null(strstr(err.text, "not an option of `minisgl serve`"));
    assert_int_equal(parse(&SERVE, "--cache-type", "lru", NULL), MSGL_EINVAL);
    assert_string_equal(err.text, "--cache-type is \"lru\"; allowed: radix|naive");
    assert_int_equal(parse(&RUN, "--temperature", "nan", NULL), MSGL_EINVAL);
    assert_int_equal(parse(&RUN, "--top-k", "99999999999999999999", NULL), MSGL_EINVAL);
    assert_int_equal(parse(&RUN, "model", "stray", NULL), MSGL_EINVAL);
    assert_non_null(strstr(err.text, "unexpected argument \"stray\""));
    assert_int_equal(parse(&SIMULATE, "stray", NULL, NULL), MSGL_EINVAL);
    setenv("MINISGL_PAGE_SIZE", "many", 1);
    assert_int_equal(parse(&SERVE, NULL, NULL, NULL), MSGL_EINVAL);
    assert_non_null(strstr(err.text, "MINISGL_PAGE_SIZE is \"many\""));
    unsetenv("MINISGL_PAGE_SIZE");
}

static void test_defaults_and_order(void **state)
{
    (void)state;
    setenv("MINISGL_PORT", "2000", 1);
    assert_int_equal(parse(&SERVE, "--port", "3000", NULL), 0);
    assert_int_equal(args.port, 3000); // the flag wins
    assert_int_equal(parse(&SERVE, NULL, NULL, NULL), 0);
    assert_int_equal(args.port, 2000);
    unsetenv("MINISGL_PORT");
    assert_int_equal(parse(&SERVE, NULL, NULL, NULL), 0);
    assert_int_equal(args.port, 1919);
    assert_int_equal(args.engine.max_running, 256);
    assert_int_equal(args.engine.max_prefill_tokens, 8192);
    assert_false(msgl__args_given(&args, &args.engine.max_prefill_tokens));
    assert_int_equal(parse(&SERVE, "--max-extend-length=8192", NULL, NULL), 0);
    assert_true(msgl__args_given(&args, &args.engine.max_prefill_tokens));
    assert_false(msgl__args_given(&args, &args.engine.page_size));
    assert_true(parse(&SERVE, "--port", "1919", NULL) == 0 && msgl__args_given(&args, &args.port));
    assert_string_equal(args.host, "127.0.0.1");
    assert_false(msgl__args_given(&args, &args.sampling.temperature));
    assert_int_equal(parse(&BENCH, "step", NULL, NULL), 0);
    assert_string_equal(args.sub, "step");
    setenv("MINISGL_DISABLE_OVERLAP_SCHEDULING", "1", 1);
    assert_int_equal(parse(&SERVE, NULL, NULL, NULL), 0);
    assert_int_equal(args.engine.overlap, 0);
    unsetenv("MINISGL_DISABLE_OVERLAP_SCHEDULING");
}

// The model without a flag: once, of bench behind what is measured, and over the variable.
static void test_model_without_flag(void **state)
{
    (void)state;
    assert_int_equal(parse(&RUN, "org/name", NULL, NULL), 0);
    assert_string_equal(args.engine.model_dir, "org/name");
    assert_true(msgl__args_given(&args, &args.engine.model_dir));
    assert_int_equal(parse(&BENCH, "step", "org/name", NULL), 0);
    assert_string_equal(args.sub, "step");
    assert_string_equal(args.engine.model_dir, "org/name");
    assert_int_equal(parse(&RUN, "-m", "a", NULL), 0);
    assert_string_equal(args.engine.model_dir, "a");
    assert_int_equal(parse(&RUN, "-m", "a", "b"), MSGL_EINVAL);
    assert_string_equal(err.text, "two models: \"b\" and --model a; allowed: one");
    assert_int_equal(parse(&RUN, "b", "--model=a", NULL), MSGL_EINVAL);
    assert_string_equal(err.text, "two models: \"b\" and --model a; allowed: one");
    setenv("MINISGL_MODEL", "c", 1);
    assert_int_equal(parse(&RUN, "b", NULL, NULL), 0);
    assert_string_equal(args.engine.model_dir, "b");
    unsetenv("MINISGL_MODEL");
}

// A line of the file is weaker than a variable, which is weaker than a flag; a list is taken from
// one of them as a whole.
static void test_file_order(void **state)
{
    (void)state;
    write_file("# of this machine\nport: 4000\nHOST: x\n");
    assert_int_equal(parse(&SERVE, "--config", file, NULL), MSGL_EINVAL); // names are lower case
    write_file("# of this machine\n"
               "port: 4000\n"
               "served-model-name: [a, \"b c\", 'd']\n"
               "cors_origin: https://x.example\n"
               "insecure: True\n"
               "access_log: off\n"
               "tensor-parallel-size: 2\n"
               "model: org/name\n");
    assert_int_equal(parse(&SERVE, "--config", file, NULL), 0);
    assert_int_equal(args.port, 4000);
    assert_int_equal(args.served_names.count, 3);
    assert_string_equal(args.served_names.items[1], "b c");
    assert_int_equal(args.cors_origins.count, 1);
    assert_int_equal(args.insecure, 1);
    assert_int_equal(args.access_log, 0);
    assert_int_equal(args.engine.tp_size, 2);
    assert_string_equal(args.engine.model_dir, "org/name");
    setenv("MINISGL_CONFIG", file, 1);
    setenv("MINISGL_PORT", "3000", 1);
    setenv("MINISGL_SERVED_MODEL_NAME", "env", 1);
    assert_int_equal(parse(&SERVE, "--tp-size", "4", NULL), 0);
    assert_int_equal(args.engine.tp_size, 4);
    assert_int_equal(args.port, 3000);
    assert_int_equal(args.served_names.count, 1);
    assert_int_equal(args.cors_origins.count, 1); // each list for itself
    assert_int_equal(parse(&SERVE, "--served-model-name=flag", "other", "--port=2000"), 0);
    assert_int_equal(args.port, 2000);
    assert_int_equal(args.served_names.count, 1);
    assert_string_equal(args.served_names.items[0], "flag");
    assert_string_equal(args.engine.model_dir, "other");
    unsetenv("MINISGL_CONFIG");
    unsetenv("MINISGL_PORT");
    unsetenv("MINISGL_SERVED_MODEL_NAME");
}

// One error for all that is wrong with a file, with its line.
static void test_bad_files(void **state)
{
    (void)state;
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"port: 1\nprot: 2\n", "options.yaml:2: unknown option --prot; did you mean --port?"},
        {"port: 1\nmax_tokens: 2\n", "options.yaml:2: --max-tokens is not an option of `minisgl "
                                     "serve`; see `minisgl serve --help`"},
        {"port: 1\n\nport: 1\n", "options.yaml:3: port is given twice, first in line 1"},
        {"tp-size: 1\ntensor_parallel_size: 1\n",
         "options.yaml:2: tensor_parallel_size is given twice, first in line 1"},
        {"port: many\n",
         "options.yaml:1: port is \"many\"; allowed: a whole number from 0 to 65535"},
        {"port: [1]\n", "options.yaml:1: port is a list; allowed: one value"},
        {"port: {a: 1}\n", "options.yaml:1: options are not nested; allowed: NAME: VALUE, or NAME: "
                           "[VALUE, ...]"},
        {"served-model-name:\n  - a\n  - [b]\n",
         "options.yaml:3: options are not nested; allowed: NAME: VALUE, or NAME: [VALUE, ...]"},
        {"port:\n", "options.yaml:1: port has no value (N)"},
        {"insecure: ~\n", "options.yaml:1: insecure has no value (true or false)"},
        {"insecure: maybe\n", "options.yaml:1: insecure is \"maybe\"; allowed: 1 or 0"},
        {"port: &p 1\nhost: *p\n",
         "options.yaml:1: anchors (&) and tags (!) are not read; allowed: plain values"},
        {"port: !!int 1\n",
         "options.yaml:1: anchors (&) and tags (!) are not read; allowed: plain values"},
        {"host: *p\n", "options.yaml:1: options are not nested; allowed: NAME: VALUE, or NAME: "
                       "[VALUE, ...]"},
        {"host: \"a\\0b\"\n", "options.yaml:1: a text has a NUL byte"},
        {"config: x\n", "options.yaml:1: --config cannot stand in a file"},
        {"help: true\n", "options.yaml:1: --help cannot stand in a file"},
        {"- port\n", "options.yaml:1: no list of options; allowed: lines of NAME: VALUE"},
        {"port\n", "options.yaml:1: no list of options; allowed: lines of NAME: VALUE"},
        {"? [a]\n: b\n", "options.yaml:1: a key is no option's name"},
        {"port: 1\n---\nport: 2\n", "options.yaml:2: a second document"},
        {"a: b: c\n", "options.yaml:1: no YAML: mapping values are not allowed in this context"},
    };
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        write_file(cases[i].text);
        assert_int_not_equal(parse(&SERVE, "--config", file, NULL), 0);
        assert_string_equal(err.text + strlen(folder) + 1, cases[i].error);
    }
    static char large[MSGL_OPTIONS_FILE_MAX + 1];
    memset(large, '[', sizeof large);
    write_bytes(large, sizeof large);
    assert_int_equal(parse(&SERVE, "--config", file, NULL), MSGL_ELIMIT);
    assert_non_null(strstr(err.text, "options.yaml: found 262145 bytes, allowed 262144"));
    write_bytes(large, sizeof large - 1); // and no recursion
    assert_int_equal(parse(&SERVE, "--config", file, NULL), MSGL_EFORMAT);
    write_bytes("port: 1\n\0", 9);
    assert_int_equal(parse(&SERVE, "--config", file, NULL), MSGL_EFORMAT);
    write_file("backends: ref\n");
    assert_int_equal(parse(&BENCH, "--config", file, "limits"), MSGL_EINVAL);
    assert_non_null(strstr(err.text, "options.yaml:1: bench limits does not read --backends"));
    (void)unlink(file);
    assert_int_equal(parse(&SERVE, "--config", file, NULL), MSGL_ENOENT);
    assert_int_equal(mkfifo(file, 0600), 0);
    assert_int_equal(parse(&SERVE, "--config", file, NULL), MSGL_EIO);
    assert_non_null(strstr(err.text, "options.yaml: not a regular file"));
    (void)unlink(file);
    assert_int_equal(parse(&SERVE, "--config", folder, NULL), MSGL_EIO);
    write_file("# nothing\n");
    assert_int_equal(parse(&SERVE, "--config", file, NULL), 0);
}

// What others' flags are here: with their values, and what they mean by them.
static void test_spellings(void **state)
{
    (void)state;
    static const struct {
        const char *flag, *value; // NULL: none
        size_t member;
        int expected;
    } numbers[] = {
        {"--max-model-len", "32k", offsetof(msgl_args, engine.max_seq_len), 32000},
        {"--max-model-len=1.5K", NULL, offsetof(msgl_args, engine.max_seq_len), 1536},
        {"--max-model-len", "auto", offsetof(msgl_args, engine.max_seq_len), 0},
        {"--context-length", "4096", offsetof(msgl_args, engine.max_seq_len), 4096},
        {"-c", "4096", offsetof(msgl_args, engine.max_seq_len), 4096},
        {"--max-num-seqs", "8", offsetof(msgl_args, engine.max_running), 8},
        {"-np", "-1", offsetof(msgl_args, engine.max_running), 256},
        {"--max-num-batched-tokens", "2k", offsetof(msgl_args, engine.max_prefill_tokens), 2000},
        {"--chunked-prefill-size", "512", offsetof(msgl_args, engine.max_prefill_tokens), 512},
        {"-t", "-1", offsetof(msgl_args, engine.threads), 0},
        {"--tp", "4", offsetof(msgl_args, engine.tp_size), 4},
        {"--load-format", "dummy", offsetof(msgl_args, engine.dummy_weight), 1},
        {"--load-format", "safetensors", offsetof(msgl_args, engine.dummy_weight), 0},
        {"--enforce-eager", NULL, offsetof(msgl_args, engine.graph_max_bs), 0},
        {"--trust-remote-code", NULL, offsetof(msgl_args, engine.graph_max_bs), -1},
        {"--draft", "4", offsetof(msgl_args, engine.speculative_num_draft_tokens), 5},
        {"--draft-max", "1", offsetof(msgl_args, engine.speculative_num_draft_tokens), 2},
        {"--draft-n=16", NULL, offsetof(msgl_args, engine.speculative_num_draft_tokens), 17},
        {"--spec-draft-n-max", "63", offsetof(msgl_args, engine.speculative_num_draft_tokens), 64},
    };
    for (size_t i = 0; i < MSGL_COUNT(numbers); i++) {
        assert_int_equal(parse(&SERVE, numbers[i].flag, numbers[i].value, NULL), 0);
        int got;
        memcpy(&got, (const char *)&args + numbers[i].member, sizeof got);
        assert_int_equal(got, numbers[i].expected);
    }
    static const struct {
        const char *flag, *value;
        size_t member;
        const char *expected;
    } texts[] = {
        {"--cache", "naive", offsetof(msgl_args, engine.cache_type), "naive"},
        {"--disable-radix-cache", NULL, offsetof(msgl_args, engine.cache_type), "naive"},
        {"--no-enable-prefix-caching", NULL, offsetof(msgl_args, engine.cache_type), "naive"},
        {"--moe-backend", "fused", offsetof(msgl_args, engine.moe_backend), "grouped"},
        {"--moe-backend", "grouped", offsetof(msgl_args, engine.moe_backend), "grouped"},
        {"--dtype", "half", offsetof(msgl_args, engine.dtype), "float16"},
        {"-ngl", "0", offsetof(msgl_args, engine.device), "cpu"},
        {"--n-gpu-layers", "99", offsetof(msgl_args, engine.device), "auto"},
        {"-hf", "org/name:Q8_0", offsetof(msgl_args, engine.model_dir), "org/name:Q8_0"},
        {"--spec-type", "none", offsetof(msgl_args, engine.speculative_algorithm), "none"},
        {"--spec-type", "draft", offsetof(msgl_args, engine.speculative_algorithm), "STANDALONE"},
        {"--spec-type", "draft-simple", offsetof(msgl_args, engine.speculative_algorithm),
         "STANDALONE"},
        {"--spec-type", "draft-eagle3", offsetof(msgl_args, engine.speculative_algorithm),
         "EAGLE3"},
        {"--spec-type", "draft-mtp", offsetof(msgl_args, engine.speculative_algorithm), "NEXTN"},
        {"--spec-type", "ngram-simple", offsetof(msgl_args, engine.speculative_algorithm), "NGRAM"},
        {"--spec-type", "ngram-map-k", offsetof(msgl_args, engine.speculative_algorithm), "NGRAM"},
        {"--spec-type", "ngram-map-k4v", offsetof(msgl_args, engine.speculative_algorithm),
         "NGRAM"},
        {"--spec-type", "ngram-cache", offsetof(msgl_args, engine.speculative_algorithm), "NGRAM"},
        {"--spec-type", "ngram-mod", offsetof(msgl_args, engine.speculative_algorithm), "SUFFIX"},
        {"--spec-default", NULL, offsetof(msgl_args, engine.speculative_algorithm), "auto"},
        {"-md", "small.gguf", offsetof(msgl_args, engine.speculative_draft_model_path),
         "small.gguf"},
        {"--model-draft", "a/b", offsetof(msgl_args, engine.speculative_draft_model_path), "a/b"},
        {"--hf-repo-draft", "org/name", offsetof(msgl_args, engine.speculative_draft_model_path),
         "org/name"},
        {"-hfd", "org/name", offsetof(msgl_args, engine.speculative_draft_model_path), "org/name"},
        {"--spec-draft-hf", "o/n", offsetof(msgl_args, engine.speculative_draft_model_path), "o/n"},
    };
    for (size_t i = 0; i < MSGL_COUNT(texts); i++) {
        assert_int_equal(parse(&SERVE, texts[i].flag, texts[i].value, NULL), 0);
        const char *got;
        memcpy(&got, (const char *)&args + texts[i].member, sizeof got);
        assert_string_equal(got, texts[i].expected);
    }
    assert_int_equal(parse(&RUN, "-n", "-1", NULL), 0);
    assert_false(msgl__args_given(&args, &args.max_tokens));
    assert_int_equal(parse(&RUN, "--n-predict", "7", NULL), 0);
    assert_int_equal(args.max_tokens, 7);
    assert_int_equal(parse(&BENCH, "serve", "--num-prompts=12", NULL), 0);
    assert_int_equal(args.requests, 12);
    assert_int_equal(parse(&BENCH, "step", "--num-prompts=12", "--max-concurrency=2"), MSGL_EINVAL);
    // llama-server's context is of all requests at once, wherever their number comes from.
    assert_int_equal(parse(&SERVE, "-np=4", "--ctx-size=4096", NULL), 0);
    assert_int_equal(args.engine.max_seq_len, 1024);
    assert_int_equal(parse(&SERVE, "-np=4", "--max-model-len=4096", NULL), 0);
    assert_int_equal(args.engine.max_seq_len, 4096);
    assert_int_equal(parse(&SERVE, "-np=4", "-c=7", NULL), MSGL_EINVAL);
    assert_string_equal(err.text, "--ctx-size is 7 for 4 requests at once; allowed: at least 2 "
                                  "tokens for each");
    write_file("disable-radix-cache: True\ntrust_remote_code: true\nctx-size: 64\nnp: 2\n"
               "max_num_seqs: 2\nload-format: dummy\n");
    assert_int_equal(parse(&SERVE, "--config", file, NULL), MSGL_EINVAL); // --np is none
    write_file("disable-radix-cache: True\ntrust_remote_code: true\nctx-size: 64\n"
               "max_num_seqs: 2\nload-format: dummy\n");
    assert_int_equal(parse(&SERVE, "--config", file, NULL), 0);
    assert_string_equal(args.engine.cache_type, "naive");
    assert_int_equal(args.engine.max_seq_len, 32);
    assert_int_equal(args.engine.dummy_weight, 1);
}

// A flag that others have and minisgl has not says what is here in its place.
static void test_hints(void **state)
{
    (void)state;
    static const struct {
        const char *flag, *error;
    } cases[] = {
        {"--quantization", "--quantization, an option of SGLang, vLLM, is none of minisgl: a "
                           "checkpoint says itself how it is quantised; --weight-dtype int8 "
                           "quantises while loading"},
        {"--speculative-token-map",
         "--speculative-token-map, an option of SGLang, vLLM, is none of "
         "minisgl: --speculative-algorithm and the options beside it "
         "say where drafts come from"},
        {"--spec-type=ngram-simple,draft-mtp",
         "--spec-type is \"ngram-simple,draft-mtp\"; allowed: none, draft-simple, draft-eagle3, "
         "draft-mtp, ngram-simple, ngram-map-k, ngram-map-k4v, ngram-mod or ngram-cache, one of "
         "them"},
        {"--draft-max=64", "--draft-max is \"64\"; allowed: a whole number from 1 to 63"},
        {"--draft=0", "--draft is \"0\"; allowed: a whole number from 1 to 63"},
        {"--draft-n=4x", "--draft-n is \"4x\"; allowed: a whole number from 1 to 63"},
        {"--draft-min", "--draft-min, an option of llama-server, is none of minisgl: how many "
                        "guesses pay is measured; --speculative-num-draft-tokens bounds them"},
        {"--spec-draft-p-min", "--spec-draft-p-min, an option of llama-server, is none of minisgl: "
                               "how many guesses pay is measured; --speculative-num-draft-tokens "
                               "bounds them"},
        {"--draft-p-split", "--draft-p-split, an option of llama-server, is none of minisgl: "
                            "--speculative-algorithm and the options beside it say where drafts "
                            "come from"},
        {"-ngld", "-ngld, an option of llama-server, is none of minisgl: a draft model is where "
                  "the model is, with its threads, lengths and dtypes"},
        {"--gpu", "--gpu, an option of others, is none of minisgl: --device cuda, or cuda:N"},
        {"--n", "unknown option --n; see `minisgl serve --help`"},
        {"-V", "unknown option -V; see `minisgl serve --help`"},
        {"--load-format=pt", "--load-format is \"pt\"; allowed: auto, safetensors, gguf or dummy"},
        {"--load-format", "--load-format needs a value (auto, safetensors, gguf or dummy)"},
        {"-ngl=20", "-ngl is \"20\"; allowed: 0, or 99, auto or all: a model is on the GPU as a "
                    "whole or not at all"},
        {"--max-model-len=32x", "--max-model-len is \"32x\"; allowed: a whole number from 2 to "
                                "16777216, or 0 (the default)"},
        {"--disable-radix-cache=1", "--disable-radix-cache takes no value; it is --cache-type "
                                    "naive"},
    };
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        assert_int_equal(parse(&SERVE, cases[i].flag, NULL, NULL), MSGL_EINVAL);
        assert_string_equal(err.text, cases[i].error);
    }
    const msgl_spelling *s; // each row is whole, and what it says of options is so
    for (int i = 0; (s = msgl__spelling(i)) != NULL; i++) {
        const msgl_setting *o = NULL;
        bool known = s->option == NULL;
        for (int k = 0; !known && (o = msgl__option(k)) != NULL; k++) {
            known = o->name != NULL && strcmp(o->name, s->option) == 0;
        }
        assert_true(known && (s->option != NULL || (s->help != NULL && s->of != NULL)));
        assert_true(s->only == NULL || s->values != NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_every_option_every_way),
        cmocka_unit_test(test_limits_agree),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_model_without_flag),
        cmocka_unit_test(test_defaults_and_order),
        cmocka_unit_test(test_file_order),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_hints),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
