// SPDX-License-Identifier: Apache-2.0
//
// Virtual requests of local attention against those that SGLang 0.5.4 makes of the same steps
// (tests/vectors/local_batches.bin, whose layout tools/make_local_batches.py gives): queries, keys
// and the position of the first key of each. Where the two differ: docs/internals/local-chunks.md.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "cuda/backends/local.h"

enum { MOST_REQUESTS = 8, MOST_NUMBERS = 1 << 14, STRIDE = 32768 };

typedef struct vectors {
    int32_t *at, *end;
} vectors;

static int32_t next(vectors *v)
{
    assert_true(v->at < v->end);
    return *v->at++;
}

// A step: its requests, in the page table's rows from the last one backwards.
typedef struct step {
    int32_t chunk, page_size, cut_by, virtual_requests;
    int32_t cu_seqlens_q[MOST_REQUESTS + 1], seqlens_k[MOST_REQUESTS], rows[MOST_REQUESTS];
    msgl_seqs seqs;
} step;

static void read_step(vectors *v, step *s)
{
    *s = (step){.chunk = next(v), .seqs.table_rows = s->rows};
    s->page_size = next(v);
    s->cut_by = next(v);
    s->seqs.size = next(v);
    s->virtual_requests = next(v);
    assert_in_range(s->seqs.size, 1, MOST_REQUESTS);
    s->seqs.cu_seqlens_q = s->cu_seqlens_q;
    s->seqs.seqlens_k = s->seqlens_k;
    for (int32_t i = 0; i < s->seqs.size; i++) {
        const int32_t keys = next(v), tokens = next(v);
        s->seqlens_k[i] = keys;
        s->cu_seqlens_q[i + 1] = s->cu_seqlens_q[i] + tokens;
        s->rows[i] = s->seqs.size - 1 - i;
        if (keys > s->seqs.max_seqlen_k) s->seqs.max_seqlen_k = keys;
        if (tokens > s->seqs.max_seqlen_q) s->seqs.max_seqlen_q = tokens;
    }
    s->seqs.num_tokens = s->cu_seqlens_q[s->seqs.size];
}

// In new memory, which is returned.
static char *cut(const step *s, int32_t chunk, msgl_fa_local *out)
{
    const int32_t most = msgl__fa_local_most(chunk, s->seqs.size, s->seqs.num_tokens);
    char *lists = malloc(msgl__fa_local_bytes(most));
    msgl__fa_local_place(lists, most, out);
    msgl__fa_local_cut(&s->seqs, chunk, STRIDE, out);
    assert_true(out->size <= most);
    return lists;
}

// SGLang's of the step, cut by the chunk that it was cut by.
static void check_cut(vectors *v, const step *s)
{
    msgl_fa_local got;
    char *lists = cut(s, s->cut_by, &got);
    int32_t longest_q = 0, longest_k = 0;
    assert_int_equal(got.size, s->virtual_requests);
    for (int32_t i = 0; i < got.size; i++) {
        const int32_t queries = next(v), keys = next(v), request = next(v), position = next(v);
        assert_int_equal(got.cu_seqlens_q[i + 1] - got.cu_seqlens_q[i], queries);
        assert_int_equal(got.seqlens_k[i], keys);
        assert_int_equal(got.table_rows[i], s->rows[request] * STRIDE + position);
        assert_int_equal(position % s->page_size, 0);
        if (queries > longest_q) longest_q = queries;
        if (keys > longest_k) longest_k = keys;
    }
    assert_in_range(longest_q, 1, got.max_seqlen_q);
    assert_in_range(longest_k, 1, got.max_seqlen_k);
    free(lists);
}

// By the layer's own chunk, which no request exceeds: none is cut.
static void check_whole(const step *s)
{
    msgl_fa_local got;
    char *lists = cut(s, s->chunk, &got);
    assert_int_equal(got.size, s->seqs.size);
    for (int32_t i = 0; i < got.size; i++) {
        assert_int_equal(got.seqlens_k[i], s->seqlens_k[i]);
        assert_int_equal(got.table_rows[i], s->rows[i] * STRIDE);
    }
    free(lists);
}

static void test_sglang(void **state)
{
    (void)state;
    static int32_t numbers[MOST_NUMBERS];
    FILE *f = fopen(MSGL_SOURCE_DIR "/tests/vectors/local_batches.bin", "rb");
    assert_non_null(f);
    const size_t n = fread(numbers, sizeof *numbers, MOST_NUMBERS, f);
    fclose(f);
    vectors v = {.at = numbers, .end = numbers + n};
    const int32_t steps = next(&v);
    int32_t kept = 0, made_smaller = 0;
    for (int32_t i = 0; i < steps; i++) {
        step s;
        read_step(&v, &s);
        check_cut(&v, &s);
        if (s.seqs.max_seqlen_k <= s.chunk) check_whole(&s);
        if (s.cut_by == s.chunk) kept++;
        if (s.cut_by < s.chunk) {
            assert_true(s.seqs.max_seqlen_k < s.chunk);
            made_smaller++;
        }
    }
    assert_true(v.at == v.end);
    assert_true(kept > 20 && made_smaller > 5);
    print_message("%d steps, of them %d cut by the layer's chunk\n", steps, kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sglang)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
