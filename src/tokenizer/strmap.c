// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/strmap.h"

#include "core/err.h"
#include "core/mem.h"

int msgl__strset_init(msgl_strset *s, size_t num_ids, size_t count, size_t pool_bytes)
{
    *s = (msgl_strset){.num_ids = num_ids, .bits = 4};
    while (((size_t)1 << s->bits) < count + count / 2) s->bits++;
    const size_t slots = (size_t)1 << s->bits;
    s->pool_cap = pool_bytes;
    s->pool = msgl__malloc(pool_bytes);
    s->off = msgl__calloc(num_ids, sizeof(*s->off));
    s->len = msgl__calloc(num_ids, sizeof(*s->len));
    s->slot = msgl__calloc(slots, sizeof(*s->slot));
    if (s->pool == NULL || s->off == NULL || s->len == NULL || s->slot == NULL) {
        msgl__strset_free(s);
        return MSGL_ENOMEM;
    }
    for (size_t i = 0; i < num_ids; i++) s->len[i] = MSGL_STRSET_NONE;
    for (size_t i = 0; i < slots; i++) s->slot[i].id = -1;
    return 0;
}

void msgl__strset_free(msgl_strset *s)
{
    msgl__free(s->pool);
    msgl__free(s->off);
    msgl__free(s->len);
    msgl__free(s->slot);
    *s = (msgl_strset){0};
}

int msgl__strset_add(msgl_strset *s, const char *p, size_t n, int32_t id)
{
    if (n >= UINT32_MAX - s->pool_len) return MSGL_ELIMIT;
    if (s->pool_len + n > s->pool_cap) {
        const size_t cap = (s->pool_len + n) * 2;
        char *pool = msgl__realloc(s->pool, cap);
        if (pool == NULL) return MSGL_ENOMEM;
        s->pool = pool;
        s->pool_cap = cap;
    }
    const uint64_t head = msgl__str_head(p, n), hash = msgl__str_hash(head, p, n);
    if (msgl__strset_find(s, p, n, head, hash) >= 0) return MSGL_EINVAL;
    if (n > 0) memcpy(s->pool + s->pool_len, p, n);
    s->off[id] = (uint32_t)s->pool_len;
    s->len[id] = (uint32_t)n;
    s->pool_len += n;
    const size_t mask = ((size_t)1 << s->bits) - 1;
    size_t i = hash & mask;
    while (s->slot[i].id >= 0) i = (i + 1) & mask;
    s->slot[i] = (msgl_strslot){head, (uint32_t)n, id};
    return 0;
}
