// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "harness.h"
#include "utils/random.h"

static void take(harness *h, const msgl_token_event *e)
{
    assert_true(e->uid < HARNESS_REQUESTS);
    record *r = &h->records[e->uid];
    if (r->ends > 0 && e->finish != MSGL_FINISH_ERROR) fail_msg("event after the end");
    for (int32_t i = 0; i < e->num_logprobs; i++) {
        const msgl_token_logprobs *l = &e->logprobs[i];
        assert_in_range(l->position, 1, HARNESS_LEN - 1);
        r->logprobs[l->position] = l->logprob;
        r->num_logprobs++;
    }
    for (int32_t i = 0; i < e->num_tokens; i++) {
        assert_true(r->num_tokens < HARNESS_LEN);
        if (r->num_tokens == 0) {
            r->first_ns = h->fake.clock_ns;
        } else if (h->fake.clock_ns - r->last_ns > r->gap_ns) {
            r->gap_ns = h->fake.clock_ns - r->last_ns;
        }
        r->last_ns = h->fake.clock_ns;
        r->tokens[r->num_tokens++] = e->tokens[i];
    }
    r->cached = e->cached_tokens;
    r->prompt_tokens = e->prompt_tokens;
    if (e->finish == MSGL_FINISH_NONE) return;
    r->finish = e->finish;
    r->status = e->status;
    r->ends++;
    assert_int_equal(e->text != NULL, e->finish == MSGL_FINISH_ERROR);
    if (e->text != NULL) snprintf(r->text, sizeof r->text, "%s", e->text);
}

static void on_events(void *ctx, const msgl_msg_tokens *tokens)
{
    harness *h = ctx;
    for (int32_t i = 0; i < tokens->num_events; i++) take(h, &tokens->events[i]);
    for (int32_t i = 0; i < tokens->num_events; i++) {
        if (tokens->events[i].num_tokens > 0 &&
            h->abort_in_callback == (int32_t)tokens->events[i].uid) {
            h->abort_in_callback = -1;
            msgl__scheduler_abort(h->s, tokens->events[i].uid);
            return; // the events are gone
        }
    }
}

static msgl_cache_layout layout_of(const harness_options *o)
{
    msgl_cache_layout l = fake_layout(o->num_pages, o->page_size);
    const int32_t windows[] = {o->window, o->second_window};
    const int32_t pages[] = {o->window_pages, o->second_pages};
    for (int i = 0; i < 2; i++) {
        if (windows[i] == 0) continue;
        l.spans[l.num_spans++] =
            (msgl_cache_span){.kind = MSGL_SPAN_WINDOW,
                              .window = windows[i],
                              .num_units = pages[i] > 0 ? pages[i] : o->num_pages};
    }
    if (o->state_interval > 0) {
        l.spans[l.num_spans++] = (msgl_cache_span){.kind = MSGL_SPAN_STATE,
                                                   .window = -1,
                                                   .interval = o->state_interval,
                                                   .num_units = o->num_checkpoints,
                                                   .draft_states = o->draft_states};
    }
    return l;
}

static harness *g_guesses; // whose drafts are guesses; NULL: nobody's

// In place of looks for repeats: what really comes next, up to a random length, and behind it
// something else.
void __real_msgl__draft_make(msgl_drafter *d, msgl_draft_state *s, uint64_t salt,
                             const int32_t *ids, int32_t len, int32_t max_len, int32_t most,
                             msgl_draft *out);
void __wrap_msgl__draft_make(msgl_drafter *d, msgl_draft_state *s, uint64_t salt,
                             const int32_t *ids, int32_t len, int32_t max_len, int32_t most,
                             msgl_draft *out);
