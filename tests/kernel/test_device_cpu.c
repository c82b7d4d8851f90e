// SPDX-License-Identifier: Apache-2.0
//
// The CPU as a device: work runs in the order of its submission, events tell when it is done, and
// token ids, pages and slots go where a step wants them.
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "core/attributes.h"
#include "kernel/device.h"

// Rows of 33 places, in pages of 3: an answer in row 2, then a chunk of row 1.
enum { PAGE = 3, ROW = 33, ROWS = 3, POOL = ROWS * ROW, N = 8, ANSWERS = 1 };

typedef struct work {
    msgl_device *d;
    int32_t pool[POOL], tables[2][POOL / PAGE], index[N], slots[2][N], ids[N], spread[3 * N];
    int64_t order[4];
    int done;
} work;

static int open_device(void **state)
{
    static work w;
    msgl_err err = {0};
    if (msgl__device_cpu_create(&w.d, &err) != 0) fail_msg("%s", err.text);
    for (int32_t i = 0; i < POOL; i++) w.pool[i] = 1000 + i;
    w.index[0] = 2 * ROW + 31;
    for (int32_t i = ANSWERS; i < N; i++) w.index[i] = ROW + 10 + i;
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
    // Position 31 is in page 10 of its row; 11 to 17 are in pages 3, 4 and 5.
    static const int32_t PAGES[2][4] = {{70, 50, 90, 20}, {7, 5, 9, 2}}, FIRST[ROWS] = {-99, 1 - 3};
    const msgl_step_tokens s = {
        .count = N,
        .pool = w->pool,
        .index = w->index,
        .num_answers = ANSWERS,
        .row_places = ROW,
        .paging = msgl__paging_of(PAGE),
        .first = FIRST,
        .num_tables = 2,
        .pages = {PAGES[0], PAGES[1]},
        .tables = {with_table ? w->tables[0] : NULL, with_table ? w->tables[1] : NULL},
        .slots = {w->slots[0], w->slots[1]}};
    ops->take_tokens(w->d, &s, w->ids);
    ops->gather_tokens(w->d, w->pool, w->index, N, w->spread, 3);
    ops->record(w->d, 0);
}

static void tokens_pages_and_slots_go_where_a_step_wants_them(void **state)
{
    work *w = *state;
    for (int64_t with_table = 0; with_table < 2; with_table++) {
        for (int32_t i = 0; i < N; i++) w->ids[i] = w->slots[0][i] = w->slots[1][i] = -1;
        for (int32_t i = 0; i < POOL / PAGE; i++) w->tables[0][i] = w->tables[1][i] = -1;
        w->d->ops->arm(w->d, 0);
        w->d->ops->submit(w->d, take, w, with_table);
        assert_int_equal(w->d->ops->wait(w->d, 0), 0);
        for (int32_t i = 0; i < N; i++) {
            const int32_t id = i == 0 ? 1000 + 66 + 31 : 1000 + 33 + 10 + i;
            assert_int_equal(w->ids[i], id);
            assert_int_equal(w->spread[3 * i], id);
        }
        // 31 is the second of its page, 11 the last, 12 to 14 a whole page, 15 to 17 too.
        static const int32_t SLOTS[2][N] = {{211, 152, 270, 271, 272, 60, 61, 62},
                                            {22, 17, 27, 28, 29, 6, 7, 8}};
        assert_memory_equal(w->slots, SLOTS, sizeof SLOTS);
        for (int32_t i = 0; i < POOL / PAGE; i++) {
            const int32_t page = i == 22 + 10 ? 7 : i == 11 + 3 ? 5 : i == 11 + 4 ? 9 : 2;
            const bool placed = with_table && (i == 32 || (i >= 14 && i <= 16));
            assert_int_equal(w->tables[0][i], placed ? 10 * page : -1);
            assert_int_equal(w->tables[1][i], placed ? page : -1);
        }
    }
}

// Ids of drafts become the model's; what is none of theirs stays: a choice that failed (-1), and
// tokens that are not behind the index.
static void map(void *ctx, int64_t num_ids)
{
    static const int32_t IDS[] = {500, 501, 777, 12, 3};
    work *w = ctx;
    w->d->ops->map_tokens(w->d, w->pool, w->index, N, IDS, (int32_t)num_ids);
    w->d->ops->record(w->d, 0);
}

static void ids_of_drafts_become_the_models(void **state)
{
    work *w = *state;
    static const int32_t DRAFTS[N] = {4, 0, -1, 2, 5, 3, 1000000, 1},
                         MODELS[N] = {3, 500, -1, 777, 5, 12, 1000000, 501};
    int32_t expected[POOL];
    for (int32_t i = 0; i < N; i++) w->pool[w->index[i]] = DRAFTS[i];
    memcpy(expected, w->pool, sizeof expected);
    for (int32_t i = 0; i < N; i++) expected[w->index[i]] = MODELS[i];
    w->d->ops->arm(w->d, 0);
    w->d->ops->submit(w->d, map, w, 5);
    assert_int_equal(w->d->ops->wait(w->d, 0), 0);
    assert_memory_equal(w->pool, expected, sizeof expected);
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
        cmocka_unit_test(tokens_pages_and_slots_go_where_a_step_wants_them),
        cmocka_unit_test(work_runs_in_order),
        cmocka_unit_test(ids_of_drafts_become_the_models),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
