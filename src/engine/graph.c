// SPDX-License-Identifier: Apache-2.0
//
// Captured decode steps. A step of few requests is hundreds of short kernels; launching them one by
// one takes the host longer than they run. For a ladder of batch sizes the step up to the chosen
// tokens is captured once, over dummy requests (twice where attention has other kernels for short
// ones); a step then copies its inputs to the buffers that the captured kernels read, padded with
// dummy requests up to the next size, and launches the whole. What requests want only sometimes
// (filters, log-probabilities) is launched behind it. Activations of all sizes share the step
// arena, so graphs cost no memory for them.
//
// Steps in which some request has an adapter have graphs of their own, of the same sizes: steps
// without any keep theirs, which fuse more. They are captured when a step first wants one, over
// the layers that adapters in memory change; a new adapter that changes others drops them.
#include <string.h>

#include "core/mem.h"
#include "engine/internal.h"

// 1, 2, 4, 8, 16, 24, ... up to max, which is always one of them. Returns how many.
static int32_t ladder(int32_t max, int32_t *sizes)
{
    int32_t n = 0;
    for (int32_t s = 1; s < max && n < MSGL_MAX_SIZES - 1; s = s < 8 ? 2 * s : s + 8) {
        sizes[n++] = s;
    }
    sizes[n++] = max;
    return n;
}

// Requests that all stand in the dummy row, at position 0 of the dummy pages.
static void dummy_batch(msgl_engine *e, msgl_engine_step *s, int32_t size)
{
    s->batch = (msgl_batch){.size = size, .num_decode = size, .num_tokens = size, .reqs = s->reqs};
    for (int32_t i = 0; i < size; i++) {
        s->reqs[i] = (msgl_batch_req){.table_idx = e->max_running, .device_len = 1};
    }
    s->split = s->batch;
    s->num_rows = s->num_samples = s->num_records = s->num_drafts = s->num_embed_runs = 0;
    s->whole_rows = false;
    *s->io.replay = (msgl_sample_replay){0};
    msgl__ropes_prepare(e->model.cfg.ropes, e->model.cfg.num_ropes, &s->batch, s->io.inv_freq,
                        s->dev.inv_freq, s->segments, s->ropes);
    msgl__step_pad(e, s, 0, size);
}

// The step of `of`, whose size and max_seq_len are set, over the staging set of a step that is not
// in flight: to *out and *logits. adapters: with what they add.
static int capture(msgl_engine *e, int32_t step_slot, const msgl_decode_graph *of, bool adapters,
                   msgl_graph **out, msgl_logits *logits, msgl_err *err)
{
    msgl_engine_step *s = &e->steps[step_slot];
    msgl_device *d = e->device;
    const int32_t size = of->size, event = e->first_event + step_slot;
    msgl__step_bind(e, s, size);
    dummy_batch(e, s, size);
    s->packed = s->has_words = of->verifies;
    s->lora = NULL;
    if (adapters) msgl__engine_lora_capture(e, step_slot, s, size);
    int code = msgl__step_seqs(e, s, of);
    if (code != 0) return msgl__err_set(err, code, "graph of %d requests: attention", size);
    msgl__step_copy_in(e, s);
    e->exec.status = 0;
    // Once for real: libraries and kernels load themselves at their first use, which a capture
    // cannot contain.
    if (msgl__step_forward(e, s, logits)) {
        d->ops->graph_begin(d);
        (void)msgl__step_forward(e, s, logits);
        *out = d->ops->graph_end(d, err);
    }
    if (e->exec.status != 0) return msgl__err_set(err, e->exec.status, "%s", d->fault.text);
    if (*out == NULL) return MSGL_EDEVICE;
    d->ops->record(d, event);
    code = d->ops->wait(d, event); // the staging is used again for the next size
    return code == 0 ? 0 : msgl__err_set(err, code, "%s", d->fault.text);
}

// Whether attention of all groups can be captured.
static bool can_capture(const msgl_engine *e)
{
    for (int32_t g = 0; g < e->specs.count; g++) {
        const msgl_attn_backend *b = e->groups[g].attn.decode;
        if (b != NULL && !b->desc->graph) return false;
    }
    return true;
}

// Length up to which `size` requests have kernels of their own in some group; 0: none has.
static int32_t short_seq_len(const msgl_engine *e, int32_t size)
{
    int32_t shortest = 0;
    for (int32_t g = 0; g < e->specs.count; g++) {
        const msgl_attn_backend *b = e->groups[g].attn.decode;
        if (b == NULL || b->desc->short_seq_len == NULL) continue;
        const int32_t len = b->desc->short_seq_len(b, size);
        if (len > 0 && (shortest == 0 || len < shortest)) shortest = len;
    }
    return shortest;
}

// Of a step worth capturing: of all requests, with as many drafts as one has as a rule.
static int32_t most_rows(const msgl_engine *e)
{
    enum { USUAL_ROWS = 16 };
    const int64_t usual = (int64_t)USUAL_ROWS * e->max_running;
    return usual < e->max_seqs ? (int32_t)usual : e->max_seqs;
}

