// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_TESTS_DEVICE_STUB_H
#define MSGL_TESTS_DEVICE_STUB_H

#include <stdatomic.h>

// What the stub device was asked for, under the symbol "stub".
typedef struct stub_counts {
    atomic_int opened;   // devices
    atomic_int attended; // calls of its backend
    atomic_int packed;   // calls of its format
} stub_counts;

#endif
