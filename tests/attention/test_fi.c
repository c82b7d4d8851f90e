// SPDX-License-Identifier: Apache-2.0
//
// fi: the plan's properties over random batches, that it is made once, and the merge of partial
// results with empty partials.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attention/fi/fi.h"
#include "attention/world.h"

enum { MAX_BS = 24, MAX_TOKENS = 4096, MAX_WORKS = 8192 };

typedef struct plan_memory {
    int32_t request[MAX_WORKS], qo_tile[MAX_WORKS], kv_tile[MAX_WORKS];
    int32_t o_indptr[MAX_BS + 1], merge_indptr[MAX_TOKENS + 1];
    unsigned char seen[MAX_WORKS];
} plan_memory;

static msgl_fi_plan plan_over(plan_memory *m)
{
    memset(m, 0xff, sizeof *m);
    return (msgl_fi_plan){.request_indices = m->request,
                          .qo_tile_indices = m->qo_tile,
                          .kv_tile_indices = m->kv_tile,
                          .o_indptr = m->o_indptr,
                          .merge_indptr = m->merge_indptr};
}

// Each (request, query tile, KV chunk) exactly once: the list is as long as their number and none
// is there twice.
static void check_cover(const msgl_fi_plan *p, plan_memory *m, const msgl_fi_plan_limits *l, int bs,
                        const int32_t *qo, const int32_t *kv)
{
    int base[MAX_BS + 1] = {0}, chunks[MAX_BS];
    for (int i = 0; i < bs; i++) {
        const int rows = (qo[i + 1] - qo[i]) * l->group, len = kv[i + 1] - kv[i];
        chunks[i] = (len + p->kv_chunk_size - 1) / p->kv_chunk_size;
        base[i + 1] = base[i] + (rows + p->q_tile - 1) / p->q_tile * chunks[i];
    }
    assert_int_equal(p->num_works, base[bs]);
    memset(m->seen, 0, sizeof m->seen);
    for (int n = 0; n < p->num_works; n++) {
        const int i = m->request[n];
        assert_in_range(i, 0, bs - 1);
        assert_in_range(m->kv_tile[n], 0, chunks[i] - 1);
        const int at = base[i] + m->qo_tile[n] * chunks[i] + m->kv_tile[n];
        assert_in_range(at, base[i], base[i + 1] - 1);
        assert_int_equal(m->seen[at]++, 0);
    }
    for (int i = 0, token = 0; i < bs; i++) {
        assert_int_equal(m->o_indptr[i + 1] - m->o_indptr[i], (qo[i + 1] - qo[i]) * chunks[i]);
        for (int t = qo[i]; t < qo[i + 1]; t++, token++) {
            assert_int_equal(m->merge_indptr[token + 1] - m->merge_indptr[token], chunks[i]);
        }
    }
}

static void test_plan(void **state)
{
    (void)state;
    plan_memory *m = malloc(sizeof *m);
    world rng = {.rng = 99};
    int split = 0;
    for (int round = 0; round < 10000; round++) {
        msgl_fi_plan_limits l = {.group = world_int(&rng, 1, 16),
                                 .num_kv_heads = world_int(&rng, 1, 8),
                                 .head_dim = 64 << world_int(&rng, 0, 2),
                                 .max_grid = 1 << world_int(&rng, 0, 10)};
        const int bs = world_int(&rng, 1, MAX_BS), decode = world_int(&rng, 0, 1);
        int32_t qo[MAX_BS + 1] = {0}, kv[MAX_BS + 1] = {0};
        int64_t longest = 0, tiles = 0;
        for (int i = 0; i < bs; i++) {
            const int tokens = decode ? 1 : world_int(&rng, 1, 150);
            const int len = tokens + (world_int(&rng, 0, 3) ? world_int(&rng, 0, 5000) : 0);
            qo[i + 1] = qo[i] + tokens;
            kv[i + 1] = kv[i] + len;
            longest = len > longest ? len : longest;
        }
        if (world_int(&rng, 0, 3) == 0) l.fixed_chunk = world_int(&rng, 1000, 9000);
        l.max_works = (int32_t)msgl__fi_max_works(&l, bs, qo[bs]);
        if (l.fixed_chunk > 0) l.max_works = MAX_WORKS;
        msgl_fi_plan p = plan_over(m);
        assert_int_equal(msgl__fi_plan(&l, bs, qo, kv, &p), 0);
        check_cover(&p, m, &l, bs, qo, kv);
        assert_int_equal(p.split_kv, p.kv_chunk_size < longest);
        for (int i = 0; i < bs; i++) {
            tiles += ((qo[i + 1] - qo[i]) * l.group + p.q_tile - 1) / p.q_tile;
        }
        if (l.fixed_chunk > 0) {
            assert_int_equal(p.kv_chunk_size, l.fixed_chunk);
        } else if (p.split_kv) {
            // The grid bound is kept, and the next smaller chunk would break it.
            const int limit = l.max_grid / l.num_kv_heads > 1 ? l.max_grid / l.num_kv_heads : 1;
            assert_true(p.num_works <= limit);
            split++;
            if (p.kv_chunk_size > 128) {
                l.fixed_chunk = p.kv_chunk_size - 1;
                l.max_works = MAX_WORKS;
                assert_int_equal(msgl__fi_plan(&l, bs, qo, kv, &p), 0);
                assert_true(p.num_works > limit);
            }
        } else {
            assert_int_equal(p.num_works, tiles);
        }
    }
    assert_true(split > 1000);
    free(m);
}

