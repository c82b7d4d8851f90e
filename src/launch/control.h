// SPDX-License-Identifier: Apache-2.0
//
// What the supervisor and its other processes tell each other over a packet socket: one frame
// (message/frame.h) a packet, whose body is a replica's number and a text, with a descriptor or
// none.
#ifndef MSGL_LAUNCH_CONTROL_H
#define MSGL_LAUNCH_CONTROL_H

typedef enum msgl_control {
    // To the supervisor:
    MSGL_CONTROL_SERVES = 1, // the front, or the exporter of traces, has started
    MSGL_CONTROL_READY,      // the replica's engine is ready
    MSGL_CONTROL_LOST,       // the replica's engine is gone; text: its last words
    MSGL_CONTROL_FAILED,     // the process cannot start; text: why
    // To the front:
    MSGL_CONTROL_CHANNEL, // the descriptor is the channel to a new engine of the replica
    MSGL_CONTROL_STOP,    // stop gracefully
} msgl_control;

enum { MSGL_CONTROL_TEXT = 512 }; // bytes of a text, of which more is cut off

// text may be NULL. pass_fd: a descriptor that the other process gets a copy of, or -1. 0, or
// MSGL_EIO.
int msgl__control_send(int fd, msgl_control kind, int replica, const char *text, int pass_fd);
// The kind, or 0 when there is none now, or -1 at the end. text: MSGL_CONTROL_TEXT + 1 bytes.
// *passed_fd: -1, or a descriptor that is the caller's from now on; NULL: one that comes is closed,
// since a process that takes none must not run out of them by what another one sends.
int msgl__control_recv(int fd, int *replica, char *text, int *passed_fd);

#endif
