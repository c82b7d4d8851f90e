// SPDX-License-Identifier: Apache-2.0
//
// What a model folder says that it is made for, if not for answers: the files that
// sentence-transformers writes beside config.json, which itself names a model that generates.
#ifndef MSGL_MODELS_EMBEDS_H
#define MSGL_MODELS_EMBEDS_H

#include "core/batch.h"
#include "core/err.h"

typedef struct msgl_model_pooling {
    msgl_pooling kind;
    msgl_pool_mode mode; // of MSGL_POOL_EMBED
    int score_ids[2];    // of MSGL_POOL_SCORE: the tokens for yes and no
} msgl_model_pooling;

// MSGL_POOL_EMBED: modules.json has a Pooling, and it takes the last token, or, of a model that
// encodes, the first or all. MSGL_POOL_SCORE: it has a LogitScore of two tokens. A folder without
// either, or a path that is none, says nothing. MSGL_EUNSUPPORTED: it pools in another way;
// MSGL_EFORMAT.
int msgl__model_pooling(const char *path, bool encodes, msgl_model_pooling *out, msgl_err *err);

#endif
