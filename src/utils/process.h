// SPDX-License-Identifier: Apache-2.0
//
// What this process takes of the machine.
#ifndef MSGL_UTILS_PROCESS_H
#define MSGL_UTILS_PROCESS_H

#include <stdint.h>

typedef struct msgl_process_use {
    uint64_t memory; // resident bytes; 0: unknown
    uint64_t cpu_us; // of all threads, in user and system mode
} msgl_process_use;

// Two system calls and a file of /proc: some microseconds.
msgl_process_use msgl__process_use(void);

#endif
