// SPDX-License-Identifier: Apache-2.0
//
// What a test and the program that it starts share, in memory whose descriptor is the number in the
// environment variable FAULTS: linked with fail_alloc.c, the program fails one allocation, counted
// over all its processes and whoever makes it, libraries included.
#ifndef MSGL_TESTS_FAULTS_FAIL_ALLOC_H
#define MSGL_TESTS_FAULTS_FAIL_ALLOC_H

#include <stdatomic.h>

typedef struct faults {
    atomic_long left; // allocations until the one that fails, which is number 1; 0 and below: none
} faults;

#endif
