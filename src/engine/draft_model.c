// SPDX-License-Identifier: Apache-2.0
//
// A smaller model that says how answers go on. It is an engine beside the target's: on the same
// device, in the same queue, with K and V of its own in the same pages, so that what the prefix
// cache has of a prompt is there for both, and windows, requests that come and go and pages that
// change hands are nobody's business here, and with its token pool. Behind every step of the target
// it computes what that step brought: the tokens of chunks, and of an answer those that are
// certain; then, token by token as any engine decodes, the drafts that were asked for. Several
// heads of a target, each for a token further ahead (docs/decisions/059), are an engine each: all
// compute what the step brought, each its own draft of it, whose token the next one reads.
//
// Nothing it computes can change an answer: a draft is only ever a guess.
#include <stdio.h>
#include <string.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "core/settings.h"
#include "engine/draw.h"
#include "engine/internal.h"
#include "utils/clock.h"

// A request that gets drafts.
typedef struct proposal {
    int32_t req;   // in the target's step
    int32_t part;  // in the draft model's
    int32_t len;   // of its tokens that are computed then, without a tree's
    int32_t state; // of a head: which of its states the first row with logits has left
} proposal;

// A step of one of the draft model's engines.
typedef struct draft_step {
    bool in_flight;
    int32_t num; // of its requests that get a draft
    proposal *of;
} draft_step;

// What a part of the step being built is of.
typedef struct part_source {
    int32_t req;   // the target's request
    int32_t row;   // of that in the target's step, its first
    int32_t state; // of a chain: the head's state that its row reads
    int32_t past;  // of several heads: kept states of tokens before it
} part_source;

enum { MOST_ENGINES = 4 };

// What there is of a row of the page table.
typedef struct draft_row {
    uint64_t uid; // whose tokens they are
    int32_t len;  // those that have K and V
    int32_t past; // of several heads: the last ones whose states are kept
} draft_row;

struct msgl_draft_model {
    msgl_engine *engines[MOST_ENGINES]; // of several heads, the next token's first
    int32_t num_engines;
    msgl_engine *engine; // the first
    msgl_options options;
    bool in_target; // a head in the target's files
    int32_t target_vocab;
    draft_row *rows;         // [max_running]
    msgl_batch_req *parts;   // [2, max_running] of the step being built: as they come, in order
    part_source *sources;    // [max_running] of these parts
    msgl_hidden_keep *keeps; // [max_running * heads behind the first] of the step being built
    draft_step steps[MOST_ENGINES][2];
    int32_t slot;       // of steps, the next one's; of several heads, of each one's
    int32_t *from_rows; // [max_step_tokens] of a head: rows of the states of the step being built
    int32_t num_states; // of a head alone: that it has left since the target's step
    // [max_running], [max_running, MSGL_MAX_DRAFTS] the drafts. ended: there are no more of
    // this request.
    int32_t *count, *drafts;
    int16_t *parents;
    float *shares;
    bool *ended;
    msgl_drawing drawing; // of trees
    msgl_draw_tokens tokens;
};

// The options of the draft model's engine: what it shares with the target, and otherwise defaults.
static void options_of(const msgl_engine *e, const msgl_options *o, const char *folder,
                       msgl_options *out)
{
    *out = (msgl_options){0};
    msgl__settings_default(&msgl__engine_settings, out);
    out->model_dir = folder;
    out->device = o->device;
    out->dtype = msgl__dtype_name(e->info.dtype);
    out->dummy_weight = o->dummy_weight;
    out->max_running = o->max_running;
    out->max_prefill_tokens = o->max_prefill_tokens;
    out->max_seq_len =
        o->max_seq_len > 0 ? o->max_seq_len : msgl__model_config_context(&e->model.cfg);
    out->page_size = e->info.cache.page_size;
    out->graph_max_bs = o->graph_max_bs;
    out->deterministic = o->deterministic;
    out->speculative_eagle_topk = e->topk;
    out->progress = o->progress;
    out->ctx = o->ctx;
}

