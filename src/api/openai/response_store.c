// SPDX-License-Identifier: Apache-2.0
#include "api/openai/response_store.h"

#include <pthread.h>
#include <string.h>

#include "core/err.h"
#include "core/mem.h"

// A client that has responses: it is freed with the last of them.
typedef struct owner {
    struct owner *next;
    uint64_t id;
    size_t bytes; // of its responses
    int count;
} owner;

typedef struct entry {
    struct entry *next; // the next newer one
    owner *owner;
    int64_t made;
    msgl_claim claim;
    size_t items_len, body_len;
    char *items, *body; // in this block of memory, behind the id
    char id[];
} entry;

struct msgl_response_store {
    pthread_mutex_t lock;
    msgl_response_limits limits;
    msgl_budget *budget;
    entry *oldest, **end;
    owner *owners;
    size_t bytes;
    int count;
};

msgl_response_limits msgl__response_limits_default(size_t max_request_memory)
{
    const size_t most = (size_t)64 << 20, sixteenth = max_request_memory / 16;
    return (msgl_response_limits){.max_count = 1000,
                                  .max_bytes = sixteenth < most ? sixteenth : most,
                                  .max_age_s = INT64_C(24) * 3600};
}

int msgl__response_store_create(const msgl_response_limits *limits, msgl_budget *budget,
                                msgl_response_store **out)
{
    msgl_response_store *s = msgl__calloc(1, sizeof *s);
    if (s == NULL) return MSGL_ENOMEM;
    if (pthread_mutex_init(&s->lock, NULL) != 0) {
        msgl__free(s);
        return MSGL_ENOMEM;
    }
    s->limits = *limits;
    s->budget = budget;
    s->end = &s->oldest;
    *out = s;
    return 0;
}

// The bytes of memory that an entry takes.
static size_t bytes_of(const entry *e)
{
    return sizeof *e + strlen(e->id) + 1 + e->items_len + e->body_len;
}

// Takes the entry at *at out of the list and frees it.
static void drop(msgl_response_store *s, entry **at)
{
    entry *e = *at;
    owner *own = e->owner;
    *at = e->next;
    if (e->next == NULL) s->end = at;
    s->count--;
    s->bytes -= bytes_of(e);
    own->bytes -= bytes_of(e);
    if (--own->count == 0) {
        owner **o = &s->owners;
        while (*o != own) o = &(*o)->next;
        *o = own->next;
        msgl__free(own);
    }
    msgl__claim_free(&e->claim);
    msgl__free(e);
}

void msgl__response_store_free(msgl_response_store *s)
{
    if (s == NULL) return;
    while (s->oldest != NULL) drop(s, &s->oldest);
    pthread_mutex_destroy(&s->lock);
    msgl__free(s);
}

bool msgl__response_store_fits(const msgl_response_store *s, size_t bytes)
{
    return s != NULL && bytes <= s->limits.max_bytes / 4;
}

static void expire(msgl_response_store *s, int64_t now)
{
    while (s->oldest != NULL && now - s->oldest->made > s->limits.max_age_s) drop(s, &s->oldest);
}

// Where the list has the client's response; NULL: it does not.
static entry **find(msgl_response_store *s, uint64_t own, const char *id)
{
    for (entry **at = &s->oldest; *at != NULL; at = &(*at)->next) {
        if ((*at)->owner->id == own && strcmp((*at)->id, id) == 0) return at;
    }
    return NULL;
}

// Drops the oldest response of the client whose responses have the most bytes.
static void drop_one(msgl_response_store *s)
{
    const owner *most = s->owners;
    for (const owner *o = s->owners; o != NULL; o = o->next) {
        if (o->bytes > most->bytes) most = o;
    }
    entry **at = &s->oldest;
    while ((*at)->owner != most) at = &(*at)->next;
    drop(s, at);
}

static owner *owner_of(msgl_response_store *s, uint64_t id)
{
    for (owner *o = s->owners; o != NULL; o = o->next) {
        if (o->id == id) return o;
    }
    owner *o = msgl__calloc(1, sizeof *o);
    if (o == NULL) return NULL;
    o->id = id;
    o->next = s->owners;
    s->owners = o;
    return o;
}

// Adds an entry, and drops others until the limits are kept. The entry is counted first, so that
// the client that stores a response may itself be the one with the most bytes, which loses its
// oldest.
static int add(msgl_response_store *s, entry *e, uint64_t own)
{
    e->owner = owner_of(s, own);
    if (e->owner == NULL) return MSGL_ENOMEM;
    const size_t bytes = bytes_of(e);
    e->owner->bytes += bytes;
    e->owner->count++;
    s->bytes += bytes;
    s->count++;
    *s->end = e;
    s->end = &e->next;
    while (s->count > s->limits.max_count || s->bytes > s->limits.max_bytes) drop_one(s);
    return 0;
}

static entry *make(const char *id, const msgl_strbuf *items, const void *body, size_t len)
{
    const size_t n = strlen(id) + 1;
    entry *e = msgl__malloc(sizeof *e + n + items->len + len);
    if (e == NULL) return NULL;
    *e = (entry){.items_len = items->len, .body_len = len};
    memcpy(e->id, id, n);
    e->items = e->id + n;
    e->body = e->items + items->len;
    if (items->len > 0) memcpy(e->items, items->data, items->len);
    if (len > 0) memcpy(e->body, body, len);
    return e;
}

int msgl__response_store_put(msgl_response_store *s, uint64_t own, const char *id, int64_t now,
                             const msgl_strbuf *items, const void *body, size_t len)
{
    if (!msgl__response_store_fits(s, items->len + len)) return MSGL_ELIMIT;
    entry *e = make(id, items, body, len);
    if (e == NULL) return MSGL_ENOMEM;
    e->made = now;
    e->claim.budget = s->budget;
    int rc = msgl__claim_set(&e->claim, MSGL_BUDGET_PROMPT, bytes_of(e));
    if (rc == 0) {
        pthread_mutex_lock(&s->lock);
        expire(s, now);
        rc = add(s, e, own);
        pthread_mutex_unlock(&s->lock);
    }
    if (rc == 0) return 0;
    msgl__claim_free(&e->claim);
    msgl__free(e);
    return rc;
}

int msgl__response_store_get(msgl_response_store *s, uint64_t own, const char *id, int64_t now,
                             msgl_strbuf *items, msgl_strbuf *body)
{
    pthread_mutex_lock(&s->lock);
    expire(s, now);
    entry **at = find(s, own, id);
    const entry *e = at == NULL ? NULL : *at;
    int rc = e == NULL ? MSGL_ENOENT : 0;
    if (rc == 0 && items != NULL) rc = msgl__strbuf_add(items, e->items, e->items_len);
    if (rc == 0 && body != NULL) rc = msgl__strbuf_add(body, e->body, e->body_len);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int msgl__response_store_remove(msgl_response_store *s, uint64_t own, const char *id)
{
    pthread_mutex_lock(&s->lock);
    entry **at = find(s, own, id);
    if (at != NULL) drop(s, at);
    pthread_mutex_unlock(&s->lock);
    return at == NULL ? MSGL_ENOENT : 0;
}

void msgl__response_store_expire(msgl_response_store *s, int64_t now)
{
    pthread_mutex_lock(&s->lock);
    expire(s, now);
    pthread_mutex_unlock(&s->lock);
}
