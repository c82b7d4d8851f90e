// SPDX-License-Identifier: Apache-2.0
//
// /v1/files and /v1/batches as the event loop sees them: a call is passed to the thread of
// batches.h and replied to when it comes back with its answer; the connections that the thread
// makes are served like those of any client.
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <event2/event.h>

#include "apps/batches/batches.h"
#include "apps/batches/endpoints.h"
#include "core/mem.h"
#include "front/front_impl.h"

// The front's guest: the thread of batches.h, and the event that wakes the loop when the thread has
// something for it.
typedef struct guest {
    msgl_front *front;
    msgl_batches *batches;
    int wake_fd;
    struct event *wake;
} guest;

// A call whose client waits.
typedef struct batch_wait {
    msgl_batch_call call; // the first member: msgl__batch_call_free frees all of this
    client base;          // its conn is NULL once the client has left
    const msgl_endpoint *ep;
} batch_wait;

static bool is_files(const msgl_endpoint *ep)
{
    return ep == &msgl__endpoint_files || ep == &msgl__endpoint_file;
}

// Reads which page of a list is asked for. 0, or MSGL_EINVAL with *e.
static int read_page(const msgl_http_parser *p, msgl_batch_call *c, msgl_api_error *e)
{
    msgl_http_value v;
    const int most = msgl__batch_list_max(c->what);
    if (msgl__http_query(p, "limit", &v)) {
        for (size_t i = 0; i < v.len && c->limit >= 0 && c->limit <= most; i++) {
            c->limit = v.at[i] >= '0' && v.at[i] <= '9' ? 10 * c->limit + (v.at[i] - '0') : -1;
        }
        if (c->limit < 1 || c->limit > most) {
            return msgl__api_fail(e, 400, "limit", NULL,
                                  "'limit' is '%.*s'; allowed: an integer from 1 to %d.",
                                  (int)(v.len < 20 ? v.len : 20), v.at, most);
        }
    }
    if (!msgl__http_query(p, "after", &v) || v.len == 0) return 0;
    if (v.len < sizeof c->after) memcpy(c->after, v.at, v.len);
    const char *prefix = c->what == MSGL_BATCH_FILES ? MSGL_STORE_FILE : MSGL_STORE_BATCH;
    if (msgl__store_is_id(c->after, prefix)) return 0;
    return msgl__api_fail(e, 400, "after", NULL, "'after' is '%.*s'; allowed: an id of the list.",
                          (int)(v.len < 60 ? v.len : 60), v.at);
}

static void take(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c, msgl_http_parser *p)
{
    msgl_api_error e;
    const char *rest = msgl__strbuf_str(&p->path) + strlen(ep->path);
    batch_wait *w = NULL;
    guest *here = f->batches;
    if (here == NULL) {
        (void)msgl__api_fail(&e, 501, NULL, "batches_off",
                             "This server has no files and batches; --batch-dir DIR gives it a "
                             "folder for them.");
    } else if (strlen(rest) >= sizeof w->call.rest) {
        (void)msgl__api_fail(&e, 404, NULL, NULL, "There is nothing at '%.200s'.",
                             msgl__strbuf_str(&p->path));
    } else if ((w = msgl__calloc(1, sizeof *w)) == NULL) {
        (void)msgl__api_oom(&e);
    }
    if (w == NULL) {
        msgl__front_reply_error(f, ep, c, &e);
        return;
    }
    w->call.what = is_files(ep) ? MSGL_BATCH_FILES : MSGL_BATCH_BATCHES;
    if (!ep->prefix && read_page(p, &w->call, &e) != 0) {
        msgl__free(w);
        msgl__front_reply_error(f, ep, c, &e);
        return;
    }
    w->base = (client){.kind = CLIENT_GUEST, .conn = c};
    w->ep = ep;
    w->call.owner = w;
    w->call.method = p->method == MSGL_HTTP_HEAD ? MSGL_HTTP_GET : p->method;
    (void)snprintf(w->call.rest, sizeof w->call.rest, "%s", ep->prefix ? rest : "");
    const msgl_http_value *type = &p->content_type;
    if (!msgl__multipart_boundary(type->at, type->len, w->call.boundary)) {
        w->call.boundary[0] = '\0';
    }
    w->call.body = p->body; // owned by the call from here on, as is its claim
    msgl__strbuf_init(&p->body, p->body.max);
    w->call.claim = p->claim;
    w->call.claim.budget = &f->budget;
    p->claim.bytes = 0;
    msgl__http_conn_set_user(c, &w->base);
    msgl__batches_submit(here->batches, &w->call);
}

static void reply(batch_wait *w)
{
    msgl_http_conn *c = w->base.conn;
    const msgl_batch_call *call = &w->call;
    if (c == NULL) return; // the client has left
    w->base.conn = NULL;
    msgl__http_conn_set_user(c, NULL);
    msgl__http_reply(c, call->status, call->type, NULL, msgl__strbuf_str(&call->answer),
                     call->answer.len);
}

