// SPDX-License-Identifier: Apache-2.0
//
// Builds msgl_seqs: the lengths and table rows of neighbouring requests of a step, in a block of
// memory with one layout on host and device, so that one copy moves it.
#ifndef MSGL_CORE_SEQS_H
#define MSGL_CORE_SEQS_H

#include <stddef.h>

#include "core/batch.h"

// Bytes of a block for up to max_size requests, a multiple of 64.
size_t msgl__seqs_bytes(int32_t max_size);

// Requests [first, end) of b into `host`, a block of msgl__seqs_bytes(max_size); `device` is where
// its copy will be, or `host` itself. Behind them dummy requests of one key in table row
// `dummy_row` up to padded_size (<= max_size) tokens, and then requests without any up to as many.
void msgl__seqs_fill(const msgl_batch *b, int32_t first, int32_t end, int32_t padded_size,
                     int32_t dummy_row, int32_t max_size, void *host, const void *device,
                     msgl_seqs *out);

#endif
