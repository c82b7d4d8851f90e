// SPDX-License-Identifier: Apache-2.0
//
// Hidden states on their way from a target to its draft head, and along the head's chain. A step
// leaves those of its rows in a place of its step slot, behind everything else it computes; a
// head's step gathers from there what it reads. Both are in the device's queue, so the host only
// says which rows.
#include <string.h>

#include "engine/internal.h"
#include "models/decoder.h"

static size_t plane_bytes(const msgl_engine *e, size_t rows)
{
    return msgl__activation_bytes(rows, (size_t)e->hidden.dim, e->model.target.act);
}

void msgl__hidden_of_target(msgl_engine *e, const msgl_model_config *head)
{
    const msgl_head_config *h = &head->decoder.head;
    msgl_engine_hidden *out = &e->hidden;
    out->dim = e->model.cfg.hidden_size;
    out->num = h->num_states;
    out->all_rows = h->kind != MSGL_HEAD_EAGLE3;
    out->kind = out->all_rows ? MSGL_HIDDEN_FINAL : MSGL_HIDDEN_LAYERS;
    if (out->all_rows) return;
    const int32_t layers = e->model.cfg.num_layers;
    const int32_t usual[MSGL_MAX_AUX_STATES] = {1, layers / 2 - 1, layers - 4};
    const int32_t *ids = h->state_layers[0] < 0 ? usual : h->state_layers;
    for (int i = 0; i < MSGL_MAX_AUX_STATES; i++) out->layers[i] = ids[i];
}

void msgl__hidden_of_head(msgl_engine *e)
{
    msgl_engine_hidden *h = &e->hidden;
    const bool eagle = e->model.cfg.decoder.head.kind == MSGL_HEAD_EAGLE3;
    h->kind = eagle ? MSGL_HIDDEN_RESIDUAL : MSGL_HIDDEN_FINAL;
    h->dim = e->model.cfg.hidden_size;
    h->num = 1;
}

int32_t msgl__hidden_rows(const msgl_engine *e)
{
    enum { WHOLE_LINES = 16 }; // so that the planes behind begin at some
    const int32_t rows =
        e->parent == NULL ? e->max_step_tokens : e->max_running + MSGL_MAX_STEP_DRAFTS;
    return e->hidden.past > 0 ? (int32_t)msgl__round_up((size_t)rows, WHOLE_LINES) : rows;
}

static int32_t num_places(const msgl_engine *e)
{
    return e->parent == NULL ? MSGL_ENGINE_STEP_SLOTS : 1;
}

bool msgl__hidden_all_rows(const msgl_engine *e)
{
    return e->hidden.all_rows;
}

int32_t msgl__hidden_kept(const msgl_engine *e, int32_t slot, int32_t table_idx, int32_t position)
{
    const msgl_engine_hidden *h = &e->hidden;
    return (num_places(e) - slot) * h->rows + table_idx * h->past + position % h->past;
}

// Those that are kept, behind the last plane.
static size_t kept_rows(const msgl_engine *e)
{
    return (size_t)e->max_running * (size_t)e->hidden.past;
}

// What a head reads for a row: of its own, or of the target.
static int32_t states_a_row(const msgl_engine *e)
{
    const int32_t targets = e->parent->hidden.num;
    return targets > e->hidden.num ? targets : e->hidden.num;
}

// What a step's layers read: states of the target as they are (MTP), or of the head's own width.
static size_t in_bytes(const msgl_engine *e)
{
    const msgl_engine_hidden *h = &e->hidden, *of = &e->parent->hidden;
    const int32_t dim = h->kind == MSGL_HIDDEN_FINAL ? of->dim : h->dim;
    return msgl__activation_bytes((size_t)e->max_step_tokens, (size_t)dim, e->model.target.act);
}

static size_t raw_bytes(const msgl_engine *e)
{
    const msgl_engine_hidden *of = &e->parent->hidden;
    return msgl__activation_bytes((size_t)e->max_step_tokens, (size_t)of->num * (size_t)of->dim,
                                  e->model.target.act);
}

