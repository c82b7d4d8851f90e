// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <string.h>

#include "core/mem.h"
#include "server/front_impl.h"
#include "server/json.h"

static const char json_mime[] = "application/json";

void msgl__front_reply_error(msgl_front *f, msgl_http_conn *c, const msgl_api_error *e)
{
    msgl__strbuf_clear(&f->out);
    if (msgl__api_error_put(e, &f->out) != 0) msgl__strbuf_clear(&f->out);
    msgl__http_reply(c, e->status, json_mime, NULL, msgl__strbuf_str(&f->out), f->out.len);
}

static void reply_out(msgl_front *f, msgl_http_conn *c, int status, int rc)
{
    if (rc == 0) {
        msgl__http_reply(c, status, json_mime, NULL, msgl__strbuf_str(&f->out), f->out.len);
        return;
    }
    msgl_api_error e;
    (void)msgl__api_fail(&e, 500, NULL, NULL, "Out of memory.");
    msgl__front_reply_error(f, c, &e);
}

void msgl__route_write_error(void *front, int status, const char *reason, msgl_strbuf *out)
{
    (void)front;
    msgl_api_error e;
    const char *code = status == 413 ? "request_too_large" : status == 429 ? "queue_full" : NULL;
    (void)msgl__api_fail(&e, status, NULL, code, "%s", reason);
    (void)msgl__api_error_put(&e, out);
}

// --- simple answers ---

static void get_health(msgl_front *f, msgl_http_conn *c, msgl_http_parser *p)
{
    (void)p;
    msgl__strbuf_clear(&f->out);
    if (msgl__front_engine_hangs(f) && !f->stopping) {
        const int rc = msgl__strbuf_addf(
            &f->out, "{\"status\":\"engine does not respond\",\"silent_s\":%d}", f->silence_s);
        reply_out(f, c, 503, rc);
        return;
    }
    const bool ok = f->ready && !f->stopping;
    const int rc = msgl__strbuf_addf(&f->out, "{\"status\":\"%s\"}",
                                     ok            ? "ok"
                                     : f->stopping ? "stopping"
                                                   : "engine not ready");
    reply_out(f, c, ok ? 200 : 503, rc);
}

