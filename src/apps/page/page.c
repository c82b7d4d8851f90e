// SPDX-License-Identifier: Apache-2.0
//
// GET /: a page to chat with the model and to watch the server. It needs no key, since it holds
// nothing of this server; what it then asks for does.
#include "apps/page/page.h"

#include "apps/page/endpoints.h"
#include "front/front_impl.h"

static int put_page(const msgl_front *f, const char *rest, int *status, msgl_strbuf *out)
{
    (void)f, (void)rest, (void)status;
    return msgl__strbuf_add(out, msgl__page_text, msgl__page_len);
}

static const msgl_example examples[] = {
    {.help = "The page", .method = MSGL_HTTP_GET},
    {0},
};
const msgl_endpoint msgl__endpoint_page = {
    .path = "/",
    .help =
        "A page to chat with the model and to watch the server ([page.md](page.md)). Needs no key.",
    .examples = examples,
    .open = true,
    .method = MSGL_HTTP_GET,
    .type = "text/html; charset=utf-8",
    .headers = msgl__page_headers,
    .etag = msgl__page_etag,
    .put_now = put_page};
