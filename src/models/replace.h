// SPDX-License-Identifier: Apache-2.0
//
// Other weights for a model that is loaded: of another checkpoint, or some tensors by themselves.
// A second model is built beside the first, with the same config and target; its plan has the same
// places, so that what is loaded by it is the first one's when the bytes of its region are
// (docs/decisions/065).
#ifndef MSGL_MODELS_REPLACE_H
#define MSGL_MODELS_REPLACE_H

#include "models/model.h"

// Builds *next (zeroed) with the weights of the checkpoint `dir` in place of m's, whose plan has
// been loaded, and opens it. MSGL_EINVAL: it is another model, and the error names the field; or
// what msgl__model_open has, or MSGL_EUNSUPPORTED: its weights take other places. dummy: random
// ones. The caller loads and frees it as any model.
int msgl__replace_open(const msgl_model *m, const char *dir, bool dummy, msgl_model *next,
                       msgl_err *err);
// The same with the tensors of a safetensors file in memory, `size` bytes at `file`, which have to
// stay until it is loaded or freed. next->plan wants all tensors still: msgl__weights_check_some
// leaves those that are there.
int msgl__replace_open_tensors(const msgl_model *m, const void *file, size_t size, msgl_model *next,
                               msgl_err *err);
// *next has been loaded, and its region's bytes are m's: what weights have on the host becomes
// m's, too. True: some of it is other than before, and what was captured has the old.
bool msgl__replace_take(const msgl_model *next, msgl_model *m);

// Whether two configs are of the same model, so that its weights can take each other's place.
// MSGL_EINVAL names the first field that differs, and `path`.
int msgl__config_same(const msgl_model_config *now, const msgl_model_config *next, const char *path,
                      msgl_err *err);

#endif
