// SPDX-License-Identifier: Apache-2.0
//
// Chat templates against what jinja2, set up as transformers does it, rendered (tests/vectors/
// chat_template), and the promises of chat_template.h: budgets, provenance, folders, threads,
// memory.
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/mem.h"
#include "template/jinja_render.h"
#include "utils/json.h"

#define VECTORS MSGL_SOURCE_DIR "/tests/vectors/chat_template/"

// The clock of tools/make_template_vectors.py: Friday, 4 July 2025, 9:05:07.123456.
static const msgl_jclock CLOCK = {.tm = {.tm_year = 125,
                                         .tm_mon = 6,
                                         .tm_mday = 4,
                                         .tm_hour = 9,
                                         .tm_min = 5,
                                         .tm_sec = 7,
                                         .tm_wday = 5,
                                         .tm_yday = 184},
                                  .usec = 123456};

static char *read_text(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) fail_msg("%s cannot be opened", path);
    char *text = malloc(1 << 20);
    assert_non_null(text);
    *len = fread(text, 1, 1 << 20, f);
    fclose(f);
    return text;
}

// Parses and renders; the status, with *r filled on success.
static int render(const char *source, size_t len, json_t *vars, json_t *trusted,
                  const msgl_render_limits *limits, msgl_rendered *r, msgl_err *err)
{
    msgl_chat_template *t;
    *err = (msgl_err){0};
    *r = (msgl_rendered){0};
    int rc = msgl__chat_template_parse(source, len, &t, err);
    if (rc != 0) return rc;
    rc = msgl__chat_template_render_at(t, vars, trusted, limits, &CLOCK, r, err);
    msgl__chat_template_free(t);
    return rc;
}

static int ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

static void check(const json_t *want, const char *name, int rc, const msgl_rendered *r,
                  const msgl_err *err)
{
    const json_t *text = json_object_get(want, "text"), *error = json_object_get(want, "error");
    if (text != NULL) {
        if (rc != 0) fail_msg("%s: %d %s", name, rc, err->text);
        const char *got = msgl__strbuf_str(&r->text), *expected = json_string_value(text);
        if (r->text.len != json_string_length(text) || memcmp(got, expected, r->text.len) != 0) {
            fail_msg("%s:\nexpected %s\ngot      %s", name, expected, got);
        }
        return;
    }
    if (rc == 0) fail_msg("%s: rendered, must fail: %s", name, msgl__strbuf_str(&r->text));
    assert_int_equal(rc, err->code);
    if (json_object_get(want, "syntax") != NULL) {
        assert_int_equal(rc, MSGL_EFORMAT);
        return;
    }
    if (rc != MSGL_EINVAL) fail_msg("%s: %d %s", name, rc, err->text);
    if (json_is_string(error) && !ends_with(err->text, json_string_value(error))) {
        fail_msg("%s: error '%s', expected '%s'", name, err->text, json_string_value(error));
    }
}

static json_t *load_vectors(void)
{
    json_error_t why;
    json_t *all = json_load_file(VECTORS "cases.json", JSON_ALLOW_NUL, &why);
    if (all == NULL) fail_msg("cases.json: %s", why.text);
    return all;
}

static void test_small(void **state)
{
    (void)state;
    json_t *all = load_vectors(), *c;
    size_t i;
    json_array_foreach(json_object_get(all, "small"), i, c)
    {
        const json_t *t = json_object_get(c, "template");
        msgl_rendered r;
        msgl_err err;
        const int rc = render(json_string_value(t), json_string_length(t),
                              json_object_get(all, "values"), NULL, NULL, &r, &err);
        check(c, json_string_value(t), rc, &r, &err);
        msgl__rendered_free(&r);
    }
    assert_true(i > 90);
    json_decref(all);
}

static void test_templates(void **state)
{
    (void)state;
    json_t *all = load_vectors(), *c;
    size_t i;
    json_array_foreach(json_object_get(all, "cases"), i, c)
    {
        const char *file = json_string_value(json_object_get(c, "file"));
        const char *talk = json_string_value(json_object_get(c, "conversation"));
        const char *opts = json_string_value(json_object_get(c, "options"));
        char path[512], name[256];
        snprintf(path, sizeof path, VECTORS "%s", file);
        snprintf(name, sizeof name, "%s, %s, %s", file, talk, opts);
        size_t len;
        char *source = read_text(path, &len);
        json_t *vars =
            json_pack("{s:b, s:n, s:n, s:O}", "add_generation_prompt", 0, "tools", "documents",
                      "messages", json_object_get(json_object_get(all, "conversations"), talk));
        assert_non_null(vars);
        json_object_update(vars, json_object_get(json_object_get(all, "options"), opts));
        msgl_rendered r;
        msgl_err err;
        const int rc = render(source, len, vars, json_object_get(all, "tokens"), NULL, &r, &err);
        check(c, name, rc, &r, &err);
        msgl__rendered_free(&r);
        json_decref(vars);
        free(source);
    }
    assert_true(i > 400);
    json_decref(all);
}

static void expect_status(const char *source, const char *vars, const msgl_render_limits *limits,
                          int want, const char *in_text)
{
    json_t *v = json_loads(vars, 0, NULL);
    msgl_rendered r;
    msgl_err err;
    assert_non_null(v);
    const int rc = render(source, strlen(source), v, NULL, limits, &r, &err);
    if (rc != want || strstr(err.text, in_text) == NULL) {
        fail_msg("%s: %d '%s', expected %d '%s'", source, rc, err.text, want, in_text);
    }
    msgl__rendered_free(&r);
    json_decref(v);
}

