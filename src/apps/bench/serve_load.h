// SPDX-License-Identifier: Apache-2.0
//
// What clients of a server see: a fixed number of them start at once, each sends its next request
// as soon as its last one is answered, against any OpenAI-compatible /v1/completions.
//
// One thread serves all clients by epoll, so that hundreds of streams cost the load generator a
// small share of a core, which it reports. Every event is timed by when its bytes were received,
// whether or not it carries text: a server that joins tokens into fewer events shows longer gaps.
#ifndef MSGL_APPS_BENCH_SERVE_LOAD_H
#define MSGL_APPS_BENCH_SERVE_LOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

typedef struct msgl_bench_serve_config {
    const char *url; // "http://127.0.0.1:1919", with or without "/v1"
    int concurrency; // clients
    int requests;    // in all
    int max_tokens;
    // Requests ask for all that the context leaves, as a chat without max_tokens does; the client
    // hangs up when max_tokens have come.
    bool open_ended;
    double temperature;
    bool ignore_eos;
    int prompt_tokens; // of each prompt: random ids below vocab_size
    int vocab_size;
    uint64_t prompt_seed;  // prompts of different seeds and indices differ: no prefix is cached
    int64_t first_index;   // of this run's requests
    int64_t sampling_seed; // plus index: sent as the request's "seed"; negative: none is sent
    int timeout_ms;        // without any byte
    // Called now and then, with requests done; false ends the run (MSGL_EABORTED). NULL allowed.
    bool (*progress)(void *ctx, int done, int total);
    void *ctx;
} msgl_bench_serve_config;

msgl_bench_serve_config msgl__bench_serve_config_default(void);

typedef struct msgl_bench_dist {
    double p50, p99, max; // milliseconds
} msgl_bench_dist;

typedef struct msgl_bench_serve_result {
    int completed, failed;
    char first_error[256]; // of the failed ones
    double wall_s;         // first request sent to last answer complete
    int64_t prompt_tokens, cached_tokens, output_tokens; // as usage says; else output: events
    double output_tok_per_s;
    msgl_bench_dist ttft; // request sent to first event
    msgl_bench_dist gap;  // from one event of an answer to its next
    msgl_bench_dist e2e;  // request sent to answer complete, or to hanging up
    double client_core;   // share of a core that the load generator itself took
} msgl_bench_serve_result;

// Runs the benchmark. 0 also when some requests failed; an error when all did.
int msgl__bench_serve(const msgl_bench_serve_config *cfg, msgl_bench_serve_result *out,
                      msgl_err *err);

#endif
