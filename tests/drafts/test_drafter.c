// SPDX-License-Identifier: Apache-2.0
//
// What is drafted, and how likely it is said to be accepted.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "drafts/drafter.h"

static msgl_drafter *make(bool recent, int32_t least, int32_t most)
{
    const msgl_draft_config c = {
        .recent = recent, .min_match = least, .max_match = 8, .most = most};
    msgl_drafter *d;
    assert_int_equal(msgl__drafter_create(&c, &d, NULL), 0);
    return d;
}

// The place where the most tokens agree decides, not the latest.
static void test_longest_match(void **state)
{
    (void)state;
    msgl_drafter *d = make(false, 1, 4);
    msgl_draft_state s;
    msgl_draft draft;
    msgl__draft_open(d, &s);
    const int32_t ids[] = {1, 2, 3, 10, 11, 12, 9, 3, 20, 21, 1, 2, 3};
    msgl__draft_make(d, &s, 0, ids, 13, 64, 8, &draft);
    assert_int_equal(draft.match, 3);
    assert_int_equal(draft.num, 4);
    assert_memory_equal(draft.tokens, ((int32_t[]){10, 11, 12, 9}), 16);
    for (int i = 1; i < draft.num; i++) assert_true(draft.accepted[i] < draft.accepted[i - 1]);
    msgl__draft_close(&s);
    msgl__drafter_destroy(d);
}

// Of equally good places the majority decides, token by token, and its share is its probability.
static void test_votes(void **state)
{
    (void)state;
    msgl_drafter *d = make(false, 2, 3);
    msgl_draft_state s;
    msgl_draft draft;
    msgl__draft_open(d, &s);
    const int32_t ids[] = {50, 1, 2, 7, 8, 51, 1, 2, 7, 9, 52, 1, 2, 6, 9, 53, 1, 2};
    msgl__draft_make(d, &s, 0, ids, 18, 64, 3, &draft);
    assert_int_equal(draft.num, 3);
    assert_int_equal(draft.tokens[0], 7); // 2 of 3
    assert_int_equal(draft.tokens[1], 9); // 1 of 2, the later one
    const float rate = s.hits.rate[1];
    assert_true(draft.accepted[0] > 0.66F * rate && draft.accepted[0] < 0.67F * rate);
    msgl__draft_close(&s);
    msgl__drafter_destroy(d);
}

// A draft that was not computed counts when what it guessed is known.
static void test_learns_from_guesses(void **state)
{
    (void)state;
    msgl_drafter *d = make(false, 1, 4);
    msgl_draft_state s;
    msgl_draft draft;
    int32_t ids[300];
    for (int right = 0; right < 2; right++) {
        msgl__draft_open(d, &s);
        for (int32_t i = 0; i < 300; i++) ids[i] = i % 10;
        for (int32_t n = 20; n < 200; n++) {
            msgl__draft_make(d, &s, 0, ids, n, 300, 4, &draft);
            assert_int_equal(draft.tokens[0], ids[n]);
            const int32_t was = ids[n];
            if (!right) ids[n] = 200; // and it does not stay there, so that there is a match
            msgl__draft_seen(d, &s, ids, n + 1);
            ids[n] = was;
        }
        msgl__draft_make(d, &s, 0, ids, 200, 300, 4, &draft);
        if (right) {
            assert_true(draft.accepted[0] > 0.95F);
        } else {
            assert_true(draft.accepted[0] < 0.02F);
        }
        msgl__draft_close(&s);
    }
    msgl__drafter_destroy(d);
}

// Those that were computed count up to the first that is wrong, and a new request begins with what
// others came to.
static void test_learns_from_verified(void **state)
{
    (void)state;
    msgl_drafter *d = make(false, 1, 4);
    msgl_draft_state s, next;
    msgl__draft_open(d, &s);
    for (int i = 0; i < 100; i++) msgl__draft_verified(d, &s, 1, 4, 2); // 1 and 2 right, 3 wrong
    assert_true(s.hits.rate[0] > 0.95F && s.hits.rate[1] > 0.95F && s.hits.rate[2] < 0.02F);
    msgl__draft_open(d, &next);
    assert_memory_equal(next.hits.rate, d->hits.rate, sizeof next.hits.rate);
    assert_true(next.hits.rate[0] > 0.95F && next.hits.rate[2] < 0.02F);
    assert_int_equal(next.hits.seen[0], 0);
    msgl__draft_close(&s);
    msgl__draft_close(&next);
    msgl__drafter_destroy(d);
}

static void test_recent_answers(void **state)
{
    (void)state;
    const int32_t ids[] = {1, 2}, other[] = {1, 2, 3, 4, 5};
    for (int recent = 0; recent < 2; recent++) {
        msgl_drafter *d = make(recent, 2, 3);
        msgl_draft_state s;
        msgl_draft draft;
        msgl__draft_open(d, &s);
        msgl__draft_remember(d, 7, other, 5);
        msgl__draft_make(d, &s, 7, ids, 2, 64, 3, &draft);
        assert_int_equal(draft.num, recent ? 3 : 0);
        if (recent) assert_memory_equal(draft.tokens, other + 2, 12);
        msgl__draft_make(d, &s, 8, ids, 2, 64, 3, &draft); // another's
        assert_int_equal(draft.num, 0);
        msgl__draft_close(&s);
        msgl__drafter_destroy(d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_longest_match),       cmocka_unit_test(test_votes),
        cmocka_unit_test(test_learns_from_guesses), cmocka_unit_test(test_learns_from_verified),
        cmocka_unit_test(test_recent_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
