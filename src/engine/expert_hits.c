// SPDX-License-Identifier: Apache-2.0
//
// How many different experts the tokens of a step go to: a benchmark's figure for a model with
// experts means little without it, as their weights are most of what a step reads.
#include <string.h>

#include "engine/internal.h"

// A layer may choose for its rows in blocks, one behind the other.
static void add_chosen(void *ctx, const msgl_moe_experts *layer, const int32_t *offsets)
{
    msgl_engine *e = ctx;
    msgl_expert_count *c = &e->experts;
    msgl_expert_hits *hits = &c->hits[c->phase];
    const msgl_device_ops *ops = e->device->ops;
    const int32_t event = MSGL_DEVICE_MAX_EVENTS - 1;
    const size_t n = (size_t)layer->num_experts;
    const double bytes = (double)msgl__weight_bytes(&layer->gate_up[0]) +
                         (double)msgl__weight_bytes(&layer->down[0]);
    if (layer != c->layer) {
        c->layer = layer;
        hits->layers++;
        hits->unread_bytes += (double)layer->own * bytes;
        memset(c->hit, 0, n * sizeof *c->hit);
    }
    ops->copy_out(e->device, c->offsets, offsets, (n + 1) * sizeof *offsets);
    ops->record(e->device, event);
    if (ops->wait(e->device, event) != 0) return;
    for (size_t i = 0; i < n; i++) {
        if (c->hit[i] || c->offsets[i] == c->offsets[i + 1]) continue;
        c->hit[i] = true;
        hits->experts++;
        const int32_t at = (int32_t)i - layer->first; // of this rank's
        if (at >= 0 && at < layer->own) hits->unread_bytes -= bytes;
    }
}

const msgl_moe_watch *msgl__expert_watch(msgl_engine *e, const msgl_batch *b)
{
    msgl_expert_count *c = &e->experts;
    if (c->hits == NULL) return NULL;
    c->phase = b->num_decode == b->size ? MSGL_DECODE : MSGL_PREFILL;
    c->layer = NULL;
    c->hits[c->phase].steps++;
    return &c->watch;
}

int msgl__engine_count_experts(msgl_engine *e, msgl_expert_hits *hits, msgl_err *err)
{
    msgl_expert_count *c = &e->experts;
    const size_t n = (size_t)e->info.num_experts;
    int code = 0;
    if (c->offsets == NULL) {
        c->offsets = msgl__engine_take(e, n + 1, sizeof *c->offsets, true, &code, err);
        c->hit = msgl__engine_take(e, n + 1, sizeof *c->hit, true, &code, err);
        if (code != 0) return code;
    }
    c->watch = (msgl_moe_watch){.chosen = add_chosen, .ctx = e};
    c->hits = hits;
    return 0;
}
