// SPDX-License-Identifier: Apache-2.0
//
// What this process takes of the machine, and the end of one that was forked.
#ifndef MSGL_UTILS_PROCESS_H
#define MSGL_UTILS_PROCESS_H

#include <stdint.h>

typedef struct msgl_process_use {
    uint64_t memory; // resident bytes; 0: unknown
    uint64_t cpu_us; // of all threads, in user and system mode
} msgl_process_use;

// Two system calls and a file of /proc: some microseconds.
msgl_process_use msgl__process_use(void);

// The exit status of a process that the leak check of a sanitizer found fault with; no other has
// it.
enum { MSGL_EXIT_LEAKS = 23 };

// Ends a forked process: what is buffered is written, and what its parent registered with atexit is
// left to the parent. Under AddressSanitizer, with status 0, memory that nothing points to any more
// is reported on standard error and makes the status MSGL_EXIT_LEAKS.
_Noreturn void msgl__process_end(int status);

#endif
