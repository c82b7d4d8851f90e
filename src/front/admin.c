// SPDX-License-Identifier: Apache-2.0
//
// Admins' calls to the engines (docs/decisions/065): one at a time, to all of them. A call that
// changes weights lets requests that have begun end first, unless the engines are paused; those
// that wait here go on behind it, with the new weights.
#include <stdio.h>
#include <string.h>

#include "api/fields.h"
#include "api/json.h"
#include "core/mem.h"
#include "front/front_impl.h"

static const char NOT_READY[] = "The engine is not ready.";

// --- waiting for engines ---

static void note_failure(engines_wait *w, const replica *r, int code, const char *text)
{
    if (w->code != 0) return;
    w->code = code;
    if (r->front->cfg.num_replicas > 1) {
        (void)snprintf(w->text, sizeof w->text, "%s: %s", r->name, text);
    } else {
        (void)snprintf(w->text, sizeof w->text, "%s", text);
    }
}

void msgl__wait_ask(engines_wait *w, replica *r, const msgl_msg *m)
{
    const int rc = msgl__replica_serves(r) ? msgl__replica_post(r, m) : MSGL_ECLOSED;
    if (rc != 0) {
        note_failure(w, r, rc, NOT_READY);
        return;
    }
    w->asked[r->index] = true;
    w->num_left++;
}

bool msgl__wait_arrived(engines_wait *w, const replica *r, int code, const char *text)
{
    if (!w->asked[r->index]) return false;
    w->asked[r->index] = false;
    w->num_left--;
    if (code != 0) note_failure(w, r, code, text == NULL ? msgl__status_text(code) : text);
    return true;
}

// --- reading ---

json_t *msgl__front_read_json(const msgl_front *f, const msgl_fields *fields,
                              const msgl_strbuf *body, size_t max_body, msgl_unknown_fields unknown,
                              msgl_api_error *e)
{
    msgl_json_room room = {0};
    msgl_err err = {0};
    if (body->len > max_body) {
        (void)msgl__api_fail(e, 413, NULL, "request_too_large",
                             "The body has %zu bytes; allowed: at most %zu.", body->len, max_body);
        return NULL;
    }
    const bool none = body->len == 0;
    json_t *o = msgl__json_parse_object(none ? "{}" : msgl__strbuf_str(body), none ? 2 : body->len,
                                        &room, &err);
    if (o == NULL) {
        (void)msgl__json_fail(&err, e);
        return NULL;
    }
    if (msgl__check_fields(o, fields, &f->api, unknown, NULL, e) == 0) return o;
    json_decref(o);
    return NULL;
}

int msgl__admin_put_success(const admin_call *a, const char *done, msgl_strbuf *out)
{
    const bool ok = a->wait.code == 0;
    const char *text = ok ? done : a->wait.text;
    int rc = msgl__strbuf_addf(out, "{\"success\":%s,\"message\":", ok ? "true" : "false");
    return rc == 0 ? msgl__json_put_str(out, text, strlen(text)) : rc;
}

void msgl__admin_free(admin_call *a)
{
    if (a == NULL) return;
    msgl__strbuf_free(&a->data);
    msgl__free(a->path);
    msgl__free(a->version);
    msgl__free(a->group);
    msgl__free(a->host);
    msgl__free(a);
}

// --- what engines are ---

void msgl__admin_state(replica *r, const msgl_admin_state *s)
{
    r->admin.paused = s->paused;
    r->admin.released = s->released;
    r->admin.named = s->version != NULL;
    (void)snprintf(r->admin.version, sizeof r->admin.version, "%s",
                   s->version == NULL ? "" : s->version);
    (void)snprintf(r->admin.unusable, sizeof r->admin.unusable, "%s",
                   s->unusable == NULL ? "" : s->unusable);
}

const char *msgl__admin_unusable(const msgl_front *f)
{
    for (int i = 0; i < f->cfg.num_replicas; i++) {
        const replica *r = &f->replicas[i];
        if (r->ready && r->admin.unusable[0] != '\0') return r->admin.unusable;
    }
    return NULL;
}

const char *msgl__admin_version(const msgl_front *f)
{
    const replica *r = &f->replicas[0];
    return r->admin.named ? r->admin.version : "default"; // as SGLang calls it
}

bool msgl__admin_lets(const msgl_front *f, const replica *r, const gen *g)
{
    if (r->admin.paused || r->admin.unusable[0] != '\0') return false;
    // Choices of one request are all made with the same weights.
    return f->admin_first == NULL || !f->admin_first->waits || g->num_sent > 0;
}

// --- calls ---

// All engines have answered.
static void finish(msgl_front *f)
{
    admin_call *a = f->admin_first;
    const bool ok = a->wait.code == 0;
    f->admin_first = a->next;
    if (f->admin_first == NULL) f->admin_last = &f->admin_first;
    if (a->base.conn != NULL && f->http != NULL) {
        msgl__strbuf_clear(&f->out);
        const int rc = a->put(f, a, &f->out);
        msgl__front_reply(f, a->ep, a->base.conn, ok ? 200 : 400, rc);
    }
    msgl__log(f->cfg.log, ok ? MSGL_LOG_INFO : MSGL_LOG_WARN, "%s: %s", a->ep->path,
              ok ? "done" : a->wait.text);
    msgl__admin_free(a);
}

