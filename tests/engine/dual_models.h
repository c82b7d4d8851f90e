// SPDX-License-Identifier: Apache-2.0
//
// Folders of models with dual chunk attention, made from the vectors of others.
#ifndef MSGL_TESTS_ENGINE_DUAL_MODELS_H
#define MSGL_TESTS_ENGINE_DUAL_MODELS_H

#include "models/folder.h"

// A folder with the weights of `model`, and its config.json with these members of
// dual_chunk_attention_config, which it may have or not. Takes dual.
void dual_make(folder *f, const char *model, json_t *dual);
// The dual chunk model, whose prompts are sparse from 21 tokens on and keep so many distances in
// the first and the second of its two heads.
void dual_make_sparse(folder *f, int first, int second);

#endif
