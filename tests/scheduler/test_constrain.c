// SPDX-License-Identifier: Apache-2.0
//
// Answers with a grammar over the fake runner: they stay inside it and end with it, and those
// beside them get exactly the tokens that they would get alone.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/req_extra.h"
#include "grammar/constrain.h"
#include "harness.h"
#include "scheduler/internal.h"

enum { VOCAB = 16, LIMIT = 100000 };

// While `withheld`, the scheduler hears of no mask, and one that it takes all the same allows 'p'
// alone. By the linker's --wrap it calls these in place of the constraints' own functions.
static bool withheld;
msgl_constraint_state __real_msgl__constraint_state(const msgl_constraint *x);
msgl_constraint_state __wrap_msgl__constraint_state(const msgl_constraint *x);
const uint32_t *__real_msgl__constraint_mask(const msgl_constraint *x);
const uint32_t *__wrap_msgl__constraint_mask(const msgl_constraint *x);

msgl_constraint_state __wrap_msgl__constraint_state(const msgl_constraint *x)
{
    return withheld ? MSGL_CONSTRAINT_PENDING : __real_msgl__constraint_state(x);
}

const uint32_t *__wrap_msgl__constraint_mask(const msgl_constraint *x)
{
    static const uint32_t only_p[] = {1u << ('p' - 'a')};
    return withheld ? only_p : __real_msgl__constraint_mask(x);
}

// Token i is the letter 'a' + i; HARNESS_EOS has none.
static msgl_grammar_vocab *letters(void)
{
    static const char text[] = "abcdefghijklmnop";
    msgl_grammar_token tokens[VOCAB];
    const int32_t eos = HARNESS_EOS;
    msgl_grammar_vocab *v = NULL;
    for (int i = 0; i < VOCAB; i++) {
        tokens[i] = (msgl_grammar_token){.data = text + i, .len = i == HARNESS_EOS ? 0 : 1};
    }
    assert_int_equal(msgl__grammar_vocab_create(tokens, VOCAB, &eos, 1, &v, NULL), 0);
    return v;
}

static harness_options options(msgl_grammar_vocab *v, bool overlap, bool threaded)
{
    return (harness_options){.max_running = 8,
                             .max_seq_len = 256,
                             .max_prefill_tokens = 16,
                             .num_pages = 256,
                             .page_size = 4,
                             .vocab_size = VOCAB,
                             .cache_type = MSGL_CACHE_RADIX,
                             .overlap = overlap,
                             .threaded = threaded,
                             .grammar_vocab = v};
}

// regex NULL: none.
static void add_staged(harness *h, uint64_t uid, int32_t n, int32_t m, const char *regex,
                       const char *stages)
{
    int32_t ids[HARNESS_LEN];
    record *r = &h->records[uid];
    memset(r, 0, sizeof *r);
    for (int32_t i = 0; i < n; i++) ids[i] = r->prompt[i] = (int32_t)(uid + (uint64_t)i) % VOCAB;
    r->prompt_len = n;
    r->sampling = msgl__sampling_params_default();
    r->sampling.max_tokens = m;
    r->sampling.ignore_eos = uid % 2 == 0; // does not matter
    msgl_req_extra *x = NULL;
    assert_int_equal(msgl__req_extra_create_with(
                         &(msgl_req_extra_parts){.grammar_kind = regex == NULL ? MSGL_GRAMMAR_NONE
                                                                               : MSGL_GRAMMAR_REGEX,
                                                 .grammar = regex,
                                                 .stages = stages},
                         VOCAB, &x, NULL),
                     0);
    msgl__scheduler_add(
        h->s, &(msgl_msg_request){
                  .uid = uid, .num_ids = n, .ids = ids, .sampling = r->sampling, .extra = x});
    msgl__req_extra_unref(x);
}

static void add(harness *h, uint64_t uid, int32_t n, int32_t m, const char *regex)
{
    add_staged(h, uid, n, m, regex, NULL);
}

static void expect_letters(const harness *h, uint64_t uid, int32_t n, char from, char to)
{
    const record *r = &h->records[uid];
    assert_int_equal(r->ends, 1);
    assert_int_equal(r->finish, MSGL_FINISH_STOP);
    assert_int_equal(r->num_tokens, n);
    for (int32_t i = 0; i < n; i++) assert_in_range(r->tokens[i], from - 'a', to - 'a');
}

static void test_beside_others(void **state)
{
    (void)state;
    msgl_grammar_vocab *v = letters();
    for (int kind = 0; kind < 4; kind++) {
        harness h;
        harness_init(&h, options(v, kind % 2 == 0, kind >= 2));
        for (uint64_t uid = 1; uid <= 3; uid++) harness_add_simple(&h, uid, 40, 30, uid);
        for (uint64_t uid = 4; uid <= 12; uid++) add(&h, uid, 20, 50, "[d-f]{9}");
        harness_run(&h, LIMIT);
        for (uint64_t uid = 1; uid <= 3; uid++) harness_expect(&h, uid);
        for (uint64_t uid = 4; uid <= 12; uid++) expect_letters(&h, uid, 9, 'd', 'f');
        assert_int_equal(harness_stats(&h).used_pages, 0);
        assert_string_equal(h.fake.fault, "");
        harness_free(&h);
    }
    msgl__grammar_vocab_unref(v);
}

