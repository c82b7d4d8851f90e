// SPDX-License-Identifier: Apache-2.0
//
// Stop strings: however the text is cut into pieces, what is released is the text before the first
// stop string, and nothing that could still become one is released early.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/err.h"
#include "text/stop.h"
#include "utils/random.h"

static const char *const STOPS[] = {"aab", "END", "\n\n", "ba"};

// First place where any stop string begins, by trying every place.
static size_t first_stop(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        for (size_t s = 0; s < MSGL_COUNT(STOPS); s++) {
            const size_t n = strlen(STOPS[s]);
            if (i + n <= len && memcmp(text + i, STOPS[s], n) == 0) return i;
        }
    }
    return len;
}

static void test_any_split(void **state)
{
    (void)state;
    uint64_t rng = 1;
    for (int round = 0; round < 20000; round++) {
        char text[40];
        const size_t len = msgl__random_below(&rng, sizeof text);
        for (size_t i = 0; i < len; i++) {
            text[i] = "abEND\n"[msgl__random_below(&rng, 6)];
        }
        msgl_stop s;
        msgl_strbuf out;
        msgl__strbuf_init(&out, 1000);
        assert_int_equal(msgl__stop_init(&s, STOPS, MSGL_COUNT(STOPS)), 0);
        bool matched = false;
        size_t at = 0;
        while (at < len && !matched) {
            size_t n = 1 + msgl__random_below(&rng, 5);
            if (n > len - at) n = len - at;
            assert_int_equal(msgl__strbuf_add(&s.pending, text + at, n), 0);
            assert_int_equal(msgl__stop_release(&s, &out, &matched), 0);
            at += n;
            assert_true(out.len <= first_stop(text, len));
        }
        // One piece may complete two stops; the one that begins first counts. A stop that begins
        // earlier but would only be completed by a later piece loses, as in any stream.
        const size_t want = first_stop(text, at);
        assert_int_equal(matched, want < at);
        if (!matched) assert_int_equal(msgl__stop_finish(&s, &out), 0);
        assert_int_equal(out.len, want);
        assert_memory_equal(msgl__strbuf_str(&out), text, out.len);
        msgl__stop_free(&s);
        msgl__strbuf_free(&out);
    }
}

static void test_limits(void **state)
{
    (void)state;
    msgl_stop s;
    const char *const empty[] = {""};
    const char *many[MSGL_MAX_STOPS + 1];
    for (size_t i = 0; i < MSGL_COUNT(many); i++) many[i] = "x";
    assert_int_equal(msgl__stop_init(&s, empty, 1), MSGL_EINVAL);
    assert_int_equal(msgl__stop_init(&s, many, MSGL_COUNT(many)), MSGL_EINVAL);
    assert_int_equal(msgl__stop_init(&s, NULL, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_any_split),
                                       cmocka_unit_test(test_limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
