// SPDX-License-Identifier: Apache-2.0
//
// Bias and penalties of the sampler: the changed logits exactly what transformers' processors
// and OpenAI's formula make of them in torch (tests/vectors/sampling), the tokens those that the
// changed logits would give, the logits afterwards as they were, and the other rows untouched.
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/req_extra.h"
#include "kernel/kernel.h"
#include "kernel/ref/adjust.h"

enum { MAX_VOCAB = 256, MAX_TOKENS = 256, PLACE = 7, BIAS_PLACE = 3 };

// One case of the file, as a call of one row. Prompt and answer do not begin at the pool's start.
struct adjust_case {
    int vocab;
    float logits[MAX_VOCAB], adjusted[MAX_VOCAB];
    int32_t pool[MAX_TOKENS];
    float saved[MAX_TOKENS];
    msgl_bias bias[MAX_VOCAB];
    float bias_saved[MAX_VOCAB];
    msgl_sample_row row;
    msgl_sample_call call;
};

static int read_bits(const json_t *from, float *to)
{
    const size_t n = json_array_size(from);
    assert_in_range(n, 1, MAX_VOCAB);
    for (size_t i = 0; i < n; i++) {
        const uint32_t u = (uint32_t)json_integer_value(json_array_get(from, i));
        memcpy(&to[i], &u, sizeof u);
    }
    return (int)n;
}

static int read_tokens(const json_t *from, int32_t *to)
{
    const size_t n = json_array_size(from);
    assert_true(n < MAX_TOKENS / 2 - PLACE);
    for (size_t i = 0; i < n; i++) to[i] = (int32_t)json_integer_value(json_array_get(from, i));
    return (int)n;
}

static float number(const json_t *j, const char *name)
{
    const json_t *v = json_object_get(j, name);
    assert_true(json_is_number(v));
    return (float)json_number_value(v);
}

static void read_case(const json_t *j, struct adjust_case *c)
{
    *c = (struct adjust_case){0};
    c->vocab = read_bits(json_object_get(j, "logits"), c->logits);
    assert_int_equal(read_bits(json_object_get(j, "adjusted"), c->adjusted), c->vocab);
    msgl_sample_row *r = &c->row;
    r->adjusts = true;
    r->top_p = 1;
    r->tokens = PLACE;
    r->prompt_len = read_tokens(json_object_get(j, "prompt"), c->pool + PLACE);
    r->position =
        r->prompt_len + read_tokens(json_object_get(j, "answer"), c->pool + PLACE + r->prompt_len);
    r->repetition = number(j, "repetition_penalty");
    r->frequency = number(j, "frequency_penalty");
    r->presence = number(j, "presence_penalty");
    r->bias = BIAS_PLACE;
    const json_t *bias = json_object_get(j, "logit_bias");
    r->num_bias = (int32_t)json_array_size(bias);
    for (int i = 0; i < r->num_bias; i++) {
        const json_t *pair = json_array_get(bias, (size_t)i);
        c->bias[BIAS_PLACE + i] = (msgl_bias){(int32_t)json_integer_value(json_array_get(pair, 0)),
                                              (float)json_number_value(json_array_get(pair, 1))};
    }
    c->call = (msgl_sample_call){.logits = c->logits,
                                 .ld = (size_t)c->vocab,
                                 .num_rows = 1,
                                 .vocab = c->vocab,
                                 .rows = r,
                                 .any_random = true,
                                 .any_filter = true,
                                 .pool = c->pool,
                                 .bias = c->bias,
                                 .bias_saved = c->bias_saved,
                                 .saved = c->saved};
}

static json_t *load_cases(void)
{
    json_error_t where;
    const char *path = MSGL_SOURCE_DIR "/tests/vectors/sampling/logits.json";
    json_t *j = json_load_file(path, 0, &where);
    if (j == NULL) fail_msg("%s: %s", path, where.text);
    assert_in_range(json_array_size(j), 10, 100);
    return j;
}

// Equal as numbers: transformers adds 0 to what has no bias, which makes 0 of -0.
static void assert_equal_logits(const float *got, const float *want, int n, size_t index)
{
    for (int i = 0; i < n; i++) {
        if (!(got[i] == want[i])) {
            fail_msg("case %zu, token %d: %.9g, not %.9g", index, i, (double)got[i],
                     (double)want[i]);
        }
    }
}

