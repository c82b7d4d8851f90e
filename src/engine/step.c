// SPDX-License-Identifier: Apache-2.0
//
// A step's way through the engine: prepare (host, scheduler's thread) stages everything that the
// device needs in the batch's staging set, then queues the work; run (device's queue) copies the
// staging in, computes, and copies the results out; wait hands them over. The host never looks at
// device memory, and the device never at the scheduler's.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "core/seqs.h"
#include "engine/internal.h"
#include "layers/lora.h"
#include "utils/clock.h"

// The position of the step's token `token`, which is row `row` of request r: of a tree behind what
// is on its path.
static int32_t position_of(const msgl_engine_step *s, const msgl_batch_req *r, int32_t token,
                           int32_t row)
{
    return r->cached_len +
           (r->draft_parents == NULL ? row : MSGL_POPCOUNT64(s->io.tree[token]) - 1);
}

// The pages of request i's new tokens behind the step's first `at` ones; how many there are now.
static int32_t stage_pages(const msgl_engine *e, msgl_engine_step *s, const msgl_batch_req *r,
                           int32_t i, int32_t at)
{
    const int32_t page_size = e->info.cache.page_size, begin = r->cached_len / page_size;
    const int32_t n = (r->device_len - 1) / page_size + 1 - begin;
    for (int32_t k = 0; k < e->num_tables; k++) {
        memcpy(s->io.pages[k] + at, msgl__page_table_row(&e->page_tables[k], r->table_idx) + begin,
               (size_t)n * sizeof *s->io.pages[k]);
    }
    if (i >= s->split.num_decode) s->io.first[r->table_idx] = at - begin;
    return at + n;
}

// Which of a pair of texts a request's token at position p is of, to a model that tells them apart.
static int32_t type_of(const msgl_engine *e, const msgl_batch_req *r, int32_t p)
{
    if (e->model.cfg.encoder.num_types < 2 || r->extra == NULL) return 0;
    return r->extra->pair_from > 0 && p >= r->extra->pair_from;
}

static void stage_tokens(msgl_engine *e, msgl_engine_step *s)
{
    int32_t t = 0, pages = 0;
    for (int32_t i = 0; i < s->split.size; i++) {
        pages = stage_pages(e, s, &s->split.reqs[i], i, pages);
    }
    for (int32_t i = 0; i < s->batch.size; i++) {
        const msgl_batch_req *r = &s->reqs[i];
        for (int32_t p = r->cached_len; p < r->device_len; p++, t++) {
            s->io.positions[t] = position_of(s, r, t, p - r->cached_len);
            if (s->io.prompt_lens != NULL) s->io.prompt_lens[t] = r->prompt_len;
            if (s->io.token_types != NULL) s->io.token_types[t] = type_of(e, r, p);
            s->io.id_index[t] = msgl__token_place(e, r->table_idx, p);
        }
    }
}

// What the request's own tokens and its bias do to its logits.
static void stage_adjusts(const msgl_engine *e, msgl_engine_step *s, const msgl_batch_req *r,
                          msgl_sample_row *row)
{
    const msgl_sampling_params *p = &r->sampling;
    if (!msgl__sampling_adjusts(p, r->extra)) return;
    row->adjusts = s->any_adjust = true;
    row->repetition = p->repetition_penalty;
    row->frequency = p->frequency_penalty;
    row->presence = p->presence_penalty;
    row->tokens = msgl__token_place(e, r->table_idx, 0);
    row->prompt_len = r->prompt_len;
    row->bias = r->table_idx * MSGL_MAX_LOGIT_BIAS;
    row->num_bias = r->extra != NULL ? r->extra->num_bias : 0;
}