static void test_unsupported(void **state)
{
    (void)state;
    expect_status("{% include 'x' %}", "{}", NULL, MSGL_EUNSUPPORTED, "'include'");
    expect_status("{% block a %}{% endblock %}", "{}", NULL, MSGL_EUNSUPPORTED, "'block'");
    expect_status("{% autoescape true %}{% endautoescape %}", "{}", NULL, MSGL_EUNSUPPORTED,
                  "'autoescape'");
    expect_status("{{ 18446744073709551616 }}", "{}", NULL, MSGL_EFORMAT,
                  "an integer does not fit into 64 bits");
    expect_status("{{ 9223372036854775807 + 1 }}", "{}", NULL, MSGL_EINVAL,
                  "an integer does not fit into 64 bits");
    static const char *const filters[][2] = {{"{{ 5|filesizeformat }}", "'filesizeformat'"},
                                             {"{{ 5|pprint }}", "'pprint'"},
                                             {"{{ [1]|random }}", "'random'"},
                                             {"{{ 'a'.encode() }}", "'encode'"}};
    for (size_t i = 0; i < MSGL_COUNT(filters); i++) {
        expect_status(filters[i][0], "{}", NULL, MSGL_EINVAL, filters[i][1]);
    }
    expect_status("{{ '\\ud800' }}", "{}", NULL, MSGL_EUNSUPPORTED, "surrogate");
    expect_status("{{ '\"\\\\ud800\"'|from_json }}", "{}", NULL, MSGL_EINVAL,
                  "uXXXX escape at byte 1");
    expect_status("{{ '\xff' }}", "{}", NULL, MSGL_EFORMAT, "UTF-8");
    expect_status("{{ 9999999999 * 9999999999 }}", "{}", NULL, MSGL_EINVAL, "64 bits");
    expect_status("{{ '99999999999999999999'|from_json + 1 }}", "{}", NULL, MSGL_EINVAL, "'int'");
}

// Integers beyond 64 bits among the variables keep their digits, as Python's do.
static void test_large_integers(void **state)
{
    (void)state;
    static const char vars[] = "{\"x\":12345678901234567890123,\"y\":[-9223372036854775809]}";
    static const char *const cases[][2] = {
        {"{{ x }} {{ y }} {{ x ~ 'a' }} {{ x|string }} {{ x|int }}",
         "12345678901234567890123 [-9223372036854775809] 12345678901234567890123a "
         "12345678901234567890123 12345678901234567890123"},
        {"{{ y|tojson }} {{ {'a': x}|tojson }} {{ x|float }}",
         "[-9223372036854775809] {\"a\": 12345678901234567890123} 1.2345678901234568e+22"},
        {"{{ x is integer }} {{ x is number }} {{ x is float }} {{ x is string }} {{ not x }} "
         "{{ x == x }} {{ x == y[0] }} {{ {x: 1}[x] }}",
         "True True False False False True False 1"},
    };
    json_t *v = msgl__json_loadb(vars, strlen(vars), 0, NULL, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        msgl_rendered r;
        msgl_err err;
        const int rc = render(cases[i][0], strlen(cases[i][0]), v, NULL, NULL, &r, &err);
        if (rc != 0) fail_msg("%s: %s", cases[i][0], err.text);
        assert_string_equal(msgl__strbuf_str(&r.text), cases[i][1]);
        msgl__rendered_free(&r);
    }
    json_decref(v);
}

// What nobody has is an error where it is reached, in blocks too, and nothing before.
static void test_unknown_names(void **state)
{
    (void)state;
    static const char *const sources[] = {
        "a\n{% if x %}{{ x | nosuch }}{% endif %}",
        "a\n{% for i in x %}{{ i is nosuch }}{% endfor %}",
        "a\n{% if x %}{% filter nosuch %}b{% endfilter %}{% endif %}",
        "a\n{% if x %}{% set v | nosuch %}b{% endset %}{% endif %}",
        "a\n{{ (x | upper | nosuch | lower) if x }}",
        "a\n{% macro m(v) %}{{ v|nosuch }}{% endmacro %}{{ m(x) if x }}"};
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
        expect_status(sources[i], "{\"x\": \"\"}", NULL, 0, "");
        expect_status(sources[i], "{\"x\": \"a\"}", NULL, MSGL_EINVAL, "line 2: No ");
        expect_status(sources[i], "{\"x\": \"a\"}", NULL, MSGL_EINVAL, "named 'nosuch' found.");
    }
}

