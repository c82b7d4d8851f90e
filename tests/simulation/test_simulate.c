// SPDX-License-Identifier: Apache-2.0
//
// Simulations small enough to be computed by hand, and what holds in all of them.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/mem.h"
#include "core/settings.h"
#include "apps/simulation/simulate.h"
#include "temp_file.h"
#include "utils/random.h"

// A step of answers takes 10 ms, n prompt tokens take n ms, but not less than 1.
static const char TABLE[] =
    "{\"phase\":\"decode\",\"batch\":1,\"context\":1,\"tile\":0,\"ms_per_step\":10}\n"
    "{\"phase\":\"prefill\",\"chunk\":1,\"prefix\":0,\"tile\":0,\"ms_per_step\":1}\n"
    "{\"phase\":\"prefill\",\"chunk\":1000,\"prefix\":0,\"tile\":0,\"ms_per_step\":1000}\n";

typedef struct world {
    msgl_options options;
    msgl_step_table *steps;
    msgl_trace trace;
    msgl_simulation_config cfg;
} world;

static void open_steps(world *w, const char *steps, const char *lines)
{
    msgl_err err;
    *w = (world){0};
    const temp_file table = temp_file_with(steps), trace = temp_file_with(lines);
    assert_int_equal(msgl__step_table_load(table.path, &w->steps, &err), 0);
    assert_int_equal(msgl__trace_load(trace.path, 4, 0, &w->trace, &err), 0);
    unlink(table.path);
    unlink(trace.path);
    msgl__settings_default(&msgl__engine_settings, &w->options);
    w->options.num_pages = 4096;
    w->options.max_running = 64;
    w->options.max_seq_len = w->trace.longest;
    w->cfg = (msgl_simulation_config){.options = &w->options,
                                      .trace = &w->trace,
                                      .steps = w->steps,
                                      .num_replicas = 1,
                                      .policy = MSGL_ROUTING_ROUND_ROBIN,
                                      .balance = MSGL_ROUTER_BALANCE};
}

static void open_world(world *w, const char *lines)
{
    open_steps(w, TABLE, lines);
}

static void close_world(world *w)
{
    msgl__step_table_destroy(w->steps);
    msgl__trace_free(&w->trace);
}

static msgl_simulation_result simulate(const world *w)
{
    msgl_simulation_result r;
    msgl_err err;
    assert_int_equal(msgl__simulate(&w->cfg, &r, &err), 0);
    return r;
}

// In thousandths; bins of the histogram are narrower.
static void assert_near(double got, double want)
{
    assert_true(got >= want * 0.999 && got <= want * 1.001);
}

// 20 ms for the prompt, then two steps of 10 ms, with overlap and without.
static void test_clock(void **state)
{
    (void)state;
    world w;
    open_world(&w, "{\"timestamp\":5000,\"input_length\":20,\"output_length\":3}\n");
    for (int overlap = 0; overlap < 2; overlap++) {
        w.options.overlap = overlap;
        const msgl_simulation_result r = simulate(&w);
        assert_int_equal(r.completed, 1);
        assert_int_equal(r.output_tokens, 3);
        assert_int_equal(r.prompt_tokens, 20);
        assert_near(r.ttft.p50, 20);
        assert_near(r.gap.p50, 10);
        assert_near(r.gap.max, 10);
        assert_near(r.e2e.max, 40);
        assert_near(r.wall_s, 0.040);
        assert_near(r.busy, 1);
        assert_int_equal(r.steps, 3);
    }
    close_world(&w);
}

static const char THREE[] = "{\"timestamp\":0,\"input_length\":20,\"output_length\":3}\n"
                            "{\"timestamp\":100,\"input_length\":20,\"output_length\":3}\n"
                            "{\"timestamp\":0,\"input_length\":20,\"output_length\":3}\n";

// One client does one request after the other; three servers do them at once.
static void test_clients_and_replicas(void **state)
{
    (void)state;
    world w;
    open_world(&w, THREE);
    w.cfg.clients = 1;
    assert_near(simulate(&w).wall_s, 0.120);
    w.cfg.clients = 3;
    w.cfg.num_replicas = 3;
    const msgl_simulation_result r = simulate(&w);
    assert_near(r.wall_s, 0.040);
    assert_near(r.ttft.max, 20);
    // Of four, one has nothing to do.
    w.cfg.num_replicas = 4;
    assert_near(simulate(&w).busy, 0.75);
    close_world(&w);
}