size_t msgl__hidden_bytes(const msgl_engine *e)
{
    const msgl_engine_hidden *h = &e->hidden;
    if (h->kind == MSGL_HIDDEN_NONE) return 0;
    const size_t graphs = (size_t)e->max_seqs;
    size_t sum =
        (size_t)h->num * ((size_t)num_places(e) * plane_bytes(e, (size_t)msgl__hidden_rows(e)) +
                          plane_bytes(e, graphs)) +
        plane_bytes(e, kept_rows(e));
    if (msgl__hidden_all_rows(e)) sum += plane_bytes(e, (size_t)e->max_step_tokens);
    if (e->parent == NULL) return sum;
    const size_t tokens = (size_t)e->max_step_tokens;
    return sum + in_bytes(e) + raw_bytes(e) + tokens * (size_t)states_a_row(e) * sizeof(int32_t) +
           (size_t)e->model.cfg.vocab_size * sizeof(int32_t);
}

// The places of step slots, with past states as one block.
static void take_places(msgl_engine *e, int *code, msgl_err *err)
{
    msgl_engine_hidden *h = &e->hidden;
    const size_t rows = (size_t)h->rows, places = (size_t)num_places(e);
    const size_t all = places * rows + kept_rows(e);
    const size_t bytes = rows * (size_t)h->dim * msgl__dtype_size(e->model.target.act);
    for (size_t i = 0; i < MSGL_ENGINE_STEP_SLOTS; i++) {
        if (i >= places) {
            h->out[i] = h->out[0];
        } else if (h->past == 0) {
            h->out[i] =
                msgl__engine_take(e, (size_t)h->num, plane_bytes(e, rows), false, code, err);
        } else if (i == 0) {
            h->out[i] = msgl__engine_take(e, 1, plane_bytes(e, all), false, code, err);
        } else if (*code == 0) {
            h->out[i] = (char *)h->out[i - 1] + bytes;
        }
    }
}

int msgl__hidden_create(msgl_engine *e, msgl_err *err)
{
    msgl_engine_hidden *h = &e->hidden;
    int code = 0;
    if (h->kind == MSGL_HIDDEN_NONE) return 0;
    h->rows = msgl__hidden_rows(e);
    const size_t num = (size_t)h->num, graphs = (size_t)e->max_seqs;
    take_places(e, &code, err);
    h->graph = msgl__engine_take(e, num, plane_bytes(e, graphs), false, &code, err);
    if (e->parent == NULL) return code;
    const size_t states = (size_t)e->max_step_tokens * (size_t)states_a_row(e);
    if (e->model.draft_ids != NULL) {
        const size_t vocab = (size_t)e->model.cfg.vocab_size;
        h->draft_ids = msgl__engine_take(e, vocab, sizeof *h->draft_ids, false, &code, err);
    }
    h->in = msgl__engine_take(e, 1, in_bytes(e), false, &code, err);
    h->raw = msgl__engine_take(e, 1, raw_bytes(e), false, &code, err);
    h->index = msgl__engine_take(e, states, sizeof *h->index, false, &code, err);
    for (int i = 0; i < MSGL_ENGINE_STEP_SLOTS; i++) {
        msgl_engine_step *s = &e->steps[i];
        s->from_index = msgl__engine_take(e, states, sizeof *h->index, true, &code, err);
        if (e->parent->hidden.past == 0) continue;
        s->keeps = msgl__engine_take(e, kept_rows(e->parent), sizeof *s->keeps, true, &code, err);
    }
    return code;
}

static void copy_ids(void *ctx, int64_t event)
{
    msgl_engine *e = ctx;
    e->device->ops->copy_in(e->device, e->hidden.draft_ids, e->model.draft_ids,
                            (size_t)e->model.cfg.vocab_size * sizeof *e->hidden.draft_ids);
    e->device->ops->record(e->device, (int32_t)event);
}

int msgl__hidden_load_ids(msgl_engine *e, msgl_err *err)
{
    e->device->ops->arm(e->device, e->first_event);
    e->device->ops->submit(e->device, copy_ids, e, e->first_event);
    const int code = e->device->ops->wait(e->device, e->first_event);
    return code == 0 ? 0 : msgl__err_set(err, code, "%s", e->device->fault.text);
}

void msgl__hidden_stage(msgl_engine_step *s, const msgl_hidden_source *from)
{
    if (from == NULL) return;
    const int32_t num = from->of->hidden.num;
    s->from = from->of;
    s->from_slot = from->slot;
    s->to_row = from->to_row;
    s->num_keeps = from->num_keeps;
    if (s->num_keeps > 0) {
        memcpy(s->keeps, from->keeps, (size_t)s->num_keeps * sizeof *s->keeps);
    }
    for (int32_t t = 0; t < s->batch.num_tokens; t++) {
        for (int32_t i = 0; i < num; i++) {
            s->from_index[t * num + i] = i * from->of->hidden.rows + from->rows[t];
        }
    }
}

