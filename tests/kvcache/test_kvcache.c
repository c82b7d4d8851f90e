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
#include "utils/random.h"

static void test_pool_bytes(void **state)
{
    (void)state;
    msgl_kv_pool p = {.spec = {.kind = MSGL_CACHE_KV,
                               .num_layers = 3,
                               .num_heads = 2,
                               .k_dim = 64,
                               .v_dim = 32,
                               .dtype = MSGL_BF16},
                      .num_pages = 7,
                      .page_size = 16};
    assert_int_equal(msgl__kv_pool_bytes(&p), (size_t)3 * 8 * 16 * 2 * (64 + 32) * 2);
    char base[1];
    p.base = base;
    assert_int_equal(msgl__kv_slot_stride(&p), 2 * 64);
    // K of all layers, then V: the last element of V of the last layer ends where the pool ends.
    assert_ptr_equal(msgl__kv_k(&p, 0), base);
    assert_int_equal((char *)msgl__kv_v(&p, 0) - (char *)msgl__kv_k(&p, 2), 8 * 16 * 2 * 64 * 2);
    const char *end = (char *)msgl__kv_v(&p, 2) + (size_t)8 * 16 * 2 * 32 * 2;
    assert_int_equal(end - base, msgl__kv_pool_bytes(&p));
    p.num_pages = p.page_size = p.spec.num_layers = p.spec.num_heads = p.spec.k_dim = INT32_MAX;
    assert_int_equal(msgl__kv_pool_bytes(&p), 0);
    p.spec.k_dim = 0;
    assert_int_equal(msgl__kv_pool_bytes(&p), 0);
}

// One vector a token: K of all layers, and no V.
static void test_latent_pool(void **state)
{
    (void)state;
    char base[1];
    const msgl_kv_pool p = {.spec = {.kind = MSGL_CACHE_LATENT,
                                     .num_layers = 5,
                                     .num_heads = 1,
                                     .k_dim = 576,
                                     .dtype = MSGL_F16},
                            .num_pages = 3,
                            .page_size = 64,
                            .base = base};
    assert_int_equal(msgl__kv_pool_bytes(&p), (size_t)5 * 4 * 64 * 576 * 2);
    assert_int_equal((char *)msgl__kv_k(&p, 4) - base, (size_t)4 * 4 * 64 * 576 * 2);
}

// A state for each row and the dummy one, then the checkpoints; all layers of one are neighbours.
static void test_state_pool(void **state)
{
    (void)state;
    char base[1];
    msgl_kv_pool p = {
        .spec = {.kind = MSGL_CACHE_STATE, .num_layers = 3, .state_bytes = 1000, .window = -1},
        .max_running = 4,
        .num_checkpoints = 7,
        .base = base};
    assert_int_equal(msgl__kv_pool_bytes(&p), (4 + 1 + 7) * 3 * 1000);
    assert_ptr_equal(msgl__state_of_row(&p, 0, 0), base);
    assert_int_equal((char *)msgl__state_of_row(&p, 4, 2) - base, (4 * 3 + 2) * 1000);
    assert_int_equal((char *)msgl__state_checkpoint(&p, 0, 0) - base, 5 * 3 * 1000);
    assert_int_equal((char *)msgl__state_checkpoint(&p, 6, 2) + 1000 - base,
                     msgl__kv_pool_bytes(&p));
    p.num_checkpoints = 0;
    assert_int_equal(msgl__kv_pool_bytes(&p), (4 + 1) * 3 * 1000);
    p.spec.state_bytes = SIZE_MAX / 8;
    assert_int_equal(msgl__kv_pool_bytes(&p), 0);
}

static void test_page_table(void **state)
{
    (void)state;
    msgl_page_table t;
    msgl_err err;
    assert_int_equal(msgl__page_table_create(3, 33, 8, 80, &t, &err), 0);
    assert_int_equal(t.stride, 5); // the last page has one token
    for (int32_t r = 0; r <= 3; r++) {
        for (int32_t c = 0; c < 5; c++) assert_int_equal(msgl__page_table_row(&t, r)[c], 80);
    }
    msgl__page_table_destroy(&t);
    assert_null(t.pages);
    assert_int_equal(msgl__page_table_create(0, 33, 8, 80, &t, &err), MSGL_EINVAL);
    assert_int_equal(msgl__page_table_create(1, 0, 1, 0, &t, NULL), MSGL_EINVAL);
    assert_int_equal(msgl__page_table_create(1, 33, 0, 0, &t, &err), MSGL_EINVAL);
    assert_int_equal(msgl__page_table_create(1, 33, 1, -1, &t, &err), MSGL_EINVAL);
    msgl__mem_fail_from(1);
    assert_int_equal(msgl__page_table_create(1, 32, 1, 0, &t, &err), MSGL_ENOMEM);
    msgl__mem_fail_from(0);
    assert_null(t.pages);
}

