// SPDX-License-Identifier: Apache-2.0
//
// Memory of the steps: what the host writes before a step and reads after it, one set per step
// slot, and the device's set. The part that the device reads has the same layout on both sides, so
// that one copy moves it; arrays per token are as long as the step needs, but never shorter than a
// decode step may need, so that captured graphs always find them at the same place.
#include <string.h>

#include "core/mem.h"
#include "core/round.h"
#include "core/seqs.h"
#include "engine/internal.h"

// Hands out pieces of a block, 64-byte aligned; with no block it only counts.
typedef struct cutter {
    char *base;
    size_t used;
} cutter;

static void *cut(cutter *c, size_t count, size_t size)
{
    void *p = c->base == NULL ? NULL : c->base + c->used;
    c->used += msgl__round_up(count * size, 64);
    return p;
}

// Pages that `tokens` new tokens can be in: each page has one of them, and all but the first and
// last ones of a request are full of them.
static size_t most_pages(const msgl_engine *e, size_t tokens)
{
    const size_t pages = tokens / (size_t)e->info.cache.page_size + 2 * (size_t)e->max_seqs;
    return pages < tokens ? pages : tokens;
}

static size_t cut_io(const msgl_engine *e, size_t tokens, void *base, msgl_engine_io *io)
{
    const size_t r = (size_t)e->max_running, samples = (size_t)e->max_samples;
    const msgl_model_config *m = &e->model.cfg;
    cutter c = {.base = base};
    io->inv_freq =
        cut(&c, msgl__ropes_floats(m->ropes, m->num_ropes, e->max_seqs), sizeof *io->inv_freq);
    io->replay = cut(&c, 1, sizeof *io->replay);
    io->sample_rows = cut(&c, samples, sizeof *io->sample_rows);
    io->sample_index = cut(&c, samples, sizeof *io->sample_index);
    io->seqs[0] = cut(&c, msgl__seqs_bytes(e->max_seqs), 1);
    io->states[0] = cut(&c, msgl__states_bytes(e), 1);
    io->positions = cut(&c, tokens, sizeof *io->positions);
    io->prompt_lens = NULL;
    if (m->ropes[0].dual.original > 0) io->prompt_lens = cut(&c, tokens, sizeof *io->prompt_lens);
    io->token_types = NULL;
    if (m->encoder.num_types > 0) io->token_types = cut(&c, tokens, sizeof *io->token_types);
    io->pool_from = NULL;
    if (m->arch->family->encodes) io->pool_from = cut(&c, tokens, sizeof *io->pool_from);
    for (int32_t i = 0; i < e->num_tables; i++) {
        io->pages[i] = cut(&c, most_pages(e, tokens), sizeof *io->pages[i]);
    }
    io->id_index = cut(&c, tokens, sizeof *io->id_index);
    io->rows = cut(&c, tokens, sizeof *io->rows);
    io->record_index = cut(&c, tokens, sizeof *io->record_index);
    const int32_t room = msgl__engine_lora_tiles_room(e, (int32_t)tokens);
    for (int i = 0; i < 2; i++) {
        io->lora_order[i] = cut(&c, room > 0 ? tokens : 0, sizeof *io->lora_order[i]);
        io->lora_tiles[i] = cut(&c, (size_t)room, sizeof *io->lora_tiles[i]);
        io->lora_slots[i] = cut(&c, room > 0 ? tokens : 0, sizeof *io->lora_slots[i]);
    }
    io->first = cut(&c, r, sizeof *io->first); // last, from here on: often unused
    io->seqs[1] = cut(&c, msgl__seqs_bytes(e->max_seqs), 1);
    io->states[1] = cut(&c, msgl__states_bytes(e), 1);
    io->tree =
        cut(&c, e->topk > 1 || e->draft_rows == MSGL_ROWS_PACKED ? tokens : 0, sizeof *io->tree);
    return io->bytes = c.used;
}

