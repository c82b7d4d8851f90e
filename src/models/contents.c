// SPDX-License-Identifier: Apache-2.0
#include "models/contents.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

static int by_bytes(const void *a, const void *b)
{
    const msgl_type_row *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

// The row of this name, which may be new. NULL: out of memory.
static msgl_type_row *row_of(msgl_type_rows *r, const char *name)
{
    for (size_t i = 0; i < r->count; i++) {
        if (strcmp(r->at[i].name, name) == 0) return &r->at[i];
    }
    msgl_type_row *grown = msgl__reallocarray(r->at, r->count + 1, sizeof *grown);
    if (grown == NULL) return NULL;
    r->at = grown;
    grown[r->count] = (msgl_type_row){0};
    snprintf(grown[r->count].name, sizeof grown->name, "%s", name);
    return &grown[r->count++];
}

static msgl_type_row *row_of_tensor(msgl_type_rows *r, const msgl_tensor *t)
{
    char name[sizeof r->at->name];
    const int32_t bits = t->packed != NULL ? t->packing.bits : 0; // which only some forms differ in
    if (bits > 0) {
        snprintf(name, sizeof name, "%s %d-bit", t->packed, (int)bits);
    } else {
        snprintf(name, sizeof name, "%s", t->packed != NULL ? t->packed : t->type);
    }
    return row_of(r, name);
}

int msgl__checkpoint_types(const msgl_checkpoint *c, msgl_type_rows *out, msgl_err *err)
{
    *out = (msgl_type_rows){0};
    for (size_t i = 0; i < msgl__checkpoint_count(c); i++) {
        const msgl_tensor *t = msgl__checkpoint_at(c, i);
        if (t->is_side) continue; // the bytes `beside` another one
        msgl_type_row *row = row_of_tensor(out, t);
        if (row == NULL) return msgl__err_set(err, MSGL_ENOMEM, "model: out of memory");
        row->tensors++;
        row->bytes += t->bytes + t->beside;
        out->bytes += t->bytes + t->beside;
    }
    if (out->count > 1) qsort(out->at, out->count, sizeof *out->at, by_bytes);
    return 0;
}

void msgl__type_rows_free(msgl_type_rows *r)
{
    msgl__free(r->at);
    *r = (msgl_type_rows){0};
}
