// SPDX-License-Identifier: Apache-2.0
//
// POST /v1/load_lora_adapter and /v1/unload_lora_adapter as vLLM has them, and SGLang's at
// /load_lora_adapter and /unload_lora_adapter. An adapter is loaded when every engine has read its
// folder; requests then find it by its name, and with each it has a number that no other reading of
// a folder has.
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "api/fields.h"
#include "api/json.h"
#include "core/mem.h"
#include "front/endpoints.h"
#include "front/front_impl.h"

enum { MAX_PATH = 4096 };

static const char LOAD_V1[] = "/v1/load_lora_adapter", UNLOAD_V1[] = "/v1/unload_lora_adapter";

#define ROW_NAME                                                                                   \
    {                                                                                              \
        "lora_name", MSGL_FIELD_STRING, .max_bytes = MSGL_MAX_LORA_NAME - 1, .required = true,     \
                                        .help = "what requests call it, as `model`"                \
    }
static const msgl_field_row load_rows[] = {
    ROW_NAME,
    {"lora_path", MSGL_FIELD_STRING, .max_bytes = MAX_PATH - 1, .required = true,
     .help = "its folder on the server, as PEFT saves it, or a GGUF file"},
    {"load_inplace", MSGL_FIELD_BOOL, .preset = "false",
     .help = "it may take the place of one of this name; else that is an error"},
    {"base_model_name", MSGL_FIELD_ANY, .help = "changes nothing: vLLM's"},
    {"pinned", MSGL_FIELD_ANY, .help = "changes nothing: SGLang's"},
    {0},
};
static const msgl_fields load_fields = {.read = load_rows};
static const msgl_fields *const load_objects[] = {&load_fields, NULL};
static const msgl_field_row unload_rows[] = {
    ROW_NAME,
    {"lora_int_id", MSGL_FIELD_ANY, .help = "changes nothing: vLLM's"},
    {0},
};
static const msgl_fields unload_fields = {.read = unload_rows};
static const msgl_fields *const unload_objects[] = {&unload_fields, NULL};

// A load that engines are asked for.
struct lora_wait {
    client base; // first
    struct lora_wait *next;
    const msgl_endpoint *ep;
    uint64_t id;
    char name[MSGL_MAX_LORA_NAME], path[MAX_PATH];
    engines_wait wait;
};

typedef struct call {
    char name[MSGL_MAX_LORA_NAME], path[MAX_PATH];
    bool in_place;
} call;

static int take_text(const json_t *o, const char *name, char *out, size_t size, msgl_api_error *e)
{
    const char *text = NULL;
    const int rc = msgl__field_name(o, name, size - 1, &text, e);
    if (rc <= 0) return rc < 0 ? rc : msgl__field_missing(e, name);
    (void)snprintf(out, size, "%s", text);
    return 0;
}

static int parse(const msgl_front *f, const msgl_strbuf *body, bool loads, call *out,
                 msgl_api_error *e)
{
    *out = (call){0};
    if (f->api.loras == NULL) {
        return msgl__api_fail(e, 501, NULL, NULL,
                              "This server takes no adapters: it was started without "
                              "--enable-lora or --lora-paths.");
    }
    json_t *o = msgl__front_read_json(f, loads ? &load_fields : &unload_fields, body,
                                      MSGL_ADMIN_BODY, MSGL_UNKNOWN_REFUSE, e);
    if (o == NULL) return MSGL_EINVAL;
    int rc = take_text(o, "lora_name", out->name, sizeof out->name, e);
    if (rc == 0 && loads) rc = take_text(o, "lora_path", out->path, sizeof out->path, e);
    if (rc == 0 && loads) rc = msgl__field_bool(o, "load_inplace", &out->in_place, e);
    json_decref(o);
    return rc < 0 ? rc : 0;
}

static bool is_sglang(const msgl_endpoint *ep)
{
    return strncmp(ep->path, "/v1/", 4) != 0;
}

// SGLang's object: what is loaded now.
static int put_sglang(const msgl_front *f, msgl_strbuf *out)
{
    const char *name, *path;
    int rc =
        msgl__strbuf_adds(out, "{\"success\":true,\"error_message\":\"\",\"loaded_adapters\":{");
    for (int i = 0; rc == 0 && msgl__loras_at(f->api.loras, i, &name, &path); i++) {
        if (i > 0) rc = msgl__strbuf_addc(out, ',');
        if (rc == 0) rc = msgl__json_put_str(out, name, strlen(name));
        if (rc == 0) rc = msgl__strbuf_addc(out, ':');
        if (rc == 0) rc = msgl__json_put_str(out, path, strlen(path));
    }
    return rc == 0 ? msgl__strbuf_adds(out, "}}") : rc;
}

