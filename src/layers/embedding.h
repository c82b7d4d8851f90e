// SPDX-License-Identifier: Apache-2.0
//
// What every step begins with: its tokens' ids, their rows of the embedding, and the angles of
// their positions.
#ifndef MSGL_LAYERS_EMBEDDING_H
#define MSGL_LAYERS_EMBEDDING_H

#include "layers/forward.h"

// out [num_tokens, w->k]: the tokens' rows of w, times scale, or what f->embeds has of them.
// cos_sin[i] [num_tokens, 2 half] of their positions by f->ropes[i]: half cosines, then as many
// sines. Their slots are in the page tables behind it. ids: the layers read f->ids, which is then
// filled.
void msgl__embed(msgl_forward *f, const msgl_weight *w, float scale, bool ids, void *out,
                 float *const cos_sin[MSGL_MAX_ROPES]);

#endif
