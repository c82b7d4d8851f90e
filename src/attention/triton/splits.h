// SPDX-License-Identifier: Apache-2.0
//
// How the triton backend cuts a request's keys for its answer: SGLang's formula, in arithmetic that
// the CPU's prepare and the GPU's kernels share. Lengths are those that a query sees: at most W + 1
// behind a window of W.
#ifndef MSGL_ATTENTION_TRITON_SPLITS_H
#define MSGL_ATTENTION_TRITON_SPLITS_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define MSGL_TRITON_FN __host__ __device__ static inline
#else
#define MSGL_TRITON_FN static inline
#endif

enum {
    MSGL_TRITON_MAX_SPLITS = 8,    // SGLang's --triton-attention-num-kv-splits
    MSGL_TRITON_HEADS = 16,        // query heads that read K and V together
    MSGL_TRITON_SPLIT_UNIT = 32,   // a split is so many keys or a multiple
    MSGL_TRITON_FIXED_SPLIT = 256, // keys, deterministic (as many splits as there may be)
};

// Keys per split before rounding, by two rules of which the one with more splits holds.
typedef struct msgl_triton_chunks {
    int32_t by_length; // long requests of a mixed batch take no longer than short ones
    int32_t by_cores;  // the grid fills the processors, more often the longer the requests are
} msgl_triton_chunks;

MSGL_TRITON_FN int32_t msgl__triton_div(int32_t a, int32_t b) // rounded up, for the device too
{
    return a / b + (a % b != 0);
}

MSGL_TRITON_FN int32_t msgl__triton_min(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

MSGL_TRITON_FN int32_t msgl__triton_seen(int32_t len, int32_t window)
{
    return window >= 0 && window < len ? window + 1 : len;
}

// For `batch` requests that see min_len to max_len keys, on so many multiprocessors. As
// get_num_kv_splits_triton of SGLang 0.5, except that no length is 0.
MSGL_TRITON_FN msgl_triton_chunks msgl__triton_chunks(int32_t batch, int32_t min_len,
                                                      int32_t max_len, int32_t num_q_heads,
                                                      int32_t group, int32_t cores)
{
    // A quarter's difference is none.
    if ((int64_t)max_len * 8 < (int64_t)min_len * 10) min_len = max_len;
    const int32_t ratio = msgl__triton_div(max_len, min_len);
    const int32_t blocks =
        msgl__triton_div(num_q_heads, msgl__triton_min(group, MSGL_TRITON_HEADS));
    const float octaves = log2f((float)max_len / 64.f);
    const int32_t wanted = (int32_t)((float)cores * (octaves > 1.f ? octaves : 1.f));
    const int32_t fill = msgl__triton_div(wanted, batch * blocks);
    msgl_triton_chunks c;
    c.by_length = msgl__triton_div(max_len, msgl__triton_min(ratio, MSGL_TRITON_MAX_SPLITS));
    c.by_cores = msgl__triton_div(max_len, msgl__triton_min(fill, MSGL_TRITON_MAX_SPLITS));
    return c;
}

// Splits of a request that sees `len` keys, in [1, MAX_SPLITS].
MSGL_TRITON_FN int32_t msgl__triton_num_splits(msgl_triton_chunks c, int32_t len)
{
    const int32_t a = msgl__triton_div(len, c.by_length), b = msgl__triton_div(len, c.by_cores);
    return a > b ? a : b;
}

// The same of the request's length alone, so that its bits do not depend on the batch.
MSGL_TRITON_FN int32_t msgl__triton_fixed_splits(int32_t len)
{
    return msgl__triton_min(msgl__triton_div(len, MSGL_TRITON_FIXED_SPLIT), MSGL_TRITON_MAX_SPLITS);
}

// Keys [begin, end) of split `split` of n, of a request of len keys of which its query sees `seen`;
// empty where rounding leaves nothing for the last splits. A request with n = 0 is left out: its
// result is somebody else's (double sparsity).
typedef struct msgl_triton_range {
    int32_t begin, end;
} msgl_triton_range;

MSGL_TRITON_FN msgl_triton_range msgl__triton_range(int32_t len, int32_t seen, int32_t n,
                                                    int32_t split)
{
    const int32_t unit = MSGL_TRITON_SPLIT_UNIT;
    msgl_triton_range r;
    r.begin = r.end = len;
    if (split >= n) return r;
    const int32_t each = msgl__triton_div(msgl__triton_div(seen, n), unit) * unit;
    r.begin = len - seen + msgl__triton_min(split * each, seen);
    r.end = len - seen + msgl__triton_min((split + 1) * each, seen);
    return r;
}

#endif