// Slots of positions within a page, across borders of pages and in a last page that is not full;
// and what entries of a row tokens are in.
static void test_slots(void **state)
{
    (void)state;
    msgl_page_table t;
    msgl_err err;
    int32_t slots[40], first;
    // Rows of 33 tokens in pages of 8: five entries. Row 1 has pages 7, 0, 9, 2 and 5.
    assert_int_equal(msgl__page_table_create(2, 33, 8, 80, &t, &err), 0);
    memcpy(msgl__page_table_row(&t, 1), (int32_t[]){7, 0, 9, 2, 5}, 5 * sizeof(int32_t));
    assert_int_equal(msgl__page_table_slot(&t, 1, 0), 56);
    assert_int_equal(msgl__page_table_slot(&t, 1, 7), 63);
    assert_int_equal(msgl__page_table_slot(&t, 1, 8), 0);
    assert_int_equal(msgl__page_table_slot(&t, 1, 32), 40);
    msgl__page_table_slots(&t, 1, 6, 12, slots);
    assert_memory_equal(slots, ((int32_t[]){62, 63, 0, 1, 2, 3, 4, 5, 6, 7, 72, 73}),
                        12 * sizeof *slots);
    for (int32_t from = 0; from < 33; from++) {
        for (int32_t n = 0; from + n <= 33; n++) {
            msgl__page_table_slots(&t, 1, from, n, slots);
            for (int32_t i = 0; i < n; i++) {
                assert_int_equal(slots[i], msgl__page_table_slot(&t, 1, from + i));
            }
        }
    }
    assert_int_equal(msgl__page_table_span(&t, 7, 9, &first), 2);
    assert_int_equal(first, 0);
    assert_int_equal(msgl__page_table_span(&t, 8, 16, &first), 1);
    assert_int_equal(first, 1);
    assert_int_equal(msgl__page_table_span(&t, 24, 34, &first), 2); // the row ends
    assert_int_equal(first, 3);
    assert_int_equal(msgl__page_table_span(&t, 40, 48, &first), 0);
    assert_int_equal(msgl__page_table_span(&t, 9, 9, &first), 0);
    assert_int_equal(msgl__page_table_span(&t, 0, 0, &first), 0);
    msgl__page_table_destroy(&t);
}

// Division by any page size, at the ends of what positions may be.
static void test_paging(void **state)
{
    (void)state;
    uint64_t rng = 5;
    for (int32_t size = 1; size <= 1 << 20; size += size < 5000 ? 1 : 4099) {
        const msgl_paging p = msgl__paging_of(size);
        const int32_t most = INT32_MAX / size;
        const int32_t at[] = {0,
                              size - 1,
                              size,
                              INT32_MAX,
                              most * size,
                              most * size - 1,
                              (int32_t)msgl__random_below(&rng, INT32_MAX)};
        for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
            assert_int_equal(msgl__paging_page(p, at[i]), at[i] / size);
        }
    }
}

static msgl_cache_layout layout_of(int32_t num_pages, int32_t page_size)
{
    return (msgl_cache_layout){.page_size = page_size,
                               .num_spans = 1,
                               .spans = {{.kind = MSGL_SPAN_ALL, .num_units = num_pages}}};
}

static msgl_cache_layout with_spans(void)
{
    msgl_cache_layout l = layout_of(8, 4);
    l.num_spans = 3;
    l.spans[1] = (msgl_cache_span){.kind = MSGL_SPAN_WINDOW, .window = 5, .num_units = 6};
    l.spans[2] = (msgl_cache_span){.kind = MSGL_SPAN_STATE, .interval = 8, .num_units = 2};
    return l;
}

