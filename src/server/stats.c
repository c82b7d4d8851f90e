// SPDX-License-Identifier: Apache-2.0
//
// Requests that the engine answers with its counters, and two of them: GET /get_server_info and
// POST /flush_cache.
#include <inttypes.h>
#include <string.h>

#include "core/mem.h"
#include "server/front_impl.h"
#include "server/json.h"

void msgl__stats_open(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c)
{
    const msgl_msg m = {.type = ep->ask};
    const bool up = f->ready && !msgl__front_engine_hangs(f);
    stats_wait *w = msgl__calloc(1, sizeof *w);
    const int rc = w == NULL ? MSGL_ENOMEM : !up ? MSGL_ECLOSED : msgl__front_post(f, &m);
    if (rc != 0) {
        msgl__free(w);
        msgl_api_error e;
        (void)msgl__api_fail(&e, 503, NULL, "engine_not_ready", "The engine is not ready.");
        msgl__front_reply_error(f, ep, c, &e);
        return;
    }
    *w = (stats_wait){.base = {.kind = CLIENT_STATS, .conn = c}, .ep = ep};
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

void msgl__stats_arrived(msgl_front *f, const msgl_msg_stats *s)
{
    stats_wait *w = stats_pop(f);
    if (w == NULL) return;
    if (w->base.conn != NULL) {
        msgl__strbuf_clear(&f->out);
        msgl__front_reply(f, w->ep, w->base.conn, 200, w->ep->put_stats(f, s, &f->out));
    }
    msgl__free(w);
}

void msgl__stats_fail_all(msgl_front *f)
{
    msgl_api_error e;
    (void)msgl__api_fail(&e, 503, NULL, "engine_not_ready", "The engine is not ready.");
    for (stats_wait *w; (w = stats_pop(f)) != NULL;) {
        if (w->base.conn != NULL && f->http != NULL) {
            msgl__front_reply_error(f, w->ep, w->base.conn, &e);
        }
        msgl__free(w);
    }
}

// --- endpoints ---

static int put_stats(const msgl_front *f, const msgl_msg_stats *s, msgl_strbuf *out)
{
    (void)f;
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
    if (rc == 0) rc = put_stats(f, s, out);
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

const msgl_endpoint msgl__endpoint_server_info = {.path = "/get_server_info",
                                                  .method = MSGL_HTTP_GET,
                                                  .ask = MSGL_MSG_GET_STATS,
                                                  .put_stats = put_info};
const msgl_endpoint msgl__endpoint_flush_cache = {.path = "/flush_cache",
                                                  .method = MSGL_HTTP_POST,
                                                  .ask = MSGL_MSG_FLUSH,
                                                  .put_stats = put_stats};
