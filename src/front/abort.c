// SPDX-License-Identifier: Apache-2.0
//
// POST /abort_request, as SGLang has it: {"rid": NAME} or {"abort_all": true}; but who has no
// admin's key ends their own requests only, whatever the names of others' are.
#include <stdio.h>
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
static int parse(const msgl_front *f, const msgl_strbuf *body, char rid[MSGL_API_MAX_RID + 1],
                 msgl_api_error *e)
{
    bool all = false;
    json_t *o = msgl__front_read_json(f, &fields, body, MAX_BODY, MSGL_UNKNOWN_REFUSE, e);
    if (o == NULL) return MSGL_EINVAL;
    int rc = msgl__field_bool(o, "abort_all", &all, e);
    if (rc >= 0) rc = msgl__parse_rid(o, rid, e);
    json_decref(o);
    if (rc < 0) return rc;
    if (all != (rc > 0)) return 0;
    return msgl__api_fail(e, 400, "rid", "invalid_value",
                          "'rid' and 'abort_all' are %s; allowed: one of them.",
                          all ? "both given" : "both missing");
}

// Ends a choice with what there is of it.
static int choice_abort(msgl_front *f, choice *c)
{
    gen *g = c->owner;
    const msgl_gen_request *req = &g->job->req;
    if (c->seq.finish != NULL) return 0;
    if (c->sent) {
        msgl__choice_leave(f, c, true);
    } else {
        const int prompt = (int)(c - g->choices) / req->n;
        c->sent = true;
        g->num_sent++;
        g->num_left--;
        msgl__queue_give(f, g->tenant, 1);
        const int rc =
            msgl__sequence_init(&c->seq, req, prompt, &g->job->ids[prompt], f->cfg.tokenizer);
        if (rc != 0) return rc;
    }
    const msgl_token_event e = {.finish = MSGL_FINISH_ABORT,
                                .cached_tokens = c->seq.cached_tokens,
                                .drafted = c->seq.drafted,
                                .accepted = c->seq.accepted};
    const int rc = msgl__sequence_event(&c->seq, &e);
    return rc == 0 ? msgl__choice_claim(g, c) : rc;
}

void msgl__gen_end_aborted(msgl_front *f, gen *g)
{
    if (g->ep->pooled) {
        msgl_api_error e;
        (void)msgl__api_fail(&e, 400, NULL, "aborted", "The request was ended by /abort_request.");
        msgl__gen_fail(f, g, &e);
        return;
    }
    for (int i = 0; i < f->cfg.num_replicas; i++) (void)msgl__queue_clear(f, &g->queues[i]);
    int rc = 0;
    for (int i = 0; i < g->num_choices && rc == 0; i++) rc = choice_abort(f, &g->choices[i]);
    if (rc == 0) {
        msgl__gen_answer(f, g);
    } else {
        msgl__gen_fail_status(f, g, rc);
    }
}

bool msgl__gen_is_aborted(const msgl_front *f, const gen *g)
{
    enum { MAX = sizeof f->pending_aborts / sizeof f->pending_aborts[0] };
    for (uint64_t i = 0; i < f->num_pending_aborts && i < MAX; i++) {
        const struct pending_abort *a = &f->pending_aborts[i];
        if (a->up_to >= g->number && (a->of == 0 || a->of == g->tenant->number) &&
            strcmp(a->rid, g->job->req.rid) == 0) {
            return true;
        }
    }
    return false;
}

static bool has_name(const gen *g, const char *rid)
{
    if (strcmp(g->id, rid) == 0 || strcmp(msgl__http_conn_id(g->base.conn), rid) == 0) return true;
    return !g->in_worker && strcmp(g->job->req.rid, rid) == 0;
}

// Ends the requests of this name, or all but those of batches (NULL), with what they have answered
// so far: those of one tenant, or anybody's (NULL). A name is what the client gave as `rid`, or the
// answer's X-Request-Id, or its id. Returns how many; those that a worker still reads count if
// their header has the name.
static int abort_requests(msgl_front *f, const tenant *of, const char *rid)
{
    enum { MAX = sizeof f->pending_aborts / sizeof f->pending_aborts[0] };
    int n = 0;
    bool may_be_with_worker = false;
    for (gen *g = f->gens, *next; g != NULL; g = next) {
        next = g->next;
        if (g->base.conn == NULL || !msgl__endpoint_has_engine(g->ep) ||
            (rid == NULL && g->inner)) {
            continue;
        }
        if (of != NULL && g->tenant != of) continue;
        if (rid != NULL && !has_name(g, rid)) {
            may_be_with_worker |= g->in_worker;
            continue;
        }
        n++;
        g->aborted = true;
        if (!g->in_worker) msgl__gen_end_aborted(f, g);
    }
    if (may_be_with_worker) {
        struct pending_abort *a = &f->pending_aborts[f->num_pending_aborts++ % MAX];
        (void)snprintf(a->rid, sizeof a->rid, "%s", rid);
        a->up_to = f->num_opened;
        a->of = of == NULL ? 0 : of->number;
    }
    msgl__dispatch(f);
    return n;
}

int msgl__front_abort_all(msgl_front *f)
{
    return abort_requests(f, NULL, NULL);
}

static void take(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c, msgl_http_parser *p)
{
    msgl_api_error e;
    char rid[MSGL_API_MAX_RID + 1] = "";
    if (parse(f, &p->body, rid, &e) != 0) {
        msgl__front_reply_error(f, ep, c, &e);
        return;
    }
    const bool everybody = msgl__guard_is_admin(&f->cfg.guard, p);
    const tenant *own = everybody ? NULL : msgl__tenant_find(f, c, p);
    const int n =
        everybody || own != NULL ? abort_requests(f, own, rid[0] == '\0' ? NULL : rid) : 0;
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
