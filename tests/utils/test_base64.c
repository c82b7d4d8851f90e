// SPDX-License-Identifier: Apache-2.0
//
// Texts of RFC 4648 and what is none; nothing is written behind a text's bytes.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "utils/base64.h"

static void test_decode(void **state)
{
    (void)state;
    static const struct {
        const char *text, *bytes;
        size_t n;
    } cases[] = {{"", "", 0},
                 {"Zg==", "f", 1},
                 {"Zm8=", "fo", 2},
                 {"Zm9vYmE=", "fooba", 5},
                 {"Zm9vYmFy", "foobar", 6},
                 {"Zm8", "fo", 2},
                 {"Zg", "f", 1},
                 {"+/+/", "\xfb\xff\xbf", 3},
                 {"T", "", SIZE_MAX},
                 {"Zg=", "", SIZE_MAX},
                 {"TWF=u", "", SIZE_MAX},
                 {"TW=u", "", SIZE_MAX},
                 {"TW u", "", SIZE_MAX},
                 {"TW-_", "", SIZE_MAX},
                 {"====", "", SIZE_MAX}};
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        unsigned char out[16];
        memset(out, 0xa5, sizeof out);
        const size_t n = msgl__base64_decode(cases[i].text, strlen(cases[i].text), out);
        assert_true(n == cases[i].n);
        if (n == SIZE_MAX) continue;
        assert_memory_equal(out, cases[i].bytes, n);
        assert_int_equal(out[n], 0xa5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_decode)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
