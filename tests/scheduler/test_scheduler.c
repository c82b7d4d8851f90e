// SPDX-License-Identifier: Apache-2.0
//
// The scheduler's behaviour, one property a test, over the fake runner: tokens that only come out
// right if every step read and wrote the right slots.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "harness.h"

static harness_options defaults(void)
{
    return (harness_options){.max_running = 8,
                             .max_seq_len = 256,
                             .max_prefill_tokens = 64,
                             .num_pages = 256,
                             .page_size = 4,
                             .vocab_size = 16,
                             .cache_type = MSGL_CACHE_RADIX,
                             .overlap = true};
}

static void test_one_request(void **state)
{
    (void)state;
    harness h;
    harness_init(&h, defaults());
    harness_add_simple(&h, 1, 100, 20, 5);
    harness_run(&h, 60);
    harness_expect(&h, 1);
    const msgl_msg_stats st = harness_stats(&h);
    assert_int_equal(st.used_pages, 0);
    assert_int_equal(st.cached_pages, 119 / 4); // prompt + 20 tokens, the last has no K and V
    assert_int_equal(st.requests_done, 1);
    assert_int_equal(st.prompt_tokens, 100);
    assert_int_equal(st.generated_tokens, 20);
    msgl__scheduler_flush(h.s);
    assert_int_equal(harness_stats(&h).free_pages, 256);
    harness_free(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
