// SPDX-License-Identifier: Apache-2.0
//
// FlashMLA's scheduler metadata: every block of every request exactly once, splits numbered in
// order, and no worker with more than its payload.
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attention/latent/metadata.h"
#include "core/round.h"
#include "utils/random.h"

enum { MAX_BS = 40, MAX_SM_PARTS = 132, MAX_BLOCKS = 600 };

static int blocks_of(int32_t len)
{
    return msgl__ceil_div(len, MSGL_FLASHMLA_BLOCK);
}

static void check(int32_t num_sm_parts, int32_t bs, const int32_t *lens)
{
    static unsigned char seen[MAX_BS][MAX_BLOCKS];
    msgl_flashmla_sched_meta sched_meta[MAX_SM_PARTS];
    int32_t num_splits[MAX_BS + 1], splits[MAX_BS] = {0};
    int64_t cost = 0;
    memset(seen, 0, sizeof seen);
    memset(sched_meta, 0xee, sizeof sched_meta);
    msgl__flashmla_metadata(num_sm_parts, bs, lens, sched_meta, num_splits);
    for (int i = 0; i < bs; i++) cost += blocks_of(lens[i]) + MSGL_FLASHMLA_OVERHEAD;
    const int64_t payload = (cost + num_sm_parts - 1) / num_sm_parts + MSGL_FLASHMLA_OVERHEAD;
    for (int p = 0; p < num_sm_parts; p++) {
        const msgl_flashmla_sched_meta *meta = &sched_meta[p];
        int64_t own = 0;
        for (int req = meta->begin_req; req <= meta->end_req; req++) {
            const bool first = req == meta->begin_req, last = req == meta->end_req;
            const int from = first ? meta->begin_block : 0;
            const int to = last ? meta->end_block : blocks_of(lens[req]);
            assert_true(req >= 0 && req < bs && from < to && to <= blocks_of(lens[req]));
            assert_int_equal(first ? meta->begin_split : 0, splits[req]);
            splits[req]++;
            own += to - from + MSGL_FLASHMLA_OVERHEAD;
            for (int b = from; b < to; b++) assert_int_equal(seen[req][b]++, 0);
        }
        assert_true(own <= payload);
    }
    assert_int_equal(num_splits[0], 0);
    for (int i = 0; i < bs; i++) {
        assert_int_equal(num_splits[i + 1] - num_splits[i], splits[i]);
        for (int b = 0; b < blocks_of(lens[i]); b++) assert_int_equal(seen[i][b], 1);
    }
}

static void test_random(void **state)
{
    (void)state;
    uint64_t rng = 3;
    for (int round = 0; round < 20000; round++) {
        int32_t lens[MAX_BS];
        const int32_t bs = 1 + (int32_t)(msgl__random(&rng) % MAX_BS);
        const uint64_t longest = (uint64_t)1 << (msgl__random(&rng) % 15);
        for (int i = 0; i < bs; i++) lens[i] = 1 + (int32_t)(msgl__random(&rng) % longest);
        check(1 + (int32_t)(msgl__random(&rng) % MAX_SM_PARTS), bs, lens);
    }
}

// The figures that FlashMLA's formula gives for 132 multiprocessors.
static void test_known(void **state)
{
    (void)state;
    assert_int_equal(msgl__flashmla_num_sm_parts(132, 16), 132);
    assert_int_equal(msgl__flashmla_num_sm_parts(132, 128), 66);
    assert_int_equal(msgl__flashmla_num_sm_parts(1, 128), 1);
    // One request of 128 blocks on 66 workers: 133 / 66 rounded up, and 5: 3 blocks each, 42 splits
    // of 3 and one of 2.
    const int32_t len = 8192;
    msgl_flashmla_sched_meta sched_meta[66];
    int32_t num_splits[2];
    msgl__flashmla_metadata(66, 1, &len, sched_meta, num_splits);
    assert_int_equal(num_splits[1], 43);
    assert_int_equal(sched_meta[41].end_block, 126);
    assert_int_equal(sched_meta[42].begin_block, 126);
    assert_int_equal(sched_meta[42].end_block, 128);
    assert_true(sched_meta[43].end_req < sched_meta[43].begin_req);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_known)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
