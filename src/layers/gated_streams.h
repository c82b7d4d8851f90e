// SPDX-License-Identifier: Apache-2.0
//
// Gated residual streams (kernel/streams.h): what a block reads of a token's streams, and how they
// take its result.
#ifndef MSGL_LAYERS_GATED_STREAMS_H
#define MSGL_LAYERS_GATED_STREAMS_H

#include "core/round.h"
#include "layers/linear.h"

// In front of one block, or, without injection, behind the last one.
typedef struct msgl_gated_streams {
    int32_t num, hidden; // num 0: there are none
    int32_t rank;
    bool injects;
    float eps;
    float *norm; // [num, hidden]
    // [msgl__streams_gates, num * hidden]: rank rows and, with injection, num rows of its weights.
    msgl_linear down;
    msgl_linear up; // [num * hidden, rank]
} msgl_gated_streams;

// Columns of `gates`, those of the last ones that nobody reads included: of rank 320 and 4 streams
// 328.
static inline size_t msgl__streams_gates(const msgl_gated_streams *s)
{
    enum { WHOLE = 8 }; // rows of 16 bytes, as GPUs load them
    return msgl__round_up((size_t)s->rank + (s->injects ? (size_t)s->num : 0), WHOLE);
}

// Of streams [rows, num, hidden] to out [rows, hidden], what the block reads; gates [rows,
// msgl__streams_gates], for msgl__streams_write.
void msgl__streams_read(msgl_forward *f, const msgl_gated_streams *s, const void *streams,
                        int32_t rows, void *gates, void *out);
// Step arena bytes of it for up to max_rows rows.
size_t msgl__streams_workspace(const msgl_gated_streams *s, msgl_dtype act, int32_t max_rows);
// streams += the block's result [rows, hidden], by the gates that msgl__streams_read has left.
void msgl__streams_write(msgl_forward *f, const msgl_gated_streams *s, const void *gates,
                         const void *block, int32_t rows, void *streams);

// norm [num, hidden] of each of a token's streams by itself: in [rows, num, hidden], rows ld
// apart -> out, dense.
void msgl__streams_norm(msgl_forward *f, const float *norm, float eps, int32_t num, int32_t hidden,
                        const void *in, size_t ld, int32_t rows, void *out);

#endif
