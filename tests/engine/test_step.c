// SPDX-License-Identifier: Apache-2.0
//
// What the engine promises about one step, apart from its numbers: a batch that would index memory
// out of its bounds is refused whole; the device's copy of the page table gets the pages of what is
// written; a step that a captured graph may run has its arrays where that graph looks for them.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "engine/harness.h"

#define MODEL MSGL_SOURCE_DIR "/tests/vectors/models/qwen3"

enum { MAX_SEQ = 128, RUNNING = 8 };

static void open_engine(harness *h, int32_t max_running)
{
    msgl_options cfg = harness_config(MODEL, "auto");
    cfg.max_running = max_running;
    cfg.max_prefill_tokens = 512;
    cfg.max_seq_len = MAX_SEQ;
    harness_open(h, &cfg);
    assert_int_equal(h->info->max_seq_len, MAX_SEQ);
}

// An answer of request 0 at position 20 and a chunk [0, 10) of request 1, in step slot 1.
static msgl_batch good_batch(msgl_batch_req reqs[2])
{
    reqs[0] = harness_req(0, 20, 21);
    reqs[1] = harness_req(1, 0, 10);
    return (msgl_batch){.size = 2, .num_decode = 1, .num_tokens = 11, .reqs = reqs, .step_slot = 1};
}

// An engine with pages for that batch's requests, and the batch.
static msgl_batch open_with_batch(harness *h, msgl_batch_req reqs[2])
{
    open_engine(h, RUNNING);
    for (int32_t row = 0; row < 2; row++) harness_pages(h, row, MAX_SEQ);
    return good_batch(reqs);
}

static void expect_refused(harness *h, msgl_batch b, const char *what)
{
    msgl_step_result result;
    if (h->r->submit(h->r->ctx, &b) != MSGL_EINVAL) fail_msg("accepted: %s", what);
    // Nothing was queued for it.
    if (h->r->wait(h->r->ctx, b.step_slot, &result) != MSGL_EINVAL) fail_msg("in flight: %s", what);
}

// One field at a time is wrong, and all sums agree with it.
static void test_wrong_requests(void **state)
{
    (void)state;
    harness h;
    msgl_batch_req reqs[2];
    const msgl_batch good = open_with_batch(&h, reqs);
    const struct {
        const char *what;
        int32_t table_idx, cached_len, device_len, logits_from;
    } wrong[] = {
        {"row -1", -1, 20, 21, 0},
        {"row of the dummy request", RUNNING, 20, 21, 0},
        {"longer than a row", 0, MAX_SEQ, MAX_SEQ + 1, 0},
        {"position -1", 0, -1, 0, 0},
        {"logits from row -1", 0, 20, 21, -1},
    };
    for (size_t i = 0; i < MSGL_COUNT(wrong); i++) {
        reqs[0].table_idx = wrong[i].table_idx;
        reqs[0].cached_len = wrong[i].cached_len;
        reqs[0].device_len = wrong[i].device_len;
        reqs[0].logits_from = wrong[i].logits_from;
        expect_refused(&h, good, wrong[i].what);
    }
    msgl_batch b = good;
    reqs[0] = harness_req(0, 20, 20);
    b.num_tokens = 10;
    expect_refused(&h, b, "no new token");
    reqs[0] = harness_req(0, 20, 22);
    b.num_tokens = 12;
    expect_refused(&h, b, "an answer with two new tokens");
    // A request at the very end is no mistake.
    reqs[0] = harness_req(0, MAX_SEQ - 1, MAX_SEQ);
    b = good;
    assert_int_equal(h.r->submit(h.r->ctx, &b), 0);
    assert_int_equal(h.r->wait(h.r->ctx, 1, &h.result), 0);
    harness_close(&h);
}

