// SPDX-License-Identifier: Apache-2.0
//
// Rows of settings: what is read from text, what is refused and with which line, defaults; and the
// engine's table.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/dtype.h"
#include "core/sampling_params.h"
#include "core/settings.h"

typedef struct values {
    int32_t few, many;
    int64_t large;
    double real;
    float narrow;
    int on, off;
    bool truth;
    const char *text, *choice;
} values;

enum { FEW, MANY, LARGE, REAL, NARROW, ON, OFF, TRUTH, TEXT, CHOICE };
static const msgl_setting ROWS[] = {
    [FEW] = {MSGL_INT(values, few), .min = 2, .max = 9},
    [MANY] = {MSGL_INT(values, many), .min = 1, .max = 9, .preset = -1, .unset = true},
    [LARGE] = {MSGL_INT(values, large), .max = 1e15, .preset = 7},
    [REAL] = {MSGL_REAL(values, real), .min = 0.25, .max = 2},
    [NARROW] = {MSGL_REAL(values, narrow), .min = 0.01, .max = 0.1, .preset = 0.05},
    [ON] = {MSGL_FLAG(values, on)},
    [OFF] = {MSGL_FLAG(values, off), .preset = 1},
    [TRUTH] = {MSGL_FLAG(values, truth)},
    [TEXT] = {MSGL_TEXT(values, text)},
    [CHOICE] = {MSGL_TEXT(values, choice), .choices = "radix|naive", .preset_text = "radix"},
};
static const msgl_setting_table TABLE = {ROWS, MSGL_COUNT(ROWS)};
static values got;
static msgl_err err;

static void takes(int row, const char *text, double expected)
{
    assert_int_equal(msgl__setting_parse(&ROWS[row], "--x", text, &got, &err), 0);
    assert_true(msgl__setting_number(&ROWS[row], &got) == expected);
}

static void refuses(int row, const char *text, const char *line)
{
    const values before = got;
    assert_int_equal(msgl__setting_parse(&ROWS[row], "--x", text, &got, &err), MSGL_EINVAL);
    assert_string_equal(err.text, line);
    assert_memory_equal(&got, &before, sizeof got);
}

static void test_numbers(void **state)
{
    (void)state;
    const char *const few = "; allowed: a whole number from 2 to 9, or 0 (the default)";
    char line[256];
    msgl__settings_default(&TABLE, &got);
    takes(FEW, "2", 2);
    takes(FEW, "9", 9);
    takes(FEW, "0", 0);
    assert_int_equal(got.few, 0);
    const char *const bad[] = {"1", "10", "-1", "3x", "", "2.5", "99999999999999999999", "nan"};
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        snprintf(line, sizeof line, "--x is \"%s\"%s", bad[i], few);
        refuses(FEW, bad[i], line);
    }
    takes(MANY, "1", 1);
    refuses(MANY, "-1", "--x is \"-1\"; allowed: a whole number from 1 to 9");
    takes(LARGE, "1000000000000000", 1e15);
    assert_true(got.large == 1000000000000000);
    refuses(LARGE, "1000000000000001",
            "--x is \"1000000000000001\"; allowed: a whole number from 0 to 1000000000000000");
    takes(REAL, "0.25", 0.25);
    takes(REAL, "1e0", 1);
    assert_true(got.real == 1);
    takes(NARROW, "0.01", (double)0.01f); // which is less than 0.01
    takes(NARROW, "0.1", (double)0.1f);   // which is more than 0.1
    refuses(NARROW, "0.0099", "--x is \"0.0099\"; allowed: a number from 0.01 to 0.1");
    refuses(NARROW, "1e-60", "--x is \"1e-60\"; allowed: a number from 0.01 to 0.1");
    refuses(REAL, "nan", "--x is \"nan\"; allowed: a number from 0.25 to 2, or 0 (the default)");
}

