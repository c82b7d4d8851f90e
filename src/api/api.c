// SPDX-License-Identifier: Apache-2.0
#include "api/api.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "api/endpoint.h"
#include "api/fields.h"
#include "api/json.h"
#include "api/loras.h"
#include "utils/siphash.h"

enum {
    UNKNOWN_BYTES = 1024, // of a request's unknown names
    NOTES_BYTES = 4096,
    PREFILL_BYTES = 4096,
};

static const char bad_request[] = "invalid_request_error", ours[] = "server_error";
const msgl_api_status msgl__api_statuses[] = {
    {400, bad_request, MSGL_AT_BODY | MSGL_AT_PARSE,
     "what the request has is wrong; the message names it and what is allowed"},
    {401, bad_request, MSGL_AT_KEY, "the key is missing or wrong (`--api-key`)"},
    {403, bad_request, MSGL_AT_ANY,
     "the host or the web page is a foreign one (`--allowed-hosts`), or an admin's key is needed "
     "(`--admin-api-key`)"},
    {404, "not_found_error", MSGL_AT_PARSE | MSGL_AT_NAME,
     "there is no such path, model or object"},
    {405, bad_request, MSGL_AT_ANY, "the path takes other methods, which `Allow` names"},
    {408, bad_request, MSGL_AT_ANY, "the request did not arrive in time"},
    {413, bad_request, MSGL_AT_BODY, "the body, or what it asks for, takes too much memory"},
    {414, bad_request, MSGL_AT_ANY, "the path is too long"},
    {415, bad_request, MSGL_AT_BODY, "the body is of another type, or compressed"},
    {417, bad_request, MSGL_AT_ANY, "another expectation than `100-continue`"},
    {429, "rate_limit_error", MSGL_AT_BODY,
     "too much is under way; `Retry-After` says when to come back"},
    {431, bad_request, MSGL_AT_ANY, "the headers are too many or too large"},
    {500, ours, MSGL_AT_BODY | MSGL_AT_ENGINE, "the server failed"},
    {501, ours, MSGL_AT_OPTIONAL, "this server, or its model, has it not; the message says why"},
    {503, "service_unavailable_error", MSGL_AT_ENGINE,
     "no engine is ready, or the server ends; `Retry-After` says when to come back"},
    {505, ours, MSGL_AT_ANY, "another version than HTTP/1.0 and 1.1"},
    {0},
};

const msgl_api_code msgl__api_codes[] = {
    {"invalid_json", "the body is no JSON object"},
    {"invalid_type", "a field has another type"},
    {"invalid_value", "a field has a value that is not allowed"},
    {"missing_required_parameter", "a field must be given"},
    {"unknown_parameter", "a field is not known; the message may say what was meant"},
    {"unsupported_parameter", "a field is known, but not supported with this value"},
    {"context_length_exceeded", "prompt and `max_tokens` are more than the context has"},
    {"previous_response_not_found", "the client has no such stored response"},
    {"invalid_api_key", "the key is missing or wrong"},
    {"foreign_host", "`Host` is none of this server's names"},
    {"foreign_origin", "the web page that asks is not of this server"},
    {"model_not_found", "the server has another model"},
    {"not_json", "a web page's body is not `application/json`"},
    {"request_too_large", "the body, or what it asks for, takes too much memory"},
    {"queue_full", "too much is under way"},
    {"admin_key_needed", "what is asked for concerns all clients, and the key is no admin's"},
    {"aborted", "`/abort_request` ended it, and there is nothing to show"},
    {"batches_off", "there is no `--batch-dir`"},
    {"engine_not_ready", "no engine is ready"},
    {"weights_not_there", "the memory of weights or cache was given back, or an update of the "
                          "weights has failed"},
    {"engine_stopped", "the engine ended while it answered"},
    {"server_stopping", "the server ends"},
    {0},
};

static const char *error_type(int status)
{
    const msgl_api_status *s = msgl__api_statuses;
    while (s->status != 0 && s->status != status) s++;
    return s->status != 0 ? s->type : status >= 500 ? ours : bad_request;
}

int msgl__api_fail(msgl_api_error *e, int status, const char *param, const char *code,
                   const char *fmt, ...)
{
    *e = (msgl_api_error){.status = status, .type = error_type(status), .code = code};
    if (param != NULL) (void)snprintf(e->param, sizeof e->param, "%s", param);
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    return MSGL_EINVAL;
}

int msgl__api_oom(msgl_api_error *e)
{
    return msgl__api_fail(e, 500, NULL, NULL, "Out of memory.");
}

