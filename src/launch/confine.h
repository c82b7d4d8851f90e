// SPDX-License-Identifier: Apache-2.0
//
// What a server's processes give up: users that they need not be, privileges that a program they
// run could bring, and system calls that they have no use for (docs/decisions/036).
#ifndef MSGL_LAUNCH_CONFINE_H
#define MSGL_LAUNCH_CONFINE_H

#include <stdbool.h>

#include "core/err.h"

// Permissions, each a set of system calls: those of a kind of process, and those of what some
// servers do besides. Filters are inherited, so that a launcher needs the permissions of all that
// it starts.
typedef enum msgl_confine_permission {
    MSGL_CONFINE_FRONT = 1,    // answers on connections that are made, reads files
    MSGL_CONFINE_ENGINE = 2,   // loads a model and computes, on the CPU
    MSGL_CONFINE_LAUNCHER = 4, // starts, watches and ends the others
    MSGL_CONFINE_BATCHES = 8,  // --batch-dir: writes files
    MSGL_CONFINE_RANKS = 16,   // starts more processes
    MSGL_CONFINE_HOSTS = 32,   // talks to ranks on other hosts
    MSGL_CONFINE_TRACES = 64,  // an exporter of traces, a process of its own
} msgl_confine_permission;

// This process, which must be root's, becomes that of the user `spec` (NAME or NAME:GROUP) for
// good.
int msgl__become_user(const char *spec, msgl_err *err);
// From now on no program that this process starts has more privileges than it has itself.
int msgl__no_new_privileges(msgl_err *err);
// From now on this process, and those that it forks, write, make and remove no files but in the
// folder `writes` (made if it is not there; NULL: none), and read the memory and environment of no
// process that is not of them; on Linux 6.12 or later they signal none, either. What is open stays
// so. Does nothing where the kernel has no Landlock. It has to be called before msgl__confine,
// which forbids its system calls.
int msgl__shut_in(const char *writes, msgl_err *err);
// From now on any system call that is not in the permissions, a sum of msgl_confine_permission,
// does nothing and is ENOSYS, in this process and in those that it forks. It has to have one thread
// then. Implies msgl__no_new_privileges.
int msgl__confine(unsigned permissions, msgl_err *err);
// Why msgl__confine cannot be used in this program; NULL: it can be.
const char *msgl__confine_unable(void);

#endif
