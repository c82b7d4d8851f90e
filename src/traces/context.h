// SPDX-License-Identifier: Apache-2.0
//
// W3C Trace Context: which trace a request belongs to, of its header `traceparent`.
#ifndef MSGL_TRACES_CONTEXT_H
#define MSGL_TRACES_CONTEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct msgl_trace_context {
    uint8_t trace_id[16], span_id[8]; // neither is all zero
    bool sampled;
} msgl_trace_context;

// text[len], blanks around it taken off. False, with *out untouched, for what is none: then a
// request begins a trace of its own. Version 00 is read as the standard has it, of later ones what
// their first four fields say.
bool msgl__trace_context_read(const char *text, size_t len, msgl_trace_context *out);

// n random bytes, not all zero.
void msgl__trace_id_make(uint8_t *id, size_t n);

#endif
