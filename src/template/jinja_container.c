// SPDX-License-Identifier: Apache-2.0
//
// Lists, dicts and iteration.
#include <math.h>
#include <string.h>

#include "template/jinja_builtins.h"
#include "template/jinja_string.h"
#include "utils/hash.h"

enum {
    SMALL_DICT = 8,   // searched without an index
    TUPLE_DEPTH = 32, // tuples nested deeper cannot be keys
};

int msgl__jlist_new(msgl_jctx *c, size_t len, msgl_jlist **out)
{
    if (len > c->max_string) return msgl__jctx_limit(c, "a list of %zu elements", len);
    const size_t size = sizeof(msgl_jlist) + len * sizeof(msgl_jval);
    msgl_jlist *l = msgl__jctx_alloc(c, size);
    if (l == NULL) return msgl__jctx_nomem(c, size);
    *l = (msgl_jlist){.items = (msgl_jval *)(void *)(l + 1), .len = len};
    *out = l;
    return 0;
}

int msgl__jpair(msgl_jctx *c, msgl_jval a, msgl_jval b, msgl_jval *out)
{
    msgl_jlist *l = NULL;
    MSGL_JTRY(msgl__jlist_new(c, 2, &l));
    l->items[0] = a;
    l->items[1] = b;
    *out = (msgl_jval){.type = MSGL_J_TUPLE, .as.l = l};
    return 0;
}

int msgl__jgen_new(msgl_jctx *c, msgl_jval *items, size_t len, msgl_jval *out)
{
    msgl_jgen *g = msgl__jctx_alloc(c, sizeof *g);
    if (g == NULL) return msgl__jctx_nomem(c, sizeof *g);
    *g = (msgl_jgen){items, len, 0};
    *out = (msgl_jval){.type = MSGL_J_GEN, .as.g = g};
    return 0;
}

// --- dicts ---
// Equal keys have equal hashes: 1, 1.0 and True are one key.
static uint64_t hash_of(uint64_t h, const msgl_jval *v, int depth)
{
    int64_t i;
    switch (v->type) {
    case MSGL_J_BOOL:
    case MSGL_J_INT: msgl__jas_int(v, &i); return msgl__hash(h, &i, sizeof i);
    case MSGL_J_FLOAT:
        if (v->as.f == floor(v->as.f) && fabs(v->as.f) < 9e18) {
            i = (int64_t)v->as.f;
            return msgl__hash(h, &i, sizeof i);
        }
        return msgl__hash(h, &v->as.f, sizeof v->as.f);
    case MSGL_J_BIG:
    case MSGL_J_STR: return msgl__hash(h, v->as.s->data, v->as.s->len);
    case MSGL_J_TUPLE:
        for (size_t k = 0; k < v->as.l->len; k++) {
            if (depth < TUPLE_DEPTH) h = hash_of(h, &v->as.l->items[k], depth + 1);
        }
        return h;
    case MSGL_J_UNDEF:
    case MSGL_J_NONE: return h + (uint64_t)v->type;
    default: return msgl__hash(h, &v->as, sizeof v->as);
    }
}

// Also pays for the hash, which walks the same way: tuples of tuples that share their elements are
// small in memory and endless to walk.
static int is_hashable(msgl_jctx *c, const msgl_jval *v, int depth, bool *yes)
{
    *yes = v->type != MSGL_J_LIST && v->type != MSGL_J_DICT;
    if (v->type == MSGL_J_STR || v->type == MSGL_J_BIG) return msgl__jctx_chars(c, v->as.s->len);
    if (v->type != MSGL_J_TUPLE) return 0;
    *yes = depth < TUPLE_DEPTH;
    MSGL_JTRY(msgl__jctx_steps(c, v->as.l->len));
    for (size_t i = 0; i < v->as.l->len && *yes; i++) {
        MSGL_JTRY(is_hashable(c, &v->as.l->items[i], depth + 1, yes));
    }
    return 0;
}

int msgl__jdict_new(msgl_jctx *c, size_t cap, msgl_jdict **out)
{
    msgl_jdict *d = msgl__jarena_zalloc(&c->arena, sizeof *d);
    if (d == NULL) return msgl__jctx_nomem(c, sizeof *d);
    // The address differs from run to run: keys that all collide cannot be prepared in advance.
    d->seed = MSGL_HASH_START ^ ((uintptr_t)d >> 4);
    if (cap > 0) {
        const size_t size = cap * sizeof(msgl_jval);
        d->keys = msgl__jctx_alloc(c, size);
        d->vals = msgl__jctx_alloc(c, size);
        if (d->keys == NULL || d->vals == NULL) return msgl__jctx_nomem(c, size);
        d->cap = cap;
    }
    *out = d;
    return 0;
}

static void index_put(msgl_jdict *d, uint32_t entry)
{
    size_t at = hash_of(d->seed, &d->keys[entry], 0) & (d->index_cap - 1);
    while (d->index[at] != 0) at = (at + 1) & (d->index_cap - 1);
    d->index[at] = entry + 1;
}

