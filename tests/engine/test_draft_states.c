// SPDX-License-Identifier: Apache-2.0
//
// Drafts of models that keep states: answers that go on with the state behind the last accepted
// draft have the bits of answers without drafts, whatever was accepted, step after step, behind a
// prefix that comes from a checkpoint, and beside other answers and chunks.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "engine/harness.h"
#include "utils/random.h"

enum {
    PROMPT = 30,
    TOKENS = 120, // with the answer
    DEPTH = 8,
    PATTERNS = DEPTH * (DEPTH + 3) / 2, // of n drafts, the first a right: 0 <= a <= n, n >= 1
    TOGETHER = 3,
};

#define MODEL(name) MSGL_SOURCE_DIR "/tests/vectors/models/" name

typedef struct fixture {
    harness h;
    int32_t ids[TOKENS + 1];
    float *want; // [TOKENS, vocab] the recurrence: one token a step behind the prompt
    size_t row;  // bytes
    int32_t slots, vocab;
} fixture;

// A request that goes on with drafts, and where.
typedef struct answer {
    int32_t row, len; // len: tokens computed and certain
    int32_t load;     // what its next step begins with, -1: its row's state
    int32_t n, a;     // of the step
    int32_t drafts[DEPTH];
    msgl_state_save saves[DEPTH];
} answer;

static void open_model(fixture *f, const char *dir)
{
    char prompt[512];
    msgl_options cfg = harness_config(dir, "auto");
    cfg.speculative_algorithm = "SUFFIX";
    harness_open(&f->h, &cfg);
    snprintf(prompt, sizeof prompt, "%s/prompt.json", dir);
    assert_true(load_ids(prompt, "ids", f->ids, TOKENS) >= PROMPT);
    f->vocab = f->h.info->vocab_size;
    f->row = (size_t)f->vocab * sizeof(float);
    f->want = malloc(TOKENS * f->row);
    assert_non_null(f->want);
    const msgl_cache_span *span = &f->h.info->cache.spans[1];
    f->slots = span->num_units;
    assert_true(span->draft_states >= 2 * TOGETHER * DEPTH);
    harness_pages(&f->h, 0, TOKENS + 1);
    harness_tokens(&f->h, 0, f->ids, PROMPT);
    const msgl_state_save prefix = {PROMPT, 0};
    for (int32_t len = 0; len < TOKENS;) {
        const int32_t next = len == 0 ? PROMPT : len + 1;
        msgl_batch_req r = harness_req(0, len, next);
        r.saves = &prefix;
        r.num_saves = len == 0;
        harness_step(&f->h, len == 0 ? MSGL_PREFILL : MSGL_DECODE, &r, 1);
        memcpy((char *)f->want + (size_t)len * f->row, harness_row(&f->h, 0),
               (size_t)(next - len) * f->row);
        f->ids[next] = f->h.result.tokens[0];
        len = next;
    }
}

static void close_model(fixture *f)
{
    free(f->want);
    harness_close(&f->h);
}

// Rows of the last step from its token `token` on are those of positions [from, to).
static void expect(const fixture *f, int32_t token, int32_t from, int32_t to, const char *what)
{
    const char *want = (const char *)f->want + (size_t)from * f->row;
    if (memcmp(harness_row(&f->h, token), want, (size_t)(to - from) * f->row) != 0) {
        fail_msg("%s: other bits in [%d, %d), %s", f->h.info->architecture, from, to, what);
    }
}

// An answer in row `row` that goes on behind the prompt of row 0.
static answer hit(fixture *f, int32_t row)
{
    const msgl_page_table *table = &msgl__engine_page_tables(f->h.e)[0];
    harness_pages(&f->h, row, TOKENS + 1);
    harness_tokens(&f->h, row, f->ids, PROMPT + 1);
    memcpy(msgl__page_table_row(table, row), msgl__page_table_row(table, 0),
           (size_t)msgl__ceil_div(PROMPT, table->paging.size) * sizeof(int32_t));
    return (answer){.row = row, .len = PROMPT, .load = 0};
}

// Its part in a step with n drafts, of which a are right; slot: the first of n that are free. With
// n = 0 as an answer without drafts.
static msgl_batch_req part(const fixture *f, answer *x, int32_t n, int32_t a, int32_t slot)
{
    x->n = n;
    x->a = a;
    msgl_batch_req r = harness_req(x->row, x->len, x->len + 1 + n);
    r.prompt_len = PROMPT;
    r.load_state = x->load;
    r.drafts = x->drafts;
    r.num_drafts = n;
    r.saves = x->saves;
    r.num_saves = n;
    for (int32_t i = 0; i < n; i++) {
        const int32_t right = f->ids[x->len + 1 + i];
        x->drafts[i] = i < a ? right : (right + 1 + i) % f->vocab;
        x->saves[i] = (msgl_state_save){x->len + 1 + i, f->slots + slot + i};
    }
    return r;
}

// The step, in which it was request `req` from token `token` on, has ended.
static void verified(const fixture *f, answer *x, int32_t req, int32_t token)
{
    char what[80];
    const msgl_step_result *res = &f->h.result;
    const int32_t first = res->cu_tokens[req], num = res->cu_tokens[req + 1] - first;
    snprintf(what, sizeof what, "%d of %d drafts, begun from %d", x->a, x->n, x->load);
    assert_int_equal(num, x->a + 1);
    assert_memory_equal(res->tokens + first, f->ids + x->len + 1, (size_t)num * sizeof(int32_t));
    expect(f, token, x->len, x->len + num, what);
    x->load = x->a < x->n ? x->saves[x->a].checkpoint : -1;
    x->len += num;
}

