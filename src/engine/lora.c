// SPDX-License-Identifier: Apache-2.0
//
// Adapters in an engine: slots that the scheduler fills and empties, and which rows of a step have
// which of them. A slot is changed by the scheduler's thread while no step in flight has it; what
// goes into it is read and packed by a thread of its own, so that steps go on meanwhile.
#include <pthread.h>
#include <string.h>

#include "core/mem.h"
#include "engine/internal.h"
#include "engine/rank_wire.h"
#include "kernel/lora_tiles.h"
#include "models/lora.h"
#include "utils/clock.h"
#include "utils/hash.h"
#include "utils/thread.h"

// The adapter that is being read.
typedef struct load {
    bool active, threaded; // there is one; and a thread that reads it
    int32_t slot;
    char *path;
    const msgl_lora_sites *sites;
    msgl_exec x;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool ended; // the rest is the scheduler's again
    msgl_verdict verdict;
    msgl_loaded_lora *loaded;
} load;

struct msgl_engine_lora {
    msgl_lora_sites *sites;
    load load;
    msgl_pool *pool;          // of one thread: the engine's own is the step's that runs
    msgl_arena scratch;       // of nothing: packing takes none
    msgl_loaded_lora **slots; // [num_slots]
    int32_t num_slots;
    int32_t per_step;      // different ones of a step that captured steps have room for
    msgl_lora_rows *rows;  // [MSGL_ENGINE_STEP_SLOTS, 2, max_running]
    msgl_lora_run *runs;   // [max_running]
    msgl_lora_part *parts; // [max_running]
    msgl_lora_step steps[MSGL_ENGINE_STEP_SLOTS];
    // Of a device that computes by tiles; else by_tiles is false.
    bool by_tiles;
    msgl_lora_table table;
    msgl_lora_entry *entries;      // [num_slots, table.num], host memory that copies may read
    const msgl_lora_member **sets; // [num_slots, table.num_many], likewise
    bool *changed; // [table.num + table.num_many] whether an adapter has ever changed this layer
    msgl_lora_span *spans;      // [2, max_running]
    int32_t *starts;            // [num_slots + 1]
    const msgl_lora **adapters; // [MSGL_ENGINE_STEP_SLOTS, num_slots]
};

static int open_tiles(msgl_engine *e, msgl_err *err)
{
    msgl_engine_lora *l = e->lora;
    const size_t slots = (size_t)l->num_slots, steps = MSGL_ENGINE_STEP_SLOTS;
    l->table = msgl__lora_table(l->sites);
    const size_t layers = (size_t)l->table.num;
    const size_t many = (size_t)l->table.num_many;
    l->changed = msgl__calloc(layers + many + 1, sizeof *l->changed);
    l->spans = msgl__calloc(2 * (size_t)e->max_running, sizeof *l->spans);
    l->starts = msgl__calloc(slots + 1, sizeof *l->starts);
    l->adapters = msgl__calloc(steps * slots, sizeof *l->adapters);
    if (l->changed == NULL || l->spans == NULL || l->starts == NULL || l->adapters == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM, "adapters: out of memory");
    }
    int code = 0;
    const size_t each = layers * sizeof *l->entries;
    l->entries = msgl__engine_take(e, slots, each, true, &code, err);
    l->table.entries = msgl__engine_take(e, slots, each, false, &code, err);
    if (many > 0) {
        l->sets = msgl__engine_take(e, slots, many * sizeof *l->sets, true, &code, err);
        l->table.sets = msgl__engine_take(e, slots, many * sizeof *l->sets, false, &code, err);
    }
    // Where rope and gates come behind what adapters add.
    if (code == 0) code = msgl__products_add_apart(&e->model.products);
    return code == 0 ? 0 : msgl__err_set(err, code, "adapters: out of memory");
}

