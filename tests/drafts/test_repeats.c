// SPDX-License-Identifier: Apache-2.0
//
// Where texts repeat, against a search through all of them.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "drafts/recent.h"
#include "utils/random.h"

enum { LEN = 400, MAX_MATCH = 6, MOST = 8 };

static int32_t match_at(const int32_t *text, int32_t end, const int32_t *ids, int32_t n)
{
    int32_t m = 0;
    while (m < MAX_MATCH && m < end && m < n && text[end - 1 - m] == ids[n - 1 - m]) m++;
    return m;
}

// Grown token by token, of few different ones: each place is one, the latest first, and none is
// missed as long as the chain is followed to its end.
static void test_all_places(void **state)
{
    (void)state;
    int32_t ids[LEN];
    uint64_t random = 5;
    for (int32_t order = 1; order <= MSGL_MAX_GRAM; order++) {
        msgl_repeats r;
        assert_true(msgl__repeats_create(order, LEN, &r));
        for (int32_t n = 1; n <= LEN; n++) {
            ids[n - 1] = (int32_t)msgl__random_below(&random, 30);
            msgl__repeats_extend(&r, ids, n);
            msgl_repeat got[MOST];
            const int32_t found = msgl__repeats_find(&r, ids, ids, n, MAX_MATCH, got, MOST);
            int32_t i = 0;
            for (int32_t end = n - 1; end >= order && i < MOST; end--) {
                const int32_t match = match_at(ids, end, ids, n);
                if (match < order) continue;
                assert_true(i < found);
                assert_ptr_equal(got[i].next, ids + end);
                assert_int_equal(got[i].match, match);
                assert_int_equal(got[i].room, n - end);
                i++;
            }
            assert_int_equal(found, i);
        }
        msgl__repeats_destroy(&r);
    }
}

// The last tokens of one text in another, which ends answers with -1.
static void test_of_another(void **state)
{
    (void)state;
    const int32_t text[] = {1, 2, 3, -1, 2, 3, 4, -1, 9, 2, 3};
    const int32_t ids[] = {1, 2, 3};
    msgl_repeats r;
    msgl_repeat got[MOST];
    assert_true(msgl__repeats_create(2, 16, &r));
    msgl__repeats_extend(&r, text, 11);
    assert_int_equal(msgl__repeats_find(&r, text, ids, 3, MAX_MATCH, got, MOST), 1);
    assert_ptr_equal(got[0].next, text + 6); // behind the first there is an end, behind the last
                                             // nothing
    assert_int_equal(got[0].match, 2);
    assert_int_equal(msgl__repeats_find(&r, text, ids, 1, MAX_MATCH, got, MOST), 0);
    const int32_t ends[] = {3, -1};
    assert_int_equal(msgl__repeats_find(&r, text, ends, 2, MAX_MATCH, got, MOST), 0);
    msgl__repeats_destroy(&r);
}

static void test_salts(void **state)
{
    (void)state;
    msgl_recent r;
    msgl_repeat got[MOST];
    assert_true(msgl__recent_create(&r));
    const int32_t a[] = {1, 2, 3, 4}, b[] = {1, 2, 5, 6}, ask[] = {7, 1, 2};
    msgl__recent_add(&r, 10, a, 4);
    msgl__recent_add(&r, 20, b, 4);
    msgl__recent_add(&r, 10, a, 0); // of no tokens there is nothing
    assert_int_equal(msgl__recent_find(&r, 10, ask, 3, MAX_MATCH, got, MOST), 1);
    assert_int_equal(got[0].next[0], 3);
    assert_int_equal(msgl__recent_find(&r, 20, ask, 3, MAX_MATCH, got, MOST), 1);
    assert_int_equal(got[0].next[0], 5);
    assert_int_equal(msgl__recent_find(&r, 30, ask, 3, MAX_MATCH, got, MOST), 0);
    msgl__recent_destroy(&r);
}

// More answers than there is room for: the latest are there, with their salts, and the first are
// not.
static void test_forgets(void **state)
{
    (void)state;
    enum { TOKENS = 1000, ANSWERS = 1200 };
    static int32_t ids[TOKENS];
    msgl_recent r;
    msgl_repeat got[MOST];
    assert_true(msgl__recent_create(&r));
    const uint64_t allocs = msgl__mem_allocs();
    for (int32_t i = 0; i < ANSWERS; i++) {
        for (int32_t k = 0; k < TOKENS; k++) ids[k] = i * TOKENS + k;
        msgl__recent_add(&r, (uint64_t)i % 3, ids, TOKENS);
        assert_true(r.len <= MSGL_RECENT_TOKENS);
    }
    assert_int_equal(msgl__mem_allocs(), allocs);
    for (int32_t i = 0; i < ANSWERS; i++) {
        const int32_t ask[] = {i * TOKENS + 7, i * TOKENS + 8};
        const int32_t n = msgl__recent_find(&r, (uint64_t)i % 3, ask, 2, MAX_MATCH, got, MOST);
        if (i < ANSWERS - 540) assert_int_equal(n, 0);
        if (i < ANSWERS - 250) continue;
        assert_int_equal(n, 1);
        assert_int_equal(got[0].next[0], ask[1] + 1);
        assert_int_equal(msgl__recent_find(&r, (uint64_t)i % 3 + 1, ask, 2, MAX_MATCH, got, MOST),
                         0);
    }
    // One that is longer than all the room: its end.
    static int32_t more[MSGL_RECENT_TOKENS + 10];
    for (int32_t k = 0; k < MSGL_RECENT_TOKENS + 10; k++) more[k] = 5000000 + k;
    msgl__recent_add(&r, 1, more, MSGL_RECENT_TOKENS + 10);
    assert_int_equal(msgl__recent_find(&r, 1, more + MSGL_RECENT_TOKENS, 2, MAX_MATCH, got, MOST),
                     1);
    assert_int_equal(got[0].next[0], 5000000 + MSGL_RECENT_TOKENS + 2);
    msgl__recent_destroy(&r);
}

static void test_no_memory(void **state)
{
    (void)state;
    msgl_recent r;
    for (uint64_t nth = 1;; nth++) {
        msgl__mem_fail_from(nth);
        const bool made = msgl__recent_create(&r);
        msgl__mem_fail_from(0);
        if (made) break;
    }
    msgl__recent_destroy(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_places), cmocka_unit_test(test_of_another),
        cmocka_unit_test(test_salts),      cmocka_unit_test(test_forgets),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
