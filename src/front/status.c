// SPDX-License-Identifier: Apache-2.0
//
// The line that says how busy an engine is, every few seconds while it is: from its last report
// (message.h) and the one of the line before.
#include <math.h>

#include "core/attributes.h"
#include "front/front_impl.h"
#include "utils/clock.h"

static double rate(uint64_t now, uint64_t before, double seconds)
{
    return seconds > 0 && now > before ? round((double)(now - before) / seconds * 10) / 10 : 0;
}

static double percent(double some, double whole)
{
    return whole > 0 ? round(some / whole * 1000) / 10 : 0;
}

static void tell(replica *r)
{
    const msgl_msg_stats *s = &r->report.stats, *old = &r->logged.stats;
    const uint64_t prompt = s->prompt_tokens - old->prompt_tokens;
    const int64_t waiting = (int64_t)s->waiting + r->queued;
    const bool quiet = s->running == 0 && waiting == 0 && prompt == 0 &&
                       s->generated_tokens == old->generated_tokens;
    const double drafted = (double)(s->drafted_tokens - old->drafted_tokens);
    const double seconds = (double)(r->reported_ns - r->logged_ns) / 1e9;
    if (r->reported_ns == r->logged_ns)
        return; // no news: it loads, or hangs, which another line says
    if (!quiet) {
        const msgl_log_field fields[] = {
            {.name = "running", .number = s->running},
            {.name = "queued", .number = (double)waiting},
            {.name = "prompt_tokens_per_s",
             .number = rate(s->prompt_tokens, old->prompt_tokens, seconds)},
            {.name = "answer_tokens_per_s",
             .number = rate(s->generated_tokens, old->generated_tokens, seconds)},
            {.name = "cached_percent",
             .number = percent((double)(s->cached_tokens - old->cached_tokens), (double)prompt)},
            {.name = "pool_percent", .number = percent(s->used_pages, s->total_pages)},
            {.name = "accepted_percent", // of drafts; left out where there were none
             .number = percent((double)(s->accepted_tokens - old->accepted_tokens), drafted)},
        };
        msgl__log_fields(r->front->cfg.log, MSGL_LOG_INFO, r->name, fields,
                         MSGL_COUNT(fields) - (drafted == 0));
    }
    r->logged = r->report;
    r->logged_ns = r->reported_ns;
}

void msgl__status_second(msgl_front *f)
{
    if (f->cfg.log_stats_interval_s <= 0) return;
    if (++f->status_seconds < f->cfg.log_stats_interval_s) return;
    f->status_seconds = 0;
    for (int i = 0; i < f->cfg.num_replicas; i++) tell(&f->replicas[i]);
}