int msgl__engine_lora_open(msgl_engine *e, const msgl_options *o, msgl_err *err)
{
    if (!o->enable_lora || e->parent != NULL) return 0;
    msgl_engine_lora *l = e->lora = msgl__calloc(1, sizeof *l);
    const size_t rows = (size_t)e->max_running;
    if (l == NULL) return msgl__err_set(err, MSGL_ENOMEM, "adapters: out of memory");
    msgl__cond_init(&l->load.changed);
    (void)pthread_mutex_init(&l->load.lock, NULL);
    l->num_slots = o->max_loaded_loras;
    l->per_step = o->max_loras_per_batch < l->num_slots ? o->max_loras_per_batch : l->num_slots;
    l->slots = msgl__calloc((size_t)l->num_slots, sizeof *l->slots);
    l->rows = msgl__calloc(2 * MSGL_ENGINE_STEP_SLOTS * rows, sizeof *l->rows);
    l->runs = msgl__calloc(rows, sizeof *l->runs);
    l->parts = msgl__calloc(rows, sizeof *l->parts);
    if (l->slots == NULL || l->rows == NULL || l->runs == NULL || l->parts == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM, "adapters: out of memory");
    }
    int code = msgl__lora_sites_create(&e->model, o->max_lora_rank, &l->sites, err);
    l->by_tiles = code == 0 && msgl__lora_by_tiles(l->sites);
    if (l->by_tiles) code = open_tiles(e, err);
    return code == 0 ? msgl__pool_create(1, &l->pool, err) : code;
}

