// SPDX-License-Identifier: Apache-2.0
//
// Stored responses: GET and DELETE /v1/responses/ID, GET /v1/responses/ID/input_items. Whose they
// are is who asked for them: an API key where keys are asked for, else an address.
#include <string.h>
#include <time.h>

#include "api/json.h"
#include "front/endpoints.h"
#include "front/front_impl.h"

enum { ID_MAX = 64 }; // bytes of an id with its NUL

static const char items_of[] = "/input_items";

// Whether the query has this parameter with this value.
static bool asks(const msgl_http_parser *p, const char *name, const char *value)
{
    msgl_http_value v;
    return msgl__http_query(p, name, &v) && v.len == strlen(value) &&
           memcmp(v.at, value, v.len) == 0;
}

static int not_found(const char *id, msgl_api_error *e)
{
    return msgl__api_fail(
        e, 404, NULL, NULL,
        "You have no response '%.64s' here: it was not stored, was deleted, or is "
        "gone with its time or for others' room.",
        id);
}

// Items as a list, the newest first unless the query says otherwise.
static int put_items(const msgl_strbuf *items, bool ascending, msgl_strbuf *out)
{
    const char *data = items->data;
    size_t end = items->len; // of those that are still to be written
    int rc = msgl__strbuf_adds(out, "{\"object\":\"list\",\"data\":[");
    for (size_t at = 0; ascending && at < items->len && rc == 0; at += strlen(data + at) + 1) {
        if (at > 0) rc = msgl__strbuf_addc(out, ',');
        if (rc == 0) rc = msgl__strbuf_adds(out, data + at);
    }
    while (!ascending && end > 0 && rc == 0) {
        const char *before = end < 2 ? NULL : memrchr(data, '\0', end - 1);
        const size_t at = before == NULL ? 0 : (size_t)(before - data) + 1;
        if (end < items->len) rc = msgl__strbuf_addc(out, ',');
        if (rc == 0) rc = msgl__strbuf_adds(out, data + at);
        end = at;
    }
    return rc == 0 ? msgl__strbuf_adds(out, "],\"first_id\":null,\"last_id\":null,"
                                            "\"has_more\":false}")
                   : rc;
}

static int get_items(msgl_front *f, uint64_t own, const char *id, bool ascending)
{
    msgl_strbuf items;
    msgl__strbuf_init(&items, SIZE_MAX / 2);
    int rc = msgl__response_store_get(f->responses, own, id, (int64_t)time(NULL), &items, NULL);
    if (rc == 0) rc = put_items(&items, ascending, &f->out);
    msgl__strbuf_free(&items);
    return rc;
}

static int do_call(msgl_front *f, const msgl_http_parser *p, uint64_t own, const char *id,
                   bool items)
{
    if (p->method == MSGL_HTTP_DELETE) {
        const int rc = msgl__response_store_remove(f->responses, own, id);
        return rc == 0
                   ? msgl__strbuf_addf(
                         &f->out, "{\"id\":\"%s\",\"object\":\"response\",\"deleted\":true}", id)
                   : rc;
    }
    if (items) return get_items(f, own, id, asks(p, "order", "asc"));
    return msgl__response_store_get(f->responses, own, id, (int64_t)time(NULL), NULL, &f->out);
}

static void take(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c, msgl_http_parser *p)
{
    const char *rest = msgl__strbuf_str(&p->path) + strlen(ep->path);
    const size_t n = strcspn(rest, "/");
    const bool items = strcmp(rest + n, items_of) == 0;
    char id[ID_MAX];
    msgl_api_error e;
    msgl__strbuf_clear(&f->out);
    if (n == 0 || n >= sizeof id || (rest[n] != '\0' && !items)) {
        (void)msgl__api_fail(&e, 404, NULL, NULL, "There is nothing at '%.200s'.",
                             msgl__strbuf_str(&p->path));
        msgl__front_reply_error(f, ep, c, &e);
        return;
    }
    if (asks(p, "stream", "true")) {
        (void)msgl__api_fail(&e, 400, "stream", "unsupported_parameter",
                             "'stream' is not supported here: a stored response comes whole.");
        msgl__front_reply_error(f, ep, c, &e);
        return;
    }
    memcpy(id, rest, n);
    id[n] = '\0';
    const int rc = items && p->method == MSGL_HTTP_DELETE
                       ? MSGL_ENOENT
                       : do_call(f, p, msgl__tenant_id(f, c, p), id, items);
    if (rc != MSGL_ENOENT) {
        msgl__front_reply(f, ep, c, 200, rc);
        return;
    }
    (void)not_found(id, &e);
    msgl__front_reply_error(f, ep, c, &e);
}

static const msgl_example examples[] = {
    {"A response", MSGL_HTTP_GET, .rest = "$RESPONSE", .has = "id object status output"},
    {"What it was asked", MSGL_HTTP_GET, .rest = "$RESPONSE/input_items",
     .has = "object data has_more"},
    {"It is deleted", MSGL_HTTP_DELETE, .rest = "$RESPONSE", .has = "id object deleted"},
    {0},
};
const msgl_endpoint msgl__endpoint_response = {
    .path = "/v1/responses/",
    .help = "A stored response, by its id ([responses.md](responses.md#what-is-stored)); behind it "
            "`/input_items`: the conversation that it answers, the newest item first, or with "
            "`?order=asc` the oldest. Only the client that asked for it finds it.",
    .examples = examples,
    .prefix = true,
    .method = MSGL_HTTP_GET | MSGL_HTTP_DELETE,
    .take = take};