static void test_flags_and_texts(void **state)
{
    (void)state;
    msgl__settings_default(&TABLE, &got);
    const char *const yes[] = {"1", "true", "yes", "on"}, *const no[] = {"0", "false", "no", ""};
    for (int i = 0; i < 4; i++) {
        takes(ON, yes[i], 1);
        takes(OFF, yes[i], 0);
        takes(ON, no[i], 0);
        takes(TRUTH, yes[i], 1);
        assert_true(got.truth);
        takes(TRUTH, no[i], 0);
        takes(OFF, no[i], 1);
    }
    refuses(ON, "2", "--x is \"2\"; allowed: 1 or 0");
    const char *word = "some words";
    assert_int_equal(msgl__setting_parse(&ROWS[TEXT], "--x", word, &got, &err), 0);
    assert_ptr_equal(msgl__setting_text(&ROWS[TEXT], &got), word);
    assert_int_equal(msgl__setting_parse(&ROWS[CHOICE], "--x", "naive", &got, &err), 0);
    assert_string_equal(got.choice, "naive");
    const char *const bad[] = {"lru", "rad", "radix|naive", "", "naiver"};
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        char line[256];
        snprintf(line, sizeof line, "--x is \"%s\"; allowed: radix|naive", bad[i]);
        refuses(CHOICE, bad[i], line);
    }
    // Of more choices than an error has room for, the first whole ones, and how many there are
    // more.
    msgl_setting many = ROWS[CHOICE];
    many.choices =
        "none|choice-1-of-forty-bytes-that-are-a-name-all|choice-2-of-forty-bytes-that-"
        "are-a-name-all|choice-3-of-forty-bytes-that-are-a-name-and-more|last-of-all-of-them";
    assert_int_equal(msgl__setting_parse(&many, "--x", "last-of-all-of-them", &got, &err), 0);
    assert_int_equal(msgl__setting_parse(&many, "--x", "y", &got, &err), MSGL_EINVAL);
    assert_string_equal(err.text, "--x is \"y\"; allowed: none|choice-1-of-forty-bytes-that-are-a-"
                                  "name-all|choice-2-of-forty-bytes-that-are-a-name-all|... (2 "
                                  "more: --help)");
}

static void check_refuses(const char *line)
{
    assert_int_equal(msgl__settings_check(&TABLE, &got, &err), MSGL_EINVAL);
    assert_string_equal(err.text, line);
    msgl__settings_default(&TABLE, &got);
    got.many = 3;
}

static void test_check(void **state)
{
    (void)state;
    msgl__settings_default(&TABLE, &got);
    assert_true(got.few == 0 && got.many == -1 && got.large == 7 && got.real == 0);
    assert_true(got.on == 0 && got.off == 1 && got.text == NULL);
    assert_string_equal(got.choice, "radix");
    check_refuses("many is \"-1\"; allowed: a whole number from 1 to 9");
    assert_int_equal(msgl__settings_check(&TABLE, &got, &err), 0);
    got.few = 1;
    check_refuses("few is \"1\"; allowed: a whole number from 2 to 9, or 0 (the default)");
    got.large = -1;
    check_refuses("large is \"-1\"; allowed: a whole number from 0 to 1000000000000000");
    got.real = INFINITY;
    check_refuses("real is \"inf\"; allowed: a number from 0.25 to 2, or 0 (the default)");
    got.real = NAN;
    check_refuses("real is \"nan\"; allowed: a number from 0.25 to 2, or 0 (the default)");
    got.narrow = 0.01f;
    assert_int_equal(msgl__settings_check(&TABLE, &got, &err), 0);
    got.narrow = 0.2f;
    check_refuses("narrow is \"0.2\"; allowed: a number from 0.01 to 0.1");
    got.off = 2;
    check_refuses("off is \"2\"; allowed: 1 or 0");
    got.choice = NULL;
    check_refuses("choice is NULL; allowed: radix|naive");
}

// Every row of the engine's table can be shown and is allowed by default.
static void test_engine_table(void **state)
{
    (void)state;
    const msgl_setting_table *t = &msgl__engine_settings;
    msgl_options o = {0};
    msgl__settings_default(t, &o);
    assert_int_equal(msgl__options_check(&o, &err), MSGL_EINVAL);
    assert_string_equal(err.text, "model_dir is not set");
    o.model_dir = "x";
    assert_int_equal(msgl__options_check(&o, &err), 0);
    assert_true(t->count > 10);
    for (int i = 0; i < t->count; i++) {
        const msgl_setting *s = &t->rows[i];
        assert_non_null(s->field);
        assert_true(s->offset + s->size <= sizeof o);
        assert_false(s->unset); // a default of the C API can be asked for
        assert_int_equal(s->name != NULL, s->commands != 0);
        for (int k = 0; k < i; k++) assert_true(t->rows[k].offset != s->offset);
    }
}

// Every dtype that may be asked for is one.
static void test_dtypes(void **state)
{
    (void)state;
    int found = 0;
    for (int i = 0; i < msgl__engine_settings.count; i++) {
        const msgl_setting *s = &msgl__engine_settings.rows[i];
        const bool weights = strcmp(s->field, "weight_dtype") == 0; // may be int8 or q4, too
        if (strstr(s->field, "dtype") == NULL) continue;
        const char *p = strchr(s->choices, '|'); // behind auto
        for (; p != NULL; p = strchr(p, '|'), found++) {
            char name[32];
            msgl_dtype dtype;
            p++;
            snprintf(name, sizeof name, "%.*s", (int)strcspn(p, "|"), p);
            if (weights && (strcmp(name, "int8") == 0 || strcmp(name, "q4") == 0)) continue;
            assert_int_equal(msgl__dtype_parse(name, &dtype), 0);
            const bool other = strcmp(name, "fp8") == 0; // another spelling
            assert_string_equal(msgl__dtype_name(dtype), other ? "fp8_e4m3" : name);
        }
    }
    assert_int_equal(found, 13); // of three settings
}

