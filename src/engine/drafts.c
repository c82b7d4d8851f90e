// SPDX-License-Identifier: Apache-2.0
//
// Drafts: guesses at what an answer goes on with, which a step computes as if they were known.
// From every row the token is chosen that would be chosen without drafts; as long as it is the
// draft behind the row, the next row is one that answers would have had, too.
#include <stdio.h>
#include <string.h>

#include "engine/internal.h"

// Of a model that keeps states, which leaves one behind every row: of more the memory is better
// spent on checkpoints.
enum { MOST_DRAFT_STATES = 64 };

// Trees: only heads draw some, and what is kept of a row has to be one token's.
static int check_trees(const msgl_engine *e, const msgl_options *o, bool states, msgl_err *err)
{
    const char *name = o->speculative_algorithm, *why = NULL;
    if (e->topk < 2) return 0;
    if (strcmp(name, "EAGLE3") != 0 && strcmp(name, "NEXTN") != 0) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "--speculative-eagle-topk %d: with --speculative-algorithm %s; "
                             "allowed with EAGLE3 and NEXTN, else 1",
                             (int)e->topk, name);
    }
    if (states) why = "layers with recurrent states";
    const msgl_decoder_config *d = &e->model.cfg.decoder;
    if (d->latent.index.top_k > 0) why = "layers that choose keys (index_topk)";
    if (d->compressed.groups > 0) why = "layers with compressed keys (compress_rates)";
    if (d->blocks.top_k > 0) why = "layers that choose blocks of keys (index_topk_blocks)";
    if (e->model.target.ranks > 1) why = "several ranks";
    // A tree's rows are computed by a kernel of their own.
    if (e->deterministic && !e->device->on_host) why = "--deterministic on a GPU";
    if (why == NULL) return 0;
    return msgl__err_set(err, MSGL_EUNSUPPORTED,
                         "--speculative-eagle-topk %d: not with %s; allowed here: 1", (int)e->topk,
                         why);
}

// A GPU's kernels for chunks and for answers sum otherwise, and only the latter's steps can be
// captured. So rows are answers, or go to a kernel for them that needs no plan either; but where a
// row of a state goes on from the one before, in the same step.
static msgl_draft_rows choose_rows(const msgl_engine *e, bool states)
{
    if (e->device->on_host || states) return MSGL_ROWS_CHUNK;
    bool packs = !e->deterministic;
    for (int32_t g = 0; g < e->specs.count; g++) {
        const msgl_attn_desc *d = e->attn_choices[g].prefill;
        const msgl_attn_variants v = msgl__model_variants(&e->model.cfg, g);
        packs = packs && d != NULL && d->verifies && e->specs.all[g].kind == MSGL_CACHE_KV;
        for (int32_t i = 0; i < v.count; i++) packs = packs && v.all[i].chunk == 0;
    }
    return packs ? MSGL_ROWS_PACKED : MSGL_ROWS_SPLIT;
}

int msgl__drafts_choose(msgl_engine *e, const msgl_options *o, msgl_err *err)
{
    const char *why = NULL;
    e->max_drafts = 0;
    if (strcmp(o->speculative_algorithm, "none") == 0) {
        return e->parent == NULL ? check_trees(e, o, false, err) : 0;
    }
    if (e->info.pooling != MSGL_POOL_NONE) {
        why = "a model that makes no tokens";
    } else if (e->sparse.heavy_channels > 0) {
        why = "double sparsity, which attends to other tokens of a draft than of an answer";
    } else if (e->model.cfg.ropes[0].dual.len > 0) {
        why = "dual chunk attention";
    }
    msgl_cache_span *last = &e->info.cache.spans[e->info.cache.num_spans - 1];
    const bool states = last->kind == MSGL_SPAN_STATE;
    if (why == NULL && states && e->deterministic && !e->device->on_host) {
        why = "--deterministic and recurrent layers on a GPU, whose rows of drafts are a chunk";
    }
    if (why == NULL) {
        e->max_drafts = states ? MOST_DRAFT_STATES : MSGL_MAX_STEP_DRAFTS;
        if (states) last->draft_states = MOST_DRAFT_STATES;
        e->draft_rows = choose_rows(e, states);
        return check_trees(e, o, states, err);
    }
    if (strcmp(o->speculative_algorithm, "auto") != 0) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "--speculative-algorithm %s: not with %s; allowed here: none, auto",
                             o->speculative_algorithm, why);
    }
    char line[160];
    snprintf(line, sizeof line, "speculation: none; not with %s", why);
    msgl__engine_print(o, line);
    return 0;
}

bool msgl__drafts_valid(const msgl_engine *e, const msgl_batch *b, const msgl_batch_req *r)
{
    if (r->num_drafts == 0) return true;
    if (r->draft_parents != NULL) return msgl__tree_valid(e, b, r);
    return r->num_drafts > 0 && r->num_drafts <= MSGL_MAX_DRAFTS && r->sample &&
           msgl__extend_len(r) == 1 + r->num_drafts && r->logits_from == 0;
}

// Of the requests s->reqs, which then have copies: the scheduler's may be gone when they are read.
static void take_drafts(const msgl_engine *e, msgl_engine_step *s)
{
    bool trees = false;
    s->num_drafts = 0;
    for (int32_t i = 0; i < s->batch.size; i++) {
        msgl_batch_req *r = &s->reqs[i];
        if (r->num_drafts == 0) continue;
        const size_t n = (size_t)r->num_drafts;
        r->drafts = memcpy(s->drafts + s->num_drafts, r->drafts, n * sizeof *s->drafts);
        if (r->draft_parents != NULL) {
            int16_t *mine = s->parents + s->num_drafts;
            r->draft_parents = memcpy(mine, r->draft_parents, n * sizeof *mine);
            trees = true;
        }
        s->num_drafts += r->num_drafts;
    }
    s->packed = s->num_drafts > 0 && e->draft_rows == MSGL_ROWS_PACKED;
    s->has_words = trees || s->packed;
}

