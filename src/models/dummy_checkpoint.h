// SPDX-License-Identifier: Apache-2.0
//
// The checkpoint that a folder without one would have: config.json's quantization_config says in
// which form a model's weights are packed, and this makes the tensors of that form, by the names
// that packers give them, with random codes and scales. What reads files reads them: adapters find
// their form, and weights are kept as those of a file are.
#ifndef MSGL_MODELS_DUMMY_CHECKPOINT_H
#define MSGL_MODELS_DUMMY_CHECKPOINT_H

#include "models/weights.h"

// The plan's tensors: packed ones with their bytes, which tensors of one form and shape share; the
// others, whose form is NULL, without data. *out stays NULL where nothing is packed, or the plan
// keeps nothing packed; else the caller closes it. embed, which head is too where they are tied, is
// packed in a GGUF file's forms alone. Errors: those of config.json, and MSGL_EUNSUPPORTED of a
// shape that the form cannot have.
int msgl__dummy_checkpoint(const msgl_weight_plan *p, const char *dir, int32_t layers,
                           const msgl_weight *embed, const msgl_weight *head, msgl_checkpoint **out,
                           msgl_err *err);

#endif
