// SPDX-License-Identifier: Apache-2.0
//
// When the launcher ends an engine that is ready but hangs: a step takes far longer than those
// before it let expect, or several ranks share the model and their first one stands still as a
// whole, which has broken the set (docs/decisions/011-heartbeat.md).
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
} msgl_watchdog;

// One look at time `now` (monotonic ns, not 0), due every MSGL_WATCHDOG_TICK_MS. A step may take
// timeout_s seconds and ten times what it is expected to, whichever is more; 0: for ever. True: the
// engine has to end; why is one line.
bool msgl__watchdog_look(msgl_watchdog *w, const msgl_heartbeat *h, int timeout_s, uint64_t now,
                         char why[160]);

#endif