static void test_wrong_batches(void **state)
{
    (void)state;
    harness h;
    msgl_batch_req reqs[2];
    const msgl_batch good = open_with_batch(&h, reqs);
    msgl_batch b = good;
    b.step_slot = -1;
    expect_refused(&h, b, "step slot -1");
    b.step_slot = h.r->max_in_flight;
    expect_refused(&h, b, "a step slot too many");
    b = good, b.size = 0, b.num_decode = 0;
    expect_refused(&h, b, "no requests");
    b = good, b.num_decode = -1;
    expect_refused(&h, b, "-1 answers");
    b = good, b.num_decode = 3;
    expect_refused(&h, b, "more answers than requests");
    b = good, b.num_tokens = 10;
    expect_refused(&h, b, "fewer tokens than requests have");
    b = good, b.num_tokens = 12;
    expect_refused(&h, b, "more tokens than requests have");
    msgl_batch_req many[RUNNING + 1];
    for (int32_t i = 0; i <= RUNNING; i++) many[i] = harness_req(i % RUNNING, 0, 1);
    b = (msgl_batch){.size = RUNNING + 1, .num_tokens = RUNNING + 1, .reqs = many, .step_slot = 1};
    expect_refused(&h, b, "more requests than may run");
    for (int32_t i = 0; i < RUNNING; i++) many[i] = harness_req(i, 0, MAX_SEQ);
    b.size = RUNNING, b.num_tokens = RUNNING * MAX_SEQ;
    assert_true(b.num_tokens > h.e->max_step_tokens);
    expect_refused(&h, b, "more tokens than a step has room for");
    harness_close(&h);
}

// A step slot is taken until its step was waited for, and only then.
static void test_step_slot_taken(void **state)
{
    (void)state;
    harness h;
    msgl_batch_req reqs[2];
    msgl_batch b = open_with_batch(&h, reqs), other = b;
    assert_int_equal(h.r->submit(h.r->ctx, &b), 0);
    assert_int_equal(h.r->submit(h.r->ctx, &b), MSGL_EINVAL);
    other.step_slot = 0;
    assert_int_equal(h.r->submit(h.r->ctx, &other), 0);
    assert_int_equal(h.r->wait(h.r->ctx, 1, &h.result), 0);
    assert_int_equal(h.result.size, 2);
    assert_int_equal(h.r->submit(h.r->ctx, &b), 0);
    assert_int_equal(h.r->wait(h.r->ctx, 0, &h.result), 0);
    assert_int_equal(h.r->wait(h.r->ctx, 1, &h.result), 0);
    assert_int_equal(h.r->wait(h.r->ctx, 1, &h.result), MSGL_EINVAL);
    assert_int_equal(h.r->wait(h.r->ctx, -1, &h.result), MSGL_EINVAL);
    assert_int_equal(h.r->wait(h.r->ctx, h.r->max_in_flight, &h.result), MSGL_EINVAL);
    harness_close(&h);
}

// Only rows of requests that ask for it go through their tokens before the choice.
static void test_rows_that_adjust(void **state)
{
    (void)state;
    const struct {
        float repetition, frequency, presence;
        bool bias, adjusts;
    } cases[] = {
        {1, 0, 0, false, false},    {1.1f, 0, 0, false, true}, {1, 0.1f, 0, false, true},
        {1, 0, -0.1f, false, true}, {1, 0, 0, true, true},
    };
    harness h;
    msgl_batch_req reqs[2];
    msgl_batch b = open_with_batch(&h, reqs);
    msgl_req_extra *extra;
    assert_int_equal(msgl__req_extra_create(&(msgl_bias){3, 1}, 1, 100, &extra, NULL), 0);
    assert_int_equal(h.r->write_extra(h.r->ctx, 0, extra), 0);
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        reqs[0].sampling.repetition_penalty = cases[i].repetition;
        reqs[0].sampling.frequency_penalty = cases[i].frequency;
        reqs[0].sampling.presence_penalty = cases[i].presence;
        reqs[0].extra = cases[i].bias ? extra : NULL;
        assert_int_equal(h.r->submit(h.r->ctx, &b), 0);
        assert_int_equal(h.r->wait(h.r->ctx, b.step_slot, &h.result), 0);
        const msgl_sample_row *rows = h.e->steps[b.step_slot].io.sample_rows;
        assert_int_equal(rows[0].adjusts, cases[i].adjusts);
        assert_false(rows[1].adjusts);
    }
    msgl__req_extra_unref(extra);
    harness_close(&h);
}