// The p-th pattern.
static int32_t depth_of(int32_t p, int32_t *accepted)
{
    int32_t n = 1;
    for (; p > n; n++) p -= n + 1;
    *accepted = p;
    return n;
}

// Each pattern behind each, then a token by itself, three such answers at a time; in the first of
// the steps there are an answer without drafts and a chunk, too.
static void check_pairs(const char *dir, int32_t every)
{
    fixture f;
    open_model(&f, dir);
    int32_t done = 0;
    for (int32_t pair = 0; pair < PATTERNS * PATTERNS; pair += TOGETHER * every) {
        answer all[TOGETHER + 1];
        msgl_batch_req reqs[TOGETHER + 2];
        f.h.next_page = TOKENS + 1; // others' pages are free again
        for (int32_t i = 0; i <= TOGETHER; i++) all[i] = hit(&f, 1 + i);
        for (int step = 0; step < 3; step++) {
            const int32_t plain = step == 0; // reqs[0]
            if (plain) reqs[0] = part(&f, &all[TOGETHER], 0, 0, 0);
            for (int32_t i = 0; i < TOGETHER; i++) {
                const int32_t at = (pair + i) % (PATTERNS * PATTERNS);
                int32_t a = 0, n = 0;
                if (step < 2) n = depth_of(step == 0 ? at / PATTERNS : at % PATTERNS, &a);
                reqs[plain + i] = part(&f, &all[i], n, a, (step % 2 * TOGETHER + i) * DEPTH);
            }
            if (step == 0) {
                harness_pages(&f.h, 9, PROMPT);
                harness_tokens(&f.h, 9, f.ids, PROMPT);
                reqs[TOGETHER + 1] = harness_req(9, 0, 5);
                reqs[TOGETHER + 1].sample = false;
            }
            const int32_t size = TOGETHER + 2 * plain;
            harness_mixed(&f.h, step == 2 ? TOGETHER : plain, reqs, size);
            // That is how a GPU knows whose rows are computed one by one.
            assert_int_equal(f.h.e->steps[0].states[plain].num_answers, TOGETHER);
            if (plain) verified(&f, &all[TOGETHER], 0, 0);
            int32_t token = plain;
            for (int32_t i = 0; i < TOGETHER; i++) {
                verified(&f, &all[i], plain + i, token);
                token += all[i].n + 1;
                done++;
            }
            if (plain) expect(&f, token, 0, 5, "the chunk beside");
        }
    }
    assert_true(done >= 3 * PATTERNS * PATTERNS / every);
    close_model(&f);
}

// Whole answers by steps with and without drafts, as they come.
static void check_answers(const char *dir)
{
    fixture f;
    open_model(&f, dir);
    uint64_t random = 5;
    for (int k = 0; k < 20; k++) {
        f.h.next_page = TOKENS + 1;
        answer x = hit(&f, 1);
        for (int step = 0; x.len + DEPTH + 1 < TOKENS; step++) {
            const int32_t n = (int32_t)msgl__random_below(&random, DEPTH + 1);
            const int32_t a = (int32_t)msgl__random_below(&random, (uint64_t)n + 1);
            msgl_batch_req r = part(&f, &x, n, a, step % 2 * DEPTH);
            harness_mixed(&f.h, n == 0, &r, 1);
            verified(&f, &x, 0, 0);
        }
    }
    close_model(&f);
}

static void test_patterns(void **state)
{
    (void)state;
    check_pairs(MODEL("qwen3_next"), 1);
    check_pairs(MODEL("qwen3_5"), 1);
    check_pairs(MODEL("lfm2"), 7);
    check_pairs(MODEL("granite_hybrid"), 7);
    check_pairs(MODEL("nemotron_h"), 7);
    check_pairs(MODEL("zamba2"), 7);
    check_pairs(MODEL("zamba2_rope"), 7);
    check_pairs(MODEL("qwen4_exp"), 7);
    check_pairs(MODEL("qwen4_exp_ngrams"), 1);
    check_pairs(MODEL("qwen3_next_hd128"), 7);
}

static void test_answers(void **state)
{
    (void)state;
    check_answers(MODEL("qwen3_next"));
    check_answers(MODEL("qwen3_5"));
    check_answers(MODEL("qwen4_exp"));
}

// States of drafts end where the engine has no more, and a step has no more saves than that.
static void test_bounds(void **state)
{
    (void)state;
    fixture f;
    open_model(&f, MODEL("qwen3_next"));
    const int32_t slots = f.h.info->cache.spans[1].draft_states;
    answer x = hit(&f, 1);
    msgl_batch_req r = part(&f, &x, DEPTH, 0, slots - DEPTH);
    const msgl_batch b = {.size = 1, .num_tokens = DEPTH + 1, .reqs = &r};
    assert_true(msgl__states_valid(f.h.e, &b));
    r = part(&f, &x, DEPTH, 0, slots - DEPTH + 1);
    assert_false(msgl__states_valid(f.h.e, &b));
    r = part(&f, &x, DEPTH, 0, 0);
    r.load_state = f.slots + slots;
    assert_false(msgl__states_valid(f.h.e, &b));
    r = part(&f, &x, DEPTH, 3, slots - DEPTH);
    msgl_batch_req behind[] = {harness_req(2, 0, 5), r};
    const msgl_batch wrong = {.size = 2, .num_tokens = DEPTH + 6, .reqs = behind};
    assert_false(msgl__states_valid(f.h.e, &wrong));
    harness_mixed(&f.h, 0, &r, 1);
    verified(&f, &x, 0, 0);
    close_model(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
