// SPDX-License-Identifier: Apache-2.0
//
// Drives an engine through its runner the way a scheduler does, one or many requests at a time, and
// keeps every row of logits as log-probabilities.
#ifndef MSGL_TESTS_ENGINE_HARNESS_H
#define MSGL_TESTS_ENGINE_HARNESS_H

#include "engine/engine.h"
#include "engine/internal.h"

typedef struct harness {
    msgl_engine *e;
    const msgl_engine_info *info;
    const msgl_runner *r;
    int32_t next_page;
    // Log-probabilities by token of the step: rows [0, max_rows) of [vocab].
    float *logprobs;
    int32_t max_rows;
    msgl_step_result result; // of the last step
} harness;

// A config that every test starts from: small limits, `dir` as the model, one thread.
msgl_options harness_config(const char *dir, const char *dtype);
// Where and how; zeros: the CPU at its best level, fa, pages of 1, one thread, no graphs.
typedef struct harness_target {
    const char *device, *level, *attention, *weights, *kv; // weights, kv: dtypes, or NULL: auto
    int32_t page_size, threads, graph_max_bs;
    int32_t max_seq_len;  // 0: 128
    int32_t ranks;        // 0: one
    int32_t expert_ranks; // as --ep-size
    bool no_peers;        // as --disable-custom-all-reduce
    int32_t answers_from; // of parity.h: tokens from here on are computed as answers; 0: none
    int32_t chunk;        // of parity.h: tokens of the prompt that are computed at once; 0: all
    bool deterministic;
    bool mpi; // the ranks are an MPI job's processes
} harness_target;
msgl_options harness_config_for(const char *dir, const char *dtype, const harness_target *target);
// Whether there is a device of this name ("cpu", "cuda"); else says on stderr that the program is
// skipped, whose status is then 77.
bool harness_has_device(const char *device);
// Creates the engine, failing the test with the error's text.
void harness_open(harness *h, const msgl_options *cfg);
// The same, returning what msgl__engine_create does.
int harness_try_open(harness *h, const msgl_options *cfg, msgl_err *err);
void harness_close(harness *h);

// Gives row `row` pages for `tokens` tokens in every span, in a scattered order, and forgets
// earlier ones. They are the row's until a span has been handed out once more.
void harness_pages(harness *h, int32_t row, int32_t tokens);
void harness_tokens(harness *h, int32_t row, const int32_t *ids, int32_t n);
// A greedy request that wants no log-probabilities and logits of all rows.
msgl_batch_req harness_req(int32_t row, int32_t cached_len, int32_t device_len);
// Runs one step and waits; fails the test when the step fails.
void harness_step(harness *h, msgl_phase phase, msgl_batch_req *reqs, int32_t n);
// The same with answers, reqs[0, num_decode), and chunks in one step.
void harness_mixed(harness *h, int32_t num_decode, msgl_batch_req *reqs, int32_t n);
// Log-probabilities [n, vocabulary] of a prompt. The caller frees them.
float *harness_prompt_of(harness *h, const int32_t *ids, int32_t n);
// The same by an engine of this config that is there for it alone.
float *harness_prompt(const msgl_options *cfg, const int32_t *ids, int32_t n);
// Log-probabilities that the last step gave for its token `token`.
const float *harness_row(const harness *h, int32_t token);

// A file of the vectors: f32 [rows, vocab]; and the integers of a list in prompt.json.
float *load_floats(const char *path, size_t count);
int32_t load_ids(const char *path, const char *key, int32_t *ids, int32_t max);

#endif