static int capture_all(msgl_engine *e, msgl_decode_graph *graphs, int32_t n, msgl_err *err)
{
    int code = 0;
    for (int32_t i = n - 1; i >= 0 && code == 0; i--) { // largest first
        msgl_decode_graph *g = &graphs[i];
        code = capture(e, 0, g, false, &g->graph, &g->logits, err);
    }
    return code;
}

// Steps with drafts whose rows are packed. 1, 2, 4, 8, 16, .. 64, 96, .. up to max.
static int capture_verifying(msgl_engine *e, int32_t max_size, msgl_err *err)
{
    int32_t n = 0, size = 1;
    if (e->draft_rows != MSGL_ROWS_PACKED) return 0;
    while (n < MSGL_MAX_VERIFY_GRAPHS && (n == 0 || e->verify_graphs[n - 1].size < max_size)) {
        e->verify_graphs[n++] = (msgl_decode_graph){.size = size < max_size ? size : max_size,
                                                    .verifies = true,
                                                    .max_seq_len = e->info.max_seq_len};
        size = size < 8 ? 2 * size : size < 64 ? size + 8 : size + 32;
    }
    const int code = capture_all(e, e->verify_graphs, n, err);
    if (code == 0) e->num_verify_graphs = n;
    return code;
}

int msgl__graphs_capture(msgl_engine *e, int32_t max_size, msgl_err *err)
{
    if (max_size > most_rows(e)) max_size = most_rows(e);
    if (e->device->ops->graph_begin == NULL || max_size < 1 || !can_capture(e) ||
        msgl__rope_per_request(&e->model.cfg.ropes[0])) {
        return 0;
    }
    const bool packs = e->draft_rows == MSGL_ROWS_PACKED; // others have no more than answers
    const int32_t most = packs && max_size > e->max_running ? e->max_running : max_size;
    int32_t sizes[MSGL_MAX_SIZES], n = 0;
    const int32_t num_sizes = ladder(most, sizes), longest = e->info.max_seq_len;
    for (int32_t i = 0; i < num_sizes; i++) {
        const int32_t len = short_seq_len(e, sizes[i]);
        if (len > 0 && len < longest && n + num_sizes - i < MSGL_MAX_GRAPHS) {
            e->graphs[n++] = (msgl_decode_graph){.size = sizes[i], .max_seq_len = len};
        }
        e->graphs[n++] = (msgl_decode_graph){.size = sizes[i], .max_seq_len = longest};
    }
    const int code = capture_all(e, e->graphs, n, err);
    if (code == 0) e->num_graphs = n;
    return code == 0 ? capture_verifying(e, max_size, err) : code;
}

static void wait_for_steps(msgl_engine *e)
{
    for (int32_t i = 0; i < MSGL_ENGINE_STEP_SLOTS; i++) {
        if (e->steps[i].in_flight) (void)e->device->ops->wait(e->device, e->first_event + i);
    }
}

int msgl__graph_capture_adapters(msgl_engine *e, int32_t step_slot, msgl_decode_graph *g,
                                 msgl_err *err)
{
    wait_for_steps(e);
    return capture(e, step_slot, g, true, &g->with_adapters, &g->with_adapters_logits, err);
}

msgl_decode_graph *msgl__graphs_find(msgl_engine *e, bool verifies, int32_t size, int32_t seq_len)
{
    msgl_decode_graph *graphs = verifies ? e->verify_graphs : e->graphs;
    const int32_t n = verifies ? e->num_verify_graphs : e->num_graphs;
    for (int32_t i = 0; i < n; i++) {
        if (graphs[i].size >= size && graphs[i].max_seq_len >= seq_len) return &graphs[i];
    }
    return NULL;
}

static void drop_adapters(msgl_engine *e, msgl_decode_graph *graphs, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        if (graphs[i].with_adapters == NULL) continue;
        e->device->ops->graph_destroy(e->device, graphs[i].with_adapters);
        graphs[i].with_adapters = NULL;
    }
}

void msgl__graphs_drop_adapters(msgl_engine *e)
{
    wait_for_steps(e); // one may be such a graph
    drop_adapters(e, e->graphs, MSGL_MAX_GRAPHS);
    drop_adapters(e, e->verify_graphs, MSGL_MAX_VERIFY_GRAPHS);
}

static void destroy_all(msgl_engine *e, const msgl_decode_graph *graphs, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        if (graphs[i].graph != NULL) e->device->ops->graph_destroy(e->device, graphs[i].graph);
    }
}

void msgl__graphs_destroy(msgl_engine *e)
{
    drop_adapters(e, e->graphs, MSGL_MAX_GRAPHS);
    drop_adapters(e, e->verify_graphs, MSGL_MAX_VERIFY_GRAPHS);
    destroy_all(e, e->graphs, MSGL_MAX_GRAPHS);
    destroy_all(e, e->verify_graphs, MSGL_MAX_VERIFY_GRAPHS);
}