static size_t cut_step(const msgl_engine *e, void *base, msgl_engine_step *s)
{
    const size_t t = (size_t)e->max_step_tokens, r = (size_t)e->max_running;
    const size_t samples = (size_t)e->max_samples;
    const msgl_model_config *m = &e->model.cfg;
    msgl_engine_io io;
    cutter c = {.base = base};
    s->host = cut(&c, cut_io(e, t, NULL, &io), 1);
    const size_t pooled = r * (size_t)e->info.pooled_size;
    s->hidden = cut(&c, pooled, msgl__dtype_size(e->model.target.act));
    s->pooled = cut(&c, pooled, sizeof *s->pooled);
    s->token_values = cut(&c, t * msgl__token_values(e), sizeof *s->token_values);
    s->cu_token_values = cut(&c, r + 1, sizeof *s->cu_token_values);
    s->sampled = cut(&c, 2 * samples, sizeof *s->sampled);
    const size_t values = (size_t)msgl__row_values_most(e), dim = (size_t)m->hidden_size;
    const size_t act = msgl__dtype_size(e->model.target.act);
    s->row_values = cut(&c, values, sizeof *s->row_values);
    s->row_hidden = cut(&c, e->returns_hidden ? values : 0, act);
    s->listed = cut(&c, values > 0 ? r * MSGL_MAX_LISTED : 0, sizeof *s->listed);
    s->embeds = cut(&c, values > 0 ? MSGL_EMBED_ROWS : 0, dim * act);
    s->records = cut(&c, t, sizeof *s->records);
    s->reqs = cut(&c, r, sizeof *s->reqs);
    s->split_reqs =
        cut(&c, e->draft_rows != MSGL_ROWS_CHUNK ? (size_t)e->max_seqs : 0, sizeof *s->split_reqs);
    s->segments =
        cut(&c, msgl__ropes_segments(m->ropes, m->num_ropes, e->max_seqs), sizeof *s->segments);
    s->row_sample = cut(&c, t, sizeof *s->row_sample);
    s->row_record = cut(&c, t, sizeof *s->row_record);
    s->sample_req = cut(&c, samples, sizeof *s->sample_req);
    s->sample_chain = cut(&c, samples, sizeof *s->sample_chain);
    s->chains = cut(&c, samples, sizeof *s->chains);
    s->mu = cut(&c, samples, sizeof *s->mu);
    s->sample_mask = cut(&c, samples, sizeof *s->sample_mask);
    s->drafts = cut(&c, (size_t)e->max_drafts, sizeof *s->drafts);
    s->parents = cut(&c, (size_t)e->max_drafts, sizeof *s->parents);
    s->chosen_row = cut(&c, samples, sizeof *s->chosen_row);
    s->moves.tokens = cut(&c, samples, sizeof *s->moves.tokens);
    s->moves.places = cut(&c, r, sizeof *s->moves.places);
    msgl__moves_place(e, cut(&c, msgl__moves_place(e, NULL, &s->moves), 1), &s->moves);
    s->masks = cut(&c, samples * (size_t)msgl__mask_words(e), sizeof *s->masks);
    s->cu_row_values = cut(&c, r, sizeof *s->cu_row_values);
    s->values = cut(&c, r, sizeof *s->values);
    s->embed_runs = cut(&c, r, sizeof *s->embed_runs);
    s->cu_tokens = cut(&c, r + 1, sizeof *s->cu_tokens);
    s->status = cut(&c, r, sizeof *s->status);
    return c.used;
}

static size_t cut_device(const msgl_engine *e, void *base, msgl_engine_dev *d)
{
    const size_t t = (size_t)e->max_step_tokens;
    msgl_engine_io io;
    cutter c = {.base = base};
    d->base = cut(&c, cut_io(e, t, NULL, &io), 1);
    d->records = cut(&c, t, sizeof *d->records);
    d->ids = cut(&c, t, sizeof *d->ids);
    for (int32_t i = 0; i < e->num_tables; i++) d->slots[i] = cut(&c, t, sizeof *d->slots[i]);
    d->chains = cut(&c, (size_t)e->max_samples, sizeof *d->chains);
    msgl__moves_place(e, cut(&c, msgl__moves_place(e, NULL, &d->moves), 1), &d->moves);
    d->normed = cut(&c, msgl__row_values_normed_bytes(e), 1);
    d->masks = cut(&c, (size_t)e->max_samples * (size_t)msgl__mask_words(e), sizeof *d->masks);
    return c.used;
}

size_t msgl__staging_host_bytes(const msgl_engine *e)
{
    msgl_engine_step s;
    return MSGL_ENGINE_STEP_SLOTS * cut_step(e, NULL, &s);
}

size_t msgl__staging_device_bytes(const msgl_engine *e)
{
    msgl_engine_dev d;
    return cut_device(e, NULL, &d);
}

void msgl__staging_place(msgl_engine *e, void *host, void *device)
{
    for (int i = 0; i < MSGL_ENGINE_STEP_SLOTS; i++) {
        host = (char *)host + cut_step(e, host, &e->steps[i]);
    }
    (void)cut_device(e, device, &e->dev);
}

void msgl__step_bind(const msgl_engine *e, msgl_engine_step *s, int32_t num_tokens)
{
    const int32_t least = e->max_seqs; // the most that a captured graph may hold
    const size_t exact = (size_t)(num_tokens > least ? num_tokens : least);
    const size_t rounded = msgl__round_up(exact, 64), most = (size_t)e->max_step_tokens;
    const size_t tokens = rounded > most ? most : rounded;
    (void)cut_io(e, tokens, s->host, &s->io);
    (void)cut_io(e, tokens, e->dev.base, &s->dev);
}

size_t msgl__step_io_bytes(const msgl_engine_step *s)
{
    if (s->num_seqs == 2 || s->has_words) return s->io.bytes;
    const bool chunks = s->split.num_decode < s->split.size;
    const void *end = chunks ? s->io.seqs[1] : s->io.first;
    return (size_t)((const char *)end - (const char *)s->host);
}