// Tiles by the mean of rows (tokens times heads of a group) a request, at the bounds; heads of 256
// have no room for the largest.
static void test_q_tile(void **state)
{
    (void)state;
    static const struct {
        int32_t group, head_dim, tokens[2], tile;
    } cases[] = {
        {1, 128, {16, 16}, 16},  {1, 128, {17, 17}, 64},   {1, 128, {64, 64}, 64},
        {1, 128, {65, 65}, 128}, {1, 128, {1, 129}, 128},  {4, 64, {16, 16}, 64},
        {4, 64, {17, 17}, 128},  {1, 256, {16, 16}, 16},   {1, 256, {64, 64}, 64},
        {1, 256, {65, 65}, 64},  {8, 256, {900, 900}, 64},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int32_t *n = cases[i].tokens, qo[] = {0, n[0], n[0] + n[1]};
        const msgl_fi_plan_limits l = {.group = cases[i].group, .head_dim = cases[i].head_dim};
        assert_int_equal(msgl__fi_q_tile(&l, 2, qo), cases[i].tile);
    }
}

static world_spec base_spec(void)
{
    world_spec s = world_base(&msgl__attn_fi, 8, 3000, 512);
    s.dtype = MSGL_F32;
    s.group = 3;
    return s;
}

// prepare makes indices and plan once for all layers.
static void test_prepared(void **state)
{
    (void)state;
    const world_spec spec = base_spec();
    world w;
    world_open(&w, &spec);
    world_request(&w, 0, 3000);
    const step_req r = {.req = 0, .cached = 2999, .device = 3000};
    world_prepare(&w, MSGL_DECODE, &r, 1);
    const msgl_fi_metadata *md = msgl__fi_metadata(w.backend, w.seqs[0].step_slot);
    assert_true(md->plan.split_kv);
    assert_true(md->plan.num_works > 1);
    world_forward(&w);
    md->plan.request_indices[0] = 7; // a second plan would repair this
    world_forward(&w);
    assert_int_equal(md->plan.request_indices[0], 7);
    assert_true(world_error(&w, &r, 1) < world_tolerance("fi", spec.dtype));
    assert_int_equal(md->last_page_len[0], 1);
    for (int p = 0; p < 3000; p++) {
        assert_int_equal(md->indices[p], msgl__page_table_slot(&w.table, 0, p));
    }
    world_close(&w);
}

// Chunks before the window and chunks after a query tile are empty partials: zeros, never NaN.
static void test_empty_partials(void **state)
{
    (void)state;
    world_spec spec = base_spec();
    for (int window = 0; window < 700; window += 233) {
        spec.window = window;
        world w;
        world_open(&w, &spec);
        world_request(&w, 0, 3000);
        world_request(&w, 1, 2);
        const step_req decode[] = {{0, 2999, 3000}, {1, 1, 2}};
        world_step(&w, MSGL_DECODE, decode, 2);
        assert_true(world_error(&w, decode, 2) < world_tolerance("fi", spec.dtype));
        const step_req chunk[] = {{0, 2500, 2900}};
        world_step(&w, MSGL_PREFILL, chunk, 1);
        assert_true(world_error(&w, chunk, 1) < world_tolerance("fi", spec.dtype));
        world_close(&w);
    }
}

