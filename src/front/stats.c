// SPDX-License-Identifier: Apache-2.0
//
// Requests that the engines answer with their counters: GET /get_server_info, GET /get_load and
// POST /flush_cache. Counters of several engines are added up, and said of each.
#include <inttypes.h>
#include <string.h>

#include "core/mem.h"
#include "front/endpoints.h"
#include "front/front_impl.h"
#include "api/json.h"

static void reply_not_ready(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c)
{
    msgl_api_error e;
    (void)msgl__api_fail(&e, 503, NULL, "engine_not_ready", "The engine is not ready.");
    msgl__front_reply_error(f, ep, c, &e);
}

// What every engine has to do (drop its cache) waits for none that hangs, and is not done by half.
static bool can_ask(const msgl_front *f, const msgl_endpoint *ep)
{
    bool hangs = false;
    for (int i = 0; i < f->cfg.num_replicas; i++) {
        hangs = hangs || msgl__replica_hangs(&f->replicas[i]);
    }
    return msgl__front_num_serving(f) > 0 && !(hangs && ep->ask == MSGL_MSG_FLUSH);
}

void msgl__stats_open(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c)
{
    const msgl_msg m = {.type = ep->ask};
    const int n = f->cfg.num_replicas;
    stats_wait *w = msgl__calloc(1, sizeof *w + (size_t)n * sizeof w->all[0]);
    for (int i = 0; i < n && w != NULL && can_ask(f, ep); i++) {
        replica *r = &f->replicas[i];
        if (!msgl__replica_serves(r) || msgl__replica_post(r, &m) != 0) continue;
        if (ep->ask == MSGL_MSG_FLUSH) msgl__router_forget(f->router, i);
        w->all[i].state = MSGL_STATS_ASKED;
        w->num_left++;
    }
    if (w == NULL || w->num_left == 0) {
        msgl__free(w);
        reply_not_ready(f, ep, c);
        return;
    }
    w->base = (client){.kind = CLIENT_STATS, .conn = c};
    w->ep = ep;
    *f->stats_last = w;
    f->stats_last = &w->next;
    msgl__http_conn_set_user(c, &w->base);
}

// What the engine said, kept beyond the message. False: there is no memory for it.
static bool keep(msgl_replica_stats *one, const msgl_msg *m)
{
    if (m->type == MSGL_MSG_STATS) {
        one->stats = m->u.stats;
        return true;
    }
    const size_t n = (size_t)m->u.tree.num_runs;
    msgl_tree_run *runs = msgl__calloc(n == 0 ? 1 : n, sizeof *runs);
    if (runs == NULL) return false;
    if (n > 0) memcpy(runs, m->u.tree.runs, n * sizeof *runs);
    one->tree = m->u.tree;
    one->tree.runs = runs;
    return true;
}

static void wait_free(const msgl_front *f, stats_wait *w)
{
    for (int i = 0; i < f->cfg.num_replicas; i++) msgl__free((void *)w->all[i].tree.runs);
    msgl__free(w);
}

// One engine less to wait for: what it said, or NULL if it is gone. `at` holds the request that
// waits.
static void arrived(msgl_front *f, stats_wait **at, int index, const msgl_msg *m)
{
    stats_wait *w = *at;
    msgl_replica_stats *one = &w->all[index];
    one->state = m != NULL && keep(one, m) ? MSGL_STATS_GIVEN : MSGL_STATS_NONE;
    if (--w->num_left > 0) return;
    *at = w->next;
    if (*at == NULL) f->stats_last = at;
    bool any = false;
    for (int i = 0; i < f->cfg.num_replicas; i++) any |= w->all[i].state == MSGL_STATS_GIVEN;
    if (w->base.conn != NULL && f->http != NULL && any) {
        msgl__strbuf_clear(&f->out);
        msgl__front_reply(f, w->ep, w->base.conn, 200, w->ep->put_stats(f, w->all, &f->out));
    } else if (w->base.conn != NULL && f->http != NULL) {
        reply_not_ready(f, w->ep, w->base.conn);
    }
    wait_free(f, w);
}

