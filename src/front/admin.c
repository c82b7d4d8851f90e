// SPDX-License-Identifier: Apache-2.0
//
// Admins' calls to the engines (docs/decisions/065): one at a time, to all of them. A call that
// changes weights lets requests that have begun end first, unless the engines are paused; those
// that wait here go on behind it, with the new weights.
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "front/front_impl.h"

admin_call *msgl__admin_new(const msgl_front *f, const msgl_endpoint *ep)
{
    const size_t n = (size_t)f->cfg.num_replicas;
    admin_call *a = msgl__calloc(1, sizeof *a + n * sizeof a->asked[0]);
    if (a == NULL) return NULL;
    a->ep = ep;
    msgl__strbuf_init(&a->data, SIZE_MAX / 2);
    return a;
}

void msgl__admin_free(admin_call *a)
{
    if (a == NULL) return;
    msgl__strbuf_free(&a->data);
    msgl__free(a->path);
    msgl__free(a->version);
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

static void fail(admin_call *a, const replica *r, int code, const char *text)
{
    if (a->code != 0) return;
    a->code = code;
    if (r != NULL && r->front->cfg.num_replicas > 1) {
        (void)snprintf(a->text, sizeof a->text, "%s: %s", r->name, text);
    } else {
        (void)snprintf(a->text, sizeof a->text, "%s", text);
    }
}

// All engines have answered.
static void finish(msgl_front *f)
{
    admin_call *a = f->admin_first;
    f->admin_first = a->next;
    if (f->admin_first == NULL) f->admin_last = &f->admin_first;
    if (a->base.conn != NULL && f->http != NULL) {
        msgl__strbuf_clear(&f->out);
        const int rc = a->put(f, a, &f->out);
        msgl__front_reply(f, a->ep, a->base.conn, a->code == 0 ? 200 : 400, rc);
    }
    msgl__log(f->cfg.log, a->code == 0 ? MSGL_LOG_INFO : MSGL_LOG_WARN, "%s: %s", a->ep->path,
              a->code == 0 ? "done" : a->text);
    msgl__admin_free(a);
}

// Tensors go before the call that loads them.
static int post_data(replica *r, const admin_call *a)
{
    int rc = 0;
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
        int rc = msgl__replica_serves(r) ? post_data(r, a) : MSGL_ECLOSED;
        if (rc == 0) rc = msgl__replica_post(r, &m);
        if (rc == 0) {
            a->asked[i] = true;
            a->num_left++;
            if (a->what.flush) msgl__router_forget(f->router, i);
        } else {
            fail(a, r, rc, "The engine is not ready.");
        }
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
    if (!a->sent || a->num_left > 0) return false;
    finish(f);
    return true;
}

void msgl__admin_begin(msgl_front *f, admin_call *a, msgl_http_conn *c)
{
    a->base = (client){.kind = CLIENT_ADMIN, .conn = c};
    a->what.path = a->path;
    a->what.version = a->version;
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

void msgl__admin_arrived(replica *r, const msgl_msg_admin_done *d)
{
    msgl_front *f = r->front;
    admin_call *a = f->admin_first;
    msgl__admin_state(r, &d->state);
    if (a == NULL || !a->asked[r->index]) return; // of an earlier front
    a->asked[r->index] = false;
    a->num_left--;
    a->num_requests += d->num_requests;
    if (d->code != 0) fail(a, r, d->code, d->text == NULL ? msgl__status_text(d->code) : d->text);
    msgl__dispatch(f);
}

void msgl__admin_lost(replica *r)
{
    msgl_front *f = r->front;
    admin_call *a = f->admin_first;
    msgl__admin_state(r, &(msgl_admin_state){0});
    if (a == NULL || !a->asked[r->index]) return;
    a->asked[r->index] = false;
    a->num_left--;
    fail(a, r, MSGL_ECLOSED, "The engine stopped meanwhile.");
    if (f->http != NULL) msgl__dispatch(f);
}
