// SPDX-License-Identifier: Apache-2.0
//
// The decode kernel's sharing out of work, walked on the host for every CTA: each (head, request,
// tile) once, splits numbered without gaps, workspace slots never shared, load even, and
// deterministic the same chunks whatever else is in the batch.
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "core/mem.h"
#include "cuda/attn/decode/split.h"
#include "utils/random.h"

enum {
    MAX_BATCH = 64,
    MAX_HEADS = 8,
    MAX_LEN = 20000,
    MAX_GRID = 200,
    MAX_PIECES = MAX_BATCH * MAX_HEADS * MSGL_FA_MAX_CHUNKS + 2 * MAX_GRID,
};

typedef struct piece {
    int32_t head, req, lo, hi;
    msgl_fa_kv_split p;
} piece;

static uint64_t rng_state;

static int32_t rng_range(int32_t lo, int32_t hi)
{
    return lo + (int32_t)msgl__random_below(&rng_state, (uint64_t)(hi - lo) + 1);
}

// All slices' pieces; *most gets the largest number of units of one.
static int walk_all(const msgl_fa_split *s, bool deterministic, const int32_t *lens, piece *out,
                    int max, int64_t *most)
{
    int n = 0;
    *most = 0;
    for (int32_t slice = 0; slice < s->slices; slice++) {
        const int32_t begin = msgl__fa_cut(s, slice), head = begin / s->head_units;
        int32_t req = 0, base = head * s->head_units;
        while (base + msgl__fa_units(s, lens[req]) <= begin) {
            base += msgl__fa_units(s, lens[req++]);
        }
        msgl_fa_walk w;
        msgl__fa_walk_start(s, lens, slice, head, req, base, lens[req], &w);
        int64_t units = 0;
        while (msgl__fa_walk_next(s, deterministic, lens, &w)) {
            assert_true(n < max);
            out[n++] = (piece){.head = w.head,
                               .req = w.req,
                               .lo = w.first + w.lo,
                               .hi = w.first + w.hi,
                               .p = msgl__fa_kv_split(s, deterministic, &w)};
            units += w.hi - w.lo + (w.lo == 0 ? s->overhead : 0);
        }
        if (units > *most) *most = units;
    }
    return n;
}

static int compare_pieces(const void *pa, const void *pb)
{
    const piece *a = pa, *b = pb;
    if (a->head != b->head) return a->head - b->head;
    if (a->req != b->req) return a->req - b->req;
    return a->lo - b->lo;
}

// One item's pieces: p[0, n).
static void check_item(const msgl_fa_split *s, bool deterministic, int32_t len, const piece *p,
                       int n, uint8_t *slots, uint8_t *counters)
{
    const int32_t key = s->window >= 0 && len - 1 > s->window ? len - 1 - s->window : 0;
    // Deterministic: every request has a region of its own.
    const int32_t region = deterministic ? p->req * s->heads * MSGL_FA_MAX_CHUNKS : 0;
    int32_t tile = key / MSGL_FA_TILE;
    for (int i = 0; i < n; i++) {
        assert_int_equal(p[i].lo, tile);
        assert_true(p[i].hi > tile);
        tile = p[i].hi;
        assert_int_equal(p[i].p.split, i);
        assert_int_equal(p[i].p.num_splits, n);
        assert_int_equal(p[i].p.counter, p[0].p.counter);
        if (n == 1) continue;
        const int32_t slot = msgl__fa_slot(&p[i].p, i);
        assert_in_range(slot, 0,
                        deterministic ? s->heads * MSGL_FA_MAX_CHUNKS - 1 : 2 * s->slices - 1);
        assert_int_equal(slots[region + slot]++, 0);
    }
    assert_int_equal(tile, (len + MSGL_FA_TILE - 1) / MSGL_FA_TILE);
    if (n > 1) {
        assert_in_range(p->p.counter, 0, deterministic ? s->heads - 1 : s->slices - 1);
        assert_int_equal(counters[region + p->p.counter]++, 0);
    }
}

