// SPDX-License-Identifier: Apache-2.0
//
// Which captured graph a decode step takes: the smallest that holds its requests and their lengths.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "engine/internal.h"

enum { SHORT = 8192, LONG = 40960 };

static const msgl_decode_graph GRAPHS[] = {
    {.size = 1, .max_seq_len = SHORT}, {.size = 1, .max_seq_len = LONG},
    {.size = 2, .max_seq_len = SHORT}, {.size = 2, .max_seq_len = LONG},
    {.size = 4, .max_seq_len = SHORT}, {.size = 4, .max_seq_len = LONG},
    {.size = 8, .max_seq_len = LONG},  {.size = 16, .max_seq_len = LONG},
};

static void expect_graph(const msgl_engine *e, int32_t size, int32_t seq_len, int32_t want_size,
                         int32_t want_len)
{
    const msgl_decode_graph *g = msgl__graphs_find(e, size, seq_len);
    assert_non_null(g);
    assert_int_equal(g->size, want_size);
    assert_int_equal(g->max_seq_len, want_len);
}

static void test_find(void **state)
{
    (void)state;
    msgl_engine *e = msgl__calloc(1, sizeof *e);
    assert_non_null(e);
    for (size_t i = 0; i < MSGL_COUNT(GRAPHS); i++) e->graphs[i] = GRAPHS[i];
    e->num_graphs = (int32_t)MSGL_COUNT(GRAPHS);
    expect_graph(e, 1, 1, 1, SHORT);
    expect_graph(e, 1, SHORT, 1, SHORT);
    expect_graph(e, 1, SHORT + 1, 1, LONG);
    expect_graph(e, 3, 100, 4, SHORT);
    expect_graph(e, 3, LONG, 4, LONG);
    expect_graph(e, 5, 100, 8, LONG);
    expect_graph(e, 16, LONG, 16, LONG);
    assert_null(msgl__graphs_find(e, 17, 1));
    assert_null(msgl__graphs_find(e, 1, LONG + 1));
    e->num_graphs = 0;
    assert_null(msgl__graphs_find(e, 1, 1));
    msgl__free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_find)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