static void expect_copied(const msgl_seqs *s, msgl_phase phase, int32_t size)
{
    assert_int_equal(s->phase, phase);
    assert_int_equal(s->size, size);
    assert_ptr_not_equal(s->dev_seqlens_k, s->seqlens_k);
    assert_memory_equal(s->dev_cu_seqlens_q, s->cu_seqlens_q, ((size_t)size + 1) * sizeof(int32_t));
    assert_memory_equal(s->dev_seqlens_k, s->seqlens_k, (size_t)size * sizeof(int32_t));
    assert_memory_equal(s->dev_table_rows, s->table_rows, (size_t)size * sizeof(int32_t));
}

// Lengths and table rows that the host has staged are on the device when the step runs: those of
// answers, of chunks and of both.
static void test_lengths_on_the_device(void **state)
{
    (void)state;
    harness h;
    msgl_batch_req reqs[2];
    msgl_batch b = open_with_batch(&h, reqs);
    const msgl_engine_step *s = &h.e->steps[b.step_slot];
    for (int32_t num_decode = 0; num_decode <= 2; num_decode++) {
        b.num_decode = num_decode;
        reqs[0] = num_decode > 0 ? harness_req(0, 20, 21) : harness_req(0, 20, 22);
        reqs[1] = num_decode > 1 ? harness_req(1, 30, 31) : harness_req(1, 0, 10);
        b.num_tokens = msgl__extend_len(&reqs[0]) + msgl__extend_len(&reqs[1]);
        memset(h.e->dev.base, 0, msgl__staging_device_bytes(h.e));
        assert_int_equal(h.r->submit(h.r->ctx, &b), 0);
        assert_int_equal(h.r->wait(h.r->ctx, b.step_slot, &h.result), 0);
        assert_int_equal(s->num_seqs, 1); // a CPU's kernels take both at once
        expect_copied(&s->seqs[0], num_decode < 2 ? MSGL_PREFILL : MSGL_DECODE, 2);
    }
    harness_close(&h);
    msgl_options cfg = harness_config(MODEL, "auto");
    cfg.attention = "fa,fi"; // each its part
    harness_open(&h, &cfg);
    for (int32_t row = 0; row < 2; row++) harness_pages(&h, row, MAX_SEQ);
    (void)good_batch(reqs);
    memset(h.e->dev.base, 0, msgl__staging_device_bytes(h.e));
    harness_mixed(&h, 1, reqs, 2);
    s = &h.e->steps[0];
    assert_int_equal(s->num_seqs, 2);
    expect_copied(&s->seqs[0], MSGL_DECODE, 1);
    expect_copied(&s->seqs[1], MSGL_PREFILL, 1);
    harness_close(&h);
}

// The tokens of row `row` from `pos` on are written; their pages must be in the device's page
// table, as far as the host's row goes, and nothing else.
static void expect_pages(harness *h, int32_t *table, int32_t row, int32_t pos, int32_t n)
{
    msgl_engine *e = h->e;
    const int32_t size = e->info.cache.page_size, stride = e->token_stride / size;
    const size_t places = ((size_t)e->max_running + 1) * (size_t)stride;
    for (size_t i = 0; i < places; i++) table[i] = -7;
    int32_t *ids = calloc((size_t)n, sizeof *ids);
    assert_non_null(ids);
    assert_int_equal(h->r->write_tokens(h->r->ctx, row, pos, ids, n), 0);
    const int32_t last = (int32_t)((e->next_write - 1) % MSGL_ENGINE_WRITES);
    assert_int_equal(e->device->ops->wait(e->device, MSGL_ENGINE_STEP_SLOTS + last), 0);
    const int32_t *pages = msgl__page_table_row(&e->page_tables[0], row);
    for (size_t i = 0; i < places; i++) {
        const int32_t at = (int32_t)i - row * stride; // page of the row
        if (at >= pos / size && at <= (pos + n - 1) / size) {
            if (at < e->page_tables[0].stride) assert_int_equal(table[i], pages[at]);
        } else {
            assert_int_equal(table[i], -7);
        }
    }
    free(ids);
}