static void check_pieces(const msgl_fa_split *s, bool deterministic, const int32_t *lens, piece *p,
                         int n)
{
    static uint8_t slots[MAX_PIECES], counters[MAX_PIECES];
    memset(slots, 0, sizeof slots);
    memset(counters, 0, sizeof counters);
    qsort(p, (size_t)n, sizeof *p, compare_pieces);
    int at = 0;
    for (int32_t head = 0; head < s->heads; head++) {
        for (int32_t req = 0; req < s->batch; req++) {
            if (lens[req] == 0) continue;
            const int first = at;
            while (at < n && p[at].head == head && p[at].req == req) at++;
            assert_true(at > first);
            check_item(s, deterministic, lens[req], p + first, at - first, slots, counters);
        }
    }
    assert_int_equal(at, n);
}

static void set_units(msgl_fa_split *s, const int32_t *lens, int32_t grid, int32_t min_units)
{
    int32_t units = 0;
    for (int32_t i = 0; i < s->batch; i++) units += msgl__fa_units(s, lens[i]);
    msgl__fa_split_set(s, units, grid, min_units);
}

static void test_every_key_once(void **state)
{
    (void)state;
    piece *p = msgl__calloc(MAX_PIECES, sizeof *p);
    assert_non_null(p);
    rng_state = 11;
    for (int round = 0; round < 2000; round++) {
        int32_t lens[MAX_BATCH];
        msgl_fa_split s = {.batch = rng_range(1, MAX_BATCH),
                           .heads = rng_range(1, MAX_HEADS),
                           .window = round % 3 == 0 ? rng_range(0, 3000) : -1,
                           .overhead = rng_range(1, 8)};
        const bool deterministic = round % 2;
        const int32_t longest = 1 << rng_range(0, 14);
        for (int i = 0; i < s.batch; i++) {
            lens[i] = rng_range(0, 9) == 0 ? rng_range(0, 1) : rng_range(1, longest);
        }
        set_units(&s, lens, rng_range(1, MAX_GRID), rng_range(1, 40));
        int64_t most;
        const int n = walk_all(&s, deterministic, lens, p, MAX_PIECES, &most);
        check_pieces(&s, deterministic, lens, p, n);
        const int64_t fair = s.units / s.slices + 1;
        // What snapping adds at both ends; or one chunk that starts inside and ends outside.
        const int64_t slack =
            deterministic ? msgl__fa_chunk(MAX_LEN) : 2 * (int64_t)(s.snap + 1 + s.overhead);
        assert_true(most <= fair + slack);
    }
    msgl__free(p);
}

static void test_same_chunks_in_any_batch(void **state)
{
    (void)state;
    static piece alone[256], with[4096];
    for (int32_t len = 1; len < MAX_LEN; len += 487) {
        msgl_fa_split s = {.batch = 1, .heads = 2, .window = -1, .overhead = 5};
        set_units(&s, &len, 132, 21);
        int64_t most;
        const int n = walk_all(&s, true, &len, alone, 256, &most);
        check_pieces(&s, true, &len, alone, n);
        const int32_t lens[9] = {17, 5000, 1, len, 999, 12345, 64, 2, 3};
        s.batch = 9;
        set_units(&s, lens, 64, 9);
        const int m = walk_all(&s, true, lens, with, 4096, &most);
        check_pieces(&s, true, lens, with, m);
        int at = 0;
        for (int i = 0; i < m; i++) {
            if (with[i].req != 3) continue;
            assert_true(at < n);
            assert_int_equal(with[i].head, alone[at].head);
            assert_int_equal(with[i].lo, alone[at].lo);
            assert_int_equal(with[i].hi, alone[at].hi);
            assert_int_equal(with[i].p.num_splits, alone[at++].p.num_splits);
        }
        assert_int_equal(at, n);
    }
}

static void test_small_batches_use_few_ctas(void **state)
{
    (void)state;
    msgl_fa_split s = {.batch = 1, .heads = 8, .window = -1, .overhead = 5};
    const int32_t len = 1, longer = 8192;
    set_units(&s, &len, 132, 24);
    assert_int_equal(s.slices, 8);
    set_units(&s, &longer, 132, 24);
    assert_int_equal(s.slices, 128);
    s.heads = 40;
    set_units(&s, &longer, 132, 24);
    assert_int_equal(s.slices, 132);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_key_once),
                                       cmocka_unit_test(test_same_chunks_in_any_batch),
                                       cmocka_unit_test(test_small_batches_use_few_ctas)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
