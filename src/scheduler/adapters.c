// SPDX-License-Identifier: Apache-2.0
//
// Which adapters the engine has in its slots. One that is not there is read into one while steps go
// on, in the place of the least recently used one that nobody has; requests that are admitted take
// its slot and give it back with their rows. What is loaded anew under an old name has another
// number, and shares no cached prefix with it; nor do requests before and after a folder changes
// whose adapter gave way and is read again under its number.
// Requests whose adapter has to wait are passed by those behind them in the queue, up to a bound.
#include <string.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "scheduler/internal.h"

int msgl__sched_adapters_create(msgl_scheduler *s, msgl_err *err)
{
    const int32_t n = s->runner.load_adapter != NULL ? s->runner.max_adapters : 0;
    s->num_adapters = n;
    s->blocked_arrival = UINT64_MAX;
    if (n == 0) return 0;
    s->adapters = msgl__calloc((size_t)n, sizeof *s->adapters);
    return s->adapters != NULL ? 0 : msgl__err_set(err, MSGL_ENOMEM, "scheduler: out of memory");
}

uint64_t msgl__sched_salt(uint64_t salt, uint64_t adapter)
{
    // Two rounds of splitmix64 (Steele et al. 2014, figure 17): numbers of adapters are small, and
    // salts what clients cannot choose.
    uint64_t z = salt;
    if (adapter == 0) return salt;
    for (int i = 0; i < 2; i++) {
        z += 0x9e3779b97f4a7c15u * (i == 0 ? adapter : 1);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z ^= z >> 31;
    }
    return z == 0 ? 1 : z;
}

void msgl__sched_adapters_destroy(msgl_scheduler *s)
{
    for (msgl_adapter_load *l = s->adapter_loads, *next; l != NULL; l = next) {
        next = l->next;
        msgl__free(l);
    }
    msgl__free(s->told);
    msgl__free(s->adapters);
}

// The slot in which it can be had.
static msgl_adapter_slot *find(const msgl_scheduler *s, uint64_t id)
{
    for (int32_t i = 0; i < s->num_adapters; i++) {
        if (s->adapters[i].id == id && s->adapters[i].loading == 0) return &s->adapters[i];
    }
    return NULL;
}

uint64_t msgl__sched_adapter_digest(const msgl_scheduler *s, uint64_t adapter)
{
    const msgl_adapter_slot *a = adapter != 0 ? find(s, adapter) : NULL;
    return a != NULL ? a->digest : 0;
}

// Whether a request that came before `arrival` waits with this adapter.
static bool wanted(const msgl_scheduler *s, uint64_t id, uint64_t arrival)
{
    const msgl_req_list *lists[] = {&s->waiting, &s->grammar_queue};
    for (size_t i = 0; i < MSGL_COUNT(lists); i++) {
        for (const msgl_req *r = lists[i]->head; r != NULL; r = r->next) {
            if (r->adapter == id && r->arrival < arrival) return true;
        }
    }
    return false;
}

// For a request: one that is empty, else the least recently used that nobody has and no older
// request waits for. An adapter that was taken away stays as long as any request waits for it.
// NULL: there is none.
static msgl_adapter_slot *room(const msgl_scheduler *s, uint64_t arrival)
{
    msgl_adapter_slot *best = NULL;
    for (int32_t i = 0; i < s->num_adapters; i++) {
        msgl_adapter_slot *a = &s->adapters[i];
        if (a->loading != 0 || a->users > 0) continue;
        if (a->id == 0) return a;
        if (best != NULL && best->used < a->used) continue;
        if (!wanted(s, a->id, a->dropped ? UINT64_MAX : arrival)) best = a;
    }
    return best;
}

void msgl__sched_sweep_adapters(msgl_scheduler *s)
{
    for (int32_t i = 0; i < s->num_adapters; i++) {
        msgl_adapter_slot *a = &s->adapters[i];
        if (!a->dropped || a->users > 0 || a->loading != 0) continue;
        if (wanted(s, a->id, UINT64_MAX)) continue;
        *a = (msgl_adapter_slot){0};
        (void)s->runner.load_adapter(s->runner.ctx, i, NULL, NULL);
    }
}