// Every failing allocation of the creation is an error, and nothing leaks (ASan).
static void test_create_fails(void **state)
{
    (void)state;
    msgl_cache *c;
    msgl_err err;
    const int32_t wrong[][2] = {{0, 1}, {1, 0}, {1 << 16, 1 << 15}};
    for (int i = 0; i < 3; i++) {
        const msgl_cache_layout l = layout_of(wrong[i][0], wrong[i][1]);
        assert_int_equal(msgl__cache_create(MSGL_CACHE_RADIX, &l, &c, &err), MSGL_EINVAL);
    }
    for (int i = 0; i < 6; i++) {
        msgl_cache_layout l = with_spans();
        if (i == 0) l.spans[0].kind = MSGL_SPAN_WINDOW;
        if (i == 1) l.spans[1].num_units = 0;
        if (i == 2) l.spans[1] = l.spans[2]; // states are not last
        if (i == 3) l.spans[2] = l.spans[1]; // the same window again
        if (i == 4) l.spans[2].interval = 6;
        if (i == 5) l.num_spans = 0;
        assert_int_equal(msgl__cache_create(MSGL_CACHE_RADIX, &l, &c, &err), MSGL_EINVAL);
    }
    const msgl_cache_layout all = with_spans();
    for (uint64_t nth = 1;; nth++) {
        msgl__mem_fail_from(nth);
        const int rc = msgl__cache_create(MSGL_CACHE_RADIX, &all, &c, &err);
        msgl__mem_fail_from(0);
        if (rc == 0) break;
        assert_int_equal(rc, MSGL_ENOMEM);
        assert_null(c);
    }
    msgl__cache_destroy(c);
    msgl__cache_destroy(NULL);
}

static msgl_cache_layout spans_of(const msgl_cache_specs *specs, int32_t max_seq_len,
                                  int32_t span_of[MSGL_MAX_GROUPS])
{
    msgl_cache_layout l;
    msgl__cache_layout_of(specs, max_seq_len, 48, &l, span_of);
    return l;
}

static void test_layout(void **state)
{
    (void)state;
    int32_t of[MSGL_MAX_GROUPS];
    msgl_cache_specs specs = {.count = 3,
                              .all = {{.kind = MSGL_CACHE_KV, .window = 1023},
                                      {.kind = MSGL_CACHE_LATENT, .window = -1},
                                      {.kind = MSGL_CACHE_KV, .window = 127}}};
    msgl_cache_layout l = spans_of(&specs, 4096, of);
    assert_int_equal(l.num_spans, 3);
    assert_int_equal(l.spans[0].kind, MSGL_SPAN_ALL);
    assert_int_equal(l.spans[1].window, 127);
    assert_int_equal(l.spans[2].window, 1023);
    assert_memory_equal(of, ((int32_t[]){2, 0, 1}), 3 * sizeof *of);
    l = spans_of(&specs, 1024, of); // the larger window reaches over everything
    assert_int_equal(l.num_spans, 2);
    assert_memory_equal(of, ((int32_t[]){0, 0, 1}), 3 * sizeof *of);
    specs.all[1] = (msgl_cache_spec){.kind = MSGL_CACHE_STATE, .window = -1};
    l = spans_of(&specs, 1025, of); // all with windows: the first span has no group
    assert_int_equal(l.num_spans, 4);
    assert_int_equal(l.spans[3].kind, MSGL_SPAN_STATE);
    assert_int_equal(l.spans[3].interval, 576); // 512 in whole pages, and a multiple of 64
    assert_memory_equal(of, ((int32_t[]){2, 3, 1}), 3 * sizeof *of);
    specs.count = 5; // one window too many: the smallest joins the next
    specs.all[3] = (msgl_cache_spec){.kind = MSGL_CACHE_KV, .window = 15};
    specs.all[4] = (msgl_cache_spec){.kind = MSGL_CACHE_KV, .window = 1023};
    l = spans_of(&specs, 4096, of);
    assert_int_equal(l.num_spans, 4);
    assert_memory_equal(of, ((int32_t[]){2, 3, 1, 1, 2}), 5 * sizeof *of);
}