// llama.cpp's further samplers, whose rows go through a kernel of their own.
static void stage_chain(const msgl_engine *e, msgl_engine_step *s, const msgl_batch_req *r)
{
    const msgl_sampling_params *p = &r->sampling;
    s->sample_chain[s->num_samples] = -1;
    if (!msgl__sampling_has_chain(p)) return;
    s->sample_chain[s->num_samples] = s->num_chains;
    s->chains[s->num_chains++] = (msgl_sample_chain){
        .typical_p = p->typical_p,
        .xtc_probability = p->xtc_probability,
        .xtc_threshold = p->xtc_threshold,
        .top_n_sigma = p->top_n_sigma,
        .dynatemp_range = p->dynatemp_range,
        .dynatemp_exponent = p->dynatemp_exponent,
        .dry_multiplier = p->dry_multiplier,
        .dry_base = p->dry_base,
        .dry_allowed_length = p->dry_allowed_length,
        .dry_last_n = p->dry_penalty_last_n,
        .mirostat = p->mirostat,
        .mirostat_tau = p->mirostat_tau,
        .mirostat_eta = p->mirostat_eta,
        .mu = p->mirostat != 0 ? r->mu : NAN,
        .table_idx = r->table_idx,
        .tokens = msgl__token_place(e, r->table_idx, 0),
        .breaks = r->extra != NULL && r->extra->num_breakers > 0,
    };
}

// The choice of the token at `position` of request `req`, the at-th of those that the step chooses
// for it; place: where it goes in the token pool.
static void stage_sample(msgl_engine *e, msgl_engine_step *s, int32_t req, int32_t position,
                         int32_t at, int32_t place)
{
    const msgl_batch_req *r = &s->reqs[req];
    const msgl_sampling_params *p = &r->sampling;
    s->row_sample[s->num_rows] = s->num_samples;
    s->io.sample_rows[s->num_samples] = (msgl_sample_row){
        .temperature = p->temperature,
        .top_p = p->top_p,
        .min_p = p->min_p,
        .top_k = p->top_k > 0 ? p->top_k : 0,
        .seed = p->seed,
        .position = position,
    };
    stage_adjusts(e, s, r, &s->io.sample_rows[s->num_samples]);
    s->sample_mask[s->num_samples] = r->mask == NULL ? -1 : s->num_masks;
    if (r->mask != NULL) {
        const size_t words = (size_t)msgl__mask_words(e);
        memcpy(s->masks + (size_t)s->num_masks++ * words, r->mask + (size_t)at * words,
               words * sizeof *s->masks);
    }
    stage_chain(e, s, r);
    if (p->temperature > 0 && s->sample_chain[s->num_samples] < 0) {
        s->any_random = true;
        if (p->top_k > 0 || p->top_p < 1 || p->min_p > 0) s->any_filter = true;
    }
    s->io.sample_index[s->num_samples] = place + e->shift;
    s->sample_req[s->num_samples] = req;
    s->num_samples++;
}

// How many of a text's first tokens are not pooled: its prompt's, where the folder says so, but
// never all.
static int32_t unpooled(const msgl_batch_req *r)
{
    const int32_t n = r->extra == NULL ? 0 : r->extra->pool_from;
    return n < msgl__extend_len(r) ? n : 0;
}

// One row with logits: token `token` of the step, row `of_req` of request `req`. What is chosen
// from it goes behind it in the token pool, as its draft does.
static void stage_row(msgl_engine *e, msgl_engine_step *s, int32_t req, int32_t token,
                      int32_t of_req)
{
    const msgl_batch_req *r = &s->reqs[req];
    const int32_t row = s->num_rows, position = position_of(s, r, token, of_req);
    const int32_t at = of_req - (msgl__extend_len(r) - 1 - r->num_drafts);
    const int32_t place = msgl__token_place(e, r->table_idx, r->cached_len + of_req + 1);
    const bool sampled = r->sample && at >= 0;
    const int32_t num_top = sampled ? r->sampling.logprobs : r->sampling.prompt_logprobs;
    s->io.rows[row] = token;
    if (s->io.pool_from != NULL) s->io.pool_from[row] = token - of_req + unpooled(r);
    s->row_sample[row] = s->row_record[row] = -1;
    if (sampled) stage_sample(e, s, req, position + 1, at, place);
    if (num_top >= 0) {
        s->row_record[row] = s->num_records;
        s->io.record_index[s->num_records] = place;
        msgl_token_logprobs *rec = &s->records[s->num_records++];
        rec->req = req;
        rec->position = position + 1;
        rec->num_top = num_top;
    }
    s->num_rows++;
}

