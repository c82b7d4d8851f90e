// SPDX-License-Identifier: Apache-2.0
#include "attention/fi/plan.h"

#include <minisgl/minisgl.h>

#include "core/round.h"

enum { MIN_CHUNK = 128 }; // keys; shorter chunks cost more in merging than they win

int32_t msgl__fi_q_tile(const msgl_fi_plan_limits *l, int32_t bs, const int32_t *qo_indptr)
{
    const int64_t packed = (int64_t)(qo_indptr[bs] - qo_indptr[0]) * l->group;
    const int64_t mean = packed / (bs > 0 ? bs : 1);
    if (mean > 64 && l->head_dim < 256) return MSGL_FI_MAX_Q_TILE;
    return mean > 16 ? 64 : 16;
}

static int32_t q_tiles(const msgl_fi_plan_limits *l, const int32_t *qo_indptr, int32_t i,
                       int32_t q_tile)
{
    return msgl__ceil_div((qo_indptr[i + 1] - qo_indptr[i]) * l->group, q_tile);
}

// Chunks of a request; at least one, so that a request without keys still gets its (empty) result.
static int32_t kv_chunks(const int32_t *kv_indptr, int32_t i, int32_t chunk)
{
    const int32_t len = kv_indptr[i + 1] - kv_indptr[i];
    return len > 0 ? msgl__ceil_div(len, chunk) : 1;
}

static int64_t count_works(const msgl_fi_plan_limits *l, int32_t bs, const int32_t *qo_indptr,
                           const int32_t *kv_indptr, int32_t q_tile, int32_t chunk)
{
    int64_t n = 0;
    for (int32_t i = 0; i < bs; i++) {
        n += (int64_t)q_tiles(l, qo_indptr, i, q_tile) * kv_chunks(kv_indptr, i, chunk);
    }
    return n;
}

static int32_t split_limit(const msgl_fi_plan_limits *l)
{
    const int32_t n = l->max_grid / l->num_kv_heads;
    return n > 1 ? n : 1;
}

int64_t msgl__fi_max_works(const msgl_fi_plan_limits *l, int32_t max_bs, int32_t max_tokens)
{
    const int64_t unsplit = (int64_t)max_tokens * l->group / 16 + max_bs;
    return unsplit > split_limit(l) ? unsplit : split_limit(l);
}

// The smallest chunk with which the list still fits the workers; if even whole requests do not, the
// longest request's length (no split).
static int32_t search_chunk(const msgl_fi_plan_limits *l, int32_t bs, const int32_t *qo_indptr,
                            const int32_t *kv_indptr, int32_t q_tile, int32_t max_len)
{
    int32_t low = MIN_CHUNK, high = max_len > MIN_CHUNK ? max_len : MIN_CHUNK;
    while (low < high) {
        const int32_t mid = low + (high - low) / 2;
        if (count_works(l, bs, qo_indptr, kv_indptr, q_tile, mid) > split_limit(l)) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

static void fill_merge(int32_t bs, const int32_t *qo_indptr, const int32_t *kv_indptr,
                       msgl_fi_plan *p)
{
    p->o_indptr[0] = p->merge_indptr[0] = 0;
    int32_t row = 0;
    for (int32_t i = 0; i < bs; i++) {
        const int32_t tokens = qo_indptr[i + 1] - qo_indptr[i];
        const int32_t chunks = kv_chunks(kv_indptr, i, p->kv_chunk_size);
        for (int32_t t = 0; t < tokens; t++, row++) {
            p->merge_indptr[row + 1] = p->merge_indptr[row] + chunks;
        }
        p->o_indptr[i + 1] = p->o_indptr[i] + tokens * chunks;
    }
}

int msgl__fi_plan(const msgl_fi_plan_limits *l, int32_t bs, const int32_t *qo_indptr,
                  const int32_t *kv_indptr, msgl_fi_plan *p)
{
    int32_t max_len = 1;
    for (int32_t i = 0; i < bs; i++) {
        const int32_t len = kv_indptr[i + 1] - kv_indptr[i];
        max_len = len > max_len ? len : max_len;
    }
    p->q_tile = msgl__fi_q_tile(l, bs, qo_indptr);
    p->kv_chunk_size = l->fixed_chunk > 0
                           ? l->fixed_chunk
                           : search_chunk(l, bs, qo_indptr, kv_indptr, p->q_tile, max_len);
    p->split_kv = p->kv_chunk_size < max_len;
    const int64_t works = count_works(l, bs, qo_indptr, kv_indptr, p->q_tile, p->kv_chunk_size);
    if (works > l->max_works) return MSGL_ELIMIT;
    int32_t n = 0;
    for (int32_t i = 0; i < bs; i++) {
        const int32_t tiles = q_tiles(l, qo_indptr, i, p->q_tile);
        const int32_t chunks = kv_chunks(kv_indptr, i, p->kv_chunk_size);
        for (int32_t t = 0; t < tiles; t++) {
            for (int32_t c = 0; c < chunks; c++, n++) {
                p->request_indices[n] = i;
                p->qo_tile_indices[n] = t;
                p->kv_tile_indices[n] = c;
            }
        }
    }
    p->num_works = n;
    fill_merge(bs, qo_indptr, kv_indptr, p);
    return 0;
}