void msgl__hidden_take(msgl_engine *e, const msgl_engine_step *s)
{
    const msgl_engine_hidden *h = &e->hidden;
    if (e->parent == NULL || h->kind == MSGL_HIDDEN_NONE) return;
    const msgl_engine_hidden *of = &s->from->hidden;
    const int32_t tokens = s->batch.num_tokens, n = tokens * of->num;
    const bool product = h->kind == MSGL_HIDDEN_RESIDUAL && s->from == e->parent;
    e->device->ops->copy_in(e->device, h->index, s->from_index, (size_t)n * sizeof *h->index);
    e->kernels.moe.gather(&e->exec, of->out[s->from_slot], h->index, n, 1, of->dim,
                          product ? h->raw : h->in);
    const size_t row = (size_t)of->dim * msgl__dtype_size(e->model.target.act);
    char *states = of->out[s->from_slot];
    for (int32_t i = 0; i < s->num_keeps; i++) {
        e->device->ops->copy(e->device, states + (size_t)s->keeps[i].to * row,
                             states + (size_t)s->keeps[i].row * row, row);
    }
    if (!product) return;
    msgl_forward f = {.x = &e->exec, .k = &e->kernels, .comm = e->comm};
    e->model.cfg.arch->family->take_states(&e->model, &f, h->raw, tokens, h->in);
}

// Where the first of the states of a step goes, launched kernel by kernel.
static void *place_of(const msgl_engine *e, const msgl_engine_step *s)
{
    const msgl_engine_hidden *h = &e->hidden;
    const size_t row = (size_t)h->dim * msgl__dtype_size(e->model.target.act);
    return (char *)h->out[s->batch.step_slot] + (size_t)s->to_row * row;
}

// Where the residual behind layers goes in a step, of a graph or not.
void msgl__hidden_capture(const msgl_engine *e, const msgl_engine_step *s, bool graph,
                          msgl_forward *f)
{
    const msgl_engine_hidden *h = &e->hidden;
    f->hidden = h->in;
    if (h->kind != MSGL_HIDDEN_LAYERS) return;
    f->capture.num = h->num;
    f->capture.layers = h->layers;
    f->capture.to = graph ? h->graph : place_of(e, s);
    f->capture.plane = (size_t)(graph ? e->max_seqs : h->rows) * (size_t)h->dim;
}

void msgl__hidden_leave(const msgl_engine *e, const msgl_engine_step *s, bool graph,
                        msgl_forward *f, const void *residual, int32_t rows)
{
    const msgl_engine_hidden *h = &e->hidden;
    void *to = graph ? h->graph : place_of(e, s);
    if (h->kind == MSGL_HIDDEN_FINAL) {
        msgl__model_norm(&e->model, f, residual, to, rows);
    } else if (h->kind == MSGL_HIDDEN_RESIDUAL) {
        const size_t size = msgl__dtype_size(e->model.target.act);
        e->device->ops->copy(e->device, to, residual, (size_t)rows * (size_t)h->dim * size);
    }
}

void msgl__hidden_behind_graph(const msgl_engine *e, const msgl_engine_step *s)
{
    const msgl_engine_hidden *h = &e->hidden;
    const size_t row = (size_t)h->dim * msgl__dtype_size(e->model.target.act);
    for (int32_t i = 0; i < h->num && h->kind != MSGL_HIDDEN_NONE; i++) {
        e->device->ops->copy(e->device, (char *)place_of(e, s) + (size_t)i * (size_t)h->rows * row,
                             (const char *)h->graph + (size_t)i * (size_t)e->max_seqs * row,
                             (size_t)s->batch.num_tokens * row);
    }
}

void msgl__hidden_map(msgl_engine *e, const msgl_engine_step *s)
{
    if (e->hidden.draft_ids == NULL) return;
    e->device->ops->map_tokens(e->device, e->dev.token_pool, s->dev.sample_index, s->num_samples,
                               e->hidden.draft_ids, e->model.cfg.vocab_size);
}
