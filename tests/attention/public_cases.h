// SPDX-License-Identifier: Apache-2.0
//
// Shapes that the public tests of the original backends name, as fixed cases for any backend: facts
// (heads, lengths, pages, windows, caps), none of their code. Each runs in a world of its own, on
// the CPU in test_public_cases.c, on a GPU by `cuda_conformance --public`.
//
// What they have and a world cannot: requests without keys, or with more queries than keys (a
// request's new tokens are among its keys); head_dim 13, 59 and 512 (a multiple of 8 up to 256);
// latent caches of several heads, V of other sizes than K, windows on the right.
#ifndef MSGL_TESTS_ATTENTION_PUBLIC_CASES_H
#define MSGL_TESTS_ATTENTION_PUBLIC_CASES_H

#include "attention/world.h"

// Requests of the same lengths: new_tokens, the last of the keys.
typedef struct public_reqs {
    int count, keys, new_tokens;
} public_reqs;

enum { PUBLIC_MOST_REQS = 5 };

typedef struct public_case {
    int q_heads, kv_heads, head_dim;
    int v_dim; // not 0: a latent cache
    int page_size;
    msgl_dtype dtype;
    public_reqs reqs[PUBLIC_MOST_REQS]; // those of one new token first; count 0: none
    float softcap;                      // 0: off
    int window;                         // keys before its own that a query sees; 0: all
    int chunk;                          // of local attention; 0: off
    bool sinks;
    bool all; // not causal: every query sees all keys, or those from the window's first on
} public_case;

// Those of one test file.
typedef struct public_group {
    const char *source; // project, version, file
    const public_case *cases;
    int count;
} public_group;

const public_group *public_groups(int *count);
// A world for the case by this backend, with the page size nearest to the case's that it takes; the
// caller adds what else a GPU needs.
world_spec public_spec(const public_case *c, const msgl_attn_desc *desc);
// world_error of one step in such a world, which the backend supports.
double public_run(const public_case *c, const world_spec *spec);

#endif
