// SPDX-License-Identifier: Apache-2.0
//
// Routing by its rules: each choice compared with one that goes through all replicas, and what the
// policies do to a trace of conversations.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "routing/router.h"
#include "utils/random.h"

static msgl_router *create(msgl_routing policy, int32_t replicas, double balance)
{
    const msgl_router_config cfg = {.policy = policy,
                                    .num_replicas = replicas,
                                    .block_size = 4,
                                    .cache_tokens = 4096,
                                    .max_memory = (size_t)64 << 20,
                                    .balance = balance};
    msgl_router *r;
    msgl_err err;
    assert_int_equal(msgl__router_create(&cfg, &r, &err), 0);
    for (int32_t i = 0; i < replicas; i++) {
        assert_false(msgl__router_is_up(r, i));
        msgl__router_set_up(r, i, true);
    }
    return r;
}

static int32_t choose(msgl_router *r, const int32_t *ids, int32_t n, int64_t answer,
                      msgl_route *out)
{
    uint64_t keys[512];
    assert_true(n / 4 <= 512);
    (void)msgl__router_keys(ids, n, 4, 1, keys);
    assert_int_equal(msgl__router_choose(r, keys, n, answer, out), 0);
    return out->replica;
}

static void test_config(void **state)
{
    (void)state;
    const msgl_router_config good = {.policy = MSGL_ROUTING_CACHE_AWARE,
                                     .num_replicas = 2,
                                     .block_size = 16,
                                     .cache_tokens = 1000,
                                     .max_memory = 1 << 20,
                                     .balance = 1};
    msgl_router_config bad[4] = {good, good, good, good};
    bad[0].num_replicas = 0;
    bad[1].num_replicas = MSGL_ROUTER_MAX_REPLICAS + 1;
    bad[2].block_size = 0;
    bad[3].balance = 0.99;
    static const char *const named[] = {"0 replicas", "65537 replicas", "blocks of 0", "0.99"};
    msgl_router *r = NULL;
    msgl_err err;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(msgl__router_create(&bad[i], &r, &err), MSGL_EINVAL);
        assert_non_null(strstr(err.text, named[i]));
    }
    for (uint64_t nth = 1; nth <= 8; nth++) {
        msgl__mem_fail_from(nth);
        assert_int_equal(msgl__router_create(&good, &r, &err), MSGL_ENOMEM);
        msgl__mem_fail_from(0);
    }
    assert_int_equal(msgl__router_create(&good, &r, &err), 0);
    msgl_route route;
    assert_int_equal(msgl__router_choose(r, NULL, 5, 5, &route), MSGL_ECLOSED);
    msgl__router_destroy(r);
    msgl_routing policy = MSGL_ROUTING_CACHE_AWARE;
    assert_int_equal(msgl__routing_of("total_tokens", &policy), 0);
    assert_int_equal(policy, MSGL_ROUTING_TOTAL_TOKENS);
    assert_string_equal(msgl__routing_name(policy), "total_tokens");
    assert_int_equal(msgl__routing_of("total", &policy), MSGL_ENOENT);
}

// A key is of the whole prefix and of the seed.
static void test_keys(void **state)
{
    (void)state;
    int32_t ids[11] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    uint64_t a[2], b[2];
    assert_int_equal(msgl__router_keys(ids, 11, 4, 9, a), 2);
    assert_int_equal(msgl__router_keys(ids, 3, 4, 9, b), 0);
    ids[9] = 0; // behind the whole blocks
    assert_int_equal(msgl__router_keys(ids, 11, 4, 9, b), 2);
    assert_memory_equal(a, b, sizeof a);
    ids[5] = 0;
    (void)msgl__router_keys(ids, 11, 4, 9, b);
    assert_true(a[0] == b[0] && a[1] != b[1]);
    ids[5] = 6;
    ids[0] = 0;
    (void)msgl__router_keys(ids, 11, 4, 9, b);
    assert_true(a[0] != b[0] && a[1] != b[1]);
    ids[0] = 1;
    (void)msgl__router_keys(ids, 11, 4, 8, b);
    assert_true(a[0] != b[0] && a[1] != b[1]);
}