static void test_unit_bytes(void **state)
{
    (void)state;
    msgl_cache_spec s = {.kind = MSGL_CACHE_KV,
                         .num_layers = 3,
                         .num_heads = 2,
                         .k_dim = 64,
                         .v_dim = 32,
                         .dtype = MSGL_BF16};
    assert_int_equal(msgl__cache_unit_bytes(&s, 16), 3 * 2 * (64 + 32) * 2 * 16);
    s.kind = MSGL_CACHE_LATENT;
    s.num_heads = 1;
    s.k_dim = 576;
    s.v_dim = 0;
    assert_int_equal(msgl__cache_unit_bytes(&s, 16), 3 * 576 * 2 * 16);
    s.k_dim = s.num_layers = s.num_heads = INT32_MAX;
    assert_int_equal(msgl__cache_unit_bytes(&s, 16), 0);
    s = (msgl_cache_spec){.kind = MSGL_CACHE_STATE, .num_layers = 36, .state_bytes = 1000};
    assert_int_equal(msgl__cache_unit_bytes(&s, 16), 36000);
}

// A cache of 8 pages of 4 tokens, and rows made by hand.
enum { PAGES = 8, PAGE = 4, ROW = PAGES * PAGE };

typedef struct seq {
    int32_t ids[ROW], pages[MSGL_MAX_SPANS][PAGES];
    msgl_cache_handle cache_handle;
} seq;

static int32_t to_ids(const char *text, int32_t *ids)
{
    const int32_t n = (int32_t)strlen(text);
    for (int32_t i = 0; i < n; i++) ids[i] = text[i];
    return n;
}

// Computes `text` as a request would: match, lock, pages for the rest.
static void begin(msgl_cache *c, seq *s, const char *text)
{
    const int32_t n = to_ids(text, s->ids);
    for (int32_t i = 0; i < MSGL_MAX_SPANS; i++) s->cache_handle.pages[i] = s->pages[i];
    msgl__cache_begin(c, msgl__cache_match(c, 0, s->ids, n, NULL), &s->cache_handle);
    assert_true(msgl__cache_grow(c, &s->cache_handle, (n + PAGE - 1) / PAGE));
}

static void end(msgl_cache *c, seq *s, int32_t keep)
{
    msgl__cache_release(c, &s->cache_handle, s->ids, keep);
    msgl_err err;
    if (msgl__cache_check(c, &err) != 0) fail_msg("%s", err.text);
}

static msgl_cache *make_of(msgl_cache_type type, const msgl_cache_layout *l)
{
    msgl_cache *c;
    msgl_err err;
    assert_int_equal(msgl__cache_create(type, l, &c, &err), 0);
    msgl__cache_next_step(c);
    return c;
}

static msgl_cache *make(msgl_cache_type type)
{
    const msgl_cache_layout l = layout_of(PAGES, PAGE);
    return make_of(type, &l);
}

static void expect(const msgl_cache *c, int32_t free, int32_t cached, int32_t evictable)
{
    const msgl_cache_counts n = msgl__cache_count(c, 0);
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
    return msgl__cache_match(c, 0, ids, n, NULL).len;
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
    assert_int_equal(b.cache_handle.prefix.len, 4);
    assert_int_equal(b.pages[0][0], a.pages[0][0]); // the same page
    expect(c, 4, 2, 1);                             // bbbb may go, aaaa not
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
    msgl__cache_extend(c, &a.cache_handle, a.ids, 8);
    msgl__cache_extend(c, &b.cache_handle, b.ids, 12); // locked by a: goes on below it
    assert_int_equal(b.cache_handle.prefix.len, 12);
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
    msgl__cache_extend(c, &b.cache_handle, b.ids, 12);
    assert_int_equal(b.cache_handle.prefix.len, 0);
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
    msgl__cache_extend(c, &a.cache_handle, a.ids, 4);
    msgl__cache_next_step(c);
    msgl__cache_extend(c, &a.cache_handle, a.ids, 8);
    int32_t pending;
    assert_int_equal(msgl__cache_match(c, 0, a.ids, 8, &pending).len, 4);
    assert_int_equal(pending, 4);
    msgl__cache_next_step(c);
    assert_int_equal(msgl__cache_match(c, 0, a.ids, 8, &pending).len, 8);
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
    assert_false(msgl__cache_grow(c, &x.cache_handle, 7));
    assert_int_equal(x.cache_handle.num_pages, 6);
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
    const msgl_cache_layout l = layout_of(N, 1);
    assert_int_equal(msgl__cache_create(MSGL_CACHE_RADIX, &l, &c, NULL), 0);
    int32_t *ids = msgl__calloc(N, sizeof *ids), *pages = msgl__calloc(N, sizeof *pages);
    assert_non_null(ids);
    assert_non_null(pages);
    msgl_cache_handle h = {.pages = {pages}};
    msgl__cache_begin(c, (msgl_prefix){.node = MSGL_CACHE_ROOT}, &h);
    assert_true(msgl__cache_grow(c, &h, N));
    for (int32_t i = 0; i < N; i++) {
        ids[i] = i;
        assert_int_equal(pages[i], i);
    }
    msgl__cache_release(c, &h, ids, N);
    msgl__cache_next_step(c);
    int rising = 0;
    msgl__cache_begin(c, (msgl_prefix){.node = MSGL_CACHE_ROOT}, &h);
    for (int32_t i = 0; i < NEW; i++) {
        assert_true(msgl__cache_grow(c, &h, i + 1));
        rising += i == 0 || pages[i] == pages[i - 1] + 1;
    }
    assert_in_range(rising, NEW * 95 / 100, NEW);
    msgl__free(ids);
    msgl__free(pages);
    msgl__cache_destroy(c);
}