static void test_engine_defaults_and_limits(void **state)
{
    (void)state;
    msgl_options o = {0};
    msgl__settings_default(&msgl__engine_settings, &o);
    assert_true(o.dummy_weight == 0 && o.threads == 0 && o.max_running == 256);
    assert_true(o.max_seq_len == 0 && o.max_prefill_tokens == 8192 && o.page_size == 1);
    assert_true(o.num_pages == 0 && o.memory_ratio == 0 && o.overlap == 1);
    assert_true(o.prefill_first == 0 && o.graph_max_bs == -1 && o.deterministic == 0);
    assert_true(o.model_dir == NULL && o.cpu_level == NULL);
    assert_string_equal(o.device, "auto");
    assert_string_equal(o.attention, "auto");
    o.model_dir = "x";
    const struct {
        int *field, value;
        const char *line;
    } ints[] = {
        {&o.threads, 1025, "threads is \"1025\"; allowed: a whole number from 0 to 1024"},
        {&o.page_size, 4097, "page_size is \"4097\"; allowed: a whole number from 1 to 4096"},
        {&o.max_running, 0, "max_running is \"0\"; allowed: a whole number from 1 to 4096"},
        {&o.num_pages, 1073741824,
         "num_pages is \"1073741824\"; allowed: a whole number from 0 to 1073741823"},
        {&o.max_seq_len, 1,
         "max_seq_len is \"1\"; allowed: a whole number from 2 to 16777216, or 0 (the default)"},
        {&o.max_prefill_tokens, 1048577,
         "max_prefill_tokens is \"1048577\"; allowed: a whole number from 1 to 1048576"},
        {&o.graph_max_bs, -2,
         "graph_max_bs is \"-2\"; allowed: a whole number from 0 to 1024, or -1 (the default)"},
    };
    for (size_t i = 0; i < MSGL_COUNT(ints); i++) {
        const int was = *ints[i].field;
        *ints[i].field = ints[i].value;
        assert_int_equal(msgl__options_check(&o, &err), MSGL_EINVAL);
        assert_string_equal(err.text, ints[i].line);
        *ints[i].field = was;
    }
    o.memory_ratio = 1;
    assert_int_equal(msgl__options_check(&o, &err), MSGL_EINVAL);
    assert_string_equal(err.text, "memory_ratio is \"1\"; allowed: a number from 0.01 to 0.99, or "
                                  "0 (the default)");
}

static void test_sampling_table(void **state)
{
    (void)state;
    const msgl_setting_table *t = &msgl__sampling_settings;
    msgl_sampling_params p = msgl__sampling_params_default();
    assert_true(p.temperature == 0 && p.top_p == 1 && p.min_p == 0 && p.top_k == 0);
    assert_true(p.repetition_penalty == 1 && p.frequency_penalty == 0 && p.presence_penalty == 0);
    assert_false(p.ignore_eos);
    assert_string_equal(t->rows[MSGL_SAMPLING_OF_MODEL - 1].field, "repetition_penalty");
    for (int i = 0; i < t->count; i++) {
        const msgl_setting *s = &t->rows[i];
        if (s->type == MSGL_SETTING_FLAG) continue; // a bool is one or the other
        const double ends[] = {s->min, s->max};
        const double far = s->type == MSGL_SETTING_INT ? 1 : 1e-3 * (s->max - s->min);
        for (int k = 0; k < 2; k++) {
            p = msgl__sampling_params_default();
            p.max_tokens = INT32_MAX; // min_tokens is no more
            msgl__setting_put(s, ends[k], &p);
            assert_int_equal(msgl__sampling_params_check(&p, 100, &err), 0);
            if (s->type == MSGL_SETTING_INT && k == 1) continue; // no int is larger
            msgl__setting_put(s, ends[k] + (k == 0 ? -far : far), &p);
            assert_int_equal(msgl__sampling_params_check(&p, 100, &err), MSGL_EINVAL);
            assert_int_equal(strncmp(err.text, s->field, strlen(s->field)), 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),        cmocka_unit_test(test_flags_and_texts),
        cmocka_unit_test(test_check),          cmocka_unit_test(test_engine_table),
        cmocka_unit_test(test_dtypes),         cmocka_unit_test(test_engine_defaults_and_limits),
        cmocka_unit_test(test_sampling_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
