// SPDX-License-Identifier: Apache-2.0
//
// Masks of allowed tokens, banned sequences and early ends: by themselves against a plain search,
// and in the scheduler beside requests without them.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/req_extra.h"
#include "harness.h"
#include "scheduler/token_masks.h"

enum { VOCAB = 16, LIMIT = 100000 };

static const int32_t END = HARNESS_EOS;

static msgl_req_extra *lists(const int32_t *allowed, int32_t num_allowed, const int32_t *banned,
                             int32_t num_banned)
{
    const msgl_req_extra_parts parts = {
        .allowed = allowed, .num_allowed = num_allowed, .banned = banned, .num_banned = num_banned};
    msgl_req_extra *x = NULL;
    assert_int_equal(msgl__req_extra_create_with(&parts, VOCAB, &x, NULL), 0);
    return x;
}

// Whether `token` may follow answer[0, n).
static bool may_follow(const msgl_req_extra *x, const int32_t *answer, int32_t n, int32_t token)
{
    bool listed = x->num_allowed == 0;
    for (int32_t i = 0; i < x->num_allowed; i++) listed |= x->allowed[i] == token;
    if (!listed) return false;
    for (int32_t i = 0; i < x->num_banned; i += x->banned[i] + 1) {
        const int32_t len = x->banned[i];
        bool same = len - 1 <= n && x->banned[i + len] == token;
        for (int32_t k = 0; k < len - 1 && same; k++) {
            same = answer[n - (len - 1) + k] == x->banned[i + 1 + k];
        }
        if (same) return false;
    }
    return true;
}

static bool in(const uint32_t *mask, int32_t token)
{
    return mask == NULL || (mask[token / 32] >> token % 32 & 1) != 0;
}

static void test_against_search(void **state)
{
    (void)state;
    const int32_t allowed[] = {1, 2, 3, 4, 5, 9, 2},
                  banned[] = {1, 5, 2, 1, 1, 3, 1, 2, 3, 2, 3, 4};
    for (int kind = 0; kind < 4; kind++) {
        msgl_req_extra *x = lists(allowed, kind & 1 ? 7 : 0, banned, kind & 2 ? 12 : 0);
        const msgl_sampling_params p = {.min_tokens = 0};
        msgl_token_masks *m = NULL;
        assert_int_equal(msgl__token_masks_create(VOCAB, &END, 1, &p, x, &m, NULL), 0);
        assert_int_equal(m != NULL, kind != 0);
        assert_int_equal(msgl__token_masks_look_back(m), (kind & 2) != 0);
        uint32_t random = 1;
        int32_t answer[200];
        for (int32_t n = 0; n < 200 && m != NULL; n++) {
            const uint32_t *mask = msgl__token_masks_at(m, answer, n);
            for (int32_t t = 0; t < VOCAB; t++) {
                assert_int_equal(in(mask, t), may_follow(x, answer, n, t));
            }
            assert_int_equal(mask[0] >> VOCAB, 0); // what is no token
            answer[n] = (int32_t)((random = random * 1664525u + 1013904223u) >> 30) + 1;
        }
        msgl__token_masks_destroy(m);
        msgl__req_extra_unref(x);
    }
}

static void test_early(void **state)
{
    (void)state;
    const int32_t banned[] = {1, 5};
    msgl_req_extra *x = lists(NULL, 0, banned, 2);
    const msgl_sampling_params p = {.min_tokens = 2, .num_stop_ids = 1, .stop_ids = {7}};
    msgl_token_masks *m = NULL;
    assert_int_equal(msgl__token_masks_create(VOCAB, &END, 1, &p, x, &m, NULL), 0);
    const int32_t answer[] = {1, 1, 1};
    for (int32_t n = 0; n < 4; n++) {
        const uint32_t *mask = msgl__token_masks_at(m, answer, n);
        assert_int_equal(in(mask, END), n >= 2);
        assert_int_equal(in(mask, 7), n >= 2);
        assert_false(in(mask, 5));
        assert_true(in(mask, 6));
    }
    msgl__token_masks_destroy(m);
    assert_int_equal(msgl__token_masks_create(VOCAB, &END, 1, &p, NULL, &m, NULL), 0);
    assert_null(msgl__token_masks_at(m, answer, 2)); // anything behind them
    msgl__token_masks_destroy(m);
    msgl__req_extra_unref(x);
}

