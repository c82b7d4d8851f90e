// SPDX-License-Identifier: Apache-2.0
//
// The CPU as a device: work runs in the order of its submission, events tell when it is done, and
// token ids and slots go where a step wants them.
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "core/attributes.h"
#include "kernel/device.h"

enum { POOL = 100, N = 9 };

typedef struct work {
    msgl_device *d;
    int32_t pool[POOL], table[POOL], index[N], slots[N], ids[N], spread[3 * N];
    int64_t order[4];
    int done;
} work;

static int open_device(void **state)
{
    static work w;
    msgl_err err = {0};
    if (msgl__device_cpu_create(&w.d, &err) != 0) fail_msg("%s", err.text);
    for (int32_t i = 0; i < POOL; i++) {
        w.pool[i] = 1000 + i;
        w.table[i] = -i;
    }
    for (int32_t i = 0; i < N; i++) {
        w.index[i] = i * 11;
        w.slots[i] = 7 * i;
    }
    *state = &w;
    return 0;
}

static int close_device(void **state)
{
    work *w = *state;
    w->d->ops->destroy(w->d);
    return 0;
}

static void take(void *ctx, int64_t with_table)
{
    work *w = ctx;
    const msgl_device_ops *ops = w->d->ops;
    ops->take_tokens(w->d, w->pool, w->index, N, w->ids, with_table ? w->table : NULL,
                     with_table ? w->slots : NULL);
    ops->gather_tokens(w->d, w->pool, w->index, N, w->spread, 3);
    ops->record(w->d, 0);
}

static void tokens_and_slots_go_where_a_step_wants_them(void **state)
{
    work *w = *state;
    for (int64_t with_table = 0; with_table < 2; with_table++) {
        for (int32_t i = 0; i < N; i++) w->ids[i] = -1;
        w->d->ops->arm(w->d, 0);
        w->d->ops->submit(w->d, take, w, with_table);
        assert_int_equal(w->d->ops->wait(w->d, 0), 0);
        for (int32_t i = 0; i < N; i++) {
            assert_int_equal(w->ids[i], 1000 + 11 * i);
            assert_int_equal(w->spread[3 * i], 1000 + 11 * i);
        }
        for (int32_t i = 0; i < POOL; i++) {
            const bool placed = with_table && i % 11 == 0 && i / 11 < N;
            assert_int_equal(w->table[i], placed ? i / 11 * 7 : -i);
        }
    }
}

static void note(void *ctx, int64_t arg)
{
    work *w = ctx;
    w->order[w->done++] = arg;
    if (w->done == (int)MSGL_COUNT(w->order)) w->d->ops->record(w->d, 1);
}

static void work_runs_in_order(void **state)
{
    work *w = *state;
    assert_int_equal(w->d->ops->wait(w->d, 1), 0); // never armed: reached
    w->d->ops->arm(w->d, 1);
    for (size_t i = 0; i < MSGL_COUNT(w->order); i++) {
        w->d->ops->submit(w->d, note, w, (int64_t)(10 + i));
    }
    assert_int_equal(w->d->ops->wait(w->d, 1), 0);
    for (size_t i = 0; i < MSGL_COUNT(w->order); i++) assert_int_equal(w->order[i], 10 + i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_and_slots_go_where_a_step_wants_them),
        cmocka_unit_test(work_runs_in_order),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