static void stage_rows(msgl_engine *e, msgl_engine_step *s)
{
    s->num_rows = s->num_samples = s->num_records = s->num_masks = s->num_chains = 0;
    s->any_random = s->any_filter = s->any_adjust = false;
    int32_t first = 0;
    for (int32_t i = 0; i < s->batch.size; i++) {
        const msgl_batch_req *r = &s->reqs[i];
        const int32_t n = msgl__extend_len(r);
        s->cu_tokens[i] = s->num_samples;
        s->status[i] = 0;
        for (int32_t j = r->logits_from; j < n; j++) {
            stage_row(e, s, i, first + j, j);
        }
        first += n;
    }
    s->cu_tokens[s->batch.size] = s->num_samples;
}

// Requests [first, end) as the step's next sequences. The host's arrays serve a CPU's kernels too:
// a set is written again only after its step.
static msgl_seqs *add_seqs(const msgl_engine *e, msgl_engine_step *s, int32_t first, int32_t end,
                           int32_t padded_size)
{
    const int32_t i = s->num_seqs++;
    const msgl_batch *b = msgl__as_attended(e, s);
    msgl__seqs_fill(b, first, end, padded_size, e->max_running, e->max_seqs, s->io.seqs[i],
                    s->dev.seqs[i], &s->seqs[i]);
    s->seqs[i].related = e->draft_rows == MSGL_ROWS_SPLIT;
    // Chunks stand beside packed rows alone, and behind them.
    if (s->has_words && s->seqs[i].phase == MSGL_PREFILL && b->reqs[end - 1].num_drafts > 0) {
        s->seqs[i].tree = s->io.tree + s->seqs[i].first_token;
        s->seqs[i].dev_tree = s->dev.tree + s->seqs[i].first_token;
    }
    msgl__states_fill(e, s, i, first);
    return &s->seqs[i];
}

static void add_graph_seqs(msgl_engine *e, msgl_engine_step *s, const msgl_decode_graph *graph)
{
    msgl_seqs *seqs = add_seqs(e, s, 0, msgl__as_attended(e, s)->size, graph->size);
    seqs->max_seqlen_k = graph->max_seq_len;
    seqs->graph = true;
    if (!graph->verifies) return;
    seqs->phase = MSGL_PREFILL;
    seqs->tree = s->io.tree;
    seqs->dev_tree = s->dev.tree;
    seqs->max_seqlen_q = MSGL_MAX_TREE;
}

// Answers and those with drafts.
static int32_t count_answers(const msgl_batch *b)
{
    int32_t n = b->num_decode;
    while (n < b->size && b->reqs[n].num_drafts > 0) n++;
    return n;
}

int msgl__step_seqs(msgl_engine *e, msgl_engine_step *s, const msgl_decode_graph *graph)
{
    const msgl_batch *b = msgl__as_attended(e, s);
    s->num_seqs = 0;
    if (graph != NULL) {
        add_graph_seqs(e, s, graph);
    } else {
        const int32_t answers = s->packed ? count_answers(b) : b->num_decode;
        int32_t ends[2];
        const int32_t n = msgl__attn_split_seqs(e->apart || s->packed, answers, b->size, ends);
        for (int32_t i = 0; i < n; i++) (void)add_seqs(e, s, i == 0 ? 0 : ends[0], ends[i], 0);
    }
    int code = 0;
    for (int32_t g = 0; g < e->specs.count; g++) {
        if (e->groups[g].attn.decode == NULL) continue;
        for (int32_t i = 0; i < s->num_seqs && code == 0; i++) {
            code = msgl__attn_prepare(&e->groups[g].attn, &s->seqs[i]);
        }
    }
    return code;
}

// The graph chooses tokens when all its rows want one and none has filters, whose kernel is another
// and stays outside; nor does it with masks or chains, or when someone looks at the logits first,
// or where a row adjusts and ranks choose from their own columns, or a request has several rows.
static void stage_sample_replay(const msgl_engine *e, msgl_engine_step *s)
{
    const bool all = s->graph != NULL && s->num_samples == s->num_rows && s->num_masks == 0 &&
                     s->num_chains == 0;
    const bool adjusts = s->any_adjust && (msgl__model_draws_apart(&e->model) || s->num_drafts > 0);
    *s->io.replay = (msgl_sample_replay){
        .tokens = s->sampled,
        .status = s->sampled + e->max_samples,
        .num_rows = all && !s->any_filter && !adjusts && !s->whole_rows ? s->num_rows : 0,
    };
}

