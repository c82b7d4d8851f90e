// SPDX-License-Identifier: Apache-2.0
//
// A step's way through the engine: prepare (host, scheduler's thread) stages everything that the
// device needs in the batch's slot, then queues the work; run (device's queue) copies the staging
// in, computes, and copies the results out; wait hands them over. The host never looks at device
// memory, and the device never at the scheduler's.
#include <string.h>

#include "core/mem.h"
#include "engine/internal.h"
#include "utils/clock.h"

// Place in the token pool of a token of a request.
static int32_t token_place(const msgl_engine *e, const msgl_batch_req *r, int32_t position)
{
    return r->table_idx * e->token_stride + position;
}

static void stage_tokens(msgl_engine *e, msgl_engine_step *s)
{
    int32_t t = 0;
    for (int32_t i = 0; i < s->batch.size; i++) {
        const msgl_batch_req *r = &s->reqs[i];
        const int32_t *slots = msgl__page_table_row(&e->page_table, r->table_idx);
        for (int32_t p = r->cached_len; p < r->device_len; p++, t++) {
            s->positions[t] = p;
            s->out_loc[t] = slots[p];
            s->id_index[t] = token_place(e, r, p);
        }
    }
}

static void stage_sample(msgl_engine *e, msgl_engine_step *s, int32_t req)
{
    const msgl_batch_req *r = &s->reqs[req];
    const msgl_sampling_params *p = &r->sampling;
    s->row_sample[s->num_rows] = s->num_samples;
    s->sample_rows[s->num_samples] = (msgl_sample_row){
        .temperature = p->temperature,
        .top_p = p->top_p,
        .min_p = p->min_p,
        .top_k = p->top_k,
        .seed = p->seed,
        .position = r->device_len,
    };
    s->sample_index[s->num_samples] = token_place(e, r, r->device_len);
    s->sample_req[s->num_samples] = req;
    s->num_samples++;
}

// One row with logits: token `token` of the step, at `position` of request `req`.
static void stage_row(msgl_engine *e, msgl_engine_step *s, int32_t req, int32_t token,
                      int32_t position)
{
    const msgl_batch_req *r = &s->reqs[req];
    const int32_t row = s->num_rows;
    const bool sampled = r->sample && position == r->device_len - 1;
    const int32_t num_top = sampled ? r->sampling.logprobs : r->sampling.prompt_logprobs;
    s->rows[row] = token;
    s->row_sample[row] = s->row_record[row] = -1;
    if (sampled) stage_sample(e, s, req);
    if (num_top >= 0) {
        s->row_record[row] = s->num_records;
        s->record_index[s->num_records] = token_place(e, r, position + 1);
        msgl_token_logprobs *rec = &s->records[s->num_records++];
        rec->req = req;
        rec->position = position + 1;
        rec->num_top = num_top;
    }
    s->num_rows++;
}

static void stage_rows(msgl_engine *e, msgl_engine_step *s)
{
    s->num_rows = s->num_samples = s->num_records = 0;
    int32_t first = 0;
    for (int32_t i = 0; i < s->batch.size; i++) {
        const msgl_batch_req *r = &s->reqs[i];
        const int32_t n = msgl__extend_len(r);
        for (int32_t j = r->logits_from; j < n; j++) {
            stage_row(e, s, i, first + j, r->cached_len + j);
        }
        s->tokens[i] = -1;
        s->status[i] = 0;
        first += n;
    }
}

// Copies the staging in, to where kernels can read it.
static void copy_step_in(msgl_engine *e, const msgl_engine_step *s)
{
    msgl_device *d = e->device;
    const size_t tokens = (size_t)s->batch.num_tokens * sizeof(int32_t);
    const size_t samples = (size_t)s->num_samples * sizeof(int32_t);
    const size_t records = (size_t)s->num_records;
    const size_t half = (size_t)e->model.cfg.rope.dim / 2;
    d->ops->copy_in(d, e->dev.positions, s->positions, tokens);
    d->ops->copy_in(d, e->dev.out_loc, s->out_loc, tokens);
    d->ops->copy_in(d, e->dev.id_index, s->id_index, tokens);
    d->ops->copy_in(d, e->dev.rows, s->rows, (size_t)s->num_rows * sizeof(int32_t));
    d->ops->copy_in(d, e->dev.inv_freq, s->inv_freq,
                    (size_t)s->num_segments * half * sizeof(float));
    d->ops->copy_in(d, e->dev.sample_rows, s->sample_rows,
                    (size_t)s->num_samples * sizeof *s->sample_rows);
    d->ops->copy_in(d, e->dev.sample_index, s->sample_index, samples);
    d->ops->copy_in(d, e->dev.record_index, s->record_index, records * sizeof(int32_t));
    d->ops->copy_in(d, e->dev.records, s->records, records * sizeof *s->records);
}

static void copy_results_out(msgl_engine *e, msgl_engine_step *s)
{
    msgl_device *d = e->device;
    const size_t samples = (size_t)s->num_samples * sizeof(int32_t);
    d->ops->copy_out(d, s->sampled, e->dev.sampled, samples);
    d->ops->copy_out(d, s->sample_status, e->dev.sample_status, samples);
    d->ops->copy_out(d, s->records, e->dev.records, (size_t)s->num_records * sizeof *s->records);
}