// Has the scheduler expect short answers, so that it admits more than there is room for.
static void answer_shortly(harness *h)
{
    for (int k = 0; k < 40; k++) {
        for (uint64_t uid = 7; uid <= 10; uid++) add(h, uid, 10, 80, "d");
        harness_run(h, LIMIT);
    }
}

// The pool holds little more than one of them: they are sent back to the queue and go on there. Of
// its 24 pages of 4 tokens each request is promised 11, for 10 + 32 - 1 tokens, so that two begin,
// and needs 18 for 70.
static void test_sent_back(void **state)
{
    (void)state;
    msgl_grammar_vocab *v = letters();
    harness_options o = options(v, true, false);
    o.num_pages = 24;
    harness h;
    harness_init(&h, o);
    answer_shortly(&h);
    for (uint64_t uid = 1; uid <= 6; uid++) add(&h, uid, 10, 80, "[d-f]{60}");
    harness_run(&h, LIMIT);
    for (uint64_t uid = 1; uid <= 6; uid++) expect_letters(&h, uid, 60, 'd', 'f');
    assert_true(harness_stats(&h).requests_retracted > 0);
    harness_free(&h);
    msgl__grammar_vocab_unref(v);
}

// One that is back from the queue waits for its mask, too: two begin, one of them is sent back when
// pages run out, the other one is aborted, and what is back has a row again but no mask yet.
static void test_sent_back_without_mask(void **state)
{
    (void)state;
    msgl_grammar_vocab *v = letters();
    harness_options o = options(v, false, false);
    o.num_pages = 24;
    harness h;
    harness_init(&h, o);
    answer_shortly(&h);
    for (uint64_t uid = 1; uid <= 2; uid++) add(&h, uid, 10, 80, "[d-f]{60}");
    for (int i = 0; h.s->stats.requests_retracted == 0; i++) {
        assert_true(i < LIMIT);
        harness_step(&h);
    }
    const msgl_req *back = h.s->waiting.head;
    assert_non_null(back);
    const uint64_t uid = back->uid.id;
    const int32_t had = h.records[uid].num_tokens;
    assert_in_range(had, 20, 59);
    withheld = true;
    msgl__scheduler_abort(h.s, 3 - uid);
    for (int i = 0; i < 10; i++) harness_step(&h);
    assert_true(back->row >= 0);
    assert_int_equal(h.records[uid].num_tokens, had);
    withheld = false;
    harness_run(&h, LIMIT);
    expect_letters(&h, uid, 60, 'd', 'f');
    harness_free(&h);
    msgl__grammar_vocab_unref(v);
}

// Thoughts of seven tokens, what ends them, and the answer: of a form, or anything, which waits for
// no mask any more.
static void test_stages(void **state)
{
    (void)state;
    static const char stages[] =
        "{\"thinking\":true,\"close\":[\"pppppppp\"],\"budget\":7,\"end\":[14,15]}";
    msgl_grammar_vocab *v = letters();
    for (int kind = 0; kind < 4; kind++) {
        harness h;
        harness_options o = options(v, kind % 2 == 0, kind >= 2);
        if (kind == 1) o.num_pages = 24; // some are sent back to the queue
        harness_init(&h, o);
        harness_add_simple(&h, 1, 10, 30, 1);
        for (uint64_t uid = 2; uid <= 6; uid++) add_staged(&h, uid, 10, 50, "[d-f]{9}", stages);
        for (uint64_t uid = 8; uid <= 12; uid += 2) add_staged(&h, uid, 10, 50, NULL, stages);
        harness_run(&h, LIMIT);
        harness_expect(&h, 1);
        for (uint64_t uid = 2; uid <= 12; uid += uid < 6 ? 1 : 2) {
            const record *r = &h.records[uid];
            const bool form = uid <= 6;
            assert_int_equal(r->num_tokens, form ? 18 : 50);
            assert_int_equal(r->finish, form ? MSGL_FINISH_STOP : MSGL_FINISH_LENGTH);
            assert_int_equal(r->tokens[7], 14);
            assert_int_equal(r->tokens[8], 15);
            for (int i = 9; i < 18 && form; i++) assert_in_range(r->tokens[i], 3, 5);
        }
        assert_int_equal(harness_stats(&h).used_pages, 0);
        harness_free(&h);
    }
    msgl__grammar_vocab_unref(v);
}

