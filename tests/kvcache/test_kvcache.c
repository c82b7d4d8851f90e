// SPDX-License-Identifier: Apache-2.0
//
// Pool arithmetic, page table, and the prefix cache's behaviour case by case.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "kvcache/cache.h"
#include "kvcache/kvcache.h"

static void test_pool_bytes(void **state)
{
    (void)state;
    msgl_kv_pool p = {.dtype = MSGL_BF16,
                      .num_layers = 3,
                      .num_pages = 7,
                      .page_size = 16,
                      .num_kv_heads = 2,
                      .head_dim = 64};
    assert_int_equal(msgl__kv_pool_bytes(&p), (size_t)2 * 3 * 8 * 16 * 2 * 64 * 2);
    char base;
    p.base = &base;
    // The last element of V of the last layer ends where the pool ends.
    const char *end = (char *)msgl__kv_v(&p, 2) + (size_t)8 * 16 * msgl__kv_slot_stride(&p) * 2;
    assert_int_equal(end - &base, msgl__kv_pool_bytes(&p));
    p.num_layers = p.num_pages = p.page_size = p.num_kv_heads = p.head_dim = INT32_MAX;
    assert_int_equal(msgl__kv_pool_bytes(&p), 0);
    p.head_dim = 0;
    assert_int_equal(msgl__kv_pool_bytes(&p), 0);
}

static void test_page_table(void **state)
{
    (void)state;
    msgl_page_table t;
    msgl_err err;
    assert_int_equal(msgl__page_table_create(3, 33, 640, &t, &err), 0);
    assert_int_equal(t.stride, 64);
    for (int32_t r = 0; r <= 3; r++) {
        for (int32_t c = 0; c < 64; c++) assert_int_equal(msgl__page_table_row(&t, r)[c], 640);
    }
    msgl__page_table_destroy(&t);
    assert_null(t.slots);
    assert_int_equal(msgl__page_table_create(0, 33, 640, &t, &err), MSGL_EINVAL);
    assert_int_equal(msgl__page_table_create(1, INT32_MAX, 0, &t, &err), MSGL_EINVAL);
    assert_int_equal(msgl__page_table_create(1, 0, 0, &t, NULL), MSGL_EINVAL);
    msgl__mem_fail_from(1);
    assert_int_equal(msgl__page_table_create(1, 32, 0, &t, &err), MSGL_ENOMEM);
    msgl__mem_fail_from(0);
    assert_null(t.slots);
}

// Every failing allocation of the creation is an error, and nothing leaks (ASan).
static void test_create_fails(void **state)
{
    (void)state;
    msgl_cache *c;
    msgl_err err;
    assert_int_equal(msgl__cache_create(MSGL_CACHE_RADIX, 0, 1, &c, &err), MSGL_EINVAL);
    assert_int_equal(msgl__cache_create(MSGL_CACHE_RADIX, 1, 0, &c, &err), MSGL_EINVAL);
    assert_int_equal(msgl__cache_create(MSGL_CACHE_NAIVE, 1 << 16, 1 << 15, &c, &err), MSGL_EINVAL);
    for (uint64_t nth = 1;; nth++) {
        msgl__mem_fail_from(nth);
        const int rc = msgl__cache_create(MSGL_CACHE_RADIX, 8, 4, &c, &err);
        msgl__mem_fail_from(0);
        if (rc == 0) break;
        assert_int_equal(rc, MSGL_ENOMEM);
        assert_null(c);
    }
    msgl__cache_destroy(c);
    msgl__cache_destroy(NULL);
}

// A cache of 8 pages of 4 tokens, and rows made by hand.
enum { PAGES = 8, PAGE = 4, ROW = PAGES * PAGE };

typedef struct seq {
    int32_t ids[ROW], slots[ROW], num_pages;
    msgl_prefix held;
} seq;

// Computes `text` as a request would: match, lock, pages for the rest.
static void begin(msgl_cache *c, seq *s, const char *text)
{
    const int32_t n = (int32_t)strlen(text);
    for (int32_t i = 0; i < n; i++) s->ids[i] = text[i];
    s->held = msgl__cache_match(c, s->ids, n, NULL);
    msgl__cache_lock(c, s->held);
    msgl__cache_slots(c, s->held, s->slots);
    s->num_pages = s->held.len / PAGE;
    while (s->num_pages * PAGE < n) {
        const int32_t page = msgl__cache_alloc(c);
        assert_true(page >= 0);
        for (int32_t i = 0; i < PAGE; i++) s->slots[s->num_pages * PAGE + i] = page * PAGE + i;
        s->num_pages++;
    }
}

static void end(msgl_cache *c, const seq *s, int32_t keep)
{
    msgl__cache_release(c, s->held, s->ids, s->slots, keep, s->num_pages);
    msgl_err err;
    if (msgl__cache_check(c, &err) != 0) fail_msg("%s", err.text);
}

