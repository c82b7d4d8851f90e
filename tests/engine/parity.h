// SPDX-License-Identifier: Apache-2.0
//
// An engine's log-probabilities of 64 positions against transformers', on the small random models
// of tests/vectors/models: every architecture, scaling of positions, and dtype.
#ifndef MSGL_TESTS_ENGINE_PARITY_H
#define MSGL_TESTS_ENGINE_PARITY_H

#include "engine/harness.h"

extern const char *const parity_models[]; // NULL-terminated

// In float32: the largest difference stays below 1e-3. False, with the reason printed: the
// backend cannot run the model.
bool parity_f32(const char *model, const harness_target *target);
// The same for a model in another folder, whose values are to be those of `model`.
bool parity_f32_in(const char *dir, const char *model, const harness_target *target);
// Opens the model in `dir`, computes the prompt of `model` and leaves its 64 rows of
// log-probabilities in the harness. False when the backend cannot run the model; why is printed.
bool parity_prompt(harness *h, const char *dir, const char *model, const char *dtype,
                   const harness_target *target);
// In half precision against f32, like transformers' own half-precision run in `file`: the mean
// difference, and the same first choice wherever that run keeps it safely.
bool parity_half(const char *model, const char *dtype, const char *file,
                 const harness_target *target);
// The path of a file of a model ("" for its folder); out has room for 512 characters.
void parity_path(char *out, const char *model, const char *file);

#endif