static int reindex(msgl_jctx *c, msgl_jdict *d)
{
    const size_t cap = d->index_cap ? d->index_cap * 2 : 32;
    d->index = msgl__jarena_zalloc(&c->arena, cap * sizeof *d->index);
    if (d->index == NULL) return msgl__jctx_nomem(c, cap * sizeof *d->index);
    d->index_cap = cap;
    for (size_t i = 0; i < d->len; i++) index_put(d, (uint32_t)i);
    return 0;
}

static int grow(msgl_jctx *c, msgl_jdict *d)
{
    const size_t cap = d->cap ? d->cap * 2 : 4, size = cap * sizeof(msgl_jval);
    msgl_jval *keys = msgl__jctx_alloc(c, size), *vals = msgl__jctx_alloc(c, size);
    if (keys == NULL || vals == NULL) return msgl__jctx_nomem(c, size);
    if (d->len > 0) {
        memcpy(keys, d->keys, d->len * sizeof *keys);
        memcpy(vals, d->vals, d->len * sizeof *vals);
    }
    d->keys = keys;
    d->vals = vals;
    d->cap = cap;
    return 0;
}

static bool keys_are_same_str(const msgl_jval *a, const char *s, size_t len)
{
    return a->type == MSGL_J_STR && a->as.s->len == len && memcmp(a->as.s->data, s, len) == 0;
}

int msgl__jdict_find(msgl_jctx *c, const msgl_jdict *d, const msgl_jval *key, bool *hashable,
                     msgl_jval **out)
{
    *out = NULL;
    MSGL_JTRY(is_hashable(c, key, 0, hashable));
    if (!*hashable) return 0;
    if (key->type == MSGL_J_STR) {
        *out = msgl__jdict_gets(d, key->as.s->data, key->as.s->len);
        return 0;
    }
    bool eq;
    if (d->index == NULL) {
        for (size_t i = 0; i < d->len; i++) {
            MSGL_JTRY(msgl__jequal(c, &d->keys[i], key, &eq));
            if (eq) {
                *out = &d->vals[i];
                return 0;
            }
        }
        return 0;
    }
    size_t at = hash_of(d->seed, key, 0) & (d->index_cap - 1);
    for (; d->index[at] != 0; at = (at + 1) & (d->index_cap - 1)) {
        const uint32_t i = d->index[at] - 1;
        MSGL_JTRY(msgl__jequal(c, &d->keys[i], key, &eq));
        if (eq) {
            *out = &d->vals[i];
            return 0;
        }
    }
    return 0;
}

int msgl__jdict_get(msgl_jctx *c, const msgl_jdict *d, const msgl_jval *key, msgl_jval **out)
{
    bool hashable;
    MSGL_JTRY(msgl__jdict_find(c, d, key, &hashable, out));
    if (hashable) return 0;
    return msgl__jctx_fail(c, "unhashable type: '%s'", msgl__jtype_name(key));
}

msgl_jval *msgl__jdict_gets(const msgl_jdict *d, const char *key, size_t len)
{
    if (d->index == NULL) {
        for (size_t i = 0; i < d->len; i++) {
            if (keys_are_same_str(&d->keys[i], key, len)) return &d->vals[i];
        }
        return NULL;
    }
    size_t at = msgl__hash(d->seed, key, len) & (d->index_cap - 1);
    for (; d->index[at] != 0; at = (at + 1) & (d->index_cap - 1)) {
        const uint32_t i = d->index[at] - 1;
        if (keys_are_same_str(&d->keys[i], key, len)) return &d->vals[i];
    }
    return NULL;
}

int msgl__jdict_set(msgl_jctx *c, msgl_jdict *d, msgl_jval key, msgl_jval val)
{
    msgl_jval *old;
    MSGL_JTRY(msgl__jdict_get(c, d, &key, &old));
    if (old != NULL) {
        *old = val;
        return 0;
    }
    if (d->len == d->cap) MSGL_JTRY(grow(c, d));
    d->keys[d->len] = key;
    d->vals[d->len] = val;
    d->len++;
    if (d->len > SMALL_DICT && d->len * 2 > d->index_cap) return reindex(c, d);
    if (d->index != NULL) index_put(d, (uint32_t)(d->len - 1));
    return 0;
}

// One source of dict(): a mapping, or an iterable of pairs.
static int merge_into(msgl_jctx *c, msgl_jdict *d, const msgl_jval *src)
{
    if (src->type == MSGL_J_DICT) {
        for (size_t i = 0; i < src->as.d->len; i++) {
            MSGL_JTRY(msgl__jctx_steps(c, 1));
            MSGL_JTRY(msgl__jdict_set(c, d, src->as.d->keys[i], src->as.d->vals[i]));
        }
        return 0;
    }
    msgl_jiter it;
    MSGL_JTRY(msgl__jiter_init(c, src, &it));
    for (;;) {
        msgl_jval v, *pair;
        size_t n;
        MSGL_JTRY(msgl__jiter_next(c, &it, &v));
        if (v.type == MSGL_J_UNSET) return 0;
        MSGL_JTRY(msgl__jto_array(c, &v, &pair, &n));
        if (n != 2) {
            return msgl__jctx_fail(c,
                                   "dictionary update sequence element has length %zu; 2 is "
                                   "required",
                                   n);
        }
        MSGL_JTRY(msgl__jdict_set(c, d, pair[0], pair[1]));
    }
}

