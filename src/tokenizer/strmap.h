// SPDX-License-Identifier: Apache-2.0
//
// Strings by id and ids by string: the vocabulary. Open addressing with the first eight bytes of
// each string in its slot, so that a lookup of a short token touches one cache line and no string.
#ifndef MSGL_TOKENIZER_STRMAP_H
#define MSGL_TOKENIZER_STRMAP_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct msgl_strslot {
    uint64_t head; // first eight bytes, the missing ones 0
    uint32_t len;
    int32_t id; // -1: empty slot
} msgl_strslot;

typedef struct msgl_strset {
    char *pool;         // all strings, back to back
    uint32_t *off;      // [num_ids]: where string id starts in pool
    uint32_t *len;      // [num_ids]; UINT32_MAX: no string has this id
    msgl_strslot *slot; // 1 << bits of them
    size_t pool_len, pool_cap;
    size_t num_ids;
    unsigned bits;
} msgl_strset;

#define MSGL_STRSET_NONE UINT32_MAX

// Room for ids [0, num_ids) and `count` strings. 0 or MSGL_ENOMEM.
int msgl__strset_init(msgl_strset *s, size_t num_ids, size_t count, size_t pool_bytes);
void msgl__strset_free(msgl_strset *s);
// Adds string `id`, which must be new, below num_ids and within `count`. 0, MSGL_ENOMEM,
// MSGL_ELIMIT (4 GiB of strings) or MSGL_EINVAL (the string is there already).
int msgl__strset_add(msgl_strset *s, const char *p, size_t n, int32_t id);

static inline uint64_t msgl__str_head(const char *p, size_t n)
{
    uint64_t v = 0;
    if (n >= 8) {
        memcpy(&v, p, 8);
    } else if (n >= 4) {
        uint32_t lo, hi;
        memcpy(&lo, p, 4);
        memcpy(&hi, p + n - 4, 4);
        v = lo | (uint64_t)hi << (8 * (n - 4));
    } else if (n > 0) {
        const unsigned char *u = (const unsigned char *)p;
        v = u[0] | (uint64_t)u[n / 2] << (8 * (n / 2)) | (uint64_t)u[n - 1] << (8 * (n - 1));
    }
    return v;
}

// Multiply and fold, as in the wyhash family.
static inline uint64_t msgl__mix64(uint64_t a, uint64_t b)
{
    const __uint128_t m =
        (__uint128_t)(a ^ UINT64_C(0xa0761d6478bd642f)) * (b ^ UINT64_C(0xe7037ed1a0b428db));
    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

static inline uint64_t msgl__str_hash(uint64_t head, const char *p, size_t n)
{
    uint64_t h = msgl__mix64(head, n);
    for (size_t i = 8; i < n; i += 8) {
        uint64_t v;
        memcpy(&v, p + (i + 8 <= n ? i : n - 8), 8); // the last step may overlap the one before
        h = msgl__mix64(h, v);
    }
    return h;
}

// The id of p[0, n), whose head and hash the caller has; -1: none.
static inline int32_t msgl__strset_find(const msgl_strset *s, const char *p, size_t n,
                                        uint64_t head, uint64_t hash)
{
    const size_t mask = ((size_t)1 << s->bits) - 1;
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
        const msgl_strslot *e = &s->slot[i];
        if (e->id < 0) return -1;
        if (e->head == head && e->len == n &&
            (n <= 8 || memcmp(s->pool + s->off[e->id] + 8, p + 8, n - 8) == 0)) {
            return e->id;
        }
    }
}

static inline int32_t msgl__strset_get(const msgl_strset *s, const char *p, size_t n)
{
    const uint64_t head = msgl__str_head(p, n);
    return msgl__strset_find(s, p, n, head, msgl__str_hash(head, p, n));
}

// String `id`, NULL when there is none; *n its length.
static inline const char *msgl__strset_at(const msgl_strset *s, int32_t id, size_t *n)
{
    if (id < 0 || (size_t)id >= s->num_ids || s->len[id] == MSGL_STRSET_NONE) return NULL;
    *n = s->len[id];
    return s->pool + s->off[id];
}

#endif
