// SPDX-License-Identifier: Apache-2.0
//
// What an admin's call does to the scheduler (docs/decisions/065): steps stop or go on, and what
// was computed with other weights is shared with nobody.
#include "scheduler/internal.h"

int msgl__sched_settle(msgl_scheduler *s)
{
    int rc = s->broken;
    while (s->num_in_flight > 0 && rc >= 0) rc = msgl__sched_finish_step(s);
    return rc;
}

void msgl__scheduler_forget(msgl_scheduler *s)
{
    for (msgl_req *r = s->running.head; r != NULL; r = r->next) r->keep_kv = false;
    msgl__cache_flush(s->cache);
    s->weights++;
}

// All that run go back to the queue, as the youngest does for want of pages.
static void retract_all(msgl_scheduler *s)
{
    for (msgl_req *r = s->running.head, *next; r != NULL; r = next) {
        next = r->next;
        msgl__sched_leave(s, r);
    }
}

int msgl__scheduler_pause(msgl_scheduler *s, msgl_pause_mode mode)
{
    if (mode == MSGL_PAUSE_ABORT) msgl__scheduler_abort_all(s);
    const int rc = msgl__sched_settle(s);
    if (rc < 0) return rc;
    if (mode == MSGL_PAUSE_RETRACT) retract_all(s);
    s->paused = true;
    return 0;
}

void msgl__scheduler_continue(msgl_scheduler *s)
{
    s->paused = false;
}

// What may not be done while requests have pages.
static int check_idle(const msgl_scheduler *s, const msgl_admin *a, msgl_err *err)
{
    if (a->kind != MSGL_ADMIN_RELEASE || (a->tags & MSGL_MEMORY_CACHE) == 0) return 0;
    if (s->running.head == NULL) return 0;
    return msgl__err_set(err, MSGL_EINVAL,
                         "%d requests are in the cache whose memory is to be given back; allowed: "
                         "after /pause_generation with mode abort or retract",
                         (int)s->running.count);
}

int msgl__scheduler_admin(msgl_scheduler *s, const msgl_admin_calls *engine, const msgl_admin *a,
                          msgl_err *err)
{
    int rc = msgl__sched_settle(s);
    if (rc < 0) return msgl__err_set(err, rc, "the engine has failed: %s", msgl__status_text(rc));
    while (s->loading != NULL) msgl__sched_adapters(s, -1); // it looks at the model's layers
    rc = check_idle(s, a, err);
    if (rc != 0) return rc;
    if (engine->admin == NULL) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED, "this engine's weights cannot change");
    }
    // What is cached is in the memory that goes.
    if (a->kind == MSGL_ADMIN_RELEASE && (a->tags & MSGL_MEMORY_CACHE) != 0) {
        msgl__scheduler_forget(s);
    }
    rc = engine->admin(engine->ctx, a, err);
    if (rc == 0 && msgl__admin_updates(a) && a->flush) msgl__scheduler_forget(s);
    return rc;
}