static void test_locks_count(void **state)
{
    (void)state;
    msgl_cache *c = make(MSGL_CACHE_RADIX);
    seq a, b, x;
    begin(c, &a, "aaaabbbb");
    end(c, &a, 8);
    msgl__cache_next_step(c);
    begin(c, &a, "aaaabbbb");
    begin(c, &b, "aaaabbbb");
    begin(c, &x, "aaaa");
    expect(c, 6, 2, 0);
    end(c, &a, 0);
    expect(c, 6, 2, 0);
    end(c, &b, 0);
    expect(c, 6, 2, 1);
    assert_int_equal(msgl__cache_flush(c), 1);
    end(c, &x, 0);
    expect(c, 7, 1, 1);
    assert_int_equal(msgl__cache_flush(c), 1);
    msgl__cache_destroy(c);
}

static void expect_span(const msgl_cache *c, int32_t span, int32_t free, int32_t cached,
                        int32_t evictable)
{
    const msgl_cache_counts n = msgl__cache_count(c, span);
    assert_int_equal(n.free, free);
    assert_int_equal(n.cached, cached);
    assert_int_equal(n.evictable, evictable);
}

// A window of five tokens in front of a query's own: what it does not reach any more is given back,
// to the prefix cache if the page's tokens are there, and a prefix is found as long as the pages in
// front of its end are.
static void test_window(void **state)
{
    (void)state;
    msgl_cache_layout l = with_spans();
    l.num_spans = 2;
    msgl_cache *c = make_of(MSGL_CACHE_RADIX, &l);
    seq a, b;
    begin(c, &a, "aaaabbbbccccdddd"); // four pages of both
    expect_span(c, 1, 2, 0, 0);
    msgl__cache_slide(c, &a.cache_handle, 8); // token 8 reads from token 3 on
    expect_span(c, 1, 2, 0, 0);
    msgl__cache_slide(c, &a.cache_handle, 9); // from token 4 on: page 0 goes
    assert_int_equal(a.cache_handle.first[1], 1);
    expect_span(c, 1, 3, 0, 0);
    msgl__cache_extend(c, &a.cache_handle, a.ids, 12);
    expect_span(c, 1, 3, 2, 0); // pages 1 and 2 are held
    msgl__cache_next_step(c);
    assert_int_equal(matched(c, "aaaabbbb"), 0);       // needs page 0's tokens 3
    assert_int_equal(matched(c, "aaaabbbbccccx"), 12); // 7 to 11
    msgl__cache_slide(c, &a.cache_handle, 16);         // 11 on
    expect_span(c, 1, 3, 2, 1);
    begin(c, &b, "aaaabbbbccccxxxxyyyy");
    assert_int_equal(b.cache_handle.first[1], 1);
    assert_int_equal(b.pages[1][1], a.pages[1][1]);
    expect_span(c, 1, 1, 2, 0);
    end(c, &a, 16);
    expect_span(c, 1, 1, 3, 1); // b holds bbbb and cccc
    end(c, &b, 0);
    expect_span(c, 1, 3, 3, 3);
    msgl__cache_next_step(c);
    begin(c, &b, "eeeeffffgggghhhh"); // takes the three free ones and the page unused for longest
    assert_int_equal(matched(c, "aaaabbbbccccdddd"), 12);
    end(c, &b, 0);
    assert_int_equal(msgl__cache_flush(c), 4);
    expect_span(c, 1, 6, 0, 0);
    msgl__cache_destroy(c);
}

