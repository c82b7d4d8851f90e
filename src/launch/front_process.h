// SPDX-License-Identifier: Apache-2.0
//
// The front as a process of its own, beside its supervisor (launch.c). They talk as control.h
// says.
#ifndef MSGL_LAUNCH_FRONT_PROCESS_H
#define MSGL_LAUNCH_FRONT_PROCESS_H

#include <stdbool.h>

#include "launch/launch.h"

typedef struct msgl_front_start {
    const msgl_serve_config *cfg;
    int control, listen_fd, port;
    bool announced;        // an earlier front has said that all engines are ready
    const int *engine_fds; // [front.num_replicas] of their channels; -1: one that does not run now
    msgl_heartbeat *const *heartbeats; // [front.num_replicas]
    msgl_heartbeat *own_heartbeat;     // the front's
    struct msgl_tls *tls;              // NULL: none
    const msgl_traces *traces;         // NULL: none
} msgl_front_start;

// Serves until the front has stopped. Takes over control, listen_fd and engine_fds. 0, or why it
// could not start, which the supervisor gets as MSGL_CONTROL_FAILED. It is called once in a
// process.
int msgl__front_process(const msgl_front_start *start);

#endif