void msgl__step_pad(const msgl_engine *e, msgl_engine_step *s, int32_t from, int32_t to)
{
    for (int32_t i = from; i < to; i++) {
        s->io.positions[i] = 0;
        if (s->io.prompt_lens != NULL) s->io.prompt_lens[i] = 1;
        for (int32_t k = 0; k < e->num_tables; k++) { // of the dummy pages
            s->io.pages[k][i] = e->info.cache.spans[k].num_units;
        }
        s->io.id_index[i] = e->max_running * e->token_stride; // of the dummy row
        if (e->draft_rows == MSGL_ROWS_PACKED) s->io.tree[i] = 1;
    }
}

void msgl__step_copy_in(msgl_engine *e, const msgl_engine_step *s)
{
    const msgl_device_ops *ops = e->device->ops;
    msgl__drafts_copy_in(e, s);
    ops->copy_in(e->device, e->dev.base, s->host, msgl__step_io_bytes(s));
    ops->copy_in(e->device, e->dev.records, s->records,
                 (size_t)s->num_records * sizeof *s->records);
    for (int32_t g = 0; g < e->specs.count; g++) {
        if (e->groups[g].attn.decode == NULL) continue;
        for (int32_t i = 0; i < s->num_seqs; i++) {
            msgl__attn_copy_in(&e->groups[g].attn, &e->exec, &s->seqs[i]);
        }
    }
}

static void replay(msgl_engine *e, msgl_engine_step *s)
{
    const msgl_device_ops *ops = e->device->ops;
    ops->inputs_begin(e->device);
    msgl__step_copy_in(e, s);
    ops->graph_launch(e->device, s->lora != NULL ? s->graph->with_adapters : s->graph->graph);
}

// Where the step's tokens are, on the device.
static msgl_step_tokens tokens_of(const msgl_engine *e, const msgl_engine_step *s)
{
    msgl_step_tokens t = {.count = s->batch.num_tokens,
                          .pool = e->dev.token_pool,
                          .index = s->dev.id_index,
                          .shift = e->shift,
                          .num_answers = s->split.num_decode,
                          .row_places = e->token_stride,
                          .paging = e->page_tables[0].paging,
                          .first = s->dev.first,
                          .num_tables = e->num_tables};
    for (int32_t k = 0; k < e->num_tables; k++) {
        t.pages[k] = s->dev.pages[k];
        t.tables[k] = e->dev.page_tables[k];
        t.slots[k] = e->dev.slots[k];
    }
    return t;
}

// The residual of the step's num_rows rows with logits.
static const void *forward(msgl_engine *e, msgl_engine_step *s, int32_t num_rows, bool graph,
                           msgl_forward *f)
{
    msgl__arena_reset(&e->arena);
    msgl__arena_reset(&e->scratch);
    *f = (msgl_forward){
        .x = &e->exec,
        .k = &e->kernels,
        .comm = e->comm,
        .groups = e->groups,
        .num_groups = e->specs.count,
        .num_tokens = s->batch.num_tokens,
        .seqs = s->seqs,
        .num_seqs = s->num_seqs,
        .states = s->states,
        .arena = &e->arena,
        .tokens = tokens_of(e, s),
        .ids = e->dev.ids,
        .positions = s->dev.positions,
        .prompt_lens = s->dev.prompt_lens,
        .embeds = s->embed_runs,
        .num_embeds = s->num_embed_runs,
        .token_types = s->dev.token_types,
        .pool_from = s->dev.pool_from,
        .num_ropes = e->model.cfg.num_ropes,
        .watch = msgl__expert_watch(e, &s->batch),
        .lora = s->lora,
    };
    memcpy(f->ropes, s->ropes, sizeof f->ropes);
    msgl__hidden_capture(e, s, graph, f);
    return e->model.cfg.arch->family->forward(&e->model, f, s->dev.rows, num_rows);
}