static void test_round_robin(void **state)
{
    (void)state;
    msgl_router *r = create(MSGL_ROUTING_ROUND_ROBIN, 3, 1);
    msgl_route route;
    for (int i = 0; i < 7; i++) {
        assert_int_equal(msgl__router_choose(r, NULL, 1 + 1000 * (i % 3), 1, &route), 0);
        assert_int_equal(route.replica, i % 3);
    }
    assert_int_equal(msgl__router_load(r, 2), 2 * (2001 + MSGL_ROUTER_ANSWER_COST));
    msgl__router_set_up(r, 1, false);
    static const int32_t without[] = {2, 0, 2, 0};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(msgl__router_choose(r, NULL, 1, 1, &route), 0);
        assert_int_equal(route.replica, without[i]);
    }
    msgl__router_set_up(r, 1, true);
    assert_int_equal(msgl__router_choose(r, NULL, 1, 1, &route), 0);
    assert_int_equal(route.replica, 1);
    msgl__router_destroy(r);
}

// Requests come, start and end at random on replicas that go down and up; each goes to the least
// load of all that are up, and of equal ones to the one chosen longest ago.
static void test_total_tokens(void **state)
{
    (void)state;
    enum { N = 37, OPEN = 100 };
    msgl_router *r = create(MSGL_ROUTING_TOTAL_TOKENS, N, 1);
    static msgl_route open[OPEN];
    int64_t load[N] = {0};
    uint64_t chosen[N], random = 3, clock = N;
    bool up[N];
    int32_t num_up = N;
    for (int32_t i = 0; i < N; i++) chosen[i] = (uint64_t)i, up[i] = true;
    for (int i = 0; i < OPEN; i++) open[i].replica = -1;
    for (int step = 0; step < 20000; step++) {
        const int32_t flip = (int32_t)msgl__random_below(&random, N);
        if (step % 16 == 0 && (num_up > 1 || !up[flip])) {
            up[flip] = !up[flip];
            num_up += up[flip] ? 1 : -1;
            msgl__router_set_up(r, flip, up[flip]);
        }
        msgl_route *o = &open[msgl__random_below(&random, OPEN)];
        if (o->replica >= 0 && o->to_start > 0 && msgl__random_below(&random, 2) == 0) {
            load[o->replica] -= o->to_start;
            msgl__router_started(r, o);
            assert_int_equal(msgl__router_load(r, o->replica), load[o->replica]);
            continue;
        }
        if (o->replica >= 0) {
            load[o->replica] -= o->to_start + o->to_last;
            msgl__router_ended(r, o);
            assert_int_equal(msgl__router_load(r, o->replica), load[o->replica]);
            o->replica = -1;
            continue;
        }
        int32_t best = -1;
        for (int32_t i = 0; i < N; i++) {
            if (!up[i]) continue;
            if (best < 0 || load[i] < load[best] ||
                (load[i] == load[best] && chosen[i] < chosen[best])) {
                best = i;
            }
        }
        const int32_t n = (int32_t)msgl__random_below(&random, 5) * 100;
        const int64_t answer = (int64_t)msgl__random_below(&random, 3) * 10;
        assert_int_equal(msgl__router_choose(r, NULL, n, answer, o), 0);
        assert_int_equal(o->replica, best);
        load[best] += n + answer * MSGL_ROUTER_ANSWER_COST;
        chosen[best] = clock++;
        assert_int_equal(msgl__router_load(r, best), load[best]);
    }
    msgl__router_destroy(r);
}

