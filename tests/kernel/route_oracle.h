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

// The same, which is out from then on. *clear becomes false where rounding could have changed it:
// equal values stay equal.
static inline int route_oracle_take(const double *values, bool *out, int n, double error,
                                    bool *clear)
{
    const int best = route_oracle_best(values, out, n);
    out[best] = true;
    const int next = route_oracle_best(values, out, n);
    const double gap = next < 0 ? 0 : values[best] - values[next];
    if (gap > 0 && gap < error + 1e-6 * fabs(values[best])) *clear = false;
    return best;
}

// Experts of the groups that were not chosen are out.
static inline void route_oracle_groups(const msgl_router *how, const double *values, int experts,
                                       double error, bool *out, bool *clear)
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
        route_oracle_take(scores, taken, how->num_groups, error, clear);
    }
    for (int e = 0; e < experts; e++) out[e] = !taken[e / size];
}

// MSGL_SCORE_SPARSEMIXER.
static inline bool route_oracle_mix(const msgl_router *how, const float *logits, int experts,
                                    int32_t *ids, double *weights)
{
    double values[ROUTE_ORACLE_EXPERTS];
    bool out[ROUTE_ORACLE_EXPERTS] = {false}, clear = true;
    for (int e = 0; e < experts; e++) values[e] = (double)logits[e];
    for (int c = 0; c < how->top_k; c++) {
        const int best = route_oracle_best(values, out, experts);
        double sum = 0;
        for (int e = 0; e < experts; e++) {
            const double away = (values[best] - values[e]) / fmax(fabs(values[e]), values[best]);
            if (out[e]) continue;
            if (fabs(away - (double)how->spread) < 1e-6) clear = false;
            if (!(away > (double)how->spread)) sum += exp(values[e] - values[best]);
        }
        out[best] = true;
        ids[c] = best;
        weights[c] = 1 / sum;
    }
    return clear;
}

// Scores of a row's experts, by all but MSGL_SCORE_SPARSEMIXER.
static inline void route_oracle_scores(const msgl_router *how, const float *logits, int experts,
                                       double *scores)
{
    double max = -INFINITY, sum = 0;
    for (int e = 0; e < experts; e++) max = fmax(max, (double)logits[e]);
    for (int e = 0; e < experts; e++) sum += exp((double)logits[e] - max);
    for (int e = 0; e < experts; e++) {
        const double l = (double)logits[e];
        scores[e] = how->scoring == MSGL_SCORE_SIGMOID         ? 1 / (1 + exp(-l))
                    : how->scoring == MSGL_SCORE_SQRT_SOFTPLUS ? sqrt(log1p(exp(l)))
                                                               : exp(l - max) / sum;
    }
}

// One row: the chosen experts in order, with their weights. correction: how->correction on the
// host. Returns whether f32 cannot choose others.
static inline bool route_oracle(const msgl_router *how, const float *correction,
                                const float *logits, int experts, int32_t *ids, double *weights)
{
    if (how->scoring == MSGL_SCORE_SPARSEMIXER) {
        return route_oracle_mix(how, logits, experts, ids, weights);
    }
    double scores[ROUTE_ORACLE_EXPERTS], values[ROUTE_ORACLE_EXPERTS];
    bool out[ROUTE_ORACLE_EXPERTS] = {false};
    route_oracle_scores(how, logits, experts, scores);
    for (int e = 0; e < experts; e++) {
        values[e] = scores[e] + (correction != NULL ? (double)correction[e] : 0);
    }
    // Of a sum, not of the result.
    const double error = correction != NULL ? 1e-6 : 0;
    bool clear = true;
    if (how->num_groups > 1) route_oracle_groups(how, values, experts, error, out, &clear);
    double kept = 0;
    for (int c = 0; c < how->top_k; c++) {
        ids[c] = route_oracle_take(values, out, experts, error, &clear);
        kept += scores[ids[c]];
    }
    for (int c = 0; c < how->top_k; c++) {
        weights[c] = (double)how->scale * scores[ids[c]] / (how->norm_topk ? kept : 1);
    }
    return clear;
}

#endif
