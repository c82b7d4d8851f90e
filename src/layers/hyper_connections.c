// SPDX-License-Identifier: Apache-2.0
#include "layers/hyper_connections.h"

static msgl_hyper weights_of(const msgl_hyper_connection *h)
{
    return (msgl_hyper){.streams = h->streams,
                        .dim = h->dim,
                        .iterations = h->iterations,
                        .eps = h->eps,
                        .norm_eps = h->norm_eps,
                        .fn = h->fn,
                        .base = h->base,
                        .scale = h->scale};
}

void msgl__hyper_open(msgl_forward *f, const msgl_hyper_connection *h, const void *streams,
                      float *mix, void *out, void *result, int32_t rows)
{
    const msgl_hyper w = weights_of(h);
    f->k->hyper.open(f->x, &w, streams, rows, mix, out, result);
}

void msgl__hyper_close(msgl_forward *f, const msgl_hyper_connection *h, const float *mix,
                       const void *result, void *streams, int32_t rows)
{
    const msgl_hyper w = weights_of(h);
    f->k->hyper.close(f->x, &w, mix, result, rows, streams);
}

void msgl__hyper_head(msgl_forward *f, const msgl_hyper_connection *h, const void *streams,
                      void *out, int32_t rows)
{
    const msgl_hyper w = weights_of(h);
    f->k->hyper.head(f->x, &w, streams, rows, out);
}
