// SPDX-License-Identifier: Apache-2.0
//
// Engines that pool: a prompt's result is values of its last row, not a token. The rest of a step
// is as for answers (docs/decisions/030, 039).
#include <math.h>

#include "core/attributes.h"
#include "core/req_extra.h"
#include "engine/internal.h"
#include "layers/norm.h"
#include "models/embeds.h"

// The Dense modules of a folder, behind which vectors have the last one's columns.
static int take_dense(msgl_engine *e, const msgl_model_pooling *folder, msgl_err *err)
{
    msgl_model_config *c = &e->model.cfg;
    const int code =
        msgl__model_take_dense(folder, c->hidden_size, c->projections, &c->num_projections, err);
    if (c->num_projections > 0) e->info.pooled_size = c->projections[c->num_projections - 1].out;
    return code;
}

// Of a model that encodes, and makes nothing else of a text: what its folder says of the rows.
static int choose_text_pooling(msgl_engine *e, const msgl_options *o, msgl_err *err)
{
    msgl_model_config *c = &e->model.cfg;
    msgl_model_pooling folder;
    e->info.pooling = c->num_labels > 0 ? MSGL_POOL_CLASSIFY : MSGL_POOL_EMBED;
    e->info.pooled_size = c->num_labels > 0 ? c->num_labels : c->hidden_size;
    c->tie_embeddings = true; // there is no other head
    const int code = msgl__model_pooling(o->model_dir, true, &folder, err);
    if (code != 0 || folder.kind != MSGL_POOL_EMBED || c->num_labels > 0) return code;
    c->encoder.pool = folder.mode;
    return take_dense(e, &folder, err);
}

// The heads for single tokens that the folder has beside its model, or in it.
static int take_token_heads(msgl_engine *e, const msgl_options *o, msgl_err *err)
{
    msgl_projection *heads = e->model.cfg.token_heads;
    if (e->info.pooling != MSGL_POOL_EMBED) return 0;
    const bool own = heads[MSGL_TOKEN_VECTORS].out > 0; // in the model's own file
    const int code =
        own ? 0 : msgl__token_heads_find(o->model_dir, e->model.cfg.hidden_size, heads, err);
    e->info.token_vector_size = heads[MSGL_TOKEN_VECTORS].out;
    e->info.token_weights = heads[MSGL_TOKEN_WEIGHTS].out > 0;
    return code;
}

// Files of models that are made to embed have no head, whatever config.json says of it: it takes no
// memory, and is not looked for.
int msgl__pool_choose(msgl_engine *e, const msgl_options *o, msgl_err *err)
{
    msgl_model_config *c = &e->model.cfg;
    const int32_t vocab = c->vocab_size;
    if (c->arch->family->encodes) {
        const int code = choose_text_pooling(e, o, err);
        return code == 0 ? take_token_heads(e, o, err) : code;
    }
    if (c->num_labels > 0) {
        e->info.pooling = MSGL_POOL_CLASSIFY;
        e->info.pooled_size = c->num_labels;
        c->tie_embeddings = true;
    } else if (o->is_embedding) {
        msgl_model_pooling folder;
        e->info.pooling = MSGL_POOL_EMBED;
        e->info.pooled_size = c->hidden_size;
        c->tie_embeddings = true;
        const int code = msgl__model_pooling(o->model_dir, false, &folder, err);
        return code == 0 ? take_dense(e, &folder, err) : code;
    } else if (o->is_reranker) {
        e->info.pooling = MSGL_POOL_SCORE;
        e->info.pooled_size = o->score_token_ids[1] < 0 ? 1 : 2;
        for (int32_t i = 0; i < e->info.pooled_size; i++) {
            const int id = o->score_token_ids[i];
            if (id < 0 || id >= vocab) {
                return msgl__err_set(err, MSGL_EINVAL,
                                     "a token to score by is %d; allowed: 0 to %d", id, vocab - 1);
            }
            e->score_ids[i] = id;
        }
    }
    return 0;
}

size_t msgl__pool_bytes(const msgl_engine *e)
{
    return msgl__activation_bytes((size_t)e->max_running, (size_t)e->model.cfg.hidden_size,
                                  e->model.target.act) +
           msgl__projections_bytes(&e->model, e->max_running, e->max_step_tokens);
}

size_t msgl__token_values(const msgl_engine *e)
{
    const size_t vector = (size_t)e->info.token_vector_size;
    return vector > 0 || !e->info.token_weights ? vector : 1;
}

static int32_t task_of(const msgl_batch_req *r)
{
    return r->extra != NULL ? r->extra->token_task : MSGL_TASK_TEXT;
}

