// SPDX-License-Identifier: Apache-2.0
//
// Traces: what prompts have in common, conversations, and lines that are wrong.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "apps/simulation/trace.h"
#include "temp_file.h"

static msgl_trace trace_of(const char *text)
{
    msgl_trace t;
    msgl_err err;
    const temp_file f = temp_file_with(text);
    assert_int_equal(msgl__trace_load(f.path, 4, 0, &t, &err), 0);
    unlink(f.path);
    return t;
}

// Tokens that the prompts of two lines begin with alike.
static int32_t common(const msgl_trace *t, int32_t a, int32_t b)
{
    int32_t x[64], y[64];
    const int32_t n = msgl__trace_prompt(t, a, x), m = msgl__trace_prompt(t, b, y);
    assert_true(n <= 64 && m <= 64);
    int32_t i = 0;
    while (i < n && i < m && x[i] == y[i]) i++;
    for (int32_t k = 0; k < n; k++) assert_in_range(x[k], 0, MSGL_TRACE_VOCAB - 1);
    return i;
}

static void test_prefixes(void **state)
{
    (void)state;
    msgl_trace t =
        trace_of("{\"timestamp\":0,\"input_length\":10,\"output_length\":2,\"hash_ids\":[1,2]}\n"
                 "{\"timestamp\":1.5,\"input_length\":10,\"output_length\":2,\"hash_ids\":[1,3]}\n"
                 "{\"timestamp\":2,\"input_length\":12,\"output_length\":2,\"hash_ids\":[1,2]}\n"
                 "{\"timestamp\":3,\"input_length\":6,\"output_length\":2,\"hash_ids\":[1,2]}\n"
                 "{\"timestamp\":4,\"input_length\":10,\"output_length\":9}\n");
    assert_int_equal(t.count, 5);
    assert_int_equal(t.longest, 19);
    assert_int_equal(t.lines[1].at_ns, 1500000);
    assert_int_equal(common(&t, 0, 1), 4);
    assert_int_equal(common(&t, 0, 2), 8);
    assert_int_equal(common(&t, 0, 3), 6); // all of the shorter one
    assert_int_equal(common(&t, 0, 4), 0);
    assert_int_equal(common(&t, 0, 0), 10);
    msgl__trace_free(&t);
}

static void test_conversation(void **state)
{
    (void)state;
    msgl_trace t =
        trace_of("{\"timestamp\":7,\"input_length\":5,\"output_length\":3,\"session_id\":\"a\"}\n"
                 "{\"timestamp\":7,\"input_length\":4,\"output_length\":1,\"session_id\":\"b\"}\n"
                 "{\"input_length\":6,\"output_length\":2,\"session_id\":\"a\",\"delay\":20}\n"
                 "{\"input_length\":1,\"output_length\":4,\"session_id\":\"a\"}\n");
    assert_int_equal(t.lines[0].next, 2);
    assert_int_equal(t.lines[2].before, 0);
    assert_int_equal(t.lines[2].next, 3);
    assert_int_equal(t.lines[1].next, -1);
    assert_int_equal(t.lines[2].at_ns, 20000000);
    assert_int_equal(t.lines[3].at_ns, 0);
    assert_int_equal(t.lines[2].history, 8);
    assert_int_equal(t.lines[3].history, 16);
    assert_int_equal(t.longest, 21);
    int32_t ids[64];
    assert_int_equal(msgl__trace_prompt(&t, 3, ids), 17);
    for (int32_t i = 0; i < 3; i++) assert_int_equal(ids[5 + i], msgl__trace_answer(&t, 0, i));
    for (int32_t i = 0; i < 2; i++) assert_int_equal(ids[14 + i], msgl__trace_answer(&t, 2, i));
    assert_int_equal(common(&t, 0, 2), 5);
    assert_int_equal(common(&t, 2, 3), 14);
    assert_int_equal(common(&t, 0, 1), 0);
    msgl__trace_free(&t);
}