void msgl__engine_lora_close(msgl_engine *e)
{
    msgl_engine_lora *l = e->lora;
    if (l == NULL) return;
    if (l->load.threaded) (void)pthread_join(l->load.thread, NULL);
    msgl__lora_free(l->load.loaded, e->device);
    msgl__free(l->load.path);
    (void)pthread_mutex_destroy(&l->load.lock);
    (void)pthread_cond_destroy(&l->load.changed);
    for (int32_t i = 0; l->slots != NULL && i < l->num_slots; i++) {
        msgl__lora_free(l->slots[i], e->device);
    }
    msgl__lora_sites_free(l->sites);
    if (l->pool != NULL) msgl__pool_destroy(l->pool);
    msgl__free(l->slots);
    msgl__free(l->rows);
    msgl__free(l->runs);
    msgl__free(l->changed);
    msgl__free(l->spans);
    msgl__free(l->starts);
    msgl__free(l->adapters);
    msgl__free(l->parts);
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

int32_t msgl__engine_lora_tiles_room(const msgl_engine *e, int32_t rows)
{
    const msgl_engine_lora *l = e->lora;
    return l != NULL && l->by_tiles ? rows / MSGL_LORA_LEAST_TILE + l->num_slots : 0;
}

// Whether the adapter changes layers which none has changed before, or has a larger rank than all
// before it; the table says so from now on.
static bool widen_table(msgl_engine_lora *l, const msgl_lora *a)
{
    bool wider = false;
    for (int i = 0; i < a->num; i++) {
        const msgl_lora_linear *linear = &a->linears[i];
        const int at = msgl__lora_table_find(&l->table, linear->of);
        if (at < 0) continue;
        for (int j = 0; j < linear->num_parts; j++) {
            if (linear->parts[j].b->k <= l->table.rank) continue;
            l->table.rank = linear->parts[j].b->k;
            wider = true;
        }
        wider |= !l->changed[at];
        l->changed[at] = true;
    }
    return wider;
}

// The device's table gets what slot `slot` has now. Captured steps, which know what adapters had
// before, are dropped where that one has more.
static void write_table(msgl_engine *e, int32_t slot)
{
    msgl_engine_lora *l = e->lora;
    const msgl_device_ops *ops = e->device->ops;
    const size_t at = (size_t)slot * (size_t)l->table.num;
    const msgl_loaded_lora *loaded = l->slots[slot];
    msgl_lora_entry *own = l->entries + at;
    const int32_t event = e->first_event + MSGL_ENGINE_LORA_EVENT;
    (void)ops->wait(e->device, event); // what was written here before may still be on its way
    ops->arm(e->device, event);
    const size_t many = (size_t)l->table.num_many, at_set = (size_t)slot * many;
    const msgl_lora_member **sets = many > 0 ? l->sets + at_set : NULL;
    msgl__lora_entries(&l->table, loaded != NULL ? &loaded->lora : NULL, own, sets);
    ops->copy_in(e->device, (msgl_lora_entry *)l->table.entries + at, own,
                 (size_t)l->table.num * sizeof *own);
    if (many > 0) {
        ops->copy_in(e->device, (const msgl_lora_member **)l->table.sets + at_set, sets,
                     many * sizeof *sets);
    }
    ops->record(e->device, event);
    bool more = loaded != NULL && widen_table(l, &loaded->lora);
    for (size_t i = 0; i < many; i++) {
        bool *changed = &l->changed[(size_t)l->table.num + i];
        if (sets[i] != NULL && !*changed) *changed = more = true;
    }
    if (more) msgl__graphs_drop_adapters(e);
}

static void fill_slot(msgl_engine *e, int32_t slot, msgl_loaded_lora *loaded)
{
    msgl_engine_lora *l = e->lora;
    msgl__lora_free(l->slots[slot], e->device);
    l->slots[slot] = loaded;
    if (l->by_tiles) write_table(e, slot);
}

// What loads adapters: beside the steps' own, on a thread that runs none.
static msgl_exec loading_exec(msgl_engine *e)
{
    msgl_exec x = e->exec;
    x.pool = e->lora->pool;
    x.scratch = &e->lora->scratch;
    x.status = 0;
    return x;
}

static void *read_folder(void *arg)
{
    load *d = arg;
    msgl_verdict v = {0};
    msgl_loaded_lora *loaded = NULL;
    v.err.code = msgl__lora_load(d->sites, d->path, &d->x, &loaded, &v.err);
    if (v.err.code == 0) v.files = loaded->digest;
    (void)pthread_mutex_lock(&d->lock);
    d->verdict = v;
    d->loaded = v.err.code == 0 ? loaded : NULL;
    d->ended = true;
    (void)pthread_cond_signal(&d->changed);
    (void)pthread_mutex_unlock(&d->lock);
    return NULL;
}

// Whatever goes wrong is known when it has ended: other ranks have begun, too.
static void begin(msgl_engine *e, int32_t slot, const char *path)
{
    msgl_engine_lora *l = e->lora;
    load *d = &l->load;
    d->active = true;
    d->slot = slot;
    d->sites = l->sites;
    d->path = msgl__strdup(path);
    d->x = loading_exec(e);
    d->ended = d->path == NULL;
    d->loaded = NULL;
    d->verdict = (msgl_verdict){0};
    if (d->path == NULL) {
        d->verdict.err.code = msgl__err_set(&d->verdict.err, MSGL_ENOMEM, "adapter: out of memory");
        return;
    }
    // A device with a queue of its own takes what is copied to it from one thread.
    d->threaded = e->device->on_host && msgl__thread_start(&d->thread, read_folder, d) == 0;
    if (!d->threaded) (void)read_folder(d);
}

int msgl__engine_load_adapter(void *engine, int32_t slot, const char *path, msgl_err *err)
{
    msgl_engine *e = engine;
    msgl_engine_lora *l = e->lora;
    if (l == NULL || slot < 0 || slot >= l->num_slots) {
        return msgl__err_set(err, MSGL_EINVAL, "there is no slot %d for adapters", (int)slot);
    }
    if (path != NULL && l->load.active) {
        return msgl__err_set(err, MSGL_EBUSY, "another adapter is being read");
    }
    if (e->place.others != NULL) {
        const int code = msgl__ranks_load_adapter(e->place.others, slot, path);
        if (code != 0) return msgl__err_set(err, code, "another rank has failed");
    }
    if (path != NULL) {
        begin(e, slot, path);
        return 0;
    }
    fill_slot(e, slot, NULL);
    return 0;
}

static bool wait_for_end(load *d, int wait_ms)
{
    const uint64_t until = wait_ms < 0 ? UINT64_MAX : msgl__now_ns() + (uint64_t)wait_ms * 1000000;
    int rc = 0;
    (void)pthread_mutex_lock(&d->lock);
    while (!d->ended && rc == 0) rc = msgl__cond_wait_until(&d->changed, &d->lock, until);
    const bool ended = d->ended;
    (void)pthread_mutex_unlock(&d->lock);
    return ended;
}

int msgl__engine_adapter_loaded(void *engine, int wait_ms, uint64_t *digest, msgl_err *err)
{
    msgl_engine *e = engine;
    msgl_engine_lora *l = e->lora;
    load *d = &l->load;
    if (!d->active) return msgl__err_set(err, MSGL_EINVAL, "no adapter is being read");
    if (!wait_for_end(d, wait_ms)) return 0;
    if (d->threaded) (void)pthread_join(d->thread, NULL);
    d->active = d->threaded = false;
    msgl_loaded_lora *loaded = d->loaded;
    d->loaded = NULL;
    msgl__free(d->path);
    d->path = NULL;
    int code = 0;
    if (e->place.others != NULL) {
        code = msgl__ranks_adapter_loaded(e->place.others);
        if (code != 0) (void)msgl__err_set(err, code, "another rank has failed");
    }
    if (code == 0) code = msgl__engine_agree(e, &d->verdict, err); // one may not have the folder
    if (code != 0) {
        msgl__lora_free(loaded, e->device);
        return code;
    }
    *digest = msgl__hash(MSGL_HASH_START, &loaded->digest, sizeof loaded->digest);
    fill_slot(e, d->slot, loaded);
    return 1;
}

int msgl__engine_dummy_adapter(msgl_engine *e, int32_t slot, int32_t rank, bool attention,
                               msgl_err *err)
{
    msgl_engine_lora *l = e->lora;
    if (l == NULL || slot < 0 || slot >= l->num_slots) {
        return msgl__err_set(err, MSGL_EINVAL, "there is no slot %d for adapters", (int)slot);
    }
    if (e->place.size > 1) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED, "dummy adapters: allowed: one rank");
    }
    msgl_loaded_lora *loaded = NULL;
    msgl_exec x = loading_exec(e);
    const int code = msgl__lora_dummy(l->sites, rank, attention, (uint64_t)slot, &x, &loaded, err);
    if (code == 0) fill_slot(e, slot, loaded);
    return code;
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

