// SPDX-License-Identifier: Apache-2.0
//
// How the decode kernel shares out its work, in arithmetic that every CTA does for itself: nothing
// is planned on the host, so a captured graph follows the lengths in device memory. The same code
// runs in the host tests, which check that every (request, key) is visited once.
//
// Keys are counted in tiles of MSGL_FA_TILE at absolute positions. An item is one request and one
// KV head; items lie end to end on a line of units, heads outer, requests inner: `overhead` units
// for what an item costs anyway, then one unit per tile. The line is cut into equal slices, one per
// CTA. (So CTAs that work on different heads of a request do so at about the same time, which
// memory likes.) A cut that falls close to an item's ends moves to that end (snap); an item with
// cuts inside has several splits, which the last CTA to arrive merges in order.
//
// Deterministic: an item is cut at fixed positions that depend on its request's length only, each
// chunk is a split of its own, and the line only decides which CTA computes it.
#ifndef MSGL_CUDA_ATTN_DECODE_SPLIT_H
#define MSGL_CUDA_ATTN_DECODE_SPLIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define MSGL_FA_FN __host__ __device__ static inline
#else
#define MSGL_FA_FN static inline
#endif

enum {
    MSGL_FA_TILE = 16,         // keys
    MSGL_FA_MAX_CHUNKS = 16,   // of a request, deterministic
    MSGL_FA_CHUNK_TILES = 32,  // at least
    MSGL_FA_LONG_SLICE = 1024, // units; the cost of cutting items does not show
};

typedef struct msgl_fa_split {
    int32_t batch, heads;
    int32_t window;   // as in msgl_cuda_attn_call
    int32_t overhead; // units per item
    // Of this batch:
    int32_t head_units; // of one head's items
    int32_t units;      // heads times that: the line
    int32_t slices;     // >= 1
    // The line is cut span by span, heads or all at once; `each` units per slice, one more in the
    // first `rest` slices of a span.
    int32_t span_units, span_slices, each, rest;
    int32_t snap; // units
} msgl_fa_split;

// The walk along one slice.
typedef struct msgl_fa_walk {
    int32_t slice, begin, end; // range of units
    int32_t head, req, base;   // the current item, and the unit at which it starts
    int32_t len, first, tiles; // of it: tiles [first, first + tiles)
    int32_t after;             // length of the next item's request, read ahead
    int32_t next;              // tile (from first) from which the next piece may start
    int32_t lo, hi;            // the piece: tiles [lo, hi) from first
} msgl_fa_walk;

// Which split of its item a piece is: number `split` of num_splits. Its partial result goes to slot
// + split * step for split > 0, to first_slot for split 0: with first_slot 7, slot 6 and step 2,
// splits 0, 1, 2 lie at 7, 8, 10. Arrivals are counted at counter. Deterministic: within the
// request's own region.
typedef struct msgl_fa_kv_split {
    int32_t split, num_splits, counter, first_slot, slot, step;
} msgl_fa_kv_split;

// First key that the query at len - 1 sees. Slots of keys before it may be another request's.
MSGL_FA_FN int32_t msgl__fa_first_key(int32_t len, int32_t window)
{
    return window >= 0 && len - 1 > window ? len - 1 - window : 0;
}

MSGL_FA_FN int32_t msgl__fa_tiles(int32_t len, int32_t window, int32_t *first)
{
    *first = msgl__fa_first_key(len, window) / MSGL_FA_TILE;
    return len <= 0 ? 0 : (len + MSGL_FA_TILE - 1) / MSGL_FA_TILE - *first;
}

MSGL_FA_FN int32_t msgl__fa_units(const msgl_fa_split *s, int32_t len)
{
    int32_t first;
    return msgl__fa_tiles(len, s->window, &first) + s->overhead;
}

// Tiles per chunk for a request of len keys, deterministic.
MSGL_FA_FN int32_t msgl__fa_chunk(int32_t len)
{
    int32_t chunk = MSGL_FA_CHUNK_TILES;
    while (len > chunk * MSGL_FA_TILE * MSGL_FA_MAX_CHUNKS) chunk *= 2;
    return chunk;
}

// For items of head_units per head. As many slices as CTAs, or fewer if each would have less than
// min_units and there are CTAs for all items; a whole number per head, and of items per slice, if
// that costs little and slices are not long, so that a batch of equal lengths is cut between items.
MSGL_FA_FN void msgl__fa_split_set(msgl_fa_split *s, int32_t head_units, int32_t max_slices,
                                   int32_t min_units)
{
    s->head_units = head_units;
    s->units = head_units * s->heads;
    int32_t per_head = head_units / min_units;
    if (per_head < s->batch) per_head = s->batch;
    const int32_t most = max_slices / s->heads;
    if (per_head < most) {
        s->slices = per_head * s->heads;
    } else {
        const int32_t items = most > 0 ? (s->batch + most - 1) / most : 0; // per slice
        per_head = items > 1 ? (s->batch + items - 1) / items : most;
        s->slices = per_head * s->heads;
        if (s->slices < max_slices - max_slices / 16 ||
            s->units / max_slices > MSGL_FA_LONG_SLICE) {
            s->slices = max_slices;
        }
    }
    const bool by_head = s->slices == per_head * s->heads;
    s->span_units = by_head ? head_units : s->units;
    s->span_slices = by_head ? per_head : s->slices;
    s->each = s->span_units / s->span_slices;
    s->rest = s->span_units - s->each * s->span_slices;
    // In a batch of uneven requests, cuts that may move by an eighth of a slice all move to the
    // ends of items, and the fullest SM has 14 % more than the mean; so, 6 %. (The time of offline
    // batches is the same: docs/internals/fa-decode.md, step 12.)
    s->snap = s->each > MSGL_FA_LONG_SLICE ? s->each / 8 : min_units / 2;
    if (s->snap < 1) s->snap = 1;
}

