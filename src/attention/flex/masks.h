// SPDX-License-Identifier: Apache-2.0
//
// What flex_attention on the CPU and on GPUs share: which block masks a model's layers need, one
// for each mask function and window, and how large they get.
#ifndef MSGL_ATTENTION_FLEX_MASKS_H
#define MSGL_ATTENTION_FLEX_MASKS_H

#include "attention/attention.h"
#include "kernel/attn_flex.h"

typedef struct msgl_flex_masks {
    int32_t count;
    msgl_attn_variant all[MSGL_ATTN_MAX_VARIANTS];
    int32_t max_places; // blocks of queries of a step
    size_t lists_ld;    // integers of a list
} msgl_flex_masks;

void msgl__flex_masks(const msgl_attn_config *cfg, msgl_flex_masks *out);
// Index of the layer's block mask; m->count: none, the configuration does not list it.
int32_t msgl__flex_mask_of(const msgl_flex_masks *m, const msgl_attn_mods *mods, int32_t window);
// The functions that stand for a layer's, or a variant's, mods, window and soft cap, with the tree
// if the step has one.
msgl_attn_mods msgl__flex_mods(const msgl_attn_mods *mods, int32_t window, float softcap,
                               const msgl_seqs *seqs);

#endif
