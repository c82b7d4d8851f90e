// SPDX-License-Identifier: Apache-2.0
//
// What ranks compare before they load a model, each from the files that it sees itself: a rank with
// other ones would compute other tokens.
#ifndef MSGL_MODELS_DIGEST_H
#define MSGL_MODELS_DIGEST_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

typedef struct msgl_model_digest {
    uint64_t config;  // of config.json; 0: there is none
    uint64_t weights; // 0: not asked for
} msgl_model_digest;

// Of the model at `path`. Of the weights' files it reads what they say of their tensors, sizes, and
// 4 KiB at both ends: enough to tell models and their versions apart, not to find a damaged file.
// What opening them has.
int msgl__model_digest(const char *path, bool weights, msgl_model_digest *out, msgl_err *err);
// Of a folder's file `name` of at most 16 MiB; 0: there is none. What reading it has.
int msgl__config_digest(const char *dir, const char *name, uint64_t *out, msgl_err *err);
// `weights` of one that is open.
struct msgl_checkpoint;
uint64_t msgl__checkpoint_digest(const struct msgl_checkpoint *c);

#endif
