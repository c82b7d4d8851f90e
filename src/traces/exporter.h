// SPDX-License-Identifier: Apache-2.0
//
// The exporter: a process of its own that takes spans from the front and posts them to a collector,
// in batches (docs/decisions/038). The front makes no connections, and never waits for this one:
// what the socket between them or the queue here has no room for is dropped and counted.
#ifndef MSGL_TRACES_EXPORTER_H
#define MSGL_TRACES_EXPORTER_H

#include <stdatomic.h>

#include "traces/settings.h"
#include "traces/span.h"

// In memory that the processes share; spans of phases count as well.
typedef struct msgl_traces_counts {
    _Atomic uint64_t exported, dropped;
    _Atomic uint64_t queued; // by the exporter: lost with it
} msgl_traces_counts;

// The front's end.
typedef struct msgl_traces {
    int fd; // packet socket
    msgl_traces_counts *counts;
} msgl_traces;

// A packet socket and counters for the processes that are forked from here on; fd[0] is the
// front's, fd[1] the exporter's.
int msgl__traces_open(int fd[2], msgl_traces_counts **counts, msgl_err *err);
void msgl__traces_counts_free(msgl_traces_counts *counts); // NULL allowed
// Never blocks.
void msgl__traces_send(const msgl_traces *t, const msgl_span *s);

typedef struct msgl_exporter_config {
    const msgl_traces_settings *settings;
    const char *model, *scheme; // msgl_span_origin
    const msgl_log *log;        // NULL: none
    msgl_traces_counts *counts;
    int fd;        // the exporter's end
    int linger_ms; // after the front has closed its end, for what is left
} msgl_exporter_config;

typedef struct msgl_exporter msgl_exporter;
// Opens libcurl; may start threads from then on. MSGL_EUNSUPPORTED where it is not installed.
int msgl__exporter_create(const msgl_exporter_config *cfg, msgl_exporter **out, msgl_err *err);
// Until nobody holds the front's end any more, and what is left is sent or linger_ms are over.
void msgl__exporter_run(msgl_exporter *e);
void msgl__exporter_destroy(msgl_exporter *e); // NULL allowed

#endif
