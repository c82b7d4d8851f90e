// SPDX-License-Identifier: Apache-2.0
//
// What /metrics shows beside the engines' reports: counters of what happens in the front, changed
// where it happens and by the event loop's thread only.
#ifndef MSGL_FRONT_METRICS_H
#define MSGL_FRONT_METRICS_H

#include <stdint.h>

#include "api/api.h"
#include "utils/durations.h"

// Whose names are shown beside our own.
typedef enum msgl_metrics_compat {
    MSGL_METRICS_NONE,
    MSGL_METRICS_VLLM,
    MSGL_METRICS_SGLANG,
} msgl_metrics_compat;

#define MSGL_METRICS_COMPAT_NAMES "none|vllm|sglang"

enum {
    MSGL_METRICS_ENDPOINTS = 112, // the most that a front has, + 1; 0: none of them
    MSGL_METRICS_STATUSES = 24,   // the last: any other
    MSGL_METRICS_ERRORS = 32,
};

typedef struct msgl_metrics {   // zero: nothing has happened
    msgl_durations first_token; // from a request's arrival, one a request
    msgl_durations gap;         // between two steps' tokens of a choice
    msgl_durations latency;     // of requests that were answered to their end
    uint64_t clients_gone;      // before their answer was complete
    uint64_t answers[MSGL_METRICS_ENDPOINTS][MSGL_METRICS_STATUSES];
    struct {
        const char *code; // of OpenAI's error object, else its type; constants
        uint64_t count;
    } errors[MSGL_METRICS_ERRORS]; // the last: any other
} msgl_metrics;

// label: of the connection, a place in the front's table of endpoints + 1.
void msgl__metrics_answer(msgl_metrics *m, int label, int status);
void msgl__metrics_error(msgl_metrics *m, const msgl_api_error *e);

#endif