// What each algorithm takes.
static const struct {
    const char *name;
    msgl_head_kind kind;
    const char *what;
} ALGORITHMS[] = {{"STANDALONE", MSGL_HEAD_NONE, "a model"},
                  {"NEXTN", MSGL_HEAD_MTP, "a head for multi-token prediction"},
                  {"EAGLE3", MSGL_HEAD_EAGLE3, "an EAGLE-3 head"}};

static int find_algorithm(const char *name)
{
    int i = 0;
    while (i < (int)MSGL_COUNT(ALGORITHMS) && strcmp(ALGORITHMS[i].name, name) != 0) i++;
    return i < (int)MSGL_COUNT(ALGORITHMS) ? i : -1;
}

// A head has to be of this target.
static int check_head(const msgl_engine *e, const msgl_engine *draft, msgl_err *err)
{
    const msgl_head_config *h = &draft->model.cfg.decoder.head;
    const msgl_model_config *c = &e->model.cfg;
    if (h->kind == MSGL_HEAD_NONE) return 0;
    const bool gated = c->decoder.streams.num > 0;
    const int32_t streams = gated ? c->decoder.streams.num : c->decoder.hyper.streams;
    if (h->kind == MSGL_HEAD_EAGLE3 && streams > 0) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "EAGLE3: a head reads one residual stream, and %s has %d (%s); "
                             "allowed: SUFFIX, STANDALONE",
                             c->arch->name, (int)streams, gated ? "hc_count" : "hc_mult");
    }
    if (h->state_dim != c->hidden_size || h->vocab != c->vocab_size) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "a head for states of %d and %d tokens; allowed: the model's, %d and "
                             "%d",
                             (int)h->state_dim, (int)h->vocab, (int)c->hidden_size,
                             (int)c->vocab_size);
    }
    const int32_t *layers = e->hidden.layers;
    if (e->hidden.kind != MSGL_HIDDEN_LAYERS ||
        (layers[0] >= 0 && layers[1] > layers[0] && layers[2] > layers[1] &&
         layers[2] < c->num_layers - 1)) {
        return 0;
    }
    return msgl__err_set(err, MSGL_EUNSUPPORTED,
                         "a head that reads layers %d, %d, %d; allowed: ascending ones before the "
                         "last of %d",
                         (int)layers[0], (int)layers[1], (int)layers[2], (int)c->num_layers);
}

static int check(const msgl_engine *e, const msgl_engine *draft, int algorithm, msgl_err *err)
{
    if (draft->model.cfg.decoder.head.kind != ALGORITHMS[algorithm].kind) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED, "%s; allowed with %s: %s",
                             draft->model.cfg.arch->name, ALGORITHMS[algorithm].name,
                             ALGORITHMS[algorithm].what);
    }
    const int code = check_head(e, draft, err);
    if (code != 0) return code;
    for (int32_t g = 0; g < draft->specs.count; g++) {
        if (draft->specs.all[g].kind != MSGL_CACHE_STATE) continue;
        return msgl__err_set(
            err, MSGL_EUNSUPPORTED,
            "the draft model has layers with recurrent states; allowed: attention");
    }
    if (draft->info.cache.page_size == e->info.cache.page_size) return 0;
    return msgl__err_set(err, MSGL_EUNSUPPORTED,
                         "the draft model's attention wants pages of %d tokens; allowed: the "
                         "model's, %d (--page-size)",
                         (int)draft->info.cache.page_size, (int)e->info.cache.page_size);
}