static void test_states(void **state)
{
    (void)state;
    msgl_cache_layout l = with_spans();
    l.num_spans = 2;
    l.spans[1] = l.spans[2];
    msgl_cache *c = make_of(MSGL_CACHE_RADIX, &l);
    seq a, b;
    begin(c, &a, "aaaabbbbccccddddeeee");
    assert_int_equal(a.cache_handle.loads, -1);
    msgl__cache_extend(c, &a.cache_handle, a.ids, 12);
    const int32_t at_8 = msgl__cache_checkpoint(c, &a.cache_handle, 8);
    assert_true(at_8 >= 0);
    assert_int_equal(msgl__cache_checkpoint(c, &a.cache_handle, 8), -1); // it has one
    const int32_t own = msgl__cache_checkpoint(c, &a.cache_handle, 16);
    assert_true(own >= 0 && own != at_8);
    assert_int_equal(msgl__cache_checkpoint(c, &a.cache_handle, 20), own); // takes its place
    expect_span(c, 1, 0, 1, 1);
    assert_int_equal(matched(c, "aaaabbbbcccc"), 0); // this step saves it
    msgl__cache_next_step(c);
    assert_int_equal(matched(c, "aaaabbbbcccc"), 8); // not 12: no state there
    begin(c, &b, "aaaabbbbxxxx");
    assert_int_equal(b.cache_handle.loads, at_8);
    expect_span(c, 1, 0, 1, 0);
    msgl__cache_extend(c, &b.cache_handle, b.ids, 12);
    assert_int_equal(msgl__cache_checkpoint(c, &b.cache_handle, 12), -1); // none to be had
    msgl__cache_loaded(c, &b.cache_handle);
    expect_span(c, 1, 0, 1, 1);
    end(c, &a, 20); // its own is the state behind all that it keeps
    expect_span(c, 1, 0, 2, 2);
    msgl__cache_next_step(c);
    assert_int_equal(matched(c, "aaaabbbbccccddddeeee"), 20);
    assert_int_equal(msgl__cache_checkpoint(c, &b.cache_handle, 12),
                     at_8); // the one unused for longest
    assert_int_equal(matched(c, "aaaabbbb"), 0);
    end(c, &b, 12);
    msgl__cache_next_step(c);
    assert_int_equal(matched(c, "aaaabbbbxxxx"), 12);
    msgl__cache_destroy(c);
}

// What is worth nothing is not cached either.
static void test_discarded_state(void **state)
{
    (void)state;
    msgl_cache_layout l = with_spans();
    msgl_cache *c = make_of(MSGL_CACHE_RADIX, &l);
    seq a, b;
    begin(c, &a, "aaaabbbbcccc");
    assert_true(msgl__cache_checkpoint(c, &a.cache_handle, 8) >= 0); // beyond its prefix: its own
    msgl__cache_extend(c, &a.cache_handle, a.ids, 12);
    msgl__cache_next_step(c);
    begin(c, &b, "aaaabbbbcccc");
    msgl__cache_extend(c, &b.cache_handle, b.ids, 12);
    msgl__cache_discard(c, &a.cache_handle);
    expect_span(c, 2, 2, 0, 0);
    end(c, &b, 12);
    msgl__cache_destroy(c);
}

static void test_naive(void **state)
{
    (void)state;
    msgl_cache *c = make(MSGL_CACHE_NAIVE);
    seq a, b;
    begin(c, &a, "aaaabbbb");
    msgl__cache_extend(c, &a.cache_handle, a.ids, 8);
    msgl__cache_next_step(c);
    begin(c, &b, "aaaabbbbcccc");
    assert_int_equal(b.cache_handle.prefix.len, 0);
    expect(c, 3, 0, 0);
    end(c, &a, 8);
    end(c, &b, 12);
    expect(c, 8, 0, 0);
    assert_int_equal(msgl__cache_flush(c), 0);
    msgl__cache_destroy(c);
}