static bool was_dropped(const msgl_scheduler *s, uint64_t id)
{
    for (uint64_t i = 0; i < s->num_dropped && i < MSGL_MAX_DROPPED_ADAPTERS; i++) {
        if (s->dropped_adapters[i] == id) return true;
    }
    return false;
}

static void refuse(msgl_scheduler *s, msgl_req *r, const msgl_err *err)
{
    msgl__req_unlink(&s->waiting, r);
    msgl__uids_remove(&s->uids, &r->uid);
    msgl__sched_emit_error(s, r->uid.id, r->prompt_len, err->code, err->text);
    msgl__req_free(s, r);
}

// All that wait with it.
static void refuse_all(msgl_scheduler *s, uint64_t id, const msgl_err *err)
{
    for (msgl_req *r = s->waiting.head, *next; r != NULL; r = next) {
        next = r->next;
        if (r->adapter == id) refuse(s, r, err);
    }
}

// What those who asked for it are told.
static void end_loads(msgl_scheduler *s, uint64_t id, const msgl_err *err)
{
    for (msgl_adapter_load *l = s->adapter_loads; l != NULL; l = l->next) {
        if (l->id != id || l->ended) continue;
        l->ended = true;
        l->err = *err;
    }
}

static void end_loading(msgl_scheduler *s, uint64_t digest, const msgl_err *err)
{
    msgl_adapter_slot *a = s->loading;
    const uint64_t id = a->loading;
    s->loading = NULL;
    s->stuck = false; // who waits with it may be next
    a->loading = 0;   // after a failure what was there still is
    if (err->code == 0) {
        *a = (msgl_adapter_slot){
            .id = id, .digest = digest, .used = ++s->adapter_uses, .dropped = was_dropped(s, id)};
    } else {
        refuse_all(s, id, err);
    }
    end_loads(s, id, err);
}

static void begin_loading(msgl_scheduler *s, msgl_adapter_slot *a, uint64_t id, const char *path)
{
    msgl_err err = {0};
    a->loading = id;
    s->loading = a;
    const int32_t slot = (int32_t)(a - s->adapters);
    err.code = s->runner.load_adapter(s->runner.ctx, slot, path, &err);
    if (err.code != 0) end_loading(s, 0, &err);
}

// The next one, if none is being read.
static void choose_load(msgl_scheduler *s)
{
    msgl_err err = {0};
    for (msgl_adapter_load *l = s->adapter_loads; l != NULL && s->loading == NULL; l = l->next) {
        if (l->ended) continue;
        msgl_adapter_slot *a = room(s, UINT64_MAX);
        if (find(s, l->id) != NULL) {
            l->ended = true;
        } else if (a == NULL) {
            (void)msgl__err_set(&l->err, MSGL_EBUSY, "all %d adapters in memory are in use",
                                (int)s->num_adapters);
            l->ended = true;
        } else {
            begin_loading(s, a, l->id, l->path);
        }
    }
    for (msgl_req *r = s->waiting.head, *next; r != NULL && s->loading == NULL; r = next) {
        next = r->next;
        if (r->adapter == 0 || find(s, r->adapter) != NULL) continue;
        if (was_dropped(s, r->adapter)) {
            (void)msgl__err_set(&err, MSGL_ENOENT, "the adapter was unloaded before it began");
            refuse(s, r, &err);
            continue;
        }
        msgl_adapter_slot *a = room(s, r->arrival);
        if (a == NULL) return; // and none for younger ones
        begin_loading(s, a, r->adapter, r->adapter_path);
        if (s->loading == NULL) next = s->waiting.head; // it has ended, and requests with it
    }
}

// Whether one more would be too many for a step.
static bool too_many(const msgl_scheduler *s)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->num_adapters; i++) n += s->adapters[i].users > 0;
    return n >= s->options.max_loras_per_batch;
}

// Whether no request that runs has r's adapter, and it is not in memory or would be one too many.
static bool lacks_adapter(const msgl_scheduler *s, const msgl_req *r)
{
    const msgl_adapter_slot *a = find(s, r->adapter);
    return a == NULL || (a->users == 0 && too_many(s));
}

// Whether r has to wait until others have left room.
static bool is_blocked(const msgl_scheduler *s, const msgl_req *r)
{
    if (r->adapter == 0 || (s->loading != NULL && s->loading->loading == r->adapter)) return false;
    return lacks_adapter(s, r);
}

