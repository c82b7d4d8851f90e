// SPDX-License-Identifier: Apache-2.0
//
// What clients of a server see: a fixed number of them, each sending the next request as soon as
// its last one is answered, against any OpenAI-compatible /v1/completions.
#ifndef MSGL_SERVER_BENCH_SERVE_H
#define MSGL_SERVER_BENCH_SERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

typedef struct msgl_bench_serve_config {
    const char *url;   // "http://127.0.0.1:1919", with or without "/v1"
    const char *model; // NULL: the first of GET /v1/models
    int concurrency;   // clients
    int requests;      // in all
    int max_tokens;
    double temperature;
    bool ignore_eos;
    // Prompts, each a JSON value (a string literal or an array of ids), used in turn; NULL: made
    // up, see prompt_tokens.
    const char *const *prompts;
    int num_prompts;
    int prompt_tokens; // of made-up prompts: this many random ids, or words where vocab_size is 0
    int vocab_size;
    uint64_t seed;  // of made-up prompts; all differ, so that no prefix is cached
    int timeout_ms; // without any byte
    // Called now and then by one of the clients, with requests done; NULL allowed.
    void (*progress)(void *ctx, int done, int total);
    void *ctx;
} msgl_bench_serve_config;

msgl_bench_serve_config msgl__bench_serve_config_default(void);

typedef struct msgl_bench_dist {
    double mean, p50, p95, p99, max; // milliseconds
} msgl_bench_dist;

typedef struct msgl_bench_serve_result {
    int completed, failed;
    char first_error[256]; // of the failed ones
    double wall_s;         // first request sent to last answer complete
    int64_t prompt_tokens, cached_tokens, output_tokens; // as usage says; else output: chunks
    double requests_per_s, output_tok_per_s, total_tok_per_s;
    msgl_bench_dist ttft; // request sent to first text
    msgl_bench_dist gap;  // between pieces of text (tokens, where each has text of its own)
    msgl_bench_dist e2e;  // request sent to answer complete
} msgl_bench_serve_result;

// Runs the benchmark. 0 also when some requests failed; an error when none could be made.
int msgl__bench_serve(const msgl_bench_serve_config *cfg, msgl_bench_serve_result *out,
                      msgl_err *err);

#endif
