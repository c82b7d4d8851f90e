// SPDX-License-Identifier: Apache-2.0
//
// The option table and its parser: every option can be set by flag and by variable, wrong values
// name the flag and what is allowed, and no two options of a command share a name.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/args.h"
#include "core/attributes.h"

static const msgl_command SERVE = {"serve", MSGL_CMD_SERVE, "", "", NULL};
static const msgl_command RUN = {"run", MSGL_CMD_RUN, "", "", NULL};
static const msgl_command BENCH = {"bench", MSGL_CMD_BENCH, "", "", NULL};
static msgl_args args;
static msgl_err err;

static int parse(const msgl_command *cmd, const char *a, const char *b, const char *c)
{
    char *argv[] = {(char *)(uintptr_t)a, (char *)(uintptr_t)b, (char *)(uintptr_t)c};
    return msgl__args_parse(cmd,
                            a == NULL   ? 0
                            : b == NULL ? 1
                            : c == NULL ? 2
                                        : 3,
                            argv, &args, &err);
}

static void test_table(void **state)
{
    (void)state;
    for (int i = 0; i < msgl__num_options; i++) {
        const msgl_option *o = &msgl__options[i];
        assert_true(o->help != NULL && o->group != NULL && o->names[0] != NULL);
        assert_int_equal(o->type == MSGL_OPT_ENUM, o->allowed != NULL);
        assert_int_equal(o->type == MSGL_OPT_FLAG, o->metavar == NULL);
        for (int j = 0; j < i; j++) {
            const msgl_option *p = &msgl__options[j];
            if ((o->commands & p->commands) == 0) continue;
            for (size_t k = 0; k < 3 && o->names[k] != NULL; k++) {
                for (size_t l = 0; l < 3 && p->names[l] != NULL; l++) {
                    assert_string_not_equal(o->names[k], p->names[l]);
                }
            }
        }
    }
}

// What the field of option i holds now, as text.
static void value_of(int i, char out[64])
{
    const char *field = (const char *)&args + msgl__options[i].offset;
    switch (msgl__options[i].type) {
    case MSGL_OPT_FLAG: snprintf(out, 64, "%d", *(const bool *)field); break;
    case MSGL_OPT_INT:
        snprintf(out, 64, "%lld", (long long)*(const int64_t *)(const void *)field);
        break;
    case MSGL_OPT_REAL: snprintf(out, 64, "%g", *(const double *)(const void *)field); break;
    case MSGL_OPT_LIST:
        snprintf(out, 64, "%s", ((const msgl_list *)(const void *)field)->items[0]);
        break;
    default: snprintf(out, 64, "%s", *(const char *const *)(const void *)field);
    }
}

// The smallest allowed value of every option, by flag, by alias, by --flag=value and by variable.
static void test_every_option_every_way(void **state)
{
    (void)state;
    for (int i = 0; i < msgl__num_options; i++) {
        const msgl_option *o = &msgl__options[i];
        const msgl_command cmd = {"x", o->commands, "", "", NULL};
        char value[64] = "text", got[64], joined[128], env[64];
        if (o->type == MSGL_OPT_FLAG) snprintf(value, sizeof value, "1");
        if (o->type == MSGL_OPT_INT || o->type == MSGL_OPT_REAL) {
            snprintf(value, sizeof value, "%g", o->min);
        }
        if (o->type == MSGL_OPT_ENUM) {
            snprintf(value, sizeof value, "%.*s", (int)strcspn(o->allowed, "|"), o->allowed);
        }
        for (size_t k = 0; k < MSGL_COUNT(o->names) && o->names[k] != NULL; k++) {
            snprintf(joined, sizeof joined, "%s=%s", o->names[k], value);
            assert_int_equal(parse(&cmd, joined, NULL, NULL), 0);
            value_of(i, got);
            assert_string_equal(got, value);
            if (o->type == MSGL_OPT_FLAG) continue;
            assert_int_equal(parse(&cmd, o->names[k], value, NULL), 0);
            value_of(i, got);
            assert_string_equal(got, value);
            assert_int_equal(parse(&cmd, o->names[k], NULL, NULL), MSGL_EINVAL); // value missing
        }
        if (strcmp(o->names[0], "--help") == 0) continue;
        msgl__option_env(o, env);
        setenv(env, value, 1);
        assert_int_equal(parse(&cmd, NULL, NULL, NULL), 0);
        value_of(i, got);
        assert_string_equal(got, value);
        unsetenv(env);
    }
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
    assert_int_equal(parse(&RUN, "stray", NULL, NULL), MSGL_EINVAL);
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
    assert_int_equal(args.max_running, 256);
    assert_int_equal(args.max_prefill, 0);
    assert_int_equal(args.page_size, 0);
    assert_string_equal(args.host, "127.0.0.1");
    assert_true(isnan(args.temperature));
    assert_int_equal(parse(&BENCH, "step", NULL, NULL), 0);
    assert_string_equal(args.sub, "step");
    setenv("MINISGL_DISABLE_OVERLAP_SCHEDULING", "1", 1);
    assert_int_equal(parse(&SERVE, NULL, NULL, NULL), 0);
    assert_true(args.disable_overlap);
    unsetenv("MINISGL_DISABLE_OVERLAP_SCHEDULING");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_every_option_every_way),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_defaults_and_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