static void test_ends(void **state)
{
    (void)state;
    msgl_grammar_vocab *v = letters();
    harness h;
    harness_init(&h, options(v, true, false));
    add(&h, 1, 10, 20, "(");      // no regex
    add(&h, 2, 10, 20, "d{3}Z");  // a letter that no token has
    add(&h, 3, 10, 4, "d{50}");   // cut
    add(&h, 4, 10, 20, "d{3}e?"); // may end before it must
    add(&h, 5, 10, 20, "");       // the only answer is the empty one
    harness_add_simple(&h, 6, 10, 10, 6);
    harness_run(&h, LIMIT);
    assert_int_equal(h.records[1].finish, MSGL_FINISH_ERROR);
    assert_int_equal(h.records[1].status, MSGL_EFORMAT);
    assert_int_equal(h.records[2].finish, MSGL_FINISH_ERROR);
    assert_int_equal(h.records[2].status, MSGL_EINVAL);
    assert_string_equal(h.records[2].text, "grammar: no token of this model can go on");
    assert_int_equal(h.records[3].finish, MSGL_FINISH_LENGTH);
    assert_int_equal(h.records[3].num_tokens, 4);
    expect_letters(&h, 4, h.records[4].num_tokens, 'a', 'e'); // 'a' is EOS
    assert_int_equal(h.records[4].num_tokens, 4);
    expect_letters(&h, 5, 0, 'a', 'a');
    harness_expect(&h, 6);
    harness_free(&h);
    msgl__grammar_vocab_unref(v);
}

static void test_abort(void **state)
{
    (void)state;
    msgl_grammar_vocab *v = letters();
    harness h;
    harness_init(&h, options(v, true, false));
    for (uint64_t uid = 1; uid <= 8; uid++) {
        add(&h, uid, 20, 100, "[d-f]{90}");
        for (uint64_t i = 0; i + 1 < uid && msgl__scheduler_has_work(h.s); i++) harness_step(&h);
        msgl__scheduler_abort(h.s, uid); // in the grammar queue, waiting, running, in flight
        assert_int_equal(h.records[uid].finish, MSGL_FINISH_ABORT);
    }
    harness_run(&h, LIMIT);
    assert_int_equal(harness_stats(&h).used_pages, 0);
    add(&h, 9, 20, 100, "[d-f]{90}"); // destroyed with work
    harness_free(&h);
    msgl__grammar_vocab_unref(v);
}

// Every eighth token would end an answer: none does before min_tokens, and any may then.
static void test_min_tokens(void **state)
{
    (void)state;
    enum { REQUESTS = 100, OTHER = 3 };
    for (int kind = 0; kind < 4; kind++) {
        harness h;
        harness_options o = options(NULL, kind % 2 == 0, kind >= 2);
        o.num_pages = 128; // some are sent back meanwhile
        harness_init(&h, o);
        for (uint64_t uid = 1; uid <= REQUESTS; uid++) {
            int32_t ids[20];
            for (int32_t i = 0; i < 20; i++) ids[i] = (int32_t)(uid * 7 + (uint64_t)i) % VOCAB;
            msgl_sampling_params p = msgl__sampling_params_default();
            p.max_tokens = 100;
            p.min_tokens = (int32_t)uid;
            p.ignore_eos = uid % 3 == 0;
            p.stop_ids[p.num_stop_ids++] = OTHER;
            harness_add(&h, uid, ids, 20, &p);
        }
        harness_run(&h, LIMIT);
        int32_t shortest = VOCAB * 100;
        for (uint64_t uid = 1; uid <= REQUESTS; uid++) {
            const record *r = &h.records[uid];
            const int32_t least = (int32_t)uid;
            assert_int_equal(r->ends, 1);
            assert_true(r->num_tokens >= least);
            for (int32_t i = 0; i < least; i++) {
                assert_int_not_equal(r->tokens[i], OTHER);
                if (uid % 3 != 0) assert_int_not_equal(r->tokens[i], HARNESS_EOS);
            }
            if (r->finish == MSGL_FINISH_STOP && r->num_tokens - least < shortest) {
                shortest = r->num_tokens - least;
            }
        }
        assert_int_equal(shortest, 1);
        assert_int_equal(harness_stats(&h).used_pages, 0);
        harness_free(&h);
    }
    // More than there may be, and beside a grammar, which may end earlier.
    harness h;
    harness_init(&h, options(NULL, true, false));
    msgl_sampling_params p = msgl__sampling_params_default();
    const int32_t ids[] = {1, 2};
    p.min_tokens = p.max_tokens + 1;
    harness_add(&h, 1, ids, 2, &p);
    assert_int_equal(h.records[1].status, MSGL_EINVAL);
    assert_string_equal(h.records[1].text,
                        "min_tokens is 17; allowed: at most max_tokens, which is 16");
    p.min_tokens = 1;
    msgl_req_extra *x = NULL;
    assert_int_equal(
        msgl__req_extra_create_with(
            &(msgl_req_extra_parts){.grammar_kind = MSGL_GRAMMAR_REGEX, .grammar = "d"}, VOCAB, &x,
            NULL),
        0);
    msgl__scheduler_add(
        h.s, &(msgl_msg_request){.uid = 2, .num_ids = 2, .ids = ids, .sampling = p, .extra = x});
    msgl__req_extra_unref(x);
    assert_int_equal(h.records[2].status, MSGL_EINVAL);
    harness_free(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_beside_others),
        cmocka_unit_test(test_sent_back),
        cmocka_unit_test(test_sent_back_without_mask),

        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_stages),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_min_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