static msgl_cache *make(msgl_cache_type type)
{
    msgl_cache *c;
    msgl_err err;
    assert_int_equal(msgl__cache_create(type, PAGES, PAGE, &c, &err), 0);
    msgl__cache_next_step(c);
    return c;
}

static void expect(const msgl_cache *c, int32_t free, int32_t cached, int32_t evictable)
{
    const msgl_cache_counts n = msgl__cache_count(c);
    assert_int_equal(n.total, PAGES);
    assert_int_equal(n.free, free);
    assert_int_equal(n.cached, cached);
    assert_int_equal(n.evictable, evictable);
}

static int32_t matched(const msgl_cache *c, const char *text)
{
    int32_t ids[ROW];
    const int32_t n = (int32_t)strlen(text);
    for (int32_t i = 0; i < n; i++) ids[i] = text[i];
    return msgl__cache_match(c, ids, n, NULL).len;
}

static void test_share_and_branch(void **state)
{
    (void)state;
    msgl_cache *c = make(MSGL_CACHE_RADIX);
    seq a, b;
    begin(c, &a, "aaaabbbbccc");
    expect(c, 5, 0, 0);
    end(c, &a, 11); // the partial page is not kept
    expect(c, 6, 2, 2);
    msgl__cache_next_step(c);
    assert_int_equal(matched(c, "aaaabbbbcccc"), 8);
    assert_int_equal(matched(c, "aaaabbb"), 4); // whole pages only
    assert_int_equal(matched(c, "baaabbbb"), 0);
    begin(c, &b, "aaaaxxxxyyyy");
    assert_int_equal(b.held.len, 4);
    assert_memory_equal(b.slots, a.slots, PAGE * sizeof b.slots[0]); // the same page
    expect(c, 4, 2, 1);                                              // bbbb may go, aaaa not
    end(c, &b, 12);
    expect(c, 4, 4, 4);
    msgl__cache_next_step(c);
    assert_int_equal(matched(c, "aaaabbbb"), 8);
    assert_int_equal(matched(c, "aaaaxxxxyyyy"), 12);
    assert_int_equal(msgl__cache_flush(c), 4);
    expect(c, 8, 0, 0);
    assert_int_equal(matched(c, "aaaabbbb"), 0);
    msgl__cache_destroy(c);
}

static void test_same_tokens_twice(void **state)
{
    (void)state;
    msgl_cache *c = make(MSGL_CACHE_RADIX);
    seq a, b;
    begin(c, &a, "aaaabbbb");
    begin(c, &b, "aaaabbbbcccc"); // at the same time: nothing to share yet
    expect(c, 3, 0, 0);
    msgl__cache_extend(c, &a.held, a.ids, a.slots, 8);
    msgl__cache_extend(c, &b.held, b.ids, b.slots, 12); // locked by a: goes on below it
    assert_int_equal(b.held.len, 12);
    expect(c, 3, 3, 0);
    end(c, &a, 8);
    expect(c, 3, 3, 0); // b holds all of it
    end(c, &b, 12);     // b's own copies of aaaa and bbbb become free
    expect(c, 5, 3, 3);
    msgl__cache_destroy(c);
}

// A page that nobody has locked counts as evictable; extend must not take it away.
static void test_extend_stops_at_unlocked(void **state)
{
    (void)state;
    msgl_cache *c = make(MSGL_CACHE_RADIX);
    seq a, b;
    begin(c, &a, "aaaabbbb");
    begin(c, &b, "aaaabbbbcccc");
    end(c, &a, 8);
    expect(c, 3, 2, 2);
    msgl__cache_extend(c, &b.held, b.ids, b.slots, 12);
    assert_int_equal(b.held.len, 0);
    expect(c, 3, 2, 2);
    end(c, &b, 12); // at the end it joins, in one go
    expect(c, 5, 3, 3);
    msgl__cache_destroy(c);
}

static void test_pending_is_not_matched(void **state)
{
    (void)state;
    msgl_cache *c = make(MSGL_CACHE_RADIX);
    seq a;
    begin(c, &a, "aaaabbbb");
    msgl__cache_extend(c, &a.held, a.ids, a.slots, 4);
    msgl__cache_next_step(c);
    msgl__cache_extend(c, &a.held, a.ids, a.slots, 8);
    int32_t pending;
    assert_int_equal(msgl__cache_match(c, a.ids, 8, &pending).len, 4);
    assert_int_equal(pending, 4);
    msgl__cache_next_step(c);
    assert_int_equal(msgl__cache_match(c, a.ids, 8, &pending).len, 8);
    assert_int_equal(pending, 0);
    end(c, &a, 8);
    msgl__cache_destroy(c);
}

