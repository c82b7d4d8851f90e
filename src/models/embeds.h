// SPDX-License-Identifier: Apache-2.0
//
// What a model folder says that it is made for, if not for answers: the files that
// sentence-transformers writes beside config.json, which itself names a model that generates.
#ifndef MSGL_MODELS_EMBEDS_H
#define MSGL_MODELS_EMBEDS_H

#include "core/batch.h"
#include "core/err.h"
#include "models/projection.h"
#include "models/prompts.h"

typedef struct msgl_model_pooling {
    msgl_pooling kind;
    msgl_pool_mode mode;                         // of MSGL_POOL_EMBED
    msgl_projection dense[MSGL_MAX_PROJECTIONS]; // of MSGL_POOL_EMBED: its Dense modules
    int32_t num_dense;
    msgl_text_form text_form; // the same
    int score_ids[2]; // of MSGL_POOL_SCORE: the tokens for yes and no, or for yes alone and -1
} msgl_model_pooling;

// MSGL_POOL_EMBED: modules.json has a Pooling, and it takes the last token, or, of a model that
// encodes, the first or all. MSGL_POOL_SCORE: it has a LogitScore of one token or two. A folder
// without either, or a path that is none, says nothing. MSGL_EUNSUPPORTED: it pools in another way;
// MSGL_EFORMAT.
int msgl__model_pooling(const char *path, bool encodes, msgl_model_pooling *out, msgl_err *err);

// Of a text's rows of `hidden` columns: makes *projections the Dense modules of p. MSGL_EFORMAT:
// one reads other columns than there are.
int msgl__model_take_dense(const msgl_model_pooling *p, int32_t hidden,
                           msgl_projection *projections, int32_t *num, msgl_err *err);

#endif