// A prompt of more tokens than a scheduler that knows nothing puts into a step: two steps for the
// trace's first request, one for a client's, whose server has answered one before.
static void test_warm_servers(void **state)
{
    (void)state;
    world w;
    open_steps(
        &w,
        "{\"phase\":\"decode\",\"batch\":1,\"context\":1,\"tile\":0,\"ms_per_step\":10}\n"
        "{\"phase\":\"prefill\",\"chunk\":1000,\"prefix\":0,\"tile\":0,\"ms_per_step\":100}\n",
        "{\"timestamp\":0,\"input_length\":900,\"output_length\":2}\n");
    w.options.max_prefill_tokens = 2048;
    assert_int_equal(simulate(&w).steps, 3);
    w.cfg.clients = 1;
    const msgl_simulation_result r = simulate(&w);
    assert_int_equal(r.steps, 2);
    assert_int_equal(r.completed, 1);
    assert_int_equal(r.output_tokens, 2);
    assert_int_equal(r.cached_tokens, 0);
    assert_near(r.wall_s, 0.110);
    assert_near(r.busy, 1);
    close_world(&w);
}

// The second comes when the first is done, the third with it: then both prompts are one step.
static void test_arrivals(void **state)
{
    (void)state;
    world w;
    open_world(&w, THREE);
    const msgl_simulation_result r = simulate(&w);
    // Lines 1 and 3: 40 ms of prompts, then two steps of 10 ms; line 2 as if alone.
    assert_near(r.ttft.p50, 40);
    assert_near(r.e2e.p50, 60);
    assert_near(r.wall_s, 0.140);
    assert_int_equal(r.steps, 6);
    close_world(&w);
}

static const char TURNS[] =
    "{\"timestamp\":0,\"input_length\":20,\"output_length\":4,\"session_id\":1}\n"
    "{\"input_length\":10,\"output_length\":2,\"session_id\":1,\"delay\":1000}\n"
    "{\"input_length\":10,\"output_length\":2,\"session_id\":1,\"delay\":1000}\n";

// A turn finds all of the one before but its last token, whose K and V nobody has needed yet.
static void test_conversation(void **state)
{
    (void)state;
    world w;
    open_world(&w, TURNS);
    msgl_simulation_result r = simulate(&w);
    assert_int_equal(r.prompt_tokens, 20 + 34 + 46);
    assert_int_equal(r.cached_tokens, 23 + 35);
    // 20 + 3 * 10, 1000, 11 + 10, 1000, 11 + 10.
    assert_near(r.wall_s, 2.092);
    w.options.cache_type = "naive";
    r = simulate(&w);
    assert_int_equal(r.cached_tokens, 0);
    assert_near(r.wall_s, 2.150); // 34 + 10, 46 + 10
    // Another server each turn: the third finds what the first has left on the first server.
    w.options.cache_type = "radix";
    w.cfg.num_replicas = 2;
    assert_int_equal(simulate(&w).cached_tokens, 23);
    close_world(&w);
}

// The same in prompts long enough to be compared by the router: it goes where its history is.
static void test_routing(void **state)
{
    (void)state;
    world w;
    open_world(&w, "{\"timestamp\":0,\"input_length\":200,\"output_length\":4,\"session_id\":1}\n"
                   "{\"input_length\":100,\"output_length\":2,\"session_id\":1}\n"
                   "{\"input_length\":100,\"output_length\":2,\"session_id\":1}\n");
    w.cfg.num_replicas = 2;
    assert_int_equal(simulate(&w).cached_tokens, 203);
    w.cfg.policy = MSGL_ROUTING_CACHE_AWARE;
    assert_int_equal(simulate(&w).cached_tokens, 203 + 305);
    close_world(&w);
}

static const char REPEATS[] = "{\"timestamp\":0,\"input_length\":64,\"output_length\":400,"
                              "\"session_id\":1,\"acceptance\":%s}\n"
                              "{\"input_length\":40,\"output_length\":4,\"session_id\":1}\n";

