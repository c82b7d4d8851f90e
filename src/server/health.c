// SPDX-License-Identifier: Apache-2.0
//
// GET /health: whether requests can be served now. GET /v1: whether anybody listens.
#include "server/front_impl.h"

static int put_health(const msgl_front *f, const char *rest, int *status, msgl_strbuf *out)
{
    (void)rest;
    const bool hangs = msgl__front_engine_hangs(f) && !f->stopping;
    const bool ok = f->ready && !f->stopping && !hangs;
    if (!ok) *status = 503;
    if (hangs) {
        return msgl__strbuf_addf(out, "{\"status\":\"engine does not respond\",\"silent_s\":%d}",
                                 f->silence_s);
    }
    return msgl__strbuf_addf(out, "{\"status\":\"%s\"}",
                             ok            ? "ok"
                             : f->stopping ? "stopping"
                                           : "engine not ready");
}

static int put_v1(const msgl_front *f, const char *rest, int *status, msgl_strbuf *out)
{
    (void)f, (void)rest, (void)status;
    return msgl__strbuf_adds(out, "{\"status\":\"ok\"}");
}

const msgl_endpoint msgl__endpoint_health = {
    .path = "/health", .method = MSGL_HTTP_GET, .put_now = put_health};
const msgl_endpoint msgl__endpoint_v1 = {.path = "/v1", .method = MSGL_HTTP_GET, .put_now = put_v1};
