// SPDX-License-Identifier: Apache-2.0
#include "launch/watchdog.h"

#include <stdio.h>

static const uint64_t SECOND = 1000000000u;
static const uint64_t STILL_NS = 1500000000u;    // ranks blame each other after as long
static const uint64_t PAUSE_NS = 500000000u;     // looks are further apart: the watchdog paused
static const uint64_t UNKNOWN_NS = 30000000000u; // expected of a step before any was seen

static uint64_t allowed_ns(uint64_t expected, int timeout_s)
{
    const uint64_t least = (uint64_t)timeout_s * SECOND;
    return 10 * expected > least ? 10 * expected : least;
}

bool msgl__watchdog_look(msgl_watchdog *w, const msgl_heartbeat *h, int timeout_s, int silence_ms,
                         uint64_t now, char why[160])
{
    // When this process did not run for a while (the machine was suspended, or is overloaded) the
    // others may not have run either, so that the time between the two looks does not count.
    const bool paused = w->last == 0 || now - w->last > PAUSE_NS;
    if (!paused) w->clock += now - w->last;
    w->last = now;
    const uint64_t alive = atomic_load_explicit(&h->alive, memory_order_relaxed);
    if (paused || alive == 0 || alive != w->alive) w->alive_since = w->clock;
    w->alive = alive;
    const uint64_t ended = atomic_load_explicit(&h->ended, memory_order_acquire);
    const uint64_t begun = atomic_load_explicit(&h->begun, memory_order_acquire);
    const uint64_t known = atomic_load_explicit(&h->expected_ns, memory_order_relaxed);
    const uint64_t waits = atomic_load_explicit(&h->waits, memory_order_relaxed);
    if (begun == ended || begun != w->begun || waits != w->waits) w->begun_since = w->clock;
    w->begun = begun;
    w->waits = waits;
    const uint64_t beats = msgl__beats(h);
    if (begun != ended || beats != w->beats || paused) w->beats_since = w->clock;
    w->beats = beats;
    if (w->clock - w->alive_since >= STILL_NS) {
        (void)snprintf(why, 160, "the engine's first rank has stood still for %.1f s",
                       (double)STILL_NS / (double)SECOND);
        return true;
    }
    const uint64_t silence = (uint64_t)silence_ms * 1000000u;
    if (silence > 0 && w->clock - w->beats_since >= silence) {
        (void)snprintf(why, 160, "it has given no sign of life for %.1f s",
                       (double)silence / (double)SECOND);
        return true;
    }
    const uint64_t expected = known > 0 ? known : UNKNOWN_NS;
    const uint64_t allowed = allowed_ns(expected, timeout_s);
    if (timeout_s == 0 || w->clock - w->begun_since < allowed) return false;
    if (known == 0) {
        (void)snprintf(why, 160, "the engine's first step takes more than %.0f s",
                       (double)allowed / (double)SECOND);
    } else {
        (void)snprintf(why, 160, "a step of the engine takes more than %.1f s; expected: %.3f s",
                       (double)allowed / (double)SECOND, (double)expected / (double)SECOND);
    }
    return true;
}