static msgl_simulation_result with_acceptance(const char *steps, const char *acceptance,
                                              const char *algorithm)
{
    world w;
    char text[sizeof REPEATS + 8];
    (void)snprintf(text, sizeof text, REPEATS, acceptance);
    open_steps(&w, steps, text);
    w.options.speculative_algorithm = algorithm;
    const msgl_simulation_result r = simulate(&w), again = simulate(&w);
    assert_int_equal(r.completed, 2);
    assert_int_equal(r.output_tokens, 404);
    assert_int_equal(r.cached_tokens, 463); // the later turn finds the answer as it was
    assert_true(r.wall_s == again.wall_s && r.drafted_tokens == again.drafted_tokens);
    close_world(&w);
    return r;
}

// A draft takes 1 ms of a step of 10 or more. Of an answer that goes on as before all of them are
// right, of one that repeats nothing there are none.
static void test_drafts(void **state)
{
    (void)state;
    const msgl_simulation_result none = with_acceptance(TABLE, "0.9", "none");
    assert_int_equal(none.drafted_tokens, 0);
    assert_int_equal(none.steps, 2 + 399 + 3);
    static const char *const ALGORITHMS[] = {"NGRAM", "SUFFIX", "auto"};
    for (size_t i = 0; i < 3; i++) {
        const msgl_simulation_result nothing = with_acceptance(TABLE, "0", ALGORITHMS[i]);
        assert_int_equal(nothing.drafted_tokens, 0);
        assert_true(nothing.wall_s == none.wall_s && nothing.steps == none.steps);
        const msgl_simulation_result all = with_acceptance(TABLE, "1", ALGORITHMS[i]);
        assert_int_equal(all.accepted_tokens, all.drafted_tokens);
        assert_true(all.steps < 2 + 60 + 3 && all.wall_s < none.wall_s / 3);
        // Each token comes of a step or is accepted. The more often, the faster.
        assert_int_equal(all.steps + all.accepted_tokens, none.steps);
        double wall = all.wall_s;
        static const char *const RATES[] = {"0.95", "0.8"};
        for (size_t k = 0; k < 2; k++) {
            const msgl_simulation_result some = with_acceptance(TABLE, RATES[k], ALGORITHMS[i]);
            assert_true(some.accepted_tokens > 0 && some.accepted_tokens < some.drafted_tokens);
            assert_int_equal(some.steps + some.accepted_tokens, none.steps);
            assert_true(some.wall_s > wall && some.wall_s < none.wall_s);
            wall = some.wall_s;
        }
    }
}

// Where a row costs as much as a step, drafts are tried a few times, which a server pays for once.
static void test_drafts_that_do_not_pay(void **state)
{
    (void)state;
    static const char STEEP[] =
        "{\"phase\":\"decode\",\"batch\":1,\"context\":1,\"tile\":0,\"ms_per_step\":10}\n"
        "{\"phase\":\"prefill\",\"chunk\":1,\"prefix\":0,\"tile\":0,\"ms_per_step\":10}\n"
        "{\"phase\":\"prefill\",\"chunk\":1000,\"prefix\":0,\"tile\":0,\"ms_per_step\":10000}\n";
    const msgl_simulation_result none = with_acceptance(STEEP, "0.9", "none"),
                                 some = with_acceptance(STEEP, "0.9", "SUFFIX");
    assert_true(some.drafted_tokens < 40);
    assert_true(some.wall_s < none.wall_s + 0.2);
}

static void test_refused(void **state)
{
    (void)state;
    world w;
    open_world(&w, TURNS);
    w.options.num_pages = 40; // the last turn needs 47
    const msgl_simulation_result r = simulate(&w);
    assert_int_equal(r.completed, 2);
    assert_int_equal(r.failed, 1);
    assert_non_null(strstr(r.first_error, "the KV cache holds 40 tokens"));
    w.options.num_pages = 10;
    assert_int_equal(simulate(&w).failed, 3); // the later turns with the first
    close_world(&w);
}

