// SPDX-License-Identifier: Apache-2.0
//
// The example of the paper's appendix A, and its neighbours of the authors' table of vectors.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "utils/siphash.h"

static void test_paper(void **state)
{
    (void)state;
    static const uint64_t key[2] = {UINT64_C(0x0706050403020100), UINT64_C(0x0f0e0d0c0b0a0908)};
    unsigned char text[15];
    for (unsigned char i = 0; i < 15; i++) text[i] = i;
    assert_true(msgl__siphash(key, text, 15) == UINT64_C(0xa129ca6149be45e5));
    assert_true(msgl__siphash(key, text, 0) == UINT64_C(0x726fdb47dd0e0e31));
    assert_true(msgl__siphash(key, text, 8) == UINT64_C(0x93f5f5799a932462));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_paper)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
