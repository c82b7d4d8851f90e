// SPDX-License-Identifier: Apache-2.0
//
// Decides when the launcher ends a process that is ready but hangs
// (docs/decisions/011-heartbeat.md). An engine hangs if a step takes far longer than those before
// it let expect, or if it gives no sign of life between steps. The first of several ranks hangs if
// none of its threads runs, since the others then end what they share. The front, which has no
// steps, hangs if it gives no sign of life.
#ifndef MSGL_LAUNCH_WATCHDOG_H
#define MSGL_LAUNCH_WATCHDOG_H

#include <stdbool.h>

#include "utils/heartbeat.h"

enum { MSGL_WATCHDOG_TICK_MS = 100 };

typedef struct msgl_watchdog { // zero when an engine gets ready
    uint64_t last;             // time of the last look, ns
    uint64_t clock;            // ns that were watched, without the watchdog's own pauses
    // Counters of the heartbeat, and the clock when each was first seen with this value: of the
    // first rank's life, of steps begun and of waits in them, and of all threads' beats between
    // steps.
    uint64_t alive, alive_since;
    uint64_t begun, begun_since;
    uint64_t waits;
    uint64_t beats, beats_since;
} msgl_watchdog;

// One look at time `now` (monotonic ns, not 0), due every MSGL_WATCHDOG_TICK_MS. A step may take
// timeout_s seconds and ten times what it is expected to, whichever is more, without what it waits
// for the front to take its messages; a silence between steps silence_ms. 0: either for ever. True:
// the process has to end; why is one line.
bool msgl__watchdog_look(msgl_watchdog *w, const msgl_heartbeat *h, int timeout_s, int silence_ms,
                         uint64_t now, char why[160]);

#endif