static void test_eviction_order(void **state)
{
    (void)state;
    msgl_cache *c = make(MSGL_CACHE_RADIX);
    seq a, b, x;
    begin(c, &a, "aaaabbbbcccc");
    end(c, &a, 12);
    begin(c, &b, "ddddeeeeffff");
    end(c, &b, 12);
    msgl__cache_next_step(c);
    begin(c, &a, "aaaabbbb"); // a's first two pages are used again
    end(c, &a, 8);
    msgl__cache_next_step(c);
    begin(c, &x, "uuuuvvvvwwww"); // two free pages; the third takes the oldest leaf
    assert_int_equal(matched(c, "aaaabbbbcccc"), 8);
    assert_int_equal(matched(c, "ddddeeeeffff"), 12);
    end(c, &x, 0);
    begin(c, &x, "uuuuvvvvwwwwxxxxyyyy");
    assert_int_equal(matched(c, "ddddeeeeffff"), 4); // leaves first
    assert_int_equal(matched(c, "aaaabbbb"), 8);
    end(c, &x, 0);
    begin(c, &a, "aaaabbbb");
    begin(c, &x, "222233334444555566667777");
    // Six pages: everything but the two that a has locked.
    assert_int_equal(msgl__cache_alloc(c), -1);
    expect(c, 0, 2, 0);
    end(c, &x, 0);
    end(c, &a, 0); // 0 new tokens kept; what was cached stays
    expect(c, 6, 2, 2);
    msgl__cache_destroy(c);
}

// Pages that eviction frees come back in rising order, nearly all of a large pool.
static void test_order_after_eviction(void **state)
{
    (void)state;
    enum { N = 4096, NEW = 1000 };
    msgl_cache *c;
    assert_int_equal(msgl__cache_create(MSGL_CACHE_RADIX, N, 1, &c, NULL), 0);
    int32_t *ids = msgl__calloc(N, sizeof *ids), *slots = msgl__calloc(N, sizeof *slots);
    assert_non_null(ids);
    assert_non_null(slots);
    for (int32_t i = 0; i < N; i++) {
        ids[i] = i;
        slots[i] = msgl__cache_alloc(c);
        assert_int_equal(slots[i], i);
    }
    msgl__cache_release(c, (msgl_prefix){.node = MSGL_CACHE_ROOT}, ids, slots, N, N);
    msgl__cache_next_step(c);
    int rising = 0;
    for (int32_t i = 0, last = -1; i < NEW; i++) {
        const int32_t page = msgl__cache_alloc(c);
        rising += page == last + 1;
        last = page;
    }
    assert_in_range(rising, NEW * 95 / 100, NEW);
    msgl__free(ids);
    msgl__free(slots);
    msgl__cache_destroy(c);
}

static void test_locks_count(void **state)
{
    (void)state;
    msgl_cache *c = make(MSGL_CACHE_RADIX);
    seq a;
    begin(c, &a, "aaaabbbb");
    end(c, &a, 8);
    msgl__cache_next_step(c);
    const msgl_prefix p = msgl__cache_match(c, a.ids, 8, NULL);
    const msgl_prefix q = msgl__cache_match(c, a.ids, 4, NULL);
    msgl__cache_lock(c, p);
    msgl__cache_lock(c, p);
    msgl__cache_lock(c, q);
    expect(c, 6, 2, 0);
    msgl__cache_unlock(c, p);
    expect(c, 6, 2, 0);
    msgl__cache_unlock(c, p);
    expect(c, 6, 2, 1);
    assert_int_equal(msgl__cache_flush(c), 1);
    msgl__cache_unlock(c, q);
    expect(c, 7, 1, 1);
    assert_int_equal(msgl__cache_flush(c), 1);
    msgl__cache_destroy(c);
}

static void test_naive(void **state)
{
    (void)state;
    msgl_cache *c = make(MSGL_CACHE_NAIVE);
    seq a, b;
    begin(c, &a, "aaaabbbb");
    msgl__cache_extend(c, &a.held, a.ids, a.slots, 8);
    msgl__cache_next_step(c);
    begin(c, &b, "aaaabbbbcccc");
    assert_int_equal(b.held.len, 0);
    expect(c, 3, 0, 0);
    end(c, &a, 8);
    end(c, &b, 12);
    expect(c, 8, 0, 0);
    assert_int_equal(msgl__cache_flush(c), 0);
    msgl__cache_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool_bytes),
        cmocka_unit_test(test_page_table),
        cmocka_unit_test(test_create_fails),
        cmocka_unit_test(test_share_and_branch),
        cmocka_unit_test(test_same_tokens_twice),
        cmocka_unit_test(test_extend_stops_at_unlocked),
        cmocka_unit_test(test_pending_is_not_matched),
        cmocka_unit_test(test_eviction_order),
        cmocka_unit_test(test_order_after_eviction),
        cmocka_unit_test(test_locks_count),
        cmocka_unit_test(test_naive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
