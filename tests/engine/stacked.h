// SPDX-License-Identifier: Apache-2.0
//
// A model of tests/vectors/models as transformers 5 has it in memory and writes it with
// save_original_format=False: a layer's experts in one tensor, some modules by other names.
#ifndef MSGL_TESTS_ENGINE_STACKED_H
#define MSGL_TESTS_ENGINE_STACKED_H

#include "models/folder.h"

// Makes a folder of the model of tests/vectors/models: of a layer's experts one tensor has gate and
// up [experts, 2 * width, hidden], another down [experts, hidden, width].
void stacked_make(folder *f, const char *model);

#endif
