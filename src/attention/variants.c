// SPDX-License-Identifier: Apache-2.0
//
// The list of what a model's layers differ in.
#include "attention/attention.h"

bool msgl__attn_variants_add(msgl_attn_variants *v, msgl_attn_variant variant)
{
    for (int32_t i = 0; i < v->count; i++) {
        const msgl_attn_variant *a = &v->all[i];
        if (a->window == variant.window && a->softcap == variant.softcap &&
            a->sinks == variant.sinks && a->mods == variant.mods && a->chunk == variant.chunk &&
            a->bidirectional == variant.bidirectional) {
            return true;
        }
    }
    if (v->count == MSGL_ATTN_MAX_VARIANTS) return false;
    v->all[v->count++] = variant;
    return true;
}

int32_t msgl__attn_windows(const msgl_attn_variants *v, int32_t windows[MSGL_ATTN_MAX_VARIANTS])
{
    int32_t n = 0;
    for (int32_t i = 0; i < v->count; i++) {
        windows[n] = v->all[i].window;
        int32_t first = 0;
        while (windows[first] != v->all[i].window) first++;
        n += first == n;
    }
    if (n == 0) windows[n++] = -1;
    return n;
}