int msgl__api_fail_memory(msgl_api_error *e, int rc)
{
    const bool never = rc == MSGL_ELIMIT;
    return msgl__api_fail(e, never ? 413 : 429, NULL, never ? "request_too_large" : "queue_full",
                          "%s", msgl__budget_refusal(rc));
}

int msgl__api_error_put(const msgl_api_error *e, msgl_strbuf *out)
{
    int rc = msgl__strbuf_adds(out, "{\"error\":{\"message\":");
    if (rc == 0) rc = msgl__json_put_str(out, e->message, strlen(e->message));
    if (rc == 0) rc = msgl__strbuf_addf(out, ",\"type\":\"%s\",\"param\":", e->type);
    if (rc == 0) {
        rc = e->param[0] == '\0' ? msgl__strbuf_adds(out, "null")
                                 : msgl__json_put_str(out, e->param, strlen(e->param));
    }
    if (rc == 0) {
        rc = e->code == NULL ? msgl__strbuf_adds(out, ",\"code\":null}}")
                             : msgl__strbuf_addf(out, ",\"code\":\"%s\"}}", e->code);
    }
    return rc;
}

void msgl__gen_request_free(msgl_gen_request *r)
{
    for (int i = 0; i < r->num_prompts; i++) {
        if (r->prompts != NULL) msgl__free(r->prompts[i].ids);
        if (r->extras != NULL) msgl__req_extra_unref(r->extras[i]);
    }
    msgl__free(r->prompts);
    msgl__free(r->extras);
    json_decref(r->chat.vars);
    json_decref(r->root);
    msgl__req_extra_unref(r->extra);
    msgl__tool_set_free(r->chat.tools);
    msgl__strbuf_free(&r->chat.prefill);
    msgl__strbuf_free(&r->kept);
    msgl__free(r->text);
    msgl__free(r->adapter_path);
    msgl__free(r->adapter_name);
    msgl__free(r->chat.call_grammar);
    msgl__strbuf_free(&r->unknown);
    msgl__strbuf_free(&r->notes);
    msgl__strbuf_free(&r->left_out);
    if (r->own != NULL && r->ep->own->free != NULL) r->ep->own->free(r->own);
    msgl__free(r->own);
    *r = (msgl_gen_request){0};
}

// Copies s[0, len) and a NUL to *at, and moves *at behind it.
static const char *put_text(char **at, const char *s, size_t len)
{
    char *copy = *at;
    memcpy(copy, s, len);
    copy[len] = '\0';
    *at += len + 1;
    return copy;
}

int msgl__gen_request_detach(msgl_gen_request *r)
{
    size_t len = 0;
    const bool keep = (r->echo || r->keep_texts) && r->prompts != NULL;
    const int prompts = keep ? r->num_prompts : 0;
    for (int i = 0; i < r->num_stops; i++) len += strlen(r->stops[i]) + 1;
    for (int i = 0; i < prompts; i++) len += r->prompts[i].text == NULL ? 0 : r->prompts[i].len + 1;
    char *at = msgl__malloc(len);
    if (at == NULL) return MSGL_ENOMEM;
    r->text = at;
    r->text_len = len;
    for (int i = 0; i < r->num_stops; i++) {
        r->stops[i] = put_text(&at, r->stops[i], strlen(r->stops[i]));
    }
    for (int i = 0; i < prompts; i++) {
        msgl_prompt *p = &r->prompts[i];
        if (p->text != NULL) p->text = put_text(&at, p->text, p->len);
    }
    if (prompts == 0 && r->prompts != NULL) {
        for (int i = 0; i < r->num_prompts; i++) msgl__free(r->prompts[i].ids);
        msgl__free(r->prompts);
        r->prompts = NULL;
    }
    msgl__free(r->chat.call_grammar); // which extra has now
    r->chat.call_grammar = NULL;
    json_decref(r->chat.vars);
    json_decref(r->root);
    r->chat.vars = r->root = NULL;
    r->bad_words = r->dry_breakers = r->listed = r->embeds = NULL;
    r->chat.template = NULL;
    r->chat.force_name = NULL;
    r->pairs.instruct = NULL;
    r->fill = NULL;
    r->before = r->behind = NULL;
    return 0;
}

static size_t strip_slashes(const char *s)
{
    size_t n = strlen(s);
    while (n > 1 && s[n - 1] == '/') n--;
    return n;
}

// The last part of path[0, *len), behind which there are slashes only.
static const char *last_part(const char *path, size_t *len)
{
    const size_t n = strip_slashes(path);
    const char *slash = n > 1 ? memrchr(path, '/', n) : NULL;
    const char *last = slash == NULL ? path : slash + 1;
    *len = n - (size_t)(last - path);
    return last;
}