void __wrap_msgl__draft_make(msgl_drafter *d, msgl_draft_state *s, uint64_t salt,
                             const int32_t *ids, int32_t len, int32_t max_len, int32_t most,
                             msgl_draft *out)
{
    harness *h = g_guesses;
    if (h == NULL) {
        __real_msgl__draft_make(d, s, salt, ids, len, max_len, most, out);
        return;
    }
    msgl_sampling_params p = msgl__sampling_params_default();
    msgl_finish finish;
    if (most > d->cfg.most) most = d->cfg.most;
    if (most > HARNESS_LEN - len) most = HARNESS_LEN - len;
    out->num = out->match = 0;
    s->guess_at = -1;
    if (most < 1 || msgl__random_below(&h->guesses, 8) == 0) return;
    p.max_tokens = 1 + (int32_t)msgl__random_below(&h->guesses, (uint64_t)most);
    p.ignore_eos = true;
    out->num = fake_generate(ids, len, &p, HARNESS_LEN, h->cfg.vocab_size, HARNESS_EOS, out->tokens,
                             &finish);
    const uint64_t dice = msgl__random_below(&h->guesses, 4); // all are right; none is; some are
    const int32_t right = dice < 2 ? out->num : dice == 2 ? 0 : out->num / 2;
    for (int32_t i = 0; i < out->num; i++) {
        out->accepted[i] = 1.0f / (float)(i + 2);
        if (i < right) continue;
        out->tokens[i] = (int32_t)msgl__random_below(&h->guesses, (uint64_t)h->cfg.vocab_size);
    }
}

void harness_init(harness *h, harness_options o)
{
    memset(h, 0, sizeof *h);
    h->abort_in_callback = -1;
    h->records = calloc(HARNESS_REQUESTS, sizeof *h->records);
    assert_non_null(h->records);
    assert_true(o.max_seq_len <= HARNESS_LEN);
    const msgl_cache_layout layout = layout_of(&o);
    fake_init(&h->fake, o.max_running, o.max_seq_len, &layout, o.vocab_size, o.threaded);
    h->fake.runner.cut = o.cut;
    h->fake.expects_cuts = o.cut > 0 && o.cut <= o.max_prefill_tokens;
    h->options = (msgl_options){.cache_type = o.cache_type == MSGL_CACHE_NAIVE ? "naive" : "radix",
                                .max_running = o.max_running,
                                .max_prefill_tokens = o.max_prefill_tokens,
                                .overlap = o.overlap,
                                .prefill_first = o.prefill_first,
                                .max_loras_per_batch = o.step_adapters};
    h->fake.runner.max_adapters = o.adapters;
    h->fake.max_step_adapters = o.step_adapters;
    h->cfg = (msgl_scheduler_config){.max_seq_len = o.max_seq_len,
                                     .cache = layout,
                                     .vocab_size = o.vocab_size,
                                     .no_prefix_sharing = o.no_prefix_sharing,
                                     .num_eos = 1,
                                     .grammar_vocab = o.grammar_vocab,
                                     .eos_ids = {HARNESS_EOS},
                                     .tables = h->fake.tables};
    if (o.speculative != NULL) {
        h->fake.runner.max_drafts = 40;
        h->options.speculative_algorithm = o.speculative;
        h->options.speculative_num_draft_tokens = o.most_drafts + 1;
        if (strcmp(o.speculative, "STANDALONE") == 0) {
            h->fake.runner.max_propose = MSGL_MAX_PROPOSALS;
            h->options.speculative_num_steps = o.most_drafts;
            h->options.speculative_eagle_topk = o.trees ? FAKE_TOPK : 1;
        }
        if (o.guesses) g_guesses = h;
    }
    msgl_err err;
    if (msgl__scheduler_create(&h->options, &h->cfg, &h->fake.runner, on_events, h, &h->s, &err) !=
        0) {
        fail_msg("%s", err.text);
    }
}

void harness_free(harness *h)
{
    g_guesses = NULL;
    msgl__scheduler_destroy(h->s);
    assert_string_equal(h->fake.fault, "");
    for (int32_t s = 0; s < h->cfg.cache.num_spans; s++) {
        const msgl_page_table *t = &h->fake.tables[s];
        for (int32_t i = 0; i < t->stride; i++) { // the dummy request's row is nobody else's
            assert_int_equal(msgl__page_table_row(t, t->max_running)[i],
                             h->cfg.cache.spans[s].num_units);
        }
    }
    fake_free(&h->fake);
    free(h->records);
}

