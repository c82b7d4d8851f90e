// SPDX-License-Identifier: Apache-2.0
//
// What msgl_router says, in f64 and by the plainest means, for tests on any device.
#ifndef MSGL_TESTS_KERNEL_ROUTE_ORACLE_H
#define MSGL_TESTS_KERNEL_ROUTE_ORACLE_H

#include <math.h>

#include "kernel/calls.h"

enum { ROUTE_ORACLE_EXPERTS = 1024 };

static inline int route_oracle_best(const double *values, const bool *out, int n)
{
    int best = -1;
    for (int i = 0; i < n; i++) {
        if (!out[i] && (best < 0 || values[i] > values[best])) best = i;
    }
    return best;
}

// Experts of the groups that were not chosen are out.
static inline void route_oracle_groups(const msgl_router *how, const double *values, int experts,
                                       bool *out)
{
    double scores[ROUTE_ORACLE_EXPERTS];
    bool taken[ROUTE_ORACLE_EXPERTS] = {false};
    const int size = experts / how->num_groups;
    for (int g = 0; g < how->num_groups; g++) {
        bool seen[ROUTE_ORACLE_EXPERTS] = {false};
        const double *v = values + g * size;
        const int first = route_oracle_best(v, seen, size);
        seen[first] = true;
        scores[g] = v[first] + (how->group_pairs ? v[route_oracle_best(v, seen, size)] : 0);
    }
    for (int c = 0; c < how->top_groups; c++) {
        taken[route_oracle_best(scores, taken, how->num_groups)] = true;
    }
    for (int e = 0; e < experts; e++) out[e] = !taken[e / size];
}

// One row: the chosen experts in order, with their weights. correction: how->correction on the
// host.
static inline void route_oracle(const msgl_router *how, const float *correction,
                                const float *logits, int experts, int32_t *ids, double *weights)
{
    double scores[ROUTE_ORACLE_EXPERTS], values[ROUTE_ORACLE_EXPERTS], max = -INFINITY, sum = 0;
    bool out[ROUTE_ORACLE_EXPERTS] = {false};
    for (int e = 0; e < experts; e++) max = fmax(max, (double)logits[e]);
    for (int e = 0; e < experts; e++) sum += exp((double)logits[e] - max);
    for (int e = 0; e < experts; e++) {
        const double l = (double)logits[e];
        scores[e] = how->scoring == MSGL_SCORE_SIGMOID ? 1 / (1 + exp(-l)) : exp(l - max) / sum;
        values[e] = scores[e] + (correction != NULL ? (double)correction[e] : 0);
    }
    if (how->num_groups > 1) route_oracle_groups(how, values, experts, out);
    double kept = 0;
    for (int c = 0; c < how->top_k; c++) {
        ids[c] = route_oracle_best(values, out, experts);
        out[ids[c]] = true;
        kept += scores[ids[c]];
    }
    for (int c = 0; c < how->top_k; c++) {
        weights[c] = (double)how->scale * scores[ids[c]] / (how->norm_topk ? kept : 1);
    }
}

#endif
