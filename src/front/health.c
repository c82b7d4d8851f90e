// SPDX-License-Identifier: Apache-2.0
//
// GET /health: whether requests can be served now. GET /ready: whether one more would be taken now.
// Both go on telling while the server stops. GET /v1: whether anybody listens.
#include "front/endpoints.h"
#include "front/front_impl.h"

static int put_health(const msgl_front *f, const char *rest, int *status, msgl_strbuf *out)
{
    (void)rest;
    const int n = f->cfg.num_replicas, serving = msgl__front_num_serving(f);
    int silent = -1; // the first that hangs
    for (int i = n; i-- > 0;) {
        if (msgl__replica_hangs(&f->replicas[i])) silent = i;
    }
    const bool ok = serving > 0 && !f->stopping;
    if (!ok) *status = 503;
    int rc = msgl__strbuf_addf(out, "{\"status\":\"%s\"",
                               ok            ? "ok"
                               : f->stopping ? "stopping"
                               : silent >= 0 ? "engine does not respond"
                                             : "engine not ready");
    if (rc == 0 && !ok && !f->stopping && silent >= 0) {
        rc = msgl__strbuf_addf(out, ",\"silent_s\":%d", f->replicas[silent].silence_s);
    }
    if (rc == 0 && n > 1) {
        rc = msgl__strbuf_addf(out, ",\"replicas\":%d,\"serving\":%d", n, serving);
    }
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

static int put_ready(const msgl_front *f, const char *rest, int *status, msgl_strbuf *out)
{
    if (!f->stopping && msgl__admin_unusable(f) != NULL) {
        *status = 503;
        return msgl__strbuf_adds(out, "{\"status\":\"weights or cache not there\"}");
    }
    if (f->stopping || f->waiting < f->cfg.max_waiting) return put_health(f, rest, status, out);
    *status = 503;
    return msgl__strbuf_adds(out, "{\"status\":\"queue full\"}");
}

static int put_v1(const msgl_front *f, const char *rest, int *status, msgl_strbuf *out)
{
    (void)f, (void)rest, (void)status;
    return msgl__strbuf_adds(out, "{\"status\":\"ok\"}");
}

static const msgl_example health_examples[] = {
    {"Its state", MSGL_HTTP_GET, .has = "status"},
    {0},
};
const msgl_endpoint msgl__endpoint_health = {
    .path = "/health",
    .help = "Whether requests can be served now; 503 if not. Needs no key.",
    .examples = health_examples,
    .open = true,
    .probe = true,
    .method = MSGL_HTTP_GET,
    .put_now = put_health};
static const msgl_example ready_examples[] = {
    {"Its state", MSGL_HTTP_GET, .has = "status"},
    {0},
};
const msgl_endpoint msgl__endpoint_ready = {
    .path = "/ready",
    .help = "Whether one more request would be taken now; 503 if not. Needs no key.",
    .examples = ready_examples,
    .open = true,
    .probe = true,
    .method = MSGL_HTTP_GET,
    .put_now = put_ready};
static const msgl_example v1_examples[] = {
    {"Its state", MSGL_HTTP_GET, .has = "status"},
    {0},
};
const msgl_endpoint msgl__endpoint_v1 = {.path = "/v1",
                                         .help = "Whether anybody listens.",
                                         .examples = v1_examples,
                                         .method = MSGL_HTTP_GET,
                                         .put_now = put_v1};
