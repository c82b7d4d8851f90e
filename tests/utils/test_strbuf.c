// SPDX-License-Identifier: Apache-2.0
//
// Growing text with a limit: what does not fit changes nothing, and memory that runs out is an
// error.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/err.h"
#include "core/mem.h"
#include "utils/strbuf.h"

static void test_strbuf_limit(void **state)
{
    (void)state;
    msgl_strbuf b;
    msgl__strbuf_init(&b, 10);
    assert_int_equal(msgl__strbuf_adds(&b, "12345678"), 0);
    assert_int_equal(msgl__strbuf_adds(&b, "abc"), MSGL_ELIMIT);
    assert_int_equal(msgl__strbuf_addf(&b, "%d", 42), 0);
    assert_string_equal(msgl__strbuf_str(&b), "1234567842");
    msgl__strbuf_free(&b);
    assert_string_equal(msgl__strbuf_str(&b), "");
}

// Room that is asked for exactly is what is taken; other growth leaves room for more.
static void test_capacity(void **state)
{
    (void)state;
    msgl_strbuf b;
    msgl__strbuf_init(&b, 1 << 20);
    assert_int_equal(msgl__strbuf_reserve_exact(&b, 1000), 0);
    assert_int_equal(b.cap, 1001);
    assert_int_equal(msgl__strbuf_reserve_exact(&b, 500), 0); // is there
    assert_int_equal(b.cap, 1001);
    assert_int_equal(msgl__strbuf_reserve_exact(&b, 1 << 20), 0);
    assert_int_equal(msgl__strbuf_reserve_exact(&b, (1 << 20) + 1), MSGL_ELIMIT);
    msgl__strbuf_free(&b);
    for (int i = 0; i < 1000; i++) assert_int_equal(msgl__strbuf_addc(&b, 'x'), 0);
    assert_int_equal(b.cap, 1024);
    msgl__strbuf_free(&b);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    msgl_strbuf b;
    msgl__strbuf_init(&b, 1 << 20);
    assert_int_equal(msgl__strbuf_adds(&b, "kept"), 0);
    char big[4096];
    memset(big, 'x', sizeof big);
    msgl__mem_fail_from(1);
    assert_int_equal(msgl__strbuf_add(&b, big, sizeof big), MSGL_ENOMEM);
    assert_int_equal(msgl__strbuf_addf(&b, "%4096d", 1), MSGL_ENOMEM);
    msgl__mem_fail_from(0);
    assert_string_equal(msgl__strbuf_str(&b), "kept");
    assert_int_equal(msgl__strbuf_add(&b, big, sizeof big), 0);
    assert_int_equal(b.len, 4 + sizeof big);
    msgl__strbuf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strbuf_limit),
        cmocka_unit_test(test_capacity),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
