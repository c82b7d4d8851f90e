// SPDX-License-Identifier: Apache-2.0
#include "parsers/parts.h"

#include <stdbool.h>

#include "core/err.h"
#include "core/mem.h"

void msgl__parts_init(msgl_parts *p, size_t max)
{
    *p = (msgl_parts){0};
    msgl__strbuf_init(&p->bytes, max);
}

void msgl__parts_free(msgl_parts *p)
{
    msgl__free(p->items);
    msgl__strbuf_free(&p->bytes);
    p->items = NULL;
    p->count = p->cap = 0;
}

void msgl__parts_clear(msgl_parts *p)
{
    p->count = 0;
    msgl__strbuf_clear(&p->bytes);
}

static bool goes_on(msgl_part_kind kind)
{
    return kind == MSGL_PART_TEXT || kind == MSGL_PART_REASONING || kind == MSGL_PART_ARGUMENTS;
}

int msgl__parts_add(msgl_parts *p, msgl_part_kind kind, const char *data, size_t len)
{
    msgl_part *last = p->count > 0 ? &p->items[p->count - 1] : NULL;
    if (goes_on(kind) && len == 0) return 0;
    const bool more = last != NULL && last->kind == kind && goes_on(kind);
    if (!more && p->count == p->cap) {
        const size_t cap = p->cap == 0 ? 4 : 2 * p->cap;
        msgl_part *items = msgl__reallocarray(p->items, cap, sizeof *items);
        if (items == NULL) return MSGL_ENOMEM;
        p->items = items;
        p->cap = cap;
    }
    const int rc = msgl__strbuf_add(&p->bytes, data, len);
    if (rc != 0) return rc;
    if (more) {
        p->items[p->count - 1].len += len;
    } else {
        p->items[p->count++] = (msgl_part){kind, len};
    }
    return 0;
}

size_t msgl__parts_bytes(const msgl_parts *p)
{
    return p->cap * sizeof *p->items + p->bytes.cap;
}
