// SPDX-License-Identifier: Apache-2.0
//
// The front as a process of its own, beside its supervisor (launch.c).
// Supervisor and front talk over a packet socket, one letter, a replica and a payload per packet:
//   front -> supervisor   S  the front serves
//                         R  the replica's engine is ready
//                         L  it is gone; text: its last words
//                         X  the front cannot start; text: why
//   supervisor -> front   C  here is the channel to a new engine (with the descriptor)
//                         T  stop gracefully
#ifndef MSGL_LAUNCH_FRONT_PROCESS_H
#define MSGL_LAUNCH_FRONT_PROCESS_H

#include <stdbool.h>

#include "launch/launch.h"

enum { MSGL_CONTROL_TEXT = 512 }; // bytes of a packet's text, of which more is cut off

// pass_fd -1: none goes along. 0, or MSGL_EIO.
int msgl__control_send(int fd, char letter, int replica, const char *text, int pass_fd);
// The letter, or 0 when there is none now, or -1 at the end. text: MSGL_CONTROL_TEXT + 1 bytes;
// *passed_fd: -1, or the caller's.
int msgl__control_recv(int fd, int *replica, char *text, int *passed_fd);

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
// could not start, which the supervisor has been told. Once a process.
int msgl__front_process(const msgl_front_start *start);

#endif