// Prompts of few beginnings, compared with a search through all replicas: how much of the prompt
// each was given before (caches are large enough to keep all), and what its load says.
static void test_cache_aware(void **state)
{
    (void)state;
    enum { N = 6, OPEN = 24, LONGEST = 40, GIVEN = 4000 };
    static int32_t given[GIVEN][LONGEST];
    static int32_t len[GIVEN], to[GIVEN];
    static msgl_route open[OPEN];
    int32_t num_given = 0;
    const double balance = 1.25;
    msgl_router *r = create(MSGL_ROUTING_CACHE_AWARE, N, balance);
    uint64_t random = 5;
    int kept = 0, moved = 0;
    for (int i = 0; i < OPEN; i++) open[i].replica = -1;
    while (num_given < GIVEN) {
        if (msgl__random_below(&random, 400) == 0) { // one loses its cache
            const int32_t lost = (int32_t)msgl__random_below(&random, N);
            msgl__router_forget(r, lost);
            for (int32_t g = 0; g < num_given; g++) {
                if (to[g] == lost) len[g] = 0;
            }
        }
        int32_t *ids = given[num_given];
        const int32_t n = 1 + (int32_t)msgl__random_below(&random, LONGEST);
        for (int32_t i = 0; i < n; i++) {
            ids[i] = i % 4 == 3 ? (int32_t)msgl__random_below(&random, 1 + i / 8) : i;
        }
        int32_t cached[N] = {0};
        for (int32_t g = 0; g < num_given; g++) {
            int32_t same = 0;
            while (same < n && same < len[g] && ids[same] == given[g][same]) same++;
            const int32_t whole = len[g] / 4 * 4;
            same = (same < whole ? same : whole) / 4 * 4;
            if (same > cached[to[g]]) cached[to[g]] = same;
        }
        int64_t least = INT64_MAX;
        for (int32_t i = 0; i < N; i++) {
            if (msgl__router_load(r, i) < least) least = msgl__router_load(r, i);
        }
        double best = 1e9, cost[N];
        int32_t most = 0;
        for (int32_t i = 0; i < N; i++) {
            const double more = (double)msgl__router_load(r, i) - balance * (double)least;
            cost[i] = (more > 0 ? more : 0) + n - cached[i];
            if (cost[i] < best) best = cost[i];
            if (cached[i] > most) most = cached[i];
        }
        msgl_route *o = &open[msgl__random_below(&random, OPEN)];
        if (o->replica >= 0) msgl__router_ended(r, o);
        // Ending has changed a load; the choice is compared when there was nothing to end.
        const bool fresh = o->replica < 0;
        const int32_t went = choose(r, ids, n, (int64_t)msgl__random_below(&random, 8), o);
        if (fresh) {
            assert_int_equal(o->cached, cached[went]);
            assert_true(cost[went] == best);
            kept += most > 0 && cached[went] == most;
            moved += cached[went] < most;
        }
        len[num_given] = n;
        to[num_given++] = went;
        if (msgl__random_below(&random, 2) == 0) {
            msgl__router_ended(r, o);
            o->replica = -1;
        } else if (msgl__random_below(&random, 2) == 0) {
            msgl__router_started(r, o);
        }
    }
    assert_true(kept > 300 && moved > 100); // both happen
    msgl__router_destroy(r);
}

// A cached prefix is left when its replica is busier by more than that is worth.
static void test_trade_off(void **state)
{
    (void)state;
    static int32_t ids[2][400];
    for (int32_t i = 0; i < 400; i++) ids[0][i] = i, ids[1][i] = -i;
    msgl_router *r = create(MSGL_ROUTING_CACHE_AWARE, 2, 2);
    msgl_route first, other, route;
    assert_int_equal(choose(r, ids[0], 400, 0, &first), 0);
    assert_int_equal(choose(r, ids[1], 400, 0, &other), 1);
    msgl__router_ended(r, &first);
    msgl__router_ended(r, &other);
    // The load of 1 is 300: what 0 has may be 600 and what is cached there.
    assert_int_equal(msgl__router_choose(r, NULL, 999, 0, &first), 0);
    assert_int_equal(first.replica, 0);
    assert_int_equal(msgl__router_choose(r, NULL, 300, 0, &other), 0);
    assert_int_equal(other.replica, 1);
    assert_int_equal(choose(r, ids[0], 400, 0, &route), 0);
    assert_int_equal(route.cached, 400);
    msgl__router_ended(r, &route);
    msgl__router_ended(r, &first);
    assert_int_equal(msgl__router_choose(r, NULL, 1001, 0, &first), 0);
    assert_int_equal(first.replica, 0);
    assert_int_equal(choose(r, ids[0], 400, 0, &route), 1);
    assert_int_equal(route.cached, 0);
    // Nobody is asked who is down; and who came back has nothing.
    msgl__router_ended(r, &first);
    msgl__router_ended(r, &other);
    msgl__router_ended(r, &route);
    msgl__router_forget(r, 1);
    msgl__router_set_up(r, 0, false);
    assert_int_equal(choose(r, ids[0], 400, 0, &route), 1);
    assert_int_equal(route.cached, 0);
    msgl__router_destroy(r);
}