static int allocate(msgl_draft_model *d, msgl_err *err)
{
    const size_t n = (size_t)d->engine->max_running;
    d->rows = msgl__calloc(n, sizeof *d->rows);
    d->parts = msgl__calloc(2 * n, sizeof *d->parts);
    d->sources = msgl__calloc(n, sizeof *d->sources);
    d->keeps = msgl__calloc(n * MOST_ENGINES, sizeof *d->keeps);
    d->count = msgl__calloc(n, sizeof *d->count);
    d->drafts = msgl__calloc(n * MSGL_MAX_DRAFTS, sizeof *d->drafts);
    d->parents = msgl__calloc(n * MSGL_MAX_DRAFTS, sizeof *d->parents);
    d->shares = msgl__calloc(n * MSGL_MAX_DRAFTS, sizeof *d->shares);
    d->ended = msgl__calloc(n, sizeof *d->ended);
    const size_t tokens = (size_t)d->engine->max_step_tokens;
    d->from_rows = msgl__calloc(tokens, sizeof *d->from_rows);
    d->tokens = (msgl_draw_tokens){.ids = d->engine->model.draft_ids,
                                   .vocab = d->engine->model.cfg.vocab_size,
                                   .target_vocab = d->target_vocab};
    bool ok = msgl__drawing_create(&d->drawing, d->engine->topk, (int32_t)n) == 0 &&
              d->parents != NULL && d->shares != NULL && d->from_rows != NULL &&
              d->sources != NULL && d->keeps != NULL && d->rows != NULL && d->parts != NULL &&
              d->count != NULL && d->drafts != NULL && d->ended != NULL;
    for (int32_t i = 0; i < 2 * d->num_engines; i++) {
        draft_step *step = &d->steps[i / 2][i % 2];
        step->of = msgl__calloc(n, sizeof *step->of);
        ok = ok && step->of != NULL;
    }
    return ok ? 0 : msgl__err_set(err, MSGL_ENOMEM, "draft model: out of memory");
}

static const char FLAG[] = "--speculative-draft-model-path";

// What is wrong with a draft model is said of the option that names it.
static int of_flag(const msgl_draft_model *d, int code, msgl_err *err)
{
    if (code == 0) return 0;
    return msgl__err_prefix(err, code, d->in_target ? "NEXTN" : FLAG);
}

// Another engine, up to its files' tensors.
static int open_engine(msgl_engine *e, const msgl_options *o, int algorithm, msgl_err *err)
{
    msgl_draft_model *d = e->draft;
    const msgl_draft_role role = {.head = ALGORITHMS[algorithm].kind != MSGL_HEAD_NONE,
                                  .in_target = d->in_target,
                                  .ahead = d->num_engines,
                                  .first = d->engine};
    msgl_engine **made = &d->engines[d->num_engines++];
    int code = msgl__engine_open_draft(e, &d->options, &role, made, err);
    if (d->engine == NULL) d->engine = *made;
    if (code != 0) return code;
    if (role.head) msgl__hidden_of_target(e, &(*made)->model.cfg);
    code = check(e, *made, algorithm, err);
    if (code != 0) return code;
    return msgl__model_open(&(*made)->model, d->options.model_dir, o->dummy_weight, err);
}

// Whether the target's files have a head for another token further ahead.
static bool has_another(const msgl_engine *e, const msgl_draft_model *d)
{
    const msgl_checkpoint *files = d->engine->model.checkpoint;
    if (files == NULL || d->num_engines == MOST_ENGINES) return false;
    msgl_model_config *c = msgl__malloc(sizeof *c);
    if (c == NULL) return false;
    char name[sizeof c->decoder.head.embed_norm + sizeof ".weight"];
    *c = e->model.cfg;
    c->arch->mtp(c, d->num_engines);
    snprintf(name, sizeof name, "%s.weight", c->decoder.head.embed_norm);
    msgl__free(c);
    return msgl__checkpoint_find(files, name) != NULL;
}

// All that is known without memory, the files' tensors included.
static int open_draft(msgl_engine *e, const msgl_options *o, int algorithm, msgl_err *err)
{
    msgl_draft_model *d = e->draft = msgl__calloc(1, sizeof *d);
    if (d == NULL) return msgl__err_set(err, MSGL_ENOMEM, "draft model: out of memory");
    d->in_target = o->speculative_draft_model_path == NULL;
    options_of(e, o, d->in_target ? o->model_dir : o->speculative_draft_model_path, &d->options);
    d->target_vocab = e->model.cfg.vocab_size;
    int code = open_engine(e, o, algorithm, err);
    // Trees are the first one's alone.
    const bool several = d->in_target && e->model.cfg.arch->mtp_several && e->topk == 1;
    while (code == 0 && several && has_another(e, d)) code = open_engine(e, o, algorithm, err);
    if (code == 0) code = allocate(d, err);
    e->hidden.past = d->num_engines - 1;
    return of_flag(d, code, err);
}

