// SPDX-License-Identifier: Apache-2.0
//
// Decode steps: one token for every request whose prompt is done. With overlap the results of the
// step before are not known yet; a request that turns out to have ended there computes one token
// too many, which is dropped. One that reaches its maximum length is left out beforehand, so the
// surplus token never needs a slot beyond the reservation.
#include "scheduler/internal.h"

int msgl__sched_build_decode(msgl_scheduler *s, msgl_flight *f)
{
    for (msgl_req *r = s->running.head; r != NULL; r = r->next) {
        if (r->state != MSGL_REQ_DECODE || r->device_len + 1 >= r->max_len) continue;
        msgl__sched_grow(s, r, r->device_len + 1);
        msgl__flight_add(f, r, r->device_len + 1);
    }
    return f->batch.size;
}