void msgl__stats_arrived(replica *r, const msgl_msg *m)
{
    msgl_front *f = r->front;
    stats_wait **at = &f->stats_first;
    while (*at != NULL && (*at)->all[r->index].state != MSGL_STATS_ASKED) at = &(*at)->next;
    if (*at != NULL) arrived(f, at, r->index, m);
}

void msgl__stats_lost(replica *r)
{
    msgl_front *f = r->front;
    for (stats_wait **at = &f->stats_first; *at != NULL;) {
        const stats_wait *w = *at;
        if (w->all[r->index].state == MSGL_STATS_ASKED) arrived(f, at, r->index, NULL);
        if (*at == w) at = &(*at)->next;
    }
    msgl__lora_lost(r);
}

// --- endpoints ---

static int put_one(const msgl_msg_stats *s, msgl_strbuf *out)
{
    return msgl__strbuf_addf(
        out,
        "{\"step\":%" PRIu64 ",\"running\":%d,\"waiting\":%d,\"free_pages\":%d,"
        "\"cached_pages\":%d,\"used_pages\":%d,\"total_pages\":%d,\"prompt_tokens\":%" PRIu64
        ",\"generated_tokens\":%" PRIu64 ",\"cached_tokens\":%" PRIu64 ",\"requests_done\":%" PRIu64
        ",\"requests_aborted\":%" PRIu64 ",\"requests_retracted\":%" PRIu64
        ",\"drafted_tokens\":%" PRIu64 ",\"accepted_tokens\":%" PRIu64 "}",
        s->step, s->running, s->waiting, s->free_pages, s->cached_pages, s->used_pages,
        s->total_pages, s->prompt_tokens, s->generated_tokens, s->cached_tokens, s->requests_done,
        s->requests_aborted, s->requests_retracted, s->drafted_tokens, s->accepted_tokens);
}

static void add(msgl_msg_stats *sum, const msgl_msg_stats *s)
{
    sum->step += s->step;
    sum->running += s->running;
    sum->waiting += s->waiting;
    sum->free_pages += s->free_pages;
    sum->cached_pages += s->cached_pages;
    sum->used_pages += s->used_pages;
    sum->total_pages += s->total_pages;
    sum->prompt_tokens += s->prompt_tokens;
    sum->generated_tokens += s->generated_tokens;
    sum->cached_tokens += s->cached_tokens;
    sum->requests_done += s->requests_done;
    sum->requests_aborted += s->requests_aborted;
    sum->requests_retracted += s->requests_retracted;
    sum->drafted_tokens += s->drafted_tokens;
    sum->accepted_tokens += s->accepted_tokens;
}

static int put_stats(const msgl_front *f, const msgl_replica_stats *all, msgl_strbuf *out)
{
    msgl_msg_stats sum = {0};
    for (int i = 0; i < f->cfg.num_replicas; i++) {
        if (all[i].state == MSGL_STATS_GIVEN) add(&sum, &all[i].stats);
    }
    return put_one(&sum, out);
}

// [{"serving":true,"load":tokens,"stats":{...}}, ...]: of one that does not answer no stats.
static int put_replicas(const msgl_front *f, const msgl_replica_stats *all, msgl_strbuf *out)
{
    int rc = msgl__strbuf_adds(out, ",\"replicas\":[");
    for (int i = 0; i < f->cfg.num_replicas && rc == 0; i++) {
        const replica *r = &f->replicas[i];
        rc = msgl__strbuf_addf(out, "%s{\"serving\":%s,\"load\":%" PRId64, i == 0 ? "" : ",",
                               msgl__replica_serves(r) ? "true" : "false",
                               msgl__router_load(f->router, i));
        if (rc == 0 && all[i].state == MSGL_STATS_GIVEN) {
            rc = msgl__strbuf_adds(out, ",\"stats\":");
            if (rc == 0) rc = put_one(&all[i].stats, out);
        }
        if (rc == 0) rc = msgl__strbuf_addc(out, '}');
    }
    return rc == 0 ? msgl__strbuf_addc(out, ']') : rc;
}

