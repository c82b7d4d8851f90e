// SPDX-License-Identifier: Apache-2.0
//
// The access log: one line a request, when it is over. Nothing of a body or of an answer is in it,
// and no query, header or key: method, path, status, how long it took, its id, and who asked.
#include <math.h>

#include "core/attributes.h"
#include "front/front_impl.h"

void msgl__access_log(void *front, const msgl_http_done *d)
{
    const msgl_front *f = front;
    const msgl_log_field fields[] = {
        {.name = "method", .text = d->method},
        {.name = "path", .text = d->path},
        {.name = "status", .number = d->status},
        {.name = "ms", .number = round((double)d->ns / 1e3) / 1e3},
        {.name = "id", .text = d->id},
        {.name = "client", .text = d->client},
        {.name = "aborted", .number = 1}, // only of those that were
    };
    const int n = (int)MSGL_COUNT(fields) - (d->whole ? 1 : 0);
    msgl__log_fields(f->cfg.log, MSGL_LOG_INFO, "request", fields, n);
}
