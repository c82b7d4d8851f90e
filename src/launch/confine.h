// SPDX-License-Identifier: Apache-2.0
//
// What a server's processes give up: users that they need not be, privileges that a program they
// run could bring, and system calls that they have no use for (docs/decisions/036).
#ifndef MSGL_LAUNCH_CONFINE_H
#define MSGL_LAUNCH_CONFINE_H

#include <stdbool.h>

#include "core/err.h"

// Whose calls are allowed; a launcher needs those of all that it starts.
typedef enum msgl_confine_part {
    MSGL_CONFINE_FRONT = 1,    // answers on connections that are made, reads files
    MSGL_CONFINE_ENGINE = 2,   // loads a model and computes, on the CPU
    MSGL_CONFINE_LAUNCHER = 4, // starts, watches and ends the others
    // and, where it has them,
    MSGL_CONFINE_BATCHES = 8, // --batch-dir: writes files
    MSGL_CONFINE_RANKS = 16,  // starts more processes
    MSGL_CONFINE_HOSTS = 32,  // talks to ranks on other hosts
    MSGL_CONFINE_TRACES = 64, // an exporter of traces, a process of its own
} msgl_confine_part;

// NAME or NAME:GROUP: this process, which must be root's, becomes that user's, for good.
int msgl__become_user(const char *spec, msgl_err *err);
// Nothing that this process starts has more privileges than it has.
int msgl__no_new_privileges(msgl_err *err);
// From now on this process, and those that it forks, write, make and remove no files but in the
// folder `writes` (made if it is not there; NULL: none), and read the memory and environment of no
// process that is not of them; on Linux 6.12 or later they signal none, either. What is open stays
// so. Does nothing where the kernel has no Landlock. Before msgl__confine.
int msgl__shut_in(const char *writes, msgl_err *err);
// Any other system call than those of these parts does nothing from now on, and is ENOSYS, in this
// process and those that it forks. Before it has threads. Implies msgl__no_new_privileges.
int msgl__confine(unsigned parts, msgl_err *err);
// NULL: that can be done in this program; else why not.
const char *msgl__confine_unable(void);

#endif