static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    const guest *g = arg;
    uint64_t n;
    if (read((int)fd, &n, sizeof n) < 0) return;
    for (int served; (served = msgl__batches_take_fd(g->batches)) >= 0;) {
        msgl__http_server_adopt(g->front->http, served);
    }
    for (msgl_batch_call *c; (c = msgl__batches_take(g->batches)) != NULL;) {
        reply(c->owner);
        msgl__batch_call_free(c);
    }
}

// --- the guest ---

static void guest_close(void *guest_)
{
    guest *g = guest_;
    msgl__batches_close(g->batches);
    if (g->wake != NULL) event_free(g->wake);
    if (g->wake_fd >= 0) close(g->wake_fd);
    msgl__free(g);
}

static int guest_open(msgl_front *f, void **out, msgl_err *err)
{
    guest *g = msgl__calloc(1, sizeof *g);
    if (g == NULL) return msgl__err_set(err, MSGL_ENOMEM, "batches: out of memory");
    g->front = f;
    g->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (g->wake_fd >= 0) {
        g->wake = event_new(f->base, g->wake_fd, EV_READ | EV_PERSIST, on_wake, g);
    }
    int rc = g->wake != NULL && event_add(g->wake, NULL) == 0 ? 0 : MSGL_ENOMEM;
    if (rc != 0) (void)msgl__err_set(err, rc, "batches: cannot set up the event loop");
    if (rc == 0) {
        rc = msgl__batches_open(f->cfg.batch_dir, &f->cfg.batch_limits, f->cfg.log, g->wake_fd,
                                &g->batches, err);
    }
    if (rc != 0) {
        guest_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

static void guest_set_room(void *g, int room)
{
    msgl__batches_set_room(((guest *)g)->batches, room);
}

static void guest_stop(void *g)
{
    msgl__batches_stop(((guest *)g)->batches);
}

const msgl_guest msgl__batches_guest = {
    .open = guest_open, .set_room = guest_set_room, .stop = guest_stop, .close = guest_close};

// --- the endpoints ---

static const msgl_fields *const file_objects[] = {&msgl__file_fields, NULL};
static const msgl_fields *const batch_objects[] = {&msgl__batch_fields, NULL};
static const msgl_example files_examples[] = {
    {"Stores a file; FILE is the `id`", MSGL_HTTP_POST, .form = true,
     .body = "-F purpose=batch -F file=@requests.jsonl", .has = "id object bytes filename purpose"},
    {"The files, the newest first; `?limit=N&after=ID` is a part of them", MSGL_HTTP_GET,
     .has = "object data has_more"},
    {0},
};
static const msgl_example file_examples[] = {
    {"What is known of a file", MSGL_HTTP_GET, .rest = "$FILE", .has = "id object bytes"},
    {"What is in it", MSGL_HTTP_GET, .rest = "$FILE/content", .type = "application/octet-stream"},
    {"Deletes it", MSGL_HTTP_DELETE, .rest = "$FILE", .has = "id object deleted"},
    {0},
};
static const msgl_example batches_examples[] = {
    {"Begins a batch; BATCH is the `id`", MSGL_HTTP_POST,
     .body = "{\"input_file_id\": \"$FILE\", \"endpoint\": \"/v1/completions\", "
             "\"completion_window\": \"24h\"}",
     .has = "id object endpoint status request_counts"},
    {"The batches, the newest first", MSGL_HTTP_GET, .rest = "?limit=20",
     .has = "object data has_more"},
    {0},
};
static const msgl_example batch_examples[] = {
    {"How far it is", MSGL_HTTP_GET, .rest = "$BATCH", .has = "id object status request_counts"},
    {"Ends it; 400 where it has ended already", MSGL_HTTP_POST, .rest = "$BATCH/cancel",
     .has = "id object status"},
    {"Deletes it, once it has ended", MSGL_HTTP_DELETE, .rest = "$BATCH",
     .has = "id object deleted"},
    {0},
};

const msgl_endpoint msgl__endpoint_files = {
    .path = "/v1/files",
    .help = "OpenAI's files, which batches read and write ([batch.md](batch.md)); 501 without "
            "`--batch-dir`.",
    .examples = files_examples,
    .method = MSGL_HTTP_GET | MSGL_HTTP_POST,
    .objects = file_objects,
    .optional = true,
    .take = take};
const msgl_endpoint msgl__endpoint_file = {.path = "/v1/files/",
                                           .help = "One of the files.",
                                           .examples = file_examples,
                                           .prefix = true,
                                           .method = MSGL_HTTP_GET | MSGL_HTTP_DELETE,
                                           .optional = true,
                                           .take = take};
const msgl_endpoint msgl__endpoint_batches = {
    .path = "/v1/batches",
    .help = "OpenAI's batches: the requests of a file, answered in the background.",
    .examples = batches_examples,
    .method = MSGL_HTTP_GET | MSGL_HTTP_POST,
    .objects = batch_objects,
    .optional = true,
    .take = take};
const msgl_endpoint msgl__endpoint_batch = {.path = "/v1/batches/",
                                            .help = "One of the batches.",
                                            .examples = batch_examples,
                                            .prefix = true,
                                            .method =
                                                MSGL_HTTP_GET | MSGL_HTTP_POST | MSGL_HTTP_DELETE,
                                            .optional = true,
                                            .take = take};