// An answer goes on in a cycle with the probability that its line has, or else the preset one; the
// prompt ends with the cycle.
static void test_acceptance(void **state)
{
    (void)state;
    enum { TOKENS = 20000, INPUT = 40, SHARED = 4 };
    const temp_file f = temp_file_with(
        "{\"timestamp\":0,\"input_length\":40,\"output_length\":9,\"hash_ids\":[1]}\n"
        "{\"timestamp\":0,\"input_length\":40,\"output_length\":9,\"acceptance\":1}\n"
        "{\"timestamp\":0,\"input_length\":40,\"output_length\":9,\"acceptance\":0}\n"
        "{\"timestamp\":0,\"input_length\":8,\"output_length\":9,\"hash_ids\":[1],"
        "\"acceptance\":0.9}\n");
    msgl_trace t;
    msgl_err err;
    assert_int_equal(msgl__trace_load(f.path, SHARED, 0.7, &t, &err), 0);
    unlink(f.path);
    int32_t ids[64];
    for (int32_t line = 0; line < t.count; line++) {
        const double want = (double[]){0.7, 1, 0, 0.9}[line];
        assert_true(fabs((double)t.lines[line].acceptance - want) < 1e-6);
        if (line > 1) continue;
        assert_int_equal(msgl__trace_prompt(&t, line, ids), INPUT);
        const int32_t *cycle = ids + INPUT - MSGL_TRACE_CYCLE;
        int32_t at = MSGL_TRACE_CYCLE - 1, right = 0;
        for (int32_t i = 0; i < TOKENS; i++) {
            const int32_t token = msgl__trace_answer(&t, line, i);
            right += token == cycle[(at + 1) % MSGL_TRACE_CYCLE];
            for (at = 0; at < MSGL_TRACE_CYCLE && cycle[at] != token;) at++;
            assert_in_range(at, 0, MSGL_TRACE_CYCLE - 1);
        }
        const double sd = sqrt(want * (1 - want) / TOKENS);
        assert_true(fabs((double)right / TOKENS - want) <= 5 * sd + 1e-9);
    }
    // Nothing comes again without.
    for (int32_t i = 1; i < 100; i++) {
        assert_true(msgl__trace_answer(&t, 2, i) != msgl__trace_answer(&t, 2, 0));
    }
    // What is shared stays so: four tokens of the first line's and of the last.
    assert_int_equal(common(&t, 0, 3), SHARED);
    // One that no trace has, which a server answers before any other.
    assert_in_range(msgl__trace_answer(&t, t.count, 5), 0, MSGL_TRACE_VOCAB - 1);
    msgl__trace_free(&t);
}

static void test_errors(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } all[] = {
        {"{\"timestamp\":0,\"input_length\":1,\"output_length\":1}\n{\"timestamp\":0}\n",
         ": line 2: input_length is missing; allowed: 1 to 16777216"},
        {"{\"timestamp\":0,\"input_length\":1,\"output_length\":0}",
         ": line 1: output_length is 0; allowed: 1 to 16777216"},
        {"{\"input_length\":1.5,\"output_length\":1}",
         ": line 1: input_length is 1.5; allowed: whole numbers from 1 to 16777216"},
        {"{\"input_length\":1,\"output_length\":1}", ": line 1: timestamp is missing"},
        {"{\"timestamp\":-1,\"input_length\":1,\"output_length\":1}",
         ": line 1: timestamp is -1; allowed: 0 to "},
        {"{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"session_id\":[]}",
         ": line 1: session_id is []; allowed: a text or an integer"},
        {"{\"timestamp\":0,\"input_length\":8,\"output_length\":1,\"hash_ids\":[1,2,3]}",
         ": line 1: hash_ids is [1,2,3]; allowed: up to 2 integers, one for each 4 tokens"},
        {"{\"timestamp\":0,\"input_length\":8,\"output_length\":1,\"hash_ids\":[1.5]}",
         ": line 1: hash_ids is [1.5]; allowed: "},
        {"{\"timestamp\":0,\"input_length\":8,\"output_length\":1,\"session_id\":1}\n"
         "{\"delay\":true,\"input_length\":8,\"output_length\":1,\"session_id\":1}",
         ": line 2: delay is true; allowed: 0 to "},
        {"{\"timestamp\":0,\"input_length\":16777216,\"output_length\":1}",
         ": line 1: input_length is 16777216; allowed: conversations of up to 16777216 tokens"},
        {"{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"acceptance\":1.5}",
         ": line 1: acceptance is 1.5; allowed: 0 to 1"},
        {"{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"acceptance\":\"x\"}",
         ": line 1: acceptance is \"x\"; allowed: 0 to 1"},
        {"{\"timestamp\":", ": line 1: "},
        {"\n", ": no requests"},
    };
    for (size_t i = 0; i < MSGL_COUNT(all); i++) {
        msgl_trace t;
        msgl_err err;
        const temp_file f = temp_file_with(all[i].text);
        assert_int_equal(msgl__trace_load(f.path, 4, 0, &t, &err), MSGL_EFORMAT);
        assert_non_null(strstr(err.text, all[i].says));
        unlink(f.path);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefixes), cmocka_unit_test(test_conversation),
        cmocka_unit_test(test_acceptance), cmocka_unit_test(test_errors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
