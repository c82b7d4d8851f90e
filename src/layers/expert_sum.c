// SPDX-License-Identifier: Apache-2.0
#include "layers/expert_sum.h"

#include <string.h>

#include "distributed/sum.h"

// Two ranks sum in one shot, which moves no more and waits once.
enum { LEAST_RANKS = 3 };

static int32_t ranks_of(const msgl_moe_experts *e)
{
    return e->num_experts / e->own;
}

bool msgl__experts_exchange(const msgl_moe_experts *e)
{
    return ranks_of(e) >= LEAST_RANKS;
}

size_t msgl__expert_sum_bytes(const msgl_moe_experts *e, int32_t rows)
{
    const size_t n = (size_t)rows, ranks = (size_t)ranks_of(e), hidden = (size_t)e->down[0].n;
    const size_t padded_rows = ranks * (size_t)msgl__ceil_div(rows, (int32_t)ranks);
    if (!msgl__experts_exchange(e)) return 0;
    return msgl__round_up(n * sizeof(uint64_t), 64) +
           msgl__round_up(ranks * ranks * sizeof(size_t), 64) +
           msgl__activation_bytes(n, hidden, MSGL_F32) +
           2 * msgl__activation_bytes(padded_rows, hidden, MSGL_F32);
}

typedef struct exchange {
    msgl_forward *f;
    int ranks;
    int32_t rows;
    int32_t shard_rows; // rows that each rank sums; the last one may have fewer
    size_t hidden;
    uint64_t *with;  // [rows] bit r: rank r has experts of the row
    size_t *counts;  // [ranks, ranks] msgl_comm_ops.all_to_all
    float *packed;   // [rows, hidden] those that this rank has
    float *received; // [ranks * shard_rows, hidden]
    float *sums;     // the same
} exchange;

static bool take(exchange *x)
{
    msgl_forward *f = x->f;
    const size_t ranks = (size_t)x->ranks, padded_rows = ranks * (size_t)x->shard_rows;
    x->with = msgl__arena_alloc(f->arena, (size_t)x->rows * sizeof *x->with);
    x->counts = msgl__arena_alloc(f->arena, ranks * ranks * sizeof *x->counts);
    x->packed = msgl__take_rows(f, (size_t)x->rows, x->hidden, MSGL_F32);
    x->received = msgl__take_rows(f, padded_rows, x->hidden, MSGL_F32);
    x->sums = msgl__take_rows(f, padded_rows, x->hidden, MSGL_F32);
    if (x->with == NULL || x->counts == NULL) f->x->status = MSGL_EINTERNAL;
    return x->with != NULL && x->counts != NULL && x->packed != NULL && x->received != NULL &&
           x->sums != NULL;
}

// Who has what; false: too many have too much for an exchange to be faster.
static bool find_rows(exchange *x, const msgl_moe_experts *e, const int32_t *ids)
{
    const int32_t top_k = e->router.top_k;
    int64_t sent = 0;
    for (int32_t r = 0; r < x->rows; r++) {
        x->with[r] = 0;
        for (int32_t c = 0; c < top_k; c++) {
            x->with[r] |= (uint64_t)1 << (ids[(size_t)r * (size_t)top_k + (size_t)c] / e->own);
        }
        sent += __builtin_popcountll(x->with[r]);
    }
    return 2 * sent <= (int64_t)x->rows * x->ranks;
}

static void pack(exchange *x, const float *partial)
{
    const int rank = x->f->comm->rank;
    float *to = x->packed;
    memset(x->counts, 0, (size_t)x->ranks * (size_t)x->ranks * sizeof *x->counts);
    for (int32_t r = 0; r < x->rows; r++) {
        for (int s = 0; s < x->ranks; s++) {
            if ((x->with[r] >> s & 1) != 0)
                x->counts[s * x->ranks + r / x->shard_rows] += x->hidden;
        }
        if ((x->with[r] >> rank & 1) == 0) continue;
        memcpy(to, partial + (size_t)r * x->hidden, x->hidden * sizeof *to);
        to += x->hidden;
    }
}

// Sums this rank's shard of the rows, from what the others have sent: of 10 rows over 4 ranks
// shard_rows is 3, and rank 3 sums row 9 alone.
static float *sum_shard(const exchange *x)
{
    const float *next[MSGL_GROUP_MAX_SIZE], *in[MSGL_GROUP_MAX_SIZE];
    const int rank = x->f->comm->rank;
    const int32_t first = rank * x->shard_rows, behind = first + x->shard_rows;
    float *shard = x->sums + (size_t)first * x->hidden, *out = shard;
    size_t at = 0;
    for (int s = 0; s < x->ranks; s++) {
        next[s] = x->received + at;
        at += x->counts[s * x->ranks + rank];
    }
    for (int32_t r = first; r < behind && r < x->rows; r++, out += x->hidden) {
        int n = 0;
        for (int s = 0; s < x->ranks; s++) {
            if ((x->with[r] >> s & 1) == 0) continue;
            in[n++] = next[s];
            next[s] += x->hidden;
        }
        if (n == 1)
            memcpy(out, in[0], x->hidden * sizeof *out);
        else
            msgl__sum_rows(in, n, x->hidden, out);
    }
    return shard;
}

void *msgl__expert_sum(msgl_forward *f, const msgl_moe_experts *e, const int32_t *ids,
                       void *partial, int32_t rows)
{
    msgl_comm *c = f->comm;
    exchange x = {.f = f,
                  .ranks = c->size,
                  .rows = rows,
                  .shard_rows = msgl__ceil_div(rows, c->size),
                  .hidden = (size_t)e->down[0].n};
    if (c->ops->all_to_all == NULL) return NULL;
    // Of a step that has failed nobody knows the experts.
    if (rows < c->size || c->size != ranks_of(e) || f->x->status != 0) return NULL;
    if (!take(&x) || !find_rows(&x, e, ids)) return NULL;
    pack(&x, partial);
    c->ops->all_to_all(c, f->x, x.packed, x.counts, x.received);
    const float *shard = sum_shard(&x);
    c->ops->all_gather(c, f->x, shard, (size_t)x.shard_rows * x.hidden, x.sums);
    return x.sums;
}