// The adapters that the step's requests have.
static void list_adapters(msgl_engine_lora *l, const msgl_engine_step *s, msgl_lora_step *to)
{
    const msgl_lora **list = l->adapters + (size_t)s->batch.step_slot * (size_t)l->num_slots;
    int32_t *used = l->starts;
    to->adapters = list;
    to->num_adapters = 0;
    memset(used, 0, (size_t)l->num_slots * sizeof *used);
    for (int32_t r = 0; r < s->batch.size; r++) {
        if (s->reqs[r].adapter != 0) used[s->reqs[r].adapter - 1] = 1;
    }
    for (int32_t i = 0; i < l->num_slots; i++) {
        if (used[i] != 0) list[to->num_adapters++] = &l->slots[i]->lora;
    }
}

static msgl_lora_step *begin_step(msgl_engine *e, int32_t step_slot)
{
    msgl_engine_lora *l = e->lora;
    const size_t most = (size_t)e->max_running;
    msgl_lora_rows *tokens = l->rows + 2 * (size_t)step_slot * most;
    msgl_lora_step *to = &l->steps[step_slot];
    *to = (msgl_lora_step){.tokens = tokens,
                           .logits = tokens + most,
                           .runs = l->runs,
                           .parts = l->parts,
                           .table = l->by_tiles ? &l->table : NULL};
    return to;
}

void msgl__engine_lora_stage(msgl_engine *e, msgl_engine_step *s)
{
    msgl_engine_lora *l = e->lora;
    s->lora = NULL;
    if (l == NULL) return;
    msgl_lora_step *to = begin_step(e, s->batch.step_slot);
    msgl_lora_rows *tokens = l->rows + 2 * (size_t)s->batch.step_slot * (size_t)e->max_running;
    msgl_lora_rows *logits = tokens + e->max_running;
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
    if (to->num_tokens == 0) return;
    if (l->by_tiles) list_adapters(l, s, to);
    s->lora = to;
}

