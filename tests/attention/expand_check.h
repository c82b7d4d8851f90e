// SPDX-License-Identifier: Apache-2.0
//
// Expanded latent attention (attention/expand.h) on any device against exact attention in f64, with
// the product between gather and attention done here. Slots of others, results and room for them
// are NaN at first, the rest of the page table names no slot.
#ifndef MSGL_TESTS_ATTENTION_EXPAND_CHECK_H
#define MSGL_TESTS_ATTENTION_EXPAND_CHECK_H

#include "attention/expand.h"

enum { EXPAND_MAX_REQS = 24 };

typedef struct expand_case {
    int heads, nope, rotary, v_dim, rank;
    msgl_dtype dtype;    // of the pool
    int max_step_tokens; // a pass has as many keys at most
    int size;
    int tokens[EXPAND_MAX_REQS], keys[EXPAND_MAX_REQS]; // new; with those
    msgl_prompts prompts;                               // 0: expanded
    uint64_t seed;
    msgl_device *dev;                   // and
    const msgl_expand_kernels *kernels; // of the GPU; NULL: the CPU's
} expand_case;

typedef struct expand_result {
    int passes;      // 0: not expanded, and nothing compared
    double out, lse; // largest errors; NaN counts as infinite
} expand_result;

expand_result expand_check(const expand_case *c);

#endif