static void test_equals_torch(void **state)
{
    (void)state;
    json_t *cases = load_cases();
    for (size_t i = 0; i < json_array_size(cases); i++) {
        static struct adjust_case c;
        float before[MAX_VOCAB];
        read_case(json_array_get(cases, i), &c);
        memcpy(before, c.logits, sizeof before);
        assert_true(memcmp(before, c.adjusted, (size_t)c.vocab * sizeof before[0]) != 0);
        adjust_row(c.logits, &c.row, &c.call);
        assert_equal_logits(c.logits, c.adjusted, c.vocab, i);
        restore_row(c.logits, &c.row, &c.call);
        assert_memory_equal(c.logits, before, (size_t)c.vocab * sizeof before[0]);
    }
    json_decref(cases);
}

struct fixture {
    msgl_cpu_level top;
    msgl_kernels kernels[MSGL_CPU_MAX_LEVELS];
    msgl_pool *pool;
    msgl_arena arena;
    msgl_exec exec;
};

static int setup(void **state)
{
    static struct fixture f;
    msgl_err err;
    f.top = msgl__cpu_level_detect();
    for (int level = 0; level <= f.top; level++) {
        msgl__kernels_init_cpu(&f.kernels[level], level);
    }
    if (msgl__pool_create(2, &f.pool, &err) != 0) return -1;
    msgl__arena_init(&f.arena, msgl__pages_alloc(4 << 20), 4 << 20);
    f.exec = (msgl_exec){.pool = f.pool, .scratch = &f.arena};
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    msgl__pool_destroy(f->pool);
    msgl__pages_free(f->arena.base, f->arena.size);
    return 0;
}

// The row's filters and draw, one of many.
static void set_choice(msgl_sample_row *r, int draw)
{
    r->temperature = draw % 4 == 0 ? 0 : 1.7f;
    r->top_k = draw % 4 == 2 ? 11 : 0;
    r->top_p = draw % 4 == 3 ? 0.8f : 1;
    r->seed = (uint64_t)draw;
}

// Three rows in one call: the changed logits without a penalty, the raw ones with penalties, the
// raw ones without. The first two draw the same tokens, the third what it draws alone.
static void test_tokens(void **state)
{
    struct fixture *f = *state;
    enum { DRAWS = 40 };
    json_t *cases = load_cases();
    int moved = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        static struct adjust_case c;
        read_case(json_array_get(cases, i), &c);
        const size_t bytes = (size_t)c.vocab * sizeof(float);
        static float l[3 * MAX_VOCAB], before[3 * MAX_VOCAB];
        memcpy(l, c.adjusted, bytes);
        memcpy(l + c.vocab, c.logits, bytes);
        memcpy(l + 2 * c.vocab, c.logits, bytes);
        memcpy(before, l, sizeof l);
        for (int d = 0; d < DRAWS * (f->top + 1); d++) {
            msgl_sample_row rows[3] = {c.row, c.row, c.row};
            int32_t index[] = {0, 1, 2}, tokens[3], status[3], alone, alone_status;
            rows[0].adjusts = rows[2].adjusts = false;
            for (int r = 0; r < 3; r++) set_choice(&rows[r], d % DRAWS);
            msgl_sample_call call = c.call;
            call.logits = l;
            call.num_rows = 3;
            call.rows = rows;
            call.tokens = tokens;
            call.status = status;
            call.pool_index = index;
            f->kernels[d / DRAWS].sample.sample(&f->exec, &call);
            assert_memory_equal(l, before, 3 * bytes);
            for (int r = 0; r < 3; r++) {
                assert_int_equal(status[r], 0);
                assert_int_equal(c.pool[r], tokens[r]);
            }
            assert_int_equal(tokens[0], tokens[1]);
            call.logits = l + 2 * c.vocab;
            call.num_rows = 1;
            call.rows = &rows[2];
            call.tokens = &alone;
            call.status = &alone_status;
            f->kernels[d / DRAWS].sample.sample(&f->exec, &call);
            assert_int_equal(tokens[2], alone);
            moved += tokens[1] != tokens[2];
        }
    }
    assert_true(moved > 100);
    json_decref(cases);
}