static void test_limits(void **state)
{
    (void)state;
    const msgl_render_limits few = {.max_steps = 1000}, shallow = {.max_depth = 30},
                             small = {.max_output = 100};
    expect_status("{% for i in range(10**9) %}x{% endfor %}", "{}", NULL, MSGL_ELIMIT, "100000");
    expect_status("{{ 'a' * 10**10 }}", "{}", NULL, MSGL_ELIMIT, "bytes");
    expect_status("{{ ([0] * 10**10)|length }}", "{}", NULL, MSGL_ELIMIT, "elements");
    expect_status("{{ '%99999d' % 1 }}{{ '%d' }}", "{}", NULL, MSGL_ELIMIT, "width");
    expect_status("{{ '{:99999}'.format(1) }}", "{}", NULL, MSGL_ELIMIT, "width");
    expect_status("{{ strftime_now('%999999d') }}", "{}", NULL, MSGL_ELIMIT, "too long");
    expect_status("{{ 'x'.center(10**12) }}", "{}", NULL, MSGL_ELIMIT, "bytes");
    expect_status("{{ 'x'|indent(10**12, true) }}", "{}", NULL, MSGL_ELIMIT, "bytes");
    expect_status("{{ [1]|batch(10**12, 0)|list }}", "{}", NULL, MSGL_ELIMIT, "elements");
    expect_status("{{ [1]|tojson(indent=10**12) }}", "{}", NULL, MSGL_ELIMIT, "bytes");
    expect_status("{% for i in range(900) %}{% for j in range(900) %}{% for k in range(900) %}"
                  "{% endfor %}{% endfor %}{% endfor %}",
                  "{}", NULL, MSGL_ELIMIT, "steps");
    expect_status("{% for i in range(900) %}{{ i }}{% endfor %}", "{}", &few, MSGL_ELIMIT, "steps");
    expect_status("{% for i in range(900) %}{{ i }}{% endfor %}", "{}", &small, MSGL_ELIMIT,
                  "bytes");
    expect_status("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{}", NULL, MSGL_ELIMIT,
                  "deep");
    expect_status("{% for x in l recursive %}{{ loop(l) }}{% endfor %}", "{\"l\": [1]}", NULL,
                  MSGL_ELIMIT, "deep");
    expect_status("{% set n = namespace() %}{% set n.n = n %}{{ n }}", "{}", NULL, MSGL_ELIMIT,
                  "deep");
    expect_status("{% set n = namespace(t=[]) %}{% for i in range(9000) %}{% set n.t = [n.t] %}"
                  "{% endfor %}{{ n.t|tojson }}",
                  "{}", NULL, MSGL_ELIMIT, "deep");
    expect_status("{{ x|tojson }}",
                  "{\"x\": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}",
                  &shallow, MSGL_ELIMIT, "deep");
    expect_status(
        "{{ 'ab'|map('map'"
#define TEN ", 'map', 'map', 'map', 'map', 'map', 'map', 'map', 'map', 'map', 'map'"
#define HUNDRED TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN
        HUNDRED HUNDRED HUNDRED HUNDRED HUNDRED HUNDRED HUNDRED HUNDRED HUNDRED HUNDRED HUNDRED
        ")|list }}",
        "{}", NULL, MSGL_ELIMIT, "deep");
    // Doubling text in a loop meets the memory limit long before the step limit.
    expect_status("{% set n = namespace(s='0123456789') %}{% for i in range(99) %}"
                  "{% set n.s = n.s ~ n.s %}{% endfor %}",
                  "{}", NULL, MSGL_ELIMIT, "bytes");
    expect_status("{% for i in range(99999) %}{% set l = 'y' * 9999999 %}{% endfor %}", "{}", NULL,
                  MSGL_ELIMIT, "");
}

// 1,000 names in a block, set again and again: each is looked for among the others.
static void expect_many_names(void)
{
    static char source[1 << 16];
    size_t n = (size_t)sprintf(source, "{%% for i in range(200) %%}");
    for (int i = 0; i < 1000; i++) n += (size_t)sprintf(source + n, "{%% set v%d = i %%}", i);
    (void)sprintf(source + n, "{%% endfor %%}");
    expect_status(source, "{}", &(msgl_render_limits){.max_steps = 2000000}, MSGL_ELIMIT, "steps");
    memset(source, 'a', 60000);
    memcpy(source, "{% for i in range(5000) %}{% if ", strlen("{% for i in range(5000) %}{% if "));
    (void)sprintf(source + 60000, " %%}{%% endif %%}{%% endfor %%}");
    expect_status(source, "{}", &(msgl_render_limits){.max_steps = 2000000}, MSGL_ELIMIT, "steps");
}

// Work inside one filter counts as the nodes that would take as long, so that no template renders
// for longer than about a second. Each of these passes over 3 MB, one character after the other.
static void test_long_work(void **state)
{
    (void)state;
    static const char *const work[] = {"x|upper",
                                       "x|lower",
                                       "x|title",
                                       "x.swapcase()",
                                       "x|escape",
                                       "x|wordcount",
                                       "x.split()",
                                       "x.splitlines()",
                                       "x.isalpha()",
                                       "x is lower",
                                       "x.rfind('q')",
                                       "x.strip('ea\xc3\xa9')",
                                       "x|replace('','')",
                                       "x.replace('a', 'e')",
                                       "x.count('a')",
                                       "x.expandtabs()",
                                       "[x]|string",
                                       "[x, '']|tojson",
                                       "(x|tojson)|from_json",
                                       "x|int",
                                       "x|float",
                                       "'ab' in x",
                                       "x.find('ab')",
                                       "x.split('ab')"};
    for (size_t i = 0; i < sizeof work / sizeof work[0]; i++) {
        char source[256];
        snprintf(source, sizeof source,
                 "{%% set x = 'aé' * 1000000 %%}{%% for i in range(8) %%}{%% set y = %s %%}"
                 "{%% endfor %%}",
                 work[i]);
        expect_status(source, "{}", &(msgl_render_limits){.max_steps = 3000000}, MSGL_ELIMIT,
                      "steps");
    }
    // Numbers as text; names in blocks that have many of them, or long ones; sums.
    static const char *const loops[] = {
        "{% set y = i / 3 ~ '' %}",         "{% set y = 1e300|round(2) %}",
        "{% set y = '%.300f' % 1e300 %}",   "{% set y = '{:.2f}'.format(1e300) %}",
        "{% set y = strftime_now('%A') %}", "{% set y = l|sum %}"};
    for (size_t i = 0; i < sizeof loops / sizeof loops[0]; i++) {
        char source[256];
        snprintf(source, sizeof source,
                 "{%% set l = range(99)|list %%}{%% for i in range(99999) %%}%s{%% endfor %%}",
                 loops[i]);
        expect_status(source, "{}", &(msgl_render_limits){.max_steps = 1300000}, MSGL_ELIMIT,
                      "steps");
    }
    expect_many_names();
    // Tuples that share their elements: a few hundred values, a hundred million to hash.
    expect_status("{% set t = (1,) * 100 %}{% set t = (t,) * 100 %}{% set t = (t,) * 100 %}"
                  "{% set t = (t,) * 100 %}{{ {t: 1} }}",
                  "{}", NULL, MSGL_ELIMIT, "steps");
}