static void reply(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c, const char *name,
                  const char *done)
{
    msgl__strbuf_clear(&f->out);
    const int rc =
        is_sglang(ep)
            ? put_sglang(f, &f->out)
            : msgl__strbuf_addf(&f->out, "Success: LoRA adapter '%s' %s successfully.", name, done);
    msgl__front_reply(f, ep, c, 200, rc);
}

static void drop(msgl_front *f, uint64_t id)
{
    const msgl_msg m = {.type = MSGL_MSG_ADAPTER, .u.adapter = {.adapter = id}};
    for (int i = 0; i < f->cfg.num_replicas; i++) (void)msgl__replica_post(&f->replicas[i], &m);
}

static void fail(msgl_front *f, const lora_wait *w)
{
    msgl_api_error e;
    const int status = w->wait.code == MSGL_ENOENT                                  ? 404
                       : w->wait.code == MSGL_EBUSY || w->wait.code == MSGL_ECLOSED ? 503
                       : w->wait.code == MSGL_ENOMEM                                ? 500
                                                                                    : 400;
    (void)msgl__api_fail(&e, status, "lora_path", NULL, "%s", w->wait.text);
    msgl__front_reply_error(f, w->ep, w->base.conn, &e);
}

// Every engine has answered.
static void finish(msgl_front *f, lora_wait *w)
{
    uint64_t old = 0;
    engines_wait *e = &w->wait;
    const bool had = msgl__loras_find(f->api.loras, w->name, strlen(w->name), &old, NULL) > 0;
    if (e->code == 0) {
        e->code = msgl__loras_put(f->api.loras, w->name, w->path, w->id);
        if (e->code != 0) {
            (void)snprintf(e->text, sizeof e->text, "%s; allowed: at most %d adapters",
                           msgl__status_text(e->code), MSGL_MAX_LORAS);
        }
    }
    if (e->code != 0) {
        drop(f, w->id);
    } else if (had) {
        drop(f, old);
    }
    if (w->base.conn != NULL && f->http != NULL && e->code == 0) {
        reply(f, w->ep, w->base.conn, w->name, "added");
    } else if (w->base.conn != NULL && f->http != NULL) {
        fail(f, w);
    }
    msgl__free(w);
}

// What one engine says of it; text NULL: nothing is wrong.
static void arrived(replica *r, lora_wait **at, int code, const char *text)
{
    lora_wait *w = *at;
    if (!msgl__wait_arrived(&w->wait, r, code, text) || w->wait.num_left > 0) return;
    *at = w->next;
    finish(r->front, w);
}

void msgl__lora_done(replica *r, const msgl_msg_adapter_done *done)
{
    lora_wait **at = &r->front->lora_waits;
    while (*at != NULL && (*at)->id != done->adapter) at = &(*at)->next;
    if (*at != NULL && !done->dropped) arrived(r, at, done->status, done->text);
}

void msgl__lora_lost(replica *r)
{
    for (lora_wait **at = &r->front->lora_waits; *at != NULL;) {
        const lora_wait *w = *at;
        arrived(r, at, MSGL_ECLOSED, "the engine has ended");
        if (*at == w) at = &(*at)->next;
    }
}

static void take_load(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c,
                      msgl_http_parser *p)
{
    msgl_api_error e;
    call in;
    uint64_t id;
    int rc = parse(f, &p->body, true, &in, &e);
    if (rc == 0 && !in.in_place &&
        msgl__loras_find(f->api.loras, in.name, strlen(in.name), &id, NULL) > 0) {
        rc = msgl__api_fail(&e, 400, "lora_name", NULL,
                            "The adapter '%.100s' is loaded already; allowed: another name, or "
                            "'load_inplace': true.",
                            in.name);
    }
    if (rc == 0 && msgl__api_model_known(&f->api, in.name, strlen(in.name))) {
        rc = msgl__api_fail(&e, 400, "lora_name", NULL, "'%.100s' is the model's name.", in.name);
    }
    lora_wait *w = rc == 0 ? msgl__calloc(1, sizeof *w) : NULL;
    if (rc == 0 && w == NULL) rc = msgl__api_oom(&e);
    if (rc == 0 && getrandom(&w->id, sizeof w->id, 0) != sizeof w->id) rc = msgl__api_oom(&e);
    if (rc != 0) {
        msgl__free(w);
        msgl__front_reply_error(f, ep, c, &e);
        return;
    }
    w->id |= (uint64_t)1 << 63; // those of --lora-paths are small numbers
    w->base = (client){.kind = CLIENT_STATS, .conn = c};
    w->ep = ep;
    (void)snprintf(w->name, sizeof w->name, "%s", in.name);
    (void)snprintf(w->path, sizeof w->path, "%s", in.path);
    const msgl_msg m = {.type = MSGL_MSG_ADAPTER, .u.adapter = {.adapter = w->id, .path = w->path}};
    for (int i = 0; i < f->cfg.num_replicas; i++) {
        if (msgl__replica_serves(&f->replicas[i])) msgl__wait_ask(&w->wait, &f->replicas[i], &m);
    }
    if (w->wait.num_left == 0) {
        msgl__free(w);
        (void)msgl__api_fail(&e, 503, NULL, "engine_not_ready", "The engine is not ready.");
        msgl__front_reply_error(f, ep, c, &e);
        return;
    }
    w->next = f->lora_waits;
    f->lora_waits = w;
    msgl__http_conn_set_user(c, &w->base);
}