static int put_model(const msgl_front *f, msgl_strbuf *out)
{
    const char *name = f->cfg.model_name, *path = f->cfg.model_path;
    int rc = msgl__strbuf_adds(out, "{\"id\":");
    if (rc == 0) rc = msgl__json_put_str(out, name, strlen(name));
    if (rc == 0) {
        rc = msgl__strbuf_adds(
            out, ",\"object\":\"model\",\"created\":0,\"owned_by\":\"minisgl\",\"root\":");
    }
    if (rc == 0) rc = msgl__json_put_str(out, path, strlen(path));
    if (rc == 0 && f->ready) {
        rc = msgl__strbuf_addf(out, ",\"max_model_len\":%d", f->engine.max_seq_len);
    }
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

static void get_models(msgl_front *f, msgl_http_conn *c, msgl_http_parser *p)
{
    (void)p;
    msgl__strbuf_clear(&f->out);
    int rc = msgl__strbuf_adds(&f->out, "{\"object\":\"list\",\"data\":[");
    if (rc == 0) rc = put_model(f, &f->out);
    if (rc == 0) rc = msgl__strbuf_adds(&f->out, "]}");
    reply_out(f, c, 200, rc);
}

static const char model_prefix[] = "/v1/models/";

static void get_model(msgl_front *f, msgl_http_conn *c, msgl_http_parser *p)
{
    const char *name = msgl__strbuf_str(&p->path) + strlen(model_prefix);
    if (!msgl__api_model_known(&f->api, name, strlen(name))) {
        msgl_api_error e;
        (void)msgl__api_fail(&e, 404, "model", "model_not_found",
                             "The model '%.100s' does not exist; this server has '%.100s'.", name,
                             f->cfg.model_name);
        msgl__front_reply_error(f, c, &e);
        return;
    }
    msgl__strbuf_clear(&f->out);
    const int rc = put_model(f, &f->out);
    reply_out(f, c, 200, rc);
}

static void get_v1(msgl_front *f, msgl_http_conn *c, msgl_http_parser *p)
{
    (void)p;
    msgl__strbuf_clear(&f->out);
    reply_out(f, c, 200, msgl__strbuf_adds(&f->out, "{\"status\":\"ok\"}"));
}

// --- what the engine has to say ---

static void stats_push(msgl_front *f, msgl_http_conn *c, bool flush)
{
    const msgl_msg m = {.type = flush ? MSGL_MSG_FLUSH : MSGL_MSG_GET_STATS};
    const bool up = f->ready && !msgl__front_engine_hangs(f);
    stats_wait *w = msgl__calloc(1, sizeof *w);
    const int rc = w == NULL ? MSGL_ENOMEM : !up ? MSGL_ECLOSED : msgl__front_post(f, &m);
    if (rc != 0) {
        msgl__free(w);
        msgl_api_error e;
        (void)msgl__api_fail(&e, 503, NULL, "engine_not_ready", "The engine is not ready.");
        msgl__front_reply_error(f, c, &e);
        return;
    }
    *w = (stats_wait){.base = {.kind = CLIENT_STATS, .conn = c}, .flush = flush};
    *f->stats_last = w;
    f->stats_last = &w->next;
    msgl__http_conn_set_user(c, &w->base);
}

static stats_wait *stats_pop(msgl_front *f)
{
    stats_wait *w = f->stats_first;
    if (w == NULL) return NULL;
    f->stats_first = w->next;
    if (f->stats_first == NULL) f->stats_last = &f->stats_first;
    return w;
}

static int put_stats(const msgl_msg_stats *s, msgl_strbuf *out)
{
    return msgl__strbuf_addf(
        out,
        "{\"step\":%" PRIu64 ",\"running\":%d,\"waiting\":%d,\"free_pages\":%d,"
        "\"cached_pages\":%d,\"used_pages\":%d,\"total_pages\":%d,\"prompt_tokens\":%" PRIu64
        ",\"generated_tokens\":%" PRIu64 ",\"cached_tokens\":%" PRIu64 ",\"requests_done\":%" PRIu64
        ",\"requests_aborted\":%" PRIu64 ",\"requests_retracted\":%" PRIu64 "}",
        s->step, s->running, s->waiting, s->free_pages, s->cached_pages, s->used_pages,
        s->total_pages, s->prompt_tokens, s->generated_tokens, s->cached_tokens, s->requests_done,
        s->requests_aborted, s->requests_retracted);
}

static int put_str_field(msgl_strbuf *out, const char *name, const char *value)
{
    int rc = msgl__strbuf_addf(out, "\"%s\":", name);
    if (rc == 0) rc = msgl__json_put_str(out, value, strlen(value));
    return rc == 0 ? msgl__strbuf_addc(out, ',') : rc;
}

static int put_info(const msgl_front *f, const msgl_msg_stats *s, msgl_strbuf *out)
{
    const msgl_msg_ready *r = &f->engine;
    int rc = msgl__strbuf_addf(out, "{\"version\":\"%s\",", MSGL_VERSION);
    if (rc == 0) rc = put_str_field(out, "model", f->cfg.model_name);
    if (rc == 0) rc = put_str_field(out, "model_path", f->cfg.model_path);
    if (rc == 0) rc = put_str_field(out, "attention", r->attention);
    if (rc == 0) rc = put_str_field(out, "device", r->device);
    if (rc == 0) {
        rc = msgl__strbuf_addf(
            out,
            "\"max_seq_len\":%d,\"max_running\":%d,\"num_pages\":%d,\"page_size\":%d,"
            "\"vocab_size\":%d,\"connections\":%d,\"requests_open\":%d,\"requests_waiting\":%d,"
            "\"request_memory\":%zu,\"config\":%s,\"stats\":",
            r->max_seq_len, r->max_running, r->num_pages, r->page_size, r->vocab_size,
            msgl__http_server_connections(f->http), f->num_gens, f->waiting,
            atomic_load(&f->budget.used), f->cfg.info_json == NULL ? "{}" : f->cfg.info_json);
    }
    if (rc == 0) rc = put_stats(s, out);
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

void msgl__stats_arrived(msgl_front *f, const msgl_msg_stats *s)
{
    stats_wait *w = stats_pop(f);
    if (w == NULL) return;
    if (w->base.conn != NULL) {
        msgl__strbuf_clear(&f->out);
        const int rc = w->flush ? put_stats(s, &f->out) : put_info(f, s, &f->out);
        reply_out(f, w->base.conn, 200, rc);
    }
    msgl__free(w);
}

void msgl__stats_fail_all(msgl_front *f)
{
    msgl_api_error e;
    (void)msgl__api_fail(&e, 503, NULL, "engine_not_ready", "The engine is not ready.");
    for (stats_wait *w; (w = stats_pop(f)) != NULL;) {
        if (w->base.conn != NULL && f->http != NULL) {
            msgl__front_reply_error(f, w->base.conn, &e);
        }
        msgl__free(w);
    }
}

static void get_info(msgl_front *f, msgl_http_conn *c, msgl_http_parser *p)
{
    (void)p;
    stats_push(f, c, false);
}

static void post_flush(msgl_front *f, msgl_http_conn *c, msgl_http_parser *p)
{
    (void)p;
    stats_push(f, c, true);
}

// --- the table ---

static void post_chat(msgl_front *f, msgl_http_conn *c, msgl_http_parser *p)
{
    msgl__gen_open(f, c, p, MSGL_API_CHAT);
}

static void post_completion(msgl_front *f, msgl_http_conn *c, msgl_http_parser *p)
{
    msgl__gen_open(f, c, p, MSGL_API_COMPLETION);
}

static void post_generate(msgl_front *f, msgl_http_conn *c, msgl_http_parser *p)
{
    msgl__gen_open(f, c, p, MSGL_API_GENERATE);
}

typedef struct route {
    const char *path;
    bool prefix; // path and anything after it
    int methods;
    void (*handle)(msgl_front *f, msgl_http_conn *c, msgl_http_parser *p);
} route;

static const route routes[] = {
    {"/v1/chat/completions", false, MSGL_HTTP_POST, post_chat},
    {"/v1/completions", false, MSGL_HTTP_POST, post_completion},
    {"/generate", false, MSGL_HTTP_POST, post_generate},
    {"/health", false, MSGL_HTTP_GET, get_health},
    {"/v1/models", false, MSGL_HTTP_GET, get_models},
    {model_prefix, true, MSGL_HTTP_GET, get_model},
    {"/v1", false, MSGL_HTTP_GET, get_v1},
    {"/get_server_info", false, MSGL_HTTP_GET, get_info},
    {"/flush_cache", false, MSGL_HTTP_POST, post_flush},
};

static const route *find_route(const char *path, size_t len)
{
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        const size_t n = strlen(routes[i].path);
        if (routes[i].prefix ? len > n && strncmp(path, routes[i].path, n) == 0
                             : len == n && memcmp(path, routes[i].path, n) == 0) {
            return &routes[i];
        }
    }
    return NULL;
}

void msgl__route(void *front, msgl_http_conn *c, msgl_http_parser *p)
{
    msgl_front *f = front;
    const char *path = msgl__strbuf_str(&p->path);
    const route *r = find_route(path, p->path.len);
    const int method = p->method == MSGL_HTTP_HEAD ? MSGL_HTTP_GET : p->method;
    msgl_api_error e;
    if (msgl__guard_check(&f->cfg.guard, p, &e) != 0) {
        msgl__front_reply_error(f, c, &e);
    } else if (r == NULL) {
        (void)msgl__api_fail(&e, 404, NULL, NULL, "There is nothing at '%.200s'.", path);
        msgl__front_reply_error(f, c, &e);
    } else if ((r->methods & method) != 0) {
        r->handle(f, c, p);
    } else {
        const bool get = r->methods == MSGL_HTTP_GET;
        const char *allow = get ? "Allow: GET, HEAD, OPTIONS\r\n" : "Allow: POST, OPTIONS\r\n";
        if (method == MSGL_HTTP_OPTIONS) {
            msgl__http_reply(c, 204, NULL, allow, NULL, 0);
            return;
        }
        (void)msgl__api_fail(&e, 405, NULL, NULL, "'%s' takes %s.", r->path, get ? "GET" : "POST");
        msgl__strbuf_clear(&f->out);
        (void)msgl__api_error_put(&e, &f->out);
        msgl__http_reply(c, 405, json_mime, allow, msgl__strbuf_str(&f->out), f->out.len);
    }
}

void msgl__route_gone(void *front, msgl_http_conn *c)
{
    client *cl = msgl__http_conn_user(c);
    if (cl == NULL) return;
    cl->conn = NULL;
    if (cl->kind == CLIENT_GEN) msgl__gen_gone(front, (gen *)cl);
}
