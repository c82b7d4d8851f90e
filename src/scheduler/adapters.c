// SPDX-License-Identifier: Apache-2.0
//
// Which adapters the engine has in its slots. A request that is admitted takes its adapter's, which
// is read into one when it is not there, in the place of the least recently used one that nobody
// has; it gives it back with its row. An adapter's number is that of one reading of one folder:
// what is loaded anew under an old name has another, and shares no cached prefix with it.
#include <string.h>

#include "core/mem.h"
#include "scheduler/internal.h"

int msgl__sched_adapters_create(msgl_scheduler *s, msgl_err *err)
{
    const int32_t n = s->runner.load_adapter != NULL ? s->runner.max_adapters : 0;
    s->num_adapters = n;
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

static msgl_adapter_slot *find(const msgl_scheduler *s, uint64_t id)
{
    for (int32_t i = 0; i < s->num_adapters; i++) {
        if (s->adapters[i].id == id) return &s->adapters[i];
    }
    return NULL;
}

// One that is empty, else the least recently used that nobody has; NULL: all are in use.
static msgl_adapter_slot *room(const msgl_scheduler *s)
{
    msgl_adapter_slot *best = NULL;
    for (int32_t i = 0; i < s->num_adapters; i++) {
        msgl_adapter_slot *a = &s->adapters[i];
        if (a->id == 0) return a;
        if (a->users == 0 && (best == NULL || a->used < best->used)) best = a;
    }
    return best;
}

static int empty(msgl_scheduler *s, msgl_adapter_slot *a)
{
    *a = (msgl_adapter_slot){0};
    return s->runner.load_adapter(s->runner.ctx, (int32_t)(a - s->adapters), NULL, NULL);
}

int msgl__scheduler_load_adapter(msgl_scheduler *s, uint64_t id, const char *path, msgl_err *err)
{
    if (s->num_adapters == 0) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "this server takes no adapters; --enable-lora lets it");
    }
    if (find(s, id) != NULL) return 0;
    msgl_adapter_slot *a = room(s);
    if (a == NULL) {
        return msgl__err_set(err, MSGL_EBUSY, "all %d adapters in memory are in use",
                             (int)s->num_adapters);
    }
    const int code = s->runner.load_adapter(s->runner.ctx, (int32_t)(a - s->adapters), path, err);
    if (code != 0) return code;
    *a = (msgl_adapter_slot){.id = id, .used = ++s->adapter_uses};
    return 0;
}

void msgl__scheduler_drop_adapter(msgl_scheduler *s, uint64_t id)
{
    msgl_adapter_slot *a = find(s, id);
    if (a == NULL) return;
    a->dropped = true;
    if (a->users == 0) (void)empty(s, a);
}

// Whether one more would be too many for a step.
static bool too_many(const msgl_scheduler *s)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->num_adapters; i++) n += s->adapters[i].users > 0;
    return n >= s->options.max_loras_per_batch;
}

int msgl__sched_take_adapter(msgl_scheduler *s, msgl_req *r, msgl_err *err)
{
    if (r->adapter == 0 || r->adapter_slot > 0) return 1;
    msgl_adapter_slot *a = find(s, r->adapter);
    if ((a == NULL || a->users == 0) && too_many(s)) return 0;
    if (a == NULL) {
        const int code = msgl__scheduler_load_adapter(s, r->adapter, r->adapter_path, err);
        if (code == MSGL_EBUSY) return 0;
        if (code != 0) return code;
        a = find(s, r->adapter);
    }
    a->users++;
    a->used = ++s->adapter_uses;
    r->adapter_slot = 1 + (int32_t)(a - s->adapters);
    return 1;
}

void msgl__sched_give_adapter(msgl_scheduler *s, msgl_req *r)
{
    if (r->adapter_slot == 0) return;
    msgl_adapter_slot *a = &s->adapters[r->adapter_slot - 1];
    r->adapter_slot = 0;
    if (--a->users == 0 && a->dropped) (void)empty(s, a);
}