// Another thread ends a render, in the middle of whatever it does.
static void test_cancelled(void **state)
{
    (void)state;
    atomic_bool cancelled = true;
    const msgl_render_limits limits = {.cancelled = &cancelled};
    expect_status("{% for i in range(10**5) %}{% endfor %}", "{}", &limits, MSGL_EABORTED, "");
    expect_status("{{ ('a' * 1000000)|upper|length }}", "{}", &limits, MSGL_EABORTED, "");
    atomic_store(&cancelled, false);
    expect_status("{{ ('a' * 1000000)|upper|length }}", "{}", &limits, 0, "");
}

// Nesting in the source: refused while parsing, without running down the native stack.
static void test_source_depth(void **state)
{
    (void)state;
    static const char *const units[][3] = {{"{{ ", "(", " }}"},
                                           {"{{ ", "[", " }}"},
                                           {"{{ ", "not ", "x }}"},
                                           {"{{ ", "- ", "x }}"},
                                           {"{{ x", ".a", " }}"},
                                           {"{{ x", " + x", " }}"},
                                           {"{{ x", "|list", " }}"},
                                           {"", "{% if x %}", ""},
                                           {"", "{% for x in y %}", ""},
                                           {"", "{% macro f() %}", ""},
                                           {"{{ x", " if x else x", " }}"},
                                           {"{{ ", "{x:", "}}"},
                                           {"{{ x", "[0", "}}"},
                                           {"{{ x", " == x", " }}"}};
    char *source = malloc(1 << 21);
    assert_non_null(source);
    for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
        size_t n = (size_t)sprintf(source, "%s", units[u][0]);
        for (int i = 0; i < 100000; i++) {
            const size_t k = strlen(units[u][1]);
            memcpy(source + n, units[u][1], k);
            n += k;
        }
        n += (size_t)sprintf(source + n, "%s", units[u][2]);
        msgl_chat_template *t;
        msgl_err err;
        const int rc = msgl__chat_template_parse(source, n, &t, &err);
        if (rc != MSGL_ELIMIT) fail_msg("%s...: %d %s", units[u][1], rc, err.text);
        assert_null(t);
    }
    free(source);
}

// --- provenance: every byte from the client is in a span, every byte of the template is not ---
static void expect_marked(const char *source, const char *vars, const char *marked, bool foreign)
{
    json_t *v = json_loads(vars, 0, NULL), *tokens = json_pack("{s:s}", "bos", "<s>");
    msgl_rendered r;
    msgl_err err;
    assert_non_null(v);
    if (render(source, strlen(source), v, tokens, NULL, &r, &err) != 0) {
        fail_msg("%s: %s", source, err.text);
    }
    const msgl_text_span *spans = foreign ? r.foreign : r.untrusted;
    const size_t num = foreign ? r.num_foreign : r.num_untrusted;
    // Their bytes between braces.
    char got[1024];
    size_t n = 0, span = 0;
    for (size_t i = 0; i <= r.text.len; i++) {
        if (span < num && spans[span].end == i) {
            got[n++] = '}';
            span++;
        }
        if (span < num && spans[span].start == i) got[n++] = '{';
        if (i < r.text.len) got[n++] = r.text.data[i];
    }
    got[n] = '\0';
    assert_int_equal(span, num);
    if (strcmp(got, marked) != 0) fail_msg("%s:\ngot      %s\nexpected %s", source, got, marked);
    msgl__rendered_free(&r);
    json_decref(v);
    json_decref(tokens);
}

static void expect_spans(const char *source, const char *vars, const char *marked)
{
    expect_marked(source, vars, marked, false);
}