bool msgl__engine_lora_captures(const msgl_engine *e, const msgl_engine_step *s)
{
    const msgl_engine_lora *l = e->lora;
    if (s->lora == NULL) return true;
    if (!l->by_tiles || s->lora->num_adapters > l->per_step) return false;
    for (int32_t i = 0; i < s->lora->num_adapters; i++) {
        // By runs, a launch for each: which there are is known to the host alone.
        const msgl_lora *a = s->lora->adapters[i];
        if (a->embed.a.n > 0 || a->num_saved > 0) return false;
    }
    return true;
}

// Spans of the step's rows, or of those with logits, that have adapters.
static int32_t spans_of(const msgl_engine_step *s, bool logits, msgl_lora_span *out)
{
    int32_t row = 0, num = 0;
    for (int32_t i = 0; i < s->batch.size; i++) {
        const msgl_batch_req *r = &s->reqs[i];
        const int32_t all = msgl__extend_len(r), with = all - r->logits_from;
        const int32_t n = !logits ? all : with > 0 ? with : 0;
        if (r->adapter != 0 && n > 0) {
            out[num++] = (msgl_lora_span){.row = row, .rows = n, .slot = r->adapter - 1};
        }
        row += n;
    }
    return num;
}

// Tiles of spans [num] in a step of `rows` rows, to the step's arrays i; `room` of them, those
// behind the last one without rows.
static msgl_lora_tiles fill_tiles(msgl_engine *e, msgl_engine_step *s, int i, int32_t num,
                                  int32_t rows, int32_t room)
{
    msgl_engine_lora *l = e->lora;
    const int32_t tile_rows = msgl__lora_tile_rows(rows);
    const int32_t n = msgl__lora_tiles_fill(l->spans, num, l->num_slots, tile_rows, l->starts,
                                            s->io.lora_order[i], s->io.lora_tiles[i], room);
    for (int32_t t = n > 0 ? n : 0; t < room; t++) s->io.lora_tiles[i][t] = (msgl_lora_tile){0};
    for (int32_t r = 0; r < rows; r++) s->io.lora_slots[i][r] = -1;
    for (int32_t j = 0; j < num; j++) {
        const msgl_lora_span *span = &l->spans[j];
        for (int32_t r = 0; r < span->rows; r++) s->io.lora_slots[i][span->row + r] = span->slot;
    }
    return (msgl_lora_tiles){.tiles = s->dev.lora_tiles[i],
                             .num_tiles = room,
                             .tile_rows = tile_rows,
                             .order = s->dev.lora_order[i],
                             .slots = s->dev.lora_slots[i],
                             .rows = rows};
}

// In a captured step, in which all rows have logits, room for as many adapters as a step has.
static int32_t captured_room(const msgl_engine_lora *l, int32_t size)
{
    return msgl__lora_tiles_room(size, l->per_step);
}

void msgl__engine_lora_tiles(msgl_engine *e, msgl_engine_step *s)
{
    const msgl_engine_lora *l = e->lora;
    if (s->lora == NULL || !l->by_tiles) return;
    if (s->graph != NULL) {
        const int32_t size = s->graph->size;
        (void)fill_tiles(e, s, 0, spans_of(s, false, l->spans), size, captured_room(l, size));
        return;
    }
    for (int i = 0; i < 2; i++) {
        const int32_t num = spans_of(s, i == 1, l->spans);
        const int32_t rows = i == 1 ? s->num_rows : s->batch.num_tokens;
        const int32_t room = msgl__lora_tiles_room(rows, s->lora->num_adapters);
        *(i == 1 ? &s->lora->by_logits : &s->lora->by_token) = fill_tiles(e, s, i, num, rows, room);
    }
}

void msgl__engine_lora_capture(msgl_engine *e, int32_t step_slot, msgl_engine_step *s, int32_t size)
{
    msgl_engine_lora *l = e->lora;
    s->lora = begin_step(e, step_slot);
    s->lora->changes = l->changed;
    s->lora->by_token = fill_tiles(e, s, 0, 0, size, captured_room(l, size));
    s->lora->by_logits = s->lora->by_token;
}