bool msgl__step_forward(msgl_engine *e, msgl_engine_step *s, msgl_logits *out)
{
    msgl_forward f;
    const int32_t rows = s->batch.num_tokens;
    const void *hidden = forward(e, s, rows, true, &f);
    if (hidden != NULL) msgl__hidden_leave(e, s, true, &f, hidden, rows);
    if (hidden == NULL || !msgl__model_take_logits(&e->model, &f, rows, out)) return false;
    msgl__model_logits(&e->model, &f, hidden, rows, out);
    if (!msgl__model_draws_apart(&e->model)) msgl__model_join_logits(&e->model, &f, rows, out);
    msgl__sample_in_graph(e, s, rows, out);
    return true;
}

// What the graph has left to do: of rows that are chosen from, or recorded, as a whole.
static void behind_graph(msgl_engine *e, msgl_engine_step *s)
{
    const msgl_decode_graph *g = s->graph;
    const msgl_logits *l = s->lora != NULL ? &g->with_adapters_logits : &g->logits;
    if (s->io.replay->num_rows > 0 && s->num_records == 0) return;
    if (msgl__model_draws_apart(&e->model)) {
        msgl_forward f = {.x = &e->exec, .k = &e->kernels, .comm = e->comm};
        msgl__model_join_logits(&e->model, &f, s->graph->size, l);
    }
    msgl__sample_block(e, s, 0, s->num_rows, l);
}

// The residual of the step's rows with logits, when what a head wants has been left.
static const void *forward_rows(msgl_engine *e, msgl_engine_step *s, msgl_forward *f)
{
    const int32_t rows = msgl__hidden_all_rows(e) ? s->batch.num_tokens : s->num_rows;
    const void *all = forward(e, s, rows, false, f);
    if (all != NULL) msgl__hidden_leave(e, s, false, f, all, rows);
    if (all == NULL || rows == s->num_rows || s->num_rows == 0)
        return s->num_rows == 0 ? NULL : all;
    const size_t dim = (size_t)e->model.cfg.hidden_size;
    void *wanted = msgl__activation(f, (size_t)s->num_rows, dim);
    if (wanted == NULL) return NULL;
    f->k->moe.gather(f->x, all, s->dev.rows, s->num_rows, 1, (int)dim, wanted);
    return wanted;
}

static void run_step(void *ctx, int64_t step_slot)
{
    msgl_engine *e = ctx;
    msgl_engine_step *s = &e->steps[step_slot];
    const uint64_t start = msgl__now_ns();
    e->exec.status = 0;
    msgl__hidden_take(e, s);
    if (s->graph != NULL) {
        replay(e, s);
        msgl__step_copy_masks(e, s);
        behind_graph(e, s);
        msgl__hidden_behind_graph(e, s);
    } else {
        msgl_forward f;
        msgl__step_copy_in(e, s);
        msgl__step_copy_masks(e, s);
        const void *hidden = forward_rows(e, s, &f);
        if (s->lora != NULL) s->lora->of_logits = true;
        if (hidden != NULL && e->info.pooling == MSGL_POOL_NONE) {
            msgl__sample_step(e, s, &f, hidden);
            msgl__row_values_hidden(e, s, &f, hidden);
        } else if (hidden != NULL) {
            msgl__pool_step(e, s, &f, hidden);
        }
    }
    msgl__hidden_map(e, s);
    e->device->ops->copy_out(e->device, s->records, e->dev.records,
                             (size_t)s->num_records * sizeof *s->records);
    s->failure = e->exec.status;
    s->compute_ns = msgl__now_ns() - start;
    e->device->ops->record(e->device, e->first_event + (int32_t)step_slot);
}

// Of an engine that pools: a chunk of a prompt, and with its end that row alone.
static bool pools(const msgl_batch_req *r)
{
    return r->logits_from == msgl__extend_len(r) - r->sample && r->sampling.logprobs < 0;
}