// --speculative-algorithm auto: the head in the model's own files, where NEXTN would take it; else
// there is no draft model, and the scheduler guesses (SUFFIX).
static int open_own_head(msgl_engine *e, const msgl_options *o, msgl_err *err)
{
    msgl_err why;
    char line[sizeof why.text + 64];
    const int code = open_draft(e, o, find_algorithm("NEXTN"), &why);
    if (code == MSGL_ENOMEM) {
        *err = why;
        return code;
    }
    if (code == 0) {
        const int32_t num = e->draft->num_engines;
        char heads[32] = "head";
        if (num > 1) snprintf(heads, sizeof heads, "%d heads", (int)num);
        snprintf(line, sizeof line, "speculation: NEXTN, by the %s in the model's files", heads);
        msgl__engine_print(o, line);
        return 0;
    }
    msgl__draft_model_destroy(e->draft);
    e->draft = NULL;
    e->hidden = (msgl_engine_hidden){0};
    snprintf(line, sizeof line, "speculation: SUFFIX; not %s", why.text);
    msgl__engine_print(o, line);
    return 0;
}

int msgl__draft_model_open(msgl_engine *e, const msgl_options *o, msgl_err *err)
{
    if (e->max_drafts == 0 || e->place.rank > 0) return 0;
    if (strcmp(o->speculative_algorithm, "auto") == 0) return open_own_head(e, o, err);
    const int algorithm = find_algorithm(o->speculative_algorithm);
    return algorithm < 0 ? 0 : open_draft(e, o, algorithm, err);
}

int msgl__draft_model_plan(const msgl_draft_model *d, const char *target, msgl_memory_plan *p,
                           msgl_err *err)
{
    msgl_model *ends = &d->engine->ends;
    int code = 0;
    if (ends->plan.bytes > 0) code = msgl__model_open(ends, target, d->options.dummy_weight, err);
    for (int32_t i = 0; i < d->num_engines && code == 0; i++) {
        // Which may be kept as their file has them.
        msgl__model_take_shared(&d->engines[i]->model);
        code = msgl__engine_add_sizes(d->engines[i], p, err);
    }
    return of_flag(d, code, err);
}

void msgl__draft_model_planned(msgl_draft_model *d, const msgl_memory_plan *p)
{
    int32_t group = p->specs.count;
    for (int32_t i = d->num_engines - 1; i >= 0; i--) {
        group -= d->engines[i]->specs.count;
        msgl__engine_take_plan(d->engines[i], p, group);
    }
}

int msgl__draft_model_start(msgl_draft_model *d, msgl_err *err)
{
    for (int32_t i = 0; i < d->num_engines; i++) {
        const int code = msgl__engine_start_draft(d->engines[i], &d->options, err);
        if (code != 0) return of_flag(d, code, err);
    }
    return d->engine->model.draft_ids == NULL ? 0 : msgl__hidden_load_ids(d->engine, err);
}

int32_t msgl__draft_model_engines(const msgl_draft_model *d)
{
    return d->num_engines;
}

msgl_engine *msgl__draft_model_engine(const msgl_draft_model *d, int32_t i)
{
    return d->engines[i];
}

int32_t msgl__draft_model_most(const msgl_draft_model *d)
{
    return d->num_engines > 1 ? d->num_engines : MSGL_MAX_PROPOSALS;
}

void msgl__draft_model_destroy(msgl_draft_model *d)
{
    if (d == NULL) return;
    for (int32_t i = 0; i < 2 * d->num_engines; i++) {
        draft_step *step = &d->steps[i / 2][i % 2];
        msgl_step_result res;
        if (step->in_flight) (void)msgl__engine_wait(d->engines[i / 2], i % 2, &res);
        msgl__free(step->of);
    }
    for (int32_t i = d->num_engines - 1; i >= 0; i--) msgl__engine_destroy(d->engines[i]);
    msgl__free(d->rows);
    msgl__free(d->parts);
    msgl__free(d->sources);
    msgl__free(d->keeps);
    msgl__free(d->count);
    msgl__free(d->drafts);
    msgl__free(d->parents);
    msgl__free(d->shares);
    msgl__drawing_destroy(&d->drawing);
    msgl__free(d->ended);
    msgl__free(d->from_rows);
    msgl__free(d);
}