static int put_str_field(msgl_strbuf *out, const char *name, const char *value)
{
    int rc = msgl__strbuf_addf(out, "\"%s\":", name);
    if (rc == 0) rc = msgl__json_put_str(out, value, strlen(value));
    return rc == 0 ? msgl__strbuf_addc(out, ',') : rc;
}

static int put_info(const msgl_front *f, const msgl_replica_stats *all, msgl_strbuf *out)
{
    const msgl_msg_ready *r = msgl__front_engine(f);
    int rc = msgl__strbuf_addf(out, "{\"version\":\"%s\",", MSGL_VERSION);
    if (rc == 0) rc = put_str_field(out, "model", f->cfg.model_name);
    if (rc == 0) rc = put_str_field(out, "served_model_name", f->cfg.model_name);
    if (rc == 0) rc = put_str_field(out, "model_path", f->shown_path);
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
    if (rc == 0) rc = put_stats(f, all, out);
    if (rc == 0) rc = put_replicas(f, all, out);
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

// As SGLang's, an object for each engine: what it has and what waits for it, here or there.
static int put_load(const msgl_front *f, const msgl_replica_stats *all, msgl_strbuf *out)
{
    int rc = msgl__strbuf_addc(out, '['), n = 0;
    for (int i = 0; i < f->cfg.num_replicas && rc == 0; i++) {
        const replica *r = &f->replicas[i];
        const msgl_msg_stats *s = &all[i].stats;
        if (all[i].state != MSGL_STATS_GIVEN) continue;
        const int waiting = s->waiting + r->queued;
        rc = msgl__strbuf_addf(out,
                               "%s{\"dp_rank\":%d,\"num_reqs\":%d,\"num_waiting_reqs\":%d,"
                               "\"num_tokens\":%" PRId64 "}",
                               n++ == 0 ? "" : ",", i, s->running + waiting, waiting,
                               r->tokens + r->queued_tokens);
    }
    return rc == 0 ? msgl__strbuf_addc(out, ']') : rc;
}

static const msgl_example info_examples[] = {
    {"All of it", MSGL_HTTP_GET, .has = "version model max_seq_len config stats"},
    {0},
};
const msgl_endpoint msgl__endpoint_get_server_info = {
    .path = "/get_server_info",
    .help = "Version, model, settings, and the engines' counters.",
    .examples = info_examples,
    .method = MSGL_HTTP_GET,
    .ask = MSGL_MSG_GET_STATS,
    .put_stats = put_info};
const msgl_endpoint msgl__endpoint_server_info = {.path = "/server_info",
                                                  .help = "The same by SGLang's newer name.",
                                                  .examples = info_examples,
                                                  .method = MSGL_HTTP_GET,
                                                  .ask = MSGL_MSG_GET_STATS,
                                                  .put_stats = put_info};
static const msgl_example get_load_examples[] = {
    {.help = "The load", .method = MSGL_HTTP_GET},
    {0},
};
const msgl_endpoint msgl__endpoint_get_load = {
    .path = "/get_load",
    .help = "What each engine has to do: an array of objects with `dp_rank`, `num_reqs`, "
            "`num_waiting_reqs` and `num_tokens`.",
    .examples = get_load_examples,
    .method = MSGL_HTTP_GET,
    .ask = MSGL_MSG_GET_STATS,
    .put_stats = put_load};
static const msgl_example flush_cache_examples[] = {
    {.help = "The caches are emptied", .method = MSGL_HTTP_POST},
    {0},
};
const msgl_endpoint msgl__endpoint_flush_cache = {
    .path = "/flush_cache",
    .help = "Empties the prefix caches, when nothing runs and nothing waits; else they stay. The "
            "answer has the engines' counters. It needs an admin's key (`--admin-api-key`); where "
            "there is "
            "none, the only API key, or where nobody needs one to come from this machine.",
    .examples = flush_cache_examples,
    .admin = true,
    .method = MSGL_HTTP_POST,
    .ask = MSGL_MSG_FLUSH,
    .put_stats = put_stats};