// Whether there are positions for the drafts that a draft model makes behind the step.
static bool proposals_fit(const msgl_engine *e, const msgl_batch_req *r)
{
    const int32_t rows = r->propose_nodes == 0
                             ? r->propose
                             : msgl__propose_rows(r->propose, e->topk, r->propose_nodes);
    return r->propose == 0 || rows <= e->info.max_seq_len - r->device_len;
}

// Everything that indexes memory of the engine, so that a scheduler's mistake ends in an error.
static bool batch_valid(const msgl_engine *e, const msgl_batch *b)
{
    if (b->step_slot < 0 || b->step_slot >= MSGL_ENGINE_STEP_SLOTS ||
        e->steps[b->step_slot].in_flight || b->size < 1 || b->size > e->max_running ||
        b->num_decode < 0 || b->num_decode > b->size) {
        return false;
    }
    const bool pooling = e->info.pooling != MSGL_POOL_NONE;
    int64_t tokens = 0, drafts = 0;
    for (int32_t i = 0; i < b->size; i++) {
        const msgl_batch_req *r = &b->reqs[i];
        if (r->table_idx < 0 || r->table_idx >= e->max_running || r->cached_len < 0 ||
            r->device_len <= r->cached_len || r->device_len > e->info.max_seq_len ||
            r->logits_from < 0 || (r->mask != NULL && b->mask_words != msgl__mask_words(e)) ||
            (i < b->num_decode && msgl__extend_len(r) != 1) || !msgl__drafts_valid(e, b, r) ||
            !msgl__engine_has_adapter(e, r->adapter) || r->propose < 0 ||
            r->propose > MSGL_MAX_PROPOSALS || r->propose_nodes < 0 ||
            r->propose_nodes > MSGL_MAX_DRAFTS || !proposals_fit(e, r) ||
            (pooling && (i < b->num_decode || !pools(r))) ||
            (e->runner.whole_prompts && (r->cached_len > 0 || !r->sample))) {
            return false;
        }
        tokens += msgl__extend_len(r);
        drafts += r->num_drafts;
    }
    return tokens == b->num_tokens && tokens <= e->max_step_tokens && drafts <= e->max_drafts &&
           msgl__states_valid(e, b) && msgl__row_values_valid(e, b);
}

static int32_t longest(const msgl_batch *b)
{
    int32_t n = 0;
    for (int32_t i = 0; i < b->size; i++) {
        if (b->reqs[i].device_len > n) n = b->reqs[i].device_len;
    }
    return n;
}

int msgl__engine_submit(void *engine, msgl_batch *b)
{
    return msgl__engine_submit_head(engine, b, NULL);
}

// Everything of the step but what attention says of its sequences.
static void stage(msgl_engine *e, msgl_engine_step *s, const msgl_batch *b,
                  const msgl_hidden_source *from)
{
    memcpy(s->reqs, b->reqs, (size_t)b->size * sizeof *s->reqs);
    msgl__step_bind(e, s, b->num_tokens);
    s->batch = *b;
    s->batch.reqs = s->reqs;
    s->whole_rows = e->whole_rows;
    msgl__drafts_stage(e, s);
    stage_tokens(e, s);
    stage_rows(e, s);
    msgl__row_values_stage(e, s);
    msgl__engine_lora_stage(e, s);
    msgl__hidden_stage(s, from);
    s->graph = NULL;
    const int32_t size = s->split.size;
    if (s->split.num_decode == size && s->num_rows == size && e->experts.hits == NULL &&
        msgl__engine_lora_captures(e, s) && s->num_hidden == 0) {
        s->graph = msgl__graphs_find(e, s->packed, size, longest(b));
        if (s->graph != NULL) msgl__step_pad(e, s, size, s->graph->size);
    }
    msgl__engine_lora_tiles(e, s);
    stage_sample_replay(e, s);
    msgl__ropes_prepare(e->model.cfg.ropes, e->model.cfg.num_ropes, &s->split, s->io.inv_freq,
                        s->dev.inv_freq, s->segments, s->ropes);
}

// The step's graph is captured where none was for it until now, which stages another step.
static int stage_with_graph(msgl_engine *e, msgl_engine_step *s, const msgl_batch *b,
                            const msgl_hidden_source *from)
{
    msgl_err err = {0};
    stage(e, s, b, from);
    if (s->graph == NULL || s->lora == NULL || s->graph->with_adapters != NULL) return 0;
    const int code = msgl__graph_capture_adapters(e, b->step_slot, s->graph, &err);
    if (code == 0) stage(e, s, b, from);
    return code;
}

