// SPDX-License-Identifier: Apache-2.0
//
// Hyper-connections: the residual as several streams, of which each block reads a mixture and which
// its result joins (kernel/hyper.h).
#ifndef MSGL_LAYERS_HYPER_CONNECTIONS_H
#define MSGL_LAYERS_HYPER_CONNECTIONS_H

#include "layers/forward.h"

// Of one block, or behind the last layer. streams 0: there is none.
typedef struct msgl_hyper_connection {
    int32_t streams, dim, iterations;
    float eps, norm_eps;
    float *fn, *base, *scale; // as in msgl_hyper
} msgl_hyper_connection;

// The streams before a block, [rows, streams * dim] -> what it reads, out [rows, dim], what its
// result joins by, mix [rows, msgl__hyper_mix], and zeros that it adds to, result [rows, dim].
void msgl__hyper_open(msgl_forward *f, const msgl_hyper_connection *h, const void *streams,
                      float *mix, void *out, void *result, int32_t rows);
// The block's result [rows, dim] joins the streams.
void msgl__hyper_close(msgl_forward *f, const msgl_hyper_connection *h, const float *mix,
                       const void *result, void *streams, int32_t rows);
// The streams behind the last layer -> out [rows, dim].
void msgl__hyper_head(msgl_forward *f, const msgl_hyper_connection *h, const void *streams,
                      void *out, int32_t rows);

#endif
