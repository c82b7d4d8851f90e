// SPDX-License-Identifier: Apache-2.0
//
// What tests of families with states share: a table of kernels for every level of this machine, one
// thread and two, random input. NaN fills what nothing was written to.
#ifndef MSGL_TESTS_KERNEL_STATES_FIXTURE_H
#define MSGL_TESTS_KERNEL_STATES_FIXTURE_H

#include <stdlib.h>
#include <string.h>

#include "core/attributes.h"
#include "kernel/kernel.h"
#include "utils/random.h"

enum { STATES = 16, MAX_PARTS = 4, MAX_SAVES = 4 };

struct fixture {
    msgl_cpu_level top;
    msgl_kernels kernels[MSGL_CPU_MAX_LEVELS];
    msgl_pool *one, *two;
    msgl_exec exec;        // of two threads, unless a test changes it
    const msgl_kernels *k; // of the best level, the same
    uint64_t rng;
};

struct request; // of a family: its tokens' inputs

// Tokens [begin, end) of a request; r NULL: padding.
struct part {
    const struct request *r;
    int begin, end, from, to, num_saves;
    msgl_kept_state saves[MAX_SAVES];
};

// Parts of a step as a call has them.
struct parts {
    int32_t cu[MAX_PARTS + 1], lens[MAX_PARTS], from[MAX_PARTS], to[MAX_PARTS];
    int32_t save_start[MAX_PARTS + 1];
    msgl_kept_state saves[MAX_PARTS * MAX_SAVES];
    msgl_seqs seqs;
};

static inline int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    f->top = msgl__cpu_level_detect();
    for (int level = 0; level <= f->top; level++) {
        msgl__kernels_init_cpu(&f->kernels[level], level);
    }
    msgl_err err;
    if (msgl__pool_create(1, &f->one, &err) != 0 || msgl__pool_create(2, &f->two, &err) != 0)
        return -1;
    f->exec.pool = f->two;
    f->k = &f->kernels[f->top];
    *state = f;
    return 0;
}

static inline int teardown(void **state)
{
    struct fixture *f = *state;
    msgl__pool_destroy(f->one);
    msgl__pool_destroy(f->two);
    free(f);
    return 0;
}

static inline float *uniform(uint64_t *rng, float low, float high, size_t n)
{
    float *p = malloc(n * sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = low + (high - low) * msgl__random_unit(rng);
    return p;
}

// STATES states, `stride` bytes from one to the next.
static inline char *states_new(size_t stride)
{
    char *states = malloc(stride * STATES);
    memset(states, 0xff, stride * STATES);
    return states;
}

// `*p` becomes what a call needs of the parts, which it points into; the call has to be made before
// it goes.
static inline msgl_states parts_lay(struct parts *p, const struct part *parts, int n, char *states,
                                    size_t stride)
{
    memset(p, 0, sizeof *p);
    for (int i = 0; i < n; i++) {
        const struct part *part = &parts[i];
        p->cu[i + 1] = p->cu[i] + part->end - part->begin;
        p->lens[i] = part->end, p->from[i] = part->from, p->to[i] = part->to;
        memcpy(p->saves + p->save_start[i], part->saves,
               (size_t)part->num_saves * sizeof *p->saves);
        p->save_start[i + 1] = p->save_start[i] + part->num_saves;
    }
    p->seqs = (msgl_seqs){.phase = MSGL_PREFILL,
                          .size = n,
                          .num_tokens = p->cu[n],
                          .cu_seqlens_q = p->cu,
                          .seqlens_k = p->lens};
    return (msgl_states){
        .seqs = &p->seqs,
        .base = states,
        .stride = stride,
        .at = {.from = p->from, .to = p->to, .saves = p->saves, .save_start = p->save_start}};
}

#endif