void harness_add(harness *h, uint64_t uid, const int32_t *ids, int32_t n,
                 const msgl_sampling_params *p)
{
    assert_true(uid < HARNESS_REQUESTS && n <= HARNESS_LEN);
    record *r = &h->records[uid];
    memset(r, 0, sizeof *r);
    memcpy(r->prompt, ids, (size_t)n * sizeof *ids);
    r->prompt_len = n;
    r->sampling = *p;
    char path[24];
    snprintf(path, sizeof path, "%llu", (unsigned long long)h->adapter);
    if (h->adapter >= HARNESS_BAD_ADAPTER) snprintf(path, sizeof path, "nowhere");
    if (h->fake.runner.max_adapters > 0) h->fake.adapter_of[uid % 64] = h->adapter;
    const msgl_msg_request q = {.uid = uid,
                                .client = h->client,
                                .adapter = h->adapter,
                                .adapter_path = h->adapter != 0 ? path : NULL,
                                .num_ids = n,
                                .ids = ids,
                                .sampling = *p};
    msgl__scheduler_add(h->s, &q);
}

void harness_add_simple(harness *h, uint64_t uid, int32_t n, int32_t m, uint64_t seed)
{
    int32_t ids[HARNESS_LEN];
    for (int32_t i = 0; i < n; i++) {
        ids[i] = (int32_t)msgl__random_below(&seed, (uint64_t)h->cfg.vocab_size);
    }
    msgl_sampling_params p = msgl__sampling_params_default();
    p.max_tokens = m;
    p.ignore_eos = true;
    harness_add(h, uid, ids, n, &p);
}

void harness_check(harness *h)
{
    msgl_err err;
    if (h->fake.fault[0] != '\0') fail_msg("%s", h->fake.fault);
    if (msgl__scheduler_check(h->s, &err) != 0) fail_msg("%s", err.text);
}

void harness_step(harness *h)
{
    const int rc = msgl__scheduler_step(h->s);
    harness_check(h);
    assert_int_equal(rc, 0);
}

void harness_run(harness *h, int32_t limit)
{
    for (; msgl__scheduler_has_work(h->s); limit--) {
        assert_true(limit > 0);
        harness_step(h);
    }
}

void harness_expect(harness *h, uint64_t uid)
{
    const record *r = &h->records[uid];
    int32_t expected[HARNESS_LEN];
    msgl_finish finish;
    const int32_t n = fake_generate(r->prompt, r->prompt_len, &r->sampling, h->cfg.max_seq_len,
                                    h->cfg.vocab_size, HARNESS_EOS, expected, &finish);
    assert_int_equal(r->ends, 1);
    assert_int_equal(r->finish, finish);
    assert_int_equal(r->num_tokens, n);
    assert_memory_equal(r->tokens, expected, (size_t)n * sizeof *expected);
    assert_int_equal(r->prompt_tokens, r->prompt_len);
    assert_true(r->cached < r->prompt_len);
    if (strcmp(h->options.cache_type, "naive") == 0 || h->cfg.no_prefix_sharing ||
        r->sampling.prompt_logprobs >= 0) {
        assert_int_equal(r->cached, 0);
    }
    int32_t rows = 0;
    int32_t ids[2 * HARNESS_LEN];
    memcpy(ids, r->prompt, (size_t)r->prompt_len * sizeof *ids);
    memcpy(ids + r->prompt_len, expected, (size_t)n * sizeof *ids);
    if (r->sampling.prompt_logprobs >= 0) {
        for (int32_t p = 1; p < r->prompt_len; p++, rows++) {
            assert_true(r->logprobs[p] == fake_logprob(ids, p));
        }
    }
    if (r->sampling.logprobs >= 0) {
        for (int32_t p = r->prompt_len; p < r->prompt_len + n; p++, rows++) {
            assert_true(r->logprobs[p] == fake_logprob(ids, p));
        }
    }
    assert_int_equal(r->num_logprobs, rows);
}

msgl_msg_stats harness_stats(harness *h)
{
    msgl_msg_stats st;
    msgl__scheduler_stats(h->s, &st);
    assert_int_equal(st.free_pages + st.cached_pages + st.used_pages, st.total_pages);
    return st;
}
