// SPDX-License-Identifier: Apache-2.0
//
// What the runner keeps between calls of a family.
#ifndef MSGL_TESTS_KERNEL_CHECKKERN_STATE_H
#define MSGL_TESTS_KERNEL_CHECKKERN_STATE_H

#include "kernel/checkkern.h"
#include "kernel/limits.h"

typedef struct ck_state {
    const char *only_function; // --function=; NULL: all
    uint64_t seed, rng;
    bool list;
    const char *family;
    char function[96]; // being checked; empty: none
    int compared;      // comparisons made for it
    int checks, failures;
    double worst_nmse;
    void *blocks;
    struct msgl_limits limits;
} ck_state;

// Ends the family's last check and frees its memory.
void msgl__ck_finish(checkkern *ck);

#endif