int msgl__engine_submit_head(msgl_engine *e, msgl_batch *b, const msgl_hidden_source *from)
{
    if (!batch_valid(e, b)) return MSGL_EINVAL;
    if (e->place.rank == 0) e->whole_rows = e->on_logits != NULL;
    if (e->place.others != NULL) {
        const int code =
            msgl__ranks_submit(e->place.others, e->page_tables, e->num_tables, b, e->whole_rows);
        if (code != 0) return code;
    }
    msgl_engine_step *s = &e->steps[b->step_slot];
    int code = stage_with_graph(e, s, b, from);
    if (code == 0) code = msgl__step_seqs(e, s, s->graph);
    if (code != 0) return code;
    s->in_flight = true;
    s->submit_ns = msgl__now_ns();
    e->device->ops->arm(e->device, e->first_event + b->step_slot);
    e->device->ops->submit(e->device, run_step, e, b->step_slot);
    return 0;
}

// How long the device worked on the step: since it was submitted, or since the step before it
// ended.
static uint64_t device_ns(msgl_engine *e, const msgl_engine_step *s)
{
    if (e->device->on_host) return s->compute_ns;
    const uint64_t start = s->submit_ns > e->done_ns ? s->submit_ns : e->done_ns;
    e->done_ns = msgl__now_ns();
    return e->done_ns - start;
}

int msgl__engine_wait(void *engine, int32_t step_slot, msgl_step_result *out)
{
    msgl_engine *e = engine;
    if (step_slot < 0 || step_slot >= MSGL_ENGINE_STEP_SLOTS || !e->steps[step_slot].in_flight)
        return MSGL_EINVAL;
    msgl_engine_step *s = &e->steps[step_slot];
    const int code = e->device->ops->wait(e->device, e->first_event + step_slot);
    s->in_flight = false;
    // What a GPU computed without a rank is nothing, and an error of its aborted calls a
    // consequence.
    if (e->member != NULL && msgl__group_blamed(e->place.group) >= 0) return MSGL_EPEER;
    if (code != 0) return code;
    if (s->failure != 0) return s->failure;
    const bool pooling = e->info.pooling != MSGL_POOL_NONE;
    if (pooling) msgl__pool_result(e, s);
    const int32_t *status = s->sampled + e->max_samples;
    msgl__row_values_result(e, s); // before records of drafts go
    if (s->num_drafts > 0) msgl__accept_drafts(e, s);
    for (int32_t i = 0; i < s->num_samples && !pooling; i++) {
        if (status[i] != 0) s->status[s->sample_req[i]] = status[i];
    }
    *out = (msgl_step_result){
        .size = s->batch.size,
        .tokens = s->sampled,
        .cu_tokens = s->cu_tokens,
        .mu = s->num_chains > 0 ? s->mu : NULL,
        .status = s->status,
        .pooled = pooling ? s->pooled : NULL,
        .token_values = msgl__token_values(e) > 0 ? s->token_values : NULL,
        .cu_token_values = s->cu_token_values,
        .num_logprobs = s->num_records,
        .logprobs = s->records,
        .row_values = s->num_row_values > 0 ? s->row_values : NULL,
        .cu_row_values = s->cu_row_values,
        .compute_ns = device_ns(e, s),
    };
    return e->draft != NULL ? msgl__draft_model_follow(e->draft, s, out) : 0;
}

const char *msgl__engine_fault(void *engine)
{
    msgl_engine *e = engine;
    const int blamed = e->member != NULL ? msgl__group_blamed(e->place.group) : -1;
    const bool another = blamed >= 0 && blamed != e->place.rank;
    if (e->device->fault.code != 0 && !another) return e->device->fault.text;
    if (blamed < 0) return NULL;
    snprintf(e->rank_fault, sizeof e->rank_fault, "rank %d of %d failed", blamed,
             (int)e->place.size);
    return e->rank_fault;
}
