// SPDX-License-Identifier: Apache-2.0
#include "layers/gated_streams.h"

// Rows that are read at a time: what lies between is as wide as all streams.
enum { ROWS = 256 };

static int32_t rows_of(int32_t rows)
{
    return rows < ROWS ? rows : ROWS;
}

void msgl__streams_norm(msgl_forward *f, const float *norm, float eps, int32_t num, int32_t hidden,
                        const void *in, size_t ld, int32_t rows, void *out)
{
    const size_t one = (size_t)hidden, bytes = one * msgl__dtype_size(f->x->act);
    for (int32_t s = 0; s < num; s++) {
        const size_t at = (size_t)s;
        f->k->norm.rms_norm(f->x, (const char *)in + at * bytes, ld, norm + at * one, eps,
                            (char *)out + at * bytes, (size_t)num * one, rows, hidden);
    }
}

size_t msgl__streams_workspace(const msgl_gated_streams *s, msgl_dtype act, int32_t max_rows)
{
    return 2 * msgl__activation_bytes((size_t)rows_of(max_rows), (size_t)s->num * (size_t)s->hidden,
                                      act);
}

static void read_block(msgl_forward *f, const msgl_gated_streams *s, const void *streams,
                       int32_t rows, void *gates, void *out)
{
    const size_t mark = f->arena->used, width = (size_t)s->num * (size_t)s->hidden;
    const size_t ld = msgl__streams_gates(s);
    void *normed = msgl__activation(f, (size_t)rows, width);
    void *mixer = msgl__activation(f, (size_t)rows, width);
    if (normed == NULL || mixer == NULL) return;
    msgl__streams_norm(f, s->norm, s->eps, s->num, s->hidden, streams, width, rows, normed);
    msgl__linear(f, &s->down, NULL, normed, gates, rows);
    f->k->streams.squash(f->x, gates, ld, rows, s->num, s->rank);
    msgl__linear_of_columns(f, &s->up, gates, ld, mixer, rows);
    f->k->streams.mix(f->x, mixer, normed, rows, s->num, s->hidden, out);
    f->arena->used = mark;
}

void msgl__streams_read(msgl_forward *f, const msgl_gated_streams *s, const void *streams,
                        int32_t rows, void *gates, void *out)
{
    const size_t width = (size_t)s->num * (size_t)s->hidden;
    for (int32_t r = 0; r < rows; r += ROWS) {
        read_block(f, s, msgl__row(f, streams, r, width), rows_of(rows - r),
                   msgl__row(f, gates, r, msgl__streams_gates(s)),
                   msgl__row(f, out, r, (size_t)s->hidden));
    }
}

void msgl__streams_write(msgl_forward *f, const msgl_gated_streams *s, const void *gates,
                         const void *block, int32_t rows, void *streams)
{
    const char *weights = (const char *)gates + (size_t)s->rank * msgl__dtype_size(f->x->act);
    f->k->streams.inject(f->x, weights, msgl__streams_gates(s), block, rows, s->num, s->hidden,
                         streams);
}
