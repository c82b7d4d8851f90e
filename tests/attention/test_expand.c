// SPDX-License-Identifier: Apache-2.0
//
// Expanded latent attention on the CPU: passes of whole requests and of ranges of one, and when a
// step is better left to the backend.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "attention/expand_check.h"
#include "core/attributes.h"

// DeepSeek's proportions, small.
static const expand_case BASE = {.heads = 3,
                                 .nope = 16,
                                 .rotary = 8,
                                 .v_dim = 24,
                                 .rank = 40,
                                 .max_step_tokens = 130,
                                 .seed = 1};

static void check(const expand_case *c, int passes)
{
    const expand_result r = expand_check(c);
    print_message("%d requests, %s: %d passes, error %.2e, lse %.2e\n", c->size,
                  msgl__dtype_name(c->dtype), r.passes, r.out, r.lse);
    assert_int_equal(r.passes, passes);
    assert_true(r.out <= 3e-6);
    assert_true(r.lse <= 1e-5);
}

// A pass has 128 keys: as many as a step has tokens, in whole tiles.
static void test_passes(void **state)
{
    (void)state;
    static const msgl_dtype dtypes[] = {MSGL_F32, MSGL_F16, MSGL_BF16, MSGL_E4M3};
    for (size_t i = 0; i < MSGL_COUNT(dtypes); i++) {
        expand_case c = BASE;
        c.dtype = dtypes[i];
        c.seed = i + 1;
        c.size = 1;
        c.tokens[0] = c.keys[0] = 100; // no keys in the cache
        check(&c, 1);
        c.tokens[0] = 60, c.keys[0] = 128;
        check(&c, 1);
        c.keys[0] = 129; // a key of its own: all but one query have nothing to merge
        check(&c, 2);
        c.keys[0] = 600;
        check(&c, 5);
        c.tokens[0] = 1, c.keys[0] = 385;
        check(&c, 4);
        c.tokens[0] = 130, c.keys[0] = 131; // the first range ends inside of the new tokens
        check(&c, 2);
        // Together; one too long between others; the rest.
        c.size = 7;
        const int tokens[] = {5, 20, 1, 40, 10, 30, 3}, keys[] = {5, 90, 33, 300, 60, 68, 3};
        for (int r = 0; r < c.size; r++) c.tokens[r] = tokens[r], c.keys[r] = keys[r];
        check(&c, 6);
    }
}

// A step that would take too many passes, or none in which a tile of keys fits.
static void test_refused(void **state)
{
    (void)state;
    expand_case c = BASE;
    c.size = 1;
    c.tokens[0] = 9, c.keys[0] = 64 * 128;
    check(&c, 64);
    c.keys[0]++;
    check(&c, 0);
    c.keys[0] = 9;
    c.max_step_tokens = 127;
    check(&c, 0);
}

// Absorbed, a pair costs 2 rank + rotary a head, expanded nope + rotary + v_dim; a cached key rank
// * (nope + v_dim).
static void test_cheaper(void **state)
{
    (void)state;
    expand_case c = BASE;
    c.prompts = MSGL_PROMPTS_CHEAPER;
    c.size = 1;
    c.tokens[0] = c.keys[0] = 2; // nothing cached
    check(&c, 1);
    // With 100 keys cached: 40 n (100 + (n + 1) / 2) pairs against 100 * 40 * 40, from n = 35 on.
    c.tokens[0] = 34, c.keys[0] = 134;
    check(&c, 0);
    c.tokens[0] = 35, c.keys[0] = 135;
    check(&c, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_passes),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_cheaper),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
