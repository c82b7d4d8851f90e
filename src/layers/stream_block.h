// SPDX-License-Identifier: Apache-2.0
//
// The residual as several streams, in one of the forms that there are: what a block reads of a
// token's streams, and how they take its result.
#ifndef MSGL_LAYERS_STREAM_BLOCK_H
#define MSGL_LAYERS_STREAM_BLOCK_H

#include "layers/gated_streams.h"
#include "layers/hyper_connections.h"

// Of one block, or behind the last layer. One of the two is there, or, where the residual is one
// stream, neither.
typedef struct msgl_stream_block {
    msgl_gated_streams gated;    // or num 0
    msgl_hyper_connection hyper; // or streams 0
} msgl_stream_block;

// How many streams there are; 0: the residual is one.
static inline int32_t msgl__stream_count(const msgl_stream_block *b)
{
    return b->gated.num + b->hyper.streams;
}

// A row of what `open` leaves for `close`: elements, and their type.
int32_t msgl__stream_mix(const msgl_stream_block *b);
msgl_dtype msgl__stream_mix_dtype(const msgl_stream_block *b, msgl_dtype act);

// Streams [rows, count, hidden] in front of a block -> what it reads, out [rows, hidden], zeros
// that it adds to, result [rows, hidden], and mix [rows, msgl__stream_mix].
void msgl__stream_open(msgl_forward *f, const msgl_stream_block *b, const void *streams,
                       int32_t rows, void *mix, void *out, void *result);
// The block's result joins the streams.
void msgl__stream_close(msgl_forward *f, const msgl_stream_block *b, const void *mix,
                        const void *result, int32_t rows, void *streams);
// The streams behind the last layer -> out [rows, hidden]; mix is overwritten.
void msgl__stream_head(msgl_forward *f, const msgl_stream_block *b, const void *streams,
                       int32_t rows, void *mix, void *out);
// Step arena bytes of these for up to max_rows rows.
size_t msgl__stream_workspace(const msgl_stream_block *b, msgl_dtype act, int32_t max_rows);

#endif
