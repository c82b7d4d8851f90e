// SPDX-License-Identifier: Apache-2.0
//
// How far log-probabilities are from others.
#ifndef MSGL_TESTS_ENGINE_LOSS_H
#define MSGL_TESTS_ENGINE_LOSS_H

#include <stdint.h>

typedef struct loss {
    double kl;          // Kullback-Leibler divergence from `want`, in nats, of all positions' mean
    double worst;       // the largest |difference| of a log-probability that is above -10 in `want`
    double same_choice; // share of positions whose largest is the same token
} loss;

// want, got: log-probabilities [positions, vocab].
loss loss_of(const float *want, const float *got, int32_t positions, int32_t vocab);

#endif
