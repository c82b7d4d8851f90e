// SPDX-License-Identifier: Apache-2.0
//
// What requests have beside their rows of log-probabilities: those of tokens that they list, and
// the hidden states that rows were predicted from, behind the final norm. A row's values are one
// behind the other: of a request that lists tokens 5 and 9 and wants hidden states, log p(5), log
// p(9), state[0], state[1], ... . And rows that requests give in place of the embedding's.
#include <string.h>

#include "core/dtype.h"
#include "engine/internal.h"
#include "layers/norm.h"

// Rows of chunks that a step brings values of, at least; hidden states that are normed at once.
enum { CHUNK_ROWS = 256, NORMED_ROWS = 64 };

int32_t msgl__row_values_most(const msgl_engine *e)
{
    if (e->parent != NULL || e->info.pooling != MSGL_POOL_NONE) return 0;
    const int32_t row = MSGL_MAX_LISTED + (e->returns_hidden ? e->model.cfg.hidden_size : 0);
    return (e->max_running + CHUNK_ROWS) * row;
}

size_t msgl__row_values_normed_bytes(const msgl_engine *e)
{
    if (!e->returns_hidden || e->parent != NULL) return 0;
    return (size_t)NORMED_ROWS * (size_t)e->model.cfg.hidden_size *
           msgl__dtype_size(e->model.target.act);
}

static int32_t values_of(const msgl_engine *e, const msgl_batch_req *r)
{
    return msgl__req_extra_row_values(r->extra, e->model.cfg.hidden_size);
}

// Of r's new tokens, those that its prompt gives the rows of.
static int32_t embedded(const msgl_batch_req *r)
{
    if (r->extra == NULL || r->cached_len >= r->extra->num_embeds) return 0;
    const int32_t end = r->device_len < r->extra->num_embeds ? r->device_len : r->extra->num_embeds;
    return end - r->cached_len;
}

bool msgl__row_values_valid(const msgl_engine *e, const msgl_batch *b)
{
    int64_t values = 0, embeds = 0;
    for (int32_t i = 0; i < b->size; i++) {
        const msgl_batch_req *r = &b->reqs[i];
        const int32_t rows = msgl__extend_len(r) - r->logits_from, own = values_of(e, r);
        const bool recorded =
            r->sampling.logprobs >= 0 && (rows <= 1 || r->sampling.prompt_logprobs >= 0);
        if (own > 0 && r->num_drafts > 0) return false;
        if (own > 0 && r->extra->hidden && !(e->returns_hidden && recorded)) return false;
        if (rows > 0) values += (int64_t)rows * own;
        embeds += embedded(r);
        if (embedded(r) > 0 && r->extra->embed_dim != e->model.cfg.hidden_size) return false;
    }
    return values <= msgl__row_values_most(e) && embeds <= MSGL_EMBED_ROWS;
}

// The rows that request i gives, as activations, from row `at` of s->embeds on; how many.
static int32_t stage_embeds(const msgl_engine *e, msgl_engine_step *s, int32_t i, int32_t token,
                            int32_t at)
{
    const msgl_batch_req *r = &s->reqs[i];
    const int32_t n = embedded(r);
    const size_t dim = (size_t)e->model.cfg.hidden_size;
    if (n == 0) return 0;
    const float *from = r->extra->embeds + (size_t)r->cached_len * dim;
    const size_t to = (size_t)at * dim;
    for (size_t k = 0; k < (size_t)n * dim; k++) {
        msgl__store_f32(s->embeds, e->exec.act, to + k, from[k]);
    }
    s->embed_runs[s->num_embed_runs++] = (msgl_embed_run){
        .first = token,
        .count = n,
        .rows = (const char *)s->embeds + to * msgl__dtype_size(e->exec.act),
    };
    return n;
}