// The batch with rows of drafts as answers. A request whose tokens 7, 8, 9 are at positions 4 to 6,
// 8 and 9 being drafts, becomes three of 5, 6 and 7 keys: K and V of all rows are stored before a
// layer attends, so that the one of 8 sees 7's. Trees are split where a kernel sees their words.
static void split_drafts(const msgl_engine *e, msgl_engine_step *s)
{
    s->split = s->batch;
    if (e->draft_rows == MSGL_ROWS_CHUNK || s->num_drafts == 0) return;
    int32_t n = 0, i = 0;
    for (; i < s->batch.size; i++) {
        const msgl_batch_req *r = &s->reqs[i];
        const bool tree = r->draft_parents != NULL && !s->packed;
        if (i >= s->batch.num_decode && (r->num_drafts == 0 || tree)) break;
        for (int32_t p = r->cached_len; p < r->device_len; p++) {
            s->split_reqs[n] = *r;
            s->split_reqs[n].cached_len = p;
            s->split_reqs[n++].device_len = p + 1;
        }
    }
    s->split.num_decode = n;
    for (; i < s->batch.size; i++) s->split_reqs[n++] = s->reqs[i];
    s->split.size = n;
    s->split.reqs = s->split_reqs;
}

const msgl_batch *msgl__as_attended(const msgl_engine *e, const msgl_engine_step *s)
{
    return e->draft_rows == MSGL_ROWS_PACKED ? &s->batch : &s->split;
}

void msgl__drafts_stage(const msgl_engine *e, msgl_engine_step *s)
{
    take_drafts(e, s);
    split_drafts(e, s);
    if (s->has_words) msgl__trees_stage(s, msgl__as_attended(e, s));
}

// Drafts to their places in the token pool, behind the token that they follow, if it is of the
// step.
void msgl__drafts_copy_in(msgl_engine *e, const msgl_engine_step *s)
{
    int32_t from = 0;
    for (int32_t i = 0; from < s->num_drafts; i++) {
        const msgl_batch_req *r = &s->reqs[i];
        if (r->num_drafts == 0) continue;
        const int32_t place =
            msgl__token_place(e, r->table_idx, r->device_len - r->num_drafts) + e->shift;
        e->device->ops->copy_in(e->device, e->dev.token_pool + place, s->drafts + from,
                                (size_t)r->num_drafts * sizeof *s->drafts);
        from += r->num_drafts;
    }
}

// Whether its drafts are those of an answer: of a draft model's own steps all rows are drafts.
static bool verifies(const msgl_batch_req *r)
{
    return r->num_drafts > 0 && msgl__extend_len(r) > r->num_drafts;
}

// Of `n` choices, how many the answer gets: those that are drafts, and the one behind them. A
// choice that failed ends it: the request fails. Of a tree those on a path. rows: which they are.
static int32_t accepted(const msgl_batch_req *r, const int32_t *tokens, const int32_t *status,
                        int32_t n, int32_t *rows)
{
    if (!verifies(r)) {
        for (int32_t i = 0; i < n; i++) rows[i] = i;
        return n;
    }
    if (r->draft_parents != NULL) return msgl__tree_accepted(r, tokens, status, rows);
    int32_t i = 0;
    do {
        rows[i] = i;
        i++;
    } while (i < n && status[i - 1] == 0 && tokens[i - 1] == r->drafts[i - 1]);
    return i;
}

// Drops the records of rows that the answer does not have: of request `req`, which has `num` tokens
// of `rows` behind position cached_len; `from`: where those of the request begin. Returns where the
// next request's begin; *to: where the kept ones end.
static int32_t keep_records(msgl_engine_step *s, int32_t req, const int32_t *rows, int32_t num,
                            int32_t from, int32_t *to)
{
    const bool all = !verifies(&s->reqs[req]);
    const int32_t begin = from;
    int32_t kept = 0;
    for (; from < s->num_records && s->records[from].req == req; from++) {
        if (!all && (kept == num || rows[kept] != from - begin)) continue;
        s->records[(*to)++] = s->records[from];
        kept++;
    }
    return from;
}

void msgl__accept_drafts(msgl_engine *e, msgl_engine_step *s)
{
    int32_t *status = s->sampled + e->max_samples;
    int32_t used = 0, kept = 0, records = 0, next = 0;
    s->moves.num_reqs = 0;
    for (int32_t i = 0; i < s->batch.size; i++) {
        const msgl_batch_req *r = &s->reqs[i];
        const int32_t first = next, n = s->cu_tokens[i + 1] - first;
        next = s->cu_tokens[i + 1];
        int32_t *rows = s->chosen_row + used;
        const int32_t all = accepted(r, s->sampled + first, status + first, n, rows);
        records = keep_records(s, i, rows, all, records, &kept);
        for (int32_t k = 0; k < all; k++) {
            s->sampled[used + k] = s->sampled[first + rows[k]];
            status[used + k] = status[first + rows[k]];
            s->mu[used + k] = s->mu[first + rows[k]];
            s->sample_req[used + k] = i;
        }
        used += all;
        s->cu_tokens[i + 1] = used;
        if (all > 1 && rows[all - 1] != all - 1) msgl__tree_moved(e, s, i);
    }
    s->num_samples = used;
    s->num_records = kept;
    if (s->moves.num_reqs > 0) msgl__trees_move(e, s);
}