static bool draws(const msgl_batch_req *r)
{
    return r->propose_nodes > 0;
}

// A token of a chain. What the target's vocabulary does not have is no draft, and neither is what
// comes behind it.
static void take_next(msgl_draft_model *d, int32_t req, int32_t token, int32_t status)
{
    token = msgl__draw_token(&d->tokens, token);
    if (status != 0 || token < 0) d->ended[req] = true;
    if (d->ended[req]) return;
    const int32_t n = d->count[req]++, at = req * MSGL_MAX_DRAFTS + n;
    d->drafts[at] = token;
    d->parents[at] = (int16_t)n;
    d->shares[at] = 1;
}

// Takes the drafts of engine i's step in `slot`, if there is one.
static int collect(msgl_draft_model *d, const msgl_engine_step *s, int32_t i, int32_t slot)
{
    draft_step *step = &d->steps[i][slot];
    msgl_step_result res;
    if (!step->in_flight) return 0;
    step->in_flight = false;
    const int code = msgl__engine_wait(d->engines[i], slot, &res);
    if (code != 0) return code;
    int32_t record = 0;
    for (int32_t at = 0; at < step->num; at++) {
        const proposal *p = &step->of[at];
        if (!draws(&s->reqs[p->req])) {
            take_next(d, p->req, res.tokens[res.cu_tokens[p->part]], res.status[p->part]);
            continue;
        }
        while (record < res.num_logprobs && res.logprobs[record].req < p->part) record++;
        const int32_t first = record;
        while (record < res.num_logprobs && res.logprobs[record].req == p->part) record++;
        msgl__draw_pass(&d->drawing, p->req, res.logprobs + first, record - first, p->state,
                        &d->tokens);
    }
    return 0;
}

static msgl_batch_req part_of(const msgl_batch_req *r, int32_t begin, int32_t end, bool sample)
{
    return (msgl_batch_req){
        .uid = r->uid,
        .table_idx = r->table_idx,
        .cached_len = begin,
        .device_len = end,
        .prompt_len = r->prompt_len,
        .logits_from = end - begin - sample,
        .load_state = -1,
        .sample = sample,
        .sampling = {.top_p = 1, .repetition_penalty = 1, .logprobs = -1, .prompt_logprobs = -1},
    };
}

static bool is_answer(const msgl_engine_step *s, int32_t i)
{
    return i < s->batch.num_decode || s->reqs[i].num_drafts > 0;
}

// The tokens of request i that the draft model computes behind the target's step, [*begin, *end):
// those of a chunk where the target's begin, as what is before them is in the pages; of an answer
// that gets drafts all since the last time. Drafts of then that were right have been computed.
static void tokens_of(msgl_draft_model *d, const msgl_engine_step *s, int32_t i, int32_t *begin,
                      int32_t *end)
{
    const msgl_batch_req *r = &s->reqs[i];
    draft_row *row = &d->rows[r->table_idx];
    const int32_t chosen = s->cu_tokens[i + 1] - s->cu_tokens[i];
    const bool answer = is_answer(s, i), drafts = r->sample && r->propose > 0;
    if (row->uid != r->uid || (!answer && row->len > r->cached_len)) {
        *row = (draft_row){.uid = r->uid, .len = r->cached_len};
    }
    if (d->engine->shift > 0) { // rows whose states the target's step has left
        if (row->len != r->cached_len) row->past = 0;
        row->len = *begin = r->cached_len;
        *end = answer ? r->cached_len + chosen : r->device_len;
        if (s->status[i] != 0 || (answer && !drafts)) *end = *begin;
        return;
    }
    // Of an answer the last token was no draft.
    if (answer && row->len > r->cached_len + chosen) row->len = r->cached_len + chosen;
    *begin = row->len;
    *end = answer ? r->cached_len + chosen + 1 : r->device_len + (drafts ? chosen : 0);
    if (s->status[i] != 0 || (answer && !drafts)) *end = *begin;
}