static void run_step(void *ctx, int64_t slot)
{
    msgl_engine *e = ctx;
    msgl_engine_step *s = &e->steps[slot];
    msgl_device *d = e->device;
    const uint64_t start = msgl__now_ns();
    msgl__arena_reset(&e->arena);
    msgl__arena_reset(&e->scratch);
    e->exec.status = 0;
    copy_step_in(e, s);
    d->ops->gather_tokens(d, e->dev.token_pool, e->dev.id_index, s->batch.num_tokens, e->dev.ids,
                          1);
    msgl_forward f = {
        .x = &e->exec,
        .k = &e->kernels,
        .comm = &e->comm,
        .attn = e->attn,
        .batch = &s->batch,
        .pool = &e->kv,
        .arena = &e->arena,
        .positions = e->dev.positions,
        .out_loc = e->dev.out_loc,
        .inv_freq = e->dev.inv_freq,
        .segments = s->segments,
        .num_segments = s->num_segments,
        .rope_scale = e->rope_scale,
    };
    const void *hidden =
        e->model.cfg.arch->forward(&e->model, &f, e->dev.ids, e->dev.rows, s->num_rows);
    if (hidden != NULL) msgl__sample_step(e, s, &f, hidden);
    copy_results_out(e, s);
    s->failure = e->exec.status;
    s->compute_ns = msgl__now_ns() - start;
    d->ops->record(d, (int32_t)slot);
}

// Everything that indexes memory of the engine, so that a scheduler's mistake ends in an error.
static bool batch_valid(const msgl_engine *e, const msgl_batch *b)
{
    if (b->slot < 0 || b->slot >= MSGL_ENGINE_SLOTS || e->steps[b->slot].in_flight || b->size < 1 ||
        b->size > e->max_running) {
        return false;
    }
    int64_t tokens = 0;
    for (int32_t i = 0; i < b->size; i++) {
        const msgl_batch_req *r = &b->reqs[i];
        if (r->table_idx < 0 || r->table_idx >= e->max_running || r->cached_len < 0 ||
            r->device_len <= r->cached_len || r->device_len > e->info.max_seq_len ||
            r->logits_from < 0 || (b->phase == MSGL_DECODE && msgl__extend_len(r) != 1)) {
            return false;
        }
        tokens += msgl__extend_len(r);
    }
    return tokens == b->num_tokens && tokens <= e->max_step_tokens;
}

int msgl__engine_submit(void *engine, msgl_batch *b)
{
    msgl_engine *e = engine;
    if (!batch_valid(e, b)) return MSGL_EINVAL;
    msgl_engine_step *s = &e->steps[b->slot];
    msgl_batch_req *reqs = s->reqs;
    memcpy(reqs, b->reqs, (size_t)b->size * sizeof *reqs);
    s->batch = *b;
    s->batch.reqs = reqs;
    s->batch.positions = s->positions;
    s->batch.out_loc = s->out_loc;
    stage_tokens(e, s);
    stage_rows(e, s);
    s->num_segments = msgl__rope_prepare(&e->model.cfg.rope, &s->batch, s->inv_freq, s->segments);
    const int code = e->attn->desc->prepare_metadata(e->attn, &s->batch);
    if (code != 0) return code;
    s->in_flight = true;
    e->device->ops->arm(e->device, b->slot);
    e->device->ops->submit(e->device, run_step, e, b->slot);
    return 0;
}

int msgl__engine_wait(void *engine, int32_t slot, msgl_step_result *out)
{
    msgl_engine *e = engine;
    if (slot < 0 || slot >= MSGL_ENGINE_SLOTS || !e->steps[slot].in_flight) return MSGL_EINVAL;
    msgl_engine_step *s = &e->steps[slot];
    e->device->ops->wait(e->device, slot);
    s->in_flight = false;
    if (s->failure != 0) return s->failure;
    for (int32_t i = 0; i < s->num_samples; i++) {
        s->tokens[s->sample_req[i]] = s->sampled[i];
        s->status[s->sample_req[i]] = s->sample_status[i];
    }
    *out = (msgl_step_result){
        .size = s->batch.size,
        .tokens = s->tokens,
        .status = s->status,
        .num_logprobs = s->num_records,
        .logprobs = s->records,
        .compute_ns = s->compute_ns,
    };
    return 0;
}

// Copies a write's ids to the token pool.
static void run_write(void *ctx, int64_t index)
{
    msgl_engine *e = ctx;
    const msgl_token_write *w = &e->writes[index];
    e->device->ops->copy_in(e->device, e->dev.token_pool + w->place, w->ids,
                            (size_t)w->count * sizeof *w->ids);
    e->device->ops->record(e->device, MSGL_ENGINE_SLOTS + (int32_t)index);
}

int msgl__engine_write_tokens(void *engine, int32_t table_idx, int32_t pos, const int32_t *ids,
                              int32_t n)
{
    msgl_engine *e = engine;
    if (table_idx < 0 || table_idx >= e->max_running || pos < 0 || n < 0 ||
        n > e->token_stride - pos) {
        return MSGL_EINVAL;
    }
    for (int32_t i = 0; i < n; i += MSGL_WRITE_IDS) {
        const int32_t index = e->next_write++ % MSGL_ENGINE_WRITES;
        msgl_token_write *w = &e->writes[index];
        // Blocks only when more was written during one step than a step could use.
        e->device->ops->wait(e->device, MSGL_ENGINE_SLOTS + index);
        w->count = n - i < MSGL_WRITE_IDS ? n - i : MSGL_WRITE_IDS;
        w->place = table_idx * e->token_stride + pos + i;
        memcpy(w->ids, ids + i, (size_t)w->count * sizeof *ids);
        e->device->ops->arm(e->device, MSGL_ENGINE_SLOTS + index);
        e->device->ops->submit(e->device, run_write, e, index);
    }
    return 0;
}
