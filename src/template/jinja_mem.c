// SPDX-License-Identifier: Apache-2.0
#include "template/jinja_mem.h"

#include <stdint.h>
#include <string.h>

#include "core/err.h"
#include "core/mem.h"
#include "core/round.h"

enum { ALIGN = 16, FIRST_BLOCK = 16 << 10, LAST_BLOCK = 1 << 20 };

struct msgl_jblock {
    struct msgl_jblock *next;
    size_t pad; // keeps the payload 16-byte aligned
};

void msgl__jarena_init(msgl_jarena *a, size_t max)
{
    *a = (msgl_jarena){.max = max};
}

static struct msgl_jblock *new_block(msgl_jarena *a, size_t payload)
{
    if (payload > a->max - a->total) return NULL;
    struct msgl_jblock *b = msgl__malloc(sizeof *b + payload);
    if (b == NULL) return NULL;
    a->total += payload;
    return b;
}

void *msgl__jarena_alloc(msgl_jarena *a, size_t size)
{
    if (size > SIZE_MAX / 2) return NULL;
    size = msgl__round_up(size, ALIGN);
    if (a->blocks != NULL && size <= a->cap - a->used) {
        char *p = (char *)(a->blocks + 1) + a->used;
        a->used += size;
        return p;
    }
    if (a->blocks != NULL && size > LAST_BLOCK / 4) {
        // A large object gets a block of its own behind the newest, which keeps serving small ones.
        struct msgl_jblock *b = new_block(a, size);
        if (b == NULL) return NULL;
        b->next = a->blocks->next;
        a->blocks->next = b;
        return b + 1;
    }
    size_t cap = a->cap == 0 ? FIRST_BLOCK : a->cap < LAST_BLOCK ? a->cap * 2 : LAST_BLOCK;
    if (cap > a->max - a->total) cap = a->max - a->total;
    if (cap < size) cap = size;
    struct msgl_jblock *b = new_block(a, cap);
    if (b == NULL) return NULL;
    b->next = a->blocks;
    a->blocks = b;
    a->cap = cap;
    a->used = size;
    return b + 1;
}

void *msgl__jarena_zalloc(msgl_jarena *a, size_t size)
{
    void *p = msgl__jarena_alloc(a, size);
    if (p != NULL) memset(p, 0, size);
    return p;
}

int msgl__jarena_why(const msgl_jarena *a, size_t size)
{
    return size > a->max - a->total ? MSGL_ELIMIT : MSGL_ENOMEM;
}

void msgl__jarena_free(msgl_jarena *a)
{
    struct msgl_jblock *b = a->blocks;
    while (b != NULL) {
        struct msgl_jblock *next = b->next;
        msgl__free(b);
        b = next;
    }
    msgl__jarena_init(a, a->max);
}