// Of a tree: not which token comes behind rows, but which are the likeliest.
static void ask(const msgl_draft_model *d, msgl_batch_req *part)
{
    part->sample = false;
    part->sampling.prompt_logprobs = d->drawing.topk;
}

// The parts of the first step, as the target's step has them; how many.
static int32_t first_parts(msgl_draft_model *d, const msgl_engine_step *s)
{
    int32_t n = 0, first_row = 0, room = d->engine->max_step_tokens;
    for (int32_t i = 0; i < s->batch.size; i++) {
        const msgl_batch_req *r = &s->reqs[i];
        const int32_t row = first_row;
        int32_t begin, end;
        first_row += msgl__extend_len(r);
        tokens_of(d, s, i, &begin, &end);
        const bool all = end - begin <= room;
        if (!all) end = begin + room;
        if (begin >= end) continue;
        room -= end - begin;
        d->parts[n] = part_of(r, begin, end, all && r->sample && r->propose > 0);
        if (draws(r)) ask(d, &d->parts[n]);
        draft_row *known = &d->rows[r->table_idx];
        const int32_t past = known->past + end - begin, most = d->num_engines - 1;
        d->sources[n++] = (part_source){.req = i, .row = row, .past = known->past};
        known->len = end;
        known->past = past < most ? past : most;
    }
    return n;
}

static bool is_single(const msgl_batch_req *r)
{
    return r->logits_from == 0 && msgl__extend_len(r) == 1;
}

// Of a head: which of the states that the target's step s has left those of part k's tokens from
// `begin` on are. They are those of an answer's rows that its tokens were chosen from, and of
// tokens before the step those that are kept.
static void find_targets(const msgl_draft_model *d, const msgl_engine_step *s, int32_t k,
                         int32_t begin, int32_t *states)
{
    const msgl_batch_req *part = &d->parts[k];
    const int32_t req = d->sources[k].req, cached = s->reqs[req].cached_len;
    const int32_t *chosen = s->reqs[req].num_drafts > 0 ? s->chosen_row + s->cu_tokens[req] : NULL;
    for (int32_t p = begin; p < part->device_len; p++) {
        const int32_t at = p - cached;
        *states++ =
            at < 0 ? msgl__hidden_kept(d->engine->parent, s->batch.step_slot, part->table_idx, p)
                   : d->sources[k].row + (chosen != NULL ? chosen[at] : at);
    }
}

// What is kept of the first head's n parts, behind all heads' steps; how many.
static int32_t find_keeps(msgl_draft_model *d, const msgl_engine_step *s, int32_t n)
{
    int32_t rows[MOST_ENGINES], num = 0;
    for (int32_t k = 0; k < n; k++) {
        const msgl_batch_req *part = &d->parts[k];
        const int32_t most = d->num_engines - 1, end = part->device_len;
        const int32_t begin = end - part->cached_len > most ? end - most : part->cached_len;
        find_targets(d, s, k, begin, rows);
        for (int32_t p = begin; p < end; p++) {
            d->keeps[num++] = (msgl_hidden_keep){
                .row = rows[p - begin],
                .to = msgl__hidden_kept(d->engine->parent, s->batch.step_slot, part->table_idx, p)};
        }
    }
    return num;
}

// The same of those that the head itself has left.
static void find_own(const msgl_draft_model *d, int32_t k, int32_t *states)
{
    const msgl_batch_req *part = &d->parts[k];
    if (part->num_drafts == 0) {
        states[0] = d->sources[k].state; // of a chain
        return;
    }
    const msgl_drawn_tree *t = &d->drawing.trees[d->sources[k].req];
    memcpy(states, t->states, (size_t)part->num_drafts * sizeof *states);
}

