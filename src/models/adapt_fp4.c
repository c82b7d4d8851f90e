// SPDX-License-Identifier: Apache-2.0
//
// Matrices of e2m1, two elements in a byte, with scales for each 16 or 32 of a row.
#include "models/adapters.h"

// Matrices of a mixture's experts as gpt-oss has them, MXFP4: X_blocks [experts, rows, blocks, 16]
// and X_scales [experts, rows, blocks] are one tensor X [experts, rows, columns].
static int claim_gpt_oss(msgl_adapting *a)
{
    msgl_tensor *t = a->t;
    const msgl_blocks *b = &msgl__blocks_ocp_mxfp4;
    if (t->dims[3] != b->bytes) return 0;
    t->packing = (msgl_packing){.form = &msgl__stored_blocks, .blocks = b};
    const int code = msgl__take_side(a, MSGL_SCALES, "_scales", "U8", 3, t->dims);
    if (code != 0) return code;
    t->packing.sides[MSGL_SCALES].type = MSGL_NUMBER_E8M0;
    t->ndim = 3;
    t->dims[2] *= b->elements;
    return 1;
}

const msgl_adapter msgl__adapter_gpt_oss = {"_blocks", "U8", 4, "", claim_gpt_oss};