// What an assistant's messages bring is the model's own, whatever becomes of it; all else that
// comes with a request is not, also where it only says so, nor what was made of both.
static void test_foreign(void **state)
{
    (void)state;
    static const char vars[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"ask\"},{\"role\":\"assistant\","
        "\"content\":\"say\",\"tool_calls\":[{\"name\":\"f\",\"arguments\":{\"k\":\"v\"}}]},"
        "{\"role\":\"tool\",\"content\":{\"role\":\"assistant\",\"content\":\"got\"}}],"
        "\"tools\":[{\"role\":\"assistant\",\"content\":\"def\"}]}";
    static const char all[] =
        "{% for m in messages[:2] %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    expect_marked(all, vars, "<user>{ask}<assistant>say", true);
    expect_marked(all, vars, "<user>{ask}<assistant>{say}", false);
    expect_marked("{{ messages[1].tool_calls|tojson }}{{ messages[2].content.content }}"
                  "{{ tools[0].content }}",
                  vars, "[{\"name\": \"f\", \"arguments\": {\"k\": \"v\"}}]{gotdef}", true);
    expect_marked("{{ messages[1].content|upper ~ messages[0].content|upper ~ 'x' }}", vars,
                  "SAY{ASK}x", true);
    expect_marked("{{ (messages[0:2]|tojson)[:16] }}", vars, "{[{\"role\": \"}user{\"}", true);
}

static void test_provenance(void **state)
{
    (void)state;
    const char *v =
        "{\"u\": \"user\", \"w\": \" x y \", \"n\": 5, \"l\": [\"a\", \"b\"],"
        " \"d\": {\"k\": \"v\", \"n\": 1}, \"m\": [{\"role\": \"user\"}, {\"role\": \"evil\"}],"
        " \"e\": \"\\n<\"}";
    expect_spans("a{{ u }}b", v, "a{user}b");
    expect_spans("{{ 'a' + u + 'b' ~ bos ~ u }}", v, "a{user}b<s>{user}");
    expect_spans("{{ ('a' + u + 'b')[1:5] }}|{{ ('a' + u + 'b')[::-1] }}|{{ ('ab' ~ u)[1] }}", v,
                 "{user}|b{resu}a|b");
    expect_spans("{{ ('ab' ~ u).upper() }} {{ ('x' ~ u)|title }} {{ w|trim }}", v,
                 "AB{USER} X{user} {x y}");
    expect_spans("{{ 'a-b'.replace('-', u) }} {{ u.replace('s', '-') }}", v, "a{user}b {u}-{er}");
    expect_spans("{{ l|join('-') }} {{ ','.join(l) }} {{ ('p' ~ u ~ 'q').split('s') }}", v,
                 "{a}-{b} {a},{b} [{'}p{u'}, {'er}q{'}]");
    expect_spans("{{ d|tojson }} {{ d }} {{ ['x', u]|tojson }}", v,
                 "{{\"k\": \"v\", \"n\": 1}} {{'k': 'v', 'n': 1}} [\"x\", {\"user\"}]");
    expect_spans("{{ e|tojson }} {{ e|e }} {{ [e] }}", v, "{\"\\n<\"} {\n&lt;} [{'\\n<'}]");
    expect_spans("{{ '%s/%s' % (u, 'x') }} {{ '{}-{:>6}'.format('y', u) }} {{ '%s'|format(u) }}", v,
                 "{user}/x y-  {user} {user}");
    expect_spans(
        "{% set t %}[{{ u }}]{% endset %}{{ t }}{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(u) }}",
        v, "[{user}]<{user}>");
    expect_spans("{% filter upper %}a{{ u }}{% endfilter %}{{ ('a' ~ u)|indent(1, true) }}", v,
                 "A{USER} a{user}");
    expect_spans("{% for c in 'x' ~ u[:1] %}{{ c }}.{% endfor %}{{ n }}{{ l|length }}{{ n + 1 }}",
                 v, "x.{u}.526");
    expect_spans("{{ (u * 2)[:6] }}{{ 'ab' * 2 }}{{ u|first }}{{ (u ~ 'z')|last }}", v,
                 "{userus}abab{u}z");
    // Texts of both origins: repeated, and cut one byte behind a seam, before it and around it.
    expect_spans("{{ ('a' ~ u) * 3 }} {{ (u ~ 'bc') * 2 }}", v,
                 "a{user}a{user}a{user} {user}bc{user}bc");
    expect_spans(
        "{{ ('ab' ~ u)[:3] }} {{ ('ab' ~ u)[1:3] }} {{ (u ~ 'bc')[:5] }} {{ (u ~ 'bc')[3:5] }}", v,
        "ab{u} b{u} {user}b {r}b");
    expect_spans("{{ (u ~ 'bc')[:4] }} {{ (u ~ 'bc')[4:] }} {{ ('ab' ~ u ~ 'c')[1:4] }}", v,
                 "{user} bc b{us}");
    // Decoded JSON: strings by their bytes, punctuation of printed containers by their bracket's.
    expect_spans("{% set j = '{\"a\": \"' ~ u ~ '\\\\n' ~ u ~ '\", \"b\": \"x\"}' %}"
                 "{{ (j|from_json).a }} {{ (j|from_json).b }} {{ j|from_json|tojson }}",
                 v, "{user}\n{user} x {\"a\": {\"user}\\n{user\"}, \"b\": \"x\"}");
    expect_spans("{{ (d|tojson)|from_json }} {{ (d|tojson|from_json).k }}", v,
                 "{{'k': 'v', 'n': 1}} {v}");
    // An integer keeps its digits, however many.
    expect_spans("{% set n = '[12345678901234567890123, -9223372036854775809, "
                 "9223372036854775807]'|from_json %}{{ n|tojson }} {{ n }} {{ n[0] }} "
                 "{{ n[0] is integer and n[0] is number }} {{ n[0] == n[1] }} "
                 "{{ n[0] == ('12345678901234567890123'|from_json) }} {{ n[0] is string }}",
                 v,
                 "[12345678901234567890123, -9223372036854775809, 9223372036854775807] "
                 "[12345678901234567890123, -9223372036854775809, 9223372036854775807] "
                 "12345678901234567890123 True False True False");
    // A role that every API knows is the template's; any other is the client's.
    expect_spans("{% for x in m %}<|{{ x.role }}|>{% endfor %}", v, "<|user|><|{evil}|>");
    expect_spans(
        "{% set ns = namespace(s='') %}{% for i in range(3) %}{% set ns.s = ns.s ~ i ~ u %}"
        "{% endfor %}{{ ns.s }}",
        v, "0{user}1{user}2{user}");
}

// What `text = text + more` shares must not show: earlier values keep their bytes.
static void test_append_keeps_older_strings(void **state)
{
    (void)state;
    expect_spans(
        "{% set a = 'x' + 'y' %}{% set b = a + '1' %}{% set c = a + '2' %}{% set d = b + '3' %}"
        "{{ a }} {{ b }} {{ c }} {{ d }} {{ a ~ a }} {{ b ~ b }}",
        "{}", "xy xy1 xy2 xy13 xyxy xy1xy1");
}

// --- folders ---
static void put(const char *dir, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void expect_folder(const char *dir, const char *vars, int status, const char *text)
{
    msgl_chat_templates *t;
    msgl_err err = {0};
    msgl_rendered r = {0};
    json_t *v = json_loads(vars, 0, NULL);
    assert_non_null(v);
    int rc = msgl__chat_templates_load(dir, &t, &err);
    if (rc == 0) rc = msgl__chat_templates_render(t, v, NULL, &r, &err);
    if (rc != status) fail_msg("%d %s", rc, err.text);
    const char *got = rc == 0 ? msgl__strbuf_str(&r.text) : err.text;
    if (rc == 0 ? strcmp(got, text) != 0 : strstr(got, text) == NULL) {
        fail_msg("got '%s', expected '%s'", got, text);
    }
    msgl__rendered_free(&r);
    msgl__chat_templates_free(t);
    json_decref(v);
}

// What msgl__chat_templates_load_spec makes of spec: the text that it renders, or the error.
static void expect_spec(const char *dir, const char *spec, int status, const char *text)
{
    msgl_chat_templates *t = NULL;
    msgl_err err = {0};
    msgl_rendered r = {0};
    json_t *v = json_loads("{\"tools\": [1]}", 0, NULL);
    int rc = msgl__chat_templates_load_spec(dir, spec, &t, &err);
    if (rc == 0) rc = msgl__chat_templates_render(t, v, NULL, &r, &err);
    const char *got = rc == 0 ? msgl__strbuf_str(&r.text) : err.text;
    if (rc != status || (rc == 0 ? strcmp(got, text) != 0 : strstr(got, text) == NULL)) {
        fail_msg("%s: %d '%s', expected %d '%s'", spec, rc, got, status, text);
    }
    msgl__rendered_free(&r);
    msgl__chat_templates_free(t);
    json_decref(v);
}

// An operator's template: a file, or a text, in place of whatever the folder has.
static void test_own(void **state)
{
    (void)state;
    char dir[] = "/tmp/msgl-template-XXXXXX", path[128];
    assert_non_null(mkdtemp(dir));
    put(dir, "tokenizer_config.json",
        "{\"bos_token\": \"<B>\", \"chat_template\": [{\"name\": \"default\", \"template\": \"{% "
        "no\"}]}");
    expect_spec(dir, NULL, MSGL_EFORMAT, "unknown tag 'no'");
    expect_spec(dir, "{{ bos_token }}!", 0, "<B>!");
    expect_spec(dir, "{% if 1 %}a/b{% endif %}", 0, "a/b");
    snprintf(path, sizeof path, "%s/own.jinja", dir);
    expect_spec(dir, path, MSGL_EINVAL, "a file that exists");
    put(dir, "own.jinja", "{{ bos_token }}file");
    expect_spec(dir, path, 0, "<B>file");
    put(dir, "own.jinja", "nothing to render");
    expect_spec(dir, path, MSGL_EFORMAT, "neither {{ nor {% is in it");
    put(dir, "own.jinja", "{{ 1");
    expect_spec(dir, path, MSGL_EFORMAT, "own.jinja: chat template line 1: ");
    remove(path);
    snprintf(path, sizeof path, "%s/{{ x }}", dir); // a file may be called anything
    put(dir, "{{ x }}", "{{ 'from the file' }}");
    expect_spec(dir, path, 0, "from the file");
    remove(path);
    expect_spec(dir, "{{ x }}/", 0, "/");
    expect_spec(dir, "{{ x }}.jinja", MSGL_EINVAL, "a file that exists");
    expect_spec(dir, dir, MSGL_EIO, "not a regular file");
    expect_spec(dir, "no\nfile", MSGL_EINVAL, "chat_template is \"no?file\"; allowed: ");
    expect_spec(dir, "", MSGL_EINVAL, "allowed: ");
    expect_spec(dir, "{{ 1", MSGL_EFORMAT, "chat template line 1: ");
    // None, but the special tokens.
    msgl_chat_templates *t;
    msgl_chat_template *use;
    msgl_rendered r = {0};
    msgl_err err;
    assert_int_equal(msgl__chat_templates_load_own(dir, "", &t, NULL), 0);
    assert_string_equal(msgl__chat_templates_text(t), "");
    json_t *v = json_object();
    assert_int_equal(msgl__chat_templates_render(t, v, NULL, &r, &err), MSGL_EINVAL);
    assert_string_equal(err.text, "the model has no chat template");
    assert_int_equal(msgl__chat_template_parse("{{ bos_token }}", 15, &use, NULL), 0);
    assert_int_equal(msgl__chat_templates_render_as(t, use, v, NULL, &r, NULL), 0);
    assert_string_equal(msgl__strbuf_str(&r.text), "<B>");
    assert_int_equal(r.num_untrusted, 0);
    msgl__rendered_free(&r);
    msgl__chat_template_free(use);
    msgl__chat_templates_free(t);
    json_decref(v);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    remove(path);
    rmdir(dir);
}

static void test_folders(void **state)
{
    (void)state;
    char dir[] = "/tmp/msgl-template-XXXXXX", sub[64];
    assert_non_null(mkdtemp(dir));
    expect_folder(dir, "{}", MSGL_ENOENT, "no chat template");
    put(dir, "tokenizer_config.json",
        "{\"bos_token\": {\"content\": \"<B>\"}, \"eos_token\": \"<E>\"}");
    expect_folder(dir, "{}", MSGL_ENOENT, "no chat template");
    put(dir, "chat_template.json", "{\"chat_template\": \"J{{ bos_token }}\"}");
    expect_folder(dir, "{}", 0, "J<B>");
    put(dir, "tokenizer_config.json",
        "{\"bos_token\": {\"content\": \"<B>\"}, \"eos_token\": \"<E>\", \"pad_token\": null,"
        " \"add_bos_token\": true, \"additional_special_tokens\": [\"<x>\", {\"content\": "
        "\"<y>\"}],"
        " \"chat_template\": \"S{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ unk_token }}"
        "{{ additional_special_tokens }}\"}");
    expect_folder(dir, "{}", 0, "S<B><E>['<x>', '<y>']");
    put(dir, "special_tokens_map.json", "{\"unk_token\": \"<U>\", \"bos_token\": \"no\"}");
    expect_folder(dir, "{\"eos_token\": \"mine\"}", 0, "S<B>mine<U>['<x>', '<y>']");
    put(dir, "tokenizer_config.json",
        "{\"chat_template\": [{\"name\": \"default\", \"template\": \"D\"}, {\"name\": \"rag\", "
        "\"template\":"
        " \"{{\"}, {\"name\": \"tool_use\", \"template\": \"T{{ tools|length }}\"}]}");
    expect_folder(dir, "{}", 0, "D");
    expect_folder(dir, "{\"tools\": null}", 0, "D");
    expect_folder(dir, "{\"tools\": [1]}", 0, "T1");
    msgl_chat_templates *t;
    assert_int_equal(msgl__chat_templates_load(dir, &t, NULL), 0);
    assert_string_equal(msgl__chat_templates_text(t), "D\nT{{ tools|length }}\n");
    msgl__chat_templates_free(t);
    put(dir, "chat_template.jinja", "F{{ bos_token }}\n");
    expect_folder(dir, "{\"tools\": [1]}", 0, "Fno");
    snprintf(sub, sizeof sub, "%s/additional_chat_templates", dir);
    assert_int_equal(mkdir(sub, 0700), 0);
    put(sub, "tool_use.jinja", "G");
    expect_folder(dir, "{\"tools\": [1]}", 0, "G");
    put(dir, "chat_template.jinja",
        "{{ tools }}{{ documents }}{{ add_generation_prompt }}{{ messages }}");
    expect_folder(dir, "{}", 0, "NoneNoneFalse");
    expect_folder(dir, "{\"add_generation_prompt\": true, \"messages\": [{\"reasoning\": \"r\"}]}",
                  0, "NoneNoneTrue[{'thinking': 'r', 'reasoning': 'r', 'reasoning_content': 'r'}]");
    put(dir, "chat_template.jinja",
        "{% for m in messages %}{% if m.role == 'system' or m.role == 'user' %}{{ m.role }}:{{ "
        "m.content }};{% endif %}{% endfor %}");
    const char *chat = "{\"messages\": [{\"role\": \"developer\", \"content\": \"D\"}, {\"role\": "
                       "\"user\", \"content\": \"developer\"}]}";
    expect_folder(dir, chat, 0, "system:D;user:developer;");
    put(dir, "chat_template.jinja",
        "The developer: {% for m in messages %}<|{{ m.role }}|>{% endfor %}{{ messages[0] }}");
    expect_folder(dir, chat, 0,
                  "The developer: <|system|><|user|>{'role': 'system', 'content': 'D'}");
    put(dir, "chat_template.jinja",
        "{% for m in messages %}{{ 'D' if m['role'] in ['developer'] else m.role }}{% endfor %}");
    expect_folder(dir, chat, 0, "Duser");
    put(dir, "chat_template.jinja", "{{ raise_exception('a\\nb') }}");
    expect_folder(dir, "{}", MSGL_EINVAL, "a b");
    put(dir, "chat_template.jinja", "{% include 'x' %}");
    expect_folder(dir, "{}", MSGL_EUNSUPPORTED,
                  "chat_template.jinja: chat template line 1: the tag 'include'");
    put(dir, "chat_template.jinja", "x");
    put(dir, "tokenizer_config.json", "[1]");
    expect_folder(dir, "{}", MSGL_EFORMAT, "tokenizer_config.json: expected a JSON object");
    put(dir, "tokenizer_config.json", "{\"a\":");
    expect_folder(dir, "{}", MSGL_EFORMAT, "tokenizer_config.json: line 1");
    put(dir, "tokenizer_config.json",
        "{\"model_max_length\": 1000000000000000019884624838656, \"bos_token\": \"<B>\","
        " \"eos_token\": NaN}");
    put(dir, "special_tokens_map.json", "{\"unk_token\": \"<U>\", \"x\": [-Infinity, 1e999]}");
    put(dir, "chat_template.jinja", "{{ bos_token }}{{ unk_token }}{{ eos_token is defined }}");
    expect_folder(dir, "{}", 0, "<B><U>False");
    char path[128];
    static const char *const files[] = {"chat_template.jinja", "chat_template.json",
                                        "tokenizer_config.json", "special_tokens_map.json",
                                        "additional_chat_templates/tool_use.jinja"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        assert_int_equal(unlink(path), 0);
    }
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        assert_int_equal(mkfifo(path, 0600), 0);
        alarm(60); // an open that waits for a writer ends the test
        expect_folder(dir, "{}", MSGL_EIO, "not a regular file");
        alarm(0);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(sub), 0);
    assert_int_equal(rmdir(dir), 0);
}

// --- memory and threads ---
static const char *const BUSY =
    "{% macro f(x, y='d') %}{{ x|upper }}{{ y }}{% endmacro %}{% set ns = namespace(s='', l=[]) %}"
    "{% for m in messages|selectattr('role') %}{% set ns.s = ns.s ~ f(m.role) ~ m.content %}"
    "{% set ns.l = ns.l + [m] %}{% endfor %}{{ ns.s }}{{ ns.l|tojson(indent=2) }}{{ ns.l }}"
    "{% set d = dict(a=1, **{'b': 2}) %}{{ d|dictsort }}{{ '%s-%5.1f' % ('a', 2) }}{{ "
    "messages[::-1] }}";
static const char *const TALK = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hé\"}, "
                                "{\"role\": \"assistant\", \"content\": \"yo\"}]}";

static void test_failing_allocations(void **state)
{
    (void)state;
    json_t *vars = json_loads(TALK, 0, NULL);
    int rc = MSGL_ENOMEM;
    uint64_t nth = 1;
    for (; rc != 0 && nth < 1000; nth++) {
        msgl_rendered r = {0};
        msgl_err err;
        msgl__mem_fail_from(nth);
        rc = render(BUSY, strlen(BUSY), vars, NULL, NULL, &r, &err);
        msgl__mem_fail_from(0);
        if (rc != 0) assert_int_equal(rc, MSGL_ENOMEM);
        msgl__rendered_free(&r);
    }
    assert_int_equal(rc, 0);
    assert_true(nth > 3);
    json_decref(vars);
}

static void *render_often(void *arg)
{
    json_t *vars = json_loads(TALK, 0, NULL);
    char *first = NULL;
    for (int i = 0; i < 200; i++) {
        msgl_rendered r = {0};
        msgl_err err;
        if (msgl__chat_template_render_at(arg, vars, NULL, NULL, &CLOCK, &r, &err) != 0) break;
        if (first == NULL) first = strdup(msgl__strbuf_str(&r.text));
        if (strcmp(first, msgl__strbuf_str(&r.text)) != 0) first[0] = '\0';
        msgl__rendered_free(&r);
    }
    json_decref(vars);
    return first;
}

static void test_threads(void **state)
{
    (void)state;
    msgl_chat_template *t;
    msgl_err err;
    assert_int_equal(msgl__chat_template_parse(BUSY, strlen(BUSY), &t, &err), 0);
    pthread_t th[4];
    void *text[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&th[i], NULL, render_often, t), 0);
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_join(th[i], &text[i]), 0);
    for (int i = 0; i < 4; i++) {
        assert_non_null(text[i]);
        assert_true(strlen(text[i]) > 100);
        assert_string_equal(text[i], text[0]);
    }
    for (int i = 0; i < 4; i++) free(text[i]);
    msgl__chat_template_free(t);
}