// What does not fit into max_memory is not known: the first blocks of a long prompt remain.
static void test_memory(void **state)
{
    (void)state;
    msgl_router_config cfg = {.policy = MSGL_ROUTING_CACHE_AWARE,
                              .num_replicas = 2,
                              .block_size = 1,
                              .cache_tokens = 1 << 20,
                              .max_memory = 10000,
                              .balance = 1};
    msgl_router *r;
    msgl_err err;
    assert_int_equal(msgl__router_create(&cfg, &r, &err), 0);
    msgl__router_set_up(r, 0, true);
    static int32_t ids[1000];
    static uint64_t keys[1000];
    msgl_route route;
    assert_int_equal(msgl__router_keys(ids, 1000, 1, 0, keys), 1000);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(msgl__router_choose(r, keys, 1000, 0, &route), 0);
        if (i == 0) assert_int_equal(route.cached, 0);
    }
    assert_in_range(route.cached, 16, 150); // 10000 bytes / 2 replicas / about 60 bytes a block
    msgl__router_destroy(r);
}

// 64 conversations of 8 turns over 4 replicas, 512 new tokens each: round robin computes each
// conversation's past on every replica it comes to, routing by prefix computes the new tokens.
static int64_t computed(msgl_routing policy)
{
    enum { TALKS = 64, TURNS = 8, NEW = 512, REPLICAS = 4 };
    const msgl_router_config cfg = {.policy = policy,
                                    .num_replicas = REPLICAS,
                                    .block_size = 16,
                                    .cache_tokens = 1 << 20,
                                    .max_memory = (size_t)64 << 20,
                                    .balance = MSGL_ROUTER_BALANCE};
    static int32_t ids[TALKS][TURNS * NEW];
    static int32_t has[TALKS][REPLICAS]; // what a replica was given of a conversation
    static uint64_t keys[TURNS * NEW / 16];
    msgl_router *r;
    msgl_err err;
    uint64_t random = 1;
    int64_t sum = 0;
    memset(has, 0, sizeof has);
    assert_int_equal(msgl__router_create(&cfg, &r, &err), 0);
    for (int32_t i = 0; i < REPLICAS; i++) msgl__router_set_up(r, i, true);
    for (int32_t turn = 1; turn <= TURNS; turn++) {
        msgl_route open[TALKS];
        for (int32_t t = 0; t < TALKS; t++) {
            // Conversations take turns in another order each time.
            const int32_t talk = (t * 37 + turn * 11) % TALKS;
            for (int32_t i = (turn - 1) * NEW; i < turn * NEW; i++) {
                ids[talk][i] = (int32_t)msgl__random_below(&random, 1000);
            }
            (void)msgl__router_keys(ids[talk], turn * NEW, 16, 0, keys);
            assert_int_equal(msgl__router_choose(r, keys, turn * NEW, 64, &open[t]), 0);
            int32_t *h = &has[talk][open[t].replica];
            sum += turn * NEW - *h;
            *h = turn * NEW;
        }
        for (int32_t t = 0; t < TALKS; t++) msgl__router_ended(r, &open[t]);
    }
    msgl__router_destroy(r);
    return sum;
}

static void test_conversations(void **state)
{
    (void)state;
    const int64_t new_tokens = 64 * 8 * 512;
    const int64_t cached = computed(MSGL_ROUTING_CACHE_AWARE);
    const int64_t plain = computed(MSGL_ROUTING_ROUND_ROBIN);
    print_message("computed: %lld tokens by prefix, %lld in turn, %lld are new\n",
                  (long long)cached, (long long)plain, (long long)new_tokens);
    assert_true(cached >= new_tokens);
    assert_true(cached < new_tokens + new_tokens / 10);
    assert_true(plain > 2 * new_tokens);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config),      cmocka_unit_test(test_keys),
        cmocka_unit_test(test_round_robin), cmocka_unit_test(test_total_tokens),
        cmocka_unit_test(test_cache_aware), cmocka_unit_test(test_trade_off),
        cmocka_unit_test(test_memory),      cmocka_unit_test(test_conversations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