// Logits that are no numbers stay an error of their row, whatever is added to them, and are put
// back too.
static void test_bad_logits(void **state)
{
    struct fixture *f = *state;
    static struct adjust_case c;
    json_t *cases = load_cases();
    for (size_t i = 0; i < json_array_size(cases); i++) {
        for (int kind = 0; kind < 2; kind++) {
            read_case(json_array_get(cases, i), &c);
            const int answered = c.row.position > c.row.prompt_len ? c.row.prompt_len : 0;
            c.logits[c.pool[PLACE + answered]] = kind == 0 ? NAN : INFINITY;
            float before[MAX_VOCAB];
            memcpy(before, c.logits, sizeof before);
            int32_t token = 5, status = 5, index = 0;
            c.call.tokens = &token;
            c.call.status = &status;
            c.call.pool_index = &index;
            f->kernels[f->top].sample.sample(&f->exec, &c.call);
            assert_int_equal(status, MSGL_ENUMERIC);
            assert_int_equal(token, -1);
            assert_memory_equal(before, c.logits, sizeof before);
        }
    }
    json_decref(cases);
}

// The prompt's last token is the prompt's: presence and frequency leave it, repetition does not.
// The answer's first is the answer's. Of tokens 1 and 2 and the answer 3, 3 the changed logits are
// worked out by hand; 2 occurs in both in the last case.
static void test_seam(void **state)
{
    (void)state;
    static const struct {
        float repetition, frequency, presence;
        int32_t pool[4];
        float want[5];
    } cases[] = {
        {1, 0, 0.5f, {1, 2, 3, 3}, {8, 8, 8, 7.5f, 8}},
        {1, 0.25f, 0, {1, 2, 3, 3}, {8, 8, 8, 7.5f, 8}},
        {1, 0.25f, 1, {1, 2, 3, 3}, {8, 8, 8, 6.5f, 8}},
        {2, 0.25f, 1, {1, 2, 3, 3}, {8, 4, 4, 2.5f, 8}},
        {2, 0, 0, {1, 2, 3, 3}, {8, 4, 4, 4, 8}},
        {1, 0.25f, 1, {1, 2, 2, 3}, {8, 8, 6.75f, 6.75f, 8}},
    };
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        float l[5] = {8, 8, 8, 8, 8}, saved[4];
        int32_t pool[4];
        memcpy(pool, cases[i].pool, sizeof pool);
        const msgl_sample_row r = {.adjusts = true,
                                   .repetition = cases[i].repetition,
                                   .frequency = cases[i].frequency,
                                   .presence = cases[i].presence,
                                   .prompt_len = 2,
                                   .position = 4};
        const msgl_sample_call c = {.logits = l, .pool = pool, .saved = saved};
        adjust_row(l, &r, &c);
        assert_memory_equal(l, cases[i].want, sizeof l);
        restore_row(l, &r, &c);
        for (int t = 0; t < 5; t++) assert_true(l[t] == 8);
    }
}

// A count beyond what a counter holds: the tokens further back are taken for the prompt's.
static void test_long_answer(void **state)
{
    (void)state;
    enum { LONG = MSGL_MAX_COUNTED + 100 };
    msgl_arena a;
    const size_t bytes = (size_t)LONG * 8;
    msgl__arena_init(&a, msgl__pages_alloc(bytes), bytes);
    assert_non_null(a.base);
    float l[4] = {1, 8e6f, 3, 4};
    msgl_sample_row r = {
        .adjusts = true, .repetition = 1, .frequency = 1, .prompt_len = 1, .position = LONG};
    msgl_sample_call c = {.logits = l,
                          .pool = (int32_t *)(void *)a.base,
                          .saved = (float *)(void *)(a.base + bytes / 2)};
    for (int i = 0; i < LONG; i++) c.pool[i] = 1;
    adjust_row(l, &r, &c);
    assert_true(l[1] == 8e6f - (float)MSGL_MAX_COUNTED);
    restore_row(l, &r, &c);
    assert_true(l[0] == 1 && l[1] == 8e6f && l[2] == 3 && l[3] == 4);
    msgl__pages_free(a.base, bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_torch), cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_bad_logits),   cmocka_unit_test(test_seam),
        cmocka_unit_test(test_long_answer),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