// Each salt has prefixes of its own, and what one evicts or flushes is only pages.
static void test_salts(void **state)
{
    (void)state;
    msgl_cache *c = make(MSGL_CACHE_RADIX);
    int32_t ids[8];
    to_ids("aaaabbbb", ids);
    seq s[3];
    for (uint64_t salt = 0; salt < 3; salt++) {
        seq *q = &s[salt];
        to_ids("aaaabbbb", q->ids);
        for (int32_t i = 0; i < MSGL_MAX_SPANS; i++) q->cache_handle.pages[i] = q->pages[i];
        const msgl_prefix p = msgl__cache_match(c, salt, ids, 8, NULL);
        assert_int_equal(p.len, 0);
        msgl__cache_begin(c, p, &q->cache_handle);
        assert_true(msgl__cache_grow(c, &q->cache_handle, 2));
        if (salt == 1) msgl__cache_extend(c, &q->cache_handle, q->ids, 8);
    }
    msgl__cache_next_step(c);
    assert_int_equal(msgl__cache_match(c, 0, ids, 8, NULL).len, 0);
    assert_int_equal(msgl__cache_match(c, 1, ids, 8, NULL).len, 8);
    assert_int_equal(msgl__cache_match(c, 2, ids, 8, NULL).len, 0);
    end(c, &s[0], 4);
    end(c, &s[1], 8);
    end(c, &s[2], 0);
    expect(c, 5, 3, 3);
    msgl__cache_next_step(c);
    assert_int_equal(msgl__cache_match(c, 0, ids, 8, NULL).len, 4);
    assert_int_equal(msgl__cache_match(c, 1, ids, 8, NULL).len, 8);
    assert_int_equal(msgl__cache_match(c, 2, ids, 8, NULL).len, 0);
    assert_int_equal(msgl__cache_flush(c), 3);
    assert_int_equal(msgl__cache_match(c, 1, ids, 8, NULL).len, 0);
    msgl__cache_destroy(c);
}

// Pages of the same tokens under many salts, of which many fall into one bucket of the hash table
// (512 buckets, 400 pages): each salt finds its own page, and one that has none finds nothing.
static void test_salts_of_one_bucket(void **state)
{
    (void)state;
    enum { SALTS = 400 };
    static seq s[SALTS];
    int32_t ids[PAGE];
    const msgl_cache_layout layout = layout_of(SALTS, PAGE);
    msgl_cache *c = make_of(MSGL_CACHE_RADIX, &layout);
    to_ids("aaaa", ids);
    for (uint64_t salt = 0; salt < SALTS; salt++) {
        seq *q = &s[salt];
        memcpy(q->ids, ids, sizeof ids);
        for (int32_t i = 0; i < MSGL_MAX_SPANS; i++) q->cache_handle.pages[i] = q->pages[i];
        const msgl_prefix p = msgl__cache_match(c, salt, ids, PAGE, NULL);
        assert_int_equal(p.len, 0);
        msgl__cache_begin(c, p, &q->cache_handle);
        assert_true(msgl__cache_grow(c, &q->cache_handle, 1));
        end(c, q, PAGE);
        msgl__cache_next_step(c);
    }
    bool taken[SALTS] = {false};
    for (uint64_t salt = 0; salt < SALTS; salt++) {
        const msgl_prefix p = msgl__cache_match(c, salt, ids, PAGE, NULL);
        assert_int_equal(p.len, PAGE);
        assert_false(taken[p.node]);
        taken[p.node] = true;
    }
    assert_int_equal(msgl__cache_match(c, SALTS, ids, PAGE, NULL).len, 0);
    msgl__cache_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool_bytes),
        cmocka_unit_test(test_latent_pool),
        cmocka_unit_test(test_state_pool),
        cmocka_unit_test(test_page_table),
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_paging),
        cmocka_unit_test(test_create_fails),
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_unit_bytes),
        cmocka_unit_test(test_share_and_branch),
        cmocka_unit_test(test_same_tokens_twice),
        cmocka_unit_test(test_extend_stops_at_unlocked),
        cmocka_unit_test(test_pending_is_not_matched),
        cmocka_unit_test(test_eviction_order),
        cmocka_unit_test(test_order_after_eviction),
        cmocka_unit_test(test_locks_count),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_states),
        cmocka_unit_test(test_discarded_state),
        cmocka_unit_test(test_naive),
        cmocka_unit_test(test_salts),
        cmocka_unit_test(test_salts_of_one_bucket),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