void msgl__api_put_path(const char *path, char *out, size_t size)
{
    size_t len = strlen(path);
    const char *shown = path[0] == '/' ? last_part(path, &len) : path;
    (void)snprintf(out, size, "%.*s", (int)(len < size ? len : size), shown);
}

static bool has_name(const msgl_api_config *cfg, const char *name, size_t len)
{
    for (int i = 0; i < cfg->num_more_names; i++) {
        const char *other = cfg->more_names[i];
        if (len == strlen(other) && memcmp(name, other, len) == 0) return true;
    }
    while (len > 1 && name[len - 1] == '/') len--;
    const size_t path_len = strip_slashes(cfg->model_path);
    size_t base_len;
    const char *base = last_part(cfg->model_path, &base_len);
    return (len == strlen(cfg->model_name) && memcmp(name, cfg->model_name, len) == 0) ||
           (len == path_len && memcmp(name, cfg->model_path, len) == 0) ||
           (len == base_len && memcmp(name, base, len) == 0);
}

bool msgl__api_model_known(const msgl_api_config *cfg, const char *name, size_t len)
{
    static const char latest[] = ":latest"; // Ollama's clients put it behind a name without a tag
    const size_t tag = sizeof latest - 1;
    if (has_name(cfg, name, len)) return true;
    return len > tag && memcmp(name + len - tag, latest, tag) == 0 &&
           has_name(cfg, name, len - tag);
}

// 1: the request has the adapter of this name; 0: there is none.
static int take_adapter(const msgl_api_config *cfg, const char *name, msgl_gen_request *out,
                        msgl_api_error *e)
{
    if (cfg->loras == NULL || out->adapter != 0) return 0;
    const int rc =
        msgl__loras_find(cfg->loras, name, strlen(name), &out->adapter, &out->adapter_path);
    if (rc > 0) out->adapter_name = msgl__strdup(name);
    return rc < 0 || (rc > 0 && out->adapter_name == NULL) ? msgl__api_oom(e) : rc;
}

// As SGLang has it: NAME:ADAPTER.
static int take_model_and_adapter(const msgl_api_config *cfg, const char *model,
                                  msgl_gen_request *out, msgl_api_error *e)
{
    const char *colon = strchr(model, ':');
    if (colon == NULL || !msgl__api_model_known(cfg, model, (size_t)(colon - model))) return 0;
    return take_adapter(cfg, colon + 1, out, e);
}

// SGLang's field: an adapter by its name.
static int parse_lora_path(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                           msgl_api_error *e)
{
    const char *name = NULL;
    int rc = msgl__field_str(o, "lora_path", &name, e);
    if (rc <= 0) return rc;
    if (out->adapter != 0 && strcmp(out->adapter_name, name) == 0) return 0;
    if (out->adapter != 0) {
        return msgl__api_fail(e, 400, "lora_path", "invalid_value",
                              "'model' and 'lora_path' are two adapters; allowed: one.");
    }
    rc = take_adapter(cfg, name, out, e);
    if (rc != 0) return rc < 0 ? rc : 0;
    return msgl__api_fail(e, 404, "lora_path", "model_not_found",
                          "There is no adapter '%.100s'; /v1/models lists those that there are.",
                          name);
}

static int check_model(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                       msgl_api_error *e)
{
    const char *model = NULL;
    int rc = msgl__field_str(o, "model", &model, e);
    // No name means the only model there is; Mini-SGLang's own clients send an empty one.
    if (rc <= 0 || model[0] == '\0' || msgl__api_model_known(cfg, model, strlen(model))) {
        return rc < 0 ? rc : 0;
    }
    rc = take_adapter(cfg, model, out, e);
    if (rc == 0) rc = take_model_and_adapter(cfg, model, out, e);
    if (rc != 0) return rc < 0 ? rc : 0;
    return msgl__api_fail(e, 404, "model", "model_not_found",
                          "The model '%.100s' does not exist; this server has '%.100s'.", model,
                          cfg->model_name);
}

// vLLM's field, and whose key the request has: one number, which no other two of these give.
static int parse_salt(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                      msgl_api_error *e)
{
    const char *text = "";
    const int rc = msgl__field_name(o, "cache_salt", MSGL_API_MAX_SALT, &text, e);
    if (rc < 0 || (rc == 0 && cfg->salt_of == 0)) return rc;
    char both[MSGL_API_MAX_SALT + 16];
    const int n = snprintf(both, sizeof both, "%d %s", cfg->salt_of, text);
    out->cache_salt = msgl__siphash(cfg->salt_key, both, (size_t)n);
    if (out->cache_salt == 0) out->cache_salt = 1;
    return 0;
}

