// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "utils/utf8.h"

// The validator agrees with the definition on every sequence of up to two bytes and on every code
// point.
static void test_utf8_validator(void **state)
{
    (void)state;
    for (unsigned a = 0; a < 256; a++) {
        for (unsigned b = 0; b < 256; b++) {
            const char s[2] = {(char)a, (char)b};
            const int two = a >= 0xc2 && a <= 0xdf && (b & 0xc0) == 0x80;
            const size_t want = a < 0x80 ? (b < 0x80 ? 2 : 1) : two ? 2 : 0;
            assert_int_equal(msgl__utf8_valid(s, 2), want);
        }
    }
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        char s[4];
        const size_t n = msgl__utf8_put(cp, s);
        const size_t want = cp >= 0xd800 && cp < 0xe000 ? 0 : n;
        if (msgl__utf8_valid(s, n) != want) fail_msg("U+%04X", (unsigned)cp);
        assert_int_equal(msgl__utf8_char(s, n), want);
        if (n > 1) assert_int_equal(msgl__utf8_char(s, n - 1), 0);
        assert_int_equal(msgl__utf8_count(s, n), 1);
        size_t i = 0;
        if (want > 0) assert_int_equal(msgl__utf8_next(s, &i), cp);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_utf8_validator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
