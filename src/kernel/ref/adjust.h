// SPDX-License-Identifier: Apache-2.0
//
// A row's logits under its request's bias and penalties (kernel/calls.h has the formula), and back.
// Compiled with ops.inc; cuda/ops/adjust.cuh does the same with many threads.
//
// The few logits that change do so in place, after all of them have been saved, so that it does
// not matter how often a token occurs: its final value is computed from the saved one, and written
// again to the same effect. Only the frequency penalty has to count. The logits of the answer's
// tokens themselves are the counters: as NaNs with the count in the payload, which the final value
// of a row that can be sampled never is. So nothing is sized by the vocabulary, and nothing needs
// to be cleared.
#ifndef MSGL_KERNEL_REF_ADJUST_H
#define MSGL_KERNEL_REF_ADJUST_H

#include <math.h>
#include <string.h>

#include "kernel/calls.h"

#define COUNTER_BITS 0x7fc00000u // a quiet NaN; the count is below it, at most MSGL_MAX_COUNTED

static inline float counter_float(uint32_t count)
{
    const uint32_t bits = COUNTER_BITS + count;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t counter_count(float counter)
{
    uint32_t bits;
    memcpy(&bits, &counter, sizeof bits);
    return bits - COUNTER_BITS;
}

// Where the tokens begin that count as the answer, and those that the penalties look at.
static inline int32_t adjust_answer(const msgl_sample_row *r)
{
    const int32_t far = r->position - MSGL_MAX_COUNTED;
    return r->prompt_len > far ? r->prompt_len : far;
}

static inline int32_t adjust_first(const msgl_sample_row *r)
{
    if (r->repetition != 1) return 0;
    return r->frequency != 0 || r->presence != 0 ? adjust_answer(r) : r->position;
}

static inline float repeated(const msgl_sample_row *r, float l)
{
    return l > 0 ? l / r->repetition : l * r->repetition;
}

static inline float answered(const msgl_sample_row *r, float l, uint32_t count)
{
    return repeated(r, l) - r->frequency * (float)count - r->presence;
}

static void adjust_row(float *l, const msgl_sample_row *r, const msgl_sample_call *c)
{
    for (int32_t i = r->bias; i < r->bias + r->num_bias; i++) {
        float *at = &l[c->bias[i].token];
        c->bias_saved[i] = *at;
        *at += c->bias[i].value;
    }
    const int32_t first = adjust_first(r), answer = adjust_answer(r), end = r->position;
    if (first == end) return;
    const int32_t *ids = c->pool + r->tokens;
    float *saved = c->saved + r->tokens;
    for (int32_t i = first; i < end; i++) saved[i] = l[ids[i]];
    for (int32_t i = first; i < answer; i++) l[ids[i]] = repeated(r, saved[i]);
    if (r->frequency == 0) {
        for (int32_t i = answer; i < end; i++) l[ids[i]] = answered(r, saved[i], 0);
        return;
    }
    for (int32_t i = answer; i < end; i++) l[ids[i]] = counter_float(0);
    for (int32_t i = answer; i < end; i++) {
        l[ids[i]] = counter_float(counter_count(l[ids[i]]) + 1);
    }
    for (int32_t i = answer; i < end; i++) {
        float *at = &l[ids[i]];
        if (isnan(*at)) *at = answered(r, saved[i], counter_count(*at));
    }
}

static void restore_row(float *l, const msgl_sample_row *r, const msgl_sample_call *c)
{
    const int32_t *ids = c->pool + r->tokens;
    for (int32_t i = adjust_first(r); i < r->position; i++) l[ids[i]] = c->saved[r->tokens + i];
    for (int32_t i = r->bias; i < r->bias + r->num_bias; i++) {
        l[c->bias[i].token] = c->bias_saved[i];
    }
}

#endif
