// SPDX-License-Identifier: Apache-2.0
//
// The group of one rank: what it combines is what it has. (Several ranks: test_shm.c; layers
// shared by them: tests/layers.)
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "distributed/communicator.h"
#include "kernel/exec.h"

static void test_one_rank(void **state)
{
    (void)state;
    msgl_comm c;
    msgl_exec x = {.act = MSGL_F32};
    memset(&c, 0xff, sizeof c);
    msgl__comm_self_init(&c);
    assert_int_equal(c.rank, 0);
    assert_int_equal(c.size, 1);
    const float all[] = {1, -2, 3.5f};
    float buf[4], out[4] = {0, 0, 0, 7};
    memcpy(buf, all, sizeof all);
    c.ops->all_reduce(&c, NULL, MSGL_F32, buf, 3);
    assert_memory_equal(buf, all, sizeof all);
    c.ops->broadcast(&c, NULL, buf, sizeof all, 0);
    assert_memory_equal(buf, all, sizeof all);
    c.ops->all_gather(&c, NULL, buf, 3, out);
    assert_memory_equal(out, all, sizeof all);
    assert_true(out[3] == 7);
    c.ops->all_gather(&c, NULL, buf, 3, buf); // its own row of out
    assert_memory_equal(buf, all, sizeof all);
    const size_t two = 2;
    c.ops->all_to_all(&c, &x, all + 1, &two, out);
    assert_memory_equal(out, all + 1, 2 * sizeof *all);
    assert_true(out[2] == all[2] && out[3] == 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_rank)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