static void take_unload(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c,
                        msgl_http_parser *p)
{
    msgl_api_error e;
    call in;
    uint64_t id = 0;
    int rc = parse(f, &p->body, false, &in, &e);
    if (rc == 0 && !msgl__loras_remove(f->api.loras, in.name, &id)) {
        rc = msgl__api_fail(&e, 404, "lora_name", NULL, "There is no adapter '%.100s'.", in.name);
    }
    if (rc != 0) {
        msgl__front_reply_error(f, ep, c, &e);
        return;
    }
    drop(f, id);
    reply(f, ep, c, in.name, "removed");
}

int msgl__loras_open(msgl_front *f, msgl_err *err)
{
    const msgl_front_config *cfg = &f->cfg;
    if (!cfg->enable_lora) return 0;
    f->api.loras = msgl__loras_create();
    int rc = f->api.loras == NULL ? MSGL_ENOMEM : 0;
    for (int i = 0; i < cfg->num_loras && rc == 0; i++) {
        rc = msgl__loras_put(f->api.loras, cfg->loras[i].name, cfg->loras[i].path, 1 + (uint64_t)i);
    }
    return rc == 0 ? 0 : msgl__err_set(err, rc, "--lora-paths: %s", msgl__status_text(rc));
}

void msgl__loras_close(msgl_front *f)
{
    while (f->lora_waits != NULL) {
        lora_wait *w = f->lora_waits;
        f->lora_waits = w->next;
        msgl__free(w);
    }
    msgl__loras_free(f->api.loras);
    f->api.loras = NULL;
}

static const msgl_example load_examples[] = {
    {"Load an adapter, where the server takes some", MSGL_HTTP_POST,
     .body = "{\"lora_name\": \"sql\", \"lora_path\": \"/srv/sql-lora\"}", .status = 501,
     .type = "application/json", .has = "error"},
    {0},
};
static const msgl_example unload_examples[] = {
    {"Take it away", MSGL_HTTP_POST, .body = "{\"lora_name\": \"sql\"}", .status = 501,
     .type = "application/json", .has = "error"},
    {0},
};
static const char LOAD_HELP[] =
    "Reads a low-rank adapter from a folder of the server's and serves it by its name beside the "
    "model ([adapters.md](adapters.md)), as vLLM has it; for administrators.";
static const char UNLOAD_HELP[] =
    "Takes an adapter's name away; requests that have begun end with it. For administrators.";
static const char SGLANG_HELP[] = "The same as SGLang has it: the answer lists what is loaded.";

const msgl_endpoint msgl__endpoint_load_lora = {.path = LOAD_V1,
                                                .help = LOAD_HELP,
                                                .examples = load_examples,
                                                .admin = true,
                                                .optional = true,
                                                .method = MSGL_HTTP_POST,
                                                .type = "text/plain",
                                                .objects = load_objects,
                                                .take = take_load};
const msgl_endpoint msgl__endpoint_unload_lora = {.path = UNLOAD_V1,
                                                  .help = UNLOAD_HELP,
                                                  .examples = unload_examples,
                                                  .admin = true,
                                                  .optional = true,
                                                  .method = MSGL_HTTP_POST,
                                                  .type = "text/plain",
                                                  .objects = unload_objects,
                                                  .take = take_unload};
const msgl_endpoint msgl__endpoint_load_lora_sglang = {.path = "/load_lora_adapter",
                                                       .help = SGLANG_HELP,
                                                       .examples = load_examples,
                                                       .admin = true,
                                                       .optional = true,
                                                       .method = MSGL_HTTP_POST,
                                                       .objects = load_objects,
                                                       .take = take_load};
const msgl_endpoint msgl__endpoint_unload_lora_sglang = {.path = "/unload_lora_adapter",
                                                         .help = SGLANG_HELP,
                                                         .examples = unload_examples,
                                                         .admin = true,
                                                         .optional = true,
                                                         .method = MSGL_HTTP_POST,
                                                         .objects = unload_objects,
                                                         .take = take_unload};
