// SPDX-License-Identifier: Apache-2.0
//
// Growing arena: everything that a parse or a render allocates, freed in one go. Parsed templates
// and rendered values have exactly one lifetime each, so an error needs no clean-up code.
#ifndef MSGL_TEMPLATE_JINJA_MEM_H
#define MSGL_TEMPLATE_JINJA_MEM_H

#include <stddef.h>

typedef struct msgl_jarena {
    struct msgl_jblock *blocks; // newest first
    size_t used, cap;           // of the newest block
    size_t total, max;          // bytes taken from the heap, and how many may be
} msgl_jarena;

void msgl__jarena_init(msgl_jarena *a, size_t max);
// 16-byte aligned, not zeroed. NULL when `max` would be passed or the heap is exhausted.
void *msgl__jarena_alloc(msgl_jarena *a, size_t size);
void *msgl__jarena_zalloc(msgl_jarena *a, size_t size);
// The status to report after a NULL: MSGL_ELIMIT when `size` more bytes would pass `max`, else
// MSGL_ENOMEM.
int msgl__jarena_why(const msgl_jarena *a, size_t size);
void msgl__jarena_free(msgl_jarena *a); // leaves an empty, usable arena

#endif
