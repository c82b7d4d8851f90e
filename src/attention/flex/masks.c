// SPDX-License-Identifier: Apache-2.0
#include "attention/flex/masks.h"

#include "core/round.h"

int32_t msgl__flex_mask_of(const msgl_flex_masks *m, const msgl_attn_mods *mods, int32_t window)
{
    int32_t i = 0;
    for (; i < m->count; i++) {
        if (m->all[i].mods == mods && (mods != NULL || m->all[i].window == window)) break;
    }
    return i;
}

void msgl__flex_masks(const msgl_attn_config *cfg, msgl_flex_masks *out)
{
    *out = (msgl_flex_masks){
        .max_places = cfg->max_step_tokens / MSGL_FLEX_BLOCK + cfg->max_running,
        .lists_ld = (size_t)msgl__ceil_div(cfg->max_seq_len, MSGL_FLEX_BLOCK) + 1};
    for (int32_t i = 0; i < cfg->variants.count; i++) {
        const msgl_attn_variant *v = &cfg->variants.all[i];
        if (msgl__flex_mask_of(out, v->mods, v->window) < out->count) continue;
        out->all[out->count++] = *v;
    }
    if (out->count == 0) out->all[out->count++] = (msgl_attn_variant){.window = -1};
}

msgl_attn_mods msgl__flex_mods(const msgl_attn_mods *mods, int32_t window, float softcap,
                               const msgl_seqs *seqs)
{
    msgl_attn_mods m = {.masks = 1u << MSGL_MASK_CAUSAL, .window = window, .softcap = softcap};
    if (window >= 0) m.masks |= 1u << MSGL_MASK_WINDOW;
    if (softcap > 0) m.scores |= 1u << MSGL_SCORE_SOFTCAP;
    if (mods != NULL) m = *mods;
    if (seqs->tree != NULL) m.masks |= 1u << MSGL_MASK_TREE;
    return m;
}
