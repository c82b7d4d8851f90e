// SPDX-License-Identifier: Apache-2.0
//
// Trees of drafts in a step. Attention lets each row see its path alone; its K and V lie where the
// row is, behind those of all rows before it. When it is known which path is the answer's, its K
// and V move together, and its tokens do in the token pool, before the next step reads either: of
// accepted rows 0, 2, 5 those of rows 2 and 5 go where rows 1 and 2 were.
#include <string.h>

#include "core/attributes.h"
#include "engine/internal.h"

bool msgl__tree_valid(const msgl_engine *e, const msgl_batch *b, const msgl_batch_req *r)
{
    const int32_t known = msgl__extend_len(r) - r->num_drafts;
    // Of a draft model's own steps all rows are drafts.
    if (known != (e->parent != NULL ? 0 : 1) || e->topk < 2 || r->mask != NULL ||
        msgl__sampling_adjusts(&r->sampling, r->extra) || msgl__sampling_has_chain(&r->sampling) ||
        msgl__extend_len(r) > MSGL_MAX_TREE ||
        (known == 1 && (r->logits_from != 0 || !r->sample))) {
        return false;
    }
    for (int32_t i = 0; i < r->num_drafts; i++) {
        if (r->draft_parents[i] < known - 1 || r->draft_parents[i] >= known + i) return false;
    }
    for (int32_t i = b->num_decode; i < b->size; i++) {
        if (b->reqs[i].num_drafts == 0) return false; // a chunk, whose rows need not fit a word
    }
    return true;
}

void msgl__trees_stage(msgl_engine_step *s, const msgl_batch *b)
{
    uint64_t *word = s->io.tree;
    for (int32_t i = 0; i < b->size; i++) {
        const msgl_batch_req *r = &b->reqs[i];
        const int32_t n = msgl__extend_len(r), known = n - r->num_drafts;
        if (i >= b->num_decode && r->num_drafts == 0) return; // chunks have none
        for (int32_t row = 0; row < n; row++) {
            const int32_t parent =
                r->draft_parents != NULL && row >= known ? r->draft_parents[row - known] : row - 1;
            word[row] = (parent >= 0 ? word[parent] : 0) | UINT64_C(1) << row;
        }
        word += n;
    }
}

int32_t msgl__tree_accepted(const msgl_batch_req *r, const int32_t *tokens, const int32_t *status,
                            int32_t *rows)
{
    int32_t n = 0;
    for (int32_t row = 0; row >= 0;) {
        rows[n++] = row;
        row = status[row] == 0 ? msgl__draft_behind(r, row, tokens[row]) : -1;
    }
    return n;
}

size_t msgl__moves_place(const msgl_engine *e, void *base, msgl_engine_moves *out)
{
    const size_t drafts = (size_t)e->max_drafts, counts = (size_t)e->max_running + 1;
    if (e->topk < 2) return 0;
    out->cu = base;
    for (int32_t k = 0; k < e->num_tables && base != NULL; k++) {
        out->from[k] = out->cu + counts + 2 * (size_t)k * drafts;
        out->to[k] = out->from[k] + drafts;
    }
    return (counts + 2 * (size_t)e->num_tables * drafts) * sizeof(int32_t);
}

static int32_t event_of(const msgl_engine *e, int32_t step_slot)
{
    return e->first_event + MSGL_ENGINE_STEP_SLOTS + MSGL_ENGINE_WRITES + step_slot;
}

void msgl__trees_wait(msgl_engine *e, int32_t step_slot)
{
    (void)e->device->ops->wait(e->device, event_of(e, step_slot));
}

void msgl__tree_moved(msgl_engine *e, msgl_engine_step *s, int32_t i)
{
    const msgl_batch_req *r = &s->reqs[i];
    const int32_t first = s->cu_tokens[i], num = s->cu_tokens[i + 1] - first;
    const int32_t *rows = s->chosen_row + first;
    msgl_engine_moves *m = &s->moves;
    const int32_t req = m->num_reqs++;
    if (req == 0) {
        msgl__trees_wait(e, s->batch.step_slot);
        m->cu[0] = 0;
    }
    int32_t n = m->cu[req];
    m->places[req] = msgl__token_place(e, r->table_idx, r->cached_len + 1);
    memcpy(m->tokens + n + req, s->sampled + first, (size_t)num * sizeof *m->tokens);
    for (int32_t k = 1; k < num; k++, n++) { // the first row is the known token's and stays
        for (int32_t t = 0; t < e->num_tables; t++) {
            const msgl_page_table *table = &e->page_tables[t];
            m->from[t][n] = msgl__page_table_slot(table, r->table_idx, r->cached_len + rows[k]);
            m->to[t][n] = msgl__page_table_slot(table, r->table_idx, r->cached_len + k);
        }
    }
    m->cu[req + 1] = n;
}

static void run_moves(void *ctx, int64_t step_slot)
{
    msgl_engine *e = ctx;
    const msgl_device_ops *ops = e->device->ops;
    const msgl_engine_moves *m = &e->steps[step_slot].moves, *dev = &e->dev.moves;
    msgl_engine_moves unused = {0};
    for (int32_t i = 0; i < m->num_reqs; i++) {
        ops->copy_in(e->device, e->dev.token_pool + m->places[i], m->tokens + m->cu[i] + i,
                     (size_t)(m->cu[i + 1] - m->cu[i] + 1) * sizeof *m->tokens);
    }
    ops->copy_in(e->device, dev->cu, m->cu, msgl__moves_place(e, NULL, &unused));
    for (int32_t g = 0; g < e->specs.count; g++) {
        const int32_t span = e->groups[g].span;
        msgl_kv_move_call c = {.num_reqs = m->num_reqs,
                               .from = dev->from[span],
                               .to = dev->to[span],
                               .cu_moves = dev->cu};
        msgl__kv_pool_moved(&e->groups[g].pool, &c);
        e->kernels.rope.move_kv(&e->exec, &c);
    }
    ops->record(e->device, event_of(e, (int32_t)step_slot));
}

void msgl__trees_move(msgl_engine *e, msgl_engine_step *s)
{
    e->device->ops->arm(e->device, event_of(e, s->batch.step_slot));
    e->device->ops->submit(e->device, run_moves, e, s->batch.step_slot);
}
