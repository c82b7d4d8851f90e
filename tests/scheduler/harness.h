// SPDX-License-Identifier: Apache-2.0
//
// A scheduler over a fake runner, and what came out of it per request. uids are indices below
// HARNESS_REQUESTS.
#ifndef MSGL_TESTS_SCHEDULER_HARNESS_H
#define MSGL_TESTS_SCHEDULER_HARNESS_H

#include "drafts/drafter.h"
#include "fake_runner.h"
#include "scheduler/scheduler.h"

enum { HARNESS_REQUESTS = 1024, HARNESS_LEN = 512, HARNESS_EOS = 0 };
enum { HARNESS_BAD_ADAPTER = 1000 }; // adapters from this number on have no folder

typedef struct record {
    int32_t prompt[HARNESS_LEN], prompt_len;
    msgl_sampling_params sampling;
    int32_t tokens[HARNESS_LEN], num_tokens;
    float logprobs[HARNESS_LEN]; // by position
    int32_t num_logprobs;
    msgl_finish finish;
    int32_t ends; // events with a finish
    int32_t status, cached, prompt_tokens;
    char text[MSGL_ERR_TEXT_SIZE];
    uint64_t first_ns, last_ns, gap_ns; // virtual clock: first token, last token, longest gap
} record;

typedef struct harness {
    fake_runner fake;
    msgl_options options;
    msgl_scheduler_config cfg;
    msgl_scheduler *s;
    record *records;           // [HARNESS_REQUESTS]
    uint64_t client;           // of requests that are added
    uint64_t adapter;          // likewise; 0: none
    uint64_t guesses;          // state of a generator
    int32_t abort_in_callback; // uid to abort when its first token arrives; -1: none
} harness;

typedef struct harness_options {
    int32_t max_running, max_seq_len, max_prefill_tokens, num_pages, page_size, vocab_size;
    // 0: no such span; pages of one that is not given as many as it can need.
    int32_t window, window_pages, second_window, second_pages;
    int32_t state_interval, num_checkpoints, draft_states;
    int32_t cut; // of the runner
    msgl_cache_type cache_type;
    bool overlap, threaded, prefill_first, no_prefix_sharing;
    msgl_grammar_vocab *grammar_vocab; // borrowed
    const char *speculative;           // the algorithm; NULL: no drafts
    bool trees;                        // of a draft model, FAKE_TOPK wide
    bool guesses;                      // its drafts are guesses, of which a random part is right
    int32_t most_drafts;
    int32_t adapters, step_adapters; // slots, and how many adapters a step may have
} harness_options;

void harness_init(harness *h, harness_options o);
void harness_free(harness *h);
// Adds a request and remembers it; the id is free for use again if it has ended.
void harness_add(harness *h, uint64_t uid, const int32_t *ids, int32_t n,
                 const msgl_sampling_params *p);
// A prompt of n tokens that depend on `seed`, max_tokens m, ignoring EOS.
void harness_add_simple(harness *h, uint64_t uid, int32_t n, int32_t m, uint64_t seed);
// One step, with all invariants checked after it.
void harness_step(harness *h);
void harness_check(harness *h);
// Steps until there is nothing to do; fails the test after `limit` steps.
void harness_run(harness *h, int32_t limit);
// The request has ended, with exactly the tokens that its prompt asks for.
void harness_expect(harness *h, uint64_t uid);
msgl_msg_stats harness_stats(harness *h);

#endif