void msgl__row_values_stage(const msgl_engine *e, msgl_engine_step *s)
{
    int32_t token = 0, embeds = 0, listed = 0, record = 0;
    s->num_row_values = s->num_hidden = s->num_embed_runs = 0;
    for (int32_t i = 0; i < s->batch.size; i++) {
        const msgl_batch_req *r = &s->reqs[i];
        const msgl_req_extra *x = r->extra;
        msgl_engine_values *v = &s->values[i];
        *v = (msgl_engine_values){.own = values_of(e, r), .first_record = record, .hidden = -1};
        embeds += stage_embeds(e, s, i, token, embeds);
        token += msgl__extend_len(r);
        while (record < s->num_records && s->records[record].req == i) record++;
        s->cu_row_values[i] = s->num_row_values;
        if (v->own == 0) continue;
        s->num_row_values += v->own * (record - v->first_record);
        v->listed = listed;
        v->num_listed = x->num_listed;
        memcpy(s->listed + listed, x->listed, (size_t)x->num_listed * sizeof *s->listed);
        listed += x->num_listed;
        if (!x->hidden) continue;
        v->hidden = s->num_hidden;
        s->num_hidden += record - v->first_record;
    }
}

// Where the values of record `at` begin.
static float *values_at(const msgl_engine_step *s, int32_t at)
{
    const int32_t i = s->records[at].req;
    const msgl_engine_values *v = &s->values[i];
    return s->row_values + s->cu_row_values[i] + (size_t)v->own * (size_t)(at - v->first_record);
}

void msgl__row_values_listed(msgl_engine *e, const msgl_engine_step *s, int32_t at, int32_t to,
                             const float *logits)
{
    const size_t vocab = (size_t)e->model.cfg.vocab_size;
    for (int32_t r = at, end; s->num_row_values > 0 && r < to; r = end) {
        const int32_t i = s->records[r].req;
        const msgl_engine_values *v = &s->values[i];
        for (end = r + 1; end < to && s->records[end].req == i;) end++;
        if (v->num_listed == 0) continue;
        e->kernels.sample.listed(&e->exec, logits + (size_t)(r - at) * vocab, vocab,
                                 e->dev.records + r, end - r, s->listed + v->listed, v->num_listed,
                                 values_at(s, r), (size_t)v->own);
    }
}

// The `rows` rows behind the residual, of a request whose states begin at row `to`.
static void leave_hidden(msgl_engine *e, const msgl_engine_step *s, msgl_forward *f,
                         const void *residual, int32_t rows, int32_t to)
{
    const size_t dim = (size_t)e->model.cfg.hidden_size, size = msgl__dtype_size(e->exec.act);
    for (int32_t at = 0; at < rows; at += NORMED_ROWS) {
        const int32_t n = rows - at < NORMED_ROWS ? rows - at : NORMED_ROWS;
        msgl__model_norm(&e->model, f, msgl__row(f, residual, at, dim), e->dev.normed, n);
        e->device->ops->copy_out(e->device, (char *)s->row_hidden + (size_t)(to + at) * dim * size,
                                 e->dev.normed, (size_t)n * dim * size);
    }
}

void msgl__row_values_hidden(msgl_engine *e, const msgl_engine_step *s, msgl_forward *f,
                             const void *residual)
{
    const size_t dim = (size_t)e->model.cfg.hidden_size;
    int32_t row = 0; // of those with logits
    for (int32_t i = 0; i < s->batch.size && s->num_hidden > 0; i++) {
        const int32_t rows = msgl__extend_len(&s->reqs[i]) - s->reqs[i].logits_from;
        if (s->values[i].hidden >= 0) {
            leave_hidden(e, s, f, msgl__row(f, residual, row, dim), rows, s->values[i].hidden);
        }
        row += rows;
    }
}

void msgl__row_values_result(const msgl_engine *e, msgl_engine_step *s)
{
    const size_t dim = (size_t)e->model.cfg.hidden_size;
    for (int32_t r = 0; r < s->num_records && s->num_hidden > 0; r++) {
        const msgl_engine_values *v = &s->values[s->records[r].req];
        if (v->hidden < 0) continue;
        float *out = values_at(s, r) + v->num_listed;
        const size_t from = (size_t)(v->hidden + r - v->first_record) * dim;
        for (size_t k = 0; k < dim; k++) {
            out[k] = msgl__load_f32(s->row_hidden, e->exec.act, from + k);
        }
    }
}
