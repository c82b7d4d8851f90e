// SPDX-License-Identifier: Apache-2.0
//
// A request's log-probabilities are the same bits whatever else runs and however its work is cut:
// alone, in a batch of 32, over a cached prefix, decoded, in other chunks, with other page sizes,
// thread counts or graphs.
#ifndef MSGL_TESTS_ENGINE_DETERMINISM_H
#define MSGL_TESTS_ENGINE_DETERMINISM_H

#include "engine/harness.h"

// A model of tests/vectors on `base`, then with the same expectations on each of `others`. phases:
// decode steps have the bits of prefill; otherwise they are compared with other decode steps.
void check_determinism(const char *model, const harness_target *base, bool phases,
                       const harness_target *others, size_t num_others);

#endif