// Submits n parts to engine i, single tokens first, as an engine wants them, behind the target's
// step s; targets: whose states it reads, not those of the head's last step. num_keeps: of
// d->keeps.
static int send(msgl_draft_model *d, const msgl_engine_step *s, int32_t i, bool targets, int32_t n,
                int32_t num_keeps)
{
    msgl_engine *e = d->engines[i];
    draft_step *step = &d->steps[i][d->slot];
    const bool head = e->shift > 0;
    msgl_batch b = {.reqs = d->parts + e->max_running, .step_slot = d->slot};
    if (targets) d->num_states = 0;
    const int32_t to_row = d->num_states;
    step->num = 0;
    for (int single = 1; single >= 0; single--) {
        for (int32_t k = 0; k < n; k++) {
            const msgl_batch_req *part = &d->parts[k];
            if (is_single(part) != (single != 0)) continue;
            b.reqs[b.size++] = *part;
            if (head && targets) {
                find_targets(d, s, k, part->cached_len, d->from_rows + b.num_tokens);
            }
            if (head && !targets) find_own(d, k, d->from_rows + b.num_tokens);
            b.num_tokens += msgl__extend_len(part);
            b.num_decode += single;
            if (part->logits_from == msgl__extend_len(part)) continue;
            step->of[step->num++] = (proposal){.req = d->sources[k].req,
                                               .part = b.size - 1,
                                               .len = part->device_len - part->num_drafts,
                                               .state = d->num_states};
            d->num_states += msgl__extend_len(part) - part->logits_from;
        }
    }
    const msgl_hidden_source from = {.of = targets ? e->parent : e,
                                     .slot = targets ? s->batch.step_slot : 0,
                                     .rows = d->from_rows,
                                     .to_row = to_row,
                                     .keeps = d->keeps,
                                     .num_keeps = num_keeps};
    const int code = msgl__engine_submit_head(e, &b, head ? &from : NULL);
    step->in_flight = code == 0;
    return code;
}

// The rows of a tree's next pass, behind the true tokens.
static msgl_batch_req tree_part(const msgl_draft_model *d, const msgl_batch_req *r,
                                const proposal *p)
{
    const msgl_drawn_tree *t = &d->drawing.trees[p->req];
    msgl_batch_req part = part_of(r, p->len, p->len + t->num_rows, true);
    part.logits_from = t->num_rows - t->num_asked;
    part.num_drafts = t->num_rows;
    part.drafts = t->tokens;
    part.draft_parents = t->parents;
    ask(d, &part);
    return part;
}

// The parts of the step behind the one that was sent last, its `at`-th: a token more of those that
// want more than `at` drafts, or another depth of their tree.
static int32_t next_parts(msgl_draft_model *d, const msgl_engine_step *s, int32_t at)
{
    const draft_step *last = &d->steps[0][1 - d->slot];
    int32_t n = 0, room = msgl__hidden_rows(d->engine) - d->num_states, rows = 0;
    for (int32_t k = 0; k < last->num; k++) {
        const proposal *p = &last->of[k];
        const msgl_batch_req *r = &s->reqs[p->req];
        if (r->propose <= at || d->ended[p->req]) continue;
        msgl_batch_req part = part_of(r, p->len, p->len + 1, true);
        if (draws(r)) {
            part = tree_part(d, r, p);
            rows += part.num_drafts;
            if (part.num_drafts == 0 || rows > d->engine->max_drafts) continue;
        }
        room -= msgl__extend_len(&part) - part.logits_from;
        if (d->engine->shift > 0 && room < 0) break;
        d->parts[n] = part;
        d->sources[n++] = (part_source){.req = p->req, .state = p->state};
        if (!draws(r)) d->rows[r->table_idx].len = p->len + 1;
    }
    return n;
}

// What trees have come to.
static void end_trees(msgl_draft_model *d, const msgl_engine_step *s)
{
    for (int32_t i = 0; i < s->batch.size; i++) {
        const msgl_batch_req *r = &s->reqs[i];
        const int32_t at = i * MSGL_MAX_DRAFTS;
        if (!draws(r) || r->propose == 0) continue;
        d->count[i] = msgl__draw_end(&d->drawing, i, r->propose_nodes, d->drafts + at,
                                     d->parents + at, d->shares + at);
    }
}