// The same of one that classifies, or is asked to. A single label is how well two texts go
// together.
static int check_labels(const msgl_endpoint *ep, const msgl_api_config *cfg, msgl_api_error *e)
{
    const bool ranks = ep->put_all != NULL;
    if (!cfg->classifies) {
        return msgl__api_fail(e, 400, NULL, NULL,
                              "'%s' needs a model that classifies; this server's has no labels.",
                              ep->path);
    }
    if (ep->classifies || (ranks && cfg->pooled_size == 1)) return 0;
    return msgl__api_fail(e, 400, NULL, NULL,
                          "'%s' needs a model that %s; this server classifies texts by %d label%s, "
                          "at /classify%s.",
                          ep->path,
                          ranks        ? "has one label"
                          : ep->pooled ? "makes embeddings"
                                       : "answers",
                          cfg->pooled_size, cfg->pooled_size == 1 ? "" : "s",
                          cfg->pooled_size == 1 ? ", /v1/rerank and /v1/score" : "");
}

// Whether the engine makes what the endpoint gives.
static int check_pooling(const msgl_endpoint *ep, const msgl_api_config *cfg, msgl_api_error *e)
{
    const bool answers = cfg->pooled_size == 0;
    if (ep->put_begin == NULL && ep->put_all == NULL) return 0;
    if (ep->lists && answers) return 0; // parse says what it can be asked for
    if (cfg->classifies || ep->classifies) return check_labels(ep, cfg, e);
    if (ep->pooled && !answers && (ep->put_all != NULL || !cfg->reranks)) return 0;
    if (!ep->pooled && answers) return 0;
    if (!answers) {
        return msgl__api_fail(
            e, 400, NULL, NULL, "'%s' needs a model that %s; this server %s.", ep->path,
            ep->pooled ? "makes embeddings" : "answers",
            cfg->reranks ? "ranks documents, at /v1/rerank and /v1/score"
                         : "makes embeddings, at /v1/embeddings, /v1/rerank and /v1/score");
    }
    return msgl__api_fail(e, 400, NULL, NULL,
                          "'%s' needs a model that makes embeddings%s; this server answers: its "
                          "model has no modules.json that says so, and it was not started with "
                          "--is-embedding.",
                          ep->path, ep->put_all == NULL ? "" : " or ranks documents");
}

int msgl__json_fail(const msgl_err *err, msgl_api_error *e)
{
    switch (err->code) {
    case MSGL_ELIMIT: return msgl__api_fail(e, 413, NULL, "request_too_large", "%s", err->text);
    case MSGL_EBUSY: return msgl__api_fail_memory(e, err->code);
    case MSGL_ENOMEM: return msgl__api_oom(e);
    default: return msgl__api_fail(e, 400, NULL, "invalid_json", "%s", err->text);
    }
}

int msgl__api_parse(const msgl_endpoint *ep, const char *body, size_t len,
                    const msgl_api_config *cfg, msgl_claim *claim, msgl_gen_request *out,
                    msgl_api_error *e)
{
    *out = (msgl_gen_request){.ep = ep,
                              .n = 1,
                              .max_tokens = -1,
                              .chat.thinking_budget = -1,
                              .sampling = cfg->defaults,
                              .skip_special = true,
                              .room = {.claim = claim, .copied = ep->prompt != MSGL_PROMPT_TEXT}};
    msgl_err err;
    out->root = msgl__json_parse_object(body, len, &out->room, &err);
    if (out->root == NULL) return msgl__json_fail(&err, e);
    msgl__strbuf_init(&out->unknown, UNKNOWN_BYTES);
    msgl__strbuf_init(&out->notes, NOTES_BYTES);
    msgl__strbuf_init(&out->left_out, UNKNOWN_BYTES);
    msgl__strbuf_init(&out->chat.prefill, PREFILL_BYTES);
    int rc = 0;
    if (ep->own != NULL) {
        out->own = msgl__calloc(1, ep->own->size);
        if (out->own == NULL) rc = msgl__api_oom(e);
    }
    if (rc == 0) rc = check_model(out->root, cfg, out, e);
    if (rc == 0) rc = check_pooling(ep, cfg, e);
    if (rc == 0) rc = ep->parse(out->root, cfg, out, e);
    if (rc == 0) rc = parse_lora_path(out->root, cfg, out, e); // parse may make one of an array
    if (rc == 0) rc = parse_salt(out->root, cfg, out, e);
    if (rc < 0) msgl__gen_request_free(out);
    return rc < 0 ? rc : 0;
}
