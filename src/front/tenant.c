// SPDX-License-Identifier: Apache-2.0
//
// Who requests come from. What one tenant has, however many connections it opens, is what it shares
// the engines and the queue by with others (fair_queue.c, gen.c). Where keys are asked for,
// addresses say nothing: a proxy has one for everybody.
#include <string.h>

#include "core/mem.h"
#include "front/front_impl.h"
#include "utils/siphash.h"

static bool same(const tenant_name *a, const tenant_name *b)
{
    return a->kind == b->kind && a->key == b->key &&
           memcmp(&a->source, &b->source, sizeof a->source) == 0;
}

static tenant_name name_of(const msgl_front *f, const msgl_http_conn *c, const msgl_http_parser *p)
{
    tenant_name name = {.kind = TENANT_ADDRESS};
    if (msgl__http_conn_is_inner(c)) {
        name.kind = TENANT_BATCHES;
    } else if (f->cfg.guard.keys.count > 0) {
        name.kind = TENANT_KEY;
        name.key = msgl__guard_whose(&f->cfg.guard, p);
    } else {
        name.source = msgl__http_conn_source(c);
    }
    return name;
}

static tenant **bucket(msgl_front *f, const tenant_name *name)
{
    const uint32_t h = (uint32_t)name->kind * 31 + (uint32_t)name->key;
    return &f->tenants[(h ^ msgl__http_source_hash(&name->source)) % TENANT_BUCKETS];
}

// Nobody can choose an address whose number is another's.
static uint64_t id_of(const msgl_front *f, const tenant_name *p)
{
    const uint64_t key[2] = {f->id_base, f->route_seed};
    unsigned char whose[sizeof p->source + 2 * sizeof(int)];
    const int numbers[2] = {(int)p->kind, p->key};
    memcpy(whose, &p->source, sizeof p->source);
    memcpy(whose + sizeof p->source, numbers, sizeof numbers);
    return msgl__siphash(key, whose, sizeof whose);
}

uint64_t msgl__tenant_id(const msgl_front *f, const msgl_http_conn *c, const msgl_http_parser *p)
{
    const tenant_name name = name_of(f, c, p);
    return id_of(f, &name);
}

static tenant *find(tenant *first, const tenant_name *name)
{
    while (first != NULL && !same(&first->name, name)) first = first->next;
    return first;
}

const tenant *msgl__tenant_find(msgl_front *f, const msgl_http_conn *c, const msgl_http_parser *p)
{
    const tenant_name name = name_of(f, c, p);
    return find(*bucket(f, &name), &name);
}

tenant *msgl__tenant_join(msgl_front *f, const msgl_http_conn *c, const msgl_http_parser *p)
{
    const tenant_name name = name_of(f, c, p);
    tenant **first = bucket(f, &name), *found = find(*first, &name);
    if (found == NULL) {
        const size_t n = (size_t)f->cfg.num_replicas;
        found = msgl__calloc(1, sizeof *found + n * sizeof found->queues[0]);
        if (found == NULL) return NULL;
        found->name = name;
        found->number = ++f->last_tenant;
        found->id = id_of(f, &name);
        found->next = *first;
        *first = found;
    }
    found->num_gens++;
    return found;
}

void msgl__tenant_leave(msgl_front *f, tenant *p)
{
    if (--p->num_gens > 0) return;
    tenant **at = bucket(f, &p->name);
    while (*at != p) at = &(*at)->next;
    *at = p->next;
    msgl__free(p);
}
