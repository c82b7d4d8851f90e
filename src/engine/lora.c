// SPDX-License-Identifier: Apache-2.0
//
// Adapters in an engine: slots that the scheduler fills and empties, and which rows of a step have
// which of them. A slot is changed by the scheduler's thread while no step in flight has it.
#include <string.h>

#include "core/mem.h"
#include "engine/internal.h"
#include "engine/rank_wire.h"
#include "models/lora.h"
#include "utils/file.h"

struct msgl_engine_lora {
    msgl_lora_sites *sites;
    msgl_pool *pool;          // of one thread: the engine's own is the step's that runs
    msgl_arena scratch;       // of nothing: packing takes none
    msgl_loaded_lora **slots; // [num_slots]
    int32_t num_slots;
    msgl_lora_rows *rows; // [MSGL_ENGINE_STEP_SLOTS, 2, max_running]
    msgl_lora_run *runs;  // [max_running]
    msgl_lora_step steps[MSGL_ENGINE_STEP_SLOTS];
};

int msgl__engine_lora_open(msgl_engine *e, const msgl_options *o, msgl_err *err)
{
    if (!o->enable_lora || e->parent != NULL) return 0;
    msgl_engine_lora *l = e->lora = msgl__calloc(1, sizeof *l);
    const size_t rows = (size_t)e->max_running;
    if (l == NULL) return msgl__err_set(err, MSGL_ENOMEM, "adapters: out of memory");
    l->num_slots = o->max_loaded_loras;
    l->slots = msgl__calloc((size_t)l->num_slots, sizeof *l->slots);
    l->rows = msgl__calloc(2 * MSGL_ENGINE_STEP_SLOTS * rows, sizeof *l->rows);
    l->runs = msgl__calloc(rows, sizeof *l->runs);
    if (l->slots == NULL || l->rows == NULL || l->runs == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM, "adapters: out of memory");
    }
    const int code = msgl__lora_sites_create(&e->model, o->max_lora_rank, &l->sites, err);
    return code == 0 ? msgl__pool_create(1, &l->pool, err) : code;
}

void msgl__engine_lora_close(msgl_engine *e)
{
    msgl_engine_lora *l = e->lora;
    if (l == NULL) return;
    for (int32_t i = 0; l->slots != NULL && i < l->num_slots; i++) {
        msgl__lora_free(l->slots[i], e->device);
    }
    msgl__lora_sites_free(l->sites);
    if (l->pool != NULL) msgl__pool_destroy(l->pool);
    msgl__free(l->slots);
    msgl__free(l->rows);
    msgl__free(l->runs);
    msgl__free(l);
    e->lora = NULL;
}

size_t msgl__engine_lora_scratch(const msgl_engine *e)
{
    return e->lora != NULL ? msgl__lora_scratch(e->lora->sites, e->max_step_tokens) : 0;
}

size_t msgl__engine_lora_arena(const msgl_engine *e)
{
    return e->lora != NULL ? msgl__lora_arena(e->lora->sites, e->max_step_tokens) : 0;
}

int32_t msgl__engine_adapters(const msgl_engine *e)
{
    return e->lora != NULL ? e->lora->num_slots : 0;
}

int msgl__engine_load_adapter(void *engine, int32_t slot, const char *path, msgl_err *err)
{
    msgl_engine *e = engine;
    msgl_engine_lora *l = e->lora;
    if (l == NULL || slot < 0 || slot >= l->num_slots) {
        return msgl__err_set(err, MSGL_EINVAL, "there is no slot %d for adapters", (int)slot);
    }
    if (e->place.others != NULL) {
        const int code = msgl__ranks_load_adapter(e->place.others, slot, path);
        if (code != 0) return msgl__err_set(err, code, "another rank has failed");
    }
    msgl_loaded_lora *loaded = NULL;
    msgl_verdict v = {0};
    if (path != NULL) {
        msgl_exec x = e->exec;
        x.pool = l->pool;
        x.scratch = &l->scratch;
        x.status = 0;
        v.err.code = msgl__lora_load(l->sites, path, &x, &loaded, &v.err);
        const int code = msgl__engine_agree(e, &v, err); // one rank may not have the folder
        if (code != 0) {
            msgl__lora_free(loaded, e->device);
            return code;
        }
    }
    msgl__lora_free(l->slots[slot], e->device);
    l->slots[slot] = loaded;
    return 0;
}

bool msgl__engine_has_adapter(const msgl_engine *e, int32_t adapter)
{
    const msgl_engine_lora *l = e->lora;
    return adapter == 0 || e->parent != NULL ||
           (l != NULL && adapter > 0 && adapter <= l->num_slots && l->slots[adapter - 1] != NULL);
}

// Rows behind the list's last one, which they join where they have the same adapter.
static void add_rows(msgl_lora_rows *list, int32_t *num, const msgl_lora_rows *r)
{
    if (r->rows == 0) return;
    msgl_lora_rows *last = *num > 0 ? &list[*num - 1] : NULL;
    if (last != NULL && last->adapter == r->adapter && last->row + last->rows == r->row) {
        last->rows += r->rows;
    } else {
        list[(*num)++] = *r;
    }
}

void msgl__engine_lora_stage(msgl_engine *e, msgl_engine_step *s)
{
    msgl_engine_lora *l = e->lora;
    s->lora = NULL;
    if (l == NULL) return;
    const int32_t step_slot = s->batch.step_slot;
    const size_t most = (size_t)e->max_running;
    msgl_lora_rows *tokens = l->rows + 2 * (size_t)step_slot * most, *logits = tokens + most;
    msgl_lora_step *to = &l->steps[step_slot];
    *to = (msgl_lora_step){.tokens = tokens, .logits = logits, .runs = l->runs};
    int32_t row = 0, logits_row = 0;
    for (int32_t i = 0; i < s->batch.size; i++) {
        const msgl_batch_req *r = &s->reqs[i];
        const int32_t n = msgl__extend_len(r), with = n - r->logits_from;
        if (r->adapter != 0) {
            const msgl_lora *a = &l->slots[r->adapter - 1]->lora;
            add_rows(tokens, &to->num_tokens, &(msgl_lora_rows){row, n, a});
            add_rows(logits, &to->num_logits,
                     &(msgl_lora_rows){logits_row, with > 0 ? with : 0, a});
        }
        row += n;
        logits_row += with > 0 ? with : 0;
    }
    if (to->num_tokens > 0) s->lora = to;
}