// Unit at which slice `slice` starts.
MSGL_FA_FN int32_t msgl__fa_cut(const msgl_fa_split *s, int32_t slice)
{
    const int32_t span = slice / s->span_slices, i = slice - span * s->span_slices;
    return span * s->span_units + i * s->each + (i < s->rest ? i : s->rest);
}

// The first slice that starts at `unit` or behind it.
MSGL_FA_FN int32_t msgl__fa_first_slice(const msgl_fa_split *s, int32_t unit)
{
    const int32_t span = unit / s->span_units, at = unit - span * s->span_units;
    const int32_t longer = s->rest * (s->each + 1);
    const int32_t i = at <= longer ? (at + s->each) / (s->each + 1)
                                   : s->rest + (at - longer + s->each - 1) / s->each;
    return span * s->span_slices + i;
}

// Where a cut inside the item really is, as a tile from its first one.
MSGL_FA_FN int32_t msgl__fa_cut_tile(const msgl_fa_split *s, const msgl_fa_walk *w, int32_t cut)
{
    const int32_t tile = cut - w->base - s->overhead;
    return tile < s->snap ? 0 : w->tiles - tile < s->snap ? w->tiles : tile;
}

MSGL_FA_FN int32_t msgl__fa_after(const msgl_fa_split *s, int32_t req)
{
    return req + 1 < s->batch ? req + 1 : 0;
}

// Starts slice `slice` at the item that holds its first unit: head, and req, of len keys, starting
// at unit base.
MSGL_FA_FN void msgl__fa_walk_start(const msgl_fa_split *s, const int32_t *seqlens, int32_t slice,
                                    int32_t head, int32_t req, int32_t base, int32_t len,
                                    msgl_fa_walk *w)
{
    w->slice = slice;
    w->begin = msgl__fa_cut(s, slice);
    w->end = msgl__fa_cut(s, slice + 1);
    w->head = head;
    w->req = req;
    w->base = base;
    w->len = len;
    w->tiles = msgl__fa_tiles(len, s->window, &w->first);
    w->after = seqlens[msgl__fa_after(s, req)];
    w->next = w->lo = w->hi = 0;
}

// The piece of the item that lies in the slice; false: none does.
MSGL_FA_FN bool msgl__fa_piece(const msgl_fa_split *s, msgl_fa_walk *w)
{
    const int32_t item_end = w->base + s->overhead + w->tiles;
    w->lo = w->begin <= w->base ? 0 : msgl__fa_cut_tile(s, w, w->begin);
    w->hi = w->end >= item_end ? w->tiles : msgl__fa_cut_tile(s, w, w->end);
    w->next = w->tiles;
    return w->lo < w->hi;
}

// The next chunk of the item; false: its first unit is not in the slice.
MSGL_FA_FN bool msgl__fa_chunk_piece(const msgl_fa_split *s, msgl_fa_walk *w)
{
    const int32_t chunk = msgl__fa_chunk(w->len);
    w->lo = w->next;
    w->hi = ((w->first + w->lo) / chunk + 1) * chunk - w->first;
    if (w->hi > w->tiles) w->hi = w->tiles;
    w->next = w->hi;
    const int32_t unit = w->base + (w->lo > 0 ? s->overhead + w->lo : 0);
    return unit >= w->begin && unit < w->end;
}

// Moves to the slice's next piece; false: there is none.
MSGL_FA_FN bool msgl__fa_walk_next(const msgl_fa_split *s, bool deterministic,
                                   const int32_t *seqlens, msgl_fa_walk *w)
{
    for (;;) {
        if (w->next >= w->tiles) {
            w->base += s->overhead + w->tiles;
            if (w->base >= w->end) return false;
            w->req = msgl__fa_after(s, w->req);
            if (w->req == 0) w->head++;
            w->len = w->after;
            w->tiles = msgl__fa_tiles(w->len, s->window, &w->first);
            w->after = seqlens[msgl__fa_after(s, w->req)];
            w->next = 0;
            if (w->tiles == 0) continue;
        }
        if (deterministic ? msgl__fa_chunk_piece(s, w) : msgl__fa_piece(s, w)) return true;
    }
}

// Which split of its item the piece is.
MSGL_FA_FN msgl_fa_kv_split msgl__fa_kv_split(const msgl_fa_split *s, bool deterministic,
                                              const msgl_fa_walk *w)
{
    msgl_fa_kv_split p = {0, 1, 0, 0, 0, 0};
    if (w->lo == 0 && w->hi == w->tiles) return p;
    if (deterministic) {
        const int32_t chunk = msgl__fa_chunk(w->len), from = w->first / chunk;
        p.split = (w->first + w->lo) / chunk - from;
        p.num_splits = (w->first + w->tiles - 1) / chunk - from + 1;
        p.counter = p.first_slot = p.slot = w->head;
        p.step = s->heads;
    } else {
        // The first and the last slice that start inside the item.
        const int32_t low = w->base + s->overhead + s->snap;
        const int32_t high = w->base + s->overhead + w->tiles - s->snap;
        const int32_t cut = msgl__fa_first_slice(s, low);
        p.split = w->lo > 0 ? w->slice - cut + 1 : 0;
        p.num_splits = msgl__fa_first_slice(s, high + 1) - cut + 1;
        p.counter = cut - 1;
        p.first_slot = 2 * (cut - 1) + 1;
        p.slot = 2 * (cut - 1);
        p.step = 2;
    }
    return p;
}

MSGL_FA_FN int32_t msgl__fa_slot(const msgl_fa_kv_split *p, int32_t split)
{
    return split == 0 ? p->first_slot : p->slot + split * p->step;
}

#endif