// What could leave nothing to choose is refused before the first token.
static void test_nothing_left(void **state)
{
    (void)state;
    const struct {
        int32_t allowed[2], num_allowed, banned[6], num_banned, min_tokens;
    } cases[] = {
        {{5}, 1, {1, 5}, 2, 0}, {{5}, 1, {2, 5, 5}, 3, 0},   {{5, 6}, 2, {1, 5, 2, 5, 6}, 5, 0},
        {{END}, 1, {0}, 0, 1},  {{END, 5}, 2, {1, 5}, 2, 1},
    };
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        msgl_req_extra *x =
            lists(cases[i].allowed, cases[i].num_allowed, cases[i].banned, cases[i].num_banned);
        const msgl_sampling_params p = {.min_tokens = cases[i].min_tokens};
        msgl_token_masks *m = NULL;
        msgl_err err;
        assert_int_equal(msgl__token_masks_create(VOCAB, &END, 1, &p, x, &m, &err), MSGL_EINVAL);
        assert_null(m);
        assert_non_null(strstr(err.text, "leave no token to choose"));
        msgl__req_extra_unref(x);
    }
}

static void add(harness *h, uint64_t uid, int32_t n, msgl_req_extra *x)
{
    int32_t ids[HARNESS_LEN];
    record *r = &h->records[uid];
    memset(r, 0, sizeof *r);
    for (int32_t i = 0; i < n; i++) ids[i] = r->prompt[i] = (int32_t)(uid + (uint64_t)i) % VOCAB;
    r->prompt_len = n;
    r->sampling = msgl__sampling_params_default();
    r->sampling.max_tokens = 100;
    r->sampling.ignore_eos = true;
    msgl__scheduler_add(
        h->s, &(msgl_msg_request){
                  .uid = uid, .num_ids = n, .ids = ids, .sampling = r->sampling, .extra = x});
    msgl__req_extra_unref(x);
}

// Answers with lists keep to them, with steps in flight and when sent back to the queue; those
// beside them get exactly the tokens that they would get alone.
static void test_scheduled(void **state)
{
    (void)state;
    enum { REQUESTS = 60 };
    const int32_t allowed[] = {1, 2, 3, 4, 5, 9};
    const int32_t banned[] = {1, 5, 2, 1, 1, 3, 1, 2, 3, 2, 3, 4};
    for (int kind = 0; kind < 4; kind++) {
        const harness_options o = {.max_running = 8,
                                   .max_seq_len = 256,
                                   .max_prefill_tokens = 16,
                                   .num_pages = 128, // some are sent back meanwhile
                                   .page_size = 4,
                                   .vocab_size = VOCAB,
                                   .cache_type = MSGL_CACHE_RADIX,
                                   .overlap = kind % 2 == 0,
                                   .threaded = kind >= 2};
        harness h;
        harness_init(&h, o);
        for (uint64_t uid = 1; uid <= REQUESTS; uid++) {
            if (uid % 4 == 0) {
                harness_add_simple(&h, uid, 20, 100, uid);
            } else {
                add(&h, uid, 20,
                    lists(allowed, uid % 2 == 1 ? 6 : 0, banned, uid % 4 >= 2 ? 12 : 0));
            }
        }
        harness_run(&h, LIMIT);
        for (uint64_t uid = 1; uid <= REQUESTS; uid++) {
            const record *r = &h.records[uid];
            if (uid % 4 == 0) {
                harness_expect(&h, uid);
                continue;
            }
            msgl_req_extra *x = lists(allowed, uid % 2 == 1 ? 6 : 0, banned, uid % 4 >= 2 ? 12 : 0);
            assert_int_equal(r->ends, 1);
            assert_int_equal(r->finish, MSGL_FINISH_LENGTH);
            assert_int_equal(r->num_tokens, 100);
            for (int32_t i = 0; i < 100; i++) {
                assert_true(may_follow(x, r->tokens, i, r->tokens[i]));
            }
            msgl__req_extra_unref(x);
        }
        assert_int_equal(harness_stats(&h).used_pages, 0);
        harness_free(&h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_search),
        cmocka_unit_test(test_early),
        cmocka_unit_test(test_nothing_left),
        cmocka_unit_test(test_scheduled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
