// SPDX-License-Identifier: Apache-2.0
//
// Random prompts held and forgotten, compared after each with a model that keeps a plain list of
// blocks for every replica, by last use, and answers every question by going through it.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "routing/prefix_index.h"
#include "utils/random.h"

enum { REPLICAS = 5, CAP = 24, MAX_BLOCKS = 12, ALPHABET = 3 };

typedef struct model {
    msgl_prefix_index *x;
    uint64_t held[REPLICAS][CAP]; // oldest first
    int32_t count[REPLICAS];
    uint64_t random;
} model;

static int32_t place(const model *m, int32_t r, uint64_t key)
{
    for (int32_t i = 0; i < m->count[r]; i++) {
        if (m->held[r][i] == key) return i;
    }
    return -1;
}

static void drop(model *m, int32_t r, int32_t at)
{
    memmove(&m->held[r][at], &m->held[r][at + 1],
            (size_t)(m->count[r] - at - 1) * sizeof m->held[r][0]);
    m->count[r]--;
}

// First what is there comes to the end, then what is new pushes the oldest out.
static void model_insert(model *m, int32_t r, const uint64_t *keys, int32_t n)
{
    if (n > CAP) n = CAP;
    for (int32_t i = n; i-- > 0;) {
        const int32_t at = place(m, r, keys[i]);
        if (at >= 0) drop(m, r, at);
    }
    while (m->count[r] + n > CAP) drop(m, r, 0);
    for (int32_t i = n; i-- > 0;) m->held[r][m->count[r]++] = keys[i];
}

// A prompt out of few beginnings, so that many are shared; keys of a block depend on all before.
static int32_t prompt(model *m, uint64_t *keys)
{
    const int32_t n = (int32_t)msgl__random_below(&m->random, MAX_BLOCKS + 1);
    uint64_t h = 1;
    for (int32_t i = 0; i < n; i++) {
        const uint64_t c = msgl__random_below(&m->random, i < 4 ? 2 : ALPHABET);
        keys[i] = h = msgl__mix_bits(h * 31 + c);
    }
    return n;
}

static void compare(const model *m, const uint64_t *keys, int32_t n)
{
    int32_t found[MAX_BLOCKS], replicas[REPLICAS];
    int32_t longest = 0;
    const int32_t k = msgl__prefix_index_find(m->x, keys, n, found);
    for (int32_t r = 0; r < REPLICAS; r++) {
        int32_t held = 0;
        while (held < n && place(m, r, keys[held]) >= 0) held++;
        for (int32_t i = held; i < n; i++) assert_int_equal(place(m, r, keys[i]), -1);
        if (held > longest) longest = held;
        assert_int_equal(msgl__prefix_index_match(m->x, found, k, r), held);
    }
    assert_int_equal(k, longest);
    for (int32_t i = 0; i < k; i++) {
        int32_t holders = 0;
        for (int32_t r = 0; r < REPLICAS; r++) holders += place(m, r, keys[i]) >= 0;
        assert_int_equal(msgl__prefix_index_num_copies(m->x, found[i]), holders);
        const int32_t max = 1 + i % REPLICAS;
        const int32_t got = msgl__prefix_index_replicas(m->x, found[i], replicas, max);
        assert_int_equal(got, holders < max ? holders : max);
        for (int32_t j = 0; j < got; j++) {
            assert_true(place(m, replicas[j], keys[i]) >= 0);
            for (int32_t l = 0; l < j; l++) assert_int_not_equal(replicas[l], replicas[j]);
        }
    }
}

static void test_model(void **state)
{
    (void)state;
    msgl_err err;
    model m = {.random = 7};
    assert_int_equal(msgl__prefix_index_create(REPLICAS, CAP, &m.x, &err), 0);
    for (int i = 0; i < 30000; i++) {
        uint64_t keys[MAX_BLOCKS];
        const int32_t n = prompt(&m, keys);
        const int32_t r = (int32_t)msgl__random_below(&m.random, REPLICAS);
        compare(&m, keys, n);
        if (msgl__random_below(&m.random, 100) == 0) {
            msgl__prefix_index_forget(m.x, r);
            m.count[r] = 0;
        } else {
            msgl__prefix_index_insert(m.x, r, keys, n);
            model_insert(&m, r, keys, n);
        }
        compare(&m, keys, n);
    }
    msgl__prefix_index_destroy(m.x);
}

// The latest holder comes first, and a prompt longer than a cache leaves its beginning there.
static void test_order(void **state)
{
    (void)state;
    msgl_err err;
    msgl_prefix_index *x;
    assert_int_equal(msgl__prefix_index_create(3, 2, &x, &err), 0);
    const uint64_t keys[3] = {11, 22, 33};
    int32_t found[3], replicas[3];
    static const int32_t order[] = {2, 0, 1, 0};
    for (int i = 0; i < 4; i++) msgl__prefix_index_insert(x, order[i], keys, 3);
    assert_int_equal(msgl__prefix_index_find(x, keys, 3, found), 2);
    assert_int_equal(msgl__prefix_index_replicas(x, found[1], replicas, 3), 3);
    assert_int_equal(replicas[0], 0);
    assert_int_equal(replicas[1], 1);
    assert_int_equal(replicas[2], 2);
    msgl__prefix_index_destroy(x);
}

static void test_no_memory(void **state)
{
    (void)state;
    msgl_err err;
    msgl_prefix_index *x = NULL;
    for (uint64_t nth = 1; nth <= 2; nth++) {
        msgl__mem_fail_from(nth);
        assert_int_equal(msgl__prefix_index_create(3, 2, &x, &err), MSGL_ENOMEM);
        msgl__mem_fail_from(0);
        assert_null(x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_model), cmocka_unit_test(test_order),
                                       cmocka_unit_test(test_no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
