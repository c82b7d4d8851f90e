// SPDX-License-Identifier: Apache-2.0
//
// Keys that stand for windows of tokens (kernel/compress.h). What a window's key is made of is kept
// for each token in a group of its own, as long as an open window may need it; the key itself lies
// where the window's last token has its slot. So a key depends on nothing but slots: it does not
// matter how a request was cut into chunks, whether its prefix was cached, or what else is in a
// step, and there is no state beside the pages.
#ifndef MSGL_LAYERS_COMPRESSED_KEYS_H
#define MSGL_LAYERS_COMPRESSED_KEYS_H

#include "layers/forward.h"

// What layers keep of each token for keys to come; several kinds of keys may share the rows.
typedef struct msgl_raw_rows {
    int32_t width;        // elements of a row
    int32_t group, layer; // where they are kept
} msgl_raw_rows;

typedef struct msgl_compressed_keys {
    int32_t rate; // tokens of a window; 0: there are no such keys
    int32_t dim, half;
    bool two_series;
    int32_t at;           // elements of a raw row in front of this kind's
    float *bias;          // [rate, series * dim]
    float *norm;          // [dim]
    float eps;            // of the norm
    int32_t group, layer; // where the keys go
} msgl_compressed_keys;

// Elements of a raw row for keys of dim elements.
static inline int32_t msgl__raw_width(int32_t dim, bool two_series)
{
    return (two_series ? 4 : 2) * dim;
}

// Tokens in front of its own that a token reads, which ends a window.
static inline int32_t msgl__raw_window(int32_t rate, bool two_series)
{
    return (two_series ? 2 : 1) * rate - 1;
}

// The step's tokens' rows `in`, ld elements from one to the next.
void msgl__store_raw_rows(msgl_forward *f, const msgl_raw_rows *r, const void *in, size_t ld);
// The keys of all windows that end among the step's tokens, whose rows are stored. rope: of the
// step's, by whose angles keys rotate.
void msgl__compress_keys(msgl_forward *f, const msgl_compressed_keys *k, const msgl_raw_rows *rows,
                         int32_t rope);

#endif