// flashinfer: no item of a step with chunks has keys of both sides, together they have every key of
// every row once, and the items of a query tile are one group.
static void check_in_two(const world *w, const msgl_fi_metadata *md)
{
    const msgl_seqs *q = &w->seqs[0];
    const int32_t group = w->spec.group;
    int64_t pairs = 0, expected = 0;
    int32_t partial = 0;
    for (int32_t n = 0; n < md->num_works; n++) {
        const msgl_attn_work *k = &md->works[n];
        const int32_t tokens = q->cu_seqlens_q[k->req + 1] - q->cu_seqlens_q[k->req];
        const int32_t prefix = q->seqlens_k[k->req] - tokens;
        assert_true(k->kv_begin < k->kv_end && k->rows > 0);
        assert_true(k->kv_end <= prefix || k->kv_begin >= prefix);
        assert_true(k->kv_end <= q->seqlens_k[k->req] && k->row + k->rows <= tokens * group);
        pairs += (int64_t)k->rows * (k->kv_end - k->kv_begin);
        if (n > 0 && k[-1].req == k->req && k[-1].row == k->row) {
            assert_int_equal(k->kv_begin, k[-1].kv_end);
        } else {
            assert_int_equal(k->kv_begin, 0);
        }
        if (k->partial < 0) { // alone
            assert_int_equal(k->kv_end, q->seqlens_k[k->req]);
            continue;
        }
        const msgl_attn_group *g = &md->groups[k->group];
        assert_int_equal(k->partial, partial++);
        assert_in_range(k->partial, g->partial, g->partial + g->num_partials - 1);
        assert_true(g->req == k->req && g->row == k->row && g->rows == k->rows);
        assert_int_equal(g->num_partials, g->num_works);
    }
    for (int32_t i = 0; i < q->size; i++) {
        const int64_t tokens = q->cu_seqlens_q[i + 1] - q->cu_seqlens_q[i];
        expected += tokens * group * q->seqlens_k[i];
    }
    assert_int_equal(pairs, expected);
}

static void test_in_two(void **state)
{
    (void)state;
    world_spec spec = base_spec();
    spec.desc = &msgl__attn_flashinfer;
    for (int window = -1; window < 700; window += 300) {
        spec.window = window;
        world w;
        world_open(&w, &spec);
        world_request(&w, 0, 3000);
        world_request(&w, 1, 400);
        world_request(&w, 2, 30);
        static const step_req steps[][3] = {
            {{0, 2700, 2900}, {1, 0, 100}, {2, 29, 30}}, // long prefix, none, an answer
            {{0, 2999, 3000}, {1, 300, 400}, {2, 3, 30}},
            {{0, 1, 300}, {1, 0, 1}, {2, 0, 30}},
            {{0, 0, 130}, {1, 0, 257}, {2, 0, 30}}, // no prefix at all
        };
        for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
            world_step(&w, MSGL_PREFILL, steps[i], 3);
            const msgl_fi_metadata *md = msgl__fi_metadata(w.backend, w.seqs[0].step_slot);
            assert_true(md->in_two);
            check_in_two(&w, md);
            assert_true(world_error(&w, steps[i], 3) < world_tolerance("flashinfer", spec.dtype));
        }
        const step_req answers[] = {{0, 2999, 3000}, {1, 399, 400}, {2, 29, 30}};
        world_step(&w, MSGL_DECODE, answers, 3);
        assert_false(msgl__fi_metadata(w.backend, w.seqs[0].step_slot)->in_two);
        assert_true(world_error(&w, answers, 3) < world_tolerance("flashinfer", spec.dtype));
        world_close(&w);
    }
}

// Deterministic: no cuts, so alone and in a batch give the same bits.
static void test_deterministic(void **state)
{
    (void)state;
    world_spec spec = base_spec();
    spec.deterministic = true;
    world w;
    world_open(&w, &spec);
    world_request(&w, 0, 2500);
    for (int i = 1; i < 8; i++) world_request(&w, i, 100 * i);
    step_req reqs[8] = {{0, 2499, 2500}};
    for (int i = 1; i < 8; i++) reqs[i] = (step_req){i, 100 * i - 1, 100 * i};
    world_step(&w, MSGL_DECODE, reqs, 1);
    float *alone = malloc(w.out_ld * sizeof *alone);
    memcpy(alone, w.out, w.out_ld * sizeof *alone);
    world_step(&w, MSGL_DECODE, reqs, 8);
    assert_memory_equal(w.out, alone, w.out_ld * sizeof *alone);
    free(alone);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_q_tile),   cmocka_unit_test(test_plan),
        cmocka_unit_test(test_prepared), cmocka_unit_test(test_empty_partials),
        cmocka_unit_test(test_in_two),   cmocka_unit_test(test_deterministic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
