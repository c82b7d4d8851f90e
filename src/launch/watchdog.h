// SPDX-License-Identifier: Apache-2.0
//
// When the launcher ends a process that is ready but hangs: an engine, of which a step takes far
// longer than those before it let expect, or that between steps gives no sign of life; the first of
// several ranks, which stands still as a whole and has broken the set; the front, which gives no
// sign of life (it has no steps) (docs/decisions/011-heartbeat.md).
#ifndef MSGL_LAUNCH_WATCHDOG_H
#define MSGL_LAUNCH_WATCHDOG_H

#include <stdbool.h>

#include "utils/heartbeat.h"

enum { MSGL_WATCHDOG_TICK_MS = 100 };

typedef struct msgl_watchdog {   // zero when an engine gets ready
    uint64_t last;               // look, ns
    uint64_t clock;              // ns of looking, without the watchdog's own pauses
    uint64_t alive, alive_since; // the heartbeat's counter, and when it was first seen so
    uint64_t begun, begun_since; // of the step under way
    uint64_t waits;
    uint64_t beats, beats_since; // of all threads, between steps
} msgl_watchdog;

// One look at time `now` (monotonic ns, not 0), due every MSGL_WATCHDOG_TICK_MS. A step may take
// timeout_s seconds and ten times what it is expected to, whichever is more, without what it waits
// for the front to take its messages; a silence between steps silence_ms. 0: either for ever. True:
// the process has to end; why is one line.
bool msgl__watchdog_look(msgl_watchdog *w, const msgl_heartbeat *h, int timeout_s, int silence_ms,
                         uint64_t now, char why[160]);

#endif
