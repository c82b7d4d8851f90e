// SPDX-License-Identifier: Apache-2.0
//
// Whether a model folder says that it is made to embed: the files that sentence-transformers
// writes beside config.json, which itself names a model that generates.
#ifndef MSGL_MODELS_EMBEDS_H
#define MSGL_MODELS_EMBEDS_H

#include <stdbool.h>

#include "core/err.h"

// *out: modules.json has a pooling module, and it takes the last token. A folder without either, or
// a path that is none, says nothing. MSGL_EUNSUPPORTED: it embeds in another way; MSGL_EFORMAT.
int msgl__model_embeds(const char *path, bool *out, msgl_err *err);

#endif
