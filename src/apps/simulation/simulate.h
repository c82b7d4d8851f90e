// SPDX-License-Identifier: Apache-2.0
//
// Many servers under a trace, by events on one clock: requests arrive, a router (routing/router.h)
// gives each to a replica, and replicas step in the order of their clocks. Nothing waits, and
// the same input gives the same result.
#ifndef MSGL_APPS_SIMULATION_SIMULATE_H
#define MSGL_APPS_SIMULATION_SIMULATE_H

#include <stdbool.h>
#include <stdint.h>

#include "routing/router.h"
#include "apps/simulation/step_table.h"
#include "apps/simulation/trace.h"

enum { MSGL_SIMULATION_MAX_REPLICAS = 10000 };

typedef struct msgl_simulation_config {
    const msgl_options *options; // num_pages and max_seq_len set
    const msgl_trace *trace;
    const msgl_step_table *steps;
    int32_t num_replicas; // 1 to MSGL_SIMULATION_MAX_REPLICAS
    msgl_routing policy;
    double balance; // of MSGL_ROUTING_CACHE_AWARE, as in msgl_router_config
    // 0: requests come when the trace says. Else so many clients begin at once, and each begins the
    // trace's next conversation when its last one has ended, with servers that have answered one
    // request before (`minisgl bench serve` does the same).
    int32_t clients;
    // Called now and then, with requests done; false ends the run (MSGL_EABORTED). NULL allowed.
    bool (*progress)(void *ctx, int32_t done, int32_t total);
    void *ctx;
} msgl_simulation_config;

typedef struct msgl_simulation_dist {
    double p50, p90, p99, max; // milliseconds
} msgl_simulation_dist;

typedef struct msgl_simulation_result {
    int32_t completed, failed;
    char first_error[256]; // of the failed ones
    double wall_s;         // first request sent to last answer complete
    int64_t prompt_tokens, cached_tokens, output_tokens; // of the completed ones
    msgl_simulation_dist ttft;                           // request sent to first token
    msgl_simulation_dist gap;                            // from one token of an answer to its next
    msgl_simulation_dist e2e;                            // request sent to answer complete
    double busy;              // share of the wall time in which a replica computes, in the mean
    int64_t steps, retracted; // of all replicas
    int64_t drafted_tokens, accepted_tokens; // drafts computed, and those that were right
} msgl_simulation_result;

// 0 also when some requests failed; MSGL_ENOMEM, MSGL_EABORTED, MSGL_EINVAL.
int msgl__simulate(const msgl_simulation_config *cfg, msgl_simulation_result *out, msgl_err *err);

#endif