// A GPU's kernels read their own copy of the page table. Here the CPU's device keeps one.
static void check_device_page_table(int32_t page_size)
{
    harness h;
    msgl_options cfg = harness_config(MODEL, "auto");
    cfg.max_running = 3;
    cfg.max_seq_len = 3 * MSGL_WRITE_IDS;
    cfg.page_size = page_size;
    cfg.num_pages = 4 * (cfg.max_seq_len / page_size + 1);
    harness_open(&h, &cfg);
    msgl_engine *e = h.e;
    assert_int_equal(h.info->page_size, page_size);
    assert_null(e->dev.page_tables[0]);
    assert_int_equal(e->token_stride % page_size, 0);
    assert_true(e->token_stride > e->info.max_seq_len); // a place for a token sampled at the end
    int32_t *table = calloc(((size_t)e->max_running + 1) * (size_t)e->token_stride, sizeof *table);
    assert_non_null(table);
    e->dev.page_tables[0] = table;
    for (int32_t row = 0; row < 3; row++) harness_pages(&h, row, cfg.max_seq_len);
    expect_pages(&h, table, 0, 0, 1);
    expect_pages(&h, table, 1, 5, 40);
    expect_pages(&h, table, 2, 100, 2 * MSGL_WRITE_IDS + 100); // in three pieces
    expect_pages(&h, table, 2, e->info.max_seq_len - 1, e->token_stride - e->info.max_seq_len + 1);
    expect_pages(&h, table, 2, e->info.max_seq_len, 1);
    const int32_t id = 0;
    assert_int_equal(h.r->write_tokens(h.r->ctx, 3, 0, &id, 1), MSGL_EINVAL);
    assert_int_equal(h.r->write_tokens(h.r->ctx, -1, 0, &id, 1), MSGL_EINVAL);
    assert_int_equal(h.r->write_tokens(h.r->ctx, 0, -1, &id, 1), MSGL_EINVAL);
    assert_int_equal(h.r->write_tokens(h.r->ctx, 0, e->token_stride, &id, 1), MSGL_EINVAL);
    e->dev.page_tables[0] = NULL;
    free(table);
    harness_close(&h);
}

static void test_device_page_table(void **state)
{
    (void)state;
    const int32_t sizes[] = {1, 16, 48, 100};
    for (size_t i = 0; i < MSGL_COUNT(sizes); i++) check_device_page_table(sizes[i]);
}

// A graph of any size may run a step of any number of answers up to its size, so their arrays are
// at the same places for all of them, on the device and in each step slot.
static void test_places_of_decode_steps(void **state)
{
    (void)state;
    const int32_t running[] = {1, 3, 40, 64, 65, 100, 200};
    for (size_t i = 0; i < MSGL_COUNT(running); i++) {
        harness h;
        open_engine(&h, running[i]);
        msgl_engine *e = h.e;
        for (int step_slot = 0; step_slot < MSGL_ENGINE_STEP_SLOTS; step_slot++) {
            msgl_engine_step *s = &e->steps[step_slot];
            msgl__step_bind(e, s, running[i]);
            const msgl_engine_io io = s->io, dev = s->dev;
            for (int32_t n = 1; n <= running[i]; n++) {
                msgl__step_bind(e, s, n);
                assert_memory_equal(&s->io, &io, sizeof io);
                assert_memory_equal(&s->dev, &dev, sizeof dev);
            }
            // The largest step fits into what was allocated, and a small one is copied whole
            // sooner.
            msgl__step_bind(e, s, e->max_step_tokens);
            assert_true(s->io.bytes > io.bytes);
            assert_true((char *)s->host + s->io.bytes <= (char *)s->sampled);
            assert_true((char *)e->dev.base + s->dev.bytes <= (char *)e->dev.records);
        }
        harness_close(&h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_requests),         cmocka_unit_test(test_wrong_batches),
        cmocka_unit_test(test_step_slot_taken),        cmocka_unit_test(test_device_page_table),
        cmocka_unit_test(test_places_of_decode_steps), cmocka_unit_test(test_lengths_on_the_device),
        cmocka_unit_test(test_rows_that_adjust),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
