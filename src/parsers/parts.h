// SPDX-License-Identifier: Apache-2.0
//
// What an answer's text turns out to be, in order: content, reasoning, and calls of tools. Bytes of
// one kind that follow each other are one part, however they came.
#ifndef MSGL_PARSERS_PARTS_H
#define MSGL_PARSERS_PARTS_H

#include <stddef.h>

#include "utils/strbuf.h"

typedef enum msgl_part_kind {
    MSGL_PART_TEXT,
    MSGL_PART_REASONING,
    MSGL_PART_CALL,      // a call begins; its bytes are the whole name and, where the model gives
                         // its calls ids, a NUL and the id
    MSGL_PART_ARGUMENTS, // of the call that began last: JSON as the model wrote it, or a piece of
                         // it; every call has some, "{}" where the model wrote none
    MSGL_PART_CALL_END,  // no bytes; also behind a call that the answer's end has cut
} msgl_part_kind;

typedef struct msgl_part {
    msgl_part_kind kind;
    size_t len; // of its bytes, which stand behind those of the part before
} msgl_part;

typedef struct msgl_parts {
    msgl_part *items;
    size_t count, cap;
    msgl_strbuf bytes;
} msgl_parts;

// max: bytes that it may hold.
void msgl__parts_init(msgl_parts *p, size_t max);
void msgl__parts_free(msgl_parts *p);  // zero-initialised allowed
void msgl__parts_clear(msgl_parts *p); // the caller has shown them; memory is kept
// 0, MSGL_ENOMEM, MSGL_ELIMIT.
int msgl__parts_add(msgl_parts *p, msgl_part_kind kind, const char *data, size_t len);
size_t msgl__parts_bytes(const msgl_parts *p); // of heap

#endif