// A pass over what the step brought, then those of the drafts, each of which reads the one before.
// *proposes: whether there are any.
static int follow_alone(msgl_draft_model *d, const msgl_engine_step *s, bool trees, bool *proposes)
{
    int32_t n = first_parts(d, s);
    int code = 0;
    for (int32_t at = 1; n > 0 && code == 0; at++) {
        code = collect(d, s, 0, d->slot);
        if (code == 0) code = send(d, s, 0, at == 1, n, 0);
        d->slot = 1 - d->slot;
        if (code == 0 && trees) code = collect(d, s, 0, 1 - d->slot);
        n = code == 0 ? next_parts(d, s, at) : 0;
        *proposes = *proposes || d->steps[0][1 - d->slot].num > 0;
    }
    // Of chunks alone there is nothing to wait for.
    for (int i = 0; i < 2 && *proposes && code == 0; i++)
        code = collect(d, s, 0, (d->slot + i) % 2);
    return code;
}

// How many heads part k is for: of a chunk all, which will want its K and V.
static int32_t heads_of(const msgl_draft_model *d, const msgl_engine_step *s, int32_t k)
{
    const int32_t req = d->sources[k].req, most = d->num_engines, asked = s->reqs[req].propose;
    return is_answer(s, req) && asked < most ? asked : most;
}

// Of the n parts of the head before, those of head `at`. It begins one token before that: then the
// token that its row reads was a draft, or not known.
static int32_t parts_of_head(msgl_draft_model *d, const msgl_engine_step *s, int32_t at, int32_t n)
{
    int32_t kept = 0, room = d->engine->max_step_tokens;
    for (int32_t k = 0; k < n; k++) room -= msgl__extend_len(&d->parts[k]);
    for (int32_t k = 0; k < n; k++) {
        msgl_batch_req part = d->parts[k];
        const part_source from = d->sources[k];
        if (heads_of(d, s, k) <= at) continue;
        if (from.past >= at && room > 0) {
            part.cached_len--;
            part.logits_from++;
            room--;
        }
        if (s->reqs[from.req].propose <= at) {
            part.sample = false;
            part.logits_from = msgl__extend_len(&part);
        }
        d->parts[kept] = part;
        d->sources[kept++] = from;
    }
    return kept;
}

// Each head in its turn: the one of the next token, then that of the token behind it.
static int follow_heads(msgl_draft_model *d, const msgl_engine_step *s, bool *proposes)
{
    int32_t n = first_parts(d, s), heads = 0;
    const int32_t num_keeps = find_keeps(d, s, n);
    for (int32_t k = 0; k < n; k++) {
        if (heads_of(d, s, k) > heads) heads = heads_of(d, s, k);
    }
    int code = 0;
    for (int32_t i = 0; i < heads && code == 0; i++) {
        if (i > 0) n = parts_of_head(d, s, i, n);
        code = collect(d, s, i, d->slot);
        if (code == 0) code = send(d, s, i, true, n, i == heads - 1 ? num_keeps : 0);
        *proposes = *proposes || d->steps[i][d->slot].num > 0;
    }
    for (int32_t i = 0; i < heads && *proposes && code == 0; i++) code = collect(d, s, i, d->slot);
    d->slot = 1 - d->slot;
    return code;
}

int msgl__draft_model_follow(msgl_draft_model *d, const msgl_engine_step *s, msgl_step_result *out)
{
    const uint64_t start = msgl__now_ns();
    const size_t size = (size_t)s->batch.size;
    bool proposes = false, trees = false;
    memset(d->count, 0, size * sizeof *d->count);
    memset(d->ended, 0, size * sizeof *d->ended);
    for (int32_t i = 0; i < s->batch.size; i++) {
        if (!draws(&s->reqs[i])) continue;
        msgl__draw_begin(&d->drawing, i);
        trees = true;
    }
    const int code =
        d->num_engines > 1 ? follow_heads(d, s, &proposes) : follow_alone(d, s, trees, &proposes);
    if (code != 0 || !proposes) return code;
    end_trees(d, s);
    out->num_proposals = d->count;
    out->proposals = d->drafts;
    out->proposal_parents = d->parents;
    out->proposal_shares = d->shares;
    out->propose_ns = msgl__now_ns() - start;
    return 0;
}