// A long conversation: memory grows with its size, not with its square.
static void test_long_conversation(void **state)
{
    (void)state;
    json_t *messages = json_array(), *vars = json_pack("{s:o}", "messages", messages);
    char text[1024];
    memset(text, 'x', sizeof text);
    for (int i = 0; i < 5000; i++) {
        json_array_append_new(messages,
                              json_pack("{s:s, s:s%}", "role", i % 2 ? "assistant" : "user",
                                        "content", text, sizeof text));
    }
    const char *source =
        "{% set ns = namespace(s='') %}{% for m in messages %}{% set rest = messages[loop.index:] "
        "%}"
        "{% set ns.s = ns.s ~ '<|' ~ m.role ~ '|>' + m.content %}{% endfor %}{{ ns.s }}";
    msgl_rendered r;
    msgl_err err;
    if (render(source, strlen(source), vars, NULL, NULL, &r, &err) != 0) fail_msg("%s", err.text);
    assert_int_equal(r.text.len,
                     5000 * 1024 + 2500 * (strlen("<|assistant|>") + strlen("<|user|>")));
    assert_int_equal(r.num_untrusted, 5000);
    msgl__rendered_free(&r);
    json_decref(vars);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_foreign),
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_templates),
        cmocka_unit_test(test_unsupported),
        cmocka_unit_test(test_large_integers),
        cmocka_unit_test(test_unknown_names),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_long_work),
        cmocka_unit_test(test_cancelled),
        cmocka_unit_test(test_source_depth),
        cmocka_unit_test(test_provenance),
        cmocka_unit_test(test_append_keeps_older_strings),
        cmocka_unit_test(test_folders),
        cmocka_unit_test(test_own),
        cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_long_conversation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
