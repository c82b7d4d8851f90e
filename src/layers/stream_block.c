// SPDX-License-Identifier: Apache-2.0
#include "layers/stream_block.h"

static bool gated(const msgl_stream_block *b)
{
    return b->gated.num > 0;
}

int32_t msgl__stream_mix(const msgl_stream_block *b)
{
    return gated(b) ? (int32_t)msgl__streams_gates(&b->gated) : msgl__hyper_mix(b->hyper.streams);
}

msgl_dtype msgl__stream_mix_dtype(const msgl_stream_block *b, msgl_dtype act)
{
    return gated(b) ? act : MSGL_F32;
}

void msgl__stream_open(msgl_forward *f, const msgl_stream_block *b, const void *streams,
                       int32_t rows, void *mix, void *out, void *result)
{
    if (gated(b)) {
        msgl__streams_read(f, &b->gated, streams, rows, mix, out);
        f->k->streams.clear(f->x, result, rows, b->gated.hidden);
    } else {
        msgl__hyper_open(f, &b->hyper, streams, mix, out, result, rows);
    }
}

void msgl__stream_close(msgl_forward *f, const msgl_stream_block *b, const void *mix,
                        const void *result, int32_t rows, void *streams)
{
    if (gated(b)) {
        msgl__streams_write(f, &b->gated, mix, result, rows, streams);
    } else {
        msgl__hyper_close(f, &b->hyper, mix, result, streams, rows);
    }
}

void msgl__stream_head(msgl_forward *f, const msgl_stream_block *b, const void *streams,
                       int32_t rows, void *mix, void *out)
{
    if (gated(b)) {
        msgl__streams_read(f, &b->gated, streams, rows, mix, out);
    } else {
        msgl__hyper_head(f, &b->hyper, streams, out, rows);
    }
}

size_t msgl__stream_workspace(const msgl_stream_block *b, msgl_dtype act, int32_t max_rows)
{
    return gated(b) ? msgl__streams_workspace(&b->gated, act, max_rows) : 0;
}