// Values of each token, of the requests that want some; a step has whole texts, in the order of its
// requests.
static void token_step(msgl_engine *e, msgl_engine_step *s, msgl_forward *f)
{
    const size_t hidden = (size_t)e->model.cfg.hidden_size;
    int32_t row = 0;
    s->cu_token_values[0] = 0;
    for (int32_t i = 0; i < s->batch.size; i++) {
        const int32_t n = msgl__extend_len(&s->reqs[i]), task = task_of(&s->reqs[i]);
        const size_t at = s->cu_token_values[i], mark = f->arena->used;
        s->cu_token_values[i + 1] = at;
        if (task != MSGL_TASK_TEXT) {
            const msgl_token_head head =
                task == MSGL_TASK_VECTORS ? MSGL_TOKEN_VECTORS : MSGL_TOKEN_WEIGHTS;
            const size_t size = (size_t)n * (size_t)e->model.cfg.token_heads[head].out;
            const float *values =
                msgl__project_tokens(&e->model, f, head, msgl__row(f, f->stream, row, hidden), n);
            if (values == NULL) return;
            e->device->ops->copy_out(e->device, s->token_values + at, values,
                                     size * sizeof *values);
            s->cu_token_values[i + 1] = at + size;
        }
        f->arena->used = mark;
        row += n;
    }
}

// The whole head for one or two of its columns: of last tokens alone, it is little beside their
// prompts.
static void score_step(msgl_engine *e, msgl_engine_step *s, msgl_forward *f, const void *hidden)
{
    const size_t vocab = (size_t)e->model.cfg.vocab_size, ids = (size_t)e->info.pooled_size;
    const int32_t block = s->num_rows < e->logits_rows ? s->num_rows : e->logits_rows;
    msgl_logits l;
    if (!msgl__model_take_logits(&e->model, f, block, &l)) return;
    for (int32_t r = 0; r < s->num_rows; r += block) {
        const int32_t n = s->num_rows - r < block ? s->num_rows - r : block;
        msgl__logits_block(e, f, hidden, r, n, &l);
        msgl__model_join_logits(&e->model, f, n, &l);
        for (int32_t i = 0; i < n; i++) {
            float *out = s->pooled + (size_t)(r + i) * ids;
            const float *row = l.whole + (size_t)i * vocab;
            for (size_t k = 0; k < ids; k++) {
                e->device->ops->copy_out(e->device, out + k, row + e->score_ids[k], sizeof *out);
            }
        }
    }
}

void msgl__pool_step(msgl_engine *e, msgl_engine_step *s, msgl_forward *f, const void *hidden)
{
    if (e->info.pooling == MSGL_POOL_SCORE) {
        score_step(e, s, f, hidden);
        return;
    }
    const size_t rows = (size_t)s->num_rows;
    if (!e->model.cfg.arch->family->encodes) { // those that do have normed theirs
        void *normed = msgl__activation(f, rows, (size_t)e->model.cfg.hidden_size);
        if (normed == NULL) return;
        msgl__model_norm(&e->model, f, hidden, normed, s->num_rows);
        hidden = normed;
    }
    if (msgl__token_values(e) > 0) token_step(e, s, f);
    const void *pooled = msgl__project(&e->model, f, hidden, s->num_rows);
    if (pooled == NULL) return;
    e->device->ops->copy_out(e->device, s->hidden, pooled,
                             rows * (size_t)e->info.pooled_size * msgl__dtype_size(e->exec.act));
}

void msgl__pool_result(const msgl_engine *e, msgl_engine_step *s)
{
    const size_t dim = (size_t)e->info.pooled_size;
    for (int32_t i = 0; i < s->num_samples; i++) {
        bool finite = true;
        for (size_t j = (size_t)i * dim; j < ((size_t)i + 1) * dim; j++) {
            if (e->info.pooling != MSGL_POOL_SCORE) {
                s->pooled[j] = msgl__load_f32(s->hidden, e->exec.act, j);
            }
            finite = finite && isfinite(s->pooled[j]);
        }
        if (!finite) s->status[s->sample_req[i]] = MSGL_ENUMERIC;
    }
    for (int32_t i = 0; i < s->batch.size && msgl__token_values(e) > 0; i++) {
        bool finite = true;
        for (size_t j = s->cu_token_values[i]; j < s->cu_token_values[i + 1]; j++) {
            finite = finite && isfinite(s->token_values[j]);
        }
        if (!finite) s->status[i] = MSGL_ENUMERIC;
    }
}
