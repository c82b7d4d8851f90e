// SPDX-License-Identifier: Apache-2.0
//
// Who requests come from. What one tenant has, however many connections it opens, is what it shares
// the engines and the queue by with others (fair_queue.c, gen.c). Where keys are asked for,
// addresses say nothing: a proxy has one for everybody.
#include <string.h>

#include "core/mem.h"
#include "front/front_impl.h"
#include "utils/siphash.h"

static bool same(const tenant *a, const tenant *b)
{
    return a->kind == b->kind && a->key == b->key &&
           memcmp(&a->source, &b->source, sizeof a->source) == 0;
}

static tenant identify(const msgl_front *f, const msgl_http_conn *c, const msgl_http_parser *p)
{
    tenant id = {.kind = TENANT_ADDRESS};
    if (msgl__http_conn_is_inner(c)) {
        id.kind = TENANT_BATCHES;
    } else if (f->cfg.guard.keys.count > 0) {
        id.kind = TENANT_KEY;
        id.key = msgl__guard_whose(&f->cfg.guard, p);
    } else {
        id.source = msgl__http_conn_source(c);
    }
    return id;
}

static tenant **bucket(msgl_front *f, const tenant *id)
{
    const uint32_t h = (uint32_t)id->kind * 31 + (uint32_t)id->key;
    return &f->tenants[(h ^ msgl__http_source_hash(&id->source)) % TENANT_BUCKETS];
}

// Nobody can choose an address whose number is another's.
static uint64_t id_of(const msgl_front *f, const tenant *p)
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
    const tenant id = identify(f, c, p);
    return id_of(f, &id);
}

static tenant *find(tenant *first, const tenant *id)
{
    while (first != NULL && !same(first, id)) first = first->next;
    return first;
}

const tenant *msgl__tenant_find(msgl_front *f, const msgl_http_conn *c, const msgl_http_parser *p)
{
    const tenant id = identify(f, c, p);
    return find(*bucket(f, &id), &id);
}

tenant *msgl__tenant_join(msgl_front *f, const msgl_http_conn *c, const msgl_http_parser *p)
{
    const tenant id = identify(f, c, p);
    tenant **first = bucket(f, &id), *found = find(*first, &id);
    if (found == NULL) {
        const size_t n = (size_t)f->cfg.num_replicas;
        found = msgl__calloc(1, sizeof *found + n * sizeof found->queues[0]);
        if (found == NULL) return NULL;
        *found = id;
        found->number = ++f->last_tenant;
        found->id = id_of(f, &id);
        found->next = *first;
        *first = found;
    }
    found->num_gens++;
    return found;
}

void msgl__tenant_leave(msgl_front *f, tenant *p)
{
    if (--p->num_gens > 0) return;
    tenant **at = bucket(f, p);
    while (*at != p) at = &(*at)->next;
    *at = p->next;
    msgl__free(p);
}