// Tensors go before the call that loads them.
static int post_data(replica *r, const admin_call *a)
{
    int rc = msgl__replica_serves(r) ? 0 : MSGL_ECLOSED;
    for (size_t at = 0; at < a->data.len && rc == 0; at += MSGL_ADMIN_DATA) {
        const size_t left = a->data.len - at;
        msgl_msg m = {.type = MSGL_MSG_ADMIN};
        m.u.admin =
            (msgl_admin){.kind = MSGL_ADMIN_DATA_OF,
                         .at = at,
                         .total = a->data.len,
                         .bytes = a->data.data + at,
                         .num_bytes = left < MSGL_ADMIN_DATA ? (int32_t)left : MSGL_ADMIN_DATA};
        rc = msgl__replica_post(r, &m);
    }
    return rc;
}

static void post(msgl_front *f, admin_call *a)
{
    msgl_msg m = {.type = MSGL_MSG_ADMIN, .u.admin = a->what};
    a->sent = true;
    for (int i = 0; i < f->cfg.num_replicas; i++) {
        replica *r = &f->replicas[i];
        const int rc = post_data(r, a);
        if (rc == 0) {
            msgl__wait_ask(&a->wait, r, &m);
        } else {
            note_failure(&a->wait, r, rc, NOT_READY);
        }
        if (a->wait.asked[i] && a->what.flush) msgl__router_forget(f->router, i);
    }
    msgl__strbuf_free(&a->data);
}

// Whether engines have requests that the call waits for, or choices whose request has begun.
static bool busy(const msgl_front *f)
{
    for (int i = 0; i < f->cfg.num_replicas; i++) {
        if (!f->replicas[i].admin.paused && f->replicas[i].in_engine > 0) return true;
    }
    for (const gen *g = f->gens; g != NULL; g = g->next) {
        const bool waits = g->num_sent > 0 && g->num_sent < g->num_choices;
        for (int i = 0; i < f->cfg.num_replicas && waits; i++) {
            const replica *r = &f->replicas[i];
            if (g->queues[i].first != NULL && !r->admin.paused && r->ready) return true;
        }
    }
    return false;
}

bool msgl__admin_turn(msgl_front *f)
{
    admin_call *a = f->admin_first;
    if (a == NULL) return false;
    if (!a->sent && (!a->waits || !busy(f))) post(f, a);
    if (!a->sent || a->wait.num_left > 0) return false;
    finish(f);
    return true;
}

static void begin(msgl_front *f, admin_call *a, msgl_http_conn *c)
{
    a->base = (client){.kind = CLIENT_ADMIN, .conn = c};
    a->what.path = a->path;
    a->what.version = a->version;
    a->what.group = a->group;
    a->what.host = a->host;
    a->what.total = a->data.len;
    msgl__http_conn_set_user(c, &a->base);
    *f->admin_last = a;
    f->admin_last = &a->next;
    if (a->abort) {
        (void)msgl__front_abort_all(f); // which dispatches
    } else {
        msgl__dispatch(f);
    }
}

void msgl__admin_take(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c,
                      const msgl_http_parser *p, size_t max_json, admin_read read)
{
    msgl_api_error e;
    admin_call *a = msgl__calloc(1, sizeof *a);
    int rc = a == NULL ? msgl__api_oom(&e) : 0;
    json_t *o = NULL;
    if (rc == 0 && max_json > 0) {
        o = msgl__front_read_json(f, ep->objects[0], &p->body, max_json, f->api.unknown_fields, &e);
        if (o == NULL) rc = MSGL_EINVAL;
    }
    if (rc == 0) {
        a->ep = ep;
        msgl__strbuf_init(&a->data, SIZE_MAX / 2);
        rc = read(o, p, a, &e);
    }
    json_decref(o);
    if (rc == 0) {
        begin(f, a, c);
        return;
    }
    msgl__admin_free(a);
    msgl__front_reply_error(f, ep, c, &e);
}

void msgl__admin_arrived(replica *r, const msgl_msg_admin_done *d)
{
    msgl_front *f = r->front;
    admin_call *a = f->admin_first;
    msgl__admin_state(r, &d->state);
    if (a == NULL || !msgl__wait_arrived(&a->wait, r, d->code, d->text)) return; // of another front
    a->num_requests += d->num_requests;
    msgl__dispatch(f);
}

void msgl__admin_lost(replica *r)
{
    msgl_front *f = r->front;
    admin_call *a = f->admin_first;
    msgl__admin_state(r, &(msgl_admin_state){0});
    static const char text[] = "The engine stopped meanwhile.";
    if (a == NULL || !msgl__wait_arrived(&a->wait, r, MSGL_ECLOSED, text)) return;
    if (f->http != NULL) msgl__dispatch(f);
}