// Sets blocked_arrival. Once chosen, a request stays the blocked one until it has begun, also when
// there is room for it: whoever passes it still counts.
static void find_blocked(msgl_scheduler *s)
{
    const msgl_req *r = s->waiting.head;
    while (r != NULL && r->arrival != s->blocked_arrival && !is_blocked(s, r)) r = r->next;
    if (r != NULL && r->arrival == s->blocked_arrival) return;
    s->blocked_arrival = r != NULL ? r->arrival : UINT64_MAX;
    s->blocked_adapter = r != NULL ? r->adapter : 0;
    s->passed = 0;
}

void msgl__sched_adapters(msgl_scheduler *s, int wait_ms)
{
    if (s->num_adapters == 0) return;
    const msgl_runner *engine = &s->runner;
    msgl_err err = {0};
    uint64_t digest = 0;
    const int rc =
        s->loading != NULL ? engine->adapter_loaded(engine->ctx, wait_ms, &digest, &err) : 0;
    if (rc != 0) {
        err.code = rc < 0 ? rc : 0;
        end_loading(s, digest, &err);
    }
    msgl__sched_sweep_adapters(s);
    if (s->loading == NULL) choose_load(s);
    find_blocked(s);
}

bool msgl__sched_loads_adapters(const msgl_scheduler *s)
{
    const msgl_adapter_load *l = s->adapter_loads;
    while (l != NULL && l->ended) l = l->next;
    return s->loading != NULL || l != NULL;
}

int msgl__scheduler_load_adapter(msgl_scheduler *s, uint64_t id, const char *path, msgl_err *err)
{
    if (s->num_adapters == 0) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "this server takes no adapters; --enable-lora lets it");
    }
    const size_t bytes = strlen(path) + 1;
    msgl_adapter_load *l = msgl__calloc(1, sizeof *l + bytes), **at = &s->adapter_loads;
    if (l == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    l->id = id;
    memcpy(l->path, path, bytes);
    while (*at != NULL) at = &(*at)->next;
    *at = l;
    return 0;
}

bool msgl__scheduler_adapter_done(msgl_scheduler *s, msgl_msg_adapter_done *out)
{
    msgl_adapter_load **at = &s->adapter_loads;
    while (*at != NULL && !(*at)->ended) at = &(*at)->next;
    msgl__free(s->told);
    const msgl_adapter_load *l = s->told = *at;
    if (l == NULL) return false;
    *at = l->next;
    *out = (msgl_msg_adapter_done){
        .adapter = l->id, .status = l->err.code, .text = l->err.code != 0 ? l->err.text : NULL};
    return true;
}

void msgl__scheduler_drop_adapter(msgl_scheduler *s, uint64_t id)
{
    if (s->num_adapters == 0) return;
    s->dropped_adapters[s->num_dropped++ % MSGL_MAX_DROPPED_ADAPTERS] = id;
    msgl_adapter_slot *a = find(s, id);
    if (a != NULL) a->dropped = true;
    msgl__sched_sweep_adapters(s);
}

// With too many younger ones before it: those behind it with other adapters leave it room.
static bool is_held_back(const msgl_scheduler *s, const msgl_req *r)
{
    return s->passed >= s->options.max_running && r->arrival > s->blocked_arrival &&
           r->adapter != s->blocked_adapter;
}

bool msgl__sched_waits_for_adapter(const msgl_scheduler *s, const msgl_req *r)
{
    return r->adapter != 0 && (lacks_adapter(s, r) || is_held_back(s, r));
}

void msgl__sched_take_adapter(msgl_scheduler *s, msgl_req *r)
{
    if (r->adapter == 0) return;
    msgl_adapter_slot *a = find(s, r->adapter);
    a->users++;
    a->used = ++s->adapter_uses;
    r->adapter_slot = 1 + (int32_t)(a - s->adapters);
    if (r->arrival > s->blocked_arrival && r->adapter != s->blocked_adapter) s->passed++;
}

void msgl__sched_give_adapter(msgl_scheduler *s, msgl_req *r)
{
    if (r->adapter_slot == 0) return;
    s->adapters[r->adapter_slot - 1].users--;
    r->adapter_slot = 0;
}
