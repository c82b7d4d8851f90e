// SPDX-License-Identifier: Apache-2.0
//
// The table of uids against a plain list: whatever is put and removed in whatever order, what is in
// it is found and nothing else, while it grows and when it cannot.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/err.h"
#include "core/mem.h"
#include "utils/random.h"
#include "utils/uids.h"

enum { THINGS = 3000 };

typedef struct thing {
    msgl_uid uid;
    int in;
} thing;

static uint64_t rng = 1;

static uint32_t draw(uint32_t n)
{
    return (uint32_t)msgl__random_below(&rng, n);
}

static void check_all(const msgl_uids *t, thing *things)
{
    size_t in = 0;
    for (int i = 0; i < THINGS; i++) {
        assert_ptr_equal(msgl__uids_find(t, things[i].uid.id), things[i].in ? &things[i] : NULL);
        in += (size_t)things[i].in;
    }
    assert_int_equal(t->count, in);
}

// uids that count up, as those that we give; multiples of a power of two; random ones and the ends.
static void test_against_list(void **state)
{
    (void)state;
    static thing things[THINGS];
    for (int kind = 0; kind < 3; kind++) {
        msgl_uids t;
        assert_int_equal(msgl__uids_init(&t), 0);
        for (uint64_t i = 0; i < THINGS; i++) {
            const uint64_t uid = kind == 0   ? i + 1
                                 : kind == 1 ? i << 40
                                 : i < 2     ? 0 - i
                                             : (uint64_t)draw(UINT32_MAX) << 32 | (i + 1);
            things[i] = (thing){.uid.id = uid};
        }
        for (int step = 0; step < 20 * THINGS; step++) {
            // Up to full, then half of it, and so on.
            thing *x = &things[draw(THINGS)];
            const int want = draw(8) < (step / (3 * THINGS) % 2 == 0 ? 7u : 2u);
            if (want && !x->in) msgl__uids_put(&t, &x->uid);
            if (!want && x->in) msgl__uids_remove(&t, &x->uid);
            x->in = want;
            if (step % (2 * THINGS) == 0) check_all(&t, things);
        }
        check_all(&t, things);
        assert_true((size_t)2 << t.bits > t.count); // it has grown
        msgl__uids_free(&t);
    }
}

static void test_no_memory(void **state)
{
    (void)state;
    msgl_uids t;
    msgl__mem_fail_from(1);
    assert_int_equal(msgl__uids_init(&t), MSGL_ENOMEM);
    msgl__uids_free(&t);
    msgl__mem_fail_from(0);
    assert_int_equal(msgl__uids_init(&t), 0);
    static thing things[THINGS];
    msgl__mem_fail_from(1);
    for (uint64_t i = 0; i < THINGS; i++) {
        things[i] = (thing){.uid.id = i, .in = 1};
        msgl__uids_put(&t, &things[i].uid);
    }
    check_all(&t, things);
    msgl__mem_fail_from(0);
    msgl__uids_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_list),
                                       cmocka_unit_test(test_no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
