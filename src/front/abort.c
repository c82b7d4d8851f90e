// SPDX-License-Identifier: Apache-2.0
//
// POST /abort_request, as SGLang has it: {"rid": NAME} or {"abort_all": true}; but who has no
// admin's key ends their own requests only, whatever the names of others' are.
#include <string.h>

#include "api/fields.h"
#include "front/endpoints.h"
#include "front/front_impl.h"

enum { MAX_BODY = 4096 }; // it is read on the event loop

static const msgl_field_row rows[] = {
    {"rid", MSGL_FIELD_STRING, .max_bytes = MSGL_API_MAX_RID,
     .help = "a request's `rid`, `X-Request-Id` or answer's `id`; this or `abort_all` is given"},
    {"abort_all", MSGL_FIELD_BOOL, .preset = "false",
     .help =
         "all that are the caller's; with an admin's key everybody's, but for those of batches"},
    {0},
};
static const msgl_fields fields = {.read = rows};
static const msgl_fields *const objects[] = {&fields, NULL};

// 0 with rid "" for all, or MSGL_EINVAL.
static int parse(const msgl_api_config *cfg, const msgl_strbuf *body,
                 char rid[MSGL_API_MAX_RID + 1], msgl_api_error *e)
{
    msgl_json_room room = {0};
    msgl_err err = {0};
    bool all = false;
    if (body->len > MAX_BODY) {
        return msgl__api_fail(e, 413, NULL, "request_too_large",
                              "The body has %zu bytes; allowed: at most %d.", body->len, MAX_BODY);
    }
    json_t *o = msgl__json_parse_object(msgl__strbuf_str(body), body->len, &room, &err);
    if (o == NULL) return msgl__json_fail(&err, e);
    int rc = msgl__check_fields(o, &fields, cfg, MSGL_UNKNOWN_REFUSE, NULL, e);
    if (rc == 0) rc = msgl__field_bool(o, "abort_all", &all, e);
    if (rc >= 0) rc = msgl__parse_rid(o, rid, e);
    json_decref(o);
    if (rc < 0) return rc;
    if (all != (rc > 0)) return 0;
    return msgl__api_fail(e, 400, "rid", "invalid_value",
                          "'rid' and 'abort_all' are %s; allowed: one of them.",
                          all ? "both given" : "both missing");
}

static void take(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c, msgl_http_parser *p)
{
    msgl_api_error e;
    char rid[MSGL_API_MAX_RID + 1] = "";
    if (parse(&f->api, &p->body, rid, &e) != 0) {
        msgl__front_reply_error(f, ep, c, &e);
        return;
    }
    const bool everybody = msgl__guard_is_admin(&f->cfg.guard, p);
    const tenant *own = everybody ? NULL : msgl__tenant_find(f, c, p);
    const int n =
        everybody || own != NULL ? msgl__gen_abort(f, own, rid[0] == '\0' ? NULL : rid) : 0;
    msgl__strbuf_clear(&f->out);
    const int rc = msgl__strbuf_addf(&f->out, "{\"aborted\":%d}", n);
    msgl__front_reply(f, ep, c, 200, rc);
}

static const msgl_example examples[] = {
    {"End a request", MSGL_HTTP_POST, .body = "{\"rid\": \"job-1\"}", .has = "aborted"},
    {0},
};
const msgl_endpoint msgl__endpoint_abort_request = {
    .path = "/abort_request",
    .help =
        "Ends requests, which answer with what they have so far, as SGLang does: those with the "
        "caller's API key, or of its address where there are no keys; with an admin's key "
        "(`--admin-api-key`) anybody's.",
    .examples = examples,
    .method = MSGL_HTTP_POST,
    .objects = objects,
    .take = take,
};
