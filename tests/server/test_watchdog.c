// SPDX-License-Identifier: Apache-2.0
//
// When an engine is said to hang, by a clock and a heartbeat that the test sets.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "launch/watchdog.h"

static const uint64_t MS = 1000000, START = 5000000000000u;

typedef struct scene {
    msgl_heartbeat h;
    msgl_watchdog w;
    uint64_t now;
    int timeout_s, silence_ms;
    char why[160];
} scene;

static scene begin(int timeout_s)
{
    return (scene){.now = START, .timeout_s = timeout_s};
}

// Looks every 100 ms for so long; how many ms passed until the engine was said to hang, or -1.
static int look(scene *s, int ms, bool beats)
{
    for (int t = 0; t <= ms; t += MSGL_WATCHDOG_TICK_MS) {
        if (t > 0) s->now += MSGL_WATCHDOG_TICK_MS * MS;
        if (beats) atomic_fetch_add(&s->h.alive, 1);
        if (msgl__watchdog_look(&s->w, &s->h, s->timeout_s, s->silence_ms, s->now, s->why))
            return t;
    }
    return -1;
}

// Between steps a process may be silent for so long, whatever it was before, and for ever where
// nobody minds.
static void test_idle(void **state)
{
    (void)state;
    scene s = begin(1);
    assert_int_equal(look(&s, 100000, false), -1);
    msgl__heartbeat_begin(&s.h, 20 * MS);
    msgl__heartbeat_end(&s.h);
    assert_int_equal(look(&s, 100000, false), -1);
    s = begin(60);
    s.silence_ms = 3000;
    for (int i = 0; i < 20; i++) { // once in 2.9 s is often enough
        msgl__beat(&s.h, i % 2 == 0 ? MSGL_BEAT_SCHEDULER : MSGL_BEAT_COMPUTE);
        assert_int_equal(look(&s, 2900, false), -1);
    }
    msgl__beat(&s.h, MSGL_BEAT_SCHEDULER);
    s.now += 100 * MS; // seen at the next look
    assert_int_equal(look(&s, 10000, false), 3000);
    assert_string_equal(s.why, "it has given no sign of life for 3.0 s");
    // A step is not between steps: it has its own time, and what comes behind it begins anew.
    s = begin(60);
    s.silence_ms = 3000;
    msgl__heartbeat_begin(&s.h, 20 * MS);
    assert_int_equal(look(&s, 50000, false), -1);
    msgl__heartbeat_end(&s.h);
    s.now += 100 * MS;
    assert_int_equal(look(&s, 10000, false), 2900);
}

// A step whose answers nobody takes lives as long as it says so, and no longer.
static void test_waits(void **state)
{
    (void)state;
    scene s = begin(2);
    s.silence_ms = 3000;
    msgl__heartbeat_begin(&s.h, 20 * MS);
    for (int i = 0; i < 100; i++) {
        msgl__heartbeat_wait(&s.h);
        assert_int_equal(look(&s, 1900, false), -1);
    }
    s.now += 100 * MS;
    assert_int_equal(look(&s, 5000, false), 0);
    assert_non_null(strstr(s.why, "a step of the engine takes more than 2.0 s"));
}

static void test_step(void **state)
{
    (void)state;
    scene s = begin(3);
    assert_int_equal(look(&s, 1000, false), -1);
    msgl__heartbeat_begin(&s.h, 20 * MS);
    // First seen at the look after it began.
    assert_int_equal(look(&s, 10000, false), 3000);
    assert_string_equal(s.why, "a step of the engine takes more than 3.0 s; expected: 0.020 s");
    // Ten times what is expected, where that is more.
    s = begin(3);
    msgl__heartbeat_begin(&s.h, 2500 * MS);
    assert_int_equal(look(&s, 60000, false), 25000);
    assert_string_equal(s.why, "a step of the engine takes more than 25.0 s; expected: 2.500 s");
    // Nobody knows.
    s = begin(3);
    msgl__heartbeat_begin(&s.h, 0);
    assert_int_equal(look(&s, 600000, false), 300000);
    assert_string_equal(s.why, "the engine's first step takes more than 300 s");
    s = begin(400);
    msgl__heartbeat_begin(&s.h, 0);
    assert_int_equal(look(&s, 600000, false), 400000);
    // Never.
    s = begin(0);
    msgl__heartbeat_begin(&s.h, 20 * MS);
    assert_int_equal(look(&s, 1000000, false), -1);
}

// Each step has its own time, however many there are.
static void test_steps(void **state)
{
    (void)state;
    scene s = begin(1);
    for (int i = 0; i < 100; i++) {
        msgl__heartbeat_begin(&s.h, 90 * MS);
        assert_int_equal(look(&s, 800, false), -1);
        if (i % 2 == 0) msgl__heartbeat_end(&s.h);
    }
    assert_int_equal(look(&s, 2000, false), 200);
}

// Several ranks: the first stands still.
static void test_standing_still(void **state)
{
    (void)state;
    scene s = begin(0);
    assert_int_equal(look(&s, 5000, true), -1);
    assert_int_equal(look(&s, 5000, false), 1500);
    assert_string_equal(s.why, "the engine's first rank has stood still for 1.5 s");
    // It ends on purpose.
    s = begin(0);
    assert_int_equal(look(&s, 5000, true), -1);
    msgl__heartbeat_reset(&s.h);
    assert_int_equal(look(&s, 5000, false), -1);
}

// A machine that was suspended, for seconds and again and again.
static void test_pauses(void **state)
{
    (void)state;
    scene s = begin(2);
    assert_int_equal(look(&s, 500, true), -1);
    msgl__heartbeat_begin(&s.h, 20 * MS);
    for (int i = 0; i < 10; i++) {
        s.now += 3600000 * MS;
        assert_int_equal(look(&s, 100, false), -1);
    }
    // Of the step's 2 s one is over: ten looks, each 100 ms after another one.
    assert_int_equal(look(&s, 3000, true), 1000);
}

// What is said of a new engine does not come from the one before it.
static void test_another_engine(void **state)
{
    (void)state;
    scene s = begin(1);
    assert_int_equal(look(&s, 500, true), -1);
    msgl__heartbeat_begin(&s.h, 20 * MS);
    assert_int_equal(look(&s, 5000, true), 1000);
    msgl__heartbeat_reset(&s.h);
    s.w = (msgl_watchdog){0};
    assert_int_equal(look(&s, 5000, false), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idle),           cmocka_unit_test(test_waits),
        cmocka_unit_test(test_step),           cmocka_unit_test(test_steps),
        cmocka_unit_test(test_standing_still), cmocka_unit_test(test_pauses),
        cmocka_unit_test(test_another_engine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