// Whatever the pool, the number of servers and the policy: every request gets its tokens, and the
// same input gives the same result.
static void test_conservation(void **state)
{
    (void)state;
    enum { COUNT = 400 };
    static char text[COUNT * 160];
    uint64_t rng = 11;
    size_t len = 0;
    int64_t output = 0;
    for (int i = 0; i < COUNT; i++) {
        const int out = 1 + (int)msgl__random_below(&rng, 60);
        output += out;
        len += (size_t)snprintf(text + len, sizeof text - len,
                                "{\"timestamp\":%d,\"input_length\":%d,\"output_length\":%d,\"hash_"
                                "ids\":[%d,%d]%s%d}\n",
                                (int)msgl__random_below(&rng, 4000),
                                5 + (int)msgl__random_below(&rng, 40), out,
                                (int)msgl__random_below(&rng, 3), (int)msgl__random_below(&rng, 3),
                                i % 3 == 0 ? ",\"delay\":5,\"session_id\":" : ",\"x\":", i % 40);
    }
    world w;
    open_world(&w, text);
    int64_t retracted = 0;
    for (int pages = 0; pages < 2; pages++) {
        w.options.num_pages = pages == 0 ? w.trace.longest : 1 << 15;
        for (int32_t n = 1; n <= 5; n += 2) {
            w.cfg.num_replicas = n;
            for (int p = MSGL_ROUTING_CACHE_AWARE; p <= MSGL_ROUTING_ROUND_ROBIN; p++) {
                w.cfg.policy = (msgl_routing)p;
                const msgl_simulation_result r = simulate(&w), again = simulate(&w);
                assert_int_equal(r.completed, COUNT);
                assert_int_equal(r.failed, 0);
                assert_int_equal(r.output_tokens, output);
                assert_true(r.cached_tokens > 0 && r.cached_tokens < r.prompt_tokens);
                assert_true(r.busy > 0 && r.busy <= 1);
                assert_true(r.wall_s == again.wall_s && r.ttft.p99 == again.ttft.p99 &&
                            r.cached_tokens == again.cached_tokens && r.steps == again.steps);
                retracted += r.retracted;
            }
        }
    }
    assert_true(retracted > 0); // the small pool was too small for those that ran
    close_world(&w);
}

static bool stop(void *ctx, int32_t done, int32_t total)
{
    (void)ctx, (void)done, (void)total;
    return false;
}

static void test_ends_early(void **state)
{
    (void)state;
    world w;
    msgl_simulation_result r;
    msgl_err err;
    open_world(&w, THREE);
    w.cfg.progress = stop;
    assert_int_equal(msgl__simulate(&w.cfg, &r, &err), MSGL_EABORTED);
    w.cfg.progress = NULL;
    w.cfg.num_replicas = MSGL_SIMULATION_MAX_REPLICAS + 1;
    assert_int_equal(msgl__simulate(&w.cfg, &r, &err), MSGL_EINVAL);
    assert_non_null(strstr(err.text, "10001 replicas; allowed: 1 to 10000"));
    // Whichever allocation fails: one error, and nothing is left.
    w.cfg.num_replicas = 2;
    w.cfg.policy = MSGL_ROUTING_CACHE_AWARE;
    int rc = MSGL_ENOMEM;
    uint64_t nth = 1;
    for (; rc == MSGL_ENOMEM && nth < 1000; nth++) {
        msgl__mem_fail_from(nth);
        rc = msgl__simulate(&w.cfg, &r, &err);
        msgl__mem_fail_from(0);
        if (rc == 0 && r.failed > 0) rc = MSGL_ENOMEM; // refused by the scheduler for want of it
    }
    assert_int_equal(rc, 0);
    assert_int_equal(r.completed, 3);
    assert_true(nth > 20);
    close_world(&w);
}

// What a refused request would have been to do is nobody's load. Of two servers the first refuses
// one of 100 tokens; the two that come later, of 20 each, have one server each: 20 ms, where both
// on the second would wait for a step of 40.
static void test_refused_load(void **state)
{
    (void)state;
    world w;
    open_world(&w, "{\"timestamp\":0,\"input_length\":100,\"output_length\":3}\n"
                   "{\"timestamp\":1000,\"input_length\":20,\"output_length\":3}\n"
                   "{\"timestamp\":1000,\"input_length\":20,\"output_length\":3}\n");
    w.options.num_pages = 60;
    w.cfg.num_replicas = 2;
    w.cfg.policy = MSGL_ROUTING_TOTAL_TOKENS;
    const msgl_simulation_result r = simulate(&w);
    assert_int_equal(r.failed, 1);
    assert_int_equal(r.completed, 2);
    assert_near(r.ttft.max, 20);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_load),
        cmocka_unit_test(test_clock),
        cmocka_unit_test(test_clients_and_replicas),
        cmocka_unit_test(test_warm_servers),
        cmocka_unit_test(test_arrivals),
        cmocka_unit_test(test_conversation),
        cmocka_unit_test(test_drafts),
        cmocka_unit_test(test_drafts_that_do_not_pay),
        cmocka_unit_test(test_routing),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_conservation),
        cmocka_unit_test(test_ends_early),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