int msgl__jdict_from(msgl_jctx *c, const msgl_jcall *call, msgl_jdict **out)
{
    if (call->npos > 1) {
        return msgl__jctx_fail(c, "dict expected at most 1 argument, got %zu", call->npos);
    }
    MSGL_JTRY(msgl__jdict_new(c, call->nkw, out));
    if (call->npos == 1) MSGL_JTRY(merge_into(c, *out, &call->pos[0]));
    for (size_t i = 0; i < call->nkw; i++) {
        msgl_jstr *key;
        MSGL_JTRY(msgl__jstr_sub(c, call->kw_names[i], 0, call->kw_names[i]->len, &key));
        MSGL_JTRY(msgl__jdict_set(c, *out, msgl__jstrval(key), call->kw[i]));
    }
    return 0;
}

// --- iteration ---
bool msgl__jiterable(const msgl_jval *v)
{
    return msgl__jhas_length(v) || v->type == MSGL_J_GEN;
}

int msgl__jiter_init(msgl_jctx *c, const msgl_jval *v, msgl_jiter *it)
{
    if (!msgl__jiterable(v) || v->type == MSGL_J_LOOP) {
        return msgl__jctx_fail(c, "'%s' object is not iterable", msgl__jtype_name(v));
    }
    *it = (msgl_jiter){*v, 0};
    return 0;
}

static int next_of_view(msgl_jctx *c, const msgl_jview *v, size_t i, msgl_jval *out)
{
    if (v->kind == MSGL_JVIEW_ITEMS) {
        return msgl__jpair(c, v->dict->keys[i], v->dict->vals[i], out);
    }
    *out = v->kind == MSGL_JVIEW_KEYS ? v->dict->keys[i] : v->dict->vals[i];
    return 0;
}

int msgl__jiter_next(msgl_jctx *c, msgl_jiter *it, msgl_jval *out)
{
    MSGL_JTRY(msgl__jctx_steps(c, 1));
    *out = (msgl_jval){.type = MSGL_J_UNSET};
    const msgl_jval *s = &it->src;
    switch (s->type) {
    case MSGL_J_STR: {
        if (it->at >= s->as.s->len) return 0;
        const size_t n = msgl__utf8_len((unsigned char)s->as.s->data[it->at]);
        msgl_jstr *ch;
        MSGL_JTRY(msgl__jstr_sub(c, s->as.s, it->at, n, &ch));
        it->at += n;
        *out = msgl__jstrval(ch);
        return 0;
    }
    case MSGL_J_LIST:
    case MSGL_J_TUPLE:
        if (it->at < s->as.l->len) *out = s->as.l->items[it->at++];
        return 0;
    case MSGL_J_DICT:
        if (it->at < s->as.d->len) *out = s->as.d->keys[it->at++];
        return 0;
    case MSGL_J_RANGE:
        if (it->at < s->as.r->len) {
            *out = msgl__jint(s->as.r->start + (int64_t)it->at * s->as.r->step);
            it->at++;
        }
        return 0;
    case MSGL_J_VIEW:
        return it->at < s->as.v->dict->len ? next_of_view(c, s->as.v, it->at++, out) : 0;
    case MSGL_J_GEN:
        if (s->as.g->pos < s->as.g->len) *out = s->as.g->items[s->as.g->pos++];
        return 0;
    default: return 0;
    }
}

static size_t remaining(const msgl_jval *v)
{
    switch (v->type) {
    case MSGL_J_STR: return msgl__jstr_chars(v->as.s);
    case MSGL_J_DICT: return v->as.d->len;
    case MSGL_J_RANGE: return v->as.r->len;
    case MSGL_J_VIEW: return v->as.v->dict->len;
    default: return 0;
    }
}

int msgl__jto_array(msgl_jctx *c, const msgl_jval *v, msgl_jval **items, size_t *len)
{
    msgl_jiter it;
    MSGL_JTRY(msgl__jiter_init(c, v, &it));
    if (v->type == MSGL_J_LIST || v->type == MSGL_J_TUPLE) {
        *items = v->as.l->items;
        *len = v->as.l->len;
        return 0;
    }
    if (v->type == MSGL_J_GEN) {
        *len = v->as.g->len - v->as.g->pos;
        *items = *len > 0 ? v->as.g->items + v->as.g->pos : NULL;
        v->as.g->pos = v->as.g->len;
        return 0;
    }
    msgl_jlist *l;
    MSGL_JTRY(msgl__jlist_new(c, remaining(v), &l));
    for (size_t i = 0; i < l->len; i++) MSGL_JTRY(msgl__jiter_next(c, &it, &l->items[i]));
    *items = l->items;
    *len = l->len;
    return 0;
}
